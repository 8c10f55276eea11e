//! Gain of a program from huge pages: the verdict first, then its basis.

mod sections;
mod verdict_text;

use pagelab_metrics::effect::RatioInterval;
use pagelab_metrics::tune::{ArmResult, TuningResult, TuningVerdict};
use pagelab_model::experiment::{Experiment, measures};
use pagelab_model::run::{Run, RunEnd, Unit};
use pagelab_model::tune::{HugePageSelection, TuningArm, TuningRun};
use pagelab_model::{Bytes, PageSize};

use super::{View, clip_name, experiment};
use crate::effect_text::{
    display_measure_name, format_level, format_noise_floor, format_optional_interval, format_ratio,
};
use crate::quantity_format::UnitScale;
use crate::style::{TextStyle, format_bytes, format_count};
use crate::text_report::{RowTable, TableColumn, TextReport};

pub(crate) use sections::mapping_name;
pub(crate) use verdict_text::verdict_sentence;

/// Columns of a name, at most.
const NAME_MAX: usize = 20;

pub(super) fn render_tuning(run: &Run, view: View, style: TextStyle) -> String {
    let (Some(tune), Some(experiment)) = (&run.tune, &run.experiment) else { return String::new() };
    let mut output = TextReport::new(style);
    let Some(tuned) = TuningResult::from_experiment(experiment, tune) else { return String::new() };
    output.add_bold_text(&style.to_one_line(&verdict_sentence(&tuned, tune)));
    let prediction = PredictionBasis::from_run(run);
    write_arms(&mut output, tune, &tuned, prediction);
    for text in verdict_text::side_notes(&tuned, tune, prediction) {
        output.add_indented(&style.to_one_line(&text));
    }
    sections::write_curve(&mut output, tune, &tuned, prediction);
    sections::write_counters(&mut output, run, experiment, tune, view);
    sections::write_regions(&mut output, run, tune, view);
    for note in &tune.notes {
        output.add_dim_paragraph("  note  ", &style.to_one_line(note));
    }
    output.add_gap();
    experiment::write_footer(&mut output, run, experiment, view);
    write_hints(&mut output, run, experiment, tune, tuned.verdict, view);
    output.into_text()
}

/// What a predicted speed-up follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PredictionBasis {
    /// The misses.
    Misses,
    /// A lower bound of them, so that the prediction is one too.
    LowerBound,
}

impl PredictionBasis {
    fn from_run(run: &Run) -> PredictionBasis {
        match run.profile.as_ref().and_then(|profile| profile.lower_bound_reason()) {
            Some(_) => PredictionBasis::LowerBound,
            None => PredictionBasis::Misses,
        }
    }

    fn column_title(self) -> &'static str {
        match self {
            PredictionBasis::Misses => "predicted",
            PredictionBasis::LowerBound => "predicted, at least",
        }
    }
}

/// Writes a line per arm; the arms of a curve have a separate table.
fn write_arms(output: &mut TextReport, tune: &TuningRun, tuned: &TuningResult, prediction: PredictionBasis) {
    const SHOWN: [HugePageSelection; 4] =
        [HugePageSelection::Never, HugePageSelection::None, HugePageSelection::Plan, HugePageSelection::All];
    let shown_arms: Vec<usize> = SHOWN.iter().filter_map(|selection| tune.arm_index(*selection)).collect();
    let measured = |at: &usize| tuned.arms.get(*at);
    let scale = |unit: &str, value: fn(&ArmResult) -> Option<f64>| {
        let largest = shown_arms.iter().filter_map(|at| value(measured(at)?)).fold(0.0, f64::max);
        UnitScale::for_values(&Unit::from(unit), PageSize::DEFAULT, false, largest)
    };
    let (cpu, wall) = (scale(Unit::NANOSECONDS, |of| of.cpu_ns), scale(Unit::NANOSECONDS, |of| of.wall_ns));
    let faults = scale(Unit::COUNT, |of| of.faults);
    let output_figure = scale(&tuned.unit.0, |of| of.value);
    // The speed-up follows the value that it refers to: the program's figure, or its time.
    let is_output_figure = tuned.measure == measures::MERIT;
    let cell = |value: Option<f64>, scale: &UnitScale| {
        value.map_or("–".to_owned(), |value| scale.format_number(value))
    };
    let baseline_memory =
        tune.arm_index(HugePageSelection::None).and_then(|at| tuned.arms.get(at)?.peak_memory);
    let is_base = |arm: &TuningArm| arm.selection == HugePageSelection::None;
    let table = RowTable::<(&TuningArm, &ArmResult)>::new()
        .left("arm", |(arm, _)| clip_name(&arm.name, NAME_MAX))
        .right(column_title("figure", &output_figure), |(_, of)| {
            cell(of.value.filter(|_| is_output_figure), &output_figure)
        })
        .right(if is_output_figure { String::new() } else { column_title("time", &wall) }, |(_, of)| {
            cell(of.wall_ns.filter(|_| !is_output_figure), &wall)
        })
        .right("speed-up", |(arm, of)| match is_base(arm) {
            true => "1".to_owned(),
            false => speedup_cells(of.speed_up).0,
        })
        .right(format!("{} interval", format_level(tuned.level)), |(arm, of)| match is_base(arm) {
            true => String::new(),
            false => speedup_cells(of.speed_up).1,
        })
        .right(column_title("time", &wall), |(_, of)| cell(of.wall_ns.filter(|_| is_output_figure), &wall))
        .right(column_title("CPU", &cpu), |(_, of)| cell(of.cpu_ns, &cpu))
        .right(column_title("user", &cpu), |(_, of)| cell(of.user_ns, &cpu))
        .right(column_title("kernel", &cpu), |(_, of)| cell(of.system_ns, &cpu))
        .right(column_title("page faults", &faults), |(_, of)| cell(of.faults, &faults))
        .right("huge pages", |(_, of)| pages_cell(of))
        .right("memory", |(arm, of)| memory_cell(of.peak_memory, baseline_memory.filter(|_| !is_base(arm))))
        .right(prediction.column_title(), |(_, of)| {
            of.predicted_speed_up.map_or(String::new(), format_times)
        });
    let arms = shown_arms.iter().filter_map(|at| Some((tune.arms.get(*at)?, measured(at)?)));
    write_fitting_table(output, &table.columns(), &table.rows(arms));
    output.add_dim_indented(&judging_text(tuned));
}

