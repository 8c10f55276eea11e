//! Readings of pagetypeinfo in a longer text, distinguished from the rows of buddyinfo beside them.
//!
//! A row of the table of pageblocks (`Node 0, zone Normal 162 8386 476`) looks like one of buddyinfo. The
//! header of its table gives the number of its counts, and a zone has only one row in a table.

use std::collections::HashSet;
use std::ops::Range;

use pagelab_model::NodeId;

use super::{FREE_TABLE_HEAD, MIXED_TABLE_HEAD, PAGEBLOCK_TABLE_HEAD, split_free_row};
use crate::buddyinfo::{ReadingSpan, is_remnant, split_line};
use crate::text::{lines_with_ranges, words};

/// Lines before the tables of a node.
const NODE_HEADS: [&[u8]; 2] = [b"Page block order:", b"Pages per block:"];

/// All readings of pagetypeinfo in a text that may hold other lines too. A new reading begins at a header
/// that is not followed by a further node. Other lines within a reading are in its span, so that the parser
/// names them.
pub fn find_readings(text: &[u8]) -> Vec<ReadingSpan> {
    let mut finder = ReadingFinder::default();
    for (bytes, line_number, line) in lines_with_ranges(text) {
        finder.add_line(bytes, line_number, line);
    }
    if let Some(cut_row) = finder.cut_row.take() {
        finder.extend_reading(cut_row);
    }
    finder.spans
}

