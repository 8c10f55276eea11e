// SPDX-License-Identifier: GPL-2.0-only
/*
 * Feature "reclaim": which pages reclaim takes.
 *
 * "unreferenced": reclaim does not ask page tables whether a page was used. folio_check_references()
 * (mm/vmscan.c), inlined in its caller, asks folio_referenced() (mm/rmap.c) with is_locked = 1, and every
 * positive answer becomes 0. Ageing, which moves pages from the active to the inactive lists, asks with
 * is_locked = 0 and gets the kernel's answer. Negative answers stay: they say that no answer was possible.
 * The call is made all the same: it clears the accessed bits, and tells of VM_LOCKED.
 *
 * With MGLRU, ageing reads page tables on its own and gives pages a generation. So it has to be off.
 *
 * "linear": see linear.c.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jump_label.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/printk.h>

#include "pagelab.h"

enum { RECLAIM_STOCK, RECLAIM_UNREFERENCED, RECLAIM_LINEAR };

static struct pagelab_state states[] = {
	[RECLAIM_STOCK] = { "stock" },
	[RECLAIM_UNREFERENCED] = { "unreferenced" },
	[RECLAIM_LINEAR] = { "linear" },
};

static int forget_references(struct folio *folio, int is_locked, struct mem_cgroup *memcg,
			     unsigned long *vm_flags);

static struct pagelab_hook referenced_hook = PAGELAB_HOOK("folio_referenced", forget_references);

#ifdef CONFIG_LRU_GEN
/* An array of keys; the first is that of MGLRU as a whole. lru_gen_enabled() would need it exported. */
static struct static_key *lru_gen_keys;

static const struct pagelab_symbol lru_gen_symbols[] = { PAGELAB_SYMBOL("lru_gen_caps", lru_gen_keys) };
#endif

/* Under the lock of the control file. */
static int current_state;

static int forget_references(struct folio *folio, int is_locked, struct mem_cgroup *memcg,
			     unsigned long *vm_flags)
{
	int (*original)(struct folio *folio, int is_locked, struct mem_cgroup *memcg,
			unsigned long *vm_flags) = referenced_hook.original;
	int referenced;

	pagelab_hook_enter(&referenced_hook);
	referenced = original(folio, is_locked, memcg, vm_flags);
	if (is_locked && referenced > 0) {
		referenced = 0;
		pagelab_count(REFERENCES_IGNORED, 1);
	}
	pagelab_hook_leave(&referenced_hook);
	return referenced;
}

static const char *unreferenced_init(void)
{
#ifdef CONFIG_LRU_GEN
	const char *missing = pagelab_find_symbols(lru_gen_symbols, ARRAY_SIZE(lru_gen_symbols));

	if (missing)
		return missing;
#endif
	return pagelab_hook_init(&referenced_hook);
}

static bool is_mglru_on(void)
{
#ifdef CONFIG_LRU_GEN
	BUILD_BUG_ON(LRU_GEN_CORE != 0);
	return static_key_enabled(lru_gen_keys);
#else
	return false;
#endif
}

static int unreferenced_install(void)
{
	if (is_mglru_on()) {
		pr_info("reclaim unreferenced needs MGLRU off: write 0 to /sys/kernel/mm/lru_gen/enabled\n");
		return -EBUSY;
	}
	return pagelab_hook_install(&referenced_hook);
}

static void reclaim_init(struct pagelab_feature *feature)
{
	const char *unreferenced = unreferenced_init();
	const char *linear = pagelab_linear_init();

	states[RECLAIM_UNREFERENCED].missing = unreferenced;
	states[RECLAIM_LINEAR].missing = linear;
	if (unreferenced && linear)
		feature->missing = unreferenced;
}

static int reclaim_state(void)
{
	return READ_ONCE(current_state);
}

/* Through "stock": if the new state fails, that is what is left. */
static int reclaim_set(int state)
{
	int error = 0;

	if (state == current_state)
		return 0;
	if (current_state == RECLAIM_UNREFERENCED)
		pagelab_hook_remove(&referenced_hook);
	if (current_state == RECLAIM_LINEAR)
		pagelab_linear_remove();
	WRITE_ONCE(current_state, RECLAIM_STOCK);
	if (state == RECLAIM_UNREFERENCED)
		error = unreferenced_install();
	if (state == RECLAIM_LINEAR)
		error = pagelab_linear_install();
	if (error)
		return error;
	WRITE_ONCE(current_state, state);
	pr_info("reclaim %s\n", states[state].name);
	return 0;
}

static void reclaim_exit(struct pagelab_feature *feature)
{
	reclaim_set(RECLAIM_STOCK);
	if (!states[RECLAIM_UNREFERENCED].missing)
		pagelab_hook_exit(&referenced_hook);
	if (!states[RECLAIM_LINEAR].missing)
		pagelab_linear_exit();
}

struct pagelab_feature pagelab_reclaim = {
	.name = "reclaim",
	.states = states,
	.state_count = ARRAY_SIZE(states),
	.init = reclaim_init,
	.exit = reclaim_exit,
	.state = reclaim_state,
	.set = reclaim_set,
};
