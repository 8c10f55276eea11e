//! JSON of an experiment before it begins: `docs/json.md` lists fields and units.

use pagelab_model::experiment::PlannedVariant;
use serde_json::Value;

use super::document_header;
use super::experiment::{SlotRow, baseline_name, slot_fields};
use super::object::{JsonObject, to_array};
use crate::run_plan::{GuestPlan, RunPlanView};

/// Builds the document.
pub fn to_document(view: &RunPlanView<'_>) -> Value {
    let plan = view.plan;
    let variant = |(variant, changes): (&PlannedVariant, &Vec<String>)| {
        let settings =
            variant.settings.iter().fold(JsonObject::new(), |of, (key, value)| of.field(key, value.as_str()));
        JsonObject::new()
            .field("name", variant.name.as_str())
            .field("settings", settings)
            .field("asks_for_huge_pages", variant.asks_for_huge_pages)
            .field("changes", changes.clone())
    };
    document_header("run_plan")
        .field("name", plan.name.as_str())
        .field("question", plan.question.as_str())
        .field("origin", plan.origin.as_str())
        .field("place", plan.place.as_str())
        .field("seed", plan.seed)
        .field("sequence", plan.sequence.slug())
        .field("warm_up_rounds", view.warm_up)
        .field("rounds", view.repeats)
        .optional("baseline", baseline_name(plan), "the experiment has no baseline")
        .optional("takes_ns", view.expected_ns, "the recipe does not give the duration of every workload")
        .field("at_most_ns", view.at_most_ns)
        .optional("guests", view.guests.as_ref().map(guests_json), "trials run on a host")
        .field(
            "workloads",
            to_array(plan.workloads.iter().zip(&view.missing), |(workload, missing)| {
                JsonObject::new()
                    .field("name", workload.name.as_str())
                    .field("command", workload.command.clone())
                    .field("generator", workload.generator.as_str())
                    .optional("merit", workload.merit.clone(), "judged by its run time")
                    .optional("missing", missing.as_deref(), "nothing is missing")
            }),
        )
        .field("variants", to_array(plan.variants.iter().zip(&view.changes), variant))
        .field(
            "trials",
            to_array(plan.schedule.iter().zip(&view.commands), |(slot, command)| {
                let object = slot_fields().add_to(JsonObject::new(), &SlotRow { plan, slot });
                object.field("command", command.clone())
            }),
        )
        .into()
}

fn guests_json(guests: &GuestPlan) -> JsonObject {
    let (lanes, why) = (guests.lanes.as_ref().ok(), guests.lanes.as_ref().err());
    let why = why.map_or("", String::as_str);
    JsonObject::new()
        .field("boots", guests.boots)
        .optional("lanes", lanes.map(|(lanes, _)| *lanes), why)
        .optional("memory_bytes", lanes.map(|(_, memory)| memory.0), why)
        .optional("takes_ns", guests.expected_ns, "the recipe does not give the duration of every workload")
        .field("file", guests.file.as_str())
}
