//! What a replay found, as text and as JSON.

use pagelab_model::Bytes;
use pagelab_model::alloc_trace::TraceLoss;
use pagelab_model::run::Ending;
use pagelab_report::json::object::{Object, array};
use pagelab_report::json::{header, to_text};
use pagelab_report::style::{bytes, count, percent, three_digits};
use pagelab_report::text::{Column, Page};
use pagelab_sim::policies;
use pagelab_sim::replay::words::{Account, Tally, Zones};
use serde_json::Value;

use super::answer::{self, Verdict, at_end};
use super::apart::{Apart, FreeApart, apart, apart_unchanged};
use super::{Free, Replayed, Told};
use crate::exit::{Exit, Failure};
use crate::out;

/// Moments that the table over time shows at most.
const MOMENTS: usize = 12;

fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

/// What is counted by name, in the order in which it is shown.
fn named(account: &Account) -> [(&'static str, &'static str, Tally); 13] {
    [
        ("allocations", "allocations", account.allocs),
        ("no_room", "… that found no room in simulated memory", account.no_room),
        ("from_lists", "… from per-CPU lists of the snapshot", account.from_lists),
        ("reallocs", "… of frames whose free was not seen", account.reallocs),
        ("frees", "frees", account.frees),
        ("matched", "… of a known object", account.matched),
        ("of_no_room", "… of an object that had no room", account.of_no_room),
        ("moved", "… by compaction: the object lives on elsewhere", account.moved),
        ("guessed", "… of unknown frames, guessed to be a moved object", account.guessed),
        ("given_back", "… by compaction, of frames it did not need", account.given_back),
        ("partly", "… of frames of which only some are known", account.partly),
        ("unknown", "… of frames that nobody knows as allocated", account.unknown),
        (
            "failed_in_trace",
            "allocations that failed on the machine",
            Tally { events: account.failed_in_trace, frames: 0 },
        ),
    ]
}

fn matched(account: &Account) -> f64 {
    account.matched_permille().map_or(1.0, |permille| f64::from(permille) / 1e3)
}

/// The whole report.
pub fn text(told: &Told, with_time: bool) -> String {
    let mut page = Page::new(out::style());
    about(&mut page, told);
    for (number, replayed) in told.replayed.iter().enumerate() {
        // What is known of objects does not depend on where they lie; room does.
        if number == 0 || replayed.account.no_room != told.replayed[0].account.no_room {
            holes(&mut page, replayed);
        }
    }
    policies(&mut page, told);
    over_time(&mut page, told);
    answer::show(&mut page, told);
    if with_time {
        times(&mut page, told);
    }
    page.finish()
}

fn about(page: &mut Page, told: &Told) {
    let head = &told.head;
    let managed: u64 = head.zones.iter().map(|zone| u64::from(zone.managed)).sum();
    let memory = bytes(Bytes(managed.saturating_mul(u64::from(head.page_bytes))));
    page.hanging(
        "",
        &format!(
            "{}: Linux {}, {memory} in {} zones, {} processors; {} s recorded",
            told.file,
            head.kernel,
            head.zones.len(),
            head.cpus,
            three_digits(told.end_ns as f64 / 1e9)
        ),
    );
    let [unmovable, movable, reclaimable] = told.owners;
    page.hanging(
        "",
        &format!(
            "Begins {} after its start, when the snapshot was complete. Pageblocks (inferred): {} movable, \
             {} unmovable, {} reclaimable; events tell of {} of them. Per-CPU lists held {} frames",
            seconds(told.complete_ns),
            count(movable.into()),
            count(unmovable.into()),
            count(reclaimable.into()),
            count(told.owners_told.into()),
            count(told.listed.into())
        ),
    );
    if told.uncovered > 0 {
        let frames = count(told.uncovered.into());
        page.hanging("", &format!("The snapshot does not tell of {frames} frames; they count as no memory"));
    }
    let lost: u64 = told.losses.iter().map(|TraceLoss { events, .. }| *events).sum();
    if lost > 0 {
        let (lost, times) = (count(lost.into()), told.losses.len());
        page.hanging(
            "",
            &format!("The recorder lost {lost} events, at {times} times: holes that have no name"),
        );
    }
    if told.ending == Ending::NotClosed {
        page.hanging(
            "",
            &format!("The trace was cut short; it ends {} after its start", seconds(told.end_ns)),
        );
    }
    page.gap();
}

