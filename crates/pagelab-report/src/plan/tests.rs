//! Plans from a lower bound of the misses: what they predict is a lower bound.

use pagelab_model::profile::{CellCounts, ProfilingCost, ScanSaturation};
use pagelab_tlb::plan::{RankBy, RankOptions, rank_regions};

use super::*;

const HUGE: u64 = 2 << 20;

/// The report and the JSON of a plan of two of eight regions, whose profile has this undercount.
fn report(reset_permille: u32) -> (String, serde_json::Value) {
    let cells = CellCounts {
        at: (0..8).collect(),
        misses: [400_000, 300_000, 9, 8, 7, 6, 5, 4].to_vec(),
        ..CellCounts::default()
    };
    let mut profile = crate::profile::tests::profile(cells, Vec::new(), 0, HUGE);
    profile.images[0].misses = 700_039;
    profile.walk_cost =
        Some(WalkCostCurve { points: vec![(2, 20_000), (20, 20_000)], origin: "made".to_owned() });
    profile.effort = ProfilingCost {
        sweeps: Some(50),
        misses_error_permille: Some(50),
        saturation: Some(ScanSaturation { reset_permille, saturated_permille: 0 }),
        ..ProfilingCost::default()
    };
    let options = RankOptions { page: profile.huge, by: RankBy::Cost, include_files: false };
    let ranking = rank_regions(&profile, options);
    let report = PlanReport {
        profile: &profile,
        ranking: &ranking,
        page_size: profile.huge,
        chosen: 2,
        plan_arguments: "-n 2",
        chosen_by: "cost",
        native_result: Some(NativeTime::Base(100_000_000)),
    };
    let text = render(&report, TextStyle::PLAIN);
    (text.split_whitespace().collect::<Vec<_>>().join(" "), crate::json::plan::to_document(&report))
}

#[test]
fn a_plan_from_a_lower_bound_predicts_at_least() {
    let (text, json) = report(50);
    assert!(text.contains("; predicted 1.") && !text.contains("at least"), "{text}");
    assert!(json["chosen"]["speedup_high"].is_f64(), "{json}");
    let (text, json) = report(450);
    assert!(text.contains("; predicted at least 1.01×, from a lower bound of the misses (all:"), "{text}");
    assert!(text.contains("misses unknown: at least") && text.contains("can save at least"), "{text}");
    assert!(text.contains("saved, at least") && text.contains("predicted, at least"), "{text}");
    assert_eq!(text.matches("setting accessed bits again").count(), 1, "{text}");
    assert!(json["chosen"]["speedup_high"].is_null() && json["chosen"]["speedup_low"].is_f64(), "{json}");
    let reason = json["chosen"]["speedup_high_absent_reason"].as_str().unwrap();
    assert!(reason.contains("lower bound"), "{reason}");
    assert!(json["misses"].is_null() && json["misses_at_least"].is_u64(), "{json}");
}
