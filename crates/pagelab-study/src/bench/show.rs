//! Results of the benchmark as a table and as JSON.

use pagelab_command::exit::Failure;
use pagelab_command::output;
use pagelab_model::{Bytes, PageSize};
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};
use pagelab_report::style::{TextStyle, format_bytes, format_count, format_three_digits};
use pagelab_report::text_report::{TableColumn, TextReport};

use super::engines::EngineName;
use super::{BenchRequest, BenchResults, BenchRow, MemoryLatency};

/// Reason for missing separate times of an allocation and a free.
const NO_SEPARATE_TIMES: &str = "this load alternates allocations and frees";

/// Renders the results as a table.
pub fn to_table_text(request: &BenchRequest, results: &BenchResults, style: TextStyle) -> String {
    let BenchResults { processor, rows, floors } = results;
    let mut output = TextReport::new(style);
    output.add_text(&format!(
        "Each pair is a free and an allocation (two operations), with memory 75 % full unless the load \
        defines it; ahead: with look-ahead; seed {}, median of {} turns of {} pairs; {processor}",
        request.seed,
        request.turns,
        format_count(request.pairs.into())
    ));
    output.add_gap();
    let mut columns = ["memory", "load", "engine", "per-CPU", "ahead"].map(TableColumn::left).to_vec();
    columns.extend(["ns/op", "Mpair/s", "vs btree", "B/page"].map(TableColumn::right));
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                format_bytes(row.memory),
                row.load.name().to_owned(),
                row.engine.name().to_owned(),
                yes(row.has_pcp_lists),
                yes(row.has_lookahead),
                format!("{:.1}", row.median_ps() / 2e3),
                format_three_digits(row.pairs_per_s() / 1e6),
                ratio_to_btree(row, rows).map_or("-".to_owned(), |ratio| format!("{ratio:.1}×")),
                row.bytes_per_page().map_or("-".to_owned(), |bytes| format!("{bytes:.3}")),
            ]
        })
        .collect();
    output.add_table(0, &columns, &table);
    output.add_gap();
    write_alloc_free_table(&mut output, rows);
    for (memory, floor) in floors {
        if let Some(floor) = floor {
            output.add_text(&format!(
                "{}: a read that misses all caches takes {:.1} ns if dependent and {:.1} ns if \
                 independent (buffer of {}, huge pages); an operation reads one or two cache lines",
                format_bytes(*memory),
                floor.dependent_ps / 1e3,
                floor.independent_ps / 1e3,
                format_bytes(floor.buffer)
            ));
        }
    }
    output.into_text()
}

/// Writes the times of allocations and frees, for loads that separate them.
fn write_alloc_free_table(output: &mut TextReport, rows: &[BenchRow]) {
    let mut table = Vec::new();
    for row in rows {
        let Some((taken, freed)) = row.median_alloc_free_ps() else { continue };
        let lists = if row.has_pcp_lists { ", per-CPU" } else { "" };
        let ahead = if row.has_lookahead { ", ahead" } else { "" };
        table.push(vec![
            format_bytes(row.memory),
            format!("{}{lists}{ahead}", row.engine.name()),
            format!("{:.1}", taken / 1e3),
            format!("{:.1}", freed / 1e3),
        ]);
    }
    if table.is_empty() {
        return;
    }
    output.add_paragraph(
        "bulk: ",
        "half of memory allocated at order 0, then freed in random order, like `rand` in LLFree's benchmark; \
        all movable",
    );
    let mut columns = ["memory", "engine"].map(TableColumn::left).to_vec();
    columns.extend(["ns/allocation", "ns/free"].map(TableColumn::right));
    output.add_table(0, &columns, &table);
    output.add_gap();
}

/// Pairs per second relative to the plain allocator under the same load.
fn ratio_to_btree(row: &BenchRow, rows: &[BenchRow]) -> Option<f64> {
    let is = |other: &&BenchRow| {
        other.engine == EngineName::BTree && other.memory == row.memory && other.load == row.load
    };
    rows.iter().find(is).map(|plain| plain.median_ps() / row.median_ps().max(1.0))
}

impl BenchRow {
    /// Metadata bytes per simulated base page.
    fn bytes_per_page(&self) -> Option<f64> {
        Some(self.metadata?.0 as f64 / (self.memory.0 / PageSize::DEFAULT.bytes()) as f64)
    }
}

/// Renders the results as a JSON document.
pub fn to_document(request: &BenchRequest, results: &BenchResults) -> Result<String, Failure> {
    let BenchResults { processor, rows, floors } = results;
    let row = |row: &BenchRow| {
        let (halves, metadata) = (row.median_alloc_free_ps(), row.metadata.map(|bytes| bytes.0));
        JsonObject::new()
            .field("memory_bytes", row.memory.0)
            .field("load", row.load.name())
            .field("engine", row.engine.name())
            .field("per_cpu_lists", row.has_pcp_lists)
            .field("look_ahead", row.has_lookahead)
            .field("pair_ps", row.median_ps() as u64)
            .field("pair_ps_by_turn", row.pair_ps.clone())
            .field("operation_ps", (row.median_ps() / 2.0) as u64)
            .optional("allocation_ps", halves.map(|(allocation, _)| allocation as u64), NO_SEPARATE_TIMES)
            .optional("free_ps", halves.map(|(_, free)| free as u64), NO_SEPARATE_TIMES)
            .field("pairs_per_s", row.pairs_per_s() as u64)
            .optional("metadata_bytes", metadata, "it has none, or they are not contiguous")
            .field("failed", row.failed_allocations)
            .field("stolen", row.stolen_blocks)
    };
    let floor = |(memory, floor): &(Bytes, Option<MemoryLatency>)| {
        let reason = "no memory available for it";
        let of = |of: fn(&MemoryLatency) -> u64| floor.as_ref().map(of);
        JsonObject::new()
            .field("memory_bytes", memory.0)
            .optional("buffer_bytes", of(|floor| floor.buffer.0), reason)
            .optional("read_ps", of(|floor| floor.dependent_ps as u64), reason)
            .optional("independent_read_ps", of(|floor| floor.independent_ps as u64), reason)
    };
    let document = document_header("sim_bench")
        .field("processor", processor.as_str())
        .field("seed", request.seed)
        .field("turns", request.turns)
        .field("pairs_of_a_turn", request.pairs)
        .field("engines", to_array(rows, row))
        .field("floors", to_array(floors, floor));
    output::json_text(&document)
}
