//! The engine of experiments: due trials of a plan, at a place, into a run file.
//!
//! It knows no place. Preflight, gate, guard and control groups belong to the host ([`crate::host_place`]).

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pagelab_model::experiment::{
    Experiment, MeasureHead, Plan, ScheduleSlot, Trial, TrialEnd, TrialRole, measures,
};
use pagelab_model::run::{ClockReading, Run, RunEvent, StreamHeader};
use pagelab_model::simulation::MemoryPicture;
use pagelab_runfile::{Error, RunWriter, StreamId};
use pagelab_sys::clock;

use crate::early_end::{
    DroppedVariants, EarlyEndCheck, EarlyEndDecision, TrialTimes, drop_variants_without_huge_pages,
};
use crate::place::{FinishedTrial, GroupEvent, LossKind, LostTrial, Place, PlaceEvent};

/// Number of trials without a result after which the other trials of that workload are skipped.
const FRUITLESS_TRIALS_MIN: usize = 2;

/// Progress event.
#[derive(Debug)]
pub enum SessionEvent<'n> {
    /// A note for the user.
    Note(&'n str),
    /// A trial begins: its number from 1, the total; remaining time, if known.
    TrialStarted {
        /// Its slot.
        slot: usize,
        /// Trials that have ended and are not repeated.
        done: usize,
        /// From 1 on.
        number: usize,
        /// Total number of trials, finished and remaining.
        total: usize,
        /// The workload's name.
        workload: &'n str,
        /// The variant's name.
        variant: &'n str,
        /// The counted round, from 1; `None` for a warm-up.
        round: Option<u32>,
        /// For this trial and all later ones: an estimate, or the most if the experiment may end early.
        remaining_time: Option<Duration>,
    },
    /// The guest of a trial boots, or has booted.
    GuestBoot {
        /// The slot of the trial.
        slot: usize,
        /// How long it may take; `None`: it has booted.
        limit: Option<Duration>,
    },
    /// Thousandths of the trials of this session, including those in progress.
    Progress(u64),
    /// A trial ended.
    TrialEnded(&'n Trial),
}

/// Why an experiment did not begin, or ended before its last trial, other than by a signal.
#[derive(Debug)]
pub enum ExperimentError {
    /// The place rejects the plan, or the trials of the earlier session.
    Rejected(String),
    /// The run file cannot be written.
    NotWritten(Error),
    /// A trial was lost.
    Lost(LostTrial),
}

impl From<Error> for ExperimentError {
    fn from(error: Error) -> ExperimentError {
        ExperimentError::NotWritten(error)
    }
}

impl std::fmt::Display for ExperimentError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExperimentError::NotWritten(error) => error.fmt(formatter),
            ExperimentError::Rejected(reason) | ExperimentError::Lost(LostTrial { reason, .. }) => {
                formatter.write_str(reason)
            }
        }
    }
}

/// The signal that requested a stop, if any.
pub type StopRequest<'s> = &'s (dyn Fn() -> Option<i32> + Sync);

/// A running experiment.
pub struct Engine<'e> {
    plan: &'e Plan,
    place: &'e dyn Place,
    stop: StopRequest<'e>,
    journal: Journal<'e>,
    on_event: &'e mut dyn FnMut(&SessionEvent<'_>),
    trials: BTreeMap<usize, Trial>,
    /// Heads of measures, shared by all trials.
    heads: HashSet<Arc<MeasureHead>>,
    times: TrialTimes,
    /// Trials that run, and when they began; empty at a place without time.
    running: BTreeMap<usize, u64>,
    retried: Vec<usize>,
    early_end: EarlyEndCheck,
    /// The plan without the rounds that an early end left out.
    cut_plan: Option<Plan>,
}

