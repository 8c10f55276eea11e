//! Child processes of tests: to be killed, to be another user, to have little memory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagelab_model::run::*;
use pagelab_runfile::{RunWriter, read_run_file};

use crate::{fixtures, full_disk, mutation};

const ASKED: &str = "PAGELAB_RUNFILE_CHILD";

/// This program again, for one of the things below.
pub fn child_command(asked: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments()).env(ASKED, asked.join("\n"));
    command
}

/// The same behind another program, such as `unshare`, which gets this one's words as its last.
pub fn wrap_command(program: &str, words: &[&str], asked: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).arg(std::env::current_exe().unwrap()).args(arguments());
    command.env(ASKED, asked.join("\n")).stdin(Stdio::null());
    command
}

fn arguments() -> [&'static str; 4] {
    ["--exact", "child::child", "--nocapture", "--test-threads=1"]
}

/// The line of a child's output that begins with `answer: `.
pub fn read_answer(mut command: Command) -> String {
    let output = command.output().unwrap();
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let answer = said.lines().find_map(|line| line.split_once("answer: ").map(|(_, answer)| answer));
    answer.unwrap_or_else(|| panic!("{said}{error}")).to_owned()
}

#[test]
fn child() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    match asked.split('\n').collect::<Vec<_>>()[..] {
        ["write", path, pause_us] => write(Path::new(path), pause_us.parse().unwrap()),
        ["read", path] => println!("answer: {}", summary(Path::new(path))),
        ["fill", folder, kib] => full_disk::fill(Path::new(folder), kib.parse().unwrap()),
        ["mutate", seed, files] => mutation::mutate(seed.parse().unwrap(), files.parse().unwrap()),
        _ => panic!("{asked}"),
    }
}

/// What a reader finds, in one line that is the same for the same contents.
pub fn summary(path: &Path) -> String {
    match read_run_file(path) {
        Ok(mut run) => {
            let samples: usize = run.streams.iter().map(|stream| stream.values.len()).sum();
            let bits = run.streams.iter().flat_map(|stream| stream.at_ns.iter().zip(&stream.values));
            let bits =
                bits.fold(0, |hash, (at_ns, value)| hash_words(hash_words(hash, *at_ns), value.to_bits()));
            // Names differ with the folder; the rest is short.
            (run.name, run.write_ahead_log, run.streams) = (String::new(), None, Vec::new());
            let rest = format!("{run:?}").bytes().fold(0, |hash, byte| hash_words(hash, u64::from(byte)));
            format!("{samples} samples {bits:x}, {} events, {rest:x}", run.events.len())
        }
        Err(error) => format!("{error:?}"),
    }
}

/// FNV-1a by words.
fn hash_words(hash: u64, word: u64) -> u64 {
    (hash ^ word ^ 0xcbf2_9ce4_8422_2325).wrapping_mul(0x100_0000_01b3)
}

/// Writes until it is killed; every record has the time at which it was made.
fn write(path: &Path, pause_us: u64) {
    let mut manifest = fixtures::manifest();
    let began = Instant::now();
    manifest.started.realtime_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut writer = RunWriter::create(path, &manifest).unwrap();
    let stream = writer.add_stream(&fixtures::stream_head()).unwrap();
    let series = writer.add_series("vmstat", "/proc/vmstat", &fixtures::heads()).unwrap();
    println!("begun");
    std::io::stdout().flush().unwrap();
    for number in 0.. {
        let at_ns = began.elapsed().as_nanos() as u64;
        writer.add_sample(stream, at_ns, number as f64).unwrap();
        if number % 100 == 0 {
            writer.add_row(series, at_ns, &fixtures::ROWS[(number / 100) % 4]).unwrap();
            writer.add_event(&RunEvent { at_ns, kind: "tick".to_owned(), text: number.to_string() }).unwrap();
        }
        if number % 50_000 == 0 {
            writer.add_blob("map", 1, "", at_ns, &[7; 100_000]).unwrap();
        }
        if pause_us > 0 {
            std::thread::sleep(Duration::from_micros(pause_us));
        }
    }
}

/// Names, sizes and times of everything in a folder: equal before and after, nothing was changed.
pub fn listing(folder: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let entries = std::fs::read_dir(folder).unwrap();
    let of = |entry: std::fs::DirEntry| {
        let metadata = entry.metadata().unwrap();
        (entry.path(), metadata.len(), metadata.modified().unwrap())
    };
    let mut listing: Vec<_> = entries.map(|entry| of(entry.unwrap())).collect();
    listing.sort();
    listing
}
