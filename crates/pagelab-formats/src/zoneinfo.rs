//! `/proc/zoneinfo`: watermarks, sizes, counters and per-CPU lists of each zone (mm/vmstat.c,
//! `zoneinfo_show_print`).
//!
//! ```text
//! Node 0, zone      DMA
//!   per-node stats
//!       nr_inactive_anon 2763
//!   pages free     3840
//!         min      36
//!         protection: (0, 3019, 6987)
//!       nr_free_pages 3840
//!   pagesets
//!     cpu: 0
//!               count:    0
//!   vm stats threshold: 4
//!   node_unreclaimable:  0
//!   start_pfn:           1
//! ```
//! Every line without a field in the record is kept in the counters of its zone, under its label:
//! `node_unreclaimable`, `inactive_ratio`, `scanned` …; one of a per-CPU list is repeated for each CPU. A
//! zone without memory ends after `protection`. Negative counters are kept as [`crate::text::parse_counter`]
//! says; amounts of pages below zero are read as 0, as the kernel itself does.

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::zoneinfo::{NodeStats, PerCpuPageset};
use pagelab_model::{BuddyInfo, NodeId, Pages, Pfn, ZoneEntry, Zoneinfo};

use crate::ParseError;
use crate::counter_builder::CounterBuilder;
use crate::text::{
    RECORDS_MAX, filled_lines, parse_amount, parse_counter, parse_name, parse_node, parse_number,
    split_label, to_printable, words,
};

const FORMAT: &str = "zoneinfo";

/// Maximum number of values in a `protection` line: it has one for each kind of zone, at most 8.
const ZONE_KINDS_MAX: usize = 64;

/// Reads a whole zoneinfo text. Blank lines are skipped; an empty text is an error.
pub fn parse(text: &[u8]) -> Result<Zoneinfo, ParseError> {
    let mut reader = Parser::default();
    for (number, line) in filled_lines(text) {
        reader.parse_line(number, line)?;
    }
    reader.close_zone();
    if reader.info.zones.is_empty() {
        return Err(ParseError::for_input(FORMAT, "no zones found"));
    }
    Ok(reader.info)
}

/// Records read so far, and the owner of the counters of the next line.
#[derive(Default)]
struct Parser {
    info: Zoneinfo,
    zone_counters: Option<CounterBuilder>,
    /// Counters of the open zone's node, while its `per-node stats` are read.
    node_counters: Option<CounterBuilder>,
    /// Whether `pagesets` of the open zone was read.
    is_in_pagesets: bool,
}

impl Parser {
    fn parse_line(&mut self, line_number: u64, line: &[u8]) -> Result<(), ParseError> {
        let fail = |problem: String| ParseError::at_line(FORMAT, line_number, problem);
        if line_number > RECORDS_MAX as u64 {
            return Err(fail(format!("more than {RECORDS_MAX} lines")));
        }
        if line.trim_ascii_start().starts_with(b"Node") {
            let (node, zone) = parse_node(line).ok_or_else(|| {
                fail(format!("expected `Node N, zone NAME`, found `{}`", to_printable(line)))
            })?;
            let zone = zone.trim_ascii();
            if zone.iter().any(u8::is_ascii_whitespace) {
                // A row of buddyinfo, or of a table of pagetypeinfo.
                return Err(fail(format!(
                    "`{}` has text after the zone name: not a zoneinfo file",
                    to_printable(line)
                )));
            }
            return self.open_zone(line_number, node, parse_name(FORMAT, line_number, zone)?);
        }
        let (Some(zone), Some(stats)) = (self.info.zones.last_mut(), &mut self.zone_counters) else {
            return Err(fail(format!("`{}` precedes the first zone", to_printable(line))));
        };
        let mut parts = words(line);
        match (parts.next(), parts.next()) {
            (Some(b"per-node"), Some(b"stats")) => {
                let known = self.info.nodes.last().map(|node| node.stats.clone()).unwrap_or_default();
                self.node_counters = Some(CounterBuilder::with_names_of(&known));
                return Ok(());
            }
            (Some(b"pagesets"), None) => {
                self.is_in_pagesets = true;
                return Ok(());
            }
            (Some(b"pages"), Some(b"free")) => {
                close_node(&mut self.info.nodes, zone.key.node, &mut self.node_counters);
                zone.free = Some(parse_pages(parts.next()).ok_or_else(|| fail(not_a_count_error(line)))?);
                return Ok(());
            }
            _ => {}
        }
        let known = match (&mut self.node_counters, self.is_in_pagesets) {
            (Some(stats), _) => parse_plain_counter(line_number, line, stats)?,
            (None, true) => parse_pageset_line(zone, line, stats),
            (None, false) => parse_zone_line(line_number, zone, line, stats)?,
        };
        known.ok_or_else(|| fail(not_a_count_error(line)))
    }

