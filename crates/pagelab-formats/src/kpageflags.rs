//! `/proc/kpageflags`: one 64-bit word of flags for each page frame, to counts by class for each pageblock.
//!
//! The rules, in the order in which they are tried (fs/proc/page.c, `stable_page_flags`):
//!
//! | flags | class | note |
//! |---|---|---|
//! | none | unknown, or a hole | 1 |
//! | NOPAGE | hole | up to 6.16; later kernels print 0 |
//! | BUDDY | free | 2 |
//! | HWPOISON | poisoned | whatever it was, nobody gets it again |
//! | OFFLINE | offline | balloon, standby; whether it can be moved is not exported |
//! | HUGE | hugetlb | on heads and tails in every release |
//! | SLAB | slab | 3 |
//! | PGTABLE | page table | |
//! | RESERVED | reserved | |
//! | ZERO_PAGE | kernel | before THP: the huge zero page is both |
//! | ANON, KSM, SWAPBACKED, SWAPCACHE | anonymous or shared memory | 4 |
//! | LRU, UPTODATE, DIRTY, WRITEBACK, ACTIVE, UNEVICTABLE, LOCKED | file | 5 |
//! | COMPOUND_TAIL, nothing of the above | as its head | 6 |
//! | THP, nothing of the above | anonymous, huge | a tail whose head was not seen |
//! | anything else | kernel | 7 |
//!
//! 1. The caller knows from the memory map which.
//! 2. First, because flags of free pages have other meanings: UPTODATE says "reported to the hypervisor".
//!    Each free page shows BUDDY since 4.6; before, only the first of a free block, and the rest has no flag.
//! 3. Before ANON and KSM, which on a slab page are low bits of a pointer and no flags.
//! 4. Without LRU too: the page is then in a per-CPU LRU batch, or isolated for a moment. It can be moved.
//! 5. Without LRU too: the allocator clears flags when a page is freed, and kernel memory does not set
//!    these, so it is page cache in a batch, isolated, or being read.
//! 6. Older kernels have LRU, SLAB and SWAPBACKED on the head only.
//! 7. MMAP alone is a driver's page that a program mapped; HEAD alone is a large kernel allocation.
//!
//! Pinned pages (DMA, RDMA) cannot be told from others: what is called movable is an upper bound.

use pagelab_model::{BlockCounts, FreeAreas, Order, PageClass, PageFlags, Pfn};

use crate::ParseError;

const FORMAT: &str = "kpageflags";

/// Bytes of one entry: a 64-bit word in the byte order of the machine.
pub const ENTRY_BYTES: usize = 8;

/// Signs of anonymous or shared memory.
const ANON_SIGNS: PageFlags =
    PageFlags::ANON.and(PageFlags::KSM).and(PageFlags::SWAPBACKED).and(PageFlags::SWAPCACHE);

/// Signs of page cache on a page that is not anonymous.
const FILE_SIGNS: PageFlags = PageFlags::LRU
    .and(PageFlags::UPTODATE)
    .and(PageFlags::DIRTY)
    .and(PageFlags::WRITEBACK)
    .and(PageFlags::ACTIVE)
    .and(PageFlags::UNEVICTABLE)
    .and(PageFlags::LOCKED);

/// Signs of a compound page.
const COMPOUND: PageFlags = PageFlags::COMPOUND_HEAD.and(PageFlags::COMPOUND_TAIL).and(PageFlags::THP);

/// What the flags of one page say by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// The class.
    Is(PageClass),
    /// A tail without a flag that decides: as its head, or this where no head was seen.
    AsHead(PageClass),
}

/// The class of a page: `head` is the class of the compound page's head, for a tail whose head was seen;
/// `zero` is the class of a page without any flag.
pub fn classify(flags: PageFlags, head: Option<PageClass>, zero: PageClass) -> PageClass {
    if flags.0 == 0 {
        return zero;
    }
    match own_class(flags) {
        Own::Is(class) => class,
        Own::AsHead(otherwise) => head.unwrap_or(otherwise),
    }
}

