//! Opening of a file from another user: pagelab creates or changes no file beside it, and executes nothing
//! that is stored in it.
//!
//! | beside the file | how it is read |
//! |---|---|
//! | no `-wal`, or an empty one without `-shm` | unchanged (`immutable`), without any lock |
//! | `-wal` and `-shm`: a writer at work, or a killed one | with the writer's locks, `-shm` read-only |
//! | `-wal` without `-shm`, or a `-shm` that cannot be used | a private copy of the file and its `-wal` |
//!
//! A `-journal` is never played back, since that rewrites the file and, with a forged one, deletes others.
//! pagelab's own journals exist only while a file is created, when it is empty, and at the very end of a
//! close, when the one page that is then rewritten is valid before and after.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io};

use pagelab_model::run::WriteAheadLog;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use crate::blob::BLOB_BYTES_MAX;
use crate::error::{Error, ErrorKind, io_kind};
use crate::schema::StoredSeriesHeader;
use crate::writer::{SQLITE_SIBLINGS, sibling_path};
use crate::{header, schema, writer};

/// A file that was found to be ours, in one read transaction.
pub(crate) struct OpenRunFile {
    pub connection: Connection,
    pub series: Vec<StoredSeriesHeader>,
    /// The schema version.
    pub version: u32,
    /// Bytes of the file's pages, those in the log included.
    pub bytes: u64,
    pub watchdog: QueryWatchdog,
    /// The file itself, without links.
    canonical_path: PathBuf,
    is_immutable: bool,
    /// Removed after the connection is closed, since fields are dropped in order.
    _copy: Option<PrivateCopy>,
}

/// Access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenMode {
    Immutable,
    Live,
    PrivateCopy,
}

/// Tries to open a file whose writer may be closing it at this moment.
const OPEN_ATTEMPTS: usize = 4;

/// Maximum wait of a reader for a writer's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens and checks a file.
pub(crate) fn open_run_file(path: &Path) -> Result<OpenRunFile, Error> {
    let canonical_path = path.canonicalize().map_err(|error| header::cannot_open(path, &error))?;
    let mut last = None;
    for _ in 0..OPEN_ATTEMPTS {
        let mode = choose_mode(path, &canonical_path)?;
        header::check_file(path, &canonical_path, mode == OpenMode::Immutable)?;
        match open_in_mode(path, &canonical_path, mode) {
            Ok(opened) => return Ok(opened),
            // The log beside the file was created or removed meanwhile: check again.
            Err(error) if choose_mode(path, &canonical_path)? == mode => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::cannot_read(ErrorKind::Io, path, "its writer keeps it locked")))
}

fn open_in_mode(path: &Path, canonical_path: &Path, mode: OpenMode) -> Result<OpenRunFile, Error> {
    let (query, copy) = match mode {
        OpenMode::Immutable => ("?immutable=1", None),
        OpenMode::Live => ("?mode=ro&readonly_shm=1", None),
        OpenMode::PrivateCopy => ("", Some(PrivateCopy::new(path, canonical_path)?)),
    };
    let file = copy.as_ref().map_or_else(|| canonical_path.to_owned(), PrivateCopy::copied_path);
    let connection = connect_read_only(&file, query);
    let opened = check_connection(path, canonical_path, connection, mode == OpenMode::Immutable, copy);
    let is_unusable = |error: &Error| matches!(error.kind(), ErrorKind::Io | ErrorKind::NotPermitted);
    let is_ours =
        || canonical_path.metadata().is_ok_and(|metadata| writer::is_written_by_this_process(&metadata));
    match opened {
        Err(error) if mode == OpenMode::Live && is_unusable(&error) && !is_ours() => {
            open_in_mode(path, canonical_path, OpenMode::PrivateCopy)
        }
        opened => opened,
    }
}

/// Way to open the file, from the files beside it.
fn choose_mode(path: &Path, canonical_path: &Path) -> Result<OpenMode, Error> {
    let mut bytes = [None; SQLITE_SIBLINGS.len()];
    for (end, bytes) in SQLITE_SIBLINGS.iter().zip(&mut bytes) {
        let file = sibling_path(canonical_path, end);
        match file.symlink_metadata() {
            Ok(metadata) if metadata.is_file() => *bytes = Some(metadata.len()),
            Ok(_) => {
                let name = file.display();
                return Err(Error::malicious(path, format_args!("{name} is not a regular file")));
            }
            Err(_) => {}
        }
    }
    let [wal, shm, _] = bytes;
    Ok(match (wal, shm) {
        (None, _) | (Some(0), None) => OpenMode::Immutable,
        (Some(_), Some(_)) => OpenMode::Live,
        (Some(_), None) => OpenMode::PrivateCopy,
    })
}

