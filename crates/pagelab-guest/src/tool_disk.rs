//! The tool disk: a compiler and what a build needs, from packages of the distribution, as one ext4 image in
//! the cache. Guests mount it read-only, so each of them finds the same bytes.
//!
//! An entry of `tools/` holds `tools.ext4`, and `tools.json` beside it: the packages and their versions. Its
//! name is the number of the layout and a checksum of them. No package is configured: the few links that its
//! scripts would make are made here.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_formats::checksum::crc32;
use pagelab_model::{Bytes, Failure};
use pagelab_packages::apt::{self, FetchHints, FetchObserver, PackageRecord};
use pagelab_packages::store::DirectoryStore;
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::initramfs::JOB_PATH;

/// What is on the disk, with all that apt resolves for it.
pub const PACKAGES: [&str; 13] = [
    "gcc-12",
    "binutils",
    "make",
    "libc6-dev",
    "dash",
    "coreutils",
    "findutils",
    "tar",
    "sed",
    "grep",
    "mawk",
    "diffutils",
    "plocate",
];
/// Where the agent mounts pagelab itself, in the root of the disk.
pub const PAGELAB_PATH: &str = "/usr/bin/pagelab";
/// Number of the layout: links, directories, options of the file system.
const LAYOUT: u32 = 2;
const IMAGE_FILE: &str = "tools.ext4";
const RECORD_FILE: &str = "tools.json";
const REMEDY: &str = "use --cache DIR or XDG_CACHE_HOME";
const FETCH_HINTS: FetchHints = FetchHints {
    alternative: "use a host with apt and the package lists of Debian 12",
    manual_download: "--cache DIR or XDG_CACHE_HOME",
};
/// Directories of the root that are links into `/usr`, as on a merged system.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// Directories that the agent mounts on, or that programs expect.
const DIRECTORIES: [&str; 10] =
    ["proc", "sys", "dev", "tmp", "run", "root", "disk", "data", "etc", "var/lib/plocate"];
/// Below `/usr/share`, what no program needs.
const UNUSED_SHARES: [&str; 6] = ["doc", "man", "locale", "info", "lintian", "bug"];
/// Links, in `/usr/bin`, and what they lead to.
const LINKS: [(&str, &str); 6] = [
    ("gcc", "gcc-12"),
    ("cc", "gcc-12"),
    ("cpp", "cpp-12"),
    ("sh", "dash"),
    ("awk", "mawk"),
    ("updatedb", "../sbin/updatedb.plocate"),
];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n";
const GROUP: &str = "root:x:0:\nplocate:x:64:\n";
/// Room in the image beside its files: metadata of ext4.
const IMAGE_SPARE: u64 = 64 << 20;
/// No journal, since it is only read, and nothing reserved for root.
const MKFS_OPTIONS: &str = "-q -F -m 0 -O ^has_journal -E root_owner=0:0";
/// Writing some hundreds of MiB takes seconds.
const MKFS_TIMEOUT: Duration = Duration::from_secs(600);
/// Each image has this identifier: two of the same packages differ in times of day alone.
const IMAGE_UUID: &str = "70616765-6c61-6220-746f-6f6c73000001";

/// A tool disk in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolDisk {
    /// Its image.
    pub path: PathBuf,
    /// What is on it.
    pub record: ToolRecord,
}

/// What is on a tool disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRecord {
    /// Number of the layout.
    pub layout: u32,
    /// Packages and versions, as `NAME=VERSION`.
    pub packages: Vec<String>,
    /// Bytes of the image, to detect truncation.
    pub image_bytes: u64,
}

/// The folder of tool disks.
#[derive(Clone, Debug)]
pub struct ToolCache(DirectoryStore);

impl ToolCache {
    /// The cache below `dir`, which is pagelab's own folder for what can be made again.
    pub fn in_dir(dir: &Path) -> ToolCache {
        ToolCache(DirectoryStore::new(dir.join("tools")))
    }

    /// The whole disk of this layout that was made last, if there is one.
    pub fn find_newest(&self) -> Option<ToolDisk> {
        let disks = self.0.entries().filter_map(|dir| read_disk(&dir));
        disks.max_by_key(|disk| fs::metadata(&disk.path).and_then(|meta| meta.modified()).ok())
    }
}

