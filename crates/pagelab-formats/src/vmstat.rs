//! `/proc/vmstat`: event counters and page counts, one `name value` a line (mm/vmstat.c).
//!
//! A counter that the kernel prints without its name (see [`crate::zoneinfo`]) has the empty name here, and
//! a negative counter is kept as [`crate::text::counter`] says.

use pagelab_model::Counters;

use crate::ParseError;
use crate::collect::Collect;
use crate::text::{RECORDS_MAX, after_name, counter, ends_line, lines, name, show, take_counter};

const FORMAT: &str = "vmstat";

/// Reads a whole vmstat text. Blank lines are passed over; an empty text is an error.
pub fn parse(text: &[u8]) -> Result<Counters, ParseError> {
    let mut counters = Collect::new();
    for (number, line) in lines(text) {
        let fail = |problem: String| ParseError::at_line(FORMAT, number, problem);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let (first, value) =
            split_line(line).ok_or_else(|| fail(format!("`{}` is not `name number`", show(line))))?;
        if counters.len() == RECORDS_MAX {
            return Err(fail(format!("more than {RECORDS_MAX} counters")));
        }
        counters.push(if first.is_empty() { "" } else { name(FORMAT, number, first)? }, value);
    }
    if counters.len() == 0 {
        return Err(ParseError::whole(FORMAT, "no counter in it"));
    }
    Ok(counters.finish())
}

/// Overwrites the values of `known` from a newer text of the same machine, without allocation.
/// `false` if the text has other counters, or is malformed: read it with [`parse`] then.
/// `known` may be partly overwritten in that case.
pub fn parse_again(text: &[u8], known: &mut Counters) -> bool {
    let names = known.names().clone();
    let mut rest = text;
    for (name, slot) in names.iter().zip(known.values_mut()) {
        let Some((value, after)) =
            after_name(rest, name, b' ').and_then(take_counter).filter(|(_, rest)| ends_line(rest))
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
    Some((name, counter(value.trim_ascii())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "nr_free_pages 34683\nnr_bounce -2\n 537792\npgfault 18446744073709551615\n";

    fn error(text: &[u8]) -> String {
        parse(text).unwrap_err().in_file("f")
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
        assert!(parse_again(TEXT.replace("34683", "0").replace("-2", "7").as_bytes(), &mut counters));
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
            assert!(!parse_again(TEXT.replace(from, to).as_bytes(), &mut counters), "{from} to {to}");
        }
        assert!(!parse_again(b"", &mut counters));
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(error(b"\n"), "f: no counter in it (read as vmstat)");
        for line in ["pgfault", "pgfault x", "pgfault 1 2", "pgfault 99999999999999999999", "pgfault 0x1"] {
            let expect = format!("f:2: `{line}` is not `name number` (read as vmstat)");
            assert_eq!(error(format!("a 1\n{line}\n").as_bytes()), expect);
        }
        assert_eq!(error(b"a\0b 1\n"), "f:1: `a\\0b` is not a name (read as vmstat)");
        let many = "a 1\n".repeat(RECORDS_MAX + 1);
        assert_eq!(error(many.as_bytes()), "f:1048577: more than 1048576 counters (read as vmstat)");
    }
}
