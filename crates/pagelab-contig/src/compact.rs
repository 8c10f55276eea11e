//! Compacting memory and dropping caches, journalled, with the time that it took.

use pagelab_host::guard::{Guard, GuardError};
use pagelab_host::root::Root;
use pagelab_metrics::compaction::ScannerRun;
use pagelab_model::{NodeId, Reading};
use pagelab_sys::clock;

use crate::scanners::ScannerWatch;

/// Which memory is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All zones of all nodes (`vm.compact_memory`, 2.6.35 and later).
    Machine,
    /// All zones of one node (`compact` of the node, 2.6.35 and later).
    Node(NodeId),
}

/// Which caches are dropped before memory is compacted. Only what is clean and not mapped goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caches {
    /// None.
    #[default]
    Keep,
    /// The page cache.
    Page,
    /// The page cache, and slab objects that can be reclaimed: dentries, inodes.
    All,
}

/// Compacts, and returns the nanoseconds that it took. The kernel answers when it is done, in each zone
/// either because both scanners have met or because it gave up. Neither that nor pages that cannot be moved
/// are an error, so only [`compact_watched`] and a look at the memory tell what came of it.
pub fn compact(guard: &Guard, scope: Scope) -> Result<u64, GuardError> {
    timed(|| match scope {
        Scope::Machine => guard.compact_memory(),
        Scope::Node(node) => guard.compact_node(node),
    })
}

/// The same, and where the scanners of each zone stopped, where tracepoints can be read.
pub fn compact_watched(
    guard: &Guard,
    root: &Root,
    scope: Scope,
) -> Result<(u64, Reading<Vec<ScannerRun>>), GuardError> {
    let watch = ScannerWatch::begin(root);
    let took_ns = compact(guard, scope)?;
    Ok((took_ns, watch.and_then(ScannerWatch::end)))
}

/// Writes dirty pages back, which are not dropped otherwise, drops the caches, and returns the nanoseconds
/// that it took; `None` if none was to be dropped.
pub fn drop_caches(guard: &Guard, caches: Caches) -> Result<Option<u64>, GuardError> {
    // Numbers of fs/drop_caches.c: bit 0 page cache, bit 1 slab.
    let what = match caches {
        Caches::Keep => return Ok(None),
        Caches::Page => 1,
        Caches::All => 3,
    };
    timed(|| {
        guard.one_way("sync", rustix::fs::sync)?;
        guard.drop_caches(what)
    })
    .map(Some)
}

fn timed(act: impl FnOnce() -> Result<(), GuardError>) -> Result<u64, GuardError> {
    let began_ns = clock::monotonic_ns();
    act()?;
    Ok(clock::monotonic_ns().saturating_sub(began_ns))
}
