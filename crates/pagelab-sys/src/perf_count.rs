//! Counters of one process and of all that it starts, from its next exec on.
//!
//! Each counter is read for itself. A read of a whole group (PERF_FORMAT_GROUP) of inherited events was
//! refused by early kernels (EINVAL, kernel/events/core.c, `perf_event_alloc`), and is refused by later ones
//! where parent and child differ in what is in the group (ECHILD, 6.6, commit 32671e3799ca). The group is
//! still worth having: its counters are on the hardware at the same times, so that their ratios are of the
//! same moments.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use crate::perf_attr::{Attr, DISABLED, Of, USER_ONLY, open};

/// Bits of `flags`.
const INHERIT: u64 = 1 << 1;
/// Copies for threads alone, not for processes (5.13).
const INHERIT_THREAD: u64 = 1 << 35;
const ENABLE_ON_EXEC_BIT: u32 = 12;
pub(crate) const ENABLE_ON_EXEC: u64 = 1 << ENABLE_ON_EXEC_BIT;
/// PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING.
const FORMAT_TIMES: u64 = 1 << 0 | 1 << 1;

/// What is counted (`type` and `config` of the attribute).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `PERF_COUNT_HW_…`: cycles are 0, instructions 1.
    Hardware(u64),
    /// `PERF_COUNT_SW_…`.
    Software(u64),
    /// A tracepoint, by the number in its format file.
    Tracepoint(u16),
    /// A cache: which one, which operation, and accesses or misses.
    Cache(Cache, Operation, Outcome),
    /// An event of this processor: event number and unit mask as its maker lists them.
    Raw {
        /// The event number; AMD's has up to 12 bits.
        event: u16,
        /// The unit mask.
        mask: u8,
    },
}

/// `PERF_COUNT_HW_CACHE_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the field's own")]
pub enum Cache {
    L1d = 0,
    L1i = 1,
    LastLevel = 2,
    Dtlb = 3,
    Itlb = 4,
}

/// `PERF_COUNT_HW_CACHE_OP_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the field's own")]
pub enum Operation {
    Read = 0,
    Write = 1,
    Prefetch = 2,
}

/// `PERF_COUNT_HW_CACHE_RESULT_…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the field's own")]
pub enum Outcome {
    Access = 0,
    Miss = 1,
}

impl What {
    fn codes(self) -> (u32, u64) {
        match self {
            What::Hardware(config) => (0, config),
            What::Software(config) => (1, config),
            What::Tracepoint(id) => (2, u64::from(id)),
            What::Cache(cache, operation, outcome) => {
                (3, cache as u64 | (operation as u64) << 8 | (outcome as u64) << 16)
            }
            // Bits 32 to 35 are the rest of AMD's event number, and reserved on Intel (arch/x86/events/).
            What::Raw { event, mask } => {
                let event = u64::from(event);
                (4, (event & 0xff) | u64::from(mask) << 8 | (event >> 8) << 32)
            }
        }
    }
}

/// When a counter begins to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the next exec of its task.
    AtExec,
    /// With [`switch_own`], which stops it too.
    ByHand,
}

