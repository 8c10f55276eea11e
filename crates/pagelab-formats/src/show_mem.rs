//! Free-block lines of allocation failure and OOM reports (mm/show_mem.c, before 6.3 mm/page_alloc.c,
//! `show_free_areas`), anywhere in a kernel log.
//!
//! ```text
//! [  728.326] Node 0 Normal: 71*4kB (EH) 113*8kB (UH) … 0*4096kB = 17524kB
//! ```
//! Text before the zone's name is a prefix (dmesg, syslog, journal, a mail's quotation mark); other lines are
//! skipped. The first block size of a line is the page size of the machine, all lines of a report must agree
//! on it, and the printed totals are added up again.

use std::collections::HashSet;
use std::ops::Range;

use pagelab_model::failed_request::{FailedRequest, ZoneWatermark};
use pagelab_model::{BuddyInfo, Bytes, FreeAreas, NodeId, PageSize, ZoneFreeAreas, ZoneKey};

use crate::ParseError;
use crate::text::{
    find_bytes, lines_with_ranges, parse_hex, parse_name, parse_number, split_number, split_once,
    to_printable, words,
};

mod zone_details;

const FORMAT: &str = "show_mem";

/// The kernel's names of zones (`zone_names` in mm/page_alloc.c): needed only to distinguish `DMA32: empty`
/// from other lines that end in `empty`. Zones of other names are read as well.
const ZONE_NAMES: [&[u8]; 6] = [b"DMA", b"DMA32", b"Normal", b"HighMem", b"Movable", b"Device"];

/// The lines with which a report begins.
const TRIGGERS: [&[u8]; 3] = [b"page allocation failure", b"page allocation stalls", b"invoked oom-killer"];

/// Position of one report in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSpan {
    /// The line of its first zone, counted from 1.
    pub first_line: u64,
    /// Number of its zones.
    pub zones: usize,
    bytes: Range<usize>,
    /// The lines with the watermarks of its zones, which are before those of its free blocks.
    details: Range<usize>,
    trigger: Option<(u64, Range<usize>)>,
}

/// Cause of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShowMemTrigger {
    /// Its line, counted from 1.
    pub line: u64,
    /// Its text without the prefixes, shortened.
    pub text: String,
    /// The order of the allocation that failed, if the line has it.
    pub order: Option<u8>,
    /// Its gfp flags, if the line has them.
    pub request: Option<FailedRequest>,
}

/// Content of the zone lines of one report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Base page size of the machine that wrote the report.
    pub page_size: PageSize,
    /// Free blocks by zone and order, in the order of the lines.
    pub buddyinfo: BuddyInfo,
    /// For each zone and order the letters of the migratetypes that have free blocks there
    /// (U unmovable, E reclaimable, M movable, R reserve, H highatomic, C CMA, I isolate); empty where
    /// the kernel prints none (before 3.8, and for counts of 0).
    pub migratetypes: Vec<Vec<String>>,
    /// For each zone its watermark, where the report states it.
    pub watermarks: Vec<Option<ZoneWatermark>>,
    /// Zones that the report calls `empty`: they have no memory at all.
    pub unpopulated: Vec<ZoneKey>,
    /// Why the report was printed.
    pub trigger: Option<ShowMemTrigger>,
}

/// All reports in a text, in its order. A new report begins at `Mem-Info:` and at a repeated zone.
pub fn find_reports(text: &[u8]) -> Vec<ReportSpan> {
    let mut spans: Vec<ReportSpan> = Vec::new();
    let mut seen_zones: HashSet<(NodeId, &[u8])> = HashSet::new();
    let mut trigger = None;
    let mut begin = true;
    let mut details_start = None;
    for (bytes, line_number, line) in lines_with_ranges(text) {
        if let Some(zone) = ZoneLine::parse(line) {
            begin |= seen_zones.contains(&(zone.node, zone.zone));
            match spans.last_mut() {
                Some(span) if !begin => {
                    span.bytes.end = bytes.end;
                    span.zones += 1;
                }
                _ => {
                    let trigger = trigger.take();
                    let details = details_start.take().unwrap_or(bytes.start)..bytes.start;
                    spans.push(ReportSpan { first_line: line_number, zones: 1, bytes, details, trigger });
                    seen_zones.clear();
                    begin = false;
                }
            }
            seen_zones.insert((zone.node, zone.zone));
        } else if zone_details::is_zone_detail(line) {
            details_start.get_or_insert(bytes.start);
        } else if find_bytes(line, b"Mem-Info:").is_some() {
            begin = true;
            details_start = None;
        } else if TRIGGERS.iter().any(|phrase| find_bytes(line, phrase).is_some()) {
            trigger = Some((line_number, bytes));
            details_start = None;
        }
    }
    spans
}

