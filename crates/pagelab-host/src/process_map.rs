//! What lies behind one process's mappings: pagemap for the frames, kpageflags for the folios.
//!
//! The process goes on while it is looked at. Each stretch of pagemap is read before and after the flags of
//! its frames, and pages whose entry changed in between are left out and counted; the mappings are read
//! before and after all of it, and so is the start time, since a process id may be given anew.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use pagelab_formats::pagemap::{self, PagemapEntry};
use pagelab_formats::{process_stat, smaps};
use pagelab_model::process::Mapping;
use pagelab_model::process_map::{Behind, MappingMap, ProcessMap, Tear};
use pagelab_model::{Absence, AbsentWhy, Bytes, Order, PageFlags, PageSize, Reading};
use pagelab_sys::pagemap_scan;

use crate::paths;
use crate::reader::Reader;

/// Pages whose entries are read at a time.
const CHUNK_PAGES: u64 = 1 << 15;

/// A stretch of page numbers of the address space.
type PageRange = Range<u64>;

/// Looks behind the mappings of a process of this machine.
pub fn read(reader: &Reader<'_>, pid: u32, page_size: PageSize, pmd_order: Order) -> Reading<ProcessMap> {
    let begun = Instant::now();
    let gone = |absence: Absence| match absence.why {
        AbsentWhy::NotThere => Absence { detail: "there is no such process".to_owned(), ..absence }
            .or("`ps -e` and `pgrep NAME` list those there are"),
        AbsentWhy::NotPermitted => {
            absence.or("run as its owner with CAP_SYS_ADMIN, or as root: frame numbers are for these only")
        }
        _ => absence,
    };
    let root = reader.root();
    let name = reader.line(&paths::process(pid, "comm")).map_err(gone)?;
    let started = start_time(reader, pid);
    let smaps_path = paths::process(pid, "smaps");
    let before = reader.parse(&smaps_path, smaps::parse).map_err(gone)?;
    let pagemap_path = paths::process(pid, "pagemap");
    if before.is_empty() {
        return Ok(without_memory(pid, name, page_size, pmd_order));
    }
    let pagemap = root.file(&pagemap_path).map_err(gone)?;
    let (flags, folios_known) = match root.file(paths::KPAGEFLAGS) {
        Ok(file) => (Some(file), Ok(())),
        Err(absence) => (None, Err(absence)),
    };
    let mut look = Look {
        pagemap,
        flags,
        page_size,
        pmd_order,
        has_scan: true,
        entries: (Vec::new(), Vec::new()),
        words: Vec::new(),
    };
    let mut mappings = Vec::with_capacity(before.len());
    let mut ended = false;
    for mapping in before {
        let behind = match look.behind(&mapping) {
            // A process that has ended has no memory: reading its pagemap gives nothing or this error.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                ended = true;
                Behind::new()
            }
            behind => behind.map_err(|error| root.absence(&pagemap_path, &error))?,
        };
        mappings.push(MappingMap { mapping, behind });
    }
    let after = reader.parse(&smaps_path, smaps::parse);
    ended |= after.as_ref().map_or(true, Vec::is_empty) && !mappings.is_empty();
    ended |= start_time(reader, pid) != started;
    let tear = tear(&mappings, after.as_ref().ok(), ended);
    let read_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let map =
        ProcessMap { pid, name: Some(name), page_size, pmd_order, mappings, folios_known, tear, read_ns };
    refuse_hidden(map, root.show(&pagemap_path))
}

/// A kernel thread, or a process that has ended and was not waited for.
fn without_memory(pid: u32, name: String, page_size: PageSize, pmd_order: Order) -> ProcessMap {
    let (mappings, tear) = (Vec::new(), Tear::default());
    ProcessMap {
        pid,
        name: Some(name),
        page_size,
        pmd_order,
        mappings,
        folios_known: Ok(()),
        tear,
        read_ns: 0,
    }
}

/// A look in which no frame could be seen is none.
fn refuse_hidden(map: ProcessMap, source: String) -> Reading<ProcessMap> {
    let (mut present, mut hidden) = (0, 0);
    for mapping in &map.mappings {
        present += mapping.behind.present;
        hidden += mapping.behind.hidden;
    }
    if hidden > 0 && hidden == present {
        let detail = format!("the kernel hides the frame numbers of all {present} present pages");
        let way_out = "run with CAP_SYS_ADMIN in the first user namespace, such as by root";
        return Err(Absence::new(source, AbsentWhy::NotPermitted, detail).or(way_out));
    }
    Ok(map)
}

