//! Stand-in for QEMU: a shell script that finds the channels in its arguments and sends what a test
//! specifies. No guest is booted.

#[path = "../support/binary.rs"]
mod binary;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub use binary::binary;
use pagelab_guest::message::{AgentHello, AgentMessage, StepExit};
use pagelab_guest::packet::encode;

/// A folder with a stand-in for QEMU and an image that looks like a kernel.
pub struct Stage {
    pub folder: tempfile::TempDir,
}

/// What a script starts with: `$line`, `$console` and `$bulk` are the numbers of the channels.
const HEAD: &str = "#!/bin/bash
cd \"${0%/*}\"
echo $$ > pid
printf '%s\\n' \"$@\" > arguments
for word in \"$@\"; do case \"$word\" in
    socket,id=line,fd=*) line=${word##*=} ;;
    socket,id=console,fd=*) console=${word##*=} ;;
    socket,id=bulk,fd=*) bulk=${word##*=} ;;
esac; done
";

pub fn hello() -> AgentMessage {
    AgentMessage::Hello(AgentHello { version: "0".into(), release: "6.1".into(), uptime_ns: 1 })
}

/// Messages of a step with this output and exit.
pub fn step(stdout: &str, stderr: &str, end: StepExit) -> Vec<AgentMessage> {
    let out = AgentMessage::Stdout(stdout.as_bytes().to_vec());
    let err = AgentMessage::Stderr(stderr.as_bytes().to_vec());
    vec![AgentMessage::StepStarted(0), out, err, AgentMessage::StepEnded(end)]
}

/// Messages as they go over one channel.
pub fn packets(messages: &[AgentMessage]) -> Vec<u8> {
    let packet = |(number, message): (u32, &AgentMessage)| {
        let packet = message.to_packet();
        encode(packet.kind, number, &packet.payload)
    };
    (0..).zip(messages).flat_map(packet).collect()
}

impl Stage {
    pub fn new(script: &str) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let stage = Stage { folder };
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x306].copy_from_slice(b"6.1.0 ");
        stage.put("vmlinuz", &image);
        stage.put("modules.dep", b"virtio_pci.ko:\nvirtio_console.ko:\nvirtio_blk.ko:\n");
        for module in ["virtio_pci.ko", "virtio_console.ko", "virtio_blk.ko"] {
            stage.put(module, b"");
        }
        stage.put("qemu", format!("{HEAD}{script}\n").as_bytes());
        fs::set_permissions(stage.path("qemu"), fs::Permissions::from_mode(0o755)).unwrap();
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// `pagelab guest run` with these options, for `frag`.
    pub fn command(&self, options: &[&str]) -> Command {
        self.command_for(options, &["frag"])
    }

    /// The same for another command line.
    pub fn command_for(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(["guest", "run"]).arg("--modules").arg(self.folder.path());
        for (option, value) in
            [("--memory", "128M".into()), ("--kernel", self.path("vmlinuz")), ("--qemu", self.path("qemu"))]
        {
            if !options.contains(&option) {
                command.arg(option).arg(value);
            }
        }
        command.args(options).arg("--").args(words);
        self.isolate(&mut command);
        command
    }

    /// Gives a command pipes, the signals of a new program and a folder of its own for temporary files.
    pub fn isolate(&self, command: &mut Command) {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        pagelab_sys::spawn::reset_signals(command);
        // Files in TMPDIR would be ours.
        fs::create_dir_all(self.path("tmp")).unwrap();
        command.env("TMPDIR", self.path("tmp"));
        // A test that is killed leaves none.
        pagelab_sys::spawn::die_with_parent(command);
    }

    pub fn run(&self, options: &[&str]) -> Output {
        started(&mut self.command(options)).wait_with_output().unwrap()
    }

    /// PID of the stand-in, once it runs.
    pub fn qemu(&self) -> u32 {
        let start = Instant::now();
        loop {
            let pid = fs::read_to_string(self.path("pid")).ok().and_then(|pid| pid.trim().parse().ok());
            if let Some(pid) = pid {
                return pid;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "QEMU was never started");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// No process runs any more, and no files are left.
    pub fn assert_nothing_is_left(&self) {
        assert!(is_gone_within(self.qemu(), Duration::from_secs(60)), "cannot remove the");
        assert_eq!(fs::read_dir(self.path("tmp")).unwrap().count(), 0, "in TMPDIR");
    }
}

/// Starts a program that was written a moment ago: a test beside this one may hold it open for writing until
/// its own child runs.
pub fn started(command: &mut Command) -> Child {
    command.spawn().unwrap()
}

/// Whether a process is gone, or is so soon.
pub fn is_gone_within(pid: u32, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        // A zombie without a parent to wait for it runs no more.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        let state = stat.ok().and_then(|stat| stat.rsplit(')').next()?.trim().chars().next());
        if matches!(state, None | Some('Z' | 'X')) {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The code and both streams.
pub fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// What a folder holds.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
