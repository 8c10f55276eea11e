//! Undo of one change: pagelab's value is replaced by the original; another value stays.

use std::collections::BTreeSet;
use std::io;

use super::journal::{
    ChangeOutcome, JournalEntry, JournalledAction, Record, UndoOutcome, UndoResult, check_foreign,
    check_removed,
};
use super::journal_dir::{JournalFile, note};
use super::kernel::Kernel;
use super::kernel_objects;
use super::knob::Knob;
use super::swap;

/// The end of the name of a one-way act that touches nothing but memory of the process that performs it.
pub const OWN_MEMORY: &str = "in pagelab's own memory";

const MEMORY_GONE: &str = "nothing to undo: the memory was freed when the process exited";

/// Undoes the open entries that `choose` chooses, last one first, and notes the steps in `file`.
pub(super) fn undo_all(
    kernel: &dyn Kernel,
    entries: &mut [JournalEntry],
    choose: &dyn Fn(usize, &JournalEntry) -> bool,
    mut file: Option<&mut JournalFile>,
) -> Vec<ChangeOutcome> {
    let mut outcomes = Vec::new();
    // Paths whose later change stays, so that earlier ones cannot be undone.
    let mut foreign_paths = BTreeSet::new();
    let mut failed_paths = BTreeSet::new();
    for (index, entry) in entries.iter_mut().enumerate().rev() {
        if !entry.is_open || !choose(index, entry) {
            continue;
        }
        let path = entry.act.path().to_owned();
        if failed_paths.contains(&path) {
            continue;
        }
        // A process that changed the setting since then also overwrote all of pagelab's earlier changes.
        let outcome = match foreign_paths.contains(&path) {
            true => None,
            false => Some(undo_entry(kernel, entry, file.as_deref_mut())),
        };
        let undo = outcome.as_ref().map_or(UndoOutcome::LeftUnchanged, |outcome| outcome.undo);
        if undo == UndoOutcome::Failed {
            failed_paths.insert(path);
        } else {
            entry.is_open = false;
            let closed = Record::Closed { seq: entry.seq, how: undo.json_name().to_owned() };
            note(file.as_deref_mut(), &closed);
            if undo == UndoOutcome::LeftUnchanged {
                foreign_paths.insert(path);
            }
        }
        outcomes.extend(outcome);
    }
    outcomes
}

fn undo_entry(kernel: &dyn Kernel, entry: &JournalEntry, file: Option<&mut JournalFile>) -> ChangeOutcome {
    let outcome = ChangeOutcome::from_entry(entry, UndoOutcome::Failed);
    let undone = match &entry.act {
        JournalledAction::Change { knob, old, requested, min_free_kbytes } => {
            let change =
                SettingChange { knob, old, requested, companion_value: min_free_kbytes.as_deref(), entry };
            return change.undo(kernel, outcome, file);
        }
        JournalledAction::Cgroup { path, home } => undo_cgroup(kernel, entry, path, home.as_deref()),
        JournalledAction::Debugfs { path } => undo_debugfs(kernel, entry, path),
        JournalledAction::SwapFile { path } => swap::undo_swap_file(kernel, entry, path),
        JournalledAction::TraceInstance { path } => kernel_objects::undo_trace_instance(kernel, entry, path),
        JournalledAction::OneWay { act } if act.ends_with(OWN_MEMORY) => {
            Ok((UndoOutcome::OneWay, MEMORY_GONE))
        }
        JournalledAction::OneWay { .. } => Ok((UndoOutcome::OneWay, "")),
    };
    match undone {
        Ok((undo, detail)) => outcome.with_undo(undo, detail),
        Err(error) => outcome.with_undo(UndoOutcome::Failed, describe_error(&error)),
    }
}

fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{error}; hint: run as root"),
        _ => error.to_string(),
    }
}

fn undo_cgroup(kernel: &dyn Kernel, entry: &JournalEntry, path: &str, home: Option<&str>) -> UndoResult {
    if let Some(undo) = check_foreign(kernel.inode(path), entry, "another cgroup has this name now")? {
        return Ok(undo);
    }
    kernel_objects::remove_cgroup(kernel, path, home)?;
    check_removed(kernel.inode(path))
}

