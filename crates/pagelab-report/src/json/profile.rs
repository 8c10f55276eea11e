//! JSON of a profile: `docs/json.md` lists fields and units.

use pagelab_model::TlbProfile;
use pagelab_model::profile::{
    ImageProfile, ImageStart, MissScenario, OwnAdvice, SampledStretches, UnseenReason,
};
use pagelab_tlb::cost::compute_scenario_cost;
use pagelab_tlb::plan::RankedMapping;
use serde_json::Value;

use super::document_header;
use super::object::{JsonObject, to_array};
use super::plan::{
    NO_WALK_COST_REASON, RegionRow, cost_ns, mapping_kind_fields, region_fields, source_slug, walk_cost_json,
};
use crate::miss_counts::lower_bound_text;
use crate::profile::shown_ranking;

/// Builds the document: by huge page, or by the source's cells.
pub fn to_document(profile: &TlbProfile, by_cell: bool) -> Value {
    with_profile(document_header("profile"), profile, by_cell).into()
}

/// Why a number of misses is missing.
const UNSEEN_REASON: &str = "neither accessed bits nor zero-page scans covered the program";
const COUNTED_REASON: &str = "the misses were counted, not estimated, or their error is unknown";

const LOWER_BOUND_REASON: &str = "the number is a lower bound, which is in misses_at_least";
const NO_LOWER_BOUND_REASON: &str = "the number of misses is not a lower bound";

/// Builds all misses of a profile, with their 95 % interval if they are an estimate, or their lower bound.
pub(super) fn with_misses(object: JsonObject, profile: &TlbProfile) -> JsonObject {
    let within = profile.misses_interval();
    let bound = profile.lower_bound_reason();
    let reason = |reason: &'static str| if bound.is_some() { LOWER_BOUND_REASON } else { reason };
    object
        .optional("misses", profile.total_misses(), reason(UNSEEN_REASON))
        .optional("misses_low", within.map(|(low, _)| low), reason(COUNTED_REASON))
        .optional("misses_high", within.map(|(_, high)| high), reason(COUNTED_REASON))
        .optional("misses_at_least", profile.misses_at_least(), NO_LOWER_BOUND_REASON)
        .optional("lower_bound_reason", bound.map(lower_bound_text), NO_LOWER_BOUND_REASON)
}

/// Builds the fields of a profile.
pub(super) fn with_profile(object: JsonObject, profile: &TlbProfile, by_cell: bool) -> JsonObject {
    let ranking = shown_ranking(profile, by_cell);
    let region_bytes = if by_cell { profile.page_size.bytes() } else { profile.huge.0 };
    let unaccounted = "not recorded by this source";
    let is_seen = profile.is_observed();
    let saturation = profile.effort.saturation;
    let regions = ranking.regions.iter().map(|region| RegionRow { ranking: &ranking, region });
    with_misses(object, profile)
        .field("source", source_slug(profile.source))
        .field("command", profile.command.clone())
        .field("page_bytes", profile.page_size.bytes())
        .field("huge_bytes", profile.huge.0)
        .field("region_bytes", region_bytes)
        .field("wall_ns", profile.wall_ns)
        .field("lost", profile.lost)
        .optional("profiler_cpu_ns", profile.effort.cpu_ns, unaccounted)
        .optional("stopped_ns", profile.effort.stopped_ns, unaccounted)
        .optional("duty_permille", profile.effort.duty_permille, unaccounted)
        .optional("split_ns", profile.effort.split_ns, unaccounted)
        .optional("sweeps", profile.effort.sweeps, unaccounted)
        .optional("zero_scans", profile.effort.zero_scans, unaccounted)
        .optional("zero_pages_dropped", profile.effort.zero_pages.map(|pages| pages.0), unaccounted)
        .optional("zero_pages_returned", profile.effort.zero_pages.map(|pages| pages.1), unaccounted)
        .optional("reset_permille", saturation.map(|of| of.reset_permille), unaccounted)
        .optional("saturated_permille", saturation.map(|of| of.saturated_permille), unaccounted)
        .optional("slowdown_ppm", profile.effort.slowdown_ppm, unaccounted)
        .optional("accessed_page_ps", profile.effort.accessed_page_ps, unaccounted)
        .optional("stretches", profile.effort.stretches.map(stretches_json), "the whole run was modelled")
        .optional("walk_cost", profile.walk_cost.as_ref().map(walk_cost_json), NO_WALK_COST_REASON)
        .optional("cost_ns", cost_ns(&ranking, ranking.total), NO_WALK_COST_REASON)
        .field("images", to_array(&profile.images, |of| image_json(of, is_seen)))
        .field("regions", region_fields().array(regions))
        .field("unseen", Value::Array(ranking.mappings.iter().flat_map(unseen_json).collect()))
        .field("what_ifs", to_array(&profile.what_ifs, |of| scenario_json(profile, of)))
        .field("notes", profile.notes.clone())
}

fn stretches_json(stretches: SampledStretches) -> JsonObject {
    JsonObject::new()
        .field("count", stretches.count)
        .field("counted", stretches.counted)
        .field("accesses", stretches.accesses)
}

