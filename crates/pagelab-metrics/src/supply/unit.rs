//! Units: the blocks of a zone in groups of the size of a huge page, and what each could be.

use pagelab_model::{CensusZone, Order, PageClass};

/// What pages without any flag are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Free,
    Unmovable,
}

/// Pages of a unit by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    counts: [u64; PageClass::COUNT],
    /// Whether each block of it is one compound page or a part of one.
    one_folio: bool,
}

/// The units of a zone's counted blocks, ascending. Blocks of a unit that were not counted hold no memory.
pub(crate) fn units(block_order: Order, zone: &CensusZone, unit_order: Order) -> Vec<Unit> {
    let shift = unit_order.0.saturating_sub(block_order.0);
    let per_block = block_order.pages().0;
    let first = zone.first.0 / per_block;
    let mut folios = zone.one_folio.iter().copied().peekable();
    let mut out: Vec<(u64, Unit)> = Vec::new();
    for (index, counts) in &zone.blocks {
        while folios.next_if(|folio| folio < index).is_some() {}
        let one_folio = folios.next_if_eq(index).is_some();
        let number = (first + index) >> shift;
        if out.last().is_none_or(|last| last.0 != number) {
            out.push((number, Unit { counts: [0; PageClass::COUNT], one_folio: true }));
        }
        if let Some((_, unit)) = out.last_mut() {
            unit.counts.iter_mut().zip(counts.0).for_each(|(sum, count)| *sum += u64::from(count));
            unit.one_folio &= one_folio;
        }
    }
    let whole = unit_order.pages().0.max(per_block);
    for (_, unit) in &mut out {
        let missing = whole.saturating_sub(unit.pages());
        unit.counts[PageClass::Hole.index()] += missing;
        unit.one_folio &= missing == 0;
    }
    out.into_iter().map(|(_, unit)| unit).collect()
}

impl Unit {
    pub fn of(&self, class: PageClass) -> u64 {
        self.counts[class.index()]
    }

    pub fn pages(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn has_memory(&self) -> bool {
        self.of(PageClass::Hole) + self.of(PageClass::Offline) < self.pages()
    }

    pub fn is_free(&self) -> bool {
        self.of(PageClass::Free) == self.pages()
    }

    pub fn is_deferred(&self) -> bool {
        let deferred = self.of(PageClass::Deferred);
        deferred > 0 && self.of(PageClass::Free) + deferred == self.pages()
    }

    pub fn is_spoiled(&self, unknown: Unknown) -> bool {
        let certain = PageClass::ALL.iter().any(|&class| class.spoils() && self.of(class) > 0);
        certain || unknown == Unknown::Unmovable && self.of(PageClass::Unknown) > 0
    }

    pub fn is_spoiled_by_alone(&self, class: PageClass) -> bool {
        let others =
            PageClass::ALL.iter().any(|&other| other != class && other.spoils() && self.of(other) > 0);
        self.of(class) > 0 && !others
    }

    /// A huge page of anonymous or shared memory.
    fn is_huge_folio(&self) -> bool {
        self.one_folio && self.of(PageClass::AnonHuge) == self.pages()
    }

    /// One folio of page cache, which compaction leaves where it is (mm/compaction.c,
    /// `skip_isolation_on_order`) and dropping frees whole.
    pub fn is_file_folio(&self) -> bool {
        self.one_folio && self.of(PageClass::File) == self.pages()
    }

    pub fn is_in_use(&self) -> bool {
        let huge = self.of(PageClass::Hugetlb) > 0 || self.is_huge_folio();
        huge && !self.is_spoiled(Unknown::Unmovable)
    }

    /// Whether it is not a huge page already.
    pub fn is_obtainable(&self) -> bool {
        self.of(PageClass::Hugetlb) == 0 && !self.is_huge_folio()
    }

    pub fn movable(&self) -> u64 {
        PageClass::ALL.iter().filter(|class| class.is_movable()).map(|&class| self.of(class)).sum()
    }

    pub fn free(&self, unknown: Unknown) -> u64 {
        let unknown = if unknown == Unknown::Free { self.of(PageClass::Unknown) } else { 0 };
        self.of(PageClass::Free) + self.of(PageClass::Deferred) + unknown
    }
}
