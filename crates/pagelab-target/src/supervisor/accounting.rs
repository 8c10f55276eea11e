//! Requested and obtained huge pages, counted as memory is unmapped and summed up at the end.

use std::collections::{BTreeMap, BTreeSet};

use pagelab_model::profile::{MappingIdentity, MappingKind};
use pagelab_sys::ptrace::{self, Registers};
use serde::{Deserialize, Serialize};

use super::exec_image::is_no_process;
use super::tracer_state::{AddressSpace, HugePageTarget, to_mapping_identity};
use super::{HugePageChoice, ProgramExit, SupervisorConfig};

/// Failed regions that are listed; more are counted.
const FAILED_MAX: usize = 1000;

/// A region that is not on a huge page, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRegion {
    /// The mapping, in words.
    pub mapping: String,
    /// The region's offset in it, in bytes.
    pub offset: u64,
    /// The number of huge pages.
    pub regions: u64,
    /// Why.
    pub reason: String,
}

/// The summary of a supervised run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Huge pages that were requested: regions of the plan, or with `all` those that the program touched.
    pub requested: u64,
    /// Of these, huge pages that were found in the page tables.
    pub allocated: u64,
    /// The others, the first thousand.
    pub failed: Vec<FailedRegion>,
    /// Failed regions beyond those.
    pub failed_more: u64,
    /// Most bytes on huge pages at any scan, summed over the program's processes.
    pub huge_bytes: u64,
    /// Bytes on huge pages beyond the breaks of programs, which they did not request: at most one huge page
    /// for each, summed over their last scans.
    pub heap_beyond_bytes: u64,
    /// CPU time of the supervisor.
    pub supervisor_cpu_ns: u64,
    /// Of that, the kernel's collapses: copying and zeroing, in place of page faults.
    pub collapse_cpu_ns: u64,
    /// Time from the report of a stop to the resumption of the thread, summed over all threads.
    pub stopped_ns: u64,
    /// Stops.
    pub stops: u64,
    /// Wall time from the start to the first process's end.
    pub wall_ns: u64,
    /// Exit of the first process.
    pub exit: Option<ProgramExit>,
    /// Notes for the reader, in sentences.
    pub notes: Vec<String>,
}

/// The account while the program runs.
#[derive(Debug, Default)]
pub(super) struct Accounting {
    pub summary: Summary,
    /// Planned mappings that were seen, by program and place.
    pub seen_mappings: BTreeSet<(usize, usize)>,
    /// Whether a program disabled THP for itself, and pagelab left it so.
    pub has_thp_disable: bool,
    /// Programs of the plan that ran.
    pub seen_programs: BTreeSet<usize>,
    /// Bytes on huge pages by space, at its last scan.
    pub huge_bytes_by_space: BTreeMap<u32, u64>,
}

