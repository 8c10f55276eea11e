//! The guard: every change of the machine is journalled before it is made and undone after, also after
//! a kill.
//!
//! ```no_run
//! use pagelab_host::guard::{Guard, Knob, Options, Site, Watched};
//!
//! # fn main() -> Result<(), pagelab_host::guard::GuardError> {
//! # let end = Box::new(|_code: i32, _undone: &[pagelab_host::guard::Outcome]| {});
//! let guard = Guard::begin(&Site::live()?, Watched::signals(end)?, Options::default())?;
//! guard.set(&Knob::thp_enabled(), "never")?;
//! // … measure …
//! for outcome in guard.finish() {
//!     // say what is not as it was
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What is promised:
//! - Before a change is made, the journal on the disk tells of it. If it cannot, the change is not made.
//! - A change ends with its guard: by [`Guard::finish`], by drop (a panic unwinds through it), by SIGINT,
//!   SIGTERM or SIGHUP, or, after `kill -9`, by [`restore()`], which `pagelab restore` calls.
//! - Only what is still ours is undone. A value that somebody set since stays, and that is said.
//! - A setting has one process at a time. Within a process, guards nest: the inner one goes back to the
//!   outer one's value, and the order in which they end does not matter.
//! - A success code is no proof: every change is read back.
//!
//! docs/guard.md has the table of who may die when, and what that means for the others.

mod created;
mod dir;
mod error;
mod journal;
mod kernel;
mod knob;
mod ledger;
mod owner;
mod restore;
mod signals;
mod swap;
mod trace_instance;
mod undo;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_model::NodeId;

pub use dir::JournalDir;
pub use error::{ErrorKind, GuardError};
pub use kernel::{Kernel, Pretend, Room, Tree};
pub use knob::Knob;
pub use owner::{Liveness, Owner};
pub use restore::{JournalReport, Refused, Report, restore};
pub(crate) use signals::ignored_signals;
pub use signals::{End, Watched, continued};
pub use swap::{SwapFile, swap_file_maker};
pub use trace_instance::TraceInstance;
pub use undo::{Fate, OWN_MEMORY, Outcome};

use crate::paths;
use dir::Locked;
use journal::{Act, Seen};
use ledger::{Ledger, Shared};
use restore::Survey;

/// How long a change waits for another pagelab that is just looking through the journals.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Where settings and journals are, and who this process is.
#[derive(Clone)]
pub struct Site {
    kernel: Arc<dyn Kernel>,
    dir: JournalDir,
    owner: Owner,
}

impl Site {
    /// This machine, with the journal directory that this user may use.
    pub fn live() -> Result<Site, GuardError> {
        let tree = Tree::live().map_err(|e| GuardError::io("/", e))?;
        Site::new(Arc::new(tree), JournalDir::choose()?)
    }

    /// The settings under `base`, with the journals in its `run/pagelab`: a test's tree, or the root of
    /// a chroot.
    pub fn under(base: &Path) -> Result<Site, GuardError> {
        let tree = Tree::under(base).map_err(|e| GuardError::io(base.display().to_string(), e))?;
        let dir = base.join(paths::JOURNAL_DIR.trim_start_matches('/'));
        Site::new(Arc::new(tree), JournalDir::at(&dir))
    }

    /// Any kernel with any journal directory. One directory belongs to one kernel.
    pub fn new(kernel: Arc<dyn Kernel>, dir: JournalDir) -> Result<Site, GuardError> {
        Ok(Site { kernel, dir, owner: Owner::this_process()? })
    }

    /// The journal directory.
    pub fn journal_dir(&self) -> &JournalDir {
        &self.dir
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("dir", &self.dir).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// Undoes all changes of this process now, and lets no new one begin. For a binary that handles signals
/// itself; else [`Watched::signals`] calls it.
pub fn restore_this_process() -> Vec<Outcome> {
    ledger::stop_all()
}

/// How a guard behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How long to wait for a setting that another pagelab holds. Zero refuses at once.
    pub wait: Duration,
    /// Change nothing; [`Guard::planned`] lists what would be changed.
    pub dry_run: bool,
}

/// What a change came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The value before.
    pub old: String,
    /// The value that was asked for.
    pub asked: String,
    /// The value that was read back. It differs from `asked` only for pools: fewer pages may come.
    pub got: String,
    /// What a second interface of the kernel says, where there is one: `HugePages_Total 4`.
    pub second_opinion: Option<String>,
    /// Whether the second interface, if there is one, says the same as the first.
    pub opinions_agree: bool,
}

impl Applied {
    /// Whether the kernel took exactly what it was asked for.
    pub fn is_exact(&self) -> bool {
        self.asked == self.got
    }
}

