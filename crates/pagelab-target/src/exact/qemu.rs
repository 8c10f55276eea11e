//! QEMU's user mode: the one in PATH, else that of the distribution's package, unpacked and not installed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagelab_packages::apt::{self, Offer, Watcher, WaysOut};
use pagelab_packages::error::Kind;
use pagelab_packages::program;
use pagelab_packages::store::Store;
use pagelab_tlb::engine::layout;

use crate::error::{Error, ErrorKind};

/// The program.
const NAME: &str = "qemu-x86_64";
/// The package that has it, with its libraries.
const PACKAGE: &str = "qemu-user";
/// The plugin, as build.rs made it; empty on other machines than x86-64 with glibc.
const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tlb-trace.so"));
/// The loader of programs that are linked dynamically (the System V ABI of x86-64).
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Releases that are taken, (major, minor). 7.2 was tried. From 6.2 on, a plugin is handed its arguments as
/// `name=value` (commit 3a445acb4911); from 9.0 on, QEMU's interface begins with version 2, since functions
/// of version 1 were removed (`QEMU_PLUGIN_MIN_VERSION` of plugins/plugin.h), and the plugin is of version 1.
const RELEASES: std::ops::RangeInclusive<(u32, u32)> = (6, 2)..=(8, 2);
const ASK: Duration = Duration::from_secs(60);
const WAYS_OUT: WaysOut = WaysOut {
    otherwise: "a qemu-x86_64 of release 6.2 to 8.2 with plugins that is in PATH is taken from there, and \
                --source accessed needs none",
    elsewhere: "XDG_CACHE_HOME",
};

/// A QEMU that can be used, and the plugin.
#[derive(Debug)]
pub struct Qemu {
    program: PathBuf,
    /// Folders of its libraries, where it is not installed.
    libraries: Option<String>,
    /// What it says of itself.
    pub version: String,
    plugin: PathBuf,
}

/// What is taken when QEMU is asked for.
#[derive(Debug)]
pub enum Ahead {
    /// One that is there.
    There(Qemu),
    /// One that is not there yet: these packages would be fetched.
    Fetched(Vec<Offer>),
}

impl Qemu {
    /// The one that is there, or is fetched now.
    pub fn at_hand(cache: Option<&Path>, watcher: &mut dyn Watcher) -> Result<Qemu, Error> {
        can_be_here()?;
        let plugin = plugin(cache)?;
        match Qemu::there(cache, &plugin, watcher)? {
            Ok(qemu) => Ok(qemu),
            Err((why, store)) => {
                watcher.progress(&format!("{why}: the package {PACKAGE} is fetched, and not installed"));
                fetch(&store, &plugin, watcher)
            }
        }
    }

    /// What [`Qemu::at_hand`] would take or fetch; nothing is written.
    pub fn ahead(cache: Option<&Path>, watcher: &mut dyn Watcher) -> Result<Ahead, Error> {
        can_be_here()?;
        match Qemu::there(cache, Path::new(""), watcher)? {
            Ok(qemu) => Ok(Ahead::There(qemu)),
            Err(_) => {
                let offers = apt::missing(&[PACKAGE.to_owned()], &WAYS_OUT, watcher);
                offers.map(Ahead::Fetched).map_err(of_packages)
            }
        }
    }

    /// The one that is there, or why there is none and where it is to be put.
    fn there(
        cache: Option<&Path>,
        plugin: &Path,
        watcher: &mut dyn Watcher,
    ) -> Result<Result<Qemu, (String, Store)>, Error> {
        let mut why = format!("there is no {NAME} in PATH");
        if let Some(path) = program::find(Path::new(NAME)) {
            match usable(&path, None, watcher)? {
                Ok(version) => {
                    let plugin = plugin.to_owned();
                    return Ok(Ok(Qemu { program: path, libraries: None, version, plugin }));
                }
                Err(unfit) => why = unfit,
            }
        }
        let cache = cache.ok_or_else(|| {
            let message = format!("{why}, and no place to keep one: set XDG_CACHE_HOME or HOME");
            Error::new(ErrorKind::NotAvailable, message)
        })?;
        let store = Store::at(cache.join(PACKAGE));
        for entry in store.entries() {
            match unpacked(&entry, plugin, watcher)? {
                Ok(qemu) => return Ok(Ok(qemu)),
                Err(unfit) => why = unfit,
            }
        }
        Ok(Err((why, store)))
    }

