//! Handlers of traced system calls: they update the mapping table, and advise huge pages before the program
//! can touch the memory.

use std::fs;
use std::ops::Range;

use pagelab_host::paths;
use pagelab_sys::ptrace::{self, Registers};
use pagelab_sys::seccomp::{CLONE_UNTRACED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, PR_SET_SECCOMP};
use pagelab_tlb::engine::mapping_table::MappedKind;

use super::injection::{InjectedCall, InjectionPoint, InjectionResult, errno_of};
use super::region_placement::{self, merge_ranges};
use super::tracer::{Thread, Tracer, is_thp_disable_call, read_clone3_flags};
use super::tracer_state::{HugePageTarget, TracerState, ranges_overlap};
use super::{HugePageChoice, exec_image};

/// The option of prctl for "off but where advised", and its flag.
const THP_DISABLE_EXCEPT_ADVISED: u64 = 1 << 1;

impl Tracer {
    /// The entry of a call.
    pub fn handle_syscall_entry(&mut self, state: &mut TracerState, tid: u32) {
        let (Ok(registers), Some(&thread)) = (ptrace::read_registers(tid), self.threads.get(&tid)) else {
            return self.resume_thread(tid, 0);
        };
        if self.release_heap_gap(state, tid, thread.process, &registers) {
            return;
        }
        match registers.orig_rax as i64 {
            libc::SYS_brk => return self.handle_brk_entry(state, tid, thread.process, &registers),
            libc::SYS_setrlimit | libc::SYS_prlimit64 | libc::SYS_mlockall => {}
            libc::SYS_munmap => self.handle_munmap_entry(state, thread.process, &registers),
            libc::SYS_mremap => return self.handle_mremap_entry(state, tid, thread, registers),
            libc::SYS_madvise if registers.rdx == MADV_HUGEPAGE => {
                let range = self.page_range(registers.rdi, registers.rsi);
                if let Some(space) = state.space_of(thread.process) {
                    space.own_advice.push(range);
                }
            }
            libc::SYS_prctl if registers.rdi == PR_SET_SECCOMP => note_own_filter(state, thread.process),
            // Its other operations are queries.
            libc::SYS_seccomp if registers.rdi <= 1 => note_own_filter(state, thread.process),
            libc::SYS_seccomp => {}
            libc::SYS_prctl if !is_thp_disable_call(&registers) => {}
            libc::SYS_ptrace => state.accounting.add_note(
                "the program uses ptrace, but pagelab already traces it: its ptrace calls fail; hint: use \
                 --no-tracer",
            ),
            libc::SYS_clone => {
                let traced = Registers { rdi: registers.rdi & !CLONE_UNTRACED, ..registers };
                state.accounting.set_registers(tid, &traced);
            }
            libc::SYS_clone3 => return self.handle_clone3_entry(state, tid, thread.process, registers),
            libc::SYS_mmap => {
                self.set_mmap_hint(state, tid, thread.process, &registers);
                return self.resume_to_syscall_exit(tid, registers);
            }
            _ => return self.resume_to_syscall_exit(tid, registers),
        }
        self.resume_thread(tid, 0);
    }

    /// The exit of a call.
    pub fn handle_syscall_exit(&mut self, state: &mut TracerState, tid: u32) {
        let by_parts =
            self.threads.get_mut(&tid).is_some_and(|thread| std::mem::take(&mut thread.grows_by_parts));
        let call = self.threads.get_mut(&tid).and_then(|thread| thread.call.take());
        let (Some(call), Ok(after)) = (call, ptrace::read_registers(tid)) else {
            return self.resume_thread(tid, 0);
        };
        let result = after.rax as i64;
        if call.orig_rax as i64 == libc::SYS_mmap && after.rdi != call.rdi {
            // A call does not change its argument registers, and the program may use them again.
            state.accounting.set_registers(tid, &Registers { rdi: call.rdi, ..after });
        }
        if call.orig_rax as i64 == libc::SYS_clone3 {
            state.accounting.write_word(tid, call.rdi, call.r12);
        }
        let is_error = errno_of(result).is_some();
        match call.orig_rax as i64 {
            libc::SYS_mmap if !is_error => self.handle_mmap_exit(state, tid, &call, result as u64),
            libc::SYS_mremap if by_parts => self.finish_growth_by_parts(state, tid, &call, result),
            libc::SYS_mremap => {
                self.handle_mremap_exit(state, tid, &call, (!is_error).then_some(result as u64))
            }
            libc::SYS_madvise => self.handle_nohugepage_exit(state, tid, &call),
            libc::SYS_prctl if !is_error => self.handle_thp_disable_exit(state, tid),
            libc::SYS_shmat if !is_error => self.handle_shmat_exit(state, tid, result as u64),
            _ => self.resume_thread(tid, 0),
        }
    }

