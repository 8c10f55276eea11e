//! What is done at the calls that the filter hands over: the ledger is kept, and advice is given where it is
//! wanted, before the program can touch the memory.

use std::fs;
use std::ops::Range;

use pagelab_host::paths;
use pagelab_sys::ptrace::{self, Registers};
use pagelab_sys::seccomp::{CLONE_UNTRACED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, PR_SET_SECCOMP};
use pagelab_tlb::engine::ledger::{Kind, MappingId};

use super::congruent;
use super::inject::{At, Call, Made};
use super::place::merged;
use super::space::{Want, World, overlap};
use super::tracer::{Thread, Tracer, clone3_flags, is_switching_off};
use super::{Choice, Spec};

/// The largest error number (include/linux/err.h, MAX_ERRNO).
const ERRORS: i64 = 4095;
/// The option of prctl for "off but where advised", and its flag.
const EXCEPT_ADVISED: u64 = 1 << 1;

impl Tracer {
    /// A call is about to be made.
    pub fn call_begins(&mut self, world: &mut World, tid: u32) {
        let (Ok(registers), Some(&thread)) = (ptrace::registers(tid), self.threads.get(&tid)) else {
            return self.go_on(tid, 0);
        };
        if self.gives_back(world, tid, thread.process, &registers) {
            return;
        }
        match registers.orig_rax as i64 {
            libc::SYS_brk => self.breaking(world, tid, thread.process, &registers),
            libc::SYS_setrlimit | libc::SYS_prlimit64 | libc::SYS_mlockall => self.go_on(tid, 0),
            libc::SYS_munmap => {
                self.unmapping(world, thread.process, &registers);
                self.go_on(tid, 0);
            }
            libc::SYS_mremap => self.moving(world, tid, thread, registers),
            libc::SYS_madvise if registers.rdx == MADV_HUGEPAGE => {
                let range = self.range(registers.rdi, registers.rsi);
                if let Some(space) = world.space_of(thread.process) {
                    space.own.push(range);
                }
                self.go_on(tid, 0);
            }
            libc::SYS_prctl if registers.rdi == PR_SET_SECCOMP => {
                own_filter(world, thread.process);
                self.go_on(tid, 0);
            }
            // Its other operations ask.
            libc::SYS_seccomp if registers.rdi <= 1 => {
                own_filter(world, thread.process);
                self.go_on(tid, 0);
            }
            libc::SYS_seccomp => self.go_on(tid, 0),
            libc::SYS_prctl if !is_switching_off(&registers) => self.go_on(tid, 0),
            libc::SYS_ptrace => {
                world.tally.note(
                    "the program traces another (ptrace), which has one tracer at a time and has us: it is \
                     refused; --no-tracer needs none"
                        .to_owned(),
                );
                self.go_on(tid, 0);
            }
            libc::SYS_clone => {
                let traced = Registers { rdi: registers.rdi & !CLONE_UNTRACED, ..registers };
                let _ = ptrace::set_registers(tid, &traced);
                self.go_on(tid, 0);
            }
            libc::SYS_clone3 => self.cloning(tid, thread.process, registers),
            libc::SYS_mmap => {
                self.hint(world, tid, thread.process, &registers);
                self.go_on_to_end_of_call(tid, registers);
            }
            _ => self.go_on_to_end_of_call(tid, registers),
        }
    }

    /// A call was made.
    pub fn call_ended(&mut self, world: &mut World, tid: u32) {
        let by_parts = self.threads.get_mut(&tid).is_some_and(|thread| std::mem::take(&mut thread.by_parts));
        let call = self.threads.get_mut(&tid).and_then(|thread| thread.call.take());
        let (Some(call), Ok(after)) = (call, ptrace::registers(tid)) else { return self.go_on(tid, 0) };
        let result = after.rax as i64;
        if call.orig_rax as i64 == libc::SYS_mmap && after.rdi != call.rdi {
            // A call leaves its arguments where they are, and the program may use them again.
            let _ = ptrace::set_registers(tid, &Registers { rdi: call.rdi, ..after });
        }
        if call.orig_rax as i64 == libc::SYS_clone3 {
            let _ = ptrace::write_memory(tid, call.rdi, &call.r12.to_ne_bytes());
        }
        let is_error = (-ERRORS..0).contains(&result);
        match call.orig_rax as i64 {
            libc::SYS_mmap if !is_error => self.mapped(world, tid, &call, result as u64),
            libc::SYS_mremap if by_parts => self.grown_by_parts(world, tid, &call, result),
            libc::SYS_mremap => self.moved(world, tid, &call, (!is_error).then_some(result as u64)),
            libc::SYS_madvise => self.advised_against(world, tid, &call),
            libc::SYS_prctl if !is_error => self.switched_off(world, tid),
            libc::SYS_shmat if !is_error => self.attached(world, tid, result as u64),
            _ => self.go_on(tid, 0),
        }
    }

