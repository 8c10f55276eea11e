//! Changes of this process: one ledger and one journal for all of its guards.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pagelab_sys::clock::realtime_ns;

use super::journal::{self, ChangeOutcome, JournalEntry, JournalledAction, ReadBackValue, Record};
use super::journal_dir::{JournalFile, LockedJournalDir, journal_name, note};
use super::{GuardError, GuardErrorKind, GuardSite, lock_ignoring_poison, undo};

/// The ledgers of this process, by journal directory. They are never removed: a ledger that could not undo
/// everything keeps its journal after its last guard.
static LEDGERS: Mutex<BTreeMap<PathBuf, SharedLedger>> = Mutex::new(BTreeMap::new());

/// A ledger that the guards of this process share, and the thread that restores after a signal. After a panic
/// in the middle of a change it is as consistent as after a kill, and usable.
pub(super) type SharedLedger = Arc<Mutex<Ledger>>;

/// The changes of this process and their journal.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) site: GuardSite,
    /// Created with the first change, removed with the last undo.
    journal_file: Option<JournalFile>,
    entries: Vec<JournalEntry>,
    /// Guard of the entry at the same index.
    guard_ids: Vec<u64>,
    /// Guards that ended. Their open entries could not be undone, and are tried again with the next guard
    /// that ends.
    ended_guards: BTreeSet<u64>,
    next_seq: u64,
    next_guard: u64,
    /// This process is exiting: it undoes changes, and makes no new ones.
    is_stopping: bool,
}

/// The ledger of the changes that are journalled in the directory of `site`.
pub(super) fn for_site(site: &GuardSite) -> SharedLedger {
    let new_ledger = || Ledger {
        site: site.clone(),
        journal_file: None,
        entries: Vec::new(),
        guard_ids: Vec::new(),
        ended_guards: BTreeSet::new(),
        next_seq: 1,
        next_guard: 1,
        is_stopping: false,
    };
    let mut ledgers = lock_ignoring_poison(&LEDGERS);
    let entry = ledgers.entry(site.dir.path().to_owned());
    entry.or_insert_with(|| Arc::new(Mutex::new(new_ledger()))).clone()
}

/// Undoes every change of this process, and prevents new ones.
pub(super) fn stop_all() -> Vec<ChangeOutcome> {
    let all: Vec<SharedLedger> = lock_ignoring_poison(&LEDGERS).values().cloned().collect();
    let mut outcomes = Vec::new();
    for shared in all {
        let mut ledger = lock_ignoring_poison(&shared);
        ledger.is_stopping = true;
        outcomes.extend(ledger.undo_guard(None));
    }
    outcomes
}

impl Ledger {
    pub(super) fn register_guard(&mut self) -> u64 {
        self.next_guard += 1;
        self.next_guard - 1
    }

    pub(super) fn check_not_stopping(&self) -> Result<(), GuardError> {
        match self.is_stopping {
            false => Ok(()),
            true => {
                let message = "cannot change settings: this process restores them and exits";
                Err(GuardError::new(GuardErrorKind::Stopping, message))
            }
        }
    }

    /// Journals a change before it is made; it may be made only after the record is on the disk. Returns the
    /// entry's index.
    pub(super) fn journal_act(
        &mut self,
        locked: &LockedJournalDir,
        guard: u64,
        act: JournalledAction,
    ) -> Result<usize, GuardError> {
        debug_assert_eq!(self.entries.len(), self.guard_ids.len());
        let entry = JournalEntry::new(self.next_seq, act);
        let record = entry.record(realtime_ns());
        let written = match &mut self.journal_file {
            Some(file) => file.append(&record),
            None => locked.create_journal(&self.site.owner).and_then(|mut file| {
                let appended = file.append(&record);
                self.journal_file = Some(file);
                appended
            }),
        };
        if let Err(error) = written {
            self.remove_finished_journal();
            let (what, path) = (entry.act.label(), self.site.dir.path().display());
            let message = format!("cannot change {what}: cannot write the journal in {path}");
            return Err(GuardError::new(GuardErrorKind::KernelRefused, message).with_cause(error));
        }
        self.next_seq += 1;
        self.entries.push(entry);
        self.guard_ids.push(guard);
        Ok(self.entries.len() - 1)
    }

