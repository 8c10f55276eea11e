//! Session of a tuning: profile, plan, and the arms none, plan and all that are measured in turn.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagelab_command::atomic_file::{NewRunFile, check_output, free_run_file_name};
use pagelab_command::exit::{Exit, Failure, usage_error};
use pagelab_command::{manifest, output};
use pagelab_experiment::engine::RunClock;
use pagelab_experiment::recipe::Recipe;
use pagelab_experiment::resolve::{ExperimentOverrides, ResolvedExperiment};
use pagelab_host::capture::{StopSignal, signal_name};
use pagelab_model::profile::ProfileSource;
use pagelab_model::run::RunEnd;
use pagelab_model::tune::{HugePageSelection, TuningArm};
use pagelab_model::{Snapshot, TlbProfile, size};
use pagelab_probe::machine_tlb::{known_tlb, read_snapshot};
use pagelab_report::style::TextStyle;
use pagelab_report::text_report::TextReport;
use pagelab_runfile::{RunReader, RunWriter};
use pagelab_tlb::plan::PlanSize;

use crate::profile::MissSource;
pub use advice_override::AdvicePolicy;
use arms::{AdviceHandling, ArmSelection};
use time_budget::{MeasurementPlan, RequestedMeasurements, format_time};

pub use recipe::ORIGIN;

mod advice_override;
mod arms;
pub mod attached;
mod exact_fallback;
mod profiling;
mod recipe;
mod time_budget;

/// Request to tune a program.
#[derive(Clone, Debug)]
pub struct TuningRequest {
    /// Size of the plan.
    pub size: PlanSize,
    /// Profile source.
    pub source: MissSource,
    /// Existing profile, instead of a new one.
    pub profile: Option<PathBuf>,
    /// Counted rounds at the most.
    pub repeats: u32,
    /// Time for the whole tuning, from its start.
    pub time_budget: Duration,
    /// Whether 8, 16, 32 … huge pages are measured too.
    pub measures_curve: bool,
    /// Two rounds without warm-up, and no verdict.
    pub is_quick: bool,
    /// The text around the program's figure.
    pub figure: Option<String>,
    /// Exit codes that count as success.
    pub exit_codes: Vec<u8>,
    /// Whether a larger figure is better.
    pub is_higher_better: bool,
    /// Time limit of one run of the program.
    pub time_limit: Duration,
    /// Duration of the profile of a running process, as given.
    pub profile_time: Duration,
    /// Seed of the schedule and of random choices.
    pub seed: u64,
    /// What becomes of the program's own advice against huge pages.
    pub advice: AdvicePolicy,
    /// Run file to create; `None`: the first free number.
    pub output: Option<PathBuf>,
    /// Plan file to create; `None`: beside the run file.
    pub plan: Option<PathBuf>,
    /// Whether existing files are replaced.
    pub replaces_files: bool,
}

/// Name of a tuning, and the files that it creates.
#[derive(Clone, Debug)]
pub struct TuningNames {
    /// Its name: `tune-` and the program.
    pub name: String,
    /// The run file.
    pub run_file: NewRunFile,
    /// The plan file.
    pub plan_file: PathBuf,
}

/// A tuning whose profile and plan are in its run file, and whose trials remain.
pub struct PreparedTuning {
    /// The run file.
    pub path: PathBuf,
    /// Its writer.
    pub writer: RunWriter,
    /// The clock of the run.
    pub times: RunClock,
    /// The trials.
    pub resolved: ResolvedExperiment,
    /// The machine.
    pub snapshot: Snapshot,
}

/// Continuation of a tuning.
pub enum TuningStep {
    /// A signal ended it; the exit code.
    Ended(u8),
    /// Its trials remain.
    Ready(Box<PreparedTuning>),
}

impl TuningNames {
    /// Chooses the files, and rejects existing ones unless they are replaced.
    pub fn choose(request: &TuningRequest, subject: &str) -> Result<TuningNames, Failure> {
        let name = format!("tune-{}", recipe::file_stem(subject));
        let path = request.output.clone().unwrap_or_else(|| free_run_file_name(&name));
        let run_file = NewRunFile { path, replaces: request.replaces_files };
        run_file.check()?;
        let plan_file = request.plan.clone().unwrap_or_else(|| run_file.path.with_extension("plan.toml"));
        check_output(&plan_file, request.replaces_files)?;
        Ok(TuningNames { name, run_file, plan_file })
    }
}

