//! Reading tracefs, where it is mounted and where it is not.
//!
//! Where it is not, the file system is opened by `fsopen` and `fsmount` (5.2 and later): that gives a
//! descriptor of a mount that is attached nowhere. No other process sees it, and it is gone with the
//! descriptor.

use std::io;
use std::os::fd::OwnedFd;

use pagelab_formats::mountinfo::{self, Mount};
use pagelab_formats::trace_format::{self, TraceFormat};
use pagelab_model::{Absence, AbsentWhy, Reading};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::extfrag::mount_point;
use crate::paths;
use crate::reader::Reader;

/// A file of tracefs that is larger than this is refused; the longest format has some 10 KiB.
const TEXT_MAX: usize = 1 << 20;
/// What is read of it at once.
const PIECE: usize = 1 << 16;

/// The root of tracefs.
#[derive(Debug)]
pub struct Tracefs {
    dir: OwnedFd,
    place: String,
    is_mounted: bool,
}

impl Tracefs {
    /// tracefs of the running kernel. Nothing is changed to find it.
    pub fn find(reader: &Reader<'_>) -> Reading<Tracefs> {
        if !reader.root().is_live() {
            let detail = "only the running machine has tracepoints";
            return Err(Absence::new(paths::TRACEFS, AbsentWhy::NotSaved, detail)
                .or("run pagelab on the machine itself"));
        }
        let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
        match mounted(reader, &mounts) {
            Some(place) => Tracefs::at(place),
            None => Tracefs::detached(reader),
        }
    }

