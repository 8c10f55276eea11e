//! Calls that other threads of ours have a process make: asked for there, answered by the tracer at a trap of
//! one of its threads.
//!
//! PTRACE_INTERRUPT promises one stop and not a trap: whatever stop the thread comes to first takes the
//! promise with it (kernel/signal.c, `ptrace_stop` clears JOBCTL_TRAP_STOP), be it a call that is handed
//! over, the end of one, a signal, a child. So a thread of a process that owes an answer is interrupted again
//! at each of its stops, and whoever asked says so again and again, each time to another thread: the first
//! one may wait for a child (vfork), or have ended before the others.
//!
//! Calls may be asked for that are made while all threads of the process stand ([`Deed::Dropping`]). The
//! others are interrupted from the one that came to a trap, and each waits at the next stop that it comes
//! to, which is looked at afterwards as if it had just been told.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pagelab_formats::process_stat;
use pagelab_host::paths;
use pagelab_host::root::Root;
use pagelab_sys::nudge::Nudge;
use pagelab_sys::ptrace::{self, Registers};

use super::inject::{self, At, Call, Made};
use super::space::World;
use super::tracer::{Thread, Tracer};
use crate::drops::{self, Used};

/// How soon a request is said again, and twice as late each time, up to the second.
const AGAIN: Duration = Duration::from_millis(2);
const AGAIN_MOST: Duration = Duration::from_millis(32);
/// How long it may take until the calls are begun. Begun, they are waited for.
const BEGIN_WAIT: Duration = Duration::from_secs(10);

/// How long the other threads of a process may take to stand.
const STAND_WAIT: Duration = Duration::from_millis(50);
/// It is looked again so soon, and twice as late each time, up to the second.
const STAND_PAUSE: Duration = Duration::from_micros(10);
const STAND_PAUSE_MOST: Duration = Duration::from_micros(500);

/// Threads of a process whose states are looked at.
const LOOKED_AT: usize = 32;

/// The code segment of 64-bit programs (`__USER_CS` of arch/x86/include/asm/segment.h).
const CODE_OF_64_BITS: u64 = 0x33;

/// How far a request is.
const WAITS: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Why calls were not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The process has ended, or become another program.
    Gone,
    /// Its own seccomp filter might forbid the calls, or kill for them.
    OwnFilter,
    /// It runs code of 32 bits, or has no instruction that makes a call where the kernel puts one.
    OtherCode,
    /// No thread of it came to a trap in time: it waits in the kernel where no signal is heard, or is frozen.
    Late,
    /// All threads were to stand, and one of them did not in time.
    NotAll,
}

impl Unanswered {
    /// Whether a later request may be answered.
    pub fn is_passing(self) -> bool {
        matches!(self, Unanswered::Late | Unanswered::NotAll)
    }
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unanswered::Gone => "it has ended, or become another program",
            Unanswered::OwnFilter => "it has a seccomp filter of its own, which might forbid calls or kill",
            Unanswered::OtherCode => "it does not run 64-bit code with the kernel's vdso",
            Unanswered::Late => "it does not stop: it waits in the kernel where no signal is heard",
            Unanswered::NotAll => {
                "one of its threads does not stop: it waits in the kernel where no signal is heard"
            }
        })
    }
}

/// Says which ranges of memory are to be dropped, now that all threads of a process stand; it is told which
/// other processes are supervised.
pub type Prepare = Box<dyn FnOnce(&[u32]) -> Vec<Range<u64>> + Send>;

/// What a process is to do.
pub(super) enum Deed {
    /// These calls, whatever its other threads do.
    Calls(Vec<Call>),
    /// Ranges that are found once all of its threads stand, and dropped before any of them goes on.
    Dropping(Prepare),
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What the calls, or the drop of each range, returned, in their order: an error number below zero.
    pub results: Vec<i64>,
    /// What the process had used when the last of them was made.
    pub used: Used,
}

/// Calls that a process is to make.
pub(super) struct Request {
    pid: u32,
    deed: Deed,
    reply: mpsc::Sender<Result<Answer, Unanswered>>,
    /// [`WAITS`], [`BEGUN`] or [`GIVEN_UP`]; who changes it first has it.
    state: Arc<AtomicU8>,
    /// How often it was said, and of these the last that was heard.
    said: Arc<AtomicU32>,
    heard: u32,
}