/// Starts or stops all counters that the calling thread has opened (PR_TASK_PERF_EVENTS_ENABLE and
/// _DISABLE, 2.6.31), in one call: with a call for each of them, the first would count the others' calls.
/// Copies in threads and processes that were started since follow.
pub fn switch_own(on: bool) -> io::Result<()> {
    let option = if on { libc::PR_TASK_PERF_EVENTS_ENABLE } else { libc::PR_TASK_PERF_EVENTS_DISABLE };
    // SAFETY: these options take no arguments and touch no memory of ours.
    // JUSTIFICATION: rustix has no face for this option of prctl.
    let done = unsafe { libc::prctl(option, 0, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A counter that waits for its start.
#[derive(Debug)]
pub struct Counter {
    file: File,
}

/// What a counter says: of the process, its threads, and all that it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Times while it was on the hardware.
    pub times: u64,
    /// How long it was to count, ns, summed over tasks.
    pub enabled_ns: u64,
    /// How long it was on the hardware, ns: less where counters had to take turns.
    pub running_ns: u64,
}

impl Counter {
    /// Opens a counter of `pid`, a task that has not yet started another one; 0 is the calling thread. With
    /// a `leader` it counts whenever that one does. `user_only` leaves the kernel out, which
    /// kernel.perf_event_paranoid may demand. The error is the kernel's own: ENOENT, EOPNOTSUPP or EINVAL
    /// where it has no such event, EACCES or EPERM where it is forbidden, ENOSYS without perf events.
    pub fn open(
        what: What,
        pid: i32,
        start: Start,
        leader: Option<&Counter>,
        user_only: bool,
    ) -> io::Result<Counter> {
        let (kind, config) = what.codes();
        let waits = match (leader, start) {
            (Some(_), _) => 0,
            (None, Start::AtExec) => DISABLED | ENABLE_ON_EXEC,
            (None, Start::ByHand) => DISABLED,
        };
        let leaves_out = if user_only { USER_ONLY } else { 0 };
        let flags = INHERIT | waits | leaves_out;
        let attr = Attr { flags, read_format: FORMAT_TIMES, ..Attr::event(kind, config) };
        let file = open(attr, Of::Task(pid), leader.map(|leader| leader.file.as_fd()))?;
        Ok(Counter { file })
    }

    /// Opens the CPU time, in nanoseconds, of one thread of another process from now on, with that of the
    /// threads that it starts (PERF_COUNT_SW_TASK_CLOCK). Unlike CPU clocks of other processes, which are as
    /// of the last tick, it is read on the CPU where the thread runs. Before 5.13 threads that are started
    /// later are not in it.
    pub fn open_task_clock(tid: i32) -> io::Result<Counter> {
        let attr = |flags| Attr { flags, read_format: FORMAT_TIMES, ..Attr::event(1, 1) };
        let file = match open(attr(INHERIT | INHERIT_THREAD), Of::Task(tid), None) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(attr(0), Of::Task(tid), None)?,
            opened => opened?,
        };
        Ok(Counter { file })
    }

    /// What it counted so far.
    pub fn read(&self) -> io::Result<Count> {
        let mut words = [0u8; 24];
        (&self.file).read_exact(&mut words)?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| words[8 * at + i]));
        Ok(Count { times: word(0), enabled_ns: word(1), running_ns: word(2) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn codes_are_those_of_the_kernels_header() {
        let misses = What::Cache(Cache::Dtlb, Operation::Write, Outcome::Miss);
        let cases = [
            (What::Hardware(1), (0, 1)),
            (What::Software(2), (1, 2)),
            (What::Tracepoint(700), (2, 700)),
            (misses, (3, 0x1_0103)),
            (What::Raw { event: 0x49, mask: 0x10 }, (4, 0x1049)),
            (What::Raw { event: 0x1c2, mask: 3 }, (4, 0x1_0000_03c2)),
        ];
        for (what, codes) in cases {
            assert_eq!(what.codes(), codes, "{what:?}");
        }
    }

    #[test]
    fn a_counter_counts_from_exec_on_and_children_too() {
        // 20 and more processes, each of which faults dozens of pages.
        let script = r#"read line; exec sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done'"#;
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        // PERF_COUNT_SW_PAGE_FAULTS and _PAGE_FAULTS_MIN.
        let Ok(faults) = Counter::open(What::Software(2), pid, Start::AtExec, None, false) else {
            drop(child.stdin.take());
            child.wait().unwrap();
            println!("skipped: no-perf-events: perf_event_open is refused here");
            return;
        };
        let minor = Counter::open(What::Software(5), pid, Start::AtExec, Some(&faults), false).unwrap();
        assert_eq!(faults.read().unwrap(), Count::default(), "nothing before the exec");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        let (all, minor) = (faults.read().unwrap(), minor.read().unwrap());
        assert!(all.times > 10 * 20, "the children's faults are missing: {all:?}");
        assert!(minor.times <= all.times && minor.times > all.times / 2, "{minor:?} of {all:?}");
        assert!(all.enabled_ns > 0 && all.running_ns == all.enabled_ns, "{all:?}");
    }

    #[test]
    fn a_counter_that_is_switched_counts_what_lies_between() {
        let touch = |pages: u64| {
            let page = rustix::param::page_size() as u64;
            let mut map = crate::map::Mapping::anonymous(Bytes(pages * page), Bytes(1)).unwrap();
            let _ = map.advise(0..pages * page, crate::map::Advice::NoHugePage);
            let step = (page / 8) as usize;
            map.words_mut().iter_mut().step_by(step).for_each(|word| *word = 1);
        };
        let Ok(faults) = Counter::open(What::Software(5), 0, Start::ByHand, None, false) else {
            println!("skipped: no-perf-events: perf_event_open is refused here");
            return;
        };
        touch(300);
        assert_eq!(faults.read().unwrap(), Count::default(), "nothing before it is switched on");
        for _ in 0..2 {
            switch_own(true).unwrap();
            touch(100);
            // A thread and what it does count too.
            std::thread::scope(|scope| drop(scope.spawn(|| touch(50)).join()));
            switch_own(false).unwrap();
            touch(300);
        }
        let count = faults.read().unwrap();
        assert!((300..400).contains(&count.times), "{count:?}, where twice 150 and little else were due");
    }

    #[test]
    fn the_task_clock_of_another_process_is_told_between_ticks() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let Ok(clock) = Counter::open_task_clock(child.id() as i32) else {
            child.kill().unwrap();
            child.wait().unwrap();
            println!("skipped: no-perf-events: perf_event_open is refused here");
            return;
        };
        // A clock of ticks moves by a millisecond at least; this one by less, as soon as both run at once.
        let began = std::time::Instant::now();
        let (mut before, mut smallest) = (0, u64::MAX);
        while smallest > 500_000 && began.elapsed().as_secs() < 20 {
            let now = clock.read().unwrap().times;
            assert!(now >= before);
            smallest = if now > before { smallest.min(now - before) } else { smallest };
            before = now;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(smallest <= 500_000, "{smallest} ns");
    }
}
