//! Requests of other pagelab threads for calls of a process: the tracer injects the calls at a trap of one of
//! its threads.
//!
//! PTRACE_INTERRUPT promises one stop and not a trap: the first stop of the thread clears it
//! (kernel/signal.c, `ptrace_stop` clears JOBCTL_TRAP_STOP), whether that is the entry or the end of a traced
//! call, a signal or a new child. So a thread of a process with pending requests is interrupted again at each
//! of its stops, and the requester repeats the request, each time to another thread: the first one may wait
//! for a child (vfork), or have ended before the others.
//!
//! Requests may need all threads of the process stopped ([`RequestKind::DropRanges`]). The others are
//! interrupted from the one that reached a trap, and each waits at its next stop, which is handled afterwards
//! as if it had just been reported.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pagelab_host::root::Root;
use pagelab_sys::ptrace::{self, Registers};
use pagelab_sys::signals::ThreadWaker;

use super::accounting::Accounting;
use super::injection::{self, InjectedCall, InjectionPoint, InjectionResult};
use super::tracer::{Thread, Tracer};
use super::tracer_state::TracerState;
use crate::dontneed::{self, CpuUsage};
use crate::process_injection::live_thread_state;

/// Delay before a request is repeated; it doubles each time up to the maximum.
const RESEND_DELAY: Duration = Duration::from_millis(2);
const RESEND_DELAY_MAX: Duration = Duration::from_millis(32);
/// Longest time until the calls begin. Calls that have begun are awaited.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time until the other threads of a process stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(50);
/// Delay before the threads are polled again; it doubles each time up to the maximum.
const STOP_POLL_INTERVAL: Duration = Duration::from_micros(10);
const STOP_POLL_INTERVAL_MAX: Duration = Duration::from_micros(500);

/// Threads of a process that are sorted by state, at most.
const SORTED_THREADS_MAX: usize = 32;

/// The code segment of 64-bit programs (`__USER_CS` of arch/x86/include/asm/segment.h).
const USER_CS: u64 = 0x33;

/// Progress of a request.
const PENDING: u8 = 0;
const STARTED: u8 = 1;
const CANCELLED: u8 = 2;

/// Why calls were not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The process has ended, or become another program.
    Gone,
    /// Its own seccomp filter might forbid the calls, or kill for them.
    HasSeccompFilter,
    /// It runs code of 32 bits, or has no instruction that makes a call where the kernel puts one.
    UnsupportedCode,
    /// No thread of it reached a trap in time: it is in an uninterruptible sleep, or frozen.
    TimedOut,
    /// All threads had to stop, and one of them did not in time.
    ThreadNotStopped,
}

impl RequestError {
    /// Whether a later request may be answered.
    pub fn is_temporary(self) -> bool {
        matches!(self, RequestError::TimedOut | RequestError::ThreadNotStopped)
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RequestError::Gone => "it has exited, or executed another program",
            RequestError::HasSeccompFilter => "it has a seccomp filter, which could deny calls or kill it",
            RequestError::UnsupportedCode => "it does not run 64-bit code with a vdso",
            RequestError::TimedOut => "it does not stop: it is in an uninterruptible sleep",
            RequestError::ThreadNotStopped => {
                "one of its threads does not stop: it is in an uninterruptible sleep"
            }
        })
    }
}

/// Returns the ranges of memory to be dropped, while all threads of a process are stopped; its argument are
/// the other supervised processes.
pub type PrepareDrop = Box<dyn FnOnce(&[u32]) -> Vec<Range<u64>> + Send>;

/// The calls that a process has to make.
pub(super) enum RequestKind {
    /// These calls, while its other threads run.
    Calls(Vec<InjectedCall>),
    /// Drops ranges that are found once all of its threads are stopped, before any of them is resumed.
    DropRanges(PrepareDrop),
}

/// The response to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// Results of the calls, or of the drop of each range, in their order; negative: an error number.
    pub results: Vec<i64>,
    /// Resource usage of the process at the last call.
    pub usage: CpuUsage,
}

/// A request for calls of a process.
pub(super) struct Request {
    pid: u32,
    kind: RequestKind,
    reply: mpsc::Sender<Result<Response, RequestError>>,
    /// [`PENDING`], [`STARTED`] or [`CANCELLED`]; the first change wins.
    progress: Arc<AtomicU8>,
    /// Number of repetitions, and the last one that was received.
    send_count: Arc<AtomicU32>,
    receive_count: u32,
}

