//! Results of the probe in JSON.

use pagelab_metrics::statistics::SampleStatistics;
use pagelab_model::probe::{
    AccessComparison, AccessPair, AccessPoint, AccessProbe, HugePageProbe, ProbeResults,
};

use crate::fields::{fields, read};

fields! { fn probe_fields(of: ProbeResults);
    "budget_bytes": integer, "memory that the probe may use" => of.budget.0;
    "budget_limit": string, "what sets this limit" => of.budget_limit.as_str();
    "huge_pages": object (reading), "huge-page requests, below" =>
        read(&of.huge, |of| huge_probe_fields().object(of));
    "access": object (reading), "access times, below" => read(&of.access, |of| access_fields().object(of));
    "notes": array, "caveats" => of.notes.clone();
}

fields! { fn huge_probe_fields(of: HugePageProbe);
    "page_size_bytes": integer, "size of a huge page" => of.page_size.0;
    "requested": integer, "requests" => of.requested;
    "succeeded": integer, "calls that succeeded" => of.succeeded;
    "allocated": integer, "huge pages found when the mapping was read back" => of.allocated;
    "read_back_by": string, "`PAGEMAP_SCAN`, `smaps`" => of.read_back_by.as_str();
    "latency_ns": array, "one value per request, in order" => of.latency_ns.clone();
    "latency_ns_median": integer (null: "nothing was requested"),
        "median; for an even number of requests, the mean of the middle two" => latency_median_ns(of);
    "first_error": string (null: "no request failed"), "error message of the system" =>
        of.first_error.as_deref();
}

/// Rounds to nanoseconds.
fn latency_median_ns(huge: &HugePageProbe) -> Option<u64> {
    let all = huge.latency_ns.iter().map(|&ns| ns as f64).collect();
    SampleStatistics::from_samples(all).map(|found| found.median.round() as u64)
}

fields! { fn access_fields(of: AccessProbe);
    "seed": integer, "seed of the access order" => of.seed;
    "pinned_cpu": integer (null: "the thread could not be pinned"), "CPU on which the measurement ran" =>
        of.pinned_cpu;
    "base_curve": array, "measurements with base pages, by ascending buffer size, below" =>
        access_point_fields().array(&of.base_curve);
    "huge_curve": array, "the same with huge pages" => access_point_fields().array(&of.huge_curve);
    "pairs": array, "below" => access_pair_fields().array(&of.pairs);
    "knee_bytes": integer (reading), "largest buffer that the TLB covers with base pages" =>
        read(&of.knee, |knee| knee.0.into());
}

fields! { fn access_point_fields(of: AccessPoint);
    "size_bytes": integer, "size of the buffer" => of.size.0;
    "ps_per_access": array, "picoseconds per access, one value per repeat" => of.ps_per_access.clone();
    "ps_per_access_median": integer (null: "no repeats"), "median of these values" => of.median_ps();
    "huge_backed_bytes": integer (reading), "memory found on huge pages when the mapping was read back" =>
        read(&of.huge_backed, |backed| backed.0.into());
}

fields! { fn access_pair_fields(of: AccessPair);
    "base": object, "a measurement" => access_point_fields().object(&of.base);
    "huge": object (reading), "a measurement" => read(&of.huge, |of| access_point_fields().object(of));
    "effect": object (null: "huge pages were not allocated, or the buffer for base pages was on huge pages"),
        "below" =>
        of.compare().map(|of| access_effect_fields().object(&of));
}

fields! { fn access_effect_fields(of: AccessComparison);
    "base_ps": integer, "median with base pages" => of.base_ps;
    "huge_ps": integer, "median with huge pages" => of.huge_ps;
    "saved_ps": integer, "median of the paired differences, base minus huge" => of.saved.median_ps;
    "saved_error_ps": integer, "standard error of `saved_ps`" => of.saved.error_ps;
    "is_clear": boolean, "whether the absolute value of `saved_ps` exceeds three standard errors" =>
        of.saved.is_significant();
}
