//! Tests of `pagelab sim demo`: as text, as JSON, as a page, and on a terminal.

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

#[path = "support/screen.rs"]
mod screen;
mod support;

use std::collections::BTreeSet;

use rustix::process::Signal;
use screen::Screen;
use serde_json::Value;
use support::{Lab, collect_fields};

/// What a run prints.
fn demo_output(arguments: &[&str]) -> String {
    let ran = Lab::new().run(&[&["sim", "demo"], arguments].concat());
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
    ran.out
}

#[test]
fn the_same_seed_prints_the_same_under_each_policy() {
    for policy in ["standard", "list2", "list3", "mobility-6.1", "mobility-6.18", "contiguitas"] {
        let arguments = ["--policy", policy, "--steps", "60", "--seed", "7"];
        let once = demo_output(&arguments);
        assert_eq!(once, demo_output(&arguments));
        assert!(once.contains(&format!("{policy} policy   step 60 of 60")), "{once}");
        assert!(once.lines().all(|line| line.chars().count() <= 80), "{policy}");
        assert_ne!(once, demo_output(&["--policy", policy, "--steps", "60", "--seed", "8"]), "{policy}");
    }
    assert_eq!(demo_output(&[]), demo_output(&["--policy", "mobility", "--plain"]));
}

#[test]
fn the_document_has_the_steps_of_each_policy_and_each_field_is_documented() {
    let text = demo_output(&["--policy", "standard,mobility", "--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["kind"], "sim_demo");
    let policies = document["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 2);
    let steps = |at: usize| policies[at]["steps"].as_array().unwrap();
    assert!(steps(0).len() == steps(1).len() && steps(0).len() > 20);
    for (one, other) in steps(0).iter().zip(steps(1)) {
        assert_eq!(one["request"], other["request"], "the same requests");
        assert_eq!(one["frames"].as_str().unwrap().len(), 64);
    }
    // The lesson: one list for all leaves no huge page, lists by mobility do.
    let huge = |at: usize| steps(at).last().unwrap()["frames"].as_str().unwrap().matches('H').count();
    assert_eq!((huge(0), huge(1)), (0, 3));
    let mut found = BTreeSet::new();
    collect_fields(&document, &mut found);
    let docs = include_str!("../../../docs/json.md");
    let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
}

#[test]
fn a_page_is_written_whole_and_by_itself() {
    let lab = Lab::new();
    let ran = lab.run(&["sim", "demo", "--html", "demo.html"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("→ demo.html   "), "{}", ran.out);
    let page = std::fs::read_to_string(lab.path().join("demo.html")).unwrap();
    // For readers without scripts the text is in it, under every policy.
    for part in ["same step under standard", "list2: 3 huge pages", "Content-Security-Policy"] {
        assert!(page.contains(part), "no {part}");
    }
}

#[test]
fn invalid_arguments_are_refused() {
    let lab = Lab::new();
    for (arguments, why) in [
        (&["--policy", "buddy"][..], "expected one of standard, "),
        (&["--pages", "65"], "a multiple of 16 from 32 to 256"),
        (&["--pages", "16"], "from 32 to 256"),
        (&["--pages", "512"], "from 32 to 256"),
        (&["--steps", "0"], "from 1 to 1000"),
        (&["--pages", "-16"], "from 32 to 256"),
        (&["--policy", "list,list2"], "list2 is given twice"),
        (&["--policy", "list+zone"], "zone requires a machine with zones"),
        (&["--plain", "--json"], "cannot be used with"),
    ] {
        let ran = lab.run(&[&["sim", "demo"], arguments].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.out);
        assert!(ran.err.contains(why), "{arguments:?}: {}", ran.err);
    }
    let ran = lab.run(&["sim", "demo", "--html", "no/such/folder.html"]);
    assert!(ran.code == Some(3) && ran.err.contains("no directory no/such"), "{}", ran.err);
}

#[test]
fn keys_step_through_the_demo_and_the_terminal_is_restored() {
    let Some(screen) = Screen::open(Lab::new()) else { return };
    screen.pagelab("sim demo --pages 32");
    screen.until_shown("step 0 of");
    screen.press(&["Enter"]);
    screen.until_shown("step 1 of");
    screen.press(&["Space", "n"]);
    screen.until_shown("step 3 of");
    screen.press(&["b"]);
    let shown = screen.until_shown("step 2 of");
    assert!(shown.contains("mobility-6.18 policy") && shown.contains("q quit"), "{shown}");
    screen.press(&["p"]);
    screen.until_shown("standard policy");
    screen.press(&["End"]);
    screen.until_shown("huge pages allocated");
    screen.resize("60", "12");
    screen
        .until("the keys at the smaller size", |text| text.lines().count() <= 12 && text.contains("q quit"));
    screen.until_shown("lines: Up 0, Down ");
    screen.press(&["Down"]);
    screen.until_shown("lines: Up 1, Down ");
    screen.press(&["q"]);
    screen.until_ended(0);
}

#[test]
fn the_terminal_is_restored_after_signals() {
    let Some(screen) = Screen::open(Lab::new()) else { return };
    screen.pagelab("sim demo");
    screen.until_shown("step 0 of");
    screen.press(&["C-c"]);
    screen.until_ended(130);
    screen.pagelab("sim demo");
    screen.until_shown("step 0 of");
    screen.signal(&screen.pid(), Signal::TERM);
    screen.until_ended(143);
}
