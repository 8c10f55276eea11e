//! The child's side of a trial: it waits, already in its control group and with its settings, until
//! everything that watches it is armed; then it becomes the workload.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_sys::affinity::Pinned;
use pagelab_sys::map::{Advice, Mapping};
use pagelab_sys::thp_disable::{self, ThpDisable};

use crate::own;
use crate::recipe::Thp;
use crate::resolve::PAGELAB;

/// What the child says on standard output when it waits.
pub const READY: &str = "pagelab gate: ready";
/// What it says of a setting that it could not make.
pub const NOTE: &str = "pagelab gate: not applied: ";
/// What it says on standard error when the program cannot be started.
pub const CANNOT_START: &str = "pagelab gate: cannot start ";
/// Its exit code then, as that of a shell.
pub const CODE_CANNOT_START: u8 = 127;

/// What has the kernel choose a process before all others: the score is its share of memory in thousandths
/// plus this (mm/oom_kill.c, `oom_badness`). Raising it needs no privilege, lowering a competitor's would.
const KILLED_FIRST: &str = "1000";

/// Makes the settings of the process, says so, waits for the word, and becomes the program. It returns only
/// where that fails, with the exit code.
pub fn pass(thp: Option<&str>, cpu: Option<u32>, is_killed_first: bool, command: &[OsString]) -> u8 {
    let mut notes = Vec::new();
    if is_killed_first && let Err(error) = std::fs::write(paths::SELF_OOM_SCORE_ADJ, KILLED_FIRST) {
        notes.push(format!("{}: {error}", paths::SELF_OOM_SCORE_ADJ));
    }
    if let Some(word) = thp
        && let Err(why) = switch_thp(word)
    {
        notes.push(why);
    }
    // Kept to the end of the process: exec and fork hand affinity down.
    let pinned = cpu.map(Pinned::on);
    if let Some(Err(error)) = &pinned {
        notes.push(format!("pin: {error}"));
    }
    if say(&notes).is_err() || !waited() {
        return CODE_CANNOT_START;
    }
    let error = become_program(command);
    let name = command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let _ = writeln!(io::stderr(), "{CANNOT_START}{name}: {error}");
    // The destructor would give the affinity back, which nobody needs any more.
    drop(pinned);
    CODE_CANNOT_START
}

/// A competitor for memory, as a process: it takes its memory, says that it has it, and writes it again and
/// again until it is killed.
pub fn hog(size: Bytes) -> u8 {
    let Ok(mut mapping) = hog_memory(size) else { return CODE_CANNOT_START };
    write_all(&mut mapping);
    if say(&[]).is_err() {
        return CODE_CANNOT_START;
    }
    loop {
        write_all(&mut mapping);
    }
}

/// The same as a thread of this process, which is going to be the workload: it begins when the memory is
/// there, and ends with the process.
pub fn hog_thread(size: Bytes) -> io::Result<()> {
    let mut mapping = hog_memory(size)?;
    write_all(&mut mapping);
    let write = move || {
        loop {
            write_all(&mut mapping);
        }
    };
    std::thread::Builder::new().name("hog".to_owned()).spawn(write).map(drop)
}

/// Base pages, so that a hog is no competitor for huge pages besides.
fn hog_memory(size: Bytes) -> io::Result<Mapping> {
    let mut mapping = Mapping::anonymous(size, Bytes(1))?;
    let all = 0..mapping.len().0;
    // A kernel without transparent huge pages gives base pages anyway.
    let _ = mapping.advise(all, Advice::NoHugePage);
    Ok(mapping)
}

/// Words in a cache line of 64 bytes; where lines are longer, some are written twice.
const LINE_WORDS: usize = 8;

fn write_all(mapping: &mut Mapping) {
    for word in mapping.words_mut().iter_mut().step_by(LINE_WORDS) {
        *word = word.wrapping_add(1);
    }
    std::hint::black_box(mapping);
}

fn switch_thp(word: &str) -> Result<(), String> {
    let (set, wanted) = match word {
        word if word == Thp::NeverPrctl.word() => (thp_disable::set(true), ThpDisable::All),
        word if word == Thp::AdvisedOnly.word() => {
            (thp_disable::set_except_advised(), ThpDisable::ExceptAdvised)
        }
        other => return Err(format!("thp: {other:?} is no mode of a process")),
    };
    let way_out = match wanted {
        ThpDisable::ExceptAdvised => "; it came with Linux 6.18, and thp = \"madvise\" is for all kernels",
        _ => "",
    };
    set.map_err(|error| format!("thp = {word:?}: PR_SET_THP_DISABLE: {error}{way_out}"))?;
    match thp_disable::get() {
        got if got == wanted => Ok(()),
        got => Err(format!("thp = {word:?}: prctl took it, and then said {got:?}")),
    }
}

fn say(notes: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for note in notes {
        writeln!(out, "{NOTE}{}", note.replace('\n', " "))?;
    }
    writeln!(out, "{READY}")?;
    out.flush()
}

/// Whether the word came; the end of the pipe means that nobody waits for us any more.
fn waited() -> bool {
    let mut word = [0];
    io::stdin().lock().read_exact(&mut word).is_ok()
}

fn become_program(command: &[OsString]) -> io::Error {
    let Some((program, words)) = command.split_first() else {
        return io::Error::other("there is no command");
    };
    let mut next = if program == PAGELAB { own::pagelab() } else { Command::new(program) };
    next.args(words).stdin(std::process::Stdio::null()).exec()
}
