//! This machine as a place: one trial at a time, after a check that the machine is quiet, with a swap file
//! and a model of the processor where they are needed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pagelab_host::guard::{Guard, GuardOptions, GuardSite, Knob, SignalWatch};
use pagelab_model::experiment::{Measure, Plan, ScheduleSlot, Trial, TrialEnd, TrialRole, measures};
use pagelab_model::run::Run;
use pagelab_model::size::format_argument;
use pagelab_packages::apt::FetchObserver;
use pagelab_runfile::Error;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::checksum::{self, ChecksumState, ChecksumTable};
use crate::external::install_dir::{self, InstallState};
use crate::external::{become_subreaper, prepared_data};
use crate::place::{EventSink, FinishedTrial, LostTrial, Place, PlaceEvent, check_same_plan};
use crate::recipe::{
    HogKind, MemoryHog, PageCacheState, SupervisedPlan, ThpMode, Variant, Workload, WorkloadCommand,
};
use crate::resolve::ResolvedExperiment;
use crate::schedule::first_of_each_pair;
use crate::trial::{self, ActivitySample, TrialContext, TrialResult, machine_wide_modes};

/// Duration of the check before the first trial.
const PREFLIGHT_DURATION: Duration = Duration::from_secs(1);

/// Workload and variant.
type Pairing = (usize, usize);

/// This machine.
pub struct HostPlace<'h> {
    context: TrialContext<'h>,
    checksums: RefCell<ChecksumTable>,
    /// Whether it looks at first whether the machine is idle.
    checks_activity: bool,
    /// Measures of a model of a workload under a variant, until they are stored with a trial.
    model_measures: RefCell<BTreeMap<Pairing, Vec<Measure>>>,
    /// Pairings of which the file has the model.
    modelled: BTreeSet<Pairing>,
    /// For each workload the reason why it cannot run: its trials do not begin.
    unavailable_workloads: RefCell<Vec<Option<String>>>,
    earlier_kernel: Option<String>,
}

