//! Huge pages for a process that runs, from outside: MADV_COLLAPSE by process_madvise, one region a call; by
//! a short attach where that is not permitted. Contents stay. Nothing of it outlives a kill of ours half
//! done.
//!
//! Mappings are known by their shape alone here: by address, as the heap, as the n-th of their length.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pagelab_formats::maps::{self, Map};
use pagelab_host::paths;
use pagelab_model::huge_plan::{HugePlan, PlannedMapping};
use pagelab_model::profile::MappingKind;
use pagelab_sys::attach::{self, Site};
use pagelab_sys::pagemap_scan;

use crate::advice::{self, COLLAPSE, RemoteAdvice};
use crate::error::{Error, ErrorKind};
use crate::supervise::{
    Choice, Match, Placed, Refused, Summary, candidates, describe, find, inside, program, regions,
};

/// How long a thread may take to stop for a call.
const PATIENCE: Duration = Duration::from_secs(2);
/// Regions in a row for which no thread could be used, until no further one is tried.
const CLOSED_MAX: u32 = 2;

/// A region that was tried.
#[derive(Clone, Debug)]
struct Tried {
    mapping: String,
    offset: u64,
    is_huge: bool,
    why: Option<String>,
}

/// A process that is given huge pages from outside.
pub struct Outside {
    pid: u32,
    process: OwnedFd,
    choice: Choice,
    /// The program's place in the plan.
    planned: Option<usize>,
    huge: u64,
    /// What was tried, by address.
    tried: BTreeMap<u64, Tried>,
    summary: Summary,
    /// The way in by attaching, where the direct one is not permitted.
    attach: Option<Site>,
    /// How often in a row that way was closed, and why: it is not tried for each region.
    closed: (u32, String),
}

/// A region that is to be collapsed.
struct Wanted {
    mapping: String,
    placed: Placed,
    /// It is wanted only if it is mostly touched.
    mostly: bool,
}

