//! Naive twin of a machine: one record per held page with the time at which it entered its list, searched for
//! every query. It receives the requests, and knows after each decision of the machine what it should have
//! been. It derives the locations of free memory from the blocks that are not allocated; the allocator below
//! has a twin of its own.

use std::ops::Range;

use super::compaction::{CompactControl, CompactPriority, CompactResult};
use super::journal::{Decision, PageVerdict};
use super::lru::{LruKind, LruList};
use super::{KernelTuning, MachineConfig, PageUse, Release};
use crate::types::{AllocationType, Frame, ZoneGeometry};

mod migration;
mod writeback;

/// A held page or block.
#[derive(Clone, Copy, Debug)]
pub struct NaivePage {
    pub frame: Option<Frame>,
    pub order: u8,
    pub page_use: PageUse,
    pub zone: usize,
    pub objects: u8,
    pub in_use: u8,
    pub is_active: bool,
    pub is_accessed: bool,
    pub is_referenced: bool,
    pub is_pinned: bool,
    /// Time at which it was added to its list.
    pub list_age: i64,
    /// Pages that had been reclaimed when it was.
    pub eviction_stamp: u64,
    pub write: writeback::NaiveWriteback,
}

/// State of the compaction of a zone.
#[derive(Clone, Debug, Default)]
struct NaiveCompactState {
    skipped_pageblocks: Vec<Frame>,
    migrate: [Frame; 2],
    free: Frame,
    has_completed: bool,
    deferred_count: u32,
    failures: u32,
    min_failed_order: Option<u8>,
}

impl NaiveCompactState {
    fn reset_scanners(&mut self, geometry: ZoneGeometry) {
        self.migrate = [geometry.first_frame; 2];
        self.free = geometry.end() - (1 << geometry.pageblock_order);
    }
}

/// Purpose of reclaim.
#[derive(Clone, Copy, Debug, Default)]
struct ReclaimGoal {
    order: u8,
    /// Highest zone index that serves the request.
    zone_index: u8,
}

/// Watermark boost of a zone.
#[derive(Clone, Copy, Debug, Default)]
struct NaiveBoost {
    current: u64,
    at_kswapd_start: u64,
}

/// Rule for the owners of pageblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnershipRule {
    /// Pageblocks have no owners.
    Unowned,
    /// An allocation type owns a pageblock.
    ByAllocationType,
    /// As before, but types are mixed only as a last resort, and only whole free pageblocks count as free
    /// memory (`vm.defrag_mode`).
    DefragMode,
    /// A pageblock is in the unmovable or in the movable region.
    Regions,
}

/// State of `kswapd` of 6.1.
#[derive(Clone, Copy, Debug, Default)]
struct NaiveKswapdPass {
    /// Whether it runs, and pages that it still has to free for boosted watermarks.
    has_begun: bool,
    boost_left: u64,
    /// Number of pages reclaimed before its last pass, if that has just begun.
    reclaimed_before: Option<u64>,
    is_new: bool,
    /// Whether the pass is for boosted watermarks only.
    is_boost: bool,
}

/// The naive twin of [`super::Machine`].
#[derive(Clone, Debug)]
pub struct NaiveMachine {
    config: MachineConfig,
    tuning: KernelTuning,
    /// By handle.
    pub pages: Vec<Option<NaivePage>>,
    /// Owner of each pageblock of each zone before the current request.
    pub pageblock_owners: Vec<Vec<u8>>,
    /// How the owners of pageblocks are determined.
    pub rule: OwnershipRule,
    /// By zone.
    watermark_boosts: Vec<NaiveBoost>,
    kswapd_pass: NaiveKswapdPass,
    /// Pages that should be evacuated next, and the range that is evacuated.
    expected_migrations: Vec<u32>,
    evacuated_range: Range<Frame>,
    time: i64,
    reclaimed: u64,
    goal: ReclaimGoal,
    is_direct: bool,
    disk: writeback::NaiveDisk,
    last_region: Option<Frame>,
    linear_cursors: Vec<Frame>,
    /// Expected next pages of linear reclaim.
    expected_reclaims: Vec<u32>,
    compact_states: Vec<NaiveCompactState>,
    /// Expected moves and result of the current compaction.
    expected_moves: Vec<(u32, Frame, Frame)>,
    expected_end: Option<(CompactControl, CompactResult)>,
}

