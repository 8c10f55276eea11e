//! The tracer: hears of every thread, process, exec and end, and answers the calls that the filter hands
//! over.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use pagelab_model::profile::Begun;
use pagelab_sys::ptrace::{self, Options, Registers, Stop, event};
use pagelab_sys::traced_child::{self, Told};
use pagelab_sys::{clock, seccomp};
use pagelab_tlb::engine::ledger::MappingId;

use super::inject::{self, At, Broken, Call, Made};
use super::requests::{self, Request};
use super::space::{Process, Space, World};
use super::{Choice, Ended, Image, Spec, Summary, coverage, enter};
use crate::error::{Error, ErrorKind};

/// Images that are kept; a program that starts more is told of.
const IMAGES_MAX: usize = 100_000;

/// A traced thread.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    /// Its process.
    pub process: u32,
    /// The call whose end is waited for, as it began.
    pub call: Option<Registers>,
    /// Its mapping was made whole for the mremap that it is about to make again.
    pub is_whole: bool,
    /// The call whose end is waited for grows the last part of what the program's own would grow.
    pub by_parts: bool,
    /// What lay at the begin of the memory that it moves, when its call began: the mapping, and the offset.
    pub moves: Option<(MappingId, u64)>,
}

impl Thread {
    fn of(process: u32) -> Thread {
        Thread { process, call: None, is_whole: false, by_parts: false, moves: None }
    }
}

/// The tracer of one program.
pub(super) struct Tracer {
    pub spec: Arc<Spec>,
    pub mark: u64,
    world: Arc<Mutex<World>>,
    pub threads: HashMap<u32, Thread>,
    /// New threads that stopped before their parents told of them.
    early: HashSet<u32>,
    /// Calls that processes make at the next trap of one of their threads.
    pub asked: Vec<Request>,
    /// Stops that were seen while something else was waited for.
    pub pending: VecDeque<(u32, Stop)>,
    root: u32,
    begun: Option<traced_child::Begun>,
    has_run: bool,
    start_ns: u64,
}

impl Tracer {
    /// Starts the program; it waits for [`Tracer::run`]. All of it must be called from one thread.
    pub fn start(spec: Arc<Spec>, world: Arc<Mutex<World>>) -> Result<Tracer, Error> {
        if !cfg!(target_arch = "x86_64") {
            let why = "supervising is built for x86-64 alone: use --no-tracer";
            return Err(Error::new(ErrorKind::NotAvailable, why));
        }
        let cannot = |what: &str, error: io::Error| {
            let message = format!("cannot {what}: {error}; `--no-tracer` needs no ptrace");
            Error::new(ErrorKind::NotAvailable, message)
        };
        let mark = super::mark();
        let waiting = traced_child::start(&super::child_program(&spec, mark)?)
            .map_err(|error| Error::new(ErrorKind::CannotStart, format!("cannot fork: {error}")))?;
        let root = waiting.pid;
        ptrace::seize(root, Options::SUPERVISE).map_err(|error| cannot("trace the program", error))?;
        let begun = waiting.go().map_err(|error| cannot("let the program go", error))?;
        let mut tracer = Tracer {
            spec,
            mark,
            world,
            threads: HashMap::new(),
            early: HashSet::new(),
            asked: Vec::new(),
            pending: VecDeque::new(),
            root,
            begun: Some(begun),
            has_run: false,
            start_ns: clock::monotonic_ns(),
        };
        tracer.threads.insert(root, Thread::of(root));
        Ok(tracer)
    }

    /// Supervises until nothing is left to be supervised.
    pub fn run(self, started: impl FnOnce(u32), ended: impl FnOnce(Ended, Summary)) -> Result<(), Error> {
        let world = self.world.clone();
        let done = self.until_the_end(started, ended);
        let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
        world.is_over = true;
        world.requests.clear();
        done
    }

