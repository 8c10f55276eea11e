//! Fragmentation by zone and order.

use pagelab_metrics::balance::FreeVerdict;
use pagelab_metrics::checkup::{Checkup, ZoneFragmentation};
use pagelab_metrics::fragmentation_index::{all_would_succeed, format_kernel_decimal};
use pagelab_model::pagetype::CappedCount;
use pagelab_model::{AbsenceReason, Order, Pages, Snapshot, ZoneEntry};

use super::absence_text;
use crate::style::{format_bytes, format_count};
use crate::text_report::{RowTable, TextReport};

/// Writes a line per zone: free memory, huge pages now, F_u by order as a bar chart.
pub(super) fn write_summary(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    if let Err(absence) = &snapshot.buddyinfo {
        output.add_indented(&format!("free blocks: {}", absence_text(absence)));
        return;
    }
    let orders = checkup.zones.iter().map(|zone| zone.free_areas.orders()).max().unwrap_or(0);
    let style = output.style();
    let order = snapshot.pmd_order.index();
    let huge_title =
        format!("{} pages now", format_bytes(snapshot.machine.page_size.block_bytes(snapshot.pmd_order)));
    RowTable::<&ZoneFragmentation>::new()
        .right("node", |zone| zone.key.node.0.to_string())
        .left("zone", |zone| zone.key.zone.clone())
        .right("free", |zone| format_bytes(zone.free))
        .right(huge_title, |zone| format_count(zone.free_huge_pages.into()))
        .left(format!("F_u by order 0 … {}", orders.saturating_sub(1)), |zone| {
            zone.unusable.iter().map(|&share| style.spark_char(share)).collect()
        })
        .right(format!("F_u({order})"), |zone| {
            let index = zone.unusable_permille.get(order);
            index.map_or("–".to_owned(), |&index| format_kernel_decimal(index as i64))
        })
        .add_to(output, 2, &checkup.zones);
    write_unlisted_free(output, snapshot, checkup);
}

/// Reports free memory that is on no free list yet; otherwise the table would appear to lack it.
fn write_unlisted_free(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    let Some(balance) = checkup.balance else { return };
    let size = |pages: Pages| format_bytes(pages.to_bytes(snapshot.machine.page_size));
    let text = match balance.verdict {
        FreeVerdict::Agree => return,
        FreeVerdict::Deferred(pages) => {
            format!("+ {} free, not yet initialised (deferred; counted in MemFree)", size(pages))
        }
        FreeVerdict::Unaccepted(pages) => {
            format!("+ {} free, not yet accepted from the host (counted in MemFree)", size(pages))
        }
        FreeVerdict::Unexplained | FreeVerdict::Undetermined => format!(
            "MemFree is {}, these lists add up to {}: read at different times, or unexplained",
            size(Pages(balance.nr_free_pages)),
            size(Pages(balance.pages_on_lists))
        ),
    };
    output.add_indented(&text);
}

pub(super) fn write_section(
    output: &mut TextReport,
    snapshot: &Snapshot,
    checkup: &Checkup,
    with_paper_index: bool,
) {
    output.add_heading("fragmentation by order");
    let mut left_out = "";
    for zone in &checkup.zones {
        output.add_line(format!(
            "  node {} {}, {} free",
            zone.key.node.0,
            zone.key.zone,
            format_bytes(zone.free)
        ));
        if write_zone_table(output, snapshot, zone, with_paper_index) {
            left_out = ". No F_i column: all requests in that zone would succeed";
        }
    }
    output.add_indented(&format!(
        "F_u: share of free memory that is unusable for blocks of this order. F_i of a request that would \
         fail: towards 0 for lack of memory, towards 1 for fragmentation; -1.000 if it would succeed \
         (mm/vmstat.c){left_out}"
    ));
    write_kernel_files(output, snapshot, checkup);
    write_free_counts(output, snapshot, checkup);
    write_watermarks(output, snapshot);
    write_migratetypes(output, snapshot);
}

/// Writes a line per order. F_i is left out if all requests would succeed; returns whether it is.
fn write_zone_table(
    output: &mut TextReport,
    snapshot: &Snapshot,
    zone: &ZoneFragmentation,
    with_paper_index: bool,
) -> bool {
    let left_out = all_would_succeed(zone.fragmentation_permille.iter().copied());
    let size = snapshot.machine.page_size;
    RowTable::<usize>::new()
        .right("order", usize::to_string)
        .right("block", |&order| format_bytes(size.block_bytes(Order(order as u8))))
        .right("free blocks", |&order| format_count(zone.free_areas.blocks(Order(order as u8)).into()))
        .right("F_u", |&order| format_kernel_decimal(zone.unusable_permille[order] as i64))
        .right_if(!left_out, "F_i", |&order| format_kernel_decimal(zone.fragmentation_permille[order]))
        .right_if(with_paper_index, "F_i (paper)", |&order| format!("{:.3}", zone.fragmentation_paper[order]))
        .add_to(output, 4, 0..zone.free_areas.orders());
    left_out
}

