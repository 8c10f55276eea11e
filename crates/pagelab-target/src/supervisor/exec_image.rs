//! A program right after its exec: its identity, and the mappings that the kernel has made for it.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use pagelab_formats::maps::MapsEntry;
use pagelab_formats::{ParseError, maps, process_status};
use pagelab_host::paths;
use pagelab_model::huge_plan::HugePlan;
use pagelab_model::profile::Program;
use pagelab_sys::ptrace;
use pagelab_tlb::engine::mapping_table::MappingTable;

use super::accounting::Accounting;
use super::tracer_state::AddressSpace;
use crate::program;

const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];
/// Bytes of the vdso that are searched for it: it has two or three pages.
const VDSO_BYTES_MAX: usize = 64 << 10;

/// The new address space of a process. What of it cannot be read is noted.
pub(super) fn read_address_space(pid: u32, tally: &mut Accounting) -> AddressSpace {
    let mut table = MappingTable::new();
    let mut syscall_address = None;
    for map in read_maps(pid, tally) {
        let range = map.start..map.end;
        match map.name.as_str() {
            "[stack]" => drop(table.record_stack(range)),
            "[vdso]" => {
                syscall_address = find_syscall_instruction(pid, map.start, (map.end - map.start) as usize)
            }
            name if name.starts_with('/') => drop(table.record_file_mmap(range, name.to_owned(), map.offset)),
            _ => {}
        }
    }
    let heap_start = read_heap_start(pid).unwrap_or_else(|why| {
        tally.add_note(format!("cannot read the heap start of process {pid}: {why}"));
        None
    });
    let heap_start = heap_start.unwrap_or(0);
    if heap_start > 0 {
        table.record_brk(heap_start);
    }
    AddressSpace { mapping_table: Arc::new(table), heap_start, syscall_address, ..AddressSpace::default() }
}

/// The mappings of a process; none of one that has ended. Why they cannot be read is noted.
pub(super) fn read_maps(pid: u32, tally: &mut Accounting) -> Vec<MapsEntry> {
    parse_unless_ended(fs::read(paths::process_file(pid, "maps")), maps::parse).unwrap_or_else(|why| {
        tally.add_note(format!("cannot read the mappings of process {pid}: {why}"));
        Vec::new()
    })
}

/// The contents of a file of `/proc/PID`; nothing if the process has ended.
fn parse_unless_ended<T: Default>(
    text: io::Result<Vec<u8>>,
    parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
) -> Result<T, String> {
    match text {
        Ok(text) => parse(&text).map_err(|error| error.to_string()),
        Err(error) if is_no_process(&error) => Ok(T::default()),
        Err(error) => Err(error.to_string()),
    }
}

/// Start of the heap of a process (`start_brk`, Linux 3.3); `None` if it has ended.
pub(super) fn read_heap_start(pid: u32) -> Result<Option<u64>, String> {
    let parse = |text: &[u8]| process_status::parse_stat(text).map(|stat| stat.heap_start);
    parse_unless_ended(fs::read(paths::process_file(pid, "stat")), parse)
}

/// Whether a file of `/proc/PID` or a call on a thread failed since it has ended.
pub(super) fn is_no_process(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn find_syscall_instruction(pid: u32, start: u64, bytes: usize) -> Option<u64> {
    let mut code = vec![0; bytes.min(VDSO_BYTES_MAX)];
    let had = ptrace::read_memory(pid, start, &mut code).ok()?;
    let at = code[..had].windows(2).position(|two| two == SYSCALL_INSTRUCTION)?;
    Some(start + at as u64)
}

/// The program of a process: its file is read through the kernel's link, so that it is the right one even if
/// the path was replaced. Its identity is read only if requested.
pub(crate) fn read_program(pid: u32, with_identity: bool) -> Program {
    let link = paths::process_file(pid, "exe");
    let path = fs::read_link(&link).map(|path| path.display().to_string()).unwrap_or_default();
    match with_identity {
        true => Program { path, ..program::identify_program(Path::new(&link)) },
        false => Program { path, ..Program::default() },
    }
}

/// The process that a thread belongs to, and that one's parent (`Tgid` and `PPid`).
pub(super) fn read_tgid_and_ppid(tid: u32) -> Option<(u32, u32)> {
    let text = fs::read_to_string(paths::process_file(tid, "status")).ok()?;
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((number("Tgid:")?, number("PPid:")?))
}

/// Whether a process runs 32-bit code: the fifth byte of an ELF file is its class.
pub(super) fn is_32_bit(pid: u32) -> bool {
    use std::io::Read;
    let mut head = [0u8; 5];
    let read =
        fs::File::open(paths::process_file(pid, "exe")).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head.starts_with(b"\x7fELF") && head[4] == 1
}

/// Match of a program with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanMatch {
    /// It is the program at this index of the plan.
    Same(usize),
    /// The plan has another build of it, at this index.
    Stale(usize),
    /// The plan has no regions for it.
    Unplanned,
}

