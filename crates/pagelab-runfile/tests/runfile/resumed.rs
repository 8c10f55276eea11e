//! Files that are gone on with after their writer stopped or died.

use std::path::Path;
use std::process::Stdio;

use pagelab_model::run::{Ending, Event};
use pagelab_runfile::{Error, ErrorKind, Writer, read};

use crate::child;
use crate::made;

fn event(at_ns: u64) -> Event {
    Event { at_ns, kind: "note".to_owned(), text: format!("at {at_ns}") }
}

/// A file with a stream and an event, which was not closed or ended so.
fn begun(path: &Path, ending: Option<Ending>) {
    let mut writer = Writer::create(path, &made::manifest()).unwrap();
    let stream = writer.stream(&made::stream_head()).unwrap();
    writer.sample(stream, 1, 10.0).unwrap();
    writer.event(&event(2)).unwrap();
    match ending {
        None => drop(writer),
        Some(ending) => writer.close(ending).unwrap(),
    }
}

fn refusal(path: &Path) -> Error {
    match Writer::resume(path) {
        Ok(_) => panic!("{} was gone on with", path.display()),
        Err(error) => error,
    }
}

#[test]
fn what_was_written_stays_and_more_comes_behind() {
    for ending in [None, Some(made::ending())] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.pagelab");
        begun(&path, ending.clone());
        let (mut writer, run) = Writer::resume(&path).unwrap();
        assert_eq!(run.ending, ending.unwrap_or(Ending::NotClosed));
        assert_eq!(run.streams[0].values, [10.0]);
        let stream = writer.stream(&made::stream_head()).unwrap();
        writer.sample(stream, 3, 11.0).unwrap();
        let again = writer.stream(&made::stream_head()).unwrap_err();
        assert!(again.to_string().contains("two streams"), "{again}");
        let mut other = made::stream_head();
        other.name = "another".to_owned();
        let other = writer.stream(&other).unwrap();
        writer.sample(other, 4, 12.0).unwrap();
        writer.event(&event(5)).unwrap();
        writer.flush().unwrap();
        assert_eq!(read(&path).unwrap().ending, Ending::NotClosed, "while it is written");
        writer.close(Ending::Complete { after_ns: 6 }).unwrap();
        let run = read(&path).unwrap();
        assert_eq!(run.ending, Ending::Complete { after_ns: 6 });
        assert_eq!(run.manifest, made::manifest());
        let streams: Vec<&[f64]> = run.streams.iter().map(|stream| &*stream.values).collect();
        assert_eq!(streams, [&[10.0, 11.0][..], &[12.0]]);
        assert_eq!(run.events, [event(2), event(5)]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "one plain file is left");
    }
}

#[test]
fn what_cannot_be_gone_on_with_says_why_and_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    begun(&path, Some(Ending::Complete { after_ns: 6 }));
    let before = std::fs::read(&path).unwrap();
    assert!(refusal(&path).to_string().contains("its run is complete"));
    assert_eq!(refusal(&folder.path().join("none")).kind(), ErrorKind::NotThere);
    assert_eq!(refusal(folder.path()).kind(), ErrorKind::NotOurs);
    std::fs::write(folder.path().join("text"), "hello").unwrap();
    assert_eq!(refusal(&folder.path().join("text")).kind(), ErrorKind::NotOurs);
    let journal = folder.path().join("run.pagelab-journal");
    std::fs::write(&journal, "forged").unwrap();
    assert_eq!(refusal(&path).kind(), ErrorKind::Hostile);
    std::fs::remove_file(journal).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let series = folder.path().join("series.pagelab");
    let mut writer = Writer::create(&series, &made::manifest()).unwrap();
    writer.series("vmstat", "vmstat", &made::heads()).unwrap();
    assert_eq!(refusal(&series).kind(), ErrorKind::NotPermitted, "we write it ourselves");
    drop(writer);
    assert!(refusal(&series).to_string().contains("it holds series"));
}

/// A file that lives in two processes would be torn; the second one is refused until the first is dead.
#[test]
fn a_file_that_another_process_writes_is_refused() {
    use std::io::BufRead as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    let asked = ["write", path.to_str().unwrap(), "1000"];
    let mut child = child::command(&asked).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.is_ok_and(|line| line.ends_with("begun"))));
    let error = refusal(&path);
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    assert!(error.to_string().contains("a process is writing it"), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    // The lock went with the process; what was committed by then may hold series.
    if let Err(error) = Writer::resume(&path) {
        assert!(error.to_string().contains("it holds series"), "{error}");
    }
}
