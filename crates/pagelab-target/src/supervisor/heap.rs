//! Heaps that grow by less than a huge page at a time: the supervisor moves the kernel's break to the end of
//! the huge page that the heap grows into, and returns the break that the program requested. So a whole huge
//! page is mapped at the first touch, and not a few base pages.
//!
//! The supervisor injects the kernel's call at the entry of the program's call and sets its result: no `brk`
//! of another thread is executed in between.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use pagelab_host::paths;
use pagelab_model::huge_plan::HugePlan;
use pagelab_model::profile::MappingKind;
use pagelab_sys::clock;
use pagelab_sys::ptrace::{self, Registers};
use pagelab_sys::seccomp::{PR_SET_MM, PR_SET_SECCOMP};

use super::accounting::Accounting;
use super::injection::{InjectedCall, InjectionPoint, InjectionResult};
use super::region_placement::{self, PlacedRegion};
use super::syscall_handlers::merge_results;
use super::tracer::Tracer;
use super::tracer_state::{AddressSpace, HugePageTarget, TracerState, ranges_overlap};
use super::{HugePageChoice, SupervisorConfig};

/// Largest distance of the kernel's break from the program's: it is the length of the heap, at least two huge
/// pages. Injected calls cost more than set results. Untouched memory is not allocated.
const GROW_AHEAD_MAX: u64 = 16 << 20;

/// A break that shrinks by at most this inside of a huge page leaves the page mapped, and the freed part is
/// zeroed: a malloc trims some pages of its top now and then.
const ZEROED_BYTES_MAX: u64 = 512 << 10;

/// Shrinks of the kernel's break, at first and in a second: a program that shrinks its heap more often would
/// pay for huge pages that it soon frees.
const SHRINKS_BURST_MAX: u64 = 64;
const SHRINKS_PER_SECOND_MAX: u64 = 20;

/// The program break of an address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgramBreak {
    /// The break of the program.
    pub program_end: u64,
    /// The break of the kernel: never less.
    pub kernel_end: u64,
    /// Most bytes on huge pages between the two, at any scan.
    pub huge_beyond_bytes: u64,
    /// The kernel's break has to be queried: a first small growth was left to it, or this is a fork's, which
    /// may have been made while another thread changed it.
    is_stale: bool,
    /// A part of it was advised.
    is_advised: bool,
    /// Something was mapped over a part of the heap: it must not be zeroed.
    is_overlaid: bool,
    /// Shrinks of the kernel's break, and since when they are counted.
    shrinks: u64,
    shrinks_since_ns: u64,
    /// The planned regions of the heap, by address; `None`: all of it.
    regions: Option<Arc<[PlacedRegion]>>,
}

impl ProgramBreak {
    /// A heap that begins here.
    fn new(start: u64, regions: Option<Arc<[PlacedRegion]>>) -> ProgramBreak {
        ProgramBreak {
            program_end: start,
            kernel_end: start,
            shrinks_since_ns: clock::monotonic_ns(),
            regions,
            ..ProgramBreak::default()
        }
    }

    /// The same in a forked child.
    pub fn fork(&self) -> ProgramBreak {
        ProgramBreak { is_stale: true, huge_beyond_bytes: 0, ..self.clone() }
    }

    /// Memory between the program's break and the kernel's.
    pub fn unrequested_range(&self, page: u64) -> Range<u64> {
        self.program_end.next_multiple_of(page)..self.kernel_end.next_multiple_of(page)
    }

    /// The new break of the kernel for a requested break of the program, in a heap that begins at `start`.
    fn compute_growth_end(&self, start: u64, requested: u64, huge: u64) -> u64 {
        let bytes = requested - start;
        let goal = match self.is_short(start, requested, huge) {
            true => start.checked_add(huge),
            false => requested.checked_add(bytes.clamp(2 * huge, GROW_AHEAD_MAX)),
        };
        goal.and_then(|goal| goal.checked_next_multiple_of(huge)).unwrap_or(requested)
    }

    /// With `all`, a heap shorter than a huge page is left alone, as other mappings are.
    fn is_short(&self, start: u64, requested: u64, huge: u64) -> bool {
        self.regions.is_none() && requested - start < huge
    }

