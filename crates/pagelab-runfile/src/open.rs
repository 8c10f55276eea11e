//! Opening a file that somebody else wrote: nothing beside it is made or changed, and nothing that is stored
//! in it is executed.
//!
//! | beside the file | how it is read |
//! |---|---|
//! | no `-wal`, or an empty one without `-shm` | as it stands (`immutable`), without any lock |
//! | `-wal` and `-shm`: a writer at work, or one that was killed | with the writer's locks, `-shm` read-only |
//! | `-wal` without `-shm`, or a `-shm` that cannot be used | a private copy of the file and its `-wal` |
//!
//! A `-journal` is never played back, since that rewrites the file and, with a forged one, deletes others.
//! Ours exist only while a file is begun, when it holds nothing, and at the very end of a close, when the one
//! page that is then rewritten is good before and after.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagelab_model::run::Log;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use crate::blob::BLOB_BYTES_MAX;
use crate::copy::PrivateCopy;
use crate::error::{Error, ErrorKind};
use crate::header;
use crate::live;
use crate::schema;
use crate::trust::{self, SeriesHead};
use crate::writer::{BESIDE, beside};

/// A file that was found to be ours, in one read transaction.
pub(crate) struct Opened {
    pub connection: Connection,
    pub series: Vec<SeriesHead>,
    /// The schema version.
    pub version: u32,
    /// Bytes of the file's pages, those in the log included.
    pub bytes: u64,
    pub watch: Watch,
    /// The file itself, without links.
    whole: PathBuf,
    is_immutable: bool,
    /// Removed after the connection is closed, since fields are dropped in order.
    _copy: Option<PrivateCopy>,
}

/// How a file is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Immutable,
    Live,
    Copy,
}

/// Tries to open a file whose writer may be closing it at this moment.
const TRIES: usize = 4;

/// How long a reader waits for a writer's lock.
const BUSY: Duration = Duration::from_secs(2);

/// Opens and checks a file.
pub(crate) fn open(path: &Path) -> Result<Opened, Error> {
    let whole = path.canonicalize().map_err(|error| header::cannot_open(path, &error))?;
    let mut last = None;
    for _ in 0..TRIES {
        let way = way(path, &whole)?;
        header::check(path, &whole, way == Way::Immutable)?;
        match reach(path, &whole, way) {
            Ok(opened) => return Ok(opened),
            // What was beside the file went away or came meanwhile: look again.
            Err(error) if self::way(path, &whole)? == way => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::read(ErrorKind::Io, path, "its writer does not let go of it")))
}

fn reach(path: &Path, whole: &Path, way: Way) -> Result<Opened, Error> {
    match way {
        Way::Immutable => checked(path, whole, connect(whole, "?immutable=1"), true, None),
        Way::Live => {
            let live = checked(path, whole, connect(whole, "?mode=ro&readonly_shm=1"), false, None);
            let is_unusable = |error: &Error| matches!(error.kind(), ErrorKind::Io | ErrorKind::NotPermitted);
            let is_ours = whole.metadata().is_ok_and(|metadata| live::is_written_here(&metadata));
            match live {
                Err(error) if is_unusable(&error) && !is_ours => reach(path, whole, Way::Copy),
                live => live,
            }
        }
        Way::Copy => {
            let copy = PrivateCopy::of(path, whole)?;
            let connection = connect(&copy.path(), "");
            checked(path, whole, connection, false, Some(copy))
        }
    }
}

/// How the file is to be reached, from what lies beside it.
fn way(path: &Path, whole: &Path) -> Result<Way, Error> {
    let mut bytes = [None; BESIDE.len()];
    for (end, bytes) in BESIDE.iter().zip(&mut bytes) {
        let file = beside(whole, end);
        match file.symlink_metadata() {
            Ok(metadata) if metadata.is_file() => *bytes = Some(metadata.len()),
            Ok(_) => {
                let name = file.display();
                return Err(Error::hostile(path, format_args!("{name} is not a regular file")));
            }
            Err(_) => {}
        }
    }
    let [wal, shm, _] = bytes;
    Ok(match (wal, shm) {
        (None, _) | (Some(0), None) => Way::Immutable,
        (Some(_), Some(_)) => Way::Live,
        (Some(_), None) => Way::Copy,
    })
}

