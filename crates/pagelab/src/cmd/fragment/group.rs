//! What is changed on the machine meanwhile, all under the guard: a control group of our own with a limit,
//! and settings where they were allowed.

use std::fs;

use pagelab_contig::ask::{self, Asked};
use pagelab_contig::reserve::Reserve;
use pagelab_host::guard::{Cgroup, Fate, Guard, GuardError, Knob, Options, Outcome, Site, Watched};
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};

use crate::exit::{Exit, Failure};

/// Beyond what is planned to be held: page tables of the kernel, and all else of this process.
const MARGIN: u64 = 256 << 20;

/// Changes that end with this value.
pub struct Changes {
    guard: Option<Guard>,
    group: Option<Group>,
    /// What could not be done, and why it goes on without.
    pub notes: Vec<String>,
}

struct Group {
    cgroup: Cgroup,
    limit: Bytes,
    is_v2: bool,
    /// Where a command of ours is put, so that the limit is not its.
    home: Option<String>,
}

/// What is to be changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// The mode of huge pages becomes madvise.
    pub thp_on: bool,
    /// The kernel does not compact by itself.
    pub pause_compaction: bool,
    /// The most that is held at one moment; the control group leaves somewhat more.
    pub held_max: Bytes,
}

impl Changes {
    /// Makes them. What was asked for by an option must come; the control group need not.
    pub fn begin(wishes: &Wishes) -> Result<Changes, Failure> {
        let mut changes = Changes { guard: None, group: None, notes: Vec::new() };
        let must = wishes.thp_on || wishes.pause_compaction;
        // Signals are noted by `Stop`, and the run ends by itself: nothing is left to a thread.
        let guard =
            Site::live().and_then(|site| Guard::begin(&site, Watched::left_to_restore(), Options::default()));
        let guard = match guard {
            Ok(guard) => guard,
            Err(error) if must => return Err(refused(&error)),
            Err(error) => {
                changes.notes.push(format!("no limit of its own: {error}"));
                return Ok(changes);
            }
        };
        if wishes.thp_on {
            guard.set(&Knob::thp_enabled(), "madvise").map_err(|error| refused(&error))?;
        }
        if wishes.pause_compaction {
            let knob = Knob::vm("compaction_proactiveness").map_err(|error| refused(&error))?;
            guard.set(&knob, "0").map_err(|error| refused(&error))?;
        }
        let held_max = wishes.held_max.0;
        match group(&guard, Bytes(held_max.saturating_add(held_max / 8 + MARGIN))) {
            Ok(group) => changes.group = Some(group),
            Err(error) => changes.notes.push(format!("no limit of its own: {error}")),
        }
        changes.guard = Some(guard);
        Ok(changes)
    }

    /// Compacts all memory; it is journalled as what cannot be undone.
    pub fn compact(&self) -> Result<(), Failure> {
        match &self.guard {
            Some(guard) => guard.compact_memory().map_err(|error| refused(&error)),
            None => Err(Failure::new(Exit::NotAvailable, "compacting needs root")),
        }
    }

    /// Bytes that this process may hold, if a control group of its own limits it.
    pub fn limit(&self) -> Option<Bytes> {
        self.group.as_ref().map(|group| group.limit)
    }

    /// The directory of the control group that a command belongs into.
    pub fn home(&self) -> Option<&str> {
        self.group.as_ref()?.home.as_deref()
    }

    /// Takes huge pages until none comes or the reserve is reached, without the kernel compacting for them.
    pub fn ask(
        &mut self,
        size: Bytes,
        available: Bytes,
        reserve: Reserve,
        stop: impl FnMut() -> bool,
    ) -> Reading<Asked> {
        let mut stop = stop;
        let most = reserve.room(available).0 / size.0.max(1);
        let failed = |error: GuardError| {
            Absence::new(Knob::thp_defrag().path(), AbsentWhy::NotPermitted, error.to_string())
        };
        let site = Site::live().map_err(failed)?;
        let guard = Guard::begin(&site, Watched::left_to_restore(), Options::default()).map_err(failed)?;
        guard.set(&Knob::thp_defrag(), "never").map_err(failed)?;
        if let Some(group) = &self.group {
            group.write_limit(None);
        }
        let asked = ask::huge_pages(size, most, &mut stop);
        if let Some(group) = &self.group {
            group.write_limit(Some(group.limit));
        }
        asked
    }

    /// Undoes everything, and returns what could not be undone.
    pub fn finish(self) -> Vec<Outcome> {
        let outcomes = self.guard.map(Guard::finish).unwrap_or_default();
        outcomes
            .into_iter()
            .filter(|outcome| matches!(outcome.fate, Fate::LeftAlone | Fate::Failed))
            .collect()
    }
}

fn group(guard: &Guard, limit: Bytes) -> Result<Group, String> {
    let text = |error: GuardError| error.to_string();
    let parent = guard.cgroup_parent("memory").map_err(text)?;
    let is_v2 = fs::exists(format!("{parent}/cgroup.controllers")).unwrap_or(false);
    let home = guard.own_cgroup("memory");
    let cgroup = guard.create_cgroup(&parent, "fragment").map_err(text)?;
    let group = Group { cgroup, limit, is_v2, home };
    let write = |name: &str, value: &str| {
        let path = format!("{}/{name}", group.cgroup.path);
        fs::write(&path, value).map_err(|error| format!("{path}: {error}"))
    };
    write(group.limit_file(), &limit.0.to_string())?;
    write("cgroup.procs", &std::process::id().to_string())?;
    Ok(group)
}

impl Group {
    fn limit_file(&self) -> &'static str {
        if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" }
    }

    /// A limit that cannot be written stays as it was: too tight for the asking, never too wide.
    fn write_limit(&self, limit: Option<Bytes>) {
        let none = if self.is_v2 { "max" } else { "-1" };
        let value = limit.map_or(none.to_owned(), |limit| limit.0.to_string());
        let _ = fs::write(format!("{}/{}", self.cgroup.path, self.limit_file()), value);
    }
}

fn refused(error: &GuardError) -> Failure {
    use pagelab_host::guard::ErrorKind;
    let exit = match error.kind() {
        ErrorKind::Usage => Exit::Usage,
        ErrorKind::BadInput => Exit::BadInput,
        ErrorKind::NotAvailable => Exit::NotAvailable,
        ErrorKind::Refused | ErrorKind::Held | ErrorKind::Stopping => Exit::Partial,
    };
    Failure::new(exit, error.to_string())
}
