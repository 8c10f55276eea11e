//! Injector of calls into a profiled process: the supervisor of a started one, or the splitter.

use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;

use pagelab_model::Failure;
use pagelab_sys::clock;
use pagelab_tlb::engine::mapping_table::MappingTable;

use super::splitter::{Advice, CALLS_PER_STOP, DroppedRanges, Splitter};
use super::zero_pages::stop_check;
use crate::process_injection::ProcessIdentity;
use crate::supervisor::{HugePageChoice, ProgramExit, SupervisedProgram, SupervisorConfig, ThpMode};

pub enum CallInjector {
    /// The tracer of a program that was started. It knows the names of mappings, and its end is the
    /// program's.
    Supervisor(SupervisedProgram),
    /// A separate process, for programs that run already.
    Splitter(Splitter),
    /// Mappings stay whole.
    Disabled,
}

/// Starts a program under the supervisor.
pub fn start_supervised(
    command: &[std::ffi::OsString],
    page: u64,
    huge: u64,
) -> Result<SupervisedProgram, Failure> {
    let name = command.first().cloned().unwrap_or_default();
    SupervisedProgram::start(SupervisorConfig {
        program: crate::program::find_program(&name)?,
        arguments: command.to_vec(),
        choice: HugePageChoice::Nothing,
        overrides: false,
        hugetlb: false,
        allow_stale: false,
        thp: ThpMode::Off,
        // As `apply` sees it. A stop for each small mapping would slow down programs that map often.
        traces_all_mappings: false,
        page,
        huge,
    })
}

impl CallInjector {
    /// Has a process advise ranges of its memory; returns for how long a thread was stopped, in nanoseconds.
    pub fn advise_ranges(
        &mut self,
        process: ProcessIdentity,
        advice: Advice,
        ranges: &[Range<u64>],
    ) -> Result<u64, AdviceFailure> {
        let permanent = |reason: String| AdviceFailure { reason, is_transient: false, is_partial: false };
        let supervisor = match self {
            CallInjector::Supervisor(supervisor) => supervisor,
            CallInjector::Splitter(splitter) => {
                return splitter.advise_ranges(process, advice, ranges).map_err(permanent);
            }
            CallInjector::Disabled => return Err(permanent("injecting system calls is disabled".to_owned())),
        };
        let before = supervisor.stopped_ns();
        let mut is_partial = false;
        for chunk in ranges.chunks(CALLS_PER_STOP) {
            let calls: Vec<(i64, [u64; 6])> = chunk.iter().map(|range| advice.madvise_call(range)).collect();
            let results = supervisor.inject_calls(process.pid, &calls).map_err(|why| AdviceFailure {
                reason: why.to_string(),
                is_transient: why.is_temporary(),
                is_partial,
            })?;
            is_partial |= results.contains(&0);
        }
        Ok(supervisor.stopped_ns().saturating_sub(before))
    }

    /// Makes a process drop the entries in these runs that still map the zero page while all its threads are
    /// stopped and no other process may write. An error is a phrase.
    pub fn drop_zero_pages(
        &mut self,
        process: ProcessIdentity,
        runs: &[Range<u64>],
    ) -> Result<DroppedRanges, String> {
        let supervisor = match self {
            CallInjector::Supervisor(supervisor) => supervisor,
            CallInjector::Splitter(splitter) => return splitter.drop_zero_pages(process, runs),
            CallInjector::Disabled => return Err("injecting system calls is disabled".to_owned()),
        };
        let before = supervisor.stopped_ns();
        let (sender, receiver) = mpsc::channel();
        let runs = runs.to_vec();
        let prepare = move |others: &[u32]| {
            let parts = stop_check::find_droppable(process.pid, Some(others), &runs);
            let ranges = parts.clone().unwrap_or_default();
            let _ = sender.send(parts);
            ranges
        };
        let answer =
            supervisor.drop_while_stopped(process.pid, Box::new(prepare)).map_err(|why| why.to_string())?;
        let parts = receiver.recv().map_err(|_| "it was not scanned".to_owned())??;
        let dropped_parts = parts.into_iter().zip(answer.results).filter(|(_, result)| *result == 0);
        let stopped_ns = supervisor.stopped_ns().saturating_sub(before);
        Ok(DroppedRanges {
            parts: dropped_parts.map(|(part, _)| part).collect(),
            usage: answer.usage,
            stopped_ns,
        })
    }

    /// Whether injection works.
    pub fn can_inject(&self) -> bool {
        !matches!(self, CallInjector::Disabled)
    }

    /// The mappings of a process, by its system calls, and the number of its address space.
    pub fn mapping_table(&self, pid: u32) -> Option<(u32, MappingTable)> {
        match self {
            CallInjector::Supervisor(supervisor) => supervisor.read_mapping_table(pid),
            _ => None,
        }
    }

    /// Estimated CPU time that the injected calls took the program: that of the thread that injected them.
    pub fn calls_cpu_ns(&self) -> u64 {
        match self {
            CallInjector::Supervisor(supervisor) => supervisor.cpu_ns(),
            _ => self.cpu_ns(),
        }
    }

    /// CPU time of the splitter; the supervisor is a thread of this process.
    pub fn cpu_ns(&self) -> u64 {
        match self {
            CallInjector::Splitter(splitter) => clock::process_cpu_ns(splitter.pid()).unwrap_or(0),
            _ => 0,
        }
    }
}

/// Why a process did not advise.
#[derive(Debug)]
pub struct AdviceFailure {
    /// In a phrase.
    pub reason: String,
    /// It may do so later.
    pub is_transient: bool,
    /// A part of the ranges was advised.
    pub is_partial: bool,
}

pub enum StartedProgram {
    Child(Child),
    /// Under the supervisor.
    Supervised(u32),
}

impl StartedProgram {
    /// Its exit status, if it has ended.
    pub fn poll_exit(&mut self, injector: &CallInjector) -> std::io::Result<Option<ExitStatus>> {
        match (self, injector) {
            (StartedProgram::Child(child), _) => child.try_wait(),
            (StartedProgram::Supervised(_), CallInjector::Supervisor(supervisor)) => {
                Ok(supervisor.program_exit().map(to_exit_status))
            }
            (StartedProgram::Supervised(_), _) => Ok(None),
        }
    }
}

fn to_exit_status(exit: ProgramExit) -> ExitStatus {
    // The encoding of wait(2).
    ExitStatus::from_raw(match exit {
        ProgramExit::Code(code) => (code & 0xff) << 8,
        ProgramExit::Signal(signal) => signal,
    })
}

/// A splitter for a program that runs already, or is about to.
pub fn start_splitter(command: Command) -> Result<CallInjector, Failure> {
    Splitter::start(command).map(CallInjector::Splitter).map_err(|error| {
        Failure::not_available(format!(
            "cannot start the process that splits mappings: {error}; hint: use --no-split"
        ))
    })
}
