//! The journal's format: one line a record, each with its checksum, appended and never rewritten.
//!
//! A line is eight hexadecimal digits (CRC-32 of the rest), a blank, a JSON object and a line feed. An
//! append that was cut off has no line feed: the change it announces was not made, so it is skipped. A
//! line with its line feed and a wrong checksum is not the work of a kill, and the whole file is refused.

use pagelab_formats::checksum::crc32;
use serde::{Deserialize, Serialize};

use super::created;
use super::kernel::Kernel;
use super::knob::Knob;
use super::owner::{self, Owner};
use super::swap;
use super::trace_instance;
use crate::paths;

/// A journal that says more than this is of a newer pagelab.
pub(super) const VERSION: u32 = 1;

/// A journal that is larger is not ours: a record is some hundred bytes.
pub(super) const SIZE_MAX: u64 = 16 << 20;

/// One record, as it is stored. Names and meanings are a contract with older and newer pagelabs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub(super) enum Record {
    /// The first one: whose journal it is.
    Head {
        /// Format of the journal; a reader refuses newer ones.
        version: u32,
        boot_id: String,
        pid: u32,
        start_ticks: u64,
        pid_namespace: String,
        command: String,
    },
    /// A setting is about to be changed.
    Change {
        seq: u64,
        /// Nanoseconds since 1970-01-01 UTC.
        unix_ns: u64,
        path: String,
        old: String,
        ours: String,
        /// min_free_kbytes before the change, where the kernel moves it along.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min_free_kbytes: Option<String>,
    },
    /// A cgroup is about to be made; its processes go back to `home`.
    Cgroup { seq: u64, unix_ns: u64, path: String, home: Option<String> },
    /// debugfs is about to be mounted.
    Debugfs { seq: u64, unix_ns: u64, path: String },
    /// A swap file is about to be made and swapped to.
    SwapFile { seq: u64, unix_ns: u64, path: String },
    /// A trace instance is about to be made.
    TraceInstance { seq: u64, unix_ns: u64, path: String },
    /// Something is about to be done that cannot be undone.
    OneWay { seq: u64, unix_ns: u64, act: String },
    /// What was read back: the value of a setting, the inode number of a cgroup, of a swap file or of a
    /// trace instance, the number of a mount.
    Seen { seq: u64, value: String, min_free_kbytes: Option<String> },
    /// The act is done.
    Done { seq: u64 },
    /// Undoing has begun.
    Undoing { seq: u64 },
    /// Nothing is left to undo.
    Closed { seq: u64, how: String },
    /// The change `seq` ended while `to`, a later change of the same setting, is in force: from now on
    /// `to` goes back to what `seq` found.
    Handed { seq: u64, to: u64 },
}

/// What an entry did to the machine.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Change { knob: Knob, old: String, ours: String, min_free_kbytes: Option<String> },
    Cgroup { path: String, home: Option<String> },
    Debugfs { path: String },
    SwapFile { path: String },
    TraceInstance { path: String },
    OneWay { act: String },
}

impl Act {
    /// What may have one owner at a time; one-way acts have none.
    pub(super) fn claim(&self) -> Option<String> {
        match self {
            Act::Change { knob, .. } => Some(knob.claim()),
            Act::Cgroup { path, .. }
            | Act::Debugfs { path }
            | Act::SwapFile { path }
            | Act::TraceInstance { path } => Some(path.clone()),
            Act::OneWay { .. } => None,
        }
    }

    /// A person's name for it.
    pub(super) fn label(&self) -> String {
        match self {
            Act::Change { knob, .. } => knob.label(),
            Act::Cgroup { .. } => "cgroup".to_owned(),
            Act::Debugfs { .. } => "debugfs".to_owned(),
            Act::SwapFile { .. } => "swap file".to_owned(),
            Act::TraceInstance { .. } => "trace instance".to_owned(),
            Act::OneWay { act } => owner::printable(act),
        }
    }

    /// The file or directory, or the act's name.
    pub(super) fn path(&self) -> &str {
        match self {
            Act::Change { knob, .. } => knob.path(),
            Act::Cgroup { path, .. }
            | Act::Debugfs { path }
            | Act::SwapFile { path }
            | Act::TraceInstance { path } => path,
            Act::OneWay { act } => act,
        }
    }
}

