//! `pagelab run`: an experiment, from its recipe to its run file and report.

pub mod gate;
pub mod guest;
pub mod judge;
mod progress;
pub mod recipe_file;
mod start_problems;
pub mod trial;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_command::setup_progress::SetupProgress;
use pagelab_contig::reserve::Reserve;
use pagelab_experiment::engine::{SessionEvent, StopRequest};
use pagelab_experiment::host_place::{self, HostPlace};
use pagelab_experiment::place::Place;
use pagelab_experiment::processor_model;
use pagelab_experiment::recipe::TrialPlace;
use pagelab_experiment::resolve::{ExperimentOverrides, NO_REPEATS, ResolvedExperiment};
pub use pagelab_experiment::session::SessionFile;
use pagelab_experiment::session::{ExperimentSession, SessionEnd};
use pagelab_experiment::simulation_recipe;
use pagelab_experiment::swap_file::ExperimentSwap;
use pagelab_experiment::trial::TrialContext;
use pagelab_formats::duration;
use pagelab_host::guard::GuardSite;
use pagelab_model::experiment::{Plan, ScheduleSlot, TrialEnd};
use pagelab_model::run::{Run, RunEnd};
use pagelab_model::{Bytes, Snapshot};
use pagelab_probe::machine_tlb::{known_tlb, read_snapshot};
use pagelab_report::json;
use pagelab_report::run_plan::{RunPlanView, render};
use pagelab_report::style::format_plural;
use pagelab_runfile::{ErrorKind, RunWriter, read_run_file};
use pagelab_study::session::{self, SimulationOptions, experiment_failure, watch_signals};
use pagelab_study::simulation_plan::RecipeOverrides;

use super::{report, sim, usage_error};
use crate::atomic_file::{NewRunFile, free_run_file_name};
use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure, Outcome, read_failure_for};
use crate::output_args::OutputArgs;
use crate::value_parsers::{bounded_ns, parse_bounded};
use crate::{manifest, output};

use progress::RunProgress;
pub use recipe_file::check_program;
use start_problems::StartProblems;

const AFTER_HELP: &str = "\
Examples:
  pagelab recipes                         list the recipes
  pagelab run thp --dry-run               print the plan
  pagelab run thp --quick                 check that it works, in 2 minutes
  pagelab run thp -o thp.pagelab          the whole experiment
  pagelab run thp -- ./server --bench     the same variants with your program
  pagelab run own.toml                    your recipe (docs/recipes.md)
  pagelab run thp --place guest --kernel 6.1 --kernel 6.12
                                          each variant with both kernels
  pagelab run --resume thp.pagelab        resume after Ctrl-C or a kill
  pagelab run own.toml --judge wall --loss 10%
                                          by exit code: is a variant slower?

Each trial is written as soon as it ends. Settings are changed for a trial and restored after it; after kill \
 -9, run pagelab restore.

Exit code 5: some trials failed; the report lists them with the reason.
--judge: exit code 0 not worse, 1 worse, 7 undecided (docs/compare.md).
docs/run.md, docs/recipes.md
";

const OUTPUT_HELP: &str = "Run file to create [default: RECIPE-1.pagelab, the first free number]";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, mut_arg("output", |arg| arg.conflicts_with("dry_run").help(OUTPUT_HELP)))]
pub struct Args {
    /// Recipe file, or the name of a built-in recipe
    #[arg(value_name = "RECIPE", required_unless_present = "resume")]
    recipe: Option<String>,

    /// Run small, short trials to check that everything works; gives no verdict
    #[arg(long)]
    quick: bool,

    /// Number of counted rounds [default: the recipe's]
    #[arg(long, value_name = "N", value_parser = parse_repeats)]
    repeats: Option<u32>,

    /// Time for all trials: no round begins that would exceed it
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    time_budget: Option<Duration>,

    /// Print the plan and the planned changes, and run nothing
    #[arg(long)]
    dry_run: bool,

