//! Pressure and use of memory, and the tasks that wait for it.

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::history::VmstatHistory;
use pagelab_model::pressure::PressureLine;
use pagelab_model::process::ProcessMemory;
use pagelab_model::snapshot::OomScope;
use pagelab_model::{Bytes, Snapshot};

use super::absence_text;
use crate::style::{format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, TableColumn, TextReport};

/// Writes use, pressure and huge-page history, a line each.
pub(super) fn write_summary(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    match &snapshot.meminfo {
        Ok(_) => {
            let usage = checkup.usage.unwrap_or_default();
            let fact = |(name, part): &(&str, Option<Bytes>)| match part {
                Some(part) if part.0 > 0 => format!("{name} {}", format_bytes(*part)),
                _ => String::new(),
            };
            output.add_facts("  ", &usage.parts().iter().map(fact).collect::<Vec<_>>(), "   ");
        }
        Err(absence) => output.add_indented(&format!("use: {}", absence_text(absence))),
    }
    let pressure = match &snapshot.pressure {
        Ok(pressure) => format!("pressure 10 s {}", centipercent_text(pressure.some.avg10_centipercent)),
        Err(_) => String::new(),
    };
    let history = checkup.history.map_or(String::new(), |history| thp_history_text(&history));
    output.add_facts("  ", &[pressure, history], "   ");
}

fn thp_history_text(history: &VmstatHistory) -> String {
    match (history.thp_fault_alloc, history.thp_fault_fallback, history.thp_fallback_share()) {
        (Some(given), Some(refused), Some((_, share))) => format!(
            "THP faults since boot: {} allocated, {} fell back ({})",
            format_count(given.into()),
            format_count(refused.into()),
            format_percent(share)
        ),
        (Some(_), Some(_), None) => "THP faults since boot: none".to_owned(),
        _ => String::new(),
    }
}

fn centipercent_text(value: u32) -> String {
    format!("{}.{:02} %", value / 100, value % 100)
}

pub(super) fn write_section(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    output.add_heading("use");
    match &snapshot.meminfo {
        Ok(_) => write_usage(output, checkup),
        Err(absence) => output.add_indented(&absence_text(absence)),
    }
    output.add_heading("pressure");
    match &snapshot.pressure {
        Ok(pressure) => {
            write_pressure(output, "some task waited", &pressure.some);
            if let Some(full) = &pressure.full {
                write_pressure(output, "all tasks waited", full);
            }
        }
        Err(absence) => output.add_indented(&absence_text(absence)),
    }
    if let Some(history) = checkup.history {
        write_history(output, &history);
    }
    write_processes(output, snapshot);
    write_alloc_failures(output, snapshot);
}

fn write_usage(output: &mut TextReport, checkup: &Checkup) {
    let usage = checkup.usage.unwrap_or_default();
    let mut rows = Vec::new();
    let mut row = |name: &str, part: Option<Bytes>| {
        let Some(part) = part else { return };
        let share = usage.share(Some(part)).map_or("–".to_owned(), format_percent);
        rows.push(vec![name.to_owned(), format_bytes(part), share]);
    };
    for (name, part) in usage.parts() {
        row(name, part);
        match name {
            "used by programs" => row("  in huge pages", usage.thp_mapped),
            "page cache" => row("  dirty or under writeback", usage.dirty),
            "slab" => row("  reclaimable", usage.slab_reclaimable),
            _ => {}
        }
    }
    row("not accounted for", usage.unaccounted);
    row("total", usage.total);
    row("available", usage.available);
    row("swap used", usage.swap_used.filter(|_| usage.swap_total.is_some_and(|total| total.0 > 0)));
    output.add_table(2, &[TableColumn::left(""), TableColumn::right(""), TableColumn::right("")], &rows);
}

fn write_pressure(output: &mut TextReport, name: &str, line: &PressureLine) {
    let facts = [
        format!("10 s {}", centipercent_text(line.avg10_centipercent)),
        format!("60 s {}", centipercent_text(line.avg60_centipercent)),
        format!("300 s {}", centipercent_text(line.avg300_centipercent)),
        format!("{} ms since boot", format_count(u128::from(line.total_us / 1000))),
    ];
    output.add_facts(&format!("  {name}   "), &facts, "   ");
}

