//! Environment of programs in a guest: file systems, modules, swap, a disk, control groups.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagelab_formats::swap;
use pagelab_model::module_features::{RECLAIM, UNREFERENCED};
use pagelab_model::source_tree::TREE_DEVICE;
use pagelab_model::{Bytes, PageSize};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind_recursive};

use super::devices::{find_disk, load_module};
use super::host_link::HostLink;
use crate::initramfs::{INIT_PATH, JOB_PATH};
use crate::job::{
    CgroupConfig, CgroupVersion, DISK_MOUNT, DISK_SERIAL, GuestJob, SWAP_SERIAL, TOOLS_MOUNT, TOOLS_SERIAL,
    TREE_SERIAL, WORK_DIR,
};
use crate::paths;
use crate::tool_disk;

/// The group in which steps run.
const CGROUP_NAME: &str = "pagelab";

/// The device files, which everything else needs.
pub fn mount_devtmpfs() -> Result<(), String> {
    mount_at("devtmpfs", "/dev", "mode=0755")
}

/// Says something on the kernel's console.
pub fn print_to_console(reason: &str) {
    if let Ok(mut console) = File::options().write(true).open("/dev/console") {
        let _ = writeln!(console, "pagelab agent: {reason}");
    }
}

/// Sets up what the job requests, as far as possible; the rest is reported. Returns the group in which steps
/// run. The error names a requested part that the machine lacks: without it nothing is run.
pub fn set_up_guest(job: &GuestJob, link: &HostLink) -> Result<Option<PathBuf>, String> {
    let failures = |done: Result<(), String>| {
        if let Err(reason) = done {
            link.send_note(reason);
        }
    };
    for (kind, mount_point, data) in paths::MOUNTS {
        failures(mount_at(kind, mount_point, data));
    }
    let linked = std::os::unix::fs::symlink(paths::OPEN_FDS_DIR, "/dev/fd");
    failures(linked.map_err(|error| format!("cannot create /dev/fd: {error}")));
    let named = rustix::system::sethostname(b"guest");
    failures(named.map_err(|errno| format!("cannot set the host name: {errno}")));
    failures(std::env::set_current_dir(WORK_DIR).map_err(|error| format!("{WORK_DIR}: {error}")));
    for module in &job.modules {
        failures(load_module(module));
    }
    job.module_lines.iter().try_for_each(|line| switch_feature(line))?;
    if job.swap {
        enable_swap()?;
    }
    if job.disk {
        let device = find_disk(DISK_SERIAL)?;
        mount(device.as_path(), DISK_MOUNT, "ext4", MountFlags::NOATIME, None)
            .map_err(|errno| format!("cannot mount {} at {DISK_MOUNT}: {errno}", device.display()))?;
    }
    let group = match job.cgroup.map(|config| (config, create_cgroup(config))) {
        None => None,
        Some((config, Err(why))) if config.limit_bytes.is_none() => {
            link.send_note(why);
            None
        }
        Some((_, group)) => group?,
    };
    // After the control groups: their hierarchy is shared with the root of the tools.
    if job.tools {
        mount_tools(job.disk)?;
    }
    if job.tree {
        link_tree()?;
    }
    Ok(group)
}

/// Writes a line to the control file of pagelab's module.
fn switch_feature(line: &str) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot switch `{line}` in the module of pagelab: {error}");
    // The module refuses this state while MGLRU is on, as it is in 6.12. The guest is discarded.
    let is_unreferenced = line.trim().split_once(' ') == Some((RECLAIM, UNREFERENCED));
    if is_unreferenced && Path::new(paths::LRU_GEN_ENABLED).exists() {
        fs::write(paths::LRU_GEN_ENABLED, "0").map_err(cannot)?;
    }
    fs::write(paths::MODULE_CONTROL, line).map_err(cannot)
}

fn mount_at(kind: &str, mount_point: &str, data: &str) -> Result<(), String> {
    let data = CString::new(data).unwrap_or_default();
    match mount(kind, mount_point, kind, MountFlags::empty(), (!data.is_empty()).then_some(data.as_c_str())) {
        // The kernel mounts devtmpfs itself if configured to.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(format!("cannot mount {kind} at {mount_point}: {errno}")),
    }
}