impl Outside {
    /// The process, which must be there and be the one that the plan is for.
    pub fn of(pid: u32, choice: Choice, stale: bool, huge: u64) -> Result<Outside, Error> {
        let bad = |message: String| Error::new(ErrorKind::BadInput, message);
        let gone = || bad(format!("there is no process {pid}"));
        let process = advice::hold(pid).map_err(|_| gone())?;
        let mut summary = Summary::default();
        let mut planned = None;
        if let Choice::Plan(plan) = &choice {
            let runs = program(pid, true);
            planned = match find(plan, &runs) {
                Match::Same(at) => Some(at),
                Match::Stale(at) if stale => Some(at),
                Match::Stale(_) => {
                    return Err(bad(format!(
                        "the plan is for another build of {}: profile process {pid} and plan again, or carry \
                         it out anyway with --stale",
                        runs.path
                    )));
                }
                Match::Other => {
                    return Err(bad(format!(
                        "the plan has nothing for {}, which process {pid} runs",
                        runs.path
                    )));
                }
            };
        }
        let status = fs::read(paths::process(pid, "status")).unwrap_or_default();
        let status = pagelab_formats::status::parse(&status).unwrap_or_default();
        if status.thp_enabled == Some(false) {
            summary.notes.push(
                "the program switched huge pages off by prctl (PR_SET_THP_DISABLE), so that none can come: \
                 --override undoes that"
                    .to_owned(),
            );
        }
        let tried = BTreeMap::new();
        Ok(Outside {
            pid,
            process,
            choice,
            planned,
            huge,
            tried,
            summary,
            attach: None,
            closed: (0, String::new()),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What was chosen for it.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Undoes the program's prctl against huge pages, by a call in its name.
    pub fn switch_on(&mut self) -> Result<(), Error> {
        let results = self.attached(&[(libc::SYS_prctl, [41, 0, 0, 0, 0, 0])])?;
        match results.first() {
            Some(0) => {
                self.summary.notes.clear();
                self.note("the program's prctl against huge pages was undone: --override".to_owned());
                Ok(())
            }
            other => Err(Error::new(ErrorKind::Refused, format!("the prctl could not be undone: {other:?}"))),
        }
    }

    /// Collapses all that is wanted, touched and not huge, and was not tried yet. `before` is told of each
    /// region; if it says no, that was all.
    pub fn pass(&mut self, mut before: impl FnMut(u64) -> bool) -> Result<(), Error> {
        let pagemap = File::open(paths::process(self.pid, "pagemap")).map_err(|error| {
            let message = format!("process {} may not be read: {error}; root may", self.pid);
            Error::new(ErrorKind::NotAvailable, message)
        })?;
        let wanted = self.wanted();
        for Wanted { mapping, placed: Placed { offset, at }, mostly } in wanted {
            for region in candidates(&pagemap, &at, self.huge, mostly) {
                if self.tried.contains_key(&region.start) {
                    continue;
                }
                if !before(region.start) {
                    return Ok(());
                }
                let why = self.collapse(&region).err();
                let huge = pagemap_scan::huge_bytes(&pagemap, region.clone()).map_or(0, |bytes| bytes.0);
                let is_huge = huge >= region.end - region.start;
                let offset = offset + (region.start - at.start);
                let tried = Tried { mapping: mapping.clone(), offset, is_huge, why };
                self.tried.insert(region.start, tried);
            }
            if !mostly && !self.tried.contains_key(&at.start) {
                self.untouched(&pagemap, mapping, offset, &at);
            }
        }
        self.count();
        Ok(())
    }

    /// A planned region that was no candidate: it is huge already, or holds nothing.
    fn untouched(&mut self, pagemap: &File, mapping: String, offset: u64, at: &Range<u64>) {
        let huge = pagemap_scan::huge_bytes(pagemap, at.clone()).map_or(0, |bytes| bytes.0);
        if huge >= at.end - at.start {
            let tried = Tried { mapping, offset, is_huge: true, why: None };
            self.tried.insert(at.start, tried);
        }
    }

    /// What came of it so far.
    pub fn summary(&self) -> Summary {
        let mut summary = self.summary.clone();
        summary.wanted = self.tried.len() as u64;
        for tried in self.tried.values() {
            if tried.is_huge {
                summary.got += 1;
                continue;
            }
            let unsaid = || "the kernel said yes, and no huge page was there to be read back".to_owned();
            let why = tried.why.clone().unwrap_or_else(unsaid);
            let (mapping, offset) = (tried.mapping.clone(), tried.offset);
            summary.refused.push(Refused { mapping, offset, regions: 1, why });
        }
        for (mapping, offset, why) in self.missing() {
            summary.wanted += 1;
            summary.refused.push(Refused { mapping, offset, regions: 1, why });
        }
        summary
    }

    /// Planned regions that were never tried.
    fn missing(&self) -> Vec<(String, u64, String)> {
        let maps = self.maps();
        let mut missing = Vec::new();
        for planned in self.planned_mappings() {
            let here = places(planned, &maps, self.pid);
            let placed: Vec<Placed> =
                here.iter().flat_map(|(at, offset)| regions(planned, at, *offset, self.huge)).collect();
            for placed in placed.iter().filter(|placed| !self.tried.contains_key(&placed.at.start)) {
                let why = "never written: there is nothing to collapse (EINVAL)".to_owned();
                missing.push((describe(&planned.key), placed.offset, why));
            }
            if here.is_empty() {
                let why = "no mapping of this process can be told to be this one: plan from a profile by \
                           --pid, or start the program under `pagelab apply`";
                let region = |region: &pagelab_model::huge_plan::PlannedRegion| {
                    (describe(&planned.key), region.offset, why.to_owned())
                };
                missing.extend(planned.regions.iter().map(region));
            }
        }
        missing
    }

    fn count(&mut self) {
        let huge = self.tried.values().filter(|tried| tried.is_huge).count() as u64 * self.huge;
        self.summary.huge_bytes = self.summary.huge_bytes.max(huge);
    }

    fn note(&mut self, note: String) {
        if !self.summary.notes.contains(&note) {
            self.summary.notes.push(note);
        }
    }

    fn maps(&self) -> Vec<Map> {
        let text = fs::read(paths::process(self.pid, "maps")).unwrap_or_default();
        maps::parse(&text).unwrap_or_default()
    }

    fn plan(&self) -> Option<&HugePlan> {
        if let Choice::Plan(plan) = &self.choice { Some(plan) } else { None }
    }

    fn planned_mappings(&self) -> &[PlannedMapping] {
        let program = self.plan().zip(self.planned).and_then(|(plan, at)| plan.programs.get(at));
        program.map_or(&[], |program| &program.mappings)
    }

    fn wanted(&self) -> Vec<Wanted> {
        let maps = self.maps();
        if self.choice == Choice::All {
            let is_anonymous =
                |map: &&Map| map.name.is_empty() || map.name == "[heap]" || is_named(&map.name);
            let want = |map: &Map| {
                let at = inside(&(map.start..map.end), self.huge);
                let mapping = if map.name.is_empty() { "anonymous".to_owned() } else { map.name.clone() };
                let placed = Placed { offset: at.start - map.start, at };
                Wanted { mapping, placed, mostly: true }
            };
            return maps.iter().filter(is_anonymous).map(want).filter(|w| !w.placed.at.is_empty()).collect();
        }
        let of = |planned: &PlannedMapping| -> Vec<Wanted> {
            let want = |placed| Wanted { mapping: describe(&planned.key), placed, mostly: false };
            places(planned, &maps, self.pid)
                .into_iter()
                .flat_map(|(at, offset)| regions(planned, &at, offset, self.huge))
                .map(want)
                .collect()
        };
        self.planned_mappings().iter().flat_map(of).collect()
    }

    fn collapse(&mut self, region: &Range<u64>) -> Result<(), String> {
        if self.attach.is_none() {
            match advice::advise(self.process.as_fd(), region, RemoteAdvice::Collapse) {
                Ok(()) => return Ok(()),
                Err(libc::EPERM | libc::ENOSYS) => {}
                Err(number) => return Err(advice::refusal(number)),
            }
        }
        if self.closed.0 >= CLOSED_MAX {
            return Err(self.closed.1.clone());
        }
        let arguments = [region.start, region.end - region.start, COLLAPSE, 0, 0, 0];
        match self.attached(&[(libc::SYS_madvise, arguments)]) {
            Ok(results) => match results.first().inspect(|_| self.closed.0 = 0) {
                Some(0) => Ok(()),
                Some(error) => Err(advice::refusal(i32::try_from(-error).unwrap_or(0))),
                None => Err("no call was made".to_owned()),
            },
            Err(error) => {
                self.closed = (self.closed.0 + 1, error.to_string());
                Err(error.to_string())
            }
        }
    }

    /// Has the process's first thread make calls, and says once that it was stopped for them.
    fn attached(&mut self, calls: &[(i64, [u64; 6])]) -> Result<Vec<i64>, Error> {
        let refused = |message: String| Error::new(ErrorKind::Refused, message);
        let status = fs::read_to_string(paths::process(self.pid, "status")).unwrap_or_default();
        let filter = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        if filter.is_some_and(|mode| mode.trim() != "0") {
            let why = "it has a seccomp filter, which might kill it for a call of ours";
            return Err(refused(format!("CAP_SYS_NICE is missing, and it cannot be attached to: {why}")));
        }
        let maps = self.maps();
        let vdso = maps.iter().filter(|map| map.name == "[vdso]").map(|map| map.start..map.end);
        let site = Site { tid: self.pid, code: vdso.collect(), patience: PATIENCE };
        let calls = calls.to_vec();
        let made = attach::with(&site, move |injector| {
            calls.iter().map(|&(number, arguments)| injector.call(number, arguments)).collect()
        });
        self.attach = Some(site);
        let (results, injected) = made.map_err(|refusal| {
            refused(format!("CAP_SYS_NICE is missing, and it cannot be attached to: {refusal}"))
        })?;
        self.summary.stopped_ns += injected.stopped_ns;
        self.summary.stops += 1;
        self.note(
            "without CAP_SYS_NICE the program's first thread was stopped for each region, for as long as \
             stopped_ns of the summary says in sum"
                .to_owned(),
        );
        Ok(results)
    }
}

/// Names that a program gave to anonymous memory (PR_SET_VMA_ANON_NAME, 5.17).
fn is_named(name: &str) -> bool {
    name.starts_with("[anon:")
}

/// Where a planned mapping lies, told by its shape: stretches of addresses, and the offset of the first byte.
fn places(planned: &PlannedMapping, maps: &[Map], pid: u32) -> Vec<(Range<u64>, u64)> {
    match &planned.key.kind {
        MappingKind::Placed => maps.iter().map(|map| (map.start..map.end, map.start)).collect(),
        MappingKind::Heap => crate::supervise::heap(pid).map(|heap| (heap, 0)).into_iter().collect(),
        MappingKind::Stack => {
            let stack = maps.iter().find(|map| map.name == "[stack]");
            stack.map(|map| (map.start..map.end, 0)).into_iter().collect()
        }
        MappingKind::File(path) => {
            maps.iter().filter(|map| &map.name == path).map(|map| (map.start..map.end, map.offset)).collect()
        }
        MappingKind::Anonymous | MappingKind::Shared => {
            // Advice splits a mapping: its parts touch.
            let parts = maps.iter().filter(|map| map.name.is_empty() || is_named(&map.name));
            let mut areas: Vec<Range<u64>> = Vec::new();
            for part in parts {
                match areas.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => areas.push(part.start..part.end),
                }
            }
            areas.retain(|area| area.end - area.start == planned.key.bytes.0);
            // The kernel gives addresses from the top down: the first one lies highest.
            areas.reverse();
            areas.get(planned.key.nth as usize).map(|area| (area.clone(), 0)).into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;
    use pagelab_model::profile::MappingKey;

    #[test]
    fn a_mapping_is_told_by_its_length_from_the_top_down() {
        let text = b"10000-30000 rw-p 00000000 00:00 0 \n\
                     30000-50000 rw-p 00000000 00:00 0 [anon: x]\n\
                     60000-a0000 rw-p 00000000 00:00 0 \n\
                     a0000-b0000 r--p 00000000 08:01 7 /lib/x\n";
        let maps = maps::parse(text).unwrap();
        let find = |nth: u32| {
            let key = MappingKey { kind: MappingKind::Anonymous, bytes: Bytes(0x40000), nth };
            let (regions, cells) = (Vec::new(), Vec::new());
            let planned = PlannedMapping { key, start: 0, bytes: Bytes(0x40000), regions, cells };
            places(&planned, &maps, 0)
        };
        assert_eq!(find(0), [(0x60000..0xa0000, 0)]);
        assert_eq!(find(1), [(0x10000..0x50000, 0)]);
        assert_eq!(find(2), []);
    }
}
