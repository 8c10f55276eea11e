//! Undoing one change: what is ours goes back to what was found; what is no longer ours stays.

use std::collections::BTreeSet;
use std::io;

use super::created;
use super::journal::{Act, Entry, Record, Seen};
use super::kernel::Kernel;
use super::knob::Knob;
use super::swap;
use super::trace_instance;

/// What became of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A person's name for the setting: `THP enabled`, `2 MiB pool`, `cgroup`.
    pub what: String,
    /// The file or directory; for a one-way act its name.
    pub path: String,
    /// How it ended.
    pub fate: Fate,
    /// The value that was in force when undoing began.
    pub found: Option<String>,
    /// The value that pagelab had set.
    pub ours: Option<String>,
    /// The value before pagelab, to which it goes back.
    pub original: Option<String>,
    /// More, in words, without a trailing dot; may be empty.
    pub detail: String,
}

/// The end of the name of a one-way act that touches nothing but memory of the process that performs it.
pub const OWN_MEMORY: &str = "in pagelab's own memory";

const GONE_WITH_ITS_PROCESS: &str = "nothing is left of it: the memory went with the process";

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was undone, and that was read back.
    Restored,
    /// There was nothing to undo: the change was not made, or is undone already.
    AlreadyBack,
    /// The value is neither ours nor the original: set by somebody since. It is left, for good.
    LeftAlone,
    /// It could not be undone; it stays in the journal, and the next restore tries again.
    Failed,
    /// An act that cannot be undone. It is told, no more.
    OneWay,
    /// Its owner runs, and will undo it.
    Held,
    /// It was made in another boot, and ended with it.
    OtherBoot,
}

impl Fate {
    /// The word for it in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Fate::Restored => "restored",
            Fate::AlreadyBack => "already_back",
            Fate::LeftAlone => "left_alone",
            Fate::Failed => "failed",
            Fate::OneWay => "one_way",
            Fate::Held => "held",
            Fate::OtherBoot => "other_boot",
        }
    }
}

impl Outcome {
    /// An entry that was not tried.
    pub(super) fn of(entry: &Entry, fate: Fate) -> Outcome {
        let (ours, original) = match &entry.act {
            Act::Change { ours, old, .. } => (Some(ours.clone()), Some(old.clone())),
            Act::Cgroup { .. }
            | Act::Debugfs { .. }
            | Act::SwapFile { .. }
            | Act::TraceInstance { .. }
            | Act::OneWay { .. } => (None, None),
        };
        let (what, path) = (entry.act.label(), entry.act.path().to_owned());
        Outcome { what, path, fate, found: None, ours, original, detail: String::new() }
    }

    fn with(mut self, fate: Fate, detail: impl Into<String>) -> Outcome {
        self.fate = fate;
        self.detail = detail.into();
        self
    }
}

/// Undoes the open entries that `choose` chooses, last one first. `note` takes the records of what
/// happens; when it cannot keep them, undoing goes on, because every step can be repeated.
pub(super) fn undo_all(
    kernel: &dyn Kernel,
    entries: &mut [Entry],
    choose: &dyn Fn(usize, &Entry) -> bool,
    note: &mut dyn FnMut(&Record),
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    // Paths whose later change stays, so that earlier ones cannot be undone under it.
    let mut foreign = BTreeSet::new();
    let mut stuck = BTreeSet::new();
    for (at, entry) in entries.iter_mut().enumerate().rev() {
        if !entry.is_open || !choose(at, entry) {
            continue;
        }
        let path = entry.act.path().to_owned();
        if stuck.contains(&path) {
            continue;
        }
        // Whoever changed the setting since changed it over all of our earlier changes too.
        let outcome = match foreign.contains(&path) {
            true => None,
            false => Some(undo(kernel, entry, note)),
        };
        let fate = outcome.as_ref().map_or(Fate::LeftAlone, |outcome| outcome.fate);
        if fate == Fate::Failed {
            stuck.insert(path);
        } else {
            entry.is_open = false;
            note(&Record::Closed { seq: entry.seq, how: fate.word().to_owned() });
            if fate == Fate::LeftAlone {
                foreign.insert(path);
            }
        }
        outcomes.extend(outcome);
    }
    outcomes
}

fn undo(kernel: &dyn Kernel, entry: &Entry, note: &mut dyn FnMut(&Record)) -> Outcome {
    let outcome = Outcome::of(entry, Fate::Failed);
    let undone = match &entry.act {
        Act::Change { knob, old, ours, min_free_kbytes } => {
            let change = Change { knob, old, ours, along: min_free_kbytes.as_deref(), entry };
            return change.undo(kernel, outcome, note);
        }
        Act::Cgroup { path, home } => undo_cgroup(kernel, entry, path, home.as_deref()),
        Act::Debugfs { path } => undo_debugfs(kernel, entry, path),
        Act::SwapFile { path } => swap::undo(kernel, entry, path),
        Act::TraceInstance { path } => trace_instance::undo(kernel, entry, path),
        Act::OneWay { act } if act.ends_with(OWN_MEMORY) => Ok((Fate::OneWay, GONE_WITH_ITS_PROCESS)),
        Act::OneWay { .. } => Ok((Fate::OneWay, "")),
    };
    match undone {
        Ok((fate, detail)) => outcome.with(fate, detail),
        Err(error) => outcome.with(Fate::Failed, in_words(&error)),
    }
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{error}; run as root"),
        _ => error.to_string(),
    }
}

