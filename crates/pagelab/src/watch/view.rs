//! What the view knows, and what keys change of it: the same for a live machine and for a recording.

use pagelab_metrics::frag;
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::run::Moment;
use pagelab_model::{Absence, FreeAreas, Order, PageSize, Pages, Reading};

use super::counter::Counter;
use super::keys::Key;
use super::sample::{History, Sample};

/// What does not change while the view is open.
#[derive(Clone, Debug)]
pub struct About {
    /// Host name, or empty.
    pub host: String,
    /// Kernel release, or empty.
    pub kernel: String,
    /// The base page size.
    pub page_size: PageSize,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// The moment from which samples count their time.
    pub started: Moment,
    /// Managed pages of zones, where known.
    pub zone_sizes: Vec<(ZoneKey, Pages)>,
}

/// Where the samples come from, and how.
#[derive(Clone, Debug)]
pub enum Feed {
    /// This machine.
    Live {
        /// Nanoseconds between samples.
        every_ns: u64,
        /// Whether the screen stands still; samples are still taken.
        paused: bool,
        /// Samples that were not taken because the machine or the terminal was too slow.
        missed: u64,
    },
    /// A recording.
    Replay {
        /// Whether it goes on by itself.
        playing: bool,
        /// Recorded seconds in one second.
        speed: u64,
        /// The reading that is shown, counted from 0.
        at: usize,
        /// How many readings there are.
        count: usize,
        /// Typical nanoseconds between readings.
        every_ns: u64,
        /// What the recording says about itself here: an event near this reading, how it ended.
        remark: String,
    },
}

/// The modes of transparent huge pages, one word each.
#[derive(Clone, Debug)]
pub struct Modes {
    /// Who gets them: `always`, `madvise`, `never`.
    pub enabled: Reading<String>,
    /// How hard a fault tries.
    pub defrag: Reading<String>,
}

/// What the column of rates shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateKind {
    /// Growth a second between the last two samples.
    PerSecond,
    /// Growth since the start of the watch or of the recording.
    SinceStart,
}

/// A quantity that is drawn over time.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// F_u of one zone at one order.
    Unusable(ZoneKey, Order),
    /// Huge pages that could be handed out now, of one zone or of all.
    HugeNow(Option<ZoneKey>),
    /// Bytes that programs could still get.
    Available,
    /// Share of time in which some task waited for memory, in percent.
    SomePressure,
    /// Growth of a counter per second.
    Rate(Counter),
}

/// The state of the view.
#[derive(Clone, Debug)]
pub struct View {
    /// What does not change.
    pub about: About,
    /// Where samples come from.
    pub feed: Feed,
    /// The moments up to the one that is shown.
    pub history: History,
    /// The first moment of all.
    pub first: Option<Sample>,
    /// Modes of huge pages.
    pub modes: Modes,
    /// Why events of external fragmentation are not counted, if they are not.
    pub extfrag_absent: Option<Absence>,
    /// The zone whose orders are shown.
    pub zone: Option<ZoneKey>,
    /// The first order that is listed where not all fit.
    pub orders_from: usize,
    /// What the rates are.
    pub rates: RateKind,
    /// Binary logarithm of the samples in one mark of a curve.
    pub zoom: u32,
    /// Whether the explanation of keys lies over the screen.
    pub help: bool,
    /// The last thing that went wrong, until it is right again.
    pub notice: Option<String>,
}

/// What a key asks for beyond the view itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To be done with.
    Quit,
    /// To be drawn again.
    Redraw,
    /// Something of where the samples come from.
    Elsewhere,
}

impl View {
    /// The largest zoom: 64 samples in one mark.
    pub const ZOOM_MAX: u32 = 6;

    /// Orders that every full screen has room for, so that no scrolling goes further than it is seen.
    const ORDERS_MIN: usize = 11;

    /// A view that has seen nothing yet.
    pub fn new(about: About, feed: Feed, modes: Modes) -> View {
        View {
            about,
            feed,
            history: History::default(),
            first: None,
            modes,
            extfrag_absent: None,
            zone: None,
            orders_from: 0,
            rates: RateKind::PerSecond,
            zoom: 0,
            help: false,
            notice: None,
        }
    }

    /// Shows one more moment.
    pub fn push(&mut self, sample: Sample) {
        if self.first.is_none() {
            self.first = Some(sample.clone());
        }
        let is_known = |zone: &ZoneKey| sample.zones.iter().any(|(key, _)| key == zone);
        // A zone that was unplugged, or a reading without zones, does not move the choice; only a listing
        // without the zone does.
        if !sample.zones.is_empty() && !self.zone.as_ref().is_some_and(is_known) {
            self.zone = self.largest(&sample);
        }
        self.history.push(sample);
    }

    /// The largest zone by managed pages; by free pages where those are not known.
    fn largest(&self, sample: &Sample) -> Option<ZoneKey> {
        let managed = |key: &ZoneKey| self.about.zone_sizes.iter().find(|(zone, _)| zone == key);
        let size = |(key, areas): &&(ZoneKey, Option<FreeAreas>)| match managed(key) {
            Some((_, pages)) => (true, u128::from(pages.0)),
            None => (false, areas.as_ref().map_or(0, FreeAreas::free_pages)),
        };
        // Of equals the first: `max_by_key` would take the last.
        sample.zones.iter().rev().max_by_key(size).map(|(key, _)| key.clone())
    }

