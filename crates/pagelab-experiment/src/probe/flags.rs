//! Whether huge pages that were asked for came.

use pagelab_model::experiment::{Flag, Measure, measures};

/// Bytes of folios larger than a base page and smaller than a PMD's, allocated on the whole machine
/// meanwhile.
pub(super) const SMALLER: &str = "huge.smaller.allocated";

/// Huge pages that the kernel gave to anybody on the machine meanwhile.
const GIVEN: [&str; 3] = ["vmstat.thp_fault_alloc", "vmstat.thp_collapse_alloc", "vmstat.thp_file_alloc"];
/// From the last look to the end of a trial, and the largest share of its time that is passed over in
/// silence.
const LAST_LOOK: &str = "probe.last_look";
const UNSEEN_MAX: f64 = 0.1;

/// What a variant that asks for huge pages may expect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// Share of the peak memory that is to be in huge pages at the least; 0 asks only for any at all.
    pub share_min: f64,
}

/// What to say of a trial whose variant asked for huge pages, if they did not come: a ratio of it is then no
/// effect of huge pages. Where nobody could see whether they came, that is said too, under another name.
pub fn huge_pages_missing(of: &[Measure], asked: Asked) -> Option<Flag> {
    let find = |name: &str| of.iter().find(|measure| measure.name == name).map(|measure| &measure.value);
    let known = |name: &str| find(name).and_then(|value| value.as_ref().ok()).copied();
    // Folios of other sizes than a PMD's are not told by process: of the machine's, none is a sure sign.
    let smaller = known(SMALLER).unwrap_or(0.0);
    let flag = |kind: &str, text: String| Some(Flag { kind: kind.to_owned(), text });
    let Some(huge) = known(measures::HUGE) else {
        let why = match find(measures::HUGE) {
            Some(Err(absence)) => absence.reason().to_owned(),
            _ => "they were not looked for".to_owned(),
        };
        // Without a look, no fault of the whole machine that got one is as good.
        if smaller == 0.0 && GIVEN.iter().all(|name| known(name) == Some(0.0)) {
            let text = "asked for huge pages, and the kernel gave no transparent one to anybody";
            return flag(Flag::NO_HUGE_PAGES, text.to_owned());
        }
        let text = format!("asked for huge pages; whether they came is not known: {why}");
        return flag(Flag::HUGE_PAGES_UNSEEN, text);
    };
    // What was not looked at may have been in huge pages.
    let left_out =
        ["huge.shmem", "huge.file"].iter().find_map(|name| Some((name, find(name)?.as_ref().err()?)));
    let missing = |text: String| match left_out {
        Some((name, absence)) => {
            flag(Flag::HUGE_PAGES_UNSEEN, format!("{text}; {name} is not known: {}", absence.reason()))
        }
        None => flag(Flag::NO_HUGE_PAGES, text),
    };
    if huge == 0.0 && smaller == 0.0 {
        let unseen = known(LAST_LOOK).zip(known(measures::WALL)).map_or(0.0, |(unseen, wall)| unseen / wall);
        if unseen > UNSEEN_MAX && GIVEN.iter().any(|name| known(name) > Some(0.0)) {
            let text = format!(
                "asked for huge pages and had none at its looks; whether those that the kernel gave \
                 meanwhile were its own is not known: its last {:.0} % were not looked at, and a \
                 longer trial tells",
                100.0 * unseen
            );
            return flag(Flag::HUGE_PAGES_UNSEEN, text);
        }
        return missing("asked for huge pages and had none at any look".to_owned());
    }
    let peak = known(measures::PEAK).filter(|&peak| peak > 0.0)?;
    let share = huge.max(smaller) / peak;
    if share >= asked.share_min {
        return None;
    }
    let (share, least) = (100.0 * share, 100.0 * asked.share_min);
    let text = format!(
        "asked for huge pages, and {share:.1} % of its peak memory was in them (less than {least:.0} %)"
    );
    missing(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::experiment::Better;
    use pagelab_model::run::Unit;
    use pagelab_model::{Absence, AbsentWhy, Reading};

    fn trial(values: &[(&str, Reading<f64>)]) -> Vec<Measure> {
        let measure = |(name, value): &(&str, Reading<f64>)| Measure {
            name: (*name).to_owned(),
            unit: Unit::from(Unit::BYTES),
            better: Better::Neither,
            value: value.clone(),
            source: String::new(),
        };
        values.iter().map(measure).collect()
    }

    #[test]
    fn huge_pages_that_did_not_come_are_flagged() {
        let unseen = || Err(Absence::new("looks", AbsentWhy::Undefined, "too short"));
        let (none, unknown) = (Some(Flag::NO_HUGE_PAGES), Some(Flag::HUGE_PAGES_UNSEEN));
        type Values = Vec<(&'static str, Reading<f64>)>;
        let cases: Vec<(Values, Option<&str>)> = vec![
            (vec![("huge.all", Ok(0.0)), ("memory.peak", Ok(100.0))], none),
            (
                vec![
                    ("huge.all", Ok(0.0)),
                    ("wall", Ok(9.0)),
                    ("probe.last_look", Ok(2.0)),
                    ("vmstat.thp_fault_alloc", Ok(8.0)),
                ],
                unknown,
            ),
            (
                vec![
                    ("huge.all", Ok(0.0)),
                    ("wall", Ok(90.0)),
                    ("probe.last_look", Ok(2.0)),
                    ("vmstat.thp_fault_alloc", Ok(8.0)),
                ],
                none,
            ),
            (vec![("huge.all", Ok(0.0)), ("wall", Ok(9.0)), ("probe.last_look", Ok(2.0))], none),
            (vec![("huge.all", Ok(60.0)), ("memory.peak", Ok(100.0))], None),
            (vec![("huge.all", Ok(4.0)), ("memory.peak", Ok(100.0))], none),
            (vec![("huge.all", Ok(4.0))], None),
            (vec![("huge.all", Ok(0.0)), (SMALLER, Ok(90.0)), ("memory.peak", Ok(100.0))], None),
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
            let flag = huge_pages_missing(&trial(&values), Asked { share_min: 0.05 });
            assert_eq!(flag.as_ref().map(|flag| flag.kind.as_str()), kind, "{values:?} {flag:?}");
        }
    }
}
