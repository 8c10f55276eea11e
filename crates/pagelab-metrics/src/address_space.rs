//! Roles of the mappings of a process, derived from the kernel's line of each and of its neighbours, and
//! whether they can have huge pages.
//!
//! The kernel names few of them (`[heap]`, `[stack]`, `[vdso]`); the rest follows from permissions, the file,
//! and the mapping directly below. If that is an assumption, such as an arena of malloc, [`MappingRole`]
//! states it.

use std::ops::Range;

use pagelab_model::Bytes;
use pagelab_model::process::Mapping;

/// Kind of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingRole {
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
    /// Memory that `brk` moves: `[heap]`.
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
    NamedByKernel,
}

impl MappingRole {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            MappingRole::UnderTest => "under_test",
            MappingRole::Text => "text",
            MappingRole::ReadOnlyData => "read_only_data",
            MappingRole::Relocated => "relocated",
            MappingRole::Data => "data",
            MappingRole::Bss => "bss",
            MappingRole::Heap => "heap",
            MappingRole::MainStack => "main_stack",
            MappingRole::ThreadStack => "thread_stack",
            MappingRole::Arena => "arena",
            MappingRole::Anonymous => "anonymous",
            MappingRole::SharedMemory => "shared_memory",
            MappingRole::FilePrivate => "file_private",
            MappingRole::FileShared => "file_shared",
            MappingRole::Guard => "guard",
            MappingRole::Reserved => "reserved",
            MappingRole::Vdso => "vdso",
            MappingRole::Vvar => "vvar",
            MappingRole::Vsyscall => "vsyscall",
            MappingRole::Hugetlb => "hugetlb",
            MappingRole::Device => "device",
            MappingRole::NamedByKernel => "named",
        }
    }
}

/// Settings on which it depends whether huge pages may come. Unknown values are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThpEligibilitySettings {
    /// Bytes of a huge page.
    pub pmd_size: Option<Bytes>,
    /// The mode for anonymous memory: `always`, `madvise`, `never`.
    pub enabled: Option<String>,
    /// The mode for shared memory.
    pub shmem_enabled: Option<String>,
    /// Whether the process has them on (`THP_enabled` of its status, 5.0): `false` after PR_SET_THP_DISABLE.
    pub process_enabled: Option<bool>,
}

/// Whether transparent huge pages may come into a mapping, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpEligibility {
    /// Eligible according to the kernel.
    Yes,
    /// They may: the mapping has the advice MADV_HUGEPAGE.
    Advised,
    /// It is in huge pages of a pool already.
    Hugetlb,
    /// It holds no whole, aligned huge page.
    TooSmall,
    /// The program disabled them (MADV_NOHUGEPAGE).
    Declined,
    /// The process switched them off by prctl.
    DisabledByPrctl,
    /// The mode is `madvise`, and it did not ask.
    NotAdvised,
    /// The mode is `never`.
    NeverMode,
    /// Shared memory has a separate mode, which gives none.
    ShmemMode,
    /// Its pages are those of the page cache: the file system chooses their size.
    PageCache,
    /// It is no memory that can be exchanged: frames of a device or of the kernel.
    SpecialMapping,
    /// No access is allowed, so no page ever comes.
    NoAccess,
    /// Not eligible, for an unknown reason.
    Unexplained,
    /// The kernel does not say it (before 5.0).
    NotReported,
}

impl ThpEligibility {
    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ThpEligibility::Yes => "eligible",
            ThpEligibility::Advised => "advised",
            ThpEligibility::Hugetlb => "hugetlb",
            ThpEligibility::TooSmall => "too_small",
            ThpEligibility::Declined => "declined",
            ThpEligibility::DisabledByPrctl => "switched_off",
            ThpEligibility::NotAdvised => "not_advised",
            ThpEligibility::NeverMode => "mode_never",
            ThpEligibility::ShmemMode => "shmem_mode",
            ThpEligibility::PageCache => "page_cache",
            ThpEligibility::SpecialMapping => "special",
            ThpEligibility::NoAccess => "no_access",
            ThpEligibility::Unexplained => "unexplained",
            ThpEligibility::NotReported => "not_reported",
        }
    }
}

