//! Jumps out of functions: `_setjmp` and `longjmp` of the C library.
//!
//! Rust may not call `_setjmp`: the compiler does not know that it returns twice. So the whole loop, from the
//! call of `_setjmp` to the place where `longjmp` arrives, is assembly that keeps no value over the jump
//! except in registers that both restore. No frame of Rust is jumped over.

use std::io;

use super::{Storm, Until, repeat};

/// Frames between `longjmp` and the place where it arrives, as in AIM9.
pub const DEPTH: u64 = 10;
/// Jumps between two looks at the clock.
#[cfg(target_arch = "x86_64")]
const BATCH: u64 = 64;

/// Bytes for a `jmp_buf` of any C library: glibc's has 200 on x86_64, musl's 200.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(16))]
struct JumpBuffer([u8; 512]);

/// Jumps until it is enough: each time the place is kept by `_setjmp`, ten functions are called, one in the
/// other, and the last one leaves by `longjmp`.
#[cfg(target_arch = "x86_64")]
pub fn jumps(until: Until) -> io::Result<Storm> {
    let mut buffer = JumpBuffer([0; 512]);
    repeat(until, || {
        // SAFETY: the buffer is larger and more strictly aligned than any jmp_buf and outlives the call; the
        // function keeps the C calling convention and jumps over no frame but its own.
        // JUSTIFICATION: non-local jumps are what is measured, and Rust has none.
        let arrived = unsafe { jump_rounds(&mut buffer, BATCH) };
        match arrived == BATCH {
            true => Ok(BATCH),
            false => Err(io::Error::other(format!("{BATCH} jumps were made and {arrived} arrived"))),
        }
    })
}

/// Unsupported: the loop is written for x86_64 only.
#[cfg(not(target_arch = "x86_64"))]
pub fn jumps(until: Until) -> io::Result<Storm> {
    repeat(until, || Err(io::ErrorKind::Unsupported.into()))
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// `_setjmp` does not keep the signal mask.
    fn _setjmp(buffer: *mut JumpBuffer) -> libc::c_int;
    fn longjmp(buffer: *mut JumpBuffer, value: libc::c_int) -> !;
}

/// Jumps `rounds` times, at least once; how many arrived with the value that was sent.
///
/// rbx is the buffer, r12 counts down, r13 counts arrivals: registers of the caller, which `_setjmp` keeps
/// and `longjmp` restores to what they were at its call, and which change only between two rounds.
///
/// # Safety
/// The buffer is writable and large enough for a `jmp_buf`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn jump_rounds(buffer: *mut JumpBuffer, rounds: u64) -> u64 {
    std::arch::naked_asm!(
        "push rbx",
        "push r12",
        "push r13",
        "mov rbx, rdi",
        "mov r12, rsi",
        "xor r13d, r13d",
        // A round: the stack is aligned to 16 bytes before the call.
        "2:",
        "mov rdi, rbx",
        "call {setjmp}",
        "test eax, eax",
        "jnz 3f",
        "mov ecx, {depth}",
        "call 4f",
        "ud2",
        // Arrived: `longjmp` sent 1.
        "3:",
        "cmp eax, 1",
        "sete al",
        "movzx eax, al",
        "add r13, rax",
        "dec r12",
        "jnz 2b",
        "mov rax, r13",
        "pop r13",
        "pop r12",
        "pop rbx",
        "ret",
        // A function that calls itself ecx times, and then leaves all of its frames at once.
        "4:",
        "push rbp",
        "mov rbp, rsp",
        "test ecx, ecx",
        "jz 5f",
        "dec ecx",
        "call 4b",
        "ud2",
        "5:",
        "mov rdi, rbx",
        "mov esi, 1",
        "call {longjmp}",
        "ud2",
        setjmp = sym _setjmp,
        longjmp = sym longjmp,
        depth = const DEPTH,
    )
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_jump_arrives() {
        let storm = jumps(Until::Count(1000)).unwrap();
        assert_eq!(storm.operations, 1024, "sixteen batches");
        // Registers of the caller are what they were: sums around the jumps come out right.
        let mut sum = 0u64;
        for round in 0..100u64 {
            let kept = std::hint::black_box(round);
            sum += jumps(Until::Count(1)).unwrap().operations + kept;
        }
        assert_eq!(sum, 100 * BATCH + 4950);
    }
}
