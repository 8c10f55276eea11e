//! `/proc/pagetypeinfo`: free blocks and pageblocks by migratetype (mm/vmstat.c, `pagetypeinfo_show`).
//!
//! ```text
//! Page block order: 9
//! Pages per block:  512
//!
//! Free pages count per migrate type at order       0      1      2
//! Node    0, zone      DMA, type    Unmovable      1      0 >100000
//!
//! Number of blocks type     Unmovable      Movable
//! Node 0, zone      DMA            1            7
//! ```
//! The kernel prints all of this once for each node. Since 5.4.2 it stops counting at a cap and prints
//! `>100000`. Migratetypes are kept by the kernel's names, whichever and however many they are.

use std::collections::HashSet;

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::pagetype::{CappedCount, MigratetypeFreeAreas, MigratetypePageblocks, Pagetypeinfo};
use pagelab_model::{BuddyInfo, FreeAreas, NodeId, Order};

use crate::ParseError;
use crate::buddyinfo::ReadingSpan;
use crate::text::{
    RECORDS_MAX, filled_lines, parse_name, parse_node, parse_number, split_label, split_once, to_printable,
    words,
};

mod readings;

pub use readings::find_readings;

const FORMAT: &str = "pagetypeinfo";
const FREE_TABLE_HEAD: &[u8] = b"Free pages count per migrate type at order";
const PAGEBLOCK_TABLE_HEAD: &[u8] = b"Number of blocks type";
const MIXED_TABLE_HEAD: &[u8] = b"Number of mixed blocks";

/// More migratetypes than this are refused: the kernel has six.
const TYPES_MAX: usize = 64;

/// Reads a whole pagetypeinfo text. Blank lines are skipped; an empty text is an error.
pub fn parse(text: &[u8]) -> Result<Pagetypeinfo, ParseError> {
    let mut reader = Parser {
        info: Pagetypeinfo::default(),
        section: TableSection::Start,
        free_zones: Vec::new(),
        known: [HashSet::new(), HashSet::new(), HashSet::new()],
    };
    for (number, line) in filled_lines(text) {
        reader.parse_line(number, line)?;
    }
    if reader.info.free.is_empty() && reader.info.blocks.is_empty() {
        return Err(ParseError::for_input(FORMAT, "no zones found"));
    }
    reader.check_completeness()?;
    Ok(reader.info)
}

/// Reads one reading of `text`, which must be the text that `span` was found in.
pub fn parse_span(text: &[u8], span: &ReadingSpan) -> Result<Pagetypeinfo, ParseError> {
    parse(span.cut_from(text)).map_err(|error| error.shift_lines(span.first_line - 1))
}

struct Parser {
    info: Pagetypeinfo,
    section: TableSection,
    /// Zones of the free-block tables, each with its first line and its migratetypes.
    free_zones: Vec<(ZoneKey, u64, Vec<String>)>,
    /// Zones that already have rows in the tables of free blocks, pageblocks and mixed pageblocks.
    known: [HashSet<ZoneKey>; 3],
}

/// The table whose rows come next.
enum TableSection {
    Start,
    /// Free blocks; the header lists this many orders.
    FreeBlocks(usize),
    /// Pageblocks; the header lists these migratetypes.
    Pageblocks(Vec<String>),
    /// Mixed pageblocks.
    MixedPageblocks(Vec<String>),
}

impl Parser {
    fn parse_line(&mut self, line_number: u64, line: &[u8]) -> Result<(), ParseError> {
        let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
        if line.starts_with(b"Node") {
            return match &self.section {
                TableSection::Start => {
                    Err(fail(format!("`{}` precedes the header of its table", to_printable(line))))
                }
                &TableSection::FreeBlocks(orders) => self.parse_free_row(line_number, line, orders),
                TableSection::Pageblocks(types) => {
                    push_blocks(&mut self.info.blocks, &mut self.known[1], line_number, line, types)
                }
                TableSection::MixedPageblocks(types) => {
                    push_blocks(&mut self.info.mixed, &mut self.known[2], line_number, line, types)
                }
            };
        }
        if let Some(orders) = line.strip_prefix(FREE_TABLE_HEAD) {
            let orders = parse_orders(orders)
                .ok_or_else(|| fail(format!("`{}`: orders must count up from 0", to_printable(line))))?;
            if self.info.free.first().is_some_and(|row| row.counts.len() != orders) {
                return Err(fail(format!("{orders} orders; an earlier table has a different number")));
            }
            self.section = TableSection::FreeBlocks(orders);
        } else if let Some(types) = line.strip_prefix(PAGEBLOCK_TABLE_HEAD) {
            self.section = TableSection::Pageblocks(parse_migratetypes(line_number, types)?);
        } else if let Some(types) = line.strip_prefix(MIXED_TABLE_HEAD) {
            self.section = TableSection::MixedPageblocks(parse_migratetypes(line_number, types)?);
        } else {
            return self.parse_head(line_number, line);
        }
        Ok(())
    }

