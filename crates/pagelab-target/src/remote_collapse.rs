//! Huge pages for a running process, from outside: MADV_COLLAPSE by process_madvise, one region per call; by
//! a short attach if that is not permitted. Contents do not change. A kill of pagelab leaves nothing half
//! done.
//!
//! Mappings are known by their shape alone here: by address, as the heap, as the n-th of their length.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pagelab_formats::maps::{self, MapsEntry};
use pagelab_formats::process_status;
use pagelab_host::paths;
use pagelab_model::Failure;
use pagelab_model::huge_plan::PlannedMapping;
use pagelab_model::profile::MappingKind;
use pagelab_sys::injection::{self, InjectionTarget};
use pagelab_sys::pagemap_scan;

use crate::accessed::is_private_name;
use crate::advice::{self, MADV_COLLAPSE, RemoteAdvice};
use crate::huge_page_control::parse_process_file;
use crate::process_failure::cannot_open_process;
use crate::supervisor::{
    FailedRegion, HugePageChoice, PlacedRegion, PlanMatch, Summary, describe_mapping, errno_of,
    find_collapse_candidates, match_plan, merge_ranges, place_regions, read_program, shrink_to_pages,
};

/// Maximum time for a thread to stop for a call.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Regions in a row for which no thread could be used, until no further one is tried.
const ATTACH_FAILURES_MAX: u32 = 2;

#[derive(Clone, Debug)]
struct CollapseAttempt {
    mapping: String,
    offset: u64,
    is_huge: bool,
    failure: Option<String>,
}

/// A running process whose memory is collapsed without tracing.
pub struct RemoteCollapse {
    /// Its process id.
    pub pid: u32,
    process: OwnedFd,
    /// Which of its memory is to be on huge pages.
    pub choice: HugePageChoice,
    /// The program's place in the plan.
    plan_index: Option<usize>,
    huge_bytes: u64,
    /// The attempts, by address.
    attempts: BTreeMap<u64, CollapseAttempt>,
    summary: Summary,
    /// The target of injected calls, if process_madvise is not permitted.
    attach_target: Option<InjectionTarget>,
    /// Failures to attach in a row: it is not tried for each region.
    attach_failures: u32,
    /// The reason of the last one.
    attach_failure: String,
}

/// A region that is to be collapsed.
struct CollapseTarget {
    mapping: String,
    placed: PlacedRegion,
    /// It is collapsed only if it is half touched.
    half_touched: bool,
}

impl RemoteCollapse {
    /// Opens the process, which must run the program that the plan is for.
    pub fn open(
        pid: u32,
        choice: HugePageChoice,
        allow_stale: bool,
        huge_bytes: u64,
    ) -> Result<RemoteCollapse, Failure> {
        let process =
            advice::open_pidfd(pid).map_err(|errno| cannot_open_process("collapse memory of", pid, errno))?;
        let mut summary = Summary::default();
        let mut plan_index = None;
        if let HugePageChoice::Plan(plan) = &choice {
            let running_program = read_program(pid, true);
            plan_index = match match_plan(plan, &running_program) {
                PlanMatch::Same(at) => Some(at),
                PlanMatch::Stale(at) if allow_stale => Some(at),
                PlanMatch::Stale(_) => {
                    return Err(Failure::bad_input(format!(
                        "cannot apply the plan to process {pid}: it is for another build of {}; hint: \
                         profile the process and plan again, or use --stale",
                        running_program.path
                    )));
                }
                PlanMatch::Unplanned => {
                    return Err(Failure::bad_input(format!(
                        "cannot apply the plan to process {pid}: it has no entry for the program {}",
                        running_program.path
                    )));
                }
            };
        }
        let status = parse_process_file(pid, "status", process_status::parse)?;
        if status.thp_enabled == Some(false) {
            summary.notes.push(
                "the program disabled THP with prctl (PR_SET_THP_DISABLE); hint: use --override".to_owned(),
            );
        }
        Ok(RemoteCollapse {
            pid,
            process,
            choice,
            plan_index,
            huge_bytes,
            attempts: BTreeMap::new(),
            summary,
            attach_target: None,
            attach_failures: 0,
            attach_failure: String::new(),
        })
    }

