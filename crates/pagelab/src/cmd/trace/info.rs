//! `pagelab trace info`: what a trace holds.

mod json;
mod reported;
mod text;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use pagelab_metrics::alloc_trace::Account;
use pagelab_model::alloc_trace::{TraceEnd, TraceHead, TraceLoss, Was};
use pagelab_model::run::{Ending, Manifest};
use pagelab_runfile::{Error, TraceReader};

use super::words::{KINDS, kind};
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

pub use reported::Reported;

const EXAMPLES: &str = "\
Examples:
  pagelab trace info t.pagelab                   events by kind, order, thread
  pagelab trace info t.pagelab --threads 20
  pagelab trace info t.pagelab --json            docs/json.md
  pagelab sim replay t.pagelab                   under simulated policies";

/// What `trace info` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The trace
    #[arg(value_name = "FILE.pagelab")]
    file: PathBuf,
    /// How many threads are shown, the busiest first
    #[arg(long, value_name = "N", default_value_t = 8)]
    threads: usize,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Everything that is said of a trace.
struct Info {
    name: String,
    manifest: Manifest,
    head: TraceHead,
    ending: Ending,
    end: Option<TraceEnd>,
    account: Account,
    kinds: [u64; KINDS],
    blocks: usize,
    /// Bytes of the blocks as they are stored, and before compression.
    packed_bytes: u64,
    raw_bytes: u64,
    file_bytes: u64,
    losses: Vec<TraceLoss>,
    samples: Vec<u64>,
    /// Frames of the snapshot by state, and how many runs they are.
    snapshot: Option<Snapshot>,
    threads: usize,
    /// Names of threads; empty where the recorder was killed, or was one that read none.
    names: BTreeMap<u32, Option<String>>,
}

/// What the memory was when the trace began.
struct Snapshot {
    frames: [u64; Was::ALL.len()],
    runs: usize,
    /// When the first and the last frames were read.
    read_ns: (u64, u64),
}

/// The words for the states of frames, in their order.
const STATES: [&str; Was::ALL.len()] = ["free", "unknown", "kernel", "user", "hole"];

impl Info {
    fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    fn lost(&self) -> u64 {
        self.losses.iter().fold(0, |sum, loss| sum.saturating_add(loss.events))
    }

    /// Seconds from the first event to the last; `None` with less than two.
    fn seconds(&self) -> Option<f64> {
        let (first, last) = self.account.span_ns?;
        (last > first).then(|| (last - first) as f64 / 1e9)
    }

    fn bytes_per_event(&self) -> Option<f64> {
        (self.events() > 0).then(|| self.packed_bytes as f64 / self.events() as f64)
    }

    /// The name of a thread, or why there is none.
    fn thread_name(&self, tid: u32) -> Result<&str, &'static str> {
        match self.names.get(&tid) {
            _ if tid == 0 => Ok("idle"),
            Some(Some(name)) => Ok(name),
            Some(None) => Err("it ended before its name was read"),
            None if self.names.is_empty() => Err("the trace holds no names"),
            None => Err("no more names were read"),
        }
    }

    fn migratetype(&self, number: u8) -> String {
        let name = self.head.migratetypes.get(usize::from(number));
        name.cloned().unwrap_or_else(|| format!("type {number}"))
    }
}

/// Reads all of it, and shows it.
pub fn run(args: &Args) -> Outcome {
    let info = read(args)?;
    let shown = if args.json { json::of(&info)? } else { text::of(&info, out::style(), args.threads) };
    let mut out = out::stdout();
    out.write_all(shown.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

fn read(args: &Args) -> Result<Info, Failure> {
    let refused = |error: Error| super::refusal(&error);
    let mut reader = TraceReader::open(&args.file).map_err(refused)?;
    let runs = reader.snapshot().map_err(refused)?;
    let mut account = Account::new(reader.head(), &runs);
    let snapshot = runs.first().zip(runs.last()).map(|(first, last)| {
        let mut frames = [0; Was::ALL.len()];
        runs.iter().for_each(|run| frames[run.was as usize] += u64::from(run.frames));
        Snapshot { frames, runs: runs.len(), read_ns: (first.read_ns, last.read_ns) }
    });
    drop(runs);
    let (mut kinds, mut events) = ([0; KINDS], Vec::new());
    for place in 0..reader.blocks().len() {
        reader.block(place, &mut events).map_err(refused)?;
        events.iter().for_each(|event| kinds[kind(&event.what)] += 1);
        account.add(&events);
    }
    let samples = reader.samples().map_err(refused)?;
    let threads = reader.threads().map_err(refused)?;
    let blocks = reader.blocks();
    Ok(Info {
        name: args.file.display().to_string(),
        manifest: reader.manifest().clone(),
        head: reader.head().clone(),
        ending: reader.ending().clone(),
        end: reader.end().map_err(refused)?,
        account,
        kinds,
        blocks: blocks.len(),
        packed_bytes: blocks.iter().map(|block| block.packed_bytes).sum(),
        raw_bytes: blocks.iter().map(|block| block.raw_bytes).sum(),
        file_bytes: reader.file_bytes(),
        losses: reader.losses().map_err(refused)?,
        samples: samples.iter().map(|sample| sample.at_ns).collect(),
        snapshot,
        threads: args.threads,
        names: threads.into_iter().map(|thread| (thread.tid, thread.name)).collect(),
    })
}
