//! Output of every mode: lines, JSON, and F_u of each zone by order and phase.

use pagelab_metrics::fragmentation_index::format_kernel_decimal;
use pagelab_metrics::published_scores::unusable_permille_by_order;
use pagelab_model::BuddyInfo;
use serde_json::{Value, json};

use pagelab_command::exit::Failure;
use pagelab_command::output;

/// Converts F_u of each zone in each phase to JSON.
pub fn phases_json(free: &[(&str, BuddyInfo)]) -> Value {
    free.iter().map(|(when, free)| zones_json(when, free)).collect()
}

fn zones_json(phase: &str, free: &BuddyInfo) -> Value {
    let zone = |zone: &pagelab_model::ZoneFreeAreas| {
        let permille = unusable_permille_by_order(&zone.areas);
        json!({ "node": zone.key.node.0, "zone": zone.key.zone, "permille": permille })
    };
    json!({ "phase": phase, "zones": free.zones.iter().map(zone).collect::<Value>() })
}

/// Formats F_u of each zone by order, in each phase.
pub fn index_table(free: &[(&str, BuddyInfo)]) -> Vec<String> {
    let Some((_, first)) = free.first() else { return Vec::new() };
    let orders = first.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(0);
    let head: String = (0..orders).map(|order| format!("{order:>6}")).collect();
    let mut lines = vec![format!("F_u by order        {head}")];
    for zone in &first.zones {
        for (number, (when, free)) in free.iter().enumerate() {
            let Some(areas) = free.zone(&zone.key) else { continue };
            let name =
                if number == 0 { format!("{} {}", zone.key.node.0, zone.key.zone) } else { String::new() };
            let cells = format_permille_columns(&unusable_permille_by_order(areas));
            lines.push(format!("{name:<13}{when:<7}{cells}"));
        }
    }
    lines
}

/// Formats thousandths as decimals in columns of six.
pub fn format_permille_columns(permille: &[u16]) -> String {
    permille.iter().map(|&value| format!(" {}", format_kernel_decimal(i64::from(value)))).collect()
}

/// Prints lines, on standard error if the command or JSON uses standard output.
pub fn print_lines<'a>(lines: impl Iterator<Item = &'a String>, on_stderr: bool) -> Result<(), Failure> {
    if on_stderr {
        lines.for_each(|line| output::warn(line));
        return Ok(());
    }
    output::print(&lines.map(|line| format!("{line}\n")).collect::<String>())
}
