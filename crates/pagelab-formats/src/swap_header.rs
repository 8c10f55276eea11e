//! The first page of a swap area (include/linux/swap.h, `union swap_header`, version 1).

use pagelab_model::{Bytes, PageSize};

/// Left to boot loaders.
const BOOT_SECTOR: usize = 1024;
/// Behind the boot sector: version, last page, number of bad pages, 32 bits each; UUID and label, 16 bytes
/// each.
const VERSION_AT: usize = BOOT_SECTOR;
const LAST_PAGE_AT: usize = BOOT_SECTOR + 4;
const LABEL_AT: usize = BOOT_SECTOR + 28;
const LABEL_BYTES: usize = 16;
/// The last bytes of the page.
const MARK: &[u8; 10] = b"SWAPSPACE2";
/// The kernel wants ten pages at least, as mkswap does.
const PAGES_MIN: u64 = 10;

/// The header of an area of `size`, which is used in whole pages; its own page is one of them. Numbers are
/// little-endian: a kernel of the other order swaps them itself. A label that is longer than 16 bytes is cut.
/// `None`: the area is too small, or has more pages than the header can name.
pub fn page(size: Bytes, page_size: PageSize, label: &str) -> Option<Vec<u8>> {
    let bytes = usize::try_from(page_size.bytes()).ok()?;
    let pages = size.0 / page_size.bytes();
    if pages < PAGES_MIN || bytes < LABEL_AT + LABEL_BYTES + MARK.len() {
        return None;
    }
    let last = u32::try_from(pages - 1).ok()?;
    let mut page = vec![0; bytes];
    page[VERSION_AT..LAST_PAGE_AT].copy_from_slice(&1u32.to_le_bytes());
    page[LAST_PAGE_AT..LAST_PAGE_AT + 4].copy_from_slice(&last.to_le_bytes());
    let label = &label.as_bytes()[..label.len().min(LABEL_BYTES)];
    page[LABEL_AT..LABEL_AT + label.len()].copy_from_slice(label);
    page[bytes - MARK.len()..].copy_from_slice(MARK);
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_the_page_size_of_the_machine() {
        for shift in [12, 14, 16] {
            let page_size = PageSize::new(1 << shift).unwrap();
            let header = page(Bytes(1 << 20), page_size, "pagelab").unwrap();
            assert_eq!(header.len(), 1 << shift);
            assert_eq!(&header[(1 << shift) - 10..], b"SWAPSPACE2");
            assert_eq!(header[1024..1032], [1, 0, 0, 0, ((1u32 << (20 - shift)) - 1) as u8, 0, 0, 0]);
            assert_eq!(&header[1052..1060], b"pagelab\0");
            assert!(header[1032..1052].iter().all(|&byte| byte == 0), "no bad pages, no UUID");
        }
    }

    #[test]
    fn what_is_no_area_has_no_header() {
        let page_size = PageSize::USUAL;
        assert!(page(Bytes(10 * page_size.bytes()), page_size, "").is_some());
        assert_eq!(page(Bytes(10 * page_size.bytes() - 1), page_size, ""), None);
        assert_eq!(page(Bytes(0), page_size, ""), None);
        assert_eq!(page(Bytes(u64::MAX), page_size, ""), None, "the last page has 32 bits");
        let long = page(Bytes(1 << 20), page_size, "a label that is too long for it").unwrap();
        assert_eq!(&long[1052..1070], b"a label that is \0\0");
    }
}
