//! The picture of physical memory as data blocks: for each counted pageblock, its pages by class.

use pagelab_model::{Census, CensusZone, Coverage, PageClass, PageSize, Zoneinfo};
use serde_json::Value;

use super::blocks::Blocks;
use crate::findings::class_words;
use crate::json::object::Object;

/// The whole census.
pub(super) fn census(
    census: &Census,
    zoneinfo: Option<&Zoneinfo>,
    page_size: PageSize,
    blocks: &mut Blocks,
) -> Object {
    let sample = match census.coverage {
        Coverage::Whole => None,
        Coverage::Sample(plan) => Some(
            Object::new()
                .put("seed", plan.seed)
                .put("blocks", plan.blocks)
                .put("blocks_total", plan.blocks_total),
        ),
    };
    let block_pages = census.block_order.pages().0;
    let zones: Vec<Value> =
        census.zones.iter().map(|zone| self::zone(zone, zoneinfo, block_pages, blocks).into()).collect();
    Object::new()
        .put("block_bytes", page_size.block(census.block_order).0)
        .put("block_pages", block_pages)
        .put("page_bytes", page_size.bytes())
        .put("scan_ns", census.scan_ns)
        .put("sample", sample.map(Value::from))
        .put("zones", zones)
}

fn zone(zone: &CensusZone, zoneinfo: Option<&Zoneinfo>, block_pages: u64, blocks: &mut Blocks) -> Object {
    let classes: Vec<PageClass> = PageClass::ALL
        .into_iter()
        .filter(|&class| zone.blocks.iter().any(|(_, counts)| counts.of(class) > 0))
        .collect();
    let index: Vec<u64> = zone.blocks.iter().map(|(index, _)| *index).collect();
    let counts: Vec<u64> = classes
        .iter()
        .flat_map(|&class| zone.blocks.iter().map(move |(_, counts)| u64::from(counts.of(class))))
        .collect();
    let class = |class: &PageClass| {
        Object::new()
            .put("name", class.name())
            .put("words", class_words(*class))
            .put("spoils", class.spoils())
            .put("movable", class.is_movable())
    };
    Object::new()
        .put("node", zone.key.node.0)
        .put("zone", zone.key.zone.as_str())
        .put("first_pfn", zone.first.0)
        .put("blocks_total", zone.blocks_total)
        .put("blocks_spanned", spanned(zone, zoneinfo, block_pages))
        .put("index", blocks.whole(&index))
        .put("one_folio", blocks.whole(&zone.one_folio))
        .put("classes", crate::json::object::array(&classes, class))
        .put("counts", blocks.whole(&counts))
}

/// Blocks that the picture has places for: 128 TiB of blocks of 2 MiB. A browser keeps 4 bytes for each.
const SPANNED_MAX: u64 = 1 << 26;

/// Blocks from the first of the zone to its last, holes included, as far as the picture goes.
fn spanned(zone: &CensusZone, zoneinfo: Option<&Zoneinfo>, block_pages: u64) -> u64 {
    let counted = zone.blocks.last().map_or(0, |(index, _)| index.saturating_add(1));
    let known = zoneinfo.and_then(|info| {
        let info = info.zones.iter().find(|info| info.key == zone.key)?;
        let end = info.start?.0.checked_add(info.spanned?.0)?;
        Some(end.checked_sub(zone.first.0)?.div_ceil(block_pages.max(1)))
    });
    known.unwrap_or(0).max(counted).min(SPANNED_MAX)
}
