//! A trace on the terminal.

use std::collections::BTreeSet;

use pagelab_model::Bytes;
use pagelab_model::run::Ending;
use pagelab_report::quantity::duration;
use pagelab_report::style::{Style, bytes, count, percent, spelt};
use pagelab_report::text::{Column, Page};

use super::{Info, STATES};
use crate::cmd::trace::words::{SAID, rate, recorder_cost};

/// The whole page, with so many threads.
pub fn of(info: &Info, style: Style, most: usize) -> String {
    let mut page = Page::new(style);
    machine(info, &mut page);
    page.gap();
    kinds(info, &mut page);
    page.gap();
    orders(info, &mut page);
    page.gap();
    threads(info, most, &mut page);
    page.gap();
    memory(info, &mut page);
    recorder(info, &mut page);
    page.finish()
}

fn machine(info: &Info, page: &mut Page) {
    let head = &info.head;
    let managed: u64 = head.zones.iter().map(|zone| u64::from(zone.managed)).sum();
    let memory = bytes(Bytes(managed.saturating_mul(head.page_bytes.into())));
    let with = if info.snapshot.is_some() { " with the snapshot" } else { "" };
    let facts = [
        info.name.clone(),
        format!("Linux {}", head.kernel),
        format!("{} processors", head.cpus),
        format!("{memory} managed"),
        format!("through {}", head.through.name()),
        format!("{}{with}", bytes(Bytes(info.file_bytes))),
    ];
    page.facts("", &facts, "   ");
    page.hanging("", &events(info));
    page.hanging("", &ended(info));
}

/// How many events, how fast, and what each takes.
pub(super) fn events(info: &Info) -> String {
    let took = info.seconds().map(|seconds| {
        let events = rate(info.events() as f64 / seconds);
        format!(" in {}: {events}/s", duration((seconds * 1e9) as u64))
    });
    let each = info.bytes_per_event().map(|bytes| format!(", {bytes:.2} bytes each")).unwrap_or_default();
    let events = count(info.events().into());
    format!("{events} events{}{each}", took.unwrap_or_default())
}

/// What was lost, and how it ended.
pub(super) fn ended(info: &Info) -> String {
    let lost = match info.lost() {
        0 => "nothing was lost".to_owned(),
        lost => {
            let share = percent(lost as f64 / (lost + info.events()) as f64);
            format!("{} events were lost, {share}: the rings were full", count(lost.into()))
        }
    };
    let ended = match &info.ending {
        Ending::Complete { .. } => "the recording ended as it should".to_owned(),
        Ending::Stopped { why, .. } => format!("the recording was ended early: {why}"),
        Ending::NotClosed => {
            "the file was not closed: it ends with the last block that its writer committed".to_owned()
        }
    };
    format!("{lost}; {ended}")
}

fn kinds(info: &Info, page: &mut Page) {
    let columns = [Column::left("what"), Column::right("events"), Column::right("a second")];
    let rows = SAID.iter().zip(info.kinds).filter(|(_, events)| *events > 0);
    let rows: Vec<Vec<String>> = rows
        .map(|(what, events)| {
            let times = info.seconds().map_or_else(String::new, |s| rate(events as f64 / s));
            vec![(*what).to_owned(), count(events.into()), times]
        })
        .collect();
    page.table(0, &columns, &rows);
}

/// Allocations by order, a column for each migratetype that was asked for, and frees.
fn orders(info: &Info, page: &mut Page) {
    let account = &info.account;
    let types: BTreeSet<u8> = account.taken.keys().map(|(_, migratetype)| *migratetype).collect();
    let orders: BTreeSet<u8> =
        account.taken.keys().map(|(order, _)| *order).chain(account.freed_by_order.keys().copied()).collect();
    let names: Vec<String> = types.iter().map(|&number| info.migratetype(number)).collect();
    let mut columns = vec![Column::right("order")];
    columns.extend(names.iter().map(|name| Column::right(name)));
    columns.push(Column::right("freed"));
    let cell = |events: Option<u64>| events.map_or_else(String::new, |events| count(events.into()));
    let rows: Vec<Vec<String>> = orders
        .iter()
        .map(|&order| {
            let taken = types.iter().map(|&of| cell(account.taken.get(&(order, of)).map(|a| a.events)));
            let freed = cell(account.freed_by_order.get(&order).map(|amount| amount.events));
            [order.to_string()].into_iter().chain(taken).chain([freed]).collect()
        })
        .collect();
    page.line("allocations by the migratetype that was asked for, and frees");
    page.table(0, &columns, &rows);
    if account.failed > 0 {
        page.hanging("", &format!("{} allocations failed", count(account.failed.into())));
    }
}

