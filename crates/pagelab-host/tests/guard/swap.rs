//! A swap file under the guard on a fake machine: what is refused, what stays, and what cannot be undone yet.

use std::fs;

use pagelab_host::guard::{self, ErrorKind, Fate};
use pagelab_model::Bytes;
use rustix::io::Errno;

use crate::machine::{Fault, Ground, Machine, SWAP_DIR, SWAPS};

const SIZE: Bytes = Bytes(1 << 20);

#[test]
fn it_is_made_for_root_alone_and_goes_with_its_guard() {
    use std::os::unix::fs::MetadataExt;
    let ground = Ground::new();
    let before = ground.everything();
    let guard = ground.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    let meta = fs::metadata(ground.base().join(&made.path[1..])).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.len()), (0o600, SIZE.0));
    assert!(meta.blocks() * 512 >= SIZE.0, "a hole has no block to swap to: {} blocks", meta.blocks());
    assert!(ground.value(SWAPS).contains(&made.path), "{}", ground.value(SWAPS));
    let again = guard.swap_file(SWAP_DIR, SIZE).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Usage);
    assert_eq!(guard.finish()[0].fate, Fate::Restored);
    assert_eq!(ground.everything(), before);
    assert!(!ground.journals().exists());
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let cases = [
        (Fault::Refuses(SWAPS, Errno::INVAL), ErrorKind::Refused, "--swap-dir"),
        (Fault::Refuses(SWAPS, Errno::PERM), ErrorKind::NotAvailable, "run as root"),
        (Fault::Lies(SWAPS), ErrorKind::Refused, "is not in /proc/swaps"),
    ];
    for (fault, kind, word) in cases {
        let ground = Ground::new();
        let before = ground.everything();
        let guard = ground.guard_with(Machine::fake(ground.base()).with(fault));
        let error = guard.swap_file(SWAP_DIR, SIZE).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(ground.everything(), before);
        drop(guard);
        assert!(!ground.journals().exists(), "{fault:?}");
    }
}

#[test]
fn a_full_disk_or_a_folder_that_is_none_is_told_before_anything_is_made() {
    let ground = Ground::new();
    let guard = ground.guard();
    let error = guard.swap_file(SWAP_DIR, Bytes(7 << 30 | 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAvailable);
    assert!(error.to_string().contains("1024 MiB of them are the reserve"), "{error}");
    for dir in ["/none", "var/tmp", "/var/../var/tmp"] {
        guard.swap_file(dir, SIZE).unwrap_err();
    }
    let small = guard.swap_file(SWAP_DIR, Bytes(4096)).unwrap_err();
    assert_eq!(small.kind(), ErrorKind::Usage);
    assert!(!ground.journals().exists(), "nothing was announced");
}

#[test]
fn without_memory_to_bring_it_back_it_stays_and_is_told() {
    let ground = Ground::new();
    let guard = ground.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    let put = |path: &str, text: &str| fs::write(ground.base().join(&path[1..]), text).unwrap();
    let list = |used: u64| format!("Filename Type Size Used Priority\n{} file 1020 {used} 1\n", made.path);
    put("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
    put(SWAPS, &list(1000));
    let outcomes = guard.finish();
    assert_eq!(outcomes[0].fate, Fate::Failed);
    assert!(outcomes[0].detail.contains("end a program, then run pagelab restore"), "{outcomes:?}");
    assert!(ground.journals().exists() && ground.base().join(&made.path[1..]).exists());
    // Once there is room, the next guard that ends takes it away.
    put(SWAPS, &list(800));
    let outcomes = ground.guard().finish();
    assert_eq!(outcomes[0].fate, Fate::Restored, "{outcomes:?}");
    assert!(!ground.base().join(&made.path[1..]).exists() && !ground.journals().exists());
}

#[test]
fn a_file_that_is_another_one_by_now_or_was_removed_is_not_touched() {
    let ground = Ground::new();
    let guard = ground.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    let file = ground.base().join(&made.path[1..]);
    let none = "Filename Type Size Used Priority\n";
    fs::write(ground.base().join(&SWAPS[1..]), none).unwrap();
    // A new file beside it has another inode for certain.
    let other = file.with_file_name("other");
    fs::write(&other, "somebody's").unwrap();
    fs::rename(&other, &file).unwrap();
    assert_eq!(guard.finish()[0].fate, Fate::LeftAlone);
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");

    let ground = Ground::new();
    let guard = ground.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    fs::remove_file(ground.base().join(&made.path[1..])).unwrap();
    let list = format!("{none}{}\\040(deleted) file 1020 0 1\n", made.path);
    fs::write(ground.base().join(&SWAPS[1..]), list).unwrap();
    let outcomes = guard.finish();
    assert_eq!(outcomes[0].fate, Fate::Failed);
    assert!(outcomes[0].detail.contains("until the next boot"), "{outcomes:?}");
    fs::write(ground.base().join(&SWAPS[1..]), none).unwrap();
    assert_eq!(guard::restore(&ground.site(), true).unwrap().refused, []);
}

#[test]
fn a_dry_run_lists_it_and_makes_nothing() {
    let ground = Ground::new();
    let before = ground.everything();
    let options = guard::Options { dry_run: true, ..Default::default() };
    let watched = guard::Watched::left_to_restore();
    let guard = guard::Guard::begin(&ground.site(), watched, options).unwrap();
    guard.swap_file(SWAP_DIR, SIZE).unwrap();
    assert_eq!(guard.planned()[0].what, "swap file");
    assert_eq!(ground.everything(), before);
}