impl<'h> HostPlace<'h> {
    /// The place. `earlier_run` is the file as found, if it is resumed.
    pub fn new(context: TrialContext<'h>, earlier_run: Option<&Run>) -> HostPlace<'h> {
        let mut place = HostPlace {
            context,
            checksums: RefCell::new(ChecksumTable::from_run(earlier_run)),
            checks_activity: true,
            model_measures: RefCell::default(),
            modelled: BTreeSet::new(),
            unavailable_workloads: RefCell::default(),
            earlier_kernel: earlier_run.and_then(|run| run.manifest.machine.kernel_release.clone().ok()),
        };
        let earlier = earlier_run.and_then(|run| run.experiment.as_ref()).map_or(&[][..], |of| &of.trials);
        for trial in earlier.iter().filter(|trial| trial.end != TrialEnd::Stopped) {
            let Some(slot) = place.slot(trial.slot) else { continue };
            place.record_peak(slot.workload, &trial.measures);
            if trial.measures.iter().any(|of| of.name.starts_with(measures::MODEL_PREFIX)) {
                place.modelled.insert((slot.workload, slot.variant));
            }
        }
        place
    }

    /// This machine in a guest, in which nothing else runs.
    pub fn in_guest(context: TrialContext<'h>) -> HostPlace<'h> {
        HostPlace { checks_activity: false, ..HostPlace::new(context, None) }
    }

    /// Carries out one trial with its preparation, and without a run file.
    pub fn carry_out_alone(&self, slot: usize) -> Result<FinishedTrial, LostTrial> {
        let mut events = Vec::new();
        let mut collect = |event| {
            events.push(event);
            Ok(())
        };
        // Only a receiver of events has errors.
        let _ = self.prepare(&[slot], &mut collect);
        let mut finished = self.carry_out(slot, &mut |_| true)?;
        let _ = self.finish(&mut collect);
        events.append(&mut finished.events);
        Ok(FinishedTrial { events, ..finished })
    }

    fn plan(&self) -> &'h Plan {
        &self.context.resolved.plan
    }

    fn slot(&self, slot: usize) -> Option<ScheduleSlot> {
        self.plan().schedule.get(slot)
    }

    fn names(&self, (workload, variant): Pairing) -> (&'h str, &'h str) {
        let plan = self.plan();
        (&plan.workloads[workload].name, &plan.variants[variant].name)
    }

    fn is_stopped(&self) -> bool {
        (self.context.stop_signal)().is_some()
    }

    fn unavailable_reason(&self, workload: usize) -> Option<String> {
        self.unavailable_workloads.borrow().get(workload).cloned().flatten()
    }

    /// Another kernel than that of the earlier session.
    fn check_kernel(&self) -> Option<PlaceEvent> {
        let (then, here) =
            (self.earlier_kernel.as_ref()?, self.context.machine.kernel_release.as_ref().ok()?);
        let text = format!("the kernel is now Linux {here}, but the run began under Linux {then}");
        (then != here).then_some(PlaceEvent { kind: "kernel", text, is_note: true })
    }

    /// Sets up the external workloads with due trials; those that cannot be set up are reported.
    fn set_up_workloads(&self, due: &[usize], report: EventSink<'_>) -> Result<(), Error> {
        let resolved = self.context.resolved;
        for (at, workload) in resolved.recipe.workloads.iter().enumerate() {
            let is_of_workload = |slot: &&usize| self.slot(**slot).is_some_and(|slot| slot.workload == at);
            let count = due.iter().filter(is_of_workload).count();
            let mut observer = self.context.setup_observer.borrow_mut();
            let set_up = match count {
                0 => Ok(()),
                _ => set_up_workload(resolved, at, &mut **observer),
            };
            if let Err(why) = &set_up {
                let text = format!("{}: {why}; skipping its {count} trials", workload.name);
                report(PlaceEvent { kind: "setup", text, is_note: true })?;
            }
            self.unavailable_workloads.borrow_mut().push(set_up.err());
        }
        Ok(())
    }

    fn check_preflight(&self) -> PlaceEvent {
        let (before, until) = (ActivitySample::read(), Instant::now() + PREFLIGHT_DURATION);
        while Instant::now() < until && !self.is_stopped() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let now = ActivitySample::read();
        let share = now.foreign_share_since(&before, 0);
        let is_quiet = now.busy_share_since(&before, 0).is_none();
        let share = share.map_or("unknown".to_owned(), |share| format!("{:.0} % of a CPU", share * 100.0));
        let text = match is_quiet {
            true => format!("system idle: other processes use {share}"),
            false => format!("system not idle: other processes use {share}; affected trials are flagged"),
        };
        let text = format!("{text} ({})", trial::describe_load());
        PlaceEvent { kind: "preflight", text, is_note: !is_quiet }
    }

    /// Creates the swap file if a due trial needs one: with the largest requested size.
    fn create_swap(&self, due: &[usize]) -> Option<PlaceEvent> {
        let variants = &self.context.resolved.recipe.variants;
        let swap = |slot: &usize| variants.get(self.slot(*slot)?.variant)?.swap_limit;
        let size = due.iter().filter_map(swap).max().filter(|size| size.0 > 0)?;
        let text = self.context.swap_file.borrow_mut().create(&self.context.site, size);
        Some(PlaceEvent { kind: "swap", text, is_note: true })
    }

    /// Runs the model for each workload and variant without a stored model result: before all trials, so that
    /// no trial runs beside it.
    fn run_model(&self, due: &[usize], report: EventSink<'_>) -> Result<(), Error> {
        let Some(model) = self.context.model else { return Ok(()) };
        let slots = due.iter().filter_map(|slot| self.slot(*slot));
        for slot in slots.filter(|slot| slot.role == TrialRole::Measured) {
            let pairing = (slot.workload, slot.variant);
            let is_known =
                self.modelled.contains(&pairing) || self.model_measures.borrow().contains_key(&pairing);
            if is_known || self.unavailable_reason(pairing.0).is_some() {
                continue;
            }
            if self.is_stopped() {
                break;
            }
            let model_result = model(pairing.0, pairing.1);
            if let Err(why) = &model_result {
                let (workload, variant) = self.names(pairing);
                let text = format!("no model result for {workload} under {variant}: {why}");
                report(PlaceEvent { kind: "model", text, is_note: true })?;
            }
            self.model_measures.borrow_mut().insert(pairing, model_result.unwrap_or_default());
        }
        Ok(())
    }

    /// Reason to discard its result, if other trials with the same options had another checksum; a new
    /// checksum is an event.
    fn check_checksum(
        &self,
        pairing: Pairing,
        result: &TrialResult,
        events: &mut Vec<PlaceEvent>,
    ) -> Option<String> {
        let (TrialEnd::Done, Some(sum)) = (&result.end, &result.checksum) else { return None };
        // Advice changes the location of memory, never the computed result.
        let options = self.context.resolved.workload_options(pairing.0, pairing.1);
        let options: Vec<String> = options
            .iter()
            .filter(|(name, _)| name != "advise")
            .map(|(name, value)| format!("--{name} {value}"))
            .collect();
        let key = format!("{} {}", self.names(pairing).0, options.join(" ")).trim().to_owned();
        match self.checksums.borrow_mut().check(&key, sum) {
            ChecksumState::Known => None,
            ChecksumState::New => {
                events.push(checksum::event(&key, sum));
                None
            }
            ChecksumState::Differs(why) => Some(why),
        }
    }

    fn record_peak(&self, workload: usize, trial_measures: &[Measure]) {
        let peak = trial_measures.iter().find(|measure| measure.name == measures::PEAK_MEMORY);
        if let Some(peak) = peak.and_then(|peak| peak.value.as_ref().ok()) {
            let mut peaks = self.context.peak_bytes.borrow_mut();
            let known = peaks.entry(workload).or_default();
            *known = (*known).max(*peak as u64);
        }
    }
}

impl Place for HostPlace<'_> {
    fn check_plan(&self, plan: &Plan) -> Result<(), String> {
        check_same_plan(plan, self.plan())
    }

