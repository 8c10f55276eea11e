// SPDX-License-Identifier: GPL-2.0-only
/*
 * State "linear" of the feature "reclaim": linear reclaim (Gorman and Whitcroft, "The What, The Why and the
 * Where To of Anti-Fragmentation", OLS 2006, section 10).
 *
 * Reclaim by age frees pages wherever they are. Here a direct reclaim for a request of order >= 3 walks
 * aligned regions of that order, in the order of their pfns and from where the last walk ended. A region
 * with a page that is neither free nor reclaimable is skipped. All pages of another one are reclaimed,
 * whatever their age. The walk ends when a region is one free block, or when a share of the zone was seen, or
 * when some regions were tried in vain; then the kernel's own reclaim follows.
 *
 * What is read without a lock may change at once, as in compaction (isolate_migratepages_block()). A
 * folio is touched only with a reference to it, and only if it could be taken from its LRU list.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/kernel.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmzone.h>
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/page-flags.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/swap.h>
#include <linux/timekeeping.h>

#include "pagelab.h"

/* Below, a few pages freed by age are likely to be neighbours (PAGE_ALLOC_COSTLY_ORDER). */
#define LINEAR_ORDER_MIN 3

/*
 * A region that is skipped costs microseconds, and one that is tried up to milliseconds and IO. With a
 * quarter, one call has an end while memory is full of slab, and four calls, which a request with
 * __GFP_RETRY_MAYFAIL makes, see the whole zone.
 */
static unsigned int linear_share = 25;
module_param(linear_share, uint, 0644);
MODULE_PARM_DESC(linear_share, "Percentage of a zone that one linear scan looks at, at most");

/*
 * Each page of a region that is tried may be written to swap, and be read again at once if it is in use. A
 * scan that meets only such regions would move all of memory to swap and back.
 */
static unsigned int linear_tries = 8;
module_param(linear_tries, uint, 0644);
MODULE_PARM_DESC(linear_tries, "Regions of a zone that one linear scan tries in vain, at most");

static unsigned long linear_try_to_free_pages(struct zonelist *zonelist, int order, gfp_t gfp_mask,
					      nodemask_t *nodemask);

static struct pagelab_hook hook = PAGELAB_HOOK("try_to_free_pages", linear_try_to_free_pages);

static int (*kernel_folio_referenced)(struct folio *folio, int is_locked, struct mem_cgroup *memcg,
				      unsigned long *vm_flags);
/* Returns an error number or 0 in 6.1, and a bool in 6.12: see isolated_means_true. */
static u8 (*kernel_folio_isolate_lru)(struct folio *folio);
static void (*kernel_folio_putback_lru)(struct folio *folio);
static unsigned long (*kernel_reclaim_pages)(struct list_head *folios);
static void (*kernel_lru_add_drain_all)(void);
static void (*kernel_drain_all_pages)(struct zone *zone);

static const struct pagelab_symbol symbols[] = {
	PAGELAB_SYMBOL("folio_referenced", kernel_folio_referenced),
	PAGELAB_SYMBOL("folio_isolate_lru", kernel_folio_isolate_lru),
	PAGELAB_SYMBOL("folio_putback_lru", kernel_folio_putback_lru),
	PAGELAB_SYMBOL("reclaim_pages", kernel_reclaim_pages),
	PAGELAB_SYMBOL("lru_add_drain_all", kernel_lru_add_drain_all),
	PAGELAB_SYMBOL("drain_all_pages", kernel_drain_all_pages),
};

/* What folio_isolate_lru() returns for a folio that is on no list; set by pagelab_linear_init(). */
static bool isolated_means_true;

/* For each zone of each node, the pfn behind the last region of the last scan. */
static DEFINE_SPINLOCK(cursor_lock);
static unsigned long *cursors;

/**
 * struct region - an aligned range of pages in one zone
 * @zone: the zone
 * @start: its first pfn
 * @order: it has 1 << @order pages
 */
struct region {
	struct zone *zone;
	unsigned long start;
	unsigned int order;
};

/**
 * enum region_result - what became of a region
 * @REGION_SKIPPED: it was not tried
 * @REGION_KEPT: it was tried in vain
 * @REGION_EMPTIED: it is a free block
 */
