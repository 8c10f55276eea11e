//! Watermarks that are raised for a while when kinds are mixed in a pageblock (`boost_watermark` of
//! mm/page_alloc.c, `balance_pgdat` of mm/vmscan.c; Linux since 5.0, here as in 6.1): background reclaim
//! frees as much, and memory is compacted for pageblocks, so that the next request finds one of its own.

use super::Machine;
use super::journal::{Event, Flaw};

/// Parts of `watermark_boost_factor`.
const PARTS: u64 = 10_000;

/// What is kept of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Boost {
    /// How often kinds had been mixed in it when it was looked at last.
    seen: u32,
    /// By how much its marks are raised.
    now: u64,
    /// By how much they were when background reclaim began.
    before: u64,
    /// Background reclaim is to be woken (`ZONE_BOOSTED_WATERMARK`).
    wakes: bool,
}

impl Machine {
    /// Raises the marks of zones in which kinds were mixed since, and wakes `kswapd` of the zone that served.
    pub(super) fn boost(&mut self, served: Option<usize>) {
        if self.tuning.boost_factor == 0 {
            return;
        }
        for at in 0..self.boosts.len() {
            let Some((setup, zone)) = self.memory.zone(at) else { break };
            let mixings = zone.zone().mixings();
            let times = mixings.wrapping_sub(std::mem::replace(&mut self.boosts[at].seen, mixings));
            if times == 0 {
                continue;
            }
            let (block, frames) = (1u64 << setup.shape.block_order, u64::from(setup.shape.frames));
            let high = setup.marks.high - self.boosts[at].now;
            let most = high * u64::from(self.tuning.boost_factor) / PARTS;
            // Small zones, and such without marks, are left alone.
            if 4 * block > frames || most == 0 {
                continue;
            }
            self.stats.boosts += u64::from(times);
            let now = (self.boosts[at].now + u64::from(times) * block).min(most.max(block));
            self.raise(at, now);
            self.boosts[at].wakes = true;
            self.journal.note(Event::Boosted { zone: at, times, now });
        }
        if let Some(at) = served.filter(|&at| std::mem::take(&mut self.boosts[at].wakes))
            && let Some((setup, _)) = self.memory.zone(at)
        {
            self.wake_for(at, setup.height, 0);
        }
    }

    fn raise(&mut self, zone: usize, by: u64) {
        self.boosts[zone].now = by;
        self.memory.raise_marks(zone, by);
    }

    /// Whether the marks of a zone of a node are raised (`pgdat_watermark_boosted`).
    pub(super) fn is_boosted(&self, node: u16, height: u8) -> bool {
        self.memory
            .zones()
            .zip(&self.boosts)
            .any(|((setup, _), boost)| setup.node == node && setup.height <= height && boost.now > 0)
    }

    /// Background reclaim of a node begins: pages to free beyond its marks.
    pub(super) fn begin_boost(&mut self, node: u16, height: u8) -> u64 {
        let mut sum = 0;
        for ((setup, _), boost) in self.memory.zones().zip(&mut self.boosts) {
            let is_in = setup.node == node && setup.height <= height;
            boost.before = if is_in { boost.now } else { 0 };
            sum += boost.before;
        }
        sum
    }

    /// Background reclaim of a node ends: what its marks were raised by when it began is taken back, and
    /// memory compacted for pageblocks. Whether it was raised.
    pub(super) fn end_boost(&mut self, node: u16) -> bool {
        self.journal.note(Event::Done { node });
        let mut was_raised = false;
        for at in 0..self.boosts.len() {
            if self.memory.zone(at).is_none_or(|(setup, _)| setup.node != node) {
                continue;
            }
            let before = std::mem::take(&mut self.boosts[at].before);
            if before == 0 {
                continue;
            }
            was_raised = true;
            if !self.journal.has(Flaw::BoostForGood) {
                self.raise(at, self.boosts[at].now.saturating_sub(before));
            }
            self.journal.note(Event::Lowered { zone: at, now: self.boosts[at].now });
        }
        was_raised
    }

    /// Pages that a turn of `kswapd` should look at; if it does, its priority is high enough
    /// (`kswapd_shrink_node`).
    pub(super) fn looks_wanted(&self, node: u16, height: u8) -> u64 {
        let zones = self.memory.zones().map(|(setup, _)| setup);
        let zones = zones.filter(|setup| setup.node == node && setup.height <= height);
        zones.map(|setup| setup.marks.high.max(32)).sum()
    }
}
