//! One queue of jobs for the lanes of a test run: which of them may run side by side, and how long each phase
//! took.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::phases::Phase;
use crate::tally::{FailedTest, Tally, TaskError};

/// What a job tolerates beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing: it compares a count of the whole machine before and after.
    Alone,
    /// Any job but those of the same kind.
    OneOf(Kind),
    /// Any job.
    Any,
}

/// Kinds of jobs of which one runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Changes a setting of the machine, or expects that no other program does.
    MachineSetting,
    /// Boots guests, which take both processors.
    Guest,
    /// Compiles into the folder of the dev profile, which cargo locks.
    DevBuild,
}

/// What a job does; it counts and prints into the tally.
pub type Task<'a> = Box<dyn FnOnce(&mut Tally) -> Result<(), TaskError> + Send + 'a>;

/// One program, or a sequence of steps, of a phase.
pub struct Job<'a> {
    pub phase: Phase,
    pub name: String,
    pub sharing: Sharing,
    /// Expected duration in seconds, 0 if it is short.
    pub seconds: u32,
    pub task: Task<'a>,
}

/// When a job ran, from the start of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    name: String,
    start: Duration,
    end: Duration,
}

/// Wall time of each phase, and which jobs ran side by side.
#[derive(Debug, Default)]
pub struct QueueRecord {
    /// Where jobs of two phases run side by side, each phase has half of that time: the sum is the wall time.
    pub durations: Vec<(Phase, Duration)>,
    intervals: Vec<Interval>,
}

impl QueueRecord {
    /// Names of the jobs that ran beside `name`.
    pub fn neighbours(&self, name: &str) -> Vec<&str> {
        let Some(own) = self.intervals.iter().find(|interval| interval.name == name) else {
            return Vec::new();
        };
        let overlaps =
            |other: &&Interval| other.name != name && other.start < own.end && own.start < other.end;
        self.intervals.iter().filter(overlaps).map(|other| other.name.as_str()).collect()
    }

    /// What is said of a failed test's neighbours.
    pub fn describe_neighbours(&self, test: &FailedTest) -> String {
        match self.neighbours(&test.program)[..] {
            [] => "alone".to_owned(),
            ref names => format!("beside {}", names.join(", ")),
        }
    }
}

/// A job and where it stands.
struct Slot<'a> {
    phase: Phase,
    name: String,
    sharing: Sharing,
    seconds: u32,
    state: State<'a>,
}

enum State<'a> {
    Waiting(Task<'a>),
    Running(Duration),
    /// Its results, until they are printed.
    Ended(Tally),
    Printed,
}

struct Queue<'a, 't> {
    slots: Vec<Slot<'a>>,
    tally: &'t mut Tally,
    record: QueueRecord,
    /// Up to here the wall time is divided among the phases.
    divided: Duration,
    /// Phase of the last printed head.
    printed_phase: Option<Phase>,
}

