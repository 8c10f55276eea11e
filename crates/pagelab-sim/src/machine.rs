//! A machine whose memory fills up: blocks that loads hold, background and direct reclaim, LRU lists,
//! compaction.
//!
//! A load holds blocks by handles ([`Held`]), since a page may be reclaimed or moved while it is held:
//! the handle stays. The path of a request is that of `__alloc_pages` and `__alloc_pages_slowpath` in
//! mm/page_alloc.c; what is reclaimed follows mm/vmscan.c, what is moved mm/compaction.c.

mod background;
mod boost;
mod check;
mod compaction;
mod journal;
mod lru;
#[cfg(test)]
mod naive;
mod reclaim;
pub mod reclaims;
mod request;
mod terms;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twins;
mod way;
mod writeback;

pub use terms::{Ask, Class, Config, Effort, Heights, Release, Stats, Tuning};

use background::Wake;
use boost::Boost;
use compaction::Compactor;
use journal::Journal;
use lru::{List, Lru, Sort};
use writeback::{Disk, State};

use crate::memory::Memory;
use crate::policy::Policy;
use crate::words::{Frame, Wrong};

/// A policy that is chosen while the program runs.
pub type AnyPolicy = &'static (dyn Policy + Sync);

/// A block that a load holds. It may have been reclaimed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held(u32);

/// Where a held block has no frame.
const NOWHERE: Frame = u32::MAX;

/// No handle.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    frame: Frame,
    /// Where it was reclaimed: how many pages were reclaimed before it.
    stamp: u32,
    order: u8,
    class: Class,
    zone: u8,
    /// Objects in it, of a page of the kernel's caches; and those of them that somebody uses.
    objects: u8,
    in_use: u8,
    is_active: bool,
    /// It was used since reclaim saw it last (the accessed bit of page tables).
    is_touched: bool,
    /// Reclaim saw it used (`PG_referenced`).
    is_referenced: bool,
    is_pinned: bool,
    is_live: bool,
    /// Where it stands with the disk, and its number in the queue that it is in.
    state: State,
    number: u32,
    /// Reclaim waits for it to be written (`PG_reclaim`).
    is_hasty: bool,
}

impl Entry {
    fn pages(&self) -> u32 {
        1 << self.order
    }
}

/// What an area, a zone in 2.6.16 and a node in 6.1, keeps of its reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Area {
    /// Pages to look at that were too few to begin with, inactive and active (`nr_scan_inactive`).
    left: [u32; 2],
    /// Pages that were looked at since one of it was freed last (`pages_scanned`).
    scanned: u64,
    /// The priority at which reclaim went well last (`prev_priority`).
    distress: u8,
    /// What it cost to reclaim pages of programs and of files (`anon_cost`, `file_cost`).
    costs: [u64; 2],
    /// Objects of the kernel's caches, and those to look at that were too few to begin with.
    objects: u64,
    objects_left: u64,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    memory: Memory<AnyPolicy>,
    config: Config,
    tuning: Tuning,
    entries: Vec<Entry>,
    /// Handles that are free again.
    unused: Vec<u32>,
    /// The handle of the block that begins at a frame, counted from the first one.
    owners: Vec<u32>,
    first: Frame,
    max_order: u8,
    lru: Lru,
    areas: Vec<Area>,
    /// The area of each zone.
    area_of: Vec<u8>,
    compactors: Vec<Compactor>,
    /// Where reclaim by place goes on, for each zone.
    regions_at: Vec<Frame>,
    /// Frames in swap.
    swapped: u32,
    /// Pages of programs that have a frame: mapped ones (`nr_mapped`).
    mapped: u32,
    /// Dirty pages, and those that are being written.
    disk: Disk,
    /// For each node, what background reclaim was woken for.
    awake: Vec<Wake>,
    /// For each zone, by how much its marks are raised.
    boosts: Vec<Boost>,
    /// Whether there is something to do in the background.
    is_busy: bool,
    stats: Stats,
    journal: Journal,
}

impl Machine {
    /// A machine whose memory is free, as today's kernel runs it.
    pub fn new(config: Config, policy: AnyPolicy) -> Result<Machine, Wrong> {
        Machine::tuned(config, Tuning::default(), policy)
    }