    /// Whole pages from `start` on, as the kernel rounds a length.
    pub(super) fn range(&self, start: u64, bytes: u64) -> Range<u64> {
        let bytes = bytes.checked_next_multiple_of(self.spec.page).unwrap_or(u64::MAX);
        start..start.saturating_add(bytes)
    }

    /// A planned mapping is about to be made, at an address that the program leaves to the kernel: it is
    /// asked for where it has the same place between the powers of two as in the profiled run. Programs that
    /// reserve more than they use, and use what is aligned in it, so use the same offsets again.
    fn hint(&self, world: &mut World, tid: u32, process: u32, call: &Registers) {
        let flags = call.r10 as i32;
        let Choice::Plan(plan) = &self.spec.choice else { return };
        if call.rdi != 0 || flags & congruent::LEFT_ALONE != 0 || flags & libc::MAP_ANONYMOUS == 0 {
            return;
        }
        let kind = match flags & libc::MAP_TYPE {
            libc::MAP_PRIVATE => Kind::Anonymous,
            _ => Kind::Shared,
        };
        let range = self.range(0, call.rsi);
        let Some(space) = world.space_of(process).filter(|space| space.planned.is_some()) else { return };
        let key = space.ledger.next_key(kind, range.end);
        let [planned] = space.planned_mappings(plan, &key, &(0..0))[..] else { return };
        let text = fs::read(paths::process(process, "maps")).unwrap_or_default();
        let maps = pagelab_formats::maps::parse(&text).unwrap_or_default();
        if let Some(hint) = congruent::free(&maps, range.end, planned.start, self.spec.huge) {
            let _ = ptrace::set_registers(tid, &Registers { rdi: hint, ..*call });
        }
    }

    fn mapped(&mut self, world: &mut World, tid: u32, call: &Registers, start: u64) {
        let range = self.range(start, call.rsi);
        let (flags, process) = (call.r10 as i32, self.process(tid));
        let is_anonymous = flags & libc::MAP_ANONYMOUS != 0;
        let kind = match (is_anonymous, flags & libc::MAP_TYPE) {
            (true, libc::MAP_PRIVATE) => Kind::Anonymous,
            (true, _) => Kind::Shared,
            (false, _) => Kind::File(file_of(process, call.r8 as i32)),
        };
        let is_fixed = flags & libc::MAP_FIXED != 0;
        self.look(world, process, &range);
        let Some(number) = world.processes.get(&process).map(|process| process.space) else {
            return self.go_on(tid, 0);
        };
        let Some(space) = world.spaces.get_mut(&number) else { return self.go_on(tid, 0) };
        if !is_fixed {
            // The kernel found it free: what we still know there went by calls that are not seen.
            space.ledger_mut().unmapped(range.clone());
        }
        let taken = space.take_wants(&range);
        let mapping = match kind {
            Kind::File(path) => space.ledger_mut().file_mapped(range.clone(), path, call.r9),
            kind => space.ledger_mut().mapped(range.clone(), kind),
        };
        note_seen(world, &self.spec, number, mapping, &range);
        let Some(space) = world.spaces.get_mut(&number) else { return self.go_on(tid, 0) };
        let is_stack = flags & libc::MAP_STACK != 0 && self.spec.choice == Choice::All;
        let wants = if is_stack { Vec::new() } else { space.wanted(&self.spec, mapping, &range) };
        settle_taken(world, number, taken, &wants);
        if self.spec.hugetlb && is_anonymous && !wants.is_empty() {
            return self.back_by_pool(world, tid, number, wants, call);
        }
        if is_anonymous {
            share_anon_vma(process, &range, &wants);
        }
        self.advise(world, tid, number, wants, At::Exit);
    }