impl<'e> Engine<'e> {
    /// An engine for a plan. Without a writer nothing is stored.
    pub fn new(
        (plan, place): (&'e Plan, &'e dyn Place),
        writer: Option<&'e mut RunWriter>,
        clock: RunClock,
        stop: StopRequest<'e>,
        on_event: &'e mut dyn FnMut(&SessionEvent<'_>),
    ) -> Engine<'e> {
        Engine {
            plan,
            place,
            stop,
            journal: Journal {
                plan,
                writer,
                clock,
                streams: BTreeMap::new(),
                batch_interval: place.batch_interval(),
                batch: Vec::new(),
                batch_began: Instant::now(),
            },
            on_event,
            trials: BTreeMap::new(),
            heads: HashSet::new(),
            times: TrialTimes::default(),
            running: BTreeMap::new(),
            retried: Vec::new(),
            early_end: EarlyEndCheck::default(),
            cut_plan: None,
        }
    }

    /// Adds the trials of an earlier session of the file. A trial that was stopped or lost is repeated.
    pub fn resume_from(&mut self, earlier: &Experiment) {
        for trial in earlier.trials.iter().filter(|trial| !trial.end.is_repeated()) {
            self.record_time(trial);
            let shared = self.share_heads(trial.clone());
            self.keep_trial(shared);
        }
    }

    /// Runs the due trials, until all are done or a stop is requested.
    pub fn run_due_trials(&mut self) -> Result<(), ExperimentError> {
        let mut due: VecDeque<usize> = self.due_slots().collect();
        let place = self.place;
        place.prepare(due.make_contiguous(), &mut |event| self.report_event(event))?;
        let outcome = match place.shared() {
            Some(shared) => run_in_lanes(self, shared, due),
            None => self.run_alone(due),
        };
        // Completed trials are stored after any end of the session.
        let written = self.journal.write_batch(true);
        outcome?;
        written?;
        Ok(place.finish(&mut |event| self.report_event(event))?)
    }

    /// The trials of all sessions, by slot, and the number of those that are left.
    pub fn into_trials(self) -> (Vec<Trial>, usize) {
        let left = self.due_slots().count();
        (self.trials.into_values().collect(), left)
    }

    /// Runs one trial after the other on this thread.
    fn run_alone(&mut self, mut due: VecDeque<usize>) -> Result<(), ExperimentError> {
        // A session that was killed may have completed the last round that it needed.
        if self.end_early(&mut due)? {
            return Ok(());
        }
        while let Some(slot) = due.pop_front() {
            if (self.stop)().is_some() {
                break;
            }
            self.report_start(slot, &due);
            let stop = self.stop;
            let finished = self.place.carry_out(slot, &mut |_| stop().is_none());
            let end = self.store_timed_trial(finished.map_err(ExperimentError::Lost)?)?;
            if end == TrialEnd::Stopped {
                break;
            }
            self.plan_again(slot, &end, &mut due)?;
            if self.end_early(&mut due)? {
                break;
            }
        }
        Ok(())
    }

    /// Ends the experiment if its plan permits that after this trial, and cuts the rest of the plan. Variants
    /// that got no huge pages have no further trials.
    fn end_early(&mut self, due: &mut VecDeque<usize>) -> Result<bool, ExperimentError> {
        if due.is_empty() {
            return Ok(false);
        }
        let dropped = drop_variants_without_huge_pages(self.current_plan(), self.trials.values());
        if let Some(DroppedVariants { plan, reasons, is_end }) = dropped {
            self.journal.store_plan(&plan)?;
            due.retain(|slot| plan.schedule.get(*slot).is_some_and(|slot| plan.keeps(slot)));
            self.cut_plan = Some(plan);
            for text in reasons {
                self.report_event(PlaceEvent { kind: "variant dropped", text, is_note: true })?;
            }
            if is_end {
                return Ok(true);
            }
        }
        let plan = self.cut_plan.as_ref().unwrap_or(self.plan);
        let decision = self.early_end.check_after_trial(plan, self.trials.values(), &self.times);
        let Some(EarlyEndDecision { plan, reason }) = decision else { return Ok(false) };
        self.journal.store_plan(&plan)?;
        self.cut_plan = Some(plan);
        self.report_event(PlaceEvent { kind: "early end", text: reason, is_note: true })?;
        Ok(true)
    }

    /// Slots without a trial of a variant that still runs.
    fn due_slots(&self) -> impl Iterator<Item = usize> + '_ {
        let plan = self.current_plan();
        let is_due = |(at, slot): &(usize, ScheduleSlot)| plan.keeps(*slot) && !self.trials.contains_key(at);
        plan.schedule.iter().enumerate().filter(is_due).map(|(at, _)| at)
    }

    /// Whether an early end left out this slot.
    fn is_left_out(&self, slot: usize) -> bool {
        self.cut_plan.as_ref().is_some_and(|plan| slot >= plan.schedule.len())
    }

    fn current_plan(&self) -> &Plan {
        self.cut_plan.as_ref().unwrap_or(self.plan)
    }

    /// Stores a trial, and returns its end.
    pub(crate) fn store_trial(&mut self, finished: FinishedTrial) -> Result<TrialEnd, ExperimentError> {
        for event in finished.events {
            self.report_event(event)?;
        }
        let mut trial = self.share_heads(finished.trial);
        trial.pictures = finished.pictures.len();
        let end = trial.end.clone();
        self.journal.add_trial(&trial, &finished.pictures)?;
        self.record_time(&trial);
        (self.on_event)(&SessionEvent::TrialEnded(&trial));
        if end != TrialEnd::Stopped {
            self.keep_trial(trial);
        }
        Ok(end)
    }

    /// Stores a trial that ended now and whose start was reported.
    fn store_timed_trial(&mut self, mut finished: FinishedTrial) -> Result<TrialEnd, ExperimentError> {
        let now_ns = self.journal.clock.now_ns();
        let began_ns = self.running.remove(&finished.trial.slot).unwrap_or(now_ns);
        (finished.trial.began_ns, finished.trial.ended_ns) = (began_ns, now_ns);
        self.store_trial(finished)
    }

    fn keep_trial(&mut self, mut trial: Trial) {
        if !self.place.keeps_series(trial.slot) {
            trial.series = Vec::new();
        }
        self.trials.insert(trial.slot, trial);
    }

    fn share_heads(&mut self, mut trial: Trial) -> Trial {
        for measure in &mut trial.measures {
            match self.heads.get(&measure.head) {
                Some(known) => measure.head = known.clone(),
                None => _ = self.heads.insert(measure.head.clone()),
            }
        }
        trial
    }

    /// Plans a rejected or lost trial once more, after all others, and skips workloads without results.
    fn plan_again(
        &mut self,
        slot: usize,
        end: &TrialEnd,
        due: &mut VecDeque<usize>,
    ) -> Result<(), ExperimentError> {
        match end {
            TrialEnd::Rejected(_) | TrialEnd::Lost(_) if !self.retried.contains(&slot) => {
                self.retried.push(slot);
                due.push_back(slot);
                Ok(())
            }
            TrialEnd::InvalidResult(why) => self.skip_fruitless(slot, why, due),
            _ => Ok(()),
        }
    }

    /// Removes the other trials of a workload, once two of its trials ended well without a result, for the
    /// same reason, and none had one: a pattern that never matches would waste all trials.
    fn skip_fruitless(
        &mut self,
        slot: usize,
        reason: &str,
        due: &mut VecDeque<usize>,
    ) -> Result<(), ExperimentError> {
        let workload_of = |slot: usize| self.plan.schedule.get(slot).map(|slot| slot.workload);
        let workload = workload_of(slot);
        let of_workload = self.trials.values().filter(|trial| workload_of(trial.slot) == workload);
        let ends: Vec<&TrialEnd> = of_workload.map(|trial| &trial.end).collect();
        let is_same_failure = |end: &&TrialEnd| matches!(end, TrialEnd::InvalidResult(of) if of == reason);
        let before = due.len();
        if ends.len() < FRUITLESS_TRIALS_MIN || !ends.iter().all(is_same_failure) {
            return Ok(());
        }
        due.retain(|slot| workload_of(*slot) != workload);
        let count = before - due.len();
        let name = workload.and_then(|workload| self.plan.workloads.get(workload));
        if let Some(name) = name.map(|workload| &workload.name).filter(|_| count > 0) {
            let text = format!(
                "{name}: no result from its first {} trials: {reason}; skipping the other {count}",
                ends.len()
            );
            self.report_event(PlaceEvent { kind: "trial", text, is_note: true })?;
        }
        Ok(())
    }

    /// Stores an event, and reports it if it is a note.
    pub(crate) fn report_event(&mut self, event: PlaceEvent) -> Result<(), Error> {
        if event.is_note {
            (self.on_event)(&SessionEvent::Note(&event.text));
        }
        self.journal.add_event(event.kind, event.text)
    }

    fn report_start(&mut self, slot: usize, due: &VecDeque<usize>) {
        let plan = self.plan;
        self.running.insert(slot, self.journal.clock.now_ns());
        let Some(planned) = plan.schedule.get(slot) else { return };
        let remaining_time = self.estimate_remaining(due);
        let total = plan.schedule.len();
        let is_done = |trial: &&Trial| !matches!(trial.end, TrialEnd::Lost(_) | TrialEnd::Rejected(_));
        let done = self.trials.values().filter(is_done).count();
        (self.on_event)(&SessionEvent::TrialStarted {
            slot,
            done,
            // Trials that a group took and that have not begun are neither due nor running.
            number: (self.trials.len() + self.running.len()).min(total),
            total,
            workload: plan.workloads.get(planned.workload).map_or("", |workload| &workload.name),
            variant: plan.variants.get(planned.variant).map_or("", |variant| &variant.name),
            round: (planned.role != TrialRole::WarmUp).then(|| planned.round.saturating_add(1)),
            remaining_time,
        });
    }

    fn record_time(&mut self, trial: &Trial) {
        if let Some(slot) = self.plan.schedule.get(trial.slot).filter(|_| self.place.has_time()) {
            self.times.record(slot, trial);
        }
    }

    /// Estimated time for the trials that have no result, and for those that are repeated, within the time
    /// budget. A group may hold trials that neither run nor are due.
    fn estimate_remaining(&self, due: &VecDeque<usize>) -> Option<Duration> {
        let repeated = due.iter().copied().filter(|slot| self.trials.contains_key(slot));
        let slots = self.due_slots().chain(repeated);
        let all = slots.map(|slot| self.expected_time(slot)).sum::<Option<Duration>>()?;
        let all = all / u32::try_from(self.running.len()).unwrap_or(1).max(1);
        let budget = self.plan.early_end.and_then(|rule| rule.time_budget_ns).map(Duration::from_nanos);
        Some(budget.map_or(all, |budget| all.min(budget.saturating_sub(self.times.total()))))
    }

    /// Expected time of a slot: from the trials so far, else from the plan.
    fn expected_time(&self, slot: usize) -> Option<Duration> {
        let measured = self.times.expect(self.plan.schedule.get(slot)?);
        measured.or_else(|| self.place.expected_time(slot))
    }
}

