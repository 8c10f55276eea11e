//! Bytes mapped by the huge page of zeros, which no file of smaps shows.
//!
//! PAGEMAP_SCAN (6.7) tells which addresses huge pages map. Whether it is the page of zeros, kernels tell
//! from 6.17 on; earlier ones compare it with the small page of zeros. There its frame is looked up in
//! kpageflags, and before 6.7 that of every place for a huge page. Which of these holds is tried out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pagelab_formats::maps::{self, Map};
use pagelab_formats::pagemap::PagemapEntry;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsentWhy, Bytes, PageFlags, PageSize, Pfn, Reading};
use pagelab_sys::map::{Advice, Mapping};
use pagelab_sys::pagemap_scan::huge_parts;
use rustix::io::Errno;

use super::tree::Process;

/// Bytes of an entry of pagemap and of kpageflags.
const ENTRY_BYTES: u64 = 8;

/// Places for huge pages that are looked at one by one in each process: some milliseconds' worth.
const PLACES_MAX: u64 = 8192;

/// How the page of zeros is told.
#[derive(Debug, Default)]
pub(super) struct Zero {
    page: Option<PageSize>,
    pmd: Bytes,
    kernel_tells: bool,
    /// For kernels that do not tell; root's.
    kpageflags: Option<Reading<File>>,
    /// Bytes of files, shared memory and shared pools in huge pages that the last look met, where it could
    /// see them.
    pub file_bytes: Option<u64>,
    /// Frames that were looked up, and whether they are the page of zeros.
    frames: BTreeMap<Pfn, bool>,
}

impl Zero {
    pub(super) fn prepare(root: &Root, page: PageSize, pmd: Bytes) -> Zero {
        let kernel_tells = kernel_tells(root, pmd) == Some(true);
        let kpageflags = (!kernel_tells).then(|| root.file(paths::KPAGEFLAGS));
        Zero { page: Some(page), pmd, kernel_tells, kpageflags, file_bytes: None, frames: BTreeMap::new() }
    }

