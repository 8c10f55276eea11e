//! Series, pictures and notes of trials, at any place.

use std::collections::BTreeSet;

use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::experiment::{Experiment, Plan, Trial};
use pagelab_model::simulation::TrialSeries;

use crate::run::clip_name;
use crate::run::time_trend::sparkline;
use crate::style::format_plural;
use crate::text_report::{RowTable, TextReport};

/// Characters of a line of small bars.
const SPARK_COLUMNS: usize = 16;
/// Columns of a name, at most.
const NAME_MAX: usize = 30;

/// Whether the text of a report shows series: of a single configuration, and on request unless it is one of
/// a sweep.
pub fn has_series_in_text(plan: &Plan, verbose: bool) -> bool {
    let configurations = match plan.points().len() {
        0 => plan.workloads.len() * plan.variants.len(),
        points => points,
    };
    configurations == 1 || verbose && plan.varied().is_empty()
}

/// Whether text and page show the series of this slot: of a grid those of its first seed, of a list all.
pub fn is_series_shown(plan: &Plan, slot: usize) -> bool {
    plan.schedule.grid().is_none_or(|grid| slot < grid.points.len())
}

/// Writes the series of the first trial of each workload and variant, below the name of the trial.
pub(crate) fn write_series(
    output: &mut TextReport,
    experiment: &Experiment,
    name: impl Fn(&Trial) -> String,
) {
    let mut known = BTreeSet::new();
    let mut is_first = |trial: &Trial| {
        let slot = experiment.plan.schedule.get(trial.slot);
        slot.is_some_and(|slot| known.insert((slot.workload, slot.variant)))
    };
    let is_shown = |trial: &&Trial| {
        is_series_shown(&experiment.plan, trial.slot) && !trial.series.is_empty() && is_first(trial)
    };
    for trial in experiment.trials.iter().filter(is_shown) {
        output.add_gap();
        output.add_bold_text(&name(trial));
        let overs = trial.series.iter().map(|of| of.over.as_str());
        let over = overs.clone().next().filter(|first| overs.clone().all(|over| over == *first));
        let title = over.map_or(String::new(), |over| format!("over {over}"));
        let style = output.style();
        let series_name = |of: &TrialSeries| match over {
            Some(_) => clip_name(&of.name, NAME_MAX),
            None => clip_name(&format!("{} over {}", of.name, of.over), NAME_MAX),
        };
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
        RowTable::<SeriesRow<'_>>::new()
            .left("", |(of, ..)| series_name(of))
            .left(title, |(_, points, found)| match found {
                Some(_) => sparkline(points, SPARK_COLUMNS, style),
                None => "no data".to_owned(),
            })
            .right("min", |(.., found)| number(found.map(|of| of.min)))
            .right("median", |(.., found)| number(found.map(|of| of.median)))
            .right("max", |(.., found)| number(found.map(|of| of.max)))
            .right("last", |(_, points, _)| number(points.last().map(|point| point.1)))
            .add_to(output, 0, trial.series.iter().map(series_row));
    }
}

/// A series with its points and their statistics.
type SeriesRow<'a> = (&'a TrialSeries, Vec<(u64, f64)>, Option<SampleStatistics>);

fn series_row(series: &TrialSeries) -> SeriesRow<'_> {
    let points: Vec<(u64, f64)> = series.points.iter().map(|&(at, value)| (at, value as f64 / 1e6)).collect();
    let statistics = SampleStatistics::from_samples(points.iter().map(|point| point.1).collect());
    (series, points, statistics)
}

/// Returns the notes of loads, each sentence once.
pub(crate) fn load_notes(experiment: &Experiment) -> Vec<&str> {
    let mut known = BTreeSet::new();
    let notes = experiment.trials.iter().flat_map(|trial| &trial.notes).map(String::as_str);
    notes.filter(|note| known.insert(*note)).collect()
}

/// Writes the notes of loads, and the number of pictures in the file.
pub(crate) fn write_notes(output: &mut TextReport, experiment: &Experiment) {
    let load_notes = load_notes(experiment);
    let pictures: usize = experiment.trials.iter().map(|trial| trial.pictures).sum();
    if !load_notes.is_empty() || pictures > 0 {
        output.add_gap();
    }
    load_notes.iter().for_each(|note| output.add_paragraph("note: ", note));
    if pictures > 0 {
        output.add_text(&format!("{} of memory stored in the run file", format_plural(pictures, "picture")));
    }
}
