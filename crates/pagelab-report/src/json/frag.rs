//! JSON of `pagelab frag`: `docs/json.md` lists fields and units.

use pagelab_metrics::capped_index::{IndexBounds, fragmentation_bounds, unusable_bounds};
use pagelab_metrics::fragmentation_index as metrics;
use pagelab_metrics::movable_request::MovableAccess;
use pagelab_model::pagetype::{CappedAreas, Pagetypeinfo};
use pagelab_model::{FreeAreas, Order, ZoneKey};
use serde::Serialize;
use serde_json::Value;

use super::object::{JsonObject, to_array};
use super::{NO_FREE_REASON, document_header};
use crate::fields::fields;
use crate::frag::{FragReport, FreeBlockSource, ZoneAreas};

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
    #[serde(flatten)]
    counted: CountedJson,
    fragmentation_index_paper: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fragmentation_index_paper_absent_reason: Option<&'static str>,
    migratetypes: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    migratetypes_absent_reason: Option<&'a str>,
    free_by_migratetype: Option<Vec<MigratetypeJson<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_by_migratetype_absent_reason: Option<&'static str>,
    movable_request: Option<CountedJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    movable_request_absent_reason: Option<&'static str>,
    cma: Option<CountedJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cma_absent_reason: Option<&'static str>,
}

/// Free blocks and their indices. If the kernel capped a count, only bounds are known.
#[derive(Debug, Serialize)]
struct CountedJson {
    free_pages: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_pages_absent_reason: Option<&'static str>,
    free_blocks: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_blocks_absent_reason: Option<&'static str>,
    usable_pages: Option<Vec<u128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usable_pages_absent_reason: Option<&'static str>,
    usable_blocks: Option<Vec<u128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usable_blocks_absent_reason: Option<&'static str>,
    unusable_index_permille: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable_index_permille_absent_reason: Option<&'static str>,
    unusable_index: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable_index_absent_reason: Option<&'static str>,
    fragmentation_index_permille: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fragmentation_index_permille_absent_reason: Option<&'static str>,
    bounds: Option<BoundsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bounds_absent_reason: Option<&'static str>,
}

/// Bounds by order.
#[derive(Debug, Serialize)]
struct BoundsJson {
    capped_orders: Vec<usize>,
    free_pages_min: u128,
    free_blocks_min: Vec<u64>,
    usable_pages_min: Vec<u128>,
    usable_blocks_min: Vec<u128>,
    unusable_index_permille_min: Vec<i64>,
    unusable_index_permille_max: Vec<i64>,
    fragmentation_index_permille_min: Vec<i64>,
    fragmentation_index_permille_max: Vec<i64>,
}

/// Free blocks and pageblocks of one migratetype.
#[derive(Debug, Serialize)]
struct MigratetypeJson<'a> {
    migratetype: &'a str,
    movable_access: &'static str,
    free_blocks_min: Vec<u64>,
    capped_orders: Vec<usize>,
    pageblocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pageblocks_absent_reason: Option<&'static str>,
}

const CAPPED_REASON: &str = "the kernel capped a count; see bounds";
const EXACT_REASON: &str = "all counts are exact";
const NO_PAGETYPEINFO_REASON: &str = "only pagetypeinfo contains it";
const NO_PAGEBLOCKS_REASON: &str = "the input has no table of pageblocks";
const TOO_LARGE_REASON: &str = "the counts do not fit into 64 bits";
const NO_CMA_REASON: &str = "the kernel has no CMA migratetype";

/// Builds the document for a report.
pub fn to_document(report: &FragReport) -> FragmentationDocument<'_> {
    FragmentationDocument {
        head: report_fields().add_to(document_header("frag"), report),
        zones: report
            .zone_areas()
            .into_iter()
            .enumerate()
            .map(|(at, zone)| zone_json(report, at, zone))
            .collect(),
        zones_without_memory: to_array(&report.unpopulated, JsonObject::for_zone),
        notes: &report.notes,
    }
}

