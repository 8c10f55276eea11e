//! Maps of physical memory: of this machine, a saved tree or a recording, as pictures, as text and as
//! differences; the physical memory of one process; and free blocks ([`free_blocks`]).

pub mod buddyinfo_check;
mod draw;
pub mod free_blocks;
mod moment;
pub mod plan;
pub mod process;

use pagelab_command::exit::{Exit, Failure, FailureKind, Outcome};
use pagelab_command::output;
use pagelab_report::json;
use pagelab_report::map::MapReport;
use pagelab_report::map::difference::DifferenceReport;
use pagelab_report::memory_picture::difference::MapDifference;
use pagelab_report::memory_picture::drawing::Drawing;
use serde_json::Value;

use draw::Picture;
use moment::LoadedMap;
use plan::MapPlan;

/// Draws a map, or prints it.
pub fn print_map(plan: &MapPlan, taken: &LoadedMap) -> Outcome {
    let report = MapReport {
        source: taken.source.clone(),
        map: &taken.map,
        scheme: plan.scheme,
        notes: taken.notes.clone(),
    };
    let title = format!("Physical memory of {}", taken.source.name);
    let subtitle = [report.format_headline(), report.describe_source()];
    let legend = report.legend_amounts();
    let picture = Picture {
        plan,
        title: &title,
        subtitle: &subtitle,
        legend: &legend,
        facts: draw::map_facts(&title, &taken.source, &taken.map),
        layout: &taken.map.layout,
        draw: &|pixel| Drawing::from_map(&taken.map, plan.scheme, pixel),
    };
    picture.show(
        |picture, style, colours| report.to_text(picture, style, colours),
        |written| json::map::map_document(&report, written),
    )
}

/// Draws what changed between two maps, or prints it.
pub fn print_difference(plan: &MapPlan, before: &LoadedMap, after: &LoadedMap) -> Outcome {
    let difference = MapDifference::compare_maps(&before.map, &after.map).map_err(|why| {
        let (a, b) = (&before.source.name, &after.source.name);
        Failure::cannot(FailureKind::BadInput, format_args!("compare {a} with {b}"), why)
            .hint("compare two maps of the same machine")
    })?;
    let mut notes = [before.notes.clone(), after.notes.clone()].concat();
    if let (Some(a), Some(b)) = (&before.source.host, &after.source.host)
        && a != b
    {
        notes.push(format!("the maps are from different machines: {a} and {b}"));
    }
    let report = DifferenceReport {
        before: before.source.clone(),
        after: after.source.clone(),
        difference: &difference,
        notes,
    };
    let title = format!("Physical memory: from {} to {}", before.source.name, after.source.name);
    let when = format!(
        "{} {} to {} {}",
        before.source.name,
        before.source.taken_text(),
        after.source.name,
        after.source.taken_text()
    );
    let subtitle = [report.format_headline(), when];
    let legend: Vec<(usize, u64)> =
        difference.count_by_change().into_iter().enumerate().filter(|(_, pages)| *pages > 0).collect();
    let picture = Picture {
        plan,
        title: &title,
        subtitle: &subtitle,
        legend: &legend,
        facts: draw::map_facts(&title, &after.source, &after.map),
        layout: &difference.layout,
        draw: &|pixel| difference.to_drawing(pixel),
    };
    picture.show(
        |picture, style, colours| report.to_text(picture, style, colours),
        |written| json::map::difference_document(&report, written),
    )
}

fn print_json(document: &Value) -> Outcome {
    output::print_json(document).map(|()| Exit::Success)
}

fn print(text: &str) -> Outcome {
    output::print(text).map(|()| Exit::Success)
}
