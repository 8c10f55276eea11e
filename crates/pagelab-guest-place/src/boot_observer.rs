//! Observer of a boot that carries out trials: each step is a trial, and is passed on when it ends.

use std::io;
use std::time::{Duration, Instant};

use pagelab_experiment::place::{GroupEvent, PlaceEvent};
use pagelab_experiment::recipe::RequiredGuest;
use pagelab_experiment::trial::ActivitySample;
use pagelab_guest::boot::GuestObserver;
use pagelab_guest::console::ConsoleTail;
use pagelab_guest::disk;
use pagelab_guest::outcome::{FirstMessageCost, StepEnd};
use pagelab_model::experiment::TrialEnd;

use crate::host_activity::GuestProcesses;
use crate::trial_end;

/// The signal number of a stop that no signal requested: a trial of another lane failed, or the file.
const STOP_WITHOUT_SIGNAL: i32 = 15;

/// Receiver of what happens to the trials of a boot. Step 0 of the job writes the recipe.
pub struct BootObserver<'o> {
    slots: &'o [usize],
    is_oom_result: bool,
    keep_going: &'o mut dyn FnMut(u32) -> bool,
    report: &'o mut dyn FnMut(GroupEvent) -> bool,
    stop_signal: &'o dyn Fn() -> Option<i32>,
    /// Time limits of the trials.
    limits: Vec<Duration>,
    /// Console since the current trial began.
    console: ConsoleTail,
    began: Instant,
    processes: &'o GuestProcesses,
    /// Of the host, when the current trial began.
    activity: ActivitySample,
    /// The number of QEMU, once it runs.
    qemu: Option<u32>,
    notes: Vec<PlaceEvent>,
    /// Whether the agent has answered.
    pub has_booted: bool,
    /// Trials that have ended.
    pub ended: usize,
    /// Whether the current trial exceeded its limit, so that the guest is ended.
    pub is_overdue: bool,
    is_refused: bool,
    /// Whether the guest has disks of the host.
    has_disks: bool,
    /// Whether a trial failed while the host had no space for a disk: its end says nothing.
    pub is_host_full: bool,
}

impl<'o> BootObserver<'o> {
    /// An observer of a boot for these slots.
    pub fn new(
        slots: &'o [usize],
        (guest, processes): (&RequiredGuest, &'o GuestProcesses),
        keep_going: &'o mut dyn FnMut(u32) -> bool,
        report: &'o mut dyn FnMut(GroupEvent) -> bool,
        (stop_signal, limits): (&'o dyn Fn() -> Option<i32>, Vec<Duration>),
    ) -> BootObserver<'o> {
        BootObserver {
            slots,
            is_oom_result: guest.is_oom_result,
            has_disks: guest.swap.is_some() || guest.disk.is_some(),
            is_host_full: false,
            keep_going,
            report,
            stop_signal,
            limits,
            console: ConsoleTail::default(),
            began: Instant::now(),
            processes,
            activity: processes.read_activity(),
            qemu: None,
            notes: Vec::new(),
            has_booted: false,
            ended: 0,
            is_overdue: false,
            is_refused: false,
        }
    }

    /// The end of the console since the current trial began.
    pub fn console(&self) -> &[u8] {
        self.console.tail()
    }

    /// The first trial begins with the boot, which may take this long: its time is what a trial costs.
    pub fn start_first(&mut self, boot_limit: Duration) {
        self.start(0);
        self.report_boot(|slot| GroupEvent::Booting(slot, boot_limit));
    }

    fn report_boot(&mut self, event: impl FnOnce(usize) -> GroupEvent) {
        if let Some(&slot) = self.slots.first() {
            self.is_refused |= !(self.report)(event(slot));
        }
    }

    fn start(&mut self, trial: usize) {
        (self.console, self.began) = (ConsoleTail::default(), Instant::now());
        self.activity = self.processes.read_activity();
        if let Some(&slot) = self.slots.get(trial) {
            self.is_refused |= !(self.report)(GroupEvent::Started(slot));
        }
    }
}

/// QEMU was waited for, since its guest is over.
impl Drop for BootObserver<'_> {
    fn drop(&mut self) {
        if let Some(qemu) = self.qemu {
            self.processes.remove(qemu);
        }
    }
}

impl GuestObserver for BootObserver<'_> {
    fn on_console(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.console.push_bytes(bytes);
        Ok(())
    }

    fn on_started(&mut self, qemu: u32) {
        self.qemu = Some(qemu);
        self.processes.add(qemu);
    }

    fn on_first_message(&mut self, _cost: FirstMessageCost) {
        self.has_booted = true;
        self.report_boot(GroupEvent::Booted);
    }

    fn on_step_started(&mut self, step: usize) {
        if step > 1 {
            self.start(step - 1);
        }
    }

    fn on_step_ended(&mut self, step: usize, end: &StepEnd) {
        let Some(&slot) = step.checked_sub(1).and_then(|trial| self.slots.get(trial)) else { return };
        let mut finished = trial_end::of_step(slot, end, self.console.tail(), self.is_oom_result);
        finished.events.append(&mut self.notes);
        self.processes.flag_busy_host(&mut finished.trial, &self.activity);
        if self.has_disks && finished.trial.end != TrialEnd::Done && disk::is_host_full() {
            (self.is_host_full, self.is_refused) = (true, true);
            return;
        }
        self.ended += 1;
        self.is_refused |= !(self.report)(GroupEvent::Ended(Box::new(finished)));
    }

    fn on_note(&mut self, note: &str) {
        let text = format!("in the guest: {note}");
        self.notes.push(PlaceEvent { kind: "trial", text, is_note: true });
    }

    fn keeps_output(&self) -> bool {
        false
    }

    fn stop_signal(&mut self) -> Option<i32> {
        self.is_overdue = self.limits.get(self.ended).is_some_and(|&limit| self.began.elapsed() > limit);
        let is_over = self.is_overdue || self.is_refused || !(self.keep_going)(0);
        (self.stop_signal)().or(is_over.then_some(STOP_WITHOUT_SIGNAL))
    }
}
