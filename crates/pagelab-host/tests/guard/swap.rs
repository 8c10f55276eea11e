//! Tests of a swap file under the guard, on a fake machine: what is rejected, what stays, what is undone
//! later.

use std::fs;

use pagelab_host::guard::{self, GuardErrorKind, UndoOutcome};
use pagelab_model::Bytes;
use rustix::io::Errno;

use crate::machine::{Fault, Machine, MachineFiles, SWAP_DIR, SWAPS};

const SIZE: Bytes = Bytes(1 << 20);

#[test]
fn a_swap_file_is_private_and_removed_with_its_guard() {
    use std::os::unix::fs::MetadataExt;
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let guard = machine_files.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    let meta = fs::metadata(machine_files.base().join(&made.path[1..])).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.len()), (0o600, SIZE.0));
    assert!(meta.blocks() * 512 >= SIZE.0, "a hole has no block to swap to: {} blocks", meta.blocks());
    assert!(machine_files.value(SWAPS).contains(&made.path), "{}", machine_files.value(SWAPS));
    let again = guard.swap_file(SWAP_DIR, SIZE).unwrap_err();
    assert_eq!(again.kind(), GuardErrorKind::InvalidRequest);
    assert_eq!(guard.finish()[0].undo, UndoOutcome::Restored);
    assert_eq!(machine_files.contents(), before);
    assert!(!machine_files.journals().exists());
}

#[test]
fn a_failed_swapon_leaves_nothing() {
    let cases = [
        (Fault::Refuses(SWAPS, Errno::INVAL), GuardErrorKind::KernelRefused, "--swap-dir"),
        (Fault::Refuses(SWAPS, Errno::PERM), GuardErrorKind::NotAvailable, "run as root"),
        (Fault::Lies(SWAPS), GuardErrorKind::KernelRefused, "is not in /proc/swaps"),
    ];
    for (fault, kind, word) in cases {
        let machine_files = MachineFiles::new();
        let before = machine_files.contents();
        let guard = machine_files.guard_with(Machine::fake(machine_files.base()).with_fault(fault));
        let error = guard.swap_file(SWAP_DIR, SIZE).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(machine_files.contents(), before);
        drop(guard);
        assert!(!machine_files.journals().exists(), "{fault:?}");
    }
}

#[test]
fn a_full_disk_or_a_missing_directory_is_an_error_before_any_change() {
    let machine_files = MachineFiles::new();
    let guard = machine_files.guard();
    let error = guard.swap_file(SWAP_DIR, Bytes(7 << 30 | 1)).unwrap_err();
    assert_eq!(error.kind(), GuardErrorKind::NotAvailable);
    assert!(error.to_string().contains("1 GiB of it is reserved by the file system"), "{error}");
    for dir in ["/none", "var/tmp", "/var/../var/tmp"] {
        guard.swap_file(dir, SIZE).unwrap_err();
    }
    let small = guard.swap_file(SWAP_DIR, Bytes(4096)).unwrap_err();
    assert_eq!(small.kind(), GuardErrorKind::InvalidRequest);
    assert!(!machine_files.journals().exists(), "nothing was announced");
}

#[test]
fn swap_that_does_not_fit_into_memory_stays_on_and_is_reported() {
    let machine_files = MachineFiles::new();
    let guard = machine_files.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    let put = |path: &str, text: &str| fs::write(machine_files.base().join(&path[1..]), text).unwrap();
    let list = |used: u64| format!("Filename Type Size Used Priority\n{} file 1020 {used} 1\n", made.path);
    put("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
    put(SWAPS, &list(1000));
    let outcomes = guard.finish();
    assert_eq!(outcomes[0].undo, UndoOutcome::Failed);
    assert!(outcomes[0].detail.contains("stop a program, then run pagelab restore"), "{outcomes:?}");
    assert!(machine_files.journals().exists() && machine_files.base().join(&made.path[1..]).exists());
    // Once there is room, the next guard that ends removes it.
    put(SWAPS, &list(800));
    let outcomes = machine_files.guard().finish();
    assert_eq!(outcomes[0].undo, UndoOutcome::Restored, "{outcomes:?}");
    assert!(!machine_files.base().join(&made.path[1..]).exists() && !machine_files.journals().exists());
}

#[test]
fn a_file_that_is_another_one_by_now_or_was_removed_is_not_touched() {
    let machine_files = MachineFiles::new();
    let guard = machine_files.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    let file = machine_files.base().join(&made.path[1..]);
    let none = "Filename Type Size Used Priority\n";
    fs::write(machine_files.base().join(&SWAPS[1..]), none).unwrap();
    // A new file beside it has another inode for certain.
    let other = file.with_file_name("other");
    fs::write(&other, "somebody's").unwrap();
    fs::rename(&other, &file).unwrap();
    assert_eq!(guard.finish()[0].undo, UndoOutcome::LeftUnchanged);
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");

    let machine_files = MachineFiles::new();
    let guard = machine_files.guard();
    let made = guard.swap_file(SWAP_DIR, SIZE).unwrap();
    fs::remove_file(machine_files.base().join(&made.path[1..])).unwrap();
    let list = format!("{none}{}\\040(deleted) file 1020 0 1\n", made.path);
    fs::write(machine_files.base().join(&SWAPS[1..]), list).unwrap();
    let outcomes = guard.finish();
    assert_eq!(outcomes[0].undo, UndoOutcome::Failed);
    assert!(outcomes[0].detail.contains("until the next boot"), "{outcomes:?}");
    fs::write(machine_files.base().join(&SWAPS[1..]), none).unwrap();
    assert_eq!(guard::restore(&machine_files.site(), true).unwrap().rejected, []);
}

#[test]
fn a_dry_run_lists_the_swap_file_and_creates_nothing() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let options = guard::GuardOptions { dry_run: true, ..Default::default() };
    let watched = guard::SignalWatch::without_handler();
    let guard = guard::Guard::new(&machine_files.site(), watched, options).unwrap();
    guard.swap_file(SWAP_DIR, SIZE).unwrap();
    assert_eq!(guard.planned_changes()[0].label, "swap file");
    assert_eq!(machine_files.contents(), before);
}
