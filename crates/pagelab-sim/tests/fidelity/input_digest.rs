//! Digest of the files that the figures depend on.

use std::fs;
use std::path::Path;

use crate::stored_figures;

/// Files and folders, relative to the root of the repository: the two crates whose code runs, the test, and
/// what selects dependencies, edition and compiler. A simulation depends on nothing else: both crates are
/// pure. Folders are included whole, with tests and comments, so that no rule must decide which lines can
/// change a figure.
const INPUTS: [&str; 8] = [
    "Cargo.lock",
    "Cargo.toml",
    "rust-toolchain.toml",
    "crates/pagelab-model/Cargo.toml",
    "crates/pagelab-model/src",
    "crates/pagelab-sim/Cargo.toml",
    "crates/pagelab-sim/src",
    "crates/pagelab-sim/tests/fidelity",
];

/// The digest of all inputs below `root`. The file of stored figures contains the digest, so it is not an
/// input.
pub fn digest_inputs(root: &Path) -> u128 {
    digest_files(&read_inputs(root))
}

/// Path and content of each input, sorted by path.
fn read_inputs(root: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for path in INPUTS {
        read_files(root, path, &mut files);
    }
    files.sort();
    files
}

/// The file `path`, or all files below the folder `path`.
fn read_files(root: &Path, path: &str, files: &mut Vec<(String, Vec<u8>)>) {
    let place = root.join(path);
    if place.is_dir() {
        for entry in fs::read_dir(&place).unwrap() {
            let name = entry.unwrap().file_name();
            read_files(root, &format!("{path}/{}", name.to_string_lossy()), files);
        }
    } else if path != stored_figures::PATH {
        let content = fs::read(&place).unwrap_or_else(|error| panic!("{path}: {error}"));
        files.push((path.to_owned(), content));
    }
}

/// The length before each path and content keeps the bytes of one from counting as part of the next.
fn digest_files(files: &[(String, Vec<u8>)]) -> u128 {
    let parts = files.iter().flat_map(|(path, content)| [path.as_bytes(), content.as_slice()]);
    parts.fold(FNV_OFFSET_BASIS, |hash, part| {
        let hash = extend_fnv(hash, &(part.len() as u64).to_le_bytes());
        extend_fnv(hash, part)
    })
}

/// FNV-1a of 128 bits. It guards against accident, not against attack.
const FNV_OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

fn extend_fnv(hash: u128, bytes: &[u8]) -> u128 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(FNV_PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository_root;

    #[test]
    fn the_hash_is_fnv_1a() {
        // From the test vectors of Go's hash/fnv.
        assert_eq!(extend_fnv(FNV_OFFSET_BASIS, b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn a_content_a_name_and_a_further_file_change_the_digest() {
        let digest = |files: &[(&str, &str)]| {
            let owned = |(path, content): &(&str, &str)| ((*path).to_owned(), content.as_bytes().to_vec());
            digest_files(&files.iter().map(owned).collect::<Vec<_>>())
        };
        let digests = [
            digest(&[("src/a.rs", "one"), ("src/b.rs", "two")]),
            digest(&[("src/a.rs", "One"), ("src/b.rs", "two")]),
            digest(&[("src/a.rs", "one"), ("src/c.rs", "two")]),
            digest(&[("src/a.rs", "ones"), ("rc/b.rs", "two")]),
            digest(&[("src/a.rs", "two"), ("src/b.rs", "one")]),
            digest(&[("src/a.rs", "one"), ("src/b.rs", "two"), ("src/c.rs", "")]),
            digest(&[("src/a.rs", "one")]),
        ];
        for (place, one) in digests.iter().enumerate() {
            assert!(!digests[..place].contains(one), "set of files {place} has the digest of another");
        }
        assert_eq!(digests[0], digest(&[("src/a.rs", "one"), ("src/b.rs", "two")]));
    }

    #[test]
    fn inputs_are_files_of_all_depths_without_the_stored_figures() {
        let files = read_inputs(&repository_root());
        let has = |path: &str| files.iter().any(|(file, _)| file == path);
        assert!(has("Cargo.lock") && has("crates/pagelab-sim/tests/fidelity/main.rs"));
        assert!(has("crates/pagelab-sim/src/lib.rs") && has("crates/pagelab-sim/src/loads/paper.rs"));
        assert!(!has(stored_figures::PATH));
        assert!(files.windows(2).all(|pair| pair[0].0 < pair[1].0), "sorted, each once");
    }

    #[test]
    fn inputs_include_every_crate_of_the_workspace_that_an_input_depends_on() {
        for path in INPUTS.iter().filter(|path| path.starts_with("crates/") && path.ends_with("Cargo.toml")) {
            let manifest = fs::read_to_string(repository_root().join(path)).unwrap();
            let words = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
            for name in words.filter(|word| word.starts_with("pagelab-")) {
                let source = format!("crates/{name}/src");
                assert!(INPUTS.contains(&source.as_str()), "{path} depends on {name}: add it to INPUTS");
            }
        }
    }
}