/// Writes the table with as many columns as fit, without the least necessary ones and without empty columns.
fn write_fitting_table(output: &mut TextReport, columns: &[TableColumn<'_>], rows: &[Vec<String>]) {
    let is_filled = |at: usize| rows.iter().any(|row| !matches!(row[at].as_str(), "" | "–"));
    let mut kept_columns: Vec<usize> = (0..columns.len()).filter(|at| *at == 0 || is_filled(*at)).collect();
    // Page faults, kernel and user time, CPU time: the notes have their differences. Then time if a separate
    // figure decides, memory, and the interval.
    for dropped in [usize::MAX, 9, 8, 7, 6, 5, 11, 4] {
        kept_columns.retain(|at| *at != dropped);
        if output.add_fitting_table(2, columns, rows, [&kept_columns]) {
            return;
        }
    }
    for row in rows {
        output.add_facts("  ", &kept_columns.iter().map(|at| row[*at].clone()).collect::<Vec<_>>(), "  ");
    }
}

fn judging_text(tuned: &TuningResult) -> String {
    let by = match tuned.measure.as_str() {
        measures::MERIT => "the program's figure".to_owned(),
        by => display_measure_name(by),
    };
    let noise = match &tuned.floor {
        Some(found) => {
            format!("noise floor {} ({} pairs of equal runs)", format_noise_floor(found), found.pairs)
        }
        None => "noise floor unknown".to_owned(),
    };
    format!(
        "speed-up by {by}: geometric mean of the ratios of paired trials; other columns: medians of the \
         arms; {noise}"
    )
}

fn column_title(name: &str, scale: &UnitScale) -> String {
    if scale.unit.is_empty() { name.to_owned() } else { format!("{name} [{}]", scale.unit) }
}

/// Formats a value: `80.0 MiB` of the first arm, `+31 %` of the others.
fn memory_cell(measured: Option<f64>, base: Option<f64>) -> String {
    match (measured, base.filter(|base| *base > 0.0)) {
        (None, _) => "–".to_owned(),
        (Some(of), None) => format_bytes(Bytes(of as u64)),
        (Some(of), Some(base)) => format!("{:+.0} %", (of / base - 1.0) * 100.0),
    }
}

/// Formats huge pages: `96`, or `95 of 96` if not all were allocated.
fn pages_cell(arm: &ArmResult) -> String {
    match (arm.planned_and_allocated, arm.huge_pages) {
        (Some((wanted, got)), _) if got < wanted => {
            format!("{} of {}", format_count(got as u128), format_count(wanted as u128))
        }
        (_, Some(pages)) => format_count(pages.round() as u128),
        (Some((_, got)), None) => format_count(got as u128),
        (None, None) => "–".to_owned(),
    }
}

fn speedup_cells(found: Option<(f64, Option<RatioInterval>)>) -> (String, String) {
    match found {
        Some((value, interval)) => {
            (format!("{}×", format_ratio(value, interval)), format_optional_interval(interval))
        }
        None => ("–".to_owned(), "–".to_owned()),
    }
}

/// Formats a speed-up: `1.24×`.
fn format_times(value: f64) -> String {
    format!("{}×", format_ratio(value, None))
}

/// Writes the next commands: resume a stopped run, apply the better plan, read the full report.
fn write_hints(
    output: &mut TextReport,
    run: &Run,
    experiment: &Experiment,
    tune: &TuningRun,
    verdict: TuningVerdict,
    view: View,
) {
    let style = output.style();
    let is_whole = matches!(run.ending, RunEnd::Complete { .. });
    let mut facts = Vec::new();
    if !is_whole && tune.pid.is_none() {
        facts.push(format!("→ pagelab tune --resume {}", run.name));
    }
    let (plan, selection) = match verdict {
        TuningVerdict::AllHelpsMore | TuningVerdict::OnlyAllHelps => ("all", HugePageSelection::All),
        TuningVerdict::PlanHelps => (tune.plan_file.as_str(), HugePageSelection::Plan),
        _ => ("", HugePageSelection::None),
    };
    let arm = tune.arm_index(selection).and_then(|at| tune.arms.get(at));
    let option = if arm.is_some_and(|arm| arm.overrides_advice) { " --override" } else { "" };
    if is_whole && !plan.is_empty() {
        let words = experiment.plan.workloads.first().map(|of| of.command.join(" ")).unwrap_or_default();
        let apply = match tune.pid {
            Some(pid) => format!("pagelab apply {plan} --pid {pid}"),
            None => format!("pagelab apply {plan}{option} -- {words}"),
        };
        facts.push(format!("→ {}", clip_name(&apply, 200)));
    }
    if is_whole && !view.verbose {
        facts.push(format!("→ pagelab report -v {}", run.name));
    }
    let facts: Vec<String> = facts.iter().map(|fact| style.to_one_line(fact)).collect();
    if !facts.is_empty() {
        output.add_fact_line(&facts);
    }
}

#[cfg(test)]
mod tests;
