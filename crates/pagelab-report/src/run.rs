//! `pagelab report` on a terminal: one run file of any type, section by section.
//!
//! A new type of content adds a file to this directory and a line to `SECTIONS_AFTER`.

mod activity;
mod experiment;
mod fragmentation;
mod header;
pub mod judge;
mod memory_used;
mod samples;
mod scores;
mod series;
mod stacks;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod time_trend;
pub(crate) mod tune;

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::standard_series;
use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::run::{Run, Unit};
use pagelab_model::{Bytes, PageSize};

use crate::quantity_format::{format_duration, format_quantity};
use crate::style::{TextStyle, format_bytes, format_count, format_plural};
pub(crate) use crate::style::{clip_name, clip_start};
use crate::text_report::TextReport;
use crate::{checkup, profile};

/// Display options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Print all details.
    pub verbose: bool,
    /// Also shows values that are equal for all variants of an experiment.
    pub shows_all: bool,
}

/// Whether a run has content for a section; and its text, each line ended by a newline.
type Section = (fn(&Run) -> bool, fn(&Run, View, TextStyle) -> String);

/// Sections before that of the snapshot, in the order of the report.
const SECTIONS_BEFORE: [Section; 4] = [
    (|_| true, header::render_header),
    (|run| run.tune.is_some() && run.experiment.is_some(), tune::render_tuning),
    (|run| run.experiment.is_some(), experiment::render_experiment),
    (|run| run.profile.is_some(), render_profile),
];

/// Sections after it.
const SECTIONS_AFTER: [Section; 12] = [
    (|run| !standard_series::zone_series(run).is_empty(), fragmentation::render_fragmentation),
    (memory_used::has_averages, memory_used::render_memory_used),
    (activity::has_pressure, activity::render_pressure),
    (activity::has_vmstat, activity::render_activity),
    (|run| !run.series.is_empty(), series::render_series),
    (|run| !run.maps.is_empty(), render_maps),
    (|run| run.streams.iter().any(scores::is_score), scores::render_scores),
    (|run| !run.streams.iter().all(scores::is_score), samples::render_samples),
    (|run| run.stacks.is_some(), stacks::render_stacks),
    (|run| !run.events.is_empty(), render_events),
    (has_recorder_cost, render_recorder),
    (|run| !run.unknown_content.is_empty(), render_not_shown),
];

/// Renders the report of one run.
pub fn render(run: &Run, view: View, style: TextStyle) -> String {
    let checkup = run.snapshot.as_deref().map(Checkup::from_snapshot);
    render_judged(run, checkup.as_ref(), view, style)
}

/// Renders the report of one run whose snapshot was judged before.
pub fn render_judged(run: &Run, checkup: Option<&Checkup>, view: View, style: TextStyle) -> String {
    let text = |(is_applicable, render): &Section| is_applicable(run).then(|| render(run, view, style));
    let judged = run.snapshot.as_deref().zip(checkup);
    let look = checkup::View { verbose: view.verbose, with_paper_index: false, is_saved: true };
    let judged = judged.map(|(snapshot, checkup)| checkup::render(snapshot, checkup, look, style));
    let texts =
        SECTIONS_BEFORE.iter().filter_map(text).chain(judged).chain(SECTIONS_AFTER.iter().filter_map(text));
    texts.filter(|text| !text.is_empty()).collect::<Vec<String>>().join("\n")
}

fn render_not_shown(run: &Run, _: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    output.add_heading("contents unknown to this version");
    run.unknown_content.iter().for_each(|what| output.add_indented(what));
    output.into_text()
}

fn render_profile(run: &Run, view: View, style: TextStyle) -> String {
    let Some(of) = &run.profile else { return String::new() };
    // A tuning shows its regions before and with the plan.
    if run.tune.is_some() && !view.verbose {
        return String::new();
    }
    let shown = profile::View { verbose: view.verbose, by_cell: false };
    profile::render(of, &run.name, shown, style)
}

fn render_maps(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let (Some(first), Some(last)) = (run.maps.first(), run.maps.last()) else { return output.into_text() };
    let mut facts = vec![style.paint_bold("maps"), format_plural(run.maps.len(), "map")];
    let span = last.at_ns.saturating_sub(first.at_ns);
    if span > 0 {
        let every = span / (run.maps.len() as u64 - 1);
        facts.push(format!("over {}, one every {}", format_duration(span), format_duration(every)));
    }
    let keys = run.maps.iter().filter(|map| map.is_keyframe).count();
    if keys < run.maps.len() {
        facts.push(format!("{} full maps, the others as deltas", format_count(keys as u128)));
    }
    output.add_fact_line(&facts);
    if view.verbose {
        let times: Vec<String> = run.maps.iter().map(|map| format_duration(map.at_ns)).collect();
        output.add_dim_indented(&format!("started at {}", times.join(", ")));
    }
    let file = style.to_one_line(&run.name);
    output.add_indented(&format!("→ pagelab map {file}@last"));
    if run.maps.len() > 1 {
        output.add_indented(&format!("→ pagelab map --diff {file}@first {file}@last"));
    }
    output.add_indented(&format!("→ pagelab report --html maps.html {file}"));
    output.into_text()
}

