//! The tracer: it handles every new thread and process, exec and exit, and the system calls that the filter
//! traces.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use pagelab_model::Failure;
use pagelab_sys::ptrace::{Registers, Stop, TraceOptions, event};
use pagelab_sys::traced_child::StartReport;
use pagelab_sys::{clock, ptrace, seccomp, traced_child};
use pagelab_tlb::engine::mapping_table::MappingId;

use super::injection::{InjectedCall, InjectionFailure, InjectionPoint, InjectionResult};
use super::requests::Request;
use super::tracer_state::{AddressSpace, Process, TracerState};
use super::{
    HugePageChoice, ProgramExit, Summary, SupervisorConfig, collapse, exec_image, injection, requests,
};

/// A traced thread.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    pub process: u32,
    /// The call whose exit is traced, with its registers at the entry.
    pub call: Option<Registers>,
    /// Its mapping was merged into one VMA for the mremap that it is about to repeat.
    pub is_vma_merged: bool,
    /// The call whose exit is traced grows the last part of the range that the program's call would grow.
    pub grows_by_parts: bool,
    /// The mapping and offset at the begin of the memory that it moves, at the entry of its call.
    pub moved_mapping: Option<(MappingId, u64)>,
}

impl Thread {
    fn new(process: u32) -> Thread {
        Thread { process, call: None, is_vma_merged: false, grows_by_parts: false, moved_mapping: None }
    }
}

/// The tracer of one program.
pub(super) struct Tracer {
    pub spec: Arc<SupervisorConfig>,
    pub mark: u64,
    state: Arc<Mutex<TracerState>>,
    pub threads: HashMap<u32, Thread>,
    /// New threads that stopped before the event of their parent.
    early_threads: HashSet<u32>,
    /// Requests that are served at the next trap of a thread of their process.
    pub requests: Vec<Request>,
    /// Stops that were reported while waiting for another one.
    pub pending_stops: VecDeque<(u32, Stop)>,
    root_pid: u32,
    started_child: Option<traced_child::StartedChild>,
    has_started: bool,
    start_ns: u64,
}

