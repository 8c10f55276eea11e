//! An experiment: what each workload gains under each variant, what that rests on, and what went wrong.

mod detail;
mod first_touch;
mod hardware;
mod matrix;
mod troubles;
mod workload;

use pagelab_metrics::effect::{Effects, WorkloadEffects};
use pagelab_metrics::need::{self, Curve};
use pagelab_model::experiment::{Experiment, Plan, Role, Slot, TrialEnd};
use pagelab_model::run::Run;

use super::{View, clipped, plural};
use crate::effects::{IMPORTED, sequence};
use crate::needs::{self, Ground};
use crate::style::{Style, count};
use crate::text::Page;

/// Columns that a name may take.
const NAME_MAX: usize = 24;
/// Characters of a text of the recipe's.
const TEXT_MAX: usize = 300;

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let Some(experiment) = &run.experiment else { return String::new() };
    // What a tuning came to stands above, with what it rests on.
    if run.tune.is_some() && !view.verbose {
        return String::new();
    }
    let effects = Effects::of(experiment);
    let mut page = Page::new(style);
    let plan = &experiment.plan;
    let title = style.bold(&style.one_line(&clipped(&plan.name, NAME_MAX)));
    page.hanging(&format!("{title}   "), &style.one_line(&clipped(&plan.question, TEXT_MAX)));
    let curves = need::curves(experiment, &effects);
    for (at, (head, found)) in plan.workloads.iter().zip(&effects.workloads).enumerate() {
        page.gap();
        workload::show(&mut page, run, plan, head, found);
        first_touch::show(&mut page, plan, found);
        let curves: Vec<&Curve> = curves.iter().filter(|curve| curve.workload == at).collect();
        needed(&mut page, run, plan, found, &curves);
        matrix::show(&mut page, run, plan, found);
    }
    page.gap();
    troubles::show(&mut page, experiment, view);
    page.facts("", &rests_on(experiment), "   ");
    if plan.place != IMPORTED {
        hardware::show(&mut page, run, &effects);
    }
    if view.verbose {
        detail::show(&mut page, run, experiment, &effects, view.all);
    }
    page.finish()
}

/// What went wrong, and what all rests on: for those who say the rest themselves.
pub(super) fn footing(page: &mut Page, experiment: &Experiment, view: View) {
    let effects = Effects::of(experiment);
    for found in &effects.workloads {
        first_touch::show(page, &experiment.plan, found);
    }
    troubles::show(page, experiment, view);
    page.facts("", &rests_on(experiment), "   ");
    let judged = effects.workloads.first().and_then(|of| of.judged());
    if let Some(Err(absence)) = judged.map(|judged| judged.floor.as_ref()) {
        page.hanging_dim("noise floor  ", &clipped(absence.reason(), TEXT_MAX));
    }
}

/// How much memory the workload needs, where its limit was varied.
fn needed(page: &mut Page, run: &Run, plan: &Plan, effects: &WorkloadEffects, curves: &[&Curve]) {
    let (settings, page_bytes) = (&run.manifest.settings, run.manifest.machine.page_size.bytes());
    let ground = Ground { plan, settings, effects, page_bytes };
    for curve in curves {
        let label = match curves.len() {
            1 => String::new(),
            _ => format!("{}   ", page.style().one_line(&clipped(&needs::label(curve), NAME_MAX))),
        };
        let said = needs::sentences(curve, ground).join("; ");
        page.hanging(&format!("  {label}"), &page.style().one_line(&said));
    }
}

/// The shape of the experiment and how much of it was done.
fn rests_on(experiment: &Experiment) -> Vec<String> {
    let plan = &experiment.plan;
    let place = clipped(&plan.place, NAME_MAX);
    let mut facts = vec![if plan.place == IMPORTED { place } else { format!("on {place}") }];
    facts.push(plural(plan.variants.len(), "variant"));
    facts.push(plural(plan.workloads.len(), "workload"));
    facts.push(plural(rounds(plan), "round"));
    facts.push(sequence(plan).to_owned());
    facts.push(format!("seed {}", plan.seed));
    let done = experiment.trials.iter().filter(|trial| trial.end == TrialEnd::Done).count();
    let of = count(plan.schedule.len() as u128);
    facts.push(format!("{} of {of} trials done", count(done as u128)));
    let twins = plan.schedule.iter().filter(|slot| slot.role == Role::Twin).count();
    if twins > 0 {
        let whole = pairs_done(experiment);
        let of = if whole < twins { format!("{} of ", count(whole as u128)) } else { String::new() };
        facts.push(format!("{of}{} of equals", plural(twins, "pair")));
    }
    facts
}

/// Rounds of which the baseline ended well both times.
fn pairs_done(experiment: &Experiment) -> usize {
    let plan = &experiment.plan;
    let done = experiment.trials.iter().filter(|trial| trial.end == TrialEnd::Done);
    let done: Vec<&Slot> = done.filter_map(|trial| plan.schedule.get(trial.slot)).collect();
    let is_done = |slot: &Slot, role: Role| {
        done.iter().any(|of| {
            (of.workload, of.round, of.variant, of.role) == (slot.workload, slot.round, plan.baseline, role)
        })
    };
    let twins = plan.schedule.iter().filter(|slot| slot.role == Role::Twin);
    twins.filter(|twin| is_done(twin, Role::Twin) && is_done(twin, Role::Measured)).count()
}

/// Rounds that count.
fn rounds(plan: &Plan) -> usize {
    let counted = plan.schedule.iter().filter(|slot| slot.role == Role::Measured);
    counted.map(|slot| slot.round).collect::<std::collections::BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests;
