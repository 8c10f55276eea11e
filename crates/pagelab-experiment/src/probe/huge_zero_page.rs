//! Bytes mapped by the huge zero page, which no file of smaps shows.
//!
//! PAGEMAP_SCAN (6.7) reports which addresses huge pages map. Kernels from 6.17 on report whether it is the
//! huge zero page; earlier ones compare it with the small zero page. On those, pagelab looks up its frame in
//! kpageflags, before 6.7 the frame of every aligned huge page range. A test selects the method.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagelab_formats::maps::{self, MapsEntry};
use pagelab_formats::pagemap::PagemapEntry;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsenceReason, Bytes, PageFlags, PageSize, Pfn, Reading};
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::pagemap_scan::for_each_huge_range;
use rustix::io::Errno;

use super::process_tree::ProcessSample;

/// Size of an entry of pagemap and of kpageflags.
const ENTRY_BYTES: u64 = 8;

/// Maximum number of huge page ranges that are read one by one in each process: some milliseconds.
const CANDIDATES_MAX: u64 = 8192;

/// Method that recognises the huge zero page.
#[derive(Debug, Default)]
pub(super) struct ZeroPageProbe {
    page_size: Option<PageSize>,
    pmd_size: Bytes,
    has_kernel_category: bool,
    /// For kernels that do not report it; needs root.
    kpageflags: Option<Reading<File>>,
    /// Bytes of files, shared memory and shared pools in huge pages of the last reading, if known.
    pub file_huge_bytes: Option<u64>,
    /// Frames that were looked up, and whether they are the huge zero page.
    frame_cache: BTreeMap<Pfn, bool>,
}

impl ZeroPageProbe {
    pub(super) fn prepare(root: &Root, page_size: PageSize, pmd_size: Bytes) -> ZeroPageProbe {
        let kernel_tells = detect_kernel_category(root, pmd_size) == Some(true);
        let kpageflags = (!kernel_tells).then(|| root.open_regular_file(paths::KPAGEFLAGS));
        ZeroPageProbe {
            page_size: Some(page_size),
            pmd_size,
            has_kernel_category: kernel_tells,
            kpageflags,
            file_huge_bytes: None,
            frame_cache: BTreeMap::new(),
        }
    }

