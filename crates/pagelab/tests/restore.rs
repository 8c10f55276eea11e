//! Tests of `pagelab restore` after real kills, on a fake tree and on this machine.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail and print as tests do")]

#[path = "support/binary.rs"]
mod binary;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use binary::binary;
use pagelab_host::guard::{Guard, GuardOptions, GuardSite, Knob, SignalWatch};
use serde_json::Value;

const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const SWAPPINESS: &str = "proc/sys/vm/swappiness";
const LIVE_JOURNALS: &str = "/run/pagelab";
/// The user that owns nothing.
const NOBODY: u32 = 65534;

/// A tree of settings, in which plain files stand for the kernel's.
struct Tree {
    base: tempfile::TempDir,
}

impl Tree {
    fn new() -> Tree {
        let base = tempfile::tempdir().unwrap();
        for (path, text) in [(ENABLED, "always [madvise] never\n"), (SWAPPINESS, "60\n")] {
            let path = base.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir(base.path().join("run")).unwrap();
        Tree { base }
    }

    fn base(&self) -> &Path {
        self.base.path()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.base().join(path)).unwrap().trim().to_owned()
    }

    fn put(&self, path: &str, text: &str) {
        fs::write(self.base().join(path), text).unwrap();
    }

    fn restore(&self, more: &[&str]) -> CommandOutput {
        run(pagelab().arg("restore").arg("--root").arg(self.base()).args(more))
    }

    /// Leaves two settings changed by a process that is killed. Returns its number.
    fn leave_changed(&self) -> u32 {
        let mut victim = Victim::start(self.base());
        victim.kill();
        victim.child.id()
    }
}

struct CommandOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

fn pagelab() -> Command {
    Command::new(binary())
}

