//! Pressure stall information: `/proc/pressure/*` and a cgroup's `*.pressure` (kernel/sched/psi.c, 4.20).
//!
//! ```text
//! some avg10=0.26 avg60=0.67 avg300=0.41 total=7826028
//! full avg10=0.00 avg60=0.00 avg300=0.00 total=0
//! ```
//! Lines of another kind and further `key=value` pairs are passed over: the record has no place for them.

use pagelab_model::pressure::{Pressure, PressureLine};

use crate::ParseError;
use crate::text::{lines, parse_number, split_once, to_printable, words};

const FORMAT: &str = "pressure";

/// Reads a whole PSI text. The line `some` must be there; `full` is missing for the CPU before 5.13.
pub fn parse(text: &[u8]) -> Result<Pressure, ParseError> {
    let (mut some, mut full) = (None, None);
    for (number, line) in lines(text) {
        let slot = match words(line).next() {
            Some(b"some") => &mut some,
            Some(b"full") => &mut full,
            _ => continue,
        };
        let fail = |problem: String| ParseError::at_line(FORMAT, number, problem);
        if slot.is_some() {
            return Err(fail(format!("duplicate line `{}`", to_printable(line))));
        }
        let read = parse_line(line);
        *slot = Some(read.ok_or_else(|| {
            fail(format!(
                "expected `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, found `{}`",
                to_printable(line)
            ))
        })?);
    }
    let some = some.ok_or_else(|| ParseError::for_input(FORMAT, "no `some` line found"))?;
    Ok(Pressure { some, full })
}

/// Overwrites `known` from a newer text, without allocation. `false` if the lines are not the same ones,
/// or malformed: read it with [`parse`] then.
pub fn reparse(text: &[u8], known: &mut Pressure) -> bool {
    let mut lines = lines(text).map(|(_, line)| line);
    let mut next = |kind: &[u8]| lines.next().filter(|line| line.starts_with(kind)).and_then(parse_line);
    let Some(some) = next(b"some ") else { return false };
    let full = match known.full {
        None => None,
        Some(_) => match next(b"full ") {
            None => return false,
            full => full,
        },
    };
    if lines.next().is_some() {
        return false;
    }
    *known = Pressure { some, full };
    true
}

fn parse_line(line: &[u8]) -> Option<PressureLine> {
    let (mut avg10, mut avg60, mut avg300, mut total) = (None, None, None, None);
    for word in words(line).skip(1) {
        let (key, value) = split_once(word, b'=')?;
        match key {
            b"avg10" => avg10 = Some(parse_centipercent(value)?),
            b"avg60" => avg60 = Some(parse_centipercent(value)?),
            b"avg300" => avg300 = Some(parse_centipercent(value)?),
            b"total" => total = Some(parse_number(value)?),
            _ => {}
        }
    }
    Some(PressureLine {
        avg10_centipercent: avg10?,
        avg60_centipercent: avg60?,
        avg300_centipercent: avg300?,
        total_us: total?,
    })
}

/// `12.34` as 1234.
fn parse_centipercent(word: &[u8]) -> Option<u32> {
    let (whole, cents) = split_once(word, b'.')?;
    let whole = u32::try_from(parse_number(whole)?).ok()?;
    let cents = parse_number(cents).filter(|_| cents.len() == 2)?;
    whole.checked_mul(100)?.checked_add(cents as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "some avg10=0.26 avg60=100.00 avg300=0.07 total=7826028\n\
                        full avg10=0.00 avg60=1.50 avg300=0.00 total=18446744073709551615\n";

    fn error(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().message_in_file("f")
    }

    #[test]
    fn both_lines_are_read_in_hundredths_and_microseconds() {
        let pressure = parse(TEXT.as_bytes()).unwrap();
        let line = |avg10_centipercent, avg60_centipercent, avg300_centipercent, total_us| PressureLine {
            avg10_centipercent,
            avg60_centipercent,
            avg300_centipercent,
            total_us,
        };
        assert_eq!(pressure.some, line(26, 10_000, 7, 7_826_028));
        assert_eq!(pressure.full, Some(line(0, 150, 0, u64::MAX)));
        let some = TEXT.lines().next().unwrap();
        assert_eq!(parse(some.as_bytes()).unwrap(), Pressure { full: None, ..pressure });
        // Fields that a later kernel may add.
        let later = TEXT.replace("total", "avg900=0.01 total") + "idle avg10=1.00\n";
        assert_eq!(parse(later.as_bytes()).unwrap(), pressure);
    }

    #[test]
    fn a_second_reading_overwrites_in_place_and_refuses_another_shape() {
        let mut pressure = parse(TEXT.as_bytes()).unwrap();
        let newer = TEXT.replace("7826028", "7826029");
        assert!(reparse(newer.as_bytes(), &mut pressure));
        assert_eq!(pressure, parse(newer.as_bytes()).unwrap());
        let some = newer.lines().next().unwrap();
        for other in [some, "", &newer.replace("full", "idle"), &format!("{newer}{some}"), &newer[..90]] {
            assert!(!reparse(other.as_bytes(), &mut pressure), "{other}");
            assert_eq!(pressure, parse(newer.as_bytes()).unwrap(), "nothing is overwritten in part");
        }
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(error(""), "f: no `some` line found (read as pressure)");
        assert_eq!(error(TEXT.lines().nth(1).unwrap()), "f: no `some` line found (read as pressure)");
        let twice = TEXT.replace("full", "some");
        assert!(error(&twice).starts_with("f:2: duplicate line `some avg10=0.00 "), "{}", error(&twice));
        for (from, to) in [
            ("0.26", "0.2"),
            ("0.26", "-0.26"),
            ("0.26", "99999999.00"),
            ("total=7", "total=x"),
            ("avg60", "avg6"),
        ] {
            let text = TEXT.replace(from, to);
            let expect = format!(
                "f:1: expected `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, found `{}` \
                 (read as pressure)",
                to_printable(text.lines().next().unwrap().as_bytes())
            );
            assert_eq!(error(&text), expect);
        }
    }
}
