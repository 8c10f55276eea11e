//! Format of the journal: one line per record, each with a checksum, appended and never rewritten.
//!
//! A line is eight hexadecimal digits (CRC-32 of the rest), a blank, a JSON object and a line feed. An
//! incomplete line has no line feed: the announced change was not made, so it is skipped. A complete line
//! with a wrong checksum cannot result from a kill, and the whole file is refused.

use std::io;

use pagelab_formats::checksum::crc32;
use serde::{Deserialize, Serialize};

use super::kernel::Kernel;
use super::kernel_objects;
use super::knob::Knob;
use super::owner::{Owner, sanitize_text};
use crate::paths;

/// A journal with a higher number is of a newer pagelab.
pub(super) const VERSION: u32 = 1;

/// A larger file is not a journal of pagelab: a record has some hundred bytes.
pub(super) const SIZE_MAX: u64 = 16 << 20;

/// One record, as it is stored. Names and meanings are a contract with older and newer pagelabs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub(super) enum Record {
    /// First record: the owner of the journal.
    Head {
        /// Format of the journal; a reader refuses newer ones.
        version: u32,
        #[serde(flatten)]
        owner: Owner,
    },
    /// A setting is about to be changed.
    Change {
        seq: u64,
        /// Nanoseconds since 1970-01-01 UTC.
        unix_ns: u64,
        path: String,
        old: String,
        #[serde(rename = "ours")]
        requested: String,
        /// min_free_kbytes before the change, if the kernel changes it too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min_free_kbytes: Option<String>,
    },
    /// A cgroup is about to be created; its processes return to `home`.
    Cgroup { seq: u64, unix_ns: u64, path: String, home: Option<String> },
    /// debugfs is about to be mounted.
    Debugfs { seq: u64, unix_ns: u64, path: String },
    /// A swap file is about to be created and used.
    SwapFile { seq: u64, unix_ns: u64, path: String },
    /// A trace instance is about to be created.
    TraceInstance { seq: u64, unix_ns: u64, path: String },
    /// An irreversible action is about to be done.
    OneWay { seq: u64, unix_ns: u64, act: String },
    /// Value read back: of a setting, or the inode number of a cgroup, a swap file or a trace instance, or
    /// the number of a mount.
    Seen { seq: u64, value: String, min_free_kbytes: Option<String> },
    /// The act is done.
    Done { seq: u64 },
    /// The undo has started.
    Undoing { seq: u64 },
    /// The undo is complete.
    Closed { seq: u64, how: String },
    /// The change `seq` ended while `to`, a later change of the same setting, is in force: from now on `to`
    /// restores the value that `seq` found.
    Handed { seq: u64, to: u64 },
}

/// Effect of an entry on the machine.
#[derive(Clone, Debug)]
pub(super) enum JournalledAction {
    Change { knob: Knob, old: String, requested: String, min_free_kbytes: Option<String> },
    Cgroup { path: String, home: Option<String> },
    Debugfs { path: String },
    SwapFile { path: String },
    TraceInstance { path: String },
    OneWay { act: String },
}

impl JournalledAction {
    /// Resource with one owner at a time; irreversible actions have none.
    pub(super) fn claim(&self) -> Option<String> {
        match self {
            Self::Change { knob, .. } => Some(knob.claim_key()),
            Self::OneWay { .. } => None,
            object => Some(object.path().to_owned()),
        }
    }

    pub(super) fn label(&self) -> String {
        match self {
            Self::Change { knob, .. } => knob.label(),
            Self::Cgroup { .. } => "cgroup".to_owned(),
            Self::Debugfs { .. } => "debugfs".to_owned(),
            Self::SwapFile { .. } => "swap file".to_owned(),
            Self::TraceInstance { .. } => "trace instance".to_owned(),
            Self::OneWay { act } => sanitize_text(act),
        }
    }

