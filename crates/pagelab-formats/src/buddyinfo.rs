//! `/proc/buddyinfo`: free blocks by order for each zone (mm/vmstat.c, `frag_show_print`).
//!
//! ```text
//! Node 0, zone   Normal    460    485    375   1611 …
//! ```
//! The number of orders is the machine's own (MAX_ORDER is 8 to 20 by architecture and configuration)
//! and must be the same on every line; a shorter line is one that was cut off.

use std::collections::HashSet;
use std::ops::Range;

use pagelab_model::{BuddyInfo, FreeAreas, NodeId, ZoneFree, ZoneKey};

use crate::ParseError;
use crate::text::{lines, name, node_zone, number, numbered, show, skip_blanks, take_number, words};

const FORMAT: &str = "buddyinfo";

/// Where one reading of buddyinfo stands in a longer text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first line, counted from 1.
    pub first_line: u64,
    /// How many zones it names.
    pub zones: usize,
    bytes: Range<usize>,
}

/// All readings of buddyinfo in a text that may hold other lines too. Consecutive lines are one reading;
/// a new one begins where the first zone comes again.
pub fn find(text: &[u8]) -> Vec<Span> {
    // Where nothing but `Node N, …` stands, a line that looks otherwise is a damaged one.
    let alone = lines(text).any(|(_, line)| is_headed(line)) && lines(text).all(|(_, line)| is_remnant(line));
    let mut spans: Vec<Span> = Vec::new();
    let mut first_zone = None;
    let mut within = false;
    for (bytes, line_number, line) in numbered(text) {
        if !(is_counted(line) || (alone && !line.trim_ascii().is_empty())) {
            within &= alone;
            continue;
        }
        let zone = split_line(line).map(|(node, zone, _)| (node, zone));
        match spans.last_mut() {
            Some(span) if within && (zone.is_none() || zone != first_zone) => {
                span.bytes.end = bytes.end;
                span.zones += 1;
            }
            _ => {
                spans.push(Span { first_line: line_number, zones: 1, bytes });
                first_zone = zone;
                within = true;
            }
        }
    }
    spans
}

/// Reads one reading of `text`, which must be the text that `span` was found in.
pub fn parse_span(text: &[u8], span: &Span) -> Result<BuddyInfo, ParseError> {
    let part = text.get(span.bytes.clone()).unwrap_or_default();
    parse(part).map_err(|error| error.shifted(span.first_line - 1))
}

/// Whether a line begins like one of buddyinfo, zoneinfo or pagetypeinfo.
fn is_headed(line: &[u8]) -> bool {
    line.trim_ascii_start().strip_prefix(b"Node").is_some_and(|rest| rest.contains(&b','))
}

/// Whether a line is blank, or could be the rest of a buddyinfo line that was cut off anywhere.
fn is_remnant(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    (line.starts_with(b"Node") && !line.contains(&b'*')) || b"Node".starts_with(line)
}

/// Whether a line is buddyinfo's and no other's: a number follows the zone.
fn is_counted(line: &[u8]) -> bool {
    split_line(line).is_some_and(|(.., counts)| words(counts).next().and_then(number).is_some())
}

/// Reads a whole buddyinfo text. Blank lines are passed over; an empty text is an error.
pub fn parse(text: &[u8]) -> Result<BuddyInfo, ParseError> {
    let mut zones: Vec<ZoneFree> = Vec::new();
    let mut known: HashSet<ZoneKey> = HashSet::new();
    let mut first_line = 0;
    for (number, line) in lines(text) {
        if words(line).next().is_none() {
            continue;
        }
        let zone = parse_line(number, line)?;
        match zones.first() {
            None => first_line = number,
            Some(first) if first.areas.orders() != zone.areas.orders() => {
                return Err(ParseError::at_line(
                    FORMAT,
                    number,
                    format!(
                        "zone {} has {} counts, line {first_line} has {}: one of the two lines is cut off",
                        zone.key.zone,
                        zone.areas.orders(),
                        first.areas.orders()
                    ),
                ));
            }
            Some(_) => {}
        }
        if !known.insert(zone.key.clone()) {
            let ZoneKey { node, zone } = zone.key;
            return Err(ParseError::at_line(
                FORMAT,
                number,
                format!("node {}, zone {zone} stands twice", node.0),
            ));
        }
        if zones.len() == BuddyInfo::ZONES_MAX {
            let problem = format!("more than {} zones", BuddyInfo::ZONES_MAX);
            return Err(ParseError::at_line(FORMAT, number, problem));
        }
        zones.push(zone);
    }
    if zones.is_empty() {
        return Err(ParseError::whole(FORMAT, "no zone in it"));
    }
    Ok(BuddyInfo { zones })
}

