//! Guard: every change of the machine is journalled before it is made and undone after, also after a kill.
//!
//! ```no_run
//! use pagelab_host::guard::{Guard, GuardOptions, GuardSite, Knob, SignalWatch};
//!
//! # fn main() -> Result<(), pagelab_host::guard::GuardError> {
//! # let end = Box::new(|_code: i32, _undone: &[pagelab_host::guard::ChangeOutcome]| {});
//! let guard = Guard::new(&GuardSite::live()?, SignalWatch::install(end)?, GuardOptions::default())?;
//! guard.set_knob(&Knob::thp_enabled(), "never")?;
//! // … measure …
//! for outcome in guard.finish() {
//!     // say what is not as it was
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Guarantees:
//! - Before a change is made, it is in the journal on disk. If it cannot be written there, the change is not
//!   made.
//! - A change ends with its guard: by [`Guard::finish`], by drop (a panic unwinds through it), by SIGINT,
//!   SIGTERM or SIGHUP, or, after `kill -9`, by [`restore()`], which `pagelab restore` calls.
//! - Only values of pagelab are undone. A value that another process set since is kept and reported.
//! - A setting has one process at a time. Within a process, guards nest: the inner one restores the outer
//!   one's value, and the order in which they end does not matter.
//! - A success code is no proof: every change is read back.
//!
//! docs/guard.md has a table of the processes that may be killed at each step, and its effects on the others.

mod journal;
mod journal_dir;
mod kernel;
mod kernel_objects;
mod knob;
mod ledger;
mod owner;
mod restore;
mod swap;
mod undo;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, fs, io, thread};

use journal::JournalledAction;
use journal_dir::LockedJournalDir;
use ledger::{Ledger, SharedLedger};
use pagelab_formats::swap as swap_format;
use pagelab_model::{Bytes, Failure, FailureKind, NodeId, PageSize};
use pagelab_sys::swap::PRIORITY_MAX;
use restore::ClaimSurvey;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::tracepoints::TraceInstance;
use crate::{machine, paths};

pub use journal::{ChangeOutcome, UndoOutcome};
pub use journal_dir::JournalDir;
pub use kernel::{DryRunKernel, FileKernel, FsSpace, Kernel};
pub use kernel_objects::swap_file_creator;
pub use knob::Knob;
pub use owner::{Liveness, Owner};
pub use restore::{JournalReport, RejectedJournal, RestoreReport, restore};
pub use swap::SwapFile;
pub use undo::OWN_MEMORY;

/// Time that a change waits for another pagelab that reads the journals.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Options of a guard.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardOptions {
    /// Time to wait for a setting that another pagelab holds. Zero refuses at once.
    pub wait_timeout: Duration,
    /// Dry run; [`Guard::planned_changes`] lists the changes.
    pub dry_run: bool,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChange {
    /// The value before.
    pub old: String,
    /// Requested value.
    pub requested: String,
    /// The value that was read back. It differs from `requested` only for pools, which may get fewer pages.
    pub actual: String,
}

impl AppliedChange {
    /// Whether the kernel applied exactly the requested value.
    pub fn is_exact(&self) -> bool {
        self.requested == self.actual
    }
}

/// A change that a dry run would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// Display name of the setting.
    pub label: String,
    /// The file or directory; for an irreversible action its name.
    pub path: String,
    /// The value in force, if it is a setting.
    pub current_value: Option<String>,
    /// The value to come, if it is a setting.
    pub new_value: Option<String>,
}

/// Changes that end together.
#[derive(Debug)]
pub struct Guard {
    shared: SharedLedger,
    site: GuardSite,
    guard_id: u64,
    options: GuardOptions,
    planned: Mutex<Vec<PlannedChange>>,
    recovered_journals: Mutex<Vec<JournalReport>>,
    is_finished: bool,
}

