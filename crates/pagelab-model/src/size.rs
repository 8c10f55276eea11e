//! Sizes and shares as text: the parser of each, and the exact and rounded printers of sizes.

use crate::Bytes;

/// Permitted separators between groups of digits: no-break space, narrow no-break space, thin space, `_`.
const GROUPING: [char; 4] = ['\u{a0}', '\u{202f}', '\u{2009}', '_'];

/// Removes the separators between groups of digits, so that printed numbers can be pasted back.
pub fn strip_grouping(text: &str) -> String {
    text.replace(GROUPING, "")
}

/// A unit: its names in lower case, its power of two, its letter, its printed name.
struct SizeUnit {
    names: &'static [&'static str],
    shift: u32,
    letter: &'static str,
    printed: &'static str,
}

const fn unit(
    names: &'static [&'static str],
    shift: u32,
    letter: &'static str,
    printed: &'static str,
) -> SizeUnit {
    SizeUnit { names, shift, letter, printed }
}

/// Units, the smallest first.
static UNITS: [SizeUnit; 7] = [
    unit(&["", "b", "byte", "bytes"], 0, "", "B"),
    unit(&["k", "kb", "ki", "kib"], 10, "K", "KiB"),
    unit(&["m", "mb", "mi", "mib"], 20, "M", "MiB"),
    unit(&["g", "gb", "gi", "gib"], 30, "G", "GiB"),
    unit(&["t", "tb", "ti", "tib"], 40, "T", "TiB"),
    unit(&["p", "pb", "pi", "pib"], 50, "P", "PiB"),
    unit(&["e", "eb", "ei", "eib"], 60, "E", "EiB"),
];

/// Parses a size as a person types it or as pagelab prints it: a number, decimals allowed, with `K`, `M`,
/// `G`, `T`, `P` or `E`, each also as `Ki`, `KiB` and `KB`. All are powers of 1024, as in the kernel, whose
/// `kB` is 1024 bytes. Digits may be grouped by spaces that do not break a line, or by `_`. The error states
/// the reason and what was expected, without the text itself.
pub fn parse(text: &str) -> Result<Bytes, String> {
    let refuse = |why: &str| Err(format!("{why}; expected a size, for example 64M or 1.5GiB"));
    let plain = strip_grouping(text.trim());
    let end = plain.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(plain.len());
    let (digits, name) = plain.split_at(end);
    let name = name.trim_start_matches(' ').to_ascii_lowercase();
    let Some(SizeUnit { shift, .. }) = UNITS.iter().find(|unit| unit.names.contains(&name.as_str())) else {
        return refuse(if digits.is_empty() { "not a number" } else { "unknown unit" });
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number =
        !whole.is_empty() && fraction.len() <= 12 && digits.ends_with(|c: char| c.is_ascii_digit());
    let fraction_value = if fraction.is_empty() { Ok(0) } else { fraction.parse::<u128>() };
    let (true, Ok(whole), Ok(fraction_value)) = (is_number, whole.parse::<u64>(), fraction_value) else {
        return refuse("not a number");
    };
    if *shift == 0 && fraction_value > 0 {
        return refuse("a fraction of a byte");
    }
    let part = (fraction_value << shift) / 10_u128.pow(fraction.len() as u32);
    u64::try_from((u128::from(whole) << shift) + part).map(Bytes).or_else(|_| refuse("too large"))
}

/// Parses a size above zero.
pub fn parse_nonzero(text: &str) -> Result<Bytes, String> {
    match parse(text)? {
        Bytes(0) => Err("expected a size above 0, for example 64M or 1.5GiB".to_owned()),
        size => Ok(size),
    }
}

/// Parses a share: `50%`, `50 %` or `0.5`, from 0 to 1. The error states what was expected, without the text
/// itself.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let word = text.trim();
    let (digits, scale) = match word.strip_suffix('%') {
        Some(digits) => (digits.trim_end_matches([' ', '\u{a0}', '\u{202f}', '\u{2009}']), 100.0),
        None => (word, 1.0),
    };
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| is_plain);
    match number.map(|number| number / scale) {
        Some(share) if (0.0..=1.0).contains(&share) => Ok(share),
        Some(share) if scale == 1.0 && share <= 100.0 => Err(format!(
            "expected a share from 0 to 1, for example 50% or 0.5; hint: did you mean {digits}%?"
        )),
        _ => Err("expected a share from 0 to 1, for example 50% or 0.5".to_owned()),
    }
}