    /// The file or directory, or the act's name.
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Change { knob, .. } => knob.path(),
            Self::Cgroup { path, .. }
            | Self::Debugfs { path }
            | Self::SwapFile { path }
            | Self::TraceInstance { path } => path,
            Self::OneWay { act } => act,
        }
    }

    /// The value before the change and the requested value, if it is a setting.
    pub(super) fn values(&self) -> (Option<String>, Option<String>) {
        match self {
            Self::Change { old, requested, .. } => (Some(old.clone()), Some(requested.clone())),
            _ => (None, None),
        }
    }

    /// Refuses an object that pagelab does not create.
    fn check_own(&self, kernel: &dyn Kernel) -> Result<(), String> {
        let is_own = match self {
            Self::Change { .. } | Self::OneWay { .. } => true,
            Self::Cgroup { path, .. } => kernel_objects::is_our_cgroup(kernel, path),
            Self::SwapFile { path } => kernel_objects::is_swap_file(path),
            Self::TraceInstance { path } => kernel_objects::is_trace_instance(path),
            Self::Debugfs { path } if path == paths::DEBUGFS => true,
            Self::Debugfs { path } => {
                return Err(format!("debugfs is not mounted at {}", sanitize_text(path)));
            }
        };
        match is_own {
            true => Ok(()),
            false => Err(format!("{} is not a {} of pagelab", sanitize_text(self.path()), self.label())),
        }
    }
}

/// Value read back after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadBackValue {
    pub(super) value: String,
    pub(super) min_free_kbytes: Option<String>,
}

/// One change, rebuilt from its records.
#[derive(Clone, Debug)]
pub(super) struct JournalEntry {
    /// Counts from 1 in each journal.
    pub(super) seq: u64,
    pub(super) act: JournalledAction,
    pub(super) read_back: Option<ReadBackValue>,
    pub(super) is_undoing: bool,
    /// Whether something is left to undo.
    pub(super) is_open: bool,
}

impl JournalEntry {
    pub(super) fn new(seq: u64, act: JournalledAction) -> JournalEntry {
        JournalEntry { seq, act, read_back: None, is_undoing: false, is_open: true }
    }

    /// Whether an object with this number is not the one that was created.
    pub(super) fn is_foreign(&self, number: u64) -> bool {
        self.read_back.as_ref().is_some_and(|seen| seen.value != number.to_string())
    }

