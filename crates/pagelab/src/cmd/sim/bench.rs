//! `pagelab sim bench`: pairs of a free and an allocation, interleaved over all engines.

use pagelab_model::size::format_argument;
use pagelab_model::{Bytes, size};
use pagelab_sim::bench::BenchLoad;
use pagelab_study::bench::engines::{EngineName, HUGE_PAGE_BYTES};
use pagelab_study::bench::{self, BenchRequest};
use pagelab_study::catalogue::reject_duplicates;

use crate::exit::{Exit, Outcome};
use crate::output;
use crate::value_parsers::{Choice, choice, choice_word, parse_bounded, parse_seed};

const EXAMPLES: &str = "\
Examples:
  pagelab sim bench                                 all engines, 16 GiB, mix
  pagelab sim bench --memory 1T --engine compact    pageblocks of a terabyte
  pagelab sim bench --load bulk --turns 9           LLFree's benchmark
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Simulated memory; may be repeated [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Vec<Bytes>,
    /// Engine; may be repeated [default: all]
    #[arg(long, value_name = "NAME", value_parser = choice(&ENGINES))]
    engine: Vec<EngineName>,
    /// Load; may be repeated [default: mix]
    #[arg(long, value_name = "LOAD", value_parser = choice(&LOADS))]
    load: Vec<BenchLoad>,
    /// Free–allocate pairs per turn; with bulk, half of memory
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2_000_000,
        value_parser = parse_bounded::<u64, 1, 1_000_000_000>
    )]
    pairs: u64,
    /// Number of turns; the result is their median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_bounded::<u32, 1, 1000>)]
    turns: u32,
    /// Seed of the random requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_seed)]
    seed: u64,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Limits of the simulated size.
const MEMORY_MIN: u64 = 128 << 20;
const MEMORY_MAX: u64 = 16 << 40;

/// Parses the size of a simulated memory.
fn parse_memory(text: &str) -> Result<Bytes, String> {
    let size = size::parse(text)?;
    let is_whole = size.0.is_multiple_of(HUGE_PAGE_BYTES as u64);
    if is_whole && (MEMORY_MIN..=MEMORY_MAX).contains(&size.0) {
        return Ok(size);
    }
    let [step, least, most] =
        [HUGE_PAGE_BYTES as u64, MEMORY_MIN, MEMORY_MAX].map(|bytes| format_argument(Bytes(bytes)));
    Err(format!("expected a multiple of {step} from {least} to {most}, for example 16G"))
}

const ENGINES: [Choice<EngineName>; 9] = [
    (&["standard"], "One free list per order", EngineName::Standard),
    (&["list"], "Free lists for two allocation types, as in Gorman and Whitcroft 2006", EngineName::List),
    (
        &["mobility"],
        "Three migratetypes and pageblocks, as in Linux; also with pcp lists",
        EngineName::Mobility,
    ),
    (&["memory"], "mobility with zones and watermarks: the full engine", EngineName::Memory),
    (&["compact"], "Lists of pageblocks, for terabytes of memory", EngineName::Compact),
    (&["random", "drawn"], "Like compact, without a list of live blocks", EngineName::CompactRandom),
    (&["trees"], "Bit fields and trees of pageblocks reserved by CPUs, no free lists", EngineName::Trees),
    (&["btree", "plain"], "Ordered sets and a hash table: the reference implementation", EngineName::BTree),
    (&["nothing"], "No allocator: the cost of the load itself", EngineName::Nothing),
];

const LOADS: [Choice<BenchLoad>; 5] = [
    (&["mix"], "Free a random live block; 85 % are of order 0, 15 % of orders 1 to 9", BenchLoad::Mix),
    (&["order0"], "Free a random live block; all are of order 0", BenchLoad::Order0),
    (&["order9"], "Free a random live block; all are of order 9 (huge pages)", BenchLoad::Order9),
    (&["hot"], "Free the most recently allocated block (LIFO); orders as in mix", BenchLoad::MostRecent),
    (&["bulk"], "Allocate half of memory at order 0, then free it in random order", BenchLoad::Bulk),
];

pub fn run(args: &Args) -> Outcome {
    let word = |engine: &EngineName| choice_word(&ENGINES, engine);
    reject_duplicates("--engine", &args.engine.iter().map(word).collect::<Vec<_>>())?;
    reject_duplicates("--load", &args.load.iter().map(|load| load.name()).collect::<Vec<_>>())?;
    reject_duplicates(
        "--memory",
        &args.memory.iter().map(|&size| format_argument(size)).collect::<Vec<_>>(),
    )?;
    let all: Vec<EngineName> = ENGINES.iter().map(|(.., engine)| *engine).collect();
    let request = BenchRequest {
        sizes: if args.memory.is_empty() { vec![Bytes(16 << 30)] } else { args.memory.clone() },
        loads: if args.load.is_empty() { vec![BenchLoad::Mix] } else { args.load.clone() },
        engines: if args.engine.is_empty() { all } else { args.engine.clone() },
        pairs: args.pairs,
        turns: args.turns,
        seed: args.seed,
    };
    if !args.engine.is_empty() {
        bench::check_load_support(&request.engines, &request.loads)?;
    }
    let results = bench::run_bench(&request)?;
    let text = match args.json {
        true => bench::to_document(&request, &results)?,
        false => bench::to_table_text(&request, &results, output::stdout_style()),
    };
    output::print(&text)?;
    Ok(Exit::Success)
}
