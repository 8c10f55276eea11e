//! Observer of a boot that carries out trials: each step is a trial, and is passed on when it ends.

use std::io;

use pagelab_experiment::place::GroupEvent;
use pagelab_guest::boot::GuestObserver;
use pagelab_guest::console::ConsoleTail;
use pagelab_guest::outcome::StepEnd;

use crate::trial_end;

/// The signal number of a stop that no signal requested: a trial of another lane failed, or the file.
const STOP_WITHOUT_SIGNAL: i32 = 15;

/// Receiver of what happens to the trials of a boot. Step 0 of the job writes the recipe.
pub struct BootObserver<'o> {
    slots: &'o [usize],
    is_memory_varied: bool,
    keep_going: &'o mut dyn FnMut(u32) -> bool,
    report: &'o mut dyn FnMut(GroupEvent) -> bool,
    stop_signal: &'o dyn Fn() -> Option<i32>,
    console: ConsoleTail,
    /// Trials that have ended.
    pub ended: usize,
    is_refused: bool,
}

impl<'o> BootObserver<'o> {
    /// An observer of a boot for these slots.
    pub fn new(
        slots: &'o [usize],
        is_memory_varied: bool,
        keep_going: &'o mut dyn FnMut(u32) -> bool,
        report: &'o mut dyn FnMut(GroupEvent) -> bool,
        stop_signal: &'o dyn Fn() -> Option<i32>,
    ) -> BootObserver<'o> {
        let console = ConsoleTail::default();
        BootObserver {
            slots,
            is_memory_varied,
            keep_going,
            report,
            stop_signal,
            console,
            ended: 0,
            is_refused: false,
        }
    }

    /// The first trial begins with the boot: its time is what a trial costs.
    pub fn start_first(&mut self) {
        self.start(0);
    }

    fn start(&mut self, trial: usize) {
        if let Some(&slot) = self.slots.get(trial) {
            self.is_refused |= !(self.report)(GroupEvent::Started(slot));
        }
    }
}

impl GuestObserver for BootObserver<'_> {
    fn on_console(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.console.push_bytes(bytes);
        Ok(())
    }

    fn on_step_started(&mut self, step: usize) {
        if step > 1 {
            self.start(step - 1);
        }
    }

    fn on_step_ended(&mut self, step: usize, end: &StepEnd) {
        let Some(&slot) = step.checked_sub(1).and_then(|trial| self.slots.get(trial)) else { return };
        let finished = trial_end::of_step(slot, end, self.console.tail(), self.is_memory_varied);
        self.ended += 1;
        self.is_refused |= !(self.report)(GroupEvent::Ended(Box::new(finished)));
    }

    fn stop_signal(&mut self) -> Option<i32> {
        let is_over = self.is_refused || !(self.keep_going)(0);
        (self.stop_signal)().or(is_over.then_some(STOP_WITHOUT_SIGNAL))
    }
}
