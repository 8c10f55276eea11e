//! Files of tracefs, whether it is mounted or not.
//!
//! If it is not, the file system is opened by `fsopen` and `fsmount` (5.2 and later), which return a
//! descriptor of a detached mount. No other process sees it, and it disappears with the descriptor.

use std::io;
use std::os::fd::OwnedFd;

use pagelab_formats::mountinfo::{self, Mount};
use pagelab_formats::trace_format::{self, TraceFormat};
use pagelab_model::{Absence, AbsenceReason, Reading};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::extfrag::mount_point;
use crate::paths;
use crate::reader::Reader;
use crate::root::read_names;

/// Maximum size of a file of tracefs; the longest format has about 10 KiB.
const TEXT_BYTES_MAX: usize = 1 << 20;
const CHUNK_BYTES: usize = 1 << 16;

/// The root of tracefs.
#[derive(Debug)]
pub struct Tracefs {
    dir: OwnedFd,
    mount_path: String,
}

/// An instance of ftrace, with its own buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceInstance {
    /// Name of its directory in `instances`.
    pub name: String,
}

impl Tracefs {
    /// tracefs of the running kernel. Nothing is changed to find it.
    pub fn find(reader: &Reader<'_>) -> Reading<Tracefs> {
        if !reader.root().is_live() {
            let detail = "only the running machine has tracepoints";
            return Err(Absence::new(paths::TRACEFS, AbsenceReason::NotSaved, detail)
                .with_hint("run pagelab on the machine itself"));
        }
        let mounts = reader.parse(paths::SELF_MOUNTINFO, mountinfo::parse);
        match find_mount(reader, &mounts) {
            Some(place) => Tracefs::open_at(place),
            None => Tracefs::open_detached(reader),
        }
    }

    fn open_at(mount_path: String) -> Reading<Tracefs> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&mount_path, flags, Mode::empty()) {
            Ok(dir) => Ok(Tracefs { dir, mount_path }),
            Err(error) => Err(io_absence(&mount_path, error)),
        }
    }

    /// Opens tracefs without mounting it anywhere.
    fn open_detached(reader: &Reader<'_>) -> Reading<Tracefs> {
        let open = || {
            let fs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&fs)?;
            let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, quiet)
        };
        let mount_path = paths::TRACEFS.to_owned();
        let mount = format!("mount -t tracefs none {mount_path}, as root");
        match open() {
            Ok(dir) => Ok(Tracefs { dir, mount_path }),
            Err(Errno::NODEV) => {
                let detail = "this kernel is built without CONFIG_TRACING";
                Err(Absence::new(mount_path, AbsenceReason::NotThere, detail)
                    .with_hint("boot a kernel built with CONFIG_TRACING=y"))
            }
            Err(Errno::PERM | Errno::ACCESS) => {
                let is_root = rustix::process::geteuid().is_root();
                let (detail, hint) = explain_open_failure(is_root, is_in_container(reader), &mount);
                Err(Absence::new(mount_path, AbsenceReason::NotPermitted, detail).with_hint(hint))
            }
            Err(error) => {
                let detail = format!("tracefs is not mounted, and opening it failed: {error}");
                Err(Absence::new(mount_path, AbsenceReason::NotThere, detail).with_hint(mount))
            }
        }
    }

    /// Its mount point, or the usual one.
    pub fn mount_path(&self) -> &str {
        &self.mount_path
    }

    /// The directory of trace instances within tracefs (3.10 and later).
    pub const INSTANCES: &str = "instances";

    /// A file or directory, by its path within tracefs. Started programs do not inherit it, and reading it
    /// never waits.
    pub fn open(&self, path: &str, flags: OFlags) -> Reading<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.dir, path, flags, Mode::empty());
        opened.map_err(|error| io_absence(&format!("{}/{path}", self.mount_path), error))
    }

    /// Writes an existing file in one call, as the kernel's own files require.
    pub fn write(&self, path: &str, text: &str) -> Reading<()> {
        let file = self.open(path, OFlags::WRONLY)?;
        let failed = |error: Errno| {
            let shown = format!("{}/{path}", self.mount_path);
            Absence::new(shown, AbsenceReason::Failed, format!("it rejected `{text}`: {error}"))
        };
        rustix::io::write(&file, text.as_bytes()).map(drop).map_err(failed)
    }

    /// A whole file, by its path within tracefs.
    pub fn read(&self, path: &str) -> Reading<Vec<u8>> {
        let shown = format!("{}/{path}", self.mount_path);
        let file = self.open(path, OFlags::RDONLY)?;
        // Some files end after the first read, even if it was short (`show_header`).
        let (mut text, mut piece) = (Vec::new(), vec![0; CHUNK_BYTES]);
        loop {
            match rustix::io::read(&file, &mut piece) {
                Ok(0) => return Ok(text),
                Ok(bytes) => text.extend_from_slice(&piece[..bytes]),
                Err(Errno::INTR) => {}
                Err(error) => {
                    let detail = io::Error::from(error).to_string();
                    return Err(Absence::new(shown, AbsenceReason::Failed, detail));
                }
            }
            if text.len() > TEXT_BYTES_MAX {
                return Err(Absence::new(shown, AbsenceReason::Malformed, "larger than any tracefs file"));
            }
        }
    }

    /// The format of one tracepoint.
    pub fn read_format(&self, system: &str, name: &str) -> Reading<TraceFormat> {
        let path = format!("events/{system}/{name}/format");
        let text = self.read(&path)?;
        trace_format::parse(&text).map_err(|error| {
            let shown = format!("{}/{path}", self.mount_path);
            let message = error.message_in_file(&shown);
            Absence::new(shown, AbsenceReason::Malformed, message)
        })
    }

    /// The names in a directory of tracefs, sorted.
    pub fn list_dir(&self, path: &str) -> Reading<Vec<String>> {
        let failed = |error: Errno| io_absence(&format!("{}/{path}", self.mount_path), error);
        let dir = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        read_names(&dir, usize::MAX).map_err(failed)
    }
}

