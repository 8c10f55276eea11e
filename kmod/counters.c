// SPDX-License-Identifier: GPL-2.0-only
/* The counters file: one line "NAME VALUE" for each counter. They grow as long as the module is loaded. */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#include "pagelab.h"

atomic64_t pagelab_counters[PAGELAB_COUNTERS];

static const char *const names[PAGELAB_COUNTERS] = {
	[REFERENCES_IGNORED] = "references_ignored",
	[COMPACTIONS_REFUSED] = "compactions_refused",
	[KCOMPACTD_REFUSED] = "kcompactd_refused",
	[LINEAR_REQUESTS] = "linear_requests",
	[LINEAR_REGIONS_SCANNED] = "linear_regions_scanned",
	[LINEAR_REGIONS_TRIED] = "linear_regions_tried",
	[LINEAR_REGIONS_EMPTIED] = "linear_regions_emptied",
	[LINEAR_PAGES_ISOLATED] = "linear_pages_isolated",
	[LINEAR_PAGES_RECLAIMED] = "linear_pages_reclaimed",
	[LINEAR_NS] = "linear_ns",
};

static int counters_show(struct seq_file *file, void *unused)
{
	int i;

	for (i = 0; i < PAGELAB_COUNTERS; i++)
		seq_printf(file, "%s %lld\n", names[i], (long long)atomic64_read(&pagelab_counters[i]));
	return 0;
}

static int counters_open(struct inode *inode, struct file *file)
{
	return single_open(file, counters_show, NULL);
}

const struct file_operations pagelab_counters_operations = {
	.owner = THIS_MODULE,
	.open = counters_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
};