impl Tracer {
    /// Starts the program; it waits for [`Tracer::run`]. Both must be called from one thread.
    pub fn start(spec: Arc<SupervisorConfig>, state: Arc<Mutex<TracerState>>) -> Result<Tracer, Failure> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Failure::not_available(
                "cannot trace the program: the supervisor supports x86-64 only; hint: use --no-tracer",
            ));
        }
        let unavailable_error = |what: &str, error: io::Error| {
            Failure::not_available(format!(
                "cannot {what}: {error}; hint: use --no-tracer, which needs no ptrace"
            ))
        };
        let mark = super::generate_mark();
        let held_child = traced_child::fork_held(&super::build_child_program(&spec, mark)?)
            .map_err(|error| Failure::bad_input(format!("cannot start the program: fork failed: {error}")))?;
        let root_pid = held_child.pid;
        ptrace::seize(root_pid, TraceOptions::SUPERVISE)
            .map_err(|error| unavailable_error("trace the program", error))?;
        let started_child =
            held_child.release().map_err(|error| unavailable_error("resume the program", error))?;
        let mut tracer = Tracer {
            spec,
            mark,
            state,
            threads: HashMap::new(),
            early_threads: HashSet::new(),
            requests: Vec::new(),
            pending_stops: VecDeque::new(),
            root_pid,
            started_child: Some(started_child),
            has_started: false,
            start_ns: clock::monotonic_ns(),
        };
        tracer.threads.insert(root_pid, Thread::new(root_pid));
        Ok(tracer)
    }

    /// Supervises until the last process has ended.
    pub fn run(
        self,
        started: impl FnOnce(u32),
        ended: impl FnOnce(ProgramExit, Summary),
    ) -> Result<(), Failure> {
        let state = self.state.clone();
        let done = self.run_event_loop(started, ended);
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_ended = true;
        state.requests.clear();
        done
    }

    fn run_event_loop(
        mut self,
        started: impl FnOnce(u32),
        ended: impl FnOnce(ProgramExit, Summary),
    ) -> Result<(), Failure> {
        let (mut started, mut ended) = (Some(started), Some(ended));
        loop {
            let state = self.state.clone();
            let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
            let (tid, stop) = match self.pending_stops.pop_front() {
                Some(next) => next,
                None => match ptrace::wait(None, false) {
                    Ok(Some(next)) => next,
                    Ok(None) => {
                        self.receive_requests(&mut lock());
                        continue;
                    }
                    Err(_) => return Ok(()),
                },
            };
            let since = clock::monotonic_ns();
            let mut state = lock();
            // A sequence of stops never interrupts a wait.
            self.receive_requests(&mut state);
            self.handle_stop(&mut state, tid, stop);
            state.accounting.summary.stopped_ns += clock::monotonic_ns() - since;
            state.accounting.summary.stops += 1;
            state.accounting.summary.supervisor_cpu_ns = clock::thread_cpu_ns();
            if tid == self.root_pid && stop == Stop::Event(event::EXEC) && !self.has_started {
                self.has_started = true;
                self.check_start_report(&mut state)?;
                started.take().into_iter().for_each(|call| call(tid));
            }
            if tid == self.root_pid
                && let Some(end) = program_exit(stop)
            {
                if !self.has_started {
                    self.check_start_report(&mut state)?;
                }
                if let Some(call) = ended.take() {
                    let summary = self.build_summary(&mut state, end);
                    drop(state);
                    call(end, summary);
                }
            }
        }
    }

    fn check_start_report(&mut self, state: &mut TracerState) -> Result<(), Failure> {
        let Some(started_child) = self.started_child.take() else { return Ok(()) };
        let StartReport { is_without_new_privileges, thp_refused, filter_error, exec_error } =
            started_child.read_report();
        let program = self.spec.program.display();
        if let Some(number) = filter_error {
            let error = io::Error::from_raw_os_error(number);
            return Err(Failure::not_available(format!(
                "cannot install a seccomp filter: {error}; hint: use --no-tracer"
            )));
        }
        if let Some(number) = exec_error {
            let error = io::Error::from_raw_os_error(number);
            return Err(Failure::bad_input(format!("cannot start {program}: {error}")));
        }
        if is_without_new_privileges {
            state.accounting.add_note(
                "without CAP_SYS_ADMIN the seccomp filter needs no_new_privs: set-user-ID programs started \
                 by the program gain no privileges",
            );
        }
        if thp_refused {
            state.accounting.add_note(
                "this kernel cannot restrict huge pages to advised memory (Linux 6.18 can): if \
                 transparent_hugepage/enabled is `always`, the whole program may get them",
            );
        }
        Ok(())
    }

    fn build_summary(&mut self, state: &mut TracerState, end: ProgramExit) -> Summary {
        // Running processes are counted in their current state, in the returned copy.
        state.spaces.values().for_each(|space| state.accounting.count_all_targets(space));
        state.accounting.summary.exit = Some(end);
        let mut summary = state.accounting.finish_summary(&self.spec);
        let cpu = clock::process_cpu_ns(std::process::id());
        summary.supervisor_cpu_ns = cpu.unwrap_or_else(|_| clock::thread_cpu_ns());
        summary.wall_ns = clock::monotonic_ns() - self.start_ns;
        summary
    }

    fn handle_stop(&mut self, state: &mut TracerState, tid: u32, stop: Stop) {
        if !self.threads.contains_key(&tid) && program_exit(stop).is_none() {
            // The event of its parent follows, or the parent has died meanwhile.
            self.early_threads.insert(tid);
            return;
        }
        match stop {
            Stop::Exited(_) | Stop::Killed(_) => self.handle_thread_end(state, tid),
            Stop::Signal(signal) => self.resume_thread(tid, signal),
            Stop::Group(signal) => self.handle_trap(state, tid, signal),
            Stop::Syscall => self.handle_syscall_exit(state, tid),
            Stop::Event(event::SECCOMP) => self.handle_syscall_entry(state, tid),
            Stop::Event(event::FORK | event::VFORK | event::CLONE) => {
                if let Ok(child) = ptrace::event_message(tid) {
                    self.handle_new_task(state, tid, child as u32);
                }
                self.resume_thread(tid, 0);
            }
            Stop::Event(event::EXEC) => {
                // Of a process that was killed meanwhile it is unknown: the thread has its number now.
                let former = ptrace::event_message(tid).map_or(tid, |former| former as u32);
                self.handle_exec(state, tid, former);
                self.resume_thread(tid, 0);
            }
            Stop::Event(event::EXIT) => {
                self.handle_exit_event(state, tid);
                let _ = ptrace::resume(tid, 0);
            }
            Stop::Event(_) => self.resume_thread(tid, 0),
        }
    }

    /// A thread is at a trap, or stopped with its group: requests are served here.
    fn handle_trap(&mut self, state: &mut TracerState, tid: u32, signal: i32) {
        let mut is_stopped = matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
        if !is_stopped {
            requests::restart_interrupted_call(tid, &mut state.accounting);
        }
        // In a restartable sequence nothing is injected: the kernel would not abort the sequence. It does so
        // on the return to the program, and the request is repeated.
        let is_in_sequence = |r: Registers| (r.orig_rax as i64) < 0 && ptrace::is_in_rseq(tid, r.rip);
        let is_free = || !ptrace::read_registers(tid).is_ok_and(is_in_sequence);
        let has_request = self.has_pending_request(tid);
        if has_request && is_free() {
            match self.serve_requests(state, tid, is_stopped) {
                Some(now) => is_stopped = now,
                None => return,
            }
        }
        if is_stopped {
            let _ = ptrace::listen(tid);
        } else {
            self.continue_thread(tid, 0);
        }
    }

    /// Resumes a thread, to a trap if its process has pending requests.
    pub fn resume_thread(&mut self, tid: u32, signal: i32) {
        if self.has_pending_request(tid) {
            let _ = ptrace::interrupt(tid);
        }
        self.continue_thread(tid, signal);
    }

    /// Resumes a thread, to the exit of its call if that is traced. The end of one that was killed meanwhile
    /// will be reported.
    fn continue_thread(&mut self, tid: u32, signal: i32) {
        let is_exit_traced = self.threads.get(&tid).is_some_and(|thread| thread.call.is_some());
        let _ = match is_exit_traced {
            true => ptrace::resume_to_syscall(tid, signal),
            false => ptrace::resume(tid, signal),
        };
    }

    pub fn resume_to_syscall_exit(&mut self, tid: u32, registers: Registers) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.call = Some(registers);
        }
        self.resume_thread(tid, 0);
    }

    /// After injected calls: a thread whose group was stopped meanwhile stops with it, if it still is.
    pub fn restore_group_stop(&self, tid: u32, made: &InjectionResult) {
        if made.was_group_stopped {
            let _ = ptrace::interrupt(tid);
        }
    }

    /// Resumes a thread after injected calls.
    pub fn resume_after_injection(&mut self, tid: u32, made: &InjectionResult) {
        self.restore_group_stop(tid, made);
        self.resume_thread(tid, 0);
    }

    /// Makes a stopped thread execute calls. `None`: the thread is gone.
    pub fn inject_calls(
        &mut self,
        tid: u32,
        at: InjectionPoint,
        calls: &[InjectedCall],
    ) -> Option<InjectionResult> {
        let made = self.handle_injection_result(injection::inject_calls(tid, at, calls))?;
        debug_assert_eq!(made.results.len(), calls.len(), "results of the calls that were made");
        Some(made)
    }

    /// The results of injected calls. `None`: the thread is gone.
    pub fn handle_injection_result(
        &mut self,
        made: Result<InjectionResult, InjectionFailure>,
    ) -> Option<InjectionResult> {
        match made {
            Ok(made) => Some(made),
            Err(InjectionFailure::ThreadGone(tid, stop)) => {
                self.pending_stops.push_back((tid, stop));
                None
            }
            Err(InjectionFailure::Refused) => None,
        }
    }

    /// A thread or process was created by `parent`, which is at the event.
    fn handle_new_task(&mut self, state: &mut TracerState, parent: u32, child: u32) {
        if self.threads.contains_key(&child) {
            return;
        }
        let Some(&Thread { process, .. }) = self.threads.get(&parent) else { return };
        let registers = ptrace::read_registers(parent).ok();
        let flags = registers.and_then(|registers| read_clone_flags(process, &registers));
        let (shares_memory, is_thread) = match flags {
            Some(flags) => (flags & libc::CLONE_VM as u64 != 0, flags & libc::CLONE_THREAD as u64 != 0),
            // The parent was killed meanwhile, or its memory cannot be read.
            None => {
                let group = exec_image::read_tgid_and_ppid(child).map(|(group, _)| group);
                (group == Some(process), group == Some(process))
            }
        };
        self.add_tracee(state, process, child, shares_memory, is_thread);
    }

    fn add_tracee(
        &mut self,
        state: &mut TracerState,
        parent: u32,
        child: u32,
        shares_memory: bool,
        is_thread: bool,
    ) {
        let process = if is_thread { parent } else { child };
        self.threads.insert(child, Thread::new(process));
        if !is_thread && let Some(known) = state.processes.get(&parent).copied() {
            let space = match (shares_memory, state.spaces.get_mut(&known.space)) {
                (true, Some(space)) => {
                    space.users += 1;
                    known.space
                }
                (false, Some(space)) => {
                    let forked = space.fork();
                    state.add_space(forked)
                }
                (_, None) => {
                    debug_assert!(false, "process {parent} has no address space");
                    state.accounting.add_note(format!(
                        "lost track of process {parent}: nothing is advised for its child {child}"
                    ));
                    state.add_space(AddressSpace::default())
                }
            };
            state.processes.insert(child, Process { space, ..known });
        }
        if self.early_threads.remove(&child) {
            // It is at its first stop; a group stop will be reported again.
            let _ = ptrace::interrupt(child);
            self.resume_thread(child, 0);
        }
    }

    /// New threads whose parents died before their event.
    fn add_early_tracees(&mut self, state: &mut TracerState) {
        for tid in self.early_threads.clone() {
            let (group, parent) = exec_image::read_tgid_and_ppid(tid).unwrap_or((tid, 0));
            let is_thread = group != tid;
            let parent = if is_thread { group } else { parent };
            if !is_thread && !state.processes.contains_key(&parent) {
                let space = exec_image::read_address_space(tid, &mut state.accounting);
                let space = state.add_space(space);
                state.processes.insert(tid, Process { space, has_own_filter: false });
            }
            self.add_tracee(state, parent, tid, false, is_thread);
        }
    }

    /// A process executed another program; the call was made by the thread `former`.
    fn handle_exec(&mut self, state: &mut TracerState, pid: u32, former: u32) {
        if former != pid {
            self.threads.remove(&former);
        }
        // They were for the old address space.
        self.discard_requests(pid);
        self.threads.insert(pid, Thread::new(pid));
        let before = state.processes.remove(&pid);
        if let Some(before) = &before {
            state.leave_space(before.space);
        }
        let mut space = exec_image::read_address_space(pid, &mut state.accounting);
        let program = exec_image::read_program(pid, matches!(self.spec.choice, HugePageChoice::Plan(_)));
        if exec_image::is_32_bit(pid) {
            state.accounting.add_note(format!("{}: a 32-bit program is not supervised", program.path));
        }
        if let HugePageChoice::Plan(plan) = &self.spec.choice {
            space.plan_index = match exec_image::match_plan(plan, &program) {
                exec_image::PlanMatch::Same(at) => Some(at),
                exec_image::PlanMatch::Stale(at) if self.spec.allow_stale => Some(at),
                exec_image::PlanMatch::Stale(_) => {
                    state.accounting.add_note(format!(
                        "{}: the plan is for another build of it, so nothing was advised; hint: profile this \
                         build, or use --stale",
                        program.path
                    ));
                    None
                }
                exec_image::PlanMatch::Unplanned => None,
            };
            state.accounting.seen_programs.extend(space.plan_index);
        }
        let has_own_filter = before.is_some_and(|process| process.has_own_filter);
        self.spec.add_initial_targets(&mut space, &mut state.accounting);
        space.program_break = if has_own_filter { None } else { self.spec.create_break(pid, &space) };
        let space = state.add_space(space);
        state.processes.insert(pid, Process { space, has_own_filter });
    }

    /// A thread is about to end; the coverage of its process is read for the last time.
    fn handle_exit_event(&mut self, state: &mut TracerState, tid: u32) {
        let Some(&Thread { process, .. }) = self.threads.get(&tid) else { return };
        let is_alone = self.threads.values().filter(|thread| thread.process == process).count() == 1;
        let ends_all =
            || ptrace::read_registers(tid).is_ok_and(|r| r.orig_rax as i64 == libc::SYS_exit_group);
        let by_signal = || ptrace::event_message(tid).is_ok_and(|status| status & 0x7f != 0);
        if is_alone || ends_all() || by_signal() {
            self.update_coverage(state, process, &(0..u64::MAX));
        }
    }

    /// Updates the coverage of the targets in a range of a process.
    pub fn update_coverage(&self, state: &mut TracerState, pid: u32, range: &std::ops::Range<u64>) {
        let Some(number) = state.numbered_space_of(pid) else { return };
        let Some(space) = state.spaces.get_mut(&number) else { return };
        self.measure_huge_beyond_break(space, pid, range);
        match collapse::update_coverage(pid, &mut space.targets, range, self.spec.huge) {
            Ok(huge) => state.accounting.record_huge_bytes(number, huge),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => state.accounting.add_note(
                "this kernel does not report huge pages (PAGEMAP_SCAN, 6.7): the result is not verified",
            ),
            Err(error) if exec_image::is_no_process(&error) => {}
            Err(error) => {
                let why = format!("cannot find the huge-page mappings of a process: {error}");
                state.accounting.add_note(format!("{why}; they are not counted"));
            }
        }
    }

    fn handle_thread_end(&mut self, state: &mut TracerState, tid: u32) {
        let Some(thread) = self.threads.remove(&tid) else { return };
        self.early_threads.remove(&tid);
        let is_last = !self.threads.values().any(|other| other.process == thread.process);
        if is_last && let Some(process) = state.processes.remove(&thread.process) {
            self.discard_requests(thread.process);
            state.accounting.huge_bytes_by_space.remove(&process.space);
            state.leave_space(process.space);
        }
        if !self.early_threads.is_empty() {
            self.add_early_tracees(state);
        }
    }
}

