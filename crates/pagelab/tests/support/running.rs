//! Programs that run while a test looks at them, and profiles that were made.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use pagelab_model::Profile;

use super::Lab;

/// Long enough for a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The profile of a run file.
pub fn profile(lab: &Lab, name: &str) -> Profile {
    *pagelab_runfile::read(&lab.path().join(name)).unwrap().profile.unwrap()
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program of a test; it goes with the test.
pub struct Running(pub Child, pub Option<BufReader<ChildStdout>>);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// The next line that it says. One reader for all of them: it may have read ahead.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// Some memory of a program's own, all of it written.
pub const HOLDS: &str = "
import mmap, time
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(m), 4096): m[at] = at // 4096 % 251
print('ready')
";