    fn open_zone(&mut self, line_number: u64, node: NodeId, zone: &str) -> Result<(), ParseError> {
        let fail = |problem: String| Err(ParseError::at_line(FORMAT, line_number, problem));
        self.close_zone();
        let key = ZoneKey { node, zone: zone.to_owned() };
        if self.info.zones.iter().any(|known| known.key == key) {
            return fail(format!("duplicate entry for node {}, zone {zone}", node.0));
        }
        if self.info.zones.len() == BuddyInfo::ZONES_MAX {
            return fail(format!("more than {} zones", BuddyInfo::ZONES_MAX));
        }
        let known = self.info.zones.last().map(|zone| zone.stats.clone()).unwrap_or_default();
        self.zone_counters = Some(CounterBuilder::with_names_of(&known));
        self.is_in_pagesets = false;
        self.info.zones.push(ZoneEntry::empty(key));
        Ok(())
    }

    /// Assigns the collected records to the open zone and its node.
    fn close_zone(&mut self) {
        if let (Some(zone), Some(stats)) = (self.info.zones.last_mut(), self.zone_counters.take()) {
            close_node(&mut self.info.nodes, zone.key.node, &mut self.node_counters);
            zone.stats = stats.finish();
        }
    }
}

fn close_node(nodes: &mut Vec<NodeStats>, node: NodeId, stats: &mut Option<CounterBuilder>) {
    if let Some(stats) = stats.take() {
        nodes.push(NodeStats { node, stats: stats.finish() });
    }
}

fn not_a_count_error(line: &[u8]) -> String {
    format!("expected a name and a number, found `{}`", to_printable(line))
}

fn parse_pages(word: Option<&[u8]>) -> Option<Pages> {
    word.and_then(parse_amount).map(Pages)
}

/// `name number`, kept in `stats`. Kernels 4.14 to 4.19 print the counter of indirectly reclaimable bytes
/// without its name, which is kept as the empty name. The old `scanned 0 (a: 0 i: 0)` has more after its
/// number.
fn parse_plain_counter(
    line_number: u64,
    line: &[u8],
    stats: &mut CounterBuilder,
) -> Result<Option<()>, ParseError> {
    if let Some(value) = parse_counter(line.trim_ascii()) {
        stats.push("", value);
        return Ok(Some(()));
    }
    let mut parts = words(line);
    let (label, value) = (parts.next().unwrap_or_default(), parts.next().and_then(parse_counter));
    let more = parts.next().is_some_and(|word| !word.starts_with(b"("));
    let Some(value) = value.filter(|_| !more) else { return Ok(None) };
    stats.push(parse_name(FORMAT, line_number, label)?, value);
    Ok(Some(()))
}

/// A line between `pages free` and `pagesets`: a watermark, a size, the protection or a counter.
fn parse_zone_line(
    line_number: u64,
    zone: &mut ZoneEntry,
    line: &[u8],
    stats: &mut CounterBuilder,
) -> Result<Option<()>, ParseError> {
    let mut parts = words(line);
    let slot = match parts.next().unwrap_or_default() {
        b"boost" => &mut zone.boost,
        b"min" => &mut zone.min,
        b"low" => &mut zone.low,
        b"high" => &mut zone.high,
        b"promo" => &mut zone.promo,
        b"spanned" => &mut zone.spanned,
        b"present" => &mut zone.present,
        b"managed" => &mut zone.managed,
        b"cma" => &mut zone.cma,
        b"protection:" => {
            let list = line.trim_ascii().strip_suffix(b")");
            let list = list.and_then(|list| list.splitn(2, |&b| b == b'(').nth(1));
            let numbers = list.map(|list| list.split(|&b| b == b',').map(|n| parse_amount(n.trim_ascii())));
            let values: Option<Vec<u64>> =
                numbers.and_then(|numbers| numbers.take(ZONE_KINDS_MAX + 1).collect());
            let values = values.filter(|values| values.len() <= ZONE_KINDS_MAX);
            return Ok(values.map(|values| zone.protection = values));
        }
        word if word.ends_with(b":") => return Ok(parse_pageset_line(zone, line, stats)),
        _ => return parse_plain_counter(line_number, line, stats),
    };
    let value = parse_pages(parts.next()).filter(|_| parts.next().is_none());
    Ok(value.map(|value| *slot = Some(value)))
}

