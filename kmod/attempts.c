// SPDX-License-Identifier: GPL-2.0-only
/*
 * The attempts file: requests to the page allocator, one by one, with what each met.
 *
 *	# echo 9 movable 100 retry > /sys/kernel/debug/pagelab/attempts
 *	# cat /sys/kernel/debug/pagelab/attempts
 *	# echo release > /sys/kernel/debug/pagelab/attempts
 *
 * "ORDER GFP COUNT [retry]" makes COUNT attempts in the context of the writer, and returns when they are
 * done; a fatal signal ends them (EINTR), and what was done is kept. Pages stay held until "release" or
 * until the module is unloaded. "clear" forgets the table, not the pages.
 *
 * Reading gives a line with the names of the columns, a line for each attempt, and "pages_held N". A table
 * without the last line is not whole. Columns:
 *
 *	number		from 0
 *	order, gfp	as written
 *	ok		1 or 0
 *	pfn, zone	of the pages, "-" without
 *	ns		time in alloc_pages()
 *	f_u_before	unusable free space index before, per mille (unusable_free_index(), mm/vmstat.c)
 *	f_i		fragmentation index at failure, per mille, -1000 if a block is free all the same
 *			(__fragmentation_index(), mm/vmstat.c); "-" if ok
 *	free		pages on free lists afterwards
 *	reclaimed	pages reclaimed since the last attempt of the same write, by anyone
 *	scanned		pages scanned for that
 *	retry		1 or 0, as written
 *
 * f_u_before and free are over the zones of the writer's node that such a request may be served from. f_i is
 * over those of them whose free pages are above the watermark of the request: elsewhere it fails for lack of
 * memory, and without such a zone f_i is 0.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/build_bug.h>
#include <linux/debugfs.h>
#include <linux/gfp.h>
#include <linux/kernel.h>
#include <linux/list.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/topology.h>
#include <linux/uaccess.h>
#include <linux/vmstat.h>
#include <linux/xarray.h>

#include "pagelab.h"

#define LINE_MAX_BYTES 64
/* 7 MB of records. */
#define ATTEMPTS_MAX 100000
#define ORDERS ARRAY_SIZE(((struct zone *)NULL)->free_area)

/**
 * struct gfp_word - a name for GFP flags
 * @name: the word
 * @flags: the flags
 * @may_retry: whether "retry" makes a difference
 */
struct gfp_word {
	const char *name;
	gfp_t flags;
	bool may_retry;
};

static const struct gfp_word gfp_words[] = {
	{ "movable", GFP_HIGHUSER_MOVABLE, true },
	{ "reclaimable", GFP_KERNEL | __GFP_RECLAIMABLE, true },
	{ "unmovable", GFP_KERNEL, true },
	{ "kernel", GFP_KERNEL, true },
	{ "atomic", GFP_ATOMIC, false },
};

/**
 * struct request - what a line asks for
 * @word: kind of request
 * @order: of each attempt
 * @count: number of attempts
 * @retry: __GFP_RETRY_MAYFAIL instead of __GFP_NORETRY
 */
struct request {
	const struct gfp_word *word;
	unsigned int order;
	unsigned int count;
	bool retry;
};

/**
 * struct attempt - one line of the table
 * @zone: of the pages, or NULL if there are none
 * @word: kind of request
 * @pfn: of the first page
 * @ns: time in alloc_pages()
 * @free: pages on free lists afterwards
 * @reclaimed: pages reclaimed since the last attempt
 * @scanned: pages scanned since the last attempt
 * @f_u_before: unusable free space index before
 * @f_i: fragmentation index at failure
 * @order: of the request
 * @retry: as in struct request
 */
struct attempt {
	const struct zone *zone;
	const struct gfp_word *word;
	unsigned long pfn;
	u64 ns;
	unsigned long free;
	unsigned long reclaimed;
	unsigned long scanned;
	s16 f_u_before;
	s16 f_i;
	u8 order;
	bool retry;
};

#define ATTEMPTS_PER_PAGE (PAGE_SIZE / sizeof(struct attempt))

/* Protects all below, and the table while it is read. */
static DEFINE_MUTEX(attempts_lock);
/* Pages of ATTEMPTS_PER_PAGE attempts each. */
static DEFINE_XARRAY(table);
static unsigned int attempt_count;
/* Held pages by order, in page->lru of the first. */
static struct list_head held[ORDERS];
static unsigned long pages_held;

/**
 * struct free_blocks - what the free lists of some zones hold (struct contig_page_info, mm/vmstat.c)
 * @pages: free pages
 * @blocks: free blocks
 * @suitable: blocks of the requested order, larger ones counted as several
 */
struct free_blocks {
	unsigned long pages;
	unsigned long blocks;
	unsigned long suitable;
};

/* Whether a request for a single page would be served; ZONE_DMA is kept from most requests, for example. */
static bool is_above_watermark(struct zone *zone, gfp_t flags)
{
	return zone_page_state(zone, NR_FREE_PAGES) >
	       min_wmark_pages(zone) + zone->lowmem_reserve[gfp_zone(flags)];
}

