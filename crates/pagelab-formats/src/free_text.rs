//! Detection of free blocks in any text: buddyinfo and pagetypeinfo, alone or among other files, or
//! allocation failure reports in a kernel log. The lines themselves show which it is.

use pagelab_model::failed_request::ZoneWatermark;
use pagelab_model::pagetype::Pagetypeinfo;
use pagelab_model::{BuddyInfo, PageSize, ZoneFreeAreas, ZoneKey};

use crate::buddyinfo::ReadingSpan;
use crate::text::{lines, to_printable};
use crate::{ParseError, buddyinfo, pagetypeinfo, show_mem};

const FORMAT: &str = "buddyinfo, pagetypeinfo or show_mem";

/// Kind of the lines of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadingKind {
    /// Lines of `/proc/buddyinfo`.
    Buddyinfo,
    /// Tables of `/proc/pagetypeinfo`.
    Pagetypeinfo,
    /// Free-block lines of an allocation-failure or out-of-memory report.
    ShowMem,
}

impl ReadingKind {
    /// Its name, the same in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            ReadingKind::Buddyinfo => "buddyinfo",
            ReadingKind::Pagetypeinfo => "pagetypeinfo",
            ReadingKind::ShowMem => "show_mem",
        }
    }
}

/// One reading out of a text that may hold several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeBlocksText {
    /// Source of the reading.
    pub kind: ReadingKind,
    /// Index among the readings of its text.
    pub position: ReadingPosition,
    /// Free blocks; of a pagetypeinfo the sums over all migratetypes, at least.
    pub buddyinfo: BuddyInfo,
    /// Free blocks and pageblocks by migratetype, of a pagetypeinfo.
    pub pagetypeinfo: Option<Pagetypeinfo>,
    /// The page size, if the text states it (reports do, the other files do not).
    pub page_size: Option<PageSize>,
    /// Letters of the migratetypes by zone and order, where the text has them.
    pub migratetypes: Option<Vec<Vec<String>>>,
    /// For each zone its watermark, where a report states it.
    pub watermarks: Vec<Option<ZoneWatermark>>,
    /// Zones that the text names as having no memory.
    pub unpopulated: Vec<ZoneKey>,
    /// Why the kernel printed it.
    pub trigger: Option<show_mem::ShowMemTrigger>,
}

/// Position of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingPosition {
    /// Which reading, counted from 1.
    pub number: usize,
    /// How many there are: reports, or readings of buddyinfo and pagetypeinfo.
    pub count: usize,
    /// Its first line, counted from 1.
    pub line: u64,
    /// The most zones that any reading of the text names; more than this one names if this one is cut.
    pub zones_max: usize,
    /// Reports in the same text that were not read, because the other files take precedence.
    pub unread_reports: usize,
}

/// Why nothing could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// There is no such reading; there are only this many.
    NoSuchReading(usize),
    /// The text is bad. `place` is present if readings were found and the requested one was malformed.
    Malformed {
        /// Problems, at least one.
        problems: Vec<ParseError>,
        /// The reading that is bad.
        position: Option<ReadingPosition>,
    },
}

