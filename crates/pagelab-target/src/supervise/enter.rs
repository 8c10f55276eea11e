//! A program as it stands right after its exec: which it is, and what the kernel has mapped for it already.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use pagelab_formats::{maps, process_stat};
use pagelab_host::paths;
use pagelab_model::huge_plan::HugePlan;
use pagelab_model::profile::Program;
use pagelab_sys::ptrace;
use pagelab_tlb::engine::ledger::Ledger;

use super::space::Space;
use crate::identity;

/// The bytes of the instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of the vdso that are looked through for it: it has two or three pages.
const VDSO_BYTES: usize = 64 << 10;

/// The new address space of a process.
pub(super) fn space(pid: u32) -> Space {
    let mut ledger = Ledger::new();
    let mut syscall = None;
    let text = fs::read(paths::process(pid, "maps")).unwrap_or_default();
    for map in maps::parse(&text).unwrap_or_default() {
        let range = map.start..map.end;
        match map.name.as_str() {
            "[stack]" => drop(ledger.stack_at(range)),
            "[vdso]" => syscall = find_syscall(pid, map.start, (map.end - map.start) as usize),
            name if name.starts_with('/') => drop(ledger.file_mapped(range, name.to_owned(), map.offset)),
            _ => {}
        }
    }
    let heap = heap_start(pid).unwrap_or(0);
    if heap > 0 {
        ledger.break_at(heap);
    }
    Space { ledger: Arc::new(ledger), heap, syscall, ..Space::default() }
}

/// Where the heap of a process begins (`start_brk`, Linux 3.3).
pub(super) fn heap_start(pid: u32) -> Option<u64> {
    let text = fs::read(paths::process(pid, "stat")).ok()?;
    process_stat::parse(&text).ok()?.heap_start
}

fn find_syscall(pid: u32, start: u64, bytes: usize) -> Option<u64> {
    let mut code = vec![0; bytes.min(VDSO_BYTES)];
    let had = ptrace::read_memory(pid, start, &mut code).ok()?;
    let at = code[..had].windows(2).position(|two| two == SYSCALL)?;
    Some(start + at as u64)
}

/// The program of a process, by the file that it runs: read through the kernel's link, so that it is the
/// right one also where the file was replaced. Its identity is read only if asked for.
pub(crate) fn program(pid: u32, with_identity: bool) -> Program {
    let link = paths::process(pid, "exe");
    let path = fs::read_link(&link).map(|path| path.display().to_string()).unwrap_or_default();
    match with_identity {
        true => Program { path, ..identity::of(Path::new(&link)) },
        false => Program { path, ..Program::default() },
    }
}

/// The arguments of a process.
pub(super) fn arguments(pid: u32) -> Vec<String> {
    let text = fs::read(paths::process(pid, "cmdline")).unwrap_or_default();
    let words = text.strip_suffix(b"\0").unwrap_or(&text);
    let shown = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    if words.is_empty() { Vec::new() } else { words.split(|&byte| byte == 0).map(shown).collect() }
}

/// The process that a thread belongs to, and that one's parent (`Tgid` and `PPid`).
pub(super) fn family(tid: u32) -> Option<(u32, u32)> {
    let text = fs::read_to_string(paths::process(tid, "status")).ok()?;
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((number("Tgid:")?, number("PPid:")?))
}

/// Whether a process runs 32-bit code: the fifth byte of an ELF file is its class.
pub(super) fn is_32_bit(pid: u32) -> bool {
    use std::io::Read;
    let mut head = [0u8; 5];
    let read = fs::File::open(paths::process(pid, "exe")).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head.starts_with(b"\x7fELF") && head[4] == 1
}

/// How a program stands to a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is the program at this place of the plan.
    Same(usize),
    /// The plan has another build of it, at this place.
    Stale(usize),
    /// The plan has nothing for it.
    Other,
}

/// Looks the program up in the plan: by its identity, or by its path where the plan has none.
pub fn find(plan: &HugePlan, program: &Program) -> Match {
    let of = |test: &dyn Fn(&Program) -> bool| plan.programs.iter().position(|known| test(&known.program));
    let same = |known: &Program| match (&known.identity, &program.identity) {
        (Some(a), Some(b)) => a == b,
        _ => known.path.is_empty() || (known.identity.is_none() && known.path == program.path),
    };
    let name = |path: &str| Path::new(path).file_name().map(ToOwned::to_owned);
    let stale = |known: &Program| known.identity.is_some() && name(&known.path) == name(&program.path);
    match (of(&same), of(&stale)) {
        (Some(at), _) => Match::Same(at),
        (None, Some(at)) => Match::Stale(at),
        (None, None) => Match::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::huge_plan::PlannedProgram;

    #[test]
    fn a_program_is_known_by_its_build_and_another_build_is_stale() {
        let program = |path: &str, identity: Option<&str>| Program {
            path: path.to_owned(),
            bytes: None,
            identity: identity.map(ToOwned::to_owned),
        };
        let plan = |known: Program| HugePlan {
            source: None,
            command: Vec::new(),
            predicted: None,
            programs: vec![PlannedProgram { program: known, mappings: Vec::new() }],
        };
        let here = program("/usr/bin/xz", Some("aa"));
        for (known, wanted) in [
            (program("/usr/bin/xz", Some("aa")), Match::Same(0)),
            (program("/elsewhere/xz", Some("aa")), Match::Same(0)),
            (program("/opt/xz", Some("bb")), Match::Stale(0)),
            (program("/usr/bin/sort", Some("bb")), Match::Other),
            (program("/usr/bin/xz", None), Match::Same(0)),
            (program("/opt/xz", None), Match::Other),
            (program("", None), Match::Same(0)),
        ] {
            assert_eq!(find(&plan(known.clone()), &here), wanted, "{known:?}");
        }
    }
}
