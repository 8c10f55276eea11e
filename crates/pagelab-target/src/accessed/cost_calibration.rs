//! Cost of setting an accessed bit again on this machine, measured by clearing the bits of a child that reads
//! its memory.
//!
//! Between processors, and between one that runs alone and one in a virtual machine, it differs by more than
//! a factor of ten. It is highest for pages in random order, whose page-table lines lie in another cache.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pagelab_model::Failure;
use pagelab_model::order_statistics::median;
use pagelab_model::profile::AccessedBitCost;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::scheduling::PinnedThread;
use pagelab_sys::{clock, spawn};

use super::sweep;

/// Amounts of memory that it is measured with.
const MEMORY_SIZES: [u64; 3] = [16 << 20, 64 << 20, 256 << 20];

/// Pairs of passes over them, with and without bits that were cleared before.
const PASS_PAIRS: usize = 7;

/// Above this, in picoseconds, it was another program that took the CPU's caches, or the time.
const COST_MAX_PS: u64 = 100_000_000;

/// Default cost: above the values measured in virtual machines.
const ASSUMED_COST_PS: u64 = 400_000;

/// The prefix of the origin of a cost that was not measured.
pub(super) const ASSUMED_PREFIX: &str = "assumed";

/// Cost to use if it cannot be measured.
pub fn assume_cost(reason: &str) -> AccessedBitCost {
    AccessedBitCost {
        points: vec![(MEMORY_SIZES[0], ASSUMED_COST_PS)],
        origin: format!("{ASSUMED_PREFIX}: {reason}"),
    }
}

/// The child: for each number of bytes on a line of its input it reads a word of each page of this much
/// memory, in an order of no pattern, and answers with the CPU time in nanoseconds. Ends with its input.
pub fn serve_reads(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let page = pagelab_host::machine::live_page_size().map_or(PageSize::DEFAULT.bytes(), |page| page.bytes());
    let mut memory: Option<Mapping> = None;
    for line in input.lines() {
        let Ok(bytes) = line?.parse::<u64>() else { break };
        let mapped_bytes = memory.as_ref().map_or(0, |memory| memory.len().0);
        if mapped_bytes < bytes {
            let mut new = Mapping::anonymous(Bytes(bytes), Bytes(page))?;
            // A huge page has one bit for all of it.
            let _ = new.advise(0..bytes, Advice::NoHugePage);
            new.touch_for_writing(0..bytes)?;
            memory = Some(new);
        }
        let Some(memory) = &memory else { break };
        let before = clock::thread_cpu_ns();
        std::hint::black_box(read_pages(memory.words(), bytes / page, page));
        writeln!(output, "{}", clock::thread_cpu_ns().saturating_sub(before))?;
        output.flush()?;
    }
    Ok(())
}

/// Reads a word of each of `pages` pages, a power of two.
fn read_pages(words: &[u64], pages: u64, page: u64) -> u64 {
    let mut sum = 0u64;
    for n in 0..pages {
        let word = (permute(n, pages) * page + n % 64 * 64) / size_of::<u64>() as u64;
        sum = sum.wrapping_add(words.get(word as usize).copied().unwrap_or(0));
    }
    sum
}

/// Each number below a power of two once, without a pattern that a processor could foresee: odd factors and
/// shifts to the right can be undone.
fn permute(n: u64, limit: u64) -> u64 {
    let mask = limit.saturating_sub(1);
    let half = limit.trailing_zeros() / 2;
    let mut x = n;
    for factor in [0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35] {
        x = x.wrapping_mul(factor) & mask;
        x ^= x >> half.max(1);
    }
    x & mask
}

struct ReaderChild {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ReaderChild {
    fn start(mut command: Command) -> io::Result<ReaderChild> {
        // Its bits are cleared from another CPU, as for most programs.
        let other_cpu = PinnedThread::allowed_cpus().last().and_then(|&cpu| PinnedThread::to_cpu(cpu).ok());
        spawn::disable_thp(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        drop(other_cpu);
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => {
                Ok(ReaderChild { child, requests, answers: BufReader::new(answers) })
            }
            _ => Err(io::Error::other("no pipe")),
        }
    }

    /// CPU time of one pass.
    fn run_pass(&mut self, bytes: u64) -> io::Result<u64> {
        writeln!(self.requests, "{bytes}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim_end().parse().map_err(|_| io::Error::other("the child process that reads memory exited"))
    }
}

impl Drop for ReaderChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures with a child that calls [`serve_reads`] and takes up to `memory_max` bytes; `origin` says when
/// and on what.
pub fn measure_cost(
    command: Command,
    page: PageSize,
    memory_max: Bytes,
    origin: String,
) -> Result<AccessedBitCost, Failure> {
    let to_error = |error: io::Error| {
        Failure::not_available(format!("cannot measure the cost of an accessed bit: {error}"))
    };
    let mut reader = ReaderChild::start(command).map_err(to_error)?;
    let _pinned = PinnedThread::allowed_cpus().first().and_then(|&cpu| PinnedThread::to_cpu(cpu).ok());
    let mut clear_refs = sweep::open_clear_refs(reader.child.id()).map_err(to_error)?;
    let mut points: Vec<(u64, u64)> = Vec::new();
    for bytes in MEMORY_SIZES.into_iter().filter(|bytes| *bytes <= memory_max.0) {
        reader.run_pass(bytes).map_err(to_error)?;
        let mut costs = Vec::new();
        for _ in 0..PASS_PAIRS {
            let baseline_ns = reader.run_pass(bytes).map_err(to_error)?;
            sweep::clear_accessed_bits(&mut clear_refs).map_err(to_error)?;
            let cleared_ns = reader.run_pass(bytes).map_err(to_error)?;
            costs.push(cleared_ns.saturating_sub(baseline_ns) * 1000 / (bytes / page.bytes()).max(1));
        }
        // Cheaper for more memory is noise.
        let cost_min = points.last().map_or(1, |point| point.1);
        points.push((bytes, median(&mut costs).unwrap_or_default().clamp(cost_min, COST_MAX_PS)));
    }
    if points.is_empty() {
        return Err(to_error(io::Error::other("not enough free memory")));
    }
    Ok(AccessedBitCost { points, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_read_once() {
        for pages in [1u64, 2, 8, 512, 1 << 12, 1 << 13] {
            let mut met: Vec<u64> = (0..pages).map(|n| permute(n, pages)).collect();
            let in_order = met.windows(2).filter(|two| two[1] == two[0] + 1).count();
            assert!(pages < 512 || in_order * 50 < met.len(), "{in_order} of {pages}");
            met.sort_unstable();
            assert_eq!(met, (0..pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_child_answers_once_for_each_line_and_ends_with_its_input() {
        let mut answers = Vec::new();
        serve_reads(&b"1048576\n2097152\n1048576\nend\n4096\n"[..], &mut answers).unwrap();
        let answers = String::from_utf8(answers).unwrap();
        let times: Vec<u64> = answers.lines().map(|line| line.parse().unwrap()).collect();
        assert!(times.len() == 3 && times.iter().all(|&time| time > 0), "{times:?}");
    }
}
