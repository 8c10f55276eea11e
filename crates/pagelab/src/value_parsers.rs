//! Parsers of bounded numbers on the command line; errors state the range.

use std::num::NonZero;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pagelab_formats::duration;
use pagelab_model::size::strip_grouping;

/// A word of an option, with its earlier names behind it; its help, without which it is hidden; its value.
pub type Choice<T> = (&'static [&'static str], &'static str, T);

/// Returns a parser of these words.
pub fn choice<T>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    let words = choices.iter().filter_map(|(words, help, _)| {
        let (word, earlier) = words.split_first()?;
        let value = PossibleValue::new(*word).aliases(earlier.iter().copied());
        Some(if help.is_empty() { value.hide(true) } else { value.help(*help) })
    });
    PossibleValuesParser::new(words).try_map(move |word| {
        let found = choices.iter().find(|(words, ..)| words.contains(&word.as_str()));
        found.map(|(.., value)| value.clone()).ok_or("unknown word")
    })
}

/// Returns the word of a value.
pub fn choice_word<T: PartialEq>(choices: &[Choice<T>], value: &T) -> &'static str {
    choices.iter().find(|(.., known)| known == value).map_or("", |(words, ..)| words[0])
}

/// Parses an integer from `MIN` to `MAX`, both of which the type holds.
pub fn parse_bounded<T: TryFrom<u64>, const MIN: u64, const MAX: u64>(text: &str) -> Result<T, String> {
    const { assert!(size_of::<T>() >= 8 || MAX >> (8 * size_of::<T>()) == 0) };
    let number = strip_grouping(text).parse::<u64>().ok().filter(|number| (MIN..=MAX).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("expected an integer from {MIN} to {MAX}"))
}

/// Parses a number of things of which there is at least one: huge pages, reports, threads to show.
pub fn parse_count(text: &str) -> Result<usize, String> {
    parse_bounded::<usize, 1, 1_000_000_000>(text)
}

/// Parses the number of a process.
pub fn parse_pid(text: &str) -> Result<u32, String> {
    let pid = parse_bounded::<u32, 1, { i32::MAX as u64 }>(text);
    pid.map_err(|_| "expected a process ID, for example 4121".to_owned())
}

pub fn parse_node(text: &str) -> Result<u32, String> {
    parse_bounded::<u32, 0, 65_535>(text)
}

/// Parses a length of time from `min` to `max`.
pub fn parse_bounded_duration(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let length = duration::parse(text)?;
    if (min..=max).contains(&length) {
        return Ok(length);
    }
    let text = |end: Duration| {
        let units = [(DAY, "d"), (HOUR, "h")];
        let whole =
            units.iter().find(|(unit, _)| end >= *unit && end.as_nanos().is_multiple_of(unit.as_nanos()));
        whole.map_or_else(
            || duration::format_argument(end),
            |(unit, name)| format!("{}{name}", end.as_secs() / unit.as_secs()),
        )
    };
    let [least, most] = [min, max].map(text);
    Err(format!("expected {least} to {most}"))
}

/// A time in nanoseconds, at most 2^64 − 1.
pub fn bounded_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Largest seed: run files store signed numbers.
const SEED_MAX: u64 = i64::MAX as u64;

pub fn parse_seed(text: &str) -> Result<u64, String> {
    parse_bounded::<u64, 0, SEED_MAX>(text)
}

pub fn parse_thread_count(text: &str) -> Result<NonZero<usize>, String> {
    let number = parse_bounded::<usize, 1, 1000>(text)?;
    Ok(NonZero::new(number).unwrap_or(NonZero::<usize>::MIN))
}

#[cfg(test)]
mod tests {
    use pagelab_model::random::SplitMix64;
    use pagelab_report::quantity_format::format_duration;

    use super::*;

    #[test]
    fn the_ends_belong_to_it_and_are_named() {
        assert_eq!(
            (parse_bounded::<u32, 1, 1000>("1"), parse_bounded::<u32, 1, 1000>("1000")),
            (Ok(1), Ok(1000))
        );
        assert_eq!(parse_count("12\u{202f}800"), Ok(12_800), "as printed");
        for text in ["0", "1001", "-3", "", "x", "1.5", "99999999999999999999999"] {
            assert_eq!(
                parse_bounded::<u32, 1, 1000>(text),
                Err("expected an integer from 1 to 1000".to_owned())
            );
        }
        assert_eq!(parse_seed("9223372036854775807"), Ok(SEED_MAX));
        assert!(parse_seed("9223372036854775808").is_err());
        assert!(parse_thread_count("0").is_err());
    }

    #[test]
    fn durations_have_bounds_that_are_named() {
        let parse = |text: &str| parse_bounded_duration(text, Duration::from_millis(100), 366 * DAY);
        assert_eq!(parse("1d"), Ok(DAY));
        assert_eq!(parse("50ms"), Err("expected 100ms to 366d".to_owned()));
        assert!(parse("5").unwrap_err().starts_with("missing unit; expected a duration"));
    }

    /// Each printed duration is parsed, within the rounding of what is printed.
    #[test]
    fn printed_durations_are_read_again() {
        let mut random = SplitMix64::new(16);
        for _ in 0..10_000 {
            let ns = random.next_below(999 * DAY.as_nanos() as u64) >> random.next_below(57);
            let text = format_duration(ns);
            let read = duration::parse(&text).expect(&text).as_nanos() as f64;
            assert!((read - ns as f64).abs() <= ns as f64 * 0.05, "{text}: {read} of {ns}");
            let text = duration::format_argument(Duration::from_nanos(ns));
            assert_eq!(duration::parse(&text), Ok(Duration::from_nanos(ns)), "{text}");
        }
    }
}
