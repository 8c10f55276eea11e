//! A control group of our own for one trial: its processes are counted, limited and ended together.
//!
//! Version 1 has a folder for each controller, version 2 one for all. On a machine with both (hybrid) the
//! trial joins a folder of version 2 as well: it has no controllers there, and still `cgroup.kill` and
//! pressure. All folders are made under the guard, and go with it; limits need no guard, for they go with
//! their folder (docs/guard.md).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pagelab_formats::{ParseError, pressure, scalar, vmstat};
use pagelab_host::guard::{ErrorKind, Guard, GuardError};
use pagelab_host::root::Root;
use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsentWhy, Bytes, Counters, Reading};
use pagelab_sys::spawn;
use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to be gone after it was killed, between two looks.
const GONE_STEP: Duration = Duration::from_millis(5);

/// The controllers that a trial wants. In version 2 every folder accounts CPU time without one.
const MEMORY: &str = "memory";
const CPUACCT: &str = "cpuacct";
const CPUSET: &str = "cpuset";

/// The folders of one control group.
#[derive(Clone, Debug)]
pub struct Group {
    folders: Vec<Folder>,
    root: Root,
}

/// A folder in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    path: String,
    is_v2: bool,
    /// Those of the wanted controllers that it has.
    controllers: Vec<&'static str>,
}

/// A group that was made, and what it cannot do.
#[derive(Debug)]
pub struct Made {
    /// The group.
    pub group: Group,
    /// What it lacks, each with the reason and a way out.
    pub lacks: Vec<Absence>,
}

/// CPU time of all processes that ever were in the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// In user mode, ns. User and system are told apart by ticks of the kernel's timer; their sum is exact.
    pub user_ns: u64,
    /// In the kernel, ns.
    pub system_ns: u64,
}

/// What the group's memory limit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitEvents {
    /// Processes of the group that the kernel killed for want of memory, its own limit's or the machine's;
    /// `None` before Linux 4.13.
    pub kills: Option<u64>,
    /// How often the limit was reached.
    pub hits: u64,
}

/// What became of the processes of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Processes that were in it.
    pub found: u64,
    /// Processes that still are: the kernel holds them in something that cannot be interrupted.
    pub left: u64,
}

impl Group {
    /// Makes a group whose folders are called `pagelab-LABEL-…`. What cannot be had of it is told beside it;
    /// it is absent where no folder can be made at all.
    pub fn make(guard: &Guard, label: &str) -> Reading<Made> {
        Group::made(Making { guard, label, above: None, folders: Vec::new(), lacks: Vec::new() })
    }

    /// The same inside another group's memory limit.
    pub fn make_inside(guard: &Guard, label: &str, above: &Group) -> Reading<Made> {
        let above = Some(above.with(MEMORY)?);
        Group::made(Making { guard, label, above, folders: Vec::new(), lacks: Vec::new() })
    }

    /// A group that has a memory limit and no processes, only groups inside of it.
    pub fn make_shared(guard: &Guard, label: &str) -> Reading<Group> {
        let mut making = Making { guard, label, above: None, folders: Vec::new(), lacks: Vec::new() };
        making.controller(MEMORY);
        let Making { folders, lacks, .. } = making;
        let Some(folder) = folders.first() else {
            let none = || Absence::new(MEMORY, AbsentWhy::NotThere, "no hierarchy is mounted");
            return Err(lacks.into_iter().next().unwrap_or_else(none));
        };
        // Version 2 gives groups below only what is switched on for them, of what it has itself; version 1
        // gives everything. A pin by cpuset is left out where the folder above does not give it.
        if folder.is_v2 {
            let has_cpuset = has_controller(&folder.path, CPUSET);
            for controller in [MEMORY, CPUSET].into_iter().filter(|&of| of == MEMORY || has_cpuset) {
                let path = folder.file("cgroup.subtree_control");
                let given = put(&path, &format!("+{controller}"));
                given.map_err(|error| Absence::new(path, AbsentWhy::Failed, error.to_string()))?;
            }
        }
        Ok(Group { folders, root: Root::live() })
    }

