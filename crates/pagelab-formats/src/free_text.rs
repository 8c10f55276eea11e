//! Any text that says which blocks are free: buddyinfo alone, buddyinfo among other files' texts, or
//! allocation-failure reports in a kernel log. Which it is, is told from the lines themselves.

use pagelab_model::{BuddyInfo, PageSize, ZoneKey};

use crate::text::{lines, show};
use crate::{ParseError, buddyinfo, show_mem};

const FORMAT: &str = "buddyinfo or show_mem";

/// What kind of lines a text was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines of `/proc/buddyinfo`.
    Buddyinfo,
    /// Free-block lines of an allocation-failure or out-of-memory report.
    ShowMem,
}

impl Kind {
    /// Its name, the same in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Buddyinfo => "buddyinfo",
            Kind::ShowMem => "show_mem",
        }
    }
}

/// One reading out of a text that may hold several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeText {
    /// What it was read from.
    pub kind: Kind,
    /// Where it stands among the readings of its text.
    pub place: Place,
    /// Free blocks.
    pub buddyinfo: BuddyInfo,
    /// The page size, where the text says it (reports do, buddyinfo does not).
    pub page_size: Option<PageSize>,
    /// Letters of the migratetypes by zone and order, where the text has them.
    pub migratetypes: Option<Vec<Vec<String>>>,
    /// Zones that the text names as having no memory.
    pub unpopulated: Vec<ZoneKey>,
    /// Why the kernel printed it.
    pub trigger: Option<show_mem::Trigger>,
}

/// Where a reading stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which reading, counted from 1.
    pub which: usize,
    /// How many there are of its kind.
    pub of: usize,
    /// Its first line, counted from 1.
    pub line: u64,
    /// The most zones that any reading of the text names; more than this one names if this one is cut.
    pub zones_most: usize,
    /// Reports that stand in the same text and were not read, because buddyinfo lines come first.
    pub reports_unread: usize,
}

/// Why nothing could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// There is no such reading; there are only this many.
    NoSuchReading(usize),
    /// The text is bad. `place` is there if readings were found and the wanted one was bad.
    Bad {
        /// What is wrong, at least one problem.
        problems: Vec<ParseError>,
        /// The reading that is bad.
        place: Option<Place>,
    },
}

/// Reads one reading of `text`: the one called `which` (counted from 1), else the last.
pub fn read(text: &[u8], which: Option<usize>) -> Result<FreeText, Failed> {
    let reports = show_mem::find(text);
    let readings = buddyinfo::find(text);
    if !readings.is_empty() {
        let lines = readings.iter().map(|span| (span.first_line, span.zones));
        let place = place(lines, which, reports.len())?;
        let buddyinfo = buddyinfo::parse_span(text, &readings[place.which - 1])
            .map_err(|problem| Failed::Bad { problems: vec![problem], place: Some(place) })?;
        return Ok(FreeText {
            kind: Kind::Buddyinfo,
            place,
            buddyinfo,
            page_size: None,
            migratetypes: None,
            unpopulated: Vec::new(),
            trigger: None,
        });
    }
    if !reports.is_empty() {
        let place = place(reports.iter().map(|span| (span.first_line, span.zones)), which, 0)?;
        let report = show_mem::parse(text, &reports[place.which - 1])
            .map_err(|problems| Failed::Bad { problems, place: Some(place) })?;
        return Ok(FreeText {
            kind: Kind::ShowMem,
            place,
            buddyinfo: report.buddyinfo,
            page_size: Some(report.page_size),
            migratetypes: Some(report.migratetypes),
            unpopulated: report.unpopulated,
            trigger: report.trigger,
        });
    }
    Err(Failed::Bad { problems: vec![nothing_in(text)], place: None })
}

/// The place of the wanted reading, given first line and number of zones of each.
fn place(
    readings: impl ExactSizeIterator<Item = (u64, usize)> + Clone,
    which: Option<usize>,
    reports_unread: usize,
) -> Result<Place, Failed> {
    let of = readings.len();
    let zones_most = readings.clone().map(|(_, zones)| zones).max().unwrap_or(0);
    let which = which.unwrap_or(of);
    let Some((line, _)) = which.checked_sub(1).and_then(|at| { readings }.nth(at)) else {
        return Err(Failed::NoSuchReading(of));
    };
    Ok(Place { which, of, line, zones_most, reports_unread })
}