    fn at(place: String) -> Reading<Tracefs> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&place, flags, Mode::empty()) {
            Ok(dir) => Ok(Tracefs { dir, place, is_mounted: true }),
            Err(error) => Err(refused(&place, error)),
        }
    }

    /// Opens tracefs without mounting it anywhere.
    fn detached(reader: &Reader<'_>) -> Reading<Tracefs> {
        let open = || {
            let fs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&fs)?;
            let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, quiet)
        };
        let place = paths::TRACEFS.to_owned();
        let mount = format!("mount -t tracefs none {place}, as root");
        match open() {
            Ok(dir) => Ok(Tracefs { dir, place, is_mounted: false }),
            Err(Errno::NODEV) => {
                let detail = "this kernel is built without CONFIG_TRACING";
                Err(Absence::new(place, AbsentWhy::NotThere, detail)
                    .or("boot a kernel built with CONFIG_TRACING=y"))
            }
            Err(Errno::PERM | Errno::ACCESS) => {
                let is_root = rustix::process::geteuid().is_root();
                let (detail, way_out) = not_opened(is_root, container(reader), &mount);
                Err(Absence::new(place, AbsentWhy::NotPermitted, detail).or(way_out))
            }
            Err(error) => {
                let detail = format!("tracefs is not mounted, and opening it failed: {error}");
                Err(Absence::new(place, AbsentWhy::NotThere, detail).or(mount))
            }
        }
    }

    /// Where it is mounted, or would be.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether it is mounted there; else it was reached without.
    pub fn is_mounted(&self) -> bool {
        self.is_mounted
    }

    /// The folder of trace instances within tracefs (3.10 and later).
    pub const INSTANCES: &str = "instances";

    /// A file or folder, by its path within tracefs. It is not passed on to programs that are started, and
    /// reading it never waits.
    pub fn open(&self, path: &str, flags: OFlags) -> Reading<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.dir, path, flags, Mode::empty());
        opened.map_err(|error| refused(&format!("{}/{path}", self.place), error))
    }

    /// Writes a file that is there, in one call, as the kernel's own files want it.
    pub fn write(&self, path: &str, text: &str) -> Reading<()> {
        let file = self.open(path, OFlags::WRONLY)?;
        let failed = |error: Errno| {
            let shown = format!("{}/{path}", self.place);
            Absence::new(shown, AbsentWhy::Failed, format!("it does not take `{text}`: {error}"))
        };
        rustix::io::write(&file, text.as_bytes()).map(drop).map_err(failed)
    }

    /// A whole file, by its path within tracefs.
    pub fn read(&self, path: &str) -> Reading<Vec<u8>> {
        let shown = format!("{}/{path}", self.place);
        let file = self.open(path, OFlags::RDONLY)?;
        // Some files end behind the first read, however little it asked for (`show_header`).
        let (mut text, mut piece) = (Vec::new(), vec![0; PIECE]);
        loop {
            match rustix::io::read(&file, &mut piece) {
                Ok(0) => return Ok(text),
                Ok(bytes) => text.extend_from_slice(&piece[..bytes]),
                Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(Absence::new(shown, AbsentWhy::Failed, io::Error::from(error).to_string()));
                }
            }
            if text.len() > TEXT_MAX {
                return Err(Absence::new(shown, AbsentWhy::Malformed, "larger than any file of tracefs"));
            }
        }
    }

    /// The format of one tracepoint.
    pub fn format(&self, system: &str, name: &str) -> Reading<TraceFormat> {
        let path = format!("events/{system}/{name}/format");
        let text = self.read(&path)?;
        trace_format::parse(&text).map_err(|error| {
            let shown = format!("{}/{path}", self.place);
            let message = error.in_file(&shown);
            Absence::new(shown, AbsentWhy::Malformed, message)
        })
    }

    /// The names in a folder of tracefs, sorted.
    pub fn list(&self, path: &str) -> Reading<Vec<String>> {
        let shown = || format!("{}/{path}", self.place);
        let failed = |error: Errno| refused(&shown(), error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, path, flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

/// Where tracefs is mounted. Kernels before 4.1 have it inside debugfs; a later one would mount it there on
/// the first look (kernel/trace/trace.c, `trace_automount`), so it is not looked for.
fn mounted(reader: &Reader<'_>, mounts: &Reading<Vec<Mount>>) -> Option<String> {
    if let Some(tracefs) = mount_point(mounts, "tracefs") {
        return Some(tracefs.to_owned());
    }
    let debugfs = mount_point(mounts, "debugfs")?;
    let types = reader.line(paths::FILESYSTEMS).ok()?;
    let is_own = types.split_whitespace().any(|word| word == "tracefs");
    (!is_own).then(|| format!("{debugfs}/{}", paths::TRACING_IN_DEBUGFS))
}

/// Why it could not be opened, and the way out. Where pagelab is not root, nothing is known of what root may.
fn not_opened(is_root: bool, is_contained: bool, mount: &str) -> (&'static str, String) {
    const ROOT: &str = "tracefs is not mounted, and root may not open it here: a container, or a security \
                        module or lockdown";
    match (is_root, is_contained) {
        (false, true) => {
            ("tracefs is not mounted, and only root can open it", "run as root, or on the host".to_owned())
        }
        (false, false) => (
            "tracefs is not mounted, and only root can open it",
            format!("run as root; or {mount}, readable for you"),
        ),
        (true, true) => {
            (ROOT, "run pagelab on the host, or give the container the host's tracefs".to_owned())
        }
        (true, false) => (ROOT, mount.to_owned()),
    }
}

fn container(reader: &Reader<'_>) -> bool {
    [paths::DOCKERENV, paths::CONTAINERENV, paths::SYSTEMD_CONTAINER]
        .into_iter()
        .any(|path| reader.root().kind(path).is_ok())
}

fn refused(shown: &str, error: Errno) -> Absence {
    match error {
        Errno::NOENT => Absence::new(shown, AbsentWhy::NotThere, "this kernel does not have it"),
        Errno::ACCESS | Errno::PERM => {
            let detail = "tracefs is root's";
            Absence::new(shown, AbsentWhy::NotPermitted, detail)
                .or("run as root; or mount -o remount,gid=GROUP,mode=750 for a group of yours")
        }
        error => Absence::new(shown, AbsentWhy::Failed, io::Error::from(error).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_root_is_told_to_be() {
        for is_contained in [false, true] {
            let (detail, way_out) = not_opened(false, is_contained, "mount it");
            assert!(detail.contains("only root can open it") && way_out.starts_with("run as root"));
            let (detail, way_out) = not_opened(true, is_contained, "mount it");
            assert!(detail.contains("root may not open it here") && !way_out.contains("as root"));
        }
    }
}