/// What was read back after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) value: String,
    pub(super) min_free_kbytes: Option<String>,
}

/// One change, as far as its records tell.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Counts from 1 in each journal.
    pub(super) seq: u64,
    /// Wall time of the announcement.
    pub(super) unix_ns: u64,
    pub(super) act: Act,
    pub(super) seen: Option<Seen>,
    /// Whether undoing had begun.
    pub(super) is_undoing: bool,
    /// Whether something is left to undo.
    pub(super) is_open: bool,
}

impl Entry {
    pub(super) fn new(seq: u64, unix_ns: u64, act: Act) -> Entry {
        Entry { seq, unix_ns, act, seen: None, is_undoing: false, is_open: true }
    }

    /// Its first record.
    pub(super) fn record(&self) -> Record {
        let (seq, unix_ns) = (self.seq, self.unix_ns);
        match &self.act {
            Act::Change { knob, old, ours, min_free_kbytes } => Record::Change {
                seq,
                unix_ns,
                path: knob.path().to_owned(),
                old: old.clone(),
                ours: ours.clone(),
                min_free_kbytes: min_free_kbytes.clone(),
            },
            Act::Cgroup { path, home } => {
                Record::Cgroup { seq, unix_ns, path: path.clone(), home: home.clone() }
            }
            Act::Debugfs { path } => Record::Debugfs { seq, unix_ns, path: path.clone() },
            Act::SwapFile { path } => Record::SwapFile { seq, unix_ns, path: path.clone() },
            Act::TraceInstance { path } => Record::TraceInstance { seq, unix_ns, path: path.clone() },
            Act::OneWay { act } => Record::OneWay { seq, unix_ns, act: act.clone() },
        }
    }
}

/// A journal that was read.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    pub(super) owner: Owner,
    pub(super) entries: Vec<Entry>,
}

/// Why a journal is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// Written by a newer pagelab: not ours to judge.
    Newer(u32),
    /// Line, counted from 1, and what is wrong with it.
    Line(usize, String),
}

/// The line of a record.
pub(super) fn encode(record: &Record) -> std::io::Result<Vec<u8>> {
    let json = serde_json::to_string(record)?;
    Ok(format!("{:08x} {json}\n", crc32(json.as_bytes())).into_bytes())
}

/// The head that says whose journal it is.
pub(super) fn head(owner: &Owner) -> Record {
    Record::Head {
        version: VERSION,
        boot_id: owner.boot_id.clone(),
        pid: owner.pid,
        start_ticks: owner.start_ticks,
        pid_namespace: owner.pid_namespace.clone(),
        command: owner.command.clone(),
    }
}

/// Reads a journal. `None`: not even its head was written, so nothing was changed.
pub(super) fn decode(bytes: &[u8], kernel: &dyn Kernel) -> Result<Option<Journal>, Bad> {
    let mut journal: Option<Journal> = None;
    for (index, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let bad = |what: &str| Bad::Line(index + 1, what.to_owned());
        let Some(line) = line.strip_suffix(b"\n") else { break };
        let record = decode_line(line).map_err(|what| bad(&what))?;
        match (&mut journal, record) {
            (None, Record::Head { version, .. }) if version > VERSION => return Err(Bad::Newer(version)),
            (None, Record::Head { boot_id, pid, start_ticks, pid_namespace, command, .. }) => {
                let command = owner::printable(&command);
                let owner = Owner { boot_id, pid, start_ticks, pid_namespace, command };
                journal = Some(Journal { owner, entries: Vec::new() });
            }
            (None, _) => return Err(bad("the first record does not say whose journal it is")),
            (Some(_), Record::Head { .. }) => return Err(bad("a second head")),
            (Some(journal), record) => journal.take(record, kernel).map_err(|what| bad(&what))?,
        }
    }
    Ok(journal)
}

fn decode_line(line: &[u8]) -> Result<Record, String> {
    let text = std::str::from_utf8(line).map_err(|_| "is not text".to_owned())?;
    let (sum, json) = text.split_once(' ').ok_or("has no checksum")?;
    if sum != format!("{:08x}", crc32(json.as_bytes())) {
        return Err("its checksum is wrong".to_owned());
    }
    serde_json::from_str(json).map_err(|error| format!("is no record: {error}"))
}