fn program_exit(stop: Stop) -> Option<ProgramExit> {
    match stop {
        Stop::Exited(code) => Some(ProgramExit::Code(code)),
        Stop::Killed(signal) => Some(ProgramExit::Signal(signal)),
        _ => None,
    }
}

/// The flags with which a thread made another: those of clone, or those equivalent to fork and vfork.
/// `None`: the structure of clone3 cannot be read.
fn read_clone_flags(pid: u32, registers: &Registers) -> Option<u64> {
    match registers.orig_rax as i64 {
        libc::SYS_clone => Some(registers.rdi),
        libc::SYS_clone3 => read_clone3_flags(pid, registers),
        libc::SYS_vfork => Some(libc::CLONE_VM as u64),
        _ => Some(0),
    }
}

/// The flags of clone3: the first word of its structure.
pub(super) fn read_clone3_flags(pid: u32, registers: &Registers) -> Option<u64> {
    let mut flags = [0u8; 8];
    let had = ptrace::read_memory(pid, registers.rdi, &mut flags).ok()?;
    (had == flags.len()).then(|| u64::from_ne_bytes(flags))
}

/// Whether a call is a prctl that disables THP.
pub(super) fn is_thp_disable_call(registers: &Registers) -> bool {
    registers.rdi == seccomp::PR_SET_THP_DISABLE && registers.rsi != 0
}
