//! The naive twin of a machine: one record for each held page with the time that it was put on its list, and
//! every question answered by looking at all of them. It is told what was asked for, and knows after each
//! decision of the machine what it should have been. Where free memory lies it takes from what is not held;
//! the allocator below has a twin of its own.

mod marks;
mod moves;
mod way;
mod writes;

use std::ops::Range;

use super::compaction::{Came, Job, Manner};
use super::journal::{Event, Verdict};
use super::lru::{List, Sort};
use super::{Class, Config, Release, Tuning};
use crate::words::{Frame, Shape};

/// A held page or block.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub frame: Option<Frame>,
    pub order: u8,
    pub class: Class,
    pub zone: usize,
    pub objects: u8,
    pub in_use: u8,
    pub is_active: bool,
    pub is_touched: bool,
    pub is_referenced: bool,
    pub is_pinned: bool,
    /// When it was put on its list.
    pub age: i64,
    /// Pages that had been reclaimed when it was.
    pub stamp: u64,
    pub write: writes::Write,
}

/// What is known of the compaction of a zone.
#[derive(Clone, Debug, Default)]
struct Past {
    skips: Vec<Frame>,
    migrate: [Frame; 2],
    free: Frame,
    is_through: bool,
    put_off: u32,
    failures: u32,
    least_failed: Option<u8>,
}

/// Whom pageblocks belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nobody.
    Plain,
    /// Kinds.
    Kinds,
    /// Kinds, which are mixed at last; free memory counts in whole pageblocks.
    Apart,
    /// Two regions.
    Border,
}

/// Background reclaim of 6.1.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// It goes on, with so many pages to free since marks were raised.
    has_begun: bool,
    left: u64,
    /// Pages that were reclaimed before its last turn, which has just begun.
    since: Option<u64>,
    is_new: bool,
    /// That is for raised marks alone.
    is_boost: bool,
}

/// The twin.
#[derive(Clone, Debug)]
pub struct Naive {
    config: Config,
    tuning: Tuning,
    /// By handle.
    pub pages: Vec<Option<Page>>,
    /// The list that each pageblock of each zone belongs to, as they were before the request.
    pub owners: Vec<Vec<u8>>,
    /// Whom pageblocks belong to.
    pub rule: Rule,
    /// Of each zone, by how much its marks are raised, and were when background reclaim began.
    raised: Vec<(u64, u64)>,
    turn: Turn,
    /// Pages that should leave next, and the frames that they should leave.
    leaving: Vec<u32>,
    way: Range<Frame>,
    time: i64,
    reclaimed: u64,
    plan: (u8, u8),
    is_direct: bool,
    disk: writes::Disk,
    last: Option<Frame>,
    regions_at: Vec<Frame>,
    /// Pages that linear reclaim should try next.
    tried: Vec<u32>,
    past: Vec<Past>,
    /// What the compaction that goes on should move next, and how it should end.
    moves: Vec<(u32, Frame, Frame)>,
    end: Option<(Job, Came)>,
}

type Check = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, ours: T, theirs: T) -> Check {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: {ours:?}, the twin {theirs:?}")) }
}

/// Whether a page is one of the page cache.
fn is_cached(class: Class) -> bool {
    class == Class::File || class == Class::Buffer
}

impl Naive {
    /// Nothing held yet. Zones are in order of address.
    pub fn new(config: &Config, tuning: Tuning, rule: Rule) -> Naive {
        let past = |shape: Shape| Past {
            migrate: [shape.first; 2],
            free: shape.end() - (1 << shape.block_order),
            ..Past::default()
        };
        Naive {
            tuning,
            pages: Vec::new(),
            owners: Vec::new(),
            rule,
            raised: vec![(0, 0); config.zones.len()],
            turn: Turn::default(),
            leaving: Vec::new(),
            way: 0..0,
            time: 0,
            reclaimed: 0,
            plan: (0, 0),
            is_direct: false,
            disk: writes::Disk::default(),
            last: None,
            regions_at: config.zones.iter().map(|zone| zone.shape.first).collect(),
            tried: Vec::new(),
            past: config.zones.iter().map(|zone| past(zone.shape)).collect(),
            moves: Vec::new(),
            end: None,
            config: config.clone(),
        }
    }