/* Without a lock, as in the kernel: for information only. */
static void count_free_blocks(gfp_t flags, unsigned int suitable_order, bool above_watermark,
			      struct free_blocks *found)
{
	int zone_index, order;

	*found = (struct free_blocks){};
	for (zone_index = 0; zone_index <= gfp_zone(flags); zone_index++) {
		struct zone *zone = NODE_DATA(numa_node_id())->node_zones + zone_index;

		if (above_watermark && !is_above_watermark(zone, flags))
			continue;
		for (order = 0; order < ORDERS; order++) {
			/* Without zone->lock: a number that is old by the time it is read. */
			unsigned long blocks = data_race(zone->free_area[order].nr_free);

			found->blocks += blocks;
			found->pages += blocks << order;
			if (order >= suitable_order)
				found->suitable += blocks << (order - suitable_order);
		}
	}
}

static int unusable_free_index(const struct free_blocks *found, unsigned int order)
{
	u64 unusable;

	if (!found->pages)
		return 1000;
	/* Read at different moments, so the difference may be negative. */
	unusable = found->pages - min(found->suitable << order, found->pages);
	return div64_ul(unusable * 1000, found->pages);
}

static int fragmentation_index_of(const struct free_blocks *found, unsigned int order)
{
	u64 requests;

	if (!found->blocks)
		return 0;
	if (found->suitable)
		return -1000;
	requests = ((u64)found->pages * 1000) >> order;
	return 1000 - div64_ul(1000 + requests, found->blocks);
}

/**
 * struct reclaim_work - pages that reclaim has scanned and freed, since boot
 * @reclaimed: pages freed
 * @scanned: pages scanned
 */
struct reclaim_work {
	unsigned long reclaimed;
	unsigned long scanned;
};

/* By anyone: kswapd, direct reclaim, groups. reclaim_pages() is not counted by the kernel. */
static struct reclaim_work read_reclaim_work(void)
{
	static unsigned long events[NR_VM_EVENT_ITEMS];
	struct reclaim_work work;

	lockdep_assert_held(&attempts_lock);
	all_vm_events(events);
	work.reclaimed = events[PGSTEAL_ANON] + events[PGSTEAL_FILE] +
			 atomic64_read(&pagelab_counters[LINEAR_PAGES_RECLAIMED]);
	work.scanned = events[PGSCAN_ANON] + events[PGSCAN_FILE] +
		       atomic64_read(&pagelab_counters[LINEAR_PAGES_ISOLATED]);
	return work;
}

static struct attempt *attempt_at(unsigned int number)
{
	struct attempt *attempts = xa_load(&table, number / ATTEMPTS_PER_PAGE);

	return attempts ? attempts + number % ATTEMPTS_PER_PAGE : NULL;
}

/* All records before the first attempt: no request of ours comes between two attempts. */
static int reserve_records(unsigned int count)
{
	unsigned long index = attempt_count / ATTEMPTS_PER_PAGE;
	unsigned long last = (attempt_count + count - 1) / ATTEMPTS_PER_PAGE;

	for (; index <= last; index++) {
		unsigned long page;
		int error;

		if (xa_load(&table, index))
			continue;
		page = get_zeroed_page(GFP_KERNEL);
		if (!page)
			return -ENOMEM;
		error = xa_err(xa_store(&table, index, (void *)page, GFP_KERNEL));
		if (error) {
			free_page(page);
			return error;
		}
	}
	return 0;
}

static void try_once(const struct request *request, gfp_t flags, struct attempt *attempt,
		     struct reclaim_work *before)
{
	struct free_blocks found;
	struct reclaim_work after;
	struct page *page;
	u64 start_ns;

	*attempt = (struct attempt){
		.word = request->word,
		.order = request->order,
		.retry = request->retry,
	};
	count_free_blocks(flags, request->order, false, &found);
	attempt->f_u_before = unusable_free_index(&found, request->order);
	start_ns = ktime_get_ns();
	page = alloc_pages(flags, request->order);
	attempt->ns = ktime_get_ns() - start_ns;
	count_free_blocks(flags, request->order, false, &found);
	attempt->free = found.pages;
	if (page) {
		attempt->zone = page_zone(page);
		attempt->pfn = page_to_pfn(page);
		list_add_tail(&page->lru, &held[request->order]);
		pages_held += 1UL << request->order;
	} else {
		count_free_blocks(flags, request->order, true, &found);
		attempt->f_i = fragmentation_index_of(&found, request->order);
	}
	after = read_reclaim_work();
	attempt->reclaimed = after.reclaimed - before->reclaimed;
	attempt->scanned = after.scanned - before->scanned;
	*before = after;
}

static int run_request(const struct request *request)
{
	gfp_t flags = request->word->flags | __GFP_NOWARN;
	struct reclaim_work work;
	unsigned int i;
	int error;

	if (request->count > ATTEMPTS_MAX - attempt_count)
		return -ENOSPC;
	error = reserve_records(request->count);
	if (error)
		return error;
	if (request->word->may_retry)
		flags |= request->retry ? __GFP_RETRY_MAYFAIL : __GFP_NORETRY;
	work = read_reclaim_work();
	for (i = 0; i < request->count; i++) {
		if (fatal_signal_pending(current))
			return -EINTR;
		try_once(request, flags, attempt_at(attempt_count), &work);
		attempt_count++;
		cond_resched();
	}
	return 0;
}

