//! Swap areas: `/proc/swaps` (mm/swapfile.c, `swap_show`; a header alone is a machine without swap) and the
//! header that `mkswap` writes.

use pagelab_model::settings::SwapArea;
use pagelab_model::{Bytes, PageSize};

use crate::ParseError;
use crate::text::{collect_at_most, lines, parse_number, to_printable, unescape, words};

const FORMAT: &str = "swaps";
/// The kernel's limit is 32 (MAX_SWAPFILES).
const AREAS_MAX: usize = 1024;

/// Reads a whole swaps file: the header, then a line for each area.
pub fn parse(text: &[u8]) -> Result<Vec<SwapArea>, ParseError> {
    let mut lines = lines(text);
    match lines.next() {
        Some((_, header)) if header.starts_with(b"Filename") => {}
        Some((at, other)) => {
            let problem = format!(
                "expected the header `Filename Type Size Used Priority`, found `{}`",
                to_printable(other)
            );
            return Err(ParseError::at_line(FORMAT, at, problem));
        }
        None => return Err(ParseError::for_input(FORMAT, "empty file: the header is missing")),
    }
    let filled = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    collect_at_most(FORMAT, AREAS_MAX, filled.map(|(at, line)| parse_area(at, line)))
}

fn parse_area(line_number: u64, line: &[u8]) -> Result<SwapArea, ParseError> {
    let mut fields = words(line);
    let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
    let (Some(name), Some(kind), Some(size), Some(used), Some(_priority)) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(fail(format!("`{}` has fewer than 5 fields", to_printable(line))));
    };
    let amount = |what: &str, word: &[u8]| {
        parse_number(word)
            .map(Bytes::from_kib)
            .ok_or_else(|| fail(format!("{what} `{}` is not a size in kB", to_printable(word))))
    };
    Ok(SwapArea {
        name: unescape(name),
        kind: unescape(kind),
        size: amount("size", size)?,
        used: amount("used", used)?,
    })
}

/// Left to boot loaders.
const BOOT_BYTES: usize = 1024;
/// Behind the boot sector: version, last page, number of bad pages, 32 bits each; UUID and label, 16 bytes
/// each.
const VERSION_OFFSET: usize = BOOT_BYTES;
const LAST_PAGE_OFFSET: usize = BOOT_BYTES + 4;
const LABEL_OFFSET: usize = BOOT_BYTES + 28;
const LABEL_BYTES: usize = 16;
/// The last bytes of the page.
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
/// The kernel wants ten pages at least, as mkswap does.
const PAGES_MIN: u64 = 10;

/// The header of an area of `size`, which is used in whole pages; its own page is one of them. Numbers are
/// little-endian: a kernel of the other order swaps them itself. A label that is longer than 16 bytes is cut.
/// `None`: the area is too small, or has more pages than the header can name.
pub fn header_page(size: Bytes, page_size: PageSize, label: &str) -> Option<Vec<u8>> {
    let bytes = usize::try_from(page_size.bytes()).ok()?;
    let pages = size.0 / page_size.bytes();
    if pages < PAGES_MIN || bytes < LABEL_OFFSET + LABEL_BYTES + SIGNATURE.len() {
        return None;
    }
    let last = u32::try_from(pages - 1).ok()?;
    let mut page = vec![0; bytes];
    page[VERSION_OFFSET..LAST_PAGE_OFFSET].copy_from_slice(&1u32.to_le_bytes());
    page[LAST_PAGE_OFFSET..LAST_PAGE_OFFSET + 4].copy_from_slice(&last.to_le_bytes());
    let label = &label.as_bytes()[..label.len().min(LABEL_BYTES)];
    page[LABEL_OFFSET..LABEL_OFFSET + label.len()].copy_from_slice(label);
    page[bytes - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    #[test]
    fn areas_are_read_and_none_is_no_error() {
        assert_eq!(parse(HEADER.as_bytes()).unwrap(), []);
        let text =
            format!("{HEADER}/swap\\040file   file\t\t2097148\t\t1024\t\t-2\n/dev/zram0 partition 8 0 100\n");
        let areas = parse(text.as_bytes()).unwrap();
        assert_eq!(areas.len(), 2);
        assert_eq!((areas[0].name.as_str(), areas[0].kind.as_str()), ("/swap file", "file"));
        assert_eq!((areas[0].size, areas[0].used), (Bytes::from_kib(2097148), Bytes::from_kib(1024)));
    }

    #[test]
    fn bad_lines_are_named() {
        let cases = [
            (String::new(), "f: empty file: the header is missing (read as swaps)"),
            (
                "x\n".to_owned(),
                "f:1: expected the header `Filename Type Size Used Priority`, found `x` (read as swaps)",
            ),
            (format!("{HEADER}/s file 1 2\n"), "f:2: `/s file 1 2` has fewer than 5 fields (read as swaps)"),
            (format!("{HEADER}/s file 1 -2 3\n"), "f:2: used `-2` is not a size in kB (read as swaps)"),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
    }

    #[test]
    fn a_header_has_the_page_size_of_the_machine() {
        for shift in [12, 14, 16] {
            let page_size = PageSize::new(1 << shift).unwrap();
            let header = header_page(Bytes(1 << 20), page_size, "pagelab").unwrap();
            assert_eq!(header.len(), 1 << shift);
            assert_eq!(&header[(1 << shift) - 10..], b"SWAPSPACE2");
            assert_eq!(header[1024..1032], [1, 0, 0, 0, ((1u32 << (20 - shift)) - 1) as u8, 0, 0, 0]);
            assert_eq!(&header[1052..1060], b"pagelab\0");
            assert!(header[1032..1052].iter().all(|&byte| byte == 0), "no bad pages, no UUID");
        }
    }

    #[test]
    fn what_is_no_area_has_no_header() {
        let page_size = PageSize::DEFAULT;
        assert!(header_page(Bytes(10 * page_size.bytes()), page_size, "").is_some());
        assert_eq!(header_page(Bytes(10 * page_size.bytes() - 1), page_size, ""), None);
        assert_eq!(header_page(Bytes(0), page_size, ""), None);
        assert_eq!(header_page(Bytes(u64::MAX), page_size, ""), None, "the last page has 32 bits");
        let long = header_page(Bytes(1 << 20), page_size, "a label that is too long for it").unwrap();
        assert_eq!(&long[1052..1070], b"a label that is \0\0");
    }
}
