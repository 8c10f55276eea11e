//! The machine and its naive twin, side by side: every decision is compared, and all pages after each event.

use pagelab_model::seed::SplitMix64;

use super::journal::Flaw;
use super::lru::{List, Sort};
use super::naive::{Naive, Rule};
use super::tests::config;
use super::writeback::State;
use super::{AnyPolicy, Ask, Class, Config, Effort, Held, Machine, Release, Tuning, reclaims};
use crate::marks::Marks;
use crate::planted::Planted;
use crate::policies::contiguitas::Contiguitas;
use crate::policies::mobility::Strict;
use crate::policy::{Mobility, Standard};
use crate::words::Shape;

/// What is compared.
#[derive(Clone, Debug)]
struct Case {
    config: Config,
    tuning: Tuning,
    rule: Rule,
    /// The order of pages; all blocks are larger by it.
    base: u8,
}

impl Case {
    fn policy(&self) -> AnyPolicy {
        match self.rule {
            Rule::Plain => &Standard,
            Rule::Kinds => &Mobility,
            Rule::Apart => &Strict::Defrag,
            Rule::Border => &Contiguitas,
        }
    }
}

/// The ways of reclaim that the twin has rules for. Of any other it says what becomes of each page that is
/// tried, and leaves the choice to it.
const KNOWN: [&str; 3] = ["lru", "linear", "lumpy"];

fn cases() -> Vec<Case> {
    let marks = Marks { min: 12, low: 20, high: 28 };
    let case = |frames: u32, reclaim: &str, compacts: bool, release: Release| {
        let reclaim = reclaims::find(reclaim).expect("a way of reclaim");
        let config = Config { reclaim, compacts, swap_frames: 60, ..config(frames, marks) };
        let rule = if compacts { Rule::Kinds } else { Rule::Plain };
        Case { config, tuning: Tuning::of(release), rule, base: 0 }
    };
    let mut all = vec![
        case(256, "lru", false, Release::V2_6_16),
        case(256, "linear", false, Release::V2_6_16),
        case(256, "lumpy", false, Release::V2_6_16),
        case(320, "linear", false, Release::V6_1),
        case(512, "lru", true, Release::V6_1),
        case(256, "lru", true, Release::V2_6_16),
    ];
    let others = reclaims::TABLE.iter().filter(|way| !KNOWN.contains(&way.name));
    let others = others.map(|way| case(256, way.name, false, Release::V2_6_16));
    all[0].config.keeps_referenced = false;
    // A zone above, which kernel data may not enter; the first begins inside of a largest block.
    for at in 0..all.len() {
        let mut two = all[at].clone();
        let mut above = two.config.zones[0].clone();
        let frames = above.shape.frames;
        two.config.zones[0].shape = Shape { first: 48, frames: frames - 48, ..above.shape };
        above.shape = Shape { first: frames, frames: frames - 64, ..above.shape };
        (above.height, above.name) = (1, "Movable".to_owned());
        two.config.zones.push(above);
        two.config.heights.user = 1;
        all.push(two);
    }
    // With a disk that takes its time, and one that is soon congested.
    for at in 0..all.len() {
        let mut slow = all[at].clone();
        (slow.tuning.disk, slow.tuning.queue, slow.tuning.seek) = (4, 12, 8);
        all.push(slow);
    }
    let mut ahead = all[4].clone();
    ahead.tuning.proactiveness = 60;
    all.push(ahead);
    all.push(large());
    all.extend(others);
    for at in [4, 10, 0] {
        all.push(Case { rule: Rule::Border, ..all[at].clone() });
    }
    all.push(Case { rule: Rule::Apart, ..all[4].clone() });
    all.push(Case { rule: Rule::Apart, ..all[10].clone() });
    all
}

