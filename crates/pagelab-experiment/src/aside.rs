//! One CPU for a trial: an isolated one where the machine has one, to which nobody comes who was not sent;
//! otherwise everybody else is moved off the last one, as far as the kernel lets them, and put back.
//!
//! A process of its own does it, the keeper: it lives until the pipe from this process is closed, by whatever
//! end, and then puts everybody back. So the masks are put back after a kill -9 of this process too; only if
//! the keeper is killed as well do they stay. A journal would have to name processes that may be others by
//! the time it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, Stdio};

use pagelab_formats::{cpu_list, process_stat};
use pagelab_host::capture::Stop;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_sys::affinity::Pinned;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::gate::READY;
use crate::own;

/// The engine's side: the keeper, where one is needed, and the CPU that is free.
#[derive(Debug)]
pub(crate) struct Aside {
    keeper: Option<(Child, Option<ChildStdin>)>,
    cpu: u32,
    said: String,
}

impl Aside {
    /// Takes an isolated CPU, or frees the last one that this process may use: the first one takes most
    /// interrupts.
    pub fn begin() -> Result<Aside, String> {
        if let Some(cpu) = isolated() {
            let said = format!("pin: CPU {cpu} is isolated");
            return Ok(Aside { keeper: None, cpu, said });
        }
        let allowed = Pinned::allowed();
        let cpu = match allowed[..] {
            [.., _, last] => last,
            _ => return Err("pin: this process has one CPU, and everybody else needs one too".to_owned()),
        };
        let failed = |error: io::Error| format!("pin: the keeper cannot be started: {error}");
        let mut command = own::gate();
        command.args(["--keep-off", &cpu.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().map_err(failed)?;
        let word = keeper.stdin.take();
        let (mut said, mut byte) = (Vec::new(), [0]);
        let out = keeper.stdout.as_mut().ok_or("pin: the keeper has no output")?;
        while !said.ends_with(format!("{READY}\n").as_bytes()) {
            match out.read(&mut byte) {
                Ok(1) => said.push(byte[0]),
                _ => return Err("pin: the keeper ended before everybody was moved".to_owned()),
            }
        }
        let said = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned();
        Ok(Aside { keeper: Some((keeper, word)), cpu, said })
    }

    /// The CPU.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// What was done, in words.
    pub fn said(&self) -> Option<String> {
        (!self.said.is_empty()).then(|| self.said.clone())
    }

    /// Puts everybody back; says what could not be.
    pub fn finish(mut self) -> Option<String> {
        self.end()
    }

    fn end(&mut self) -> Option<String> {
        let (mut keeper, word) = self.keeper.take()?;
        drop(word);
        let mut rest = String::new();
        let read = keeper.stdout.as_mut().map(|out| out.read_to_string(&mut rest));
        let waited = keeper.wait();
        match (read, waited) {
            (Some(Ok(_)), Ok(status)) if status.success() => {
                let rest = rest.trim();
                (!rest.is_empty()).then(|| rest.to_owned())
            }
            _ => Some("pin: the keeper was ended, and did not put everybody back".to_owned()),
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.end();
    }
}

/// The last isolated CPU to which this thread can be sent. Nobody has it in his mask who was not given it
/// (kernel/sched/isolation.c), so asking for it is the way to know.
fn isolated() -> Option<u32> {
    let root = Root::live();
    let list = Reader::new(&root).parse(paths::CPU_ISOLATED, cpu_list::parse).ok()?;
    list.into_iter().rev().find(|&cpu| Pinned::on(cpu).is_ok())
}

/// A task and what it may use.
struct Moved {
    start_ticks: u64,
    before: CpuSet,
    meanwhile: CpuSet,
}

/// The keeper's side: moves everybody off the CPU, waits for the end of its standard input, and puts them
/// back. The exit code is returned.
pub fn keep_off(cpu: u32) -> u8 {
    // A signal must not end it before everybody is back.
    let Ok(stop) = Stop::watch() else { return 1 };
    let (moved, bound) = move_all(cpu as usize);
    let mut out = io::stdout().lock();
    let said = writeln!(out, "pin: CPU {cpu}: {} tasks moved off, {bound} are bound to it", moved.len())
        .and_then(|()| writeln!(out, "{READY}"))
        .and_then(|()| out.flush());
    let mut byte = [0];
    while said.is_ok() && stop.signal().is_none() {
        match io::stdin().lock().read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    let left = put_back(&moved);
    if left > 0 {
        let _ = writeln!(out, "pin: {left} tasks were given other CPUs by somebody meanwhile, and keep them");
    }
    0
}

/// All tasks of all processes with their start times.
fn tasks() -> Vec<(i32, u64)> {
    let root = Root::live();
    let numbers = |path: &str| -> Vec<i32> {
        root.list(path).unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect()
    };
    let (reader, mut tasks) = (Reader::new(&root), Vec::new());
    for pid in numbers(paths::PROC) {
        let folder = paths::process(pid.unsigned_abs(), "task");
        for tid in numbers(&folder) {
            // One that has ended meanwhile is no task any more.
            let stat = reader.parse(&format!("{folder}/{tid}/stat"), process_stat::parse);
            tasks.extend(stat.ok().map(|stat| (tid, stat.start_ticks)));
        }
    }
    tasks
}

/// Moves everybody; returns who was moved, and how many may run nowhere else or must not be moved.
fn move_all(cpu: usize) -> (BTreeMap<i32, Moved>, u64) {
    let (mut moved, mut bound) = (BTreeMap::new(), BTreeSet::new());
    // Who is forked while this goes on has the mask of before or of after; a second look finds the former.
    for _ in 0..2 {
        for (tid, start_ticks) in tasks() {
            let Some(pid) = Pid::from_raw(tid) else { continue };
            let Ok(before) = sched_getaffinity(Some(pid)) else { continue };
            if !before.is_set(cpu) {
                continue;
            }
            let mut meanwhile = before;
            meanwhile.unset(cpu);
            let is_moved = meanwhile.count() > 0 && sched_setaffinity(Some(pid), &meanwhile).is_ok();
            match is_moved {
                true => drop(moved.insert(tid, Moved { start_ticks, before, meanwhile })),
                false => drop(bound.insert(tid)),
            }
        }
    }
    (moved, bound.len() as u64)
}

/// Puts back who still has the mask that he was given, and who was forked meanwhile and inherited it. Returns
/// how many have another one.
fn put_back(moved: &BTreeMap<i32, Moved>) -> u64 {
    let mut left = 0;
    for (tid, start_ticks) in tasks() {
        let Some(pid) = Pid::from_raw(tid) else { continue };
        let Ok(now) = sched_getaffinity(Some(pid)) else { continue };
        let own = moved.get(&tid).filter(|of| of.start_ticks == start_ticks);
        let inherited = || {
            let mut same = moved.values().filter(|of| of.meanwhile == now).map(|of| of.before);
            let first = same.next()?;
            same.all(|before| before == first).then_some(first)
        };
        let before = match own {
            Some(of) if of.meanwhile == now => Some(of.before),
            Some(of) => {
                left += u64::from(of.before != now);
                None
            }
            None => inherited(),
        };
        if let Some(before) = before {
            let _ = sched_setaffinity(Some(pid), &before);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_its_start() {
        let own = i32::try_from(std::process::id()).unwrap();
        let tasks = tasks();
        assert!(tasks.iter().any(|(tid, start)| *tid == own && *start > 0));
    }
}
