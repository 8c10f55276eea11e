//! A program under our supervisor: its mappings told by its own calls, and huge pages where a plan says,
//! advised before the first touch. What it computes is never changed.
//!
//! A filter (`sys::seccomp`) hands a few calls to the tracer, which runs in a process or thread of its own;
//! all others run at full speed. The tracer's end is the end of the program (PTRACE_O_EXITKILL): calls that
//! the filter hands over would else fail.

mod calls;
mod collapse;
mod congruent;
mod coverage;
mod enter;
mod folios;
mod heap;
mod inject;
mod parts;
mod place;
mod requests;
mod space;
mod tally;
mod tracer;
mod watch;

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pagelab_model::huge_plan::HugePlan;
use pagelab_model::profile::{Begun, Program};
use pagelab_sys::nudge::Nudge;
pub use pagelab_sys::traced_child::Thp;
use pagelab_sys::{seccomp, traced_child};

use crate::error::{Error, ErrorKind};
pub(crate) use collapse::candidates;
pub(crate) use enter::program;
pub use enter::{Match, find};
pub(crate) use place::{Placed, inside, regions};
pub use requests::{Answer, Prepare, Unanswered};
pub(crate) use space::model_key;
pub use tally::describe;
pub use tally::{Refused, Summary};
pub use watch::Watch;
pub(crate) use watch::heap;

/// Which memory is to be on huge pages.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// None but what the program asks for itself.
    Nothing,
    /// All anonymous memory in mappings that can hold a huge page.
    All,
    /// What a plan says.
    Plan(HugePlan),
}

/// What is supervised, and how.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The program's file; see [`crate::program::find`].
    pub program: PathBuf,
    /// Its arguments, its own name first.
    pub arguments: Vec<OsString>,
    /// What is to be on huge pages.
    pub choice: Choice,
    /// Advice is repeated after the program's own, and its prctl is undone.
    pub overrides: bool,
    /// Regions are made of pages of the hugetlb pool before the first touch, instead of advised.
    pub hugetlb: bool,
    /// A plan for another build of the program is carried out too.
    pub stale: bool,
    /// What is done with huge pages before the program runs.
    pub thp: Thp,
    /// Calls for mappings of any size are seen, so that all mappings are named; it costs stops.
    pub sees_all: bool,
    /// The base page size, in bytes.
    pub page: u64,
    /// The size of a huge page, in bytes.
    pub huge: u64,
}

/// A program from its start or exec to its exec or end.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Process id.
    pub pid: u32,
    /// The image that it began as, by its place in the list.
    pub parent: Option<usize>,
    /// How it began.
    pub begun: Begun,
    /// The program.
    pub program: Program,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Whether it still runs.
    pub is_running: bool,
}

/// How the first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Ended {
    /// The exit code that says so: 128 plus the number of a signal.
    pub fn code(self) -> u8 {
        match self {
            Ended::Code(code) => code as u8,
            Ended::Signal(signal) => (128 + signal) as u8,
        }
    }
}

/// Starts the program and supervises it and all that it starts, until the last of them has ended. `ended` is
/// called once, when the first process has; `started` as soon as the program runs. Blocks every signal in
/// the calling thread.
pub fn run(
    spec: &Arc<Spec>,
    started: impl FnOnce(u32),
    ended: impl FnOnce(Ended, Summary),
) -> Result<(), Error> {
    let world = Arc::new(Mutex::new(space::World::default()));
    traced_child::block_signals();
    let nudge = Nudge::of_this_thread();
    let tracer = tracer::Tracer::start(spec.clone(), world.clone())?;
    // Its end is that of the process: a collapse that hangs in the kernel holds nothing up.
    if let Ok(nudge) = nudge
        && spec.choice != Choice::Nothing
    {
        let spec = spec.clone();
        std::thread::spawn(move || collapse::run(&spec, &world, nudge));
    }
    tracer.run(started, ended)
}

/// The mark of the calls that are ours: odd, and another one in each run.
fn mark() -> u64 {
    let mixed = pagelab_sys::clock::monotonic_ns() ^ (u64::from(std::process::id()) << 40);
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn child_program(spec: &Spec, mark: u64) -> Result<traced_child::Program, Error> {
    let zero = |_| Error::new(ErrorKind::CannotStart, "a word of the command has a zero byte in it");
    let c = |bytes: Vec<u8>| CString::new(bytes).map_err(zero);
    let path = c(spec.program.as_os_str().as_bytes().to_vec())?;
    let arguments =
        spec.arguments.iter().map(|word| c(word.as_bytes().to_vec())).collect::<Result<_, _>>()?;
    let variable = |(name, value): (OsString, OsString)| {
        let mut text = name.into_vec();
        text.push(b'=');
        text.extend(value.as_bytes());
        c(text)
    };
    let environment = std::env::vars_os().map(variable).collect::<Result<_, _>>()?;
    let at_least = if spec.sees_all { 0 } else { u32::try_from(spec.huge).unwrap_or(0) };
    let filter = Some(seccomp::Filter::new(seccomp::Wish { at_least, mark, brk: spec.wants_heaps() }));
    Ok(traced_child::Program { path, arguments, environment, thp: spec.thp, filter, unblock: true })
}
