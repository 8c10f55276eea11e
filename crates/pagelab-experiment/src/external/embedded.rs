//! The manifests that come with pagelab, with their files.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::manifest::Manifest;
use super::read;

/// Files that every manifest has; those who make sure of the list know them.
#[cfg(test)]
const SHARED: [&str; 2] = ["shared.sh", "postgres.sh"];

/// A manifest's name, its text, and its files.
type Embedded = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

macro_rules! manifests {
    ($($name:literal: [$($file:literal),*]),* $(,)?) => {
        /// In the order in which they are listed.
        const EMBEDDED: &[Embedded] = &[$((
            $name,
            include_str!(concat!("../../../../manifests/", $name, ".toml")),
            &[
                ("shared.sh", include_str!("../../../../manifests/shared.sh")),
                ("postgres.sh", include_str!("../../../../manifests/postgres.sh")),
                $(($file, include_str!(concat!("../../../../manifests/", $name, "/", $file)))),*
            ],
        )),*];
    };
}

manifests! {
    "redis": ["run.sh"],
    "sqlite": ["run.sh"],
    "pgbench": ["prepare.sh", "run.sh"],
    "tpcc": [
        "prepare.sh", "run.sh", "schema.sql", "load.sql", "transactions.sql", "consistency.sql",
        "new-order.sql", "payment.sql", "order-status.sql", "delivery.sql", "stock-level.sql"
    ],
    "hpl": ["run.sh"],
    "kernel-build": ["prepare.sh", "run.sh"],
    "sort": ["prepare.sh", "run.sh"],
    "xz": ["prepare.sh", "run.sh"],
    "parsec-canneal": ["run.sh"],
    "parsec-streamcluster": ["run.sh"],
    "splash2-fmm": ["run.sh"],
}

/// All of them. They are constants that are written as text: read once, and tested to be good.
static ALL: LazyLock<Vec<Manifest>> = LazyLock::new(|| EMBEDDED.iter().filter_map(one).collect());

fn one((name, text, files): &Embedded) -> Option<Manifest> {
    let files = files.iter().map(|&(name, text)| (name.to_owned(), Cow::Borrowed(text))).collect();
    read::parse("built in", name, text, files).ok()
}

/// All that come with pagelab.
pub fn all() -> &'static [Manifest] {
    &ALL
}

/// The one of this name.
pub fn find(name: &str) -> Option<&'static Manifest> {
    ALL.iter().find(|manifest| manifest.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_manifest_is_good_and_every_file_of_the_folder_is_embedded() {
        for (name, text, files) in EMBEDDED {
            let files = files.iter().map(|&(name, text)| (name.to_owned(), Cow::Borrowed(text))).collect();
            let manifest = read::parse("built in", name, text, files).unwrap_or_else(|bad| panic!("{bad}"));
            assert_eq!(manifest.name, *name);
            assert!(!manifest.input.is_empty() && !manifest.working_set.is_empty(), "{name}");
            assert!(manifest.explanation.lines().all(|line| line.chars().count() <= 80), "{name}");
            assert!(manifest.takes.is_some() && manifest.quick_takes.is_some(), "{name}");
            assert!(!manifest.packages.is_empty() || manifest.user_folder.is_some(), "{name}");
        }
        assert_eq!(all().len(), EMBEDDED.len());
        let embedded: BTreeSet<String> = EMBEDDED
            .iter()
            .flat_map(|(name, _, files)| {
                let of = |file: &&(&str, &str)| !SHARED.contains(&file.0);
                let files = files.iter().filter(of).map(move |(file, _)| format!("{name}/{file}"));
                files.chain([format!("{name}.toml")])
            })
            .chain(SHARED.map(str::to_owned))
            .collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests");
        let mut there = BTreeSet::new();
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            match entry.path().is_dir() {
                false => drop(there.insert(name)),
                true => {
                    let files = std::fs::read_dir(entry.path()).unwrap().flatten();
                    there.extend(files.map(|file| format!("{name}/{}", file.file_name().display())));
                }
            }
        }
        assert_eq!(embedded, there);
    }
}
