//! `/proc/kpageflags`: one 64-bit word of flags per page frame, counted by class for each pageblock.
//!
//! The rules, in the order in which they are tried (fs/proc/page.c, `stable_page_flags`):
//!
//! | flags | class | note |
//! |---|---|---|
//! | none | unknown, or a hole | 1 |
//! | NOPAGE | hole | up to 6.16; later kernels print 0 |
//! | BUDDY | free | 2 |
//! | HWPOISON | poisoned | it is not allocated again |
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
//! Pinned pages (DMA, RDMA) cannot be distinguished from others: the movable pages are an upper bound.

use pagelab_model::{FreeAreas, Order, PageClass, PageFlags, PageblockCounts, Pfn};

use crate::ParseError;

const FORMAT: &str = "kpageflags";

/// Bytes of one entry: a 64-bit word in the byte order of the machine.
pub const ENTRY_BYTES: usize = 8;

/// Signs of anonymous or shared memory.
const ANON_FLAGS: PageFlags =
    PageFlags::ANON.union(PageFlags::KSM).union(PageFlags::SWAPBACKED).union(PageFlags::SWAPCACHE);

/// Signs of page cache on a page that is not anonymous.
const FILE_FLAGS: PageFlags = PageFlags::LRU
    .union(PageFlags::UPTODATE)
    .union(PageFlags::DIRTY)
    .union(PageFlags::WRITEBACK)
    .union(PageFlags::ACTIVE)
    .union(PageFlags::UNEVICTABLE)
    .union(PageFlags::LOCKED);

/// Signs of a compound page.
const COMPOUND_FLAGS: PageFlags =
    PageFlags::COMPOUND_HEAD.union(PageFlags::COMPOUND_TAIL).union(PageFlags::THP);

/// Meaning of the flags of one page by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClassRule {
    /// The class.
    Class(PageClass),
    /// A tail without a flag that decides: as its head, or this where no head was seen.
    FollowHead(PageClass),
}

fn class_rule(flags: PageFlags) -> ClassRule {
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
    if let Some(&(_, class)) = RULES.iter().find(|(flag, _)| flags.has_any(*flag)) {
        return ClassRule::Class(class);
    }
    if flags.has_any(ANON_FLAGS) {
        let is_huge = flags.has_any(COMPOUND_FLAGS);
        return ClassRule::Class(if is_huge { PageClass::AnonHuge } else { PageClass::Anon });
    }
    if flags.has_any(FILE_FLAGS) {
        return ClassRule::Class(PageClass::File);
    }
    let otherwise = if flags.has_any(PageFlags::THP) { PageClass::AnonHuge } else { PageClass::Kernel };
    match flags.has_any(PageFlags::COMPOUND_TAIL) {
        true => ClassRule::FollowHead(otherwise),
        false => ClassRule::Class(otherwise),
    }
}

/// A pageblock of the classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CountedPageblock {
    /// Frame number divided by the block size.
    pub number: u64,
    /// Pages by class. Fewer than a whole block if the scan began, ended or was cut inside it.
    pub counts: PageblockCounts,
    /// Whether all of its pages belong to one compound page, which may be larger than the block.
    pub is_single_folio: bool,
}

/// Sizes of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanGeometry {
    /// Order of the counted blocks; at most [`ScanGeometry::BLOCK_ORDER_MAX`].
    pub pageblock_order: Order,
    /// Number of orders of the buddy allocator: no free block is larger than order `orders - 1`.
    pub orders: usize,
}

impl ScanGeometry {
    /// Counts of a block are 32-bit; no kernel has pageblocks of 2^30 pages.
    pub const BLOCK_ORDER_MAX: Order = Order(30);
}

/// A streaming classifier: bytes go in at any length, blocks come out.
///
/// Free blocks are rebuilt by splitting each run of free pages into the largest aligned blocks: buddies
/// that are both free are one block, up to the largest order (mm/page_alloc.c, `__free_one_page`).
#[derive(Clone, Debug)]
pub struct PageClassifier {
    pageblock_order: u8,
    max_order: u8,
    next_frame: u64,
    /// Bytes taken so far, for messages.
    bytes_read: u64,
    /// The start of an entry split by the end of a chunk, and its length.
    partial_entry: ([u8; ENTRY_BYTES], usize),
    /// Class of a page without flags.
    unflagged_class: PageClass,
    /// Flags of the last page, and its class; a new classifier behaves as after a page without flags.
    flags: u64,
    class: PageClass,
    /// Class of the compound page that the last page belongs to.
    head: Option<PageClass>,
    counts: PageblockCounts,
    /// Frame from which `counts` counts.
    counted_from: u64,
    /// Whether the first page of the block is the head of a compound page.
    starts_with_head: bool,
    /// Tails in the block.
    tails: u32,
    /// First frame of the run of free pages that the last page belongs to.
    free_run_start: Option<u64>,
    free_blocks: [u64; FreeAreas::ORDERS_MAX],
    class_cache: ClassCache,
    /// The class of each page since the last [`PageClassifier::drain_classes`]; `None`: not requested.
    classes: Option<Vec<PageClass>>,
}

