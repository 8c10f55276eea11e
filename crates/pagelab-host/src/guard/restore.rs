//! Restoration after a killed pagelab: every journal of the directory, each by the state of its owner.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::journal::{
    self, ChangeOutcome, Journal, JournalEntry, JournalRejection, JournalledAction, UndoOutcome,
};
use super::journal_dir::{self, LockedJournalDir, RawJournal};
use super::kernel::{DryRunKernel, Kernel};
use super::kernel_objects;
use super::owner::{Liveness, Owner};
use super::undo;
use super::{GuardError, GuardErrorKind, GuardSite};

/// Time that a restore waits for another one: refilling a large pool takes long.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Result of [`restore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// One per journal with changes.
    pub journals: Vec<JournalReport>,
    /// Journals that cannot be understood or trusted. Nothing was written because of them.
    pub rejected: Vec<RejectedJournal>,
    /// Journals that an earlier restore rejected and moved aside.
    pub quarantined: Vec<PathBuf>,
}

/// Outcome of the changes of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalReport {
    /// Owner of the changes.
    pub owner: Owner,
    /// Whether it still runs.
    pub liveness: Liveness,
    /// Its changes, in the order in which they were undone: the last one first.
    pub outcomes: Vec<ChangeOutcome>,
}

/// A journal that is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedJournal {
    /// Its path.
    pub path: PathBuf,
    /// Its new path, if it was moved.
    pub moved_to: Option<PathBuf>,
    /// The reason, with the line of the error if it is in one line.
    pub reason: String,
}

impl RestoreReport {
    /// Number of changes with this outcome.
    pub fn count(&self, undo: UndoOutcome) -> usize {
        self.journals.iter().flat_map(|journal| &journal.outcomes).filter(|o| o.undo == undo).count()
    }
}

/// Undoes the changes of killed processes. Running owners keep theirs; journals of other boots are discarded,
/// for their changes ended with the boot; a setting that another process changed since stays. A second call
/// finds nothing to do, and concurrent calls wait for each other. `dry_run`: nothing is changed, in the
/// kernel or in the journals; the report states the intended changes.
pub fn restore(site: &GuardSite, dry_run: bool) -> Result<RestoreReport, GuardError> {
    let mut report = RestoreReport::default();
    let Some(locked) = site.dir.lock(false, LOCK_WAIT)? else { return Ok(report) };
    let kernel: Arc<dyn Kernel> = match dry_run {
        true => Arc::new(DryRunKernel::new(site.kernel.clone())),
        false => site.kernel.clone(),
    };
    for name in locked.list_names()? {
        if journal_dir::is_quarantined(&name) {
            report.quarantined.push(locked.path_for(&name));
        } else if journal_dir::is_journal(&name) {
            restore_journal(site, kernel.as_ref(), &locked, &name, dry_run, &mut report);
        }
    }
    if !dry_run {
        locked.release();
    }
    Ok(report)
}

fn restore_journal(
    site: &GuardSite,
    kernel: &dyn Kernel,
    locked: &LockedJournalDir,
    name: &str,
    dry_run: bool,
    report: &mut RestoreReport,
) {
    let (mut journal, mut raw) = match open_journal(kernel, locked, name) {
        Ok(Some(opened)) => opened,
        // Its owner was killed before it wrote the head, and so before any change.
        Ok(None) => {
            if !dry_run {
                let _ = locked.remove_journal(name);
            }
            return;
        }
        Err(rejection) => return reject_journal(locked, name, rejection, dry_run, report),
    };
    let liveness = journal.owner.liveness(&site.owner, raw.is_locked);
    let entries = &mut journal.entries;
    let untouched_outcomes = |undo: UndoOutcome| -> Vec<ChangeOutcome> {
        let open = entries.iter().rev().filter(|entry| entry.is_open);
        open.map(|entry| ChangeOutcome::from_entry(entry, undo)).collect()
    };
    let outcomes = match liveness {
        Liveness::Live => untouched_outcomes(UndoOutcome::OwnerRunning),
        Liveness::OtherBoot => untouched_outcomes(UndoOutcome::OtherBoot),
        Liveness::Killed => {
            let file = (!dry_run).then_some(&mut raw.file);
            undo::undo_all(kernel, entries, &|_, _| true, file)
        }
    };
    let is_done = liveness == Liveness::OtherBoot || !entries.iter().any(|entry| entry.is_open);
    if is_done && liveness != Liveness::Live && !dry_run {
        let _ = locked.remove_journal(name);
    }
    if !outcomes.is_empty() {
        report.journals.push(JournalReport { owner: journal.owner, liveness, outcomes });
    }
}

