//! `pagelab compare`: one experiment in several runs, a column per run and a row per measure.

use pagelab_metrics::compare::{ComparisonRow, RunCell, RunComparison, RunRatio};
use pagelab_metrics::effect::{Effect, EffectVerdict};
use pagelab_model::PageSize;
use pagelab_model::experiment::{BetterDirection, Flag, measures};
use pagelab_model::run::Run;
use serde_json::Value;

use crate::effect_text::{
    counted_rounds, display_measure_key, format_measure_verdict, format_narrow_interval as interval,
    format_ratio, format_verdict,
};
use crate::json;
use crate::quantity_format::format_quantity;
use crate::style::TextStyle;
use crate::text_report::{TableColumn, TextReport, display_width};

/// Largest number of runs shown side by side with their intervals; with more, signs replace words.
const INTERVAL_COLUMNS_MAX: usize = 2;
/// Machine differences in the summary, at most.
const MACHINE_DIFFERENCES_MAX: usize = 12;
/// Characters of a name or value from a file, at most.
const NAME_MAX: usize = 24;
/// Measures of the summary besides the judging measure, if the runs have them.
const SUMMARY_MEASURES: [&str; 6] = [
    measures::PEAK_MEMORY,
    "latency.p99.9",
    measures::HUGE_BYTES,
    "counter.dTLB-load-misses",
    "counter.iTLB-load-misses",
    "counter.cache-misses",
];

/// Letter of a run in the column headings: `A`, `B` …
pub fn run_letter(run: usize) -> String {
    let letters = ('A'..='Z').nth(run % 26).unwrap_or('?');
    if run < 26 { letters.to_string() } else { format!("{letters}{}", run / 26) }
}

/// Renders the comparison as text. `verbose`: with every measure and every difference.
pub fn render(runs: &[Run], comparison: &RunComparison, verbose: bool, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    write_run_headers(&mut output, runs);
    output.add_gap();
    write_machine_differences(&mut output, runs, verbose);
    let shown = |row: &&ComparisonRow| {
        verbose || row.is_judging_measure || SUMMARY_MEASURES.contains(&row.head.name.as_str())
    };
    let rows: Vec<&ComparisonRow> = comparison.rows.iter().filter(shown).collect();
    let mut workloads: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    workloads.dedup();
    for workload in workloads {
        output.add_heading(&clip_name(workload));
        let of: Vec<&ComparisonRow> = rows.iter().filter(|row| row.workload == workload).copied().collect();
        match runs.len() <= INTERVAL_COLUMNS_MAX {
            true => write_interval_tables(&mut output, &of),
            false => write_sign_table(&mut output, &of, runs.len()),
        }
    }
    if runs.len() > INTERVAL_COLUMNS_MAX {
        let key = "+ better   - worse   = no difference   ? undecided   ~ differs   ! not applied as \
                   requested";
        output.add_gap();
        output.add_dim_indented(key);
    }
    let hidden = comparison.rows.len() - rows.len();
    output.add_gap();
    for refused in &comparison.not_compared {
        let first = format!("{}  ", style.paint_alert("NOT COMPARED"));
        output.add_paragraph(&first, &style.to_one_line(&refused.chars().take(400).collect::<String>()));
    }
    if hidden > 0 {
        output.add_dim_text(&format!("-v compares {hidden} more measures"));
    }
    let words = "ratio: of geometric means, relative to run A; interval: Welch's t, 95 %; speed-up: relative \
                 to the baseline of the same run, by pairs";
    output.add_dim_text(words);
    output.into_text()
}

fn clip_name(name: &str) -> String {
    crate::run::clip_name(name, NAME_MAX)
}

fn write_run_headers(output: &mut TextReport, runs: &[Run]) {
    let style = output.style();
    for (index, run) in runs.iter().enumerate() {
        let plan = run.experiment.as_ref().map_or("", |experiment| experiment.plan.name.as_str());
        let host = run.manifest.machine.host_name.as_deref().unwrap_or("unknown machine");
        let facts = [
            style.paint_bold(&run_letter(index)),
            style.clip_name(&run.name, 48),
            clip_name(plan),
            clip_name(host),
            crate::utc::format_utc(run.manifest.started.realtime_ns),
        ];
        output.add_facts("", &facts, "  ");
    }
}

/// Differences of the machines and their settings come first: they may be the complete answer.
fn write_machine_differences(output: &mut TextReport, runs: &[Run], verbose: bool) {
    let machine_differences = find_differences(runs);
    if machine_differences.is_empty() {
        output.add_text("no recorded difference in machine, kernel or settings");
        return;
    }
    let differences_max = if verbose { usize::MAX } else { MACHINE_DIFFERENCES_MAX };
    let titles: Vec<String> =
        ["differs".to_owned()].into_iter().chain((0..runs.len()).map(run_letter)).collect();
    let cells = |difference: &MachineDifference| -> Vec<String> {
        let values = difference.values.iter().map(|value| value.as_deref().map_or("–".to_owned(), clip_name));
        std::iter::once(difference.name.clone()).chain(values).collect()
    };
    let rows: Vec<Vec<String>> = machine_differences.iter().take(differences_max).map(cells).collect();
    if !output.add_table_if_fits(2, &TableColumn::list(&titles, titles.len()), &rows) {
        rows.iter().for_each(|row| output.add_facts("  ", row, "  "));
    }
    if machine_differences.len() > differences_max {
        output.add_dim_indented(&format!(
            "{} more settings differ (-v)",
            machine_differences.len() - differences_max
        ));
    }
}