    /// A group inside another one's memory limit, and of the memory controller alone.
    pub fn make_beside(guard: &Guard, label: &str, above: &Group) -> Reading<Group> {
        let above = Some(above.with(MEMORY)?);
        let mut making = Making { guard, label, above, folders: Vec::new(), lacks: Vec::new() };
        making.controller(MEMORY);
        match (making.folders.is_empty(), making.lacks.pop()) {
            (true, Some(absence)) => Err(absence),
            _ => Ok(Group { folders: making.folders, root: Root::live() }),
        }
    }

    fn made(mut making: Making<'_>) -> Reading<Made> {
        making.controller(MEMORY);
        // The CPU time of version 2 is in `cpu.stat` of every folder.
        if !making.folders.iter().any(|folder| folder.is_v2) {
            making.controller(CPUACCT);
        }
        making.controller(CPUSET);
        if !making.folders.iter().any(|folder| folder.is_v2) {
            making.unified();
        }
        let Making { folders, lacks, .. } = making;
        if folders.is_empty() {
            let none = || Absence::new("control groups", AbsentWhy::NotThere, "no hierarchy is mounted");
            return Err(lacks.into_iter().next().unwrap_or_else(none));
        }
        Ok(Made { group: Group { folders, root: Root::live() }, lacks })
    }

    /// The child joins all folders before it runs its program.
    pub fn join(&self, command: &mut Command) -> io::Result<()> {
        for procs in self.doors()? {
            spawn::join_cgroup(command, procs);
        }
        Ok(())
    }

    /// `cgroup.procs` of each folder, open for writing: whoever writes `0` to each has joined.
    pub fn doors(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |folder: &Folder| OpenOptions::new().write(true).open(folder.file("cgroup.procs"));
        self.folders.iter().map(|folder| open(folder).map(OwnedFd::from)).collect()
    }

