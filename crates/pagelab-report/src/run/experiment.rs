//! An experiment: the gain of each workload under each variant, the basis of these numbers, and failures.

mod detail;
mod failures;
mod matrix;
mod workload;

use pagelab_metrics::effect::{ExperimentEffects, WorkloadEffects};
use pagelab_metrics::memory_need::{self, MemoryCurve};
use pagelab_model::experiment::{Experiment, Plan, ScheduleSlot, Trial, TrialEnd, TrialRole};
use pagelab_model::run::Run;

use super::{View, clip_name, format_plural};
use crate::attachments;
use crate::effect_text::{IMPORTED_PLACE, counted_rounds, format_sequence};
use crate::json::experiment::{variant_name, workload_name};
use crate::memory_needs::{self, NeedContext};
use crate::style::{TextStyle, format_count};
use crate::text_report::TextReport;

/// Columns of a name, at most.
const NAME_MAX: usize = 24;
/// Characters of a text from the recipe, at most.
const TEXT_MAX: usize = 300;

pub(super) fn render_experiment(run: &Run, view: View, style: TextStyle) -> String {
    let Some(experiment) = &run.experiment else { return String::new() };
    // The section of the tuning has its result already.
    if run.tune.is_some() && !view.verbose {
        return String::new();
    }
    if experiment.plan.is_simulated() {
        return crate::simulated::render(experiment, view.verbose, style);
    }
    let effects = ExperimentEffects::from_experiment(experiment);
    let mut output = TextReport::new(style);
    let plan = &experiment.plan;
    let title = style.paint_bold(&style.clip_name(&plan.name, NAME_MAX));
    output.add_paragraph(&format!("{title}   "), &style.clip_name(&plan.question, TEXT_MAX));
    let curves = memory_need::memory_curves(experiment, &effects);
    for (at, (head, found)) in plan.workloads.iter().zip(&effects.workloads).enumerate() {
        output.add_gap();
        workload::write_workload(&mut output, run, plan, head, found);
        detail::write_first_touch(&mut output, run, plan, found);
        let curves: Vec<&MemoryCurve> = curves.iter().filter(|curve| curve.workload == at).collect();
        write_memory_needs(&mut output, run, plan, found, &curves);
        matrix::write_matrix(&mut output, run, plan, found);
    }
    if attachments::has_series_in_text(plan, view.verbose) {
        attachments::write_series(&mut output, experiment, |trial| trial_name(plan, trial));
    }
    attachments::write_notes(&mut output, experiment);
    output.add_gap();
    failures::write_failures(&mut output, experiment, view);
    output.add_fact_line(&list_design_facts(run, experiment));
    if plan.place != IMPORTED_PLACE {
        detail::write_hardware(&mut output, run, &effects);
    }
    if view.verbose {
        detail::write_detail(&mut output, run, experiment, &effects, view.shows_all);
    }
    output.into_text()
}

fn trial_name(plan: &Plan, trial: &Trial) -> String {
    let Some(slot) = plan.schedule.get(trial.slot) else { return String::new() };
    let names = [workload_name(plan, slot.workload), variant_name(plan, slot.variant)];
    let [workload, variant] = names.map(|name| clip_name(name, NAME_MAX));
    format!("{workload}, {variant}, round {}", u64::from(slot.round) + 1)
}

/// Writes failures and the basis of the numbers, for sections that present the results themselves.
pub(super) fn write_footer(output: &mut TextReport, run: &Run, experiment: &Experiment, view: View) {
    let effects = ExperimentEffects::from_experiment(experiment);
    for found in &effects.workloads {
        detail::write_first_touch(output, run, &experiment.plan, found);
    }
    failures::write_failures(output, experiment, view);
    output.add_fact_line(&list_design_facts(run, experiment));
    let judged = effects.workloads.first().and_then(|of| of.primary_measure());
    if let Some(Err(absence)) = judged.map(|judged| judged.noise_floor.as_ref()) {
        output.add_dim_paragraph("noise floor  ", &clip_name(absence.reason(), TEXT_MAX));
    }
}

/// Writes how much memory the workload needs, if its limit varies.
fn write_memory_needs(
    output: &mut TextReport,
    run: &Run,
    plan: &Plan,
    effects: &WorkloadEffects,
    curves: &[&MemoryCurve],
) {
    let (settings, page_bytes) = (&run.manifest.settings, run.manifest.machine.page_size.bytes());
    let ground = NeedContext { plan, settings, effects, page_bytes };
    for curve in curves {
        let label = match curves.len() {
            1 => String::new(),
            _ => format!("{}   ", output.style().clip_name(&memory_needs::curve_label(curve), NAME_MAX)),
        };
        let said = memory_needs::describe_curve(curve, ground).join("; ");
        output.add_paragraph(&format!("  {label}"), &output.style().to_one_line(&said));
    }
}

/// Writes the size of the experiment and how much of it was done.
fn list_design_facts(run: &Run, experiment: &Experiment) -> Vec<String> {
    let plan = &experiment.plan;
    let place = clip_name(&plan.place, NAME_MAX);
    let mut facts = vec![match place.as_str() {
        IMPORTED_PLACE => place,
        Plan::GUEST if run.has_emulated_times() => {
            "in guests, whose times are those of an emulated processor (TCG)".to_owned()
        }
        Plan::GUEST => "in guests with KVM".to_owned(),
        _ => format!("on {place}"),
    }];
    facts.push(format_plural(plan.variants.len(), "variant"));
    facts.push(format_plural(plan.workloads.len(), "workload"));
    let rounds = counted_rounds(plan);
    facts.push(match plan.early_end.map(|rule| rule.rounds_max as usize) {
        Some(most) if most > rounds => format!("{rounds} of at most {most} rounds"),
        _ => format_plural(rounds, "round"),
    });
    facts.push(format_sequence(plan).to_owned());
    facts.push(format!("seed {}", plan.seed));
    let done = experiment.trials.iter().filter(|trial| trial.end == TrialEnd::Done).count();
    let of = format_count(experiment.count_planned() as u128);
    facts.push(format!("{} of {of} trials done", format_count(done as u128)));
    let twins = plan.schedule.iter().filter(|slot| slot.role == TrialRole::Twin).count();
    if twins > 0 {
        let whole = count_complete_pairs(experiment);
        let of = if whole < twins { format!("{} of ", format_count(whole as u128)) } else { String::new() };
        facts.push(format!("{of}{} of equal runs", format_plural(twins, "pair")));
    }
    facts
}

/// Counts rounds in which both trials of the baseline succeeded.
fn count_complete_pairs(experiment: &Experiment) -> usize {
    let plan = &experiment.plan;
    let done = experiment.trials.iter().filter(|trial| trial.end == TrialEnd::Done);
    let done: Vec<ScheduleSlot> = done.filter_map(|trial| plan.schedule.get(trial.slot)).collect();
    let is_done = |slot: ScheduleSlot, role: TrialRole| {
        done.iter().any(|of| {
            (of.workload, of.round, of.variant, of.role) == (slot.workload, slot.round, slot.variant, role)
        })
    };
    let twins = plan.schedule.iter().filter(|slot| slot.role == TrialRole::Twin);
    twins.filter(|&twin| is_done(twin, TrialRole::Twin) && is_done(twin, TrialRole::Measured)).count()
}

#[cfg(test)]
mod tests;