fn holes(page: &mut Page, replayed: &Replayed) {
    let account = &replayed.account;
    page.heading(&format!("Objects under {}", replayed.policy));
    page.hanging(
        "",
        &format!(
            "{} of the freed frames belonged to an object that is known; {} objects were split, {} put \
             together",
            percent(matched(account)),
            count(account.splits.into()),
            count(account.joins.into())
        ),
    );
    let is_told = |tally: &Tally| tally.events > 0;
    let rows: Vec<Vec<String>> = named(account)
        .iter()
        .filter(|(_, _, tally)| is_told(tally))
        .map(|(_, what, Tally { events, frames })| {
            vec![(*what).to_owned(), count((*events).into()), count((*frames).into())]
        })
        .collect();
    page.table(2, &[Column::left("what"), Column::right("events"), Column::right("frames")], &rows);
    page.gap();
}

/// F_u and its errors as they are shown everywhere.
pub(super) fn four(value: f64) -> String {
    format!("{value:.4}")
}

/// A signed share.
fn signed(share: f64) -> String {
    format!("{:+.2} %", share * 100.0)
}

fn policies(page: &mut Page, told: &Told) {
    let order = told.head.block_order;
    page.heading(&format!("F_u({order}): simulated beside sampled"));
    let row = |replayed: &Replayed| {
        let error = apart(told, replayed.free.iter(), None);
        let of = |pick: fn(&Apart) -> String| error.as_ref().map_or("—".to_owned(), pick);
        vec![
            replayed.policy.to_owned(),
            of(|error| four(error.median)),
            of(|error| four(error.nine_of_ten)),
            of(|error| four(error.worst)),
            of(|error| seconds(error.worst_ns)),
            of(|error| count((error.within as u64).into())),
        ]
    };
    let columns = [
        Column::left("policy"),
        Column::right("error: median"),
        Column::right("90 %"),
        Column::right("worst"),
        Column::right("at"),
        Column::right("samples ≤ 0.1"),
    ];
    page.table(2, &columns, &told.replayed.iter().map(row).collect::<Vec<_>>());
    if let Some(Apart { median, worst, .. }) = apart_unchanged(told) {
        let (median, worst) = (four(median), four(worst));
        page.hanging(
            "  ",
            &format!("Had nothing changed since the start, the error would be {median}, the worst {worst}"),
        );
    }
    page.hanging("  ", &format!("{} samples, {} left out", told.sampled.len(), told.left_out));
    free(page, told);
    taken(page, told);
}

/// How far free memory is off: what F_u cannot tell below.
fn free(page: &mut Page, told: &Told) {
    let row = |replayed: &Replayed| {
        let off = FreeApart::of(told, replayed)?;
        let shares = [off.first, off.last].map(signed);
        let apart = [off.median, off.worst].map(|share| format!("{:.2} %", share * 100.0));
        Some([vec![replayed.policy.to_owned()], shares.to_vec(), apart.to_vec()].concat())
    };
    let rows: Vec<Vec<String>> = told.replayed.iter().filter_map(row).collect();
    if rows.is_empty() {
        return;
    }
    page.heading("Free memory: simulated beside sampled");
    let columns = [
        Column::left("policy"),
        Column::right("first sample"),
        Column::right("last"),
        Column::right("off by: median"),
        Column::right("worst"),
    ];
    page.table(2, &columns, &rows);
}

/// What policies did.
fn taken(page: &mut Page, told: &Told) {
    let order = told.head.block_order;
    page.heading("Blocks taken from another kind's list");
    let row = |replayed: &Replayed| {
        let account = &replayed.account;
        vec![
            replayed.policy.to_owned(),
            four(replayed.end.unusable(order)),
            count(account.fallbacks.into()),
            count(account.claims.into()),
            count(account.no_room.events.into()),
        ]
    };
    let end = format!("F_u({order}) at the end");
    let columns = [
        Column::left("policy"),
        Column::right(&end),
        Column::right("fallbacks"),
        Column::right("claims"),
        Column::right("no room"),
    ];
    let mut rows: Vec<Vec<String>> = told.replayed.iter().map(row).collect();
    let traced = told.replayed.first().map(|replayed| &replayed.account);
    let traced = traced.map_or((0, 0), |account| (account.fallbacks_traced, account.claims_traced));
    rows.push(vec![
        "the machine".to_owned(),
        told.sampled.last().map_or("—".to_owned(), |sampled| four(sampled.free.unusable(order))),
        count(traced.0.into()),
        count(traced.1.into()),
        "—".to_owned(),
    ]);
    page.table(2, &columns, &rows);
    page.gap();
}

