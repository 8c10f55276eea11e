//! Where the set-up of a manifest lies, and whether it is whole.
//!
//! ```text
//! pagelab/external/NAME/programs/VERSION-FINGERPRINT/   packages in root/, the manifest's files/, setup.json
//! pagelab/external/NAME/data/KEY/                       what prepare made, one folder for each choice
//! pagelab/external/NAME/trials/N/                       the folder of a run, gone at its end
//! ```

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagelab_packages::store::{Store, usual_folder};
use serde_json::{Value, json};

use super::manifest::Manifest;

/// The record of a set-up that is whole.
pub(super) const RECORD: &str = "setup.json";
/// Folders of programs in a root of unpacked packages.
const PROGRAMS: [&str; 6] = ["usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/games"];
/// Folders of libraries in it.
const LIBRARIES: [&str; 4] = ["usr/lib", "lib", "usr/lib/*-linux-gnu*", "lib/*-linux-gnu*"];

/// A set-up that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// Its folder.
    pub folder: PathBuf,
    /// Packages that were unpacked: name and version.
    pub packages: Vec<(String, String)>,
    /// When it was whole, in bytes of its own folder.
    pub bytes: u64,
}

/// Whether a workload can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is set up.
    Ready(Home),
    /// Its programs are all there: the first run sets it up, without fetching anything.
    AtHand,
    /// It cannot run: why, and what to do.
    Missing(String),
}

impl State {
    /// Why it cannot run, if it cannot.
    pub fn missing(&self) -> Option<&str> {
        match self {
            State::Missing(why) => Some(why),
            _ => None,
        }
    }
}

/// Folders of a manifest; `None` if this user has no place for what can be made again.
pub(super) fn store(manifest: &Manifest, part: &str) -> Option<Store> {
    Some(Store::at(usual_folder()?.join("external").join(&manifest.name).join(part)))
}

/// What is said where there is no such place.
pub(super) const NO_PLACE: &str =
    "no place to keep external workloads: neither XDG_CACHE_HOME nor HOME is set; set one of them";

/// Whether the workload can run here.
pub fn state(manifest: &Manifest) -> State {
    if let Err(why) = user_folder(manifest) {
        return State::Missing(why);
    }
    let Some(store) = store(manifest, "programs") else { return State::Missing(NO_PLACE.to_owned()) };
    let setup = format!("pagelab workload setup {}", manifest.asked);
    match found(manifest, &store) {
        Some(home) => match absent_program(manifest, Some(&home.root())) {
            None => State::Ready(home),
            Some(program) => State::Missing(format!("{program}, which was there, is gone: {setup} --again")),
        },
        None if manifest.data_packages.is_empty() && absent_program(manifest, None).is_none() => {
            State::AtHand
        }
        None => State::Missing(format!("not set up: {setup}")),
    }
}

/// The set-up for this very manifest.
pub(super) fn found(manifest: &Manifest, store: &Store) -> Option<Home> {
    let homes = store.entries().filter_map(|folder| Home::read(&folder, &manifest.fingerprint));
    homes.max_by_key(|home| fs::metadata(&home.folder).and_then(|meta| meta.modified()).ok())
}

/// The folder that the user must have himself, where one is wanted.
pub(super) fn user_folder(manifest: &Manifest) -> Result<Option<PathBuf>, String> {
    let Some(of) = &manifest.user_folder else { return Ok(None) };
    let (variable, what) = (&of.variable, &of.what);
    let Some(folder) = env::var_os(variable).filter(|folder| !folder.is_empty()) else {
        return Err(format!("{variable} is not set: it names the folder of {what}"));
    };
    let folder = PathBuf::from(folder);
    match expand(&folder, &of.has).is_empty() {
        true => Err(format!("{variable} is {}, and there is no {} in it: {what}", folder.display(), of.has)),
        false => Ok(Some(folder)),
    }
}

/// The first program of a manifest that is not there.
pub(super) fn absent_program(manifest: &Manifest, root: Option<&Path>) -> Option<String> {
    let folders = program_folders(manifest, root);
    let is_absent = |name: &&String| find(name, &folders).is_none();
    manifest.programs.iter().map(|program| &program.name).find(is_absent).cloned()
}

