//! The memory that is taken, and the few of its pages that are kept.

use std::io;
use std::ops::Range;

use pagelab_metrics::fragment_plan::Shape;
use pagelab_model::{Bytes, NodeId, PageSize};
use pagelab_sys::map::{Advice, Mapping};

use super::facts::Way;
use crate::readback::ReadBack;

/// Address space is mapped in pieces of this size, or of one unit where that is larger.
const PIECE: u64 = 1 << 30;

/// Memory of units 0, 1, 2 …, of which the first [`Spoiler::units`] are spoiled: all but their kept pages is
/// given back. Everything goes back when it is dropped.
#[derive(Debug)]
pub struct Spoiler {
    way: Way,
    shape: Shape,
    seed: u64,
    page_size: PageSize,
    node: Option<NodeId>,
    readback: ReadBack,
    pieces: Vec<Mapping>,
    per_piece: u64,
    /// Units that are spoiled.
    units: u64,
    /// Units that have all their memory or are spoiled; with huge pages always `units`.
    filled: u64,
    is_locked: bool,
}

impl Spoiler {
    /// Nothing is taken yet. With a node, all memory comes from it.
    pub fn new(way: Way, shape: Shape, seed: u64, page_size: PageSize, node: Option<NodeId>) -> Spoiler {
        let unit = page_size.block(shape.unit).0;
        Spoiler {
            way,
            shape,
            seed,
            page_size,
            node,
            readback: ReadBack::open(),
            pieces: Vec::new(),
            per_piece: (PIECE / unit).max(1),
            units: 0,
            filled: 0,
            is_locked: false,
        }
    }

    /// Units that are spoiled.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Units that are taken, spoiled or whole.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// How memory is taken.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Which pages are kept.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Pages that are kept.
    pub fn kept_pages(&self) -> u64 {
        self.units.saturating_mul(self.shape.kept_per_unit())
    }

    fn unit_bytes(&self) -> u64 {
        self.page_size.block(self.shape.unit).0
    }

    /// The piece that a unit is in, mapped if it is not yet, and the unit's bytes within it.
    fn place(&mut self, unit: u64) -> io::Result<(usize, Range<u64>)> {
        let bytes = self.unit_bytes();
        let piece = usize::try_from(unit / self.per_piece).map_err(|_| io::ErrorKind::OutOfMemory)?;
        while self.pieces.len() <= piece {
            let mut map = Mapping::anonymous(Bytes(self.per_piece * bytes), Bytes(bytes))?;
            if let Some(node) = self.node {
                map.bind_to_node(node.0)?;
            }
            self.pieces.push(map);
        }
        let start = unit % self.per_piece * bytes;
        Ok((piece, start..start + bytes))
    }

    /// Takes base pages for so many units more, and keeps all of them.
    pub fn fill(&mut self, units: u64) -> io::Result<()> {
        for unit in self.filled..self.filled.saturating_add(units) {
            let (piece, part) = self.place(unit)?;
            let map = &mut self.pieces[piece];
            // Also keeps khugepaged away.
            ignore_unknown(map.advise(part.clone(), Advice::NoHugePage))?;
            map.touch(part)?;
            self.filled = unit + 1;
        }
        Ok(())
    }

    /// Spoils up to so many units more, and returns how many. Fewer come where no huge page is to be had, or,
    /// with base pages, where no more are filled.
    pub fn spoil(&mut self, units: u64) -> io::Result<u64> {
        self.unlock()?;
        let before = self.units;
        match self.way {
            Way::BasePages => {
                for unit in before..before.saturating_add(units).min(self.filled) {
                    self.give_back_but_kept(unit)?;
                    self.units = unit + 1;
                }
            }
            Way::HugePages => {
                for unit in before..before.saturating_add(units) {
                    if !self.take_huge(unit)? {
                        break;
                    }
                    self.give_back_but_kept(unit)?;
                    self.split(unit)?;
                    self.units = unit + 1;
                    self.filled = self.units;
                }
            }
        }
        Ok(self.units - before)
    }

