//! What a person and a program read of a procedure: its scores beside published ones, and a verdict.

use pagelab_contig::fragment::facts::Facts;
use pagelab_metrics::frag::kernel_decimal;
use pagelab_metrics::known_scores::{Check, PUBLISHED, Phase, Published, compare, scores};
use pagelab_report::json::VERSION;
use serde_json::{Value, json};

use super::Told;
use crate::cmd::fragment::random::{cells, say};
use crate::exit::Failure;

/// One pass against one published procedure.
struct Compared {
    published: &'static Published,
    checks: Vec<Check>,
}

impl Compared {
    fn is_same(&self) -> bool {
        self.checks.iter().all(|check| check.holds)
    }
}

/// Prints all passes. Returns whether each has the shape of a published one.
pub fn all(told: &[Told], facts: &Facts, as_json: bool) -> Result<bool, Failure> {
    let mut is_same = true;
    let mut lines = Vec::new();
    let mut documents = Vec::new();
    for told in told {
        let ours = curves(told, facts);
        let compared: Vec<Compared> = PUBLISHED
            .iter()
            .filter(|published| published.thp == told.pass.thp)
            .map(|published| Compared { published, checks: compare(&ours, published) })
            .collect();
        is_same &= compared.iter().any(Compared::is_same);
        lines.extend(pass(told, facts, &ours, &compared));
        documents.push(document(told, &ours, &compared));
    }
    if as_json {
        let document = json!({
            "pagelab_json": VERSION,
            "kind": "fragment_procedure",
            "node": facts.zone.node.0,
            "zone": facts.zone.zone,
            "passes": documents,
        });
        crate::cmd::fragment::show::print_json(&document)?;
    } else {
        say(lines.iter(), false)?;
    }
    Ok(is_same)
}

/// F_u of our largest zone, by phase.
fn curves(told: &Told, facts: &Facts) -> [Vec<u16>; 3] {
    Phase::ALL.map(|phase| {
        let free = told.pass.scores.iter().find(|(of, _)| *of == phase);
        free.and_then(|(_, free)| free.zone(&facts.zone)).map(scores).unwrap_or_default()
    })
}

fn pass(told: &Told, facts: &Facts, ours: &[Vec<u16>; 3], compared: &[Compared]) -> Vec<String> {
    let mut lines = vec![verdict(told, compared)];
    lines.extend(told.lines.iter().map(|line| format!("  {line}")));
    let head: String = (0..ours[0].len()).map(|order| format!("{order:>6}")).collect();
    lines.push(format!("  F_u by order          {head}"));
    for (phase, curve) in Phase::ALL.into_iter().zip(ours) {
        lines.push(format!("  {:<16}here  {}", phase.name(), cells(curve)));
        for compared in compared {
            let their = &compared.published.permille[phase as usize];
            lines.push(format!("  {:<16}{:<6}{}", "", compared.published.who, cells(their)));
        }
    }
    // For whoever takes one number of each phase, as the recipe fragment-compact does.
    let unit = facts.unit;
    if let [Some(first), Some(second), Some(third)] = [0, 1, 2].map(|at| ours[at].get(unit.index())) {
        let share = |permille: &u16| kernel_decimal(i64::from(*permille));
        lines.push(format!(
            "  F_u({}) is {} compacted, {} fragmented, {} compacted again",
            unit.0,
            share(first),
            share(second),
            share(third)
        ));
    }
    let zone = format!("node {}, zone {}", facts.zone.node.0, facts.zone.zone);
    lines.push(format!("  here: {zone}; golden and report: zone Normal of 62.8 GiB, published"));
    for compared in compared {
        lines.push(format!("  shape beside {} (here and there):", compared.published.who));
        for check in &compared.checks {
            let answer = if check.holds { "yes" } else { "no " };
            let numbers = match check.numbers.as_str() {
                "" => String::new(),
                numbers => format!(": {numbers}"),
            };
            lines.push(format!("    {answer} {}{numbers}", check.what));
        }
    }
    lines.push(String::new());
    lines
}

fn verdict(told: &Told, compared: &[Compared]) -> String {
    let with = if told.pass.thp { "with huge pages" } else { "without huge pages" };
    let same = compared.iter().filter(|compared| compared.is_same());
    let same: Vec<&str> = same.map(|compared| compared.published.who).collect();
    if !same.is_empty() {
        return format!("{with}: the same shape as {}", same.join(" and "));
    }
    let one = |compared: &Compared| {
        let failed = compared.checks.iter().filter(|check| !check.holds).count();
        format!("{} in {failed} of {}", compared.published.who, compared.checks.len())
    };
    format!("{with}: differs from {}", compared.iter().map(one).collect::<Vec<_>>().join(", from "))
}

fn document(told: &Told, ours: &[Vec<u16>; 3], compared: &[Compared]) -> Value {
    let phases = |curves: &dyn Fn(usize) -> Value| -> Value {
        let name = |phase: Phase| phase.name().replace(' ', "_");
        Value::Object(Phase::ALL.map(|phase| (name(phase), curves(phase as usize))).into_iter().collect())
    };
    let check = |check: &Check| json!({ "what": check.what, "holds": check.holds, "numbers": check.numbers });
    let beside = |compared: &Compared| {
        json!({
            "who": compared.published.who,
            "unusable_permille": phases(&|phase| json!(compared.published.permille[phase])),
            "checks": compared.checks.iter().map(check).collect::<Value>(),
            "same_shape": compared.is_same(),
        })
    };
    json!({
        "thp": told.pass.thp,
        "fragmenter": told.lines,
        "unusable_permille": phases(&|phase| json!(ours[phase])),
        "published": compared.iter().map(beside).collect::<Value>(),
    })
}
