//! `pagelab sim bench`: pairs of a free and an allocation, in turns over all engines.

use std::io::Write;

use pagelab_metrics::statistics::Statistics;
use pagelab_model::{Bytes, PageSize};
use pagelab_report::json::object::{Object, array};
use pagelab_report::json::{header, to_text};
use pagelab_report::style::{bytes, three_digits};
use pagelab_report::text::{Column, Page};
use pagelab_sim::bench::{Engine, Pairs};
use pagelab_sim::percpu::{Keep, PerCpu};
use pagelab_sim::plain::Plain;
use pagelab_sim::policy::{Lists, Mobility, Standard};
use pagelab_sim::words::{FRAMES_MAX, Shape, Wrong};
use pagelab_sim::zone::Zone;
use pagelab_sys::map::{Advice, Mapping};
use pagelab_sys::{clock, own_memory};
use pagelab_workloads::chase::{Chase, lay_out};
use serde_json::Value;

use crate::cmd::{bytes_of, usage};
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// What `sim bench` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Simulated memory; several times for several sizes [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = bytes_of)]
    memory: Vec<Bytes>,
    /// Pairs of a turn
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2_000_000,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pairs: u64,
    /// Turns; the middle one counts
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..1000)
    )]
    turns: u32,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// As on x86-64: blocks of up to 4 MiB, pageblocks of 2 MiB.
const MAX_ORDER: u8 = 10;
const BLOCK_ORDER: u8 = 9;
/// The kernel's figures for a zone of some GiB.
const KEEP: Keep = Keep { cpus: 1, batch: 63, high: 378 };
/// Of the plain allocator, a turn has fewer pairs by this: it is so much slower.
const PLAIN_PART: u64 = 8;
/// The size of a huge page, here and in what is simulated.
const HUGE: usize = 2 << 20;
/// Dependent reads of a turn.
const READS: u64 = 1 << 20;
/// The largest buffer that is read for the floor, in bytes.
const FLOOR_MAX: u64 = 1 << 30;

/// An engine at its steady state, whichever it is.
trait Load {
    fn run(&mut self, pairs: u64, ahead: bool) -> Result<(), Wrong>;
    /// Allocations that failed, and blocks taken from another list.
    fn counts(&self) -> (u64, u64);
    /// Puts what it reads on huge pages, as far as the kernel gives them: it is the allocators that are to be
    /// measured, and not the TLB.
    fn collapse(&self);
}

impl<E: Engine> Load for Pairs<E> {
    fn run(&mut self, pairs: u64, ahead: bool) -> Result<(), Wrong> {
        if ahead { self.run_ahead(pairs) } else { Pairs::run(self, pairs) }
    }

    fn counts(&self) -> (u64, u64) {
        (self.failed, self.stolen)
    }

    fn collapse(&self) {
        for place in self.places() {
            let _ = own_memory::collapse(place, HUGE);
        }
    }
}

/// One line of the result.
struct Row {
    memory: Bytes,
    engine: &'static str,
    per_cpu: bool,
    ahead: bool,
    /// Picoseconds of a pair, by turn.
    ps: Vec<u64>,
    failed: u64,
    stolen: u64,
}

impl Row {
    fn median_ps(&self) -> f64 {
        Statistics::of(self.ps.iter().map(|&ps| ps as f64).collect()).map_or(0.0, |found| found.median)
    }

    fn pairs_per_s(&self) -> f64 {
        1e12 / self.median_ps().max(1.0)
    }
}

/// Measures and prints.
pub fn run(args: &Args) -> Outcome {
    let usual = [Bytes(16 << 30)];
    let sizes = if args.memory.is_empty() { &usual[..] } else { &args.memory };
    let shapes: Vec<(Bytes, Shape)> =
        sizes.iter().map(|&size| Ok((size, shape(size)?))).collect::<Result<_, Failure>>()?;
    let mut rows = Vec::new();
    let mut floors = Vec::new();
    for (memory, shape) in shapes {
        rows.extend(
            measure(memory, shape, args).map_err(|wrong| Failure::new(Exit::Bug, wrong.to_string()))?,
        );
        floors.push((memory, floor(shape, args)));
    }
    let text = if args.json { json_text(args, &rows, &floors)? } else { text(args, &rows, &floors) };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

fn shape(memory: Bytes) -> Result<Shape, Failure> {
    let frames = memory.0 / PageSize::USUAL.bytes();
    let block = 1u64 << BLOCK_ORDER;
    if frames < 64 * block || frames > FRAMES_MAX || !frames.is_multiple_of(block) {
        let least = bytes(Bytes(64 * block * PageSize::USUAL.bytes()));
        return Err(usage(&format!(
            "--memory {}: a multiple of 2 MiB is wanted, from {least} to 16 TiB less 256 MiB",
            bytes(memory)
        )));
    }
    Ok(Shape { first: 0, frames: frames as u32, max_order: MAX_ORDER, block_order: BLOCK_ORDER })
}

/// All engines over one size, in turns there and back.
fn measure(memory: Bytes, shape: Shape, args: &Args) -> Result<Vec<Row>, Wrong> {
    out::note(&format!("pagelab: filling {} of simulated memory for each engine", bytes(memory)));
    fn zone<P: pagelab_sim::policy::Policy>(shape: Shape, policy: P) -> Result<Zone<P>, Wrong> {
        Zone::new(shape, policy)
    }
    let seed = args.seed;
    let mut loads: Vec<(&'static str, bool, Box<dyn Load>)> = vec![
        ("standard", false, Box::new(Pairs::new(zone(shape, Standard)?, seed)?)),
        ("list, 2 types", false, Box::new(Pairs::new(zone(shape, Lists::Two)?, seed)?)),
        ("mobility", false, Box::new(Pairs::new(zone(shape, Mobility)?, seed)?)),
        ("mobility", true, Box::new(Pairs::new(PerCpu::new(zone(shape, Mobility)?, KEEP)?, seed)?)),
        ("plain", false, Box::new(Pairs::new(Plain::new(shape)?, seed)?)),
    ];
    loads.iter().for_each(|(_, _, load)| load.collapse());
    let is_plain = |name: &str| name == "plain";
    let mut rows: Vec<Row> = Vec::new();
    for (engine, per_cpu, _) in &loads {
        for ahead in [false, true] {
            // There is nothing to bring near in a tree.
            if !(ahead && is_plain(engine)) {
                rows.push(Row {
                    memory,
                    engine,
                    per_cpu: *per_cpu,
                    ahead,
                    ps: Vec::new(),
                    failed: 0,
                    stolen: 0,
                });
            }
        }
    }
    for turn in 0..args.turns {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let row = &mut rows[at];
            let load = loads.iter_mut().find(|load| (load.0, load.1) == (row.engine, row.per_cpu));
            let Some((engine, _, load)) = load else { continue };
            let pairs = if is_plain(engine) { (args.pairs / PLAIN_PART).max(1) } else { args.pairs };
            let before = clock::thread_cpu_ns();
            load.run(pairs, row.ahead)?;
            let spent = clock::thread_cpu_ns().saturating_sub(before);
            row.ps.push(spent.saturating_mul(1000) / pairs);
            (row.failed, row.stolen) = load.counts();
        }
    }
    Ok(rows)
}