    /// What is started, and its arguments up to the program.
    pub fn command(&self, account: &str) -> (&Path, Vec<String>) {
        let mut arguments = Vec::new();
        let mut launcher = self.program.as_path();
        if let Some(libraries) = &self.libraries {
            launcher = Path::new(LOADER);
            arguments.extend(["--library-path".to_owned(), libraries.clone()]);
            arguments.push(self.program.display().to_string());
        }
        arguments.push("-plugin".to_owned());
        // The launcher, what stands here, and the plugin itself.
        let prefix = arguments.len() + 2;
        let plugin = self.plugin.display().to_string().replace(',', ",,");
        arguments.push(format!("{plugin},account={account},prefix={prefix}"));
        (launcher, arguments)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.program
    }
}

fn can_be_here() -> Result<(), Error> {
    if PLUGIN.is_empty() {
        let message = "the source `exact` models programs for x86-64 and runs on x86-64 with glibc: \
                       this machine has another processor; --source accessed works here";
        return Err(Error::new(ErrorKind::NotAvailable, message));
    }
    Ok(())
}

/// The plugin in the cache, by what is in it.
fn plugin(cache: Option<&Path>) -> Result<PathBuf, Error> {
    let folder = cache.map_or_else(std::env::temp_dir, |cache| cache.join("plugins"));
    let place = folder.join(format!("tlb-trace-{:016x}.so", layout::hash(PLUGIN)));
    if fs::read(&place).is_ok_and(|there| there == PLUGIN) {
        return Ok(place);
    }
    let write = || -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        let partial = folder.join(format!(".tlb-trace-{}", std::process::id()));
        fs::write(&partial, PLUGIN)?;
        fs::rename(&partial, &place)
    };
    write().map_err(|error| {
        let message = format!(
            "cannot keep QEMU's plugin in {}: {error}; XDG_CACHE_HOME names another folder",
            folder.display()
        );
        Error::new(ErrorKind::Refused, message)
    })?;
    Ok(place)
}

/// The version of a QEMU that has what is needed, or why it has not.
fn usable(
    path: &Path,
    libraries: Option<&str>,
    watcher: &mut dyn Watcher,
) -> Result<Result<String, String>, Error> {
    let mut ask = |what: &str| {
        let mut command = match libraries {
            None => Command::new(path),
            Some(libraries) => {
                let mut command = Command::new(LOADER);
                command.args(["--library-path", libraries]).arg(path);
                command
            }
        };
        match program::run(command.arg(what), ASK, &mut || watcher.stop()) {
            Ok(ran) => Ok(ran.stdout),
            Err(program::NoAnswer::Stopped(signal)) => Err(stopped(signal)),
            Err(_) => Ok(String::new()),
        }
    };
    let said = ask("-version")?;
    let name = path.display();
    let version = said.split_once("version ").and_then(|(_, rest)| rest.split([' ', '\n']).next());
    let Some(version) = version.filter(|version| !version.is_empty()) else {
        return Ok(Err(format!("{name} does not tell its version")));
    };
    if let Err(why) = takes_the_plugin(version) {
        return Ok(Err(format!("{name} is {version}: {why}")));
    }
    if !ask("-h")?.contains("-plugin") {
        return Ok(Err(format!("{name} is {version}, and was built without plugins")));
    }
    Ok(Ok(version.to_owned()))
}

/// Whether a QEMU of this version takes the plugin, or why it does not.
fn takes_the_plugin(version: &str) -> Result<(), &'static str> {
    let mut numbers = version.split(['.', '-', '+', '~']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err("this names no release");
    };
    if (major, minor) < *RELEASES.start() {
        return Err("releases before 6.2 hand a plugin its arguments in another form");
    }
    if (major, minor) > *RELEASES.end() {
        return Err("from release 9.0 on, QEMU's plugin interface begins with version 2, and pagelab's \
                    plugin is of version 1");
    }
    Ok(())
}

