//! What this process has changed so far: one ledger, one journal, however many guards.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagelab_sys::clock::realtime_ns;

use super::Site;
use super::dir::{JournalFile, Locked, journal_name};
use super::error::{ErrorKind, GuardError};
use super::journal::{self, Act, Entry, Record, Seen};
use super::undo::{self, Outcome};

/// The ledgers of this process, by journal directory. They stay: one that could not undo everything
/// goes on owning its journal after its last guard.
static LEDGERS: Mutex<BTreeMap<PathBuf, Arc<Shared>>> = Mutex::new(BTreeMap::new());

/// A ledger that the guards of this process share, and the thread that restores after a signal.
#[derive(Debug)]
pub(super) struct Shared(Mutex<Ledger>);

/// The changes of this process and their journal.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) site: Site,
    /// Begun with the first change, removed with the last undone one.
    file: Option<JournalFile>,
    entries: Vec<Entry>,
    /// Which guard made the entry at the same index.
    guards: Vec<u64>,
    /// Guards that ended. What of theirs is still open could not be undone, and is tried again with the
    /// next guard that ends.
    ended: BTreeSet<u64>,
    next_seq: u64,
    next_guard: u64,
    /// This process is ending: it undoes, and changes nothing any more.
    is_stopping: bool,
}

impl Shared {
    /// The ledger of this process for a site.
    pub(super) fn of(site: &Site) -> Arc<Shared> {
        let mut ledgers = LEDGERS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = site.dir.path().to_owned();
        if let Some(shared) = ledgers.get(&key) {
            return shared.clone();
        }
        let ledger = Ledger {
            site: site.clone(),
            file: None,
            entries: Vec::new(),
            guards: Vec::new(),
            ended: BTreeSet::new(),
            next_seq: 1,
            next_guard: 1,
            is_stopping: false,
        };
        let shared = Arc::new(Shared(Mutex::new(ledger)));
        ledgers.insert(key, shared.clone());
        shared
    }

    /// A panic in the middle of a change leaves the ledger as true as a kill would: usable.
    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Undoes every change of this process, and lets no new one begin.
pub(super) fn stop_all() -> Vec<Outcome> {
    let all: Vec<Arc<Shared>> = {
        let ledgers = LEDGERS.lock().unwrap_or_else(PoisonError::into_inner);
        ledgers.values().cloned().collect()
    };
    let mut outcomes = Vec::new();
    for shared in all {
        let mut ledger = shared.lock();
        ledger.is_stopping = true;
        outcomes.extend(ledger.undo(None));
    }
    outcomes
}

impl Ledger {
    /// A number for a new guard.
    pub(super) fn enter(&mut self) -> u64 {
        self.next_guard += 1;
        self.next_guard - 1
    }

    /// Whether a change may begin.
    pub(super) fn check_going_on(&self) -> Result<(), GuardError> {
        match self.is_stopping {
            false => Ok(()),
            true => {
                let message = "nothing is changed any more: this process is restoring and about to end";
                Err(GuardError::new(ErrorKind::Stopping, message))
            }
        }
    }

    /// Journals what is about to be done; only when that is on the disk may it be done. Returns the
    /// entry's index.
    pub(super) fn announce(&mut self, locked: &Locked, guard: u64, act: Act) -> Result<usize, GuardError> {
        debug_assert_eq!(self.entries.len(), self.guards.len());
        let entry = Entry::new(self.next_seq, realtime_ns(), act);
        let written = match &mut self.file {
            Some(file) => file.append(&entry.record()),
            None => locked.begin(&self.site.owner).and_then(|mut file| {
                let appended = file.append(&entry.record());
                self.file = Some(file);
                appended
            }),
        };
        if let Err(error) = written {
            self.retire();
            let (what, path) = (entry.act.label(), self.site.dir.path().display());
            let message = format!("{what} was not changed: the journal in {path} cannot be written");
            return Err(GuardError::new(ErrorKind::Refused, message).because(error));
        }
        self.next_seq += 1;
        self.entries.push(entry);
        self.guards.push(guard);
        Ok(self.entries.len() - 1)
    }

