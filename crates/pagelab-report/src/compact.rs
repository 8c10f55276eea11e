//! Report of a compaction on the terminal.

use pagelab_metrics::checkup::ZoneFragmentation;
use pagelab_metrics::compaction::{
    CompactionReport, CompactionVerdict, CompactionWorker, CounterDelta, EarlyCause, EarlyEnd, find_delta,
};
use pagelab_metrics::fragmentation_index::{all_would_succeed, format_kernel_decimal};
use pagelab_metrics::supply::UnitCounts;
use pagelab_model::slab::SlabCache;
use pagelab_model::{Bytes, Order, PageClass, PageSize, Snapshot};

use crate::findings::{class_text, format_estimate};
use crate::quantity_format::format_duration;
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, TextReport};

/// Slab caches listed, at most.
const SLAB_CACHES_MAX: usize = 4;

/// Renders the report. `verbose`: with the indices of every order.
pub fn render(
    before: &Snapshot,
    after: &Snapshot,
    compaction: &CompactionReport,
    verbose: bool,
    style: TextStyle,
) -> String {
    let mut output = TextReport::new(style);
    let size = format_bytes(after.machine.page_size.block_bytes(after.pmd_order));
    output.add_bold_text(&format_headline(compaction, &size));
    output.add_gap();
    let mut left_out = write_zones(&mut output, compaction, after.pmd_order, &size);
    if verbose {
        left_out |= write_orders(&mut output, compaction);
    }
    if left_out {
        output.add_dim_indented("F_i is omitted from tables where every request would succeed");
    }
    output.add_gap();
    write_actions(&mut output, compaction);
    write_pageblocks(&mut output, compaction);
    write_obstacles(&mut output, after, compaction);
    let looks = [(before, "before"), (after, "after")];
    for (snapshot, when) in looks {
        for problem in &snapshot.problems {
            output.add_dim_indented(&format!("{when}: {}", problem.message));
        }
    }
    output.into_text()
}

/// Renders a plan: its actions in order.
pub fn render_plan(actions: &[String]) -> String {
    let lines: String = actions.iter().map(|action| format!("  {action}\n")).collect();
    format!("planned actions, in order; they cannot be undone:\n{lines}")
}

/// Returns the result in one sentence.
pub fn format_headline(compaction: &CompactionReport, size: &str) -> String {
    let (huge_before, huge_after) = (compaction.before.free_huge_pages(), compaction.after.free_huge_pages());
    let areas = |number: u64| format_count(number.into());
    match compaction.verdict() {
        CompactionVerdict::Gained(gained) => {
            format!(
                "{} more huge pages ({size}): {} → {}",
                areas(gained),
                areas(huge_before),
                areas(huge_after)
            )
        }
        CompactionVerdict::NothingToDo => {
            format!(
                "nothing to gain: {} free huge pages ({size}), all other blocks huge or polluted",
                areas(huge_after)
            )
        }
        CompactionVerdict::NothingChanged if huge_after == huge_before => {
            format!("compaction did not help: {} huge pages ({size}) before and after", areas(huge_after))
        }
        CompactionVerdict::NothingChanged => {
            let (before, after) = (areas(huge_before), areas(huge_after));
            format!("compaction did not help: {before} huge pages ({size}) before, {after} after")
        }
    }
}

type ZonePair<'a> = (&'a ZoneFragmentation, &'a ZoneFragmentation);

fn format_change(pair: &ZonePair<'_>, text: impl Fn(&ZoneFragmentation) -> String) -> String {
    format!("{} → {}", text(pair.0), text(pair.1))
}