impl Guard {
    /// Guard without changes. Nothing is written before its first change.
    pub fn new(site: &GuardSite, _signals: SignalWatch, options: GuardOptions) -> Result<Guard, GuardError> {
        let shared = ledger::for_site(site);
        let guard_id = lock_ignoring_poison(&shared).register_guard();
        let mut site = site.clone();
        if options.dry_run {
            site.kernel = Arc::new(DryRunKernel::new(site.kernel));
        }
        Ok(Guard {
            shared,
            site,
            guard_id,
            options,
            planned: Mutex::default(),
            recovered_journals: Mutex::default(),
            is_finished: false,
        })
    }

    /// Changes a setting until the guard ends. If the kernel does not apply the value, the previous one is
    /// restored and that is an error; only a pool may become smaller, see [`AppliedChange::actual`].
    pub fn set_knob(&self, knob: &Knob, value: &str) -> Result<AppliedChange, GuardError> {
        if !knob.is_valid_value(value) {
            let message = format!("cannot set {} to {value:?}: invalid value", knob.label());
            return Err(GuardError::new(GuardErrorKind::InvalidRequest, message));
        }
        let kernel = self.site.kernel.as_ref();
        let (mut ledger, locked) = self.acquire_claim(&knob.claim_key(), &knob.label())?;
        let read_error = |e| GuardError::from_io(format!("cannot read {}", knob.path()), e);
        let old = knob.read(kernel).map_err(read_error)?;
        let companion = knob.companion_knob();
        let read_companion = || companion.as_ref().and_then(|knob| knob.read(kernel).ok());
        let act = JournalledAction::Change {
            knob: knob.clone(),
            old: old.clone(),
            requested: value.to_owned(),
            min_free_kbytes: read_companion(),
        };
        let Some(index) = self.journal_act(&mut ledger, locked, act)? else {
            let written = knob.write(kernel, value);
            written.map_err(|e| GuardError::from_io(format!("cannot change {}", knob.label()), e))?;
            return Ok(AppliedChange { old, requested: value.to_owned(), actual: value.to_owned() });
        };
        // The setting has the value already: it is claimed and not written.
        let written = if old == value { Ok(()) } else { knob.write(kernel, value) };
        let actual = match written.and_then(|()| knob.read(kernel)) {
            Ok(got) if got == value || knob.can_fall_short() => got,
            refused => {
                let (kind, problem) = match refused {
                    Ok(got) => {
                        (GuardErrorKind::KernelRefused, format!("it still reads {got:?} after the write"))
                    }
                    Err(error) => {
                        let choices = knob.available_choices(kernel);
                        let offer = choices.map(|choices| format!("; expected {choices}"));
                        let problem = format!("{error}{}", offer.unwrap_or_default());
                        (GuardErrorKind::from_io_error(&error), problem)
                    }
                };
                let message = format!("cannot set {} to {value:?}: {problem}", knob.label());
                return Err(undo_failed_change(&mut ledger, index, kind, message));
            }
        };
        if let Err(problem) = knob.cross_check(kernel) {
            let message = format!("cannot set {} to {value:?}: {problem}", knob.label());
            return Err(undo_failed_change(&mut ledger, index, GuardErrorKind::KernelRefused, message));
        }
        ledger.record_read_back(index, actual.clone(), read_companion());
        Ok(AppliedChange { old, requested: value.to_owned(), actual })
    }

    /// Parent of a new cgroup with this controller, below the limits of this process.
    pub fn cgroup_parent(&self, controller: &str) -> Result<String, GuardError> {
        kernel_objects::cgroup_parent(self.site.kernel.as_ref(), controller)
    }

    /// The cgroup in which this process is now, in the hierarchy with this controller, if it can be seen.
    pub fn own_cgroup(&self, controller: &str) -> Option<String> {
        kernel_objects::own_cgroup_for_controller(self.site.kernel.as_ref(), controller)
    }

    /// The cgroup of version 2 in which this process is now, if there is such a hierarchy and it can be seen.
    /// Any process may create a cgroup below it, if that needs no controllers.
    pub fn own_unified_cgroup(&self) -> Option<String> {
        kernel_objects::own_unified_cgroup(self.site.kernel.as_ref())
    }

