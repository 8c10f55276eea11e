//! `--unmovable 10%`: pageblocks that compaction cannot empty while they are held.

use pagelab_command::exit::{Exit, Failure, usage_error};
use pagelab_command::output;
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_contig::fragment::inputs::FragmentInputs;
use pagelab_contig::polluted_blocks;
use pagelab_contig::reserve::Reserve;
use pagelab_contig::unmovable::{
    Flavour, PollutedMemory, PollutionRequest, SourceLimit, check_limits, pollute_blocks,
};
use pagelab_host::paths::KPAGEFLAGS;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsenceReason, Bytes, Snapshot};
use pagelab_report::json::CONTRACT_VERSION;
use pagelab_report::style::{format_bytes, format_count};
use serde_json::{Value, json};

use super::bounded_allocation::{self, BoundedAllocation};
use crate::options::{FragmentOptions, UnmovableOptions};
use crate::phase_output;

impl UnmovableOptions {
    /// Resolves the request for this machine; `None` without `--unmovable`.
    pub fn resolve_request(&self, facts: &FragmentInputs) -> Result<Option<PollutionRequest>, Failure> {
        let Some(share) = self.unmovable else { return Ok(None) };
        let mut flavours = Vec::new();
        for name in &self.flavour {
            let flavour = Flavour::from_name(name)
                .ok_or_else(|| Failure::unknown("flavour", name, &Flavour::ALL.map(Flavour::name)))?;
            if !flavours.contains(&flavour) {
                flavours.push(flavour);
            }
        }
        if flavours.is_empty() {
            flavours.push(Flavour::PageTables);
        }
        let blocks = facts.mem_total.0 as f64 / facts.unit_size().0.max(1) as f64 * share;
        let block_pages = facts.unit_order.to_pages().0;
        Ok(Some(PollutionRequest { blocks: blocks.round() as u64, block_pages, flavours }))
    }
}

/// Returns the memory that is temporarily allocated for it.
pub fn transient_bytes(request: &PollutionRequest, facts: &FragmentInputs) -> Bytes {
    // With a margin for message headers and pipe rings.
    let pages = request.blocks.saturating_mul(request.block_pages);
    Bytes(pages.saturating_mul(facts.page_size.bytes()).saturating_mul(3) / 2)
}

/// Allocates the unmovable pages, and returns them with a report. It calls `check_room` before each piece;
/// once `is_stopped`, it starts no census.
pub fn allocate_unmovable(
    request: &PollutionRequest,
    facts: &FragmentInputs,
    is_stopped: &dyn Fn() -> bool,
    check_room: &mut dyn FnMut(Bytes) -> Result<(), String>,
) -> (PollutedMemory, Vec<String>) {
    let root = Root::live();
    for limit in check_limits(&root, request, facts.page_size).iter().filter(|limit| limit.is_exceeded()) {
        output::warn(&format!("note: {limit}"));
    }
    output::print_note("allocating unmovable pages");
    let _status = CommandStatus::start("allocating unmovable pages", StatusEnd::Unknown);
    let mut check = || match is_stopped() {
        true => {
            Err(Absence::new(KPAGEFLAGS, AbsenceReason::NotRequested, "not counted: stopped by a signal"))
        }
        false => polluted_blocks::count_polluted_blocks(&root, facts.page_size, facts.unit_order),
    };
    let mut within = |next: Bytes, taken: Bytes| {
        bounded_allocation::check_cgroup_room(facts, Bytes(taken.0.saturating_add(next.0)))?;
        check_room(next)
    };
    let result = pollute_blocks(request, facts.page_size, &mut check, &mut within);
    let lines = pollution_lines(&result, request);
    (result, lines)
}

/// Allocates unmovable pages within a bounded allocation.
pub fn allocate_unmovable_within(
    request: &PollutionRequest,
    facts: &FragmentInputs,
    allocation: &mut BoundedAllocation,
) -> (PollutedMemory, Vec<String>) {
    let stop = allocation.stop.clone();
    let is_stopped = || stop.signal().is_some();
    let (polluted, lines) =
        allocate_unmovable(request, facts, &is_stopped, &mut |next| allocation.check_room(next));
    lines.iter().for_each(|line| allocation.record_event("unmovable", line.trim()));
    (polluted, lines)
}

