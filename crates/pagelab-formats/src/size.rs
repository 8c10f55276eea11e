//! Sizes, shares and times as text: in sysfs and procfs (`48K`, hexadecimal, uptime), and on the command
//! line.

use pagelab_model::Bytes;

use crate::ParseError;
use crate::text::{one_line_error, parse_number, split_once, to_printable, words};

/// The size of a processor cache as sysfs prints it, with one of the suffixes K, M, G or none: `48K`. Sizes
/// that people type are read by [`pagelab_model::size::parse`].
pub fn parse_cache_size(text: &[u8]) -> Result<Bytes, ParseError> {
    let word = text.trim_ascii();
    let (digits, shift) = match word.split_last() {
        Some((b'K' | b'k', digits)) => (digits, 10),
        Some((b'M' | b'm', digits)) => (digits, 20),
        Some((b'G' | b'g', digits)) => (digits, 30),
        _ => (word, 0),
    };
    parse_number(digits).and_then(|n| n.checked_mul(1 << shift)).map(Bytes).ok_or_else(|| {
        let problem = format!("`{}` is not a number followed by K, M or G", to_printable(word));
        one_line_error("size", text, problem)
    })
}

/// A number of bytes in hexadecimal without a prefix, such as `block_size_bytes`.
pub fn parse_hexadecimal(text: &[u8]) -> Result<Bytes, ParseError> {
    let word = text.trim_ascii();
    let digits = std::str::from_utf8(word).ok().filter(|digits| !digits.starts_with('+'));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).map(Bytes).ok_or_else(|| {
        one_line_error(
            "hexadecimal size",
            text,
            format!("`{}` is not a hexadecimal number", to_printable(word)),
        )
    })
}

/// The first number of `/proc/uptime`, as nanoseconds since boot, sleep included.
pub fn parse_uptime(text: &[u8]) -> Result<u64, ParseError> {
    let word = words(text).next().unwrap_or_default();
    let parts = || {
        let (seconds, hundredths) = split_once(word, b'.')?;
        let seconds = parse_number(seconds)?;
        let hundredths = (hundredths.len() == 2).then(|| parse_number(hundredths)).flatten()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(hundredths * 10_000_000)
    };
    // The load averages have two decimals as well.
    parts().filter(|_| words(text).count() == 2).ok_or_else(|| {
        one_line_error(
            "uptime",
            text,
            format!("expected two times in seconds with two decimals, found `{}`", to_printable(word)),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        assert_eq!(parse_cache_size(b"48K\n").unwrap(), Bytes(48 << 10));
        assert_eq!(parse_cache_size(b"2M").unwrap(), Bytes(2 << 20));
        assert_eq!(parse_cache_size(b"64").unwrap(), Bytes(64));
        assert_eq!(parse_hexadecimal(b"8000000\n").unwrap(), Bytes(128 << 20));
        assert_eq!(parse_uptime(b"350735.47 234388.90\n").unwrap(), 350_735_470_000_000);
    }

    #[test]
    fn bad_texts_are_named() {
        let check = |error: ParseError, message: &str| assert_eq!(error.message_in_file("f"), message);
        check(
            parse_cache_size(b"K\n").unwrap_err(),
            "f:1: `K` is not a number followed by K, M or G (read as size)",
        );
        check(
            parse_cache_size(b"99999999999999999G").unwrap_err(),
            "f:1: `99999999999999999G` is not a number followed by K, M or G (read as size)",
        );
        check(
            parse_hexadecimal(b"0x10").unwrap_err(),
            "f:1: `0x10` is not a hexadecimal number (read as hexadecimal size)",
        );
        check(parse_uptime(b"").unwrap_err(), "f: empty file (read as uptime)");
        check(
            parse_uptime(b"1.5").unwrap_err(),
            "f:1: expected two times in seconds with two decimals, found `1.5` (read as uptime)",
        );
    }
}
