//! Durations on the command line: `5s`, `100ms`, `1h30m`, `12h`, `1d`.

use std::time::Duration;

use pagelab_model::size::strip_grouping;

/// The units, and their nanoseconds.
static UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Error message for a text that is not a duration.
const EXPECTED: &str = "expected a duration, for example 100ms, 5s, 1h30m (units ms, s, m, h, d)";

/// Parses a length of time as a person types it or as pagelab prints it: numbers with units, largest unit
/// first, decimals allowed in the last, blanks allowed around units. The error states the reason and what was
/// expected, without the text itself.
pub fn parse(text: &str) -> Result<Duration, String> {
    let refuse = |why: &str| Err(format!("{why}; {EXPECTED}"));
    if text.contains('_') {
        return refuse("missing unit");
    }
    let plain = strip_grouping(text);
    let mut rest = plain.trim();
    if rest.is_empty() {
        return refuse("empty");
    }
    let (mut total_ns, mut last_unit) = (0_u64, u64::MAX);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = (&rest[..end], rest[end..].trim_start());
        let end = behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len());
        let (unit, next) = (&behind[..end], behind[end..].trim_start());
        let known = match unit {
            "min" => Some("m"),
            // The micro sign, and the Greek letter.
            "\u{b5}s" | "\u{3bc}s" => Some("us"),
            _ => Some(unit),
        };
        let Some(&(_, unit_ns)) = UNITS.iter().find(|(name, _)| Some(*name) == known) else {
            return refuse(match (number, unit) {
                ("", _) => "not a number",
                (_, "") => "missing unit",
                _ => "unknown unit",
            });
        };
        if unit_ns >= last_unit {
            return refuse("units must go from largest to smallest");
        }
        if number.contains('.') && !next.is_empty() {
            return refuse("only the last part may have decimals");
        }
        let Some(part_ns) = parse_decimal_ns(number, unit_ns) else { return refuse("not a number") };
        match total_ns.checked_add(part_ns) {
            Some(sum) => total_ns = sum,
            None => return refuse("longer than 584 years"),
        }
        (rest, last_unit) = (next, unit_ns);
    }
    Ok(Duration::from_nanos(total_ns))
}

/// Parses a length of time, or a bare number of seconds, which some options took before they took units.
pub fn parse_or_seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).or_else(|_| parse(text))
}

/// Formats a time without rounding as one word, as an option takes it: `5s`, `200ms`, `1500ns`.
pub fn format_argument(time: Duration) -> String {
    let ns = time.as_nanos();
    let fits = |unit: &&(&str, u64)| ns.is_multiple_of(u128::from(unit.1));
    let seconds_and_below = &UNITS[..=3];
    let (name, unit_ns) = seconds_and_below.iter().rev().find(fits).unwrap_or(&UNITS[0]);
    format!("{}{name}", ns / u128::from(*unit_ns))
}

/// `1.5` times a unit, exactly; fractions of a nanosecond are truncated.
fn parse_decimal_ns(number: &str, unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 15 || fraction.is_empty() && number.contains('.') {
        return None;
    }
    let whole_ns = whole.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    let fraction_ns = match fraction {
        "" => 0,
        digits => {
            let value = u128::from(digits.parse::<u64>().ok()?) * u128::from(unit_ns);
            u64::try_from(value / 10_u128.pow(digits.len() as u32)).ok()?
        }
    };
    whole_ns.checked_add(fraction_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, ns) in [
            ("5s", 5_000_000_000),
            ("100ms", 100_000_000),
            ("1.5s", 1_500_000_000),
            ("1h30m", 5_400_000_000_000),
            ("90min", 5_400_000_000_000),
            ("1d", 86_400_000_000_000),
            (" 12h ", 43_200_000_000_000),
            ("2m30.25s", 150_250_000_000),
            ("0s", 0),
            ("7us3ns", 7_003),
            ("5 s", 5_000_000_000),
            ("1.25 µs", 1_250),
            ("5\u{3bc}s", 5_000),
            ("12 min 5 s", 725_000_000_000),
            ("2 d 4 h", 187_200_000_000_000),
            ("10\u{202f}000 s", 10_000_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for (ns, text) in [(5_000_000_000, "5s"), (200_000_000, "200ms"), (1_500, "1500ns"), (0, "0s")] {
            assert_eq!(format_argument(Duration::from_nanos(ns)), text);
        }
        assert_eq!(parse_or_seconds("60"), parse_or_seconds("1m"));
    }

    #[test]
    fn other_texts_are_named_with_what_was_wanted() {
        for (text, why) in [
            ("", "empty"),
            ("5", "missing unit"),
            ("5 0s", "missing unit"),
            ("1_0s", "missing unit"),
            ("s", "not a number"),
            ("-5s", "not a number"),
            ("5sec", "unknown unit"),
            ("30m1h", "units must go from largest to smallest"),
            ("1.5h3m", "only the last part may have decimals"),
            ("1.s", "not a number"),
            ("1.2.3s", "not a number"),
            ("99999999999d", "not a number"),
            ("200000d200000d", "units must go from largest to smallest"),
            ("5\u{7}s", "missing unit"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error, format!("{why}; {EXPECTED}"), "{text}");
        }
    }
}
