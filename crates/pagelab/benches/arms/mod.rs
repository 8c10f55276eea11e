//! One program under several plans, interleaved.

#![allow(dead_code, reason = "each bench uses a part")]

use std::path::Path;
use std::process::{Command, Stdio};

use pagelab_metrics::effect::{PairedRatios, RatioInterval};
use pagelab_model::order_statistics;
use serde_json::Value;

/// One way to run the program.
pub struct Arm {
    pub name: String,
    /// A plan, or a word of `apply`.
    pub plan: String,
    /// Predicted shares of the gain: by cost, and by a flat cost of each miss. Absent: not to be predicted.
    pub shares: Option<(f64, f64)>,
    /// Nanoseconds of a read, a value a round.
    pub ns: Vec<f64>,
}

impl Arm {
    pub fn new(name: &str, plan: &str, shares: Option<(f64, f64)>) -> Arm {
        Arm { name: name.to_owned(), plan: plan.to_owned(), shares, ns: Vec::new() }
    }

    pub fn median(&self) -> f64 {
        median(&self.ns)
    }

    /// How many times as fast as `base`, in pairs of a round: the interval at 95 %.
    pub fn interval(&self, base: &Arm) -> RatioInterval {
        let logs = base.ns.iter().zip(&self.ns).map(|(base, ns)| (base / ns).ln());
        PairedRatios::from_logs(logs).t_interval().unwrap_or(RatioInterval { low: 0.0, high: f64::INFINITY })
    }

    pub fn range(&self) -> (f64, f64) {
        self.ns.iter().fold((f64::INFINITY, 0.0), |(low, high), &ns| (ns.min(low), ns.max(high)))
    }
}

/// Runs all arms so many times, there and back, so that a drift of the machine falls on all alike.
pub fn run_interleaved(arms: &mut [Arm], rounds: usize, measure: impl Fn(&Arm) -> f64) {
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let ns = measure(&arms[at]);
            arms[at].ns.push(ns);
        }
    }
}

/// Nanoseconds of CPU time of a read, as the workload itself measures them.
pub fn read_time(folder: &Path, options: &[&str], command: &[&str]) -> f64 {
    let mut args = vec!["apply"];
    args.extend(options);
    args.push("--");
    args.extend(command);
    let done: Value = serde_json::from_str(&run_pagelab(folder, &args)).unwrap();
    done["merit"]["value"].as_f64().unwrap()
}

/// Median of the values.
pub fn median(values: &[f64]) -> f64 {
    order_statistics::median(&mut values.to_vec()).unwrap_or(f64::NAN)
}

/// A line of a bar.
pub fn print_bar(bar: &str, value: f64, method: &str) {
    println!(r#"{{"bar":"{bar}","value":{value:.4},"unit":"ratio","how":"{method}"}}"#);
}

/// What pagelab prints; it must end well.
pub fn run_pagelab(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagelab"));
    command.args(args).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "pagelab {}: {said}", args.join(" "));
    String::from_utf8(output.stdout).unwrap()
}