/// When the process started, in ticks since boot.
fn start_time(reader: &Reader<'_>, pid: u32) -> Option<u64> {
    reader.parse(&paths::process_stat(pid), process_stat::parse).ok().map(|stat| stat.start_ticks)
}

fn resident<'m>(mappings: impl Iterator<Item = &'m Mapping>) -> Bytes {
    Bytes::from_kib(mappings.filter_map(|mapping| mapping.fields_kib.get("Rss")).fold(0, u64::saturating_add))
}

fn tear(before: &[MappingMap], after: Option<&Vec<Mapping>>, ended: bool) -> Tear {
    let place = |mapping: &Mapping| (mapping.start, mapping.end, mapping.permissions.clone(), mapping.inode);
    let now: std::collections::HashSet<_> = after.into_iter().flatten().map(place).collect();
    let changed = before.iter().filter(|mapping| !now.contains(&place(&mapping.mapping))).count();
    Tear {
        mappings_changed: if after.is_some() { changed as u64 } else { 0 },
        resident_before: resident(before.iter().map(|mapping| &mapping.mapping)),
        resident_after: after.map(|after| resident(after.iter())),
        ended,
    }
}

/// What is needed to look at a process.
struct Look {
    pagemap: File,
    flags: Option<File>,
    page_size: PageSize,
    pmd_order: Order,
    /// Whether PAGEMAP_SCAN is believed to be there.
    has_scan: bool,
    /// Entries of a stretch, read before and after the flags of its frames.
    entries: (Vec<u8>, Vec<u8>),
    /// Flags of the frames of a run.
    words: Vec<u8>,
}

