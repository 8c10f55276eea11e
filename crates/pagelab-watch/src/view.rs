//! State of the view and its changes by keys, for a live machine and for a recording.

use pagelab_metrics::fragmentation_index;
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::run::ClockReading;
use pagelab_model::{Absence, FreeAreas, Order, PageSize, Pages, Reading};

use super::keys::{Key, KeyResponse};
use super::sample::{Counter, Sample, SampleHistory};

#[derive(Clone, Debug)]
pub struct ViewInfo {
    /// Host name, or empty.
    pub host: String,
    /// Kernel release, or empty.
    pub kernel: String,
    pub page_size: PageSize,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// The time from which samples count.
    pub started: ClockReading,
    /// Managed pages of zones, if known.
    pub zone_sizes: Vec<(ZoneKey, Pages)>,
}

/// Source of the samples, and its state.
#[derive(Clone, Debug)]
pub enum FeedState {
    Live {
        /// Nanoseconds between samples.
        every_ns: u64,
        /// Whether the screen is paused; sampling continues.
        paused: bool,
        /// Samples missed because the machine or the terminal was too slow.
        missed: u64,
    },
    Replay {
        playing: bool,
        /// Recorded seconds in one second.
        speed: u64,
        /// Index of the current reading, from 0.
        position: usize,
        count: usize,
        /// Typical nanoseconds between readings.
        every_ns: u64,
        /// Remark on the recording at this position: an event near this reading, or its end.
        remark: String,
    },
}

/// The modes of transparent huge pages, one keyword each.
#[derive(Clone, Debug)]
pub struct ThpModes {
    /// Memory that uses them: `always`, `madvise`, `never`.
    pub enabled: Reading<String>,
    /// Effort of a fault.
    pub defrag: Reading<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateKind {
    /// Growth per second between the last two samples.
    PerSecond,
    /// Growth since the start of the watch or of the recording.
    SinceStart,
}

/// Quantity with a chart over time.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// F_u of one zone at one order.
    Unusable(ZoneKey, Order),
    /// Huge pages of a zone that can be allocated now.
    HugeNow(ZoneKey),
    Available,
    /// Share of time in which some task waited for memory, in percent.
    SomePressure,
    Rate(Counter),
}

#[derive(Clone, Debug)]
pub struct View {
    pub about: ViewInfo,
    pub feed: FeedState,
    /// The samples up to the current one.
    pub history: SampleHistory,
    pub first_sample: Option<Sample>,
    pub modes: ThpModes,
    /// Reason why events of external fragmentation are not counted, if so.
    pub extfrag_absent: Option<Absence>,
    pub zone: Option<ZoneKey>,
    /// The first listed order if not all fit.
    pub orders_from: usize,
    pub rates: RateKind,
    /// Binary logarithm of the samples in one mark of a curve.
    pub zoom_log2: u32,
    pub is_help_shown: bool,
    /// The last failure, until it is resolved.
    pub last_failure: Option<String>,
}

impl View {
    /// The largest zoom: 64 samples in one mark.
    pub const ZOOM_MAX: u32 = 6;

    /// Orders that fit on every full screen, which limits scrolling.
    const ORDERS_MIN: usize = 11;

    pub fn new(about: ViewInfo, feed: FeedState, modes: ThpModes) -> View {
        View {
            about,
            feed,
            history: SampleHistory::default(),
            first_sample: None,
            modes,
            extfrag_absent: None,
            zone: None,
            orders_from: 0,
            rates: RateKind::PerSecond,
            zoom_log2: 0,
            is_help_shown: false,
            last_failure: None,
        }
    }

    /// Shows one more sample.
    pub fn push(&mut self, sample: Sample) {
        if self.first_sample.is_none() {
            self.first_sample = Some(sample.clone());
        }
        let is_known = |zone: &ZoneKey| sample.zones.iter().any(|(key, _)| key == zone);
        // An unplugged zone, or a reading without zones, does not change the selection; only a listing
        // without the zone does.
        if !sample.zones.is_empty() && !self.zone.as_ref().is_some_and(is_known) {
            self.zone = self.largest_zone(&sample);
        }
        self.history.push(sample);
    }

    /// Returns the largest zone by managed pages, or by free pages if those are unknown.
    fn largest_zone(&self, sample: &Sample) -> Option<ZoneKey> {
        let managed = |key: &ZoneKey| self.about.zone_sizes.iter().find(|(zone, _)| zone == key);
        let size = |(key, areas): &&(ZoneKey, Option<FreeAreas>)| match managed(key) {
            Some((_, pages)) => (true, u128::from(pages.0)),
            None => (false, areas.as_ref().map_or(0, FreeAreas::free_pages)),
        };
        // Of equal zones the first: `max_by_key` would take the last.
        sample.zones.iter().rev().max_by_key(size).map(|(key, _)| key.clone())
    }

    pub fn current_sample(&self) -> Option<&Sample> {
        self.history.latest()
    }

    pub fn previous_sample(&self) -> Option<&Sample> {
        self.history.nth_latest(1)
    }