type CheckResult = Result<(), String>;

fn expect_same<T: PartialEq + std::fmt::Debug>(what: &str, ours: T, theirs: T) -> CheckResult {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: {ours:?}, in the twin {theirs:?}")) }
}

fn is_page_cache(class: PageUse) -> bool {
    class == PageUse::File || class == PageUse::BlockDevice
}

impl NaiveMachine {
    /// A twin of a machine in which nothing is allocated. Zones are in order of address.
    pub fn new(config: &MachineConfig, tuning: KernelTuning, rule: OwnershipRule) -> NaiveMachine {
        let past = |geometry: ZoneGeometry| {
            let mut past = NaiveCompactState::default();
            past.reset_scanners(geometry);
            past
        };
        NaiveMachine {
            tuning,
            pages: Vec::new(),
            pageblock_owners: Vec::new(),
            rule,
            watermark_boosts: vec![NaiveBoost::default(); config.zones.len()],
            kswapd_pass: NaiveKswapdPass::default(),
            expected_migrations: Vec::new(),
            evacuated_range: Frame::default()..Frame::default(),
            time: 0,
            reclaimed: 0,
            goal: ReclaimGoal::default(),
            is_direct: false,
            disk: writeback::NaiveDisk::default(),
            last_region: None,
            linear_cursors: config.zones.iter().map(|zone| zone.geometry.first_frame).collect(),
            expected_reclaims: Vec::new(),
            compact_states: config.zones.iter().map(|zone| past(zone.geometry)).collect(),
            expected_moves: Vec::new(),
            expected_end: None,
            config: config.clone(),
        }
    }

    fn next_time(&mut self) -> i64 {
        self.time += 1;
        self.time
    }

    fn zone_of(&self, frame: Frame) -> usize {
        let zone = self.config.zones.iter().position(|zone| zone.geometry.contains(frame));
        zone.unwrap_or_else(|| panic!("frame {frame:#x} is in no zone"))
    }

    fn page(&mut self, handle: u32) -> Result<&mut NaivePage, String> {
        let page = self.pages.get_mut(handle as usize).and_then(Option::as_mut);
        page.ok_or_else(|| format!("{handle} is not allocated"))
    }

    /// A page that is added to its list now.
    fn renewed_page(&mut self, handle: u32) -> Result<&mut NaivePage, String> {
        let age = self.next_time();
        let page = self.page(handle)?;
        page.list_age = age;
        Ok(page)
    }

    fn lru_list_of(&self, page: &NaivePage) -> Option<LruList> {
        page.frame?;
        let old = self.tuning.release == Release::V2_6_16;
        let sort = match page.page_use {
            PageUse::Slab => LruKind::Slab,
            PageUse::Anonymous => LruKind::Anonymous,
            PageUse::File | PageUse::BlockDevice if old => LruKind::Anonymous,
            PageUse::File | PageUse::BlockDevice => LruKind::File,
            _ => return None,
        };
        let area = if old { page.zone } else { usize::from(self.config.zones[page.zone].node) };
        Some(LruList { lruvec: area, kind: sort, is_active: page.is_active })
    }

    /// The handles of a list, the newest first.
    pub fn handles(&self, list: LruList) -> Vec<u32> {
        let mut found: Vec<(i64, u32)> = Vec::new();
        for (handle, page) in (0u32..).zip(&self.pages) {
            if let Some(page) = page.as_ref().filter(|page| self.lru_list_of(page) == Some(list)) {
                found.push((page.list_age, handle));
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, handle)| handle).collect()
    }

    fn count_pages(&self, is_counted: impl Fn(&NaivePage) -> bool) -> u32 {
        self.pages.iter().flatten().filter(|page| is_counted(page)).map(|page| 1u32 << page.order).sum()
    }

    fn swapped_frames(&self) -> u32 {
        self.count_pages(|page| page.page_use == PageUse::Anonymous && page.frame.is_none())
    }