    pub(super) fn source(&self) -> &'static str {
        match self.kernel_tells {
            true => "PAGEMAP_SCAN, summed over its processes",
            false => "PAGEMAP_SCAN (6.7), pagemap and kpageflags, summed over its processes",
        }
    }

    /// Bytes of all processes that the page of zeros maps. One that has ended meanwhile has none.
    pub(super) fn bytes(&mut self, root: &Root, processes: &[Process]) -> Reading<u64> {
        let mut sum = 0;
        self.file_bytes = Some(0);
        for process in processes {
            let path = paths::process(process.pid, "pagemap");
            let pagemap = match root.file(&path) {
                Ok(pagemap) => pagemap,
                Err(absence) if absence.why == AbsentWhy::NotPermitted => return Err(absence),
                Err(_) => continue,
            };
            let found = match self.of(&pagemap, user_addresses()) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => {
                    self.file_bytes = None;
                    self.by_maps(root, process.pid, &pagemap)
                }
                found => found,
            };
            sum += found.map_err(|error| refused(&path, &error))?;
        }
        Ok(sum)
    }

    fn of(&mut self, pagemap: &File, addresses: Range<u64>) -> io::Result<u64> {
        let (mut sum, mut file, mut unsure) = (0, 0, Vec::new());
        huge_parts(pagemap, addresses, |part| {
            if part.is_zero {
                sum += part.addresses.end.saturating_sub(part.addresses.start);
            } else if part.is_file {
                file += part.addresses.end.saturating_sub(part.addresses.start);
            } else {
                unsure.push(part.addresses);
            }
        })?;
        self.file_bytes = self.file_bytes.map(|bytes| bytes + file);
        if !self.kernel_tells {
            for part in unsure {
                sum += self.by_frames(pagemap, part)?;
            }
        }
        Ok(sum)
    }

    /// Looks up the first frame of each place for a huge page, on kernels without PAGEMAP_SCAN.
    fn by_maps(&mut self, root: &Root, pid: u32, pagemap: &File) -> io::Result<u64> {
        let pmd = self.pmd.0.max(1);
        let maps = root.read(&paths::process(pid, "maps")).unwrap_or_default();
        let places = |map: &Map| {
            let start = map.start.checked_next_multiple_of(pmd).unwrap_or(u64::MAX);
            start..map.end / pmd * pmd
        };
        let places: Vec<Range<u64>> = maps::parse(&maps).unwrap_or_default().iter().map(places).collect();
        if places.iter().map(|place| place.end.saturating_sub(place.start) / pmd).sum::<u64>() > PLACES_MAX {
            return Err(io::Error::other(
                "it has more places for huge pages than can be looked at one by one",
            ));
        }
        places.into_iter().try_fold(0, |sum, place| Ok(sum + self.by_frames(pagemap, place)?))
    }

    /// Looks each huge page's first frame up.
    fn by_frames(&mut self, pagemap: &File, part: Range<u64>) -> io::Result<u64> {
        let Some(page) = self.page else { return Ok(0) };
        let pmd = self.pmd.0.max(page.bytes());
        let mut sum = 0;
        for address in part.step_by(usize::try_from(pmd).unwrap_or(usize::MAX)) {
            // Gone meanwhile where nothing is there to read.
            let entry = word_at(pagemap, address / page.bytes())?.map(PagemapEntry);
            let Some(entry) = entry.filter(|entry| entry.is_present()) else { continue };
            let Some(frame) = entry.frame() else {
                return Err(io::ErrorKind::PermissionDenied.into());
            };
            let is_zero = match self.frames.get(&frame) {
                Some(&is_zero) => is_zero,
                None => {
                    let is_zero = self.is_zero(frame)?;
                    self.frames.insert(frame, is_zero);
                    is_zero
                }
            };
            sum += if is_zero { pmd } else { 0 };
        }
        // A frame may be something else by the next look.
        self.frames.clear();
        Ok(sum)
    }

    fn is_zero(&self, frame: Pfn) -> io::Result<bool> {
        match &self.kpageflags {
            Some(Ok(file)) => {
                // The small page of zeros is no THP (fs/proc/page.c, `stable_page_flags`).
                let both = [PageFlags::ZERO_PAGE, PageFlags::THP];
                Ok(word_at(file, frame.0)?
                    .is_some_and(|flags| both.iter().all(|&flag| PageFlags(flags).has(flag))))
            }
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

fn word_at(file: &File, index: u64) -> io::Result<Option<u64>> {
    let mut word = [0; ENTRY_BYTES as usize];
    match file.read_exact_at(&mut word, index.saturating_mul(ENTRY_BYTES)) {
        Ok(()) => Ok(Some(u64::from_ne_bytes(word))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// The addresses that a program can have without asking for more: up to the power of two above its stack,
/// less one page, which x86 keeps unused. What asks for more (five levels of page tables and a hint) is not
/// looked at.
fn user_addresses() -> Range<u64> {
    let here = 0u8;
    let stack = (&raw const here).addr() as u64;
    0..stack.next_power_of_two().saturating_sub(rustix::param::page_size() as u64)
}

/// Whether the kernel calls the huge page of zeros by its name: tried out on memory that is only read. `None`
/// where no such page came, because huge pages or it are switched off.
fn kernel_tells(root: &Root, pmd: Bytes) -> Option<bool> {
    let mut memory = Mapping::anonymous(pmd, pmd).ok()?;
    memory.advise(0..pmd.0, Advice::HugePage).ok()?;
    memory.touch_for_reading(0..pmd.0).ok()?;
    let pagemap = root.file(paths::SELF_PAGEMAP).ok()?;
    let mut tells = None;
    huge_parts(&pagemap, memory.addresses(), |part| tells = Some(part.is_zero)).ok()?;
    tells
}

fn refused(path: &str, error: &io::Error) -> Absence {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let detail = "this kernel does not tell the huge page of zeros, and kpageflags is root's";
            Absence::new(paths::KPAGEFLAGS, AbsentWhy::NotPermitted, detail)
                .or("run as root, or Linux 6.17 or later")
        }
        _ => Absence::new(path, AbsentWhy::Failed, error.to_string()),
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
        memory.touch(0..2 * pmd.0).unwrap();
        memory.touch_for_reading(4 * pmd.0..7 * pmd.0).unwrap();
        let pagemap = root.file(paths::SELF_PAGEMAP).unwrap();
        let mut huge = 0;
        let scanned = huge_parts(&pagemap, memory.addresses(), |part| {
            huge += part.addresses.end - part.addresses.start;
        });
        let mut zero = Zero::prepare(&root, page, pmd);
        if scanned.is_err() || huge != 5 * pmd.0 || !zero.kernel_tells {
            println!("skipped: no-huge-zero-page: {huge} bytes in huge pages, of 5 of {}", pmd.0);
            return;
        }
        assert_eq!(zero.of(&pagemap, memory.addresses()).unwrap(), 3 * pmd.0);
        // The way of kernels before 6.17, of which the result must be the same.
        zero.kernel_tells = false;
        zero.kpageflags = Some(root.file(paths::KPAGEFLAGS));
        let mut sum = 0;
        for at in memory.addresses().step_by(pmd.0 as usize) {
            match zero.by_frames(&pagemap, at..at + pmd.0) {
                Ok(bytes) => sum += bytes,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(sum, 3 * pmd.0);
        let by_maps = zero.by_maps(&root, std::process::id(), &pagemap).unwrap();
        assert!((3 * pmd.0..=4 * pmd.0).contains(&by_maps), "another test may have one too: {by_maps}");
        let whole = zero.bytes(&root, &[Process { pid: std::process::id(), ..Process::default() }]).unwrap();
        assert!(whole >= 3 * pmd.0, "{whole}");
    }
}