fn connect_read_only(file: &Path, query: &str) -> rusqlite::Result<Connection> {
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let access = if query.is_empty() { OpenFlags::SQLITE_OPEN_READ_WRITE } else { read_only };
    let flags = access | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(format!("{}{query}", to_sqlite_uri(file)), flags)
}

/// The path as a URI, every unusual byte in hexadecimal.
fn to_sqlite_uri(file: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    let shown = |byte: &u8| match plain(byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02x}"),
    };
    let path: String = file.as_os_str().as_bytes().iter().map(shown).collect();
    format!("file://{path}")
}

/// Puts SQLite on its guard, begins the one transaction in which everything is read, and checks everything.
fn check_connection(
    path: &Path,
    canonical_path: &Path,
    connection: rusqlite::Result<Connection>,
    is_immutable: bool,
    copy: Option<PrivateCopy>,
) -> Result<OpenRunFile, Error> {
    let sqlite = |error: rusqlite::Error| Error::sqlite_read(path, &error);
    let mut connection = connection.map_err(sqlite)?;
    let watchdog = restrict_connection(&mut connection).map_err(sqlite)?;
    watchdog.extend_deadline(0);
    connection.execute_batch("BEGIN").map_err(sqlite)?;
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (id, version) = (number("application_id").map_err(sqlite)?, number("user_version").map_err(sqlite)?);
    if id != i64::from(schema::APPLICATION_ID) {
        return Err(Error::malicious(path, "its log changes it into a file of another program"));
    }
    let version = u32::try_from(version).unwrap_or(0);
    if let Some((kind, problem)) = schema::check_version(version) {
        return Err(Error::cannot_read(kind, path, problem));
    }
    let pages = number("page_count").map_err(sqlite)?;
    let page_bytes = number("page_size").map_err(sqlite)?;
    let bytes = pages.unsigned_abs().saturating_mul(page_bytes.unsigned_abs());
    watchdog.extend_deadline(bytes);
    let series = schema::check_schema(path, &connection, version)?;
    let canonical_path = canonical_path.to_owned();
    Ok(OpenRunFile {
        connection,
        series,
        version,
        bytes,
        watchdog,
        canonical_path,
        is_immutable,
        _copy: copy,
    })
}

impl OpenRunFile {
    /// The log that holds the last records, or held them where it is not beside a file that has one.
    /// Its path begins as `path` does, the file as it was named, unless that is a link.
    pub fn write_ahead_log(&self, path: &Path) -> Option<WriteAheadLog> {
        let log = sibling_path(&self.canonical_path, SQLITE_SIBLINGS[0]);
        let path = if path.is_symlink() { log.clone() } else { sibling_path(path, SQLITE_SIBLINGS[0]) };
        let path = path.display().to_string();
        match (log.metadata(), self.is_immutable) {
            (Ok(metadata), false) if metadata.len() > 0 => Some(WriteAheadLog { path, is_present: true }),
            (Err(_), true) if header::is_wal_mode(&self.canonical_path) => {
                Some(WriteAheadLog { path, is_present: false })
            }
            _ => None,
        }
    }

    /// Whether a writer appeared beside a file that was read without locks.
    pub fn has_new_writer(&self) -> bool {
        self.is_immutable
            && !matches!(choose_mode(&self.canonical_path, &self.canonical_path), Ok(OpenMode::Immutable))
    }
}

