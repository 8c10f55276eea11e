//! A heap that grows by less than a huge page at a time: the kernel is asked for the end of the huge page
//! that it grows into, and the program is told the break that it asked for. So the first touch finds room for
//! a whole huge page, where it would have found a few small ones.
//!
//! The supervisor makes the kernel's call itself while the program's call stands at its begin, and gives the
//! answer in its place: no other thread's `brk` comes in between.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use pagelab_host::paths;
use pagelab_model::huge_plan::HugePlan;
use pagelab_model::profile::MappingKind;
use pagelab_sys::clock;
use pagelab_sys::ptrace::{self, Registers};
use pagelab_sys::seccomp::{MADV_HUGEPAGE, PR_SET_MM, PR_SET_SECCOMP};

use super::calls::{joined, refusal};
use super::inject::{At, Call, Made};
use super::place::{self, Placed, merged};
use super::space::{Space, Want, World, overlap};
use super::tally::Tally;
use super::tracer::Tracer;
use super::{Choice, Spec};

/// What the kernel is asked for beyond the break: as much as the heap is long, at least two huge pages and at
/// most this. Calls of ours cost more than answers. Memory that is not touched is not there.
const MOST_AHEAD: u64 = 16 << 20;

/// A break that goes down by so little inside of a huge page leaves the page whole, and what went is zeroed:
/// a malloc gives back some pages of its top as it goes.
const MOST_ZEROED: u64 = 512 << 10;

/// Shrinks that the kernel is asked for, at first and in a second: a program that shrinks its heap more often
/// would pay for what it has not long.
const SHRINKS: u64 = 64;
const SHRINKS_A_SECOND: u64 = 20;

/// Where the heap of an address space ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Break {
    /// For the program.
    pub end: u64,
    /// For the kernel: never less.
    pub real: u64,
    /// Most bytes on a huge page between the two that were seen.
    pub beyond: u64,
    /// The kernel is to be asked: a first small growth was left to it, or this is a fork's, which may have
    /// been made while another thread changed it.
    is_unsure: bool,
    /// A part of it was advised.
    is_advised: bool,
    /// Something was mapped over a part of the heap: it is not for us to write there.
    is_overlaid: bool,
    /// Shrinks that the kernel was asked for, since when.
    shrinks: u64,
    since_ns: u64,
    /// What the plan wants of the heap, by address; `None`: all of it.
    regions: Option<Arc<[Placed]>>,
}

impl Break {
    /// A heap that begins here.
    fn new(start: u64, regions: Option<Arc<[Placed]>>) -> Break {
        let (is_unsure, is_advised, is_overlaid) = (false, false, false);
        let (end, real, beyond, shrinks, since_ns) = (start, start, 0, 0, clock::monotonic_ns());
        Break { end, real, beyond, is_unsure, is_advised, is_overlaid, shrinks, since_ns, regions }
    }

    /// The same in a forked child.
    pub fn forked(&self) -> Break {
        Break { is_unsure: true, beyond: 0, ..self.clone() }
    }

    /// Memory that the kernel has given and the program has not asked for.
    pub fn gap(&self, page: u64) -> Range<u64> {
        self.end.next_multiple_of(page)..self.real.next_multiple_of(page)
    }

    /// What the kernel is asked for when the program asks for `asked`, in a heap that begins at `start`.
    fn goal(&self, start: u64, asked: u64, huge: u64) -> u64 {
        let bytes = asked - start;
        let goal = match self.is_short(start, asked, huge) {
            true => start.checked_add(huge),
            false => asked.checked_add(bytes.clamp(2 * huge, MOST_AHEAD)),
        };
        goal.and_then(|goal| goal.checked_next_multiple_of(huge)).unwrap_or(asked)
    }

    /// As with mappings: of all memory, what is shorter than a huge page is left alone.
    fn is_short(&self, start: u64, asked: u64, huge: u64) -> bool {
        self.regions.is_none() && asked - start < huge
    }