fn connect(file: &Path, query: &str) -> rusqlite::Result<Connection> {
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let access = if query.is_empty() { OpenFlags::SQLITE_OPEN_READ_WRITE } else { read_only };
    let flags = access | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(format!("{}{query}", uri(file)), flags)
}

/// The path as a URI, every unusual byte in hexadecimal.
fn uri(file: &Path) -> String {
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
fn checked(
    path: &Path,
    whole: &Path,
    connection: rusqlite::Result<Connection>,
    is_immutable: bool,
    copy: Option<PrivateCopy>,
) -> Result<Opened, Error> {
    let sqlite = |error: rusqlite::Error| Error::sqlite_read(path, &error);
    let mut connection = connection.map_err(sqlite)?;
    let watch = guard(&mut connection).map_err(sqlite)?;
    watch.allow(0);
    connection.execute_batch("BEGIN").map_err(sqlite)?;
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (id, version) = (number("application_id").map_err(sqlite)?, number("user_version").map_err(sqlite)?);
    if id != i64::from(schema::APPLICATION_ID) {
        return Err(Error::hostile(path, "its log makes another program's file of it"));
    }
    let version = u32::try_from(version).unwrap_or(0);
    if let Some((kind, problem)) = schema::refusal(version) {
        return Err(Error::read(kind, path, problem));
    }
    let pages = number("page_count").map_err(sqlite)?;
    let page_bytes = number("page_size").map_err(sqlite)?;
    let bytes = pages.unsigned_abs().saturating_mul(page_bytes.unsigned_abs());
    watch.allow(bytes);
    let series = trust::check(path, &connection, version)?;
    let whole = whole.to_owned();
    Ok(Opened { connection, series, version, bytes, watch, whole, is_immutable, _copy: copy })
}

impl Opened {
    /// The log that holds the last records, or held them where it is not beside a file that has one.
    /// Its path begins as `path` does, the file as it was named, unless that is a link.
    pub fn log(&self, path: &Path) -> Option<Log> {
        let log = beside(&self.whole, BESIDE[0]);
        let path = if path.is_symlink() { log.clone() } else { beside(path, BESIDE[0]) };
        let path = path.display().to_string();
        match (log.metadata(), self.is_immutable) {
            (Ok(metadata), false) if metadata.len() > 0 => Some(Log { path, is_there: true }),
            (Err(_), true) if header::has_log(&self.whole) => Some(Log { path, is_there: false }),
            _ => None,
        }
    }

    /// Whether a writer appeared beside a file that was read without locks.
    pub fn was_overtaken(&self) -> bool {
        self.is_immutable && !matches!(way(&self.whole, &self.whole), Ok(Way::Immutable))
    }
}

fn guard(connection: &mut Connection) -> rusqlite::Result<Watch> {
    connection.busy_timeout(BUSY)?;
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
    let watch = Watch { began: Instant::now(), until_ms: Arc::new(AtomicU64::new(0)) };
    let (began, until_ms) = (watch.began, watch.until_ms.clone());
    connection.progress_handler(
        OPERATIONS,
        Some(move || began.elapsed().as_millis() as u64 > until_ms.load(Ordering::Relaxed)),
    )?;
    Ok(watch)
}

/// Operations of SQLite's machine between two looks at the clock.
const OPERATIONS: i32 = 10_000;

/// Ends what takes longer than a file of its size can take.
pub(crate) struct Watch {
    began: Instant,
    until_ms: Arc<AtomicU64>,
}

impl Watch {
    /// Gives the next operation its time: half a minute, and as much as a slow disk needs for the file.
    pub fn allow(&self, bytes: u64) {
        let now_ms = self.began.elapsed().as_millis() as u64;
        self.until_ms.store(now_ms.saturating_add(30_000).saturating_add(bytes >> 10), Ordering::Relaxed);
    }
}
