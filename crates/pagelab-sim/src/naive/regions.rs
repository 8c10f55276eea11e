//! The twin's border between two regions, and its highatomic reserve.

use crate::words::{Kind, Stolen};

use super::{How, Naive, Page, Pick, Rule};

impl Naive {
    pub(super) fn over_border(&mut self, order: u8, wanted: u8) -> Option<Pick> {
        let (block_order, first) = (self.shape.block_order, self.shape.first as usize);
        let blocks_of = |frames: usize| frames >> block_order;
        // Pageblock numbers as the whole machine counts them, in steps of what is asked for.
        let step = 1usize << order.saturating_sub(block_order);
        let (base, here) = (blocks_of(first), blocks_of(first) + self.border);
        let blocks = if wanted == 0 {
            let to = here.div_ceil(step) * step + step;
            self.border..to - base
        } else {
            let from = (here / step * step).checked_sub(step).filter(|&from| from > base)?;
            from - base..self.border
        };
        if blocks.end > self.owners.len() {
            return None;
        }
        let is_free = |at: usize| {
            (0..=self.shape.max_order).any(|order| {
                let frame = (first + at) >> order << order;
                self.is_free(frame as u32, order)
            })
        };
        let owner = 1 - wanted;
        if blocks.clone().any(|block| self.owners[block] != owner || !self.range(block).all(is_free)) {
            return None;
        }
        for block in blocks.clone() {
            self.hand_over(block, wanted);
        }
        self.border = if wanted == 0 { blocks.end } else { blocks.start };
        let (at, size) = self.smallest(wanted, order)?;
        let frame = self.shape.first + ((blocks.start as u32) << block_order);
        let stolen = Stolen { frame, order: block_order, wanted, from: owner, owns: true };
        Some((at, size, wanted, Some(stolen)))
    }

    /// The border goes down while the two pageblocks below it are free; an eighth stays below.
    pub fn lower_border(&mut self) -> u32 {
        let (least, before) = ((self.owners.len() / 8).max(1), self.border);
        let lies_free = |naive: &Naive, block: usize| {
            let frame = naive.shape.first + ((block as u32) << naive.shape.block_order);
            naive.owners[block] == 0
                && (naive.shape.block_order..=naive.shape.max_order)
                    .any(|order| naive.is_free(frame >> order << order, order))
        };
        while self.rule == Rule::Border && self.border > least.max(1) && self.border >= 2 {
            if !(lies_free(self, self.border - 1) && lies_free(self, self.border - 2)) {
                break;
            }
            self.border -= 1;
            self.hand_over(self.border, 1);
        }
        (before - self.border) as u32
    }

    /// A free pageblock changes hands; what else is in its block is cut into its largest parts.
    fn hand_over(&mut self, block: usize, list: u8) {
        let (block_order, first) = (self.shape.block_order, self.shape.first);
        let at = (block as u32) << block_order;
        let mut sizes = block_order..=self.shape.max_order;
        let Some(size) = sizes.find(|&size| self.is_free((first + at) >> size << size, size)) else { return };
        let whole = ((first + at) >> size << size) - first;
        self.pages[whole as usize] = Page::Inside;
        for order in (block_order..size).rev() {
            let buddy = (((first + at) >> order) ^ 1) << order;
            self.put(buddy - first, order, self.owners[block], false);
        }
        self.owners[block] = list;
        self.give(first + at, block_order, list);
    }

    pub(super) fn set_aside(&mut self, at: u32, order: u8, how: &How) {
        let block_order = self.shape.block_order;
        let block = (at >> block_order) as usize;
        let blocks = block..block + (1usize << order.saturating_sub(block_order));
        let held = self.owners.iter().filter(|&&owner| owner == self.lists + 1).count() << block_order;
        let may = how.is_atomic && order > 0 && self.extras.has_highatomic;
        if !may
            || held as u32 >= self.shape.frames / 100 + (1 << block_order)
            || self.owners[blocks.clone()].iter().any(|&owner| owner >= self.lists)
        {
            return;
        }
        for block in blocks {
            self.owners[block] = self.lists + 1;
            self.relist(block, self.lists + 1);
        }
    }

    /// Gives a pageblock of the highatomic reserve back.
    pub fn unreserve(&mut self, kind: Kind, is_forced: bool) -> bool {
        let (list, block_order) = (self.lists + 1, self.shape.block_order);
        let held = self.owners.iter().filter(|&&owner| owner == list).count();
        let Some((at, size)) = self.smallest(list, 0) else { return false };
        if held <= 1 && !is_forced {
            return false;
        }
        let block = (at >> block_order) as usize;
        let wanted = match self.rule {
            Rule::Border if block < self.border => 0,
            Rule::Border => 1,
            _ => self.list(kind),
        };
        if size < block_order {
            self.relist(block, wanted);
            self.owners[block] = wanted;
            return true;
        }
        for block in block..block + (1 << (size - block_order)) {
            self.hand_over(block, wanted);
        }
        true
    }
}