    /// Maps pages of the hugetlb pool where they are wanted; nothing is there yet. Where the pool is too
    /// small the kernel may have unmapped the range: it is mapped as it was.
    fn back_by_pool(
        &mut self,
        world: &mut World,
        tid: u32,
        number: u32,
        mut wants: Vec<Want>,
        asked: &Registers,
    ) {
        let map = |at: &Range<u64>, more: i32| {
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | more) as u64;
            let arguments = [at.start, at.end - at.start, asked.rdx, flags, u64::MAX, 0];
            Call { number: libc::SYS_mmap, arguments }
        };
        let mut last = Made { results: Vec::new(), was_group_stopped: false };
        for want in &mut wants {
            let at = super::place::inside(&want.at, self.spec.huge);
            if at.is_empty() {
                continue;
            }
            let Some(made) = self.make(tid, At::Exit, &[map(&at, libc::MAP_HUGETLB)]) else { return };
            let result = made.results.first().copied().unwrap_or(0);
            last = joined(last, made);
            if (-ERRORS..0).contains(&result) {
                let error = std::io::Error::from_raw_os_error(-result as i32);
                want.why = Some(format!("the hugetlb pool has no page for it: {error}"));
                let again = map(&at, asked.r10 as i32 & libc::MAP_NORESERVE);
                let Some(made) = self.make(tid, At::Exit, &[again]) else { return };
                last = joined(last, made);
            }
        }
        keep(world, number, wants);
        self.go_on_after(tid, &last);
    }

    /// Has the thread advise what is wanted, keeps the wants, and lets it go on.
    fn advise(&mut self, world: &mut World, tid: u32, number: u32, mut wants: Vec<Want>, at: At) {
        let process = self.process(tid);
        if wants.is_empty() {
            return self.go_on(tid, 0);
        }
        if world.processes.get(&process).is_some_and(|process| process.has_own_filter) {
            let why = "the program's own seccomp filter might forbid it, or kill for it";
            wants.iter_mut().for_each(|want| want.why = Some(why.to_owned()));
            keep(world, number, wants);
            return self.go_on(tid, 0);
        }
        let ranges = merged(wants.iter().map(|want| want.at.clone()));
        let calls: Vec<Call> =
            ranges.iter().map(|range| Call::madvise(range, MADV_HUGEPAGE, self.mark)).collect();
        let Some(made) = self.make(tid, at, &calls) else { return keep(world, number, wants) };
        for (range, &result) in ranges.iter().zip(&made.results) {
            if result < 0 {
                let why = refusal(-result as i32);
                let those = wants.iter_mut().filter(|want| overlap(&want.at, range));
                those.for_each(|want| want.why = Some(why.clone()));
            }
        }
        keep(world, number, wants);
        self.go_on_after(tid, &made);
    }

    pub(super) fn process(&self, tid: u32) -> u32 {
        self.threads.get(&tid).map_or(tid, |thread| thread.process)
    }

    fn unmapping(&mut self, world: &mut World, process: u32, registers: &Registers) {
        let range = self.range(registers.rdi, registers.rsi);
        self.look(world, process, &range);
        let Some(number) = world.processes.get(&process).map(|process| process.space) else { return };
        let Some(space) = world.spaces.get_mut(&number) else { return };
        let taken = space.take_wants(&range);
        // Cut before the call: nobody can be given the range before it was made.
        settle_taken(world, number, taken, &[]);
        if let Some(space) = world.spaces.get_mut(&number) {
            space.ledger_mut().unmapped(range.clone());
            space.own.retain(|own| !overlap(own, &range));
        }
    }

    /// Before an mremap: the kernel refuses to grow what lies in several VMAs, and advice for a part makes
    /// several. So the whole gets one advice before, and the parts theirs after.
    fn moving(&mut self, world: &mut World, tid: u32, thread: Thread, registers: Registers) {
        let old = self.range(registers.rdi, registers.rsi);
        self.look(world, thread.process, &old);
        let Some(space) = world.space_of(thread.process) else { return self.go_on(tid, 0) };
        let is_split = space.wants.iter().any(|want| want.is_region && overlap(&want.at, &old));
        let has_filter = world.processes.get(&thread.process).is_some_and(|process| process.has_own_filter);
        if is_split && !thread.is_whole && !has_filter && !old.is_empty() {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.is_whole = true;
            }
            let call = Call::madvise(&old, MADV_NOHUGEPAGE, self.mark);
            if let Some(made) = self.make(tid, At::Entry, &[call]) {
                self.go_on_after(tid, &made);
            }
            return;
        }
        if thread.is_whole
            && self.grows_last_part(tid, thread.process, &old, &registers)
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.by_parts = true;
        }
        // Another thread may be given the old place before the end of this call is heard of.
        let moves = world.space_of(thread.process).and_then(|space| space.ledger.find(old.start));
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.moves = moves;
        }
        self.go_on_to_end_of_call(tid, registers);
    }

    /// After an mremap: `new` is where it lies now, or `None` if it was refused.
    pub(super) fn moved(&mut self, world: &mut World, tid: u32, call: &Registers, new: Option<u64>) {
        let process = self.process(tid);
        let (was_whole, moves) = self
            .threads
            .get_mut(&tid)
            .map_or((false, None), |thread| (std::mem::take(&mut thread.is_whole), thread.moves.take()));
        let old = self.range(call.rdi, call.rsi);
        let now = new.map_or(old.clone(), |start| self.range(start, call.rdx));
        let Some(number) = world.processes.get(&process).map(|process| process.space) else {
            return self.go_on(tid, 0);
        };
        let Some(space) = world.spaces.get_mut(&number) else { return self.go_on(tid, 0) };
        if new.is_none() && !was_whole {
            return self.go_on(tid, 0);
        }
        let mapping = moves.map(|(mapping, _)| mapping);
        let taken =
            space.wants.extract_if(.., |w| Some(w.mapping) == mapping && overlap(&w.at, &old)).collect();
        if let (Some((mapping, offset)), Some(_)) = (moves, &new) {
            space.ledger_mut().moved_as(mapping, offset, &old, now.clone());
        }
        let wants = mapping.map_or(Vec::new(), |id| space.wanted(&self.spec, id, &now));
        let own: Vec<Range<u64>> = space.own.iter().filter(|own| overlap(own, &old)).cloned().collect();
        for own in own.into_iter().filter(|_| was_whole) {
            // What the program asked for itself is asked for again where it lies now.
            let start = now.start + own.start.saturating_sub(old.start);
            let end = (now.start + own.end.saturating_sub(old.start)).min(now.end);
            let call = Call::madvise(&(start..end), MADV_HUGEPAGE, self.mark);
            if start < end && self.make(tid, At::Exit, &[call]).is_none() {
                return;
            }
        }
        settle_taken(world, number, taken, &wants);
        self.advise(world, tid, number, wants, At::Exit);
    }

    /// The program advised against huge pages.
    fn advised_against(&mut self, world: &mut World, tid: u32, call: &Registers) {
        let process = self.process(tid);
        let range = self.range(call.rdi, call.rsi);
        let overrides = self.spec.overrides;
        let Some(number) = world.processes.get(&process).map(|process| process.space) else {
            return self.go_on(tid, 0);
        };
        let Some(space) = world.spaces.get_mut(&number) else { return self.go_on(tid, 0) };
        space.own.retain(|own| !overlap(own, &range));
        if !space.wants.iter().any(|want| overlap(&want.at, &range)) {
            return self.go_on(tid, 0);
        }
        if overrides {
            let wants = space.take_wants(&range);
            world.tally.note(
                "the program advised against huge pages (MADV_NOHUGEPAGE); advised again: --override"
                    .to_owned(),
            );
            return self.advise(world, tid, number, wants, At::Exit);
        }
        let why = "the program advised against it (MADV_NOHUGEPAGE); --override advises again";
        for want in space.wants.iter_mut().filter(|want| overlap(&want.at, &range)) {
            (want.why, want.is_closed) = (Some(why.to_owned()), true);
        }
        world.tally.note(format!("MADV_NOHUGEPAGE: {why}"));
        self.go_on(tid, 0);
    }

    /// The program switched huge pages off for itself.
    fn switched_off(&mut self, world: &mut World, tid: u32) {
        let process = self.process(tid);
        let has_filter = world.processes.get(&process).is_some_and(|process| process.has_own_filter);
        if !self.spec.overrides || has_filter {
            if let Some(space) = world.space_of(process) {
                space.is_switched_off = true;
            }
            world.tally.note(
                "the program switched huge pages off by prctl (PR_SET_THP_DISABLE): none can come; \
                 --override undoes that"
                    .to_owned(),
            );
            return self.go_on(tid, 0);
        }
        let prctl = |on: u64, flags: u64| Call {
            number: libc::SYS_prctl,
            arguments: [pagelab_sys::seccomp::PR_SET_THP_DISABLE, on, flags, 0, 0, self.mark],
        };
        let undo = [prctl(0, 0), prctl(1, EXCEPT_ADVISED)];
        let Some(made) = self.make(tid, At::Exit, &undo) else { return };
        if made.results.first() == Some(&0) {
            world.tally.note("the program's prctl against huge pages was undone: --override".to_owned());
        }
        self.go_on_after(tid, &made);
    }

    /// A System V segment was attached: its length stands in the list of mappings alone.
    fn attached(&mut self, world: &mut World, tid: u32, start: u64) {
        let process = self.process(tid);
        let text = fs::read(paths::process(process, "maps")).unwrap_or_default();
        let maps = pagelab_formats::maps::parse(&text).unwrap_or_default();
        let found = maps.iter().find(|map| map.start == start);
        if let (Some(map), Some(space)) = (found, world.space_of(process)) {
            space.ledger_mut().mapped(map.start..map.end, Kind::Shared);
        }
        self.go_on(tid, 0);
    }

    /// A clone3: a child that is not traced would have the filter and nobody to answer it.
    fn cloning(&mut self, tid: u32, process: u32, registers: Registers) {
        match clone3_flags(process, &registers) {
            Some(flags) if flags & CLONE_UNTRACED != 0 => {
                let _ =
                    ptrace::write_memory(process, registers.rdi, &(flags & !CLONE_UNTRACED).to_ne_bytes());
                // The program's memory is as it was once the call is over; a register that the account
                // does not use keeps the flags meanwhile.
                self.go_on_to_end_of_call(tid, Registers { r12: flags, ..registers });
            }
            _ => self.go_on(tid, 0),
        }
    }
}

