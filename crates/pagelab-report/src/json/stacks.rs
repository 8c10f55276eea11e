//! Call stacks of fallbacks as JSON: every stack as it was recorded, and who asked, added up.

use pagelab_metrics::callers::{Caller, View, Weight, callers};
use pagelab_model::extfrag::{FallbackCounts, StackCounts, Stacks};
use serde_json::Value;

use super::object::Object;

const GONE: &str = "the thread had gone before its name was read";

/// The `stacks` of a run.
pub(super) fn document(stacks: &Stacks) -> Value {
    let callers = callers(stacks, View::Asker, Weight::Spoiling);
    let list = |values: Vec<Object>| Value::from(values.into_iter().map(Value::from).collect::<Vec<_>>());
    Object::new()
        .put("all", counts(Object::new(), &callers.all))
        .put("not_kept", counts(Object::new(), &stacks.not_kept))
        .put("lost", stacks.lost)
        .put("callers", list(callers.callers.iter().map(caller).collect()))
        .put("stacks", list(stacks.stacks.iter().map(stack).collect()))
        .put("notes", stacks.notes.clone())
        .into()
}

fn counts(object: Object, of: &FallbackCounts) -> Object {
    object
        .put("events", of.events)
        .put("fragmenting", of.fragmenting)
        .put("spoiling", of.spoiling)
        .put("spoiling_claimed", of.spoiling_claimed)
}

fn caller(caller: &Caller) -> Object {
    let program = |(name, spoiling): &(Option<String>, u64)| {
        Value::from(Object::new().option("program", name.clone(), GONE).put("spoiling", *spoiling))
    };
    counts(Object::new().put("function", caller.function.as_str()), &caller.counts)
        .put("programs", caller.programs.iter().map(program).collect::<Vec<Value>>())
        .put("stack", caller.stack.clone())
        .put("user", caller.user.clone())
}

fn stack(stack: &StackCounts) -> Object {
    counts(Object::new().option("program", stack.process.clone(), GONE), &stack.counts)
        .put("kernel", stack.kernel.clone())
        .put("user", stack.user.clone())
}
