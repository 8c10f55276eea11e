//! The naive twin of a zone: one word for each frame, and every question answered by looking at all of them.
//! It shares with the engine nothing but the words (`words.rs`) and the seeded draws.

mod kept;
mod regions;
mod told;

use std::ops::Range;

use pagelab_model::seed::SplitMix64;

use crate::words::{Ends, Extras, Frame, Kind, Shape, Stolen};

pub use kept::{HowMuch, NaivePerCpu};
pub use told::{Part, Told};

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
    /// Pageblocks, as Linux has them up to 6.9.
    Mobility,
    /// The lists of the paper, of so many types.
    Lists(u8),
    /// Pageblocks, or a piece of the largest block: Linux up to 6.14.
    Cuts,
    /// Pageblocks, or a piece of the smallest block: Linux up to 6.18.
    Claims,
    /// Two regions.
    Border,
    /// What follows from numbers that it is told ([`Told`]).
    Told,
}

impl Rule {
    /// What the policy of a name does; `None`: it has no rule here, and the numbers can be told.
    pub fn named(name: &str) -> Option<Rule> {
        Some(match name {
            "standard" => Rule::Standard,
            "list2" => Rule::Lists(2),
            "list3" => Rule::Lists(3),
            "mobility-6.1" => Rule::Mobility,
            "mobility-6.10" => Rule::Cuts,
            "mobility-6.18" | "defrag-6.18" => Rule::Claims,
            "contiguitas" => Rule::Border,
            _ => return None,
        })
    }

    fn is_strict(self) -> bool {
        matches!(self, Rule::Cuts | Rule::Claims | Rule::Border)
    }
}

/// How an allocation is made.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether kinds may be mixed.
    pub may_mix: bool,
    /// Whether the highatomic reserve serves it.
    pub is_atomic: bool,
    /// In a batch: what served the last one. 0: its own list, 1: CMA, 2: a piece of another's block.
    pub last: u8,
}

/// A free block, the list that its rest goes to, and what is told of it.
type Pick = (u32, u8, u8, Option<Stolen>);

/// The twin.
#[derive(Clone, Debug)]
pub struct Naive {
    shape: Shape,
    rule: Rule,
    told: Option<Told>,
    lists: u8,
    extras: Extras,
    random: SplitMix64,
    bits: Vec<bool>,
    border: usize,
    pages: Vec<Page>,
    owners: Vec<u8>,
    ages: (i64, i64),
    /// How often a pageblock of another kind was looked at without being had whole.
    pub mixings: u32,
}

impl Naive {
    /// All memory free.
    pub fn new(shape: Shape, rule: Rule, extras: &Extras) -> Naive {
        Naive::with(shape, rule, None, extras)
    }

    fn with(shape: Shape, rule: Rule, told: Option<Told>, extras: &Extras) -> Naive {
        let lists = match (&told, rule) {
            (Some(told), _) => told.lists,
            (None, Rule::Standard) => 1,
            (None, Rule::Mobility | Rule::Cuts | Rule::Claims | Rule::Told) => 3,
            (None, Rule::Lists(types)) => types,
            (None, Rule::Border) => 2,
        };
        let owner = if lists == 1 { 0 } else { Kind::Movable as u8 };
        let blocks = (shape.frames >> shape.block_order) as usize;
        let mut owners = vec![owner; blocks];
        let mut border = 0;
        if rule == Rule::Border {
            border = (blocks / 8).max(1);
            owners[..border].fill(0);
        }
        if let Some(told) = &told {
            owners.clone_from(&told.owners);
        }
        for frame in extras.cma.iter().flat_map(|area| area.clone()) {
            owners[((frame - shape.first) >> shape.block_order) as usize] = lists;
        }
        let seed = if let Ends::Shuffled(seed) = extras.ends { seed } else { 0 };
        let (pages, extras) = (vec![Page::Inside; shape.frames as usize], extras.clone());
        let (random, bits, ages) = (SplitMix64::new(seed), Vec::new(), (0, 0));
        let mixings = 0;
        let mut naive =
            Naive { shape, rule, told, lists, extras, random, bits, border, pages, owners, ages, mixings };
        naive.begin();
        naive
    }

    fn begin(&mut self) {
        let (shape, mut at, mut last) = (self.shape, 0u32, Vec::new());
        while at < shape.frames {
            let fits = |&order: &u8| {
                let end = at + (1 << order);
                (shape.first + at).is_multiple_of(1 << order)
                    && end <= shape.frames
                    && (at..end).all(|frame| self.owner(frame) == self.owner(at))
            };
            let order = (0..=shape.max_order).rev().find(fits).unwrap_or(0);
            let is_shuffled = order == shape.max_order && self.extras.ends != Ends::Lifo;
            match is_shuffled && self.extras.ends != Ends::Fifo {
                true => last.push(at),
                false => {
                    self.put(at, order, self.owner(at), self.rule != Rule::Border || self.owner(at) != 1)
                }
            }
            at += 1 << order;
        }
        let mut left = last.len();
        while left > 1 {
            let other = self.random.below(left as u64) as usize;
            left -= 1;
            last.swap(left, other);
        }
        for at in last {
            self.put(at, shape.max_order, self.owner(at), true);
        }
    }

