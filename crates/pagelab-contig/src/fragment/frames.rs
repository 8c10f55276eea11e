//! Where the kept pages lie in physical memory, from our own page table.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use pagelab_formats::pagemap::{ENTRY_BYTES, PagemapEntry};
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsentWhy, Order, PageSize, Pfn, Reading, ZoneInfo};

use super::spoiler::Spoiler;

/// Units looked at, at most; of more an even sample is taken.
const UNITS_MAX: u64 = 16 << 10;

/// What the page table says of the kept pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Kept pages that were looked at.
    pub looked_at: u64,
    /// Of these, pages that are there.
    pub present: u64,
    /// Of these, pages in the zone in question.
    pub in_zone: u64,
    /// Blocks of the order in question, in that zone, that hold at least one of them.
    pub blocks: u64,
}

/// Looks the kept pages up. Frame numbers need CAP_SYS_ADMIN (4.2).
pub fn verify(spoiler: &Spoiler, zone: &ZoneInfo, order: Order, page_size: PageSize) -> Reading<Verified> {
    let pagemap = Root::live().file(paths::SELF_PAGEMAP)?;
    let failed =
        |error: std::io::Error| Absence::new(paths::SELF_PAGEMAP, AbsentWhy::Failed, error.to_string());
    let span = zone.start.zip(zone.end());
    let mut verified = Verified::default();
    let mut blocks = BTreeSet::new();
    let units = spoiler.units();
    let stride = units.div_ceil(UNITS_MAX).max(1);
    for unit in (0..units).step_by(usize::try_from(stride).unwrap_or(usize::MAX)) {
        let Some((address, kept)) = spoiler.kept_of(unit) else { continue };
        for page in kept {
            let index = (address >> page_size.shift()) + page;
            let mut entry = [0; ENTRY_BYTES];
            pagemap.read_exact_at(&mut entry, index * ENTRY_BYTES as u64).map_err(failed)?;
            let entry = PagemapEntry(u64::from_ne_bytes(entry));
            verified.looked_at += 1;
            verified.present += u64::from(entry.is_present());
            if entry.is_present() && entry.frame().is_none() {
                let why = Absence::new(paths::SELF_PAGEMAP, AbsentWhy::NotPermitted, "");
                return Err(why.or("run as root, or with CAP_SYS_ADMIN"));
            }
            let in_zone = |frame: &Pfn| span.is_none_or(|(start, end)| (start..end).contains(frame));
            if let Some(frame) = entry.frame().filter(in_zone) {
                verified.in_zone += 1;
                blocks.insert(frame.0 >> order.0.min(63));
            }
        }
    }
    verified.blocks = blocks.len() as u64;
    Ok(verified)
}
