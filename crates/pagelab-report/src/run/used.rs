//! Use of memory over time: the line of `pagelab usage`, standing upright and with its course.

use pagelab_metrics::averages::{self, Averages, averages};
use pagelab_metrics::over_time::OverTime;
use pagelab_metrics::recorded;
use pagelab_metrics::statistics::Rates;
use pagelab_model::run::{Run, Unit};
use pagelab_model::{PageSize, Reading};

use super::course::{Course, Row, table};
use super::{View, plural};
use crate::averages::Stat;
use crate::quantity::{Scale, duration};
use crate::style::Style;
use crate::text::{Column, Page};

/// Whether there is a line.
pub(super) fn applies(run: &Run) -> bool {
    run.snapshot.is_none() && averages(run).is_ok()
}

pub(super) fn show(run: &Run, _: View, style: Style) -> String {
    let mut page = Page::new(style);
    let Ok(found) = averages(run) else { return String::new() };
    let mut facts = vec![style.bold("use"), plural(found.readings, "reading")];
    if let Some(every) = found.every_ns {
        facts.push(format!(
            "over {}, one every {}",
            duration(found.span_ns.saturating_add(every)),
            duration(every)
        ));
    }
    if let Some(gap) =
        found.gap_max_ns.filter(|gap| found.every_ns.is_some_and(|every| *gap > every + every / 2))
    {
        facts.push(format!("longest gap {}", duration(gap)));
    }
    if found.readings_left_out > 0 {
        facts.push(format!("{} left out: a field failed", found.readings_left_out));
    }
    page.facts("", &facts, "   ");
    let mut rows = amounts(run, &found);
    rows.extend(faults(run, &found));
    let titles: Vec<&str> = Stat::ALL.iter().map(|stat| stat.word()).collect();
    table(&mut page, &[Column::left(""), Column::left("unit")], &titles, &[], &rows);
    page.hanging_dim("  ", "used: total - free; cached: Buffers + Cached + SwapCached");
    page.finish()
}

fn amounts(run: &Run, found: &Averages) -> Vec<Row> {
    type Part = fn(&averages::Used) -> Option<i64>;
    let parts: [(&str, Reading<OverTime>, Part); 5] = [
        ("total", Ok(found.total), |used| Some(used.total)),
        ("free", Ok(found.free), |used| Some(used.free)),
        ("used", Ok(found.used), |used| Some(used.used)),
        ("cached", found.page_cache.clone(), |used| used.page_cache),
        ("used - cached", found.used_less_page_cache.clone(), |used| used.used_less_page_cache),
    ];
    // One unit for all of them, so that they can be compared at a glance.
    let scale = Scale::of(&Unit::BYTES.into(), PageSize::USUAL, false, found.total.max);
    let row = |(name, over, part): (&str, Reading<OverTime>, Part)| {
        let over = over.ok()?;
        let readings = recorded::named(run, recorded::MEMINFO).flat_map(averages::used).flatten();
        let points = readings.filter_map(|used| Some((used.at_ns, part(&used)? as f64))).collect();
        let numbers = Stat::ALL.iter().map(|stat| scale.number(stat.of(&over))).collect();
        let lead = vec![name.to_owned(), scale.unit.clone()];
        Some(Row { lead, numbers, course: Course { points }, tail: Vec::new() })
    };
    parts.into_iter().filter_map(row).collect()
}

fn faults(run: &Run, found: &Averages) -> Vec<Row> {
    let Ok(faults) = &found.faults else { return Vec::new() };
    let row = |name: &str, column: &str, over: &OverTime| {
        let scale = Scale::of(&Unit::COUNT.into(), PageSize::USUAL, true, over.max);
        let points = recorded::named(run, recorded::VMSTAT).flat_map(|series| {
            let found = series.columns.iter().find(|found| found.head.name == column);
            let readings = found.map(|found| {
                series.at_ns.iter().enumerate().map(|(at, &at_ns)| (at_ns, found.values.at(at)))
            });
            readings.map_or_else(Vec::new, |readings| Rates::of(readings).per_second)
        });
        let numbers = Stat::ALL.iter().map(|stat| scale.number(stat.of(over))).collect();
        let lead = vec![name.to_owned(), scale.unit.clone()];
        Row { lead, numbers, course: Course { points: points.collect() }, tail: Vec::new() }
    };
    vec![row("minor faults", "pgfault", &faults.minor), row("major faults", "pgmajfault", &faults.major)]
}
