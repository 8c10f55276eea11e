//! Results of a sweep: the best and the worst points, and the influence of each parameter.

use std::collections::BTreeSet;

use pagelab_metrics::sweep::{FactorInfluence, SweepJudgement, SweepPoint, judge_sweep};
use pagelab_model::experiment::Experiment;
use pagelab_model::names;
use pagelab_model::simulation::PointView;

use super::{format_number, format_value};
use crate::text_report::{TableColumn, TextReport};

/// Points shown from each end.
const POINTS_PER_END: usize = 5;
/// Number of points below which ranks have no meaning.
const RANKED_POINTS_MIN: usize = 4;
/// Probability above which an influence counts as chance.
const CHANCE_MAX: f64 = 0.05;

pub(super) fn write_sweep(output: &mut TextReport, experiment: &Experiment, verbose: bool) {
    match judge_sweep(experiment) {
        Ok(found) => {
            write_excluded_points(output, experiment, &found);
            write_influences(output, &found);
            write_points(output, experiment, &found, verbose);
        }
        Err(there) => {
            let sweep = experiment.plan.sweep.as_ref();
            let wanted = sweep.and_then(|sweep| sweep.judged.as_deref()).unwrap_or("a figure");
            let hint = names::suggest(wanted, &there).map(|hint| format!("; {hint}")).unwrap_or_default();
            let text = format!("no trial has {wanted}; expected one of {}{hint}", there.join(", "));
            output.add_text(&text);
        }
    }
}

/// Points without the figure are left out, and reported.
fn write_excluded_points(output: &mut TextReport, experiment: &Experiment, judgement: &SweepJudgement) {
    let trial_count: BTreeSet<usize> = experiment
        .trials
        .iter()
        .filter_map(|trial| Some(experiment.plan.point_and_seed(trial.slot)?.0))
        .collect();
    let has = |cell: &usize| judgement.points.iter().any(|point| point.point == *cell);
    let lacking = trial_count.iter().filter(|cell| !has(cell));
    let lacking: Vec<PointView<'_>> = lacking.filter_map(|&point| experiment.plan.point(point)).collect();
    if lacking.is_empty() {
        return;
    }
    let mut loads: Vec<&str> = lacking.iter().map(|point| point.workload.load.as_str()).collect();
    loads.dedup();
    let text = format!(
        "{} of {} points lack the figure {} and are omitted (load {}); hint: use --by to select another \
         figure",
        format_number(lacking.len()),
        format_number(trial_count.len()),
        judgement.figure,
        loads.join(", ")
    );
    output.add_gap();
    output.add_text(&text);
}

fn write_influences(output: &mut TextReport, judgement: &SweepJudgement) {
    output.add_gap();
    output.add_bold_text(&format!("influence on {}", judgement.figure));
    match influence_rows(judgement) {
        Err(text) => output.add_text(&text),
        Ok(rows) => {
            let [varied, values, share, rho, chance] = INFLUENCE_COLUMNS;
            let columns = [
                TableColumn::left(varied),
                TableColumn::right(values),
                TableColumn::right(share),
                TableColumn::right(rho),
                TableColumn::left(chance),
            ];
            output.add_table(0, &columns, &rows);
            output.add_dim_text(INFLUENCE_ALIGNMENTS);
        }
    }
}

/// Columns of [`influence_rows`].
pub(super) const INFLUENCE_COLUMNS: [&str; 5] =
    ["varied", "values", "share of ranks", "correlation", "by chance"];

pub(super) const INFLUENCE_ALIGNMENTS: &str = "share of ranks: explained share of the variance of the \
                                               figure's ranks; correlation: Spearman's rho, for numeric \
                                               values; by chance: how often a shuffled order explains as \
                                               much";

/// Returns a line for each parameter that varied, or the reason why there is no result.
pub(super) fn influence_rows(judgement: &SweepJudgement) -> Result<Vec<Vec<String>>, String> {
    match judgement.points.len() {
        few if few < RANKED_POINTS_MIN => Err(format!("{few} points are too few for a verdict")),
        _ => Ok(judgement.influences.iter().map(influence_row).collect()),
    }
}

fn influence_row(influence: &FactorInfluence) -> Vec<String> {
    let rho = influence.spearman_rho.map_or("–".to_owned(), |rho| format!("{rho:+.2}").replace('-', "−"));
    let chance = match influence.p_value {
        _ if influence.p_value_min > CHANCE_MAX => "too few points for a verdict".to_owned(),
        chance if chance <= 0.001 => "less than 0.1 %".to_owned(),
        chance if chance > CHANCE_MAX => format!("{:.0} %: not seen", chance * 100.0),
        chance => format!("{:.1} %", chance * 100.0),
    };
    vec![
        influence.name.clone(),
        format_number(influence.levels),
        format!("{:.0} %", influence.variance_share * 100.0),
        rho,
        chance,
    ]
}

fn write_points(output: &mut TextReport, experiment: &Experiment, judgement: &SweepJudgement, verbose: bool) {
    output.add_gap();
    let per_end = if verbose { judgement.points.len() } else { POINTS_PER_END };
    let rows = point_rows(experiment, judgement, per_end);
    let is_cut = rows.len() < judgement.points.len();
    output.add_bold_text(if is_cut { "points: highest and lowest" } else { "points: highest first" });
    let names = experiment.plan.varied().iter().map(|of| TableColumn::right(&of.name));
    let figure = [TableColumn::right(&judgement.figure), TableColumn::left(&judgement.unit)];
    output.add_table(0, &names.chain(figure).collect::<Vec<_>>(), &rows);
    if experiment.plan.seeds().len() > 1 {
        output.add_dim_text("median over seeds");
    }
}

/// Returns a row for each point, highest first: its values and the figure. Of many points, those at the two
/// ends, with a row of one cell between them.
pub(super) fn point_rows(
    experiment: &Experiment,
    judgement: &SweepJudgement,
    per_end: usize,
) -> Vec<Vec<String>> {
    let row = |point: &SweepPoint| -> Vec<String> {
        let values =
            experiment.plan.point(point.point).map(|point| point.values.to_vec()).unwrap_or_default();
        values.into_iter().chain([format_value(point.median, &judgement.unit)]).collect()
    };
    let all = &judgement.points;
    let hidden = all.len().saturating_sub(2 * per_end);
    if hidden < 2 {
        return all.iter().map(row).collect();
    }
    let gap = vec![format!("… {}", format_number(hidden))];
    let best = all[..per_end].iter().map(row);
    best.chain([gap]).chain(all[all.len() - per_end..].iter().map(row)).collect()
}