fn run(command: &mut Command) -> CommandOutput {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A process that changes settings and waits to be killed.
struct Victim {
    child: Child,
}

impl Victim {
    fn start(base: &Path) -> Victim {
        let ready = tempfile::tempdir().unwrap();
        let ready = ready.path().join("ready");
        fs::create_dir_all(ready.parent().unwrap()).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "victim", "--nocapture"]).stdout(Stdio::null());
        let child = command.env("PAGELAB_VICTIM_BASE", base).env("PAGELAB_VICTIM_READY", &ready).spawn();
        let mut victim = Victim { child: child.unwrap() };
        let deadline = Instant::now() + Duration::from_secs(120);
        while !ready.exists() {
            assert!(victim.child.try_wait().unwrap().is_none(), "the victim ended by itself");
            assert!(Instant::now() < deadline, "the victim is not ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        victim
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The victim itself. Run as a test, without a base, it does nothing.
#[test]
fn victim() {
    let Some(base) = std::env::var_os("PAGELAB_VICTIM_BASE") else { return };
    let site = if base == "/" { GuardSite::live() } else { GuardSite::with_base(Path::new(&base)) };
    let guard = Guard::new(&site.unwrap(), SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    guard.set_knob(&Knob::thp_enabled(), "never").unwrap();
    if base != "/" {
        guard.set_knob(&Knob::vm("swappiness").unwrap(), "10").unwrap();
    }
    fs::write(std::env::var_os("PAGELAB_VICTIM_READY").unwrap(), "").unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

/// The output with the victim's number and command as `OWNER`.
fn without_owner(text: &str, pid: u32) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let owner = line.split_once(&format!("pid {pid}, restore-")).map(|(before, rest)| {
            let command_end = rest.find('…').unwrap() + '…'.len_utf8();
            format!("{before}OWNER{}", &rest[command_end..])
        });
        lines.push_str(owner.as_deref().unwrap_or(line));
        lines.push('\n');
    }
    lines
}

#[test]
fn changes_of_a_killed_owner_are_restored_once() {
    let tree = Tree::new();
    let pid = tree.leave_changed();
    let planned = tree.restore(&["--dry-run"]);
    assert_eq!((tree.read(ENABLED).as_str(), tree.read(SWAPPINESS).as_str()), ("never", "10"));
    let ran = tree.restore(&[]);
    assert_eq!((tree.read(ENABLED).as_str(), tree.read(SWAPPINESS).as_str()), ("madvise", "60"));
    expect_test::expect![[r#"
        would restore  vm.swappiness  10 → 60           (left by OWNER, killed)
        would restore  THP enabled    never → madvise   (left by OWNER, killed)
    "#]]
    .assert_eq(&without_owner(&planned.out, pid));
    expect_test::expect![[r#"
        restored  vm.swappiness  10 → 60           (left by OWNER, killed)
        restored  THP enabled    never → madvise   (left by OWNER, killed)
    "#]]
    .assert_eq(&without_owner(&ran.out, pid));
    assert_eq!((planned.code, ran.code), (Some(0), Some(0)));
    let again = tree.restore(&[]);
    assert_eq!((again.code, again.out.as_str(), again.err.as_str()), (Some(0), "nothing to restore\n", ""));
}

#[test]
fn a_value_that_was_changed_since_is_kept_and_reported() {
    let tree = Tree::new();
    let pid = tree.leave_changed();
    tree.put(ENABLED, "[always] madvise never\n");
    let ran = tree.restore(&[]);
    expect_test::expect![[r#"
        restored  vm.swappiness  10 → 60   (left by OWNER, killed)
        left      THP enabled    now always, set by another process since; was madvise   (left by OWNER, killed)
    "#]]
    .assert_eq(&without_owner(&ran.out, pid));
    assert_eq!(ran.code, Some(5));
    assert_eq!(tree.read(ENABLED), "[always] madvise never");
    assert_eq!(tree.restore(&[]).code, Some(0));
}

#[test]
fn a_running_owner_is_left_alone() {
    let tree = Tree::new();
    let victim = Victim::start(tree.base());
    let ran = tree.restore(&[]);
    expect_test::expect![[r#"
        running  vm.swappiness  10, reverts to 60           (held by OWNER)
        running  THP enabled    never, reverts to madvise   (held by OWNER)
    "#]]
    .assert_eq(&without_owner(&ran.out, victim.child.id()));
    assert_eq!(ran.code, Some(0));
    assert_eq!(tree.read(ENABLED), "never");
}

#[test]
fn json_is_for_programs() {
    let tree = Tree::new();
    let pid = tree.leave_changed();
    let ran = tree.restore(&["--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["kind"], "restore");
    assert_eq!(report["journals"][0]["owner"]["pid"], pid);
    let change = &report["journals"][0]["changes"][1];
    let expected = serde_json::json!({
        "label": "THP enabled",
        "path": "/sys/kernel/mm/transparent_hugepage/enabled",
        "outcome": "restored",
        "found": "never",
        "found_absent_reason": null,
        "set_value": "never",
        "set_value_absent_reason": null,
        "original": "madvise",
        "original_absent_reason": null,
        "detail": "",
    });
    assert_eq!(*change, expected);
    let again: Value = serde_json::from_str(&tree.restore(&["--json"]).out).unwrap();
    assert_eq!(again["journals"], Value::Array(Vec::new()));
}

#[test]
fn a_damaged_journal_is_exit_3_and_kept() {
    let tree = Tree::new();
    tree.leave_changed();
    let dir = tree.base().join("run/pagelab");
    let journal = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&journal).unwrap();
    bytes[20] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    let ran = tree.restore(&[]);
    assert_eq!(ran.code, Some(3));
    assert!(ran.out.contains("line 1: its checksum does not match; no setting was written"), "{}", ran.out);
    assert_eq!(tree.read(ENABLED), "never");
    let kept = PathBuf::from(format!("{}.refused-0", journal.display()));
    assert_eq!(fs::read(&kept).unwrap(), bytes);
    let again = tree.restore(&[]);
    assert_eq!(again.code, Some(0));
    assert!(again.out.contains(&kept.display().to_string()), "{}", again.out);
}

#[test]
fn a_directory_that_others_can_write_is_exit_4() {
    let tree = Tree::new();
    tree.leave_changed();
    let dir = tree.base().join("run/pagelab");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let ran = tree.restore(&[]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""));
    assert!(ran.err.contains("chmod 700"), "{}", ran.err);
    assert_eq!(tree.read(ENABLED), "never");
    let absent = run(pagelab().args(["restore", "--root", "/nonexistent"]));
    assert_eq!(absent.code, Some(4), "{}", absent.err);
}

/// On this machine, with journals in their default directory.
#[test]
fn this_machine_is_restored() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: not-root: settings of this machine are changed by root alone");
    }
    let path = Path::new("/").join(ENABLED);
    let Ok(before) = fs::read_to_string(&path) else {
        return eprintln!("skipped: no-setting: this kernel has no transparent huge pages");
    };
    if Path::new(LIVE_JOURNALS).exists() {
        return eprintln!("skipped: journals-in-use: {LIVE_JOURNALS} is not ours alone");
    }
    if fs::File::options().write(true).open(&path).is_err() {
        return eprintln!("skipped: not-writable: {}", path.display());
    }
    let mode = before.split_once('[').and_then(|(_, rest)| rest.split_once(']')).unwrap().0.to_owned();
    let result = std::panic::catch_unwind(|| {
        Victim::start(Path::new("/")).kill();
        assert!(fs::read_to_string(&path).unwrap().contains("[never]"));
        assert_eq!(fs::metadata(LIVE_JOURNALS).unwrap().permissions().mode() & 0o777, 0o700);
        an_unprivileged_user_is_told_of_journals_of_root();
        let ran = run(pagelab().arg("restore"));
        assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
        assert!(mode == "never" || ran.out.contains(&format!("never → {mode}")), "{}", ran.out);
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        assert!(!Path::new(LIVE_JOURNALS).exists());
    });
    if fs::read_to_string(&path).unwrap() != before {
        fs::write(&path, mode).unwrap();
    }
    // Also after a failed assertion nothing is left for the next one.
    run(pagelab().arg("restore"));
    result.unwrap();
}

/// Without root there is no place for a journal, or another one, and root's are not passed over in silence.
fn an_unprivileged_user_is_told_of_journals_of_root() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.path().join("binary");
    fs::copy(binary(), &copy).unwrap();
    let as_nobody = |runtime: Option<&Path>| {
        let mut command = Command::new(&copy);
        command.arg("restore").uid(NOBODY).gid(NOBODY).env_remove("XDG_RUNTIME_DIR").current_dir("/");
        run(command.envs(runtime.map(|path| ("XDG_RUNTIME_DIR", path))))
    };
    let nowhere = as_nobody(None);
    assert_eq!(nowhere.code, Some(4));
    assert!(nowhere.err.contains("run as root, or set XDG_RUNTIME_DIR"), "{}", nowhere.err);
    let own = as_nobody(Some(dir.path()));
    assert_eq!(own.code, Some(4), "{}", own.err);
    assert!(own.err.contains("sudo pagelab restore"), "{}", own.err);
}