    /// Resume an interrupted run
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["recipe", "quick", "repeats", "time_budget", "output", "command", "swap_dir",
            "model", "place", "kernel", "modules", "memory", "cpus", "accel"])]
    resume: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,

    /// Directory for a swap file, if a variant needs one [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    swap_dir: Option<PathBuf>,

    /// If hardware counters are not available, also run each workload once per variant with a modelled TLB,
    /// which takes about 26 times as long as a trial; its results are the measures model.…
    #[arg(long)]
    model: bool,

    #[command(flatten)]
    judge: judge::JudgeArgs,

    /// Print the plan or the report as JSON (docs/json.md)
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    guest: guest::GuestArgs,

    /// Run the variants of the recipe with this program
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Parses a number of rounds. 0 is refused with the other problems of the recipe and its command line.
fn parse_repeats(text: &str) -> Result<u32, String> {
    parse_bounded::<u32, 0, 10_000>(text).map_err(|_| "expected an integer from 1 to 10000".to_owned())
}

pub fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(path) = &args.resume {
        if args.dry_run {
            let failure = usage_error("--dry-run does not apply to --resume: the plan is in the file");
            return Err(failure.hint(format!("`pagelab report {}` shows its trials", path.display())));
        }
        let judge = args.judge.request();
        return resume(path, &ResumeOptions { json: args.json, guest: args.guest.clone(), judge });
    }
    let name = args.recipe.as_deref().unwrap_or_default();
    let (origin, text) = recipe_file::read_text(name)?;
    if simulation_recipe::is_simulation_recipe(&text) {
        args.judge.refuse_simulated()?;
        return run_simulated(args, &origin, &text);
    }
    // The error lists all problems, one per line.
    let resolved = resolve_recipe(args, &origin, &text);
    let resolved = resolved.map_err(|failure| args.guest.add_kernel_problems(failure))?;
    let mut problems = StartProblems::default();
    let is_guest = resolved.recipe.place == TrialPlace::Guest;
    args.guest.check(args, is_guest, &mut problems);
    let judge = args.judge.request();
    if let Some(judge) = &judge {
        problems.add_error(judge.check(&resolved.plan, &resolved.recipe));
    }
    if args.dry_run {
        problems.into_result()?;
        return print_plan(args, &resolved).map(|()| Exit::Success as u8);
    }
    if let Some(variant) = &resolved.compared_with {
        output::warn(&format!("note: --judge compares the kernels with the variant {variant:?} alone"));
    }
    let guests = match is_guest {
        true => Some(guest::find_guests(&args.guest, &resolved, problems)?),
        false => problems.into_result().map(|()| None)?,
    };
    if !is_guest {
        recipe_file::check_programs(&resolved)?;
    }
    let snapshot = read_snapshot();
    let started = manifest::current_moment();
    let file = output_file(args, &resolved.plan);
    let mut manifest = manifest::build_for_process("run", Some(resolved.plan.seed), started, &snapshot);
    manifest.machine.tlb = known_tlb(&snapshot.machine);
    let NewRunFile { path, replaces } = &file;
    let file = SessionFile::New { path, replaces: *replaces, manifest: &manifest };
    let (plan, has_model) = (&resolved.plan, args.model);
    if let Some(guests) = guests {
        return guest::run_in_guests(args, (plan, &resolved), guests, (path, file), (args.json, judge));
    }
    let swap = ExperimentSwap::with_dir(args.swap_dir.clone());
    let snapshot = &snapshot;
    let experiment = HostExperiment { plan, resolved: &resolved, snapshot, swap, has_model, judge };
    experiment.run(path, file, args.json)
}

/// The run file of a new experiment.
fn output_file(args: &Args, plan: &Plan) -> NewRunFile {
    args.output.run_file().unwrap_or_else(|| NewRunFile::at(free_run_file_name(&plan.name)))
}

/// Runs a recipe of the simulator, which has seeds instead of rounds.
fn run_simulated(args: &Args, origin: &str, text: &str) -> Result<u8, Failure> {
    if !args.command.is_empty() || args.swap_dir.is_some() || args.model || args.time_budget.is_some() {
        return Err(usage_error(
            "this recipe is simulated: a program, --swap-dir, --model and --time-budget do not apply",
        ));
    }
    if args.guest.place.is_some() {
        return Err(usage_error("this recipe is simulated: --place does not apply"));
    }
    let mut problems = StartProblems::default();
    args.guest.check(args, false, &mut problems);
    if args.repeats == Some(0) {
        problems.add(usage_error(NO_REPEATS));
    }
    problems.into_result()?;
    let asked = RecipeOverrides { quick: args.quick, seeds: args.repeats, ..Default::default() };
    if args.dry_run {
        return sim::run::dry_run_recipe(origin, text, &asked, args.json);
    }
    let how = SimulationOptions { output: args.output.run_file(), json: args.json, ..Default::default() };
    sim::run::run_recipe(origin, text, &asked, how)
}

