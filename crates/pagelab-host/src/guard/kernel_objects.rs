//! Kernel objects that pagelab creates and removes: cgroups, a mount of debugfs, trace instances;
//! and the names by which it recognises its own.

use std::collections::BTreeSet;
use std::time::Duration;
use std::{io, thread};

use pagelab_formats::cgroup;
use pagelab_formats::mountinfo::{self, Mount};
use rustix::io::Errno;

use super::journal::{JournalEntry, UndoResult, check_foreign, check_removed};
use super::kernel::Kernel;
use super::{GuardError, GuardErrorKind};
use crate::paths;

/// Every cgroup of pagelab starts so; no other is ever removed.
pub(super) const CGROUP_PREFIX: &str = "pagelab-";

/// Longest label that a caller may give a cgroup, in bytes.
const LABEL_MAX: usize = 40;

fn read_mounts(kernel: &dyn Kernel) -> io::Result<Vec<Mount>> {
    let text = kernel.read(paths::SELF_MOUNTINFO)?;
    mountinfo::parse(text.as_bytes()).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, error.message_in_file(paths::SELF_MOUNTINFO))
    })
}

/// The debugfs at `mount_point`, if the last mount there is one.
pub(super) fn find_debugfs(kernel: &dyn Kernel, mount_point: &str) -> io::Result<Option<u64>> {
    let mounts = read_mounts(kernel)?;
    let top = mounts.iter().rev().find(|mount| mount.mount_point == mount_point);
    Ok(top.filter(|mount| mount.fs_type == "debugfs").map(|mount| mount.id))
}

/// Whether `path` may be a cgroup that pagelab made: below a cgroup mount, named by us, without detours.
pub(super) fn is_our_cgroup(kernel: &dyn Kernel, path: &str) -> bool {
    let named_by_us = path.rsplit('/').next().is_some_and(|name| name.starts_with(CGROUP_PREFIX));
    named_by_us && is_plain_path(path) && find_cgroup_mount(kernel, path).is_ok_and(|mount| mount.is_some())
}

/// The cgroup mount that a path is below.
fn find_cgroup_mount(kernel: &dyn Kernel, path: &str) -> io::Result<Option<Mount>> {
    let is_below =
        |mount: &Mount| path.strip_prefix(&mount.mount_point).is_some_and(|rest| rest.starts_with('/'));
    let best = read_mounts(kernel)?.into_iter().filter(is_below).max_by_key(|mount| mount.mount_point.len());
    Ok(best.filter(|mount| matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2")))
}

/// Where this process is in a hierarchy, as a directory, if it is visible here.
fn own_cgroup_dir(kernel: &dyn Kernel, mount: &Mount) -> Option<String> {
    let text = kernel.read(paths::SELF_CGROUP).ok()?;
    let group =
        cgroup::parse(text.as_bytes()).ok()?.into_iter().find(|group| match mount.fs_type.as_str() {
            "cgroup2" => group.is_v2(),
            _ => group.controllers.iter().any(|controller| mount.has_super_option(controller)),
        })?;
    // In a container the mount may show only a part of the hierarchy.
    let below_root = group.path.strip_prefix(mount.root.trim_end_matches('/'))?.trim_end_matches('/');
    let path = format!("{}{below_root}", mount.mount_point);
    (is_plain_path(&path) && kernel.inode(&path).is_ok()).then_some(path)
}

/// The directory in which a cgroup with `controller` can be made for a child of this process, so that
/// the limits on this process hold for it too. In v1 that is this process's own cgroup. In v2 a cgroup
/// that holds processes gives no controllers to its children, so it is the nearest one above that does.
pub(super) fn cgroup_parent(kernel: &dyn Kernel, controller: &str) -> Result<String, GuardError> {
    let mounts = read_mounts(kernel)
        .map_err(|e| GuardError::from_io(format!("cannot read {}", paths::SELF_MOUNTINFO), e))?;
    let Some(mount) = find_hierarchy(&mounts, controller) else {
        let message =
            format!("cannot create a cgroup: no hierarchy with the {controller} controller is mounted");
        return Err(GuardError::new(GuardErrorKind::NotAvailable, message));
    };
    let own_dir = own_cgroup_dir(kernel, mount).unwrap_or_else(|| mount.mount_point.clone());
    if mount.fs_type == "cgroup" {
        return Ok(own_dir);
    }
    let mut dir = own_dir.as_str();
    loop {
        let given = kernel.read(&format!("{dir}/cgroup.subtree_control")).unwrap_or_default();
        if given.split_ascii_whitespace().any(|c| c == controller) {
            return Ok(dir.to_owned());
        }
        match dir.rsplit_once('/') {
            Some((above, _)) if above.len() >= mount.mount_point.len() => dir = above,
            _ => break,
        }
    }
    let message = format!(
        "cannot create a cgroup: no ancestor enables the {controller} controller for its children; hint: \
         echo +{controller} > {}/cgroup.subtree_control",
        mount.mount_point
    );
    Err(GuardError::new(GuardErrorKind::NotAvailable, message))
}

/// Where this process is in the hierarchy with `controller`, as a directory.
pub(super) fn own_cgroup_for_controller(kernel: &dyn Kernel, controller: &str) -> Option<String> {
    own_cgroup_dir(kernel, find_hierarchy(&read_mounts(kernel).ok()?, controller)?)
}

/// The hierarchy of version 1 with `controller`, else that of version 2.
fn find_hierarchy<'m>(mounts: &'m [Mount], controller: &str) -> Option<&'m Mount> {
    let is_v1 = |mount: &&Mount| mount.fs_type == "cgroup" && mount.has_super_option(controller);
    mounts.iter().find(is_v1).or_else(|| mounts.iter().find(|mount| mount.fs_type == "cgroup2"))
}

