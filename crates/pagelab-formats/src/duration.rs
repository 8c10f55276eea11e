//! A length of time as a person types it: `5s`, `100ms`, `1h30m`, `12h`, `1d`.

use std::time::Duration;

/// The units, and their nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// What is told when a text is no length of time.
const WANTED: &str = "a number with a unit was wanted: ms, s, m (minutes), h or d, such as 100ms, 5s, 1h30m";

/// Reads a length of time: numbers with units, largest unit first, decimals allowed in the last. The error is
/// a phrase that names the text and what was wanted instead.
pub fn parse(text: &str) -> Result<Duration, String> {
    let refuse = |why: &str| Err(format!("`{}`: {why}; {WANTED}", text.escape_debug()));
    let mut rest = text.trim();
    if rest.is_empty() {
        return refuse("it is empty");
    }
    let (mut total_ns, mut last_unit) = (0_u64, u64::MAX);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at(end);
        let known = match unit {
            "min" => Some("m"),
            "µs" => Some("us"),
            _ => Some(unit),
        };
        let Some(&(_, unit_ns)) = UNITS.iter().find(|(name, _)| Some(*name) == known) else {
            return refuse(match (number, unit) {
                ("", _) => "that is no number",
                (_, "") => "it has no unit",
                _ => "its unit is not known",
            });
        };
        if unit_ns >= last_unit {
            return refuse("its units do not become smaller");
        }
        if number.contains('.') && !next.is_empty() {
            return refuse("decimals stand only in its last part");
        }
        let Some(part_ns) = decimal(number, unit_ns) else { return refuse("that is no number") };
        match total_ns.checked_add(part_ns) {
            Some(sum) => total_ns = sum,
            None => return refuse("it is longer than 584 years"),
        }
        (rest, last_unit) = (next, unit_ns);
    }
    Ok(Duration::from_nanos(total_ns))
}

/// `1.5` times a unit, exactly; what is below a nanosecond is cut off.
fn decimal(number: &str, unit_ns: u64) -> Option<u64> {
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
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_named_with_what_was_wanted() {
        for (text, why) in [
            ("", "it is empty"),
            ("5", "it has no unit"),
            ("5 s", "it has no unit"),
            ("s", "that is no number"),
            ("-5s", "that is no number"),
            ("5sec", "its unit is not known"),
            ("30m1h", "its units do not become smaller"),
            ("1.5h3m", "decimals stand only in its last part"),
            ("1.s", "that is no number"),
            ("1.2.3s", "that is no number"),
            ("99999999999d", "that is no number"),
            ("200000d200000d", "its units do not become smaller"),
            ("5\u{7}s", "it has no unit"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why) && error.ends_with("such as 100ms, 5s, 1h30m"), "{text}: {error}");
            assert!(!error.contains('\u{7}'), "control characters are escaped");
        }
    }
}
