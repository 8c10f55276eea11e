//! Callers that pollute movable memory: call stacks of fallbacks, summed by the function that requested
//! memory.
//!
//! A stack begins within the allocator, and its innermost functions are common to all stacks. They are
//! skipped, so that the reported function is the requester.

use std::collections::HashMap;

use pagelab_model::extfrag::{FallbackCounts, FallbackStack, FallbackStacks};

/// One function that requested memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name, or the address if it has none.
    pub function: String,
    /// Its effects.
    pub counts: FallbackCounts,
    /// Programs in which it did, with their polluting fallbacks, most first; `None` is one that had exited.
    pub programs: Vec<(Option<String>, u64)>,
    /// The most frequent stack, from the function outwards.
    pub stack: Vec<String>,
    /// Frames of the program below that stack; empty if none were recorded.
    pub user: Vec<String>,
}

/// All requesting functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerTable {
    /// Those that polluted anything, most first.
    pub callers: Vec<Caller>,
    /// All events, also those of callers that polluted nothing and of stacks that were not kept.
    pub total: FallbackCounts,
}

/// The page allocator's own functions, without what the compiler and allocation profiling put around their
/// names (mm/page_alloc.c, mm/mempolicy.c; 6.1 to 6.18).
const PAGE_ALLOCATOR: &[&str] = &[
    "alloc_frozen_pages",
    "alloc_frozen_pages_nolock",
    "alloc_page_interleave",
    "alloc_pages",
    "alloc_pages_bulk",
    "alloc_pages_bulk_array",
    "alloc_pages_bulk_array_mempolicy",
    "alloc_pages_bulk_mempolicy",
    "alloc_pages_cpuset_fallback",
    "alloc_pages_current",
    "alloc_pages_direct_compact",
    "alloc_pages_direct_reclaim",
    "alloc_pages_exact",
    "alloc_pages_may_oom",
    "alloc_pages_mpol",
    "alloc_pages_node",
    "alloc_pages_preferred_many",
    "alloc_pages_slowpath",
    "alloc_pages_vma",
    "folio_alloc",
    "folio_alloc_mpol",
    "folio_alloc_node",
    "get_free_pages",
    "get_page_from_freelist",
    "get_zeroed_page",
    "rmqueue",
    "rmqueue_buddy",
    "rmqueue_bulk",
    "rmqueue_claim",
    "rmqueue_fallback",
    "rmqueue_pcplist",
    "rmqueue_steal",
    "steal_suitable_fallback",
    "try_to_claim_block",
    "vma_alloc_folio",
];

/// Functions that pass on pages of the page allocator (mm/slub.c, mm/slab_common.c, mm/vmalloc.c,
/// mm/mempool.c).
const OTHER_ALLOCATORS: &[&str] = &[
    "alloc_from_pcs",
    "alloc_full_sheaf",
    "alloc_slab_page",
    "allocate_slab",
    "cache_alloc_refill",
    "cache_grow_begin",
    "do_kmalloc_node",
    "get_from_partial",
    "kmalloc",
    "kmalloc_cache",
    "kmalloc_cache_node",
    "kmalloc_large",
    "kmalloc_large_node",
    "kmalloc_node",
    "kmalloc_node_trace",
    "kmalloc_node_track_caller",
    "kmalloc_order",
    "kmalloc_order_trace",
    "kmalloc_trace",
    "kmalloc_track_caller",
    "kmem_cache_alloc",
    "kmem_cache_alloc_bulk",
    "kmem_cache_alloc_lru",
    "kmem_cache_alloc_node",
    "kmem_cache_alloc_trace",
    "kmemdup",
    "krealloc",
    "kvmalloc_node",
    "mempool_alloc",
    "mempool_alloc_slab",
    "mempool_kmalloc",
    "new_slab",
    "refill_objects",
    "refill_sheaf",
    "slab_alloc",
    "slab_alloc_node",
    "vm_area_alloc_pages",
    "vmalloc",
    "vmalloc_area_node",
    "vmalloc_huge",
    "vmalloc_node",
    "vmalloc_node_range",
    "vzalloc",
];

/// A name as in the source: `__alloc_pages_noprof.constprop.0` is `alloc_pages`. Leading underscores are left
/// out too, since they come and go between releases.
fn source_name(function: &str) -> &str {
    let name = function.split_once('.').map_or(function, |(name, _)| name);
    name.strip_suffix("_noprof").unwrap_or(name).trim_start_matches('_')
}

fn is_skipped(function: &str) -> bool {
    let name = source_name(function);
    PAGE_ALLOCATOR.binary_search(&name).is_ok() || OTHER_ALLOCATORS.binary_search(&name).is_ok()
}

