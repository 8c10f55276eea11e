//! Tables of one snapshot of a machine: findings, zones, free blocks, counters, processes, slab caches.

use std::rc::Rc;

use pagelab_metrics::checkup::{Checkup, ZoneFragmentation};
use pagelab_model::census::CensusZone;
use pagelab_model::instruments::Instrument;
use pagelab_model::process::ProcessMemory;
use pagelab_model::slab::SlabCache;
use pagelab_model::snapshot::Problem;
use pagelab_model::{Order, PageClass, PageblockCounts, Snapshot, ZoneEntry, ZoneKey};
use serde_json::Value;

use super::{Columns, CsvTable};
use crate::json::checkup::{
    FindingRow, finding_fields, instrument_fields, problem_fields, process_fields, zone_index_fields,
};
use crate::json::zones::zone_fields;

pub(super) fn snapshot_tables(snapshot: &Snapshot) -> Vec<CsvTable<'_>> {
    let checkup = Checkup::from_snapshot(snapshot);
    let mut tables = vec![findings_table(snapshot, &checkup), zones_table(snapshot, &checkup)];
    tables.extend(snapshot.buddyinfo.is_ok().then(|| free_blocks_table(snapshot, &checkup)));
    tables.extend(
        snapshot.census.as_ref().ok().map(|census| pageblocks_table(&census.zones, census.pageblock_order)),
    );
    tables.extend(snapshot.meminfo.as_ref().ok().map(|info| {
        let fields = info.fields.iter().zip(&info.in_kib);
        let row = |((name, value), kib): ((&str, u64), &bool)| {
            vec![Value::from(name), value.into(), if *kib { "KiB" } else { "count" }.into()]
        };
        CsvTable::new("meminfo", &["field", "value", "unit"], fields.map(row))
    }));
    tables.extend(snapshot.vmstat.as_ref().ok().map(|counters| {
        let row = |(name, value): (&str, u64)| vec![Value::from(name), value.into()];
        CsvTable::new("vmstat", &["counter", "value"], counters.iter().map(row))
    }));
    tables.extend(snapshot.processes.as_ref().ok().map(|coverage| {
        Columns::<&ProcessMemory>::new()
            .fields(
                process_fields,
                "pid name rss_bytes anonymous_bytes anon_huge_bytes shmem_huge_bytes file_huge_bytes \
                 hugetlb_bytes thp_enabled eligible_bytes",
                |of| Some(*of),
            )
            .table("processes", coverage.processes.iter())
    }));
    tables.extend(snapshot.slabs.as_ref().ok().map(|slabs| {
        let page_size = snapshot.machine.page_size;
        Columns::<&SlabCache>::new()
            .column("cache", |of| of.name.as_str().into())
            .column("objects_active", |of| of.objects_active.into())
            .column("objects", |of| of.objects.into())
            .column("object_bytes", |of| of.object_size.0.into())
            .column("held_bytes", move |of| of.bytes(page_size).0.into())
            .table("slabs", slabs.iter())
    }));
    tables.push(
        Columns::<&Instrument>::new()
            .fields(instrument_fields, "name purpose works found", |of| Some(*of))
            .column("reason", |of| of.state.as_ref().err().map(ToString::to_string).into())
            .table("instruments", snapshot.instruments.iter()),
    );
    if !snapshot.problems.is_empty() {
        tables.push(
            Columns::<&Problem>::new()
                .fields(problem_fields, "message is_bad_input", |of| Some(*of))
                .table("problems", snapshot.problems.iter()),
        );
    }
    tables
}

/// Builds the table of findings, most important first; several commands share a cell, separated by ` · `.
fn findings_table(snapshot: &Snapshot, checkup: &Checkup) -> CsvTable<'static> {
    let findings = checkup.findings.iter().map(|finding| FindingRow::new(finding, snapshot));
    let findings: Vec<FindingRow<'_>> = findings.collect();
    Columns::<(u64, &FindingRow<'_>)>::new()
        .column("place", |(place, _)| (*place).into())
        .fields(finding_fields, "id weight sentence", |(_, of)| Some(*of))
        .column("evidence", |(_, of)| of.worded.evidence.as_str().into())
        .column("next", |(_, of)| of.next.join(" · ").into())
        .collect("findings", (1..).zip(&findings))
}