    /// A block was allocated.
    pub fn record_allocation(&mut self, handle: u32, class: PageUse, order: u8, frame: Frame) {
        let age = self.next_time();
        let page = NaivePage {
            frame: Some(frame),
            order,
            page_use: class,
            zone: self.zone_of(frame),
            objects: if class == PageUse::Slab { self.tuning.objects_per_page } else { 0 },
            in_use: 0,
            is_active: class == PageUse::Anonymous && self.tuning.release == Release::V2_6_16,
            is_accessed: false,
            is_referenced: false,
            is_pinned: false,
            list_age: age,
            eviction_stamp: 0,
            write: writeback::NaiveWriteback::default(),
        };
        let handle = handle as usize;
        if handle == self.pages.len() {
            self.pages.push(None);
        }
        self.pages[handle] = Some(page);
        if class == PageUse::Anonymous {
            self.record_write(handle as u32);
        }
    }

    /// A reclaimed block was refaulted.
    pub fn record_refault(&mut self, handle: u32, frame: Frame) -> CheckResult {
        let page = *self.page(handle)?;
        let soon = self.is_workingset_refault(&page);
        let (zone, objects) = (self.zone_of(frame), self.tuning.objects_per_page);
        let begins_active = page.page_use == PageUse::Anonymous && self.tuning.release == Release::V2_6_16;
        let page = self.renewed_page(handle)?;
        page.objects = if page.page_use == PageUse::Slab { objects } else { 0 };
        (page.frame, page.zone, page.is_active) = (Some(frame), zone, begins_active || soon);
        if page.page_use == PageUse::Anonymous {
            self.record_write(handle);
        }
        Ok(())
    }

    /// Whether the pages reclaimed since are no more than what else could have been.
    fn is_workingset_refault(&self, gone: &NaivePage) -> bool {
        if self.tuning.release == Release::V2_6_16 || gone.page_use == PageUse::Slab {
            return false;
        }
        let swapped =
            self.swapped_frames() - if gone.page_use == PageUse::Anonymous { 1 << gone.order } else { 0 };
        let usable = |class: PageUse| is_page_cache(class) || swapped < self.config.swap_frames;
        let room = self.count_pages(|page| {
            let is_alike = page.page_use == gone.page_use
                || is_page_cache(page.page_use) && is_page_cache(gone.page_use);
            let is_other = !is_alike && page.page_use != PageUse::Slab;
            let is_listed =
                page.frame.is_some() && (is_page_cache(page.page_use) || page.page_use == PageUse::Anonymous);
            let is_node = self.config.zones[page.zone].node == self.config.zones[gone.zone].node;
            is_listed && is_node && usable(page.page_use) && (is_other || is_alike && page.is_active)
        });
        self.reclaimed - gone.eviction_stamp <= u64::from(room)
    }

