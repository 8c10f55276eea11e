//! The source tree: some objects of a kernel, prepared so that a guest compiles them with the compiler and
//! the options of kbuild, and without the cost of kbuild itself, which is the larger part under emulation.
//!
//! The host fetches the distribution's kernel source, configures it (`make tinyconfig`), and builds the
//! objects once. kbuild's own records say what each of them needs; that, and a generated Makefile, is the
//! archive. An entry of `trees/` holds `tree.tar`, and `tree.json` beside it.

mod build_record;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagelab_formats::checksum::crc32;
use pagelab_model::source_tree::{COMPILER, OBJECT_LIST};
use pagelab_model::{Failure, FailureKind};
use pagelab_packages::apt::{self, FetchHints, FetchObserver, PackageRecord};
use pagelab_packages::program::{self, CommandError, CommandOutput};
use pagelab_packages::store::DirectoryStore;
use serde::{Deserialize, Serialize};

use build_record::BuildRecord;

/// Package with the source.
pub const PACKAGE: &str = "linux-source-6.1";
/// Small objects, so that progress is counted in steps of a few seconds under emulation: with QEMU 7.2 (TCG)
/// each takes 1.4 to 4.4 s of the host's CPU, all of them some 35 s. One such as lib/bitmap.o takes 13 s.
const OBJECTS: [&str; 13] = [
    "lib/bcd.o",
    "lib/ctype.o",
    "lib/list_sort.o",
    "lib/llist.o",
    "lib/sort.o",
    "lib/memweight.o",
    "lib/plist.o",
    "lib/base64.o",
    "lib/earlycpio.o",
    "lib/errseq.o",
    "lib/cmdline.o",
    "lib/hexdump.o",
    "lib/find_bit.o",
];
/// What configuring and compiling them needs of the source: all files of Kconfig, the headers, and those
/// that the headers are generated from. The rest of the 83 000 files is not unpacked.
const MEMBERS: [&str; 12] = [
    "Makefile",
    "Kbuild",
    "Kconfig",
    "scripts",
    "include",
    "arch/x86",
    "lib",
    "kernel/bounds.c",
    "kernel/time/timeconst.bc",
    "kernel/configs",
    "tools/include",
    "*/Kconfig*",
];
/// Programs of the host, and their packages. kconfig needs flex and bison, and headers are made with bc.
const PROGRAMS: [(&str, &str); 7] = [
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("make", "make"),
    (COMPILER, COMPILER),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
];
/// What would be different at another time and for another user.
const BUILD_IDENTITY: [(&str, &str); 3] = [
    ("KBUILD_BUILD_TIMESTAMP", "1970-01-01"),
    ("KBUILD_BUILD_USER", "pagelab"),
    ("KBUILD_BUILD_HOST", "pagelab"),
];
/// Number of the layout: objects, members, form of the archive.
const LAYOUT: u32 = 2;
const ARCHIVE_FILE: &str = "tree.tar";
const RECORD_FILE: &str = "tree.json";
const MAKEFILE: &str = "Makefile";
const REMEDY: &str = "use --cache DIR or XDG_CACHE_HOME";
const FETCH_HINTS: FetchHints = FetchHints {
    alternative: "use a host with apt and the package lists of Debian 12",
    manual_download: "--cache DIR or XDG_CACHE_HOME",
};
/// Each step takes less than a minute on an idle host.
const STEP_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// A device has whole sectors, and tar reads records of 20 blocks.
const ARCHIVE_UNIT: u64 = 20 * 512;

/// A source tree in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTree {
    /// Its archive.
    pub path: PathBuf,
    /// What is in it.
    pub record: TreeRecord,
}

/// What is in a source tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeRecord {
    /// Number of the layout.
    pub layout: u32,
    /// Package of the source, and its version.
    pub package: String,
    /// See there.
    pub version: String,
    /// The compiler that the host built the objects with, as it names itself.
    pub compiler: String,
    /// Objects, in the order in which they are built.
    pub objects: Vec<String>,
    /// Files of the archive.
    pub files: usize,
    /// Bytes of the archive, to detect truncation.
    pub archive_bytes: u64,
}

/// The folder of source trees.
#[derive(Clone, Debug)]
pub struct TreeCache(DirectoryStore);

