//! `pagelab sim bench`: pairs of a free and an allocation, in turns over all engines.

mod engines;
mod floor;
mod show;

use std::io::Write;

use clap::ValueEnum as _;
use pagelab_contig::asking;
use pagelab_formats::{cpuinfo, size};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::statistics::Statistics;
use pagelab_model::{Bytes, PageSize};
use pagelab_report::style::bytes;
use pagelab_sim::bench::Load;
use pagelab_sim::words::{FRAMES_MAX, Shape, Wrong};

use super::options::once;
use crate::bounds;
use crate::cmd::usage;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;
use engines::{BLOCK_ORDER, HUGE, MAX_ORDER, Name, Run};

/// What `sim bench` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Simulated memory; several times for several sizes [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = memory_of)]
    memory: Vec<Bytes>,
    /// An engine; several times for several of them [default: all]
    #[arg(long, value_name = "NAME", value_enum)]
    engine: Vec<Name>,
    /// What is freed and asked for; several times for several [default: mix]
    #[arg(long, value_name = "LOAD", value_enum)]
    load: Vec<LoadName>,
    /// Pairs of a turn; under bulk it is half of memory
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2_000_000,
        value_parser = bounds::number::<1, 1_000_000_000>
    )]
    pairs: u64,
    /// Turns; the middle one counts
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = bounds::small::<1, 1000>
    )]
    turns: u32,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = bounds::seed)]
    seed: u64,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Of engines that are slow by far, a turn has fewer pairs by this.
const PLAIN_PART: u64 = 8;

/// Whether it is one of those.
fn is_slow(engine: Name) -> bool {
    matches!(engine, Name::Trees | Name::Plain)
}

/// The least and the most that is simulated.
const SIZE_MIN: u64 = 128 << 20;
const SIZE_MAX: u64 = 16 << 40;

/// A size, with T besides the suffixes that all options take.
fn memory_of(text: &str) -> Result<Bytes, String> {
    let (text, times) = match text.strip_suffix(['T', 't']) {
        Some(digits) => (format!("{digits}G"), 1 << 10),
        None => (text.to_owned(), 1),
    };
    let size = size::parse_suffixed(text.as_bytes()).ok().and_then(|size| size.0.checked_mul(times));
    let fits = |size: &u64| (SIZE_MIN..=SIZE_MAX).contains(size) && size.is_multiple_of(HUGE as u64);
    size.filter(fits).map(Bytes).ok_or_else(|| {
        let ends = [SIZE_MIN, SIZE_MAX].map(|end| bytes(Bytes(end)));
        let [least, most] = ends;
        format!("a multiple of 2 MiB from {least} to {most} is wanted, such as 16G")
    })
}

/// A load by its name.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LoadName {
    /// Any live block; 85 % of order 0, 15 % of orders 1 to 9
    Mix,
    /// Any live block; all of order 0
    Order0,
    /// Any live block; all of order 9, huge pages
    Order9,
    /// The block that was allocated last; orders as in the mix
    Hot,
    /// Half of memory allocated at order 0, then freed in a random order
    Bulk,
}

impl LoadName {
    fn load(self) -> Load {
        match self {
            LoadName::Mix => Load::Mix,
            LoadName::Order0 => Load::Order0,
            LoadName::Order9 => Load::Order9,
            LoadName::Hot => Load::Hot,
            LoadName::Bulk => Load::Bulk,
        }
    }
}

/// One line of the result.
struct Row {
    memory: Bytes,
    load: Load,
    engine: Name,
    per_cpu: bool,
    ahead: bool,
    /// Picoseconds of a pair, by turn.
    ps: Vec<u64>,
    /// The same of an allocation and of a free, under a load that has them apart.
    halves_ps: Vec<(u64, u64)>,
    /// The bytes of the engine's books.
    books: Option<Bytes>,
    failed: u64,
    stolen: u64,
}

impl Row {
    fn median_ps(&self) -> f64 {
        median(self.ps.iter().copied()).unwrap_or(0.0)
    }

    /// An allocation and a free, where the load has them apart.
    fn median_halves_ps(&self) -> Option<(f64, f64)> {
        let taken = median(self.halves_ps.iter().map(|halves| halves.0))?;
        Some((taken, median(self.halves_ps.iter().map(|halves| halves.1))?))
    }

    fn pairs_per_s(&self) -> f64 {
        1e12 / self.median_ps().max(1.0)
    }
}

fn median(of: impl Iterator<Item = u64>) -> Option<f64> {
    Statistics::of(of.map(|ps| ps as f64).collect()).map(|found| found.median)
}

