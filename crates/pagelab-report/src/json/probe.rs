//! The probe's results in JSON.

use pagelab_metrics::statistics::Statistics;
use pagelab_model::probe::{AccessPair, AccessPoint, AccessProbe, HugeProbe, ProbeResults};

use super::object::{Object, array};

/// The whole probe.
pub(super) fn probe(results: &ProbeResults) -> Object {
    Object::new()
        .put("budget_bytes", results.budget.0)
        .put("budget_bound", results.budget_bound.as_str())
        .reading("huge_pages", &results.huge, |huge| huge_pages(huge).into())
        .reading("access", &results.access, |probe| access(probe).into())
        .put("notes", results.notes.clone())
}

fn huge_pages(huge: &HugeProbe) -> Object {
    Object::new()
        .put("page_size_bytes", huge.page_size.0)
        .put("asked", huge.asked)
        .put("answered_yes", huge.answered_yes)
        .put("came", huge.came)
        .put("read_back_by", huge.read_back_by.as_str())
        .put("latency_ns", huge.latency_ns.clone())
        .option("latency_ns_median", latency_median(huge), "nothing was asked for")
        .option("first_refusal", huge.first_refusal.clone(), "none was refused")
}

/// Rounded to nanoseconds.
fn latency_median(huge: &HugeProbe) -> Option<u64> {
    let all = huge.latency_ns.iter().map(|&ns| ns as f64).collect();
    Statistics::of(all).map(|found| found.median.round() as u64)
}

fn access(probe: &AccessProbe) -> Object {
    Object::new()
        .put("seed", probe.seed)
        .option("pinned_cpu", probe.pinned_cpu, "the thread could not be kept on one CPU")
        .put("base_curve", array(&probe.base_curve, point))
        .put("huge_curve", array(&probe.huge_curve, point))
        .put("pairs", array(&probe.pairs, pair))
        .reading("knee_bytes", &probe.knee, |knee| knee.0.into())
}

fn point(point: &AccessPoint) -> Object {
    Object::new()
        .put("size_bytes", point.size.0)
        .put("ps_per_access", point.ps_per_access.clone())
        .option("ps_per_access_median", point.median_ps(), "no repeat was made")
        .reading("huge_backed_bytes", &point.huge_backed, |backed| backed.0.into())
}

fn pair(pair: &AccessPair) -> Object {
    let effect = pair.effect().map(|effect| {
        Object::new()
            .put("base_ps", effect.base_ps)
            .put("huge_ps", effect.huge_ps)
            .put("saved_ps", effect.saved.median_ps)
            .put("saved_error_ps", effect.saved.error_ps)
            .put("is_clear", effect.saved.is_clear())
    });
    Object::new()
        .put("base", point(&pair.base))
        .reading("huge", &pair.huge, |huge| point(huge).into())
        .option("effect", effect, "huge pages were not there, or base pages were not base pages")
}