    /// What of a heap that begins at `start` is to be zeroed for a break at `asked`, where the huge page that
    /// it lies in stays whole.
    fn zeroed(&self, start: u64, asked: u64, page: u64, huge: u64) -> Option<Range<u64>> {
        let gone = asked.next_multiple_of(page)..self.end.next_multiple_of(page);
        let first = asked - asked % huge;
        let kept = first..first.saturating_add(huge);
        let is_huge = start <= kept.start && self.end <= kept.end && kept.end <= self.real;
        let is_planned = |all: &[Placed]| all.iter().any(|region| region.at == kept);
        let is_wanted = self.is_advised && self.regions.as_deref().is_none_or(is_planned);
        let is_short = gone.end.saturating_sub(gone.start) <= MOST_ZEROED;
        (is_huge && is_wanted && is_short && !self.is_overlaid).then_some(gone)
    }

    /// The kernel was asked to shrink it once more. Whether that is too often.
    fn shrank(&mut self) -> bool {
        self.shrinks += 1;
        let seconds = (clock::monotonic_ns() - self.since_ns) / 1_000_000_000;
        self.shrinks > SHRINKS + SHRINKS_A_SECOND * seconds
    }

    /// What is wanted and became whole when the kernel's break went up from `self.real` to `real`, for one of
    /// the program's at `asked`.
    fn fresh(&self, start: u64, asked: u64, real: u64, huge: u64) -> Vec<Placed> {
        match &self.regions {
            None if self.is_short(start, asked, huge) => Vec::new(),
            None => {
                let whole = place::inside(&(start..real), huge);
                let known = if self.is_advised { self.real - self.real % huge } else { start };
                let from = whole.start.max(known);
                let placed = Placed { offset: from.saturating_sub(start), at: from..whole.end };
                (from < whole.end).then_some(placed).into_iter().collect()
            }
            Some(regions) => {
                let is_fresh = |region: &&Placed| region.at.end <= real && region.at.end > self.real;
                regions.iter().filter(is_fresh).cloned().collect()
            }
        }
    }
}

impl Spec {
    /// Whether any heap is wanted, so that `brk` must be seen.
    pub(super) fn wants_heaps(&self) -> bool {
        match &self.choice {
            _ if self.hugetlb => false,
            Choice::Nothing => false,
            Choice::All => true,
            Choice::Plan(plan) => {
                let kinds = plan.programs.iter().flat_map(|program| &program.mappings);
                kinds.into_iter().any(|m| matches!(m.key.kind, MappingKind::Heap | MappingKind::Placed))
            }
        }
    }

    /// The break of a program that was just started; `None` where its heap is left alone.
    pub(super) fn new_break(&self, pid: u32, space: &Space) -> Option<Break> {
        if !self.wants_heaps() || space.heap == 0 {
            return None;
        }
        let regions = match &self.choice {
            Choice::Plan(plan) => {
                let placed = space.heap_placed(plan, self.huge);
                (!placed.is_empty()).then(|| Some(placed.into()))?
            }
            _ => None,
        };
        is_unlimited(pid).then(|| Break::new(space.heap, regions))
    }
}

impl Space {
    /// What a plan wants of the heap, also of what it has not grown to yet.
    pub fn heap_placed(&self, plan: &HugePlan, huge: u64) -> Vec<Placed> {
        let Some(mapping) = self.heap_mapping() else { return Vec::new() };
        let (key, start) = (&self.ledger.made(mapping).key, self.heap);
        let mut placed = Vec::new();
        for planned in self.planned_mappings(plan, key, &(start..u64::MAX)) {
            let end = match planned.key.kind {
                MappingKind::Placed => {
                    planned.regions.iter().map(|r| r.offset.saturating_add(r.page.0)).max()
                }
                _ => start.checked_add(planned.bytes.0),
            };
            let whole = end.and_then(|end| end.checked_next_multiple_of(huge)).unwrap_or(start);
            placed.extend(place::regions(planned, &(start..whole.max(start)), 0, huge));
        }
        placed.sort_by_key(|region| region.at.start);
        placed
    }

