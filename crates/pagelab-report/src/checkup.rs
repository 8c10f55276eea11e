//! `pagelab checkup` on a terminal: a summary of one screen, and the full report with `-v`.

mod fragmentation;
mod huge_pages;
mod machine;
mod memory;
mod probe;

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::fragmentation_index::format_kernel_decimal;
use pagelab_model::{Absence, Snapshot};

use crate::findings::describe_finding;
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::TextReport;

pub(crate) use machine::write_section as write_machine;
pub use machine::{cache_and_tlb_facts, list_headline_facts};

/// Display options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Print all details.
    pub verbose: bool,
    /// Shows the paper's F_i beside the kernel's.
    pub with_paper_index: bool,
    /// The snapshot comes from a run file and is shown by `report`.
    pub is_saved: bool,
}

/// Renders the report of one snapshot.
pub fn render(snapshot: &Snapshot, checkup: &Checkup, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    machine::write_headline(&mut output, snapshot);
    output.add_gap();
    write_findings(&mut output, snapshot, checkup);
    output.add_gap();
    fragmentation::write_summary(&mut output, snapshot, checkup);
    output.add_gap();
    memory::write_summary(&mut output, snapshot, checkup);
    if view.verbose {
        machine::write_section(&mut output, snapshot);
        fragmentation::write_section(&mut output, snapshot, checkup, view.with_paper_index);
        huge_pages::write_section(&mut output, snapshot, checkup);
        memory::write_section(&mut output, snapshot, checkup);
        machine::write_instruments(&mut output, snapshot);
    } else {
        huge_pages::write_summary(&mut output, snapshot, checkup);
    }
    if let Some(results) = &snapshot.probe {
        probe::write_section(&mut output, results);
    }
    write_problems(&mut output, snapshot);
    output.add_gap();
    if !view.verbose {
        machine::write_unavailable_instruments(&mut output, snapshot);
        output.add_dim_text(&next_step_hint(snapshot, view));
    }
    output.into_text()
}

/// Further options of the running command.
fn next_step_hint(snapshot: &Snapshot, view: View) -> String {
    let can_probe = snapshot.probe.is_none() && snapshot.taken.euid.is_some();
    let more = match (view.is_saved, can_probe) {
        (true, _) => "--html FILE · --tables DIR",
        (false, true) => "--html FILE · --probe: measure the benefit of huge pages",
        (false, false) => "--html FILE",
    };
    format!("-v for everything · --json · {more}")
}

/// Renders only the findings that call for action, for `--brief` and cron. Empty if there are none.
pub fn render_brief(snapshot: &Snapshot, checkup: &Checkup, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let to_act_on: Vec<_> = checkup.findings.iter().filter(|finding| finding.needs_action()).collect();
    if to_act_on.is_empty() {
        return String::new();
    }
    for finding in to_act_on {
        output.add_text(&describe_finding(finding, snapshot).sentence);
    }
    output.into_text()
}

fn write_findings(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    let style = output.style();
    if let Some(verdict) = no_finding_text(snapshot, checkup) {
        output.add_bold_paragraph("  ", &verdict);
        return;
    }
    for (at, finding) in checkup.findings.iter().enumerate() {
        let worded = describe_finding(finding, snapshot);
        output.add_bold_paragraph(&format!("{:>3}  ", at + 1), &worded.sentence);
        output.add_paragraph("     ", &worded.evidence);
        let lines = worded.step_lines(snapshot).into_iter();
        let next: Vec<String> = lines.map(|line| style.paint_command(&format!("→ {line}"))).collect();
        output.add_facts("     ", &next, "   ");
    }
}

/// Text shown when there are no findings.
pub fn no_finding_text(snapshot: &Snapshot, checkup: &Checkup) -> Option<String> {
    if !checkup.findings.is_empty() {
        return None;
    }
    let unread = snapshot.list_unread_files();
    Some(if unread.is_empty() {
        format!("nothing to do{}", reassurance_text(snapshot, checkup))
    } else {
        format!("nothing found; not judged, because it cannot be read: {}", unread.join(", "))
    })
}

/// Numbers behind `nothing to do`.
fn reassurance_text(snapshot: &Snapshot, checkup: &Checkup) -> String {
    let cgroup = snapshot.machine.cgroup.as_ref().ok();
    let of_limit = cgroup.and_then(|cgroup| cgroup.memory_used.zip(cgroup.memory_limit));
    let fallback = checkup.history.and_then(|history| history.thp_fallback_share());
    let available = checkup.usage.and_then(|usage| usage.share(usage.available));
    let facts = [
        of_limit.map(|(used, limit)| {
            format!("{} of this cgroup's {} used", format_bytes(used), format_bytes(limit))
        }),
        fallback.map(|(wanted, share)| {
            format!("{} of {} THP faults fell back", format_percent(share), format_count(wanted.into()))
        }),
        available.map(|share| format!("{} of memory available", format_percent(share))),
    ];
    let mut facts: Vec<String> = facts.into_iter().flatten().collect();
    let order = snapshot.pmd_order.index();
    let largest = checkup.zones.iter().max_by_key(|zone| zone.free).filter(|_| facts.is_empty());
    facts.extend(largest.and_then(|zone| {
        let index = format_kernel_decimal(*zone.unusable_permille.get(order)? as i64);
        Some(format!("F_u({order}) {index} in {}", zone.key.zone))
    }));
    if facts.is_empty() { String::new() } else { format!(": {}", facts.join(", ")) }
}

fn write_problems(output: &mut TextReport, snapshot: &Snapshot) {
    if snapshot.problems.is_empty() {
        return;
    }
    output.add_heading("malformed");
    for problem in &snapshot.problems {
        output.add_indented(&problem.message);
    }
}

/// Formats an absence as `not available: source (reason); hint` in one phrase.
fn absence_text(absence: &Absence) -> String {
    match &absence.hint {
        Some(hint) => format!("not available: {} ({}); {hint}", absence.reason(), absence.source),
        None => format!("not available: {} ({})", absence.reason(), absence.source),
    }
}

#[cfg(test)]
pub(crate) mod tests;
