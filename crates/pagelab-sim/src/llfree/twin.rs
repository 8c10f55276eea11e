//! Naive twin of the trees: one flat array of frames, compared event by event.

use pagelab_model::random::SplitMix64;

use super::Llfree;
use crate::injected_bugs::{Bug, InjectedBug};
use crate::types::{AllocationType, Frame, ZoneGeometry};

/// LLFree with a class and a reservation of each tree, by searches of all frames.
struct NaiveLlfree {
    geometry: ZoneGeometry,
    pageblocks_per_tree: usize,
    cpus: usize,
    /// Per frame: the first frame of its block and the order, or nothing.
    frames: Vec<Option<(usize, u8)>>,
    /// Per tree: 0 fixed, 1 movable, 2 huge.
    classes: Vec<u8>,
    /// Processor, class, pageblock of its last allocation.
    reservations: Vec<(usize, u8, usize)>,
}

impl NaiveLlfree {
    fn new(geometry: ZoneGeometry, per_tree: usize, cpus: usize) -> NaiveLlfree {
        let trees = ((geometry.frames >> geometry.pageblock_order) as usize).div_ceil(per_tree);
        NaiveLlfree {
            geometry,
            pageblocks_per_tree: per_tree,
            cpus,
            frames: vec![None; geometry.frames as usize],
            classes: vec![2; trees],
            reservations: Vec::new(),
        }
    }

    fn block_size(&self) -> usize {
        1 << self.geometry.pageblock_order
    }

    fn tree_frames(&self, tree: usize) -> std::ops::Range<usize> {
        let size = self.pageblocks_per_tree * self.block_size();
        tree * size..((tree + 1) * size).min(self.frames.len())
    }

    fn free_frames_in(&self, tree: usize) -> usize {
        self.frames[self.tree_frames(tree)].iter().filter(|frame| frame.is_none()).count()
    }

    fn reservation_of(&self, tree: usize) -> Option<usize> {
        let of = |&(_, _, block): &(usize, u8, usize)| block / self.pageblocks_per_tree == tree;
        self.reservations.iter().position(of)
    }

    /// The first aligned free run of a tree, from a pageblock on and around.
    fn find_free_run(&self, tree: usize, from: usize, order: u8) -> Option<usize> {
        let range = self.tree_frames(tree);
        let is_free = |&at: &usize| self.frames[at..at + (1 << order)].iter().all(Option::is_none);
        let split = from * self.block_size();
        let mut after = (split.max(range.start)..range.end).step_by(1 << order);
        after.find(is_free).or_else(|| (range.start..split).step_by(1 << order).find(is_free))
    }

    fn trees_near(&self, start: usize) -> Vec<usize> {
        let trees = self.classes.len() as i64;
        let away = |step: i64| if step % 2 == 0 { step / 2 } else { -(step + 1) / 2 };
        (0..trees).map(|step| (start as i64 + away(step)).rem_euclid(trees) as usize).collect()
    }

    fn allocate_block(&mut self, cpu: usize, order: u8, kind: AllocationType) -> Option<Frame> {
        let class = match (order == self.geometry.pageblock_order, kind) {
            (true, _) => 2,
            (false, AllocationType::Movable) => 1,
            _ => 0,
        };
        let at = self.find_block(cpu, class, order)?;
        self.frames[at..at + (1 << order)].fill(Some((at, order)));
        Some(self.geometry.first_frame + at as u32)
    }

