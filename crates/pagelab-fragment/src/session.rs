//! Session of a run: fragments, holds, releases, and reports the state before, during and after.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pagelab_command::exit::{Exit, Failure, FailureKind};
use pagelab_command::output;
use pagelab_contig::fragment::control_loop::{
    LoopBounds, LoopEnd, LoopOutcome, LoopPhase, LoopProgress, reach_target,
};
use pagelab_contig::fragment::fragmenter::{self, Fragmenter, KeptPageCheck};
use pagelab_contig::fragment::memory_monitor::{BackoffReason, MemoryMonitor};
use pagelab_contig::oom::OomScoreGuard;
use pagelab_contig::thp_request::ThpFaultCount;
use pagelab_host::capture::{StopSignal, signal_name};
use pagelab_metrics::fragmentation_index::{format_share, unusable_index};
use pagelab_model::{BuddyInfo, Bytes, Reading, Snapshot};
use pagelab_report::style::format_bytes;
use rustix::process::Signal;

use super::holding::HoldPhase;
use super::machine_changes::{ChangeRequest, MachineChanges, offer_to_oom_killer};
use super::plan::FragmentRunPlan;
use super::recording::FragmentRecording;
use crate::options::FragmentOptions;
use crate::{bounded_allocation, show, unmovable};

/// Interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of memory samples while memory is held.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// State while memory is allocated.
struct FragmentSession<'a> {
    args: &'a FragmentOptions,
    plan: &'a FragmentRunPlan,
    stop: &'a StopSignal,
    watch: MemoryMonitor,
    /// Owns the memory.
    fragmenter: Fragmenter,
    recording: Option<FragmentRecording>,
    /// Previous OOM score of this process.
    score_before: String,
}

/// Runs it.
pub fn run(args: &FragmentOptions, plan: FragmentRunPlan, snapshot: &Snapshot) -> Result<u8, Failure> {
    let stop = StopSignal::watch().map_err(Failure::no_signal_handlers)?;
    let facts = &plan.facts;
    let mut watch = bounded_allocation::open_monitor(facts, plan.reserve)?;
    let recording = match &args.held.output {
        Some(file) => Some(FragmentRecording::create(file, plan.seed, snapshot, watch.last_snapshot())?),
        None => None,
    };
    plan.notes.iter().for_each(|note| output::warn(&format!("note: {note}")));
    let unmovable_request = args.held.unmovable.resolve_request(&plan.facts)?;
    let transient =
        unmovable_request.as_ref().map_or(0, |wanted| unmovable::transient_bytes(wanted, &plan.facts).0);
    let mut changes = MachineChanges::apply(&ChangeRequest {
        enable_thp: plan.switches_thp_on,
        pause_compaction: args.pause_compaction,
        held_max: Bytes(plan.held_max().0.saturating_add(transient)),
    })?;
    let offered = offer_to_oom_killer();
    // First, while free memory is not fragmented: later these pages would be in blocks with kept pages.
    let pollution = unmovable_request.map(|wanted| {
        let is_stopped = || stop.signal().is_some();
        let (polluted, lines) =
            unmovable::allocate_unmovable(&wanted, &plan.facts, &is_stopped, &mut |next| {
                bounded_allocation::check_room_within(&mut watch, plan.reserve, &stop, next)
            });
        lines.iter().for_each(|line| output::warn(line));
        polluted
    });
    let fragmenter =
        Fragmenter::new(plan.allocation_method, plan.layout, plan.seed, plan.facts.page_size, plan.bind);
    let score_before = offered.as_ref().map_or("0", OomScoreGuard::previous_score).to_owned();
    let mut session =
        FragmentSession { args, plan: &plan, stop: &stop, watch, fragmenter, recording, score_before };
    let report = session.run_phases(&mut changes, snapshot);
    // In any case: first the memory, then the settings.
    session.fragmenter.release_all();
    let unmovable = pollution.map(|polluted| {
        let value = unmovable::pollution_json(&polluted);
        drop(polluted);
        value
    });
    let stopped_by = stop.signal().map(signal_name);
    if let Some(recording) = session.recording.take() {
        recording.finish(stopped_by);
    }
    let is_restored = changes.restore();
    drop(offered);
    let mut report = report?;
    report.unmovable = unmovable;
    if args.held.json {
        show::print_report_json(&report)?;
    } else {
        show::print_phase_table(&report, args.held.command.is_empty())?;
    }
    Ok(exit_code(&report, &stop, is_restored))
}

fn exit_code(report: &FragmentReport, stop: &StopSignal, is_restored: bool) -> u8 {
    if let Some(command) = report.holding.as_ref().and_then(|held| held.command_code) {
        return command;
    }
    let is_intended_end = report.holding.as_ref().is_some_and(|held| held.is_interrupted);
    match (stop.signal(), &report.target_outcome.end) {
        (Some(signal), _) if !is_intended_end => Exit::code_after_signal(signal),
        (_, LoopEnd::Met)
            if is_restored
                && report.verified_placement().is_none()
                && report.holding.as_ref().is_none_or(|held| held.danger.is_none()) =>
        {
            Exit::Success as u8
        }
        _ => Exit::Partial as u8,
    }
}

