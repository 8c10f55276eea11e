//! Files of every schema version there has been.

use std::path::{Path, PathBuf};

use pagelab_model::Snapshot;
use pagelab_model::run::Event;
use pagelab_runfile::{ErrorKind, Reader, read};

use crate::made;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A real look at a machine, written by the pagelab that wrote schema version 1.
#[test]
fn version_1_is_read() {
    let path = fixture("version-1.pagelab");
    let run = read(&path).unwrap();
    made::check(&run);
    assert_eq!(run.events, []);
    assert_eq!((&*run.manifest.kind, run.manifest.seed), ("record", Some(u64::MAX)));
    let snapshot = run.snapshot.unwrap();
    assert_eq!(run.manifest.machine, snapshot.machine);
    assert_eq!(snapshot.machine.cpu.as_ref().unwrap().model, Some(207));
    assert_eq!(snapshot.census.as_ref().unwrap().zones[0].key.zone, "DMA");
    let reader = Reader::open(&path).unwrap();
    let blobs = reader.blobs().unwrap();
    assert_eq!(reader.blob(&blobs[0]).unwrap(), b"0123456789");
    // Whatever the records have become since, nothing that was stored is lost on the way in.
    let stored: serde_json::Value = serde_json::from_slice(&reader.blob(&blobs[1]).unwrap()).unwrap();
    let known: Snapshot = *snapshot;
    is_kept(&stored, &serde_json::to_value(known).unwrap(), "");
}

/// Asserts that everything in `stored` is in `known`, which may have more.
fn is_kept(stored: &serde_json::Value, known: &serde_json::Value, at: &str) {
    use serde_json::Value::{Array, Object};
    match (stored, known) {
        (Object(stored), Object(known)) => {
            for (key, value) in stored {
                is_kept(value, known.get(key).unwrap_or(&serde_json::Value::Null), &format!("{at}.{key}"));
            }
        }
        (Array(stored), Array(known)) => {
            assert_eq!(stored.len(), known.len(), "{at}");
            stored.iter().zip(known).for_each(|(stored, known)| is_kept(stored, known, at));
        }
        _ => assert_eq!(stored, known, "{at}"),
    }
}

#[test]
fn the_newest_version_has_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a run?#%.pagelab");
    made::file(&path);
    let run = read(&path).unwrap();
    made::check(&run);
    assert_eq!(run.manifest, made::manifest());
    assert_eq!(*run.snapshot.unwrap(), made::snapshot());
    assert_eq!(run.events, [Event { at_ns: 9, kind: "missed".to_owned(), text: "two ticks".to_owned() }]);
    assert_eq!(run.name, path.display().to_string());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_newer_version_is_refused_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    made::file(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60..64].copy_from_slice(&3u32.to_be_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = read(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Newer);
    let version = env!("CARGO_PKG_VERSION");
    let said = format!(
        "cannot read {}: a newer pagelab wrote it, in schema version 3; this one ({version}) reads versions 1 \
         to 2; get a newer pagelab",
        path.display()
    );
    assert_eq!(error.to_string(), said);
}
