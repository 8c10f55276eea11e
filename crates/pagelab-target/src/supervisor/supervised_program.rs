//! Program supervised by a thread of this process, with all its mappings identified, for profilers.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use pagelab_model::Failure;
use pagelab_sys::signals::ThreadWaker;
use pagelab_sys::traced_child;
use pagelab_tlb::engine::mapping_table::MappingTable;

use super::injection::InjectedCall;
use super::requests::{self, PrepareDrop, RequestError, RequestKind, Response};
use super::tracer::Tracer;
use super::tracer_state::TracerState;
use super::{ProgramExit, SupervisorConfig, exec_image};
use crate::priority;

/// A program under supervision. When this process ends, the program is killed.
pub struct SupervisedProgram {
    state: Arc<Mutex<TracerState>>,
    waker: ThreadWaker,
    pid: u32,
}

impl SupervisedProgram {
    /// Starts the program and returns once it runs. Its stdio is that of this process.
    pub fn start(spec: SupervisorConfig) -> Result<SupervisedProgram, Failure> {
        let state = Arc::new(Mutex::new(TracerState::default()));
        let (start_sender, start_receiver) = mpsc::channel();
        let shared = state.clone();
        std::thread::spawn(move || {
            traced_child::block_signals();
            let waker = match ThreadWaker::for_this_thread() {
                Ok(waker) => waker,
                Err(error) => {
                    let error = Failure::not_available(format!("cannot install a signal handler: {error}"));
                    return drop(start_sender.send(Err(error)));
                }
            };
            let started = |pid| drop(start_sender.send(Ok((pid, waker))));
            let run = Tracer::start(Arc::new(spec), shared).and_then(|tracer| {
                // Each injected call waits for this thread four times; the program was started with the usual
                // priority.
                priority::raise_priority();
                tracer.run(started, |_, _| {})
            });
            if let Err(error) = run {
                let _ = start_sender.send(Err(error));
            }
        });
        let gone = |_| Failure::bad_input("cannot start the program: the supervisor ended");
        let (pid, waker) = start_receiver.recv().map_err(gone)??;
        Ok(SupervisedProgram { state, waker, pid })
    }

    /// The first process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The mappings of a running process, and the number of its address space: another one after an exec.
    pub fn read_mapping_table(&self, pid: u32) -> Option<(u32, MappingTable)> {
        let (space, mut table) = {
            let mut state = self.lock_state();
            let space = state.numbered_space_of(pid)?;
            (space, MappingTable::clone(&state.spaces.get(&space)?.mapping_table))
        };
        if let Some(heap) = read_heap_range(pid) {
            table.record_brk(heap.end);
        }
        Some((space, table))
    }

    /// Has a thread of the process make system calls: (number, arguments), one after the other. Returns what
    /// the calls returned.
    pub fn inject_calls(&self, pid: u32, calls: &[(i64, [u64; 6])]) -> Result<Vec<i64>, RequestError> {
        let call = |&(number, arguments): &(i64, [u64; 6])| InjectedCall { number, arguments };
        let kind = RequestKind::Calls(calls.iter().map(call).collect());
        requests::send_request(&self.state, self.waker, pid, kind).map(|answer| answer.results)
    }

    /// Drops ranges of memory (MADV_DONTNEED) that `prepare` finds once all threads of the process are
    /// stopped; none of them continues before the last is dropped.
    pub fn drop_while_stopped(&self, pid: u32, prepare: PrepareDrop) -> Result<Response, RequestError> {
        requests::send_request(&self.state, self.waker, pid, RequestKind::DropRanges(prepare))
    }

    /// Exit of the first process, if it has ended.
    pub fn program_exit(&self) -> Option<ProgramExit> {
        self.lock_state().accounting.summary.exit
    }

    /// Notes for the reader, in sentences.
    pub fn notes(&self) -> Vec<String> {
        self.lock_state().accounting.summary.notes.clone()
    }

    /// Whether a program disabled THP for itself (PR_SET_THP_DISABLE).
    pub fn has_thp_disable(&self) -> bool {
        self.lock_state().accounting.has_thp_disable
    }

    /// Processes that run.
    pub fn count_processes(&self) -> usize {
        self.lock_state().processes.len()
    }

    /// CPU time of the supervising thread so far.
    pub fn cpu_ns(&self) -> u64 {
        self.lock_state().accounting.summary.supervisor_cpu_ns
    }

    /// Time that stops took so far, summed over the threads.
    pub fn stopped_ns(&self) -> u64 {
        self.lock_state().accounting.summary.stopped_ns
    }

    fn lock_state(&self) -> MutexGuard<'_, TracerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Current heap of a process.
pub(crate) fn read_heap_range(pid: u32) -> Option<Range<u64>> {
    let text = std::fs::read(pagelab_host::paths::process_file(pid, "maps")).ok()?;
    let maps = pagelab_formats::maps::parse(&text).ok()?;
    // Advice for a part splits it; the kernel names each part.
    let end = maps.iter().filter(|map| map.name == "[heap]").map(|map| map.end).max()?;
    let start = exec_image::read_heap_start(pid).ok()??;
    (start < end).then_some(start..end)
}