    /// A machine whose memory is free, as a given kernel runs it.
    pub fn tuned(config: Config, tuning: Tuning, policy: AnyPolicy) -> Result<Machine, Wrong> {
        let mut memory = Memory::new(config.zones.clone(), &policy, config.keep)?;
        let first = config.zones.iter().map(|zone| zone.shape.first).min().unwrap_or(0);
        let end = config.zones.iter().map(|zone| zone.shape.end()).max().unwrap_or(0);
        let nodes = config.zones.iter().map(|zone| usize::from(zone.node) + 1).max().unwrap_or(0);
        if config.zones.len() > usize::from(u8::MAX) {
            return Err(Wrong::Shape(format!(
                "a machine of {} zones: up to 255 will do",
                config.zones.len()
            )));
        }
        let is_old = tuning.release == Release::V2_6_16;
        if is_old {
            memory.halve_marks();
        }
        let area_of = |(zone, (setup, _)): (usize, (&crate::memory::Setup, _))| {
            if is_old { zone as u8 } else { setup.node as u8 }
        };
        let area_of: Vec<u8> = memory.zones().enumerate().map(area_of).collect();
        let areas = area_of.iter().map(|&area| usize::from(area) + 1).max().unwrap_or(0);
        Ok(Machine {
            lru: Lru::new(areas),
            areas: vec![Area { distress: reclaim::PRIORITY, ..Area::default() }; areas],
            area_of,
            compactors: memory.zones().map(|(setup, _)| Compactor::new(setup.shape)).collect(),
            regions_at: memory.zones().map(|(setup, _)| setup.shape.first).collect(),
            boosts: vec![Boost::default(); memory.count()],
            memory,
            tuning,
            entries: Vec::new(),
            unused: Vec::new(),
            owners: vec![NOBODY; (end - first) as usize],
            first,
            max_order: config.zones.iter().map(|zone| zone.shape.max_order).max().unwrap_or(0),
            swapped: 0,
            mapped: 0,
            disk: Disk::default(),
            awake: vec![Wake::default(); nodes],
            is_busy: tuning.proactiveness > 0,
            stats: Stats::default(),
            config,
            journal: Journal::default(),
        })
    }

    /// Allocates. `None`: it failed, as far as it may go.
    pub fn ask(&mut self, ask: &Ask) -> Result<Option<Held>, Wrong> {
        let Some((zone, frame)) = self.request(ask)? else { return Ok(None) };
        let entry = Entry {
            frame,
            stamp: 0,
            order: ask.order,
            class: ask.class,
            zone,
            objects: if ask.class == Class::Cache { self.tuning.objects_a_page.max(1) } else { 0 },
            in_use: 0,
            is_active: self.begins_active(ask.class),
            is_touched: false,
            is_referenced: false,
            is_pinned: false,
            is_live: true,
            state: State::Clean,
            number: 0,
            is_hasty: false,
        };
        let handle = match self.unused.pop() {
            Some(handle) => handle,
            None => {
                self.entries.push(entry);
                self.lru.grow(self.entries.len());
                self.entries.len() as u32 - 1
            }
        };
        self.entries[handle as usize] = entry;
        self.settle(handle);
        self.soil_new(handle);
        Ok(Some(Held(handle)))
    }

    /// Frees a held block, wherever it is.
    pub fn release(&mut self, held: Held) -> Result<(), Wrong> {
        let entry = *self.entry(held)?;
        if entry.frame == NOWHERE {
            self.swapped -= if entry.class == Class::Anonymous { entry.pages() } else { 0 };
        } else {
            self.forget_writes(held.0);
            self.unsettle(held.0);
            self.memory.free(0, entry.frame)?;
        }
        self.entries[held.0 as usize].is_live = false;
        self.unused.push(held.0);
        Ok(())
    }

    /// Uses a held block: whether it is there. One that was reclaimed must be brought back first. Programs
    /// write to what they use.
    pub fn touch(&mut self, held: Held) -> Result<bool, Wrong> {
        let entry = self.entry(held)?;
        let is_there = entry.frame != NOWHERE;
        let entry = &mut self.entries[held.0 as usize];
        entry.is_touched |= is_there;
        if is_there && entry.class == Class::Anonymous {
            self.soil(held.0);
        }
        Ok(is_there)
    }

    /// Brings back a block that was reclaimed: a read from the disk, or from swap. Whether there was room.
    pub fn bring_back(&mut self, held: Held, cpu: u16) -> Result<bool, Wrong> {
        let entry = *self.entry(held)?;
        if entry.frame != NOWHERE {
            return Ok(true);
        }
        let node = self.memory.zone(usize::from(entry.zone)).map_or(0, |(setup, _)| setup.node);
        let ask = Ask { class: entry.class, order: entry.order, effort: Effort::Usual, node, cpu };
        let Some((zone, frame)) = self.request(&ask)? else { return Ok(false) };
        self.swapped -= if entry.class == Class::Anonymous { entry.pages() } else { 0 };
        self.stats.refaults += u64::from(entry.pages());
        if entry.class != Class::Cache {
            self.read_back(entry.pages());
        }
        let is_active = self.begins_active(entry.class) || self.was_missed_soon(&entry);
        let objects = if entry.class == Class::Cache { self.tuning.objects_a_page.max(1) } else { 0 };
        let entry = &mut self.entries[held.0 as usize];
        (entry.frame, entry.zone, entry.is_active, entry.objects) = (frame, zone, is_active, objects);
        (entry.is_touched, entry.is_referenced) = (false, false);
        self.settle(held.0);
        self.soil_new(held.0);
        Ok(true)
    }

