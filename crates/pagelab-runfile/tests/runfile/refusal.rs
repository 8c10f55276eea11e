//! Tests of files that are no run files, or that contain something pagelab never writes: rejected with a
//! clear error.

use std::fs;
use std::path::Path;
use std::process::Command;

use pagelab_runfile::{ErrorKind, read_run_file};

use crate::child::listing;
use crate::fixtures;

/// Asserts that reading `path` fails in this way and says this, and that nothing beside it changed.
fn assert_refused(path: &Path, kind: ErrorKind, said: &str) {
    // A folder that only this test uses.
    let own =
        path.parent().filter(|folder| folder.is_dir() && !path.is_dir() && *folder != Path::new("/dev"));
    let before = own.map(listing);
    let error = read_run_file(path).map(|run| run.ending).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(said), "{said:?} in {error}");
    assert!(error.to_string().starts_with(&format!("cannot read {}: ", path.display())), "{error}");
    assert_eq!(own.map(listing), before);
}

#[test]
fn other_file_types_are_identified() {
    use ErrorKind::{Damaged, NotARunFile, NotFound};
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let gzip = [&b"\x1f\x8b\x08"[..], &[0; 200]].concat();
    let zstd = [&b"\x28\xb5\x2f\xfd"[..], &[0; 200]].concat();
    let text = "Node 0, zone      DMA      0      0\n".repeat(9);
    let files: [(&str, &[u8], ErrorKind, &str); 8] = [
        ("empty", b"", NotARunFile, "it is empty; hint: remove it"),
        ("short", b"SQLite for", Damaged, "it is truncated: 10 bytes"),
        ("cut", b"SQLite format 3\0\x10\0", Damaged, "it is truncated: 18 bytes"),
        ("text", text.as_bytes(), NotARunFile, "expected a run file, found text; hint: `pagelab frag"),
        ("gzip", &gzip, NotARunFile, "it is compressed with gzip; hint: decompress it first"),
        ("zstd", &zstd, NotARunFile, "it is compressed with zstd; hint: decompress it first"),
        (
            "zero",
            &[0; 4096],
            NotARunFile,
            "it is not a run file; hint: create one with `pagelab record` or `pagelab checkup -o FILE`",
        ),
        ("elf", b"\x7fELF\x02\x01\x01\0\xff", NotARunFile, "it is not a run file"),
    ];
    for (name, bytes, kind, said) in files {
        fs::write(at(name), bytes).unwrap();
        assert_refused(&at(name), kind, said);
    }
    assert_refused(&at("nowhere"), NotFound, "no such file");
    assert_refused(&at("text").join("below"), NotFound, "no such file");
    assert_refused(folder.path(), NotARunFile, "it is a directory; hint: `pagelab checkup --root` reads");
    assert_refused(Path::new("/dev/null"), NotARunFile, "expected a file, found a device");
    let socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    assert_refused(&at("socket"), NotARunFile, "expected a file, found a socket");
    drop(socket);
    let other = rusqlite::Connection::open(at("other")).unwrap();
    other.execute_batch("CREATE TABLE bookmarks(url TEXT)").unwrap();
    other.close().unwrap();
    assert_refused(&at("other"), NotARunFile, "it is an SQLite database of another program");
}

#[test]
fn a_fifo_is_refused_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let Ok(made) = Command::new("mkfifo").arg(&fifo).status() else {
        eprintln!("skipped: mkfifo-absent: no program makes a FIFO here");
        return;
    };
    assert!(made.success());
    assert_refused(&fifo, ErrorKind::NotARunFile, "expected a file, found a FIFO");
    let path = folder.path().join("run.pagelab");
    fixtures::file(&path);
    for end in ["-wal", "-shm", "-journal"] {
        let beside = folder.path().join(format!("run.pagelab{end}"));
        fs::rename(&fifo, &beside).unwrap();
        assert_refused(&path, ErrorKind::Malicious, "is not a regular file");
        fs::rename(&beside, &fifo).unwrap();
    }
}