/// Events in the summary, at most: the last ones, which say most about the end.
const LAST_EVENTS_MAX: usize = 3;
/// Kinds that an experiment has for each trial: its preparation and its result.
const ROUTINE_KINDS: [&str; 3] = ["preflight", "checksum", "trial"];
/// Columns of a kind, at most.
const KIND_MAX: usize = 20;
/// Kinds that are counted by name, at most.
const KINDS_MAX: usize = 8;
/// Characters of a text in the summary, at most.
const TEXT_MAX: usize = 200;

fn render_events(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let mut kinds: Vec<(&str, u128)> = Vec::new();
    let mut others = 0;
    for event in &run.events {
        match kinds.iter().position(|(kind, _)| *kind == event.kind) {
            Some(place) => kinds[place].1 += 1,
            None if kinds.len() < KINDS_MAX => kinds.push((&event.kind, 1)),
            None => others += 1,
        }
    }
    let mut facts = vec![style.paint_bold("events")];
    facts.extend(
        kinds.iter().map(|(kind, times)| format!("{} {}", format_count(*times), clip_name(kind, KIND_MAX))),
    );
    if others > 0 {
        facts.push(format!("{} of other kinds", format_count(others)));
    }
    let is_routine = run.events.iter().all(|of| ROUTINE_KINDS.contains(&of.kind.as_str()));
    let is_hidden = is_routine && run.experiment.is_some() && !view.verbose;
    facts.extend(is_hidden.then(|| "not shown: -v".to_owned()));
    output.add_fact_line(&facts);
    if is_hidden {
        return output.into_text();
    }
    let skipped = if view.verbose { 0 } else { run.events.len().saturating_sub(LAST_EVENTS_MAX) };
    if skipped > 0 {
        output.add_dim_indented(&format!("not shown: {} earlier events (-v)", format_count(skipped as u128)));
    }
    for event in run.events.iter().skip(skipped) {
        let text = if view.verbose { event.text.clone() } else { clip_name(&event.text, TEXT_MAX) };
        let first =
            format!("  {:>11}  {}  ", format_duration(event.at_ns), style.clip_name(&event.kind, KIND_MAX));
        output.add_paragraph(&style.to_displayable(&first), &text);
    }
    output.into_text()
}

fn has_recorder_cost(run: &Run) -> bool {
    standard_series::series_named(run, standard_series::RECORDER).any(|series| !series.at_ns.is_empty())
}

fn render_recorder(run: &Run, _: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let column = |name: &str| -> Vec<f64> {
        let readings = activity::column_readings(run, standard_series::RECORDER, name);
        readings.into_iter().filter_map(|(_, value)| Some(value? as f64)).collect()
    };
    let time = |ns: f64| format_quantity(ns, &Unit::NANOSECONDS.into(), PageSize::DEFAULT);
    let mut facts = vec![style.paint_bold(standard_series::RECORDER)];
    if let Some(cpu) = SampleStatistics::from_samples(column("cpu_ns")) {
        facts.push(format!("{} CPU time per sample (p95: {})", time(cpu.median), time(cpu.percentile_95)));
        let times = standard_series::series_named(run, standard_series::RECORDER);
        let times: Vec<u64> = times.flat_map(|series| series.at_ns.iter().copied()).collect();
        let span = times.iter().max().zip(times.iter().min()).map(|(last, first)| last - first);
        if let Some(span) = span.filter(|span| *span > 0) {
            let share = cpu.mean * cpu.count as f64 / span as f64 * 100.0;
            facts.push(format!("{share:.2} % of one CPU"));
        }
    }
    let highest = |name: &str| SampleStatistics::from_samples(column(name)).map(|found| found.max);
    facts.extend(highest("late_ns").map(|late| format!("up to {} late", time(late))));
    let missed = column("missed").last().map(|missed| missed.max(0.0) as u128);
    facts.extend(missed.map(|missed| format!("{} ticks missed", format_count(missed))));
    facts.extend(highest("rss").map(|rss| format!("{} resident", format_bytes(Bytes(rss.max(0.0) as u64)))));
    output.add_fact_line(&facts);
    output.into_text()
}