/// Finds the program in the plan: by its identity, or by its path if the plan has none.
pub fn match_plan(plan: &HugePlan, program: &Program) -> PlanMatch {
    let find_position =
        |test: &dyn Fn(&Program) -> bool| plan.programs.iter().position(|known| test(&known.program));
    let same = |known: &Program| match (&known.identity, &program.identity) {
        (Some(a), Some(b)) => a == b,
        _ => known.path.is_empty() || (known.identity.is_none() && known.path == program.path),
    };
    let name = |path: &str| Path::new(path).file_name().map(ToOwned::to_owned);
    let stale = |known: &Program| known.identity.is_some() && name(&known.path) == name(&program.path);
    match (find_position(&same), find_position(&stale)) {
        (Some(at), _) => PlanMatch::Same(at),
        (None, Some(at)) => PlanMatch::Stale(at),
        (None, None) => PlanMatch::Unplanned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::huge_plan::PlannedProgram;

    #[test]
    fn unreadable_mappings_are_told_and_those_of_an_ended_process_are_none() {
        let text = b"1000-2000 rw-p 00000000 00:00 0\n".to_vec();
        let parsed = |text| parse_unless_ended(text, maps::parse);
        assert_eq!(parsed(Ok(text)).map(|maps| maps.len()), Ok(1));
        for ended in [libc::ESRCH, libc::ENOENT] {
            assert_eq!(parsed(Err(io::Error::from_raw_os_error(ended))), Ok(Vec::new()));
        }
        assert!(parsed(Err(io::Error::from_raw_os_error(libc::EACCES))).is_err());
        assert!(parsed(Ok(b"no list of mappings\n".to_vec())).is_err());
        let mut tally = Accounting::default();
        assert!(!read_maps(std::process::id(), &mut tally).is_empty());
        assert_eq!(read_maps(u32::MAX, &mut tally), []);
        assert_eq!(tally.summary.notes, [""; 0]);
    }

    #[test]
    fn a_program_is_known_by_its_build_and_another_build_is_stale() {
        let program = |path: &str, identity: Option<&str>| Program {
            path: path.to_owned(),
            bytes: None,
            identity: identity.map(ToOwned::to_owned),
        };
        let plan = |known: Program| HugePlan {
            programs: vec![PlannedProgram { program: known, mappings: Vec::new() }],
            ..HugePlan::default()
        };
        let here = program("/usr/bin/xz", Some("aa"));
        for (known, wanted) in [
            (program("/usr/bin/xz", Some("aa")), PlanMatch::Same(0)),
            (program("/elsewhere/xz", Some("aa")), PlanMatch::Same(0)),
            (program("/opt/xz", Some("bb")), PlanMatch::Stale(0)),
            (program("/usr/bin/sort", Some("bb")), PlanMatch::Unplanned),
            (program("/usr/bin/xz", None), PlanMatch::Same(0)),
            (program("/opt/xz", None), PlanMatch::Unplanned),
            (program("", None), PlanMatch::Same(0)),
        ] {
            assert_eq!(match_plan(&plan(known.clone()), &here), wanted, "{known:?}");
        }
    }
}
