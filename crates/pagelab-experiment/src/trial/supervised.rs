//! A trial under the supervisor of `pagelab apply`: where its summary is written, and what that says of the
//! trial.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use pagelab_model::experiment::{Better, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy};
use serde_json::Value;

use crate::recipe;

/// A summary is some pages of text.
const BYTES_MAX: u64 = 16 << 20;
/// Refusals that a flag tells one by one.
const TOLD: usize = 3;

/// The folder that a supervisor writes its summary to, removed with it.
#[derive(Debug)]
pub(super) struct Supervised {
    folder: PathBuf,
}

/// What a supervisor said at the end; docs/json.md, kind `apply`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Summary {
    /// Regions that were to be on huge pages, and those that were when they were looked at.
    pub regions: Option<(u64, u64)>,
    /// Why others were not, the first few.
    pub refused: Vec<String>,
    /// Bytes on huge pages at the most, at its looks.
    pub huge_bytes: Option<u64>,
    /// Its own CPU time.
    pub cpu_ns: Option<u64>,
    /// For how long the program stood still for it.
    pub stopped_ns: Option<u64>,
}

impl Supervised {
    /// Makes the folder, and puts the way to it into `pagelab apply PLAN -- COMMAND`.
    pub fn tell(words: &mut Vec<String>) -> Result<Supervised, String> {
        let own = std::process::id();
        let paths = (0..1000).map(|number| std::env::temp_dir().join(format!("pagelab-{own}-{number}")));
        let make = |path: &PathBuf| DirBuilder::new().mode(0o700).create(path).is_ok();
        // A folder that is there already is never used: it may be somebody else's.
        let folder = paths.into_iter().find(make).ok_or_else(|| {
            let place = std::env::temp_dir();
            format!("no folder for the supervisor's summary can be made in {}", place.display())
        })?;
        let made = Supervised { folder };
        let at = words.iter().position(|word| word == "--").unwrap_or(words.len());
        words.splice(at..at, ["--summary".to_owned(), made.path().display().to_string()]);
        Ok(made)
    }

    fn path(&self) -> PathBuf {
        self.folder.join("summary.json")
    }

