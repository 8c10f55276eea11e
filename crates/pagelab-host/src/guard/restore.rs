//! Undoing what a killed pagelab left: every journal of the directory, each judged by its owner.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Site;
use super::dir::{self, JournalFile, Locked};
use super::error::GuardError;
use super::journal::{self, Act, Bad, Entry, Journal, Record};
use super::kernel::{Kernel, Pretend};
use super::owner::{Liveness, Owner};
use super::trace_instance;
use super::undo::{self, Fate, Outcome};

/// How long a restore waits for another one: filling a large pool again takes its time.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// What [`restore`] found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// One for each journal that tells of something.
    pub journals: Vec<JournalReport>,
    /// Journals that cannot be understood or trusted. Nothing was written because of them.
    pub refused: Vec<Refused>,
    /// Journals that an earlier restore refused and put aside.
    pub aside: Vec<PathBuf>,
}

/// What became of the changes of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalReport {
    /// Whose changes.
    pub owner: Owner,
    /// Whether it still runs.
    pub liveness: Liveness,
    /// Its changes, in the order in which they were undone: the last one first.
    pub outcomes: Vec<Outcome>,
}

/// A journal that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Where it was.
    pub path: PathBuf,
    /// Where it is kept now, if it was moved.
    pub kept_as: Option<PathBuf>,
    /// Why, with the line where it is one line's fault.
    pub reason: String,
}

impl Report {
    /// How many changes ended in this way.
    pub fn count(&self, fate: Fate) -> usize {
        self.journals.iter().flat_map(|journal| &journal.outcomes).filter(|o| o.fate == fate).count()
    }
}

/// Undoes what killed processes left. Owners that run are let alone; journals of other boots are
/// discarded, for their changes ended with the boot; what is no longer ours stays. A second call finds
/// nothing to do, and two at once wait for each other. `dry_run`: nothing is changed, in the kernel or
/// in the journals; the report tells what would be.
pub fn restore(site: &Site, dry_run: bool) -> Result<Report, GuardError> {
    let mut report = Report::default();
    let Some(locked) = site.dir.lock(false, LOCK_WAIT)? else { return Ok(report) };
    let kernel: Arc<dyn Kernel> = match dry_run {
        true => Arc::new(Pretend::over(site.kernel.clone())),
        false => site.kernel.clone(),
    };
    let names = locked.names().map_err(|e| GuardError::io(site.dir.path().display().to_string(), e))?;
    for name in names {
        if dir::is_aside(&name) {
            report.aside.push(locked.path_of(&name));
        } else if dir::is_journal(&name) {
            restore_one(site, kernel.as_ref(), &locked, &name, dry_run, &mut report);
        }
    }
    if !dry_run {
        locked.leave();
    }
    Ok(report)
}

fn restore_one(
    site: &Site,
    kernel: &dyn Kernel,
    locked: &Locked,
    name: &str,
    dry_run: bool,
    report: &mut Report,
) {
    let mut opened = match open(kernel, locked, name) {
        Ok(Some(opened)) => opened,
        // Its owner was killed before it wrote who it is, and so before any change.
        Ok(None) => {
            if !dry_run {
                let _ = locked.remove(name);
            }
            return;
        }
        Err(refusal) => return refuse(locked, name, refusal, dry_run, report),
    };
    let liveness = opened.journal.owner.liveness(&site.owner, opened.is_locked);
    let entries = &mut opened.journal.entries;
    let untouched = |fate: Fate| -> Vec<Outcome> {
        let open = entries.iter().rev().filter(|entry| entry.is_open);
        open.map(|entry| Outcome::of(entry, fate)).collect()
    };
    let outcomes = match liveness {
        Liveness::Live => untouched(Fate::Held),
        Liveness::OtherBoot => untouched(Fate::OtherBoot),
        Liveness::Killed => {
            let file = (!dry_run).then_some(&mut opened.file);
            undo_open(kernel, entries, &|_| true, file)
        }
    };
    let is_done = liveness == Liveness::OtherBoot || !entries.iter().any(|entry| entry.is_open);
    if is_done && liveness != Liveness::Live && !dry_run {
        let _ = locked.remove(name);
    }
    if !outcomes.is_empty() {
        report.journals.push(JournalReport { owner: opened.journal.owner, liveness, outcomes });
    }
}

fn refuse(locked: &Locked, name: &str, refusal: Refusal, dry_run: bool, report: &mut Report) {
    let path = locked.path_of(name);
    let kept_as = match refusal.may_move && !dry_run {
        true => locked.set_aside(name).ok(),
        false => None,
    };
    report.refused.push(Refused { path, kept_as, reason: refusal.reason });
}

/// A journal that was understood.
pub(super) struct Opened {
    pub(super) journal: Journal,
    pub(super) file: JournalFile,
    pub(super) is_locked: bool,
}

/// Why a journal is refused, and whether it may be moved out of the way: not one of a newer pagelab,
/// and not one whose owner still writes it.
pub(super) struct Refusal {
    pub(super) reason: String,
    may_move: bool,
}

