//! `pagelab apply --no-tracer`: the program is started as any shell would, and given huge pages from outside
//! while it runs. A kill of pagelab changes nothing for it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use pagelab_sys::{clock, spawn};
use pagelab_target::outside::Outside;
use pagelab_target::supervise::{Choice, Ended, Spec};

use super::{Args, front, json, supervise};
use crate::exit::{Exit, Failure};
use crate::out;

/// The time between two looks at least; one is followed by a pause of two hundred times its length.
const EVERY: Duration = Duration::from_millis(50);
const PAUSE: u32 = 200;
/// How often it is asked whether the program has ended.
const STEP: Duration = Duration::from_millis(5);

/// Runs the program, and returns its exit code.
pub fn run(args: &Args, spec: Spec) -> Result<u8, Failure> {
    let cannot = |error: io::Error| {
        Failure::new(Exit::BadInput, format!("cannot start {}", spec.program.display())).because(error)
    };
    let signals = front::signals()?;
    let began = Instant::now();
    let mut command = Command::new(&spec.program);
    std::os::unix::process::CommandExt::arg0(&mut command, &args.command[0]);
    command.args(&args.command[1..]);
    spawn::only_advised_huge_pages(&mut command);
    let mut child = command.spawn().map_err(cannot)?;
    front::leave_stdio(false).map_err(cannot)?;
    front::pass_on(signals, std::sync::Arc::new(child.id().into()));
    let is_wanted = spec.choice != Choice::Nothing;
    // Right after the start its program may not be there yet; it is the file's own then.
    let mut outside = None;
    let mut next = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            break status;
        }
        if is_wanted && Instant::now() >= next {
            let look = Instant::now();
            if outside.is_none() {
                outside = Outside::of(child.id(), spec.choice.clone(), spec.stale, spec.huge).ok();
            }
            // One that has just ended cannot be read, and that is no error.
            let _ = outside.as_mut().map(|outside| outside.pass(|_| true));
            next = Instant::now() + EVERY.max(look.elapsed() * PAUSE).min(Duration::from_secs(5));
        }
        std::thread::sleep(STEP);
    };
    let mut summary = outside.map(|outside| outside.summary()).unwrap_or_default();
    summary.wall_ns = began.elapsed().as_nanos() as u64;
    summary.supervisor_cpu_ns = clock::process_cpu_ns(std::process::id()).unwrap_or(0);
    let ended = status.code().map(Ended::Code).or(status.signal().map(Ended::Signal));
    summary.ended = ended;
    let document = json::summary(&summary);
    if let Some(note) = supervise::write_summary(args.how.summary.as_deref(), &document) {
        out::complain(&format!("pagelab: {note}"));
    }
    front::say(&document);
    Ok(ended.map_or(Exit::Bug as u8, Ended::code))
}