    /// Checks a decision of the machine, and applies it.
    pub fn check_decision(&mut self, event: &Decision) -> CheckResult {
        match *event {
            Decision::ReclaimPass { order, zone_index, is_direct } => {
                if !std::mem::take(&mut self.kswapd_pass.is_new) {
                    self.finish_kswapd_pass();
                }
                (self.goal, self.is_direct) = (ReclaimGoal { order, zone_index }, is_direct);
            }
            Decision::DiskSlice { pages, is_congestion_wait } => {
                self.check_disk_slice(pages, is_congestion_wait)?
            }
            Decision::WritebackRequested { pages } => {
                self.disk.requested_pages = self.disk.requested_pages.max(pages)
            }
            Decision::WriteCompleted { handle } => self.check_completion(handle)?,
            Decision::FlusherRun => self.check_flusher()?,
            Decision::FlusherWrite { handle } => self.check_flusher_write(handle)?,
            Decision::WatermarksBoosted { zone, times, boost: now } => self.check_boost(zone, times, now)?,
            Decision::RegionExpansion { zone, ref range, can_evacuate } => {
                self.check_region_expansion(zone, range, can_evacuate)?
            }
            Decision::BlockLeftRange { handle, from, to } => self.check_migration_out(handle, from, to)?,
            Decision::RegionExpansionEnded { zone, has_room } => {
                self.check_region_expansion_end(zone, has_room)?
            }
            Decision::PageblocksReturned { zone, pageblocks } => {
                self.check_pageblocks_returned(zone, pageblocks)?
            }
            Decision::KswapdFinished { .. } => self.finish_kswapd(),
            Decision::BoostReduced { zone, boost: now } => self.check_boost_reduction(zone, now)?,
            Decision::KswapdPass { order, zone_index, is_balanced, boost } => {
                self.check_kswapd_pass(ReclaimGoal { order, zone_index }, is_balanced, boost)?;
            }
            Decision::InactivePageScanned { list, handle, verdict } => {
                self.check_inactive_scan(list, handle)?;
                self.check_verdict(handle, verdict)?;
            }
            Decision::ActivePageScanned { list, handle, can_reclaim_mapped, stays_active } => {
                self.check_active_scan(list, handle, can_reclaim_mapped, stays_active)?;
            }
            Decision::NeighborScanned { handle, verdict } => {
                self.check_neighbor(handle)?;
                self.check_verdict(handle, verdict)?;
            }
            Decision::SlabPageShrunk { handle, objects } => self.check_slab_shrink(handle, objects)?,
            Decision::RegionAssessed { from, order, is_tried }
                if self.config.reclaim_policy.name == "linear" =>
            {
                self.check_region(from, order, is_tried)?;
            }
            Decision::RegionAssessed { .. } => {}
            Decision::CompactionRequested { zone, order, is_deferred } => {
                expect_same("compaction is deferred", is_deferred, self.is_deferred(zone, order))?;
            }
            Decision::SkipBitsReset { zone } => {
                if self.compact_states[zone].has_completed {
                    self.reset_compaction(zone);
                }
            }
            Decision::DeferralReset { zone, order } => self.reset_deferral(zone, order, true),
            Decision::CompactionBegan { zone, control: ref job } => self.plan_compaction(zone, job),
            Decision::PageMigrated { handle, from, to } => self.check_migration(handle, from, to)?,
            Decision::CompactionEnded { zone, result } => self.check_compaction_end(zone, result)?,
        }
        Ok(())
    }

    fn check_inactive_scan(&mut self, list: LruList, handle: u32) -> CheckResult {
        let scans_programs = self.kswapd_pass.is_boost && list.kind == LruKind::Anonymous;
        expect_same("anonymous pages are scanned", scans_programs, false)?;
        expect_same("an active list is scanned", list.is_active, false)?;
        expect_same("the oldest page", Some(handle), self.handles(list).last().copied())?;
        self.last_region = self.page(handle)?.frame;
        Ok(())
    }

    fn check_migration(&mut self, handle: u32, from: Frame, to: Frame) -> CheckResult {
        if self.expected_moves.is_empty() {
            return Err(format!("{handle} moves from {from:#x} to {to:#x}, the twin expects no more moves"));
        }
        expect_same("a move", (handle, from, to), self.expected_moves.remove(0))?;
        self.renewed_page(handle)?.frame = Some(to);
        Ok(())
    }

    /// Checks the scan of the page at the end of an active list.
    fn check_active_scan(
        &mut self,
        list: LruList,
        handle: u32,
        can_reclaim_mapped: bool,
        stays_active: bool,
    ) -> CheckResult {
        expect_same("the oldest active page", Some(handle), self.handles(list).last().copied())?;
        let page = *self.page(handle)?;
        let is_above = self.config.zones[page.zone].zone_index > self.goal.zone_index;
        let expected = match self.tuning.release {
            Release::V2_6_16 if is_page_cache(page.page_use) => false,
            Release::V2_6_16 => !can_reclaim_mapped || self.config.swap_frames == 0 || page.is_accessed,
            Release::V6_1 => is_above,
        };
        expect_same("a page stays active", stays_active, expected)?;
        let old = self.tuning.release == Release::V2_6_16;
        let keeps_touch = match page.page_use {
            PageUse::Anonymous if old => !can_reclaim_mapped || self.config.swap_frames == 0,
            _ => old || is_above,
        };
        let page = self.renewed_page(handle)?;
        page.is_active = stays_active;
        page.is_accessed &= keeps_touch;
        Ok(())
    }