    fn now(&mut self) -> i64 {
        self.time += 1;
        self.time
    }

    fn zone_of(&self, frame: Frame) -> usize {
        self.config.zones.iter().position(|zone| zone.shape.has(frame)).unwrap_or(usize::MAX)
    }

    fn page(&mut self, handle: u32) -> Result<&mut Page, String> {
        let page = self.pages.get_mut(handle as usize).and_then(Option::as_mut);
        page.ok_or_else(|| format!("nobody holds {handle}"))
    }

    /// The list that a page is on.
    fn list(&self, page: &Page) -> Option<List> {
        page.frame?;
        let old = self.tuning.release == Release::V2_6_16;
        let sort = match page.class {
            Class::Cache => Sort::Cache,
            Class::Anonymous => Sort::Anonymous,
            Class::File | Class::Buffer => {
                if old {
                    Sort::Anonymous
                } else {
                    Sort::File
                }
            }
            _ => return None,
        };
        let area = if old { page.zone } else { usize::from(self.config.zones[page.zone].node) };
        Some(List { area, sort, is_active: page.is_active })
    }

    /// The handles of a list, the newest first.
    pub fn handles(&self, list: List) -> Vec<u32> {
        let mut found: Vec<(i64, u32)> = Vec::new();
        for (handle, page) in (0u32..).zip(&self.pages) {
            if let Some(page) = page.as_ref().filter(|page| self.list(page) == Some(list)) {
                found.push((page.age, handle));
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, handle)| handle).collect()
    }

    fn sum(&self, is_counted: impl Fn(&Page) -> bool) -> u32 {
        self.pages.iter().flatten().filter(|page| is_counted(page)).map(|page| 1u32 << page.order).sum()
    }

    fn swapped(&self) -> u32 {
        self.sum(|page| page.class == Class::Anonymous && page.frame.is_none())
    }

    /// A block was allocated.
    pub fn asked(&mut self, handle: u32, class: Class, order: u8, frame: Frame) {
        let age = self.now();
        let page = Page {
            frame: Some(frame),
            order,
            class,
            zone: self.zone_of(frame),
            objects: if class == Class::Cache { self.tuning.objects_a_page } else { 0 },
            in_use: 0,
            is_active: class == Class::Anonymous && self.tuning.release == Release::V2_6_16,
            is_touched: false,
            is_referenced: false,
            is_pinned: false,
            age,
            stamp: 0,
            write: writes::Write::default(),
        };
        let handle = handle as usize;
        if handle == self.pages.len() {
            self.pages.push(None);
        }
        self.pages[handle] = Some(page);
        if class == Class::Anonymous {
            self.wrote(handle as u32);
        }
    }

    /// One that was reclaimed is back.
    pub fn brought_back(&mut self, handle: u32, frame: Frame) -> Check {
        let age = self.now();
        let page = *self.page(handle)?;
        let soon = self.is_missed(&page);
        let (zone, objects) = (self.zone_of(frame), self.tuning.objects_a_page);
        let begins_active = page.class == Class::Anonymous && self.tuning.release == Release::V2_6_16;
        let page = self.page(handle)?;
        page.objects = if page.class == Class::Cache { objects } else { 0 };
        (page.frame, page.zone, page.age, page.is_active) = (Some(frame), zone, age, begins_active || soon);
        if page.class == Class::Anonymous {
            self.wrote(handle);
        }
        Ok(())
    }

    /// Whether the pages reclaimed since are no more than what else could have been.
    fn is_missed(&self, gone: &Page) -> bool {
        if self.tuning.release == Release::V2_6_16 || gone.class == Class::Cache {
            return false;
        }
        let swapped = self.swapped() - if gone.class == Class::Anonymous { 1 << gone.order } else { 0 };
        let usable = |class: Class| is_cached(class) || swapped < self.config.swap_frames;
        let room = self.sum(|page| {
            let is_alike = page.class == gone.class || is_cached(page.class) && is_cached(gone.class);
            let is_other = !is_alike && page.class != Class::Cache;
            let is_listed = page.frame.is_some() && page.class.is_reclaimable();
            let is_node = self.config.zones[page.zone].node == self.config.zones[gone.zone].node;
            is_listed && is_node && usable(page.class) && (is_other || is_alike && page.is_active)
        });
        self.reclaimed - gone.stamp <= u64::from(room)
    }