/// So large that a list has a page to look at at the first priority.
fn large() -> Case {
    let mut config = config(1 << 16, Marks { min: 1200, low: 1600, high: 2000 });
    (config.zones[0].shape.max_order, config.zones[0].shape.block_order) = (10, 10);
    (config.compacts, config.swap_frames) = (true, 1 << 14);
    Case { config, tuning: Tuning::of(Release::V6_1), rule: Rule::Kinds, base: 6 }
}

struct Pair {
    base: u8,
    ours: Machine,
    theirs: Naive,
    held: Vec<Held>,
}

impl Pair {
    fn new(case: &Case, flaw: Option<Flaw>) -> Pair {
        let mut ours = Machine::tuned(case.config.clone(), case.tuning, case.policy()).unwrap();
        ours.journal.flaw = Planted::of(flaw);
        let theirs = Naive::new(&case.config, case.tuning, case.rule);
        Pair { base: case.base, ours, theirs, held: Vec::new() }
    }

    /// What the machine decided since, compared.
    fn decisions(&mut self) -> Result<(), String> {
        for event in std::mem::take(&mut self.ours.journal.events) {
            self.theirs.decided(&event).map_err(|wrong| format!("{wrong} ({event:?})"))?;
        }
        Ok(())
    }

    /// One thing that a load may do.
    fn step(&mut self, random: &mut SplitMix64, is_filling: bool) -> Result<(), String> {
        let text = |wrong: crate::words::Wrong| wrong.to_string();
        self.theirs.owners =
            self.ours.memory().zones().map(|(_, zone)| zone.zone().owners().to_vec()).collect();
        let any = (!self.held.is_empty()).then(|| random.below(self.held.len() as u64) as usize);
        match (random.below(100), any) {
            (0..40, Some(at)) if !is_filling => self.release(at)?,
            (0..8, Some(at)) => self.release(at)?,
            (8..55, _) => self.ask(random)?,
            (55..70, Some(at)) => {
                let held = self.held[at];
                if self.ours.touch(held).map_err(text)? {
                    if let Some(page) = self.theirs.pages[held.0 as usize].as_mut() {
                        page.is_touched = true;
                        if page.class == Class::Anonymous {
                            self.theirs.wrote(held.0);
                        }
                    }
                } else if self.ours.bring_back(held, 0).map_err(text)? {
                    self.decisions()?;
                    let frame = self.ours.frame(held).map_err(text)?.unwrap_or(0);
                    self.theirs.brought_back(held.0, frame)?;
                }
            }
            (70..75, Some(at)) => {
                let held = self.held[at];
                self.ours.write(held).map_err(text)?;
                self.theirs.wrote(held.0);
            }
            (75..80, Some(at)) => {
                let (held, pinned) = (self.held[at], random.below(8) == 0);
                self.ours.pin(held, pinned).map_err(text)?;
                let in_use = random.below(3) as u8 / 2;
                self.ours.use_objects(held, in_use).map_err(text)?;
                if let Some(page) = self.theirs.pages[held.0 as usize].as_mut() {
                    page.is_pinned = pinned;
                    page.in_use = in_use.min(page.objects);
                }
            }
            (80.., _) => self.ours.background(16).map_err(text)?,
            _ => {}
        }
        self.decisions()?;
        // The twin knows of no free frames that processors keep.
        self.ours.memory.drain();
        Ok(())
    }

    fn release(&mut self, at: usize) -> Result<(), String> {
        let held = self.held.swap_remove(at);
        self.theirs.pages[held.0 as usize] = None;
        self.ours.release(held).map_err(|wrong| wrong.to_string())
    }

