//! Zones in JSON: watermarks and sizes, and free blocks by migratetype.

use pagelab_model::pagetype::{CappedCount, MigratetypeFreeAreas, MigratetypePageblocks, Pagetypeinfo};
use pagelab_model::{Pages, ZoneEntry};
use serde_json::Value;

use super::checkup::counters_json;
use super::object::JsonObject;
use crate::fields::fields;

const NOT_PRINTED_REASON: &str = "not reported by this kernel";

fields! { fn pagetype_fields(of: Pagetypeinfo);
    "pageblock_order": integer (null: NOT_PRINTED_REASON), "order of a pageblock" =>
        of.pageblock_order.map(|order| order.0);
    "pages_per_pageblock": integer (null: NOT_PRINTED_REASON), "base pages per pageblock" =>
        of.pages_per_block;
    "free": array, "free blocks of each zone and migratetype, below" =>
        migratetype_free_fields().array(&of.free);
    "pageblocks": array, "pageblocks of each zone, below" => migratetype_pageblock_fields().array(&of.blocks);
}

fields! { fn migratetype_free_fields(of: MigratetypeFreeAreas);
    "node": integer, "NUMA node" => of.key.node.0;
    "zone": string, "the kernel's name for the zone" => of.key.zone.as_str();
    "migratetype": string, "the kernel's name for the migratetype" => of.migratetype.as_str();
    "free_blocks_at_least": array, "lower bound of the number of free blocks, by order" =>
        of.counts.iter().map(|count| count.at_least()).collect::<Value>();
    "capped": array, "by order: whether the kernel stopped counting" =>
        of.counts.iter().map(|count| matches!(count, CappedCount::MoreThan(_))).collect::<Value>();
}

fields! { fn migratetype_pageblock_fields(of: MigratetypePageblocks);
    "node": integer, "NUMA node" => of.key.node.0;
    "zone": string, "the kernel's name for the zone" => of.key.zone.as_str();
    "pageblocks": object, "number of pageblocks by migratetype" =>
        of.counts.iter().fold(JsonObject::new(), |object, (name, count)| object.field(name, *count));
}

fn pages_json(pages: Option<Pages>) -> Value {
    pages.map(|pages| pages.0).into()
}

fields! { fn zone_fields(of: ZoneEntry);
    "node": integer, "NUMA node" => of.key.node.0;
    "zone": string, "the kernel's name for the zone" => of.key.zone.as_str();
    "free_pages": integer (null: NOT_PRINTED_REASON), "pages on the free lists" => pages_json(of.free);
    "boost_pages": integer (null: NOT_PRINTED_REASON), "watermark boost" => pages_json(of.boost);
    "min_pages": integer (null: NOT_PRINTED_REASON), "min watermark" => pages_json(of.min);
    "low_pages": integer (null: NOT_PRINTED_REASON), "low watermark" => pages_json(of.low);
    "high_pages": integer (null: NOT_PRINTED_REASON), "high watermark" => pages_json(of.high);
    "promo_pages": integer (null: NOT_PRINTED_REASON), "promo watermark" => pages_json(of.promo);
    "spanned_pages": integer (null: NOT_PRINTED_REASON),
        "pages from the first to the last, including holes" => pages_json(of.spanned);
    "present_pages": integer (null: NOT_PRINTED_REASON), "present pages" => pages_json(of.present);
    "managed_pages": integer (null: NOT_PRINTED_REASON), "pages managed by the allocator" =>
        pages_json(of.managed);
    "cma_pages": integer (null: NOT_PRINTED_REASON), "pages in CMA areas" => pages_json(of.cma);
    "start_pfn": integer (null: NOT_PRINTED_REASON), "first page frame" => of.start.map(|pfn| pfn.0);
    "protection_pages": array, "lowmem reserve against each zone" => of.protection.clone();
    "per_cpu_pages": integer, "pages on the pcp lists" => of.count_pcp_pages().0;
    "counters": object, "the zone's counters, with the kernel's names" => counters_json(&of.stats);
}
