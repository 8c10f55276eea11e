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
    "total": object, "the counts of all zones, below" => unit_count_fields().object(&of.0.total);
    "zones": array, "the same counts of each zone, with `node` and `zone`" => to_array(&of.0.zones, |of| {
        unit_count_fields().add_to(JsonObject::for_zone(&of.key), &of.supply)
    });
    "gigantic": array, "huge pages of larger orders, below" => {
        let page_size = of.1.machine.page_size;
        gigantic_fields().array(of.0.gigantic.iter().map(|of| (of, page_size)))
    };
}

fields! { fn scan_fields(of: Census);
    "scan_ns": integer, "its duration" => of.scan_ns;
    "coverage": string, "`whole`, `sample`" => match of.coverage {
        Coverage::Whole => "whole",
        Coverage::Sample(_) => "sample",
    };
    "seed": integer (left out), "of a sample" => of.coverage.sample().map(|of| of.seed);
    "blocks": integer (left out), "pageblocks of a sample" => of.coverage.sample().map(|of| of.blocks);
    "blocks_total": integer (left out), "all pageblocks" => of.coverage.sample().map(|of| of.blocks_total);
}

fields! { fn gigantic_fields<'a>(of: (&'a GiganticSupply, PageSize));
    "order": integer, "its order" => of.0.order.0;
    "page_size_bytes": integer, "its size" => of.1.block_bytes(of.0.order).0;
    "counts": object (reading), "below" => read(&of.0.counts, |of| gigantic_count_fields().object(of));
}

fields! { fn gigantic_count_fields(of: GiganticCounts);
    "free_now": integer, "completely free or deferred" => of.free;
    "deferred": integer, "of these, with a deferred page" => of.deferred;
    "contiguous_low": integer, "free, deferred or movable; pages without flags count as unmovable" =>
        of.contiguous_low;
    "contiguous_high": integer, "the same; pages without flags count as free" => of.contiguous_high;
    "hugetlb": integer, "in use, or in a pool" => of.hugetlb;
}

fields! { fn unit_count_fields(of: UnitCounts);
    "buddy_now": integer (null: "buddyinfo could not be read"), "from buddyinfo" => of.free_by_buddyinfo;
    "units": object, "all of them" => estimate_json(of.units);
    "free_now": object, "completely free" => estimate_json(of.free);
    "deferred": object, "complete, not yet initialised" => estimate_json(of.deferred);
    "in_use": object, "huge pages in use" => estimate_json(of.in_use);
    "polluted": object, "an interval: with a page that cannot be moved" => interval_json(of.polluted);
    "polluted_low_per_cpu": integer (null: "a sample, or zoneinfo does not state it"),
        "low end if only as many unknown pages are free as the pcp lists, the per-CPU page lists, hold" =>
        of.polluted_low_per_cpu;
    "per_cpu_pages": integer (null: "zoneinfo does not state it"), "pages on pcp lists" => of.pcp_pages;
    "unknown_pages": object, "pages without flags" => estimate_json(of.unknown_pages);
    "polluting_classes": array, "below" => polluting_class_fields().array(&of.polluting_classes);
    "after_compaction": object, "an interval: after perfect compaction" => interval_json(of.after_compaction);
    "after_dropping_cache": object, "an interval: the same without page cache" =>
        interval_json(of.after_dropping_cache);
}

fields! { fn polluting_class_fields(of: PollutingClass);
    "class": string, "class of pages" => of.class.name();
    "holding": object, "units with such a page" => estimate_json(of.units_with);
    "alone": object, "those that no other class pollutes" => estimate_json(of.units_polluted_alone);
}

fn estimate_json(estimate: CountEstimate) -> Value {
    estimate_fields().object(&estimate)
}

fields! { fn estimate_fields(of: CountEstimate);
    "value": integer, "the count" => of.value;
    "plus_minus": integer (null: "everything was counted"), "half of a sample's 95 % interval" => of.margin;
}

fn interval_json(interval: EstimateRange) -> JsonObject {
    JsonObject::new().field("low", estimate_json(interval.low)).field("high", estimate_json(interval.high))
}
