//! The JSON of `pagelab frag`: fields and units stand in `docs/json.md`.

use pagelab_metrics::frag as metrics;
use pagelab_model::{FreeAreas, Order};
use serde::Serialize;

use super::{Header, NOTHING_FREE};
use crate::frag::{FragReport, Place};

/// The document.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    #[serde(flatten)]
    header: Header,
    source: Source<'a>,
    page_size_bytes: u64,
    page_size_source: &'a str,
    order: u8,
    order_source: &'a str,
    order_bytes: u64,
    headline: String,
    zones: Vec<Zone<'a>>,
    zones_without_memory: Vec<ZoneName<'a>>,
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct Source<'a> {
    name: &'a str,
    kind: &'a str,
    reading: Option<usize>,
    readings: Option<usize>,
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reading_absent_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    readings_absent_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line_absent_reason: Option<&'static str>,
    trigger: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trigger_absent_reason: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct ZoneName<'a> {
    node: u32,
    zone: &'a str,
}

#[derive(Debug, Serialize)]
struct Zone<'a> {
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

const NO_PLACE: &str = "the source is one file of its own";

/// The document for a report.
pub fn document(report: &FragReport) -> Document<'_> {
    Document {
        header: Header::new("frag"),
        source: source(report),
        page_size_bytes: report.page_size.bytes(),
        page_size_source: &report.page_size_source,
        order: report.order.0,
        order_source: &report.order_source,
        order_bytes: report.page_size.block(report.order).0,
        headline: report.headline(),
        zones: (0..report.buddyinfo.zones.len()).map(|at| zone(report, at)).collect(),
        zones_without_memory: report
            .unpopulated
            .iter()
            .map(|key| ZoneName { node: key.node.0, zone: &key.zone })
            .collect(),
        notes: &report.notes,
    }
}

fn source(report: &FragReport) -> Source<'_> {
    let place = report.source.place.as_ref();
    let absent = place.is_none().then_some(NO_PLACE);
    let trigger = place.and_then(|place: &Place| place.trigger.as_ref()).map(|(text, _)| text.as_str());
    let trigger_absent_reason = match (trigger, report.source.kind) {
        (Some(_), _) => None,
        (None, "show_mem") => Some("no line before the report says why it was printed"),
        (None, _) => Some("buddyinfo is read, not printed for a reason"),
    };
    Source {
        name: &report.source.name,
        kind: report.source.kind,
        reading: place.map(|place| place.which),
        readings: place.map(|place| place.of),
        line: place.map(|place| place.line),
        reading_absent_reason: absent,
        readings_absent_reason: absent,
        line_absent_reason: absent,
        trigger,
        trigger_absent_reason,
    }
}

fn zone(report: &FragReport, at: usize) -> Zone<'_> {
    let zone = &report.buddyinfo.zones[at];
    let areas = &zone.areas;
    let absent = (areas.free_pages() == 0).then_some(NOTHING_FREE);
    let letters = report.migratetypes.as_ref();
    Zone {
        node: zone.key.node.0,
        zone: &zone.key.zone,
        free_pages: areas.free_pages(),
        free_blocks: areas.counts(),
        usable_pages: by_order(areas, FreeAreas::pages_from),
        usable_blocks: by_order(areas, FreeAreas::blocks_suitable),
        unusable_index_permille: by_order(areas, metrics::unusable_permille),
        unusable_index: absent.is_none().then(|| by_order(areas, metrics::unusable)),
        unusable_index_absent_reason: absent,
        fragmentation_index_permille: by_order(areas, metrics::fragmentation_permille),
        fragmentation_index_paper: by_order(areas, metrics::fragmentation_paper),
        migratetypes: letters.ok().and_then(|all| all.get(at)).map(Vec::as_slice),
        migratetypes_absent_reason: letters.err().map(|absence| absence.reason()),
    }
}

/// One value for each order.
fn by_order<T>(areas: &FreeAreas, value: impl Fn(&FreeAreas, Order) -> T) -> Vec<T> {
    (0..areas.orders()).map(|order| value(areas, Order(order as u8))).collect()
}
