//! `pagelab tune`: comparison of a program without huge pages, with planned huge pages, and with all, and the
//! number that it needs. It profiles, plans, measures the interleaved arms, and reports the verdict.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use pagelab_experiment::swap_file::ExperimentSwap;
use pagelab_formats::duration;
use pagelab_tune::profile::MissSource;
use pagelab_tune::tuning;
use pagelab_tune::tuning::attached::{AttachedEnd, AttachedTuning};
use pagelab_tune::tuning::{AdvicePolicy, PreparedTuning, TuningNames, TuningRequest, TuningStep};

use super::plan::PlanSizeArgs;
use super::profile::SOURCES;
use super::run as experiment;
use super::{report, usage_error};
use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::output_args::OutputArgs;
use crate::value_parsers::{choice, parse_bounded, parse_pid, parse_seed};

const AFTER_HELP: &str = "\
Examples:
  pagelab tune -- ./server --bench       profile, plan, none / plan / all
  pagelab tune --share 0.9 -- ./server   the fewest pages with 90 % of the gain
  pagelab tune -n 15 --curve -- ./x      15 pages; and 0, 8, 16, 32 … all
  pagelab tune --source exact -- ./x     misses by a modelled TLB
  pagelab tune --pid 4121 --metric './load -n 100000'
  pagelab tune --dry-run -- ./server     print the plan
  pagelab tune --resume x.pagelab        resume after Ctrl-C or a kill
  pagelab apply tune-server-1.plan.toml -- ./server --bench

The arms are the compared variants: none, plan, all. They all run under pagelab's supervisor, so its \
 overhead cancels out. Each trial is written as soon as it ends. The answer may be that huge pages do \
 not help. Exit code 0: measured, whatever the answer; 1: with --pid, the process has no memory that \
 huge pages could back; 5: some trials failed.

docs/tune.md
";

const OUTPUT_HELP: &str = "Run file to create [default: tune-PROGRAM-1.pagelab, the first free number]";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, mut_arg("output", |arg| arg.help(OUTPUT_HELP)))]
pub struct Args {
    #[command(flatten)]
    size: PlanSizeArgs,

    /// Profile source
    #[arg(long, default_value = "auto", value_parser = choice(&SOURCES))]
    source: MissSource,

    /// Use this profile instead of creating one
    #[arg(long, value_name = "FILE.pagelab", conflicts_with = "source")]
    profile: Option<PathBuf>,

    /// Maximum number of counted rounds; fewer than 6 give no verdict
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = parse_bounded::<u32, 1, 10_000>)]
    repeats: u32,

    /// Time for the profile and all trials: no round begins that would exceed it
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration::parse)]
    time_budget: Duration,

    /// Also measure 8, 16, 32 … huge pages, and equal numbers of random and most-used ones
    #[arg(long)]
    curve: bool,

    /// Run two rounds without warm-up to check that everything works; gives no verdict
    #[arg(long, conflicts_with = "repeats")]
    quick: bool,

    /// Judge by a figure that the program prints instead of its run time; TEXT is the text around it, for
    /// example "took {} s"
    #[arg(long, value_name = "TEXT")]
    figure: Option<String>,

    /// Exit codes of the program that mean success, for example 0,1
    #[arg(long, value_name = "CODES", value_delimiter = ',', default_value = "0",
        value_parser = parse_bounded::<u8, 0, 255>)]
    exit_codes: Vec<u8>,

    /// With --figure, higher figures are better
    #[arg(long)]
    higher: bool,

    /// Time limit of one run of the program
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    time_limit: Duration,

    /// Tune a running process: collapse and split its huge pages, without a restart
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "curve"], requires = "metric",
        value_parser = parse_pid)]
    pid: Option<u32>,

    /// With --pid, shell command that puts load on the process. If its last line of output is a number, that
    /// figure is judged; if it prints nothing, its run time is
    #[arg(long, value_name = "CMD", requires = "pid")]
    metric: Option<String>,

    /// With --pid, duration of the profile, while CMD runs
    #[arg(long = "for", value_name = "TIME", default_value = "10s", requires = "pid",
        value_parser = duration::parse)]
    profile_for: Duration,

    /// Seed of the schedule and of random choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_seed)]
    seed: u64,

    /// Override the program's own advice against huge pages in any case. By default it is overridden only if
    /// its memory is mostly mapped, not under userfaultfd, and fits into the available memory
    #[arg(long = "override", conflicts_with_all = ["pid", "respect"])]
    overrides: bool,

    /// Leave the program's own advice against huge pages in all arms
    #[arg(long)]
    respect: bool,

    /// Print the plan and run nothing
    #[arg(long)]
    dry_run: bool,

    /// Resume an interrupted run
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["pages", "share", "budget", "source", "profile", "repeats", "curve",
            "time_budget", "quick", "figure", "exit_codes", "dry_run", "output", "plan", "command", "pid",
            "metric", "overrides", "respect"])]
    resume: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,

    /// Plan file to create [default: the name of the run file with .plan.toml]
    #[arg(long, value_name = "OUT.toml")]
    plan: Option<PathBuf>,

    /// Print the report as JSON (docs/json.md)
    #[arg(long)]
    json: bool,

    /// The program to tune
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    fn to_request(&self) -> TuningRequest {
        TuningRequest {
            size: self.size.to_plan_size(),
            source: self.source,
            profile: self.profile.clone(),
            repeats: self.repeats,
            time_budget: self.time_budget,
            measures_curve: self.curve,
            is_quick: self.quick,
            figure: self.figure.clone(),
            exit_codes: self.exit_codes.clone(),
            is_higher_better: self.higher,
            time_limit: self.time_limit,
            profile_time: self.profile_for,
            seed: self.seed,
            advice: match (self.overrides, self.respect) {
                (true, _) => AdvicePolicy::Override,
                (_, true) => AdvicePolicy::Respect,
                _ => AdvicePolicy::Auto,
            },
            output: self.output.path().map(Path::to_owned),
            plan: self.plan.clone(),
            replaces_files: self.output.replaces(),
        }
    }
}

