//! What makes the model fast: pages that are known to hit the first level of every pass.

/// Slots; the low bits of the page number choose one.
pub const SLOTS: usize = 128;

/// A bit for each slot.
pub type Slots = [u64; 2 * SLOTS / 64];

/// No page.
pub const NONE: u64 = u64::MAX;

/// A page that is in the first level of every pass, and what has become of it since it was put here.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Base page number, or [`NONE`].
    pub page: u64,
    /// When it was used last, in accesses.
    pub last: u64,
    /// Accesses that are not accounted yet.
    pub count: u64,
    /// It was written since.
    pub written: bool,
}

/// Slots of loads, and of stores where those have TLBs of their own.
#[derive(Clone, Debug)]
pub struct Front {
    pub(super) slots: [Slot; 2 * SLOTS],
    /// Where the slots of stores begin: 0 if loads and stores share them.
    pub(super) stores_at: usize,
    /// Where the slot's page stands in the first level of each pass: `slot * passes + pass`.
    pub(super) positions: Vec<u32>,
    passes: usize,
}

impl Front {
    /// Empty slots for so many passes.
    pub fn new(passes: usize, splits_stores: bool) -> Front {
        let slot = Slot { page: NONE, last: 0, count: 0, written: false };
        Front {
            slots: [slot; 2 * SLOTS],
            stores_at: if splits_stores { SLOTS } else { 0 },
            positions: vec![0; 2 * SLOTS * passes],
            passes,
        }
    }

    /// The slot of a page.
    #[inline(always)]
    pub fn slot_of(&self, page: u64, store: bool) -> usize {
        (page as usize & (SLOTS - 1)) + if store { self.stores_at } else { 0 }
    }

    /// What is known of a page, if anything.
    #[inline(always)]
    pub(super) fn slot(&self, page: u64, store: bool) -> &Slot {
        &self.slots[self.slot_of(page, store) & (2 * SLOTS - 1)]
    }

    /// When the pages of these slots were used last.
    pub(super) fn last_of(&self, slots: &Slots) -> u64 {
        each(slots).map(|slot| self.slots[slot].last).max().unwrap_or(0)
    }

    /// Where a slot's page stands in a pass.
    pub(super) fn position(&self, slot: usize, pass: usize) -> u32 {
        self.positions[slot * self.passes + pass]
    }

    /// Slots that are in use.
    pub(super) fn used(&self) -> usize {
        self.stores_at + SLOTS
    }
}

/// The numbers of the slots whose bits are set.
pub(super) fn each(slots: &Slots) -> impl Iterator<Item = usize> {
    slots.iter().enumerate().flat_map(|(word, &bits)| {
        let mut bits = bits;
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(word * 64 + bit)
        })
    })
}