fields! { fn report_fields(of: FragReport);
    "source": object, "where the free-block counts come from, below" => source_fields().object(&of.source);
    "page_size_bytes": integer, "base page size of the measured machine" => of.page_size.bytes();
    "page_size_source": string, "where this size comes from" => of.page_size_source.as_str();
    "order": integer, "the order of `headline`; at most the largest order of the machine" => of.order.0;
    "order_source": string, "why this order was chosen" => of.order_source.as_str();
    "order_bytes": integer, "size of a block of that order" => of.page_size.block_bytes(of.order).0;
    "headline": string, "the answer in one sentence, as printed above the table" => of.format_headline();
}

/// Why a reading has no position.
const NO_POSITION: &str = "the source is a single file";

fields! { fn source_fields(of: FreeBlockSource);
    "name": string, "`this machine`, a saved tree, a file, or `standard input`" => of.name.as_str();
    "kind": string, "`buddyinfo`, `pagetypeinfo` or `show_mem` (an allocation-failure or out-of-memory \
                     report)" => of.kind;
    "reading": integer (null: NO_POSITION), "number of this reading in the text, counted from 1" =>
        of.position.as_ref().map(|of| of.index);
    "readings": integer (null: NO_POSITION), "number of readings in the text" =>
        of.position.as_ref().map(|of| of.total);
    "line": integer (null: NO_POSITION), "first line of the reading, counted from 1" =>
        of.position.as_ref().map(|of| of.line);
    "trigger": string (reading),
        "kernel message that introduces the report, shortened; null for other kinds" =>
        match of.position.as_ref().and_then(|of| of.trigger.as_ref()) {
            Some((text, _)) => Ok(text.as_str().into()),
            None if of.kind == "show_mem" => Err("no line before the report gives the reason".to_owned()),
            None => Err(format!("{} has no trigger", of.kind)),
        };
}

fn zone_json<'a>(report: &'a FragReport, index: usize, zone: ZoneAreas<'a>) -> ZoneJson<'a> {
    let ZoneAreas { key, areas } = zone;
    let exact = areas.is_exact().then_some(&areas.counts_min);
    let letters = report.migratetypes.as_ref();
    let types = report.pagetypeinfo.as_ref();
    let sum = |access: MovableAccess| match types {
        None => Err(NO_PAGETYPEINFO_REASON),
        Some(types) => access.free_areas(types, key).as_ref().map(counted_json).ok_or(TOO_LARGE_REASON),
    };
    let has_cma = types.is_some_and(|types| types.free.iter().any(|row| row.migratetype == "CMA"));
    let movable = sum(MovableAccess::Usable);
    let cma = if types.is_none() || has_cma { sum(MovableAccess::Cma) } else { Err(NO_CMA_REASON) };
    ZoneJson {
        node: key.node.0,
        zone: &key.zone,
        counted: counted_json(&areas),
        fragmentation_index_paper: exact.map(|areas| values_by_order(areas, metrics::fragmentation_paper)),
        fragmentation_index_paper_absent_reason: exact.is_none().then_some(CAPPED_REASON),
        migratetypes: letters.ok().and_then(|all| all.get(index)).map(Vec::as_slice),
        migratetypes_absent_reason: letters.err().map(|absence| absence.reason()),
        free_by_migratetype: types.map(|types| migratetypes_json(types, key)),
        free_by_migratetype_absent_reason: types.is_none().then_some(NO_PAGETYPEINFO_REASON),
        movable_request_absent_reason: movable.as_ref().err().copied(),
        movable_request: movable.ok(),
        cma_absent_reason: cma.as_ref().err().copied(),
        cma: cma.ok(),
    }
}