    /// What was written; an error says why nothing can be said.
    pub fn read(&self) -> Result<Summary, String> {
        read(&self.path())
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn read(path: &Path) -> Result<Summary, String> {
    let unread = |error: std::io::Error| format!("its supervisor left no summary: {error}");
    let length = std::fs::metadata(path).map_err(unread)?.len();
    if length > BYTES_MAX {
        return Err(format!("its supervisor's summary has {length} bytes, more than {BYTES_MAX}"));
    }
    parse(&std::fs::read_to_string(path).map_err(unread)?)
}

fn parse(text: &str) -> Result<Summary, String> {
    let json: Value = serde_json::from_str(text)
        .map_err(|error| format!("its supervisor's summary is no JSON: {error}"))?;
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64);
    let regions = json.get("regions").ok_or("its supervisor's summary names no regions")?;
    let refusal = |of: &Value| {
        let why = of.get("why").and_then(Value::as_str)?;
        Some(match of.get("mapping").and_then(Value::as_str) {
            Some(mapping) => format!("{mapping}: {why}"),
            None => why.to_owned(),
        })
    };
    let refused = regions.get("refused").and_then(Value::as_array).into_iter().flatten();
    Ok(Summary {
        regions: number(regions, "wanted").zip(number(regions, "got")),
        refused: refused.filter_map(refusal).take(TOLD).collect(),
        huge_bytes: number(&json, "huge_bytes"),
        cpu_ns: number(&json, "supervisor_cpu_ns"),
        stopped_ns: number(&json, "stopped_ns"),
    })
}

/// Puts what it said to the trial's measures and flags.
///
/// The CPU time of the supervisor stays in the trial's own: what it does for huge pages is their price, and
/// the arm without huge pages runs under the same supervisor. It is told besides.
pub(super) fn add(
    said: &Result<Summary, String>,
    plan: &recipe::Supervised,
    measures: &mut Vec<Measure>,
    flags: &mut Vec<Flag>,
) {
    let asks = *plan != recipe::Supervised::Nothing;
    let mut flag = |kind: &str, text: String| flags.push(Flag { kind: kind.to_owned(), text });
    let summary = match said {
        Ok(summary) => summary,
        Err(why) if asks => return flag(Flag::HUGE_PAGES_UNSEEN, why.clone()),
        Err(_) => return,
    };
    let mut put = |name: &str, unit: &str, better, value: Option<u64>| {
        let Some(value) = value else { return };
        let (name, unit) = (name.to_owned(), Unit::from(unit));
        let source = "the summary of pagelab apply".to_owned();
        measures.push(Measure { name, unit, better, value: Ok(value as f64), source });
    };
    put(measures::PLAN_CPU, Unit::NANOSECONDS, Better::Lower, summary.cpu_ns);
    put(measures::PLAN_STOPPED, Unit::NANOSECONDS, Better::Lower, summary.stopped_ns);
    if !asks {
        return;
    }
    put(measures::PLAN_WANTED, Unit::COUNT, Better::Neither, summary.regions.map(|(wanted, _)| wanted));
    put(measures::PLAN_GOT, Unit::COUNT, Better::Neither, summary.regions.map(|(_, got)| got));
    seen(summary.huge_bytes, measures);
    let why = summary.refused.join("; ");
    let because = if why.is_empty() { String::new() } else { format!(": {why}") };
    match summary.regions {
        Some((wanted, 0)) if wanted > 0 => {
            flag(Flag::NO_HUGE_PAGES, format!("none of {wanted} planned regions was on huge pages{because}"));
        }
        Some((wanted, got)) if got < wanted => {
            flag(Flag::PLAN_PARTLY, format!("{got} of {wanted} planned regions were on huge pages{because}"));
        }
        _ if summary.huge_bytes == Some(0) => {
            flag(Flag::NO_HUGE_PAGES, format!("nothing was on huge pages at any look{because}"));
        }
        _ => {}
    }
}

/// The program is waited for by its supervisor. Where that did not come to us when its front end had ended,
/// what `wait4` says is of the front end alone.
pub(super) fn not_waited_for(measures: &mut [Measure]) {
    for measure in measures.iter_mut().filter(|measure| measure.source.starts_with("rusage of wait4")) {
        let detail = "under a supervisor that waits for the program itself, and was not waited for";
        let absence = Absence::new("wait4", AbsentWhy::NotThere, detail);
        measure.value = Err(absence.or("a control group of its own (root) counts CPU time and faults"));
    }
}

/// The supervisor looks region by region, and sees what short trials have between two looks of a probe.
fn seen(bytes: Option<u64>, measures: &mut [Measure]) {
    let huge = measures.iter_mut().find(|measure| measure.name == measures::HUGE);
    if let (Some(bytes), Some(measure)) = (bytes.map(|bytes| bytes as f64), huge)
        && measure.value.as_ref().is_ok_and(|known| *known < bytes)
    {
        measure.value = Ok(bytes);
        measure.source.push_str("; the looks of pagelab apply");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = r#"{"kind":"apply","regions":{"wanted":8,"got":7,"refused":[{"mapping":
        "anonymous 1 GiB","offset":0,"why":"no huge page was free"}]},"huge_bytes":14680064,
        "supervisor_cpu_ns":3000000,"stopped_ns":200000,"exit":0,"notes":[]}"#;

    fn huge(bytes: f64) -> Measure {
        let (name, source) = (measures::HUGE.to_owned(), "smaps".to_owned());
        let (unit, better) = (Unit::from(Unit::BYTES), Better::Neither);
        Measure { name, unit, better, value: Ok(bytes), source }
    }

    fn said(text: &str, plan: &recipe::Supervised) -> (Vec<String>, Vec<(String, f64)>) {
        let (mut measures, mut flags) = (vec![huge(2097152.0)], Vec::new());
        add(&parse(text), plan, &mut measures, &mut flags);
        let flags = flags.into_iter().map(|flag| format!("{}: {}", flag.kind, flag.text)).collect();
        (flags, measures.into_iter().map(|of| (of.name, of.value.unwrap_or(f64::NAN))).collect())
    }

    #[test]
    fn a_plan_of_which_not_all_came_is_a_flag() {
        let plan = recipe::Supervised::Plan("plan.toml".to_owned());
        let (flags, measures) = said(SUMMARY, &plan);
        assert_eq!(
            flags,
            ["plan partly: 7 of 8 planned regions were on huge pages: anonymous 1 GiB: no huge page was \
             free"]
        );
        let value = |name: &str| measures.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        assert_eq!(value(measures::PLAN_GOT), Some(7.0));
        assert_eq!(value(measures::PLAN_CPU), Some(3e6));
        assert_eq!(value(measures::HUGE), Some(14680064.0), "the closer look counts");
        let none = SUMMARY.replace("\"got\":7", "\"got\":0");
        assert!(said(&none, &plan).0[0].starts_with("no huge pages: none of 8"));
        assert!(said(&SUMMARY.replace("\"got\":7", "\"got\":8"), &plan).0.is_empty());
        assert!(said("x", &plan).0[0].starts_with("huge pages unseen"));
    }

    #[test]
    fn what_wait4_says_is_not_of_the_program() {
        let mut measures = vec![huge(1.0), huge(5.0)];
        measures[1].source = "rusage of wait4: the first process".to_owned();
        not_waited_for(&mut measures);
        assert!(measures[1].value.is_err() && measures[0].value.is_ok());
    }

    #[test]
    fn whoever_asks_for_nothing_is_flagged_for_nothing() {
        let (flags, measures) =
            said(&SUMMARY.replace("\"wanted\":8", "\"wanted\":0"), &recipe::Supervised::Nothing);
        assert!(flags.is_empty(), "{flags:?}");
        assert!(!measures.iter().any(|(name, _)| name == measures::PLAN_WANTED));
        let nothing = SUMMARY.replace("\"wanted\":8,\"got\":7", "\"wanted\":null,\"got\":null");
        let all = said(&nothing.replace("14680064", "0"), &recipe::Supervised::All).0;
        assert!(all[0].starts_with("no huge pages: nothing"), "{all:?}");
    }

    #[test]
    fn the_way_to_the_summary_stands_before_the_command() {
        let mut words: Vec<String> =
            ["pagelab", "apply", "none", "--", "x", "--", "y"].map(str::to_owned).to_vec();
        let made = Supervised::tell(&mut words).expect("a folder");
        assert_eq!(words[3], "--summary");
        assert_eq!(words[5..], ["--", "x", "--", "y"].map(str::to_owned));
        assert!(made.read().is_err());
        std::fs::write(made.path(), SUMMARY).expect("written");
        assert_eq!(made.read().expect("read").regions, Some((8, 7)));
        let folder = made.folder.clone();
        drop(made);
        assert!(!folder.exists());
    }
}