    /// Its folders, the one that accounts memory first.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        self.folders.iter().map(|folder| folder.path.as_str())
    }

    /// Limits the memory of all its processes together. Gives the limit that the kernel has then, which is
    /// rounded down to whole pages.
    pub fn limit_memory(&self, limit: Bytes) -> Reading<Bytes> {
        let folder = self.with(MEMORY)?;
        let name = if folder.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        self.write(folder, name, &limit.0.to_string())?;
        self.number(folder, name).map(Bytes)
    }

    /// Limits its swap. Version 1 knows the sum of memory and swap alone, so the memory's limit comes first.
    pub fn limit_swap(&self, limit: Bytes) -> Reading<Bytes> {
        let folder = self.with(MEMORY)?;
        if folder.is_v2 {
            self.write(folder, "memory.swap.max", &limit.0.to_string())?;
            return self.number(folder, "memory.swap.max").map(Bytes);
        }
        let name = "memory.memsw.limit_in_bytes";
        let memory = self.number(folder, "memory.limit_in_bytes")?;
        self.write(folder, name, &memory.saturating_add(limit.0).to_string())?;
        self.number(folder, name).map(|both| Bytes(both.saturating_sub(memory)))
    }

    /// Its processes run on these CPUs only. Gives the list that the kernel has then.
    pub fn limit_cpus(&self, list: &str) -> Reading<String> {
        let folder = self.with(CPUSET)?;
        self.write(folder, "cpuset.cpus", list)?;
        let path = folder.file("cpuset.cpus");
        Ok(String::from_utf8_lossy(self.root.read(&path)?.trim_ascii()).into_owned())
    }

    /// What its processes are charged for now: memory, page cache, page tables.
    pub fn usage(&self) -> Reading<Bytes> {
        let folder = self.with(MEMORY)?;
        self.number(folder, if folder.is_v2 { "memory.current" } else { "memory.usage_in_bytes" }).map(Bytes)
    }

    /// What they have in swap now: version 2, which has it in a file of its own.
    pub fn swap_usage(&self) -> Reading<Bytes> {
        let folder = self.with(MEMORY)?;
        match folder.is_v2 {
            true => self.number(folder, "memory.swap.current").map(Bytes),
            false => Err(Absence::new(&folder.path, AbsentWhy::NotThere, "version 1 has it in memory.stat")),
        }
    }

    /// The most that they were charged for at one moment. Version 2 knows it since Linux 5.19.
    pub fn peak(&self) -> Reading<Bytes> {
        let folder = self.with(MEMORY)?;
        let name = if folder.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        self.number(folder, name).map(Bytes).map_err(|absence| match folder.is_v2 {
            true if absence.why == AbsentWhy::NotThere => absence.or("Linux 5.19 or later"),
            _ => absence,
        })
    }

    /// The file that [`Group::peak`] reads.
    pub fn peak_source(&self) -> &'static str {
        match self.with(MEMORY) {
            Ok(folder) if !folder.is_v2 => "memory.max_usage_in_bytes of its cgroup",
            _ => "memory.peak of its cgroup",
        }
    }

    /// CPU time of all processes that ever were in it.
    pub fn cpu(&self) -> Reading<Cpu> {
        if let Ok(folder) = self.with(CPUACCT) {
            let number = |name| self.number(folder, name);
            let (user, system) = (number("cpuacct.usage_user")?, number("cpuacct.usage_sys")?);
            return Ok(Cpu::split(number("cpuacct.usage")?, user, system));
        }
        let folder = self.v2()?;
        let stat = self.counters(folder, "cpu.stat")?;
        let us = |name: &str| {
            let missing =
                || Absence::new(folder.file("cpu.stat"), AbsentWhy::NotThere, format!("no line {name}"));
            stat.get(name).ok_or_else(missing)
        };
        Ok(Cpu {
            user_ns: us("user_usec")?.saturating_mul(1000),
            system_ns: us("system_usec")?.saturating_mul(1000),
        })
    }

    /// The files that [`Group::cpu`] reads.
    pub fn cpu_source(&self) -> &'static str {
        match self.with(CPUACCT) {
            Ok(_) => "cpuacct.usage, split as cpuacct.usage_user to _sys, of its cgroup",
            Err(_) => "cpu.stat of its cgroup",
        }
    }

    /// What its memory limit did.
    pub fn limit_events(&self) -> Reading<LimitEvents> {
        let folder = self.with(MEMORY)?;
        if folder.is_v2 {
            let events = self.counters(folder, "memory.events")?;
            return Ok(LimitEvents { kills: events.get("oom_kill"), hits: events.get("max").unwrap_or(0) });
        }
        let kills = self.counters(folder, "memory.oom_control")?.get("oom_kill");
        Ok(LimitEvents { kills, hits: self.number(folder, "memory.failcnt")? })
    }

    /// `memory.stat`, and whether it is that of version 2. What version 1 calls `total_…` includes groups
    /// below, as everything of version 2 does.
    pub fn memory_stat(&self) -> Reading<(Counters, bool)> {
        let folder = self.with(MEMORY)?;
        Ok((self.counters(folder, "memory.stat")?, folder.is_v2))
    }

    /// Its own pressure on `memory`, `io` or `cpu`: version 2 only (4.20).
    pub fn pressure(&self, resource: &str) -> Reading<Pressure> {
        let folder = self.v2()?;
        self.parse(folder, &format!("{resource}.pressure"), pressure::parse)
    }

    /// The processes in it. Those that this process cannot name, of another PID namespace, are left out.
    pub fn processes(&self) -> Reading<Vec<u32>> {
        let folder = self.v2().or_else(|_| self.any())?;
        let text = self.root.read(&folder.file("cgroup.procs"))?;
        let numbers =
            text.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok());
        Ok(numbers.filter(|&pid| pid != 0).collect())
    }

    /// Kills all processes in it, and waits until they are gone, at most for `patience`. Whoever forks
    /// meanwhile is killed too: by `cgroup.kill` (5.14) at once, without it by looking again.
    pub fn kill_all(&self, patience: Duration) -> Reading<Ended> {
        let began = Instant::now();
        let mut left = self.processes()?;
        let found = left.len() as u64;
        let at_once = self.v2().is_ok_and(|folder| put(&folder.file("cgroup.kill"), "1").is_ok());
        while !left.is_empty() {
            // Not a name of another process by now: a zombie keeps its number until it is waited for, and
            // who else ends between the look and the call is a matter of microseconds.
            if !at_once {
                left.iter().filter_map(|&pid| Pid::from_raw(i32::try_from(pid).ok()?)).for_each(|pid| {
                    let _ = kill_process(pid, Signal::KILL);
                });
            }
            if began.elapsed() >= patience {
                break;
            }
            thread::sleep(GONE_STEP);
            left = self.processes()?;
        }
        Ok(Ended { found, left: left.len() as u64 })
    }

    fn with(&self, controller: &'static str) -> Reading<&Folder> {
        let found = self.folders.iter().find(|folder| folder.controllers.contains(&controller));
        found.ok_or_else(|| {
            let detail = format!("the trial's control group is without the {controller} controller");
            Absence::new("control groups", AbsentWhy::NotThere, detail)
        })
    }

    fn v2(&self) -> Reading<&Folder> {
        self.folders.iter().find(|folder| folder.is_v2).ok_or_else(|| {
            let detail = "the trial has no control group of version 2";
            Absence::new("control groups", AbsentWhy::NotThere, detail)
                .or("mount -t cgroup2 none /mnt, as root")
        })
    }

    fn any(&self) -> Reading<&Folder> {
        let none = || Absence::new("control groups", AbsentWhy::NotThere, "the trial has none");
        self.folders.first().ok_or_else(none)
    }

    fn parse<T>(
        &self,
        folder: &Folder,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Reading<T> {
        let path = folder.file(name);
        parse(&self.root.read(&path)?)
            .map_err(|error| Absence::new(&path, AbsentWhy::Malformed, error.in_file(&path)))
    }

    fn number(&self, folder: &Folder, name: &str) -> Reading<u64> {
        self.parse(folder, name, scalar::parse_u64)
    }

    fn counters(&self, folder: &Folder, name: &str) -> Reading<Counters> {
        self.parse(folder, name, vmstat::parse)
    }

    fn write(&self, folder: &Folder, name: &str, value: &str) -> Reading<()> {
        let path = folder.file(name);
        put(&path, value).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Absence::new(path, AbsentWhy::NotThere, ""),
            io::ErrorKind::PermissionDenied => {
                Absence::new(path, AbsentWhy::NotPermitted, "").or("run as root")
            }
            _ => Absence::new(path, AbsentWhy::Failed, format!("{value} cannot be written: {error}")),
        })
    }
}