/// Maximum size of an inaccessible mapping that counts as a guard.
const GUARD_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a thread's stack: a larger mapping is more likely memory between guards.
const STACK_BYTES_MAX: u64 = 256 << 20;
/// Size and alignment of an arena of glibc's malloc (HEAP_MAX_SIZE of malloc/arena.c, 64 bits).
const ARENA_BYTES: u64 = 64 << 20;

/// Kind of each mapping, in their order. `under_test` are addresses that an experiment measures.
pub fn classify_mappings(mappings: &[Mapping], under_test: Option<&Range<u64>>) -> Vec<MappingRole> {
    (0..mappings.len()).map(|at| classify_mapping(mappings, at, under_test)).collect()
}

fn classify_mapping(mappings: &[Mapping], index: usize, under_test: Option<&Range<u64>>) -> MappingRole {
    let mapping = &mappings[index];
    if under_test.is_some_and(|range| mapping.start < range.end && range.start < mapping.end) {
        return MappingRole::UnderTest;
    }
    if has_flag(mapping, "ht") {
        return MappingRole::Hugetlb;
    }
    match mapping.name.as_str() {
        "[heap]" => return MappingRole::Heap,
        "[stack]" => return MappingRole::MainStack,
        "[vdso]" => return MappingRole::Vdso,
        "[vsyscall]" => return MappingRole::Vsyscall,
        name if name.starts_with("[vvar") => return MappingRole::Vvar,
        name if is_shared_memory(name) => return MappingRole::SharedMemory,
        name if name.starts_with("[anon:") => {}
        name if name.starts_with('[') => return MappingRole::NamedByKernel,
        name if name.starts_with("/dev/") => return MappingRole::Device,
        _ => {}
    }
    match is_anonymous(mapping) {
        true => classify_anonymous(mappings, index),
        false => classify_file(mappings, index),
    }
}

fn classify_anonymous(mappings: &[Mapping], index: usize) -> MappingRole {
    let mapping = &mappings[index];
    let below = index.checked_sub(1).map(|at| &mappings[at]).filter(|below| below.end == mapping.start);
    let above = mappings.get(index + 1).filter(|above| above.start == mapping.end);
    if !is_accessible(mapping) {
        let arena = below.is_some_and(|below| is_arena(below, mapping));
        let is_adjacent = [below, above].into_iter().flatten().any(is_accessible);
        return if mapping_bytes(mapping) <= GUARD_BYTES_MAX && is_adjacent && !arena {
            MappingRole::Guard
        } else {
            MappingRole::Reserved
        };
    }
    if above.is_some_and(|above| is_arena(mapping, above)) {
        return MappingRole::Arena;
    }
    if below.is_some_and(|below| is_private_writable(below) && has_code(mappings, &below.name)) {
        return MappingRole::Bss;
    }
    let is_guarded = below.is_some_and(|below| {
        is_anonymous(below)
            && !is_accessible(below)
            && mapping_bytes(below) <= GUARD_BYTES_MAX
            && mapping_bytes(mapping) <= STACK_BYTES_MAX
    });
    if is_guarded && is_shared(mapping) == Some(false) {
        MappingRole::ThreadStack
    } else {
        MappingRole::Anonymous
    }
}

fn classify_file(mappings: &[Mapping], index: usize) -> MappingRole {
    let mapping = &mappings[index];
    match is_shared(mapping) {
        Some(true) => MappingRole::FileShared,
        _ if !is_accessible(mapping) => MappingRole::Reserved,
        _ if mapping.permissions.contains('x') => MappingRole::Text,
        _ if !has_code(mappings, &mapping.name) => MappingRole::FilePrivate,
        _ if is_private_writable(mapping) => MappingRole::Data,
        // Memory that was writable stays accounted for when it is protected.
        _ if has_flag(mapping, "ac") => MappingRole::Relocated,
        _ => MappingRole::ReadOnlyData,
    }
}