/// A virtual table of a module that this SQLite was built without, written as one that has it would.
const VIRTUAL: &str = "PRAGMA writable_schema = ON; \
    INSERT INTO sqlite_schema VALUES('table', 'f', 'f', 0, 'CREATE VIRTUAL TABLE f USING fts5(x)')";

/// Every object that SQL knows, put into a run file that is otherwise sound.
#[test]
fn objects_that_pagelab_never_makes_are_refused_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let statements: [(&str, &str); 13] = [
        (
            "CREATE TRIGGER t AFTER INSERT ON sample BEGIN DELETE FROM event; END",
            "it contains a trigger \"t\"",
        ),
        ("CREATE VIEW v AS SELECT * FROM sample", "it contains a view \"v\""),
        (VIRTUAL, "it contains a table \"f\""),
        ("CREATE TABLE w(x DEFAULT (randomblob(1000000000)))", "it contains a table \"w\""),
        ("CREATE TABLE extra(x)", "it contains a table \"extra\""),
        ("CREATE TABLE u(x UNIQUE)", "\"sqlite_autoindex_u_1\""),
        ("CREATE INDEX i ON sample(at_ns)", "it contains an index \"i\""),
        ("CREATE INDEX e ON sample(abs(value))", "it contains an index \"e\""),
        (
            "ALTER TABLE sample ADD COLUMN g AS (zeroblob(1000000000))",
            "its table `sample` has a wrong definition",
        ),
        (
            "ALTER TABLE series_vmstat ADD COLUMN g AS (hex(zeroblob(99)))",
            "its table \"series_vmstat\" has a wrong definition",
        ),
        (
            "ALTER TABLE blob ADD COLUMN c CHECK(length(zeroblob(c)) = 0)",
            "its table `blob` has a wrong definition",
        ),
        ("ALTER TABLE stream RENAME TO other", "its table `stream` is missing"),
        ("ANALYZE", "it contains a table \"sqlite_stat1\""),
    ];
    for (sql, said) in statements {
        let path = folder.path().join("run.pagelab");
        fixtures::file(&path);
        let forge = rusqlite::Connection::open(&path).unwrap();
        let version: String = forge.query_row("SELECT sqlite_version()", [], |row| row.get(0)).unwrap();
        forge.execute_batch(sql).unwrap_or_else(|error| panic!("{sql} in {version}: {error}"));
        forge.close().unwrap();
        let kind = if said.ends_with("missing") { ErrorKind::Damaged } else { ErrorKind::Malicious };
        assert_refused(&path, kind, said);
        fs::remove_file(&path).unwrap();
    }
}

