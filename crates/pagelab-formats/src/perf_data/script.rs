//! The text of `perf script` with data addresses: `perf script -F
//! comm,pid,tid,time,event,addr,data_src,weight` (or what `perf mem script` and `perf script` print by
//! themselves on a file of `perf mem record`).
//!
//! ```text
//!   ls 214145 cpu/mem-loads/pp:     7f56ff78bcb8   68100142 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2
//! hit|LCK No|BLK  N/A   7 …
//! ```
//! Fields are told apart from the end: the words between `|` from the list of perf, before them `data_src` in
//! hexadecimal, before it the address, before it the event, which ends in a colon.

use super::{DataSource, FORMAT};
use crate::ParseError;
use crate::text::{lines, show};

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSample {
    /// The program's name; empty if it is not printed.
    pub name: String,
    /// Process, or its thread where only that is printed.
    pub pid: Option<u32>,
    /// The event; empty if it is not printed.
    pub event: String,
    /// Events that it stands for, where they are printed.
    pub period: Option<u64>,
    /// Data address; `None` if it is not printed.
    pub address: Option<u64>,
    /// The TLB column.
    pub tlb: DataSource,
    /// Latency, where it is printed.
    pub weight: Option<u64>,
}

/// What a text of `perf script` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Samples.
    pub samples: Vec<ScriptSample>,
    /// Records that were lost, where it says so.
    pub lost: u64,
    /// Lines of other records, of call chains, and of samples without a TLB column.
    pub other: u64,
}

/// Reads a text of `perf script`. A text without a single TLB column is an error that says so.
pub fn script(text: &[u8]) -> Result<Script, ParseError> {
    let mut found = Script::default();
    for (number, line) in lines(text) {
        let line = String::from_utf8_lossy(line);
        let Some((head, words)) = line.split_once("|OP ") else {
            match lost(&line) {
                Some(lost) => found.lost = found.lost.saturating_add(lost),
                None => found.other += u64::from(!line.trim().is_empty() && !line.starts_with('#')),
            }
            continue;
        };
        let Some(column) = words.split('|').find_map(|word| word.strip_prefix("TLB ")) else {
            found.other += 1;
            continue;
        };
        let tlb = DataSource::from_words(column).ok_or_else(|| {
            ParseError::at_line(
                FORMAT,
                number,
                format!("`{}` is no TLB column of perf", show(column.as_bytes())),
            )
        })?;
        let mut sample = ScriptSample {
            name: String::new(),
            pid: None,
            event: String::new(),
            period: None,
            address: None,
            tlb,
            weight: weight(words),
        };
        sample.fields(head).ok_or_else(|| {
            let problem = "no data_src in hexadecimal before `|OP`: print it with -F +addr,+data_src";
            ParseError::at_line(FORMAT, number, problem)
        })?;
        found.samples.push(sample);
    }
    if found.samples.is_empty() {
        let problem = "no line with a data source (`|OP LOAD|…|TLB …|`): is it of perf mem record, printed \
                       with perf script -F +addr,+data_src?";
        return Err(ParseError::whole("text of perf script", problem));
    }
    Ok(found)
}

/// `PERF_RECORD_LOST lost 12`, `PERF_RECORD_LOST_SAMPLES lost 3`, with --show-lost-events.
fn lost(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("PERF_RECORD_LOST")?;
    rest.split_once("lost ")?.1.split_whitespace().next()?.parse().ok()
}

/// The first number behind the last column, where that has its words.
fn weight(words: &str) -> Option<u64> {
    let last = words.rsplit('|').next()?;
    let mut rest = last.split_whitespace();
    // The words of a column have no digits alone; `N/A` and `Yes` come first.
    let after = rest.by_ref().find_map(|word| word.parse::<u64>().ok())?;
    // An instruction address could be all digits: it stands behind the weight.
    Some(after)
}

