//! Setting up an external workload: its programs from where they are, else from packages that are unpacked
//! and not installed; its files; and the data for its default and its quick options.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pagelab_packages::apt::{self, Watcher, WaysOut};
use pagelab_packages::error::{Error, Kind};
use pagelab_packages::program;
use pagelab_packages::store::{Locked, Store};

use super::data;
use super::home::{self, Home, NO_PLACE, RECORD, State, absent_program, program_folders};
use super::manifest::{Manifest, Program};

/// What can be done where nothing can be fetched.
const WAYS_OUT: WaysOut =
    WaysOut { otherwise: "programs that are in PATH are taken from there", elsewhere: "XDG_CACHE_HOME" };
/// Asking a program for its version.
const ASK: Duration = Duration::from_secs(60);

/// Sets a workload up, unless that was done; `again` fetches and makes all of it anew. Data for the default
/// and the quick options are made too.
pub fn setup(manifest: &Manifest, again: bool, watcher: &mut dyn Watcher) -> Result<Home, Error> {
    let home = programs(manifest, again, watcher)?;
    for quick in [false, true] {
        let options = manifest.options(quick, &[]).map_err(Error::not_available)?;
        data::make(manifest, &home, &options, again && !quick, watcher)?;
    }
    Ok(home)
}

/// Makes a workload ready to run without fetching anything: an error says what is missing.
pub fn at_hand(manifest: &Manifest, watcher: &mut dyn Watcher) -> Result<Home, Error> {
    match home::state(manifest) {
        State::Ready(home) => Ok(home),
        State::AtHand => programs(manifest, false, watcher),
        State::Missing(why) => Err(Error::not_available(why)),
    }
}

fn programs(manifest: &Manifest, again: bool, watcher: &mut dyn Watcher) -> Result<Home, Error> {
    home::user_folder(manifest).map_err(Error::not_available)?;
    let store = home::store(manifest, "programs").ok_or_else(|| Error::not_available(NO_PLACE))?;
    let ready = |home: &Home| !again && absent_program(manifest, Some(&home.root())).is_none();
    if let Some(home) = home::found(manifest, &store).filter(ready) {
        return Ok(home);
    }
    let locked = lock(&store, &format!("another pagelab was setting up {}", manifest.name), watcher)?;
    if let Some(home) = home::found(manifest, &store).filter(ready) {
        return Ok(home);
    }
    let refused = |error: io::Error| unusable(&store, error);
    let partial = store.begin(&locked).map_err(refused)?;
    let made = enough_space(manifest, &store).and_then(|()| fill(manifest, &partial, watcher));
    let made = made.and_then(|version| {
        let name = format!("{version}-{}", manifest.fingerprint);
        store.finish(&locked, &partial, &name).map_err(refused)
    });
    if made.is_err() {
        // What cannot be removed now is removed by the next set-up.
        let _ = fs::remove_dir_all(&partial);
    }
    made?;
    let gone = || Error::not_available(format!("{}: what was set up is gone", manifest.name));
    home::found(manifest, &store).ok_or_else(gone)
}

/// The lock of a store, however long somebody else is at work in it.
pub(super) fn lock(store: &Store, others: &str, watcher: &mut dyn Watcher) -> Result<Locked, Error> {
    let (mut signal, mut waits) = (None, false);
    let locked = store.lock(&mut || waits = true, &mut || {
        signal = watcher.stop();
        signal.is_some()
    });
    let locked = locked.map_err(|error| unusable(store, error))?;
    if waits {
        watcher.progress(others);
    }
    locked.ok_or_else(|| Error::stopped(signal.unwrap_or(0)))
}

/// What is said of a folder that cannot be used.
pub(super) fn unusable(store: &Store, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::NotAvailable,
        _ => Kind::Refused,
    };
    let folder = store.folder().display();
    Error::new(kind, format!("cannot use {folder}: {error}; XDG_CACHE_HOME keeps workloads elsewhere"))
}

/// An error if the disk has less than the manifest says that it takes.
fn enough_space(manifest: &Manifest, store: &Store) -> Result<(), Error> {
    let Some(space) = manifest.space else { return Ok(()) };
    let Ok(disk) = rustix::fs::statvfs(store.folder()) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free >= space.0 {
        return Ok(());
    }
    let (space, free, folder) = (space.0 >> 20, free >> 20, store.folder().display());
    let message = format!(
        "{} takes {space} MiB, and where {folder} lies are {free} MiB free: make room, or XDG_CACHE_HOME \
         keeps it elsewhere",
        manifest.name
    );
    Err(Error::new(Kind::Refused, message))
}

