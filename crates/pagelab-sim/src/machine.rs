//! A machine whose memory fills up: blocks that loads hold, background and direct reclaim, LRU lists.
//!
//! A load holds blocks by handles ([`Held`]), since a page may be reclaimed or moved while it is held:
//! the handle stays. The path of a request is that of `__alloc_pages` and `__alloc_pages_slowpath` in
//! mm/page_alloc.c.

mod lru;
mod request;

use lru::Lru;

use crate::memory::{Memory, Setup};
use crate::percpu::Keep;
use crate::policy::Policy;
use crate::words::{Frame, Kind, Wrong};

/// A policy that is chosen while the program runs.
pub type AnyPolicy = &'static (dyn Policy + Sync);

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The kernel's own data, which stay where they are: low zones alone.
    Kernel,
    /// Page tables: they stay, and may lie in high memory (`CONFIG_HIGHPT`), not in a movable zone.
    PageTable,
    /// The kernel's caches of names and inodes, which can be shrunk.
    Cache,
    /// Pages of files.
    File,
    /// Pages of programs.
    Anonymous,
    /// A page of the hugetlb pool: anywhere, never reclaimed.
    Huge,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 6] =
        [Class::Kernel, Class::PageTable, Class::Cache, Class::File, Class::Anonymous, Class::Huge];

    /// The kind of its allocations.
    pub fn kind(self) -> Kind {
        match self {
            Class::Kernel | Class::PageTable => Kind::Unmovable,
            Class::Cache => Kind::Reclaimable,
            Class::File | Class::Anonymous | Class::Huge => Kind::Movable,
        }
    }

    /// Whether reclaim may take it.
    pub fn is_reclaimable(self) -> bool {
        matches!(self, Class::Cache | Class::File | Class::Anonymous)
    }
}

/// How far a request goes before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// It cannot wait: no reclaim by itself (`GFP_ATOMIC`).
    Atomic,
    /// It reclaims once, and gives up (`__GFP_NORETRY`).
    Once,
    /// It reclaims and tries again while that helps: small orders practically always succeed.
    Usual,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What for.
    pub class: Class,
    /// The block's order.
    pub order: u8,
    /// How hard it tries.
    pub effort: Effort,
    /// The node that it comes from.
    pub node: u16,
    /// The processor.
    pub cpu: u16,
}

impl Ask {
    /// A base page of a class, on the first processor of the first node.
    pub fn page(class: Class) -> Ask {
        Ask { class, order: 0, effort: Effort::Usual, node: 0, cpu: 0 }
    }
}

/// The highest zone, by height, that each class may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heights {
    /// The kernel's data and caches.
    pub kernel: u8,
    /// Page tables.
    pub page_tables: u8,
    /// Pages of programs and files, and of the hugetlb pool.
    pub user: u8,
}

/// Which pages reclaim takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reclaim {
    /// The oldest ones.
    #[default]
    Lru,
    /// For orders of 3 and more, all pages of aligned regions that hold only free and reclaimable ones
    /// (Gorman and Whitcroft 2006, section 10).
    Linear,
    /// The oldest ones, each with its neighbours up to the order wanted (Linux 2.6.23 to 3.4).
    Lumpy,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its zones.
    pub zones: Vec<Setup>,
    /// Who may lie where.
    pub heights: Heights,
    /// Per-CPU lists.
    pub keep: Keep,
    /// What reclaim takes.
    pub reclaim: Reclaim,
    /// Whether pages that were referenced stay on (`PAGEREF_ACTIVATE`); without, they are reclaimed as the
    /// others.
    pub keeps_referenced: bool,
    /// Whether memory is compacted for large blocks.
    pub compacts: bool,
    /// Frames of swap: anonymous pages beyond are not reclaimed.
    pub swap_frames: u32,
}