fn pollution_lines(polluted: &PollutedMemory, request: &PollutionRequest) -> Vec<String> {
    let mut lines = vec![format!("unmovable pages for {} pageblocks", format_count(request.blocks.into()))];
    for part in &polluted.flavours {
        let stopped = part.stop_reason.as_ref().map(|why| format!("; stopped: {why}")).unwrap_or_default();
        lines.push(format!(
            "  {:<10} {} of {} pages kept{stopped}",
            part.flavour.name(),
            format_count(part.pages_kept.into()),
            format_count(part.pages_allocated.into())
        ));
    }
    match &polluted.block_counts {
        Err(absence) => {
            lines.push(format!("  polluted pageblocks unknown: {}: {}", absence.source, absence.reason()));
        }
        Ok([before, _, after]) => {
            let grown = after.blocks_by_class.iter().zip(&before.blocks_by_class);
            let classes: Vec<String> = grown
                .filter(|((_, after), (_, before))| after > before)
                .map(|((class, after), (_, before))| {
                    format!("{} +{}", class.name(), format_count((after - before).into()))
                })
                .collect();
            let classes = if classes.is_empty() { "none".to_owned() } else { classes.join(", ") };
            let sample =
                if before.is_complete && after.is_complete { "" } else { ", estimated from a sample" };
            let all = format_count(after.blocks_total.into());
            lines.push(format!("  of {all} pageblocks{sample}, more now hold: {classes}"));
            let newly_polluted = after.polluted.saturating_sub(before.polluted);
            lines.push(format!(
                "  polluted pageblocks, counted as in `pagelab can`: {} → {}, {} more",
                format_count(before.polluted.into()),
                format_count(after.polluted.into()),
                format_count(newly_polluted.into())
            ));
            if newly_polluted < request.blocks {
                lines.push(
                    "  fewer than requested: some pageblocks hold several of these pages, and some were \
                     already polluted"
                        .to_owned(),
                );
            }
            lines.push("  changes by other programs are included".to_owned());
        }
    }
    lines
}

/// Converts the result to JSON.
pub fn pollution_json(polluted: &PollutedMemory) -> Value {
    let part_json = |part: &pagelab_contig::unmovable::FlavourResult| {
        json!({
            "flavour": part.flavour.name(),
            "pages_allocated": part.pages_allocated,
            "pages_kept": part.pages_kept,
            "stopped": part.stop_reason,
        })
    };
    let census_json = |look: &polluted_blocks::PollutedBlocks| {
        let holding =
            look.blocks_by_class.iter().map(|(class, blocks)| (class.name().to_owned(), json!(blocks)));
        json!({ "blocks": look.blocks_total, "polluted": look.polluted, "is_whole": look.is_complete,
                "holding": Value::Object(holding.collect()) })
    };
    let [before, full, after] = match &polluted.block_counts {
        Ok(looks) => looks.each_ref().map(census_json),
        Err(_) => [Value::Null, Value::Null, Value::Null],
    };
    json!({ "parts": polluted.flavours.iter().map(part_json).collect::<Value>(),
            "before": before, "with_all_allocated": full, "held": after })
}

/// Options that mean nothing without a target.
fn target_only_option(args: &FragmentOptions) -> Option<&'static str> {
    let options = [
        (args.order.is_some(), "--order"),
        (args.size.is_some(), "--size"),
        (args.node.is_some(), "--node"),
        (args.keep_to_target, "--keep-to-target"),
        (args.pause_compaction, "--pause-compaction"),
        (args.allow_thp, "--allow-thp"),
        (args.measure_thp, "--measure-thp"),
    ];
    options.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
}

