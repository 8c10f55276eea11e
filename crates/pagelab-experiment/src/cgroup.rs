//! Control group of one trial: counts, limits and kills its processes together.
//!
//! Version 1 has a directory for each controller, version 2 one for all. On a machine with both (hybrid) the
//! trial also joins a directory of version 2: it has no controllers there, but still `cgroup.kill` and
//! pressure. The guard creates and removes all directories; limits need no guard, since they disappear with
//! their directory (docs/guard.md).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pagelab_formats::{ParseError, pressure, setting, vmstat};
use pagelab_host::guard::{Guard, GuardError, GuardErrorKind};
use pagelab_host::root::Root;
use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsenceReason, Bytes, Counters, Reading};
use pagelab_sys::spawn;
use rustix::process::{Pid, Signal, kill_process};

/// Interval between two checks whether a killed process has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Controllers that a trial needs. In version 2 every directory accounts CPU time without a controller.
const MEMORY: &str = "memory";
const CPUACCT: &str = "cpuacct";

/// Directories of one control group.
#[derive(Clone, Debug)]
pub struct TrialCgroup {
    dirs: Vec<CgroupDir>,
    root: Root,
}

/// Directory in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CgroupDir {
    path: String,
    is_v2: bool,
    /// Those of the needed controllers that it has.
    controllers: Vec<&'static str>,
}

/// CPU time of all processes that were ever in the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupCpuTime {
    /// In user mode, ns. User and system time are split by ticks of the kernel's timer; their sum is exact.
    pub user_ns: u64,
    /// In the kernel, ns.
    pub system_ns: u64,
}

/// Events of the group's memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitEvents {
    /// Processes of the group that the kernel killed by the OOM killer, its own limit's or the machine's;
    /// `None` before Linux 4.13.
    pub kills: Option<u64>,
    /// Number of times that the limit was reached.
    pub hits: u64,
}

/// Result of killing a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillResult {
    /// Processes that were in it.
    pub killed: u64,
    /// Processes that remain: the kernel holds them in an uninterruptible sleep.
    pub remaining: u64,
}

impl TrialCgroup {
    /// Creates a group whose directories are called `pagelab-AREA_LABEL-…`, with the controllers that there
    /// are; absent if no directory can be created.
    pub fn create(guard: &Guard, label: &str) -> Reading<TrialCgroup> {
        CgroupBuilder::new(guard, label).build(&[MEMORY, CPUACCT])
    }

    /// The same inside another group's memory limit.
    pub fn create_inside(guard: &Guard, label: &str, parent_cgroup: &TrialCgroup) -> Reading<TrialCgroup> {
        CgroupBuilder::inside(guard, label, parent_cgroup)?.build(&[MEMORY, CPUACCT])
    }

    /// A group that has a memory limit and no processes, only groups inside of it.
    pub fn create_shared(guard: &Guard, label: &str) -> Reading<TrialCgroup> {
        let group = CgroupBuilder::new(guard, label).build(&[MEMORY])?;
        // Version 2 gives child groups only the enabled controllers; version 1 gives all.
        if let Some(folder) = group.dirs.iter().find(|folder| folder.is_v2) {
            let path = folder.file_path("cgroup.subtree_control");
            let given = write_existing_file(&path, &format!("+{MEMORY}"));
            given.map_err(|error| Absence::new(path, AbsenceReason::Failed, error.to_string()))?;
        }
        Ok(group)
    }

    /// A group inside another one's memory limit, and of the memory controller alone.
    pub fn create_beside(guard: &Guard, label: &str, parent_cgroup: &TrialCgroup) -> Reading<TrialCgroup> {
        CgroupBuilder::inside(guard, label, parent_cgroup)?.build(&[MEMORY])
    }

    /// The child joins all directories before it runs its program.
    pub fn join_before_exec(&self, command: &mut Command) -> io::Result<()> {
        for procs in self.open_procs_files()? {
            spawn::join_cgroup(command, procs);
        }
        Ok(())
    }

    /// Opens `cgroup.procs` of each directory for writing: a process that writes `0` to each has joined.
    pub fn open_procs_files(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |folder: &CgroupDir| OpenOptions::new().write(true).open(folder.file_path("cgroup.procs"));
        self.dirs.iter().map(|folder| open(folder).map(OwnedFd::from)).collect()
    }

    /// Its directories, the one that accounts memory first.
    pub fn dir_paths(&self) -> impl Iterator<Item = &str> {
        self.dirs.iter().map(|folder| folder.path.as_str())
    }

    /// Limits the memory of all its processes together. Returns the limit that the kernel then reports,
    /// rounded down to whole pages.
    pub fn limit_memory(&self, limit: Bytes) -> Reading<Bytes> {
        let folder = self.dir_with_controller(MEMORY)?;
        let name = if folder.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        self.write_file(folder, name, &limit.0.to_string())?;
        self.read_number(folder, name).map(Bytes)
    }

