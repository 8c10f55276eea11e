//! The JSON of `pagelab plan`: fields and units stand in `docs/json.md`.

use pagelab_model::profile::{MappingKind, ProfileSource, WalkCost};
use pagelab_tlb::plan::{Ranking, Region, Shape};
use serde_json::{Value, json};

use super::header;
use super::object::{Object, array};
use crate::plan::{PlanReport, counts, notes};

/// The document.
pub fn document(report: &PlanReport<'_>) -> Value {
    let (profile, ranking) = (report.profile, report.ranking);
    let step = |&n: &usize| {
        Object::new()
            .put("pages", n)
            .option("share", ranking.share(n), "nothing can be saved")
            .option("saved_ns", ns(ranking, ranking.saved(n)), UNPRICED)
            .option("speedup", report.speedup(n), NO_TIME)
            .option("speedup_low", report.interval(n).map(|of| of.low), NO_TIME)
            .option("speedup_high", report.interval(n).map(|of| of.high), NO_TIME)
    };
    let chosen = report.chosen;
    let knee = if let Shape::Knee(knee) = ranking.shape { Some(knee) } else { None };
    let regions = &ranking.regions[..chosen.min(ranking.regions.len())];
    super::profile::misses(header("plan"), profile)
        .put("source", source(profile.source))
        .put("command", profile.command.clone())
        .put("by", report.by)
        .put("page_bytes", report.page.0)
        .put("regions_touched", ranking.regions.len())
        .option("walk_cost", profile.walk_cost.as_ref().map(walk_cost), UNPRICED)
        .option("cost_ns", ns(ranking, ranking.total), UNPRICED)
        .option("attainable_ns", ns(ranking, ranking.attainable()), UNPRICED)
        .put("shape", shape(ranking.shape))
        .option("knee_pages", knee, "the curve has no knee")
        .put("curve", array(&counts(report), step))
        .put("chosen", Value::from(of_chosen(report, step(&chosen))))
        .put("regions", array(regions, |of| region(ranking, of)))
        .put("notes", notes(report))
        .into()
}

/// The document of a price alone.
pub fn price(price: &WalkCost) -> Value {
    header("walk_cost").put("walk_cost", walk_cost(price)).into()
}

const UNPRICED: &str = "what a page walk costs is not known: pagelab plan --calibrate measures it";
const NO_TIME: &str = "the program's native times were not given: --pair or --base-time";

fn of_chosen(report: &PlanReport<'_>, step: Object) -> Object {
    let faults = report.ranking.faults_saved(report.chosen, report.profile.page_size.bytes());
    let bytes = report.page.0.saturating_mul(report.chosen as u64);
    step.put("bytes", bytes).option(
        "faults_saved",
        faults,
        "the source does not tell which pages were touched",
    )
}

fn ns(ranking: &Ranking, cost: f64) -> Option<u64> {
    ranking.timed.then_some((cost / 1000.0) as u64)
}

/// The word of a source.
pub(super) fn source(source: ProfileSource) -> &'static str {
    match source {
        ProfileSource::Exact => "exact",
        ProfileSource::Accessed => "accessed",
        ProfileSource::Pmu => "pmu",
        ProfileSource::PerfData => "perf-data",
    }
}

fn shape(shape: Shape) -> &'static str {
    match shape {
        Shape::Nothing => "nothing",
        Shape::Knee(_) => "knee",
        Shape::Flat => "flat",
        Shape::AllNeeded => "all_needed",
    }
}

/// The price of walks.
pub(super) fn walk_cost(price: &WalkCost) -> Value {
    let points: Vec<Value> =
        price.points.iter().map(|(log2, ps)| json!({ "log2_distance": log2, "ps": ps })).collect();
    json!({ "origin": price.origin, "points": points })
}

/// The word of a kind of mapping, and the file's path.
pub(super) fn kind(kind: &MappingKind) -> (&'static str, Option<&str>) {
    match kind {
        MappingKind::Anonymous => ("anonymous", None),
        MappingKind::Shared => ("shared", None),
        MappingKind::Heap => ("heap", None),
        MappingKind::Stack => ("stack", None),
        MappingKind::File(path) => ("file", Some(path)),
        MappingKind::Placed => ("placed", None),
    }
}

/// One region of a ranking.
pub(super) fn region(ranking: &Ranking, region: &Region) -> Object {
    let of = ranking.mappings.get(region.mapping);
    let (word, file) = of.map_or(("placed", None), |of| kind(&of.key.kind));
    let base = of.map_or(0, |of| pagelab_tlb::grid::base(&of.key, of.start));
    Object::new()
        .put("program", of.map_or("", |of| of.program.path.as_str()))
        .put("kind", word)
        .option("file", file, "the mapping is of no file")
        .put("asked_bytes", of.map_or(0, |of| of.key.bytes.0))
        .put("nth", of.map_or(0, |of| of.key.nth))
        .put("offset", region.offset)
        .put("address", base.saturating_add(region.offset))
        .put("misses", region.misses.round() as u64)
        .option("cost_ns", ns(ranking, region.cost), UNPRICED)
        .option("saving_ns", ns(ranking, region.saving()), UNPRICED)
        .option("accesses", region.accesses.map(|of| of.round() as u64), "the source does not count accesses")
        .option("written", region.written, "the source does not tell reads from writes")
        .put("touched_bytes", region.touched)
}
