//! A file that holds one number, such as `nr_hugepages` or `min_free_kbytes`.

use crate::ParseError;
use crate::text::{number, show};

const FORMAT: &str = "a number";

/// Reads a text that is one unsigned decimal number, with or without a newline behind it.
pub fn parse_u64(text: &[u8]) -> Result<u64, ParseError> {
    let word = text.trim_ascii();
    if word.is_empty() {
        return Err(ParseError::whole(FORMAT, "no number in it"));
    }
    number(word)
        .ok_or_else(|| ParseError::at_line(FORMAT, 1, format!("`{}` is not an unsigned number", show(word))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_and_nothing_else() {
        assert_eq!(parse_u64(b"0\n"), Ok(0));
        assert_eq!(parse_u64(b" 18446744073709551615"), Ok(u64::MAX));
        for (text, expect) in [
            ("", "f: no number in it (read as a number)"),
            ("\n", "f: no number in it (read as a number)"),
            ("-1\n", "f:1: `-1` is not an unsigned number (read as a number)"),
            ("1\n2\n", "f:1: `1\\n2` is not an unsigned number (read as a number)"),
            ("max\n", "f:1: `max` is not an unsigned number (read as a number)"),
        ] {
            assert_eq!(parse_u64(text.as_bytes()).unwrap_err().in_file("f"), expect);
        }
    }
}
