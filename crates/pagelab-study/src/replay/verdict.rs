//! Conclusion of a replay: the memory under each policy, and its accuracy.

use pagelab_model::Order;
use pagelab_model::free_areas::FreeAreas;
use pagelab_model::order_statistics::median;
use pagelab_report::style::format_count;
use pagelab_report::text_report::{TableColumn, TextReport};
use pagelab_sim::policies;

use super::{FreeMemory, PolicyOutcome, ReplayReport};

/// Free memory under a policy at the last sample.
pub fn free_at_end<'a>(report: &ReplayReport, outcome: &'a PolicyOutcome) -> Option<&'a FreeMemory> {
    outcome.free.get(report.samples.len().checked_sub(1)?)
}

/// Free memory at the end by order, and its evaluation.
pub fn write_verdict(output: &mut TextReport, report: &ReplayReport) {
    let order = report.head.pageblock_order;
    let Some(sampled) = report.samples.last() else { return };
    output.add_gap();
    output.add_heading("Free blocks at the last sample");
    let columns = [TableColumn::right("order"), TableColumn::right("the machine")];
    let simulated = report.outcomes.iter().filter_map(|replayed| free_at_end(report, replayed));
    let ends: Vec<&FreeAreas> =
        std::iter::once(&sampled.free).chain(simulated).map(|free| &free.all_zones).collect();
    let blocks = |free: &FreeAreas, of: usize| free.counts().get(of).copied().unwrap_or(0);
    let mut rows: Vec<Vec<String>> = (0..=usize::from(report.head.max_order))
        .map(|of| {
            let blocks = ends.iter().map(|free| format_count(blocks(free, of).into()));
            std::iter::once(of.to_string()).chain(blocks).collect()
        })
        .collect();
    let rooms = ends.iter().map(|free| format_count(free.blocks_suitable(Order(order))));
    rows.push(std::iter::once(format!("room for order {order}")).chain(rooms).collect());
    write_by_policy(output, report, &columns, &rows);
    output.add_gap();
    for line in verdict_lines(report) {
        output.add_text(&line);
    }
}

/// Samples that a verdict needs. Nine of ten are then two samples apart from the worst, so that figure rests
/// on more than one moment; and at the usual ten a second they span two seconds, more than one spill of a
/// per-CPU list, which moves F_u at once.
pub const SAMPLES_MIN: usize = 20;

/// Smallest reported difference of F_u: half of the last digit that is discussed.
const MARGIN_MIN: f64 = 0.001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    TooFewSamples,
    /// The difference is within the error of the replay.
    Indistinguishable,
    /// Of the machine's own policy: closer to the samples than the no-change baseline, or further.
    CloserThanUnchanged,
    FartherThanUnchanged,
    /// For another policy: its F_u is higher or lower than under the policy of the traced kernel.
    HigherIndex,
    LowerIndex,
}

impl Verdict {
    /// Keyword in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::TooFewSamples => "too_few_samples",
            Verdict::Indistinguishable => "indistinguishable",
            Verdict::CloserThanUnchanged => "nearer",
            Verdict::FartherThanUnchanged => "further",
            Verdict::HigherIndex => "higher",
            Verdict::LowerIndex => "lower",
        }
    }
}

/// Result of the policy of the traced kernel, if it was replayed.
fn machine_policy(report: &ReplayReport) -> Option<&PolicyOutcome> {
    let own = policies::name_for_release(&report.head.kernel);
    report.outcomes.iter().find(|replayed| replayed.policy == own)
}

/// Resolution of F_u: the median error of free memory, since F_u is a share of it.
fn index_margin(report: &ReplayReport, machine_outcome: &PolicyOutcome) -> f64 {
    FreeMemoryError::from_outcome(report, machine_outcome).map_or(0.0, |off| off.median).max(MARGIN_MIN)
}