    /// Whole pages from `start` on, as the kernel rounds a length.
    pub(super) fn page_range(&self, start: u64, bytes: u64) -> Range<u64> {
        let bytes = bytes.checked_next_multiple_of(self.spec.page).unwrap_or(u64::MAX);
        start..start.saturating_add(bytes)
    }

    /// Sets an address hint for a planned mapping whose address the program leaves to the kernel, so that it
    /// has the same alignment to powers of two as in the profiled run. Programs that use aligned parts of a
    /// reservation use the same offsets again then.
    fn set_mmap_hint(&self, state: &mut TracerState, tid: u32, process: u32, call: &Registers) {
        let flags = call.r10 as i32;
        let HugePageChoice::Plan(plan) = &self.spec.choice else { return };
        if call.rdi != 0 || flags & region_placement::UNHINTED_FLAGS != 0 || flags & libc::MAP_ANONYMOUS == 0
        {
            return;
        }
        let kind = match flags & libc::MAP_TYPE {
            libc::MAP_PRIVATE => MappedKind::Anonymous,
            _ => MappedKind::Shared,
        };
        let range = self.page_range(0, call.rsi);
        let Some(space) = state.space_of(process).filter(|space| space.plan_index.is_some()) else { return };
        let key = space.mapping_table.next_key(kind, range.end);
        let [planned] = space.planned_mappings(plan, &key, &(0..0))[..] else { return };
        let maps = exec_image::read_maps(process, &mut state.accounting);
        if let Some(hint) =
            region_placement::find_hint_address(&maps, range.end, planned.start, self.spec.huge)
        {
            state.accounting.set_registers(tid, &Registers { rdi: hint, ..*call });
        }
    }

    fn handle_mmap_exit(&mut self, state: &mut TracerState, tid: u32, call: &Registers, start: u64) {
        let range = self.page_range(start, call.rsi);
        let (flags, process) = (call.r10 as i32, self.process_of_thread(tid));
        let is_anonymous = flags & libc::MAP_ANONYMOUS != 0;
        let kind = match (is_anonymous, flags & libc::MAP_TYPE) {
            (true, libc::MAP_PRIVATE) => MappedKind::Anonymous,
            (true, _) => MappedKind::Shared,
            (false, _) => MappedKind::File(read_fd_path(process, call.r8 as i32)),
        };
        let is_fixed = flags & libc::MAP_FIXED != 0;
        self.update_coverage(state, process, &range);
        let Some(number) = state.numbered_space_of(process) else { return self.resume_thread(tid, 0) };
        let Some(space) = state.spaces.get_mut(&number) else { return self.resume_thread(tid, 0) };
        if !is_fixed {
            // The kernel found it free: mappings that are still recorded there were removed by untraced
            // calls.
            space.mapping_table_mut().record_munmap(range.clone());
        }
        let removed = space.remove_targets(&range);
        let mapping = match kind {
            MappedKind::File(path) => {
                space.mapping_table_mut().record_file_mmap(range.clone(), path, call.r9)
            }
            kind => space.mapping_table_mut().record_mmap(range.clone(), kind),
        };
        self.spec.record_planned(space, mapping, &range, &mut state.accounting);
        let is_stack = flags & libc::MAP_STACK != 0 && self.spec.choice == HugePageChoice::All;
        let targets = if is_stack { Vec::new() } else { space.find_targets(&self.spec, mapping, &range) };
        count_removed_targets(state, process, removed, &targets);
        if self.spec.hugetlb && is_anonymous && !targets.is_empty() {
            return self.map_hugetlb_pages(state, tid, targets, call);
        }
        if is_anonymous {
            share_anon_vma(process, &range, &targets);
        }
        self.advise_targets(state, tid, targets);
    }