/// What a folder of the store has, or why it cannot be used.
fn unpacked(root: &Path, plugin: &Path, watcher: &mut dyn Watcher) -> Result<Result<Qemu, String>, Error> {
    let program = root.join("usr/bin").join(NAME);
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib", "lib"];
    let folders: Vec<String> = folders.iter().map(|part| root.join(part).display().to_string()).collect();
    let libraries = folders.join(":");
    let version = usable(&program, Some(&libraries), watcher)?;
    Ok(version.map(|version| Qemu {
        program,
        libraries: Some(libraries),
        version,
        plugin: plugin.to_owned(),
    }))
}

fn fetch(store: &Store, plugin: &Path, watcher: &mut dyn Watcher) -> Result<Qemu, Error> {
    let cannot = |error: io::Error| {
        let folder = store.folder().display();
        let message = format!("cannot use {folder}: {error}; XDG_CACHE_HOME names another folder");
        Error::new(ErrorKind::Refused, message)
    };
    let mut signal = None;
    let locked = store.lock(&mut || {}, &mut || {
        signal = watcher.stop();
        signal.is_some()
    });
    let locked = locked.map_err(cannot)?.ok_or_else(|| stopped(signal.unwrap_or(0)))?;
    for entry in store.entries() {
        if let Ok(qemu) = unpacked(&entry, plugin, watcher)? {
            return Ok(qemu);
        }
    }
    let partial = store.begin(&locked).map_err(cannot)?;
    let name = fill(&partial, watcher);
    if name.is_err() {
        // What cannot be removed now is removed by the next one.
        let _ = fs::remove_dir_all(&partial);
    }
    let place = store.finish(&locked, &partial, &name?).map_err(cannot)?;
    unpacked(&place, plugin, watcher)?.map_err(|why| {
        let message = format!(
            "the source `exact` needs QEMU's user mode ({NAME}), and the one of the package {PACKAGE} of \
             this distribution cannot be used ({why}): {}",
            WAYS_OUT.otherwise
        );
        Error::new(ErrorKind::NotAvailable, message)
    })
}

fn fill(folder: &Path, watcher: &mut dyn Watcher) -> Result<String, Error> {
    let mut name = PACKAGE.to_owned();
    for offer in apt::missing(&[PACKAGE.to_owned()], &WAYS_OUT, watcher).map_err(of_packages)? {
        let package = apt::fetch(folder, &offer, &WAYS_OUT, watcher).map_err(of_packages)?;
        apt::unpack(folder, &package, &offer.name, &WAYS_OUT, watcher).map_err(of_packages)?;
        if offer.name == PACKAGE {
            name = format!("{PACKAGE}-{}", offer.version);
        }
    }
    Ok(name)
}

fn of_packages(error: pagelab_packages::error::Error) -> Error {
    let kind = match error.kind() {
        Kind::NotAvailable => ErrorKind::NotAvailable,
        Kind::Refused => ErrorKind::Refused,
        Kind::Stopped(signal) => ErrorKind::Stopped(signal),
    };
    let message = format!("the source `exact` needs QEMU's user mode ({NAME}): {error}");
    Error::new(kind, message)
}

fn stopped(signal: i32) -> Error {
    Error::new(ErrorKind::Stopped(signal), format!("stopped by signal {signal}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_the_interface_are_taken_and_others_refused_with_the_reason() {
        let cases = [
            ("7.2.22", None),
            ("6.2.0", None),
            ("8.2.2", None),
            ("7.2", None),
            ("6.1.1", Some("before 6.2")),
            ("5.2.0", Some("before 6.2")),
            ("9.0.0", Some("version 2")),
            ("10.0.2", Some("version 2")),
            ("11.0.0-rc1", Some("version 2")),
            ("8", Some("no release")),
            ("v8.2", Some("no release")),
        ];
        for (version, why) in cases {
            let said = takes_the_plugin(version).err();
            assert_eq!(said.is_some(), why.is_some(), "{version}: {said:?}");
            assert!(said.unwrap_or_default().contains(why.unwrap_or_default()), "{version}: {said:?}");
        }
    }
}
