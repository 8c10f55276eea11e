//! The results of `sim bench` as a table and as JSON.

use pagelab_model::{Bytes, PageSize};
use pagelab_report::json::object::{Object, array};
use pagelab_report::json::{header, to_text};
use pagelab_report::style::{bytes, count, three_digits};
use pagelab_report::text::{Column, Page};
use serde_json::Value;

use super::engines::Name;
use super::floor::Floor;
use super::{Args, Row};
use crate::exit::{Exit, Failure};
use crate::out;

/// Why an allocation and a free have no time of their own.
const TOGETHER: &str = "under this load they alternate";

/// Floors by simulated memory.
pub type Floors = [(Bytes, Option<Floor>)];

/// As a table.
pub fn text(args: &Args, processor: &str, rows: &[Row], floors: &Floors) -> String {
    let mut page = Page::new(out::style());
    page.hanging(
        "",
        &format!(
            "Pairs of a free and an allocation, which are two operations, at 75 % full or as the load says; \
             ahead: with look-ahead; seed {}, {} turns of {} pairs, the middle one of each; {processor}",
            args.seed,
            args.turns,
            count(args.pairs.into())
        ),
    );
    page.gap();
    let columns = [
        Column::left("memory"),
        Column::left("load"),
        Column::left("engine"),
        Column::left("per-CPU"),
        Column::left("ahead"),
        Column::right("ns/op"),
        Column::right("Mpair/s"),
        Column::right("to plain"),
        Column::right("B/page"),
    ];
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                bytes(row.memory),
                row.load.name().to_owned(),
                row.engine.text().to_owned(),
                yes(row.per_cpu),
                yes(row.ahead),
                format!("{:.1}", row.median_ps() / 2e3),
                three_digits(row.pairs_per_s() / 1e6),
                to_plain(row, rows).map_or("-".to_owned(), |ratio| format!("{ratio:.1}×")),
                row.bytes_a_page().map_or("-".to_owned(), |bytes| format!("{bytes:.3}")),
            ]
        })
        .collect();
    page.table(0, &columns, &table);
    page.gap();
    halves(&mut page, rows);
    for (memory, floor) in floors {
        if let Some(floor) = floor {
            page.hanging(
                "",
                &format!(
                    "{}: a read that misses all caches costs {:.1} ns if it waits for the one before and \
                     {:.1} ns if not, in {} on huge pages; an operation looks at one to two such lines",
                    bytes(*memory),
                    floor.waiting_ps / 1e3,
                    floor.free_ps / 1e3,
                    bytes(floor.buffer)
                ),
            );
        }
    }
    page.finish()
}

/// What an allocation and a free take where the load has them apart.
fn halves(page: &mut Page, rows: &[Row]) {
    let mut table = Vec::new();
    for row in rows {
        let Some((taken, freed)) = row.median_halves_ps() else { continue };
        let lists = if row.per_cpu { ", per-CPU" } else { "" };
        let ahead = if row.ahead { ", ahead" } else { "" };
        table.push(vec![
            bytes(row.memory),
            format!("{}{lists}{ahead}", row.engine.text()),
            format!("{:.1}", taken / 1e3),
            format!("{:.1}", freed / 1e3),
        ]);
    }
    if table.is_empty() {
        return;
    }
    page.hanging(
        "bulk: ",
        "half of memory allocated at order 0, then freed in a random order, as LLFree's own bench does under \
         the name of rand; all movable",
    );
    let columns = [
        Column::left("memory"),
        Column::left("engine"),
        Column::right("ns/allocation"),
        Column::right("ns/free"),
    ];
    page.table(0, &columns, &table);
    page.gap();
}

/// Pairs a second to those of the plain allocator under the same load.
fn to_plain(row: &Row, rows: &[Row]) -> Option<f64> {
    let is =
        |other: &&Row| other.engine == Name::Plain && other.memory == row.memory && other.load == row.load;
    rows.iter().find(is).map(|plain| plain.median_ps() / row.median_ps().max(1.0))
}

impl Row {
    /// Bytes of the books for a simulated base page.
    fn bytes_a_page(&self) -> Option<f64> {
        Some(self.books?.0 as f64 / (self.memory.0 / PageSize::USUAL.bytes()) as f64)
    }
}

/// As a document.
pub fn json(args: &Args, processor: &str, rows: &[Row], floors: &Floors) -> Result<String, Failure> {
    let row = |row: &Row| {
        Object::new()
            .put("memory_bytes", row.memory.0)
            .put("load", row.load.name())
            .put("engine", row.engine.text())
            .put("per_cpu_lists", row.per_cpu)
            .put("look_ahead", row.ahead)
            .put("pair_ps", row.median_ps() as u64)
            .put("pair_ps_by_turn", row.ps.clone())
            .put("operation_ps", (row.median_ps() / 2.0) as u64)
            .option("allocation_ps", row.median_halves_ps().map(|halves| halves.0 as u64), TOGETHER)
            .option("free_ps", row.median_halves_ps().map(|halves| halves.1 as u64), TOGETHER)
            .put("pairs_per_s", row.pairs_per_s() as u64)
            .option("books_bytes", row.books.map(|books| books.0), "it has none, or they lie in no one place")
            .put("failed", row.failed)
            .put("stolen", row.stolen)
    };
    let floor = |(memory, floor): &(Bytes, Option<Floor>)| {
        let reason = "no memory was to be had for it";
        let of = |of: fn(&Floor) -> u64| floor.as_ref().map(of);
        Object::new()
            .put("memory_bytes", memory.0)
            .option("buffer_bytes", of(|floor| floor.buffer.0), reason)
            .option("read_ps", of(|floor| floor.waiting_ps as u64), reason)
            .option("independent_read_ps", of(|floor| floor.free_ps as u64), reason)
    };
    let document: Value = header("sim_bench")
        .put("processor", processor)
        .put("seed", args.seed)
        .put("turns", args.turns)
        .put("pairs_of_a_turn", args.pairs)
        .put("engines", array(rows, row))
        .put("floors", array(floors, floor))
        .into();
    to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}
