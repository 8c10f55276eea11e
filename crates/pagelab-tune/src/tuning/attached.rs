//! `pagelab tune --pid`: arms of a running process. MADV_COLLAPSE from outside makes its huge pages, and one
//! cold page each splits them. Contents are preserved, and the end restores the original state as far as
//! possible.

mod sample;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagelab_command::exit::{Exit, Failure, FailureKind};
use pagelab_command::machine_guard::open_unwatched_guard;
use pagelab_command::output;
use pagelab_experiment::early_end::{EarlyEndCheck, TrialTimes};
use pagelab_experiment::engine::RunClock;
use pagelab_experiment::resolve::ResolvedExperiment;
use pagelab_host::capture::StopSignal;
use pagelab_host::orphan_keeper::{OrphanKeeper, OrphanScope};
use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_model::experiment::{Flag, Measure, Trial, TrialEnd};
use pagelab_model::run::{RunEnd, RunEvent};
use pagelab_model::tune::{HugePageSelection, TuningRun};
use pagelab_probe::machine_tlb::read_snapshot;
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style::{TextStyle, format_bytes, format_plural};
use pagelab_report::text_report::TextReport;
use pagelab_runfile::RunWriter;
use pagelab_target::huge_page_control::{ChangeResult, HugePageController};

use super::time_budget::{MeasurementPlan, format_time};
use super::{
    TuningNames, TuningRequest, advice_override, arms, create_run_file, exact_fallback, profiling, recipe,
    resolve_recipe, write_tune,
};
use crate::profile::{self, MissSource};
use crate::profile_source;
use sample::{LoadFigure, ProcessLoad};

/// Why a tuning ends where accessed bits are not visible.
const EXACT_CANNOT_ATTACH: &str =
    "--source exact cannot attach to a running process; hint: use `pagelab tune --source exact -- COMMAND`";

struct AttachedSession<'s> {
    began: Instant,
    request: &'s TuningRequest,
    pid: u32,
    names: &'s TuningNames,
    process: &'s HugePageController,
    load: &'s ProcessLoad,
    stop: &'s StopSignal,
}

/// End of a tuning of a running process.
pub enum AttachedEnd {
    /// Before its first trial; the exit code.
    Ended(u8),
    /// With trials in this run file.
    Measured {
        /// The run file.
        path: PathBuf,
        /// The signal that ended the trials early.
        stopped_by: Option<i32>,
    },
}

/// A tuning of a running process whose requirements were checked. Nothing was run, measured or changed yet.
#[derive(Debug)]
pub struct AttachedTuning<'r> {
    request: &'r TuningRequest,
    pid: u32,
    /// The shell command that loads the process.
    command: &'r str,
    figure: LoadFigure,
    names: TuningNames,
    process: HugePageController,
}

