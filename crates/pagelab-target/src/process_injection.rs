//! System calls injected into a running process: permission, and choice of the thread.

use std::ops::Range;
use std::time::Duration;

use pagelab_formats::{maps, process_status};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_sys::injection::{self, InjectionCost, InjectionError, InjectionTarget, Injector};

/// Longest time until a thread stops.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// A process, by its number and start time: the number may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIdentity {
    /// Its number.
    pub pid: u32,
    /// When it started, in ticks since boot.
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// The process that has this number now, unless it has ended.
    pub fn from_pid(root: &Root, pid: u32) -> Option<ProcessIdentity> {
        let stat =
            Reader::new(root).parse(&paths::process_stat_file(pid), process_status::parse_stat).ok()?;
        (!stat.has_ended()).then_some(ProcessIdentity { pid, start_ticks: stat.start_ticks })
    }

    /// Whether it still runs.
    pub fn is_running(&self, root: &Root) -> bool {
        ProcessIdentity::from_pid(root, self.pid) == Some(*self)
    }
}

/// Injects calls into a thread of the process, under the conditions of [`injection::inject`]. The first
/// thread is used, or another one if it has ended. A process with a seccomp filter is refused: the filter may
/// kill it.
pub fn inject_calls<T: Send + 'static>(
    root: &Root,
    process: ProcessIdentity,
    act: impl FnOnce(&mut Injector) -> Result<T, InjectionError> + Send + 'static,
) -> Result<(T, InjectionCost), InjectionError> {
    injection::inject(&find_target(root, process)?, act)
}

/// The same while all of its threads are stopped; see [`injection::inject_with_threads_stopped`].
pub fn inject_with_threads_stopped<T: Send + 'static>(
    root: &Root,
    process: ProcessIdentity,
    act: impl FnOnce(&mut Injector) -> Result<T, InjectionError> + Send + 'static,
) -> Result<(T, InjectionCost), InjectionError> {
    let threads = move || list_live_threads(&Root::live(), process.pid);
    injection::inject_with_threads_stopped(&find_target(root, process)?, threads, act)
}

fn find_target(root: &Root, process: ProcessIdentity) -> Result<InjectionTarget, InjectionError> {
    if !process.is_running(root) {
        return Err(InjectionError::ThreadExited);
    }
    let reader = Reader::new(root);
    let status = reader.parse(&paths::process_file(process.pid, "status"), process_status::parse);
    match status.map(|status| status.seccomp) {
        Ok(Some(0) | None) => {}
        Ok(Some(_)) => return Err(InjectionError::CallsIntercepted),
        Err(_) => return Err(InjectionError::ThreadExited),
    }
    let maps = reader.parse(&paths::process_file(process.pid, "maps"), maps::parse);
    let maps = maps.map_err(|_| InjectionError::NotPermitted)?;
    let address_range = |map: &maps::MapsEntry| -> Range<u64> { map.start..map.end };
    let vdso = maps.iter().filter(|map| map.is_executable && map.name == "[vdso]").map(address_range);
    // The kernel's vsyscall page is no memory of the process.
    let other_code =
        maps.iter().filter(|map| map.is_executable && !map.name.starts_with('[')).map(address_range);
    Ok(InjectionTarget {
        tid: find_live_thread(root, process.pid),
        code_ranges: vdso.chain(other_code).collect(),
        stop_timeout: STOP_TIMEOUT,
    })
}

fn find_live_thread(root: &Root, pid: u32) -> u32 {
    let mut threads = std::iter::once(pid).chain(list_threads(root, pid));
    threads.find(|&tid| live_thread_state(root, pid, tid).is_some()).unwrap_or(pid)
}

/// The threads of a process as the kernel lists them.
pub(crate) fn list_threads(root: &Root, pid: u32) -> Vec<u32> {
    let names = root.list_dir(&paths::process_file(pid, "task")).unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// The state of a thread in `/proc/PID/task/TID/stat`; `None` if it has ended.
pub(crate) fn live_thread_state(root: &Root, pid: u32, tid: u32) -> Option<u8> {
    let path = paths::process_file(pid, &format!("task/{tid}/stat"));
    let state = Reader::new(root).parse(&path, process_status::parse_stat).ok()?.state;
    (!matches!(state, b'Z' | b'X' | b'x')).then_some(state)
}

/// The threads that have not ended.
fn list_live_threads(root: &Root, pid: u32) -> Vec<u32> {
    let is_alive = |tid: &u32| live_thread_state(root, pid, *tid).is_some();
    list_threads(root, pid).into_iter().filter(is_alive).collect()
}
