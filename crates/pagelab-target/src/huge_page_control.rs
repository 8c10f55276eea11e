//! Huge pages of a running process, made by MADV_COLLAPSE (process_madvise) and split by one cold page.
//!
//! Contents do not change. Results are verified: after each change the huge regions are read from the page
//! tables (PAGEMAP_SCAN, Linux 6.7).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pagelab_formats::{ParseError, process_status, smaps};
use pagelab_host::paths;
use pagelab_model::Failure;
use pagelab_sys::pagemap_scan::{for_each_huge_range, for_each_populated};

use crate::accessed::is_private_name;
use crate::advice::{self, RemoteAdvice};
use crate::process_failure::{cannot_open_process, no_such_process};
use crate::supervisor::shrink_to_pages;

/// A process whose huge pages are collapsed and split.
#[derive(Debug)]
pub struct HugePageController {
    pid: u32,
    handle: OwnedFd,
    pagemap: File,
    start_ticks: u64,
    page_bytes: u64,
    /// Bytes of a huge page.
    pub huge_bytes: u64,
    /// The regions that were huge at first.
    initially_huge: BTreeSet<u64>,
}

/// The result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeResult {
    /// Regions that are as they were to be, when they were read back.
    pub as_requested: usize,
    /// Regions that were to be huge and are not.
    pub not_huge: usize,
    /// Regions that were not to be huge and are.
    pub still_huge: usize,
    /// The kernel's errors, with their numbers.
    pub refused: BTreeMap<String, usize>,
}

impl ChangeResult {
    /// Reason why the result differs from the request; `None` if it does not.
    pub fn describe_failure(&self) -> Option<String> {
        if self.not_huge + self.still_huge == 0 {
            return None;
        }
        let why: Vec<String> = self.refused.iter().map(|(why, count)| format!("{count} × {why}")).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        Some(format!(
            "{} regions did not get huge pages, {} still have them{why}",
            self.not_huge, self.still_huge
        ))
    }
}

impl HugePageController {
    /// Opens a process, and reads its huge regions. `huge_bytes` is the size of a huge page in bytes.
    pub fn open(pid: u32, page_bytes: u64, huge_bytes: u64) -> Result<HugePageController, Failure> {
        let handle = advice::open_pidfd(pid)
            .map_err(|errno| cannot_open_process("change the huge pages of", pid, errno))?;
        let start_ticks = read_start_ticks(pid)?;
        let status = parse_process_file(pid, "status", process_status::parse)?;
        if status.thp_enabled == Some(false) {
            return Err(Failure::not_available(format!(
                "cannot change the huge pages of process {pid}: it disabled THP for itself (prctl \
                 PR_SET_THP_DISABLE); hint: start it without this prctl (redis: --disable-thp no), or with \
                 pagelab apply --override"
            )));
        }
        let path = paths::process_file(pid, "pagemap");
        let pagemap = File::open(&path).map_err(|error| {
            Failure::not_available(format!("cannot read {path}: {error}; hint: run as its owner or root"))
        })?;
        check_advice_permitted(pid, handle.as_fd())?;
        let mut controller = HugePageController {
            pid,
            handle,
            pagemap,
            start_ticks,
            page_bytes,
            huge_bytes,
            initially_huge: BTreeSet::new(),
        };
        controller.initially_huge = controller.read_huge_regions()?;
        Ok(controller)
    }

    /// The regions that can be huge pages: whole ones in private anonymous mappings that have memory. By
    /// address.
    pub fn find_eligible_regions(&self) -> Result<BTreeSet<u64>, Failure> {
        let mut regions = BTreeSet::new();
        for range in self.find_anonymous_ranges()? {
            for_each_populated(&self.pagemap, shrink_to_pages(&range, self.huge_bytes), |part| {
                let from = part.start / self.huge_bytes * self.huge_bytes;
                regions
                    .extend((from..part.end).step_by(usize::try_from(self.huge_bytes).unwrap_or(usize::MAX)));
            })
            .map_err(|error| self.scan_error(&error))?;
        }
        Ok(regions)
    }

    /// The regions that are huge now.
    pub fn read_huge_regions(&self) -> Result<BTreeSet<u64>, Failure> {
        let mut found = BTreeSet::new();
        for range in self.find_anonymous_ranges()? {
            for_each_huge_range(&self.pagemap, range, |part| {
                // Hugetlb pages and those of files are not ours to split.
                if !part.is_file && !part.is_zero {
                    let from = part.addresses.start.next_multiple_of(self.huge_bytes);
                    let step = usize::try_from(self.huge_bytes).unwrap_or(usize::MAX);
                    found.extend((from..part.addresses.end).step_by(step));
                }
            })
            .map_err(|error| self.scan_error(&error))?;
        }
        Ok(found)
    }

