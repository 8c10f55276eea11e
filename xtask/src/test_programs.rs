//! Table of the end-to-end test programs: what may run beside each, which binary each tests, and which crates
//! each depends on.

use crate::queue::{Kind, Sharing};

const ANY: Sharing = Sharing::Any;
const ALONE: Sharing = Sharing::Alone;
const SETTING: Sharing = Sharing::OneOf(Kind::MachineSetting);

/// A test program that the table knows.
pub struct ProgramRules {
    /// `pagelab tests/run`.
    pub name: &'static str,
    pub sharing: Sharing,
    /// Expected duration in seconds on two cores, 0 below 5.
    pub seconds: u32,
    /// Crates, without the prefix `pagelab-`, whose change can change its result, beside [`BASE_CRATES`].
    /// Empty if every change can, or if the program tests a crate other than the binary: then the graph
    /// tells.
    pub crates: &'static str,
}

const fn rules(name: &'static str, sharing: Sharing, seconds: u32, crates: &'static str) -> ProgramRules {
    ProgramRules { name, sharing, seconds, crates }
}

/// All end-to-end programs of the binary, and those of other crates that cannot run beside everything. A
/// program that the table does not have runs beside any other, and for every change. `tidy` refuses unlisted
/// programs with the words of a machine-wide setting or count.
pub const PROGRAMS: [ProgramRules; 69] = [
    rules("pagelab tests/alone", ANY, 20, ""),
    rules("pagelab tests/apply", SETTING, 10, "target tlb"),
    rules("pagelab tests/can", ALONE, 0, "metrics report contig"),
    // Compares mounts and the THP mode before and after.
    rules("pagelab tests/capture", ALONE, 10, "metrics report"),
    rules("pagelab tests/checkup", ALONE, 10, "metrics report contig probe"),
    rules("pagelab tests/checkup_hostile", ANY, 0, "metrics report contig"),
    rules("pagelab tests/checkup_html", ANY, 0, "metrics report"),
    rules("pagelab tests/error_messages", ANY, 0, ""),
    rules("pagelab tests/external", SETTING, 10, "experiment workloads packages"),
    rules("pagelab tests/fake_guest", ANY, 20, "guest packages"),
    rules("pagelab tests/fixtures", ANY, 0, "metrics report"),
    rules("pagelab tests/frag", ANY, 0, "metrics report"),
    rules("pagelab tests/frag_corpus", ANY, 0, "metrics report"),
    rules("pagelab tests/fragment", SETTING, 0, "metrics contig fragment"),
    rules("pagelab tests/guest", Sharing::OneOf(Kind::Guest), 20, "guest packages"),
    rules("pagelab tests/guest_apply", Sharing::OneOf(Kind::Guest), 20, "guest target tlb"),
    rules("pagelab tests/guest_can", Sharing::OneOf(Kind::Guest), 70, "guest metrics contig"),
    rules("pagelab tests/guest_fragment", Sharing::OneOf(Kind::Guest), 30, "guest metrics contig fragment"),
    rules("pagelab tests/guest_module", Sharing::OneOf(Kind::Guest), 20, "guest packages"),
    rules("pagelab tests/guest_probes", Sharing::OneOf(Kind::Guest), 20, "guest experiment"),
    rules(
        "pagelab tests/guest_run",
        Sharing::OneOf(Kind::Guest),
        40,
        "guest guest-place experiment workloads",
    ),
    rules("pagelab tests/guest_shell", Sharing::OneOf(Kind::Guest), 20, "guest packages"),
    rules("pagelab tests/guest_workload", Sharing::OneOf(Kind::Guest), 10, "guest workloads"),
    rules("pagelab tests/import", ANY, 0, "import metrics report"),
    rules("pagelab tests/json_frag", ANY, 0, "metrics report"),
    rules("pagelab tests/kernel_setup", ANY, 10, "guest packages"),
    // Restores this machine.
    rules("pagelab tests/killed", ALONE, 20, "experiment workloads target tune"),
    rules("pagelab tests/lab", SETTING, 50, "experiment workloads metrics contig"),
    rules("pagelab tests/map", ANY, 10, "map report"),
    rules("pagelab tests/memory_size", SETTING, 10, "experiment workloads metrics"),
    rules("pagelab tests/perf_stat", ANY, 0, "experiment import report"),
    rules("pagelab tests/plan", ANY, 0, "target tlb report"),
    rules("pagelab tests/profile_accessed", SETTING, 50, "target tlb probe tune"),
    rules("pagelab tests/profile_exact", SETTING, 30, "target tlb probe tune packages"),
    rules("pagelab tests/profile_goes_on", SETTING, 20, "target tlb probe tune"),
    rules("pagelab tests/profile_perf_data", ANY, 0, "target tlb"),
    rules("pagelab tests/profile_zero_page", SETTING, 60, "target tlb probe tune"),
    rules("pagelab tests/progress", SETTING, 20, "experiment record study target tune"),
    rules("pagelab tests/record", ANY, 10, "record metrics"),
    rules("pagelab tests/record_maps", ANY, 20, "record map"),
    rules("pagelab tests/recording", ANY, 30, "record metrics report"),
    rules("pagelab tests/report", ANY, 10, "metrics report"),
    // Restores this machine only if no other pagelab has a journal.
    rules("pagelab tests/restore", ALONE, 0, "experiment"),
    rules("pagelab tests/run", SETTING, 30, "experiment workloads metrics"),
    rules("pagelab tests/run_guest", ANY, 20, "guest guest-place experiment"),
    rules("pagelab tests/sim", ANY, 0, "sim study metrics"),
    rules("pagelab tests/sim_compare", ANY, 10, "sim study metrics report"),
    rules("pagelab tests/sim_demo", ANY, 0, "sim study"),
    rules("pagelab tests/sim_replay", ANY, 0, "sim study metrics"),
    rules("pagelab tests/sim_sweep", ANY, 10, "sim study metrics"),
    rules("pagelab tests/trace", ALONE, 40, "record metrics"),
    rules("pagelab tests/tune", SETTING, 40, "tune experiment workloads target tlb probe metrics"),
    rules("pagelab tests/tune_unseen", SETTING, 10, "tune experiment workloads target tlb probe"),
    rules("pagelab tests/usage", ANY, 0, "record metrics report"),
    rules("pagelab tests/watch", ANY, 10, "watch metrics report"),
    rules("pagelab tests/workload", SETTING, 10, "workloads experiment"),
    rules("pagelab tests/workload_applications", ANY, 0, "workloads"),
    // Counts events of all allocations, and pages on free lists.
    rules("pagelab-host tests/tracepoints", ALONE, 0, ""),
    rules("pagelab-host tests/live", ALONE, 0, ""),
    rules("pagelab-host tests/collect", ALONE, 0, ""),
    rules("pagelab-host tests/census_live", ALONE, 0, ""),
    rules("pagelab-host tests/guard", ALONE, 0, ""),
    rules("pagelab-experiment tests/probes", ALONE, 0, ""),
    rules("pagelab-target tests/supervise", SETTING, 10, ""),
    rules("pagelab-target tests/requests", SETTING, 10, ""),
    rules("pagelab-target tests/zero_page", SETTING, 10, ""),
    rules("pagelab-target tests/perf", SETTING, 10, ""),
    rules("pagelab-runfile tests/runfile", ANY, 40, ""),
    // Unit tests that take long.
    rules("pagelab-sim lib", ANY, 50, ""),
];

