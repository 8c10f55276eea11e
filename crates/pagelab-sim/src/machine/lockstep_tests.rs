//! Lockstep tests of the machine and its naive twin: every decision, and all pages after each event.

use pagelab_model::random::SplitMix64;

use super::journal::MachineBug;
use super::lru::{LruKind, LruList};
use super::naive::{NaiveMachine, OwnershipRule};
use super::tests::test_config;
use super::writeback::WritebackState;
use super::{
    AllocRequest, AnyPolicy, BlockHandle, Effort, KernelTuning, Machine, MachineConfig, PageUse, Release,
    reclaim_policies,
};
use crate::injected_bugs::InjectedBug;
use crate::policies::{Contiguitas, GroupByMobility, SingleList, StrictMobility};
use crate::types::{Frame, ZoneGeometry};
use crate::watermarks::Watermarks;

/// Compared state.
#[derive(Clone, Debug)]
struct Case {
    config: MachineConfig,
    tuning: KernelTuning,
    rule: OwnershipRule,
    /// The order of pages; all blocks are larger by it.
    base: u8,
}

impl Case {
    fn policy(&self) -> AnyPolicy {
        match self.rule {
            OwnershipRule::Unowned => &SingleList,
            OwnershipRule::ByAllocationType => &GroupByMobility,
            OwnershipRule::DefragMode => &StrictMobility::DefragMode,
            OwnershipRule::Regions => &Contiguitas,
        }
    }
}

/// The reclaim policies that the twin has rules for. Of any other it says what becomes of each page that is
/// tried, and leaves the choice to it.
const KNOWN: [&str; 3] = ["lru", "linear", "lumpy"];

fn test_cases() -> Vec<Case> {
    let watermarks = Watermarks { min: 12, low: 20, high: 28 };
    let case = |frames: u32, reclaim: &str, compacts: bool, release: Release| {
        let reclaim = reclaim_policies::TABLE.iter().find(|entry| entry.name == reclaim);
        let reclaim = reclaim.expect("a reclaim policy");
        let config = MachineConfig {
            reclaim_policy: reclaim,
            has_compaction: compacts,
            swap_frames: 60,
            ..test_config(frames, watermarks)
        };
        let rule = if compacts { OwnershipRule::ByAllocationType } else { OwnershipRule::Unowned };
        Case { config, tuning: KernelTuning::for_release(release), rule, base: 0 }
    };
    let mut all = vec![
        case(256, "lru", false, Release::V2_6_16),
        case(256, "linear", false, Release::V2_6_16),
        case(256, "lumpy", false, Release::V2_6_16),
        case(320, "linear", false, Release::V6_1),
        case(512, "lru", true, Release::V6_1),
        case(256, "lru", true, Release::V2_6_16),
    ];
    let others = reclaim_policies::TABLE.iter().filter(|entry| !KNOWN.contains(&entry.name));
    let others = others.map(|entry| case(256, entry.name, false, Release::V2_6_16));
    all[0].config.activates_referenced = false;
    // A zone above, which kernel data may not enter; the first begins inside of a largest block.
    for at in 0..all.len() {
        let mut two = all[at].clone();
        let mut above = two.config.zones[0].clone();
        let frames = above.geometry.frames;
        two.config.zones[0].geometry =
            ZoneGeometry { first_frame: Frame::new(48), frames: frames - 48, ..above.geometry };
        above.geometry =
            ZoneGeometry { first_frame: Frame::new(frames), frames: frames - 64, ..above.geometry };
        (above.zone_index, above.name) = (1, "Movable".to_owned());
        two.config.zones.push(above);
        two.config.zone_limits.user = 1;
        all.push(two);
    }
    // With a disk that takes its time, and one that is soon congested.
    for at in 0..all.len() {
        let mut slow = all[at].clone();
        (slow.tuning.disk_pages_per_slice, slow.tuning.queue_pages, slow.tuning.seek_pages) = (4, 12, 8);
        all.push(slow);
    }
    let mut ahead = all[4].clone();
    ahead.tuning.compaction_proactiveness = 60;
    all.push(ahead);
    all.push(large_case());
    all.extend(others);
    for at in [4, 10, 0] {
        all.push(Case { rule: OwnershipRule::Regions, ..all[at].clone() });
    }
    all.push(Case { rule: OwnershipRule::DefragMode, ..all[4].clone() });
    all.push(Case { rule: OwnershipRule::DefragMode, ..all[10].clone() });
    all
}

