//! Tests of `pagelab guest setup` with stand-ins for apt-get, apt-cache and dpkg-deb: killed, twice at once,
//! without a network, without a package, on a full disk.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::binary;
use support::running::wait_until;

const CACHE: &str = "#!/bin/sh
case \"$1\" in
pkgnames) cat \"$STAGE/names\" ;;
show) [ -f \"$STAGE/shown/$3\" ] && cat \"$STAGE/shown/$3\" ;;
esac; true\n";

/// Announces a step, and waits there as long as the test holds it.
const STEP: &str = "#!/bin/sh
step() { : > \"$STAGE/at-$1\"; while [ -e \"$STAGE/hold-$1\" ]; do sleep 0.01; done; }\n";

/// Downloads the requested package, and counts the downloads.
const GET: &str = "
for last; do :; done
echo x >> \"$STAGE/fetched\"
step fetch
echo package > \"${last%%=*}.deb\"
step fetched\n";

const UNPACK: &str = "
step unpack
mkdir -p \"$3/boot\" \"$3/lib/modules/6.1.0-9-cloud-amd64\"
touch \"$3/lib/modules/6.1.0-9-cloud-amd64/modules.builtin\"
step half
cp \"$STAGE/image\" \"$3/boot/vmlinuz-6.1.0-9-cloud-amd64\"
step unpacked\n";

struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Stage {
        let stage = Stage(tempfile::tempdir().unwrap());
        for folder in ["bin", "shown"] {
            fs::create_dir(stage.path(folder)).unwrap();
        }
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x314].copy_from_slice(b"6.1.0-9-cloud-amd64 ");
        fs::write(stage.path("image"), image).unwrap();
        // The newest by number is known by its name alone, as when only a dependency names it.
        let names = ["10", "9", "8"].map(|n| format!("linux-image-6.1.0-{n}-cloud-amd64\n")).concat();
        fs::write(stage.path("names"), names + "linux-image-6.1.0-9-cloud-amd64-dbg\nlinux-image-6.12-x\n")
            .unwrap();
        for n in ["9", "8"] {
            let name = format!("linux-image-6.1.0-{n}-cloud-amd64");
            let record = format!("Package: {name}\nVersion: 6.1.{n}-1\nSize: 8\nSHA256: abcd\n\n");
            fs::write(stage.path("shown").join(name), record).unwrap();
        }
        stage.program("apt-cache", CACHE);
        stage.program("apt-get", &format!("{STEP}{GET}"));
        stage.program("dpkg-deb", &format!("{STEP}{UNPACK}"));
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        fs::write(self.path("bin").join(name), script).unwrap();
        fs::set_permissions(self.path("bin").join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, path: &str) -> Command {
        let mut command = Command::new(binary());
        command.args(["guest", "setup", "--kernel", "6.1"]).env("STAGE", self.0.path());
        command.env("XDG_CACHE_HOME", self.path("cache"));
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        pagelab_sys::spawn::reset_signals(&mut command);
        command
    }

    fn run(&self) -> Output {
        self.command("/usr/bin:/bin").output().unwrap()
    }

    fn kernels(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("cache/pagelab/kernels")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name != ".lock");
        names.sort();
        names
    }
}

const NAME: &str = "linux-image-6.1.0-9-cloud-amd64_6.1.9-1";

fn check(output: &Output, code: i32, said: &str) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    assert!(stdout.contains(said) || stderr.contains(said), "{said}: {stdout}{stderr}");
}

#[test]
fn the_newest_available_kernel_is_fetched_once() {
    let stage = Stage::new();
    check(&stage.run(), 0, "6.1.0-9-cloud-amd64   6.1.9-1");
    assert_eq!(stage.kernels(), [NAME]);
    check(&stage.run(), 0, "6.1.0-9-cloud-amd64   6.1.9-1");
    assert_eq!(fs::read_to_string(stage.path("fetched")).unwrap(), "x\n");
    // An image that was cut off is not taken for a kernel, and comes anew.
    let image = stage.path("cache/pagelab/kernels").join(NAME).join("boot/vmlinuz-6.1.0-9-cloud-amd64");
    fs::write(&image, &fs::read(&image).unwrap()[..0x380]).unwrap();
    check(&stage.run(), 0, "6.1.0-9-cloud-amd64");
    assert_eq!(fs::read_to_string(stage.path("fetched")).unwrap(), "x\nx\n");
}

#[test]
fn two_concurrent_setups_fetch_one_kernel() {
    let stage = Stage::new();
    fs::write(stage.path("hold-fetch"), "").unwrap();
    let both = [0, 1].map(|_| stage.command("/usr/bin:/bin").spawn().unwrap());
    wait_until("the download", || stage.path("at-fetch").exists());
    // One holds the lock, and the other waits for it.
    for child in &both {
        wait_until("the lock", || {
            let files = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().flatten();
            files.filter_map(|file| fs::read_link(file.path()).ok()).any(|path| path.ends_with(".lock"))
        });
    }
    fs::remove_file(stage.path("hold-fetch")).unwrap();
    for child in both {
        check(&child.wait_with_output().unwrap(), 0, "6.1.0-9-cloud-amd64");
    }
    assert_eq!(
        (stage.kernels(), fs::read_to_string(stage.path("fetched")).unwrap()),
        (vec![NAME.into()], "x\n".into())
    );
}

