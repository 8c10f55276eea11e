//! Several builds at once, begun one after the other as their trees are copied, and what runs beside them.

use super::build::{Build, Tree};
use super::process::Process;
use super::system::System;
use super::world::{Halt, Ran, World};
use crate::words::Wrong;

/// Files that one tick looks at for pages that were reclaimed.
const SWEPT: usize = 60;
/// Memory of `updatedb`, in pages.
const UPDATEDB: u32 = 600;

/// What is running.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    builds: Vec<Build>,
    /// Trees to be copied yet, and the one at work.
    waiting: u32,
    copy: Option<Tree>,
    /// The tree that was extracted from the archive; it is built last.
    first: Option<Tree>,
    turn: usize,
    updatedb: Option<Process>,
}

impl Crowd {
    /// One build for each 250 MiB, or as many as a parameter says.
    pub(super) fn wanted(world: &World<'_>) -> u32 {
        match world.count("builds") {
            0 => (world.place.frames / (250 << 8)).max(1) as u32,
            builds => builds,
        }
    }

    /// Seconds until all builds have begun.
    pub(super) fn takes(world: &World<'_>) -> u64 {
        let pages = world.parameter("tree_files") * 13 / 4;
        u64::from(Crowd::wanted(world) + 1) * pages / world.parameter("disk").max(1) / 100 + 1
    }

    /// Extracts the archive, copies the tree as often as there are builds more than one, and begins each
    /// build when its copy is there; then the first tree's.
    pub(super) fn gather(world: &mut World<'_>, system: &mut System) -> Ran<Crowd> {
        let mut crowd = Crowd { waiting: Crowd::wanted(world) - 1, ..Crowd::default() };
        let mut tree = Tree::default();
        while !world.write_tree(&mut tree, None, world.count("disk"), &system.archive)? {
            world.pass()?;
        }
        crowd.first = Some(tree);
        while crowd.first.is_some() {
            crowd.step(world, system)?;
        }
        Ok(crowd)
    }

    /// Begins `updatedb`.
    pub(super) fn begin_updatedb(&mut self, world: &mut World<'_>) -> Ran {
        let mut process = world.start(25)?;
        world.grow(&mut process, UPDATEDB)?;
        self.updatedb = Some(process);
        Ok(())
    }

    /// Lets all run for 10 ms.
    pub(super) fn step(&mut self, world: &mut World<'_>, system: &mut System) -> Ran {
        if world.machine.is_waiting() {
            return world.pass();
        }
        self.copy(world, system)?;
        let slots = world.count("slots") as usize;
        for _ in 0..slots.min(self.builds.len()) {
            self.turn = (self.turn + 1) % self.builds.len();
            world.run_build(&mut self.builds[self.turn], &system.programs)?;
        }
        if let Some(build) = self.builds.get_mut(self.turn) {
            world.sweep_tree(&mut build.tree, SWEPT)?;
        }
        if self.updatedb.is_some() {
            world.moves();
            system.walk(world)?;
        }
        world.pass()
    }

    fn copy(&mut self, world: &mut World<'_>, system: &System) -> Result<(), Wrong> {
        let Some(first) = self.first.take() else { return Ok(()) };
        if self.waiting == 0 {
            let build = world.begin_build(first)?;
            self.builds.push(build);
            return Ok(());
        }
        let mut copy = self.copy.take().unwrap_or_default();
        let is_whole = world.write_tree(&mut copy, Some(&first), world.count("disk"), &system.archive)?;
        self.first = Some(first);
        if is_whole {
            self.waiting -= 1;
            let build = world.begin_build(copy)?;
            self.builds.push(build);
        } else {
            self.copy = Some(copy);
        }
        Ok(())
    }

    /// Lets all run for so many seconds.
    pub(super) fn run(&mut self, world: &mut World<'_>, system: &mut System, seconds: u64) -> Ran {
        for _ in 0..seconds * super::world::TICKS {
            self.step(world, system)?;
        }
        Ok(())
    }

    /// Compilations that came to their end.
    pub(super) fn units(&self) -> u64 {
        self.builds.iter().map(|build| u64::from(build.done)).sum()
    }

    /// Kills all processes; the trees stay.
    pub(super) fn kill(&mut self, world: &mut World<'_>) -> Result<Vec<Tree>, Halt> {
        if let Some(process) = self.updatedb.take() {
            world.end(process)?;
        }
        let mut trees: Vec<Tree> = self.first.take().into_iter().chain(self.copy.take()).collect();
        for build in self.builds.drain(..) {
            trees.push(world.kill(build)?);
        }
        Ok(trees)
    }
}