    fn prepare(&self, due: &[usize], report: EventSink<'_>) -> Result<(), Error> {
        // Orphans of a trial become our children, so that we can wait for them.
        become_subreaper();
        if let Some(event) = self.check_kernel() {
            report(event)?;
        }
        self.set_up_workloads(due, report)?;
        if self.checks_activity {
            report(self.check_preflight())?;
        }
        if let Some(event) = self.create_swap(due) {
            report(event)?;
        }
        self.run_model(due, report)
    }

    fn carry_out(
        &self,
        slot: usize,
        _keep_going: &mut dyn FnMut(u32) -> bool,
    ) -> Result<FinishedTrial, LostTrial> {
        let planned =
            self.slot(slot).ok_or_else(|| LostTrial::by_defect(format!("the plan has no slot {slot}")))?;
        let pairing = (planned.workload, planned.variant);
        let mut result = match self.unavailable_reason(planned.workload) {
            Some(why) => TrialResult::without_measures(TrialEnd::NotStarted(why), String::new()),
            None => trial::run_trial(&self.context, planned.workload, planned.variant),
        };
        let mut events = Vec::new();
        if let Some(why) = self.check_checksum(pairing, &result, &mut events) {
            result.end = TrialEnd::InvalidResult(why);
        }
        let (workload, variant) = self.names(pairing);
        let note = |note: &String| format!("{workload}, {variant}: {note}");
        let notes = result.notes.iter().map(note);
        events.extend(notes.map(|text| PlaceEvent { kind: "trial", text, is_note: false }));
        let TrialResult { end, mut measures, flags, series, last_output, .. } = result;
        if end == TrialEnd::Done && planned.role == TrialRole::Measured {
            // Stored with one of the trials: it was one run, and has no spread.
            let model = self.model_measures.borrow_mut().get_mut(&pairing).map(std::mem::take);
            measures.extend(model.into_iter().flatten());
        }
        self.record_peak(planned.workload, &measures);
        let trial = Trial { end, measures, flags, series, last_output, ..Trial::new(slot, 0) };
        Ok(FinishedTrial { events, ..trial.into() })
    }

    fn expected_time(&self, slot: usize) -> Option<Duration> {
        self.context.resolved.expected_time(self.slot(slot)?.workload)
    }

    fn finish(&self, report: EventSink<'_>) -> Result<(), Error> {
        for text in self.context.swap_file.borrow_mut().remove() {
            report(PlaceEvent { kind: "swap", text, is_note: true })?;
        }
        Ok(())
    }
}

/// Returns why a workload cannot run on this machine, without changing anything.
pub fn missing_reason(workload: &Workload) -> Option<String> {
    let WorkloadCommand::External { manifest, .. } = &workload.command else { return None };
    match install_dir::install_state(manifest) {
        InstallState::Missing(why) => Some(why),
        InstallState::Ready(_) | InstallState::Available => None,
    }
}