fn threads(info: &Info, most: usize, page: &mut Page) {
    let columns = [
        Column::right("thread"),
        Column::left("name"),
        Column::right("allocations"),
        Column::right("pages"),
        Column::right("frees"),
        Column::right("pages"),
    ];
    // A program names itself as it likes, line ends included.
    let name = |tid: u32| info.thread_name(tid).map_or("–".to_owned(), spelt);
    let rows: Vec<Vec<String>> = info
        .account
        .busiest(most)
        .iter()
        .map(|(tid, thread)| {
            let amounts = [thread.taken.events, thread.taken.pages, thread.freed.events, thread.freed.pages];
            [tid.to_string(), name(*tid)]
                .into_iter()
                .chain(amounts.map(|number| count(number.into())))
                .collect()
        })
        .collect();
    page.table(0, &columns, &rows);
    if info.names.is_empty() && !rows.is_empty() {
        let text = match info.ending {
            Ending::NotClosed => {
                "threads are known by their numbers: the recorder was killed before it stored their names"
            }
            _ => "threads are known by their numbers: their names were not read",
        };
        page.hanging_dim("", text);
    } else if rows.iter().any(|row| row.get(1).is_some_and(|name| name == "–")) {
        page.hanging_dim("", "– ended before its name was read");
    }
}

fn memory(info: &Info, page: &mut Page) {
    let page_bytes = u64::from(info.head.page_bytes);
    match &info.snapshot {
        None => page.hanging("", "the memory that it began with was not recorded"),
        Some(snapshot) => {
            let states = STATES.iter().zip(snapshot.frames).filter(|(_, frames)| *frames > 0);
            let states: Vec<String> = states
                .map(|(name, frames)| format!("{name} {}", bytes(Bytes(frames.saturating_mul(page_bytes)))))
                .collect();
            let took = duration(snapshot.read_ns.1.saturating_sub(snapshot.read_ns.0));
            let runs = count(snapshot.runs as u128);
            let text = format!("{}; {runs} runs, read in {took}", states.join(", "));
            page.hanging("memory at the start: ", &text);
        }
    }
    if let Some((freed, share)) = info.account.freed.as_ref().and_then(|freed| Some((freed, freed.holes()?)))
    {
        let text = format!(
            "{} of the freed pages were taken where nobody saw it: {} were last known as free, of {} nothing \
             was known; {} were taken in the trace, {} before it",
            percent(share),
            count(freed.free.into()),
            count(freed.unknown.into()),
            count(freed.seen.into()),
            count(freed.before.into()),
        );
        page.hanging("holes: ", &text);
    }
    let samples = count(info.samples.len() as u128);
    page.hanging("", &format!("buddyinfo was read {samples} times meanwhile"));
}

fn recorder(info: &Info, page: &mut Page) {
    let Some(end) = &info.end else { return };
    if let Some(check) = &end.check {
        let (agreeing, orders) = check.agreeing();
        let (off, free) = check.pages_off();
        let text = format!(
            "{agreeing} of {orders} orders from 1 on are as in buddyinfo before and after the scan; {} of {} \
             free pages differ",
            count(off.into()),
            count(free.into()),
        );
        page.hanging("free lists at the start: ", &text);
    }
    if let Some([allocated, freed]) = end.vmstat_pages {
        let taken: u64 = info.account.taken.values().map(|amount| amount.pages).sum();
        let given: u64 = info.account.freed_by_order.values().map(|amount| amount.pages).sum();
        let share = |seen: u64, of: u64| percent(seen as f64 / of.max(1) as f64);
        let text = format!(
            "the trace has {} of {} pages allocated, {} of {} pages freed; the rest is the recorder's own, \
             and bulk allocations, which have no tracepoint",
            share(taken, allocated),
            count(allocated.into()),
            share(given, freed),
            count(freed.into()),
        );
        page.hanging("by vmstat: ", &text);
    }
    page.hanging("", &recorder_cost(end, info.events()));
}