    /// Keeps a block from being reclaimed or moved, or lets it go again: locked memory, pages under I/O.
    pub fn pin(&mut self, held: Held, pinned: bool) -> Result<(), Wrong> {
        self.entry(held)?;
        self.entries[held.0 as usize].is_pinned = pinned;
        Ok(())
    }

    /// Says how many objects in a page of the kernel's caches somebody uses: they and the page stay. Of any
    /// other block nothing is kept.
    pub fn use_objects(&mut self, held: Held, in_use: u8) -> Result<(), Wrong> {
        self.entry(held)?;
        let entry = &mut self.entries[held.0 as usize];
        entry.in_use = in_use.min(entry.objects);
        Ok(())
    }

    /// The first frame of a held block; `None`: it was reclaimed.
    pub fn frame(&self, held: Held) -> Result<Option<Frame>, Wrong> {
        let frame = self.entry(held)?.frame;
        Ok((frame != NOWHERE).then_some(frame))
    }

    /// What the block that begins at a frame is used for, and its order.
    pub fn used_for(&self, frame: Frame) -> Option<(Class, u8)> {
        let handle = *self.owners.get(frame.wrapping_sub(self.first) as usize)?;
        let entry = self.entries.get(handle as usize)?;
        Some((entry.class, entry.order))
    }

    /// The zones by address.
    pub fn memory(&self) -> &Memory<AnyPolicy> {
        &self.memory
    }

    /// How it is set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How it is tuned.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Frames in swap.
    pub fn swapped(&self) -> u32 {
        self.swapped
    }

    /// What happened so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The share of free memory that cannot be used for blocks of an order: F_u(j) of the whole machine.
    /// (free in smaller blocks, all free).
    pub fn unusable(&self, order: u8) -> (u64, u64) {
        let mut sums = (0, 0);
        for zone in 0..self.memory.count() {
            let (small, all) = self.unusable_in(zone, order);
            sums = (sums.0 + small, sums.1 + all);
        }
        sums
    }

    /// The same of one zone.
    pub fn unusable_in(&self, zone: usize, order: u8) -> (u64, u64) {
        let Some((_, zone)) = self.memory.zone(zone) else { return (0, 0) };
        // What processors keep is free, and in single pages.
        let kept = u64::from(zone.kept_frames());
        let mut sums = (kept, kept);
        for (size, &blocks) in (0u8..).zip(zone.zone().free_blocks()) {
            let frames = u64::from(blocks) << size;
            sums.0 += if size < order { frames } else { 0 };
            sums.1 += frames;
        }
        sums
    }

    fn entry(&self, held: Held) -> Result<&Entry, Wrong> {
        let entry = self.entries.get(held.0 as usize).filter(|entry| entry.is_live);
        entry.ok_or_else(|| Wrong::Books(format!("block {} was released before", held.0)))
    }

    /// Whether new pages of a class begin on the active list: those of programs, up to 5.8.
    fn begins_active(&self, class: Class) -> bool {
        class == Class::Anonymous && self.tuning.release == Release::V2_6_16
    }

    /// The list that a block belongs to; `None`: it cannot be reclaimed.
    fn list(&self, entry: &Entry) -> Option<List> {
        let sort = match entry.class {
            Class::Cache => Sort::Cache,
            Class::File | Class::Buffer if self.tuning.release == Release::V6_1 => Sort::File,
            Class::File | Class::Buffer | Class::Anonymous => Sort::Anonymous,
            Class::Kernel | Class::PageTable | Class::Huge => return None,
        };
        Some(List {
            area: usize::from(self.area_of[usize::from(entry.zone)]),
            sort,
            is_active: entry.is_active,
        })
    }

    /// Books a block that has just got its frame.
    fn settle(&mut self, handle: u32) {
        let entry = self.entries[handle as usize];
        self.owners[(entry.frame - self.first) as usize] = handle;
        self.mapped += if entry.class == Class::Anonymous { entry.pages() } else { 0 };
        if let Some(list) = self.list(&entry) {
            self.areas[list.area].objects += u64::from(entry.objects);
            self.lru.add(list, handle, entry.pages());
        }
    }

    /// Takes a block off the books that is about to lose its frame.
    fn unsettle(&mut self, handle: u32) {
        let entry = self.entries[handle as usize];
        self.owners[(entry.frame - self.first) as usize] = NOBODY;
        self.mapped -= if entry.class == Class::Anonymous { entry.pages() } else { 0 };
        if let Some(list) = self.list(&entry) {
            self.areas[list.area].objects -= u64::from(entry.objects);
            self.areas[list.area].scanned = 0;
            self.lru.remove(list, handle, entry.pages());
        }
    }
}
