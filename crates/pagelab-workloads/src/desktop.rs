//! Light load of many small processes, as on a desktop: programs that start and exit, processes that wait and
//! are woken, small files that are written, read, renamed and deleted, and pauses in between.
//!
//! The figure of merit is the mean time of a single operation, not the rate; the latencies give the
//! distribution. Pauses are not counted.
//!
//! The waiting processes are forks of this one that hold private memory and touch one word in each of its
//! pages when they are woken. They show scarce memory first: a waiting process must fault in again what it
//! has lost to swap or to the page cache.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;
use pagelab_sys::resident_process::ResidentProcess;

use crate::histogram::LatencyHistogram;
use crate::options::{
    DurationSpec, OptionSpec, SEED_OPTION, ValueKind, WorkloadOptions, number_option, size_option,
};
use crate::phase::MeasuredPhase;
use crate::private_dir::{FOLDER_OPTION, PrivateDir};
use crate::small_program::{PROGRAM_OPTION, SmallProgram};
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mix_checksum};

/// The load as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "desktop",
    description: "Many small processes under light load: starts, wake-ups, small files, pauses; latency of \
                  each operation",
    generator: "random operations from the seed: 30 % wake a waiting process, 15 % start a program, 20 % \
                write a file of 1 to 64 KiB, 25 % read one, 5 % rename one, 5 % delete one, and a pause of \
                0.5 to 1.5 times the mean after each; processes touch their memory first when first woken",
    options: &[
        size_option("64M", "Total size of all waiting processes"),
        SEED_OPTION,
        number_option("processes", 1, 10_000, "16", "Number of waiting processes"),
        number_option("operations", 1, 1 << 40, "1000", "Number of operations"),
        OptionSpec {
            name: "pause",
            kind: ValueKind::Duration(DurationSpec {
                least: Duration::ZERO,
                most: Duration::from_secs(60),
                bare_unit: Duration::from_micros(1),
                former_name: None,
            }),
            default: "1ms",
            help: "Mean pause after an operation",
        },
        FOLDER_OPTION,
        PROGRAM_OPTION,
    ],
    forks_processes: true,
    guest_parts: &[],
    run: run_desktop,
};

/// Kinds of operations in the order of [`Operation`], their names, how many of a hundred are of each, and the
/// figures of their median and their tail.
const OPERATION_KINDS: [(Operation, &str, u64, [&str; 2]); 6] = [
    (Operation::WakeProcess, "wake", 30, ["wake_p50", "wake_p99"]),
    (Operation::StartProgram, "start", 15, ["start_p50", "start_p99"]),
    (Operation::WriteFile, "write", 20, ["write_p50", "write_p99"]),
    (Operation::ReadFile, "read", 25, ["read_p50", "read_p99"]),
    (Operation::RenameFile, "rename", 5, ["rename_p50", "rename_p99"]),
    (Operation::DeleteFile, "delete", 5, ["delete_p50", "delete_p99"]),
];
/// Bytes of a file: minimum, and the factor to the maximum.
const FILE_SIZE_STEP: u64 = 1 << 10;
const FILE_SIZE_STEPS: u64 = 64;
/// Files that are there at the most: then writing replaces one.
const FILES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    WakeProcess,
    StartProgram,
    WriteFile,
    ReadFile,
    RenameFile,
    DeleteFile,
}

/// A file: its present name, and the seed of its contents.
#[derive(Clone, Copy, Debug)]
struct StoredFile {
    name_number: u64,
    seed: u64,
}

/// The load, between two operations.
struct DesktopLoad {
    processes: Vec<ResidentProcess>,
    dir: PrivateDir,
    program: SmallProgram,
    files: Vec<StoredFile>,
    /// Names given so far.
    next_name: u64,
    checksum: u64,
}