/// Reads one reading of `text`: the one called `reading_number` (counted from 1), else the last.
pub fn parse(text: &[u8], reading_number: Option<usize>) -> Result<FreeBlocksText, ReadError> {
    let reports = show_mem::find_reports(text);
    let types = pagetypeinfo::find_readings(text);
    let mut readings: Vec<(&ReadingSpan, ReadingKind)> = Vec::new();
    let buddies = buddyinfo::find_readings(text, &types);
    readings.extend(types.iter().map(|span| (span, ReadingKind::Pagetypeinfo)));
    readings.extend(buddies.iter().map(|span| (span, ReadingKind::Buddyinfo)));
    readings.sort_by_key(|(span, _)| span.first_line);
    if !readings.is_empty() {
        let lines = readings.iter().map(|(span, _)| (span.first_line, span.zones));
        let place = find_position(lines, reading_number, reports.len())?;
        let (span, kind) = readings[place.number - 1];
        let read = match kind {
            ReadingKind::Pagetypeinfo => {
                parse_pagetypeinfo(text, span).map(|(sum, types)| (sum, Some(types)))
            }
            _ => buddyinfo::parse_span(text, span).map(|info| (info, None)),
        };
        let (buddyinfo, pagetypeinfo) =
            read.map_err(|problem| ReadError::Malformed { problems: vec![problem], position: Some(place) })?;
        return Ok(FreeBlocksText {
            kind,
            position: place,
            buddyinfo,
            pagetypeinfo,
            page_size: None,
            migratetypes: None,
            watermarks: Vec::new(),
            unpopulated: Vec::new(),
            trigger: None,
        });
    }
    if !reports.is_empty() {
        let place =
            find_position(reports.iter().map(|span| (span.first_line, span.zones)), reading_number, 0)?;
        let report = show_mem::parse(text, &reports[place.number - 1])
            .map_err(|problems| ReadError::Malformed { problems, position: Some(place) })?;
        return Ok(FreeBlocksText {
            kind: ReadingKind::ShowMem,
            position: place,
            buddyinfo: report.buddyinfo,
            pagetypeinfo: None,
            page_size: Some(report.page_size),
            migratetypes: Some(report.migratetypes),
            watermarks: report.watermarks,
            unpopulated: report.unpopulated,
            trigger: report.trigger,
        });
    }
    Err(ReadError::Malformed { problems: vec![no_reading_error(text)], position: None })
}

/// A pagetypeinfo and its free blocks over all migratetypes.
fn parse_pagetypeinfo(text: &[u8], span: &ReadingSpan) -> Result<(BuddyInfo, Pagetypeinfo), ParseError> {
    let types = pagetypeinfo::parse_span(text, span)?;
    let fail = |problem: &str| Err(ParseError::at_line("pagetypeinfo", span.first_line, problem));
    if types.free.is_empty() {
        return fail("only pageblock counts found: the table of free blocks is missing");
    }
    let areas_by_zone = types.zone_keys().into_iter().map(|key| {
        let areas = types.free_areas(key, |_| true)?.counts_min;
        Some(ZoneFreeAreas { key: key.clone(), areas })
    });
    match areas_by_zone.collect() {
        Some(zones) => Ok((BuddyInfo { zones }, types)),
        None => fail("the free pages of a zone overflow 64 bits"),
    }
}

/// Position of the requested reading, from the first line and the number of zones of each.
fn find_position(
    readings: impl ExactSizeIterator<Item = (u64, usize)> + Clone,
    reading_number: Option<usize>,
    unread_reports: usize,
) -> Result<ReadingPosition, ReadError> {
    let count = readings.len();
    let zones_max = readings.clone().map(|(_, zones)| zones).max().unwrap_or(0);
    let number = reading_number.unwrap_or(count);
    let Some((line, _)) = number.checked_sub(1).and_then(|at| { readings }.nth(at)) else {
        return Err(ReadError::NoSuchReading(count));
    };
    Ok(ReadingPosition { number, count, line, zones_max, unread_reports })
}

