//! Contents of a trace: events by kind, order and thread, what was lost, and the snapshot.

use std::collections::BTreeMap;
use std::path::Path;

use pagelab_command::exit::{Failure, read_trace_failure};
use pagelab_metrics::alloc_trace::TraceAccount;
use pagelab_model::alloc_trace::{FrameState, LostEvents, TraceHeader, TraceSummary};
use pagelab_model::run::{Manifest, Run, RunEnd};
use pagelab_report::csv::CsvTable;
use pagelab_report::json::object::JsonObject;
use pagelab_report::sim::{SimulationReport, SimulationTable};
use pagelab_report::style::{TextStyle, escape_invisible, format_count};
use pagelab_runfile::{Error, TRACE_NOT_SHOWN, TraceReader};
use serde_json::Value;

use crate::trace::session::{KIND_COUNT, KIND_NAMES, kind_of};

pub mod json;
pub mod text;

/// Summary of a trace.
pub struct TraceInfo {
    name: String,
    manifest: Manifest,
    head: TraceHeader,
    ending: RunEnd,
    end: Option<TraceSummary>,
    account: TraceAccount,
    kinds: [u64; KIND_COUNT],
    block_count: usize,
    /// Bytes of the blocks as they are stored, and before compression.
    packed_bytes: u64,
    raw_bytes: u64,
    file_bytes: u64,
    losses: Vec<LostEvents>,
    samples: Vec<u64>,
    /// Frames of the snapshot by state, and how many runs they are.
    snapshot: Option<SnapshotSummary>,
    threads_shown: usize,
    /// Names of threads; empty where the recorder was killed, or was one that read none.
    names: BTreeMap<u32, Option<String>>,
}

/// State of the memory at the start of the trace.
struct SnapshotSummary {
    frames: [u64; FrameState::ALL.len()],
    runs: usize,
    /// When the first and the last frames were read.
    read_ns: (u64, u64),
}

/// The words for the states of frames, in their order.
const STATE_NAMES: [&str; FrameState::ALL.len()] = ["free", "unknown", "kernel", "user", "hole"];

impl TraceInfo {
    fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    fn lost_events(&self) -> u64 {
        self.losses.iter().fold(0, |sum, loss| sum.saturating_add(loss.events))
    }

    /// Seconds from the first event to the last; `None` with less than two.
    fn span_seconds(&self) -> Option<f64> {
        let (first, last) = self.account.span_ns?;
        (last > first).then(|| (last - first) as f64 / 1e9)
    }

    fn bytes_per_event(&self) -> Option<f64> {
        (self.events() > 0).then(|| self.packed_bytes as f64 / self.events() as f64)
    }

    /// Name of a thread, or the reason for its absence.
    fn thread_name(&self, tid: u32) -> Result<&str, &'static str> {
        match self.names.get(&tid) {
            _ if tid == 0 => Ok("idle"),
            Some(Some(name)) => Ok(name),
            Some(None) => Err("the thread exited before its name was read"),
            None if self.names.is_empty() => Err("the trace contains no names"),
            None => Err("its name was not read"),
        }
    }

    fn migratetype(&self, number: u8) -> String {
        let name = self.head.migratetypes.get(usize::from(number));
        name.cloned().unwrap_or_else(|| format!("type {number}"))
    }
}