fn own_class(flags: PageFlags) -> Own {
    const RULES: [(PageFlags, PageClass); 9] = [
        (PageFlags::NOPAGE, PageClass::Hole),
        (PageFlags::BUDDY, PageClass::Free),
        (PageFlags::HWPOISON, PageClass::Poisoned),
        (PageFlags::OFFLINE, PageClass::Offline),
        (PageFlags::HUGE, PageClass::Hugetlb),
        (PageFlags::SLAB, PageClass::Slab),
        (PageFlags::PGTABLE, PageClass::PageTable),
        (PageFlags::RESERVED, PageClass::Reserved),
        (PageFlags::ZERO_PAGE, PageClass::Kernel),
    ];
    if let Some(&(_, class)) = RULES.iter().find(|(flag, _)| flags.has(*flag)) {
        return Own::Is(class);
    }
    if flags.has(ANON_SIGNS) {
        return Own::Is(if flags.has(COMPOUND) { PageClass::AnonHuge } else { PageClass::Anon });
    }
    if flags.has(FILE_SIGNS) {
        return Own::Is(PageClass::File);
    }
    let otherwise = if flags.has(PageFlags::THP) { PageClass::AnonHuge } else { PageClass::Kernel };
    if flags.has(PageFlags::COMPOUND_TAIL) { Own::AsHead(otherwise) } else { Own::Is(otherwise) }
}

/// Every flag that has a name.
const NAMED: u64 = {
    let (mut bits, mut at) = (0, 0);
    while at < PageFlags::NAMED.len() {
        bits |= PageFlags::NAMED[at].1.0;
        at += 1;
    }
    bits
};

/// A block that the classifier hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Block {
    /// Frame number divided by the block size.
    pub number: u64,
    /// Pages by class. Fewer than a whole block where the scan began, ended or was cut inside of it.
    pub counts: BlockCounts,
    /// Whether all of its pages belong to one compound page, which may be larger than the block.
    pub one_folio: bool,
}

/// Sizes that a scan counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Order of the blocks that are counted; at most [`Shape::BLOCK_ORDER_MAX`].
    pub block_order: Order,
    /// How many orders the buddy allocator has: no free block is larger than order `orders - 1`.
    pub orders: usize,
}

impl Shape {
    /// Counts of a block are 32-bit; no kernel has pageblocks of 2^30 pages.
    pub const BLOCK_ORDER_MAX: Order = Order(30);
}

/// A streaming classifier: bytes go in at any length, blocks come out.
///
/// Free blocks are rebuilt by splitting each run of free pages into the largest aligned blocks: buddies
/// that are both free are one block, up to the largest order (mm/page_alloc.c, `__free_one_page`).
#[derive(Clone, Debug)]
pub struct Classifier {
    block_order: u8,
    top_order: u8,
    /// The next frame.
    next: u64,
    /// Bytes taken so far, for messages.
    bytes: u64,
    /// The beginning of an entry that was cut by the end of a chunk, and its length.
    part: ([u8; ENTRY_BYTES], usize),
    /// Class of a page without flags.
    zero: PageClass,
    /// Flags of the last page, and its class; a new classifier behaves as after a page without flags.
    flags: u64,
    class: PageClass,
    /// Class of the compound page that the last page belongs to.
    head: Option<PageClass>,
    counts: BlockCounts,
    /// Frame from which `counts` counts.
    counted_from: u64,
    /// Whether the first page of the block is the head of a compound page.
    starts_with_head: bool,
    /// Tails in the block.
    tails: u32,
    /// First frame of the run of free pages that the last page belongs to.
    free_from: Option<u64>,
    free_blocks: [u64; FreeAreas::ORDERS_MAX],
    unnamed_bits: u64,
    memo: Memo,
    /// The class of each page since the last [`Classifier::take_classes`]; `None`: nobody asked.
    classes: Option<Vec<PageClass>>,
}

/// The classes of flag words seen lately: a machine has some dozens of different ones.
#[derive(Clone, Debug)]
struct Memo([(u64, Own); Memo::SLOTS]);

impl Memo {
    const SLOTS: usize = 64;

