//! Supply of huge pages in JSON.

use pagelab_metrics::supply::{
    CountEstimate, EstimateRange, GiganticCounts, GiganticSupply, HugePageSupply, PollutingClass, UnitCounts,
};
use pagelab_model::{Census, Coverage, PageSize, Snapshot};
use serde_json::Value;

use super::object::{JsonObject, to_array};
use crate::fields::{fields, read};

/// Builds the complete supply.
pub(super) fn supply_json(supply: &HugePageSupply, snapshot: &Snapshot) -> Value {
    supply_fields().object(&(supply, snapshot))
}

fields! { fn supply_fields<'a>(of: (&'a HugePageSupply, &'a Snapshot));
    "unit_order": integer, "order of a unit" => of.0.unit_order.0;
    "scan": object (reading), "below" => read(&of.1.census, |of| scan_fields().object(of));
    "total": object, "counts of all zones together, below" => unit_count_fields().object(&of.0.total);
    "zones": array, "the same counts per zone, with `node` and `zone`" => to_array(&of.0.zones, |of| {
        unit_count_fields().add_to(JsonObject::for_zone(&of.key), &of.supply)
    });
    "gigantic": array, "larger huge pages, below" => {
        let page_size = of.1.machine.page_size;
        gigantic_fields().array(of.0.gigantic.iter().map(|of| (of, page_size)))
    };
}

fields! { fn scan_fields(of: Census);
    "scan_ns": integer, "duration of the scan" => of.scan_ns;
    "coverage": string, "`whole`, `sample`" => match of.coverage {
        Coverage::Whole => "whole",
        Coverage::Sample(_) => "sample",
    };
    "seed": integer (left out), "seed of the sample" => of.coverage.sample().map(|of| of.seed);
    "blocks": integer (left out), "pageblocks in the sample" => of.coverage.sample().map(|of| of.blocks);
    "blocks_total": integer (left out), "total number of pageblocks" =>
        of.coverage.sample().map(|of| of.blocks_total);
}

fields! { fn gigantic_fields<'a>(of: (&'a GiganticSupply, PageSize));
    "order": integer, "order of the huge page" => of.0.order.0;
    "page_size_bytes": integer, "size of the huge page" => of.1.block_bytes(of.0.order).0;
    "counts": object (reading), "below" => read(&of.0.counts, |of| gigantic_count_fields().object(of));
}

fields! { fn gigantic_count_fields(of: GiganticCounts);
    "free_now": integer, "ranges that are completely free or deferred" => of.free;
    "deferred": integer, "of these, ranges with a deferred page" => of.deferred;
    "contiguous_low": integer,
        "ranges of only free, deferred or movable pages; pages without flags count as unmovable" =>
        of.contiguous_low;
    "contiguous_high": integer, "the same, but pages without flags count as free" => of.contiguous_high;
    "hugetlb": integer, "hugetlb pages in use or in a pool" => of.hugetlb;
}

fields! { fn unit_count_fields(of: UnitCounts);
    "buddy_now": integer (null: "buddyinfo could not be read"),
        "huge pages that fit into the free blocks of buddyinfo" => of.free_by_buddyinfo;
    "units": object, "all units" => estimate_json(of.units);
    "free_now": object, "units that are completely free" => estimate_json(of.free);
    "deferred": object, "units of only free and deferred pages, at least one of them deferred" =>
        estimate_json(of.deferred);
    "in_use": object, "huge pages in use" => estimate_json(of.in_use);
    "polluted": object, "interval: units with at least one page that cannot be moved" =>
        interval_json(of.polluted);
    "polluted_low_per_cpu": integer (null: "a sample, or not in zoneinfo"),
        "low end of `polluted` if no more unknown pages are free than the pcp (per-CPU page) lists hold" =>
        of.polluted_low_per_cpu;
    "per_cpu_pages": integer (null: "not in zoneinfo"), "pages on pcp lists" => of.pcp_pages;
    "unknown_pages": object, "pages without flags" => estimate_json(of.unknown_pages);
    "polluting_classes": array, "below" => polluting_class_fields().array(&of.polluting_classes);
    "after_compaction": object, "interval: huge pages after perfect compaction" =>
        interval_json(of.after_compaction);
    "after_dropping_cache": object, "interval: the same after also dropping the page cache" =>
        interval_json(of.after_dropping_cache);
}

fields! { fn polluting_class_fields(of: PollutingClass);
    "class": string, "page class" => of.class.name();
    "holding": object, "units that contain a page of this class" => estimate_json(of.units_with);
    "alone": object, "units that no other class pollutes" => estimate_json(of.units_polluted_alone);
}

fn estimate_json(estimate: CountEstimate) -> Value {
    estimate_fields().object(&estimate)
}

fields! { fn estimate_fields(of: CountEstimate);
    "value": integer, "the count" => of.value;
    "plus_minus": integer (null: "everything was counted"), "half-width of the sample's 95 % interval" =>
        of.margin;
}

fn interval_json(interval: EstimateRange) -> JsonObject {
    JsonObject::new().field("low", estimate_json(interval.low)).field("high", estimate_json(interval.high))
}