/// Reads a whole trace. `threads`: how many are shown, the busiest first.
pub fn read_info(file: &Path, threads_shown: usize) -> Result<TraceInfo, Failure> {
    let refused = |error: Error| read_trace_failure(&error);
    let mut reader = TraceReader::open(file).map_err(refused)?;
    let runs = reader.read_frame_runs().map_err(refused)?;
    let mut account = TraceAccount::new(reader.header(), &runs);
    let snapshot = runs.first().zip(runs.last()).map(|(first, last)| {
        let mut frames = [0; FrameState::ALL.len()];
        runs.iter().for_each(|run| frames[run.state as usize] += u64::from(run.frames));
        SnapshotSummary { frames, runs: runs.len(), read_ns: (first.read_ns, last.read_ns) }
    });
    drop(runs);
    let (mut kinds, mut events) = ([0; KIND_COUNT], Vec::new());
    for place in 0..reader.blocks().len() {
        reader.read_block(place, &mut events).map_err(refused)?;
        events.iter().for_each(|event| kinds[kind_of(&event.kind)] += 1);
        account.add(&events);
    }
    let samples = reader.read_samples().map_err(refused)?;
    let threads = reader.read_threads().map_err(refused)?;
    let blocks = reader.blocks();
    Ok(TraceInfo {
        name: file.display().to_string(),
        manifest: reader.manifest().clone(),
        head: reader.header().clone(),
        ending: reader.run_end().clone(),
        end: reader.read_summary().map_err(refused)?,
        account,
        kinds,
        block_count: blocks.len(),
        packed_bytes: blocks.iter().map(|block| block.packed_bytes).sum(),
        raw_bytes: blocks.iter().map(|block| block.raw_bytes).sum(),
        file_bytes: reader.file_bytes(),
        losses: reader.read_losses().map_err(refused)?,
        samples: samples.iter().map(|sample| sample.at_ns).collect(),
        snapshot,
        threads_shown,
        names: threads.into_iter().map(|thread| (thread.tid, thread.name)).collect(),
    })
}

/// Default number of threads in a text.
const THREADS_IN_TEXT: usize = 8;
/// Threads in an HTML page, the busiest first; tables and JSON have all.
const THREADS_IN_HTML: usize = 100;

/// Table: file name, title, column heads, number of columns with names, and rows.
struct Listing {
    file: &'static str,
    title: &'static str,
    head: &'static [&'static str],
    name_columns: usize,
    rows: Vec<Vec<String>>,
}

impl TraceInfo {
    /// Reads the complete trace of this run, if it holds one, so that damage is found.
    pub fn read(file: &Path, run: &mut Run) -> Result<Option<TraceInfo>, Failure> {
        let before = run.unknown_content.len();
        run.unknown_content.retain(|what| what != TRACE_NOT_SHOWN);
        if run.unknown_content.len() == before {
            return Ok(None);
        }
        read_info(file, usize::MAX).map(Some)
    }

    /// Renders text for the terminal.
    pub fn to_text(&self, style: TextStyle, verbose: bool) -> String {
        text::render(self, style, if verbose { THREADS_IN_HTML } else { THREADS_IN_TEXT })
    }

    /// Returns the fields of `trace_info`.
    pub fn to_json(&self) -> Value {
        json::put_info(JsonObject::new(), self).into()
    }

