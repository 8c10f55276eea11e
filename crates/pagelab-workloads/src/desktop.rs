//! A light load of many small processes, as on a desktop: programs that start and end, processes that wait
//! and are woken, small files that are written, read, renamed and deleted, and pauses in between.
//!
//! What is judged is how long a single operation takes, not how many there are: the merit is the mean, the
//! latencies say the rest. Pauses are not counted.
//!
//! The waiting processes are forks of this one that hold memory of their own and touch one word in each of
//! its pages when they are woken. A memory that is short shows here first: what a process that waited has
//! lost to swap or to the page cache it must get back.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;
use pagelab_sys::resident::Resident;

use crate::folder::{FOLDER, OwnFolder};
use crate::histogram::Latencies;
use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::program::{PROGRAM, SmallProgram};
use crate::{Done, Failed, Figure, Merit, Workload};

/// The load as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "desktop",
    about: "Many small processes under light load: starts, wakes, small files, pauses; time of each \
            operation",
    generator: "operations drawn from the seed: 30 % wake a waiting process, 15 % start a program, 20 % \
                write a \
                file of 1 to 64 KiB, 25 % read one, 5 % rename one, 5 % delete one, and a pause of half to \
                one \
                and a half times the mean after each; processes touch their memory first when first woken",
    options: &[
        size("64M", "Bytes of all waiting processes together"),
        SEED,
        PROCESSES,
        OPERATIONS,
        PAUSE,
        FOLDER,
        PROGRAM,
    ],
    forks: true,
    run,
};

const PROCESSES: OptionHead = OptionHead {
    name: "processes",
    kind: Kind::Number(1, 10_000),
    default: "16",
    help: "Processes that wait",
};
const OPERATIONS: OptionHead = OptionHead {
    name: "operations",
    kind: Kind::Number(1, 1 << 40),
    default: "1000",
    help: "How many operations",
};
const PAUSE: OptionHead = OptionHead {
    name: "pause",
    kind: Kind::Number(0, 60_000_000),
    default: "1000",
    help: "Mean pause after an operation, in microseconds",
};

/// Kinds of operations, their names, and how many of a hundred are of each.
const KINDS: [(Operation, &str, u64); 6] = [
    (Operation::Wake, "wake", 30),
    (Operation::Start, "start", 15),
    (Operation::Write, "write", 20),
    (Operation::Read, "read", 25),
    (Operation::Rename, "rename", 5),
    (Operation::Delete, "delete", 5),
];
/// Bytes of a file: from this to so many times it.
const FILE_STEP: u64 = 1 << 10;
const FILE_STEPS: u64 = 64;
/// Files that are there at the most: then writing replaces one.
const FILES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Wake,
    Start,
    Write,
    Read,
    Rename,
    Delete,
}

/// A file: its name now, and the seed of what is in it.
#[derive(Clone, Copy, Debug)]
struct Kept {
    name: u64,
    seed: u64,
}

/// The load, between two operations.
struct Desktop {
    processes: Vec<Resident>,
    folder: OwnFolder,
    program: SmallProgram,
    files: Vec<Kept>,
    /// Names given so far.
    names: u64,
    checksum: u64,
}

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let processes = options.number("processes");
    let each = Bytes(options.size("size").0 / processes);
    if each.0 == 0 {
        return Err(Failed::Options(format!("size: less than a byte for each of {processes} processes")));
    }
    let start = |_| Resident::start(each).map_err(|error| Failed::system("cannot start a process", error));
    let mut desktop = Desktop {
        processes: (0..processes).map(start).collect::<Result<_, _>>()?,
        folder: OwnFolder::new(options, "desktop")?,
        program: SmallProgram::of(options)?,
        files: Vec::new(),
        names: 0,
        checksum: 0,
    };
    let mut random = SplitMix64::new(options.number("seed"));
    let mut of_kind: [Latencies; KINDS.len()] = Default::default();
    let mut total_ns = 0u64;
    let operations = options.number("operations");
    phase.begin();
    for _ in 0..operations {
        let (kind, operation) = draw(&mut random, desktop.files.is_empty());
        let took_ns = desktop.act(operation, &mut random)?;
        of_kind[kind].add(took_ns);
        total_ns += took_ns;
        let pause = options.number("pause");
        let pause = pause / 2 + random.below(pause + 1);
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
    }
    phase.end();
    for file in &desktop.files {
        desktop.read(*file)?;
    }
    Ok(done(options, &desktop, &of_kind, total_ns))
}