/// Picoseconds of a read that waits for the one before, at random places of as much as the engine's books
/// take: nine bytes a frame, at most 1 GiB.
fn floor(shape: Shape, args: &Args) -> Option<(Bytes, f64)> {
    let size = Bytes((u64::from(shape.frames) * 9).clamp(1 << 20, FLOOR_MAX));
    let mut map = Mapping::anonymous(size, Bytes(2 << 20)).ok()?;
    map.advise(0..map.len().0, Advice::HugePage).ok()?;
    lay_out(map.words_mut(), args.seed, || true);
    let mut chase = Chase::new(map.words());
    chase.walk(READS);
    let turns = (0..args.turns).map(|_| chase.measure(READS) as f64).collect();
    Statistics::of(turns).map(|found| (size, found.median))
}

fn text(args: &Args, rows: &[Row], floors: &[(Bytes, Option<(Bytes, f64)>)]) -> String {
    let mut page = Page::new(out::style());
    page.hanging(
        "",
        &format!(
            "Pairs of a free and an allocation at 75 % full: 85 % of order 0, 15 % of orders 1 to 9, three \
             kinds; seed {}, {} turns of {} pairs, the middle one of each",
            args.seed, args.turns, args.pairs
        ),
    );
    page.gap();
    let columns = [
        Column::left("memory"),
        Column::left("engine"),
        Column::left("per-CPU lists"),
        Column::left("look-ahead"),
        Column::right("ns a pair"),
        Column::right("million pairs/s"),
        Column::right("to plain"),
    ];
    let plain = |row: &Row| {
        let of = rows.iter().find(|other| other.engine == "plain" && other.memory == row.memory);
        of.map_or(0.0, |plain| plain.median_ps() / row.median_ps().max(1.0))
    };
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                bytes(row.memory),
                row.engine.to_owned(),
                yes(row.per_cpu),
                yes(row.ahead),
                format!("{:.1}", row.median_ps() / 1e3),
                three_digits(row.pairs_per_s() / 1e6),
                format!("{:.1}×", plain(row)),
            ]
        })
        .collect();
    page.table(0, &columns, &table);
    page.gap();
    for (memory, floor) in floors {
        if let Some((size, ps)) = floor {
            page.hanging(
                "",
                &format!(
                    "{}: a read that misses all caches costs {:.1} ns, in {} on huge pages; a pair looks at \
                     two to four such lines",
                    bytes(*memory),
                    ps / 1e3,
                    bytes(*size)
                ),
            );
        }
    }
    page.finish()
}

fn json_text(args: &Args, rows: &[Row], floors: &[(Bytes, Option<(Bytes, f64)>)]) -> Result<String, Failure> {
    let row = |row: &Row| {
        Object::new()
            .put("memory_bytes", row.memory.0)
            .put("engine", row.engine)
            .put("per_cpu_lists", row.per_cpu)
            .put("look_ahead", row.ahead)
            .put("pair_ps", row.median_ps() as u64)
            .put("pair_ps_by_turn", row.ps.clone())
            .put("pairs_per_s", row.pairs_per_s() as u64)
            .put("failed", row.failed)
            .put("stolen", row.stolen)
    };
    let floor = |(memory, floor): &(Bytes, Option<(Bytes, f64)>)| {
        let reason = "no memory was to be had for it";
        Object::new()
            .put("memory_bytes", memory.0)
            .option("buffer_bytes", floor.map(|(size, _)| size.0), reason)
            .option("read_ps", floor.map(|(_, ps)| ps as u64), reason)
    };
    let document: Value = header("sim_bench")
        .put("seed", args.seed)
        .put("turns", args.turns)
        .put("pairs_of_a_turn", args.pairs)
        .put("engines", array(rows, row))
        .put("floors", array(floors, floor))
        .into();
    to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}