/// Writes a line per zone. F_i is left out if all requests would succeed; returns whether it is.
fn write_zones(output: &mut TextReport, compaction: &CompactionReport, order: Order, size: &str) -> bool {
    let (style, order) = (output.style(), order.index());
    let index = |zone: &ZoneFragmentation| zone.fragmentation_permille.get(order).copied();
    let all_zones = compaction.zones().flat_map(|(before, after)| [before, after]);
    let left_out = all_would_succeed(all_zones.map(|zone| index(zone).unwrap_or_default()));
    let decimal = |permille: Option<i64>| permille.map_or("–".to_owned(), format_kernel_decimal);
    let unusable =
        |zone: &ZoneFragmentation| decimal(zone.unusable_permille.get(order).map(|v| v.cast_signed()));
    let bars =
        |zone: &ZoneFragmentation| zone.unusable.iter().map(|&share| style.spark_char(share)).collect();
    // The full report (-v) and JSON have what does not fit.
    let choices: [&[usize]; 3] = [&[0, 1, 2, 3, 4, 5], &[0, 1, 2, 3, 4], &[0, 1, 2, 3]];
    RowTable::<ZonePair<'_>>::new()
        .left("zone", |(_, after)| format!("{} {}", after.key.node.0, after.key.zone))
        .right("free", |(_, after)| format_bytes(after.free))
        .right(format!("{size} now"), |pair| {
            format_change(pair, |zone| format_count(zone.free_huge_pages.into()))
        })
        .left(format!("F_u({order})"), |pair| format_change(pair, unusable))
        .left_if(!left_out, format!("F_i({order})"), |pair| format_change(pair, |zone| decimal(index(zone))))
        .left("F_u by order", |pair| format_change(pair, bars))
        .add_narrowed_to(output, 2, compaction.zones(), &choices[usize::from(left_out)..]);
    left_out
}

/// Writes, for each zone, a line per order with the indices and the free blocks. F_i is left out if all
/// requests would succeed; returns whether it is.
fn write_orders(output: &mut TextReport, compaction: &CompactionReport) -> bool {
    let mut left_out = false;
    let decimal = |permille: Option<i64>| permille.map_or(String::new(), format_kernel_decimal);
    let unusable = |zone: &ZoneFragmentation, order: usize| {
        decimal(zone.unusable_permille.get(order).map(|v| v.cast_signed()))
    };
    let index =
        |zone: &ZoneFragmentation, order: usize| decimal(zone.fragmentation_permille.get(order).copied());
    let blocks = |zone: &ZoneFragmentation, order: usize| {
        zone.free_areas.counts().get(order).map_or(String::new(), u64::to_string)
    };
    for (before, after) in compaction.zones() {
        output.add_heading(&format!("node {}, zone {}", after.key.node.0, after.key.zone));
        let indices = before.fragmentation_permille.iter().chain(&after.fragmentation_permille);
        let succeeds = all_would_succeed(indices.copied());
        left_out |= succeeds;
        // One order per line: eleven columns of six digits do not fit, and a kernel may have more orders.
        RowTable::<usize>::new()
            .right("order", usize::to_string)
            .right("F_u", |&order| unusable(before, order))
            .right("", |&order| format!("→ {}", unusable(after, order)))
            .right_if(!succeeds, "F_i", |&order| index(before, order))
            .right_if(!succeeds, "", |&order| format!("→ {}", index(after, order)))
            .right("blocks", |&order| blocks(before, order))
            .right("", |&order| format!("→ {}", blocks(after, order)))
            .add_to(output, 2, 0..after.free_areas.orders());
    }
    left_out
}

