//! Tests of `pagelab guest shell` with a real kernel and the real tool disk: a command that compiles, and an
//! interactive shell on a pseudo-terminal.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pagelab_guest::tool_disk::{ToolCache, set_up_tool_disk};
use pagelab_model::FailureKind;
use pagelab_packages::store::default_cache_dir;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

/// A boot takes some seconds, on a busy machine many.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Whether there are a kernel and a tool disk, or else why the test is skipped.
fn is_ready() -> bool {
    if trial::plan("6.1", Vec::new()).is_none() {
        return false;
    }
    let cache = ToolCache::in_dir(&default_cache_dir().unwrap());
    match cache.find_newest().map_or_else(|| set_up_tool_disk(&cache, &mut trial::SilentWatcher), Ok) {
        Ok(_) => true,
        Err(error) if error.kind() == FailureKind::NotAvailable => {
            eprintln!("skipped: tool-disk-not-made: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_command_compiles_a_given_file_and_its_exit_code_comes_back() {
    if !is_ready() {
        return;
    }
    let _turn = trial::lock_guests();
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 6 * 7); return 3; }\n";
    std::fs::write(folder.path().join("t.c"), source).unwrap();
    let script = "cc -o /disk/t t.c && /disk/t; code=$?; touch /usr/x 2>/disk/said; \
                  grep -c 'Read-only' /disk/said; pagelab frag | grep -c Normal; exit $code";
    let mut command = trial::pagelab_here();
    command.current_dir(folder.path()).args(["guest", "shell", "--give", "t.c", "-c", script]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines[..2], ["42", "1"], "{lines:?} {stderr}");
}

/// A pseudo-terminal: our end, and a program's.
fn open_terminal() -> (File, File) {
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&own).unwrap();
    unlockpt(&own).unwrap();
    let name = ptsname(&own, Vec::new()).unwrap();
    let other = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&other, Winsize { ws_row: 31, ws_col: 97, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (File::from(own), other)
}

/// Reads until a text was written, and returns everything so far.
fn read_until(received: &mpsc::Receiver<Vec<u8>>, all: &mut String, text: &str) {
    let start = Instant::now();
    while !all.contains(text) {
        match received.recv_timeout(Duration::from_secs(1)) {
            Ok(bytes) => all.push_str(&String::from_utf8_lossy(&bytes)),
            Err(_) if start.elapsed() < ANSWER_TIMEOUT => {}
            Err(error) => panic!("no {text:?}: {error}: {all}"),
        }
    }
}

#[test]
fn a_shell_talks_to_a_terminal_and_leaves_it_as_it_was() {
    if !is_ready() {
        return;
    }
    let _turn = trial::lock_guests();
    let (own, other) = open_terminal();
    let before = tcgetattr(&other).unwrap();
    let end = || Stdio::from(OwnedFd::from(other.try_clone().unwrap()));
    let mut command = trial::pagelab_here();
    command.args(["guest", "shell"]).env("TERM", "vt100").stdin(end()).stdout(end()).stderr(Stdio::null());
    let mut shell = command.spawn().unwrap();
    let (sender, received) = mpsc::channel();
    let mut reader = own.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 4 << 10];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            if sender.send(bytes[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let (mut own, mut all) = (own, String::new());
    read_until(&received, &mut all, "guest# ");
    // The terminal of the guest echoes what is typed: the sum is in the answer alone.
    own.write_all(b"echo $((6000 + 77)) $TERM; stty size\n").unwrap();
    read_until(&received, &mut all, "6077 vt100");
    read_until(&received, &mut all, "31 97");
    // An interrupt ends a program of the guest, and neither the shell nor pagelab.
    own.write_all(b"sleep 1000\n").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    own.write_all(b"\x03").unwrap();
    own.write_all(b"echo again $((40 + 2))\n").unwrap();
    read_until(&received, &mut all, "again 42");
    own.write_all(b"exit 5\n").unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(5), "{all}");
    let after = tcgetattr(&other).unwrap();
    assert_eq!((before.local_modes, before.input_modes), (after.local_modes, after.input_modes));
}

#[test]
fn without_a_terminal_the_way_out_is_named() {
    let output = trial::pagelab_here().args(["guest", "shell"]).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("are not a terminal") && stderr.contains("hint: use -c COMMAND"), "{stderr}");
}