    /// Makes the cgroup `pagelab-AREA_LABEL-…` below `parent`. When the guard ends, its processes move to the
    /// cgroup of this process (if that is not possible, to `parent`), and it is removed with its limits.
    /// Returns its directory.
    pub fn create_cgroup(&self, parent: &str, label: &str) -> Result<String, GuardError> {
        let kernel = self.site.kernel.as_ref();
        let path = kernel_objects::cgroup_path(parent, label, &self.unique_suffix())?;
        if !kernel_objects::is_our_cgroup(kernel, &path) {
            let message =
                format!("cannot create a cgroup in {parent}: it is not in a mounted cgroup hierarchy");
            return Err(GuardError::new(GuardErrorKind::NotAvailable, message));
        }
        let home = kernel_objects::return_cgroup(kernel, &path);
        let act = JournalledAction::Cgroup { path: path.clone(), home };
        self.create_announced_dir(act, "it already exists; hint: use another label")?;
        Ok(path)
    }

    /// Part of the names of objects of this guard.
    fn unique_suffix(&self) -> String {
        let Owner { pid, start_ticks, .. } = self.site.owner;
        format!("{pid}-{start_ticks}-{}", self.guard_id)
    }

    /// Announces a directory, creates it, and stores its inode number; `exists`: why it must not exist yet.
    fn create_announced_dir(&self, act: JournalledAction, exists: &str) -> Result<(), GuardError> {
        let (kernel, path) = (self.site.kernel.as_ref(), act.path().to_owned());
        let (mut ledger, locked) = self.acquire_claim(&path, &act.label())?;
        // Before the announcement, so that no restore can mistake another directory for it.
        if kernel.inode(&path).is_ok() {
            let message = format!("cannot create {path}: {exists}");
            return Err(GuardError::new(GuardErrorKind::InvalidRequest, message));
        }
        let entry_index = self.journal_act(&mut ledger, locked, act)?;
        let made = kernel.make_dir(&path).and_then(|()| kernel.inode(&path));
        if let Some(index) = entry_index {
            match &made {
                Ok(inode) => ledger.record_read_back(index, inode.to_string(), None),
                Err(_) => drop(ledger.undo_entry(index)),
            }
        }
        made.map(drop).map_err(|error| GuardError::from_io(format!("cannot create {path}"), error))
    }

    /// Mounts debugfs at its usual place, until the guard ends. `false`: it is mounted already, and nothing
    /// is changed. Unmounting does not wait: if a program uses it, it stays mounted, and the outcome says so.
    pub fn mount_debugfs(&self) -> Result<bool, GuardError> {
        let (kernel, path) = (self.site.kernel.as_ref(), paths::DEBUGFS);
        let (mut ledger, locked) = self.acquire_claim(path, "debugfs")?;
        let find_mounted = || kernel_objects::find_debugfs(kernel, path);
        if find_mounted()
            .map_err(|e| GuardError::from_io(format!("cannot read {}", paths::SELF_MOUNTINFO), e))?
            .is_some()
        {
            if let Some(locked) = locked {
                locked.release();
            }
            return Ok(false);
        }
        let index =
            self.journal_act(&mut ledger, locked, JournalledAction::Debugfs { path: path.to_owned() })?;
        let mounted = kernel.mount_debugfs(path).and_then(|()| find_mounted());
        let error = match mounted {
            Ok(Some(id)) => {
                if let Some(index) = index {
                    ledger.record_read_back(index, id.to_string(), None);
                }
                return Ok(true);
            }
            Ok(None) => {
                let message =
                    format!("cannot mount debugfs at {path}: mount succeeded, but it is not mounted");
                GuardError::new(GuardErrorKind::KernelRefused, message)
            }
            Err(error) => GuardError::from_io(format!("cannot mount debugfs at {path}"), error),
        };
        index.map(|index| ledger.undo_entry(index));
        Err(error)
    }

