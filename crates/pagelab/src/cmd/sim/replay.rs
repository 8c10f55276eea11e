//! `pagelab sim replay`: a recorded trace under simulated policies, beside what the kernel's memory was.

mod ahead;
mod answer;
mod apart;
mod course;
mod keep;
mod lane;
mod show;

use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use pagelab_metrics::frag::unusable;
use pagelab_model::alloc_trace::{TraceHead, TraceLoss, TraceRun, TraceSample, TraceZone};
use pagelab_model::free_areas::{BuddyInfo, FreeAreas};
use pagelab_model::run::Ending;
use pagelab_model::{Bytes, Order};
use pagelab_report::style::bytes;
use pagelab_runfile::TraceReader;
use pagelab_sim::policies;
use pagelab_sim::replay::start::Start;
use pagelab_sim::replay::words::{Account, Options, Zones};
use pagelab_sim::words::Wrong;
use pagelab_sys::clock;

use crate::bounds;
use crate::cmd::sim::pool::processors;
use crate::cmd::trace::refusal;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;
use course::{Course, Observer};
use lane::Lane;

/// What `sim replay` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The trace, as `pagelab trace record` made it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Policies, side by side, of `pagelab sim list` [default: that of the traced
    /// machine's kernel]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    policy: Vec<String>,
    /// Which zone an object may lie in: the one it lay in, or all it may lie in
    #[arg(long, value_name = "WHICH", default_value = "traced", value_parser = ["traced", "asked"])]
    zones: String,
    /// Also keep free memory over time, simulated and sampled, in this run file
    #[arg(short, long, value_name = "FILE.pagelab")]
    output: Option<PathBuf>,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = bounds::threads)]
    threads: Option<NonZero<usize>>,
    /// Also say how long it took; then no two outputs are alike
    #[arg(long)]
    time: bool,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  pagelab sim replay t.pagelab                        how true the simulator is
  pagelab sim replay t.pagelab --policy mobility,standard,list2
  pagelab sim replay t.pagelab -o r.pagelab           then: pagelab report

What is replayed, and which holes a trace has: docs/sim.md.";

/// Blocks of events that are looked at beforehand for what they tell of pageblocks: 4 million events.
const TOLD_BLOCKS: usize = 64;
/// Bytes of a frame that the state to begin with takes, and those of a policy.
const START_BYTES: u64 = 2;
const LANE_BYTES: u64 = 14;

/// Free memory of a moment.
#[derive(Clone, Debug)]
struct Free {
    /// All zones together.
    all: FreeAreas,
    /// By zone of the trace.
    zones: Vec<FreeAreas>,
}

impl Free {
    fn of(info: &BuddyInfo, head: &TraceHead) -> Free {
        let zone = |key| info.zone(key).cloned().unwrap_or_default();
        let zones: Vec<FreeAreas> = head.zones.iter().map(|of| zone(&of.key)).collect();
        let mut all = vec![0u64; usize::from(head.max_order) + 1];
        for zone in &zones {
            for (sum, blocks) in all.iter_mut().zip(zone.counts()) {
                *sum = sum.saturating_add(*blocks);
            }
        }
        Free { all: FreeAreas::new(all).unwrap_or_default(), zones }
    }

    fn unusable(&self, order: u8) -> f64 {
        unusable(&self.all, Order(order))
    }
}

/// What the kernel said at a moment.
#[derive(Clone, Debug)]
struct Sampled {
    at_ns: u64,
    free: Free,
}

/// What became of one policy.
#[derive(Debug)]
struct Replayed {
    policy: &'static str,
    /// As many as samples.
    free: Vec<Free>,
    end: Free,
    kept_frames: u64,
    account: Account,
    cpu_ns: u64,
}

/// All that is to be told.
#[derive(Debug)]
struct Told {
    file: String,
    head: TraceHead,
    ending: Ending,
    losses: Vec<TraceLoss>,
    end_ns: u64,
    complete_ns: u64,
    /// Samples before the snapshot was complete, or behind a trace that was cut.
    left_out: u64,
    /// Frames that the snapshot says nothing of, though zones have memory there.
    uncovered: u64,
    /// Frames that per-CPU lists held at the start.
    listed: u64,
    /// The state that all policies begin with.
    begin: Free,
    owners: [u64; 3],
    owners_told: u64,
    zones: Zones,
    sampled: Vec<Sampled>,
    replayed: Vec<Replayed>,
    decode_cpu_ns: u64,
    /// From the first event to the last, all policies together, by the clock.
    wall_ns: u64,
}

/// Replays and prints.
pub fn run(args: &Args) -> Outcome {
    let mut policies = lane::known(&args.policy)?;
    let mut reader = TraceReader::open(&args.file).map_err(|error| refusal(&error))?;
    if policies.is_empty() {
        policies.push(policies::of_release(&reader.head().kernel));
    }
    let told = replay(&mut reader, args, &policies)?;
    if let Some(path) = &args.output {
        keep::write(path, &told)?;
    }
    let text = if args.json { show::json(&told, args.time)? } else { show::text(&told, args.time) };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

fn bad(file: &Path, what: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::BadInput, format!("{}: {what}", file.display()))
}

fn contradicts(file: &Path, wrong: &Wrong) -> Failure {
    bad(
        file,
        format_args!("{wrong}; a trace that `pagelab trace record` made does not say so: it is damaged"),
    )
}

