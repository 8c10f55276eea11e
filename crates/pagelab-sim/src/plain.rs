//! A buddy allocator as one writes it in an afternoon: ordered sets of free blocks, a hash table of allocated
//! ones. What the engine is measured against.

use std::collections::{BTreeSet, HashMap};

use crate::bench::Engine;
use crate::words::{Frame, Kind, Shape, Wrong};

/// The allocator.
#[derive(Clone, Debug)]
pub struct Plain {
    shape: Shape,
    /// Free blocks by kind and order.
    free: Vec<Vec<BTreeSet<Frame>>>,
    used: HashMap<Frame, (u8, Kind)>,
}

impl Plain {
    /// All memory free, for movable allocations.
    pub fn new(shape: Shape) -> Result<Plain, Wrong> {
        shape.check()?;
        let lists = vec![vec![BTreeSet::new(); usize::from(shape.max_order) + 1]; Kind::ALL.len()];
        let mut plain = Plain { shape, free: lists, used: HashMap::new() };
        for at in (shape.first..shape.end()).step_by(1 << shape.block_order) {
            plain.give(at, shape.block_order, Kind::Movable);
        }
        Ok(plain)
    }

    /// Free blocks of each order.
    pub fn free_blocks(&self) -> Vec<u32> {
        let of = |order: usize| self.free.iter().map(|lists| lists[order].len() as u32).sum();
        (0..=usize::from(self.shape.max_order)).map(of).collect()
    }

    fn give(&mut self, mut frame: Frame, mut order: u8, kind: Kind) {
        while order < self.shape.max_order {
            let buddy = frame ^ (1 << order);
            if !self.free.iter_mut().any(|lists| lists[usize::from(order)].remove(&buddy)) {
                break;
            }
            (frame, order) = (frame.min(buddy), order + 1);
        }
        self.free[kind as usize][usize::from(order)].insert(frame);
    }

    fn first(&self, kind: Kind, orders: impl Iterator<Item = u8>) -> Option<(Frame, u8, Kind)> {
        let of = |order: u8| Some((*self.free[kind as usize][usize::from(order)].first()?, order, kind));
        let mut orders = orders;
        orders.find_map(of)
    }
}

impl Engine for Plain {
    fn frames(&self) -> u32 {
        self.shape.frames
    }

    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        let max = self.shape.max_order;
        if order > max {
            return Err(Wrong::Order { order, max });
        }
        let others = Kind::ALL.into_iter().filter(|&other| other != kind);
        let found = self.first(kind, order..=max);
        let mut largest = others.filter_map(|other| self.first(other, (order..=max).rev()));
        let Some((frame, size, from)) = found.or_else(|| largest.next()) else { return Ok(None) };
        self.free[from as usize][usize::from(size)].remove(&frame);
        for half in (order..size).rev() {
            self.free[kind as usize][usize::from(half)].insert(frame + (1 << half));
        }
        self.used.insert(frame, (order, kind));
        Ok(Some((frame, from != kind)))
    }

    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        let (order, kind) = self.used.remove(&frame).ok_or(Wrong::NotAllocated(frame))?;
        self.give(frame, order, kind);
        Ok(())
    }
}
