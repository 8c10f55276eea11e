//! What came of a supervised run, as JSON (docs/json.md, `apply`).

use pagelab_target::supervise::{Ended, Summary};
use serde_json::{Value, json};

/// The document.
pub fn summary(summary: &Summary) -> Value {
    let refused: Vec<Value> = summary
        .refused
        .iter()
        .map(|refused| {
            json!({ "mapping": refused.mapping, "offset": refused.offset, "regions": refused.regions,
                    "why": refused.why })
        })
        .collect();
    let (code, signal) = match summary.ended {
        Some(Ended::Code(code)) => (Some(code), None),
        Some(Ended::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    json!({
        "pagelab_json": 1,
        "kind": "apply",
        "regions": {
            "wanted": summary.wanted,
            "got": summary.got,
            "refused": refused,
            "refused_more": summary.refused_more,
        },
        "huge_bytes": summary.huge_bytes,
        "heap_beyond_bytes": summary.heap_beyond_bytes,
        "supervisor_cpu_ns": summary.supervisor_cpu_ns,
        "collapse_cpu_ns": summary.collapse_cpu_ns,
        "stopped_ns": summary.stopped_ns,
        "stops": summary.stops,
        "wall_ns": summary.wall_ns,
        "exit": { "code": code, "signal": signal },
        "notes": summary.notes,
    })
}
