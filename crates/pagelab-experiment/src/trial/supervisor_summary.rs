//! Summary of the supervisor `pagelab apply` of a trial: its path, and its effect on the trial's measures.

use std::path::PathBuf;

use pagelab_model::experiment::{BetterDirection, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason};
use pagelab_workloads::private_dir::PrivateDir;
use serde_json::Value;

use crate::recipe;

/// A summary is some pages of text.
const SUMMARY_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of reasons in a flag.
const FAILURES_LISTED: usize = 3;

/// Directory of the supervisor's summary, removed with this value.
#[derive(Debug)]
pub(super) struct SummaryDir {
    dir: PrivateDir,
}

/// Summary of a supervisor; docs/json.md, kind `apply`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SupervisorSummary {
    /// Regions that were planned for huge pages, and those that were on huge pages when they were read.
    pub regions: Option<(u64, u64)>,
    /// Reasons why others were not, the first few.
    pub failure_reasons: Vec<String>,
    /// Maximum bytes on huge pages at its readings.
    pub huge_bytes: Option<u64>,
    /// Its own CPU time.
    pub cpu_ns: Option<u64>,
    /// Time for which the program was stopped for it.
    pub stopped_ns: Option<u64>,
}

/// Why a supervisor left no summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SummaryError {
    /// It reported this failure instead: the program was not started.
    Failed(String),
    /// It left nothing that can be read, for this reason.
    Missing(String),
}

impl SummaryDir {
    /// Creates the directory, and adds its path to `pagelab apply PLAN -- COMMAND`.
    pub fn create(command: &mut Vec<String>) -> Result<SummaryDir, String> {
        let dir = PrivateDir::in_temp_dir("summary").map_err(|failed| failed.to_string())?;
        let made = SummaryDir { dir };
        let separator_index = command.iter().position(|word| word == "--").unwrap_or(command.len());
        command.splice(
            separator_index..separator_index,
            ["--summary".to_owned(), made.summary_path().display().to_string()],
        );
        Ok(made)
    }

    fn summary_path(&self) -> PathBuf {
        self.dir.path().join("summary.json")
    }

    /// Reads the summary, or the failure in its place.
    pub fn read_summary(&self) -> Result<SupervisorSummary, SummaryError> {
        let path = self.summary_path();
        let read_error =
            |error: std::io::Error| SummaryError::Missing(format!("its supervisor left no summary: {error}"));
        let length = std::fs::metadata(&path).map_err(read_error)?.len();
        if length > SUMMARY_BYTES_MAX {
            let text = format!("its supervisor's summary has {length} bytes, more than {SUMMARY_BYTES_MAX}");
            return Err(SummaryError::Missing(text));
        }
        parse_summary(&std::fs::read_to_string(&path).map_err(read_error)?)
    }
}

fn parse_summary(text: &str) -> Result<SupervisorSummary, SummaryError> {
    let missing = |why: String| SummaryError::Missing(format!("its supervisor's summary {why}"));
    let json: Value = serde_json::from_str(text).map_err(|error| missing(format!("is not JSON: {error}")))?;
    if let Some(failure) = json.get("failure").filter(|failure| !failure.is_null()) {
        let message = failure.get("message").and_then(Value::as_str).unwrap_or("no reason given");
        return Err(SummaryError::Failed(message.to_owned()));
    }
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64);
    let regions = json.get("regions").ok_or_else(|| missing("has no regions".to_owned()))?;
    let failure_text = |of: &Value| {
        let why = of.get("reason").and_then(Value::as_str)?;
        Some(match of.get("mapping").and_then(Value::as_str) {
            Some(mapping) => format!("{mapping}: {why}"),
            None => why.to_owned(),
        })
    };
    let failure_reasons = regions.get("failed").and_then(Value::as_array).into_iter().flatten();
    Ok(SupervisorSummary {
        regions: number(regions, "requested").zip(number(regions, "allocated")),
        failure_reasons: failure_reasons.filter_map(failure_text).take(FAILURES_LISTED).collect(),
        huge_bytes: number(&json, "huge_bytes"),
        cpu_ns: number(&json, "supervisor_cpu_ns"),
        stopped_ns: number(&json, "stopped_ns"),
    })
}