    /// Journals what was read back. Without this record a restore still knows what was asked for, so a
    /// full disk is no reason to undo the change now.
    pub(super) fn saw(&mut self, at: usize, seen: Seen) {
        let record = Record::Seen {
            seq: self.entries[at].seq,
            value: seen.value.clone(),
            min_free_kbytes: seen.min_free_kbytes.clone(),
        };
        self.entries[at].seen = Some(seen);
        self.note(&record);
    }

    /// The number of an entry; unlike its index it stays the same when others end.
    pub(super) fn seq(&self, at: usize) -> u64 {
        self.entries[at].seq
    }

    /// Journals that a one-way act is done.
    pub(super) fn did(&mut self, seq: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.seq == seq) {
            entry.is_open = false;
            self.note(&Record::Done { seq });
        }
    }

    /// Undoes one entry, after its change went wrong.
    pub(super) fn take_back(&mut self, at: usize) -> Vec<Outcome> {
        let outcomes = self.undo_where(&|index, _| index == at);
        self.retire();
        outcomes
    }

    /// Undoes the entries of a guard, or of all. An entry over which a later one of another guard lies
    /// is handed to that one: its value is in force, and it goes back to what was found first.
    pub(super) fn undo(&mut self, guard: Option<u64>) -> Vec<Outcome> {
        self.ended.extend(guard);
        let (guards, ended) = (self.guards.clone(), self.ended.clone());
        let is_chosen = move |at: usize| guard.is_none() || ended.contains(&guards[at]);
        for at in (0..self.entries.len()).filter(|&at| is_chosen(at)) {
            self.hand_over(at, &is_chosen);
        }
        let outcomes = self.undo_where(&|at, _| is_chosen(at));
        self.retire();
        outcomes
    }

    fn hand_over(&mut self, at: usize, is_chosen: &dyn Fn(usize) -> bool) {
        let Act::Change { knob, .. } = &self.entries[at].act else { return };
        let is_same = |entry: &Entry| matches!(&entry.act, Act::Change { knob: other, .. } if other == knob);
        let is_above = |&to: &usize| self.entries[to].is_open && is_same(&self.entries[to]) && !is_chosen(to);
        let above = (at + 1..self.entries.len()).find(is_above);
        if let Some(to) = above.filter(|_| self.entries[at].is_open) {
            let record = Record::Handed { seq: self.entries[at].seq, to: self.entries[to].seq };
            // A journal that cannot keep this still has both entries, and undoes both in order.
            self.note(&record);
            let _ = journal::hand_over(&mut self.entries, at, to);
        }
    }

    fn undo_where(&mut self, choose: &dyn Fn(usize, &Entry) -> bool) -> Vec<Outcome> {
        let Ledger { entries, file, site, .. } = self;
        let mut note = |record: &Record| {
            if let Some(file) = file {
                let _ = file.append(record);
            }
        };
        undo::undo_all(site.kernel.as_ref(), entries, choose, &mut note)
    }

    fn note(&mut self, record: &Record) {
        if let Some(file) = &mut self.file {
            let _ = file.append(record);
        }
    }

    /// Removes the journal once nothing is left to undo. Where that fails, what stays is a journal with
    /// nothing open in it, which the next restore removes.
    fn retire(&mut self) {
        if self.entries.iter().any(|entry| entry.is_open) {
            return;
        }
        self.entries.clear();
        self.guards.clear();
        self.ended.clear();
        if self.file.is_none() {
            return;
        }
        let removed = self.remove_file();
        if removed.is_ok() {
            self.file = None;
        }
    }

    fn remove_file(&self) -> io::Result<()> {
        std::fs::remove_file(self.site.dir.path().join(journal_name(&self.site.owner)))?;
        // If somebody else has the lock, the directory goes with the next one who leaves it empty.
        if let Ok(Some(Some(locked))) = self.site.dir.try_lock(false) {
            locked.leave();
        }
        Ok(())
    }
}