fn undo_debugfs(kernel: &dyn Kernel, entry: &JournalEntry, path: &str) -> UndoResult {
    let Some(id) = kernel_objects::find_debugfs(kernel, path)? else {
        return Ok((UndoOutcome::AlreadyRestored, ""));
    };
    if entry.is_foreign(id) {
        return Ok((UndoOutcome::LeftUnchanged, "another file system is mounted there now"));
    }
    // Killed between the mount and its read-back, or before the mount: the mount cannot be told from that of
    // another process, but there was none before the announcement.
    kernel.unmount(path)?;
    match kernel_objects::find_debugfs(kernel, path)? {
        None => Ok((UndoOutcome::Restored, "unmounted")),
        Some(_) => Err(io::Error::other("it is still mounted after umount")),
    }
}

/// One change of a setting, about to be undone.
struct SettingChange<'a> {
    knob: &'a Knob,
    old: &'a str,
    requested: &'a str,
    /// min_free_kbytes before the change, if the kernel changes it too.
    companion_value: Option<&'a str>,
    entry: &'a JournalEntry,
}

impl SettingChange<'_> {
    fn undo(
        &self,
        kernel: &dyn Kernel,
        mut outcome: ChangeOutcome,
        file: Option<&mut JournalFile>,
    ) -> ChangeOutcome {
        let current = match self.knob.read(kernel) {
            Ok(found) => found,
            Err(error) => return outcome.with_undo(UndoOutcome::Failed, describe_error(&error)),
        };
        outcome.found_value = Some(current.clone());
        let was_undone = current == self.old;
        if was_undone && !(self.entry.is_undoing && self.companion_value.is_some()) {
            return outcome.with_undo(UndoOutcome::AlreadyRestored, "");
        }
        if !was_undone && !self.is_own_value(&current) {
            return outcome.with_undo(UndoOutcome::LeftUnchanged, "set by another process since");
        }
        note(file, &Record::Undoing { seq: self.entry.seq });
        let along_before = self.read_companion(kernel);
        if !was_undone && let Err(error) = self.knob.write_verified(kernel, self.old) {
            return outcome.with_undo(UndoOutcome::Failed, describe_error(&error));
        }
        match self.restore_companion(kernel, along_before) {
            Ok(detail) => outcome.with_undo(UndoOutcome::Restored, detail),
            Err(error) => {
                let detail =
                    format!("cannot restore min_free_kbytes, which changed too: {}", describe_error(&error));
                outcome.with_undo(UndoOutcome::Failed, detail)
            }
        }
    }

    /// A value is pagelab's if pagelab requested it, if it is the result of the request, or if it is between
    /// the two.
    fn is_own_value(&self, value: &str) -> bool {
        let was_seen = self.entry.read_back.as_ref().is_some_and(|seen| seen.value == value);
        value == self.requested || was_seen || self.knob.is_between(value, self.old, self.requested)
    }

    fn read_companion(&self, kernel: &dyn Kernel) -> Option<String> {
        self.companion_value?;
        self.knob.companion_knob()?.read(kernel).ok()
    }

    /// The kernel has just changed min_free_kbytes too, or had when undoing was interrupted. If the previous
    /// value was still the one of our change, the original is restored; if another process had set it, that
    /// one is.
    fn restore_companion(&self, kernel: &dyn Kernel, companion_before: Option<String>) -> io::Result<String> {
        let (Some(original), Some(knob)) = (self.companion_value, self.knob.companion_knob()) else {
            return Ok(String::new());
        };
        let companion_after = self.entry.read_back.as_ref().and_then(|seen| seen.min_free_kbytes.as_deref());
        let is_foreign = |before: &str| {
            !self.entry.is_undoing
                && before != original
                && companion_after.is_some_and(|led_to| before != led_to)
        };
        let target = match companion_before.as_deref() {
            Some(before) if is_foreign(before) => before,
            _ => original,
        };
        let now = knob.read(kernel)?;
        if now == target {
            return Ok(String::new());
        }
        knob.write_verified(kernel, target)?;
        Ok(format!("{} too, {now} → {target}: the kernel had changed it", knob.label()))
    }
}
