/* SPDX-License-Identifier: GPL-2.0-only */
/* Features of the module, and what they need: symbols, hooks, counters. */
#ifndef PAGELAB_H
#define PAGELAB_H

#include <linux/atomic.h>
#include <linux/ftrace.h>
#include <linux/types.h>

/**
 * struct pagelab_state - a state of a feature
 * @name: the second word of its line
 * @missing: why this kernel cannot have the state, or NULL; set by the init of the feature
 */
struct pagelab_state {
	const char *name;
	const char *missing;
};

/**
 * struct pagelab_feature - one line of the control file
 * @name: its first word
 * @missing: why this kernel cannot have the feature, or NULL; set by @init
 * @states: what it can be in; the first is the behaviour of the kernel without the module
 * @state_count: number of @states
 * @init: finds what the feature needs, and changes nothing
 * @exit: undoes what @set has done, as far as it can be undone
 * @state: index of what the kernel does now
 * @set: switches the feature, may sleep, and returns 0 or a negative error number when that is in effect
 */
struct pagelab_feature {
	const char *name;
	const char *missing;
	struct pagelab_state *states;
	int state_count;
	void (*init)(struct pagelab_feature *feature);
	void (*exit)(struct pagelab_feature *feature);
	int (*state)(void);
	int (*set)(int state);
};

/**
 * struct pagelab_symbol - a symbol of the kernel that is not exported to modules
 * @name: its name
 * @address: where its address goes
 * @missing: what the control file says where the kernel does not have it
 */
struct pagelab_symbol {
	const char *name;
	void **address;
	const char *missing;
};

#define PAGELAB_SYMBOL(kernel_name, variable) \
	{ kernel_name, (void **)&(variable), "this kernel has no symbol " kernel_name }

const char *pagelab_find_symbols(const struct pagelab_symbol *symbols, int count);

/**
 * struct pagelab_hook - a function of the kernel in whose place one of the module is called
 * @name: the kernel's function
 * @missing: what the control file says where the kernel does not have it
 * @unpatchable: the same for a function that ftrace cannot patch
 * @replacement: the function of the module, with the same arguments
 * @original: the kernel's function; calls of it from inside the module reach it
 * @running: calls of @replacement that are between pagelab_hook_enter() and pagelab_hook_leave()
 * @is_installed: whether @replacement is called
 * @ops: what ftrace knows of it
 */
struct pagelab_hook {
	const char *name;
	const char *missing;
	const char *unpatchable;
	void *replacement;
	void *original;
	atomic_t running;
	bool is_installed;
#ifdef CONFIG_FUNCTION_TRACER
	struct ftrace_ops ops;
#endif
};

#define PAGELAB_HOOK(kernel_name, function) {					\
	.name = kernel_name,							\
	.missing = "this kernel has no symbol " kernel_name,			\
	.unpatchable = "ftrace cannot patch " kernel_name " in this kernel",	\
	.replacement = function,						\
}

const char *pagelab_hook_init(struct pagelab_hook *hook);
int pagelab_hook_install(struct pagelab_hook *hook);
void pagelab_hook_remove(struct pagelab_hook *hook);
void pagelab_hook_exit(struct pagelab_hook *hook);
void pagelab_hook_leave(struct pagelab_hook *hook);

/**
 * pagelab_hook_enter() - first statement of a replacement
 * @hook: its hook
 */
static inline void pagelab_hook_enter(struct pagelab_hook *hook)
{
	atomic_inc(&hook->running);
}

/**
 * enum pagelab_counter - lines of the counters file, in this order
 * @REFERENCES_IGNORED: positive answers of folio_referenced() to reclaim that became 0
 * @COMPACTIONS_REFUSED: direct compactions that returned without compacting
 * @KCOMPACTD_REFUSED: wakeups of kcompactd that were dropped
 * @LINEAR_REQUESTS: direct reclaims that began with a linear scan
 * @LINEAR_REGIONS_SCANNED: regions that were scanned
 * @LINEAR_REGIONS_TRIED: of these, regions whose pages were all free or reclaimable, not all free
 * @LINEAR_REGIONS_EMPTIED: of these, regions that were one free block afterwards
 * @LINEAR_PAGES_ISOLATED: pages that were taken from LRU lists
 * @LINEAR_PAGES_RECLAIMED: of these, pages that were freed
 * @LINEAR_NS: time of all scans, in nanoseconds
 * @PAGELAB_COUNTERS: number of counters
 */
enum pagelab_counter {
	REFERENCES_IGNORED,
	COMPACTIONS_REFUSED,
	KCOMPACTD_REFUSED,
	LINEAR_REQUESTS,
	LINEAR_REGIONS_SCANNED,
	LINEAR_REGIONS_TRIED,
	LINEAR_REGIONS_EMPTIED,
	LINEAR_PAGES_ISOLATED,
	LINEAR_PAGES_RECLAIMED,
	LINEAR_NS,
	PAGELAB_COUNTERS,
};

extern atomic64_t pagelab_counters[PAGELAB_COUNTERS];
extern const struct file_operations pagelab_counters_operations;

static inline void pagelab_count(enum pagelab_counter counter, s64 amount)
{
	atomic64_add(amount, &pagelab_counters[counter]);
}

extern struct pagelab_feature pagelab_grouping;
extern struct pagelab_feature pagelab_direct_compaction;
extern struct pagelab_feature pagelab_reclaim;

const char *pagelab_linear_init(void);
int pagelab_linear_install(void);
void pagelab_linear_remove(void);
void pagelab_linear_exit(void);

extern const struct file_operations pagelab_attempts_operations;
void pagelab_attempts_init(void);
void pagelab_attempts_exit(void);

#endif