impl TreeCache {
    /// The cache below `dir`, which is pagelab's own folder for what can be made again.
    pub fn in_dir(dir: &Path) -> TreeCache {
        TreeCache(DirectoryStore::new(dir.join("trees")))
    }

    /// The whole tree of this layout that was made last, if there is one.
    pub fn find_newest(&self) -> Option<SourceTree> {
        let trees = self.0.entries().filter_map(|dir| read_tree(&dir));
        trees.max_by_key(|tree| fs::metadata(&tree.path).and_then(|meta| meta.modified()).ok())
    }
}

/// The tree in a folder of the cache, if it is whole and of this layout.
fn read_tree(dir: &Path) -> Option<SourceTree> {
    let record: TreeRecord = serde_json::from_slice(&fs::read(dir.join(RECORD_FILE)).ok()?).ok()?;
    let path = dir.join(ARCHIVE_FILE);
    let is_whole = fs::metadata(&path).is_ok_and(|meta| meta.len() == record.archive_bytes);
    (is_whole && record.layout == LAYOUT).then_some(SourceTree { path, record })
}

/// Name of the entry of a source and a compiler.
fn entry_name(version: &str, compiler: &str) -> String {
    let key = format!("{PACKAGE}={version}\n{compiler}\n{}", OBJECTS.join("\n"));
    format!("{LAYOUT}_{:08x}", crc32(key.as_bytes()))
}

/// Makes the tree of the source that apt has now, unless it is there.
pub fn set_up_source_tree(
    cache: &TreeCache,
    observer: &mut dyn FetchObserver,
) -> Result<SourceTree, Failure> {
    check_programs(|name| program::find_program(Path::new(name)).is_some())?;
    let compiler = compiler_version(observer)?;
    let package = apt::find_package(PACKAGE, &FETCH_HINTS, observer)?.ok_or_else(|| {
        let reason = format!("apt's package lists have no {PACKAGE}");
        cannot_make(reason).hint(format!("run `apt-get update` as root, or {}", FETCH_HINTS.alternative))
    })?;
    let name = entry_name(&package.version, &compiler);
    let dir = cache.0.dir().join(&name);
    if let Some(tree) = read_tree(&dir) {
        return Ok(tree);
    }
    let lock = cache.0.lock_observed("another pagelab process was making a source tree", REMEDY, observer)?;
    if let Some(tree) = read_tree(&dir) {
        return Ok(tree);
    }
    let store_error = |error: io::Error| cache.0.access_error(&error, REMEDY);
    let place = cache.0.build_entry(&lock, store_error, |partial| {
        let work = partial.join("work");
        fs::create_dir(&work).map_err(store_error)?;
        let source = unpack_source(&work, &package, observer)?;
        let records = build_objects(&source, observer)?;
        let (files, archive_bytes) =
            write_archive(&partial.join(ARCHIVE_FILE), &source, &records).map_err(store_error)?;
        fs::remove_dir_all(&work).map_err(store_error)?;
        let record = TreeRecord {
            layout: LAYOUT,
            package: PACKAGE.to_owned(),
            version: package.version.clone(),
            compiler: compiler.clone(),
            objects: OBJECTS.map(str::to_owned).to_vec(),
            files,
            archive_bytes,
        };
        let text = serde_json::to_vec_pretty(&record).map_err(|error| store_error(error.into()))?;
        fs::write(partial.join(RECORD_FILE), text).map_err(store_error)?;
        Ok(name)
    })?;
    let damaged = || store_error(io::Error::other(format!("{}: incomplete", place.display())));
    read_tree(&place).ok_or_else(damaged)
}

fn cannot_make(reason: impl std::fmt::Display) -> Failure {
    Failure::cannot(FailureKind::NotAvailable, "make the source tree", reason)
}