/// Where this process is in the hierarchy of version 2, as a directory.
pub(super) fn own_unified_cgroup(kernel: &dyn Kernel) -> Option<String> {
    let mounts = read_mounts(kernel).ok()?;
    own_cgroup_dir(kernel, mounts.iter().find(|mount| mount.fs_type == "cgroup2")?)
}

/// The path of a new cgroup below `parent`. Process number and start time are in the name, so that no
/// two runs can ever mean the same directory, whenever they are killed.
pub(super) fn cgroup_path(parent: &str, label: &str, unique: &str) -> Result<String, GuardError> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if label.is_empty() || label.len() > LABEL_MAX || !label.bytes().all(is_fine) {
        let message =
            format!("cannot create a cgroup: expected a label of letters, digits, - and _, found {label:?}");
        return Err(GuardError::new(GuardErrorKind::InvalidRequest, message));
    }
    Ok(format!("{}/{CGROUP_PREFIX}{label}-{unique}", parent.trim_end_matches('/')))
}

/// Where the processes of a cgroup at `path` go when it is removed: back to where this process is.
pub(super) fn return_cgroup(kernel: &dyn Kernel, path: &str) -> Option<String> {
    own_cgroup_dir(kernel, &find_cgroup_mount(kernel, path).ok()??)
}

/// Moves the processes out of a cgroup and removes it. They go to `home`, else to the directory above,
/// which in v2 takes processes only if it is the root or gives no controllers to its children.
pub(super) fn remove_cgroup(kernel: &dyn Kernel, path: &str, home: Option<&str>) -> io::Result<()> {
    let parent = path.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
    let homes: Vec<&str> =
        home.filter(|h| is_same_hierarchy(kernel, path, h)).into_iter().chain([parent]).collect();
    let mut last_error = None;
    // A process may fork while it is moved, and an ended one leaves some milliseconds later.
    let removed = retry(50, RETRY_DELAY, io::ErrorKind::ResourceBusy, || {
        for pid in read_pids(kernel, path) {
            last_error = move_process(kernel, &pid, &homes).err().or(last_error.take());
        }
        kernel.remove_dir(path)
    });
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        other => return other,
    }
    let left = read_pids(kernel, path);
    let text = match (left.is_empty(), last_error) {
        (true, _) => "is busy but has no processes; it may contain another cgroup".to_owned(),
        (false, Some(error)) => {
            format!("cannot move processes {} out of it: {error}", format_some_pids(&left))
        }
        (false, None) => format!("processes {} keep reappearing in it", format_some_pids(&left)),
    };
    Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
}

fn is_same_hierarchy(kernel: &dyn Kernel, path: &str, other: &str) -> bool {
    let at =
        |path: &str| find_cgroup_mount(kernel, &format!("{path}/x")).ok().flatten().map(|mount| mount.id);
    is_plain_path(other) && at(other).is_some() && at(other) == at(path)
}

fn read_pids(kernel: &dyn Kernel, path: &str) -> BTreeSet<String> {
    let text = kernel.read(&format!("{path}/cgroup.procs")).unwrap_or_default();
    // 0 is a process of another pid namespace; written back it would mean ourselves.
    let is_pid = |line: &&str| line.parse::<u32>().is_ok_and(|pid| pid != 0);
    text.lines().filter(is_pid).map(str::to_owned).collect()
}

fn move_process(kernel: &dyn Kernel, pid: &str, homes: &[&str]) -> io::Result<()> {
    let mut last = Ok(());
    for home in homes {
        last = kernel.write(&format!("{home}/cgroup.procs"), pid);
        // ESRCH: it ended meanwhile, and so left the cgroup.
        if last.as_ref().err().is_none_or(|error| Errno::from_io_error(error) == Some(Errno::SRCH)) {
            return Ok(());
        }
    }
    last
}

/// Repeats an action at most this often while it fails in this way.
pub(super) fn retry(
    retries_max: usize,
    delay: Duration,
    kind: io::ErrorKind,
    mut action: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let mut result = action();
    for _ in 0..retries_max {
        if !result.as_ref().is_err_and(|error| error.kind() == kind) {
            break;
        }
        thread::sleep(delay);
        result = action();
    }
    result
}