/// Writes the actions, their durations, and the kernel's counters during them.
fn write_actions(output: &mut TextReport, compaction: &CompactionReport) {
    if let Some(drop_caches_ns) = compaction.actions.drop_caches_ns {
        let freed = compaction.cache_shrinkage.map_or(String::new(), |freed| {
            let amount = |bytes_less: i128| match u64::try_from(bytes_less) {
                Ok(less) => format_bytes(Bytes(less)),
                Err(_) => "nothing".to_owned(),
            };
            format!(": freed {} of page cache and {} of slab", amount(freed.page_cache), amount(freed.slab))
        });
        output.add_indented(&format!("dropping caches took {}{freed}", format_duration(drop_caches_ns)));
    }
    write_kernel_compaction(output, compaction);
    write_request_compaction(output, compaction);
    let others = |worker: CompactionWorker| {
        let counted = |activity: &&CounterDelta| activity.worker == worker && activity.delta > 0;
        let named = compaction.counter_deltas.iter().filter(counted);
        named.map(|a| format!("{} {}", a.name, format_count(a.delta.into()))).collect::<Vec<_>>().join(", ")
    };
    let (daemon, direct) = (others(CompactionWorker::Kcompactd), others(CompactionWorker::Direct));
    if !daemon.is_empty() {
        output.add_indented(&format!("of this, by kcompactd, which ran concurrently: {daemon}"));
    }
    if !direct.is_empty() {
        let who = match compaction.actions.requests {
            Some(_) => "direct compaction, including these requests",
            None => "direct compaction by programs (excluding this compaction)",
        };
        output.add_indented(&format!("{who}: {direct}"));
    }
}

fn write_kernel_compaction(output: &mut TextReport, compaction: &CompactionReport) {
    let Some(action) = &compaction.actions.kernel else { return };
    let areas = |name: &str| {
        find_delta(&action.counter_deltas, name).map_or("?".to_owned(), |n| format_count(n.into()))
    };
    let times = match action.run_count {
        0 | 1 => String::new(),
        times => format!(" ({times} passes, dirty pages written back in between)"),
    };
    let allocated_text = action.huge_pages_after.map_or(String::new(), |after| {
        format!(
            "; huge pages {} → {}",
            format_count(compaction.before.free_huge_pages().into()),
            format_count(after.into())
        )
    });
    output.add_indented(&format!(
        "compaction{times} took {}: {} pages migrated, {} failed to migrate, {} isolated; {} pages scanned \
         for migration, {} for free pages{allocated_text}",
        format_duration(action.took_ns),
        areas("pgmigrate_success"),
        areas("pgmigrate_fail"),
        areas("compact_isolated"),
        areas("compact_migrate_scanned"),
        areas("compact_free_scanned"),
    ));
    for early in &compaction.early_ends {
        output.add_indented(&early_end_text(early));
    }
    if let (Err(absence), true) = (&action.runs, compaction.early_ends.is_empty()) {
        let words =
            format!("cannot tell whether the kernel stopped early: {}: {}", absence.source, absence.reason());
        output.add_dim_indented(&words);
    }
    if !compaction.early_ends.is_empty() && compaction.actions.requests.is_none() {
        output.add_indented("hint: use pagelab compact --how direct for direct compaction of each huge page");
    }
}

fn early_end_text(early: &EarlyEnd) -> String {
    let place = match &early.zone {
        Some(zone) => format!("in {} {}", zone.node.0, zone.zone),
        None => "in some zone, according to its counters".to_owned(),
    };
    let left = early
        .unscanned_share
        .map_or(String::new(), |share| format!(", {} of it not scanned", format_percent(share)));
    let why = match early.cause {
        EarlyCause::NoMigrationTarget => {
            "folios are migrated as a unit, no isolated free block was large enough for the next folio, and \
             that folio could not be split (dirty page cache cannot be split)"
        }
        EarlyCause::Interrupted => "interrupted by a signal or lock contention",
        EarlyCause::Unknown => "no reason reported",
    };
    format!("the kernel stopped early {place}{left}: {why}")
}