    /// Expected decision of reclaim about a page.
    fn check_verdict(&mut self, handle: u32, verdict: PageVerdict) -> CheckResult {
        let page = *self.page(handle)?;
        let left = self.config.swap_frames.saturating_sub(self.swapped_frames());
        let is_costly = match self.config.reclaim_policy.name {
            "lru" | "linear" => false,
            "lumpy" => self.goal.order > 3,
            // The twin has no rule for these decisions, and takes them from the machine.
            _ => !self.config.reclaim_policy.policy.has_second_chance(self.goal.order),
        };
        let (mut expected, mut marked) = (PageVerdict::Reclaim, false);
        if self.config.zones[page.zone].zone_index > self.goal.zone_index {
            expected = PageVerdict::Skip;
        } else if page.write.is_writing {
            expected = match self.tuning.release {
                Release::V6_1 => PageVerdict::AwaitWriteback,
                Release::V2_6_16 => PageVerdict::Keep,
            };
        } else if page.is_pinned || page.page_use == PageUse::Anonymous && left < 1 << page.order {
            expected = PageVerdict::Activate;
        } else if page.is_accessed && !is_costly {
            marked = true;
            let second = page.is_referenced || self.tuning.release == Release::V2_6_16;
            expected = match (second, self.config.activates_referenced) {
                (false, _) => PageVerdict::Keep,
                (true, true) => PageVerdict::Activate,
                (true, false) => PageVerdict::Reclaim,
            };
        }
        if expected == PageVerdict::Reclaim {
            expected = self.verdict_for_unused(&page);
        }
        expect_same("the verdict on a page", (handle, verdict), (handle, expected))?;
        let page = self.renewed_page(handle)?;
        page.is_accessed &= !marked;
        page.is_referenced |= verdict == PageVerdict::Keep && marked;
        if verdict == PageVerdict::Activate {
            (page.is_active, page.is_referenced) = (true, false);
        }
        match verdict {
            PageVerdict::Reclaim => self.record_eviction(handle)?,
            PageVerdict::Write => self.check_submit(handle, true)?,
            PageVerdict::AwaitWriteback => {
                let page = self.page(handle)?;
                (page.is_active, page.write.is_reclaim_pending) = (true, true);
                let pages = 1 << page.order;
                self.disk.requested_pages += pages;
            }
            _ => {}
        }
        Ok(())
    }

    fn record_eviction(&mut self, handle: u32) -> CheckResult {
        let reclaimed = self.reclaimed;
        let page = self.page(handle)?;
        (page.frame, page.is_active, page.is_accessed, page.is_referenced) = (None, false, false, false);
        page.eviction_stamp = reclaimed;
        page.write = writeback::NaiveWriteback::default();
        let pages = 1 << page.order;
        self.reclaimed += pages;
        Ok(())
    }

    fn check_slab_shrink(&mut self, handle: u32, objects: u8) -> CheckResult {
        let page = *self.page(handle)?;
        let list = self.lru_list_of(&page).ok_or("a page on no LRU list")?;
        expect_same("the oldest slab page", Some(handle), self.handles(list).last().copied())?;
        let free = page.objects - page.in_use;
        let stays = page.is_accessed || page.is_pinned;
        let expected = if stays { page.objects } else { page.objects - free.div_ceil(2) };
        expect_same("objects", objects, expected)?;
        let page = self.renewed_page(handle)?;
        (page.objects, page.is_accessed) = (objects, false);
        if objects == 0 { self.record_eviction(handle) } else { Ok(()) }
    }

    /// Holder of each frame of a zone, by offset.
    fn holders(&self, zone: usize) -> Vec<Option<u32>> {
        let geometry = self.config.zones[zone].geometry;
        let mut holders = vec![None; geometry.frames as usize];
        for (handle, page) in (0u32..).zip(&self.pages) {
            let Some((page, frame)) = page.as_ref().and_then(|page| Some((page, page.frame?))) else {
                continue;
            };
            if page.zone == zone {
                let at = (frame - geometry.first_frame) as usize;
                holders[at..at + (1 << page.order)].fill(Some(handle));
            }
        }
        holders
    }

    /// Held blocks in a range of frames of a zone, by address.
    fn blocks_in(&self, zone: usize, range: Range<Frame>) -> Vec<u32> {
        let (holders, first) = (self.holders(zone), self.config.zones[zone].geometry.first_frame);
        let mut held: Vec<u32> =
            Frame::range(range).filter_map(|at| holders[(at - first) as usize]).collect();
        held.dedup();
        held
    }