    /// Makes a swap file of `size` in the directory `dir` (absolute, without links), and swaps to it until
    /// the guard ends, before all existing areas. Its file system keeps a reserve: 5 %, and 1 GiB at least.
    pub fn swap_file(&self, dir: &str, size: Bytes) -> Result<SwapFile, GuardError> {
        let kernel = self.site.kernel.as_ref();
        let invalid = |message| GuardError::new(GuardErrorKind::InvalidRequest, message);
        let name = format!("{}{}", kernel_objects::SWAP_FILE_PREFIX, self.unique_suffix());
        let path = format!("{}/{name}", dir.trim_end_matches('/'));
        if !kernel_objects::is_swap_file(&path) {
            return Err(invalid(format!(
                "cannot create a swap file in {dir}: expected an absolute path of a directory"
            )));
        }
        let space = kernel
            .fs_space(dir)
            .map_err(|e| GuardError::from_io(format!("cannot create a swap file in {dir}"), e))?;
        swap::check_space(dir, space, size)?;
        let page_size = machine::live_page_size().unwrap_or(PageSize::DEFAULT);
        let header = swap_format::header_page(size, page_size, swap::AREA_LABEL)
            .ok_or_else(|| invalid(format!("cannot create a swap file of {} bytes", size.0)))?;
        let (mut ledger, locked) = self.acquire_claim(&path, "swap file")?;
        if kernel.file_inode(&path).is_ok() {
            return Err(invalid(format!("cannot create {path}: a guard has only one swap file")));
        }
        let Some(index) =
            self.journal_act(&mut ledger, locked, JournalledAction::SwapFile { path: path.clone() })?
        else {
            return Ok(SwapFile { path, size });
        };
        let created = kernel.make_swap_file(&path, size, &header).and_then(|()| kernel.file_inode(&path));
        let used = created.and_then(|inode| {
            ledger.record_read_back(index, inode.to_string(), None);
            kernel.swap_on(&path, PRIORITY_MAX)
        });
        let (kind, message) = match used.and_then(|()| swap::find_area(kernel, &path)) {
            Ok(Some(area)) => return Ok(SwapFile { path, size: area.size }),
            Ok(None) => (
                GuardErrorKind::KernelRefused,
                format!("cannot swap to {path}: it is not in {} after swapon", paths::SWAPS),
            ),
            Err(error) => (GuardErrorKind::from_io_error(&error), swap::describe_error(&path, &error)),
        };
        Err(undo_failed_change(&mut ledger, index, kind, message))
    }

    /// Creates a trace instance that records nothing yet. It is removed when the guard ends; all of its files
    /// must be closed by then. Remains of killed pagelab processes are removed first.
    pub fn trace_instance(&self) -> Result<TraceInstance, GuardError> {
        let name = format!("{}{}", kernel_objects::TRACE_INSTANCE_PREFIX, self.unique_suffix());
        let act = JournalledAction::TraceInstance { path: format!("{}/{name}", paths::TRACE_INSTANCES) };
        self.create_announced_dir(act, "a guard has only one trace instance")?;
        Ok(TraceInstance { name })
    }

    /// Performs an irreversible action, and journals its begin and its end. A dry run only lists it.
    pub fn perform_one_way<T>(
        &self,
        act: &str,
        perform: impl FnOnce() -> T,
    ) -> Result<Option<T>, GuardError> {
        // No claim: the change cannot be undone. The lock alone orders the start of the journal.
        let (mut ledger, locked) = self.acquire_claim("", act)?;
        let Some(at) =
            self.journal_act(&mut ledger, locked, JournalledAction::OneWay { act: act.to_owned() })?
        else {
            return Ok(None);
        };
        // Another thread may end its guard meanwhile, and a signal may come.
        let seq = ledger.seq(at);
        drop(ledger);
        let result = perform();
        lock_ignoring_poison(&self.shared).record_done(seq);
        Ok(Some(result))
    }

    /// Compacts all zones now (vm.compact_memory, 2.6.35 and later).
    pub fn compact_memory(&self) -> Result<(), GuardError> {
        self.write_one_way(&format!("{}/compact_memory", paths::SYSCTL_VM), "compact_memory 1", "1")
    }

    /// Compacts the zones of one node now (`compact` of the node, 2.6.35 and later).
    pub fn compact_node(&self, node: NodeId) -> Result<(), GuardError> {
        let path = format!("{}/node{}/compact", paths::NODES, node.0);
        self.write_one_way(&path, &format!("compact node{} 1", node.0), "1")
    }

