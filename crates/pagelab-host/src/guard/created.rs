//! Things that pagelab makes in the kernel and takes away again: cgroups and a mount of debugfs.

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::Duration;

use pagelab_formats::mountinfo::{self, Mount};
use rustix::io::Errno;

use super::error::{ErrorKind, GuardError};
use super::kernel::Kernel;
use crate::paths;

/// Every cgroup of pagelab starts so; no other is ever removed.
pub(super) const CGROUP_PREFIX: &str = "pagelab-";

/// Longest label that a caller may give a cgroup, in bytes.
const LABEL_MAX: usize = 40;

/// What is mounted, in the order in which it was mounted.
fn mounts(kernel: &dyn Kernel) -> io::Result<Vec<Mount>> {
    let text = kernel.read(paths::SELF_MOUNTINFO)?;
    mountinfo::parse(text.as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.in_file(paths::SELF_MOUNTINFO)))
}

/// The debugfs that is mounted at `at`, if what is mounted there last is one.
pub(super) fn debugfs_at(kernel: &dyn Kernel, at: &str) -> io::Result<Option<u64>> {
    let mounts = mounts(kernel)?;
    let top = mounts.iter().rev().find(|mount| mount.mount_point == at);
    Ok(top.filter(|mount| mount.fs_type == "debugfs").map(|mount| mount.id))
}

/// Whether `path` may be a cgroup that pagelab made: below a cgroup mount, named by us, without detours.
pub(super) fn is_our_cgroup(kernel: &dyn Kernel, path: &str) -> bool {
    let named_by_us = path.rsplit('/').next().is_some_and(|name| name.starts_with(CGROUP_PREFIX));
    named_by_us && is_plain(path) && hierarchy(kernel, path).is_ok_and(|mount| mount.is_some())
}

/// Absolute, and no component is empty, `.` or `..`.
pub(super) fn is_plain(path: &str) -> bool {
    let Some(relative) = path.strip_prefix('/') else { return false };
    relative.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains('\0')
}

/// The cgroup mount that a path is below.
fn hierarchy(kernel: &dyn Kernel, path: &str) -> io::Result<Option<Mount>> {
    let is_below =
        |mount: &Mount| path.strip_prefix(&mount.mount_point).is_some_and(|rest| rest.starts_with('/'));
    let best = mounts(kernel)?.into_iter().filter(is_below).max_by_key(|mount| mount.mount_point.len());
    Ok(best.filter(|mount| matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2")))
}

/// Where this process is in a hierarchy, as a directory, if it is visible here.
fn own_cgroup(kernel: &dyn Kernel, mount: &Mount) -> Option<String> {
    let text = kernel.read(paths::SELF_CGROUP).ok()?;
    let inside = text.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = match mount.fs_type.as_str() {
            "cgroup2" => id == "0" && controllers.is_empty(),
            _ => controllers.split(',').any(|c| !c.is_empty() && mount.has_super_option(c)),
        };
        is_it.then_some(path)
    })?;
    // In a container the mount may show only a part of the hierarchy.
    let below_root = inside.strip_prefix(mount.root.trim_end_matches('/'))?.trim_end_matches('/');
    let path = format!("{}{below_root}", mount.mount_point);
    (is_plain(&path) && kernel.inode(&path).is_ok()).then_some(path)
}

/// The directory in which a cgroup with `controller` can be made for a child of this process, so that
/// the limits on this process hold for it too. In v1 that is this process's own cgroup. In v2 a cgroup
/// that holds processes gives no controllers to its children, so it is the nearest one above that does.
pub(super) fn cgroup_parent(kernel: &dyn Kernel, controller: &str) -> Result<String, GuardError> {
    let mounts = mounts(kernel).map_err(|e| GuardError::io(paths::SELF_MOUNTINFO, e))?;
    let is_v1 = |m: &&Mount| m.fs_type == "cgroup" && m.has_super_option(controller);
    if let Some(mount) = mounts.iter().find(is_v1) {
        return Ok(own_cgroup(kernel, mount).unwrap_or_else(|| mount.mount_point.clone()));
    }
    let Some(mount) = mounts.iter().find(|m| m.fs_type == "cgroup2") else {
        let message = format!("no cgroup hierarchy with the controller {controller} is mounted");
        return Err(GuardError::new(ErrorKind::NotAvailable, message));
    };
    let own = own_cgroup(kernel, mount).unwrap_or_else(|| mount.mount_point.clone());
    let mut at = own.as_str();
    loop {
        let given = kernel.read(&format!("{at}/cgroup.subtree_control")).unwrap_or_default();
        if given.split_ascii_whitespace().any(|c| c == controller) {
            return Ok(at.to_owned());
        }
        match at.rsplit_once('/') {
            Some((above, _)) if above.len() >= mount.mount_point.len() => at = above,
            _ => break,
        }
    }
    let message = format!(
        "no cgroup above this process gives its children the controller {controller}; \
         a way out: echo +{controller} > {}/cgroup.subtree_control",
        mount.mount_point
    );
    Err(GuardError::new(ErrorKind::NotAvailable, message))
}

