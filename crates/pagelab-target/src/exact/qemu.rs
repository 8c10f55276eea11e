//! QEMU's user mode: from PATH, or from the distribution's package, unpacked and not installed.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flate2::read::GzDecoder;
use pagelab_packages::apt::{self, FetchHints, FetchObserver, PackageRecord};
use pagelab_packages::program;
use pagelab_packages::store::DirectoryStore;
use pagelab_tlb::engine::account_layout;

use pagelab_model::{Failure, FailureKind};

const NAME: &str = "qemu-x86_64";
/// The package that has it, with its libraries.
const PACKAGE: &str = "qemu-user";
/// The plugin, as build.rs made and compressed it; empty on other machines than x86-64 with glibc.
const COMPRESSED_PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tlb-trace.so.gz"));
/// Directory of the plugin in the cache.
pub const PLUGIN_DIR: &str = "plugins";
/// The loader of programs that are linked dynamically (the System V ABI of x86-64).
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Releases that are taken, (major, minor). 7.2 was tried. From 6.2 on, a plugin is handed its arguments as
/// `name=value` (commit 3a445acb4911); from 9.0 on, QEMU's interface begins with version 2, since functions
/// of version 1 were removed (`QEMU_PLUGIN_MIN_VERSION` of plugins/plugin.h), and the plugin is of version 1.
const RELEASES: std::ops::RangeInclusive<(u32, u32)> = (6, 2)..=(8, 2);
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
const FETCH_HINTS: FetchHints = FetchHints {
    alternative: "put qemu-x86_64 6.2 to 8.2, built with plugin support, into PATH, or use --source accessed",
    manual_download: "XDG_CACHE_HOME",
};

/// A QEMU that can be used, and the plugin.
#[derive(Debug)]
pub struct Qemu {
    /// Its path.
    pub program: PathBuf,
    /// Folders of its libraries, where it is not installed.
    libraries: Option<String>,
    /// Reported version.
    pub version: String,
    plugin: PathBuf,
}

/// The source of QEMU.
#[derive(Debug)]
pub enum QemuSource {
    /// One that is there.
    Available(Qemu),
    /// Not installed: these packages would be downloaded.
    ToFetch(Vec<PackageRecord>),
}

impl Qemu {
    /// The one that is there, or is fetched now.
    pub fn find_or_fetch(cache: Option<&Path>, observer: &mut dyn FetchObserver) -> Result<Qemu, Failure> {
        check_platform()?;
        let plugin = install_plugin(cache)?;
        match Qemu::find_existing(cache, &plugin, observer)? {
            Ok(qemu) => Ok(qemu),
            Err((why, store)) => {
                observer.report_progress(&format!(
                    "{why}: downloading the package {PACKAGE} without installing it"
                ));
                fetch_qemu(&store, &plugin, observer)
            }
        }
    }

    /// Result of [`Qemu::find_or_fetch`] without writing anything.
    pub fn preview_source(
        cache: Option<&Path>,
        observer: &mut dyn FetchObserver,
    ) -> Result<QemuSource, Failure> {
        check_platform()?;
        match Qemu::find_existing(cache, Path::new(""), observer)? {
            Ok(qemu) => Ok(QemuSource::Available(qemu)),
            Err(_) => {
                let offers = apt::find_missing(&[PACKAGE.to_owned()], &FETCH_HINTS, observer);
                offers.map(QemuSource::ToFetch).map_err(convert_package_error)
            }
        }
    }

    /// Existing QEMU, or the reason why there is none and the directory for it.
    fn find_existing(
        cache: Option<&Path>,
        plugin: &Path,
        observer: &mut dyn FetchObserver,
    ) -> Result<Result<Qemu, (String, DirectoryStore)>, Failure> {
        let mut reason = format!("no {NAME} in PATH");
        if let Some(path) = program::find_program(Path::new(NAME)) {
            match check_version(&path, None, observer)? {
                Ok(version) => {
                    let plugin = plugin.to_owned();
                    return Ok(Ok(Qemu { program: path, libraries: None, version, plugin }));
                }
                Err(unfit) => reason = unfit,
            }
        }
        let cache = cache.ok_or_else(|| {
            Failure::not_available(format!(
                "cannot find QEMU user mode: {reason}; hint: set XDG_CACHE_HOME or HOME, so that it can be \
                 downloaded"
            ))
        })?;
        let store = DirectoryStore::new(cache.join(PACKAGE));
        for entry in store.entries() {
            match open_unpacked(&entry, plugin, observer)? {
                Ok(qemu) => return Ok(Ok(qemu)),
                Err(unfit) => reason = unfit,
            }
        }
        Ok(Err((reason, store)))
    }

