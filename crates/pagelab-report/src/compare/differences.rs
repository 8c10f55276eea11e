//! What differs between the machines, the settings and the plans of runs.

use pagelab_model::experiment::{Flag, Role};
use pagelab_model::run::Run;
use serde_json::Value;

use crate::json;

/// One thing that is not the same in all runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it is, as the JSON of a report names it: `machine.cpu.threads`.
    pub name: String,
    /// Its value in each run; `None` where the run does not say.
    pub values: Vec<Option<String>>,
}

/// What changes from one boot to the next without anybody setting it.
const PASSED_OVER: [&str; 6] = [
    "machine.direct_map",
    "machine.cgroup",
    "machine.cpu.flags",
    "machine.cpu.clock_khz",
    "machine.page_reporting.reported_bytes",
    "settings.swap",
];

/// Everything that differs, in the order in which a report has it.
pub fn differences(runs: &[Run]) -> Vec<Difference> {
    let known: Vec<Vec<(String, String)>> = runs.iter().map(facts).collect();
    let mut names: Vec<&String> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for (name, _) in known.iter().flatten() {
        if seen.insert(name) {
            names.push(name);
        }
    }
    let value = |facts: &Vec<(String, String)>, name: &String| {
        facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let found = names.into_iter().map(|name| Difference {
        values: known.iter().map(|facts| value(facts, name)).collect(),
        name: name.clone(),
    });
    found.filter(|of| of.values.windows(2).any(|pair| pair[0] != pair[1])).collect()
}

/// What a run says of its machine, its settings and its plan, as names and values.
fn facts(run: &Run) -> Vec<(String, String)> {
    let document = Value::from(json::run::run_object(run));
    let mut facts = Vec::new();
    for part in ["machine", "settings"] {
        flatten(part, &document[part], &mut facts);
    }
    facts.push(("tool_version".to_owned(), run.manifest.tool_version.clone()));
    if let Some(experiment) = &run.experiment {
        let plan = &experiment.plan;
        let counted = plan.schedule.iter().filter(|slot| slot.role == Role::Measured);
        let rounds: std::collections::BTreeSet<u32> = counted.map(|slot| slot.round).collect();
        facts.push(("plan.place".to_owned(), plan.place.clone()));
        facts.push(("plan.rounds".to_owned(), rounds.len().to_string()));
        facts.push(("plan.seed".to_owned(), plan.seed.to_string()));
        let is_loud = |kind: &str| kind == Flag::NOT_QUIET;
        let loud = experiment.trials.iter().filter(|of| of.flags.iter().any(|flag| is_loud(&flag.kind)));
        facts.push(("trials not quiet".to_owned(), loud.count().to_string()));
    }
    facts
}

/// What an item of a list is called: a cache by its level and kind, since older files have no caches of
/// instructions.
fn label(item: &Value) -> Option<String> {
    Some(format!("{} {}", item["level"].as_u64()?, item["kind"].as_str()?))
}

fn flatten(name: &str, value: &Value, facts: &mut Vec<(String, String)>) {
    if PASSED_OVER.contains(&name) || name.ends_with("_absent_reason") {
        return;
    }
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, facts));
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (at, item) in items.iter().enumerate() {
                flatten(&format!("{name}[{}]", label(item).unwrap_or_else(|| at.to_string())), item, facts);
            }
        }
        Value::Null => {}
        Value::String(text) => facts.push((name.to_owned(), text.clone())),
        other => facts.push((name.to_owned(), other.to_string())),
    }
}