/// Where this process is in the hierarchy with `controller`, as a directory.
pub(super) fn own_cgroup_with(kernel: &dyn Kernel, controller: &str) -> Option<String> {
    let mounts = mounts(kernel).ok()?;
    let is_v1 = |m: &&Mount| m.fs_type == "cgroup" && m.has_super_option(controller);
    let mount = mounts.iter().find(is_v1).or_else(|| mounts.iter().find(|m| m.fs_type == "cgroup2"))?;
    own_cgroup(kernel, mount)
}

/// Where this process is in the hierarchy of version 2, as a directory.
pub(super) fn own_unified_cgroup(kernel: &dyn Kernel) -> Option<String> {
    let mounts = mounts(kernel).ok()?;
    own_cgroup(kernel, mounts.iter().find(|mount| mount.fs_type == "cgroup2")?)
}

/// The path of a new cgroup below `parent`. Process number and start time are in the name, so that no
/// two runs can ever mean the same directory, whenever they are killed.
pub(super) fn cgroup_path(parent: &str, label: &str, unique: &str) -> Result<String, GuardError> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if label.is_empty() || label.len() > LABEL_MAX || !label.bytes().all(is_fine) {
        let message = format!("{label:?} cannot be the label of a cgroup: letters, digits, - and _ can");
        return Err(GuardError::new(ErrorKind::Usage, message));
    }
    Ok(format!("{}/{CGROUP_PREFIX}{label}-{unique}", parent.trim_end_matches('/')))
}

/// Where the processes of a cgroup at `path` go when it is removed: back to where this process is.
pub(super) fn home_for(kernel: &dyn Kernel, path: &str) -> Option<String> {
    own_cgroup(kernel, &hierarchy(kernel, path).ok()??)
}

/// Moves the processes out of a cgroup and removes it. They go to `home`, else to the directory above,
/// which in v2 takes processes only if it is the root or gives no controllers to its children.
pub(super) fn remove_cgroup(kernel: &dyn Kernel, path: &str, home: Option<&str>) -> io::Result<()> {
    let parent = path.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
    let homes: Vec<&str> =
        home.filter(|h| is_same_hierarchy(kernel, path, h)).into_iter().chain([parent]).collect();
    let mut refusal = None;
    // A process may fork while it is moved, and an ended one leaves some milliseconds later.
    for _ in 0..50 {
        for pid in processes(kernel, path) {
            refusal = move_process(kernel, &pid, &homes).err().or(refusal);
        }
        match kernel.remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            other => return other,
        }
        thread::sleep(Duration::from_millis(10));
    }
    let left = processes(kernel, path);
    let text = match (left.is_empty(), refusal) {
        (true, _) => "is busy without a process in it; perhaps another cgroup is inside".to_owned(),
        (false, Some(error)) => format!("processes {} cannot be moved out: {error}", some_of(&left)),
        (false, None) => format!("processes {} keep coming back", some_of(&left)),
    };
    Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
}

fn is_same_hierarchy(kernel: &dyn Kernel, path: &str, other: &str) -> bool {
    let at = |path: &str| hierarchy(kernel, &format!("{path}/x")).ok().flatten().map(|mount| mount.id);
    is_plain(other) && at(other).is_some() && at(other) == at(path)
}

fn processes(kernel: &dyn Kernel, path: &str) -> BTreeSet<String> {
    let text = kernel.read(&format!("{path}/cgroup.procs")).unwrap_or_default();
    // 0 is a process of another pid namespace; written back it would mean ourselves.
    let is_pid = |line: &&str| line.parse::<u32>().is_ok_and(|pid| pid != 0);
    text.lines().filter(is_pid).map(str::to_owned).collect()
}

fn move_process(kernel: &dyn Kernel, pid: &str, homes: &[&str]) -> io::Result<()> {
    let mut last = Ok(());
    for home in homes {
        last = kernel.write(&format!("{home}/cgroup.procs"), pid);
        match &last {
            Ok(()) => return Ok(()),
            // ESRCH: it ended meanwhile, and so left the cgroup.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => return Ok(()),
            Err(_) => {}
        }
    }
    last
}

fn some_of(pids: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = pids.iter().take(5).map(String::as_str).collect();
    let more = if pids.len() > shown.len() { " …" } else { "" };
    format!("{}{more}", shown.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detours_are_no_plain_paths() {
        for path in ["", "a", "/", "/a//b", "/a/../b", "/a/./b", "/a/", "/a\0b"] {
            assert!(!is_plain(path), "{path:?}");
        }
        assert!(is_plain("/sys/fs/cgroup/pagelab-x"));
    }

    #[test]
    fn labels_cannot_leave_the_directory() {
        for label in ["", "../x", "a/b", "a b", &"x".repeat(LABEL_MAX + 1)] {
            assert!(cgroup_path("/sys/fs/cgroup", label, "1-2").is_err(), "{label:?}");
        }
        assert_eq!(cgroup_path("/c/", "run", "1-2").unwrap(), "/c/pagelab-run-1-2");
    }
}