    /// Program and arguments up to the profiled program.
    pub fn command(&self, account: &str) -> (&Path, Vec<String>) {
        let mut arguments = Vec::new();
        let mut launcher = self.program.as_path();
        if let Some(libraries) = &self.libraries {
            launcher = Path::new(LOADER);
            arguments.extend(["--library-path".to_owned(), libraries.clone()]);
            arguments.push(self.program.display().to_string());
        }
        arguments.push("-plugin".to_owned());
        // The launcher, these arguments, and the plugin itself.
        let prefix = arguments.len() + 2;
        let plugin = self.plugin.display().to_string().replace(',', ",,");
        arguments.push(format!("{plugin}{}prefix={prefix}", account_argument(account)));
        (launcher, arguments)
    }
}

/// The part of the plugin's argument that every QEMU of one profile has, also after fork and exec.
pub fn account_argument(account: &str) -> String {
    format!(",account={account},")
}

fn check_platform() -> Result<(), Failure> {
    if COMPRESSED_PLUGIN.is_empty() {
        return Err(Failure::not_available(
            "cannot profile with --source exact: it needs x86-64 and glibc; hint: use --source accessed",
        ));
    }
    Ok(())
}

/// Plugin in the cache, named by its contents.
fn install_plugin(cache: Option<&Path>) -> Result<PathBuf, Failure> {
    let directory = cache.map_or_else(std::env::temp_dir, |cache| cache.join(PLUGIN_DIR));
    let plugin_path =
        directory.join(format!("tlb-trace-{:016x}.so", account_layout::fnv1a(COMPRESSED_PLUGIN)));
    let write = || -> io::Result<()> {
        let mut plugin = Vec::new();
        GzDecoder::new(COMPRESSED_PLUGIN).read_to_end(&mut plugin)?;
        if fs::read(&plugin_path).is_ok_and(|existing| existing == plugin) {
            return Ok(());
        }
        fs::create_dir_all(&directory)?;
        let partial = directory.join(format!(".tlb-trace-{}", std::process::id()));
        fs::write(&partial, plugin)?;
        fs::rename(&partial, &plugin_path)
    };
    write().map_err(|error| {
        Failure::refused(format!(
            "cannot store the QEMU plugin in {}: {error}; hint: set XDG_CACHE_HOME",
            directory.display()
        ))
    })?;
    Ok(plugin_path)
}

/// Version of a usable QEMU, or the reason why it is not usable.
fn check_version(
    path: &Path,
    libraries: Option<&str>,
    observer: &mut dyn FetchObserver,
) -> Result<Result<String, String>, Failure> {
    let mut run_query = |what: &str| {
        let mut command = match libraries {
            None => Command::new(path),
            Some(libraries) => {
                let mut command = Command::new(LOADER);
                command.args(["--library-path", libraries]).arg(path);
                command
            }
        };
        match program::run_command(command.arg(what), QUERY_TIMEOUT, &mut || observer.stop_signal()) {
            Ok(ran) => Ok(ran.stdout),
            Err(program::CommandError::Stopped(signal)) => Err(stop_error(signal)),
            Err(_) => Ok(String::new()),
        }
    };
    let output = run_query("-version")?;
    let name = path.display();
    let version = output.split_once("version ").and_then(|(_, rest)| rest.split([' ', '\n']).next());
    let Some(version) = version.filter(|version| !version.is_empty()) else {
        return Ok(Err(format!("{name} does not report its version")));
    };
    if let Err(why) = check_plugin_interface(version) {
        return Ok(Err(format!("{name} is {version}: {why}")));
    }
    if !run_query("-h")?.contains("-plugin") {
        return Ok(Err(format!("{name} {version} was built without plugins")));
    }
    Ok(Ok(version.to_owned()))
}

