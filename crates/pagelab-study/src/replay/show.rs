//! Results of a replay as text and as JSON.

use pagelab_command::exit::Failure;
use pagelab_command::output;
use pagelab_model::Bytes;
use pagelab_model::alloc_trace::LostEvents;
use pagelab_model::run::RunEnd;
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};
use pagelab_report::style::{format_bytes, format_count, format_percent, format_three_digits};
use pagelab_report::text_report::{TableColumn, TextReport};
use pagelab_sim::policies;
use pagelab_sim::replay::types::{EventTally, ReplayStats, ZoneSelection};

use super::verdict::{
    FreeMemoryError, IndexError, Verdict, format_index, free_at_end, index_error, unchanged_index_error,
    write_by_policy,
};
use super::{FreeMemory, PolicyOutcome, ReplayReport, verdict};

/// Maximum number of rows of the table over time.
const MOMENTS_MAX: usize = 12;

fn format_seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

/// Counters by name, in display order.
fn named_tallies(account: &ReplayStats) -> [(&'static str, &'static str, EventTally); 13] {
    [
        ("allocations", "allocations", account.allocs),
        ("no_room", "… that failed in simulated memory", account.unplaced_allocs),
        ("from_lists", "… from the snapshot's pcp lists", account.allocs_from_pcp),
        ("reallocs", "… of frames whose free was not recorded", account.reallocs),
        ("frees", "frees", account.frees),
        ("matched", "… of a known object", account.matched_frees),
        ("of_no_room", "… of an object whose allocation failed", account.unplaced_frees),
        ("moved", "… by compaction: the object was migrated", account.migrated_frees),
        ("guessed", "… of unknown frames, assumed to be a migrated object", account.guessed_frees),
        ("returned", "… by compaction, of isolated frames it did not use", account.returned_frees),
        ("partly", "… of partly known frames", account.partly_matched_frees),
        ("unknown", "… of frames not known to be allocated", account.unknown_frees),
        (
            "failed_in_trace",
            "allocations that failed on the machine",
            EventTally { events: account.failed_in_trace, frames: 0 },
        ),
    ]
}

fn matched_share(account: &ReplayStats) -> f64 {
    account.matched_permille().map_or(1.0, |permille| f64::from(permille) / 1e3)
}

/// Renders the complete report.
pub fn report_text(report: &ReplayReport, with_time: bool) -> String {
    let mut output = TextReport::new(output::stdout_style());
    write_header(&mut output, report);
    for (number, replayed) in report.outcomes.iter().enumerate() {
        // Matching of objects does not depend on their location; failed placement does.
        if number == 0 || replayed.account.unplaced_allocs != report.outcomes[0].account.unplaced_allocs {
            write_mismatches(&mut output, replayed);
        }
    }
    write_policies(&mut output, report);
    write_over_time(&mut output, report);
    verdict::write_verdict(&mut output, report);
    if with_time {
        write_times(&mut output, report);
    }
    output.into_text()
}

fn write_header(output: &mut TextReport, report: &ReplayReport) {
    let head = &report.head;
    let managed: u64 = head.zones.iter().map(|zone| u64::from(zone.managed)).sum();
    let memory = format_bytes(Bytes(managed.saturating_mul(u64::from(head.page_bytes))));
    output.add_text(&format!(
        "{}: Linux {}, {memory} in {} zones, {} CPUs; {} s recorded",
        report.file,
        head.kernel,
        head.zones.len(),
        head.cpus,
        format_three_digits(report.end_ns as f64 / 1e9)
    ));
    let [unmovable, movable, reclaimable] = report.pageblocks_by_type;
    output.add_text(&format!(
        "Starts {} into the trace, when the snapshot was complete. Pageblocks (inferred): {} movable, {} \
        unmovable, {} reclaimable; {} of them from events. The pcp lists held {} frames",
        format_seconds(report.complete_ns),
        format_count(movable.into()),
        format_count(unmovable.into()),
        format_count(reclaimable.into()),
        format_count(report.pageblocks_from_events.into()),
        format_count(report.pcp_frames.into())
    ));
    if report.uncovered_frames > 0 {
        let frames = format_count(report.uncovered_frames.into());
        output.add_text(&format!("The snapshot does not cover {frames} frames; they count as holes"));
    }
    let lost: u64 = report.losses.iter().map(|LostEvents { events, .. }| *events).sum();
    if lost > 0 {
        let (lost, times) = (format_count(lost.into()), report.losses.len());
        output.add_text(&format!(
            "The recorder lost {lost} events, on {times} occasions; their effect is unknown"
        ));
    }
    if report.ending == RunEnd::NotClosed {
        output.add_text(&format!(
            "The trace was cut short; it ends {} after its start",
            format_seconds(report.end_ns)
        ));
    }
    output.add_gap();
}

