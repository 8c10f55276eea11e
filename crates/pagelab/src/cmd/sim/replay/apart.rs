//! How far a replay is from what the kernel said.

use pagelab_model::Order;

use super::{Free, Replayed, Told};

/// An error of F_u that a replay should nowhere exceed.
pub(super) const TENTH: f64 = 0.1;

/// The error of F_u over all samples.
pub(super) struct Apart {
    /// The middle one, that which nine of ten do not exceed, and the largest; of |simulated − sampled|.
    pub median: f64,
    pub nine_of_ten: f64,
    pub worst: f64,
    /// Samples at which it is no more than a tenth.
    pub within: usize,
    /// When the largest was.
    pub worst_ns: u64,
}

/// By how much F_u of the pageblock's order differs; `zone` alone, or all.
pub(super) fn apart<'a>(
    told: &Told,
    simulated: impl Iterator<Item = &'a Free>,
    zone: Option<usize>,
) -> Option<Apart> {
    let order = Order(told.head.block_order);
    let unusable = |free: &Free| {
        let areas = zone.map_or(&free.all, |zone| &free.zones[zone]);
        pagelab_metrics::frag::unusable(areas, order)
    };
    let pairs = told.sampled.iter().zip(simulated);
    let mut errors: Vec<(f64, u64)> = pairs
        .map(|(sampled, free)| ((unusable(&sampled.free) - unusable(free)).abs(), sampled.at_ns))
        .collect();
    errors.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
    let at = |share: usize| errors.get((errors.len() * share / 10).min(errors.len() - 1)).map(|of| of.0);
    let (worst, worst_ns) = *errors.last()?;
    let within = errors.iter().filter(|(error, _)| *error <= TENTH).count();
    Some(Apart { median: at(5)?, nine_of_ten: at(9)?, worst, within, worst_ns })
}

/// The same of a memory that nothing happens to: what a replay must be better than.
pub(super) fn apart_unchanged(told: &Told) -> Option<Apart> {
    apart(told, std::iter::repeat(&told.begin), None)
}

/// How far free memory is off, as shares of what the kernel said.
#[derive(Clone, Copy)]
pub(super) struct FreeApart {
    /// At the first and the last sample: above 0 where more is free in the simulation.
    pub first: f64,
    pub last: f64,
    /// The middle one and the largest over all samples, without sign.
    pub median: f64,
    pub worst: f64,
}

impl FreeApart {
    /// `None` without a sample.
    pub fn of(told: &Told, replayed: &Replayed) -> Option<FreeApart> {
        let share = |(theirs, ours): (u128, u128)| (ours as f64 - theirs as f64) / theirs.max(1) as f64;
        let pages = |free: &Free| free.all.free_pages();
        let pairs = told.sampled.iter().zip(&replayed.free);
        let shares: Vec<f64> =
            pairs.map(|(sampled, free)| share((pages(&sampled.free), pages(free)))).collect();
        let mut sizes: Vec<f64> = shares.iter().map(|share| share.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        Some(FreeApart {
            first: *shares.first()?,
            last: *shares.last()?,
            median: *sizes.get(sizes.len() / 2)?,
            worst: *sizes.last()?,
        })
    }
}