impl AttachedTuning<'_> {
    /// Checks all that can be known before the first measurement: the process, the privileges, the profile
    /// source and the files.
    pub fn check<'r>(
        request: &'r TuningRequest,
        pid: u32,
        command: &'r str,
    ) -> Result<AttachedTuning<'r>, Failure> {
        let figure = LoadFigure::parse(request)?;
        match &request.profile {
            Some(file) => drop(profile_source::read_profile(file)?),
            None => profile::check_attached_source(request.source)?,
        }
        let snapshot = read_snapshot();
        let page = snapshot.machine.page_size;
        let huge = page.block_bytes(snapshot.pmd_order);
        let process = HugePageController::open(pid, page.bytes(), huge.0)?;
        let names = TuningNames::choose(request, &pid.to_string())?;
        Ok(AttachedTuning { request, pid, command, figure, names, process })
    }

    /// Describes what it would do.
    pub fn describe(&self, style: TextStyle) -> Result<String, Failure> {
        let (request, pid, command) = (self.request, self.pid, self.command);
        let regions = self.process.find_eligible_regions()?.len();
        let huge = self.process.read_huge_regions()?.len();
        let name = std::fs::read_to_string(paths::process_file(pid, "comm")).unwrap_or_default();
        let plan = &self.names.plan_file;
        let (arms, files) = arms::arms_without_profile(plan);
        let arguments = load_arguments(command);
        let measurements = super::describe_measurements(request);
        let names = &self.names.name;
        let text = recipe::recipe_text((request, &measurements), names, &arguments, &arms, &files);
        let runs = resolve_recipe(&text)?.plan.schedule.len();
        let most = if request.is_quick { "" } else { "at most " };
        let [profile_time, limit] = [request.profile_time, request.time_limit].map(format_time);
        let mut output = TextReport::new(style);
        output.add_paragraph(
            "process  ",
            &format!(
                "{pid} ({}): {} of {} are populated, {huge} huge pages now",
                name.trim_end(),
                format_plural(regions, "region"),
                format_bytes(Bytes(self.process.huge_bytes))
            ),
        );
        output.add_paragraph("check    ", &format!("`{command}` runs once: {}", self.figure.describe()));
        let profile = match &request.profile {
            Some(file) => format!("read from {}", file.display()),
            None => format!(
                "{}, without huge pages, while `{command}` runs repeatedly",
                profiling::attached_command_text(request.source, pid, request.profile_time)
            ),
        };
        output.add_paragraph("profile  ", &profile);
        output.add_paragraph("plan     ", &super::plan_text(request, plan));
        super::add_walk_cost_line(&mut output, request);
        let measured = format!(
            "none / plan / all in turn as the huge pages of the process: {most}{runs} runs of the command"
        );
        output.add_paragraph("measure  ", &measured);
        let profiled = if request.profile.is_some() { String::new() } else { format!("{profile_time} and ") };
        let total = match measurements.time_left {
            Some(budget) => format!("; at most {} in total (--time-budget)", format_time(budget)),
            None => String::new(),
        };
        let time = format!("{profiled}{most}{} runs of `{command}`, each at most {limit}{total}", runs + 1);
        output.add_paragraph("time     ", &time);
        output.add_paragraph("write    ", &self.names.run_file.path.display().to_string());
        output.add_paragraph(
            "change   ",
            "collapses (MADV_COLLAPSE) and splits (MADV_COLD of one page of each) huge pages of the process; \
            restores its huge pages at the end",
        );
        output.add_text("Changes no system settings.");
        Ok(output.into_text())
    }

    /// Profiles, plans and measures the process.
    pub fn run(self) -> Result<AttachedEnd, Failure> {
        let began = Instant::now();
        let AttachedTuning { request, pid, command, figure, names, process } = self;
        let stop = StopSignal::watch().map_err(Failure::no_signal_handlers)?;
        let Some(load) = ProcessLoad::check(command, figure, request.time_limit, &stop)? else {
            return Ok(AttachedEnd::Ended(super::report_stop(&stop)));
        };
        let session = AttachedSession {
            began,
            request,
            pid,
            names: &names,
            process: &process,
            load: &load,
            stop: &stop,
        };
        let guard = open_unwatched_guard();
        // After a kill -9 the journal names the process that was left in some arm; its contents are intact in
        // each.
        let act = format!("huge pages of process {pid} collapsed and split repeatedly");
        let outcome = match &guard {
            Ok(guard) => match guard.perform_one_way(&act, || session.run()) {
                Ok(Some(end)) => end,
                Ok(None) => Ok(AttachedEnd::Ended(Exit::Success as u8)),
                Err(error) => return Err(Failure::new(FailureKind::Partial, error.to_string())),
            },
            Err(_) => session.run(),
        };
        // Restores again after an early end; if the process is already restored, this does nothing.
        if let Err(why) = restore_process(&process, pid) {
            output::warn(&why);
        }
        outcome
    }
}

/// The load as the command of a recipe.
fn load_arguments(command: &str) -> Vec<String> {
    ["sh", "-c", command].map(str::to_owned).to_vec()
}

/// Puts the process back: how it is now, in a phrase, and an error where that is not how it was found.
fn restore_process(steered: &HugePageController, pid: u32) -> Result<String, String> {
    if std::fs::metadata(paths::process_file(pid, "stat")).is_err() {
        return Err(format!("process {pid} exited; nothing to restore"));
    }
    match steered.restore().map(|turned| turned.describe_failure()) {
        Ok(None) => Ok(format!("process {pid} was restored")),
        Ok(Some(why)) => Err(format!("process {pid} was not completely restored: {why}")),
        Err(error) => Err(format!("cannot restore process {pid}: {error}")),
    }
}

