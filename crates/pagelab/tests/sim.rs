//! `pagelab sim`, end to end.

#[path = "../benches/llfree/mod.rs"]
mod llfree;
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
    let drawn = lab.run(&["sim", "bench", "--memory", "128M", "--load", "bulk", "--engine", "drawn"]);
    assert!(drawn.code == Some(2) && drawn.err.contains("keeps no list"), "{}", drawn.err);
}

#[test]
fn what_llfrees_own_bench_writes_is_read() {
    let table = "alloc,x,order,iteration,memory,get_min,get_avg,get_max,put_min,put_avg,put_max,init,total,\
                 allocs\nLLFree,1,0,0,16,20,21,22,35,36,37,0,1000,2097152\n";
    let turns = llfree::read(table).unwrap();
    assert_eq!((turns.len(), turns[0].get, turns[0].put), (1, 21.0, 36.0));
    assert!(llfree::read("alloc,x\nLLFree,1\n").is_err() && llfree::read(&table.replace("36", "")).is_err());
    if let Err(why) = llfree::program() {
        #[allow(clippy::print_stderr, reason = "a skipped check says so")]
        {
            eprintln!("skipped: llfree-absent: {why}");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let turns = llfree::rand(1, 2, folder.path()).unwrap();
    assert!(turns.len() == 2 && turns.iter().all(|turn| turn.get > 0.0 && turn.put > 0.0), "{turns:?}");
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
