//! `/proc/PID/smaps` and `smaps_rollup`: type and memory of each mapping of a process (fs/proc/task_mmu.c).
//!
//! ```text
//! 564a0e427000-564a0e429000 r--p 00000000 fe:00 247026      /usr/bin/cat
//! Rss:                   8 kB
//! THPeligible:           0
//! VmFlags: rd mr mw me
//! ```
//! File names are as the kernel prints them: a newline is `\012`, and a removed file ends in ` (deleted)`.
//! They are untrusted, and must be escaped before they are shown on a terminal.

use pagelab_model::Counters;
use pagelab_model::process::{Mapping, SmapsRollup};

use crate::ParseError;
use crate::counter_builder::CounterBuilder;
use crate::text::{
    RECORDS_MAX, lines, parse_amount, parse_hex, parse_name, parse_number, split_label, split_once,
    to_printable, words,
};

const SMAPS: &str = "smaps";
const ROLLUP: &str = "smaps_rollup";

/// Maximum number of amounts or flags of one mapping: the kernel prints about 25 amounts, and a mapping's
/// flags are the bits of a word.
const FIELDS_MAX: usize = 64;

/// Maximum number of flags and unknown labels of one text.
const STRINGS_MAX: usize = 4 * RECORDS_MAX;

/// Reads a whole smaps text. An empty one is that of a process without memory: a kernel thread or a zombie.
pub fn parse(text: &[u8]) -> Result<Vec<Mapping>, ParseError> {
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut fields = CounterBuilder::new();
    let mut strings = 0;
    for (number, line) in lines(text) {
        if !is_field(line) {
            if mappings.len() == RECORDS_MAX {
                return Err(ParseError::at_line(SMAPS, number, format!("more than {RECORDS_MAX} mappings")));
            }
            finish_mapping(number, mappings.last_mut(), &mut fields)?;
            if is_rollup_head(line) {
                let problem = format!("`{}` is a smaps_rollup header", to_printable(line));
                return Err(ParseError::at_line(SMAPS, number, problem));
            }
            mappings.push(parse_head(number, line)?);
        } else if let Some(mapping) = mappings.last_mut() {
            strings += parse_field_line(number, line, mapping, &mut fields)?;
            if strings > STRINGS_MAX {
                let problem = format!("more than {STRINGS_MAX} flags and unknown fields");
                return Err(ParseError::at_line(SMAPS, number, problem));
            }
        } else {
            let problem = format!("`{}` precedes the first mapping", to_printable(line));
            return Err(ParseError::at_line(SMAPS, number, problem));
        }
    }
    finish_mapping(lines(text).count() as u64 + 1, mappings.last_mut(), &mut fields)?;
    Ok(mappings)
}

/// Whether a line is the first one of smaps_rollup (fs/proc/task_mmu.c, `show_smaps_rollup`).
fn is_rollup_head(line: &[u8]) -> bool {
    parse_range(line).is_some() && line.trim_ascii_end().ends_with(b"[rollup]")
}

/// Reads a whole smaps_rollup text. Its first line tells it from meminfo, whose lines look the same.
pub fn parse_rollup(text: &[u8]) -> Result<SmapsRollup, ParseError> {
    let mut fields = CounterBuilder::new();
    let mut other_fields = Vec::new();
    for (number, line) in lines(text) {
        if number == 1 {
            if is_rollup_head(line) {
                continue;
            }
            let problem = format!("expected `RANGE … [rollup]`, found `{}`", to_printable(line));
            return Err(ParseError::at_line(ROLLUP, number, problem));
        }
        if fields.len() + other_fields.len() == RECORDS_MAX {
            return Err(ParseError::at_line(ROLLUP, number, format!("more than {RECORDS_MAX} fields")));
        }
        match parse_field(ROLLUP, number, line)? {
            SmapsField::Kib(label, value) => fields.push(label, value),
            SmapsField::Other(label, text) => other_fields.push((label.to_owned(), text)),
        }
    }
    if fields.len() == 0 {
        return Err(ParseError::for_input(ROLLUP, "no sizes found"));
    }
    Ok(SmapsRollup { fields_kib: fields.finish(), other: other_fields })
}

/// Whether the first word of a line ends in a colon: `Rss:`, unlike a range of addresses.
fn is_field(line: &[u8]) -> bool {
    words(line).next().is_some_and(|word| word.ends_with(b":"))
}

