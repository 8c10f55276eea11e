//! Knee of an access curve: the reach of the largest TLB, from times with base pages and with huge pages.
//!
//! Caches bend both curves, the TLB bends their difference. Up to the reach R of the largest TLB the
//! difference is a plateau: what a miss of the first level costs, which is small. Above R a random read
//! misses with probability 1 − R / size, and each miss is a page walk.
//!
//! A turn with base pages and the next with huge pages meet the same disturbance, so what counts is the
//! difference of each turn: its median over the turns, and as noise the standard error of that median
//! ([`AccessSaving`]).
//!
//! The result is the reach for this thread: a busy SMT sibling takes its share of the TLB.

use pagelab_model::order_statistics::median;
use pagelab_model::probe::AccessSaving;
use pagelab_model::size::format_bytes;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};

/// Times at one buffer size. Entry i of both lists is from the same turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeTimings {
    /// Size of the buffer.
    pub size: Bytes,
    /// Picoseconds per read with base pages.
    pub base_ps: Vec<u64>,
    /// Picoseconds per read with huge pages.
    pub huge_ps: Vec<u64>,
}

/// Sizes of which the plateau is taken: those just below the size in question.
const PLATEAU_POINTS: usize = 3;

/// Number of sizes required below and above the knee: one point is no plateau, and no rise.
const POINTS_EACH_SIDE: usize = 2;

/// The difference of one size in numbers.
struct DifferencePoint {
    size: Bytes,
    /// Median over the turns of base less huge.
    difference: i64,
    /// Bound of a clear difference: 3 standard errors, or 5 % of the time with huge pages.
    threshold: i64,
}

/// The largest size at which the difference is still on its plateau, when at every larger size it is clearly
/// above: by more than 3 standard errors, more than 5 % of the time with huge pages, and more than a tenth of
/// the rise at the largest size. The last keeps a small early step, such as the reach of the first level,
/// from being taken for it. The true reach is between this size and the next larger measured one.
pub fn find_knee(timings: &[SizeTimings]) -> Reading<Bytes> {
    let absent = |detail: String| {
        Absence::new("reach of the largest TLB", AbsenceReason::Undefined, detail)
            .with_hint("repeat the probe on an idle machine")
    };
    let mut points: Vec<DifferencePoint> = timings.iter().filter_map(difference_point).collect();
    points.sort_by_key(|point| point.size);
    let Some(largest) = points.last() else {
        return Err(absent("no clear knee: nothing was measured".to_owned()));
    };
    if largest.difference <= largest.threshold {
        let size = format_bytes(largest.size);
        return Err(absent(format!("no clear knee: at {size} base and huge pages still cost the same")));
    }
    let candidates = POINTS_EACH_SIDE..=points.len().saturating_sub(POINTS_EACH_SIDE);
    let knee_index = candidates.into_iter().find(|&first| {
        let (below, above) = points.split_at(first);
        let mut plateau: Vec<i64> = below.iter().rev().take(PLATEAU_POINTS).map(|p| p.difference).collect();
        let plateau = median(&mut plateau).unwrap_or(0);
        let rise_tenth = largest.difference.saturating_sub(plateau) / 10;
        above.iter().all(|point| point.difference.saturating_sub(plateau) > point.threshold.max(rise_tenth))
    });
    let flat = || absent("no clear knee: the difference does not rise above a plateau".to_owned());
    knee_index.map(|first| points[first - 1].size).ok_or_else(flat)
}

fn difference_point(timings: &SizeTimings) -> Option<DifferencePoint> {
    let saving = AccessSaving::from_pairs(&timings.base_ps, &timings.huge_ps)?;
    let mut huge: Vec<i64> =
        timings.huge_ps.iter().map(|&ps| i64::try_from(ps).unwrap_or(i64::MAX)).collect();
    let threshold = saving.error_ps.saturating_mul(3).max(median(&mut huge)? / 20);
    Some(DifferencePoint { size: timings.size, difference: saving.median_ps, threshold })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 256 KiB to 64 MiB by factors of about √2.
    fn sizes() -> Vec<u64> {
        (0..=16)
            .map(
                |half: u32| if half.is_multiple_of(2) { 256 << (half / 2) } else { (362 << (half / 2)) & !3 },
            )
            .collect()
    }

    /// A machine: a first level of 64 entries whose miss costs `step_ps`, a second level that reaches
    /// `reach_kib`, a walk of `walk_ps`, caches of 2 MiB and 32 MiB, and noise of ± `noise_ps` that depends
    /// on the round.
    fn curve(reach_kib: u64, step_ps: u64, walk_ps: u64, noise_ps: u64) -> Vec<SizeTimings> {
        let mut state = 88_172_645_463_325_252u64;
        let mut noise = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if noise_ps == 0 { 0 } else { state % (2 * noise_ps + 1) }
        };
        let missing = |size: u64, reach: u64, cost: u64| cost * size.saturating_sub(reach) / size;
        let pair = |size: u64| {
            let cache = 4_000 + missing(size, 2048, 20_000) + missing(size, 32 << 10, 80_000);
            let base = cache + missing(size, 256, step_ps) + missing(size, reach_kib, walk_ps);
            let base_ps = (0..12).map(|_| base + noise()).collect();
            let huge_ps = (0..12).map(|_| cache + noise()).collect();
            SizeTimings { size: Bytes::from_kib(size), base_ps, huge_ps }
        };
        sizes().into_iter().map(pair).collect()
    }

    #[test]
    fn knees_of_known_machines_are_found() {
        // (reach in KiB, cost of a first-level miss, cost of a walk, noise, expected KiB)
        let cases = [
            (8192, 3000, 50_000, 0, 8192),
            (8192, 3000, 50_000, 800, 8192),
            (6144, 2500, 40_000, 500, 5792),
            (4096, 2000, 25_000, 300, 4096),
            (12288, 3000, 40_000, 800, 11584),
            (2048, 3000, 30_000, 200, 2048),
        ];
        for (reach, step, walk, noise, expected) in cases {
            let found = find_knee(&curve(reach, step, walk, noise));
            assert_eq!(found, Ok(Bytes::from_kib(expected)), "reach {reach} KiB, noise {noise} ps");
        }
    }

    #[test]
    fn curves_without_a_knee_say_why() {
        let cases = [
            (curve(8192, 0, 0, 500), "no clear knee: at 64 MiB base and huge pages still cost the same"),
            (
                curve(1 << 20, 3000, 50_000, 200),
                "no clear knee: at 64 MiB base and huge pages still cost the same",
            ),
            (curve(8192, 3000, 50_000, 100_000), "no clear knee"),
            (Vec::new(), "no clear knee: nothing was measured"),
        ];
        for (pairs, reason) in cases {
            let absent = find_knee(&pairs).unwrap_err();
            assert!(absent.reason().starts_with(reason), "{}", absent.reason());
        }
    }

    #[test]
    fn hostile_numbers_do_not_panic() {
        let pair = |kib, base: &[u64], huge: &[u64]| SizeTimings {
            size: Bytes::from_kib(kib),
            base_ps: base.to_vec(),
            huge_ps: huge.to_vec(),
        };
        let extremes = [u64::MAX, 0, 1];
        let pairs: Vec<SizeTimings> = (1..9).map(|k| pair(k, &extremes, &[0, u64::MAX, 7])).collect();
        let _ = find_knee(&pairs);
        let _ = find_knee(&[pair(1, &[], &[]), pair(2, &[1], &[])]);
    }
}
