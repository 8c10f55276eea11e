//! Caveats of the numbers: failed trials and flags, in prominent form.

use pagelab_metrics::grouping::value_of;
use pagelab_model::experiment::{Experiment, Flag, ScheduleSlot, Trial, TrialEnd};

use super::super::{View, clip_name};
use super::NAME_MAX;
use crate::effect_text::describe_trial_end;
use crate::style::{format_count, format_plural};
use crate::text_report::TextReport;

/// Failed trials listed one by one in the summary, at most.
const FAILED_TRIALS_MAX: usize = 3;
/// Lines of a failed trial's last output in the summary, at most.
const OUTPUT_LINES_MAX: usize = 3;
/// Kinds of flags in the summary, at most.
const FLAG_KINDS_MAX: usize = 12;
/// Characters of the text of a flag or a trial, at most.
const TEXT_MAX: usize = 240;

pub(super) fn write_failures(output: &mut TextReport, experiment: &Experiment, view: View) {
    write_flags(output, experiment);
    write_failed_trials(output, experiment, view);
    let done = experiment.count_completed();
    let planned = experiment.count_planned();
    if done < planned {
        let missing = format_count((planned - done) as u128);
        let text = format!("{missing} of {} trials are missing", format_count(planned as u128));
        output.add_paragraph(&format!("{}  ", output.style().paint_alert("NOT FINISHED")), &text);
    }
}

/// Writes a line per kind of flag: the number of trials with it, their variants, and the text of the first.
fn write_flags(output: &mut TextReport, experiment: &Experiment) {
    let mut kinds: Vec<(&str, Vec<(&Trial, &Flag)>)> = Vec::new();
    for (trial, flag) in
        experiment.trials.iter().flat_map(|trial| trial.flags.iter().map(move |flag| (trial, flag)))
    {
        match kinds.iter().position(|(kind, _)| *kind == flag.kind) {
            Some(place) => kinds[place].1.push((trial, flag)),
            None if kinds.len() < FLAG_KINDS_MAX => kinds.push((&flag.kind, vec![(trial, flag)])),
            None => {}
        }
    }
    // Flags that invalidate a ratio come first.
    let weight = |kind: &str| match kind {
        Flag::NO_HUGE_PAGES | Flag::HUGE_PAGES_UNKNOWN => 0,
        Flag::NOT_APPLIED => 1,
        Flag::PLAN_PARTLY => 2,
        Flag::OTHERS_BUSY => 3,
        Flag::NOT_QUIET => 4,
        _ => 5,
    };
    kinds.sort_by_key(|(kind, _)| weight(kind));
    let plan = &experiment.plan;
    for (kind, flag_count) in kinds {
        let style = output.style();
        let mut variants: Vec<&str> = Vec::new();
        for (trial, _) in &flag_count {
            let variant = plan.schedule.get(trial.slot).and_then(|slot| plan.variants.get(slot.variant));
            variants.extend(variant.map(|variant| variant.name.as_str()).filter(|of| !variants.contains(of)));
        }
        let names: Vec<String> = variants.iter().take(5).map(|name| clip_name(name, NAME_MAX)).collect();
        let more = if variants.len() > 5 { ", …" } else { "" };
        let trials = format_plural(flag_count.len(), "trial");
        let first = clip_name(&flag_count[0].1.text, TEXT_MAX);
        let text = format!("{trials} of {}{more}: {}", names.join(", "), style.to_one_line(&first));
        let kind = style.paint_alert(&style.to_one_line(&clip_name(kind, NAME_MAX).to_uppercase()));
        output.add_paragraph(&format!("{kind}  "), &text);
    }
}

/// Groups failed trials by configuration and end, in the order of the first of each group.
fn group_failed_trials(experiment: &Experiment) -> Vec<Vec<&Trial>> {
    let mut groups = Vec::new();
    for trial in experiment.trials.iter().filter(|trial| trial.end != TrialEnd::Done) {
        let slot = experiment.plan.schedule.get(trial.slot);
        let configuration = slot.map(|slot| (slot.workload, slot.variant));
        value_of::<_, Vec<&Trial>>(&mut groups, (configuration, &trial.end)).push(trial);
    }
    groups.into_iter().map(|(_, trials)| trials).collect()
}

fn write_failed_trials(output: &mut TextReport, experiment: &Experiment, view: View) {
    let plan = &experiment.plan;
    let failed_groups = group_failed_trials(experiment);
    let (shown_groups, lines) =
        if view.verbose { (usize::MAX, usize::MAX) } else { (FAILED_TRIALS_MAX, OUTPUT_LINES_MAX) };
    for trials in failed_groups.iter().take(shown_groups) {
        let style = output.style();
        let first = trials[0];
        let slot = plan.schedule.get(first.slot);
        let names = slot.map_or("?".to_owned(), |slot| {
            let workload = plan.workloads.get(slot.workload).map_or("?", |workload| &workload.name);
            let variant = plan.variants.get(slot.variant).map_or("?", |variant| &variant.name);
            [workload, variant].map(|name| clip_name(name, NAME_MAX)).join(", ")
        });
        let how = clip_name(&describe_trial_end(first), TEXT_MAX);
        let which = match trials.len() {
            1 => format!("round {}", slot.map_or(0, |slot| u64::from(slot.round) + 1)),
            several => {
                let configuration = |slot: ScheduleSlot| (slot.workload, slot.variant);
                let is_alike = |of: &ScheduleSlot| Some(configuration(*of)) == slot.map(configuration);
                let planned = plan.schedule.iter().filter(is_alike).count();
                format!("{} of {} trials", format_count(several as u128), format_count(planned as u128))
            }
        };
        let text = style.to_one_line(&format!("{names}, {which}: {how}"));
        let word = if first.end == TrialEnd::OutOfMemory { "OUT OF MEMORY" } else { "FAILED" };
        output.add_paragraph(&format!("{}  ", style.paint_alert(word)), &text);
        let trial_output: Vec<&str> =
            first.last_output.lines().filter(|line| !line.trim().is_empty()).collect();
        let skipped = trial_output.len().saturating_sub(lines);
        for line in trial_output.iter().skip(skipped) {
            output.add_dim_paragraph("    ", &clip_name(line, TEXT_MAX));
        }
    }
    let more: usize = failed_groups.iter().skip(shown_groups).map(Vec::len).sum();
    if more > 0 {
        output.add_dim_indented(&format!("{} more failed (-v)", format_count(more as u128)));
    }
}
