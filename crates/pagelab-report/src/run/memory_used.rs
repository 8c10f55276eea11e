//! Use of memory over time: the line of `pagelab usage` as a column, with its trend.

use pagelab_metrics::averages::{self, Averages, compute_averages};
use pagelab_metrics::standard_series;
use pagelab_metrics::statistics::{CounterRates, TimeStatistics};
use pagelab_model::run::{Run, Unit};
use pagelab_model::{PageSize, Reading};

use super::series::column_readings;
use super::time_trend::{TrendRow, write_table};
use super::{View, format_plural};
use crate::averages::Stat;
use crate::quantity_format::{UnitScale, format_duration};
use crate::style::TextStyle;
use crate::text_report::{TableColumn, TextReport};

/// Returns whether there is a line.
pub(super) fn has_averages(run: &Run) -> bool {
    run.snapshot.is_none() && compute_averages(run).is_ok()
}

pub(super) fn render_memory_used(run: &Run, _: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let Ok(run_averages) = compute_averages(run) else { return String::new() };
    let mut facts = vec![style.paint_bold("use"), format_plural(run_averages.readings, "reading")];
    if let Some(every) = run_averages.typical_interval_ns {
        facts.push(format!(
            "over {}, one every {}",
            format_duration(run_averages.span_ns.saturating_add(every)),
            format_duration(every)
        ));
        let gap = run_averages.interval_max_ns.filter(|gap| *gap > every + every / 2);
        facts.extend(gap.map(|gap| format!("longest gap {}", format_duration(gap))));
    }
    if run_averages.readings_left_out > 0 {
        facts.push(format!("{} omitted: unreadable field", run_averages.readings_left_out));
    }
    output.add_fact_line(&facts);
    let mut rows = amount_rows(run, &run_averages);
    rows.extend(fault_rows(run, &run_averages));
    let titles: Vec<&str> = Stat::ALL.iter().map(|stat| stat.name()).collect();
    write_table(&mut output, &[TableColumn::left(""), TableColumn::left("unit")], &titles, &[], &rows);
    output.add_dim_indented("used: total - free; cached: Buffers + Cached + SwapCached");
    output.into_text()
}

fn amount_rows(run: &Run, run_averages: &Averages) -> Vec<TrendRow> {
    type StatisticsGetter = fn(&averages::MemoryReading) -> Option<i64>;
    let use_parts: [(&str, Reading<TimeStatistics>, StatisticsGetter); 5] = [
        ("total", Ok(run_averages.total), |used| Some(used.total)),
        ("free", Ok(run_averages.free), |used| Some(used.free)),
        ("used", Ok(run_averages.used), |used| Some(used.used)),
        ("cached", run_averages.page_cache.clone(), |used| used.page_cache),
        ("used - cached", run_averages.used_less_page_cache.clone(), |used| used.used_less_page_cache),
    ];
    // One unit for all, so that they are easy to compare.
    let scale = UnitScale::for_values(&Unit::BYTES.into(), PageSize::DEFAULT, false, run_averages.total.max);
    let row = |(name, over, part): (&str, Reading<TimeStatistics>, StatisticsGetter)| {
        let over = over.ok()?;
        let readings = standard_series::series_named(run, standard_series::MEMINFO)
            .flat_map(averages::meminfo_readings)
            .flatten();
        let points = readings.filter_map(|used| Some((used.at_ns, part(&used)? as f64))).collect();
        let numbers = Stat::ALL.iter().map(|stat| scale.format_number(stat.from_statistics(&over))).collect();
        Some(TrendRow::new(vec![name.to_owned(), scale.unit.clone()], numbers, points))
    };
    use_parts.into_iter().filter_map(row).collect()
}

fn fault_rows(run: &Run, run_averages: &Averages) -> Vec<TrendRow> {
    let Ok(faults) = &run_averages.faults_per_second else { return Vec::new() };
    let row = |name: &str, column: &str, over: &TimeStatistics| {
        let scale = UnitScale::for_values(&Unit::COUNT.into(), PageSize::DEFAULT, true, over.max);
        let points = standard_series::series_named(run, standard_series::VMSTAT).flat_map(|series| {
            let found = series.columns.iter().find(|found| found.header.name == column);
            found.map_or_else(Vec::new, |found| {
                CounterRates::from_readings(column_readings(found, &series.at_ns)).per_second
            })
        });
        let numbers = Stat::ALL.iter().map(|stat| scale.format_number(stat.from_statistics(over))).collect();
        TrendRow::new(vec![name.to_owned(), scale.unit], numbers, points.collect())
    };
    vec![row("minor faults", "pgfault", &faults.minor), row("major faults", "pgmajfault", &faults.major)]
}