impl FragmentReport {
    /// Returns the location of the kept pages, if compaction had migrated them when the target was met.
    pub fn verified_placement(&self) -> Option<&KeptPageCheck> {
        let verified = self.verification.as_ref()?.as_ref().ok()?;
        (self.target_outcome.end == LoopEnd::Met && verified.has_moved()).then_some(verified)
    }
}

impl FragmentSession<'_> {
    fn run_phases(
        &mut self,
        changes: &mut MachineChanges,
        snapshot: &Snapshot,
    ) -> Result<FragmentReport, Failure> {
        let free_before = self.watch.last_snapshot().buddyinfo().ok().cloned();
        let count_before = self.count_huge_pages(changes);
        let began = Instant::now();
        let reached = self.reach_target()?;
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut report = FragmentReport {
            plan: self.plan.clone(),
            fragment_ns: took_ns,
            held_units: self.fragmenter.fragmented_units(),
            kept_pages: self.fragmenter.count_kept_pages(),
            verification: None,
            verification_at_end: None,
            free: [free_before, None, None],
            thp_counts: [count_before, None, None],
            holding: None,
            worst_stall: 0.0,
            limit: changes.cgroup_limit(),
            unmovable: None,
            target_outcome: reached,
        };
        report.free[1] = self.watch.last_snapshot().buddyinfo().ok().cloned();
        if matches!(report.target_outcome.end, LoopEnd::Met | LoopEnd::ShortOfTarget(_)) {
            report.verification = self.verify_placement(snapshot);
            if self.plan.facts.has_swap
                && let Err(error) = self.fragmenter.lock_kept_pages()
            {
                output::warn(&format!(
                    "note: cannot lock the kept pages, so they may be swapped out: {error}"
                ));
            }
            report.thp_counts[1] = self.count_huge_pages(changes);
            show::print_target_outcome(&report, self.args)?;
            report.holding = Some(self.hold_memory(changes.command_cgroup())?);
            report.verification_at_end = self.verify_placement(snapshot);
        }
        let fragmenter = &mut self.fragmenter;
        self.watch.free_and_drain(|| fragmenter.release_all());
        let _ = self.watch.refresh();
        report.free[2] = self.watch.last_snapshot().buddyinfo().ok().cloned();
        if self.stop.signal().is_none() || report.holding.as_ref().is_some_and(|held| held.is_interrupted) {
            report.thp_counts[2] = self.count_huge_pages_unconditionally(changes);
        }
        report.worst_stall = self.watch.max_stall_share();
        Ok(report)
    }

    fn verify_placement(&self, snapshot: &Snapshot) -> Option<Reading<KeptPageCheck>> {
        let zone = snapshot.zoneinfo.as_ref().ok().and_then(|info| info.zone(&self.plan.facts.zone))?;
        Some(fragmenter::check_kept_pages(
            &self.fragmenter,
            zone,
            self.plan.goal.order,
            self.plan.facts.page_size,
        ))
    }

    fn count_huge_pages(&mut self, changes: &mut MachineChanges) -> Option<Reading<ThpFaultCount>> {
        if self.stop.signal().is_some() { None } else { self.count_huge_pages_unconditionally(changes) }
    }

    fn count_huge_pages_unconditionally(
        &mut self,
        changes: &mut MachineChanges,
    ) -> Option<Reading<ThpFaultCount>> {
        let signal = self.stop.signal();
        let stop = || self.stop.signal() != signal;
        let size = self.plan.facts.unit_size();
        self.args.measure_thp.then(|| {
            changes.allocate_huge_pages(size, self.watch.available_memory(), self.plan.reserve, stop)
        })
    }

    /// Holds memory until the end, and watches other processes and the index.
    fn hold_memory(&mut self, command_cgroup: Option<&str>) -> Result<HoldOutcome, Failure> {
        let began = Instant::now();
        let index = unusable_index(&self.watch.free_areas(), self.plan.goal.order);
        let mut outcome = HoldOutcome {
            held_ns: 0,
            index_range: (index, index),
            corrections: 0,
            danger: None,
            command_code: None,
            is_interrupted: false,
        };
        let (args, stop, score) = (self.args, self.stop, self.score_before.clone());
        let phase = HoldPhase {
            command: &args.held.command,
            cgroup: command_cgroup,
            oom_score: &score,
            stop,
            check_interval: SAMPLE_INTERVAL,
        };
        let has_command = !phase.command.is_empty();
        let mut index_reported = index;
        let command_code = phase.run(|| {
            self.check_memory(&mut outcome, &mut index_reported)?;
            Ok(has_command || outcome.danger.is_none())
        })?;
        outcome.command_code = command_code;
        // SIGINT is the normal end of holding; SIGTERM and SIGHUP are not.
        outcome.is_interrupted = command_code.is_none() && stop.signal() == Some(Signal::INT.as_raw());
        outcome.held_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(outcome)
    }

    fn check_memory(&mut self, outcome: &mut HoldOutcome, index_reported: &mut f64) -> Result<(), Failure> {
        if outcome.danger.is_some() || self.watch.refresh().is_err() {
            return Ok(());
        }
        if let Some(recording) = &mut self.recording {
            recording.sample(self.watch.last_snapshot());
        }
        if let Some(danger) = self.watch.backoff_reason() {
            self.fragmenter.release_all();
            output::warn(&format!("memory released early: {danger}"));
            outcome.danger = Some(danger);
            return Ok(());
        }
        let goal = self.plan.goal;
        let index = unusable_index(&self.watch.free_areas(), goal.order);
        outcome.index_range = (outcome.index_range.0.min(index), outcome.index_range.1.max(index));
        if (index - goal.target).abs() > goal.tolerance && self.args.keep_to_target {
            let reached = self.reach_target()?;
            outcome.corrections += 1;
            if let LoopEnd::BackedOff(danger) = reached.end {
                output::warn(&format!("memory released early: {danger}"));
                outcome.danger = Some(danger);
            }
        } else if (index - *index_reported).abs() > goal.tolerance {
            *index_reported = index;
            output::warn(&format!(
                "F_u({}) is now {}: compaction or other programs changed it{}",
                goal.order.0,
                format_share(index),
                if self.args.keep_to_target { "" } else { " (--keep-to-target corrects it)" }
            ));
        }
        Ok(())
    }

    /// Approaches the target from the current state.
    fn reach_target(&mut self) -> Result<LoopOutcome, Failure> {
        let bounds = LoopBounds {
            planned_units: if self.fragmenter.fragmented_units() == 0 {
                self.plan.unit_plan.units
            } else {
                0
            },
            units_max: self.plan.units_max,
            batch_units: self.plan.facts.units_per_batch(),
            fill_units: self.plan.fill_units(),
        };
        let mut last_shown = None;
        let (stop, plan, recording) = (self.stop, self.plan, &mut self.recording);
        let mut on_progress = |progress: LoopProgress, watch: &MemoryMonitor| {
            if let Some(recording) = recording.as_mut() {
                recording.sample(watch.last_snapshot());
            }
            if last_shown.is_none_or(|last: Instant| last.elapsed() >= PROGRESS_INTERVAL) {
                last_shown = Some(Instant::now());
                show_progress(&progress, plan);
            }
            if stop.signal().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let reached =
            reach_target(&mut self.fragmenter, &mut self.watch, &plan.goal, bounds, &mut on_progress);
        output::show_status_line("");
        reached.map_err(|error| Failure::cannot(FailureKind::Partial, "fragment memory", error))
    }
}