    fn check_region(&mut self, from: Frame, order: u8, is_tried: bool) -> CheckResult {
        let zone = self.zone_of(from);
        let geometry = self.config.zones.get(zone).ok_or("a region outside all zones")?.geometry;
        let frames = 1u32 << order;
        let starts: Vec<Frame> = Frame::range(geometry.first_frame..geometry.end())
            .filter(|at| at.is_aligned(order) && *at + frames <= geometry.end())
            .collect();
        let next = starts.iter().find(|&&at| at >= self.linear_cursors[zone]).or(starts.first());
        expect_same("the next region", Some(from), next.copied())?;
        self.linear_cursors[zone] = from + frames;
        let mut held = self.blocks_in(zone, from..from + frames);
        let left = self.config.swap_frames.saturating_sub(self.swapped_frames());
        let is_likely = |&handle: &u32| {
            let page = self.pages[handle as usize].as_ref();
            page.is_some_and(|page| {
                let begins = page.frame >= Some(from);
                let fits = is_page_cache(page.page_use)
                    || page.page_use == PageUse::Anonymous && left >= 1 << page.order;
                begins && fits && page.order <= order && !page.is_pinned && !page.write.is_writing
            })
        };
        expect_same("a region is tried", is_tried, !held.is_empty() && held.iter().all(is_likely))?;
        held.reverse();
        self.expected_reclaims = if is_tried { held } else { Vec::new() };
        Ok(())
    }

    /// Checks that a scanned page is the next of its region, or a neighbor of the oldest one.
    fn check_neighbor(&mut self, handle: u32) -> CheckResult {
        match self.config.reclaim_policy.name {
            "linear" => {
                return expect_same("the next page of a region", Some(handle), self.expected_reclaims.pop());
            }
            "lumpy" => {}
            "lru" => return Err("a neighbour is scanned under lru".to_owned()),
            _ => return Ok(()),
        }
        let (order, frame) = (self.goal.order, self.page(handle)?.frame);
        let block = |frame: Option<Frame>| frame.map(|frame| frame.align_down(order));
        expect_same("the block of a neighbour", block(frame), block(self.last_region))
    }

    /// Whether a compaction is deferred: after n consecutive failures, the next 2^n requests, but at most 64,
    /// are deferred.
    fn is_deferred(&mut self, zone: usize, order: u8) -> bool {
        let past = &mut self.compact_states[zone];
        if past.min_failed_order.is_none_or(|failed| order < failed) {
            return false;
        }
        past.deferred_count += 1;
        let is_off = past.deferred_count < 1 << past.failures.min(6);
        if !is_off {
            past.deferred_count = 1 << past.failures.min(6);
        }
        is_off
    }

    fn reset_deferral(&mut self, zone: usize, order: u8, was_served: bool) {
        let past = &mut self.compact_states[zone];
        if was_served {
            (past.deferred_count, past.failures) = (0, 0);
        }
        if past.min_failed_order.is_some_and(|failed| order >= failed) {
            past.min_failed_order = Some(order + 1);
        }
    }

    fn reset_compaction(&mut self, zone: usize) {
        let geometry = self.config.zones[zone].geometry;
        let past = &mut self.compact_states[zone];
        past.skipped_pageblocks.clear();
        past.has_completed = false;
        past.reset_scanners(geometry);
    }

    /// Skipped pageblocks of a zone, and its cached scanner positions: two of the migration scanner, one of
    /// the free scanner.
    pub fn skip_bits_and_scanners(&self, zone: usize) -> (Vec<bool>, [Frame; 3]) {
        let (past, geometry) = (&self.compact_states[zone], self.config.zones[zone].geometry);
        let pageblocks = Frame::blocks(geometry.first_frame..geometry.end(), geometry.pageblock_order);
        let skips = pageblocks.map(|pageblock| past.skipped_pageblocks.contains(&pageblock)).collect();
        (skips, [past.migrate[0], past.migrate[1], past.free])
    }