    pub(super) fn source(&self) -> &'static str {
        match self.has_kernel_category {
            true => "PAGEMAP_SCAN, summed over its processes",
            false => "PAGEMAP_SCAN (6.7), pagemap and kpageflags, summed over its processes",
        }
    }

    /// Bytes of all processes that the huge zero page maps. A process that has ended counts as 0.
    pub(super) fn count_zero_bytes(&mut self, root: &Root, processes: &[ProcessSample]) -> Reading<u64> {
        let mut sum = 0;
        self.file_huge_bytes = Some(0);
        for process in processes {
            let path = paths::process_file(process.pid, "pagemap");
            let pagemap = match root.open_regular_file(&path) {
                Ok(pagemap) => pagemap,
                Err(absence) if absence.why == AbsenceReason::NotPermitted => return Err(absence),
                Err(_) => continue,
            };
            let found = match self.count_in_range(&pagemap, user_address_range()) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => {
                    self.file_huge_bytes = None;
                    self.count_by_maps(root, process.pid, &pagemap)
                }
                found => found,
            };
            sum += found.map_err(|error| read_absence(&path, &error))?;
        }
        Ok(sum)
    }

    fn count_in_range(&mut self, pagemap: &File, addresses: Range<u64>) -> io::Result<u64> {
        let (mut sum, mut file, mut undecided) = (0, 0, Vec::new());
        for_each_huge_range(pagemap, addresses, |part| {
            if part.is_zero {
                sum += part.addresses.end.saturating_sub(part.addresses.start);
            } else if part.is_file {
                file += part.addresses.end.saturating_sub(part.addresses.start);
            } else {
                undecided.push(part.addresses);
            }
        })?;
        self.file_huge_bytes = self.file_huge_bytes.map(|bytes| bytes + file);
        if !self.has_kernel_category {
            for range in undecided {
                sum += self.count_by_frames(pagemap, range)?;
            }
        }
        Ok(sum)
    }

    /// Looks up the first frame of each aligned huge page range, on kernels without PAGEMAP_SCAN.
    fn count_by_maps(&mut self, root: &Root, pid: u32, pagemap: &File) -> io::Result<u64> {
        let pmd = self.pmd_size.0.max(1);
        let maps = root.read(&paths::process_file(pid, "maps")).unwrap_or_default();
        let candidates_of = |map: &MapsEntry| {
            let start = map.start.checked_next_multiple_of(pmd).unwrap_or(u64::MAX);
            start..map.end / pmd * pmd
        };
        let candidates: Vec<Range<u64>> =
            maps::parse(&maps).unwrap_or_default().iter().map(candidates_of).collect();
        if candidates.iter().map(|place| place.end.saturating_sub(place.start) / pmd).sum::<u64>()
            > CANDIDATES_MAX
        {
            return Err(io::Error::other("it has too many candidate huge pages to check"));
        }
        candidates.into_iter().try_fold(0, |sum, place| Ok(sum + self.count_by_frames(pagemap, place)?))
    }

    /// Looks up the first frame of each huge page.
    fn count_by_frames(&mut self, pagemap: &File, range: Range<u64>) -> io::Result<u64> {
        let Some(page) = self.page_size else { return Ok(0) };
        let pmd = self.pmd_size.0.max(page.bytes());
        let mut sum = 0;
        for address in range.step_by(usize::try_from(pmd).unwrap_or(usize::MAX)) {
            // If there is nothing to read, the process has exited.
            let entry = read_word_at(pagemap, address / page.bytes())?.map(PagemapEntry);
            let Some(entry) = entry.filter(|entry| entry.is_present()) else { continue };
            let Some(frame) = entry.pfn() else {
                return Err(io::ErrorKind::PermissionDenied.into());
            };
            let is_zero = match self.frame_cache.get(&frame) {
                Some(&is_zero) => is_zero,
                None => {
                    let is_zero = self.is_zero_page(frame)?;
                    self.frame_cache.insert(frame, is_zero);
                    is_zero
                }
            };
            sum += if is_zero { pmd } else { 0 };
        }
        // A frame may have another use at the next reading.
        self.frame_cache.clear();
        Ok(sum)
    }

    fn is_zero_page(&self, frame: Pfn) -> io::Result<bool> {
        match &self.kpageflags {
            Some(Ok(file)) => {
                // The small zero page is not a THP (fs/proc/page.c, `stable_page_flags`).
                let head_and_tail = [PageFlags::ZERO_PAGE, PageFlags::THP];
                Ok(read_word_at(file, frame.0)?
                    .is_some_and(|flags| head_and_tail.iter().all(|&flag| PageFlags(flags).has_any(flag))))
            }
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

fn read_word_at(file: &File, index: u64) -> io::Result<Option<u64>> {
    let mut word = [0; ENTRY_BYTES as usize];
    match file.read_exact_at(&mut word, index.saturating_mul(ENTRY_BYTES)) {
        Ok(()) => Ok(Some(u64::from_ne_bytes(word))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// The default address range of a program: up to the power of two above its stack, less one page, which x86
/// keeps unused. Addresses that need a hint (five levels of page tables) are not read.
fn user_address_range() -> Range<u64> {
    let stack_address = 0u8;
    let stack = (&raw const stack_address).addr() as u64;
    0..stack.next_power_of_two().saturating_sub(rustix::param::page_size() as u64)
}

/// Whether the kernel reports the huge zero page: tested on memory that is only read. `None` if no such page
/// was mapped, because huge pages or the huge zero page are disabled.
fn detect_kernel_category(root: &Root, pmd: Bytes) -> Option<bool> {
    let mut memory = Mapping::anonymous(pmd, pmd).ok()?;
    memory.advise(0..pmd.0, Advice::HugePage).ok()?;
    memory.touch_for_reading(0..pmd.0).ok()?;
    let pagemap = root.open_regular_file(paths::SELF_PAGEMAP).ok()?;
    let mut has_category = None;
    for_each_huge_range(&pagemap, memory.addresses(), |part| has_category = Some(part.is_zero)).ok()?;
    has_category
}

fn read_absence(path: &str, error: &io::Error) -> Absence {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let detail = "this kernel does not report the huge zero page, and kpageflags requires root";
            Absence::new(paths::KPAGEFLAGS, AbsenceReason::NotPermitted, detail)
                .with_hint("run as root, or use Linux 6.17 or later")
        }
        _ => Absence::new(path, AbsenceReason::Failed, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_host::machine::pmd_size;
    use pagelab_host::reader::Reader;

    #[test]
    fn both_ways_find_the_page_of_zeros_and_nothing_else() {
        let root = Root::live();
        let page = pagelab_host::machine::live_page_size().unwrap();
        let pmd = pmd_size(&Reader::new(&root), page);
        let mut memory = Mapping::anonymous(Bytes(8 * pmd.0), pmd).unwrap();
        let _ = memory.advise(0..8 * pmd.0, Advice::HugePage);
        memory.touch_for_writing(0..2 * pmd.0).unwrap();
        memory.touch_for_reading(4 * pmd.0..7 * pmd.0).unwrap();
        let pagemap = root.open_regular_file(paths::SELF_PAGEMAP).unwrap();
        let mut huge = 0;
        let scanned = for_each_huge_range(&pagemap, memory.addresses(), |part| {
            huge += part.addresses.end - part.addresses.start;
        });
        let mut zero = ZeroPageProbe::prepare(&root, page, pmd);
        if scanned.is_err() || huge != 5 * pmd.0 || !zero.has_kernel_category {
            println!("skipped: no-huge-zero-page: {huge} bytes in huge pages, of 5 of {}", pmd.0);
            return;
        }
        assert_eq!(zero.count_in_range(&pagemap, memory.addresses()).unwrap(), 3 * pmd.0);
        // The method of kernels before 6.17, whose result must be the same.
        zero.has_kernel_category = false;
        zero.kpageflags = Some(root.open_regular_file(paths::KPAGEFLAGS));
        let mut sum = 0;
        for at in memory.addresses().step_by(pmd.0 as usize) {
            match zero.count_by_frames(&pagemap, at..at + pmd.0) {
                Ok(bytes) => sum += bytes,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(sum, 3 * pmd.0);
        let by_maps = zero.count_by_maps(&root, std::process::id(), &pagemap).unwrap();
        assert!((3 * pmd.0..=4 * pmd.0).contains(&by_maps), "another test may have one too: {by_maps}");
        let whole = zero
            .count_zero_bytes(&root, &[ProcessSample { pid: std::process::id(), ..ProcessSample::default() }])
            .unwrap();
        assert!(whole >= 3 * pmd.0, "{whole}");
    }
}
