//! Error of the total of the walks: how far it changes when a block of consecutive turns is left out.
//!
//! Sweeps of one turn see one moment of the program, and neighbouring turns see similar ones, so their counts
//! are not independent: errors that follow from the number of pages and of sweeps are too small for a program
//! with phases, and too large for an even one. The delete-a-group jackknife takes the spread from the data.
//! The spread of the blocks contains the draws of pages and the moments of sweeps, so neither is added again.

use super::estimate::{AccessSamples, ERROR_MAX, combined_error};

/// There are at most this many blocks of turns (log2), and at least half as many once there are that many
/// turns.
const BLOCKS_MAX_LOG2: u32 = 4;

/// Fewer blocks have no usable spread.
const BLOCKS_MIN: usize = 4;

/// Correlation of neighbouring blocks that is allowed for, at most.
const CORRELATION_MAX: f64 = 0.5;

/// log2 of the turns in a block, if this turn is the last one so far; turns count from 0.
pub fn block_shift(turn: u64) -> u32 {
    (u64::BITS - turn.leading_zeros()).saturating_sub(BLOCKS_MAX_LOG2)
}

/// The sweeps of an image by blocks of turns.
#[derive(Clone, Debug, Default)]
pub struct TurnCounts {
    sweeps: Vec<u32>,
    shift: u32,
    /// Turns with a sweep.
    turns: u64,
    last_turn: Option<u64>,
}

impl TurnCounts {
    /// Adds a sweep of a turn; turns do not descend.
    pub fn add_sweep(&mut self, turn: u64) {
        let shift = block_shift(turn);
        while self.shift < shift {
            self.sweeps = self.sweeps.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.shift += 1;
        }
        let block = (turn >> self.shift) as usize;
        self.sweeps.resize(self.sweeps.len().max(block + 1), 0);
        self.sweeps[block] += 1;
        self.turns += u64::from(self.last_turn.replace(turn) != Some(turn));
    }

    /// Turns in which there was a sweep.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    fn all_sweeps(&self) -> f64 {
        self.sweeps.iter().map(|&sweeps| f64::from(sweeps)).sum()
    }
}

/// The walks of a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionWalks {
    /// Walks in the program's time.
    pub walks: u64,
    /// Relative standard error of its rate: of the draws alone.
    pub draw_error: f64,
    /// Relative standard error of its part of all walks: what all regions share moves none past another.
    pub share_error: f64,
}

/// What the sweeps of an image tell of its walks.
#[derive(Clone, Debug, Default)]
pub struct SweptTotal {
    /// The regions that were found accessed.
    pub regions: Vec<RegionWalks>,
    /// Relative standard error of the sum, and the number of blocks of turns that it is from; `None`: there
    /// are too few of them.
    pub block_error: Option<(f64, u32)>,
    /// Turns with a sweep.
    pub turns: u64,
    /// Walks of regions in which scans cannot tell how often a page was walked.
    pub saturated_walks: u64,
}

impl SweptTotal {
    /// Estimates the walks in so much time.
    pub fn from_samples<'s>(
        samples: impl Iterator<Item = &'s AccessSamples>,
        counts: &TurnCounts,
        time_ns: u64,
    ) -> SweptTotal {
        let mut total = SweptTotal { turns: counts.turns(), ..SweptTotal::default() };
        let (all_sweeps, blocks) = (counts.all_sweeps().max(1.0), counts.sweeps.len());
        let (mut sum, mut sums_without) = (0.0, vec![0.0; blocks]);
        let mut rates = Vec::new();
        for of in samples.filter(|samples| samples.was_accessed()) {
            let rate = of.summed_rate() / all_sweeps;
            let mut without = of.rates_without_blocks(counts.shift, blocks as u16);
            for (value, sweeps) in without.iter_mut().zip(&counts.sweeps) {
                *value /= (all_sweeps - f64::from(*sweeps)).max(1.0);
            }
            sums_without.iter_mut().zip(&without).for_each(|(sum, value)| *sum += value);
            sum += rate;
            let walks = (rate * time_ns as f64) as u64;
            total.saturated_walks += if of.is_saturated() { walks } else { 0 };
            total.regions.push(RegionWalks { walks, draw_error: of.relative_error(), share_error: 0.0 });
            rates.push((rate, without));
        }
        total.block_error = jackknife_error(sum, &sums_without, &counts.sweeps);
        for (region, (rate, without)) in total.regions.iter_mut().zip(rates) {
            let shares: Vec<f64> = without
                .iter()
                .zip(&sums_without)
                .map(|(value, sum)| value / sum.max(f64::MIN_POSITIVE))
                .collect();
            let spread = jackknife_error(rate / sum, &shares, &counts.sweeps);
            region.share_error = spread.map_or(region.draw_error, |(error, _)| error.max(region.draw_error));
        }
        total
    }

    /// The sum of the walks.
    pub fn walks(&self) -> u64 {
        self.regions.iter().map(|region| region.walks).sum()
    }

    /// Relative standard error of the sum. With too few blocks, the errors of the regions do not cancel out,
    /// and each turn alone may be off by as much as it says. `None` without a turn.
    fn error(&self) -> Option<f64> {
        let regions = || self.regions.iter().map(|region| (region.walks, region.draw_error));
        let by_draws = || combined_error(self.turns, regions(), std::iter::empty());
        self.block_error.map(|(error, _)| error).or_else(by_draws)
    }
}