    fn until_the_end(
        mut self,
        started: impl FnOnce(u32),
        ended: impl FnOnce(Ended, Summary),
    ) -> Result<(), Error> {
        let (mut started, mut ended) = (Some(started), Some(ended));
        loop {
            let world = self.world.clone();
            let lock = || world.lock().unwrap_or_else(PoisonError::into_inner);
            let (tid, stop) = match self.pending.pop_front() {
                Some(next) => next,
                None => match ptrace::wait(None, false) {
                    Ok(Some(next)) => next,
                    Ok(None) => {
                        self.take_requests(&mut lock());
                        continue;
                    }
                    Err(_) => return Ok(()),
                },
            };
            let since = clock::monotonic_ns();
            let mut world = lock();
            // Where stops follow each other, no wait is ever cut short.
            self.take_requests(&mut world);
            self.at(&mut world, tid, stop);
            world.tally.summary.stopped_ns += clock::monotonic_ns() - since;
            world.tally.summary.stops += 1;
            world.tally.summary.supervisor_cpu_ns = clock::thread_cpu_ns();
            if tid == self.root && stop == Stop::Event(event::EXEC) && !self.has_run {
                self.has_run = true;
                self.told(&mut world)?;
                started.take().into_iter().for_each(|call| call(tid));
            }
            if tid == self.root
                && let Some(end) = end(stop)
            {
                if !self.has_run {
                    self.told(&mut world)?;
                }
                if let Some(call) = ended.take() {
                    let summary = self.summary(&mut world, end);
                    drop(world);
                    call(end, summary);
                }
            }
        }
    }

