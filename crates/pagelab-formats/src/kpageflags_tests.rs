//! Tests of the kpageflags classifier: a table of rules, chunks, and a naive twin on random flags.

use super::*;
use pagelab_model::Pages;
use pagelab_model::random::SplitMix64;

const HEAD: PageFlags = PageFlags::COMPOUND_HEAD;
const TAIL: PageFlags = PageFlags::COMPOUND_TAIL;
const LRU: PageFlags = PageFlags::LRU.union(PageFlags::UPTODATE);
const ANON: PageFlags = PageFlags::ANON.union(PageFlags::SWAPBACKED).union(PageFlags::UPTODATE);

fn bytes_of(flags: &[PageFlags]) -> Vec<u8> {
    flags.iter().flat_map(|flags| flags.0.to_ne_bytes()).collect()
}

fn scan(shape: ScanGeometry, first: u64, bytes: &[u8], chunk: usize) -> (Vec<CountedPageblock>, Vec<u64>) {
    let mut blocks = Vec::new();
    let mut classifier = PageClassifier::new(shape, Pfn(first), PageClass::Unknown);
    for part in bytes.chunks(chunk) {
        classifier.feed(part, &mut |block| blocks.push(block));
    }
    classifier.end_segment(Pfn(0), PageClass::Unknown, &mut |block| blocks.push(block)).unwrap();
    (blocks, classifier.drain_free_blocks())
}

#[test]
fn each_rule_decides_before_those_below_it() {
    let slab_by_accident = PageFlags::SLAB.union(PageFlags::ANON).union(PageFlags::KSM);
    let cases: &[(&[PageFlags], PageClass)] = &[
        (&[PageFlags(0)], PageClass::Unknown),
        (&[PageFlags::NOPAGE], PageClass::Hole),
        (&[PageFlags::BUDDY.union(PageFlags::UPTODATE)], PageClass::Free),
        (&[LRU.union(PageFlags::HWPOISON)], PageClass::Poisoned),
        (&[PageFlags::OFFLINE.union(PageFlags::RESERVED)], PageClass::Offline),
        (
            &[PageFlags::HUGE.union(HEAD).union(PageFlags::UPTODATE), PageFlags::HUGE.union(TAIL)],
            PageClass::Hugetlb,
        ),
        (&[slab_by_accident], PageClass::Slab),
        (&[PageFlags::PGTABLE.union(PageFlags::REFERENCED)], PageClass::PageTable),
        (&[PageFlags::RESERVED.union(PageFlags::ZERO_PAGE)], PageClass::Reserved),
        (&[PageFlags::ZERO_PAGE.union(PageFlags::THP).union(HEAD)], PageClass::Kernel),
        // In a per-CPU LRU batch: no LRU yet.
        (&[ANON.union(PageFlags::MMAP)], PageClass::Anon),
        (&[PageFlags::SWAPBACKED], PageClass::Anon),
        (&[PageFlags::UPTODATE], PageClass::File),
        (&[LRU.union(PageFlags::MMAP)], PageClass::File),
        (&[PageFlags::LOCKED], PageClass::File),
        (&[ANON.union(PageFlags::THP).union(HEAD)], PageClass::AnonHuge),
        // Older kernels: LRU, SWAPBACKED and SLAB on the head only; the tails are as their head.
        (
            &[PageFlags::SWAPBACKED.union(LRU).union(PageFlags::THP).union(HEAD), TAIL.union(PageFlags::THP)],
            PageClass::AnonHuge,
        ),
        (
            &[LRU.union(PageFlags::THP).union(HEAD), TAIL.union(PageFlags::THP).union(PageFlags::MMAP)],
            PageClass::File,
        ),
        (&[PageFlags::SLAB.union(HEAD), TAIL, TAIL, TAIL], PageClass::Slab),
        (&[HEAD, TAIL], PageClass::Kernel),
        (&[PageFlags::MMAP], PageClass::Kernel),
        (&[PageFlags(1 << 63)], PageClass::Kernel),
    ];
    for (flags, expected) in cases {
        let (blocks, _) =
            scan(ScanGeometry { pageblock_order: Order(9), orders: 11 }, 0, &bytes_of(flags), 8);
        assert_eq!(blocks.len(), 1);
        assert_eq!(
            blocks[0].counts.pages_of_class(*expected) as usize,
            flags.len(),
            "{flags:?}: {:?}",
            blocks[0]
        );
    }
}

#[test]
fn a_tail_without_a_head_before_it_is_kernel_memory_unless_it_is_thp() {
    let flags = [TAIL, TAIL.union(PageFlags::THP), PageFlags::SLAB.union(HEAD), PageFlags::LRU, TAIL];
    let (blocks, _) = scan(ScanGeometry { pageblock_order: Order(9), orders: 11 }, 0, &bytes_of(&flags), 8);
    let counts = blocks[0].counts;
    let of = |class| counts.pages_of_class(class);
    assert_eq!(
        [of(PageClass::Kernel), of(PageClass::AnonHuge), of(PageClass::Slab), of(PageClass::File)],
        [2, 1, 1, 1]
    );
}

#[test]
fn one_folio_is_a_head_with_tails_only_or_a_block_inside_a_larger_one() {
    let check = |flags: [PageFlags; 4], expected: bool| {
        let (blocks, _) =
            scan(ScanGeometry { pageblock_order: Order(2), orders: 11 }, 0, &bytes_of(&flags), 64);
        assert_eq!(blocks[0].is_single_folio, expected, "{flags:?}");
    };
    let (head, tail) = (ANON.union(HEAD), ANON.union(TAIL));
    check([head, tail, tail, tail], true);
    check([tail; 4], true);
    check([head, tail, head, tail], false);
    check([head; 4], false);
    check([ANON; 4], false);
    check([tail, tail, tail, ANON], false);
}

