//! Fragmentation by zone and order.

use pagelab_metrics::balance::FreeVerdict;
use pagelab_metrics::checkup::{Checkup, ZoneIndex};
use pagelab_metrics::frag::kernel_decimal;
use pagelab_model::{AbsentWhy, Order, Pages, Snapshot};

use super::absent;
use crate::style::{bytes, count};
use crate::text::{Column, Page};

/// A line a zone: free memory, huge pages now, F_u by order as a row of bars.
pub(super) fn summary(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    if let Err(absence) = &snapshot.buddyinfo {
        page.hanging("  ", &format!("free blocks: {}", absent(absence)));
        return;
    }
    let orders = checkup.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(0);
    let style = page.style();
    let order = snapshot.pmd_order.index();
    let rows: Vec<Vec<String>> = checkup
        .zones
        .iter()
        .map(|zone| {
            let bars: String = zone.unusable.iter().map(|&share| style.spark(share)).collect();
            vec![
                zone.key.node.0.to_string(),
                zone.key.zone.clone(),
                bytes(zone.free),
                count(zone.huge_now.into()),
                bars,
                zone.unusable_permille
                    .get(order)
                    .map_or("–".to_owned(), |&index| kernel_decimal(index as i64)),
            ]
        })
        .collect();
    let bars_title = format!("F_u by order 0 … {}", orders.saturating_sub(1));
    let huge_title = format!("{} pages now", bytes(snapshot.machine.page_size.block(snapshot.pmd_order)));
    let index_title = format!("F_u({order})");
    let columns = [
        Column::right("node"),
        Column::left("zone"),
        Column::right("free"),
        Column::right(&huge_title),
        Column::left(&bars_title),
        Column::right(&index_title),
    ];
    page.table(2, &columns, &rows);
    deferred(page, snapshot, checkup);
}

/// Memory that is free and stands on no list yet would otherwise look like a hole in the table.
fn deferred(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    let Some(balance) = checkup.balance else { return };
    let size = |pages: Pages| bytes(pages.bytes(snapshot.machine.page_size));
    let text = match balance.verdict {
        FreeVerdict::Agree => return,
        FreeVerdict::Deferred(pages) => {
            format!("+ {} free, whole, not initialised yet (deferred; MemFree counts it)", size(pages))
        }
        FreeVerdict::Unaccepted(pages) => {
            format!("+ {} free, whole, not accepted from the host yet (MemFree counts it)", size(pages))
        }
        FreeVerdict::Unexplained => format!(
            "MemFree says {}, these lists {}: not of one moment, or unexplained",
            size(Pages(balance.counted)),
            size(Pages(balance.on_lists))
        ),
    };
    page.hanging("  ", &text);
}

/// Every index of every zone and order.
pub(super) fn section(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup, paper: bool) {
    page.heading("fragmentation by order");
    for zone in &checkup.zones {
        page.line(format!("  node {} {}, {} free", zone.key.node.0, zone.key.zone, bytes(zone.free)));
        zone_table(page, snapshot, zone, paper);
    }
    page.hanging(
        "  ",
        "F_u: share of the free memory that blocks of this order cannot use. F_i, where a request would \
         fail: 0 for lack of memory, 1 for fragmentation; -1.000 where it would succeed (mm/vmstat.c)",
    );
    kernel_files(page, snapshot, checkup);
    free_counts(page, snapshot, checkup);
    watermarks(page, snapshot);
    by_type(page, snapshot);
}

fn zone_table(page: &mut Page, snapshot: &Snapshot, zone: &ZoneIndex, paper: bool) {
    let size = snapshot.machine.page_size;
    let rows: Vec<Vec<String>> = (0..zone.areas.orders())
        .map(|j| {
            let order = Order(j as u8);
            let mut row = vec![
                j.to_string(),
                bytes(size.block(order)),
                count(zone.areas.blocks(order).into()),
                kernel_decimal(zone.unusable_permille[j] as i64),
                kernel_decimal(zone.fragmentation_permille[j]),
            ];
            if paper {
                row.push(format!("{:.3}", zone.fragmentation_paper[j]));
            }
            row
        })
        .collect();
    let mut columns = vec![
        Column::right("order"),
        Column::right("block"),
        Column::right("free blocks"),
        Column::right("F_u"),
        Column::right("F_i"),
    ];
    if paper {
        columns.push(Column::right("F_i (paper)"));
    }
    page.table(4, &columns, &rows);
}