/// Whether the machine's own policy is closer to the samples than the no-change baseline.
pub fn machine_policy_verdict(report: &ReplayReport) -> Option<Verdict> {
    let ours = machine_policy(report)?;
    let (error, unchanged) = (index_error(report, ours.free.iter(), None)?, unchanged_index_error(report)?);
    Some(judge_error(report.samples.len(), error.median, unchanged.median, index_margin(report, ours)))
}

fn judge_error(samples: usize, error: f64, unchanged: f64, margin: f64) -> Verdict {
    match unchanged - error {
        _ if samples < SAMPLES_MIN => Verdict::TooFewSamples,
        gain if gain > margin => Verdict::CloserThanUnchanged,
        gain if gain < -margin => Verdict::FartherThanUnchanged,
        _ => Verdict::Indistinguishable,
    }
}

/// Difference of F_u from the policy of the traced kernel: the largest, and the number of samples at which it
/// exceeds the largest error of the replay.
fn index_difference(
    report: &ReplayReport,
    machine_outcome: &PolicyOutcome,
    outcome: &PolicyOutcome,
    worst: f64,
) -> (f64, usize) {
    let order = report.head.pageblock_order;
    let pairs = machine_outcome.free.iter().zip(&outcome.free);
    let differences = pairs.map(|(ours, other)| other.unusable(order) - ours.unusable(order));
    differences.fold((0.0, 0), |(largest, times), difference| {
        let largest = if difference.abs() > f64::abs(largest) { difference } else { largest };
        (largest, times + usize::from(difference.abs() > worst))
    })
}

/// Memory under a policy compared with that under the machine's own policy. A replay is wrong for moments, so
/// more than one in ten samples must differ.
pub fn policy_verdict(report: &ReplayReport, outcome: &PolicyOutcome) -> Option<Verdict> {
    let ours = machine_policy(report).filter(|ours| ours.policy != outcome.policy)?;
    let worst = index_error(report, ours.free.iter(), None)?.max;
    let (largest, times) = index_difference(report, ours, outcome, worst);
    Some(judge_difference(report.samples.len(), largest, times))
}

fn judge_difference(samples: usize, largest: f64, exceeding: usize) -> Verdict {
    match largest {
        _ if samples < SAMPLES_MIN => Verdict::TooFewSamples,
        _ if exceeding * 10 <= samples => Verdict::Indistinguishable,
        largest if largest > 0.0 => Verdict::HigherIndex,
        _ => Verdict::LowerIndex,
    }
}

/// Accuracy of the policy of the traced kernel, and whether the others differ by more than that.
fn verdict_lines(report: &ReplayReport) -> Vec<String> {
    let own_name = policies::name_for_release(&report.head.kernel);
    let Some(ours) = machine_policy(report) else {
        return vec![format!(
            "{own_name}, the policy of the traced kernel, is not included; hint: add it to judge the \
             accuracy of the others"
        )];
    };
    let (Some(error), Some(unchanged), Some(own)) = (
        index_error(report, ours.free.iter(), None),
        unchanged_index_error(report),
        machine_policy_verdict(report),
    ) else {
        return Vec::new();
    };
    if own == Verdict::TooFewSamples {
        return vec![format!(
            "Too few samples to judge: {} after the snapshot, {SAMPLES_MIN} needed. Record longer, or with a \
             shorter --every",
            report.samples.len()
        )];
    }
    let (is, median, still) =
        (machine_verdict_text(own), format_index(error.median), format_index(unchanged.median));
    let margin = format_index(index_margin(report, ours));
    let mut lines = vec![format!(
        "{own_name}, the policy of the traced kernel, {is} the no-change baseline (median error {median} vs. \
        {still}; differences up to {margin} are within the error of free memory){}",
        if own == Verdict::CloserThanUnchanged { "" } else { ". This trace says little about any policy" }
    )];
    let others = report.outcomes.iter().filter(|replayed| replayed.policy != own_name);
    lines.extend(others.map(|other| policy_verdict_text(report, ours, other, &error)));
    lines
}

