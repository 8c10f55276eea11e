//! Tests of round trips, through pagelab and through `sqlite3`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use pagelab_model::extfrag::{FallbackCounts, FallbackStack, FallbackStacks};
use pagelab_model::random::SplitMix64;
use pagelab_model::run::*;
use pagelab_runfile::{ErrorKind, RunReader, RunWriter, read_run_file};

use crate::{fixtures, snapshot};

/// Random records from a seed, as they must be read back.
fn random_run(random: &mut SplitMix64) -> Run {
    let series = (0..random.next_below(4)).map(|at| random_series(random, at)).collect();
    let streams = (0..random.next_below(4)).map(|at| random_stream(random, at)).collect();
    let mut events: Vec<RunEvent> = (0..random.next_below(5))
        .map(|_| RunEvent {
            at_ns: random.next_below(9),
            kind: random_word(random),
            text: random_word(random),
        })
        .collect();
    events.sort_by_key(|event| event.at_ns);
    let after_ns = random.next_below(1 << 62);
    let ending = match random.next_below(3) {
        0 => RunEnd::Complete { after_ns },
        1 => RunEnd::Stopped { after_ns, reason: random_word(random) },
        _ => RunEnd::NotClosed,
    };
    let mut manifest = fixtures::manifest();
    manifest.seed = (random.next_below(2) == 0).then(|| random.next_u64());
    manifest.kind = random_word(random);
    manifest.started = ClockReading { realtime_ns: random.next_u64(), boottime_ns: random.next_u64() };
    Run { series, streams, events, ..Run::new(String::new(), manifest, ending) }
}

/// Words that are special somewhere: to SQL, to JSON, to a terminal.
fn random_word(random: &mut SplitMix64) -> String {
    const WORDS: [&str; 12] = [
        "nr_free_pages",
        "at_ns",
        "AT_NS",
        "a\"b",
        "sqlite_master",
        "select",
        "'; DROP TABLE manifest; --",
        "\0",
        "\x1b[31m",
        "é\u{2028}",
        " ",
        "rowid",
    ];
    WORDS[random.next_below(WORDS.len() as u64) as usize].to_owned()
}

fn random_series(random: &mut SplitMix64, at: u64) -> Series {
    let rows = random.next_below(30) as usize;
    let mut columns: BTreeMap<String, Column> = BTreeMap::new();
    // Now and then more columns than fit in one table.
    let wide = if random.next_below(8) == 0 { 2100 } else { 12 };
    for number in 0..=random.next_below(wide) {
        let name =
            if number % 5 == 0 { random_word(random) } else { format!("{}{number}", random_word(random)) };
        let head =
            ColumnHeader { name: name.clone(), unit: Unit(random_word(random)), is_counter: number % 2 == 0 };
        let value = |random: &mut SplitMix64| (random.next_below(4) > 0).then(|| random.next_u64() as i64);
        let first = value(random);
        let mut values: Vec<Option<i64>> = vec![first; rows];
        if rows > 0 && random.next_below(3) > 0 {
            let changes_at = random.next_below(rows as u64) as usize;
            values[changes_at..].iter_mut().for_each(|cell| *cell = value(random));
        }
        let values = match values.iter().all(|value| *value == values[0]) {
            true => ColumnValues::Constant(values.first().copied().flatten()),
            false => ColumnValues::Varying(values),
        };
        columns.insert(name, Column { header: head, values });
    }
    let mut at_ns: Vec<u64> = (0..rows).map(|_| random.next_below(1 << 63)).collect();
    at_ns.sort_unstable();
    at_ns.dedup();
    let mut columns: Vec<Column> = columns.into_values().collect();
    // Two times may have been equal.
    for column in &mut columns {
        if let ColumnValues::Varying(values) = &mut column.values {
            values.truncate(at_ns.len());
        }
    }
    // Some series have the same name: a zone was added, and the columns changed.
    Series { name: format!("{}{}", random_word(random), at / 2), source: random_word(random), at_ns, columns }
}

