// SPDX-License-Identifier: GPL-2.0-only
/*
 * pagelab.ko: switches of the page allocator that a stock kernel does not have, for disposable guests.
 *
 *	# cat /sys/kernel/debug/pagelab/control
 *	grouping on
 *	direct_compaction on
 *	reclaim stock
 *	# echo grouping off > /sys/kernel/debug/pagelab/control
 *
 * Reading gives one line for each feature, "NAME STATE" or "NAME unavailable: REASON", and a line
 * "NAME/STATE unavailable: REASON" for a state that this kernel cannot have though it has the feature.
 * Writing "NAME STATE" switches the feature, and returns when that is in effect. The first state of each
 * feature is what the kernel does without the module. An unknown line is EINVAL, and what is unavailable
 * EOPNOTSUPP.
 *
 * The module changes a running kernel behind its back. It is made for guests that are thrown away, and for
 * kernels 6.1 and 6.12. It does not ask for the version: a feature whose symbols a kernel lacks is
 * unavailable, and the module loads nevertheless. docs/kmod.md in the sources of pagelab has each hook.
 *
 * The files are in debugfs, not in /proc: it is a debugging interface without any promise to stay, for root
 * alone, and debugfs keeps the module loaded while a file is open.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "pagelab.h"

#define LINE_MAX_BYTES 64

static struct pagelab_feature *const features[] = {
	&pagelab_grouping,
	&pagelab_direct_compaction,
	&pagelab_reclaim,
};

static struct dentry *directory;

/* One feature is switched at a time. */
static DEFINE_MUTEX(control_lock);

static void show_feature(struct seq_file *file, const struct pagelab_feature *feature)
{
	int i;

	if (feature->missing) {
		seq_printf(file, "%s unavailable: %s\n", feature->name, feature->missing);
		return;
	}
	seq_printf(file, "%s %s\n", feature->name, feature->states[feature->state()].name);
	for (i = 0; i < feature->state_count; i++) {
		const struct pagelab_state *state = &feature->states[i];

		if (state->missing)
			seq_printf(file, "%s/%s unavailable: %s\n", feature->name, state->name,
				   state->missing);
	}
}

static int control_show(struct seq_file *file, void *unused)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(features); i++)
		show_feature(file, features[i]);
	return 0;
}

static int control_open(struct inode *inode, struct file *file)
{
	return single_open(file, control_show, NULL);
}

static int set_state(const struct pagelab_feature *feature, const char *name)
{
	int error, i;

	for (i = 0; i < feature->state_count; i++) {
		if (strcmp(name, feature->states[i].name))
			continue;
		if (feature->missing || feature->states[i].missing)
			return -EOPNOTSUPP;
		if (mutex_lock_killable(&control_lock))
			return -EINTR;
		error = feature->set(i);
		mutex_unlock(&control_lock);
		return error;
	}
	return -EINVAL;
}

static int set_feature(const char *name, const char *state)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(features); i++) {
		if (!strcmp(name, features[i]->name))
			return set_state(features[i], state);
	}
	return -EINVAL;
}

static ssize_t control_write(struct file *file, const char __user *from, size_t count, loff_t *offset)
{
	char line[LINE_MAX_BYTES];
	char *name, *state;
	int error;

	if (count >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, from, count))
		return -EFAULT;
	line[count] = '\0';
	state = strim(line);
	/* The rest of the line behind the first blank, or NULL. */
	name = strsep(&state, " ");
	error = state ? set_feature(name, strim(state)) : -EINVAL;
	return error ?: count;
}

static const struct file_operations control_operations = {
	.owner = THIS_MODULE,
	.open = control_open,
	.read = seq_read,
	.write = control_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static void __init log_missing(const struct pagelab_feature *feature)
{
	int i;

	if (feature->missing) {
		pr_info("%s is unavailable: %s\n", feature->name, feature->missing);
		return;
	}
	for (i = 0; i < feature->state_count; i++) {
		const struct pagelab_state *state = &feature->states[i];

		if (state->missing)
			pr_info("%s %s is unavailable: %s\n", feature->name, state->name, state->missing);
	}
}

static int __init pagelab_init(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(features); i++) {
		features[i]->init(features[i]);
		log_missing(features[i]);
	}
	pagelab_attempts_init();
	/* Without debugfs there are no files, and nothing is ever switched. */
	directory = debugfs_create_dir("pagelab", NULL);
	debugfs_create_file("control", 0600, directory, NULL, &control_operations);
	debugfs_create_file("counters", 0400, directory, NULL, &pagelab_counters_operations);
	debugfs_create_file("attempts", 0600, directory, NULL, &pagelab_attempts_operations);
	return 0;
}

static void __exit pagelab_exit(void)
{
	int i;

	/* Waits for readers and writers; no feature is called after that. */
	debugfs_remove(directory);
	for (i = 0; i < ARRAY_SIZE(features); i++) {
		if (!features[i]->missing)
			features[i]->exit(features[i]);
	}
	pagelab_attempts_exit();
	/* A task that has left the last statement of a replacement may be before its return, see hooks.c. */
	synchronize_rcu_tasks();
}

module_init(pagelab_init);
module_exit(pagelab_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Switches of the page allocator for disposable guests of pagelab");