/// Programs that test the debug binary: with bad input an overflow is a panic there, and silent in the
/// release binary.
const DEBUG_BINARY: [&str; 7] = [
    "pagelab tests/checkup_hostile",
    "pagelab tests/error_messages",
    "pagelab tests/frag",
    "pagelab tests/frag_corpus",
    "pagelab tests/import",
    "pagelab tests/profile_perf_data",
    "pagelab tests/report",
];

/// Crates whose change can change the result of every end-to-end program.
pub const BASE_CRATES: [&str; 7] = [
    "pagelab",
    "pagelab-command",
    "pagelab-formats",
    "pagelab-host",
    "pagelab-model",
    "pagelab-runfile",
    "pagelab-sys",
];

/// Display name of the test program that a file below `tests/` of a crate belongs to, if its name or its
/// folder is that of a program.
pub fn program_of_file(path: &str) -> Option<String> {
    let (package, rest) = path.strip_prefix("crates/")?.split_once("/tests/")?;
    let target = rest.split('/').next()?;
    Some(format!("{package} tests/{}", target.strip_suffix(".rs").unwrap_or(target)))
}

/// The row of a program, by its display name.
pub fn find(name: &str) -> Option<&'static ProgramRules> {
    PROGRAMS.iter().find(|known| known.name == name)
}

/// What may run beside a program.
pub fn sharing(name: &str) -> Sharing {
    find(name).map_or(Sharing::Any, |known| known.sharing)
}

/// Whether a program tests the debug binary even if there is a release binary.
pub fn uses_debug_binary(name: &str) -> bool {
    DEBUG_BINARY.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::crate_graph;
    use crate::tree;

    #[test]
    fn every_row_names_a_program_and_crates_that_exist() {
        let root = tree::root();
        for row in &PROGRAMS {
            let (package, target) = row.name.split_once(' ').unwrap();
            let folder = root.join("crates").join(package);
            let exists = match target {
                "lib" => folder.join("src/lib.rs").is_file(),
                target => {
                    folder.join(format!("{target}.rs")).is_file()
                        || folder.join(target).join("main.rs").is_file()
                }
            };
            assert!(exists, "{}", row.name);
            for name in row.crates.split_whitespace() {
                let name = format!("pagelab-{name}");
                assert!(crate_graph::find_crate(&name).is_some(), "{}: {name}", row.name);
                assert!(!BASE_CRATES.contains(&name.as_str()), "{}: {name}", row.name);
            }
        }
        assert!(BASE_CRATES.iter().all(|name| crate_graph::find_crate(name).is_some()));
        let names: BTreeSet<&str> = PROGRAMS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
        assert!(DEBUG_BINARY.iter().all(|name| names.contains(name)));
        let tests = std::fs::read_dir(root.join("crates/pagelab/tests")).unwrap();
        let files = tests.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut guests = files.filter(|file| file.starts_with("guest") && file.ends_with(".rs"));
        let is_one_of_guests = |file: String| {
            let program = program_of_file(&format!("crates/pagelab/tests/{file}")).unwrap();
            sharing(&program) == Sharing::OneOf(Kind::Guest)
        };
        assert!(guests.all(is_one_of_guests), "two guests at a time take both processors");
    }
}
