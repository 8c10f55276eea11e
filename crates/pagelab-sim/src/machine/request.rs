//! The path of a request (mm/page_alloc.c: `__alloc_pages` of 2.6.16, `__alloc_pages_slowpath` of 6.1).

use super::compaction::{Came, Manner};
use super::journal::Event;
use super::reclaim::COSTLY;
use super::{Ask, Class, Effort, Machine, Release};
use crate::memory::{Down, Request};
use crate::words::{Frame, Wrong};

/// Rounds after which a request that is tried again ends, though reclaim goes on: it would wait for ever.
const ROUNDS: u32 = 1000;

/// Rounds of reclaim without a page freed, and of compaction (`MAX_RECLAIM_RETRIES`, `MAX_COMPACT_RETRIES`).
const RETRIES: u32 = 16;

/// Zone and frame.
type Found = Option<(u8, Frame)>;

impl Machine {
    /// Zone and frame for a request.
    pub(super) fn request(&mut self, ask: &Ask) -> Result<Found, Wrong> {
        let heights = self.config.heights;
        let height = match ask.class {
            Class::Kernel | Class::Cache | Class::Buffer => heights.kernel,
            Class::PageTable => heights.page_tables,
            Class::File | Class::Anonymous | Class::Huge => heights.user,
        };
        let (kind, order, node, cpu) = (ask.class.kind(), ask.order, ask.node, ask.cpu);
        if order > self.max_order {
            return Err(Wrong::Order { order, max: self.max_order });
        }
        let may_mix = !self.memory.avoids_mixing();
        let mut request = Request { order, kind, height, node, cpu, down: Down::ToLow, may_mix };
        if let Some(found) = self.take(&request)? {
            return Ok(Some(found));
        }
        self.wake(node, height, order);
        request.down = if ask.effort == Effort::Atomic { Down::BelowMin } else { Down::ToMin };
        let found = match self.take(&request)? {
            Some(found) => Some(found),
            None if ask.effort == Effort::Atomic => None,
            None if self.config.compacts || self.tuning.release == Release::V6_1 => {
                self.insist(&request, ask.effort)?
            }
            None => self.insist_by_reclaim(&request, ask.effort)?,
        };
        // Better mixed than not at all (`defrag_mode` in `__alloc_pages_slowpath` of 6.15).
        request.may_mix = true;
        let found = if found.is_none() && !may_mix { self.take(&request)? } else { found };
        self.stats.failed[usize::from(order)] += u64::from(found.is_none());
        Ok(found)
    }

    fn take(&mut self, request: &Request) -> Result<Found, Wrong> {
        let mut found = self.memory.take(request)?;
        if found.is_none() && self.make_way(request)? {
            found = self.memory.take(request)?;
        }
        self.boost(found.map(|(zone, _)| zone));
        let Some((zone, taken)) = found else { return Ok(None) };
        if let Some(stolen) = taken.stolen {
            self.stats.stolen += 1;
            self.stats.owns += u64::from(stolen.owns);
        }
        self.stats.served[usize::from(request.order)] += 1;
        Ok(Some((zone as u8, taken.frame)))
    }

    /// Reclaims, and tries again as long as that helps (2.6.16: the part from `rebalance` on).
    fn insist_by_reclaim(&mut self, request: &Request, effort: Effort) -> Result<Found, Wrong> {
        let is_repeated = match effort {
            Effort::Hard => true,
            Effort::Usual => request.order <= COSTLY,
            Effort::Once | Effort::Atomic => false,
        };
        for _ in 0..ROUNDS {
            self.stats.direct += 1;
            let before = self.stats.slab_objects;
            let freed = self.reclaim(request.node, request.height, request.order)?;
            if let Some(found) = self.take(request)? {
                return Ok(Some(found));
            }
            // The kernel would kill a program where nothing was freed. Objects without a page are not counted
            // there, and are here: nobody is killed.
            let is_stuck = freed == 0 && self.stats.slab_objects == before && self.disk.writing_pages == 0;
            if is_stuck || !is_repeated {
                break;
            }
            self.nap();
        }
        Ok(None)
    }

    /// Compacts and reclaims in turns.
    fn insist(&mut self, request: &Request, effort: Effort) -> Result<Found, Wrong> {
        let order = request.order;
        let is_costly = order > COSTLY;
        let mut manner = Manner::Light;
        if is_costly || order > 0 && request.kind != crate::words::Kind::Movable {
            let (came, found) = self.compact_for(request, Manner::Careful)?;
            if found.is_some() {
                return Ok(found);
            }
            if is_costly && effort == Effort::Once {
                if came <= Came::Deferred {
                    return Ok(None);
                }
                manner = Manner::Careful;
            }
        }
        let (mut idle, mut compacted) = (0, 0);
        for _ in 0..ROUNDS {
            self.wake(request.node, request.height, order);
            if let Some(found) = self.take(request)? {
                return Ok(Some(found));
            }
            let freed = self.reclaim_or_drain(request)?;
            if let Some(found) = freed.1 {
                return Ok(Some(found));
            }
            let (came, found) = self.compact_for(request, manner)?;
            if found.is_some() {
                return Ok(found);
            }
            if effort == Effort::Once || is_costly && effort != Effort::Hard {
                break;
            }
            idle = if freed.0 && !is_costly { 0 } else { idle + 1 };
            // Before nothing is left to try, the highatomic reserve goes (`should_reclaim_retry`).
            let is_through = idle > RETRIES;
            let helps = if is_through { self.unreserve(request, true) } else { self.may_help(request) };
            if !(helps || freed.0 && self.may_compact(request, came, &mut manner, &mut compacted)) {
                break;
            }
        }
        Ok(None)
    }

