//! What the recording itself cost, from the samples that it took of itself.

use pagelab_metrics::recorded;
use pagelab_metrics::statistics::Statistics;
use pagelab_model::run::{Run, Series, Unit};
use pagelab_model::{Bytes, PageSize};

use super::View;
use crate::quantity::quantity;
use crate::style::{Style, bytes, count};
use crate::text::Page;

/// Whether the recorder told what it cost.
pub(super) fn applies(run: &Run) -> bool {
    recorded::named(run, recorded::RECORDER).any(|series| !series.at_ns.is_empty())
}

pub(super) fn show(run: &Run, _: View, style: Style) -> String {
    let mut page = Page::new(style);
    let all: Vec<&Series> = recorded::named(run, recorded::RECORDER).collect();
    let column = |name: &str| -> Vec<f64> {
        let one = |series: &&Series| {
            let found = series.columns.iter().find(|column| column.head.name == name);
            let values = |at: usize| found.and_then(|column| column.values.at(at)).map(|value| value as f64);
            (0..series.at_ns.len()).filter_map(values).collect::<Vec<_>>()
        };
        all.iter().flat_map(one).collect()
    };
    let time = |ns: f64| quantity(ns, &Unit::NANOSECONDS.into(), PageSize::USUAL);
    let mut facts = vec![style.bold(recorded::RECORDER)];
    if let Some(cpu) = Statistics::of(column("cpu_ns")) {
        facts.push(format!("{} of CPU a sample (95 %: up to {})", time(cpu.median), time(cpu.percentile_95)));
        let times = all.iter().flat_map(|series| &series.at_ns);
        let span = times.clone().max().zip(times.min()).map(|(last, first)| last.saturating_sub(*first));
        if let Some(span) = span.filter(|span| *span > 0) {
            let share = cpu.mean * cpu.count as f64 / span as f64 * 100.0;
            facts.push(format!("{share:.2} % of one CPU"));
        }
    }
    if let Some(late) = Statistics::of(column("late_ns")) {
        facts.push(format!("late by up to {}", time(late.max)));
    }
    if let Some(missed) = column("missed").last() {
        facts.push(format!("{} ticks missed", count(missed.max(0.0) as u128)));
    }
    if let Some(rss) = Statistics::of(column("rss")) {
        facts.push(format!("{} resident", bytes(Bytes(rss.max.max(0.0) as u64))));
    }
    page.facts("", &facts, "   ");
    page.finish()
}