fn run_desktop(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let processes = options.get_number("processes");
    let each = Bytes(options.get_size("size").0 / processes);
    if each.0 == 0 {
        return Err(WorkloadError::InvalidOptions(format!(
            "size: expected at least one byte for each of {processes} processes"
        )));
    }
    let start = |_| {
        ResidentProcess::start(each)
            .map_err(|error| WorkloadError::system_error("cannot start a process", error))
    };
    let mut desktop = DesktopLoad {
        processes: (0..processes).map(start).collect::<Result<_, _>>()?,
        dir: PrivateDir::new(options, "desktop")?,
        program: SmallProgram::from_options(options)?,
        files: Vec::new(),
        next_name: 0,
        checksum: 0,
    };
    let mut random = SplitMix64::new(options.get_number("seed"));
    let mut latencies_by_kind: [LatencyHistogram; OPERATION_KINDS.len()] = Default::default();
    let mut total_ns = 0u64;
    let operations = options.get_number("operations");
    phase.begin();
    for _ in 0..operations {
        let operation = draw_operation(&mut random, desktop.files.is_empty());
        let took_ns = desktop.perform(operation, &mut random)?;
        latencies_by_kind[operation as usize].record(took_ns);
        total_ns += took_ns;
        let pause = options.get_duration("pause").as_micros() as u64;
        let pause = pause / 2 + random.next_below(pause + 1);
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
    }
    phase.end();
    for file in &desktop.files {
        desktop.read_file(*file)?;
    }
    Ok(build_result(options, &desktop, &latencies_by_kind, total_ns))
}

fn build_result(
    options: &WorkloadOptions,
    desktop: &DesktopLoad,
    latencies_by_kind: &[LatencyHistogram],
    total_ns: u64,
) -> WorkloadResult {
    let mut latencies = LatencyHistogram::default();
    latencies_by_kind.iter().for_each(|kind| latencies.merge(kind));
    let mut figures = Vec::new();
    for (kind, (.., names)) in latencies_by_kind.iter().zip(OPERATION_KINDS) {
        for (name, of_100_000) in names.into_iter().zip([50_000, 99_000]) {
            figures.extend(kind.percentile_ns(of_100_000).map(|ns| Figure::time(name, ns as f64)));
        }
    }
    WorkloadResult {
        figure_of_merit: Figure::time("operation time", total_ns as f64 / latencies.count().max(1) as f64),
        working_set: options.get_size("size"),
        checksum: desktop.checksum,
        latencies: Some(latencies),
        hot_regions: Vec::new(),
        figures,
        phases: PhaseResults::default(),
        generated_input: format!(
            "{} processes, {} operations, mean pause {} us, program {}, seed {}",
            options.get_number("processes"),
            options.get_number("operations"),
            options.get_duration("pause").as_micros(),
            desktop.program.command_line(),
            options.get_number("seed")
        ),
    }
}

/// The next operation. If there is no file to read, rename or delete, one is written.
fn draw_operation(random: &mut SplitMix64, is_empty: bool) -> Operation {
    let (number, mut share_sum) = (random.next_below(100), 0u64);
    let drawn = OPERATION_KINDS.into_iter().find(|(_, _, share, _)| {
        share_sum += *share;
        number < share_sum
    });
    match drawn.map_or(Operation::DeleteFile, |(operation, ..)| operation) {
        Operation::ReadFile | Operation::RenameFile | Operation::DeleteFile if is_empty => {
            Operation::WriteFile
        }
        operation => operation,
    }
}

impl DesktopLoad {
    /// Does one operation. The nanoseconds that it took, without making or comparing contents.
    fn perform(&mut self, operation: Operation, random: &mut SplitMix64) -> Result<u64, WorkloadError> {
        let random_word = random.next_u64();
        let file_index = random.next_below(self.files.len() as u64) as usize;
        let (_, name, ..) = OPERATION_KINDS[operation as usize];
        let to_error = |error: io::Error| WorkloadError::system_error(format_args!("cannot {name}"), error);
        self.checksum = mix_checksum(self.checksum, random_word);
        match operation {
            Operation::WakeProcess => {
                let process = random.next_below(self.processes.len() as u64) as usize;
                time_operation(|| self.processes[process].wake()).map_err(to_error)
            }
            Operation::StartProgram => time_operation(|| self.program.run_once()).map_err(to_error),
            Operation::WriteFile => self.write_file(random_word, file_index).map_err(to_error),
            Operation::ReadFile => self.read_file(self.files[file_index]),
            Operation::RenameFile => {
                let (old, new) = (self.files[file_index].name_number, self.next_name);
                self.next_name += 1;
                self.files[file_index].name_number = new;
                time_operation(|| fs::rename(self.file_path(old), self.file_path(new))).map_err(to_error)
            }
            Operation::DeleteFile => {
                let gone = self.files.swap_remove(file_index);
                time_operation(|| fs::remove_file(self.file_path(gone.name_number))).map_err(to_error)
            }
        }
    }