    /// Goes along with a decision, if it is the right one.
    pub fn decided(&mut self, event: &Event) -> Check {
        match *event {
            Event::Planned { order, height, is_direct } => {
                if !std::mem::take(&mut self.turn.is_new) {
                    self.turn_ends();
                }
                (self.plan, self.is_direct) = ((order, height), is_direct);
            }
            Event::Disk { pages, is_nap } => self.begin_disk(pages, is_nap)?,
            Event::Wanted { pages } => self.disk.wanted = self.disk.wanted.max(pages),
            Event::Finished { handle } => self.finished(handle)?,
            Event::Flush => self.begin_flush()?,
            Event::Sent { handle } => self.sent(handle)?,
            Event::Boosted { zone, times, now } => self.boosted(zone, times, now)?,
            Event::Way { zone, ref range, is_open } => self.way(zone, range, is_open)?,
            Event::Left { handle, from, to } => self.left(handle, from, to)?,
            Event::WayEnded { zone, fits } => self.way_ended(zone, fits)?,
            Event::GaveBack { zone, pageblocks } => self.gave_back(zone, pageblocks)?,
            Event::Done { .. } => self.done(),
            Event::Lowered { zone, now } => self.lowered(zone, now)?,
            Event::Turn { order, height, is_balanced, boost } => {
                self.turns((order, height), is_balanced, boost)?;
            }
            Event::Looked { list, handle, verdict } => {
                same("pages of programs", self.turn.is_boost && list.sort == Sort::Anonymous, false)?;
                same("an active list is looked at", list.is_active, false)?;
                same("the oldest page", Some(handle), self.handles(list).last().copied())?;
                self.last = self.page(handle)?.frame;
                self.judged(handle, verdict)?;
            }
            Event::Aged { list, handle, takes_mapped, stays } => {
                self.aged(list, handle, takes_mapped, stays)?;
            }
            Event::Beside { handle, verdict } => {
                self.is_beside(handle)?;
                self.judged(handle, verdict)?;
            }
            Event::Shrunk { handle, objects } => self.shrunk(handle, objects)?,
            Event::Region { from, order, is_tried } if self.config.reclaim.name == "linear" => {
                self.region(from, order, is_tried)?;
            }
            Event::Region { .. } => {}
            Event::Asked { zone, order, is_deferred } => {
                same("put off", is_deferred, self.puts_off(zone, order))?;
            }
            Event::Flushed { zone } => self.flushed(zone),
            Event::Forgiven { zone, order } => self.forgiven(zone, order, true),
            Event::Began { zone, ref job } => self.plan_moves(zone, job),
            Event::Moved { handle, from, to } => {
                if self.moves.is_empty() {
                    return Err(format!("{handle} moves from {from:#x} to {to:#x}, the twin is at the end"));
                }
                same("a move", (handle, from, to), self.moves.remove(0))?;
                let age = self.now();
                let page = self.page(handle)?;
                (page.frame, page.age) = (Some(to), age);
            }
            Event::Ended { zone, came } => self.ended(zone, came)?,
        }
        Ok(())
    }

    /// The page at the end of an active list.
    fn aged(&mut self, list: List, handle: u32, takes_mapped: bool, stays: bool) -> Check {
        same("the oldest active page", Some(handle), self.handles(list).last().copied())?;
        let page = *self.page(handle)?;
        let is_above = self.config.zones[page.zone].height > self.plan.1;
        let expected = match self.tuning.release {
            Release::V2_6_16 if is_cached(page.class) => false,
            Release::V2_6_16 => !takes_mapped || self.config.swap_frames == 0 || page.is_touched,
            Release::V6_1 => is_above,
        };
        same("a page stays active", stays, expected)?;
        let old = self.tuning.release == Release::V2_6_16;
        let keeps_touch = match page.class {
            Class::Anonymous if old => !takes_mapped || self.config.swap_frames == 0,
            _ => old || is_above,
        };
        let age = self.now();
        let page = self.page(handle)?;
        (page.is_active, page.age) = (stays, age);
        page.is_touched &= keeps_touch;
        Ok(())
    }

