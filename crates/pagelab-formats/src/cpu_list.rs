//! Lists of processors and nodes as sysfs prints them: `0-3,7` (lib/bitmap.c, format `%*pbl`).

use crate::ParseError;
use crate::text::{parse_number, split_once, to_printable};

const FORMAT: &str = "list of CPUs or nodes";
/// Largest number taken: the kernel's own limits are 8192 processors and 1024 nodes.
const NUMBER_MAX: u64 = (1 << 16) - 1;

/// The numbers, ascending. An empty line is an empty list.
pub fn parse(text: &[u8]) -> Result<Vec<u32>, ParseError> {
    let text = text.trim_ascii();
    let mut numbers: Vec<u32> = Vec::new();
    if text.is_empty() {
        return Ok(numbers);
    }
    let fail = |problem: String| ParseError::at_line(FORMAT, 1, problem);
    for part in text.split(|&b| b == b',') {
        let (first, last) = split_once(part, b'-').unwrap_or((part, part));
        let (Some(first), Some(last)) = (parse_number(first), parse_number(last)) else {
            return Err(fail(format!("`{}` is not a number or a range", to_printable(part))));
        };
        if last > NUMBER_MAX {
            return Err(fail(format!("`{}` exceeds the limit of {NUMBER_MAX}", to_printable(part))));
        }
        // Ascending order also bounds the length of the list by LARGEST.
        if last < first || numbers.last().is_some_and(|&known| first <= u64::from(known)) {
            return Err(fail(format!("`{}` is not in ascending order", to_printable(part))));
        }
        numbers.extend((first..=last).map(|n| n as u32));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_numbers() {
        assert_eq!(parse(b"0-3,7\n").unwrap(), [0, 1, 2, 3, 7]);
        assert_eq!(parse(b"2\n").unwrap(), [2]);
        assert_eq!(parse(b"\n").unwrap(), []);
    }

    #[test]
    fn bad_lists_are_named() {
        for (text, problem) in [
            ("x", "`x` is not a number or a range"),
            ("1,", "`` is not a number or a range"),
            ("0-4294967295", "`0-4294967295` exceeds the limit of 65535"),
            ("3-1", "`3-1` is not in ascending order"),
            ("0-5,5", "`5` is not in ascending order"),
        ] {
            let message = format!("f:1: {problem} (read as list of CPUs or nodes)");
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
    }
}
