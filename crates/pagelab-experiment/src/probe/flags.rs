//! Flags of trials without the requested huge pages.

use pagelab_model::experiment::{Flag, Measure, measures};

/// Bytes of folios larger than a base page and smaller than a PMD, allocated on the entire machine during the
/// trial.
pub(super) const SMALLER_FOLIOS_MEASURE: &str = "huge.smaller.allocated";

/// Huge pages that the kernel allocated for any process of the machine during the trial.
const HUGE_PAGES_ALLOCATED: [&str; 3] =
    ["vmstat.thp_fault_alloc", "vmstat.thp_collapse_alloc", "vmstat.thp_file_alloc"];
/// Time from the last reading to the end of a trial, and its largest share that is ignored.
const LAST_SCAN_MEASURE: &str = "probe.last_scan";
const UNSEEN_SHARE_MAX: f64 = 0.1;

/// The flag of a trial whose variant requested huge pages that were not allocated: its ratio is then not an
/// effect of huge pages. If the allocation was not observable, the flag has another name. `share_min` is the
/// minimum share of the peak memory in huge pages; 0 expects only any huge page.
pub fn missing_huge_pages_flag(measures: &[Measure], share_min: f64) -> Option<Flag> {
    let find_value =
        |name: &str| measures.iter().find(|measure| measure.name == name).map(|measure| &measure.value);
    let known_value = |name: &str| find_value(name).and_then(|value| value.as_ref().ok()).copied();
    // Folios below the PMD size are not reported by process: if the machine allocated none, the trial has
    // none.
    let smaller_allocated = known_value(SMALLER_FOLIOS_MEASURE).unwrap_or(0.0);
    let flag = |kind: &str, text: String| Some(Flag { kind: kind.to_owned(), text });
    let Some(huge) = known_value(measures::HUGE_BYTES) else {
        let reason = match find_value(measures::HUGE_BYTES) {
            Some(Err(absence)) => absence.reason().to_owned(),
            _ => "they were not scanned".to_owned(),
        };
        // Without a reading, the fault counters of the entire machine are as good if they are all 0.
        if smaller_allocated == 0.0 && HUGE_PAGES_ALLOCATED.iter().all(|name| known_value(name) == Some(0.0))
        {
            let text = "huge pages were requested, but the kernel allocated no THP";
            return flag(Flag::NO_HUGE_PAGES, text.to_owned());
        }
        let text = format!("huge pages were requested, but whether any were allocated is unknown: {reason}");
        return flag(Flag::HUGE_PAGES_UNKNOWN, text);
    };
    // Types that were not read may have been in huge pages.
    let unmeasured_kinds =
        ["huge.shmem", "huge.file"].iter().find_map(|name| Some((name, find_value(name)?.as_ref().err()?)));
    let missing = |text: String| match unmeasured_kinds {
        Some((name, absence)) => {
            flag(Flag::HUGE_PAGES_UNKNOWN, format!("{text}; {name} is unknown: {}", absence.reason()))
        }
        None => flag(Flag::NO_HUGE_PAGES, text),
    };
    if huge == 0.0 && smaller_allocated == 0.0 {
        let unseen = known_value(LAST_SCAN_MEASURE)
            .zip(known_value(measures::WALL))
            .map_or(0.0, |(unseen, wall)| unseen / wall);
        if unseen > UNSEEN_SHARE_MAX && HUGE_PAGES_ALLOCATED.iter().any(|name| known_value(name) > Some(0.0))
        {
            let text = format!(
                "huge pages were requested, but no scan found any; the kernel allocated some, possibly to \
                another process: the last {:.0} % of the trial was not scanned; hint: use a longer trial",
                100.0 * unseen
            );
            return flag(Flag::HUGE_PAGES_UNKNOWN, text);
        }
        return missing("huge pages were requested, but no scan found any".to_owned());
    }
    let peak = known_value(measures::PEAK_MEMORY).filter(|&peak| peak > 0.0)?;
    let share = huge.max(smaller_allocated) / peak;
    if share >= share_min {
        return None;
    }
    let (share, least) = (100.0 * share, 100.0 * share_min);
    missing(format!(
        "huge pages were requested, but only {share:.1} % of the peak memory was on them (less than \
        {least:.0} %)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::experiment::BetterDirection;
    use pagelab_model::run::Unit;
    use pagelab_model::{Absence, AbsenceReason, Reading};

    fn trial(values: &[(&str, Reading<f64>)]) -> Vec<Measure> {
        let measure = |(name, value): &(&str, Reading<f64>)| {
            Measure::new(*name, Unit::BYTES, BetterDirection::Neither, value.clone(), "")
        };
        values.iter().map(measure).collect()
    }

    #[test]
    fn huge_pages_that_did_not_come_are_flagged() {
        let unseen = || Err(Absence::new("looks", AbsenceReason::Undefined, "too short"));
        let (none, unknown) = (Some(Flag::NO_HUGE_PAGES), Some(Flag::HUGE_PAGES_UNKNOWN));
        type Values = Vec<(&'static str, Reading<f64>)>;
        let cases: Vec<(Values, Option<&str>)> = vec![
            (vec![("huge.all", Ok(0.0)), ("memory.peak", Ok(100.0))], none),
            (
                vec![
                    ("huge.all", Ok(0.0)),
                    ("wall", Ok(9.0)),
                    ("probe.last_scan", Ok(2.0)),
                    ("vmstat.thp_fault_alloc", Ok(8.0)),
                ],
                unknown,
            ),
            (
                vec![
                    ("huge.all", Ok(0.0)),
                    ("wall", Ok(90.0)),
                    ("probe.last_scan", Ok(2.0)),
                    ("vmstat.thp_fault_alloc", Ok(8.0)),
                ],
                none,
            ),
            (vec![("huge.all", Ok(0.0)), ("wall", Ok(9.0)), ("probe.last_scan", Ok(2.0))], none),
            (vec![("huge.all", Ok(60.0)), ("memory.peak", Ok(100.0))], None),
            (vec![("huge.all", Ok(4.0)), ("memory.peak", Ok(100.0))], none),
            (vec![("huge.all", Ok(4.0))], None),
            (
                vec![("huge.all", Ok(0.0)), (SMALLER_FOLIOS_MEASURE, Ok(90.0)), ("memory.peak", Ok(100.0))],
                None,
            ),
            (vec![("huge.all", unseen())], unknown),
            (vec![("huge.all", Ok(0.0)), ("huge.shmem", Ok(0.0)), ("huge.file", Ok(0.0))], none),
            (vec![("huge.all", Ok(0.0)), ("huge.shmem", unseen()), ("huge.file", Ok(0.0))], unknown),
            (vec![("huge.all", Ok(50.0)), ("huge.shmem", unseen()), ("memory.peak", Ok(100.0))], None),
            (vec![], unknown),
            (vec![("huge.all", unseen()), ("vmstat.thp_fault_alloc", Ok(7.0))], unknown),
            (
                vec![
                    ("huge.all", unseen()),
                    ("vmstat.thp_fault_alloc", Ok(0.0)),
                    ("vmstat.thp_collapse_alloc", Ok(0.0)),
                    ("vmstat.thp_file_alloc", Ok(0.0)),
                ],
                none,
            ),
        ];
        for (values, kind) in cases {
            let flag = missing_huge_pages_flag(&trial(&values), 0.05);
            assert_eq!(flag.as_ref().map(|flag| flag.kind.as_str()), kind, "{values:?} {flag:?}");
        }
    }
}
