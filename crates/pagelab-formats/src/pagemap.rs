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
use crate::kpagecount::page_entries;

const FORMAT: &str = "pagemap";

/// Bytes of one entry.
pub const ENTRY_BYTES: usize = 8;

/// One virtual page. All 64 bits are kept, also those without a name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagemapEntry(pub u64);

/// Swap entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapEntry {
    /// Swap area; special types represent migration and hardware errors.
    pub kind: u8,
    /// Offset in the swap area, in pages.
    pub offset: u64,
}

impl PagemapEntry {
    const PFN_MASK: u64 = (1 << 55) - 1;
    const SWAP_KIND_BITS: u32 = 5;

    /// The frame behind the page; `None` if it is not present, or if the reader lacks the permission: the
    /// kernel then prints 0, and frame 0 is never mapped.
    pub fn pfn(self) -> Option<Pfn> {
        Some(Pfn(self.0 & PagemapEntry::PFN_MASK)).filter(|pfn| self.is_present() && pfn.0 != 0)
    }

    /// Its swap entry; `None` if it is not swapped, or if the reader lacks the permission: the kernel then
    /// prints 0, and offset 0 of a swap area is its header.
    pub fn swap(self) -> Option<SwapEntry> {
        let low = self.0 & PagemapEntry::PFN_MASK;
        let kind = (low & ((1 << PagemapEntry::SWAP_KIND_BITS) - 1)) as u8;
        let known = self.is_swapped() && low != 0;
        known.then_some(SwapEntry { kind, offset: low >> PagemapEntry::SWAP_KIND_BITS })
    }

    /// In swap.
    pub const fn is_swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// In memory.
    pub const fn is_present(self) -> bool {
        self.0 >> 63 == 1
    }
}

/// The entries of a range of virtual pages, without allocation. A truncated entry is an error.
pub fn entries(bytes: &[u8]) -> Result<impl Iterator<Item = PagemapEntry>, ParseError> {
    Ok(page_entries(FORMAT, bytes)?.map(PagemapEntry))
}

/// Any bytes: an absent page never becomes a frame or a swap entry.
pub fn fuzz(data: &[u8]) {
    let Ok(entries) = entries(data) else { return };
    for entry in entries {
        assert!(entry.pfn().is_none_or(|frame| entry.is_present() && frame != Pfn(0)));
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
            (1 << 63 | 1 << 61 | PagemapEntry::PFN_MASK, Some(Pfn(PagemapEntry::PFN_MASK)), None),
            (0x1234, None, None),
            (1 << 62, None, None),
            (1 << 62 | 7 << 5 | 3, None, Some(SwapEntry { kind: 3, offset: 7 })),
        ];
        for (word, frame, swap) in cases {
            let entry = PagemapEntry(word);
            assert_eq!((entry.pfn(), entry.swap()), (frame, swap), "{word:#x}");
        }
    }

    #[test]
    fn each_flag_is_its_own_bit() {
        for bit in 0..64 {
            let entry = PagemapEntry(1 << bit);
            assert_eq!((entry.is_swapped(), entry.is_present()), (bit == 62, bit == 63), "bit {bit}");
        }
    }

    #[test]
    fn a_cut_entry_is_an_error_that_names_its_byte() {
        let error = entries(&[0; 17]).err().unwrap().message_in_file("f");
        assert_eq!(error, "f: byte 16: truncated entry: 1 of 8 bytes (read as pagemap)");
        assert_eq!(entries(&[0xff; 16]).unwrap().count(), 2);
        fuzz(&[0xff; 16]);
    }
}
