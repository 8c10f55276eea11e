//! Fragmentation that is held while a trial runs, by the same machinery as `pagelab fragment`.

use std::time::{Duration, Instant};

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::fragment::reach::{Bounds, Ending, Flow, reach};
use pagelab_contig::fragment::spoiler::Spoiler;
use pagelab_contig::fragment::watch::Watch;
use pagelab_contig::reserve::Reserve;
use pagelab_host::guard::Guard;
use pagelab_metrics::frag::{share_text, unusable};
use pagelab_metrics::fragment_plan::{self, Goal, Unreachable};
use pagelab_model::experiment::{Better, Flag, Measure};
use pagelab_model::{Order, Snapshot};

use crate::recipe::Fragmentation;

/// Between two looks at everybody else's memory.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Memory that is broken up.
pub(super) struct Held {
    spoiler: Spoiler,
    watch: Watch,
    goal: Goal,
    /// F_u when the trial began.
    reached: f64,
    looked: Instant,
    /// Why it was given back before the end.
    given_back: Option<String>,
    flags: Vec<Flag>,
}

/// Breaks memory up to the target, or compacts it where it is broken up more than that. An error is why
/// nothing can be held; that the target was missed is a flag.
pub(super) fn hold(
    wanted: &Fragmentation,
    seed: u64,
    look: &dyn Fn() -> Snapshot,
    guard: Option<&Guard>,
    stop: &dyn Fn() -> Option<i32>,
) -> Result<Held, String> {
    let mut held = begin(wanted, seed, &look())?;
    if held.now() > held.goal.target + held.goal.tolerance
        && let Some(guard) = guard
    {
        guard.compact_memory().map_err(|error| said(&error))?;
        held = begin(wanted, seed, &look())?;
    }
    if held.now() < held.goal.target - held.goal.tolerance {
        held.spoil(&look(), stop)?;
    }
    held.reached = held.now();
    held.judge();
    Ok(held)
}

fn begin(wanted: &Fragmentation, seed: u64, snapshot: &Snapshot) -> Result<Held, String> {
    let facts = Facts::of(snapshot, None).map_err(|error| said(&error))?;
    let order = wanted.order.map_or(facts.unit, Order);
    let orders = facts.areas.orders();
    if usize::from(order.0) >= orders {
        return Err(format!(
            "fragmentation: order {} is wanted, and this machine has 0 to {}",
            order.0,
            orders - 1
        ));
    }
    let goal = Goal { order, target: wanted.target, tolerance: Goal::TOLERANCE };
    let reserve = Reserve::of(facts.mem_total);
    let mut watch = Watch::open(facts.zone.clone(), reserve, facts.page_size, facts.unit)
        .map_err(|absence| said(&absence.reason()))?;
    watch.settle().map_err(|absence| said(&absence.reason()))?;
    let way = facts.way();
    let bind = (facts.nodes.len() > 1).then_some(facts.zone.node);
    let spoiler = Spoiler::new(way, facts.shape(way, order), seed, facts.page_size, bind);
    Ok(Held {
        spoiler,
        watch,
        goal,
        reached: 0.0,
        looked: Instant::now(),
        given_back: None,
        flags: Vec::new(),
    })
}

impl Held {
    fn now(&self) -> f64 {
        unusable(&self.watch.areas(), self.goal.order)
    }