/// Adds the summary to the trial's measures and flags.
///
/// The CPU time of the supervisor stays in the trial's own: it is part of the cost of huge pages, and the arm
/// without huge pages runs under the same supervisor. It is also reported separately.
pub(super) fn add_measures(
    summary_result: &Result<SupervisorSummary, SummaryError>,
    plan: &recipe::SupervisedPlan,
    measures: &mut Vec<Measure>,
    flags: &mut Vec<Flag>,
) {
    let asks = plan.requests_huge_pages();
    let mut flag = |kind: &str, text: String| flags.push(Flag { kind: kind.to_owned(), text });
    let summary = match summary_result {
        Ok(summary) => summary,
        Err(SummaryError::Failed(why) | SummaryError::Missing(why)) if asks => {
            return flag(Flag::HUGE_PAGES_UNKNOWN, why.clone());
        }
        Err(_) => return,
    };
    let mut push_measure = |name: &str, unit: &str, better, value: Option<u64>| {
        let source = "the summary of pagelab apply";
        measures.extend(value.map(|value| Measure::new(name, unit, better, Ok(value as f64), source)));
    };
    push_measure(measures::PLAN_CPU, Unit::NANOSECONDS, BetterDirection::Lower, summary.cpu_ns);
    push_measure(measures::PLAN_STOPPED, Unit::NANOSECONDS, BetterDirection::Lower, summary.stopped_ns);
    if !asks {
        return;
    }
    let (requested, allocated) = summary.regions.unzip();
    push_measure(measures::PLAN_REQUESTED, Unit::COUNT, BetterDirection::Neither, requested);
    push_measure(measures::PLAN_ALLOCATED, Unit::COUNT, BetterDirection::Neither, allocated);
    correct_huge_measure(summary.huge_bytes, measures);
    let reason = summary.failure_reasons.join("; ");
    let reason_text = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let (kind, text) = match summary.regions {
        Some((wanted, 0)) if wanted > 0 => {
            (Flag::NO_HUGE_PAGES, format!("none of the {wanted} planned regions was on huge pages"))
        }
        Some((wanted, got)) if got < wanted => {
            (Flag::PLAN_PARTLY, format!("{got} of {wanted} planned regions were on huge pages"))
        }
        _ if summary.huge_bytes == Some(0) => (Flag::NO_HUGE_PAGES, "no scan found a huge page".to_owned()),
        _ => return,
    };
    flag(kind, format!("{text}{reason_text}"));
}

/// The supervisor waits for the program. If the supervisor did not end before its front end, `wait4` reports
/// the front end alone.
pub(super) fn mark_not_waited_for(measures: &mut [Measure]) {
    for measure in measures.iter_mut().filter(|measure| measure.source.starts_with("rusage of wait4")) {
        let detail = "it covers only the front end, not the supervisor and the program";
        let absence = Absence::new("wait4", AbsenceReason::NotThere, detail);
        measure.value = Err(absence.with_hint("run as root: a cgroup counts CPU time and faults"));
    }
}