    /// Drops clean caches: 1 page cache, 2 slab, 3 both (vm.drop_caches).
    pub fn drop_caches(&self, mode: u8) -> Result<(), GuardError> {
        if !(1..=3).contains(&mode) {
            let message = format!("drop_caches: expected 1, 2 or 3, found {mode}");
            return Err(GuardError::new(GuardErrorKind::InvalidRequest, message));
        }
        let (path, act) = (format!("{}/drop_caches", paths::SYSCTL_VM), format!("drop_caches {mode}"));
        self.write_one_way(&path, &act, &mode.to_string())
    }

    fn write_one_way(&self, path: &str, act: &str, value: &str) -> Result<(), GuardError> {
        let written = self.perform_one_way(act, || self.site.kernel.write(path, value))?;
        written.unwrap_or(Ok(())).map_err(|e| GuardError::from_io(format!("cannot write {path}"), e))
    }

    /// Changes that a dry run would make, in order.
    pub fn planned_changes(&self) -> Vec<PlannedChange> {
        lock_ignoring_poison(&self.planned).clone()
    }

    /// Changes of killed pagelab processes to the settings that this guard changed; they were undone first.
    pub fn recovered_journals(&self) -> Vec<JournalReport> {
        lock_ignoring_poison(&self.recovered_journals).clone()
    }

    /// Ends the guard and returns the outcome of its changes. Drop does the same silently; changes that could
    /// not be undone stay in the journal for `pagelab restore`.
    pub fn finish(mut self) -> Vec<ChangeOutcome> {
        self.undo_changes()
    }

    fn undo_changes(&mut self) -> Vec<ChangeOutcome> {
        // A forked child with this guard in its memory is not its owner.
        let is_owner = std::process::id() == self.site.owner.pid;
        if std::mem::replace(&mut self.is_finished, true) || self.options.dry_run || !is_owner {
            return Vec::new();
        }
        lock_ignoring_poison(&self.shared).undo_guard(Some(self.guard_id))
    }