/// What happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that were served, by order.
    pub served: [u64; 32],
    /// Requests that failed, by order.
    pub failed: [u64; 32],
    /// Blocks that were taken from another list (`mm_page_alloc_extfrag`).
    pub stolen: u64,
    /// Pageblocks that changed hands at that.
    pub owns: u64,
    /// How often background reclaim was woken.
    pub kswapd_wakes: u64,
    /// How often a request reclaimed by itself.
    pub direct: u64,
    /// Pages that reclaim looked at.
    pub scanned: u64,
    /// Pages that it freed.
    pub reclaimed: u64,
    /// Of them, anonymous ones: written to swap.
    pub swapped: u64,
    /// Pages that were brought back.
    pub refaults: u64,
    /// Compactions.
    pub compactions: u64,
    /// Pages that they moved.
    pub migrated: u64,
}

/// A block that a load holds. It may have been reclaimed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held(u32);

/// Where a held block has no frame.
const NOWHERE: Frame = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    frame: Frame,
    order: u8,
    class: Class,
    zone: u8,
    is_active: bool,
    is_referenced: bool,
    is_pinned: bool,
    is_live: bool,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    memory: Memory<AnyPolicy>,
    config: Config,
    entries: Vec<Entry>,
    /// Handles that are free again.
    unused: Vec<u32>,
    /// The handle of the block that begins at a frame, counted from the first one; `u32::MAX`: none.
    owners: Vec<u32>,
    first: Frame,
    lru: Lru,
    swapped: u32,
    /// For each node, the order that background reclaim was woken for.
    awake: Vec<Option<u8>>,
    stats: Stats,
}

impl Machine {
    /// A machine whose memory is free.
    pub fn new(config: Config, policy: AnyPolicy) -> Result<Machine, Wrong> {
        let memory = Memory::new(config.zones.clone(), &policy, config.keep)?;
        let first = config.zones.iter().map(|zone| zone.shape.first).min().unwrap_or(0);
        let end = config.zones.iter().map(|zone| zone.shape.end()).max().unwrap_or(0);
        let nodes = config.zones.iter().map(|zone| usize::from(zone.node) + 1).max().unwrap_or(0);
        Ok(Machine {
            lru: Lru::new(config.zones.len()),
            memory,
            entries: Vec::new(),
            unused: Vec::new(),
            owners: vec![u32::MAX; (end - first) as usize],
            first,
            swapped: 0,
            awake: vec![None; nodes],
            stats: Stats::default(),
            config,
        })
    }