/// The supervisor reads region by region, and observes what short trials have between two readings of a
/// probe.
fn correct_huge_measure(bytes: Option<u64>, measures: &mut [Measure]) {
    let huge = measures.iter_mut().find(|measure| measure.name == measures::HUGE_BYTES);
    if let (Some(bytes), Some(measure)) = (bytes.map(|bytes| bytes as f64), huge)
        && measure.value.as_ref().is_ok_and(|known| *known < bytes)
    {
        measure.value = Ok(bytes);
        std::sync::Arc::make_mut(&mut measure.head).source.push_str("; scans by pagelab apply");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = r#"{"kind":"apply","regions":{"requested":8,"allocated":7,"failed":[{"mapping":
        "anonymous 1 GiB","offset":0,"reason":"no huge page was free"}]},"huge_bytes":14680064,
        "supervisor_cpu_ns":3000000,"stopped_ns":200000,"exit":0,"notes":[]}"#;

    fn huge(bytes: f64) -> Measure {
        let (name, source) = (measures::HUGE_BYTES.to_owned(), "smaps".to_owned());
        let (unit, better) = (Unit::from(Unit::BYTES), BetterDirection::Neither);
        Measure::new(name, unit, better, Ok(bytes), source)
    }

    fn summarize(text: &str, plan: &recipe::SupervisedPlan) -> (Vec<String>, Vec<(String, f64)>) {
        let (mut measures, mut flags) = (vec![huge(2097152.0)], Vec::new());
        add_measures(&parse_summary(text), plan, &mut measures, &mut flags);
        let flags = flags.into_iter().map(|flag| format!("{}: {}", flag.kind, flag.text)).collect();
        (flags, measures.into_iter().map(|of| (of.name.clone(), of.value.unwrap_or(f64::NAN))).collect())
    }

    #[test]
    fn a_plan_of_which_not_all_came_is_a_flag() {
        let plan = recipe::SupervisedPlan::Plan("plan.toml".to_owned());
        let (flags, measures) = summarize(SUMMARY, &plan);
        assert_eq!(
            flags,
            ["plan partly: 7 of 8 planned regions were on huge pages: anonymous 1 GiB: no huge page was \
             free"]
        );
        let value = |name: &str| measures.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        assert_eq!(value(measures::PLAN_ALLOCATED), Some(7.0));
        assert_eq!(value(measures::PLAN_CPU), Some(3e6));
        assert_eq!(value(measures::HUGE_BYTES), Some(14680064.0), "the closer look counts");
        let none = SUMMARY.replace("\"allocated\":7", "\"allocated\":0");
        assert!(summarize(&none, &plan).0[0].starts_with("no huge pages: none of the 8"));
        assert!(summarize(&SUMMARY.replace("\"allocated\":7", "\"allocated\":8"), &plan).0.is_empty());
        assert!(summarize("x", &plan).0[0].starts_with("huge pages unseen"));
    }

    #[test]
    fn a_failure_is_read_from_its_field_and_not_from_a_text() {
        let text = r#"{"kind":"apply","failure":{"code":3,"message":"the plan is for another build"}}"#;
        let failed = SummaryError::Failed("the plan is for another build".to_owned());
        assert_eq!(parse_summary(text), Err(failed));
        assert!(matches!(parse_summary(r#"{"kind":"apply"}"#), Err(SummaryError::Missing(_))));
    }

    #[test]
    fn what_wait4_says_is_not_of_the_program() {
        let mut measures = vec![huge(1.0), huge(5.0)];
        let head = std::sync::Arc::make_mut(&mut measures[1].head);
        head.source = "rusage of wait4: the first process".to_owned();
        mark_not_waited_for(&mut measures);
        assert!(measures[1].value.is_err() && measures[0].value.is_ok());
    }

    #[test]
    fn whoever_asks_for_nothing_is_flagged_for_nothing() {
        let (flags, measures) = summarize(
            &SUMMARY.replace("\"requested\":8", "\"requested\":0"),
            &recipe::SupervisedPlan::Nothing,
        );
        assert!(flags.is_empty(), "{flags:?}");
        assert!(!measures.iter().any(|(name, _)| name == measures::PLAN_REQUESTED));
        let nothing =
            SUMMARY.replace("\"requested\":8,\"allocated\":7", "\"requested\":null,\"allocated\":null");
        let all = summarize(&nothing.replace("14680064", "0"), &recipe::SupervisedPlan::All).0;
        assert!(all[0].starts_with("no huge pages: no scan found a huge page"), "{all:?}");
    }

    #[test]
    fn the_way_to_the_summary_stands_before_the_command() {
        let mut words: Vec<String> =
            ["pagelab", "apply", "none", "--", "x", "--", "y"].map(str::to_owned).to_vec();
        let made = SummaryDir::create(&mut words).expect("a folder");
        assert_eq!(words[3], "--summary");
        assert_eq!(words[5..], ["--", "x", "--", "y"].map(str::to_owned));
        assert!(made.read_summary().is_err());
        std::fs::write(made.summary_path(), SUMMARY).expect("written");
        assert_eq!(made.read_summary().expect("read").regions, Some((8, 7)));
        let folder = made.dir.path().to_owned();
        drop(made);
        assert!(!folder.exists());
    }
}