fn scenario_json(profile: &TlbProfile, scenario: &MissScenario) -> JsonObject {
    let cost = compute_scenario_cost(scenario, profile.walk_cost.as_ref()).map(|ps| (ps / 1000.0) as u64);
    JsonObject::new()
        .field("name", scenario.name.as_str())
        .field("misses", scenario.misses)
        .optional("cost_ns", cost, NO_WALK_COST_REASON)
        .field("upper_reads", scenario.upper_reads.to_vec())
}

fn image_json(image: &ImageProfile, is_seen: bool) -> JsonObject {
    let begun = match image.begun {
        ImageStart::Launched => "launched",
        ImageStart::Forked => "forked",
        ImageStart::Executed => "executed",
        ImageStart::Attached => "attached",
    };
    JsonObject::new()
        .field("pid", image.pid)
        .optional("parent", image.parent, "the first process")
        .field("begun", begun)
        .field("program", image.program.path.as_str())
        .optional("identity", image.program.identity.as_deref(), "the program file was not read")
        .field("arguments", image.arguments.clone())
        .optional("accesses", image.accesses, "the source does not count accesses")
        .optional("instructions", image.instructions, "the source does not count instructions")
        .optional("misses", is_seen.then_some(image.misses), UNSEEN_REASON)
        .optional("advice", image.advice.map(advice_json), "the source does not see the program's own advice")
        .field("mappings", image.mappings.len())
}

fn advice_json(advice: OwnAdvice) -> JsonObject {
    JsonObject::new()
        .field("requested_bytes", advice.requested.0)
        .field("refused_bytes", advice.refused.0)
        .field("refused_unmapped_bytes", advice.refused_unmapped.0)
        .field("refused_sparse_bytes", advice.refused_sparse.0)
        .field("refused_userfaultfd_bytes", advice.refused_userfaultfd.0)
        .field("disables_thp", advice.disables_thp)
}

fn unseen_json(mapping: &RankedMapping) -> Vec<Value> {
    let (word, file) = mapping_kind_fields(&mapping.key.kind);
    let unseen_range = |&(offset, bytes, why): &(u64, pagelab_model::Bytes, UnseenReason)| {
        JsonObject::new()
            .field("program", mapping.program.path.as_str())
            .field("kind", word)
            .optional("file", file, "the mapping is not backed by a file")
            .field("requested_bytes", mapping.key.bytes.0)
            .field("nth", mapping.key.nth)
            .field("offset", offset)
            .field("bytes", bytes.0)
            .field("reason", unseen_reason_slug(why))
            .into()
    };
    mapping.unseen.iter().map(unseen_range).collect()
}

fn unseen_reason_slug(reason: UnseenReason) -> &'static str {
    match reason {
        UnseenReason::AlreadyHuge => "already_huge",
        UnseenReason::ZeroPage => "zero_page",
        UnseenReason::NotPermitted => "not_permitted",
        UnseenReason::Changed => "changed",
        UnseenReason::OutOfRange => "out_of_range",
        UnseenReason::NotFromProgram => "not_from_program",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::profile::{CellCounts, ProfilingCost, ScanSaturation};

    fn effort() -> ProfilingCost {
        ProfilingCost {
            sweeps: Some(50),
            misses_error_permille: Some(50),
            misses_error_blocks: Some(12),
            saturation: Some(ScanSaturation { reset_permille: 90, saturated_permille: 10 }),
            ..ProfilingCost::default()
        }
    }

    #[test]
    fn a_lower_bound_has_fields_of_its_own_and_no_total() {
        let mut profile = crate::profile::tests::profile(CellCounts::default(), Vec::new(), 0, 2 << 20);
        profile.images[0].misses = 1_000_000;
        profile.effort = effort();
        let counted = to_document(&profile, false);
        assert_eq!((&counted["misses"], &counted["misses_at_least"]), (&1_000_000.into(), &Value::Null));
        assert!(counted["misses_low"].is_u64() && counted["lower_bound_reason"].is_null());
        assert_eq!((&counted["reset_permille"], &counted["saturated_permille"]), (&90.into(), &10.into()));
        profile.effort.saturation = Some(ScanSaturation { reset_permille: 450, saturated_permille: 10 });
        let bounded = to_document(&profile, false);
        for field in ["misses", "misses_low", "misses_high"] {
            assert!(bounded[field].is_null(), "{field}");
            let reason = bounded[format!("{field}_absent_reason")].as_str().unwrap();
            assert!(reason.contains("misses_at_least"), "{field}: {reason}");
        }
        let least = bounded["misses_at_least"].as_u64().unwrap();
        assert_eq!(least, counted["misses_low"].as_u64().unwrap());
        assert!(bounded["lower_bound_reason"].as_str().unwrap().contains("45 %"), "{bounded}");
        assert_eq!(bounded["images"][0]["misses"], 1_000_000);
    }

    #[test]
    fn a_run_file_without_the_newer_fields_is_read() {
        let mut json = serde_json::to_value(effort()).unwrap();
        for field in ["misses_error_blocks", "saturation"] {
            assert!(json.as_object_mut().unwrap().remove(field).is_some(), "{field}");
        }
        let read: ProfilingCost = serde_json::from_value(json).unwrap();
        let expected = ProfilingCost { misses_error_blocks: None, saturation: None, ..effort() };
        assert_eq!(read, expected);
    }
}
