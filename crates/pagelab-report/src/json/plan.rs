//! JSON of `pagelab plan`: `docs/json.md` lists fields and units.

use pagelab_model::profile::{MappingKind, ProfileSource, WalkCostCurve};
use pagelab_tlb::plan::{CurveShape, RankedMapping, Ranking, Region};
use serde_json::{Value, json};

use super::document_header;
use super::object::{JsonObject, to_array};
use crate::fields::fields;
use crate::plan::{PlanReport, curve_counts, knee_absence_text, list_notes};

/// Builds the document.
pub fn to_document(report: &PlanReport<'_>) -> Value {
    let (profile, ranking) = (report.profile, report.ranking);
    let is_bound = report.is_lower_bound();
    let no_high = if is_bound { LOWER_BOUND_REASON } else { NO_TIME_REASON };
    let speedup_high = |n: usize| report.predicted_interval(n).map(|of| of.high).filter(|_| !is_bound);
    let selection_json = |n: usize| {
        JsonObject::new()
            .field("pages", n)
            .optional("share", ranking.saving_share(n), "there is nothing to save")
            .optional("saved_ns", cost_ns(ranking, ranking.saving_at(n)), NO_WALK_COST_REASON)
            .optional("speedup", report.predicted_speedup(n), NO_TIME_REASON)
            .optional("speedup_low", report.predicted_interval(n).map(|of| of.low), NO_TIME_REASON)
            .optional("speedup_high", speedup_high(n), no_high)
    };
    let knee = ranking.knee.ok();
    let no_knee = ranking.knee.err().map_or("", knee_absence_text);
    let most = ranking.most_of_gain();
    let regions = ranking.regions.iter().take(report.chosen);
    super::profile::with_misses(document_header("plan"), profile)
        .field("source", source_slug(profile.source))
        .field("command", profile.command.clone())
        .field("by", report.chosen_by)
        .field("page_bytes", report.page_size.0)
        .field("regions_touched", ranking.regions.len())
        .optional("walk_cost", profile.walk_cost.as_ref().map(walk_cost_json), NO_WALK_COST_REASON)
        .optional("cost_ns", cost_ns(ranking, ranking.total), NO_WALK_COST_REASON)
        .optional("attainable_ns", cost_ns(ranking, ranking.attainable_saving()), NO_WALK_COST_REASON)
        .field("shape", curve_shape_slug(ranking.shape))
        .optional("knee_pages", knee.map(|knee| knee.pages), no_knee)
        .optional("knee_low", knee.map(|knee| knee.low), no_knee)
        .optional("knee_high", knee.map(|knee| knee.high), no_knee)
        .optional("knee_share", knee.and_then(|knee| ranking.saving_share(knee.pages)), no_knee)
        .field("most_of_gain_pages", most)
        .optional("most_of_gain_share", ranking.saving_share(most), "there is nothing to save")
        .field("plan_arguments", report.plan_arguments)
        .field("curve", to_array(curve_counts(report), selection_json))
        .field("chosen", Value::from(with_chosen(report, selection_json(report.chosen))))
        .field("regions", region_fields().array(regions.map(|region| RegionRow { ranking, region })))
        .field("notes", list_notes(report))
        .into()
}

/// Builds the document of page walk costs alone.
pub fn walk_cost_document(walk_cost: &WalkCostCurve) -> Value {
    document_header("walk_cost").field("walk_cost", walk_cost_json(walk_cost)).into()
}

pub(super) const NO_WALK_COST_REASON: &str =
    "the page walk cost is unknown: measure it with pagelab plan --calibrate";
const LOWER_BOUND_REASON: &str = "the prediction is from a lower bound of the misses";
const NO_TIME_REASON: &str = "no native run times are known: use --pair or --base-time";

fn with_chosen(report: &PlanReport<'_>, selection_json: JsonObject) -> JsonObject {
    let faults = report.ranking.saved_faults(report.chosen, report.profile.page_size.bytes());
    let bytes = report.page_size.0.saturating_mul(report.chosen as u64);
    selection_json.field("bytes", bytes).optional(
        "faults_saved",
        faults,
        "the source does not report touched pages",
    )
}

