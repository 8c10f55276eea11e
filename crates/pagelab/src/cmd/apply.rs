//! `pagelab apply`: runs a program with planned huge pages, or adds them to a running process.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction;
use pagelab_formats::duration;
use pagelab_sys::spawn;
use pagelab_tune::apply::{self, ApplyRequest, ApplySubject};

use crate::atomic_file::check_output;
use crate::exit::{Exit, Failure, FailureKind, Outcome};
use crate::output;
use crate::output_args::ForceArgs;
use crate::value_parsers::{Choice, choice, parse_pid};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// File written by `pagelab plan` or `pagelab tune`, `-` for standard input, `never` (disable huge
    /// pages), `none` (no advice beyond the program's own) or `all` (advise all anonymous memory)
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,
    /// Collapse memory of a running process into huge pages, instead of starting a command
    #[arg(long, value_name = "PID", conflicts_with = "command", value_parser = parse_pid)]
    pid: Option<u32>,
    /// Override the program's own advice against huge pages (MADV_NOHUGEPAGE, prctl)
    #[arg(long = "override")]
    overrides: bool,
    /// Accept a plan made for a different build of the program
    #[arg(long)]
    stale: bool,
    /// Write a JSON summary to this file
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    #[command(flatten)]
    replacement: ForceArgs,
    /// Run the program without the supervisor: while it runs, pagelab collapses its memory into huge pages
    /// from outside (MADV_COLLAPSE). The program survives if pagelab is killed, but gets huge pages only
    /// after the first touch
    #[arg(long, conflicts_with = "pid")]
    no_tracer: bool,
    /// Kind of huge pages: transparent, or from the hugetlb pool, which is enlarged during the run
    #[arg(long = "backing", value_name = "BACKING", default_value = "thp",
        conflicts_with_all = ["pid", "no_tracer"],
        action = ArgAction::Set, value_parser = choice(&BACKINGS))]
    uses_hugetlb: bool,
    /// With --pid, time limit for each region
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    deadline: Duration,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The command to run
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Kinds of huge pages: whether they are from the hugetlb pool.
const BACKINGS: [Choice<bool>; 2] = [
    (&["thp"], "Transparent huge pages", false),
    (
        &["hugetlb"],
        "Pages from the hugetlb pool, for comparison; the program must not split or resize these mappings",
        true,
    ),
];

const AFTER_HELP: &str = "\
Examples:
  pagelab apply plan.toml -- xz -9k file    advice before the first touch
  pagelab apply none -- xz -9k file         the same supervisor, without advice
  pagelab apply plan.toml --pid 4121        a running process
  pagelab apply - -- ./server <plan.toml    the plan from standard input

The exit code is the program's, or 128 plus the signal that ended it.\ndocs/apply.md describes what happens \
 if one of the processes is killed.";

/// Runs the program, or applies the plan to a running process.
pub fn run(args: &Args) -> Result<u8, Failure> {
    if args.command.is_empty() && args.pid.is_none() {
        return Err(Failure::no_command("`-- COMMAND` or `--pid PID`"));
    }
    if let Some(path) = &args.summary {
        check_output(path, args.replacement.force)?;
    }
    let request = ApplyRequest {
        plan: args.plan.clone().into_os_string(),
        subject: match args.pid {
            Some(pid) => ApplySubject::Process(pid),
            None => ApplySubject::Launch(args.command.clone()),
        },
        overrides: args.overrides,
        allow_stale: args.stale,
        summary: args.summary.clone().map(PathBuf::into_os_string),
        is_untraced: args.no_tracer,
        uses_hugetlb: args.uses_hugetlb,
        region_deadline: args.deadline,
    };
    if !args.dry_run {
        return apply::run_apply(&request);
    }
    output::print(&apply::describe_apply(&request)?)?;
    Ok(Exit::Success as u8)
}

#[derive(Debug, clap::Args)]
pub struct SuperviseArgs {
    /// Read the job from this file descriptor
    #[arg(long, value_name = "FD")]
    job: i32,
    /// Report to this file descriptor
    #[arg(long, value_name = "FD")]
    tell: i32,
}

/// Runs the supervisor process of a front end.
pub fn supervise(args: &SuperviseArgs) -> Outcome {
    let adopt = |fd| {
        spawn::adopt_fd(fd).map_err(|error| {
            Failure::cannot(FailureKind::Usage, format_args!("use file descriptor {fd}"), error)
        })
    };
    let (job, reports) = (adopt(args.job)?, adopt(args.tell)?);
    apply::run_supervisor(File::from(job), File::from(reports))?;
    Ok(Exit::Success)
}
