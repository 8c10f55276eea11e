//! Benchmark of few huge pages for a program that prefers some regions: the built-in `hot-regions`, 1 GiB
//! that is only read, which disables huge pages for itself and is overridden before its first touch. 8 and 15
//! pages are those that `plan` ranks first; all arms run under the same supervisor, there and back. `--rounds
//! N` of the bench, `--reads N` of the workload.
//!
//! What is never written is the zero page: with base pages one of 4 KiB, which stays in the innermost cache,
//! and with huge pages one of 2 MiB. Where the second-level cache does not hold that, its reads cost more
//! than the walks that are saved, and the bars do not apply.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench panics to fail, and prints what it measured"
)]

mod arms;

use arms::{Arm, print_bar, read_time, run_pagelab};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let value = |name: &str, usual: &str| {
        let place = words.iter().position(|word| word == name);
        place.and_then(|at| words.get(at + 1)).map_or(usual.to_owned(), Clone::clone)
    };
    let (rounds, reads) = (value("--rounds", "9").parse().unwrap(), value("--reads", "20000000"));
    let binary = env!("CARGO_BIN_EXE_pagelab");
    let mut kinds = Vec::new();
    for first in ["read", "write"] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let program = [binary, "workload", "hot-regions", "--first", first, "--advise", "nohuge", "--rounds"];
        let mut profiled = vec!["profile", "--source", "exact", "-o", "hot.pagelab", "--"];
        profiled.extend(program);
        profiled.push("2000000");
        run_pagelab(folder, &profiled);
        let mut arms = vec![Arm::new("none", "none", None), Arm::new("all", "all", None)];
        for n in ["8", "15"] {
            let plan = format!("{n}.toml");
            run_pagelab(folder, &["plan", "hot.pagelab", "-n", n, "-o", &plan]);
            arms.push(Arm::new(&format!("{n} pages"), &plan, None));
        }
        let mut command = program.to_vec();
        command.push(&reads);
        arms::run_interleaved(&mut arms, rounds, |arm| {
            read_time(folder, &[&arm.plan, "--override"], &command)
        });
        for arm in &arms[1..] {
            let interval = arm.interval(&arms[0]);
            let ratio = arms[0].median() / arm.median();
            println!(
                "first {first:<6} {:<9} {:6.2} ns a read, {ratio:.3} times as fast ({:.3} to {:.3})",
                arm.name,
                arm.median(),
                interval.low,
                interval.high
            );
        }
        kinds.push(arms);
    }
    let [none, all, eight, fifteen] = [0, 1, 2, 3].map(|arm| kinds[0][arm].median());
    let how = "1 GiB that is only read, huge pages overridden before the first touch";
    print_bar("hot_regions_8_pages", none / eight, how);
    print_bar("hot_regions_15_pages", none / fifteen, how);
    let gain = kinds[0][3].interval(&kinds[0][0]);
    if gain.low > 1.0 {
        print_bar("hot_regions_15_share", (none - fifteen) / (none - all), how);
    } else {
        println!(
            r#"{{"bar":"hot_regions_15_share","value":null,"unit":"ratio","why":"15 pages bring no gain to share: {:.3} to {:.3} times as fast"}}"#,
            gain.low, gain.high
        );
    }
}
