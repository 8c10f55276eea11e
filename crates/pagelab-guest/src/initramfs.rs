//! Initramfs of a guest, in an in-memory file: pagelab as PID 1, modules, the job and given files.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pagelab_model::failure::describe_io_error;
use pagelab_model::{Failure, FailureKind};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::cpio::{CpioWriter, SizeMismatch};
use crate::elf;
use crate::job::{DISK_MOUNT, GuestJob, TOOLS_MOUNT, WORK_DIR};
use crate::paths;

/// Path of the job.
pub const JOB_PATH: &str = "/job";
/// The program by the name that users know.
pub const PROGRAM_PATH: &str = "/bin/pagelab";
/// The program as PID 1.
pub const INIT_PATH: &str = "/init";
const MODULES_DIR: &str = "/modules";

/// The place of each module in the initramfs.
pub fn module_paths(modules: &[PathBuf]) -> Vec<String> {
    let name =
        |path: &PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    // The number distinguishes two files with one name, and shows the order.
    (0..).zip(modules).map(|(index, path)| format!("{MODULES_DIR}/{index:02}-{}", name(path))).collect()
}

/// Packs everything into a file without a name: the program that becomes PID 1 (`None` is the one that runs),
/// module files of the host in the order to load them, and files for the folder in which steps run.
pub fn pack_initramfs(
    program: Option<&Path>,
    modules: &[PathBuf],
    input_files: &[PathBuf],
    job: &GuestJob,
) -> Result<File, Failure> {
    let to_error = |error: io::Error| Failure::system_error("cannot pack the initramfs", error);
    let fd = memfd_create("pagelab-initramfs", MemfdFlags::CLOEXEC).map_err(|e| to_error(e.into()))?;
    let mut cpio = CpioWriter::new(BufWriter::with_capacity(1 << 20, File::from(fd)));
    let program = program.unwrap_or(Path::new(paths::SELF_EXE));
    let bytes = std::fs::read(program)
        .map_err(|error| Failure::system_error(format!("cannot read {}", program.display()), error))?;
    let mounts = paths::MOUNTS.map(|(_, place, _)| place);
    // Only directories outside other mounts are created.
    let roots = mounts.into_iter().filter(|place| place.matches('/').count() == 1);
    let own = ["/dev", "/bin", "/etc", MODULES_DIR, WORK_DIR, DISK_MOUNT, TOOLS_MOUNT];
    for folder in roots.chain(own) {
        cpio.add_dir(folder).map_err(to_error)?;
    }
    let init = elf::truncate_to_loaded(bytes);
    cpio.add_executable(INIT_PATH, init.len() as u64, &mut &init[..]).map_err(to_error)?;
    cpio.add_symlink(PROGRAM_PATH, INIT_PATH).map_err(to_error)?;
    let job = job.to_bytes();
    cpio.add_file(JOB_PATH, job.len() as u64, &mut &job[..]).map_err(to_error)?;
    for (archive_path, path) in module_paths(modules).iter().zip(modules) {
        let to_error = |error| Failure::system_error(format!("cannot pack {}", path.display()), error);
        let file = File::open(path).map_err(to_error)?;
        let bytes = file.metadata().map_err(to_error)?.len();
        cpio.add_file(archive_path, bytes, &mut &file).map_err(to_error)?;
    }
    for path in input_files {
        let name = path.file_name().and_then(|name| name.to_str());
        let no_name = || {
            Failure::new(FailureKind::Usage, format!("cannot give {}: it has no file name", path.display()))
        };
        add_input_file(&mut cpio, &format!("{WORK_DIR}/{}", name.ok_or_else(no_name)?), path)?;
    }
    let file = cpio.finish().map_err(to_error)?.into_inner().map_err(|error| to_error(error.into_error()))?;
    (&file).flush().map_err(to_error)?;
    Ok(file)
}

/// Size of a given file, read before it is opened: opening a FIFO would wait for a writer.
pub fn input_file_bytes(path: &Path) -> Result<u64, Failure> {
    let meta = std::fs::metadata(path).map_err(|error| read_error(path, error))?;
    if !meta.is_file() {
        let message = format!(
            "cannot give {}: expected a regular file; hint: pack several files into an archive",
            path.display()
        );
        return Err(Failure::new(FailureKind::BadInput, message));
    }
    Ok(meta.len())
}

fn add_input_file<W: Write>(
    cpio: &mut CpioWriter<W>,
    archive_path: &str,
    path: &Path,
) -> Result<(), Failure> {
    let bytes = input_file_bytes(path)?;
    let mut file = File::open(path).map_err(|error| read_error(path, error))?;
    let is_program = file.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o111 != 0);
    let given = match is_program {
        true => cpio.add_executable(archive_path, bytes, &mut file),
        false => cpio.add_file(archive_path, bytes, &mut file),
    };
    given.map_err(|error| match error.get_ref().is_some_and(|e| e.is::<SizeMismatch>()) {
        true => Failure::new(
            FailureKind::BadInput,
            format!("cannot give {}: {error}; hint: copy it and give the copy", path.display()),
        ),
        false => Failure::system_error(format!("cannot give {} to the guest", path.display()), error),
    })
}

fn read_error(path: &Path, error: io::Error) -> Failure {
    let kind = FailureKind::of_read_error(error.kind());
    let hint = match kind {
        FailureKind::NotAvailable => "run as a user who can read it",
        _ => "give an existing file",
    };
    Failure::cannot(kind, format_args!("read {}", path.display()), describe_io_error(&error)).hint(hint)
}
