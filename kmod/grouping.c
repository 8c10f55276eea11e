// SPDX-License-Identifier: GPL-2.0-only
/*
 * Feature "grouping": grouping of pages by mobility, off on a running kernel.
 *
 * page_group_by_mobility_disabled (mm/page_alloc.c) makes every request an unmovable one. On a kernel that
 * has run with grouping this is not enough: pageblocks keep their types, and free pages are on the list
 * of the type of their block. So each zone is converted: under zone->lock, every pageblock that is
 * movable or reclaimable becomes unmovable, and the free lists of both types are spliced to the list of
 * unmovable pages. Both happen under one hold of the lock, so the allocator never sees a list that does
 * not fit the type of its blocks, not even for a free page of two pageblocks. Highatomic, CMA and isolated
 * pageblocks keep their type and their lists, as they do on a kernel that boots without grouping.
 *
 * move_freepages_block() is not used: it is static since 6.10 and has other arguments there, and it does
 * nothing for a pageblock across the boundary of a zone. No counter changes: the kernel counts free pages
 * by type for CMA, isolated and highatomic pageblocks alone (account_freepages(), 6.10).
 *
 * The order of each free list stays, and that of the result is: unmovable, movable, reclaimable.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/list.h>
#include <linux/memory.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/notifier.h>
#include <linux/pageblock-flags.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/timekeeping.h>

#include "pagelab.h"

/*
 * A page that is freed while its pageblock is converted may reach the list of the old type through the
 * per-CPU lists (6.1 stores the type when it is freed). The next pass takes it. More passes than a few
 * are needed only if memory comes online at the same time.
 */
#define PASSES_MAX 8

enum { GROUPING_ON, GROUPING_OFF };

static struct pagelab_state states[] = {
	[GROUPING_ON] = { "on" },
	[GROUPING_OFF] = { "off" },
};

struct conversion {
	unsigned long changed;
	unsigned long kept;
	u64 lock_ns_max;
};

static int *group_by_mobility_disabled;
static void (*drain_zone)(struct zone *zone);
static void (*set_migratetype)(struct page *page, int migratetype);
static unsigned long (*get_flags_mask)(const struct page *page, unsigned long pfn, unsigned long mask);
static void (*lock_hotplug)(void);
static void (*unlock_hotplug)(void);

/* Protects both below. Taken inside of the lock of memory hotplug, never outside of it. */
static DEFINE_MUTEX(grouping_lock);
static bool is_switched_off;
static int disabled_at_load;

static const struct pagelab_symbol symbols[] = {
	PAGELAB_SYMBOL("page_group_by_mobility_disabled", group_by_mobility_disabled),
	PAGELAB_SYMBOL("drain_all_pages", drain_zone),
	PAGELAB_SYMBOL("set_pageblock_migratetype", set_migratetype),
	PAGELAB_SYMBOL("get_pfnblock_flags_mask", get_flags_mask),
#ifdef CONFIG_MEMORY_HOTPLUG
	PAGELAB_SYMBOL("get_online_mems", lock_hotplug),
	PAGELAB_SYMBOL("put_online_mems", unlock_hotplug),
#endif
};

/* The zones with memory. for_each_populated_zone() needs symbols that are not exported. */
static struct zone *next_zone_with_memory(struct zone *zone)
{
	int nid = zone ? zone_to_nid(zone) : first_online_node;
	int index = zone ? zone_idx(zone) + 1 : 0;

	while (nid < MAX_NUMNODES) {
		for (; index < MAX_NR_ZONES; index++) {
			zone = NODE_DATA(nid)->node_zones + index;
			if (populated_zone(zone))
				return zone;
		}
		nid = next_online_node(nid);
		index = 0;
	}
	return NULL;
}

/* The types that the kernel groups by, but the first. The others have a purpose beside mobility. */
static bool is_grouped(int migratetype)
{
	return migratetype > MIGRATE_UNMOVABLE && migratetype < MIGRATE_PCPTYPES;
}

/* Under zone->lock. The blocks are those that /proc/pagetypeinfo counts. */
static void convert_pageblocks(struct zone *zone, struct conversion *done)
{
	unsigned long end_pfn = zone_end_pfn(zone);
	unsigned long pfn;

	for (pfn = zone->zone_start_pfn; pfn < end_pfn; pfn = pageblock_end_pfn(pfn)) {
		struct page *page = pfn_to_online_page(pfn);
		int migratetype;

		if (!page || page_zone(page) != zone)
			continue;
		migratetype = get_flags_mask(page, pfn, MIGRATETYPE_MASK);
		if (is_grouped(migratetype)) {
			set_migratetype(page, MIGRATE_UNMOVABLE);
			done->changed++;
		} else if (migratetype != MIGRATE_UNMOVABLE) {
			done->kept++;
		}
	}
}