    fn owner(&self, at: u32) -> u8 {
        self.owners[(at >> self.shape.block_order) as usize]
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
        if let Some(told) = &self.told {
            return told.others[usize::from(wanted)].clone();
        }
        match (self.lists, wanted) {
            (1, _) => vec![],
            (2, _) if self.rule == Rule::Border => vec![],
            (2, _) => vec![1 - wanted],
            (_, 0) => vec![2, 1],
            (_, 1) => vec![2, 0],
            _ => vec![0, 1],
        }
    }

    fn list(&self, kind: Kind) -> u8 {
        if let Some(told) = &self.told {
            return told.wanted[kind as usize];
        }
        match (self.lists, kind) {
            (1, _) | (2, Kind::Reclaimable) => 0,
            _ => kind as u8,
        }
    }

    fn smallest(&self, list: u8, order: u8) -> Option<(u32, u8)> {
        (order..=self.shape.max_order).find_map(|size| Some((self.front(list, size)?, size)))
    }

    /// Allocates.
    pub fn take(&mut self, order: u8, kind: Kind) -> Option<(Frame, Option<Stolen>)> {
        self.take_as(order, kind, &mut How { may_mix: true, is_atomic: false, last: 0 })
    }

    /// Allocates in a manner.
    pub fn take_as(&mut self, order: u8, kind: Kind, how: &mut How) -> Option<(Frame, Option<Stolen>)> {
        let (at, size, rest, stolen) = self.pick(order, kind, how)?;
        for half in (order..size).rev() {
            self.put(at + (1 << half), half, rest, false);
        }
        self.pages[at as usize] = Page::Used { order, kind };
        self.set_aside(at, order, how);
        Some((self.shape.first + at, stolen))
    }

    fn pick(&mut self, order: u8, kind: Kind, how: &mut How) -> Option<Pick> {
        let (wanted, cma) = (self.list(kind), self.lists);
        let of = |naive: &Naive, list: u8| {
            let (at, size) = naive.smallest(list, order)?;
            Some((at, size, list, None))
        };
        let mut found = None;
        if how.is_atomic && order > 0 {
            found = of(self, cma + 1);
        }
        let is_movable = kind == Kind::Movable;
        if found.is_none() && is_movable && self.free_on(Some(cma)) > self.free_on(None) / 2 {
            found = of(self, cma);
        }
        if found.is_none() && how.last == 0 {
            found = of(self, wanted);
        }
        if found.is_none()
            && is_movable
            && how.last < 2
            && let Some(block) = of(self, cma)
        {
            how.last = 1;
            found = Some(block);
        }
        found.or_else(|| self.elsewhere(order, wanted, how))
    }

    /// Free frames of one list, or of all.
    fn free_on(&self, of: Option<u8>) -> u32 {
        let frames = |page: &Page| match *page {
            Page::Free { order, list, .. } if of.is_none_or(|of| of == list) => 1 << order,
            _ => 0,
        };
        self.pages.iter().map(frames).sum()
    }

    fn elsewhere(&mut self, order: u8, wanted: u8, how: &mut How) -> Option<Pick> {
        let least = if how.may_mix { order } else { order.max(self.shape.block_order) };
        match self.rule {
            Rule::Border => self.over_border(order, wanted),
            Rule::Cuts => {
                let mut sizes = (least..=self.shape.max_order).rev();
                let (size, (from, at)) = sizes.find_map(|size| Some((size, self.at_order(wanted, size)?)))?;
                if !self.is_whole(size, wanted) {
                    self.mixings += 1;
                    return self.cut(order, wanted);
                }
                let stolen = Stolen { frame: self.shape.first + at, order: size, wanted, from, owns: false };
                self.claim(order, wanted, size).or(Some((at, size, from, Some(stolen))))
            }
            Rule::Claims => {
                for size in (least..=self.shape.max_order).rev().filter(|_| how.last != 2) {
                    if self.is_whole(size, wanted)
                        && let Some(claimed) = self.claim(order, wanted, size)
                    {
                        how.last = 0;
                        return Some(claimed);
                    }
                }
                let cut = self.cut(order, wanted).filter(|_| how.may_mix)?;
                how.last = 2;
                Some(cut)
            }
            Rule::Lists(_) if self.largest(least, wanted)? < self.shape.block_order.div_ceil(2) => {
                let size = self.largest(least, wanted)?;
                let (from, at) = self.at_order(wanted, size)?;
                let stolen = Stolen { frame: self.shape.first + at, order: size, wanted, from, owns: false };
                Some((at, size, from, Some(stolen)))
            }
            Rule::Told => self.take_told((order, least), wanted),
            _ => {
                let stolen = self.steal((order, least), wanted)?;
                let (at, size) = self.smallest(wanted, order)?;
                Some((at, size, wanted, Some(stolen)))
            }
        }
    }