#[derive(Default)]
struct ReadingFinder<'a> {
    spans: Vec<ReadingSpan>,
    /// Whether the next row begins a new reading.
    is_new: bool,
    /// Start and line of headers whose rows have not come yet.
    headers: Option<(usize, u64)>,
    table: Option<Table>,
    /// Whether the last line was in a table.
    is_adjacent: bool,
    /// A last line that was cut off within a table.
    cut_row: Option<Range<usize>>,
    /// Number of orders in the free-block tables of this reading; 0 without one.
    orders: usize,
    /// Migratetypes and zones of the free-block tables, and the highest node.
    migratetypes: HashSet<&'a [u8]>,
    zones: HashSet<(NodeId, &'a [u8])>,
    last_node: Option<NodeId>,
    /// Zones with a row in the present table of pageblocks.
    pageblock_zones: HashSet<(NodeId, &'a [u8])>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    FreeBlocks,
    /// Pageblocks, or mixed ones, of this many migratetypes.
    Pageblocks(usize),
}

impl<'a> ReadingFinder<'a> {
    fn add_line(&mut self, bytes: Range<usize>, line_number: u64, line: &'a [u8]) {
        let line = line.trim_ascii();
        if line.is_empty() {
            self.is_adjacent = false;
            return;
        }
        self.cut_row = None;
        let is_node_head = NODE_HEADS.iter().any(|head| line.starts_with(head));
        if is_node_head || line.starts_with(FREE_TABLE_HEAD) {
            self.headers.get_or_insert((bytes.start, line_number));
            self.table = Some(Table::FreeBlocks);
            self.is_adjacent = true;
        } else if let Some(types) =
            [PAGEBLOCK_TABLE_HEAD, MIXED_TABLE_HEAD].iter().find_map(|head| line.strip_prefix(*head))
        {
            self.headers.get_or_insert((bytes.start, line_number));
            self.table = Some(Table::Pageblocks(words(types).count()));
            self.pageblock_zones.clear();
            self.is_adjacent = true;
        } else if let Some(((node, zone), migratetype, counts)) = split_free_row(line) {
            self.enter_node(node);
            self.orders = self.orders.max(words(counts).count());
            self.zones.insert((node, zone));
            self.migratetypes.insert(migratetype);
            self.table.get_or_insert(Table::FreeBlocks);
            self.add_row(bytes, line_number);
        } else if let Some((node, zone, counts)) = split_line(line) {
            if self.is_pageblock_row((node, zone), words(counts).count()) {
                self.pageblock_zones.insert((node, zone));
                self.add_row(bytes, line_number);
            } else {
                (self.table, self.is_adjacent) = (None, false);
            }
        } else {
            let is_in_table = self.is_adjacent && self.table.is_some() && self.headers.is_none();
            self.cut_row = (is_in_table && is_remnant(line)).then_some(bytes);
            self.is_adjacent = false;
        }
    }

    /// Whether a row is one of the table of pageblocks, else it is buddyinfo's. Also a damaged row of the
    /// table is the table's.
    fn is_pageblock_row(&self, key: (NodeId, &[u8]), counts: usize) -> bool {
        let (columns, is_repeated) = match self.table {
            Some(Table::Pageblocks(columns)) => (columns, self.pageblock_zones.contains(&key)),
            // The header of the table of pageblocks is lost.
            Some(Table::FreeBlocks) if !self.migratetypes.is_empty() => (self.migratetypes.len(), true),
            _ => return false,
        };
        let fits = counts == columns && (self.zones.is_empty() || self.zones.contains(&key));
        let could_be_buddyinfo = if self.orders > 0 { counts == self.orders } else { counts != columns };
        (fits && !is_repeated) || (!could_be_buddyinfo && (fits || self.is_adjacent))
    }

    /// The kernel prints the nodes in ascending order, each behind its own headers: headers before a node
    /// that is no further one begin a new reading.
    fn enter_node(&mut self, node: NodeId) {
        let has_headers = self.headers.is_some();
        if has_headers && self.last_node.is_some_and(|last| node <= last) {
            self.orders = 0;
            self.migratetypes.clear();
            self.zones.clear();
            self.is_new = true;
        }
        if has_headers || self.last_node.is_none() {
            self.last_node = Some(node);
        }
    }

    fn add_row(&mut self, bytes: Range<usize>, line_number: u64) {
        let headers = self.headers.take();
        if self.is_new || self.spans.is_empty() {
            let (start, first_line) = headers.unwrap_or((bytes.start, line_number));
            self.spans.push(ReadingSpan { first_line, zones: 0, bytes: start..bytes.end });
            self.is_new = false;
        }
        self.is_adjacent = true;
        let zones = self.zones.len().max(self.pageblock_zones.len());
        if let Some(span) = self.spans.last_mut() {
            span.zones = zones;
        }
        self.extend_reading(bytes);
    }

    fn extend_reading(&mut self, bytes: Range<usize>) {
        if let Some(span) = self.spans.last_mut() {
            span.bytes.end = bytes.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buddyinfo;
    use crate::pagetypeinfo::parse_span;

    const NODE: &str = "Page block order: 9\nPages per block:  512\n\n\
        Free pages count per migrate type at order 0 1 2\n\
        Node    0, zone      DMA, type    Unmovable 1 2 3\n\
        Node    0, zone      DMA, type      Movable 4 5 6\n\
        Node    0, zone   Normal, type    Unmovable 0 1 0\n\
        Node    0, zone   Normal, type      Movable 7 8 9\n\n\
        Number of blocks type     Unmovable      Movable\n\
        Node 0, zone      DMA 1 7\n\
        Node 0, zone   Normal 9 3\n";
    const BUDDY: &str = "Node 0, zone      DMA 5 7 9\nNode 0, zone   Normal 7 9 9\n";

    /// Readings of both kinds, each with its first line and its zones or its error.
    fn check(text: &str, expected: &str) {
        let (text, types) = (text.as_bytes(), find_readings(text.as_bytes()));
        let mut found: Vec<(u64, String)> = Vec::new();
        for span in &types {
            found.push((
                span.first_line,
                match parse_span(text, span) {
                    Ok(info) => {
                        format!("{} rows of {}, {} blocks", info.free.len(), span.zones, info.blocks.len())
                    }
                    Err(error) => error.message_in_file("f").replace(" (read as pagetypeinfo)", ""),
                },
            ));
        }
        for span in buddyinfo::find_readings(text, &types) {
            found.push((
                span.first_line,
                match buddyinfo::parse_span(text, &span) {
                    Ok(info) => format!("buddyinfo of {}", info.zones.len()),
                    Err(error) => error.message_in_file("f"),
                },
            ));
        }
        found.sort();
        let found: Vec<String> = found.into_iter().map(|(line, what)| format!("{line}: {what}")).collect();
        assert_eq!(found.join("; "), expected, "{}", String::from_utf8_lossy(text));
    }

    #[test]
    fn rows_of_buddyinfo_are_told_from_those_of_the_table_of_pageblocks() {
        check(NODE, "1: 4 rows of 2, 2 blocks");
        check(&format!("{NODE}{BUDDY}"), "1: 4 rows of 2, 2 blocks; 13: buddyinfo of 2");
        check(&format!("{BUDDY}{NODE}"), "1: buddyinfo of 2; 3: 4 rows of 2, 2 blocks");
        check(&format!("$ cat\n{NODE}$ cat\n{BUDDY}$ w\n"), "2: 4 rows of 2, 2 blocks; 15: buddyinfo of 2");
        check(&format!("{NODE}Node 0, zone      DMA\n  pages free 3\n"), "1: 4 rows of 2, 2 blocks");
        // As many migratetypes as orders: a zone has only one row in the table.
        let three =
            NODE.replace("Movable\nNode 0, zone      DMA 1 7", "Movable CMA\nNode 0, zone      DMA 1 7 0");
        let three = three.replace("Normal 9 3\n", "Normal 9 3 0\n");
        let three =
            three.replace("Movable 4 5 6\n", "Movable 4 5 6\nNode    0, zone      DMA, type CMA 0 0 0\n");
        let three =
            three.replace("Movable 7 8 9\n", "Movable 7 8 9\nNode    0, zone   Normal, type CMA 0 0 0\n");
        check(&format!("{three}{BUDDY}"), "1: 6 rows of 2, 2 blocks; 15: buddyinfo of 2");
        let old = NODE.split_once("\n\n").unwrap().1;
        check(&format!("{old}{BUDDY}"), "1: 4 rows of 2, 2 blocks; 10: buddyinfo of 2");
    }

    #[test]
    fn each_node_repeats_the_headers_and_another_copy_is_another_reading() {
        let node_1 = NODE.replace("Node    0", "Node    1").replace("Node 0", "Node 1");
        check(&format!("{NODE}{node_1}"), "1: 8 rows of 4, 4 blocks");
        check(&format!("{NODE}{NODE}"), "1: 4 rows of 2, 2 blocks; 13: 4 rows of 2, 2 blocks");
        let both = format!("{NODE}{node_1}\nlater\n{NODE}{node_1}{BUDDY}");
        check(&both, "1: 8 rows of 4, 4 blocks; 27: 8 rows of 4, 4 blocks; 51: buddyinfo of 2");
    }

    #[test]
    fn a_damaged_reading_is_refused_and_no_row_of_it_becomes_buddyinfo() {
        let changed = |from: &str, to: &str, expected: &str| {
            assert!(NODE.contains(from), "{from}");
            check(&NODE.replacen(from, to, 1), expected);
        };
        changed(
            "Number of",
            "Numb of",
            "1: f:10: `Numb of blocks type     Unmovable      Movable` is neither a row nor a header",
        );
        changed("DMA 1 7\n", "DMA 1\n", "1: f:11: zone DMA has no count for Movable");
        changed("Normal 9 3\n", "Normal 9\n", "1: f:12: zone Normal has no count for Movable");
        changed(
            "Normal 9 3\n",
            "Normal 9 3 1 1\n",
            "1: f:12: zone Normal has more counts than the header has migratetypes",
        );
        changed(
            "Normal 9 3\n",
            "Normal\n",
            "1: f:12: expected `Node N, zone NAME counts…`, found `Node 0, zone   Normal`",
        );
        changed("Node 0, zone   Normal 9 3\n", "", "1: f:7: zone Normal has no row in the pageblock table");
        changed("Node 0, zone      DMA 1 7\n", "Nodx\n", "1: f:11: `Nodx` is neither a row nor a header");
        changed(
            "Node    0, zone   Normal, type      Movable 7 8 9\n",
            "",
            "1: f:7: zone Normal has the migratetypes Unmovable, zone DMA has Unmovable, Movable: a line is missing",
        );
        changed(
            "Free pages",
            "Fre pages",
            "1: f:4: `Fre pages count per migrate type at order 0 1 2` is neither a row nor a header",
        );
        let rows: String =
            NODE.lines().filter(|line| line.starts_with("Node")).map(|line| format!("{line}\n")).collect();
        check(
            &rows,
            "1: f:1: `Node    0, zone      DMA, type    Unmovable 1 2 3` precedes the header of its table",
        );
        let blocks = &NODE[NODE.find("Number").unwrap()..];
        check(blocks, "1: 0 rows of 2, 2 blocks");
        check(&format!("{blocks}{BUDDY}"), "1: 0 rows of 2, 2 blocks; 4: buddyinfo of 2");
    }
}