/// Mount point of tracefs. Kernels before 4.1 have it inside debugfs; a later one would mount it there on the
/// first access (kernel/trace/trace.c, `trace_automount`), so it is not searched there.
pub(crate) fn find_mount(reader: &Reader<'_>, mounts: &Reading<Vec<Mount>>) -> Option<String> {
    if let Some(tracefs) = mount_point(mounts, "tracefs") {
        return Some(tracefs.to_owned());
    }
    let debugfs = mount_point(mounts, "debugfs")?;
    let types = reader.read_line(paths::FILESYSTEMS).ok()?;
    let is_own = types.split_whitespace().any(|word| word == "tracefs");
    (!is_own).then(|| format!("{debugfs}/{}", paths::TRACING_IN_DEBUGFS))
}

/// Reason why it could not be opened, and a hint. Without root, the permissions of root are unknown.
fn explain_open_failure(is_root: bool, is_contained: bool, mount: &str) -> (&'static str, String) {
    const ROOT: &str =
        "tracefs is not mounted, and root is denied access: a container, a security module or lockdown";
    match (is_root, is_contained) {
        (false, true) => {
            ("tracefs is not mounted, and only root can open it", "run as root, or on the host".to_owned())
        }
        (false, false) => (
            "tracefs is not mounted, and only root can open it",
            format!("run as root, or mount it readable by you ({mount})"),
        ),
        (true, true) => {
            (ROOT, "run pagelab on the host, or give the container the host's tracefs".to_owned())
        }
        (true, false) => (ROOT, mount.to_owned()),
    }
}

fn is_in_container(reader: &Reader<'_>) -> bool {
    [paths::DOCKERENV, paths::CONTAINERENV, paths::SYSTEMD_CONTAINER]
        .into_iter()
        .any(|path| reader.root().entry_kind(path).is_ok())
}

fn io_absence(display_path: &str, error: Errno) -> Absence {
    match error {
        Errno::NOENT => Absence::new(display_path, AbsenceReason::NotThere, "not supported by this kernel"),
        Errno::ACCESS | Errno::PERM => {
            let detail = "tracefs requires root";
            Absence::new(display_path, AbsenceReason::NotPermitted, detail)
                .with_hint("run as root, or mount -o remount,gid=GROUP,mode=750")
        }
        error => Absence::new(display_path, AbsenceReason::Failed, io::Error::from(error).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_root_is_told_to_be() {
        for is_contained in [false, true] {
            let (detail, hint) = explain_open_failure(false, is_contained, "mount it");
            assert!(detail.contains("only root can open it") && hint.starts_with("run as root"));
            let (detail, hint) = explain_open_failure(true, is_contained, "mount it");
            assert!(detail.contains("root is denied access") && !hint.contains("as root"));
        }
    }
}
