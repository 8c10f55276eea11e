//! Misses counted by region, a line each: `Region (Hex): 0x187bae00000, Region (Decimal): 1682467454976,
//! L2 Misses: 99`. So a published tool prints what it sampled.

use std::collections::BTreeMap;

use crate::ParseError;
use crate::text::show;

/// The name of the format in errors.
const FORMAT: &str = "misses by region";
/// What stands before the three numbers.
const LABELS: [&str; 3] = ["Region (Hex): 0x", ", Region (Decimal): ", ", L2 Misses: "];

/// The misses by the first address of their region. A region may stand once.
pub fn parse(input: &[u8]) -> Result<BTreeMap<u64, u64>, ParseError> {
    let mut counts = BTreeMap::new();
    for (number, line) in (1..).zip(input.split(|&byte| byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: &str| {
            ParseError::at_line(FORMAT, number, format!("`{}`: {what}", show(&line[..line.len().min(90)])))
        };
        let (address, misses) = numbers(line)
            .ok_or_else(|| wrong("`Region (Hex): 0x…, Region (Decimal): …, L2 Misses: …` was wanted"))?;
        let address = address.ok_or_else(|| wrong("the two addresses differ"))?;
        if counts.insert(address, misses).is_some() {
            return Err(wrong("this region stands twice"));
        }
    }
    if counts.is_empty() {
        return Err(ParseError::whole(FORMAT, "no region in it"));
    }
    Ok(counts)
}

/// Whether a text begins as this format does.
pub fn is_one(input: &[u8]) -> bool {
    input.trim_ascii_start().starts_with(b"Region (Hex)")
}

/// The address, if both writings agree, and the misses.
fn numbers(line: &[u8]) -> Option<(Option<u64>, u64)> {
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
    fn counts_are_read_by_region() {
        let text = b"Region (Hex): 0x187bae00000, Region (Decimal): 1682467454976, L2 Misses: 99\r\n\n\
            Region (Hex): 0x1879b000000, Region (Decimal): 1681932681216, L2 Misses: 221";
        let counts = parse(text).unwrap();
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(0x187_9b00_0000, 221), (0x187_bae0_0000, 99)]);
        assert!(is_one(text) && !is_one(b"1682467454976\n"));
    }

    #[test]
    fn what_is_none_is_refused_by_its_line() {
        let line = "Region (Hex): 0x10, Region (Decimal): 16, L2 Misses: 1";
        for (text, wanted) in [
            ("", "r: no region"),
            ("x\n", "r:1: `x`: `Region"),
            (&format!("{line}\n{line}"), "r:2: "),
            ("Region (Hex): 0x10, Region (Decimal): 17, L2 Misses: 1", "r:1: "),
            ("Region (Hex): 0x10, Region (Decimal): 16, L2 Misses: +1", "r:1: "),
            (&"Region (Hex): 0x".repeat(999), "r:1: "),
        ] {
            let said = parse(text.as_bytes()).unwrap_err().in_file("r");
            assert!(said.starts_with(wanted) && said.len() < 300, "{said}");
        }
    }
}