    /// Claims `claim` for this process, waiting for others according to the options. Until the lock is
    /// released, no other process can announce a change. No lock: a dry run if there are no journals.
    fn acquire_claim(
        &self,
        claim: &str,
        label: &str,
    ) -> Result<(MutexGuard<'_, Ledger>, Option<LockedJournalDir>), GuardError> {
        let (start, dry_run) = (Instant::now(), self.options.dry_run);
        if std::process::id() != self.site.owner.pid {
            let message = format!("cannot change {label}: the guard belongs to the parent process");
            return Err(GuardError::new(GuardErrorKind::KernelRefused, message));
        }
        loop {
            let ledger = lock_ignoring_poison(&self.shared);
            ledger.check_not_stopping()?;
            match self.site.dir.try_lock(!dry_run)? {
                Some(None) => return Ok((ledger, None)),
                Some(Some(locked)) => match restore::survey_claim(&self.site, &locked, claim, dry_run)? {
                    ClaimSurvey::Unclaimed(undone) => {
                        lock_ignoring_poison(&self.recovered_journals).extend(undone);
                        return Ok((ledger, Some(locked)));
                    }
                    ClaimSurvey::HeldBy(owner) if start.elapsed() >= self.options.wait_timeout => {
                        return Err(held_error(label, &owner, self.options.wait_timeout));
                    }
                    ClaimSurvey::HeldBy(_) => {}
                },
                None if start.elapsed() < LOCK_WAIT.max(self.options.wait_timeout) => {}
                None => {
                    let message = format!(
                        "cannot change {label}: another pagelab process is using the journals; hint: try \
                         again"
                    );
                    return Err(GuardError::new(GuardErrorKind::HeldByOther, message));
                }
            }
            // The thread that restores after a signal needs the ledger meanwhile.
            drop(ledger);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Journals the act and releases the lock. `None`: a dry run, which lists it instead.
    fn journal_act(
        &self,
        ledger: &mut Ledger,
        locked: Option<LockedJournalDir>,
        act: JournalledAction,
    ) -> Result<Option<usize>, GuardError> {
        if self.options.dry_run {
            let (current_value, new_value) = act.values();
            lock_ignoring_poison(&self.planned).push(PlannedChange {
                label: act.label(),
                path: act.path().to_owned(),
                current_value,
                new_value,
            });
            return Ok(None);
        }
        let Some(locked) = locked else {
            let message = format!("cannot change {}: the journals are not locked", act.label());
            return Err(GuardError::new(GuardErrorKind::KernelRefused, message));
        };
        let announced = ledger.journal_act(&locked, self.guard_id, act);
        // Removes the directory if the announcement failed and it is empty.
        locked.release();
        announced.map(Some)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.undo_changes();
    }
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn held_error(label: &str, owner: &Owner, waited: Duration) -> GuardError {
    let after = match waited.is_zero() {
        true => String::new(),
        false => format!(" and still holds it after {} s", waited.as_secs()),
    };
    let name = owner.display_name();
    let message = format!("cannot change {label}: {name} holds it{after}; hint: wait for it, or stop it");
    GuardError::new(GuardErrorKind::HeldByOther, message)
}

/// Undoes a change that failed; the error states whether the old value is restored.
fn undo_failed_change(
    ledger: &mut Ledger,
    entry_index: usize,
    kind: GuardErrorKind,
    message: String,
) -> GuardError {
    let outcomes = ledger.undo_entry(entry_index);
    let is_stuck = |undo| matches!(undo, UndoOutcome::Failed | UndoOutcome::LeftUnchanged);
    match outcomes.iter().find(|outcome| is_stuck(outcome.undo)) {
        None => GuardError::new(kind, message),
        Some(stuck) => {
            let found = stuck.found_value.as_deref().unwrap_or("unknown");
            GuardError::new(kind, format!("{message}; it could not be restored and is now {found:?}"))
        }
    }
}

/// Reason why the guard did not make a change. In every case the setting has its original value, or the
/// message states the present one.
#[derive(Debug)]
pub struct GuardError {
    kind: GuardErrorKind,
    message: String,
}

/// Kind of the error, by exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardErrorKind {
    /// The request names no setting, or a value that the setting cannot have.
    InvalidRequest,
    /// A journal cannot be understood.
    BadInput,
    /// Not available or not permitted here: no place for a journal, no such file in this kernel.
    NotAvailable,
    /// The machine rejected the change, or applied another one.
    KernelRefused,
    /// Another process holds the setting.
    HeldByOther,
    /// This process is restoring after a signal and changes nothing any more.
    Stopping,
}

impl GuardErrorKind {
    /// The kind of a failed operation on a setting.
    fn from_io_error(error: &io::Error) -> GuardErrorKind {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                GuardErrorKind::NotAvailable
            }
            _ => GuardErrorKind::KernelRefused,
        }
    }
}

impl GuardError {
    fn new(kind: GuardErrorKind, message: impl Into<String>) -> GuardError {
        GuardError { kind, message: message.into() }
    }

    fn with_cause(mut self, cause: impl Into<io::Error>) -> GuardError {
        let cause: io::Error = cause.into();
        self.message = format!("{}: {cause}", self.message);
        self
    }

    /// An operation on a file that failed; a file that is absent or forbidden counts as not available.
    fn from_io(operation: impl Into<String>, cause: impl Into<io::Error>) -> GuardError {
        let cause = cause.into();
        GuardError::new(GuardErrorKind::from_io_error(&cause), operation).with_cause(cause)
    }

    /// Its kind.
    pub fn kind(&self) -> GuardErrorKind {
        self.kind
    }
}

impl fmt::Display for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// The cause is part of the text, so `source` does not repeat it: the binary prints the chain.
impl std::error::Error for GuardError {}

impl From<GuardError> for Failure {
    fn from(error: GuardError) -> Failure {
        let kind = match error.kind {
            GuardErrorKind::InvalidRequest => FailureKind::Usage,
            GuardErrorKind::BadInput => FailureKind::BadInput,
            GuardErrorKind::NotAvailable => FailureKind::NotAvailable,
            GuardErrorKind::KernelRefused | GuardErrorKind::HeldByOther | GuardErrorKind::Stopping => {
                FailureKind::Partial
            }
        };
        Failure::new(kind, error.message)
    }
}