/// Shows a progress line on a terminal, which the next one overwrites.
fn show_progress(progress: &LoopProgress, plan: &FragmentRunPlan) {
    let phase_text = match progress.phase {
        LoopPhase::Fill => "allocating base pages",
        LoopPhase::Initialize => "initializing deferred memory",
        LoopPhase::Fragment => "fragmenting",
        LoopPhase::Correct => "correcting",
    };
    let unit = plan.facts.unit_size();
    output::show_status_line(&format!(
        "{phase_text}: F_u({}) {} of {}, {} of {}",
        plan.goal.order.0,
        format_share(progress.unusable_index),
        plan.goal.target,
        format_bytes(Bytes(progress.fragmented_units.saturating_mul(unit.0))),
        format_bytes(Bytes(plan.unit_plan.units.saturating_mul(unit.0))),
    ));
}

/// Results of a run.
pub struct FragmentReport {
    /// Plan.
    pub plan: FragmentRunPlan,
    /// Outcome of the loop that approaches the target.
    pub target_outcome: LoopOutcome,
    /// Duration of that loop, in nanoseconds.
    pub fragment_ns: u64,
    /// Units held after it.
    pub held_units: u64,
    /// Pages kept after it.
    pub kept_pages: u64,
    /// Location of the kept pages.
    pub verification: Option<Reading<KeptPageCheck>>,
    /// Location of the kept pages at the end of the hold phase.
    pub verification_at_end: Option<Reading<KeptPageCheck>>,
    /// Free blocks before, during and after the hold phase; absent if a phase was not reached.
    pub free: [Option<BuddyInfo>; 3],
    /// Huge pages that could be allocated, at the same times.
    pub thp_counts: [Option<Reading<ThpFaultCount>>; 3],
    /// Outcome of the hold phase.
    pub holding: Option<HoldOutcome>,
    /// Largest share of a window in which a task stalled on memory.
    pub worst_stall: f64,
    /// Limit of the cgroup.
    pub limit: Option<Bytes>,
    /// Result of the unmovable pages, as JSON, if requested.
    pub unmovable: Option<serde_json::Value>,
}

/// Outcome of the hold phase.
pub struct HoldOutcome {
    /// Duration, in nanoseconds.
    pub held_ns: u64,
    /// Minimum and maximum F_u.
    pub index_range: (f64, f64),
    /// Number of corrections.
    pub corrections: u32,
    /// Reason of an early release.
    pub danger: Option<BackoffReason>,
    /// Exit code of the command, or 128 plus the signal number.
    pub command_code: Option<u8>,
    /// Whether Ctrl-C ended it, which is the normal end.
    pub is_interrupted: bool,
}
