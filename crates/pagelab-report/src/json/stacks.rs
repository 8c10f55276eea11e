//! Call stacks of fallbacks in JSON: every stack as recorded, and totals by caller.

use pagelab_metrics::callers::{Caller, aggregate_callers};
use pagelab_model::extfrag::{FallbackCounts, FallbackStack, FallbackStacks};
use serde_json::Value;

use super::object::{JsonObject, to_array};
use crate::fields::fields;

const EXITED_REASON: &str = "the thread exited before its name was read";

/// Builds the `stacks` of a run.
pub(super) fn to_document(stacks: &FallbackStacks) -> Value {
    let callers = aggregate_callers(stacks);
    JsonObject::new()
        .field("all", fallback_count_fields().object(&callers.total))
        .field("overflow", fallback_count_fields().object(&stacks.overflow))
        .field("lost", stacks.lost)
        .field("callers", to_array(&callers.callers, caller_json))
        .field("stacks", to_array(&stacks.stacks, stack_json))
        .field("notes", stacks.notes.clone())
        .into()
}

fields! { fn fallback_count_fields(of: FallbackCounts);
    "events": integer, "all fallbacks" => of.events;
    "fragmenting": integer, "fallbacks that took a block smaller than a pageblock" => of.fragmenting;
    "polluting": integer, "unmovable or reclaimable fallbacks that took movable memory" => of.polluting;
    "polluting_claimed": integer, "of these, fallbacks that claimed the pageblock" => of.polluting_claimed;
}

fn caller_json(caller: &Caller) -> JsonObject {
    let program = |(name, polluting): &(Option<String>, u64)| {
        JsonObject::new().optional("program", name.clone(), EXITED_REASON).field("polluting", *polluting)
    };
    let object = JsonObject::new().field("function", caller.function.as_str());
    fallback_count_fields()
        .add_to(object, &caller.counts)
        .field("programs", to_array(&caller.programs, program))
        .field("stack", caller.stack.clone())
        .field("user", caller.user.clone())
}

fn stack_json(stack: &FallbackStack) -> JsonObject {
    let object = JsonObject::new().optional("program", stack.comm.clone(), EXITED_REASON);
    fallback_count_fields()
        .add_to(object, &stack.counts)
        .field("kernel", stack.kernel.clone())
        .field("user", stack.user.clone())
}