impl Accounting {
    /// Adds a note, once.
    pub fn add_note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if self.summary.notes.len() < FAILED_MAX && !self.summary.notes.contains(&note) {
            self.summary.notes.push(note);
        }
    }

    /// Sets the registers of a stopped thread; its program would otherwise continue with wrong ones. `false`:
    /// they could not be set, as those of a thread that was killed meanwhile.
    pub fn set_registers(&mut self, tid: u32, registers: &Registers) -> bool {
        let result = ptrace::write_registers(tid, registers);
        if let Err(error) = &result
            && !is_no_process(error)
        {
            debug_assert!(false, "registers of thread {tid}: {error}");
            self.add_note(format!("cannot set the registers of thread {tid}: {error}"));
        }
        result.is_ok()
    }

    /// Writes a word of a stopped thread's memory, unless it was killed meanwhile.
    pub fn write_word(&mut self, tid: u32, address: u64, word: u64) {
        let why = match ptrace::write_memory(tid, address, &word.to_ne_bytes()) {
            Ok(8) => return,
            Ok(_) => "part of them is not mapped".to_owned(),
            Err(error) if is_no_process(&error) => return,
            Err(error) => error.to_string(),
        };
        self.add_note(format!("cannot write the arguments of clone3 of thread {tid}: {why}"));
    }

    /// Counts a target that is unmapped, or whose process has ended.
    pub fn count_target(&mut self, target: &HugePageTarget, space: &AddressSpace) {
        let made = space.mapping_table.mapping(target.mapping);
        if target.is_inherited {
            return;
        }
        let size = target.range.end - target.range.start;
        let (requested, allocated) = match target.is_region {
            true => (1, u64::from(target.allocated >= size)),
            false => (target.touched, target.allocated.min(target.touched)),
        };
        self.summary.requested += requested;
        self.summary.allocated += allocated;
        if allocated < requested {
            let why = target.reason.clone().unwrap_or_else(|| fallback_reason(target, space).to_owned());
            let mapping = describe_mapping(&to_mapping_identity(&made.key));
            self.add_failure(mapping, target.offset, requested - allocated, why);
        }
    }

    /// Counts all targets of a space in their current state.
    pub fn count_all_targets(&mut self, space: &AddressSpace) {
        space.targets.iter().for_each(|target| self.count_target(target, space));
        self.summary.heap_beyond_bytes +=
            space.program_break.as_ref().map_or(0, |known| known.huge_beyond_bytes);
    }

    fn add_failure(&mut self, mapping: String, offset: u64, regions: u64, why: String) {
        if self.summary.failed.len() < FAILED_MAX {
            self.summary.failed.push(FailedRegion { mapping, offset, regions, reason: why });
        } else {
            self.summary.failed_more += regions;
        }
    }

    /// Records the bytes on huge pages in a space, at a scan.
    pub fn record_huge_bytes(&mut self, space: u32, huge: u64) {
        self.huge_bytes_by_space.insert(space, huge);
        self.summary.huge_bytes = self.summary.huge_bytes.max(self.huge_bytes_by_space.values().sum());
    }

    /// The summary, with the parts of the plan that never appeared.
    pub fn finish_summary(&mut self, spec: &SupervisorConfig) -> Summary {
        if let HugePageChoice::Plan(plan) = &spec.choice {
            for (at, program) in plan.programs.iter().enumerate() {
                let missing: Vec<usize> =
                    (0..program.mappings.len()).filter(|&m| !self.seen_mappings.contains(&(at, m))).collect();
                if !self.seen_programs.contains(&at) {
                    self.add_note(format!(
                        "the plan covers {}, which did not run: nothing was advised for it",
                        program_label(&program.program.path)
                    ));
                } else if !missing.is_empty() {
                    self.add_note(format!(
                        "{} of {} planned mappings of {} never appeared: the input or the build differs from \
                         the profiled run; hint: profile this run and plan again",
                        missing.len(),
                        program.mappings.len(),
                        program_label(&program.program.path)
                    ));
                }
                for mapping in missing.into_iter().map(|m| &program.mappings[m]) {
                    let regions = mapping.regions.len() as u64;
                    self.summary.requested += regions;
                    let why = "the mapping never appeared".to_owned();
                    self.add_failure(describe_mapping(&mapping.key), 0, regions, why);
                }
            }
        }
        self.summary.clone()
    }
}

fn program_label(path: &str) -> &str {
    if path.is_empty() { "any program" } else { path }
}

fn fallback_reason(target: &HugePageTarget, space: &AddressSpace) -> &'static str {
    if space.is_thp_disabled {
        return "the program disabled THP with prctl (PR_SET_THP_DISABLE); hint: use --override";
    }
    if target.touched == 0 {
        return "not touched while observed";
    }
    if !target.is_region {
        return "mapped in smaller parts, less than half touched, or no free huge page; hint: `pagelab can`";
    }
    "no free huge page at first touch: memory is fragmented; hint: `pagelab compact`, `pagelab can`"
}

/// A mapping in words.
pub fn describe_mapping(key: &MappingIdentity) -> String {
    let nth = key.nth;
    match &key.kind {
        MappingKind::Anonymous => format!("anonymous, {} bytes, number {nth}", key.bytes.0),
        MappingKind::Shared => format!("shared, {} bytes, number {nth}", key.bytes.0),
        MappingKind::Heap => "heap".to_owned(),
        MappingKind::Stack => "stack".to_owned(),
        MappingKind::File(path) => format!("{path}, {} bytes, number {nth}", key.bytes.0),
        MappingKind::Placed => "by address".to_owned(),
    }
}