static void release_pages_held(void)
{
	struct page *page, *next;
	int order;

	for (order = 0; order < ORDERS; order++) {
		list_for_each_entry_safe(page, next, &held[order], lru) {
			list_del(&page->lru);
			__free_pages(page, order);
			cond_resched();
		}
	}
	pages_held = 0;
}

static void clear_table(void)
{
	unsigned long index;
	void *page;

	xa_for_each(&table, index, page)
		free_page((unsigned long)page);
	xa_destroy(&table);
	attempt_count = 0;
}

static const struct gfp_word *find_gfp_word(const char *name)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(gfp_words); i++) {
		if (!strcmp(name, gfp_words[i].name))
			return &gfp_words[i];
	}
	return NULL;
}

/* "ORDER GFP COUNT [retry]", in single blanks. */
static int parse_request(char *line, struct request *request)
{
	char *order = strsep(&line, " ");
	char *word = strsep(&line, " ");
	char *count = strsep(&line, " ");
	char *retry = strsep(&line, " ");

	if (!count || line || (retry && strcmp(retry, "retry")))
		return -EINVAL;
	if (kstrtouint(order, 10, &request->order) || request->order >= ORDERS)
		return -EINVAL;
	if (kstrtouint(count, 10, &request->count) || !request->count)
		return -EINVAL;
	request->word = find_gfp_word(word);
	if (!request->word || (retry && !request->word->may_retry))
		return -EINVAL;
	request->retry = retry;
	return 0;
}

static int carry_out(char *line)
{
	struct request request;
	int error;

	if (!strcmp(line, "release")) {
		release_pages_held();
		return 0;
	}
	if (!strcmp(line, "clear")) {
		clear_table();
		return 0;
	}
	error = parse_request(line, &request);
	return error ?: run_request(&request);
}

static ssize_t attempts_write(struct file *file, const char __user *from, size_t count, loff_t *offset)
{
	char line[LINE_MAX_BYTES];
	int error;

	if (count >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, from, count))
		return -EFAULT;
	line[count] = '\0';
	if (mutex_lock_killable(&attempts_lock))
		return -EINTR;
	error = carry_out(strim(line));
	mutex_unlock(&attempts_lock);
	return error ?: count;
}

/* Position 0 is the line of names, then come the attempts, then the line of held pages. */
static void *position_at(loff_t position)
{
	return position <= (loff_t)attempt_count + 1 ? (void *)(unsigned long)(position + 1) : NULL;
}

static void *table_start(struct seq_file *file, loff_t *position)
{
	if (mutex_lock_killable(&attempts_lock))
		return ERR_PTR(-EINTR);
	return position_at(*position);
}

static void *table_next(struct seq_file *file, void *element, loff_t *position)
{
	return position_at(++*position);
}

static void table_stop(struct seq_file *file, void *element)
{
	if (!IS_ERR(element))
		mutex_unlock(&attempts_lock);
}

static void show_attempt(struct seq_file *file, unsigned int number)
{
	const struct attempt *attempt = attempt_at(number);

	seq_printf(file, "%u %u %s ", number, attempt->order, attempt->word->name);
	if (attempt->zone)
		seq_printf(file, "1 %lu %s %llu %d - ", attempt->pfn, attempt->zone->name, attempt->ns,
			   attempt->f_u_before);
	else
		seq_printf(file, "0 - - %llu %d %d ", attempt->ns, attempt->f_u_before, attempt->f_i);
	seq_printf(file, "%lu %lu %lu %d\n", attempt->free, attempt->reclaimed, attempt->scanned,
		   attempt->retry);
}

static int table_show(struct seq_file *file, void *element)
{
	unsigned long position = (unsigned long)element - 1;

	if (!position)
		seq_puts(file, "number order gfp ok pfn zone ns f_u_before f_i free reclaimed scanned retry\n");
	else if (position <= attempt_count)
		show_attempt(file, position - 1);
	else
		seq_printf(file, "pages_held %lu\n", pages_held);
	return 0;
}

static const struct seq_operations table_operations = {
	.start = table_start,
	.next = table_next,
	.stop = table_stop,
	.show = table_show,
};

static int attempts_open(struct inode *inode, struct file *file)
{
	return seq_open(file, &table_operations);
}

const struct file_operations pagelab_attempts_operations = {
	.owner = THIS_MODULE,
	.open = attempts_open,
	.read = seq_read,
	.write = attempts_write,
	.llseek = seq_lseek,
	.release = seq_release,
};

/**
 * pagelab_attempts_init() - before the file is there
 */
void pagelab_attempts_init(void)
{
	int order;

	for (order = 0; order < ORDERS; order++)
		INIT_LIST_HEAD(&held[order]);
}

/**
 * pagelab_attempts_exit() - free all pages, after the file is gone
 */
void pagelab_attempts_exit(void)
{
	release_pages_held();
	clear_table();
}
