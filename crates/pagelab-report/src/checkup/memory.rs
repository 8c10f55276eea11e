//! Pressure and use: where the memory went, and who waits for it.

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::history::History;
use pagelab_model::pressure::PressureLine;
use pagelab_model::process::ProcessMemory;
use pagelab_model::snapshot::OomScope;
use pagelab_model::{Bytes, Snapshot};

use super::absent;
use crate::style::{bytes, count, percent};
use crate::text::{Column, Page};

/// Use, pressure and huge-page history, a line each.
pub(super) fn summary(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    match &snapshot.meminfo {
        Ok(_) => {
            let usage = checkup.usage.unwrap_or_default();
            let fact = |(name, part): &(&str, Option<Bytes>)| match part {
                Some(part) if part.0 > 0 => format!("{name} {}", bytes(*part)),
                _ => String::new(),
            };
            page.facts("  ", &usage.parts().iter().map(fact).collect::<Vec<_>>(), "   ");
        }
        Err(absence) => page.hanging("  ", &format!("use: {}", absent(absence))),
    }
    let pressure = match &snapshot.pressure {
        Ok(pressure) => format!("pressure 10 s {}", centipercent(pressure.some.avg10_centipercent)),
        Err(_) => String::new(),
    };
    let history = checkup.history.map_or(String::new(), |history| thp_line(&history));
    page.facts("  ", &[pressure, history], "   ");
}

fn thp_line(history: &History) -> String {
    match (history.thp_given, history.thp_refused, history.thp_refusal()) {
        (Some(given), Some(refused), Some((_, share))) => format!(
            "THP faults since boot: {} given, {} refused ({})",
            count(given.into()),
            count(refused.into()),
            percent(share)
        ),
        (Some(_), Some(_), None) => "THP faults since boot: none asked for".to_owned(),
        _ => String::new(),
    }
}

fn centipercent(value: u32) -> String {
    format!("{}.{:02} %", value / 100, value % 100)
}

/// Everything about use and pressure.
pub(super) fn section(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    page.heading("use");
    match &snapshot.meminfo {
        Ok(_) => split(page, checkup),
        Err(absence) => page.hanging("  ", &absent(absence)),
    }
    page.heading("pressure");
    match &snapshot.pressure {
        Ok(pressure) => {
            pressure_line(page, "some task waited", &pressure.some);
            if let Some(full) = &pressure.full {
                pressure_line(page, "all tasks waited", full);
            }
        }
        Err(absence) => page.hanging("  ", &absent(absence)),
    }
    if let Some(history) = checkup.history {
        history_section(page, &history);
    }
    processes(page, snapshot);
    failures(page, snapshot);
}

fn split(page: &mut Page, checkup: &Checkup) {
    let usage = checkup.usage.unwrap_or_default();
    let mut rows = Vec::new();
    let mut row = |name: &str, part: Option<Bytes>| {
        let Some(part) = part else { return };
        let share = usage.share(Some(part)).map_or("–".to_owned(), percent);
        rows.push(vec![name.to_owned(), bytes(part), share]);
    };
    for (name, part) in usage.parts() {
        row(name, part);
        match name {
            "used by programs" => row("  in huge pages", usage.programs_huge),
            "page cache" => row("  to be written", usage.dirty),
            "slab" => row("  reclaimable", usage.slab_reclaimable),
            _ => {}
        }
    }
    row("not accounted", usage.not_accounted);
    row("total", usage.total);
    row("available", usage.available);
    row("swap used", usage.swap_used.filter(|_| usage.swap_total.is_some_and(|total| total.0 > 0)));
    page.table(2, &[Column::left(""), Column::right(""), Column::right("")], &rows);
}

fn pressure_line(page: &mut Page, name: &str, line: &PressureLine) {
    let facts = [
        format!("10 s {}", centipercent(line.avg10_centipercent)),
        format!("60 s {}", centipercent(line.avg60_centipercent)),
        format!("300 s {}", centipercent(line.avg300_centipercent)),
        format!("{} ms since boot", count(u128::from(line.total_us / 1000))),
    ];
    page.facts(&format!("  {name}   "), &facts, "   ");
}

