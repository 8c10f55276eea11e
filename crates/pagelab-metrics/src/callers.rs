//! Who spoils movable memory: call stacks of fallbacks, added up by the function that asked for memory.
//!
//! A stack begins within the allocator, and its innermost functions are the same for everybody. They are
//! passed over, so that the function shown is the one that wanted memory.

use std::collections::HashMap;

use pagelab_model::extfrag::{FallbackCounts, StackCounts, Stacks};

/// Which functions are passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The page allocator and what hands its pages on: slab, vmalloc, mempools. What is left asked for
    /// memory.
    #[default]
    Asker,
    /// The page allocator alone: what is left shows slab and vmalloc as callers.
    PageAllocator,
}

/// What callers are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// Every fallback into movable memory.
    #[default]
    Spoiling,
    /// Those alone that made the whole pageblock their own.
    Claimed,
}

/// One function that asked for memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name, or the address where it has none.
    pub function: String,
    /// What it caused.
    pub counts: FallbackCounts,
    /// Programs in which it did, with their spoiling fallbacks, most first; `None` is one that had gone.
    pub programs: Vec<(Option<String>, u64)>,
    /// The stack that most came through, from the function outwards.
    pub stack: Vec<String>,
    /// Frames of the program below that stack; empty where none were recorded.
    pub user: Vec<String>,
}

/// All functions that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callers {
    /// Those that spoiled anything, most first.
    pub callers: Vec<Caller>,
    /// All events, also those of callers that spoiled nothing and of stacks that were not kept.
    pub all: FallbackCounts,
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

/// What hands pages of the page allocator on (mm/slub.c, mm/slab_common.c, mm/vmalloc.c, mm/mempool.c).
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

/// A name as it stands in the source: `__alloc_pages_noprof.constprop.0` is `alloc_pages`. Leading
/// underscores are left out too, since they come and go between releases.
fn plain(function: &str) -> &str {
    let name = function.split_once('.').map_or(function, |(name, _)| name);
    name.strip_suffix("_noprof").unwrap_or(name).trim_start_matches('_')
}

fn is_passed_over(function: &str, view: View) -> bool {
    let name = plain(function);
    PAGE_ALLOCATOR.binary_search(&name).is_ok()
        || view == View::Asker && OTHER_ALLOCATORS.binary_search(&name).is_ok()
}

/// The frames from the one that asked outwards. Where all are the allocator's, the outermost is left; only
/// the innermost run is passed over, since an allocator may be called from within another one's caller.
fn from_asker(stack: &StackCounts, view: View) -> &[String] {
    let own = stack.kernel.iter().take_while(|frame| is_passed_over(frame, view)).count();
    &stack.kernel[own.min(stack.kernel.len().saturating_sub(1))..]
}

/// Adds stacks up by the function that asked.
pub fn callers(stacks: &Stacks, view: View, weight: Weight) -> Callers {
    let of = |counts: &FallbackCounts| match weight {
        Weight::Spoiling => counts.spoiling,
        Weight::Claimed => counts.spoiling_claimed,
    };
    let mut by_function: HashMap<&str, Vec<(&StackCounts, &[String])>> = HashMap::new();
    let mut all = stacks.not_kept;
    for stack in &stacks.stacks {
        all += stack.counts;
        let frames = from_asker(stack, view);
        let function = frames.first().map_or("no frame of the kernel", String::as_str);
        by_function.entry(function).or_default().push((stack, frames));
    }
    let mut callers: Vec<Caller> = by_function
        .into_iter()
        .map(|(function, stacks)| caller(function, &stacks, of))
        .filter(|caller| of(&caller.counts) > 0)
        .collect();
    callers.sort_by(|a, b| of(&b.counts).cmp(&of(&a.counts)).then_with(|| a.function.cmp(&b.function)));
    Callers { callers, all }
}

