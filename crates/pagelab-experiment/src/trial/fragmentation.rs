//! Fragmentation that is held during a trial, by the code of `pagelab fragment`.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use pagelab_contig::fragment::control_loop::{LoopBounds, LoopEnd, reach_target};
use pagelab_contig::fragment::fragmenter::Fragmenter;
use pagelab_contig::fragment::inputs::FragmentInputs;
use pagelab_contig::fragment::memory_monitor::MemoryMonitor;
use pagelab_contig::reserve::Reserve;
use pagelab_host::guard::Guard;
use pagelab_metrics::fragment_plan::{self, FragmentationGoal, TargetError};
use pagelab_metrics::fragmentation_index::{format_share, unusable_index};
use pagelab_model::experiment::{BetterDirection, Flag, Measure};
use pagelab_model::{Order, Snapshot};

use super::TrialContext;
use crate::recipe::FragmentationTarget;

/// Interval between two checks of the available memory.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub(super) struct HeldFragmentation {
    fragmenter: Fragmenter,
    monitor: MemoryMonitor,
    goal: FragmentationGoal,
    reserve: Reserve,
    /// F_u when the trial began.
    unusable_at_start: f64,
    last_check: Instant,
    /// Reason of an early release.
    released_early: Option<String>,
    flags: Vec<Flag>,
}

/// Fragments memory to the target, or compacts it if it is more fragmented. An error is the reason why
/// nothing is held; a missed target is a flag.
pub(super) fn hold_fragmentation(
    target: &FragmentationTarget,
    guard: Option<&Guard>,
    context: &TrialContext<'_>,
) -> Result<HeldFragmentation, String> {
    let (take_snapshot, seed) = (context.take_snapshot, context.resolved.recipe.seed);
    let reserve = context.reserve;
    let mut fragmentation = prepare(target, (seed, reserve), &take_snapshot())?;
    if fragmentation.unusable_index() > fragmentation.goal.target + fragmentation.goal.tolerance
        && let Some(guard) = guard
    {
        guard.compact_memory().map_err(|error| error_text(&error))?;
        fragmentation = prepare(target, (seed, reserve), &take_snapshot())?;
    }
    if fragmentation.unusable_index() < fragmentation.goal.target - fragmentation.goal.tolerance {
        fragmentation.fragment(&take_snapshot(), context.stop_signal)?;
    }
    fragmentation.unusable_at_start = fragmentation.unusable_index();
    let (order, target) = (fragmentation.goal.order.0, fragmentation.goal.target);
    if is_target_missed(fragmentation.unusable_at_start, &fragmentation.goal) {
        let reached = format_share(fragmentation.unusable_at_start);
        fragmentation.push_flag(format!("F_u({order}) should be {target}, but is {reached}"));
    }
    Ok(fragmentation)
}

fn prepare(
    target: &FragmentationTarget,
    (seed, reserve): (u64, Reserve),
    snapshot: &Snapshot,
) -> Result<HeldFragmentation, String> {
    let inputs = FragmentInputs::from_snapshot(snapshot, None).map_err(|error| error_text(&error))?;
    let order = target.order.map_or(inputs.unit_order, Order);
    let orders = inputs.free_areas.orders();
    if usize::from(order.0) >= orders {
        return Err(format!("fragmentation: order {}: expected 0 to {}", order.0, orders - 1));
    }
    let goal = FragmentationGoal { order, target: target.target, tolerance: FragmentationGoal::TOLERANCE };
    let mut monitor = MemoryMonitor::open(inputs.zone.clone(), reserve, inputs.page_size, inputs.unit_order)
        .map_err(|absence| error_text(&absence.reason()))?;
    monitor.drain_pcp_lists().map_err(|absence| error_text(&absence.reason()))?;
    let fill_method = inputs.fill_method();
    let keep_pattern = inputs.keep_pattern(fill_method, order);
    let bound_node = (inputs.nodes.len() > 1).then_some(inputs.zone.node);
    let fragmenter = Fragmenter::new(fill_method, keep_pattern, seed, inputs.page_size, bound_node);
    Ok(HeldFragmentation {
        reserve,
        fragmenter,
        monitor,
        goal,
        unusable_at_start: 0.0,
        last_check: Instant::now(),
        released_early: None,
        flags: Vec::new(),
    })
}

impl HeldFragmentation {
    fn unusable_index(&self) -> f64 {
        unusable_index(&self.monitor.free_areas(), self.goal.order)
    }

