//! Physical memory of one process's mappings: pagemap for the frames, kpageflags for the folios.
//!
//! The process continues while it is read. Each stretch of pagemap is read before and after the flags of its
//! frames, and pages whose entry changed in between are left out and counted; the mappings are read before
//! and after all of it, and so is the start time, since PIDs are reused.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use pagelab_formats::pagemap::PagemapEntry;
use pagelab_formats::{process_status, smaps};
use pagelab_model::process::Mapping;
use pagelab_model::process_map::{MappingBacking, PhysicalBacking, ProcessMap, ScanInconsistency};
use pagelab_model::{Absence, AbsenceReason, Bytes, Order, PageFlags, PageSize, Reading};
use pagelab_sys::pagemap_scan;
use rustix::io::Errno;

use crate::reader::Reader;
use crate::{address_space, paths};

/// Pages whose entries are read at a time.
const CHUNK_PAGES: u64 = 1 << 15;

/// A stretch of page numbers of the address space.
type PageRange = Range<u64>;

/// Reads the physical memory of the mappings of a process of this machine.
pub fn read(reader: &Reader<'_>, pid: u32, page_size: PageSize, pmd_order: Order) -> Reading<ProcessMap> {
    let start = Instant::now();
    let hint = "run as its owner with CAP_SYS_ADMIN, or as root: frame numbers require this";
    let explain_absence = |absence: Absence| address_space::explain_absence(absence, hint);
    let root = reader.root();
    let name = reader.read_line(&paths::process_file(pid, "comm")).map_err(explain_absence)?;
    let start_ticks = start_time(reader, pid);
    let smaps_path = paths::process_file(pid, "smaps");
    let mappings_before = reader.parse(&smaps_path, smaps::parse).map_err(explain_absence)?;
    let pagemap_path = paths::process_file(pid, "pagemap");
    let empty = ProcessMap {
        pid,
        name: Some(name),
        page_size,
        pmd_order,
        mappings: Vec::new(),
        folios_known: Ok(()),
        inconsistency: ScanInconsistency::default(),
        read_ns: 0,
    };
    // A kernel thread or a zombie.
    if mappings_before.is_empty() {
        return Ok(empty);
    }
    let pagemap = root.open_regular_file(&pagemap_path).map_err(explain_absence)?;
    let (flags, folios_known) = match root.open_regular_file(paths::KPAGEFLAGS) {
        Ok(file) => (Some(file), Ok(())),
        Err(absence) => (None, Err(absence)),
    };
    let mut scanner = MappingScanner {
        pagemap,
        kpageflags: flags,
        page_size,
        pmd_order,
        has_pagemap_scan: true,
        entry_buffer: Vec::new(),
        flag_buffer: Vec::new(),
    };
    let mut mappings = Vec::with_capacity(mappings_before.len());
    let mut ended = false;
    for mapping in mappings_before {
        let behind = match scanner.scan_mapping(&mapping) {
            // An exited process has no memory: reading its pagemap returns nothing or this error.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {
                ended = true;
                PhysicalBacking::new()
            }
            behind => behind.map_err(|error| root.absence(&pagemap_path, &error))?,
        };
        mappings.push(MappingBacking { mapping, backing: behind });
    }
    let after = reader.parse(&smaps_path, smaps::parse);
    ended |= after.as_ref().map_or(true, Vec::is_empty) && !mappings.is_empty();
    ended |= start_time(reader, pid) != start_ticks;
    let inconsistency = detect_inconsistency(&mappings, after.as_ref().ok(), ended);
    let read_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let map = ProcessMap { mappings, folios_known, inconsistency, read_ns, ..empty };
    refuse_hidden(map, root.display_path(&pagemap_path))
}

/// An observation without a visible frame is an absence.
fn refuse_hidden(map: ProcessMap, source: String) -> Reading<ProcessMap> {
    let (mut present, mut hidden) = (0, 0);
    for mapping in &map.mappings {
        present += mapping.backing.present;
        hidden += mapping.backing.hidden_pages;
    }
    if hidden > 0 && hidden == present {
        let detail = format!("the kernel hides the frame numbers of all {present} present pages");
        let hint = "run as root, or with CAP_SYS_ADMIN in the initial user namespace";
        return Err(Absence::new(source, AbsenceReason::NotPermitted, detail).with_hint(hint));
    }
    Ok(map)
}

/// When the process started, in ticks since boot.
fn start_time(reader: &Reader<'_>, pid: u32) -> Option<u64> {
    reader.parse(&paths::process_stat_file(pid), process_status::parse_stat).ok().map(|stat| stat.start_ticks)
}

fn total_resident<'m>(mappings: impl Iterator<Item = &'m Mapping>) -> Bytes {
    Bytes::from_kib(mappings.filter_map(|mapping| mapping.fields_kib.get("Rss")).fold(0, u64::saturating_add))
}

