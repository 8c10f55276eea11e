//! Fetching a distribution's kernel without installing it: `apt-get download`, `dpkg-deb -x`, the cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Cache, numbers};
use crate::console::printable;
use crate::error::{Error, Kind};
use crate::kernel::{Kernel, Package, is_of_series};
use crate::program::{self, NoAnswer, Ran};

/// Asking a package list takes well below a second.
const ASK: Duration = Duration::from_secs(60);
/// 35 MB over a slow line.
const FETCH: Duration = Duration::from_secs(15 * 60);
const UNPACK: Duration = Duration::from_secs(5 * 60);

/// What whoever fetches a kernel tells and asks.
pub trait Watcher {
    /// A line of progress.
    fn progress(&mut self, line: &str);
    /// The number of the signal that asked to stop.
    fn stop(&mut self) -> Option<i32>;
}

/// A kernel's package as the lists have it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    name: String,
    version: String,
    sha256: String,
    bytes: u64,
}

/// Fetches the newest kernel of a series (`6.1`) or a package (`linux-image-…`) into the cache, unless it is
/// there.
pub fn setup(cache: &Cache, wanted: &str, watcher: &mut dyn Watcher) -> Result<Kernel, Error> {
    let offer = newest(wanted, watcher)?;
    let is_it = |kernel: &Kernel| {
        kernel.package.as_ref().is_some_and(|p| p.name == offer.name && p.version == offer.version)
    };
    if let Some(kernel) = cache.kernels().into_iter().find(is_it) {
        return Ok(kernel);
    }
    let refused = |error: io::Error| unusable(cache, &error);
    let mut signal = None;
    let mut waits = false;
    let locked = cache.lock(&mut || waits = true, &mut || {
        signal = watcher.stop();
        signal.is_some()
    });
    let Some(locked) = locked.map_err(refused)? else {
        return Err(Error::stopped(signal.unwrap_or(0)));
    };
    if waits {
        watcher.progress("another pagelab was fetching a kernel");
    }
    if let Some(kernel) = cache.kernels().into_iter().find(is_it) {
        return Ok(kernel);
    }
    let partial = cache.begin(&locked).map_err(refused)?;
    let made = fetch(&partial, &offer, watcher)
        .and_then(|package| cache.finish(&locked, &partial, &package).map_err(refused));
    if made.is_err() {
        // What cannot be removed now is removed by the next setup.
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

fn unusable(cache: &Cache, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::NotAvailable,
        _ => Kind::Refused,
    };
    let way_out = "--cache DIR or XDG_CACHE_HOME keeps kernels elsewhere";
    Error::new(kind, format!("cannot use {}: {error}; {way_out}", cache.folder().display()))
}

/// The newest package for what is wanted.
fn newest(wanted: &str, watcher: &mut dyn Watcher) -> Result<Offer, Error> {
    let names = if is_package(wanted) {
        vec![wanted.to_owned()]
    } else {
        let prefix = format!("linux-image-{wanted}");
        let ran = apt("apt-cache", &["pkgnames", &prefix], watcher)?;
        let mut names: Vec<String> =
            ran.stdout.lines().filter(|name| is_cloud_kernel(name, wanted)).map(str::to_owned).collect();
        names.sort_by_cached_key(|name| numbers(name));
        names.reverse();
        names
    };
    // A name can be known only because something once depended on it; such a name has no offer.
    for name in &names {
        let ran = apt("apt-cache", &["show", "--no-all-versions", name], watcher)?;
        if let Some(offer) = offer(&ran.stdout) {
            return Ok(offer);
        }
    }
    let why = if is_package(wanted) {
        format!("apt knows no package {wanted}")
    } else {
        format!("apt knows no kernel package linux-image-{wanted}…-cloud-amd64")
    };
    let way_out =
        "`apt-get update` as root brings the lists up to date; --kernel PATH takes a kernel that is there";
    Err(Error::new(Kind::NotAvailable, format!("{why}: {way_out}")))
}

fn is_package(wanted: &str) -> bool {
    wanted.starts_with("linux-image-")
}

/// Whether this is the name of a signed cloud kernel of a series, and not of a list, a debug or unsigned one.
fn is_cloud_kernel(name: &str, series: &str) -> bool {
    let release = name.strip_prefix("linux-image-");
    release.is_some_and(|release| {
        release.ends_with("-cloud-amd64")
            && is_of_series(release, series)
            && !release.starts_with(&format!("{series}-cloud"))
    })
}

/// The first record of `apt-cache show`.
fn offer(text: &str) -> Option<Offer> {
    let record = text.split("\n\n").next()?;
    let field = |name: &str| {
        let line = record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    let bytes = field("Size")?.parse().ok()?;
    Some(Offer { name: field("Package")?, version: field("Version")?, sha256: field("SHA256")?, bytes })
}

/// Fetches and unpacks a package into `partial`.
fn fetch(partial: &Path, offer: &Offer, watcher: &mut dyn Watcher) -> Result<Package, Error> {
    let Offer { name, version, .. } = offer;
    watcher.progress(&format!("fetching {name} {version}, {} MB", offer.bytes.div_ceil(1_000_000)));
    let mut get = Command::new("apt-get");
    // Root would hand the download to a user who may not write here.
    get.args([
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "Acquire::Retries=2",
        "-o",
        "Acquire::http::Timeout=30",
    ]);
    get.args(["--quiet", "download", &format!("{name}={version}")]).current_dir(partial);
    let ran = answered("apt-get", program::run(&mut get, FETCH, &mut || watcher.stop()))?;
    if !ran.status.success() {
        let way_out = "is there a network? --kernel PATH takes a kernel that is there";
        return Err(failed(&format!("cannot fetch {name}"), &ran, way_out));
    }
    let package = only_deb(partial)?;
    let bytes = fs::metadata(&package).map_or(0, |meta| meta.len());
    if bytes != offer.bytes {
        let message = format!("{name} came with {bytes} bytes, {} were due: try again", offer.bytes);
        return Err(Error::new(Kind::NotAvailable, message));
    }
    watcher.progress("unpacking");
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(&package).arg(partial);
    let ran = answered("dpkg-deb", program::run(&mut unpack, UNPACK, &mut || watcher.stop()))?;
    if !ran.status.success() {
        return Err(failed(&format!("cannot unpack {name}"), &ran, "is the disk full?"));
    }
    let removed = fs::remove_file(&package);
    removed.map_err(|error| Error::refused(format!("cannot remove {}", package.display()), error))?;
    // Nobody named this one: the package is at fault.
    let kernel = Kernel::at(partial, None).map_err(|error| {
        Error::new(Kind::NotAvailable, format!("{name} is no kernel that boots: {error}"))
    })?;
    let image_bytes = fs::metadata(&kernel.image).map_or(0, |meta| meta.len());
    Ok(Package {
        name: name.clone(),
        version: version.clone(),
        sha256: offer.sha256.clone(),
        package_bytes: offer.bytes,
        release: kernel.release,
        image_bytes,
    })
}

fn only_deb(folder: &Path) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut debs = entries.filter(|path| path.extension().is_some_and(|extension| extension == "deb"));
    debs.next().ok_or_else(|| {
        Error::new(
            Kind::NotAvailable,
            "apt-get said that it fetched the package, and there is none: try again",
        )
    })
}

fn apt(program: &str, arguments: &[&str], watcher: &mut dyn Watcher) -> Result<Ran, Error> {
    answered(program, program::run(Command::new(program).args(arguments), ASK, &mut || watcher.stop()))
}

fn answered(program: &str, ran: Result<Ran, NoAnswer>) -> Result<Ran, Error> {
    ran.map_err(|why| match why {
        NoAnswer::NotThere => {
            let way_out = "kernels are fetched with apt and dpkg; --kernel PATH takes a kernel that is there";
            Error::new(Kind::NotAvailable, format!("there is no {program} on this machine: {way_out}"))
        }
        NoAnswer::Failed(error) => Error::refused(format!("cannot run {program}"), error),
        NoAnswer::TooLong(limit) => {
            let message = format!("{program} took more than {} s and was ended: try again", limit.as_secs());
            Error::new(Kind::NotAvailable, message)
        }
        NoAnswer::Stopped(signal) => Error::stopped(signal),
    })
}

/// What a program of the distribution said when it failed. A full disk is told as one.
fn failed(what: &str, ran: &Ran, way_out: &str) -> Error {
    let errors: Vec<&str> = ran.stderr.lines().filter(|line| !line.starts_with("W:")).collect();
    let said = errors.iter().rev().take(2).rev().map(|line| printable(line)).collect::<Vec<_>>().join("; ");
    let said = if said.is_empty() { ran.status.to_string() } else { said };
    let full =
        ["No space left", "Disk quota", "enough free space"].iter().any(|words| ran.stderr.contains(words));
    match full {
        true => {
            let way_out = "make room, or put the cache elsewhere with --cache DIR or XDG_CACHE_HOME";
            Error::new(Kind::Refused, format!("{what}, the disk is full: {said}; {way_out}"))
        }
        false => Error::new(Kind::NotAvailable, format!("{what}: {said}; {way_out}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_a_series_are_told_from_all_that_is_named_alike() {
        for (name, series, is) in [
            ("linux-image-6.1.0-56-cloud-amd64", "6.1", true),
            ("linux-image-6.1.0-56-cloud-amd64-dbg", "6.1", false),
            ("linux-image-6.1.0-56-cloud-amd64-unsigned", "6.1", false),
            ("linux-image-6.12.117+deb12-cloud-amd64", "6.1", false),
            ("linux-image-6.12.117+deb12-cloud-amd64", "6.12", true),
            ("linux-image-6.12-cloud-amd64", "6.12", false),
            ("linux-image-6.1.0-56-amd64", "6.1", false),
        ] {
            assert_eq!(is_cloud_kernel(name, series), is, "{name} {series}");
        }
    }

    #[test]
    fn an_offer_is_read_from_the_first_record() {
        let text = "Package: a\nVersion: 1-2\nSize: 30\nSHA256: ab\nDescription: b\n Size: 7\n\nPackage: c\n";
        let offer = offer(text).unwrap();
        assert_eq!((offer.name.as_str(), offer.version.as_str(), offer.bytes), ("a", "1-2", 30));
        assert_eq!(super::offer("Package: a\n"), None);
        assert_eq!(super::offer(""), None);
    }
}
