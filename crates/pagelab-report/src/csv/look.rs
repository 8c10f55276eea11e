//! One look at a machine as tables, judged by the same function as everywhere.

use pagelab_metrics::checkup::{Checkup, ZoneIndex};
use pagelab_model::census::CensusZone;
use pagelab_model::process::ProcessMemory;
use pagelab_model::{Order, PageClass, Pages, Snapshot, ZoneInfo, ZoneKey};

use super::{Cell, Table, number, option, real, text, truth};
use crate::findings::word;
use crate::json::object::reason;

pub(super) fn tables(snapshot: &Snapshot) -> Vec<Table<'_>> {
    let checkup = Checkup::of(snapshot);
    let mut tables = vec![findings(snapshot, &checkup), zones(snapshot, &checkup)];
    tables.extend(snapshot.buddyinfo.is_ok().then(|| free_blocks(snapshot, &checkup)));
    tables.extend(snapshot.census.as_ref().ok().map(|census| blocks(&census.zones, census.block_order)));
    tables.extend(snapshot.meminfo.as_ref().ok().map(|info| {
        let fields = info.fields.iter().zip(&info.in_kib);
        let row = |((name, value), kib): ((&str, u64), &bool)| {
            vec![text(name), number(value), text(if *kib { "KiB" } else { "count" })]
        };
        Table::new("meminfo", &["field", "value", "unit"], fields.map(row))
    }));
    tables.extend(snapshot.vmstat.as_ref().ok().map(|counters| {
        let row = |(name, value): (&str, u64)| vec![text(name), number(value)];
        Table::new("vmstat", &["counter", "value"], counters.iter().map(row))
    }));
    tables.extend(snapshot.processes.as_ref().ok().map(|coverage| processes(&coverage.processes)));
    tables.extend(snapshot.slabs.as_ref().ok().map(|slabs| {
        let page_size = snapshot.machine.page_size;
        let row = move |cache: &pagelab_model::slab::SlabCache| {
            let (active, all) = (number(cache.objects_active), number(cache.objects));
            let (size, held) = (number(cache.object_size.0), number(cache.bytes(page_size).0));
            vec![text(&cache.name), active, all, size, held]
        };
        let head = ["cache", "objects_active", "objects", "object_bytes", "held_bytes"];
        Table::new("slabs", &head, slabs.iter().map(row))
    }));
    let instruments = snapshot.instruments.iter().map(|instrument| {
        let (found, why_not) = match &instrument.state {
            Ok(found) => (text(found), Cell::Empty),
            Err(absence) => (Cell::Empty, text(&reason(absence))),
        };
        vec![
            text(&instrument.name),
            text(&instrument.purpose),
            truth(instrument.state.is_ok()),
            found,
            why_not,
        ]
    });
    tables.push(Table::new("instruments", &["name", "purpose", "works", "found", "why_not"], instruments));
    if !snapshot.problems.is_empty() {
        let row = |problem: &pagelab_model::snapshot::Problem| {
            vec![text(&problem.message), truth(problem.bad_input)]
        };
        tables.push(Table::new("problems", &["message", "bad_input"], snapshot.problems.iter().map(row)));
    }
    tables
}

/// Most important first; several pieces of evidence or commands stand in one cell, with ` · ` between them.
fn findings<'a>(snapshot: &Snapshot, checkup: &Checkup) -> Table<'a> {
    let rows = (1u64..).zip(&checkup.findings).map(|(place, finding)| {
        let worded = word(finding, snapshot);
        let next = worded.commands(snapshot);
        vec![
            number(place),
            text(finding.kind.id()),
            text(finding.weight.name()),
            text(&worded.sentence),
            text(&worded.evidence.join(" · ")),
            text(&next.join(" · ")),
        ]
    });
    let rows: Vec<_> = rows.collect();
    Table::new("findings", &["place", "id", "weight", "sentence", "evidence", "next"], rows.into_iter())
}

/// Amounts of pages that zoneinfo has for a zone.
type Amount = fn(&ZoneInfo) -> Option<Pages>;
const AMOUNTS: [(&str, Amount); 9] = [
    ("free_pages", |zone| zone.free),
    ("boost_pages", |zone| zone.boost),
    ("min_pages", |zone| zone.min),
    ("low_pages", |zone| zone.low),
    ("high_pages", |zone| zone.high),
    ("spanned_pages", |zone| zone.spanned),
    ("present_pages", |zone| zone.present),
    ("managed_pages", |zone| zone.managed),
    ("cma_pages", |zone| zone.cma),
];

