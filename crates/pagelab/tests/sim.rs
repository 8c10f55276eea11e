//! `pagelab sim`, end to end.

mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Lab, fields};

#[test]
fn bench_measures_each_engine_and_documents_each_field() {
    let lab = Lab::new();
    let ran = lab.run(&[
        "sim", "bench", "--memory", "128M", "--memory", "256M", "--load", "mix", "--load", "hot", "--pairs",
        "2000", "--turns", "2", "--json",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let engines = said["engines"].as_array().unwrap();
    // Nine engines, two of them with per-CPU lists too, with and without look-ahead but for trees and the
    // plain one; two sizes, two loads.
    assert_eq!(engines.len(), 20 * 4);
    for row in engines {
        assert_eq!(row["pair_ps_by_turn"].as_array().unwrap().len(), 2, "{row}");
        assert!(row["pairs_per_s"].as_u64().unwrap() > 0 && row["failed"].as_u64().unwrap() < 400, "{row}");
        let pages = row["memory_bytes"].as_u64().unwrap() / 4096;
        let engine = row["engine"].as_str().unwrap();
        let Some(books) = row["books_bytes"].as_u64() else {
            assert!(["plain", "nothing"].contains(&engine), "{row}");
            continue;
        };
        if engine.starts_with("compact") {
            assert!(books * 4 <= pages, "{row}");
        } else if engine == "trees" {
            assert!((pages..2 * pages).contains(&books), "{row}");
        } else {
            assert!((4 * pages..7 * pages).contains(&books), "{row}");
        }
    }
    let mut found = BTreeSet::new();
    fields(&said, &mut found);
    let docs = include_str!("../../../docs/json.md");
    let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
    let text = lab.run(&["sim", "bench", "--memory", "128M", "--pairs", "1000", "--turns", "1"]).out;
    assert!(text.contains("mobility") && text.contains("look-ahead") && text.contains("plain"), "{text}");
    assert!(text.contains("1 turns of 1 000 pairs"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let chosen = ["sim", "bench", "--memory", "128M", "--pairs", "1000", "--turns", "1", "--engine", "drawn"];
    let text = lab.run(&[&chosen[..], &["--load", "order9"]].concat()).out;
    assert!(
        text.contains("compact, drawn") && text.contains("order9") && !text.contains("mobility"),
        "{text}"
    );
}

#[test]
fn sizes_that_cannot_be_are_refused_in_words() {
    let lab = Lab::new();
    for (size, said) in [
        ("3M", "a multiple of 2 MiB"),
        ("17000G", "to 16 TiB"),
        ("0", "from 128 MiB to 16 TiB"),
        ("64M", "from 128 MiB to 16 TiB"),
        ("-1", "such as 16G"),
        ("x", "such as 16G"),
    ] {
        let ran = lab.run(&["sim", "bench", "--memory", size]);
        assert_eq!(ran.code, Some(2), "{size}: {}", ran.out);
        assert!(ran.err.contains(said), "{size}: {}", ran.err);
    }
    // Bytes of books for each of 2^32 frames, and the list of live blocks.
    let ran = lab.run(&["sim", "bench", "--memory", "16T", "--load", "order0"]);
    assert_eq!(ran.code, Some(4), "{}", ran.out);
    assert!(ran.err.contains("available") && ran.err.contains("--engine drawn takes 8"), "{}", ran.err);
    let ran = lab.run(&["sim", "bench", "--memory", "5T", "--load", "order9", "--engine", "standard"]);
    assert!((ran.code == Some(2) && ran.err.contains("up to 4 TiB")) || ran.code == Some(4), "{}", ran.err);
    for (words, said) in [
        (&["--pairs", "0"][..], "from 1 to 1 000 000 000 is wanted"),
        (&["--turns", "0"], "from 1 to 1 000 is wanted"),
        (&["--engine", "list", "--engine", "list"], "\"list\" is there twice"),
    ] {
        let ran = lab.run(&[&["sim", "bench"], words].concat());
        assert!(ran.code == Some(2) && ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    let ran = lab.run(&["sim", "bench", "--engine", "lists"]);
    assert!(ran.code == Some(2) && ran.err.contains("compact"), "{}", ran.err);
}
