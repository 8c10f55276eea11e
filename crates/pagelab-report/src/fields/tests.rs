//! Comparison of the described fields with `docs/json.md`.

use std::path::Path;

use crate::json::{self, experiment as of};

/// Replaces the tables of a document between `<!-- fields: NAME -->` and `<!-- end -->`.
fn with_tables(text: &str, tables: &[(&str, String)]) -> String {
    let mut text = text.to_owned();
    for (name, rows) in tables {
        let begin = format!("<!-- fields: {name} -->\n");
        let start = text.find(&begin).unwrap_or_else(|| panic!("no `{begin}` in docs/json.md")) + begin.len();
        let length = text[start..].find("<!-- end -->").unwrap_or_else(|| panic!("no end of {name}"));
        text.replace_range(
            start..start + length,
            &format!("| field | type | meaning |\n|---|---|---|\n{rows}"),
        );
    }
    text
}

/// Defines the function that returns the names of the tables in the document, and their rows.
macro_rules! tables {
    ($($name:literal: $($table:expr),+;)+) => {
        fn tables() -> Vec<(&'static str, String)> {
            vec![$(($name, [$($table().rows()),+].concat())),+]
        }
    };
}

tables! {
    "plan": of::plan_fields;
    "early end": of::early_end_fields;
    "planned workload": of::workload_fields;
    "simulated": of::simulated::configuration_fields;
    "planned variant": of::variant_fields;
    "slot": of::slot_fields;
    "trial": of::trial_fields;
    "measure": of::measure_fields, of::value_fields, of::exact_fields;
    "flag": of::flag_fields;
    "trial series": of::simulated::series_fields;
    "workload effects": of::workload_effect_fields;
    "trial counts": of::column_fields, of::count_fields;
    "measure effects": of::measure_effect_fields, of::ratio_measure_fields;
    "noise floor": of::noise_floor_fields;
    "variant effect":
        of::column_fields, of::variant_effect_fields, of::ratio_fields, of::median_fields,
        of::difference_fields;
    "effect": of::effect_fields;
    "difference": of::simulated::difference_fields;
    "influence": of::simulated::influence_fields;
    "point": of::simulated::point_fields;
    "need": json::memory_needs::need_fields;
    "limit": json::memory_needs::limit_fields;
    "usage": json::averages::usage_fields, json::averages::average_fields;
    "statistics": json::averages::statistics_fields;
    "frag": json::frag::report_fields;
    "frag source": json::frag::source_fields;
    "supply": json::huge_page_supply::supply_fields;
    "scan": json::huge_page_supply::scan_fields;
    "gigantic": json::huge_page_supply::gigantic_fields;
    "gigantic counts": json::huge_page_supply::gigantic_count_fields;
    "unit counts": json::huge_page_supply::unit_count_fields;
    "polluting class": json::huge_page_supply::polluting_class_fields;
    "estimate": json::huge_page_supply::estimate_fields;
    "checkup": json::checkup::checkup_fields;
    "taken": json::checkup::taken_fields;
    "fragmentation": json::checkup::fragmentation_fields;
    "kernel comparison": json::checkup::comparison_fields;
    "free balance": json::checkup::balance_fields;
    "migratetypes": json::zones::pagetype_fields;
    "migratetype free": json::zones::migratetype_free_fields;
    "migratetype pageblocks": json::zones::migratetype_pageblock_fields;
    "pressure": json::checkup::pressure_fields;
    "pressure line": json::checkup::pressure_line_fields;
    "processes": json::checkup::coverage_fields;
    "allocation failures": json::checkup::alloc_failure_fields;
    "probe": json::probe::probe_fields;
    "probe huge pages": json::probe::huge_probe_fields;
    "probe access": json::probe::access_fields;
    "access point": json::probe::access_point_fields;
    "access pair": json::probe::access_pair_fields;
    "access effect": json::probe::access_effect_fields;
    "zone index": json::checkup::zone_index_fields;
    "zoneinfo": json::zones::zone_fields;
    "machine": json::machine::machine_fields;
    "cpu": json::machine::cpu_fields;
    "cache": json::machine::cache_fields;
    "tlb": json::machine::tlb_fields;
    "tlb level": json::machine::tlb_level_fields;
    "hypervisor": json::machine::hypervisor_fields;
    "direct map": json::machine::direct_map_fields;
    "page reporting": json::machine::page_reporting_fields;
    "cgroup": json::machine::cgroup_fields;
    "settings": json::machine::settings_fields;
    "thp": json::machine::thp_fields;
    "thp size": json::machine::thp_size_fields;
    "hugetlb pool": json::machine::pool_fields;
    "swap area": json::machine::swap_fields;
    "use": json::checkup::use_fields;
    "since boot": json::checkup::history_fields;
    "report": json::checkup::report_fields;
    "kill": json::checkup::kill_fields;
    "process": json::checkup::process_fields;
    "instrument": json::checkup::instrument_fields;
    "finding": json::checkup::finding_fields;
    "problem": json::checkup::problem_fields;
    "run": json::run::run_fields;
    "series column": json::run::series_column_fields;
    "stream": json::run::stream_fields;
    "fallback counts": json::stacks::fallback_count_fields;
    "event": json::run::event_fields;
    "judgement": json::judge::judgement_fields;
    "judged comparison": json::judge::judged_comparison_fields;
    "comparison row": json::compare::row_fields;
    "comparison cell": json::compare::cell_fields;
    "run ratio": json::compare::run_ratio_fields;
    "arm": json::tune::arm_fields;
    "curve point": json::tune::curve_point_fields;
    "miss region": json::tune::miss_region_fields;
    "region": json::plan::region_fields;
}

#[test]
fn the_documentation_has_each_described_field() {
    let tables = tables();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let expected = with_tables(&text, &tables);
    assert_eq!(text.matches("<!-- fields: ").count(), tables.len());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        assert!(text == expected, "docs/json.md has other fields than the code: run with UPDATE_EXPECT=1");
    }
}
