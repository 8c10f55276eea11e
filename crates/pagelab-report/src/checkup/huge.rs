//! Huge pages: how many could be had, after what, and what is in the way for ever.

use pagelab_metrics::can::Step;
use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::supply::{Estimate, GiganticSupply, HugeSupply, Supply};
use pagelab_model::{AbsentWhy, Coverage, PageClass, Pages, Snapshot};

use super::absent;
use crate::findings::{class_words, estimate, interval, range};
use crate::style::{bytes, count, three_digits};
use crate::text::{Column, Page};

/// Huge pages now and after compaction, in a line or two.
pub(super) fn summary(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    let Ok(supply) = &checkup.supply else { return };
    let total = &supply.total;
    let size = bytes(snapshot.machine.page_size.block(supply.unit_order));
    let now = total.free_now.plus(total.deferred);
    let late = match total.deferred.value {
        0 => String::new(),
        _ => format!(" ({} not initialised yet)", estimate(total.deferred)),
    };
    let after = |step: Step, most: Estimate, words: &str| match &checkup.forecast {
        Ok(forecast) => format!("{} {words}", count(forecast.after(step).expected.into())),
        Err(_) => format!("at most {} {words}", estimate(most)),
    };
    page.facts(
        "  ",
        &[
            format!("{size} pages: {} whole and free{late}", estimate(now)),
            after(Step::Compaction, total.after_compaction.high, "after compaction"),
            after(Step::Cache, total.after_dropping_cache.high, "after dropping page cache too"),
            format!("at least {} of {} spoiled", estimate(total.spoiled.low), estimate(total.units)),
        ],
        "   ",
    );
    contradiction(page, snapshot, checkup);
}

/// Everything about the supply.
pub(super) fn section(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    page.heading("huge pages that could be had");
    let supply = match &checkup.supply {
        Ok(supply) => supply,
        Err(absence) => return page.hanging("  ", &absent(absence)),
    };
    scan(page, snapshot);
    table(page, snapshot, supply);
    contradiction(page, snapshot, checkup);
    for gigantic in &supply.gigantic {
        gigantic_line(page, snapshot, gigantic);
    }
    let after = match &checkup.forecast {
        Ok(_) => "after compaction: what pagelab can predicts, from its least to its most",
        Err(_) => {
            "after compaction: an upper bound; a range counts where pages without any flag are in use and \
             where they are free. Pinned pages look movable, and watermarks are not kept"
        }
    };
    page.hanging("  ", after);
    culprits(page, snapshot, supply);
}

/// Two files of one moment agree on what is free.
fn contradiction(page: &mut Page, snapshot: &Snapshot, checkup: &Checkup) {
    let Some(balance) = checkup.census_balance.filter(|balance| !balance.agrees()) else { return };
    let of = |pages: u64| bytes(Pages(pages).bytes(snapshot.machine.page_size));
    page.hanging(
        "  ",
        &format!(
            "kpageflags says that {} are free, buddyinfo {}: they are not of one moment, or one of them is \
             not \
             of this machine; do not rely on these counts",
            of(balance.by_census),
            of(balance.by_lists)
        ),
    );
}

fn scan(page: &mut Page, snapshot: &Snapshot) {
    let Ok(census) = &snapshot.census else { return };
    let took = format!("{} s", three_digits(census.scan_ns as f64 / 1e9));
    let text = match census.coverage {
        Coverage::Whole => format!("every page was read (kpageflags, {took})"),
        Coverage::Sample(plan) => format!(
            "a sample of {} of {} blocks was read (kpageflags, {took}, seed {}); ± is half of a 95 % \
             interval",
            count(plan.blocks.into()),
            count(plan.blocks_total.into()),
            plan.seed
        ),
    };
    page.hanging("  ", &text);
}