    pub(super) fn record(&self, unix_ns: u64) -> Record {
        let seq = self.seq;
        match &self.act {
            JournalledAction::Change { knob, old, requested, min_free_kbytes } => Record::Change {
                seq,
                unix_ns,
                path: knob.path().to_owned(),
                old: old.clone(),
                requested: requested.clone(),
                min_free_kbytes: min_free_kbytes.clone(),
            },
            JournalledAction::Cgroup { path, home } => {
                Record::Cgroup { seq, unix_ns, path: path.clone(), home: home.clone() }
            }
            JournalledAction::Debugfs { path } => Record::Debugfs { seq, unix_ns, path: path.clone() },
            JournalledAction::SwapFile { path } => Record::SwapFile { seq, unix_ns, path: path.clone() },
            JournalledAction::TraceInstance { path } => {
                Record::TraceInstance { seq, unix_ns, path: path.clone() }
            }
            JournalledAction::OneWay { act } => Record::OneWay { seq, unix_ns, act: act.clone() },
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Journal {
    pub(super) owner: Owner,
    pub(super) entries: Vec<JournalEntry>,
}

/// Why a journal is rejected, and whether it may be moved: not one of a newer pagelab, and not one whose
/// owner still writes it.
#[derive(Debug)]
pub(super) struct JournalRejection {
    pub(super) reason: String,
    pub(super) can_move: bool,
}

pub(super) fn encode(record: &Record) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(record)?;
    Ok(format!("{:08x} {json}\n", crc32(json.as_bytes())).into_bytes())
}

/// Reads a journal. `None`: not even its head was written, so nothing was changed.
pub(super) fn decode(bytes: &[u8], kernel: &dyn Kernel) -> Result<Option<Journal>, JournalRejection> {
    let mut journal: Option<Journal> = None;
    for (index, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let bad =
            |what: &str| JournalRejection { reason: format!("line {}: {what}", index + 1), can_move: true };
        let Some(line) = line.strip_suffix(b"\n") else { break };
        let record = decode_line(line).map_err(|what| bad(&what))?;
        match (&mut journal, record) {
            (None, Record::Head { version, .. }) if version > VERSION => {
                let reason = format!(
                    "was written by a newer pagelab (journal version {version}); hint: restore with that \
                     pagelab"
                );
                return Err(JournalRejection { reason, can_move: false });
            }
            (None, Record::Head { owner, .. }) => {
                let owner = Owner { command: sanitize_text(&owner.command), ..owner };
                journal = Some(Journal { owner, entries: Vec::new() });
            }
            (None, _) => return Err(bad("the first record does not name its owner")),
            (Some(_), Record::Head { .. }) => return Err(bad("a second header")),
            (Some(journal), record) => journal.apply_record(record, kernel).map_err(|what| bad(&what))?,
        }
    }
    Ok(journal)
}

fn decode_line(line: &[u8]) -> Result<Record, String> {
    let text = std::str::from_utf8(line).map_err(|_| "is not text".to_owned())?;
    let (sum, json) = text.split_once(' ').ok_or("has no checksum")?;
    if sum != format!("{:08x}", crc32(json.as_bytes())) {
        return Err("its checksum does not match".to_owned());
    }
    serde_json::from_str(json).map_err(|error| format!("is not a record: {error}"))
}

impl Journal {
    /// Parses one record, or returns its error. A setting that is not on the list is an error.
    fn apply_record(&mut self, record: Record, kernel: &dyn Kernel) -> Result<(), String> {
        let (seq, act) = match record {
            Record::Change { seq, path, old, requested, min_free_kbytes, .. } => {
                let knob = Knob::from_path(&path).map_err(|error| error.to_string())?;
                if !knob.is_valid_value(&old) || !knob.is_valid_value(&requested) {
                    return Err(format!("{}: invalid values", knob.label()));
                }
                let along = knob.companion_knob();
                let along_fits =
                    |value: &String| along.as_ref().is_some_and(|knob| knob.is_valid_value(value));
                if !min_free_kbytes.iter().all(along_fits) {
                    return Err(format!("{} does not change min_free_kbytes", knob.label()));
                }
                (seq, JournalledAction::Change { knob, old, requested, min_free_kbytes })
            }
            Record::Cgroup { seq, path, home, .. } => (seq, JournalledAction::Cgroup { path, home }),
            Record::Debugfs { seq, path, .. } => (seq, JournalledAction::Debugfs { path }),
            Record::SwapFile { seq, path, .. } => (seq, JournalledAction::SwapFile { path }),
            Record::TraceInstance { seq, path, .. } => (seq, JournalledAction::TraceInstance { path }),
            Record::OneWay { seq, act, .. } => (seq, JournalledAction::OneWay { act }),
            later => return self.apply_update(later),
        };
        act.check_own(kernel)?;
        if self.entries.last().is_some_and(|last| last.seq >= seq) {
            return Err(format!("number {seq} is out of order"));
        }
        self.entries.push(JournalEntry::new(seq, act));
        Ok(())
    }

    fn apply_update(&mut self, record: Record) -> Result<(), String> {
        let entry = |entries: &mut [JournalEntry], seq: u64| {
            entries.iter().position(|e| e.seq == seq).ok_or_else(|| format!("number {seq} is unknown"))
        };
        match record {
            Record::Seen { seq, value, min_free_kbytes } => {
                let at = entry(&mut self.entries, seq)?;
                self.entries[at].read_back = Some(ReadBackValue { value, min_free_kbytes });
            }
            Record::Undoing { seq } => {
                let at = entry(&mut self.entries, seq)?;
                self.entries[at].is_undoing = true;
            }
            Record::Done { seq } | Record::Closed { seq, .. } => {
                let at = entry(&mut self.entries, seq)?;
                // An irreversible action that is done stays on record; there is nothing to undo.
                self.entries[at].is_open &= matches!(self.entries[at].act, JournalledAction::OneWay { .. });
            }
            Record::Handed { seq, to } => {
                let (from, to) = (entry(&mut self.entries, seq)?, entry(&mut self.entries, to)?);
                hand_over(&mut self.entries, from, to)?;
            }
            _ => return Err("is not expected here".to_owned()),
        }
        Ok(())
    }
}

/// Ends the entry at `from`; the later one at `to`, on the same setting, takes over its original value.
pub(super) fn hand_over(entries: &mut [JournalEntry], from: usize, to: usize) -> Result<(), String> {
    let found = match (&entries[from].act, &entries[to].act) {
        (
            JournalledAction::Change { knob, old, min_free_kbytes, .. },
            JournalledAction::Change { knob: later, .. },
        ) if from < to && knob == later => (old.clone(), min_free_kbytes.clone()),
        _ => return Err("only a later change of the same setting can take over".to_owned()),
    };
    if let JournalledAction::Change { old, min_free_kbytes, .. } = &mut entries[to].act {
        (*old, *min_free_kbytes) = found;
    }
    entries[from].is_open = false;
    Ok(())
}

/// Outcome of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// Display name of the setting: `THP enabled`, `2 MiB pool`, `cgroup`.
    pub label: String,
    /// The file or directory; for an irreversible action its name.
    pub path: String,
    /// Its outcome.
    pub undo: UndoOutcome,
    /// The value that was in force when undoing began.
    pub found_value: Option<String>,
    /// The value that pagelab had set.
    pub set_value: Option<String>,
    /// The value before pagelab, which is restored.
    pub original_value: Option<String>,
    /// Details, without a trailing dot; may be empty.
    pub detail: String,
}

/// Outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoOutcome {
    /// It was undone, and that was read back.
    Restored,
    /// There was nothing to undo: the change was not made, or is undone already.
    AlreadyRestored,
    /// The value is neither that of pagelab nor the original: another process set it since. It stays.
    LeftUnchanged,
    /// It could not be undone; it stays in the journal, and the next restore tries again.
    Failed,
    /// An irreversible action. It is reported only.
    OneWay,
    /// Its owner runs, and will undo it.
    OwnerRunning,
    /// It was made in another boot, which it did not survive.
    OtherBoot,
}