/// Returns the size of a plan as command-line arguments.
pub fn format_plan_size(size: PlanSize) -> String {
    match size {
        PlanSize::Pages(number) => format!("-n {number}"),
        PlanSize::Budget(budget) => format!("--budget {}", size::format_argument(budget)),
        PlanSize::Share(share) => format!("--share {share}"),
    }
}

/// Profiles a program that is started for it, plans, and writes both to a new run file. The trials remain.
pub fn prepare_tuning(
    request: &TuningRequest,
    command: &[String],
    names: &TuningNames,
) -> Result<TuningStep, Failure> {
    let began = Instant::now();
    let TuningNames { name, run_file, plan_file: plan_path } = names;
    let path = &run_file.path;
    let stop = StopSignal::watch().map_err(Failure::no_signal_handlers)?;
    let mut options = profiling_options(request, &stop);
    let dir = profiling::create_profile_dir(path)?;
    let profile_path = dir.path().join("profile.pagelab");
    let mut profile = match &request.profile {
        Some(file) => profiling::read_profile(file, &options)?,
        None => profiling::profile_command(request.source, command, &profile_path, &options)?,
    };
    if request.source == MissSource::Auto
        && request.profile.is_none()
        && let Some(seen) = profile
    {
        profile = exact_fallback::profile_or_fall_back(seen, command, &profile_path, &mut options)?;
    }
    let Some(profile) = profile else { return Ok(TuningStep::Ended(report_stop(&stop))) };
    let (mut chosen, measured) = choose_arms_in_time(request, &profile, plan_path, began)?;
    if arms::is_by_address(&chosen.tune.plan) {
        output::warn(&format!(
            "warning: the profile identifies memory by address, which changes between runs of most programs; \
             {}",
            address_reason(&profile, request.profile.is_none())
        ));
    }
    let (mut writer, times, snapshot) = create_run_file(run_file, request.seed, &profile)?;
    if measured.recounts {
        let after =
            profiling::recount_with_plan(command, plan_path, &dir.path().join("recount.pagelab"), &options);
        chosen.tune.after = after.map(Box::new);
    }
    let time_left = (!request.is_quick).then(|| request.time_budget.saturating_sub(began.elapsed()));
    let measured = MeasurementPlan { time_left, ..measured };
    let text = recipe::recipe_text((request, &measured), name, command, &chosen.tune.arms, &chosen.files);
    let resolved = resolve_recipe(&text)?;
    write_tune(&mut writer, &chosen, &resolved)?;
    if let Some(signal) = stop.signal() {
        let ending = RunEnd::Stopped { after_ns: times.now_ns(), reason: signal_name(signal).to_owned() };
        writer.close(ending)?;
        output::warn(&format!(
            "note: stopped by {}; the profile and the plan are in {1}\n  resume with: pagelab tune \
             --resume {1}",
            signal_name(signal),
            path.display()
        ));
        return Ok(TuningStep::Ended(Exit::code_after_signal(signal)));
    }
    let path = path.clone();
    Ok(TuningStep::Ready(Box::new(PreparedTuning { path, writer, times, resolved, snapshot })))
}

/// Chooses the arms for which the time budget suffices, and states trials and time.
fn choose_arms_in_time(
    request: &TuningRequest,
    profile: &TlbProfile,
    plan_path: &Path,
    began: Instant,
) -> Result<(ArmSelection, MeasurementPlan), Failure> {
    let advice = AdviceHandling::decide(request.advice, profile);
    advice.refusal.note.iter().for_each(|note| output::warn(&format!("note: {note}")));
    if request.is_quick {
        return Ok((arms::choose_arms(request, profile, &advice, plan_path)?, MeasurementPlan::quick()));
    }
    let three = TuningRequest { measures_curve: false, ..request.clone() };
    let mut chosen = arms::choose_arms(&three, profile, &advice, plan_path)?;
    let spent = began.elapsed();
    let requested = RequestedMeasurements {
        curve_arms: if request.measures_curve { chosen.curve_arms } else { 0 },
        recounts: profile.source == ProfileSource::Exact && chosen.is_planned(),
        requests_huge_pages: advice.requests_huge_pages,
        is_planned: chosen.is_planned(),
        rounds_max: request.repeats,
        trial_time: time_budget::expected_trial_time(profile),
        time_left: request.time_budget.saturating_sub(spent),
    };
    let measured = MeasurementPlan::fit(&requested);
    output::warn(&format!("note: measuring {}", measured.describe(&requested)));
    for text in measured.describe_omissions(&requested, spent) {
        output::warn(&format!("note: {text}"));
    }
    if measured.measures_curve {
        chosen = arms::choose_arms(request, profile, &advice, plan_path)?;
    }
    for (is_measured, selection) in
        [(measured.measures_all, HugePageSelection::All), (measured.measures_never, HugePageSelection::Never)]
    {
        if !is_measured {
            chosen.remove_arm(selection);
        }
    }
    Ok((chosen, measured))
}

