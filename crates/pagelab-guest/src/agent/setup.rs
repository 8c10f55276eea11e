//! What programs expect of a machine: file systems, modules, swap, a disk, control groups.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagelab_formats::swap_header;
use pagelab_model::{Bytes, PageSize};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::line::Line;
use crate::job::{BULK_PORT, Cgroup, CgroupVersion, DISK, DISK_FOLDER, FOLDER, Job, SWAP};
use crate::places;

/// How long a device may take to appear after its module is loaded.
const DEVICE: Duration = Duration::from_secs(10);
/// `MODULE_INIT_COMPRESSED_FILE` of finit_module: the kernel decompresses itself (5.17, MODULE_DECOMPRESS).
const COMPRESSED: i32 = 4;
/// The group in which steps run.
const GROUP: &str = "pagelab";

/// The device files, which everything else needs.
pub fn devices() -> Result<(), String> {
    mount_at("devtmpfs", "/dev", "mode=0755")
}

/// Says something on the kernel's console.
pub fn on_the_console(why: &str) {
    if let Ok(mut console) = File::options().write(true).open("/dev/console") {
        let _ = writeln!(console, "pagelab agent: {why}");
    }
}

/// Sets up all that the job wants, as far as it can; the rest is said. Returns the group in which steps run.
/// The error is what the machine lacks of the shape that was asked for: in another nothing is to be run.
pub fn everything(job: &Job, line: &Line) -> Result<Option<PathBuf>, String> {
    let told = |done: Result<(), String>| {
        if let Err(why) = done {
            line.note(why);
        }
    };
    for (kind, place, data) in places::MOUNTS {
        told(mount_at(kind, place, data));
    }
    let linked = std::os::unix::fs::symlink(places::OPEN_FILES, "/dev/fd");
    told(linked.map_err(|error| format!("cannot make /dev/fd: {error}")));
    let named = rustix::system::sethostname(b"guest");
    told(named.map_err(|errno| format!("cannot name this machine: {errno}")));
    told(std::env::set_current_dir(FOLDER).map_err(|error| format!("{FOLDER}: {error}")));
    for module in &job.modules {
        told(load(module));
    }
    if job.swap {
        swap()?;
    }
    if job.disk {
        mount_from(&disk(DISK)?, "ext4", DISK_FOLDER)?;
    }
    let Some(wanted) = job.cgroup else { return Ok(None) };
    match cgroup(wanted) {
        Err(why) if wanted.limit_bytes.is_none() => {
            line.note(why);
            Ok(None)
        }
        group => group,
    }
}

fn mount_at(kind: &str, place: &str, data: &str) -> Result<(), String> {
    let data = CString::new(data).unwrap_or_default();
    match mount(kind, place, kind, MountFlags::empty(), (!data.is_empty()).then_some(data.as_c_str())) {
        // The kernel mounts devtmpfs itself where it is told to.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(format!("cannot mount {kind} at {place}: {errno}")),
    }
}

fn mount_from(device: &Path, kind: &str, place: &str) -> Result<(), String> {
    mount(device, place, kind, MountFlags::NOATIME, None)
        .map_err(|errno| format!("cannot mount {} at {place}: {errno}", device.display()))
}

fn load(module: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot load {module}: {error}");
    let file = File::open(module).map_err(failed)?;
    let flags = if module.ends_with(".ko") { 0 } else { COMPRESSED };
    match rustix::system::finit_module(&file, c"", flags) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Waits for something that comes after its module was loaded.
fn awaited<T>(what: &str, find: impl Fn() -> Option<T>) -> Result<T, String> {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return Ok(found);
        }
        if start.elapsed() > DEVICE {
            return Err(format!("there is no {what}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The name of the entry of `folder` in whose `file` this text stands.
fn entry_with(folder: &str, file: &str, text: &str) -> Option<String> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| {
        fs::read_to_string(format!("{folder}/{name}/{file}")).is_ok_and(|found| found.trim() == text)
    })
}

/// The device file of the disk with this serial number.
fn disk(serial: &str) -> Result<PathBuf, String> {
    awaited(&format!("disk `{serial}`"), || {
        let device = Path::new("/dev").join(entry_with(places::BLOCK, "serial", serial)?);
        device.exists().then_some(device)
    })
}

/// The bulk channel, which these modules bring.
pub fn bulk_port(modules: &[String]) -> Result<File, String> {
    modules.iter().try_for_each(|module| load(module))?;
    let port = awaited("bulk channel", || {
        let device = Path::new("/dev").join(entry_with(places::PORTS, "name", BULK_PORT)?);
        device.exists().then_some(device)
    })?;
    File::options()
        .write(true)
        .open(&port)
        .map_err(|error| format!("cannot open {}: {error}", port.display()))
}

/// Makes the disk a swap area with the page size of this machine, and uses it.
fn swap() -> Result<(), String> {
    let device = disk(SWAP)?;
    let failed = |error: std::io::Error| format!("cannot swap to {}: {error}", device.display());
    let file = File::options().read(true).write(true).open(&device).map_err(failed)?;
    let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| failed(e.into()))?;
    let page_size = PageSize::new(rustix::param::page_size() as u64).ok_or("the page size is none")?;
    let header = swap_header::page(Bytes(bytes), page_size, "").ok_or("the swap disk is too small")?;
    file.write_all_at(&header, 0).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    let path = CString::new(device.to_string_lossy().as_bytes()).map_err(|e| e.to_string())?;
    pagelab_sys::swap::on(&path, None).map_err(failed)
}

/// Mounts the hierarchy that has the memory controller where every distribution has it, and makes the group
/// in which steps run, where there is a limit.
fn cgroup(wanted: Cgroup) -> Result<Option<PathBuf>, String> {
    let root = Path::new(places::CGROUPS);
    let failed = |what: &Path| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("cannot use {}: {error}", what.display())
    };
    let (memory, limit_file) = match wanted.version {
        CgroupVersion::V2 => {
            mount_at("cgroup2", places::CGROUPS, "")?;
            let control = root.join("cgroup.subtree_control");
            fs::write(&control, "+memory").map_err(failed(&control))?;
            (root.to_owned(), "memory.max")
        }
        CgroupVersion::V1 => {
            mount_at("tmpfs", places::CGROUPS, "mode=0755")?;
            let memory = root.join("memory");
            fs::create_dir(&memory).map_err(failed(&memory))?;
            mount_at("cgroup", &memory.to_string_lossy(), "memory").map_err(|why| {
                format!("{why}; this kernel may have no memory controller of version 1: --cgroup v2")
            })?;
            (memory, "memory.limit_in_bytes")
        }
    };
    let Some(limit) = wanted.limit_bytes else { return Ok(None) };
    let group = memory.join(GROUP);
    fs::create_dir(&group).map_err(failed(&group))?;
    let file = group.join(limit_file);
    fs::write(&file, limit.to_string()).map_err(failed(&file))?;
    Ok(Some(group))
}