/// What to say of a text without any line that we know.
fn nothing_in(text: &[u8]) -> ParseError {
    let printable = |line: &[u8]| std::str::from_utf8(line).is_ok_and(|t| !t.contains('\0'));
    let Some((number, first)) = lines(text).find(|(_, line)| !line.trim_ascii().is_empty()) else {
        return ParseError::whole(FORMAT, "nothing in it");
    };
    if let Some((number, line)) = lines(text).find(|(_, line)| !printable(line)) {
        return ParseError::at_line(FORMAT, number, format!("`{}` is not text", show(line)));
    }
    let problem = format!(
        "`{}` and what follows is neither a buddyinfo line (`Node 0, zone Normal 7 10 …`) nor a \
         report's (`Node 0 Normal: 7*4kB 10*8kB … = 108kB`)",
        show(first)
    );
    ParseError::at_line(FORMAT, number, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::seed::SplitMix64;

    const BUDDY: &str = "Node 0, zone DMA 1 2 3\nNode 0, zone Normal 4 5 6\n";
    const REPORT: &str = "Node 0 DMA: 1*4kB 1*8kB = 12kB\n";

    fn told(text: &str, which: Option<usize>) -> String {
        match read(text.as_bytes(), which) {
            Ok(FreeText { kind, place, buddyinfo, .. }) => {
                let Place { which, of, line, .. } = place;
                let counts: Vec<_> = buddyinfo.zones.iter().map(|zone| zone.areas.counts()).collect();
                format!("{} {which} of {of} from line {line}: {counts:?}", kind.name())
            }
            Err(Failed::NoSuchReading(of)) => format!("only {of}"),
            Err(Failed::Bad { problems, .. }) => problems[0].in_file("f"),
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
        let cases: [(&str, Option<usize>, &str); 11] = [
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
            assert_eq!(told(text, which), expected, "{text}");
        }
    }

    #[test]
    fn damaged_texts_are_read_or_refused_and_what_is_read_is_what_stands_there() {
        let mut draws = SplitMix64::new(1);
        let mut random = |below: usize| draws.below(below as u64) as usize;
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
            match read(&text, None) {
                Ok(found) => {
                    let orders = found.buddyinfo.zones[0].areas.orders();
                    assert!(found.buddyinfo.zones.iter().all(|zone| zone.areas.orders() == orders));
                    assert!(found.place.line as usize <= lines(&text).count());
                }
                Err(Failed::Bad { problems, .. }) => {
                    let count = lines(&text).count() as u64;
                    let known =
                        |problem: &ParseError| problem.line().is_none_or(|l| (1..=count).contains(&l));
                    assert!(!problems.is_empty() && problems.iter().all(known), "{problems:?}");
                }
                Err(Failed::NoSuchReading(_)) => panic!("the last one was asked for"),
            }
        }
    }

    #[test]
    fn texts_of_very_many_zones_are_refused() {
        let many: String = (0..7000).map(|node| format!("Node {node}, zone A 1\n")).collect();
        assert_eq!(told(&many, None), "f:6145: more than 6144 zones (read as buddyinfo)");
        let many: String = (0..7000).map(|node| format!("Node {node} A: 1*4kB = 4kB\n")).collect();
        assert_eq!(told(&many, None), "f:6145: more than 6144 zones (read as show_mem)");
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_line() {
        let cases = [
            ("", "f: nothing in it (read as buddyinfo or show_mem)"),
            ("\n \n", "f: nothing in it (read as buddyinfo or show_mem)"),
            ("a\n\0\0\n", "f:2: `\\0\\0` is not text (read as buddyinfo or show_mem)"),
            ("Node 0, zone DMA 1 x\n", "f:1: `x` is not a count (read as buddyinfo)"),
            (
                "Node 0, zone DMA\n",
                "f:1: `Node 0, zone DMA` is not `Node N, zone NAME counts…` (read as buddyinfo)",
            ),
            (
                &BUDDY.replace("Node 0, zone Normal 4 5 6\n", "No"),
                "f:2: `No` is not `Node N, zone NAME counts…` (read as buddyinfo)",
            ),
            ("hello\nNode 0, zone DMA 1 -2\n", "f:2: `-2` is not a count (read as buddyinfo)"),
        ];
        for (text, expected) in cases {
            assert_eq!(told(text, None), expected, "{text:?}");
        }
        assert!(told("\nhello\n", None).starts_with("f:2: `hello` and what follows is neither a buddyinfo"));
    }
}