    /// The range to be zeroed for a requested break, in a heap that begins at `start`, if the huge page of
    /// the break stays mapped.
    fn find_range_to_zero(&self, start: u64, requested: u64, page: u64, huge: u64) -> Option<Range<u64>> {
        let freed = requested.next_multiple_of(page)..self.program_end.next_multiple_of(page);
        let first = requested - requested % huge;
        let huge_page = first..first.saturating_add(huge);
        let is_huge =
            start <= huge_page.start && self.program_end <= huge_page.end && huge_page.end <= self.kernel_end;
        let is_planned = |all: &[PlacedRegion]| all.iter().any(|region| region.range == huge_page);
        let is_target = self.is_advised && self.regions.as_deref().is_none_or(is_planned);
        let is_short = freed.end.saturating_sub(freed.start) <= ZEROED_BYTES_MAX;
        (is_huge && is_target && is_short && !self.is_overlaid).then_some(freed)
    }

    /// Counts a shrink of the kernel's break. Whether there are too many.
    fn count_shrink(&mut self) -> bool {
        self.shrinks += 1;
        let seconds = (clock::monotonic_ns() - self.shrinks_since_ns) / 1_000_000_000;
        self.shrinks > SHRINKS_BURST_MAX + SHRINKS_PER_SECOND_MAX * seconds
    }

    /// The targets that became whole huge pages when the kernel's break grew to `kernel_end`, for a requested
    /// break of the program.
    fn find_new_regions(&self, start: u64, requested: u64, kernel_end: u64, huge: u64) -> Vec<PlacedRegion> {
        match &self.regions {
            None if self.is_short(start, requested, huge) => Vec::new(),
            None => {
                let whole = region_placement::shrink_to_pages(&(start..kernel_end), huge);
                let known = if self.is_advised { self.kernel_end - self.kernel_end % huge } else { start };
                let from = whole.start.max(known);
                let placed = PlacedRegion { offset: from.saturating_sub(start), range: from..whole.end };
                (from < whole.end).then_some(placed).into_iter().collect()
            }
            Some(regions) => {
                let is_fresh = |region: &&PlacedRegion| {
                    region.range.end <= kernel_end && region.range.end > self.kernel_end
                };
                regions.iter().filter(is_fresh).cloned().collect()
            }
        }
    }
}

impl SupervisorConfig {
    /// Whether any heap has targets, so that `brk` must be traced.
    pub(super) fn needs_brk_stops(&self) -> bool {
        match &self.choice {
            _ if self.hugetlb => false,
            HugePageChoice::Nothing => false,
            HugePageChoice::All => true,
            HugePageChoice::Plan(plan) => {
                let kinds = plan.programs.iter().flat_map(|program| &program.mappings);
                kinds.into_iter().any(|m| matches!(m.key.kind, MappingKind::Heap | MappingKind::Placed))
            }
        }
    }

    /// The break of a program that has just started; `None` if its heap is left alone.
    pub(super) fn create_break(&self, pid: u32, space: &AddressSpace) -> Option<ProgramBreak> {
        if !self.needs_brk_stops() || space.heap_start == 0 {
            return None;
        }
        let regions = match &self.choice {
            HugePageChoice::Plan(plan) => {
                let placed = space.place_heap_regions(plan, self.huge);
                (!placed.is_empty()).then(|| Some(placed.into()))?
            }
            _ => None,
        };
        has_unlimited_data(pid).then(|| ProgramBreak::new(space.heap_start, regions))
    }
}

impl AddressSpace {
    /// The planned regions of the heap, also of parts that it has not grown to yet.
    pub fn place_heap_regions(&self, plan: &HugePlan, huge: u64) -> Vec<PlacedRegion> {
        let Some(mapping) = self.find_heap_mapping() else { return Vec::new() };
        let (key, start) = (&self.mapping_table.mapping(mapping).key, self.heap_start);
        let mut placed = Vec::new();
        for planned in self.planned_mappings(plan, key, &(start..u64::MAX)) {
            let end = match planned.key.kind {
                MappingKind::Placed => {
                    planned.regions.iter().map(|r| r.offset.saturating_add(r.page.0)).max()
                }
                _ => start.checked_add(planned.bytes.0),
            };
            let whole = end.and_then(|end| end.checked_next_multiple_of(huge)).unwrap_or(start);
            placed.extend(region_placement::place_regions(planned, &(start..whole.max(start)), 0, huge));
        }
        placed.sort_by_key(|region| region.range.start);
        placed
    }