fn restrict_connection(connection: &mut Connection) -> rusqlite::Result<QueryWatchdog> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    let limits = [
        // The largest blob, packed in the worst way.
        (Limit::SQLITE_LIMIT_LENGTH, BLOB_BYTES_MAX as i32 + (8 << 20)),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, 4 << 20),
        (Limit::SQLITE_LIMIT_COLUMN, schema::COLUMNS_MAX as i32 + 1),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 10),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 3),
        // The check of all pages has a dozen for each column of each table.
        (Limit::SQLITE_LIMIT_VDBE_OP, 4 << 20),
        (Limit::SQLITE_LIMIT_FUNCTION_ARG, 8),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
        (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, 10),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
    ];
    for (limit, most) in limits {
        connection.set_limit(limit, most)?;
    }
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    let watchdog = QueryWatchdog { started_at: Instant::now(), deadline_ms: Arc::new(AtomicU64::new(0)) };
    let (began, until_ms) = (watchdog.started_at, watchdog.deadline_ms.clone());
    connection.progress_handler(
        PROGRESS_OPERATIONS,
        Some(move || began.elapsed().as_millis() as u64 > until_ms.load(Ordering::Relaxed)),
    )?;
    Ok(watchdog)
}

/// Operations of SQLite's virtual machine between two readings of the clock.
const PROGRESS_OPERATIONS: i32 = 10_000;

/// Ends what takes longer than a file of its size can take.
pub(crate) struct QueryWatchdog {
    started_at: Instant,
    deadline_ms: Arc<AtomicU64>,
}

impl QueryWatchdog {
    /// Sets the time limit of the next operation: half a minute, and the time that a slow disk needs for the
    /// file.
    pub fn extend_deadline(&self, bytes: u64) {
        let now_ms = self.started_at.elapsed().as_millis() as u64;
        self.deadline_ms.store(now_ms.saturating_add(30_000).saturating_add(bytes >> 10), Ordering::Relaxed);
    }
}

/// Tries to copy a file that its writer is changing.
const COPY_ATTEMPTS: usize = 5;

/// A folder of our own with the copies in it; removed on drop.
pub(crate) struct PrivateCopy {
    dir: PathBuf,
}

impl PrivateCopy {
    /// Copies the file at `canonical_path` and its `-wal`; errors name `path`.
    pub fn new(path: &Path, canonical_path: &Path) -> Result<PrivateCopy, Error> {
        let temp_root = std::env::temp_dir();
        let to_error = |error: io::Error| {
            let problem = format_args!(
                "cannot copy its log to {}: {error}; hint: free space there, or set TMPDIR",
                temp_root.display()
            );
            Error::cannot_read(io_kind(&error), path, problem)
        };
        // A file of holes can be larger than any disk, and filling one up harms others.
        let [file, wal] = file_states(canonical_path).map_err(to_error)?;
        let (wanted, room) = (file.0.saturating_add(wal.0), free_bytes(&temp_root).map_err(to_error)?);
        if wanted > room {
            let problem = format!("it has {wanted} bytes, but only {room} are free there");
            return Err(to_error(io::Error::new(io::ErrorKind::StorageFull, problem)));
        }
        let copy = PrivateCopy { dir: create_private_dir(&temp_root).map_err(to_error)? };
        for _ in 0..COPY_ATTEMPTS {
            let before = file_states(canonical_path).map_err(to_error)?;
            copy_file(canonical_path, &copy.copied_path()).map_err(to_error)?;
            copy_file(&sibling_path(canonical_path, "-wal"), &sibling_path(&copy.copied_path(), "-wal"))
                .map_err(to_error)?;
            if file_states(canonical_path).map_err(to_error)? == before {
                return Ok(copy);
            }
        }
        Err(to_error(io::Error::other("it changes faster than it can be copied")))
    }

    pub fn copied_path(&self) -> PathBuf {
        self.dir.join("copy.pagelab")
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        // A copy that cannot be removed is in the folder for what may be removed at any time.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Bytes that this user may still write there.
fn free_bytes(folder: &Path) -> io::Result<u64> {
    let file_system = rustix::fs::statvfs(folder)?;
    Ok(file_system.f_bavail.saturating_mul(file_system.f_frsize))
}

/// A new directory that only this user can enter.
fn create_private_dir(temp_root: &Path) -> io::Result<PathBuf> {
    static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = temp_root.join(format!("pagelab-read-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| folder),
        }
    }
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = header::open_regular(from, false)?;
    let mut to = File::create(to)?;
    io::copy(&mut from, &mut to).map(|_| ())
}

/// Sizes and times of both files; if they are equal before and after, nothing was written in between.
fn file_states(canonical_path: &Path) -> io::Result<[(u64, i64, i64); 2]> {
    let of = |path: &Path| {
        let metadata = fs::metadata(path)?;
        Ok::<_, io::Error>((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    Ok([of(canonical_path)?, of(&sibling_path(canonical_path, "-wal"))?])
}
