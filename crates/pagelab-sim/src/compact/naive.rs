//! The naive twin of the compact engine: a word for each frame, looked through for every question. It shares
//! with the engine nothing but the words.

use crate::words::{Frame, Kind, Shape, Stolen};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Page {
    Free,
    Head(u8),
    Inside,
}

/// The twin.
#[derive(Clone, Debug)]
pub struct Naive {
    shape: Shape,
    pages: Vec<Page>,
    pub owners: Vec<u8>,
    /// Where each pageblock is listed, by owner and order, and since when.
    places: Vec<(Option<(u8, u8)>, u64)>,
    age: u64,
}

impl Naive {
    /// All memory free. The lowest block counts as the youngest.
    pub fn new(shape: Shape) -> Naive {
        let (frames, blocks) = (shape.frames as usize, (shape.frames >> shape.block_order) as usize);
        let (pages, owners) = (vec![Page::Free; frames], vec![1; blocks]);
        let mut naive = Naive { shape, pages, owners, places: vec![(None, 0); blocks], age: 0 };
        for (block, place) in naive.look().into_iter().enumerate().rev() {
            naive.age += 1;
            naive.places[block] = (place, naive.age);
        }
        naive
    }

    /// The free blocks of a range: the largest aligned runs.
    fn free_runs(&self, from: u32, to: u32) -> Vec<(u32, u8)> {
        let (mut at, mut runs) = (from, Vec::new());
        while at < to {
            let fits = |&order: &u8| {
                (self.shape.first + at).is_multiple_of(1 << order)
                    && at + (1 << order) <= self.shape.frames
                    && (at..at + (1 << order)).all(|at| self.pages[at as usize] == Page::Free)
            };
            match (0..=self.shape.max_order).rev().find(fits) {
                Some(order) => {
                    runs.push((at, order));
                    at += 1 << order;
                }
                None => at += 1,
            }
        }
        runs
    }

    /// Where each pageblock belongs.
    fn look(&self) -> Vec<Option<(u8, u8)>> {
        let mut places: Vec<Option<(u8, u8)>> = vec![None; self.places.len()];
        for (at, order) in self.free_runs(0, self.shape.frames) {
            let block = (at >> self.shape.block_order) as usize;
            let largest = places[block].map_or(order, |(_, other)| order.max(other));
            places[block] = Some((self.owners[block], largest));
        }
        places
    }

    fn relist(&mut self) {
        for (block, place) in self.look().into_iter().enumerate() {
            if self.places[block].0 != place {
                self.age += 1;
                self.places[block] = (place, self.age);
            }
        }
    }

    fn youngest(&self, owner: u8, order: u8) -> Option<usize> {
        let blocks = 0..self.places.len();
        blocks.filter(|&at| self.places[at].0 == Some((owner, order))).max_by_key(|&at| self.places[at].1)
    }

    /// Allocates.
    pub fn take(&mut self, order: u8, kind: Kind) -> Option<(Frame, Option<Stolen>)> {
        let wanted = kind as u8;
        let own = (order..=self.shape.max_order).find_map(|size| self.youngest(wanted, size));
        let (block, stolen) = match own {
            Some(block) => (block, None),
            None => self.steal(order, wanted).map(|(block, stolen)| (block, Some(stolen)))?,
        };
        let from = (block as u32) << self.shape.block_order;
        let runs = self.free_runs(from, from + (1 << self.shape.block_order));
        let fits = runs.into_iter().filter(|&(_, size)| size >= order);
        let (at, _) = fits.min_by_key(|&(at, size)| (size, at))?;
        self.pages[at as usize..(at + (1 << order)) as usize].fill(Page::Inside);
        self.pages[at as usize] = Page::Head(order);
        self.relist();
        Some((self.shape.first + at, stolen))
    }

    fn steal(&mut self, order: u8, wanted: u8) -> Option<(usize, Stolen)> {
        let whole = self.shape.block_order;
        let others: [u8; 2] = match wanted {
            0 => [2, 1],
            1 => [2, 0],
            _ => [0, 1],
        };
        let other = |naive: &Naive, size: u8| {
            others.iter().find_map(|&from| Some((from, naive.youngest(from, size)?)))
        };
        let stolen = |block: usize, order: u8, from: u8, owns: bool| {
            let frame = self.shape.first + ((block as u32) << whole);
            (block, Stolen { frame, order, wanted, from, owns })
        };
        let sizes: Vec<u8> = (order..=self.shape.max_order).collect();
        for &size in sizes.iter().rev().filter(|&&size| wanted != 1 || size >= whole / 2) {
            let Some((from, block)) = other(self, size) else { continue };
            let pages = &self.pages[block << whole..(block + 1) << whole];
            if 2 * pages.iter().filter(|&&page| page == Page::Free).count() >= pages.len() {
                let found = stolen(block, size, from, true);
                self.owners[block..block + (1 << size.saturating_sub(whole))].fill(wanted);
                // It leads its new list.
                self.relist();
                return Some(found);
            }
        }
        sizes.iter().find_map(|&size| other(self, size).map(|(from, block)| stolen(block, size, from, false)))
    }

    /// Frees; `None` if no block was allocated there.
    pub fn free(&mut self, frame: Frame) -> Option<u8> {
        let at = self.shape.has(frame).then(|| frame - self.shape.first)?;
        let Page::Head(order) = self.pages[at as usize] else { return None };
        self.pages[at as usize..(at + (1 << order)) as usize].fill(Page::Free);
        // What is merged belongs to the owner of what was freed last.
        let owner = self.owners[(at >> self.shape.block_order) as usize];
        for (from, size) in self.free_runs(0, self.shape.frames) {
            if size > self.shape.block_order && (from..from + (1 << size)).contains(&at) {
                let block = (from >> self.shape.block_order) as usize;
                self.owners[block..block + (1 << (size - self.shape.block_order))].fill(owner);
            }
        }
        self.relist();
        Some(order)
    }

    /// Free blocks of each order.
    pub fn free_blocks(&self) -> Vec<u32> {
        let mut blocks = vec![0; usize::from(self.shape.max_order) + 1];
        for (_, order) in self.free_runs(0, self.shape.frames) {
            blocks[usize::from(order)] += 1;
        }
        blocks
    }

    /// The first frame of the allocated block that a frame lies in.
    pub fn used_at(&self, frame: Frame) -> Option<Frame> {
        let mut at = self.shape.has(frame).then(|| frame - self.shape.first)?;
        while self.pages[at as usize] == Page::Inside {
            at -= 1;
        }
        (self.pages[at as usize] != Page::Free).then(|| self.shape.first + at)
    }

    /// Splits an allocated block.
    pub fn split(&mut self, frame: Frame, order: u8) {
        let at = frame - self.shape.first;
        if let Page::Head(size) = self.pages[at as usize] {
            for part in (0..1 << size).step_by(1 << order) {
                self.pages[(at + part) as usize] = Page::Head(order);
            }
        }
    }
}
