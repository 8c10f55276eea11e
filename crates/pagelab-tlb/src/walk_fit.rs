//! The cost of a page walk by reuse distance, from access times at several sizes of a buffer.
//!
//! A uniform random read of a buffer with more pages than the TLB has entries misses with probability
//! 1 − entries / pages. A buffer whose page-table entries fill L lines has reuse distances of a geometric
//! distribution with mean L. What base pages cost above huge pages is therefore, per read,
//!
//! h + (1 − entries / pages) · Σ P(distance) · cost(distance)
//!
//! where h is the cost of a read that misses only the first level: the difference at sizes that the TLB
//! holds. The cost is the rising function, linear between whole log2 of the distance, that fits best by
//! least squares, with a small weight on bends, since seven sizes do not decide it alone.
//!
//! Sizes above the reach have no near walks: with a TLB of 3072 entries no line is walked again before some
//! 384 others. Those are measured by reads in windows: each page of a window of L lines is read once, in
//! random order, then comes another window of a buffer far larger than the TLB reaches. All but the first of
//! the eight walks of a line are then at distances of mean L.

use pagelab_model::profile::WalkCostCurve;
use pagelab_model::{Bytes, PageSize};

use crate::cost::ENTRIES_PER_LINE;

/// Times at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BufferTimings {
    /// Size of the buffer.
    pub size: Bytes,
    /// Size of the windows that are read one after another; `None`: any page may come next.
    pub window: Option<Bytes>,
    /// Picoseconds of a read with base pages.
    pub base_ps: f64,
    /// Picoseconds of a read with huge pages.
    pub huge_ps: f64,
}

/// Weight of a bend against a measured difference.
const STIFFNESS: f64 = 0.1;
/// Rounds of the descent; it converges long before.
const ITERATIONS_MAX: usize = 20_000;

/// Fits the cost; `None` if no size is larger than the TLB reaches, or base pages are not slower there.
pub fn fit_walk_cost(
    timings: &[BufferTimings],
    entries: u64,
    page_size: PageSize,
    origin: String,
) -> Option<WalkCostCurve> {
    let pages = |one: &BufferTimings| one.size.0 as f64 / page_size.bytes() as f64;
    let entries = entries as f64;
    // Differences of what fits well, and of what clearly does not.
    let (inside, outside): (Vec<_>, Vec<_>) = timings
        .iter()
        .filter(|one| pages(one) <= 0.8 * entries || pages(one) >= 1.5 * entries)
        .partition(|one| pages(one) <= 0.8 * entries);
    let difference = |one: &&BufferTimings| (one.base_ps - one.huge_ps).max(0.0);
    let hit_cost = inside.iter().map(difference).min_by(f64::total_cmp).unwrap_or(0.0);
    let count_lines = |size: Bytes| size.0 as f64 / page_size.bytes() as f64 / ENTRIES_PER_LINE as f64;
    let nearest_distance = |one: &BufferTimings| count_lines(one.window.unwrap_or(one.size)).max(1.0);
    let first = outside.iter().map(|one| nearest_distance(one)).fold(f64::INFINITY, f64::min);
    let last = outside.iter().map(|one| count_lines(one.size)).fold(0.0, f64::max);
    if outside.is_empty() || outside.iter().map(difference).sum::<f64>() <= 0.0 {
        return None;
    }
    let knots: Vec<u32> = ((first.log2() as u32).saturating_sub(2)..=last.log2().ceil() as u32 + 1).collect();
    let equations: Vec<(Vec<f64>, f64)> = outside
        .iter()
        .map(|one| {
            let misses = 1.0 - entries / pages(one);
            let mut weights_of = knot_weights(count_lines(one.size), &knots);
            if let Some(window) = one.window {
                // The first walk of a line in a window has the same distance as one in the whole buffer.
                let far_share = 1.0 / ENTRIES_PER_LINE as f64;
                let near_weights = knot_weights(count_lines(window), &knots);
                weights_of
                    .iter_mut()
                    .zip(near_weights)
                    .for_each(|(all, near)| *all = far_share * *all + (1.0 - far_share) * near);
            }
            (weights_of, ((difference(one) - hit_cost) / misses).max(0.0))
        })
        .collect();
    let costs = fit_monotone(&equations, knots.len());
    let points = knots.iter().zip(costs).map(|(&knot, ps)| (knot, ps.max(0.0) as u64)).collect();
    Some(WalkCostCurve { points, origin })
}

/// The weight of each knot in the mean cost at geometric distances of this mean.
fn knot_weights(mean: f64, knots: &[u32]) -> Vec<f64> {
    let mut weights = vec![0.0; knots.len()];
    // Quarters of a doubling are fine enough for a function that is linear over a whole one.
    let tail_probability = |log2: f64| (-(log2.exp2()) / mean).exp();
    for quarter in 0..4 * 40 {
        let (from, to) = (f64::from(quarter) / 4.0, f64::from(quarter + 1) / 4.0);
        let low = if quarter == 0 { 1.0 } else { tail_probability(from) };
        let at = f64::midpoint(from, to) - f64::from(knots[0]);
        let at = at.clamp(0.0, (knots.len() - 1) as f64);
        let (left, part) = (at as usize, at.fract());
        let mass = low - tail_probability(to);
        weights[left] += mass * (1.0 - part);
        if part > 0.0 {
            weights[left + 1] += mass * part;
        }
    }
    weights
}