impl Request {
    /// Starts the request, so that it cannot be cancelled; `false` if it was cancelled.
    fn try_start(&self) -> bool {
        self.progress.compare_exchange(PENDING, STARTED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Requests calls of a process from the tracer, and waits for the results.
pub(super) fn send_request(
    state: &Mutex<TracerState>,
    waker: ThreadWaker,
    pid: u32,
    kind: RequestKind,
) -> Result<Response, RequestError> {
    let (reply, responses) = mpsc::channel();
    let lock = || -> MutexGuard<'_, TracerState> { state.lock().unwrap_or_else(PoisonError::into_inner) };
    let (progress, send_count) = (Arc::new(AtomicU8::new(PENDING)), Arc::new(AtomicU32::new(0)));
    let request = Request {
        pid,
        kind,
        reply,
        progress: progress.clone(),
        send_count: send_count.clone(),
        receive_count: 0,
    };
    lock().requests.push_back(request);
    let (began, mut resend_delay) = (Instant::now(), RESEND_DELAY);
    loop {
        if lock().has_ended {
            return Err(RequestError::Gone);
        }
        send_count.fetch_add(1, Ordering::Relaxed);
        waker.wake();
        match responses.recv_timeout(resend_delay) {
            Ok(answer) => return answer,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(RequestError::Gone),
            Err(mpsc::RecvTimeoutError::Timeout) => resend_delay = (resend_delay * 2).min(RESEND_DELAY_MAX),
        }
        let cancel = || progress.compare_exchange(PENDING, CANCELLED, Ordering::SeqCst, Ordering::SeqCst);
        if began.elapsed() >= START_TIMEOUT && cancel().is_ok() {
            return Err(RequestError::TimedOut);
        }
    }
}

impl Tracer {
    /// Receives new requests, and interrupts a thread for each repetition.
    pub fn receive_requests(&mut self, state: &mut TracerState) {
        self.requests.extend(state.requests.drain(..));
        self.requests.retain(|request| request.progress.load(Ordering::SeqCst) != CANCELLED);
        for at in (0..self.requests.len()).rev() {
            let request = &mut self.requests[at];
            let send_count = request.send_count.load(Ordering::Relaxed);
            if send_count == request.receive_count {
                continue;
            }
            request.receive_count = send_count;
            let pid = request.pid;
            let threads = self.sort_threads_by_readiness(pid);
            if threads.is_empty() {
                // A dropped reply reports that the process is gone.
                self.requests.swap_remove(at);
            } else {
                let _ = ptrace::interrupt(threads[send_count as usize % threads.len()]);
            }
        }
    }

    /// The threads of a process, running ones first: a stop interrupts none of their calls.
    fn sort_threads_by_readiness(&self, pid: u32) -> Vec<u32> {
        let mut threads: Vec<u32> =
            self.threads.iter().filter(|(_, thread)| thread.process == pid).map(|(&tid, _)| tid).collect();
        threads.sort_unstable();
        if threads.len() > 1 && threads.len() <= SORTED_THREADS_MAX {
            threads.sort_by_cached_key(|&tid| match live_thread_state(&Root::live(), pid, tid) {
                Some(b'R') => 0,
                Some(b'S' | b'T' | b't') => 1,
                _ => 2,
            });
        }
        threads
    }

    /// Whether requests of a thread's process are pending.
    pub fn has_pending_request(&self, tid: u32) -> bool {
        let process = || self.threads.get(&tid).map(|thread| thread.process);
        !self.requests.is_empty()
            && process().is_some_and(|pid| self.requests.iter().any(|request| request.pid == pid))
    }

    /// A process has ended or executed another program: its requests are discarded.
    pub fn discard_requests(&mut self, pid: u32) {
        self.requests.retain(|request| request.pid != pid);
    }

    /// Serves the requests of a thread's process; the thread is at a trap. Returns whether its group is
    /// stopped now; `None`: the thread is gone.
    pub fn serve_requests(
        &mut self,
        state: &mut TracerState,
        tid: u32,
        mut is_stopped: bool,
    ) -> Option<bool> {
        let pid = self.threads.get(&tid)?.process;
        // A thread that is killed meanwhile, as by the exec of another one, has no registers.
        let is_64_bit = ptrace::read_registers(tid).ok()?.cs == USER_CS;
        let requests: Vec<Request> = self.requests.extract_if(.., |request| request.pid == pid).collect();
        for request in requests {
            if !request.try_start() {
                continue;
            }
            let answer = match find_injection_point(state, pid, is_64_bit) {
                Err(why) => Err(why),
                // A dropped reply reports that the process is gone.
                Ok(at) => self.execute_request(state, tid, is_stopped, at, request.kind)?.map(|made| {
                    is_stopped = made.was_group_stopped;
                    Response { results: made.results, usage: CpuUsage::read(&Root::live(), pid) }
                }),
            };
            let _ = request.reply.send(answer);
        }
        Some(is_stopped)
    }

    /// Executes a request by a thread at a trap; `is_stopped`: its group is stopped. `None`: the thread is
    /// gone.
    fn execute_request(
        &mut self,
        state: &TracerState,
        tid: u32,
        is_stopped: bool,
        at: InjectionPoint,
        kind: RequestKind,
    ) -> Option<Result<InjectionResult, RequestError>> {
        let prepare = match kind {
            RequestKind::Calls(calls) => return self.inject_calls(tid, at, &calls).map(Ok),
            RequestKind::DropRanges(prepare) => prepare,
        };
        let pid = self.threads.get(&tid)?.process;
        if !self.stop_other_threads(pid, tid) {
            return Some(Err(RequestError::ThreadNotStopped));
        }
        let others: Vec<u32> = state.processes.keys().copied().filter(|&other| other != pid).collect();
        let ranges = prepare(&others);
        if ranges.is_empty() {
            return Some(Ok(InjectionResult { results: Vec::new(), was_group_stopped: is_stopped }));
        }
        let made = injection::inject_with(tid, at, |caller| {
            let call = |number, arguments| caller(&InjectedCall { number, arguments });
            dontneed::drop_ranges(pid, &ranges, call)
        });
        self.handle_injection_result(made).map(Ok)
    }

    /// Stops all threads of a process but this one, which is stopped: each at its next stop, which is handled
    /// later.
    fn stop_other_threads(&mut self, pid: u32, caller: u32) -> bool {
        let is_other =
            |(&tid, thread): (&u32, &Thread)| (thread.process == pid && tid != caller).then_some(tid);
        let mut running: Vec<u32> = self.threads.iter().filter_map(is_other).collect();
        running.retain(|tid| !self.pending_stops.iter().any(|(known, _)| known == tid));
        for &tid in &running {
            let _ = ptrace::interrupt(tid);
        }
        let until = Instant::now() + STOP_TIMEOUT;
        let mut pause = STOP_POLL_INTERVAL;
        while !running.is_empty() {
            let before = running.len();
            running.retain(|&tid| match ptrace::wait(Some(tid), true) {
                Ok(Some(stopped)) => {
                    self.pending_stops.push_back(stopped);
                    false
                }
                Ok(None) => true,
                // It is gone, and its end was reported.
                Err(_) => false,
            });
            if running.len() == before {
                if Instant::now() >= until {
                    return false;
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(STOP_POLL_INTERVAL_MAX);
            }
        }
        true
    }
}

/// The point at which a thread of a process can make calls.
fn find_injection_point(
    state: &mut TracerState,
    pid: u32,
    is_64_bit: bool,
) -> Result<InjectionPoint, RequestError> {
    if state.processes.get(&pid).ok_or(RequestError::Gone)?.has_own_filter {
        return Err(RequestError::HasSeccompFilter);
    }
    let syscall = state.space_of(pid).and_then(|space| space.syscall_address);
    syscall
        .filter(|_| is_64_bit)
        .map(|syscall| InjectionPoint::Trap { syscall })
        .ok_or(RequestError::UnsupportedCode)
}

/// The result of a call that the kernel restarts if no signal handler runs (include/linux/errno.h,
/// ERESTARTNOHAND).
const ERESTARTNOHAND_RESULT: i64 = -514;

/// Restarts calls that wait without a timeout and that the kernel does not restart after a stop (signal(7),
/// "Interruption of system calls and library functions by stop signals"). Calls with a timeout are not
/// restarted: their start is unknown. Called at a trap, before any signal is delivered.
pub(super) fn restart_interrupted_call(tid: u32, tally: &mut Accounting) {
    let Ok(registers) = ptrace::read_registers(tid) else { return };
    if blocks_without_timeout(&registers) && registers.rax as i64 == -i64::from(libc::EINTR) {
        tally.set_registers(tid, &Registers { rax: ERESTARTNOHAND_RESULT as u64, ..registers });
    }
}

fn blocks_without_timeout(call: &Registers) -> bool {
    match call.orig_rax as i64 {
        // Their timeout is an int of milliseconds.
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (call.r10 as i32) < 0,
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => call.r10 == 0,
        libc::SYS_rt_sigtimedwait => call.rdx == 0,
        libc::SYS_io_getevents => call.r8 == 0,
        libc::SYS_semop => true,
        _ => false,
    }
}