    fn own_class(&mut self, flags: u64) -> Own {
        let slot = (flags.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % Memo::SLOTS;
        let (known, own) = self.0[slot];
        if known == flags {
            return own;
        }
        let own = own_class(PageFlags(flags));
        self.0[slot] = (flags, own);
        own
    }
}

impl Classifier {
    /// A classifier whose first entry is that of `first`. A page without any flag is `zero`.
    pub fn new(shape: Shape, first: Pfn, zero: PageClass) -> Classifier {
        let top = shape.orders.clamp(1, FreeAreas::ORDERS_MAX) - 1;
        Classifier {
            block_order: shape.block_order.0.min(Shape::BLOCK_ORDER_MAX.0),
            top_order: top as u8,
            next: first.0,
            bytes: 0,
            part: ([0; ENTRY_BYTES], 0),
            zero,
            flags: 0,
            class: zero,
            head: None,
            counts: BlockCounts::default(),
            counted_from: first.0,
            starts_with_head: false,
            tails: 0,
            free_from: None,
            free_blocks: [0; FreeAreas::ORDERS_MAX],
            unnamed_bits: 0,
            memo: Memo([(0, Own::Is(zero)); Memo::SLOTS]),
            classes: None,
        }
    }

    /// The same classifier, which keeps the class of every single page for [`Classifier::take_classes`].
    pub fn keeping_classes(mut self) -> Classifier {
        self.classes = Some(Vec::new());
        self
    }

    /// Gives the classes of the pages since the last call, and begins anew; empty unless they are kept.
    pub fn take_classes(&mut self, take: impl FnOnce(&[PageClass])) {
        let Some(classes) = &mut self.classes else { return take(&[]) };
        take(classes);
        classes.clear();
    }

    /// The frame whose entry comes next.
    pub fn next(&self) -> Pfn {
        Pfn(self.next)
    }

    /// Flag bits met so far that have no name in [`PageFlags`].
    pub fn unnamed_bits(&self) -> PageFlags {
        PageFlags(self.unnamed_bits)
    }

    /// Takes the next bytes; `sink` gets each block that they complete.
    pub fn feed(&mut self, mut bytes: &[u8], sink: &mut impl FnMut(Block)) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        let (part, held) = &mut self.part;
        if *held > 0 {
            let more = bytes.len().min(ENTRY_BYTES - *held);
            part[*held..*held + more].copy_from_slice(&bytes[..more]);
            *held += more;
            bytes = &bytes[more..];
            if *held < ENTRY_BYTES {
                return;
            }
            *held = 0;
            let whole = *part;
            self.entries(&[whole], sink);
        }
        let (whole, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        self.entries(whole, sink);
        self.part.0[..rest.len()].copy_from_slice(rest);
        self.part.1 = rest.len();
    }

    fn entries(&mut self, mut entries: &[[u8; ENTRY_BYTES]], sink: &mut impl FnMut(Block)) {
        let block_pages = 1u64 << self.block_order;
        while !entries.is_empty() {
            let in_block = block_pages - (self.next & (block_pages - 1));
            let take = entries.len().min(usize::try_from(in_block).unwrap_or(usize::MAX));
            let (now, later) = entries.split_at(take);
            if self.next == self.counted_from {
                let first = PageFlags(u64::from_ne_bytes(now[0]));
                self.starts_with_head = first.has(PageFlags::COMPOUND_HEAD);
            }
            self.pages_of_one_block(now);
            entries = later;
            if take as u64 == in_block {
                self.hand_out(sink);
            }
        }
    }

    /// The hot loop: a page with the flags of the page before it costs one comparison.
    fn pages_of_one_block(&mut self, entries: &[[u8; ENTRY_BYTES]]) {
        let mut run_start = 0;
        let mut flags = self.flags;
        for (at, entry) in entries.iter().enumerate() {
            let word = u64::from_ne_bytes(*entry);
            if word != flags {
                self.count_run(flags, at - run_start);
                run_start = at;
                flags = word;
                self.change_to(word, self.next.wrapping_add(at as u64));
            }
        }
        self.count_run(flags, entries.len() - run_start);
        self.flags = flags;
        self.next = self.next.saturating_add(entries.len() as u64);
    }

    fn count_run(&mut self, flags: u64, pages: usize) {
        self.counts.0[self.class.index()] += pages as u32;
        if let Some(classes) = &mut self.classes {
            classes.resize(classes.len() + pages, self.class);
        }
        if PageFlags(flags).has(PageFlags::COMPOUND_TAIL) {
            self.tails += pages as u32;
        }
    }