/// Converts picoseconds; `None` if the costs of a ranking are misses.
pub(super) fn cost_ns(ranking: &Ranking, cost: f64) -> Option<u64> {
    ranking.is_timed.then_some((cost / 1000.0) as u64)
}

/// Returns the name of a source.
pub(super) fn source_slug(source: ProfileSource) -> &'static str {
    match source {
        ProfileSource::Exact => "exact",
        ProfileSource::Accessed => "accessed",
        ProfileSource::Pmu => "pmu",
        ProfileSource::PerfData => "perf-data",
    }
}

fn curve_shape_slug(shape: CurveShape) -> &'static str {
    match shape {
        CurveShape::NoGain => "nothing",
        CurveShape::Knee => "knee",
        CurveShape::Flat => "flat",
        CurveShape::AllNeeded => "all_needed",
        CurveShape::Gradual => "gradual",
    }
}

/// Builds the page walk costs.
pub(super) fn walk_cost_json(walk_cost: &WalkCostCurve) -> Value {
    let points: Vec<Value> =
        walk_cost.points.iter().map(|(log2, ps)| json!({ "log2_distance": log2, "ps": ps })).collect();
    json!({ "origin": walk_cost.origin, "points": points })
}

/// Returns the name of a type of mapping, and the file's path.
pub(super) fn mapping_kind_fields(kind: &MappingKind) -> (&'static str, Option<&str>) {
    match kind {
        MappingKind::Anonymous => ("anonymous", None),
        MappingKind::Shared => ("shared", None),
        MappingKind::Heap => ("heap", None),
        MappingKind::Stack => ("stack", None),
        MappingKind::File(path) => ("file", Some(path)),
        MappingKind::Placed => ("placed", None),
    }
}

/// A region of a ranking.
#[derive(Clone, Copy)]
pub(crate) struct RegionRow<'a> {
    pub ranking: &'a Ranking,
    pub region: &'a Region,
}

impl RegionRow<'_> {
    pub fn mapping(&self) -> Option<&RankedMapping> {
        self.ranking.mappings.get(self.region.mapping)
    }

    fn kind(&self) -> (&'static str, Option<&str>) {
        self.mapping().map_or(("placed", None), |of| mapping_kind_fields(&of.key.kind))
    }

    /// Address of the region in the measured process.
    pub fn address(&self) -> u64 {
        let base = self.mapping().map_or(0, |of| pagelab_tlb::grid::base_address(&of.key, of.start));
        base.saturating_add(self.region.offset)
    }
}

fields! { fn region_fields<'a>(of: RegionRow<'a>);
    "program": string, "path of the program" => of.mapping().map_or("", |of| of.program.path.as_str());
    "kind": string, "`heap`, `stack`, `anonymous`, `shared`, `file`, `placed`" => of.kind().0;
    "file": string (null: "the mapping is not backed by a file"), "the file that is mapped" => of.kind().1;
    "requested_bytes": integer, "size of the mapping" => of.mapping().map_or(0, |of| of.key.bytes.0);
    "nth": integer, "number among the mappings of this kind and size" =>
        of.mapping().map_or(0, |of| of.key.nth);
    "offset": integer, "offset in the mapping, in bytes" => of.region.offset;
    "address": integer, "address in the measured process" => of.address();
    "misses": integer, "TLB misses" => of.region.misses.round() as u64;
    "cost_ns": integer (null: NO_WALK_COST_REASON), "cost of page walks" =>
        cost_ns(of.ranking, of.region.cost);
    "saving_ns": integer (null: NO_WALK_COST_REASON), "cost that a huge page saves" =>
        cost_ns(of.ranking, of.region.saving());
    "accesses": integer (null: "the source does not count accesses"), "memory accesses" =>
        of.region.accesses.map(|of| of.round() as u64);
    "written": boolean (null: "the source does not distinguish reads from writes"),
        "whether the region was written to" => of.region.written;
    "touched_bytes": integer, "touched memory" => of.region.touched;
}
