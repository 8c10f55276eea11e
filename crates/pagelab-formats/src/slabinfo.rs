//! `/proc/slabinfo`, version 2.x: objects and slabs of each cache (mm/slab_common.c).
//!
//! ```text
//! slabinfo - version: 2.1
//! # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables …
//! dentry   4242   4263    192   21    1 : tunables    0    0    0 : slabdata    203    203      0
//! ```
//! The variant `(statistics)` of a debugging kernel adds columns behind the slabs, which are passed over.

use pagelab_model::Bytes;
use pagelab_model::slab::SlabCache;

use crate::ParseError;
use crate::text::{RECORDS_MAX, find_bytes, lines, parse_name, parse_number, to_printable, words};

const FORMAT: &str = "slabinfo";

/// Reads a whole slabinfo text. The first line must name version 2.
pub fn parse(text: &[u8]) -> Result<Vec<SlabCache>, ParseError> {
    let mut lines = lines(text);
    let Some((_, head)) = lines.next() else {
        return Err(ParseError::for_input(FORMAT, "empty file"));
    };
    if !head.starts_with(b"slabinfo - version: 2.") {
        let problem = format!("expected `slabinfo - version: 2.1`, found `{}`", to_printable(head));
        return Err(ParseError::at_line(FORMAT, 1, problem));
    }
    let mut caches = Vec::new();
    for (number, line) in lines {
        if line.starts_with(b"#") || line.trim_ascii().is_empty() {
            continue;
        }
        if caches.len() == RECORDS_MAX {
            return Err(ParseError::at_line(FORMAT, number, format!("more than {RECORDS_MAX} caches")));
        }
        caches.push(parse_line(number, line)?);
    }
    Ok(caches)
}

/// One cache. Its name may contain blanks: it is the text before the last five numbers before `: tunables`.
fn parse_line(line_number: u64, line: &[u8]) -> Result<SlabCache, ParseError> {
    let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
    let (front, back) = split_around(line, b" : tunables ").ok_or_else(|| {
        fail(format!("`{}` has no `: tunables`: the line is truncated", to_printable(line)))
    })?;
    let (_, slabs) = split_around(back, b" : slabdata ").ok_or_else(|| {
        fail(format!("`{}` has no `: slabdata`: the line is truncated", to_printable(line)))
    })?;
    let slabs = words(slabs)
        .nth(1)
        .and_then(parse_number)
        .ok_or_else(|| fail("the second number after `: slabdata` is missing".to_owned()))?;
    let mut rest = front.trim_ascii();
    let mut numbers = [0; 5];
    for slot in numbers.iter_mut().rev() {
        let blank = rest.iter().rposition(u8::is_ascii_whitespace);
        let word = &rest[blank.map_or(0, |blank| blank + 1)..];
        *slot =
            parse_number(word).ok_or_else(|| fail(format!("`{}` is not a number", to_printable(word))))?;
        rest = rest[..blank.unwrap_or(0)].trim_ascii_end();
    }
    let [objects_active, objects, object_size, objects_per_slab, pages_per_slab] = numbers;
    let object_size = Bytes(object_size);
    let name = parse_name(FORMAT, line_number, rest)?.to_owned();
    Ok(SlabCache { name, objects_active, objects, object_size, objects_per_slab, pages_per_slab, slabs })
}

fn split_around<'a>(line: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = find_bytes(line, mark)?;
    Some((&line[..at], &line[at + mark.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "slabinfo - version: 2.1\n# name <active_objs> …\n";
    const DENTRY: &str =
        "dentry 4242   4263    192   21    2 : tunables    0    0    0 : slabdata    200    203      0\n";

    fn read(lines: &str) -> Result<Vec<SlabCache>, String> {
        parse(format!("{HEAD}{lines}").as_bytes()).map_err(|error| error.message_in_file("f"))
    }

    #[test]
    fn columns_are_read_where_they_stand() {
        let statistics = DENTRY.trim_end().to_owned() + " : globalstat 1 2 3 : cpustat 4 5\n";
        let named = DENTRY.replace("dentry", "scsi cmd:cache 8");
        let caches = read(&format!("{DENTRY}{statistics}{named}")).unwrap();
        let dentry = SlabCache {
            name: "dentry".to_owned(),
            objects_active: 4242,
            objects: 4263,
            object_size: Bytes(192),
            objects_per_slab: 21,
            pages_per_slab: 2,
            slabs: 203,
        };
        let named = SlabCache { name: "scsi cmd:cache 8".to_owned(), ..dentry.clone() };
        assert_eq!(caches[0].pages().0, 406);
        assert_eq!(caches, [dentry.clone(), dentry, named]);
        let debug = parse(format!("slabinfo - version: 2.1 (statistics)\n{DENTRY}").as_bytes()).unwrap();
        assert_eq!(debug.len(), 1);
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(parse(b"").unwrap_err().message_in_file("f"), "f: empty file (read as slabinfo)");
        assert_eq!(
            parse(b"slabinfo - version: 1.1\n").unwrap_err().message_in_file("f"),
            "f:1: expected `slabinfo - version: 2.1`, found `slabinfo - version: 1.1` (read as slabinfo)"
        );
        let cut = |end: &str| DENTRY[..DENTRY.find(end).unwrap_or_default()].to_owned();
        for (lines, expect) in [
            ("dentry 1 2\n".to_owned(), "`dentry 1 2` has no `: tunables`: the line is truncated"),
            (
                cut(" : slabdata"),
                "`dentry 4242   4263    192   21    2 : tunables    0    0    …` has no `: slabdata`: \
                 the line is truncated",
            ),
            (cut("   203"), "the second number after `: slabdata` is missing"),
            (DENTRY.replace("192", "-192"), "`-192` is not a number"),
            (DENTRY.replace("dentry ", ""), "`` is not a name"),
            (DENTRY.replace("dentry 4242", ""), "`` is not a number"),
        ] {
            assert_eq!(read(&lines).unwrap_err(), format!("f:3: {expect} (read as slabinfo)"));
        }
    }
}
