//! Tests of the census of this machine against the kernel's own counts: buddyinfo and meminfo.

#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

use std::time::Duration;

use pagelab_formats::{buddyinfo, meminfo, zoneinfo};
use pagelab_host::census::{CensusOptions, take_census};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::{BuddyInfo, Census, Coverage, Order, PageClass, PageSize, UnlistedFree};

fn page_size() -> PageSize {
    pagelab_host::machine::live_page_size().unwrap()
}

fn options(orders: usize) -> CensusOptions {
    let pmd = page_size().default_pmd_order();
    CensusOptions::new(page_size(), pmd, pmd, orders)
}

struct CensusWithBuddyInfo {
    before: BuddyInfo,
    census: Census,
    after: BuddyInfo,
}

fn census_with_buddyinfo(change: impl FnOnce(&mut CensusOptions)) -> Option<CensusWithBuddyInfo> {
    let root = Root::live();
    let reader = Reader::new(&root);
    let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse).unwrap();
    let before = reader.parse(paths::BUDDYINFO, buddyinfo::parse).unwrap();
    let mut options = options(before.zones[0].areas.orders());
    let counted = reader.parse(paths::MEMINFO, meminfo::parse).unwrap().bytes("MemFree").unwrap();
    let ahead = u128::from(counted.to_pages(page_size()).0).saturating_sub(before.free_pages());
    options.off_lists = if ahead > 1 << 14 { UnlistedFree::Pages(ahead as u64) } else { UnlistedFree::None };
    change(&mut options);
    match take_census(&root, &reader, &zones, &options) {
        Ok(census) => Some(CensusWithBuddyInfo {
            before,
            census,
            after: reader.parse(paths::BUDDYINFO, buddyinfo::parse).unwrap(),
        }),
        Err(absence) => {
            eprintln!("skipped: kpageflags-unreadable: {}", absence.reason());
            None
        }
    }
}

fn pages_of(census: &Census, class: PageClass) -> u64 {
    let blocks = census.zones.iter().flat_map(|zone| &zone.blocks);
    blocks.map(|(_, counts)| u64::from(counts.pages_of_class(class))).sum()
}

/// What differs, zone by zone, from order 1 on: order 0 is what the per-CPU lists and every fault change.
///
/// A census takes time, so each count must be between the two readings, or outside by at most the blocks that
/// can appear and disappear between them: 2, and 2 % of the blocks of that order.
fn differences(look: &CensusWithBuddyInfo) -> Vec<String> {
    let mut out = Vec::new();
    for zone in &look.census.zones {
        let (before, after) = (look.before.zone(&zone.key).unwrap(), look.after.zone(&zone.key).unwrap());
        let ours = zone.free_blocks.as_ref().unwrap();
        assert_eq!(ours.orders(), before.orders());
        for order in (1..ours.orders()).map(|j| Order(j as u8)) {
            let [ours, a, b] = [ours, before, after].map(|areas| areas.blocks(order));
            let slack = 2 + a.max(b) / 50;
            if ours + slack < a.min(b) || ours > a.max(b) + slack {
                out.push(format!("{} {order:?}: {ours}, buddyinfo {a} and {b}", zone.key.zone));
            }
        }
    }
    out
}

#[test]
fn free_blocks_rebuilt_from_flags_agree_with_buddyinfo() {
    let mut last = Vec::new();
    for _ in 0..20 {
        let Some(look) = census_with_buddyinfo(|options| options.time_budget = Duration::from_secs(60))
        else {
            return;
        };
        assert_eq!(look.census.coverage, Coverage::Whole);
        last = differences(&look);
        if last.is_empty() {
            return;
        }
    }
    panic!("in 20 tries never: {last:?}");
}