    /// Undoes the program's prctl against huge pages, by a call in its name.
    pub fn enable_thp(&mut self) -> Result<(), Failure> {
        let results = self.inject_calls(&[(libc::SYS_prctl, [41, 0, 0, 0, 0, 0])])?;
        match results.first() {
            Some(0) => {
                self.summary.notes.clear();
                self.add_note("the program's PR_SET_THP_DISABLE was undone (--override)");
                Ok(())
            }
            other => {
                Err(Failure::refused(format!("cannot undo the prctl of process {}: {other:?}", self.pid)))
            }
        }
    }

    /// Collapses all requested regions that are touched, not huge, and not tried yet. `before_region` is
    /// called before each.
    pub fn run_collapse_pass(&mut self, before_region: impl Fn()) -> Result<(), Failure> {
        let pagemap = File::open(paths::process_file(self.pid, "pagemap")).map_err(|error| {
            let pid = self.pid;
            Failure::not_available(format!(
                "cannot read the page tables of process {pid}: {error}; hint: run as root"
            ))
        })?;
        let targets = self.find_targets()?;
        for CollapseTarget { mapping, placed: PlacedRegion { offset, range: at }, half_touched } in targets {
            for region in find_collapse_candidates(&pagemap, &at, self.huge_bytes, half_touched) {
                if self.attempts.contains_key(&region.start) {
                    continue;
                }
                before_region();
                let failure = self.collapse_region(&region).err();
                let is_huge = is_huge_region(&pagemap, &region);
                let offset = offset + (region.start - at.start);
                let tried = CollapseAttempt { mapping: mapping.clone(), offset, is_huge, failure };
                self.attempts.insert(region.start, tried);
            }
            // A planned region that was no candidate is huge already, or has no populated pages.
            if !half_touched && !self.attempts.contains_key(&at.start) && is_huge_region(&pagemap, &at) {
                let tried = CollapseAttempt { mapping, offset, is_huge: true, failure: None };
                self.attempts.insert(at.start, tried);
            }
        }
        let huge = self.attempts.values().filter(|tried| tried.is_huge).count() as u64 * self.huge_bytes;
        self.summary.huge_bytes = self.summary.huge_bytes.max(huge);
        Ok(())
    }

    /// The summary so far.
    pub fn build_summary(&self) -> Summary {
        let mut summary = self.summary.clone();
        summary.requested = self.attempts.len() as u64;
        for tried in self.attempts.values() {
            if tried.is_huge {
                summary.allocated += 1;
                continue;
            }
            let unconfirmed = || "the call succeeded, but no huge page was found".to_owned();
            let reason = tried.failure.clone().unwrap_or_else(unconfirmed);
            let (mapping, offset) = (tried.mapping.clone(), tried.offset);
            summary.failed.push(FailedRegion { mapping, offset, regions: 1, reason });
        }
        match self.find_untried_regions() {
            Ok(untried) => {
                summary.requested += untried.len() as u64;
                summary.failed.extend(untried);
            }
            Err(failure) => {
                summary.notes.push(format!("regions that were never tried are not counted: {failure}"))
            }
        }
        summary
    }

