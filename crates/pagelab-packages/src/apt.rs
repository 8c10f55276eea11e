//! Asking the package lists of this machine, fetching packages and unpacking them: `apt-cache`, `apt-get`,
//! `dpkg-deb`, all as any user may use them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Kind};
use crate::program::{self, NoAnswer, Ran, printable};

/// Asking a package list takes well below a second; working out dependencies some.
const ASK: Duration = Duration::from_secs(120);
/// 140 MB over a slow line.
const FETCH: Duration = Duration::from_secs(30 * 60);
const UNPACK: Duration = Duration::from_secs(10 * 60);
/// What is asked about at once; each record is some kilobytes.
const ASKED_AT_ONCE: usize = 50;

/// What whoever fetches something tells and asks.
pub trait Watcher {
    /// A line of progress.
    fn progress(&mut self, line: &str);
    /// The number of the signal that asked to stop.
    fn stop(&mut self) -> Option<i32>;
}

/// A package as the lists have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the package in hexadecimal, as the distribution's signed list has it; apt checks it.
    pub sha256: String,
    /// Bytes of the package.
    pub bytes: u64,
}

/// Ways out that depend on what is fetched for what.
#[derive(Clone, Copy, Debug)]
pub struct WaysOut {
    /// What can be done without apt or without a network, as a phrase.
    pub otherwise: &'static str,
    /// How the packages are kept elsewhere, as a phrase.
    pub elsewhere: &'static str,
}

/// What a package's list says of one package; `None` if there is no such one.
pub fn offer(name: &str, ways_out: &WaysOut, watcher: &mut dyn Watcher) -> Result<Option<Offer>, Error> {
    // A name can be known only because something once depended on it; such a name has no offer.
    let ran = ask("apt-cache", &["show", "--no-all-versions", name], ways_out, watcher)?;
    Ok(first_offer(&ran.stdout))
}

/// Runs one of the programs that know the lists.
pub fn ask(
    program: &str,
    arguments: &[&str],
    ways_out: &WaysOut,
    watcher: &mut dyn Watcher,
) -> Result<Ran, Error> {
    let ran = program::run(Command::new(program).args(arguments), ASK, &mut || watcher.stop());
    answered(program, ran, ways_out)
}

/// These packages and all that they need and that is not installed, in the versions that apt would install.
pub fn missing(names: &[String], ways_out: &WaysOut, watcher: &mut dyn Watcher) -> Result<Vec<Offer>, Error> {
    let mut arguments = vec!["--simulate", "--quiet", "--no-install-recommends", "install"];
    arguments.extend(names.iter().map(String::as_str));
    let ran = ask("apt-get", &arguments, ways_out, watcher)?;
    if !ran.status.success() {
        let update = "`apt-get update` as root brings the lists up to date";
        let way_out = format!("{update}; {}", ways_out.otherwise);
        return Err(failed(&format!("apt offers no {}", names.join(", ")), &ran, &way_out, ways_out));
    }
    let wanted: Vec<String> = to_be_installed(&ran.stdout);
    let mut offers = Vec::new();
    for part in wanted.chunks(ASKED_AT_ONCE) {
        let mut arguments = vec!["show"];
        arguments.extend(part.iter().map(String::as_str));
        let ran = ask("apt-cache", &arguments, ways_out, watcher)?;
        let known: Vec<Offer> = ran.stdout.split("\n\n").filter_map(first_offer).collect();
        for name in part {
            let it = known.iter().find(|offer| format!("{}={}", offer.name, offer.version) == *name);
            offers.push(it.cloned().ok_or_else(|| {
                Error::not_available(format!(
                    "apt would install {name}, and its lists do not tell of it: {}",
                    ways_out.otherwise
                ))
            })?);
        }
    }
    Ok(offers)
}

/// `NAME=VERSION` of the lines `Inst NAME [OLD] (VERSION …`.
fn to_be_installed(said: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let rest = line.strip_prefix("Inst ")?;
        let (name, rest) = rest.split_once(' ')?;
        let version = rest.split_once('(')?.1.split([' ', ')']).next()?;
        // Another architecture stands behind the name.
        let name = name.split(':').next().unwrap_or(name);
        Some(format!("{name}={version}"))
    };
    said.lines().filter_map(of_line).collect()
}