    /// Allocates. `None`: it failed, as far as it may go.
    pub fn ask(&mut self, ask: &Ask) -> Result<Option<Held>, Wrong> {
        let Some((zone, frame)) = self.request(ask)? else { return Ok(None) };
        let entry = Entry {
            frame,
            order: ask.order,
            class: ask.class,
            zone,
            is_active: false,
            is_referenced: false,
            is_pinned: false,
            is_live: true,
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
        Ok(Some(Held(handle)))
    }

    /// Frees a held block, wherever it is.
    pub fn release(&mut self, held: Held) -> Result<(), Wrong> {
        let entry = *self.entry(held)?;
        if entry.frame == NOWHERE {
            self.swapped -= u32::from(entry.class == Class::Anonymous);
        } else {
            self.unsettle(held.0);
            self.memory.free(0, entry.frame)?;
        }
        self.entries[held.0 as usize].is_live = false;
        self.unused.push(held.0);
        Ok(())
    }

    /// Uses a held block: whether it is there. One that was reclaimed must be brought back first.
    pub fn touch(&mut self, held: Held) -> Result<bool, Wrong> {
        let entry = self.entry(held)?;
        let is_there = entry.frame != NOWHERE;
        self.entries[held.0 as usize].is_referenced |= is_there;
        Ok(is_there)
    }

    /// Brings back a block that was reclaimed: a read from the disk, or from swap. Whether there was room.
    pub fn bring_back(&mut self, held: Held, cpu: u16) -> Result<bool, Wrong> {
        let entry = *self.entry(held)?;
        if entry.frame != NOWHERE {
            return Ok(true);
        }
        let ask = Ask { class: entry.class, order: entry.order, effort: Effort::Usual, node: 0, cpu };
        let Some((zone, frame)) = self.request(&ask)? else { return Ok(false) };
        self.swapped -= u32::from(entry.class == Class::Anonymous);
        self.stats.refaults += 1;
        let entry = &mut self.entries[held.0 as usize];
        (entry.frame, entry.zone, entry.is_active) = (frame, zone, false);
        self.settle(held.0);
        Ok(true)
    }

    /// Keeps a block from being reclaimed or moved, or lets it go again: locked memory, pages under I/O.
    pub fn pin(&mut self, held: Held, pinned: bool) -> Result<(), Wrong> {
        self.entry(held)?;
        self.entries[held.0 as usize].is_pinned = pinned;
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

    /// What happened so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The share of free memory that cannot be used for blocks of an order: F_u(j) of the whole machine.
    /// (free in smaller blocks, all free).
    pub fn unusable(&self, order: u8) -> (u64, u64) {
        let mut sums = (0, 0);
        for (_, zone) in self.memory.zones() {
            for (size, &blocks) in (0u8..).zip(zone.zone().free_blocks()) {
                let frames = u64::from(blocks) << size;
                sums.0 += if size < order { frames } else { 0 };
                sums.1 += frames;
            }
            // What processors keep is free, and in single pages.
            sums.0 += u64::from(zone.kept_frames());
            sums.1 += u64::from(zone.kept_frames());
        }
        sums
    }

    /// Checks all books: the allocator's, and that each held block is where its handle says.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.memory.validate()?;
        let there = |entry: &&Entry| entry.is_live && entry.frame != NOWHERE;
        let held: u64 = self.entries.iter().filter(there).map(|entry| 1 << entry.order).sum();
        let all: u64 = self.memory.zones().map(|(setup, _)| u64::from(setup.shape.frames)).sum();
        let free: u64 = self.memory.zones().map(|(_, zone)| free_frames(zone)).sum();
        if held + free != all {
            return Err(Wrong::Books(format!("{held} frames are held and {free} free, of {all}")));
        }
        for (handle, entry) in (0u32..).zip(&self.entries).filter(|(_, entry)| there(entry)) {
            if self.owners[(entry.frame - self.first) as usize] != handle {
                return Err(Wrong::Books(format!("frame {:#x} is not its holder's", entry.frame)));
            }
        }
        Ok(())
    }

    fn entry(&self, held: Held) -> Result<&Entry, Wrong> {
        let entry = self.entries.get(held.0 as usize).filter(|entry| entry.is_live);
        entry.ok_or_else(|| Wrong::Books(format!("block {} was released before", held.0)))
    }

    /// Books a block that has just got its frame.
    fn settle(&mut self, handle: u32) {
        let entry = self.entries[handle as usize];
        self.owners[(entry.frame - self.first) as usize] = handle;
        if entry.class.is_reclaimable() {
            self.lru.add(usize::from(entry.zone), entry.is_active, handle);
        }
    }

    /// Takes a block off the books that is about to lose its frame.
    fn unsettle(&mut self, handle: u32) {
        let entry = self.entries[handle as usize];
        self.owners[(entry.frame - self.first) as usize] = u32::MAX;
        if entry.class.is_reclaimable() {
            self.lru.remove(usize::from(entry.zone), entry.is_active, handle);
        }
    }
}

fn free_frames(zone: &crate::percpu::PerCpu<AnyPolicy>) -> u64 {
    u64::from(zone.zone().free_frames()) + u64::from(zone.kept_frames())
}

#[cfg(test)]
mod tests {
    use crate::study::{Scheme, Spec};

    #[test]
    fn a_mixed_load_leaves_the_books_in_order() {
        let spec = Spec {
            machine: "x86".to_owned(),
            kernelcore: None,
            scheme: Scheme::parse("mobility").unwrap(),
            load: "churn".to_owned(),
            parameters: Vec::new(),
            seed: 7,
            pictures: 0,
        };
        let outcome = crate::study::run(&spec, &mut |_| true).unwrap();
        assert_eq!(outcome, crate::study::run(&spec, &mut |_| true).unwrap());
        assert!(outcome.figures[0].value <= outcome.figures[0].per);
    }
}