    fn ask(&mut self, random: &mut SplitMix64) -> Result<(), String> {
        // Compaction finds little to do where the kernel's own data are everywhere.
        let mix = match self.ours.config().compacts {
            _ if self.base > 0 => [0, 1, 2, 3, 4, 4, 4, 4, 4, 4],
            true if random.below(3) > 0 => [3, 3, 3, 3, 4, 4, 4, 4, 5, 5],
            _ if self.ours.tuning().disk > 0 => [0, 1, 2, 3, 3, 6, 4, 4, 4, 5],
            _ => [0, 1, 2, 3, 3, 3, 4, 4, 4, 5],
        };
        let class = Class::ALL[mix[random.below(10) as usize]];
        let order = match (class, random.below(16)) {
            (Class::File | Class::Anonymous, 15) => 2,
            (Class::Kernel, 15) => 3,
            (Class::Huge, _) => [3, 4, 4, 4, 5, 6][random.below(6) as usize],
            _ => 0,
        };
        let effort = [Effort::Usual, Effort::Usual, Effort::Hard, Effort::Once, Effort::Atomic]
            [random.below(5) as usize];
        self.ask_for(&Ask { order: order + self.base, effort, ..Ask::page(class) }).map(|_| ())
    }

    fn ask_for(&mut self, ask: &Ask) -> Result<bool, String> {
        let Some(held) = self.ours.ask(ask).map_err(|wrong| wrong.to_string())? else { return Ok(false) };
        self.decisions()?;
        let frame = self.ours.frame(held).map_err(|wrong| wrong.to_string())?.unwrap_or(0);
        self.theirs.asked(held.0, ask.class, ask.order, frame);
        self.held.push(held);
        Ok(true)
    }

    /// Fills memory with pages of programs, and frees every other one: half of it is free, and no pageblock.
    fn half_fill(&mut self) -> Result<(), String> {
        let page = Ask { order: self.base, effort: Effort::Atomic, ..Ask::page(Class::Anonymous) };
        while self.ask_for(&page)? {}
        for at in (0..self.held.len()).rev().step_by(2) {
            self.release(at)?;
        }
        self.ours.memory.drain();
        self.decisions()
    }