impl Cpu {
    /// User and system together, ns.
    pub fn total_ns(self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }

    /// What was used since `before`.
    pub fn since(self, before: Cpu) -> Cpu {
        let user_ns = self.user_ns.saturating_sub(before.user_ns);
        Cpu { user_ns, system_ns: self.total_ns().saturating_sub(before.total_ns()).saturating_sub(user_ns) }
    }

    /// The exact total, split as the timer's ticks fell: as the kernel does for rusage
    /// (kernel/sched/cputime.c,
    /// `cputime_adjust`).
    fn split(total_ns: u64, user_ticks: u64, system_ticks: u64) -> Cpu {
        let ticks = u128::from(user_ticks) + u128::from(system_ticks);
        let system_ns = match ticks {
            0 => 0,
            ticks => (u128::from(total_ns) * u128::from(system_ticks) / ticks) as u64,
        };
        Cpu { user_ns: total_ns - system_ns, system_ns }
    }
}

impl Folder {
    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

/// A group while it is made.
struct Making<'a> {
    guard: &'a Guard,
    label: &'a str,
    /// The folder whose memory limit it is to be inside of.
    above: Option<&'a Folder>,
    folders: Vec<Folder>,
    lacks: Vec<Absence>,
}

impl Making<'_> {
    /// A folder with this controller, or the reason why there is none.
    fn controller(&mut self, controller: &'static str) {
        // A process is in one folder of version 2 only, so the first one stands for all controllers.
        if let Some(folder) = self.folders.iter_mut().find(|folder| folder.is_v2)
            && has_controller(&folder.path, controller)
        {
            folder.controllers.push(controller);
            return;
        }
        let parent = match self.above.filter(|_| controller == MEMORY) {
            Some(above) => Ok(above.path.clone()),
            None => self.guard.cgroup_parent(controller),
        };
        let parent = match parent {
            Ok(parent) => parent,
            Err(error) => return self.lacks.push(lacking(controller, &error)),
        };
        let is_v2 = is_v2(&parent);
        if is_v2 && self.folders.iter().any(|folder| folder.is_v2) {
            let detail = format!("{parent} gives it, and the group of the memory controller is elsewhere");
            return self.lacks.push(Absence::new(controller, AbsentWhy::NotThere, detail));
        }
        let same =
            |folder: &&mut Folder| folder.path.rsplit_once('/').is_some_and(|(above, _)| above == parent);
        if let Some(folder) = self.folders.iter_mut().find(same) {
            folder.controllers.push(controller);
        } else {
            match self.guard.create_cgroup(&parent, self.label) {
                Ok(cgroup) => {
                    self.folders.push(Folder { path: cgroup.path, is_v2, controllers: vec![controller] })
                }
                Err(error) => return self.lacks.push(lacking(controller, &error)),
            }
        }
        if controller == CPUSET && !is_v2 {
            self.open_cpuset(&parent);
        }
    }

    /// A folder of version 2 beside those of version 1.
    fn unified(&mut self) {
        let Some(parent) = self.guard.own_unified_cgroup() else { return };
        match self.guard.create_cgroup(&parent, self.label) {
            Ok(cgroup) => {
                self.folders.push(Folder { path: cgroup.path, is_v2: true, controllers: Vec::new() })
            }
            Err(error) => self.lacks.push(lacking("cgroup2", &error)),
        }
    }

    /// A new cpuset of version 1 has neither CPUs nor nodes, and nobody may join it so.
    fn open_cpuset(&mut self, parent: &str) {
        let Some(at) = self.folders.iter().position(|folder| folder.controllers.contains(&CPUSET)) else {
            return;
        };
        let path = self.folders[at].path.clone();
        let inherit = |name: &str| {
            let above = fs::read_to_string(format!("{parent}/{name}"))?;
            put(&format!("{path}/{name}"), above.trim())
        };
        if let Err(error) = inherit("cpuset.mems").and_then(|()| inherit("cpuset.cpus")) {
            // It goes with the guard; until then it is not joined.
            self.folders.remove(at);
            self.lacks.push(Absence::new(
                path,
                AbsentWhy::Failed,
                format!("the cpuset cannot be filled: {error}"),
            ));
        }
    }
}

