//! What came of what was wanted: counted as memory goes, and summed up at the end.

use std::collections::BTreeMap;

use pagelab_model::profile::{MappingKey, MappingKind};

use super::space::{Space, Want, model_key};
use super::{Choice, Ended, Spec};

/// Refusals that are kept one by one; more are counted.
const REFUSED_MAX: usize = 1000;

/// A region that did not come onto a huge page, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The mapping, in words.
    pub mapping: String,
    /// The region's offset in it, in bytes.
    pub offset: u64,
    /// How many huge pages are meant.
    pub regions: u64,
    /// Why.
    pub why: String,
}

/// What came of a supervised run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Huge pages that were wanted: regions of the plan, or with `all` those that the program touched.
    pub wanted: u64,
    /// Of these, huge pages that were read back from the page tables.
    pub got: u64,
    /// The others, the first thousand.
    pub refused: Vec<Refused>,
    /// Refusals beyond those.
    pub refused_more: u64,
    /// Most bytes on huge pages at any look, summed over the program's processes.
    pub huge_bytes: u64,
    /// Bytes on huge pages beyond the breaks of programs, which they did not ask for: at most one huge page
    /// for each, summed over their last looks.
    pub heap_beyond_bytes: u64,
    /// CPU time of the supervisor.
    pub supervisor_cpu_ns: u64,
    /// Of that, what the kernel's collapses took: copying and zeroing, in place of page faults.
    pub collapse_cpu_ns: u64,
    /// Time from the supervisor's notice of a stop to the program's going on, summed over all threads.
    pub stopped_ns: u64,
    /// Stops.
    pub stops: u64,
    /// Wall time from the start to the first process's end.
    pub wall_ns: u64,
    /// How the first process ended.
    pub ended: Option<Ended>,
    /// What a reader must know, in sentences.
    pub notes: Vec<String>,
}

/// The account while the program runs.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub summary: Summary,
    /// Planned mappings that were seen, by program and place.
    pub seen: std::collections::BTreeSet<(usize, usize)>,
    /// Programs of the plan that ran.
    pub ran: std::collections::BTreeSet<usize>,
    /// Bytes on huge pages by space, at its last look.
    pub huge: BTreeMap<u32, u64>,
}

impl Tally {
    /// Says something once.
    pub fn note(&mut self, note: String) {
        if self.summary.notes.len() < REFUSED_MAX && !self.summary.notes.contains(&note) {
            self.summary.notes.push(note);
        }
    }

    /// Counts a want that is gone or at its end.
    pub fn settle(&mut self, want: &Want, space: &Space) {
        let made = space.ledger.made(want.mapping);
        if want.is_inherited {
            return;
        }
        let size = want.at.end - want.at.start;
        let (wanted, got) = match want.is_region {
            true => (1, u64::from(want.got >= size)),
            false => (want.touched, want.got.min(want.touched)),
        };
        self.summary.wanted += wanted;
        self.summary.got += got;
        if got < wanted {
            let why = want.why.clone().unwrap_or_else(|| reason(want, space).to_owned());
            self.refuse(describe(&model_key(&made.key)), want.offset, wanted - got, why);
        }
    }

    fn refuse(&mut self, mapping: String, offset: u64, regions: u64, why: String) {
        if self.summary.refused.len() < REFUSED_MAX {
            self.summary.refused.push(Refused { mapping, offset, regions, why });
        } else {
            self.summary.refused_more += regions;
        }
    }

    /// Bytes on huge pages in a space, at a look.
    pub fn looked(&mut self, space: u32, huge: u64) {
        self.huge.insert(space, huge);
        self.summary.huge_bytes = self.summary.huge_bytes.max(self.huge.values().sum());
    }

    /// The summary, with what of the plan was never seen.
    pub fn close(&mut self, spec: &Spec) -> Summary {
        if let Choice::Plan(plan) = &spec.choice {
            for (at, program) in plan.programs.iter().enumerate() {
                let missing: Vec<usize> =
                    (0..program.mappings.len()).filter(|&m| !self.seen.contains(&(at, m))).collect();
                if !self.ran.contains(&at) {
                    self.note(format!(
                        "the plan is for {}, which did not run: nothing was advised for it",
                        shown(&program.program.path)
                    ));
                } else if !missing.is_empty() {
                    self.note(format!(
                        "{} of {} planned mappings of {} never appeared: another input than the profiled \
                         one, or another build; profile this run and plan again",
                        missing.len(),
                        program.mappings.len(),
                        shown(&program.program.path)
                    ));
                }
                for mapping in missing.into_iter().map(|m| &program.mappings[m]) {
                    self.summary.wanted += mapping.regions.len() as u64;
                    let regions = mapping.regions.len() as u64;
                    let why = "the mapping never appeared".to_owned();
                    self.refuse(describe(&mapping.key), 0, regions, why);
                }
            }
        }
        self.summary.clone()
    }
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "any program" } else { path }
}

fn reason(want: &Want, space: &Space) -> &'static str {
    if space.is_switched_off {
        return "the program switched huge pages off by prctl (PR_SET_THP_DISABLE); --override undoes that";
    }
    if want.touched == 0 {
        return "never touched while it was looked at";
    }
    if !want.is_region {
        return "mapped by the program in smaller parts, less than half of it touched, or no free huge page \
                (`pagelab can` says how many there are)";
    }
    "no free huge page when it was first touched: memory is fragmented; `pagelab compact` makes room, \
     `pagelab can` says how many there are"
}

/// A mapping in words.
pub fn describe(key: &MappingKey) -> String {
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
