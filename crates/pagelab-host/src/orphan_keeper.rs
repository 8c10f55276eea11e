//! Keeper of orphans: a process that kills the processes of its owner after a `kill -9` of the owner.
//!
//! PR_SET_PDEATHSIG kills a child with its parent, but not the child's own children. The keeper reads orders
//! from a pipe. The kernel closes the pipe when the owner ends, for whatever reason; the keeper then kills
//! what it was told of, and ends. It outlives its owner, so it is in a process group of its own, and holds
//! none of the owner's files. A keeper that is killed too kills nothing.

use std::fs;
use std::io::{self, BufRead, Write};
use std::mem::discriminant;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pagelab_formats::process_status;
use rustix::process::{Pid, Signal, kill_process};

use crate::paths;
use crate::root::Root;

/// Time for which processes are killed: a process in an uninterruptible sleep dies only when that ends.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two scans. Processes that are forked during a scan are found by the next one.
const SCAN_INTERVAL: Duration = Duration::from_millis(5);

/// Processes that end with their owner. Each kind finds descendants that PR_SET_PDEATHSIG does not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrphanScope {
    /// A process group of the owner's session.
    Group(u32),
    /// The `cgroup.procs` file of a control group that the owner created.
    Cgroup(String),
    /// Processes with a word that contains this text, as every QEMU of one profile has its account.
    Word(String),
}

impl OrphanScope {
    fn to_line(&self) -> String {
        match self {
            OrphanScope::Group(group) => format!("group {group}\n"),
            OrphanScope::Cgroup(procs) => format!("cgroup {procs}\n"),
            OrphanScope::Word(word) => format!("word {word}\n"),
        }
    }

    fn parse(line: &str) -> Option<OrphanScope> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            // Group 1 is init's, and 0 would be the keeper's own.
            "group" => rest.parse().ok().filter(|&group| group > 1).map(OrphanScope::Group),
            "cgroup" => Some(OrphanScope::Cgroup(rest.to_owned())),
            "word" if !rest.is_empty() => Some(OrphanScope::Word(rest.to_owned())),
            _ => None,
        }
    }
}

/// The owner's side.
#[derive(Debug)]
pub struct OrphanKeeper {
    child: Child,
    orders: Option<ChildStdin>,
}

impl OrphanKeeper {
    /// Starts it: `command` is a program that calls [`keep_orphans`].
    pub fn start(mut command: Command) -> io::Result<OrphanKeeper> {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let orders = child.stdin.take();
        Ok(OrphanKeeper { child, orders })
    }

    /// From now on these processes end with this one, in place of earlier ones of the same kind.
    pub fn watch(&mut self, scope: &OrphanScope) -> io::Result<()> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        orders.write_all(scope.to_line().as_bytes())
    }
}

