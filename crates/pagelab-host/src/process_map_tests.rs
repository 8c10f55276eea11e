//! Tests of the physical memory of this process, against smaps and an independent count.

use super::*;
use crate::root::Root;
use pagelab_sys::mapping::{Advice, Mapping as Memory};

/// Reads the map of this process; `None` if frames are hidden.
fn read_own_map() -> Option<ProcessMap> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let page_size = crate::machine::live_page_size().unwrap();
    match read(&reader, std::process::id(), page_size, page_size.default_pmd_order()) {
        Ok(map) => Some(map),
        Err(absence) => {
            assert_eq!(absence.why, AbsenceReason::NotPermitted, "{absence:?}");
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
    let mut orders = vec![0; PhysicalBacking::ORDER_COUNT];
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
    // Says why it cannot be read, before the twin opens the same files.
    if read_own_map().is_none() {
        return;
    }
    let page_size = crate::machine::live_page_size().unwrap();
    let pmd = page_size.block_bytes(page_size.default_pmd_order());
    let mut memory = Memory::anonymous(Bytes(8 * pmd.0), pmd).unwrap();
    memory.advise(0..4 * pmd.0, Advice::HugePage).unwrap();
    memory.advise(4 * pmd.0..8 * pmd.0, Advice::NoHugePage).unwrap();
    // A huge page split by unmapping half of it, and base pages with a gap.
    memory.touch_for_writing(0..6 * pmd.0).unwrap();
    memory.advise(3 * pmd.0..3 * pmd.0 + pmd.0 / 2, Advice::DontNeed).unwrap();
    let addresses = memory.addresses();
    let page_kib = page_size.bytes() / 1024;
    let counted = |map: &ProcessMap| {
        let (mut sum, mut huge_kib, mut rss_kib) = (PhysicalBacking::new(), 0, 0);
        for mapping in map.mappings.iter().filter(|m| addresses.contains(&m.mapping.start)) {
            sum.merge(&mapping.backing);
            huge_kib += mapping.mapping.fields_kib.get("AnonHugePages").unwrap();
            rss_kib += mapping.mapping.fields_kib.get("Rss").unwrap();
        }
        (sum, huge_kib, rss_kib)
    };
    // khugepaged may fill the gap once during a reading: a reading counts if the twin's results before and
    // after are equal.
    let twin = || twin(addresses.clone(), page_size.bytes());
    let between = || {
        let (before, map) = (twin(), read_own_map());
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
    assert_eq!((sum.hidden_pages, sum.changed_pages, sum.known_pages()), (0, 0, sum.present));
    let pmd_order = page_size.default_pmd_order();
    let half = pmd_order.to_pages().0 / 2;
    let huge = sum.folio_pages[pmd_order.index()];
    // Of the huge page that is mapped in part, the pages still belong to a folio of PMD size.
    assert!(huge * page_kib == huge_kib || (huge - half) * page_kib == huge_kib, "{huge} {huge_kib}");
    assert!(sum.aligned_pages[pmd_order.index()] * page_kib >= huge_kib);
    assert_eq!(sum.folio_pages, theirs);
}

#[test]
fn all_of_this_process_is_counted_as_smaps_counts_it() {
    let Some(map) = read_own_map() else { return };
    let counted = |map: &ProcessMap| {
        let mut sum = PhysicalBacking::new();
        map.mappings.iter().for_each(|mapping| sum.merge(&mapping.backing));
        assert!(!map.inconsistency.has_ended);
        assert!(
            sum.known_pages() + sum.zero_pages + sum.changed_pages + sum.hidden_pages == sum.present,
            "{sum:?}"
        );
        assert_eq!(sum.folio_pages.iter().sum::<u64>() + sum.other_compound_pages, sum.known_pages());
        (sum.present, map.inconsistency.resident_before.0 / map.page_size.bytes())
    };
    // Other tests of this process allocate and free memory meanwhile, so a reading may be inconsistent; not
    // all are.
    let looks: Vec<(u64, u64)> = std::iter::once(map)
        .chain(std::iter::repeat_with(read_own_map).flatten())
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
    let absence = read(&reader, u32::MAX - 1, PageSize::DEFAULT, Order(9)).unwrap_err();
    assert_eq!((absence.why, absence.reason()), (AbsenceReason::NotThere, "no such process"));
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
        runs.push(run_length(&entries, at));
        at += runs.last().unwrap();
    }
    assert_eq!(runs, [3, 1, 1, 2, 1]);
}
