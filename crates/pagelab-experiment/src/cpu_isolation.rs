//! CPU isolation for a trial.
//!
//! On a machine with an isolated CPU, the trial uses it. Otherwise a separate process, the keeper, moves all
//! other tasks off the last CPU, as far as the kernel permits, and restores their affinity. The keeper lives
//! until the pipe from this process is closed, for whatever reason, and then restores the masks. So they are
//! restored after a kill -9 of this process too, but not if the keeper is killed as well. A journal would
//! have to name processes by PIDs that may be reused by the time it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, Stdio};

use pagelab_formats::{cpu_list, process_status};
use pagelab_host::capture::StopSignal;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_sys::scheduling::PinnedThread;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::gate::{self, READY};

/// The engine's side: the keeper, if one is needed, and the free CPU.
#[derive(Debug)]
pub(crate) struct IsolatedCpu {
    keeper: Option<(Child, Option<ChildStdin>)>,
    /// Its number.
    pub cpu: u32,
    /// Description of what was done.
    pub description: String,
}

impl IsolatedCpu {
    /// Takes an isolated CPU, or frees the last one that this process may use: the first one takes most
    /// interrupts.
    pub fn isolate() -> Result<IsolatedCpu, String> {
        if let Some(cpu) = find_isolated_cpu() {
            let message = format!("pin: CPU {cpu} is isolated");
            return Ok(IsolatedCpu { keeper: None, cpu, description: message });
        }
        let allowed = PinnedThread::allowed_cpus();
        let cpu = match allowed[..] {
            [.., _, last] => last,
            _ => return Err("pin: this process may use only one CPU, which other tasks need too".to_owned()),
        };
        let failed = |error: io::Error| format!("pin: cannot start the helper process: {error}");
        let mut command = gate::gate_command();
        command.args(["--keep-off", &cpu.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().map_err(failed)?;
        let keeper_input = keeper.stdin.take();
        let (mut reply, mut byte) = (Vec::new(), [0]);
        let out = keeper.stdout.as_mut().ok_or("pin: no output pipe from the helper process")?;
        while !reply.ends_with(format!("{READY}\n").as_bytes()) {
            match out.read(&mut byte) {
                Ok(1) => reply.push(byte[0]),
                _ => return Err("pin: the helper process exited before all tasks were moved".to_owned()),
            }
        }
        let message = String::from_utf8_lossy(&reply).lines().next().unwrap_or_default().to_owned();
        Ok(IsolatedCpu { keeper: Some((keeper, keeper_input)), cpu, description: message })
    }

    /// Restores all affinities; returns a description of what was not restored.
    pub fn restore(&mut self) -> Option<String> {
        let (mut keeper, keeper_input) = self.keeper.take()?;
        drop(keeper_input);
        let mut rest = String::new();
        let read = keeper.stdout.as_mut().map(|out| out.read_to_string(&mut rest));
        let waited = keeper.wait();
        match (read, waited) {
            (Some(Ok(_)), Ok(status)) if status.success() => {
                let rest = rest.trim();
                (!rest.is_empty()).then(|| rest.to_owned())
            }
            _ => Some(
                "pin: the helper process was killed before it restored the affinity of all tasks".to_owned(),
            ),
        }
    }
}

impl Drop for IsolatedCpu {
    fn drop(&mut self) {
        self.restore();
    }
}

/// The last isolated CPU to which this thread can be moved. A task has an isolated CPU in its mask only if it
/// was set explicitly (kernel/sched/isolation.c), so pagelab tries to set it.
fn find_isolated_cpu() -> Option<u32> {
    let root = Root::live();
    let list = Reader::new(&root).parse(paths::CPU_ISOLATED, cpu_list::parse).ok()?;
    list.into_iter().rev().find(|&cpu| PinnedThread::to_cpu(cpu).is_ok())
}

struct MovedTask {
    start_ticks: u64,
    original_mask: CpuSet,
    reduced_mask: CpuSet,
}

/// The keeper's side: moves all tasks off the CPU, waits for the end of its standard input, and restores
/// their affinity. Returns the exit code.
pub fn run_keeper(cpu: u32) -> u8 {
    // A signal must not end it before all tasks are restored.
    let Ok(stop) = StopSignal::watch() else { return 1 };
    let (moved, unmovable) = move_tasks(cpu as usize);
    let mut out = io::stdout().lock();
    let message = writeln!(
        out,
        "pin: CPU {cpu}: {} tasks moved to other CPUs, {unmovable} are bound to it",
        moved.len()
    )
    .and_then(|()| writeln!(out, "{READY}"))
    .and_then(|()| out.flush());
    let mut byte = [0];
    while message.is_ok() && stop.signal().is_none() {
        match io::stdin().lock().read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    let not_restored = restore_affinities(&moved);
    if not_restored > 0 {
        let _ =
            writeln!(out, "pin: {not_restored} tasks keep the affinity that another process set meanwhile");
    }
    0
}

/// All tasks of all processes with their start times.
fn list_tasks() -> Vec<(i32, u64)> {
    let root = Root::live();
    let numbers = |path: &str| -> Vec<i32> {
        root.list_dir(path).unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect()
    };
    let (reader, mut tasks) = (Reader::new(&root), Vec::new());
    for pid in numbers(paths::PROC) {
        let task_dir = paths::process_file(pid.unsigned_abs(), "task");
        for tid in numbers(&task_dir) {
            // A task that has ended in the meantime is ignored.
            let stat = reader.parse(&format!("{task_dir}/{tid}/stat"), process_status::parse_stat);
            tasks.extend(stat.ok().map(|stat| (tid, stat.start_ticks)));
        }
    }
    tasks
}

/// Moves all tasks; returns the moved tasks, and the number of tasks that cannot or must not be moved.
fn move_tasks(cpu: usize) -> (BTreeMap<i32, MovedTask>, u64) {
    let (mut moved, mut unmovable) = (BTreeMap::new(), BTreeSet::new());
    // A task that is forked during the scan has the mask of before or of after; a second scan finds the
    // former.
    for _ in 0..2 {
        for (tid, start_ticks) in list_tasks() {
            let Some(pid) = Pid::from_raw(tid) else { continue };
            let Ok(before) = sched_getaffinity(Some(pid)) else { continue };
            if !before.is_set(cpu) {
                continue;
            }
            let mut reduced_mask = before;
            reduced_mask.unset(cpu);
            let is_moved = reduced_mask.count() > 0 && sched_setaffinity(Some(pid), &reduced_mask).is_ok();
            if is_moved {
                moved.insert(tid, MovedTask { start_ticks, original_mask: before, reduced_mask });
            } else {
                unmovable.insert(tid);
            }
        }
    }
    (moved, unmovable.len() as u64)
}

/// Restores tasks that still have the mask that they were given, and children that inherited it. Returns the
/// number of tasks with another mask.
fn restore_affinities(moved: &BTreeMap<i32, MovedTask>) -> u64 {
    let mut not_restored = 0;
    for (tid, start_ticks) in list_tasks() {
        let Some(pid) = Pid::from_raw(tid) else { continue };
        let Ok(now) = sched_getaffinity(Some(pid)) else { continue };
        let moved_task = moved.get(&tid).filter(|of| of.start_ticks == start_ticks);
        let inherited = || {
            let mut inherited_masks =
                moved.values().filter(|of| of.reduced_mask == now).map(|of| of.original_mask);
            let first = inherited_masks.next()?;
            inherited_masks.all(|before| before == first).then_some(first)
        };
        let before = match moved_task {
            Some(of) if of.reduced_mask == now => Some(of.original_mask),
            Some(of) => {
                not_restored += u64::from(of.original_mask != now);
                None
            }
            None => inherited(),
        };
        if let Some(before) = before {
            let _ = sched_setaffinity(Some(pid), &before);
        }
    }
    not_restored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_its_start() {
        let own = i32::try_from(std::process::id()).unwrap();
        let tasks = list_tasks();
        assert!(tasks.iter().any(|(tid, start)| *tid == own && *start > 0));
    }
}
