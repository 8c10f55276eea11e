//! `/proc/swaps`: swap areas (mm/swapfile.c, `swap_show`). A header alone is a machine without swap.

use pagelab_model::Bytes;
use pagelab_model::settings::SwapArea;

use crate::ParseError;
use crate::escape::unescape;
use crate::text::{at_most, lines, number, show, words};

const FORMAT: &str = "swaps";
/// The kernel's limit is 32 (MAX_SWAPFILES).
const AREAS_MAX: usize = 1024;

/// Reads a whole swaps file: the header, then a line for each area.
pub fn parse(text: &[u8]) -> Result<Vec<SwapArea>, ParseError> {
    let mut lines = lines(text);
    match lines.next() {
        Some((_, header)) if header.starts_with(b"Filename") => {}
        Some((at, other)) => {
            let problem = format!("`{}` is not the header `Filename Type Size Used Priority`", show(other));
            return Err(ParseError::at_line(FORMAT, at, problem));
        }
        None => return Err(ParseError::whole(FORMAT, "empty, not even a header")),
    }
    let filled = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    at_most(FORMAT, AREAS_MAX, filled.map(|(at, line)| area(at, line)))
}

fn area(at: u64, line: &[u8]) -> Result<SwapArea, ParseError> {
    let mut fields = words(line);
    let fail = |problem: String| ParseError::at_line(FORMAT, at, problem);
    let (Some(name), Some(kind), Some(size), Some(used), Some(_priority)) =
        (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(fail(format!("`{}` has fewer than 5 fields", show(line))));
    };
    let amount = |what: &str, word: &[u8]| {
        number(word)
            .map(Bytes::from_kib)
            .ok_or_else(|| fail(format!("{what} `{}` is not a number of kB", show(word))))
    };
    Ok(SwapArea {
        name: unescape(name),
        kind: unescape(kind),
        size: amount("size", size)?,
        used: amount("used", used)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    #[test]
    fn areas_are_read_and_none_is_no_error() {
        assert_eq!(parse(HEADER.as_bytes()).unwrap(), []);
        let text =
            format!("{HEADER}/swap\\040file   file\t\t2097148\t\t1024\t\t-2\n/dev/zram0 partition 8 0 100\n");
        let areas = parse(text.as_bytes()).unwrap();
        assert_eq!(areas.len(), 2);
        assert_eq!((areas[0].name.as_str(), areas[0].kind.as_str()), ("/swap file", "file"));
        assert_eq!((areas[0].size, areas[0].used), (Bytes::from_kib(2097148), Bytes::from_kib(1024)));
    }

    #[test]
    fn bad_lines_are_named() {
        let cases = [
            (String::new(), "f: empty, not even a header (read as swaps)"),
            (
                "x\n".to_owned(),
                "f:1: `x` is not the header `Filename Type Size Used Priority` (read as swaps)",
            ),
            (format!("{HEADER}/s file 1 2\n"), "f:2: `/s file 1 2` has fewer than 5 fields (read as swaps)"),
            (format!("{HEADER}/s file 1 -2 3\n"), "f:2: used `-2` is not a number of kB (read as swaps)"),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text.as_bytes()).unwrap_err().in_file("f"), message);
        }
    }
}
