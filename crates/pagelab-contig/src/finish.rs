//! Compaction that goes on where the kernel ended early: the kernel is told again for as long as that gains
//! something.
//!
//! A run that meets a folio for which it has no room, and which cannot be split, ends the zone there
//! (`pagelab_metrics::compaction`). Page cache that is dirty is such a folio: its buffers cannot be let go,
//! and a program that writes many files, such as a compiler, leaves many. So what is dirty is written back
//! before the kernel is told again. Somebody may have written meanwhile, and the next run ends at the next
//! such folio.

use pagelab_formats::buddyinfo;
use pagelab_host::guard::{Guard, GuardError};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::compaction::ScannerRun;
use pagelab_model::{Order, Reading};
use pagelab_sys::clock;

use crate::compact::{Scope, compact_watched};
use crate::settle::settle;

/// A run that gains less than this has gained nothing: programs at work move as much.
const GAIN_MIN: u64 = 8;
/// So many in a row are the end.
const MISSES_MAX: u32 = 2;
/// Never more runs than this: each may scan all memory.
const RUNS_MAX: u32 = 16;

/// What was compacted, and by whom it is known where it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// How often the kernel was told.
    pub count: u32,
    /// Nanoseconds of all of them.
    pub took_ns: u64,
    /// Where the scanners of the first stopped.
    pub first: Reading<Vec<ScannerRun>>,
    /// Where those of the last did.
    pub last: Reading<Vec<ScannerRun>>,
}

impl Runs {
    /// Whether the last one ended early in some zone; no where that cannot be read.
    pub fn is_early(&self, block: Order) -> bool {
        is_early(&self.last, block)
    }
}

/// Whether some zone ended before its scanners met; no where that cannot be read.
fn is_early(runs: &Reading<Vec<ScannerRun>>, block: Order) -> bool {
    runs.as_ref().is_ok_and(|runs| runs.iter().any(|run| run.early(block).is_some()))
}

/// Compacts until the scanners of each zone have met, or more runs gain nothing. Before each but the first,
/// dirty pages are written back.
pub fn compact_on(
    guard: &Guard,
    root: &Root,
    scope: Scope,
    block: Order,
    until_ns: u64,
) -> Result<Runs, GuardError> {
    let mut run = |is_again: bool| {
        if is_again {
            guard.one_way("sync", rustix::fs::sync)?;
        }
        compact_watched(guard, root, scope)
    };
    let mut count = || huge_now(root, block);
    let is_time = || clock::monotonic_ns() < until_ns;
    on(&mut run, &mut count, &is_time, block)
}

/// Nanoseconds that a run took, and where its scanners stopped.
type Told = (u64, Reading<Vec<ScannerRun>>);

/// The same by whoever compacts and counts. `run` is told whether it is another run.
fn on<E>(
    run: &mut dyn FnMut(bool) -> Result<Told, E>,
    count: &mut dyn FnMut() -> u64,
    is_time: &dyn Fn() -> bool,
    block: Order,
) -> Result<Runs, E> {
    let (took_ns, first) = run(false)?;
    let mut runs = Runs { count: 1, took_ns, last: first.clone(), first };
    let mut before = None;
    let mut misses = 0;
    while runs.is_early(block) && runs.count < RUNS_MAX && is_time() {
        let now = count();
        let is_miss = before.is_some_and(|before| now < before + GAIN_MIN);
        misses = if is_miss { misses + 1 } else { 0 };
        if misses >= MISSES_MAX {
            break;
        }
        let (took_ns, last) = run(true)?;
        runs = Runs { count: runs.count + 1, took_ns: runs.took_ns + took_ns, last, ..runs };
        before = Some(now);
    }
    Ok(runs)
}

/// Free blocks of an order, once the per-CPU lists have shrunk.
pub fn huge_now(root: &Root, order: Order) -> u64 {
    settle(root);
    let buddy = Reader::new(root).parse(paths::BUDDYINFO, buddyinfo::parse);
    let zones = buddy.map(|buddy| buddy.zones).unwrap_or_default();
    let blocks = zones.iter().map(|zone| zone.areas.blocks_suitable(order)).sum::<u128>();
    u64::try_from(blocks).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use pagelab_metrics::compaction::CONTENDED;
    use pagelab_model::{Absence, AbsentWhy, Pfn};

    use super::*;

    const BLOCK: Order = Order(9);

    /// Runs that end early or not, with as many huge pages as there are before each run but the first.
    fn check(early: &[Option<bool>], counts: &[u64], expected: u32) {
        let (mut at, mut counted) = (0, 0);
        let mut run = |is_again: bool| {
            assert_eq!(is_again, at > 0);
            let found = early.get(at).copied().unwrap_or(Some(true));
            at += 1;
            let (migrate, status) = if found == Some(true) { (0x600, CONTENDED) } else { (0x8000, 5) };
            let run = ScannerRun {
                first: Pfn(0),
                end: Pfn(0x9000),
                migrate: Pfn(migrate),
                free: Pfn(0x8000),
                status,
                failed: 3,
            };
            let absent = || Absence::new("tracefs", AbsentWhy::NotPermitted, "");
            Ok::<_, ()>((5, found.map(|_| vec![run]).ok_or_else(absent)))
        };
        let mut count = || {
            counted += 1;
            counts[counted - 1]
        };
        let runs = on(&mut run, &mut count, &|| true, BLOCK).unwrap();
        assert_eq!((runs.count, runs.took_ns), (expected, 5 * u64::from(expected)), "{early:?} {counts:?}");
    }

    #[test]
    fn the_kernel_is_told_again_while_that_gains_something() {
        check(&[Some(false)], &[], 1);
        check(&[None], &[], 1);
        check(&[Some(true), Some(false)], &[100], 2);
        check(&[Some(true), Some(true), Some(false)], &[100, 300], 3);
        // The second and the third gained nothing, and there is no fourth.
        check(&[Some(true); 3], &[100, 103, 105], 3);
        check(&[Some(true), Some(true), Some(true), Some(false)], &[100, 103, 300], 4);
        check(&[], &(0..16).map(|run| run * 100).collect::<Vec<_>>(), RUNS_MAX);
    }
}