/// Names all that is missing, before anything is fetched.
fn check_programs(is_there: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let missing: Vec<_> = PROGRAMS.into_iter().filter(|(name, _)| !is_there(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = missing.iter().map(|(name, _)| format!("no {name}")).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    let reason = format!("there is {}", names.join(" and "));
    Err(cannot_make(reason).hint(format!("apt-get install {}", packages.join(" "))))
}

fn compiler_version(observer: &mut dyn FetchObserver) -> Result<String, Failure> {
    let mut command = Command::new(COMPILER);
    let output = run_step(command.arg("--version"), COMPILER, observer)?;
    let line = output.stdout.lines().next().unwrap_or_default();
    Ok(program::printable(line))
}

/// Fetches the package and unpacks what is needed of the source below `work`; returns its root.
fn unpack_source(
    work: &Path,
    package: &PackageRecord,
    observer: &mut dyn FetchObserver,
) -> Result<PathBuf, Failure> {
    let deb = apt::fetch_package(work, package, &FETCH_HINTS, observer)?;
    observer.report_progress("unpacking");
    apt::unpack_package(work, &deb, PACKAGE, &FETCH_HINTS, observer)?;
    let archive = work.join("usr/src").join(format!("{PACKAGE}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(&archive).arg("-C").arg(work);
    tar.args(["--no-same-owner", "--wildcards", "--wildcards-match-slash"]);
    tar.args(MEMBERS.map(|member| format!("{PACKAGE}/{member}")));
    run_step(&mut tar, "tar", observer)?;
    Ok(work.join(PACKAGE))
}

/// Configures the kernel and builds the objects; returns how.
fn build_objects(source: &Path, observer: &mut dyn FetchObserver) -> Result<Vec<BuildRecord>, Failure> {
    observer.report_progress("building the objects of the source tree");
    run_step(make_command(source).arg("tinyconfig"), "make tinyconfig", observer)?;
    run_step(make_command(source).args(OBJECTS), "make", observer)?;
    let read = |object: &str| {
        let (dir, name) = object.rsplit_once('/').unwrap_or((".", object));
        let file = source.join(dir).join(format!(".{name}.cmd"));
        let text = fs::read_to_string(&file).map_err(|error| Failure::cannot_read(file.display(), &error))?;
        build_record::parse(&text, object).map_err(|why| cannot_make(format!("{}: {why}", file.display())))
    };
    OBJECTS.into_iter().map(read).collect()
}

/// make in the root of the source, with nothing of the caller's environment that kbuild would heed.
fn make_command(source: &Path) -> Command {
    let mut make = Command::new("make");
    make.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(BUILD_IDENTITY);
    make.current_dir(source);
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get());
    make.args(["ARCH=x86", &format!("CC={COMPILER}"), &format!("HOSTCC={COMPILER}"), &format!("-j{jobs}")]);
    make
}

/// Runs a program to its successful end.
fn run_step(
    command: &mut Command,
    title: &str,
    observer: &mut dyn FetchObserver,
) -> Result<CommandOutput, Failure> {
    let output = program::run_command(command, STEP_TIMEOUT, &mut || observer.stop_signal());
    let output = output.map_err(|error| match error {
        CommandError::NotFound => cannot_make(format!("there is no {title}")),
        CommandError::RunFailed(error) => Failure::system_error(format!("cannot run {title}"), error),
        CommandError::TimedOut(limit) => {
            cannot_make(format!("{title} was killed after {} s", limit.as_secs())).hint("try again")
        }
        CommandError::Stopped(signal) => Failure::stopped(signal),
    })?;
    match output.status.success() {
        true => Ok(output),
        false => {
            let action = format!("cannot make the source tree: {title} failed");
            Err(apt::command_error(&action, &output, "check for free space", &FETCH_HINTS))
        }
    }
}

/// Writes the archive of all that the records name below `source`, with the Makefile and the list of
/// objects; returns its files and its bytes. Two archives of the same contents are the same bytes.
fn write_archive(archive: &Path, source: &Path, records: &[BuildRecord]) -> io::Result<(usize, u64)> {
    let names: BTreeSet<&str> = records.iter().flat_map(|record| &record.files).map(String::as_str).collect();
    let objects: String = records.iter().map(|record| format!("{}\n", record.object)).collect();
    let mut builder = tar::Builder::new(io::BufWriter::new(File::create_new(archive)?));
    let mut append = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        builder.append_data(&mut header, name, bytes)
    };
    append(MAKEFILE, build_record::format_makefile(records).as_bytes())?;
    append(OBJECT_LIST, objects.as_bytes())?;
    for name in &names {
        let path = source.join(name);
        let bytes = fs::read(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        append(name, &bytes)?;
    }
    let mut file = builder.into_inner()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.flush()?;
    let bytes = file.metadata()?.len().next_multiple_of(ARCHIVE_UNIT);
    file.set_len(bytes)?;
    Ok((names.len() + 2, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::source_tree::is_plain_path;

    fn record(object: &str, files: &[&str]) -> BuildRecord {
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        BuildRecord { object: object.into(), command: format!("{COMPILER} -o {object}"), files }
    }

    #[test]
    fn missing_programs_are_named_with_their_packages() {
        assert!(check_programs(|_| true).is_ok());
        let error = check_programs(|name| !["flex", "xz"].contains(&name)).unwrap_err();
        assert_eq!(error.kind(), FailureKind::NotAvailable);
        let said = error.to_string();
        assert!(said.contains("cannot make the source tree: there is no xz and no flex"), "{said}");
        assert!(format!("{error:?}").contains("apt-get install xz-utils flex"), "{error:?}");
    }

    #[test]
    fn objects_have_plain_paths_and_each_is_there_once() {
        assert!(OBJECTS.iter().all(|object| is_plain_path(object) && object.ends_with(".o")));
        assert_eq!(OBJECTS.iter().collect::<BTreeSet<_>>().len(), OBJECTS.len());
    }

    #[test]
    fn an_archive_of_the_same_contents_has_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        let long_name = format!("include/{}/x.h", "a".repeat(120));
        for name in ["lib/a.c", "lib/b.c", "include/b.h", "include/a.h", &long_name] {
            fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
            fs::write(source.join(name), name).unwrap();
        }
        let records = [
            record("lib/b.o", &["lib/b.c", "include/b.h", "include/a.h"]),
            record("lib/a.o", &["lib/a.c", "include/a.h", &long_name]),
        ];
        let archive = folder.path().join("1.tar");
        let (files, bytes) = write_archive(&archive, &source, &records).unwrap();
        assert_eq!((files, bytes % ARCHIVE_UNIT), (7, 0));
        let mut reader = tar::Archive::new(File::open(&archive).unwrap());
        let mut names = Vec::new();
        for entry in reader.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            let owner = (header.uid().unwrap(), header.gid().unwrap());
            assert_eq!((header.mtime().unwrap(), owner), (0, (0, 0)));
            names.push(entry.path().unwrap().to_string_lossy().into_owned());
        }
        assert_eq!(
            names,
            [MAKEFILE, OBJECT_LIST, "include/a.h", &long_name, "include/b.h", "lib/a.c", "lib/b.c"]
        );
        // Files with other times and modes are the same contents.
        let file = File::options().append(true).open(source.join("lib/a.c")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(7)).unwrap();
        let again = folder.path().join("2.tar");
        write_archive(&again, &source, &records).unwrap();
        assert_eq!(fs::read(&archive).unwrap(), fs::read(&again).unwrap());
        let error = write_archive(&folder.path().join("3.tar"), &source, &[record("lib/c.o", &["lib/c.c"])]);
        assert!(error.unwrap_err().to_string().contains("lib/c.c"));
    }

    #[test]
    fn a_tree_is_found_only_if_it_is_whole_and_of_this_layout() {
        let folder = tempfile::tempdir().unwrap();
        let cache = TreeCache::in_dir(folder.path());
        assert_eq!(cache.find_newest(), None);
        let dir = cache.0.dir().join(entry_name("1", "gcc"));
        fs::create_dir_all(&dir).unwrap();
        let write = |layout, archive_bytes| {
            let record = TreeRecord {
                layout,
                package: PACKAGE.into(),
                version: "1".into(),
                compiler: "gcc".into(),
                objects: vec!["lib/a.o".into()],
                files: 3,
                archive_bytes,
            };
            fs::write(dir.join(RECORD_FILE), serde_json::to_vec(&record).unwrap()).unwrap();
        };
        write(LAYOUT, 4);
        assert_eq!(cache.find_newest(), None, "without an archive");
        fs::write(dir.join(ARCHIVE_FILE), "tree").unwrap();
        assert_eq!(cache.find_newest().unwrap().record.version, "1");
        write(LAYOUT, 5);
        assert_eq!(cache.find_newest(), None, "it was cut off");
        write(LAYOUT + 1, 4);
        assert_eq!(cache.find_newest(), None, "another layout");
        assert_ne!(entry_name("1", "gcc"), entry_name("2", "gcc"));
        assert_ne!(entry_name("1", "gcc"), entry_name("1", "gcc 2"));
    }
}