fn row_name(row: &ComparisonRow) -> String {
    clip_name(&display_measure_key(&row.head))
}

fn median_text(row: &ComparisonRow, cell: &RunCell) -> String {
    cell.median.map_or("–".to_owned(), |median| format_quantity(median, &row.head.unit, PageSize::DEFAULT))
}

fn verdict_text(row: &ComparisonRow, against: &RunRatio) -> String {
    match row.is_judging_measure {
        true => format_verdict(against.verdict),
        false => format_measure_verdict(against.verdict, against.ratio),
    }
    .to_owned()
}

/// Writes the table for two runs: values, ratio, interval and verdict.
fn write_interval_tables(output: &mut TextReport, rows: &[&ComparisonRow]) {
    let none = || "–".to_owned();
    let mut cells: Vec<Vec<String>> = Vec::new();
    let mut last = "";
    for row in rows {
        let variant = if row.variant == last { String::new() } else { clip_name(&row.variant) };
        last = &row.variant;
        let [first, second] = &row.cells[..] else { continue };
        let change = match &second.to_first_run {
            Some(against) => [
                format_ratio(against.ratio, Some(against.interval)),
                interval(against.interval),
                verdict_text(row, against),
            ],
            None => [none(), none(), "no ratio".to_owned()],
        };
        let values = [variant, row_name(row), median_text(row, first), median_text(row, second)];
        cells.push([&values[..], &change].concat());
        if let (true, Some(first_effect), Some(second_effect)) =
            (row.is_judging_measure, &first.effect, &second.effect)
        {
            let change = match &second.effect_to_first_run {
                Some(against) => gain_texts(first_effect.better, against),
                None => [none(), none(), "too few".to_owned()],
            };
            let speed = |effect: &Effect| {
                let (speed, within) = effect.speed_up();
                if effect.verdict.is_void() { none() } else { format!("{}×", format_ratio(speed, within)) }
            };
            let speeds = [String::new(), "speed-up".to_owned(), speed(first_effect), speed(second_effect)];
            cells.push([&speeds[..], &change].concat());
        }
    }
    let columns = [
        TableColumn::left("variant"),
        TableColumn::left("measure"),
        TableColumn::right("A"),
        TableColumn::right("B"),
        TableColumn::right("ratio"),
        TableColumn::right("interval"),
        TableColumn::left("verdict"),
    ];
    if !output.add_table_if_fits(2, &columns, &cells) {
        add_narrow_table(output, &columns, cells);
    }
}

/// Adds the table without intervals and with shortened names.
fn add_narrow_table(output: &mut TextReport, columns: &[TableColumn<'_>], mut cells: Vec<Vec<String>>) {
    for row in &mut cells {
        row[0] = crate::run::clip_name(&row[0], 12);
        row[1] = crate::run::clip_name(&row[1], 18);
    }
    if !output.add_fitting_table(2, columns, &cells, [[0usize, 1, 2, 3, 4, 6]]) {
        for mut row in cells {
            row.remove(5);
            output.add_facts("  ", &row, "  ");
        }
    }
}

/// Compares two gains: the ratio of two speed-ups.
fn gain_texts(better: BetterDirection, against: &RunRatio) -> [String; 3] {
    let (ratios, intervals) = match better == BetterDirection::Higher {
        true => (against.ratio, against.interval),
        false => (1.0 / against.ratio, against.interval.inverse()),
    };
    let verdicts = match against.verdict {
        EffectVerdict::Better => "gains more",
        EffectVerdict::Worse => "gains less",
        other => format_verdict(other),
    };
    [format_ratio(ratios, Some(intervals)), interval(intervals), verdicts.to_owned()]
}

/// Writes the table for more than two runs: a value and a ratio with a sign for each.
fn write_sign_table(output: &mut TextReport, rows: &[&ComparisonRow], runs: usize) {
    let mut titles = vec!["variant".to_owned(), "measure".to_owned(), run_letter(0)];
    titles.extend((1..runs).flat_map(|run| [run_letter(run), String::new()]));
    let mut last = "";
    let mut table = Vec::new();
    for row in rows {
        let variant = if row.variant == last { String::new() } else { clip_name(&row.variant) };
        last = &row.variant;
        let mut cells = vec![variant, row_name(row)];
        for (index, cell) in row.cells.iter().enumerate() {
            cells.push(median_text(row, cell));
            if index > 0 {
                let shown = cell.to_first_run.map(|against| {
                    let ratio = format_ratio(against.ratio, Some(against.interval));
                    format!("{ratio} {}", verdict_sign(against.verdict))
                });
                cells.push(shown.unwrap_or("–".to_owned()));
            }
        }
        table.push(cells);
    }
    if output.add_table_if_fits(2, &TableColumn::list(&titles, 2), &table) {
        return;
    }
    for row in &table {
        let lead = format!("  {}", row[..2].join(" ").trim());
        let blanks = " ".repeat(28usize.saturating_sub(display_width(&lead)).max(2));
        output.add_facts(&(lead + &blanks), &row[2..], "  ");
    }
}

fn verdict_sign(verdict: EffectVerdict) -> char {
    match verdict {
        EffectVerdict::Better => '+',
        EffectVerdict::Worse => '-',
        EffectVerdict::NoDifference => '=',
        EffectVerdict::Differs => '~',
        EffectVerdict::TooFew { .. } | EffectVerdict::Undecided(_) => '?',
        EffectVerdict::WithoutHugePages { .. } | EffectVerdict::NotApplied { .. } => '!',
    }
}

/// Field with different values in the runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineDifference {
    /// Name, as in the JSON of a report: `machine.cpu.threads`.
    pub name: String,
    /// Its value in each run; `None` if the run does not state it.
    pub values: Vec<Option<String>>,
}

