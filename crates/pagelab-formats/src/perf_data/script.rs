//! The text of `perf script` with data addresses: `perf script -F
//! comm,pid,tid,time,event,addr,data_src,weight` (or what `perf mem script` and `perf script` print by
//! themselves on a file of `perf mem record`).
//!
//! ```text
//!   ls 214145 cpu/mem-loads/pp:     7f56ff78bcb8   68100142 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2
//! hit|LCK No|BLK  N/A   7 …
//! ```
//! Fields are found from the end: the words of perf between `|`, before them `data_src` in hexadecimal, then
//! the address, then the event, which ends in a colon.

use super::{DataSource, FORMAT};
use crate::ParseError;
use crate::text::{lines, to_printable};

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSample {
    /// The program's name; empty if it is not printed.
    pub comm: String,
    /// Process, or its thread where only that is printed.
    pub pid: Option<u32>,
    /// The event; empty if it is not printed.
    pub event: String,
    /// Number of events that it represents, if printed.
    pub period: Option<u64>,
    /// Data address; `None` if it is not printed.
    pub address: Option<u64>,
    /// The TLB column.
    pub tlb: DataSource,
    /// Latency, if it is printed.
    pub weight: Option<u64>,
}

/// Content of a text of `perf script`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Samples.
    pub samples: Vec<ScriptSample>,
    /// Lost records, if the text states them.
    pub lost_records: u64,
    /// Lines of other records, of call chains, and of samples without a TLB column.
    pub other_lines: u64,
}

/// Reads a text of `perf script`. A text without any TLB column is an error that says so.
pub fn parse_script(text: &[u8]) -> Result<Script, ParseError> {
    let mut script_read = Script::default();
    for (number, line) in lines(text) {
        let line = String::from_utf8_lossy(line);
        let Some((head, words)) = line.split_once("|OP ") else {
            match parse_lost(&line) {
                Some(lost) => script_read.lost_records = script_read.lost_records.saturating_add(lost),
                None => {
                    script_read.other_lines += u64::from(!line.trim().is_empty() && !line.starts_with('#'))
                }
            }
            continue;
        };
        let Some(column) = words.split('|').find_map(|word| word.strip_prefix("TLB ")) else {
            script_read.other_lines += 1;
            continue;
        };
        let tlb = DataSource::from_words(column).ok_or_else(|| {
            let problem =
                format!("`{}` is not a TLB value that perf prints", to_printable(column.as_bytes()));
            ParseError::at_line(FORMAT, number, problem)
        })?;
        script_read.samples.push(parse_sample(head, tlb, parse_weight(words)).ok_or_else(|| {
            let problem = "no hexadecimal data_src before `|OP`; hint: use perf script -F +addr,+data_src";
            ParseError::at_line(FORMAT, number, problem)
        })?);
    }
    if script_read.samples.is_empty() {
        let problem = "no data sources found (`|OP LOAD|…|TLB …|`); hint: record with perf mem record, print \
                       with perf script -F +addr,+data_src";
        return Err(ParseError::for_input("output of perf script", problem));
    }
    Ok(script_read)
}

/// `PERF_RECORD_LOST lost 12`, `PERF_RECORD_LOST_SAMPLES lost 3`, with --show-lost-events.
fn parse_lost(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("PERF_RECORD_LOST")?;
    rest.split_once("lost ")?.1.split_whitespace().next()?.parse().ok()
}

/// The first number after the last column, if that has its words.
fn parse_weight(words: &str) -> Option<u64> {
    let last = words.rsplit('|').next()?;
    // No word of a column consists of digits only; `N/A` and `Yes` come first. An instruction address, which
    // may consist of digits only, follows the weight.
    last.split_whitespace().find_map(|word| word.parse().ok())
}