fn detect_inconsistency(
    before: &[MappingBacking],
    after: Option<&Vec<Mapping>>,
    ended: bool,
) -> ScanInconsistency {
    let place = |mapping: &Mapping| (mapping.start, mapping.end, mapping.permissions.clone(), mapping.inode);
    let now: std::collections::HashSet<_> = after.into_iter().flatten().map(place).collect();
    let changed = before.iter().filter(|mapping| !now.contains(&place(&mapping.mapping))).count();
    ScanInconsistency {
        mappings_changed: if after.is_some() { changed as u64 } else { 0 },
        resident_before: total_resident(before.iter().map(|mapping| &mapping.mapping)),
        resident_after: after.map(|after| total_resident(after.iter())),
        has_ended: ended,
    }
}

/// Open files for reading a process.
struct MappingScanner {
    pagemap: File,
    kpageflags: Option<File>,
    page_size: PageSize,
    pmd_order: Order,
    /// Whether PAGEMAP_SCAN is assumed to exist.
    has_pagemap_scan: bool,
    /// Bytes of the entries of a stretch.
    entry_buffer: Vec<u8>,
    /// Flags of the frames of a run.
    flag_buffer: Vec<u8>,
}

impl MappingScanner {
    fn scan_mapping(&mut self, mapping: &Mapping) -> io::Result<PhysicalBacking> {
        let mut behind = PhysicalBacking::new();
        for range in self.find_populated(mapping)? {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + CHUNK_PAGES);
                self.scan_range(at..end, &mut behind)?;
                at = end;
            }
        }
        Ok(behind)
    }

    /// Pages of a mapping to read. Address space is often reserved by the terabyte; before 6.7 a mapping
    /// without resident memory or swap is passed over, and others are read whole.
    fn find_populated(&mut self, mapping: &Mapping) -> io::Result<Vec<PageRange>> {
        let size = self.page_size.bytes();
        if self.has_pagemap_scan {
            let mut ranges = Vec::new();
            let take = |range: Range<u64>| ranges.push(range.start / size..range.end.div_ceil(size));
            match pagemap_scan::for_each_populated(&self.pagemap, mapping.start..mapping.end, take) {
                Ok(()) => return Ok(ranges),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => {
                    self.has_pagemap_scan = false;
                }
                // An address outside of task memory, such as vsyscall.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::FAULT) => {
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            }
        }
        let has = |field: &str| mapping.fields_kib.get(field).is_none_or(|kib| kib > 0);
        let has_any =
            has("Rss") || has("Swap") || mapping.fields_kib.get("Private_Hugetlb").is_some_and(|k| k > 0);
        let whole = mapping.start / size..mapping.end / size;
        Ok(if has_any { vec![whole] } else { Vec::new() })
    }

    fn scan_range(&mut self, pages: PageRange, behind: &mut PhysicalBacking) -> io::Result<()> {
        let entries = read_entries(&self.pagemap, &pages, &mut self.entry_buffer)?;
        let mut index = 0;
        let mut entries_found = Vec::new();
        while index < entries.len() {
            let run = run_length(&entries, index);
            if let Some(frame) = entries[index].pfn() {
                let mut own = PhysicalBacking::new();
                self.count_run(pages.start + index as u64, frame.0, run as u64, &mut own)?;
                entries_found.push((index..index + run, own));
            }
            let of_run = &entries[index..index + run];
            behind.swapped += of_run.iter().filter(|entry| entry.is_swapped()).count() as u64;
            let hidden = |entry: &&PagemapEntry| entry.is_present() && entry.pfn().is_none();
            let hidden = of_run.iter().filter(hidden).count() as u64;
            (behind.hidden_pages, behind.present) = (behind.hidden_pages + hidden, behind.present + hidden);
            index += run;
        }
        let now = read_entries(&self.pagemap, &pages, &mut self.entry_buffer)?;
        for (run, own) in entries_found {
            let frames = |entries: &[PagemapEntry]| -> Option<Vec<_>> {
                Some(entries.get(run.clone())?.iter().map(|entry| entry.pfn()).collect())
            };
            behind.present += run.len() as u64;
            match frames(&entries) == frames(&now) {
                true => behind.merge(&own),
                false => behind.changed_pages += run.len() as u64,
            }
        }
        Ok(())
    }

    /// Counts one run of frames and the folios in it.
    fn count_run(
        &mut self,
        page: u64,
        frame: u64,
        pages: u64,
        behind: &mut PhysicalBacking,
    ) -> io::Result<()> {
        let Some(file) = &self.kpageflags else {
            behind.add_run(page, frame, pages);
            return Ok(());
        };
        // One more page, to detect whether the last folio continues.
        let flags = read_flags(file, frame, pages + 1, &mut self.flag_buffer)?;
        if flags.first().is_some_and(|flags| flags.has_any(PageFlags::ZERO_PAGE)) {
            behind.zero_pages += pages;
            return Ok(());
        }
        behind.add_run(page, frame, pages);
        let mut at = 0;
        while at < pages {
            let (order, own) = self.find_folio(file, frame, at, pages, &flags)?;
            match order {
                Some(order) => behind.add_folio(order, own),
                None => behind.other_compound_pages += own,
            }
            at += own.max(1);
        }
        Ok(())
    }

    /// The order of the folio that page `index` of a run belongs to, and how many pages of the run do from
    /// there on. `None` if it is not a folio of 2^n pages.
    fn find_folio(
        &self,
        file: &File,
        frame: u64,
        index: u64,
        pages: u64,
        flags: &[PageFlags],
    ) -> io::Result<(Option<Order>, u64)> {
        let of =
            |at: u64| usize::try_from(at).ok().and_then(|at| flags.get(at)).copied().unwrap_or(PageFlags(0));
        let is_tail = |flags: PageFlags| flags.has_any(PageFlags::COMPOUND_TAIL);
        if !of(index).has_any(PageFlags::COMPOUND_HEAD) && !is_tail(of(index)) {
            return Ok((Some(Order(0)), 1));
        }
        let tails = |from: u64| (from..pages).take_while(|&at| is_tail(of(at))).count() as u64;
        let pages_here = if is_tail(of(index)) { tails(index) } else { 1 + tails(index + 1) };
        // The pages before and after the run belong to the folio too. A folio is aligned to its size.
        let order_max = 1u64 << self.folio_order_max(of(index)).0;
        let head = match is_tail(of(index)) {
            false => frame + index,
            true => {
                let low = (frame + index) / order_max * order_max;
                let before = read_flags(file, low, frame + index - low, &mut Vec::new())?;
                let tails = before.iter().rev().take_while(|flags| is_tail(**flags)).count() as u64;
                (frame + index).saturating_sub(tails + 1)
            }
        };
        let mut end = frame + index + pages_here;
        if index + pages_here == pages && is_tail(of(pages)) {
            let high = (end / order_max + 1) * order_max;
            let behind = read_flags(file, end, high - end, &mut Vec::new())?;
            end += behind.iter().take_while(|flags| is_tail(**flags)).count() as u64;
        }
        let size = end - head;
        let order = Order(u8::try_from(size.trailing_zeros()).unwrap_or(u8::MAX));
        Ok((size.is_power_of_two().then_some(order), pages_here))
    }

    /// The largest order that a folio with these flags may have: transparent ones end at PMD size.
    fn folio_order_max(&self, flags: PageFlags) -> Order {
        if flags.has_any(PageFlags::HUGE) { Order(self.pmd_order.0 * 2) } else { self.pmd_order }
    }
}

