//! Supply of huge pages: available now, after each measure, and what prevents more.

use pagelab_metrics::checkup::Checkup;
use pagelab_metrics::forecast::ReclaimStep;
use pagelab_metrics::supply::{CountEstimate, GiganticSupply, HugePageSupply, PollutingClass, UnitCounts};
use pagelab_model::{AbsenceReason, Coverage, PageClass, Pages, Snapshot};

use super::absence_text;
use crate::compact::largest_slab_caches;
use crate::findings::{class_text, format_estimate, format_interval, format_range};
use crate::style::{format_bytes, format_count, format_three_digits};
use crate::text_report::{RowTable, TextReport};

/// Writes huge pages now and after compaction, in a line or two.
pub(super) fn write_summary(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    let Ok(supply) = &checkup.supply else { return };
    let total = &supply.total;
    let size = format_bytes(snapshot.machine.page_size.block_bytes(supply.unit_order));
    let now_text = total.free.sum(total.deferred);
    let late = match total.deferred.value {
        0 => String::new(),
        _ => format!(" ({} not yet initialised)", format_estimate(total.deferred)),
    };
    // All numbers of one prediction: what is free now is not all available, by the watermarks.
    let forecast = checkup.forecast.as_ref().ok();
    let expected = |step| forecast.map(|of| format_count(of.bounds_after(step).expected.into()));
    let after_text = |step: ReclaimStep, most: CountEstimate, words: &str| match expected(step) {
        Some(expected) => format!("{expected} {words}"),
        None => format!("at most {} {words}", format_estimate(most)),
    };
    output.add_facts(
        "  ",
        &[
            match expected(ReclaimStep::Nothing) {
                Some(expected) => format!("{size} pages: {expected} available now{late}"),
                None => format!("{size} pages: {} free{late}", format_estimate(now_text)),
            },
            after_text(ReclaimStep::Compaction, total.after_compaction.high, "after compaction"),
            after_text(
                ReclaimStep::DropCache,
                total.after_dropping_cache.high,
                "after also dropping the page cache",
            ),
            format!(
                "at least {} of {} polluted",
                format_estimate(total.polluted.low),
                format_estimate(total.units)
            ),
        ],
        "   ",
    );
    write_contradiction(output, snapshot, checkup);
}

pub(super) fn write_section(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    output.add_heading("available huge pages");
    let supply = match &checkup.supply {
        Ok(supply) => supply,
        Err(absence) => return output.add_indented(&absence_text(absence)),
    };
    write_scan(output, snapshot);
    write_table(output, snapshot, supply);
    write_contradiction(output, snapshot, checkup);
    for gigantic in &supply.gigantic {
        write_gigantic(output, snapshot, gigantic);
    }
    let after_text = match &checkup.forecast {
        Ok(_) => "after compaction: the interval predicted by `pagelab can`",
        Err(_) => {
            "after compaction: an upper bound, or a range if pages without flags may be free or in use. \
             Pinned pages look movable, and watermarks are ignored"
        }
    };
    output.add_indented(after_text);
    write_polluting_classes(output, snapshot, supply);
}

/// Reports a contradiction between two files that should agree on free memory.
fn write_contradiction(output: &mut TextReport, snapshot: &Snapshot, checkup: &Checkup) {
    let Some(balance) = checkup.census_balance.filter(|balance| !balance.agrees()) else { return };
    let format_pages = |pages: u64| format_bytes(Pages(pages).to_bytes(snapshot.machine.page_size));
    output.add_indented(&format!(
        "kpageflags shows {} free, buddyinfo {}: read at different times, or on different machines; these \
         counts are unreliable",
        format_pages(balance.census_pages),
        format_pages(balance.buddyinfo_pages)
    ));
}

fn write_scan(output: &mut TextReport, snapshot: &Snapshot) {
    let Ok(census) = &snapshot.census else { return };
    let took = format!("{} s", format_three_digits(census.scan_ns as f64 / 1e9));
    let text = match census.coverage {
        Coverage::Whole => format!("all pages read (kpageflags, {took})"),
        Coverage::Sample(plan) => format!(
            "sample of {} of {} pageblocks (kpageflags, {took}, seed {}); ± is the half-width of the 95 % \
             interval",
            format_count(plan.blocks.into()),
            format_count(plan.blocks_total.into()),
            plan.seed
        ),
    };
    output.add_indented(&text);
}

