//! Splitting of mappings for a sweep, and merging after it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::process::Mapping;

use super::image;
use super::injector::AdviceFailure;
use super::profiler::AccessProfiler;
use super::splitter::Advice;
use crate::process_injection::ProcessIdentity;

/// State of the mappings of an image during a sweep.
pub(super) enum SplitState {
    /// Not split: nothing to split, or not possible.
    Whole,
    /// These ranges are pieces of their own, since then.
    Split(Vec<Range<u64>>, Instant),
    /// A sweep of whole mappings would distort the counts of pieces; a later one is made.
    Postponed,
}

impl AccessProfiler<'_> {
    pub(super) fn split_mappings(&mut self, index: usize, mappings: &[Mapping]) -> SplitState {
        let map_count_max =
            Reader::new(&self.root).read_line(paths::MAX_MAP_COUNT).ok().and_then(|line| line.parse().ok());
        let maps_available = map_count_max.unwrap_or(0u64).saturating_sub(mappings.len() as u64);
        let image = &self.images[index];
        let populated = |mapping: &_| image.find_populated(mapping, self.huge);
        let process = image.process;
        if image.is_unsplittable || !self.injector.can_inject() {
            return SplitState::Whole;
        }
        let plan = plan(mappings, self.huge, &populated, maps_available);
        if plan.is_map_limited {
            self.notes.retain(|note| !note.contains("mappings (vm.max_map_count)"));
            self.notes.push(format!(
                "process {} has {} of at most {} mappings (vm.max_map_count): part of its memory is observed \
                 by mapping, not by huge page",
                process.pid,
                mappings.len(),
                map_count_max.unwrap_or(0)
            ));
        }
        if plan.advised_ranges.is_empty() {
            return SplitState::Whole;
        }
        if !self.merge_leftovers(process) {
            return SplitState::Postponed;
        }
        let since = Instant::now();
        match self.advise_process(process, Advice::DontDump, &plan.advised_ranges) {
            Ok(()) => SplitState::Split(plan.advised_ranges, since),
            Err(_) if !process.is_running(&self.root) => SplitState::Postponed,
            Err(AdviceFailure { reason, is_transient, is_partial }) => {
                if is_partial {
                    self.merge_ranges(process, &plan.advised_ranges, since);
                }
                if is_transient {
                    self.add_note(format!("scans of process {} were skipped: {reason}", process.pid));
                    return SplitState::Postponed;
                }
                self.images[index].is_unsplittable = true;
                let pid = process.pid;
                self.add_note(format!(
                    "mappings are observed as a whole, not by huge page: process {pid} cannot split them: \
                     {reason}"
                ));
                SplitState::Whole
            }
        }
    }

    pub(super) fn merge_ranges(&mut self, process: ProcessIdentity, ranges: &[Range<u64>], since: Instant) {
        let mut result = self.advise_process(process, Advice::DoDump, ranges);
        if result.is_err() && process.is_running(&self.root) {
            // A signal storm may be over the second time.
            result = self.advise_process(process, Advice::DoDump, ranges);
        }
        if let Err(failure) = result
            && process.is_running(&self.root)
        {
            if failure.is_transient {
                self.unmerged.push((process, ranges.to_vec()));
            }
            self.add_note(format!(
                "ranges of process {} were excluded from core dumps for longer than one sweep: {}",
                process.pid, failure.reason
            ));
        }
        let split_time = since.elapsed();
        self.longest_split = self.longest_split.max(split_time);
        *self.profiling_cost.split_ns.get_or_insert(0) += split_time.as_nanos() as u64;
    }

    /// Merges leftovers of earlier sweeps; `false` if that is not possible yet.
    pub(super) fn merge_leftovers(&mut self, process: ProcessIdentity) -> bool {
        let leftovers: Vec<_> = self.unmerged.extract_if(.., |(owner, _)| *owner == process).collect();
        for (owner, ranges) in leftovers {
            if self.advise_process(owner, Advice::DoDump, &ranges).is_err() && owner.is_running(&self.root) {
                self.unmerged.push((owner, ranges));
            }
        }
        !self.unmerged.iter().any(|(of, _)| *of == process)
    }

    /// Has a process advise, and counts what that costs it.
    fn advise_process(
        &mut self,
        process: ProcessIdentity,
        advice: Advice,
        ranges: &[Range<u64>],
    ) -> Result<(), AdviceFailure> {
        let wait_ns = |root: &Root| image::run_queue_wait(root, process.pid).as_nanos() as u64;
        let before = wait_ns(&self.root);
        let stopped_ns = self.injector.advise_ranges(process, advice, ranges)?;
        *self.profiling_cost.stopped_ns.get_or_insert(0) += stopped_ns;
        self.stop_wait_ns += wait_ns(&self.root).saturating_sub(before).min(stopped_ns);
        self.splits += u64::from(advice == Advice::DontDump);
        Ok(())
    }
}

