//! How many frames a processor fetches and gives back, by release (mm/page_alloc.c: `nr_pcp_alloc`,
//! `nr_pcp_free`, `nr_pcp_high`, `decay_pcp_high`).

use super::{Keep, SMALL};

/// What one batch grows to at most: so many times doubled (`CONFIG_PCP_BATCH_SCALE_MAX`, its default).
const SCALE: u32 = 5;

/// The terms of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// Up to Linux 5.13: a batch is given back at the high mark.
    Batch,
    /// Linux 5.14 to 6.6: each time twice as much is given back, while nothing is allocated between
    /// (`free_factor`).
    Doubling {
        /// Since 5.18: a block of order 1 to 3 that is freed after others were given back empties the lists.
        empties: bool,
    },
    /// Since Linux 6.7: the high mark follows what is fetched and freed (`high_min`, `high_max`), and as much
    /// is given back as was freed in a row (`free_count`).
    Tuned {
        /// Frames up to which the high mark may rise (`high_max`).
        most: u32,
        /// The high watermark of the zone: below it lists are kept short (`ZONE_BELOW_HIGH`).
        mark: u32,
        /// Frames freed in a row from which on blocks of order 1 to 3 empty the lists: a batch; since 6.16
        /// half of the lowest high mark more.
        patience: u32,
    },
}

impl Terms {
    /// The terms of a kernel, by its release (`uname -r`; one that cannot be read counts as new), for lists
    /// with a batch and a lowest high mark in a zone that manages so many frames and has a high watermark.
    pub fn of_release(release: &str, keep: &Keep, managed: u32, mark: u32) -> Terms {
        // `zone_highsize` with a fraction of 8 (MIN_PERCPU_PAGELIST_HIGH_FRACTION).
        let most = (managed / 8 / u32::from(keep.cpus.max(1))).max(keep.high);
        match crate::policies::numbers(release) {
            release if release < (5, 14, 0) => Terms::Batch,
            release if release < (6, 7, 0) => Terms::Doubling { empties: release >= (5, 18, 0) },
            release if release < (6, 16, 0) => Terms::Tuned { most, mark, patience: keep.batch },
            _ => Terms::Tuned { most, mark, patience: keep.batch + keep.high / 2 },
        }
    }
}

/// What is going on in a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Now {
    /// `kswapd` is at work (`ZONE_RECLAIM_ACTIVE`).
    pub is_reclaiming: bool,
    /// A request has found less free than the high watermark (`ZONE_BELOW_HIGH`).
    pub is_low: bool,
}

/// What one processor has done so far, as far as it decides what it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// How often the next batch to give back is doubled (`free_factor`).
    doublings: u8,
    /// The same of the next batch to fetch (`alloc_factor`).
    fetches: u8,
    /// Whether the block that was freed last was of order 1 to 3.
    was_small: bool,
    /// Frames freed in a row; halved with each allocation (`free_count`).
    freed: u32,
    /// The high mark now.
    high: u32,
}

impl Pace {
    pub(super) fn new(keep: &Keep) -> Pace {
        Pace { doublings: 0, fetches: 0, was_small: false, freed: 0, high: keep.high }
    }

    /// Begins with so many frames: what is kept stays below the mark (`free_frozen_page_commit`), so a list
    /// that holds more than the lowest one has a mark that has risen.
    pub(super) fn begin(&mut self, keep: &Keep, frames: u32) {
        if let Terms::Tuned { most, .. } = keep.terms {
            self.high = keep.high.max(frames.saturating_add(1).min(most));
        }
    }

    /// A block is asked for.
    #[inline]
    pub(super) fn asked(&mut self) {
        self.doublings >>= 1;
        self.freed >>= 1;
    }

    /// How many blocks of an order are fetched, by a processor that keeps so many frames.
    pub(super) fn fetch(&mut self, keep: &Keep, now: Now, frames: u32, order: u8) -> u32 {
        let mut batch = keep.batch;
        if let Terms::Tuned { most, .. } = keep.terms {
            if order == 0 {
                batch <<= self.fetches;
            }
            if most > keep.high && !now.is_low {
                self.high = (self.high + batch).min(most);
            }
            if order == 0 {
                let room = self.high.saturating_sub(frames).saturating_sub(keep.batch).max(keep.batch);
                if batch <= room && u32::from(self.fetches) < SCALE {
                    self.fetches += 1;
                }
                batch = batch.min(room);
            }
        }
        match order {
            0 => batch,
            _ if batch == 1 && keep.terms != Terms::Batch => 1,
            order => (batch >> order).max(2),
        }
    }

    /// How many frames go back after a block of an order was freed; the processor keeps `frames` with it.
    #[inline(always)]
    pub(super) fn freed(&mut self, keep: &Keep, now: Now, frames: u32, order: u8) -> Option<u32> {
        match keep.terms {
            Terms::Batch => (frames >= keep.high).then_some(keep.batch),
            Terms::Doubling { empties } => self.doubled(keep, now, frames, empties && is_small(order)),
            Terms::Tuned { .. } => self.tuned(keep, now, frames, order),
        }
    }

    #[inline(always)]
    fn doubled(&mut self, keep: &Keep, now: Now, frames: u32, may_empty: bool) -> Option<u32> {
        if may_empty && self.doublings > 0 {
            return Some(frames);
        }
        let high = if now.is_reclaiming { keep.high.min(4 * keep.batch) } else { keep.high };
        if frames < high {
            return None;
        }
        let most = high - keep.batch;
        let wanted = u64::from(keep.batch) << self.doublings;
        if wanted < u64::from(most) {
            self.doublings += 1;
        }
        Some(wanted.min(most.into()) as u32)
    }

    #[inline(always)]
    fn tuned(&mut self, keep: &Keep, now: Now, frames: u32, order: u8) -> Option<u32> {
        let Terms::Tuned { most, patience, .. } = keep.terms else { return None };
        self.fetches >>= 1;
        let empties = is_small(order) && self.was_small && self.freed >= patience && frames >= keep.batch;
        self.was_small = is_small(order);
        if self.freed < keep.batch << SCALE {
            self.freed += 1 << order;
        }
        if empties {
            self.high = self.high.saturating_sub(keep.batch << SCALE).max(keep.high);
            return Some(frames.min(keep.batch << SCALE));
        }
        let lower = |high: u32| high.saturating_sub(self.freed.max(keep.batch)).max(keep.high);
        let mut high = self.high;
        if now.is_reclaiming {
            self.high = lower(high);
            high = self.high.min(4 * keep.batch);
        } else if most > keep.high && now.is_low {
            self.high = lower(high);
            high = frames.max(keep.high);
        } else if most > keep.high && frames >= high {
            self.high = high.max((self.freed + keep.batch).min(most));
        }
        (frames >= high).then(|| self.freed.max(keep.batch).min(high - keep.batch))
    }

    /// Time passes: the high mark sinks, and what lies above it goes back (each second, by `vmstat_update`).
    /// Returns how many frames.
    pub(super) fn decay(&mut self, keep: &Keep, frames: u32) -> u32 {
        if !matches!(keep.terms, Terms::Tuned { .. }) {
            return 0;
        }
        let least = frames.saturating_sub(keep.batch << SCALE).max(keep.high);
        if self.high > keep.high {
            self.high = (self.high - (self.high >> 3)).max(least);
        }
        frames.saturating_sub(self.high)
    }
}

/// Whether blocks of an order are kept and larger than a frame, but not of a pageblock.
#[inline]
fn is_small(order: u8) -> bool {
    (1..=SMALL).contains(&order)
}