    fn add_heap_targets(&mut self, targets: Vec<HugePageTarget>) {
        for target in targets {
            let is_place = |known: &HugePageTarget| match target.is_region {
                true => known.range == target.range,
                // One range, as long as it grows.
                false => {
                    !known.is_region
                        && known.range.start <= target.range.start
                        && known.range.end >= target.range.start
                }
            };
            let known = self
                .targets
                .iter_mut()
                .find(|known| known.mapping == target.mapping && !known.is_inherited && is_place(known));
            match known {
                Some(known) => {
                    known.range.end = known.range.end.max(target.range.end);
                    known.reason = known.reason.take().or(target.reason);
                }
                None => self.targets.push(target),
            }
        }
    }

    /// The heap ends at `end` now, lower than before.
    fn truncate_heap_targets(&mut self, end: u64, huge: u64) {
        let Some(heap) = self.find_heap_mapping() else { return };
        let end = end - end % huge;
        for target in self.targets.iter_mut().filter(|target| target.mapping == heap && !target.is_region) {
            target.range.end = target.range.end.min(end.max(target.range.start));
        }
    }
}

impl Tracer {
    /// The program calls brk.
    pub fn handle_brk_entry(&mut self, state: &mut TracerState, tid: u32, process: u32, call: &Registers) {
        let Some(space) = state.space_of(process) else { return self.resume_thread(tid, 0) };
        let (start, is_shared) = (space.heap_start, space.users > 1);
        let Some(program_break) = &mut space.program_break else { return self.resume_thread(tid, 0) };
        let requested = call.rdi;
        if program_break.is_stale {
            return self.query_kernel_break(state, tid, process);
        }
        if program_break.kernel_end == start
            && requested > start
            && program_break.is_short(start, requested, self.spec.huge)
        {
            // Most programs need no more than this. A call of another thread could be executed first.
            let threads = self.threads.values().filter(|thread| thread.process == process);
            if !is_shared && threads.count() == 1 {
                program_break.is_stale = true;
                return self.resume_thread(tid, 0);
            }
        }
        let (page, huge) = (self.spec.page, self.spec.huge);
        let is_shrunk = || {
            (start..program_break.program_end).contains(&requested)
                && program_break
                    .find_range_to_zero(start, requested, page, huge)
                    .is_some_and(|freed| write_zeros(process, &freed))
        };
        if requested == 0
            || (program_break.program_end..=program_break.kernel_end).contains(&requested)
            || is_shrunk()
        {
            program_break.program_end = if requested == 0 { program_break.program_end } else { requested };
            // No call is executed: the result is set.
            let answer = Registers { orig_rax: u64::MAX, rax: program_break.program_end, ..*call };
            state.accounting.set_registers(tid, &answer);
            return self.resume_thread(tid, 0);
        }
        let program_break = program_break.clone();
        if requested < program_break.program_end {
            self.update_coverage_before_shrink(state, process, &(requested..program_break.program_end));
        }
        let kernel_goal = if requested > program_break.kernel_end {
            program_break.compute_growth_end(start, requested, huge)
        } else {
            requested
        };
        self.set_kernel_break(state, tid, &program_break, call, kernel_goal);
    }

    /// Queries the kernel's break. The program's call is traced again afterwards.
    fn query_kernel_break(&mut self, state: &mut TracerState, tid: u32, process: u32) {
        let Some(made) = self.inject_calls(tid, InjectionPoint::SyscallEntry, &[brk_call(0, self.mark)])
        else {
            return;
        };
        let kernel_end = made.single().cast_unsigned();
        if let Some(program_break) = state.space_of(process).and_then(|space| space.program_break.as_mut()) {
            if kernel_end != program_break.kernel_end {
                (program_break.program_end, program_break.kernel_end) = (kernel_end, kernel_end);
            }
            program_break.is_stale = false;
        }
        self.resume_after_injection(tid, &made);
    }

