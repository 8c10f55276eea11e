//! JSON of `pagelab frag`: `docs/json.md` lists fields and units.

use pagelab_metrics::fragmentation_index as metrics;
use pagelab_model::{FreeAreas, Order};
use serde::Serialize;
use serde_json::Value;

use super::object::{JsonObject, to_array};
use super::{NO_FREE_REASON, document_header};
use crate::fields::fields;
use crate::frag::{FragReport, FreeBlockSource};

/// Document of a report. Page counts of its zones may exceed 64 bits, so they are not in a `Value`.
#[derive(Debug, Serialize)]
pub struct FragmentationDocument<'a> {
    #[serde(flatten)]
    head: JsonObject,
    zones: Vec<ZoneJson<'a>>,
    zones_without_memory: Value,
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct ZoneJson<'a> {
    node: u32,
    zone: &'a str,
    free_pages: u128,
    free_blocks: &'a [u64],
    usable_pages: Vec<u128>,
    usable_blocks: Vec<u128>,
    unusable_index_permille: Vec<u64>,
    unusable_index: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable_index_absent_reason: Option<&'static str>,
    fragmentation_index_permille: Vec<i64>,
    fragmentation_index_paper: Vec<f64>,
    migratetypes: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    migratetypes_absent_reason: Option<&'a str>,
}

/// Builds the document for a report.
pub fn to_document(report: &FragReport) -> FragmentationDocument<'_> {
    FragmentationDocument {
        head: report_fields().add_to(document_header("frag"), report),
        zones: (0..report.buddyinfo.zones.len()).map(|at| zone_json(report, at)).collect(),
        zones_without_memory: to_array(&report.unpopulated, JsonObject::for_zone),
        notes: &report.notes,
    }
}

fields! { fn report_fields(of: FragReport);
    "source": object, "the source of the free blocks, below" => source_fields().object(&of.source);
    "page_size_bytes": integer, "base page size of the measured machine" => of.page_size.bytes();
    "page_size_source": string, "where this size comes from, in a phrase" => of.page_size_source.as_str();
    "order": integer, "the order of `headline`; at most the largest order of the machine" => of.order.0;
    "order_source": string, "why this order, in a phrase" => of.order_source.as_str();
    "order_bytes": integer, "size of a block of that order" => of.page_size.block_bytes(of.order).0;
    "headline": string, "the answer in a sentence, as printed above the table" => of.format_headline();
}

/// Why a reading has no position.
const NO_POSITION: &str = "the source is a single file";

fields! { fn source_fields(of: FreeBlockSource);
    "name": string, "`this machine`, a saved tree, a file, or `standard input`" => of.name.as_str();
    "kind": string, "`buddyinfo` or `show_mem` (an allocation-failure or out-of-memory report)" => of.kind;
    "reading": integer (null: NO_POSITION), "the number of this reading in the text, from 1" =>
        of.position.as_ref().map(|of| of.index);
    "readings": integer (null: NO_POSITION), "number of readings in the text" =>
        of.position.as_ref().map(|of| of.total);
    "line": integer (null: NO_POSITION), "first line of the reading, from 1" =>
        of.position.as_ref().map(|of| of.line);
    "trigger": string (reading),
        "the kernel's message that introduces the report, shortened; null for buddyinfo" =>
        match of.position.as_ref().and_then(|of| of.trigger.as_ref()) {
            Some((text, _)) => Ok(text.as_str().into()),
            None if of.kind == "show_mem" => Err("no line before the report states the reason".to_owned()),
            None => Err("buddyinfo has no trigger".to_owned()),
        };
}

fn zone_json(report: &FragReport, index: usize) -> ZoneJson<'_> {
    let zone = &report.buddyinfo.zones[index];
    let areas = &zone.areas;
    let absent_reason = (areas.free_pages() == 0).then_some(NO_FREE_REASON);
    let letters = report.migratetypes.as_ref();
    ZoneJson {
        node: zone.key.node.0,
        zone: &zone.key.zone,
        free_pages: areas.free_pages(),
        free_blocks: areas.counts(),
        usable_pages: values_by_order(areas, FreeAreas::free_pages_from_order),
        usable_blocks: values_by_order(areas, FreeAreas::blocks_suitable),
        unusable_index_permille: values_by_order(areas, metrics::unusable_permille),
        unusable_index: absent_reason.is_none().then(|| values_by_order(areas, metrics::unusable_index)),
        unusable_index_absent_reason: absent_reason,
        fragmentation_index_permille: values_by_order(areas, metrics::fragmentation_permille),
        fragmentation_index_paper: values_by_order(areas, metrics::fragmentation_paper),
        migratetypes: letters.ok().and_then(|all| all.get(index)).map(Vec::as_slice),
        migratetypes_absent_reason: letters.err().map(|absence| absence.reason()),
    }
}

/// One value for each order.
fn values_by_order<T>(areas: &FreeAreas, value: impl Fn(&FreeAreas, Order) -> T) -> Vec<T> {
    (0..areas.orders()).map(|order| value(areas, Order(order as u8))).collect()
}
