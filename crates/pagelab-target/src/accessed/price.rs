//! What a program pays when an accessed bit is set again, on this machine: measured by clearing the bits of a
//! child of ours that reads its memory.
//!
//! Between processors, and between one that runs alone and one in a virtual machine, it differs by more than
//! a factor of ten. It is dearest for pages in random order, whose page-table lines lie in another cache.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use pagelab_model::profile::AccessedPrice;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::affinity::Pinned;
use pagelab_sys::map::{Advice, Mapping};
use pagelab_sys::{clock, spawn};

use super::sweep;
use crate::error::{Error, ErrorKind};

/// Amounts of memory that it is measured with.
const SIZES: [u64; 3] = [16 << 20, 64 << 20, 256 << 20];

/// Pairs of passes over them, with and without bits that were cleared before.
const PAIRS: usize = 7;

/// Above this, in picoseconds, it was another program that took the CPU's caches, or the time.
const PS_MAX: u64 = 100_000_000;

/// Where nothing was measured: above what was found in virtual machines.
const ASSUMED_PS: u64 = 400_000;

/// How the origin of a price begins that was not measured.
pub(super) const ASSUMED: &str = "assumed";

/// What is taken where it cannot be measured.
pub fn assumed(why: &str) -> AccessedPrice {
    AccessedPrice { points: vec![(SIZES[0], ASSUMED_PS)], origin: format!("{ASSUMED}: {why}") }
}

/// The child: for each number of bytes on a line of its input it reads a word of each page of so much memory,
/// in an order of no pattern, and answers with the CPU time in nanoseconds. Ends with its input.
pub fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let page = pagelab_host::machine::live_page_size().map_or(PageSize::USUAL.bytes(), |page| page.bytes());
    let mut memory: Option<Mapping> = None;
    for line in input.lines() {
        let Ok(bytes) = line?.parse::<u64>() else { break };
        let there = memory.as_ref().map_or(0, |memory| memory.len().0);
        if there < bytes {
            let mut new = Mapping::anonymous(Bytes(bytes), Bytes(page))?;
            // A huge page has one bit for all of it.
            let _ = new.advise(0..bytes, Advice::NoHugePage);
            new.touch(0..bytes)?;
            memory = Some(new);
        }
        let Some(memory) = &memory else { break };
        let before = clock::thread_cpu_ns();
        std::hint::black_box(read(memory.words(), bytes / page, page));
        writeln!(output, "{}", clock::thread_cpu_ns().saturating_sub(before))?;
        output.flush()?;
    }
    Ok(())
}

/// Reads a word of each of `pages` pages, a power of two.
fn read(words: &[u64], pages: u64, page: u64) -> u64 {
    let mut sum = 0u64;
    for n in 0..pages {
        let word = (scattered(n, pages) * page + n % 64 * 64) / size_of::<u64>() as u64;
        sum = sum.wrapping_add(words.get(word as usize).copied().unwrap_or(0));
    }
    sum
}

/// Each number below a power of two once, without a pattern that a processor could foresee: odd factors and
/// shifts to the right can be undone.
fn scattered(n: u64, below: u64) -> u64 {
    let mask = below.saturating_sub(1);
    let half = below.trailing_zeros() / 2;
    let mut x = n;
    for factor in [0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35] {
        x = x.wrapping_mul(factor) & mask;
        x ^= x >> half.max(1);
    }
    x & mask
}

struct Reader {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Reader {
    fn start(mut command: Command) -> io::Result<Reader> {
        // Its bits shall be cleared from another CPU than its own, as those of a program mostly are.
        let other = Pinned::allowed().last().and_then(|&cpu| Pinned::on(cpu).ok());
        spawn::without_huge_pages(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        drop(other);
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok(Reader { child, to, from: BufReader::new(from) }),
            _ => Err(io::Error::other("no pipe")),
        }
    }

    /// CPU time of one pass.
    fn pass(&mut self, bytes: u64) -> io::Result<u64> {
        writeln!(self.to, "{bytes}")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        line.trim_end().parse().map_err(|_| io::Error::other("the child that reads memory ended"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures with a child that calls [`serve`] and takes up to `room` bytes; `origin` says when and on what.
pub fn measure(
    command: Command,
    page: PageSize,
    room: Bytes,
    origin: String,
) -> Result<AccessedPrice, Error> {
    let failed = |error: io::Error| {
        let message = format!("the price of an accessed bit cannot be measured: {error}");
        Error::new(ErrorKind::NotAvailable, message)
    };
    let mut reader = Reader::start(command).map_err(failed)?;
    let _here = Pinned::allowed().first().and_then(|&cpu| Pinned::on(cpu).ok());
    let mut clearer = sweep::clearer(reader.child.id()).map_err(failed)?;
    let mut points: Vec<(u64, u64)> = Vec::new();
    for bytes in SIZES.into_iter().filter(|bytes| *bytes <= room.0) {
        reader.pass(bytes).map_err(failed)?;
        let mut prices = Vec::new();
        for _ in 0..PAIRS {
            let usual = reader.pass(bytes).map_err(failed)?;
            sweep::clear(&mut clearer).map_err(failed)?;
            let dear = reader.pass(bytes).map_err(failed)?;
            prices.push(dear.saturating_sub(usual) * 1000 / (bytes / page.bytes()).max(1));
        }
        prices.sort_unstable();
        // Cheaper for more memory is noise.
        let least = points.last().map_or(1, |point| point.1);
        points.push((bytes, prices[PAIRS / 2].clamp(least, PS_MAX)));
    }
    if points.is_empty() {
        return Err(failed(io::Error::other("memory is short")));
    }
    Ok(AccessedPrice { points, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_read_once() {
        for pages in [1u64, 2, 8, 512, 1 << 12, 1 << 13] {
            let mut met: Vec<u64> = (0..pages).map(|n| scattered(n, pages)).collect();
            let in_order = met.windows(2).filter(|two| two[1] == two[0] + 1).count();
            assert!(pages < 512 || in_order * 50 < met.len(), "{in_order} of {pages}");
            met.sort_unstable();
            assert_eq!(met, (0..pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_child_answers_once_for_each_line_and_ends_with_its_input() {
        let mut answers = Vec::new();
        serve(&b"1048576\n2097152\n1048576\nend\n4096\n"[..], &mut answers).unwrap();
        let answers = String::from_utf8(answers).unwrap();
        let times: Vec<u64> = answers.lines().map(|line| line.parse().unwrap()).collect();
        assert!(times.len() == 3 && times.iter().all(|&time| time > 0), "{times:?}");
    }
}