    /// Sets the kernel's break to `kernel_goal`, or else to the requested break, and sets the result.
    fn set_kernel_break(
        &mut self,
        state: &mut TracerState,
        tid: u32,
        program_break: &ProgramBreak,
        call: &Registers,
        kernel_goal: u64,
    ) {
        let (requested, mark, huge) = (call.rdi, self.mark, self.spec.huge);
        let Some(mut made) =
            self.inject_calls(tid, InjectionPoint::SyscallEntry, &[brk_call(kernel_goal, mark)])
        else {
            return;
        };
        let returned = |made: &InjectionResult, goal: u64| made.single().cast_unsigned() == goal;
        // The thread is at the exit of its call now.
        let with_result = |end: u64| Registers { rax: end, ..*call };
        let mut kernel_end = kernel_goal;
        if !returned(&made, kernel_goal) && kernel_goal != requested {
            state.accounting.set_registers(tid, &with_result(program_break.program_end));
            let Some(again) =
                self.inject_calls(tid, InjectionPoint::SyscallExit, &[brk_call(requested, mark)])
            else {
                return;
            };
            (made, kernel_end) = (merge_results(made, again), requested);
        }
        let is_done = returned(&made, kernel_end);
        let answer = if is_done { requested } else { program_break.program_end };
        state.accounting.set_registers(tid, &with_result(answer));
        let process = self.process_of_thread(tid);
        let space = state.numbered_space_of(process).and_then(|number| state.spaces.get_mut(&number));
        let Some(space) = space.filter(|_| is_done) else {
            return self.resume_after_injection(tid, &made);
        };
        if let Some(kept) = &mut space.program_break {
            (kept.program_end, kept.kernel_end) = (requested, kernel_end);
        }
        space.mapping_table_mut().record_brk(kernel_end);
        if kernel_end < program_break.kernel_end {
            space.truncate_heap_targets(kernel_end, huge);
            if space.program_break.as_mut().is_some_and(ProgramBreak::count_shrink) {
                space.program_break = None;
                let why = "from now on it gets huge pages only by collapse";
                state.accounting.add_note(format!("the program shrinks its heap too often (brk): {why}"));
            }
        }
        let fresh = if kernel_end > program_break.kernel_end {
            program_break.find_new_regions(space.heap_start, requested, kernel_end, huge)
        } else {
            Vec::new()
        };
        if let (Some(mapping), false) = (space.find_heap_mapping(), fresh.is_empty()) {
            let is_region = program_break.regions.is_some();
            let target = |p: PlacedRegion| HugePageTarget {
                is_region,
                ..HugePageTarget::new_region(mapping, p.offset, p.range)
            };
            let mut targets: Vec<HugePageTarget> = fresh.into_iter().map(target).collect();
            let Some(advised) = self.request_huge_pages(tid, &mut targets) else { return };
            made = merge_results(made, advised);
            space.add_heap_targets(targets);
            space.program_break.iter_mut().for_each(|kept| kept.is_advised = true);
            record_planned_heap(&self.spec, space, &mut state.accounting);
        }
        self.resume_after_injection(tid, &made);
    }

    /// Updates the coverage of a range that is about to be freed, if it may matter.
    fn update_coverage_before_shrink(&self, state: &mut TracerState, process: u32, range: &Range<u64>) {
        let is_long = range.end - range.start >= self.spec.huge;
        let is_unseen = |target: &HugePageTarget| {
            target.is_region && target.allocated == 0 && ranges_overlap(&target.range, range)
        };
        if is_long || state.space_of(process).is_some_and(|space| space.targets.iter().any(is_unseen)) {
            self.update_coverage(state, process, range);
        }
    }

    /// Before a call that must not see a larger heap than the program requested: frees the rest, and leaves
    /// the heap alone from then on if the call requires that. `true`: the call is traced again.
    pub fn release_heap_gap(
        &mut self,
        state: &mut TracerState,
        tid: u32,
        process: u32,
        call: &Registers,
    ) -> bool {
        let page = self.spec.page;
        let Some(space) = state.space_of(process) else { return false };
        let start = space.heap_start;
        let Some(program_break) = &mut space.program_break else { return false };
        let (gap, is_for_good) = (program_break.unrequested_range(page), ends_break_control(call, process));
        program_break.is_overlaid |= overlaps_heap_range(call, &(start..program_break.kernel_end));
        if !is_for_good && (gap.is_empty() || !overlaps_heap_range(call, &gap)) {
            return false;
        }
        if program_break.is_stale {
            self.query_kernel_break(state, tid, process);
            return true;
        }
        let (end, is_whole) =
            (program_break.program_end, program_break.program_end == program_break.kernel_end);
        program_break.kernel_end = end;
        if is_for_good {
            space.program_break = None;
            if call.orig_rax as i64 == libc::SYS_prctl && call.rdi == PR_SET_MM {
                let why = "from now on its heap gets huge pages only by collapse";
                state
                    .accounting
                    .add_note(format!("the program sets its own program break (PR_SET_MM): {why}"));
            }
        }
        if is_whole {
            return false;
        }
        let mark = self.mark;
        if let Some(made) = self.inject_calls(tid, InjectionPoint::SyscallEntry, &[brk_call(end, mark)]) {
            self.resume_after_injection(tid, &made);
        }
        true
    }

