//! `pagelab fragment random`: fills memory and releases random single pages.

use std::ops::RangeInclusive;

use pagelab_command::exit::{Exit, Failure, FailureKind, usage_error};
use pagelab_command::output;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_contig::fragment::inputs::FragmentInputs;
use pagelab_contig::random_walk::{self, FillOrder, RandomWalkPlan, WalkOptions};
use pagelab_contig::readback::{self, UnsplitThps};
use pagelab_contig::reserve::Reserve;
use pagelab_contig::unmovable::PollutionRequest;
use pagelab_host::root::Root;
use pagelab_model::{Bytes, Snapshot};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::style::{format_argument, format_bytes, format_count};
use serde_json::{Value, json};

use super::bounded_allocation::{self, BoundedAllocation};
use super::phase_output::{index_table, phases_json, print_lines};
use crate::options::{RandomOptions, WalkSettings};
use crate::unmovable;

impl WalkSettings {
    /// The plan, with or without huge pages, and the reserve.
    pub fn resolve_plan(
        &self,
        facts: &FragmentInputs,
        thp: bool,
    ) -> Result<(RandomWalkPlan, Reserve), Failure> {
        let page = facts.page_size.bytes();
        let (size, chunk) = (self.size.to_bytes(facts.mem_total), self.chunk);
        if chunk.0 < page || !chunk.0.is_multiple_of(page) {
            let chunk = format_argument(chunk);
            return Err(usage_error(&format!("--chunk {chunk}: expected a multiple of {page} bytes")));
        }
        bounded_allocation::check_size(size, facts)?;
        let walk = WalkOptions {
            chunk_size: chunk,
            step_pages: parse_steps(&self.step)?,
            free_probability: self.probability,
        };
        let order = if self.fill_first { FillOrder::FillFirst } else { FillOrder::ChunkByChunk };
        let huge = facts.unit_size();
        facts.check_address_space(size.0.div_ceil(huge.0.max(1)))?;
        let plan = RandomWalkPlan {
            total_size: Bytes(size.0.max(page)),
            walk,
            fill_order: order,
            thp,
            pmd_size: huge,
            seed: self.seed,
        };
        Ok((plan, bounded_allocation::resolve_reserve(self.reserve, facts)))
    }
}

/// Returns the maximum memory that a plan holds, estimated in advance.
pub fn held_max(plan: &RandomWalkPlan, facts: &FragmentInputs, reserve: Reserve) -> Bytes {
    let room = reserve.headroom(facts.mem_available);
    plan.total_size.min(facts.cgroup_headroom.map_or(room, |group| room.min(group)))
}

fn parse_steps(text: &str) -> Result<RangeInclusive<u64>, Failure> {
    let range = text.split_once("..").and_then(|(least, most)| {
        let most = most.strip_prefix('=').unwrap_or(most);
        Some((least.parse::<u64>().ok()?, most.parse::<u64>().ok()?))
    });
    range.filter(|(least, most)| (1..=*most).contains(least)).map(|(least, most)| least..=most).ok_or_else(
        || usage_error(&format!("--step {text}: expected an inclusive range of pages, for example 1..63")),
    )
}

