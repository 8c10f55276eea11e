//! Seccomp filter that stops the few calls which a supervisor handles (`SECCOMP_RET_TRACE`, Linux 3.5), and
//! lets all others pass.
//!
//! Without a tracer such a call fails with ENOSYS: the process that installs it is traced with
//! PTRACE_O_EXITKILL.

use std::io;

use crate::wait::check_zero;

/// Calls of `arch/x86/entry/syscalls/syscall_64.tbl` that a filter may hand to the tracer.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(not(target_arch = "x86_64"))]
const ARCH: u32 = 0;

/// x32 calls have this bit in their number (arch/x86/include/uapi/asm/unistd.h).
const X32_SYSCALL_BIT: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data` of include/uapi/linux/seccomp.h.
const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;

const fn arg_low_offset(argument: u32) -> u32 {
    16 + 8 * argument
}

const fn arg_high_offset(argument: u32) -> u32 {
    arg_low_offset(argument) + 4
}

/// Codes of classic BPF: load a word of the data, jump, return.
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// `CLONE_UNTRACED` of include/uapi/linux/sched.h: a child that would have the filter and no tracer.
pub const CLONE_UNTRACED: u64 = 0x0080_0000;
/// `PR_SET_THP_DISABLE` of include/uapi/linux/prctl.h.
pub const PR_SET_THP_DISABLE: u64 = 41;
/// `PR_SET_SECCOMP`.
pub const PR_SET_SECCOMP: u64 = 22;
/// `PR_SET_MM`: the program sets its own break, among others.
pub const PR_SET_MM: u64 = 35;
/// `MADV_HUGEPAGE` of include/uapi/asm-generic/mman-common.h.
pub const MADV_HUGEPAGE: u64 = 14;
/// `MADV_NOHUGEPAGE`.
pub const MADV_NOHUGEPAGE: u64 = 15;

/// A condition on a call's arguments; the call is passed to the tracer if any of its conditions holds.
#[derive(Clone, Copy, Debug)]
enum ArgumentTest {
    /// The argument, as 64 bits, is at least so large (below 4 GiB).
    AtLeast(u32, u32),
    /// Its low half is this.
    Equals(u32, u32),
    /// Its low half has any of these bits.
    HasAnyBit(u32, u32),
    /// For any arguments.
    Always,
}

/// A filter, ready to be installed.
#[derive(Clone, Debug)]
pub struct SyscallFilter {
    program: Vec<libc::sock_filter>,
}

/// Calls that the tracer sees, and their mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterOptions {
    /// Maps, unmaps and moves of fewer bytes pass, unless a map names its place; 0 shows all.
    pub length_min: u32,
    /// Calls with this sixth argument are the tracer's own and pass. No call that is shown has a meaning for
    /// it but `mmap`, whose sixth is an offset: whole pages, so the mark is odd.
    pub exempt_mark: u64,
    /// With `with_brk`, also brk and calls that decide whether a heap may be larger than the program
    /// requested: the limits of its data and addresses, `mlockall`, `PR_SET_MM`.
    pub with_brk: bool,
}

impl SyscallFilter {
    /// The filter for this wish.
    pub fn new(options: FilterOptions) -> SyscallFilter {
        let mut program = vec![
            bpf_statement(LOAD, ARCH_OFFSET),
            bpf_jump(EQUAL, ARCH, 1, 0),
            bpf_statement(RETURN, libc::SECCOMP_RET_ALLOW),
            bpf_statement(LOAD, NUMBER_OFFSET),
            bpf_jump(AT_LEAST, X32_SYSCALL_BIT, 0, 1),
            bpf_statement(RETURN, libc::SECCOMP_RET_ALLOW),
        ];
        for (call, questions) in build_rules(options) {
            let body = rule_body(&questions, options.exempt_mark);
            program.push(bpf_jump(EQUAL, call as u32, 0, body.len() as u8));
            program.extend(body);
        }
        program.push(bpf_statement(RETURN, libc::SECCOMP_RET_ALLOW));
        SyscallFilter { program }
    }

    /// Installs it for this thread; its children inherit it. Without CAP_SYS_ADMIN that needs no_new_privs,
    /// which is set then: `Ok(true)`. Called between fork and exec: allocates nothing.
    ///
    /// SPEC_ALLOW (4.17): a filter else switches speculative store bypass off for the program.
    pub(crate) fn install(&self) -> io::Result<bool> {
        let program =
            libc::sock_fprog { len: self.program.len() as u16, filter: self.program.as_ptr().cast_mut() };
        let install = || {
            // SAFETY: the kernel reads `len` steps at `filter`, which outlives the call.
            // JUSTIFICATION: no crate here installs filters.
            check_zero(unsafe {
                libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                    &raw const program,
                )
            })
        };
        match install() {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                // SAFETY: PR_SET_NO_NEW_PRIVS takes plain numbers. JUSTIFICATION: as above.
                check_zero(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
                install().map(|()| true)
            }
            done => done.map(|()| false),
        }
    }
}

/// Calls that are reported to the tracer, with the condition of each.
fn build_rules(options: FilterOptions) -> Vec<(libc::c_long, Vec<ArgumentTest>)> {
    use ArgumentTest::{Always, AtLeast, Equals, HasAnyBit};
    let fixed = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u32;
    let traced = [libc::PTRACE_ATTACH, libc::PTRACE_SEIZE, libc::PTRACE_TRACEME];
    let mut prctl = vec![Equals(0, PR_SET_THP_DISABLE as u32), Equals(0, PR_SET_SECCOMP as u32)];
    let mut mremap = vec![AtLeast(1, options.length_min), AtLeast(2, options.length_min)];
    if options.with_brk {
        // It may be laid over the heap.
        mremap.push(HasAnyBit(3, libc::MREMAP_FIXED as u32));
    }
    let mut rules = vec![
        (libc::SYS_mmap, vec![AtLeast(1, options.length_min), HasAnyBit(3, fixed)]),
        (libc::SYS_munmap, vec![AtLeast(1, options.length_min)]),
        (libc::SYS_mremap, mremap),
        (libc::SYS_madvise, vec![Equals(2, MADV_HUGEPAGE as u32), Equals(2, MADV_NOHUGEPAGE as u32)]),
        (libc::SYS_seccomp, vec![Always]),
        (libc::SYS_clone, vec![HasAnyBit(0, CLONE_UNTRACED as u32)]),
        // Its flags are in memory, which a filter cannot read.
        (libc::SYS_clone3, vec![Always]),
        (libc::SYS_shmat, vec![Always]),
        (libc::SYS_ptrace, traced.map(|request| Equals(0, request)).to_vec()),
    ];
    if options.with_brk {
        let limits =
            |argument| [libc::RLIMIT_DATA, libc::RLIMIT_AS].map(|limit| Equals(argument, limit)).to_vec();
        prctl.push(Equals(0, PR_SET_MM as u32));
        rules.extend([
            (libc::SYS_brk, vec![Always]),
            (libc::SYS_setrlimit, limits(0)),
            (libc::SYS_prlimit64, limits(1)),
            (libc::SYS_mlockall, vec![Always]),
        ]);
    }
    rules.push((libc::SYS_prctl, prctl));
    rules
}

/// The steps after a call's number: allow if it has the mark; pass to the tracer at the first condition that
/// holds; else allow.
fn rule_body(questions: &[ArgumentTest], mark: u64) -> Vec<libc::sock_filter> {
    let mut steps = vec![
        bpf_statement(LOAD, arg_low_offset(5)),
        bpf_jump(EQUAL, mark as u32, 0, 3),
        bpf_statement(LOAD, arg_high_offset(5)),
        bpf_jump(EQUAL, (mark >> 32) as u32, 0, 1),
        bpf_statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let trace = bpf_statement(RETURN, libc::SECCOMP_RET_TRACE);
    let low_half_test = |argument: u32, code: u16, k: u32| {
        [bpf_statement(LOAD, arg_low_offset(argument)), bpf_jump(code, k, 0, 1), trace]
    };
    for question in questions {
        match *question {
            ArgumentTest::Always | ArgumentTest::AtLeast(_, 0) => steps.push(trace),
            ArgumentTest::AtLeast(argument, bytes) => steps.extend([
                bpf_statement(LOAD, arg_high_offset(argument)),
                bpf_jump(EQUAL, 0, 0, 2),
                bpf_statement(LOAD, arg_low_offset(argument)),
                bpf_jump(AT_LEAST, bytes, 0, 1),
                trace,
            ]),
            ArgumentTest::Equals(argument, value) => steps.extend(low_half_test(argument, EQUAL, value)),
            ArgumentTest::HasAnyBit(argument, bits) => steps.extend(low_half_test(argument, ANY_BIT, bits)),
        }
    }
    steps.push(bpf_statement(RETURN, libc::SECCOMP_RET_ALLOW));
    steps
}

fn bpf_statement(code: u16, k: u32) -> libc::sock_filter {
    bpf_jump(code, k, 0, 0)
}

fn bpf_jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of the filter, by an interpreter that knows only these five opcodes.
    fn answer(filter: &SyscallFilter, arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = vec![number, arch, 0, 0];
        data.extend(arguments.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
        let (mut at, mut a) = (0usize, 0u32);
        loop {
            let s = filter.program[at];
            let yes = match s.code {
                LOAD => {
                    a = data[s.k as usize / 4];
                    at += 1;
                    continue;
                }
                RETURN => return s.k,
                EQUAL => a == s.k,
                AT_LEAST => a >= s.k,
                ANY_BIT => a & s.k != 0,
                other => panic!("{other}"),
            };
            at += 1 + usize::from(if yes { s.jt } else { s.jf });
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn only_what_is_asked_for_is_handed_over() {
        let filter = SyscallFilter::new(FilterOptions {
            length_min: 2 << 20,
            exempt_mark: 0x1234_5678_9abc_def1,
            with_brk: false,
        });
        let (mmap, madvise) = (libc::SYS_mmap as u32, libc::SYS_madvise as u32);
        let fixed = (libc::MAP_FIXED | libc::MAP_PRIVATE) as u64;
        for (number, arguments, traced) in [
            (mmap, [0, 4 << 20, 3, 0x22, u64::MAX, 0], true),
            (mmap, [0, 8 << 30, 3, 0x22, u64::MAX, 0], true),
            (mmap, [0, 1 << 20, 3, 0x22, u64::MAX, 0], false),
            (mmap, [0x10000, 1 << 20, 3, fixed, u64::MAX, 0], true),
            (mmap, [0, 4 << 20, 3, 0x22, u64::MAX, 0x1234_5678_9abc_def1], false),
            (libc::SYS_munmap as u32, [0, 2 << 20, 0, 0, 0, 0], true),
            (libc::SYS_munmap as u32, [0, 1 << 20, 0, 0, 0, 0], false),
            (libc::SYS_mremap as u32, [0, 1 << 20, 4 << 20, 1, 0, 0], true),
            (madvise, [0, 1, 14, 0, 0, 0], true),
            (madvise, [0, 1, 15, 0, 0, 0], true),
            (madvise, [0, 1, 14, 0, 0, 0x1234_5678_9abc_def1], false),
            (madvise, [0, 1, 4, 0, 0, 0], false),
            (libc::SYS_prctl as u32, [41, 1, 0, 0, 0, 0], true),
            (libc::SYS_prctl as u32, [15, 1, 0, 0, 0, 0], false),
            (libc::SYS_clone as u32, [0x11, 0, 0, 0, 0, 0], false),
            (libc::SYS_clone as u32, [0x0080_0011, 0, 0, 0, 0, 0], true),
            (libc::SYS_clone3 as u32, [0; 6], true),
            (libc::SYS_read as u32, [0; 6], false),
            (libc::SYS_brk as u32, [1 << 40, 0, 0, 0, 0, 0], false),
            (libc::SYS_prctl as u32, [PR_SET_MM, 7, 0, 0, 0, 0], false),
            (libc::SYS_mlockall as u32, [2, 0, 0, 0, 0, 0], false),
            (mmap | X32_SYSCALL_BIT, [0, 4 << 20, 3, 0x22, u64::MAX, 0], false),
        ] {
            let wanted = if traced { libc::SECCOMP_RET_TRACE } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(answer(&filter, ARCH, number, arguments), wanted, "{number} {arguments:x?}");
            // The numbers mean other calls to a 32-bit program.
            assert_eq!(answer(&filter, 0x4000_0003, number, arguments), libc::SECCOMP_RET_ALLOW);
        }
        let heap = SyscallFilter::new(FilterOptions { length_min: 2 << 20, exempt_mark: 1, with_brk: true });
        let (data, files) = (u64::from(libc::RLIMIT_DATA), u64::from(libc::RLIMIT_NOFILE));
        for (number, arguments, traced) in [
            (libc::SYS_brk, [0; 6], true),
            (libc::SYS_brk, [1 << 40, 0, 0, 0, 0, 1], false),
            (libc::SYS_setrlimit, [data, 0, 0, 0, 0, 0], true),
            (libc::SYS_setrlimit, [files, 0, 0, 0, 0, 0], false),
            (libc::SYS_prlimit64, [0, data, 0, 0, 0, 0], true),
            (libc::SYS_prlimit64, [data, files, 0, 0, 0, 0], false),
            (libc::SYS_mlockall, [2, 0, 0, 0, 0, 0], true),
            (libc::SYS_mremap, [0, 1 << 20, 1 << 20, 3, 0, 0], true),
            (libc::SYS_mremap, [0, 1 << 20, 1 << 20, 1, 0, 0], false),
            (libc::SYS_prctl, [PR_SET_MM, 7, 0, 0, 0, 0], true),
            (libc::SYS_prctl, [15, 7, 0, 0, 0, 0], false),
        ] {
            let wanted = if traced { libc::SECCOMP_RET_TRACE } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(answer(&heap, ARCH, number as u32, arguments), wanted, "{number} {arguments:x?}");
        }
        let all = SyscallFilter::new(FilterOptions { length_min: 0, exempt_mark: 1, with_brk: false });
        assert_eq!(answer(&all, ARCH, mmap, [0, 1, 3, 0x22, u64::MAX, 0]), libc::SECCOMP_RET_TRACE);
    }
}
