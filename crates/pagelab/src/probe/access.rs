//! Time of dependent random reads with base pages and with huge pages, by size of the buffer.

use std::ops::Range;

use pagelab_model::probe::{AccessPair, AccessPoint, AccessProbe};
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};
use pagelab_sys::affinity::Pinned;
use pagelab_sys::clock;
use pagelab_sys::map::{Advice, Mapping};
use pagelab_tlb::knee::{Pair, knee};
use pagelab_workloads::chase::{Chase, WORDS_BETWEEN_SLOTS, lay_out};

use super::{Run, stream};

/// The smaller size of comparison.
const SMALL: u64 = 64 << 20;

/// The larger size is not measured below this: it would tell nothing that the smaller does not.
const LARGE_MIN: u64 = 256 << 20;

/// The curve runs over this many base pages, from first to last; at 4 KiB from 256 KiB to 64 MiB. TLBs of the
/// second level have had 512 to 4 096 entries since 2008.
const CURVE_PAGES: Range<u64> = 64..16_384;

/// How one size is read.
#[derive(Clone, Copy)]
struct Reads {
    /// Timed reads of one repeat.
    steps: u64,
    /// Repeats for each that the options ask for.
    times: u32,
    /// The name of its samples.
    stream: &'static str,
}

/// The buffers take turns quickly, so that whatever disturbs the machine falls on both alike; what counts is
/// the difference of each turn. They share the caches meanwhile.
const CURVE_READS: Reads = Reads { steps: 1 << 11, times: 8, stream: "access time by size" };
const PAIR_READS: Reads = Reads { steps: 1 << 14, times: 4, stream: "access time" };

/// Untimed reads before the first turn: a lap of what the inner caches hold.
const WARM_STEPS: u64 = 1 << 15;

/// When the time is over, a measurement still ends with this many repeats.
const ENOUGH_REPEATS: u32 = 3;

/// How many times longer a link takes in a large buffer than in the smaller one, because it leaves the caches
/// and the TLB; on the machines seen so far 2 to 3.
const LINK_SLOWER: u64 = 3;

/// Linking leaves more of the buffer linked last in the caches. Reading both in turns of this many words,
/// over this many words in all, evens that out.
const EVEN_TURN: usize = (256 << 10) / size_of::<u64>();
const EVEN_MAX: usize = (128 << 20) / size_of::<u64>();

/// Memory is touched in slices of this size, with a look at the clock between them.
const SLICE: u64 = 64 << 20;

/// Two buffers of one size, alike but for the page size.
pub(super) struct Buffers {
    pub base: Mapping,
    pub huge: Reading<Mapping>,
    /// Bytes from the start that have memory.
    pub filled: u64,
}

/// What was measured at one size.
struct Measured {
    base: AccessPoint,
    huge: Reading<AccessPoint>,
    /// Wall time of linking both buffers.
    link_ns: u64,
}

/// The curve and the two pairs, as far as memory and time allow.
pub(super) fn measure(run: &mut Run<'_>, budget: Bytes) -> Reading<AccessProbe> {
    let pinned = Pinned::here();
    if let Err(error) = &pinned {
        run.notes.push(format!("the reading thread could not be kept on one CPU: {error}"));
    }
    let mut probe = AccessProbe {
        seed: run.options.seed,
        pinned_cpu: pinned.as_ref().ok().map(Pinned::cpu),
        base_curve: Vec::new(),
        huge_curve: Vec::new(),
        pairs: Vec::new(),
        knee: Err(Absence::new(
            "reach of the largest TLB",
            AbsentWhy::NotAsked,
            "there was no time for the curve",
        )),
    };
    let region_max = run.options.region_max.0.min(budget.0 / 2);
    let page = run.page_size.bytes();
    let small = whole(SMALL.max(CURVE_PAGES.end * page).min(region_max), run);
    let mut buffers = Buffers::new(run, small, run.deadline_ns)?;
    curve(run, &mut buffers, &mut probe);
    let pair_size = SMALL.min(small);
    let measured = buffers.measure(run, pair_size, PAIR_READS)?;
    let link_ns_per_mib = measured.link_ns / (pair_size >> 20).max(1);
    probe.pairs.push(AccessPair { base: measured.base, huge: measured.huge });
    drop(buffers);

    let most = whole(region_max, run);
    if most < LARGE_MIN || most <= small {
        run.notes
            .push("a larger buffer was not measured: it would be more than the memory to take".to_owned());
    } else if let Err(absence) = large(run, &mut probe, most, link_ns_per_mib) {
        run.notes.push(format!("a larger buffer was not measured: {}", absence.reason()));
    }
    Ok(probe)
}