/// Classes of recent flag words: a machine has some dozens of different ones.
#[derive(Clone, Debug)]
struct ClassCache([(u64, ClassRule); ClassCache::SLOTS]);

impl ClassCache {
    const SLOTS: usize = 64;

    fn class_rule(&mut self, flags: u64) -> ClassRule {
        let slot = (flags.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % ClassCache::SLOTS;
        let (known, own) = self.0[slot];
        if known == flags {
            return own;
        }
        let own = class_rule(PageFlags(flags));
        self.0[slot] = (flags, own);
        own
    }
}

impl PageClassifier {
    /// A classifier whose first entry is that of `first`. A page without any flag is `unflagged_class`.
    pub fn new(geometry: ScanGeometry, first: Pfn, unflagged_class: PageClass) -> PageClassifier {
        let max_order = geometry.orders.clamp(1, FreeAreas::ORDERS_MAX) - 1;
        PageClassifier {
            pageblock_order: geometry.pageblock_order.0.min(ScanGeometry::BLOCK_ORDER_MAX.0),
            max_order: max_order as u8,
            next_frame: first.0,
            bytes_read: 0,
            partial_entry: ([0; ENTRY_BYTES], 0),
            unflagged_class,
            flags: 0,
            class: unflagged_class,
            head: None,
            counts: PageblockCounts::default(),
            counted_from: first.0,
            starts_with_head: false,
            tails: 0,
            free_run_start: None,
            free_blocks: [0; FreeAreas::ORDERS_MAX],
            class_cache: ClassCache([(0, ClassRule::Class(unflagged_class)); ClassCache::SLOTS]),
            classes: None,
        }
    }

    /// The same classifier, which keeps the class of every single page for [`PageClassifier::drain_classes`].
    pub fn with_page_classes(mut self) -> PageClassifier {
        self.classes = Some(Vec::new());
        self
    }

    /// Passes on the classes of the pages since the last call, and clears them; empty unless they are kept.
    pub fn drain_classes(&mut self, take: impl FnOnce(&[PageClass])) {
        let Some(classes) = &mut self.classes else { return take(&[]) };
        take(classes);
        classes.clear();
    }

    /// Reads the next bytes; `visit` gets each block that they complete.
    pub fn feed(&mut self, mut bytes: &[u8], visit: &mut impl FnMut(CountedPageblock)) {
        self.bytes_read = self.bytes_read.saturating_add(bytes.len() as u64);
        let (part, held) = &mut self.partial_entry;
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
            self.process_entries(&[whole], visit);
        }
        let (whole, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        self.process_entries(whole, visit);
        self.partial_entry.0[..rest.len()].copy_from_slice(rest);
        self.partial_entry.1 = rest.len();
    }

    fn process_entries(
        &mut self,
        mut entries: &[[u8; ENTRY_BYTES]],
        sink: &mut impl FnMut(CountedPageblock),
    ) {
        let block_pages = 1u64 << self.pageblock_order;
        while !entries.is_empty() {
            let in_block = block_pages - (self.next_frame & (block_pages - 1));
            let take = entries.len().min(usize::try_from(in_block).unwrap_or(usize::MAX));
            let (now, later) = entries.split_at(take);
            if self.next_frame == self.counted_from {
                let first = PageFlags(u64::from_ne_bytes(now[0]));
                self.starts_with_head = first.has_any(PageFlags::COMPOUND_HEAD);
            }
            self.process_block_entries(now);
            entries = later;
            if take as u64 == in_block {
                self.emit_block(sink);
            }
        }
    }

