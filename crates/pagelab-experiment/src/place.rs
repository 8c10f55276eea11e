//! Places where the trials of an experiment are carried out: this machine, the simulator, and guests.

use std::collections::VecDeque;
use std::num::NonZero;
use std::time::Duration;

use pagelab_model::experiment::{Plan, Trial};
use pagelab_model::simulation::MemoryPicture;
use pagelab_runfile::Error;

/// A place where trials are carried out.
pub trait Place {
    /// Checks that the plan can be carried out here; the error states the obstacle and the remedy.
    fn check_plan(&self, plan: &Plan) -> Result<(), String>;

    /// Number of trials at the same time, for a number of due ones: on a host one, since trials disturb each
    /// other; in the simulator one for each processor; of guests as many as memory holds.
    fn lanes(&self, _due: usize) -> NonZero<usize> {
        NonZero::<usize>::MIN
    }

    /// The same place for threads, if its lanes are threads; `None`: trials run on the caller's thread, with
    /// which their processes die.
    fn shared(&self) -> Option<&(dyn Place + Sync)> {
        None
    }

    /// Whether the time of a trial is measured: then it estimates the remaining time.
    fn has_time(&self) -> bool {
        true
    }

    /// Maximum wait of completed trials for the file: zero where a trial takes long to repeat.
    fn batch_interval(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the series of a slot stay in memory after they were stored: those that the session shows.
    fn keeps_series(&self, _slot: usize) -> bool {
        true
    }

    /// Prepares the due trials.
    fn prepare(&self, _due: &[usize], _report: EventSink<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Carries out the trial of a slot. `keep_going` receives its progress in thousandths, and returns
    /// whether to continue; a stopped trial is discarded, or has that end.
    fn carry_out(
        &self,
        slot: usize,
        keep_going: &mut dyn FnMut(u32) -> bool,
    ) -> Result<FinishedTrial, LostTrial>;

    /// Takes from the due trials those that are carried out next and together: on a host one, of guests those
    /// that share a boot.
    fn take_group(&self, due: &mut VecDeque<usize>) -> Vec<usize> {
        due.pop_front().into_iter().collect()
    }

    /// Carries out the trials of a group in order. `report` receives each start and end, and returns whether
    /// to continue.
    fn carry_out_group(
        &self,
        group: &[usize],
        keep_going: &mut dyn FnMut(u32) -> bool,
        report: &mut dyn FnMut(GroupEvent) -> bool,
    ) -> Result<(), LostTrial> {
        for &slot in group {
            if !report(GroupEvent::Started(slot)) {
                break;
            }
            let finished = self.carry_out(slot, keep_going)?;
            if !report(GroupEvent::Ended(Box::new(finished))) {
                break;
            }
        }
        Ok(())
    }

    /// Whether an earlier trial of the file is the same as one carried out here and now: trials that differ
    /// for another reason than their noise cannot be mixed. A place with noise cannot know.
    fn is_same_as_before(
        &self,
        _earlier: &Trial,
        _keep_going: &mut dyn FnMut(u32) -> bool,
    ) -> Result<bool, LostTrial> {
        Ok(true)
    }

    /// Time of a trial before one like it has run, if the plan states it.
    fn expected_time(&self, _slot: usize) -> Option<Duration> {
        None
    }

    /// Undoes the preparation.
    fn finish(&self, _report: EventSink<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// Checks that a plan is the one that this version builds from its recipe, or a cut of it.
pub fn check_same_plan(plan: &Plan, own: &Plan) -> Result<(), String> {
    if plan.is_cut_of(own) {
        return Ok(());
    }
    let text = "this version builds a different plan from its recipe; hint: use the version that started \
        it, or start a new run";
    Err(text.to_owned())
}

/// A trial, and its events and pictures for the run file.
#[derive(Debug)]
pub struct FinishedTrial {
    /// The trial; its times and its number of pictures are set by the engine.
    pub trial: Trial,
    /// Its events.
    pub events: Vec<PlaceEvent>,
    /// Its pictures of memory.
    pub pictures: Vec<MemoryPicture>,
}

impl From<Trial> for FinishedTrial {
    fn from(trial: Trial) -> FinishedTrial {
        FinishedTrial { trial, events: Vec::new(), pictures: Vec::new() }
    }
}

/// An event of a trial that is carried out in a group.
#[derive(Debug)]
pub enum GroupEvent {
    /// The trial of this slot began.
    Started(usize),
    /// Its guest boots, which may take this long.
    Booting(usize, Duration),
    /// Its guest has booted.
    Booted(usize),
    /// A trial ended.
    Ended(Box<FinishedTrial>),
}

/// An event of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceEvent {
    /// Its kind in the run file.
    pub kind: &'static str,
    /// The loss, in a phrase without a trailing dot.
    pub text: String,
    /// Whether it is also a note for the user.
    pub is_note: bool,
}

/// Receiver of the events of a place.
pub type EventSink<'s> = &'s mut dyn FnMut(PlaceEvent) -> Result<(), Error>;

/// A trial without a result because the place failed, as opposed to a trial that ended badly. It ends the
/// experiment, and is never repeated silently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostTrial {
    /// The kind of failure.
    pub kind: LossKind,
    /// The trial and the reason.
    pub reason: String,
}

/// Kind of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// The place does not accept its configuration.
    Rejected,
    /// This machine does not have the place.
    NotAvailable,
    /// The disk of this machine is full.
    DiskFull,
    /// A defect of the place.
    Defect,
}
