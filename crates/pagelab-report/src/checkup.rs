//! `pagelab checkup` on a terminal: a summary of one screen, and everything behind `-v`.

mod fragmentation;
mod huge;
mod machine;
mod memory;
mod probe;

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::frag::kernel_decimal;
use pagelab_model::{Absence, Snapshot};

use crate::findings::word;
use crate::style::{Style, bytes, count, percent};
use crate::text::Page;

pub use machine::headline_facts;

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// Everything, not the summary alone.
    pub verbose: bool,
    /// The paper's F_i beside the kernel's.
    pub paper: bool,
    /// It is shown out of a run file, by `report`.
    pub saved: bool,
}

/// The report of one look.
pub fn render(snapshot: &Snapshot, checkup: &Checkup, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    machine::headline(&mut page, snapshot);
    page.gap();
    findings(&mut page, snapshot, checkup);
    page.gap();
    fragmentation::summary(&mut page, snapshot, checkup);
    page.gap();
    memory::summary(&mut page, snapshot, checkup);
    if view.verbose {
        machine::section(&mut page, snapshot);
        fragmentation::section(&mut page, snapshot, checkup, view.paper);
        huge::section(&mut page, snapshot, checkup);
        memory::section(&mut page, snapshot, checkup);
        machine::instruments(&mut page, snapshot);
    } else {
        huge::summary(&mut page, snapshot, checkup);
    }
    if let Some(results) = &snapshot.probe {
        probe::section(&mut page, results);
    }
    problems(&mut page, snapshot);
    page.gap();
    if !view.verbose {
        machine::not_seen(&mut page, snapshot);
        page.hanging_dim("", &more(snapshot, view));
    }
    page.finish()
}

/// What else the command can do that is running.
fn more(snapshot: &Snapshot, view: View) -> String {
    let can_probe = snapshot.probe.is_none() && snapshot.taken.euid.is_some();
    let more = match (view.saved, can_probe) {
        (true, _) => "--html FILE · --csv DIR",
        (false, true) => "--html FILE · --probe: what huge pages would buy",
        (false, false) => "--html FILE",
    };
    format!("-v for everything · --json · {more}")
}

/// The machine and its settings, as `-v` tells of them.
pub(crate) fn machine_section(page: &mut Page, snapshot: &Snapshot) {
    machine::section(page, snapshot);
}

/// Caches and TLBs of a machine: a name and a text each.
pub fn geometry(machine: &pagelab_model::Machine) -> [(&'static str, String); 2] {
    machine::geometry(machine)
}

/// The findings to act on alone: for `--brief` and cron. Empty if there is nothing to do.
pub fn brief(snapshot: &Snapshot, checkup: &Checkup, style: Style) -> String {
    let mut page = Page::new(style);
    let to_act_on: Vec<_> = checkup.findings.iter().filter(|finding| finding.needs_action()).collect();
    if to_act_on.is_empty() {
        return String::new();
    }
    for finding in to_act_on {
        page.hanging("", &word(finding, snapshot).sentence);
    }
    page.finish()
}

fn findings(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    let style = page.style();
    if let Some(verdict) = verdict(snapshot, checkup) {
        page.hanging_bold("  ", &verdict);
        return;
    }
    for (at, finding) in checkup.findings.iter().enumerate() {
        let worded = word(finding, snapshot);
        page.hanging_bold(&format!("{:>3}  ", at + 1), &worded.sentence);
        for line in &worded.evidence {
            page.hanging("     ", line);
        }
        let lines = worded.steps(snapshot).into_iter();
        let next: Vec<String> = lines.map(|line| style.command(&format!("→ {line}"))).collect();
        page.facts("     ", &next, "   ");
    }
}

/// What is said in the place of findings where there are none.
pub fn verdict(snapshot: &Snapshot, checkup: &Checkup) -> Option<String> {
    if !checkup.findings.is_empty() {
        return None;
    }
    let unread = snapshot.unread_files();
    Some(if unread.is_empty() {
        format!("nothing to do{}", reassurance(snapshot, checkup))
    } else {
        format!("nothing found; not judged, since it could not be read: {}", unread.join(", "))
    })
}

/// Even "nothing to do" stands on numbers.
fn reassurance(snapshot: &Snapshot, checkup: &Checkup) -> String {
    let mut facts = Vec::new();
    if let Ok(cgroup) = &snapshot.machine.cgroup
        && let (Some(used), Some(limit)) = (cgroup.memory_used, cgroup.memory_limit)
    {
        facts.push(format!("{} of this group's {} used", bytes(used), bytes(limit)));
    }
    if let Some((wanted, share)) = checkup.history.and_then(|history| history.thp_refusal()) {
        let wanted = count(wanted.into());
        facts.push(format!("{} of {wanted} huge-page faults refused", percent(share)));
    }
    if let Some(usage) = checkup.usage
        && let Some(share) = usage.share(usage.available)
    {
        facts.push(format!("{} of memory available", percent(share)));
    }
    let order = snapshot.pmd_order.index();
    let largest = checkup.zones.iter().max_by_key(|zone| zone.free);
    if let Some((zone, index)) = largest.and_then(|zone| Some((zone, zone.unusable_permille.get(order)?)))
        && facts.is_empty()
    {
        facts.push(format!("F_u({order}) {} in {}", kernel_decimal(*index as i64), zone.key.zone));
    }
    if facts.is_empty() { String::new() } else { format!(": {}", facts.join(", ")) }
}

fn problems(page: &mut Page, snapshot: &Snapshot) {
    if snapshot.problems.is_empty() {
        return;
    }
    page.heading("could not be understood");
    for problem in &snapshot.problems {
        page.hanging("  ", &problem.message);
    }
}

/// `source: reason (way out)` in one phrase.
fn absent(absence: &Absence) -> String {
    match &absence.way_out {
        Some(way_out) => format!("not available: {} ({}); {way_out}", absence.reason(), absence.source),
        None => format!("not available: {} ({})", absence.reason(), absence.source),
    }
}

#[cfg(test)]
mod tests;
