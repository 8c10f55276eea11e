//! The JSON of `pagelab usage`: fields and units stand in `docs/json.md`.

use pagelab_metrics::averages::Averages;
use pagelab_metrics::over_time::OverTime;
use serde_json::Value;

use super::header;
use super::object::{Object, array, reason};
use crate::averages::{Line, Stat};

/// The document.
pub fn document(lines: &[Line]) -> Value {
    header("usage").put("runs", array(lines, line)).into()
}

fn line(line: &Line) -> Object {
    let object = Object::new()
        .put("name", line.file.as_str())
        .option("machine", line.machine.as_deref(), "the run does not say")
        .put("started_realtime_ns", line.started_realtime_ns);
    put(object, &line.averages)
}

/// The averages of one run as fields.
pub(super) fn put(object: Object, of: &Averages) -> Object {
    let single = "there is one reading";
    let faults = of.faults.as_ref();
    let why = faults.err().map(reason).unwrap_or_default();
    object
        .put("readings", of.readings)
        .put("readings_left_out", of.readings_left_out)
        .put("span_ns", of.span_ns)
        .option("every_ns", of.every_ns, single)
        .option("gap_max_ns", of.gap_max_ns, single)
        .put("total_bytes", over(&of.total))
        .put("free_bytes", over(&of.free))
        .put("used_bytes", over(&of.used))
        .reading("page_cache_bytes", &of.page_cache, |found| over(found).into())
        .reading("used_less_page_cache_bytes", &of.used_less_page_cache, |found| over(found).into())
        .option("minor_faults_per_s", faults.ok().map(|faults| over(&faults.minor)), &why)
        .option("major_faults_per_s", faults.ok().map(|faults| over(&faults.major)), &why)
}

/// `mean`, `min`, `max`, `p95`.
fn over(of: &OverTime) -> Object {
    Stat::ALL.iter().fold(Object::new(), |object, stat| object.put(stat.word(), stat.of(of)))
}
