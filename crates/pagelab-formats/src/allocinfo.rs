//! `/proc/allocinfo`: memory by the place in the source that allocated it (lib/alloc_tag.c, 6.10).
//!
//! ```text
//! allocinfo - version: 1.0
//! #     <size>  <calls> <tag info>
//!        45056       11 mm/page_ext.c:271 func:alloc_page_ext
//! ```
//! The text after the two numbers is kept as the place (version 2.0 adds `accurate:no`). Sizes are printed
//! signed; one below zero, a counter caught between two CPUs, is read as 0.

use pagelab_model::Bytes;
use pagelab_model::slab::AllocSite;

use crate::ParseError;
use crate::text::{RECORDS_MAX, find_bytes, lines, parse_amount, parse_name, to_printable};

const FORMAT: &str = "allocinfo";

/// Reads a whole allocinfo text, with or without its head.
pub fn parse(text: &[u8]) -> Result<Vec<AllocSite>, ParseError> {
    let mut sites = Vec::new();
    let mut head = false;
    for (number, line) in lines(text) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        if number == 1 && line.starts_with(b"allocinfo - version:") {
            head = true;
            continue;
        }
        let fail = |problem: String| ParseError::at_line(FORMAT, number, problem);
        let (bytes, calls, place) = split_line(line)
            .ok_or_else(|| fail(format!("expected `bytes calls place`, found `{}`", to_printable(line))))?;
        if sites.len() == RECORDS_MAX {
            return Err(fail(format!("more than {RECORDS_MAX} allocation sites")));
        }
        sites.push(AllocSite { bytes, calls, call_site: parse_name(FORMAT, number, place)?.to_owned() });
    }
    if sites.is_empty() && !head {
        return Err(ParseError::for_input(FORMAT, "no header and no allocation sites found"));
    }
    Ok(sites)
}

fn split_line(line: &[u8]) -> Option<(Bytes, u64, &[u8])> {
    let (bytes, rest) = split_word(line)?;
    let (calls, place) = split_word(rest)?;
    // `FILE:LINE [MODULE] func:NAME` (lib/codetag.c): other tables have two numbers and words too.
    find_bytes(place, b"func:").filter(|_| place.contains(&b':'))?;
    Some((Bytes(parse_amount(bytes)?), parse_amount(calls)?, place))
}

fn split_word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = line.iter().position(u8::is_ascii_whitespace)?;
    Some((&line[..end], line[end..].trim_ascii_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "allocinfo - version: 1.0\n#     <size>  <calls> <tag info>\n\
        \x20      45056       11 mm/page_ext.c:271 func:alloc_page_ext\n\
        \x20       -512        1 drivers/a.c:8 [mod] func:b accurate:no\n";

    #[test]
    fn sites_keep_their_place_as_printed() {
        let site =
            |bytes, calls, place: &str| AllocSite { bytes: Bytes(bytes), calls, call_site: place.to_owned() };
        let expect = [
            site(45_056, 11, "mm/page_ext.c:271 func:alloc_page_ext"),
            site(0, 1, "drivers/a.c:8 [mod] func:b accurate:no"),
        ];
        assert_eq!(parse(TEXT.as_bytes()).unwrap(), expect);
        let without_head = TEXT.split_once("info>\n").unwrap().1;
        assert_eq!(parse(without_head.as_bytes()).unwrap(), expect);
        assert_eq!(parse(b"allocinfo - version: 1.0\n").unwrap(), []);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, expect) in [
            ("", "f: no header and no allocation sites found (read as allocinfo)"),
            ("1 2\n", "f:1: expected `bytes calls place`, found `1 2` (read as allocinfo)"),
            ("1 x a.c:1\n", "f:1: expected `bytes calls place`, found `1 x a.c:1` (read as allocinfo)"),
            (
                "1 1 a.c:1 func:a\n\n99999999999999999999 1 a.c:1 func:a\n",
                "f:3: expected `bytes calls place`, found `99999999999999999999 1 a.c:1 func:a` \
                 (read as allocinfo)",
            ),
            (
                "765 410 382 5 0 123 0\n",
                "f:1: expected `bytes calls place`, found `765 410 382 5 0 123 0` (read as allocinfo)",
            ),
            ("1 1 a.c:1 func:a\x07\n", "f:1: `a.c:1 func:a\\u{7}` is not a name (read as allocinfo)"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), expect);
        }
    }
}