    /// Direct reclaim (`__alloc_pages_direct_reclaim`): whether it got anywhere, and what was found.
    fn reclaim_or_drain(&mut self, request: &Request) -> Result<(bool, Found), Wrong> {
        if self.has_enough_to_compact(request) {
            return Ok((true, None));
        }
        self.stats.direct += 1;
        let before = self.stats.slab_objects;
        let freed = self.reclaim(request.node, request.height, request.order)?;
        if freed == 0 {
            return Ok((self.stats.slab_objects > before, None));
        }
        if let Some(found) = self.take(request)? {
            return Ok((true, Some(found)));
        }
        self.unreserve(request, false);
        self.memory.drain();
        self.stats.drained += 1;
        Ok((true, self.take(request)?))
    }

    /// Gives a pageblock of the highatomic reserve back to a request that would fail, of the first zone that
    /// may (`unreserve_highatomic_pageblock`): whether one was.
    fn unreserve(&mut self, request: &Request, is_forced: bool) -> bool {
        (0..self.memory.count()).any(|place| {
            let zone = self.memory.asked(request.node, place);
            let zone = zone.and_then(|zone| self.memory.zone_mut(zone));
            zone.is_some_and(|zone| zone.unreserve(request.kind, is_forced))
        })
    }

    /// Whether a costly request needs compaction and nothing else (`compaction_ready`): a zone has room for
    /// both copies of the block above its high mark.
    fn has_enough_to_compact(&self, request: &Request) -> bool {
        if !self.config.compacts || request.order <= COSTLY {
            return false;
        }
        (0..self.memory.count()).filter_map(|place| self.memory.asked(request.node, place)).any(|zone| {
            let gap = 2u64 << request.order;
            self.memory.zone(zone).is_some_and(|(setup, _)| {
                setup.height <= request.height
                    && self.memory.stands(zone, setup.marks.high + gap, 0, request.height)
            })
        })
    }

    /// Whether the request would be served if all that can be reclaimed were free (`should_reclaim_retry`).
    fn may_help(&self, request: &Request) -> bool {
        (0..self.memory.count()).filter_map(|place| self.memory.asked(request.node, place)).any(|at| {
            let Some((setup, zone)) = self.memory.zone(at) else { return false };
            let kept = setup.reserves.get(usize::from(request.height)).copied().unwrap_or(0);
            let has_block = (request.order..=setup.shape.max_order).any(|size| {
                zone.zone().free_blocks().get(usize::from(size)).is_some_and(|&blocks| blocks > 0)
            });
            let available = u64::from(zone.zone().free_frames())
                + u64::from(self.lru_pages(usize::from(self.area_of[at])));
            setup.height <= request.height && has_block && available > setup.marks.min + kept
        })
    }

    /// Whether compaction is tried again, and in which manner (`should_compact_retry`).
    fn may_compact(&self, request: &Request, came: Came, manner: &mut Manner, compacted: &mut u32) -> bool {
        if request.order == 0 || !self.config.compacts {
            return false;
        }
        match came {
            Came::Skipped => return self.may_make_room(request),
            Came::Success => {
                *compacted += 1;
                let most = if request.order > COSTLY { RETRIES / 4 } else { RETRIES };
                if *compacted <= most {
                    return true;
                }
            }
            Came::Deferred | Came::Partial | Came::Complete | Came::Interrupted => {}
        }
        let thorough = match (*manner, request.order > COSTLY) {
            (Manner::Careful, _) => Manner::Light,
            (Manner::Light, false) => Manner::Full,
            (Manner::Light, true) | (Manner::Full, _) => return false,
        };
        (*manner, *compacted) = (thorough, 0);
        true
    }

    /// Whether reclaim may make the room that compaction needs (`compaction_zonelist_suitable`).
    fn may_make_room(&self, request: &Request) -> bool {
        (0..self.memory.count()).filter_map(|place| self.memory.asked(request.node, place)).any(|at| {
            let Some((setup, zone)) = self.memory.zone(at) else { return false };
            let mark = if request.order > COSTLY { setup.marks.low } else { setup.marks.min };
            let kept = setup.reserves.get(usize::from(request.height)).copied().unwrap_or(0);
            let pages = u64::from(self.lru_pages(usize::from(self.area_of[at])));
            let available = u64::from(zone.zone().free_frames()) + pages / u64::from(request.order.max(1));
            setup.height <= request.height && available > mark + kept + (2 << request.order)
        })
    }

    /// Compacts the zones that a request may have, until one has a block (`try_to_compact_pages`).
    fn compact_for(&mut self, request: &Request, manner: Manner) -> Result<(Came, Found), Wrong> {
        let mut came = Came::Skipped;
        if request.order == 0 || !self.config.compacts {
            return Ok((came, None));
        }
        for place in 0..self.memory.count() {
            let Some(zone) = self.memory.asked(request.node, place) else { break };
            if self.memory.zone(zone).is_none_or(|(setup, _)| setup.height > request.height) {
                continue;
            }
            let now = self.compact_directly(zone, request, manner)?;
            came = came.max(now);
            if now == Came::Success {
                break;
            }
        }
        let found = self.take(request)?;
        if let Some((zone, _)) = found {
            self.compactors[usize::from(zone)].forgive(request.order, true);
            self.journal.note(Event::Forgiven { zone: usize::from(zone), order: request.order });
        }
        Ok((came, found))
    }
}
