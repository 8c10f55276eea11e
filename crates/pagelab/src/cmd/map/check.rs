//! `pagelab map --check`: free blocks rebuilt from kpageflags against buddyinfo.

use pagelab_host::page_map::{Around, MapScan};
use pagelab_model::{CensusZone, ZoneInfo};
use pagelab_report::json;
use pagelab_report::map::MapSource;
use pagelab_report::map::check::{CheckReport, Verdict, ZoneCheck};

use super::moment::{self, Moment};
use super::plan::Plan;
use super::{print, print_json};
use crate::cmd::unread;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// Scans of a live machine: the one that agrees best counts, since a disturbance comes and goes, and a
/// mistake stays.
const TRIES: u32 = 3;

/// Compares, and answers with the exit code.
pub fn run(plan: &Plan, moment: &Moment) -> Outcome {
    let root = moment.root()?;
    let mut best: Option<CheckReport> = None;
    let mut tries = 0;
    for _ in 0..if root.is_live() { TRIES } else { 1 } {
        tries += 1;
        let (source, scan, notes) = moment::scan(&root, plan)?;
        let report = report(source, &scan, notes)?;
        let outside = |report: &CheckReport| report.zones.iter().map(ZoneCheck::outside_pages).sum::<u128>();
        if best.as_ref().is_none_or(|best| outside(&report) < outside(best)) {
            best = Some(report);
        }
        if best.as_ref().is_some_and(|best| best.verdict() == Verdict::Exact) {
            break;
        }
    }
    let Some(mut report) = best else { return Err(Failure::new(Exit::Bug, "nothing was scanned")) };
    report.tries = tries;
    match plan.json {
        true => print_json(&json::map::check(&report))?,
        false => print(&report.text(&out::style()))?,
    };
    Ok(if report.verdict() == Verdict::Disagrees { Exit::No } else { Exit::Done })
}

fn report(source: MapSource, scan: &MapScan, notes: Vec<String>) -> Result<CheckReport, Failure> {
    let buddy = scan.before.buddyinfo.clone().map_err(unread)?;
    let zone = |zone: &CensusZone| {
        let counts = |around: &Around| {
            let areas = around.buddyinfo.as_ref().ok()?.zone(&zone.key)?;
            Some(areas.counts().to_vec())
        };
        ZoneCheck {
            key: zone.key.clone(),
            rebuilt: zone.free_blocks.as_ref().map(|areas| areas.counts().to_vec()).unwrap_or_default(),
            before: buddy.zone(&zone.key).map(|areas| areas.counts().to_vec()).unwrap_or_default(),
            after: scan.after.as_ref().and_then(counts),
            churn: churn(scan, zone),
            per_cpu: zone.per_cpu.map_or(0, |pages| pages.0),
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

/// Pages allocated from the zone and freed to any between the readings, and how many more or fewer are on
/// per-CPU lists.
fn churn(scan: &MapScan, zone: &CensusZone) -> Option<u64> {
    let after = scan.after.as_ref()?;
    let (old, new) = (scan.before.vmstat.as_ref().ok()?, after.vmstat.as_ref().ok()?);
    let more = |name: &str| Some(new.get(name)?.saturating_sub(old.get(name)?));
    // `HighMem` counts as `pgalloc_high`.
    let name = zone.key.zone.to_ascii_lowercase();
    let allocated = more(&format!("pgalloc_{}", name.trim_end_matches("mem")))?;
    let on_lists =
        |around: &Around| around.zoneinfo.zone(&zone.key).map_or(0, |z: &ZoneInfo| z.pages_per_cpu().0);
    let moved = on_lists(after).abs_diff(on_lists(&scan.before));
    Some(allocated + more("pgfree")? + moved)
}
