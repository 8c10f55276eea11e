//! What must be known before the numbers are believed: trials that failed, and flags, loudly.

use pagelab_model::experiment::{Experiment, Flag, Trial, TrialEnd};

use super::super::{View, clipped};
use super::NAME_MAX;
use crate::effects::end;
use crate::style::count;
use crate::text::Page;

/// Failed trials that the summary tells one by one.
const FAILED_MAX: usize = 3;
/// Lines of a failed trial's last output in the summary.
const LINES_MAX: usize = 3;
/// Kinds of flags that are told.
const KINDS_MAX: usize = 12;
/// Characters of a flag's or a trial's own text.
const TEXT_MAX: usize = 200;

pub(super) fn show(page: &mut Page, experiment: &Experiment, view: View) {
    flags(page, experiment);
    failed(page, experiment, view);
    let done = experiment.kept();
    let planned = experiment.plan.schedule.len();
    if done < planned {
        let missing = count((planned - done) as u128);
        let text = format!("{missing} of {} trials are still to be made", count(planned as u128));
        page.hanging(&format!("{}  ", page.style().alert("NOT FINISHED")), &text);
    }
}

/// A line for each kind of flag: how many trials have it, under which variants, and what the first one says.
fn flags(page: &mut Page, experiment: &Experiment) {
    let mut kinds: Vec<(&str, Vec<(&Trial, &Flag)>)> = Vec::new();
    for (trial, flag) in
        experiment.trials.iter().flat_map(|trial| trial.flags.iter().map(move |flag| (trial, flag)))
    {
        match kinds.iter().position(|(kind, _)| *kind == flag.kind) {
            Some(place) => kinds[place].1.push((trial, flag)),
            None if kinds.len() < KINDS_MAX => kinds.push((&flag.kind, vec![(trial, flag)])),
            None => {}
        }
    }
    // What makes a ratio void stands first.
    let weight = |kind: &str| match kind {
        Flag::NO_HUGE_PAGES | Flag::HUGE_PAGES_UNSEEN => 0,
        Flag::NOT_APPLIED => 1,
        Flag::PLAN_PARTLY => 2,
        Flag::NOT_QUIET => 3,
        _ => 4,
    };
    kinds.sort_by_key(|(kind, _)| weight(kind));
    let plan = &experiment.plan;
    for (kind, found) in kinds {
        let style = page.style();
        let mut variants: Vec<&str> = Vec::new();
        for (trial, _) in &found {
            let variant = plan.schedule.get(trial.slot).and_then(|slot| plan.variants.get(slot.variant));
            variants.extend(variant.map(|variant| variant.name.as_str()).filter(|of| !variants.contains(of)));
        }
        let names: Vec<String> = variants.iter().take(5).map(|name| clipped(name, NAME_MAX)).collect();
        let more = if variants.len() > 5 { ", …" } else { "" };
        let trials = found.len();
        let word = if trials == 1 { "trial" } else { "trials" };
        let first = clipped(&found[0].1.text, TEXT_MAX);
        let text = format!(
            "{} {word} of {}{more}: {}",
            count(trials as u128),
            names.join(", "),
            style.one_line(&first)
        );
        let kind = style.alert(&style.one_line(&clipped(kind, NAME_MAX).to_uppercase()));
        page.hanging(&format!("{kind}  "), &text);
    }
}

/// Trials that ended badly in the same way, under one variant.
struct Failed<'a> {
    trials: Vec<&'a Trial>,
    planned: usize,
    names: String,
}

/// Those that belong together, in the order of the first of each.
fn alike(experiment: &Experiment) -> Vec<Failed<'_>> {
    let plan = &experiment.plan;
    let mut all: Vec<(Option<(usize, usize)>, Failed<'_>)> = Vec::new();
    for trial in experiment.trials.iter().filter(|trial| trial.end != TrialEnd::Done) {
        let slot = plan.schedule.get(trial.slot);
        let place = slot.map(|slot| (slot.workload, slot.variant));
        let known =
            all.iter_mut().find(|(known, failed)| *known == place && failed.trials[0].end == trial.end);
        if let Some((_, failed)) = known {
            failed.trials.push(trial);
            continue;
        }
        let names = slot.map_or("?".to_owned(), |slot| {
            let workload = plan.workloads.get(slot.workload).map_or("?", |workload| &workload.name);
            let variant = plan.variants.get(slot.variant).map_or("?", |variant| &variant.name);
            [workload, variant].map(|name| clipped(name, NAME_MAX)).join(", ")
        });
        let is_alike = |of: &&pagelab_model::experiment::Slot| Some((of.workload, of.variant)) == place;
        let planned = plan.schedule.iter().filter(is_alike).count();
        all.push((place, Failed { trials: vec![trial], planned, names }));
    }
    all.into_iter().map(|(_, failed)| failed).collect()
}

fn failed(page: &mut Page, experiment: &Experiment, view: View) {
    let failed = alike(experiment);
    let (shown, lines) = if view.verbose { (usize::MAX, usize::MAX) } else { (FAILED_MAX, LINES_MAX) };
    for Failed { trials, planned, names } in failed.iter().take(shown) {
        let style = page.style();
        let first = trials[0];
        let round = experiment.plan.schedule.get(first.slot).map_or(0, |slot| u64::from(slot.round) + 1);
        let how = clipped(&end(&first.end), TEXT_MAX);
        let which = match trials.len() {
            1 => format!("round {round}"),
            several => format!("{} of {} trials", count(several as u128), count(*planned as u128)),
        };
        let text = style.one_line(&format!("{names}, {which}: {how}"));
        let word = if first.end == TrialEnd::OutOfMemory { "OUT OF MEMORY" } else { "FAILED" };
        page.hanging(&format!("{}  ", style.alert(word)), &text);
        let output: Vec<&str> = first.last_output.lines().filter(|line| !line.trim().is_empty()).collect();
        let skipped = output.len().saturating_sub(lines);
        for line in output.iter().skip(skipped) {
            page.hanging_dim("    ", &clipped(line, TEXT_MAX));
        }
    }
    let more: usize = failed.iter().skip(shown).map(|failed| failed.trials.len()).sum();
    if more > 0 {
        page.hanging_dim("  ", &format!("{} more did not end as they should (-v)", count(more as u128)));
    }
}