/// A line after `pagesets`, all of which are `label: number`.
fn parse_pageset_line(zone: &mut ZoneEntry, line: &[u8], stats: &mut CounterBuilder) -> Option<()> {
    let (label, rest) = split_label(line)?;
    let mut parts = words(rest);
    let value = parts.next()?;
    if label == b"cpu" {
        let cpu = u32::try_from(parse_number(value)?).ok()?;
        zone.pagesets.push(PerCpuPageset { cpu, ..PerCpuPageset::default() });
        return Some(());
    }
    if parts.next().is_some() {
        return None;
    }
    let pages = parse_amount(value).map(Pages);
    match (label, zone.pagesets.last_mut()) {
        (b"count", Some(set)) => set.count = pages?,
        (b"high", Some(set)) => set.high = Some(pages?),
        (b"batch", Some(set)) => set.batch = Some(pages?),
        (b"high_min", Some(set)) => set.high_min = Some(pages?),
        (b"high_max", Some(set)) => set.high_max = Some(pages?),
        (b"vm stats threshold", Some(set)) => set.stat_threshold = Some(parse_number(value)?),
        (b"start_pfn", _) => zone.start = Some(Pfn(parse_number(value)?)),
        _ => stats.push(std::str::from_utf8(label).ok()?, parse_counter(value)?),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 2763
                   537792
      nr_isolated_anon -1
  pages free     3840
        boost    0
        min      36
        low      45
        high     54
        promo    63
        spanned  4095
        present  3998
        managed  3840
        cma      0
        protection: (0, 3019, 6987)
      nr_free_pages 3840
      nr_mlock     18446744073709551615
  pagesets
    cpu: 0
              count:    11
              high:     12
              batch:    1
              high_min: 22
              high_max: 240
  vm stats threshold: 4
    cpu: 1
              count:    -3
              colour:   5
  node_unreclaimable:  0
  start_pfn:           1
Node 0, zone  Movable
  pages free     0
        protection: (0, 0, 0)
Node 1, zone   Normal
  per-node stats
      nr_inactive_anon 1
  pages free     1
";

    const OLD: &str = "Node 0, zone      DMA
  pages free     5410
        min      181
        low      226
        high     271
        active   367
        inactive 720
        scanned  0 (a: 0 i: 0)
        spanned  8192
        present  8192
        protection: (0, 0, 0, 0)
  pagesets
    cpu: 0 pcp: 0
              count: 2
              high:  6
              batch: 1
    cpu: 0 pcp: 1
              count: 9
  all_unreclaimable: 0
  prev_priority:     12
  start_pfn:         196608
";

    fn error(text: &str) -> String {
        let message = parse(text.as_bytes()).unwrap_err().message_in_file("f");
        message.strip_suffix(" (read as zoneinfo)").unwrap_or("another format").to_owned()
    }

    #[test]
    fn a_new_kernel_has_node_statistics_and_zones_without_memory() {
        let info = parse(NEW.as_bytes()).unwrap();
        assert_eq!(info.zones.len(), 3);
        assert_eq!(info.nodes.iter().map(|node| node.node.0).collect::<Vec<_>>(), [0, 1]);
        let stats = [("nr_inactive_anon", 2763), ("", 537_792), ("nr_isolated_anon", u64::MAX)];
        assert!(info.nodes[0].stats.iter().eq(stats));
        let dma = &info.zones[0];
        let pages = |n| Some(Pages(n));
        assert_eq!(
            (dma.free, dma.boost, dma.min, dma.low, dma.high, dma.promo),
            (pages(3840), pages(0), pages(36), pages(45), pages(54), pages(63))
        );
        assert_eq!(
            (dma.spanned, dma.present, dma.managed, dma.cma, dma.start),
            (pages(4095), pages(3998), pages(3840), pages(0), Some(Pfn(1)))
        );
        assert_eq!(dma.protection, [0, 3019, 6987]);
        let stats =
            [("nr_free_pages", 3840), ("nr_mlock", u64::MAX), ("colour", 5), ("node_unreclaimable", 0)];
        assert!(dma.stats.iter().eq(stats), "{:?}", dma.stats);
        let cpu0 = PerCpuPageset {
            cpu: 0,
            count: Pages(11),
            high: pages(12),
            batch: pages(1),
            high_min: pages(22),
            high_max: pages(240),
            stat_threshold: Some(4),
        };
        assert_eq!(dma.pagesets, [cpu0, PerCpuPageset { cpu: 1, ..PerCpuPageset::default() }]);
        assert_eq!(dma.count_pcp_pages(), Pages(11));
        let movable = &info.zones[1];
        assert_eq!((movable.free, movable.min, movable.start), (pages(0), None, None));
        assert!(movable.stats.is_empty() && movable.pagesets.is_empty());
    }

    #[test]
    fn an_old_kernel_has_two_lists_for_a_cpu_and_other_lines() {
        let info = parse(OLD.as_bytes()).unwrap();
        let zone = &info.zones[0];
        assert!(info.nodes.is_empty());
        assert_eq!(
            (zone.managed, zone.present, zone.count_pcp_pages()),
            (None, Some(Pages(8192)), Pages(11))
        );
        assert_eq!(zone.pagesets.iter().map(|set| set.cpu).collect::<Vec<_>>(), [0, 0]);
        let stats = [
            ("active", 367),
            ("inactive", 720),
            ("scanned", 0),
            ("all_unreclaimable", 0),
            ("prev_priority", 12),
        ];
        assert!(zone.stats.iter().eq(stats), "{:?}", zone.stats);
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(error("\n"), "f: no zones found");
        let changed = |from: &str, to: &str| error(&NEW.replacen(from, to, 1));
        assert_eq!(changed("Node 0, zone      DMA\n", ""), "f:1: `  per-node stats` precedes the first zone");
        assert_eq!(
            changed("Node 0, zone", "Node 0 zone"),
            "f:1: expected `Node N, zone NAME`, found `Node 0 zone      DMA`"
        );
        assert_eq!(changed("      DMA", ""), "f:1: expected `Node N, zone NAME`, found `Node 0, zone`");
        assert_eq!(changed("zone  Movable", "zone      DMA"), "f:32: duplicate entry for node 0, zone DMA");
        for (line, to) in [
            (3, "nr_inactive_anon"),
            (3, "nr_inactive_anon x"),
            (3, "nr_inactive_anon 1 2"),
            (6, "pages free"),
            (8, "min x"),
            (8, "min 1 2"),
            (16, "protection: (0, x)"),
            (16, "protection: 0, 1"),
            (17, "nr_free_pages"),
            (20, "cpu: 99999999999"),
            (21, "count: 1 2"),
            (21, "count 1"),
            (30, "start_pfn: -1"),
            (30, "start_pfn:"),
        ] {
            let mut lines: Vec<&str> = NEW.lines().collect();
            lines[line - 1] = to;
            assert_eq!(
                error(&lines.join("\n")),
                format!("f:{line}: expected a name and a number, found `{to}`")
            );
        }
    }

    #[test]
    fn a_hostile_text_of_many_zones_or_lines_is_refused() {
        let zones: String =
            (0..=BuddyInfo::ZONES_MAX).map(|node| format!("Node {node}, zone DMA\n")).collect();
        assert_eq!(error(&zones), "f:6145: more than 6144 zones");
        let lines = format!("Node 0, zone DMA\n{}", "pagesets\n".repeat(RECORDS_MAX));
        assert_eq!(error(&lines), "f:1048577: more than 1048576 lines");
    }
}