    /// Limits its swap. Version 1 limits only the sum of memory and swap, so the memory limit comes first.
    pub fn limit_swap(&self, limit: Bytes) -> Reading<Bytes> {
        let folder = self.dir_with_controller(MEMORY)?;
        if folder.is_v2 {
            self.write_file(folder, "memory.swap.max", &limit.0.to_string())?;
            return self.read_number(folder, "memory.swap.max").map(Bytes);
        }
        let name = "memory.memsw.limit_in_bytes";
        let memory = self.read_number(folder, "memory.limit_in_bytes")?;
        self.write_file(folder, name, &memory.saturating_add(limit.0).to_string())?;
        self.read_number(folder, name).map(|both| Bytes(both.saturating_sub(memory)))
    }

    /// Memory that its processes are charged for now: memory, page cache, page tables.
    pub fn read_memory_usage(&self) -> Reading<Bytes> {
        let folder = self.dir_with_controller(MEMORY)?;
        let name = if folder.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        self.read_number(folder, name).map(Bytes)
    }

    /// Swap usage now: version 2, which has a separate file for it.
    pub fn read_swap_usage(&self) -> Reading<Bytes> {
        let folder = self.dir_with_controller(MEMORY)?;
        if !folder.is_v2 {
            let detail = "cgroup v1 reports it in memory.stat";
            return Err(Absence::new(&folder.path, AbsenceReason::NotThere, detail));
        }
        self.read_number(folder, "memory.swap.current").map(Bytes)
    }

    /// Peak of the charged memory. Version 2 reports it since Linux 5.19.
    pub fn read_memory_peak(&self) -> Reading<Bytes> {
        let folder = self.dir_with_controller(MEMORY)?;
        let name = if folder.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        self.read_number(folder, name).map(Bytes).map_err(|absence| match folder.is_v2 {
            true if absence.why == AbsenceReason::NotThere => absence.with_hint("use Linux 5.19 or later"),
            _ => absence,
        })
    }

