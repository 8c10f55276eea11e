//! The machine and its naive twin, side by side: every decision is compared, and all pages after each event.

use pagelab_model::seed::SplitMix64;

use super::journal::Flaw;
use super::lru::{List, Sort};
use super::naive::Naive;
use super::tests::config;
use super::{AnyPolicy, Ask, Class, Config, Effort, Held, Machine, Reclaim, Release, Tuning};
use crate::marks::Marks;
use crate::planted::Planted;
use crate::policy::{Mobility, Standard};
use crate::words::Shape;

/// What is compared.
#[derive(Clone, Debug)]
struct Case {
    config: Config,
    tuning: Tuning,
    has_kinds: bool,
}

impl Case {
    fn policy(&self) -> AnyPolicy {
        if self.has_kinds { &Mobility } else { &Standard }
    }
}

fn cases() -> Vec<Case> {
    let marks = Marks { min: 12, low: 20, high: 28 };
    let case = |frames: u32, reclaim: Reclaim, compacts: bool, release: Release| {
        let config = Config { reclaim, compacts, swap_frames: 60, ..config(frames, marks) };
        Case { config, tuning: Tuning::of(release), has_kinds: compacts }
    };
    let mut all = vec![
        case(256, Reclaim::Lru, false, Release::V2_6_16),
        case(256, Reclaim::Linear, false, Release::V2_6_16),
        case(256, Reclaim::Lumpy, false, Release::V2_6_16),
        case(320, Reclaim::Linear, false, Release::V6_1),
        case(512, Reclaim::Lru, true, Release::V6_1),
        case(256, Reclaim::Lru, true, Release::V2_6_16),
    ];
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
    let mut ahead = all[4].clone();
    ahead.tuning.proactiveness = 60;
    all.push(ahead);
    all
}

struct Pair {
    ours: Machine,
    theirs: Naive,
    held: Vec<Held>,
}

impl Pair {
    fn new(case: &Case, flaw: Option<Flaw>) -> Pair {
        let mut ours = Machine::tuned(case.config.clone(), case.tuning, case.policy()).unwrap();
        ours.journal.flaw = Planted::of(flaw);
        let theirs = Naive::new(&case.config, case.tuning, case.has_kinds);
        Pair { ours, theirs, held: Vec::new() }
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
            (55..75, Some(at)) => {
                let held = self.held[at];
                if self.ours.touch(held).map_err(text)? {
                    if let Some(page) = self.theirs.pages[held.0 as usize].as_mut() {
                        page.is_touched = true;
                    }
                } else if self.ours.bring_back(held, 0).map_err(text)? {
                    self.decisions()?;
                    let frame = self.ours.frame(held).map_err(text)?.unwrap_or(0);
                    self.theirs.brought_back(held.0, frame)?;
                }
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
            true if random.below(3) > 0 => [3, 3, 3, 3, 4, 4, 4, 4, 5, 5],
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
        let ask = Ask { order, effort, ..Ask::page(class) };
        let Some(held) = self.ours.ask(&ask).map_err(|wrong| wrong.to_string())? else { return Ok(()) };
        self.decisions()?;
        let frame = self.ours.frame(held).map_err(|wrong| wrong.to_string())?.unwrap_or(0);
        self.theirs.asked(held.0, class, order, frame);
        self.held.push(held);
        Ok(())
    }

    /// All pages and lists.
    fn compare(&self) -> Result<(), String> {
        for (handle, page) in self.theirs.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            let frame = self.ours.frame(Held(handle as u32)).map_err(|wrong| wrong.to_string())?;
            if frame != page.frame {
                return Err(format!("{handle} lies at {frame:?}, the twin {:?}", page.frame));
            }
            let found = frame.and_then(|frame| self.ours.used_for(frame));
            if frame.is_some() && found != Some((page.class, page.order)) {
                return Err(format!("{frame:?} is used for {found:?}, the twin {:?}", page.class));
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
        let mut sums = [0; 6];
        for seed in 0..3 {
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
            ];
            sums.iter_mut().zip(some).for_each(|(sum, some)| *sum += some);
        }
        // Nothing is compared where nothing happens.
        let [reclaimed, refaults, slab_pages, regions_tried, migrated, deferred] = sums;
        let about = format!("case {number}: {sums:?}");
        assert!(reclaimed > 500 && refaults > 100 && slab_pages > 20, "{about}");
        assert_eq!(regions_tried > 0, case.config.reclaim == Reclaim::Linear, "{about}");
        assert_eq!(migrated > 0 && deferred > 0, case.config.compacts, "{about}");
        moved += migrated;
    }
    assert!(moved > 250, "{moved} pages");
}

#[test]
fn each_planted_bug_is_found_within_ten_thousand_events() {
    for flaw in Flaw::ALL {
        let found = cases().iter().find_map(|case| {
            // What a bug makes of the books may be out of all bounds.
            let run = std::panic::catch_unwind(|| differ(case, Some(flaw), 1, 10_000).1);
            run.unwrap_or(Some((0, "out of bounds".to_owned())))
        });
        assert!(found.is_some(), "{flaw:?} is not found");
    }
}
