//! Outcome of a guest: its job is finished, whatever its commands returned, or the guest was lost.

use std::fmt;
use std::time::Duration;

use pagelab_model::kernel_panic::PANIC_START;

use crate::file_receiver::ReceivedFile;
use crate::message::{AgentHello, StepExit};

/// How a guest ended.
#[derive(Debug)]
pub enum GuestOutcome {
    /// Every step was executed, and the agent reported it.
    Completed(CompletedJob),
    /// The guest ended, or was ended, before that. The guest was lost; the command's result is unknown.
    Lost(LostGuest),
}

/// A job that was carried out.
#[derive(Debug)]
pub struct CompletedJob {
    /// The steps, in the order of the job.
    pub steps: Vec<StepEnd>,
    /// Copied files, in order of arrival.
    pub files: Vec<ReceivedFile>,
    /// Missing requested files, in complete sentences.
    pub missing_files: Vec<String>,
    /// The rest.
    pub report: GuestReport,
}

/// A guest that was lost.
#[derive(Debug)]
pub struct LostGuest {
    /// Why.
    pub reason: LossReason,
    /// Steps that had ended before.
    pub steps: Vec<StepEnd>,
    /// The rest.
    pub report: GuestReport,
}

/// A step that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepEnd {
    /// How.
    pub end: StepExit,
    /// Standard output; the first [`OUTPUT_BYTES_MAX`] bytes.
    pub stdout: Vec<u8>,
    /// The same of standard error.
    pub stderr: Vec<u8>,
    /// Whether more was written than is kept; it was passed on all the same.
    pub is_truncated: bool,
}

/// Bytes of each stream of a step that are kept.
pub const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Properties of a guest besides its job.
#[derive(Debug, Default)]
pub struct GuestReport {
    /// The agent's first message.
    pub hello: Option<AgentHello>,
    /// Cost up to that point.
    pub first_message: Option<FirstMessageCost>,
    /// What the agent could not do, in whole sentences.
    pub notes: Vec<String>,
    /// The end of the kernel's console.
    pub console: Vec<u8>,
    /// Output of QEMU itself.
    pub qemu_stderr: String,
    /// Wall time from the start of QEMU to its end.
    pub wall_time: Duration,
    /// CPU time of QEMU in user and system mode, at the last reading before its exit.
    pub host_cpu: Duration,
}

/// Cost until the agent's hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstMessageCost {
    /// Wall time since QEMU was started.
    pub wall_time: Duration,
    /// CPU time of QEMU in user and system mode.
    pub host_cpu: Duration,
}

/// Why a guest was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// Its kernel panicked: the line of the console.
    Panic(String),
    /// Its kernel had no memory left and nothing to kill: the line of the console.
    OutOfMemory(String),
    /// It switched itself off without a result.
    PoweredOff,
    /// QEMU did not start a guest: exit code and output.
    QemuRefused(Option<i32>, String),
    /// QEMU failed later: exit code and output.
    QemuFailed(i32, String),
    /// A signal of this number ended QEMU.
    QemuKilled(i32),
    /// Its first line did not come in time; the last line of the console.
    NoFirstMessage(Duration, Option<String>),
    /// The job took longer than it may.
    TimedOut(Duration),
    /// Invalid data on the line.
    ProtocolError(String),
    /// The agent gave up, in its words.
    AgentError(String),
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Panic(line) => write!(f, "its kernel panicked: {}", panic_cause(line)),
            LossReason::OutOfMemory(line) => {
                let cause = panic_cause(line);
                write!(f, "its kernel panicked: out of memory ({cause}); hint: use a larger --memory")
            }
            LossReason::PoweredOff => f.write_str("it powered off without a result"),
            LossReason::QemuRefused(code, said) => {
                let code = code.map_or_else(String::new, |code| format!(" (exit code {code})"));
                let said = if said.is_empty() { "no reason given" } else { said };
                write!(f, "QEMU could not start it{code}: {said}")
            }
            LossReason::QemuFailed(code, said) => write!(f, "QEMU exited with code {code}: {said}"),
            LossReason::QemuKilled(signal) => {
                write!(f, "QEMU was killed by signal {signal}{}", signal_name(*signal))
            }
            LossReason::NoFirstMessage(after, last) => {
                let last = last.as_ref().map_or_else(
                    || "no kernel messages".to_owned(),
                    |line| format!("last kernel message: {line}"),
                );
                write!(f, "its agent did not answer within {} s; {last}", after.as_secs())
            }
            LossReason::TimedOut(after) => {
                write!(f, "it did not finish within {} s; hint: use a longer --timeout", after.as_secs())
            }
            LossReason::ProtocolError(what) => write!(f, "corrupt data on its serial line: {what}"),
            LossReason::AgentError(sentence) => write!(f, "its agent failed: {sentence}"),
        }
    }
}

impl LossReason {
    /// A word for it, for programs.
    pub fn slug(&self) -> &'static str {
        match self {
            LossReason::Panic(_) => "panic",
            LossReason::OutOfMemory(_) => "out_of_memory",
            LossReason::PoweredOff => "powered_off",
            LossReason::QemuRefused(..) => "refused",
            LossReason::QemuFailed(..) => "qemu_failed",
            LossReason::QemuKilled(_) => "qemu_killed",
            LossReason::NoFirstMessage(..) => "no_first_line",
            LossReason::TimedOut(_) => "too_long",
            LossReason::ProtocolError(_) => "damaged",
            LossReason::AgentError(_) => "agent",
        }
    }
}

/// What a line says behind the words that each panic begins with.
fn panic_cause(line: &str) -> &str {
    line.strip_prefix(PANIC_START).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(line)
}

/// ` (SIGKILL)`, for the signals that end programs.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        31 => "SIGSYS",
        _ => return String::new(),
    };
    format!(" ({name})")
}

impl GuestOutcome {
    /// Properties besides the job.
    pub fn report(&self) -> &GuestReport {
        match self {
            GuestOutcome::Completed(finished) => &finished.report,
            GuestOutcome::Lost(lost) => &lost.report,
        }
    }
}