    /// What becomes of a page that reclaim looks at.
    fn judged(&mut self, handle: u32, verdict: Verdict) -> Check {
        let page = *self.page(handle)?;
        let left = self.config.swap_frames.saturating_sub(self.swapped());
        let is_costly = match self.config.reclaim.name {
            "lru" | "linear" => false,
            "lumpy" => self.plan.0 > 3,
            // What the twin has no rule for is told.
            _ => !self.config.reclaim.way.spares_used(self.plan.0),
        };
        let (mut expected, mut marked) = (Verdict::Reclaim, false);
        if self.config.zones[page.zone].height > self.plan.1 {
            expected = Verdict::Skip;
        } else if page.write.is_writing {
            expected = if self.tuning.release == Release::V6_1 { Verdict::Await } else { Verdict::Keep };
        } else if page.is_pinned || page.class == Class::Anonymous && left < 1 << page.order {
            expected = Verdict::Activate;
        } else if page.is_touched && !is_costly {
            marked = true;
            let second = page.is_referenced || self.tuning.release == Release::V2_6_16;
            expected = match (second, self.config.keeps_referenced) {
                (false, _) => Verdict::Keep,
                (true, true) => Verdict::Activate,
                (true, false) => Verdict::Reclaim,
            };
        }
        if expected == Verdict::Reclaim {
            expected = self.written_first(&page);
        }
        same("what becomes of a page", (handle, verdict), (handle, expected))?;
        let age = self.now();
        let page = self.page(handle)?;
        page.age = age;
        page.is_touched &= !marked;
        page.is_referenced |= verdict == Verdict::Keep && marked;
        if verdict == Verdict::Activate {
            (page.is_active, page.is_referenced) = (true, false);
        }
        match verdict {
            Verdict::Reclaim => self.gone(handle)?,
            Verdict::Write => self.send(handle, true)?,
            Verdict::Await => {
                let page = self.page(handle)?;
                (page.is_active, page.write.is_hasty) = (true, true);
                let pages = 1 << page.order;
                self.disk.wanted += pages;
            }
            _ => {}
        }
        Ok(())
    }

    fn gone(&mut self, handle: u32) -> Check {
        let reclaimed = self.reclaimed;
        let page = self.page(handle)?;
        (page.frame, page.is_active, page.is_touched, page.is_referenced) = (None, false, false, false);
        page.stamp = reclaimed;
        page.write = writes::Write::default();
        let pages = 1 << page.order;
        self.reclaimed += pages;
        Ok(())
    }

    fn shrunk(&mut self, handle: u32, objects: u8) -> Check {
        let page = *self.page(handle)?;
        let list = self.list(&page).ok_or("a page of no list")?;
        same("the oldest page of caches", Some(handle), self.handles(list).last().copied())?;
        let free = page.objects - page.in_use;
        let stays = page.is_touched || page.is_pinned;
        let expected = if stays { page.objects } else { page.objects - free.div_ceil(2) };
        same("objects", objects, expected)?;
        let age = self.now();
        let page = self.page(handle)?;
        (page.objects, page.is_touched, page.age) = (objects, false, age);
        if objects == 0 { self.gone(handle) } else { Ok(()) }
    }

    /// Who holds each frame of a zone; by its place in it.
    fn holders(&self, zone: usize) -> Vec<Option<u32>> {
        let shape = self.config.zones[zone].shape;
        let mut holders = vec![None; shape.frames as usize];
        for (handle, page) in (0u32..).zip(&self.pages) {
            let Some((page, frame)) = page.as_ref().and_then(|page| Some((page, page.frame?))) else {
                continue;
            };
            if page.zone == zone {
                let at = (frame - shape.first) as usize;
                holders[at..at + (1 << page.order)].fill(Some(handle));
            }
        }
        holders
    }

