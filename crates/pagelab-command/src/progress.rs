//! Progress of a long command where standard error is no terminal: a line at least every ten seconds.
//!
//! A terminal shows a status line, which the next one replaces. A log has no such line, and a command may
//! compute, sleep or wait for a child for minutes. So one thread of the process prints the last status as a
//! line whenever nothing else was printed for the interval. It starts with the first status; a command only
//! says what it does.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagelab_report::quantity_format::format_duration;
use pagelab_sys::signals::BlockedSignals;

use crate::output;

/// Longest silence of a long command in a log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Signals that the thread leaves to the others: 1 to 31 without those that cannot be blocked, or that an
/// error of the thread itself raises.
const BLOCKED: [i32; 15] = [1, 2, 3, 10, 12, 13, 14, 15, 17, 18, 20, 23, 24, 25, 28];

static LOG: Mutex<ProgressLog> = Mutex::new(ProgressLog::new());
static CHANGED: Condvar = Condvar::new();

/// When the work of a status ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusEnd {
    /// It is unknown, or part of the text.
    Unknown,
    /// After about this time.
    After(Duration),
    /// After at most this time.
    AtMost(Duration),
}

/// Who sets a status. One of a later kind is more precise, and hides the others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StatusKind {
    /// A download or another preparation.
    Setup,
    /// A command, or a phase of it.
    Command,
    /// A step, as the status line of a terminal shows it.
    Step,
}

/// What is being done.
#[derive(Clone, Debug)]
struct Status {
    text: String,
    end: StatusEnd,
    /// Since when.
    since: Instant,
}

/// A status of a command, until it is dropped.
#[derive(Debug)]
pub struct CommandStatus {
    /// The status around it.
    outer: Option<Status>,
}

impl CommandStatus {
    /// From now on the lines of a log say this, unless a step says more. A terminal does not show it.
    pub fn start(text: impl Into<String>, end: StatusEnd) -> CommandStatus {
        let outer = lock_log().statuses[StatusKind::Command as usize].clone();
        set_status(StatusKind::Command, &text.into(), end);
        CommandStatus { outer }
    }

    /// Says something else from now on.
    pub fn update(&self, text: &str, end: StatusEnd) {
        set_status(StatusKind::Command, text, end);
    }
}

impl Drop for CommandStatus {
    fn drop(&mut self) {
        lock_log().statuses[StatusKind::Command as usize] = self.outer.take();
    }
}

/// Sets what the next line of a log says; an empty text removes it. On a terminal it does nothing.
pub(crate) fn set_status(kind: StatusKind, text: &str, end: StatusEnd) {
    if output::is_interactive() {
        return;
    }
    let mut log = lock_log();
    let is_first = log.start.is_none();
    log.set_status(Instant::now(), kind, text, end);
    let is_first = is_first && log.start.is_some();
    drop(log);
    if is_first {
        // Without the thread the command works all the same.
        let _ = std::thread::Builder::new().name("progress".to_owned()).spawn(print_lines);
    }
    CHANGED.notify_one();
}

/// Postpones the next line: something else was printed.
pub fn postpone_log_line() {
    lock_log().last_output = Some(Instant::now());
}

fn lock_log() -> MutexGuard<'static, ProgressLog> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the lines of the log, for as long as the process runs.
fn print_lines() {
    let _blocked = BlockedSignals::block(&BLOCKED);
    loop {
        let line = lock_log().take_due_line(Instant::now());
        if let Some(line) = line {
            // Not under the lock: a pipe without a reader blocks.
            output::warn(&line);
        }
        let log = lock_log();
        let waited = match log.wait_time(Instant::now()) {
            Some(wait) => CHANGED.wait_timeout(log, wait).map(drop).map_err(drop),
            None => CHANGED.wait(log).map(drop).map_err(drop),
        };
        if waited.is_err() {
            return;
        }
    }
}

/// What a log has to say, and when.
#[derive(Debug)]
struct ProgressLog {
    /// The current status of each kind.
    statuses: [Option<Status>; 3],
    /// Start of the first status.
    start: Option<Instant>,
    /// The last time that anything was printed.
    last_output: Option<Instant>,
}

