//! Sets of tracepoints that belong together.

use super::{StackDepth, Wanted};

const fn plain(system: &'static str, name: &'static str) -> Wanted<'static> {
    Wanted { system, name, filter: "", stacks: StackDepth::None }
}

/// Allocations that fell back into another migratetype's memory.
pub const EXTFRAG: [Wanted<'static>; 1] = [plain("kmem", "mm_page_alloc_extfrag")];

/// Runs of compaction over one zone, by whom ever, and the compaction thread.
pub const COMPACTION: [Wanted<'static>; 5] = [
    plain("compaction", "mm_compaction_begin"),
    plain("compaction", "mm_compaction_end"),
    plain("compaction", "mm_compaction_try_to_compact_pages"),
    plain("compaction", "mm_compaction_kcompactd_wake"),
    plain("compaction", "mm_compaction_kcompactd_sleep"),
];

/// Reclaim: by whoever wants memory, and by its thread.
pub const VMSCAN: [Wanted<'static>; 4] = [
    plain("vmscan", "mm_vmscan_direct_reclaim_begin"),
    plain("vmscan", "mm_vmscan_direct_reclaim_end"),
    plain("vmscan", "mm_vmscan_kswapd_wake"),
    plain("vmscan", "mm_vmscan_kswapd_sleep"),
];

/// Making huge pages of small ones.
pub const HUGE_MEMORY: [Wanted<'static>; 2] =
    [plain("huge_memory", "mm_collapse_huge_page"), plain("huge_memory", "mm_khugepaged_collapse_file")];

/// Each allocation and each free of the page allocator, and what it does when memory is short. Left out is
/// `mm_page_free_batched`: each of its pages has an `mm_page_free` before it (mm/page_alloc.c,
/// `free_unref_page_list`).
pub const ALLOCATOR: [Wanted<'static>; 9] = [
    plain("kmem", "mm_page_alloc"),
    plain("kmem", "mm_page_free"),
    plain("kmem", "mm_page_alloc_extfrag"),
    plain("compaction", "mm_compaction_begin"),
    plain("compaction", "mm_compaction_end"),
    plain("compaction", "mm_compaction_migratepages"),
    plain("vmscan", "mm_vmscan_direct_reclaim_begin"),
    plain("vmscan", "mm_vmscan_direct_reclaim_end"),
    plain("vmscan", "mm_vmscan_kswapd_wake"),
];

/// What a recording of a machine has: all of the above, call chains of the fallbacks where they are wanted.
pub fn recording(stacks: StackDepth) -> Vec<Wanted<'static>> {
    let extfrag = EXTFRAG.map(|wanted| Wanted { stacks, ..wanted });
    extfrag.into_iter().chain(COMPACTION).chain(VMSCAN).chain(HUGE_MEMORY).collect()
}
