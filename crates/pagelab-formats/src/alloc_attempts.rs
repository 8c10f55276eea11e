//! The table of requests to the page allocator that pagelab's kernel module has made in a guest
//! (`kmod/attempts.c`): a line with the names of the columns, one for each attempt, and `pages_held N`.

use crate::ParseError;
use crate::text::{lines, parse_name, parse_number, to_printable, words};

const FORMAT: &str = "attempts";
/// The module's own limit, so that a hostile text takes no more memory.
const ATTEMPTS_MAX: usize = 100_000;
/// First word of the last line.
const HELD_WORD: &[u8] = b"pages_held";
/// What a column has where there is no value.
const NO_VALUE: &[u8] = b"-";
/// The columns that are read. Others may stand between or behind them.
const COLUMNS: [&str; 13] = [
    "number",
    "order",
    "gfp",
    "ok",
    "pfn",
    "zone",
    "ns",
    "f_u_before",
    "f_i",
    "free",
    "reclaimed",
    "scanned",
    "retry",
];

/// The whole table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptTable {
    /// In the order in which they were made.
    pub attempts: Vec<AllocAttempt>,
    /// Base pages that the module holds.
    pub pages_held: u64,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocAttempt {
    /// From 0.
    pub number: u64,
    /// Order of the request.
    pub order: u8,
    /// Name of its GFP flags: `movable`, `kernel` …
    pub gfp: String,
    /// Whether it had `__GFP_RETRY_MAYFAIL`.
    pub retries: bool,
    /// What it got.
    pub result: AttemptResult,
    /// Time in the allocator, ns.
    pub elapsed_ns: u64,
    /// Unusable free space index of its order before, in thousandths.
    pub unusable_before: u16,
    /// Pages on free lists afterwards.
    pub free_pages: u64,
    /// Pages reclaimed since the last attempt.
    pub reclaimed_pages: u64,
    /// Pages scanned for that.
    pub scanned_pages: u64,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// Pages.
    Pages {
        /// Number of the first frame.
        pfn: u64,
        /// Their zone.
        zone: String,
    },
    /// None.
    Failed {
        /// Fragmentation index of its order then, in thousandths; -1000 where a block was free all the
        /// same.
        fragmentation: i16,
    },
}

impl AllocAttempt {
    /// Whether it got pages.
    pub fn is_ok(&self) -> bool {
        matches!(self.result, AttemptResult::Pages { .. })
    }
}

/// Reads a whole table. One without its last line is an error.
pub fn parse(text: &[u8]) -> Result<AttemptTable, ParseError> {
    let mut lines = lines(text);
    let Some((first, header)) = lines.next() else {
        return Err(ParseError::for_input(FORMAT, "empty file: the names of the columns are missing"));
    };
    let columns = find_columns(first, header)?;
    let mut attempts = Vec::new();
    let mut pages_held = None;
    for (at, line) in lines {
        if pages_held.is_some() {
            return Err(ParseError::at_line(FORMAT, at, "a line behind `pages_held`"));
        }
        pages_held = parse_held(line);
        if pages_held.is_some() {
            continue;
        }
        if attempts.len() == ATTEMPTS_MAX {
            let problem = format!("more than {ATTEMPTS_MAX} attempts");
            return Err(ParseError::at_line(FORMAT, at, problem));
        }
        attempts.push(parse_attempt(&columns, at, line)?);
    }
    let missing = || ParseError::for_input(FORMAT, "cut off: the last line, `pages_held N`, is missing");
    Ok(AttemptTable { attempts, pages_held: pages_held.ok_or_else(missing)? })
}

/// Where each of [`COLUMNS`] is, and how many there are in all.
struct ColumnPlaces {
    places: [usize; COLUMNS.len()],
    count: usize,
}

fn find_columns(at: u64, header: &[u8]) -> Result<ColumnPlaces, ParseError> {
    let mut places = [usize::MAX; COLUMNS.len()];
    let mut count = 0;
    for word in words(header) {
        if let Some(column) = COLUMNS.iter().position(|name| name.as_bytes() == word) {
            places[column] = count;
        }
        count += 1;
    }
    match COLUMNS.iter().zip(places).find(|(_, place)| *place == usize::MAX) {
        None => Ok(ColumnPlaces { places, count }),
        Some((name, _)) => {
            let problem = format!("no column `{name}` in `{}`", to_printable(header));
            Err(ParseError::at_line(FORMAT, at, problem))
        }
    }
}

fn parse_held(line: &[u8]) -> Option<u64> {
    let mut words = words(line);
    let is_held = words.next() == Some(HELD_WORD);
    let pages = words.next().and_then(parse_number);
    pages.filter(|_| is_held && words.next().is_none())
}

