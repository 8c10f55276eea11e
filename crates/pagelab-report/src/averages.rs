//! `pagelab usage`: averages of several runs in one table, a line per run.

use pagelab_metrics::averages::Averages;
use pagelab_metrics::statistics::TimeStatistics;
use pagelab_model::run::{Run, Unit};
use pagelab_model::{PageSize, Reading};

use crate::quantity_format::{format_duration, format_quantity};
use crate::run::clip_start;
use crate::style::{TextStyle, format_count};
use crate::text_report::{RowTable, TextReport};

/// Line of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunAverages {
    /// Run file, as given.
    pub file: String,
    /// Machine, if the run records it.
    pub machine: Option<String>,
    /// Wall clock at the start in nanoseconds since 1970, UTC.
    pub started_realtime_ns: u64,
    /// Averages of the run.
    pub averages: Averages,
}

impl RunAverages {
    /// Computes the line of a run, or the reason why it has none.
    pub fn from_run(run: &Run) -> Reading<RunAverages> {
        Ok(RunAverages {
            file: run.name.clone(),
            machine: run.manifest.machine.host_name.clone(),
            started_realtime_ns: run.manifest.started.realtime_ns,
            averages: pagelab_metrics::averages::compute_averages(run)?,
        })
    }

    /// Name of the machine, or of the file if the run does not record the machine.
    fn name(&self) -> &str {
        let file = || self.file.rsplit('/').find(|part| !part.is_empty()).unwrap_or(&self.file);
        self.machine.as_deref().unwrap_or_else(file)
    }
}

/// Statistic of each quantity to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// Mean over time.
    Mean,
    /// Smallest reading.
    Min,
    /// Largest reading.
    Max,
    /// The 95th percentile over time.
    P95,
}

impl Stat {
    /// All statistics, in display order.
    pub const ALL: [Stat; 4] = [Stat::Mean, Stat::Min, Stat::Max, Stat::P95];

    /// Name of the statistic in tables and field names.
    pub fn name(self) -> &'static str {
        match self {
            Stat::Mean => "mean",
            Stat::Min => "min",
            Stat::Max => "max",
            Stat::P95 => "p95",
        }
    }

    /// Returns this statistic of a quantity.
    pub fn from_statistics(self, statistics: &TimeStatistics) -> f64 {
        match self {
            Stat::Mean => statistics.mean,
            Stat::Min => statistics.min,
            Stat::Max => statistics.max,
            Stat::P95 => statistics.percentile_95,
        }
    }
}

/// Display options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// Statistics to show; the table has a line for each.
    pub stats: &'a [Stat],
    /// Also shows how each run was recorded.
    pub verbose: bool,
}

/// Columns of a name, at most.
const NAME_MAX: usize = 20;
const MIB: f64 = 1_048_576.0;

/// Renders the table with its notes.
pub fn render(runs: &[RunAverages], view: View<'_>, style: TextStyle) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let mut output = TextReport::new(style);
    let what = match view.stats {
        [Stat::Mean] => "averages over time",
        [Stat::Min] => "minimum over time",
        [Stat::Max] => "maximum over time",
        [Stat::P95] => "95th percentile over time",
        _ => "memory use over time",
    };
    output.add_fact_line(&[style.paint_bold(what), "memory in MiB, page faults per second".to_owned()]);
    write_table(&mut output, runs, view);
    if view.verbose {
        output.add_gap();
        runs.iter().for_each(|line| write_recording(&mut output, line));
        output.add_gap();
    } else {
        output.add_dim_text(&time_span_text(runs));
    }
    let mut legend = "used: total - free · cached: Buffers + Cached + SwapCached".to_owned();
    if view.verbose {
        legend.push_str(
            " · means are time-weighted: a sample counts for half the interval to each neighbour · p95: 95th \
             percentile over time · minor faults: pgfault - pgmajfault",
        );
    }
    output.add_dim_text(&legend);
    output.into_text()
}

