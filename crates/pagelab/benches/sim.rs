//! Benchmark of the simulator: `pagelab sim bench` over 16 GiB as ratios, and LLFree's own benchmark if it is
//! built.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

mod llfree;

use std::process::Command;

use pagelab_model::order_statistics::median;
use serde_json::Value;

/// Rows of one run of `sim bench`.
struct BenchOutput(Value);

impl BenchOutput {
    fn run(arguments: &[&str]) -> BenchOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagelab"));
        let output = command.args(["sim", "bench", "--json"]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        BenchOutput(serde_json::from_slice(&output.stdout).unwrap())
    }

    fn row(&self, load: &str, engine: &str, with_pcp_lists: bool, with_lookahead: bool) -> &Value {
        let is = |row: &&Value| {
            row["load"] == load
                && row["engine"] == engine
                && row["look_ahead"] == with_lookahead
                && row["per_cpu_lists"] == with_pcp_lists
        };
        self.0["engines"].as_array().unwrap().iter().find(is).unwrap()
    }

    /// Pairs a second.
    fn pairs_per_s(&self, load: &str, engine: &str, with_pcp_lists: bool, with_lookahead: bool) -> f64 {
        self.row(load, engine, with_pcp_lists, with_lookahead)["pairs_per_s"].as_f64().unwrap()
    }
}

fn print_bar(bar: &str, value: f64, unit: &str, method: &str) {
    println!(r#"{{"bar":"{bar}","value":{value:.3},"unit":"{unit}","how":"{method}"}}"#);
}

fn main() {
    let mix = BenchOutput::run(&[]);
    let btree = mix.pairs_per_s("mix", "btree", false, false);
    for (bar, engine, lists, ahead) in [
        ("sim_pairs_to_plain", "memory", true, false),
        ("sim_ahead_to_plain", "mobility", false, true),
        ("sim_memory_to_plain", "memory", false, true),
        ("sim_compact_to_plain", "compact", false, true),
    ] {
        let ours = mix.pairs_per_s("mix", engine, lists, ahead);
        print_bar(bar, ours / btree, "ratio", &format!("{ours:.0} pairs a second to {btree:.0}"));
    }
    let compact = mix.row("mix", "compact", false, false);
    let pages = compact["memory_bytes"].as_f64().unwrap() / 4096.0;
    print_bar(
        "sim_compact_bytes_a_page",
        compact["metadata_bytes"].as_f64().unwrap() / pages,
        "bytes",
        "of 16 GiB",
    );
    let millions = |bar: &str, pairs: f64, how: &str| print_bar(bar, pairs / 1e6, "million/s", how);
    let ahead = mix.pairs_per_s("mix", "memory", false, true);
    millions("sim_memory_ahead_pairs", ahead, "16 GiB, mix, with look-ahead");
    bench_order0();
    bench_bulk();
    bench_terabyte();
}

/// Single frames, each pair as it comes.
fn bench_order0() {
    let ran = BenchOutput::run(&["--engine", "compact", "--load", "order0"]);
    let ours = ran.pairs_per_s("order0", "compact", false, false);
    print_bar("sim_compact_order0_pairs", ours / 1e6, "million/s", "16 GiB, no look-ahead");
}

/// What LLFree's `rand` does, and LLFree itself between two of our runs.
fn bench_bulk() {
    let words = ["--engine", "compact", "--engine", "memory", "--engine", "btree", "--load", "bulk"];
    let before = BenchOutput::run(&words);
    let peer = tempfile::tempdir().map_err(|error| error.to_string());
    let peer = peer.and_then(|folder| llfree::run_rand(16, 7, folder.path()));
    let after = BenchOutput::run(&words);
    let ours = |engine: &str, lists: bool| {
        [&before, &after].map(|ran| ran.pairs_per_s("bulk", engine, lists, false)).iter().sum::<f64>() / 2.0
    };
    let btree = ours("btree", false);
    // The full engine as Linux has it, with per-CPU lists.
    for (engine, lists, bar) in [("compact", false, "sim_bulk_compact"), ("memory", true, "sim_bulk_memory")]
    {
        let pairs = ours(engine, lists);
        print_bar(&format!("{bar}_pairs"), pairs / 1e6, "million/s", "16 GiB, no look-ahead");
        print_bar(&format!("{bar}_to_plain"), pairs / btree, "ratio", &format!("{pairs:.0} to {btree:.0}"));
        let bar = format!("{bar}_to_llfree");
        match &peer {
            Ok(turns) => {
                let mut took: Vec<f64> = turns.iter().map(|turn| turn.alloc_ns + turn.free_ns).collect();
                let theirs = 1e9 / median(&mut took).unwrap_or(f64::NAN);
                print_bar(
                    &bar,
                    pairs / theirs,
                    "ratio",
                    &format!("{pairs:.0} pairs a second to {theirs:.0}"),
                );
            }
            Err(why) => {
                let line = serde_json::json!({ "bar": bar, "value": null, "unit": "ratio", "why": why });
                println!("{line}");
            }
        }
    }
}

/// A terabyte of the mix, with look-ahead.
fn bench_terabyte() {
    let words = ["--memory", "1T", "--engine", "compact", "--engine", "memory", "--load", "mix"];
    let ran = BenchOutput::run(&words);
    for (bar, engine) in [("sim_terabyte_compact_pairs", "compact"), ("sim_terabyte_memory_pairs", "memory")]
    {
        let pairs = ran.pairs_per_s("mix", engine, false, true);
        print_bar(bar, pairs / 1e6, "million/s", "1 TiB, mix, with look-ahead");
    }
}
