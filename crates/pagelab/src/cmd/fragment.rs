//! `pagelab fragment`: fragment physical memory on purpose, hold it, give it back.

mod act;
mod group;
mod held;
mod plan;
mod procedure;
mod random;
mod recording;
mod show;
mod size;
mod taking;
mod unmovable;

use std::ffi::OsString;
use std::path::PathBuf;

use pagelab_contig::fragment::ErrorKind;
use pagelab_host::machine::Known;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{collect, processes};
use pagelab_model::Snapshot;

use crate::cmd::program;
use crate::exit::{Exit, Failure};
use plan::Plan;

const EXAMPLES: &str = "\
Examples:
  pagelab fragment --target 0.8             to F_u(9) = 0.8; Ctrl-C gives back
  pagelab fragment --target 0.8 --dry-run   the plan, and nothing is taken
  pagelab fragment --target 0.5 -- make -j8      while a command runs
  pagelab fragment --target 0.9 --order 4   for blocks of 16 pages
  pagelab fragment --target 0.3 --size 2G   break up 2 GiB at most
  pagelab fragment --unmovable 10%          blocks that compaction cannot empty
  pagelab fragment random --size 50%        single pages given back by chance

Huge pages are taken a few at a time and given back but for the fewest pages
that spoil them, so that little is held at any moment. Exit code: that of
COMMAND, else 0 at the target, 5 short of it or given back for others' sake.
docs/fragment.md
";

/// What `fragment` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,

    /// The unusable free space index to reach, 0 to 1, within 0.02
    #[arg(long, value_name = "F_U", allow_hyphen_values = true)]
    target: Option<String>,

    /// Of blocks of 2^J pages [default: the order of a huge page]
    #[arg(long, value_name = "J", allow_hyphen_values = true)]
    order: Option<String>,

    /// Break up at most this much memory: 80%, 4G, 512M [default: what the target needs]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    size: Option<String>,

    /// Which pages are kept; the same seed keeps the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Take memory of this node only [default: the node of the largest zone]
    #[arg(long, value_name = "N")]
    node: Option<u32>,

    /// Leave at least this much available [default: 5 % of memory, 512M at least]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    reserve: Option<String>,

    /// Hold until Ctrl-C; the default where no command is given
    #[arg(long, conflicts_with = "command")]
    hold: bool,

    /// While holding, correct what compaction and others undo
    #[arg(long)]
    keep_to_target: bool,

    /// Stop the kernel's own compaction meanwhile (vm.compaction_proactiveness 0)
    #[arg(long)]
    pause_compaction: bool,

    /// Where huge pages are switched off, switch them to madvise meanwhile
    #[arg(long)]
    allow_thp: bool,

    /// Count before, while and after how many huge pages can be had, by taking them
    #[arg(long)]
    ask: bool,

    #[command(flatten)]
    unmovable: unmovable::Unmovable,

    /// Print the plan and take nothing
    #[arg(long)]
    dry_run: bool,

    /// Every number as JSON, once all is given back
    #[arg(long)]
    json: bool,

    /// Record free blocks and use meanwhile in this run file
    #[arg(short = 'o', long = "run", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Run this while memory is fragmented, and end with its exit code
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Ways to fragment without a target.
#[derive(Debug, clap::Subcommand)]
enum Mode {
    /// Fill memory, and give single pages of it back by chance
    Random(Box<random::Args>),
    /// Compact, score, fragment by chance, score, compact, score: beside published scores
    Procedure(Box<procedure::Args>),
}

/// Fragments, holds, gives back. The exit code is the command's where one was given.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let snapshot = look();
    match &args.mode {
        Some(Mode::Random(args)) => return random::run(args, &snapshot),
        Some(Mode::Procedure(args)) => return procedure::run(args, &snapshot),
        None if args.target.is_none() && args.unmovable.is_given() => {
            return unmovable::alone(args, &snapshot);
        }
        None => {}
    }
    // Before any memory is taken for it.
    args.command.first().map(|name| program(name)).transpose()?;
    let plan = Plan::resolve(args, &snapshot)?;
    if args.dry_run {
        let wanted = args.unmovable.resolve(&plan.facts)?;
        return show::plan(&plan, wanted.as_ref(), args.json);
    }
    act::run(args, plan, &snapshot)
}

/// A look at the machine, without its processes.
fn look() -> Snapshot {
    let root = Root::live();
    let nobody = processes::Budget { processes_max: 0, ..processes::Budget::default() };
    let options = collect::CollectOptions {
        pagetypeinfo: false,
        processes: nobody,
        known: Known::default(),
        taken_realtime_ns: None,
    };
    collect::collect(&Reader::new(&root), &options)
}

/// An error of the engine with its exit code.
fn failure(error: &pagelab_contig::fragment::Error) -> Failure {
    let exit = match error.kind {
        ErrorKind::Usage => Exit::Usage,
        ErrorKind::NotAvailable => Exit::NotAvailable,
        ErrorKind::Refused => Exit::Partial,
    };
    Failure::new(exit, error.to_string())
}