impl AttachedSession<'_> {
    fn run(&self) -> Result<AttachedEnd, Failure> {
        let (request, pid) = (self.request, self.pid);
        let TuningNames { run_file, plan_file, .. } = self.names;
        let path = run_file.path.clone();
        let regions = self.process.find_eligible_regions()?;
        if regions.is_empty() {
            let text = format!(
                "process {pid} has no memory for huge pages: no aligned region of a private anonymous \
                 mapping was written"
            );
            return Err(Failure::new(FailureKind::NegativeAnswer, text));
        }
        // A huge region hides its accesses from a source that reads page tables.
        let split = self.process.set_huge_regions(&regions, &BTreeSet::new())?;
        self.check_split(&split)?;
        let how = super::profiling_options(request, self.stop);
        let profile = match &request.profile {
            Some(file) => profiling::read_profile(file, &how)?,
            None => {
                let dir = profiling::create_profile_dir(&path)?;
                self.profile_under_load(&dir.path().join("profile.pagelab"), &how)?
            }
        };
        let Some(profile) = profile else {
            return Ok(AttachedEnd::Ended(super::report_stop(self.stop)));
        };
        let unseen = self.unseen_reason(&profile);
        let mut chosen = arms::choose_arms(request, &profile, &arms::AdviceHandling::default(), plan_file)?;
        for arm in chosen.tune.arms.iter_mut().filter(|arm| arm.selection == HugePageSelection::All) {
            arm.planned = u64::try_from(regions.len()).ok();
        }
        let planned: BTreeSet<u64> =
            arms::region_addresses(&chosen.tune.plan).intersection(&regions).copied().collect();
        chosen.tune.pid = Some(pid);
        chosen.tune.notes.extend(unseen);
        chosen.tune.notes.extend(advice_override::running_process_note(profile.own_advice()));
        chosen.tune.notes.push(comparison_text(regions.len(), planned.len()));
        let measured = super::describe_measurements(request);
        let time_left = measured.time_left.map(|budget| budget.saturating_sub(self.began.elapsed()));
        let measured = MeasurementPlan { time_left, ..measured };
        let resolved = self.resolve_recipe((&path, &measured), &chosen.tune, &chosen.files)?;
        let (mut writer, times, _) = create_run_file(run_file, request.seed, &profile)?;
        write_tune(&mut writer, &chosen, &resolved)?;
        let measured =
            self.measure_trials(&mut writer, &times, &resolved, &chosen.tune, (&regions, &planned));
        let (Ok(text) | Err(text)) = restore_process(self.process, pid);
        let event = RunEvent { at_ns: times.now_ns(), kind: "restored".to_owned(), text };
        writer.add_event(&event)?;
        let after_ns = times.now_ns();
        let ending = match (&measured, self.stop.signal()) {
            (Err(error), _) => RunEnd::Stopped { after_ns, reason: error.to_string() },
            (Ok(false), Some(signal)) => {
                RunEnd::Stopped { after_ns, reason: super::signal_name(signal).to_owned() }
            }
            _ => RunEnd::Complete { after_ns },
        };
        writer.close(ending)?;
        let is_whole = measured.inspect_err(|_| {
            output::warn(&format!("note: the measured trials are in {}", path.display()));
        })?;
        Ok(AttachedEnd::Measured { path, stopped_by: self.stop.signal().filter(|_| !is_whole) })
    }

    /// Returns, and reports, why accessed bits show nothing of it and tuning cannot continue.
    fn unseen_reason(&self, profile: &pagelab_model::TlbProfile) -> Option<String> {
        let why =
            exact_fallback::unusable_reason(profile).filter(|_| self.request.source == MissSource::Auto)?;
        let note = format!("{why}; {EXACT_CANNOT_ATTACH}");
        output::warn(&format!("note: {note}"));
        Some(note)
    }

    /// Whether one cold page splits here; without, there is no way back to the arm of nothing.
    fn check_split(&self, split: &ChangeResult) -> Result<(), Failure> {
        if split.still_huge == 0 {
            return Ok(());
        }
        let text = format!(
            "cannot split all huge pages of process {}, so it cannot be measured without them: {}. They may \
             be shared with other processes, or locked",
            self.pid,
            split.describe_failure().unwrap_or_default()
        );
        match split.still_huge > split.as_requested {
            true => Err(Failure::new(FailureKind::Partial, text)),
            false => {
                output::warn(&text);
                Ok(())
            }
        }
    }

    fn profile_under_load(
        &self,
        profile_path: &Path,
        options: &profiling::ProfilingOptions<'_>,
    ) -> Result<Option<pagelab_model::TlbProfile>, Failure> {
        let request = self.request;
        let mut load = self.load.shell_command();
        load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let loading = RepeatedCommand::start(load, profile::start_orphan_keeper()?);
        let profile =
            profiling::profile_process(request.source, self.pid, request.profile_time, profile_path, options);
        loading.stop();
        profile
    }

    fn resolve_recipe(
        &self,
        (path, measured): (&Path, &MeasurementPlan),
        tune: &TuningRun,
        files: &[Option<PathBuf>],
    ) -> Result<ResolvedExperiment, Failure> {
        let name = recipe::file_stem(&path.with_extension("").display().to_string());
        let (request, command) = (self.load.with_figure(self.request), load_arguments(&self.load.command));
        resolve_recipe(&recipe::recipe_text((&request, measured), &name, &command, &tune.arms, files))
    }

    /// Measures all trials in order; returns whether all are done.
    fn measure_trials(
        &self,
        writer: &mut RunWriter,
        times: &RunClock,
        resolved: &ResolvedExperiment,
        tune: &TuningRun,
        (all, planned): (&BTreeSet<u64>, &BTreeSet<u64>),
    ) -> Result<bool, Failure> {
        let schedule = &resolved.plan.schedule;
        let start_ns = times.now_ns();
        let (mut trials, mut trial_times, mut check) =
            (Vec::new(), TrialTimes::default(), EarlyEndCheck::default());
        for (at, slot) in schedule.iter().enumerate() {
            if self.stop.signal().is_some() {
                return Ok(false);
            }
            let arm = tune.arms.get(slot.variant);
            let arm_pages = arm.map_or(HugePageSelection::None, |arm| arm.selection);
            let name = arm.map_or("", |arm| arm.name.as_str());
            let left = remaining_text(times.now_ns().saturating_sub(start_ns), at, schedule.len());
            output::show_status_line(&format!("sample {} of {}: {name}{left}", at + 1, schedule.len()));
            let nothing = BTreeSet::new();
            let huge_regions = match arm_pages {
                HugePageSelection::None | HugePageSelection::Never => &nothing,
                HugePageSelection::All => all,
                _ => planned,
            };
            let turned = self.process.set_huge_regions(all, huge_regions)?;
            let began_ns = times.now_ns();
            let (end, measures, mut flags) = self.measure_trial(all, huge_regions)?;
            flags.extend(trial_flag(&turned, huge_regions.len()));
            let trial = Trial { ended_ns: times.now_ns(), end, measures, flags, ..Trial::new(at, began_ns) };
            writer.add_trial(&trial)?;
            let text = format!("{name}: {} regions in the requested state", turned.as_requested);
            let event = RunEvent { at_ns: trial.ended_ns, kind: "turned".to_owned(), text };
            writer.add_event(&event)?;
            writer.flush()?;
            trial_times.record(slot, &trial);
            trials.push(trial);
            if let Some(end) = check.check_after_trial(&resolved.plan, trials.iter(), &trial_times) {
                let at_ns = times.now_ns();
                writer.add_plan(at_ns, &end.plan)?;
                output::show_status_line("");
                output::warn(&format!("note: {}", end.reason));
                writer.add_event(&RunEvent { at_ns, kind: "early end".to_owned(), text: end.reason })?;
                break;
            }
        }
        output::show_status_line("");
        Ok(true)
    }

    /// Measures one run of the load, and the process during that run.
    fn measure_trial(
        &self,
        all: &BTreeSet<u64>,
        huge_regions: &BTreeSet<u64>,
    ) -> Result<(TrialEnd, Vec<Measure>, Vec<Flag>), Failure> {
        let (end, mut measures) = self.load.sample(self.pid, self.stop);
        let after = self.process.read_huge_regions()?;
        let huge = after.intersection(all).count();
        let got = after.intersection(huge_regions).count();
        measures.extend(sample::huge_page_measures(huge, self.process.huge_bytes, huge_regions.len(), got));
        let mut flags = Vec::new();
        if huge > got {
            let text = format!("{} other regions became huge during the sample", huge - got);
            flags.push(Flag { kind: Flag::NOT_APPLIED.to_owned(), text });
        }
        Ok((end, measures, flags))
    }
}

