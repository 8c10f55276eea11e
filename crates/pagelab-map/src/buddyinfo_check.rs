//! `pagelab map --check`: comparison of free blocks rebuilt from kpageflags with buddyinfo.

use pagelab_command::exit::{Exit, Failure, FailureKind, Outcome, absence_failure};
use pagelab_command::output;
use pagelab_host::page_map::{KernelCounts, PageMapScan};
use pagelab_model::{CensusZone, ZoneEntry};
use pagelab_report::json;
use pagelab_report::map::MapSource;
use pagelab_report::map::check::{CheckReport, CheckVerdict, ZoneCheck};

use super::plan::{MapPlan, MapSourceArg};
use super::{moment, print, print_json};

/// Scans of a live machine. The scan that agrees best counts: a disturbance is temporary, a mistake is
/// permanent.
const SCANS_MAX: u32 = 3;

/// Compares both counts and reports the result as the exit code.
pub fn run(plan: &MapPlan, moment: &MapSourceArg) -> Outcome {
    let root = moment.root()?;
    let mut best: Option<CheckReport> = None;
    let mut tries = 0;
    for _ in 0..if root.is_live() { SCANS_MAX } else { 1 } {
        tries += 1;
        let (source, scan, notes) = moment::scan_map(&root, plan)?;
        let report = build_report(source, &scan, notes)?;
        let outside =
            |report: &CheckReport| report.zones.iter().map(ZoneCheck::deviation_pages).sum::<u128>();
        if best.as_ref().is_none_or(|best| outside(&report) < outside(best)) {
            best = Some(report);
        }
        if best.as_ref().is_some_and(|best| best.worst_verdict() == CheckVerdict::Exact) {
            break;
        }
    }
    let Some(mut report) = best else {
        return Err(Failure::cannot(FailureKind::Bug, "check buddyinfo", "nothing was scanned"));
    };
    report.tries = tries;
    match plan.json {
        true => print_json(&json::map::check_document(&report))?,
        false => print(&report.to_text(&output::stdout_style()))?,
    };
    Ok(if report.worst_verdict() == CheckVerdict::Disagrees { Exit::NegativeAnswer } else { Exit::Success })
}

fn build_report(source: MapSource, scan: &PageMapScan, notes: Vec<String>) -> Result<CheckReport, Failure> {
    let buddy = scan.counts_before.buddyinfo.clone().map_err(absence_failure)?;
    let zone = |zone: &CensusZone| {
        let counts = |around: &KernelCounts| {
            let areas = around.buddyinfo.as_ref().ok()?.zone(&zone.key)?;
            Some(areas.counts().to_vec())
        };
        ZoneCheck {
            key: zone.key.clone(),
            from_pageflags: zone
                .free_blocks
                .as_ref()
                .map(|areas| areas.counts().to_vec())
                .unwrap_or_default(),
            buddyinfo_before: buddy.zone(&zone.key).map(|areas| areas.counts().to_vec()).unwrap_or_default(),
            buddyinfo_after: scan.counts_after.as_ref().and_then(counts),
            pages_moved: zone_churn(scan, zone),
            pcp_pages: zone.per_cpu.map_or(0, |pages| pages.0),
        }
    };
    Ok(CheckReport {
        source,
        page_size: scan.map.layout.page_size,
        zones: scan.census.zones.iter().map(zone).collect(),
        scan_ns: scan.map.ended_ns - scan.map.started_ns.min(scan.map.ended_ns),
        tries: 1,
        notes,
    })
}

/// Pages allocated from the zone and freed to any zone between the readings, plus the change of the per-CPU
/// lists.
fn zone_churn(scan: &PageMapScan, zone: &CensusZone) -> Option<u64> {
    let after = scan.counts_after.as_ref()?;
    let (old, new) = (scan.counts_before.vmstat.as_ref().ok()?, after.vmstat.as_ref().ok()?);
    let growth = |name: &str| Some(new.get(name)?.saturating_sub(old.get(name)?));
    // The counter `pgalloc_high` counts `HighMem`.
    let name = zone.key.zone.to_ascii_lowercase();
    let allocated = growth(&format!("pgalloc_{}", name.trim_end_matches("mem")))?;
    let on_lists = |around: &KernelCounts| {
        around.zoneinfo.zone(&zone.key).map_or(0, |z: &ZoneEntry| z.count_pcp_pages().0)
    };
    let moved = on_lists(after).abs_diff(on_lists(&scan.counts_before));
    Some(allocated + growth("pgfree")? + moved)
}