    fn find_untried_regions(&self) -> Result<Vec<FailedRegion>, Failure> {
        let maps = self.read_maps()?;
        let mut missing = Vec::new();
        for planned in self.planned_mappings() {
            let mapping = describe_mapping(&planned.key);
            let untried = |offset: u64, why: &str| FailedRegion {
                mapping: mapping.clone(),
                offset,
                regions: 1,
                reason: why.to_owned(),
            };
            let mapping_ranges = find_mapping_ranges(planned, &maps, self.pid);
            for (at, offset) in &mapping_ranges {
                let mut placed = place_regions(planned, at, *offset, self.huge_bytes);
                placed.retain(|placed| !self.attempts.contains_key(&placed.range.start));
                let why = "never written: nothing to collapse (EINVAL)";
                missing.extend(placed.iter().map(|placed| untried(placed.offset, why)));
            }
            if mapping_ranges.is_empty() {
                let why = "no mapping of this process matches; hint: plan from a profile with --pid, or \
                           start the program with `pagelab apply`";
                missing.extend(planned.regions.iter().map(|region| untried(region.offset, why)));
            }
        }
        Ok(missing)
    }

    fn add_note(&mut self, note: &str) {
        if !self.summary.notes.iter().any(|known| known == note) {
            self.summary.notes.push(note.to_owned());
        }
    }

    fn read_maps(&self) -> Result<Vec<MapsEntry>, Failure> {
        parse_process_file(self.pid, "maps", maps::parse)
    }

    fn planned_mappings(&self) -> &[PlannedMapping] {
        match (&self.choice, self.plan_index) {
            (HugePageChoice::Plan(plan), Some(at)) => &plan.programs[at].mappings,
            _ => &[],
        }
    }

    fn find_targets(&self) -> Result<Vec<CollapseTarget>, Failure> {
        let maps = self.read_maps()?;
        let mut targets = Vec::new();
        if self.choice == HugePageChoice::All {
            for map in maps.iter().filter(|map| is_private_name(&map.name)) {
                let at = shrink_to_pages(&(map.start..map.end), self.huge_bytes);
                let mapping = if map.name.is_empty() { "anonymous".to_owned() } else { map.name.clone() };
                let placed = PlacedRegion { offset: at.start - map.start, range: at };
                targets.push(CollapseTarget { mapping, placed, half_touched: true });
            }
            targets.retain(|target| !target.placed.range.is_empty());
        }
        for planned in self.planned_mappings() {
            for (at, offset) in find_mapping_ranges(planned, &maps, self.pid) {
                for placed in place_regions(planned, &at, offset, self.huge_bytes) {
                    let mapping = describe_mapping(&planned.key);
                    targets.push(CollapseTarget { mapping, placed, half_touched: false });
                }
            }
        }
        Ok(targets)
    }

    fn collapse_region(&mut self, region: &Range<u64>) -> Result<(), String> {
        if self.attach_target.is_none() {
            match advice::advise_range(self.process.as_fd(), region, RemoteAdvice::Collapse) {
                Ok(()) => return Ok(()),
                Err(libc::EPERM | libc::ENOSYS) => {}
                Err(number) => return Err(advice::describe_collapse_error(number)),
            }
        }
        if self.attach_failures >= ATTACH_FAILURES_MAX {
            return Err(self.attach_failure.clone());
        }
        let arguments = [region.start, region.end - region.start, MADV_COLLAPSE, 0, 0, 0];
        match self.inject_calls(&[(libc::SYS_madvise, arguments)]) {
            Ok(results) => {
                self.attach_failures = 0;
                let failure = results.first().copied().map_or(Some(libc::ENOSYS), errno_of);
                failure.map_or(Ok(()), |errno| Err(advice::describe_collapse_error(errno)))
            }
            Err(error) => {
                (self.attach_failures, self.attach_failure) = (self.attach_failures + 1, error.to_string());
                Err(error.to_string())
            }
        }
    }