fn reject_journal(
    locked: &LockedJournalDir,
    name: &str,
    rejection: JournalRejection,
    dry_run: bool,
    report: &mut RestoreReport,
) {
    let path = locked.path_for(name);
    let kept_as = match rejection.can_move && !dry_run {
        true => locked.quarantine(name).ok(),
        false => None,
    };
    report.rejected.push(RejectedJournal { path, moved_to: kept_as, reason: rejection.reason });
}

/// Opens and reads the journal `name`. `None`: it no longer exists, or is empty.
fn open_journal(
    kernel: &dyn Kernel,
    locked: &LockedJournalDir,
    name: &str,
) -> Result<Option<(Journal, RawJournal)>, JournalRejection> {
    let raw_journal = locked.read_journal(name);
    let raw_journal = raw_journal.map_err(|reason| JournalRejection { reason, can_move: true })?;
    let Some(raw) = raw_journal else { return Ok(None) };
    let journal = journal::decode(&raw.bytes, kernel).map_err(|rejection| JournalRejection {
        can_move: rejection.can_move && !raw.is_locked,
        ..rejection
    })?;
    let Some(journal) = journal else { return Ok(None) };
    if journal_dir::journal_name(&journal.owner) != name {
        let reason = "its name does not match the process it describes".to_owned();
        return Err(JournalRejection { reason, can_move: !raw.is_locked });
    }
    Ok(Some((journal, raw)))
}

/// Relation of another process to a requested setting.
pub(super) enum ClaimSurvey {
    /// No process holds it. Changes of killed processes to it were undone first, so that the value found next
    /// is the owner's and not that of a killed pagelab.
    Unclaimed(Vec<JournalReport>),
    HeldBy(Owner),
}

/// A change of a killed owner that cannot be undone now.
fn stuck_error(stuck: &ChangeOutcome, owner: &Owner) -> GuardError {
    let (label, name) = (&stuck.label, owner.display_name());
    let message = format!("cannot restore {label}, which {name} changed: {}", stuck.detail);
    GuardError::new(GuardErrorKind::KernelRefused, message)
}

/// Searches the journals of all other processes for `claim`. A malformed journal might contain anything, so
/// it prevents every change until `pagelab restore` has moved it.
pub(super) fn survey_claim(
    site: &GuardSite,
    locked: &LockedJournalDir,
    claim: &str,
    dry_run: bool,
) -> Result<ClaimSurvey, GuardError> {
    let (kernel, own_journal) = (site.kernel.as_ref(), journal_dir::journal_name(&site.owner));
    let mut reports = Vec::new();
    for name in locked.list_names()?.iter().filter(|name| journal_dir::is_journal(name)) {
        let path = locked.path_for(name);
        let (mut journal, mut raw) = match open_journal(kernel, locked, name) {
            Ok(Some(opened)) => opened,
            Ok(None) => continue,
            Err(rejection) => {
                let message = format!(
                    "cannot use the journal {}: {}; hint: run pagelab restore first",
                    path.display(),
                    rejection.reason
                );
                return Err(GuardError::new(GuardErrorKind::BadInput, message));
            }
        };
        let has_claim = |entry: &JournalEntry| entry.is_open && entry.act.claim().as_deref() == Some(claim);
        // No claim names the trace instance of a dead process: creating a new one removes it.
        let is_left = |entry: &JournalEntry| {
            let both = kernel_objects::is_trace_instance(claim)
                && matches!(entry.act, JournalledAction::TraceInstance { .. });
            has_claim(entry) || entry.is_open && both
        };
        match journal.owner.liveness(&site.owner, raw.is_locked) {
            // A process of an earlier boot may have had the same PID and start time.
            Liveness::OtherBoot if *name == own_journal => {
                let _ = locked.remove_journal(name);
            }
            Liveness::Live if *name != own_journal && journal.entries.iter().any(has_claim) => {
                return Ok(ClaimSurvey::HeldBy(journal.owner));
            }
            Liveness::OtherBoot | Liveness::Live => {}
            Liveness::Killed => {
                let file = (!dry_run).then_some(&mut raw.file);
                let outcomes = undo::undo_all(kernel, &mut journal.entries, &|_, entry| is_left(entry), file);
                let is_done = !journal
                    .entries
                    .iter()
                    .any(|e| e.is_open && !matches!(e.act, JournalledAction::OneWay { .. }));
                if is_done && !dry_run {
                    let _ = locked.remove_journal(name);
                }
                if let Some(stuck) = outcomes.iter().find(|outcome| outcome.undo == UndoOutcome::Failed) {
                    return Err(stuck_error(stuck, &journal.owner));
                }
                if !outcomes.is_empty() {
                    let liveness = Liveness::Killed;
                    reports.push(JournalReport { owner: journal.owner, liveness, outcomes });
                }
            }
        }
    }
    Ok(ClaimSurvey::Unclaimed(reports))
}
