// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hooks: a function of the module is called in place of one of the kernel.
 *
 * As in livepatch (kernel/livepatch/patch.c), an ftrace_ops with IPMODIFY sets the instruction pointer at
 * the entry of the function. So the replacement has the arguments of the original, may sleep, and returns
 * to the caller. ftrace allows one such ops for a function: with a livepatch on it, installing is EBUSY.
 *
 * A call of the original from the module is let through: its return address is in the module. It must not
 * be a tail call; pagelab_hook_leave() comes after it.
 *
 * Removal. A task may be between the ftrace handler and the end of the replacement, running, preempted or
 * asleep. unregister_ftrace_function() waits until each task has left the trampoline and, as it is not
 * preempted there any more, has counted itself in @running (synchronize_rcu_tasks(), kernel/trace/ftrace.c).
 * Then @running falls to 0. A task that has decremented it may still have to return: before the module's
 * text is freed, pagelab_exit() calls synchronize_rcu_tasks() once for all hooks.
 */
#include <linux/ftrace.h>
#include <linux/module.h>
#include <linux/wait_bit.h>

#include "pagelab.h"

#if defined(CONFIG_FUNCTION_TRACER) && \
	(defined(CONFIG_DYNAMIC_FTRACE_WITH_REGS) || defined(CONFIG_DYNAMIC_FTRACE_WITH_ARGS))

/* The name until 6.1. */
#ifndef ftrace_regs_set_instruction_pointer
#define ftrace_regs_set_instruction_pointer ftrace_instruction_pointer_set
#endif

#ifdef CONFIG_DYNAMIC_FTRACE_WITH_ARGS
#define HOOK_FLAGS (FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT)
#else
#define HOOK_FLAGS (FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT)
#endif

/* Without FTRACE_OPS_FL_RECURSION, ftrace protects it from recursion. */
static void notrace redirect(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			     struct ftrace_regs *regs)
{
	struct pagelab_hook *hook = container_of(ops, struct pagelab_hook, ops);

	if (!within_module(parent_ip, THIS_MODULE))
		ftrace_regs_set_instruction_pointer(regs, (unsigned long)hook->replacement);
}

/**
 * pagelab_hook_init() - find the function of a hook, and change nothing
 * @hook: the hook
 *
 * Return: NULL, or why this kernel cannot have the hook.
 */
const char *pagelab_hook_init(struct pagelab_hook *hook)
{
	struct pagelab_symbol symbol = { hook->name, &hook->original, hook->missing };
	const char *missing = pagelab_find_symbols(&symbol, 1);

	if (missing)
		return missing;
	hook->ops.func = redirect;
	hook->ops.flags = HOOK_FLAGS;
	if (ftrace_set_filter_ip(&hook->ops, (unsigned long)hook->original, 0, 1)) {
		ftrace_free_filter(&hook->ops);
		return hook->unpatchable;
	}
	return NULL;
}

/**
 * pagelab_hook_install() - call the replacement from now on
 * @hook: a hook that is there, see pagelab_hook_init()
 *
 * Return: 0; -EBUSY if the function has a livepatch, or ftrace is off (kernel.ftrace_enabled).
 */
int pagelab_hook_install(struct pagelab_hook *hook)
{
	int error;

	if (hook->is_installed)
		return 0;
	error = register_ftrace_function(&hook->ops);
	hook->is_installed = !error;
	return error;
}

/**
 * pagelab_hook_remove() - call the original again, and wait until no replacement runs
 * @hook: the hook
 */
void pagelab_hook_remove(struct pagelab_hook *hook)
{
	if (!hook->is_installed)
		return;
	unregister_ftrace_function(&hook->ops);
	hook->is_installed = false;
	wait_var_event(&hook->running, !atomic_read(&hook->running));
}

/**
 * pagelab_hook_exit() - remove a hook and forget its function
 * @hook: a hook that is there
 */
void pagelab_hook_exit(struct pagelab_hook *hook)
{
	pagelab_hook_remove(hook);
	ftrace_free_filter(&hook->ops);
}

#else

const char *pagelab_hook_init(struct pagelab_hook *hook)
{
	return "this kernel has no ftrace that redirects calls (CONFIG_DYNAMIC_FTRACE_WITH_ARGS or _REGS)";
}

int pagelab_hook_install(struct pagelab_hook *hook)
{
	return -EOPNOTSUPP;
}

void pagelab_hook_remove(struct pagelab_hook *hook)
{
}

void pagelab_hook_exit(struct pagelab_hook *hook)
{
}

#endif

/**
 * pagelab_hook_leave() - last statement of a replacement, after any call of the original
 * @hook: its hook
 */
void pagelab_hook_leave(struct pagelab_hook *hook)
{
	if (atomic_dec_and_test(&hook->running))
		wake_up_var(&hook->running);
}