    /// Reads the bytes on huge pages beyond a program's break.
    pub fn measure_huge_beyond_break(&self, space: &mut AddressSpace, pid: u32, range: &Range<u64>) {
        let Some(program_break) = &mut space.program_break else { return };
        let gap = program_break.unrequested_range(self.spec.page);
        if let (true, Ok(pagemap)) =
            (ranges_overlap(&gap, range), fs::File::open(paths::process_file(pid, "pagemap")))
        {
            let huge = pagelab_sys::pagemap_scan::huge_bytes(&pagemap, gap).map_or(0, |bytes| bytes.0);
            program_break.huge_beyond_bytes = program_break.huge_beyond_bytes.max(huge);
        }
    }
}

/// Records that a planned heap appeared.
pub(super) fn record_planned_heap(spec: &SupervisorConfig, space: &AddressSpace, tally: &mut Accounting) {
    let (HugePageChoice::Plan(plan), Some(program)) = (&spec.choice, space.plan_index) else { return };
    let heaps = plan.programs[program].mappings.iter().enumerate();
    let seen = heaps.filter(|(_, mapping)| mapping.key.kind == MappingKind::Heap);
    tally.seen_mappings.extend(seen.map(|(at, _)| (program, at)));
}

fn brk_call(end: u64, mark: u64) -> InjectedCall {
    InjectedCall { number: libc::SYS_brk, arguments: [end, 0, 0, 0, 0, mark] }
}

/// Whether the kernel's break must be the program's from this call on: more would count against its limits,
/// or be locked; or its own filter could deny injected calls.
fn ends_break_control(call: &Registers, process: u32) -> bool {
    match call.orig_rax as i64 {
        libc::SYS_setrlimit | libc::SYS_mlockall => true,
        libc::SYS_prlimit64 => call.rdx != 0 && (call.rdi == 0 || call.rdi == u64::from(process)),
        libc::SYS_prctl => matches!(call.rdi, PR_SET_MM | PR_SET_SECCOMP),
        libc::SYS_seccomp => call.rdi <= 1,
        _ => false,
    }
}

/// Whether a call names addresses in `gap`.
fn overlaps_heap_range(call: &Registers, gap: &Range<u64>) -> bool {
    let is_over = |start: u64, bytes: u64| ranges_overlap(&(start..start.saturating_add(bytes)), gap);
    let fixed = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
    match call.orig_rax as i64 {
        libc::SYS_mmap => call.r10 & fixed != 0 && is_over(call.rdi, call.rsi),
        libc::SYS_munmap => is_over(call.rdi, call.rsi),
        libc::SYS_mremap => {
            let is_fixed = call.r10 & libc::MREMAP_FIXED as u64 != 0;
            is_over(call.rdi, call.rsi) || (is_fixed && is_over(call.r8, call.rdx))
        }
        // The segment's length is unknown: one that begins below may reach into the gap.
        libc::SYS_shmat => call.rsi != 0 && call.rsi < gap.end,
        _ => false,
    }
}

/// Fills a range of a process with zeros. `false`: not all of it could be written.
fn write_zeros(pid: u32, range: &Range<u64>) -> bool {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let zeros = &ZEROS[..ZEROS.len().min((range.end - at) as usize)];
        match ptrace::write_memory(pid, at, zeros) {
            Ok(written @ 1..) => at += written as u64,
            _ => return false,
        }
    }
    true
}