#[test]
fn free_runs_become_the_largest_aligned_blocks() {
    let check = |first: u64, pages: usize, orders: usize, expected: &[(usize, u64)]| {
        let flags = vec![PageFlags::BUDDY; pages];
        let (_, free) =
            scan(ScanGeometry { pageblock_order: Order(3), orders }, first, &bytes_of(&flags), 24);
        let mut counts = vec![0; orders];
        for &(order, blocks) in expected {
            counts[order] = blocks;
        }
        assert_eq!(free, counts, "{pages} from {first}");
    };
    check(0, 16, 11, &[(4, 1)]);
    check(0, 16, 3, &[(2, 4)]);
    check(1, 16, 11, &[(0, 2), (1, 1), (2, 1), (3, 1)]);
    check(6, 1, 11, &[(0, 1)]);
    check(2, 5, 11, &[(0, 1), (1, 2)]);
}

#[test]
fn a_cut_entry_is_an_error_that_names_its_byte() {
    let mut classifier =
        PageClassifier::new(ScanGeometry { pageblock_order: Order(9), orders: 11 }, Pfn(0), PageClass::Hole);
    classifier.feed(&[0; 8], &mut |_| {});
    classifier.feed(&[0; 13], &mut |_| {});
    let error = classifier.end_segment(Pfn(0), PageClass::Hole, &mut |_| {}).unwrap_err();
    assert_eq!(
        error.message_in_file("f"),
        "f: byte 16: 5 bytes of an entry of 8: the file is truncated (read as kpageflags)"
    );
}

fn classify(flags: PageFlags, head: Option<PageClass>, unflagged_class: PageClass) -> PageClass {
    match class_rule(flags) {
        _ if flags.0 == 0 => unflagged_class,
        ClassRule::Class(class) => class,
        ClassRule::FollowHead(otherwise) => head.unwrap_or(otherwise),
    }
}

/// The same, slowly: every page from the rules alone, free blocks by asking each aligned block.
fn twin(shape: ScanGeometry, first: u64, flags: &[PageFlags]) -> (Vec<(u64, PageblockCounts)>, Vec<u64>) {
    let mut blocks: Vec<(u64, PageblockCounts)> = Vec::new();
    let mut classes = Vec::new();
    for (at, &page) in flags.iter().enumerate() {
        let head = (0..at).rev().find(|&k| !flags[k].has_any(TAIL) || flags[k].has_any(HEAD));
        let head = head.filter(|&k| page.has_any(TAIL) && flags[k].has_any(HEAD)).map(|k| classes[k]);
        classes.push(classify(page, head, PageClass::Unknown));
        let number = (first + at as u64) / shape.pageblock_order.to_pages().0;
        if blocks.last().is_none_or(|last| last.0 != number) {
            blocks.push((number, PageblockCounts::default()));
        }
        blocks.last_mut().unwrap().1.0[classes[at].index()] += 1;
    }
    let free = |frame: u64| {
        frame.checked_sub(first).and_then(|at| classes.get(at as usize)) == Some(&PageClass::Free)
    };
    let end = first + flags.len() as u64;
    let whole = |start: u64, order: u8| (start..start + Order(order).to_pages().0).all(free);
    let top = shape.orders as u8 - 1;
    let count = |order: u8| {
        let Pages(step) = Order(order).to_pages();
        let starts = (first / step * step..end).step_by(step as usize);
        let merged = |start: u64| order < top && whole(start & !(2 * step - 1), order + 1);
        starts.filter(|&start| whole(start, order) && !merged(start)).count() as u64
    };
    let counts = (0..=top).map(count).collect();
    (blocks, counts)
}

#[test]
fn a_slow_twin_agrees_block_by_block_on_random_flags() {
    let mut draws = SplitMix64::new(0x5eed);
    let mut random = move || draws.next_u64();
    let words = [
        PageFlags(0),
        PageFlags::BUDDY,
        PageFlags::BUDDY,
        LRU,
        ANON,
        HEAD,
        TAIL,
        TAIL,
        ANON.union(HEAD).union(PageFlags::THP),
        TAIL.union(PageFlags::THP),
        PageFlags::SLAB.union(HEAD),
        PageFlags::RESERVED,
        PageFlags::HUGE.union(TAIL),
        HEAD.union(TAIL),
        PageFlags::MMAP.union(TAIL),
    ];
    for round in 0..300 {
        let shape = ScanGeometry {
            pageblock_order: Order((random() % 6) as u8),
            orders: 1 + (random() % 8) as usize,
        };
        let first = random() % 100;
        let mut flags = Vec::new();
        while flags.len() < 400 {
            let word =
                if random() % 16 == 0 { PageFlags(random()) } else { words[random() as usize % words.len()] };
            flags.extend(std::iter::repeat_n(word, 1 + (random() % 20) as usize));
        }
        let (slow, slow_free) = twin(shape, first, &flags);
        let (fast, free) = scan(shape, first, &bytes_of(&flags), 1 + (random() % 500) as usize);
        let fast: Vec<(u64, PageblockCounts)> =
            fast.iter().map(|block| (block.number, block.counts)).collect();
        assert_eq!(fast, slow, "round {round}, {shape:?}");
        assert_eq!(free, slow_free, "round {round}, {shape:?}");
    }
}

#[test]
fn the_fuzz_entry_takes_anything() {
    for len in 0..100 {
        fuzz(&(0..len).map(|byte| byte as u8 ^ 0x5a).collect::<Vec<u8>>());
    }
}
