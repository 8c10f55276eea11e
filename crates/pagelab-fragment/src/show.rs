//! Output of a run, as text and as JSON.

use pagelab_contig::fragment::control_loop::LoopEnd;
use pagelab_contig::fragment::fragmenter::KeptPageCheck;
use pagelab_contig::fragment::inputs::FillMethod;
use pagelab_contig::thp_request::ThpFaultCount;
use pagelab_contig::unmovable::PollutionRequest;
use pagelab_metrics::fragmentation_index::{format_share, unusable_index};
use pagelab_model::{BuddyInfo, Bytes, Order, Reading};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::style::{format_bytes, format_count, format_plural};
use serde_json::{Value, json};

use super::phase_output::{index_table, print_lines};
use super::plan::FragmentRunPlan;
use super::session::FragmentReport;
use crate::options::FragmentOptions;
use crate::unmovable;
use pagelab_command::exit::Failure;
use pagelab_command::output;

/// Names of the three phases in the tables.
const PHASES: [&str; 3] = ["before", "held", "after"];

/// Prints the plan of a dry run.
pub fn print_plan(
    plan: &FragmentRunPlan,
    unmovable_request: Option<&PollutionRequest>,
    as_json: bool,
) -> Result<(), Failure> {
    if as_json {
        let document = json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "fragment_plan",
            "plan": plan_json(plan),
            "unmovable": unmovable_request.map(|wanted| unmovable::plan_json(wanted, &plan.facts)),
            "notes": plan.notes,
        });
        return output::print_json(&document);
    }
    let unit = format_bytes(plan.facts.unit_size());
    let mut lines = vec![
        format!(
            "F_u({}) of {}: {} → {} (target {} ± {})",
            plan.goal.order.0,
            plan.zone_name(),
            format_share(plan.unit_plan.unusable_before),
            format_share(plan.unit_plan.unusable_after),
            plan.goal.target,
            plan.goal.tolerance
        ),
        format!(
            "  {} blocks of {unit} ({}) are allocated{}",
            format_count(plan.unit_plan.units.into()),
            format_bytes(plan.fragmented_bytes()),
            match plan.allocation_method {
                FillMethod::HugePages => " as huge pages, a few at a time, then split",
                FillMethod::BasePages => " as base pages, all at once",
            }
        ),
        format!(
            "  {} of each kept, {} in total; at most {} held at a time",
            format_pages(plan.layout.kept_pages_per_unit()),
            format_bytes(plan.kept_bytes()),
            format_bytes(plan.held_max())
        ),
        format!(
            "  {} is available, {} stays in reserve",
            format_bytes(plan.facts.mem_available),
            format_bytes(plan.reserve.0)
        ),
    ];
    if plan.facts.deferred_pages.0 > 0 {
        let deferred = format_bytes(plan.facts.deferred_pages.to_bytes(plan.facts.page_size));
        lines.push(format!("  {deferred} of free memory is not yet initialized; it is initialized first"));
    }
    lines.push(format!("  seed {}, decisions {:016x}", plan.seed, plan.digest()));
    lines.extend(plan.notes.iter().map(|note| format!("  note: {note}")));
    lines.extend(unmovable_request.iter().flat_map(|wanted| unmovable::plan_lines(wanted, &plan.facts)));
    print_lines(lines.iter(), false)
}

fn format_pages(number: u64) -> String {
    format_plural(number, "page")
}

/// Prints the result before the hold phase: on standard output, or on standard error if that is used by a
/// command or for JSON.
pub fn print_target_outcome(report: &FragmentReport, args: &FragmentOptions) -> Result<(), Failure> {
    let mut lines = vec![outcome_text(report)];
    lines.push(format!(
        "  {} blocks of {} fragmented by {} kept pages ({}), {:.2} s",
        format_count(report.held_units.into()),
        format_bytes(report.plan.facts.unit_size()),
        format_count(report.kept_pages.into()),
        format_bytes(Bytes(report.kept_pages.saturating_mul(report.plan.facts.page_size.bytes()))),
        report.fragment_ns as f64 / 1e9
    ));
    lines.push(match &report.verification {
        Some(Ok(verified)) => format!(
            "  verified by pagemap: {} of {} kept pages are present, {} in the zone; they break {} blocks, \
             {} planned",
            format_count(verified.present.into()),
            format_count(verified.checked.into()),
            format_count(verified.in_zone.into()),
            format_count(verified.blocks_held.into()),
            format_count(verified.blocks_planned.into())
        ),
        Some(Err(absence)) => {
            format!("  not verified by pagemap: {} ({})", absence.reason(), absence.source)
        }
        None => "  not verified by pagemap: the zone's frames are unknown".to_owned(),
    });
    lines.push(format!(
        "  first reading {}, second {}; {} of the zone's free memory changed in between",
        format_share(report.target_outcome.unusable_first),
        format_share(report.target_outcome.unusable_last),
        format_pages(report.target_outcome.moved_pages)
    ));
    print_lines(lines.iter(), args.held.json || !args.held.command.is_empty())
}