/// Measures that are also raw samples of the run file, for SQL.
const SAMPLED_MEASURES: [&str; 5] =
    [measures::WALL, measures::CPU, measures::MERIT, measures::PEAK_MEMORY, measures::HUGE_BYTES];

/// Measure, workload, variant, and whether it is of a twin.
type StreamKey = (&'static str, usize, usize, bool);

/// The file, if there is one.
struct Journal<'e> {
    plan: &'e Plan,
    writer: Option<&'e mut RunWriter>,
    clock: RunClock,
    streams: BTreeMap<StreamKey, StreamId>,
    /// Maximum wait of trials in the batch.
    batch_interval: Duration,
    batch: Vec<Trial>,
    /// When the first trial of the batch was added.
    batch_began: Instant,
}

impl Journal<'_> {
    pub fn add_event(&mut self, kind: &str, text: String) -> Result<(), Error> {
        let at_ns = self.clock.now_ns();
        match &mut self.writer {
            Some(writer) => writer.add_event(&RunEvent { at_ns, kind: kind.to_owned(), text }),
            None => Ok(()),
        }
    }

    fn store_plan(&mut self, plan: &Plan) -> Result<(), Error> {
        let at_ns = self.clock.now_ns();
        self.writer.as_mut().map_or(Ok(()), |writer| writer.add_plan(at_ns, plan))
    }

    /// Stores the pictures of a trial, and the trial, or adds it to the batch.
    pub fn add_trial(&mut self, trial: &Trial, pictures: &[MemoryPicture]) -> Result<(), Error> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let at_ns = self.clock.now_ns();
        pictures.iter().try_for_each(|picture| writer.add_picture(at_ns, trial.slot, picture))?;
        if self.batch_interval.is_zero() {
            writer.add_trial(trial)?;
            self.add_samples(trial)?;
            // Lost measurements would take long to repeat.
            return self.writer.as_mut().map_or(Ok(()), |writer| writer.flush());
        }
        if self.batch.is_empty() {
            self.batch_began = Instant::now();
        }
        self.batch.push(trial.clone());
        self.write_batch(false)
    }

    /// Time until the batch must be written.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.batch_interval.saturating_sub(self.batch_began.elapsed());
        (!self.batch.is_empty()).then_some(left)
    }

    /// Stores the batch if it is due, or in any case. Simulated trials have the time of writing.
    pub fn write_batch(&mut self, in_any_case: bool) -> Result<(), Error> {
        let is_due = self.time_left().is_some_and(|left| in_any_case || left.is_zero());
        let Some(writer) = self.writer.as_mut().filter(|_| is_due) else { return Ok(()) };
        let at_ns = self.clock.now_ns();
        let mut batch = std::mem::take(&mut self.batch);
        batch.iter_mut().for_each(|trial| (trial.began_ns, trial.ended_ns) = (at_ns, at_ns));
        writer.add_trials(at_ns, &batch)?;
        writer.request_commit();
        Ok(())
    }

    fn add_samples(&mut self, trial: &Trial) -> Result<(), Error> {
        let plan = self.plan;
        let (Some(writer), Some(slot)) = (&mut self.writer, plan.schedule.get(trial.slot)) else {
            return Ok(());
        };
        if trial.end != TrialEnd::Done || slot.role == TrialRole::WarmUp {
            return Ok(());
        }
        for name in SAMPLED_MEASURES {
            let Some(measure) = trial.measures.iter().find(|measure| measure.name == name) else { continue };
            let Ok(value) = measure.value else { continue };
            let key = (name, slot.workload, slot.variant, slot.role == TrialRole::Twin);
            let stream = match self.streams.get(&key) {
                Some(stream) => *stream,
                None => {
                    let mut labels = vec![
                        ("workload".to_owned(), plan.workloads[slot.workload].name.clone()),
                        ("variant".to_owned(), plan.variants[slot.variant].name.clone()),
                    ];
                    if slot.role == TrialRole::Twin {
                        labels.push(("role".to_owned(), "twin".to_owned()));
                    }
                    let head = StreamHeader { name: name.to_owned(), unit: measure.unit.clone(), labels };
                    let stream = writer.add_stream(&head)?;
                    self.streams.insert(key, stream);
                    stream
                }
            };
            writer.add_sample(stream, trial.ended_ns, value)?;
        }
        Ok(())
    }
}

