//! Huge pages of a running process, to and fro: MADV_COLLAPSE from outside, and one cold page, which splits.
//!
//! Contents are kept either way. Nothing is believed that was not read back: after each change the page
//! tables are asked which regions are huge (PAGEMAP_SCAN, Linux 6.7).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use pagelab_formats::{process_stat, smaps, status};
use pagelab_host::paths;
use pagelab_sys::pagemap_scan::{huge_parts, populated};

use crate::advice::{self, RemoteAdvice};
use crate::error::{Error, ErrorKind};

/// A process whose huge pages are changed to and fro.
#[derive(Debug)]
pub struct Steered {
    pid: u32,
    handle: OwnedFd,
    pagemap: File,
    started: u64,
    page: u64,
    huge: u64,
    /// How it was found: the regions that were huge then.
    before: BTreeSet<u64>,
}

/// What a change came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turned {
    /// Regions that are as they were to be, when they were read back.
    pub right: usize,
    /// Regions that were to be huge and are not.
    pub missing: usize,
    /// Regions that were not to be huge and are.
    pub too_much: usize,
    /// Why, as the kernel said it, and how often.
    pub refused: BTreeMap<String, usize>,
}

impl Turned {
    /// Why it is not as it was to be, in a phrase; `None` where it is.
    pub fn trouble(&self) -> Option<String> {
        if self.missing + self.too_much == 0 {
            return None;
        }
        let why: Vec<String> = self.refused.iter().map(|(why, count)| format!("{count} × {why}")).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        Some(format!(
            "{} regions were to be on huge pages and are not, {} are and were not to be{why}",
            self.missing, self.too_much
        ))
    }
}

impl Steered {
    /// Takes hold of a process, and looks how it is. `huge` is the size of a huge page in bytes.
    pub fn of(pid: u32, page: u64, huge: u64) -> Result<Steered, Error> {
        let handle = advice::hold(pid).map_err(|errno| {
            let text = format!("process {pid} cannot be taken hold of: {errno}; is it running?");
            Error::new(ErrorKind::BadInput, text)
        })?;
        let started = started(pid)?;
        let text = read(pid, "status")?;
        let status = status::parse(&text).map_err(|error| bad(pid, "status", &error.to_string()))?;
        if status.thp_enabled == Some(false) {
            let text = format!(
                "process {pid} has switched transparent huge pages off for itself (prctl PR_SET_THP_DISABLE; \
                 THP_enabled is 0 in its status), so it can get none; start it without that (redis: \
                 --disable-thp no), or under pagelab apply --override"
            );
            return Err(Error::new(ErrorKind::NotAvailable, text));
        }
        let path = paths::process(pid, "pagemap");
        let pagemap = File::open(&path).map_err(|error| {
            let text = format!("{path}: {error}; its owner or root may look at it");
            Error::new(ErrorKind::NotAvailable, text)
        })?;
        let mut steered = Steered { pid, handle, pagemap, started, page, huge, before: BTreeSet::new() };
        steered.before = steered.huge_now()?;
        Ok(steered)
    }

    /// The regions that can be huge pages: whole ones in private anonymous mappings that have memory. By
    /// address.
    pub fn regions(&self) -> Result<BTreeSet<u64>, Error> {
        let mut regions = BTreeSet::new();
        for (start, end) in self.anonymous()? {
            let (first, last) = (start.next_multiple_of(self.huge), end / self.huge * self.huge);
            if first >= last {
                continue;
            }
            populated(&self.pagemap, first..last, |part| {
                let from = part.start / self.huge * self.huge;
                regions.extend((from..part.end).step_by(usize::try_from(self.huge).unwrap_or(usize::MAX)));
            })
            .map_err(|error| self.no_scan(&error))?;
        }
        Ok(regions)
    }

    /// The regions that are huge now.
    pub fn huge_now(&self) -> Result<BTreeSet<u64>, Error> {
        let mut found = BTreeSet::new();
        for (start, end) in self.anonymous()? {
            huge_parts(&self.pagemap, start..end, |part| {
                // Hugetlb pages and those of files are not ours to split.
                if !part.is_file && !part.is_zero {
                    let from = part.addresses.start.next_multiple_of(self.huge);
                    let step = usize::try_from(self.huge).unwrap_or(usize::MAX);
                    found.extend((from..part.addresses.end).step_by(step));
                }
            })
            .map_err(|error| self.no_scan(&error))?;
        }
        Ok(found)
    }

