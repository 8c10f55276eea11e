//! Free addresses that lie between the powers of two as in the profiled run.

use pagelab_formats::maps::Map;

/// Mappings that ask for more than memory are placed by the kernel alone: it has rules of its own for stacks,
/// for the low 4 GiB, for what grows down and for pages of the pool; and a fixed address is fixed.
pub const LEFT_ALONE: i32 = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_STACK
    | libc::MAP_32BIT
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB;

/// Offsets in a mapping are kept for programs that align to this or less: glibc's arenas take 64 MiB, page
/// tables of x86-64 end at it. The address bits above it stay random.
const MODULUS: u64 = 1 << 30;

/// The highest free address for so many bytes, below the highest mapping under the stack, where the kernel
/// places mappings itself, that is like `profiled` modulo 1 GiB. `maps` is by address. The kernel may still
/// say no: it is asked for, not forced.
pub fn free(maps: &[Map], bytes: u64, profiled: u64, huge: u64) -> Option<u64> {
    let is_stack = |map: &Map| map.name == "[stack]";
    let below = maps.iter().position(is_stack).unwrap_or(maps.len());
    // The kernel takes a hint only with room for one huge page more (mm/huge_memory.c,
    // `__thp_get_unmapped_area`, 6.7), and keeps a gap under what grows down.
    let room = bytes.checked_add(huge)?;
    maps[..below].windows(2).rev().find_map(|pair| {
        let (low, high) = (pair[0].end.checked_add(huge)?, pair[1].start);
        let last = high.checked_sub(room)?;
        let start = last.checked_sub(last.wrapping_sub(profiled) % MODULUS)?;
        (start >= low).then_some(start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::maps;

    const HUGE: u64 = 2 << 20;

    #[test]
    fn the_highest_free_place_that_is_alike_is_taken() {
        let text = b"400000-500000 r-xp 00000000 08:01 7 /bin/x\n\
                     1000000-2000000 rw-p 00000000 00:00 0 [heap]\n\
                     7f0000000000-7f0000100000 r--p 00000000 08:01 7 /lib/x\n\
                     7f0080000000-7f0080001000 rw-p 00000000 00:00 0 \n\
                     7ffe00000000-7ffe00020000 rw-p 00000000 00:00 0 [stack]\n";
        let maps = maps::parse(text).unwrap();
        let profiled = 0x2a_1234_5000;
        // Between the library and what lies above it; then below the library.
        assert_eq!(free(&maps, 64 << 20, profiled, HUGE), Some(0x7f00_5234_5000));
        let start = free(&maps, 1 << 30, profiled, HUGE).unwrap();
        assert_eq!(start, 0x7f00_1234_5000);
        let start = free(&maps, 3 << 30, profiled, HUGE).unwrap();
        assert!(start + (3 << 30) + HUGE <= 0x7f00_0000_0000 && start > 0x7efe_0000_0000, "{start:x}");
        assert_eq!(start % MODULUS, profiled % MODULUS);
        // More than there is.
        assert_eq!(free(&maps, 1 << 46, profiled, HUGE).map(|at| at % MODULUS), Some(profiled % MODULUS));
        assert_eq!(free(&maps, 1 << 47, profiled, HUGE), None);
        assert_eq!(free(&maps, u64::MAX, profiled, HUGE), None);
    }
}
