//! `pagelab fragment`: fragments physical memory on purpose, holds it, and releases it.

use std::ffi::OsString;
use std::time::Duration;

use pagelab_formats::duration;
use pagelab_fragment::options::{
    FragmentOptions, HeldOptions, MemorySize, ProcedureOptions, RandomOptions, UnmovableOptions, WalkSettings,
};
use pagelab_fragment::plan::FragmentRunPlan;
use pagelab_fragment::{procedure, random, session, show, unmovable};
use pagelab_model::{Bytes, size};
use pagelab_probe::machine_tlb::read_snapshot;

use crate::cmd::find_program;
use crate::exit::{Exit, Failure};
use crate::output_args::OutputArgs;
use crate::value_parsers;

const EXAMPLES: &str = "\
Examples:
  pagelab fragment --target 0.8             to F_u(9) = 0.8; Ctrl-C releases it
  pagelab fragment --target 0.8 --dry-run   print the plan
  pagelab fragment --target 0.5 -- make     during a command
  pagelab fragment --target 0.9 --order 4   for blocks of 16 pages
  pagelab fragment --target 0.3 --size 2G   fragment at most 2 GiB
  pagelab fragment --unmovable 10%          pollute pageblocks
  pagelab fragment random --size 50%        release random pages

Allocates a few huge pages at a time and frees all but a few base pages of each,\nso that little \
 memory is held. Exit code: that of COMMAND; else 0 if the target\nwas reached, 5 if it was not \
 or if memory was released early for other\nprograms. docs/fragment.md
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true,
          subcommand_value_name = "SUBCOMMAND")]
pub struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,

    /// Target unusable free space index, 0 to 1; the tolerance is 0.02
    #[arg(long, value_name = "F_U", allow_hyphen_values = true, value_parser = size::parse_share)]
    target: Option<f64>,

    /// Buddy order of the index [default: the order of a huge page]
    #[arg(long, value_name = "J", allow_hyphen_values = true)]
    order: Option<String>,

    /// Fragment at most this much memory: 80% or 4G [default: what the target needs]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = MemorySize::parse)]
    size: Option<MemorySize>,

    /// Seed for choosing the kept pages
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parsers::parse_seed)]
    seed: u64,

    /// NUMA node [default: the node of the largest zone]
    #[arg(long, value_name = "N", value_parser = value_parsers::parse_node)]
    node: Option<u32>,

    /// Keep at least this much memory available [default: 5 % of memory, at least 512M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = MemorySize::parse)]
    reserve: Option<MemorySize>,

    /// While holding, correct the index when compaction or other programs change it
    #[arg(long)]
    keep_to_target: bool,

    /// Disable proactive compaction during the run (vm.compaction_proactiveness 0)
    #[arg(long)]
    pause_compaction: bool,

    /// If THP is disabled, set it to madvise during the run
    #[arg(long)]
    allow_thp: bool,

    /// Measure how many huge pages can be allocated before, during and after
    #[arg(long, alias = "ask")]
    measure_thp: bool,

    #[command(flatten)]
    held: HeldArgs,
}

/// What happens while memory is held.
#[derive(Debug, clap::Args)]
#[command(mut_arg("output", |arg| arg.help("Record free blocks and memory use in this run file")))]
struct HeldArgs {
    /// Hold the memory until Ctrl-C [default without a command]
    #[arg(long = "hold", conflicts_with = "command")]
    _hold: bool,

    /// Also pollute this share of all pageblocks with unmovable pages, for example 10%
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true, value_parser = size::parse_share)]
    unmovable: Option<f64>,

    /// Sources of unmovable pages, comma-separated: pagetables, pipes, sockets, dentries [default:
    /// pagetables]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "unmovable")]
    flavour: Vec<String>,

    /// Print the plan and allocate nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON once all memory is released
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    output: OutputArgs,

    /// Run this command while memory is fragmented; its exit code is returned
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How memory is filled and walked.
#[derive(Debug, clap::Args)]
pub struct WalkArgs {
    /// Fill this much memory: 80% or 4G; the reserve always stays free
    #[arg(long, value_name = "SIZE", default_value = "100%", allow_hyphen_values = true,
        value_parser = MemorySize::parse)]
    size: MemorySize,

    /// Size of the chunks in which memory is filled and walked
    #[arg(long, value_name = "SIZE", default_value = "24M", allow_hyphen_values = true,
        value_parser = size::parse_nonzero)]
    chunk: Bytes,

    /// Range of the number of pages per step of the walk, which is uniformly random
    #[arg(long, value_name = "A..B", default_value = "1..63", allow_hyphen_values = true)]
    step: String,

    /// Probability that a page is released at the end of a step
    #[arg(long, value_name = "P", default_value = "0.5", allow_hyphen_values = true,
        value_parser = size::parse_share)]
    probability: f64,

    /// Fill all chunks before the first walk, so that released pages stay free
    #[arg(long)]
    fill_first: bool,

    /// Seed for choosing the released pages
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parsers::parse_seed)]
    seed: u64,

    /// Keep at least this much memory available [default: 5 % of memory, at least 512M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = MemorySize::parse)]
    reserve: Option<MemorySize>,
}