    /// Returns the free blocks of the selected zone.
    pub fn free_areas(&self) -> Option<&FreeAreas> {
        self.current_sample()?.zone(self.zone.as_ref()?)
    }

    pub fn rate(&self, counter: Counter) -> Option<f64> {
        let now = self.current_sample()?;
        match self.rates {
            RateKind::PerSecond => now.rate(self.previous_sample()?, counter),
            RateKind::SinceStart => Some(now.increase(self.first_sample.as_ref()?, counter)? as f64),
        }
    }

    /// Returns the share of one CPU used by pagelab itself, over about the last minute of samples.
    pub fn own_share(&self) -> Option<f64> {
        let steps = self.history.kept_count().checked_sub(1)?.min(60);
        Some(self.current_sample()?.rate(self.history.nth_latest(steps)?, Counter::OwnCpu)? / 1e9)
    }

    /// The last `count` marks of a curve, the newest last; `None` where unknown.
    pub fn curve(&self, metric: &Metric, count: usize) -> Vec<Option<f64>> {
        let per_mark = 1usize << self.zoom_log2.min(View::ZOOM_MAX);
        // Marks begin at fixed samples, so that a curve moves as a whole and does not flicker.
        let newest = (self.history.total_pushed().max(1) - 1) % per_mark + 1;
        let mark = |back: usize| {
            let (from, samples) = match back {
                0 => (0, newest),
                _ => (newest + (back - 1) * per_mark, per_mark),
            };
            match metric {
                Metric::Rate(counter) => {
                    let last = self.history.nth_latest(from)?;
                    let known =
                        (from + 1..=from + samples).rev().find_map(|at| self.history.nth_latest(at))?;
                    last.rate(known, *counter)
                }
                _ => {
                    let values =
                        (from..from + samples).map(|at| self.value(metric, self.history.nth_latest(at)?));
                    mean(values.flatten())
                }
            }
        };
        (0..count).rev().map(mark).collect()
    }

    /// Returns a metric's value in the current sample.
    pub fn latest_value(&self, metric: &Metric) -> Option<f64> {
        match metric {
            Metric::Rate(counter) => self.current_sample()?.rate(self.previous_sample()?, *counter),
            _ => self.value(metric, self.current_sample()?),
        }
    }

    fn value(&self, metric: &Metric, sample: &Sample) -> Option<f64> {
        match metric {
            Metric::Unusable(zone, order) => {
                sample.zone(zone).map(|areas| fragmentation_index::unusable_index(areas, *order))
            }
            Metric::HugeNow(zone) => {
                sample.zone(zone).map(|areas| areas.blocks_suitable(self.about.pmd_order) as f64)
            }
            Metric::Available => sample.memory.available.map(|bytes| bytes.0 as f64),
            Metric::SomePressure => sample.some_centipercent.map(|share| f64::from(share) / 100.0),
            Metric::Rate(_) => None,
        }
    }

    /// Returns the approximate duration of one mark of a curve, in nanoseconds.
    pub fn mark_ns(&self) -> u64 {
        let (FeedState::Live { every_ns, .. } | FeedState::Replay { every_ns, .. }) = &self.feed;
        every_ns.saturating_mul(1 << self.zoom_log2.min(View::ZOOM_MAX))
    }

    /// Handles keys that concern the view; others may concern the source of the samples.
    pub fn handle_key(&mut self, key: Key) -> KeyResponse {
        match key {
            Key::Char('q') => return KeyResponse::Quit,
            Key::Escape if self.is_help_shown => self.is_help_shown = false,
            Key::Escape => return KeyResponse::Quit,
            Key::Char('?' | 'h') => self.is_help_shown = !self.is_help_shown,
            Key::Char('r') => {
                self.rates = match self.rates {
                    RateKind::PerSecond => RateKind::SinceStart,
                    RateKind::SinceStart => RateKind::PerSecond,
                }
            }
            Key::Char('z') => self.zoom_log2 = (self.zoom_log2 + 1).min(View::ZOOM_MAX),
            Key::Char('Z') => self.zoom_log2 = self.zoom_log2.saturating_sub(1),
            Key::Tab | Key::Down => self.select_zone(1),
            Key::BackTab | Key::Up => self.select_zone(-1),
            Key::Char('j') => {
                let orders = self.free_areas().map_or(0, FreeAreas::orders);
                self.orders_from = (self.orders_from + 1).min(orders.saturating_sub(View::ORDERS_MIN));
            }
            Key::Char('k') => self.orders_from = self.orders_from.saturating_sub(1),
            _ => return KeyResponse::Ignored,
        }
        KeyResponse::Redraw
    }

    /// Selects the zone at this offset, with wrap-around.
    fn select_zone(&mut self, offset: isize) {
        let Some(now) = self.history.latest().filter(|now| !now.zones.is_empty()) else { return };
        let at = now.zones.iter().position(|(key, _)| Some(key) == self.zone.as_ref());
        let to = at.map_or(0, |at| (at as isize + offset).rem_euclid(now.zones.len() as isize) as usize);
        self.zone = Some(now.zones[to].0.clone());
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