fn write_mismatches(output: &mut TextReport, outcome: &PolicyOutcome) {
    let account = &outcome.account;
    output.add_heading(&format!("Objects under {}", outcome.policy));
    output.add_text(&format!(
        "{} of the freed frames belonged to a known object; {} objects were split, {} joined",
        format_percent(matched_share(account)),
        format_count(account.splits.into()),
        format_count(account.joins.into())
    ));
    let is_told = |tally: &EventTally| tally.events > 0;
    let rows: Vec<Vec<String>> = named_tallies(account)
        .iter()
        .filter(|(_, _, tally)| is_told(tally))
        .map(|(_, what, EventTally { events, frames })| {
            vec![(*what).to_owned(), format_count((*events).into()), format_count((*frames).into())]
        })
        .collect();
    output.add_table(
        2,
        &[TableColumn::left("what"), TableColumn::right("events"), TableColumn::right("frames")],
        &rows,
    );
    output.add_gap();
}

fn format_signed_share(share: f64) -> String {
    format!("{:+.2} %", share * 100.0)
}

fn write_policies(output: &mut TextReport, report: &ReplayReport) {
    let order = report.head.pageblock_order;
    output.add_heading(&format!("F_u({order}): simulated vs. sampled"));
    let row = |replayed: &PolicyOutcome| {
        let error = index_error(report, replayed.free.iter(), None);
        let column = |pick: fn(&IndexError) -> String| error.as_ref().map_or("—".to_owned(), pick);
        vec![
            replayed.policy.to_owned(),
            column(|error| format_index(error.median)),
            column(|error| format_index(error.p90)),
            column(|error| format_index(error.max)),
            column(|error| format_seconds(error.max_at_ns)),
            column(|error| format_count((error.within_tolerance as u64).into())),
        ]
    };
    let mut columns = vec![TableColumn::left("policy")];
    columns.extend(["error: median", "90 %", "worst", "at", "samples ≤ 0.1"].map(TableColumn::right));
    output.add_table(2, &columns, &report.outcomes.iter().map(row).collect::<Vec<_>>());
    if let Some(IndexError { median, max: worst, .. }) = unchanged_index_error(report) {
        let (median, worst) = (format_index(median), format_index(worst));
        output.add_indented(&format!("No-change baseline: median error {median}, maximum {worst}"));
    }
    output.add_indented(&format!("{} samples, {} excluded", report.samples.len(), report.samples_left_out));
    write_free_memory(output, report);
    write_actions(output, report);
}

/// Writes the error of free memory: the resolution of F_u.
fn write_free_memory(output: &mut TextReport, report: &ReplayReport) {
    let row = |replayed: &PolicyOutcome| {
        let off = FreeMemoryError::from_outcome(report, replayed)?;
        let shares = [off.first, off.last].map(format_signed_share);
        let apart = [off.median, off.max].map(|share| format!("{:.2} %", share * 100.0));
        Some([vec![replayed.policy.to_owned()], shares.to_vec(), apart.to_vec()].concat())
    };
    let rows: Vec<Vec<String>> = report.outcomes.iter().filter_map(row).collect();
    if rows.is_empty() {
        return;
    }
    output.add_heading("Free memory: simulated vs. sampled");
    let mut columns = vec![TableColumn::left("policy")];
    columns.extend(["first sample", "last", "error: median", "worst"].map(TableColumn::right));
    output.add_table(2, &columns, &rows);
}

/// Writes the actions of the policies.
fn write_actions(output: &mut TextReport, report: &ReplayReport) {
    let order = report.head.pageblock_order;
    output.add_heading("Fallbacks to another migratetype's list");
    let row = |replayed: &PolicyOutcome| {
        let account = &replayed.account;
        vec![
            replayed.policy.to_owned(),
            format_index(replayed.end.unusable(order)),
            format_count(account.fallbacks.into()),
            format_count(account.claims.into()),
            format_count(account.unplaced_allocs.events.into()),
        ]
    };
    let end = format!("F_u({order}) at the end");
    let mut columns = vec![TableColumn::left("policy")];
    columns.extend([&*end, "fallbacks", "claims", "no room"].map(TableColumn::right));
    let mut rows: Vec<Vec<String>> = report.outcomes.iter().map(row).collect();
    let traced = report.outcomes.first().map(|replayed| &replayed.account);
    let traced = traced.map_or((0, 0), |account| (account.fallbacks_traced, account.claims_traced));
    rows.push(vec![
        "the machine".to_owned(),
        report.samples.last().map_or("—".to_owned(), |sampled| format_index(sampled.free.unusable(order))),
        format_count(traced.0.into()),
        format_count(traced.1.into()),
        "—".to_owned(),
    ]);
    output.add_table(2, &columns, &rows);
    output.add_gap();
}