pub fn run(args: &Args) -> Result<u8, Failure> {
    if let Some(path) = &args.resume {
        tuning::restore_plans(path, &recorded_request)?;
        let now = experiment::ResumeOptions { json: args.json, ..Default::default() };
        return experiment::resume(path, &now);
    }
    let request = args.to_request();
    if let Some(pid) = args.pid {
        return tune_process(args, &request, pid);
    }
    let command = super::parse_command(&args.command)?;
    let Some(program) = command.first() else {
        return Err(Failure::no_command("`-- COMMAND`, for example pagelab tune -- ./server --bench"));
    };
    if args.higher && args.figure.is_none() {
        return Err(usage_error("--higher requires --figure 'TEXT {} TEXT'"));
    }
    let names = TuningNames::choose(&request, program)?;
    if args.dry_run {
        let text = tuning::describe_tuning(&request, &command, &names, output::stdout_style())?;
        output::print(&text)?;
        return Ok(Exit::Success as u8);
    }
    experiment::check_program(program)?;
    match tuning::prepare_tuning(&request, &command, &names)? {
        TuningStep::Ended(code) => Ok(code),
        TuningStep::Ready(prepared) => {
            let PreparedTuning { path, writer, times, resolved, snapshot } = *prepared;
            let swap = ExperimentSwap::with_dir(None);
            let (resolved, snapshot) = (&resolved, &snapshot);
            let plan = &resolved.plan;
            let (has_model, judge) = (false, None);
            let experiment = experiment::HostExperiment { plan, resolved, snapshot, swap, has_model, judge };
            experiment.run(&path, experiment::SessionFile::Open(writer, times), args.json)
        }
    }
}

/// Tunes a running process, and prints the report.
fn tune_process(args: &Args, request: &TuningRequest, pid: u32) -> Result<u8, Failure> {
    let Some(command) = &args.metric else {
        return Err(usage_error(
            "--pid requires --metric CMD, a command that loads the process and measures it",
        ));
    };
    let tuning = AttachedTuning::check(request, pid, command)?;
    if args.dry_run {
        output::print(&tuning.describe(output::stdout_style())?)?;
        return Ok(Exit::Success as u8);
    }
    match tuning.run()? {
        AttachedEnd::Ended(code) => Ok(code),
        AttachedEnd::Measured { path, stopped_by } => {
            let shown = report::show(&path, args.json, None)?;
            Ok(stopped_by.map_or(shown as u8, |signal| tuning::report_kept_trials(&path, signal)))
        }
    }
}

/// Returns the request of the command line in a run file.
fn recorded_request(words: &[String]) -> Option<TuningRequest> {
    match Cli::try_parse_from(words).ok()?.command {
        Command::Tune(args) => Some(args.to_request()),
        _ => None,
    }
}