fn is_v2(path: &str) -> bool {
    fs::exists(format!("{path}/cgroup.controllers")).unwrap_or(false)
}

fn has_controller(path: &str, controller: &str) -> bool {
    let text = fs::read_to_string(format!("{path}/cgroup.controllers")).unwrap_or_default();
    text.split_ascii_whitespace().any(|word| word == controller)
}

fn lacking(controller: &str, error: &GuardError) -> Absence {
    let why = match error.kind() {
        ErrorKind::NotAvailable => AbsentWhy::NotThere,
        _ => AbsentWhy::Failed,
    };
    Absence::new(format!("cgroup controller {controller}"), why, error.to_string())
}

/// Writes a file that is there: a cgroup has files of its own, and none is ever made in it.
fn put(path: &str, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_split_as_the_ticks_fell_and_its_sum_is_kept() {
        let cases = [
            (1000, 3, 1, (750, 250)),
            (1000, 0, 0, (1000, 0)),
            (1000, 0, 7, (0, 1000)),
            (7, 1, 2, (3, 4)),
            (u64::MAX, u64::MAX, 0, (u64::MAX, 0)),
        ];
        for (total, user, system, expected) in cases {
            let cpu = Cpu::split(total, user, system);
            assert_eq!((cpu.user_ns, cpu.system_ns), expected, "{total} {user} {system}");
        }
        let (before, after) = (Cpu::split(100, 1, 1), Cpu::split(1000, 1, 9));
        assert_eq!(after.since(before).total_ns(), 900);
        assert_eq!(before.since(after), Cpu::default());
    }
}