/// Fills memory, walks, holds and frees.
pub fn run(args: &RandomOptions, snapshot: &Snapshot) -> Result<u8, Failure> {
    let facts = FragmentInputs::from_snapshot(snapshot, None)?;
    let (plan, reserve) = args.options.resolve_plan(&facts, args.thp)?;
    check_thp_available(&facts, args.thp)?;
    let unmovable_request = args.held.unmovable.resolve_request(&facts)?;
    let most = held_max(&plan, &facts, reserve);
    if args.held.dry_run {
        return print_plan(args, &plan, &facts, reserve, unmovable_request.as_ref())
            .map(|()| Exit::Success as u8);
    }
    let transient =
        unmovable_request.as_ref().map_or(Bytes(0), |wanted| unmovable::transient_bytes(wanted, &facts));
    let mut taking = BoundedAllocation::begin(&facts, reserve, Bytes(most.0.saturating_add(transient.0)))?;
    taking.start_recording(args.held.output.as_ref(), plan.seed, snapshot)?;
    let mut free = vec![("before", taking.read_free_blocks()?)];
    let pollution = unmovable_request
        .as_ref()
        .map(|wanted| unmovable::allocate_unmovable_within(wanted, &facts, &mut taking));
    let held_pages = fill_and_walk(&plan, &facts, &mut taking)?;
    free.push(("held", taking.read_free_blocks()?));
    let whole = readback::count_unsplit_thps(
        &Root::live(),
        held_pages.filled_addresses(),
        facts.page_size,
        facts.unit_order,
    );
    let is_quiet = args.held.json || !args.held.command.is_empty();
    let lines = filled_text(&plan, &held_pages, &whole, &facts);
    lines.iter().for_each(|line| taking.record_event("random", line.trim()));
    let filled_document = filled_json(&held_pages, &whole);
    print_lines(lines.iter().chain(pollution.iter().flat_map(|(_, lines)| lines)), is_quiet)?;
    let mut held_pages = Some(held_pages);
    let code = taking.hold_memory(&args.held.command, &mut held_pages);
    drop(held_pages);
    let pollution_json = pollution.map(|(polluted, _)| {
        let value = (unmovable::pollution_json(&polluted), polluted.is_incomplete());
        drop(polluted);
        value
    });
    free.push(("after", taking.read_free_blocks()?));
    let given_back = taking.released;
    let is_clean = taking.finish(code.as_ref().is_ok_and(|&code| code == 0 || !args.held.command.is_empty()));
    if args.held.json {
        let mut document = json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "fragment_random",
            "plan": plan_json(&plan, reserve, most),
            "freed_for_others_bytes": given_back.0,
            "unmovable": pollution_json.as_ref().map(|(value, _)| value),
            "unusable_permille": phases_json(&free),
        });
        if let (Some(document), Value::Object(done)) = (document.as_object_mut(), filled_document) {
            document.extend(done);
        }
        output::print_json(&document)?;
    } else {
        print_lines(index_table(&free).iter(), is_quiet)?;
    }
    let is_short = given_back > Bytes(0) || pollution_json.is_some_and(|(_, is_short)| is_short);
    Ok(bounded_allocation::exit_code(code?, !args.held.command.is_empty(), is_clean && !is_short))
}

/// Returns an error if huge pages are requested but not available.
pub fn check_thp_available(facts: &FragmentInputs, is_asked: bool) -> Result<(), Failure> {
    match &facts.huge_page_obstacle {
        Some(no) if is_asked => {
            let failure = Failure::cannot(FailureKind::NotAvailable, "allocate huge pages", &no.reason);
            Err(failure.hint("use --no-thp"))
        }
        _ => Ok(()),
    }
}

/// Fills and walks memory according to the plan, within the available room.
pub fn fill_and_walk(
    plan: &RandomWalkPlan,
    facts: &FragmentInputs,
    allocation: &mut BoundedAllocation,
) -> Result<random_walk::FragmentedMemory, Failure> {
    let mut said = 0;
    let total = format_bytes(plan.total_size);
    let status = CommandStatus::start(format!("filling {total}"), StatusEnd::Unknown);
    random_walk::fragment(plan, facts.page_size, &mut |next, filled| {
        let tenth = filled.0.saturating_mul(10) / plan.total_size.0.max(1);
        if tenth > said {
            said = tenth;
            let text = format!("filled {} of {total}", format_bytes(filled));
            output::print_note(&text);
            status.update(&text, StatusEnd::Unknown);
        }
        bounded_allocation::check_cgroup_room(facts, Bytes(filled.0.saturating_add(next.0)))?;
        allocation.check_room(next)
    })
    .map_err(|error| Failure::cannot(FailureKind::Partial, "fragment memory", error))
}

fn filled_json(held_pages: &random_walk::FragmentedMemory, thps: &UnsplitThps) -> Value {
    json!({
        "filled_bytes": held_pages.filled.0,
        "chunks": held_pages.chunks_walked,
        "pages_freed": held_pages.freed_pages,
        "stopped": held_pages.stop_reason,
        "huge_pages_pmd_mapped": thps.pmd_mapped.as_ref().ok(),
        "huge_pages_unsplit": thps.unsplit_folios.as_ref().ok(),
    })
}