/// Whether the data and the addresses of a process are unlimited: a larger heap could make other calls fail
/// otherwise.
fn has_unlimited_data(pid: u32) -> bool {
    let text = fs::read_to_string(paths::process_file(pid, "limits")).unwrap_or_default();
    ["Max data size", "Max address space"].iter().all(|name| {
        let soft = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        soft == Some("unlimited")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = 2 << 20;

    fn test_break(end: u64, regions: Option<&[u64]>) -> ProgramBreak {
        let region = |&start: &u64| PlacedRegion { offset: start, range: start..start + HUGE };
        let regions = regions.map(|starts| starts.iter().map(region).collect());
        ProgramBreak { program_end: end, kernel_end: end, ..ProgramBreak::new(end, regions) }
    }

    #[test]
    fn a_small_shrink_leaves_a_huge_page_mapped() {
        let (start, page) = (8 * HUGE + 0x3000, 0x1000);
        let all =
            ProgramBreak { kernel_end: 12 * HUGE, is_advised: true, ..test_break(11 * HUGE + 0x40010, None) };
        let zeroed = |known: &ProgramBreak, requested| known.find_range_to_zero(start, requested, page, HUGE);
        assert_eq!(zeroed(&all, 11 * HUGE + 0x3ff), Some(11 * HUGE + 0x1000..11 * HUGE + 0x41000));
        assert_eq!(zeroed(&all, 11 * HUGE + 0x40001), Some(11 * HUGE + 0x41000..11 * HUGE + 0x41000));
        // Out of the page; a page that is not whole; too much; overlaid.
        assert_eq!(zeroed(&all, 11 * HUGE - 1), None);
        assert_eq!(zeroed(&ProgramBreak { kernel_end: all.program_end, ..all.clone() }, 11 * HUGE), None);
        assert_eq!(zeroed(&ProgramBreak { program_end: 12 * HUGE, ..all.clone() }, 11 * HUGE), None);
        assert_eq!(zeroed(&ProgramBreak { is_overlaid: true, ..all.clone() }, 11 * HUGE), None);
        let regions = |region: u64| test_break(all.program_end, Some(&[region * HUGE]));
        let planned =
            |region| ProgramBreak { kernel_end: all.kernel_end, is_advised: true, ..regions(region) };
        assert_eq!(zeroed(&ProgramBreak { is_advised: false, ..all.clone() }, 11 * HUGE), None);
        assert!(zeroed(&planned(11), 11 * HUGE).is_some());
        assert_eq!(zeroed(&planned(10), 11 * HUGE), None);
    }

    #[test]
    fn a_program_that_shrinks_too_often_is_left_alone() {
        let mut known = test_break(8 * HUGE, None);
        assert!((0..SHRINKS_BURST_MAX).all(|_| !known.count_shrink()));
        known.shrinks_since_ns = clock::monotonic_ns();
        assert!((0..10 * SHRINKS_PER_SECOND_MAX).any(|_| known.count_shrink()));
    }

    #[test]
    fn the_kernels_break_is_ahead_and_ends_with_a_huge_page() {
        let start = 8 * HUGE + 0x3000;
        let all = test_break(start, None);
        for (requested, goal) in [
            (start + 1, 10 * HUGE),
            (start + HUGE - 1, 10 * HUGE),
            (start + HUGE, 12 * HUGE),
            (10 * HUGE, 12 * HUGE),
            (14 * HUGE, 20 * HUGE),
            (1000 * HUGE - 1, 1008 * HUGE),
            (u64::MAX - 1, u64::MAX - 1),
        ] {
            assert_eq!(all.compute_growth_end(start, requested, HUGE), goal, "{requested:x}");
        }
        assert_eq!(
            test_break(start, Some(&[10 * HUGE])).compute_growth_end(start, start + 1, HUGE),
            11 * HUGE
        );
    }

    #[test]
    fn each_huge_page_is_advised_when_it_becomes_whole() {
        let start = 8 * HUGE + 0x3000;
        let ranges = |known: &ProgramBreak, requested, real| -> Vec<(u64, u64)> {
            let fresh = known.find_new_regions(start, requested, real, HUGE).into_iter();
            fresh.map(|placed| (placed.range.start / HUGE, placed.range.end / HUGE)).collect()
        };
        let all = |end| ProgramBreak { is_advised: true, ..test_break(end, None) };
        // A short heap is left alone, and becomes a target with the rest later.
        assert_eq!(ranges(&test_break(start, None), start + HUGE - 1, 10 * HUGE), []);
        assert_eq!(ranges(&test_break(10 * HUGE, None), 10 * HUGE + 1, 12 * HUGE), [(9, 12)]);
        assert_eq!(ranges(&all(10 * HUGE + 0x5000), 11 * HUGE, 13 * HUGE), [(10, 13)]);
        assert_eq!(ranges(&all(12 * HUGE), 12 * HUGE + 1, 13 * HUGE), [(12, 13)]);
        let planned = test_break(10 * HUGE + 8, Some(&[10 * HUGE, 12 * HUGE]));
        assert_eq!(ranges(&planned, 11 * HUGE, 11 * HUGE), [(10, 11)]);
        assert_eq!(ranges(&planned, 11 * HUGE, 12 * HUGE + 8), [(10, 11)]);
        assert_eq!(ranges(&test_break(11 * HUGE, Some(&[10 * HUGE])), 14 * HUGE, 14 * HUGE), []);
    }
}
