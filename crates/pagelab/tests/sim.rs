//! Tests of `pagelab sim`.

#[path = "../benches/llfree/mod.rs"]
mod llfree;
mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Lab, collect_fields};

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
        let Some(books) = row["metadata_bytes"].as_u64() else {
            assert!(["btree", "nothing"].contains(&engine), "{row}");
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
    collect_fields(&said, &mut found);
    let docs = include_str!("../../../docs/json.md");
    let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
    let text = lab.run(&["sim", "bench", "--memory", "128M", "--pairs", "1000", "--turns", "1"]).out;
    assert!(text.contains("mobility") && text.contains("look-ahead") && text.contains("btree"), "{text}");
    assert!(text.contains("1 turns of\n1\u{202f}000 pairs"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let chosen =
        ["sim", "bench", "--memory", "128M", "--pairs", "1000", "--turns", "1", "--engine", "random"];
    let text = lab.run(&[&chosen[..], &["--load", "order9"]].concat()).out;
    assert!(
        text.contains("compact random") && text.contains("order9") && !text.contains("mobility"),
        "{text}"
    );
}

#[test]
fn bulk_takes_half_of_memory_and_says_what_each_half_takes() {
    let lab = Lab::new();
    let words = ["sim", "bench", "--memory", "128M", "--load", "bulk", "--turns", "2"];
    let ran = lab.run(&[&words[..], &["--json"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let engines = said["engines"].as_array().unwrap();
    // All but the engine that keeps no list of live blocks.
    assert_eq!(engines.len(), 18);
    for row in engines {
        let of = |field: &str| row[field].as_u64().unwrap();
        // The middle of two turns, each half apart and both together: off by less than both roundings.
        assert!(of("allocation_ps").abs_diff(of("pair_ps") - of("free_ps")) <= 2, "{row}");
        assert!(of("failed") == 0 && of("stolen") == 0, "{row}");
    }
    let text = lab.run(&words).out;
    assert!(text.contains("ns/free") && text.contains("memory, per-CPU, ahead"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let random = lab.run(&["sim", "bench", "--memory", "128M", "--load", "bulk", "--engine", "random"]);
    assert!(random.code == Some(2) && random.err.contains("has no list"), "{}", random.err);
}

#[test]
fn output_of_the_llfree_bench_is_read() {
    let table = "alloc,x,order,iteration,memory,get_min,get_avg,get_max,put_min,put_avg,put_max,init,total,\
                 allocs\nLLFree,1,0,0,16,20,21,22,35,36,37,0,1000,2097152\n";
    let turns = llfree::parse_table(table).unwrap();
    assert_eq!((turns.len(), turns[0].alloc_ns, turns[0].free_ns), (1, 21.0, 36.0));
    assert!(
        llfree::parse_table("alloc,x\nLLFree,1\n").is_err()
            && llfree::parse_table(&table.replace("36", "")).is_err()
    );
    if let Err(why) = llfree::find_program() {
        #[allow(clippy::print_stderr, reason = "a skipped check says so")]
        {
            eprintln!("skipped: llfree-absent: {why}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let turns = llfree::run_rand(1, 2, folder.path()).unwrap();
    assert!(
        turns.len() == 2 && turns.iter().all(|turn| turn.alloc_ns > 0.0 && turn.free_ns > 0.0),
        "{turns:?}"
    );
}

#[test]
fn impossible_sizes_are_refused() {
    let lab = Lab::new();
    for (size, said) in [
        ("3M", "a multiple of 2M"),
        ("17000G", "to 16T"),
        ("0", "from 128M to 16T"),
        ("64M", "from 128M to 16T"),
        ("-1", "expected a size"),
        ("x", "expected a size"),
    ] {
        let ran = lab.run(&["sim", "bench", "--memory", size]);
        assert_eq!(ran.code, Some(2), "{size}: {}", ran.out);
        assert!(ran.err.contains(said), "{size}: {}", ran.err);
    }
    // Bytes of metadata for each of 2^32 frames, and the list of live blocks.
    let ran = lab.run(&["sim", "bench", "--memory", "16T", "--load", "order0"]);
    assert_eq!(ran.code, Some(4), "{}", ran.out);
    assert!(ran.err.contains("available") && ran.err.contains("--engine random (8"), "{}", ran.err);
    let ran = lab.run(&["sim", "bench", "--memory", "5T", "--load", "order9", "--engine", "standard"]);
    assert!((ran.code == Some(2) && ran.err.contains("up to 4 TiB")) || ran.code == Some(4), "{}", ran.err);
    for (words, said) in [
        (&["--pairs", "0"][..], "from 1 to 1000000000"),
        (&["--turns", "0"], "from 1 to 1000"),
        (&["--engine", "list", "--engine", "list"], "\"list\" is given twice"),
    ] {
        let ran = lab.run(&[&["sim", "bench"], words].concat());
        assert!(ran.code == Some(2) && ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    let ran = lab.run(&["sim", "bench", "--engine", "lists"]);
    assert!(ran.code == Some(2) && ran.err.contains("compact"), "{}", ran.err);
}