    /// `Page block order: 9` and `Pages per block:  512`, which every node repeats.
    fn parse_head(&mut self, line_number: u64, line: &[u8]) -> Result<(), ParseError> {
        let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
        let unknown = || fail(format!("`{}` is neither a row nor a header", to_printable(line)));
        let (label, value) = split_label(line).ok_or_else(unknown)?;
        let value = parse_number(value).ok_or_else(unknown)?;
        let same = match label {
            b"Page block order" => {
                let order = u8::try_from(value).ok().filter(|&order| order < 64).ok_or_else(unknown)?;
                self.info.pageblock_order.get_or_insert(Order(order)).0 == order
            }
            b"Pages per block" => *self.info.pages_per_block.get_or_insert(value) == value,
            _ => return Err(unknown()),
        };
        if same { Ok(()) } else { Err(fail(format!("`{}` contradicts an earlier line", to_printable(line)))) }
    }

    fn parse_free_row(&mut self, line_number: u64, line: &[u8], orders: usize) -> Result<(), ParseError> {
        let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
        let ((node, zone), migratetype, counts) = split_free_row(line).ok_or_else(|| {
            fail(format!("expected `Node N, zone NAME, type NAME counts…`, found `{}`", to_printable(line)))
        })?;
        let key = ZoneKey { node, zone: parse_name(FORMAT, line_number, zone)?.to_owned() };
        let migratetype = parse_name(FORMAT, line_number, migratetype)?.to_owned();
        let counts = words(counts)
            .take(orders + 1)
            .map(|word| {
                parse_type_count(word).ok_or_else(|| fail(format!("`{}` is not a count", to_printable(word))))
            })
            .collect::<Result<Vec<CappedCount>, ParseError>>()?;
        if counts.len() != orders {
            return Err(fail(format!(
                "zone {}, type {migratetype} has {} counts, but the header lists {orders} orders",
                key.zone,
                if counts.len() > orders { "more".to_owned() } else { counts.len().to_string() }
            )));
        }
        if self.info.free.len() == RECORDS_MAX {
            return Err(fail(format!("more than {RECORDS_MAX} rows")));
        }
        match self.free_zones.last_mut() {
            Some((last, _, types)) if *last == key => {
                if types.contains(&migratetype) {
                    return Err(fail(format!("duplicate row for zone {}, type {migratetype}", key.zone)));
                }
                if types.len() == TYPES_MAX {
                    return Err(fail(format!("zone {} has more than {TYPES_MAX} migratetypes", key.zone)));
                }
                types.push(migratetype.clone());
            }
            _ => {
                if !self.known[0].insert(key.clone()) {
                    return Err(fail(format!("duplicate entry for node {}, zone {}", key.node.0, key.zone)));
                }
                self.free_zones.push((key.clone(), line_number, vec![migratetype.clone()]));
            }
        }
        self.info.free.push(MigratetypeFreeAreas { key, migratetype, counts });
        Ok(())
    }