/// Measures the larger pair: as large as memory allows and as can be filled and linked in the time left.
fn large(run: &mut Run<'_>, probe: &mut AccessProbe, most: u64, link_ns_per_mib: u64) -> Reading<()> {
    let fill_until_ns = clock::monotonic_ns() + run.left_ns() / 5 * 2;
    let mut buffers = Buffers::new(run, most, fill_until_ns)?;
    let linked_mib = run.left_ns() / 2 / link_ns_per_mib.saturating_mul(LINK_SLOWER).max(1);
    let size = whole(buffers.filled.min(linked_mib.saturating_mul(1 << 20)), run);
    if size < LARGE_MIN {
        return Err(Absence::new("access times", AbsentWhy::NotAsked, "there was no time for it"));
    }
    let measured = buffers.measure(run, size, PAIR_READS)?;
    probe.pairs.push(AccessPair { base: measured.base, huge: measured.huge });
    if size < most {
        run.notes.push(format!("the larger buffer is {} MiB, for lack of time", size >> 20));
    }
    Ok(())
}

/// `size` as a whole number of huge pages where there are any, else of base pages; at least one.
pub(super) fn whole(size: u64, run: &Run<'_>) -> u64 {
    let unit = run.huge_size.as_ref().map_or(run.page_size.bytes(), |huge| huge.0).max(1);
    (size / unit).max(1) * unit
}

/// Measures the curve and its knee. Stops early when more than half of the time is gone.
fn curve(run: &mut Run<'_>, buffers: &mut Buffers, probe: &mut AccessProbe) {
    let page = run.page_size.bytes();
    let end = (CURVE_PAGES.end * page).min(buffers.base.len().0);
    let mut pairs = Vec::new();
    for size in half_octaves(CURVE_PAGES.start * page, end, page) {
        if run.left_ns() < run.options.time_ns / 2 {
            run.notes.push(format!("the curve ends below {} KiB, for lack of time", size >> 10));
            break;
        }
        let Ok(measured) = buffers.measure(run, size, CURVE_READS) else { break };
        if let Ok(huge) = measured.huge {
            let (base_ps, huge_ps) = (measured.base.ps_per_access.clone(), huge.ps_per_access.clone());
            pairs.push(Pair { size: Bytes(size), base_ps, huge_ps });
            probe.huge_curve.push(huge);
        }
        probe.base_curve.push(measured.base);
    }
    probe.knee = match &buffers.huge {
        Ok(_) => knee(&pairs),
        Err(absence) => {
            let detail =
                format!("without huge pages caches and TLB cannot be told apart: {}", absence.reason());
            Err(Absence { detail, ..absence.clone() })
        }
    };
}

/// `first`, about `first` × √2, 2 × `first` … up to `last`, as whole pages.
fn half_octaves(first: u64, last: u64, page: u64) -> Vec<u64> {
    let (mut sizes, mut octave) = (Vec::new(), Some(first.max(1)));
    while let Some(size) = octave.filter(|&size| size <= last) {
        // 181 / 128 is √2 to four digits.
        sizes.extend([size, (size / 128).saturating_mul(181)]);
        octave = size.checked_mul(2);
    }
    sizes.into_iter().filter(|&size| size <= last).map(|size| size / page * page).collect()
}

impl Buffers {
    /// Maps both and fills them side by side, until the time given. The base buffer must be had; why the
    /// other could not is kept.
    pub fn new(run: &mut Run<'_>, size: u64, until_ns: u64) -> Reading<Buffers> {
        let base = mapped(run, size, Advice::NoHugePage)?;
        let huge = match run.huge_size.clone() {
            Ok(_) => mapped(run, size, Advice::HugePage),
            Err(absence) => Err(absence),
        };
        let mut buffers = Buffers { base, huge, filled: 0 };
        while buffers.filled < size && clock::monotonic_ns() < until_ns {
            buffers.fill((buffers.filled + SLICE).min(size))?;
        }
        let filled = buffers.filled;
        if filled == 0 {
            return Err(Absence::new("memory of the probe", AbsentWhy::NotAsked, "the time was over"));
        }
        if let Ok(huge) = &mut buffers.huge {
            let start = huge.addresses().start;
            // Faults give huge pages in the modes always and madvise; what they did not give, COLLAPSE may.
            if run.readback.huge_bytes(start..start + filled).is_ok_and(|backed| backed.0 < filled) {
                collapse(run, huge, filled);
            }
        }
        Ok(buffers)
    }

    /// Touches both up to `end`.
    fn fill(&mut self, end: u64) -> Reading<()> {
        let slice = self.filled..end;
        self.base.touch(slice.clone()).map_err(|error| failed("cannot touch the memory", &error))?;
        if let Ok(huge) = &mut self.huge
            && let Err(error) = huge.touch(slice)
        {
            self.huge = Err(failed("cannot touch the memory", &error));
        }
        self.filled = end;
        Ok(())
    }

    /// Brings the caches to hold as much of the one as of the other.
    fn even_out(&self, words: usize) {
        let Ok(huge) = &self.huge else { return };
        let read = |map: &Mapping, from: usize| {
            let turn = map.words().iter().take(words).skip(from).take(EVEN_TURN);
            std::hint::black_box(turn.step_by(WORDS_BETWEEN_SLOTS).fold(0u64, |sum, word| sum ^ word));
        };
        for from in (0..words.min(EVEN_MAX)).step_by(EVEN_TURN) {
            read(&self.base, from);
            read(huge, from);
        }
    }

