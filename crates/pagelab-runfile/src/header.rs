//! The first look at a file, before SQLite sees it: whether it is ours, and whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{Error, ErrorKind, kind_of};
use crate::live;
use crate::schema;

/// Bytes of the header of an SQLite file (<https://www.sqlite.org/fileformat2.html>, section 1.3).
const HEADER_BYTES: usize = 100;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Beginnings of files that somebody may take for a run file, and what to do with them.
const OTHERS: [(&[u8], &str); 4] = [
    (b"\x1f\x8b", "it is packed by gzip; unpack it first"),
    (
        b"\x28\xb5\x2f\xfd",
        "it is packed by zstd; unpack it first, or read a saved tree with `checkup --root`",
    ),
    (b"\xfd7zXZ\0", "it is packed by xz; unpack it first"),
    (b"PK\x03\x04", "it is a zip archive; unpack it first"),
];

const EMPTY: &str = "it is empty: no run was ever begun in it; remove it, and measure again";

/// Checks the file itself. `is_alone`: nothing lies beside it that could complete it.
pub(crate) fn check(path: &Path, whole: &Path, is_alone: bool) -> Result<(), Error> {
    let metadata = std::fs::metadata(whole).map_err(|error| cannot_open(path, &error))?;
    check_type(path, &metadata)?;
    if live::is_written_here(&metadata) {
        return Ok(());
    }
    let mut start = Vec::with_capacity(HEADER_BYTES);
    open(whole)
        .and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut start))
        .map_err(|error| cannot_open(path, &error))?;
    let bytes = metadata.len();
    let problem = match &*start {
        [] => Some((ErrorKind::NotOurs, EMPTY.to_owned())),
        start if !start.starts_with(&MAGIC[..start.len().min(MAGIC.len())]) => {
            Some((ErrorKind::NotOurs, not_sqlite(start)))
        }
        start if start.len() < HEADER_BYTES => Some((ErrorKind::Damaged, cut_off(bytes, None))),
        start => check_header(start, bytes, is_alone),
    };
    problem.map_or(Ok(()), |(kind, problem)| Err(Error::read(kind, path, problem)))
}

/// What opening a path failed with.
pub(crate) fn cannot_open(path: &Path, error: &std::io::Error) -> Error {
    let kind = kind_of(error);
    let problem = match kind {
        ErrorKind::NotThere => "there is no such file".to_owned(),
        ErrorKind::NotPermitted => format!("{error}; ask its owner, or become root"),
        _ => error.to_string(),
    };
    Error::read(kind, path, problem)
}

/// Opens a file that was found to be a regular one; should it have become a FIFO since, this does not block.
pub(crate) fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// The same for writing.
pub(crate) fn open_to_write(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)
}

/// Whether the file is in the mode in which changes go to a log first: 2 at byte 19 of the header.
pub(crate) fn has_log(whole: &Path) -> bool {
    let mut start = [0; 20];
    open(whole).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start[19] == 2
}

/// An error that names what it is, if it is no regular file.
fn check_type(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "it is a folder; a tree saved by `pagelab capture` is read by `pagelab checkup --root`"
    } else if kind.is_fifo() {
        "it is a FIFO; a run file is read at many places, so copy it into a file first"
    } else if kind.is_socket() {
        "it is a socket, not a file"
    } else {
        "it is a device, not a file"
    };
    Err(Error::read(ErrorKind::NotOurs, path, what))
}

fn not_sqlite(start: &[u8]) -> String {
    let known = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, what)| *what);
    let is_text = std::str::from_utf8(start).is_ok_and(|text| !text.contains('\0'));
    let what = known.unwrap_or(match is_text {
        true => "it is a text, not a run file; a buddyinfo is read by `pagelab frag --from`",
        false => "it is no run file; `pagelab record` and `pagelab checkup --run FILE` make one",
    });
    what.to_owned()
}

/// `header` has all of its bytes.
fn check_header(header: &[u8], bytes: u64, is_alone: bool) -> Option<(ErrorKind, String)> {
    let number = |at: usize| {
        let field = header.get(at..at + 4).and_then(|field| field.try_into().ok());
        u32::from_be_bytes(field.unwrap_or_default())
    };
    if number(68) != schema::APPLICATION_ID {
        let what = "it is another program's SQLite file; `pagelab record` and `pagelab checkup --run FILE` \
                    make run files";
        return Some((ErrorKind::NotOurs, what.to_owned()));
    }
    if let Some(problem) = schema::refusal(number(60)) {
        return Some(problem);
    }
    // A page size of 64 KiB does not fit in its field, and stands there as 1.
    let page_bytes = match u64::from(header[16]) << 8 | u64::from(header[17]) {
        1 => 1 << 16,
        bytes => bytes,
    };
    let pages = u64::from(number(28));
    if !page_bytes.is_power_of_two() || page_bytes < 512 {
        return Some((ErrorKind::Damaged, format!("it is damaged: its pages have {page_bytes} bytes")));
    }
    // Somebody who was killed while he wrote may have left the rest in the log beside the file.
    let is_whole = bytes.is_multiple_of(page_bytes) && bytes / page_bytes >= pages;
    (is_alone && !is_whole).then(|| (ErrorKind::Damaged, cut_off(bytes, Some(pages * page_bytes))))
}

fn cut_off(bytes: u64, of: Option<u64>) -> String {
    let of = of.map_or(String::new(), |of| format!(" of {of}"));
    format!("it is cut off: {bytes} bytes{of} are there; copy it again from where it came from")
}

/// The device and the number of a file, by which it is known whatever its name.
pub(crate) fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