/// Assigns the fields to the mapping before `line_number`, and starts those of the next.
fn finish_mapping(
    line_number: u64,
    last: Option<&mut Mapping>,
    fields: &mut CounterBuilder,
) -> Result<(), ParseError> {
    let Some(last) = last else { return Ok(()) };
    if fields.len() == 0 {
        let problem = format!("mapping {:x}-{:x} has no sizes: the file is truncated", last.start, last.end);
        return Err(ParseError::at_line(SMAPS, line_number - 1, problem));
    }
    last.fields_kib = std::mem::replace(fields, CounterBuilder::new()).finish();
    *fields = CounterBuilder::with_names_of(&last.fields_kib);
    Ok(())
}

fn parse_head(line_number: u64, line: &[u8]) -> Result<Mapping, ParseError> {
    let fail = || {
        let problem =
            format!("expected `start-end rwxp offset device inode name`, found `{}`", to_printable(line));
        ParseError::at_line(SMAPS, line_number, problem)
    };
    let (start, end) = parse_range(line).ok_or_else(fail)?;
    let mut rest = line.trim_ascii_start();
    let mut next = || {
        let blank = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
        let (word, after) = rest.split_at(blank);
        rest = after.trim_ascii_start();
        word
    };
    let [_, permissions, offset, _, inode] = std::array::from_fn(|_| next());
    Ok(Mapping {
        start,
        end,
        permissions: parse_name(SMAPS, line_number, permissions).map_err(|_| fail())?.to_owned(),
        offset: parse_hex(offset).ok_or_else(fail)?,
        inode: parse_number(inode).ok_or_else(fail)?,
        name: String::from_utf8_lossy(rest).into_owned(),
        fields_kib: Counters::default(),
        thp_eligible: None,
        vm_flags: Vec::new(),
        other: Vec::new(),
    })
}

/// The addresses at the start of a mapping's first line.
fn parse_range(line: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = split_once(words(line).next()?, b'-')?;
    let (start, end) = (parse_hex(start)?, parse_hex(end)?);
    (start <= end).then_some((start, end))
}

/// Reads one line, and returns the number of added strings.
fn parse_field_line(
    line_number: u64,
    line: &[u8],
    of: &mut Mapping,
    fields: &mut CounterBuilder,
) -> Result<usize, ParseError> {
    let fail = |what: &str| ParseError::at_line(SMAPS, line_number, format!("more than {FIELDS_MAX} {what}"));
    match parse_field(SMAPS, line_number, line)? {
        SmapsField::Kib(..) if fields.len() == FIELDS_MAX => return Err(fail("sizes in one mapping")),
        SmapsField::Kib(label, value) => fields.push(label, value),
        SmapsField::Other("VmFlags", flags) => {
            of.vm_flags = flags.split_whitespace().take(FIELDS_MAX + 1).map(str::to_owned).collect();
            if of.vm_flags.len() > FIELDS_MAX {
                return Err(fail("flags in one mapping"));
            }
            return Ok(of.vm_flags.len());
        }
        SmapsField::Other("THPeligible", text) if text == "0" || text == "1" => {
            of.thp_eligible = Some(text == "1")
        }
        SmapsField::Other(label, text) => {
            of.other.push((label.to_owned(), text));
            return Ok(1);
        }
    }
    Ok(0)
}