    fn check_compaction_end(&mut self, zone: usize, result: CompactResult) -> CheckResult {
        let (job, expected) = self.expected_end.take().ok_or("no compaction is running")?;
        expect_same("remaining moves", &[][..], &self.expected_moves[..])?;
        expect_same("the result of compaction", result, expected)?;
        let past = &mut self.compact_states[zone];
        if matches!(result, CompactResult::Complete | CompactResult::PartialSkipped) {
            past.has_completed |= job.is_direct || job.target_score.is_some();
            if job.priority != CompactPriority::Async && job.target_score.is_none() {
                past.deferred_count = 0;
                past.failures += 1;
                past.min_failed_order =
                    Some(past.min_failed_order.map_or(job.order, |failed| failed.min(job.order)));
            }
        }
        if result == CompactResult::Success && job.target_score.is_none() {
            self.reset_deferral(zone, job.order, false);
        }
        Ok(())
    }
}

impl NaiveMachine {
    /// High watermark of a zone, with its boost.
    fn high_watermark(&self, zone: usize) -> u64 {
        self.config.zones[zone].watermarks.high + self.watermark_boosts[zone].current
    }

    /// Checks a boost after fallbacks that mixed migratetypes.
    fn check_boost(&mut self, zone: usize, times: u32, now: u64) -> CheckResult {
        let setup = &self.config.zones[zone];
        let pageblock_frames = 1 << setup.geometry.pageblock_order;
        let most = setup.watermarks.high * u64::from(self.tuning.watermark_boost_factor) / 10_000;
        let is_small = u64::from(setup.geometry.frames) < 4 * pageblock_frames;
        expect_same("a zone is too small, or has no watermarks", is_small || most == 0, false)?;
        let mut expected = self.watermark_boosts[zone].current;
        for _ in 0..times {
            expected = (expected + pageblock_frames).min(most.max(pageblock_frames));
        }
        self.watermark_boosts[zone].current = expected;
        expect_same("the watermark boost", now, expected)
    }

    /// The previous pass is over: the pages that it freed count.
    fn finish_kswapd_pass(&mut self) {
        if let Some(since) = self.kswapd_pass.reclaimed_before.take() {
            self.kswapd_pass.boost_left = self.kswapd_pass.boost_left.saturating_sub(self.reclaimed - since);
        }
        self.kswapd_pass.is_boost = false;
    }

    /// Checks the begin of a pass of `kswapd`.
    fn check_kswapd_pass(&mut self, goal: ReclaimGoal, is_balanced: bool, boost: u64) -> CheckResult {
        self.finish_kswapd_pass();
        let ReclaimGoal { order, zone_index } = goal;
        if !self.kswapd_pass.has_begun {
            self.kswapd_pass.boost_left = 0;
            for zone in 0..self.watermark_boosts.len() {
                let is_eligible = self.config.zones[zone].zone_index <= zone_index;
                let zone_boost = &mut self.watermark_boosts[zone];
                zone_boost.at_kswapd_start = if is_eligible { zone_boost.current } else { 0 };
                self.kswapd_pass.boost_left += zone_boost.at_kswapd_start;
            }
            self.kswapd_pass.has_begun = true;
        }
        let stands = |zone: usize| {
            let geometry = self.config.zones[zone].geometry;
            let least = if self.rule == OwnershipRule::DefragMode && order > 0 {
                geometry.pageblock_order
            } else {
                0
            };
            let flat = self.flat_zone(zone);
            self.config.zones[zone].zone_index <= zone_index
                && flat.is_watermark_ok(self.high_watermark(zone), order, least)
        };
        expect_same("the node is balanced", is_balanced, (0..self.watermark_boosts.len()).any(stands))?;
        if !is_balanced {
            self.kswapd_pass.boost_left = 0;
        }
        expect_same("pages to free for boosted watermarks", boost, self.kswapd_pass.boost_left)?;
        self.kswapd_pass.reclaimed_before = Some(self.reclaimed);
        (self.kswapd_pass.is_new, self.kswapd_pass.is_boost) = (true, boost > 0);
        Ok(())
    }

    fn finish_kswapd(&mut self) {
        self.finish_kswapd_pass();
        self.kswapd_pass.has_begun = false;
        self.kswapd_pass.is_new = false;
    }

    /// Removes the boost that was set when `kswapd` began.
    fn check_boost_reduction(&mut self, zone: usize, now: u64) -> CheckResult {
        let NaiveBoost { current, at_kswapd_start } = self.watermark_boosts[zone];
        self.watermark_boosts[zone] =
            NaiveBoost { current: current.saturating_sub(at_kswapd_start), at_kswapd_start: 0 };
        expect_same("the watermark boost after kswapd", now, self.watermark_boosts[zone].current)
    }
}