const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

struct LanePool<'p> {
    place: &'p (dyn Place + Sync),
    stop: StopRequest<'p>,
    due: Mutex<VecDeque<usize>>,
    /// Thousandths of the trial of each lane.
    progress: Vec<AtomicU32>,
    lost: Mutex<Option<LostTrial>>,
    is_failed: AtomicBool,
}

/// Runs the due trials in as many lanes as the place has.
fn run_in_lanes(
    engine: &mut Engine<'_>,
    place: &(dyn Place + Sync),
    mut due: VecDeque<usize>,
) -> Result<(), ExperimentError> {
    let lanes = place.lanes(due.len()).get();
    if lanes == 1 && engine.end_early(&mut due)? {
        return Ok(());
    }
    let pool = LanePool {
        place,
        stop: engine.stop,
        due: Mutex::new(due),
        progress: (0..lanes).map(|_| AtomicU32::new(0)).collect(),
        lost: Mutex::new(None),
        is_failed: AtomicBool::new(false),
    };
    // A trial that was rejected at the end becomes due again after its lane has ended.
    while !pool.is_over() && !pool.due().is_empty() {
        pool.run(engine)?;
    }
    let lost = pool.lost.into_inner().unwrap_or_else(PoisonError::into_inner);
    lost.map_or(Ok(()), |lost| Err(ExperimentError::Lost(lost)))
}

