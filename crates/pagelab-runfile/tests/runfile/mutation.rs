//! Tests of randomly corrupted files: read or rejected; what is read can be evaluated and shown. The children
//! have little memory and are killed if they hang.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_metrics::checkup::Checkup;
use pagelab_model::Snapshot;
use pagelab_model::random::SplitMix64;
use pagelab_model::run::RunEnd;
use pagelab_report::checkup::{View, render};
use pagelab_report::style::TextStyle;
use pagelab_report::{csv, html, json};
use pagelab_runfile::{MapEncoder, RunReader, RunWriter};
use serde_json::Value;

use crate::{child, fixtures, snapshot};

/// Address space of a child, in KiB.
const MEMORY_KIB: u64 = 1 << 20;

/// No file of this size may take more CPU time, in a build that is not optimised. Wall time says how busy the
/// machine is; SQLite has a deadline of its own.
const PATIENCE: Duration = Duration::from_secs(20);

const FILES: u64 = 300;

/// Blocks of each zone in the look at this machine: enough of each sort, and quickly parsed.
const BLOCKS: usize = 40;

#[test]
fn mutated_files_are_read_or_refused_in_bounded_memory() {
    for seed in [1, 2] {
        let script = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
        let asked = ["mutate", &seed.to_string(), &FILES.to_string()];
        let answer = child::read_answer(child::wrap_command("sh", &["-c", &script], &asked));
        eprintln!("seed {seed}: {answer}");
        let read: u64 = answer.split(' ').next().unwrap().parse().unwrap();
        assert!(read > FILES / 20 && read < FILES, "seed {seed}: {answer}");
    }
}

/// Draws files, and prints how many could be read.
pub fn mutate(seed: u64, files: u64) {
    let folder = tempfile::tempdir().unwrap();
    let bases = bases(folder.path());
    let (mut random, mut read) = (SplitMix64::new(seed), 0);
    let path = folder.path().join("mutated.pagelab");
    for number in 0..files {
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", path.display()));
        }
        let base = &bases[random.next_below(bases.len() as u64) as usize];
        match random.next_below(3) {
            0 => forge_records(&mut random, &base.snapshot, &path),
            1 => forge_cells(&mut random, base, &path),
            _ => forge_bytes(&mut random, base, &path),
        }
        let began = cpu_time();
        let result = catch_unwind(AssertUnwindSafe(|| read_and_report(&path)));
        let took = cpu_time() - began;
        assert!(took < PATIENCE, "seed {seed}, file {number}: {took:?}");
        match result {
            Ok(ok) => read += u64::from(ok),
            Err(_) => panic!("seed {seed}, file {number}: panicked, see above"),
        }
    }
    println!("answer: {read} of {files} could be read");
}

/// CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A sound file, with its log if its writer was killed.
struct BaseFile {
    file: Vec<u8>,
    wal: Option<Vec<u8>>,
    shm: Vec<u8>,
    snapshot: Snapshot,
}

fn bases(folder: &Path) -> Vec<BaseFile> {
    let bare = fixtures::snapshot();
    let whole = folder.join("whole.pagelab");
    fixtures::file(&whole);
    let base = |path: &PathBuf, snapshot: Snapshot| {
        let wal = fs::read(format!("{}-wal", path.display())).ok();
        let shm = fs::read(format!("{}-shm", path.display())).unwrap_or_default();
        BaseFile { file: fs::read(path).unwrap(), wal, shm, snapshot }
    };
    let mut real = snapshot::take_snapshot();
    if let Ok(census) = &mut real.census {
        for zone in &mut census.zones {
            zone.blocks.truncate(BLOCKS);
            zone.one_folio.retain(|folio| zone.blocks.iter().any(|(index, _)| index == folio));
        }
    }
    let (looked, killed) = (folder.join("look.pagelab"), folder.join("killed.pagelab"));
    let mut writer = RunWriter::create(&looked, &fixtures::manifest()).unwrap();
    fixtures::fill(&mut writer, &real);
    let mut encoder = MapEncoder::default();
    for number in 0..3 {
        writer.add_map(encoder.encode_map(&fixtures::map(3_000, number)).unwrap()).unwrap();
    }
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
    let mut writer = RunWriter::create(&killed, &fixtures::manifest()).unwrap();
    fixtures::fill(&mut writer, &bare);
    writer.flush().unwrap();
    let bases = vec![base(&whole, bare.clone()), base(&looked, real), base(&killed, bare)];
    assert!(bases[2].wal.is_some());
    bases
}

