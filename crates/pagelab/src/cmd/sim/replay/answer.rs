//! What the replay comes to: the memory that each policy leaves, and how far that is to be trusted.

use pagelab_model::Order;
use pagelab_model::free_areas::FreeAreas;
use pagelab_report::style::count;
use pagelab_report::text::{Column, Page};
use pagelab_sim::policies;

use super::apart::{Apart, FreeApart, apart, apart_unchanged};
use super::show::{by_policy, four};
use super::{Free, Replayed, Told};

/// Blocks that are free at the last sample, of each order: as the machine had them, and under each policy.
pub(super) fn at_end<'a>(told: &'a Told, replayed: &'a Replayed) -> Option<(&'a Free, &'a Free)> {
    Some((&told.sampled.last()?.free, replayed.free.get(told.sampled.len() - 1)?))
}

/// Free memory at the end by order, and what that tells.
pub(super) fn show(page: &mut Page, told: &Told) {
    let order = told.head.block_order;
    let Some(sampled) = told.sampled.last() else { return };
    page.gap();
    page.heading("Free blocks at the last sample");
    let columns = [Column::right("order"), Column::right("the machine")];
    let ends: Vec<&FreeAreas> = std::iter::once(&sampled.free.all)
        .chain(told.replayed.iter().filter_map(|replayed| Some(&at_end(told, replayed)?.1.all)))
        .collect();
    let blocks = |free: &FreeAreas, of: usize| free.counts().get(of).copied().unwrap_or(0);
    let mut rows: Vec<Vec<String>> = (0..=usize::from(told.head.max_order))
        .map(|of| {
            let blocks = ends.iter().map(|free| count(blocks(free, of).into()));
            std::iter::once(of.to_string()).chain(blocks).collect()
        })
        .collect();
    let rooms = ends.iter().map(|free| count(free.blocks_suitable(Order(order))));
    rows.push(std::iter::once(format!("room for order {order}")).chain(rooms).collect());
    by_policy(page, told, &columns, &rows);
    page.gap();
    for line in verdict(told) {
        page.hanging("", &line);
    }
}

/// Samples that a verdict needs. Nine of ten are then two samples apart from the worst, so that figure rests
/// on more than one moment; and at the usual ten a second they span two seconds, more than one spill of a
/// per-CPU list, which moves F_u at once.
pub(super) const SAMPLES_LEAST: usize = 20;

/// A difference of F_u that is never told: half of the last digit that is discussed.
const MARGIN_LEAST: f64 = 0.001;

/// What can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Too few samples for any.
    TooFew,
    /// The difference is no larger than what the replay cannot tell.
    NotToldApart,
    /// Of the machine's own policy: nearer to the samples than a memory that nothing happens to, or further.
    Nearer,
    Further,
    /// Of another policy: its F_u is higher than under the machine's own, or lower.
    Higher,
    Lower,
}

impl Verdict {
    /// Its word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::TooFew => "too_few_samples",
            Verdict::NotToldApart => "not_told_apart",
            Verdict::Nearer => "nearer",
            Verdict::Further => "further",
            Verdict::Higher => "higher",
            Verdict::Lower => "lower",
        }
    }
}

/// The machine's own policy, if it was replayed.
fn ours(told: &Told) -> Option<&Replayed> {
    let own = policies::of_release(&told.head.kernel);
    told.replayed.iter().find(|replayed| replayed.policy == own)
}

/// What F_u cannot tell: free memory itself is off by so much in the middle, and F_u is a share of it.
fn margin(told: &Told, ours: &Replayed) -> f64 {
    FreeApart::of(told, ours).map_or(0.0, |off| off.median).max(MARGIN_LEAST)
}

/// Whether the machine's own policy comes nearer to the samples than a memory that nothing happens to.
pub(super) fn own(told: &Told) -> Option<Verdict> {
    let ours = ours(told)?;
    let (error, unchanged) = (apart(told, ours.free.iter(), None)?, apart_unchanged(told)?);
    Some(judged(told.sampled.len(), error.median, unchanged.median, margin(told, ours)))
}

fn judged(samples: usize, error: f64, unchanged: f64, margin: f64) -> Verdict {
    match unchanged - error {
        _ if samples < SAMPLES_LEAST => Verdict::TooFew,
        gain if gain > margin => Verdict::Nearer,
        gain if gain < -margin => Verdict::Further,
        _ => Verdict::NotToldApart,
    }
}

/// How F_u of a policy differs from that of the machine's own: the largest difference, and at how many
/// samples it is more than the replay is off at worst.
fn difference(told: &Told, ours: &Replayed, other: &Replayed, worst: f64) -> (f64, usize) {
    let order = told.head.block_order;
    let pairs = ours.free.iter().zip(&other.free);
    let differences = pairs.map(|(ours, other)| other.unusable(order) - ours.unusable(order));
    differences.fold((0.0, 0), |(largest, times), difference| {
        let largest = if difference.abs() > f64::abs(largest) { difference } else { largest };
        (largest, times + usize::from(difference.abs() > worst))
    })
}