/// The first record of `apt-cache show`.
fn first_offer(text: &str) -> Option<Offer> {
    let record = text.split("\n\n").next()?;
    let field = |name: &str| {
        let line = record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    let bytes = field("Size")?.parse().ok()?;
    Some(Offer { name: field("Package")?, version: field("Version")?, sha256: field("SHA256")?, bytes })
}

/// Fetches a package into `folder`, checks that it is whole, and gives its file.
pub fn fetch(
    folder: &Path,
    offer: &Offer,
    ways_out: &WaysOut,
    watcher: &mut dyn Watcher,
) -> Result<PathBuf, Error> {
    let Offer { name, version, .. } = offer;
    watcher.progress(&format!("fetching {name} {version}, {} MB", offer.bytes.div_ceil(1_000_000)));
    let mut get = Command::new("apt-get");
    // Root would hand the download to a user who may not write here.
    get.args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2"]);
    get.args(["-o", "Acquire::http::Timeout=30"]);
    get.args(["--quiet", "download", &format!("{name}={version}")]).current_dir(folder);
    let ran = answered("apt-get", program::run(&mut get, FETCH, &mut || watcher.stop()), ways_out)?;
    if !ran.status.success() {
        let way_out = format!("is there a network? {}", ways_out.otherwise);
        return Err(failed(&format!("cannot fetch {name}"), &ran, &way_out, ways_out));
    }
    let package = only_deb(folder)?;
    let bytes = fs::metadata(&package).map_or(0, |meta| meta.len());
    if bytes != offer.bytes {
        let message = format!("{name} came with {bytes} bytes, {} were due: try again", offer.bytes);
        return Err(Error::not_available(message));
    }
    Ok(package)
}

/// Unpacks a package below `folder` and removes its file.
pub fn unpack(
    folder: &Path,
    package: &Path,
    name: &str,
    ways_out: &WaysOut,
    watcher: &mut dyn Watcher,
) -> Result<(), Error> {
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(package).arg(folder);
    let ran = answered("dpkg-deb", program::run(&mut unpack, UNPACK, &mut || watcher.stop()), ways_out)?;
    if !ran.status.success() {
        return Err(failed(&format!("cannot unpack {name}"), &ran, "is the disk full?", ways_out));
    }
    let removed = fs::remove_file(package);
    removed.map_err(|error| Error::refused(format!("cannot remove {}", package.display()), error))
}

fn only_deb(folder: &Path) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut debs = entries.filter(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let why = "apt-get said that it fetched the package, and there is none: try again";
    debs.next().ok_or_else(|| Error::not_available(why))
}

fn answered(program: &str, ran: Result<Ran, NoAnswer>, ways_out: &WaysOut) -> Result<Ran, Error> {
    ran.map_err(|why| match why {
        NoAnswer::NotThere => {
            let otherwise = ways_out.otherwise;
            let message = format!(
                "there is no {program} on this machine: packages are fetched with apt and dpkg; {otherwise}"
            );
            Error::not_available(message)
        }
        NoAnswer::Failed(error) => Error::refused(format!("cannot run {program}"), error),
        NoAnswer::TooLong(limit) => {
            let message = format!("{program} took more than {} s and was ended: try again", limit.as_secs());
            Error::not_available(message)
        }
        NoAnswer::Stopped(signal) => Error::stopped(signal),
    })
}

/// What a program said when it failed. A full disk is told as one.
pub fn failed(what: &str, ran: &Ran, way_out: &str, ways_out: &WaysOut) -> Error {
    let errors: Vec<&str> = ran.stderr.lines().filter(|line| !line.starts_with("W:")).collect();
    let said = errors.iter().rev().take(2).rev().map(|line| printable(line)).collect::<Vec<_>>().join("; ");
    let said = if said.is_empty() { ran.status.to_string() } else { said };
    let full =
        ["No space left", "Disk quota", "enough free space"].iter().any(|words| ran.stderr.contains(words));
    match full {
        true => {
            let elsewhere = ways_out.elsewhere;
            let way_out = format!("make room, or put the cache elsewhere with {elsewhere}");
            Error::new(Kind::Refused, format!("{what}, the disk is full: {said}; {way_out}"))
        }
        false => Error::not_available(format!("{what}: {said}; {way_out}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_from_the_first_record() {
        let text = "Package: a\nVersion: 1-2\nSize: 30\nSHA256: ab\nDescription: b\n Size: 7\n\nPackage: c\n";
        let offer = first_offer(text).unwrap();
        assert_eq!((offer.name.as_str(), offer.version.as_str(), offer.bytes), ("a", "1-2", 30));
        assert_eq!(first_offer("Package: a\n"), None);
        assert_eq!(first_offer(""), None);
    }

    #[test]
    fn what_apt_would_install_is_read_from_its_simulation() {
        let said = "Reading package lists...\n\
            Inst libjemalloc2 (5.3.0-1 Debian:12.15/oldstable [amd64])\n\
            Inst libpq5 [15.18-0+deb12u1] (15.20-0+deb12u1 Debian-Security:12/x [amd64]) []\n\
            Inst libc6:i386 (2.36-9 Debian:12 [i386])\nConf libjemalloc2 (5.3.0-1 Debian [amd64])\n";
        let wanted = ["libjemalloc2=5.3.0-1", "libpq5=15.20-0+deb12u1", "libc6=2.36-9"];
        assert_eq!(to_be_installed(said), wanted);
        assert!(to_be_installed("Inst\nInst x\nInst x y\n").is_empty());
    }
}
