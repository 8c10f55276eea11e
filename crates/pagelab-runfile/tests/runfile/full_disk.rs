//! Tests of a disk that becomes full at every moment of a file's life.

use std::path::Path;
use std::process::Command;

use pagelab_model::run::*;
use pagelab_runfile::{ErrorKind, RunWriter, read_run_file};

use crate::{child, fixtures};

/// Sizes of the disk, from one on which not even the tables fit.
const SIZES_KIB: [u64; 16] = [8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 200, 256, 400, 600, 1_000, 3_000];

/// On a disk of this many KiB mounted at `folder`: writes until it is full, then reads the stored records.
pub fn fill(folder: &Path, kib: u64) {
    let path = folder.join("run.pagelab");
    let (mut committed, mut first) = (0u64, None);
    match RunWriter::create(&path, &fixtures::manifest()) {
        Err(error) => {
            assert_message(&error, "hint: free space");
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "something is left behind");
            println!("answer: {kib} KiB: nothing fits");
            return;
        }
        Ok(mut writer) => {
            let mut write = |at_ns: u64| {
                let stream = writer
                    .add_stream(&StreamHeader { name: at_ns.to_string(), ..fixtures::stream_head() })?;
                for _ in 0..2_000 {
                    writer.add_sample(stream, at_ns, 0.5)?;
                }
                // Some of the batches are safe for certain.
                if at_ns.is_multiple_of(3) { writer.flush().map(|()| committed = at_ns) } else { Ok(()) }
            };
            for at_ns in 1..300 {
                if let Err(error) = write(at_ns) {
                    first = Some(error);
                    break;
                }
            }
            if let Some(first) = &first {
                assert_message(first, "hint: free space");
                let again =
                    writer.add_event(&RunEvent { at_ns: 1, kind: String::new(), text: String::new() });
                assert_eq!(again.unwrap_err().to_string(), first.to_string());
                assert_eq!(writer.flush().unwrap_err().to_string(), first.to_string());
            }
            let closed = writer.close(RunEnd::Complete { after_ns: 1 });
            match (&first, closed) {
                (Some(first), closed) => assert_eq!(closed.unwrap_err().to_string(), first.to_string()),
                (None, Err(error)) => assert_message(&error, "hint: free space"),
                (None, Ok(())) => {}
            }
        }
    }
    let run = read_run_file(&path).unwrap_or_else(|error| panic!("{kib} KiB: {error}"));
    for stream in &run.streams {
        assert!(
            stream.values.len() == 2_000
                || Some(&stream.header) == run.streams.last().map(|last| &last.header)
        );
    }
    let kept = run.streams.iter().filter(|stream| stream.values.len() == 2_000).count() as u64;
    assert!(kept >= committed, "{kib} KiB: {kept} of {committed} flushed batches are kept");
    println!("answer: {kib} KiB: {kept} batches kept, {committed} flushed, {}", first.is_some());
}

fn assert_message(error: &pagelab_runfile::Error, hint: &str) {
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("cannot write ") && text.contains("run.pagelab: "), "{text}");
    assert!(text.contains(hint) && !text.contains('\n'), "{text}");
}

#[test]
fn a_full_disk_loses_nothing_that_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let mount = "mount -t tmpfs -o size=\"$1\"k none \"$0\"";
    let probe = Command::new("unshare").args(["-m", "sh", "-c", mount, folder, "64"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no-mount: a small tmpfs cannot be mounted here");
        return;
    }
    let mut filled = 0;
    for kib in SIZES_KIB {
        let script = format!("{mount} && shift && exec \"$@\"");
        let size = kib.to_string();
        let words = ["-m", "sh", "-c", &script, folder, &size];
        let answer = child::read_answer(child::wrap_command("unshare", &words, &["fill", folder, &size]));
        eprintln!("{answer}");
        filled += usize::from(answer.ends_with("true"));
    }
    assert!(filled >= 5, "only {filled} disks became full while records were written");
}