impl LanePool<'_> {
    /// Runs trials until none is due.
    fn run(&self, engine: &mut Engine<'_>) -> Result<(), ExperimentError> {
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::sync_channel(self.progress.len() * 2);
            for lane in &self.progress {
                let send = send.clone();
                scope.spawn(move || self.work(lane, &send));
            }
            drop(send);
            // At its end the receiver is dropped, which releases lanes that wait to send a trial.
            let received = self.receive_trials(engine, receive);
            if received.is_err() {
                self.is_failed.store(true, Ordering::Relaxed);
            }
            received
        })
    }

    fn due(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_failed.load(Ordering::Relaxed) || (self.stop)().is_some()
    }

    /// Carries out trials until none is due.
    fn work(&self, progress: &AtomicU32, send: &SyncSender<GroupEvent>) {
        let mut keep_going = |permille: u32| {
            progress.store(permille.min(1000), Ordering::Relaxed);
            !self.is_over()
        };
        let has_time = self.place.has_time();
        // Trials that end after a stop were interrupted, and are discarded.
        let mut report = |event: GroupEvent| {
            let is_sent = !matches!(event, GroupEvent::Started(_)) || has_time;
            let is_open = !self.is_over() && (!is_sent || send.send(event).is_ok());
            progress.store(0, Ordering::Relaxed);
            is_open
        };
        loop {
            // Not in a condition, which would hold the lock.
            let group = self.place.take_group(&mut self.due());
            if group.is_empty() || self.is_over() {
                return;
            }
            if let Err(lost) = self.place.carry_out_group(&group, &mut keep_going, &mut report) {
                self.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(lost);
                self.is_failed.store(true, Ordering::Relaxed);
            }
        }
    }

    fn receive_trials(
        &self,
        engine: &mut Engine<'_>,
        receive: Receiver<GroupEvent>,
    ) -> Result<(), ExperimentError> {
        let mut finished = 0u64;
        loop {
            let wait =
                engine.journal.time_left().map_or(PROGRESS_INTERVAL, |left| left.min(PROGRESS_INTERVAL));
            match receive.recv_timeout(wait) {
                Ok(GroupEvent::Started(slot)) => engine.report_start(slot, &self.due()),
                Ok(GroupEvent::Booting(slot, limit)) => {
                    (engine.on_event)(&SessionEvent::GuestBoot { slot, limit: Some(limit) });
                }
                Ok(GroupEvent::Booted(slot)) => {
                    (engine.on_event)(&SessionEvent::GuestBoot { slot, limit: None });
                }
                // A lane may have taken a trial before the decision that left it out.
                Ok(GroupEvent::Ended(trial)) if engine.is_left_out(trial.trial.slot) => {}
                Ok(GroupEvent::Ended(trial)) => {
                    finished += 1;
                    let slot = trial.trial.slot;
                    let end = match self.place.has_time() {
                        true => engine.store_timed_trial(*trial)?,
                        false => engine.store_trial(*trial)?,
                    };
                    engine.plan_again(slot, &end, &mut self.due())?;
                    // With several lanes trials of later rounds are under way.
                    if self.progress.len() == 1 && engine.end_early(&mut self.due())? {
                        self.due().clear();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let work: u64 =
                        self.progress.iter().map(|at| u64::from(at.load(Ordering::Relaxed))).sum();
                    (engine.on_event)(&SessionEvent::Progress(finished * 1000 + work));
                    engine.journal.write_batch(false)?;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

impl LostTrial {
    /// A loss by a defect.
    pub fn by_defect(reason: impl Into<String>) -> LostTrial {
        LostTrial { kind: LossKind::Defect, reason: reason.into() }
    }
}

/// The clock of a run, which continues where an earlier session of its file ended.
#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    /// The time of the run at `at_ns`.
    base_ns: u64,
    at_ns: u64,
}

impl RunClock {
    /// Clock of a run that began then.
    pub fn from_start(started: ClockReading) -> RunClock {
        RunClock { base_ns: 0, at_ns: started.boottime_ns }
    }

    /// Clock of a resumed run. In the same boot its clock continues; after a reboot, which resets the clock
    /// of boot time, times continue after the last one.
    pub fn from_resumed(run: &Run, now: ClockReading) -> RunClock {
        let started = run.manifest.started;
        let last_ns = last_recorded_ns(run);
        let by_boot = now.boottime_ns.checked_sub(started.boottime_ns);
        let by_wall = now.realtime_ns.saturating_sub(started.realtime_ns);
        // The wall clock may have been set by some seconds, but not by the time between two boots.
        let is_same_boot = by_boot.is_some_and(|by_boot| by_boot.abs_diff(by_wall) < 60_000_000_000);
        let base_ns = by_boot.filter(|&ns| is_same_boot && ns > last_ns).unwrap_or(last_ns + 1);
        RunClock { base_ns, at_ns: now.boottime_ns }
    }

    /// The time since the run's start.
    pub fn now_ns(&self) -> u64 {
        self.base_ns.saturating_add(clock::boottime_ns().saturating_sub(self.at_ns))
    }
}

fn last_recorded_ns(run: &Run) -> u64 {
    let events = run.events.iter().map(|event| event.at_ns);
    let samples = run.streams.iter().filter_map(|stream| stream.at_ns.last().copied());
    let trials = run.experiment.iter().flat_map(|of| of.trials.iter().map(|trial| trial.ended_ns));
    events.chain(samples).chain(trials).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use pagelab_model::machine::Machine;
    use pagelab_model::run::{Manifest, RunEnd, RunEvent};
    use pagelab_model::{PageSize, Snapshot};

    use super::*;

    fn run(started: ClockReading, last_ns: u64) -> Run {
        let snapshot = Snapshot::new_unread("test", PageSize::DEFAULT);
        let manifest = Manifest {
            kind: "run".to_owned(),
            tool_version: String::new(),
            command_line: Vec::new(),
            seed: None,
            started,
            machine: Machine::new_unread(PageSize::DEFAULT),
            settings: snapshot.settings,
        };
        let mut run = Run::new("test", manifest, RunEnd::NotClosed);
        run.events.push(RunEvent { at_ns: last_ns, kind: String::new(), text: String::new() });
        run
    }

    #[test]
    fn times_go_on_in_the_same_boot_and_in_another() {
        let s = 1_000_000_000;
        let started = ClockReading { realtime_ns: 5000 * s, boottime_ns: 100 * s };
        let same = ClockReading { realtime_ns: 5060 * s, boottime_ns: 160 * s };
        assert_eq!(RunClock::from_resumed(&run(started, 20 * s), same).base_ns, 60 * s);
        let rebooted = ClockReading { realtime_ns: 9000 * s, boottime_ns: 30 * s };
        assert_eq!(RunClock::from_resumed(&run(started, 20 * s), rebooted).base_ns, 20 * s + 1);
        let longer_up = ClockReading { realtime_ns: 900_000 * s, boottime_ns: 300 * s };
        assert_eq!(RunClock::from_resumed(&run(started, 20 * s), longer_up).base_ns, 20 * s + 1);
        let set_back = ClockReading { realtime_ns: 4000 * s, boottime_ns: 160 * s };
        assert!(RunClock::from_resumed(&run(started, 20 * s), set_back).base_ns > 20 * s);
    }
}