    /// The file that [`TrialCgroup::read_memory_peak`] reads.
    pub fn memory_peak_source(&self) -> &'static str {
        match self.dir_with_controller(MEMORY) {
            Ok(folder) if !folder.is_v2 => "memory.max_usage_in_bytes of its cgroup",
            _ => "memory.peak of its cgroup",
        }
    }

    /// CPU time of all processes that were ever in it.
    pub fn read_cpu_time(&self) -> Reading<CgroupCpuTime> {
        if let Ok(folder) = self.dir_with_controller(CPUACCT) {
            let read_cpuacct = |name| self.read_number(folder, name);
            let (user, system) = (read_cpuacct("cpuacct.usage_user")?, read_cpuacct("cpuacct.usage_sys")?);
            return Ok(CgroupCpuTime::split_by_ticks(read_cpuacct("cpuacct.usage")?, user, system));
        }
        let folder = self.v2_dir()?;
        let stat = self.read_counters(folder, "cpu.stat")?;
        let parse_usage = |name: &str| {
            let missing = || {
                Absence::new(folder.file_path("cpu.stat"), AbsenceReason::NotThere, format!("no {name} line"))
            };
            stat.get(name).ok_or_else(missing)
        };
        Ok(CgroupCpuTime {
            user_ns: parse_usage("user_usec")?.saturating_mul(1000),
            system_ns: parse_usage("system_usec")?.saturating_mul(1000),
        })
    }

    /// The files that [`TrialCgroup::read_cpu_time`] reads.
    pub fn cpu_time_source(&self) -> &'static str {
        match self.dir_with_controller(CPUACCT) {
            Ok(_) => "cpuacct.usage of its cgroup, split like cpuacct.usage_user and _sys",
            Err(_) => "cpu.stat of its cgroup",
        }
    }

    /// Reads the events of its memory limit.
    pub fn read_limit_events(&self) -> Reading<LimitEvents> {
        let folder = self.dir_with_controller(MEMORY)?;
        if folder.is_v2 {
            let events = self.read_counters(folder, "memory.events")?;
            return Ok(LimitEvents { kills: events.get("oom_kill"), hits: events.get("max").unwrap_or(0) });
        }
        let kills = self.read_counters(folder, "memory.oom_control")?.get("oom_kill");
        Ok(LimitEvents { kills, hits: self.read_number(folder, "memory.failcnt")? })
    }

    /// `memory.stat`, and whether it is that of version 2. The names `total_…` of version 1 include child
    /// groups, as all names of version 2 do.
    pub fn read_memory_stat(&self) -> Reading<(Counters, bool)> {
        let folder = self.dir_with_controller(MEMORY)?;
        Ok((self.read_counters(folder, "memory.stat")?, folder.is_v2))
    }

    /// Its own pressure on `memory`, `io` or `cpu`: version 2 only (4.20).
    pub fn read_pressure(&self, resource: &str) -> Reading<Pressure> {
        let folder = self.v2_dir()?;
        self.parse_file(folder, &format!("{resource}.pressure"), pressure::parse)
    }

    /// The processes in it, except those of another PID namespace.
    pub fn list_processes(&self) -> Reading<Vec<u32>> {
        let no_dir = || Absence::new("control groups", AbsenceReason::NotThere, "the trial has no cgroup");
        let folder = self.v2_dir().ok().or(self.dirs.first()).ok_or_else(no_dir)?;
        let text = self.root.read(&folder.file_path("cgroup.procs"))?;
        let numbers =
            text.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok());
        Ok(numbers.filter(|&pid| pid != 0).collect())
    }

    /// The file with the numbers of its processes, for another process.
    pub fn procs_path(&self) -> Option<String> {
        let folder = self.v2_dir().ok().or(self.dirs.first())?;
        Some(folder.file_path("cgroup.procs"))
    }

    /// Kills all processes in it and waits until they have exited, at most for `timeout`. Processes forked
    /// during the kill are killed too: by `cgroup.kill` (5.14) at once, without it by repeated scans.
    pub fn kill_all(&self, timeout: Duration) -> Reading<KillResult> {
        let started = Instant::now();
        let mut remaining = self.list_processes()?;
        let found = remaining.len() as u64;
        let has_cgroup_kill = self
            .v2_dir()
            .is_ok_and(|folder| write_existing_file(&folder.file_path("cgroup.kill"), "1").is_ok());
        while !remaining.is_empty() {
            // Not the PID of another process by now: a zombie keeps its number until it is waited for, and
            // the time between the scan and the call is a matter of microseconds.
            if !has_cgroup_kill {
                remaining.iter().filter_map(|&pid| Pid::from_raw(i32::try_from(pid).ok()?)).for_each(|pid| {
                    let _ = kill_process(pid, Signal::KILL);
                });
            }
            if started.elapsed() >= timeout {
                break;
            }
            thread::sleep(EXIT_POLL_INTERVAL);
            remaining = self.list_processes()?;
        }
        Ok(KillResult { killed: found, remaining: remaining.len() as u64 })
    }

    fn dir_with_controller(&self, controller: &'static str) -> Reading<&CgroupDir> {
        let found = self.dirs.iter().find(|folder| folder.controllers.contains(&controller));
        found.ok_or_else(|| {
            let detail = format!("the trial's cgroup has no {controller} controller");
            Absence::new("control groups", AbsenceReason::NotThere, detail)
        })
    }

    fn v2_dir(&self) -> Reading<&CgroupDir> {
        self.dirs.iter().find(|folder| folder.is_v2).ok_or_else(|| {
            let detail = "the trial has no cgroup v2";
            Absence::new("control groups", AbsenceReason::NotThere, detail)
                .with_hint("mount -t cgroup2 none /mnt, as root")
        })
    }

    fn parse_file<T>(
        &self,
        folder: &CgroupDir,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Reading<T> {
        let path = folder.file_path(name);
        parse(&self.root.read(&path)?)
            .map_err(|error| Absence::new(&path, AbsenceReason::Malformed, error.message_in_file(&path)))
    }

    fn read_number(&self, folder: &CgroupDir, name: &str) -> Reading<u64> {
        self.parse_file(folder, name, setting::parse_u64)
    }

    fn read_counters(&self, folder: &CgroupDir, name: &str) -> Reading<Counters> {
        self.parse_file(folder, name, vmstat::parse_counters)
    }

    fn write_file(&self, folder: &CgroupDir, name: &str, value: &str) -> Reading<()> {
        let path = folder.file_path(name);
        write_existing_file(&path, value).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Absence::new(path, AbsenceReason::NotThere, ""),
            io::ErrorKind::PermissionDenied => {
                Absence::new(path, AbsenceReason::NotPermitted, "").with_hint("run as root")
            }
            _ => Absence::new(path, AbsenceReason::Failed, format!("cannot write {value}: {error}")),
        })
    }
}

impl CgroupCpuTime {
    /// User and system together, ns.
    pub fn total_ns(self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }

    /// CPU time used since `before`.
    pub fn since(self, before: CgroupCpuTime) -> CgroupCpuTime {
        let user_ns = self.user_ns.saturating_sub(before.user_ns);
        CgroupCpuTime {
            user_ns,
            system_ns: self.total_ns().saturating_sub(before.total_ns()).saturating_sub(user_ns),
        }
    }