/// The length of the run of entries from `start` on: frames that follow each other, or pages without a frame.
fn run_length(entries: &[PagemapEntry], start: usize) -> usize {
    let first = entries[start].pfn();
    let follows = |(index, entry): &(usize, &PagemapEntry)| match (first, entry.pfn()) {
        (Some(first), Some(frame)) => frame.0 == first.0 + *index as u64,
        (None, None) => true,
        _ => false,
    };
    entries[start..].iter().enumerate().take_while(follows).count().max(1)
}

/// Entries of these pages; fewer than requested at the end of the address space.
fn read_entries(pagemap: &File, pages: &PageRange, buffer: &mut Vec<u8>) -> io::Result<Vec<PagemapEntry>> {
    Ok(read_words(pagemap, pages.start, pages.end - pages.start, buffer)?.map(PagemapEntry).collect())
}

fn read_flags(file: &File, first: u64, count: u64, buffer: &mut Vec<u8>) -> io::Result<Vec<PageFlags>> {
    Ok(read_words(file, first, count, buffer)?.map(PageFlags).collect())
}

/// Up to `count` words of 64 bits from word `first` on, until the file ends.
fn read_words(
    file: &File,
    first: u64,
    count: u64,
    buffer: &mut Vec<u8>,
) -> io::Result<impl Iterator<Item = u64>> {
    const WORD_BYTES: usize = size_of::<u64>();
    buffer.resize(usize::try_from(count).unwrap_or(0).saturating_mul(WORD_BYTES), 0);
    let offset = first.saturating_mul(WORD_BYTES as u64);
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let (words, _) = buffer[..filled].as_chunks::<WORD_BYTES>();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)))
}

#[cfg(test)]
#[path = "process_map_tests.rs"]
mod tests;