    /// Keeps what is wanted of the heap.
    fn keep_heap(&mut self, wants: Vec<Want>) {
        for want in wants {
            let is_same = |known: &&mut Want| known.mapping == want.mapping && !known.is_inherited;
            let known = match want.is_region {
                true => self.wants.iter_mut().filter(is_same).find(|known| known.at == want.at),
                // One stretch, for as long as it grows.
                false => self.wants.iter_mut().filter(is_same).find(|known| {
                    !known.is_region && known.at.start <= want.at.start && known.at.end >= want.at.start
                }),
            };
            match known {
                Some(known) => {
                    known.at.end = known.at.end.max(want.at.end);
                    known.why = known.why.take().or(want.why);
                }
                None => self.wants.push(want),
            }
        }
    }

    /// The heap ends at `end` now, lower than before.
    fn heap_shrank(&mut self, end: u64, huge: u64) {
        let Some(heap) = self.heap_mapping() else { return };
        let end = end - end % huge;
        for want in self.wants.iter_mut().filter(|want| want.mapping == heap && !want.is_region) {
            want.at.end = want.at.end.min(end.max(want.at.start));
        }
    }
}

impl Tracer {
    /// The program calls brk.
    pub fn breaking(&mut self, world: &mut World, tid: u32, process: u32, call: &Registers) {
        let Some(space) = world.space_of(process) else { return self.go_on(tid, 0) };
        let (start, is_shared) = (space.heap, space.users > 1);
        let Some(known) = &mut space.brk else { return self.go_on(tid, 0) };
        let asked = call.rdi;
        if known.is_unsure {
            return self.learn_break(world, tid, process);
        }
        if known.real == start && asked > start && known.is_short(start, asked, self.spec.huge) {
            // Most programs need no more than this. Another thread's call might come before it.
            let threads = self.threads.values().filter(|thread| thread.process == process);
            if !is_shared && threads.count() == 1 {
                known.is_unsure = true;
                return self.go_on(tid, 0);
            }
        }
        let (page, huge) = (self.spec.page, self.spec.huge);
        let is_shrunk = || {
            let gone = (start..known.end).contains(&asked).then(|| known.zeroed(start, asked, page, huge));
            gone.flatten().is_some_and(|gone| is_zeroed(process, &gone))
        };
        if asked == 0 || (known.end..=known.real).contains(&asked) || is_shrunk() {
            known.end = if asked == 0 { known.end } else { asked };
            // No call is made, and its answer stands.
            let answer = Registers { orig_rax: u64::MAX, rax: known.end, ..*call };
            let _ = ptrace::set_registers(tid, &answer);
            return self.go_on(tid, 0);
        }
        let known = known.clone();
        if asked < known.end {
            self.look_before_shrinking(world, process, &(asked..known.end));
        }
        let goal = if asked > known.real { known.goal(start, asked, huge) } else { asked };
        self.break_by_kernel(world, tid, &known, call, goal);
    }

    /// Asks the kernel where the break is. The call comes again.
    fn learn_break(&mut self, world: &mut World, tid: u32, process: u32) {
        let Some(made) = self.make(tid, At::Entry, &[brk(0, self.mark)]) else { return };
        let known = world.space_of(process).and_then(|space| space.brk.as_mut());
        if let (Some(known), Some(real)) = (known, made.results.first().map(|real| real.cast_unsigned())) {
            if real != known.real {
                (known.end, known.real) = (real, real);
            }
            known.is_unsure = false;
        }
        self.go_on_after(tid, &made);
    }