/// The state to begin with, from the snapshot and the first events.
fn start(
    reader: &mut TraceReader,
    file: &Path,
    policies: usize,
    threads: NonZero<usize>,
) -> Result<Start, Failure> {
    let frames = Start::spanned(reader.head()).map_err(|wrong| contradicts(file, &wrong))?;
    let needed = frames.saturating_mul(START_BYTES + LANE_BYTES * policies as u64);
    if let Some(available) = lane::available()
        && needed > available.0
    {
        let (needed, available) = (bytes(Bytes(needed)), bytes(available));
        return Err(Failure::new(
            Exit::NotAvailable,
            format!(
                "{}: its zones span {frames} frames, and to replay them takes {needed}; {available} are \
                 available. Name fewer policies, or replay it on a larger machine",
                file.display()
            ),
        ));
    }
    let runs = reader.snapshot().map_err(|error| refusal(&error))?;
    let start = Start::new(reader.head(), &runs).map_err(|wrong| contradicts(file, &wrong))?;
    has_all(reader, file, runs.last())?;
    let complete_ns = start.complete_ns();
    // Blocks follow each other in time.
    let during = reader.blocks().partition_point(|block| block.at_ns <= complete_ns);
    let told = during.max(TOLD_BLOCKS).min(reader.blocks().len());
    let (observers, _) = ahead::feed(reader, 0..told, threads, vec![Observer(start)])?;
    let Some(Observer(mut start)) = observers.into_iter().next() else {
        return Err(Failure::new(Exit::Bug, "nobody looked at the first events"));
    };
    start.complete(&reader.samples().map_err(|error| refusal(&error))?);
    Ok(start)
}

/// Refuses a trace without a snapshot, or with a part of one, by its last run.
fn has_all(reader: &TraceReader, file: &Path, last: Option<&TraceRun>) -> Result<(), Failure> {
    let was_asked = !reader.manifest().command_line.iter().any(|word| word == "--no-snapshot");
    let is_complete = matches!(reader.ending(), Ending::Complete { .. });
    if last.is_none() && (is_complete || !was_asked) {
        return Err(bad(
            file,
            "it has no snapshot of the memory that it began with, so nothing can be replayed; \
             `pagelab trace record` makes one where the state of each page can be read (as root), unless \
             --no-snapshot is given",
        ));
    }
    let told = last.map_or(0, |run| u64::from(run.pfn) + u64::from(run.frames));
    let behind = |zone: &TraceZone| {
        let end = u64::from(zone.first) + u64::from(zone.spanned);
        end.saturating_sub(told.max(zone.first.into()))
    };
    let without: u64 = reader.head().zones.iter().map(behind).sum();
    if without > 0 && !is_complete {
        return Err(bad(
            file,
            format_args!(
                "it ended before the snapshot of memory was complete: {without} frames are missing, so \
                 nothing can be replayed. Record again, and give it time: `--for` counts from the end of \
                 the snapshot, which takes seconds on a busy machine"
            ),
        ));
    }
    Ok(())
}

fn replay(reader: &mut TraceReader, args: &Args, policies: &[&'static str]) -> Result<Told, Failure> {
    let file = &args.file;
    let threads = args.threads.unwrap_or_else(processors);
    let start = start(reader, file, policies.len(), threads)?;
    let zones = if args.zones == "asked" { Zones::Asked } else { Zones::Traced };
    let lane = |policy: &&'static str| lane::begin(policy, &start, Options { zones });
    let lanes: Vec<Box<dyn Lane>> =
        policies.iter().map(lane).collect::<Result<_, Wrong>>().map_err(|wrong| contradicts(file, &wrong))?;
    let begin = lanes.first().map(|lane| lane.sample()).unwrap_or_default();
    let samples = reader.samples().map_err(|error| refusal(&error))?;
    let losses = reader.losses().map_err(|error| refusal(&error))?;
    let (head, ending) = (reader.head().clone(), reader.ending().clone());
    let late: Vec<TraceSample> =
        samples.iter().filter(|sample| sample.at_ns > start.complete_ns()).cloned().collect();
    let course = |(lane, policy)| Course::new((file, &head), policy, lane, &late);
    let courses = lanes.into_iter().zip(policies.iter().copied()).map(course).collect();
    let blocks = 0..reader.blocks().len();
    let began_ns = clock::monotonic_ns();
    let (mut courses, decode_cpu_ns) = ahead::feed(reader, blocks, threads, courses)?;
    let wall_ns = clock::monotonic_ns().saturating_sub(began_ns);
    // Unless the trace was cut there.
    if ending != Ending::NotClosed {
        courses.iter_mut().for_each(Course::rest);
    }
    let end_ns = courses.first().map_or(0, Course::end_ns);
    let replayed: Vec<Replayed> = courses.into_iter().map(Course::done).collect();
    let compared = replayed.first().map_or(0, |replayed| replayed.free.len());
    let sampled = |sample: &TraceSample| Sampled { at_ns: sample.at_ns, free: Free::of(&sample.free, &head) };
    let sampled: Vec<Sampled> = late.iter().take(compared).map(sampled).collect();
    let (owners, owners_told) = start.owners();
    Ok(Told {
        file: file.display().to_string(),
        ending,
        losses,
        end_ns,
        complete_ns: start.complete_ns(),
        left_out: (samples.len() - sampled.len()) as u64,
        uncovered: start.uncovered().saturating_sub(holes(&head)),
        listed: start.listed(),
        begin: Free::of(&begin, &head),
        owners,
        owners_told,
        zones,
        sampled,
        replayed,
        decode_cpu_ns,
        wall_ns,
        head: head.clone(),
    })
}

/// Frames that zones span and do not manage.
fn holes(head: &TraceHead) -> u64 {
    head.zones.iter().map(|zone| u64::from(zone.spanned.saturating_sub(zone.managed))).sum()
}
