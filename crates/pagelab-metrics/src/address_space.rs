//! What the mappings of a process are, judged by what the kernel prints of each and of its neighbours, and
//! whether huge pages may come into them.
//!
//! The kernel names few of them (`[heap]`, `[stack]`, `[vdso]`); the rest follows from permissions, the file,
//! and what lies directly below. Where that is a guess, such as an arena of malloc, [`Part`] says so.

use std::ops::Range;

use pagelab_model::Bytes;
use pagelab_model::process::Mapping;

/// What a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The memory that an experiment measures.
    UnderTest,
    /// Instructions of a program or library.
    Text,
    /// Headers and constants of one: mapped for reading, never written.
    ReadOnlyData,
    /// Data that the dynamic linker has relocated and then write-protected (RELRO).
    Relocated,
    /// Variables with a first value: private pages of the file, copied when they are written.
    Data,
    /// Variables that begin as 0: anonymous memory directly above the data.
    Bss,
    /// What `brk` moves: `[heap]`.
    Heap,
    /// Stack of the first thread.
    MainStack,
    /// Likely the stack of another thread: anonymous memory directly above a guard.
    ThreadStack,
    /// Likely an arena of glibc's malloc: aligned to 64 MiB, the rest of the 64 MiB reserved behind it.
    Arena,
    /// Anonymous memory, private.
    Anonymous,
    /// Shared memory without a file on a disk: anonymous and shared, memfd, tmpfs, System V.
    SharedMemory,
    /// A file that no code is run of, private.
    FilePrivate,
    /// A file, shared.
    FileShared,
    /// No access: a guard directly below or above something that may be used.
    Guard,
    /// No access: address space that is reserved.
    Reserved,
    /// Code of the kernel that runs without entering it.
    Vdso,
    /// The kernel's clock data, which that code reads.
    Vvar,
    /// The old place of that code, at a fixed address.
    Vsyscall,
    /// Pages of a hugetlb pool.
    Hugetlb,
    /// A device.
    Device,
    /// Something else that the kernel has a name in brackets for.
    Named,
}

impl Part {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Part::UnderTest => "under_test",
            Part::Text => "text",
            Part::ReadOnlyData => "read_only_data",
            Part::Relocated => "relocated",
            Part::Data => "data",
            Part::Bss => "bss",
            Part::Heap => "heap",
            Part::MainStack => "main_stack",
            Part::ThreadStack => "thread_stack",
            Part::Arena => "arena",
            Part::Anonymous => "anonymous",
            Part::SharedMemory => "shared_memory",
            Part::FilePrivate => "file_private",
            Part::FileShared => "file_shared",
            Part::Guard => "guard",
            Part::Reserved => "reserved",
            Part::Vdso => "vdso",
            Part::Vvar => "vvar",
            Part::Vsyscall => "vsyscall",
            Part::Hugetlb => "hugetlb",
            Part::Device => "device",
            Part::Named => "named",
        }
    }
}

/// Settings on which it depends whether huge pages may come. What is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugeSettings {
    /// Bytes of a huge page.
    pub size: Option<Bytes>,
    /// The mode for anonymous memory: `always`, `madvise`, `never`.
    pub enabled: Option<String>,
    /// The mode for shared memory.
    pub shmem: Option<String>,
    /// Whether the process has them on (`THP_enabled` of its status, 5.0): `false` after PR_SET_THP_DISABLE.
    pub process: Option<bool>,
}

/// Whether transparent huge pages may come into a mapping, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eligible {
    /// They may, as the kernel says.
    Yes,
    /// They may: the mapping asked for them (MADV_HUGEPAGE).
    Asked,
    /// It is in huge pages of a pool already.
    Hugetlb,
    /// It holds no whole, aligned huge page.
    TooSmall,
    /// It said that it wants none (MADV_NOHUGEPAGE).
    Declined,
    /// The process switched them off by prctl.
    SwitchedOff,
    /// The mode is `madvise`, and it did not ask.
    NotAsked,
    /// The mode is `never`.
    ModeNever,
    /// Shared memory has a mode of its own, which does not give any.
    ShmemMode,
    /// Its pages are those of the page cache: the file system chooses their size.
    PageCache,
    /// It is no memory that can be exchanged: frames of a device or of the kernel.
    Special,
    /// No access is allowed, so no page ever comes.
    NoAccess,
    /// Not eligible, and nothing that is known says why.
    Unexplained,
    /// The kernel does not say it (before 5.0).
    NotSaid,
}