/// Reason why a profile names memory by its address, or what names it by length and number. The report has
/// the notes of the profile.
fn address_reason(profile: &TlbProfile, is_own: bool) -> &'static str {
    const REASONS: [&str; 2] = ["observed as a whole", "identified by address"];
    match REASONS.iter().any(|of| profile.notes.iter().any(|note| note.contains(of))) {
        true => "see the notes in the report for the reason",
        false if is_own => {
            "these are mostly small adjacent mappings, which cannot be identified by length: a plan for them \
            is valid only without address randomisation"
        }
        false => "`pagelab profile` with its supervisor identifies memory by length and number",
    }
}

/// Options of the profile. A quick tuning predicts only from costs that are already known.
fn profiling_options<'s>(
    request: &'s TuningRequest,
    stop: &'s StopSignal,
) -> profiling::ProfilingOptions<'s> {
    profiling::ProfilingOptions {
        stop,
        measures_walk_cost: !request.is_quick,
        window: None,
        success_codes: &request.exit_codes,
    }
}

/// Reports a signal that arrived before anything was kept, and returns the exit code.
fn report_stop(stop: &StopSignal) -> u8 {
    let signal = stop.signal().unwrap_or_default();
    output::warn(&format!("note: stopped by {}; nothing was measured", signal_name(signal)));
    Exit::code_after_signal(signal)
}

/// Reports the signal that ended the trials, which are kept, and returns the exit code.
pub fn report_kept_trials(path: &Path, signal: i32) -> u8 {
    let (name, file) = (signal_name(signal), path.display());
    output::warn(&format!("note: stopped by {name}; the measured trials are in {file}"));
    Exit::code_after_signal(signal)
}

/// Creates the run file. The profile is stored first, so that it need not be repeated.
fn create_run_file(
    run_file: &NewRunFile,
    seed: u64,
    profile: &TlbProfile,
) -> Result<(RunWriter, RunClock, Snapshot), Failure> {
    let snapshot = read_snapshot();
    let started = manifest::current_moment();
    let mut manifest = manifest::build_for_process("tune", Some(seed), started, &snapshot);
    manifest.machine.tlb = known_tlb(&snapshot.machine);
    let mut writer = run_file.create(&manifest)?;
    writer.add_profile(0, profile)?;
    writer.flush()?;
    Ok((writer, RunClock::from_start(started), snapshot))
}

fn write_tune(
    writer: &mut RunWriter,
    chosen: &ArmSelection,
    resolved: &ResolvedExperiment,
) -> Result<(), pagelab_runfile::Error> {
    writer.add_tuning_run(0, &chosen.tune)?;
    writer.add_plan(0, &resolved.plan)?;
    writer.flush()
}

fn resolve_recipe(text: &str) -> Result<ResolvedExperiment, Failure> {
    let recipe = Recipe::parse(ORIGIN, text);
    let resolved =
        recipe.and_then(|recipe| ResolvedExperiment::resolve(recipe, &ExperimentOverrides::default()));
    // The recipe contains user input, such as the text around a figure.
    resolved.map_err(|bad| usage_error(&bad.to_string()))
}

/// Describes what would be done, and how often the program would run.
pub fn describe_tuning(
    request: &TuningRequest,
    command: &[String],
    names: &TuningNames,
    style: TextStyle,
) -> Result<String, Failure> {
    let TuningNames { name, run_file: NewRunFile { path, .. }, plan_file: plan } = names;
    let mut output = TextReport::new(style);
    match &request.profile {
        Some(file) => output.add_paragraph("profile  ", &format!("read from {}", file.display())),
        None => output.add_paragraph("profile  ", &profiling::command_text(request.source, command)),
    }
    output.add_paragraph("plan     ", &plan_text(request, plan));
    add_walk_cost_line(&mut output, request);
    let three = arms::arms_without_profile(plan);
    let curve = match request.measures_curve {
        true => {
            "; with --curve, also 8, 16, 32 … pages, each by cost, at random and by use, as far as the \
            profile allows"
        }
        false => "",
    };
    let measured = describe_measurements(request);
    let text = recipe::recipe_text((request, &measured), name, command, &three.0, &three.1);
    let resolved = resolve_recipe(&text)?;
    let trials = resolved.plan.schedule.len();
    let order = "none / plan / all with the same supervisor";
    let most = if request.is_quick { "" } else { "at most " };
    output.add_paragraph("measure  ", &format!("{order}: {most}{trials} runs of the program{curve}"));
    if !request.is_quick {
        let budget = format_time(request.time_budget);
        output.add_paragraph("time     ", &format!("at most {budget} (--time-budget), the profile included"));
    }
    output.add_paragraph("write    ", &path.display().to_string());
    output.add_text("Changes no system settings.");
    Ok(output.into_text())
}