impl Look {
    fn behind(&mut self, mapping: &Mapping) -> io::Result<Behind> {
        let mut behind = Behind::new();
        for range in self.populated(mapping)? {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + CHUNK_PAGES);
                self.stretch(at..end, &mut behind)?;
                at = end;
            }
        }
        Ok(behind)
    }

    /// The pages of a mapping that are worth a look. Address space is often reserved by the terabyte; before
    /// 6.7 a mapping without resident memory or swap is passed over, and others are read whole.
    fn populated(&mut self, mapping: &Mapping) -> io::Result<Vec<PageRange>> {
        let size = self.page_size.bytes();
        if self.has_scan {
            let mut ranges = Vec::new();
            let take = |range: Range<u64>| ranges.push(range.start / size..range.end.div_ceil(size));
            match pagemap_scan::populated(&self.pagemap, mapping.start..mapping.end, take) {
                Ok(()) => return Ok(ranges),
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error()) => {
                    self.has_scan = false;
                }
                // An address beyond what tasks have, such as vsyscall.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error()) => {
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

    fn stretch(&mut self, pages: PageRange, behind: &mut Behind) -> io::Result<()> {
        let (mut first, mut second) = std::mem::take(&mut self.entries);
        let read = read_entries(&self.pagemap, &pages, &mut first)?;
        let entries: Vec<PagemapEntry> =
            pagemap::entries(&first[..read]).map(Iterator::collect).unwrap_or_default();
        let mut at = 0;
        let mut found = Vec::new();
        while at < entries.len() {
            let run = run_from(&entries, at);
            if let Some(frame) = entries[at].frame() {
                let mut own = Behind::new();
                self.run(pages.start + at as u64, frame.0, run as u64, &mut own)?;
                found.push((at..at + run, own));
            }
            behind.swapped += entries[at..at + run].iter().filter(|entry| entry.is_swapped()).count() as u64;
            let hidden = |entry: &&PagemapEntry| entry.is_present() && entry.frame().is_none();
            let hidden = entries[at..at + run].iter().filter(hidden).count() as u64;
            (behind.hidden, behind.present) = (behind.hidden + hidden, behind.present + hidden);
            at += run;
        }
        let read = read_entries(&self.pagemap, &pages, &mut second)?;
        let now: Vec<PagemapEntry> =
            pagemap::entries(&second[..read]).map(Iterator::collect).unwrap_or_default();
        for (run, own) in found {
            let frames = |entries: &[PagemapEntry]| -> Option<Vec<_>> {
                Some(entries.get(run.clone())?.iter().map(|entry| entry.frame()).collect())
            };
            behind.present += run.len() as u64;
            match frames(&entries) == frames(&now) {
                true => behind.add(&own),
                false => behind.moved += run.len() as u64,
            }
        }
        self.entries = (first, second);
        Ok(())
    }

    /// Counts one run of frames and the folios in it.
    fn run(&mut self, page: u64, frame: u64, pages: u64, behind: &mut Behind) -> io::Result<()> {
        let Some(file) = &self.flags else {
            behind.add_run(page, frame, pages);
            return Ok(());
        };
        let mut words = std::mem::take(&mut self.words);
        // One more, to see whether the last folio goes on.
        let flags = read_flags(file, frame, pages + 1, &mut words)?;
        if flags.first().is_some_and(|flags| flags.has(PageFlags::ZERO_PAGE)) {
            behind.zero += pages;
            self.words = words;
            return Ok(());
        }
        behind.add_run(page, frame, pages);
        let mut at = 0;
        while at < pages {
            let (order, own) = self.folio(file, frame, at, pages, &flags)?;
            match order {
                Some(order) => behind.add_folio(order, own),
                None => behind.odd += own,
            }
            at += own.max(1);
        }
        self.words = words;
        Ok(())
    }

    /// The order of the folio that page `at` of a run belongs to, and how many pages of the run do from there
    /// on. `None` for what is no folio of 2^n pages.
    fn folio(
        &self,
        file: &File,
        frame: u64,
        at: u64,
        pages: u64,
        flags: &[PageFlags],
    ) -> io::Result<(Option<Order>, u64)> {
        let of =
            |at: u64| usize::try_from(at).ok().and_then(|at| flags.get(at)).copied().unwrap_or(PageFlags(0));
        let is_tail = |flags: PageFlags| flags.has(PageFlags::COMPOUND_TAIL);
        if !of(at).has(PageFlags::COMPOUND_HEAD) && !is_tail(of(at)) {
            return Ok((Some(Order(0)), 1));
        }
        let tails = |from: u64| (from..pages).take_while(|&at| is_tail(of(at))).count() as u64;
        let own = if is_tail(of(at)) { tails(at) } else { 1 + tails(at + 1) };
        // What is before and behind of the run belongs to the folio too. A folio is aligned to its size.
        let largest = 1u64 << self.largest(of(at)).0;
        let head = match is_tail(of(at)) {
            false => frame + at,
            true => {
                let low = (frame + at) / largest * largest;
                let before = read_flags(file, low, frame + at - low, &mut Vec::new())?;
                let tails = before.iter().rev().take_while(|flags| is_tail(**flags)).count() as u64;
                (frame + at).saturating_sub(tails + 1)
            }
        };
        let mut end = frame + at + own;
        if at + own == pages && is_tail(of(pages)) {
            let high = (end / largest + 1) * largest;
            let behind = read_flags(file, end, high - end, &mut Vec::new())?;
            end += behind.iter().take_while(|flags| is_tail(**flags)).count() as u64;
        }
        let size = end - head;
        let order = Order(u8::try_from(size.trailing_zeros()).unwrap_or(u8::MAX));
        Ok((size.is_power_of_two().then_some(order), own))
    }

    /// The largest order that a folio with these flags may have: transparent ones end at PMD size.
    fn largest(&self, flags: PageFlags) -> Order {
        if flags.has(PageFlags::HUGE) { Order(self.pmd_order.0 * 2) } else { self.pmd_order }
    }
}

/// The length of the run of entries from `at` on: frames that follow each other, or pages without a frame.
fn run_from(entries: &[PagemapEntry], at: usize) -> usize {
    let first = entries[at].frame();
    let follows = |(index, entry): &(usize, &PagemapEntry)| match (first, entry.frame()) {
        (Some(first), Some(frame)) => frame.0 == first.0 + *index as u64,
        (None, None) => true,
        _ => false,
    };
    entries[at..].iter().enumerate().take_while(follows).count().max(1)
}

/// Bytes of whole entries that were read; fewer than asked for where the address space ends.
fn read_entries(pagemap: &File, pages: &PageRange, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let bytes = (pages.end - pages.start) as usize * pagemap::ENTRY_BYTES;
    buffer.resize(buffer.len().max(bytes), 0);
    let read = read_at(pagemap, pages.start * pagemap::ENTRY_BYTES as u64, &mut buffer[..bytes])?;
    Ok(read / pagemap::ENTRY_BYTES * pagemap::ENTRY_BYTES)
}

fn read_flags(file: &File, first: u64, count: u64, buffer: &mut Vec<u8>) -> io::Result<Vec<PageFlags>> {
    const ENTRY: usize = pagelab_formats::kpageflags::ENTRY_BYTES;
    let bytes = usize::try_from(count).unwrap_or(0).saturating_mul(ENTRY);
    buffer.resize(bytes, 0);
    let read = read_at(file, first.saturating_mul(ENTRY as u64), buffer)?;
    let (words, _) = buffer[..read].as_chunks::<ENTRY>();
    Ok(words.iter().map(|word| PageFlags(u64::from_ne_bytes(*word))).collect())
}

/// Reads until the buffer is full or nothing comes.
fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
#[path = "process_map_tests.rs"]
mod tests;