fn counted_json(areas: &CappedAreas) -> CountedJson {
    let counts = &areas.counts_min;
    let is_exact = areas.is_exact();
    let exact = is_exact.then_some(counts);
    let capped_reason = (!is_exact).then_some(CAPPED_REASON);
    let no_free_reason = (is_exact && counts.free_pages() == 0).then_some(NO_FREE_REASON);
    let ratio = exact.filter(|_| no_free_reason.is_none());
    CountedJson {
        free_pages: exact.map(FreeAreas::free_pages),
        free_pages_absent_reason: capped_reason,
        free_blocks: exact.map(|counts| counts.counts().to_vec()),
        free_blocks_absent_reason: capped_reason,
        usable_pages: exact.map(|counts| values_by_order(counts, FreeAreas::free_pages_from_order)),
        usable_pages_absent_reason: capped_reason,
        usable_blocks: exact.map(|counts| values_by_order(counts, FreeAreas::blocks_suitable)),
        usable_blocks_absent_reason: capped_reason,
        unusable_index_permille: exact.map(|counts| values_by_order(counts, metrics::unusable_permille)),
        unusable_index_permille_absent_reason: capped_reason,
        unusable_index: ratio.map(|counts| values_by_order(counts, metrics::unusable_index)),
        unusable_index_absent_reason: capped_reason.or(no_free_reason),
        fragmentation_index_permille: exact
            .map(|counts| values_by_order(counts, metrics::fragmentation_permille)),
        fragmentation_index_permille_absent_reason: capped_reason,
        bounds: (!is_exact).then(|| bounds_json(areas)),
        bounds_absent_reason: is_exact.then_some(EXACT_REASON),
    }
}

fn bounds_json(areas: &CappedAreas) -> BoundsJson {
    let counts = &areas.counts_min;
    let by_order = |bounds: fn(&CappedAreas, Order) -> IndexBounds, side: fn(IndexBounds) -> i64| {
        values_by_order(counts, |_, order| side(bounds(areas, order)))
    };
    BoundsJson {
        capped_orders: capped_orders(areas.is_capped.iter().copied()),
        free_pages_min: counts.free_pages(),
        free_blocks_min: counts.counts().to_vec(),
        usable_pages_min: values_by_order(counts, FreeAreas::free_pages_from_order),
        usable_blocks_min: values_by_order(counts, FreeAreas::blocks_suitable),
        unusable_index_permille_min: by_order(unusable_bounds, |bounds| bounds.permille_min),
        unusable_index_permille_max: by_order(unusable_bounds, |bounds| bounds.permille_max),
        fragmentation_index_permille_min: by_order(fragmentation_bounds, |bounds| bounds.permille_min),
        fragmentation_index_permille_max: by_order(fragmentation_bounds, |bounds| bounds.permille_max),
    }
}

fn capped_orders(is_capped: impl Iterator<Item = bool>) -> Vec<usize> {
    is_capped.enumerate().filter(|&(_, capped)| capped).map(|(order, _)| order).collect()
}

fn migratetypes_json<'a>(types: &'a Pagetypeinfo, key: &ZoneKey) -> Vec<MigratetypeJson<'a>> {
    let pageblocks = types.blocks.iter().find(|row| row.key == *key);
    let rows = types.free.iter().filter(|row| row.key == *key).map(|row| {
        let name = row.migratetype.as_str();
        let count = pageblocks.and_then(|row| row.counts.iter().find(|(other, _)| other == name));
        MigratetypeJson {
            migratetype: name,
            movable_access: MovableAccess::of_migratetype(name).name(),
            free_blocks_min: row.counts.iter().map(|count| count.at_least()).collect(),
            capped_orders: capped_orders(row.counts.iter().map(|count| count.is_capped())),
            pageblocks: count.map(|&(_, count)| count),
            pageblocks_absent_reason: count.is_none().then_some(NO_PAGEBLOCKS_REASON),
        }
    });
    rows.collect()
}

/// One value for each order.
fn values_by_order<T>(areas: &FreeAreas, value: impl Fn(&FreeAreas, Order) -> T) -> Vec<T> {
    (0..areas.orders()).map(|order| value(areas, Order(order as u8))).collect()
}