/// The frames from the requester outwards. Where all are the allocator's, the outermost is left; only
/// the innermost run is passed over, since an allocator may be called from within another one's caller.
fn frames_from_requester(stack: &FallbackStack) -> &[String] {
    let skipped_frames = stack.kernel.iter().take_while(|frame| is_skipped(frame)).count();
    &stack.kernel[skipped_frames.min(stack.kernel.len().saturating_sub(1))..]
}

/// Adds up stacks by the requesting function.
pub fn aggregate_callers(stacks: &FallbackStacks) -> CallerTable {
    let mut by_function: HashMap<&str, Vec<(&FallbackStack, &[String])>> = HashMap::new();
    let mut all = stacks.overflow;
    for stack in &stacks.stacks {
        all += stack.counts;
        let frames = frames_from_requester(stack);
        let function = frames.first().map_or("no kernel frame", String::as_str);
        by_function.entry(function).or_default().push((stack, frames));
    }
    let mut callers: Vec<Caller> = by_function
        .into_iter()
        .map(|(function, stacks)| aggregate_caller(function, &stacks))
        .filter(|caller| caller.counts.polluting > 0)
        .collect();
    callers.sort_by(|a, b| {
        b.counts.polluting.cmp(&a.counts.polluting).then_with(|| a.function.cmp(&b.function))
    });
    CallerTable { callers, total: all }
}

fn aggregate_caller(function: &str, stacks: &[(&FallbackStack, &[String])]) -> Caller {
    let mut counts = FallbackCounts::default();
    let mut programs: HashMap<Option<&String>, u64> = HashMap::new();
    let mut by_frames: HashMap<(&[String], &[String]), u64> = HashMap::new();
    for (stack, frames) in stacks {
        counts += stack.counts;
        let weight = stack.counts.polluting;
        *programs.entry(stack.comm.as_ref()).or_default() += weight;
        *by_frames.entry((frames, &stack.user)).or_default() += weight;
    }
    let mut programs: Vec<(Option<String>, u64)> =
        programs.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.cloned(), n)).collect();
    programs.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    // The frames decide between equals, so that the answer does not depend on the order of the stacks.
    let heaviest = by_frames.into_iter().max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
    let (stack, user) =
        heaviest.map(|(frames, _)| (frames.0.to_vec(), frames.1.to_vec())).unwrap_or_default();
    Caller { function: function.to_owned(), counts, programs, stack, user }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(comm: &str, frames: &str, polluting: u64, claimed: u64) -> FallbackStack {
        FallbackStack {
            comm: Some(comm.to_owned()),
            kernel: frames.split(' ').filter(|frame| !frame.is_empty()).map(str::to_owned).collect(),
            user: Vec::new(),
            counts: FallbackCounts { events: 10, fragmenting: 9, polluting, polluting_claimed: claimed },
        }
    }

    const DENTRY: &str = "get_page_from_freelist __alloc_frozen_pages_noprof alloc_pages_mpol \
                          allocate_slab ___slab_alloc.isra.0 kmem_cache_alloc_lru_noprof __d_alloc d_alloc";

    fn example() -> FallbackStacks {
        let stacks = vec![
            stack("find", DENTRY, 7, 1),
            stack("tar", DENTRY, 4, 0),
            stack("tar", "get_page_from_freelist __alloc_pages_noprof pte_alloc_one __pte_alloc", 5, 5),
            stack("tar", "get_page_from_freelist __alloc_pages_noprof shmem_alloc_folio", 0, 0),
            stack("odd", "get_page_from_freelist __alloc_pages.constprop.0", 1, 0),
            stack("odd", "", 1, 0),
        ];
        let overflow = FallbackCounts { events: 100, ..FallbackCounts::default() };
        FallbackStacks { stacks, overflow, lost: 3, notes: Vec::new() }
    }

    #[test]
    fn the_one_who_asked_is_named_and_the_worst_is_first() {
        let callers = aggregate_callers(&example());
        let got: Vec<_> = callers.callers.iter().map(|c| (c.function.as_str(), c.counts.polluting)).collect();
        let expected = [
            ("__d_alloc", 11),
            ("pte_alloc_one", 5),
            ("__alloc_pages.constprop.0", 1),
            ("no kernel frame", 1),
        ];
        assert_eq!(got, expected);
        assert_eq!((callers.total.events, callers.total.polluting), (160, 18));
    }

    #[test]
    fn programs_and_the_heaviest_stack_stand_beside_it() {
        let callers = aggregate_callers(&example());
        let first = &callers.callers[0];
        assert_eq!(first.programs, [(Some("find".to_owned()), 7), (Some("tar".to_owned()), 4)]);
        assert_eq!(first.stack, ["__d_alloc", "d_alloc"]);
        assert!(PAGE_ALLOCATOR.is_sorted() && OTHER_ALLOCATORS.is_sorted(), "they are searched by halves");
    }
}
