// SPDX-License-Identifier: GPL-2.0-only
/*
 * Feature "direct_compaction": compaction on behalf of requests, and by kcompactd, off.
 *
 * Direct compaction: __alloc_pages_direct_compact() (mm/page_alloc.c) returns no page and the result
 * COMPACT_COMPLETE, "the whole zone was compacted without success". With COMPACT_SKIPPED, "too little free
 * memory", __GFP_RETRY_MAYFAIL requests reclaim and try again as long as reclaim makes progress
 * (should_compact_retry()), so a write to nr_hugepages would never end. try_to_compact_pages() would do as
 * well, but its caller counts compact_stall and compact_fail for each call.
 *
 * kcompactd: its wakeups are dropped, and proactive compaction is off by its own switch,
 * vm.compaction_proactiveness. Compaction that is requested by name continues: vm.compact_memory, the
 * files of nodes in sysfs, alloc_contig_range().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/mmzone.h>
#include <linux/nodemask.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/wait.h>
/* Needs the ones above. */
#include <linux/compaction.h>

#include "pagelab.h"

enum { COMPACTION_ON, COMPACTION_OFF };

static struct pagelab_state states[] = {
	[COMPACTION_ON] = { "on" },
	[COMPACTION_OFF] = { "off" },
};

#ifdef CONFIG_COMPACTION

/* A pass of kcompactd over a node takes far less. */
#define KCOMPACTD_TIMEOUT (30 * HZ)

struct alloc_context;

static struct page *refuse_direct_compact(gfp_t gfp_mask, unsigned int order, unsigned int alloc_flags,
					  const struct alloc_context *context,
					  enum compact_priority priority, enum compact_result *result);
static void refuse_wakeup(pg_data_t *pgdat, int order, int highest_zoneidx);

static struct pagelab_hook direct_hook =
	PAGELAB_HOOK("__alloc_pages_direct_compact", refuse_direct_compact);
static struct pagelab_hook wakeup_hook = PAGELAB_HOOK("wakeup_kcompactd", refuse_wakeup);

static unsigned int *proactiveness;
static void (*lock_hotplug)(void);
static void (*unlock_hotplug)(void);

static const struct pagelab_symbol symbols[] = {
	PAGELAB_SYMBOL("sysctl_compaction_proactiveness", proactiveness),
#ifdef CONFIG_MEMORY_HOTPLUG
	PAGELAB_SYMBOL("get_online_mems", lock_hotplug),
	PAGELAB_SYMBOL("put_online_mems", unlock_hotplug),
#endif
};

/* Under the lock of the control file. */
static unsigned int proactiveness_before;

static struct page *refuse_direct_compact(gfp_t gfp_mask, unsigned int order, unsigned int alloc_flags,
					  const struct alloc_context *context,
					  enum compact_priority priority, enum compact_result *result)
{
	pagelab_hook_enter(&direct_hook);
	/* The kernel's function leaves *result alone for order 0, too. */
	if (order) {
		pagelab_count(COMPACTIONS_REFUSED, 1);
		*result = COMPACT_COMPLETE;
	}
	pagelab_hook_leave(&direct_hook);
	return NULL;
}

static void refuse_wakeup(pg_data_t *pgdat, int order, int highest_zoneidx)
{
	pagelab_hook_enter(&wakeup_hook);
	if (order)
		pagelab_count(KCOMPACTD_REFUSED, 1);
	pagelab_hook_leave(&wakeup_hook);
}

/* Whether kcompactd waits in its own loop: compaction does not sleep interruptibly. */
static bool is_idle(const struct task_struct *kcompactd)
{
	return !kcompactd || READ_ONCE(kcompactd->__state) & TASK_INTERRUPTIBLE;
}

/*
 * No node goes away with its kcompactd meanwhile. Not held while hooks change: ftrace takes the lock of CPU
 * hotplug, which comes before this one.
 */
