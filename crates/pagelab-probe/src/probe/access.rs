//! Latency of dependent random reads with base pages and with huge pages, by buffer size.

use std::ops::Range;

use pagelab_model::probe::{AccessPair, AccessPoint, AccessProbe};
use pagelab_model::size::format_bytes;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};
use pagelab_sys::clock;
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::scheduling::PinnedThread;
use pagelab_tlb::knee::{SizeTimings, find_knee};
use pagelab_workloads::chase::{PointerChase, WORDS_BETWEEN_SLOTS, link_cycle};

use super::{ProbeState, time_stream};

/// The smaller buffer size.
const SMALL_BYTES: u64 = 64 << 20;

/// Minimum of the larger buffer size; below it, the smaller buffer gives the same information.
const LARGE_BYTES_MIN: u64 = 256 << 20;

/// Range of the curve in base pages; at 4 KiB from 256 KiB to 64 MiB. TLBs of the second level have had 512
/// to 4 096 entries since 2008.
const CURVE_PAGES: Range<u64> = 64..16_384;

/// Reads of one buffer size.
#[derive(Clone, Copy)]
struct ReadPlan {
    /// Timed reads of one repeat.
    steps: u64,
    /// Factor of the repeats that the options request.
    repeat_factor: u32,
    /// The name of the sample stream.
    stream: &'static str,
}

/// The buffers alternate quickly, so that a disturbance of the machine affects both alike; the difference of
/// each pair counts. They share the caches during that time.
const CURVE_READS: ReadPlan = ReadPlan { steps: 1 << 11, repeat_factor: 8, stream: "access time by size" };
const PAIR_READS: ReadPlan = ReadPlan { steps: 1 << 14, repeat_factor: 4, stream: "access time" };

/// Untimed reads before the first pair: one pass over the contents of the inner caches.
const WARM_STEPS: u64 = 1 << 15;

/// Minimum number of repeats, even when the time is over.
const REPEATS_MIN: u32 = 3;

/// Slow-down of a link in the large buffer against the smaller one, because it leaves the caches and the TLB;
/// 2 to 3 on the machines measured so far.
const LARGE_LINK_SLOWDOWN: u64 = 3;

/// Linking leaves more of the last linked buffer in the caches. Alternating reads of both, this many words at
/// a time and this many in all, even that out.
const EVEN_OUT_WORDS: usize = (256 << 10) / size_of::<u64>();
const EVEN_OUT_WORDS_MAX: usize = (128 << 20) / size_of::<u64>();

/// Memory is touched in slices of this size, with a check of the clock after each.
const TOUCH_SLICE_BYTES: u64 = 64 << 20;

/// Two buffers of one size, alike but for the page size.
pub struct BufferPair {
    pub base: Mapping,
    pub huge: Reading<Mapping>,
    /// Bytes from the start that have memory.
    pub populated_bytes: u64,
}

/// Measures the curve and the two pairs, within the limits of memory and time.
pub fn measure_access(run: &mut ProbeState<'_>, budget: Bytes) -> Reading<AccessProbe> {
    let pinned = PinnedThread::to_current_cpu();
    if let Err(error) = &pinned {
        run.notes.push(format!("cannot pin the reading thread to a CPU: {error}"));
    }
    let mut probe = AccessProbe {
        seed: run.options.seed,
        pinned_cpu: pinned.as_ref().ok().map(PinnedThread::cpu),
        base_curve: Vec::new(),
        huge_curve: Vec::new(),
        pairs: Vec::new(),
        knee: Err(not_requested("reach of the largest TLB", "no time left for the curve")),
    };
    let region_max = run.options.region_max.0.min(budget.0 / 2);
    let page = run.page_size.bytes();
    let small = round_to_pages(SMALL_BYTES.max(CURVE_PAGES.end * page).min(region_max), run);
    let mut buffers = BufferPair::new(run, small, run.deadline_ns)?;
    measure_curve(run, &mut buffers, &mut probe);
    let pair_size = SMALL_BYTES.min(small);
    let (pair, link_ns) = buffers.measure(run, pair_size, PAIR_READS)?;
    let link_ns_per_mib = link_ns / (pair_size >> 20).max(1);
    probe.pairs.push(pair);
    drop(buffers);

    let most = round_to_pages(region_max, run);
    if most < LARGE_BYTES_MIN || most <= small {
        run.notes.push("a larger buffer was not measured: it exceeds the memory limit".to_owned());
    } else if let Err(absence) = measure_large_pair(run, &mut probe, most, link_ns_per_mib) {
        run.notes.push(format!("a larger buffer was not measured: {}", absence.reason()));
    }
    Ok(probe)
}