/// The error of all walks of a profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TotalError {
    /// Relative standard error.
    pub relative: f64,
    /// Blocks of turns that most of it is from, if it is from such.
    pub blocks: Option<u32>,
}

/// The error of the walks that sweeps of each image saw and of those in regions whose entries were dropped
/// (walks and relative error of each, and the number of scans). `None` without a sweep or a scan.
///
/// Images of one program have their phases together, so their errors do not cancel out. Runs of dropped
/// entries are drawn in each region by itself, so they do.
pub fn total_error(
    swept: &[SweptTotal],
    scan_count: u64,
    scanned: impl Iterator<Item = (u64, f64)>,
) -> Option<TotalError> {
    let turns: u64 = swept.iter().map(|total| total.turns).sum();
    let mut scanned_walks = 0;
    let scanned: Vec<(u64, f64)> = scanned.inspect(|(walks, _)| scanned_walks += walks).collect();
    let scan_error = combined_error(scan_count, std::iter::empty(), scanned.into_iter());
    let swept_walks: u64 = swept.iter().map(SweptTotal::walks).sum();
    if turns + scan_count == 0 {
        return None;
    }
    if swept_walks + scanned_walks == 0 {
        return Some(TotalError { relative: ((turns + scan_count) as f64).sqrt().recip(), blocks: None });
    }
    let sweep_errors = swept.iter().filter_map(|total| Some(total.walks() as f64 * total.error()?));
    let scan_walks_error: f64 = scan_error.iter().map(|error| scanned_walks as f64 * error).sum();
    let all = (swept_walks + scanned_walks) as f64;
    let relative = sweep_errors.sum::<f64>().hypot(scan_walks_error) / all;
    let main = swept.iter().max_by_key(|total| total.walks()).filter(|_| swept_walks >= scanned_walks);
    Some(TotalError { relative, blocks: main.and_then(|total| Some(total.block_error?.1)) })
}

/// Relative standard error of an estimate from its values without each block of these sizes, and the number
/// of blocks: the jackknife for blocks of different sizes (Busing, Meijer and van der Leeden, 1999), of the
/// logarithm. Blocks may still be correlated with their neighbours, which widens it. `None` for fewer than
/// [`BLOCKS_MIN`] blocks.
fn jackknife_error(all: f64, without: &[f64], sizes: &[u32]) -> Option<(f64, u32)> {
    let blocks: Vec<(f64, f64)> = without
        .iter()
        .zip(sizes)
        .filter(|(_, size)| **size > 0)
        .map(|(value, size)| (*value, f64::from(*size)))
        .collect();
    let count = blocks.len();
    if count < BLOCKS_MIN || all <= 0.0 {
        return None;
    }
    if blocks.iter().any(|(value, _)| *value <= 0.0) {
        return Some((ERROR_MAX, count as u32));
    }
    let size_sum: f64 = blocks.iter().map(|(_, size)| size).sum();
    let pseudo_value = |(value, size): &(f64, f64)| {
        let inverse_share = size_sum / size;
        inverse_share * all.ln() - (inverse_share - 1.0) * value.ln()
    };
    let mean: f64 = blocks.iter().map(|block| block.1 / size_sum * pseudo_value(block)).sum();
    let deviations: Vec<f64> =
        blocks.iter().map(|block| (pseudo_value(block) - mean) / (size_sum / block.1 - 1.0).sqrt()).collect();
    let squares: f64 = deviations.iter().map(|deviation| deviation * deviation).sum();
    let products: f64 = deviations.windows(2).map(|pair| pair[0] * pair[1]).sum();
    // Of independent blocks, deviations from their own mean have this correlation less.
    let bias = (count as f64).recip();
    let correlation = (products / squares.max(f64::MIN_POSITIVE) + bias).clamp(0.0, CORRELATION_MAX);
    let variance = squares / count as f64 * (1.0 + 2.0 * correlation);
    Some((variance.sqrt().min(ERROR_MAX), count as u32))
}

#[cfg(test)]
mod tests;
