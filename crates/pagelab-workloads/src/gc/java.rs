//! The benchmark in Java: its source is written to a private directory and run by the `java` on PATH.

use std::fs;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

use pagelab_sys::spawn::die_with_parent;
use pagelab_sys::thp_disable::{self, ThpDisable};

use super::{GcJob, RuntimeResult};
use crate::WorkloadError;
use crate::histogram::LatencyHistogram;
use crate::options::WorkloadOptions;
use crate::phase::MeasuredPhase;
use crate::private_dir::PrivateDir;

const JAVA_SOURCE: &str = include_str!("PagelabGc.java");
const JAVA_FILE: &str = "PagelabGc.java";

/// The launcher compiles the source in the heap of the benchmark, and that needs room.
const HEAP_BYTES_MIN: u64 = 64 << 20;
const RESULT_PREFIX: &str = "pagelab-gc";

const INSTALL_HINT: &str =
    "hint: install a JDK of Java 11 or later (Debian: openjdk-17-jdk-headless), or use runtime native";

/// Runs it by OpenJDK, whose whole process is the measured phase.
pub fn run_java(
    job: &GcJob,
    options: &WorkloadOptions,
    phase: &mut MeasuredPhase<'_>,
) -> Result<RuntimeResult, WorkloadError> {
    if job.heap_bytes.0 < HEAP_BYTES_MIN || i32::try_from(job.list_count).is_err() {
        let text = "size and length: the java runtime needs a heap of at least 64M, and supports fewer than \
                    2^31 lists";
        return Err(WorkloadError::InvalidOptions(text.to_owned()));
    }
    let folder = PrivateDir::in_temp_dir("gc")?;
    let path = folder.path().join(JAVA_FILE);
    let write = |error| WorkloadError::system_error(format_args!("cannot write {}", path.display()), error);
    fs::write(&path, JAVA_SOURCE).map_err(write)?;
    let mut command = Command::new("java");
    let heap = job.heap_bytes.0;
    command.args([format!("-Xms{heap}"), format!("-Xmx{heap}")]);
    command.arg(match options.get_text("collector") {
        "parallel" => "-XX:+UseParallelGC",
        "g1" => "-XX:+UseG1GC",
        _ => "-XX:+UseSerialGC",
    });
    if options.get_text("advise") == "huge" {
        command.arg("-XX:+UseTransparentHugePages");
    }
    command.arg(&path);
    command.args([job.list_count, job.list_length, job.rounds, job.seed].map(|number| number.to_string()));
    command.stdin(Stdio::null());
    die_with_parent(&mut command);
    let output =
        with_thp_disabled(options.get_text("advise") == "nohuge", || phase.measure(|| command.output()))?;
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => WorkloadError::NotAvailable(format!("no java on PATH; {INSTALL_HINT}")),
        _ => WorkloadError::system_error("cannot run java", error),
    })?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(java_error(&stderr, &output.status.to_string()));
    }
    parse_result(&stdout, job).map_err(WorkloadError::WrongResult)
}

/// Runs a closure with THP disabled for this process and its children, if requested: a Java heap cannot be
/// advised from outside.
fn with_thp_disabled<T>(should_disable: bool, run: impl FnOnce() -> T) -> Result<T, WorkloadError> {
    let set = |disable| {
        thp_disable::set_thp_disable(disable)
            .map_err(|error| WorkloadError::system_error("cannot disable huge pages", error))
    };
    if !should_disable || thp_disable::read_thp_disable() == ThpDisable::All {
        return Ok(run());
    }
    let before = thp_disable::read_thp_disable();
    set(true)?;
    let done = run();
    if before == ThpDisable::Off {
        set(false)?;
    }
    Ok(done)
}

/// Why a Java program did not end well, from its complaint.
fn java_error(stderr: &str, status: &str) -> WorkloadError {
    let first = stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    let is_too_old = ["Could not find or load main class", "jdk.compiler", "Unrecognized option"];
    if is_too_old.iter().any(|words| stderr.contains(words)) {
        return WorkloadError::NotAvailable(format!(
            "this java cannot run a source file ({first}); {INSTALL_HINT}"
        ));
    }
    WorkloadError::SystemError(format!("java failed with {status}: {first}"))
}

fn parse_result(stdout: &str, job: &GcJob) -> Result<RuntimeResult, String> {
    let results =
        stdout.lines().find_map(|line| line.strip_prefix(RESULT_PREFIX)).ok_or("it printed no result")?;
    let numbers: Option<Vec<u64>> = results.split_whitespace().map(|word| word.parse().ok()).collect();
    let Some(&[checksum, nodes, elapsed_ns, collections, milliseconds]) = numbers.as_deref() else {
        return Err(format!("expected 5 numbers, found {results:?}"));
    };
    if nodes != job.list_count * job.list_length {
        return Err(format!("its lists have {nodes} nodes; expected {}", job.list_count * job.list_length));
    }
    let mut latencies = LatencyHistogram::default();
    for line in stdout.lines().filter_map(|line| line.strip_prefix("l ")) {
        let pair = line.split_once(' ').and_then(|(ns, count)| Some((ns.parse().ok()?, count.parse().ok()?)));
        let Some((ns, count)) = pair else {
            return Err(format!("expected a time and a count, found {line:?}"));
        };
        latencies.record_many(ns, count);
    }
    let (timed, expected) = (latencies.count(), job.list_count * job.rounds);
    if timed != expected {
        return Err(format!("it timed {timed} lists; expected {expected}"));
    }
    Ok(RuntimeResult {
        checksum,
        elapsed_ns,
        cpu_ns: None,
        latencies,
        collections,
        collection_ns: milliseconds.saturating_mul(1_000_000),
        collection_max_ns: None,
    })
}

#[cfg(test)]
mod tests {
    use pagelab_model::Bytes;

    use super::*;
    use crate::gc::WORKLOAD;

    const WORK: GcJob =
        GcJob { heap_bytes: Bytes(1 << 26), list_count: 2, list_length: 3, rounds: 2, seed: 1 };

    #[test]
    fn what_java_prints_is_read_and_distrusted() {
        let good = "pagelab-gc 18446744073709551615 6 900 3 7\nl 127 3\nl 4000 1\n";
        let ran = parse_result(good, &WORK).unwrap();
        assert_eq!((ran.checksum, ran.elapsed_ns, ran.collection_ns), (u64::MAX, 900, 7_000_000));
        assert_eq!((ran.latencies.count(), ran.latencies.max_ns()), (4, 4000));
        for bad in [
            "",
            "pagelab-gc 1 6 900 3\n",
            "pagelab-gc 1 5 900 3 7\nl 127 4\n",
            "pagelab-gc 1 6 900 3 7\nl 127 3\n",
            "pagelab-gc 1 6 900 3 7\nl x 4\n",
        ] {
            assert!(parse_result(bad, &WORK).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_java_that_cannot_is_missing_and_one_that_fails_has_failed() {
        let old = "Error: Could not find or load main class PagelabGc.java\n";
        assert!(matches!(java_error(old, "exit status: 1"), WorkloadError::NotAvailable(_)));
        let full = "Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n";
        let WorkloadError::SystemError(text) = java_error(full, "exit status: 1") else { panic!("it ran") };
        assert!(text.contains("OutOfMemoryError"), "{text}");
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        options.set_value("size", "1M").unwrap();
        let small = GcJob { heap_bytes: Bytes(1 << 20), ..WORK };
        assert!(matches!(
            run_java(&small, &options, &mut MeasuredPhase::without_observer()),
            Err(WorkloadError::InvalidOptions(_))
        ));
    }
}