/// A table with a column for each policy: in parts where the page is too narrow for all of them.
pub(super) fn by_policy(page: &mut Page, told: &Told, fixed: &[Column<'_>], rows: &[Vec<String>]) {
    let (fixed_count, all) = (fixed.len(), told.replayed.len());
    let part = |from: usize, to: usize| {
        let policies = told.replayed[from..to].iter().map(|of| Column::right(of.policy));
        let columns: Vec<Column<'_>> = fixed.iter().copied().chain(policies).collect();
        let cells = |row: &Vec<String>| {
            let policies = row.iter().skip(fixed_count + from).take(to - from);
            row.iter().take(fixed_count).chain(policies).cloned().collect()
        };
        (columns, rows.iter().map(cells).collect::<Vec<Vec<String>>>())
    };
    let mut from = 0;
    while from < all {
        let fits = |to: &usize| {
            let (columns, rows) = part(from, *to);
            page.table_width(2, &columns, &rows) <= page.style().width
        };
        let to = (from + 1..=all).rev().find(fits).unwrap_or(from + 1);
        let (columns, rows) = part(from, to);
        if from > 0 {
            page.gap();
        }
        page.table(2, &columns, &rows);
        from = to;
    }
}

/// Some moments, evenly spread, the last one among them.
fn moments(told: &Told) -> Vec<usize> {
    let last = told.sampled.len().saturating_sub(1);
    let steps = MOMENTS.min(told.sampled.len()).max(1) - 1;
    let mut moments: Vec<usize> = (0..=steps).map(|step| last * step / steps.max(1)).collect();
    moments.dedup();
    moments.retain(|&at| at < told.sampled.len());
    moments
}

fn over_time(page: &mut Page, told: &Told) {
    let order = told.head.block_order;
    if told.sampled.is_empty() {
        page.line("No sample of free memory lies behind the snapshot: there is nothing to compare with.");
        return;
    }
    let columns = [Column::right("at"), Column::right("free"), Column::right("sampled")];
    let row = |at: usize| {
        let Some(sampled) = told.sampled.get(at) else { return Vec::new() };
        let page_bytes = u128::from(told.head.page_bytes);
        let free = (sampled.free.all.free_pages() * page_bytes).min(u64::MAX.into()) as u64;
        let mut row = vec![seconds(sampled.at_ns), bytes(Bytes(free)), four(sampled.free.unusable(order))];
        row.extend(told.replayed.iter().map(|of| four(of.free[at].unusable(order))));
        row
    };
    let rows: Vec<Vec<String>> = moments(told).into_iter().map(row).collect();
    page.heading(&format!("F_u({order}) over time"));
    by_policy(page, told, &columns, &rows);
}

fn times(page: &mut Page, told: &Told) {
    page.gap();
    let events = told.replayed.first().map_or(0, all_events);
    page.hanging(
        "",
        &format!(
            "{} million events a second by the clock, all policies at once",
            three_digits(events as f64 * 1e3 / told.wall_ns.max(1) as f64)
        ),
    );
    for replayed in &told.replayed {
        page.hanging(
            "",
            &format!(
                "{}: {} million events a second of CPU time, decoding included ({} ns an event, {} of them \
                 decoding)",
                replayed.policy,
                three_digits(events_per_s(told, replayed) / 1e6),
                three_digits(1e9 / events_per_s(told, replayed).max(1.0)),
                three_digits(told.decode_cpu_ns as f64 / all_events(replayed).max(1) as f64)
            ),
        );
    }
}

fn all_events(replayed: &Replayed) -> u64 {
    replayed.account.events + replayed.account.before
}

fn events_per_s(told: &Told, replayed: &Replayed) -> f64 {
    all_events(replayed) as f64 * 1e9 / (told.decode_cpu_ns + replayed.cpu_ns).max(1) as f64
}

/// One document.
pub fn json(told: &Told, with_time: bool) -> Result<String, Failure> {
    let order = told.head.block_order;
    let reason = "the recorder took no sample behind the snapshot";
    let [unmovable, movable, reclaimable] = told.owners;
    let sample = |at: usize| {
        let sampled = &told.sampled[at];
        let simulated: Vec<f64> = told.replayed.iter().map(|of| of.free[at].unusable(order)).collect();
        let free: Vec<u64> = told.replayed.iter().map(|of| of.free[at].all.free_pages() as u64).collect();
        Object::new()
            .put("at_ns", sampled.at_ns)
            .put("free_pages", sampled.free.all.free_pages() as u64)
            .put("unusable", sampled.free.unusable(order))
            .put("simulated_free_pages", free)
            .put("simulated_unusable", simulated)
    };
    let samples: Vec<usize> = (0..told.sampled.len()).collect();
    let document = header("sim_replay")
        .put("trace", told.file.as_str())
        .put("kernel", told.head.kernel.as_str())
        .put("page_bytes", told.head.page_bytes)
        .put("order", order)
        .put("end_ns", told.end_ns)
        .put("is_cut_short", told.ending == Ending::NotClosed)
        .put("lost_events", told.losses.iter().map(|loss| loss.events).sum::<u64>())
        .put("snapshot_complete_ns", told.complete_ns)
        .put("uncovered_frames", told.uncovered)
        .put("listed_frames", told.listed)
        .put(
            "pageblocks",
            Object::new()
                .put("unmovable", unmovable)
                .put("movable", movable)
                .put("reclaimable", reclaimable)
                .put("told_by_events", told.owners_told),
        )
        .put("zones_by", if told.zones == Zones::Asked { "asked" } else { "traced" })
        .put("samples_left_out", told.left_out)
        .put("own_policy", policies::of_release(&told.head.kernel))
        .option("blocks_at_end", told.sampled.last().map(|sampled| blocks(&sampled.free)), reason)
        .option("unusable_at_end", told.sampled.last().map(|sampled| sampled.free.unusable(order)), reason)
        .option("unusable_error_unchanged", apart_unchanged(told).as_ref().map(error), reason)
        .option("verdict", answer::own(told).map(Verdict::word), "the own policy or samples are missing")
        .put("policies", array(&told.replayed, |replayed| policy(told, replayed, with_time)))
        .put("samples", array(&samples, |&at| sample(at)));
    let document = if with_time { document.put("wall_ns", told.wall_ns) } else { document };
    let document: Value = document.into();
    to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}

fn error(of: &Apart) -> Object {
    Object::new()
        .put("median", of.median)
        .put("nine_of_ten", of.nine_of_ten)
        .put("worst", of.worst)
        .put("within_tenth", of.within as u64)
        .put("worst_ns", of.worst_ns)
}

/// Free blocks by order.
fn blocks(free: &Free) -> Vec<u64> {
    free.all.counts().to_vec()
}

fn policy(told: &Told, replayed: &Replayed, with_time: bool) -> Object {
    let account = &replayed.account;
    let reason = "the recorder took no sample behind the snapshot";
    let zones: Vec<usize> = (0..told.head.zones.len()).collect();
    let zone = |&at: &usize| {
        let key = &told.head.zones[at].key;
        let apart = apart(told, replayed.free.iter(), Some(at));
        Object::new().put("node", key.node.0).put("zone", key.zone.as_str()).option(
            "unusable_error",
            apart.as_ref().map(error),
            reason,
        )
    };
    let mut object = Object::new()
        .put("policy", replayed.policy)
        .option("unusable_error", apart(told, replayed.free.iter(), None).as_ref().map(error), reason)
        .option("blocks_at_end", at_end(told, replayed).map(|(_, free)| blocks(free)), reason)
        .put("beside_own", answer::beside_own(told, replayed).map(Verdict::word))
        .put("zones", array(&zones, zone))
        .put("simulated_unusable_at_end", replayed.end.unusable(told.head.block_order))
        .put("kept_frames", replayed.kept_frames)
        .option("matched_permille", account.matched_permille(), "nothing was freed")
        .put("events", account.events)
        .put("events_before", account.before)
        .put("events_backwards", account.backwards);
    let free = FreeApart::of(told, replayed);
    let of = |pick: fn(&FreeApart) -> f64| free.as_ref().map(pick);
    object = object
        .option("free_error_first", of(|free| free.first), reason)
        .option("free_error_last", of(|free| free.last), reason)
        .option("free_error_median", of(|free| free.median), reason)
        .option("free_error_worst", of(|free| free.worst), reason);
    for (name, _, Tally { events, frames }) in named(account) {
        object = object.put(name, Object::new().put("events", events).put("frames", frames));
    }
    object = object
        .put("splits", account.splits)
        .put("joins", account.joins)
        .put("moved_at_end", account.moved_at_end)
        .put("migrated_traced", account.migrated_traced)
        .put("fallbacks", account.fallbacks)
        .put("claims", account.claims)
        .put("fallbacks_traced", account.fallbacks_traced)
        .put("claims_traced", account.claims_traced);
    if with_time {
        object = object
            .put("decode_cpu_ns", told.decode_cpu_ns)
            .put("replay_cpu_ns", replayed.cpu_ns)
            .put("events_per_s", events_per_s(told, replayed) as u64);
    }
    object
}
