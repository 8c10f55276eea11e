// SPDX-License-Identifier: GPL-2.0-only
/*
 * Symbols that the kernel does not export.
 *
 * kallsyms_lookup_name() is not exported since 5.7. A kprobe on it, registered and removed at once, has
 * its address (kernel/kprobes.c). Data symbols are found only with CONFIG_KALLSYMS_ALL.
 */
#include <linux/kprobes.h>

#include "pagelab.h"

typedef unsigned long (*lookup_name_t)(const char *name);

static lookup_name_t find_lookup_name(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	lookup_name_t lookup_name;

	if (register_kprobe(&probe))
		return NULL;
	lookup_name = (lookup_name_t)probe.addr;
	unregister_kprobe(&probe);
	return lookup_name;
}

const char *pagelab_find_symbols(const struct pagelab_symbol *symbols, int count)
{
	lookup_name_t lookup_name = find_lookup_name();
	int i;

	if (!lookup_name)
		return "no kprobe finds kallsyms_lookup_name (CONFIG_KPROBES, CONFIG_KALLSYMS)";
	for (i = 0; i < count; i++) {
		*symbols[i].address = (void *)lookup_name(symbols[i].name);
		if (!*symbols[i].address)
			return symbols[i].missing;
	}
	return NULL;
}