static void lock_nodes(void)
{
	if (lock_hotplug)
		lock_hotplug();
}

static void unlock_nodes(void)
{
	if (unlock_hotplug)
		unlock_hotplug();
}

/* Under lock_nodes(), with wakeups dropped: forgets what was requested, and waits for what has begun. */
static int stop_kcompactd(void)
{
	unsigned long end = jiffies + KCOMPACTD_TIMEOUT;
	int nid;

	for_each_online_node(nid) {
		pg_data_t *pgdat = NODE_DATA(nid);

		WRITE_ONCE(pgdat->kcompactd_max_order, 0);
		while (!is_idle(pgdat->kcompactd)) {
			if (fatal_signal_pending(current))
				return -EINTR;
			if (time_after(jiffies, end))
				return -EBUSY;
			schedule_timeout_killable(1);
		}
	}
	return 0;
}

/* As a write to vm.compaction_proactiveness does: kcompactd may sleep without a timeout. */
static void restart_proactive(void)
{
	int nid;

	if (READ_ONCE(*proactiveness) || !proactiveness_before)
		return;
	WRITE_ONCE(*proactiveness, proactiveness_before);
	lock_nodes();
	for_each_online_node(nid) {
		pg_data_t *pgdat = NODE_DATA(nid);

		WRITE_ONCE(pgdat->proactive_compact_trigger, true);
		wake_up_interruptible(&pgdat->kcompactd_wait);
	}
	unlock_nodes();
}

static void switch_on(void)
{
	pagelab_hook_remove(&direct_hook);
	pagelab_hook_remove(&wakeup_hook);
	restart_proactive();
}

static int switch_off(void)
{
	int error = pagelab_hook_install(&direct_hook);

	if (error)
		return error;
	error = pagelab_hook_install(&wakeup_hook);
	if (error) {
		pagelab_hook_remove(&direct_hook);
		return error;
	}
	proactiveness_before = READ_ONCE(*proactiveness);
	WRITE_ONCE(*proactiveness, 0);
	lock_nodes();
	error = stop_kcompactd();
	unlock_nodes();
	if (error)
		switch_on();
	return error;
}

static int compaction_state(void)
{
	return direct_hook.is_installed ? COMPACTION_OFF : COMPACTION_ON;
}

static int compaction_set(int state)
{
	int error = 0;

	if (state == compaction_state())
		return 0;
	if (state == COMPACTION_OFF)
		error = switch_off();
	else
		switch_on();
	if (!error)
		pr_info("direct_compaction %s\n", states[state].name);
	return error;
}

static void compaction_init(struct pagelab_feature *feature)
{
	feature->missing = pagelab_find_symbols(symbols, ARRAY_SIZE(symbols));
	if (feature->missing)
		return;
	feature->missing = pagelab_hook_init(&direct_hook);
	if (feature->missing)
		return;
	feature->missing = pagelab_hook_init(&wakeup_hook);
	if (feature->missing)
		pagelab_hook_exit(&direct_hook);
}

static void compaction_exit(struct pagelab_feature *feature)
{
	compaction_set(COMPACTION_ON);
	pagelab_hook_exit(&direct_hook);
	pagelab_hook_exit(&wakeup_hook);
}

#else

static void compaction_init(struct pagelab_feature *feature)
{
	feature->missing = "this kernel has no compaction (CONFIG_COMPACTION)";
}

static void compaction_exit(struct pagelab_feature *feature)
{
}

static int compaction_state(void)
{
	return COMPACTION_ON;
}

static int compaction_set(int state)
{
	return -EOPNOTSUPP;
}

#endif

struct pagelab_feature pagelab_direct_compaction = {
	.name = "direct_compaction",
	.states = states,
	.state_count = ARRAY_SIZE(states),
	.init = compaction_init,
	.exit = compaction_exit,
	.state = compaction_state,
	.set = compaction_set,
};
