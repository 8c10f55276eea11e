//! Programs that run during a test, and synthetic profiles.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use pagelab_model::TlbProfile;

use super::Lab;

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(300);

/// The profile of a run file.
pub fn profile(lab: &Lab, name: &str) -> TlbProfile {
    *pagelab_runfile::read_run_file(&lab.path().join(name)).unwrap().profile.unwrap()
}

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Attempts something with a number of rounds, then with twice as many, until what it found is enough, or 64
/// times the rounds were not: then the test decides. How long a round takes depends on the binary and the
/// machine; that a state was seen does not.
pub fn with_enough_rounds<T>(
    first: u64,
    mut attempt: impl FnMut(&str) -> T,
    is_enough: impl Fn(&T) -> bool,
) -> T {
    let mut rounds = first;
    loop {
        let found = attempt(&rounds.to_string());
        if is_enough(&found) || rounds >= first * 64 {
            return found;
        }
        rounds *= 2;
    }
}

/// A program of a test; it goes with the test.
pub struct KillOnDrop(pub Child, pub Option<BufReader<ChildStdout>>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The state of a process: `T` is stopped; see proc_pid_stat(5). Of one that is gone it is `X`.
pub fn process_state(pid: u32) -> char {
    stat_field(pid, 0).and_then(|state| state.chars().next()).unwrap_or('X')
}

/// A field of `/proc/PID/stat` behind the name: 0 is the state, 1 the parent, 7 the minor faults.
pub fn stat_field(pid: u32, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(index).map(str::to_owned)
}

/// The children of all threads of a process; none of one that is gone.
pub fn children_of(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let text: String = lists.map(Result::unwrap_or_default).collect();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A field of `/proc/PID/FILE` with the number that follows it.
pub fn process_field(pid: u32, file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

/// How long the threads of a process have waited for a CPU in total; 0 on a kernel that does not count it.
pub fn run_queue_wait_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let wait_ns = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    };
    tasks.filter_map(wait_ns).sum()
}

impl KillOnDrop {
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

/// Python: `is_scanned()` tells whether accessed bits were scanned since `touch_rest()`. A scan splits
/// mappings, clears the bits, reads them, and merges the mappings. After 100 s the program need not wait.
pub const SCANS: &str = "
import mmap, time
rest = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
patience = time.time() + 100
def touch_rest():
    for at in range(0, len(rest), 4096): rest[at] = 1
def is_cleared():
    lines = [line.split() for line in open('/proc/self/smaps_rollup') if line.endswith('kB\\n')]
    kib = {words[0]: int(words[1]) for words in lines}
    return time.time() > patience or kib['Referenced:'] + (16 << 10) < kib['Rss:']
def is_split():
    flags = [line.split() for line in open('/proc/self/smaps') if line.startswith('VmFlags')]
    return any('wr' in words and 'dd' in words for words in flags)
def is_scanned(): return is_cleared() and not is_split()
touch_rest()
";

/// Some memory of a program's own, all of it written.
pub const HOLDS: &str = "
import mmap, time
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(m), 4096): m[at] = at // 4096 % 251
print('ready')
";