/// What two makings in a row leave to be done.
pub(super) fn joined(before: Made, after: Made) -> Made {
    Made { was_group_stopped: before.was_group_stopped || after.was_group_stopped, ..after }
}

/// The path of an open file of a process; empty if it cannot be told.
fn file_of(process: u32, fd: i32) -> String {
    let link = paths::process(process, &format!("fd/{fd}"));
    fs::read_link(link).map(|path| path.display().to_string()).unwrap_or_default()
}

/// Advice for a part splits the VMA of a new mapping, and the parts can be one again, as mremap needs it,
/// only if they have one `anon_vma`: the kernel makes it at the first write (mm/rmap.c,
/// `__anon_vma_prepare`). So a zero is written over a zero, on a page that is not advised.
fn share_anon_vma(process: u32, range: &Range<u64>, wants: &[Want]) {
    if wants.iter().all(|want| !want.is_region) {
        return;
    }
    let mut gap = range.start;
    for want in wants {
        if want.at.contains(&gap) {
            gap = want.at.end;
        }
    }
    if gap < range.end {
        // Memory that may not be written has no anon_vma, and stays split.
        let _ = ptrace::write_memory(process, gap, &[0]);
    }
}

fn keep(world: &mut World, number: u32, wants: Vec<Want>) {
    if let Some(space) = world.spaces.get_mut(&number) {
        space.wants.extend(wants);
    }
}

