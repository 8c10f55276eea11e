//! JSON of `pagelab usage`: `docs/json.md` lists fields and units.

use pagelab_metrics::averages::{Averages, FaultRates};
use pagelab_metrics::statistics::TimeStatistics;
use serde_json::Value;

use super::document_header;
use super::object::{JsonObject, to_array};
use crate::averages::RunAverages;
use crate::fields::{fields, read};

/// Builds the document.
pub fn to_document(lines: &[RunAverages]) -> Value {
    let run = |of: &RunAverages| {
        average_fields().add_to(usage_fields().add_to(JsonObject::new(), of), &of.averages)
    };
    document_header("usage").field("runs", to_array(lines, run)).into()
}

const ONE_SAMPLE: &str = "there is only one reading";

fields! { fn usage_fields(of: RunAverages);
    "name": string, "the file, as named on the command line" => of.file.as_str();
    "machine": string (null: "not recorded in the run"), "host name" => of.machine.as_deref();
    "started_realtime_ns": integer, "start time, in nanoseconds since 1970 (UTC)" => of.started_realtime_ns;
}

fields! { fn average_fields(of: Averages);
    "readings": integer, "number of meminfo readings that count" => of.readings;
    "readings_left_out": integer, "readings skipped because a field is missing" => of.readings_left_out;
    "span_ns": integer, "time from the first reading to the last" => of.span_ns;
    "every_ns": integer (null: ONE_SAMPLE), "median interval between readings" => of.typical_interval_ns;
    "gap_max_ns": integer (null: ONE_SAMPLE), "longest interval between readings" => of.interval_max_ns;
    "total_bytes": object, "MemTotal" => statistics_json(&of.total);
    "free_bytes": object, "MemFree" => statistics_json(&of.free);
    "used_bytes": object, "MemTotal − MemFree" => statistics_json(&of.used);
    "page_cache_bytes": object (reading), "Buffers + Cached + SwapCached" =>
        read(&of.page_cache, statistics_json);
    "used_less_page_cache_bytes": object (reading), "used minus page cache" =>
        read(&of.used_less_page_cache, statistics_json);
    "minor_faults_per_s": object (reading), "rate of pgfault − pgmajfault" =>
        read(&of.faults_per_second, |faults: &FaultRates| statistics_json(&faults.minor));
    "major_faults_per_s": object (reading), "rate of pgmajfault" =>
        read(&of.faults_per_second, |faults: &FaultRates| statistics_json(&faults.major));
}

fn statistics_json(of: &TimeStatistics) -> Value {
    statistics_fields().object(of)
}

fields! { fn statistics_fields(of: TimeStatistics);
    "mean": number, "time-weighted mean" => of.mean;
    "min": number, "smallest reading" => of.min;
    "max": number, "largest reading" => of.max;
    "p95": number, "time-weighted 95th percentile" => of.percentile_95;
}
