//! `/proc/buddyinfo`: free blocks by order for each zone (mm/vmstat.c, `frag_show_print`).
//!
//! ```text
//! Node 0, zone   Normal    460    485    375   1611 …
//! ```
//! The number of orders is the machine's own (MAX_ORDER is 8 to 20 by architecture and configuration)
//! and must be the same on every line; a shorter line is one that was cut off.

use std::collections::HashSet;
use std::ops::Range;

use pagelab_model::{BuddyInfo, FreeAreas, NodeId, ZoneFreeAreas, ZoneKey};

use crate::ParseError;
use crate::text::{
    filled_lines, lines_with_ranges, parse_name, parse_node, parse_number, skip_blanks, split_number,
    to_printable, words,
};

const FORMAT: &str = "buddyinfo";

/// Position of one reading of a file in a longer text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadingSpan {
    /// Its first line, counted from 1.
    pub first_line: u64,
    /// Number of its zones.
    pub zones: usize,
    pub(crate) bytes: Range<usize>,
}

impl ReadingSpan {
    /// The reading, cut out of its text.
    pub(crate) fn cut_from<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.bytes.clone()).unwrap_or_default()
    }
}

/// All readings of buddyinfo in a text that may hold other lines too. Consecutive lines are one reading;
/// a new one begins where the first zone comes again. Lines of the readings of pagetypeinfo in the same text
/// are not buddyinfo's, although rows of its table of pageblocks look like them.
pub fn find_readings(text: &[u8], pagetypeinfo: &[ReadingSpan]) -> Vec<ReadingSpan> {
    let mut others = pagetypeinfo.iter().peekable();
    let mut is_other = |start: usize| {
        while others.next_if(|span| span.bytes.end <= start).is_some() {}
        others.peek().is_some_and(|span| span.bytes.contains(&start))
    };
    let lines: Vec<_> = lines_with_ranges(text).map(|line| (is_other(line.0.start), line)).collect();
    let own = || lines.iter().filter(|(is_other, _)| !is_other).map(|(_, (_, _, line))| *line);
    // In a text that consists of `Node N, …` lines only, any other line is damaged.
    let alone = own().any(has_zone_head) && own().all(is_remnant);
    let mut spans: Vec<ReadingSpan> = Vec::new();
    let mut first_zone_key = None;
    let mut within = false;
    for (is_other, (bytes, line_number, line)) in lines {
        if is_other {
            within = false;
            continue;
        }
        if !(is_buddyinfo_line(line) || (alone && !line.trim_ascii().is_empty())) {
            within &= alone;
            continue;
        }
        let zone = split_line(line).map(|(node, zone, _)| (node, zone));
        match spans.last_mut() {
            Some(span) if within && (zone.is_none() || zone != first_zone_key) => {
                span.bytes.end = bytes.end;
                span.zones += 1;
            }
            _ => {
                spans.push(ReadingSpan { first_line: line_number, zones: 1, bytes });
                first_zone_key = zone;
                within = true;
            }
        }
    }
    spans
}

/// Reads one reading of `text`, which must be the text that `span` was found in.
pub fn parse_span(text: &[u8], span: &ReadingSpan) -> Result<BuddyInfo, ParseError> {
    parse(span.cut_from(text)).map_err(|error| error.shift_lines(span.first_line - 1))
}

/// Whether a line begins like one of buddyinfo, zoneinfo or pagetypeinfo.
fn has_zone_head(line: &[u8]) -> bool {
    line.trim_ascii_start().strip_prefix(b"Node").is_some_and(|rest| rest.contains(&b','))
}

/// Whether a line is blank, or could be the rest of a buddyinfo line that was cut off anywhere.
pub(crate) fn is_remnant(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    (line.starts_with(b"Node") && !line.contains(&b'*')) || b"Node".starts_with(line)
}

/// Whether a line is buddyinfo's and no other's: a number follows the zone.
fn is_buddyinfo_line(line: &[u8]) -> bool {
    split_line(line).is_some_and(|(.., counts)| words(counts).next().and_then(parse_number).is_some())
}

/// Reads a whole buddyinfo text. Blank lines are skipped; an empty text is an error.
pub fn parse(text: &[u8]) -> Result<BuddyInfo, ParseError> {
    let mut zones: Vec<ZoneFreeAreas> = Vec::new();
    let mut known: HashSet<ZoneKey> = HashSet::new();
    let mut first_line = 0;
    for (number, line) in filled_lines(text) {
        let fail = |problem: String| Err(ParseError::at_line(FORMAT, number, problem));
        let zone = parse_line(number, line)?;
        match zones.first() {
            None => first_line = number,
            Some(first) if first.areas.orders() != zone.areas.orders() => {
                return fail(format!(
                    "zone {} has {} counts, line {first_line} has {}: one of the lines is truncated",
                    zone.key.zone,
                    zone.areas.orders(),
                    first.areas.orders()
                ));
            }
            Some(_) => {}
        }
        if !known.insert(zone.key.clone()) {
            return fail(format!("duplicate entry for node {}, zone {}", zone.key.node.0, zone.key.zone));
        }
        if zones.len() == BuddyInfo::ZONES_MAX {
            return fail(format!("more than {} zones", BuddyInfo::ZONES_MAX));
        }
        zones.push(zone);
    }
    if zones.is_empty() {
        return Err(ParseError::for_input(FORMAT, "no zones found"));
    }
    Ok(BuddyInfo { zones })
}

