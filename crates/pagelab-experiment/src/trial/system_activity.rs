//! Other activity of the machine during a trial: other programs and dropped caches distort it.

use std::fs;

use pagelab_formats::{pressure, vmstat};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_sys::clock;
use pagelab_sys::wait::Rusage;

/// Share of one CPU used by other programs above which the machine was not quiet.
const BUSY_SHARE: f64 = 0.1;
/// Ticks of the clock that may be lost to rounding at both ends.
const CLOCK_TICKS_LOST: u64 = 3;

/// Counters at one time.
#[derive(Clone, Copy, Debug)]
pub struct ActivitySample {
    monotonic_ns: u64,
    /// CPU time of the entire machine that was not idle, ns.
    busy_ns: Option<u64>,
    /// CPU time of this process, ns.
    own_cpu_ns: u64,
    /// Number of drops of the page cache by vm.drop_caches.
    drop_caches_count: Option<u64>,
}

impl ActivitySample {
    /// Reads them.
    pub fn read() -> ActivitySample {
        let stat = fs::read_to_string(paths::STAT).ok();
        ActivitySample {
            monotonic_ns: clock::monotonic_ns(),
            busy_ns: stat.as_deref().and_then(parse_busy_ns),
            own_cpu_ns: clock::process_cpu_ns(std::process::id()).unwrap_or(0),
            drop_caches_count: fs::read(paths::VMSTAT).ok().as_deref().and_then(parse_drop_count),
        }
    }

    /// Reads them where children work for us: the time of those that were waited for is ours, and that of
    /// these, which run.
    pub fn read_with_children(running: impl Iterator<Item = u32>) -> ActivitySample {
        let sample = ActivitySample::read();
        let own = Rusage::for_this_process();
        let running: u64 = running.map(|pid| clock::process_cpu_ns(pid).unwrap_or(0)).sum();
        let own_cpu_ns = own.utime_ns.saturating_add(own.stime_ns).saturating_add(running);
        ActivitySample { own_cpu_ns, ..sample }
    }

    /// Time since then, in nanoseconds, at least 1.
    pub fn ns_since(&self, earlier: &ActivitySample) -> u64 {
        self.monotonic_ns.saturating_sub(earlier.monotonic_ns).max(1)
    }

    /// CPU share of other programs since then, without `own_ns` of ours: `0.43` of one CPU. None if it is
    /// unknown, or too small to distinguish from rounding.
    pub fn foreign_share_since(&self, earlier: &ActivitySample, own_ns: u64) -> Option<f64> {
        let wall_ns = self.ns_since(earlier);
        let busy_ns = self.busy_ns?.saturating_sub(earlier.busy_ns?);
        let ours_ns = own_ns.saturating_add(self.own_cpu_ns.saturating_sub(earlier.own_cpu_ns));
        let others_ns = busy_ns.saturating_sub(ours_ns).saturating_sub(CLOCK_TICKS_LOST * tick_ns());
        Some(others_ns as f64 / wall_ns as f64)
    }

    /// The same, if it is so large that the machine was not quiet.
    pub fn busy_share_since(&self, earlier: &ActivitySample, own_ns: u64) -> Option<f64> {
        self.foreign_share_since(earlier, own_ns).filter(|&share| share > BUSY_SHARE)
    }

    /// Whether page cache was dropped since then.
    pub fn has_dropped_caches_since(&self, earlier: &ActivitySample) -> bool {
        matches!((self.drop_caches_count, earlier.drop_caches_count), (Some(now), Some(then)) if now > then)
    }
}

/// Load and pressure as the kernel averages them, for a person: `load 0.12, waiting for cpu 3 %, memory 0 %`.
pub fn describe_load() -> String {
    let load = fs::read_to_string(paths::LOADAVG).unwrap_or_default();
    let load = load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown");
    let (root, mut text) = (Root::live(), format!("load {load}"));
    let reader = Reader::new(&root);
    let resources =
        [("cpu", paths::PRESSURE_CPU), ("memory", paths::PRESSURE_MEMORY), ("io", paths::PRESSURE_IO)];
    for (name, path) in resources {
        // A kernel without PSI (before 4.20) has the load alone.
        if let Ok(pressure) = reader.parse(path, pressure::parse) {
            let percent = pressure.some.avg10_centipercent as f64 / 100.0;
            text.push_str(&format!(", {name} pressure {percent:.0} %"));
        }
    }
    text
}

pub(super) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// All but idle and iowait; guests' time is in user time already (Documentation/filesystems/proc.rst).
fn parse_busy_ns(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let busy = fields.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    let ticks = busy.fold(0u64, |sum, (_, ticks)| sum.saturating_add(*ticks));
    (fields.len() >= 4).then(|| ticks.saturating_mul(tick_ns()))
}

fn parse_drop_count(text: &[u8]) -> Option<u64> {
    vmstat::parse(text).ok()?.get("drop_pagecache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_all_but_idle_and_waiting() {
        let ms = tick_ns() / 1_000_000;
        let stat = "cpu  10 1 5 1000 77 2 3 4 9 9\ncpu0 1 1 1 1\n";
        assert_eq!(parse_busy_ns(stat), Some((10 + 1 + 5 + 2 + 3 + 4) * ms * 1_000_000));
        assert_eq!((parse_busy_ns("cpu  1 x\n"), parse_busy_ns("")), (None, None));
        assert_eq!(parse_drop_count(b"nr_free_pages 7\ndrop_pagecache 3\ndrop_slab 9\n"), Some(3));
        assert_eq!(parse_drop_count(b"nr_free_pages 7\n"), None, "before 3.15 it was not counted");
    }

    #[test]
    fn our_own_time_is_not_others() {
        let at = |monotonic_ns, busy_ns, own_ns, drops| ActivitySample {
            monotonic_ns,
            busy_ns: Some(busy_ns),
            own_cpu_ns: own_ns,
            drop_caches_count: Some(drops),
        };
        let (then, s) = (at(0, 0, 0, 1), 1_000_000_000);
        let now = at(10 * s, 9 * s, s, 1);
        assert_eq!(now.busy_share_since(&then, 8 * s), None);
        let share = now.busy_share_since(&then, 3 * s).unwrap();
        assert!((0.45..0.5).contains(&share), "{share}");
        assert!(!now.has_dropped_caches_since(&then) && at(0, 0, 0, 2).has_dropped_caches_since(&then));
    }
}
