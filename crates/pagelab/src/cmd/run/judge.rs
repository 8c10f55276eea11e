//! `--judge`: whether the variants of an experiment are worse than the baseline, as an exit code.

use pagelab_experiment::recipe::{Recipe, WorkloadCommand};
use pagelab_metrics::effect::PAIRS_MIN;
use pagelab_metrics::judge::{JudgeError, JudgeVerdict, Judgement, check_plan, judge_experiment};
use pagelab_model::experiment::{BetterDirection, Plan, TrialRole, measures};
use pagelab_model::run::Run;
use pagelab_model::size;

use crate::exit::{Exit, Failure, FailureKind};
use crate::output;

/// Options of `pagelab run`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct JudgeArgs {
    /// Judge by this measure of JSON whether a variant is worse than the baseline. Exit code: 0 not worse, 1
    /// worse, 7 undecided. A resumed run is judged as it was begun, unless this is given again
    #[arg(long, value_name = "MEASURE", conflicts_with = "dry_run")]
    judge: Option<String>,

    /// Loss that --judge accepts [default: the recipe's, else 5%]
    #[arg(long, value_name = "SHARE", requires = "judge", value_parser = size::parse_nonzero_share)]
    loss: Option<f64>,
}

impl JudgeArgs {
    /// The request, if there is one.
    pub fn request(&self) -> Option<JudgeRequest> {
        self.judge.as_ref().map(|measure| JudgeRequest { measure: measure.clone(), loss: self.loss })
    }

    /// Refuses a judgement of simulated trials, before any runs.
    pub fn refuse_simulated(&self) -> Result<(), Failure> {
        self.judge.as_ref().map_or(Ok(()), |_| Err(refuse_simulated()))
    }
}

/// The failure of a judgement of simulated trials.
pub fn refuse_simulated() -> Failure {
    judge_failure(&JudgeError::Simulated)
}

/// A requested judgement.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeRequest {
    /// Name of the measure, after its phase and `/` if it is of one.
    pub measure: String,
    /// Accepted loss as a share; `None` for that of the experiment.
    pub loss: Option<f64>,
}

impl JudgeRequest {
    /// Checks what is known before the first trial.
    pub fn check(&self, plan: &Plan, recipe: &Recipe) -> Result<(), Failure> {
        check_plan(plan).map_err(|error| judge_failure(&error))?;
        check_declared(recipe, &self.measure).map_err(|error| judge_failure(&error))?;
        let counted = plan.schedule.iter().filter(|slot| slot.role == TrialRole::Measured);
        let rounds = counted.map(|slot| slot.round as usize + 1).max().unwrap_or(0);
        if rounds < PAIRS_MIN {
            output::warn(&format!(
                "note: --judge needs {PAIRS_MIN} rounds and this run has {rounds}: it will be undecided"
            ));
        }
        Ok(())
    }

    /// Judges the experiment of a run.
    pub fn judge(&self, run: &Run) -> Result<Judgement, Failure> {
        let Some(experiment) = run.experiment.as_deref() else {
            let text = format!("cannot judge {}: it contains no experiment", run.name);
            return Err(Failure::bad_input(text));
        };
        judge_experiment(experiment, &self.measure, self.loss).map_err(|error| judge_failure(&error))
    }
}

/// The measures are known before the run if all workloads are commands, which declare their figures; those of
/// the probes have a dot in their names, except a few.
fn check_declared(recipe: &Recipe, measure: &str) -> Result<(), JudgeError> {
    let mut known = vec![(measures::WALL, BetterDirection::Lower), (measures::CPU, BetterDirection::Lower)];
    for workload in &recipe.workloads {
        let WorkloadCommand::Command { metric, figures, .. } = &workload.command else { return Ok(()) };
        known.extend(metric.iter().map(|metric| (measures::MERIT, metric.better)));
        known.extend(figures.iter().map(|(name, metric)| (name.as_str(), metric.better)));
    }
    let is_of_probe = measure.contains('.') || measure == "page_tables";
    let mut found = known.iter().filter(|(name, _)| *name == measure).peekable();
    let (is_unknown, name) = (found.peek().is_none() && !is_of_probe, measure.to_owned());
    let is_undirected = found.any(|(_, better)| *better == BetterDirection::Neither);
    let mut judging: Vec<String> = Vec::new();
    for (name, better) in &known {
        if *better != BetterDirection::Neither && !judging.iter().any(|of| of == name) {
            judging.push((*name).to_owned());
        }
    }
    match (is_unknown, is_undirected) {
        (true, _) => Err(JudgeError::UnknownMeasure { name, known: judging }),
        (_, true) => Err(JudgeError::NoDirection { name, known: judging }),
        _ => Ok(()),
    }
}

fn judge_failure(error: &JudgeError) -> Failure {
    Failure::new(FailureKind::Usage, error.to_string())
}

/// The exit code of a judgement. Worse pairs decide also where other trials failed; pairs that are not worse
/// do not hide failed trials.
pub fn judgement_exit(judgement: &Judgement) -> Exit {
    match judgement.verdict() {
        JudgeVerdict::Worse => Exit::NegativeAnswer,
        JudgeVerdict::Undecided => Exit::Undecided,
        JudgeVerdict::NotWorse if judgement.failed_trials > 0 => Exit::Partial,
        JudgeVerdict::NotWorse => Exit::Success,
    }
}