/// Objects that only a manual change of the schema can create.
#[test]
fn forged_schemas_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let edits = [
        "UPDATE sqlite_schema SET sql = replace(sql, 'value REAL NOT NULL', 'value REAL DEFAULT (randomblob(9))')",
        "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'event') \
         WHERE name = 'sample'",
        "UPDATE sqlite_schema SET rootpage = 1 WHERE name = 'sample'",
        "UPDATE sqlite_schema SET rootpage = 0 WHERE name = 'sample'",
        "UPDATE sqlite_schema SET sql = NULL WHERE name = 'sample'",
        "UPDATE sqlite_schema SET type = 'view' WHERE name = 'sample'",
        "UPDATE sqlite_schema SET name = 'sqlite_x' WHERE name = 'sample'",
        "INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE name = 'sample'",
        "DELETE FROM sqlite_schema WHERE name = 'sample'",
        "UPDATE series_column SET table_name = 'manifest'",
        "UPDATE series_column SET table_name = 'sqlite_schema'",
        "UPDATE series_column SET sql_name = sql_name || ' '",
        "UPDATE series_column SET ordinal = ordinal + 1000000000000",
        "UPDATE series_column SET series = 2",
        "UPDATE series_column SET is_counter = 'x'",
        "UPDATE series_column SET first = 'x'",
        "DELETE FROM series",
        "DELETE FROM series_column",
        "UPDATE series_vmstat SET pgfault = 'x'",
        "UPDATE series_vmstat SET pgfault = 1.5",
        "UPDATE series_vmstat SET at_ns = -at_ns",
        "UPDATE sample SET stream = 9223372036854775807",
        "UPDATE sample SET value = 9e999",
        "UPDATE sample SET value = 'x'",
        "UPDATE sample SET at_ns = -1",
        "UPDATE stream SET labels = '{\"a\":1}'",
        "UPDATE stream SET labels = replace(hex(zeroblob(100000)), '0', '[')",
        "UPDATE event SET text = CAST(x'ff' AS TEXT)",
        "UPDATE manifest SET value = '' WHERE key = 'machine'",
        "UPDATE manifest SET value = '-1' WHERE key = 'seed'",
        "UPDATE manifest SET value = 'asleep' WHERE key = 'ending'",
        "DELETE FROM manifest WHERE key = 'kind'",
        "UPDATE blob SET raw_bytes = 9223372036854775807",
        "UPDATE blob SET raw_bytes = 100000000",
        "UPDATE blob SET raw_bytes = raw_bytes - 1",
        "UPDATE blob SET raw_bytes = raw_bytes + 1",
        "UPDATE blob SET data = x''",
        "UPDATE blob SET data = NULL",
        "UPDATE blob SET data = 'x'",
        "UPDATE blob SET codec = 'lz4'",
        "UPDATE blob SET version = -1",
    ];
    for edit in edits {
        let path = folder.path().join("run.pagelab");
        fixtures::file(&path);
        let forge = rusqlite::Connection::open(&path).unwrap();
        forge.execute_batch("PRAGMA writable_schema = ON; PRAGMA ignore_check_constraints = ON").unwrap();
        // What SQLite itself does not let happen need not be refused by us.
        let changed = forge.execute(edit, []);
        forge.close().unwrap();
        match changed {
            Ok(rows) => assert!(rows > 0, "{edit} changed nothing"),
            Err(error) => {
                assert!(error.to_string().contains("NOT NULL"), "{edit}: {error}");
                fs::remove_file(&path).unwrap();
                continue;
            }
        }
        let before = listing(folder.path());
        let error = read_run_file(&path).map(|run| run.ending).expect_err(edit);
        assert!(matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Malicious), "{edit}: {error:?}");
        assert_eq!(listing(folder.path()), before);
        fs::remove_file(&path).unwrap();
    }
}

/// A forged `-journal`: SQLite would play it back, and cut the file off after its first page.
#[test]
fn a_forged_journal_is_not_played_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    fixtures::file(&path);
    let mut journal = vec![0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let (records, nonce, pages_before, sector, page) = (0u32, 0, 1, 512, 4096);
    for field in [records, nonce, pages_before, sector, page] {
        journal.extend(field.to_be_bytes());
    }
    journal.resize(512, 0);
    fs::write(folder.path().join("run.pagelab-journal"), journal).unwrap();
    let before = listing(folder.path());
    fixtures::check(&read_run_file(&path).unwrap());
    assert_eq!(listing(folder.path()), before);
    // The forgery is a good one.
    let careless = rusqlite::Connection::open(&path).unwrap();
    assert!(careless.query_row("SELECT count(*) FROM sample", [], |_| Ok(())).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
}

/// A log that changes the contents of a sound file.
#[test]
fn a_forged_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let edits = [
        ("CREATE TRIGGER t AFTER INSERT ON sample BEGIN DELETE FROM event; END", ErrorKind::Malicious),
        ("PRAGMA application_id = 7", ErrorKind::Malicious),
        ("PRAGMA user_version = 3", ErrorKind::NewerVersion),
        ("PRAGMA user_version = 0", ErrorKind::Damaged),
        ("DROP TABLE sample", ErrorKind::Damaged),
    ];
    for (edit, kind) in edits {
        let path = folder.path().join("run.pagelab");
        fixtures::file(&path);
        let forge = rusqlite::Connection::open(&path).unwrap();
        forge.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(())).unwrap();
        forge.execute_batch(edit).unwrap();
        let killed = folder.path().join("killed.pagelab");
        for end in ["", "-wal"] {
            fs::copy(format!("{}{end}", path.display()), format!("{}{end}", killed.display())).unwrap();
        }
        assert_refused(&killed, kind, "");
        forge.close().unwrap();
        fs::remove_file(&path).unwrap();
    }
}