/// Parses a share above zero.
pub fn parse_nonzero_share(text: &str) -> Result<f64, String> {
    match parse_share(text)? {
        share if share > 0.0 => Ok(share),
        _ => Err("expected a share above 0 and up to 1, for example 50% or 0.5".to_owned()),
    }
}

/// The largest unit in which an amount is a whole number, and that number.
fn whole_unit(amount: Bytes) -> (u64, &'static SizeUnit) {
    let fits = |unit: &&SizeUnit| amount.0 > 0 && amount.0.trailing_zeros() >= unit.shift;
    let unit = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
    (amount.0 >> unit.shift, unit)
}

/// Formats an amount without rounding, in the largest unit in which it is whole: `512 MiB`, `1536 bytes`.
pub fn format_exact(amount: Bytes) -> String {
    let (number, unit) = whole_unit(amount);
    format!("{number} {}", if unit.shift == 0 { "bytes" } else { unit.printed })
}

/// Formats an amount without rounding as one word, as an option or a file of ours takes it: `512M`, `1536`.
pub fn format_argument(amount: Bytes) -> String {
    let (number, unit) = whole_unit(amount);
    format!("{number}{}", unit.letter)
}

/// Formats an amount with a binary prefix and three significant digits: `23.5 GiB`.
pub fn format_bytes(amount: Bytes) -> String {
    let (mut number, mut units) = (amount.0 as f64, UNITS.iter());
    let mut unit = units.next();
    // 999.5 would be printed with four digits, so it uses the next unit.
    while number >= 999.5
        && let Some(next) = units.next()
    {
        number /= 1024.0;
        unit = Some(next);
    }
    format!("{} {}", format_three_digits(number), unit.map_or("B", |unit| unit.printed))
}

/// Formats at most three significant digits, without trailing decimals of integers below 1000.
pub fn format_three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == value.abs().trunc() => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => {
            let text = format!("{value:.2}");
            text.strip_suffix(".00").unwrap_or(&text).to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    #[test]
    fn sizes_are_read_as_typed_and_as_printed() {
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
            ("15E", 15 << 60),
            ("7.0", 7),
        ] {
            assert_eq!(parse(text), Ok(Bytes(bytes)), "{text}");
        }
        for (text, why) in [
            ("", "not a number"),
            ("M", "not a number"),
            ("-1M", "not a number"),
            ("much", "not a number"),
            ("1.M", "not a number"),
            ("1.2.3", "not a number"),
            ("1.5", "a fraction of a byte"),
            ("5X", "unknown unit"),
            ("1e9", "unknown unit"),
            ("1 000 K", "unknown unit"),
            ("16777216T", "too large"),
            ("16E", "too large"),
            ("99999999999999999999", "not a number"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error, format!("{why}; expected a size, for example 64M or 1.5GiB"), "{text}");
        }
        assert!(parse_nonzero("0K").is_err());
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
        assert!(parse_share("5").unwrap_err().ends_with("did you mean 5%?"));
        assert!(parse_nonzero_share("0%").is_err());
    }

    /// Each printed size is parsed: exactly, or within the rounding of three digits.
    #[test]
    fn printed_sizes_are_read_again() {
        let mut random = SplitMix64::new(16);
        for round in 0..10_000 {
            let amount = Bytes(random.next_below(u64::MAX) >> random.next_below(64));
            assert_eq!(parse(&format_exact(amount)), Ok(amount), "round {round}");
            assert_eq!(parse(&format_argument(amount)), Ok(amount), "round {round}");
            let rounded = format_bytes(Bytes(amount.0 / 2));
            let read = parse(&rounded).expect(&rounded).0 as f64;
            assert!((read - (amount.0 / 2) as f64).abs() <= read * 0.006, "{rounded}: {read}");
        }
    }

    #[test]
    fn exact_sizes_have_the_largest_whole_unit() {
        for (bytes, text, word) in [
            (0, "0 bytes", "0"),
            (1536, "1536 bytes", "1536"),
            (1 << 10, "1 KiB", "1K"),
            (512 << 20, "512 MiB", "512M"),
            (1536 << 20, "1536 MiB", "1536M"),
            (1 << 40, "1 TiB", "1T"),
            (u64::MAX, "18446744073709551615 bytes", "18446744073709551615"),
        ] {
            assert_eq!(
                (format_exact(Bytes(bytes)).as_str(), format_argument(Bytes(bytes)).as_str()),
                (text, word)
            );
        }
    }
}