static void convert_zone(struct zone *zone, struct conversion *done)
{
	unsigned long flags;
	u64 start_ns;
	int order, migratetype;

	spin_lock_irqsave(&zone->lock, flags);
	start_ns = ktime_get_ns();
	convert_pageblocks(zone, done);
	for (order = 0; order < ARRAY_SIZE(zone->free_area); order++) {
		struct list_head *lists = zone->free_area[order].free_list;

		for (migratetype = MIGRATE_UNMOVABLE + 1; migratetype < MIGRATE_PCPTYPES; migratetype++)
			list_splice_tail_init(&lists[migratetype], &lists[MIGRATE_UNMOVABLE]);
	}
	done->lock_ns_max = max(done->lock_ns_max, ktime_get_ns() - start_ns);
	spin_unlock_irqrestore(&zone->lock, flags);
}

/* Whether a free page is on the list of a type that is not in use any more. */
static bool has_grouped_pages(struct zone *zone)
{
	unsigned long flags;
	bool found = false;
	int order, migratetype;

	spin_lock_irqsave(&zone->lock, flags);
	for (order = 0; order < ARRAY_SIZE(zone->free_area); order++) {
		for (migratetype = MIGRATE_UNMOVABLE + 1; migratetype < MIGRATE_PCPTYPES; migratetype++)
			found |= !list_empty(&zone->free_area[order].free_list[migratetype]);
	}
	spin_unlock_irqrestore(&zone->lock, flags);
	return found;
}

/*
 * Switches grouping off and converts all zones. The caller holds the lock of memory hotplug in either way,
 * and grouping_lock.
 */
static void disable_grouping(void)
{
	struct conversion done = {};
	bool is_done = false;
	int pass;

	/* First: pages that are freed and blocks that are taken from now on are of the type that is left. */
	WRITE_ONCE(*group_by_mobility_disabled, 1);
	for (pass = 0; pass < PASSES_MAX && !is_done; pass++) {
		struct zone *zone = NULL;

		done.kept = 0;
		while ((zone = next_zone_with_memory(zone))) {
			drain_zone(zone);
			convert_zone(zone, &done);
			cond_resched();
		}
		is_done = true;
		while ((zone = next_zone_with_memory(zone))) {
			drain_zone(zone);
			is_done &= !has_grouped_pages(zone);
			cond_resched();
		}
	}
	pr_info("grouping off: %lu pageblocks changed, %lu have another type, %d passes, lock held %llu us%s\n",
		done.changed, done.kept, pass, done.lock_ns_max / NSEC_PER_USEC,
		is_done ? "" : ", free pages are left on other lists");
}

static void lock_grouping(void)
{
	if (lock_hotplug)
		lock_hotplug();
	mutex_lock(&grouping_lock);
}

static void unlock_grouping(void)
{
	mutex_unlock(&grouping_lock);
	if (unlock_hotplug)
		unlock_hotplug();
}

/*
 * Memory that comes online: its free pages go to the list of movable pages whatever the flag says
 * (online_pages(), undo_isolate_page_range()), and the flag is computed anew if a zone is new
 * (build_all_zonelists()). The caller holds the lock of memory hotplug for writing.
 */
static int on_memory_event(struct notifier_block *block, unsigned long event, void *arg)
{
	if (event != MEM_ONLINE)
		return NOTIFY_OK;
	mutex_lock(&grouping_lock);
	if (is_switched_off)
		disable_grouping();
	mutex_unlock(&grouping_lock);
	return NOTIFY_OK;
}

static struct notifier_block memory_notifier = { .notifier_call = on_memory_event };

static void grouping_init(struct pagelab_feature *feature)
{
	feature->missing = pagelab_find_symbols(symbols, ARRAY_SIZE(symbols));
	if (feature->missing)
		return;
	disabled_at_load = READ_ONCE(*group_by_mobility_disabled);
	if (register_memory_notifier(&memory_notifier))
		feature->missing = "memory that comes online cannot be watched";
}

/*
 * Clears the flag. Pageblocks stay unmovable until the allocator itself takes them for movable or
 * reclaimable pages: a request takes the largest free block of another type, and a whole free pageblock
 * changes its type then (__rmqueue_fallback()). What was mixed is not unmixed.
 */
static int grouping_set(int state)
{
	bool on = state == GROUPING_ON;

	lock_grouping();
	is_switched_off = !on;
	if (on)
		WRITE_ONCE(*group_by_mobility_disabled, 0);
	else
		disable_grouping();
	unlock_grouping();
	return 0;
}

static int grouping_state(void)
{
	return READ_ONCE(*group_by_mobility_disabled) ? GROUPING_OFF : GROUPING_ON;
}

static void grouping_exit(struct pagelab_feature *feature)
{
	/* Only the notifier may still run in the module, and not after this. */
	unregister_memory_notifier(&memory_notifier);
	if (is_switched_off)
		WRITE_ONCE(*group_by_mobility_disabled, disabled_at_load);
}

struct pagelab_feature pagelab_grouping = {
	.name = "grouping",
	.states = states,
	.state_count = ARRAY_SIZE(states),
	.init = grouping_init,
	.exit = grouping_exit,
	.state = grouping_state,
	.set = grouping_set,
};
