//! Which instructions compute with floating point: QEMU does that in software.

/// Whether an instruction is arithmetic of x87, SSE, AVX or FMA. Moves and conversions of integers between
/// registers do not count: they are cheap.
pub fn is_float(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    // Legacy prefixes and REX.
    while let [0x66 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0x67 | 0x40..=0x4f, tail @ ..] =
        rest
    {
        rest = tail;
    }
    match *rest {
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