fn random_stream(random: &mut SplitMix64, at: u64) -> SampleStream {
    let samples = random.next_below(50) as usize;
    let labels = vec![(random_word(random), random_word(random)), ("number".to_owned(), at.to_string())];
    let value =
        |random: &mut SplitMix64| Some(f64::from_bits(random.next_u64())).filter(|value| value.is_finite());
    SampleStream {
        header: StreamHeader { name: random_word(random), unit: Unit(random_word(random)), labels },
        at_ns: (0..samples).map(|_| random.next_below(1 << 63)).collect(),
        values: (0..samples).map(|_| value(random).unwrap_or(1.5)).collect(),
    }
}

fn write(path: &Path, run: &Run) {
    let mut writer = RunWriter::create(path, &run.manifest).unwrap();
    for series in &run.series {
        let heads: Vec<ColumnHeader> = series.columns.iter().map(|column| column.header.clone()).collect();
        let id = writer.add_series(&series.name, &series.source, &heads).unwrap();
        for (at, at_ns) in series.at_ns.iter().enumerate() {
            let row: Vec<_> = series.columns.iter().map(|column| column.values.value_at(at)).collect();
            writer.add_row(id, *at_ns, &row).unwrap();
        }
    }
    for stream in &run.streams {
        let id = writer.add_stream(&stream.header).unwrap();
        for (at_ns, value) in stream.at_ns.iter().zip(&stream.values) {
            writer.add_sample(id, *at_ns, *value).unwrap();
        }
    }
    run.events.iter().for_each(|event| writer.add_event(event).unwrap());
    match run.ending.clone() {
        RunEnd::NotClosed => drop(writer),
        ending => writer.close(ending).unwrap(),
    }
}

/// A column that turned out not to change, once its rows were cut, is a constant.
fn normalize_constants(mut run: Run) -> Run {
    for series in &mut run.series {
        let rows = series.at_ns.len();
        for column in &mut series.columns {
            let first = column.values.value_at(0);
            if (0..rows).all(|at| column.values.value_at(at) == first) {
                column.values = ColumnValues::Constant(if rows == 0 { None } else { first });
            }
        }
    }
    run
}

#[test]
fn random_records_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..60 {
        let path = folder.path().join(format!("{seed}.pagelab"));
        let mut run = normalize_constants(random_run(&mut SplitMix64::new(seed)));
        write(&path, &run);
        run.name = path.display().to_string();
        let read = read_run_file(&path).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        // Compared part by part, since a whole run is too long to print.
        assert_eq!(read.series.len(), run.series.len(), "seed {seed}");
        for (read, written) in read.series.iter().zip(&run.series) {
            assert_eq!(read, written, "seed {seed}");
        }
        assert_eq!(read, run, "seed {seed}");
        check_with_sqlite3(&path, &run);
    }
}

/// A snapshot of this machine, with all blocks of its census.
#[test]
fn a_snapshot_of_this_machine_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("look.pagelab");
    let snapshot = snapshot::take_snapshot();
    let mut manifest = fixtures::manifest();
    (manifest.machine, manifest.settings) = (snapshot.machine.clone(), snapshot.settings.clone());
    let mut writer = RunWriter::create(&path, &manifest).unwrap();
    writer.add_snapshot(&fixtures::snapshot()).unwrap();
    writer.add_partial_snapshot(&fixtures::snapshot()).unwrap();
    writer.add_snapshot(&snapshot).unwrap();
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
    let run = read_run_file(&path).unwrap();
    assert_eq!(run.manifest, manifest);
    assert!(*run.snapshot.unwrap() == snapshot, "the look came back as another one");
    assert_eq!(run.unknown_content, ["1 earlier snapshot"]);
}

