//! Tests of a saved tree that is opened without openat2, as on kernels before 5.6.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use pagelab_model::AbsenceReason;

use super::{EntryKind, Root};

#[test]
fn without_openat2_links_are_refused_and_the_rest_is_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    fs::write(temp.path().join("outside"), "secret").unwrap();
    for (file, data) in [
        ("etc/passwd", b"inside".to_vec()),
        ("proc/plain", b"plain".to_vec()),
        ("proc/dir/x", Vec::new()),
        ("proc/packed.zst", zstd::encode_all(&b"unpacked"[..], 3).unwrap()),
    ] {
        fs::create_dir_all(tree.join(file).parent().unwrap()).unwrap();
        fs::write(tree.join(file), data).unwrap();
    }
    for (link, target) in [
        ("etc-link", "/etc/passwd"),
        ("absolute", temp.path().join("outside").to_str().unwrap()),
        ("loop", "loop"),
    ] {
        symlink(target, tree.join("proc").join(link)).unwrap();
    }
    assert!(Command::new("mkfifo").arg(tree.join("proc/fifo")).status().unwrap().success());

    let root = Root::open_with(&tree, true).unwrap();
    let (failed, bad) = (AbsenceReason::Failed, AbsenceReason::Malformed);
    let read = |name: &str| root.read(&format!("/proc/{name}"));
    for (name, text) in [("plain", "plain"), ("packed", "unpacked")] {
        assert_eq!(read(name).unwrap(), text.as_bytes(), "{name}");
    }
    for (name, why, part) in [
        ("missing", AbsenceReason::NotSaved, ""),
        ("dir", bad, "is a directory"),
        ("plain/below", bad, "a component of its path is not a directory"),
        ("fifo", bad, "is a FIFO"),
        ("etc-link", failed, "needs openat2"),
        ("absolute", failed, "needs openat2"),
        ("absolute/below", failed, "needs openat2"),
        ("loop", failed, "needs openat2"),
        ("../../outside", bad, ""),
    ] {
        let absence = read(name).unwrap_err();
        assert_eq!(absence.why, why, "{name}: {absence:?}");
        assert!(absence.reason().contains(part), "{name}: {absence:?}");
    }
    assert_eq!(root.list_dir("/proc/dir").unwrap(), ["x"]);
    assert_eq!(root.list_dir("/").unwrap(), ["etc", "proc"]);
    assert_eq!(root.entry_kind("/proc/loop"), Ok(EntryKind::Link));
    assert_eq!(root.read_link("/proc/etc-link").unwrap(), "/etc/passwd");
    assert_eq!(root.list_dir("/proc/etc-link").unwrap_err().why, failed);
}
