//! System calls in the name of a running process: who may be used for it, and by which thread.

use std::ops::Range;
use std::time::Duration;

use pagelab_formats::{maps, process_stat, status};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_sys::attach::{self, Injected, Injector, Refusal, Site};

/// How long a thread may take to stop.
const PATIENCE: Duration = Duration::from_millis(500);

/// A process, and the time it began: its number alone may be another's by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in ticks since boot.
    pub start_ticks: u64,
}

impl Identity {
    /// The process that has this number now and has not ended.
    pub fn of(root: &Root, pid: u32) -> Option<Identity> {
        let stat = Reader::new(root).parse(&paths::process_stat(pid), process_stat::parse).ok()?;
        (!stat.has_ended()).then_some(Identity { pid, start_ticks: stat.start_ticks })
    }

    /// Whether it still runs.
    pub fn is_there(&self, root: &Root) -> bool {
        Identity::of(root, self.pid) == Some(*self)
    }
}

/// Makes calls in the name of a thread of the process; see [`attach::with`] for what holds. The first thread
/// is used, or another one where it has ended. A process with a filter of system calls is refused: the
/// filter may kill it.
pub fn with<T: Send + 'static>(
    root: &Root,
    process: Identity,
    act: impl FnOnce(&mut Injector) -> Result<T, Refusal> + Send + 'static,
) -> Result<(T, Injected), Refusal> {
    attach::with(&site(root, process)?, act)
}

/// The same while all of its threads stand; see [`attach::with_all`].
pub fn with_all<T: Send + 'static>(
    root: &Root,
    process: Identity,
    threads: impl Fn() -> Vec<u32> + Send + 'static,
    act: impl FnOnce(&mut Injector) -> Result<T, Refusal> + Send + 'static,
) -> Result<(T, Injected), Refusal> {
    attach::with_all(&site(root, process)?, threads, act)
}

fn site(root: &Root, process: Identity) -> Result<Site, Refusal> {
    if !process.is_there(root) {
        return Err(Refusal::Gone);
    }
    let reader = Reader::new(root);
    let status = reader.parse(&paths::process(process.pid, "status"), status::parse);
    match status.map(|status| status.seccomp) {
        Ok(Some(0) | None) => {}
        Ok(Some(_)) => return Err(Refusal::CallsRefused),
        Err(_) => return Err(Refusal::Gone),
    }
    let maps = reader.parse(&paths::process(process.pid, "maps"), maps::parse);
    let maps = maps.map_err(|_| Refusal::NotPermitted)?;
    let of = |map: &maps::Map| -> Range<u64> { map.start..map.end };
    let vdso = maps.iter().filter(|map| map.is_executable && map.name == "[vdso]").map(of);
    // The kernel's old page of calls is no memory of the process.
    let rest = maps.iter().filter(|map| map.is_executable && !map.name.starts_with('[')).map(of);
    Ok(Site { tid: thread_of(root, process.pid), code: vdso.chain(rest).collect(), patience: PATIENCE })
}

/// The first thread that has not ended.
fn thread_of(root: &Root, pid: u32) -> u32 {
    let lives = |tid: u32| {
        let path = paths::process(pid, &format!("task/{tid}/stat"));
        let stat = Reader::new(root).parse(&path, process_stat::parse);
        stat.is_ok_and(|stat| !matches!(stat.state, b'Z' | b'X' | b'x'))
    };
    let threads = root.list(&paths::process(pid, "task")).unwrap_or_default();
    let mut threads = std::iter::once(pid).chain(threads.iter().filter_map(|name| name.parse().ok()));
    threads.find(|&tid| lives(tid)).unwrap_or(pid)
}
