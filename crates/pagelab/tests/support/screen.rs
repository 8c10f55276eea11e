//! Terminal for tests: tmux provides it, presses the keys and reads the screen.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Lab, binary};

/// How long a screen is waited for; machines of tests are slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// A terminal with a shell in it.
pub struct Screen {
    /// Where it runs.
    pub lab: Lab,
}

impl Screen {
    /// A shell on a terminal of 80×24; `None`, and a word about it, where there is no tmux.
    pub fn open(lab: Lab) -> Option<Screen> {
        let has_tmux =
            Command::new("tmux").arg("-V").stdout(Stdio::null()).status().is_ok_and(|s| s.success());
        if !has_tmux {
            eprintln!("skipped: tmux-absent: the view is not driven on a terminal");
            return None;
        }
        let screen = Screen { lab };
        let shell = "env PS1='$ ' ENV= sh";
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-s", "s", shell]);
        screen.tmux(&["set", "-g", "status", "off"]);
        screen.until("a prompt", |text| text.contains('$'));
        Some(screen)
    }

    /// A command of tmux on this terminal; what it printed.
    pub fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs([("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8"), ("TERM", "xterm-256color"), ("HOME", "/")]);
        command.arg("-u").arg("-S").arg(self.lab.path().join("socket")).args(arguments);
        let output = command.current_dir(self.lab.path()).stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What the screen shows.
    pub fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-t", "s"])
    }

    /// Presses keys, by tmux's names.
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys", "-t", "s"], keys].concat());
    }

    /// Types a line into the shell.
    pub fn line(&self, line: &str) {
        self.tmux(&["send-keys", "-t", "s", "-l", line]);
        self.press(&["Enter"]);
    }

    /// Runs pagelab in the shell, which says the exit code behind it.
    pub fn pagelab(&self, arguments: &str) {
        self.line(&format!("clear; {} {arguments}; echo code $?.", binary()));
    }

    /// Read calls so far of the program in the foreground.
    pub fn read_calls(&self) -> u64 {
        let shell = self.tmux(&["display", "-p", "-t", "s", "#{pane_pid}"]);
        let shell = shell.trim();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        let program = children.split_whitespace().next().unwrap_or(shell);
        let counts = std::fs::read_to_string(format!("/proc/{program}/io")).unwrap();
        counts.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
    }

    /// Gives the terminal another size.
    pub fn resize(&self, width: &str, height: &str) {
        self.tmux(&["resize-window", "-t", "s", "-x", width, "-y", height]);
    }

    /// Waits for a screen, and returns it.
    pub fn until(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if is_there(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "waited for {what} in vain:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a part of the screen is there.
    pub fn until_shown(&self, part: &str) -> String {
        self.until(part, |text| text.contains(part))
    }

    /// The terminal is the shell's again: the code is told, lines are edited, the cursor is seen.
    pub fn until_ended(&self, code: u8) {
        self.until_shown(&format!("code {code}."));
        self.line(
            "clear; stty -a | tr ' ;' '\\n\\n' | grep -x -e icanon -e echo -e ixon | tr '\\n' ' '; echo end.",
        );
        let text = self.until_shown("end.\n");
        assert!(text.contains("icanon") && text.contains("echo") && text.contains("ixon"), "{text}");
        let cursor = self.tmux(&["display", "-p", "-t", "s", "#{cursor_flag} #{alternate_on}"]);
        assert_eq!(cursor.trim(), "1 0", "the cursor is seen, on the first screen");
    }

    /// The process that runs in the shell.
    pub fn pid(&self) -> String {
        let shell = self.tmux(&["display", "-p", "-t", "s", "#{pane_pid}"]);
        let list = Path::new("/proc").join(shell.trim()).join("task").join(shell.trim()).join("children");
        std::fs::read_to_string(list).unwrap().split_whitespace().next().unwrap().to_owned()
    }

    /// Sends a signal.
    pub fn signal(&self, pid: &str, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
