//! Which instructions access memory, if at all, in code that QEMU translates in place, and not in its
//! helpers.
//!
//! A helper looks for its instruction's callbacks in a pointer of the virtual CPU. QEMU 7.2 leaves one there
//! after instructions that end a block (8.0 repaired that: "plugins: fix clearing of plugin_mem_cbs before TB
//! exit"), and drops what it points to when the plugin is reset. Instructions that have an operation of their
//! own put another in its place first. So only instructions that surely use no such helper may go without.

/// Whether it may go without: by its opcode, and what is not known may not.
pub fn is_plain(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    // Legacy prefixes but LOCK, and REX.
    while let [0x66 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x67 | 0x40..=0x4f, tail @ ..] =
        rest
    {
        rest = tail;
    }
    match *rest {
        [0x0f, opcode, ..] => is_plain_of_two(opcode),
        // Far CALL and JMP by memory are helpers.
        [0xff, modrm, ..] => !matches!(modrm >> 3 & 7, 3 | 5),
        [opcode, ..] => is_plain_of_one(opcode),
        [] => false,
    }
}

/// Arithmetic, PUSH and POP, MOV, LEA, TEST, string operations, shifts, jumps, CALL and RET. XCHG (86, 87)
/// has a lock of its own; ENTER, far calls, interrupts, x87 and VEX (c4, c5) are not among them.
fn is_plain_of_one(opcode: u8) -> bool {
    matches!(
        opcode,
        0x00..=0x05 | 0x08..=0x0d | 0x10..=0x15 | 0x18..=0x1d | 0x20..=0x25 | 0x28..=0x2d | 0x30..=0x35
            | 0x38..=0x3d | 0x50..=0x5f | 0x63 | 0x68..=0x6b | 0x70..=0x7f | 0x80 | 0x81 | 0x83..=0x85
            | 0x88..=0x8b | 0x8d | 0x8f..=0x99 | 0xa0..=0xc1 | 0xc2 | 0xc3 | 0xc6 | 0xc7 | 0xc9 | 0xcc
            | 0xd0..=0xd3 | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb | 0xf5..=0xf9 | 0xfc..=0xfe
    )
}

/// SYSCALL, NOP and prefetches, SSE moves and arithmetic, CMOV, Jcc, SETcc, CPUID, BT and its like, shifts,
/// IMUL, MOVZX and MOVSX, BSWAP. FXSAVE and its like (ae), CMPXCHG8B (c7), CMPXCHG (b0, b1), XADD (c0, c1)
/// and MASKMOV (f7) are not among them.
fn is_plain_of_two(opcode: u8) -> bool {
    matches!(
        opcode,
        0x05 | 0x0b | 0x0d | 0x10..=0x1f | 0x28..=0x2f | 0x31 | 0x40..=0x76 | 0x7e..=0x9f
            | 0xa2..=0xa5 | 0xab..=0xad | 0xaf | 0xb3 | 0xb6..=0xbf | 0xc2..=0xc6 | 0xc8..=0xf6
            | 0xf8..=0xfe
    )
}
