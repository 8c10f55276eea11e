//! `/proc/vmstat`: event counters and page counts, one `name value` a line (mm/vmstat.c).
//!
//! A counter that the kernel prints without its name (see [`crate::zoneinfo`]) has the empty name here, and a
//! negative counter is kept as by [`crate::text::parse_counter`].

use pagelab_model::Counters;

use crate::ParseError;
use crate::counter_builder::CounterBuilder;
use crate::text::{
    RECORDS_MAX, filled_lines, is_at_line_end, parse_counter, parse_name, split_counter, strip_name,
    to_printable,
};

const FORMAT: &str = "vmstat";
/// Counters that only vmstat has; the second one is in those before 2.6.21, too.
const IDENTITIES: [&str; 2] = ["nr_free_pages", "nr_dirty"];

/// Reads a whole text of `name number` lines, such as memory.stat of a control group. Blank lines are
/// skipped; an empty text is an error.
pub fn parse_counters(text: &[u8]) -> Result<Counters, ParseError> {
    let mut counters = CounterBuilder::new();
    for (number, line) in filled_lines(text) {
        let fail = |problem: String| ParseError::at_line(FORMAT, number, problem);
        let (first, value) = split_line(line)
            .ok_or_else(|| fail(format!("expected `name number`, found `{}`", to_printable(line))))?;
        if counters.len() == RECORDS_MAX {
            return Err(fail(format!("more than {RECORDS_MAX} counters")));
        }
        counters.push(if first.is_empty() { "" } else { parse_name(FORMAT, number, first)? }, value);
    }
    if counters.len() == 0 {
        return Err(ParseError::for_input(FORMAT, "no counters found"));
    }
    Ok(counters.finish())
}

/// Reads `/proc/vmstat`. The other files of this shape have counters of the same names, of a control group
/// or a process.
pub fn parse(text: &[u8]) -> Result<Counters, ParseError> {
    let counters = parse_counters(text)?;
    if IDENTITIES.iter().all(|name| counters.get(name).is_none()) {
        let problem = format!("not a vmstat file: no `{}` or `{}`", IDENTITIES[0], IDENTITIES[1]);
        return Err(ParseError::for_input(FORMAT, problem));
    }
    Ok(counters)
}

/// Overwrites the values of `known` from a newer text of the same machine, without allocation.
/// `false` if the text has other counters, or is malformed: read it with [`parse`] then.
/// `known` may be partly overwritten in that case.
pub fn reparse(text: &[u8], known: &mut Counters) -> bool {
    let names = known.names().clone();
    let mut rest = text;
    for (name, slot) in names.iter().zip(known.values_mut()) {
        let Some((value, after)) =
            strip_name(rest, name, b' ').and_then(split_counter).filter(|(_, rest)| is_at_line_end(rest))
        else {
            return false;
        };
        *slot = value;
        rest = after.get(1..).unwrap_or_default();
    }
    rest.is_empty()
}

fn split_line(line: &[u8]) -> Option<(&[u8], u64)> {
    let blank = line.iter().position(u8::is_ascii_whitespace)?;
    let (name, value) = line.split_at(blank);
    Some((name, parse_counter(value.trim_ascii())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "nr_free_pages 34683\nnr_bounce -2\n 537792\npgfault 18446744073709551615\n";

    fn error(text: &[u8]) -> String {
        parse(text).unwrap_err().message_in_file("f")
    }

    #[test]
    fn counters_keep_their_order_sign_and_missing_name() {
        let counters = parse(TEXT.as_bytes()).unwrap();
        let expect =
            [("nr_free_pages", 34683), ("nr_bounce", u64::MAX - 1), ("", 537_792), ("pgfault", u64::MAX)];
        assert!(counters.iter().eq(expect));
        assert_eq!(counters.get("nr_absent"), None);
    }

    #[test]
    fn a_second_reading_overwrites_in_place_and_refuses_another_shape() {
        let mut counters = parse(TEXT.as_bytes()).unwrap();
        assert!(reparse(TEXT.replace("34683", "0").replace("-2", "7").as_bytes(), &mut counters));
        assert_eq!(counters.values(), [0, 7, 537_792, u64::MAX]);
        for (from, to) in [
            ("34683", "34683 1"),
            ("34683", ""),
            ("551615", "551616"),
            ("pgfault", "pgfaults"),
            ("nr_free_pages", "nr_free"),
            ("nr_free_pages 34683\n", ""),
            ("551615\n", "551615\npgnew 1\n"),
        ] {
            assert!(!reparse(TEXT.replace(from, to).as_bytes(), &mut counters), "{from} to {to}");
        }
        assert!(!reparse(b"", &mut counters));
    }

    #[test]
    fn bad_lines_are_named() {
        let other = "f: not a vmstat file: no `nr_free_pages` or `nr_dirty` (read as vmstat)";
        assert_eq!(error(b"anon 40\npgfault 6\n"), other);
        assert_eq!(error(b"\n"), "f: no counters found (read as vmstat)");
        for line in ["pgfault", "pgfault x", "pgfault 1 2", "pgfault 99999999999999999999", "pgfault 0x1"] {
            let expect = format!("f:2: expected `name number`, found `{line}` (read as vmstat)");
            assert_eq!(error(format!("a 1\n{line}\n").as_bytes()), expect);
        }
        assert_eq!(error(b"a\0b 1\n"), "f:1: `a\\0b` is not a name (read as vmstat)");
        let many = "a 1\n".repeat(RECORDS_MAX + 1);
        assert_eq!(error(many.as_bytes()), "f:1048577: more than 1048576 counters (read as vmstat)");
    }
}