/// A change that a dry run would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// A person's name for the setting.
    pub what: String,
    /// The file or directory; for a one-way act its name.
    pub path: String,
    /// The value in force, where it is a setting.
    pub from: Option<String>,
    /// The value to come, where it is a setting.
    pub to: Option<String>,
}

/// A cgroup that the guard made, and removes again. Its own limits need no guard: they go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its directory.
    pub path: String,
}

/// Changes that end together.
pub struct Guard {
    shared: Arc<Shared>,
    site: Site,
    number: u64,
    options: Options,
    planned: Mutex<Vec<Planned>>,
    left_behind: Mutex<Vec<JournalReport>>,
    is_finished: bool,
}

impl Guard {
    /// A guard that has changed nothing. Nothing is written before its first change.
    pub fn begin(site: &Site, _watched: Watched, options: Options) -> Result<Guard, GuardError> {
        let shared = Shared::of(site);
        let number = shared.lock().enter();
        let mut site = site.clone();
        if options.dry_run {
            site.kernel = Arc::new(Pretend::over(site.kernel));
        }
        let (planned, left_behind) = (Mutex::default(), Mutex::default());
        Ok(Guard { shared, site, number, options, planned, left_behind, is_finished: false })
    }

    /// Changes a setting until the guard ends. When the kernel does not take the value, it is put back
    /// and that is an error; a pool alone may come out smaller, see [`Applied::got`].
    pub fn set(&self, knob: &Knob, value: &str) -> Result<Applied, GuardError> {
        if !knob.fits(value) {
            let message = format!("{} cannot be {value:?}", knob.label());
            return Err(GuardError::new(ErrorKind::Usage, message));
        }
        let kernel = self.site.kernel.as_ref();
        let (mut ledger, locked) = self.claim(&knob.claim(), &knob.label())?;
        let reading = |e| GuardError::io(format!("{} cannot be read", knob.path()), e);
        let old = knob.read(kernel).map_err(reading)?;
        let along = knob.moves_along();
        let read_along = || along.as_ref().and_then(|knob| knob.read(kernel).ok());
        let act = Act::Change {
            knob: knob.clone(),
            old: old.clone(),
            ours: value.to_owned(),
            min_free_kbytes: read_along(),
        };
        let Some(at) = self.announce(&mut ledger, locked, act)? else {
            let written = knob.write(kernel, value);
            written.map_err(|e| GuardError::io(format!("{} cannot be changed", knob.label()), e))?;
            return Ok(Applied::exactly(old, value));
        };
        // Equal already: the claim stands, and a write could only do harm.
        let written = if old == value { Ok(()) } else { knob.write(kernel, value) };
        let got = match written.and_then(|()| knob.read(kernel)) {
            Ok(got) if got == value || knob.may_fall_short() => got,
            Ok(got) => {
                let undone = ledger.take_back(at);
                let message =
                    format!("{} took {value:?} without an error, and was {got:?} then", knob.label());
                return Err(failed(ErrorKind::Refused, message, &undone));
            }
            Err(error) => {
                let undone = ledger.take_back(at);
                let offer = knob.offer(kernel).map(|o| format!("; it can be {o}")).unwrap_or_default();
                let message = format!("{} cannot be set to {value:?}: {error}{offer}", knob.label());
                return Err(failed(ErrorKind::of(&error), message, &undone));
            }
        };
        ledger.saw(at, Seen { value: got.clone(), min_free_kbytes: read_along() });
        let second = knob.second_opinion(kernel);
        let opinions_agree = second.as_ref().is_none_or(|(_, agrees)| *agrees);
        let second_opinion = second.map(|(text, _)| text);
        Ok(Applied { old, asked: value.to_owned(), got, second_opinion, opinions_agree })
    }

    /// Where a cgroup with this controller can be made, below the limits that hold for this process.
    pub fn cgroup_parent(&self, controller: &str) -> Result<String, GuardError> {
        created::cgroup_parent(self.site.kernel.as_ref(), controller)
    }

    /// The cgroup in which this process is now, in the hierarchy with this controller, if it can be seen.
    pub fn own_cgroup(&self, controller: &str) -> Option<String> {
        created::own_cgroup_with(self.site.kernel.as_ref(), controller)
    }

    /// The cgroup of version 2 in which this process is now, if there is such a hierarchy and it can be seen.
    /// Any process may have a cgroup made below it, as long as that wants no controllers.
    pub fn own_unified_cgroup(&self) -> Option<String> {
        created::own_unified_cgroup(self.site.kernel.as_ref())
    }

