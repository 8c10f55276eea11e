//! `pagelab run --dry-run`: what would run, in which order, how long it takes, and what would be changed.

use std::io::Write;

use pagelab_experiment::changes;
use pagelab_experiment::resolve::Resolved;
use pagelab_host::guard::Site;
use pagelab_model::experiment::{Plan, Role, Sequence, Slot, VariantHead};
use pagelab_report::json::header;
use pagelab_report::json::object::{Object, array};
use pagelab_report::quantity::duration;
use pagelab_report::text::Page;
use serde_json::Value;

use super::ready;
use crate::exit::{Exit, Failure};
use crate::out;

/// Trials that the text lists.
const SLOTS_SHOWN: usize = 12;

/// Prints the plan.
pub fn show(resolved: &Resolved, json: bool, wants_model: bool) -> Result<(), Failure> {
    let site = Site::live().map_err(|error| error.to_string());
    let changes: Vec<Vec<String>> =
        resolved.recipe.variants.iter().map(|variant| changes::of(&site, variant)).collect();
    let mut out = out::stdout();
    let text = match json {
        true => pagelab_report::json::to_text(&Value::from(document(resolved, &changes)))
            .map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?,
        false => text(resolved, &changes, wants_model),
    };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn ns(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn settings(variant: &VariantHead) -> String {
    let pairs = variant.settings.iter().map(|(key, value)| format!("{key} {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}

fn text(resolved: &Resolved, changes: &[Vec<String>], wants_model: bool) -> String {
    let plan = &resolved.plan;
    let mut page = Page::new(out::style());
    page.hanging("", &format!("{}: {}", plan.name, plan.question));
    page.hanging("", &outline(resolved));
    page.gap();
    for (workload, of) in plan.workloads.iter().zip(&resolved.recipe.workloads) {
        page.hanging(&format!("workload {}  ", workload.name), &workload.command.join(" "));
        if !workload.generator.is_empty() {
            page.hanging("  ", &workload.generator);
        }
        if let Some(why) = ready::missing(of) {
            page.hanging("  its trials would not be begun  ", &why);
        }
    }
    page.gap();
    for (at, variant) in plan.variants.iter().enumerate() {
        let what = if at == plan.baseline { ", the baseline" } else { "" };
        page.hanging(&format!("variant {}{what}  ", variant.name), &settings(variant));
        for change in &changes[at] {
            page.hanging("  would change  ", change);
        }
    }
    page.hanging("", "What is changed holds while a trial runs, and is put back after it.");
    page.gap();
    for (number, slot) in plan.schedule.iter().enumerate().take(SLOTS_SHOWN) {
        page.hanging(&format!("{:>4}  ", number + 1), &trial(plan, slot));
    }
    if plan.schedule.len() > SLOTS_SHOWN {
        page.hanging("", &format!("      … {} more (--json has all)", plan.schedule.len() - SLOTS_SHOWN));
    }
    if wants_model {
        let runs = plan.workloads.len() * plan.variants.len();
        let text = format!(
            "{runs} runs more, each workload once under each variant in QEMU's user mode, each some 26 times \
             as long as a trial; none where the processor's counters can be read"
        );
        page.hanging("model ", &text);
    }
    page.finish()
}

fn outline(resolved: &Resolved) -> String {
    let plan = &resolved.plan;
    let order = match plan.sequence {
        Sequence::Abba => "there and back (abba)",
        Sequence::Blocks => "in an order drawn for each round (blocks)",
    };
    let (takes, most) = resolved.estimate();
    let takes = match takes {
        Some(takes) => format!("about {}", duration(ns(takes))),
        None => "it takes as long as its programs take".to_owned(),
    };
    format!(
        "{} trials, {takes}, {} at the most: {} warm-up and {} measured rounds{}, {order}, seed {}; \
         recipe {}; at {}",
        plan.schedule.len(),
        duration(ns(most)),
        resolved.recipe.warm_up,
        resolved.recipe.repeats,
        if resolved.recipe.twins { " with the baseline twice" } else { "" },
        plan.seed,
        plan.origin,
        plan.place
    )
}

fn trial(plan: &Plan, slot: &Slot) -> String {
    let role = match slot.role {
        Role::WarmUp => "warm-up".to_owned(),
        Role::Measured => format!("round {}", slot.round + 1),
        Role::Twin => format!("round {}, the baseline again", slot.round + 1),
    };
    format!("{}, {}: {role}", plan.workloads[slot.workload].name, plan.variants[slot.variant].name)
}

fn document(resolved: &Resolved, changes: &[Vec<String>]) -> Object {
    let plan = &resolved.plan;
    let (takes, most) = resolved.estimate();
    let variant = |(variant, changes): &(&VariantHead, &Vec<String>)| {
        let settings =
            variant.settings.iter().fold(Object::new(), |of, (key, value)| of.put(key, value.as_str()));
        Object::new()
            .put("name", variant.name.as_str())
            .put("settings", settings)
            .put("asks_for_huge_pages", variant.asks_for_huge_pages)
            .put("changes", changes.to_vec())
    };
    let variants: Vec<(&VariantHead, &Vec<String>)> = plan.variants.iter().zip(changes).collect();
    let workloads: Vec<_> = plan.workloads.iter().zip(&resolved.recipe.workloads).collect();
    let sequence = match plan.sequence {
        Sequence::Abba => "abba",
        Sequence::Blocks => "blocks",
    };
    header("run_plan")
        .put("name", plan.name.as_str())
        .put("question", plan.question.as_str())
        .put("origin", plan.origin.as_str())
        .put("place", plan.place.as_str())
        .put("seed", plan.seed)
        .put("sequence", sequence)
        .put("warm_up_rounds", resolved.recipe.warm_up)
        .put("rounds", resolved.recipe.repeats)
        .put("baseline", plan.variants[plan.baseline].name.as_str())
        .option("takes_ns", takes.map(ns), "the recipe does not say how long each of its workloads takes")
        .put("at_most_ns", ns(most))
        .put(
            "workloads",
            array(&workloads, |(workload, of)| {
                Object::new()
                    .put("name", workload.name.as_str())
                    .put("command", workload.command.clone())
                    .put("generator", workload.generator.as_str())
                    .option("merit", workload.merit.clone(), "its time is judged")
                    .option("missing", ready::missing(of), "nothing: it can run")
            }),
        )
        .put("variants", array(&variants, variant))
        .put("trials", array(&plan.schedule, |slot| trial_object(resolved, slot)))
}

fn trial_object(resolved: &Resolved, slot: &Slot) -> Object {
    let plan = &resolved.plan;
    let role = match slot.role {
        Role::WarmUp => "warm_up",
        Role::Measured => "measured",
        Role::Twin => "twin",
    };
    Object::new()
        .put("workload", plan.workloads[slot.workload].name.as_str())
        .put("variant", plan.variants[slot.variant].name.as_str())
        .put("round", slot.round)
        .put("role", role)
        .put("command", resolved.command(slot.workload, slot.variant))
}