/// Fields that change from one boot to the next without any setting.
const IGNORED_FACTS: [&str; 6] = [
    "machine.direct_map",
    "machine.cgroup",
    "machine.cpu.flags",
    "machine.cpu.clock_khz",
    "machine.page_reporting.reported_bytes",
    "settings.swap_areas",
];

/// Finds all differences, in the order of a report.
pub fn find_differences(runs: &[Run]) -> Vec<MachineDifference> {
    let facts_by_run: Vec<Vec<(String, String)>> = runs.iter().map(list_facts).collect();
    let mut seen = std::collections::BTreeSet::new();
    let names = facts_by_run.iter().flatten().map(|(name, _)| name).filter(|name| seen.insert(*name));
    let value = |facts: &Vec<(String, String)>, name: &String| {
        facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let found = names.map(|name| MachineDifference {
        values: facts_by_run.iter().map(|facts| value(facts, name)).collect(),
        name: name.clone(),
    });
    found.filter(|of| of.values.windows(2).any(|pair| pair[0] != pair[1])).collect()
}

/// Names and values of a run's machine, settings and plan.
fn list_facts(run: &Run) -> Vec<(String, String)> {
    let document = Value::from(json::run::run_json(run));
    let mut facts = Vec::new();
    for part in ["machine", "settings"] {
        flatten_facts(part, &document[part], &mut facts);
    }
    facts.push(("tool_version".to_owned(), run.manifest.tool_version.clone()));
    if let Some(experiment) = &run.experiment {
        let plan = &experiment.plan;
        facts.push(("plan.place".to_owned(), plan.place.clone()));
        facts.extend(guest_fact(run));
        facts.push(("plan.rounds".to_owned(), counted_rounds(plan).to_string()));
        facts.push(("plan.seed".to_owned(), plan.seed.to_string()));
        let is_loud = |flag: &Flag| flag.kind == Flag::NOT_QUIET;
        let loud = experiment.trials.iter().filter(|of| of.flags.iter().any(is_loud));
        facts.push(("trials not quiet".to_owned(), loud.count().to_string()));
    }
    facts
}

/// Guests of a run, and what ran their CPUs: settings and machine of the run are those of its host.
fn guest_fact(run: &Run) -> Option<(String, String)> {
    let guests = run.events.iter().filter(|event| event.kind == Run::GUEST_EVENT);
    let guests: Vec<&str> = guests.map(|event| event.text.as_str()).collect();
    let emulated = if run.has_emulated_times() { ", emulated (TCG)" } else { "" };
    (!guests.is_empty()).then(|| ("guests".to_owned(), format!("{}{emulated}", guests.join("; "))))
}

/// Returns the name of a list item: of a cache, its level and kind, because older files have no instruction
/// caches.
fn item_label(item: &Value) -> Option<String> {
    Some(format!("{} {}", item["level"].as_u64()?, item["kind"].as_str()?))
}

fn flatten_facts(name: &str, value: &Value, facts: &mut Vec<(String, String)>) {
    if IGNORED_FACTS.contains(&name) || name.ends_with("_absent_reason") {
        return;
    }
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| flatten_facts(&format!("{name}.{key}"), value, facts));
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (at, item) in items.iter().enumerate() {
                flatten_facts(
                    &format!("{name}[{}]", item_label(item).unwrap_or_else(|| at.to_string())),
                    item,
                    facts,
                );
            }
        }
        Value::Null => {}
        Value::String(text) => facts.push((name.to_owned(), text.clone())),
        other => facts.push((name.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests;