    /// The exact total, split as the timer's ticks fell: as the kernel does for rusage
    /// (kernel/sched/cputime.c, `cputime_adjust`).
    fn split_by_ticks(total_ns: u64, user_ticks: u64, system_ticks: u64) -> CgroupCpuTime {
        let ticks = u128::from(user_ticks) + u128::from(system_ticks);
        let system_ns = match ticks {
            0 => 0,
            ticks => (u128::from(total_ns) * u128::from(system_ticks) / ticks) as u64,
        };
        CgroupCpuTime { user_ns: total_ns - system_ns, system_ns }
    }
}

impl CgroupDir {
    fn file_path(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

struct CgroupBuilder<'a> {
    guard: &'a Guard,
    label: &'a str,
    /// Directory whose memory limit applies to it.
    parent_dir: Option<&'a CgroupDir>,
    dirs: Vec<CgroupDir>,
    /// Why the first of the missing controllers is missing.
    first_absence: Option<Absence>,
}

impl<'a> CgroupBuilder<'a> {
    fn new(guard: &'a Guard, label: &'a str) -> CgroupBuilder<'a> {
        CgroupBuilder { guard, label, parent_dir: None, dirs: Vec::new(), first_absence: None }
    }

    fn inside(guard: &'a Guard, label: &'a str, parent: &'a TrialCgroup) -> Reading<CgroupBuilder<'a>> {
        let parent_dir = Some(parent.dir_with_controller(MEMORY)?);
        Ok(CgroupBuilder { parent_dir, ..CgroupBuilder::new(guard, label) })
    }

    fn build(mut self, controllers: &[&'static str]) -> Reading<TrialCgroup> {
        self.add_controller_dir(MEMORY);
        // In version 2 the CPU time is in `cpu.stat` of every directory.
        if controllers.contains(&CPUACCT) && !self.dirs.iter().any(|folder| folder.is_v2) {
            self.add_controller_dir(CPUACCT);
            self.add_unified_dir();
        }
        if self.dirs.is_empty() {
            let no_controller =
                || Absence::new("control groups", AbsenceReason::NotThere, "no hierarchy is mounted");
            return Err(self.first_absence.unwrap_or_else(no_controller));
        }
        Ok(TrialCgroup { dirs: self.dirs, root: Root::live() })
    }

    /// A directory with this controller, or the reason for its absence.
    fn add_controller_dir(&mut self, controller: &'static str) {
        let parent = match self.parent_dir.filter(|_| controller == MEMORY) {
            Some(above) => Ok(above.path.clone()),
            None => self.guard.cgroup_parent(controller),
        };
        let parent = match parent {
            Ok(parent) => parent,
            Err(error) => return self.note_absence(controller, &error),
        };
        let same_hierarchy =
            |folder: &&mut CgroupDir| folder.path.rsplit_once('/').is_some_and(|(above, _)| above == parent);
        if let Some(folder) = self.dirs.iter_mut().find(same_hierarchy) {
            folder.controllers.push(controller);
        } else {
            self.create_dir(&parent, is_cgroup2(&parent), Some(controller));
        }
    }

    /// Adds a directory of version 2 beside those of version 1.
    fn add_unified_dir(&mut self) {
        if let Some(parent) = self.guard.own_unified_cgroup() {
            self.create_dir(&parent, true, None);
        }
    }

    fn create_dir(&mut self, parent: &str, is_v2: bool, controller: Option<&'static str>) {
        match self.guard.create_cgroup(parent, self.label) {
            Ok(path) => {
                let controllers = controller.into_iter().collect();
                self.dirs.push(CgroupDir { path, is_v2, controllers });
            }
            Err(error) => self.note_absence(controller.unwrap_or("cgroup2"), &error),
        }
    }

    fn note_absence(&mut self, controller: &str, error: &GuardError) {
        let why = match error.kind() {
            GuardErrorKind::NotAvailable => AbsenceReason::NotThere,
            _ => AbsenceReason::Failed,
        };
        let source = format!("cgroup controller {controller}");
        self.first_absence.get_or_insert_with(|| Absence::new(source, why, error.to_string()));
    }
}

fn is_cgroup2(path: &str) -> bool {
    fs::exists(format!("{path}/cgroup.controllers")).unwrap_or(false)
}

/// Writes an existing file: a cgroup has fixed files, and pagelab never creates one in it.
fn write_existing_file(path: &str, value: &str) -> io::Result<()> {
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
            let cpu = CgroupCpuTime::split_by_ticks(total, user, system);
            assert_eq!((cpu.user_ns, cpu.system_ns), expected, "{total} {user} {system}");
        }
        let (before, after) =
            (CgroupCpuTime::split_by_ticks(100, 1, 1), CgroupCpuTime::split_by_ticks(1000, 1, 9));
        assert_eq!(after.since(before).total_ns(), 900);
        assert_eq!(before.since(after), CgroupCpuTime::default());
    }
}
