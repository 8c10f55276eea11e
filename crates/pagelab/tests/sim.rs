//! `pagelab sim`, end to end.

mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Lab, fields};

#[test]
fn bench_measures_each_engine_and_documents_each_field() {
    let lab = Lab::new();
    let ran = lab.run(&[
        "sim", "bench", "--memory", "128M", "--memory", "256M", "--pairs", "4000", "--turns", "2", "--json",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let engines = said["engines"].as_array().unwrap();
    // Four engines with and without look-ahead, and the plain one, over two sizes.
    assert_eq!(engines.len(), 18);
    for row in engines {
        assert_eq!(row["pair_ps_by_turn"].as_array().unwrap().len(), 2, "{row}");
        assert!(row["pairs_per_s"].as_u64().unwrap() > 0 && row["failed"].as_u64().unwrap() < 400, "{row}");
    }
    let mut found = BTreeSet::new();
    fields(&said, &mut found);
    let docs = include_str!("../../../docs/json.md");
    let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
    let text = lab.run(&["sim", "bench", "--memory", "128M", "--pairs", "1000", "--turns", "1"]).out;
    assert!(text.contains("mobility") && text.contains("look-ahead") && text.contains("plain"), "{text}");
}

#[test]
fn sizes_that_cannot_be_are_refused_in_words() {
    let lab = Lab::new();
    for (size, said) in [
        ("3M", "a multiple of 2 MiB"),
        ("17000G", "to 16 TiB less"),
        ("0", "a size such as"),
        ("x", "a size such as"),
    ] {
        let ran = lab.run(&["sim", "bench", "--memory", size]);
        assert_eq!(ran.code, Some(2), "{size}: {}", ran.out);
        assert!(ran.err.contains(said), "{size}: {}", ran.err);
    }
}
