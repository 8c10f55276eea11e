//! Crates of the workspace: permitted dependencies, and which crates are pure. ARCHITECTURE.md has the same
//! table. A new edge is a decision; its commit states the reason.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrateKind {
    /// No IO, no clock, no environment, no randomness; only these dependencies from outside.
    Pure(&'static [&'static str]),
    Host,
    /// The binary: all of the above.
    Top,
}

#[derive(Debug)]
pub struct CrateRules {
    pub name: &'static str,
    /// Permitted dependencies, without the prefix `pagelab-`, separated by blanks.
    pub dependencies: &'static str,
    pub kind: CrateKind,
}

/// All crates, lowest layer first.
pub const CRATES: [CrateRules; 26] = [
    pure_crate("pagelab-model", "", &["serde"]),
    // toml keeps the place of every key of a plan: pure computation.
    pure_crate("pagelab-formats", "model", &["toml"]),
    pure_crate("pagelab-metrics", "model", &[]),
    pure_crate("pagelab-tlb", "model", &[]),
    pure_crate("pagelab-sim", "model", &[]),
    // flate2 compresses the data in a page: pure computation.
    pure_crate("pagelab-report", "model metrics tlb", &["flate2", "serde", "serde_json"]),
    host_crate("pagelab-sys", "model"),
    host_crate("pagelab-host", "model formats sys"),
    host_crate("pagelab-packages", "model sys"),
    host_crate("pagelab-target", "model formats tlb host sys packages"),
    // The outcome of a guest is JSON under the same contract as all other documents.
    host_crate("pagelab-guest", "model formats report sys packages"),
    host_crate("pagelab-workloads", "model formats sys host"),
    host_crate("pagelab-runfile", "model formats"),
    host_crate("pagelab-contig", "model formats metrics sys host"),
    host_crate("pagelab-experiment", "model formats metrics sys host workloads runfile contig packages"),
    // Trials of an experiment in guests: the engine knows no guest, and a guest knows no experiment.
    host_crate("pagelab-guest-place", "model guest runfile experiment"),
    host_crate("pagelab-command", "model formats report sys host packages runfile"),
    host_crate("pagelab-watch", "model formats metrics report sys host runfile command"),
    host_crate("pagelab-record", "model formats metrics report sys host runfile command"),
    host_crate("pagelab-map", "model formats metrics report sys host runfile command record"),
    host_crate("pagelab-import", "model formats metrics report runfile command"),
    // The lower bound of an engine is the latency of a workload's pointer chase.
    host_crate(
        "pagelab-study",
        "model formats metrics sim report sys host workloads runfile contig experiment command",
    ),
    // Inside a guest all of its memory may be taken.
    host_crate("pagelab-fragment", "model metrics report sys host guest runfile contig command"),
    // The probe chases pointers as the workload does, and measures the cost of the supervisor's sources.
    host_crate(
        "pagelab-probe",
        "model formats tlb report sys host packages target workloads runfile contig experiment command",
    ),
    // A tuning profiles, plans, runs an experiment of the arms and knows what page walks cost. Its profiles
    // are in a private directory as the files of workloads are.
    host_crate(
        "pagelab-tune",
        "model formats tlb metrics report sys host packages target workloads runfile contig experiment \
         command probe",
    ),
    CrateRules { name: "pagelab", dependencies: "", kind: CrateKind::Top },
];

/// The crates that may hold `unsafe`, whole or one file of them.
pub const UNSAFE: [&str; 3] = ["crates/pagelab-sys/", "plugins/", "crates/pagelab-sim/src/prefetch.rs"];

/// The crate that may know the number of bytes of a page.
pub const PAGE_SIZE_CRATE: &str = "crates/pagelab-model/";

/// The one file with paths of the kernel.
pub const PATHS_FILE: &str = "crates/pagelab-host/src/paths.rs";

/// The one file that prints.
pub const OUTPUT_FILE: &str = "crates/pagelab-command/src/output.rs";

const fn pure_crate(name: &'static str, edges: &'static str, outside: &'static [&'static str]) -> CrateRules {
    CrateRules { name, dependencies: edges, kind: CrateKind::Pure(outside) }
}

const fn host_crate(name: &'static str, edges: &'static str) -> CrateRules {
    CrateRules { name, dependencies: edges, kind: CrateKind::Host }
}

pub fn find_crate(name: &str) -> Option<&'static CrateRules> {
    CRATES.iter().find(|known| known.name == name)
}

/// Whether tests of this package are unit tests: pure crates and the helpers of the repository.
pub fn is_pure(name: &str) -> bool {
    find_crate(name).is_none_or(|known| matches!(known.kind, CrateKind::Pure(_)))
}

impl CrateRules {
    /// Whether this crate may depend on the workspace crate `dependency`.
    pub fn may_depend_on(&self, dependency: &str) -> bool {
        match self.kind {
            CrateKind::Top => {
                let place = |name: &str| CRATES.iter().position(|known| known.name == name);
                place(dependency).is_some_and(|on| Some(on) < place(self.name))
            }
            _ => {
                let short = dependency.strip_prefix("pagelab-");
                short.is_some_and(|short| self.dependencies.split(' ').any(|known| known == short))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_circle_and_pure_crates_rest_on_pure_ones() {
        for (place, known) in CRATES.iter().enumerate() {
            for edge in known.dependencies.split_whitespace() {
                let on = CRATES.iter().position(|c| c.name == format!("pagelab-{edge}")).unwrap();
                assert!(on < place, "{} -> {edge}", known.name);
                let pure = matches!(CRATES[on].kind, CrateKind::Pure(_));
                assert!(pure || !matches!(known.kind, CrateKind::Pure(_)), "{} -> {edge}", known.name);
            }
        }
        assert!(find_crate("pagelab").unwrap().may_depend_on("pagelab-experiment"));
        assert!(!find_crate("pagelab-experiment").unwrap().may_depend_on("pagelab"));
        assert!(!find_crate("pagelab-host").unwrap().may_depend_on("pagelab-guest"));
    }
}
