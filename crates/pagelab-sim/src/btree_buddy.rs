//! Simple buddy allocator on standard collections: ordered sets of free blocks, a hash table of allocated
//! ones. What the engine is measured against.

use std::collections::{BTreeSet, HashMap};

use crate::bench::{AllocateOutcome, Engine};
use crate::types::{AllocationType, Error, Frame, ZoneGeometry};

/// The allocator.
#[derive(Clone, Debug)]
pub struct BTreeBuddy {
    geometry: ZoneGeometry,
    /// Free blocks by allocation type and order.
    free_blocks: Vec<Vec<BTreeSet<Frame>>>,
    allocated: HashMap<Frame, (u8, AllocationType)>,
}

impl BTreeBuddy {
    /// All memory free, for movable allocations.
    pub fn new(geometry: ZoneGeometry) -> Result<BTreeBuddy, Error> {
        geometry.validate()?;
        let lists =
            vec![vec![BTreeSet::new(); usize::from(geometry.max_order) + 1]; AllocationType::ALL.len()];
        let mut buddy = BTreeBuddy { geometry, free_blocks: lists, allocated: HashMap::new() };
        for at in Frame::blocks(geometry.first_frame..geometry.end(), geometry.pageblock_order) {
            buddy.free_to_type(at, geometry.pageblock_order, AllocationType::Movable);
        }
        Ok(buddy)
    }

    /// Free blocks of each order.
    pub fn free_blocks(&self) -> Vec<u32> {
        let blocks_of_order =
            |order: usize| self.free_blocks.iter().map(|lists| lists[order].len() as u32).sum();
        (0..=usize::from(self.geometry.max_order)).map(blocks_of_order).collect()
    }

    fn free_to_type(&mut self, mut frame: Frame, mut order: u8, alloc_type: AllocationType) {
        while order < self.geometry.max_order {
            let buddy = frame.buddy(order);
            if !self.free_blocks.iter_mut().any(|lists| lists[usize::from(order)].remove(&buddy)) {
                break;
            }
            (frame, order) = (frame.min(buddy), order + 1);
        }
        self.free_blocks[alloc_type as usize][usize::from(order)].insert(frame);
    }

    fn first_block(
        &self,
        alloc_type: AllocationType,
        orders: impl Iterator<Item = u8>,
    ) -> Option<(Frame, u8, AllocationType)> {
        let first_of_order = |order: u8| {
            Some((*self.free_blocks[alloc_type as usize][usize::from(order)].first()?, order, alloc_type))
        };
        let mut orders = orders;
        orders.find_map(first_of_order)
    }
}

impl Engine for BTreeBuddy {
    fn frame_count(&self) -> u32 {
        self.geometry.frames
    }

    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> AllocateOutcome {
        let max = self.geometry.max_order;
        if order > max {
            return Err(Error::OrderTooLarge { order, max });
        }
        let fallback_types = AllocationType::ALL.into_iter().filter(|&other| other != alloc_type);
        let own_block = self.first_block(alloc_type, order..=max);
        let mut largest = fallback_types.filter_map(|other| self.first_block(other, (order..=max).rev()));
        let Some((frame, found_order, found_type)) = own_block.or_else(|| largest.next()) else {
            return Ok(None);
        };
        self.free_blocks[found_type as usize][usize::from(found_order)].remove(&frame);
        for half in (order..found_order).rev() {
            self.free_blocks[alloc_type as usize][usize::from(half)].insert(frame + (1 << half));
        }
        self.allocated.insert(frame, (order, alloc_type));
        Ok(Some((frame, found_type != alloc_type)))
    }

    fn free_block(&mut self, frame: Frame) -> Result<(), Error> {
        let (order, kind) = self.allocated.remove(&frame).ok_or(Error::NotAllocated(frame))?;
        self.free_to_type(frame, order, kind);
        Ok(())
    }
}
