//! System time of the first touch of memory, apart from the rest.
//!
//! It is the kernel's and, where the host takes free memory back, the host's.

use pagelab_metrics::effect::WorkloadEffects;
use pagelab_model::PageSize;
use pagelab_model::experiment::{Plan, measures};
use pagelab_model::run::Unit;

use super::super::clipped;
use crate::effects::value;
use crate::text::Page;

/// Columns that a variant's name may take.
const VARIANT_MAX: usize = 30;
/// Variants that are told.
const VARIANTS_MAX: usize = 6;

/// A line: of each variant the time of first touch, and the rest of its system time.
pub(super) fn show(page: &mut Page, plan: &Plan, found: &WorkloadEffects) {
    let middle = |name: &str, variant: usize| {
        Some(found.measure(name)?.variants.get(variant)?.statistics.as_ref()?.median)
    };
    let time = |ns: f64| value(ns, &Unit::from(Unit::NANOSECONDS), PageSize::USUAL);
    let fact = |variant: usize| {
        let touch = middle(measures::FIRST_TOUCH, variant)?;
        let rest = (middle(measures::CPU_SYSTEM, variant)? - touch).max(0.0);
        let name = clipped(&plan.variants[variant].name, VARIANT_MAX);
        let name = page.style().one_line(&name);
        Some(format!("{name} {} of first touch, {} else", time(touch), time(rest)))
    };
    let facts: Vec<String> = (0..plan.variants.len()).filter_map(fact).take(VARIANTS_MAX).collect();
    if !facts.is_empty() {
        page.facts("  system time: ", &facts, "; ");
    }
}