fn outcome_text(report: &FragmentReport) -> String {
    let (plan, reached) = (&report.plan, &report.target_outcome);
    let goal = format!("target {} ± {}", plan.goal.target, plan.goal.tolerance);
    let (before, now) = (format_share(plan.unit_plan.unusable_before), format_share(reached.unusable_last));
    let to = format!("F_u({}) of {}: {before} → {now}", plan.goal.order.0, plan.zone_name());
    if let Some(moved) = report.verified_placement() {
        let (blocks, planned) =
            (format_count(moved.blocks_held.into()), format_count(moved.blocks_planned.into()));
        let hint = if plan.pauses_compaction { "" } else { "\n  use --pause-compaction" };
        return format!(
            "{to} according to the free lists ({goal}), but not held: compaction migrated the kept pages, \
             which now break {blocks} of {planned} blocks{hint}"
        );
    }
    match &reached.end {
        LoopEnd::Met => format!("{to} ({goal})"),
        LoopEnd::ShortOfTarget(why) => format!("{to}, short of the {goal}: {why}"),
        LoopEnd::BackedOff(danger) => format!("{to}, and all memory was released: {danger}"),
        LoopEnd::Stopped => format!("{to}, interrupted; all memory was released"),
    }
}

/// Prints the table of the phases before, held and after.
pub fn print_phase_table(report: &FragmentReport, on_stdout: bool) -> Result<(), Failure> {
    let mut lines = Vec::new();
    if matches!(report.target_outcome.end, LoopEnd::BackedOff(_) | LoopEnd::Stopped) {
        lines.push(outcome_text(report));
    }
    if let Some(held) = &report.holding {
        let corrected = match held.corrections {
            0 => String::new(),
            times => format!(", corrected {times} times"),
        };
        lines.push(format!(
            "held for {:.1} s, F_u({}) from {} to {}{corrected}; released",
            held.held_ns as f64 / 1e9,
            report.plan.goal.order.0,
            format_share(held.index_range.0),
            format_share(held.index_range.1)
        ));
        if let Some(Ok(verified)) = report.verification_at_end.as_ref().filter(|_| held.danger.is_none()) {
            let moved = if verified.has_moved() { ": compaction migrated them" } else { "" };
            lines.push(format!(
                "  at the end the kept pages broke {} blocks, {} planned{moved}",
                format_count(verified.blocks_held.into()),
                format_count(verified.blocks_planned.into())
            ));
        }
    }
    lines.push(String::new());
    lines.extend(phase_table(report));
    lines.extend(allocation_text(report));
    lines.extend(leftover_text(report));
    print_lines(lines.iter(), !on_stdout)
}

/// Returns a sentence about memory that remains fragmented after the release.
fn leftover_text(report: &FragmentReport) -> Option<String> {
    let index = |free: &Option<BuddyInfo>| {
        Some(unusable_index(free.as_ref()?.zone(&report.plan.facts.zone)?, report.plan.goal.order))
    };
    let (before, after) = (index(&report.free[0])?, index(&report.free[2])?);
    (after > before + report.plan.goal.tolerance).then(|| {
        format!(
            "F_u({}) is {}, up from {} before: other programs have allocated pages in the broken blocks; \
             hint: pagelab compact",
            report.plan.goal.order.0,
            format_share(after),
            format_share(before)
        )
    })
}

fn phase_table(report: &FragmentReport) -> Vec<String> {
    if report.free[0].is_none() {
        return Vec::new();
    }
    let phases = PHASES.iter().zip(&report.free);
    let phases: Vec<_> = phases.filter_map(|(phase, free)| Some((*phase, free.clone()?))).collect();
    index_table(&phases)
}

fn allocation_text(report: &FragmentReport) -> Option<String> {
    let size = format_bytes(report.plan.facts.unit_size());
    let phase_line = |(moment, count): (&&str, &Option<Reading<ThpFaultCount>>)| -> Option<String> {
        Some(match count.as_ref()? {
            Ok(count) => {
                let more = if count.hit_limit { " (limited by the reserve)" } else { "" };
                format!("{moment} {}{more}", format_count(count.allocated.into()))
            }
            Err(absence) => format!("{moment} not measured: {}", absence.reason()),
        })
    };
    let phases: Vec<String> = PHASES.iter().zip(&report.thp_counts).filter_map(phase_line).collect();
    let text = || format!("allocatable huge pages of {size}: {}", phases.join(", "));
    (!phases.is_empty()).then(text)
}

