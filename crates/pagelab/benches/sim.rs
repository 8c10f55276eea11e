//! The bars of the simulator: `pagelab sim bench` over 16 GiB, its figures as ratios, and beside LLFree's own
//! bench where somebody has built it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

mod llfree;

use std::process::Command;

use serde_json::Value;

/// Rows of one run of `sim bench`.
struct Ran(Value);

impl Ran {
    fn of(words: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagelab"));
        let output = command.args(["sim", "bench", "--json"]).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ran(serde_json::from_slice(&output.stdout).unwrap())
    }

    fn row(&self, load: &str, engine: &str, lists: bool, ahead: bool) -> &Value {
        let is = |row: &&Value| {
            row["load"] == load
                && row["engine"] == engine
                && row["look_ahead"] == ahead
                && row["per_cpu_lists"] == lists
        };
        self.0["engines"].as_array().unwrap().iter().find(is).unwrap()
    }

    /// Pairs a second.
    fn of_row(&self, load: &str, engine: &str, lists: bool, ahead: bool) -> f64 {
        self.row(load, engine, lists, ahead)["pairs_per_s"].as_f64().unwrap()
    }
}

fn said(bar: &str, value: f64, unit: &str, how: &str) {
    println!(r#"{{"bar":"{bar}","value":{value:.3},"unit":"{unit}","how":"{how}"}}"#);
}

fn main() {
    let mix = Ran::of(&[]);
    let plain = mix.of_row("mix", "plain", false, false);
    for (bar, engine, lists, ahead) in [
        ("sim_pairs_to_plain", "memory", true, false),
        ("sim_ahead_to_plain", "mobility", false, true),
        ("sim_memory_to_plain", "memory", false, true),
        ("sim_compact_to_plain", "compact", false, true),
    ] {
        let ours = mix.of_row("mix", engine, lists, ahead);
        said(bar, ours / plain, "ratio", &format!("{ours:.0} pairs a second to {plain:.0}"));
    }
    let compact = mix.row("mix", "compact", false, false);
    let pages = compact["memory_bytes"].as_f64().unwrap() / 4096.0;
    said("sim_compact_bytes_a_page", compact["books_bytes"].as_f64().unwrap() / pages, "bytes", "of 16 GiB");
    let millions = |bar: &str, pairs: f64, how: &str| said(bar, pairs / 1e6, "million/s", how);
    let ahead = mix.of_row("mix", "memory", false, true);
    millions("sim_memory_ahead_pairs", ahead, "16 GiB, mix, with look-ahead");
    order0();
    bulk();
    terabyte();
}

/// Single frames, each pair as it comes.
fn order0() {
    let ran = Ran::of(&["--engine", "compact", "--load", "order0"]);
    let ours = ran.of_row("order0", "compact", false, false);
    said("sim_compact_order0_pairs", ours / 1e6, "million/s", "16 GiB, no look-ahead");
}

/// What LLFree's `rand` does, and LLFree itself between two of our runs.
fn bulk() {
    let words = ["--engine", "compact", "--engine", "memory", "--engine", "plain", "--load", "bulk"];
    let before = Ran::of(&words);
    let peer = tempfile::tempdir().map_err(|error| error.to_string());
    let peer = peer.and_then(|folder| llfree::rand(16, 7, folder.path()));
    let after = Ran::of(&words);
    let ours = |engine: &str, lists: bool| {
        [&before, &after].map(|ran| ran.of_row("bulk", engine, lists, false)).iter().sum::<f64>() / 2.0
    };
    let plain = ours("plain", false);
    // The full engine as Linux has it, with per-CPU lists.
    for (engine, lists, bar) in [("compact", false, "sim_bulk_compact"), ("memory", true, "sim_bulk_memory")]
    {
        let pairs = ours(engine, lists);
        said(&format!("{bar}_pairs"), pairs / 1e6, "million/s", "16 GiB, no look-ahead");
        said(&format!("{bar}_to_plain"), pairs / plain, "ratio", &format!("{pairs:.0} to {plain:.0}"));
        let bar = format!("{bar}_to_llfree");
        match &peer {
            Ok(turns) => {
                let mut took: Vec<f64> = turns.iter().map(|turn| turn.get + turn.put).collect();
                took.sort_by(f64::total_cmp);
                let theirs = 1e9 / took[took.len() / 2];
                said(&bar, pairs / theirs, "ratio", &format!("{pairs:.0} pairs a second to {theirs:.0}"));
            }
            Err(why) => {
                let line = serde_json::json!({ "bar": bar, "value": null, "unit": "ratio", "why": why });
                println!("{line}");
            }
        }
    }
}

/// A terabyte of the mix, with look-ahead.
fn terabyte() {
    let words = ["--memory", "1T", "--engine", "compact", "--engine", "memory", "--load", "mix"];
    let ran = Ran::of(&words);
    for (bar, engine) in [("sim_terabyte_compact_pairs", "compact"), ("sim_terabyte_memory_pairs", "memory")]
    {
        let pairs = ran.of_row("mix", engine, false, true);
        said(bar, pairs / 1e6, "million/s", "1 TiB, mix, with look-ahead");
    }
}
