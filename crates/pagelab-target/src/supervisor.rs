//! A program under the supervisor: its mappings are known from its own calls, and huge pages of a plan are
//! advised before the first touch. Its results never change.
//!
//! A filter (`sys::seccomp`) hands a few calls to the tracer, which runs in a separate process or thread; all
//! others run at full speed. The tracer's end is the end of the program (PTRACE_O_EXITKILL): calls that the
//! filter hands over would else fail.

mod accounting;
mod collapse;
mod exec_image;
mod heap;
mod injection;
mod region_placement;
mod requests;
mod split_mremap;
mod supervised_program;
mod syscall_handlers;
mod tracer;
mod tracer_state;

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pagelab_model::huge_plan::HugePlan;
use pagelab_sys::signals::ThreadWaker;
pub use pagelab_sys::traced_child::ThpMode;
use pagelab_sys::{seccomp, traced_child};
use serde::{Deserialize, Serialize};

pub use accounting::{FailedRegion, Summary, describe_mapping};
pub(crate) use collapse::find_collapse_candidates;
pub(crate) use exec_image::read_program;
pub use exec_image::{PlanMatch, match_plan};
pub(crate) use injection::errno_of;
use pagelab_model::Failure;
pub(crate) use region_placement::{PlacedRegion, merge_ranges, place_regions, shrink_to_pages};
pub use requests::{PrepareDrop, RequestError, Response};
pub use supervised_program::SupervisedProgram;
pub(crate) use supervised_program::read_heap_range;
pub(crate) use tracer_state::to_mapping_identity;

/// Which memory is to be on huge pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HugePageChoice {
    /// None but what the program requests itself.
    Nothing,
    /// All anonymous memory in mappings that can hold a huge page.
    All,
    /// The regions of a plan.
    Plan(HugePlan),
}

/// The program to be supervised, and how.
#[derive(Clone, Debug)]
pub struct SupervisorConfig {
    /// The program's file; see [`crate::program::find_program`].
    pub program: PathBuf,
    /// Its arguments, its own name first.
    pub arguments: Vec<OsString>,
    /// Memory to be on huge pages.
    pub choice: HugePageChoice,
    /// Advice is repeated after the program's own, and its prctl is undone.
    pub overrides: bool,
    /// Regions are mapped from the hugetlb pool before the first touch, instead of advised.
    pub hugetlb: bool,
    /// A plan for another build of the program is applied too.
    pub allow_stale: bool,
    /// The THP setting of the process before the program runs.
    pub thp: ThpMode,
    /// Calls for mappings of any size are traced, so that all mappings are named; it costs stops.
    pub traces_all_mappings: bool,
    /// The base page size, in bytes.
    pub page: u64,
    /// The size of a huge page, in bytes.
    pub huge: u64,
}

/// Exit of the first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramExit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl ProgramExit {
    /// The exit code of a shell: 128 plus the number of a signal.
    pub fn exit_code(self) -> u8 {
        match self {
            ProgramExit::Code(code) => code as u8,
            ProgramExit::Signal(signal) => (128 + signal) as u8,
        }
    }
}

/// Starts the program and supervises it and all that it starts, until the last of them has ended. `ended` is
/// called once, when the first process has; `started` as soon as the program runs. Blocks every signal in
/// the calling thread.
pub fn run_supervised(
    spec: &Arc<SupervisorConfig>,
    started: impl FnOnce(u32),
    ended: impl FnOnce(ProgramExit, Summary),
) -> Result<(), Failure> {
    let state = Arc::new(Mutex::new(tracer_state::TracerState::default()));
    traced_child::block_signals();
    let waker = ThreadWaker::for_this_thread();
    let tracer = tracer::Tracer::start(spec.clone(), state.clone())?;
    // Its end is that of the process: a collapse that hangs in the kernel holds nothing up.
    if let Ok(waker) = waker
        && spec.choice != HugePageChoice::Nothing
    {
        let spec = spec.clone();
        std::thread::spawn(move || collapse::run_collapse_loop(&spec, &state, waker));
    }
    tracer.run(started, ended)
}

/// Mark of injected calls: odd, and different in each run.
fn generate_mark() -> u64 {
    let mixed = pagelab_sys::clock::monotonic_ns() ^ (u64::from(std::process::id()) << 40);
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn build_child_program(spec: &SupervisorConfig, mark: u64) -> Result<traced_child::ChildProgram, Failure> {
    let zero_byte_error =
        |_| Failure::bad_input("cannot start the program: one of its arguments contains a zero byte");
    let to_c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(zero_byte_error);
    let path = to_c_string(spec.program.as_os_str().as_bytes().to_vec())?;
    let arguments =
        spec.arguments.iter().map(|word| to_c_string(word.as_bytes().to_vec())).collect::<Result<_, _>>()?;
    let to_environment_entry = |(name, value): (OsString, OsString)| {
        let mut text = name.into_vec();
        text.push(b'=');
        text.extend(value.as_bytes());
        to_c_string(text)
    };
    let environment = std::env::vars_os().map(to_environment_entry).collect::<Result<_, _>>()?;
    let length_min = if spec.traces_all_mappings { 0 } else { u32::try_from(spec.huge).unwrap_or(0) };
    let filter = Some(seccomp::SyscallFilter::new(seccomp::FilterOptions {
        length_min,
        exempt_mark: mark,
        with_brk: spec.needs_brk_stops(),
    }));
    Ok(traced_child::ChildProgram { path, arguments, environment, thp: spec.thp, filter })
}