fn write_table(output: &mut TextReport, runs: &[RunAverages], view: View<'_>) {
    let is_same = |at: usize| runs.iter().filter(|line| line.name() == runs[at].name()).count() > 1;
    let has_file_column = (0..runs.len()).any(is_same);
    let mib = |stat: Stat, over: Option<&TimeStatistics>| {
        let Some(over) = over else { return "–".to_owned() };
        let mib = (stat.from_statistics(over) / MIB).round();
        let sign = if mib < 0.0 { "-" } else { "" };
        format!("{sign}{}", format_count(mib.abs() as u128))
    };
    let rate = |stat: Stat, over: Option<&TimeStatistics>| {
        let Some(over) = over else { return "–".to_owned() };
        format_quantity(stat.from_statistics(over), &Unit::COUNT.into(), PageSize::DEFAULT)
    };
    // Runs of one machine are usually in one directory.
    let name = |is_first: bool, name: &str| {
        if is_first { clip_start(name, NAME_MAX) } else { String::new() }
    };
    let table = RowTable::<(bool, Stat, &RunAverages)>::new()
        .left("machine", |(is_first, _, line)| name(*is_first, line.name()))
        .left_if(has_file_column, "file", |(is_first, _, line)| name(*is_first, &line.file))
        .left_if(view.stats.len() > 1, "", |(_, stat, _)| stat.name().to_owned())
        .right("total", |(_, stat, line)| mib(*stat, Some(&line.averages.total)))
        .right("free", |(_, stat, line)| mib(*stat, Some(&line.averages.free)))
        .right("used", |(_, stat, line)| mib(*stat, Some(&line.averages.used)))
        .right("cached", |(_, stat, line)| mib(*stat, line.averages.page_cache.as_ref().ok()))
        .right("used-cached", |(_, stat, line)| mib(*stat, line.averages.used_less_page_cache.as_ref().ok()))
        .right("minor/s", |(_, stat, line)| {
            rate(*stat, line.averages.faults_per_second.as_ref().ok().map(|faults| &faults.minor))
        })
        .right("major/s", |(_, stat, line)| {
            rate(*stat, line.averages.faults_per_second.as_ref().ok().map(|faults| &faults.major))
        });
    let lines = runs
        .iter()
        .flat_map(|line| view.stats.iter().enumerate().map(move |(at, &stat)| (at == 0, stat, line)));
    let (columns, mut rows) = (table.columns(), table.rows(lines));
    // On a narrow terminal, the table omits the rates and then shortens the names.
    let amounts: Vec<usize> = (0..columns.len() - 2).collect();
    if output.add_table_if_fits(0, &columns, &rows)
        || output.add_fitting_table(0, &columns, &rows, [&amounts])
    {
        return;
    }
    let style = output.style();
    for name in rows.iter_mut().flat_map(|row| &mut row[..1 + usize::from(has_file_column)]) {
        *name = style.to_one_line(name).chars().take(8).collect();
    }
    output.add_narrowed_table(0, &columns, &rows, &[&amounts]);
}

fn time_span_text(lines: &[RunAverages]) -> String {
    let range = |of: &dyn Fn(&RunAverages) -> Option<u64>| {
        let known: Vec<u64> = lines.iter().filter_map(of).collect();
        let (least, most) = known.iter().min().zip(known.iter().max())?;
        let (least, most) = (format_duration(*least), format_duration(*most));
        Some(if least == most { least } else { format!("{least} to {most}") })
    };
    let statistics =
        range(&|line| Some(line.averages.span_ns.saturating_add(line.averages.typical_interval_ns?)));
    let every = range(&|line| line.averages.typical_interval_ns);
    let single = lines.iter().filter(|line| line.averages.typical_interval_ns.is_none()).count();
    let single = match single {
        0 => "",
        1 => "; one run has a single sample",
        _ => "; some runs have a single sample",
    };
    match statistics.zip(every) {
        Some((over, every)) => format!("over {over}, one sample every {every}{single} (-v: min, max, p95)"),
        None => "a single sample".to_owned(),
    }
}

/// Writes how a run was recorded and which values it lacks.
fn write_recording(output: &mut TextReport, run: &RunAverages) {
    let averages = &run.averages;
    let mut facts = vec![format!("{} readings", format_count(averages.readings as u128))];
    if let (Some(every), Some(longest)) = (averages.typical_interval_ns, averages.interval_max_ns) {
        facts.push(format!("one every {}", format_duration(every)));
        facts.push(format!("over {}", format_duration(averages.span_ns.saturating_add(every))));
        if longest > every + every / 2 {
            facts.push(format!("longest gap {}", format_duration(longest)));
        }
    }
    if averages.readings_left_out > 0 {
        facts.push(format!("{} omitted: unreadable field", format_count(averages.readings_left_out as u128)));
    }
    let absences = [averages.page_cache.as_ref().err(), averages.faults_per_second.as_ref().err()];
    facts.extend(absences.into_iter().flatten().map(|why| format!("{}: {}", why.source, why.reason())));
    output.add_text(&format!("{}: {}", output.style().to_one_line(&run.file), facts.join(" · ")));
}

#[cfg(test)]
pub(crate) mod tests;