/// Row of the table: its title, and its cell for a zone.
type CountRow = (&'static str, fn(&UnitCounts) -> String);

fn write_table(output: &mut TextReport, snapshot: &Snapshot, supply: &HugePageSupply) {
    let rows: [CountRow; 8] = [
        ("free lists (buddyinfo)", |huge| {
            huge.free_by_buddyinfo.map_or("–".to_owned(), |n| format_count(n.into()))
        }),
        ("free", |huge| format_estimate(huge.free)),
        ("not yet initialised", |huge| format_estimate(huge.deferred)),
        ("huge pages in use or in a pool", |huge| format_estimate(huge.in_use)),
        ("after compaction", |huge| format_interval(huge.after_compaction)),
        ("… and dropping the page cache", |huge| format_interval(huge.after_dropping_cache)),
        ("polluted", |huge| format_interval(huge.polluted)),
        ("of", |huge| format_estimate(huge.units)),
    ];
    let size = format_bytes(snapshot.machine.page_size.block_bytes(supply.unit_order));
    let mut table =
        RowTable::<&CountRow>::new().left(format!("{size} pages"), |(name, _)| (*name).to_owned());
    for zone in supply.zones.iter().filter(|zone| zone.supply.units.value > 0) {
        let title = format!("{} {}", zone.key.node.0, zone.key.zone);
        table = table.right(title, move |(_, text)| text(&zone.supply));
    }
    let table = table.right("all", |(_, text)| text(&supply.total));
    let (columns, cells) = (table.columns(), table.rows(&rows));
    // A single zone equals the total, and many zones do not fit on a line: then only the total is shown, and
    // JSON has the rest.
    let last = columns.len() - 1;
    if last == 2 || !output.add_table_if_fits(2, &columns, &cells) {
        output.add_narrowed_table(2, &columns, &cells, &[&[0, last]]);
    }
}

fn write_gigantic(output: &mut TextReport, snapshot: &Snapshot, gigantic: &GiganticSupply) {
    let size = format_bytes(snapshot.machine.page_size.block_bytes(gigantic.order));
    let text = match &gigantic.counts {
        Ok(counts) => {
            let contiguous = format_range(counts.contiguous_low, counts.contiguous_high);
            format!(
                "{size} pages: {} free ({} of them not yet initialised), {contiguous} made up of free and \
                 movable pages, {} in hugetlb (aligned ranges in kpageflags)",
                counts.free, counts.deferred, counts.hugetlb
            )
        }
        Err(absence) => format!("{size} pages: {}", absence_text(absence)),
    };
    output.add_indented(&text);
}

fn write_polluting_classes(output: &mut TextReport, snapshot: &Snapshot, supply: &HugePageSupply) {
    output.add_heading("polluting pages");
    let polluting = supply.total.polluting_classes.iter().filter(|culprit| culprit.units_with.value > 0);
    if polluting.clone().next().is_none() {
        output.add_indented("nothing");
        return;
    }
    RowTable::<&PollutingClass>::new()
        .left("class", |culprit| class_text(culprit.class).to_owned())
        .right("polluted blocks", |culprit| format_estimate(culprit.units_with))
        .right("sole cause", |culprit| format_estimate(culprit.units_polluted_alone))
        .add_to(output, 2, polluting);
    if let Some(per_cpu) = supply.total.pcp_pages {
        let unknown = format_estimate(supply.total.unknown_pages);
        let low = supply.total.polluted_low_per_cpu;
        let bound = low.map_or(String::new(), |low| {
            format!(", so at least {} pageblocks are polluted", format_count(low.into()))
        });
        output.add_indented(&format!(
            "{unknown} pages have no flags; at most {} of them are free pages on pcp lists (zoneinfo){bound}",
            format_count(per_cpu.into())
        ));
    }
    write_owners(output, snapshot, supply);
}

/// Writes the largest owners of kernel memory, where the kernel names them.
fn write_owners(output: &mut TextReport, snapshot: &Snapshot, supply: &HugePageSupply) {
    if !supply.total.polluting_classes.iter().any(|c| c.class == PageClass::Slab && c.units_with.value > 0) {
        return;
    }
    match &snapshot.slabs {
        Ok(caches) => {
            let named = largest_slab_caches(caches, snapshot.machine.page_size, OWNERS_MAX).join(" · ");
            output.add_indented(&format!("largest slab caches (slabinfo): {named}"));
        }
        Err(absence) => output.add_indented(&format!("slab caches by name: {}", absence_text(absence))),
    }
    match &snapshot.alloc_sites {
        Ok(sites) => {
            let mut sites: Vec<_> = sites.iter().filter(|site| site.bytes.0 > 0).collect();
            sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
            for site in sites.iter().take(OWNERS_MAX) {
                output.add_indented(&format!("{}  {} (allocinfo)", format_bytes(site.bytes), site.call_site));
            }
        }
        Err(absence) if absence.why == AbsenceReason::NotThere => {}
        Err(absence) => output.add_indented(&format!("allocation sites: {}", absence_text(absence))),
    }
}

/// Owners named in the report, at most; JSON has all.
const OWNERS_MAX: usize = 5;