/// A `Label: …` line.
enum SmapsField<'a> {
    /// An amount in kB.
    Kib(&'a str, u64),
    /// Anything else, as printed.
    Other(&'a str, String),
}

fn parse_field<'a>(
    format: &'static str,
    line_number: u64,
    line: &'a [u8],
) -> Result<SmapsField<'a>, ParseError> {
    let fail = |problem: String| ParseError::at_line(format, line_number, problem);
    let (label, rest) = split_label(line)
        .filter(|_| is_field(line))
        .ok_or_else(|| fail(format!("expected `Label: number kB`, found `{}`", to_printable(line))))?;
    let label = parse_name(format, line_number, label)?;
    let mut parts = words(rest);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(value), Some(b"kB"), None) => {
            let value = parse_amount(value)
                .ok_or_else(|| fail(format!("`{}` is not a number", to_printable(value))))?;
            Ok(SmapsField::Kib(label, value))
        }
        _ => Ok(SmapsField::Other(label, String::from_utf8_lossy(rest).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::Bytes;
    use std::sync::Arc;

    const HEAD: &str =
        "564a0e427000-564a0e429000 r-xp 00002000 fe:00 247026                     /opt/a b\\012c (deleted)";
    const FIELDS: &str = "Size:                  8 kB\nRss:                  -4 kB\n\
                          THPeligible:           1\n\
                          ProtectionKey:         3\nVmFlags: rd ex zz \n";
    const ANON: &str = "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 ";

    fn error(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().message_in_file("f")
    }

    #[test]
    fn mappings_keep_their_names_flags_and_unknown_lines() {
        let mappings = parse(format!("{HEAD}\n{FIELDS}{ANON}\n{FIELDS}").as_bytes()).unwrap();
        let [file, anon] = &mappings[..] else { panic!("{mappings:?}") };
        assert_eq!((file.start, file.end, file.offset), (0x564a_0e42_7000, 0x564a_0e42_9000, 0x2000));
        assert_eq!((file.permissions.as_str(), file.inode), ("r-xp", 247_026));
        assert_eq!(file.name, "/opt/a b\\012c (deleted)");
        assert_eq!((file.fields_kib.get("Size"), file.fields_kib.get("Rss")), (Some(8), Some(0)));
        assert_eq!(file.thp_eligible, Some(true));
        assert_eq!(file.vm_flags, ["rd", "ex", "zz"]);
        assert_eq!(file.other, [("ProtectionKey".to_owned(), "3".to_owned())]);
        assert_eq!((anon.end, anon.name.as_str()), (0xffff_ffff_ff60_1000, ""));
        assert!(Arc::ptr_eq(anon.fields_kib.names(), file.fields_kib.names()));
    }

    #[test]
    fn a_process_without_memory_has_no_mappings_and_no_rollup() {
        assert_eq!(parse(b"").unwrap(), []);
        let message = parse_rollup(b"").unwrap_err().message_in_file("f");
        assert_eq!(message, "f: no sizes found (read as smaps_rollup)");
    }

    #[test]
    fn a_mapping_of_endless_amounts_or_flags_is_refused() {
        let amounts = format!("{HEAD}\n{}", "Rss: 0 kB\n".repeat(FIELDS_MAX + 1));
        assert_eq!(error(&amounts), "f:66: more than 64 sizes in one mapping (read as smaps)");
        let flags = format!("{HEAD}\nVmFlags: {}", "rd ".repeat(1 << 20));
        assert_eq!(error(&flags), "f:2: more than 64 flags in one mapping (read as smaps)");
    }

    #[test]
    fn a_rollup_is_one_sum() {
        let text = "557d99862000-7ffe241ae000 ---p 00000000 00:00 0              [rollup]\n\
                    Rss:                1764 kB\nAnonHugePages:      2048 kB\nTHPshare:  half of it\n";
        let rollup = parse_rollup(text.as_bytes()).unwrap();
        assert_eq!(rollup.bytes("AnonHugePages"), Some(Bytes(2 << 20)));
        assert_eq!(rollup.other, [("THPshare".to_owned(), "half of it".to_owned())]);
        assert_eq!(
            parse_rollup(format!("{text}{text}").as_bytes()).unwrap_err().message_in_file("f"),
            "f:5: expected `Label: number kB`, found \
             `557d99862000-7ffe241ae000 ---p 00000000 00:00 0             …` (read as smaps_rollup)"
        );
    }

    #[test]
    fn bad_lines_are_named() {
        let cut = "has no sizes: the file is truncated (read as smaps)";
        assert_eq!(error(HEAD), format!("f:1: mapping 564a0e427000-564a0e429000 {cut}"));
        assert_eq!(
            error(&format!("{HEAD}\n{ANON}\n{FIELDS}")),
            format!("f:1: mapping 564a0e427000-564a0e429000 {cut}")
        );
        assert_eq!(error("Rss: 8 kB"), "f:1: `Rss: 8 kB` precedes the first mapping (read as smaps)");
        assert_eq!(error(&format!("{HEAD}\nRss: x kB\n")), "f:2: `x` is not a number (read as smaps)");
        for line in [
            "garbage",
            "",
            "1000-2000",
            "1000-2000 r--p",
            "2000-1000 r--p 0 0:0 0",
            "1000-2000 r--p 0x0 0:0 0",
            "1000-2000 r--p 0 0:0 x",
            "1000- r--p 0 0:0 0",
            "10000000000000000-10000000000000001 r--p 0 0:0 0",
        ] {
            let expect = "expected `start-end rwxp offset device inode name`, found";
            let expect = format!("f:7: {expect} `{line}` (read as smaps)");
            assert_eq!(error(&format!("{HEAD}\n{FIELDS}{line}\n\n")), expect);
        }
    }
}