    /// The page at `frame` has other flags than the page before it.
    fn change_to(&mut self, word: u64, frame: u64) {
        let flags = PageFlags(word);
        self.unnamed_bits |= word & !NAMED;
        let class = match self.memo.own_class(word) {
            _ if word == 0 => self.zero,
            Own::Is(class) => class,
            Own::AsHead(otherwise) => self.head.unwrap_or(otherwise),
        };
        if flags.has(PageFlags::COMPOUND_HEAD) {
            self.head = Some(class);
        } else if !flags.has(PageFlags::COMPOUND_TAIL) {
            self.head = None;
        }
        if (class == PageClass::Free) != (self.class == PageClass::Free) {
            self.end_free_run(frame);
            self.free_from = (class == PageClass::Free).then_some(frame);
        }
        self.class = class;
    }

    fn end_free_run(&mut self, end: u64) {
        if let Some(start) = self.free_from.take() {
            split_run(start, end, self.top_order, &mut self.free_blocks);
        }
    }

    fn hand_out(&mut self, sink: &mut impl FnMut(Block)) {
        let pages = self.next - self.counted_from;
        if pages > 0 {
            sink(Block {
                number: self.counted_from >> self.block_order,
                counts: self.counts,
                one_folio: u64::from(self.tails) + u64::from(self.starts_with_head) == pages,
            });
        }
        self.counts = BlockCounts::default();
        self.tails = 0;
        self.starts_with_head = false;
        self.counted_from = self.next;
    }

    /// Ends the block and the run of free pages that are being counted, such as at the end of a zone, and
    /// goes on at `next`, where a page without flags is `zero`. An entry that was cut in the middle is
    /// an error.
    pub fn cut(
        &mut self,
        next: Pfn,
        zero: PageClass,
        sink: &mut impl FnMut(Block),
    ) -> Result<(), ParseError> {
        if self.part.1 > 0 {
            let at = self.bytes - self.part.1 as u64;
            let held = self.part.1;
            return Err(ParseError::at_byte(
                FORMAT,
                at,
                format!("{held} bytes where an entry of {ENTRY_BYTES} is expected: the file was cut off"),
            ));
        }
        self.hand_out(sink);
        self.end_free_run(self.next);
        if next.0 != self.next {
            self.head = None;
        }
        (self.next, self.counted_from, self.zero) = (next.0, next.0, zero);
        (self.flags, self.class) = (0, zero);
        Ok(())
    }

    /// The free blocks by order that ended since the last call, and starts to count anew.
    pub fn take_free_blocks(&mut self) -> Vec<u64> {
        let orders = usize::from(self.top_order) + 1;
        let counts = self.free_blocks[..orders].to_vec();
        self.free_blocks = [0; FreeAreas::ORDERS_MAX];
        counts
    }
}

/// Splits a run of free frames into the largest aligned blocks, none above `top_order`.
fn split_run(mut start: u64, end: u64, top_order: u8, counts: &mut [u64; FreeAreas::ORDERS_MAX]) {
    while start < end {
        let order = (start.trailing_zeros()).min((end - start).ilog2()).min(u32::from(top_order));
        counts[order as usize] += 1;
        start += 1 << order;
    }
}

/// Any bytes, in two chunks cut anywhere: counts must add up to the entries.
pub fn fuzz(data: &[u8]) {
    let &[order, cut, ref bytes @ ..] = data else { return };
    let shape = Shape { block_order: Order(order % 12), orders: usize::from(order % 23) };
    let first = Pfn(u64::from(order) * 77);
    let mut classifier = Classifier::new(shape, first, PageClass::Unknown);
    let mut pages = 0u64;
    let mut sink = |block: Block| pages += u64::from(block.counts.total());
    let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
    classifier.feed(head, &mut sink);
    classifier.feed(tail, &mut sink);
    let ended = classifier.cut(Pfn(u64::MAX), PageClass::Hole, &mut sink);
    assert_eq!(ended.is_err(), !bytes.len().is_multiple_of(ENTRY_BYTES));
    if ended.is_ok() {
        assert_eq!(pages, (bytes.len() / ENTRY_BYTES) as u64);
    }
}

#[cfg(test)]
#[path = "kpageflags_tests.rs"]
mod tests;
