//! Hot-pluggable memory devices of a guest (DIMMs) that are plugged from the start.

use crate::Bytes;
use crate::size::{self, format_argument, format_exact};

/// Memory devices of one size. The kernel finds them through ACPI, above 4 GiB and behind the memory that it
/// booted with, and adds each as memory blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dimms {
    /// How many.
    pub count: u32,
    /// Size of each.
    pub size: Bytes,
}

/// Memory slots of a PC in QEMU (ACPI_MAX_RAM_SLOTS).
const COUNT_MAX: u32 = 256;
/// The smallest memory block of x86_64 (arch/x86/mm/init_64.c, MIN_MEMORY_BLOCK_SIZE): the kernel adds and
/// removes no less.
const MEMORY_BLOCK: Bytes = Bytes(128 << 20);
/// Bytes of memory and DIMMs together. The emulated processor addresses 1 TiB, in which QEMU also aligns each
/// slot to 1 GiB and has a hole for PCI.
const TOTAL_MAX: Bytes = Bytes(512 << 30);
/// The kernel holds 64 bytes of `struct page` for each page of 4 KiB, in the memory that it booted with.
const BYTES_PER_STRUCT_PAGE_BYTE: u64 = 64;
/// So much of the memory that the kernel booted with may hold `struct page` of DIMMs: one part in so many.
const STRUCT_PAGE_DIVISOR: u64 = 2;

impl Dimms {
    /// Parses `COUNTxSIZE`, such as `8x128M`.
    pub fn parse(text: &str) -> Result<Dimms, String> {
        let expected = || "expected COUNTxSIZE, for example 8x128M".to_owned();
        let (count, size) = text.split_once(['x', 'X', '×']).ok_or_else(expected)?;
        let count = size::strip_grouping(count.trim()).parse().map_err(|_| expected())?;
        Ok(Dimms { count, size: size::parse(size)? })
    }

    /// All bytes.
    pub fn total(self) -> Bytes {
        Bytes(self.size.0.saturating_mul(u64::from(self.count)))
    }

    /// Error of the number and the size, in one sentence.
    pub fn check_size(self) -> Result<(), String> {
        let Dimms { count, size } = self;
        if !(1..=COUNT_MAX).contains(&count) {
            return Err(format!("expected 1 to {COUNT_MAX} DIMMs, found {count}"));
        }
        if size.0 == 0 || size.0 % MEMORY_BLOCK.0 != 0 {
            return Err(format!(
                "expected a size that is a multiple of {}, the size of a memory block, found {}",
                format_exact(MEMORY_BLOCK),
                format_exact(size)
            ));
        }
        Ok(())
    }

    /// Error for a guest that boots with this memory, in one sentence.
    pub fn check_beside(self, memory: Bytes) -> Result<(), String> {
        let total = self.total();
        let whole = Bytes(memory.0.saturating_add(total.0));
        if whole > TOTAL_MAX {
            return Err(format!(
                "expected at most {} together with the memory, found {}",
                format_exact(TOTAL_MAX),
                format_exact(whole)
            ));
        }
        let needed = total.0 / BYTES_PER_STRUCT_PAGE_BYTE;
        if needed > memory.0 / STRUCT_PAGE_DIVISOR {
            let least = Bytes(needed.saturating_mul(STRUCT_PAGE_DIVISOR));
            return Err(format!(
                "the kernel needs {} of memory for {} of DIMMs; hint: use {} of memory or more",
                format_exact(Bytes(needed)),
                format_exact(total),
                format_argument(least)
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_and_a_size_are_read() {
        let mebibytes = |count, size: u64| Ok(Dimms { count, size: Bytes(size << 20) });
        for (text, expected) in [
            ("8x128M", mebibytes(8, 128)),
            ("1X2 GiB", mebibytes(1, 2048)),
            ("2×0.5G", mebibytes(2, 512)),
            ("300x1", Ok(Dimms { count: 300, size: Bytes(1) })),
        ] {
            assert_eq!(Dimms::parse(text), expected, "{text}");
        }
        for text in ["", "8", "128M", "x128M", "8x", "-1x128M", "8x128Q", "99999999999x1G", "8xx128M"] {
            assert!(Dimms::parse(text).unwrap_err().contains("expected "), "{text}");
        }
    }

    #[test]
    fn dimms_that_no_kernel_can_use_are_refused_in_words() {
        let check = |text: &str, memory: u64| {
            let dimms = Dimms::parse(text)?;
            dimms.check_size().and_then(|()| dimms.check_beside(Bytes(memory << 20)))
        };
        for (text, memory) in [("1x128M", 96), ("256x128M", 1024), ("256x1G", 8192), ("1x384M", 512)] {
            assert_eq!(check(text, memory), Ok(()), "{text}");
        }
        for (text, memory, said) in [
            ("0x128M", 512, "expected 1 to 256 DIMMs, found 0"),
            ("257x128M", 512, "found 257"),
            ("1x64M", 512, "a multiple of 128 MiB, the size of a memory block, found 64 MiB"),
            ("1x0", 512, "found 0 bytes"),
            ("1x200M", 512, "found 200 MiB"),
            ("256x2G", 65536, "at most 512 GiB together with the memory, found 576 GiB"),
            ("256x16E", 65536, "expected "),
            ("256x128M", 512, "needs 512 MiB of memory for 32 GiB of DIMMs; hint: use 1G of memory"),
        ] {
            let refused = check(text, memory).unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}
