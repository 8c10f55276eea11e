//! The bar of the simulator: `pagelab sim bench` over 16 GiB, its figures as ratios.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

use std::process::Command;

use serde_json::Value;

fn main() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_pagelab")).args(["sim", "bench", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let engines = said["engines"].as_array().unwrap();
    let row = |engine: &str, lists: bool, ahead: bool| {
        let is = |row: &&Value| {
            row["engine"] == engine && row["look_ahead"] == ahead && row["per_cpu_lists"] == lists
        };
        engines.iter().find(is).unwrap()
    };
    let of =
        |engine: &str, lists: bool, ahead: bool| row(engine, lists, ahead)["pairs_per_s"].as_f64().unwrap();
    let plain = of("plain", false, false);
    for (bar, engine, lists, ahead) in [
        ("sim_pairs_to_plain", "memory", true, false),
        ("sim_ahead_to_plain", "mobility", false, true),
        ("sim_memory_to_plain", "memory", false, true),
        ("sim_compact_to_plain", "compact", false, true),
    ] {
        let ours = of(engine, lists, ahead);
        println!(
            r#"{{"bar":"{bar}","value":{:.3},"unit":"ratio","how":"{ours:.0} pairs a second to {plain:.0}"}}"#,
            ours / plain
        );
    }
    let compact = row("compact", false, false);
    let pages = compact["memory_bytes"].as_f64().unwrap() / 4096.0;
    println!(
        r#"{{"bar":"sim_compact_bytes_a_page","value":{:.4},"unit":"bytes","how":"of 16 GiB"}}"#,
        compact["books_bytes"].as_f64().unwrap() / pages
    );
}