impl Drop for OrphanKeeper {
    fn drop(&mut self) {
        // The owner has ended its processes itself: their numbers may be those of others soon.
        let _ = self.orders.as_mut().map(|orders| orders.write_all(RELEASE.as_bytes()));
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// The order after which nothing is killed.
const RELEASE: &str = "release\n";

/// The keeper's side: waits for the end of its orders, and kills what they name.
pub fn keep_orphans(orders: impl BufRead) {
    let mut scopes: Vec<OrphanScope> = Vec::new();
    for line in orders.lines() {
        match line {
            Ok(line) if line == RELEASE.trim_end() => return,
            Ok(line) => {
                let Some(scope) = OrphanScope::parse(&line) else { continue };
                scopes.retain(|known| discriminant(known) != discriminant(&scope));
                scopes.push(scope);
            }
            Err(_) => break,
        }
    }
    let end = Instant::now() + KILL_TIMEOUT;
    while kill_once(&scopes) > 0 && Instant::now() < end {
        thread::sleep(SCAN_INTERVAL);
    }
}

/// Kills all processes of a scan; returns their number.
fn kill_once(scopes: &[OrphanScope]) -> usize {
    let own = std::process::id();
    let mut found: Vec<u32> = scopes.iter().flat_map(list_processes).filter(|&pid| pid != own).collect();
    found.sort_unstable();
    found.dedup();
    let pids = found.iter().filter_map(|&pid| Pid::from_raw(i32::try_from(pid).ok()?));
    // One that has just ended, or that belongs to another user, is not counted.
    pids.filter(|&pid| kill_process(pid, Signal::KILL).is_ok()).count()
}

fn list_processes(scope: &OrphanScope) -> Vec<u32> {
    match scope {
        OrphanScope::Cgroup(procs) => {
            let text = fs::read_to_string(procs).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid > 1).collect()
        }
        OrphanScope::Group(group) => list_matching(|pid| is_in_group(pid, *group)),
        OrphanScope::Word(word) => list_matching(|pid| {
            let command = fs::read(paths::process_file(pid, "cmdline")).unwrap_or_default();
            let has_word = |text: &[u8]| text.windows(word.len()).any(|part| part == word.as_bytes());
            // A text with a PID means other processes in another PID namespace.
            command.split(|&byte| byte == 0).any(has_word) && is_in_own_namespace(pid)
        }),
    }
}

/// The session too: a group number that was reused belongs to another session, as good as always. A zombie
/// of the group has ended.
fn is_in_group(pid: u32, group: u32) -> bool {
    let read = |pid| process_status::parse_stat(&fs::read(paths::process_stat_file(pid)).ok()?).ok();
    let (Some(found), Some(own)) = (read(pid), read(std::process::id())) else { return false };
    found.process_group == Some(group.into()) && found.session == own.session && !found.has_ended()
}

fn is_in_own_namespace(pid: u32) -> bool {
    let namespace = fs::read_link(paths::process_file(pid, "ns/pid")).ok();
    namespace.is_some() && namespace == fs::read_link(paths::SELF_PID_NAMESPACE).ok()
}

fn list_matching(is_wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let pids = Root::live().list_processes().unwrap_or_default().into_iter();
    pids.filter(|&pid| pid > 1 && is_wanted(pid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell with a child, both in a group of their own.
    fn start_shell(word: &str) -> Child {
        let script = format!("sleep 600 & echo >/dev/null {word}; wait");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().unwrap()
    }

    fn wait_for_child(shell: &Child) {
        let end = Instant::now() + Duration::from_secs(60);
        while list_matching(|pid| is_in_group(pid, shell.id())).len() < 2 {
            assert!(Instant::now() < end, "the shell started nothing");
            thread::sleep(SCAN_INTERVAL);
        }
    }

    #[test]
    fn a_group_is_killed_with_its_children_and_nothing_else() {
        let (mut killed, mut other) = (start_shell("a"), start_shell("b"));
        wait_for_child(&killed);
        wait_for_child(&other);
        keep_orphans(OrphanScope::Group(killed.id()).to_line().as_bytes());
        assert!(!killed.wait().unwrap().success());
        assert!(list_matching(|pid| is_in_group(pid, killed.id())).is_empty());
        assert!(other.try_wait().unwrap().is_none());
        // Nothing is killed after a release, nor for an order that is not understood.
        let released = format!("{}{RELEASE}", OrphanScope::Group(other.id()).to_line());
        keep_orphans(released.as_bytes());
        keep_orphans(format!("group x\ngroup 0\ngroup 1\nword \n{}\n", other.id()).as_bytes());
        assert!(other.try_wait().unwrap().is_none());
        keep_orphans(OrphanScope::Group(other.id()).to_line().as_bytes());
        other.wait().unwrap();
    }

    #[test]
    fn processes_are_found_by_a_word_of_their_command_line() {
        let word = format!("account-{}-of-this-test", std::process::id());
        let mut shell = start_shell(&word);
        wait_for_child(&shell);
        keep_orphans(OrphanScope::Word(word).to_line().as_bytes());
        assert!(!shell.wait().unwrap().success());
        keep_orphans(OrphanScope::Group(shell.id()).to_line().as_bytes());
    }

    #[test]
    fn orders_are_read_as_they_are_written() {
        let scopes = [
            OrphanScope::Group(77),
            OrphanScope::Cgroup("/a b/cgroup.procs".to_owned()),
            OrphanScope::Word("account=/x".to_owned()),
        ];
        for scope in scopes {
            assert_eq!(OrphanScope::parse(scope.to_line().trim_end()), Some(scope));
        }
    }
}