impl Request {
    /// Nobody gives it up from now on; `false` if that is done.
    fn begin(&self) -> bool {
        self.state.compare_exchange(WAITS, BEGUN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Asks the tracer to have a process make calls, and waits for the results.
pub(super) fn ask(world: &Mutex<World>, nudge: Nudge, pid: u32, deed: Deed) -> Result<Answer, Unanswered> {
    let (reply, answer) = mpsc::channel();
    let lock = || -> MutexGuard<'_, World> { world.lock().unwrap_or_else(PoisonError::into_inner) };
    let (state, said) = (Arc::new(AtomicU8::new(WAITS)), Arc::new(AtomicU32::new(0)));
    let request = Request { pid, deed, reply, state: state.clone(), said: said.clone(), heard: 0 };
    lock().requests.push_back(request);
    let (began, mut again) = (Instant::now(), AGAIN);
    loop {
        if lock().is_over {
            return Err(Unanswered::Gone);
        }
        said.fetch_add(1, Ordering::Relaxed);
        nudge.wake();
        match answer.recv_timeout(again) {
            Ok(answer) => return answer,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Unanswered::Gone),
            Err(mpsc::RecvTimeoutError::Timeout) => again = (again * 2).min(AGAIN_MOST),
        }
        let given_up = || state.compare_exchange(WAITS, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst);
        if began.elapsed() >= BEGIN_WAIT && given_up().is_ok() {
            return Err(Unanswered::Late);
        }
    }
}

impl Tracer {
    /// Takes what is asked for, and interrupts a thread for each time that it was said.
    pub fn take_requests(&mut self, world: &mut World) {
        self.asked.extend(world.requests.drain(..));
        self.asked.retain(|request| request.state.load(Ordering::SeqCst) != GIVEN_UP);
        for at in (0..self.asked.len()).rev() {
            let request = &mut self.asked[at];
            let said = request.said.load(Ordering::Relaxed);
            if said == request.heard {
                continue;
            }
            request.heard = said;
            let pid = request.pid;
            let threads = self.by_readiness(pid);
            if threads.is_empty() {
                // A reply that is dropped says that there is nobody.
                self.asked.swap_remove(at);
            } else {
                let _ = ptrace::interrupt(threads[said as usize % threads.len()]);
            }
        }
    }

    /// The threads of a process, those first that a stop interrupts in nothing.
    fn by_readiness(&self, pid: u32) -> Vec<u32> {
        let mut threads: Vec<u32> =
            self.threads.iter().filter(|(_, thread)| thread.process == pid).map(|(&tid, _)| tid).collect();
        threads.sort_unstable();
        if threads.len() > 1 && threads.len() <= LOOKED_AT {
            threads.sort_by_cached_key(|&tid| {
                let text = std::fs::read(paths::process(pid, &format!("task/{tid}/stat")));
                let stat = text.ok().and_then(|text| process_stat::parse(&text).ok());
                match stat.map(|stat| stat.state) {
                    Some(b'R') => 0,
                    Some(b'S' | b'T' | b't') => 1,
                    _ => 2,
                }
            });
        }
        threads
    }

    /// Whether a thread's process was asked for calls that are not made yet.
    pub fn owes(&self, tid: u32) -> bool {
        let process = || self.threads.get(&tid).map(|thread| thread.process);
        !self.asked.is_empty() && process().is_some_and(|pid| self.asked.iter().any(|asked| asked.pid == pid))
    }

    /// A process is gone or another one: what it was asked for is not made.
    pub fn forget_requests(&mut self, pid: u32) {
        self.asked.retain(|request| request.pid != pid);
    }

    /// Makes what the thread's process owes; the thread stands at a trap. Whether its group is stopped now;
    /// `None`: it is gone, and there is nothing to go on with.
    pub fn answer(&mut self, world: &mut World, tid: u32, mut is_stopped: bool) -> Option<bool> {
        let pid = self.threads.get(&tid)?.process;
        // A thread that is killed meanwhile, as by the exec of another one, has no registers.
        let is_64_bit = ptrace::registers(tid).ok()?.cs == CODE_OF_64_BITS;
        let owed: Vec<Request> = self.asked.extract_if(.., |request| request.pid == pid).collect();
        for request in owed {
            if !request.begin() {
                continue;
            }
            let answer = match site(world, pid, is_64_bit) {
                Err(why) => Err(why),
                // A reply that is dropped says that it is gone.
                Ok(at) => match self.carry_out(world, (tid, is_stopped), at, request.deed)? {
                    Ok(made) => {
                        is_stopped = made.was_group_stopped;
                        let used = Used::by(&Root::live(), pid);
                        Ok(Answer { results: made.results, used })
                    }
                    Err(why) => Err(why),
                },
            };
            let _ = request.reply.send(answer);
        }
        Some(is_stopped)
    }

    /// `None`: the thread is gone.
    fn carry_out(
        &mut self,
        world: &World,
        (tid, is_stopped): (u32, bool),
        at: At,
        deed: Deed,
    ) -> Option<Result<Made, Unanswered>> {
        let prepare = match deed {
            Deed::Calls(calls) => return self.make(tid, at, &calls).map(Ok),
            Deed::Dropping(prepare) => prepare,
        };
        let pid = self.threads.get(&tid)?.process;
        if !self.all_stand(pid, tid) {
            return Some(Err(Unanswered::NotAll));
        }
        let others: Vec<u32> = world.processes.keys().copied().filter(|&other| other != pid).collect();
        let ranges = prepare(&others);
        if ranges.is_empty() {
            return Some(Ok(Made { results: Vec::new(), was_group_stopped: is_stopped }));
        }
        let made = inject::make_as_asked(tid, at, |caller| {
            drops::drop_all(pid, &ranges, |number, arguments| caller(&Call { number, arguments }))
        });
        self.made(made).map(Ok)
    }

    /// Has all threads of a process stand but this one, which does: at whatever stop each comes to next. What
    /// they stopped for is looked at later.
    fn all_stand(&mut self, pid: u32, but: u32) -> bool {
        let is_other = |(&tid, thread): (&u32, &Thread)| (thread.process == pid && tid != but).then_some(tid);
        let mut running: Vec<u32> = self.threads.iter().filter_map(is_other).collect();
        running.retain(|tid| !self.pending.iter().any(|(known, _)| known == tid));
        for &tid in &running {
            let _ = ptrace::interrupt(tid);
        }
        let until = Instant::now() + STAND_WAIT;
        let mut pause = STAND_PAUSE;
        while !running.is_empty() {
            let before = running.len();
            running.retain(|&tid| match ptrace::wait(Some(tid), true) {
                Ok(Some(stopped)) => {
                    self.pending.push_back(stopped);
                    false
                }
                Ok(None) => true,
                // It is gone, and that was told.
                Err(_) => false,
            });
            if running.len() == before {
                if Instant::now() >= until {
                    return false;
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(STAND_PAUSE_MOST);
            }
        }
        true
    }
}

/// Where a thread of a process can make calls.
fn site(world: &mut World, pid: u32, is_64_bit: bool) -> Result<At, Unanswered> {
    if world.processes.get(&pid).ok_or(Unanswered::Gone)?.has_own_filter {
        return Err(Unanswered::OwnFilter);
    }
    let syscall = world.space_of(pid).and_then(|space| space.syscall);
    syscall.filter(|_| is_64_bit).map(|syscall| At::Trap { syscall }).ok_or(Unanswered::OtherCode)
}

/// What a call's end says that is begun again if no handler of a signal runs (include/linux/errno.h,
/// ERESTARTNOHAND).
const AGAIN_IF_NO_HANDLER: i64 = -514;

/// Calls that wait without an end, and that the kernel does not begin again of itself after a stop
/// (signal(7), "Interruption of system calls and library functions by stop signals"), are begun again. Those
/// that wait for a time are left: when they began is not known. At a trap, before any signal is delivered.
pub(super) fn begin_again(tid: u32) {
    let Ok(registers) = ptrace::registers(tid) else { return };
    if waits_for_ever(&registers) && registers.rax as i64 == -i64::from(libc::EINTR) {
        let _ = ptrace::set_registers(tid, &Registers { rax: AGAIN_IF_NO_HANDLER as u64, ..registers });
    }
}

fn waits_for_ever(call: &Registers) -> bool {
    match call.orig_rax as i64 {
        // Their limit is an int of milliseconds.
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (call.r10 as i32) < 0,
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => call.r10 == 0,
        libc::SYS_rt_sigtimedwait => call.rdx == 0,
        libc::SYS_io_getevents => call.r8 == 0,
        libc::SYS_semop => true,
        _ => false,
    }
}
