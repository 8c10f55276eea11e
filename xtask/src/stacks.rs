//! Stacks of a hanging program, and its termination with all its descendants.

use std::fs;
use std::process::{Command, Stdio};

use crate::tree;

/// Maximum of shown processes of a hung tree, and of threads of each.
const PROCESSES_MAX: usize = 16;
const THREADS_MAX: usize = 8;
/// Time limit of a debugger for one process.
const DEBUGGER_SECONDS: &str = "20";

/// A process and its descendants, parents first, by `/proc/PID/stat`.
pub fn descendants(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent_pid(pid)?))).collect();
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(&of) = tree.get(next) {
        tree.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    tree
}

/// The parent: the second field after the command's name, which may hold anything but ends at the last `)`.
fn parent_pid(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// State of each of these processes: its command line, state, kernel stack (root alone may read it) and, with
/// gdb, its own stacks.
pub fn report_processes(pids: &[u32]) -> Vec<String> {
    let mut lines = Vec::new();
    for &pid in pids.iter().take(PROCESSES_MAX) {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        lines.push(format!("process {pid}: {}", command.trim_end()));
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads.take(THREADS_MAX) {
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let status = read("status");
            let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or("");
            let place = read("wchan");
            let name = read("comm");
            let tid = thread.file_name();
            lines.push(format!("  thread {} {}: {state}, {place}", tid.display(), name.trim()));
            lines.extend(read("stack").lines().map(|line| format!("    {line}")));
        }
        lines.extend(gdb_stacks(pid));
    }
    if pids.len() > PROCESSES_MAX {
        lines.push(format!("and {} processes more", pids.len() - PROCESSES_MAX));
    }
    lines
}

/// The stacks of a process as gdb sees them; nothing without gdb.
fn gdb_stacks(pid: u32) -> Vec<String> {
    if !tree::is_on_path("gdb") || !tree::is_on_path("timeout") {
        return Vec::new();
    }
    let mut gdb = Command::new("timeout");
    gdb.args([DEBUGGER_SECONDS, "gdb", "-batch", "-nx", "-ex", "thread apply all bt 24", "-p"]);
    gdb.arg(pid.to_string());
    let output = gdb.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let is_frame = |line: &&str| line.starts_with('#') || line.starts_with("Thread");
    text.lines().filter(is_frame).map(|line| format!("    {line}")).collect()
}

/// Ends these processes, parents first, so that none of them reacts to the end of a child.
pub fn kill_all(pids: &[u32]) {
    let numbers: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut kill = Command::new("kill");
    kill.arg("-KILL").args(numbers).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Those that ended meanwhile are no failure.
    let _ = kill.status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_shown_and_ended() {
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", "sleep 97.5 & wait"]).spawn().unwrap();
        let began = std::time::Instant::now();
        let tree = loop {
            let tree = descendants(shell.id());
            if tree.len() == 2 && report_processes(&tree)[..].join("\n").contains("sleep 97.5\n") {
                break tree;
            }
            assert!(began.elapsed().as_secs() < 20, "{:?}", report_processes(&tree));
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let lines = report_processes(&tree);
        assert!(lines[0].starts_with(&format!("process {}: sh -c", shell.id())), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("State:")), "{lines:?}");
        kill_all(&tree);
        assert!(!shell.wait().unwrap().success());
        assert_eq!(parent_pid(tree[1]).filter(|&parent| parent == shell.id()), None);
    }
}