/// Samples that are evenly spread, including the last.
fn select_moments(report: &ReplayReport) -> Vec<usize> {
    let last = report.samples.len().saturating_sub(1);
    let steps = MOMENTS_MAX.min(report.samples.len()).max(1) - 1;
    let mut moments: Vec<usize> = (0..=steps).map(|step| last * step / steps.max(1)).collect();
    moments.dedup();
    moments.retain(|&at| at < report.samples.len());
    moments
}

fn write_over_time(output: &mut TextReport, report: &ReplayReport) {
    let order = report.head.pageblock_order;
    if report.samples.is_empty() {
        output.add_line("No sample of free memory after the snapshot: nothing to compare with.");
        return;
    }
    let columns = [TableColumn::right("at"), TableColumn::right("free"), TableColumn::right("sampled")];
    let row = |at: usize| {
        let Some(sampled) = report.samples.get(at) else { return Vec::new() };
        let page_bytes = u128::from(report.head.page_bytes);
        let free = (sampled.free.all_zones.free_pages() * page_bytes).min(u64::MAX.into()) as u64;
        let mut row = vec![
            format_seconds(sampled.at_ns),
            format_bytes(Bytes(free)),
            format_index(sampled.free.unusable(order)),
        ];
        row.extend(report.outcomes.iter().map(|of| format_index(of.free[at].unusable(order))));
        row
    };
    let rows: Vec<Vec<String>> = select_moments(report).into_iter().map(row).collect();
    output.add_heading(&format!("F_u({order}) over time"));
    write_by_policy(output, report, &columns, &rows);
}

fn write_times(output: &mut TextReport, report: &ReplayReport) {
    output.add_gap();
    let events = report.outcomes.first().map_or(0, event_count);
    output.add_text(&format!(
        "{} million events per second of wall time, all policies at once",
        format_three_digits(events as f64 * 1e3 / report.wall_ns.max(1) as f64)
    ));
    for replayed in &report.outcomes {
        output.add_text(&format!(
            "{}: {} million events per second of CPU time, including decoding ({} ns per event, {} ns of \
             that \
             decoding)",
            replayed.policy,
            format_three_digits(events_per_s(report, replayed) / 1e6),
            format_three_digits(1e9 / events_per_s(report, replayed).max(1.0)),
            format_three_digits(report.decode_cpu_ns as f64 / event_count(replayed).max(1) as f64)
        ));
    }
}

fn event_count(outcome: &PolicyOutcome) -> u64 {
    outcome.account.events + outcome.account.events_before_snapshot
}

fn events_per_s(report: &ReplayReport, outcome: &PolicyOutcome) -> f64 {
    event_count(outcome) as f64 * 1e9 / (report.decode_cpu_ns + outcome.cpu_ns).max(1) as f64
}

fn zone_selection_slug(zones: ZoneSelection) -> &'static str {
    match zones {
        ZoneSelection::GfpAllowed => "requested",
        ZoneSelection::Traced => "traced",
    }
}

