//! How a guest ended: its job is finished, whatever its commands returned, or the guest was lost.

use std::fmt;
use std::time::Duration;

use crate::message::{End, Hello};
use crate::taken::Taken;

/// How a guest ended.
#[derive(Debug)]
pub enum Outcome {
    /// Every step was carried out, and the agent said so.
    Finished(Finished),
    /// The guest ended, or was ended, before that. Nothing is said about the command.
    Lost(Lost),
}

/// A job that was carried out.
#[derive(Debug)]
pub struct Finished {
    /// The steps, in the order of the job.
    pub steps: Vec<StepEnd>,
    /// What was taken, in the order in which it came.
    pub files: Vec<Taken>,
    /// What was to be taken and could not be, in whole sentences.
    pub not_taken: Vec<String>,
    /// The rest.
    pub about: About,
}

/// A guest that was lost.
#[derive(Debug)]
pub struct Lost {
    /// Why.
    pub why: Why,
    /// Steps that had ended before.
    pub steps: Vec<StepEnd>,
    /// The rest.
    pub about: About,
}

/// A step that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepEnd {
    /// How.
    pub end: End,
    /// What it wrote to standard output; the first [`OUTPUT_KEPT`] bytes.
    pub stdout: Vec<u8>,
    /// The same of standard error.
    pub stderr: Vec<u8>,
    /// Whether more was written than is kept; it was passed on all the same.
    pub is_cut: bool,
}

/// Bytes of each stream of a step that are kept.
pub const OUTPUT_KEPT: usize = 16 << 20;

/// What is known about a guest besides its job.
#[derive(Debug, Default)]
pub struct About {
    /// The agent's first message.
    pub hello: Option<Hello>,
    /// What it cost until then.
    pub first_line: Option<FirstLine>,
    /// What the agent could not do, in whole sentences.
    pub notes: Vec<String>,
    /// The end of the kernel's console.
    pub console: Vec<u8>,
    /// What QEMU itself said.
    pub qemu_said: String,
    /// Wall time from the start of QEMU to its end.
    pub wall: Duration,
    /// CPU time of QEMU in user and system mode, last looked at before its end.
    pub host_cpu: Duration,
}

/// What it cost until the agent said hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstLine {
    /// Wall time since QEMU was started.
    pub wall: Duration,
    /// CPU time of QEMU in user and system mode.
    pub host_cpu: Duration,
}

/// Why a guest was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its kernel panicked: the line of the console.
    Panic(String),
    /// Its kernel had no memory left and nothing to kill: the line of the console.
    OutOfMemory(String),
    /// It switched itself off without a result.
    PoweredOff,
    /// QEMU did not start a guest: its code and what it said.
    Refused(Option<i32>, String),
    /// QEMU gave up later: its code and what it said.
    QemuFailed(i32, String),
    /// A signal of this number ended QEMU.
    QemuKilled(i32),
    /// Its first line did not come in time; the last line of the console.
    NoFirstLine(Duration, Option<String>),
    /// The job took longer than it may.
    TooLong(Duration),
    /// What came over the line is not what an agent says.
    Damaged(String),
    /// The agent gave up, in its words.
    Agent(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Panic(line) => write!(f, "its kernel panicked: {line}"),
            Why::OutOfMemory(line) => {
                write!(f, "its kernel ran out of memory: {line}; --memory gives it more")
            }
            Why::PoweredOff => f.write_str("it went off without a result"),
            Why::Refused(code, said) => {
                let code = code.map_or_else(String::new, |code| format!(" (exit code {code})"));
                let said = if said.is_empty() { "it gave no reason" } else { said };
                write!(f, "QEMU did not start it{code}: {said}")
            }
            Why::QemuFailed(code, said) => write!(f, "QEMU gave up with exit code {code}: {said}"),
            Why::QemuKilled(signal) => {
                write!(f, "QEMU was killed by signal {signal}{}", signal_name(*signal))
            }
            Why::NoFirstLine(after, last) => {
                let last = last.as_ref().map_or_else(
                    || "its kernel said nothing".to_owned(),
                    |line| format!("the last that its kernel said: {line}"),
                );
                write!(f, "no first line from it in {} s; {last}", after.as_secs())
            }
            Why::TooLong(after) => {
                write!(f, "it was not done in {} s; --timeout gives it longer", after.as_secs())
            }
            Why::Damaged(what) => write!(f, "its line was damaged, {what}"),
            Why::Agent(sentence) => write!(f, "its agent gave up: {sentence}"),
        }
    }
}

impl Why {
    /// A word for it, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Why::Panic(_) => "panic",
            Why::OutOfMemory(_) => "out_of_memory",
            Why::PoweredOff => "powered_off",
            Why::Refused(..) => "refused",
            Why::QemuFailed(..) => "qemu_failed",
            Why::QemuKilled(_) => "qemu_killed",
            Why::NoFirstLine(..) => "no_first_line",
            Why::TooLong(_) => "too_long",
            Why::Damaged(_) => "damaged",
            Why::Agent(_) => "agent",
        }
    }
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

impl Outcome {
    /// What is known besides the job.
    pub fn about(&self) -> &About {
        match self {
            Outcome::Finished(finished) => &finished.about,
            Outcome::Lost(lost) => &lost.about,
        }
    }
}
