//! Queries of the package lists, downloads and unpacking: `apt-cache`, `apt-get`, `dpkg-deb`, without root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::program::{self, CommandError, CommandOutput, printable};
use pagelab_model::{Failure, FailureKind};

/// Asking a package list takes well below a second; working out dependencies some.
const QUERY_TIMEOUT: Duration = Duration::from_secs(120);
/// 140 MB over a slow line.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const UNPACK_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Packages per query; each record is some kilobytes.
const QUERY_BATCH: usize = 50;

/// Callbacks of a download: progress and stop.
pub trait FetchObserver {
    /// A line of progress.
    fn report_progress(&mut self, line: &str);
    /// Number of the stop signal, if one arrived.
    fn stop_signal(&mut self) -> Option<i32>;
}

/// A package as the lists have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRecord {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the package in hexadecimal, as the distribution's signed list has it; apt checks it.
    pub sha256: String,
    /// Bytes of the package.
    pub size_bytes: u64,
}

/// Hints that depend on the purpose of the download.
#[derive(Clone, Copy, Debug)]
pub struct FetchHints {
    /// What can be done without apt or without a network, as a phrase.
    pub alternative: &'static str,
    /// How the packages are kept elsewhere, as a phrase.
    pub manual_download: &'static str,
}

/// What a package's list says of one package; `None` if there is no such one.
pub fn find_package(
    name: &str,
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<Option<PackageRecord>, Failure> {
    // A name can be known only because something once depended on it; such a name has no offer.
    let output = query_apt("apt-cache", &["show", "--no-all-versions", name], hints, observer)?;
    Ok(parse_first_record(&output.stdout))
}

/// Runs one of the programs that know the lists.
pub fn query_apt(
    program: &str,
    arguments: &[&str],
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<CommandOutput, Failure> {
    run(Command::new(program).args(arguments), QUERY_TIMEOUT, hints, observer)
}

/// These packages and all that they need and that is not installed, in the versions that apt would install.
pub fn find_missing(
    names: &[String],
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<Vec<PackageRecord>, Failure> {
    simulate_install(names, &[], hints, observer)
}

/// These packages and all that they need, as if nothing were installed.
pub fn find_with_dependencies(
    names: &[String],
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<Vec<PackageRecord>, Failure> {
    simulate_install(names, &["-o", "Dir::State::status=/dev/null"], hints, observer)
}

fn simulate_install(
    names: &[String],
    options: &[&str],
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<Vec<PackageRecord>, Failure> {
    let mut arguments = vec!["--simulate", "--quiet", "--no-install-recommends"];
    arguments.extend(options);
    arguments.push("install");
    arguments.extend(names.iter().map(String::as_str));
    let output = query_apt("apt-get", &arguments, hints, observer)?;
    if !output.status.success() {
        let action = format!("cannot find {} in apt's package lists", names.join(", "));
        let hint = format!("run `apt-get update` as root; {}", hints.alternative);
        return Err(command_error(&action, &output, &hint, hints));
    }
    let wanted: Vec<String> = parse_simulated_install(&output.stdout);
    let mut records = Vec::new();
    for part in wanted.chunks(QUERY_BATCH) {
        let mut arguments = vec!["show"];
        arguments.extend(part.iter().map(String::as_str));
        let output = query_apt("apt-cache", &arguments, hints, observer)?;
        let known: Vec<PackageRecord> = output.stdout.split("\n\n").filter_map(parse_first_record).collect();
        for name in part {
            let it = known.iter().find(|offer| format!("{}={}", offer.name, offer.version) == *name);
            records.push(it.cloned().ok_or_else(|| {
                Failure::not_available(format!(
                    "cannot fetch {name}: apt-get would install it, but apt-cache does not list it; hint: {}",
                    hints.alternative
                ))
            })?);
        }
    }
    Ok(records)
}

/// `NAME=VERSION` of the lines `Inst NAME [OLD] (VERSION …`.
fn parse_simulated_install(stdout: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let rest = line.strip_prefix("Inst ")?;
        let (name, rest) = rest.split_once(' ')?;
        let version = rest.split_once('(')?.1.split([' ', ')']).next()?;
        // The name ends with another architecture.
        let name = name.split(':').next().unwrap_or(name);
        Some(format!("{name}={version}"))
    };
    stdout.lines().filter_map(of_line).collect()
}

/// The first record of `apt-cache show`.
fn parse_first_record(text: &str) -> Option<PackageRecord> {
    let record = text.split("\n\n").next()?;
    let field = |name: &str| {
        let line = record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    Some(PackageRecord {
        name: field("Package")?,
        version: field("Version")?,
        sha256: field("SHA256")?,
        size_bytes: field("Size")?.parse().ok()?,
    })
}

/// Fetches a package into `folder`, checks that it is whole, and gives its file.
pub fn fetch_package(
    folder: &Path,
    record: &PackageRecord,
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<PathBuf, Failure> {
    let PackageRecord { name, version, size_bytes, .. } = record;
    let megabytes = size_bytes.div_ceil(1_000_000);
    observer.report_progress(&format!("downloading {name} {version}, {megabytes} MB"));
    download(folder, std::slice::from_ref(record), name, hints, observer)?;
    let package = find_single_deb(folder)?;
    let bytes = fs::metadata(&package).map_or(0, |meta| meta.len());
    if bytes != *size_bytes {
        let message =
            format!("cannot fetch {name}: expected {size_bytes} bytes, found {bytes}; hint: try again");
        return Err(Failure::not_available(message));
    }
    Ok(package)
}

/// Fetches packages into an empty `folder`, and gives their files in the order of the records. apt checks
/// each.
pub fn fetch_packages(
    folder: &Path,
    records: &[PackageRecord],
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<Vec<PathBuf>, Failure> {
    let megabytes = records.iter().map(|record| record.size_bytes).sum::<u64>().div_ceil(1_000_000);
    observer.report_progress(&format!("downloading {} packages, {megabytes} MB", records.len()));
    download(folder, records, &format!("{} packages", records.len()), hints, observer)?;
    let files = list_debs(folder);
    let file_of = |record: &PackageRecord| {
        let start = format!("{}_", record.name);
        let is_it = |path: &&PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let bytes = fs::metadata(path).map_or(0, |meta| meta.len());
            name.starts_with(&start) && bytes == record.size_bytes
        };
        files.iter().find(is_it).cloned().ok_or_else(|| {
            let PackageRecord { name, size_bytes, .. } = record;
            let message = format!("cannot fetch {name}: expected {size_bytes} bytes; hint: try again");
            Failure::not_available(message)
        })
    };
    records.iter().map(file_of).collect()
}

fn download(
    folder: &Path,
    records: &[PackageRecord],
    title: &str,
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<(), Failure> {
    let mut get = Command::new("apt-get");
    // Root would hand the download to a user who may not write here.
    get.args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2"]);
    get.args(["-o", "Acquire::http::Timeout=30", "--quiet", "download"]);
    get.args(records.iter().map(|record| format!("{}={}", record.name, record.version)));
    let output = run(get.current_dir(folder), FETCH_TIMEOUT, hints, observer)?;
    if output.status.success() {
        return Ok(());
    }
    let hint = format!("check the network, or {}", hints.alternative);
    Err(command_error(&format!("cannot download {title}"), &output, &hint, hints))
}

/// Unpacks a package below `folder` and removes its file.
pub fn unpack_package(
    folder: &Path,
    package: &Path,
    name: &str,
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<(), Failure> {
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(package).arg(folder);
    let output = run(&mut unpack, UNPACK_TIMEOUT, hints, observer)?;
    if !output.status.success() {
        return Err(command_error(&format!("cannot unpack {name}"), &output, "check for free space", hints));
    }
    let removed = fs::remove_file(package);
    removed.map_err(|error| Failure::system_error(format!("cannot remove {}", package.display()), error))
}

fn find_single_deb(folder: &Path) -> Result<PathBuf, Failure> {
    let why = "apt-get succeeded but left no package file; hint: try again";
    list_debs(folder).into_iter().next().ok_or_else(|| Failure::not_available(why))
}

fn list_debs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect()
}

fn run(
    command: &mut Command,
    timeout: Duration,
    hints: &FetchHints,
    observer: &mut dyn FetchObserver,
) -> Result<CommandOutput, Failure> {
    let output = program::run_command(command, timeout, &mut || observer.stop_signal());
    let program = command.get_program().display();
    output.map_err(|why| match why {
        CommandError::NotFound => {
            let otherwise = hints.alternative;
            let message =
                format!("cannot find {program}: downloading packages needs apt and dpkg; hint: {otherwise}");
            Failure::not_available(message)
        }
        CommandError::RunFailed(error) => Failure::system_error(format!("cannot run {program}"), error),
        CommandError::TimedOut(limit) => {
            let message =
                format!("cannot run {program}: it was killed after {} s; hint: try again", limit.as_secs());
            Failure::not_available(message)
        }
        CommandError::Stopped(signal) => Failure::stopped(signal),
    })
}

/// Output of a failed program. A full disk is reported as such.
pub fn command_error(action: &str, output: &CommandOutput, hint: &str, hints: &FetchHints) -> Failure {
    let errors: Vec<&str> = output.stderr.lines().filter(|line| !line.starts_with("W:")).collect();
    let stdout = errors.iter().rev().take(2).rev().map(|line| printable(line)).collect::<Vec<_>>().join("; ");
    let stdout = if stdout.is_empty() { output.status.to_string() } else { stdout };
    let full = ["No space left", "Disk quota", "enough free space"]
        .iter()
        .any(|words| output.stderr.contains(words));
    match full {
        true => {
            let hint = format!("free space, or move the cache with {}", hints.manual_download);
            Failure::new(FailureKind::Partial, format!("{action}: the disk is full: {stdout}; hint: {hint}"))
        }
        false => Failure::not_available(format!("{action}: {stdout}; hint: {hint}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_from_the_first_record() {
        let text = "Package: a\nVersion: 1-2\nSize: 30\nSHA256: ab\nDescription: b\n Size: 7\n\nPackage: c\n";
        let offer = parse_first_record(text).unwrap();
        assert_eq!((offer.name.as_str(), offer.version.as_str(), offer.size_bytes), ("a", "1-2", 30));
        assert_eq!(parse_first_record("Package: a\n"), None);
        assert_eq!(parse_first_record(""), None);
    }

    #[test]
    fn what_apt_would_install_is_read_from_its_simulation() {
        let stdout = "Reading package lists...\n\
            Inst libjemalloc2 (5.3.0-1 Debian:12.15/oldstable [amd64])\n\
            Inst libpq5 [15.18-0+deb12u1] (15.20-0+deb12u1 Debian-Security:12/x [amd64]) []\n\
            Inst libc6:i386 (2.36-9 Debian:12 [i386])\nConf libjemalloc2 (5.3.0-1 Debian [amd64])\n";
        let wanted = ["libjemalloc2=5.3.0-1", "libpq5=15.20-0+deb12u1", "libc6=2.36-9"];
        assert_eq!(parse_simulated_install(stdout), wanted);
        assert!(parse_simulated_install("Inst\nInst x\nInst x y\n").is_empty());
    }
}