    /// Makes the cgroup `pagelab-LABEL-…` below `parent`. When the guard ends, the processes in it go
    /// back to where this process is (where that is not possible, to `parent`), and it is removed.
    pub fn create_cgroup(&self, parent: &str, label: &str) -> Result<Cgroup, GuardError> {
        let kernel = self.site.kernel.as_ref();
        let path = created::cgroup_path(parent, label, &self.unique())?;
        if !created::is_our_cgroup(kernel, &path) {
            let message = format!("{parent} is not below a mounted cgroup hierarchy");
            return Err(GuardError::new(ErrorKind::NotAvailable, message));
        }
        let (mut ledger, locked) = self.claim(&path, "cgroup")?;
        // Before the announcement, so that no restore can take another's directory for ours.
        if kernel.inode(&path).is_ok() {
            let message = format!("{path} is there already; give the second cgroup another label");
            return Err(GuardError::new(ErrorKind::Usage, message));
        }
        let home = created::home_for(kernel, &path);
        let at = self.announce(&mut ledger, locked, Act::Cgroup { path: path.clone(), home })?;
        self.make_dir(&mut ledger, at, &path)?;
        Ok(Cgroup { path })
    }

    /// Part of the name of what only this guard makes.
    fn unique(&self) -> String {
        let Owner { pid, start_ticks, .. } = self.site.owner;
        format!("{pid}-{start_ticks}-{}", self.number)
    }

    /// Makes a directory that was announced, and keeps its inode number.
    fn make_dir(&self, ledger: &mut Ledger, at: Option<usize>, path: &str) -> Result<(), GuardError> {
        let kernel = self.site.kernel.as_ref();
        match (kernel.make_dir(path).and_then(|()| kernel.inode(path)), at) {
            (Ok(inode), Some(at)) => ledger.saw(at, Seen { value: inode.to_string(), min_free_kbytes: None }),
            (Ok(_), None) => {}
            (Err(error), at) => {
                at.map(|at| ledger.take_back(at));
                return Err(GuardError::io(format!("{path} cannot be made"), error));
            }
        }
        Ok(())
    }

    /// Mounts debugfs where it belongs, until the guard ends. `false`: somebody else has, and nothing is
    /// changed. Unmounting waits for nobody: if a program uses it then, it stays, and that is said.
    pub fn mount_debugfs(&self) -> Result<bool, GuardError> {
        let (kernel, path) = (self.site.kernel.as_ref(), paths::DEBUGFS);
        let (mut ledger, locked) = self.claim(path, "debugfs")?;
        let at = || created::debugfs_at(kernel, path);
        if at().map_err(|e| GuardError::io(paths::SELF_MOUNTINFO, e))?.is_some() {
            if let Some(locked) = locked {
                locked.leave();
            }
            return Ok(false);
        }
        let index = self.announce(&mut ledger, locked, Act::Debugfs { path: path.to_owned() })?;
        let mounted = kernel.mount_debugfs(path).and_then(|()| at());
        match (mounted, index) {
            (Ok(Some(id)), Some(index)) => {
                ledger.saw(index, Seen { value: id.to_string(), min_free_kbytes: None });
                Ok(true)
            }
            (Ok(Some(_)), None) => Ok(true),
            (Ok(None), index) => {
                index.map(|index| ledger.take_back(index));
                let message = format!("debugfs was mounted at {path} without an error, and is not there");
                Err(GuardError::new(ErrorKind::Refused, message))
            }
            (Err(error), index) => {
                index.map(|index| ledger.take_back(index));
                Err(GuardError::io(format!("debugfs cannot be mounted at {path}"), error))
            }
        }
    }