fn own_filter(world: &mut World, process: u32) {
    if let Some(process) = world.processes.get_mut(&process) {
        process.has_own_filter = true;
    }
    world.tally.note(
        "the program has a seccomp filter of its own: from then on nothing is advised in it, since its \
         filter might forbid that or kill for it"
            .to_owned(),
    );
}

/// Wants whose memory is gone are counted, but for those that are wanted again where it lies now.
fn settle_taken(world: &mut World, number: u32, taken: Vec<Want>, again: &[Want]) {
    let Some(space) = world.spaces.get(&number) else { return };
    for want in taken {
        let is_again = again.iter().any(|other| other.mapping == want.mapping && other.offset == want.offset);
        if !is_again {
            world.tally.settle(&want, space);
        }
    }
}

/// Remembers that planned mappings appeared.
fn note_seen(world: &mut World, spec: &Spec, number: u32, mapping: MappingId, range: &Range<u64>) {
    let (Choice::Plan(plan), Some(space)) = (&spec.choice, world.spaces.get(&number)) else { return };
    let Some(program) = space.planned else { return };
    let key = &space.ledger.made(mapping).key;
    for planned in space.planned_mappings(plan, key, range) {
        let at = plan.programs[program].mappings.iter().position(|known| std::ptr::eq(known, planned));
        world.tally.seen.extend(at.map(|at| (program, at)));
    }
}

/// What an error of madvise means here.
pub(super) fn refusal(number: i32) -> String {
    let error = std::io::Error::from_raw_os_error(number);
    match number {
        libc::ENOMEM => "madvise: a part of the region is not mapped".to_owned(),
        libc::EAGAIN => "madvise: no room for another VMA (vm.max_map_count)".to_owned(),
        libc::EINVAL => "madvise: this mapping cannot have huge pages (EINVAL)".to_owned(),
        _ => format!("madvise: {error}"),
    }
}