/// Sizes and watermarks of the zones that have memory.
fn watermarks(page: &mut Page, snapshot: &Snapshot) {
    page.heading("zones and watermarks");
    let zones = match &snapshot.zoneinfo {
        Ok(info) => &info.zones,
        Err(absence) => return page.hanging("  ", &absent(absence)),
    };
    let size = snapshot.machine.page_size;
    let cell = |pages: Option<Pages>| pages.map_or("–".to_owned(), |pages| bytes(pages.bytes(size)));
    let rows: Vec<Vec<String>> = zones
        .iter()
        .filter(|zone| zone.present.is_none_or(|present| present.0 > 0))
        .map(|zone| {
            vec![
                zone.key.node.0.to_string(),
                zone.key.zone.clone(),
                cell(zone.present),
                cell(zone.managed),
                cell(zone.min),
                cell(zone.low),
                cell(zone.high),
                cell(Some(zone.pages_per_cpu())),
            ]
        })
        .collect();
    let columns = [
        Column::right("node"),
        Column::left("zone"),
        Column::right("present"),
        Column::right("managed"),
        Column::right("min"),
        Column::right("low"),
        Column::right("high"),
        Column::right("per-CPU lists"),
    ];
    page.table(2, &columns, &rows);
}

fn kernel_files(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    let text = match (&checkup.comparison, &snapshot.extfrag) {
        (Some(comparison), _) => format!(
            "the kernel's own files: {} of {} cells equal, buddyinfo unmoved on try {}",
            comparison.cells - comparison.differ,
            comparison.cells,
            comparison.tries
        ),
        (None, Err(absence)) if absence.why == AbsentWhy::Moving => {
            format!("the kernel's own files: {}", absence.reason())
        }
        (None, Err(absence)) => format!("the kernel's own files: {}", absent(absence)),
        (None, Ok(_)) => return,
    };
    page.hanging("  ", &text);
}

fn free_counts(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    let Some(balance) = checkup.balance else { return };
    let size = snapshot.machine.page_size;
    let of = |pages: u64| bytes(Pages(pages).bytes(size));
    let verdict = match balance.verdict {
        FreeVerdict::Agree => format!("they agree within {} pages", balance.tolerance),
        FreeVerdict::Deferred(pages) => format!(
            "{} of the difference are memory that is not initialised yet ({} present and not managed)",
            bytes(pages.bytes(size)),
            balance.unmanaged.map_or("unknown".to_owned(), of)
        ),
        FreeVerdict::Unaccepted(pages) => {
            format!("{} are not accepted from the host yet (Unaccepted in meminfo)", bytes(pages.bytes(size)))
        }
        FreeVerdict::Unexplained => "nothing that was read explains the difference".to_owned(),
    };
    page.hanging(
        "  ",
        &format!(
            "free on the lists {} (buddyinfo), by the counter {} (MemFree): {verdict}; {} pages moved \
             meanwhile",
            of(balance.on_lists),
            of(balance.counted),
            snapshot.free_moved.0
        ),
    );
}

fn by_type(page: &mut Page, snapshot: &Snapshot) {
    let types = match &snapshot.pagetypeinfo {
        Ok(types) => types,
        Err(absence) if absence.why == AbsentWhy::NotAsked => return,
        Err(absence) => {
            page.hanging("  ", &format!("by migratetype: {}", absent(absence)));
            return;
        }
    };
    page.heading("free blocks by migratetype");
    for row in &types.free {
        let cell = |count: &pagelab_model::pagetype::TypeCount| match count {
            pagelab_model::pagetype::TypeCount::Exact(n) => n.to_string(),
            pagelab_model::pagetype::TypeCount::MoreThan(n) => format!(">{n}"),
        };
        let cells: Vec<String> = row.counts.iter().map(cell).collect();
        let first = format!("  {} {:<8} {:<12} ", row.key.node.0, row.key.zone, row.migratetype);
        page.facts(&first, &cells, " ");
    }
    page.heading("pageblocks by migratetype");
    for row in &types.blocks {
        let cells: Vec<String> = row.counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
        page.facts(&format!("  {} {:<8} ", row.key.node.0, row.key.zone), &cells, " · ");
    }
}