/// Flags (`VmFlags`) of mappings that are left alone: io, pfn maps, mixed maps, no expansion, hugetlb, grows
/// down; and those that are left out of core dumps already, whose advice is not ours to take back.
const UNSPLITTABLE_FLAGS: [&str; 7] = ["io", "pf", "mm", "de", "ht", "gd", "dd"];

/// Whether advice can separate its pieces.
pub fn is_splittable(mapping: &Mapping) -> bool {
    !mapping.vm_flags.is_empty()
        && !mapping.vm_flags.iter().any(|flag| UNSPLITTABLE_FLAGS.contains(&flag.as_str()))
        && !mapping.name.starts_with("[v")
}

/// Advised ranges, and whether all resident memory has separate pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitPlan {
    /// Ranges for MADV_DONTDUMP: pieces with an odd number, so that neighbours differ.
    pub advised_ranges: Vec<Range<u64>>,
    /// Mappings stay whole, since the map count is limited.
    pub is_map_limited: bool,
}

/// The plan for mappings of which the pieces at these addresses (numbers of huge pages) are populated.
/// `maps_available` is the number of further mappings that the kernel permits; at most half of it is used.
pub fn plan(
    mappings: &[Mapping],
    huge: u64,
    populated: &dyn Fn(&Mapping) -> BTreeSet<u64>,
    maps_available: u64,
) -> SplitPlan {
    let mut plan = SplitPlan::default();
    let mut room = maps_available / 2;
    for mapping in mappings {
        let is_small = mapping.end.saturating_sub(mapping.start) <= huge;
        if is_small || mapping.fields_kib.get("Rss") == Some(0) || !is_splittable(mapping) {
            continue;
        }
        // A populated piece with an even number is separated by its odd neighbours.
        let mut odd_pieces = BTreeSet::new();
        for piece in populated(mapping) {
            match piece % 2 {
                1 => drop(odd_pieces.insert(piece)),
                _ => odd_pieces.extend([piece.wrapping_sub(1), piece + 1]),
            }
        }
        for piece in odd_pieces {
            let start = piece.saturating_mul(huge).max(mapping.start);
            let end = piece.saturating_add(1).saturating_mul(huge).min(mapping.end);
            if start >= end {
                continue;
            }
            // Each advised piece makes two mappings more at most.
            if room < 2 {
                plan.is_map_limited = true;
                return plan;
            }
            room -= 2;
            plan.advised_ranges.push(start..end);
        }
    }
    plan
}