#[test]
fn classes_agree_with_meminfo() {
    let mut last = Vec::new();
    for _ in 0..20 {
        let root = Root::live();
        let before = Reader::new(&root).parse(paths::MEMINFO, meminfo::parse).unwrap();
        let Some(look) = census_with_buddyinfo(|options| options.time_budget = Duration::from_secs(60))
        else {
            return;
        };
        let census = &look.census;
        let field = |names: &[&str]| -> u64 {
            names.iter().filter_map(|name| Some(before.bytes(name)?.to_pages(page_size()).0)).sum()
        };
        let of = |classes: &[PageClass]| classes.iter().map(|&class| pages_of(census, class)).sum::<u64>();
        // Pages between lists, in per-CPU statistics or freed meanwhile: 1024 pages and 3 %. The class File
        // also has pages that meminfo does not count as cached, and Cached counts shared memory, so both are
        // taken with anonymous memory.
        let cases = [
            ("Slab", of(&[PageClass::Slab]), field(&["Slab"])),
            ("PageTables", of(&[PageClass::PageTable]), field(&["PageTables", "SecPageTables"])),
            (
                "AnonPages + Cached + Buffers + SwapCached",
                of(&[PageClass::Anon, PageClass::AnonHuge, PageClass::File]),
                field(&["AnonPages", "Cached", "Buffers", "SwapCached"]),
            ),
            (
                "AnonPages + Shmem",
                of(&[PageClass::Anon, PageClass::AnonHuge]),
                field(&["AnonPages", "Shmem"]),
            ),
            ("MemFree", of(&[PageClass::Free, PageClass::Deferred]), field(&["MemFree"])),
        ];
        let off = |&(_, ours, theirs): &(&str, u64, u64)| ours.abs_diff(theirs) > 1024 + theirs * 3 / 100;
        last = cases.into_iter().filter(off).collect();
        if last.is_empty() {
            return;
        }
    }
    panic!("in 20 tries never: {last:?}");
}

#[test]
fn every_page_of_a_zone_is_counted_once() {
    let Some(look) = census_with_buddyinfo(|options| options.threads = 3) else { return };
    let Coverage::Whole = look.census.coverage else {
        eprintln!("skipped: kpageflags-slow: the census was sampled");
        return;
    };
    let root = Root::live();
    let zones = Reader::new(&root).parse(paths::ZONEINFO, zoneinfo::parse).unwrap();
    let block = look.census.pageblock_order.to_pages().0;
    for zone in &look.census.zones {
        assert!(zone.blocks.iter().all(|(_, counts)| u64::from(counts.total()) == block));
        assert!(zone.blocks.is_sorted_by(|a, b| a.0 < b.0));
        let memory: u64 = zone
            .blocks
            .iter()
            .map(|(_, counts)| block - u64::from(counts.pages_of_class(PageClass::Hole)))
            .sum();
        let present = zones.zone(&zone.key).unwrap().present.unwrap().0;
        // Memory at the edge of firmware's ranges is present to the one and reserved to the other.
        assert!(memory.abs_diff(present) <= 2 * block, "{:?}: {memory} of {present}", zone.key);
    }
}

#[test]
fn a_sample_agrees_with_the_whole_within_its_error() {
    // Memory moves between the two looks (a process that ends leaves its pages on per-CPU lists for a
    // while), so one try in ten must agree; a biased sample never does.
    let mut last = String::new();
    for _ in 0..10 {
        let Some(sampled) = census_with_buddyinfo(|options| options.time_budget = Duration::ZERO) else {
            return;
        };
        let Coverage::Sample(plan) = sampled.census.coverage else { panic!("no time, and all was read") };
        assert!(plan.blocks >= 100 && plan.blocks < plan.blocks_total, "{plan:?}");
        assert_eq!(sampled.census.free_blocks, None);
        let Some(whole) = census_with_buddyinfo(|options| options.time_budget = Duration::from_secs(60))
        else {
            return;
        };
        match disagreement(&sampled.census, &whole.census) {
            None => return,
            Some(text) => last = text,
        }
    }
    panic!("in 10 tries never: {last}");
}

/// The first class of a zone whose share differs by more than the sample's error.
fn disagreement(sample: &Census, whole: &Census) -> Option<String> {
    for (part, all) in sample.zones.iter().zip(&whole.zones) {
        assert_eq!((&part.key, part.first), (&all.key, all.first));
        assert!(part.blocks_total.abs_diff(all.blocks_total) <= 2);
        let share = |blocks: &[(u64, pagelab_model::PageblockCounts)], class| {
            let pages: u64 = blocks.iter().map(|(_, counts)| u64::from(counts.pages_of_class(class))).sum();
            pages as f64 / (blocks.len() as f64 * 512.0)
        };
        for class in PageClass::ALL {
            let (p, q) = (share(&part.blocks, class), share(&all.blocks, class));
            // Five standard deviations of the most uneven blocks that have this share.
            let error = 5.0 * (q * (1.0 - q) / part.blocks.len() as f64).sqrt() + 0.02;
            if (p - q).abs() > error {
                return Some(format!("{:?} {}: {p} of {q}", part.key, class.name()));
            }
        }
    }
    None
}