/// So large that a list has a page to look at at the first priority.
fn large_case() -> Case {
    let mut config = test_config(1 << 16, Watermarks { min: 1200, low: 1600, high: 2000 });
    (config.zones[0].geometry.max_order, config.zones[0].geometry.pageblock_order) = (10, 10);
    (config.has_compaction, config.swap_frames) = (true, 1 << 14);
    Case {
        config,
        tuning: KernelTuning::for_release(Release::V6_1),
        rule: OwnershipRule::ByAllocationType,
        base: 6,
    }
}

struct LockstepPair {
    base: u8,
    ours: Machine,
    theirs: NaiveMachine,
    blocks: Vec<BlockHandle>,
}

impl LockstepPair {
    fn new(case: &Case, flaw: Option<MachineBug>) -> LockstepPair {
        let mut ours = Machine::with_tuning(case.config.clone(), case.tuning, case.policy()).unwrap();
        ours.journal.bug = InjectedBug::new(flaw);
        let theirs = NaiveMachine::new(&case.config, case.tuning, case.rule);
        LockstepPair { base: case.base, ours, theirs, blocks: Vec::new() }
    }

    /// Decisions of the machine since then, compared.
    fn compare_decisions(&mut self) -> Result<(), String> {
        for event in std::mem::take(&mut self.ours.journal.decisions) {
            self.theirs.check_decision(&event).map_err(|wrong| format!("{wrong} ({event:?})"))?;
        }
        Ok(())
    }

    /// One thing that a load may do.
    fn run_step(&mut self, random: &mut SplitMix64, is_filling: bool) -> Result<(), String> {
        let text = |wrong: crate::types::Error| wrong.to_string();
        self.theirs.pageblock_owners =
            self.ours.memory().zones().map(|(_, zone)| zone.zone().pageblock_owners().to_vec()).collect();
        let any = (!self.blocks.is_empty()).then(|| random.next_below(self.blocks.len() as u64) as usize);
        match (random.next_below(100), any) {
            (0..40, Some(at)) if !is_filling => self.free_block(at)?,
            (0..8, Some(at)) => self.free_block(at)?,
            (8..55, _) => self.allocate_random(random)?,
            (55..70, Some(at)) => {
                let held = self.blocks[at];
                if self.ours.touch_block(held).map_err(text)? {
                    if let Some(page) = self.theirs.pages[held.0 as usize].as_mut() {
                        page.is_accessed = true;
                        if page.page_use == PageUse::Anonymous {
                            self.theirs.record_write(held.0);
                        }
                    }
                } else if self.ours.refault_block(held, 0).map_err(text)? {
                    self.compare_decisions()?;
                    let frame = self.ours.frame_of_block(held).map_err(text)?.unwrap_or_default();
                    self.theirs.record_refault(held.0, frame)?;
                }
            }
            (70..75, Some(at)) => {
                let held = self.blocks[at];
                self.ours.write_block(held).map_err(text)?;
                self.theirs.record_write(held.0);
            }
            (75..80, Some(at)) => {
                let (held, pinned) = (self.blocks[at], random.next_below(8) == 0);
                self.ours.set_pinned(held, pinned).map_err(text)?;
                let in_use = random.next_below(3) as u8 / 2;
                self.ours.set_objects_in_use(held, in_use).map_err(text)?;
                if let Some(page) = self.theirs.pages[held.0 as usize].as_mut() {
                    page.is_pinned = pinned;
                    page.in_use = in_use.min(page.objects);
                }
            }
            (80.., _) => self.ours.run_background(16).map_err(text)?,
            _ => {}
        }
        self.compare_decisions()?;
        // The twin knows of no free frames that processors keep.
        self.ours.memory.drain_pcp_lists();
        Ok(())
    }

    fn free_block(&mut self, at: usize) -> Result<(), String> {
        let held = self.blocks.swap_remove(at);
        self.theirs.pages[held.0 as usize] = None;
        self.ours.free_block(held).map_err(|wrong| wrong.to_string())
    }

    fn allocate_random(&mut self, random: &mut SplitMix64) -> Result<(), String> {
        // Compaction finds little to do where the kernel's own data are everywhere.
        let mix = match self.ours.config().has_compaction {
            _ if self.base > 0 => [0, 1, 2, 3, 4, 4, 4, 4, 4, 4],
            true if random.next_below(3) > 0 => [3, 3, 3, 3, 4, 4, 4, 4, 5, 5],
            _ if self.ours.tuning().disk_pages_per_slice > 0 => [0, 1, 2, 3, 3, 6, 4, 4, 4, 5],
            _ => [0, 1, 2, 3, 3, 3, 4, 4, 4, 5],
        };
        let class = PageUse::ALL[mix[random.next_below(10) as usize]];
        let order = match (class, random.next_below(16)) {
            (PageUse::File | PageUse::Anonymous, 15) => 2,
            (PageUse::Kernel, 15) => 3,
            (PageUse::Hugetlb, _) => [3, 4, 4, 4, 5, 6][random.next_below(6) as usize],
            _ => 0,
        };
        let effort = [Effort::Normal, Effort::Normal, Effort::RetryMayFail, Effort::NoRetry, Effort::Atomic]
            [random.next_below(5) as usize];
        self.allocate_block(&AllocRequest {
            order: order + self.base,
            effort,
            ..AllocRequest::for_base_page(class)
        })
        .map(|_| ())
    }

