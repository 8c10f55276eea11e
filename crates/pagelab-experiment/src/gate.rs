//! The child's side of a trial: it waits, in its control group and with its settings, until all probes are
//! armed; then it executes the workload.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use pagelab_contig::oom::OOM_SCORE_ADJ_MAX;
use pagelab_host::orphan_keeper::OrphanKeeper;
use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_model::failure::describe_io_error;
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::scheduling::PinnedThread;
use pagelab_sys::thp_disable::{self, ThpDisable};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::recipe::ThpMode;

/// Line on standard output while the child waits.
pub const READY: &str = "pagelab gate: ready";
/// Prefix for a setting that it could not apply.
pub const NOT_APPLIED: &str = "pagelab gate: not applied: ";
/// Prefix on standard error if the program cannot be started.
pub const CANNOT_START: &str = "error: cannot start ";
/// Its exit code then, as in a shell.
pub const EXIT_CANNOT_START: u8 = 127;
/// Line of `pagelab apply` on standard error if its supervisor was killed.
pub const SUPERVISOR_KILLED: &str = "warning: the supervisor was killed, and the program with it";

/// Applies the settings of the process, reports it, waits for the start byte, and executes the program. It
/// returns only if that fails, with the exit code.
pub fn run_gate(thp: Option<&str>, cpu: Option<u32>, prefer_oom_kill: bool, command: &[OsString]) -> u8 {
    let mut notes = Vec::new();
    if prefer_oom_kill && let Err(error) = std::fs::write(paths::SELF_OOM_SCORE_ADJ, OOM_SCORE_ADJ_MAX) {
        notes.push(format!("{}: {error}", paths::SELF_OOM_SCORE_ADJ));
    }
    notes.extend(thp.and_then(|word| set_thp_prctl(word).err()));
    // Kept to the end of the process: exec and fork inherit affinity.
    let pinned = cpu.map(PinnedThread::to_cpu);
    if let Some(Err(error)) = &pinned {
        notes.push(format!("pin: {error}"));
    }
    if report_ready(&notes).is_err() || !wait_for_go() {
        return EXIT_CANNOT_START;
    }
    let error = exec_program(command);
    let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let _ = writeln!(io::stderr(), "{CANNOT_START}{name}: {}", describe_io_error(&error));
    // The destructor would restore the affinity, which is no longer needed.
    drop(pinned);
    EXIT_CANNOT_START
}

/// Competitor for memory as a process: it allocates its memory, reports it, and writes it repeatedly until it
/// is killed.
pub fn run_hog(size: Bytes) -> u8 {
    let Ok(mut mapping) = map_hog_memory(size) else { return EXIT_CANNOT_START };
    write_all_lines(&mut mapping);
    if report_ready(&[]).is_err() {
        return EXIT_CANNOT_START;
    }
    loop {
        write_all_lines(&mut mapping);
    }
}

/// The same as a thread of this process, which becomes the workload: it begins when the memory is allocated,
/// and ends with the process.
pub fn start_hog_thread(size: Bytes) -> io::Result<()> {
    let mut mapping = map_hog_memory(size)?;
    write_all_lines(&mut mapping);
    let write = move || {
        loop {
            write_all_lines(&mut mapping);
        }
    };
    std::thread::Builder::new().name("hog".to_owned()).spawn(write).map(drop)
}

/// Base pages, so that a hog does not also compete for huge pages.
fn map_hog_memory(size: Bytes) -> io::Result<Mapping> {
    let mut mapping = Mapping::anonymous(size, Bytes(1))?;
    let all = 0..mapping.len().0;
    // A kernel without transparent huge pages allocates base pages anyway.
    let _ = mapping.advise(all, Advice::NoHugePage);
    Ok(mapping)
}

/// Words in a cache line of 64 bytes; where lines are longer, some are written twice.
const LINE_WORDS: usize = 8;

fn write_all_lines(mapping: &mut Mapping) {
    for word in mapping.words_mut().iter_mut().step_by(LINE_WORDS) {
        *word = word.wrapping_add(1);
    }
    std::hint::black_box(mapping);
}

fn set_thp_prctl(word: &str) -> Result<(), String> {
    let (prctl_result, expected) = match word {
        word if word == ThpMode::NeverPrctl.name() => (thp_disable::set_thp_disable(true), ThpDisable::All),
        word if word == ThpMode::AdvisedOnly.name() => {
            (thp_disable::set_thp_except_advised(), ThpDisable::ExceptAdvised)
        }
        other => return Err(format!("thp: {other:?} is not a per-process mode")),
    };
    let hint = match expected {
        ThpDisable::ExceptAdvised => "; hint: use Linux 6.18 or later, or thp = \"madvise\"",
        _ => "",
    };
    prctl_result.map_err(|error| format!("thp = {word:?}: PR_SET_THP_DISABLE: {error}{hint}"))?;
    match thp_disable::read_thp_disable() {
        got if got == expected => Ok(()),
        got => Err(format!("thp = {word:?}: prctl accepted it, but reads back {got:?}")),
    }
}

fn report_ready(notes: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for note in notes {
        writeln!(out, "{NOT_APPLIED}{}", note.replace('\n', " "))?;
    }
    writeln!(out, "{READY}")?;
    out.flush()
}

/// Whether the start byte arrived; the end of the pipe means that pagelab no longer waits.
fn wait_for_go() -> bool {
    let mut word = [0];
    io::stdin().lock().read_exact(&mut word).is_ok()
}

fn exec_program(command: &[OsString]) -> io::Error {
    let Some((program, words)) = command.split_first() else {
        return io::Error::other("no command given");
    };
    let mut next = if program == PAGELAB { self_command() } else { Command::new(program) };
    next.args(words).stdin(std::process::Stdio::null()).exec()
}

/// First word of a command that denotes pagelab itself.
pub const PAGELAB: &str = "pagelab";

/// This program, also if its file was replaced in the meantime.
pub(crate) fn self_command() -> Command {
    let mut command = Command::new(paths::SELF_EXE);
    command.arg0(PAGELAB);
    command
}

/// `pagelab gate` in a separate process group, so that Ctrl-C on a terminal does not reach it.
pub(crate) fn gate_command() -> Command {
    let mut command = self_command();
    command.process_group(0).arg("gate");
    command
}

/// Starts the keeper that kills this process's orphans after a `kill -9` of this process.
pub fn start_orphan_keeper() -> io::Result<OrphanKeeper> {
    let mut command = self_command();
    command.args(["gate", "--keep-orphans"]);
    OrphanKeeper::start(command)
}

/// Makes reads non-blocking.
pub(crate) fn set_nonblocking(stream: impl AsFd) -> Result<(), Errno> {
    let flags = fcntl_getfl(&stream)?;
    fcntl_setfl(&stream, flags | OFlags::NONBLOCK)
}
