//! The benchmark in Java: its source is written to a folder of its own and run by the `java` on PATH.

use std::fs;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use pagelab_sys::spawn::die_with_parent;
use pagelab_sys::thp_disable::{self, ThpDisable};

use super::{Ran, Work};
use crate::Failed;
use crate::folder::OwnFolder;
use crate::histogram::Latencies;
use crate::options::Options;
use crate::phase::Phase;

const SOURCE: &str = include_str!("PagelabGc.java");
const FILE: &str = "PagelabGc.java";

/// The launcher compiles the source in the heap of the benchmark, and that needs room.
const HEAP_MIN: u64 = 64 << 20;
/// What it prints first on the line of results.
const MARK: &str = "pagelab-gc";

const WAY_OUT: &str = "install a JDK of Java 11 or later (Debian: openjdk-17-jdk-headless), or choose \
                       runtime \
                       native";

/// Runs it by OpenJDK, whose whole process is the measured phase.
pub fn run(work: &Work, options: &Options, phase: &mut Phase<'_>) -> Result<Ran, Failed> {
    if work.heap.0 < HEAP_MIN || i32::try_from(work.lists).is_err() {
        let text = "size and length: the java runtime needs a heap of 64M or more, and an array has less \
                    than 2^31 \
                    lists";
        return Err(Failed::Options(text.to_owned()));
    }
    let folder = OwnFolder::temporary("gc")?;
    let path = folder.path().join(FILE);
    let write = |error| Failed::system(format_args!("cannot write {}", path.display()), error);
    fs::write(&path, SOURCE).map_err(write)?;
    let mut command = Command::new("java");
    let heap = work.heap.0;
    command.args([format!("-Xms{heap}"), format!("-Xmx{heap}")]);
    command.arg(match options.text("collector") {
        "parallel" => "-XX:+UseParallelGC",
        "g1" => "-XX:+UseG1GC",
        _ => "-XX:+UseSerialGC",
    });
    if options.text("advise") == "huge" {
        command.arg("-XX:+UseTransparentHugePages");
    }
    command.arg(&path);
    command.args([work.lists, work.length, work.rounds, work.seed].map(|number| number.to_string()));
    command.stdin(Stdio::null());
    die_with_parent(&mut command);
    let output = without_huge_pages(options.text("advise") == "nohuge", || phase.of(|| command.output()))?;
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failed::Missing(format!("no java on PATH: {WAY_OUT}")),
        _ => Failed::system("cannot run java", error),
    })?;
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(failed(&complaint, &output.status.to_string()));
    }
    parse(&said, work).map_err(Failed::Wrong)
}

/// Runs something with transparent huge pages switched off for this process and what it starts, if that is
/// wanted: a Java heap cannot be advised from outside.
fn without_huge_pages<T>(is_wanted: bool, run: impl FnOnce() -> T) -> Result<T, Failed> {
    let set = |disable| {
        thp_disable::set(disable).map_err(|error| Failed::system("cannot switch huge pages off", error))
    };
    if !is_wanted || thp_disable::get() == ThpDisable::All {
        return Ok(run());
    }
    let before = thp_disable::get();
    set(true)?;
    let done = run();
    if before == ThpDisable::Off {
        set(false)?;
    }
    Ok(done)
}

/// Why a Java program did not end well, from its complaint.
fn failed(complaint: &str, status: &str) -> Failed {
    let first = complaint.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    let is_too_old = ["Could not find or load main class", "jdk.compiler", "Unrecognized option"];
    if is_too_old.iter().any(|words| complaint.contains(words)) {
        return Failed::Missing(format!("this java cannot run a source file ({first}): {WAY_OUT}"));
    }
    Failed::System(format!("java ended with {status}: {first}"))
}

/// What the program printed.
fn parse(said: &str, work: &Work) -> Result<Ran, String> {
    let results = said.lines().find_map(|line| line.strip_prefix(MARK)).ok_or("it printed no result")?;
    let numbers: Option<Vec<u64>> = results.split_whitespace().map(|word| word.parse().ok()).collect();
    let Some(&[checksum, nodes, took_ns, collections, milliseconds]) = numbers.as_deref() else {
        return Err(format!("it printed {results:?}"));
    };
    if nodes != work.lists * work.length {
        return Err(format!("its lists have {nodes} nodes, not {}", work.lists * work.length));
    }
    let mut latencies = Latencies::default();
    for line in said.lines().filter_map(|line| line.strip_prefix("l ")) {
        let pair = line.split_once(' ').and_then(|(ns, count)| Some((ns.parse().ok()?, count.parse().ok()?)));
        let Some((ns, count)) = pair else { return Err(format!("it printed {line:?} as a time")) };
        latencies.add_many(ns, count);
    }
    if latencies.count() != work.lists * work.rounds {
        return Err(format!("it timed {} lists, not {}", latencies.count(), work.lists * work.rounds));
    }
    let collecting_ns = milliseconds.saturating_mul(1_000_000);
    let (cpu_ns, collecting_max_ns) = (None, None);
    Ok(Ran { checksum, took_ns, cpu_ns, latencies, collections, collecting_ns, collecting_max_ns })
}

#[cfg(test)]
mod tests {
    use pagelab_model::Bytes;

    use super::*;
    use crate::gc::WORKLOAD;

    const WORK: Work = Work { heap: Bytes(1 << 26), lists: 2, length: 3, rounds: 2, seed: 1 };

    #[test]
    fn what_java_prints_is_read_and_distrusted() {
        let good = "pagelab-gc 18446744073709551615 6 900 3 7\nl 127 3\nl 4000 1\n";
        let ran = parse(good, &WORK).unwrap();
        assert_eq!((ran.checksum, ran.took_ns, ran.collecting_ns), (u64::MAX, 900, 7_000_000));
        assert_eq!((ran.latencies.count(), ran.latencies.max_ns()), (4, 4000));
        for bad in [
            "",
            "pagelab-gc 1 6 900 3\n",
            "pagelab-gc 1 5 900 3 7\nl 127 4\n",
            "pagelab-gc 1 6 900 3 7\nl 127 3\n",
            "pagelab-gc 1 6 900 3 7\nl x 4\n",
        ] {
            assert!(parse(bad, &WORK).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_java_that_cannot_is_missing_and_one_that_fails_has_failed() {
        let old = "Error: Could not find or load main class PagelabGc.java\n";
        assert!(matches!(failed(old, "exit status: 1"), Failed::Missing(_)));
        let full = "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n";
        let Failed::System(text) = failed(full, "exit status: 1") else { panic!("it ran") };
        assert!(text.contains("OutOfMemoryError"), "{text}");
        let mut options = Options::defaults(WORKLOAD.options);
        options.set("size", "1M").unwrap();
        let small = Work { heap: Bytes(1 << 20), ..WORK };
        assert!(matches!(run(&small, &options, &mut Phase::unwatched()), Err(Failed::Options(_))));
    }
}