enum region_result {
	REGION_SKIPPED,
	REGION_KEPT,
	REGION_EMPTIED,
};

static unsigned long region_end(const struct region *region)
{
	return region->start + (1UL << region->order);
}

/* On a free list or on a per-CPU list; or a page that is being allocated or freed right now. */
static bool is_free(struct page *page)
{
	return !page_ref_count(page) && !PageCompound(page) && !PageReserved(page) && !PageOffline(page);
}

/* Whether somebody beside page tables, the page cache, the swap cache and buffers holds a small folio. */
static bool has_other_users(struct folio *folio)
{
	int expected;

	if (folio_maybe_dma_pinned(folio))
		return true;
	if (folio_test_large(folio))
		return false;
	expected = atomic_read(&folio->_mapcount) + 1;
	expected += folio_test_swapcache(folio) + folio_test_private(folio);
	if (!folio_test_anon(folio) && READ_ONCE(folio->mapping))
		expected++;
	return folio_ref_count(folio) > expected;
}

/* Whether reclaim can free a folio, perhaps after writeback. */
static bool is_reclaimable(struct folio *folio)
{
	if (!folio_test_lru(folio) || folio_test_unevictable(folio) || folio_test_mlocked(folio))
		return false;
	if (folio_test_locked(folio) || has_other_users(folio))
		return false;
	if (folio_is_file_lru(folio))
		/* Reclaim leaves dirty pages of files to the flusher threads. */
		return !folio_test_dirty(folio);
	return folio_test_swapcache(folio) || get_nr_swap_pages() > 0;
}

/* Whether all pages are free or reclaimable, and at least one is not free. */
static bool is_worth_trying(const struct region *region)
{
	bool has_pages = false;
	unsigned long pfn = region->start;

	while (pfn < region_end(region)) {
		struct page *page = pfn_to_page(pfn);
		struct folio *folio;

		if (is_free(page)) {
			pfn++;
			continue;
		}
		folio = page_folio(page);
		if (!is_reclaimable(folio))
			return false;
		has_pages = true;
		pfn = max(folio_pfn(folio) + folio_nr_pages(folio), pfn + 1);
	}
	return has_pages;
}

/* Takes a folio from its LRU list. The caller holds a reference to it. */
static bool isolate_folio(struct folio *folio, struct list_head *isolated)
{
	unsigned long vm_flags;

	if (!!kernel_folio_isolate_lru(folio) != isolated_means_true)
		return false;
	/*
	 * reclaim_pages() respects references in 6.1, and not in 6.12. This answer clears them, so the next
	 * one is "none". A page in a mlocked mapping may not have been moved to the unevictable list yet.
	 */
	kernel_folio_referenced(folio, 0, NULL, &vm_flags);
	folio_clear_referenced(folio);
	if (folio_test_unevictable(folio) || vm_flags & VM_LOCKED) {
		kernel_folio_putback_lru(folio);
		return false;
	}
	list_add_tail(&folio->lru, isolated);
	return true;
}

static unsigned long isolate_region(const struct region *region, struct list_head *isolated)
{
	unsigned long pfn = region->start;
	unsigned long pages = 0;

	while (pfn < region_end(region)) {
		struct page *page = pfn_to_page(pfn++);
		struct folio *folio;

		if (is_free(page))
			continue;
		folio = page_folio(page);
		if (!folio_try_get(folio))
			continue;
		/* It may have been freed and be part of another folio by now. */
		if (page_folio(page) == folio && isolate_folio(folio, isolated)) {
			pages += folio_nr_pages(folio);
			pfn = max(folio_pfn(folio) + folio_nr_pages(folio), pfn);
		}
		folio_put(folio);
	}
	return pages;
}

/* Returns whether writeback has ended that kept the region from being emptied. */
static bool wait_for_writeback(const struct region *region)
{
	unsigned long pfn;
	bool has_waited = false;

	for (pfn = region->start; pfn < region_end(region); pfn++) {
		struct page *page = pfn_to_page(pfn);
		struct folio *folio;
		int error = 0;

		if (is_free(page))
			continue;
		folio = page_folio(page);
		if (!folio_test_writeback(folio) || !folio_try_get(folio))
			continue;
		if (page_folio(page) == folio) {
			error = folio_wait_writeback_killable(folio);
			has_waited = true;
		}
		folio_put(folio);
		if (error)
			return false;
	}
	return has_waited;
}