    /// Does something that cannot be undone, and journals that: before it, that it begins; after it,
    /// that it is done. A dry run lists it and does not do it.
    pub fn one_way<T>(&self, act: &str, perform: impl FnOnce() -> T) -> Result<Option<T>, GuardError> {
        // No claim: nobody owns the past. The lock alone keeps the journal's beginning in order.
        let (mut ledger, locked) = self.claim("", act)?;
        let Some(at) = self.announce(&mut ledger, locked, Act::OneWay { act: act.to_owned() })? else {
            return Ok(None);
        };
        // Another thread may end its guard meanwhile, and a signal may come.
        let seq = ledger.seq(at);
        drop(ledger);
        let result = perform();
        self.shared.lock().did(seq);
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
    pub fn drop_caches(&self, what: u8) -> Result<(), GuardError> {
        if !(1..=3).contains(&what) {
            return Err(GuardError::new(
                ErrorKind::Usage,
                format!("drop_caches takes 1, 2 or 3, not {what}"),
            ));
        }
        let (path, act) = (format!("{}/drop_caches", paths::SYSCTL_VM), format!("drop_caches {what}"));
        self.write_one_way(&path, &act, &what.to_string())
    }

    fn write_one_way(&self, path: &str, act: &str, value: &str) -> Result<(), GuardError> {
        let written = self.one_way(act, || self.site.kernel.write(path, value))?;
        written.unwrap_or(Ok(())).map_err(|e| GuardError::io(format!("{path} cannot be written"), e))
    }

    /// What a dry run would change, in order.
    pub fn planned(&self) -> Vec<Planned> {
        lock(&self.planned).clone()
    }

    /// What killed pagelabs had left on the settings that this guard changed; it was undone first.
    pub fn left_behind(&self) -> Vec<JournalReport> {
        lock(&self.left_behind).clone()
    }

    /// Ends the guard and tells what became of its changes. Drop does the same in silence; what could
    /// not be undone stays in the journal for `pagelab restore`.
    pub fn finish(mut self) -> Vec<Outcome> {
        self.end()
    }

    fn end(&mut self) -> Vec<Outcome> {
        // A child that was forked with this guard in its memory is not its owner.
        let is_owner = std::process::id() == self.site.owner.pid;
        if std::mem::replace(&mut self.is_finished, true) || self.options.dry_run || !is_owner {
            return Vec::new();
        }
        self.shared.lock().undo(Some(self.number))
    }

    /// Makes `claim` this process's, waiting for others if the options say so. Until the lock is given
    /// back no other process can announce anything. No lock: a dry run where there are no journals.
    fn claim(
        &self,
        claim: &str,
        label: &str,
    ) -> Result<(MutexGuard<'_, Ledger>, Option<Locked>), GuardError> {
        let (began, dry_run) = (Instant::now(), self.options.dry_run);
        if std::process::id() != self.site.owner.pid {
            let message = format!("{label} was not changed: the guard belongs to this process's parent");
            return Err(GuardError::new(ErrorKind::Refused, message));
        }
        loop {
            let ledger = self.shared.lock();
            ledger.check_going_on()?;
            match self.site.dir.try_lock(!dry_run)? {
                Some(None) => return Ok((ledger, None)),
                Some(Some(locked)) => {
                    match restore::survey(&self.site, self.site.kernel.as_ref(), &locked, claim, dry_run)? {
                        Survey::Free(undone) => {
                            lock(&self.left_behind).extend(undone);
                            return Ok((ledger, Some(locked)));
                        }
                        Survey::Held(owner) if began.elapsed() >= self.options.wait => {
                            return Err(held(label, &owner, self.options.wait));
                        }
                        Survey::Held(_) => {}
                    }
                }
                None if began.elapsed() < LOCK_WAIT.max(self.options.wait) => {}
                None => {
                    let message =
                        format!("{label} was not changed: another pagelab is at work on the journals");
                    return Err(GuardError::new(ErrorKind::Held, message));
                }
            }
            // The thread that restores after a signal needs the ledger meanwhile.
            drop(ledger);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Journals the act and gives the lock back. `None`: a dry run, which lists it instead.
    fn announce(
        &self,
        ledger: &mut Ledger,
        locked: Option<Locked>,
        act: Act,
    ) -> Result<Option<usize>, GuardError> {
        if self.options.dry_run {
            let (from, to) = match &act {
                Act::Change { old, ours, .. } => (Some(old.clone()), Some(ours.clone())),
                _ => (None, None),
            };
            lock(&self.planned).push(Planned { what: act.label(), path: act.path().to_owned(), from, to });
            return Ok(None);
        }
        let Some(locked) = locked else {
            let message = format!("{} was not changed: the journals are not locked", act.label());
            return Err(GuardError::new(ErrorKind::Refused, message));
        };
        let announced = ledger.announce(&locked, self.number, act);
        // Removes the directory where the announcement failed and it is empty.
        locked.leave();
        announced.map(Some)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("number", &self.number)
            .field("site", &self.site)
            .finish_non_exhaustive()
    }
}

impl Applied {
    fn exactly(old: String, value: &str) -> Applied {
        let (asked, got) = (value.to_owned(), value.to_owned());
        Applied { old, asked, got, second_opinion: None, opinions_agree: true }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn held(label: &str, owner: &Owner, waited: Duration) -> GuardError {
    let after = match waited.is_zero() {
        true => String::new(),
        false => format!(" and was not done with it after {} s", waited.as_secs()),
    };
    let message =
        format!("{label} was not changed: {} holds it{after}; wait for it, or end it", owner.name());
    GuardError::new(ErrorKind::Held, message)
}

/// A change that went wrong; `undone` says whether the old value is back.
fn failed(kind: ErrorKind, message: String, undone: &[Outcome]) -> GuardError {
    let stuck = undone.iter().find(|outcome| matches!(outcome.fate, Fate::Failed | Fate::LeftAlone));
    match stuck {
        None => GuardError::new(kind, message),
        Some(stuck) => {
            let found = stuck.found.as_deref().unwrap_or("unknown");
            GuardError::new(kind, format!("{message}; it could not be put back and is {found:?} now"))
        }
    }
}