/// The disk in a folder of the cache, if it is whole and of this layout.
fn read_disk(dir: &Path) -> Option<ToolDisk> {
    let record: ToolRecord = serde_json::from_slice(&fs::read(dir.join(RECORD_FILE)).ok()?).ok()?;
    let path = dir.join(IMAGE_FILE);
    let is_whole = fs::metadata(&path).is_ok_and(|meta| meta.len() == record.image_bytes);
    (is_whole && record.layout == LAYOUT).then_some(ToolDisk { path, record })
}

/// Name of the entry of these packages.
fn entry_name(packages: &[String]) -> String {
    format!("{LAYOUT}_{:08x}", crc32(packages.join("\n").as_bytes()))
}

/// Makes the disk of the packages that apt has now, unless it is there.
pub fn set_up_tool_disk(cache: &ToolCache, observer: &mut dyn FetchObserver) -> Result<ToolDisk, Failure> {
    disk::check_mkfs()?;
    let names = PACKAGES.map(str::to_owned);
    let records = apt::find_with_dependencies(&names, &FETCH_HINTS, observer)?;
    let packages: Vec<String> =
        records.iter().map(|record| format!("{}={}", record.name, record.version)).collect();
    let dir = cache.0.dir().join(entry_name(&packages));
    if let Some(disk) = read_disk(&dir) {
        return Ok(disk);
    }
    let lock = cache.0.lock_observed("another pagelab process was making a tool disk", REMEDY, observer)?;
    if let Some(disk) = read_disk(&dir) {
        return Ok(disk);
    }
    let store_error = |error: io::Error| cache.0.access_error(&error, REMEDY);
    let place = cache.0.build_entry(&lock, store_error, |partial| {
        let root = partial.join("root");
        unpack(partial, &root, &records, observer)?;
        arrange(&root).map_err(store_error)?;
        observer.report_progress("making the tool disk");
        let image = partial.join(IMAGE_FILE);
        write_image(&root, &image, observer)?;
        fs::remove_dir_all(&root).map_err(store_error)?;
        let image_bytes = fs::metadata(&image).map_err(store_error)?.len();
        let record = ToolRecord { layout: LAYOUT, packages: packages.clone(), image_bytes };
        let text = serde_json::to_vec_pretty(&record).map_err(|error| store_error(error.into()))?;
        fs::write(partial.join(RECORD_FILE), text).map_err(store_error)?;
        Ok(entry_name(&packages))
    })?;
    let damaged = || store_error(io::Error::other(format!("{}: incomplete", place.display())));
    read_disk(&place).ok_or_else(damaged)
}

fn unpack(
    partial: &Path,
    root: &Path,
    records: &[PackageRecord],
    observer: &mut dyn FetchObserver,
) -> Result<(), Failure> {
    let downloads = partial.join("packages");
    for dir in [&downloads, &root.to_owned()] {
        fs::create_dir(dir)
            .map_err(|error| Failure::system_error(format!("cannot create {}", dir.display()), error))?;
    }
    let files = apt::fetch_packages(&downloads, records, &FETCH_HINTS, observer)?;
    observer.report_progress("unpacking");
    for (record, file) in records.iter().zip(&files) {
        apt::unpack_package(root, file, &record.name, &FETCH_HINTS, observer)?;
    }
    Ok(())
}

