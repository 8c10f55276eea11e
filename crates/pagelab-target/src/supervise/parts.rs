//! An mremap that would grow memory which lies in several VMAs, as our advice leaves it in a forked child.
//!
//! The parts have an `anon_vma` each from the fork on (mm/rmap.c, `anon_vma_fork`) and cannot be one again,
//! and the kernel refuses to grow what lies in several (EFAULT). So the last part is grown where it lies, and
//! where there is no room, part by part is moved to where there is.

use std::fs;
use std::ops::Range;

use pagelab_formats::maps::{self, Map};
use pagelab_host::paths;
use pagelab_sys::ptrace::{self, Registers};

use super::inject::{At, Call};
use super::space::World;
use super::tracer::Tracer;

/// An error, as a call returns it.
const NO_MEMORY: i64 = -(libc::ENOMEM as i64);

impl Tracer {
    /// Before an mremap of `old`, which was given one advice: whether it is to be grown by parts. If so, the
    /// thread is about to grow the last of them, and nothing else.
    pub(super) fn grows_last_part(
        &self,
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
        let parts = parts(process, old);
        let (Some(last), 2..) = (parts.last(), parts.len()) else { return false };
        let part = last.end - last.start;
        let grows =
            Registers { rdi: last.start, rsi: part, rdx: part.saturating_add(more), r10: 0, ..*registers };
        ptrace::set_registers(tid, &grows).is_ok()
    }

    /// The last part was grown, or there was no room for it. Leaves the thread as after the mremap that the
    /// program made.
    pub(super) fn grown_by_parts(&mut self, world: &mut World, tid: u32, call: &Registers, result: i64) {
        let may_move = call.r10 as i32 & libc::MREMAP_MAYMOVE != 0;
        let result = match result {
            NO_MEMORY if may_move => match self.move_parts(tid, call) {
                Some(result) => result,
                // It is gone.
                None => return,
            },
            error if error < 0 => error,
            _ => call.rdi as i64,
        };
        if let Ok(after) = ptrace::registers(tid) {
            let Registers { rdi, rsi, rdx, r10, .. } = *call;
            let _ =
                ptrace::set_registers(tid, &Registers { rdi, rsi, rdx, r10, rax: result as u64, ..after });
        }
        self.moved(world, tid, call, (result > 0).then_some(result as u64));
    }

    /// Moves all parts to a place with room, the last one first, since it alone can fail for want of it. What
    /// the program's call returns; `None` if the thread is gone.
    fn move_parts(&mut self, tid: u32, call: &Registers) -> Option<i64> {
        let process = self.process(tid);
        let old = self.range(call.rdi, call.rsi);
        let bytes = self.range(0, call.rdx).end;
        let Some(reserved) = bytes.checked_add(self.spec.huge) else { return Some(NO_MEMORY) };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let reserve = Call { number: libc::SYS_mmap, arguments: [0, reserved, 0, flags, u64::MAX, 0] };
        let place = self.one(tid, reserve)?;
        if place < 0 {
            return Some(NO_MEMORY);
        }
        // At the same place between two huge pages, so that those that are there can go along.
        let place = place as u64;
        let new = place + old.start.wrapping_sub(place) % self.spec.huge;
        let mut parts: Vec<(Range<u64>, u64)> =
            parts(process, &old).into_iter().map(|part| (part.clone(), part.end - part.start)).collect();
        if let Some(last) = parts.last_mut() {
            last.1 += bytes - (old.end - old.start);
        }
        let mut done: Vec<(Range<u64>, u64)> = Vec::new();
        for (part, bytes) in parts.into_iter().rev() {
            let to = new + (part.start - old.start);
            if self.one(tid, self.moves(part.start, part.end - part.start, bytes, to))? < 0 {
                break;
            }
            done.push((part, bytes));
        }
        let is_all = done.iter().map(|(part, _)| part.end - part.start).sum::<u64>() == old.end - old.start;
        if !is_all {
            for (part, bytes) in done {
                let from = new + (part.start - old.start);
                self.one(tid, self.moves(from, bytes, part.end - part.start, part.start))?;
            }
            self.one(tid, self.unmaps(&(place..place + reserved)))?;
            return Some(NO_MEMORY);
        }
        for rest in [place..new, new + bytes..place + reserved] {
            if !rest.is_empty() {
                self.one(tid, self.unmaps(&rest))?;
            }
        }
        Some(new as i64)
    }

    fn moves(&self, from: u64, bytes: u64, becomes: u64, to: u64) -> Call {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        Call { number: libc::SYS_mremap, arguments: [from, bytes, becomes, flags, to, self.mark] }
    }

    fn unmaps(&self, range: &Range<u64>) -> Call {
        let arguments = [range.start, range.end - range.start, 0, 0, 0, self.mark];
        Call { number: libc::SYS_munmap, arguments }
    }

    /// The result of one call that the thread makes.
    fn one(&mut self, tid: u32, call: Call) -> Option<i64> {
        let made = self.make(tid, At::Exit, &[call])?;
        self.stopped_again(tid, &made);
        made.results.first().copied()
    }
}

/// The VMAs that `range` lies in, cut to it; none where there is a gap, or where they are of different kinds:
/// the kernel would refuse those without us too.
fn parts(process: u32, range: &Range<u64>) -> Vec<Range<u64>> {
    let text = fs::read(paths::process(process, "maps")).unwrap_or_default();
    alike(&maps::parse(&text).unwrap_or_default(), range)
}

fn alike(maps: &[Map], range: &Range<u64>) -> Vec<Range<u64>> {
    let within: Vec<&Map> =
        maps.iter().filter(|map| map.start < range.end && range.start < map.end).collect();
    let kind = |map: &Map| (map.mode.clone(), map.name.clone());
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

    #[test]
    fn parts_are_of_one_kind_and_touch() {
        let maps = |text: &str| maps::parse(text.as_bytes()).unwrap();
        let found = |text: &str| alike(&maps(text), &(0x20000..0x60000));
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
