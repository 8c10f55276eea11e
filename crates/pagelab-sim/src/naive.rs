//! The naive twin of a zone: one word for each frame, and every question answered by looking at all of them.
//! It shares with the engine nothing but the words.

use crate::words::{Frame, Kind, Shape, Stolen};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Page {
    Inside,
    /// `age` orders a list: the block with the highest is in front.
    Free {
        order: u8,
        list: u8,
        age: i64,
    },
    Used {
        order: u8,
        kind: Kind,
    },
    /// A processor keeps it.
    Kept,
}

/// What the twin does as its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// One list.
    Standard,
    /// Pageblocks, as Linux has them.
    Mobility,
    /// The lists of the paper, of so many types.
    Lists(u8),
}

/// The twin.
#[derive(Clone, Debug)]
pub struct Naive {
    shape: Shape,
    rule: Rule,
    lists: u8,
    pages: Vec<Page>,
    owners: Vec<u8>,
    ages: (i64, i64),
}

impl Naive {
    /// All memory free.
    pub fn new(shape: Shape, rule: Rule) -> Naive {
        let lists = match rule {
            Rule::Standard => 1,
            Rule::Mobility => 3,
            Rule::Lists(types) => types,
        };
        let owner = if lists == 1 { 0 } else { Kind::Movable as u8 };
        let (pages, blocks) = (shape.frames as usize, (shape.frames >> shape.block_order) as usize);
        let (pages, owners) = (vec![Page::Inside; pages], vec![owner; blocks]);
        let mut naive = Naive { shape, rule, lists, pages, owners, ages: (0, 0) };
        let mut at = 0;
        while at < shape.frames {
            let fits = |&order: &u8| {
                (shape.first + at).is_multiple_of(1 << order) && at + (1 << order) <= shape.frames
            };
            let order = (0..=shape.max_order).rev().find(fits).unwrap_or(0);
            naive.put(at, order, owner, true);
            at += 1 << order;
        }
        naive
    }

    fn put(&mut self, at: u32, order: u8, list: u8, at_end: bool) {
        let age = if at_end { &mut self.ages.0 } else { &mut self.ages.1 };
        *age += if at_end { -1 } else { 1 };
        self.pages[at as usize] = Page::Free { order, list, age: *age };
    }

    fn front(&self, of: u8, size: u8) -> Option<u32> {
        let age = |at: &u32| match self.pages[*at as usize] {
            Page::Free { order, list, age } if order == size && list == of => Some(age),
            _ => None,
        };
        (0..self.shape.frames).filter(|at| age(at).is_some()).max_by_key(age)
    }

    fn others(&self, wanted: u8) -> Vec<u8> {
        match (self.lists, wanted) {
            (1, _) => vec![],
            (2, _) => vec![1 - wanted],
            (_, 0) => vec![2, 1],
            (_, 1) => vec![2, 0],
            _ => vec![0, 1],
        }
    }

    fn list(&self, kind: Kind) -> u8 {
        match (self.lists, kind) {
            (1, _) | (2, Kind::Reclaimable) => 0,
            _ => kind as u8,
        }
    }

    /// Allocates.
    pub fn take(&mut self, order: u8, kind: Kind) -> Option<(Frame, Option<Stolen>)> {
        let wanted = self.list(kind);
        let orders = order..=self.shape.max_order;
        let own = |naive: &Naive| orders.clone().find_map(|size| Some((naive.front(wanted, size)?, size)));
        let mut stolen = None;
        if own(self).is_none() {
            stolen = Some(self.steal(order, wanted)?);
        }
        let (at, size) = own(self)?;
        for half in (order..size).rev() {
            self.put(at + (1 << half), half, wanted, false);
        }
        self.pages[at as usize] = Page::Used { order, kind };
        Some((self.shape.first + at, stolen))
    }

    fn steal(&mut self, order: u8, wanted: u8) -> Option<Stolen> {
        let at_order = |naive: &Naive, size: u8| {
            naive.others(wanted).into_iter().find_map(|list| Some((list, naive.front(list, size)?)))
        };
        let by_paper = matches!(self.rule, Rule::Lists(_));
        let whole = |size: u8| by_paper || size >= self.shape.block_order / 2 || wanted != 1;
        let mut sizes: Vec<u8> = (order..=self.shape.max_order).collect();
        let largest = sizes.iter().rev().copied().find(|&size| at_order(self, size).is_some())?;
        if whole(largest) {
            sizes = vec![largest];
        }
        let size = sizes.into_iter().find(|&size| at_order(self, size).is_some())?;
        let (from, at) = at_order(self, size)?;
        let (block, pages) = ((at >> self.shape.block_order) as usize, 1u32 << self.shape.block_order);
        let mut owns = size >= self.shape.block_order && !by_paper;
        if owns {
            for block in block..block + (1 << (size - self.shape.block_order)) {
                self.owners[block] = wanted;
            }
            self.put(at, size, wanted, true);
        } else if whole(size) && !by_paper {
            let (mut free, mut movable) = (0, 0);
            for at in block as u32 * pages..(block as u32 + 1) * pages {
                match self.pages[at as usize] {
                    Page::Free { order, .. } => {
                        self.put(at, order, wanted, true);
                        free += 1 << order;
                    }
                    Page::Used { order, kind: Kind::Movable } => movable += 1 << order,
                    _ => {}
                }
            }
            let alike = match (wanted, self.owners[block]) {
                (1, _) => movable,
                (_, 1) => pages - free - movable,
                _ => 0,
            };
            owns = free + alike >= pages / 2;
            if owns {
                self.owners[block] = wanted;
            }
        } else {
            self.put(at, size, wanted, true);
        }
        Some(Stolen { frame: self.shape.first + at, order: size, wanted, from, owns })
    }

