//! The picture of physical memory as data blocks: for each counted pageblock, its pages by class.

use pagelab_model::{CensusZone, PageClass, Snapshot, Zoneinfo};
use serde_json::Value;

use super::DataBlocks;
use crate::findings::class_text;
use crate::json::object::{JsonObject, to_array};

pub(super) fn census_json(snapshot: &Snapshot, data_blocks: &mut DataBlocks) -> Option<JsonObject> {
    let census = snapshot.census.as_ref().ok()?;
    let (page_size, zoneinfo) = (snapshot.machine.page_size, snapshot.zoneinfo.as_ref().ok());
    let sample = census.coverage.sample().map(|plan| {
        JsonObject::new()
            .field("seed", plan.seed)
            .field("blocks", plan.blocks)
            .field("blocks_total", plan.blocks_total)
    });
    let block_pages = census.pageblock_order.to_pages().0;
    let zones = to_array(&census.zones, |zone| zone_json(zone, zoneinfo, block_pages, data_blocks));
    let object = JsonObject::new()
        .field("block_bytes", page_size.block_bytes(census.pageblock_order).0)
        .field("block_pages", block_pages)
        .field("page_bytes", page_size.bytes())
        .field("scan_ns", census.scan_ns)
        .field("sample", sample.map(Value::from))
        .field("zones", zones);
    Some(object)
}

fn zone_json(
    zone: &CensusZone,
    zoneinfo: Option<&Zoneinfo>,
    block_pages: u64,
    data_blocks: &mut DataBlocks,
) -> JsonObject {
    let classes: Vec<PageClass> = PageClass::ALL
        .into_iter()
        .filter(|&class| zone.blocks.iter().any(|(_, counts)| counts.pages_of_class(class) > 0))
        .collect();
    let index: Vec<u64> = zone.blocks.iter().map(|(index, _)| *index).collect();
    let page_counts: Vec<u64> = classes
        .iter()
        .flat_map(|&class| zone.blocks.iter().map(move |(_, counts)| u64::from(counts.pages_of_class(class))))
        .collect();
    let class = |class: &PageClass| {
        JsonObject::new()
            .field("name", class.name())
            .field("words", class_text(*class))
            .field("pollutes", class.pollutes())
            .field("movable", class.is_movable())
    };
    JsonObject::for_zone(&zone.key)
        .field("first_pfn", zone.first.0)
        .field("blocks_total", zone.blocks_total)
        .field("blocks_spanned", spanned_blocks(zone, zoneinfo, block_pages))
        .field("index", data_blocks.push_integers(&index))
        .field("one_folio", data_blocks.push_integers(&zone.one_folio))
        .field("classes", to_array(&classes, class))
        .field("counts", data_blocks.push_integers(&page_counts))
}

/// Pageblocks in the picture, at most: 128 TiB of blocks of 2 MiB. A browser keeps 4 bytes for each.
const SPANNED_BLOCKS_MAX: u64 = 1 << 26;

/// Returns the pageblocks from the first to the last of the zone, including holes, within the limit of the
/// picture.
fn spanned_blocks(zone: &CensusZone, zoneinfo: Option<&Zoneinfo>, block_pages: u64) -> u64 {
    let counted = zone.blocks.last().map_or(0, |(index, _)| index.saturating_add(1));
    let known = zoneinfo.and_then(|info| {
        let info = info.zones.iter().find(|info| info.key == zone.key)?;
        let end = info.start?.0.checked_add(info.spanned?.0)?;
        Some(end.checked_sub(zone.first.0)?.div_ceil(block_pages.max(1)))
    });
    known.unwrap_or(0).max(counted).min(SPANNED_BLOCKS_MAX)
}
