//! What is looked at while a load runs, and what memory is good for when its programs are gone: an attempt
//! for each huge page that the machine could have.

use super::system::{BOOT_SECONDS, System};
use super::world::{Ran, TICKS, World};
use crate::machine::{Ask, Class, Held};
use crate::words::{Frame, Kind, Shape};

/// Ticks between two attempts: a tenth of a second, as the paper's test module waits.
const BETWEEN: u64 = 10;
/// Points of a course at most.
const POINTS: u64 = 120;
/// Frames that are looked at for a course at most: of a machine above 16 GiB it has fewer points.
const LOOKED_AT: u64 = 1 << 29;

/// F_u and mixed pageblocks over the time of a load.
#[derive(Debug)]
pub(super) struct Course {
    every: u64,
    unusable: Vec<(u64, i64)>,
    mixed: Vec<(u64, i64)>,
}

impl Course {
    /// Of a load that takes so many seconds.
    pub(super) fn over(world: &World<'_>, seconds: u64) -> Course {
        let points = (LOOKED_AT / world.place.frames.max(1)).clamp(2, POINTS);
        Course { every: seconds.div_ceil(points).max(1), unusable: Vec::new(), mixed: Vec::new() }
    }

    /// So many seconds of it have passed.
    pub(super) fn at(&mut self, world: &World<'_>, second: u64) {
        if second.is_multiple_of(self.every) {
            self.look(world, second);
        }
    }

    fn look(&mut self, world: &World<'_>, second: u64) {
        let (mixed, all) = mixed(world);
        self.unusable.push((second, world.usability()));
        self.mixed.push((second, (mixed * 1_000_000 / all.max(1)) as i64));
    }

    /// It has ended: the last point is what the figures of the phase say.
    pub(super) fn end(mut self, world: &mut World<'_>, seconds: u64) {
        self.look(world, seconds);
        world.follow("F_u", "seconds", self.unusable);
        world.follow_plain("mixed pageblocks", "seconds", self.mixed);
    }
}

/// Pageblocks in which a page cannot be moved, and all pageblocks.
fn mixed(world: &World<'_>) -> (u64, u64) {
    let (mut mixed, mut all) = (0, 0);
    for (setup, _) in world.machine.memory().zones() {
        let (shape, block) = (setup.shape, 1 << setup.shape.block_order);
        let mut first = shape.first;
        while first < shape.end() {
            let next = (first / block + 1).saturating_mul(block).min(shape.end());
            mixed += u64::from(stays(world, first, next));
            all += 1;
            first = next;
        }
    }
    (mixed, all)
}

/// Whether a page of these frames cannot be moved.
fn stays(world: &World<'_>, mut frame: Frame, end: Frame) -> bool {
    while frame < end {
        frame += match world.machine.used_for(frame) {
            Some((class, _)) if class.kind() != Kind::Movable => return true,
            Some((_, order)) => 1 << order,
            None => 1,
        };
    }
    false
}

/// Keeps the share of mixed pageblocks as a figure of the phase.
pub(super) fn count_mixed(world: &mut World<'_>) {
    let (mixed, all) = mixed(world);
    world.figure("mixed pageblocks", mixed, all.max(1), "share");
}

/// Says how long a load takes that boots, runs for so many seconds and ends at rest.
pub(super) fn takes(world: &mut World<'_>, seconds: u64) {
    let at_rest = u64::from(world.place.possible) * BETWEEN;
    world.takes_ticks((BOOT_SECONDS + seconds).saturating_mul(TICKS).saturating_add(at_rest));
}

/// The programs are gone: how many huge pages can be had? One attempt for each, and what was got is kept
/// until the last.
pub(super) fn rest(world: &mut World<'_>, system: &mut System) -> Ran {
    world.begin("at rest")?;
    let (order, possible) = (world.place.huge, world.place.possible);
    let (unusable, free) = world.machine.unusable(order);
    let (mixed, all) = mixed(world);
    let mut pages = Vec::new();
    for _ in 0..possible {
        world.moves();
        let ask = Ask { order, ..world.page(Class::Huge) };
        pages.extend(world.machine.ask(&ask)?);
        for _ in 0..BETWEEN {
            system.forget(world)?;
            world.pass()?;
        }
    }
    told(world, &pages, possible)?;
    world.figure(&format!("F_u({order})"), unusable, free.max(1), "share");
    world.figure("mixed pageblocks", mixed, all.max(1), "share");
    world.figure("pages: free", free, world.place.frames, "share");
    for held in pages {
        world.machine.release(held)?;
    }
    Ok(())
}

/// Figures of huge pages that are held: how many, of how many, by zone.
pub(super) fn told(world: &mut World<'_>, pages: &[Held], possible: u32) -> Ran {
    world.figure("huge pages", pages.len() as u64, 1, "blocks");
    world.figure("success", pages.len() as u64, u64::from(possible.max(1)), "share");
    let zones: Vec<(String, Shape)> = {
        let setups = world.machine.memory().zones();
        setups.map(|(setup, _)| (setup.name.clone(), setup.shape)).collect()
    };
    for (name, shape) in zones {
        let mut count = 0;
        for &held in pages {
            count += u64::from(world.machine.frame(held)?.is_some_and(|frame| shape.has(frame)));
        }
        world.figure(&format!("from {name}"), count, 1, "blocks");
    }
    Ok(())
}
