//! The bar of the simulator: `pagelab sim bench` over 16 GiB, its figures for a person and as a ratio.

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
    let of = |engine: &str, ahead: bool| {
        let is = |row: &&Value| {
            row["engine"] == engine && row["look_ahead"] == ahead && row["per_cpu_lists"] == false
        };
        engines.iter().find(is).unwrap()["pairs_per_s"].as_f64().unwrap()
    };
    let (ours, ahead, plain) = (of("mobility", false), of("mobility", true), of("plain", false));
    println!(
        r#"{{"bar":"sim_pairs_to_plain","value":{:.3},"unit":"ratio","how":"{ours:.0} pairs a second to {plain:.0}; {ahead:.0} with look-ahead"}}"#,
        ours / plain
    );
}