/// The measurements before a profile is known.
fn describe_measurements(request: &TuningRequest) -> MeasurementPlan {
    match request.is_quick {
        true => MeasurementPlan::quick(),
        false => MeasurementPlan {
            warms_up: true,
            time_left: Some(request.time_budget),
            ..MeasurementPlan::quick()
        },
    }
}

fn plan_text(request: &TuningRequest, plan: &Path) -> String {
    format!("{}, to {}", format_plan_size(request.size), plan.display())
}

/// Adds the measurement of the page walk cost, if the tuning will make it.
fn add_walk_cost_line(output: &mut TextReport, request: &TuningRequest) {
    if !request.is_quick && !profiling::has_walk_cost() {
        output.add_paragraph("cost     ", "measures the cost of page walks, about 15 s, and caches it");
    }
}

/// Rewrites plans that are missing or changed: they follow from the profile, which the run file contains.
/// Other reasons against resuming are reported by the caller.
///
/// `parse_request` parses the command line of the run file.
pub fn restore_plans(
    path: &Path,
    parse_request: &dyn Fn(&[String]) -> Option<TuningRequest>,
) -> Result<(), Failure> {
    let Ok(run) = RunReader::open(path).and_then(|reader| reader.read_run()) else { return Ok(()) };
    let is_whole = matches!(run.ending, RunEnd::Complete { .. });
    if run.manifest.kind != "tune" || is_whole {
        return Ok(());
    }
    let bad = |text: &str| Failure::cannot_resume(path, text);
    let (Some(tune), Some(profile)) = (&run.tune, &run.profile) else {
        return Err(bad(&format!(
            "it stopped before its first trial; its profile is complete; hint: run `pagelab tune --profile \
             {} -- COMMAND`",
            path.display()
        )));
    };
    let request = parse_request(&run.manifest.command_line);
    let Some(request) = request.filter(|_| tune.pid.is_none() && !tune.plan_file.is_empty()) else {
        return Ok(());
    };
    let plan_file = Path::new(&tune.plan_file);
    if request.plan.is_none() && containing_folder(plan_file) != containing_folder(path) {
        let at = match (plan_file.parent(), containing_folder(path)) {
            (Some(within), Some(folder)) if within.as_os_str().is_empty() => folder.display().to_string(),
            _ => "the directory in which it was started".to_owned(),
        };
        return Err(bad(&format!(
            "its plan {} and its program are relative to another directory; hint: run this in {at}",
            tune.plan_file
        )));
    }
    // Arms that did not fit into the time budget are not there. Each number of a curve has a random arm.
    let measures_curve = tune.arm_index(HugePageSelection::Random).is_some();
    // The plans belong to this run.
    let request = TuningRequest { replaces_files: true, measures_curve, ..request };
    let mut chosen = arms::choose_arms(&request, profile, &AdviceHandling::from_arms(tune), plan_file)?;
    if tune.arm_index(HugePageSelection::All).is_none() {
        chosen.remove_arm(HugePageSelection::All);
    }
    let chosen = chosen.tune;
    let heads = |arms: &[TuningArm]| -> Vec<(String, HugePageSelection, Option<u64>)> {
        arms.iter().map(|arm| (arm.name.clone(), arm.selection, arm.planned)).collect()
    };
    if heads(&chosen.arms) != heads(&tune.arms) {
        let text = "this version builds different plans from its profile; hint: use the version that started \
            it, or start a new run";
        return Err(bad(text));
    }
    arms::write_plan(&tune.plan, plan_file, true)
}

/// Returns the directory that contains a file or would contain it.
fn containing_folder(path: &Path) -> Option<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()
}