/// Runs with unmovable pages only: allocates, holds and frees them.
pub fn run_unmovable(args: &FragmentOptions, snapshot: &Snapshot) -> Result<u8, Failure> {
    if let Some(name) = target_only_option(args) {
        return Err(usage_error(&format!("{name} requires --target")));
    }
    let facts = FragmentInputs::from_snapshot(snapshot, None)?;
    let Some(wanted) = args.held.unmovable.resolve_request(&facts)? else { return Ok(Exit::Usage as u8) };
    let reserve = bounded_allocation::resolve_reserve(args.reserve, &facts);
    if args.held.dry_run {
        return print_plan(&wanted, &facts, reserve, args.held.json).map(|()| Exit::Success as u8);
    }
    let mut taking = BoundedAllocation::begin(&facts, reserve, transient_bytes(&wanted, &facts))?;
    taking.start_recording(args.held.output.as_ref(), args.seed, snapshot)?;
    let is_quiet = args.held.json || !args.held.command.is_empty();
    let mut free = vec![("before", taking.read_free_blocks()?)];
    let (polluted, lines) = allocate_unmovable_within(&wanted, &facts, &mut taking);
    phase_output::print_lines(lines.iter(), is_quiet)?;
    free.push(("held", taking.read_free_blocks()?));
    let code = taking.hold_memory(&args.held.command, &mut None);
    let pollution_document = pollution_json(&polluted);
    let is_short = polluted.is_incomplete();
    drop(polluted);
    free.push(("after", taking.read_free_blocks()?));
    let is_clean = taking.finish(code.as_ref().is_ok_and(|&code| code == 0 || !args.held.command.is_empty()));
    if args.held.json {
        let document = json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "fragment_unmovable",
            "blocks_requested": wanted.blocks,
            "unmovable": pollution_document,
            "unusable_permille": phase_output::phases_json(&free),
        });
        output::print_json(&document)?;
    } else {
        phase_output::print_lines(phase_output::index_table(&free).iter(), is_quiet)?;
    }
    Ok(bounded_allocation::exit_code(code?, !args.held.command.is_empty(), is_clean && !is_short))
}

fn print_plan(
    request: &PollutionRequest,
    facts: &FragmentInputs,
    reserve: Reserve,
    as_json: bool,
) -> Result<(), Failure> {
    if as_json {
        let document = json!({
            "pagelab_json": CONTRACT_VERSION,
            "kind": "fragment_unmovable_plan",
            "reserve_bytes": reserve.0.0,
            "available_bytes": facts.mem_available.0,
            "unmovable": plan_json(request, facts),
        });
        return output::print_json(&document);
    }
    let mut lines = plan_lines(request, facts);
    let (available, kept) = (format_bytes(facts.mem_available), format_bytes(reserve.0));
    lines.push(format!("  {available} is available, {kept} stays in reserve"));
    phase_output::print_lines(lines.iter(), false)
}

/// Describes the plan and its limits, for a dry run.
pub fn plan_lines(request: &PollutionRequest, facts: &FragmentInputs) -> Vec<String> {
    let mut lines = vec![format!(
        "would pollute {} pageblocks with unmovable pages; temporarily needs {}",
        format_count(request.blocks.into()),
        format_bytes(transient_bytes(request, facts))
    )];
    let limits = check_limits(&Root::live(), request, facts.page_size);
    lines.extend(limits.iter().map(|limit| {
        let short = if limit.is_exceeded() { ": too low" } else { "" };
        format!("  {limit}{short}")
    }));
    lines
}

/// Converts the plan to JSON.
pub fn plan_json(request: &PollutionRequest, facts: &FragmentInputs) -> Value {
    let limit = |limit: SourceLimit| {
        let SourceLimit { flavour, name, required: needs, available: has } = limit;
        json!({ "flavour": flavour.name(), "name": name, "needs": needs, "has": has })
    };
    let limits = check_limits(&Root::live(), request, facts.page_size);
    json!({
        "blocks_requested": request.blocks,
        "flavours": request.flavours.iter().map(|flavour| flavour.name()).collect::<Vec<_>>(),
        "transient_bytes": transient_bytes(request, facts).0,
        "limits": limits.into_iter().map(limit).collect::<Value>(),
    })
}