/// Where a program lies, in the first of these folders that has it.
pub(super) fn find(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Folders of programs: what was unpacked, then PATH, then the manifest's own folders on this machine.
pub(super) fn program_folders(manifest: &Manifest, root: Option<&Path>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let own = manifest.program_folders.iter().map(String::as_str);
    if let Some(root) = root {
        let patterns = PROGRAMS.into_iter().chain(own.clone());
        folders.extend(patterns.flat_map(|pattern| expand(root, pattern)));
    }
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.extend(own.flat_map(|pattern| expand(Path::new("/"), pattern)));
    folders
}

/// What a pattern stands for below a folder, `*` for any one name, the last by name first: `15` before `13`.
fn expand(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = found.iter().flat_map(|folder| one_part(folder, part)).collect();
    }
    found.retain(|path| path.exists());
    found
}

fn one_part(folder: &Path, part: &str) -> Vec<PathBuf> {
    if !part.contains('*') {
        return vec![folder.join(part)];
    }
    let pieces: Vec<&str> = part.split('*').collect();
    let is_like = |name: &str| {
        let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        for piece in &pieces[1..pieces.len() - 1] {
            match rest.find(piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_like(name));
    names.sort();
    names.iter().rev().map(|name| folder.join(name)).collect()
}

impl Home {
    /// The set-up in a folder, if it is whole and of the manifest with this fingerprint.
    fn read(folder: &Path, fingerprint: &str) -> Option<Home> {
        let record: Value = serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()?;
        if record.get("fingerprint")?.as_str()? != fingerprint {
            return None;
        }
        let text = |of: &Value, key: &str| of.get(key)?.as_str().map(str::to_owned);
        let packages = record.get("packages")?.as_array()?.iter();
        Some(Home {
            folder: folder.to_owned(),
            packages: packages.filter_map(|of| Some((text(of, "name")?, text(of, "version")?))).collect(),
            bytes: record.get("bytes")?.as_u64()?,
        })
    }

    /// The record of a set-up.
    pub(super) fn record(fingerprint: &str, packages: &[(String, String)], bytes: u64) -> Value {
        let package = |(name, version): &(String, String)| json!({"name": name, "version": version});
        let packages: Vec<Value> = packages.iter().map(package).collect();
        json!({"fingerprint": fingerprint, "packages": packages, "bytes": bytes})
    }

    /// What was unpacked.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The manifest's own files.
    pub fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    /// Where the programs of a manifest lie.
    pub fn programs(&self, manifest: &Manifest) -> Vec<(String, PathBuf)> {
        let folders = program_folders(manifest, Some(&self.root()));
        let of = |name: &String| Some((name.clone(), find(name, &folders)?));
        manifest.programs.iter().filter_map(|program| of(&program.name)).collect()
    }

    /// Gives a command the programs and libraries of this set-up.
    pub(super) fn lend(&self, manifest: &Manifest, command: &mut Command) {
        lend(manifest, &self.root(), command);
    }
}

/// Gives a command the programs and libraries below a root.
pub(super) fn lend(manifest: &Manifest, root: &Path, command: &mut Command) {
    command.env("LC_ALL", "C");
    if let Some(path) = joined(program_folders(manifest, Some(root))) {
        command.env("PATH", path);
    }
    let own = manifest.library_folders.iter().map(String::as_str);
    let libraries = own.chain(LIBRARIES).flat_map(|pattern| expand(root, pattern));
    let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let inherited = env::split_paths(&inherited).filter(|folder| !folder.as_os_str().is_empty());
    let libraries: Vec<PathBuf> = libraries.chain(inherited.collect::<Vec<_>>()).collect();
    if let Some(path) = joined(libraries).filter(|path| !path.is_empty()) {
        command.env("LD_LIBRARY_PATH", path);
    }
}

/// A colon in a folder's name cannot be written in such a list.
fn joined(folders: Vec<PathBuf>) -> Option<OsString> {
    env::join_paths(folders.iter().filter(|folder| !folder.as_os_str().is_empty())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_one_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["lib/x86_64-linux-gnu/blas", "lib/postgresql/13/bin", "lib/postgresql/15/bin"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let found = |pattern: &str| -> Vec<String> {
            let below = |path: PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
            expand(folder.path(), pattern).into_iter().map(below).collect()
        };
        assert_eq!(found("lib/postgresql/*/bin"), ["lib/postgresql/15/bin", "lib/postgresql/13/bin"]);
        assert_eq!(found("lib/*-linux-gnu*/blas"), ["lib/x86_64-linux-gnu/blas"]);
        assert!(found("lib/*-linux-gnu*/none").is_empty() && found("no/*").is_empty());
    }
}