    /// Makes the regions `huge_regions` huge and all others of `all` not, and reads the result back.
    pub fn set_huge_regions(
        &self,
        all: &BTreeSet<u64>,
        huge_regions: &BTreeSet<u64>,
    ) -> Result<ChangeResult, Failure> {
        self.check_same_process()?;
        let now = self.read_huge_regions()?;
        let mut result = ChangeResult::default();
        for &region in all {
            let (is_huge, is_wanted) = (now.contains(&region), huge_regions.contains(&region));
            let advised = match (is_huge, is_wanted) {
                (false, true) => self.advise(region..region + self.huge_bytes, RemoteAdvice::Collapse),
                // The kernel splits a huge page of which only a part is advised.
                (true, false) => self.advise(region..region + self.page_bytes, RemoteAdvice::Cold),
                _ => Ok(()),
            };
            if let Err(why) = advised {
                *result.refused.entry(why).or_default() += 1;
            }
        }
        let now = self.read_huge_regions()?;
        for region in all {
            match (now.contains(region), huge_regions.contains(region)) {
                (true, false) => result.still_huge += 1,
                (false, true) => result.not_huge += 1,
                _ => result.as_requested += 1,
            }
        }
        Ok(result)
    }

    /// Restores the original state of the memory that still exists.
    pub fn restore(&self) -> Result<ChangeResult, Failure> {
        let mut all = self.read_huge_regions()?;
        let eligible = self.find_eligible_regions()?;
        all.extend(self.initially_huge.intersection(&eligible));
        let huge_regions = self.initially_huge.intersection(&all).copied().collect();
        self.set_huge_regions(&all, &huge_regions)
    }

    /// Whether it is still the process that it was.
    pub fn check_same_process(&self) -> Result<(), Failure> {
        match read_start_ticks(self.pid) {
            Ok(started) if started == self.start_ticks => Ok(()),
            _ => Err(Failure::refused(format!("cannot change process {}: it has exited", self.pid))),
        }
    }

    fn advise(&self, range: Range<u64>, advice: RemoteAdvice) -> Result<(), String> {
        advice::advise_range(self.handle.as_fd(), &range, advice).map_err(advice::describe_collapse_error)
    }

    /// Private anonymous mappings that can have huge pages.
    fn find_anonymous_ranges(&self) -> Result<Vec<Range<u64>>, Failure> {
        let mappings = parse_process_file(self.pid, "smaps", smaps::parse)?;
        let found = mappings.into_iter().filter(|of| {
            let is_private = !of.permissions.ends_with('s');
            // Hugetlb pages are another thing.
            let is_ours = is_private && !of.vm_flags.iter().any(|flag| flag == "ht");
            is_ours && is_private_name(&of.name) && of.end - of.start >= self.huge_bytes
        });
        Ok(found.map(|of| of.start..of.end).collect())
    }

    fn scan_error(&self, error: &std::io::Error) -> Failure {
        Failure::not_available(format!(
            "cannot find the huge-page mappings of process {}: {error}; hint: use Linux 6.7 or later \
             (PAGEMAP_SCAN), and run as its owner or root",
            self.pid
        ))
    }
}

/// Checks whether this process may collapse and split huge pages of another one: by advice for no memory,
/// which the kernel checks as any other (mm/madvise.c, `process_madvise`: CAP_SYS_NICE after the right to
/// read).
fn check_advice_permitted(pid: u32, process: BorrowedFd<'_>) -> Result<(), Failure> {
    for advice in [RemoteAdvice::Collapse, RemoteAdvice::Cold] {
        let Err(number) = advice::advise_range(process, &(0..0), advice) else { continue };
        let reason = match number {
            libc::EPERM => {
                "CAP_SYS_NICE is missing (process_madvise); hint: run as root, or start the program under \
                 `pagelab tune -- COMMAND`, which needs no privileges"
                    .to_owned()
            }
            libc::EACCES => "permission denied; hint: run as its owner or root".to_owned(),
            libc::ESRCH => "it has exited, or is a kernel thread".to_owned(),
            libc::ENOSYS | libc::EINVAL => {
                "this kernel cannot collapse memory of another process (MADV_COLLAPSE); hint: use Linux 6.1 \
                 or later"
                    .to_owned()
            }
            number => std::io::Error::from_raw_os_error(number).to_string(),
        };
        return Err(Failure::not_available(format!(
            "cannot change the huge pages of process {pid}: {reason}"
        )));
    }
    Ok(())
}

fn read_start_ticks(pid: u32) -> Result<u64, Failure> {
    let stat = parse_process_file(pid, "stat", process_status::parse_stat)?;
    match stat.has_ended() {
        true => Err(no_such_process("change the huge pages of", pid)),
        false => Ok(stat.start_ticks),
    }
}

/// Reads and parses a file of a process.
pub(crate) fn parse_process_file<T>(
    pid: u32,
    file: &str,
    parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
) -> Result<T, Failure> {
    let path = paths::process_file(pid, file);
    let text = std::fs::read(&path).map_err(|error| {
        Failure::bad_input(format!("cannot read {path}: {error}; hint: run as its owner or root"))
    })?;
    parse(&text).map_err(|error| Failure::refused(format!("cannot read {path}: {error}")))
}