/// Error for a text without a known line.
fn no_reading_error(text: &[u8]) -> ParseError {
    let printable = |line: &[u8]| std::str::from_utf8(line).is_ok_and(|t| !t.contains('\0'));
    let Some((number, first)) = lines(text).find(|(_, line)| !line.trim_ascii().is_empty()) else {
        return ParseError::for_input(FORMAT, "empty input");
    };
    if let Some((number, line)) = lines(text).find(|(_, line)| !printable(line)) {
        return ParseError::at_line(FORMAT, number, format!("`{}` is not text", to_printable(line)));
    }
    let problem = format!(
        "`{}`: expected buddyinfo (`Node 0, zone Normal 7 10 …`), pagetypeinfo (`Free pages count per …`) or \
         an OOM or allocation failure report (`Node 0 Normal: 7*4kB … = 108kB`)",
        to_printable(first)
    );
    ParseError::at_line(FORMAT, number, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::random::SplitMix64;

    const BUDDY: &str = "Node 0, zone DMA 1 2 3\nNode 0, zone Normal 4 5 6\n";
    const REPORT: &str = "Node 0 DMA: 1*4kB 1*8kB = 12kB\n";

    fn error_message(text: &str, which: Option<usize>) -> String {
        match parse(text.as_bytes(), which) {
            Ok(FreeBlocksText { kind, position: place, buddyinfo, .. }) => {
                let ReadingPosition { number: which, count: of, line, .. } = place;
                let counts: Vec<_> = buddyinfo.zones.iter().map(|zone| zone.areas.counts()).collect();
                format!("{} {which} of {of} from line {line}: {counts:?}", kind.name())
            }
            Err(ReadError::NoSuchReading(of)) => format!("only {of}"),
            Err(ReadError::Malformed { problems, .. }) => problems[0].message_in_file("f"),
        }
    }

    #[test]
    fn the_kind_and_the_reading_are_told_from_the_lines() {
        let among = format!(
            "$ cat /proc/version\nLinux\n$ cat /proc/buddyinfo\n{BUDDY}\
             $ cat /proc/zoneinfo\nNode 0, zone      DMA\n  pages free 3\n"
        );
        let twice = format!("{BUDDY}{}", BUDDY.replace('6', "7"));
        let later = format!("{BUDDY}\nlater\n{}", BUDDY.replace('6', "8"));
        let both = format!("{REPORT}{BUDDY}");
        let two = format!("{REPORT}{}", REPORT.replace("1*8kB = 12", "2*8kB = 20"));
        let types = "Free pages count per migrate type at order 0 1\n\
             Node 0, zone DMA, type Unmovable 1 2\nNode 0, zone DMA, type Movable 4 >9\n\
             Number of blocks type Unmovable Movable\nNode 0, zone DMA 3 2\n";
        let types_and_buddy = format!("{types}Node 0, zone DMA 5 9\n");
        let blocks_only = types.split_once("Number").unwrap().1;
        let cases: [(&str, Option<usize>, &str); 16] = [
            (types, None, "pagetypeinfo 1 of 1 from line 1: [[5, 11]]"),
            (&types_and_buddy, None, "buddyinfo 2 of 2 from line 6: [[5, 9]]"),
            (&types_and_buddy, Some(1), "pagetypeinfo 1 of 2 from line 1: [[5, 11]]"),
            (
                &format!("Number{blocks_only}"),
                None,
                "f:1: only pageblock counts found: the table of free blocks is missing \
                 (read as pagetypeinfo)",
            ),
            (
                &types.replace("type Unmovable 1 2", "type Unmovable 1 18446744073709551615"),
                None,
                "f:1: the free pages of a zone overflow 64 bits (read as pagetypeinfo)",
            ),
            (BUDDY, None, "buddyinfo 1 of 1 from line 1: [[1, 2, 3], [4, 5, 6]]"),
            (&among, None, "buddyinfo 1 of 1 from line 4: [[1, 2, 3], [4, 5, 6]]"),
            (&twice, None, "buddyinfo 2 of 2 from line 3: [[1, 2, 3], [4, 5, 7]]"),
            (&twice, Some(1), "buddyinfo 1 of 2 from line 1: [[1, 2, 3], [4, 5, 6]]"),
            (&later, None, "buddyinfo 2 of 2 from line 5: [[1, 2, 3], [4, 5, 8]]"),
            (&both, None, "buddyinfo 1 of 1 from line 2: [[1, 2, 3], [4, 5, 6]]"),
            (REPORT, None, "show_mem 1 of 1 from line 1: [[1, 1]]"),
            (&two, None, "show_mem 2 of 2 from line 2: [[1, 2]]"),
            (&two, Some(1), "show_mem 1 of 2 from line 1: [[1, 1]]"),
            (&two, Some(3), "only 2"),
            (&two, Some(0), "only 2"),
        ];
        for (text, which, expected) in cases {
            assert_eq!(error_message(text, which), expected, "{text}");
        }
    }

    #[test]
    fn damaged_texts_are_read_or_refused_and_what_is_read_is_what_stands_there() {
        let mut draws = SplitMix64::new(1);
        let mut random = |below: usize| draws.next_below(below as u64) as usize;
        let report = "[ 1.0] x: page allocation failure: order:2\nMem-Info:\n\
             [ 1.2] Node 0 DMA: 2*64kB (U) 1*128kB (UE) = 256kB\nNode 1 Normal: empty\n";
        for round in 0..30_000 {
            let mut text = [BUDDY, report][round % 2].repeat(1 + random(2)).into_bytes();
            for _ in 0..=random(5) {
                let at = random(text.len());
                match random(4) {
                    0 => text[at] = random(256) as u8,
                    1 => text.truncate(at.max(1)),
                    2 => text.insert(at, b"9*k=(:\n "[random(8)]),
                    _ => drop(text.drain(at..(at + random(20)).min(text.len() - 1).max(at))),
                }
            }
            match parse(&text, None) {
                Ok(found) => {
                    let orders = found.buddyinfo.zones[0].areas.orders();
                    assert!(found.buddyinfo.zones.iter().all(|zone| zone.areas.orders() == orders));
                    assert!(found.position.line as usize <= lines(&text).count());
                }
                Err(ReadError::Malformed { problems, .. }) => {
                    let count = lines(&text).count() as u64;
                    let known =
                        |problem: &ParseError| problem.line().is_none_or(|l| (1..=count).contains(&l));
                    assert!(!problems.is_empty() && problems.iter().all(known), "{problems:?}");
                }
                Err(ReadError::NoSuchReading(_)) => panic!("the last one was requested"),
            }
        }
    }

    #[test]
    fn texts_of_very_many_zones_are_refused() {
        let many: String = (0..7000).map(|node| format!("Node {node}, zone A 1\n")).collect();
        assert_eq!(error_message(&many, None), "f:6145: more than 6144 zones (read as buddyinfo)");
        let many: String = (0..7000).map(|node| format!("Node {node} A: 1*4kB = 4kB\n")).collect();
        assert_eq!(error_message(&many, None), "f:6145: more than 6144 zones (read as show_mem)");
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_line() {
        let cases = [
            ("", "f: empty input (read as buddyinfo, pagetypeinfo or show_mem)"),
            ("\n \n", "f: empty input (read as buddyinfo, pagetypeinfo or show_mem)"),
            ("a\n\0\0\n", "f:2: `\\0\\0` is not text (read as buddyinfo, pagetypeinfo or show_mem)"),
            ("Node 0, zone DMA 1 x\n", "f:1: `x` is not a count (read as buddyinfo)"),
            (
                "Node 0, zone DMA\n",
                "f:1: expected `Node N, zone NAME counts…`, found `Node 0, zone DMA` (read as buddyinfo)",
            ),
            (
                &BUDDY.replace("Node 0, zone Normal 4 5 6\n", "No"),
                "f:2: expected `Node N, zone NAME counts…`, found `No` (read as buddyinfo)",
            ),
            ("hello\nNode 0, zone DMA 1 -2\n", "f:2: `-2` is not a count (read as buddyinfo)"),
        ];
        for (text, expected) in cases {
            assert_eq!(error_message(text, None), expected, "{text:?}");
        }
        assert!(error_message("\nhello\n", None).starts_with("f:2: `hello`: expected buddyinfo"));
        // The whole message is shown, however long the line is.
        let long = error_message(&format!("{}\n", "x".repeat(100)), None);
        assert!(long.ends_with("= 108kB`) (read as buddyinfo, pagetypeinfo or show_mem)"), "{long}");
    }
}