/// Overwrites the counts of `known` from a newer text of the same machine, without allocation.
/// `false` if the text has other zones or orders, or is malformed: read it with [`parse`] then.
pub fn reparse(text: &[u8], known: &mut BuddyInfo) -> bool {
    let mut rest = text;
    for zone in &mut known.zones {
        let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        let Some((node, zone_name, mut counts)) = split_line(&rest[..end]) else { return false };
        if node != zone.key.node || zone_name != zone.key.zone.as_bytes() {
            return false;
        }
        for slot in zone.areas.counts_mut() {
            let Some((count, after)) = split_number(skip_blanks(counts)) else { return false };
            (*slot, counts) = (count, after);
        }
        if !skip_blanks(counts).is_empty() {
            return false;
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    rest.is_empty()
}

fn parse_line(line_number: u64, line: &[u8]) -> Result<ZoneFreeAreas, ParseError> {
    let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
    let (node, zone, counts) = split_line(line).ok_or_else(|| {
        fail(format!("expected `Node N, zone NAME counts…`, found `{}`", to_printable(line)))
    })?;
    let zone = parse_name(FORMAT, line_number, zone)?.to_owned();
    let counts = words(counts)
        .take(FreeAreas::ORDERS_MAX + 1)
        .map(|word| {
            parse_number(word).ok_or_else(|| fail(format!("`{}` is not a count", to_printable(word))))
        })
        .collect::<Result<Vec<u64>, ParseError>>()?;
    if counts.is_empty() {
        return Err(fail(format!("zone {zone} has no counts")));
    }
    let areas =
        FreeAreas::new(counts).ok_or_else(|| fail(format!("more than {} counts", FreeAreas::ORDERS_MAX)))?;
    Ok(ZoneFreeAreas { key: ZoneKey { node, zone }, areas })
}

/// Node, zone name and the rest of `Node 0, zone   Normal  1 2 3`.
pub(crate) fn split_line(line: &[u8]) -> Option<(NodeId, &[u8], &[u8])> {
    let (node, rest) = parse_node(line)?;
    let end = rest.iter().position(u8::is_ascii_whitespace)?;
    (end <= ZoneKey::NAME_MAX).then(|| (node, &rest[..end], &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "Node 0, zone      DMA      0      0      1 \n\
                       Node 1, zone   Normal      7     10 9223372036854775808 \n";

    fn error(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().message_in_file("f")
    }

    #[test]
    fn zones_and_counts_are_read_as_they_stand() {
        let info = parse(TWO.as_bytes()).unwrap();
        assert_eq!(info.zones[1].key, ZoneKey { node: NodeId(1), zone: "Normal".to_owned() });
        assert_eq!(info.zones[1].areas.counts(), [7, 10, 1 << 63]);
    }

    #[test]
    fn a_second_reading_overwrites_in_place_and_refuses_another_shape() {
        let mut info = parse(TWO.as_bytes()).unwrap();
        assert!(reparse(TWO.replace("10", "11").as_bytes(), &mut info));
        assert_eq!(info.zones[1].areas.counts()[1], 11);
        for other in [TWO.replace("Normal", "Movable"), TWO.replace("7", "7 8"), TWO.replace("7", "x")] {
            assert!(!reparse(other.as_bytes(), &mut info), "{other}");
        }
        assert!(!reparse(TWO.lines().next().unwrap().as_bytes(), &mut info));
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(error(""), "f: no zones found (read as buddyinfo)");
        assert_eq!(
            error("\0\0\n"),
            "f:1: expected `Node N, zone NAME counts…`, found `\\0\\0` (read as buddyinfo)"
        );
        assert_eq!(
            error("Node 0, zone DMA 1 2 3\nNode 0, zone Normal 1 2\n"),
            "f:2: zone Normal has 2 counts, line 1 has 3: one of the lines is truncated (read as buddyinfo)"
        );
        assert_eq!(error("Node 0, zone DMA 1 -2\n"), "f:1: `-2` is not a count (read as buddyinfo)");
        assert_eq!(
            error("Node 0, zone DMA 1\nNode 0, zone DMA 1\n"),
            "f:2: duplicate entry for node 0, zone DMA (read as buddyinfo)"
        );
        assert!(error(&format!("Node 0, zone {} 1", "x".repeat(33))).contains("expected `Node N, zone NAME"));
        assert!(error(&format!("Node 0, zone DMA {}", "1 ".repeat(5000))).contains("more than 64 counts"));
    }
}