    fn at_order(&self, wanted: u8, size: u8) -> Option<(u8, u32)> {
        self.others(wanted).into_iter().find_map(|list| Some((list, self.front(list, size)?)))
    }

    /// Whether a block of this order makes a request look at its whole pageblock.
    fn is_whole(&self, size: u8, wanted: u8) -> bool {
        if let Some(told) = &self.told {
            return told.is_whole(size, wanted);
        }
        matches!(self.rule, Rule::Lists(_)) || size >= self.shape.block_order / 2 || wanted != 1
    }

    /// The order of the largest block of others.
    fn largest(&self, least: u8, wanted: u8) -> Option<u8> {
        (least..=self.shape.max_order).rev().find(|&size| self.at_order(wanted, size).is_some())
    }

    /// A piece of the smallest block of others.
    fn cut(&self, order: u8, wanted: u8) -> Option<Pick> {
        let mut sizes = order..=self.shape.max_order;
        let (size, (from, at)) = sizes.find_map(|size| Some((size, self.at_order(wanted, size)?)))?;
        let stolen = Stolen { frame: self.shape.first + at, order: size, wanted, from, owns: false };
        Some((at, size, from, Some(stolen)))
    }

    /// The pageblock of the best block of an order, if it is alike.
    fn claim(&mut self, order: u8, wanted: u8, size: u8) -> Option<Pick> {
        let (from, at) = self.at_order(wanted, size)?;
        let stolen = Some(Stolen { frame: self.shape.first + at, order: size, wanted, from, owns: true });
        let block = (at >> self.shape.block_order) as usize;
        if size >= self.shape.block_order {
            self.owners[block..block + (1 << (size - self.shape.block_order))].fill(wanted);
            return Some((at, size, wanted, stolen));
        }
        self.mixings += 1;
        if !self.is_alike(block, wanted) {
            return None;
        }
        self.relist(block, wanted);
        self.owners[block] = wanted;
        let (at, size) = self.smallest(wanted, order)?;
        Some((at, size, wanted, stolen))
    }

    fn range(&self, block: usize) -> Range<usize> {
        block << self.shape.block_order..(block + 1) << self.shape.block_order
    }

    fn is_alike(&self, block: usize, wanted: u8) -> bool {
        let (mut free, mut movable) = (0, 0);
        for page in &self.pages[self.range(block)] {
            match *page {
                Page::Free { order, .. } => free += 1 << order,
                Page::Used { order, kind: Kind::Movable } => movable += 1 << order,
                _ => {}
            }
        }
        let pages = 1u32 << self.shape.block_order;
        let alike = match (wanted, self.owners[block]) {
            (1, _) => movable,
            (_, 1) => pages - free - movable,
            _ => 0,
        };
        free + alike >= pages / 2
    }

    /// All that is free in a pageblock goes to the end of a list.
    fn relist(&mut self, block: usize, list: u8) {
        for at in self.range(block) {
            if let Page::Free { order, .. } = self.pages[at] {
                self.put(at as u32, order, list, true);
            }
        }
    }

    fn steal(&mut self, (order, least): (u8, u8), wanted: u8) -> Option<Stolen> {
        let by_paper = matches!(self.rule, Rule::Lists(_));
        let mut sizes: Vec<u8> = (least..=self.shape.max_order).collect();
        let largest = sizes.iter().rev().copied().find(|&size| self.at_order(wanted, size).is_some())?;
        sizes = if self.is_whole(largest, wanted) { vec![largest] } else { (order..=largest).collect() };
        let size = sizes.into_iter().find(|&size| self.at_order(wanted, size).is_some())?;
        let (from, at) = self.at_order(wanted, size)?;
        let block = (at >> self.shape.block_order) as usize;
        let mut owns = size >= self.shape.block_order && !by_paper;
        self.mixings += u32::from(!owns && !by_paper);
        if owns {
            let blocks = 1 << (size - self.shape.block_order);
            self.owners[block..block + blocks].fill(wanted);
            self.put(at, size, wanted, true);
        } else if self.is_whole(size, wanted) && !by_paper {
            owns = self.is_alike(block, wanted);
            self.relist(block, wanted);
            if owns {
                self.owners[block] = wanted;
            }
        } else {
            self.put(at, size, wanted, true);
        }
        Some(Stolen { frame: self.shape.first + at, order: size, wanted, from, owns })
    }

