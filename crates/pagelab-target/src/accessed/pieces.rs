//! Which mappings are split at huge-page boundaries, and where: by advice that touches no contents, to every
//! second piece.

use std::collections::BTreeSet;
use std::ops::Range;

use pagelab_model::process::Mapping;

/// Flags (`VmFlags`) of mappings that are left alone: io, pfn maps, mixed maps, no expansion, hugetlb, grows
/// down; and those that are left out of core dumps already, whose advice is not ours to take back.
const LEFT_ALONE: [&str; 7] = ["io", "pf", "mm", "de", "ht", "gd", "dd"];

/// Whether pieces of it can be told apart by advice.
pub fn can_be_split(mapping: &Mapping) -> bool {
    !mapping.vm_flags.is_empty()
        && !mapping.vm_flags.iter().any(|flag| LEFT_ALONE.contains(&flag.as_str()))
        && !mapping.name.starts_with("[v")
}

/// What is advised, and whether all that is in memory got pieces of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ranges for MADV_DONTDUMP: pieces with an odd number, so that neighbours differ.
    pub advised: Vec<Range<u64>>,
    /// Mappings stay whole for want of map count.
    pub is_short: bool,
}

/// The plan for mappings of which the pieces at these addresses (numbers of huge pages) are populated.
/// `maps_free` is what the kernel lets the process still have; half of it is used at most.
pub fn plan(
    mappings: &[Mapping],
    huge: u64,
    populated: &dyn Fn(&Mapping) -> BTreeSet<u64>,
    maps_free: u64,
) -> Plan {
    let mut plan = Plan::default();
    let mut room = maps_free / 2;
    for mapping in mappings {
        let is_small = mapping.end.saturating_sub(mapping.start) <= huge;
        if is_small || mapping.fields_kib.get("Rss") == Some(0) || !can_be_split(mapping) {
            continue;
        }
        // A populated piece with an even number is told apart by its odd neighbours.
        let mut odd = BTreeSet::new();
        for piece in populated(mapping) {
            match piece % 2 {
                1 => drop(odd.insert(piece)),
                _ => odd.extend([piece.wrapping_sub(1), piece + 1]),
            }
        }
        for piece in odd {
            let start = piece.saturating_mul(huge).max(mapping.start);
            let end = piece.saturating_add(1).saturating_mul(huge).min(mapping.end);
            if start >= end {
                continue;
            }
            // Each advised piece makes two mappings more at most.
            if room < 2 {
                plan.is_short = true;
                return plan;
            }
            room -= 2;
            plan.advised.push(start..end);
        }
    }
    plan
}

/// Pieces that a killed pagelab left advised: each an odd piece of its own in the midst of, or at an edge of,
/// memory that is otherwise the same. One alone may be the program's own.
pub fn left_behind(mappings: &[Mapping], huge: u64) -> Vec<Range<u64>> {
    let has = |mapping: &Mapping, flag: &str| mapping.vm_flags.iter().any(|f| f == flag);
    let like = |a: &Mapping, b: &Mapping| {
        let flags = |m: &Mapping| m.vm_flags.iter().filter(|f| *f != "dd").cloned().collect::<BTreeSet<_>>();
        a.permissions == b.permissions && a.name == b.name && flags(a) == flags(b)
    };
    let mut found = Vec::new();
    for (at, mapping) in mappings.iter().enumerate() {
        let piece = mapping.start / huge;
        let is_odd_piece = piece % 2 == 1 && mapping.end <= (piece + 1).saturating_mul(huge);
        if !has(mapping, "dd") || !is_odd_piece {
            continue;
        }
        let before = at.checked_sub(1).and_then(|before| mappings.get(before));
        let before = before.is_some_and(|m| m.end == mapping.start && !has(m, "dd") && like(m, mapping));
        let after = mappings.get(at + 1);
        let after = after.is_some_and(|m| m.start == mapping.end && !has(m, "dd") && like(m, mapping));
        if before || after {
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

    fn smaps(lines: &[(u64, u64, &str, u64)]) -> Vec<Mapping> {
        let text: String = lines
            .iter()
            .map(|(start, end, flags, rss)| {
                format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \nRss: {rss} kB\nVmFlags: {flags}\n")
            })
            .collect();
        smaps::parse(text.as_bytes()).unwrap()
    }

    fn all(mapping: &Mapping) -> BTreeSet<u64> {
        (mapping.start / HUGE..mapping.end.div_ceil(HUGE)).collect()
    }

    #[test]
    fn every_second_piece_is_advised_and_edges_are_cut_at_the_mapping() {
        let maps = smaps(&[(HUGE / 2, 4 * HUGE + HUGE / 2, "rd wr ac sd", 100)]);
        let plan = plan(&maps, HUGE, &all, 1000);
        assert_eq!(plan.advised, [HUGE..2 * HUGE, 3 * HUGE..4 * HUGE]);
        assert!(!plan.is_short);
    }

    #[test]
    fn what_is_empty_small_special_or_advised_is_left_and_half_the_maps_stay_free() {
        let big = 100 * HUGE;
        let maps = smaps(&[
            (0, HUGE, "rd wr", 100),
            (big, 2 * big, "rd wr", 0),
            (3 * big, 4 * big, "rd wr dd", 100),
            (4 * big, 5 * big, "rd wr io", 100),
        ]);
        assert_eq!(plan(&maps, HUGE, &all, 1000), Plan::default());
        let maps = smaps(&[(0, big, "rd wr", 100)]);
        let short = plan(&maps, HUGE, &all, 20);
        assert_eq!((short.advised.len(), short.is_short), (5, true));
        // One even piece of a sparse terabyte: its neighbours.
        let one = |_: &Mapping| BTreeSet::from([10]);
        assert_eq!(plan(&maps, HUGE, &one, 1000).advised, [9 * HUGE..10 * HUGE, 11 * HUGE..12 * HUGE]);
    }

    #[test]
    fn what_was_left_is_told_from_what_a_program_advised() {
        let split = smaps(&[
            (0, HUGE, "rd wr", 1),
            (HUGE, 2 * HUGE, "rd wr dd", 1),
            (2 * HUGE, 3 * HUGE, "rd wr", 1),
            (3 * HUGE, 4 * HUGE, "rd wr dd", 1),
        ]);
        assert_eq!(left_behind(&split, HUGE), [HUGE..2 * HUGE, 3 * HUGE..4 * HUGE]);
        assert_eq!(left_behind(&split[..3], HUGE), []);
        let own = smaps(&[(0, HUGE, "rd wr", 1), (HUGE, 4 * HUGE, "rd wr dd", 1)]);
        assert_eq!(left_behind(&own, HUGE), []);
    }
}