    /// Asks the kernel for `goal`, or else for what the program asked for, and gives the answer.
    fn break_by_kernel(&mut self, world: &mut World, tid: u32, known: &Break, call: &Registers, goal: u64) {
        let (asked, mark, huge) = (call.rdi, self.mark, self.spec.huge);
        let Some(mut made) = self.make(tid, At::Entry, &[brk(goal, mark)]) else { return };
        let is = |made: &Made, goal: u64| made.results.first() == Some(&goal.cast_signed());
        // It stands behind its call now.
        let answer = |end: u64| Registers { rax: end, ..*call };
        let mut real = goal;
        if !is(&made, goal) && goal != asked {
            let _ = ptrace::set_registers(tid, &answer(known.end));
            let Some(again) = self.make(tid, At::Exit, &[brk(asked, mark)]) else { return };
            (made, real) = (joined(made, again), asked);
        }
        let is_done = is(&made, real);
        let _ = ptrace::set_registers(tid, &answer(if is_done { asked } else { known.end }));
        let process = self.threads.get(&tid).map_or(tid, |thread| thread.process);
        let Some(number) = world.processes.get(&process).map(|process| process.space) else { return };
        let Some(space) = world.spaces.get_mut(&number).filter(|_| is_done) else {
            return self.go_on_after(tid, &made);
        };
        if let Some(kept) = &mut space.brk {
            (kept.end, kept.real) = (asked, real);
        }
        space.ledger_mut().break_at(real);
        if real < known.real {
            space.heap_shrank(real, huge);
            if space.brk.as_mut().is_some_and(Break::shrank) {
                space.brk = None;
                let why = "it gets huge pages by collapses alone from then on";
                world.tally.note(format!("the program shrinks its heap all the time (brk): {why}"));
            }
        }
        let fresh = if real > known.real { known.fresh(space.heap, asked, real, huge) } else { Vec::new() };
        if let (Some(mapping), false) = (space.heap_mapping(), fresh.is_empty()) {
            let is_region = known.regions.is_some();
            let want = |p: Placed| Want { is_region, ..Want::region(mapping, p.offset, p.at) };
            let mut wants: Vec<Want> = fresh.into_iter().map(want).collect();
            let Some(advised) = self.advise_heap(tid, &mut wants) else { return };
            made = joined(made, advised);
            space.keep_heap(wants);
            space.brk.iter_mut().for_each(|kept| kept.is_advised = true);
            note_heap_seen(&self.spec, space, &mut world.tally);
        }
        self.go_on_after(tid, &made);
    }

    fn advise_heap(&mut self, tid: u32, wants: &mut [Want]) -> Option<Made> {
        let ranges = merged(wants.iter().map(|want| want.at.clone()));
        let calls: Vec<Call> = ranges.iter().map(|at| Call::madvise(at, MADV_HUGEPAGE, self.mark)).collect();
        let made = self.make(tid, At::Exit, &calls)?;
        for (range, &result) in ranges.iter().zip(&made.results).filter(|(_, result)| **result < 0) {
            let why = refusal(i32::try_from(-result).unwrap_or(0));
            wants.iter_mut().filter(|w| overlap(&w.at, range)).for_each(|w| w.why = Some(why.clone()));
        }
        Some(made)
    }

    /// What goes is counted while it is there, where it is worth a look.
    fn look_before_shrinking(&self, world: &mut World, process: u32, range: &Range<u64>) {
        let is_long = range.end - range.start >= self.spec.huge;
        let is_unseen = |want: &Want| want.is_region && want.got == 0 && overlap(&want.at, range);
        if is_long || world.space_of(process).is_some_and(|space| space.wants.iter().any(is_unseen)) {
            self.look(world, process, range);
        }
    }

    /// Before a call that must not find more of a heap than the program asked for: the rest is given back,
    /// and the heap is left alone from then on if the call is one for good. True: the call comes again.
    pub fn gives_back(&mut self, world: &mut World, tid: u32, process: u32, call: &Registers) -> bool {
        let page = self.spec.page;
        let Some(space) = world.space_of(process) else { return false };
        let start = space.heap;
        let Some(known) = &mut space.brk else { return false };
        let (gap, is_for_good) = (known.gap(page), ends_it(call, process));
        known.is_overlaid |= is_laid_over(call, &(start..known.real));
        if !is_for_good && (gap.is_empty() || !is_laid_over(call, &gap)) {
            return false;
        }
        if known.is_unsure {
            self.learn_break(world, tid, process);
            return true;
        }
        let (end, is_whole) = (known.end, known.end == known.real);
        known.real = end;
        if is_for_good {
            space.brk = None;
            if call.orig_rax as i64 == libc::SYS_prctl && call.rdi == PR_SET_MM {
                let why = "its heap gets huge pages by collapses alone from then on";
                world.tally.note(format!("the program sets its own break (PR_SET_MM): {why}"));
            }
        }
        if is_whole {
            return false;
        }
        let mark = self.mark;
        if let Some(made) = self.make(tid, At::Entry, &[brk(end, mark)]) {
            self.go_on_after(tid, &made);
        }
        true
    }

