//! Sizes of a guest: what QEMU, a kernel of a distribution and pagelab's agent can work with.
//!
//! Command lines and recipes are checked by the same limits; each names its own option or key before the
//! text.

use crate::Bytes;
use crate::size::format_exact;

/// A guest with less does not boot a distribution's kernel and hold pagelab.
const MEMORY_MIN: Bytes = Bytes(96 << 20);
const MEMORY_MAX: Bytes = Bytes(1 << 40);
/// QEMU is given memory in whole MiB.
pub const MEMORY_UNIT: Bytes = Bytes(1 << 20);
const DISK_MIN: Bytes = Bytes(8 << 20);
const DISK_MAX: Bytes = Bytes(1 << 40);
/// A sector.
const DISK_UNIT: u64 = 512;
/// Processors.
pub const CPUS_MAX: u32 = 64;
/// Counted instructions take 2 to the power of this nanoseconds at most: QEMU's own limit
/// (accel/tcg/icount-common.c, `MAX_ICOUNT_SHIFT`).
pub const ICOUNT_SHIFT_MAX: u32 = 10;
/// COMMAND_LINE_SIZE of x86 is 2048, our own words included.
const APPEND_MAX: usize = 1900;

/// Error of the memory that a guest boots with, in one sentence.
pub fn check_memory(memory: Bytes) -> Result<(), String> {
    if memory < MEMORY_MIN || memory > MEMORY_MAX {
        let (least, most) = (format_exact(MEMORY_MIN), format_exact(MEMORY_MAX));
        return Err(format!("expected {least} to {most}, found {}", format_exact(memory)));
    }
    if !memory.0.is_multiple_of(MEMORY_UNIT.0) {
        let unit = format_exact(MEMORY_UNIT);
        return Err(format!("expected a multiple of {unit}, found {}", format_exact(memory)));
    }
    Ok(())
}

/// Error of the size of a disk, for swap or for files, in one sentence.
pub fn check_disk(size: Bytes) -> Result<(), String> {
    if (DISK_MIN..=DISK_MAX).contains(&size) && size.0.is_multiple_of(DISK_UNIT) {
        return Ok(());
    }
    let (least, most) = (format_exact(DISK_MIN), format_exact(DISK_MAX));
    Err(format!(
        "expected {least} to {most} and a multiple of {DISK_UNIT} bytes, found {}",
        format_exact(size)
    ))
}

/// Error of words of the kernel's command line, in one sentence.
pub fn check_append(words: &str) -> Result<(), String> {
    if words.len() > APPEND_MAX || words.chars().any(char::is_control) {
        return Err(format!("expected one line of at most {APPEND_MAX} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_the_limits_are_refused_with_them() {
        for (size, said) in [
            (95 << 20, Some("expected 96 MiB to 1 TiB, found 95 MiB")),
            (96 << 20, None),
            ((96 << 20) + 512, Some("expected a multiple of 1 MiB, found 100663808 bytes")),
            (1 << 40, None),
            (2 << 40, Some("found 2 TiB")),
        ] {
            let refused = check_memory(Bytes(size)).err();
            assert!(refused.iter().all(|text| said.is_some_and(|said| text.contains(said))), "{refused:?}");
            assert_eq!(refused.is_some(), said.is_some(), "{size}");
        }
        for (size, is_refused) in
            [(4 << 20, true), (8 << 20, false), ((8 << 20) + 1, true), (1 << 40, false), (2 << 40, true)]
        {
            assert_eq!(check_disk(Bytes(size)).is_err(), is_refused, "{size}");
        }
        for (words, is_refused) in
            [("a=1".to_owned(), false), ("a\nb".to_owned(), true), ("a".repeat(1901), true)]
        {
            assert_eq!(check_append(&words).is_err(), is_refused);
        }
    }
}
