//! What a trial says: the last of it is kept, numbers are found in it, and it is never waited for.

use std::io::{ErrorKind, Read};

use crate::recipe::Metric;

/// Bytes of standard output that are kept: the result line of a built-in fits whatever it lists.
const OUT_MOST: usize = 1 << 20;
/// Bytes of standard error that are kept.
const ERR_MOST: usize = 64 << 10;
/// Bytes of a line in which a number is looked for.
const LINE_MOST: usize = 64 << 10;
/// Pieces that are read at a time.
const PIECES: u32 = 64;
/// Bytes that a report shows.
const SHOWN_MOST: usize = 2 << 10;
/// Lines that a report shows.
const SHOWN_LINES: usize = 12;

/// A number, or what stands in its place; none where no line is like it.
pub(crate) type Found = Option<Result<f64, String>>;

/// Who looks at each line, if anybody does.
type Each<'e> = Option<&'e mut dyn FnMut(&[u8])>;

/// One stream, and what was found in it.
#[derive(Debug)]
pub(super) struct Stream {
    kept: Vec<u8>,
    most: usize,
    line: Vec<u8>,
    /// The end of what it says was reached.
    pub is_over: bool,
}

/// Both streams of a trial.
#[derive(Debug)]
pub(super) struct Output {
    pub out: Stream,
    pub err: Stream,
    metrics: Vec<(Metric, Found)>,
}

impl Stream {
    fn new(most: usize) -> Stream {
        Stream { kept: Vec::new(), most, line: Vec::new(), is_over: false }
    }

    /// Takes what can be read without waiting, and hands each whole line to `each`, if there is one.
    fn take(&mut self, from: &mut impl Read, each: &mut Each<'_>) {
        let mut piece = [0; 16 << 10];
        // Whoever writes without end must not keep us from looking at the clock.
        for _ in 0..PIECES {
            if self.is_over {
                break;
            }
            let count = match from.read(&mut piece) {
                Ok(0) => 0,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => 0,
            };
            self.is_over = count == 0;
            self.add(&piece[..count], each);
        }
        if self.is_over {
            self.end(each);
        }
    }

    fn add(&mut self, piece: &[u8], each: &mut Each<'_>) {
        self.kept.extend_from_slice(piece);
        if self.kept.len() > 2 * self.most {
            self.kept.drain(..self.kept.len() - self.most);
        }
        let Some(each) = each else { return };
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE_MOST.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                each(&self.line);
                self.line.clear();
            }
        }
    }

    /// A last line without its end is a line too.
    fn end(&mut self, each: &mut Each<'_>) {
        if let Some(each) = each
            && !self.line.is_empty()
        {
            each(&self.line);
            self.line.clear();
        }
    }

    /// The last lines, for a person.
    fn last(&self) -> String {
        let from = self.kept.len().saturating_sub(SHOWN_MOST);
        let text = String::from_utf8_lossy(&self.kept[from..]);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }
}

impl Output {
    /// Looks for these numbers.
    pub fn new(metrics: Vec<Metric>) -> Output {
        let metrics = metrics.into_iter().map(|metric| (metric, None)).collect();
        Output { out: Stream::new(OUT_MOST), err: Stream::new(ERR_MOST), metrics }
    }

    /// Takes what can be read.
    pub fn take(&mut self, out: &mut impl Read, err: &mut impl Read) {
        let is_looked_for = !self.metrics.is_empty();
        let metrics = &mut self.metrics;
        let mut look = |line: &[u8]| {
            let line = String::from_utf8_lossy(line);
            for (metric, found) in metrics.iter_mut() {
                // The last one counts: a program that tells its progress ends with its result.
                *found = find(metric, line.trim_end()).or(found.take());
            }
        };
        // Nobody pays for lines that nobody looks at: it would be counted against the trial's machine.
        let mut look: Each<'_> = is_looked_for.then_some(&mut look);
        self.out.take(out, &mut look);
        self.err.take(err, &mut look);
    }

    /// What was found of each number, in the order in which they were given.
    pub fn found(&self) -> Vec<Found> {
        self.metrics.iter().map(|(_, found)| found.clone()).collect()
    }

