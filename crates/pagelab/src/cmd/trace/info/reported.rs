//! A trace as `pagelab report` shows it: what `trace info` says, in each of the report's forms.

use std::path::Path;

use pagelab_model::Bytes;
use pagelab_model::run::{Ending, Run};
use pagelab_report::csv::Table;
use pagelab_report::json::object::Object;
use pagelab_report::sim::{SimReport, SimTable};
use pagelab_report::style::{Style, bytes, count, spelt};
use pagelab_runfile::TRACE_NOT_SHOWN;
use serde_json::Value;

use super::{Args, Info, STATES, json, text};
use crate::cmd::trace::words::NAMES;
use crate::exit::Failure;

/// Threads in a text, where nobody says how many.
const THREADS: usize = 8;
/// Threads in a page, the busiest first; tables and JSON have all.
const THREADS_OF_PAGE: usize = 100;

/// What the trace of a run file holds.
pub struct Reported(Info);

/// One table: the name of its file, what it shows, the heads of its columns, how many of them hold names,
/// and its lines.
struct Listing {
    file: &'static str,
    title: &'static str,
    head: &'static [&'static str],
    names: usize,
    rows: Vec<Vec<String>>,
}

impl Reported {
    /// Reads the trace of this run, if it holds one, all of it: damage anywhere is found.
    pub fn of(file: &Path, run: &mut Run) -> Result<Option<Reported>, Failure> {
        let before = run.not_shown.len();
        run.not_shown.retain(|what| what != TRACE_NOT_SHOWN);
        if run.not_shown.len() == before {
            return Ok(None);
        }
        let args = Args { file: file.to_owned(), threads: usize::MAX, json: false };
        super::read(&args).map(|info| Some(Reported(info)))
    }

    /// For the terminal.
    pub fn text(&self, style: Style, verbose: bool) -> String {
        text::of(&self.0, style, if verbose { THREADS_OF_PAGE } else { THREADS })
    }

    /// The fields of `trace_info`.
    pub fn document(&self) -> Value {
        json::put(Object::new(), &self.0).into()
    }

