//! The hit filter: pages that are known to hit the first level of every pass, so that their accesses need no
//! lookup. It makes the model fast.

/// Slots; the low bits of the page number choose one.
pub const SLOTS: usize = 128;

/// A bit for each slot.
pub type SlotMask = [u64; 2 * SLOTS / 64];

/// No page.
pub const NO_PAGE: u64 = u64::MAX;

/// A page that is in the first level of every pass, and its accesses since it was put here.
#[derive(Clone, Copy, Debug)]
pub struct FilterSlot {
    /// Base page number, or [`NO_PAGE`].
    pub page: u64,
    /// When it was used last, in accesses.
    pub last: u64,
    /// Accesses that are not recorded yet.
    pub count: u64,
    /// It was written since.
    pub written: bool,
}

/// Slots of loads, and of stores where those have TLBs of their own.
#[derive(Clone, Debug)]
pub struct HitFilter {
    pub(super) slots: [FilterSlot; 2 * SLOTS],
    /// The first slot of stores: 0 if loads and stores share their slots.
    pub(super) stores_start: usize,
    /// The position of the slot's page in the first level of each pass: `slot * passes + pass`.
    pub(super) positions: Vec<u32>,
    passes: usize,
}

impl HitFilter {
    /// Empty slots for a number of passes.
    pub fn new(passes: usize, splits_stores: bool) -> HitFilter {
        let slot = FilterSlot { page: NO_PAGE, last: 0, count: 0, written: false };
        HitFilter {
            slots: [slot; 2 * SLOTS],
            stores_start: if splits_stores { SLOTS } else { 0 },
            positions: vec![0; 2 * SLOTS * passes],
            passes,
        }
    }

    /// The slot of a page.
    #[inline(always)]
    pub fn slot_of(&self, page: u64, store: bool) -> usize {
        (page as usize & (SLOTS - 1)) + if store { self.stores_start } else { 0 }
    }

    /// The contents of the slot of a page.
    #[inline(always)]
    pub(super) fn slot(&self, page: u64, store: bool) -> &FilterSlot {
        &self.slots[self.slot_of(page, store) & (2 * SLOTS - 1)]
    }

    /// The last use of the pages of these slots.
    pub(super) fn last_use(&self, slots: &SlotMask) -> u64 {
        iter_slots(slots).map(|slot| self.slots[slot].last).max().unwrap_or(0)
    }

    /// The position of a slot's page in a pass.
    pub(super) fn position(&self, slot: usize, pass: usize) -> u32 {
        self.positions[slot * self.passes + pass]
    }

    /// Slots that are in use.
    pub(super) fn slot_count(&self) -> usize {
        self.stores_start + SLOTS
    }
}

/// The numbers of the slots whose bits are set.
pub(super) fn iter_slots(slots: &SlotMask) -> impl Iterator<Item = usize> {
    slots.iter().enumerate().flat_map(|(word, &bits)| {
        let mut bits = bits;
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(word * 64 + bit)
        })
    })
}