    /// Reads how much of a huge page lies beyond the break of a program.
    pub fn look_beyond(&self, space: &mut Space, pid: u32, range: &Range<u64>) {
        let Some(known) = &mut space.brk else { return };
        let gap = known.gap(self.spec.page);
        if let (true, Ok(pagemap)) = (overlap(&gap, range), fs::File::open(paths::process(pid, "pagemap"))) {
            let huge = pagelab_sys::pagemap_scan::huge_bytes(&pagemap, gap).map_or(0, |bytes| bytes.0);
            known.beyond = known.beyond.max(huge);
        }
    }
}

/// Remembers that a planned heap appeared.
pub(super) fn note_heap_seen(spec: &Spec, space: &Space, tally: &mut Tally) {
    let (Choice::Plan(plan), Some(program)) = (&spec.choice, space.planned) else { return };
    let heaps = plan.programs[program].mappings.iter().enumerate();
    let seen = heaps.filter(|(_, mapping)| mapping.key.kind == MappingKind::Heap);
    tally.seen.extend(seen.map(|(at, _)| (program, at)));
}

fn brk(end: u64, mark: u64) -> Call {
    Call { number: libc::SYS_brk, arguments: [end, 0, 0, 0, 0, mark] }
}

/// Whether a heap must end where the program says from this call on: more would count against its limits, or
/// be locked; or its own filter might forbid what is ours.
fn ends_it(call: &Registers, process: u32) -> bool {
    match call.orig_rax as i64 {
        libc::SYS_setrlimit | libc::SYS_mlockall => true,
        libc::SYS_prlimit64 => call.rdx != 0 && (call.rdi == 0 || call.rdi == u64::from(process)),
        libc::SYS_prctl => matches!(call.rdi, PR_SET_MM | PR_SET_SECCOMP),
        libc::SYS_seccomp => call.rdi <= 1,
        _ => false,
    }
}

/// Whether a call names addresses in `gap`.
fn is_laid_over(call: &Registers, gap: &Range<u64>) -> bool {
    let is_over = |start: u64, bytes: u64| overlap(&(start..start.saturating_add(bytes)), gap);
    let fixed = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
    match call.orig_rax as i64 {
        libc::SYS_mmap => call.r10 & fixed != 0 && is_over(call.rdi, call.rsi),
        libc::SYS_munmap => is_over(call.rdi, call.rsi),
        libc::SYS_mremap => {
            let is_fixed = call.r10 & libc::MREMAP_FIXED as u64 != 0;
            is_over(call.rdi, call.rsi) || (is_fixed && is_over(call.r8, call.rdx))
        }
        // The segment's length is not told: what begins below may reach into it.
        libc::SYS_shmat => call.rsi != 0 && call.rsi < gap.end,
        _ => false,
    }
}