/// Reads one report of `text`, which must be the text that `span` was found in. Every malformed zone line is
/// named; a single one makes the report invalid.
pub fn parse(text: &[u8], span: &ReportSpan) -> Result<Report, Vec<ParseError>> {
    let mut builder = ReportBuilder::default();
    let mut problems = Vec::new();
    for (_, at, line) in lines_with_ranges(text.get(span.bytes.clone()).unwrap_or_default()) {
        let Some(zone) = ZoneLine::parse(line) else { continue };
        let line_number = span.first_line + at - 1;
        if let Err(problem) = builder.add_zone_line(line_number, &zone) {
            problems.push(problem);
        }
        if builder.zones_total() + problems.len() > BuddyInfo::ZONES_MAX {
            let problem = format!("more than {} zones", BuddyInfo::ZONES_MAX);
            problems.push(ParseError::at_line(FORMAT, line_number, problem));
            break;
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let ReportBuilder { geometry, zones, migratetypes, unpopulated } = builder;
    let Some(ReportGeometry { page_size, .. }) = geometry else {
        let problem = "all zones of this report are empty";
        return Err(vec![ParseError::at_line(FORMAT, span.first_line, problem)]);
    };
    let trigger = span.trigger.clone().and_then(|(line, bytes)| Some(parse_trigger(line, text.get(bytes)?)));
    let details = text.get(span.details.clone()).unwrap_or_default();
    let watermarks = zone_details::find_watermarks(details, &zones, page_size);
    Ok(Report { page_size, buddyinfo: BuddyInfo { zones }, migratetypes, watermarks, unpopulated, trigger })
}

/// Properties that all lines of a report share, from its first line.
#[derive(Clone, Copy)]
struct ReportGeometry {
    page_size: PageSize,
    orders: usize,
    first_line: u64,
}

#[derive(Default)]
struct ReportBuilder {
    geometry: Option<ReportGeometry>,
    zones: Vec<ZoneFreeAreas>,
    migratetypes: Vec<Vec<String>>,
    unpopulated: Vec<ZoneKey>,
}

impl ReportBuilder {
    fn zones_total(&self) -> usize {
        self.zones.len() + self.unpopulated.len()
    }

    fn add_zone_line(&mut self, line: u64, zone_line: &ZoneLine<'_>) -> Result<(), ParseError> {
        let zone = parse_name(FORMAT, line, zone_line.zone)?;
        let key = ZoneKey { node: zone_line.node, zone: zone.to_owned() };
        let Some(blocks) = zone_line.blocks else {
            self.unpopulated.push(key);
            return Ok(());
        };
        let row = ZoneRow::parse(line, &key.zone, blocks)?;
        let shape = self.check_geometry(line, &key.zone, &row)?;
        row.check_sums(line, &key.zone, shape)?;
        let fail = |problem: String| ParseError::at_line(FORMAT, line, problem);
        let counts = row.cells.iter().map(|cell| cell.count).collect();
        let areas = FreeAreas::new(counts).ok_or_else(|| {
            fail(format!("zone {} has more than {} counts", key.zone, FreeAreas::ORDERS_MAX))
        })?;
        self.geometry = Some(shape);
        self.migratetypes.push(row.cells.into_iter().map(|cell| cell.letters).collect());
        self.zones.push(ZoneFreeAreas { key, areas });
        Ok(())
    }

    /// The shape of the report, which this row must fit.
    fn check_geometry(&self, line: u64, zone: &str, row: &ZoneRow) -> Result<ReportGeometry, ParseError> {
        let fail = |problem: String| Err(ParseError::at_line(FORMAT, line, problem));
        let orders = row.cells.len();
        if let Some(shape) = self.geometry
            && shape.orders != orders
        {
            return fail(format!(
                "zone {zone} has {orders} counts, but line {} has {}: one of the lines is truncated",
                shape.first_line, shape.orders
            ));
        }
        let Some(first) = row.cells.first() else {
            return fail(format!("zone {zone} has no counts: the line is truncated"));
        };
        let size_kib = first.size_kib;
        let Some(page_size) = PageSize::new(Bytes::from_kib(size_kib).0) else {
            return fail(format!(
                "zone {zone} starts with blocks of {size_kib} kB, which is not a page size"
            ));
        };
        match self.geometry {
            Some(shape) if shape.page_size != page_size => fail(format!(
                "zone {zone} has pages of {size_kib} kB, but line {} has pages of {} kB",
                shape.first_line,
                shape.page_size.bytes() >> 10
            )),
            Some(shape) => Ok(shape),
            None => Ok(ReportGeometry { page_size, orders, first_line: line }),
        }
    }
}

struct ZoneRow {
    cells: Vec<OrderCell>,
    /// The printed total in kB; `None` if the line ends before it.
    total_kib: Option<u64>,
}

struct OrderCell {
    count: u64,
    size_kib: u64,
    letters: String,
}

impl ZoneRow {
    /// Splits `71*4kB (EH) … = 17524kB`. A line may end anywhere; the rest of it must parse.
    fn parse(line: u64, zone: &str, blocks: &[u8]) -> Result<ZoneRow, ParseError> {
        let fail = |word: &[u8]| {
            let problem =
                format!("zone {zone}: `{}` is not a block count (such as 71*4kB)", to_printable(word));
            Err(ParseError::at_line(FORMAT, line, problem))
        };
        let mut row = ZoneRow { cells: Vec::new(), total_kib: None };
        let mut rest = words(blocks).peekable();
        while let Some(word) = rest.next() {
            if word == b"=" {
                // Version 2.4 closes a parenthesis after the total.
                row.total_kib =
                    rest.next().and_then(|word| parse_kib(word.strip_suffix(b")").unwrap_or(word)));
                break;
            }
            if let (Some(letters), Some(cell)) = (parse_letters(word), row.cells.last_mut()) {
                cell.letters = letters.to_owned();
            } else if let Some((count, size_kib)) = parse_cell(word) {
                row.cells.push(OrderCell { count, size_kib, letters: String::new() });
            } else if rest.peek().is_some() {
                return fail(word);
            }
            if row.cells.len() > FreeAreas::ORDERS_MAX {
                let problem = format!("zone {zone} has more than {} counts", FreeAreas::ORDERS_MAX);
                return Err(ParseError::at_line(FORMAT, line, problem));
            }
        }
        Ok(row)
    }

    /// Compares the block sizes with the page size, and the sum of the blocks with the printed total.
    fn check_sums(&self, line: u64, zone: &str, geometry: ReportGeometry) -> Result<(), ParseError> {
        let fail = |problem: String| Err(ParseError::at_line(FORMAT, line, problem));
        let mut expected_kib = u128::from(geometry.page_size.bytes() >> 10);
        let mut sum_kib = 0u128;
        for (order, cell) in self.cells.iter().enumerate() {
            if u128::from(cell.size_kib) != expected_kib {
                return fail(format!(
                    "zone {zone}: blocks of order {order} are {} kB, not {expected_kib} kB",
                    cell.size_kib
                ));
            }
            sum_kib += u128::from(cell.count) * expected_kib;
            expected_kib *= 2;
        }
        match self.total_kib {
            None => fail(format!("zone {zone} has no total: the line is truncated or wrapped")),
            Some(total) if u128::from(total) != sum_kib => fail(format!(
                "zone {zone}: the blocks add up to {sum_kib} kB, but the printed total is {total} kB"
            )),
            Some(_) => Ok(()),
        }
    }
}

/// A line that names a zone and its free blocks.
struct ZoneLine<'a> {
    node: NodeId,
    zone: &'a [u8],
    /// Text after the colon; `None` for a zone without memory.
    blocks: Option<&'a [u8]>,
}

impl<'a> ZoneLine<'a> {
    /// The zone line in `line`, after any prefix. Lines that begin with `#` are comments.
    fn parse(line: &'a [u8]) -> Option<ZoneLine<'a>> {
        let line = line.trim_ascii_end();
        if line.trim_ascii_start().starts_with(b"#") {
            return None;
        }
        let mut colons = line.iter().enumerate().filter(|&(_, &b)| b == b':').map(|(at, _)| at);
        colons.find_map(|colon| ZoneLine::parse_around_colon(&line[..colon], &line[colon + 1..]))
    }

    fn parse_around_colon(prefix: &'a [u8], suffix: &'a [u8]) -> Option<ZoneLine<'a>> {
        let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
        let behind = suffix.trim_ascii_start();
        let counted = matches!(digits(behind), n @ 1.. if behind.get(n) == Some(&b'*'));
        let cut = behind.len() == digits(behind);
        if !(counted || cut || behind == b"empty") {
            return None;
        }
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let start = prefix.iter().rposition(|b| !is_name(b)).map_or(0, |at| at + 1);
        let zone = &prefix[start..];
        let node = parse_trailing_node(&prefix[..start]);
        let known = ZONE_NAMES.contains(&zone);
        let accepted = match node {
            _ if zone.len() > ZoneKey::NAME_MAX || !zone.iter().any(u8::is_ascii_alphabetic) => false,
            _ if counted => true,
            // Only the name is left of the line: it must be one of the kernel's zones.
            Some(_) if cut => known,
            None if cut => false,
            node => known || node.is_some(),
        };
        let blocks = (behind != b"empty").then_some(behind);
        accepted.then_some(ZoneLine { node: node.unwrap_or(NodeId(0)), zone, blocks })
    }
}

/// The node of `… Node 3 `, if the text ends so.
fn parse_trailing_node(text: &[u8]) -> Option<NodeId> {
    let text = text.trim_ascii_end();
    let start = text.iter().rposition(|b| !b.is_ascii_digit())? + 1;
    let node = u32::try_from(parse_number(&text[start..])?).ok()?;
    let before = text[..start].trim_ascii_end().strip_suffix(b"Node")?;
    (!before.last().is_some_and(u8::is_ascii_alphanumeric)).then_some(NodeId(node))
}

/// Count and block size of `71*4kB`.
fn parse_cell(word: &[u8]) -> Option<(u64, u64)> {
    let (count, size) = split_once(word, b'*')?;
    Some((parse_number(count)?, parse_kib(size)?))
}

/// The number of `17524kB`.
fn parse_kib(word: &[u8]) -> Option<u64> {
    parse_number(word.strip_suffix(b"kB")?)
}

/// The letters of `(UME)`; unknown ones are kept.
fn parse_letters(word: &[u8]) -> Option<&str> {
    let letters = word.strip_prefix(b"(")?.strip_suffix(b")")?;
    let plain = letters.len() <= 16 && letters.iter().all(u8::is_ascii_alphabetic);
    plain.then(|| std::str::from_utf8(letters).ok()).flatten()
}

/// Content of the first line of a report.
fn parse_trigger(line_number: u64, line: &[u8]) -> ShowMemTrigger {
    let line = line.trim_ascii();
    let phrase = TRIGGERS.iter().find_map(|phrase| find_bytes(line, phrase)).unwrap_or(0);
    let ends = [&b"] "[..], b"kernel: ", b"> "].map(|mark| find_last_end(&line[..phrase], mark));
    let start = ends.into_iter().flatten().max().unwrap_or(0);
    let order = [&b"order:"[..], b"order="].iter().find_map(|mark| {
        let (order, _) = split_number(&line[find_bytes(line, mark)? + mark.len()..])?;
        u8::try_from(order).ok()
    });
    let request = [&b"mode:0x"[..], b"gfp_mask=0x"].iter().find_map(|mark| {
        let digits = &line[find_bytes(line, mark)? + mark.len()..];
        let end = digits.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(digits.len());
        Some(FailedRequest { gfp_mask: parse_hex(&digits[..end])? })
    });
    ShowMemTrigger { line: line_number, text: to_printable(&line[start..]), order, request }
}

/// End of the last `part` in `text`.
fn find_last_end(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part).map(|at| at + part.len())
}

#[cfg(test)]
mod tests;