pub(super) type Undone = io::Result<(Fate, &'static str)>;

fn undo_cgroup(kernel: &dyn Kernel, entry: &Entry, path: &str, home: Option<&str>) -> Undone {
    if let Some(fate) = not_ours(kernel.inode(path), entry, "another cgroup has its name now")? {
        return Ok(fate);
    }
    created::remove_cgroup(kernel, path, home)?;
    removed(kernel.inode(path))
}

/// What there is to say of something that was made, where it is gone or something else has its name now.
pub(super) fn not_ours(
    inode: io::Result<u64>,
    entry: &Entry,
    another: &'static str,
) -> io::Result<Option<(Fate, &'static str)>> {
    let inode = match inode {
        Ok(inode) => inode.to_string(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some((Fate::AlreadyBack, ""))),
        Err(error) => return Err(error),
    };
    let is_other = entry.seen.as_ref().is_some_and(|seen| seen.value != inode);
    Ok(is_other.then_some((Fate::LeftAlone, another)))
}

/// Whether what was removed is gone, by its inode.
pub(super) fn removed(inode: io::Result<u64>) -> Undone {
    match inode {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Fate::Restored, "removed")),
        _ => Err(io::Error::other("it is still there after it was removed")),
    }
}

fn undo_debugfs(kernel: &dyn Kernel, entry: &Entry, path: &str) -> Undone {
    let Some(id) = created::debugfs_at(kernel, path)? else { return Ok((Fate::AlreadyBack, "")) };
    match &entry.seen {
        Some(seen) if seen.value != id.to_string() => {
            return Ok((Fate::LeftAlone, "another mount is there now"));
        }
        // Killed between the mount and its read-back, or before the mount: nobody else's mount can be
        // told from ours, but before the announcement there was none.
        _ => kernel.unmount(path)?,
    }
    match created::debugfs_at(kernel, path)? {
        None => Ok((Fate::Restored, "unmounted")),
        Some(_) => Err(io::Error::other("it is still mounted after it was unmounted")),
    }
}

/// One change of a setting, about to be undone.
struct Change<'a> {
    knob: &'a Knob,
    old: &'a str,
    ours: &'a str,
    /// min_free_kbytes before the change, where the kernel moves it along.
    along: Option<&'a str>,
    entry: &'a Entry,
}

impl Change<'_> {
    fn undo(&self, kernel: &dyn Kernel, mut outcome: Outcome, note: &mut dyn FnMut(&Record)) -> Outcome {
        let found = match self.knob.read(kernel) {
            Ok(found) => found,
            Err(error) => return outcome.with(Fate::Failed, in_words(&error)),
        };
        outcome.found = Some(found.clone());
        let was_undone = found == self.old;
        if was_undone && !(self.entry.is_undoing && self.along.is_some()) {
            return outcome.with(Fate::AlreadyBack, "");
        }
        if !was_undone && !self.is_ours(&found) {
            return outcome.with(Fate::LeftAlone, "set by somebody since");
        }
        note(&Record::Undoing { seq: self.entry.seq });
        let along_before = self.read_along(kernel);
        if !was_undone && let Err(error) = self.write_back(kernel) {
            return outcome.with(Fate::Failed, in_words(&error));
        }
        match self.put_along_back(kernel, along_before) {
            Ok(detail) => outcome.with(Fate::Restored, detail),
            Err(error) => {
                let detail =
                    format!("min_free_kbytes, which moved along, cannot be put back: {}", in_words(&error));
                outcome.with(Fate::Failed, detail)
            }
        }
    }

    /// A value is ours if we asked for it, if it is what came of it, or if it lies on the way.
    fn is_ours(&self, value: &str) -> bool {
        let was_seen = self.entry.seen.as_ref().is_some_and(|seen: &Seen| seen.value == value);
        value == self.ours || was_seen || self.knob.is_between(value, self.old, self.ours)
    }

    fn write_back(&self, kernel: &dyn Kernel) -> io::Result<()> {
        self.knob.write(kernel, self.old)?;
        let now = self.knob.read(kernel)?;
        match now == self.old {
            true => Ok(()),
            false => Err(io::Error::other(format!("it is {now} after {} was written", self.old))),
        }
    }

    fn read_along(&self, kernel: &dyn Kernel) -> Option<String> {
        self.along?;
        self.knob.moves_along()?.read(kernel).ok()
    }

    /// The kernel has just moved min_free_kbytes along, or had when undoing was cut off. If the value
    /// before was still the one that our change led to, the original comes back; if it was somebody's
    /// own, that one does.
    fn put_along_back(&self, kernel: &dyn Kernel, before: Option<String>) -> io::Result<String> {
        let (Some(original), Some(knob)) = (self.along, self.knob.moves_along()) else {
            return Ok(String::new());
        };
        let led_to = self.entry.seen.as_ref().and_then(|seen| seen.min_free_kbytes.as_deref());
        let is_somebodys = |before: &str| {
            !self.entry.is_undoing && before != original && led_to.is_some_and(|led_to| before != led_to)
        };
        let target = match before.as_deref() {
            Some(before) if is_somebodys(before) => before,
            _ => original,
        };
        let now = knob.read(kernel)?;
        if now == target {
            return Ok(String::new());
        }
        knob.write(kernel, target)?;
        let back = knob.read(kernel)?;
        match back == target {
            true => Ok(format!("{} too, {now} → {target}: the kernel had moved it along", knob.label())),
            false => Err(io::Error::other(format!("it is {back} after {target} was written"))),
        }
    }
}