fn caller(
    function: &str,
    stacks: &[(&StackCounts, &[String])],
    of: impl Fn(&FallbackCounts) -> u64,
) -> Caller {
    let mut counts = FallbackCounts::default();
    let mut programs: HashMap<Option<&String>, u64> = HashMap::new();
    let mut by_frames: HashMap<(&[String], &[String]), u64> = HashMap::new();
    for (stack, frames) in stacks {
        counts += stack.counts;
        let weight = of(&stack.counts);
        *programs.entry(stack.process.as_ref()).or_default() += weight;
        *by_frames.entry((frames, &stack.user)).or_default() += weight;
    }
    let mut programs: Vec<(Option<String>, u64)> =
        programs.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.cloned(), n)).collect();
    programs.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    // The frames decide between equals, so that the answer does not depend on the order of the stacks.
    let most = by_frames.into_iter().max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
    let (stack, user) = most.map(|(frames, _)| (frames.0.to_vec(), frames.1.to_vec())).unwrap_or_default();
    Caller { function: function.to_owned(), counts, programs, stack, user }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(process: &str, frames: &str, spoiling: u64, claimed: u64) -> StackCounts {
        StackCounts {
            process: Some(process.to_owned()),
            kernel: frames.split(' ').filter(|frame| !frame.is_empty()).map(str::to_owned).collect(),
            user: Vec::new(),
            counts: FallbackCounts { events: 10, fragmenting: 9, spoiling, spoiling_claimed: claimed },
        }
    }

    const DENTRY: &str = "get_page_from_freelist __alloc_frozen_pages_noprof alloc_pages_mpol \
                          allocate_slab ___slab_alloc.isra.0 kmem_cache_alloc_lru_noprof __d_alloc d_alloc";

    fn example() -> Stacks {
        let stacks = vec![
            stack("find", DENTRY, 7, 1),
            stack("tar", DENTRY, 4, 0),
            stack("tar", "get_page_from_freelist __alloc_pages_noprof pte_alloc_one __pte_alloc", 5, 5),
            stack("tar", "get_page_from_freelist __alloc_pages_noprof shmem_alloc_folio", 0, 0),
            stack("odd", "get_page_from_freelist __alloc_pages.constprop.0", 1, 0),
            stack("odd", "", 1, 0),
        ];
        let not_kept = FallbackCounts { events: 100, ..FallbackCounts::default() };
        Stacks { stacks, not_kept, lost: 3, notes: Vec::new() }
    }

    #[test]
    fn the_one_who_asked_is_named_in_the_order_that_is_wanted() {
        type Expected = &'static [(&'static str, u64)];
        let cases: [(View, Weight, Expected); 3] = [
            (
                View::Asker,
                Weight::Spoiling,
                &[
                    ("__d_alloc", 11),
                    ("pte_alloc_one", 5),
                    ("__alloc_pages.constprop.0", 1),
                    ("no frame of the kernel", 1),
                ],
            ),
            (View::Asker, Weight::Claimed, &[("pte_alloc_one", 5), ("__d_alloc", 11)]),
            (
                View::PageAllocator,
                Weight::Spoiling,
                &[
                    ("allocate_slab", 11),
                    ("pte_alloc_one", 5),
                    ("__alloc_pages.constprop.0", 1),
                    ("no frame of the kernel", 1),
                ],
            ),
        ];
        for (view, weight, expected) in cases {
            let callers = callers(&example(), view, weight);
            let got: Vec<_> =
                callers.callers.iter().map(|c| (c.function.as_str(), c.counts.spoiling)).collect();
            assert_eq!(got, expected, "{view:?} {weight:?}");
            assert_eq!((callers.all.events, callers.all.spoiling), (160, 18));
        }
    }

    #[test]
    fn programs_and_the_heaviest_stack_stand_beside_it() {
        let callers = callers(&example(), View::Asker, Weight::Spoiling);
        let first = &callers.callers[0];
        assert_eq!(first.programs, [(Some("find".to_owned()), 7), (Some("tar".to_owned()), 4)]);
        assert_eq!(first.stack, ["__d_alloc", "d_alloc"]);
        assert!(PAGE_ALLOCATOR.is_sorted() && OTHER_ALLOCATORS.is_sorted(), "they are searched by halves");
    }
}