impl ScriptSample {
    /// What stands before the columns.
    fn fields(&mut self, head: &str) -> Option<()> {
        let mut words: Vec<&str> = head.split_whitespace().collect();
        u64::from_str_radix(words.pop()?, 16).ok()?;
        if words.last().is_some_and(|word| !word.ends_with(':')) {
            self.address = words.pop().and_then(|word| u64::from_str_radix(word, 16).ok());
        }
        if let Some(event) = words.pop() {
            self.event = event.strip_suffix(':').unwrap_or(event).to_owned();
        }
        self.period = words.last().and_then(|word| word.parse().ok()).filter(|_| {
            // A number that ends in a colon is the time; a bare one before the event is the period, but not
            // if it is the process, which has the name alone before it.
            words.iter().rev().skip(1).any(|word| word.ends_with(':'))
        });
        words.retain(|word| !word.ends_with(':') && !word.starts_with('['));
        if self.period.is_some() {
            words.pop();
        }
        if let Some(process) = words.last() {
            let process = process.split('/').next().unwrap_or(process);
            self.pid = process.parse().ok();
            if self.pid.is_some() {
                words.pop();
            }
        }
        self.name = words.join(" ");
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> ScriptSample {
        script(line.as_bytes()).unwrap().samples.remove(0)
    }

    #[test]
    fn fields_that_are_there_are_told_apart() {
        let columns = "|OP LOAD|LVL L2 miss|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A";
        let full = one(&format!(
            "  my prog 17/19  [028] 13166.196585:   4000 cpu/mem-loads/P:  55ffba5cda08  11868100242 {columns}   225  a44"
        ));
        assert_eq!(
            (full.name.as_str(), full.pid, full.event.as_str()),
            ("my prog", Some(17), "cpu/mem-loads/P")
        );
        assert_eq!((full.period, full.address, full.weight), (Some(4000), Some(0x55ff_ba5c_da08), Some(225)));
        assert_eq!(full.tlb.answer(false), super::super::Answer::Hit, "the cache column is not the TLB's");
        let short = one(&format!("7f56ff78bcb8  68100142 {columns}"));
        assert_eq!((short.pid, short.address, short.weight), (None, Some(0x7f56_ff78_bcb8), None));
        let no_time =
            one(&format!("ls 214145 cpu/mem-loads/pp: 7ffe7a3307d8 68100142 {columns}|AFF N/A 7 7f56"));
        assert_eq!((no_time.pid, no_time.period, no_time.weight), (Some(214_145), None, Some(7)));
        let no_address = one(&format!("ls 214145 cpu/mem-loads/pp: 68100142 {columns}"));
        assert_eq!(no_address.address, None);
    }

    #[test]
    fn losses_are_added_and_texts_without_the_column_are_refused() {
        let line = "ls 2 e: 10 6 |OP LOAD|LVL L1 hit|SNP None|TLB L2 miss|LCK No\n";
        let text = format!(
            "ls 2 PERF_RECORD_LOST lost 12\n\n# c\n{line}    ffff do_it ([k])\nls PERF_RECORD_LOST_SAMPLES lost 3\n"
        );
        let found = script(text.as_bytes()).unwrap();
        assert_eq!((found.samples.len(), found.lost, found.other), (1, 15, 1));
        let check = |text: &str, message: &str| {
            let error = script(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check("ls 2 page-faults: 7f56ff78bcb8\n", "no line with a data source");
        check("ls e: 10 6 |OP LOAD|TLB L9 hit|\n", ":1: `L9 hit` is no TLB column");
        check("ls e: xyz |OP LOAD|TLB L2 hit|\n", "no data_src");
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
        use super::super::Answer::{Hit, Walked};
        let found = script(PUBLISHED.as_bytes()).unwrap();
        let answers = [Walked, Hit, Walked, Walked, Walked, Hit, Walked];
        let spe = [Walked, Hit, Walked, Hit, Hit, Hit, Walked];
        assert_eq!(found.samples.len(), answers.len());
        for (place, line) in PUBLISHED.lines().enumerate() {
            let bits = line.split(" |OP").next().unwrap().split_whitespace().last().unwrap();
            let of_bits = DataSource::of(u64::from_str_radix(bits, 16).unwrap());
            let of_words = found.samples[place].tlb;
            for of in [of_bits, of_words] {
                assert_eq!((of.answer(false), of.answer(true)), (answers[place], spe[place]), "{line}");
            }
            assert_eq!(found.samples[place].address, None, "{line}");
        }
        assert_eq!((found.samples[3].event.as_str(), found.samples[3].pid), ("l1d-miss", Some(3603)));
    }
}