fn format_some_pids(pids: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = pids.iter().take(5).map(String::as_str).collect();
    let more = if pids.len() > shown.len() { " …" } else { "" };
    format!("{}{more}", shown.join(" "))
}

// Trace instance of pagelab: a private ftrace buffer, created and removed as a directory.
//
// A trace instance uses memory, and its events cost all programs time, as long as it exists. The kernel frees
// the buffer when the recording process exits (`tracepoints/ftrace.rs`); the rest is removed here.

/// A file of it that is still open keeps it: those of a killed process are closed one after another.
const REMOVE_ATTEMPTS_MAX: usize = 25;
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Removes the instance, its buffer and all recorded events.
pub(super) fn undo_trace_instance(kernel: &dyn Kernel, entry: &JournalEntry, path: &str) -> UndoResult {
    if let Some(undo) = check_foreign(kernel.inode(path), entry, "another trace instance has this name now")?
    {
        return Ok(undo);
    }
    let busy = io::ErrorKind::ResourceBusy;
    match retry(REMOVE_ATTEMPTS_MAX, RETRY_DELAY, busy, || kernel.remove_dir(path)) {
        Err(error) if error.kind() == busy => {
            let text = "a program has one of its files open; hint: stop it, then run pagelab restore";
            Err(io::Error::new(busy, text))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => check_removed(kernel.inode(path)),
    }
}

/// Prefix of the name of every swap file of pagelab; no other is ever removed.
pub(super) const SWAP_FILE_PREFIX: &str = "pagelab-swap-";

/// Prefix of the name of every trace instance of pagelab; no other is ever removed.
pub(super) const TRACE_INSTANCE_PREFIX: &str = "pagelab-";

/// Whether a path is absolute and no component is empty, `.` or `..`.
pub(super) fn is_plain_path(path: &str) -> bool {
    let Some(relative) = path.strip_prefix('/') else { return false };
    relative.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains('\0')
}

/// Whether a path may be a swap file that pagelab made.
pub(super) fn is_swap_file(path: &str) -> bool {
    is_plain_path(path) && path.rsplit('/').next().is_some_and(|name| name.starts_with(SWAP_FILE_PREFIX))
}

/// Whether a path may be a trace instance that pagelab made.
pub(super) fn is_trace_instance(path: &str) -> bool {
    let name = path.strip_prefix(paths::TRACE_INSTANCES).and_then(|rest| rest.strip_prefix('/'));
    is_plain_path(path)
        && name.is_some_and(|name| name.starts_with(TRACE_INSTANCE_PREFIX) && !name.contains('/'))
}

/// The process that made the swap file of this name (without its directory), if the name is one of pagelab's.
pub fn swap_file_creator(name: &str) -> Option<u32> {
    name.strip_prefix(SWAP_FILE_PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_leave_the_directory() {
        for label in ["", "../x", "a/b", "a b", &"x".repeat(LABEL_MAX + 1)] {
            assert!(cgroup_path("/sys/fs/cgroup", label, "1-2").is_err(), "{label:?}");
        }
        assert_eq!(cgroup_path("/c/", "run", "1-2").unwrap(), "/c/pagelab-run-1-2");
    }

    #[test]
    fn a_path_with_detours_is_not_plain() {
        for path in ["", "a", "/", "/a//b", "/a/../b", "/a/./b", "/a/", "/a\0b"] {
            assert!(!is_plain_path(path), "{path:?}");
        }
        assert!(is_plain_path("/sys/fs/cgroup/pagelab-x"));
    }

    #[test]
    fn only_names_with_the_prefix_are_swap_files_of_pagelab() {
        for path in
            ["/var/tmp/swapfile", "/var/tmp/pagelab-swap-1/x", "var/pagelab-swap-1", "/a/../pagelab-swap-1"]
        {
            assert!(!is_swap_file(path), "{path}");
        }
        assert!(is_swap_file("/var/tmp/pagelab-swap-1-2-3"));
        for (name, maker) in [("pagelab-swap-17-2-3", Some(17)), ("pagelab-swap-x", None), ("swapfile", None)]
        {
            assert_eq!(swap_file_creator(name), maker, "{name}");
        }
    }

    #[test]
    fn only_names_with_the_prefix_are_trace_instances_of_pagelab() {
        for path in [
            "/sys/kernel/tracing/instances/other",
            "/sys/kernel/tracing/instances/pagelab-1/../other",
            "/sys/kernel/tracing/instances/pagelab-1/events",
            "/sys/kernel/tracing/pagelab-1",
            "/sys/kernel/tracing/instances",
        ] {
            assert!(!is_trace_instance(path), "{path}");
        }
        assert!(is_trace_instance("/sys/kernel/tracing/instances/pagelab-1-2-0"));
    }
}
