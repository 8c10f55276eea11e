//! Owner of a change, and whether that process still runs.
//!
//! A PID alone does not identify a process: PIDs are reused. A process is identified by its boot, PID and
//! start time. Its namespace is kept too, because a PID means another process (or none) in another namespace;
//! there the lock of every owner on its own journal decides.

use std::fs;
use std::path::Path;

use pagelab_formats::process_status;
use serde::{Deserialize, Serialize};

use super::{GuardError, GuardErrorKind};
use crate::paths;

const COMMAND_MAX: usize = 200;

/// One process of one boot. The names of its fields are a contract: they are in journals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// `/proc/sys/kernel/random/boot_id` of its boot.
    pub boot_id: String,
    /// Its PID in its own namespace.
    pub pid: u32,
    /// Its start: clock ticks since boot, field 22 of its stat line.
    pub start_ticks: u64,
    /// Its PID namespace, in the kernel's notation: `pid:[4026531836]`.
    pub pid_namespace: String,
    /// Its command line, shortened, without control characters.
    pub command: String,
}

/// Whether an owner still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It runs, and restores its changes itself.
    Live,
    /// It ended without restoring.
    Killed,
    /// It ran in another boot; its changes ended with that boot.
    OtherBoot,
}

impl Owner {
    /// This process. It is always read from this machine, even if the settings are under another base.
    pub fn this_process() -> Result<Owner, GuardError> {
        let pid = std::process::id();
        let boot_id = fs::read_to_string(paths::BOOT_ID).map_err(|e| read_error(paths::BOOT_ID, e))?;
        let stat_path = paths::process_stat_file(pid);
        let stat = fs::read(&stat_path).map_err(|e| read_error(&stat_path, e))?;
        let stat = process_status::parse_stat(&stat).map_err(|error| {
            GuardError::new(GuardErrorKind::NotAvailable, error.message_in_file(&stat_path))
        })?;
        let namespace = fs::read_link(paths::SELF_PID_NAMESPACE).unwrap_or_default();
        let command = fs::read(paths::SELF_CMDLINE).unwrap_or_default();
        Ok(Owner {
            boot_id: boot_id.trim().to_owned(),
            pid,
            start_ticks: stat.start_ticks,
            pid_namespace: namespace.to_string_lossy().into_owned(),
            command: sanitize_command(&command),
        })
    }

    /// Whether this owner runs, as seen by `current`. `journal_is_locked`: whether the lock on its journal is
    /// held, as every owner does while it runs.
    pub(super) fn liveness(&self, current: &Owner, journal_is_locked: bool) -> Liveness {
        if self.boot_id != current.boot_id {
            return Liveness::OtherBoot;
        }
        let number_counts = self.pid_namespace == current.pid_namespace;
        if journal_is_locked || (number_counts && self.is_running()) {
            return Liveness::Live;
        }
        Liveness::Killed
    }

    fn is_running(&self) -> bool {
        let Ok(text) = fs::read(paths::process_stat_file(self.pid)) else { return false };
        let Ok(stat) = process_status::parse_stat(&text) else { return false };
        stat.start_ticks == self.start_ticks && !stat.has_ended()
    }

    /// `pid 4121, pagelab probe`.
    pub fn display_name(&self) -> String {
        match self.command.is_empty() {
            true => format!("pid {}", self.pid),
            false => format!("pid {}, {}", self.pid, self.command),
        }
    }
}

fn read_error(path: &str, error: std::io::Error) -> GuardError {
    let message = format!("cannot identify this process for the journal: cannot read {path}");
    GuardError::new(GuardErrorKind::NotAvailable, message).with_cause(error)
}

fn sanitize_command(raw: &[u8]) -> String {
    let arguments = raw.split(|&byte| byte == 0).filter(|argument| !argument.is_empty());
    let mut words: Vec<_> = arguments.map(String::from_utf8_lossy).collect();
    let Some(program) = words.first_mut() else { return String::new() };
    let name = Path::new(&**program).file_name().unwrap_or_default();
    *program = name.to_string_lossy().into_owned().into();
    sanitize_text(&words.join(" "))
}

/// Text without control characters, which must not reach a terminal from a journal, and of limited length.
pub(super) fn sanitize_text(text: &str) -> String {
    let mut clean = String::new();
    for c in text.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if clean.len() + c.len_utf8() > COMMAND_MAX {
            clean.push('…');
            break;
        }
        clean.push(c);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_and_another_start_time_is_another_process() {
        let me = Owner::this_process().unwrap();
        assert_eq!(me.liveness(&me, false), Liveness::Live);
        let earlier = Owner { start_ticks: me.start_ticks.wrapping_sub(1), ..me.clone() };
        assert_eq!(earlier.liveness(&me, false), Liveness::Killed);
        assert_eq!(earlier.liveness(&me, true), Liveness::Live);
        let rebooted = Owner { boot_id: "another".to_owned(), ..me.clone() };
        assert_eq!(rebooted.liveness(&me, true), Liveness::OtherBoot);
        let elsewhere = Owner { pid_namespace: "pid:[1]".to_owned(), ..me.clone() };
        assert_eq!(elsewhere.liveness(&me, false), Liveness::Killed);
        assert_eq!(elsewhere.liveness(&me, true), Liveness::Live);
    }

    #[test]
    fn a_command_line_cannot_write_to_a_terminal() {
        assert_eq!(sanitize_command(b"/usr/bin/pagelab\0run\0a\x1b[2Jb\0"), "pagelab run a?[2Jb");
        assert_eq!(sanitize_command(b""), "");
        assert!(sanitize_command(&[b'x'; 10_000]).len() <= COMMAND_MAX + '…'.len_utf8());
    }
}
