//! Files of the repository: its root, the tracked files, and the corpus.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tally::TaskError;

pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The corpus of other people's data, if it is on this machine.
pub fn corpus_folder() -> Option<PathBuf> {
    let place = match std::env::var_os("PAGELAB_CORPUS") {
        Some(place) if !place.is_empty() => PathBuf::from(place),
        _ => root().parent()?.join("shared/corpus"),
    };
    place.is_dir().then_some(place)
}

/// The files of the repository, relative to `root`, sorted: what git tracks or would track. Without git,
/// everything but build output.
pub fn list_files(root: &Path) -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    let mut files = match listed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|name| !name.is_empty() && root.join(name).is_file())
            .map(str::to_owned)
            .collect(),
        _ => {
            let mut found = Vec::new();
            walk_folder(root, "", &mut found);
            found
        }
    };
    files.sort();
    files.dedup();
    files
}

fn walk_folder(root: &Path, folder: &str, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && name != "target" && name != ".git" => {
                walk_folder(root, &path, files)
            }
            Ok(kind) if kind.is_file() => files.push(path),
            _ => {}
        }
    }
}

/// Standard output of git in the repository.
pub fn git(arguments: &[&str]) -> Result<String, TaskError> {
    let output = Command::new("git").args(arguments).current_dir(root()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(TaskError::Message(format!("git {}: {}", arguments.join(" "), why.trim())))
}

/// Whether a program of this name can be run from `PATH`, or as a cargo subcommand from cargo's own folder.
pub fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo/bin"));
    let cargo_home = std::env::var_os("CARGO_HOME").map(|home| PathBuf::from(home).join("bin"));
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .chain(home)
        .chain(cargo_home)
        .any(|folder| folder.join(name).is_file())
}