impl Eligible {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Eligible::Yes => "eligible",
            Eligible::Asked => "asked",
            Eligible::Hugetlb => "hugetlb",
            Eligible::TooSmall => "too_small",
            Eligible::Declined => "declined",
            Eligible::SwitchedOff => "switched_off",
            Eligible::NotAsked => "not_asked",
            Eligible::ModeNever => "mode_never",
            Eligible::ShmemMode => "shmem_mode",
            Eligible::PageCache => "page_cache",
            Eligible::Special => "special",
            Eligible::NoAccess => "no_access",
            Eligible::Unexplained => "unexplained",
            Eligible::NotSaid => "not_said",
        }
    }
}

/// Most bytes of a mapping without access that is taken for a guard.
const GUARD_MAX: u64 = 1 << 20;
/// Most bytes of a thread's stack: what is larger is more likely memory between guards.
const STACK_MAX: u64 = 256 << 20;
/// What glibc's malloc reserves and aligns an arena to (HEAP_MAX_SIZE of malloc/arena.c, 64 bits).
const ARENA: u64 = 64 << 20;

/// What each of the mappings is, in their order. `under_test` are addresses that an experiment measures.
pub fn parts(mappings: &[Mapping], under_test: Option<&Range<u64>>) -> Vec<Part> {
    (0..mappings.len()).map(|at| part(mappings, at, under_test)).collect()
}

fn part(mappings: &[Mapping], at: usize, under_test: Option<&Range<u64>>) -> Part {
    let of = &mappings[at];
    if under_test.is_some_and(|range| of.start < range.end && range.start < of.end) {
        return Part::UnderTest;
    }
    if has_flag(of, "ht") {
        return Part::Hugetlb;
    }
    match of.name.as_str() {
        "[heap]" => return Part::Heap,
        "[stack]" => return Part::MainStack,
        "[vdso]" => return Part::Vdso,
        "[vsyscall]" => return Part::Vsyscall,
        name if name.starts_with("[vvar") => return Part::Vvar,
        name if is_shared_memory(name) => return Part::SharedMemory,
        name if name.starts_with("[anon:") => {}
        name if name.starts_with('[') => return Part::Named,
        name if name.starts_with("/dev/") => return Part::Device,
        _ => {}
    }
    match is_anonymous(of) {
        true => anonymous(mappings, at),
        false => file(mappings, at),
    }
}

fn anonymous(mappings: &[Mapping], at: usize) -> Part {
    let of = &mappings[at];
    let below = at.checked_sub(1).map(|at| &mappings[at]).filter(|below| below.end == of.start);
    let above = mappings.get(at + 1).filter(|above| above.start == of.end);
    if !may_be_used(of) {
        let arena = below.is_some_and(|below| is_arena(below, of));
        let is_beside = [below, above].into_iter().flatten().any(may_be_used);
        return if len(of) <= GUARD_MAX && is_beside && !arena { Part::Guard } else { Part::Reserved };
    }
    if above.is_some_and(|above| is_arena(of, above)) {
        return Part::Arena;
    }
    if below.is_some_and(|below| is_data(below) && has_code(mappings, &below.name)) {
        return Part::Bss;
    }
    let is_guarded = below.is_some_and(|below| {
        is_anonymous(below) && !may_be_used(below) && len(below) <= GUARD_MAX && len(of) <= STACK_MAX
    });
    if is_guarded && is_shared(of) == Some(false) { Part::ThreadStack } else { Part::Anonymous }
}

