//! Trials of a study on several threads. What a trial comes to does not depend on which thread ran it, nor on
//! how many there are; only the order in which they end does.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pagelab_host::capture::Stop;
use pagelab_model::study::{StudyPlan, StudyTrial};
use pagelab_sim::study;
use pagelab_sim::words::Wrong;

use super::catalogue;
use crate::exit::{Exit, Failure};

/// How often whoever watches is told.
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// What is to be run.
pub struct Job<'a> {
    pub plan: &'a StudyPlan,
    /// The slots that are due.
    pub due: &'a [usize],
    pub threads: NonZero<usize>,
    pub stop: &'a Stop,
}

/// What is told while it runs.
pub enum News {
    /// Thousandths of trials that are done, those at work included.
    At(u64),
    /// A trial was made.
    Done(Box<StudyTrial>),
}

/// The processors that this process may use.
pub fn processors() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

impl Job<'_> {
    /// Runs all that is due, until a signal, or until one of them cannot be run.
    pub fn run(&self, mut each: impl FnMut(News) -> Result<(), Failure>) -> Result<(), Failure> {
        let next = AtomicUsize::new(0);
        let threads = self.threads.get().min(self.due.len()).max(1);
        let at: Vec<AtomicU32> = (0..threads).map(|_| AtomicU32::new(0)).collect();
        let failed = Mutex::new(None);
        let is_over = |failed: &Mutex<Option<Failure>>| {
            self.stop.signal().is_some() || failed.lock().is_ok_and(|failed| failed.is_some())
        };
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::sync_channel(threads);
            for at in &at {
                let (send, next, failed) = (send.clone(), &next, &failed);
                let work = move || {
                    while let Some(&slot) = self.due.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut go_on = |permille: u32| {
                            at.store(permille.min(1000), Ordering::Relaxed);
                            !is_over(failed)
                        };
                        if !go_on(0) {
                            return;
                        }
                        match one(self.plan, slot, &mut go_on) {
                            // One that was stopped in the middle is none.
                            Ok(_) if is_over(failed) => return,
                            Ok(trial) => {
                                if send.send(trial).is_err() {
                                    return;
                                }
                            }
                            Err(failure) => note(failed, failure),
                        }
                        at.store(0, Ordering::Relaxed);
                    }
                };
                scope.spawn(work);
            }
            drop(send);
            let mut done = 0u64;
            loop {
                let news = match receive.recv_timeout(TOLD_EVERY) {
                    Ok(trial) => {
                        done += 1;
                        News::Done(Box::new(trial))
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        let work: u64 = at.iter().map(|at| u64::from(at.load(Ordering::Relaxed))).sum();
                        News::At(done * 1000 + work)
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if let Err(failure) = each(news) {
                    note(&failed, failure);
                    // Whoever waits to hand a trial over is let go.
                    return;
                }
            }
        });
        match failed.into_inner() {
            Ok(None) => Ok(()),
            Ok(Some(failure)) => Err(failure),
            Err(_) => Err(Failure::new(Exit::Bug, "a thread of the simulation failed")),
        }
    }
}

/// The first failure counts.
fn note(failed: &Mutex<Option<Failure>>, failure: Failure) {
    if let Ok(mut failed) = failed.lock() {
        failed.get_or_insert(failure);
    }
}

/// Makes one trial.
pub fn one(plan: &StudyPlan, slot: usize, go_on: &mut dyn FnMut(u32) -> bool) -> Result<StudyTrial, Failure> {
    let bug = || Failure::new(Exit::Bug, format!("the study has no slot {slot}"));
    let (at, seed) = plan.slot(slot).ok_or_else(bug)?;
    let cell = plan.cells.get(at).ok_or_else(bug)?;
    // Only the first seed is looked at in pictures: others look alike, and would fill the file.
    let pictures = if slot < plan.cells.len() { plan.pictures } else { 0 };
    let named = |exit, text: &str| {
        let what = format!("{} on {} under {}, seed {seed}", cell.load, cell.machine, cell.scheme);
        Failure::new(exit, format!("{what}: {text}"))
    };
    let spec = catalogue::spec(cell, seed, pictures).map_err(|text| named(Exit::Usage, &text))?;
    match study::run(&spec, go_on) {
        Ok(outcome) => Ok(catalogue::trial(slot, outcome)),
        Err(wrong @ Wrong::Shape(_)) => Err(named(Exit::Usage, &wrong.to_string())),
        Err(wrong) => Err(named(Exit::Bug, &wrong.to_string())),
    }
}
