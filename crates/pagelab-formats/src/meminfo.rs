//! `/proc/meminfo`: amounts in kB and plain counts by name (fs/proc/meminfo.c).
//!
//! ```text
//! MemTotal:        8028908 kB
//! HugePages_Total:       0
//! ```
//! A negative amount (an old kernel's `HardwareCorrupted`) becomes its two's complement
//! ([`crate::text::parse_counter`]).

use pagelab_model::Meminfo;

use crate::ParseError;
use crate::counter_builder::CounterBuilder;
use crate::text::{
    RECORDS_MAX, filled_lines, is_at_line_end, parse_counter, parse_name, skip_blanks, split_counter,
    split_label, strip_name, to_printable, words,
};

const FORMAT: &str = "meminfo";

/// Parses a complete meminfo text. Blank lines are skipped; an empty text is an error.
pub fn parse(text: &[u8]) -> Result<Meminfo, ParseError> {
    let mut fields = CounterBuilder::new();
    let mut in_kib = Vec::new();
    for (number, line) in filled_lines(text) {
        let fail = |problem: String| ParseError::at_line(FORMAT, number, problem);
        let (field, value, kib) = split_line(line).ok_or_else(|| {
            fail(format!("expected `Name: number` or `Name: number kB`, found `{}`", to_printable(line)))
        })?;
        if in_kib.len() == RECORDS_MAX {
            return Err(fail(format!("more than {RECORDS_MAX} fields")));
        }
        fields.push(parse_name(FORMAT, number, field)?, value);
        in_kib.push(kib);
    }
    if in_kib.is_empty() {
        return Err(ParseError::for_input(FORMAT, "no fields found"));
    }
    let info = Meminfo { fields: fields.finish(), in_kib };
    if info.bytes("MemTotal").is_none() && info.bytes("MemFree").is_none() {
        // Files of a process have lines of this shape.
        return Err(ParseError::for_input(FORMAT, "not a meminfo file: no `MemTotal` or `MemFree`"));
    }
    Ok(info)
}

/// Overwrites the values of `known` from a newer text of the same machine, without allocation. Returns
/// `false` if the text has other fields or is malformed: then `known` may be partly overwritten, and the text
/// must be read with [`parse`].
pub fn reparse(text: &[u8], known: &mut Meminfo) -> bool {
    let names = known.fields.names().clone();
    let mut rest = text;
    for ((name, slot), kib) in names.iter().zip(known.fields.values_mut()).zip(&known.in_kib) {
        let Some((value, after)) = strip_name(rest, name, b':').map(skip_blanks).and_then(split_counter)
        else {
            return false;
        };
        let after = if *kib { after.strip_prefix(b" kB") } else { Some(after) };
        let Some(after) = after.filter(|after| is_at_line_end(after)) else { return false };
        *slot = value;
        rest = after.get(1..).unwrap_or_default();
    }
    rest.is_empty()
}

/// Splits a line into name, number, and whether it ends in kB.
fn split_line(line: &[u8]) -> Option<(&[u8], u64, bool)> {
    let (name, rest) = split_label(line)?;
    let mut words = words(rest);
    let value = parse_counter(words.next()?)?;
    let kib = match words.next() {
        None => false,
        Some(b"kB") => true,
        Some(_) => return None,
    };
    words.next().is_none().then_some((name, value, kib))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;

    const TEXT: &str = "MemTotal:         252308 kB\nActive(anon):      17316 kB\nHugePages_Total:       3\n\
                        HardwareCorrupted:    -4 kB\n";

    fn error(text: &[u8]) -> String {
        parse(text).unwrap_err().message_in_file("f")
    }

    #[test]
    fn amounts_and_counts_keep_their_units() {
        let info = parse(TEXT.as_bytes()).unwrap();
        assert_eq!(info.bytes("MemTotal"), Some(Bytes(252_308 << 10)));
        assert_eq!(info.bytes("Active(anon)"), Some(Bytes(17_316 << 10)));
        assert_eq!((info.count("HugePages_Total"), info.bytes("HugePages_Total")), (Some(3), None));
        assert_eq!(info.fields.get("HardwareCorrupted"), Some(4u64.wrapping_neg()));
    }

    #[test]
    fn a_second_reading_overwrites_in_place_and_refuses_another_shape() {
        let mut info = parse(TEXT.as_bytes()).unwrap();
        assert!(reparse(TEXT.replace("252308", "7").replace("  3", "512").as_bytes(), &mut info));
        assert_eq!(
            (info.bytes("MemTotal"), info.count("HugePages_Total")),
            (Some(Bytes(7 << 10)), Some(512))
        );
        assert!(reparse(TEXT.trim_end().as_bytes(), &mut info));
        for (from, to) in [
            ("17316 kB", "17316"),
            ("17316 kB", "17316 MB"),
            ("  3\n", "  3 kB\n"),
            ("17316", ""),
            ("17316", "18446744073709551616"),
            ("Active(anon)", "Active(file)"),
            ("MemTotal:         252308 kB\n", ""),
            ("-4 kB\n", "-4 kB\nNew: 1 kB\n"),
            ("-4 kB\n", "-4 kB\n\n"),
        ] {
            assert!(!reparse(TEXT.replace(from, to).as_bytes(), &mut info), "{from} to {to}");
        }
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(error(b""), "f: no fields found (read as meminfo)");
        assert_eq!(error(b" \n\n"), "f: no fields found (read as meminfo)");
        for (line, shown) in [
            (&b"MemFree"[..], "MemFree"),
            (b"MemFree: ", "MemFree: "),
            (b"MemFree: 12 MB", "MemFree: 12 MB"),
            (b"MemFree: 12 kB kB", "MemFree: 12 kB kB"),
            (b"MemFree: 1.5 kB", "MemFree: 1.5 kB"),
            (b"MemFree: 18446744073709551616 kB", "MemFree: 18446744073709551616 kB"),
            (b"\xff\0", "\u{fffd}\\0"),
        ] {
            let text = [b"MemTotal: 1 kB\n", line].concat();
            let expect = format!(
                "f:2: expected `Name: number` or `Name: number kB`, found `{shown}` (read as meminfo)"
            );
            assert_eq!(error(&text), expect);
        }
        assert_eq!(error(b": 1 kB"), "f:1: `` is not a name (read as meminfo)");
        let long = format!("MemTotal: {}", "9".repeat(1 << 20));
        assert_eq!(
            error(long.as_bytes()),
            format!(
                "f:1: expected `Name: number` or `Name: number kB`, found `MemTotal: {}…` (read as meminfo)",
                "9".repeat(50)
            )
        );
    }
}
