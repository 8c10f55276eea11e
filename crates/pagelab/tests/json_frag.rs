//! Tests of `docs/json.md` against the output of `pagelab frag --json`: the example and every field.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use support::{Lab, collect_fields};

/// A pagetypeinfo of one zone.
const TYPES: &str = "\
Free pages count per migrate type at order 0 1
Node 0, zone DMA, type Unmovable 9 2
Node 0, zone DMA, type Movable 4 0
Node 0, zone DMA, type CMA 1 1

Number of blocks type Unmovable Movable CMA
Node 0, zone DMA 3 2 1
";

/// The section `## frag` of the page.
fn section() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once("\n## frag\n").unwrap();
    section.split("\n## ").next().unwrap().to_owned()
}

/// The fenced block of this language.
fn block<'a>(section: &'a str, language: &str) -> &'a str {
    let (_, rest) = section.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

/// The names in the first column of the section's tables, the reasons of those that may be null without a
/// row of their own, and the version, which every document has.
fn documented(section: &str) -> BTreeSet<String> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
    let names = rows.flat_map(|(names, kind)| {
        let reason = if kind.contains(" or null |") { "_absent_reason" } else { "" };
        names.split(", ").flat_map(move |name| {
            [String::new(), reason.to_owned()].map(|end| format!("{}{end}", name.trim_matches('`')))
        })
    });
    names.chain(["pagelab_json".to_owned()]).collect()
}

#[test]
fn the_documented_example_equals_the_output() {
    let (lab, section) = (Lab::new(), section());
    lab.write("example.txt", block(&section, "text"));
    let ran = lab.run(&["frag", "--json", "--from", "example.txt"]);
    assert_eq!(ran.out, block(&section, "json"), "copy the left side into docs/json.md");
}

#[test]
fn every_field_is_documented_and_every_documented_field_is_printed() {
    let (lab, section) = (Lab::new(), section());
    lab.write("example.txt", block(&section, "text"));
    lab.write("bare.txt", "DMA: 1*4kB 0*8kB = 4kB\n");
    lab.write("buddy", "Node 0, zone DMA 0 0\n");
    lab.write("types", TYPES);
    lab.write("capped", TYPES.replace("Unmovable 9", "Unmovable >9"));
    lab.write("cut", TYPES.split_once("Number").unwrap().0);
    let mut printed = BTreeSet::new();
    for source in ["example.txt", "bare.txt", "buddy", "types", "capped", "cut", ""] {
        let from = if source.is_empty() { vec![] } else { vec!["--from", source] };
        let ran = lab.run(&[&["frag", "--json"], from.as_slice()].concat());
        let document: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(document["pagelab_json"], 2);
        assert_eq!(document["kind"], "frag");
        collect_fields(&document, &mut printed);
        check_absences(&document);
    }
    assert_eq!(printed, documented(&section));
}

/// A value is `null` exactly where the reason for it stands beside it.
fn check_absences(value: &Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(of) = name.strip_suffix("_absent_reason") {
                    assert!(map[of].is_null() && value.is_string(), "{name}");
                } else {
                    assert_eq!(value.is_null(), map.contains_key(&format!("{name}_absent_reason")), "{name}");
                }
                check_absences(value);
            }
        }
        Value::Array(items) => items.iter().for_each(check_absences),
        _ => {}
    }
}
