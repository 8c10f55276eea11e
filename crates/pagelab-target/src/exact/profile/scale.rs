//! Counts of stretches, scaled to the whole run.

use pagelab_model::profile::{ImageProfile, Stretches, WhatIfRegion};
use pagelab_tlb::engine::layout::thread;

use super::super::read::Image;

/// How many accesses stand for how many that were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    all: u64,
    counted: u64,
}

impl Factor {
    /// That of an image, over its threads.
    pub fn of(image: &Image) -> Factor {
        let sum = |field: u64| image.threads.iter().map(|words| words[field as usize]).sum::<u64>();
        let counted = sum(thread::ACCESSES);
        Factor { all: counted.saturating_add(sum(thread::SKIPPED)), counted }
    }

    /// A count in the stretches as one of the whole run, rounded.
    pub fn scaled(self, count: u64) -> u64 {
        if self.counted == 0 || self.all == self.counted {
            return count;
        }
        let scaled = u128::from(count) * u128::from(self.all) + u128::from(self.counted / 2);
        u64::try_from(scaled / u128::from(self.counted)).unwrap_or(u64::MAX)
    }

    /// All counts of an image. Its accesses are all that there were.
    pub fn apply(self, image: &mut ImageProfile) {
        image.accesses = Some(self.all);
        image.misses = self.scaled(image.misses);
        for mapping in &mut image.mappings {
            let cells = &mut mapping.cells;
            let walks = mapping.reuse.counts.iter_mut().flatten().map(|(_, count)| count);
            for count in cells.misses.iter_mut().chain(&mut cells.accesses).chain(walks) {
                *count = self.scaled(*count);
            }
        }
    }

    /// Those of regions.
    pub fn apply_to(self, regions: &mut [WhatIfRegion]) {
        regions.iter_mut().for_each(|region| region.misses = self.scaled(region.misses));
    }
}

/// What the counts of all images rest on. The stretches of a run are a sample of it: the error is that of the
/// mean of their misses.
pub fn stretches(images: &[Image]) -> Stretches {
    let threads = || images.iter().flat_map(|image| &image.threads);
    let sum = |field: u64| threads().map(|words| words[field as usize]).sum::<u64>();
    let squares: f64 = threads().map(|words| f64::from_bits(words[thread::WINDOW_SQUARES as usize])).sum();
    let (count, counted) = (sum(thread::WINDOWS), sum(thread::ACCESSES));
    let accesses = counted.saturating_add(sum(thread::SKIPPED));
    let error_permille = error_permille(count, sum(thread::WINDOW_WALKS) as f64, squares);
    Stretches { count, counted, accesses, error_permille }
}

/// From the number of stretches, the sum of their misses, and that of the squares.
fn error_permille(count: u64, sum: f64, squares: f64) -> Option<u32> {
    if count < Stretches::FEWEST || sum <= 0.0 {
        return None;
    }
    let number = count as f64;
    let mean = sum / number;
    let variance = (squares - number * mean * mean).max(0.0) / (number - 1.0);
    // Student's quantile of 97.5 % within 3 % from 4 degrees of freedom on.
    let freedom = number - 1.0;
    let quantile = 1.96 + 2.4 / freedom + 3.2 / (freedom * freedom);
    Some((quantile * (variance / number).sqrt() / mean * 1000.0).ceil() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_stands_for_its_share_and_all_for_itself() {
        let part = Factor { all: 1000, counted: 20 };
        assert_eq!([0, 1, 7].map(|count| part.scaled(count)), [0, 50, 350]);
        assert_eq!(Factor { all: 10, counted: 3 }.scaled(2), 7, "6.67 is rounded");
        assert_eq!(Factor { all: 20, counted: 20 }.scaled(7), 7);
        assert_eq!(Factor { all: 20, counted: 0 }.scaled(7), 7, "nothing was counted");
    }

    #[test]
    fn the_error_is_that_of_the_mean_of_the_stretches() {
        // Mean 10, standard deviation 2.449 of 7; the quantile for 6 degrees of freedom is 2.447.
        let walks = [7.0, 8.0, 9.0, 9.0, 11.0, 12.0, 14.0];
        let squares: f64 = walks.iter().map(|walks| walks * walks).sum();
        let error = error_permille(7, 70.0, squares).unwrap();
        assert!((220..=235).contains(&error), "{error}");
        assert_eq!(error_permille(7, 70.0, 700.0), Some(0), "all alike");
        assert_eq!(error_permille(4, 40.0, 420.0), None, "too few");
        assert_eq!(error_permille(9, 0.0, 0.0), None, "no miss");
        for (number, known) in [(5u64, 2.776), (10, 2.262), (30, 2.045), (1000, 1.962)] {
            let freedom = number as f64 - 1.0;
            let ours = 1.96 + 2.4 / freedom + 3.2 / (freedom * freedom);
            assert!((ours / known - 1.0f64).abs() < 0.03, "{number}: {ours} for {known}");
        }
    }
}