/// Pieces that a killed pagelab left advised: each an odd piece of its own in the midst of, or at an edge of,
/// memory that is otherwise the same. One alone may be the program's own.
pub fn find_leftovers(mappings: &[Mapping], huge: u64) -> Vec<Range<u64>> {
    let has_flag = |mapping: &Mapping, flag: &str| mapping.vm_flags.iter().any(|f| f == flag);
    let is_like = |a: &Mapping, b: &Mapping| {
        let flags = |m: &Mapping| m.vm_flags.iter().filter(|f| *f != "dd").cloned().collect::<BTreeSet<_>>();
        a.permissions == b.permissions && a.name == b.name && flags(a) == flags(b)
    };
    let mut found = Vec::new();
    for (at, mapping) in mappings.iter().enumerate() {
        let piece = mapping.start / huge;
        let is_odd_piece = piece % 2 == 1 && mapping.end <= (piece + 1).saturating_mul(huge);
        if !has_flag(mapping, "dd") || !is_odd_piece {
            continue;
        }
        let is_rest = |m: &&Mapping| !has_flag(m, "dd") && is_like(m, mapping);
        let before = at.checked_sub(1).and_then(|before| mappings.get(before)).filter(is_rest);
        let after = mappings.get(at + 1).filter(is_rest);
        if before.is_some_and(|m| m.end == mapping.start) || after.is_some_and(|m| m.start == mapping.end) {
            found.push(mapping.start..mapping.end);
        }
    }
    if found.len() < 2 { Vec::new() } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::smaps;

    const HUGE: u64 = 2 << 20;

    fn test_mappings(lines: &[(u64, u64, &str, u64)]) -> Vec<Mapping> {
        let text: String = lines
            .iter()
            .map(|(start, end, flags, rss)| {
                format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \nRss: {rss} kB\nVmFlags: {flags}\n")
            })
            .collect();
        smaps::parse(text.as_bytes()).unwrap()
    }

    fn all_pieces(mapping: &Mapping) -> BTreeSet<u64> {
        (mapping.start / HUGE..mapping.end.div_ceil(HUGE)).collect()
    }

    #[test]
    fn every_second_piece_is_advised_and_edges_are_cut_at_the_mapping() {
        let maps = test_mappings(&[(HUGE / 2, 4 * HUGE + HUGE / 2, "rd wr ac sd", 100)]);
        let plan = plan(&maps, HUGE, &all_pieces, 1000);
        assert_eq!(plan.advised_ranges, [HUGE..2 * HUGE, 3 * HUGE..4 * HUGE]);
        assert!(!plan.is_map_limited);
    }

    #[test]
    fn what_is_empty_small_special_or_advised_is_left_and_half_the_maps_stay_free() {
        let big = 100 * HUGE;
        let maps = test_mappings(&[
            (0, HUGE, "rd wr", 100),
            (big, 2 * big, "rd wr", 0),
            (3 * big, 4 * big, "rd wr dd", 100),
            (4 * big, 5 * big, "rd wr io", 100),
        ]);
        assert_eq!(plan(&maps, HUGE, &all_pieces, 1000), SplitPlan::default());
        let maps = test_mappings(&[(0, big, "rd wr", 100)]);
        let short = plan(&maps, HUGE, &all_pieces, 20);
        assert_eq!((short.advised_ranges.len(), short.is_map_limited), (5, true));
        // One even piece of a sparse terabyte: its neighbours.
        let one = |_: &Mapping| BTreeSet::from([10]);
        assert_eq!(plan(&maps, HUGE, &one, 1000).advised_ranges, [9 * HUGE..10 * HUGE, 11 * HUGE..12 * HUGE]);
    }

    #[test]
    fn what_was_left_is_told_from_what_a_program_advised() {
        let split = test_mappings(&[
            (0, HUGE, "rd wr", 1),
            (HUGE, 2 * HUGE, "rd wr dd", 1),
            (2 * HUGE, 3 * HUGE, "rd wr", 1),
            (3 * HUGE, 4 * HUGE, "rd wr dd", 1),
        ]);
        assert_eq!(find_leftovers(&split, HUGE), [HUGE..2 * HUGE, 3 * HUGE..4 * HUGE]);
        assert_eq!(find_leftovers(&split[..3], HUGE), []);
        let own = test_mappings(&[(0, HUGE, "rd wr", 1), (HUGE, 4 * HUGE, "rd wr dd", 1)]);
        assert_eq!(find_leftovers(&own, HUGE), []);
    }
}