const RANDOM_EXAMPLES: &str = "\
Examples:
  pagelab fragment random --size 50%           half of memory, until Ctrl-C
  pagelab fragment random --thp -- ./server    while a program runs
  pagelab fragment random --dry-run            print the plan
";

#[derive(Debug, clap::Args)]
#[command(after_help = RANDOM_EXAMPLES)]
pub struct RandomArgs {
    #[command(flatten)]
    options: WalkArgs,

    /// Request huge pages; they are not split, so few pages become free
    #[arg(long, conflicts_with = "_no_thp")]
    thp: bool,

    /// Do not request huge pages (the default)
    #[arg(long = "no-thp")]
    _no_thp: bool,

    #[command(flatten)]
    held: HeldArgs,
}

const ABOUT: &str = "\
docs/fragment.md describes the procedure and the published scores: compact,
wait, score F_u, fragment at random, score, compact while the fragmenter holds
its memory, score; once without huge pages and once with them. The scores of
this machine are printed next to the published ones. Only the shapes of the
curves are compared: absolute values depend on the machine. Requires root;
compaction cannot be undone. Exit code 0: the shape matches a published result;
1: it does not.
";

#[derive(Debug, clap::Args)]
#[command(after_help = ABOUT)]
#[command(mut_arg("output", |arg| arg.help("Record scores, free blocks and memory use in this run file")))]
pub struct ProcedureArgs {
    #[command(flatten)]
    options: WalkArgs,

    /// Only with huge pages
    #[arg(long, conflicts_with = "no_thp")]
    thp: bool,

    /// Only without huge pages
    #[arg(long)]
    no_thp: bool,

    /// Time to wait after the first compaction
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse_or_seconds)]
    settle: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Ways to fragment without a target.
#[derive(Debug, clap::Subcommand)]
enum Mode {
    /// Fill memory and release random pages
    Random(Box<RandomArgs>),
    /// Compact, fragment at random and compact again; compare the scores after each step with published ones
    Procedure(Box<ProcedureArgs>),
}

impl Args {
    fn to_options(&self) -> FragmentOptions {
        FragmentOptions {
            target: self.target,
            order: self.order.clone(),
            size: self.size,
            seed: self.seed,
            node: self.node,
            reserve: self.reserve,
            keep_to_target: self.keep_to_target,
            pause_compaction: self.pause_compaction,
            allow_thp: self.allow_thp,
            measure_thp: self.measure_thp,
            held: self.held.to_options(),
        }
    }
}

impl HeldArgs {
    fn to_options(&self) -> HeldOptions {
        HeldOptions {
            unmovable: UnmovableOptions { unmovable: self.unmovable, flavour: self.flavour.clone() },
            dry_run: self.dry_run,
            json: self.json,
            output: self.output.run_file(),
            command: self.command.clone(),
        }
    }
}

impl WalkArgs {
    fn to_options(&self) -> WalkSettings {
        WalkSettings {
            size: self.size,
            chunk: self.chunk,
            step: self.step.clone(),
            probability: self.probability,
            fill_first: self.fill_first,
            seed: self.seed,
            reserve: self.reserve,
        }
    }
}

impl ProcedureArgs {
    fn to_options(&self) -> ProcedureOptions {
        ProcedureOptions {
            options: self.options.to_options(),
            thp: self.thp,
            no_thp: self.no_thp,
            settle: self.settle,
            json: self.json,
            output: self.output.run_file(),
        }
    }
}

/// Fragments, holds and releases memory. Returns the exit code of the command, if there is one.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let snapshot = read_snapshot();
    match &args.mode {
        Some(Mode::Random(args)) => {
            check_command(&args.held)?;
            let (options, held) = (args.options.to_options(), args.held.to_options());
            return random::run(&RandomOptions { options, thp: args.thp, held }, &snapshot);
        }
        Some(Mode::Procedure(args)) => return procedure::run(&args.to_options(), &snapshot),
        None if args.target.is_none() && args.held.unmovable.is_some() => {
            return unmovable::run_unmovable(&args.to_options(), &snapshot);
        }
        None => {}
    }
    check_command(&args.held)?;
    let args = &args.to_options();
    let plan = FragmentRunPlan::resolve(args, &snapshot)?;
    if args.held.dry_run {
        let wanted = args.held.unmovable.resolve_request(&plan.facts)?;
        return show::print_plan(&plan, wanted.as_ref(), args.held.json).map(|()| Exit::Success as u8);
    }
    session::run(args, plan, &snapshot)
}

/// Checks that the program exists, before any memory is taken for it.
fn check_command(held: &HeldArgs) -> Result<(), Failure> {
    held.command.first().map_or(Ok(()), |name| find_program(name).map(drop))
}