/// Prints the report as JSON.
pub fn print_report_json(report: &FragmentReport) -> Result<(), Failure> {
    let reached = &report.target_outcome;
    let (ending, why) = match &reached.end {
        LoopEnd::Met if report.verified_placement().is_some() => {
            ("moved", Some("compaction migrated the kept pages".to_owned()))
        }
        LoopEnd::Met => ("met", None),
        LoopEnd::ShortOfTarget(why) => ("short", Some(why.clone())),
        LoopEnd::BackedOff(danger) => ("backed_off", Some(danger.to_string())),
        LoopEnd::Stopped => ("stopped", None),
    };
    let moments = PHASES.iter().zip(&report.free).zip(&report.thp_counts).map(|((moment, free), count)| {
        let count = count.as_ref().and_then(|count| count.as_ref().ok());
        json!({
            "moment": moment,
            "zones": free.as_ref().map(zones_json),
            "huge_pages_allocated": count.map(|count| count.allocated),
            "request_ended_at_reserve": count.map(|count| count.hit_limit),
        })
    });
    let document = json!({
        "pagelab_json": CONTRACT_VERSION,
        "kind": "fragment",
        "unmovable": report.unmovable,
        "plan": plan_json(&report.plan),
        "ending": ending,
        "ending_reason": why,
        "f_u_first_reading": reached.unusable_first,
        "f_u": reached.unusable_last,
        "moved_pages": reached.moved_pages,
        "elapsed_ns": report.fragment_ns,
        "units": report.held_units,
        "kept_pages": report.kept_pages,
        "verified": verification_json(report.verification.as_ref()),
        "verified_at_end": verification_json(report.verification_at_end.as_ref()),
        "verified_absent_reason": match &report.verification {
            Some(Ok(_)) => None,
            Some(Err(absence)) => Some(format!("{}: {}", absence.source, absence.reason())),
            None => Some("nothing was held, or the frames of the zone are unknown".to_owned()),
        },
        "cgroup_limit_bytes": report.limit.map(|limit| limit.0),
        "worst_stall_share": report.worst_stall,
        "held": report.holding.as_ref().map(|held| json!({
            "held_ns": held.held_ns,
            "f_u_min": held.index_range.0,
            "f_u_max": held.index_range.1,
            "corrections": held.corrections,
            "freed_early": held.danger.as_ref().map(ToString::to_string),
            "command_exit_code": held.command_code,
        })),
        "moments": moments.collect::<Vec<_>>(),
    });
    output::print_json(&document)
}

fn verification_json(verification: Option<&Reading<KeptPageCheck>>) -> Option<Value> {
    let verified = verification?.as_ref().ok()?;
    Some(json!({
        "kept_scanned": verified.checked,
        "kept_present": verified.present,
        "kept_in_zone": verified.in_zone,
        "blocks": verified.blocks_held,
        "blocks_planned": verified.blocks_planned,
    }))
}

fn plan_json(plan: &FragmentRunPlan) -> Value {
    let facts = &plan.facts;
    json!({
        "order": plan.goal.order.0,
        "target": plan.goal.target,
        "tolerance": plan.goal.tolerance,
        "node": facts.zone.node.0,
        "zone": facts.zone.zone,
        "f_u_before": plan.unit_plan.unusable_before,
        "f_u_predicted": plan.unit_plan.unusable_after,
        "free_blocks_predicted": plan.unit_plan.predicted_areas.counts(),
        "allocation_method": match plan.allocation_method {
            FillMethod::HugePages => "huge_pages",
            FillMethod::BasePages => "base_pages",
        },
        "allocation_method_reason": facts.huge_page_obstacle.as_ref().map(|no| no.reason.clone()),
        "unit_bytes": facts.unit_size().0,
        "units": plan.unit_plan.units,
        "size_bytes": plan.fragmented_bytes().0,
        "kept_pages_per_unit": plan.layout.kept_pages_per_unit(),
        "kept_bytes": plan.kept_bytes().0,
        "held_bytes_max": plan.held_max().0,
        "available_bytes": facts.mem_available.0,
        "reserve_bytes": plan.reserve.0.0,
        "deferred_pages": facts.deferred_pages.0,
        "seed": plan.seed,
        "digest": format!("{:016x}", plan.digest()),
    })
}

fn zones_json(free: &BuddyInfo) -> Value {
    let zone = |zone: &pagelab_model::ZoneFreeAreas| {
        let index = |order| unusable_index(&zone.areas, Order(order as u8));
        json!({
            "node": zone.key.node.0,
            "zone": zone.key.zone,
            "free_blocks": zone.areas.counts(),
            "f_u": (0..zone.areas.orders()).map(index).collect::<Vec<_>>(),
        })
    };
    Value::Array(free.zones.iter().map(zone).collect())
}