/// The zones that buddyinfo and zoneinfo name.
fn zones<'a>(snapshot: &Snapshot, checkup: &Checkup) -> Table<'a> {
    let infos = snapshot.zoneinfo.as_ref().map_or(&[][..], |info| &info.zones);
    let indexed = |key: &ZoneKey| checkup.zones.iter().find(|zone| &zone.key == key);
    let unnamed = infos.iter().filter(|info| indexed(&info.key).is_none()).map(|info| &info.key);
    let keys = checkup.zones.iter().map(|zone| &zone.key).chain(unnamed);
    let rows = keys.map(|key| {
        let (index, info) = (indexed(key), infos.iter().find(|info| &info.key == key));
        let mut row = vec![number(key.node.0), text(&key.zone)];
        row.push(option(index, |zone: &ZoneIndex| number(zone.free.0)));
        row.push(option(index, |zone: &ZoneIndex| number(zone.huge_now)));
        row.push(option(info.and_then(|info| info.start), |pfn| number(pfn.0)));
        let amounts = AMOUNTS.iter().map(|(_, of)| option(info.and_then(of), |pages| number(pages.0)));
        row.extend(amounts);
        row
    });
    let rows: Vec<_> = rows.collect();
    let mut table =
        Table::new("zones", &["node", "zone", "free_bytes", "huge_pages_now", "start_pfn"], rows.into_iter());
    table.head.extend(AMOUNTS.iter().map(|(name, _)| (*name).to_owned()));
    table
}

/// Free blocks and indices, a line for each zone and order.
fn free_blocks<'a>(snapshot: &Snapshot, checkup: &Checkup) -> Table<'a> {
    const HEAD: [&str; 9] = [
        "node",
        "zone",
        "order",
        "block_bytes",
        "free_blocks",
        "unusable_index",
        "unusable_index_permille",
        "fragmentation_index_permille",
        "fragmentation_index_paper",
    ];
    let mut rows = Vec::new();
    for zone in &checkup.zones {
        let is_defined = zone.areas.free_pages() > 0;
        for (order, &blocks) in (0u8..).zip(zone.areas.counts()) {
            let at = usize::from(order);
            let share = |of: &[f64]| option(of.get(at).filter(|_| is_defined), |value| real(*value));
            rows.push(vec![
                number(zone.key.node.0),
                text(&zone.key.zone),
                number(order),
                number(snapshot.machine.page_size.block(Order(order)).0),
                number(blocks),
                share(&zone.unusable),
                option(zone.unusable_permille.get(at), number),
                option(zone.fragmentation_permille.get(at), number),
                option(zone.fragmentation_paper.get(at), |value| real(*value)),
            ]);
        }
    }
    Table::new("free_blocks", &HEAD, rows.into_iter())
}

/// Counted pageblocks: how many pages of each class each holds.
fn blocks(zones: &[CensusZone], order: Order) -> Table<'_> {
    let rows = zones.iter().flat_map(move |zone| {
        zone.blocks.iter().map(move |(index, counts)| {
            let first = zone.first.0.saturating_add(index.saturating_mul(order.pages().0));
            let mut row = vec![number(zone.key.node.0), text(&zone.key.zone), number(index), number(first)];
            row.push(truth(zone.one_folio.binary_search(index).is_ok()));
            row.extend(PageClass::ALL.map(|class| number(counts.of(class))));
            row
        })
    });
    let mut table = Table::new("blocks", &["node", "zone", "block", "first_pfn", "one_folio"], rows);
    table.head.extend(PageClass::ALL.map(|class| format!("{}_pages", class.name())));
    table
}

fn processes(processes: &[ProcessMemory]) -> Table<'_> {
    const HEAD: [&str; 10] = [
        "pid",
        "name",
        "rss_bytes",
        "anonymous_bytes",
        "anon_huge_bytes",
        "shmem_huge_bytes",
        "file_huge_bytes",
        "hugetlb_bytes",
        "thp_enabled",
        "eligible_bytes",
    ];
    let row = |process: &ProcessMemory| {
        let mut row = vec![number(process.pid), option(process.name.as_deref(), text)];
        let amounts = [
            process.rss,
            process.anonymous,
            process.anon_huge,
            process.shmem_huge,
            process.file_huge,
            process.hugetlb,
        ];
        row.extend(amounts.map(|amount| number(amount.0)));
        row.push(option(process.thp_enabled, truth));
        row.push(option(process.eligible, |amount| number(amount.0)));
        row
    };
    Table::new("processes", &HEAD, processes.iter().map(row))
}