    fn find_block(&mut self, cpu: usize, class: u8, order: u8) -> Option<usize> {
        let mine = self.reservations.iter().position(|held| (held.0, held.1) == (cpu, class));
        let trees = self.classes.len();
        let mut start = trees * cpu / self.cpus;
        if let Some(mine) = mine {
            let block = self.reservations[mine].2;
            start = block / self.pageblocks_per_tree;
            if let Some(at) = self.find_free_run(start, block, order) {
                self.reservations[mine].2 = at / self.block_size();
                return Some(at);
            }
        }
        if let Some((tree, at)) = self.tree_to_reserve(class, order, start) {
            if let Some(mine) = mine {
                let (_, _, block) = self.reservations.swap_remove(mine);
                self.update_class(block / self.pageblocks_per_tree);
            }
            self.classes[tree] = class;
            self.reservations.push((cpu, class, at / self.block_size()));
            return Some(at);
        }
        let around = self.trees_near(start);
        let place = |twin: &NaiveLlfree, tree: &usize| Some((*tree, twin.find_free_run(*tree, 0, order)?));
        let is_unheld = |tree: &&usize| self.reservation_of(**tree).is_none();
        let higher = |tree: &&usize| self.classes[**tree] > class;
        let found = around.iter().filter(is_unheld).filter(higher).find_map(|tree| place(self, tree));
        if let Some((tree, at)) = found {
            self.classes[tree] = class;
            return Some(at);
        }
        let others = around.iter().filter(is_unheld).chain(around.iter().filter(|tree| !is_unheld(tree)));
        let mut others = others.copied().collect::<Vec<_>>().into_iter();
        others.find_map(|tree| self.find_free_run(tree, 0, order))
    }

    /// The tree to reserve: near ones that are used up to a part, then any of the class, or whole.
    fn tree_to_reserve(&self, class: u8, order: u8, start: usize) -> Option<(usize, usize)> {
        let trees = self.classes.len();
        let near = (trees / 16).max(4);
        let mut step = 1;
        while step < 2 * near {
            step *= 2;
        }
        let around = self.trees_near(start - start % step);
        let place = |&tree: &usize| Some((tree, self.find_free_run(tree, 0, order)?));
        let whole = |tree: usize| self.tree_frames(tree).len();
        let is_mine = |&&tree: &&usize| self.classes[tree] == class && self.reservation_of(tree).is_none();
        if order < self.geometry.pageblock_order {
            let mut near: Vec<usize> = around.iter().take(near).skip(1).copied().collect();
            near.retain(|tree| is_mine(&tree) && self.free_frames_in(*tree) < whole(*tree));
            near.retain(|&tree| self.free_frames_in(tree) >= 1 << order);
            let share = |tree: &usize| self.free_frames_in(*tree) * 64 / whole(*tree);
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
                || (class < 2
                    && self.reservation_of(**tree).is_none()
                    && self.free_frames_in(**tree) == whole(**tree))
        };
        around.iter().filter(fits).find_map(place)
    }

    /// An unreserved, completely free tree is a huge one.
    fn update_class(&mut self, tree: usize) {
        if self.reservation_of(tree).is_none() && self.free_frames_in(tree) == self.tree_frames(tree).len() {
            self.classes[tree] = 2;
        }
    }

    fn free_block(&mut self, frame: Frame) -> Option<u8> {
        let at = (frame - self.geometry.first_frame) as usize;
        let order = self.frames[at].filter(|of| of.0 == at)?.1;
        self.frames[at..at + (1 << order)].fill(None);
        self.update_class(at / self.block_size() / self.pageblocks_per_tree);
        Some(order)
    }
}