    /// The moment that is shown.
    pub fn now(&self) -> Option<&Sample> {
        self.history.last()
    }

    /// The moment before it.
    pub fn before(&self) -> Option<&Sample> {
        self.history.back(1)
    }

    /// Free blocks of the chosen zone now.
    pub fn areas(&self) -> Option<&FreeAreas> {
        self.now()?.zone(self.zone.as_ref()?)
    }

    /// What the column of rates says of a counter.
    pub fn rate(&self, counter: Counter) -> Option<f64> {
        let now = self.now()?;
        match self.rates {
            RateKind::PerSecond => now.rate(self.before()?, counter),
            RateKind::SinceStart => Some(now.grown(self.first.as_ref()?, counter)? as f64),
        }
    }

    /// Share of one CPU that pagelab itself used, over the last minute of samples or so.
    pub fn own_share(&self) -> Option<f64> {
        let steps = self.history.len().checked_sub(1)?.min(60);
        Some(self.now()?.rate(self.history.back(steps)?, Counter::OwnCpu)? / 1e9)
    }

    /// The last `count` marks of a curve, the newest last; `None` where nothing is known.
    pub fn curve(&self, metric: &Metric, count: usize) -> Vec<Option<f64>> {
        let per_mark = 1usize << self.zoom.min(View::ZOOM_MAX);
        // Marks begin at fixed samples, so that a curve moves as a whole and does not flicker.
        let newest = (self.history.pushed().max(1) - 1) % per_mark + 1;
        let mark = |back: usize| {
            let (from, samples) = match back {
                0 => (0, newest),
                _ => (newest + (back - 1) * per_mark, per_mark),
            };
            match metric {
                Metric::Rate(counter) => {
                    let last = self.history.back(from)?;
                    let known = (from + 1..=from + samples).rev().find_map(|at| self.history.back(at))?;
                    last.rate(known, *counter)
                }
                _ => {
                    let values = (from..from + samples).map(|at| self.value(metric, self.history.back(at)?));
                    mean(values.flatten())
                }
            }
        };
        (0..count).rev().map(mark).collect()
    }

    /// What a metric is at the moment that is shown.
    pub fn latest(&self, metric: &Metric) -> Option<f64> {
        match metric {
            Metric::Rate(counter) => self.now()?.rate(self.before()?, *counter),
            _ => self.value(metric, self.now()?),
        }
    }

    fn value(&self, metric: &Metric, sample: &Sample) -> Option<f64> {
        let huge = |areas: &FreeAreas| areas.blocks_suitable(self.about.pmd_order) as f64;
        match metric {
            Metric::Unusable(zone, order) => sample.zone(zone).map(|areas| frag::unusable(areas, *order)),
            Metric::HugeNow(Some(zone)) => sample.zone(zone).map(huge),
            Metric::HugeNow(None) => {
                let known = sample.zones.iter().filter_map(|(_, areas)| areas.as_ref());
                known.map(huge).reduce(|a, b| a + b)
            }
            Metric::Available => sample.memory.available.map(|bytes| bytes.0 as f64),
            Metric::SomePressure => sample.some_centipercent.map(|share| f64::from(share) / 100.0),
            Metric::Rate(_) => None,
        }
    }

    /// Nanoseconds that one mark of a curve stands for, about.
    pub fn mark_ns(&self) -> u64 {
        let (Feed::Live { every_ns, .. } | Feed::Replay { every_ns, .. }) = &self.feed;
        every_ns.saturating_mul(1 << self.zoom.min(View::ZOOM_MAX))
    }

    /// Does what a key says, as far as it is about the view.
    pub fn press(&mut self, key: Key) -> Asked {
        match key {
            Key::Char('q') => return Asked::Quit,
            Key::Escape if self.help => self.help = false,
            Key::Escape => return Asked::Quit,
            Key::Char('?' | 'h') => self.help = !self.help,
            Key::Char('r') => {
                self.rates = match self.rates {
                    RateKind::PerSecond => RateKind::SinceStart,
                    RateKind::SinceStart => RateKind::PerSecond,
                }
            }
            Key::Char('z') => self.zoom = (self.zoom + 1).min(View::ZOOM_MAX),
            Key::Char('Z') => self.zoom = self.zoom.saturating_sub(1),
            Key::Tab | Key::Down => self.choose(1),
            Key::BackTab | Key::Up => self.choose(-1),
            Key::Char('j') => {
                let orders = self.areas().map_or(0, FreeAreas::orders);
                self.orders_from = (self.orders_from + 1).min(orders.saturating_sub(View::ORDERS_MIN));
            }
            Key::Char('k') => self.orders_from = self.orders_from.saturating_sub(1),
            _ => return Asked::Elsewhere,
        }
        Asked::Redraw
    }

    /// Chooses the zone that many places further on, around the end.
    fn choose(&mut self, by: isize) {
        let Some(now) = self.history.last().filter(|now| !now.zones.is_empty()) else { return };
        let at = now.zones.iter().position(|(key, _)| Some(key) == self.zone.as_ref());
        let to = at.map_or(0, |at| (at as isize + by).rem_euclid(now.zones.len() as isize) as usize);
        self.zone = Some(now.zones[to].0.clone());
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