/// Writes the sizes and watermarks of the zones that have memory.
fn write_watermarks(output: &mut TextReport, snapshot: &Snapshot) {
    output.add_heading("zones and watermarks");
    let zones = match &snapshot.zoneinfo {
        Ok(info) => &info.zones,
        Err(absence) => return output.add_indented(&absence_text(absence)),
    };
    let size = snapshot.machine.page_size;
    let cell =
        |pages: Option<Pages>| pages.map_or("–".to_owned(), |pages| format_bytes(pages.to_bytes(size)));
    RowTable::<&ZoneEntry>::new()
        .right("node", |zone| zone.key.node.0.to_string())
        .left("zone", |zone| zone.key.zone.clone())
        .right("present", |zone| cell(zone.present))
        .right("managed", |zone| cell(zone.managed))
        .right("min", |zone| cell(zone.min))
        .right("low", |zone| cell(zone.low))
        .right("high", |zone| cell(zone.high))
        .right("per-CPU lists", |zone| cell(Some(zone.count_pcp_pages())))
        .add_to(output, 2, zones.iter().filter(|zone| zone.present.is_none_or(|present| present.0 > 0)));
}

fn write_kernel_files(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    let text = match (&checkup.index_comparison, &snapshot.extfrag) {
        (Some(comparison), _) => format!(
            "debugfs extfrag files: {} of {} values match, buddyinfo unchanged on try {}",
            comparison.cells - comparison.differing,
            comparison.cells,
            comparison.tries
        ),
        (None, Err(absence)) if absence.why == AbsenceReason::Changing => {
            format!("debugfs extfrag files: {}", absence.reason())
        }
        (None, Err(absence)) => format!("debugfs extfrag files: {}", absence_text(absence)),
        (None, Ok(_)) => return,
    };
    output.add_indented(&text);
}

fn write_free_counts(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    let Some(balance) = checkup.balance else { return };
    let size = snapshot.machine.page_size;
    let areas = |pages: u64| format_bytes(Pages(pages).to_bytes(size));
    let verdict = match balance.verdict {
        FreeVerdict::Agree => format!("they agree within {} pages", balance.tolerance),
        FreeVerdict::Deferred(pages) => format!(
            "{} of the difference is memory not yet initialised ({} present but not managed)",
            format_bytes(pages.to_bytes(size)),
            balance.unmanaged.map_or("unknown".to_owned(), areas)
        ),
        FreeVerdict::Unaccepted(pages) => {
            format!(
                "{} is not yet accepted from the host (Unaccepted in meminfo)",
                format_bytes(pages.to_bytes(size))
            )
        }
        FreeVerdict::Unexplained => "the difference is unexplained".to_owned(),
        FreeVerdict::Undetermined => "the difference cannot be judged".to_owned(),
    };
    let changed = match &snapshot.free_moved {
        Ok(pages) => format!("{} pages changed between the reads", pages.0),
        Err(absence) => format!("the change between the reads is unknown ({})", absence_text(absence)),
    };
    output.add_indented(&format!(
        "free memory: {} on the free lists (buddyinfo), {} by the counter (MemFree): {verdict}; {changed}",
        areas(balance.pages_on_lists),
        areas(balance.nr_free_pages)
    ));
}

fn write_migratetypes(output: &mut TextReport, snapshot: &Snapshot) {
    let types = match &snapshot.pagetypeinfo {
        Ok(types) => types,
        Err(absence) if absence.why == AbsenceReason::NotRequested => return,
        Err(absence) => {
            output.add_indented(&format!("by migratetype: {}", absence_text(absence)));
            return;
        }
    };
    output.add_heading("free blocks by migratetype");
    for row in &types.free {
        let cell = |count: &CappedCount| match count {
            CappedCount::Exact(n) => n.to_string(),
            CappedCount::MoreThan(n) => format!(">{n}"),
        };
        let cells: Vec<String> = row.counts.iter().map(cell).collect();
        let first = format!("  {} {:<8} {:<12} ", row.key.node.0, row.key.zone, row.migratetype);
        output.add_facts(&first, &cells, " ");
    }
    output.add_heading("pageblocks by migratetype");
    for row in &types.blocks {
        let cells: Vec<String> = row.counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
        output.add_facts(&format!("  {} {:<8} ", row.key.node.0, row.key.zone), &cells, " · ");
    }
}
