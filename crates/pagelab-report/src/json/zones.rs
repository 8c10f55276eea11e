//! Zones in JSON: watermarks and sizes, and free blocks by migratetype.

use pagelab_model::pagetype::{Pagetypeinfo, TypeCount};
use pagelab_model::{Pages, ZoneInfo, Zoneinfo};
use serde_json::Value;

use super::checkup::counters;
use super::object::{Object, array};

const NOT_PRINTED: &str = "this kernel does not print it";

/// Free blocks and pageblocks by migratetype.
pub(super) fn by_migratetype(types: &Pagetypeinfo) -> Object {
    let free = array(&types.free, |row| {
        let capped: Vec<bool> = row.counts.iter().map(|n| matches!(n, TypeCount::MoreThan(_))).collect();
        Object::new()
            .put("node", row.key.node.0)
            .put("zone", row.key.zone.as_str())
            .put("migratetype", row.migratetype.as_str())
            .put("free_blocks_at_least", row.counts.iter().map(|n| n.at_least()).collect::<Vec<_>>())
            .put("capped", capped)
    });
    let blocks = array(&types.blocks, |row| {
        let counts = row.counts.iter().fold(Object::new(), |object, (name, n)| object.put(name, *n));
        Object::new().put("node", row.key.node.0).put("zone", row.key.zone.as_str()).put("pageblocks", counts)
    });
    Object::new()
        .option("pageblock_order", types.pageblock_order.map(|order| order.0), NOT_PRINTED)
        .option("pages_per_pageblock", types.pages_per_block, NOT_PRINTED)
        .put("free", free)
        .put("pageblocks", blocks)
}

/// Every zone's watermarks, sizes and counters.
pub(super) fn zoneinfo(info: &Zoneinfo) -> Value {
    array(&info.zones, zone)
}

fn zone(zone: &ZoneInfo) -> Object {
    let sizes: [(&str, Option<Pages>); 10] = [
        ("free_pages", zone.free),
        ("boost_pages", zone.boost),
        ("min_pages", zone.min),
        ("low_pages", zone.low),
        ("high_pages", zone.high),
        ("promo_pages", zone.promo),
        ("spanned_pages", zone.spanned),
        ("present_pages", zone.present),
        ("managed_pages", zone.managed),
        ("cma_pages", zone.cma),
    ];
    let object = Object::new().put("node", zone.key.node.0).put("zone", zone.key.zone.as_str());
    sizes
        .iter()
        .fold(object, |object, (name, pages)| object.option(name, pages.map(|p| p.0), NOT_PRINTED))
        .option("start_pfn", zone.start.map(|pfn| pfn.0), NOT_PRINTED)
        .put("protection_pages", zone.protection.clone())
        .put("per_cpu_pages", zone.pages_per_cpu().0)
        .put("counters", counters(&zone.stats))
}
