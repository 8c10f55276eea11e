//! `pagelab usage`: the averages of several runs in one table, a line for each.

use pagelab_metrics::averages::Averages;
use pagelab_metrics::over_time::OverTime;
use pagelab_model::run::{Run, Unit};
use pagelab_model::{PageSize, Reading};

use crate::quantity::{duration, quantity};
use crate::style::{Style, count};
use crate::text::{Column, Page};

/// One run's line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The run file, as it was named.
    pub file: String,
    /// The machine, where the run knows its name.
    pub machine: Option<String>,
    /// Wall clock at the start in nanoseconds since 1970, UTC.
    pub started_realtime_ns: u64,
    /// What the table says.
    pub averages: Averages,
}

impl Line {
    /// The line of a run, or why it has none.
    pub fn of(run: &Run) -> Reading<Line> {
        Ok(Line {
            file: run.name.clone(),
            machine: run.manifest.machine.host_name.clone(),
            started_realtime_ns: run.manifest.started.realtime_ns,
            averages: pagelab_metrics::averages::averages(run)?,
        })
    }

    /// The name of the machine, or of the file where the run does not know it.
    fn name(&self) -> &str {
        let file = || self.file.rsplit('/').find(|part| !part.is_empty()).unwrap_or(&self.file);
        self.machine.as_deref().unwrap_or_else(file)
    }
}

/// Which number of each quantity is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// The mean over time.
    Mean,
    /// The smallest reading.
    Min,
    /// The largest reading.
    Max,
    /// The smallest reading such that readings up to it cover 95 % of the time.
    P95,
}

impl Stat {
    /// All of them, in the order of print.
    pub const ALL: [Stat; 4] = [Stat::Mean, Stat::Min, Stat::Max, Stat::P95];

    /// The word for it, in tables and in names of fields.
    pub fn word(self) -> &'static str {
        match self {
            Stat::Mean => "mean",
            Stat::Min => "min",
            Stat::Max => "max",
            Stat::P95 => "p95",
        }
    }

    /// This number of a quantity.
    pub fn of(self, over: &OverTime) -> f64 {
        match self {
            Stat::Mean => over.mean,
            Stat::Min => over.min,
            Stat::Max => over.max,
            Stat::P95 => over.percentile_95,
        }
    }
}

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// Which numbers; a line of the table for each.
    pub stats: &'a [Stat],
    /// How each run was recorded, too.
    pub verbose: bool,
}

/// Columns that a name may take.
const NAME_MAX: usize = 20;
const MIB: f64 = 1_048_576.0;
/// Titles of the amounts.
const AMOUNTS: [&str; 5] = ["total", "free", "used", "cached", "used-cached"];
/// Titles of the rates.
const RATES: [&str; 2] = ["minor/s", "major/s"];

/// The table and what must be said beside it.
pub fn render(lines: &[Line], view: View<'_>, style: Style) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut page = Page::new(style);
    let what = match view.stats {
        [Stat::Mean] => "averages over time",
        [Stat::Min] => "least of the time",
        [Stat::Max] => "most of the time",
        [Stat::P95] => "not exceeded in 95 % of the time",
        _ => "use of memory over time",
    };
    page.facts("", &[style.bold(what), "memory in MiB, page faults per second".to_owned()], "   ");
    table(&mut page, lines, view);
    if view.verbose {
        page.gap();
        lines.iter().for_each(|line| recorded(&mut page, line));
        page.gap();
    } else {
        page.hanging_dim("", &span(lines));
    }
    let mut words = "used: total - free · cached: Buffers + Cached + SwapCached".to_owned();
    if view.verbose {
        words.push_str(
            " · a mean is over time: each reading stands for half the way to its neighbours · p95: the \
             smallest reading such that readings up to it cover 95 % of the time · minor faults: pgfault - \
             pgmajfault",
        );
    }
    page.hanging_dim("", &words);
    page.finish()
}