/* Whether a free block covers the region. */
static bool is_one_block(const struct region *region)
{
	struct zone *zone = region->zone;
	unsigned long flags;
	bool found = false;
	unsigned int order;

	spin_lock_irqsave(&zone->lock, flags);
	for (order = region->order; order < ARRAY_SIZE(zone->free_area) && !found; order++) {
		struct page *page = pfn_to_online_page(ALIGN_DOWN(region->start, 1UL << order));

		found = page && PageBuddy(page) && page_private(page) >= order;
	}
	spin_unlock_irqrestore(&zone->lock, flags);
	return found;
}

/* Returns whether the region is a free block now. */
static bool reclaim_region(const struct region *region, unsigned long *reclaimed)
{
	LIST_HEAD(isolated);
	unsigned long pages;

	pagelab_count(LINEAR_PAGES_ISOLATED, isolate_region(region, &isolated));
	pages = kernel_reclaim_pages(&isolated);
	pagelab_count(LINEAR_PAGES_RECLAIMED, pages);
	*reclaimed += pages;
	/* Freed pages are on per-CPU lists, and do not merge there. */
	kernel_drain_all_pages(region->zone);
	return is_one_block(region);
}

static enum region_result try_region(const struct region *region, unsigned long *reclaimed)
{
	struct page *first = pfn_to_online_page(region->start);
	struct page *last = pfn_to_online_page(region_end(region) - 1);
	bool is_emptied;

	pagelab_count(LINEAR_REGIONS_SCANNED, 1);
	if (!first || !last || page_zone(first) != region->zone || page_zone(last) != region->zone)
		return REGION_SKIPPED;
	if (!is_worth_trying(region))
		return REGION_SKIPPED;
	pagelab_count(LINEAR_REGIONS_TRIED, 1);
	is_emptied = reclaim_region(region, reclaimed);
	/* Pages that went to swap are freed by the second pass only. */
	if (!is_emptied && wait_for_writeback(region)) {
		kernel_lru_add_drain_all();
		is_emptied = is_worth_trying(region) && reclaim_region(region, reclaimed);
	}
	pagelab_count(LINEAR_REGIONS_EMPTIED, is_emptied);
	return is_emptied ? REGION_EMPTIED : REGION_KEPT;
}

/* The next region of a zone; behind the last comes the first again. Two scans never get the same. */
static unsigned long claim_region(struct zone *zone, unsigned long start, unsigned long end,
				  unsigned int order)
{
	unsigned long *cursor = &cursors[zone_to_nid(zone) * MAX_NR_ZONES + zone_idx(zone)];
	unsigned long pfn;

	spin_lock(&cursor_lock);
	pfn = ALIGN(*cursor, 1UL << order);
	if (pfn < start || pfn >= end)
		pfn = start;
	*cursor = pfn + (1UL << order);
	spin_unlock(&cursor_lock);
	return pfn;
}

static bool scan_zone(struct zone *zone, unsigned int order, unsigned long *reclaimed)
{
	unsigned long start = ALIGN(zone->zone_start_pfn, 1UL << order);
	unsigned long end = ALIGN_DOWN(zone_end_pfn(zone), 1UL << order);
	unsigned long share = min(READ_ONCE(linear_share), 100U);
	unsigned int tries = READ_ONCE(linear_tries);
	unsigned long left;

	if (start >= end)
		return false;
	for (left = max(((end - start) >> order) * share / 100, 1UL); left; left--) {
		struct region region = {
			.zone = zone,
			.start = claim_region(zone, start, end, order),
			.order = order,
		};

		switch (try_region(&region, reclaimed)) {
		case REGION_EMPTIED:
			return true;
		case REGION_KEPT:
			if (tries <= 1)
				return false;
			tries--;
			break;
		case REGION_SKIPPED:
			break;
		}
		if (fatal_signal_pending(current))
			return false;
		cond_resched();
	}
	return false;
}

