//! Holding: until Ctrl-C, or while a command runs, with an eye on everybody else and on what is undone.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use pagelab_contig::fragment::watch::Danger;
use pagelab_host::paths::SELF_OOM_SCORE_ADJ;
use pagelab_metrics::frag::{share_text, unusable};
use pagelab_sys::spawn;
use rustix::process::{Pid, Signal, kill_process};

use super::act::Session;
use crate::exit::{Exit, Failure};
use crate::out;

/// Between two looks for a signal or the command's end.
const TURN: Duration = Duration::from_millis(50);
/// Between two looks at the memory.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a command may take to end after a signal before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the holding went.
pub struct Held {
    /// How long, in nanoseconds.
    pub held_ns: u64,
    /// The least and the most F_u seen meanwhile.
    pub drift: (f64, f64),
    /// Times that it was corrected.
    pub corrections: u32,
    /// Why it was given back before the end.
    pub danger: Option<Danger>,
    /// The command's exit code, or 128 plus the signal's number.
    pub command_code: Option<u8>,
    /// It ended by Ctrl-C, as was asked for.
    pub ended_as_asked: bool,
}

/// Holds.
pub fn hold(session: &mut Session<'_>, home: Option<&str>) -> Result<Held, Failure> {
    let began = Instant::now();
    let mut child = match session.args.command.split_first() {
        None => None,
        Some((program, words)) => Some(start(program, words, home, &session.score_before)?),
    };
    if child.is_none() {
        out::complain("holding; Ctrl-C gives it back");
    }
    let index = unusable(&session.watch.areas(), session.plan.goal.order);
    let mut held = Held {
        held_ns: 0,
        drift: (index, index),
        corrections: 0,
        danger: None,
        command_code: None,
        ended_as_asked: false,
    };
    let ended = wait(session, &mut child, &mut held);
    if let Some(child) = &mut child {
        let status = match ended? {
            Some(status) => status,
            None => end(child, session.stop.signal())?,
        };
        held.command_code = Some(code(status));
    } else {
        ended?;
        // SIGINT is how holding ends; SIGTERM and SIGHUP are somebody else's.
        held.ended_as_asked = session.stop.signal() == Some(Signal::INT.as_raw());
    }
    held.held_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(held)
}

/// Waits for the command's end, for a signal, or, while memory is only held, for danger.
fn wait(
    session: &mut Session<'_>,
    child: &mut Option<Child>,
    held: &mut Held,
) -> Result<Option<ExitStatus>, Failure> {
    let mut looked = Instant::now();
    let mut told = held.drift.0;
    loop {
        if let Some(child) = child.as_mut()
            && let Some(status) = child.try_wait()?
        {
            return Ok(Some(status));
        }
        if session.stop.signal().is_some() {
            return Ok(None);
        }
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            look(session, held, &mut told)?;
            if held.danger.is_some() && child.is_none() {
                return Ok(None);
            }
        }
        std::thread::sleep(TURN);
    }
}

fn look(session: &mut Session<'_>, held: &mut Held, told: &mut f64) -> Result<(), Failure> {
    if held.danger.is_some() || session.watch.look().is_err() {
        return Ok(());
    }
    if let Some(recording) = &mut session.recording {
        recording.sample(session.watch.fast());
    }
    if let Some(danger) = session.watch.danger() {
        session.spoiler.clear();
        out::complain(&format!("given back before the end: {danger}"));
        held.danger = Some(danger);
        return Ok(());
    }
    let goal = session.plan.goal;
    let index = unusable(&session.watch.areas(), goal.order);
    held.drift = (held.drift.0.min(index), held.drift.1.max(index));
    if (index - goal.target).abs() > goal.tolerance && session.args.keep_to_target {
        let reached = session.reach()?;
        held.corrections += 1;
        if let pagelab_contig::fragment::reach::Ending::BackedOff(danger) = reached.ending {
            out::complain(&format!("given back before the end: {danger}"));
            held.danger = Some(danger);
        }
    } else if (index - *told).abs() > goal.tolerance {
        *told = index;
        out::complain(&format!(
            "F_u({}) is {} now: compaction or others changed it{}",
            goal.order.0,
            share_text(index),
            if session.args.keep_to_target { "" } else { " (--keep-to-target corrects)" }
        ));
    }
    Ok(())
}

/// Starts the command as it would be without us: in our control group before, with our score before.
pub fn start(
    program: &OsStr,
    words: &[OsString],
    home: Option<&str>,
    score_before: &str,
) -> Result<Child, Failure> {
    let mut command = Command::new(program);
    command.args(words);
    if let Some(procs) = home
        .and_then(|home| std::fs::OpenOptions::new().write(true).open(format!("{home}/cgroup.procs")).ok())
    {
        spawn::join_cgroup(&mut command, procs.into());
    }
    if let Ok(path) = std::ffi::CString::new(SELF_OOM_SCORE_ADJ) {
        spawn::write_own_file(&mut command, path, score_before.as_bytes().to_vec());
    }
    command.spawn().map_err(|error| {
        let name = program.to_string_lossy();
        Failure::new(Exit::NotAvailable, format!("{name} cannot be started, and all is given back"))
            .because(error)
    })
}

/// Passes the signal on and waits; a command that does not end is killed.
pub fn end(child: &mut Child, signal: Option<i32>) -> Result<ExitStatus, Failure> {
    let pid = Pid::from_child(child);
    // Ctrl-C on a terminal goes to the command too; twice does no harm.
    let signal = signal.and_then(Signal::from_named_raw).unwrap_or(Signal::TERM);
    let _ = kill_process(pid, signal);
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(TURN);
    }
    child.kill()?;
    Ok(child.wait()?)
}

pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::Partial as u8)
}
