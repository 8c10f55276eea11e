//! What is behind our own memory, against smaps and against another way of counting it.

use super::*;
use crate::root::Root;
use pagelab_sys::map::{Advice, Mapping as Memory};

/// Looks at this process; `None` where frames are hidden.
fn look() -> Option<ProcessMap> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let page_size = crate::machine::live_page_size().unwrap();
    match read(&reader, std::process::id(), page_size, page_size.usual_pmd_order()) {
        Ok(map) => Some(map),
        Err(absence) => {
            assert_eq!(absence.why, AbsentWhy::NotPermitted, "{absence:?}");
            eprintln!("skipped: kpageflags-unreadable: {}", absence.reason());
            None
        }
    }
}

fn word(file: &File, index: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, index * 8).unwrap();
    u64::from_ne_bytes(bytes)
}

/// Pages by folio order, found page by page from the flags alone: back to the head, forth to the last tail.
fn twin(addresses: Range<u64>, page_bytes: u64) -> Vec<u64> {
    let (pagemap, flags) =
        (File::open("/proc/self/pagemap").unwrap(), File::open("/proc/kpageflags").unwrap());
    let has = |frame: u64, bit: u32| word(&flags, frame) >> bit & 1 == 1;
    let mut orders = vec![0; Behind::ORDERS];
    for page in addresses.start / page_bytes..addresses.end / page_bytes {
        let entry = word(&pagemap, page);
        let frame = entry & ((1 << 55) - 1);
        if entry >> 63 == 0 || has(frame, 24) {
            continue;
        }
        let (mut head, mut end) = (frame, frame + 1);
        while has(head, 16) {
            head -= 1;
        }
        while has(head, 15) && has(end, 16) {
            end += 1;
        }
        orders[(end - head).ilog2() as usize] += 1;
    }
    orders
}

#[test]
fn huge_pages_of_our_own_are_seen_as_smaps_and_flags_say() {
    let page_size = crate::machine::live_page_size().unwrap();
    let pmd = page_size.block(page_size.usual_pmd_order());
    let mut memory = Memory::anonymous(Bytes(8 * pmd.0), pmd).unwrap();
    memory.advise(0..4 * pmd.0, Advice::HugePage).unwrap();
    memory.advise(4 * pmd.0..8 * pmd.0, Advice::NoHugePage).unwrap();
    // A huge page split by unmapping half of it, and base pages with a gap.
    memory.touch(0..6 * pmd.0).unwrap();
    memory.advise(3 * pmd.0..3 * pmd.0 + pmd.0 / 2, Advice::DontNeed).unwrap();
    let addresses = memory.addresses();
    let page_kib = page_size.bytes() / 1024;
    let counted = |map: &ProcessMap| {
        let (mut sum, mut huge_kib, mut rss_kib) = (Behind::new(), 0, 0);
        for mapping in map.mappings.iter().filter(|m| addresses.contains(&m.mapping.start)) {
            sum.add(&mapping.behind);
            huge_kib += mapping.mapping.fields_kib.get("AnonHugePages").unwrap();
            rss_kib += mapping.mapping.fields_kib.get("Rss").unwrap();
        }
        (sum, huge_kib, rss_kib)
    };
    // khugepaged may fill the gap while it is looked at, once: a look counts if the twin said the same before
    // and after.
    let twin = || twin(addresses.clone(), page_size.bytes());
    let between = || {
        let (before, map) = (twin(), look());
        let seen = map.as_ref().map(counted);
        seen.map(|seen| (seen, before == twin(), before))
    };
    let Some(mut found) = between() else { return };
    for _ in 0..3 {
        if found.1 {
            break;
        }
        found = between().unwrap_or(found);
    }
    let ((sum, huge_kib, rss_kib), _, theirs) = found;
    assert_eq!(sum.present * page_kib, rss_kib);
    assert_eq!((sum.hidden, sum.moved, sum.known()), (0, 0, sum.present));
    let pmd_order = page_size.usual_pmd_order();
    let half = pmd_order.pages().0 / 2;
    let huge = sum.folio_pages[pmd_order.index()];
    // Of the huge page that is mapped in part, the pages still belong to a folio of PMD size.
    assert!(huge * page_kib == huge_kib || (huge - half) * page_kib == huge_kib, "{huge} {huge_kib}");
    assert!(sum.aligned_pages[pmd_order.index()] * page_kib >= huge_kib);
    assert_eq!(sum.folio_pages, theirs);
}

#[test]
fn all_of_this_process_is_counted_as_smaps_counts_it() {
    let Some(map) = look() else { return };
    let counted = |map: &ProcessMap| {
        let mut sum = Behind::new();
        map.mappings.iter().for_each(|mapping| sum.add(&mapping.behind));
        assert!(!map.tear.ended);
        assert!(sum.known() + sum.zero + sum.moved + sum.hidden == sum.present, "{sum:?}");
        assert_eq!(sum.folio_pages.iter().sum::<u64>() + sum.odd, sum.known());
        (sum.present, map.tear.resident_before.0 / map.page_size.bytes())
    };
    // Other tests of this process take and give back memory meanwhile, so a look may be torn; not all are.
    let looks: Vec<(u64, u64)> = std::iter::once(map)
        .chain(std::iter::repeat_with(look).flatten())
        .take(20)
        .map(|map| counted(&map))
        .collect();
    let agrees = |&(present, resident): &(u64, u64)| present.abs_diff(resident) < 256 + resident / 10;
    assert!(looks.iter().any(agrees), "{looks:?}");
}

#[test]
fn a_process_that_is_not_there_is_said_to_be_not_there() {
    let root = Root::live();
    let reader = Reader::new(&root);
    let absence = read(&reader, u32::MAX - 1, PageSize::USUAL, Order(9)).unwrap_err();
    assert_eq!((absence.why, absence.reason()), (AbsentWhy::NotThere, "there is no such process"));
}

#[test]
fn runs_are_frames_in_step_and_stretches_without_a_frame() {
    let frame = |frame: u64| PagemapEntry(1 << 63 | frame);
    let entries = [
        frame(7),
        frame(8),
        frame(9),
        frame(11),
        frame(10),
        PagemapEntry(0),
        PagemapEntry(1 << 62),
        frame(1),
    ];
    let mut at = 0;
    let mut runs = Vec::new();
    while at < entries.len() {
        runs.push(run_from(&entries, at));
        at += runs.last().unwrap();
    }
    assert_eq!(runs, [3, 1, 1, 2, 1]);
}