/// Least squares over costs that never fall: one step at a time is moved to where it is best, not below 0.
fn fit_monotone(rows: &[(Vec<f64>, f64)], knots: usize) -> Vec<f64> {
    let scale = rows.iter().map(|(_, ps)| ps * ps).sum::<f64>().sqrt().max(1.0);
    // In terms of the steps, cost k is the sum of steps 0 to k; bends are differences of steps.
    let mut system: Vec<(Vec<f64>, f64)> = Vec::new();
    for (weights, ps) in rows {
        let step_weights = (0..knots).map(|step| weights[step..].iter().sum()).collect();
        system.push((step_weights, ps / scale));
    }
    for step in 1..knots.saturating_sub(1) {
        let bend = (0..knots).map(|at| match at {
            at if at == step => -STIFFNESS,
            at if at == step + 1 => STIFFNESS,
            _ => 0.0,
        });
        system.push((bend.collect(), 0.0));
    }
    let mut steps = vec![0.0; knots];
    let mut residuals: Vec<f64> = system.iter().map(|(_, wanted)| *wanted).collect();
    let squares: Vec<f64> =
        (0..knots).map(|at| system.iter().map(|(row, _)| row[at] * row[at]).sum::<f64>()).collect();
    for _ in 0..ITERATIONS_MAX {
        let mut largest = 0.0f64;
        for at in (0..knots).filter(|&at| squares[at] > 0.0) {
            let gradient: f64 = system.iter().zip(&residuals).map(|((row, _), rest)| row[at] * rest).sum();
            let change = (steps[at] + gradient / squares[at]).max(0.0) - steps[at];
            steps[at] += change;
            largest = largest.max(change.abs());
            system.iter().zip(&mut residuals).for_each(|((row, _), rest)| *rest -= row[at] * change);
        }
        if largest < 1e-9 {
            break;
        }
    }
    let mut cost = 0.0;
    let sums = steps.iter().map(|step| {
        cost += step * scale;
        cost
    });
    sums.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::walk_cost_ps;

    const ENTRIES: u64 = 2048;

    /// Simulated measurement of a machine with this cost, for a buffer in MiB and windows in KiB.
    fn simulate_timings(truth: &dyn Fn(f64) -> f64, mib: u64, window_kib: Option<u64>) -> BufferTimings {
        let (size, window) = (Bytes(mib << 20), window_kib.map(|kib| Bytes(kib << 10)));
        let pages = |size: Bytes| (size.0 / PageSize::DEFAULT.bytes()) as f64;
        // The mean over 1e5 quantiles of the geometric distribution.
        let mean_ps = |size: Bytes| {
            let at = |k: u32| -pages(size) / 8.0 * (1.0 - (f64::from(k) + 0.5) / 1e5).ln();
            (0..100_000).map(|k| truth(at(k).max(1.0).log2())).sum::<f64>() / 1e5
        };
        let far = mean_ps(size);
        let cost_ps = window.map_or(far, |window| far / 8.0 + mean_ps(window) * 7.0 / 8.0);
        let misses = (1.0 - ENTRIES as f64 / pages(size)).max(0.0);
        BufferTimings { size, window, base_ps: 93_000.0 + misses * cost_ps, huge_ps: 90_000.0 }
    }

    /// The timings of a machine with this cost, and the fitted cost.
    #[test]
    fn a_known_cost_is_found_again() {
        let truth = |log2: f64| 20_000.0 + 9_000.0 * (log2 - 8.0).clamp(0.0, 7.0);
        let measured: Vec<BufferTimings> =
            (2..=10).map(|shift| simulate_timings(&truth, 1 << shift, None)).collect();
        let found = fit_walk_cost(&measured, ENTRIES, PageSize::DEFAULT, "made".to_owned()).unwrap();
        assert!(found.points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
        for log2 in [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0] {
            let (found, truth) = (walk_cost_ps(&found, log2), truth(log2));
            assert!((found / truth - 1.0).abs() < 0.12, "2^{log2}: {found} for {truth}");
        }
    }

    /// As an AMD EPYC (25/17/1) shows it: a near walk costs 10 ns, and only far above the reach one costs
    /// more. From sizes above the reach alone, near walks were fitted as free.
    #[test]
    fn near_walks_have_the_cost_that_windows_show() {
        let truth = |log2: f64| 10_000.0 + 20_000.0 * (log2 - 12.0).clamp(0.0, 3.0);
        let mut measured: Vec<BufferTimings> =
            (2..=10).map(|shift| simulate_timings(&truth, 1 << shift, None)).collect();
        measured.extend([512, 8192].map(|kib| simulate_timings(&truth, 64, Some(kib))));
        let found = fit_walk_cost(&measured, ENTRIES, PageSize::DEFAULT, "made".to_owned()).unwrap();
        for log2 in [0.0, 3.0, 6.0, 9.0, 15.0] {
            let (found, truth) = (walk_cost_ps(&found, log2), truth(log2));
            assert!((found / truth - 1.0).abs() < 0.15, "2^{log2}: {found} for {truth}");
        }
    }

    #[test]
    fn without_a_difference_there_is_no_cost() {
        let flat = |shift: u32| BufferTimings {
            size: Bytes(1 << shift),
            window: None,
            base_ps: 10.0,
            huge_ps: 10.0,
        };
        let fit = |all: &[BufferTimings]| fit_walk_cost(all, 1024, PageSize::DEFAULT, String::new());
        assert_eq!(fit(&[flat(21), flat(28), flat(30)]), None);
        assert_eq!(fit(&[]), None);
    }
}