    /// What the child said on its way to the program.
    fn told(&mut self, world: &mut World) -> Result<(), Error> {
        let Some(begun) = self.begun.take() else { return Ok(()) };
        let Told { is_without_new_privileges, thp_refused, filter_error, exec_error } = begun.told();
        let program = self.spec.program.display();
        if let Some(number) = filter_error {
            let error = io::Error::from_raw_os_error(number);
            let message = format!("the kernel takes no seccomp filter ({error}): use --no-tracer");
            return Err(Error::new(ErrorKind::NotAvailable, message));
        }
        if let Some(number) = exec_error {
            let message = format!("cannot start {program}: {}", io::Error::from_raw_os_error(number));
            return Err(Error::new(ErrorKind::CannotStart, message));
        }
        if is_without_new_privileges {
            world.tally.note(
                "without CAP_SYS_ADMIN the filter needs no_new_privs: set-user-id programs that it starts \
                 get no rights"
                    .to_owned(),
            );
        }
        if thp_refused {
            world.tally.note(
                "this kernel cannot switch huge pages off but where advised (6.18 can): where \
                 transparent_hugepage/enabled is `always`, all of the program may get them"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn summary(&mut self, world: &mut World, end: Ended) -> Summary {
        let running: Vec<Space> = world.spaces.values().cloned().collect();
        // What still runs is counted as it stands, in the copy that is handed out.
        running.iter().for_each(|space| world.settle_all(space));
        let mut summary = world.tally.close(&self.spec);
        let cpu = clock::process_cpu_ns(std::process::id());
        summary.supervisor_cpu_ns = cpu.unwrap_or_else(|_| clock::thread_cpu_ns());
        summary.wall_ns = clock::monotonic_ns() - self.start_ns;
        summary.ended = Some(end);
        summary
    }

    fn at(&mut self, world: &mut World, tid: u32, stop: Stop) {
        if !self.threads.contains_key(&tid) && end(stop).is_none() {
            // Its parent tells of it soon, or has died meanwhile.
            self.early.insert(tid);
            return;
        }
        match stop {
            Stop::Exited(_) | Stop::Killed(_) => self.gone(world, tid),
            Stop::Signal(signal) => self.go_on(tid, signal),
            Stop::Group(signal) => self.trapped(world, tid, signal),
            Stop::Syscall => self.call_ended(world, tid),
            Stop::Event(event::SECCOMP) => self.call_begins(world, tid),
            Stop::Event(event::FORK | event::VFORK | event::CLONE) => {
                if let Ok(child) = ptrace::event_message(tid) {
                    self.born(world, tid, child as u32);
                }
                self.go_on(tid, 0);
            }
            Stop::Event(event::EXEC) => {
                let former = ptrace::event_message(tid).unwrap_or(0) as u32;
                self.executed(world, tid, former);
                self.go_on(tid, 0);
            }
            Stop::Event(event::EXIT) => {
                self.about_to_end(world, tid);
                let _ = ptrace::go_on(tid, 0);
            }
            Stop::Event(_) => self.go_on(tid, 0),
        }
    }

    /// A thread stands at a trap, or is stopped with its group: calls that are asked for are made here.
    fn trapped(&mut self, world: &mut World, tid: u32, signal: i32) {
        let mut is_stopped = is_stopping(signal);
        if !is_stopped {
            requests::begin_again(tid);
        }
        // In a restartable sequence nothing is made: the kernel would forget to abort it. It does so on the
        // way back to the program, and the request is said again.
        let is_in_sequence =
            |r: Registers| (r.orig_rax as i64) < 0 && ptrace::in_restartable_sequence(tid, r.rip);
        let is_free = || !ptrace::registers(tid).is_ok_and(is_in_sequence);
        let owes = self.owes(tid);
        if owes && is_free() {
            match self.answer(world, tid, is_stopped) {
                Some(now) => is_stopped = now,
                None => return,
            }
        }
        if is_stopped {
            let _ = ptrace::listen(tid);
        } else {
            self.let_run(tid, 0);
        }
    }

    /// Lets a thread go on, to a trap if its process owes calls.
    pub fn go_on(&mut self, tid: u32, signal: i32) {
        if self.owes(tid) {
            let _ = ptrace::interrupt(tid);
        }
        self.let_run(tid, signal);
    }

    /// Lets a thread go on, to the end of its call where that is waited for. One that was killed meanwhile
    /// tells its end.
    fn let_run(&mut self, tid: u32, signal: i32) {
        let is_waited_for = self.threads.get(&tid).is_some_and(|thread| thread.call.is_some());
        let _ = match is_waited_for {
            true => ptrace::go_on_to_syscall(tid, signal),
            false => ptrace::go_on(tid, signal),
        };
    }

    pub fn go_on_to_end_of_call(&mut self, tid: u32, registers: Registers) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.call = Some(registers);
        }
        self.go_on(tid, 0);
    }

    /// After calls of ours: a thread whose group was stopped meanwhile stops with it, if it still is.
    pub fn stopped_again(&self, tid: u32, made: &Made) {
        if made.was_group_stopped {
            let _ = ptrace::interrupt(tid);
        }
    }

    /// Lets a thread go on after calls of ours.
    pub fn go_on_after(&mut self, tid: u32, made: &Made) {
        self.stopped_again(tid, made);
        self.go_on(tid, 0);
    }

    /// Has a stopped thread make calls. `None`: it is gone, and there is nothing to go on with.
    pub fn make(&mut self, tid: u32, at: At, calls: &[Call]) -> Option<Made> {
        self.made(inject::make(tid, at, calls))
    }

    /// What came of calls that a stopped thread made. `None`: it is gone, and there is nothing to go on with.
    pub fn made(&mut self, made: Result<Made, Broken>) -> Option<Made> {
        match made {
            Ok(made) => Some(made),
            Err(Broken::Gone(tid, stop)) => {
                self.pending.push_back((tid, stop));
                None
            }
            Err(Broken::Refused) => None,
        }
    }

    /// A thread or process was made by `parent`, which stands at the event.
    fn born(&mut self, world: &mut World, parent: u32, child: u32) {
        if self.threads.contains_key(&child) {
            return;
        }
        let Some(&Thread { process, .. }) = self.threads.get(&parent) else { return };
        let flags = ptrace::registers(parent).map_or(0, |registers| clone_flags(process, &registers));
        let (shares_memory, is_thread) =
            (flags & libc::CLONE_VM as u64 != 0, flags & libc::CLONE_THREAD as u64 != 0);
        self.adopt(world, process, child, shares_memory, is_thread);
    }

    fn adopt(&mut self, world: &mut World, parent: u32, child: u32, shares_memory: bool, is_thread: bool) {
        let process = if is_thread { parent } else { child };
        self.threads.insert(child, Thread::of(process));
        if !is_thread && let Some(known) = world.processes.get(&parent).cloned() {
            let space = match (shares_memory, world.spaces.get_mut(&known.space)) {
                (true, Some(space)) => {
                    space.users += 1;
                    known.space
                }
                (false, Some(space)) => {
                    let forked = space.forked();
                    world.add(forked)
                }
                (_, None) => world.add(Space::default()),
            };
            let parent = world.images.get(known.image).cloned();
            let image = Image {
                pid: child,
                parent: Some(known.image),
                begun: Begun::Forked,
                program: parent.as_ref().map(|p| p.program.clone()).unwrap_or_default(),
                arguments: parent.map(|p| p.arguments).unwrap_or_default(),
                is_running: true,
            };
            let image = add_image(world, image);
            world.processes.insert(child, Process { space, image, ..known });
        }
        if self.early.remove(&child) {
            // It waits at its first stop; whether its group is stopped is told again.
            let _ = ptrace::interrupt(child);
            self.go_on(child, 0);
        }
    }

    /// New threads whose parents died before they could tell of them.
    fn adopt_early(&mut self, world: &mut World) {
        for tid in self.early.clone() {
            let (group, parent) = enter::family(tid).unwrap_or((tid, 0));
            let is_thread = group != tid;
            let parent = if is_thread { group } else { parent };
            if !is_thread && !world.processes.contains_key(&parent) {
                let space = world.add(enter::space(tid));
                world.processes.insert(tid, Process { space, image: 0, has_own_filter: false });
            }
            self.adopt(world, parent, tid, false, is_thread);
        }
    }

    /// A process runs another program; it was the thread `former` that asked for it.
    fn executed(&mut self, world: &mut World, pid: u32, former: u32) {
        if former != pid {
            self.threads.remove(&former);
        }
        // They were for memory that is gone.
        self.forget_requests(pid);
        self.threads.insert(pid, Thread::of(pid));
        let before = world.processes.remove(&pid);
        if let Some(before) = &before {
            world.leave(before.space);
            if let Some(image) = world.images.get_mut(before.image) {
                image.is_running = false;
            }
        }
        let mut space = enter::space(pid);
        let with_identity = self.spec.sees_all || matches!(self.spec.choice, Choice::Plan(_));
        let program = enter::program(pid, with_identity);
        if enter::is_32_bit(pid) {
            world.tally.note(format!("{}: a 32-bit program is not supervised", program.path));
        }
        if let Choice::Plan(plan) = &self.spec.choice {
            space.planned = match enter::find(plan, &program) {
                enter::Match::Same(at) => Some(at),
                enter::Match::Stale(at) if self.spec.stale => Some(at),
                enter::Match::Stale(_) => {
                    world.tally.note(format!(
                        "{}: the plan is for another build of it, and nothing was advised; profile this \
                         one, or carry the plan out anyway with --stale",
                        program.path
                    ));
                    None
                }
                enter::Match::Other => None,
            };
            world.tally.ran.extend(space.planned);
        }
        let begun = if before.is_some() { Begun::Executed } else { Begun::Launched };
        let parent = before.as_ref().map(|process| process.image);
        let arguments = enter::arguments(pid);
        let image = Image { pid, parent, begun, program, arguments, is_running: true };
        let image = add_image(world, image);
        let has_own_filter = before.is_some_and(|process| process.has_own_filter);
        self.spec.want_what_is_there(&mut space, &mut world.tally);
        space.brk = if has_own_filter { None } else { self.spec.new_break(pid, &space) };
        let space = world.add(space);
        world.processes.insert(pid, Process { space, image, has_own_filter });
    }

    /// A thread is about to end; the last look at what its process had.
    fn about_to_end(&mut self, world: &mut World, tid: u32) {
        let Some(&Thread { process, .. }) = self.threads.get(&tid) else { return };
        let is_alone = self.threads.values().filter(|thread| thread.process == process).count() == 1;
        let ends_all = || ptrace::registers(tid).is_ok_and(|r| r.orig_rax as i64 == libc::SYS_exit_group);
        let by_signal = || ptrace::event_message(tid).is_ok_and(|status| status & 0x7f != 0);
        if is_alone || ends_all() || by_signal() {
            self.look(world, process, &(0..u64::MAX));
        }
    }

    /// Looks at what is wanted in a range of a process.
    pub fn look(&self, world: &mut World, pid: u32, range: &std::ops::Range<u64>) {
        let Some(number) = world.processes.get(&pid).map(|process| process.space) else { return };
        let Some(space) = world.spaces.get_mut(&number) else { return };
        self.look_beyond(space, pid, range);
        match coverage::look(pid, &mut space.wants, range, self.spec.huge) {
            Ok(huge) => world.tally.looked(number, huge),
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => world.tally.note(
                "this kernel cannot be asked which pages are huge (PAGEMAP_SCAN, 6.7): nothing is confirmed"
                    .to_owned(),
            ),
            Err(_) => {}
        }
    }

    fn gone(&mut self, world: &mut World, tid: u32) {
        let Some(thread) = self.threads.remove(&tid) else { return };
        self.early.remove(&tid);
        let is_last = !self.threads.values().any(|other| other.process == thread.process);
        if is_last && let Some(process) = world.processes.remove(&thread.process) {
            self.forget_requests(thread.process);
            if let Some(image) = world.images.get_mut(process.image) {
                image.is_running = false;
            }
            world.tally.huge.remove(&process.space);
            world.leave(process.space);
        }
        if !self.early.is_empty() {
            self.adopt_early(world);
        }
    }
}

fn add_image(world: &mut World, image: Image) -> usize {
    if world.images.len() >= IMAGES_MAX {
        world.tally.note(format!("only the first {IMAGES_MAX} processes and programs are listed"));
        return IMAGES_MAX;
    }
    world.images.push(image);
    world.images.len() - 1
}

fn end(stop: Stop) -> Option<Ended> {
    match stop {
        Stop::Exited(code) => Some(Ended::Code(code)),
        Stop::Killed(signal) => Some(Ended::Signal(signal)),
        _ => None,
    }
}

fn is_stopping(signal: i32) -> bool {
    matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// What a thread asked for that made another: the flags of clone, or what fork and vfork mean.
fn clone_flags(pid: u32, registers: &Registers) -> u64 {
    match registers.orig_rax as i64 {
        libc::SYS_clone => registers.rdi,
        libc::SYS_clone3 => clone3_flags(pid, registers).unwrap_or(0),
        libc::SYS_vfork => libc::CLONE_VM as u64,
        _ => 0,
    }
}

/// The flags of clone3: the first word of its structure.
pub(super) fn clone3_flags(pid: u32, registers: &Registers) -> Option<u64> {
    let mut flags = [0u8; 8];
    let had = ptrace::read_memory(pid, registers.rdi, &mut flags).ok()?;
    (had == flags.len()).then(|| u64::from_ne_bytes(flags))
}

/// Whether a call that begins is one of those that are answered.
pub(super) fn is_switching_off(registers: &Registers) -> bool {
    registers.rdi == seccomp::PR_SET_THP_DISABLE && registers.rsi != 0
}
