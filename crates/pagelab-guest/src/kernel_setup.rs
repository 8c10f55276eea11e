//! Download of a distribution kernel without installing it: `apt-get download`, `dpkg-deb -x`, the cache.

use std::fs;
use std::io;
use std::path::Path;

use pagelab_model::{Failure, FailureKind};
use pagelab_packages::apt::{self, FetchHints, FetchObserver, PackageRecord};

use crate::cache::{KernelCache, read_kernel, version_numbers, write_record};
use crate::kernel::{GuestKernel, KernelPackage, matches_series};

/// Hint if no download is possible.
const FETCH_HINTS: FetchHints = FetchHints {
    alternative: "use --kernel PATH for an existing kernel",
    manual_download: "--cache DIR or XDG_CACHE_HOME",
};

/// What to do about a cache that cannot be used.
const REMEDY: &str = "use --cache DIR or XDG_CACHE_HOME";

/// Fetches the newest kernel of a series (`6.1`) or a package (`linux-image-…`) into the cache, unless it is
/// there.
pub fn set_up_kernel(
    cache: &KernelCache,
    selector: &str,
    observer: &mut dyn FetchObserver,
) -> Result<GuestKernel, Failure> {
    let record = find_newest(selector, observer)?;
    let matches = |kernel: &GuestKernel| {
        kernel.package.as_ref().is_some_and(|p| p.name == record.name && p.version == record.version)
    };
    if let Some(kernel) = cache.list_kernels().into_iter().find(matches) {
        return Ok(kernel);
    }
    let waiting_message = "another pagelab process was downloading a kernel";
    let lock = cache.store().lock_observed(waiting_message, REMEDY, observer)?;
    if let Some(kernel) = cache.list_kernels().into_iter().find(matches) {
        return Ok(kernel);
    }
    let fetch_error = |error: io::Error| cache.store().access_error(&error, REMEDY);
    let place = cache.store().build_entry(&lock, fetch_error, |partial| {
        let package = fetch_kernel(partial, &record, observer)?;
        write_record(partial, &package).map_err(fetch_error)
    })?;
    let damaged = || fetch_error(io::Error::other(format!("{}: incomplete", place.display())));
    read_kernel(&place).ok_or_else(damaged)
}

/// Newest package that matches the request.
fn find_newest(selector: &str, observer: &mut dyn FetchObserver) -> Result<PackageRecord, Failure> {
    let names = if is_package(selector) {
        vec![selector.to_owned()]
    } else {
        let prefix = format!("linux-image-{selector}");
        let ran = apt::query_apt("apt-cache", &["pkgnames", &prefix], &FETCH_HINTS, observer)?;
        let mut names: Vec<String> =
            ran.stdout.lines().filter(|name| is_cloud_kernel(name, selector)).map(str::to_owned).collect();
        names.sort_by_cached_key(|name| version_numbers(name));
        names.reverse();
        names
    };
    for name in &names {
        if let Some(record) = apt::find_package(name, &FETCH_HINTS, observer)? {
            return Ok(record);
        }
    }
    let why = if is_package(selector) {
        format!("cannot find package {selector} in apt's package lists")
    } else {
        format!("cannot find a linux-image-{selector}…-cloud-amd64 package in apt's package lists")
    };
    let hint = "run `apt-get update` as root, or use --kernel PATH for an existing kernel";
    Err(Failure::new(FailureKind::NotAvailable, format!("{why}; hint: {hint}")))
}

fn is_package(selector: &str) -> bool {
    selector.starts_with("linux-image-")
}

/// Whether this is the name of a signed cloud kernel of a series, and not of a list, a debug or unsigned one.
fn is_cloud_kernel(name: &str, series: &str) -> bool {
    let release = name.strip_prefix("linux-image-");
    release.is_some_and(|release| {
        release.ends_with("-cloud-amd64")
            && matches_series(release, series)
            && !release.starts_with(&format!("{series}-cloud"))
    })
}

/// Fetches and unpacks a package into `partial`.
fn fetch_kernel(
    partial: &Path,
    record: &PackageRecord,
    observer: &mut dyn FetchObserver,
) -> Result<KernelPackage, Failure> {
    let PackageRecord { name, version, .. } = record;
    let package = apt::fetch_package(partial, record, &FETCH_HINTS, observer)?;
    observer.report_progress("unpacking");
    apt::unpack_package(partial, &package, name, &FETCH_HINTS, observer)?;
    // It was not requested by name: the package is at fault.
    let kernel = GuestKernel::open(partial, None)
        .map_err(|error| Failure::new(FailureKind::NotAvailable, format!("cannot boot {name}: {error}")))?;
    let image_bytes = fs::metadata(&kernel.image).map_or(0, |meta| meta.len());
    Ok(KernelPackage {
        name: name.clone(),
        version: version.clone(),
        sha256: record.sha256.clone(),
        package_bytes: record.size_bytes,
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