fn write_request_compaction(output: &mut TextReport, compaction: &CompactionReport) {
    let Some(action) = &compaction.actions.requests else { return };
    let huge_before = compaction.actions.kernel.as_ref().and_then(|act| act.huge_pages_after);
    let huge_before = huge_before.unwrap_or_else(|| compaction.before.free_huge_pages());
    let rounds = match action.rounds {
        0 | 1 => String::new(),
        rounds => format!(" ({rounds} rounds, each followed by compaction)"),
    };
    output.add_indented(&format!(
        "allocation{rounds} took {}: {} huge pages ({}) allocated and released, {} by direct compaction; \
         stopped because {}; huge pages {} → {}",
        format_duration(action.took_ns),
        format_count(action.allocated.into()),
        format_bytes(action.allocated_bytes),
        format_count(action.allocated_by_collapse.into()),
        action.stop_reason,
        format_count(huge_before.into()),
        format_count(compaction.after.free_huge_pages().into()),
    ));
    match compaction.early_ends_last.as_deref() {
        Some([]) => output.add_indented("in the last compaction, the kernel completed all zones"),
        Some(early) => {
            output.add_indented("in the last compaction:");
            early.iter().for_each(|early| output.add_indented(&early_end_text(early)));
        }
        None => {}
    }
}

fn write_pageblocks(output: &mut TextReport, compaction: &CompactionReport) {
    let (before, after) = match (&compaction.before.supply, &compaction.after.supply) {
        (Ok(before), Ok(after)) => (&before.total, &after.total),
        (_, Err(absence)) | (Err(absence), _) => {
            return output.add_indented(&format!("cannot count polluted pageblocks: {absence}"));
        }
    };
    let pair = |of: fn(&UnitCounts) -> u64| {
        format!("{} → {}", format_count(of(before).into()), format_count(of(after).into()))
    };
    output.add_facts(
        "  ",
        &[
            // The number of free ones is given above, from the free lists: a census at another moment would
            // give another number.
            format!(
                "of {} pageblocks: {} polluted",
                format_estimate(after.units),
                pair(|s| s.polluted.low.value)
            ),
            format!(
                "{} possibly polluted (pages without flags)",
                pair(|s| s.polluted.high.value - s.polluted.low.value)
            ),
        ],
        ", ",
    );
}

/// Writes what prevents pageblocks from becoming huge pages after the compaction.
fn write_obstacles(output: &mut TextReport, after: &Snapshot, compaction: &CompactionReport) {
    let Ok(supply) = &compaction.after.supply else { return };
    let mut culprits: Vec<_> =
        supply.total.polluting_classes.iter().filter(|c| c.units_with.value > 0).collect();
    if culprits.is_empty() {
        return;
    }
    culprits.sort_by_key(|culprit| std::cmp::Reverse(culprit.units_with.value));
    let words = culprits.iter().map(|c| format!("{} {}", class_text(c.class), format_estimate(c.units_with)));
    output.add_indented(&format!(
        "obstacles, by number of pageblocks: {}",
        words.collect::<Vec<_>>().join(", ")
    ));
    let has_slab = culprits.iter().any(|culprit| culprit.class == PageClass::Slab);
    if let (true, Some(caches)) = (has_slab, slab_caches_text(after)) {
        output.add_indented(&format!("largest slab caches: {caches}"));
    }
}

/// Returns the largest slab caches with their sizes; `None` if slabinfo could not be read.
pub(crate) fn slab_caches_text(snapshot: &Snapshot) -> Option<String> {
    let caches = snapshot.slabs.as_ref().ok()?;
    let named = largest_slab_caches(caches, snapshot.machine.page_size, SLAB_CACHES_MAX).join(", ");
    (!named.is_empty()).then_some(named)
}

pub(crate) fn largest_slab_caches(caches: &[SlabCache], page_size: PageSize, most: usize) -> Vec<String> {
    let mut caches: Vec<&SlabCache> = caches.iter().filter(|cache| cache.pages().0 > 0).collect();
    caches.sort_by_key(|cache| std::cmp::Reverse(cache.pages()));
    let name = |cache: &&SlabCache| format!("{} {}", cache.name, format_bytes(cache.bytes(page_size)));
    caches.iter().take(most).map(name).collect()
}

