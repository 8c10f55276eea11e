//! A program that is supervised by a thread of this process, with all of its mappings named: for profilers.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use pagelab_sys::nudge::Nudge;
use pagelab_sys::traced_child;
use pagelab_tlb::engine::ledger::Ledger;

use super::inject::Call;
use super::requests::{self, Answer, Deed, Prepare, Unanswered};
use super::space::World;
use super::tracer::Tracer;
use super::{Ended, Image, Spec, enter};
use crate::error::{Error, ErrorKind};
use crate::priority;

/// A program under supervision. When this process ends, the program is killed.
pub struct Watch {
    world: Arc<Mutex<World>>,
    nudge: Nudge,
    pid: u32,
    end: Arc<(Mutex<Option<Ended>>, Condvar)>,
}

impl Watch {
    /// Starts the program and returns once it runs. Its stdio is that of this process.
    pub fn start(spec: Spec) -> Result<Watch, Error> {
        let world = Arc::new(Mutex::new(World::default()));
        let end = Arc::new((Mutex::new(None), Condvar::new()));
        let (says, hears) = mpsc::channel();
        let (shared, told) = (world.clone(), end.clone());
        std::thread::spawn(move || {
            traced_child::block_signals();
            let nudge = match Nudge::of_this_thread() {
                Ok(nudge) => nudge,
                Err(error) => {
                    let error = Error::new(ErrorKind::NotAvailable, format!("no signal handler: {error}"));
                    return drop(says.send(Err(error)));
                }
            };
            let started = |pid| drop(says.send(Ok((pid, nudge))));
            let ended = |ended, _| {
                *told.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
                told.1.notify_all();
            };
            let run = Tracer::start(Arc::new(spec), shared).and_then(|tracer| {
                // Each call in the program's name waits for this thread four times; the program has begun
                // with the usual priority.
                priority::sooner();
                tracer.run(started, ended)
            });
            if let Err(error) = run {
                let _ = says.send(Err(error));
            }
        });
        let gone = |_| Error::new(ErrorKind::CannotStart, "the supervising thread ended");
        let (pid, nudge) = hears.recv().map_err(gone)??;
        Ok(Watch { world, nudge, pid, end })
    }

    /// The first process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// All programs that ran so far, the first one first.
    pub fn images(&self) -> Vec<Image> {
        self.world().images.clone()
    }

    /// What lies where in a process that runs now, and which of the [`Watch::images`] it is.
    pub fn ledger(&self, pid: u32) -> Option<(usize, Ledger)> {
        let (image, mut ledger) = {
            let mut world = self.world();
            let image = world.processes.get(&pid)?.image;
            (image, Ledger::clone(&world.space_of(pid)?.ledger))
        };
        if let Some(heap) = heap(pid) {
            ledger.break_at(heap.end);
        }
        Some((image, ledger))
    }

    /// Has a thread of the process make system calls: (number, arguments), one after the other. Returns what
    /// the calls returned.
    pub fn make(&self, pid: u32, calls: &[(i64, [u64; 6])]) -> Result<Vec<i64>, Unanswered> {
        let call = |&(number, arguments): &(i64, [u64; 6])| Call { number, arguments };
        let deed = Deed::Calls(calls.iter().map(call).collect());
        requests::ask(&self.world, self.nudge, pid, deed).map(|answer| answer.results)
    }

    /// Drops ranges of memory (MADV_DONTNEED) that `prepare` finds once all threads of the process stand;
    /// none of them goes on before the last is dropped.
    pub fn drop_standing(&self, pid: u32, prepare: Prepare) -> Result<Answer, Unanswered> {
        requests::ask(&self.world, self.nudge, pid, Deed::Dropping(prepare))
    }

    /// How the first process ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        *self.end.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the first process's end, at most so long.
    pub fn wait(&self, most: Duration) -> Option<Ended> {
        let guard = self.end.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.1.wait_timeout_while(guard, most, |ended| ended.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What a reader must know, in sentences.
    pub fn notes(&self) -> Vec<String> {
        self.world().tally.summary.notes.clone()
    }

    /// Processes that run.
    pub fn processes(&self) -> usize {
        self.world().processes.len()
    }

    /// CPU time of the supervising thread so far.
    pub fn cpu_ns(&self) -> u64 {
        self.world().tally.summary.supervisor_cpu_ns
    }

    /// Time that stops took so far, summed over the threads.
    pub fn stopped_ns(&self) -> u64 {
        self.world().tally.summary.stopped_ns
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the heap of a process lies now.
pub(crate) fn heap(pid: u32) -> Option<Range<u64>> {
    let text = std::fs::read(pagelab_host::paths::process(pid, "maps")).ok()?;
    let maps = pagelab_formats::maps::parse(&text).ok()?;
    // Advice for a part splits it; the kernel names each part.
    let end = maps.iter().filter(|map| map.name == "[heap]").map(|map| map.end).max()?;
    let start = enter::heap_start(pid)?;
    (start < end).then_some(start..end)
}
