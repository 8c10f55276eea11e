//! What a guest starts from: our own program as PID 1, modules, the job, given files, in a file in memory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::cpio::{Cpio, WrongSize};
use crate::elf;
use crate::error::{Error, Kind};
use crate::job::{FOLDER, Job};
use crate::places;

/// Where the job lies.
pub const JOB: &str = "/job";
/// The program by the name that users know.
pub const PROGRAM: &str = "/bin/pagelab";
const INIT: &str = "/init";
const MODULES: &str = "/modules";

/// What goes into it.
#[derive(Debug)]
pub struct Contents<'a> {
    /// The program that becomes PID 1; `None` is the one that runs.
    pub program: Option<&'a Path>,
    /// Module files of the host, in the order to load them.
    pub modules: &'a [PathBuf],
    /// Files of the host for the folder in which steps run.
    pub gives: &'a [PathBuf],
}

/// The place of each module in the initramfs.
pub fn module_places(modules: &[PathBuf]) -> Vec<String> {
    let name =
        |path: &PathBuf| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    // The number keeps two of one name apart, and shows the order to whoever looks.
    (0..).zip(modules).map(|(index, path)| format!("{MODULES}/{index:02}-{}", name(path))).collect()
}

/// Packs everything into a file without a name.
pub fn pack(contents: &Contents<'_>, job: &Job) -> Result<File, Error> {
    let failed = |error: io::Error| Error::refused("cannot pack the initramfs", error);
    let fd = memfd_create("pagelab-initramfs", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let mut cpio = Cpio::new(BufWriter::with_capacity(1 << 20, File::from(fd)));
    let program = contents.program.unwrap_or(Path::new(places::SELF));
    let bytes = std::fs::read(program)
        .map_err(|error| Error::refused(format!("cannot read {}", program.display()), error))?;
    let mounts = places::MOUNTS.map(|(_, place, _)| place);
    // Only what is not inside another mount is a folder of ours.
    let roots = mounts.into_iter().filter(|place| place.matches('/').count() == 1);
    for folder in roots.chain(["/dev", "/bin", "/etc", MODULES, FOLDER, crate::job::DISK_FOLDER]) {
        cpio.folder(folder).map_err(failed)?;
    }
    cpio.program(INIT, &elf::loaded_part(bytes)).map_err(failed)?;
    cpio.link(PROGRAM, INIT).map_err(failed)?;
    let job = job.to_bytes();
    cpio.file(JOB, job.len() as u64, &mut &job[..]).map_err(failed)?;
    for (place, path) in module_places(contents.modules).iter().zip(contents.modules) {
        let failed = |error| Error::refused(format!("cannot pack {}", path.display()), error);
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        cpio.file(place, bytes, &mut &file).map_err(failed)?;
    }
    for path in contents.gives {
        let name = path.file_name().and_then(|name| name.to_str());
        let no_name =
            || Error::new(Kind::Usage, format!("--give {}: has no name to give it by", path.display()));
        give(&mut cpio, &format!("{FOLDER}/{}", name.ok_or_else(no_name)?), path)?;
    }
    let file = cpio.finish().map_err(failed)?.into_inner().map_err(|error| failed(error.into_error()))?;
    (&file).flush().map_err(failed)?;
    Ok(file)
}

/// The size of a file to give, asked before it is opened: opening a FIFO would wait for a writer.
pub fn given_bytes(path: &Path) -> Result<u64, Error> {
    let meta = std::fs::metadata(path).map_err(|error| unread(path, error))?;
    if !meta.is_file() {
        let message =
            format!("--give {}: a plain file was wanted; an archive takes several at once", path.display());
        return Err(Error::new(Kind::Input, message));
    }
    Ok(meta.len())
}

fn give<W: Write>(cpio: &mut Cpio<W>, place: &str, path: &Path) -> Result<(), Error> {
    let bytes = given_bytes(path)?;
    let mut file = File::open(path).map_err(|error| unread(path, error))?;
    let is_program = file.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o111 != 0);
    let given = match is_program {
        true => cpio.program_from(place, bytes, &mut file),
        false => cpio.file(place, bytes, &mut file),
    };
    given.map_err(|error| match error.get_ref().is_some_and(|e| e.is::<WrongSize>()) {
        true => {
            Error::new(Kind::Input, format!("--give {}: {error}: copy it, and give the copy", path.display()))
        }
        false => Error::refused(format!("cannot give {} to the guest", path.display()), error),
    })
}

fn unread(path: &Path, error: io::Error) -> Error {
    let (kind, way_out) = match error.kind() {
        io::ErrorKind::PermissionDenied => (Kind::NotAvailable, "run as a user who may read it"),
        _ => (Kind::Input, "give an existing file"),
    };
    Error::new(kind, format!("--give {}: {error}: {way_out}", path.display()))
}