fn first_difference(
    geometry: ZoneGeometry,
    per_tree: u32,
    cpus: u16,
    bug: Option<Bug>,
    seed: u64,
) -> Option<(u32, String)> {
    let mut ours = Llfree::new(geometry, per_tree, cpus).unwrap();
    ours.bug = InjectedBug::new(bug);
    let mut theirs = NaiveLlfree::new(geometry, per_tree as usize, cpus.into());
    let (mut random, mut live) = (SplitMix64::new(seed), Vec::new());
    for event in 0..if bug.is_some() { 10_000 } else { 5000 } {
        let full = u64::from(geometry.frames - ours.free_frames()) * 100 / u64::from(geometry.frames);
        let goal = [97, 30, 70, 5][event as usize / 600 % 4];
        if live.is_empty() || random.next_below(100) < if full < goal { 75 } else { 25 } {
            let cpu = random.next_below(cpus.into()) as u16;
            let order = match random.next_below(10) {
                0..7 => random.next_below(3) as u8,
                _ => random.next_below(u64::from(geometry.max_order) + 1) as u8,
            };
            let kind = AllocationType::ALL[random.next_below(3) as usize];
            let found = (
                ours.allocate_block(cpu, order, kind).unwrap(),
                theirs.allocate_block(cpu.into(), order, kind),
            );
            if found.0 != found.1 {
                return Some((event, format!("cpu {cpu} order {order} {kind:?}: {found:x?}")));
            }
            live.extend(found.0);
        } else {
            let frame = live.swap_remove(random.next_below(live.len() as u64) as usize);
            let found = (ours.free_block(frame).ok(), theirs.free_block(frame));
            if found.0 != found.1 || ours.free_block(frame).is_ok() {
                return Some((event, format!("freed {frame:#x}: {found:?}, or freed twice")));
            }
        }
        let classes: Vec<u8> = ours.trees.iter().map(|tree| tree.class as u8).collect();
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
        ours.free_block(frame).unwrap();
    }
    let mut offsets = (0..geometry.frames).step_by(1 << geometry.max_order);
    assert!(
        offsets.all(|offset| ours.is_block_free(offset, geometry.max_order)),
        "all blocks are merged again"
    );
    None
}

const SHAPES: [(ZoneGeometry, u32, u16); 4] = [
    (ZoneGeometry { first_frame: Frame::new(0), frames: 20 << 6, max_order: 6, pageblock_order: 6 }, 2, 1),
    (
        ZoneGeometry { first_frame: Frame::new(3 << 6), frames: 41 << 6, max_order: 6, pageblock_order: 6 },
        3,
        3,
    ),
    (ZoneGeometry { first_frame: Frame::new(0), frames: 96 << 7, max_order: 7, pageblock_order: 7 }, 1, 2),
    (
        ZoneGeometry { first_frame: Frame::new(1 << 20), frames: 5 << 9, max_order: 9, pageblock_order: 9 },
        32,
        2,
    ),
];

#[test]
fn trees_are_taken_from_as_the_twin_says() {
    for (geometry, per_tree, cpus) in SHAPES {
        for seed in 0..3 {
            assert_eq!(
                first_difference(geometry, per_tree, cpus, None, seed),
                None,
                "{geometry:?} seed {seed}"
            );
        }
    }
}

#[test]
fn each_bug_planted_in_trees_is_found() {
    for bug in [Bug::HalfFreeTreeFirst, Bug::ReplacedTreeStaysReserved, Bug::TreeClassUnchanged] {
        let differs =
            |(geometry, per_tree, cpus)| first_difference(geometry, per_tree, cpus, Some(bug), 1).is_some();
        assert!(SHAPES.into_iter().any(differs), "{bug:?} is not found");
    }
}

#[test]
fn trees_keep_kinds_apart_and_refuse_what_cannot_be() {
    let geometry =
        ZoneGeometry { first_frame: Frame::new(512), frames: 64 << 9, max_order: 9, pageblock_order: 9 };
    let mut trees = Llfree::new(geometry, super::PAGEBLOCKS_PER_TREE, 1).unwrap();
    let fixed = trees.allocate_block(0, 0, AllocationType::Unmovable).unwrap().unwrap();
    let movable = trees.allocate_block(0, 0, AllocationType::Movable).unwrap().unwrap();
    assert_ne!(
        (fixed - geometry.first_frame) >> 14,
        (movable - geometry.first_frame) >> 14,
        "both in one tree of 32 pageblocks"
    );
    assert!(trees.allocate_block(0, 10, AllocationType::Movable).is_err());
    for frame in [Frame::new(0), Frame::new(511), fixed + 1, geometry.end(), geometry.end() - 1] {
        assert!(trees.free_block(frame).is_err(), "{frame:#x}");
    }
    assert_eq!((trees.free_block(fixed), trees.free_block(movable)), (Ok(0), Ok(0)));
    assert!(Llfree::new(ZoneGeometry { max_order: 10, ..geometry }, 32, 1).is_err());
    assert!(Llfree::new(geometry, 0, 1).is_err() && Llfree::new(geometry, 32, 0).is_err());
}
