//! Fetching a distribution's kernel without installing it: `apt-get download`, `dpkg-deb -x`, the cache.

use std::fs;
use std::io;
use std::path::Path;

use pagelab_packages::apt::{self, Offer, Watcher, WaysOut};

use crate::cache::{Cache, numbers};
use crate::error::{Error, Kind};
use crate::kernel::{Kernel, Package, is_of_series};

/// What can be done where nothing can be fetched.
const WAYS_OUT: WaysOut = WaysOut {
    otherwise: "--kernel PATH takes a kernel that is there",
    elsewhere: "--cache DIR or XDG_CACHE_HOME",
};

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
        let ran = apt::ask("apt-cache", &["pkgnames", &prefix], &WAYS_OUT, watcher)?;
        let mut names: Vec<String> =
            ran.stdout.lines().filter(|name| is_cloud_kernel(name, wanted)).map(str::to_owned).collect();
        names.sort_by_cached_key(|name| numbers(name));
        names.reverse();
        names
    };
    for name in &names {
        if let Some(offer) = apt::offer(name, &WAYS_OUT, watcher)? {
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

/// Fetches and unpacks a package into `partial`.
fn fetch(partial: &Path, offer: &Offer, watcher: &mut dyn Watcher) -> Result<Package, Error> {
    let Offer { name, version, .. } = offer;
    let package = apt::fetch(partial, offer, &WAYS_OUT, watcher)?;
    watcher.progress("unpacking");
    apt::unpack(partial, &package, name, &WAYS_OUT, watcher)?;
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
}
