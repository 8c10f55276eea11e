//! `/proc/PID/pagemap`: one 64-bit word for each virtual page (Documentation/admin-guide/mm/pagemap.rst).
//!
//! | bits | meaning |
//! |---|---|
//! | 0–54 | frame number, if present; 0 without CAP_SYS_ADMIN (4.2 and later) |
//! | 0–4, 5–54 | swap type and offset, if swapped; 0 without CAP_SYS_ADMIN |
//! | 55 | soft-dirty |
//! | 56 | mapped exclusively (4.2) |
//! | 57 | write-protected by userfaultfd (5.13) |
//! | 58 | guard region (6.15) |
//! | 61 | page of a file or shared anonymous memory (3.5) |
//! | 62, 63 | swapped, present |

use pagelab_model::Pfn;

use crate::ParseError;

const FORMAT: &str = "pagemap";

/// Bytes of one entry.
pub const ENTRY_BYTES: usize = 8;

/// One virtual page. All 64 bits are kept, also those without a name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagemapEntry(pub u64);

/// Where a page was swapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapEntry {
    /// Which swap area; special types stand for migration and hardware errors.
    pub kind: u8,
    /// Offset in the swap area, in pages.
    pub offset: u64,
}

impl PagemapEntry {
    const LOW: u64 = (1 << 55) - 1;
    const SWAP_KIND_BITS: u32 = 5;

    const fn bit(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    /// The frame behind the page; `None` if it is not present, or if the reader may not know: the kernel
    /// then prints 0, and frame 0 is never mapped.
    pub fn frame(self) -> Option<Pfn> {
        (self.is_present() && self.0 & PagemapEntry::LOW != 0).then_some(Pfn(self.0 & PagemapEntry::LOW))
    }

    /// Where the page was swapped to; `None` if it is not swapped, or if the reader may not know: the kernel
    /// then prints 0, and offset 0 of a swap area is its header.
    pub fn swap(self) -> Option<SwapEntry> {
        let low = self.0 & PagemapEntry::LOW;
        let kind = (low & ((1 << PagemapEntry::SWAP_KIND_BITS) - 1)) as u8;
        let known = self.is_swapped() && low != 0;
        known.then_some(SwapEntry { kind, offset: low >> PagemapEntry::SWAP_KIND_BITS })
    }

    /// Written since the last clear of `clear_refs`.
    pub const fn is_soft_dirty(self) -> bool {
        self.bit(55)
    }

    /// Mapped by this process alone, once.
    pub const fn is_exclusive(self) -> bool {
        self.bit(56)
    }

    /// Write-protected by userfaultfd.
    pub const fn is_uffd_wp(self) -> bool {
        self.bit(57)
    }

    /// In a guard region, where each access is a fault.
    pub const fn is_guard(self) -> bool {
        self.bit(58)
    }

    /// Page of a file, or of shared anonymous memory.
    pub const fn is_file_or_shared(self) -> bool {
        self.bit(61)
    }

    /// In swap.
    pub const fn is_swapped(self) -> bool {
        self.bit(62)
    }

    /// In memory.
    pub const fn is_present(self) -> bool {
        self.bit(63)
    }
}

/// The entries of a range of virtual pages, without allocation. A cut entry is an error.
pub fn entries(bytes: &[u8]) -> Result<impl Iterator<Item = PagemapEntry>, ParseError> {
    let (whole, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        let at = (bytes.len() - rest.len()) as u64;
        return Err(ParseError::at_byte(FORMAT, at, format!("{} bytes of an entry of 8", rest.len())));
    }
    Ok(whole.iter().map(|entry| PagemapEntry(u64::from_ne_bytes(*entry))))
}

/// Any bytes: a frame or a swap entry is never made of an absent page.
pub fn fuzz(data: &[u8]) {
    let Ok(entries) = entries(data) else { return };
    for entry in entries {
        assert!(entry.frame().is_none_or(|frame| entry.is_present() && frame != Pfn(0)));
        assert!(entry.swap().is_none() || entry.is_swapped());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_without_privilege_are_none_and_not_zero() {
        let cases = [
            (0, None, None),
            (1 << 63, None, None),
            (1 << 63 | 0x1234, Some(Pfn(0x1234)), None),
            (1 << 63 | 1 << 61 | PagemapEntry::LOW, Some(Pfn(PagemapEntry::LOW)), None),
            (0x1234, None, None),
            (1 << 62, None, None),
            (1 << 62 | 7 << 5 | 3, None, Some(SwapEntry { kind: 3, offset: 7 })),
        ];
        for (word, frame, swap) in cases {
            let entry = PagemapEntry(word);
            assert_eq!((entry.frame(), entry.swap()), (frame, swap), "{word:#x}");
        }
    }

    #[test]
    fn each_flag_is_its_own_bit() {
        let flags = |bit: u32| {
            let entry = PagemapEntry(1 << bit);
            [
                entry.is_soft_dirty(),
                entry.is_exclusive(),
                entry.is_uffd_wp(),
                entry.is_guard(),
                entry.is_file_or_shared(),
                entry.is_swapped(),
                entry.is_present(),
            ]
        };
        for (index, bit) in [55, 56, 57, 58, 61, 62, 63].into_iter().enumerate() {
            let mut expected = [false; 7];
            expected[index] = true;
            assert_eq!(flags(bit), expected, "bit {bit}");
        }
    }

    #[test]
    fn a_cut_entry_is_an_error_that_names_its_byte() {
        let error = entries(&[0; 17]).err().unwrap().in_file("f");
        assert_eq!(error, "f: byte 16: 1 bytes of an entry of 8 (read as pagemap)");
        assert_eq!(entries(&[0xff; 16]).unwrap().count(), 2);
        fuzz(&[0xff; 16]);
    }
}