/// Whether a QEMU of this version takes the plugin, or why it does not.
fn check_plugin_interface(version: &str) -> Result<(), &'static str> {
    let mut numbers = version.split(['.', '-', '+', '~']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err("it contains no version number");
    };
    if (major, minor) < *RELEASES.start() {
        return Err("releases before 6.2 pass plugin arguments in a different format");
    }
    if (major, minor) > *RELEASES.end() {
        return Err(
            "QEMU 9.0 and later support only plugin API version 2, and pagelab's plugin uses version 1",
        );
    }
    Ok(())
}

/// Reads a folder of the store; the error is the reason why it cannot be used.
fn open_unpacked(
    root: &Path,
    plugin: &Path,
    observer: &mut dyn FetchObserver,
) -> Result<Result<Qemu, String>, Failure> {
    let program = root.join("usr/bin").join(NAME);
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib", "lib"];
    let folders: Vec<String> = folders.iter().map(|part| root.join(part).display().to_string()).collect();
    let libraries = folders.join(":");
    let version = check_version(&program, Some(&libraries), observer)?;
    Ok(version.map(|version| Qemu {
        program,
        libraries: Some(libraries),
        version,
        plugin: plugin.to_owned(),
    }))
}

fn fetch_qemu(
    store: &DirectoryStore,
    plugin: &Path,
    observer: &mut dyn FetchObserver,
) -> Result<Qemu, Failure> {
    let to_error = |error: io::Error| {
        let folder = store.dir().display();
        Failure::refused(format!("cannot use {folder}: {error}; hint: set XDG_CACHE_HOME"))
    };
    let mut signal = None;
    let locked = store.lock(&mut || {}, &mut || {
        signal = observer.stop_signal();
        signal.is_some()
    });
    let locked = locked.map_err(to_error)?.ok_or_else(|| stop_error(signal.unwrap_or(0)))?;
    for entry in store.entries() {
        if let Ok(qemu) = open_unpacked(&entry, plugin, observer)? {
            return Ok(qemu);
        }
    }
    let entry_path = store.build_entry(&locked, to_error, |partial| unpack_packages(partial, observer))?;
    open_unpacked(&entry_path, plugin, observer)?.map_err(|why| {
        Failure::not_available(format!(
            "cannot profile with --source exact: QEMU from the package {PACKAGE} is unusable: {why}; hint: \
             {}",
            FETCH_HINTS.alternative
        ))
    })
}

fn unpack_packages(directory: &Path, observer: &mut dyn FetchObserver) -> Result<String, Failure> {
    let mut name = PACKAGE.to_owned();
    for record in
        apt::find_missing(&[PACKAGE.to_owned()], &FETCH_HINTS, observer).map_err(convert_package_error)?
    {
        let package =
            apt::fetch_package(directory, &record, &FETCH_HINTS, observer).map_err(convert_package_error)?;
        apt::unpack_package(directory, &package, &record.name, &FETCH_HINTS, observer)
            .map_err(convert_package_error)?;
        if record.name == PACKAGE {
            name = format!("{PACKAGE}-{}", record.version);
        }
    }
    Ok(name)
}

fn convert_package_error(failure: Failure) -> Failure {
    let message =
        format!("cannot profile with --source exact: QEMU user mode ({NAME}) is missing: {failure}");
    Failure::new(failure.kind(), message)
}

fn stop_error(signal: i32) -> Failure {
    Failure::new(FailureKind::Stopped(signal), format!("stopped by signal {signal}"))
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
            ("9.0.0", Some("API version 2")),
            ("10.0.2", Some("API version 2")),
            ("11.0.0-rc1", Some("API version 2")),
            ("8", Some("no version number")),
            ("v8.2", Some("no version number")),
        ];
        for (version, why) in cases {
            let said = check_plugin_interface(version).err();
            assert_eq!(said.is_some(), why.is_some(), "{version}: {said:?}");
            assert!(said.unwrap_or_default().contains(why.unwrap_or_default()), "{version}: {said:?}");
        }
    }
}
