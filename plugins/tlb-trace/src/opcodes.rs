//! Classes of x86-64 instructions, by their opcode.

/// The instruction without its legacy prefixes, except LOCK, and without REX.
fn skip_prefixes(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    while let [0x66 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x67 | 0x40..=0x4f, tail @ ..] =
        rest
    {
        rest = tail;
    }
    rest
}

/// Whether an instruction is arithmetic of x87, SSE, AVX or FMA, which QEMU emulates in software. Moves and
/// conversions of integers between registers do not count: they are cheap.
pub fn is_float_operation(bytes: &[u8]) -> bool {
    match *skip_prefixes(bytes) {
        // x87: all but loads and stores of control words is close enough.
        [0xd8..=0xdf, ..] => true,
        [0x0f, opcode, ..] => is_arithmetic(opcode),
        // VEX of two bytes is map 0F; of three, the map is in the low bits.
        [0xc5, _, opcode, ..] => is_arithmetic(opcode),
        [0xc4, map, _, opcode, ..] => match map & 0x1f {
            1 => is_arithmetic(opcode),
            2 => (0x96..=0xbf).contains(&opcode),
            _ => false,
        },
        _ => false,
    }
}

/// Opcodes of map 0F: COMIS, SQRT to RCP, ADD to MAX.
fn is_arithmetic(opcode: u8) -> bool {
    matches!(opcode, 0x2e | 0x2f | 0x51..=0x53 | 0x58..=0x5a | 0x5c..=0x5f | 0xc2)
}

/// Whether QEMU translates the memory accesses of an instruction inline, without a helper function, so that
/// it needs no operation; `false` for unknown opcodes.
///
/// A helper reads the callbacks of its instruction through a pointer of the virtual CPU. QEMU 7.2 leaves a
/// stale pointer there after instructions that end a block (fixed in 8.0: "plugins: fix clearing of
/// plugin_mem_cbs before TB exit"), and frees its target when the plugin is reset. An instruction with an
/// inline operation replaces the pointer first. So only instructions that certainly use no such helper may
/// have no operation.
pub fn is_inline_access(bytes: &[u8]) -> bool {
    match *skip_prefixes(bytes) {
        [0x0f, opcode, ..] => is_inline_0f_opcode(opcode),
        // Far CALL and JMP by memory are helpers.
        [0xff, modrm, ..] => !matches!(modrm >> 3 & 7, 3 | 5),
        [opcode, ..] => is_inline_opcode(opcode),
        [] => false,
    }
}

/// Arithmetic, PUSH and POP, MOV, LEA, TEST, string operations, shifts, jumps, CALL and RET. XCHG (86, 87)
/// has an implicit lock; ENTER, far calls, interrupts, x87 and VEX (c4, c5) are not among them.
fn is_inline_opcode(opcode: u8) -> bool {
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
fn is_inline_0f_opcode(opcode: u8) -> bool {
    matches!(
        opcode,
        0x05 | 0x0b | 0x0d | 0x10..=0x1f | 0x28..=0x2f | 0x31 | 0x40..=0x76 | 0x7e..=0x9f
            | 0xa2..=0xa5 | 0xab..=0xad | 0xaf | 0xb3 | 0xb6..=0xbf | 0xc2..=0xc6 | 0xc8..=0xf6
            | 0xf8..=0xfe
    )
}