    /// Writes a new file; if there are many already, it replaces the one at `file_index`.
    fn write_file(&mut self, seed: u64, file_index: usize) -> io::Result<u64> {
        let file = StoredFile { name_number: self.next_name, seed };
        self.next_name += 1;
        let bytes = file_content(seed);
        let took_ns = time_operation(|| fs::write(self.file_path(file.name_number), &bytes))?;
        if self.files.len() < FILES_MAX {
            self.files.push(file);
        } else {
            let old = std::mem::replace(&mut self.files[file_index], file);
            fs::remove_file(self.file_path(old.name_number))?;
        }
        Ok(took_ns)
    }

    /// Reads a file and verifies its contents. The nanoseconds of reading.
    fn read_file(&self, file: StoredFile) -> Result<u64, WorkloadError> {
        let path = self.file_path(file.name_number);
        let mut found = Vec::new();
        let read = || {
            found = fs::read(&path)?;
            Ok(())
        };
        let took_ns =
            time_operation(read).map_err(|error| WorkloadError::system_error("cannot read", error))?;
        if found != file_content(file.seed) {
            let text = format!("{} does not contain what was written", path.display());
            return Err(WorkloadError::WrongResult(text));
        }
        Ok(took_ns)
    }

    fn file_path(&self, name: u64) -> PathBuf {
        self.dir.path().join(format!("file-{name}"))
    }
}

fn time_operation(work: impl FnOnce() -> io::Result<()>) -> io::Result<u64> {
    let before = clock::monotonic_ns();
    work()?;
    Ok(clock::monotonic_ns().saturating_sub(before))
}

fn file_content(seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let len = FILE_SIZE_STEP * (1 + random.next_below(FILE_SIZE_STEPS));
    (0..len / size_of::<u64>() as u64).flat_map(|_| random.next_u64().to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_options(changes: &[(&str, &str)]) -> WorkloadOptions {
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        let few = [("size", "1M"), ("processes", "3"), ("operations", "60"), ("pause", "0")];
        for (name, typed) in few.iter().chain(changes) {
            options.set_value(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn shares_are_a_hundred_and_come_as_said() {
        assert_eq!(OPERATION_KINDS.iter().map(|(_, _, share, _)| share).sum::<u64>(), 100);
        assert!(OPERATION_KINDS.iter().enumerate().all(|(at, (operation, ..))| *operation as usize == at));
        let mut random = SplitMix64::new(2);
        let mut counts = [0u64; OPERATION_KINDS.len()];
        for _ in 0..10_000 {
            counts[draw_operation(&mut random, false) as usize] += 1;
        }
        for ((_, name, share, _), count) in OPERATION_KINDS.iter().zip(counts) {
            assert!(count.abs_diff(share * 100) < 150, "{name}: {count}");
        }
        for _ in 0..1000 {
            let operation = draw_operation(&mut random, true);
            assert!(matches!(
                operation,
                Operation::WakeProcess | Operation::StartProgram | Operation::WriteFile
            ));
        }
    }

    #[test]
    fn every_operation_is_timed_and_nothing_is_left() {
        let outer = PrivateDir::in_temp_dir("desktop-test").unwrap();
        let options = small_options(&[("folder", outer.path().to_str().unwrap())]);
        let done = run_desktop(&options, &mut MeasuredPhase::without_observer()).unwrap();
        assert_eq!(done.latencies.as_ref().unwrap().count(), 60);
        for name in ["wake_p50", "start_p99", "write_p50", "read_p50"] {
            assert!(done.figures.iter().any(|figure| figure.name == name && figure.value > 0.0), "{name}");
        }
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0);
        assert_eq!(
            run_desktop(&options, &mut MeasuredPhase::without_observer()).unwrap().checksum,
            done.checksum
        );
        assert_ne!(
            run_desktop(&small_options(&[("seed", "2")]), &mut MeasuredPhase::without_observer())
                .unwrap()
                .checksum,
            done.checksum
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(matches!(
            run_desktop(&small_options(&[("size", "2")]), &mut MeasuredPhase::without_observer()),
            Err(WorkloadError::InvalidOptions(_))
        ));
        assert!(matches!(
            run_desktop(
                &small_options(&[("folder", "/no/such/folder")]),
                &mut MeasuredPhase::without_observer()
            ),
            Err(WorkloadError::SystemError(_))
        ));
        assert!(matches!(
            run_desktop(&small_options(&[("program", "/no/such")]), &mut MeasuredPhase::without_observer()),
            Err(WorkloadError::NotAvailable(_))
        ));
    }
}