impl Journal {
    /// Takes one record, or says what is wrong with it. What is not on the list of settings is wrong.
    fn take(&mut self, record: Record, kernel: &dyn Kernel) -> Result<(), String> {
        let (seq, unix_ns, act) = match record {
            Record::Change { seq, unix_ns, path, old, ours, min_free_kbytes } => {
                let knob = Knob::at(&path).map_err(|error| error.to_string())?;
                if !knob.fits(&old) || !knob.fits(&ours) {
                    return Err(format!("{} cannot have these values", knob.label()));
                }
                let along = knob.moves_along();
                let along_fits = |value: &String| along.as_ref().is_some_and(|knob| knob.fits(value));
                if !min_free_kbytes.iter().all(along_fits) {
                    return Err(format!("{} does not move min_free_kbytes along", knob.label()));
                }
                (seq, unix_ns, Act::Change { knob, old, ours, min_free_kbytes })
            }
            Record::Cgroup { seq, unix_ns, path, home } => {
                if !created::is_our_cgroup(kernel, &path) {
                    return Err(format!("{} is no cgroup of pagelab", owner::printable(&path)));
                }
                (seq, unix_ns, Act::Cgroup { path, home })
            }
            Record::Debugfs { seq, unix_ns, path } => {
                if path != paths::DEBUGFS {
                    return Err(format!("debugfs is not mounted at {}", owner::printable(&path)));
                }
                (seq, unix_ns, Act::Debugfs { path })
            }
            Record::SwapFile { seq, unix_ns, path } => {
                if !swap::is_ours(&path) {
                    return Err(format!("{} is no swap file of pagelab", owner::printable(&path)));
                }
                (seq, unix_ns, Act::SwapFile { path })
            }
            Record::TraceInstance { seq, unix_ns, path } => {
                if !trace_instance::is_ours(&path) {
                    return Err(format!("{} is no trace instance of pagelab", owner::printable(&path)));
                }
                (seq, unix_ns, Act::TraceInstance { path })
            }
            Record::OneWay { seq, unix_ns, act } => (seq, unix_ns, Act::OneWay { act }),
            later => return self.amend(later),
        };
        if self.entries.last().is_some_and(|last| last.seq >= seq) {
            return Err(format!("number {seq} is out of order"));
        }
        self.entries.push(Entry::new(seq, unix_ns, act));
        Ok(())
    }

    fn amend(&mut self, record: Record) -> Result<(), String> {
        let entry = |entries: &mut [Entry], seq: u64| {
            entries.iter().position(|e| e.seq == seq).ok_or_else(|| format!("number {seq} is unknown"))
        };
        match record {
            Record::Seen { seq, value, min_free_kbytes } => {
                let at = entry(&mut self.entries, seq)?;
                self.entries[at].seen = Some(Seen { value, min_free_kbytes });
            }
            Record::Undoing { seq } => {
                let at = entry(&mut self.entries, seq)?;
                self.entries[at].is_undoing = true;
            }
            Record::Done { seq } | Record::Closed { seq, .. } => {
                let at = entry(&mut self.entries, seq)?;
                // A one-way act that is done stays on record; it has nothing to undo in any case.
                self.entries[at].is_open &= matches!(self.entries[at].act, Act::OneWay { .. });
            }
            Record::Handed { seq, to } => {
                let (from, to) = (entry(&mut self.entries, seq)?, entry(&mut self.entries, to)?);
                hand_over(&mut self.entries, from, to)?;
            }
            _ => return Err("is out of place".to_owned()),
        }
        Ok(())
    }
}

/// Ends the entry at `from`; the one at `to`, later and on the same setting, goes back to what it found.
pub(super) fn hand_over(entries: &mut [Entry], from: usize, to: usize) -> Result<(), String> {
    let found = match (&entries[from].act, &entries[to].act) {
        (Act::Change { knob, old, min_free_kbytes, .. }, Act::Change { knob: later, .. })
            if from < to && knob == later =>
        {
            (old.clone(), min_free_kbytes.clone())
        }
        _ => return Err("only a later change of the same setting can take over".to_owned()),
    };
    if let Act::Change { old, min_free_kbytes, .. } = &mut entries[to].act {
        (*old, *min_free_kbytes) = found;
    }
    entries[from].is_open = false;
    Ok(())
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
