//! Naive twin of the compact engine: one word per frame, searched for every query. It shares with the engine
//! nothing but the types.

use crate::types::{AllocationType, Fallback, Frame, ZoneGeometry};

#[derive(Clone, Copy, Debug, PartialEq)]
enum NaiveCompactFrame {
    Free,
    BlockHead(u8),
    InsideBlock,
}

/// The twin.
#[derive(Clone, Debug)]
pub struct NaiveCompactBuddy {
    geometry: ZoneGeometry,
    pages: Vec<NaiveCompactFrame>,
    pub pageblock_owners: Vec<u8>,
    /// List of each pageblock, by owner and order, and the time at which it was added.
    listings: Vec<(Option<(u8, u8)>, u64)>,
    newest_age: u64,
}

impl NaiveCompactBuddy {
    /// All memory free. The lowest block counts as the youngest.
    pub fn new(geometry: ZoneGeometry) -> NaiveCompactBuddy {
        let blocks = (geometry.frames >> geometry.pageblock_order) as usize;
        let mut naive = NaiveCompactBuddy {
            geometry,
            pages: vec![NaiveCompactFrame::Free; geometry.frames as usize],
            pageblock_owners: vec![1; blocks],
            listings: vec![(None, 0); blocks],
            newest_age: 0,
        };
        for (block, place) in naive.expected_listings().into_iter().enumerate().rev() {
            naive.newest_age += 1;
            naive.listings[block] = (place, naive.newest_age);
        }
        naive
    }

    /// The free blocks of a range: the largest aligned runs.
    fn free_blocks_in(&self, from: u32, to: u32) -> Vec<(u32, u8)> {
        let (mut offset, mut runs) = (from, Vec::new());
        while offset < to {
            let fits = |&order: &u8| {
                (self.geometry.first_frame + offset).is_aligned(order)
                    && offset + (1 << order) <= self.geometry.frames
                    && (offset..offset + (1 << order))
                        .all(|at| self.pages[at as usize] == NaiveCompactFrame::Free)
            };
            match (0..=self.geometry.max_order).rev().find(fits) {
                Some(order) => {
                    runs.push((offset, order));
                    offset += 1 << order;
                }
                None => offset += 1,
            }
        }
        runs
    }

    /// Owner and order of the list of each pageblock.
    fn expected_listings(&self) -> Vec<Option<(u8, u8)>> {
        let mut places: Vec<Option<(u8, u8)>> = vec![None; self.listings.len()];
        for (at, order) in self.free_blocks_in(0, self.geometry.frames) {
            let block = (at >> self.geometry.pageblock_order) as usize;
            let largest = places[block].map_or(order, |(_, other)| order.max(other));
            places[block] = Some((self.pageblock_owners[block], largest));
        }
        places
    }

    fn update_listings(&mut self) {
        for (block, place) in self.expected_listings().into_iter().enumerate() {
            if self.listings[block].0 != place {
                self.newest_age += 1;
                self.listings[block] = (place, self.newest_age);
            }
        }
    }

    fn newest_pageblock(&self, owner: u8, order: u8) -> Option<usize> {
        let blocks = 0..self.listings.len();
        blocks.filter(|&at| self.listings[at].0 == Some((owner, order))).max_by_key(|&at| self.listings[at].1)
    }

    pub fn allocate_block(
        &mut self,
        order: u8,
        alloc_type: AllocationType,
    ) -> Option<(Frame, Option<Fallback>)> {
        let list = alloc_type as u8;
        let own_pageblock =
            (order..=self.geometry.max_order).find_map(|size| self.newest_pageblock(list, size));
        let (block, stolen) = match own_pageblock {
            Some(block) => (block, None),
            None => self.find_fallback(order, list).map(|(block, stolen)| (block, Some(stolen)))?,
        };
        let from = (block as u32) << self.geometry.pageblock_order;
        let runs = self.free_blocks_in(from, from + (1 << self.geometry.pageblock_order));
        let fits = runs.into_iter().filter(|&(_, size)| size >= order);
        let (offset, _) = fits.min_by_key(|&(at, size)| (size, at))?;
        self.pages[offset as usize..(offset + (1 << order)) as usize].fill(NaiveCompactFrame::InsideBlock);
        self.pages[offset as usize] = NaiveCompactFrame::BlockHead(order);
        self.update_listings();
        Some((self.geometry.first_frame + offset, stolen))
    }