fn file(mappings: &[Mapping], at: usize) -> Part {
    let of = &mappings[at];
    match is_shared(of) {
        Some(true) => Part::FileShared,
        _ if !may_be_used(of) => Part::Reserved,
        _ if of.permissions.contains('x') => Part::Text,
        _ if !has_code(mappings, &of.name) => Part::FilePrivate,
        _ if is_data(of) => Part::Data,
        // Memory that was writable stays accounted for when it is protected.
        _ if has_flag(of, "ac") => Part::Relocated,
        _ => Part::ReadOnlyData,
    }
}

/// Whether the second is what glibc keeps reserved behind an arena that begins with the first.
fn is_arena(arena: &Mapping, rest: &Mapping) -> bool {
    let whole = arena.start.is_multiple_of(ARENA) && rest.end - arena.start == ARENA;
    whole && is_anonymous(arena) && is_anonymous(rest) && may_be_used(arena) && !may_be_used(rest)
}

fn is_data(of: &Mapping) -> bool {
    !is_anonymous(of) && of.permissions.starts_with("rw") && is_shared(of) == Some(false)
}

fn has_code(mappings: &[Mapping], name: &str) -> bool {
    mappings.iter().any(|one| one.name == name && one.permissions.contains('x'))
}

/// Shared memory as the kernel names it (mm/shmem.c, ipc/shm.c).
fn is_shared_memory(name: &str) -> bool {
    ["/dev/zero (deleted)", "/memfd:", "/SYSV", "/dev/shm/", "[anon_shmem:"]
        .iter()
        .any(|start| name.starts_with(start))
}

fn is_anonymous(of: &Mapping) -> bool {
    of.inode == 0 && (of.name.is_empty() || of.name.starts_with("[anon:"))
}

fn may_be_used(of: &Mapping) -> bool {
    of.permissions.chars().take(3).any(|sign| sign != '-')
}

/// From the fourth sign of the permissions.
fn is_shared(of: &Mapping) -> Option<bool> {
    match of.permissions.chars().nth(3) {
        Some('s') => Some(true),
        Some('p') => Some(false),
        _ => None,
    }
}

fn has_flag(of: &Mapping, flag: &str) -> bool {
    of.vm_flags.iter().any(|one| one == flag)
}

/// Bytes of a mapping.
pub fn len(of: &Mapping) -> u64 {
    of.end.saturating_sub(of.start)
}

/// Whether transparent huge pages may come into it, and why or why not.
pub fn eligible(of: &Mapping, part: Part, settings: &HugeSettings) -> Eligible {
    if part == Part::Hugetlb || has_flag(of, "ht") {
        return Eligible::Hugetlb;
    }
    if of.thp_eligible == Some(true) {
        return if has_flag(of, "hg") { Eligible::Asked } else { Eligible::Yes };
    }
    let holds =
        |size: Bytes| of.start.checked_next_multiple_of(size.0).is_some_and(|at| at + size.0 <= of.end);
    match of.thp_eligible {
        None => return Eligible::NotSaid,
        _ if !may_be_used(of) => return Eligible::NoAccess,
        _ if ["io", "pf"].iter().any(|flag| has_flag(of, flag)) => return Eligible::Special,
        _ if matches!(part, Part::Vdso | Part::Vvar | Part::Vsyscall | Part::Device) => {
            return Eligible::Special;
        }
        _ if settings.size.is_some_and(|size| !holds(size)) => return Eligible::TooSmall,
        _ if has_flag(of, "nh") => return Eligible::Declined,
        _ if settings.process == Some(false) => return Eligible::SwitchedOff,
        _ => {}
    }
    let is_shmem = part == Part::SharedMemory || is_shared_memory(&of.name);
    match (is_shmem, is_anonymous(of) || of.inode == 0, settings.enabled.as_deref()) {
        (true, ..) => Eligible::ShmemMode,
        (false, false, _) => Eligible::PageCache,
        (false, true, Some("never")) => Eligible::ModeNever,
        (false, true, Some("madvise")) if !has_flag(of, "hg") => Eligible::NotAsked,
        _ => Eligible::Unexplained,
    }
}

#[cfg(test)]
mod tests;