/// Bits, bytes, pages and lengths of the files themselves.
fn forge_bytes(random: &mut SplitMix64, base: &BaseFile, path: &Path) {
    let (mut file, mut wal) = (base.file.clone(), base.wal.clone());
    let is_wal = wal.is_some() && random.next_below(2) == 0;
    let bytes = if is_wal { wal.as_mut().unwrap() } else { &mut file };
    for _ in 0..=random.next_below(4) {
        let length = bytes.len() as u64;
        if length == 0 {
            break;
        }
        // Headers and the first bytes of pages hold what matters most.
        let page = random.next_below(length.div_ceil(4096)) * 4096;
        let at = match random.next_below(3) {
            0 => random.next_below(length.min(100)),
            1 => (page + random.next_below(40)).min(length - 1),
            _ => random.next_below(length),
        } as usize;
        match random.next_below(6) {
            0 => bytes[at] ^= 1 << random.next_below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.next_below(5) as usize],
            2 => bytes.truncate(page as usize),
            3 => bytes.truncate(at),
            4 => bytes.extend(std::iter::repeat_n(0, random.next_below(9000) as usize)),
            _ => {
                let from = (random.next_below(length.div_ceil(4096)) * 4096) as usize;
                let count = 4096.min(length as usize - from.max(page as usize));
                let copied = bytes[from..from + count].to_vec();
                bytes[page as usize..page as usize + count].copy_from_slice(&copied);
            }
        }
    }
    fs::write(path, file).unwrap();
    if let Some(wal) = wal {
        fs::write(format!("{}-wal", path.display()), wal).unwrap();
        // With the memory that its writer left behind, whole or not, or with anything.
        let mut shm = base.shm.clone();
        match random.next_below(4) {
            0 => return,
            1 => shm.truncate(random.next_below(shm.len() as u64 + 1) as usize),
            2 => shm.iter_mut().for_each(|byte| *byte = random.next_u64() as u8),
            _ => {}
        }
        fs::write(format!("{}-shm", path.display()), shm).unwrap();
    }
}

const EXTREMES: [&str; 12] = [
    "0",
    "-1",
    "1",
    "2",
    "9223372036854775807",
    "-9223372036854775808",
    "4294967296",
    "NULL",
    "x''",
    "'x'",
    "1e308",
    "zeroblob(100000)",
];

/// Values of the tables: ids, ordinals, times, lengths.
fn forge_cells(random: &mut SplitMix64, base: &BaseFile, path: &Path) {
    const COLUMNS: [&str; 24] = [
        "series.id",
        "series_column.series",
        "series_column.ordinal",
        "series_column.first",
        "stream.id",
        "stream.labels",
        "sample.stream",
        "sample.at_ns",
        "sample.value",
        "event.at_ns",
        "event.kind",
        "blob.id",
        "blob.version",
        "blob.at_ns",
        "blob.raw_bytes",
        "blob.codec",
        "blob.data",
        "manifest.value",
        "series_vmstat.at_ns",
        "series_vmstat.pgfault",
        "series_vmstat.PgFault_2",
        "series_column.is_counter",
        "series_column.unit",
        "series_column.name",
    ];
    fs::write(path, &base.file).unwrap();
    if let Some(wal) = &base.wal {
        fs::write(format!("{}-wal", path.display()), wal).unwrap();
    }
    let forge = rusqlite::Connection::open(path).unwrap();
    for _ in 0..=random.next_below(2) {
        let column = COLUMNS[random.next_below(COLUMNS.len() as u64) as usize];
        let (table, column) = column.split_once('.').unwrap();
        let value = EXTREMES[random.next_below(EXTREMES.len() as u64) as usize];
        let some = if random.next_below(2) == 0 { "" } else { "WHERE abs(random()) % 2 = 0" };
        // What SQLite refuses stays as it is.
        let _ = forge.execute(&format!("UPDATE OR REPLACE {table} SET {column} = {value} {some}"), []);
    }
    forge.close().unwrap();
}