    fn find_fallback(&mut self, order: u8, alloc_list: u8) -> Option<(usize, Fallback)> {
        let pageblock_order = self.geometry.pageblock_order;
        let others: [u8; 2] = match alloc_list {
            0 => [2, 1],
            1 => [2, 0],
            _ => [0, 1],
        };
        let first_fallback = |naive: &NaiveCompactBuddy, size: u8| {
            others.iter().find_map(|&from| Some((from, naive.newest_pageblock(from, size)?)))
        };
        let fallback = |block: usize, order: u8, from: u8, owns: bool| {
            let frame = self.geometry.first_frame + ((block as u32) << pageblock_order);
            (block, Fallback { frame, order, alloc_list, fallback_list: from, changes_ownership: owns })
        };
        let sizes: Vec<u8> = (order..=self.geometry.max_order).collect();
        for &size in sizes.iter().rev().filter(|&&size| alloc_list != 1 || size >= pageblock_order / 2) {
            let Some((from, block)) = first_fallback(self, size) else { continue };
            let pages = &self.pages[block << pageblock_order..(block + 1) << pageblock_order];
            if 2 * pages.iter().filter(|&&page| page == NaiveCompactFrame::Free).count() >= pages.len() {
                let found = fallback(block, size, from, true);
                self.pageblock_owners[block..block + (1 << size.saturating_sub(pageblock_order))]
                    .fill(alloc_list);
                // It leads its new list.
                self.update_listings();
                return Some(found);
            }
        }
        sizes.iter().find_map(|&size| {
            first_fallback(self, size).map(|(from, block)| fallback(block, size, from, false))
        })
    }

    /// Frees; `None` if no block was allocated there.
    pub fn free_block(&mut self, frame: Frame) -> Option<u8> {
        let at = self.geometry.contains(frame).then(|| frame - self.geometry.first_frame)?;
        let NaiveCompactFrame::BlockHead(order) = self.pages[at as usize] else { return None };
        self.pages[at as usize..(at + (1 << order)) as usize].fill(NaiveCompactFrame::Free);
        // A merged block belongs to the owner of the block freed last.
        let owner = self.pageblock_owners[(at >> self.geometry.pageblock_order) as usize];
        for (from, size) in self.free_blocks_in(0, self.geometry.frames) {
            if size > self.geometry.pageblock_order && (from..from + (1 << size)).contains(&at) {
                let block = (from >> self.geometry.pageblock_order) as usize;
                self.pageblock_owners[block..block + (1 << (size - self.geometry.pageblock_order))]
                    .fill(owner);
            }
        }
        self.update_listings();
        Some(order)
    }

    /// Free blocks of each order.
    pub fn free_blocks(&self) -> Vec<u32> {
        let mut blocks = vec![0; usize::from(self.geometry.max_order) + 1];
        for (_, order) in self.free_blocks_in(0, self.geometry.frames) {
            blocks[usize::from(order)] += 1;
        }
        blocks
    }

    /// First frame of the allocated block that contains a frame.
    pub fn allocated_block_containing(&self, frame: Frame) -> Option<Frame> {
        let mut offset = self.geometry.contains(frame).then(|| frame - self.geometry.first_frame)?;
        while self.pages[offset as usize] == NaiveCompactFrame::InsideBlock {
            offset -= 1;
        }
        (self.pages[offset as usize] != NaiveCompactFrame::Free).then(|| self.geometry.first_frame + offset)
    }

    /// Splits an allocated block.
    pub fn split_block(&mut self, frame: Frame, order: u8) {
        let offset = frame - self.geometry.first_frame;
        if let NaiveCompactFrame::BlockHead(size) = self.pages[offset as usize] {
            for part in (0..1 << size).step_by(1 << order) {
                self.pages[(offset + part) as usize] = NaiveCompactFrame::BlockHead(order);
            }
        }
    }
}
