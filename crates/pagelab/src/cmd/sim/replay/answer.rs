//! What the replay comes to: the memory that each policy leaves, and how far that is to be trusted.

use pagelab_model::Order;
use pagelab_model::free_areas::FreeAreas;
use pagelab_report::style::count;
use pagelab_report::text::{Column, Page};
use pagelab_sim::policies;

use super::show::{apart, apart_unchanged};
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
    let mut columns = vec![Column::right("order"), Column::right("the machine")];
    columns.extend(told.replayed.iter().map(|replayed| Column::right(replayed.policy)));
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
    page.table(2, &columns, &rows);
    for line in verdict(told) {
        page.hanging("", &line);
    }
}

/// How near the machine's own policy comes to the machine, and whether the others differ by more than that.
fn verdict(told: &Told) -> Vec<String> {
    let order = told.head.block_order;
    let own = policies::of_release(&told.head.kernel);
    let Some(ours) = told.replayed.iter().find(|replayed| replayed.policy == own) else {
        return vec![format!(
            "{own}, the policy of the traced kernel, is not among these: with it you would see how far to \
             trust the others"
        )];
    };
    let (Some(error), Some(unchanged)) = (apart(told, ours.free.iter(), None), apart_unchanged(told)) else {
        return Vec::new();
    };
    let near = if error.median <= unchanged.median { "nearer to" } else { "further from" };
    let mut lines = vec![format!(
        "{own}, the policy of the traced kernel, is {near} the samples than a memory that nothing happens to \
         ({:.3} and {:.3} in the middle){}",
        error.median,
        unchanged.median,
        if near == "nearer to" { "" } else { ": this trace tells little of any policy" }
    )];
    for replayed in told.replayed.iter().filter(|replayed| replayed.policy != own) {
        lines.push(beside(told, ours, replayed, error.worst, order));
    }
    lines
}

/// One policy beside the machine's own, which is off by up to `error`.
fn beside(told: &Told, ours: &Replayed, other: &Replayed, error: f64, order: u8) -> String {
    let unusable = |free: &Free| pagelab_metrics::frag::unusable(&free.all, Order(order));
    let pairs = ours.free.iter().zip(&other.free);
    let largest = pairs
        .map(|(ours, other)| unusable(other) - unusable(ours))
        .max_by(|one, other| one.abs().total_cmp(&other.abs()))
        .unwrap_or(0.0);
    if largest.abs() <= error {
        return format!(
            "{}: not told apart from it; F_u({order}) differs by {:.3} at most, and the replay is off by up \
             to {error:.3}",
            other.policy,
            largest.abs()
        );
    }
    let rooms = [ours, other]
        .map(|of| at_end(told, of).map_or(0, |(_, free)| free.all.blocks_suitable(Order(order))));
    format!(
        "{}: F_u({order}) {} by up to {:.3}, more than the replay is off ({error:.3}); at the end room for \
         {} blocks of order {order}, under {} for {}",
        other.policy,
        if largest > 0.0 { "higher" } else { "lower" },
        largest.abs(),
        count(rooms[1]),
        ours.policy,
        count(rooms[0])
    )
}
