//! Benchmark of the fast snapshot: its CPU time, compared with reading and discarding the same files.
//!
//! Prints one JSON line for each bar on stdout. Both sides read the same kept-open files with the same calls
//! into buffers of the same size, in one thread, in blocks of the order ABBA; the time is the thread's CPU
//! time.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use pagelab_host::fast_snapshot::{FastSnapshot, FileSelection, PRESSURE_RESOURCES};
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::order_statistics::median;
use rustix::time::{ClockId, clock_gettime};

/// Blocks of the order ABBA; each gives one ratio. Odd, so that the median is one of them.
const ABBA_BLOCKS: usize = 41;
/// Samples in each of the four parts of a block.
const SAMPLES: usize = 250;

fn main() {
    let root = Root::live();
    let files = || -> Result<DiscardReader, pagelab_model::Absence> { DiscardReader::open(&root) };
    let mut fast = FastSnapshot::open(&root, FileSelection::ALL);
    let mut discard = match files() {
        Ok(files) => files,
        Err(absence) => {
            let why = format!("{}: {}", absence.source, absence.reason()).replace(['"', '\\'], "'");
            let _ = writeln!(
                io::stdout(),
                r#"{{"bar":"fast_snapshot_cpu_ratio","value":null,"unit":"ratio","why":"{why}"}}"#
            );
            return;
        }
    };
    let mut ratios = Vec::new();
    for block in 0..=ABBA_BLOCKS {
        let (mut ours, mut theirs) = (0, 0);
        for is_ours in [true, false, false, true] {
            let start = thread_cpu_ns();
            for _ in 0..SAMPLES {
                if is_ours {
                    black_box(&mut fast).sample();
                } else {
                    black_box(&mut discard).read().unwrap_or_else(|error| panic!("{error}"));
                }
            }
            let spent = thread_cpu_ns() - start;
            *(if is_ours { &mut ours } else { &mut theirs }) += spent;
        }
        // The first block warms up caches and branch predictors.
        if block > 0 {
            ratios.push(ours as f64 / theirs as f64);
        }
    }
    let samples: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.4}")).collect();
    let _ = writeln!(
        io::stdout(),
        r#"{{"bar":"fast_snapshot_cpu_ratio","value":{:.4},"unit":"ratio","samples":[{}],"how":"{}"}}"#,
        median(&mut ratios.clone()).unwrap_or(f64::NAN),
        samples.join(","),
        format_args!(
            "thread CPU time of FastSnapshot::sample over the same preads of the same kept-open files \
             discarded; median of {ABBA_BLOCKS} blocks ABBA of 4 x {SAMPLES} samples"
        )
    );
}

/// The files that [`FastSnapshot`] reads, with as many reads as it makes.
struct DiscardReader {
    files: Vec<(File, usize)>,
    buffer: Vec<u8>,
}

impl DiscardReader {
    fn open(root: &Root) -> Result<DiscardReader, pagelab_model::Absence> {
        let mut discard = DiscardReader { files: Vec::new(), buffer: vec![0; 16 << 10] };
        let memory = [(paths::BUDDYINFO, true), (paths::MEMINFO, false), (paths::VMSTAT, false)];
        for (path, reads_the_end) in
            memory.into_iter().chain(PRESSURE_RESOURCES.map(|(_, path)| (path, false)))
        {
            let file = match root.open_regular_file(path) {
                Err(_) if PRESSURE_RESOURCES.iter().any(|(_, pressure)| *pressure == path) => continue,
                file => file?,
            };
            let reads = discard.count_reads(&file).map_err(|error| root.absence(path, &error))?;
            discard.files.push((file, reads + usize::from(reads_the_end)));
        }
        Ok(discard)
    }

    /// Reads until the file's end, without the one that finds the end.
    fn count_reads(&mut self, file: &File) -> io::Result<usize> {
        let (mut reads, mut offset) = (0, 0);
        loop {
            match file.read_at(&mut self.buffer[offset..], offset as u64)? {
                0 => return Ok(reads),
                count => (reads, offset) = (reads + 1, offset + count),
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        for (file, reads) in &self.files {
            let mut offset = 0;
            for _ in 0..*reads {
                offset += file.read_at(&mut self.buffer[offset..], offset as u64)?;
            }
        }
        black_box(&self.buffer);
        Ok(())
    }
}

fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