fn table(page: &mut Page, lines: &[Line], view: View<'_>) {
    let is_same = |at: usize| lines.iter().filter(|line| line.name() == lines[at].name()).count() > 1;
    let with_files = (0..lines.len()).any(is_same);
    let mut columns = vec![Column::left("machine")];
    if with_files {
        columns.push(Column::left("file"));
    }
    let leading = columns.len();
    if view.stats.len() > 1 {
        columns.push(Column::left(""));
    }
    columns.extend(AMOUNTS.map(Column::right));
    columns.extend(RATES.map(Column::right));
    let mut rows = Vec::new();
    for line in lines {
        for (at, &stat) in view.stats.iter().enumerate() {
            let mut row = vec![clipped(line.name())];
            if with_files {
                row.push(clipped(&line.file));
            }
            if at > 0 {
                row.iter_mut().for_each(String::clear);
            }
            if view.stats.len() > 1 {
                row.push(stat.word().to_owned());
            }
            row.extend(numbers(&line.averages, stat));
            rows.push(row);
        }
    }
    if !page.table_if_it_fits(0, &columns, &rows) {
        // A narrow terminal does without the rates, and then without whole names.
        let amounts = columns.len() - RATES.len();
        rows.iter_mut().for_each(|row| row.truncate(amounts));
        if !page.table_if_it_fits(0, &columns[..amounts], &rows) {
            let style = page.style();
            let short = |name: &String| style.one_line(name).chars().take(8).collect();
            rows.iter_mut().for_each(|row| row[..leading].iter_mut().for_each(|name| *name = short(name)));
            page.table(0, &columns[..amounts], &rows);
        }
    }
}

/// The end of a long name tells more than its beginning, since runs of one machine lie in one folder.
fn clipped(name: &str) -> String {
    let signs = name.chars().count();
    if signs <= NAME_MAX {
        return name.to_owned();
    }
    std::iter::once('…').chain(name.chars().skip(signs - NAME_MAX + 1)).collect()
}

fn numbers(of: &Averages, stat: Stat) -> Vec<String> {
    let mib = |over: &OverTime| {
        let mib = (stat.of(over) / MIB).round();
        let sign = if mib < 0.0 { "-" } else { "" };
        format!("{sign}{}", count(mib.abs() as u128))
    };
    let reading = |over: &Reading<OverTime>| over.as_ref().map_or("–".to_owned(), mib);
    let rate = |over: Option<&OverTime>| {
        over.map_or("–".to_owned(), |over| quantity(stat.of(over), &Unit::COUNT.into(), PageSize::USUAL))
    };
    let faults = of.faults.as_ref().ok();
    vec![
        mib(&of.total),
        mib(&of.free),
        mib(&of.used),
        reading(&of.page_cache),
        reading(&of.used_less_page_cache),
        rate(faults.map(|faults| &faults.minor)),
        rate(faults.map(|faults| &faults.major)),
    ]
}

/// How long and how often, of all runs.
fn span(lines: &[Line]) -> String {
    let range = |of: &dyn Fn(&Line) -> Option<u64>| {
        let known: Vec<u64> = lines.iter().filter_map(of).collect();
        let (least, most) = known.iter().min().zip(known.iter().max())?;
        let (least, most) = (duration(*least), duration(*most));
        Some(if least == most { least } else { format!("{least} to {most}") })
    };
    let over = range(&|line| Some(line.averages.span_ns.saturating_add(line.averages.every_ns?)));
    let every = range(&|line| line.averages.every_ns);
    let single = lines.iter().filter(|line| line.averages.every_ns.is_none()).count();
    let single = match single {
        0 => "",
        1 => "; one run is a single reading",
        _ => "; some runs are a single reading",
    };
    match over.zip(every) {
        Some((over, every)) => format!("over {over}, one reading every {every}{single} (-v: min, max, p95)"),
        None => "a single reading".to_owned(),
    }
}

/// How one run was recorded, and what its line lacks.
fn recorded(page: &mut Page, line: &Line) {
    let of = &line.averages;
    let mut facts = vec![format!("{} readings", count(of.readings as u128))];
    if let (Some(every), Some(longest)) = (of.every_ns, of.gap_max_ns) {
        facts.push(format!("one every {}", duration(every)));
        facts.push(format!("over {}", duration(of.span_ns.saturating_add(every))));
        if longest > every + every / 2 {
            facts.push(format!("longest gap {}", duration(longest)));
        }
    }
    if of.readings_left_out > 0 {
        facts.push(format!("{} left out: a field failed", count(of.readings_left_out as u128)));
    }
    let absences = [of.page_cache.as_ref().err(), of.faults.as_ref().err()];
    facts.extend(absences.into_iter().flatten().map(|why| format!("{}: {}", why.source, why.reason())));
    page.hanging("", &format!("{}: {}", page.style().one_line(&line.file), facts.join(" · ")));
}

#[cfg(test)]
pub(crate) mod tests;
