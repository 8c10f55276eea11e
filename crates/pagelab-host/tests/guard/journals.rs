//! Journals that are torn, damaged, hostile, or of others; full disks; bad directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use pagelab_host::guard::{
    self, ErrorKind, Fate, Guard, JournalDir, Knob, Liveness, Options, Owner, Report, Site, Watched,
};

use crate::machine::{ENABLED, Ground, INSTANCES, MIN_FREE, Machine, POOL, SWAPPINESS, site_at};
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
fn dead() -> Owner {
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
fn leave(ground: &Ground, owner: &Owner, text: &[u8]) -> String {
    let name = format!("{}-{}.journal", owner.pid, owner.start_ticks);
    fs::create_dir_all(ground.journals()).unwrap();
    fs::set_permissions(ground.journals(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(ground.journals().join(&name), text).unwrap();
    name
}

fn restore(ground: &Ground) -> Report {
    guard::restore(&ground.site(), false).unwrap()
}

#[test]
fn the_crc_of_this_test_is_the_one_of_zlib() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn a_number_that_is_reused_is_another_process() {
    let ground = Ground::new();
    ground.put(ENABLED, "never");
    leave(&ground, &dead(), (head(&dead()) + &change(1, ENABLED, "madvise", "never")).as_bytes());
    let report = restore(&ground);
    assert_eq!(report.journals[0].liveness, Liveness::Killed);
    assert_eq!(report.journals[0].owner.name(), format!("pid {}, pagelab probe", std::process::id()));
    assert_eq!(ground.value(ENABLED), "madvise");
}

#[test]
fn other_boots_are_discarded_and_running_owners_left() {
    let me = Owner::this_process().unwrap();
    let other_boot = Owner { boot_id: "8a7f0000-0000-0000-0000-000000000000".to_owned(), ..me.clone() };
    for (owner, fate, is_kept) in [(other_boot, Fate::OtherBoot, false), (me, Fate::Held, true)] {
        let ground = Ground::new();
        ground.put(ENABLED, "never");
        leave(&ground, &owner, (head(&owner) + &change(1, ENABLED, "madvise", "never")).as_bytes());
        let report = restore(&ground);
        assert_eq!(outcomes(&report)[0].fate, fate);
        assert_eq!(ground.value(ENABLED), "never");
        assert_eq!(ground.journals().exists(), is_kept);
    }
}

/// A process of an earlier boot can have had our number and start time, where the directory outlives
/// the boot. Its journal does not stand in the way of ours.
#[test]
fn our_own_name_of_another_boot() {
    let ground = Ground::new();
    let me = Owner::this_process().unwrap();
    let other_boot = Owner { boot_id: "another".to_owned(), ..me };
    leave(&ground, &other_boot, (head(&other_boot) + &change(1, POOL, "7", "9")).as_bytes());
    let guard = ground.guard();
    guard.set(&Knob::thp_enabled(), "never").unwrap();
    guard.finish();
    assert_eq!((ground.value(ENABLED), ground.value(POOL)), ("madvise".into(), "0".into()));
    assert!(!ground.journals().exists());
}

/// A journal as a run leaves it: two settings, one of them nested, all in force.
fn whole_journal() -> Vec<u8> {
    let text = [
        head(&dead()),
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
        let ground = Ground::new();
        ground.put(ENABLED, "never");
        ground.put(POOL, "4");
        leave(&ground, &dead(), &whole[..cut]);
        let report = restore(&ground);
        assert_eq!(report.refused, [], "cut at {cut}");
        // The records that are whole: head, change 1, seen, change 2 (pool), change 3, seen.
        let records = ends.iter().filter(|&&end| end < cut).count();
        let pool = if records >= 4 { "0" } else { "4" };
        let enabled = if records >= 5 { "madvise" } else { "never" };
        assert_eq!(
            (ground.value(POOL).as_str(), ground.value(ENABLED).as_str()),
            (pool, enabled),
            "cut at {cut}"
        );
        assert!(!ground.journals().exists(), "cut at {cut}");
    }
}

/// No damaged byte leads to a value that the run did not find or set itself, and none is passed over:
/// the file is refused and kept, or the damage was in the part that a kill may leave.
#[test]
fn a_journal_with_any_byte_damaged_is_refused_and_kept() {
    let whole = whole_journal();
    let ground = Ground::new();
    for at in 0..whole.len() {
        ground.put(ENABLED, "never");
        ground.put(POOL, "4");
        let mut damaged = whole.clone();
        damaged[at] ^= [0x01, 0x20, 0x80][at % 3];
        let name = leave(&ground, &dead(), &damaged);
        let report = restore(&ground);
        let values = (ground.value(POOL), ground.value(ENABLED));
        if report.refused.is_empty() {
            assert_eq!(at, whole.len() - 1, "only the last line feed may be missing");
            assert_eq!(values, ("0".into(), "madvise".into()));
            continue;
        }
        assert_eq!(values, ("4".into(), "never".into()), "byte {at}");
        let kept = report.refused[0].kept_as.clone().unwrap();
        assert_eq!(fs::read(&kept).unwrap(), damaged);
        assert!(!ground.journals().join(name).exists());
        let again = restore(&ground);
        assert_eq!(
            (again.refused.len(), again.aside),
            (0, vec![kept.clone()]),
            "said again, not refused again"
        );
        fs::remove_file(kept).unwrap();
    }
}

#[test]
fn hostile_journals_write_nothing() {
    let with = |record: String| head(&dead()) + &change(1, ENABLED, "madvise", "never") + &record;
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
        ("a path outside", with(change(2, "/etc/passwd", "0", "1")), "not a setting"),
        (
            "a way out of the list",
            with(change(2, &format!("{ENABLED}/../defrag"), "never", "always")),
            "not a setting",
        ),
        (
            "the core pattern",
            with(change(2, "/proc/sys/vm/../kernel/core_pattern", "1", "2")),
            "not a setting",
        ),
        ("a value with a blank", with(change(2, ENABLED, "a b", "never")), "cannot have"),
        ("a number that is a word", with(change(2, POOL, "always", "4")), "cannot have"),
        ("a number too large", with(change(2, POOL, "99999999999999999999", "4")), "cannot have"),
        ("a cgroup elsewhere", cgroup("/etc/pagelab-x"), "no cgroup"),
        ("a cgroup of others", cgroup("/sys/fs/cgroup/memory/init"), "no cgroup"),
        ("a cgroup by a detour", cgroup("/sys/fs/cgroup/memory/../../pagelab-x"), "no cgroup"),
        ("a trace instance of others", instance("trace-cmd"), "no trace instance"),
        ("a trace instance by a detour", instance("pagelab-1/../trace-cmd"), "no trace instance"),
        (
            "a mount elsewhere",
            record(r#"{"record":"debugfs","seq":2,"unix_ns":0,"path":"/home"}"#),
            "not mounted at",
        ),
        ("an unknown record", record(r#"{"record":"format-disk","seq":2}"#), "no record"),
        ("a number twice", with(change(1, ENABLED, "madvise", "never")), "out of order"),
        ("a record of nothing", record(r#"{"record":"closed","seq":9,"how":"restored"}"#), "unknown"),
        ("a second head", with(head(&dead())), "second head"),
        ("handed backwards", record(r#"{"record":"handed","seq":1,"to":1}"#), "take over"),
        ("along with what does not move", record(&along), "along"),
        ("no head", change(1, ENABLED, "madvise", "never"), "whose journal"),
    ];
    for (name, text, words) in cases {
        let ground = Ground::new();
        ground.put(ENABLED, "never");
        let before = ground.everything();
        leave(&ground, &dead(), text.as_bytes());
        // A running pagelab changes nothing while such a journal may speak of its setting.
        let error = ground.guard().set(&Knob::thp_enabled(), "always").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{name}: {error}");
        let report = restore(&ground);
        assert!(report.refused[0].reason.contains(words), "{name}: {:?}", report.refused);
        assert!(report.journals.is_empty(), "{name}");
        assert_eq!(ground.everything(), before, "{name}");
        assert_eq!(fs::read(report.refused[0].kept_as.as_ref().unwrap()).unwrap(), text.as_bytes(), "{name}");
        ground.guard().set(&Knob::thp_enabled(), "always").unwrap();
    }
}

#[test]
fn what_is_no_file_of_ours_is_refused() {
    let owner = dead();
    let text = head(&owner) + &change(1, ENABLED, "madvise", "never");
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("journal"), &text).unwrap();
    type Make<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Make<'_>, &str); 7] = [
        ("a link", &|path| symlink(outside.path().join("journal"), path).unwrap(), "symbolic link"),
        (
            "a second name",
            &|path| {
                fs::write(path, &text).unwrap();
                fs::hard_link(path, path.with_extension("second")).unwrap();
            },
            "second name",
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
            "written by others",
        ),
    ];
    for (name, make, words) in cases {
        let ground = Ground::new();
        ground.put(ENABLED, "never");
        let journal = leave(&ground, &owner, b"");
        let path = ground.journals().join(journal);
        fs::remove_file(&path).unwrap();
        make(&path);
        let report = restore(&ground);
        assert!(report.refused[0].reason.contains(words), "{name}: {:?}", report.refused);
        assert!(report.refused[0].kept_as.as_ref().unwrap().symlink_metadata().is_ok(), "{name}");
        assert_eq!(ground.value(ENABLED), "never", "{name}");
    }
    assert_eq!(fs::read_to_string(outside.path().join("journal")).unwrap(), text);
}

#[test]
fn a_journal_of_a_newer_pagelab_stays_where_it_is() {
    let ground = Ground::new();
    let newer = line(&head(&dead())[9..].trim_end().replace(r#""version":1"#, r#""version":2"#));
    let name = leave(&ground, &dead(), newer.as_bytes());
    let report = restore(&ground);
    assert!(report.refused[0].reason.contains("newer"), "{report:?}");
    assert_eq!(report.refused[0].kept_as, None);
    assert!(ground.journals().join(name).exists());
    // A journal under another process's name.
    let ground = Ground::new();
    let name = leave(&ground, &dead(), head(&dead()).as_bytes());
    fs::rename(ground.journals().join(name), ground.journals().join("1-1.journal")).unwrap();
    assert!(restore(&ground).refused[0].reason.contains("its name"));
}

#[test]
fn one_way_acts_are_told_and_not_undone() {
    let ground = Ground::new();
    let act = line(r#"{"record":"one-way","seq":1,"unix_ns":0,"act":"compact_memory 1"}"#);
    let done = line(r#"{"record":"done","seq":1}"#);
    leave(&ground, &dead(), (head(&dead()) + &act + &done).as_bytes());
    let before = ground.everything();
    let outcome = &outcomes(&restore(&ground))[0];
    assert_eq!((outcome.fate, outcome.what.as_str()), (Fate::OneWay, "compact_memory 1"));
    assert_eq!(outcome.detail, "");
    assert_eq!(ground.everything(), before);
    assert!(!ground.journals().exists());
}

#[test]
fn of_a_one_way_act_in_memory_of_the_dead_nothing_is_left() {
    let ground = Ground::new();
    let act = line(
        r#"{"record":"one-way","seq":1,"unix_ns":0,"act":"MADV_COLLAPSE, at most 9 times, in pagelab's own memory"}"#,
    );
    leave(&ground, &dead(), (head(&dead()) + &act).as_bytes());
    let outcome = &outcomes(&restore(&ground))[0];
    assert_eq!(outcome.fate, Fate::OneWay);
    assert_eq!(outcome.detail, "nothing is left of it: the memory went with the process");
    assert!(!ground.journals().exists());
}

#[test]
fn bad_directories_are_refused_and_nothing_is_changed() {
    let elsewhere = tempfile::tempdir().unwrap();
    type Make<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Make<'_>, &str); 4] = [
        ("a link", &|path| symlink(elsewhere.path(), path).unwrap(), "a link or a file"),
        ("a file", &|path| fs::write(path, "").unwrap(), "a link or a file"),
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
        let ground = Ground::new();
        make(&ground.journals());
        let error = ground.guard().set(&Knob::thp_enabled(), "never").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAvailable, "{name}: {error}");
        assert!(error.to_string().contains(words), "{name}: {error}");
        assert!(guard::restore(&ground.site(), false).is_err(), "{name}");
        assert_eq!(ground.value(ENABLED), "madvise", "{name}");
    }
    assert!(fs::read_dir(elsewhere.path()).unwrap().next().is_none());
}

#[test]
fn the_directory_is_private() {
    let ground = Ground::new();
    let guard = ground.guard();
    guard.set(&Knob::thp_enabled(), "never").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&ground.journals()), 0o700);
    assert_eq!(mode(&ground.journals().join(&ground.journal_names()[0])), 0o600);
}

/// A disk of two pages, filled by the journal itself: the change whose announcement does not fit is not
/// made, the ones before it are undone.
#[test]
fn no_journal_no_change() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: a full disk needs a mount of a small tmpfs");
        return;
    }
    let ground = Ground::new();
    let before = ground.everything();
    let disk = tempfile::tempdir().unwrap();
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=8k", "tmpfs"]).arg(disk.path()).status();
    if !mount.unwrap().success() {
        eprintln!("skipped: no-mount: a small tmpfs cannot be mounted here");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let site: Site = site_at(Machine::fake(ground.base()), &disk.path().join("journals"));
        let guard = Guard::begin(&site, Watched::left_to_restore(), Options::default()).unwrap();
        let mut last = "madvise";
        let error = loop {
            let next = if last == "never" { "always" } else { "never" };
            match guard.set(&Knob::thp_enabled(), next) {
                Ok(_) => last = next,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains("was not changed: the journal in"), "{error}");
        assert_eq!(ground.value(ENABLED), last, "the change whose announcement failed was not made");
        // What is on the full disk is a journal that a restore understands, here after a kill.
        let copy = ground.journals();
        fs::create_dir(&copy).unwrap();
        let journal = fs::read_dir(disk.path().join("journals")).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(&journal).unwrap();
        assert!(text.len() > 4096 && text.ends_with('\n'), "{} bytes", text.len());
        guard.finish();
        assert_eq!(ground.everything(), before);
    });
    assert!(Command::new("umount").arg(disk.path()).status().unwrap().success());
    result.unwrap();
}

#[test]
fn without_a_directory_a_restore_has_nothing_to_do_and_makes_none() {
    let ground = Ground::new();
    assert_eq!(restore(&ground), Report::default());
    assert!(!ground.journals().exists());
    assert_eq!(ground.value(MIN_FREE), "67584");
    assert_eq!(JournalDir::at(&ground.journals()).path(), ground.journals());
}
