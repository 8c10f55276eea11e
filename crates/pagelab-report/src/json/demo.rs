//! The demonstration of the simulator: a policy with its steps, for `sim_demo` and for its page.

use serde_json::Value;

use super::object::{Object, array};
use crate::sim::demo::{Lane, Step};

/// A policy and what happened under it.
pub fn lane(lane: &Lane) -> Object {
    Object::new()
        .put("policy", lane.policy.as_str())
        .put("lists", lane.lists.clone())
        .put("steps", array(&lane.steps, step))
}

fn step(step: &Step) -> Object {
    Object::new()
        .put("asked", step.asked.as_str())
        .put("did", step.did.clone())
        .put("frames", step.frames.as_str())
        .put("owners", step.owners.clone())
        .put("free", Value::from(step.free.clone()))
        .put("unusable", step.unusable.clone())
        .put("touched", step.touched.clone())
}