/// The same sums, values and integrity by a program that we did not write.
fn check_with_sqlite3(path: &Path, run: &Run) {
    let ask = |sql: &str| sqlite3(path, sql);
    let Some(verdict) = ask("PRAGMA integrity_check") else { return };
    assert_eq!(verdict, "ok\n");
    // Sums of integers are exact: the samples' bits would need their text to be.
    let count = ask("SELECT count(*), total(at_ns) FROM sample").unwrap();
    let at = run.streams.iter().flat_map(|stream| &stream.at_ns);
    let total: f64 = at.clone().map(|&at_ns| at_ns as f64).sum();
    let (counted, summed) = count.trim().split_once('|').unwrap();
    assert_eq!(counted.parse::<usize>().unwrap(), at.count());
    assert!((summed.parse::<f64>().unwrap() - total).abs() <= total * 1e-9);
    let columns = ask("SELECT series, table_name, sql_name, ordinal FROM series_column").unwrap();
    // A program for each column: some hundred are enough.
    for line in columns.lines().take(20) {
        let [series, table, name, ordinal] = line.split('|').collect::<Vec<_>>()[..] else { continue };
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let sql = format!(
            "SELECT coalesce({}, first), typeof(coalesce({}, first)) FROM {}, series_column \
             WHERE series = {series} AND ordinal = {ordinal} ORDER BY at_ns",
            quoted(name),
            quoted(name),
            quoted(table)
        );
        let values = ask(&sql).unwrap();
        let series = &run.series[series.parse::<usize>().unwrap() - 1];
        let column = &series.columns[ordinal.parse::<usize>().unwrap()];
        let expected: String = (0..series.at_ns.len())
            .map(|at| {
                column.values.value_at(at).map_or("|blob\n".to_owned(), |value| format!("{value}|integer\n"))
            })
            .collect();
        assert_eq!(values, expected, "{line}");
    }
}

/// What `sqlite3` says, or nothing where it is not installed.
pub fn sqlite3(path: &Path, sql: &str) -> Option<String> {
    let ran = Command::new("sqlite3").arg("-readonly").arg(path).arg(sql).output();
    let Ok(ran) = ran else {
        eprintln!("skipped: sqlite3-absent: there is no `sqlite3` to compare with");
        return None;
    };
    assert!(ran.status.success(), "{sql}: {}", String::from_utf8_lossy(&ran.stderr));
    Some(String::from_utf8_lossy(&ran.stdout).into_owned())
}

#[test]
fn the_example_queries_of_the_documentation_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    fixtures::file(&path);
    let document = include_str!("../../../../docs/runfile.md");
    let blocks = document.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut asked = 0;
    for sql in blocks {
        let Some(answer) = sqlite3(&path, sql) else { return };
        assert!(!answer.is_empty(), "{sql}");
        asked += 1;
    }
    assert!(asked >= 4, "{asked} queries in the documentation");
}