/// Mounts the tool disk, and in its root what programs expect: file systems of the kernel, directories of
/// this guest, and pagelab.
fn mount_tools(has_disk: bool) -> Result<(), String> {
    let device = find_disk(TOOLS_SERIAL)?;
    mount(device.as_path(), TOOLS_MOUNT, "ext4", MountFlags::RDONLY | MountFlags::NOATIME, None)
        .map_err(|errno| format!("cannot mount {} at {TOOLS_MOUNT}: {errno}", device.display()))?;
    let shared = paths::SHARED_WITH_TOOLS
        .into_iter()
        .chain([WORK_DIR])
        .chain(has_disk.then_some(DISK_MOUNT))
        .map(|path| (path, path));
    // By the job, pagelab knows that it is in a guest (`runs_in_guest`).
    for (from, to) in shared.chain([(INIT_PATH, tool_disk::PAGELAB_PATH), (JOB_PATH, JOB_PATH)]) {
        let target = format!("{TOOLS_MOUNT}{to}");
        mount_bind_recursive(from, &*target)
            .map_err(|errno| format!("cannot mount {from} at {target}: {errno}"))?;
    }
    Ok(())
}

/// Gives the disk of a source tree the name by which a workload finds it.
fn link_tree() -> Result<(), String> {
    let device = find_disk(TREE_SERIAL)?;
    std::os::unix::fs::symlink(&device, TREE_DEVICE)
        .map_err(|error| format!("cannot create {TREE_DEVICE}: {error}"))
}

/// Makes the disk a swap area with the page size of this machine, and uses it.
fn enable_swap() -> Result<(), String> {
    let device = find_disk(SWAP_SERIAL)?;
    let to_error = |error: std::io::Error| format!("cannot use {} for swap: {error}", device.display());
    let file = File::options().read(true).write(true).open(&device).map_err(to_error)?;
    let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| to_error(e.into()))?;
    let page_size = PageSize::new(rustix::param::page_size() as u64).ok_or("invalid page size")?;
    let header = swap::header_page(Bytes(bytes), page_size, "").ok_or("the swap disk is too small")?;
    file.write_all_at(&header, 0).map_err(to_error)?;
    file.sync_all().map_err(to_error)?;
    let path = CString::new(device.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
    pagelab_sys::swap::swap_on(&path, None).map_err(to_error)
}

/// Mounts the hierarchy that has the memory controller where every distribution has it, and makes the group
/// in which steps run, where there is a limit.
fn create_cgroup(config: CgroupConfig) -> Result<Option<PathBuf>, String> {
    let root = Path::new(paths::CGROUP_DIR);
    let to_error = |what: &Path| {
        let description = what.to_owned();
        move |error: std::io::Error| format!("cannot use {}: {error}", description.display())
    };
    let (memory_cgroup, limit_file) = match config.version {
        CgroupVersion::V2 => {
            mount_at("cgroup2", paths::CGROUP_DIR, "")?;
            let control = root.join("cgroup.subtree_control");
            fs::write(&control, "+memory").map_err(to_error(&control))?;
            (root.to_owned(), "memory.max")
        }
        CgroupVersion::V1 => {
            mount_at("tmpfs", paths::CGROUP_DIR, "mode=0755")?;
            let memory_cgroup = root.join("memory");
            fs::create_dir(&memory_cgroup).map_err(to_error(&memory_cgroup))?;
            mount_at("cgroup", &memory_cgroup.to_string_lossy(), "memory").map_err(|why| {
                format!("{why}; hint: use --cgroup v2; this kernel may lack the cgroup v1 memory controller")
            })?;
            (memory_cgroup, "memory.limit_in_bytes")
        }
    };
    let Some(limit) = config.limit_bytes else { return Ok(None) };
    let group = memory_cgroup.join(CGROUP_NAME);
    fs::create_dir(&group).map_err(to_error(&group))?;
    let file = group.join(limit_file);
    fs::write(&file, limit.to_string()).map_err(to_error(&file))?;
    Ok(Some(group))
}