fn machine_verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::CloserThanUnchanged => "is closer to the samples than",
        Verdict::FartherThanUnchanged => "is farther from the samples than",
        _ => "is not distinguishable from",
    }
}

/// Comparison of one policy with that of the traced kernel, and the error of the latter.
fn policy_verdict_text(
    report: &ReplayReport,
    machine_outcome: &PolicyOutcome,
    outcome: &PolicyOutcome,
    error: &IndexError,
) -> String {
    let (order, samples, worst) =
        (report.head.pageblock_order, report.samples.len(), format_index(error.max));
    let (largest, times) = index_difference(report, machine_outcome, outcome, error.max);
    let (name, size) = (outcome.policy, format_index(largest.abs()));
    let is = match judge_difference(samples, largest, times) {
        Verdict::HigherIndex => "higher",
        Verdict::LowerIndex => "lower",
        _ if times > 0 => {
            return format!(
                "{name}: F_u({order}) differs by more than the replay error ({worst}) in only {times} of \
                {samples} samples, by up to {size}: no difference is shown"
            );
        }
        _ => {
            return format!(
                "{name}: no difference is shown; F_u({order}) differs by at most {size}, and the replay \
                 error is up to {worst}"
            );
        }
    };
    let rooms = [machine_outcome, outcome]
        .map(|of| free_at_end(report, of).map_or(0, |free| free.all_zones.blocks_suitable(Order(order))));
    format!(
        "{name}: F_u({order}) {is} by up to {size}, and by more than the replay error ({worst}) in {times} \
        of {samples} samples; at the end, room for {} blocks of order {order}, under {} for {}",
        format_count(rooms[1]),
        machine_outcome.policy,
        format_count(rooms[0])
    )
}

/// An error of F_u that a replay should nowhere exceed.
pub const ERROR_TOLERANCE: f64 = 0.1;

/// The error of F_u over all samples.
pub struct IndexError {
    /// The middle one, that which nine of ten do not exceed, and the largest; of |simulated − sampled|.
    pub median: f64,
    pub p90: f64,
    pub max: f64,
    /// Samples with an error of at most 0.1.
    pub within_tolerance: usize,
    /// Time of the largest error.
    pub max_at_ns: u64,
}

/// By how much F_u of the pageblock's order differs; `zone` alone, or all.
pub fn index_error<'a>(
    report: &ReplayReport,
    simulated: impl Iterator<Item = &'a FreeMemory>,
    zone: Option<usize>,
) -> Option<IndexError> {
    let order = Order(report.head.pageblock_order);
    let unusable = |free: &FreeMemory| {
        let areas = zone.map_or(&free.all_zones, |zone| &free.zones[zone]);
        pagelab_metrics::fragmentation_index::unusable_index(areas, order)
    };
    let pairs = report.samples.iter().zip(simulated);
    let mut errors: Vec<(f64, u64)> = pairs
        .map(|(sampled, free)| ((unusable(&sampled.free) - unusable(free)).abs(), sampled.at_ns))
        .collect();
    errors.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
    let at = |share: usize| errors.get((errors.len() * share / 10).min(errors.len() - 1)).map(|of| of.0);
    let (worst, worst_ns) = *errors.last()?;
    let within = errors.iter().filter(|(error, _)| *error <= ERROR_TOLERANCE).count();
    Some(IndexError {
        median: at(5)?,
        p90: at(9)?,
        max: worst,
        within_tolerance: within,
        max_at_ns: worst_ns,
    })
}

/// The same of the no-change baseline: what a replay must be better than.
pub fn unchanged_index_error(report: &ReplayReport) -> Option<IndexError> {
    index_error(report, std::iter::repeat(&report.initial_state), None)
}

/// Relative error of free memory.
#[derive(Clone, Copy)]
pub struct FreeMemoryError {
    /// At the first and the last sample: above 0 where more is free in the simulation.
    pub first: f64,
    pub last: f64,
    /// Median and maximum of the absolute error over all samples.
    pub median: f64,
    pub max: f64,
}