    fn allocate_block(&mut self, ask: &AllocRequest) -> Result<bool, String> {
        let Some(held) = self.ours.allocate_block(ask).map_err(|wrong| wrong.to_string())? else {
            return Ok(false);
        };
        self.compare_decisions()?;
        let frame = self.ours.frame_of_block(held).map_err(|wrong| wrong.to_string())?.unwrap_or_default();
        self.theirs.record_allocation(held.0, ask.page_use, ask.order, frame);
        self.blocks.push(held);
        Ok(true)
    }

    /// Fills memory with pages of programs, and frees every other one: half of it is free, and no pageblock.
    fn fill_half(&mut self) -> Result<(), String> {
        let page = AllocRequest {
            order: self.base,
            effort: Effort::Atomic,
            ..AllocRequest::for_base_page(PageUse::Anonymous)
        };
        while self.allocate_block(&page)? {}
        for at in (0..self.blocks.len()).rev().step_by(2) {
            self.free_block(at)?;
        }
        self.ours.memory.drain_pcp_lists();
        self.compare_decisions()
    }

    /// All pages and lists.
    fn compare_state(&self) -> Result<(), String> {
        for (handle, page) in self.theirs.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let frame =
                self.ours.frame_of_block(BlockHandle(handle as u32)).map_err(|wrong| wrong.to_string())?;
            if frame != page.frame {
                return Err(format!("{handle} is at {frame:?}, in the twin at {:?}", page.frame));
            }
            let state = self.ours.entries[handle].writeback_state;
            let ours = (
                matches!(state, WritebackState::Dirty | WritebackState::WritebackRedirtied),
                state.is_writing(),
            );
            if ours != (page.write.is_dirty, page.write.is_writing) {
                return Err(format!("{handle} is {state:?}, the twin {:?}", page.write));
            }
            let found = frame.and_then(|frame| self.ours.use_of_frame(frame));
            if frame.is_some() && found != Some((page.page_use, page.order)) {
                return Err(format!("{frame:?} is used for {found:?}, the twin {:?}", page.page_use));
            }
        }
        for (zone, compactor) in self.ours.compactors.iter().enumerate() {
            let (ours, theirs) =
                (compactor.skip_bits_and_scanners(), self.theirs.skip_bits_and_scanners(zone));
            if ours != theirs {
                return Err(format!("compaction knows {ours:?}, the twin {theirs:?}"));
            }
        }
        for area in 0..self.ours.lruvecs.len() {
            for sort in [LruKind::Anonymous, LruKind::File, LruKind::Slab] {
                for is_active in [false, true] {
                    let list = LruList { lruvec: area, kind: sort, is_active };
                    let (ours, theirs) =
                        (self.ours.lru.handles(list).collect::<Vec<u32>>(), self.theirs.handles(list));
                    if ours != theirs {
                        return Err(format!("{list:?}: {ours:?}, the twin {theirs:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Up to the first difference: the event, and what differs.
fn first_difference(
    case: &Case,
    flaw: Option<MachineBug>,
    seed: u64,
    events: u32,
) -> (LockstepPair, Option<(u32, String)>) {
    let mut pair = LockstepPair::new(case, flaw);
    let mut random = SplitMix64::new(seed);
    if case.base > 0
        && let Err(wrong) = pair.fill_half()
    {
        return (pair, Some((0, wrong)));
    }
    for event in 0..events {
        let found = pair.run_step(&mut random, event / 200 % 2 == 0);
        let found = found.and_then(|()| if event % 8 == 0 { pair.compare_state() } else { Ok(()) });
        let found = found.and_then(|()| match event % 64 {
            0 => pair.ours.validate().map_err(|wrong| wrong.to_string()),
            _ => Ok(()),
        });
        if let Err(wrong) = found {
            return (pair, Some((event, wrong)));
        }
    }
    (pair, None)
}

#[test]
fn the_machine_and_its_twin_agree_on_every_decision() {
    let mut moved = 0;
    for (number, case) in test_cases().iter().enumerate() {
        let mut sums = [0; 11];
        for seed in 0..if case.base > 0 { 2 } else { 8 } {
            let (pair, found) = first_difference(case, None, seed, 3000);
            assert_eq!(found, None, "case {number} seed {seed}: {:?}", pair.ours.stats());
            let stats = pair.ours.stats();
            let some = [
                stats.pages_reclaimed,
                stats.refaults,
                stats.slab_pages,
                stats.regions_tried,
                stats.pages_migrated,
                stats.compactions_deferred,
                stats.watermark_boosts,
                stats.region_expansions,
                stats.region_expansions_failed,
                stats.pages_written,
                stats.congestion_waits,
            ];
            sums.iter_mut().zip(some).for_each(|(sum, some)| *sum += some);
        }
        // Nothing is compared where nothing happens.
        let [reclaimed, refaults, slab_pages, regions_tried, migrated, deferred, boosts, rest @ ..] = sums;
        let [expansions, expansions_failed, written, congestion_waits] = rest;
        let about = format!("case {number}: {sums:?}");
        let is_large = case.base > 0;
        assert!(is_large || reclaimed > 500 && refaults > 100 && slab_pages > 20, "{about}");
        assert_eq!(
            [written > 300, congestion_waits > 0],
            [case.tuning.disk_pages_per_slice > 0; 2],
            "{about}"
        );
        if KNOWN.contains(&case.config.reclaim_policy.name) {
            assert_eq!(regions_tried > 0, case.config.reclaim_policy.name == "linear", "{about}");
        }
        assert_eq!(migrated > 0 && (is_large || deferred > 0), case.config.has_compaction, "{about}");
        let is_new = case.tuning.release == Release::V6_1
            && matches!(case.rule, OwnershipRule::ByAllocationType | OwnershipRule::DefragMode);
        assert_eq!(boosts > 3, is_new, "{about}");
        assert_eq!(expansions > 0 && expansions_failed > 0, case.rule == OwnershipRule::Regions, "{about}");
        moved += migrated;
    }
    assert!(moved > 250, "{moved} pages");
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for flaw in MachineBug::ALL {
        let found = test_cases().iter().find_map(|case| {
            // An injected bug can corrupt the metadata beyond all bounds.
            let run = std::panic::AssertUnwindSafe(|| first_difference(case, Some(flaw), 1, 10_000).1);
            let run = std::panic::catch_unwind(run);
            run.unwrap_or(Some((0, "out of bounds".to_owned())))
        });
        assert!(found.is_some(), "{flaw:?} is not found");
    }
}

/// The kernel grows over pages of programs, which leave, and shrinks; then programs get the room back.
#[test]
fn the_boundary_moves_up_over_migrated_pages_and_returns() {
    let case = test_cases().into_iter().find(|case| case.rule == OwnershipRule::Regions).unwrap();
    let mut pair = LockstepPair::new(&case, None);
    let looks = |pair: &mut LockstepPair| {
        pair.theirs.pageblock_owners =
            pair.ours.memory().zones().map(|(_, zone)| zone.zone().pageblock_owners().to_vec()).collect();
    };
    let boundary = |pair: &LockstepPair| pair.ours.memory().zone(0).1.zone().region_boundary().unwrap();
    let start = boundary(&pair);
    let ask = |pair: &mut LockstepPair, class: PageUse, pages: u32| {
        for _ in 0..pages {
            looks(pair);
            assert_eq!(pair.allocate_block(&AllocRequest::for_base_page(class)), Ok(true));
            pair.ours.memory.drain_pcp_lists();
        }
    };
    // Half of memory is programs', beside the boundary as well: they take the lowest pages last.
    ask(&mut pair, PageUse::Anonymous, 440);
    for at in (0..220).rev() {
        pair.free_block(at).unwrap();
    }
    let programs = pair.blocks.clone();
    ask(&mut pair, PageUse::Kernel, 150);
    let up = boundary(&pair);
    assert!(
        up > start && pair.ours.stats().region_migrated_pages > 0,
        "{start:#x} to {up:#x}: {:?}",
        pair.ours.stats()
    );
    for &held in &programs {
        assert!(pair.ours.frame_of_block(held).unwrap().is_some_and(|frame| frame >= up));
    }
    for at in (programs.len()..pair.blocks.len()).rev() {
        pair.free_block(at).unwrap();
    }
    pair.ours.memory.drain_pcp_lists();
    looks(&mut pair);
    pair.ours.run_background(16).unwrap();
    pair.compare_decisions().unwrap();
    let down = boundary(&pair);
    assert!(
        (start..up).contains(&down) && pair.ours.stats().region_pageblocks_returned > 0,
        "{up:#x} to {down:#x}"
    );
    pair.compare_state().unwrap();
    pair.ours.validate().unwrap();
}