/// Prints the plan, and the changes of the machine that it would make.
fn print_plan(args: &Args, resolved: &ResolvedExperiment) -> Result<(), Failure> {
    let (recipe, plan) = (&resolved.recipe, &resolved.plan);
    let site = GuardSite::live().map_err(|error| error.to_string());
    let (expected, at_most) = resolved.estimate_duration();
    let variants = recipe.variants.iter();
    let command = |slot: ScheduleSlot| resolved.trial_command(slot.workload, slot.variant);
    let view = RunPlanView {
        plan,
        warm_up: recipe.warm_up,
        repeats: recipe.repeats,
        has_twins: recipe.has_twins,
        expected_ns: expected.map(bounded_ns),
        at_most_ns: bounded_ns(at_most),
        missing: recipe.workloads.iter().map(host_place::missing_reason).collect(),
        changes: match recipe.place {
            TrialPlace::Host => {
                variants.map(|variant| host_place::describe_changes(&site, variant)).collect()
            }
            TrialPlace::Guest => (0..variants.len()).map(|at| guest::describe(recipe, at)).collect(),
        },
        commands: plan.schedule.iter().map(command).collect(),
        has_model: args.model,
        guests: (recipe.place == TrialPlace::Guest)
            .then(|| guest::plan_guests(&args.guest, resolved, &output_file(args, plan).path)),
    };
    match args.json {
        true => output::print_json(&json::run_plan::to_document(&view)),
        false => output::print(&render(&view, output::stdout_style())),
    }
}

/// Resolves a recipe with its command line.
fn resolve_recipe(args: &Args, origin: &str, text: &str) -> Result<ResolvedExperiment, Failure> {
    let words = super::parse_command(&args.command)?;
    let command = (!words.is_empty()).then_some(words);
    let (quick, repeats, time_budget) = (args.quick, args.repeats, args.time_budget);
    let of_guest = args.guest.overrides(args.judge.request().is_some());
    let overrides = ExperimentOverrides { quick, repeats, time_budget, command, ..of_guest };
    ResolvedExperiment::parse(origin, text, &overrides).map_err(|bad| usage_error(&bad.to_string()))
}

/// What a command line that resumes a file may change.
#[derive(Debug, Default)]
pub struct ResumeOptions {
    /// Output as JSON.
    pub json: bool,
    /// Options of guests that change no result.
    pub guest: guest::GuestArgs,
    /// The judgement at its end, in place of the one that was requested when it began.
    pub judge: Option<judge::JudgeRequest>,
}

/// Resumes a file: runs the remaining trials of its own recipe under its own command line. Of a complete file
/// it shows the report.
pub fn resume(path: &Path, now: &ResumeOptions) -> Result<u8, Failure> {
    let bad = |text: &str| Failure::cannot_resume(path, text);
    let options = SimulationOptions { json: now.json, ..SimulationOptions::default() };
    let (writer, run) = match RunWriter::resume(path) {
        Ok(opened) => opened,
        Err(error) => {
            let run = (error.kind() == ErrorKind::NotStorable).then(|| read_run_file(path).ok()).flatten();
            let shown = run.and_then(|run| show_complete(path, &run, now, &options));
            return shown.unwrap_or_else(|| Err(read_failure_for(&error, "`pagelab run RECIPE -o FILE`")));
        }
    };
    if let Some(experiment) = run.simulated_experiment() {
        now.judge.as_ref().map_or(Ok(()), |_| Err(judge::refuse_simulated()))?;
        return session::resume_open(path, (writer, &run), &experiment.plan, &options);
    }
    let Some(experiment) = &run.experiment else {
        return Err(bad("it contains no experiment; hint: create one with `pagelab run RECIPE`"));
    };
    let args = match parse_own_command(&run) {
        Some(Command::Run(args)) => Some(args),
        // Its recipe contains everything from its command line.
        Some(Command::Tune(_)) if run.tune.as_ref().is_some_and(|tune| tune.pid.is_none()) => None,
        Some(Command::Tune(_)) => {
            return Err(bad(
                "the process was not started by pagelab and may have changed; hint: start a new run",
            ));
        }
        _ => {
            return Err(bad("it was not created by `pagelab run` or `pagelab tune`; hint: start a new run"));
        }
    };
    let plan = &experiment.plan;
    let resolved = match &args {
        Some(args) => resolve_recipe(args, &plan.origin, &plan.recipe),
        None => ResolvedExperiment::parse(&plan.origin, &plan.recipe, &ExperimentOverrides::default())
            .map_err(|error| usage_error(&error.to_string())),
    };
    let resolved = resolved.map_err(|error| bad(&format!("this version rejects its recipe:\n{error}")))?;
    if let Some(judge) = &now.judge {
        judge.check(plan, &resolved.recipe)?;
    }
    let judge = now.judge.clone().or_else(|| args.as_ref()?.judge.request());
    if let Some(args) = args.as_ref().filter(|_| resolved.recipe.place == TrialPlace::Guest) {
        let guests =
            guest::find_guests(&args.guest.with_changes(&now.guest), &resolved, StartProblems::default())?;
        guests.check_accelerator(&run).map_err(|why| bad(&why))?;
        let file = SessionFile::Resumed(writer, &run);
        return guest::run_in_guests(args, (plan, &resolved), guests, (path, file), (now.json, judge));
    }
    recipe_file::check_programs(&resolved)?;
    let has_model = args.as_ref().is_some_and(|args| args.model);
    let swap = ExperimentSwap::with_dir(args.and_then(|args| args.swap_dir));
    let snapshot = &read_snapshot();
    let experiment = HostExperiment { plan, resolved: &resolved, snapshot, swap, has_model, judge };
    experiment.run(path, SessionFile::Resumed(writer, &run), now.json)
}