/// Opens and reads the journal `name`. `None`: it is gone, or holds nothing at all.
pub(super) fn open(kernel: &dyn Kernel, locked: &Locked, name: &str) -> Result<Option<Opened>, Refusal> {
    let found = locked.read(name).map_err(|reason| Refusal { reason, may_move: true })?;
    let Some(found) = found else { return Ok(None) };
    let is_locked = found.is_locked;
    let refusal = |reason: String| Refusal { reason, may_move: !is_locked };
    let journal = match journal::decode(&found.bytes, kernel) {
        Ok(Some(journal)) => journal,
        Ok(None) => return Ok(None),
        Err(Bad::Newer(version)) => {
            let reason = format!("was written by a newer pagelab (version {version}); restore with that one");
            return Err(Refusal { reason, may_move: false });
        }
        Err(Bad::Line(line, what)) => return Err(refusal(format!("line {line}: {what}"))),
    };
    if dir::journal_name(&journal.owner) != name {
        return Err(refusal("its name is not that of the process that it tells of".to_owned()));
    }
    Ok(Some(Opened { journal, file: found.file, is_locked }))
}

/// Undoes the open entries of a dead owner's journal that `choose` chooses, and notes that in it.
fn undo_open(
    kernel: &dyn Kernel,
    entries: &mut [Entry],
    choose: &dyn Fn(&Entry) -> bool,
    mut file: Option<&mut JournalFile>,
) -> Vec<Outcome> {
    let mut note = |record: &Record| {
        if let Some(file) = &mut file {
            // A journal that takes no record any more only makes a second restore look again.
            let _ = file.append(record);
        }
    };
    undo::undo_all(kernel, entries, &|_, entry| choose(entry), &mut note)
}

/// What another process has to do with a setting that is wanted.
pub(super) enum Survey {
    /// Nobody holds it. What killed processes had left on it was undone first, so that the value found
    /// next is the owner's and not a dead pagelab's.
    Free(Vec<JournalReport>),
    /// A running process holds it.
    Held(Owner),
}

/// Looks through the journals of all other processes for `claim`. A journal that cannot be understood
/// might hold anything, so it stops every change until `pagelab restore` has put it aside.
pub(super) fn survey(
    site: &Site,
    kernel: &dyn Kernel,
    locked: &Locked,
    claim: &str,
    dry_run: bool,
) -> Result<Survey, GuardError> {
    let own = dir::journal_name(&site.owner);
    let mut undone = Vec::new();
    let names = locked.names().map_err(|e| GuardError::io(site.dir.path().display().to_string(), e))?;
    for name in names.iter().filter(|name| dir::is_journal(name)) {
        let path = locked.path_of(name);
        let opened = match open(kernel, locked, name) {
            Ok(Some(opened)) => opened,
            Ok(None) => continue,
            Err(refusal) => {
                let message = format!(
                    "the journal {} cannot be used: {}; run pagelab restore first",
                    path.display(),
                    refusal.reason
                );
                return Err(GuardError::new(super::ErrorKind::BadInput, message));
            }
        };
        let Opened { mut journal, mut file, is_locked } = opened;
        let wants = |entry: &Entry| entry.is_open && entry.act.claim().as_deref() == Some(claim);
        // Nobody wants the instance of a dead one by its name, but whoever makes one clears up behind it.
        let is_left = |entry: &Entry| {
            let both = trace_instance::is_ours(claim) && matches!(entry.act, Act::TraceInstance { .. });
            wants(entry) || entry.is_open && both
        };
        match journal.owner.liveness(&site.owner, is_locked) {
            // A process of an earlier boot can have had our number and start time.
            Liveness::OtherBoot if *name == own => {
                let _ = locked.remove(name);
            }
            Liveness::OtherBoot => {}
            Liveness::Live if *name == own => {}
            Liveness::Live if journal.entries.iter().any(wants) => return Ok(Survey::Held(journal.owner)),
            Liveness::Live => {}
            Liveness::Killed => {
                let file = (!dry_run).then_some(&mut file);
                let outcomes = undo_open(kernel, &mut journal.entries, &is_left, file);
                let is_done =
                    !journal.entries.iter().any(|e| e.is_open && !matches!(e.act, Act::OneWay { .. }));
                if is_done && !dry_run {
                    let _ = locked.remove(name);
                }
                if let Some(stuck) = outcomes.iter().find(|outcome| outcome.fate == Fate::Failed) {
                    let message = format!(
                        "{} still is as {} left it, and cannot be put back: {}",
                        stuck.what,
                        journal.owner.name(),
                        stuck.detail
                    );
                    return Err(GuardError::new(super::ErrorKind::Refused, message));
                }
                if !outcomes.is_empty() {
                    undone.push(JournalReport { owner: journal.owner, liveness: Liveness::Killed, outcomes });
                }
            }
        }
    }
    Ok(Survey::Free(undone))
}
