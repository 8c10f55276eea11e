//! Directory of a manifest's installation, and whether it is complete.
//!
//! ```text
//! pagelab/external/NAME/programs/VERSION-FINGERPRINT/   packages in root/, the manifest's files/, setup.json
//! pagelab/external/NAME/data/KEY/                       what prepare made, one directory for each choice
//! pagelab/external/NAME/trials/N/                       the directory of a run, removed at its end
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, io};

use pagelab_model::Bytes;
use pagelab_model::size::format_bytes;
use pagelab_model::{Failure, FailureKind};
use pagelab_packages::apt::{FetchHints, FetchObserver};
use pagelab_packages::store::{DirectoryStore, default_cache_dir};
use pagelab_packages::{apt, program};
use pagelab_workloads::options::WorkloadOptions;
use serde_json::{Value, json};

use super::manifest::{Manifest, RequiredProgram, fill_placeholders, option_value};
use super::prepared_data;

pub(super) const INSTALL_RECORD: &str = "setup.json";
/// Directories of programs in a root of unpacked packages.
const PROGRAM_DIRS: [&str; 6] = ["usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/games"];
const LIBRARY_DIRS: [&str; 4] = ["usr/lib", "lib", "usr/lib/*-linux-gnu*", "lib/*-linux-gnu*"];

/// A complete installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Its directory.
    pub dir: PathBuf,
    /// Unpacked packages: name and version.
    pub packages: Vec<(String, String)>,
    /// Size of its directory when it was completed, in bytes.
    pub bytes: u64,
}

/// Whether a workload can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallState {
    /// It is set up.
    Ready(Installation),
    /// All its programs exist: the first run sets it up without a download.
    Available,
    /// It cannot run: the reason and the remedy.
    Missing(String),
}

/// Directories of a manifest; `None` if this user has no cache directory.
pub(super) fn open_store(manifest: &Manifest, subdir: &str) -> Option<DirectoryStore> {
    Some(DirectoryStore::new(default_cache_dir()?.join("external").join(&manifest.name).join(subdir)))
}

/// Message if there is no such directory.
pub(super) const NO_CACHE_DIR: &str = "cannot find a cache directory for external workloads: neither \
                                       XDG_CACHE_HOME nor HOME is set; hint: set one of them";

/// Whether the workload can run on this machine.
pub fn install_state(manifest: &Manifest) -> InstallState {
    if let Err(why) = resolve_user_dir(manifest) {
        return InstallState::Missing(why);
    }
    let Some(store) = open_store(manifest, "programs") else {
        return InstallState::Missing(NO_CACHE_DIR.to_owned());
    };
    let setup = format!("pagelab workload setup {}", manifest.requested_as);
    match find_installation(manifest, &store) {
        Some(home) => match first_missing_program(manifest, Some(&home.root_dir())) {
            None => InstallState::Ready(home),
            Some(program) => {
                InstallState::Missing(format!("{program} was removed; hint: run `{setup} --again`"))
            }
        },
        None if manifest.data_packages.is_empty() && first_missing_program(manifest, None).is_none() => {
            InstallState::Available
        }
        None => InstallState::Missing(format!("the workload is not set up; hint: run `{setup}`")),
    }
}

/// The installation of exactly this manifest.
pub(super) fn find_installation(manifest: &Manifest, store: &DirectoryStore) -> Option<Installation> {
    let homes =
        store.entries().filter_map(|folder| Installation::read_record(&folder, &manifest.fingerprint));
    homes.max_by_key(|home| fs::metadata(&home.dir).and_then(|meta| meta.modified()).ok())
}

/// The directory that the user must provide, if the manifest requires one.
pub(super) fn resolve_user_dir(manifest: &Manifest) -> Result<Option<PathBuf>, String> {
    let Some(user_dir) = &manifest.user_dir else { return Ok(None) };
    let (variable, what) = (&user_dir.variable, &user_dir.description);
    let Some(folder) = env::var_os(variable).filter(|folder| !folder.is_empty()) else {
        return Err(format!("{variable} is not set; expected the directory of {what}"));
    };
    let folder = PathBuf::from(folder);
    match expand_pattern(&folder, &user_dir.required_entry).is_empty() {
        true => Err(format!(
            "{variable} is {}, which has no {}; expected the directory of {what}",
            folder.display(),
            user_dir.required_entry
        )),
        false => Ok(Some(folder)),
    }
}

/// The first missing program of a manifest.
pub(super) fn first_missing_program(manifest: &Manifest, root: Option<&Path>) -> Option<String> {
    let folders = program_dirs(manifest, root);
    let is_absent = |name: &&String| find_program(name, &folders).is_none();
    manifest.programs.iter().map(|program| &program.name).find(is_absent).cloned()
}

