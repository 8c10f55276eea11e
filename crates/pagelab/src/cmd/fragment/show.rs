//! What a person and a program read of it.

use std::io::Write;

use pagelab_contig::fragment::facts::Way;
use pagelab_contig::fragment::frames::Verified;
use pagelab_contig::fragment::reach::Ending;
use pagelab_contig::unmovable::Wanted;
use pagelab_metrics::frag::{share_text, unusable, unusable_text};
use pagelab_model::{BuddyInfo, Bytes, Order, Reading};
use pagelab_report::json::{self, VERSION};
use pagelab_report::style::{bytes, count};
use serde_json::{Value, json};

use super::act::Done;
use super::plan::Plan;
use super::{Args, unmovable};
use crate::exit::{Exit, Failure};
use crate::out;

/// The three moments, as the tables call them.
const MOMENTS: [&str; 3] = ["before", "held", "after"];

/// Prints the plan of a dry run.
pub fn plan(plan: &Plan, wanted: Option<&Wanted>, as_json: bool) -> Result<u8, Failure> {
    if as_json {
        let document = json!({
            "pagelab_json": VERSION,
            "kind": "fragment_plan",
            "plan": plan_json(plan),
            "unmovable": wanted.map(|wanted| unmovable::plan_json(wanted, &plan.facts)),
            "notes": plan.notes,
        });
        return print_json(&document).map(|()| Exit::Done as u8);
    }
    let mut out = out::stdout();
    writeln!(
        out,
        "F_u({}) of {}: {} → {} (target {} ± {})",
        plan.goal.order.0,
        plan.zone_name(),
        share_text(plan.planned.before),
        share_text(plan.planned.reached),
        plan.goal.target,
        plan.goal.tolerance
    )?;
    let unit = bytes(plan.facts.unit_bytes());
    writeln!(
        out,
        "  {} blocks of {unit} ({}) are taken{}",
        count(plan.planned.units.into()),
        bytes(plan.size()),
        match plan.way {
            Way::HugePages => " as huge pages, a few at a time, and split",
            Way::BasePages => " by base pages, all at once",
        }
    )?;
    writeln!(
        out,
        "  {} of each kept, {} in all; at most {} held at one moment",
        pages(plan.shape.kept_per_unit()),
        bytes(plan.kept()),
        bytes(plan.held_max())
    )?;
    writeln!(
        out,
        "  {} are available, {} stay in reserve",
        bytes(plan.facts.mem_available),
        bytes(plan.reserve.0)
    )?;
    if plan.facts.deferred.0 > 0 {
        let deferred = plan.facts.deferred.bytes(plan.facts.page_size);
        writeln!(out, "  {} of free memory were never used; they are initialised first", bytes(deferred))?;
    }
    writeln!(out, "  seed {}, decisions {:016x}", plan.seed, plan.digest())?;
    for note in &plan.notes {
        writeln!(out, "  note: {note}")?;
    }
    for line in wanted.map(|wanted| unmovable::plan_lines(wanted, &plan.facts)).unwrap_or_default() {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(Exit::Done as u8)
}

fn pages(number: u64) -> String {
    if number == 1 { "1 page".to_owned() } else { format!("{} pages", count(number.into())) }
}

/// Says what was reached, before it is held: on standard output, or where a command's own output goes there,
/// or JSON will, on standard error.
pub fn reached(done: &Done, args: &Args) -> Result<(), Failure> {
    let mut lines = vec![answer(done)];
    lines.push(format!(
        "  {} blocks of {} broken up by {} kept pages ({}), {:.2} s",
        count(done.units.into()),
        bytes(done.plan.facts.unit_bytes()),
        count(done.kept_pages.into()),
        bytes(Bytes(done.kept_pages.saturating_mul(done.plan.facts.page_size.bytes()))),
        done.took_ns as f64 / 1e9
    ));
    lines.push(match &done.verified {
        Some(Ok(verified)) => format!(
            "  verified by pagemap: {} of {} kept pages are there, {} in the zone; they spoil {} blocks, {} \
             planned",
            count(verified.present.into()),
            count(verified.looked_at.into()),
            count(verified.in_zone.into()),
            count(verified.blocks.into()),
            count(verified.planned.into())
        ),
        Some(Err(absence)) => {
            format!("  not verified by pagemap: {} ({})", absence.reason(), absence.source)
        }
        None => "  not verified by pagemap: the zone's frames are not known".to_owned(),
    });
    lines.push(format!(
        "  first reading {}, second {}; {} of the zone's free memory moved in between",
        share_text(done.reached.first_reading),
        share_text(done.reached.index),
        pages(done.reached.moved)
    ));
    say(&lines, args.json || !args.command.is_empty())
}

fn answer(done: &Done) -> String {
    let (plan, reached) = (&done.plan, &done.reached);
    let goal = format!("target {} ± {}", plan.goal.target, plan.goal.tolerance);
    let (before, now) = (share_text(plan.planned.before), share_text(reached.index));
    let to = format!("F_u({}) of {}: {before} → {now}", plan.goal.order.0, plan.zone_name());
    if let Some(moved) = done.moved() {
        let (blocks, planned) = (count(moved.blocks.into()), count(moved.planned.into()));
        let way_out = if plan.pauses_compaction { "" } else { "\n  use --pause-compaction" };
        return format!(
            "{to} by the free lists ({goal}), but not held there: compaction has moved the kept pages \
             together, they spoil {blocks} of {planned} blocks{way_out}"
        );
    }
    match &reached.ending {
        Ending::Met => format!("{to} ({goal})"),
        Ending::Short(why) => format!("{to}, short of the {goal}: {why}"),
        Ending::BackedOff(danger) => format!("{to}, and all was given back: {danger}"),
        Ending::Stopped => format!("{to}, stopped on the way, and all was given back"),
    }
}

/// The table of before, held and after.
pub fn after(done: &Done, on_stdout: bool) -> Result<(), Failure> {
    let mut lines = Vec::new();
    if matches!(done.reached.ending, Ending::BackedOff(_) | Ending::Stopped) {
        lines.push(answer(done));
    }
    if let Some(held) = &done.held {
        let corrected = match held.corrections {
            0 => String::new(),
            times => format!(", corrected {times} times"),
        };
        lines.push(format!(
            "held for {:.1} s, F_u({}) from {} to {} meanwhile{corrected}; given back",
            held.held_ns as f64 / 1e9,
            done.plan.goal.order.0,
            share_text(held.drift.0),
            share_text(held.drift.1)
        ));
        if let Some(Ok(verified)) = done.verified_end.as_ref().filter(|_| held.danger.is_none()) {
            let moved = if verified.is_moved() { ": compaction has moved them together" } else { "" };
            lines.push(format!(
                "  at the end the kept pages spoiled {} blocks, {} planned{moved}",
                count(verified.blocks.into()),
                count(verified.planned.into())
            ));
        }
    }
    lines.push(String::new());
    lines.extend(table(done));
    lines.extend(asked(done));
    lines.extend(left_behind(done));
    say(&lines, !on_stdout)
}

/// Memory that did not become whole again although all was given back.
fn left_behind(done: &Done) -> Option<String> {
    let index = |free: &Option<BuddyInfo>| {
        Some(unusable(free.as_ref()?.zone(&done.plan.facts.zone)?, done.plan.goal.order))
    };
    let (before, after) = (index(&done.free[0])?, index(&done.free[2])?);
    (after > before + done.plan.goal.tolerance).then(|| {
        format!(
            "F_u({}) is {} and was {} before: programs have put pages of their own into the \
             broken blocks meanwhile; pagelab compact, or in time",
            done.plan.goal.order.0,
            share_text(after),
            share_text(before)
        )
    })
}

fn table(done: &Done) -> Vec<String> {
    let Some(first) = &done.free[0] else { return Vec::new() };
    let orders = first.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(0);
    let head: String = (0..orders).map(|order| format!("{order:>6}")).collect();
    let mut lines = vec![format!("F_u by order        {head}")];
    for zone in &first.zones {
        for (moment, free) in MOMENTS.iter().zip(&done.free) {
            let Some(areas) = free.as_ref().and_then(|free| free.zone(&zone.key)) else { continue };
            let cells: String = (0..areas.orders())
                .map(|order| format!(" {}", unusable_text(areas, Order(order as u8))))
                .collect();
            let name = match *moment {
                "before" => format!("{} {}", zone.key.node.0, zone.key.zone),
                _ => String::new(),
            };
            lines.push(format!("{name:<13}{moment:<7}{cells}"));
        }
    }
    lines
}

fn asked(done: &Done) -> Vec<String> {
    let size = bytes(done.plan.facts.unit_bytes());
    let one = |(moment, asked): (&&str, &Option<_>)| -> Option<String> {
        let asked: &Reading<pagelab_contig::ask::Asked> = asked.as_ref()?;
        Some(match asked {
            Ok(asked) => {
                let more = if asked.at_bound { " (all that the reserve allows)" } else { "" };
                format!("{moment} {}{more}", count(asked.came.into()))
            }
            Err(absence) => format!("{moment} not asked: {}", absence.reason()),
        })
    };
    let told: Vec<String> = MOMENTS.iter().zip(&done.asked).filter_map(one).collect();
    if told.is_empty() {
        told
    } else {
        vec![format!("huge pages of {size} had by asking: {}", told.join(", "))]
    }
}

fn say(lines: &[String], on_stderr: bool) -> Result<(), Failure> {
    if on_stderr {
        lines.iter().for_each(|line| out::complain(line));
        return Ok(());
    }
    let mut out = out::stdout();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// Prints everything as JSON.
pub fn json(done: &Done) -> Result<(), Failure> {
    let reached = &done.reached;
    let (ending, why) = match &reached.ending {
        Ending::Met if done.moved().is_some() => {
            ("moved", Some("compaction has moved the kept pages together".to_owned()))
        }
        Ending::Met => ("met", None),
        Ending::Short(why) => ("short", Some(why.clone())),
        Ending::BackedOff(danger) => ("backed_off", Some(danger.to_string())),
        Ending::Stopped => ("stopped", None),
    };
    let moments = MOMENTS.iter().zip(&done.free).zip(&done.asked).map(|((moment, free), asked)| {
        let asked = asked.as_ref().and_then(|asked| asked.as_ref().ok());
        json!({
            "moment": moment,
            "zones": free.as_ref().map(zones_json),
            "huge_pages_by_asking": asked.map(|asked| asked.came),
            "asking_ended_at_reserve": asked.map(|asked| asked.at_bound),
        })
    });
    let document = json!({
        "pagelab_json": VERSION,
        "kind": "fragment",
        "unmovable": done.unmovable,
        "plan": plan_json(&done.plan),
        "ending": ending,
        "ending_why": why,
        "f_u_first_reading": reached.first_reading,
        "f_u": reached.index,
        "moved_pages": reached.moved,
        "took_ns": done.took_ns,
        "units": done.units,
        "kept_pages": done.kept_pages,
        "verified": verified_json(done.verified.as_ref()),
        "verified_at_end": verified_json(done.verified_end.as_ref()),
        "verified_absent_reason": match &done.verified {
            Some(Ok(_)) => None,
            Some(Err(absence)) => Some(format!("{}: {}", absence.source, absence.reason())),
            None => Some("nothing was held, or the zone's frames are not known".to_owned()),
        },
        "cgroup_limit_bytes": done.limit.map(|limit| limit.0),
        "worst_stall_share": done.worst_stall,
        "held": done.held.as_ref().map(|held| json!({
            "held_ns": held.held_ns,
            "f_u_min": held.drift.0,
            "f_u_max": held.drift.1,
            "corrections": held.corrections,
            "given_back_early": held.danger.as_ref().map(ToString::to_string),
            "command_exit_code": held.command_code,
        })),
        "moments": moments.collect::<Vec<_>>(),
    });
    print_json(&document)
}

fn verified_json(verified: Option<&Reading<Verified>>) -> Option<Value> {
    let verified = verified?.as_ref().ok()?;
    Some(json!({
        "kept_looked_at": verified.looked_at,
        "kept_present": verified.present,
        "kept_in_zone": verified.in_zone,
        "blocks": verified.blocks,
        "blocks_planned": verified.planned,
    }))
}

fn plan_json(plan: &Plan) -> Value {
    let facts = &plan.facts;
    json!({
        "order": plan.goal.order.0,
        "target": plan.goal.target,
        "tolerance": plan.goal.tolerance,
        "node": facts.zone.node.0,
        "zone": facts.zone.zone,
        "f_u_before": plan.planned.before,
        "f_u_predicted": plan.planned.reached,
        "free_blocks_predicted": plan.planned.predicted.counts(),
        "way": match plan.way { Way::HugePages => "huge_pages", Way::BasePages => "base_pages" },
        "way_reason": facts.no_huge_pages.as_ref().map(|no| no.why.clone()),
        "unit_bytes": facts.unit_bytes().0,
        "units": plan.planned.units,
        "size_bytes": plan.size().0,
        "kept_pages_per_unit": plan.shape.kept_per_unit(),
        "kept_bytes": plan.kept().0,
        "held_bytes_max": plan.held_max().0,
        "available_bytes": facts.mem_available.0,
        "reserve_bytes": plan.reserve.0.0,
        "deferred_pages": facts.deferred.0,
        "seed": plan.seed,
        "digest": format!("{:016x}", plan.digest()),
    })
}

fn zones_json(free: &BuddyInfo) -> Value {
    let zone = |zone: &pagelab_model::ZoneFree| {
        let index = |order| unusable(&zone.areas, Order(order as u8));
        json!({
            "node": zone.key.node.0,
            "zone": zone.key.zone,
            "free_blocks": zone.areas.counts(),
            "f_u": (0..zone.areas.orders()).map(index).collect::<Vec<_>>(),
        })
    };
    Value::Array(free.zones.iter().map(zone).collect())
}

pub fn print_json(document: &Value) -> Result<(), Failure> {
    let text = json::to_text(document)
        .map_err(|error| Failure::new(Exit::Bug, "cannot write JSON").because(error))?;
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