/// Measures the larger pair: as large as memory allows and as can be filled and linked in the remaining time.
fn measure_large_pair(
    run: &mut ProbeState<'_>,
    probe: &mut AccessProbe,
    most: u64,
    link_ns_per_mib: u64,
) -> Reading<()> {
    let fill_until_ns = clock::monotonic_ns() + run.remaining_ns() / 5 * 2;
    let mut buffers = BufferPair::new(run, most, fill_until_ns)?;
    let linked_mib = run.remaining_ns() / 2 / link_ns_per_mib.saturating_mul(LARGE_LINK_SLOWDOWN).max(1);
    let size = round_to_pages(buffers.populated_bytes.min(linked_mib.saturating_mul(1 << 20)), run);
    if size < LARGE_BYTES_MIN {
        return Err(not_requested("access times", "no time left"));
    }
    let (pair, _) = buffers.measure(run, size, PAIR_READS)?;
    probe.pairs.push(pair);
    if size < most {
        run.notes
            .push(format!("the time limit restricts the larger buffer to {}", format_bytes(Bytes(size))));
    }
    Ok(())
}

/// `size` as a whole number of huge pages where there are any, else of base pages; at least one.
pub fn round_to_pages(size: u64, run: &ProbeState<'_>) -> u64 {
    let unit = run.pmd_size.as_ref().map_or(run.page_size.bytes(), |huge| huge.0).max(1);
    (size / unit).max(1) * unit
}

/// Measures the curve and its knee. Stops early when more than half of the time is used.
fn measure_curve(run: &mut ProbeState<'_>, buffers: &mut BufferPair, probe: &mut AccessProbe) {
    let page = run.page_size.bytes();
    let end = (CURVE_PAGES.end * page).min(buffers.base.len().0);
    let mut pairs = Vec::new();
    for size in half_octaves(CURVE_PAGES.start * page, end, page) {
        if run.remaining_ns() < run.options.time_ns / 2 {
            run.notes.push(format!("the curve ends below {}: no time left", format_bytes(Bytes(size))));
            break;
        }
        let Ok((measured, _)) = buffers.measure(run, size, CURVE_READS) else { break };
        if let Ok(huge) = measured.huge {
            let (base_ps, huge_ps) = (measured.base.ps_per_access.clone(), huge.ps_per_access.clone());
            pairs.push(SizeTimings { size: Bytes(size), base_ps, huge_ps });
            probe.huge_curve.push(huge);
        }
        probe.base_curve.push(measured.base);
    }
    probe.knee = match &buffers.huge {
        Ok(_) => find_knee(&pairs),
        Err(absence) => {
            let detail = format!(
                "without huge pages, cache misses and TLB misses cannot be distinguished: {}",
                absence.reason()
            );
            Err(Absence { detail, ..absence.clone() })
        }
    };
}

/// Returns `first`, about `first` × √2, 2 × `first` … up to `last`, in complete pages.
fn half_octaves(first: u64, last: u64, page: u64) -> Vec<u64> {
    let (mut sizes, mut octave) = (Vec::new(), Some(first.max(1)));
    while let Some(size) = octave.filter(|&size| size <= last) {
        // 181 / 128 is √2 to four digits.
        sizes.extend([size, (size / 128).saturating_mul(181)]);
        octave = size.checked_mul(2);
    }
    sizes.into_iter().filter(|&size| size <= last).map(|size| size / page * page).collect()
}

impl BufferPair {
    /// Maps both and fills them side by side, until the given time. The base buffer is required; the reason
    /// for a missing huge buffer is kept.
    pub fn new(run: &mut ProbeState<'_>, size: u64, until_ns: u64) -> Reading<BufferPair> {
        let base = map_advised(run, size, Advice::NoHugePage)?;
        let huge = run.pmd_size.clone().and_then(|_| map_advised(run, size, Advice::HugePage));
        let mut buffers = BufferPair { base, huge, populated_bytes: 0 };
        while buffers.populated_bytes < size && clock::monotonic_ns() < until_ns {
            buffers.fill((buffers.populated_bytes + TOUCH_SLICE_BYTES).min(size))?;
        }
        let filled = buffers.populated_bytes;
        if filled == 0 {
            return Err(not_requested("memory of the probe", "the time limit was reached"));
        }
        if let Ok(huge) = &mut buffers.huge {
            let start = huge.addresses().start;
            // Faults allocate huge pages in the modes always and madvise; COLLAPSE may allocate the missing
            // ones.
            if run.readback.count_huge_bytes(start..start + filled).is_ok_and(|backed| backed.0 < filled) {
                collapse_buffer(run, huge, filled);
            }
        }
        Ok(buffers)
    }

    /// Touches both up to `end`.
    fn fill(&mut self, end: u64) -> Reading<()> {
        let slice = self.populated_bytes..end;
        self.base
            .touch_for_writing(slice.clone())
            .map_err(|error| io_absence("cannot touch the memory", &error))?;
        if let Ok(huge) = &mut self.huge
            && let Err(error) = huge.touch_for_writing(slice)
        {
            self.huge = Err(io_absence("cannot touch the memory", &error));
        }
        self.populated_bytes = end;
        Ok(())
    }