fn history_section(page: &mut Page, history: &History) {
    page.heading("since boot (vmstat)");
    let counters: [(&str, Option<u64>); 13] = [
        ("huge pages given to faults", history.thp_given),
        ("huge pages refused to faults", history.thp_refused),
        ("huge pages got for a collapse", history.thp_collapsed),
        ("collapses without a huge page", history.thp_collapse_refused),
        ("huge pages split", history.thp_split),
        ("stalls in compaction", history.compact_stalls),
        ("… that helped", history.compact_success),
        ("… that did not", history.compact_fail),
        ("pages compaction looked at", history.compact_migrate_scanned),
        ("stalls in reclaim", history.reclaim_stalls),
        ("refaults of reclaimed pages", history.refaults),
        ("pages swapped in or out", history.swapped),
        ("processes killed for memory", history.oom_kills),
    ];
    let cell = |value: Option<u64>| value.map_or("not counted".to_owned(), |n| count(n.into()));
    let rows: Vec<Vec<String>> =
        counters.iter().map(|(name, value)| vec![(*name).to_owned(), cell(*value)]).collect();
    page.table(2, &[Column::left(""), Column::right("")], &rows);
}

fn processes(page: &mut Page, snapshot: &Snapshot) {
    page.heading("largest processes");
    let coverage = match &snapshot.processes {
        Ok(coverage) => coverage,
        Err(absence) => return page.hanging("  ", &absent(absence)),
    };
    let row = |process: &ProcessMemory| {
        let huge = process.anon_huge.0 + process.shmem_huge.0 + process.file_huge.0;
        let share =
            if process.rss.0 == 0 { "–".to_owned() } else { percent(huge as f64 / process.rss.0 as f64) };
        vec![
            process.pid.to_string(),
            process.name.clone().unwrap_or_else(|| "–".to_owned()),
            bytes(process.rss),
            bytes(process.anonymous),
            bytes(Bytes(huge)),
            share,
            process.eligible.map_or(String::new(), bytes),
        ]
    };
    let rows: Vec<Vec<String>> = coverage.processes.iter().map(row).collect();
    let eligible =
        if coverage.processes.iter().any(|process| process.eligible.is_some()) { "eligible" } else { "" };
    let columns = [
        Column::right("pid"),
        Column::left("name"),
        Column::right("resident"),
        Column::right("anonymous"),
        Column::right("huge"),
        Column::right("share"),
        Column::right(eligible),
    ];
    page.table(2, &columns, &rows);
    if let Some((processes, absence)) = &coverage.unreadable {
        page.hanging("  ", &format!("{} more not read: {}", count((*processes).into()), absent(absence)));
    }
    if coverage.over_budget > 0 {
        let many = coverage.over_budget;
        page.hanging(
            "  ",
            &format!("passed over, because walking their page tables would take too long: {many}"),
        );
    }
    if coverage.budget_spent {
        page.hanging("  ", "the time budget ended the look before all of the largest were read");
    }
}

fn failures(page: &mut Page, snapshot: &Snapshot) {
    page.heading("allocation failures and kills for lack of memory in the kernel log");
    let log = match &snapshot.alloc_failures {
        Ok(log) => log,
        Err(absence) => return page.hanging("  ", &absent(absence)),
    };
    if log.reports.is_empty() && log.kills.is_empty() {
        page.hanging("  ", "none");
    }
    let at =
        |us: Option<u64>| us.map_or(String::new(), |us| format!("{:.1} s after boot, ", us as f64 / 1e6));
    for report in log.reports.iter().rev().take(REPORTS_SHOWN) {
        let order = report.order.map_or(String::new(), |order| format!(" order {order}"));
        page.hanging("  ", &format!("{}{}:{order} {}", at(report.at_us), report.process, report.detail));
    }
    for kill in log.kills.iter().rev().take(REPORTS_SHOWN) {
        let pid = kill.pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
        let what = match (kill.scope, &kill.group) {
            (OomScope::Machine, _) => "the machine ran out of memory".to_owned(),
            (OomScope::ControlGroup, Some(group)) => format!("control group {group} reached its limit"),
            (OomScope::ControlGroup, None) => "its control group reached its limit".to_owned(),
        };
        let limit = kill.limit.map_or(String::new(), |limit| format!(" of {}", bytes(limit)));
        page.hanging("  ", &format!("{}{}{pid} killed: {what}{limit}", at(kill.at_us), kill.process));
    }
    let older = |length: usize| length.saturating_sub(REPORTS_SHOWN);
    let older = older(log.reports.len()) + older(log.kills.len());
    if older > 0 {
        page.hanging("  ", &format!("{older} older ones"));
    }
    if log.log_overwritten {
        page.hanging("  ", "the log's beginning is overwritten: there may have been more");
    }
}

/// The newest failures are enough for a person; JSON has all.
const REPORTS_SHOWN: usize = 5;
