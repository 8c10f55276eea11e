//! Changes of the machine during the run, all under the guard: a cgroup with a limit for this process, and
//! settings where options allow them.

use std::fs;

use pagelab_contig::oom::OomScoreGuard;
use pagelab_contig::reserve::Reserve;
use pagelab_contig::thp_request::{self, ThpFaultCount};
use pagelab_host::guard::{Guard, GuardError, Knob, UndoOutcome};
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading};

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::machine_guard::open_unwatched_guard;
use pagelab_command::output;

/// Margin of the limit: page tables, and other memory of this process.
const LIMIT_MARGIN_BYTES: u64 = 256 << 20;

/// Changes of the machine, undone when this value is dropped.
pub struct MachineChanges {
    guard: Option<Guard>,
    group: Option<LimitedCgroup>,
}

struct LimitedCgroup {
    cgroup: String,
    limit: Bytes,
    is_v2: bool,
    /// Cgroup for the command, which the limit does not apply to.
    command_cgroup: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ChangeRequest {
    /// Set THP to madvise.
    pub enable_thp: bool,
    /// Disable proactive compaction.
    pub pause_compaction: bool,
    /// Maximum memory held at any time; the limit of the cgroup is somewhat higher.
    pub held_max: Bytes,
}

impl MachineChanges {
    /// Applies the changes. Changes requested by an option must succeed; the cgroup may fail, with a note.
    pub fn apply(request: &ChangeRequest) -> Result<MachineChanges, Failure> {
        let must = request.enable_thp || request.pause_compaction;
        // `StopSignal` records signals, and the run ends by itself, so the guard needs no signal thread.
        let guard = match open_unwatched_guard() {
            Ok(guard) => guard,
            Err(error) if must => return Err(error.into()),
            Err(error) => {
                output::warn(&format!("note: running without a cgroup memory limit: {error}"));
                return Ok(MachineChanges { guard: None, group: None });
            }
        };
        if request.enable_thp {
            guard.set_knob(&Knob::thp_enabled(), "madvise")?;
        }
        if request.pause_compaction {
            let knob = Knob::vm("compaction_proactiveness")?;
            guard.set_knob(&knob, "0")?;
        }
        let held_max = request.held_max.0;
        let limit = Bytes(held_max.saturating_add(held_max / 8 + LIMIT_MARGIN_BYTES));
        let group = create_cgroup(&guard, limit).inspect_err(|error| {
            output::warn(&format!("note: running without a cgroup memory limit: {error}"));
        });
        Ok(MachineChanges { guard: Some(guard), group: group.ok() })
    }

    /// Compacts all memory; the journal marks it as irreversible.
    pub fn compact_memory(&self) -> Result<(), Failure> {
        match &self.guard {
            Some(guard) => Ok(guard.compact_memory()?),
            None => {
                Err(Failure::cannot(FailureKind::NotAvailable, "compact memory", "not root").hint("use sudo"))
            }
        }
    }

    /// Returns the limit of this process, if it has a separate cgroup.
    pub fn cgroup_limit(&self) -> Option<Bytes> {
        self.group.as_ref().map(|group| group.limit)
    }

    pub fn command_cgroup(&self) -> Option<&str> {
        self.group.as_ref()?.command_cgroup.as_deref()
    }

    /// Allocates huge pages until one fails or the reserve is reached, without direct compaction.
    pub fn allocate_huge_pages(
        &mut self,
        size: Bytes,
        available: Bytes,
        reserve: Reserve,
        mut stop: impl FnMut() -> bool,
    ) -> Reading<ThpFaultCount> {
        let most = reserve.headroom(available).0 / size.0.max(1);
        let failed = |error: GuardError| {
            Absence::new(Knob::thp_defrag().path(), AbsenceReason::NotPermitted, error.to_string())
        };
        let guard = open_unwatched_guard().map_err(failed)?;
        guard.set_knob(&Knob::thp_defrag(), "never").map_err(failed)?;
        if let Some(group) = &self.group {
            group.write_limit(None);
        }
        let count = thp_request::fault_in_huge_pages(size, most, &mut stop);
        if let Some(group) = &self.group {
            group.write_limit(Some(group.limit));
        }
        count
    }

    /// Undoes all changes. Returns whether all were undone, and warns about the others.
    pub fn restore(self) -> bool {
        let mut is_clean = true;
        for outcome in self.guard.map(Guard::finish).unwrap_or_default() {
            if matches!(outcome.undo, UndoOutcome::LeftUnchanged | UndoOutcome::Failed) {
                is_clean = false;
                let undo = outcome.undo.json_name().replace('_', " ");
                output::warn(&format!("warning: {}: {undo}", outcome.label));
            }
        }
        is_clean
    }
}

/// Makes this process the first choice of the OOM killer, with a note if that fails.
pub fn offer_to_oom_killer() -> Option<OomScoreGuard> {
    let offered = OomScoreGuard::new();
    let warn = |absence: &Absence| {
        output::warn(&format!("note: cannot set oom_score_adj: {}", absence.reason()));
    };
    offered.inspect_err(warn).ok()
}

fn create_cgroup(guard: &Guard, limit: Bytes) -> Result<LimitedCgroup, String> {
    let text = |error: GuardError| error.to_string();
    let parent = guard.cgroup_parent("memory").map_err(text)?;
    let is_v2 = fs::exists(format!("{parent}/cgroup.controllers")).unwrap_or(false);
    let home = guard.own_cgroup("memory");
    let cgroup = guard.create_cgroup(&parent, "fragment").map_err(text)?;
    let group = LimitedCgroup { cgroup, limit, is_v2, command_cgroup: home };
    let write = |name: &str, value: &str| {
        let path = format!("{}/{name}", group.cgroup);
        fs::write(&path, value).map_err(|error| format!("{path}: {error}"))
    };
    write(group.limit_file(), &limit.0.to_string())?;
    write("cgroup.procs", &std::process::id().to_string())?;
    Ok(group)
}

impl LimitedCgroup {
    fn limit_file(&self) -> &'static str {
        if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" }
    }

    /// Writes the limit. If that fails, the old limit remains, which is too low for the measurement, never
    /// too high.
    fn write_limit(&self, limit: Option<Bytes>) {
        let none = if self.is_v2 { "max" } else { "-1" };
        let value = limit.map_or(none.to_owned(), |limit| limit.0.to_string());
        let _ = fs::write(format!("{}/{}", self.cgroup, self.limit_file()), value);
    }
}