    /// Allocates just this block, if all of it is free.
    pub fn take_at(&mut self, frame: Frame, order: u8, kind: Kind) -> bool {
        let (first, at) = (self.shape.first, frame - self.shape.first);
        let larger = (order..=self.shape.max_order).find(|&size| self.is_free(frame >> size << size, size));
        if let Some(size) = larger {
            let whole = (frame >> size << size) - first;
            let rest = match self.owner(whole) {
                owner if owner >= self.lists => owner,
                owner => self.home(kind, owner),
            };
            self.pages[whole as usize] = Page::Inside;
            for half in (order..size).rev() {
                self.put((((frame >> half) ^ 1) << half) - first, half, rest, false);
            }
        } else {
            let mut next = at;
            while next < at + (1 << order) {
                let Page::Free { order, .. } = self.pages[next as usize] else { return false };
                next += 1 << order;
            }
        }
        self.pages[at as usize..(at + (1 << order)) as usize].fill(Page::Inside);
        self.pages[at as usize] = Page::Used { order, kind };
        true
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
        let first = frame - self.shape.first;
        let is_apart = (first..first + (1 << order)).any(|at| self.owner(at) >= self.lists);
        if order > self.shape.block_order && (self.rule.is_strict() || is_apart) {
            for part in (0..1 << order).step_by(1 << self.shape.block_order) {
                self.give(frame + part, self.shape.block_order, self.owner(first + part));
            }
        } else {
            self.give(frame, order, list);
        }
        Some(order)
    }

    /// Order of the allocated block at a frame, and the list that its pageblock belongs to.
    fn used(&self, frame: Frame) -> Option<(u8, u8)> {
        let at = self.shape.has(frame).then(|| frame - self.shape.first)?;
        let Page::Used { order, kind } = self.pages[at as usize] else { return None };
        Some((order, self.home(kind, self.owner(at))))
    }

    /// The list that a block of a kind goes to, in a pageblock of an owner.
    fn home(&self, kind: Kind, owner: u8) -> u8 {
        match (&self.told, self.rule) {
            _ if owner >= self.lists => owner,
            (Some(told), _) => told.home(kind, owner),
            (None, Rule::Lists(_)) => self.list(kind),
            _ => owner,
        }
    }

    fn give(&mut self, frame: Frame, order: u8, list: u8) {
        self.pages[(frame - self.shape.first) as usize] = Page::Inside;
        let (mut frame, mut size) = (frame, order);
        while size < self.shape.max_order && self.is_free(frame ^ (1 << size), size) {
            let buddy = frame ^ (1 << size);
            if size >= self.shape.block_order && !self.is_mergeable(frame, buddy, size) {
                break;
            }
            self.pages[(buddy - self.shape.first) as usize] = Page::Inside;
            (frame, size) = (frame.min(buddy), size + 1);
        }
        let larger = frame / (2 << size) * (2 << size);
        let mut at_end = self.looks_ahead()
            && size + 1 < self.shape.max_order
            && self.is_free(larger ^ (2 << size), size + 1);
        if self.extras.ends == Ends::Fifo {
            at_end = true;
        } else if matches!(self.extras.ends, Ends::Shuffled(_)) && size == self.shape.max_order {
            if self.bits.is_empty() {
                let draw = self.random.draw();
                self.bits = (0..64).rev().map(|bit| draw >> bit & 1 == 1).collect();
            }
            at_end = self.bits.pop() == Some(true);
        }
        self.put(frame - self.shape.first, size, list, at_end);
    }

    /// Whether a block that is likely to be merged soon goes to the end: not before Linux 2.6.35.
    fn looks_ahead(&self) -> bool {
        let is_later = !matches!(self.rule, Rule::Standard | Rule::Lists(_));
        self.told.as_ref().map_or(is_later, |told| told.looks_ahead)
    }

    /// Whether two blocks of pageblocks may become one; then the buddy's follow.
    fn is_mergeable(&mut self, frame: Frame, buddy: Frame, size: u8) -> bool {
        let (own, other) = (self.owner(frame - self.shape.first), self.owner(buddy - self.shape.first));
        if own != other && (own.max(other) >= self.lists || self.rule == Rule::Border) {
            return false;
        }
        if self.rule.is_strict() {
            let block = ((buddy - self.shape.first) >> self.shape.block_order) as usize;
            self.owners[block..block + (1 << (size - self.shape.block_order))].fill(own);
        }
        true
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