    /// Writes to the kept pages of a unit, so that a huge page comes for all of them. `false`: none came, and
    /// nothing is held of it.
    fn take_huge(&mut self, unit: u64) -> io::Result<bool> {
        let (piece, part) = self.place(unit)?;
        let words_per_page = self.page_size.bytes() / size_of::<u64>() as u64;
        let first = part.start / size_of::<u64>() as u64;
        let map = &mut self.pieces[piece];
        map.advise(part.clone(), Advice::HugePage)?;
        for page in self.shape.kept(self.seed, unit) {
            let at = (first + page * words_per_page) as usize;
            // A page of zeros would be replaced by the shared zero page at the split (mm/migrate.c,
            // `try_to_map_unused_to_zeropage`, 6.13), and equal pages might be merged.
            map.words_mut()[at] = (unit << 16) | (page << 1) | 1;
        }
        let start = map.addresses().start;
        let huge = self.readback.huge_bytes(start + part.start..start + part.end);
        let came = huge.map_err(|absence| io::Error::other(absence.reason().to_owned()))?;
        if came.0 == part.end - part.start {
            return Ok(true);
        }
        map.advise(part, Advice::DontNeed)?;
        Ok(false)
    }

    /// Gives the pages between the kept ones back.
    fn give_back_but_kept(&mut self, unit: u64) -> io::Result<()> {
        let (piece, part) = self.place(unit)?;
        let page = self.page_size.bytes();
        let map = &mut self.pieces[piece];
        let mut from = part.start;
        for kept in self.shape.kept(self.seed, unit) {
            let at = part.start + kept * page;
            if at > from {
                map.advise(from..at, Advice::DontNeed)?;
            }
            from = at + page;
        }
        if part.end > from {
            map.advise(from..part.end, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Splits what is left of a huge page: until then the kernel keeps the pages that are no longer mapped
    /// (docs/fragment.md has the alternatives and what they cost). Then keeps khugepaged from making it whole
    /// again.
    fn split(&mut self, unit: u64) -> io::Result<()> {
        let (piece, part) = self.place(unit)?;
        let page = self.page_size.bytes();
        let map = &mut self.pieces[piece];
        if let Some(kept) = self.shape.kept(self.seed, unit).next() {
            let at = part.start + kept * page;
            map.advise(at..at + page, Advice::Cold)?;
        }
        map.advise(part, Advice::NoHugePage)
    }

    /// Gives back so many of the spoiled units wholly, the last ones first.
    pub fn release(&mut self, units: u64) -> io::Result<()> {
        self.unlock()?;
        self.trim()?;
        for _ in 0..units.min(self.units) {
            let (piece, part) = self.place(self.units - 1)?;
            self.pieces[piece].advise(part, Advice::DontNeed)?;
            self.units -= 1;
            self.filled = self.units;
        }
        Ok(())
    }

    /// Gives back what is filled and not spoiled.
    pub fn trim(&mut self) -> io::Result<()> {
        while self.filled > self.units {
            let (piece, part) = self.place(self.filled - 1)?;
            self.pieces[piece].advise(part, Advice::DontNeed)?;
            self.filled -= 1;
        }
        Ok(())
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        self.pieces.clear();
        (self.units, self.filled, self.is_locked) = (0, 0, false);
    }

    /// Keeps the kept pages from being swapped out.
    pub fn lock(&mut self) -> io::Result<()> {
        self.pieces.iter_mut().try_for_each(Mapping::lock_present)?;
        self.is_locked = true;
        Ok(())
    }

    fn unlock(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_locked) {
            self.pieces.iter_mut().try_for_each(Mapping::unlock)?;
        }
        Ok(())
    }

    /// The address of a spoiled unit and the pages that are kept of it.
    pub fn kept_of(&self, unit: u64) -> Option<(u64, Vec<u64>)> {
        let map = self.pieces.get(usize::try_from(unit / self.per_piece).ok()?)?;
        let start = map.addresses().start + unit % self.per_piece * self.unit_bytes();
        (unit < self.units).then(|| (start, self.shape.kept(self.seed, unit).collect()))
    }
}

/// A kernel without transparent huge pages does not know the advice, and needs none.
fn ignore_unknown(advised: io::Result<()>) -> io::Result<()> {
    match advised {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}