impl NaiveMachine {
    /// The first frame above the boundary of a zone.
    fn boundary(&self, zone: usize) -> Frame {
        let geometry = self.config.zones[zone].geometry;
        let below = self.pageblock_owners[zone].iter().filter(|&&owner| owner == 0).count() as u32;
        geometry.pageblock_start(below)
    }

    /// Checks an assessment of the range beside the boundary.
    fn check_region_expansion(&mut self, zone: usize, range: &Range<Frame>, is_open: bool) -> CheckResult {
        let geometry = self.config.zones[zone].geometry;
        expect_same("the evacuated range begins at", range.start, self.boundary(zone))?;
        let is_whole = range.end.is_aligned(geometry.pageblock_order) && range.end <= geometry.end();
        expect_same("the evacuated range consists of whole pageblocks", is_whole, true)?;
        let mut leaving = self.blocks_in(zone, range.clone());
        let may_leave = |handle: &u32| {
            self.pages[*handle as usize].as_ref().is_some_and(|page| {
                let is_inside =
                    page.frame.is_some_and(|at| range.contains(&at) && at + (1 << page.order) <= range.end);
                page.page_use.allocation_type() == AllocationType::Movable && !page.is_pinned && is_inside
            })
        };
        expect_same("all pages may be evacuated", is_open, leaving.iter().all(may_leave))?;
        leaving.reverse();
        (self.expected_migrations, self.evacuated_range) = (leaving, range.clone());
        Ok(())
    }

    fn check_migration_out(&mut self, handle: u32, from: Frame, to: Frame) -> CheckResult {
        expect_same("the next evacuated page", Some(handle), self.expected_migrations.pop())?;
        let page = *self.page(handle)?;
        expect_same("its old frame", Some(from), page.frame)?;
        let flat = self.flat_zone(page.zone);
        let is_room = Frame::range(to..to + (1 << page.order))
            .all(|frame| flat.is_free(frame) && !self.evacuated_range.contains(&frame));
        let is_beyond = to >= self.boundary(page.zone);
        expect_same("there is room beyond the evacuated range", is_room && is_beyond, true)?;
        self.renewed_page(handle)?.frame = Some(to);
        Ok(())
    }

    /// Checks the end of an evacuation: all pages were evacuated, or there was no room for all of them.
    fn check_region_expansion_end(&mut self, zone: usize, fits: bool) -> CheckResult {
        if fits {
            return expect_same("pages not evacuated", self.expected_migrations.len(), 0);
        }
        // There must be less room than they need: none of the size of the largest.
        let flat = self.flat_zone(zone);
        let (boundary, geometry) = (self.boundary(zone), flat.geometry);
        let room = Frame::range(boundary..geometry.end())
            .filter(|at| flat.is_free(*at) && !self.evacuated_range.contains(at))
            .count();
        let leaving = self.expected_migrations.iter().filter_map(|&handle| self.pages[handle as usize]);
        let orders: Vec<u8> = leaving.map(|page| page.order).collect();
        let needed: usize = orders.iter().map(|order| 1usize << order).sum();
        let is_large = orders.iter().any(|&order| order > 0);
        expect_same("there was room", room >= needed && !is_large, false)
    }

    /// Checks the pageblocks that the boundary moves down over: at least one free pageblock below it stays.
    fn check_pageblocks_returned(&mut self, zone: usize, pageblocks: u32) -> CheckResult {
        let geometry = self.config.zones[zone].geometry;
        let (boundary, size) = (self.boundary(zone), 1 << geometry.pageblock_order);
        let flat = self.flat_zone(zone);
        let below = (boundary - (pageblocks + 1) * size)..boundary;
        let are_free = Frame::range(below).all(|frame| flat.is_free(frame));
        expect_same("pageblocks below the boundary are free", are_free, true)?;
        let least = (self.pageblock_owners[zone].len() / 8).max(1) as u32;
        let left = (boundary - geometry.first_frame) / size - pageblocks;
        expect_same("the boundary is above its start", left >= least, true)
    }
}