    /// Maps targets from the hugetlb pool; nothing is populated there yet. If the pool is too small, the
    /// kernel may have unmapped the range: it is mapped again as it was.
    fn map_hugetlb_pages(
        &mut self,
        state: &mut TracerState,
        tid: u32,
        mut targets: Vec<HugePageTarget>,
        mmap_call: &Registers,
    ) {
        let map = |at: &Range<u64>, more: i32| {
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | more) as u64;
            let arguments = [at.start, at.end - at.start, mmap_call.rdx, flags, u64::MAX, 0];
            InjectedCall { number: libc::SYS_mmap, arguments }
        };
        let mut last = InjectionResult { results: Vec::new(), was_group_stopped: false };
        for target in &mut targets {
            let at = region_placement::shrink_to_pages(&target.range, self.spec.huge);
            if at.is_empty() {
                continue;
            }
            let Some(made) =
                self.inject_calls(tid, InjectionPoint::SyscallExit, &[map(&at, libc::MAP_HUGETLB)])
            else {
                return;
            };
            let errno = errno_of(made.single());
            last = merge_results(last, made);
            if let Some(errno) = errno {
                let error = std::io::Error::from_raw_os_error(errno);
                target.reason = Some(format!("no free page in the hugetlb pool: {error}"));
                let remap = map(&at, mmap_call.r10 as i32 & libc::MAP_NORESERVE);
                let Some(made) = self.inject_calls(tid, InjectionPoint::SyscallExit, &[remap]) else {
                    return;
                };
                last = merge_results(last, made);
            }
        }
        add_targets(state, self.process_of_thread(tid), targets);
        self.resume_after_injection(tid, &last);
    }

    /// Makes the thread advise the targets, adds them, and resumes it.
    fn advise_targets(&mut self, state: &mut TracerState, tid: u32, mut targets: Vec<HugePageTarget>) {
        let process = self.process_of_thread(tid);
        if targets.is_empty() {
            return self.resume_thread(tid, 0);
        }
        if state.processes.get(&process).is_some_and(|process| process.has_own_filter) {
            let why = "not advised: the program's own seccomp filter could deny the call or kill the program";
            targets.iter_mut().for_each(|target| target.reason = Some(why.to_owned()));
            add_targets(state, process, targets);
            return self.resume_thread(tid, 0);
        }
        let made = self.request_huge_pages(tid, &mut targets);
        add_targets(state, process, targets);
        if let Some(made) = made {
            self.resume_after_injection(tid, &made);
        }
    }

    /// Makes the thread advise the targets at the exit of its call; why not is recorded in them. `None`: the
    /// thread is gone.
    pub(super) fn request_huge_pages(
        &mut self,
        tid: u32,
        targets: &mut [HugePageTarget],
    ) -> Option<InjectionResult> {
        let ranges = merge_ranges(targets.iter().map(|target| target.range.clone()));
        let calls: Vec<InjectedCall> =
            ranges.iter().map(|range| InjectedCall::madvise(range, MADV_HUGEPAGE, self.mark)).collect();
        let made = self.inject_calls(tid, InjectionPoint::SyscallExit, &calls)?;
        for (range, &result) in ranges.iter().zip(&made.results) {
            let Some(errno) = errno_of(result) else { continue };
            let why = describe_madvise_error(errno);
            for target in targets.iter_mut().filter(|target| ranges_overlap(&target.range, range)) {
                target.reason = Some(why.clone());
            }
        }
        Some(made)
    }

    pub(super) fn process_of_thread(&self, tid: u32) -> u32 {
        self.threads.get(&tid).map_or(tid, |thread| thread.process)
    }

    fn handle_munmap_entry(&mut self, state: &mut TracerState, process: u32, registers: &Registers) {
        let range = self.page_range(registers.rdi, registers.rsi);
        self.update_coverage(state, process, &range);
        let Some(space) = state.space_of(process) else { return };
        let removed = space.remove_targets(&range);
        // Removed before the call: no other thread can map the range before it was executed.
        space.own_advice.retain(|own| !ranges_overlap(own, &range));
        space.mapping_table_mut().record_munmap(range);
        count_removed_targets(state, process, removed, &[]);
    }

    /// Before an mremap: the kernel refuses to grow a range of several VMAs, and advice for a part splits the
    /// VMA. So the whole range gets one advice before the call, and the parts get theirs after it.
    fn handle_mremap_entry(
        &mut self,
        state: &mut TracerState,
        tid: u32,
        thread: Thread,
        registers: Registers,
    ) {
        let old = self.page_range(registers.rdi, registers.rsi);
        self.update_coverage(state, thread.process, &old);
        let Some(space) = state.space_of(thread.process) else { return self.resume_thread(tid, 0) };
        let is_split =
            space.targets.iter().any(|target| target.is_region && ranges_overlap(&target.range, &old));
        let has_filter = state.processes.get(&thread.process).is_some_and(|process| process.has_own_filter);
        if is_split && !thread.is_vma_merged && !has_filter && !old.is_empty() {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.is_vma_merged = true;
            }
            let call = InjectedCall::madvise(&old, MADV_NOHUGEPAGE, self.mark);
            if let Some(made) = self.inject_calls(tid, InjectionPoint::SyscallEntry, &[call]) {
                self.resume_after_injection(tid, &made);
            }
            return;
        }
        if thread.is_vma_merged
            && self.redirect_to_last_part(state, tid, thread.process, &old, &registers)
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.grows_by_parts = true;
        }
        // Another thread may map the old range before the exit of this call is reported.
        let moves = state.space_of(thread.process).and_then(|space| space.mapping_table.find(old.start));
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.moved_mapping = moves;
        }
        self.resume_to_syscall_exit(tid, registers);
    }

    /// After an mremap: `new` is the new address, or `None` if it failed.
    pub(super) fn handle_mremap_exit(
        &mut self,
        state: &mut TracerState,
        tid: u32,
        call: &Registers,
        new: Option<u64>,
    ) {
        let process = self.process_of_thread(tid);
        let (was_whole, moves) = self.threads.get_mut(&tid).map_or((false, None), |thread| {
            (std::mem::take(&mut thread.is_vma_merged), thread.moved_mapping.take())
        });
        let old = self.page_range(call.rdi, call.rsi);
        let now = new.map_or(old.clone(), |start| self.page_range(start, call.rdx));
        let Some(space) = state.space_of(process) else { return self.resume_thread(tid, 0) };
        if new.is_none() && !was_whole {
            return self.resume_thread(tid, 0);
        }
        let mapping = moves.map(|(mapping, _)| mapping);
        let removed = space
            .targets
            .extract_if(.., |w| Some(w.mapping) == mapping && ranges_overlap(&w.range, &old))
            .collect();
        if let (Some((mapping, offset)), Some(_)) = (moves, &new) {
            space.mapping_table_mut().record_late_mremap(mapping, offset, &old, now.clone());
        }
        let targets = mapping.map_or(Vec::new(), |id| space.find_targets(&self.spec, id, &now));
        let own: Vec<Range<u64>> =
            space.own_advice.iter().filter(|own| ranges_overlap(own, &old)).cloned().collect();
        for own in own.into_iter().filter(|_| was_whole) {
            // The program's own advice is repeated at the new address.
            let start = now.start + own.start.saturating_sub(old.start);
            let end = (now.start + own.end.saturating_sub(old.start)).min(now.end);
            let call = InjectedCall::madvise(&(start..end), MADV_HUGEPAGE, self.mark);
            if start < end && self.inject_calls(tid, InjectionPoint::SyscallExit, &[call]).is_none() {
                return;
            }
        }
        count_removed_targets(state, process, removed, &targets);
        self.advise_targets(state, tid, targets);
    }

    /// The program advised against huge pages.
    fn handle_nohugepage_exit(&mut self, state: &mut TracerState, tid: u32, call: &Registers) {
        let process = self.process_of_thread(tid);
        let range = self.page_range(call.rdi, call.rsi);
        let Some(space) = state.space_of(process) else { return self.resume_thread(tid, 0) };
        space.own_advice.retain(|own| !ranges_overlap(own, &range));
        if !space.targets.iter().any(|target| ranges_overlap(&target.range, &range)) {
            return self.resume_thread(tid, 0);
        }
        if self.spec.overrides {
            let targets = space.remove_targets(&range);
            state
                .accounting
                .add_note("the program set MADV_NOHUGEPAGE; overridden with MADV_HUGEPAGE (--override)");
            return self.advise_targets(state, tid, targets);
        }
        let why = "the program called MADV_NOHUGEPAGE; hint: use --override";
        for target in space.targets.iter_mut().filter(|target| ranges_overlap(&target.range, &range)) {
            (target.reason, target.is_opted_out) = (Some(why.to_owned()), true);
        }
        state.accounting.add_note(format!("MADV_NOHUGEPAGE: {why}"));
        self.resume_thread(tid, 0);
    }

    /// The program switched huge pages off for itself.
    fn handle_thp_disable_exit(&mut self, state: &mut TracerState, tid: u32) {
        let process = self.process_of_thread(tid);
        let has_filter = state.processes.get(&process).is_some_and(|process| process.has_own_filter);
        if !self.spec.overrides || has_filter {
            if let Some(space) = state.space_of(process) {
                space.is_thp_disabled = true;
            }
            state.accounting.has_thp_disable = true;
            state
                .accounting
                .add_note("the program disabled THP with prctl (PR_SET_THP_DISABLE); hint: use --override");
            return self.resume_thread(tid, 0);
        }
        let prctl = |on: u64, flags: u64| InjectedCall {
            number: libc::SYS_prctl,
            arguments: [pagelab_sys::seccomp::PR_SET_THP_DISABLE, on, flags, 0, 0, self.mark],
        };
        let undo = [prctl(0, 0), prctl(1, THP_DISABLE_EXCEPT_ADVISED)];
        let Some(made) = self.inject_calls(tid, InjectionPoint::SyscallExit, &undo) else { return };
        if made.results.first() == Some(&0) {
            state.accounting.add_note("the program's PR_SET_THP_DISABLE was undone (--override)");
        }
        self.resume_after_injection(tid, &made);
    }

    /// A System V segment was attached: only the list of mappings has its length.
    fn handle_shmat_exit(&mut self, state: &mut TracerState, tid: u32, start: u64) {
        let process = self.process_of_thread(tid);
        let maps = exec_image::read_maps(process, &mut state.accounting);
        let found = maps.iter().find(|map| map.start == start);
        if let (Some(map), Some(space)) = (found, state.space_of(process)) {
            space.mapping_table_mut().record_mmap(map.start..map.end, MappedKind::Shared);
        }
        self.resume_thread(tid, 0);
    }

    /// A clone3: an untraced child would have the filter, and its traced calls would fail.
    fn handle_clone3_entry(&mut self, state: &mut TracerState, tid: u32, process: u32, registers: Registers) {
        match read_clone3_flags(process, &registers) {
            Some(flags) if flags & CLONE_UNTRACED != 0 => {
                state.accounting.write_word(process, registers.rdi, flags & !CLONE_UNTRACED);
                // The program's memory is restored at the exit of the call; a register that is not used
                // otherwise holds the flags until then.
                self.resume_to_syscall_exit(tid, Registers { r12: flags, ..registers });
            }
            _ => self.resume_thread(tid, 0),
        }
    }
}

