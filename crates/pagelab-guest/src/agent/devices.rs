//! Modules and device files of the guest.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::job::BULK_PORT;
use crate::paths;

/// The first virtio console.
const TERMINAL: &str = "/dev/hvc0";
/// How long a device may take to appear after its module is loaded.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// `MODULE_INIT_COMPRESSED_FILE` of finit_module: the kernel decompresses itself (5.17, MODULE_DECOMPRESS).
const MODULE_INIT_COMPRESSED_FILE: i32 = 4;

/// Loads a module, unless it is loaded.
pub fn load_module(module: &str) -> Result<(), String> {
    load_module_with(module, "")
}

/// The same with parameters.
pub fn load_module_with(module: &str, parameters: &str) -> Result<(), String> {
    let to_error = |error: io::Error| format!("cannot load {module}: {error}");
    let file = File::open(module).map_err(to_error)?;
    let parameters = CString::new(parameters).map_err(|error| to_error(error.into()))?;
    let flags = if module.ends_with(".ko") { 0 } else { MODULE_INIT_COMPRESSED_FILE };
    match rustix::system::finit_module(&file, &parameters, flags) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(to_error(errno.into())),
    }
}

/// Unloads a module that nothing uses.
pub fn unload_module(name: &str) -> Result<(), String> {
    let to_error = |error: io::Error| format!("cannot unload {name}: {error}");
    let c_name = CString::new(name).map_err(|error| to_error(error.into()))?;
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    rustix::system::delete_module(&c_name, flags).map_err(|errno| to_error(errno.into()))
}

/// Waits for the device file of the entry of `folder` whose `file` contains this text: it appears after the
/// module was loaded.
fn wait_for_device(description: &str, folder: &str, file: &str, text: &str) -> Result<PathBuf, String> {
    let start = Instant::now();
    loop {
        let device = find_entry_with(folder, file, text).map(|name| Path::new("/dev").join(name));
        if let Some(device) = device.filter(|device| device.exists()) {
            return Ok(device);
        }
        if start.elapsed() > DEVICE_TIMEOUT {
            return Err(format!("{description} not found"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The entry of `folder` whose `file` contains this text.
fn find_entry_with(folder: &str, file: &str, text: &str) -> Option<String> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| {
        fs::read_to_string(format!("{folder}/{name}/{file}")).is_ok_and(|found| found.trim() == text)
    })
}

/// The device file of the disk with this serial number.
pub fn find_disk(serial: &str) -> Result<PathBuf, String> {
    wait_for_device(&format!("disk `{serial}`"), paths::BLOCK_CLASS_DIR, "serial", serial)
}

/// The terminal channel, once its driver has made it.
pub fn open_terminal() -> io::Result<File> {
    let start = Instant::now();
    loop {
        match File::options().read(true).write(true).open(TERMINAL) {
            Err(_) if start.elapsed() < DEVICE_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened,
        }
    }
}

/// Loads the modules of the bulk channel and opens it.
pub fn open_bulk_port(modules: &[String]) -> Result<File, String> {
    modules.iter().try_for_each(|module| load_module(module))?;
    let port = wait_for_device("bulk channel", paths::VIRTIO_PORTS_DIR, "name", BULK_PORT)?;
    File::options()
        .write(true)
        .open(&port)
        .map_err(|error| format!("cannot open {}: {error}", port.display()))
}
