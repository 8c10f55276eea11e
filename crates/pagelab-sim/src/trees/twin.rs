//! The naive twin of the trees: one flat array of frames, everything else counted from it; and the
//! comparison, event by event.

use pagelab_model::seed::SplitMix64;

use super::Trees;
use crate::planted::{Bug, Planted};
use crate::words::{Frame, Kind, Shape};

/// Tree, its class and who has reserved it.
struct Twin {
    shape: Shape,
    per_tree: usize,
    cpus: usize,
    /// Per frame: the first frame of its block and the order, or nothing.
    frames: Vec<Option<(usize, u8)>>,
    /// Per tree: 0 fixed, 1 movable, 2 huge.
    classes: Vec<u8>,
    /// Processor, class, pageblock of its last allocation.
    reserved: Vec<(usize, u8, usize)>,
}

impl Twin {
    fn new(shape: Shape, per_tree: usize, cpus: usize) -> Twin {
        let trees = ((shape.frames >> shape.block_order) as usize).div_ceil(per_tree);
        let (frames, classes) = (vec![None; shape.frames as usize], vec![2; trees]);
        Twin { shape, per_tree, cpus, frames, classes, reserved: Vec::new() }
    }

    fn block_size(&self) -> usize {
        1 << self.shape.block_order
    }

    fn tree_frames(&self, tree: usize) -> std::ops::Range<usize> {
        let size = self.per_tree * self.block_size();
        tree * size..((tree + 1) * size).min(self.frames.len())
    }

    fn free_in(&self, tree: usize) -> usize {
        self.frames[self.tree_frames(tree)].iter().filter(|frame| frame.is_none()).count()
    }

    fn holder(&self, tree: usize) -> Option<usize> {
        let of = |&(_, _, block): &(usize, u8, usize)| block / self.per_tree == tree;
        self.reserved.iter().position(of)
    }

    /// The first aligned free run of a tree, from a pageblock on and around.
    fn place(&self, tree: usize, from: usize, order: u8) -> Option<usize> {
        let range = self.tree_frames(tree);
        let is_free = |&at: &usize| self.frames[at..at + (1 << order)].iter().all(Option::is_none);
        let split = from * self.block_size();
        let mut after = (split.max(range.start)..range.end).step_by(1 << order);
        after.find(is_free).or_else(|| (range.start..split).step_by(1 << order).find(is_free))
    }

    fn around(&self, start: usize) -> Vec<usize> {
        let trees = self.classes.len() as i64;
        let away = |step: i64| if step % 2 == 0 { step / 2 } else { -(step + 1) / 2 };
        (0..trees).map(|step| (start as i64 + away(step)).rem_euclid(trees) as usize).collect()
    }

    fn take(&mut self, cpu: usize, order: u8, kind: Kind) -> Option<Frame> {
        let class = match (order == self.shape.block_order, kind) {
            (true, _) => 2,
            (false, Kind::Movable) => 1,
            _ => 0,
        };
        let at = self.find(cpu, class, order)?;
        self.frames[at..at + (1 << order)].fill(Some((at, order)));
        Some(self.shape.first + at as u32)
    }