/// Lists the zones that buddyinfo and zoneinfo name.
fn zones_table(snapshot: &Snapshot, checkup: &Checkup) -> CsvTable<'static> {
    let infos = snapshot.zoneinfo.as_ref().map_or(&[][..], |info| &info.zones);
    let indexed = |key: &ZoneKey| checkup.zones.iter().find(|zone| &zone.key == key);
    let unnamed = infos.iter().filter(|info| indexed(&info.key).is_none()).map(|info| &info.key);
    let keys = checkup.zones.iter().map(|zone| &zone.key).chain(unnamed);
    let rows = keys.map(|key| (key, indexed(key), infos.iter().find(|info| &info.key == key)));
    Columns::<(&ZoneKey, Option<&ZoneFragmentation>, Option<&ZoneEntry>)>::new()
        .column("node", |(key, ..)| key.node.0.into())
        .column("zone", |(key, ..)| key.zone.as_str().into())
        .fields(zone_index_fields, "free_bytes huge_pages_now", |(_, of, _)| *of)
        .fields(
            zone_fields,
            "start_pfn free_pages boost_pages min_pages low_pages high_pages spanned_pages present_pages \
             managed_pages cma_pages",
            |(.., of)| *of,
        )
        .collect("zones", rows)
}

/// Builds the table of free blocks and indices, a line for each zone and order.
fn free_blocks_table(snapshot: &Snapshot, checkup: &Checkup) -> CsvTable<'static> {
    let page_size = snapshot.machine.page_size;
    let by_order = [
        "free_blocks",
        "unusable_index",
        "unusable_index_permille",
        "fragmentation_index_permille",
        "fragmentation_index_paper",
    ];
    let getters = by_order.map(|name| zone_index_fields().getter(name));
    let rows = checkup.zones.iter().flat_map(|zone| {
        let arrays = Rc::new(getters.each_ref().map(|get| get(zone)));
        (0..zone.free_areas.orders()).map(move |order| (zone, order, Rc::clone(&arrays)))
    });
    let columns = Columns::<(&ZoneFragmentation, usize, Rc<[Value; 5]>)>::new()
        .fields(zone_index_fields, "node zone", |(zone, ..)| Some(*zone))
        .column("order", |(_, order, _)| (*order).into())
        .column("block_bytes", |(_, order, _)| page_size.block_bytes(Order(*order as u8)).0.into());
    let columns = by_order.into_iter().enumerate().fold(columns, |columns, (at, name)| {
        columns.column(name, move |(_, order, arrays)| arrays[at][*order].clone())
    });
    columns.collect("free_blocks", rows)
}

/// Builds the table of counted pageblocks, with the pages of each class.
fn pageblocks_table(zones: &[CensusZone], order: Order) -> CsvTable<'_> {
    let rows = zones.iter().flat_map(|zone| zone.blocks.iter().map(move |block| (zone, block)));
    let columns = Columns::<(&CensusZone, &(u64, PageblockCounts))>::new()
        .column("node", |(zone, _)| zone.key.node.0.into())
        .column("zone", |(zone, _)| zone.key.zone.as_str().into())
        .column("block", |(_, (index, _))| (*index).into())
        .column("first_pfn", move |(zone, (index, _))| {
            zone.first.0.saturating_add(index.saturating_mul(order.to_pages().0)).into()
        })
        .column("one_folio", |(zone, (index, _))| zone.one_folio.binary_search(index).is_ok().into());
    let columns = PageClass::ALL.into_iter().fold(columns, |columns, class| {
        let name = format!("{}_pages", class.name());
        columns.column(&name, move |(_, (_, counts))| counts.pages_of_class(class).into())
    });
    columns.table("blocks", rows)
}
