//! Tests of journals that are truncated, damaged, hostile or foreign; of full disks; of invalid directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use pagelab_host::guard::{
    self, Guard, GuardErrorKind, GuardOptions, GuardSite, JournalDir, Knob, Liveness, Owner, RestoreReport,
    SignalWatch, UndoOutcome,
};

use crate::machine::{ENABLED, INSTANCES, MIN_FREE, Machine, MachineFiles, POOL, SWAPPINESS, site_at};
use crate::victim::outcomes;

/// CRC-32 by a table of nibbles: another way than the one that is tested.
fn crc32(bytes: &[u8]) -> u32 {
    let mut table = [0u32; 16];
    for (index, entry) in (0u32..).zip(table.iter_mut()) {
        *entry = (0..4).fold(index, |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 });
    }
    let step = |crc: u32, nibble: u32| (crc >> 4) ^ table[((crc ^ nibble) & 15) as usize];
    !bytes.iter().fold(!0, |crc, &byte| step(step(crc, u32::from(byte)), u32::from(byte >> 4)))
}

fn line(json: &str) -> String {
    format!("{:08x} {json}\n", crc32(json.as_bytes()))
}

/// A process that does not run: our own number, started earlier.
fn dead_owner() -> Owner {
    let me = Owner::this_process().unwrap();
    Owner { start_ticks: me.start_ticks - 1, command: "pagelab probe".to_owned(), ..me }
}

