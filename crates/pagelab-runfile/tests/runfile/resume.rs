//! Tests of files that are continued after their writer stopped or died.

use std::path::Path;
use std::process::Stdio;

use pagelab_model::run::{RunEnd, RunEvent};
use pagelab_runfile::{Error, ErrorKind, RunWriter, read_run_file};

use crate::child;
use crate::fixtures;

fn event(at_ns: u64) -> RunEvent {
    RunEvent { at_ns, kind: "note".to_owned(), text: format!("at {at_ns}") }
}

/// A file with a stream and an event, which was not closed or ended so.
fn write_begun_file(path: &Path, ending: Option<RunEnd>) {
    let mut writer = RunWriter::create(path, &fixtures::manifest()).unwrap();
    let stream = writer.add_stream(&fixtures::stream_head()).unwrap();
    writer.add_sample(stream, 1, 10.0).unwrap();
    writer.add_event(&event(2)).unwrap();
    match ending {
        None => drop(writer),
        Some(ending) => writer.close(ending).unwrap(),
    }
}

fn resume_error(path: &Path) -> Error {
    match RunWriter::resume(path) {
        Ok(_) => panic!("{} was gone on with", path.display()),
        Err(error) => error,
    }
}

#[test]
fn a_resumed_file_keeps_its_records_and_appends_more() {
    for ending in [None, Some(fixtures::ending())] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.pagelab");
        write_begun_file(&path, ending.clone());
        let (mut writer, run) = RunWriter::resume(&path).unwrap();
        assert_eq!(run.ending, ending.unwrap_or(RunEnd::NotClosed));
        assert_eq!(run.streams[0].values, [10.0]);
        let stream = writer.add_stream(&fixtures::stream_head()).unwrap();
        writer.add_sample(stream, 3, 11.0).unwrap();
        let again = writer.add_stream(&fixtures::stream_head()).unwrap_err();
        assert!(again.to_string().contains("two streams"), "{again}");
        let mut other = fixtures::stream_head();
        other.name = "another".to_owned();
        let other = writer.add_stream(&other).unwrap();
        writer.add_sample(other, 4, 12.0).unwrap();
        writer.add_event(&event(5)).unwrap();
        writer.flush().unwrap();
        assert_eq!(read_run_file(&path).unwrap().ending, RunEnd::NotClosed, "while it is written");
        writer.close(RunEnd::Complete { after_ns: 6 }).unwrap();
        let run = read_run_file(&path).unwrap();
        assert_eq!(run.ending, RunEnd::Complete { after_ns: 6 });
        assert_eq!(run.manifest, fixtures::manifest());
        let streams: Vec<&[f64]> = run.streams.iter().map(|stream| &*stream.values).collect();
        assert_eq!(streams, [&[10.0, 11.0][..], &[12.0]]);
        assert_eq!(run.events, [event(2), event(5)]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "one plain file is left");
    }
}

#[test]
fn a_file_that_cannot_be_resumed_is_refused_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    write_begun_file(&path, Some(RunEnd::Complete { after_ns: 6 }));
    let before = std::fs::read(&path).unwrap();
    assert!(resume_error(&path).to_string().contains("its run is complete"));
    assert_eq!(resume_error(&folder.path().join("none")).kind(), ErrorKind::NotFound);
    assert_eq!(resume_error(folder.path()).kind(), ErrorKind::NotARunFile);
    std::fs::write(folder.path().join("text"), "hello").unwrap();
    assert_eq!(resume_error(&folder.path().join("text")).kind(), ErrorKind::NotARunFile);
    let journal = folder.path().join("run.pagelab-journal");
    std::fs::write(&journal, "forged").unwrap();
    assert_eq!(resume_error(&path).kind(), ErrorKind::Malicious);
    std::fs::remove_file(journal).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let series = folder.path().join("series.pagelab");
    let mut writer = RunWriter::create(&series, &fixtures::manifest()).unwrap();
    writer.add_series("vmstat", "vmstat", &fixtures::heads()).unwrap();
    assert_eq!(resume_error(&series).kind(), ErrorKind::NotPermitted, "we write it ourselves");
    drop(writer);
    assert!(resume_error(&series).to_string().contains("it contains series"));
}

/// A child of a killed writer has the writer's lock from its fork to its exec.
#[test]
fn a_lock_that_ends_soon_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    drop(RunWriter::create(&path, &fixtures::manifest()).unwrap());
    // Another description of the file, as a child has it.
    let held = std::fs::File::open(&path).unwrap();
    held.lock().unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        drop(held);
    });
    drop(RunWriter::resume(&path).unwrap());
    holder.join().unwrap();
}

/// A file that lives in two processes would be torn; the second one is refused until the first is dead.
#[test]
fn a_file_that_another_process_writes_is_refused() {
    use std::io::BufRead as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    let asked = ["write", path.to_str().unwrap(), "1000"];
    let mut child =
        child::child_command(&asked).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.is_ok_and(|line| line.ends_with("begun"))));
    let error = resume_error(&path);
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    assert!(error.to_string().contains("another process is writing it"), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    // The lock was released with the process; committed data may contain series.
    if let Err(error) = RunWriter::resume(&path) {
        assert!(error.to_string().contains("it contains series"), "{error}");
    }
}