/// The results of two injections in a row.
pub(super) fn merge_results(before: InjectionResult, after: InjectionResult) -> InjectionResult {
    InjectionResult { was_group_stopped: before.was_group_stopped || after.was_group_stopped, ..after }
}

/// The path of an open file of a process; empty if it cannot be read.
fn read_fd_path(process: u32, fd: i32) -> String {
    let link = paths::process_file(process, &format!("fd/{fd}"));
    fs::read_link(link).map(|path| path.display().to_string()).unwrap_or_default()
}

/// Advice for a part splits the VMA of a new mapping, and the parts can be one again, as mremap needs it,
/// only if they have one `anon_vma`: the kernel makes it at the first write (mm/rmap.c,
/// `__anon_vma_prepare`). So a zero is written over a zero, on a page that is not advised.
fn share_anon_vma(process: u32, range: &Range<u64>, targets: &[HugePageTarget]) {
    if targets.iter().all(|target| !target.is_region) {
        return;
    }
    let mut gap = range.start;
    for target in targets {
        if target.range.contains(&gap) {
            gap = target.range.end;
        }
    }
    if gap < range.end {
        // Memory that may not be written has no anon_vma, and stays split.
        let _ = ptrace::write_memory(process, gap, &[0]);
    }
}

fn add_targets(state: &mut TracerState, process: u32, targets: Vec<HugePageTarget>) {
    if let Some(space) = state.space_of(process) {
        space.targets.extend(targets);
    }
}