/// The command that began a run.
fn parse_own_command(run: &Run) -> Option<Command> {
    Cli::try_parse_from(&run.manifest.command_line).ok().map(|cli| cli.command)
}

/// Shows the report of a file that has nothing left to run, with the exit code of its run; `None` if it has.
fn show_complete(
    path: &Path,
    run: &Run,
    now: &ResumeOptions,
    options: &SimulationOptions,
) -> Option<Result<u8, Failure>> {
    if let Some(experiment) = run.simulated_experiment() {
        return session::show_complete(path, experiment, options);
    }
    let experiment = run.experiment.as_ref().filter(|_| matches!(run.ending, RunEnd::Complete { .. }))?;
    output::warn(&format!("note: {} is complete; nothing left to run", path.display()));
    let own = || match parse_own_command(run)? {
        Command::Run(args) => args.judge.request(),
        _ => None,
    };
    let judge = now.judge.clone().or_else(own);
    let is_all_done = experiment.trials.iter().all(|trial| trial.end == TrialEnd::Done);
    let exit = report::show(path, now.json, judge.as_ref());
    Some(exit.map(|exit| if is_all_done || judge.is_some() { exit as u8 } else { Exit::Partial as u8 }))
}

/// An experiment on this machine.
pub struct HostExperiment<'e> {
    /// The plan in the run file.
    pub plan: &'e Plan,
    /// What this version runs.
    pub resolved: &'e ResolvedExperiment,
    /// The machine.
    pub snapshot: &'e Snapshot,
    /// Its swap file, if a variant needs one.
    pub swap: ExperimentSwap,
    /// Whether a model of the TLBs was requested, for counters that cannot be read.
    pub has_model: bool,
    /// The judgement at its end, if one was requested.
    pub judge: Option<judge::JudgeRequest>,
}

impl HostExperiment<'_> {
    /// Runs the remaining trials, closes the file and prints the report.
    pub fn run(self, path: &Path, file: SessionFile<'_>, json: bool) -> Result<u8, Failure> {
        let HostExperiment { plan, resolved, snapshot, swap, has_model, judge } = self;
        let stop = watch_signals()?;
        let _status = CommandStatus::start(format!("preparing {}", plan.name), StatusEnd::Unknown);
        let mut machine = snapshot.machine.clone();
        machine.tlb = known_tlb(&machine);
        print_processor(&machine, snapshot);
        let total = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
        let requested = || stop.signal();
        let modelled = |workload: usize, variant: usize| {
            output::print_note(&format!(
                "model: running {} under {} once in QEMU, about 26 times slower",
                plan.workloads[workload].name, plan.variants[variant].name
            ));
            processor_model::measure_modelled(resolved, (workload, variant), &requested)
        };
        let is_modelled = has_model && !processor_model::has_tlb_counters(snapshot);
        if has_model && !is_modelled {
            output::print_note("model: not needed, hardware counters are available");
        }
        let mut setup = SetupProgress { stop: stop.clone(), is_verbose: true };
        let context = TrialContext {
            site: GuardSite::live().map_err(|error| error.to_string()),
            machine: &machine,
            total_memory: total.unwrap_or(Bytes(0)),
            reserve: Reserve::from_total_memory(total.unwrap_or(Bytes(0))),
            swap_file: swap.into(),
            resolved,
            stop_signal: &requested,
            take_snapshot: &read_snapshot,
            setup_observer: std::cell::RefCell::new(&mut setup),
            peak_bytes: std::cell::RefCell::default(),
            model: if is_modelled { Some(&modelled) } else { None },
        };
        let place = HostPlace::new(context, file.earlier_run());
        run_session(plan, &place, &requested, (path, file), (json, judge.as_ref()))
    }
}

