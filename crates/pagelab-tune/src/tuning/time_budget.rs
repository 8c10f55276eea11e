//! Time of a tuning: what is measured within its budget, stated before the first trial.

use std::time::Duration;

use pagelab_metrics::effect::{LOOK_ROUNDS, PAIRS_MIN};
use pagelab_model::TlbProfile;
use pagelab_model::profile::ProfileSource;
use pagelab_report::quantity_format::format_duration;

/// A run under the modelled TLB takes about as many times as long as a trial.
const EXACT_SLOWDOWN: u32 = 26;

/// What a tuning measures, and how long it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurementPlan {
    /// Whether numbers of huge pages are measured too.
    pub measures_curve: bool,
    /// Whether misses are counted again with the plan.
    pub recounts: bool,
    /// Whether a round of warm-up comes first.
    pub warms_up: bool,
    /// Whether the program is measured without the huge pages that it requests itself.
    pub measures_never: bool,
    /// Whether all memory on huge pages is measured beside the plan.
    pub measures_all: bool,
    /// Expected time of a trial; `None`: unknown before the first one.
    pub trial_time: Option<Duration>,
    /// Time that is left for the trials; `None`: no limit.
    pub time_left: Option<Duration>,
}

/// The measurements that were requested, and the time for them.
#[derive(Clone, Copy, Debug)]
pub struct RequestedMeasurements {
    /// Arms of the curve; 0: it was not requested.
    pub curve_arms: u32,
    /// Whether misses would be counted again.
    pub recounts: bool,
    /// Whether the program requests huge pages itself, so that an arm without any tells more.
    pub requests_huge_pages: bool,
    /// Whether something is planned.
    pub is_planned: bool,
    /// Rounds at the most.
    pub rounds_max: u32,
    /// Expected time of a trial.
    pub trial_time: Option<Duration>,
    /// Time budget that is left.
    pub time_left: Duration,
}

/// Expected time of a trial, from the profile's own run.
pub fn expected_trial_time(profile: &TlbProfile) -> Option<Duration> {
    let time = Duration::from_nanos(profile.wall_ns);
    let time = if profile.source == ProfileSource::Exact { time / EXACT_SLOWDOWN } else { time };
    (!time.is_zero()).then_some(time)
}

