/* SPDX-License-Identifier: GPL-2.0-only */
/* Features of the module, and the symbols that they need. */
#ifndef PAGELAB_H
#define PAGELAB_H

#include <linux/types.h>

/**
 * struct pagelab_feature - one line of the control file
 * @name: its first word
 * @missing: why this kernel cannot have the feature, or NULL; set by @init
 * @init: finds what the feature needs, and changes nothing
 * @exit: undoes what @set has done, as far as it can be undone
 * @is_on: what the kernel does now
 * @set: switches the feature, may sleep, and returns 0 or a negative error number
 *
 * "on" is always the behaviour of the kernel without the module.
 */
struct pagelab_feature {
	const char *name;
	const char *missing;
	void (*init)(struct pagelab_feature *feature);
	void (*exit)(struct pagelab_feature *feature);
	bool (*is_on)(void);
	int (*set)(bool on);
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

/* Finds all of the symbols. Returns why not, or NULL. */
const char *pagelab_find_symbols(const struct pagelab_symbol *symbols, int count);

extern struct pagelab_feature pagelab_grouping;

#endif