/// Makes a root of unpacked packages one that programs run in.
fn arrange(root: &Path) -> io::Result<()> {
    for name in MERGED {
        let (from, to) = (root.join(name), root.join("usr").join(name));
        fs::create_dir_all(&to)?;
        if from.is_dir() && !from.is_symlink() {
            merge_directory(&from, &to)?;
            fs::remove_dir_all(&from)?;
        }
        if !from.is_symlink() {
            symlink(Path::new("usr").join(name), &from)?;
        }
    }
    for name in DIRECTORIES {
        fs::create_dir_all(root.join(name))?;
    }
    for name in UNUSED_SHARES {
        match fs::remove_dir_all(root.join("usr/share").join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    for (name, target) in LINKS {
        let link = root.join("usr/bin").join(name);
        if !link.is_symlink() && !link.exists() {
            symlink(target, link)?;
        }
    }
    for file in [PAGELAB_PATH, JOB_PATH] {
        fs::write(root.join(file.trim_start_matches('/')), "")?;
    }
    fs::write(root.join("etc/passwd"), PASSWD)?;
    fs::write(root.join("etc/group"), GROUP)
}

/// Moves what is in a directory into another one, which may have directories of the same names.
fn merge_directory(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() && target.is_dir() {
            merge_directory(&entry.path(), &target)?;
        } else if target.symlink_metadata().is_err() {
            fs::rename(entry.path(), target)?;
        }
    }
    Ok(())
}

/// An ext4 image of a directory, without a journal: it is only read.
fn write_image(root: &Path, image: &Path, observer: &mut dyn FetchObserver) -> Result<(), Failure> {
    let bytes = tree_bytes(root)
        .map_err(|error| Failure::system_error(format!("cannot read {}", root.display()), error))?;
    let size = Bytes((bytes.0 + bytes.0 / 8 + IMAGE_SPARE).next_multiple_of(1 << 20));
    let ran =
        disk::run_mkfs("make the tool disk", MKFS_TIMEOUT, &mut || observer.stop_signal(), |command| {
            command.args(MKFS_OPTIONS.split(' ')).args(["-U", IMAGE_UUID]);
            command.arg("-d").arg(root).arg(image).arg(format!("{}M", size.0 >> 20));
        })?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(apt::command_error("cannot make the tool disk", &ran, REMEDY, &FETCH_HINTS)),
    }
}

/// Blocks of 4 KiB of all files of a tree, as bytes, and one for each inode's share of metadata.
fn tree_bytes(dir: &Path) -> io::Result<Bytes> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes +=
            if meta.is_dir() { tree_bytes(&entry.path())?.0 } else { meta.len().next_multiple_of(4 << 10) };
        bytes += 512;
    }
    Ok(Bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_packages_become_a_merged_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (path, text) in [
            ("bin/dash", "shell"),
            ("usr/bin/gcc-12", "compiler"),
            ("lib/x86_64-linux-gnu/libc.so.6", "libc"),
            ("usr/lib/x86_64-linux-gnu/libgmp.so.10", "gmp"),
            ("usr/share/doc/x/README", "text"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        arrange(root).unwrap();
        for (path, text) in [
            ("bin/sh", "shell"),
            ("usr/bin/cc", "compiler"),
            ("lib/x86_64-linux-gnu/libc.so.6", "libc"),
            ("lib/x86_64-linux-gnu/libgmp.so.10", "gmp"),
        ] {
            assert_eq!(fs::read_to_string(root.join(path)).unwrap(), text, "{path}");
        }
        assert_eq!(fs::read_link(root.join("lib")).unwrap(), Path::new("usr/lib"));
        assert!(!root.join("usr/share/doc").exists() && root.join("proc").is_dir());
        // Again, as if a link of a package were there.
        arrange(root).unwrap();
    }

    #[test]
    fn a_disk_is_found_only_if_it_is_whole_and_of_this_layout() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ToolCache::in_dir(folder.path());
        assert_eq!(cache.find_newest(), None);
        let packages = vec!["dash=1".to_owned()];
        let dir = cache.0.dir().join(entry_name(&packages));
        fs::create_dir_all(&dir).unwrap();
        let write = |layout, image_bytes| {
            let record = ToolRecord { layout, packages: packages.clone(), image_bytes };
            fs::write(dir.join(RECORD_FILE), serde_json::to_vec(&record).unwrap()).unwrap();
        };
        fs::write(dir.join(IMAGE_FILE), "image").unwrap();
        write(LAYOUT, 5);
        assert_eq!(cache.find_newest().unwrap().record.packages, packages);
        write(LAYOUT, 6);
        assert_eq!(cache.find_newest(), None, "it was cut off");
        write(LAYOUT + 1, 5);
        assert_eq!(cache.find_newest(), None, "another layout");
        assert_ne!(entry_name(&packages), entry_name(&["dash=2".to_owned()]));
    }
}
