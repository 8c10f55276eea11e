//! Check of a file before SQLite opens it: whether it is a run file, and complete.

use std::fs::{File, Metadata, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{Error, ErrorKind, io_kind};
use crate::{schema, writer};

/// Bytes of the header of an SQLite file (<https://www.sqlite.org/fileformat2.html>, section 1.3).
const HEADER_BYTES: usize = 100;

const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Signatures of files that may be mistaken for a run file, with a hint for each.
const KNOWN_SIGNATURES: [(&[u8], &str); 4] = [
    (b"\x1f\x8b", "it is compressed with gzip; hint: decompress it first"),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed with zstd; hint: decompress it first, or read a saved tree with `checkup --root`",
    ),
    (b"\xfd7zXZ\0", "it is compressed with xz; hint: decompress it first"),
    (b"PK\x03\x04", "it is a zip archive; hint: extract it first"),
];

const EMPTY_FILE: &str = "it is empty; hint: remove it, and measure again";

/// Checks the file itself. `has_no_siblings`: there is no log beside it that could complete it.
pub(crate) fn check_file(path: &Path, canonical_path: &Path, has_no_siblings: bool) -> Result<(), Error> {
    let metadata = std::fs::metadata(canonical_path).map_err(|error| cannot_open(path, &error))?;
    check_regular(path, &metadata)?;
    if writer::is_written_by_this_process(&metadata) {
        return Ok(());
    }
    let mut start = Vec::with_capacity(HEADER_BYTES);
    open_regular(canonical_path, false)
        .and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut start))
        .map_err(|error| cannot_open(path, &error))?;
    let bytes = metadata.len();
    let problem = match &*start {
        [] => Some((ErrorKind::NotARunFile, EMPTY_FILE.to_owned())),
        start if !start.starts_with(&SQLITE_MAGIC[..start.len().min(SQLITE_MAGIC.len())]) => {
            Some((ErrorKind::NotARunFile, describe_non_sqlite(start)))
        }
        start if start.len() < HEADER_BYTES => Some((ErrorKind::Damaged, describe_truncation(bytes, None))),
        start => check_header(start, bytes, has_no_siblings),
    };
    problem.map_or(Ok(()), |(kind, problem)| Err(Error::cannot_read(kind, path, problem)))
}

/// Error of opening a path.
pub(crate) fn cannot_open(path: &Path, error: &std::io::Error) -> Error {
    let kind = io_kind(error);
    let problem = match kind {
        ErrorKind::NotFound => "no such file".to_owned(),
        ErrorKind::NotPermitted => format!("{error}; hint: run as its owner or as root"),
        _ => error.to_string(),
    };
    Error::cannot_read(kind, path, problem)
}

/// Opens a file that was found to be a regular one; should it have become a FIFO since, this does not block.
pub(crate) fn open_regular(path: &Path, is_writable: bool) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).write(is_writable).custom_flags(flags.bits() as i32).open(path)
}

/// Whether the file is in the mode in which changes go to a log first: 2 at byte 19 of the header.
pub(crate) fn is_wal_mode(canonical_path: &Path) -> bool {
    let mut start = [0; 20];
    let file = open_regular(canonical_path, false);
    file.and_then(|mut file| file.read_exact(&mut start)).is_ok() && start[19] == 2
}

/// Returns an error with its type if it is not a regular file.
fn check_regular(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    let kind = metadata.file_type();
    let file_type_name = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "it is a directory; hint: `pagelab checkup --root` reads a saved tree"
    } else if kind.is_fifo() {
        "expected a file, found a FIFO"
    } else if kind.is_socket() {
        "expected a file, found a socket"
    } else {
        "expected a file, found a device"
    };
    Err(Error::cannot_read(ErrorKind::NotARunFile, path, file_type_name))
}

fn describe_non_sqlite(start: &[u8]) -> String {
    let known = KNOWN_SIGNATURES.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, what)| *what);
    let is_text = std::str::from_utf8(start).is_ok_and(|text| !text.contains('\0'));
    let file_type_name = known.unwrap_or(match is_text {
        true => "expected a run file, found text; hint: `pagelab frag --from` reads buddyinfo",
        false => "it is not a run file; hint: create one with `pagelab record` or `pagelab checkup -o FILE`",
    });
    file_type_name.to_owned()
}

/// `header` has all of its bytes.
fn check_header(header: &[u8], bytes: u64, has_no_siblings: bool) -> Option<(ErrorKind, String)> {
    let number = |at: usize| {
        let field = header.get(at..at + 4).and_then(|field| field.try_into().ok());
        u32::from_be_bytes(field.unwrap_or_default())
    };
    if number(68) != schema::APPLICATION_ID {
        let file_type_name = "it is an SQLite database of another program; expected a run file of `pagelab \
                              record` or `pagelab checkup -o FILE`";
        return Some((ErrorKind::NotARunFile, file_type_name.to_owned()));
    }
    if let Some(problem) = schema::check_version(number(60)) {
        return Some(problem);
    }
    // A page size of 64 KiB does not fit in its field, and is stored as 1.
    let page_bytes = match u64::from(header[16]) << 8 | u64::from(header[17]) {
        1 => 1 << 16,
        bytes => bytes,
    };
    let pages = u64::from(number(28));
    if !page_bytes.is_power_of_two() || page_bytes < 512 {
        return Some((ErrorKind::Damaged, format!("it is damaged: invalid page size of {page_bytes} bytes")));
    }
    // A killed writer may have left the rest in the log beside the file.
    let is_whole = bytes.is_multiple_of(page_bytes) && bytes / page_bytes >= pages;
    (has_no_siblings && !is_whole)
        .then(|| (ErrorKind::Damaged, describe_truncation(bytes, Some(pages * page_bytes))))
}

fn describe_truncation(bytes: u64, expected_bytes: Option<u64>) -> String {
    let expected_bytes = expected_bytes.map_or(String::new(), |of| format!(" of {of}"));
    format!("it is truncated: {bytes} bytes{expected_bytes}; hint: copy it again from its source")
}

/// Device and inode number of a file, which identify it under any name.
pub(crate) fn file_identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