/// Path of a program in the first of these directories that has it.
pub(super) fn find_program(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Directories of programs: unpacked packages, then PATH, then the manifest's own directories on this
/// machine.
pub(super) fn program_dirs(manifest: &Manifest, root: Option<&Path>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let manifest_dirs = manifest.program_dirs.iter().map(String::as_str);
    if let Some(root) = root {
        let patterns = PROGRAM_DIRS.into_iter().chain(manifest_dirs.clone());
        folders.extend(patterns.flat_map(|pattern| expand_pattern(root, pattern)));
    }
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.extend(manifest_dirs.flat_map(|pattern| expand_pattern(Path::new("/"), pattern)));
    folders
}

/// Expansion of a pattern below a directory, `*` for any one name, the last by name first: `15` before `13`.
fn expand_pattern(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = found.iter().flat_map(|folder| expand_component(folder, part)).collect();
    }
    found.retain(|path| path.exists());
    found
}

fn expand_component(folder: &Path, part: &str) -> Vec<PathBuf> {
    if !part.contains('*') {
        return vec![folder.join(part)];
    }
    let pieces: Vec<&str> = part.split('*').collect();
    let matches_pattern = |name: &str| {
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
    names.retain(|name| matches_pattern(name));
    names.sort();
    names.iter().rev().map(|name| folder.join(name)).collect()
}

impl Installation {
    /// The installation in a directory, if it is complete and of the manifest with this fingerprint.
    fn read_record(folder: &Path, fingerprint: &str) -> Option<Installation> {
        let record: Value = serde_json::from_slice(&fs::read(folder.join(INSTALL_RECORD)).ok()?).ok()?;
        if record.get("fingerprint")?.as_str()? != fingerprint {
            return None;
        }
        let text = |of: &Value, key: &str| of.get(key)?.as_str().map(str::to_owned);
        let packages = record.get("packages")?.as_array()?.iter();
        Some(Installation {
            dir: folder.to_owned(),
            packages: packages.filter_map(|of| Some((text(of, "name")?, text(of, "version")?))).collect(),
            bytes: record.get("bytes")?.as_u64()?,
        })
    }

    pub(super) fn build_record(fingerprint: &str, packages: &[(String, String)], bytes: u64) -> Value {
        let package = |(name, version): &(String, String)| json!({"name": name, "version": version});
        let packages: Vec<Value> = packages.iter().map(package).collect();
        json!({"fingerprint": fingerprint, "packages": packages, "bytes": bytes})
    }

    /// The unpacked packages.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The files of the manifest.
    pub fn files_dir(&self) -> PathBuf {
        self.dir.join("files")
    }

    /// A command of the manifest, run in `work_dir`, with the names in braces filled in.
    pub(super) fn build_command(
        &self,
        manifest: &Manifest,
        options: &WorkloadOptions,
        words: &[String],
        (data_dir, work_dir): (Option<&Path>, &Path),
    ) -> Command {
        let text = |dir: &Path| Some(dir.display().to_string());
        let placeholder_value = |name: &str| match name {
            "files" => text(&self.files_dir()),
            "root" => text(&self.root_dir()),
            "data" => data_dir.and_then(text),
            "work" => text(work_dir),
            option => option_value(options, option),
        };
        let fill = |word: &String| fill_placeholders(word, &placeholder_value);
        let mut command = Command::new(fill(&words[0]));
        command.args(words[1..].iter().map(fill)).current_dir(work_dir);
        set_program_environment(manifest, &self.root_dir(), &mut command);
        command.envs(manifest.environment.iter().map(|(name, value)| (name, fill(value))));
        command
    }

    /// Directories of the programs of a manifest.
    pub fn locate_programs(&self, manifest: &Manifest) -> Vec<(String, PathBuf)> {
        let folders = program_dirs(manifest, Some(&self.root_dir()));
        let locate = |name: &String| Some((name.clone(), find_program(name, &folders)?));
        manifest.programs.iter().filter_map(|program| locate(&program.name)).collect()
    }
}

/// Gives a command the programs and libraries below a root.
pub(super) fn set_program_environment(manifest: &Manifest, root: &Path, command: &mut Command) {
    command.env("LC_ALL", "C");
    if let Some(path) = join_paths(program_dirs(manifest, Some(root))) {
        command.env("PATH", path);
    }
    let manifest_libraries = manifest.library_dirs.iter().map(String::as_str);
    let libraries = manifest_libraries.chain(LIBRARY_DIRS).flat_map(|pattern| expand_pattern(root, pattern));
    let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let inherited_path = env::split_paths(&inherited).filter(|folder| !folder.as_os_str().is_empty());
    let libraries: Vec<PathBuf> = libraries.chain(inherited_path.collect::<Vec<_>>()).collect();
    if let Some(path) = join_paths(libraries).filter(|path| !path.is_empty()) {
        command.env("LD_LIBRARY_PATH", path);
    }
}

/// Such a list cannot contain a directory name with a colon.
fn join_paths(folders: Vec<PathBuf>) -> Option<OsString> {
    env::join_paths(folders.iter().filter(|folder| !folder.as_os_str().is_empty())).ok()
}

pub(super) const STORE_REMEDY: &str = "hint: set XDG_CACHE_HOME";

/// Hint if nothing can be downloaded.
const OFFLINE_HINTS: FetchHints = FetchHints {
    alternative: "install the programs and add them to PATH",
    manual_download: "XDG_CACHE_HOME",
};
/// Asking a program for its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Sets a workload up, unless it is set up already; `reinstall` downloads and recreates all of it. This
/// includes the data for the default and the quick options.
pub fn set_up(
    manifest: &Manifest,
    reinstall: bool,
    watcher: &mut dyn FetchObserver,
) -> Result<Installation, Failure> {
    let home = install_programs(manifest, reinstall, watcher)?;
    for quick in [false, true] {
        let options = manifest.resolve_options(quick, &[]).map_err(Failure::not_available)?;
        prepared_data::prepare_data(manifest, &home, &options, reinstall && !quick, watcher)?;
    }
    Ok(home)
}

/// Makes a workload ready to run without a download. An error names the missing parts.
pub fn make_available(manifest: &Manifest, watcher: &mut dyn FetchObserver) -> Result<Installation, Failure> {
    match install_state(manifest) {
        InstallState::Ready(home) => Ok(home),
        InstallState::Available => install_programs(manifest, false, watcher),
        InstallState::Missing(why) => Err(Failure::not_available(why)),
    }
}

fn install_programs(
    manifest: &Manifest,
    reinstall: bool,
    watcher: &mut dyn FetchObserver,
) -> Result<Installation, Failure> {
    resolve_user_dir(manifest).map_err(Failure::not_available)?;
    let store = open_store(manifest, "programs").ok_or_else(|| Failure::not_available(NO_CACHE_DIR))?;
    let ready =
        |home: &Installation| !reinstall && first_missing_program(manifest, Some(&home.root_dir())).is_none();
    if let Some(home) = find_installation(manifest, &store).filter(ready) {
        return Ok(home);
    }
    let waiting_message = format!("another pagelab process was setting up {}", manifest.name);
    let lock = store.lock_observed(&waiting_message, STORE_REMEDY, watcher)?;
    if let Some(home) = find_installation(manifest, &store).filter(ready) {
        return Ok(home);
    }
    let install_error = |error: io::Error| store.access_error(&error, STORE_REMEDY);
    store.build_entry(&lock, install_error, |partial| {
        check_disk_space(manifest, &store)?;
        let version = fill_install_dir(manifest, partial, watcher)?;
        Ok(format!("{version}-{}", manifest.fingerprint))
    })?;
    let removed_error =
        || Failure::not_available(format!("{}: the installation was removed meanwhile", manifest.name));
    find_installation(manifest, &store).ok_or_else(removed_error)
}

/// Returns an error if the free disk space is below the manifest's requirement.
fn check_disk_space(manifest: &Manifest, store: &DirectoryStore) -> Result<(), Failure> {
    let Some(space) = manifest.disk_space else { return Ok(()) };
    let Ok(disk) = rustix::fs::statvfs(store.dir()) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free >= space.0 {
        return Ok(());
    }
    let (space, free, folder) = (format_bytes(space), format_bytes(Bytes(free)), store.dir().display());
    let message = format!(
        "{} needs {space}, but {folder} has only {free} free; hint: free disk space, or set XDG_CACHE_HOME",
        manifest.name
    );
    Err(Failure::new(FailureKind::Partial, message))
}

/// Fills the directory of an installation, and returns its version.
fn fill_install_dir(
    manifest: &Manifest,
    folder: &Path,
    watcher: &mut dyn FetchObserver,
) -> Result<String, Failure> {
    let write_error = |error| Failure::system_error(format!("cannot write to {}", folder.display()), error);
    let (root, files) = (folder.join("root"), folder.join("files"));
    for part in [&root, &files] {
        fs::create_dir(part).map_err(write_error)?;
    }
    for (name, text) in &manifest.files {
        fs::write(files.join(name), text.as_bytes()).map_err(write_error)?;
    }
    let missing = find_missing_program(manifest, None, watcher)?;
    let mut names = manifest.data_packages.clone();
    if let Some(why) = &missing {
        if manifest.packages.is_empty() {
            let hint = "no package provides it; hint: add its directory to PATH";
            return Err(Failure::not_available(format!("{}: {why}; {hint}", manifest.name)));
        }
        watcher.report_progress(&format!("{why}; packages: {}", manifest.packages.join(", ")));
        names.extend(manifest.packages.iter().cloned());
    }
    let mut packages = Vec::new();
    if !names.is_empty() {
        for provider in apt::find_missing(&names, &OFFLINE_HINTS, watcher)? {
            let package = apt::fetch_package(folder, &provider, &OFFLINE_HINTS, watcher)?;
            apt::unpack_package(&root, &package, &provider.name, &OFFLINE_HINTS, watcher)?;
            packages.push((provider.name, provider.version));
        }
    }
    if let Some(why) = find_missing_program(manifest, Some(&root), watcher)? {
        let (name, origin) = (&manifest.name, manifest.packages.join(", "));
        let message = format!("{name}: {why}, even with the packages {origin}; hint: add it to PATH");
        return Err(Failure::not_available(message));
    }
    let bytes = dir_size(folder);
    let record = Installation::build_record(&manifest.fingerprint, &packages, bytes);
    fs::write(folder.join(INSTALL_RECORD), format!("{record:#}\n")).map_err(write_error)?;
    let first = packages.iter().find(|(name, _)| manifest.packages.contains(name)).or(packages.first());
    Ok(first.map_or_else(|| "as-installed".to_owned(), |(_, version)| version.clone()))
}

/// Finds the first program that is missing or too old.
fn find_missing_program(
    manifest: &Manifest,
    root: Option<&Path>,
    watcher: &mut dyn FetchObserver,
) -> Result<Option<String>, Failure> {
    let folders = program_dirs(manifest, root);
    for program in &manifest.programs {
        let Some(path) = find_program(&program.name, &folders) else {
            return Ok(Some(format!("{} not found", program.name)));
        };
        let Some(min_version) = &program.min_version else { continue };
        let version = program_version(manifest, root, &path, watcher)?;
        if version.as_deref().is_none_or(|version| is_older_than(version, min_version)) {
            let version = version.unwrap_or_else(|| "unknown".to_owned());
            let RequiredProgram { name, .. } = program;
            return Ok(Some(format!(
                "{name} in {} has version {version}; expected {min_version} or later",
                path.display()
            )));
        }
    }
    Ok(None)
}

/// The version of a program in its own output: the first number with a dot.
fn program_version(
    manifest: &Manifest,
    root: Option<&Path>,
    path: &Path,
    watcher: &mut dyn FetchObserver,
) -> Result<Option<String>, Failure> {
    let mut command = Command::new(path);
    command.arg("--version");
    if let Some(root) = root {
        set_program_environment(manifest, root, &mut command);
    }
    match program::run_command(&mut command, VERSION_TIMEOUT, &mut || watcher.stop_signal()) {
        Ok(ran) => Ok(first_version_number(&(ran.stdout + &ran.stderr))),
        Err(program::CommandError::Stopped(signal)) => Err(Failure::stopped(signal)),
        Err(_) => Ok(None),
    }
}

fn first_version_number(output: &str) -> Option<String> {
    let words = output.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    words.into_iter().find(|word| word.contains('.')).map(str::to_owned)
}

fn is_older_than(version: &str, min_version: &str) -> bool {
    let numbers =
        |text: &str| -> Vec<u64> { text.split('.').map(|part| part.parse().unwrap_or(0)).collect() };
    numbers(version) < numbers(min_version)
}

/// Sum of the lengths of all files below a directory.
pub(super) fn dir_size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => dir_size(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
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
            expand_pattern(folder.path(), pattern).into_iter().map(below).collect()
        };
        assert_eq!(found("lib/postgresql/*/bin"), ["lib/postgresql/15/bin", "lib/postgresql/13/bin"]);
        assert_eq!(found("lib/*-linux-gnu*/blas"), ["lib/x86_64-linux-gnu/blas"]);
        assert!(found("lib/*-linux-gnu*/none").is_empty() && found("no/*").is_empty());
    }

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, version) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", Some("7.0.15")),
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Some("15.18")),
            ("sort (GNU coreutils) 9.1\nCopyright (C) 2022", Some("9.1")),
            ("no number", None),
        ] {
            assert_eq!(first_version_number(said).as_deref(), version, "{said}");
        }
        assert!(
            is_older_than("6.0.16", "6.2") && !is_older_than("7.0", "6.2") && !is_older_than("6.2.0", "6.2")
        );
    }
}