/// Place of settings and journals, and the identity of this process.
#[derive(Clone, Debug)]
pub struct GuardSite {
    kernel: Arc<dyn Kernel>,
    dir: JournalDir,
    owner: Owner,
}

impl GuardSite {
    /// This machine, with the journal directory that this user may use.
    pub fn live() -> Result<GuardSite, GuardError> {
        let tree = FileKernel::live().map_err(|e| GuardError::from_io("/", e))?;
        GuardSite::new(Arc::new(tree), JournalDir::choose_default()?)
    }

    /// The settings under `base`, with the journals in its `run/pagelab`: a test's tree, or the root of
    /// a chroot.
    pub fn with_base(base: &Path) -> Result<GuardSite, GuardError> {
        let tree =
            FileKernel::with_base(base).map_err(|e| GuardError::from_io(base.display().to_string(), e))?;
        let dir = base.join(paths::JOURNAL_DIR.trim_start_matches('/'));
        GuardSite::new(Arc::new(tree), JournalDir::from_path(&dir))
    }

    /// Any kernel with any journal directory. One directory belongs to one kernel.
    pub fn new(kernel: Arc<dyn Kernel>, dir: JournalDir) -> Result<GuardSite, GuardError> {
        Ok(GuardSite { kernel, dir, owner: Owner::this_process()? })
    }

    /// The journal directory.
    pub fn journal_dir(&self) -> &JournalDir {
        &self.dir
    }
}

/// Ends the process with an exit code, after printing the restored settings. Only the binary may end a
/// process, so it passes this function.
pub type ExitHandler = Box<dyn Fn(i32, &[ChangeOutcome]) + Send>;

/// Proof that signal handlers are installed. A guard requires one, so no command can leave the machine
/// changed after Ctrl-C.
#[derive(Clone, Copy, Debug)]
pub struct SignalWatch(());

static WATCHING: OnceLock<()> = OnceLock::new();

impl SignalWatch {
    /// From now on SIGINT, SIGTERM and SIGHUP undo all changes of this process and then call `exit` with 128
    /// plus the signal's number. A signal that this process was started to ignore (nohup) stays ignored.
    /// Commands that change nothing do not call this, and signals end them as any program. The second and
    /// later calls change nothing.
    pub fn install(exit: ExitHandler) -> Result<SignalWatch, GuardError> {
        let mut failure = None;
        WATCHING.get_or_init(|| failure = start_signal_thread(exit).err());
        match failure {
            None => Ok(SignalWatch(())),
            Some(error) => {
                let message = "cannot install signal handlers; nothing was changed";
                Err(GuardError::new(GuardErrorKind::NotAvailable, message).with_cause(error))
            }
        }
    }

    /// Signals are not watched: one of them leaves the changes to `pagelab restore`.
    pub fn without_handler() -> SignalWatch {
        SignalWatch(())
    }
}

/// A flag that is set whenever this process is continued after having been stopped (SIGCONT).
pub fn watch_sigcont() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGCONT, flag.clone())?;
    Ok(flag)
}

fn start_signal_thread(exit: ExitHandler) -> io::Result<()> {
    let mut signals = Signals::new(stop_signals())?;
    // A separate thread, not a handler: undoing locks, allocates and waits for the kernel.
    let restore = move || {
        if let Some(signal) = signals.forever().next() {
            let outcomes = ledger::stop_all();
            exit(128 + signal, &outcomes);
        }
    };
    thread::Builder::new().name("pagelab-signals".to_owned()).spawn(restore).map(drop)
}

/// The signals that end a command, but for those that this process ignores (`SigIgn`, bit 0 for signal 1).
/// An unreadable mask counts as none.
pub(crate) fn stop_signals() -> impl Iterator<Item = i32> {
    let status = fs::read_to_string(paths::SELF_STATUS).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}