    /// Makes the process's first thread execute calls, and notes once that it was stopped for them.
    fn inject_calls(&mut self, calls: &[(i64, [u64; 6])]) -> Result<Vec<i64>, Failure> {
        // A process whose seccomp filter is unknown gets no injected call.
        let as_text = |text: &[u8]| Ok(String::from_utf8_lossy(text).into_owned());
        let status = parse_process_file(self.pid, "status", as_text)?;
        let filter = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        if filter.is_some_and(|mode| mode.trim() != "0") {
            let why = "its seccomp filter could kill it because of an injected call";
            return Err(Failure::refused(format!(
                "CAP_SYS_NICE is missing, and pagelab cannot attach to the process: {why}"
            )));
        }
        let maps = self.read_maps()?;
        let vdso = maps.iter().filter(|map| map.name == "[vdso]").map(|map| map.start..map.end);
        let site = InjectionTarget { tid: self.pid, code_ranges: vdso.collect(), stop_timeout: STOP_TIMEOUT };
        let calls = calls.to_vec();
        let outcome = injection::inject(&site, move |injector| {
            calls.iter().map(|&(number, arguments)| injector.call(number, arguments)).collect()
        });
        self.attach_target = Some(site);
        let (results, injected) = outcome.map_err(|refusal| {
            Failure::refused(format!(
                "CAP_SYS_NICE is missing, and pagelab cannot attach to the process: {refusal}"
            ))
        })?;
        self.summary.stopped_ns += injected.stopped_ns;
        self.summary.stops += 1;
        self.add_note(
            "without CAP_SYS_NICE, the program's main thread was stopped for each region; stopped_ns in the \
             summary is the total",
        );
        Ok(results)
    }
}

/// Whether all of a region is on huge pages.
fn is_huge_region(pagemap: &File, region: &Range<u64>) -> bool {
    let huge = pagemap_scan::huge_bytes(pagemap, region.clone()).map_or(0, |bytes| bytes.0);
    huge >= region.end - region.start
}

/// The ranges of a planned mapping, identified by its length: addresses, and the offset of the first byte.
fn find_mapping_ranges(planned: &PlannedMapping, maps: &[MapsEntry], pid: u32) -> Vec<(Range<u64>, u64)> {
    match &planned.key.kind {
        MappingKind::Placed => maps.iter().map(|map| (map.start..map.end, map.start)).collect(),
        MappingKind::Heap => {
            crate::supervisor::read_heap_range(pid).map(|heap| (heap, 0)).into_iter().collect()
        }
        MappingKind::Stack => {
            let stack = maps.iter().find(|map| map.name == "[stack]");
            stack.map(|map| (map.start..map.end, 0)).into_iter().collect()
        }
        MappingKind::File(path) => {
            maps.iter().filter(|map| &map.name == path).map(|map| (map.start..map.end, map.offset)).collect()
        }
        MappingKind::Anonymous | MappingKind::Shared => {
            // Advice splits a mapping: its parts touch.
            let parts = maps.iter().filter(|map| map.name != "[heap]" && is_private_name(&map.name));
            let mut areas = merge_ranges(parts.map(|map| map.start..map.end));
            areas.retain(|area| area.end - area.start == planned.key.bytes.0);
            // The kernel maps from the top down: the first mapping is the highest.
            areas.reverse();
            areas.get(planned.key.nth as usize).map(|area| (area.clone(), 0)).into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;
    use pagelab_model::profile::MappingIdentity;

    #[test]
    fn a_mapping_is_identified_by_its_length_from_the_top_down() {
        let text = b"10000-30000 rw-p 00000000 00:00 0 \n\
                     30000-50000 rw-p 00000000 00:00 0 [anon: x]\n\
                     60000-a0000 rw-p 00000000 00:00 0 \n\
                     a0000-b0000 r--p 00000000 08:01 7 /lib/x\n";
        let maps = maps::parse(text).unwrap();
        let find = |nth: u32| {
            let key = MappingIdentity { kind: MappingKind::Anonymous, bytes: Bytes(0x40000), nth };
            let (regions, cells) = (Vec::new(), Vec::new());
            let planned = PlannedMapping { key, start: 0, bytes: Bytes(0x40000), regions, cells };
            find_mapping_ranges(&planned, &maps, 0)
        };
        assert_eq!(find(0), [(0x60000..0xa0000, 0)]);
        assert_eq!(find(1), [(0x10000..0x50000, 0)]);
        assert_eq!(find(2), []);
    }
}