    /// Whether a free block of this order begins at a frame.
    fn is_free(&self, frame: Frame, size: u8) -> bool {
        self.shape.has(frame)
            && matches!(self.pages[(frame - self.shape.first) as usize],
                Page::Free { order, .. } if order == size)
    }

    /// Frees; `None` if no block was allocated there.
    pub fn free(&mut self, frame: Frame) -> Option<u8> {
        let (order, list) = self.used(frame)?;
        self.give(frame, order, list);
        Some(order)
    }

    /// Order of the allocated block at a frame, and the list that its pageblock belongs to.
    fn used(&self, frame: Frame) -> Option<(u8, u8)> {
        let at = self.shape.has(frame).then(|| frame - self.shape.first)?;
        let Page::Used { order, kind } = self.pages[at as usize] else { return None };
        let list = match self.rule {
            Rule::Lists(_) => self.list(kind),
            _ => self.owners[(at >> self.shape.block_order) as usize],
        };
        Some((order, list))
    }

    fn give(&mut self, frame: Frame, order: u8, list: u8) {
        self.pages[(frame - self.shape.first) as usize] = Page::Inside;
        let (mut frame, mut size) = (frame, order);
        while size < self.shape.max_order && self.is_free(frame ^ (1 << size), size) {
            let buddy = frame ^ (1 << size);
            self.pages[(buddy - self.shape.first) as usize] = Page::Inside;
            (frame, size) = (frame.min(buddy), size + 1);
        }
        let larger = frame / (2 << size) * (2 << size);
        let at_end = size + 1 < self.shape.max_order && self.is_free(larger ^ (2 << size), size + 1);
        self.put(frame - self.shape.first, size, list, at_end);
    }

    /// Free blocks of each order.
    pub fn free_blocks(&self) -> Vec<u32> {
        let mut blocks = vec![0; usize::from(self.shape.max_order) + 1];
        for page in &self.pages {
            if let Page::Free { order, .. } = page {
                blocks[usize::from(*order)] += 1;
            }
        }
        blocks
    }

    /// The list that each pageblock belongs to.
    pub fn owners(&self) -> &[u8] {
        &self.owners
    }
}

/// The twin with what processors keep: one flat list of blocks, looked through for each question.
#[derive(Clone, Debug)]
pub struct NaivePerCpu {
    /// The zone below.
    pub zone: Naive,
    batch: u32,
    high: u32,
    /// Processor, place of its list, order, frame and age: the highest is in front.
    kept: Vec<(u16, u8, u8, Frame, i64)>,
    age: i64,
}

impl NaivePerCpu {
    /// Nothing kept yet.
    pub fn new(zone: Naive, batch: u32, high: u32) -> NaivePerCpu {
        NaivePerCpu { zone, batch, high, kept: Vec::new(), age: 0 }
    }

    fn place(&self, order: u8, list: u8) -> Option<u8> {
        let row = match order {
            0..=3 => order,
            _ if order == self.zone.shape.block_order => 4,
            _ => return None,
        };
        Some(row * self.zone.lists + list)
    }

    fn keep(&mut self, kept: (u16, u8, u8, Frame, i64)) {
        self.zone.pages[(kept.3 - self.zone.shape.first) as usize] = Page::Kept;
        self.kept.push(kept);
    }

    fn age(&mut self) -> i64 {
        self.age += 1;
        self.age
    }

    /// Allocates.
    pub fn take(&mut self, cpu: u16, order: u8, kind: Kind) -> Option<(Frame, Option<Stolen>)> {
        let wanted = if self.zone.lists == 1 { 0 } else { kind as u8 };
        let Some(place) = self.place(order, wanted) else { return self.zone.take(order, kind) };
        let mut last = None;
        if !self.kept.iter().any(|kept| (kept.0, kept.1) == (cpu, place)) {
            for _ in 0..if order == 0 { self.batch } else { (self.batch / (1 << order)).max(2) } {
                let Some((frame, stolen)) = self.zone.take(order, kind) else { break };
                last = stolen.or(last);
                // Behind all others.
                let age = -self.age();
                self.keep((cpu, place, order, frame, age));
            }
        }
        let own = self.kept.iter().filter(|kept| (kept.0, kept.1) == (cpu, place));
        let front = *own.max_by_key(|kept| kept.4)?;
        self.kept.retain(|kept| *kept != front);
        self.zone.pages[(front.3 - self.zone.shape.first) as usize] = Page::Used { order, kind };
        Some((front.3, last))
    }

    /// Frees.
    pub fn free(&mut self, cpu: u16, frame: Frame) -> Option<u8> {
        let (order, list) = self.zone.used(frame)?;
        let Some(mut place) = self.place(order, list) else { return self.zone.free(frame) };
        let age = self.age();
        self.keep((cpu, place, order, frame, age));
        let frames = |naive: &NaivePerCpu| -> u32 {
            naive.kept.iter().filter(|kept| kept.0 == cpu).map(|kept| 1 << kept.2).sum()
        };
        if frames(self) >= self.high {
            let mut left = self.batch.min(frames(self));
            while left > 0 {
                let own = self.kept.iter().filter(|kept| (kept.0, kept.1) == (cpu, place));
                match own.min_by_key(|kept| kept.4).copied() {
                    Some(oldest) => {
                        self.kept.retain(|kept| *kept != oldest);
                        left = left.saturating_sub(1 << oldest.2);
                        self.zone.give(oldest.3, oldest.2, place % self.zone.lists);
                    }
                    None => place = (place + 1) % (5 * self.zone.lists),
                }
            }
        }
        Some(order)
    }
}
