//! `largepages.txt`: start addresses of the regions that are to be on huge pages, one per line, in decimal or
//! in hexadecimal with `0x`. Empty lines and what follows a `#` are no part of it.

use std::collections::BTreeMap;

use crate::ParseError;
use crate::text::to_printable;

const FORMAT: &str = "region list";
/// Characters of a word that an error repeats.
const WORD_MAX: usize = 40;

/// The addresses of a list with their lines, counted from 1, in its order; some may occur twice.
pub fn parse_lines(input: &[u8]) -> Result<Vec<(u64, u64)>, ParseError> {
    let mut addresses = Vec::new();
    for (number, word) in numbered_words(input) {
        let text = std::str::from_utf8(word).ok();
        let address = text.and_then(|text| match text.strip_prefix("0x") {
            Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
            Some(_) => None,
            None => text.parse().ok().filter(|_| !text.starts_with('+')),
        });
        let address = address.ok_or_else(|| {
            let shown: String = String::from_utf8_lossy(word).chars().take(WORD_MAX).collect();
            let text = format!("{shown:?}: expected one address per line");
            ParseError::at_line(FORMAT, number, text)
        })?;
        addresses.push((number, address));
    }
    if addresses.is_empty() {
        return Err(ParseError::for_input(FORMAT, "no addresses found; expected one address per line"));
    }
    Ok(addresses)
}

/// The addresses of a list, each once, in the order in which it first names them.
pub fn parse(input: &[u8]) -> Result<Vec<u64>, ParseError> {
    let mut seen = std::collections::HashSet::new();
    let lines = parse_lines(input)?;
    Ok(lines.into_iter().map(|(_, address)| address).filter(|&address| seen.insert(address)).collect())
}

/// Whether a text looks like a list: the first line with anything on it is a number.
pub fn is_region_list(input: &[u8]) -> bool {
    let first = numbered_words(input).next();
    first.is_some_and(|(_, word)| word[0].is_ascii_digit() && !word.contains(&b'='))
}

/// The text of a list.
pub fn write_list(addresses: &[u64]) -> String {
    addresses.iter().map(|address| format!("{address}\n")).collect()
}

/// Contents of each non-empty line, with its number.
fn numbered_words(input: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let lines = (1..).zip(input.split(|&byte| byte == b'\n'));
    let bare = lines.map(|(number, line)| {
        let end = line.iter().position(|&byte| byte == b'#').unwrap_or(line.len());
        (number, line[..end].trim_ascii())
    });
    bare.filter(|(_, word)| !word.is_empty())
}

// Misses by region, one per line: `Region (Hex): 0x187bae00000, Region (Decimal): 1682467454976, L2 Misses:
// 99`, the output of a published tool.

const COUNTS_FORMAT: &str = "misses by region";
/// Text before the three numbers.
const LABELS: [&str; 3] = ["Region (Hex): 0x", ", Region (Decimal): ", ", L2 Misses: "];

/// The misses by the first address of their region. Each region may occur once.
pub fn parse_counts(input: &[u8]) -> Result<BTreeMap<u64, u64>, ParseError> {
    let mut counts = BTreeMap::new();
    for (number, line) in (1..).zip(input.split(|&byte| byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: &str| {
            let problem = format!("`{}`: {what}", to_printable(&line[..line.len().min(90)]));
            ParseError::at_line(COUNTS_FORMAT, number, problem)
        };
        let (address, misses) = parse_line(line)
            .ok_or_else(|| wrong("expected `Region (Hex): 0x…, Region (Decimal): …, L2 Misses: …`"))?;
        let address = address.ok_or_else(|| wrong("the hexadecimal and the decimal address differ"))?;
        if counts.insert(address, misses).is_some() {
            return Err(wrong("duplicate region"));
        }
    }
    if counts.is_empty() {
        return Err(ParseError::for_input(COUNTS_FORMAT, "no regions found"));
    }
    Ok(counts)
}

/// Whether a text begins as this format does.
pub fn is_region_counts(input: &[u8]) -> bool {
    input.trim_ascii_start().starts_with(b"Region (Hex)")
}

/// The address, if both writings agree, and the misses.
fn parse_line(line: &[u8]) -> Option<(Option<u64>, u64)> {
    let line = std::str::from_utf8(line).ok()?;
    let (hexadecimal, rest) = line.strip_prefix(LABELS[0])?.split_once(LABELS[1])?;
    let (decimal, misses) = rest.split_once(LABELS[2])?;
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let address = plain(hexadecimal).then(|| u64::from_str_radix(hexadecimal, 16).ok())??;
    let again: u64 = plain(decimal).then(|| decimal.parse().ok())??;
    let misses = plain(misses).then(|| misses.parse().ok())??;
    Some(((address == again).then_some(address), misses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        // Two addresses of the published report: its top region before, and after.
        let text = b"1682368888832\n\n# a comment\n0x187b1400000 # another\r\n1682368888832\n";
        let found = parse(text).unwrap();
        assert_eq!(found, [0x187_b500_0000, 0x187_b140_0000]);
        assert_eq!(write_list(&found), "1682368888832\n1682305974272\n");
        assert_eq!(parse(write_list(&found).as_bytes()).unwrap(), found);
        assert_eq!(parse_lines(text).unwrap()[1], (4, 0x187_b140_0000));
    }

    #[test]
    fn what_is_no_list_is_refused_by_its_line() {
        let long = "9".repeat(500);
        for (text, wanted) in [
            ("1682368888832\nabc", "l:2: \"abc\": expected one address"),
            ("-5", "l:1: \"-5\": expected one address"),
            ("+5", "l:1: \"+5\": expected one address"),
            ("0x+5", "l:1: \"0x+5\": expected one address"),
            (&long, "l:1: \"999"),
            ("# nothing\n", "l: no address"),
        ] {
            let said = parse(text.as_bytes()).unwrap_err().message_in_file("l");
            assert!(said.starts_with(wanted) && said.len() < 200, "{said}");
        }
    }

    #[test]
    fn counts_are_read_by_region() {
        let text = b"Region (Hex): 0x187bae00000, Region (Decimal): 1682467454976, L2 Misses: 99\r\n\n\
        Region (Hex): 0x1879b000000, Region (Decimal): 1681932681216, L2 Misses: 221";
        let counts = parse_counts(text).unwrap();
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(0x187_9b00_0000, 221), (0x187_bae0_0000, 99)]);
        assert!(is_region_counts(text) && !is_region_counts(b"1682467454976\n"));
    }

    #[test]
    fn what_is_none_is_refused_by_its_line() {
        let line = "Region (Hex): 0x10, Region (Decimal): 16, L2 Misses: 1";
        for (text, wanted) in [
            ("", "r: no region"),
            ("x\n", "r:1: `x`: expected `Region"),
            (&format!("{line}\n{line}"), "r:2: "),
            ("Region (Hex): 0x10, Region (Decimal): 17, L2 Misses: 1", "r:1: "),
            ("Region (Hex): 0x10, Region (Decimal): 16, L2 Misses: +1", "r:1: "),
            (&"Region (Hex): 0x".repeat(999), "r:1: "),
        ] {
            let said = parse_counts(text.as_bytes()).unwrap_err().message_in_file("r");
            assert!(said.starts_with(wanted) && said.len() < 300, "{said}");
        }
    }
}