/// Renders one JSON document.
pub fn report_json(report: &ReplayReport, with_time: bool) -> Result<String, Failure> {
    let order = report.head.pageblock_order;
    let reason = "the recorder took no sample after the snapshot";
    let [unmovable, movable, reclaimable] = report.pageblocks_by_type;
    let last = report.samples.last();
    let sample = |at: usize| {
        let sampled = &report.samples[at];
        let simulated: Vec<f64> = report.outcomes.iter().map(|of| of.free[at].unusable(order)).collect();
        let free: Vec<u64> =
            report.outcomes.iter().map(|of| of.free[at].all_zones.free_pages() as u64).collect();
        JsonObject::new()
            .field("at_ns", sampled.at_ns)
            .field("free_pages", sampled.free.all_zones.free_pages() as u64)
            .field("unusable", sampled.free.unusable(order))
            .field("simulated_free_pages", free)
            .field("simulated_unusable", simulated)
    };
    let document = document_header("sim_replay")
        .field("trace", report.file.as_str())
        .field("kernel", report.head.kernel.as_str())
        .field("page_bytes", report.head.page_bytes)
        .field("order", order)
        .field("end_ns", report.end_ns)
        .field("is_cut_short", report.ending == RunEnd::NotClosed)
        .field("lost_events", report.losses.iter().map(|loss| loss.events).sum::<u64>())
        .field("snapshot_complete_ns", report.complete_ns)
        .field("uncovered_frames", report.uncovered_frames)
        .field("listed_frames", report.pcp_frames)
        .field(
            "pageblocks",
            JsonObject::new()
                .field("unmovable", unmovable)
                .field("movable", movable)
                .field("reclaimable", reclaimable)
                .field("from_events", report.pageblocks_from_events),
        )
        .field("zones_by", zone_selection_slug(report.zones))
        .field("samples_left_out", report.samples_left_out)
        .field("own_policy", policies::name_for_release(&report.head.kernel))
        .optional("blocks_at_end", last.map(|sampled| free_block_counts(&sampled.free)), reason)
        .optional("unusable_at_end", last.map(|sampled| sampled.free.unusable(order)), reason)
        .optional("unusable_error_unchanged", unchanged_index_error(report).map(index_error_json), reason)
        .optional(
            "verdict",
            verdict::machine_policy_verdict(report).map(Verdict::name),
            "the policy of the traced kernel or the samples are missing",
        )
        .field("policies", to_array(&report.outcomes, |replayed| policy_json(report, replayed, with_time)))
        .field("samples", to_array(0..report.samples.len(), sample))
        .with_some("wall_ns", with_time.then_some(report.wall_ns));
    output::json_text(&document)
}

fn index_error_json(error: IndexError) -> JsonObject {
    JsonObject::new()
        .field("median", error.median)
        .field("nine_of_ten", error.p90)
        .field("worst", error.max)
        .field("within_tenth", error.within_tolerance as u64)
        .field("worst_ns", error.max_at_ns)
}

/// Free blocks by order.
fn free_block_counts(free: &FreeMemory) -> Vec<u64> {
    free.all_zones.counts().to_vec()
}

fn policy_json(report: &ReplayReport, outcome: &PolicyOutcome, with_time: bool) -> JsonObject {
    let account = &outcome.account;
    let reason = "the recorder took no sample after the snapshot";
    let zone = |at: usize| {
        let key = &report.head.zones[at].key;
        let apart = index_error(report, outcome.free.iter(), Some(at));
        JsonObject::for_zone(key).optional("unusable_error", apart.map(index_error_json), reason)
    };
    let error = index_error(report, outcome.free.iter(), None);
    let at_end = free_at_end(report, outcome).map(free_block_counts);
    let free = FreeMemoryError::from_outcome(report, outcome);
    let of = |pick: fn(&FreeMemoryError) -> f64| free.as_ref().map(pick);
    let object = JsonObject::new()
        .field("policy", outcome.policy)
        .optional("unusable_error", error.map(index_error_json), reason)
        .optional("blocks_at_end", at_end, reason)
        .field("against_own_policy", verdict::policy_verdict(report, outcome).map(Verdict::name))
        .field("zones", to_array(0..report.head.zones.len(), zone))
        .field("simulated_unusable_at_end", outcome.end.unusable(report.head.pageblock_order))
        .field("kept_frames", outcome.kept_frames)
        .optional("matched_permille", account.matched_permille(), "nothing was freed")
        .field("events", account.events)
        .field("events_before", account.events_before_snapshot)
        .field("events_backwards", account.out_of_order_events)
        .optional("free_error_first", of(|free| free.first), reason)
        .optional("free_error_last", of(|free| free.last), reason)
        .optional("free_error_median", of(|free| free.median), reason)
        .optional("free_error_worst", of(|free| free.max), reason);
    let with_tally = |object: JsonObject, (name, _, tally): (&str, &str, EventTally)| {
        let tally = JsonObject::new().field("events", tally.events).field("frames", tally.frames);
        object.field(name, tally)
    };
    named_tallies(account)
        .into_iter()
        .fold(object, with_tally)
        .field("splits", account.splits)
        .field("joins", account.joins)
        .field("moved_at_end", account.migrated_at_end)
        .field("migrated_traced", account.migrated_traced)
        .field("fallbacks", account.fallbacks)
        .field("claims", account.claims)
        .field("fallbacks_traced", account.fallbacks_traced)
        .field("claims_traced", account.claims_traced)
        .with_some("decode_cpu_ns", with_time.then_some(report.decode_cpu_ns))
        .with_some("replay_cpu_ns", with_time.then_some(outcome.cpu_ns))
        .with_some("events_per_s", with_time.then(|| events_per_s(report, outcome) as u64))
}