    /// Makes `wanted` huge and everything else of `all` not, and reads back what came of it.
    pub fn turn(&self, all: &BTreeSet<u64>, wanted: &BTreeSet<u64>) -> Result<Turned, Error> {
        self.same()?;
        let now = self.huge_now()?;
        let mut turned = Turned::default();
        for &region in all {
            let (is, is_wanted) = (now.contains(&region), wanted.contains(&region));
            let asked = match (is, is_wanted) {
                (false, true) => self.advise(region..region + self.huge, RemoteAdvice::Collapse),
                // The kernel splits a huge page of which only a part is advised.
                (true, false) => self.advise(region..region + self.page, RemoteAdvice::Cold),
                _ => Ok(()),
            };
            if let Err(why) = asked {
                *turned.refused.entry(why).or_default() += 1;
            }
        }
        let now = self.huge_now()?;
        for region in all {
            match (now.contains(region), wanted.contains(region)) {
                (true, false) => turned.too_much += 1,
                (false, true) => turned.missing += 1,
                _ => turned.right += 1,
            }
        }
        Ok(turned)
    }

    /// Back to how it was found, as far as that is still there.
    pub fn restore(&self) -> Result<Turned, Error> {
        let mut all = self.huge_now()?;
        let there = self.regions()?;
        all.extend(self.before.intersection(&there));
        let wanted = self.before.intersection(&all).copied().collect();
        self.turn(&all, &wanted)
    }

    /// Bytes of a huge page.
    pub fn huge_bytes(&self) -> u64 {
        self.huge
    }

    /// Whether it is still the process that it was.
    pub fn same(&self) -> Result<(), Error> {
        match started(self.pid) {
            Ok(started) if started == self.started => Ok(()),
            _ => Err(Error::new(ErrorKind::Refused, format!("process {} has ended", self.pid))),
        }
    }

    fn advise(&self, range: std::ops::Range<u64>, advice: RemoteAdvice) -> Result<(), String> {
        advice::advise(self.handle.as_fd(), &range, advice).map_err(advice::refusal)
    }

    /// Private anonymous mappings that can have huge pages: start and end.
    fn anonymous(&self) -> Result<Vec<(u64, u64)>, Error> {
        let text = read(self.pid, "smaps")?;
        let mappings = smaps::parse(&text).map_err(|error| bad(self.pid, "smaps", &error.to_string()))?;
        let is_anonymous = |name: &str| name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
        let found = mappings.into_iter().filter(|of| {
            let is_private = !of.permissions.ends_with('s');
            // Hugetlb pages are another thing.
            let is_ours = is_private && !of.vm_flags.iter().any(|flag| flag == "ht");
            is_ours && is_anonymous(&of.name) && of.end - of.start >= self.huge
        });
        Ok(found.map(|of| (of.start, of.end)).collect())
    }

    fn no_scan(&self, error: &std::io::Error) -> Error {
        let text = format!(
            "which memory of process {} is on huge pages cannot be read: {error}; the kernel has \
             PAGEMAP_SCAN since Linux 6.7, and the process's owner or root may ask",
            self.pid
        );
        Error::new(ErrorKind::NotAvailable, text)
    }
}

fn started(pid: u32) -> Result<u64, Error> {
    let text = read(pid, "stat")?;
    let stat = process_stat::parse(&text).map_err(|error| bad(pid, "stat", &error.to_string()))?;
    match stat.has_ended() {
        true => Err(Error::new(ErrorKind::BadInput, format!("process {pid} has ended"))),
        false => Ok(stat.start_ticks),
    }
}

fn read(pid: u32, file: &str) -> Result<Vec<u8>, Error> {
    let path = paths::process(pid, file);
    std::fs::read(Path::new(&path)).map_err(|error| {
        let text = format!("{path}: {error}; a process that runs, and its owner or root, were wanted");
        Error::new(ErrorKind::BadInput, text)
    })
}

fn bad(pid: u32, file: &str, why: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("{}: {why}", paths::process(pid, file)))
}
