//! `pagelab apply`: runs a program with huge pages where a plan says, or gives them to one that runs.

mod dry;
mod front;
mod json;
mod loose;
mod pool;
pub mod supervise;

use std::ffi::OsString;
use std::path::PathBuf;

use pagelab_formats::plan_toml;
use pagelab_host::machine;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::{Bytes, PageSize};
use pagelab_target::outside::Outside;
use pagelab_target::supervise::{Choice, Spec, Thp};

use crate::exit::{Exit, Failure};
use crate::input;

/// What `apply` was asked for.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The plan: a file of `pagelab plan`, or `none`, or `all`
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    #[command(flatten)]
    how: How,
    /// The command to run
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How it is done.
#[derive(Clone, Debug, clap::Args)]
struct How {
    /// Give the huge pages to a running process instead
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Where the program itself is against huge pages, ask again after it
    #[arg(long = "override")]
    overrides: bool,
    /// Carry out a plan for another build of the program too
    #[arg(long)]
    stale: bool,
    /// Write what came of it to this file, as JSON
    #[arg(long, value_name = "FILE.json")]
    summary: Option<PathBuf>,
    /// Collapse from outside while it runs, without tracing it: it survives any
    /// kill, and gets its huge pages after the first touch
    #[arg(long, conflicts_with = "pid")]
    no_tracer: bool,
    /// What the huge pages are: transparent ones, or pages of the hugetlb pool, which
    /// is made large enough for the plan meanwhile
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["pid", "no_tracer"])]
    backing: Backing,
    /// How long one region of a running process may take
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = pagelab_formats::duration::parse)]
    deadline: std::time::Duration,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// What huge pages are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Backing {
    /// Transparent huge pages
    #[default]
    Thp,
    /// Pages of the hugetlb pool, to compare with: the program must not cut or grow them
    Hugetlb,
}

const AFTER_HELP: &str = "\
PLAN is a file, or a word: `none` advises nothing (huge pages come only where
the program itself asks), `all` advises all anonymous memory.

Examples:
  pagelab apply plan.toml -- xz -9k file    advice before the first touch
  pagelab apply none -- xz -9k file         the same supervisor, no huge pages
  pagelab apply plan.toml --pid 4121        a process that runs

The exit code is the program's, or 128 plus the signal that ended it.
docs/apply.md says who dies with whom.";

/// Runs the program.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let choice = args.choice()?;
    if args.command.is_empty() && args.how.pid.is_none() {
        let message = "what shall run with this plan? give a command behind `--`, or --pid PID";
        return Err(super::usage(message));
    }
    if let Some(pid) = args.how.pid {
        let outside = args.outside(pid, choice)?;
        return if args.how.dry_run { dry::running(outside) } else { front::run(args, front::signals()?) };
    }
    let spec = args.spec(choice)?;
    dry::refuse_stale(&spec)?;
    match (args.how.dry_run, args.how.no_tracer) {
        (true, _) => dry::launched(&spec),
        (false, true) => loose::run(args, spec),
        (false, false) => {
            let signals = front::signals()?;
            let pool = pool::enlarge(&spec)?;
            let code = front::run(args, signals);
            pool.into_iter().for_each(pool::give_back);
            code
        }
    }
}

impl Args {
    /// The plan that was named.
    fn choice(&self) -> Result<Choice, Failure> {
        match self.plan.to_str() {
            Some("none") => return Ok(Choice::Nothing),
            Some("all") => return Ok(Choice::All),
            _ => {}
        }
        let (name, text) = input::read(&self.plan, input::Reader::Made("`pagelab plan -o FILE`"))?;
        let plan = plan_toml::parse(&text, huge_page())
            .map_err(|error| Failure::new(Exit::BadInput, error.in_file(&name)))?;
        Ok(Choice::Plan(plan))
    }

    /// The running process.
    fn outside(&self, pid: u32, choice: Choice) -> Result<Outside, Failure> {
        let outside = Outside::of(pid, choice, self.how.stale, huge_page().0);
        outside.map_err(super::target_failure)
    }

    /// All that the supervisor must know.
    fn spec(&self, choice: Choice) -> Result<Spec, Failure> {
        let name = self.command.first().cloned().unwrap_or_default();
        let program = super::program(&name)?;
        Ok(Spec {
            program,
            arguments: self.command.clone(),
            choice,
            overrides: self.how.overrides,
            hugetlb: self.how.backing == Backing::Hugetlb,
            stale: self.how.stale,
            thp: Thp::OnlyAdvised,
            sees_all: false,
            page: page_size().bytes(),
            huge: huge_page().0,
        })
    }
}

/// The size of a huge page here; where the kernel has none, that of its architecture.
fn huge_page() -> Bytes {
    machine::pmd_size(&Reader::new(&Root::live()), page_size())
}

fn page_size() -> PageSize {
    machine::live_page_size().unwrap_or(PageSize::USUAL)
}