/* Whether a request for a zone like @highest_zoneidx may ever get a block of this zone. */
static bool can_serve(struct zone *zone, unsigned int order, int highest_zoneidx)
{
	unsigned long kept = zone->lowmem_reserve[highest_zoneidx] + min_wmark_pages(zone);

	return zone_managed_pages(zone) > kept + (1UL << order);
}

/* The zones of the request. for_each_zone_zonelist_nodemask() needs a symbol that is not exported. */
static bool scan_zonelist(struct zonelist *zonelist, unsigned int order, gfp_t gfp_mask,
			  nodemask_t *nodemask, unsigned long *reclaimed)
{
	int highest_zoneidx = gfp_zone(gfp_mask);
	u64 start_ns = ktime_get_ns();
	bool is_emptied = false;
	struct zoneref *ref;

	pagelab_count(LINEAR_REQUESTS, 1);
	/* A folio that is about to be put on an LRU list, or moved in it, is in the way. */
	kernel_lru_add_drain_all();
	for (ref = zonelist->_zonerefs; zonelist_zone(ref) && !is_emptied; ref++) {
		struct zone *zone = zonelist_zone(ref);

		if (zonelist_zone_idx(ref) > highest_zoneidx || !populated_zone(zone))
			continue;
		if (nodemask && !node_isset(zonelist_node_idx(ref), *nodemask))
			continue;
		if (can_serve(zone, order, highest_zoneidx))
			is_emptied = scan_zone(zone, order, reclaimed);
	}
	pagelab_count(LINEAR_NS, ktime_get_ns() - start_ns);
	return is_emptied;
}

/* reclaim_pages() enters file systems and starts IO whatever the request allows. */
static bool may_scan(int order, gfp_t gfp_mask)
{
	gfp_t needed = __GFP_IO | __GFP_FS;

	return order >= LINEAR_ORDER_MIN && (current_gfp_context(gfp_mask) & needed) == needed;
}

static unsigned long linear_try_to_free_pages(struct zonelist *zonelist, int order, gfp_t gfp_mask,
					      nodemask_t *nodemask)
{
	unsigned long (*original)(struct zonelist *zonelist, int order, gfp_t gfp_mask,
				  nodemask_t *nodemask) = hook.original;
	unsigned long reclaimed = 0;

	pagelab_hook_enter(&hook);
	if (may_scan(order, gfp_mask) && scan_zonelist(zonelist, order, gfp_mask, nodemask, &reclaimed))
		/* "No progress" would keep the caller from looking at the free lists. */
		reclaimed = max(reclaimed, 1UL);
	else
		reclaimed += original(zonelist, order, gfp_mask, nodemask);
	pagelab_hook_leave(&hook);
	return reclaimed;
}

/* Asks for a page that is on no LRU list, so the answer means "not isolated". */
static const char *probe_isolate(void)
{
	struct page *page = alloc_page(GFP_KERNEL);

	if (!page)
		return "no memory";
	isolated_means_true = !kernel_folio_isolate_lru(page_folio(page));
	__free_page(page);
	return NULL;
}

/**
 * pagelab_linear_init() - find what the state "linear" needs
 *
 * Return: NULL, or why this kernel cannot have it.
 */
const char *pagelab_linear_init(void)
{
	const char *missing = pagelab_find_symbols(symbols, ARRAY_SIZE(symbols));

	if (!missing)
		missing = probe_isolate();
	if (missing)
		return missing;
	cursors = kcalloc(nr_node_ids * MAX_NR_ZONES, sizeof(*cursors), GFP_KERNEL);
	if (!cursors)
		return "no memory";
	missing = pagelab_hook_init(&hook);
	if (missing)
		kfree(cursors);
	return missing;
}

/**
 * pagelab_linear_install() - let direct reclaim scan first
 *
 * Return: 0 or a negative error number, as pagelab_hook_install().
 */
int pagelab_linear_install(void)
{
	return pagelab_hook_install(&hook);
}

/**
 * pagelab_linear_remove() - undo pagelab_linear_install(), and wait for scans that run
 */
void pagelab_linear_remove(void)
{
	pagelab_hook_remove(&hook);
}

/**
 * pagelab_linear_exit() - undo pagelab_linear_init()
 */
void pagelab_linear_exit(void)
{
	pagelab_hook_exit(&hook);
	kfree(cursors);
}