fn table(page: &mut Page, snapshot: &Snapshot, supply: &Supply) {
    let row = |name: &str, of: &dyn Fn(&HugeSupply) -> String| {
        let mut row = vec![name.to_owned()];
        row.extend(supply.zones.iter().filter(|zone| zone.huge.units.value > 0).map(|zone| of(&zone.huge)));
        row.push(of(&supply.total));
        row
    };
    let listed = |huge: &HugeSupply| huge.buddy_now.map_or("–".to_owned(), |n| count(n.into()));
    let mut rows = vec![
        row("free lists (buddyinfo)", &listed),
        row("whole and free", &|huge| estimate(huge.free_now)),
        row("whole, not initialised yet", &|huge| estimate(huge.deferred)),
        row("huge in use or in a pool", &|huge| estimate(huge.in_use)),
        row("after compaction", &|huge| interval(huge.after_compaction)),
        row("… and dropping page cache", &|huge| interval(huge.after_dropping_cache)),
        row("spoiled", &|huge| interval(huge.spoiled)),
        row("of", &|huge| estimate(huge.units)),
    ];
    let mut titles = vec![format!("{} pages", bytes(snapshot.machine.page_size.block(supply.unit_order)))];
    for zone in supply.zones.iter().filter(|zone| zone.huge.units.value > 0) {
        titles.push(format!("{} {}", zone.key.node.0, zone.key.zone));
    }
    titles.push("all".to_owned());
    // One zone is the sum, and many do not fit on a line: the sum stands alone then, and JSON has the rest.
    let column = |(at, title)| if at == 0 { Column::left(title) } else { Column::right(title) };
    let columns: Vec<Column> = titles.iter().map(String::as_str).enumerate().map(column).collect();
    if columns.len() == 3 || !page.table_if_it_fits(2, &columns, &rows) {
        rows.iter_mut().for_each(|row| drop(row.drain(1..row.len() - 1)));
        page.table(2, &[columns[0], columns[columns.len() - 1]], &rows);
    }
}

fn gigantic_line(page: &mut Page, snapshot: &Snapshot, gigantic: &GiganticSupply) {
    let size = bytes(snapshot.machine.page_size.block(gigantic.order));
    let text = match &gigantic.counts {
        Ok(counts) => {
            let contiguous = range(counts.contiguous_low, counts.contiguous_high);
            format!(
                "{size} pages: {} whole and free ({} of them not initialised yet), {contiguous} of free and \
                 movable pages, {} in hugetlb (aligned runs in kpageflags)",
                counts.free_now, counts.deferred, counts.hugetlb
            )
        }
        Err(absence) => format!("{size} pages: {}", absent(absence)),
    };
    page.hanging("  ", &text);
}

fn culprits(page: &mut Page, snapshot: &Snapshot, supply: &Supply) {
    page.heading("what spoils the blocks");
    let rows: Vec<Vec<String>> = supply
        .total
        .culprits
        .iter()
        .filter(|culprit| culprit.holding.value > 0)
        .map(|culprit| {
            vec![class_words(culprit.class).to_owned(), estimate(culprit.holding), estimate(culprit.alone)]
        })
        .collect();
    if rows.is_empty() {
        page.hanging("  ", "nothing");
        return;
    }
    page.table(
        2,
        &[Column::left("class"), Column::right("blocks with it"), Column::right("it alone")],
        &rows,
    );
    if let Some(per_cpu) = supply.total.per_cpu_pages {
        let unknown = estimate(supply.total.unknown_pages);
        let low = supply.total.spoiled_low_per_cpu;
        let bound = low
            .map_or(String::new(), |low| format!(", so at least {} blocks are spoiled", count(low.into())));
        page.hanging(
            "  ",
            &format!(
                "{unknown} pages have no flag; at most {} of them are free pages on per-CPU lists \
                 (zoneinfo){bound}",
                count(per_cpu.into())
            ),
        );
    }
    owners(page, snapshot, supply);
}

/// The largest owners of kernel memory, where the kernel names them.
fn owners(page: &mut Page, snapshot: &Snapshot, supply: &Supply) {
    if !supply.total.culprits.iter().any(|c| c.class == PageClass::Slab && c.holding.value > 0) {
        return;
    }
    match &snapshot.slabs {
        Ok(caches) => {
            let mut caches: Vec<_> = caches.iter().filter(|cache| cache.pages().0 > 0).collect();
            caches.sort_by_key(|cache| std::cmp::Reverse(cache.pages()));
            let size = snapshot.machine.page_size;
            let name = |cache: &&pagelab_model::slab::SlabCache| {
                format!("{} {}", cache.name, bytes(cache.bytes(size)))
            };
            let named: Vec<String> = caches.iter().take(OWNERS_SHOWN).map(name).collect();
            page.hanging("  ", &format!("largest slab caches (slabinfo): {}", named.join(" · ")));
        }
        Err(absence) => page.hanging("  ", &format!("slab caches by name: {}", absent(absence))),
    }
    match &snapshot.alloc_sites {
        Ok(sites) => {
            let mut sites: Vec<_> = sites.iter().filter(|site| site.bytes.0 > 0).collect();
            sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
            for site in sites.iter().take(OWNERS_SHOWN) {
                page.hanging("  ", &format!("{}  {} (allocinfo)", bytes(site.bytes), site.place));
            }
        }
        Err(absence) if absence.why == AbsentWhy::NotThere => {}
        Err(absence) => page.hanging("  ", &format!("allocation sites: {}", absent(absence))),
    }
}

/// Owners named in the report; JSON has them all.
const OWNERS_SHOWN: usize = 5;
