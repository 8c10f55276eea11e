//! `largepages.txt`: the first addresses of regions that are to be on huge pages, one a line, in decimal or
//! in hexadecimal after `0x`. Empty lines and what follows a `#` are no part of it.

use crate::ParseError;

/// The name of the format in errors.
const FORMAT: &str = "list of regions";
/// Characters of a word that an error repeats.
const WORD_MAX: usize = 40;

/// The addresses of a list with their lines, counted from 1, in its order; some may stand twice.
pub fn parse_lines(input: &[u8]) -> Result<Vec<(u64, u64)>, ParseError> {
    let mut addresses = Vec::new();
    for (number, word) in words(input) {
        let text = std::str::from_utf8(word).ok();
        let address = text.and_then(|text| match text.strip_prefix("0x") {
            Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
            Some(_) => None,
            None => text.parse().ok().filter(|_| !text.starts_with('+')),
        });
        let address = address.ok_or_else(|| {
            let shown: String = String::from_utf8_lossy(word).chars().take(WORD_MAX).collect();
            let text = format!("{shown:?} is no address; one a line was wanted, in decimal");
            ParseError::at_line(FORMAT, number, text)
        })?;
        addresses.push((number, address));
    }
    if addresses.is_empty() {
        return Err(ParseError::whole(FORMAT, "no address in it; one a line was wanted, in decimal"));
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
pub fn is_one(input: &[u8]) -> bool {
    let first = words(input).next();
    first.is_some_and(|(_, word)| word[0].is_ascii_digit() && !word.contains(&b'='))
}

/// The text of a list.
pub fn write(addresses: &[u64]) -> String {
    addresses.iter().map(|address| format!("{address}\n")).collect()
}

/// What stands on each line that has anything, with its number.
fn words(input: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let lines = (1..).zip(input.split(|&byte| byte == b'\n'));
    let bare = lines.map(|(number, line)| {
        let end = line.iter().position(|&byte| byte == b'#').unwrap_or(line.len());
        (number, line[..end].trim_ascii())
    });
    bare.filter(|(_, word)| !word.is_empty())
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
        assert_eq!(write(&found), "1682368888832\n1682305974272\n");
        assert_eq!(parse(write(&found).as_bytes()).unwrap(), found);
        assert_eq!(parse_lines(text).unwrap()[1], (4, 0x187_b140_0000));
    }

    #[test]
    fn what_is_no_list_is_refused_by_its_line() {
        let long = "9".repeat(500);
        for (text, wanted) in [
            ("1682368888832\nabc", "l:2: \"abc\" is no address"),
            ("-5", "l:1: \"-5\" is no address"),
            ("+5", "l:1: \"+5\" is no address"),
            ("0x+5", "l:1: \"0x+5\" is no address"),
            (&long, "l:1: \"999"),
            ("# nothing\n", "l: no address in it"),
        ] {
            let said = parse(text.as_bytes()).unwrap_err().in_file("l");
            assert!(said.starts_with(wanted) && said.len() < 200, "{said}");
        }
    }
}