/// Formats a time for people.
pub fn format_time(time: Duration) -> String {
    format_duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl MeasurementPlan {
    /// A plan without a limit: two rounds that decide nothing.
    pub fn quick() -> MeasurementPlan {
        MeasurementPlan {
            measures_curve: true,
            recounts: false,
            warms_up: false,
            measures_never: true,
            measures_all: true,
            trial_time: None,
            time_left: None,
        }
    }

    /// Chooses the measurements that leave time for the rounds of a verdict. What does not fit is left out in
    /// this order: curve, recount, warm-up, no huge pages at all, and all memory beside the plan. A plan
    /// never predicts more than all memory on huge pages, so a rule by predicted gain would always leave out
    /// the plan.
    pub fn fit(requested: &RequestedMeasurements) -> MeasurementPlan {
        let mut plan = MeasurementPlan {
            measures_curve: requested.curve_arms > 0,
            recounts: requested.recounts,
            warms_up: true,
            measures_never: requested.requests_huge_pages,
            measures_all: true,
            trial_time: requested.trial_time,
            time_left: Some(requested.time_left),
        };
        let fits = |plan: &MeasurementPlan| {
            plan.needed_time(requested).is_none_or(|needed| needed <= requested.time_left)
        };
        if !fits(&plan) {
            plan.measures_curve = false;
        }
        if !fits(&plan) {
            plan.recounts = false;
        }
        if !fits(&plan) {
            plan.warms_up = false;
        }
        if !fits(&plan) {
            plan.measures_never = false;
        }
        if !fits(&plan) && requested.is_planned {
            plan.measures_all = false;
        }
        plan
    }

    fn arm_count(&self, requested: &RequestedMeasurements) -> u32 {
        let curve = if self.measures_curve { requested.curve_arms } else { 0 };
        let never = u32::from(requested.requests_huge_pages && self.measures_never);
        1 + u32::from(requested.is_planned) + u32::from(self.measures_all) + never + curve
    }

    /// Trials for the fewest rounds of a verdict: the arms and a second one without huge pages.
    fn trials_min(&self, requested: &RequestedMeasurements) -> u32 {
        let arms = self.arm_count(requested);
        let rounds = requested.rounds_max.min(PAIRS_MIN as u32);
        let warm_up = if self.warms_up { arms } else { 0 };
        rounds.saturating_mul(arms + 1).saturating_add(warm_up)
    }

    fn needed_time(&self, requested: &RequestedMeasurements) -> Option<Duration> {
        let recount = if self.recounts { EXACT_SLOWDOWN } else { 0 };
        Some(requested.trial_time?.saturating_mul(self.trials_min(requested).saturating_add(recount)))
    }

    /// What is left out, and the budget with which nothing is, or with which a verdict is possible.
    pub fn describe_omissions(&self, requested: &RequestedMeasurements, spent: Duration) -> Vec<String> {
        let omitted: Vec<&str> = [
            (requested.curve_arms > 0 && !self.measures_curve, "the curve"),
            (requested.recounts && !self.recounts, "the recount of misses"),
            (!self.warms_up, "the warm-up round"),
            (requested.requests_huge_pages && !self.measures_never, "no huge pages at all"),
            (!self.measures_all, "all memory on huge pages"),
        ]
        .into_iter()
        .filter_map(|(is_omitted, name)| is_omitted.then_some(name))
        .collect();
        let budget = |plan: &MeasurementPlan| {
            let needed = plan.needed_time(requested).unwrap_or_default().saturating_add(spent);
            // Trials vary: a tenth more, in whole minutes.
            format!("{}m", (needed.as_secs() * 11 / 10).div_ceil(60))
        };
        let mut texts = Vec::new();
        if !omitted.is_empty() {
            let names = omitted.join(", ");
            let unlimited = RequestedMeasurements { time_left: Duration::MAX, ..*requested };
            texts.push(format!(
                "not measured for lack of time: {names}; to measure all: --time-budget {}",
                budget(&MeasurementPlan::fit(&unlimited))
            ));
        }
        let needed = self.needed_time(requested);
        if needed.is_some_and(|needed| needed > requested.time_left)
            && requested.rounds_max >= PAIRS_MIN as u32
        {
            texts.push(format!(
                "no verdict: {PAIRS_MIN} rounds do not fit into the time budget; a verdict needs \
                 --time-budget {}",
                budget(self)
            ));
        }
        texts
    }

    /// States the trials, the time of each, and the time of all.
    pub fn describe(&self, requested: &RequestedMeasurements) -> String {
        let arms = self.arm_count(requested);
        let warm_up = if self.warms_up { arms } else { 0 };
        let trials = requested.rounds_max.saturating_mul(arms + 1).saturating_add(warm_up);
        let (each, all) = match self.trial_time {
            Some(each) => (format!(" of about {}", format_time(each)), Some(each.saturating_mul(trials))),
            None => (String::new(), None),
        };
        let most = all.into_iter().chain(self.time_left).min();
        let most = most.map_or(String::new(), |most| format!(", {} in total", format_time(most)));
        let [first, second, third] = LOOK_ROUNDS;
        let looks = match first < requested.rounds_max as usize {
            true => format!("; ends after round {first}, {second} or {third} if every arm differs from none"),
            false => String::new(),
        };
        format!("at most {} rounds, {trials} runs{each}{most}{looks}", requested.rounds_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(trial_s: u64, left_s: u64) -> RequestedMeasurements {
        RequestedMeasurements {
            curve_arms: 9,
            recounts: true,
            requests_huge_pages: false,
            is_planned: true,
            rounds_max: 20,
            trial_time: Some(Duration::from_secs(trial_s)),
            time_left: Duration::from_secs(left_s),
        }
    }

    /// With a trial of one second the whole takes 6 × 13 + 12 + 26 s, without the curve 6 × 4 + 3 + 26.
    #[test]
    fn what_does_not_fit_is_left_out_in_the_stated_order() {
        for (left, expected) in [
            (116, [true, true, true, true]),
            (115, [false, true, true, true]),
            (53, [false, true, true, true]),
            (52, [false, false, true, true]),
            (27, [false, false, true, true]),
            (26, [false, false, false, true]),
            (24, [false, false, false, true]),
            (23, [false, false, false, false]),
            (18, [false, false, false, false]),
        ] {
            let of = requested(1, left);
            let plan = MeasurementPlan::fit(&of);
            let found = [plan.measures_curve, plan.recounts, plan.warms_up, plan.measures_all];
            assert_eq!(found, expected, "{left} s");
            let texts = plan.describe_omissions(&of, Duration::from_secs(10)).join("\n");
            assert_eq!(texts.contains("not measured"), expected != [true; 4], "{left} s: {texts}");
            assert!(!texts.contains("no verdict"), "{left} s: {texts}");
        }
    }

    #[test]
    fn the_budget_for_a_verdict_is_named_and_holds_one() {
        let of = requested(60, 600);
        let plan = MeasurementPlan::fit(&of);
        let texts = plan.describe_omissions(&of, Duration::from_secs(60));
        assert_eq!(texts.len(), 2, "{texts:?}");
        // 6 × 3 trials of a minute and the minute before them, and a tenth.
        assert!(texts[1].ends_with("a verdict needs --time-budget 21m"), "{texts:?}");
        let enough = requested(60, 21 * 60 - 60);
        let plan = MeasurementPlan::fit(&enough);
        assert!(!plan.describe_omissions(&enough, Duration::ZERO).join("").contains("no verdict"));
        // The time is unknown: everything is measured until the time ends.
        let unknown = RequestedMeasurements { trial_time: None, ..of };
        let plan = MeasurementPlan::fit(&unknown);
        assert!(plan.measures_curve && plan.describe_omissions(&unknown, Duration::ZERO).is_empty());
    }

    #[test]
    fn the_first_screen_states_trials_and_time() {
        let of = RequestedMeasurements { curve_arms: 0, ..requested(12, 840) };
        let text = MeasurementPlan::fit(&of).describe(&of);
        assert_eq!(
            text,
            "at most 20 rounds, 83 runs of about 12 s, 14 min 0 s in total; ends after round 6, 9 or 13 if \
             every arm differs from none"
        );
        let short = RequestedMeasurements { rounds_max: 6, ..of };
        let text = MeasurementPlan::fit(&short).describe(&short);
        assert_eq!(text, "at most 6 rounds, 27 runs of about 12 s, 5 min 24 s in total");
    }
}
