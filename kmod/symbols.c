// SPDX-License-Identifier: GPL-2.0-only
/*
 * Symbols that the kernel does not export.
 *
 * kallsyms_lookup_name() is not exported since 5.7. A kprobe on it, registered and removed at once, has
 * its address (kernel/kprobes.c). Data symbols are found only with CONFIG_KALLSYMS_ALL.
 */
#include <linux/kprobes.h>
#include <linux/moduleparam.h>
#include <linux/string.h>

#include "pagelab.h"

typedef unsigned long (*lookup_name_t)(const char *name);

static char *without = "";
module_param(without, charp, 0444);
MODULE_PARM_DESC(without, "Symbols to regard as absent, separated by commas, for tests");

static lookup_name_t find_lookup_name(void)
{
	/* Found once: features are initialised one after the other. */
	static lookup_name_t lookup_name;
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };

	if (lookup_name)
		return lookup_name;
	if (register_kprobe(&probe))
		return NULL;
	lookup_name = (lookup_name_t)probe.addr;
	unregister_kprobe(&probe);
	return lookup_name;
}

static bool is_withheld(const char *name)
{
	const char *rest = without;
	size_t length = strlen(name);

	while (*rest) {
		size_t word = strcspn(rest, ",");

		if (word == length && !strncmp(rest, name, length))
			return true;
		rest += word;
		rest += strspn(rest, ",");
	}
	return false;
}

/**
 * pagelab_find_symbols() - find the addresses of symbols
 * @symbols: the symbols
 * @count: how many they are
 *
 * Return: NULL if all were found, else why not.
 */
const char *pagelab_find_symbols(const struct pagelab_symbol *symbols, int count)
{
	lookup_name_t lookup_name = find_lookup_name();
	int i;

	if (!lookup_name)
		return "no kprobe finds kallsyms_lookup_name (CONFIG_KPROBES, CONFIG_KALLSYMS)";
	for (i = 0; i < count; i++) {
		void *address = NULL;

		if (!is_withheld(symbols[i].name))
			address = (void *)lookup_name(symbols[i].name);
		*symbols[i].address = address;
		if (!address)
			return symbols[i].missing;
	}
	return NULL;
}