fn done(options: &Options, desktop: &Desktop, of_kind: &[Latencies], total_ns: u64) -> Done {
    let mut latencies = Latencies::default();
    of_kind.iter().for_each(|kind| latencies.merge(kind));
    let mut figures = Vec::new();
    const MEDIANS: [&str; KINDS.len()] =
        ["wake_p50", "start_p50", "write_p50", "read_p50", "rename_p50", "delete_p50"];
    const TAILS: [&str; KINDS.len()] =
        ["wake_p99", "start_p99", "write_p99", "read_p99", "rename_p99", "delete_p99"];
    for ((kind, median), tail) in of_kind.iter().zip(MEDIANS).zip(TAILS) {
        for (name, of_100_000) in [(median, 50_000), (tail, 99_000)] {
            if let Some(ns) = kind.percentile_ns(of_100_000) {
                figures.push(Figure::new(name, "ns", Better::Lower, ns as f64));
            }
        }
    }
    Done {
        merit: Merit {
            name: "operation time",
            unit: "ns",
            better: Better::Lower,
            value: total_ns as f64 / latencies.count().max(1) as f64,
        },
        working_set: options.size("size"),
        checksum: desktop.checksum,
        latencies: Some(latencies),
        hot_regions: Vec::new(),
        figures,
        generated: format!(
            "{} processes, {} operations, mean pause {} us, program {}, seed {}",
            options.number("processes"),
            options.number("operations"),
            options.number("pause"),
            desktop.program.name(),
            options.number("seed")
        ),
    }
}

/// The next operation and its kind. Without a file there is none to read, rename or delete: one is written.
fn draw(random: &mut SplitMix64, is_empty: bool) -> (usize, Operation) {
    let mut left = random.below(100);
    let mut kind = KINDS.len() - 1;
    for (place, (_, _, share)) in KINDS.iter().enumerate() {
        if left < *share {
            kind = place;
            break;
        }
        left -= share;
    }
    if is_empty && matches!(KINDS[kind].0, Operation::Read | Operation::Rename | Operation::Delete) {
        kind = KINDS.iter().position(|(operation, ..)| *operation == Operation::Write).unwrap_or(kind);
    }
    (kind, KINDS[kind].0)
}

impl Desktop {
    /// Does one operation. The nanoseconds that it took, without making or comparing contents.
    fn act(&mut self, operation: Operation, random: &mut SplitMix64) -> Result<u64, Failed> {
        let drawn = random.draw();
        let place = random.below(self.files.len() as u64) as usize;
        let name = KINDS.iter().find(|(known, ..)| *known == operation).map_or("", |(_, name, _)| *name);
        let failed = |error: io::Error| Failed::system(format_args!("cannot {name}"), error);
        self.note(drawn);
        match operation {
            Operation::Wake => {
                let process = random.below(self.processes.len() as u64) as usize;
                timed(|| self.processes[process].wake()).map_err(failed)
            }
            Operation::Start => timed(|| self.program.run()).map_err(failed),
            Operation::Write => self.write(drawn, place).map_err(failed),
            Operation::Read => self.read(self.files[place]),
            Operation::Rename => {
                let (old, new) = (self.files[place].name, self.names);
                self.names += 1;
                self.files[place].name = new;
                timed(|| fs::rename(self.path(old), self.path(new))).map_err(failed)
            }
            Operation::Delete => {
                let gone = self.files.swap_remove(place);
                timed(|| fs::remove_file(self.path(gone.name))).map_err(failed)
            }
        }
    }

