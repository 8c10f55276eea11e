//! Small sysfs and procfs texts that hold a size or a time: `48K`, `8000000` in hexadecimal, uptime.

use pagelab_model::Bytes;

use crate::ParseError;
use crate::text::{number, one_line_error, show, words};

/// A size with one of the suffixes K, M, G or none: `48K`.
pub fn parse_suffixed(text: &[u8]) -> Result<Bytes, ParseError> {
    let word = text.trim_ascii();
    let (digits, shift) = match word.split_last() {
        Some((b'K' | b'k', digits)) => (digits, 10),
        Some((b'M' | b'm', digits)) => (digits, 20),
        Some((b'G' | b'g', digits)) => (digits, 30),
        _ => (word, 0),
    };
    number(digits).and_then(|n| n.checked_mul(1 << shift)).map(Bytes).ok_or_else(|| {
        one_line_error("size", text, format!("`{}` is not a number with K, M or G behind it", show(word)))
    })
}

/// A number of bytes in hexadecimal without a prefix, such as `block_size_bytes`.
pub fn parse_hexadecimal(text: &[u8]) -> Result<Bytes, ParseError> {
    let word = text.trim_ascii();
    let digits = std::str::from_utf8(word).ok().filter(|digits| !digits.starts_with('+'));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).map(Bytes).ok_or_else(|| {
        one_line_error("hexadecimal size", text, format!("`{}` is not hexadecimal", show(word)))
    })
}

/// The first number of `/proc/uptime`, as nanoseconds since boot, sleep included.
pub fn parse_uptime(text: &[u8]) -> Result<u64, ParseError> {
    let word = words(text).next().unwrap_or_default();
    let parts = || {
        let dot = word.iter().position(|&b| b == b'.')?;
        let (seconds, hundredths) = (number(&word[..dot])?, &word[dot + 1..]);
        let hundredths = (hundredths.len() == 2).then(|| number(hundredths)).flatten()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(hundredths * 10_000_000)
    };
    parts().ok_or_else(|| {
        one_line_error("uptime", text, format!("`{}` is not seconds with two decimals", show(word)))
    })
}