    fn find(&mut self, cpu: usize, class: u8, order: u8) -> Option<usize> {
        let mine = self.reserved.iter().position(|held| (held.0, held.1) == (cpu, class));
        let trees = self.classes.len();
        let mut start = trees * cpu / self.cpus;
        if let Some(mine) = mine {
            let block = self.reserved[mine].2;
            start = block / self.per_tree;
            if let Some(at) = self.place(start, block, order) {
                self.reserved[mine].2 = at / self.block_size();
                return Some(at);
            }
        }
        if let Some((tree, at)) = self.better(class, order, start) {
            if let Some(mine) = mine {
                let (_, _, block) = self.reserved.swap_remove(mine);
                self.settle(block / self.per_tree);
            }
            self.classes[tree] = class;
            self.reserved.push((cpu, class, at / self.block_size()));
            return Some(at);
        }
        let around = self.around(start);
        let place = |twin: &Twin, tree: &usize| Some((*tree, twin.place(*tree, 0, order)?));
        let is_unheld = |tree: &&usize| self.holder(**tree).is_none();
        let higher = |tree: &&usize| self.classes[**tree] > class;
        let found = around.iter().filter(is_unheld).filter(higher).find_map(|tree| place(self, tree));
        if let Some((tree, at)) = found {
            self.classes[tree] = class;
            return Some(at);
        }
        let others = around.iter().filter(is_unheld).chain(around.iter().filter(|tree| !is_unheld(tree)));
        let mut others = others.copied().collect::<Vec<_>>().into_iter();
        others.find_map(|tree| self.place(tree, 0, order))
    }

    /// The tree to reserve: near ones that are used up to a part, then any of the class, or whole.
    fn better(&self, class: u8, order: u8, start: usize) -> Option<(usize, usize)> {
        let trees = self.classes.len();
        let near = if trees / 16 > 4 { trees / 16 } else { 4 };
        let mut step = 1;
        while step < 2 * near {
            step *= 2;
        }
        let around = self.around(start - start % step);
        let place = |&tree: &usize| Some((tree, self.place(tree, 0, order)?));
        let whole = |tree: usize| self.tree_frames(tree).len();
        let is_mine = |&&tree: &&usize| self.classes[tree] == class && self.holder(tree).is_none();
        if order < self.shape.block_order {
            let mut near: Vec<usize> = around.iter().take(near).skip(1).copied().collect();
            near.retain(|tree| is_mine(&tree) && self.free_in(*tree) < whole(*tree));
            near.retain(|&tree| self.free_in(tree) >= 1 << order);
            let share = |tree: &usize| self.free_in(*tree) * 64 / whole(*tree);
            let good = near.iter().filter(|tree| (1..32).contains(&share(tree)));
            let half: Vec<_> = near.iter().filter(|tree| share(tree) >= 32).collect();
            let poor: Vec<_> = near.iter().filter(|tree| share(tree) < 1).collect();
            let rest = half.into_iter().chain(poor).take(3);
            if let Some(found) = good.chain(rest).find_map(place) {
                return Some(found);
            }
        }
        let fits = |tree: &&usize| {
            is_mine(tree)
                || (class < 2 && self.holder(**tree).is_none() && self.free_in(**tree) == whole(**tree))
        };
        around.iter().filter(fits).find_map(place)
    }

    /// A tree that nobody holds and that is wholly free is a huge one.
    fn settle(&mut self, tree: usize) {
        if self.holder(tree).is_none() && self.free_in(tree) == self.tree_frames(tree).len() {
            self.classes[tree] = 2;
        }
    }

    fn free(&mut self, frame: Frame) -> Option<u8> {
        let at = (frame - self.shape.first) as usize;
        let order = self.frames[at].filter(|of| of.0 == at)?.1;
        self.frames[at..at + (1 << order)].fill(None);
        self.settle(at / self.block_size() / self.per_tree);
        Some(order)
    }
}