impl UndoOutcome {
    /// Its name in JSON.
    pub fn json_name(self) -> &'static str {
        match self {
            UndoOutcome::Restored => "restored",
            UndoOutcome::AlreadyRestored => "already_restored",
            UndoOutcome::LeftUnchanged => "left_unchanged",
            UndoOutcome::Failed => "failed",
            UndoOutcome::OneWay => "one_way",
            UndoOutcome::OwnerRunning => "held",
            UndoOutcome::OtherBoot => "other_boot",
        }
    }
}

impl ChangeOutcome {
    /// Outcome of an entry that was not tried.
    pub(super) fn from_entry(entry: &JournalEntry, undo: UndoOutcome) -> ChangeOutcome {
        let (original_value, set_value) = entry.act.values();
        ChangeOutcome {
            label: entry.act.label(),
            path: entry.act.path().to_owned(),
            undo,
            found_value: None,
            set_value,
            original_value,
            detail: String::new(),
        }
    }

    pub(super) fn with_undo(mut self, undo: UndoOutcome, detail: impl Into<String>) -> ChangeOutcome {
        self.undo = undo;
        self.detail = detail.into();
        self
    }
}

/// Outcome and detail of one undone entry.
pub(super) type UndoResult = io::Result<(UndoOutcome, &'static str)>;

/// The number of a created object, if the object still exists.
pub(super) fn existing_inode(inode: io::Result<u64>) -> io::Result<Option<u64>> {
    match inode {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Outcome for a created object that no longer exists, or whose name another object has now.
pub(super) fn check_foreign(
    inode: io::Result<u64>,
    entry: &JournalEntry,
    foreign_detail: &'static str,
) -> io::Result<Option<(UndoOutcome, &'static str)>> {
    Ok(match existing_inode(inode)? {
        None => Some((UndoOutcome::AlreadyRestored, "")),
        Some(inode) => entry.is_foreign(inode).then_some((UndoOutcome::LeftUnchanged, foreign_detail)),
    })
}

/// Whether a removed object no longer exists, by its inode.
pub(super) fn check_removed(inode: io::Result<u64>) -> UndoResult {
    match existing_inode(inode) {
        Ok(None) => Ok((UndoOutcome::Restored, "removed")),
        _ => Err(io::Error::other("it still exists after removal")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back_as_it_was_written() {
        let records = [
            Record::Undoing { seq: 7 },
            Record::OneWay { seq: 1, unix_ns: u64::MAX, act: "a\nb\"\u{1b}".to_owned() },
            Record::Seen { seq: 2, value: "4".to_owned(), min_free_kbytes: None },
        ];
        for record in records {
            let line = encode(&record).unwrap();
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1, "{record:?}");
            let line = line.strip_suffix(b"\n").unwrap();
            assert_eq!(decode_line(line), Ok(record));
        }
    }
}