#[cfg(test)]
mod tests {
    use pagelab_metrics::compaction::{
        COMPACT_CONTENDED, CompactionActions, KernelCompaction, RequestCompaction, ScannerRun,
    };
    use pagelab_model::free_areas::{ZoneFreeAreas, ZoneKey};
    use pagelab_model::zoneinfo::ZoneEntry;
    use pagelab_model::{Absence, AbsenceReason, BuddyInfo, FreeAreas, NodeId, Pfn, Zoneinfo};

    use super::*;

    fn snapshot(whole: u64) -> Snapshot {
        let mut snapshot = Snapshot::new_unread("a test", PageSize::DEFAULT);
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        // F_u(9) of 1023 single pages beside 28 blocks is 0.0666: the kernel truncates further digits.
        let areas = FreeAreas::new(vec![1023, 0, 0, 0, 0, 0, 0, 0, 0, whole]).unwrap();
        snapshot.buddyinfo = Ok(BuddyInfo { zones: vec![ZoneFreeAreas { key: key.clone(), areas }] });
        let mut zone = ZoneEntry::empty(key);
        zone.start = Some(Pfn(0));
        snapshot.zoneinfo = Ok(Zoneinfo { nodes: Vec::new(), zones: vec![zone] });
        snapshot
    }

    fn text(runs: Result<Vec<ScannerRun>, Absence>, asking: Option<RequestCompaction>) -> String {
        let kernel = KernelCompaction {
            took_ns: 9_700_000,
            run_count: 1,
            runs,
            counter_deltas: Vec::new(),
            huge_pages_after: Some(28),
        };
        let acts = CompactionActions { drop_caches_ns: None, kernel: Some(kernel), requests: asking };
        let (before, after) = (snapshot(28), snapshot(30));
        let compaction = CompactionReport::compare_snapshots(&before, &after, acts);
        let text = render(&before, &after, &compaction, false, TextStyle::PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_early_end_and_what_asking_brought_are_told_with_the_kernels_rounding() {
        let run = ScannerRun {
            zone_start: Pfn(0),
            zone_end: Pfn(1 << 20),
            migrate_pfn: Pfn(0),
            free_pfn: Pfn((1 << 20) - 512),
            status: COMPACT_CONTENDED,
            failed_pages: 31,
        };
        let alone = text(Ok(vec![run]), None);
        assert!(
            alone.contains(
                "stopped early in 0 Normal, more than 99.9 % of it not scanned: folios are migrated as a unit"
            ),
            "{alone}"
        );
        assert!(alone.contains("hint: use pagelab compact --how direct"), "{alone}");
        assert!(alone.contains("0.066 → 0.062"), "{alone}");
        let (got, taken) = (5_400, Bytes(5_400 << 21));
        let stopped = "no more pages could be allocated";
        let met = ScannerRun { migrate_pfn: run.free_pfn, status: 5, ..run };
        let runs = Some(Ok(vec![met]));
        let asking = RequestCompaction {
            rounds: 2,
            took_ns: 1,
            allocated_bytes: taken,
            allocated: got,
            allocated_by_collapse: 5_372,
            stop_reason: stopped,
            runs,
        };
        let both = text(Ok(vec![run]), Some(asking.clone()));
        assert!(both.contains("allocation (2 rounds, each followed by compaction) took"), "{both}");
        assert!(
            both.contains("5 400 huge pages (10.5 GiB) allocated and released, 5 372 by direct comp"),
            "{both}"
        );
        assert!(both.contains("the kernel completed all zones"), "{both}");
        let still = text(Ok(vec![run]), Some(RequestCompaction { runs: Some(Ok(vec![run])), ..asking }));
        assert!(still.contains("in the last compaction: the kernel stopped early in 0 Normal"), "{still}");
        assert!(both.contains("huge pages 28 → 28") && both.contains("huge pages 28 → 30"), "{both}");
        assert!(!text(Ok(vec![met]), None).contains("early"));
        let unseen = text(Err(Absence::new("tracefs", AbsenceReason::NotPermitted, "lockdown")), None);
        assert!(unseen.contains("cannot tell whether the kernel stopped early"), "{unseen}");
    }
}