    /// Equalizes the shares of both buffers in the caches.
    fn equalize_cache_state(&self, words: usize) {
        let Ok(huge) = &self.huge else { return };
        let read = |map: &Mapping, from: usize| {
            let turn = map.words().iter().take(words).skip(from).take(EVEN_OUT_WORDS);
            std::hint::black_box(turn.step_by(WORDS_BETWEEN_SLOTS).fold(0u64, |sum, word| sum ^ word));
        };
        for from in (0..words.min(EVEN_OUT_WORDS_MAX)).step_by(EVEN_OUT_WORDS) {
            read(&self.base, from);
            read(huge, from);
        }
    }

    /// Links both buffers' first `size` bytes in the same random order, and reads them alternately: base,
    /// huge, huge, base, and so on, so that a drift of the machine affects both. Returns the wall time of
    /// linking too.
    fn measure(&mut self, run: &ProbeState<'_>, size: u64, reads: ReadPlan) -> Reading<(AccessPair, u64)> {
        let words = size as usize / size_of::<u64>();
        let started_ns = clock::monotonic_ns();
        link_mapping(&mut self.base, words, run)?;
        if let Ok(huge) = &mut self.huge {
            link_mapping(huge, words, run)?;
        }
        let link_ns = clock::monotonic_ns().saturating_sub(started_ns);
        self.equalize_cache_state(words);
        let mut base = warm_caches(&self.base, words);
        let mut huge = self.huge.as_ref().map(|map| warm_caches(map, words));
        let (mut base_ps, mut huge_ps) = (RepeatTimes::default(), RepeatTimes::default());
        for repeat in 0..run.options.repeats.max(1).saturating_mul(reads.repeat_factor) {
            if repeat >= REPEATS_MIN && run.remaining_ns() == 0 {
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
        let point = |map: &Mapping, pages: &str, timed: RepeatTimes| {
            let start = map.addresses().start;
            let huge_backed = run.readback.count_huge_bytes(start..start + size);
            let labels = [("pages", pages), ("bytes", &size.to_string())];
            (run.samples)(&time_stream(reads.stream, &labels), &timed.samples);
            AccessPoint { size: Bytes(size), ps_per_access: timed.ps_per_access, huge_backed }
        };
        let base = point(&self.base, "base", base_ps);
        let huge = self.huge.as_ref().map(|map| point(map, "huge", huge_ps)).map_err(Absence::clone);
        Ok((AccessPair { base, huge }, link_ns))
    }
}

/// The repeats of one measurement.
#[derive(Default)]
struct RepeatTimes {
    ps_per_access: Vec<u64>,
    /// Same in nanoseconds, each with the time since boot at its end.
    samples: Vec<(u64, f64)>,
}

impl RepeatTimes {
    fn push(&mut self, ps_per_access: u64) {
        self.ps_per_access.push(ps_per_access);
        self.samples.push((clock::boottime_ns(), ps_per_access as f64 / 1e3));
    }
}

/// Links the first `words` of a buffer into one cycle.
fn link_mapping(map: &mut Mapping, words: usize, run: &ProbeState<'_>) -> Reading<()> {
    let len = map.words().len().min(words);
    if link_cycle(&mut map.words_mut()[..len], run.options.seed, || run.remaining_ns() > 0) {
        return Ok(());
    }
    Err(not_requested("access times", "the time limit was reached"))
}

fn not_requested(what: &str, why: &str) -> Absence {
    Absence::new(what, AbsenceReason::NotRequested, why)
}

/// Returns a warmed-up chase over the first `words`.
fn warm_caches(map: &Mapping, words: usize) -> PointerChase<'_> {
    let mut chase = PointerChase::new(&map.words()[..map.words().len().min(words)]);
    chase.walk(WARM_STEPS.min(chase.slot_count()));
    chase
}

/// Maps memory that is advised before its first touch.
fn map_advised(run: &ProbeState<'_>, size: u64, advice: Advice) -> Reading<Mapping> {
    let align = run.pmd_size.as_ref().map_or(Bytes(run.page_size.bytes()), |&huge| huge);
    let mut map = Mapping::anonymous(Bytes(size), align).map_err(|e| io_absence("cannot map memory", &e))?;
    let advised = map.advise(0..size, advice);
    // A kernel without THP does not support the advice, and has base pages only.
    if run.pmd_size.is_ok() {
        advised.map_err(|e| io_absence("madvise", &e))?;
    }
    Ok(map)
}

fn io_absence(what: &str, error: &std::io::Error) -> Absence {
    Absence::new("memory of the probe", AbsenceReason::Failed, format!("{what}: {error}"))
}

/// Collapses a buffer huge page by huge page until little time remains. Failures show when it is read back.
fn collapse_buffer(run: &ProbeState<'_>, map: &mut Mapping, size: u64) {
    let Ok(huge) = run.pmd_size.clone() else { return };
    for start in (0..size).step_by(huge.0 as usize) {
        if run.remaining_ns() < run.options.time_ns / 4 {
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
