//! `/proc/kpagecount`: how often each page frame is mapped, one 64-bit count for each frame.
//!
//! With CONFIG_NO_PAGE_MAPCOUNT (6.15 and later) a page of a large folio has the average over the folio.

use crate::ParseError;

const FORMAT: &str = "kpagecount";

/// Bytes of one entry.
pub const ENTRY_BYTES: usize = 8;

/// The mappings of each frame of a range, without allocation. A truncated entry is an error.
pub fn counts(bytes: &[u8]) -> Result<impl Iterator<Item = u64>, ParseError> {
    page_entries(FORMAT, bytes)
}

/// The entries of a file with a 64-bit word for each page.
pub(crate) fn page_entries(
    format: &'static str,
    bytes: &[u8],
) -> Result<impl Iterator<Item = u64>, ParseError> {
    let (whole, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        let at = (bytes.len() - rest.len()) as u64;
        return Err(ParseError::at_byte(format, at, format!("truncated entry: {} of 8 bytes", rest.len())));
    }
    Ok(whole.iter().map(|entry| u64::from_ne_bytes(*entry)))
}

/// Any bytes: one count for each whole entry.
pub fn fuzz(data: &[u8]) {
    if let Ok(counts) = counts(data) {
        assert_eq!(counts.count(), data.len() / ENTRY_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_words_and_a_cut_one_is_an_error() {
        let bytes: Vec<u8> = [3u64, 0, u64::MAX].iter().flat_map(|count| count.to_ne_bytes()).collect();
        assert_eq!(counts(&bytes).unwrap().collect::<Vec<_>>(), [3, 0, u64::MAX]);
        let error = counts(&bytes[..20]).err().unwrap().message_in_file("f");
        assert_eq!(error, "f: byte 16: truncated entry: 4 of 8 bytes (read as kpagecount)");
        fuzz(&bytes);
    }
}