/// Whether the second is what glibc keeps reserved behind an arena that begins with the first.
fn is_arena(arena: &Mapping, reserved: &Mapping) -> bool {
    let is_full_arena = arena.start.is_multiple_of(ARENA_BYTES) && reserved.end - arena.start == ARENA_BYTES;
    is_full_arena
        && is_anonymous(arena)
        && is_anonymous(reserved)
        && is_accessible(arena)
        && !is_accessible(reserved)
}

fn is_private_writable(mapping: &Mapping) -> bool {
    !is_anonymous(mapping) && mapping.permissions.starts_with("rw") && is_shared(mapping) == Some(false)
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

fn is_anonymous(mapping: &Mapping) -> bool {
    mapping.inode == 0 && (mapping.name.is_empty() || mapping.name.starts_with("[anon:"))
}

fn is_accessible(mapping: &Mapping) -> bool {
    mapping.permissions.chars().take(3).any(|sign| sign != '-')
}

/// From the fourth sign of the permissions.
fn is_shared(mapping: &Mapping) -> Option<bool> {
    match mapping.permissions.chars().nth(3) {
        Some('s') => Some(true),
        Some('p') => Some(false),
        _ => None,
    }
}

fn has_flag(mapping: &Mapping, flag: &str) -> bool {
    mapping.vm_flags.iter().any(|one| one == flag)
}

/// Bytes of a mapping.
pub fn mapping_bytes(mapping: &Mapping) -> u64 {
    mapping.end.saturating_sub(mapping.start)
}

/// Whether transparent huge pages may come into it, and why or why not.
pub fn thp_eligibility(
    mapping: &Mapping,
    role: MappingRole,
    settings: &ThpEligibilitySettings,
) -> ThpEligibility {
    if role == MappingRole::Hugetlb || has_flag(mapping, "ht") {
        return ThpEligibility::Hugetlb;
    }
    if mapping.thp_eligible == Some(true) {
        return if has_flag(mapping, "hg") { ThpEligibility::Advised } else { ThpEligibility::Yes };
    }
    let holds_huge_page = |size: Bytes| {
        mapping.start.checked_next_multiple_of(size.0).is_some_and(|at| at + size.0 <= mapping.end)
    };
    let special_roles = [MappingRole::Vdso, MappingRole::Vvar, MappingRole::Vsyscall, MappingRole::Device];
    match mapping.thp_eligible {
        None => return ThpEligibility::NotReported,
        _ if !is_accessible(mapping) => return ThpEligibility::NoAccess,
        _ if special_roles.contains(&role) || ["io", "pf"].iter().any(|flag| has_flag(mapping, flag)) => {
            return ThpEligibility::SpecialMapping;
        }
        _ if settings.pmd_size.is_some_and(|size| !holds_huge_page(size)) => return ThpEligibility::TooSmall,
        _ if has_flag(mapping, "nh") => return ThpEligibility::Declined,
        _ if settings.process_enabled == Some(false) => return ThpEligibility::DisabledByPrctl,
        _ => {}
    }
    let is_shmem = role == MappingRole::SharedMemory || is_shared_memory(&mapping.name);
    match (is_shmem, is_anonymous(mapping) || mapping.inode == 0, settings.enabled.as_deref()) {
        (true, ..) => ThpEligibility::ShmemMode,
        (false, false, _) => ThpEligibility::PageCache,
        (false, true, Some("never")) => ThpEligibility::NeverMode,
        (false, true, Some("madvise")) if !has_flag(mapping, "hg") => ThpEligibility::NotAdvised,
        _ => ThpEligibility::Unexplained,
    }
}

#[cfg(test)]
mod tests;