/// Fills a stretch of a process with zeros. False: not all of it could be written.
fn is_zeroed(pid: u32, range: &Range<u64>) -> bool {
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

/// Whether a process may have as much data and as many addresses as it likes: a larger heap else makes other
/// calls fail.
fn is_unlimited(pid: u32) -> bool {
    let text = fs::read_to_string(paths::process(pid, "limits")).unwrap_or_default();
    ["Max data size", "Max address space"].iter().all(|name| {
        let soft = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        soft == Some("unlimited")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = 2 << 20;

    fn at(end: u64, regions: Option<&[u64]>) -> Break {
        let region = |&start: &u64| Placed { offset: start, at: start..start + HUGE };
        let regions = regions.map(|starts| starts.iter().map(region).collect());
        Break { end, real: end, ..Break::new(end, regions) }
    }

    #[test]
    fn a_small_shrink_leaves_a_huge_page_whole() {
        let (start, page) = (8 * HUGE + 0x3000, 0x1000);
        let all = Break { real: 12 * HUGE, is_advised: true, ..at(11 * HUGE + 0x40010, None) };
        let zeroed = |known: &Break, asked| known.zeroed(start, asked, page, HUGE);
        assert_eq!(zeroed(&all, 11 * HUGE + 0x3ff), Some(11 * HUGE + 0x1000..11 * HUGE + 0x41000));
        assert_eq!(zeroed(&all, 11 * HUGE + 0x40001), Some(11 * HUGE + 0x41000..11 * HUGE + 0x41000));
        // Out of the page; out of a page that is not whole; too much; not ours.
        assert_eq!(zeroed(&all, 11 * HUGE - 1), None);
        assert_eq!(zeroed(&Break { real: all.end, ..all.clone() }, 11 * HUGE), None);
        assert_eq!(zeroed(&Break { end: 12 * HUGE, ..all.clone() }, 11 * HUGE), None);
        assert_eq!(zeroed(&Break { is_overlaid: true, ..all.clone() }, 11 * HUGE), None);
        let regions = |region: u64| at(all.end, Some(&[region * HUGE]));
        let planned = |region| Break { real: all.real, is_advised: true, ..regions(region) };
        assert_eq!(zeroed(&Break { is_advised: false, ..all.clone() }, 11 * HUGE), None);
        assert!(zeroed(&planned(11), 11 * HUGE).is_some());
        assert_eq!(zeroed(&planned(10), 11 * HUGE), None);
    }

    #[test]
    fn a_program_that_shrinks_all_the_time_is_left_alone() {
        let mut known = at(8 * HUGE, None);
        assert!((0..SHRINKS).all(|_| !known.shrank()));
        known.since_ns = clock::monotonic_ns();
        assert!((0..10 * SHRINKS_A_SECOND).any(|_| known.shrank()));
    }

    #[test]
    fn the_kernel_is_asked_for_more_and_for_whole_pages() {
        let start = 8 * HUGE + 0x3000;
        let all = at(start, None);
        for (asked, goal) in [
            (start + 1, 10 * HUGE),
            (start + HUGE - 1, 10 * HUGE),
            (start + HUGE, 12 * HUGE),
            (10 * HUGE, 12 * HUGE),
            (14 * HUGE, 20 * HUGE),
            (1000 * HUGE - 1, 1008 * HUGE),
            (u64::MAX - 1, u64::MAX - 1),
        ] {
            assert_eq!(all.goal(start, asked, HUGE), goal, "{asked:x}");
        }
        assert_eq!(at(start, Some(&[10 * HUGE])).goal(start, start + 1, HUGE), 11 * HUGE);
    }

    #[test]
    fn each_page_is_advised_when_it_becomes_whole() {
        let start = 8 * HUGE + 0x3000;
        let ranges = |known: &Break, asked, real| -> Vec<(u64, u64)> {
            let fresh = known.fresh(start, asked, real, HUGE).into_iter();
            fresh.map(|placed| (placed.at.start / HUGE, placed.at.end / HUGE)).collect()
        };
        let all = |end| Break { is_advised: true, ..at(end, None) };
        // A short heap is left alone, and what it had is wanted with the rest later.
        assert_eq!(ranges(&at(start, None), start + HUGE - 1, 10 * HUGE), []);
        assert_eq!(ranges(&at(10 * HUGE, None), 10 * HUGE + 1, 12 * HUGE), [(9, 12)]);
        assert_eq!(ranges(&all(10 * HUGE + 0x5000), 11 * HUGE, 13 * HUGE), [(10, 13)]);
        assert_eq!(ranges(&all(12 * HUGE), 12 * HUGE + 1, 13 * HUGE), [(12, 13)]);
        let planned = at(10 * HUGE + 8, Some(&[10 * HUGE, 12 * HUGE]));
        assert_eq!(ranges(&planned, 11 * HUGE, 11 * HUGE), [(10, 11)]);
        assert_eq!(ranges(&planned, 11 * HUGE, 12 * HUGE + 8), [(10, 11)]);
        assert_eq!(ranges(&at(11 * HUGE, Some(&[10 * HUGE])), 14 * HUGE, 14 * HUGE), []);
    }
}