/// Fills the folder of a set-up, and says of which version it is.
fn fill(manifest: &Manifest, folder: &Path, watcher: &mut dyn Watcher) -> Result<String, Error> {
    let cannot = |error| Error::refused(format!("cannot write below {}", folder.display()), error);
    let (root, files) = (folder.join("root"), folder.join("files"));
    for part in [&root, &files] {
        fs::create_dir(part).map_err(cannot)?;
    }
    for (name, text) in &manifest.files {
        fs::write(files.join(name), text.as_bytes()).map_err(cannot)?;
    }
    let lacking = lacking(manifest, None, watcher)?;
    let mut names = manifest.data_packages.clone();
    if let Some(why) = &lacking {
        if manifest.packages.is_empty() {
            let way_out = "no package has it: put it into PATH";
            return Err(Error::not_available(format!("{}: {why}; {way_out}", manifest.name)));
        }
        watcher.progress(&format!("{why}; packages: {}", manifest.packages.join(", ")));
        names.extend(manifest.packages.iter().cloned());
    }
    let mut packages = Vec::new();
    if !names.is_empty() {
        for offer in apt::missing(&names, &WAYS_OUT, watcher)? {
            let package = apt::fetch(folder, &offer, &WAYS_OUT, watcher)?;
            apt::unpack(&root, &package, &offer.name, &WAYS_OUT, watcher)?;
            packages.push((offer.name, offer.version));
        }
    }
    if let Some(why) = self::lacking(manifest, Some(&root), watcher)? {
        let (name, from) = (&manifest.name, manifest.packages.join(", "));
        let message = format!("{name}: {why}, also with the packages {from}: put it into PATH");
        return Err(Error::not_available(message));
    }
    let bytes = size_of(folder);
    let record = Home::record(&manifest.fingerprint, &packages, bytes);
    fs::write(folder.join(RECORD), format!("{record:#}\n")).map_err(cannot)?;
    let first = packages.iter().find(|(name, _)| manifest.packages.contains(name)).or(packages.first());
    Ok(first.map_or_else(|| "as-installed".to_owned(), |(_, version)| version.clone()))
}

/// Which program is not there, or is too old.
fn lacking(
    manifest: &Manifest,
    root: Option<&Path>,
    watcher: &mut dyn Watcher,
) -> Result<Option<String>, Error> {
    let folders = program_folders(manifest, root);
    for program in &manifest.programs {
        let Some(path) = home::find(&program.name, &folders) else {
            return Ok(Some(format!("there is no {}", program.name)));
        };
        let Some(least) = &program.least else { continue };
        let version = version(manifest, root, &path, watcher)?;
        if version.as_deref().is_none_or(|version| is_older(version, least)) {
            let version = version.unwrap_or_else(|| "of no known version".to_owned());
            let Program { name, .. } = program;
            return Ok(Some(format!("{name} in {} is {version}, {least} is wanted", path.display())));
        }
    }
    Ok(None)
}

/// What a program says of its version: the first number with a dot in it.
fn version(
    manifest: &Manifest,
    root: Option<&Path>,
    path: &Path,
    watcher: &mut dyn Watcher,
) -> Result<Option<String>, Error> {
    let mut command = Command::new(path);
    command.arg("--version");
    if let Some(root) = root {
        home::lend(manifest, root, &mut command);
    }
    match program::run(&mut command, ASK, &mut || watcher.stop()) {
        Ok(ran) => Ok(number_in(&(ran.stdout + &ran.stderr))),
        Err(program::NoAnswer::Stopped(signal)) => Err(Error::stopped(signal)),
        Err(_) => Ok(None),
    }
}

fn number_in(said: &str) -> Option<String> {
    let words = said.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    words.into_iter().find(|word| word.contains('.')).map(str::to_owned)
}

fn is_older(version: &str, least: &str) -> bool {
    let numbers =
        |text: &str| -> Vec<u64> { text.split('.').map(|part| part.parse().unwrap_or(0)).collect() };
    numbers(version) < numbers(least)
}

/// Bytes of all files below a folder, as their lengths say.
pub(super) fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, version) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", Some("7.0.15")),
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Some("15.18")),
            ("sort (GNU coreutils) 9.1\nCopyright (C) 2022", Some("9.1")),
            ("no number", None),
        ] {
            assert_eq!(number_in(said).as_deref(), version, "{said}");
        }
        assert!(is_older("6.0.16", "6.2") && !is_older("7.0", "6.2") && !is_older("6.2.0", "6.2"));
    }
}