fn differ(shape: Shape, per_tree: u32, cpus: u16, bug: Option<Bug>, seed: u64) -> Option<(u32, String)> {
    let mut ours = Trees::new(shape, per_tree, cpus).unwrap();
    ours.bug = Planted::of(bug);
    let mut theirs = Twin::new(shape, per_tree as usize, cpus.into());
    let (mut random, mut live) = (SplitMix64::new(seed), Vec::new());
    for event in 0..if bug.is_some() { 10_000 } else { 5000 } {
        let full = u64::from(shape.frames - ours.free_frames()) * 100 / u64::from(shape.frames);
        let goal = [97, 30, 70, 5][event as usize / 600 % 4];
        if live.is_empty() || random.below(100) < if full < goal { 75 } else { 25 } {
            let cpu = random.below(cpus.into()) as u16;
            let order = match random.below(10) {
                0..7 => random.below(3) as u8,
                _ => random.below(u64::from(shape.max_order) + 1) as u8,
            };
            let kind = Kind::ALL[random.below(3) as usize];
            let found = (ours.take(cpu, order, kind).unwrap(), theirs.take(cpu.into(), order, kind));
            if found.0 != found.1 {
                return Some((event, format!("cpu {cpu} order {order} {kind:?}: {found:x?}")));
            }
            live.extend(found.0);
        } else {
            let frame = live.swap_remove(random.below(live.len() as u64) as usize);
            let found = (ours.free(frame).ok(), theirs.free(frame));
            if found.0 != found.1 || ours.free(frame).is_ok() {
                return Some((event, format!("freed {frame:#x}: {found:?}; or twice")));
            }
        }
        let classes: Vec<u8> = ours.trees().map(|tree| tree.0 as u8).collect();
        if classes != theirs.classes {
            return Some((event, format!("classes {classes:?}, the twin {:?}", theirs.classes)));
        }
        if event % 64 == 0
            && let Err(wrong) = ours.validate()
        {
            return Some((event, wrong.to_string()));
        }
    }
    for frame in live {
        ours.free(frame).unwrap();
    }
    let whole = ours.free_blocks();
    assert_eq!(whole[usize::from(shape.max_order)], shape.frames >> shape.block_order, "all is whole again");
    None
}

const SHAPES: [(Shape, u32, u16); 4] = [
    (Shape { first: 0, frames: 20 << 6, max_order: 6, block_order: 6 }, 2, 1),
    (Shape { first: 3 << 6, frames: 41 << 6, max_order: 6, block_order: 6 }, 3, 3),
    (Shape { first: 0, frames: 96 << 7, max_order: 7, block_order: 7 }, 1, 2),
    (Shape { first: 1 << 20, frames: 5 << 9, max_order: 9, block_order: 9 }, 32, 2),
];

#[test]
fn trees_are_taken_from_as_the_twin_says() {
    for (shape, per_tree, cpus) in SHAPES {
        for seed in 0..3 {
            assert_eq!(differ(shape, per_tree, cpus, None, seed), None, "{shape:?} seed {seed}");
        }
    }
}

#[test]
fn each_bug_planted_in_trees_is_found() {
    for bug in [Bug::HalfFreeFirst, Bug::TreeStaysReserved, Bug::ClassStays] {
        let differs = |(shape, per_tree, cpus)| differ(shape, per_tree, cpus, Some(bug), 1).is_some();
        assert!(SHAPES.into_iter().any(differs), "{bug:?} is not found");
    }
}

#[test]
fn trees_keep_kinds_apart_and_refuse_what_cannot_be() {
    let shape = Shape { first: 512, frames: 64 << 9, max_order: 9, block_order: 9 };
    let mut trees = Trees::new(shape, super::PER_TREE, 1).unwrap();
    let fixed = trees.take(0, 0, Kind::Unmovable).unwrap().unwrap();
    let movable = trees.take(0, 0, Kind::Movable).unwrap().unwrap();
    assert_ne!((fixed - 512) >> 14, (movable - 512) >> 14, "both in one tree of 32 pageblocks");
    assert!(trees.take(0, 10, Kind::Movable).is_err());
    for frame in [0, 511, fixed + 1, shape.end(), shape.end() - 1] {
        assert!(trees.free(frame).is_err(), "{frame:#x}");
    }
    assert_eq!((trees.free(fixed), trees.free(movable)), (Ok(0), Ok(0)));
    assert!(Trees::new(Shape { max_order: 10, ..shape }, 32, 1).is_err());
    assert!(Trees::new(shape, 0, 1).is_err() && Trees::new(shape, 32, 0).is_err());
}