    /// All pages and lists.
    fn compare(&self) -> Result<(), String> {
        for (handle, page) in self.theirs.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let frame = self.ours.frame(Held(handle as u32)).map_err(|wrong| wrong.to_string())?;
            if frame != page.frame {
                return Err(format!("{handle} lies at {frame:?}, the twin {:?}", page.frame));
            }
            let state = self.ours.entries[handle].state;
            let ours = (matches!(state, State::Dirty | State::Again), state.is_writing());
            if ours != (page.write.is_dirty, page.write.is_writing) {
                return Err(format!("{handle} is {state:?}, the twin {:?}", page.write));
            }
            let found = frame.and_then(|frame| self.ours.used_for(frame));
            if frame.is_some() && found != Some((page.class, page.order)) {
                return Err(format!("{frame:?} is used for {found:?}, the twin {:?}", page.class));
            }
        }
        for (zone, compactor) in self.ours.compactors.iter().enumerate() {
            let (ours, theirs) = (compactor.known(), self.theirs.known(zone));
            if ours != theirs {
                return Err(format!("compaction knows {ours:?}, the twin {theirs:?}"));
            }
        }
        for area in 0..self.ours.areas.len() {
            for sort in [Sort::Anonymous, Sort::File, Sort::Cache] {
                for is_active in [false, true] {
                    let list = List { area, sort, is_active };
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
fn differ(case: &Case, flaw: Option<Flaw>, seed: u64, events: u32) -> (Pair, Option<(u32, String)>) {
    let mut pair = Pair::new(case, flaw);
    let mut random = SplitMix64::new(seed);
    if case.base > 0
        && let Err(wrong) = pair.half_fill()
    {
        return (pair, Some((0, wrong)));
    }
    for event in 0..events {
        let found = pair.step(&mut random, event / 200 % 2 == 0);
        let found = found.and_then(|()| if event % 8 == 0 { pair.compare() } else { Ok(()) });
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
    for (number, case) in cases().iter().enumerate() {
        let mut sums = [0; 11];
        for seed in 0..if case.base > 0 { 2 } else { 8 } {
            let (pair, found) = differ(case, None, seed, 3000);
            assert_eq!(found, None, "case {number} seed {seed}: {:?}", pair.ours.stats());
            let stats = pair.ours.stats();
            let some = [
                stats.reclaimed,
                stats.refaults,
                stats.slab_pages,
                stats.regions_tried,
                stats.migrated,
                stats.deferred,
                stats.boosts,
                stats.ways,
                stats.ways_failed,
                stats.written,
                stats.naps,
            ];
            sums.iter_mut().zip(some).for_each(|(sum, some)| *sum += some);
        }
        // Nothing is compared where nothing happens.
        let [reclaimed, refaults, slab_pages, regions_tried, migrated, deferred, boosts, rest @ ..] = sums;
        let [ways, ways_failed, written, naps] = rest;
        let about = format!("case {number}: {sums:?}");
        let is_large = case.base > 0;
        assert!(is_large || reclaimed > 500 && refaults > 100 && slab_pages > 20, "{about}");
        assert_eq!([written > 300, naps > 0], [case.tuning.disk > 0; 2], "{about}");
        if KNOWN.contains(&case.config.reclaim.name) {
            assert_eq!(regions_tried > 0, case.config.reclaim.name == "linear", "{about}");
        }
        assert_eq!(migrated > 0 && (is_large || deferred > 0), case.config.compacts, "{about}");
        let is_new = case.tuning.release == Release::V6_1 && matches!(case.rule, Rule::Kinds | Rule::Apart);
        assert_eq!(boosts > 3, is_new, "{about}");
        assert_eq!(ways > 0 && ways_failed > 0, case.rule == Rule::Border, "{about}");
        moved += migrated;
    }
    assert!(moved > 250, "{moved} pages");
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for flaw in Flaw::ALL {
        let found = cases().iter().find_map(|case| {
            // What a bug makes of the books may be out of all bounds.
            let run = std::panic::AssertUnwindSafe(|| differ(case, Some(flaw), 1, 10_000).1);
            let run = std::panic::catch_unwind(run);
            run.unwrap_or(Some((0, "out of bounds".to_owned())))
        });
        assert!(found.is_some(), "{flaw:?} is not found");
    }
}

/// The kernel grows over pages of programs, which leave, and shrinks; then programs get the room back.
#[test]
fn the_border_goes_up_over_pages_that_leave_and_comes_back() {
    let case = cases().into_iter().find(|case| case.rule == Rule::Border).unwrap();
    let mut pair = Pair::new(&case, None);
    let looks = |pair: &mut Pair| {
        pair.theirs.owners =
            pair.ours.memory().zones().map(|(_, zone)| zone.zone().owners().to_vec()).collect();
    };
    let border = |pair: &Pair| pair.ours.memory().zone(0).unwrap().1.zone().border().unwrap();
    let start = border(&pair);
    let ask = |pair: &mut Pair, class: Class, pages: u32| {
        for _ in 0..pages {
            looks(pair);
            assert_eq!(pair.ask_for(&Ask::page(class)), Ok(true));
            pair.ours.memory.drain();
        }
    };
    // Half of memory is programs', beside the border as well: they take the lowest pages last.
    ask(&mut pair, Class::Anonymous, 440);
    for at in (0..220).rev() {
        pair.release(at).unwrap();
    }
    let programs = pair.held.clone();
    ask(&mut pair, Class::Kernel, 150);
    let up = border(&pair);
    assert!(up > start && pair.ours.stats().left > 0, "{start:#x} to {up:#x}: {:?}", pair.ours.stats());
    for &held in &programs {
        assert!(pair.ours.frame(held).unwrap().is_some_and(|frame| frame >= up));
    }
    for at in (programs.len()..pair.held.len()).rev() {
        pair.release(at).unwrap();
    }
    pair.ours.memory.drain();
    looks(&mut pair);
    pair.ours.background(16).unwrap();
    pair.decisions().unwrap();
    let down = border(&pair);
    assert!((start..up).contains(&down) && pair.ours.stats().given_back > 0, "{up:#x} to {down:#x}");
    pair.compare().unwrap();
    pair.ours.validate().unwrap();
}
