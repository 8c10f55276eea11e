//! The path of a request, and what is reclaimed for it.

use super::{Ask, Class, Effort, Machine, NOWHERE};
use crate::memory::{Down, Request};
use crate::words::{Frame, Wrong};

/// Pages that reclaim frees at a time (`SWAP_CLUSTER_MAX`).
const AT_ONCE: u32 = 32;

/// Rounds of direct reclaim of a request that may go on.
const ROUNDS: u32 = 16;

impl Machine {
    /// Zone and frame for a request.
    pub(super) fn request(&mut self, ask: &Ask) -> Result<Option<(u8, Frame)>, Wrong> {
        let heights = self.config.heights;
        let height = match ask.class {
            Class::Kernel | Class::Cache => heights.kernel,
            Class::PageTable => heights.page_tables,
            Class::File | Class::Anonymous | Class::Huge => heights.user,
        };
        let (kind, order, node, cpu) = (ask.class.kind(), ask.order, ask.node, ask.cpu);
        let mut request = Request { order, kind, height, node, cpu, down: Down::ToLow };
        if let Some(found) = self.take(&request)? {
            return Ok(Some(found));
        }
        if let Some(awake) = self.awake.get_mut(usize::from(ask.node)) {
            self.stats.kswapd_wakes += u64::from(awake.is_none());
            *awake = Some(awake.map_or(order, |before| before.max(order)));
        }
        request.down = if ask.effort == Effort::Atomic { Down::BelowMin } else { Down::ToMin };
        if let Some(found) = self.take(&request)? {
            return Ok(Some(found));
        }
        let rounds = match ask.effort {
            Effort::Atomic => 0,
            Effort::Once => 1,
            Effort::Usual => ROUNDS,
        };
        for _ in 0..rounds {
            self.stats.direct += 1;
            let freed = self.reclaim_zones(ask.node, height, AT_ONCE.max(1 << order))?;
            if let Some(found) = self.take(&request)? {
                return Ok(Some(found));
            }
            if freed == 0 {
                break;
            }
        }
        self.stats.failed[usize::from(order)] += 1;
        Ok(None)
    }

    fn take(&mut self, request: &Request) -> Result<Option<(u8, Frame)>, Wrong> {
        let Some((zone, taken)) = self.memory.take(request)? else { return Ok(None) };
        if let Some(stolen) = taken.stolen {
            self.stats.stolen += 1;
            self.stats.owns += u64::from(stolen.owns);
        }
        self.stats.served[usize::from(request.order)] += 1;
        Ok(Some((zone as u8, taken.frame)))
    }

    /// Lets background reclaim work: until all zones are above their high marks, or `most` pages were freed.
    pub fn background(&mut self, most: u32) -> Result<(), Wrong> {
        for node in 0..self.awake.len() {
            if self.awake[node].is_none() {
                continue;
            }
            let mut left = most;
            let mut is_done = true;
            for zone in 0..self.config.zones.len() {
                while self.is_short(zone, node as u16) {
                    let freed = self.reclaim_zone(zone, AT_ONCE.min(left))?;
                    left -= freed.min(left);
                    if freed == 0 || left == 0 {
                        is_done &= freed == 0;
                        break;
                    }
                }
            }
            if is_done {
                self.awake[node] = None;
            }
        }
        Ok(())
    }

    fn is_short(&self, zone: usize, node: u16) -> bool {
        let Some((setup, zone)) = self.memory.zones().nth(zone) else { return false };
        setup.node == node && u64::from(zone.zone().free_frames()) < setup.marks.high
    }

    fn reclaim_zones(&mut self, node: u16, height: u8, pages: u32) -> Result<u32, Wrong> {
        let is_asked =
            |(_, setup): &(usize, &crate::memory::Setup)| setup.node == node && setup.height <= height;
        let zones: Vec<usize> = self
            .memory
            .zones()
            .map(|(setup, _)| setup)
            .enumerate()
            .filter(is_asked)
            .map(|zone| zone.0)
            .collect();
        let mut freed = 0;
        for zone in zones {
            freed += self.reclaim_zone(zone, pages)?;
        }
        Ok(freed)
    }

    /// Reclaims the oldest pages of a zone.
    fn reclaim_zone(&mut self, zone: usize, pages: u32) -> Result<u32, Wrong> {
        let mut freed = 0;
        let mut looks = 4 * (self.lru.count(zone, false) + self.lru.count(zone, true));
        while freed < pages && looks > 0 {
            looks -= 1;
            if self.lru.count(zone, false) <= self.lru.count(zone, true)
                && let Some(handle) = self.lru.last(zone, true)
            {
                self.turn(handle, false);
            }
            let Some(handle) = self.lru.last(zone, false) else { break };
            let entry = self.entries[handle as usize];
            self.stats.scanned += 1;
            let is_full = entry.class == Class::Anonymous && self.swapped >= self.config.swap_frames;
            if entry.is_pinned || is_full || (entry.is_referenced && self.config.keeps_referenced) {
                self.turn(handle, true);
                continue;
            }
            self.evict(handle)?;
            freed += 1 << entry.order;
        }
        Ok(freed)
    }

    /// Moves a page to the other list, as one that was not used.
    fn turn(&mut self, handle: u32, to_active: bool) {
        let entry = &mut self.entries[handle as usize];
        let (zone, was_active) = (usize::from(entry.zone), entry.is_active);
        (entry.is_active, entry.is_referenced) = (to_active, false);
        self.lru.remove(zone, was_active, handle);
        self.lru.add(zone, to_active, handle);
    }

    /// Frees the frame of a page; its holder keeps the handle.
    fn evict(&mut self, handle: u32) -> Result<(), Wrong> {
        self.unsettle(handle);
        let entry = &mut self.entries[handle as usize];
        let frame = std::mem::replace(&mut entry.frame, NOWHERE);
        entry.is_referenced = false;
        if entry.class == Class::Anonymous {
            self.swapped += 1;
            self.stats.swapped += 1;
        }
        self.stats.reclaimed += 1 << entry.order;
        self.memory.free(0, frame)?;
        Ok(())
    }
}