#[test]
fn records_that_cannot_be_stored_are_refused_and_the_file_stays_usable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    let series = writer.add_series("s", "here", &[fixtures::head("c", Unit::COUNT, false)]).unwrap();
    let stream = writer.add_stream(&fixtures::stream_head()).unwrap();
    writer.add_row(series, 5, &[Some(1)]).unwrap();
    let twice = [fixtures::head("c", Unit::COUNT, false), fixtures::head("c", Unit::COUNT, true)];
    let event = RunEvent { at_ns: 1 << 63, kind: String::new(), text: String::new() };
    let refused = [
        (writer.add_sample(stream, 1, f64::NAN), "expected a finite number"),
        (writer.add_sample(stream, 1, f64::INFINITY), "expected a finite number"),
        (writer.add_sample(stream, u64::MAX, 1.0), "is out of range for a time"),
        (writer.add_row(series, 1 << 63, &[None]), "is out of range for a time"),
        (writer.add_row(series, 6, &[]), "has 1 columns, but the row has 0"),
        (writer.add_row(series, 5, &[Some(2)]), "are not ascending at 5 ns"),
        (writer.add_event(&event), "is out of range for a time"),
        (writer.add_series("s", "", &twice).map(drop), "two columns named \"c\""),
        (writer.add_series("s", "", &[]).map(drop), "has no columns"),
        (writer.add_series("", "", &twice[..1]).map(drop), "has no name"),
        (writer.add_stream(&fixtures::stream_head()).map(drop), "two streams access time"),
        (writer.add_blob("", 1, "", 0, b"").map(drop), "has no name"),
    ];
    for (result, said) in refused {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotStorable, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    writer.add_sample(stream, 1, -0.0).unwrap();
    writer.flush().unwrap();
    // While it is open, in the process that writes it.
    assert_eq!(read_run_file(&path).unwrap().streams[0].values, [0.0]);
    drop(writer);
    let run = read_run_file(&path).unwrap();
    assert_eq!((run.ending, run.series[0].at_ns.len()), (RunEnd::NotClosed, 1));
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    let check = |kind: ErrorKind, path: &Path, said: &str| {
        let error = RunWriter::create(path, &fixtures::manifest()).err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    };
    for end in ["-wal", "-shm", "-journal"] {
        let beside = folder.path().join(format!("run.pagelab{end}"));
        std::fs::write(&beside, "x").unwrap();
        check(ErrorKind::AlreadyExists, &path, "is left over from an earlier run");
        assert_eq!(std::fs::read(&beside).unwrap(), b"x");
        std::fs::remove_file(beside).unwrap();
    }
    std::fs::write(&path, "x").unwrap();
    check(ErrorKind::AlreadyExists, &path, "it already exists");
    let link = folder.path().join("link.pagelab");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    check(ErrorKind::AlreadyExists, &link, "it already exists");
    check(ErrorKind::NotFound, &folder.path().join("no/run.pagelab"), "no directory");
    check(ErrorKind::NotFound, Path::new("/"), "expected a file name");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2);
}

#[test]
fn blobs_are_read_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    let mut random = SplitMix64::new(1);
    let noise: Vec<u8> = (0..1 << 20).map(|_| random.next_u64() as u8).collect();
    let contents: [&[u8]; 4] = [b"", b"x", &[0; 1 << 22], &noise];
    for (at, contents) in (0..).zip(contents) {
        writer.add_blob("map", 1, &format!("number {at}"), at, contents).unwrap();
    }
    writer.close(RunEnd::Complete { after_ns: 9 }).unwrap();
    let reader = RunReader::open(&path).unwrap();
    let heads = reader.read_blob_headers().unwrap();
    assert_eq!(heads.len(), contents.len());
    for (at, (head, contents)) in heads.iter().zip(contents).enumerate() {
        assert_eq!((&*head.name, head.at_ns), (&*format!("number {at}"), at as u64));
        assert!(reader.read_blob(head).unwrap() == contents, "{head:?}");
    }
}

#[test]
fn call_stacks_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stacks.pagelab");
    let stacks = |polluting: u64| FallbackStacks {
        stacks: vec![FallbackStack {
            comm: Some("find\u{2028}".to_owned()),
            kernel: vec!["get_page_from_freelist".to_owned(), "__d_alloc".to_owned()],
            user: vec!["/usr/bin/find+0x10".to_owned()],
            counts: FallbackCounts { polluting, events: u64::MAX, ..FallbackCounts::default() },
        }],
        lost: 3,
        ..FallbackStacks::default()
    };
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    (1..=3).for_each(|at| writer.add_stacks(at, &stacks(at)).unwrap());
    writer.close(fixtures::ending()).unwrap();
    let run = read_run_file(&path).unwrap();
    assert_eq!(run.stacks.as_deref(), Some(&stacks(3)), "the last ones have all of the earlier ones");
    assert!(run.unknown_content.is_empty() && run.snapshot.is_none(), "{:?}", run.unknown_content);
}