/// Prepares a workload for its variants; the error states why it cannot run.
pub(crate) fn set_up_workload(
    resolved: &ResolvedExperiment,
    workload: usize,
    observer: &mut dyn FetchObserver,
) -> Result<(), String> {
    let command = resolved.recipe.workloads.get(workload).map(|workload| &workload.command);
    let Some(WorkloadCommand::External { manifest, .. }) = command else { return Ok(()) };
    let home = install_dir::make_available(manifest, observer).map_err(|error| error.to_string())?;
    let pairs = first_of_each_pair(&resolved.plan.schedule);
    for slot in pairs.into_iter().filter(|slot| slot.workload == workload) {
        let chosen = resolved.workload_options(slot.workload, slot.variant);
        let options = manifest.resolve_options(false, &chosen)?;
        let prepared = prepared_data::prepare_data(manifest, &home, &options, false, observer);
        prepared.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Descriptions of the changes during a trial of the variant; empty if there are none.
pub fn describe_changes(site: &Result<GuardSite, String>, variant: &Variant) -> Vec<String> {
    let mut changes = describe_settings(site, variant);
    changes.extend(variant.thp_mode.and_then(|mode| match mode {
        ThpMode::NeverPrctl => Some("huge pages are disabled for the process (prctl)".to_owned()),
        ThpMode::AdvisedOnly => Some("huge pages only for advised memory (prctl, Linux 6.18)".to_owned()),
        _ => None,
    }));
    changes.extend(variant.supervised_plan.as_ref().map(|plan| {
        let pages = match plan {
            SupervisedPlan::Never => "are disabled (prctl)".to_owned(),
            SupervisedPlan::Nothing => "only where the program itself requests them".to_owned(),
            plan if variant.overrides_advice => {
                format!("as planned by {}, against the program's own advice", plan.argument())
            }
            plan => format!("as planned by {}", plan.argument()),
        };
        format!("the program runs under the supervisor of `pagelab apply`; huge pages {pages}")
    }));
    let limit = variant.memory_limit.map(format_argument);
    changes.extend(limit.map(|limit| format!("the trial's cgroup is limited to {limit}")));
    changes.extend(variant.swap_limit.map(|size| match size.0 {
        0 => "swap is disabled for the trial's cgroup".to_owned(),
        _ => {
            let size = format_argument(size);
            format!("the trial's cgroup may swap up to {size} to a file created for the experiment")
        }
    }));
    if let Some(fragmentation) = &variant.fragmentation {
        let order = fragmentation.order.map_or("of a huge page".to_owned(), |order| order.to_string());
        changes.push(format!(
            "memory is compacted if it is too fragmented, then fragmented to F_u = {} (order {order})",
            fragmentation.target
        ));
    }
    changes.extend(variant.hog.map(describe_hog));
    if variant.pin.is_some() {
        changes.push("all other tasks are moved off one CPU, unless an isolated CPU is available".to_owned());
    }
    let page_cache = variant.page_cache.map(|state| match state {
        PageCacheState::Cold => "the workload's files, or all clean pages, are dropped from the page cache",
        PageCacheState::Warm => "the workload's files are read into the page cache",
    });
    changes.extend(page_cache.map(str::to_owned));
    if variant.evict_caches {
        changes.push("the data caches and the TLB are evicted".to_owned());
    }
    changes
}

fn describe_hog(hog: MemoryHog) -> String {
    let size = format_argument(hog.size);
    match (hog.leaves_of_limit, hog.kind) {
        (Some(leaves), _) => format!(
            "a process allocates {size} of the shared limit and writes to it repeatedly; {} is left",
            format_argument(leaves)
        ),
        (None, HogKind::Process) => format!("a process allocates {size} and writes to it repeatedly"),
        (None, HogKind::Thread) => {
            format!("a thread of the workload allocates {size} and writes to it repeatedly")
        }
    }
}

/// Describes settings of the machine, with the current and the new value.
fn describe_settings(site: &Result<GuardSite, String>, variant: &Variant) -> Vec<String> {
    let options = GuardOptions { dry_run: true, ..GuardOptions::default() };
    let guard = site.as_ref().map_err(Clone::clone).and_then(|site| {
        Guard::new(site, SignalWatch::without_handler(), options).map_err(|error| error.to_string())
    });
    let change = |(knob, mode): (Knob, &str)| {
        let label = knob.label();
        let before = guard.as_ref().map_err(Clone::clone);
        match before.and_then(|guard| guard.set_knob(&knob, mode).map_err(|error| error.to_string())) {
            Ok(applied) if applied.old == mode => None,
            Ok(applied) if !is_writable(knob.path()) => {
                Some(format!("{label} {} → {mode} (requires root)", applied.old))
            }
            Ok(applied) => Some(format!("{label} {} → {mode}", applied.old)),
            Err(why) => Some(format!("{label} → {mode} (not possible: {why})")),
        }
    };
    machine_wide_modes(variant).filter_map(change).collect()
}

/// False where the kernel would deny the write: a dry run reads a setting, but does not test the permission
/// to write it.
fn is_writable(path: &str) -> bool {
    !matches!(access(path, Access::WRITE_OK), Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}
