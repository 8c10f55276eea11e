//! Who made a change, and whether that process still runs.
//!
//! A process number alone says nothing: numbers are reused. A process is the boot it ran in, its number
//! and its start time. Its namespace is kept too, because a number means another process (or none) in
//! another namespace; there the lock that every owner holds on its own journal decides instead.

use std::fs;
use std::path::Path;

use pagelab_formats::process_stat;

use super::error::{ErrorKind, GuardError};
use crate::paths;

/// Longest command line that is kept, in bytes.
const COMMAND_MAX: usize = 200;

/// One process of one boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `/proc/sys/kernel/random/boot_id` of the boot it ran in.
    pub boot_id: String,
    /// Its number in its own namespace.
    pub pid: u32,
    /// When it started: clock ticks since boot, field 22 of its stat line.
    pub start_ticks: u64,
    /// Its pid namespace, as the kernel names it: `pid:[4026531836]`.
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
    /// This process. It is always read from this machine, also when the settings are under another base.
    pub fn this_process() -> Result<Owner, GuardError> {
        let pid = std::process::id();
        let boot_id = fs::read_to_string(paths::BOOT_ID).map_err(|e| unknown(paths::BOOT_ID, e))?;
        let stat_path = paths::process_stat(pid);
        let stat = fs::read(&stat_path).map_err(|e| unknown(&stat_path, e))?;
        let stat = process_stat::parse(&stat)
            .map_err(|error| GuardError::new(ErrorKind::NotAvailable, error.in_file(&stat_path)))?;
        let namespace = fs::read_link(paths::SELF_PID_NAMESPACE).unwrap_or_default();
        let command = fs::read(paths::SELF_CMDLINE).unwrap_or_default();
        Ok(Owner {
            boot_id: boot_id.trim().to_owned(),
            pid,
            start_ticks: stat.start_ticks,
            pid_namespace: namespace.to_string_lossy().into_owned(),
            command: printable_command(&command),
        })
    }

    /// Whether this owner runs, as seen by `me`. `journal_is_locked`: whether somebody holds the lock on
    /// its journal, as every owner does for as long as it runs.
    pub(super) fn liveness(&self, me: &Owner, journal_is_locked: bool) -> Liveness {
        if self.boot_id != me.boot_id {
            return Liveness::OtherBoot;
        }
        let number_counts = self.pid_namespace == me.pid_namespace;
        if journal_is_locked || (number_counts && self.runs()) {
            return Liveness::Live;
        }
        Liveness::Killed
    }

    fn runs(&self) -> bool {
        let Ok(text) = fs::read(paths::process_stat(self.pid)) else { return false };
        let Ok(stat) = process_stat::parse(&text) else { return false };
        stat.start_ticks == self.start_ticks && !stat.has_ended()
    }

    /// `pid 4121, pagelab probe`.
    pub fn name(&self) -> String {
        match self.command.is_empty() {
            true => format!("pid {}", self.pid),
            false => format!("pid {}, {}", self.pid, self.command),
        }
    }
}

fn unknown(path: &str, error: std::io::Error) -> GuardError {
    let message = format!("cannot journal a change without {path}, which says who made it");
    GuardError::new(ErrorKind::NotAvailable, message).because(error)
}

fn printable_command(raw: &[u8]) -> String {
    let mut arguments = raw.split(|&byte| byte == 0).filter(|argument| !argument.is_empty());
    let Some(program) = arguments.next() else { return String::new() };
    let program = String::from_utf8_lossy(program);
    let name = Path::new(program.as_ref()).file_name().unwrap_or_default();
    let mut command = name.to_string_lossy().into_owned();
    for argument in arguments {
        command.push(' ');
        command.push_str(&String::from_utf8_lossy(argument));
    }
    printable(&command)
}

/// Without control characters, which must not reach a terminal from a journal, and not too long.
pub(super) fn printable(text: &str) -> String {
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
        assert_eq!(printable_command(b"/usr/bin/pagelab\0run\0a\x1b[2Jb\0"), "pagelab run a?[2Jb");
        assert_eq!(printable_command(b""), "");
        assert!(printable_command(&[b'x'; 10_000]).len() <= COMMAND_MAX + '…'.len_utf8());
    }
}