/// Measures and prints.
pub fn run(args: &Args) -> Outcome {
    let names = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    once(
        "--engine",
        &args.engine.iter().filter_map(|name| names(name.to_possible_value())).collect::<Vec<_>>(),
    )?;
    once("--load", &args.load.iter().filter_map(|name| names(name.to_possible_value())).collect::<Vec<_>>())?;
    once("--memory", &args.memory.iter().map(|&size| bytes(size)).collect::<Vec<_>>())?;
    let usual = [Bytes(16 << 30)];
    let sizes = if args.memory.is_empty() { &usual[..] } else { &args.memory };
    let loads: Vec<Load> = match args.load.is_empty() {
        true => vec![Load::Mix],
        false => args.load.iter().map(|load| load.load()).collect(),
    };
    let all = <Name as clap::ValueEnum>::value_variants();
    let engines = if args.engine.is_empty() { all } else { &args.engine };
    can_serve(&args.engine, &loads)?;
    let shapes: Vec<(Bytes, Shape)> = sizes.iter().map(|&size| (size, shape(size))).collect();
    for &(memory, shape) in &shapes {
        loads.iter().try_for_each(|&load| fits(memory, shape, load, engines))?;
    }
    let mut rows = Vec::new();
    let mut floors = Vec::new();
    for (memory, shape) in shapes {
        for &load in &loads {
            let measured = measure((memory, shape), load, engines, args);
            rows.extend(measured.map_err(|wrong| Failure::new(Exit::Bug, wrong.to_string()))?);
        }
        floors.push((memory, floor::floor(shape, args)));
    }
    let processor = processor();
    let text = match args.json {
        true => show::json(args, &processor, &rows, &floors)?,
        false => show::text(args, &processor, &rows, &floors),
    };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

fn processor() -> String {
    let Ok(cpu) = Reader::new(&Root::live()).parse(paths::CPUINFO, cpuinfo::parse) else {
        return "an unknown processor".to_owned();
    };
    let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    let numbers = [cpu.family, cpu.model, cpu.stepping].map(number).join("/");
    format!("{} ({numbers})", cpu.model_name)
}

fn shape(memory: Bytes) -> Shape {
    // 16 TiB has a few more frames than can be numbered: the last of them are left out.
    let frames = (memory.0 / PageSize::USUAL.bytes()).min(FRAMES_MAX);
    Shape { first: 0, frames: frames as u32, max_order: MAX_ORDER, block_order: BLOCK_ORDER }
}

/// Refuses an engine that cannot be measured under a load.
fn can_serve(engines: &[Name], loads: &[Load]) -> Result<(), Failure> {
    let unfit = |load: &Load| engines.iter().find(|name| !name.serves(*load));
    let Some((name, load)) = loads.iter().find_map(|load| Some((unfit(load)?, load))) else { return Ok(()) };
    Err(usage(&format!(
        "--load {} for the engine {}: it keeps no list of live blocks; --engine compact is the same engine \
         with one",
        load.name(),
        name.text()
    )))
}

/// Refuses what does not fit in this machine's memory.
fn fits(memory: Bytes, shape: Shape, load: Load, engines: &[Name]) -> Result<(), Failure> {
    let times = |name: &Name| if name.has_per_cpu() { 2 } else { 1 };
    let need = engines
        .iter()
        .filter(|name| name.serves(load))
        .map(|name| name.need(shape, load).0 * times(name))
        .sum();
    let available = asking::available(&Root::live()).unwrap_or(Bytes(u64::MAX));
    if need <= available.0 / 10 * 9 {
        return can_number(memory, shape, engines);
    }
    let least = Name::Drawn.need(shape, load);
    Err(Failure::new(
        Exit::NotAvailable,
        format!(
            "--memory {} under the load {}: the engines asked for take {}, and {} are available; fewer of \
             them take less, and --engine drawn takes {}",
            bytes(memory),
            load.name(),
            bytes(Bytes(need)),
            bytes(available),
            bytes(least)
        ),
    ))
}

/// Refuses engines that cannot tell so many frames apart.
fn can_number(memory: Bytes, shape: Shape, engines: &[Name]) -> Result<(), Failure> {
    let Some(name) = engines.iter().find(|name| !name.can_number(shape)) else { return Ok(()) };
    Err(usage(&format!(
        "--memory {} for the engine {}: engines with lists of frames take up to 4 TiB; --engine compact and \
         --engine drawn take more",
        bytes(memory),
        name.text()
    )))
}

/// A line for whoever watches: terabytes take minutes.
fn told(line: &str) {
    if out::is_watched() {
        out::status(line);
    }
}

/// All engines over one size, in turns there and back.
fn measure(size: (Bytes, Shape), load: Load, engines: &[Name], args: &Args) -> Result<Vec<Row>, Wrong> {
    let (memory, shape) = size;
    let mut runs: Vec<Box<dyn Run>> = Vec::new();
    let mut rows: Vec<(usize, Row)> = Vec::new();
    for &engine in engines.iter().filter(|engine| engine.serves(load)) {
        for per_cpu in [false, true] {
            if per_cpu && !engine.has_per_cpu() {
                continue;
            }
            told(&format!("filling {} of simulated memory: {}", bytes(memory), engine.text()));
            let run = engine.set_up(shape, per_cpu, load, args.seed)?;
            run.collapse();
            for ahead in [false, true] {
                if !ahead || engine.looks_ahead() {
                    let row = Row {
                        memory,
                        load,
                        engine,
                        per_cpu,
                        ahead,
                        ps: Vec::new(),
                        halves_ps: Vec::new(),
                        books: run.books(),
                        failed: 0,
                        stolen: 0,
                    };
                    rows.push((runs.len(), row));
                }
            }
            runs.push(run);
        }
    }
    for turn in 0..args.turns {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let engine = rows[at].1.engine.text();
            told(&format!("turn {} of {}: {engine}", turn + 1, args.turns));
            let (run, row) = &mut rows[at];
            let run = &mut runs[*run];
            let pairs = if is_slow(row.engine) { (args.pairs / PLAIN_PART).max(1) } else { args.pairs };
            let took = run.turn(pairs, row.ahead)?;
            row.ps.push(took.pair_ps);
            row.halves_ps.extend(took.halves_ps);
            (row.failed, row.stolen) = run.counts();
        }
    }
    told("");
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}