fn head(owner: &Owner) -> String {
    let Owner { boot_id, pid, start_ticks, pid_namespace, command } = owner;
    let process = format!(r#""boot_id":"{boot_id}","pid":{pid},"start_ticks":{start_ticks}"#);
    let more = format!(r#""pid_namespace":"{pid_namespace}","command":"{command}""#);
    line(&format!(r#"{{"record":"head","version":1,{process},{more}}}"#))
}

fn change(seq: u64, path: &str, old: &str, ours: &str) -> String {
    line(&format!(
        r#"{{"record":"change","seq":{seq},"unix_ns":0,"path":"{path}","old":"{old}","ours":"{ours}"}}"#
    ))
}

/// Puts a journal of `owner` there, and its change of THP enabled into force.
fn leave(machine_files: &MachineFiles, owner: &Owner, text: &[u8]) -> String {
    let name = format!("{}-{}.journal", owner.pid, owner.start_ticks);
    fs::create_dir_all(machine_files.journals()).unwrap();
    fs::set_permissions(machine_files.journals(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(machine_files.journals().join(&name), text).unwrap();
    name
}

fn restore(machine_files: &MachineFiles) -> RestoreReport {
    guard::restore(&machine_files.site(), false).unwrap()
}

#[test]
fn the_crc_of_this_test_is_the_one_of_zlib() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn a_number_that_is_reused_is_another_process() {
    let machine_files = MachineFiles::new();
    machine_files.set_file(ENABLED, "never");
    leave(
        &machine_files,
        &dead_owner(),
        (head(&dead_owner()) + &change(1, ENABLED, "madvise", "never")).as_bytes(),
    );
    let report = restore(&machine_files);
    assert_eq!(report.journals[0].liveness, Liveness::Killed);
    assert_eq!(report.journals[0].owner.display_name(), format!("pid {}, pagelab probe", std::process::id()));
    assert_eq!(machine_files.value(ENABLED), "madvise");
}

#[test]
fn other_boots_are_discarded_and_running_owners_left() {
    let me = Owner::this_process().unwrap();
    let other_boot = Owner { boot_id: "8a7f0000-0000-0000-0000-000000000000".to_owned(), ..me.clone() };
    for (owner, undo, is_kept) in
        [(other_boot, UndoOutcome::OtherBoot, false), (me, UndoOutcome::OwnerRunning, true)]
    {
        let machine_files = MachineFiles::new();
        machine_files.set_file(ENABLED, "never");
        leave(&machine_files, &owner, (head(&owner) + &change(1, ENABLED, "madvise", "never")).as_bytes());
        let report = restore(&machine_files);
        assert_eq!(outcomes(&report)[0].undo, undo);
        assert_eq!(machine_files.value(ENABLED), "never");
        assert_eq!(machine_files.journals().exists(), is_kept);
    }
}

/// A process of an earlier boot can have had our number and start time, where the directory outlives the
/// boot. Its journal does not block this one.
#[test]
fn a_journal_of_this_pid_from_another_boot_does_not_block() {
    let machine_files = MachineFiles::new();
    let me = Owner::this_process().unwrap();
    let other_boot = Owner { boot_id: "another".to_owned(), ..me };
    leave(&machine_files, &other_boot, (head(&other_boot) + &change(1, POOL, "7", "9")).as_bytes());
    let guard = machine_files.guard();
    guard.set_knob(&Knob::thp_enabled(), "never").unwrap();
    guard.finish();
    assert_eq!((machine_files.value(ENABLED), machine_files.value(POOL)), ("madvise".into(), "0".into()));
    assert!(!machine_files.journals().exists());
}

/// A journal as a run leaves it: two settings, one of them nested, all in force.
fn whole_journal() -> Vec<u8> {
    let text = [
        head(&dead_owner()),
        change(1, ENABLED, "madvise", "always"),
        line(r#"{"record":"seen","seq":1,"value":"always","min_free_kbytes":"67584"}"#),
        change(2, POOL, "0", "4"),
        change(3, ENABLED, "always", "never"),
        line(r#"{"record":"seen","seq":3,"value":"never","min_free_kbytes":null}"#),
    ];
    text.concat().into_bytes()
}

#[test]
fn a_journal_cut_off_anywhere_is_used_up_to_there() {
    let whole = whole_journal();
    let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
    for cut in 0..=whole.len() {
        let machine_files = MachineFiles::new();
        machine_files.set_file(ENABLED, "never");
        machine_files.set_file(POOL, "4");
        leave(&machine_files, &dead_owner(), &whole[..cut]);
        let report = restore(&machine_files);
        assert_eq!(report.rejected, [], "cut at {cut}");
        // The records that are whole: head, change 1, seen, change 2 (pool), change 3, seen.
        let records = ends.iter().filter(|&&end| end < cut).count();
        let pool = if records >= 4 { "0" } else { "4" };
        let enabled = if records >= 5 { "madvise" } else { "never" };
        assert_eq!(
            (machine_files.value(POOL).as_str(), machine_files.value(ENABLED).as_str()),
            (pool, enabled),
            "cut at {cut}"
        );
        assert!(!machine_files.journals().exists(), "cut at {cut}");
    }
}

/// No damaged byte leads to a value that the run did not find or set itself, and none is passed over:
/// the file is refused and kept, or the damage was in the part that a kill may leave.
#[test]
fn a_journal_with_any_byte_damaged_is_refused_and_kept() {
    let whole = whole_journal();
    let machine_files = MachineFiles::new();
    for at in 0..whole.len() {
        machine_files.set_file(ENABLED, "never");
        machine_files.set_file(POOL, "4");
        let mut damaged = whole.clone();
        damaged[at] ^= [0x01, 0x20, 0x80][at % 3];
        let name = leave(&machine_files, &dead_owner(), &damaged);
        let report = restore(&machine_files);
        let values = (machine_files.value(POOL), machine_files.value(ENABLED));
        if report.rejected.is_empty() {
            assert_eq!(at, whole.len() - 1, "only the last line feed may be missing");
            assert_eq!(values, ("0".into(), "madvise".into()));
            continue;
        }
        assert_eq!(values, ("4".into(), "never".into()), "byte {at}");
        let kept = report.rejected[0].moved_to.clone().unwrap();
        assert_eq!(fs::read(&kept).unwrap(), damaged);
        assert!(!machine_files.journals().join(name).exists());
        let again = restore(&machine_files);
        assert_eq!(
            (again.rejected.len(), again.quarantined),
            (0, vec![kept.clone()]),
            "said again, not refused again"
        );
        fs::remove_file(kept).unwrap();
    }
}

/// The refusals of a path that is not on the list, a value, a cgroup and a trace instance.
const PATH: &str = "cannot change /";
const VALUE: &str = ": invalid values";
const CGROUP: &str = "is not a cgroup of pagelab";
const INSTANCE: &str = "is not a trace instance of pagelab";

#[test]
fn hostile_journals_write_nothing() {
    let with = |record: String| head(&dead_owner()) + &change(1, ENABLED, "madvise", "never") + &record;
    let record = |json: &str| with(line(json));
    let cgroup = |path: &str| {
        record(&format!(r#"{{"record":"cgroup","seq":2,"unix_ns":0,"path":"{path}","home":null}}"#))
    };
    let along = format!(
        r#"{{"record":"change","seq":2,"unix_ns":0,"path":"{SWAPPINESS}","old":"1",{}}}"#,
        r#""ours":"2","min_free_kbytes":"1""#
    );
    let instance = |name: &str| {
        let path = format!("{INSTANCES}/{name}");
        record(&format!(r#"{{"record":"trace-instance","seq":2,"unix_ns":0,"path":"{path}"}}"#))
    };
    let cases: [(&str, String, &str); 19] = [
        ("a path outside", with(change(2, "/etc/passwd", "0", "1")), PATH),
        ("a detour", with(change(2, &format!("{ENABLED}/../defrag"), "never", "always")), PATH),
        ("the core pattern", with(change(2, "/proc/sys/vm/../kernel/core_pattern", "1", "2")), PATH),
        ("a value with a blank", with(change(2, ENABLED, "a b", "never")), VALUE),
        ("a number that is a word", with(change(2, POOL, "always", "4")), VALUE),
        ("a number too large", with(change(2, POOL, "99999999999999999999", "4")), VALUE),
        ("a cgroup elsewhere", cgroup("/etc/pagelab-x"), CGROUP),
        ("a cgroup of others", cgroup("/sys/fs/cgroup/memory/init"), CGROUP),
        ("a cgroup by a detour", cgroup("/sys/fs/cgroup/memory/../../pagelab-x"), CGROUP),
        ("a trace instance of others", instance("trace-cmd"), INSTANCE),
        ("a trace instance by a detour", instance("pagelab-1/../trace-cmd"), INSTANCE),
        (
            "a mount elsewhere",
            record(r#"{"record":"debugfs","seq":2,"unix_ns":0,"path":"/home"}"#),
            "not mounted at",
        ),
        ("an unknown record", record(r#"{"record":"format-disk","seq":2}"#), "is not a record: "),
        ("a number twice", with(change(1, ENABLED, "madvise", "never")), "out of order"),
        ("a record of nothing", record(r#"{"record":"closed","seq":9,"how":"restored"}"#), "unknown"),
        ("a second head", with(head(&dead_owner())), "second head"),
        ("handed backwards", record(r#"{"record":"handed","seq":1,"to":1}"#), "take over"),
        ("along with what does not move", record(&along), "does not change min_free_kbytes"),
        ("no head", change(1, ENABLED, "madvise", "never"), "does not name its owner"),
    ];
    for (name, text, words) in cases {
        let machine_files = MachineFiles::new();
        machine_files.set_file(ENABLED, "never");
        let before = machine_files.contents();
        leave(&machine_files, &dead_owner(), text.as_bytes());
        // A running pagelab changes nothing while such a journal may speak of its setting.
        let error = machine_files.guard().set_knob(&Knob::thp_enabled(), "always").unwrap_err();
        assert_eq!(error.kind(), GuardErrorKind::BadInput, "{name}: {error}");
        let report = restore(&machine_files);
        assert!(report.rejected[0].reason.contains(words), "{name}: {:?}", report.rejected);
        assert!(report.journals.is_empty(), "{name}");
        assert_eq!(machine_files.contents(), before, "{name}");
        assert_eq!(
            fs::read(report.rejected[0].moved_to.as_ref().unwrap()).unwrap(),
            text.as_bytes(),
            "{name}"
        );
        machine_files.guard().set_knob(&Knob::thp_enabled(), "always").unwrap();
    }
}

#[test]
fn a_foreign_file_among_the_journals_is_refused() {
    let owner = dead_owner();
    let text = head(&owner) + &change(1, ENABLED, "madvise", "never");
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("journal"), &text).unwrap();
    type CreateFile<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, CreateFile<'_>, &str); 7] = [
        ("a link", &|path| symlink(outside.path().join("journal"), path).unwrap(), "symbolic link"),
        (
            "a second name",
            &|path| {
                fs::write(path, &text).unwrap();
                fs::hard_link(path, path.with_extension("second")).unwrap();
            },
            "has a second hard link",
        ),
        ("a directory", &|path| fs::create_dir(path).unwrap(), "directory"),
        ("a pipe", &|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()), "regular"),
        ("noise", &|path| fs::write(path, [0u8, 255, 10, 7, 10]).unwrap(), "line 1"),
        ("a file of 1 GiB", &|path| fs::File::create(path).unwrap().set_len(1 << 30).unwrap(), "larger"),
        (
            "open to all",
            &|path| {
                fs::write(path, &text).unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
            },
            "is writable by users other than",
        ),
    ];
    for (name, make, words) in cases {
        let machine_files = MachineFiles::new();
        machine_files.set_file(ENABLED, "never");
        let journal = leave(&machine_files, &owner, b"");
        let path = machine_files.journals().join(journal);
        fs::remove_file(&path).unwrap();
        make(&path);
        let report = restore(&machine_files);
        assert!(report.rejected[0].reason.contains(words), "{name}: {:?}", report.rejected);
        assert!(report.rejected[0].moved_to.as_ref().unwrap().symlink_metadata().is_ok(), "{name}");
        assert_eq!(machine_files.value(ENABLED), "never", "{name}");
    }
    assert_eq!(fs::read_to_string(outside.path().join("journal")).unwrap(), text);
}

#[test]
fn a_journal_of_a_newer_pagelab_stays_where_it_is() {
    let machine_files = MachineFiles::new();
    let newer = line(&head(&dead_owner())[9..].trim_end().replace(r#""version":1"#, r#""version":2"#));
    let name = leave(&machine_files, &dead_owner(), newer.as_bytes());
    let report = restore(&machine_files);
    assert!(report.rejected[0].reason.contains("newer"), "{report:?}");
    assert_eq!(report.rejected[0].moved_to, None);
    assert!(machine_files.journals().join(name).exists());
    // A journal under another process's name.
    let machine_files = MachineFiles::new();
    let name = leave(&machine_files, &dead_owner(), head(&dead_owner()).as_bytes());
    fs::rename(machine_files.journals().join(name), machine_files.journals().join("1-1.journal")).unwrap();
    assert!(restore(&machine_files).rejected[0].reason.contains("its name"));
}

#[test]
fn irreversible_acts_are_reported_and_not_undone() {
    let machine_files = MachineFiles::new();
    let act = line(r#"{"record":"one-way","seq":1,"unix_ns":0,"act":"compact_memory 1"}"#);
    let done = line(r#"{"record":"done","seq":1}"#);
    leave(&machine_files, &dead_owner(), (head(&dead_owner()) + &act + &done).as_bytes());
    let before = machine_files.contents();
    let outcome = &outcomes(&restore(&machine_files))[0];
    assert_eq!((outcome.undo, outcome.label.as_str()), (UndoOutcome::OneWay, "compact_memory 1"));
    assert_eq!(outcome.detail, "");
    assert_eq!(machine_files.contents(), before);
    assert!(!machine_files.journals().exists());
}

#[test]
fn an_irreversible_act_in_memory_of_a_dead_owner_leaves_nothing() {
    let machine_files = MachineFiles::new();
    let act = line(
        r#"{"record":"one-way","seq":1,"unix_ns":0,"act":"MADV_COLLAPSE, at most 9 times, in pagelab's own memory"}"#,
    );
    leave(&machine_files, &dead_owner(), (head(&dead_owner()) + &act).as_bytes());
    let outcome = &outcomes(&restore(&machine_files))[0];
    assert_eq!(outcome.undo, UndoOutcome::OneWay);
    assert_eq!(outcome.detail, "nothing to undo: the memory was freed when the process exited");
    assert!(!machine_files.journals().exists());
}

#[test]
fn bad_directories_are_refused_and_nothing_is_changed() {
    let elsewhere = tempfile::tempdir().unwrap();
    type CreateDir<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, CreateDir<'_>, &str); 4] = [
        ("a link", &|path| symlink(elsewhere.path(), path).unwrap(), "it is not a directory"),
        ("a file", &|path| fs::write(path, "").unwrap(), "it is not a directory"),
        (
            "open to all",
            &|path| {
                fs::create_dir(path).unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
            },
            "chmod 700",
        ),
        (
            "of another user",
            &|path| {
                fs::create_dir(path).unwrap();
                std::os::unix::fs::chown(path, Some(65534), None).unwrap();
            },
            "belongs to user 65534",
        ),
    ];
    for (name, make, words) in cases {
        if name == "of another user" && !rustix::process::geteuid().is_root() {
            eprintln!("skipped: not-root: only root can give a directory to another user");
            continue;
        }
        let machine_files = MachineFiles::new();
        make(&machine_files.journals());
        let error = machine_files.guard().set_knob(&Knob::thp_enabled(), "never").unwrap_err();
        assert_eq!(error.kind(), GuardErrorKind::NotAvailable, "{name}: {error}");
        assert!(error.to_string().contains(words), "{name}: {error}");
        assert!(guard::restore(&machine_files.site(), false).is_err(), "{name}");
        assert_eq!(machine_files.value(ENABLED), "madvise", "{name}");
    }
    assert!(fs::read_dir(elsewhere.path()).unwrap().next().is_none());
}

#[test]
fn the_directory_is_private() {
    let machine_files = MachineFiles::new();
    let guard = machine_files.guard();
    guard.set_knob(&Knob::thp_enabled(), "never").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&machine_files.journals()), 0o700);
    assert_eq!(mode(&machine_files.journals().join(&machine_files.journal_names()[0])), 0o600);
}

/// A disk of two pages, filled by the journal itself: the change whose announcement does not fit is not
/// made, the ones before it are undone.
#[test]
fn nothing_is_changed_without_a_journal() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: a full disk needs a mount of a small tmpfs");
        return;
    }
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let disk = tempfile::tempdir().unwrap();
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=8k", "tmpfs"]).arg(disk.path()).status();
    if !mount.unwrap().success() {
        eprintln!("skipped: no-mount: a small tmpfs cannot be mounted here");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let site: GuardSite = site_at(Machine::fake(machine_files.base()), &disk.path().join("journals"));
        let guard = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
        let mut last = "madvise";
        let error = loop {
            let next = if last == "never" { "always" } else { "never" };
            match guard.set_knob(&Knob::thp_enabled(), next) {
                Ok(_) => last = next,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), GuardErrorKind::KernelRefused);
        assert!(error.to_string().contains("cannot write the journal in"), "{error}");
        assert_eq!(machine_files.value(ENABLED), last, "the change whose announcement failed was not made");
        // The journal on the full disk is valid for a restore, here after a kill.
        let copy = machine_files.journals();
        fs::create_dir(&copy).unwrap();
        let journal = fs::read_dir(disk.path().join("journals")).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(&journal).unwrap();
        assert!(text.len() > 4096 && text.ends_with('\n'), "{} bytes", text.len());
        guard.finish();
        assert_eq!(machine_files.contents(), before);
    });
    assert!(Command::new("umount").arg(disk.path()).status().unwrap().success());
    result.unwrap();
}

#[test]
fn without_a_directory_a_restore_has_nothing_to_do_and_makes_none() {
    let machine_files = MachineFiles::new();
    assert_eq!(restore(&machine_files), RestoreReport::default());
    assert!(!machine_files.journals().exists());
    assert_eq!(machine_files.value(MIN_FREE), "67584");
    assert_eq!(JournalDir::from_path(&machine_files.journals()).path(), machine_files.journals());
}