    /// Journals the value that was read back. Without this record a restore still knows the requested value,
    /// so the change is not undone because of a full disk.
    pub(super) fn record_read_back(
        &mut self,
        entry_index: usize,
        value: String,
        min_free_kbytes: Option<String>,
    ) {
        let entry = &mut self.entries[entry_index];
        entry.read_back =
            Some(ReadBackValue { value: value.clone(), min_free_kbytes: min_free_kbytes.clone() });
        note(self.journal_file.as_mut(), &Record::Seen { seq: entry.seq, value, min_free_kbytes });
    }

    /// The number of an entry; unlike its index it stays the same when others end.
    pub(super) fn seq(&self, entry_index: usize) -> u64 {
        self.entries[entry_index].seq
    }

    /// Journals that a one-way act is done.
    pub(super) fn record_done(&mut self, seq: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.seq == seq) {
            entry.is_open = false;
            note(self.journal_file.as_mut(), &Record::Done { seq });
        }
    }

    /// Undoes one entry whose change failed.
    pub(super) fn undo_entry(&mut self, entry_index: usize) -> Vec<ChangeOutcome> {
        let outcomes = self.undo_where(&|index, _| index == entry_index);
        self.remove_finished_journal();
        outcomes
    }

    /// Undoes the entries of a guard, or of all. An entry under a later one of another guard is passed on to
    /// that one: its value is in force, and it restores the first original value.
    pub(super) fn undo_guard(&mut self, guard: Option<u64>) -> Vec<ChangeOutcome> {
        self.ended_guards.extend(guard);
        let (guards, ended) = (self.guard_ids.clone(), self.ended_guards.clone());
        let is_chosen = move |at: usize| guard.is_none() || ended.contains(&guards[at]);
        for at in (0..self.entries.len()).filter(|&at| is_chosen(at)) {
            self.hand_over(at, &is_chosen);
        }
        let outcomes = self.undo_where(&|at, _| is_chosen(at));
        self.remove_finished_journal();
        outcomes
    }

    fn hand_over(&mut self, entry_index: usize, is_chosen: &dyn Fn(usize) -> bool) {
        let JournalledAction::Change { knob, .. } = &self.entries[entry_index].act else { return };
        let is_same = |entry: &JournalEntry| match &entry.act {
            JournalledAction::Change { knob: other, .. } => other == knob,
            _ => false,
        };
        let is_above = |&to: &usize| self.entries[to].is_open && is_same(&self.entries[to]) && !is_chosen(to);
        let above = (entry_index + 1..self.entries.len()).find(is_above);
        if let Some(to) = above.filter(|_| self.entries[entry_index].is_open) {
            let record = Record::Handed { seq: self.entries[entry_index].seq, to: self.entries[to].seq };
            // Without this record the journal still has both entries, and both are undone in order.
            note(self.journal_file.as_mut(), &record);
            let _ = journal::hand_over(&mut self.entries, entry_index, to);
        }
    }

    fn undo_where(&mut self, is_chosen: &dyn Fn(usize, &JournalEntry) -> bool) -> Vec<ChangeOutcome> {
        let Ledger { entries, journal_file, site, .. } = self;
        undo::undo_all(site.kernel.as_ref(), entries, is_chosen, journal_file.as_mut())
    }

    /// Removes the journal once nothing is left to undo. If that fails, a journal without open entries
    /// remains, which the next restore removes.
    fn remove_finished_journal(&mut self) {
        if self.entries.iter().any(|entry| entry.is_open) {
            return;
        }
        self.entries.clear();
        self.guard_ids.clear();
        self.ended_guards.clear();
        if self.journal_file.is_some() && self.remove_file().is_ok() {
            self.journal_file = None;
        }
    }

    fn remove_file(&self) -> io::Result<()> {
        std::fs::remove_file(self.site.dir.path().join(journal_name(&self.site.owner)))?;
        // If another process has the lock, the last process to leave the directory removes it.
        if let Ok(Some(Some(locked))) = self.site.dir.try_lock(false) {
            locked.release();
        }
        Ok(())
    }
}