    fn region(&mut self, from: Frame, order: u8, is_tried: bool) -> Check {
        let zone = self.zone_of(from);
        let shape = self.config.zones.get(zone).ok_or("a region of no zone")?.shape;
        let frames = 1u32 << order;
        let starts: Vec<Frame> = (shape.first..shape.end())
            .filter(|at| at.is_multiple_of(frames) && at + frames <= shape.end())
            .collect();
        let next = starts.iter().find(|&&at| at >= self.regions_at[zone]).or(starts.first());
        same("the next region", Some(from), next.copied())?;
        self.regions_at[zone] = from + frames;
        let holders = self.holders(zone);
        let mut held: Vec<u32> =
            (from..from + frames).filter_map(|at| holders[(at - shape.first) as usize]).collect();
        held.dedup();
        let left = self.config.swap_frames.saturating_sub(self.swapped());
        let is_likely = |&handle: &u32| {
            let page = self.pages[handle as usize].as_ref();
            page.is_some_and(|page| {
                let begins = page.frame >= Some(from);
                let fits = is_cached(page.class) || page.class == Class::Anonymous && left >= 1 << page.order;
                begins && fits && page.order <= order && !page.is_pinned && !page.write.is_writing
            })
        };
        same("a region is tried", is_tried, !held.is_empty() && held.iter().all(is_likely))?;
        self.tried = if is_tried { held } else { Vec::new() };
        self.tried.reverse();
        Ok(())
    }

    /// A page that is tried is the next of its region, or a neighbour of the oldest one.
    fn is_beside(&mut self, handle: u32) -> Check {
        match self.config.reclaim.name {
            "linear" => return same("the next page of a region", Some(handle), self.tried.pop()),
            "lumpy" => {}
            "lru" => return Err("a page is tried for its place".to_owned()),
            _ => return Ok(()),
        }
        let (order, frame) = (self.plan.0, self.page(handle)?.frame);
        let block = |frame: Option<Frame>| frame.map(|frame| frame >> order);
        same("the block of a neighbour", block(frame), block(self.last))
    }

    /// Whether a compaction is put off: after n failures in a row 2^n, 64 at most, come to nothing.
    fn puts_off(&mut self, zone: usize, order: u8) -> bool {
        let past = &mut self.past[zone];
        if past.least_failed.is_none_or(|failed| order < failed) {
            return false;
        }
        past.put_off += 1;
        let is_off = past.put_off < 1 << past.failures.min(6);
        if !is_off {
            past.put_off = 1 << past.failures.min(6);
        }
        is_off
    }

    fn forgiven(&mut self, zone: usize, order: u8, was_served: bool) {
        let past = &mut self.past[zone];
        if was_served {
            (past.put_off, past.failures) = (0, 0);
        }
        if past.least_failed.is_some_and(|failed| order >= failed) {
            past.least_failed = Some(order + 1);
        }
    }

    fn flushed(&mut self, zone: usize) {
        if self.past[zone].is_through {
            self.forget(zone);
        }
    }

    /// Nothing is known of the zone any more.
    fn forget(&mut self, zone: usize) {
        let shape = self.config.zones[zone].shape;
        let past = &mut self.past[zone];
        past.skips.clear();
        past.is_through = false;
        (past.migrate, past.free) = ([shape.first; 2], shape.end() - (1 << shape.block_order));
    }

    /// Pageblocks of a zone that are not worth a look, and where scanners go on: pages twice, and room.
    pub fn known(&self, zone: usize) -> (Vec<bool>, [Frame; 3]) {
        let (past, shape) = (&self.past[zone], self.config.zones[zone].shape);
        let blocks = (shape.first..shape.end()).step_by(1 << shape.block_order);
        let skips = blocks.map(|block| past.skips.contains(&block)).collect();
        (skips, [past.migrate[0], past.migrate[1], past.free])
    }

    fn ended(&mut self, zone: usize, came: Came) -> Check {
        let (job, expected) = self.end.take().ok_or("no compaction goes on")?;
        same("moves that are left", &[][..], &self.moves[..])?;
        same("how a compaction ends", came, expected)?;
        let past = &mut self.past[zone];
        if matches!(came, Came::Complete | Came::Partial) {
            past.is_through |= job.is_direct || job.score.is_some();
            if job.manner != Manner::Careful && job.score.is_none() {
                past.put_off = 0;
                past.failures += 1;
                past.least_failed = Some(past.least_failed.map_or(job.order, |failed| failed.min(job.order)));
            }
        }
        if came == Came::Success && job.score.is_none() {
            self.forgiven(zone, job.order, false);
        }
        Ok(())
    }
}