/// What a policy's memory is beside that of the machine's own policy. A replay goes wrong for moments, so
/// more than one in ten samples must differ.
pub(super) fn beside_own(told: &Told, other: &Replayed) -> Option<Verdict> {
    let ours = ours(told).filter(|ours| ours.policy != other.policy)?;
    let worst = apart(told, ours.free.iter(), None)?.worst;
    let (largest, times) = difference(told, ours, other, worst);
    Some(differs(told.sampled.len(), largest, times))
}

fn differs(samples: usize, largest: f64, times: usize) -> Verdict {
    match largest {
        _ if samples < SAMPLES_LEAST => Verdict::TooFew,
        _ if times * 10 <= samples => Verdict::NotToldApart,
        largest if largest > 0.0 => Verdict::Higher,
        _ => Verdict::Lower,
    }
}

/// How near the machine's own policy comes to the machine, and whether the others differ by more than that.
fn verdict(told: &Told) -> Vec<String> {
    let own_name = policies::of_release(&told.head.kernel);
    let Some(ours) = ours(told) else {
        return vec![format!(
            "{own_name}, the policy of the traced kernel, is not among these: with it you would see how far \
             to trust the others"
        )];
    };
    let (Some(error), Some(unchanged), Some(own)) =
        (apart(told, ours.free.iter(), None), apart_unchanged(told), own(told))
    else {
        return Vec::new();
    };
    if own == Verdict::TooFew {
        return vec![format!(
            "Too few samples to judge: {} behind the snapshot, and {SAMPLES_LEAST} are needed. Record for \
             longer, or with a shorter --every",
            told.sampled.len()
        )];
    }
    let (is, median, still) = (told_of(own), four(error.median), four(unchanged.median));
    let margin = four(margin(told, ours));
    let mut lines = vec![format!(
        "{own_name}, the policy of the traced kernel, {is} a memory that nothing happens to ({median} and \
         {still} in the middle; {margin} apart is nothing: so far is free memory off){}",
        if own == Verdict::Nearer { "" } else { ". This trace tells little of any policy" }
    )];
    let others = told.replayed.iter().filter(|replayed| replayed.policy != own_name);
    lines.extend(others.map(|other| beside(told, ours, other, &error)));
    lines
}

fn told_of(own: Verdict) -> &'static str {
    match own {
        Verdict::Nearer => "is nearer to the samples than",
        Verdict::Further => "is further from the samples than",
        _ => "is not told apart from",
    }
}

/// One policy beside the machine's own, and the error of that.
fn beside(told: &Told, ours: &Replayed, other: &Replayed, error: &Apart) -> String {
    let (order, samples, worst) = (told.head.block_order, told.sampled.len(), four(error.worst));
    let (largest, times) = difference(told, ours, other, error.worst);
    let (name, size) = (other.policy, four(largest.abs()));
    let is = match differs(samples, largest, times) {
        Verdict::Higher => "higher",
        Verdict::Lower => "lower",
        _ if times > 0 => {
            return format!(
                "{name}: not told apart from it but for moments; F_u({order}) differs by up to {size}, by \
                 more than the replay is off ({worst}) at {times} of {samples} samples"
            );
        }
        _ => {
            return format!(
                "{name}: not told apart from it; F_u({order}) differs by {size} at most, and the replay is \
                 off by up to {worst}"
            );
        }
    };
    let rooms = [ours, other]
        .map(|of| at_end(told, of).map_or(0, |(_, free)| free.all.blocks_suitable(Order(order))));
    format!(
        "{name}: F_u({order}) {is} by up to {size}, by more than the replay is off ({worst}) at {times} of \
         {samples} samples; at the end room for {} blocks of order {order}, under {} for {}",
        count(rooms[1]),
        ours.policy,
        count(rooms[0])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_samples_and_a_margin() {
        // One sample that agrees to the last digit says nothing, and neither does a tie of many.
        assert_eq!(judged(1, 0.002, 0.002, 0.001), Verdict::TooFew);
        assert_eq!(judged(19, 0.001, 0.9, 0.001), Verdict::TooFew);
        assert_eq!(judged(500, 0.002, 0.002, 0.001), Verdict::NotToldApart);
        assert_eq!(judged(500, 0.002, 0.006, 0.005), Verdict::NotToldApart);
        assert_eq!(judged(20, 0.002, 0.009, 0.005), Verdict::Nearer);
        assert_eq!(judged(500, 0.006, 0.002, 0.005), Verdict::NotToldApart);
        assert_eq!(judged(500, 0.009, 0.002, 0.005), Verdict::Further);
    }

    #[test]
    fn a_policy_differs_where_more_than_moments_do() {
        assert_eq!(differs(19, 0.5, 19), Verdict::TooFew);
        assert_eq!(differs(100, 0.5, 10), Verdict::NotToldApart);
        assert_eq!(differs(100, 0.5, 11), Verdict::Higher);
        assert_eq!(differs(20, -0.5, 20), Verdict::Lower);
        assert_eq!(differs(20, 0.0, 0), Verdict::NotToldApart);
    }
}