impl FreeMemoryError {
    /// `None` without samples.
    pub fn from_outcome(report: &ReplayReport, outcome: &PolicyOutcome) -> Option<FreeMemoryError> {
        let share = |(theirs, ours): (u128, u128)| (ours as f64 - theirs as f64) / theirs.max(1) as f64;
        let pages = |free: &FreeMemory| free.all_zones.free_pages();
        let pairs = report.samples.iter().zip(&outcome.free);
        let shares: Vec<f64> =
            pairs.map(|(sampled, free)| share((pages(&sampled.free), pages(free)))).collect();
        let mut sizes: Vec<f64> = shares.iter().map(|share| share.abs()).collect();
        Some(FreeMemoryError {
            first: *shares.first()?,
            last: *shares.last()?,
            median: median(&mut sizes)?,
            max: sizes.into_iter().reduce(f64::max)?,
        })
    }
}

/// F_u and its errors as they are shown everywhere.
pub fn format_index(value: f64) -> String {
    format!("{value:.4}")
}

/// A table with a column for each policy: in parts where the terminal is too narrow for all of them.
pub fn write_by_policy(
    output: &mut TextReport,
    report: &ReplayReport,
    fixed: &[TableColumn<'_>],
    rows: &[Vec<String>],
) {
    let (fixed_count, all) = (fixed.len(), report.outcomes.len());
    let write_part = |from: usize, to: usize| {
        let policies = report.outcomes[from..to].iter().map(|of| TableColumn::right(of.policy));
        let columns: Vec<TableColumn<'_>> = fixed.iter().copied().chain(policies).collect();
        let cells = |row: &Vec<String>| {
            let policies = row.iter().skip(fixed_count + from).take(to - from);
            row.iter().take(fixed_count).chain(policies).cloned().collect()
        };
        (columns, rows.iter().map(cells).collect::<Vec<Vec<String>>>())
    };
    let mut from = 0;
    while from < all {
        let fits = |to: &usize| {
            let (columns, rows) = write_part(from, *to);
            output.table_width(2, &columns, &rows) <= output.style().width
        };
        let to = (from + 1..=all).rev().find(fits).unwrap_or(from + 1);
        let (columns, rows) = write_part(from, to);
        if from > 0 {
            output.add_gap();
        }
        output.add_table(2, &columns, &rows);
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_samples_and_a_margin() {
        // One sample that agrees exactly decides nothing, nor does a tie of many.
        assert_eq!(judge_error(1, 0.002, 0.002, 0.001), Verdict::TooFewSamples);
        assert_eq!(judge_error(19, 0.001, 0.9, 0.001), Verdict::TooFewSamples);
        assert_eq!(judge_error(500, 0.002, 0.002, 0.001), Verdict::Indistinguishable);
        assert_eq!(judge_error(500, 0.002, 0.006, 0.005), Verdict::Indistinguishable);
        assert_eq!(judge_error(20, 0.002, 0.009, 0.005), Verdict::CloserThanUnchanged);
        assert_eq!(judge_error(500, 0.006, 0.002, 0.005), Verdict::Indistinguishable);
        assert_eq!(judge_error(500, 0.009, 0.002, 0.005), Verdict::FartherThanUnchanged);
    }

    #[test]
    fn a_policy_differs_where_more_than_moments_do() {
        assert_eq!(judge_difference(19, 0.5, 19), Verdict::TooFewSamples);
        assert_eq!(judge_difference(100, 0.5, 10), Verdict::Indistinguishable);
        assert_eq!(judge_difference(100, 0.5, 11), Verdict::HigherIndex);
        assert_eq!(judge_difference(20, -0.5, 20), Verdict::LowerIndex);
        assert_eq!(judge_difference(20, 0.0, 0), Verdict::Indistinguishable);
    }
}