    /// Returns one CSV table per listing.
    pub fn to_tables(&self) -> Vec<CsvTable<'static>> {
        let each = self.listings().into_iter();
        each.map(|of| CsvTable::from_texts(&format!("trace_{}", of.file), of.head, of.rows)).collect()
    }

    /// Returns an HTML page.
    pub fn to_html_report(&self) -> SimulationReport {
        let mut facts = Vec::from(text::machine_facts(self));
        facts.extend([text::events_text(self), text::ending_text(self)]);
        let tables = self.listings().into_iter().map(|mut of| {
            of.rows.truncate(THREADS_IN_HTML);
            SimulationTable {
                title: of.title.to_owned(),
                columns: of.head.iter().map(|name| name.replace('_', " ")).collect(),
                name_columns: of.name_columns,
                rows: of.rows.into_iter().map(|row| format_row(row, of.name_columns)).collect(),
                ..SimulationTable::default()
            }
        });
        SimulationReport {
            title: format!("Page allocator trace: {}", self.name),
            facts,
            tables: tables.collect(),
            text: Some(self.to_text(TextStyle::PLAIN, true)),
            ..SimulationReport::default()
        }
    }

    fn listings(&self) -> Vec<Listing> {
        let text = |number: u64| number.to_string();
        let kinds = KIND_NAMES.iter().zip(self.kinds).filter(|(_, events)| *events > 0);
        let kinds = kinds.map(|((name, _), events)| vec![(*name).to_owned(), text(events)]);
        let taken = self.account.allocated.iter().map(|((order, migratetype), of)| {
            vec![order.to_string(), self.migratetype(*migratetype), text(of.events), text(of.pages)]
        });
        let freed = self.account.freed_by_order.iter();
        let freed = freed.map(|(order, of)| vec![order.to_string(), text(of.events), text(of.pages)]);
        let threads = self.account.busiest_threads(self.threads_shown).into_iter().map(|(tid, of)| {
            let amounts = [of.allocated.events, of.allocated.pages, of.freed.events, of.freed.pages];
            let name = escape_invisible(self.thread_name(tid).unwrap_or_default());
            [tid.to_string(), name].into_iter().chain(amounts.map(text)).collect()
        });
        let states = self.snapshot.iter().flat_map(|of| STATE_NAMES.iter().zip(of.frames));
        let states = states.map(|(name, pages)| vec![(*name).to_owned(), text(pages)]);
        let listing =
            |file, title, head, names, rows| Listing { file, title, head, name_columns: names, rows };
        vec![
            listing("kinds", "events by kind", &["kind", "events"], 1, kinds.collect()),
            listing(
                "allocations",
                "allocations by order and requested migratetype",
                &["order", "migratetype", "events", "pages"],
                2,
                taken.collect(),
            ),
            listing("frees", "frees by order", &["order", "events", "pages"], 1, freed.collect()),
            listing(
                "threads",
                "busiest threads",
                &["tid", "name", "allocations", "allocated_pages", "frees", "freed_pages"],
                2,
                threads.collect(),
            ),
            listing("memory", "memory at the start, in pages", &["state", "pages"], 1, states.collect()),
            listing("summary", "summary", &["field", "value"], 1, self.summary_rows()),
        ]
    }

    /// Rows of known values; unknown values have no row.
    fn summary_rows(&self) -> Vec<Vec<String>> {
        let ending = match &self.ending {
            RunEnd::Complete { .. } => "complete".to_owned(),
            RunEnd::Stopped { reason: why, .. } => format!("stopped: {why}"),
            RunEnd::NotClosed => "not closed".to_owned(),
        };
        let vmstat = self.end.as_ref().and_then(|end| end.vmstat_pages);
        let freed = self.account.free_origins.as_ref();
        let lines = [
            ("ending", Some(ending)),
            ("kernel", Some(self.head.kernel.clone())),
            ("cpus", Some(self.head.cpus.to_string())),
            ("page_bytes", Some(self.head.page_bytes.to_string())),
            ("events", Some(self.events().to_string())),
            ("lost", Some(self.lost_events().to_string())),
            ("first_event_ns", self.account.span_ns.map(|span| span.0.to_string())),
            ("last_event_ns", self.account.span_ns.map(|span| span.1.to_string())),
            ("file_bytes", Some(self.file_bytes.to_string())),
            ("bytes_per_event", self.bytes_per_event().map(|of| format!("{of:.3}"))),
            ("allocations_failed", Some(self.account.failed_allocations.to_string())),
            ("buddyinfo_samples", Some(self.samples.len().to_string())),
            ("vmstat_allocated_pages", vmstat.map(|of| of[0].to_string())),
            ("vmstat_freed_pages", vmstat.map(|of| of[1].to_string())),
            ("freed_pages_seen", freed.map(|of| of.allocated_in_trace.to_string())),
            ("freed_pages_before", freed.map(|of| of.in_use_before.to_string())),
            ("freed_pages_unknown", freed.map(|of| of.unknown.to_string())),
            ("freed_pages_allocated_untraced", freed.map(|of| of.allocated_untraced.to_string())),
        ];
        let known = lines.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?]));
        known.collect()
    }
}

/// Formats a row for display: names in words, integers with grouped digits. The number of a thread or an
/// order is a name. Names of the kernel or a program are unchanged.
fn format_row(row: Vec<String>, names: usize) -> Vec<String> {
    let cell = |(at, cell): (usize, String)| match cell.parse::<u64>() {
        Ok(number) if at >= names => format_count(number.into()),
        _ if at == 0 => cell.replace('_', " "),
        _ => cell,
    };
    row.into_iter().enumerate().map(cell).collect()
}
