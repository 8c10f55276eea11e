//! The twin of a policy that it has no rule of its own for: it is told the policy's numbers, and says what
//! follows from them. So the engine is held to the numbers, but the numbers to nothing.

use crate::words::{Kind, Shape, Stolen};

use super::{Naive, Pick, Rule};

/// How much a request takes from a list that is not its own, in the twin's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All that is free in the pageblock.
    All,
    /// The smallest block that will do.
    Smallest,
    /// The largest block, and nothing else changes hands.
    Largest,
    /// What is asked for.
    Piece,
}

/// The numbers of a policy.
#[derive(Clone, Debug)]
pub struct Told {
    /// How a request is served whose own list is empty: [`Rule::Told`], [`Rule::Cuts`], [`Rule::Claims`] or
    /// [`Rule::Border`].
    pub rule: Rule,
    /// Lists at each order.
    pub lists: u8,
    /// The list that each kind takes from, by its number.
    pub wanted: [u8; 3],
    /// The list that a block goes home to, by its kind and the owner of its pageblock.
    pub home: [Vec<u8>; 3],
    /// The lists that are asked in turn, by the one that is empty.
    pub others: Vec<Vec<u8>>,
    /// What is taken, by the list that is empty and the order of the block that is looked at.
    pub parts: Vec<Vec<Part>>,
    /// Whether a block that is likely to be merged soon goes to the end of its list.
    pub looks_ahead: bool,
    /// The owner of each pageblock at the start.
    pub owners: Vec<u8>,
}

impl Told {
    /// Whether a block of this order makes a request look at its whole pageblock.
    pub(super) fn is_whole(&self, size: u8, wanted: u8) -> bool {
        self.parts[usize::from(wanted)][usize::from(size)] == Part::All
    }

    /// The list that a block of a kind goes home to.
    pub(super) fn home(&self, kind: Kind, owner: u8) -> u8 {
        self.home[kind as usize][usize::from(owner)]
    }
}

impl Naive {
    /// All memory free, under a policy of these numbers.
    pub fn told(shape: Shape, told: Told, extras: &crate::words::Extras) -> Naive {
        Naive::with(shape, told.rule, Some(told), extras)
    }

    /// A block of another list under told numbers.
    pub(super) fn take_told(&mut self, (order, least): (u8, u8), wanted: u8) -> Option<Pick> {
        let told = self.told.clone()?;
        let part = |size: u8| told.parts[usize::from(wanted)][usize::from(size)];
        let mut size = self.largest(least, wanted)?;
        let (mut from, mut at) = self.at_order(wanted, size)?;
        let stolen =
            |from, at, order, owns| Stolen { frame: self.shape.first + at, order, wanted, from, owns };
        if part(size) == Part::Piece {
            return Some((at, size, from, Some(stolen(from, at, size, false))));
        }
        if part(size) == Part::Smallest {
            size = (order..=size).find(|&size| self.at_order(wanted, size).is_some())?;
            (from, at) = self.at_order(wanted, size)?;
        }
        let mut stolen = stolen(from, at, size, false);
        let block = (at >> self.shape.block_order) as usize;
        match part(size) {
            Part::Largest => self.put(at, size, wanted, true),
            _ if size >= self.shape.block_order => {
                stolen.owns = true;
                self.owners[block..block + (1 << (size - self.shape.block_order))].fill(wanted);
                self.put(at, size, wanted, true);
            }
            Part::All => {
                self.mixings += 1;
                stolen.owns = self.is_alike(block, wanted);
                self.relist(block, wanted);
                if stolen.owns {
                    self.owners[block] = wanted;
                }
            }
            Part::Smallest | Part::Piece => {
                self.mixings += 1;
                self.put(at, size, wanted, true);
            }
        }
        let (at, size) = self.smallest(wanted, order)?;
        Some((at, size, wanted, Some(stolen)))
    }
}
