//! External workloads: programs that are not part of pagelab, each described by a manifest
//! (`docs/external.md`).
//!
//! A [`manifest`] names the programs, the options, the preparation of the data and the command.
//! [`install_dir`] creates and checks the installation, [`prepared_data`] prepares the data of a run, and
//! [`run`] is one run in its own directory.

pub use manifest::{Manifest, ManifestError, manifests};
pub(crate) use run::become_subreaper;

pub mod install_dir;
pub mod manifest;
pub mod prepared_data;
pub mod run;

#[cfg(test)]
mod tests;

/// Whether this is the path of a file, and not the name of an embedded manifest.
pub fn is_path(name_or_path: &str) -> bool {
    name_or_path.contains('/') || name_or_path.ends_with(".toml")
}

/// Loads the manifest of this name, or in this file.
pub fn load_manifest(name_or_path: &str) -> Result<&'static Manifest, ManifestError> {
    if !is_path(name_or_path) {
        return manifest::find_manifest(name_or_path).ok_or_else(|| ManifestError::Unknown {
            name: name_or_path.to_owned(),
            known: manifests().iter().map(|manifest| manifest.name.as_str()).collect(),
        });
    }
    Ok(Box::leak(Box::new(manifest::read_file(name_or_path)?)))
}