#[test]
fn a_kill_at_any_step_leaves_no_partial_kernel() {
    let stage = Stage::new();
    for step in ["fetch", "fetched", "unpack", "half", "unpacked"] {
        let (hold, reached) = (stage.path(&format!("hold-{step}")), stage.path(&format!("at-{step}")));
        fs::write(&hold, "").unwrap();
        let mut child = stage.command("/usr/bin:/bin").spawn().unwrap();
        wait_until(step, || reached.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_file(&hold).unwrap();
        for name in stage.kernels() {
            assert!(name.starts_with(".partial-") || name == NAME, "{name}");
        }
    }
    check(&stage.run(), 0, "6.1.0-9-cloud-amd64");
    assert_eq!(stage.kernels(), [NAME], "what the killed ones left is gone");
}

#[test]
fn a_signal_ends_the_setup_and_leaves_nothing() {
    let stage = Stage::new();
    let begun = stage.path("begun");
    stage.program("apt-get", &format!("#!/bin/sh\nsleep 600 & : > '{}'; sleep 600\n", begun.display()));
    let child = stage.command("/usr/bin:/bin").spawn().unwrap();
    wait_until("apt-get", || begun.exists());
    let start = Instant::now();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    check(&child.wait_with_output().unwrap(), 130, "stopped");
    assert!(start.elapsed() < Duration::from_secs(300), "what it started is not waited for");
    assert_eq!(stage.kernels(), Vec::<String>::new());
}

#[test]
fn failures_are_reported_with_a_hint() {
    let stage = Stage::new();
    let fails = |program: &str, said: &str, code: i32, expected: &str| {
        let before = fs::read_to_string(stage.path("bin").join(program)).unwrap();
        stage.program(program, &format!("#!/bin/sh\n{said}\n"));
        let output = stage.run();
        stage.program(program, &before);
        check(&output, code, expected);
        assert_eq!(stage.kernels(), Vec::<String>::new(), "{said}");
    };
    let no_network = "echo \"E: Failed to fetch x  Could not connect to mirror\" >&2; exit 100";
    fails(
        "apt-get",
        no_network,
        4,
        "Could not connect to mirror\nhint: check the network, or use --kernel PATH",
    );
    let full = "echo \"E: You don't have enough free space in y\" >&2; exit 100";
    fails("apt-get", full, 5, "the disk is full");
    fails("apt-get", full, 5, "--cache DIR or XDG_CACHE_HOME");
    fails("apt-get", "exit 0", 4, "hint: try again");
    fails("apt-get", "for last; do :; done; echo short > x.deb", 4, "expected 8 bytes, found 6");
    fails("dpkg-deb", "echo 'tar: No space left on device' >&2; exit 2", 5, "the disk is full");
    fails("dpkg-deb", "echo 'not an archive' >&2; exit 2", 4, "cannot unpack");
    fails("dpkg-deb", "exit 0", 4, "no vmlinuz in it");
    fails("apt-cache", "exit 0", 4, "cannot find a linux-image-6.1");
    fails("apt-cache", "exit 0", 4, "`apt-get update` as root");
    let nowhere = stage.command("/usr/bin:/bin").args(["--cache", "/dev/null/x"]).output().unwrap();
    check(&nowhere, 5, "cannot use /dev/null/x/kernels: Not a directory");
    check(&nowhere, 5, "use --cache DIR or XDG_CACHE_HOME");
    // The kernel is there now, and what its module needs is not.
    check(&stage.run(), 0, "6.1.0-9-cloud-amd64");
    let module = |path: &str| stage.command(path).arg("--module").output().unwrap();
    check(&module("/usr/bin:/bin"), 4, "apt's package lists have no linux-headers-6.1.0-9-cloud-amd64");
    check(&module("/usr/bin:/bin"), 4, "use --headers DIR");
    let without_make = stage.path("without-make");
    fs::create_dir(&without_make).unwrap();
    std::os::unix::fs::symlink("/bin/cat", without_make.join("cat")).unwrap();
    check(&module(without_make.to_str().unwrap()), 4, "there is no make\nhint: apt-get install make");
    let headers =
        |words: &[&str]| stage.command("/usr/bin:/bin").arg("--module").args(words).output().unwrap();
    check(&headers(&["--headers", "/no/such/headers"]), 3, "cannot use the headers in /no/such/headers");
    check(&headers(&["--headers", "/", "--kernel", "6.12"]), 2, "expected one --kernel");
    assert!(!stage.path("cache/pagelab/modules").join("pagelab.ko").exists());
    fs::remove_file(stage.path("bin/apt-cache")).unwrap();
    check(&stage.command("/nowhere").output().unwrap(), 4, "cannot find apt-cache");
    assert!(!Path::new("/nowhere").exists());
}
