//! The table of `perf mem report --stdio`, or of `perf report --stdio` with the same sort keys.
//!
//! Columns are found by the ruler of dots under their names. Required are `TLB access`, `Samples`, and the
//! data address in `Data Symbol`; a row whose address was replaced by a symbol name has none.

use super::{DataSource, FORMAT};
use crate::ParseError;
use crate::text::{lines, to_printable};

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportRow {
    /// Its samples; not its weight nor its overhead, which is a share of the weights.
    pub samples: u64,
    /// Data address, if the column has one.
    pub address: Option<u64>,
    /// The TLB column.
    pub tlb: DataSource,
}

/// Content of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows of all tables in it.
    pub rows: Vec<ReportRow>,
    /// Lost samples, by its head.
    pub lost_samples: u64,
    /// The events, from the heads of the tables.
    pub events: Vec<String>,
}

/// Positions of the columns in characters.
struct Columns {
    samples: (usize, usize),
    tlb: (usize, usize),
    data: (usize, usize),
}

/// Reads a report. A missing required column is an error that names it.
pub fn parse_report(text: &[u8]) -> Result<Report, ParseError> {
    let mut report_read = Report::default();
    let mut columns: Option<Columns> = None;
    let mut names = String::new();
    for (number, line) in lines(text) {
        let line = String::from_utf8_lossy(line);
        let to_error = |problem: String| ParseError::at_line(FORMAT, number, problem);
        if let Some(comment) = line.strip_prefix('#') {
            let is_ruler = comment.contains("..") && comment.chars().all(|c| c == '.' || c == ' ');
            if is_ruler {
                columns = Some(Columns::find(&names, &line).map_err(to_error)?);
            } else if let Some(lost) = comment.trim().strip_prefix("Total Lost Samples: ") {
                report_read.lost_samples =
                    report_read.lost_samples.saturating_add(lost.trim().parse().unwrap_or(0));
            } else if let Some((_, event)) = comment.split_once(" of event ") {
                report_read.events.push(event.trim().trim_matches('\'').to_owned());
            }
            names = line.into_owned();
            continue;
        }
        let Some(columns) = &columns else { continue };
        let cell = |(from, to): (usize, usize)| line.chars().skip(from).take(to - from).collect::<String>();
        if line.trim().is_empty() || !line.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let tlb = cell(columns.tlb);
        let text = tlb.trim().as_bytes();
        let tlb = DataSource::from_words(&tlb).ok_or_else(|| {
            to_error(format!("`{}` is not a TLB value that perf prints", to_printable(text)))
        })?;
        let samples = cell(columns.samples);
        let samples = samples.trim().parse().map_err(|_| {
            to_error(format!("`{}`: expected a sample count", to_printable(samples.trim().as_bytes())))
        })?;
        let data = cell(columns.data);
        let address = data.split_whitespace().find_map(|word| word.strip_prefix("0x"));
        let address = address.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        report_read.rows.push(ReportRow { samples, address, tlb });
    }
    match columns {
        Some(_) => Ok(report_read),
        None => Err(ParseError::for_input(
            "output of perf report",
            "no table found; expected `# Overhead  Samples …`",
        )),
    }
}

impl Columns {
    fn find(names: &str, ruler: &str) -> Result<Columns, String> {
        let (names, ruler): (Vec<char>, Vec<char>) = (names.chars().collect(), ruler.chars().collect());
        let starts: Vec<usize> = (0..ruler.len())
            .filter(|&place| ruler[place] == '.' && (place == 0 || ruler[place - 1] != '.'))
            .collect();
        let column = |wanted: &str| {
            starts.iter().enumerate().find_map(|(place, &from)| {
                let to = starts.get(place + 1).copied().unwrap_or(usize::MAX);
                let name: String = names.iter().skip(from).take(to - from).collect();
                (name.trim() == wanted).then_some((from, to))
            })
        };
        let needed = |wanted: &str, out: &str| {
            column(wanted).ok_or_else(|| format!("the table has no column `{wanted}`; hint: {out}"))
        };
        Ok(Columns {
            tlb: needed("TLB access", "print it with perf mem report --stdio")?,
            samples: needed("Samples", "use perf report -n; weights are not sample counts")?,
            data: needed("Data Symbol", "print it with perf mem report --stdio, sort key symbol_daddr")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# Total Lost Samples: 7
#
# Samples: 3  of event 'cpu/mem-loads/P'
# Overhead       Samples  Memory access             Data Symbol             TLB access
# ........  ............  ........................  ......................  ..........
#
    83.57%             2  L2 miss                   [.] 0xffff8800b65e27e8  L1 or L2 hit
     1.93%             1  LFB hit                   [.] 0x0000000000001000  L2 miss
     1.00%             9  LFB hit                   [.] a_table+0x10        Walker hit

# (Tip: …)
";

    #[test]
    fn rows_are_cut_by_the_ruler() {
        let found = parse_report(TABLE.as_bytes()).unwrap();
        let rows: Vec<_> = found.rows.iter().map(|row| (row.samples, row.address)).collect();
        assert_eq!(rows, [(2, Some(0xffff_8800_b65e_27e8)), (1, Some(0x1000)), (9, None)]);
        assert_eq!((found.lost_samples, &found.events[..]), (7, &["cpu/mem-loads/P".to_owned()][..]));
        let walked = |row: &ReportRow| row.tlb.tlb_outcome(false) == super::super::TlbOutcome::PageWalk;
        assert_eq!(found.rows.iter().map(walked).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn a_table_without_a_needed_column_is_refused() {
        let check = |text: &str, message: &str| {
            let error = parse_report(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check(&TABLE.replace("     Samples", "Local Weight"), "weights are not sample counts");
        check(&TABLE.replace("TLB access", "Snoop     "), "no column `TLB access`");
        check("# nothing\n", "no table");
        check(&TABLE.replace("L2 miss\n", "L3 miss\n"), ":8: `L3 miss` is not a TLB value");
    }
}