fn write_history(output: &mut TextReport, history: &VmstatHistory) {
    output.add_heading("since boot (vmstat)");
    let counters: [(&str, Option<u64>); 13] = [
        ("THP faults: allocated", history.thp_fault_alloc),
        ("THP faults: fell back", history.thp_fault_fallback),
        ("THP collapses: allocated", history.thp_collapse_alloc),
        ("THP collapses: failed", history.thp_collapse_alloc_failed),
        ("THPs split", history.thp_split),
        ("stalls in direct compaction", history.compact_stalls),
        ("… that succeeded", history.compact_success),
        ("… that failed", history.compact_fail),
        ("pages scanned by compaction", history.compact_migrate_scanned),
        ("stalls in direct reclaim", history.reclaim_stalls),
        ("refaults of reclaimed pages", history.refaults),
        ("pages swapped in or out", history.swapped),
        ("OOM kills", history.oom_kills),
    ];
    let cell = |value: Option<u64>| value.map_or("not counted".to_owned(), |n| format_count(n.into()));
    let rows: Vec<Vec<String>> =
        counters.iter().map(|(name, value)| vec![(*name).to_owned(), cell(*value)]).collect();
    output.add_table(2, &[TableColumn::left(""), TableColumn::right("")], &rows);
}

fn write_processes(output: &mut TextReport, snapshot: &Snapshot) {
    output.add_heading("largest processes, most huge pages first");
    let coverage = match &snapshot.processes {
        Ok(coverage) => coverage,
        Err(absence) => return output.add_indented(&absence_text(absence)),
    };
    let huge = |process: &ProcessMemory| process.anon_huge.0 + process.shmem_huge.0 + process.file_huge.0;
    let mut processes: Vec<&ProcessMemory> = coverage.processes.iter().collect();
    processes.sort_by_key(|process| std::cmp::Reverse((huge(process), process.rss)));
    let has_eligible = coverage.processes.iter().any(|process| process.eligible.is_some());
    RowTable::<&ProcessMemory>::new()
        .right("pid", |process| process.pid.to_string())
        .left("name", |process| process.name.clone().unwrap_or_else(|| "–".to_owned()))
        .right("resident", |process| format_bytes(process.rss))
        .right("anonymous", |process| format_bytes(process.anonymous))
        .right("huge", |process| format_bytes(Bytes(huge(process))))
        .right("huge share", |process| match process.rss.0 {
            0 => "–".to_owned(),
            resident => format_percent(huge(process) as f64 / resident as f64),
        })
        .right_if(has_eligible, "THP-eligible", |process| {
            process.eligible.map_or(String::new(), format_bytes)
        })
        .add_to(output, 2, processes);
    if let Some((processes, absence)) = &coverage.unreadable {
        output.add_indented(&format!(
            "{} more not read: {}",
            format_count((*processes).into()),
            absence_text(absence)
        ));
    }
    if coverage.skipped_over_budget > 0 {
        let many = coverage.skipped_over_budget;
        output.add_indented(&format!("{many} skipped: walking their page tables would take too long"));
    }
    if coverage.is_budget_spent {
        output.add_indented("time limit reached before all of the largest processes were read");
    }
}

fn write_alloc_failures(output: &mut TextReport, snapshot: &Snapshot) {
    output.add_heading("allocation failures and OOM kills in the kernel log");
    let log = match &snapshot.alloc_failures {
        Ok(log) => log,
        Err(absence) => return output.add_indented(&absence_text(absence)),
    };
    if log.reports.is_empty() && log.kills.is_empty() {
        output.add_indented("none");
    }
    let report_time =
        |us: Option<u64>| us.map_or(String::new(), |us| format!("{:.1} s after boot, ", us as f64 / 1e6));
    for report in log.reports.iter().rev().take(FAILURES_MAX) {
        let order = report.order.map_or(String::new(), |order| format!(" order {order}"));
        output.add_indented(&format!(
            "{}{}:{order} {}",
            report_time(report.at_us),
            report.process,
            report.detail
        ));
    }
    for kill in log.kills.iter().rev().take(FAILURES_MAX) {
        let pid = kill.pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
        let what = match (kill.scope, &kill.group) {
            (OomScope::Machine, _) => "the machine ran out of memory".to_owned(),
            (OomScope::ControlGroup, Some(group)) => format!("cgroup {group} reached its limit"),
            (OomScope::ControlGroup, None) => "its cgroup reached its limit".to_owned(),
        };
        let limit = kill.limit.map_or(String::new(), |limit| format!(" of {}", format_bytes(limit)));
        output.add_indented(&format!(
            "{}{}{pid} killed: {what}{limit}",
            report_time(kill.at_us),
            kill.process
        ));
    }
    let older = |length: usize| length.saturating_sub(FAILURES_MAX);
    let older = older(log.reports.len()) + older(log.kills.len());
    if older > 0 {
        output.add_indented(&format!("{older} older entries"));
    }
    if log.log_overwritten {
        output.add_indented("the start of the log was overwritten: there may be more");
    }
}

/// Failures shown, at most, the newest; JSON has all.
const FAILURES_MAX: usize = 5;