    /// Checks that no row is missing: the kernel prints every migratetype for every zone, and every zone in
    /// every table. Sums over the rows of a text that was cut off would be too small.
    fn check_completeness(&self) -> Result<(), ParseError> {
        let Some((first, _, types)) = self.free_zones.first() else { return Ok(()) };
        for (key, line_number, other) in &self.free_zones {
            let fail = |problem: String| Err(ParseError::at_line(FORMAT, *line_number, problem));
            if other != types {
                return fail(format!(
                    "zone {} has the migratetypes {}, zone {} has {}: a line is missing",
                    key.zone,
                    other.join(", "),
                    first.zone,
                    types.join(", ")
                ));
            }
            if self.info.blocks.is_empty() {
                continue;
            }
            let Some(row) = self.info.blocks.iter().find(|row| row.key == *key) else {
                return fail(format!("zone {} has no row in the pageblock table", key.zone));
            };
            if !row.counts.iter().map(|(name, _)| name).eq(types) {
                let problem = "the pageblock table has different migratetypes: a line is missing";
                return fail(format!("zone {}: {problem}", key.zone));
            }
        }
        Ok(())
    }
}

/// `0 1 2 …` as how many orders there are.
fn parse_orders(list: &[u8]) -> Option<usize> {
    let mut orders = 0;
    for word in words(list) {
        if parse_number(word) != Some(orders as u64) || orders == FreeAreas::ORDERS_MAX {
            return None;
        }
        orders += 1;
    }
    (orders > 0).then_some(orders)
}

fn parse_migratetypes(line_number: u64, list: &[u8]) -> Result<Vec<String>, ParseError> {
    let types = words(list)
        .take(TYPES_MAX + 1)
        .map(|word| parse_name(FORMAT, line_number, word).map(str::to_owned))
        .collect::<Result<Vec<String>, ParseError>>()?;
    if types.is_empty() || types.len() > TYPES_MAX {
        let problem = format!("the header lists no migratetypes, or more than {TYPES_MAX}");
        return Err(ParseError::at_line(FORMAT, line_number, problem));
    }
    Ok(types)
}

type FreeRow<'a> = ((NodeId, &'a [u8]), &'a [u8], &'a [u8]);

/// Zone, migratetype and counts of `Node    0, zone      DMA, type    Unmovable  1 2 3`.
fn split_free_row(line: &[u8]) -> Option<FreeRow<'_>> {
    let (node, rest) = parse_node(line)?;
    let (zone, after) = split_once(rest, b',')?;
    let after = after.trim_ascii_start().strip_prefix(b"type ")?.trim_ascii_start();
    let end = after.iter().position(u8::is_ascii_whitespace)?;
    Some(((node, zone), &after[..end], &after[end..]))
}

fn parse_type_count(word: &[u8]) -> Option<CappedCount> {
    match word.strip_prefix(b">") {
        Some(cap) => parse_number(cap).map(CappedCount::MoreThan),
        None => parse_number(word).map(CappedCount::Exact),
    }
}