/// Reads a size as a person types it or as pagelab prints it: a number, decimals allowed, with `K`, `M`, `G`,
/// `T` or `P`, each also as `Ki` and `KiB`. All are powers of 1024, as in the kernel, whose `kB` is 1024
/// bytes. Digits may be grouped by spaces that do not break a line. The error names the text and what was
/// expected.
pub fn parse(text: &str) -> Result<Bytes, String> {
    let refuse = |why: &str| {
        Err(format!("`{}`: {why}; expected a size, for example 64M or 1.5GiB", text.trim().escape_debug()))
    };
    let plain: String = text.trim().chars().filter(|c| !GROUPING.contains(c)).collect();
    let end = plain.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(plain.len());
    let (digits, unit) = plain.split_at(end);
    let unit = unit.trim_start_matches(' ').to_ascii_lowercase();
    let Some(shift) = UNITS.iter().find(|(names, _)| names.contains(&unit.as_str())).map(|(_, shift)| *shift)
    else {
        return refuse("unknown unit");
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number =
        !whole.is_empty() && fraction.len() <= 12 && digits.ends_with(|c: char| c.is_ascii_digit());
    let Some(whole) = whole.parse::<u64>().ok().filter(|_| is_number) else { return refuse("not a number") };
    let part = match fraction {
        "" => 0,
        digits => {
            let Ok(digits_value) = digits.parse::<u128>() else { return refuse("not a number") };
            (digits_value << shift) / 10_u128.pow(digits.len() as u32)
        }
    };
    let bytes = (u128::from(whole) << shift) + part;
    u64::try_from(bytes).map(Bytes).or_else(|_| refuse("too large"))
}

/// What may stand between groups of digits: no-break space, narrow no-break space, thin space, `_`.
const GROUPING: [char; 4] = ['\u{a0}', '\u{202f}', '\u{2009}', '_'];

/// Units in lower case, and the power of two that each stands for.
const UNITS: [(&[&str], u32); 6] = [
    (&["", "b", "byte", "bytes"], 0),
    (&["k", "kb", "ki", "kib"], 10),
    (&["m", "mb", "mi", "mib"], 20),
    (&["g", "gb", "gi", "gib"], 30),
    (&["t", "tb", "ti", "tib"], 40),
    (&["p", "pb", "pi", "pib"], 50),
];

/// Reads a share: `50%`, `50 %` or `0.5`, from 0 to 1. The error names the text and what was expected.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let word = text.trim();
    let (digits, scale) = match word.strip_suffix('%') {
        Some(digits) => (digits.trim_end_matches([' ', '\u{a0}', '\u{202f}', '\u{2009}']), 100.0),
        None => (word, 1.0),
    };
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share = digits.parse::<f64>().ok().filter(|_| is_plain).map(|value| value / scale);
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| {
        format!("`{}`: expected a share from 0 to 1, for example 50% or 0.5", word.escape_debug())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        assert_eq!(parse_suffixed(b"48K\n").unwrap(), Bytes(48 << 10));
        assert_eq!(parse_suffixed(b"2M").unwrap(), Bytes(2 << 20));
        assert_eq!(parse_suffixed(b"64").unwrap(), Bytes(64));
        assert_eq!(parse_hexadecimal(b"8000000\n").unwrap(), Bytes(128 << 20));
        assert_eq!(parse_uptime(b"350735.47 234388.90\n").unwrap(), 350_735_470_000_000);
    }

    #[test]
    fn bad_texts_are_named() {
        let check = |error: ParseError, message: &str| assert_eq!(error.in_file("f"), message);
        check(
            parse_suffixed(b"K\n").unwrap_err(),
            "f:1: `K` is not a number with K, M or G behind it (read as size)",
        );
        check(
            parse_suffixed(b"99999999999999999G").unwrap_err(),
            "f:1: `99999999999999999G` is not a number with K, M or G behind it (read as size)",
        );
        check(
            parse_hexadecimal(b"0x10").unwrap_err(),
            "f:1: `0x10` is not hexadecimal (read as hexadecimal size)",
        );
        check(parse_uptime(b"").unwrap_err(), "f: nothing in it (read as uptime)");
        check(
            parse_uptime(b"1.5").unwrap_err(),
            "f:1: `1.5` is not seconds with two decimals (read as uptime)",
        );
    }

    #[test]
    fn what_a_person_types_and_pagelab_prints_is_read() {
        for (text, bytes) in [
            ("5T", 5 << 40),
            ("2Mi", 2 << 20),
            ("2MiB", 2 << 20),
            ("2GB", 2 << 30),
            ("1gb", 1 << 30),
            ("4096", 4096),
            ("0", 0),
            ("1.5G", 3 << 29),
            ("0.5K", 512),
            (" 64 MiB ", 64 << 20),
            ("12\u{202f}288\u{a0}KiB", 12288 << 10),
            ("1_000_000 bytes", 1_000_000),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse(text), Ok(Bytes(bytes)), "{text}");
        }
        for (text, why) in [
            ("", "not a number"),
            ("M", "not a number"),
            ("-1M", "unknown unit"),
            ("1.M", "not a number"),
            ("1.2.3", "not a number"),
            ("5X", "unknown unit"),
            ("1 000 K", "unknown unit"),
            ("16777216T", "too large"),
            ("99999999999999999999", "not a number"),
            ("1\u{7}M", "unknown unit"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why) && error.contains("expected a size, for example 64M"), "{error}");
            assert!(!error.contains('\u{7}'), "control characters are escaped");
        }
    }

    #[test]
    fn shares_are_percent_or_fractions() {
        for (text, share) in
            [("50%", 0.5), ("50 %", 0.5), ("0.5", 0.5), ("1", 1.0), ("100%", 1.0), ("0", 0.0)]
        {
            assert_eq!(parse_share(text), Ok(share), "{text}");
        }
        for text in ["", "%", "101%", "1.5", "-1%", "half", "nan", "1e-3"] {
            let error = parse_share(text).expect_err(text);
            assert!(error.contains("expected a share from 0 to 1"), "{error}");
        }
    }
}