    /// The last line of standard output.
    pub fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.out.kept);
        text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }

    /// The last of both streams.
    pub fn last(&self) -> String {
        let texts = [self.out.last(), self.err.last()];
        let said: Vec<String> = texts.into_iter().filter(|text| !text.trim().is_empty()).collect();
        said.join("\n")
    }

    /// Whether standard error says so.
    pub fn complained(&self, start: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.err.kept);
        text.lines().rev().find_map(|line| line.strip_prefix(start).map(str::to_owned))
    }
}

/// The number in a line between the two texts of a metric; an error where something else stands there.
pub(crate) fn find(metric: &Metric, line: &str) -> Found {
    let mut rest = line;
    let mut wrong = None;
    loop {
        let Some(at) = rest.find(&metric.before) else { return wrong };
        let from = &rest[at + metric.before.len()..];
        let word = from.trim_start();
        let end = match metric.behind.as_str() {
            "" => word.find(char::is_whitespace).unwrap_or(word.len()),
            behind => match word.find(behind) {
                Some(end) => end,
                None => return wrong,
            },
        };
        let text = word[..end].trim().trim_end_matches([',', ';', ')', '.']).replace(['_', ','], "");
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => return Some(Ok(number)),
            _ => wrong = Some(Err(word[..end].trim().chars().take(60).collect())),
        }
        // An empty text before the number stands at every place: one look is enough.
        if metric.before.is_empty() {
            return wrong;
        }
        rest = from;
    }
}

#[cfg(test)]
mod tests {
    use pagelab_model::experiment::Better;

    use super::*;

    fn metric(before: &str, behind: &str) -> Metric {
        let (before, behind) = (before.to_owned(), behind.to_owned());
        Metric { before, behind, unit: "s".to_owned(), better: Better::Lower }
    }

    #[test]
    fn numbers_are_found_between_two_texts() {
        let cases: [(&str, &str, &str, Found); 10] = [
            ("tps = ", " (", "tps = 1234.5 (without)", Some(Ok(1234.5))),
            ("tps = ", "", "tps = 12e3", Some(Ok(12000.0))),
            ("took ", " s", "it took   3 s", Some(Ok(3.0))),
            ("took ", " s", "it took nan s", Some(Err("nan".to_owned()))),
            ("took ", " s", "it took long s", Some(Err("long".to_owned()))),
            ("took ", " s", "took a s, took 4 s", Some(Ok(4.0))),
            ("took ", " s", "took 4", None),
            ("rate: ", "", "rate: 1,234,567, as ever", Some(Ok(1_234_567.0))),
            ("", " MB/s", "17.25 MB/s", Some(Ok(17.25))),
            ("x", "", "", None),
        ];
        for (before, behind, line, found) in cases {
            assert_eq!(find(&metric(before, behind), line), found, "{line}");
        }
    }

    #[test]
    fn the_last_number_counts_and_the_tail_is_kept() {
        let mut output = Output::new(vec![metric("n=", "")]);
        let mut text = String::new();
        for n in 0..200_000 {
            text.push_str(&format!("n={n}\n"));
        }
        text.push_str("n=the end");
        let (mut out, mut err) = (text.as_bytes(), "oh\nno".as_bytes());
        while !output.out.is_over {
            output.take(&mut out, &mut err);
        }
        assert_eq!(output.found(), [Some(Err("the".to_owned()))], "a last line needs no end");
        assert_eq!(output.last_line().as_deref(), Some("n=the end"));
        assert!(output.out.kept.len() <= 2 * OUT_MOST);
        let last = output.last();
        assert!(last.ends_with("n=199999\nn=the end\noh\nno") && last.len() <= 3 * SHOWN_MOST, "{last}");
        assert_eq!(output.complained("n").as_deref(), Some("o"));
    }

    #[test]
    fn a_line_without_an_end_does_not_grow_for_ever() {
        let mut output = Output::new(vec![metric("n=", "")]);
        let long = vec![b'x'; 3 << 20];
        let (mut out, mut err) = (&long[..], &long[..]);
        while !output.out.is_over {
            output.take(&mut out, &mut err);
        }
        assert!(output.out.kept.len() <= 2 * OUT_MOST && output.err.kept.len() <= 2 * ERR_MOST);
    }
}