/// A sample by the text before the columns.
fn parse_sample(head: &str, tlb: DataSource, weight: Option<u64>) -> Option<ScriptSample> {
    let mut words: Vec<&str> = head.split_whitespace().collect();
    u64::from_str_radix(words.pop()?, 16).ok()?;
    let address = words.pop_if(|word| !word.ends_with(':'));
    let address = address.and_then(|word| u64::from_str_radix(word, 16).ok());
    let event = words.pop().map(|event| event.strip_suffix(':').unwrap_or(event).to_owned());
    let period = words.last().and_then(|word| word.parse().ok()).filter(|_| {
        // A number that ends in a colon is the time; a bare one before the event is the period, unless
        // only the name precedes it: then it is the process.
        words.iter().rev().skip(1).any(|word| word.ends_with(':'))
    });
    words.retain(|word| !word.ends_with(':') && !word.starts_with('['));
    if period.is_some() {
        words.pop();
    }
    let process = words.last().and_then(|word| word.split('/').next());
    let pid = process.and_then(|process| process.parse().ok());
    if pid.is_some() {
        words.pop();
    }
    let (comm, event) = (words.join(" "), event.unwrap_or_default());
    Some(ScriptSample { comm, pid, event, period, address, tlb, weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_one(line: &str) -> ScriptSample {
        parse_script(line.as_bytes()).unwrap().samples.remove(0)
    }

    #[test]
    fn fields_that_are_there_are_told_apart() {
        let columns = "|OP LOAD|LVL L2 miss|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A";
        let full = parse_one(&format!(
            "  my prog 17/19  [028] 13166.196585:   4000 cpu/mem-loads/P:  55ffba5cda08  11868100242 {columns}   225  a44"
        ));
        assert_eq!(
            (full.comm.as_str(), full.pid, full.event.as_str()),
            ("my prog", Some(17), "cpu/mem-loads/P")
        );
        assert_eq!((full.period, full.address, full.weight), (Some(4000), Some(0x55ff_ba5c_da08), Some(225)));
        assert_eq!(
            full.tlb.tlb_outcome(false),
            super::super::TlbOutcome::Hit,
            "the cache column is not the TLB's"
        );
        let short = parse_one(&format!("7f56ff78bcb8  68100142 {columns}"));
        assert_eq!((short.pid, short.address, short.weight), (None, Some(0x7f56_ff78_bcb8), None));
        let no_time =
            parse_one(&format!("ls 214145 cpu/mem-loads/pp: 7ffe7a3307d8 68100142 {columns}|AFF N/A 7 7f56"));
        assert_eq!((no_time.pid, no_time.period, no_time.weight), (Some(214_145), None, Some(7)));
        let no_address = parse_one(&format!("ls 214145 cpu/mem-loads/pp: 68100142 {columns}"));
        assert_eq!(no_address.address, None);
    }

    #[test]
    fn losses_are_added_and_texts_without_the_column_are_refused() {
        let line = "ls 2 e: 10 6 |OP LOAD|LVL L1 hit|SNP None|TLB L2 miss|LCK No\n";
        let text = format!(
            "ls 2 PERF_RECORD_LOST lost 12\n\n# c\n{line}    ffff do_it ([k])\nls PERF_RECORD_LOST_SAMPLES lost 3\n"
        );
        let found = parse_script(text.as_bytes()).unwrap();
        assert_eq!((found.samples.len(), found.lost_records, found.other_lines), (1, 15, 1));
        let check = |text: &str, message: &str| {
            let error = parse_script(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check("ls 2 page-faults: 7f56ff78bcb8\n", "no data sources found");
        check("ls e: 10 6 |OP LOAD|TLB L9 hit|\n", ":1: `L9 hit` is not a TLB value");
        check("ls e: xyz |OP LOAD|TLB L2 hit|\n", "no hexadecimal data_src");
    }

    /// Lines that others published with their patches of perf, recorded on machines that we have not: AMD IBS
    /// (`perf record -ad -e ibs_op//p`, Namhyung Kim's filters of samples, 2023), Arm SPE (`memstress`, the
    /// snoop flag PEER, 2022; `sve-test`, the column AFF), loads through Intel PT (Adrian Hunter, 2021).
    /// perf made the words of each from the bits in front of it, so both must read alike.
    const PUBLISHED: &str = "\
51080242 |OP LOAD|LVL LFB/MAB hit|SNP N/A|TLB L2 miss|LCK N/A|BLK  N/A
49080142 |OP LOAD|LVL L1 hit|SNP N/A|TLB L2 hit|LCK N/A|BLK  N/A
51088842 |OP LOAD|LVL L3 or Remote Cache (1 hop) hit|SNP N/A|TLB L2 miss|LCK N/A|BLK  N/A
memstress  3603 [020] 122.463754: 1 l1d-miss: 8688000842 \
|OP LOAD|LVL L3 or L3 hit|SNP N/A|TLB Walker hit|LCK No|BLK  N/A  aaaac17c3e88 [unknown]
sve-test 6516696.714341: 288100144 |OP STORE|LVL L1 hit|SNP None|TLB Walker hit|LCK No|BLK  N/A|AFF N/A
10268100142 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A
10450100442 |OP LOAD|LVL L2 hit|SNP None|TLB L2 miss|LCK No|BLK  N/A
";

    #[test]
    fn published_bits_and_words_read_alike() {
        use super::super::TlbOutcome::{Hit, PageWalk};
        let found = parse_script(PUBLISHED.as_bytes()).unwrap();
        let answers = [PageWalk, Hit, PageWalk, PageWalk, PageWalk, Hit, PageWalk];
        let spe = [PageWalk, Hit, PageWalk, Hit, Hit, Hit, PageWalk];
        assert_eq!(found.samples.len(), answers.len());
        for (place, line) in PUBLISHED.lines().enumerate() {
            let bits = line.split(" |OP").next().unwrap().split_whitespace().last().unwrap();
            let of_bits = DataSource::from_data_src(u64::from_str_radix(bits, 16).unwrap());
            let of_words = found.samples[place].tlb;
            for of in [of_bits, of_words] {
                assert_eq!(
                    (of.tlb_outcome(false), of.tlb_outcome(true)),
                    (answers[place], spe[place]),
                    "{line}"
                );
            }
            assert_eq!(found.samples[place].address, None, "{line}");
        }
        assert_eq!((found.samples[3].event.as_str(), found.samples[3].pid), ("l1d-miss", Some(3603)));
    }
}