/// Values of the snapshot, in a file that is otherwise sound.
fn forge_records(random: &mut SplitMix64, snapshot: &Snapshot, path: &Path) {
    let mut json = serde_json::to_value(snapshot).unwrap();
    for _ in 0..=random.next_below(6) {
        // Half of the changes go to the parts whose numbers are reckoned with.
        let parts = ["census", "buddyinfo", "free_moved", "pmd_order", "zoneinfo", "probe", "extfrag"];
        let part = json.get_mut(parts[random.next_below(parts.len() as u64) as usize]);
        match part.filter(|_| random.next_below(2) == 0) {
            Some(part) => forge_value(random, part),
            None => forge_value(random, &mut json),
        }
    }
    let mut writer = RunWriter::create(path, &fixtures::manifest()).unwrap();
    writer.add_blob("snapshot", 1, "", 0, json.to_string().as_bytes()).unwrap();
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
}

/// Walks down at random, and changes the value that it reaches.
fn forge_value(random: &mut SplitMix64, value: &mut Value) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            let at = random.next_below(object.len() as u64) as usize;
            if let Some(inner) = object.values_mut().nth(at) {
                forge_value(random, inner);
            }
        }
        Value::Array(array) if !array.is_empty() => {
            let at = random.next_below(array.len() as u64) as usize;
            match random.next_below(12) {
                0 => drop(array.remove(at)),
                1 => array.push(array[at].clone()),
                2 => array.swap(0, at),
                _ => forge_value(random, &mut array[at]),
            }
        }
        Value::Number(_) => {
            let extremes = [0, 1, 31, 32, 63, 64, 65, 255, u64::MAX, 1 << 32, 1 << 62, 1 << 52];
            *value = extremes[random.next_below(extremes.len() as u64) as usize].into();
        }
        Value::String(text) => {
            let texts = ["", "x", "\u{1b}[2J", "0.-500 1.000", "9999999999999999999"];
            *text = texts[random.next_below(texts.len() as u64) as usize].to_owned();
        }
        _ => {}
    }
}

/// Reads a file, and judges and shows its contents. Returns whether it could be read.
fn read_and_report(path: &Path) -> bool {
    let Ok(reader) = RunReader::open(path) else { return false };
    for head in reader.read_blob_headers().unwrap_or_default() {
        let _ = reader.read_blob(&head);
    }
    let Ok(run) = pagelab_runfile::read_run_file(path) else { return false };
    for place in 0..run.maps.len().min(4) {
        let _ = reader.read_map(place);
    }
    if let Some(experiment) = &run.experiment {
        let _ = reader.for_each_picture(&experiment.trials, |_, _| ());
    }
    for verbose in [false, true] {
        pagelab_report::run::render(
            &run,
            pagelab_report::run::View { verbose, shows_all: verbose },
            TextStyle::PLAIN,
        );
    }
    csv::list_tables(&run).into_iter().for_each(|table| assert!(table.into_lines().count() > 0));
    html::render_page(std::slice::from_ref(&run), &[]).unwrap();
    let Some(snapshot) = &run.snapshot else { return true };
    let checkup = Checkup::from_snapshot(snapshot);
    for verbose in [false, true] {
        render(
            snapshot,
            &checkup,
            View { verbose, with_paper_index: verbose, is_saved: false },
            TextStyle::PLAIN,
        );
    }
    json::to_json_text(&json::checkup::to_document(snapshot, &checkup)).unwrap();
    true
}

/// A small blob that unpacks to gigabytes.
#[test]
fn a_decompression_bomb_is_not_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.pagelab");
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    let blocks = "[0,{\"free\":512}],".repeat(8 << 20);
    writer.add_blob("snapshot", 1, "", 0, blocks.as_bytes()).unwrap();
    writer.add_blob("map", 1, "", 0, &vec![0; 256 << 20]).unwrap();
    writer.close(RunEnd::Complete { after_ns: 1 }).unwrap();
    let forge = rusqlite::Connection::open(&path).unwrap();
    forge.execute("UPDATE blob SET raw_bytes = 10", []).unwrap();
    forge.close().unwrap();
    let error = pagelab_runfile::read_run_file(&path).map(|run| run.ending).unwrap_err();
    assert!(error.to_string().contains("decompresses to more than the size in its header"), "{error}");
    let reader = RunReader::open(&path).unwrap();
    for head in reader.read_blob_headers().unwrap() {
        let error = reader.read_blob(&head).unwrap_err();
        assert!(error.to_string().contains("decompresses to more than the size in its header"), "{error}");
    }
}
