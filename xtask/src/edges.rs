//! The crates of the house: who may depend on whom, and which are pure. The same table as in ARCHITECTURE.md;
//! a new edge is a decision and says its reason in the commit.

/// Where a crate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No IO, no clock, no environment, no randomness; only these dependencies from outside.
    Pure(&'static [&'static str]),
    /// Talks to the machine.
    Host,
    /// The binary: all of the above.
    Top,
}

/// One crate and its edges.
#[derive(Debug)]
pub struct Crate {
    /// Its name.
    pub name: &'static str,
    /// What it may depend on, without the `pagelab-` in front.
    pub edges: &'static [&'static str],
    /// Pure or not.
    pub kind: Kind,
}

/// The house, from the ground up. A crate need not exist yet.
pub const CRATES: [Crate; 17] = [
    pure("pagelab-model", &[], &["serde"]),
    // toml keeps the place of every key of a plan: pure computation.
    pure("pagelab-formats", &["model"], &["toml"]),
    pure("pagelab-metrics", &["model"], &[]),
    pure("pagelab-tlb", &["model"], &[]),
    pure("pagelab-sim", &["model"], &[]),
    pure("pagelab-bank", &["model", "metrics"], &[]),
    // flate2 compresses the data in a page: pure computation.
    pure("pagelab-report", &["model", "metrics", "tlb"], &["flate2", "serde", "serde_json"]),
    host("pagelab-sys", &["model"]),
    host("pagelab-host", &["model", "formats", "sys"]),
    host("pagelab-packages", &["sys"]),
    host("pagelab-target", &["model", "formats", "tlb", "host", "sys", "packages"]),
    host("pagelab-guest", &["model", "formats", "sys", "packages"]),
    host("pagelab-workloads", &["model", "formats", "sys"]),
    host("pagelab-runfile", &["model", "formats"]),
    host("pagelab-contig", &["model", "formats", "metrics", "sys", "host"]),
    host(
        "pagelab-experiment",
        &["model", "formats", "metrics", "sys", "host", "workloads", "runfile", "contig", "packages"],
    ),
    top("pagelab"),
];

/// The crates that may hold `unsafe`, whole or one file of them.
pub const UNSAFE: [&str; 3] = ["crates/pagelab-sys/", "plugins/", "crates/pagelab-sim/src/prefetch.rs"];

/// The crate that may know the number of bytes of a page.
pub const PAGE_SIZE_CRATE: &str = "crates/pagelab-model/";

/// The one file in which the kernel's paths stand.
pub const PATHS_FILE: &str = "crates/pagelab-host/src/paths.rs";

/// The one file of the binary that prints.
pub const OUT_FILE: &str = "crates/pagelab/src/out.rs";

const fn pure(name: &'static str, edges: &'static [&'static str], outside: &'static [&'static str]) -> Crate {
    Crate { name, edges, kind: Kind::Pure(outside) }
}

const fn host(name: &'static str, edges: &'static [&'static str]) -> Crate {
    Crate { name, edges, kind: Kind::Host }
}

const fn top(name: &'static str) -> Crate {
    Crate { name, edges: &[], kind: Kind::Top }
}

/// The crate's place in the house, from its name.
pub fn of(name: &str) -> Option<&'static Crate> {
    CRATES.iter().find(|known| known.name == name)
}

/// Whether tests of this package are unit tests: pure crates and the helpers of the repository.
pub fn is_pure(name: &str) -> bool {
    of(name).is_none_or(|known| matches!(known.kind, Kind::Pure(_)))
}

impl Crate {
    /// Whether this crate may depend on the crate `on` of the house.
    pub fn may_depend_on(&self, on: &str) -> bool {
        match self.kind {
            Kind::Top => {
                let place = |name: &str| CRATES.iter().position(|known| known.name == name);
                place(on).is_some_and(|on| Some(on) < place(self.name))
            }
            _ => on.strip_prefix("pagelab-").is_some_and(|short| self.edges.contains(&short)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_circle_and_pure_crates_rest_on_pure_ones() {
        for (place, known) in CRATES.iter().enumerate() {
            for edge in known.edges {
                let on = CRATES.iter().position(|c| c.name == format!("pagelab-{edge}")).unwrap();
                assert!(on < place, "{} -> {edge}", known.name);
                let pure = matches!(CRATES[on].kind, Kind::Pure(_));
                assert!(pure || !matches!(known.kind, Kind::Pure(_)), "{} -> {edge}", known.name);
            }
        }
        assert!(of("pagelab").unwrap().may_depend_on("pagelab-experiment"));
        assert!(!of("pagelab-experiment").unwrap().may_depend_on("pagelab"));
        assert!(!of("pagelab-host").unwrap().may_depend_on("pagelab-guest"));
    }
}