/// Overwrites the counts of `known` from a newer text of the same machine, without allocation.
/// `false` if the text has other zones or orders, or is malformed: read it with [`parse`] then.
pub fn parse_again(text: &[u8], known: &mut BuddyInfo) -> bool {
    let mut rest = text;
    for zone in &mut known.zones {
        let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        let Some((node, zone_name, mut counts)) = split_line(&rest[..end]) else { return false };
        if node != zone.key.node || zone_name != zone.key.zone.as_bytes() {
            return false;
        }
        for slot in zone.areas.counts_mut() {
            let Some((count, after)) = take_number(skip_blanks(counts)) else { return false };
            (*slot, counts) = (count, after);
        }
        if !skip_blanks(counts).is_empty() {
            return false;
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    rest.is_empty()
}

fn parse_line(line_number: u64, line: &[u8]) -> Result<ZoneFree, ParseError> {
    let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
    let (node, zone, counts) = split_line(line)
        .ok_or_else(|| fail(format!("`{}` is not `Node N, zone NAME counts…`", show(line))))?;
    let zone = name(FORMAT, line_number, zone)?.to_owned();
    let counts = words(counts)
        .take(FreeAreas::ORDERS_MAX + 1)
        .map(|word| number(word).ok_or_else(|| fail(format!("`{}` is not a count", show(word)))))
        .collect::<Result<Vec<u64>, ParseError>>()?;
    if counts.is_empty() {
        return Err(fail(format!("zone {zone} has no counts")));
    }
    let areas =
        FreeAreas::new(counts).ok_or_else(|| fail(format!("more than {} counts", FreeAreas::ORDERS_MAX)))?;
    Ok(ZoneFree { key: ZoneKey { node, zone }, areas })
}

/// Node, zone name and the rest of `Node 0, zone   Normal  1 2 3`.
fn split_line(line: &[u8]) -> Option<(NodeId, &[u8], &[u8])> {
    let (node, rest) = node_zone(line)?;
    let end = rest.iter().position(u8::is_ascii_whitespace)?;
    (end <= ZoneKey::NAME_MAX).then(|| (node, &rest[..end], &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "Node 0, zone      DMA      0      0      1 \n\
                       Node 1, zone   Normal      7     10 9223372036854775808 \n";

    fn error(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().in_file("f")
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
        assert!(parse_again(TWO.replace("10", "11").as_bytes(), &mut info));
        assert_eq!(info.zones[1].areas.counts()[1], 11);
        for other in [TWO.replace("Normal", "Movable"), TWO.replace("7", "7 8"), TWO.replace("7", "x")] {
            assert!(!parse_again(other.as_bytes(), &mut info), "{other}");
        }
        assert!(!parse_again(TWO.lines().next().unwrap().as_bytes(), &mut info));
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(error(""), "f: no zone in it (read as buddyinfo)");
        assert_eq!(error("\0\0\n"), "f:1: `\\0\\0` is not `Node N, zone NAME counts…` (read as buddyinfo)");
        assert_eq!(
            error("Node 0, zone DMA 1 2 3\nNode 0, zone Normal 1 2\n"),
            "f:2: zone Normal has 2 counts, line 1 has 3: one of the two lines is cut off (read as buddyinfo)"
        );
        assert_eq!(error("Node 0, zone DMA 1 -2\n"), "f:1: `-2` is not a count (read as buddyinfo)");
        assert_eq!(
            error("Node 0, zone DMA 1\nNode 0, zone DMA 1\n"),
            "f:2: node 0, zone DMA stands twice (read as buddyinfo)"
        );
        assert!(error(&format!("Node 0, zone {} 1", "x".repeat(33))).contains("is not `Node N, zone NAME"));
        assert!(error(&format!("Node 0, zone DMA {}", "1 ".repeat(5000))).contains("more than 64 counts"));
    }
}