    fn fragment(&mut self, snapshot: &Snapshot, stop_signal: &dyn Fn() -> Option<i32>) -> Result<(), String> {
        let inputs = FragmentInputs::from_snapshot(snapshot, None).map_err(|error| error_text(&error))?;
        let (fill_method, keep_pattern) = (self.fragmenter.fill_method(), self.fragmenter.keep_pattern());
        let headroom_units = inputs.max_units_within(fill_method, keep_pattern, self.reserve);
        let planned = match fragment_plan::plan_fragmentation(
            &inputs.initialized_free_areas(),
            &self.goal,
            keep_pattern,
            headroom_units,
        ) {
            Ok(plan) => plan.units,
            Err(TargetError::BelowCurrent { .. }) => return Ok(()),
            Err(TargetError::AboveReach { unusable_max: most }) => {
                return Err(format!(
                    "fragmentation: cannot reach F_u({}) = {}: the maximum is currently {}; hint: use a \
                    smaller target, or stop other programs",
                    self.goal.order.0,
                    self.goal.target,
                    format_share(most)
                ));
            }
        };
        inputs.check_plan(planned).map_err(|error| error_text(&error))?;
        let bounds = LoopBounds {
            planned_units: planned,
            units_max: headroom_units,
            batch_units: inputs.units_per_batch(),
            fill_units: FragmentInputs::add_margin(planned).min(headroom_units),
        };
        let mut report_progress = |_, _: &MemoryMonitor| {
            if stop_signal().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let outcome =
            reach_target(&mut self.fragmenter, &mut self.monitor, &self.goal, bounds, &mut report_progress);
        match outcome.map_err(|error| error_text(&error))?.end {
            LoopEnd::Met => Ok(()),
            LoopEnd::ShortOfTarget(why) => {
                self.push_flag(format!("fragmentation did not reach its target: {why}"));
                Ok(())
            }
            LoopEnd::BackedOff(danger) => Err(format!("fragmentation: its memory was released: {danger}")),
            LoopEnd::Stopped => Err("stopped while memory was being fragmented".to_owned()),
        }
    }

    fn push_flag(&mut self, text: String) {
        self.flags.push(super::not_applied(text));
    }

    /// Checks the available memory from time to time; in danger it releases all memory.
    pub fn check_memory(&mut self) {
        if self.last_check.elapsed() < CHECK_INTERVAL || self.released_early.is_some() {
            return;
        }
        self.last_check = Instant::now();
        if self.monitor.refresh().is_err() {
            return;
        }
        if let Some(danger) = self.monitor.backoff_reason() {
            self.fragmenter.release_all();
            self.released_early = Some(danger.to_string());
        }
    }

    /// Measures and flags after the trial; then it releases all memory.
    pub fn finish(mut self) -> (Vec<Measure>, Vec<Flag>) {
        let _ = self.monitor.refresh();
        let measure = |name: &str, value: f64| {
            Measure::new(name, "ratio", BetterDirection::Neither, Ok(value), "buddyinfo, the largest zone")
        };
        let measures = vec![
            measure("fragmentation.held", self.unusable_at_start),
            measure("fragmentation.end", self.unusable_index()),
        ];
        if let Some(why) = self.released_early.take() {
            self.push_flag(format!("fragmentation: its memory was released during the trial: {why}"));
        }
        let fragmenter = &mut self.fragmenter;
        self.monitor.free_and_drain(|| fragmenter.release_all());
        (measures, self.flags)
    }
}

/// F_u that compaction leaves in blocks that it cannot empty: a target of 0 requests compaction alone, which
/// does not reach 0 on a machine in use.
const COMPACTED_UNUSABLE_MAX: f64 = 0.15;

/// Whether the reached value deviates from the target.
fn is_target_missed(reached: f64, goal: &FragmentationGoal) -> bool {
    let tolerance = if goal.target == 0.0 { COMPACTED_UNUSABLE_MAX } else { goal.tolerance };
    (reached - goal.target).abs() > tolerance
}

fn error_text(error: &dyn std::fmt::Display) -> String {
    format!("fragmentation: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compacted_memory_is_whole_enough_and_a_target_is_met_closely() {
        let goal =
            |target| FragmentationGoal { order: Order(9), target, tolerance: FragmentationGoal::TOLERANCE };
        for (reached, target, missed) in [
            (0.0, 0.0, false),
            (0.096, 0.0, false),
            (0.841, 0.0, true),
            (0.5 + FragmentationGoal::TOLERANCE / 2.0, 0.5, false),
            (0.6, 0.5, true),
            (0.4, 0.5, true),
        ] {
            assert_eq!(is_target_missed(reached, &goal(target)), missed, "{reached} of {target}");
        }
    }
}