    fn spoil(&mut self, snapshot: &Snapshot, stop: &dyn Fn() -> Option<i32>) -> Result<(), String> {
        let facts = Facts::of(snapshot, None).map_err(|error| said(&error))?;
        let (way, shape) = (self.spoiler.way(), self.spoiler.shape());
        let room = facts.units_within(way, shape, Reserve::of(facts.mem_total));
        let planned = match fragment_plan::plan(&facts.areas_initialised(), &self.goal, shape, room) {
            Ok(plan) => plan.units,
            Err(Unreachable::Below { .. }) => return Ok(()),
            Err(Unreachable::Above { most }) => {
                return Err(format!(
                    "fragmentation: F_u({}) = {} cannot be reached: {} is the most here now; a smaller \
                     target can, or end other programs",
                    self.goal.order.0,
                    self.goal.target,
                    share_text(most)
                ));
            }
        };
        facts.check_plan(planned).map_err(|error| said(&error))?;
        let bounds = Bounds {
            planned,
            units_max: room,
            batch: facts.batch(),
            fill: Facts::with_margin(planned).min(room),
        };
        let mut seen = |_, _: &Watch| if stop().is_some() { Flow::Stop } else { Flow::On };
        let reached = reach(&mut self.spoiler, &mut self.watch, &self.goal, bounds, &mut seen);
        match reached.map_err(|error| said(&error))?.ending {
            Ending::Met => Ok(()),
            Ending::Short(why) => {
                self.flag(format!("fragmentation ended short of its target: {why}"));
                Ok(())
            }
            Ending::BackedOff(danger) => Err(format!("fragmentation was given back: {danger}")),
            Ending::Stopped => Err("stopped while memory was being fragmented".to_owned()),
        }
    }

    fn judge(&mut self) {
        let (order, target) = (self.goal.order.0, self.goal.target);
        if is_missed(self.reached, &self.goal) {
            self.flag(format!("F_u({order}) was to be {target} and is {}", share_text(self.reached)));
        }
    }

    fn flag(&mut self, text: String) {
        self.flags.push(Flag { kind: Flag::NOT_APPLIED.to_owned(), text });
    }

    /// Looks after everybody else, now and then; in danger all is given back.
    pub fn tick(&mut self) {
        if self.looked.elapsed() < LOOK_EVERY || self.given_back.is_some() {
            return;
        }
        self.looked = Instant::now();
        if self.watch.look().is_err() {
            return;
        }
        if let Some(danger) = self.watch.danger() {
            self.spoiler.clear();
            self.given_back = Some(danger.to_string());
        }
    }

    /// What came of it, once the trial is over; then all is given back.
    pub fn finish(mut self) -> (Vec<Measure>, Vec<Flag>) {
        let _ = self.watch.look();
        let measure = |name: &str, value: f64| Measure {
            name: name.to_owned(),
            unit: "ratio".into(),
            better: Better::Neither,
            value: Ok(value),
            source: "buddyinfo, the largest zone".to_owned(),
        };
        let measures =
            vec![measure("fragmentation.held", self.reached), measure("fragmentation.end", self.now())];
        if let Some(why) = self.given_back.take() {
            self.flag(format!("fragmentation was given back while the trial ran: {why}"));
        }
        let spoiler = &mut self.spoiler;
        self.watch.give_back(|| spoiler.clear());
        (measures, self.flags)
    }
}

/// What compaction leaves in use in blocks that it cannot empty: a target of 0 asks for compaction alone, and
/// no machine that is used comes to 0 by it.
const COMPACTED_MAX: f64 = 0.15;

/// Whether what was reached is another thing than what was asked for.
fn is_missed(reached: f64, goal: &Goal) -> bool {
    let tolerance = if goal.target == 0.0 { COMPACTED_MAX } else { goal.tolerance };
    (reached - goal.target).abs() > tolerance
}

fn said(error: &dyn std::fmt::Display) -> String {
    format!("fragmentation: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compacted_memory_is_whole_enough_and_a_target_is_met_closely() {
        let goal = |target| Goal { order: Order(9), target, tolerance: Goal::TOLERANCE };
        for (reached, target, missed) in [
            (0.0, 0.0, false),
            (0.096, 0.0, false),
            (0.841, 0.0, true),
            (0.5 + Goal::TOLERANCE / 2.0, 0.5, false),
            (0.6, 0.5, true),
            (0.4, 0.5, true),
        ] {
            assert_eq!(is_missed(reached, &goal(target)), missed, "{reached} of {target}");
        }
    }
}
