//! How objects end: freed whole, in parts, together with others; or moved by compaction.

use super::{NO_ROOM, NONE, Replay};
use crate::policy::Policy;
use crate::words::{Frame, Wrong};

/// What a piece of a freed block was.
enum Piece {
    /// An object, or a part of one, of this simulated frame and order: it is a block of its own now.
    Object(Frame, u8),
    /// An object of so many frames that had no room.
    NoRoom,
    /// Nobody's.
    Unknown,
}

/// The frames of a freed block by what they were.
#[derive(Default)]
struct Found {
    objects: u64,
    no_room: u64,
    unknown: u64,
}

impl<P: Policy + Clone> Replay<P> {
    /// A traced free.
    #[inline]
    pub(super) fn free(&mut self, at: usize, order: u8, cpu: u16, compacts: bool) -> Result<(), Wrong> {
        self.account.frees.add(order);
        let frame = self.table[at];
        // Nearly always: an object of just this order.
        if frame < NO_ROOM
            && !compacts
            && self.memory.free_whole_in(self.zone_of(frame), cpu, frame, order)?
        {
            self.account.matched.add(order);
            match order {
                0 => self.table[at] = NONE,
                _ => self.table[at..at + (1 << order)].fill(NONE),
            }
            // Objects of the snapshot stand for themselves.
            if frame == self.base + at as u32 {
                self.known(at, order);
            }
            return Ok(());
        }
        self.free_pieces(at, order, cpu, compacts)
    }

    #[cold]
    fn free_pieces(&mut self, at: usize, order: u8, cpu: u16, compacts: bool) -> Result<(), Wrong> {
        let found = self.end(at, order, cpu, compacts)?;
        let account = &mut self.account;
        match found {
            Found { unknown: 0, objects: 0, .. } => account.of_no_room.add(order),
            Found { unknown: 0, .. } if compacts => account.moved.add(order),
            Found { unknown: 0, .. } => account.matched.add(order),
            Found { objects: 0, no_room: 0, .. } if compacts => {
                account.given_back.add(order);
                self.give_back_room(self.base + at as u32, order, cpu)?;
            }
            Found { objects: 0, no_room: 0, .. } => {
                if let Some(frame) = self.moved[usize::from(order)].pop_front() {
                    account.guessed.add(order);
                    self.memory.free(cpu, frame)?;
                } else {
                    account.unknown.add(order);
                }
            }
            _ => account.partly.add(order),
        }
        Ok(())
    }

    /// An allocation where something still lies.
    #[cold]
    pub(super) fn forget(&mut self, at: usize, order: u8, cpu: u16) -> Result<(), Wrong> {
        let bit = |at: usize| self.nobodys[at / 64] >> (at % 64) & 1 != 0;
        let from_lists = bit(at);
        self.end(at, order, cpu, false)?;
        match from_lists {
            true => self.account.from_lists.add(order),
            false => self.account.reallocs.add(order),
        }
        Ok(())
    }

    /// Ends all objects of a block: they are free, or moved.
    fn end(&mut self, at: usize, order: u8, cpu: u16, moves: bool) -> Result<Found, Wrong> {
        let mut found = Found::default();
        let end = at + (1 << order);
        if self.join(at, order) {
            self.account.joins += 1;
        }
        let mut next = at;
        while next < end {
            let (piece, size) = match self.piece(next, order)? {
                Piece::Object(frame, order) => {
                    if moves {
                        let frame = self.relocate(frame, cpu)?;
                        self.moved[usize::from(order)].push_back(frame);
                    } else {
                        self.memory.free(cpu, frame)?;
                    }
                    (&mut found.objects, 1 << order)
                }
                Piece::NoRoom => (&mut found.no_room, 1),
                Piece::Unknown => (&mut found.unknown, 1),
            };
            *piece += size as u64;
            self.table[next..next + size].fill(NONE);
            next += size;
        }
        self.known(at, order);
        Ok(found)
    }

    /// Forgets that frames were nobody's.
    fn known(&mut self, at: usize, order: u8) {
        for at in at..at + (1 << order) {
            self.nobodys[at / 64] &= !(1 << (at % 64));
        }
    }

    /// Makes single frames one block, as they were before the snapshot took them apart.
    fn join(&mut self, at: usize, order: u8) -> bool {
        let frame = self.table[at];
        let lies_together =
            || (frame..).zip(&self.table[at..at + (1 << order)]).all(|(is, &entry)| is == entry);
        order > 0
            && frame < NO_ROOM
            && lies_together()
            && self.memory.join_in(self.zone_of(frame), frame, order)
    }

    /// What lies at a place, at most of an order; larger objects are split.
    fn piece(&mut self, at: usize, most: u8) -> Result<Piece, Wrong> {
        let frame = match self.table[at] {
            NONE => return Ok(Piece::Unknown),
            NO_ROOM => return Ok(Piece::NoRoom),
            frame => frame,
        };
        let Some((head, order, _)) = self.head(frame, 0) else { return Err(Wrong::NotAllocated(frame)) };
        if order <= most && head == frame {
            return Ok(Piece::Object(frame, order));
        }
        // A block of an order is aligned to it, in the trace and in the simulated memory.
        let part = order.min(most);
        self.account.splits += 1;
        self.memory.split_in(self.zone_of(head), head, part)?;
        Ok(Piece::Object(frame, part))
    }
}