fn push_blocks(
    table: &mut Vec<MigratetypePageblocks>,
    known: &mut HashSet<ZoneKey>,
    line_number: u64,
    line: &[u8],
    types: &[String],
) -> Result<(), ParseError> {
    let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
    if table.len() == BuddyInfo::ZONES_MAX {
        return Err(fail(format!("more than {} zones", BuddyInfo::ZONES_MAX)));
    }
    let row = parse_node(line).and_then(|(node, rest)| {
        let end = rest.iter().position(u8::is_ascii_whitespace)?;
        Some((node, &rest[..end], &rest[end..]))
    });
    let (node, zone, counts) = row.ok_or_else(|| {
        fail(format!("expected `Node N, zone NAME counts…`, found `{}`", to_printable(line)))
    })?;
    let zone = parse_name(FORMAT, line_number, zone)?;
    let mut rest = words(counts);
    let mut counts = Vec::with_capacity(types.len());
    for migratetype in types {
        let count = rest.next().ok_or_else(|| fail(format!("zone {zone} has no count for {migratetype}")))?;
        let count =
            parse_number(count).ok_or_else(|| fail(format!("`{}` is not a count", to_printable(count))))?;
        counts.push((migratetype.clone(), count));
    }
    if rest.next().is_some() {
        return Err(fail(format!("zone {zone} has more counts than the header has migratetypes")));
    }
    let key = ZoneKey { node, zone: zone.to_owned() };
    if !known.insert(key.clone()) {
        return Err(fail(format!("duplicate entry for node {}, zone {zone}", node.0)));
    }
    table.push(MigratetypePageblocks { key, counts });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Page block order: 9\nPages per block:  512\n\n";
    const FREE: &str = "Free pages count per migrate type at order       0      1      2 \n\
         Node    0, zone      DMA, type    Unmovable      1      0 >100000 \n\
         Node    0, zone      DMA, type      Strange      0      4      7 \n\n";
    const BLOCKS: &str = "Number of blocks type     Unmovable      Strange \n\
         Node 0, zone      DMA            1            7 \n\n";
    const MIXED: &str = "Number of mixed blocks    Unmovable      Strange \n\
         Node 0, zone      DMA            0            2 \n";

    fn error(text: &str) -> String {
        let message = parse(text.as_bytes()).unwrap_err().message_in_file("f");
        message.strip_suffix(" (read as pagetypeinfo)").unwrap_or("another format").to_owned()
    }

    #[test]
    fn all_tables_are_read_and_each_node_repeats_the_head() {
        let second =
            format!("{HEAD}{FREE}{BLOCKS}").replace("Node    0", "Node    1").replace("Node 0", "Node 1");
        let info = parse(format!("{HEAD}{FREE}{BLOCKS}{MIXED}{second}").as_bytes()).unwrap();
        assert_eq!((info.pageblock_order, info.pages_per_block), (Some(Order(9)), Some(512)));
        let nodes: Vec<u32> = info.free.iter().map(|row| row.key.node.0).collect();
        assert_eq!(nodes, [0, 0, 1, 1]);
        assert_eq!(
            info.free[0].counts,
            [CappedCount::Exact(1), CappedCount::Exact(0), CappedCount::MoreThan(100_000)]
        );
        assert_eq!((info.free[1].migratetype.as_str(), info.free[1].key.zone.as_str()), ("Strange", "DMA"));
        assert_eq!(info.blocks.len(), 2);
        assert_eq!(info.blocks[0].counts, [("Unmovable".to_owned(), 1), ("Strange".to_owned(), 7)]);
        assert_eq!(info.mixed.len(), 1);
        assert_eq!(info.mixed[0].counts[1].1, 2);
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(error(""), "f: no zones found");
        assert_eq!(error(HEAD), "f: no zones found");
        let whole = format!("{HEAD}{FREE}{BLOCKS}");
        let changed = |from: &str, to: &str| error(&whole.replacen(from, to, 1));
        assert_eq!(
            changed("Free pages count per", "Free pages per"),
            "f:4: `Free pages per migrate type at order       0      1      2 ` is neither a row \
             nor a header"
        );
        assert_eq!(
            changed("0      1      2 \n", "0      2 \n"),
            "f:4: `Free pages count per migrate type at order       0      2 `: orders must count up from 0"
        );
        assert_eq!(
            changed(">100000", ""),
            "f:5: zone DMA, type Unmovable has 2 counts, but the header lists 3 orders"
        );
        assert_eq!(
            changed(">100000", "1 1 1"),
            "f:5: zone DMA, type Unmovable has more counts, but the header lists 3 orders"
        );
        assert_eq!(changed(">100000", ">"), "f:5: `>` is not a count");
        assert_eq!(changed(">100000", "-1"), "f:5: `-1` is not a count");
        assert_eq!(
            changed(", type    Unm", ", kind    Unm"),
            "f:5: expected `Node N, zone NAME, type NAME counts…`, found `Node    0, zone      DMA, kind    \
             Unmovable      1      0 >1…`"
        );
        assert_eq!(changed("1            7 \n\n", "1\n"), "f:9: zone DMA has no count for Strange");
        assert_eq!(
            changed("1            7 \n\n", "1 7 8\n"),
            "f:9: zone DMA has more counts than the header has migratetypes"
        );
        assert_eq!(
            changed("blocks type     Unmovable      Strange", "blocks type"),
            "f:8: the header lists no migratetypes, or more than 64"
        );
        assert_eq!(
            error("Node 0, zone DMA 1\n"),
            "f:1: `Node 0, zone DMA 1` precedes the header of its table"
        );
        assert_eq!(
            error(&format!("{whole}Page block order: 10\n")),
            "f:11: `Page block order: 10` contradicts an earlier line"
        );
    }
}