    /// The hot loop: a page with the flags of the previous page costs one comparison.
    fn process_block_entries(&mut self, entries: &[[u8; ENTRY_BYTES]]) {
        let mut run_start = 0;
        let mut flags = self.flags;
        for (at, entry) in entries.iter().enumerate() {
            let word = u64::from_ne_bytes(*entry);
            if word != flags {
                self.count_run(flags, at - run_start);
                run_start = at;
                flags = word;
                self.change_flags(word, self.next_frame.wrapping_add(at as u64));
            }
        }
        self.count_run(flags, entries.len() - run_start);
        self.flags = flags;
        self.next_frame = self.next_frame.saturating_add(entries.len() as u64);
    }

    fn count_run(&mut self, flags: u64, pages: usize) {
        self.counts.0[self.class.index()] += pages as u32;
        if let Some(classes) = &mut self.classes {
            classes.resize(classes.len() + pages, self.class);
        }
        if PageFlags(flags).has_any(PageFlags::COMPOUND_TAIL) {
            self.tails += pages as u32;
        }
    }

    /// The page at `frame` has other flags than the previous page.
    fn change_flags(&mut self, word: u64, frame: u64) {
        let flags = PageFlags(word);
        let class = match self.class_cache.class_rule(word) {
            _ if word == 0 => self.unflagged_class,
            ClassRule::Class(class) => class,
            ClassRule::FollowHead(otherwise) => self.head.unwrap_or(otherwise),
        };
        if flags.has_any(PageFlags::COMPOUND_HEAD) {
            self.head = Some(class);
        } else if !flags.has_any(PageFlags::COMPOUND_TAIL) {
            self.head = None;
        }
        if (class == PageClass::Free) != (self.class == PageClass::Free) {
            self.end_free_run(frame);
            self.free_run_start = (class == PageClass::Free).then_some(frame);
        }
        self.class = class;
    }

    fn end_free_run(&mut self, end: u64) {
        if let Some(start) = self.free_run_start.take() {
            split_run(start, end, self.max_order, &mut self.free_blocks);
        }
    }

    fn emit_block(&mut self, sink: &mut impl FnMut(CountedPageblock)) {
        let pages = self.next_frame - self.counted_from;
        if pages > 0 {
            sink(CountedPageblock {
                number: self.counted_from >> self.pageblock_order,
                counts: self.counts,
                is_single_folio: u64::from(self.tails) + u64::from(self.starts_with_head) == pages,
            });
        }
        self.counts = PageblockCounts::default();
        self.tails = 0;
        self.starts_with_head = false;
        self.counted_from = self.next_frame;
    }

    /// Ends the block and the run of free pages that are being counted, such as at the end of a zone, and
    /// continues at `next`, where a page without flags is `unflagged_class`. An incomplete entry is an error.
    pub fn end_segment(
        &mut self,
        next: Pfn,
        unflagged_class: PageClass,
        sink: &mut impl FnMut(CountedPageblock),
    ) -> Result<(), ParseError> {
        if self.partial_entry.1 > 0 {
            let held = self.partial_entry.1;
            let problem = format!("{held} bytes of an entry of {ENTRY_BYTES}: the file is truncated");
            return Err(ParseError::at_byte(FORMAT, self.bytes_read - held as u64, problem));
        }
        self.emit_block(sink);
        self.end_free_run(self.next_frame);
        if next.0 != self.next_frame {
            self.head = None;
        }
        (self.next_frame, self.counted_from, self.unflagged_class) = (next.0, next.0, unflagged_class);
        (self.flags, self.class) = (0, unflagged_class);
        Ok(())
    }

    /// The free blocks by order that ended since the last call; starts to count anew.
    pub fn drain_free_blocks(&mut self) -> Vec<u64> {
        let orders = usize::from(self.max_order) + 1;
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
    let shape = ScanGeometry { pageblock_order: Order(order % 12), orders: usize::from(order % 23) };
    let first = Pfn(u64::from(order) * 77);
    let mut classifier = PageClassifier::new(shape, first, PageClass::Unknown);
    let mut pages = 0u64;
    let mut sink = |block: CountedPageblock| pages += u64::from(block.counts.total());
    let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
    classifier.feed(head, &mut sink);
    classifier.feed(tail, &mut sink);
    let ended = classifier.end_segment(Pfn(u64::MAX), PageClass::Hole, &mut sink);
    assert_eq!(ended.is_err(), !bytes.len().is_multiple_of(ENTRY_BYTES));
    if ended.is_ok() {
        assert_eq!(pages, (bytes.len() / ENTRY_BYTES) as u64);
    }
}

#[cfg(test)]
#[path = "kpageflags_tests.rs"]
mod tests;
