//! An mremap that grows a range of several VMAs, into which advice of the supervisor splits a forked child's.
//!
//! After the fork each part has an `anon_vma` of its own (mm/rmap.c, `anon_vma_fork`), so that they cannot be
//! merged again, and the kernel does not grow a range of several VMAs (EFAULT). So the last part is grown in
//! place; without room there, the parts are moved one by one.

use std::ops::Range;

use pagelab_formats::maps::MapsEntry;
use pagelab_sys::ptrace::{self, Registers};

use super::exec_image;
use super::injection::{InjectedCall, InjectionPoint, errno_of};
use super::tracer::Tracer;
use super::tracer_state::TracerState;

/// An error, as a call returns it.
const ENOMEM_RESULT: i64 = -(libc::ENOMEM as i64);

impl Tracer {
    /// Before an mremap of `old`, which was advised as a whole: whether it has to be grown by parts. If so,
    /// the thread's call is changed to grow the last part only.
    pub(super) fn redirect_to_last_part(
        &self,
        state: &mut TracerState,
        tid: u32,
        process: u32,
        old: &Range<u64>,
        registers: &Registers,
    ) -> bool {
        let (bytes, flags) = (registers.rdx, registers.r10 as i32);
        let more = bytes.saturating_sub(old.end - old.start);
        if more == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
            return false;
        }
        let parts = find_adjacent_vmas(&exec_image::read_maps(process, &mut state.accounting), old);
        let (Some(last), 2..) = (parts.last(), parts.len()) else { return false };
        let part = last.end - last.start;
        let grow_call =
            Registers { rdi: last.start, rsi: part, rdx: part.saturating_add(more), r10: 0, ..*registers };
        state.accounting.set_registers(tid, &grow_call)
    }

    /// The last part was grown, or had no room to grow. Leaves the thread as after the mremap that the
    /// program made.
    pub(super) fn finish_growth_by_parts(
        &mut self,
        state: &mut TracerState,
        tid: u32,
        call: &Registers,
        result: i64,
    ) {
        let may_move = call.r10 as i32 & libc::MREMAP_MAYMOVE != 0;
        let result = match result {
            ENOMEM_RESULT if may_move => match self.move_parts(state, tid, call) {
                Some(result) => result,
                // The thread is gone.
                None => return,
            },
            _ if errno_of(result).is_some() => result,
            _ => call.rdi as i64,
        };
        if let Ok(after) = ptrace::read_registers(tid) {
            let Registers { rdi, rsi, rdx, r10, .. } = *call;
            let answer = Registers { rdi, rsi, rdx, r10, rax: result as u64, ..after };
            state.accounting.set_registers(tid, &answer);
        }
        self.handle_mremap_exit(state, tid, call, errno_of(result).is_none().then_some(result as u64));
    }

    /// Moves all parts to addresses with room, the last one first, since only it can fail for lack of memory.
    /// Returns the result of the program's call; `None` if the thread is gone.
    fn move_parts(&mut self, state: &mut TracerState, tid: u32, call: &Registers) -> Option<i64> {
        let process = self.process_of_thread(tid);
        let old = self.page_range(call.rdi, call.rsi);
        let bytes = self.page_range(0, call.rdx).end;
        let Some(reserved) = bytes.checked_add(self.spec.huge) else { return Some(ENOMEM_RESULT) };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let reserve =
            InjectedCall { number: libc::SYS_mmap, arguments: [0, reserved, 0, flags, u64::MAX, 0] };
        let place = self.inject_call(tid, reserve)?;
        if errno_of(place).is_some() {
            return Some(ENOMEM_RESULT);
        }
        // At the same offset in a huge page, so that huge pages can be moved as such.
        let place = place as u64;
        let new = place + old.start.wrapping_sub(place) % self.spec.huge;
        let vmas = find_adjacent_vmas(&exec_image::read_maps(process, &mut state.accounting), &old);
        let mut parts: Vec<(Range<u64>, u64)> =
            vmas.into_iter().map(|part| (part.clone(), part.end - part.start)).collect();
        if let Some(last) = parts.last_mut() {
            last.1 += bytes - (old.end - old.start);
        }
        let mut done: Vec<(Range<u64>, u64)> = Vec::new();
        for (part, bytes) in parts.into_iter().rev() {
            let to = new + (part.start - old.start);
            let moved =
                self.inject_call(tid, self.mremap_call(part.start, part.end - part.start, bytes, to))?;
            if errno_of(moved).is_some() {
                break;
            }
            done.push((part, bytes));
        }
        let is_all = done.iter().map(|(part, _)| part.end - part.start).sum::<u64>() == old.end - old.start;
        if !is_all {
            for (part, bytes) in done {
                let from = new + (part.start - old.start);
                self.inject_call(tid, self.mremap_call(from, bytes, part.end - part.start, part.start))?;
            }
            self.inject_call(tid, self.munmap_call(&(place..place + reserved)))?;
            return Some(ENOMEM_RESULT);
        }
        for rest in [place..new, new + bytes..place + reserved] {
            if !rest.is_empty() {
                self.inject_call(tid, self.munmap_call(&rest))?;
            }
        }
        Some(new as i64)
    }

    fn mremap_call(&self, from: u64, bytes: u64, new_bytes: u64, to: u64) -> InjectedCall {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        InjectedCall { number: libc::SYS_mremap, arguments: [from, bytes, new_bytes, flags, to, self.mark] }
    }

    fn munmap_call(&self, range: &Range<u64>) -> InjectedCall {
        let arguments = [range.start, range.end - range.start, 0, 0, 0, self.mark];
        InjectedCall { number: libc::SYS_munmap, arguments }
    }

    /// Makes the thread execute one call, and returns its result.
    fn inject_call(&mut self, tid: u32, call: InjectedCall) -> Option<i64> {
        let made = self.inject_calls(tid, InjectionPoint::SyscallExit, &[call])?;
        self.restore_group_stop(tid, &made);
        Some(made.single())
    }
}