    /// Writes a new file; where there are many already, the one at `place` goes for it.
    fn write(&mut self, seed: u64, place: usize) -> io::Result<u64> {
        let kept = Kept { name: self.names, seed };
        self.names += 1;
        let bytes = content(seed);
        let took_ns = timed(|| fs::write(self.path(kept.name), &bytes))?;
        if self.files.len() < FILES_MAX {
            self.files.push(kept);
        } else {
            let old = std::mem::replace(&mut self.files[place], kept);
            fs::remove_file(self.path(old.name))?;
        }
        Ok(took_ns)
    }

    /// Reads a file, which must have what was written. The nanoseconds of reading.
    fn read(&self, kept: Kept) -> Result<u64, Failed> {
        let path = self.path(kept.name);
        let mut found = Vec::new();
        let read = || {
            found = fs::read(&path)?;
            Ok(())
        };
        let took_ns = timed(read).map_err(|error| Failed::system("cannot read", error))?;
        match found == content(kept.seed) {
            true => Ok(took_ns),
            false => Err(Failed::Wrong(format!("{} has not what was written", path.display()))),
        }
    }

    fn path(&self, name: u64) -> PathBuf {
        self.folder.path().join(format!("file-{name}"))
    }

    fn note(&mut self, word: u64) {
        self.checksum = (self.checksum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }
}

/// The nanoseconds that something took.
fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<u64> {
    let before = clock::monotonic_ns();
    work()?;
    Ok(clock::monotonic_ns().saturating_sub(before))
}

/// What is in a file of this seed.
fn content(seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let len = FILE_STEP * (1 + random.below(FILE_STEPS));
    (0..len / size_of::<u64>() as u64).flat_map(|_| random.draw().to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(changes: &[(&str, &str)]) -> Options {
        let mut options = Options::defaults(WORKLOAD.options);
        let few = [("size", "1M"), ("processes", "3"), ("operations", "60"), ("pause", "0")];
        for (name, typed) in few.iter().chain(changes) {
            options.set(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn shares_are_a_hundred_and_come_as_said() {
        assert_eq!(KINDS.iter().map(|(_, _, share)| share).sum::<u64>(), 100);
        let mut random = SplitMix64::new(2);
        let mut counts = [0u64; KINDS.len()];
        for _ in 0..10_000 {
            counts[draw(&mut random, false).0] += 1;
        }
        for ((_, name, share), count) in KINDS.iter().zip(counts) {
            assert!(count.abs_diff(share * 100) < 150, "{name}: {count}");
        }
        for _ in 0..1000 {
            let (_, operation) = draw(&mut random, true);
            assert!(matches!(operation, Operation::Wake | Operation::Start | Operation::Write));
        }
    }

    #[test]
    fn every_operation_is_timed_and_nothing_is_left() {
        let outer = OwnFolder::temporary("desktop-test").unwrap();
        let options = small(&[("folder", outer.path().to_str().unwrap())]);
        let done = run(&options, &mut Phase::unwatched()).unwrap();
        assert_eq!(done.latencies.as_ref().unwrap().count(), 60);
        for name in ["wake_p50", "start_p99", "write_p50", "read_p50"] {
            assert!(done.figures.iter().any(|figure| figure.name == name && figure.value > 0.0), "{name}");
        }
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0);
        assert_eq!(run(&options, &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        assert_ne!(run(&small(&[("seed", "2")]), &mut Phase::unwatched()).unwrap().checksum, done.checksum);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(matches!(run(&small(&[("size", "2")]), &mut Phase::unwatched()), Err(Failed::Options(_))));
        assert!(matches!(
            run(&small(&[("folder", "/no/such/folder")]), &mut Phase::unwatched()),
            Err(Failed::System(_))
        ));
        assert!(matches!(
            run(&small(&[("program", "/no/such")]), &mut Phase::unwatched()),
            Err(Failed::Missing(_))
        ));
    }
}