fn note_own_filter(state: &mut TracerState, process: u32) {
    if let Some(process) = state.processes.get_mut(&process) {
        process.has_own_filter = true;
    }
    state.accounting.add_note(
        "the program installed a seccomp filter: no advice from then on, because the filter could deny it or \
         kill the program",
    );
}

/// Counts targets whose memory is unmapped, but for those that are targets again at the new address.
fn count_removed_targets(
    state: &mut TracerState,
    process: u32,
    removed: Vec<HugePageTarget>,
    replaced_by: &[HugePageTarget],
) {
    let Some(space) = state.numbered_space_of(process).and_then(|number| state.spaces.get(&number)) else {
        debug_assert!(removed.is_empty(), "targets of an address space that is gone");
        return;
    };
    for target in removed {
        let is_again =
            replaced_by.iter().any(|other| other.mapping == target.mapping && other.offset == target.offset);
        if !is_again {
            state.accounting.count_target(&target, space);
        }
    }
}

/// The meaning of an error of madvise here.
fn describe_madvise_error(number: i32) -> String {
    let error = std::io::Error::from_raw_os_error(number);
    match number {
        libc::ENOMEM => "madvise: part of the region is not mapped".to_owned(),
        libc::EAGAIN => {
            "madvise: the kernel cannot split the mapping (EAGAIN); hint: raise vm.max_map_count".to_owned()
        }
        libc::EINVAL => "madvise: this mapping cannot have huge pages (EINVAL)".to_owned(),
        _ => format!("madvise: {error}"),
    }
}