impl ProgressLog {
    const fn new() -> ProgressLog {
        ProgressLog { statuses: [const { None }; 3], start: None, last_output: None }
    }

    fn set_status(&mut self, now: Instant, kind: StatusKind, text: &str, end: StatusEnd) {
        let status = (!text.is_empty()).then(|| Status { text: text.to_owned(), end, since: now });
        if status.is_some() {
            // The silence of a command begins with its first status.
            self.start.get_or_insert(now);
        }
        self.statuses[kind as usize] = status;
    }

    fn shown_status(&self) -> Option<&Status> {
        self.statuses.iter().rev().flatten().next()
    }

    /// Time until a line is due; `None` without a status.
    fn wait_time(&self, now: Instant) -> Option<Duration> {
        let start = self.start.filter(|_| self.shown_status().is_some())?;
        let last = self.last_output.map_or(start, |last| last.max(start));
        Some(LOG_INTERVAL.saturating_sub(now.saturating_duration_since(last)))
    }

    /// Returns the line that is due now, if one is.
    fn take_due_line(&mut self, now: Instant) -> Option<String> {
        if !self.wait_time(now)?.is_zero() {
            return None;
        }
        self.last_output = Some(now);
        let (Status { text, end, since }, start) = (self.shown_status()?, self.start?);
        let (word, time) = match *end {
            StatusEnd::Unknown => ("", Duration::ZERO),
            StatusEnd::After(time) => ("about", time),
            StatusEnd::AtMost(time) => ("at most", time),
        };
        let rest = time.saturating_sub(now.saturating_duration_since(*since));
        // Nothing is known of work that takes longer than expected.
        let left = match rest.as_secs() {
            0 => String::new(),
            _ => format!(", {word} {} left", format_seconds(rest)),
        };
        let elapsed = format_seconds(now.saturating_duration_since(start));
        Some(format!("note: after {elapsed}: {text}{left}"))
    }
}

/// A duration in whole seconds.
fn format_seconds(time: Duration) -> String {
    format_duration(time.as_secs().saturating_mul(1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_line_comes_after_ten_seconds_of_silence() {
        let (mut log, start) = (ProgressLog::new(), Instant::now());
        let at = |seconds: u32| start + SECOND * seconds;
        assert_eq!((log.wait_time(at(0)), log.take_due_line(at(100))), (None, None), "no status");
        log.set_status(at(0), StatusKind::Command, "profiling", StatusEnd::AtMost(SECOND * 90));
        assert_eq!((log.wait_time(at(0)), log.take_due_line(at(9))), (Some(SECOND * 10), None));
        assert_eq!(
            log.take_due_line(at(10)).unwrap(),
            "note: after 10 s: profiling, at most 1 min 20 s left"
        );
        assert_eq!(log.take_due_line(at(19)), None);
        // A new status does not begin a new silence, and its time counts from its own start.
        log.set_status(at(19), StatusKind::Step, "trial 1 of 3", StatusEnd::After(SECOND * 40));
        log.set_status(at(19), StatusKind::Setup, "downloading", StatusEnd::Unknown);
        assert_eq!(log.take_due_line(at(20)).unwrap(), "note: after 20 s: trial 1 of 3, about 39 s left");
        // Another message postpones the next line.
        log.last_output = Some(at(28));
        assert_eq!((log.take_due_line(at(30)), log.wait_time(at(30))), (None, Some(SECOND * 8)));
        log.set_status(at(31), StatusKind::Step, "", StatusEnd::Unknown);
        assert_eq!(log.take_due_line(at(38)).unwrap(), "note: after 38 s: profiling, at most 52 s left");
        log.set_status(at(39), StatusKind::Command, "", StatusEnd::Unknown);
        assert_eq!(log.take_due_line(at(48)).unwrap(), "note: after 48 s: downloading");
        log.set_status(at(50), StatusKind::Setup, "", StatusEnd::Unknown);
        assert_eq!((log.wait_time(at(60)), log.take_due_line(at(60))), (None, None), "the work is over");
        log.set_status(at(70), StatusKind::Step, "reporting", StatusEnd::After(SECOND));
        assert_eq!(log.take_due_line(at(95)).unwrap(), "note: after 1 min 35 s: reporting");
    }
}
