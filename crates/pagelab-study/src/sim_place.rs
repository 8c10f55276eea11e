//! The simulator as a place: a trial for each processor at the same time. Equal trials have equal results,
//! bit by bit, so no baseline is repeated and nothing is warmed.

use std::num::NonZero;
use std::time::Duration;

use pagelab_experiment::place::{FinishedTrial, LossKind, LostTrial, Place};
use pagelab_model::experiment::{Plan, Trial};
use pagelab_model::simulation::SimulatedConfiguration;
use pagelab_report::attachments::is_series_shown;
use pagelab_sim::study::{self, SimulationSpec};
use pagelab_sim::types::Error;

use crate::catalogue;

/// Limit of points of an experiment; a run file holds at most 4 million trials.
pub const POINTS_MAX: usize = 1 << 16;
/// Limit of trials of an experiment.
const TRIALS_MAX: usize = 1 << 22;
/// Wait of completed trials for the file: long enough for a batch of many.
const BATCH_INTERVAL: Duration = Duration::from_millis(400);

/// The simulator with a plan.
pub struct SimPlace<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// Threads; `None` for one per processor.
    pub threads: Option<NonZero<usize>>,
    /// Series that the session shows.
    pub series: ShownSeries,
}

/// Series of trials that a session shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownSeries {
    /// Of no trial.
    None,
    /// Of the first seed.
    FirstSeed,
    /// Of all trials.
    All,
}

/// Version of the simulator; only results of the same version are combined.
pub fn simulator_version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

impl Place for SimPlace<'_> {
    fn check_plan(&self, plan: &Plan) -> Result<(), String> {
        let ours = simulator_version();
        let theirs = plan.simulator.as_deref().unwrap_or_default();
        if theirs != ours {
            return Err(format!(
                "it was started by simulator {theirs}, but this is {ours}, and their results cannot be \
                mixed; hint: use that version, or start a new run"
            ));
        }
        let points = plan.points().len();
        for point in (0..points).filter_map(|point| plan.point(point)) {
            let configuration = SimulatedConfiguration::new(point.workload.clone(), point.scheme);
            catalogue::check_configuration_parts(&configuration).map_err(|(_, text)| text)?;
        }
        let seeds = plan.seeds().len();
        match plan.schedule.grid().and_then(|grid| grid.count_slots()) {
            Some(0) | None if points == 0 || seeds == 0 => {
                Err("nothing to run: expected at least one configuration and one seed".to_owned())
            }
            Some(slots) if slots <= TRIALS_MAX && points <= POINTS_MAX => Ok(()),
            _ => Err(format!(
                "{points} configurations with {seeds} seeds each: at most {POINTS_MAX} configurations and \
                {TRIALS_MAX} runs are supported; hint: use fewer values, or --random N"
            )),
        }
    }

    fn lanes(&self, due: usize) -> NonZero<usize> {
        let threads = self.threads.unwrap_or_else(processor_count);
        NonZero::new(due).map_or(threads, |due| threads.min(due))
    }

    fn shared(&self) -> Option<&(dyn Place + Sync)> {
        Some(self)
    }

    fn has_time(&self) -> bool {
        false
    }

    fn batch_interval(&self) -> Duration {
        BATCH_INTERVAL
    }

    fn keeps_series(&self, slot: usize) -> bool {
        match self.series {
            ShownSeries::None => false,
            ShownSeries::FirstSeed => is_series_shown(self.plan, slot),
            ShownSeries::All => true,
        }
    }

    fn carry_out(
        &self,
        slot: usize,
        keep_going: &mut dyn FnMut(u32) -> bool,
    ) -> Result<FinishedTrial, LostTrial> {
        let no_slot = || LostTrial::by_defect(format!("the plan has no slot {slot}"));
        let (at, seed) = self.plan.point_and_seed(slot).ok_or_else(no_slot)?;
        let point = self.plan.point(at).ok_or_else(no_slot)?;
        // Pictures come only from the first seed: others look alike, and would fill the file.
        let pictures = if slot < self.plan.points().len() { self.plan.pictures } else { 0 };
        let lost = |kind, text: &str| {
            let (workload, scheme) = (point.workload, point.scheme);
            let reason =
                format!("{} on {} under {scheme}, seed {seed}: {text}", workload.load, workload.machine);
            LostTrial { kind, reason }
        };
        let spec = SimulationSpec::new(point.workload.clone(), point.scheme, seed, pictures)
            .map_err(|wrong| lost(LossKind::Rejected, &wrong.to_string()))?;
        match study::run_simulation(&spec, keep_going) {
            Ok(outcome) => Ok(catalogue::simulated_trial(slot, outcome)),
            Err(wrong @ Error::InvalidConfig(_)) => Err(lost(LossKind::Rejected, &wrong.to_string())),
            Err(wrong) => Err(lost(LossKind::Defect, &wrong.to_string())),
        }
    }

    fn is_same_as_before(
        &self,
        earlier: &Trial,
        keep_going: &mut dyn FnMut(u32) -> bool,
    ) -> Result<bool, LostTrial> {
        let again = self.carry_out(earlier.slot, keep_going)?.trial;
        Ok(Trial { began_ns: earlier.began_ns, ended_ns: earlier.ended_ns, ..again } == *earlier)
    }
}

/// Processors that this process may use.
pub fn processor_count() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}