/// `   about 40 s left`, from the time of the samples that are done; nothing before the first.
fn remaining_text(elapsed_ns: u64, done: usize, total: usize) -> String {
    let each_ns = elapsed_ns.checked_div(done as u64);
    let left_ns = each_ns.map(|each| each.saturating_mul(total.saturating_sub(done) as u64));
    left_ns.map_or(String::new(), |left| format!("   about {} left", format_duration(left)))
}

/// Describes the comparison, for a process with this many regions.
fn comparison_text(total: usize, planned: usize) -> String {
    format!(
        "a running process: {total} regions can be on huge pages, {planned} of them are planned; CPU time \
        and huge pages are those of the process, time is that of the metric command"
    )
}

fn trial_flag(change: &ChangeResult, expected: usize) -> Option<Flag> {
    let text = change.describe_failure()?;
    let kind = match (change.still_huge, change.not_huge) {
        (1.., _) => Flag::NOT_APPLIED,
        (0, missing) if missing >= expected => Flag::NO_HUGE_PAGES,
        (0, _) => Flag::PLAN_PARTLY,
    };
    Some(Flag { kind: kind.to_owned(), text })
}

/// A command that is restarted until it is stopped.
struct RepeatedCommand {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl RepeatedCommand {
    fn start(mut command: Command, mut keeper: OrphanKeeper) -> RepeatedCommand {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let run = move || {
            while !seen.load(Ordering::Relaxed) {
                let Ok(mut child) = command.spawn() else { return };
                // Without it a kill of this process leaves the load's other processes, until they end.
                let _ = keeper.watch(&OrphanScope::Group(child.id()));
                while let Ok(None) = child.try_wait() {
                    if seen.load(Ordering::Relaxed) {
                        sample::end_load(&mut child);
                        return;
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            }
        };
        RepeatedCommand { stop, thread: thread::spawn(run) }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}