    /// Links both buffers' first `size` bytes in the same random order, and reads them in turn: base, huge,
    /// huge, base, and so on, so that a drift of the machine falls on both.
    fn measure(&mut self, run: &Run<'_>, size: u64, reads: Reads) -> Reading<Measured> {
        let words = size as usize / size_of::<u64>();
        let started_ns = clock::monotonic_ns();
        link(&mut self.base, words, run)?;
        if let Ok(huge) = &mut self.huge {
            link(huge, words, run)?;
        }
        let link_ns = clock::monotonic_ns().saturating_sub(started_ns);
        self.even_out(words);
        let mut base = warm(&self.base, words);
        let mut huge = self.huge.as_ref().map(|map| warm(map, words));
        let (mut base_ps, mut huge_ps) = (Timed::default(), Timed::default());
        for repeat in 0..run.options.repeats.max(1).saturating_mul(reads.times) {
            if repeat >= ENOUGH_REPEATS && run.left_ns() == 0 {
                break;
            }
            let base_first = repeat % 2 == 0;
            if base_first {
                base_ps.push(base.measure(reads.steps));
            }
            if let Ok(huge) = &mut huge {
                huge_ps.push(huge.measure(reads.steps));
            }
            if !base_first {
                base_ps.push(base.measure(reads.steps));
            }
        }
        let point = |map: &Mapping, pages: &str, timed: Timed| {
            let start = map.addresses().start;
            let huge_backed = run.readback.huge_bytes(start..start + size);
            let labels = [("pages", pages), ("bytes", &size.to_string())];
            run.samples.take(&stream(reads.stream, &labels), &timed.samples);
            AccessPoint { size: Bytes(size), ps_per_access: timed.ps_per_access, huge_backed }
        };
        let base = point(&self.base, "base", base_ps);
        let huge = match &self.huge {
            Ok(map) => Ok(point(map, "huge", huge_ps)),
            Err(absence) => Err(absence.clone()),
        };
        Ok(Measured { base, huge, link_ns })
    }
}

/// The repeats of one measurement.
#[derive(Default)]
struct Timed {
    ps_per_access: Vec<u64>,
    /// The same in nanoseconds, each with the time since boot at its end.
    samples: Vec<(u64, f64)>,
}

impl Timed {
    fn push(&mut self, ps_per_access: u64) {
        self.ps_per_access.push(ps_per_access);
        self.samples.push((clock::boottime_ns(), ps_per_access as f64 / 1e3));
    }
}

/// Links the first `words` of a buffer into one cycle.
fn link(map: &mut Mapping, words: usize, run: &Run<'_>) -> Reading<()> {
    let len = map.words().len().min(words);
    if lay_out(&mut map.words_mut()[..len], run.options.seed, || run.left_ns() > 0) {
        return Ok(());
    }
    Err(Absence::new("access times", AbsentWhy::NotAsked, "the time was over"))
}

/// The chase over the first `words`, walked for a while.
fn warm(map: &Mapping, words: usize) -> Chase<'_> {
    let mut chase = Chase::new(&map.words()[..map.words().len().min(words)]);
    chase.walk(WARM_STEPS.min(chase.slots()));
    chase
}

/// Memory that is advised before its first touch.
fn mapped(run: &Run<'_>, size: u64, advice: Advice) -> Reading<Mapping> {
    let align = run.huge_size.as_ref().map_or(Bytes(run.page_size.bytes()), |&huge| huge);
    let mut map = Mapping::anonymous(Bytes(size), align).map_err(|e| failed("cannot map memory", &e))?;
    let advised = map.advise(0..size, advice);
    // A kernel without THP does not know the advice, and has base pages only.
    if run.huge_size.is_ok() {
        advised.map_err(|e| failed("madvise", &e))?;
    }
    Ok(map)
}

fn failed(what: &str, error: &std::io::Error) -> Absence {
    Absence::new("memory of the probe", AbsentWhy::Failed, format!("{what}: {error}"))
}

/// Collapses a buffer huge page by huge page until the time is short. Refusals are seen when it is read back.
fn collapse(run: &Run<'_>, map: &mut Mapping, size: u64) {
    let Ok(huge) = run.huge_size.clone() else { return };
    for start in (0..size).step_by(huge.0 as usize) {
        if run.left_ns() < run.options.time_ns / 4 {
            return;
        }
        let _ = map.advise(start..(start + huge.0).min(size), Advice::Collapse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_has_two_sizes_an_octave_and_whole_pages() {
        let kib: Vec<u64> = half_octaves(256 << 10, 64 << 20, 4096).iter().map(|size| size >> 10).collect();
        assert_eq!(kib[..5], [256, 360, 512, 724, 1024]);
        assert_eq!((kib.len(), kib.last()), (17, Some(&(64 << 10))));
        assert!(half_octaves(1 << 20, 1 << 19, 4096).is_empty());
        assert_eq!(
            half_octaves(1 << 63, u64::MAX, 1),
            [1 << 63, (1u64 << 56) * 181],
            "no octave wraps around"
        );
    }
}