/// Formats the result as text.
pub fn filled_text(
    plan: &RandomWalkPlan,
    held_pages: &random_walk::FragmentedMemory,
    thps: &UnsplitThps,
    facts: &FragmentInputs,
) -> Vec<String> {
    let back = Bytes(held_pages.freed_pages.saturating_mul(facts.page_size.bytes()));
    let stopped = held_pages.stop_reason.as_ref().map(|why| format!(", stopped: {why}")).unwrap_or_default();
    let mut lines = vec![
        format!("filled {} of {}{stopped}", format_bytes(held_pages.filled), format_bytes(plan.total_size)),
        format!(
            "  {} chunks of {} walked, {} pages released ({}); seed {}",
            format_count(held_pages.chunks_walked.into()),
            format_bytes(plan.walk.chunk_size),
            format_count(held_pages.freed_pages.into()),
            format_bytes(back),
            plan.seed
        ),
    ];
    if plan.thp {
        let thps_present = format_count(u128::from(held_pages.filled.0 / plan.pmd_size.0.max(1)));
        let number = |reading: &pagelab_model::Reading<u64>| match reading {
            Ok(number) => format_count(u128::from(*number)),
            Err(absence) => format!("unknown ({})", absence.reason()),
        };
        lines.push(format!(
            "  huge pages: {} of {thps_present} unsplit, {} mapped by a PMD; a page released from an unsplit \
             huge page stays allocated",
            number(&thps.unsplit_folios),
            number(&thps.pmd_mapped)
        ));
    }
    lines
}

fn print_plan(
    args: &RandomOptions,
    plan: &RandomWalkPlan,
    facts: &FragmentInputs,
    reserve: Reserve,
    unmovable_request: Option<&PollutionRequest>,
) -> Result<(), Failure> {
    let most = held_max(plan, facts, reserve);
    if args.held.json {
        let document = json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "fragment_random_plan",
            "plan": plan_json(plan, reserve, most),
            "unmovable": unmovable_request.map(|wanted| unmovable::plan_json(wanted, facts)),
        });
        return output::print_json(&document);
    }
    let (least, last) = (plan.walk.step_pages.start(), plan.walk.step_pages.end());
    let lines = [
        format!(
            "would fill {} in chunks of {}",
            format_bytes(plan.total_size),
            format_bytes(plan.walk.chunk_size)
        ),
        format!(
            "  in each chunk, steps of {least} to {last} pages; after each step, a page is released with \
             probability {}",
            plan.walk.free_probability
        ),
        format!(
            "  {} is available, {} stays in reserve: at most {} is filled",
            format_bytes(facts.mem_available),
            format_bytes(reserve.0),
            format_bytes(most)
        ),
        format!("  huge pages are {}; seed {}", if plan.thp { "requested" } else { "disabled" }, plan.seed),
    ];
    let unmovable = unmovable_request.map(|wanted| unmovable::plan_lines(wanted, facts)).unwrap_or_default();
    print_lines(lines.iter().chain(&unmovable), false)
}

fn plan_json(plan: &RandomWalkPlan, reserve: Reserve, held_max: Bytes) -> Value {
    json!({
        "size_bytes": plan.total_size.0,
        "at_most_bytes": held_max.0,
        "reserve_bytes": reserve.0.0,
        "chunk_bytes": plan.walk.chunk_size.0,
        "step_pages": [plan.walk.step_pages.start(), plan.walk.step_pages.end()],
        "probability": plan.walk.free_probability,
        "fill_first": plan.fill_order == FillOrder::FillFirst,
        "thp": plan.thp,
        "seed": plan.seed,
    })
}

#[cfg(test)]
mod tests {
    use crate::phase_output::format_permille_columns;

    use super::*;

    #[test]
    fn steps_are_read_and_refused() {
        for (text, range) in [
            ("1..63", Some(1..=63)),
            ("5..=5", Some(5..=5)),
            ("0..63", None),
            ("9..3", None),
            ("3", None),
            ("..", None),
            ("-1..3", None),
        ] {
            assert_eq!(parse_steps(text).ok(), range, "{text}");
        }
    }

    #[test]
    fn cells_are_as_the_kernel_prints_them() {
        assert_eq!(format_permille_columns(&[0, 7, 1000]), " 0.000 0.007 1.000");
    }
}