    /// One file each.
    pub fn tables(&self) -> Vec<Table<'static>> {
        let each = self.listings().into_iter();
        each.map(|of| Table::of_texts(&format!("trace_{}", of.file), of.head, of.rows)).collect()
    }

    /// A page of HTML.
    pub fn page(&self) -> SimReport {
        let info = &self.0;
        let managed: u64 = info.head.zones.iter().map(|zone| u64::from(zone.managed)).sum();
        let facts = vec![
            format!("Linux {}", info.head.kernel),
            format!("{} processors", info.head.cpus),
            format!("{} managed", bytes(Bytes(managed.saturating_mul(info.head.page_bytes.into())))),
            text::events(info),
            text::ended(info),
        ];
        let tables = self.listings().into_iter().map(|mut of| {
            of.rows.truncate(THREADS_OF_PAGE);
            SimTable {
                title: of.title.to_owned(),
                columns: of.head.iter().map(|name| name.replace('_', " ")).collect(),
                names: of.names,
                rows: of.rows.into_iter().map(|row| shown(row, of.names)).collect(),
                ..SimTable::default()
            }
        });
        SimReport {
            title: format!("Trace of the page allocator: {}", info.name),
            facts,
            tables: tables.collect(),
            text: Some(self.text(Style::PLAIN, true)),
            ..SimReport::default()
        }
    }

    fn listings(&self) -> Vec<Listing> {
        let info = &self.0;
        let text = |number: u64| number.to_string();
        let kinds = NAMES.iter().zip(info.kinds).filter(|(_, events)| *events > 0);
        let taken = info.account.taken.iter().map(|((order, migratetype), of)| {
            vec![order.to_string(), info.migratetype(*migratetype), text(of.events), text(of.pages)]
        });
        let freed = info.account.freed_by_order.iter();
        let threads = info.account.busiest(info.threads).into_iter().map(|(tid, of)| {
            let amounts = [of.taken.events, of.taken.pages, of.freed.events, of.freed.pages];
            let name = spelt(info.thread_name(tid).unwrap_or_default());
            [tid.to_string(), name].into_iter().chain(amounts.map(text)).collect()
        });
        let states = info.snapshot.iter().flat_map(|of| STATES.iter().zip(of.frames));
        let listing = |file, title, head, names, rows| Listing { file, title, head, names, rows };
        vec![
            listing(
                "kinds",
                "events by kind",
                &["kind", "events"],
                1,
                kinds.map(|(name, events)| vec![(*name).to_owned(), text(events)]).collect(),
            ),
            listing(
                "allocations",
                "allocations by order and the migratetype that was asked for",
                &["order", "migratetype", "events", "pages"],
                2,
                taken.collect(),
            ),
            listing(
                "frees",
                "frees by order",
                &["order", "events", "pages"],
                1,
                freed.map(|(order, of)| vec![order.to_string(), text(of.events), text(of.pages)]).collect(),
            ),
            listing(
                "threads",
                "the busiest threads",
                &["tid", "name", "allocations", "allocated_pages", "frees", "freed_pages"],
                2,
                threads.collect(),
            ),
            listing(
                "memory",
                "memory at the start, in pages",
                &["state", "pages"],
                1,
                states.map(|(name, pages)| vec![(*name).to_owned(), text(pages)]).collect(),
            ),
            listing("summary", "all in all", &["field", "value"], 1, self.summary()),
        ]
    }

    /// What is known of the whole trace; what is not has no line.
    fn summary(&self) -> Vec<Vec<String>> {
        let info = &self.0;
        let ending = match &info.ending {
            Ending::Complete { .. } => "complete".to_owned(),
            Ending::Stopped { why, .. } => format!("stopped: {why}"),
            Ending::NotClosed => "not closed".to_owned(),
        };
        let vmstat = info.end.as_ref().and_then(|end| end.vmstat_pages);
        let freed = info.account.freed.as_ref();
        let lines = [
            ("ending", Some(ending)),
            ("kernel", Some(info.head.kernel.clone())),
            ("cpus", Some(info.head.cpus.to_string())),
            ("page_bytes", Some(info.head.page_bytes.to_string())),
            ("events", Some(info.events().to_string())),
            ("lost", Some(info.lost().to_string())),
            ("first_event_ns", info.account.span_ns.map(|span| span.0.to_string())),
            ("last_event_ns", info.account.span_ns.map(|span| span.1.to_string())),
            ("file_bytes", Some(info.file_bytes.to_string())),
            ("bytes_per_event", info.bytes_per_event().map(|of| format!("{of:.3}"))),
            ("allocations_failed", Some(info.account.failed.to_string())),
            ("buddyinfo_samples", Some(info.samples.len().to_string())),
            ("vmstat_allocated_pages", vmstat.map(|of| of[0].to_string())),
            ("vmstat_freed_pages", vmstat.map(|of| of[1].to_string())),
            ("freed_pages_seen", freed.map(|of| of.seen.to_string())),
            ("freed_pages_before", freed.map(|of| of.before.to_string())),
            ("freed_pages_unknown", freed.map(|of| of.unknown.to_string())),
            ("freed_pages_taken_unseen", freed.map(|of| of.free.to_string())),
        ];
        let known = lines.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?]));
        known.collect()
    }
}

/// A line as a reader wants it: names in words, digits of whole numbers in groups. The number of a thread
/// or an order is a name. What the kernel or a program is called stays as it is.
fn shown(row: Vec<String>, names: usize) -> Vec<String> {
    let cell = |(at, cell): (usize, String)| match cell.parse::<u64>() {
        Ok(number) if at >= names => count(number.into()),
        _ if at == 0 => cell.replace('_', " "),
        _ => cell,
    };
    row.into_iter().enumerate().map(cell).collect()
}