/// Runs all jobs in `lanes` lanes. Their output is printed in the order of `jobs`, under the name of their
/// phase; results are added to `tally`.
pub fn run_jobs(jobs: Vec<Job<'_>>, lanes: usize, tally: &mut Tally) -> QueueRecord {
    let start = Instant::now();
    let slots = jobs.into_iter().map(|job| Slot {
        phase: job.phase,
        name: job.name,
        sharing: job.sharing,
        seconds: job.seconds,
        state: State::Waiting(job.task),
    });
    let (record, divided) = Default::default();
    let queue = Queue { slots: slots.collect(), tally, record, divided, printed_phase: None };
    let is_one_lane = lanes <= 1;
    let queue = Mutex::new(queue);
    let changed = Condvar::new();
    let work = |is_first_lane: bool| {
        let mut guard = lock(&queue);
        while let Some(choice) = guard.choose(is_one_lane, is_first_lane) {
            let Some(place) = choice else {
                guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(task) = guard.begin(place, start.elapsed()) else { break };
            drop(guard);
            let mut results = Tally::with_held_lines();
            // A lane that panics would let the others wait for its job.
            let ended = catch_unwind(AssertUnwindSafe(|| task(&mut results)))
                .unwrap_or_else(|_| Err(TaskError::Message("xtask panicked".to_owned())));
            guard = lock(&queue);
            guard.end(place, start.elapsed(), results, ended);
            changed.notify_all();
        }
        changed.notify_all();
    };
    std::thread::scope(|scope| {
        for _ in 1..lanes {
            scope.spawn(|| work(false));
        }
        work(true);
    });
    queue.into_inner().unwrap_or_else(PoisonError::into_inner).record
}

fn lock<'q, 'a, 't>(queue: &'q Mutex<Queue<'a, 't>>) -> MutexGuard<'q, Queue<'a, 't>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Queue<'a, '_> {
    /// The next job for an idle lane: `None` if all have begun, `Some(None)` if it has to wait for another.
    /// The first lane takes the longest job, so that the lanes end together; the others take the first, so
    /// that output, which is in order, is not held until the end.
    fn choose(&self, is_one_lane: bool, is_first_lane: bool) -> Option<Option<usize>> {
        let waiting = |slot: &Slot<'_>| matches!(slot.state, State::Waiting(_));
        let first = self.slots.iter().position(waiting)?;
        if is_one_lane {
            return Some(Some(first));
        }
        let running: Vec<Sharing> = self.running().map(|slot| slot.sharing).collect();
        if running.contains(&Sharing::Alone) {
            return Some(None);
        }
        let others = || self.slots.iter().enumerate().filter(|(_, slot)| waiting(slot));
        // Those that run alone come last: each would drain the other lane.
        let shareable = || others().filter(|(_, slot)| slot.sharing != Sharing::Alone);
        if shareable().next().is_none() {
            return Some(running.is_empty().then_some(first));
        }
        let fits = |slot: &Slot<'_>| slot.sharing == Sharing::Any || !running.contains(&slot.sharing);
        let mut fitting = shareable().filter(|(_, slot)| fits(slot));
        let choice = if is_first_lane {
            // Of those that take equally long, the first.
            fitting.rev().max_by_key(|(_, slot)| slot.seconds)
        } else {
            fitting.next()
        };
        Some(choice.map(|(place, _)| place))
    }

    fn running(&self) -> impl Iterator<Item = &Slot<'a>> {
        self.slots.iter().filter(|slot| matches!(slot.state, State::Running(_)))
    }

    /// Divides the wall time since the last change among the phases that ran.
    fn divide_time(&mut self, now: Duration) {
        let running: Vec<Phase> = self.running().map(|slot| slot.phase).collect();
        let passed = now.saturating_sub(self.divided);
        self.divided = now;
        for phase in &running {
            let share = passed / running.len() as u32;
            match self.record.durations.iter_mut().find(|(known, _)| known == phase) {
                Some((_, sum)) => *sum += share,
                None => self.record.durations.push((*phase, share)),
            }
        }
    }

    fn begin(&mut self, place: usize, now: Duration) -> Option<Task<'a>> {
        self.divide_time(now);
        match std::mem::replace(&mut self.slots[place].state, State::Running(now)) {
            State::Waiting(task) => Some(task),
            _ => None,
        }
    }

    fn end(&mut self, place: usize, now: Duration, mut results: Tally, ended: Result<(), TaskError>) {
        self.divide_time(now);
        let slot = &mut self.slots[place];
        if let Err(TaskError::Message(why)) = ended {
            results.failures.push(format!("{}: {why}", slot.name));
        }
        if let State::Running(start) = std::mem::replace(&mut slot.state, State::Ended(results)) {
            self.record.intervals.push(Interval { name: slot.name.clone(), start, end: now });
        }
        self.print_ended();
    }

    /// Prints what has ended, up to the first job that has not.
    fn print_ended(&mut self) {
        for slot in &mut self.slots {
            match std::mem::replace(&mut slot.state, State::Printed) {
                State::Printed => {}
                State::Ended(results) => {
                    if self.printed_phase != Some(slot.phase) {
                        self.printed_phase = Some(slot.phase);
                        self.tally.print(slot.phase.name());
                    }
                    self.tally.append(results);
                }
                state => {
                    slot.state = state;
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Jobs named by their place, of these kinds, each of which checks what it meets.
    fn check(lanes: usize, kinds: &[Sharing]) -> (Tally, QueueRecord) {
        let running: Vec<AtomicUsize> = kinds.iter().map(|_| AtomicUsize::new(0)).collect();
        let (running, kinds) = (&running, kinds);
        let jobs = (0..kinds.len()).map(|at| Job {
            phase: if at < 2 { Phase::Unit } else { Phase::EndToEnd },
            name: format!("job {at}"),
            sharing: kinds[at],
            seconds: (at % 3) as u32,
            task: Box::new(move |tally: &mut Tally| {
                running[at].store(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                let beside = (0..kinds.len()).filter(|&other| other != at);
                for other in beside.filter(|&other| running[other].load(Ordering::SeqCst) == 1) {
                    let is_allowed = match (kinds[at], kinds[other]) {
                        (Sharing::Alone, _) | (_, Sharing::Alone) => false,
                        (Sharing::Any, _) | (_, Sharing::Any) => true,
                        (ours, theirs) => ours != theirs,
                    };
                    tally.record_check(&format!("{at} beside {other}"), is_allowed);
                }
                running[at].store(0, Ordering::SeqCst);
                tally.print(format!("  {at}"));
                tally.record_check("ran", true);
                if at == 3 { Err(TaskError::Message("three".to_owned())) } else { Ok(()) }
            }),
        });
        let mut tally = Tally::with_held_lines();
        let record = run_jobs(jobs.collect(), lanes, &mut tally);
        (tally, record)
    }

    const KINDS: [Sharing; 9] = [
        Sharing::Any,
        Sharing::Alone,
        Sharing::OneOf(Kind::MachineSetting),
        Sharing::OneOf(Kind::MachineSetting),
        Sharing::Any,
        Sharing::OneOf(Kind::Guest),
        Sharing::Alone,
        Sharing::OneOf(Kind::Guest),
        Sharing::Any,
    ];

    #[test]
    fn every_job_runs_once_beside_what_it_tolerates_and_output_is_in_order() {
        for lanes in [1, 2, 3] {
            let (tally, record) = check(lanes, &KINDS);
            assert_eq!(tally.failures, ["job 3: three"], "{lanes} lanes");
            assert!(tally.passed >= KINDS.len() as u64);
            let lines = tally.held_lines().join("");
            assert_eq!(lines, "unit  0  1e2e  2  3  4  5  6  7  8");
            assert_eq!(record.intervals.len(), KINDS.len());
            assert_eq!(record.neighbours("job 1"), Vec::<&str>::new());
            let beside: usize =
                (0..KINDS.len()).map(|at| record.neighbours(&format!("job {at}")).len()).sum();
            assert_eq!(beside == 0, lanes == 1, "{record:?}");
        }
    }

    #[test]
    fn the_phases_share_the_wall_time() {
        let start = Instant::now();
        let (_, record) = check(2, &KINDS);
        let wall_time = start.elapsed();
        let sum: Duration = record.durations.iter().map(|(_, took)| *took).sum();
        assert!(sum <= wall_time && sum > wall_time / 2, "{sum:?} of {wall_time:?}");
    }
}
