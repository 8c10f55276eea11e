//! External workloads before an experiment: those that are not set up are told, and their trials are not
//! begun; of the others, the data that their trials work on are made, so that no trial has to.

use pagelab_experiment::external::home::{State, state};
use pagelab_experiment::external::{data, setup};
use pagelab_experiment::recipe::{Runs, Workload};
use pagelab_experiment::resolve::Resolved;
use pagelab_experiment::schedule::first_of_each;
use pagelab_host::capture::Stop;
use pagelab_model::run::Run;

use crate::cmd::guest::setup::Told;
use crate::out;

/// Why a workload cannot run here, without changing anything for it.
pub fn missing(workload: &Workload) -> Option<String> {
    match &workload.runs {
        Runs::External { manifest, .. } => match state(manifest) {
            State::Missing(why) => Some(why),
            State::Ready(_) | State::AtHand => None,
        },
        Runs::BuiltIn { .. } | Runs::Command { .. } => None,
    }
}

/// Makes all ready that have trials to come, and says for each workload why it is not, if so.
pub fn make(resolved: &Resolved, so_far: Option<&Run>, stop: &Stop) -> Vec<Option<String>> {
    let done = so_far.and_then(|run| run.experiment.as_ref()).map_or(&[][..], |of| &of.trials);
    let is_due = |workload: usize| {
        let slots = resolved.plan.schedule.iter().enumerate().filter(|(_, slot)| slot.workload == workload);
        slots.filter(|(at, _)| !done.iter().any(|trial| trial.slot == *at)).count()
    };
    let one = |(at, workload): (usize, &Workload)| {
        let due = is_due(at);
        let why = (due > 0).then(|| make_one(resolved, at, workload, stop)).flatten()?;
        out::complain(&format!("{}: {why}; its {due} trials are not begun", workload.name));
        Some(why)
    };
    resolved.recipe.workloads.iter().enumerate().map(one).collect()
}

fn make_one(resolved: &Resolved, at: usize, workload: &Workload, stop: &Stop) -> Option<String> {
    let Runs::External { manifest, .. } = &workload.runs else { return None };
    let mut told = Told { stop: stop.clone(), tell: true };
    let home = match setup::at_hand(manifest, &mut told) {
        Ok(home) => home,
        Err(error) => return Some(error.to_string()),
    };
    for slot in first_of_each(&resolved.plan.schedule).into_iter().filter(|slot| slot.workload == at) {
        let options = manifest.options(false, &resolved.options(slot.workload, slot.variant));
        let made = options.map_err(|why| why.clone()).and_then(|options| {
            data::make(manifest, &home, &options, false, &mut told).map_err(|error| error.to_string())
        });
        if let Err(why) = made {
            return Some(why);
        }
    }
    None
}