fn parse_attempt(columns: &ColumnPlaces, at: u64, line: &[u8]) -> Result<AllocAttempt, ParseError> {
    let fail = |problem: String| ParseError::at_line(FORMAT, at, problem);
    let fields: Vec<&[u8]> = words(line).take(columns.count + 1).collect();
    if fields.len() != columns.count {
        return Err(fail(format!("expected {} columns, found `{}`", columns.count, to_printable(line))));
    }
    let [number, order, gfp, ok, pfn, zone, ns, unusable, fragmentation, free, reclaimed, scanned, retry] =
        columns.places.map(|place| fields[place]);
    let amount = |name: &str, word: &[u8]| {
        parse_number(word).ok_or_else(|| fail(format!("{name}: `{}` is no number", to_printable(word))))
    };
    let at_most = |name: &str, word: &[u8], most: u64| match amount(name, word)? {
        value if value <= most => Ok(value),
        value => Err(fail(format!("{name}: {value} is more than {most}"))),
    };
    let result = match at_most("ok", ok, 1)? {
        1 => {
            AttemptResult::Pages { pfn: amount("pfn", pfn)?, zone: parse_name(FORMAT, at, zone)?.to_owned() }
        }
        _ => AttemptResult::Failed {
            fragmentation: parse_fragmentation(fragmentation).ok_or_else(|| {
                fail(format!("f_i: `{}` is no index in thousandths", to_printable(fragmentation)))
            })?,
        },
    };
    let absent = if matches!(result, AttemptResult::Pages { .. }) { [NO_VALUE; 2] } else { [pfn, zone] };
    if absent != [NO_VALUE; 2] {
        return Err(fail("an attempt that failed has pages".to_owned()));
    }
    Ok(AllocAttempt {
        number: amount("number", number)?,
        order: at_most("order", order, 63)? as u8,
        gfp: parse_name(FORMAT, at, gfp)?.to_owned(),
        retries: at_most("retry", retry, 1)? == 1,
        result,
        elapsed_ns: amount("ns", ns)?,
        unusable_before: at_most("f_u_before", unusable, 1000)? as u16,
        free_pages: amount("free", free)?,
        reclaimed_pages: amount("reclaimed", reclaimed)?,
        scanned_pages: amount("scanned", scanned)?,
    })
}

/// From -1000 to 1000.
fn parse_fragmentation(word: &[u8]) -> Option<i16> {
    let (sign, digits) = word.strip_prefix(b"-").map_or((1, word), |digits| (-1, digits));
    let value = parse_number(digits).filter(|value| *value <= 1000)?;
    Some(sign * value as i16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "number order gfp ok pfn zone ns f_u_before f_i free reclaimed scanned retry\n";

    fn table(lines: &str) -> Result<AttemptTable, ParseError> {
        parse(format!("{HEADER}{lines}").as_bytes())
    }

    /// Lines of a guest with 6.12.
    #[test]
    fn each_attempt_has_its_pages_or_its_index() {
        let found = table(
            "0 9 movable 1 9728 DMA32 44429799 1000 - 1784 256 256 1\n\
             1 9 movable 0 - - 310162080 1000 971 2897 82 7320 1\n\
             2 0 atomic 0 - - 5 0 -1000 3 0 0 0\npages_held 512\n",
        )
        .unwrap();
        assert_eq!(found.pages_held, 512);
        let [first, second, third] = &found.attempts[..] else { panic!("{found:?}") };
        assert_eq!(first.result, AttemptResult::Pages { pfn: 9728, zone: "DMA32".to_owned() });
        assert_eq!((first.elapsed_ns, first.unusable_before, first.free_pages), (44_429_799, 1000, 1784));
        assert!(first.is_ok() && first.retries && !second.is_ok() && !third.retries);
        assert_eq!(second.result, AttemptResult::Failed { fragmentation: 971 });
        assert_eq!((second.reclaimed_pages, second.scanned_pages), (82, 7320));
        assert_eq!(third.result, AttemptResult::Failed { fragmentation: -1000 });
        assert_eq!((third.number, third.order, third.gfp.as_str()), (2, 0, "atomic"));
        assert_eq!(table("pages_held 0\n").unwrap(), AttemptTable { attempts: vec![], pages_held: 0 });
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let text = "node order number gfp ok pfn zone ns f_u_before f_i free reclaimed scanned retry more\n\
                    0 3 7 kernel 1 64 Normal 9 10 - 11 12 13 0 x\npages_held 8\n";
        let found = parse(text.as_bytes()).unwrap();
        assert_eq!((found.attempts[0].number, found.attempts[0].order), (7, 3));
    }

    #[test]
    fn a_table_that_is_not_whole_or_not_a_table_is_an_error() {
        for (text, problem) in [
            ("", "the last line"),
            ("0 9 movable 1 9728 DMA32 4 1000 - 1784 256 256 1\n", "the last line"),
            ("pages_held 0\npages_held 0\n", "behind"),
            ("pages_held x\n", "expected 13 columns"),
            ("0 9 movable 1 9728 DMA32 4 1000 - 1784 256 256 1 1\npages_held 0\n", "expected 13 columns"),
            ("0 9 movable 2 9728 DMA32 4 1000 - 1784 256 256 1\npages_held 0\n", "ok: 2"),
            ("0 9 movable 1 - - 4 1000 - 1784 256 256 1\npages_held 0\n", "pfn: `-`"),
            ("0 9 movable 0 - - 4 1000 - 1784 256 256 1\npages_held 0\n", "f_i: `-`"),
            ("0 9 movable 0 - - 4 1000 -1001 1784 256 256 1\npages_held 0\n", "f_i: `-1001`"),
            ("0 9 movable 0 5 DMA 4 1000 0 1784 256 256 1\npages_held 0\n", "has pages"),
            ("0 99 movable 0 - - 4 1000 0 1784 256 256 1\npages_held 0\n", "order: 99"),
            ("0 9 movable 0 - - 4 1001 0 1784 256 256 1\npages_held 0\n", "f_u_before: 1001"),
        ] {
            let error = table(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert!(parse(b"").unwrap_err().to_string().contains("empty"));
        let error = parse(b"number order gfp ok\n").unwrap_err().to_string();
        assert!(error.contains("no column `pfn`"), "{error}");
    }
}