/// Runs the remaining trials at their place, closes the file and prints the report.
fn run_session(
    plan: &Plan,
    place: &dyn Place,
    stop: StopRequest<'_>,
    (path, file): (&Path, SessionFile<'_>),
    (json, judge): (bool, Option<&judge::JudgeRequest>),
) -> Result<u8, Failure> {
    let is_resumed = matches!(file, SessionFile::Resumed(..));
    let mut progress = RunProgress::new(plan);
    let on_event = &mut |event: &SessionEvent<'_>| progress.report(event);
    let session = ExperimentSession { plan, place, first_trial: None, stop, on_event };
    let end = session.run(file);
    progress.clear();
    let resumed = is_resumed.then_some(path);
    let end = end.map_err(|error| experiment_failure(&error, resumed))?;
    if let Err(error) = &end.outcome {
        print_remaining("", (path, plan), &end);
        return Err(experiment_failure(error, resumed));
    }
    let shown = report::show(path, json, judge);
    print_end(path, plan, &end, (shown, judge.is_some()))
}

/// Prints the processor's TLBs and its available counters, before anything is measured.
fn print_processor(machine: &pagelab_model::Machine, snapshot: &Snapshot) {
    for (name, text) in pagelab_report::checkup::cache_and_tlb_facts(machine) {
        output::print_note(&format!("{name:<10}{text}"));
    }
    let counters = snapshot.instruments.iter().find(|instrument| instrument.name == "hardware_counters");
    let Some(counters) = counters else { return };
    let text = match &counters.state {
        Ok(found) => found.clone(),
        Err(absence) => format!("no hardware counters: {}", absence.reason_and_hint()),
    };
    output::print_note(&format!("counters  {text}"));
}

/// Prints what an experiment that ended early has stored, and how it continues.
fn print_remaining(why: &str, (path, plan): (&Path, &Plan), end: &SessionEnd) {
    let restored = if plan.place == Plan::GUEST { "" } else { "; all settings are restored" };
    output::warn(&format!(
        "note: {why}saved in {name}: {}; remaining: {}{restored}\n  resume with: pagelab {} --resume {name}",
        format_plural(end.trials.len() as u64, "trial"),
        end.remaining,
        resuming_command(plan),
        name = path.display()
    ));
}

/// The command that resumes a plan.
fn resuming_command(plan: &Plan) -> &'static str {
    if plan.origin == pagelab_tune::tuning::ORIGIN { "tune" } else { "run" }
}

/// Prints the last line and returns the exit code. A judgement has counted failed trials already.
fn print_end(
    path: &Path,
    plan: &Plan,
    end: &SessionEnd,
    (report_exit, is_judged): (Outcome, bool),
) -> Result<u8, Failure> {
    let name = path.display();
    let command = resuming_command(plan);
    if let Some(signal) = end.stopped_by {
        let why = pagelab_host::capture::signal_name(signal);
        print_remaining(&format!("stopped by {why}; "), (path, plan), end);
        // Without a complete pair its measure may be unknown.
        let exit = if is_judged { Ok(Exit::Success) } else { report_exit };
        return exit.map(|_| Exit::code_after_signal(signal));
    }
    let lost = end.lost_count();
    if lost > 0 {
        output::warn(&format!(
            "note: {} lost, also when repeated\n  repeat with: pagelab {command} --resume {name}",
            format_plural(lost as u64, "trial")
        ));
    }
    output::print_note(&format!("→ {name}   pagelab report {name}"));
    let exit = report_exit?;
    Ok(if end.is_all_done() || is_judged { exit as u8 } else { Exit::Partial as u8 })
}