/// The VMAs of `range`, cut to it; none if there is a gap, or if they are of different kinds: the kernel
/// would fail the program's own call for these.
fn find_adjacent_vmas(maps: &[MapsEntry], range: &Range<u64>) -> Vec<Range<u64>> {
    let within: Vec<&MapsEntry> =
        maps.iter().filter(|map| map.start < range.end && range.start < map.end).collect();
    let kind = |map: &MapsEntry| (map.mode.clone(), map.name.clone());
    let is_one = within.windows(2).all(|two| two[0].end == two[1].start && kind(two[0]) == kind(two[1]));
    let (Some(first), Some(last)) = (within.first(), within.last()) else { return Vec::new() };
    if !is_one || first.start > range.start || last.end < range.end || !first.name.is_empty() {
        return Vec::new();
    }
    within.iter().map(|map| map.start.max(range.start)..map.end.min(range.end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::maps;

    #[test]
    fn parts_are_of_one_kind_and_touch() {
        let maps = |text: &str| maps::parse(text.as_bytes()).unwrap();
        let found = |text: &str| find_adjacent_vmas(&maps(text), &(0x20000..0x60000));
        let line = |range: &str, mode: &str, name: &str| format!("{range} {mode} 00000000 00:00 0 {name}\n");
        let whole = line("10000-30000", "rw-p", "") + &line("30000-60000", "rw-p", "");
        assert_eq!(found(&whole), [0x20000..0x30000, 0x30000..0x60000]);
        for other in [
            line("10000-30000", "rw-p", "") + &line("40000-60000", "rw-p", ""),
            line("10000-30000", "rw-p", "") + &line("30000-50000", "rw-p", ""),
            line("10000-30000", "r--p", "") + &line("30000-60000", "rw-p", ""),
            line("10000-30000", "rw-p", "[heap]") + &line("30000-60000", "rw-p", "[heap]"),
        ] {
            assert_eq!(found(&other), [], "{other}");
        }
    }
}
