//! The kernel's log, as `/dev/kmsg` records or as text of `dmesg`: past allocation failures and kills for
//! lack of memory.
//!
//! ```text
//! 6,339,5140900,-;systemd[1]: Started …          a record: level, sequence, microseconds, flags; text
//!  SUBSYSTEM=acpi                                 a continuation line of the record above
//! [    5.140900] systemd[1]: Started …           text of dmesg, with or without <6> before it
//! ```
//! The log is prose of many hands: a line that is no report is passed over, whatever it holds.

pub mod oom;

use pagelab_model::snapshot::{AllocFailure, AllocFailures};

use crate::ParseError;
use crate::text::{lines, number, one_line_error, show};

const FORMAT: &str = "kernel log";
/// Reports kept; the kernel limits their rate, and its ring holds some thousands of lines.
const REPORTS_MAX: usize = 10_000;
/// Longest text kept of one report.
const DETAIL_MAX: usize = 400;
/// Beginning of a message in which a report is looked for; the kernel's messages are at most 1 KiB long.
const MESSAGE_MAX: usize = 2048;
/// Longest name of a process kept; the kernel's are at most 15 bytes, a work queue's 64.
const NAME_MAX: usize = 80;

/// One message of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Number of the record; only `/dev/kmsg` tells.
    pub sequence: Option<u64>,
    /// Microseconds since boot; `None` if the log was written without times.
    pub at_us: Option<u64>,
    /// The text.
    pub text: &'a [u8],
}

/// One record as a read of `/dev/kmsg` returns it; its continuation lines are left out.
pub fn parse_record(record: &[u8]) -> Result<Message<'_>, ParseError> {
    let line = record.split(|&b| b == b'\n').next().unwrap_or_default();
    kmsg_line(line).ok_or_else(|| {
        let problem = format!("`{}` is not `level,sequence,microseconds,flags;text`", show(line));
        one_line_error(FORMAT, record, problem)
    })
}

/// Past allocation failures in a whole log: concatenated `/dev/kmsg` records or text of `dmesg`.
pub fn parse(log: &[u8]) -> Result<AllocFailures, ParseError> {
    if log.contains(&0) {
        return Err(ParseError::whole(FORMAT, "holds zero bytes, so it is no text"));
    }
    let mut messages = Messages::default();
    for (_, line) in lines(log) {
        if line.first() != Some(&b' ') && !line.is_empty() {
            messages.take(&kmsg_line(line).unwrap_or_else(|| dmesg_line(line)));
        }
    }
    Ok(messages.failures)
}

/// The messages of a log, taken one by one in their order.
#[derive(Debug, Default)]
pub struct Messages {
    has_begun: bool,
    oom: oom::Oom,
    /// What they told so far.
    pub failures: AllocFailures,
}

impl Messages {
    /// Takes the next message.
    pub fn take(&mut self, message: &Message<'_>) {
        if !self.has_begun {
            self.has_begun = true;
            self.failures.log_overwritten = begins_late(message);
        }
        let AllocFailures { reports, kills, .. } = &mut self.failures;
        let known = kills.len();
        if known < REPORTS_MAX {
            self.oom.take(message, kills);
        }
        // A kill line that holds the words of a report, in the name of a process, tells one thing.
        if kills.len() == known && reports.len() < REPORTS_MAX {
            reports.extend(report(message));
        }
    }
}

/// Whether a log that begins with `message` has lost its beginning: the kernel's first record has the
/// number 0, and its first messages carry the time 0.
pub fn begins_late(message: &Message<'_>) -> bool {
    match (message.sequence, message.at_us) {
        (Some(sequence), _) => sequence > 0,
        (None, Some(at_us)) => at_us > 0,
        (None, None) => false,
    }
}

fn kmsg_line(line: &[u8]) -> Option<Message<'_>> {
    let semicolon = line.iter().position(|&b| b == b';')?;
    let mut fields = line[..semicolon].split(|&b| b == b',');
    fields.next().and_then(number)?;
    let sequence = fields.next().and_then(number)?;
    let at_us = fields.next().and_then(number)?;
    fields.next()?;
    Some(Message { sequence: Some(sequence), at_us: Some(at_us), text: &line[semicolon + 1..] })
}

/// A line of `dmesg`: `<level>` and `[seconds.micros]` are taken off where they stand.
fn dmesg_line(line: &[u8]) -> Message<'_> {
    let mut text = line;
    if let Some(rest) = text.strip_prefix(b"<")
        && let Some(end) = rest.iter().take(5).position(|&b| b == b'>')
        && number(&rest[..end]).is_some()
    {
        text = &rest[end + 1..];
    }
    let stamp = text.strip_prefix(b"[").and_then(|rest| {
        let end = rest.iter().take(24).position(|&b| b == b']')?;
        Some((seconds(rest[..end].trim_ascii())?, &rest[end + 1..]))
    });
    let (at_us, mut text) = match stamp {
        Some((at_us, rest)) => (Some(at_us), rest.trim_ascii_start()),
        None => (None, text),
    };
    // CONFIG_PRINTK_CALLER puts `[    T1]` or `[    C0]` behind the time.
    if at_us.is_some()
        && let Some(rest) = text.strip_prefix(b"[")
        && let Some(end) = rest.iter().take(16).position(|&b| b == b']')
        && matches!(rest[..end].trim_ascii().split_first(), Some((b'T' | b'C', id)) if number(id).is_some())
    {
        text = rest[end + 1..].trim_ascii_start();
    }
    Message { sequence: None, at_us, text }
}

/// `12.345678` seconds as microseconds.
fn seconds(word: &[u8]) -> Option<u64> {
    let dot = word.iter().position(|&b| b == b'.')?;
    let (whole, fraction) = (&word[..dot], &word[dot + 1..]);
    (fraction.len() == 6).then_some(())?;
    number(whole)?.checked_mul(1_000_000)?.checked_add(number(fraction)?)
}

/// The report of a failed allocation that a message opens, if it opens one: mm/page_alloc.c `warn_alloc`
/// (text of 2.6 and later). The head of an out-of-memory report is none: the machine or a control group ran
/// out, and [`oom`] tells which.
pub fn report(message: &Message<'_>) -> Option<AllocFailure> {
    const OPENERS: [&str; 2] = [": page allocation failure", ": page allocation stalls"];
    let text = &message.text[..message.text.len().min(MESSAGE_MAX)];
    let at = OPENERS.iter().find_map(|opener| find(text, opener.as_bytes()))?;
    let process = &text[..at];
    let detail = text[at..].trim_ascii_start();
    let detail = detail.strip_prefix(b":").unwrap_or(detail).trim_ascii_start();
    let order = ["order:", "order="].iter().find_map(|key| {
        let from = find(detail, key.as_bytes())? + key.len();
        let digits = detail[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        u32::try_from(number(&detail[from..from + digits])?).ok()
    });
    Some(AllocFailure {
        at_us: message.at_us,
        process: bounded(process, NAME_MAX),
        order,
        detail: bounded(detail, DETAIL_MAX),
    })
}

fn bounded(text: &[u8], most: usize) -> String {
    let cut = &text[..text.len().min(most)];
    let mut kept: String = String::from_utf8_lossy(cut).chars().filter(|c| !c.is_control()).collect();
    if cut.len() < text.len() {
        kept.push('…');
    }
    kept
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(log: &str) -> AllocFailure {
        let mut reports = parse(log.as_bytes()).unwrap().reports;
        assert_eq!(reports.len(), 1);
        reports.remove(0)
    }

    #[test]
    fn reports_of_old_and_new_kernels() {
        let cases = [
            (
                "4,900,5140900,-;kworker/0:1: page allocation failure: order:5, mode:0x40dc0(GFP_KERNEL), \
                 nodemask=(null),cpuset=/,mems_allowed=0\n SUBSYSTEM=x: page allocation failure: order:9\n",
                ("kworker/0:1", Some(5), Some(5_140_900)),
            ),
            (
                "<4>[   12.000345] swapper: page allocation failure. order:1, mode:0x20\n",
                ("swapper", Some(1), Some(12_000_345)),
            ),
            (
                "[    2.500000] [   T77] a b: page allocation failure: order:0, mode:0x1\n",
                ("a b", Some(0), Some(2_500_000)),
            ),
            ("java: page allocation stalls for 10012ms, order:4, mode:0x1\n", ("java", Some(4), None)),
            ("x: page allocation failure: mode:0x1\n", ("x", None, None)),
            ("x: page allocation failure: order:99999999999, mode:0x1\n", ("x", None, None)),
        ];
        for (log, (process, order, at_us)) in cases {
            let report = only(log);
            assert_eq!(
                (report.process.as_str(), report.order, report.at_us),
                (process, order, at_us),
                "{log}"
            );
        }
        let report = only("4,1,1,-;x: page allocation failure: order:2, mode:0x1(GFP_X)\n");
        assert_eq!(report.detail, "page allocation failure: order:2, mode:0x1(GFP_X)");
    }

    #[test]
    fn whether_the_ring_was_overwritten() {
        for (log, overwritten) in [
            ("6,0,0,-;Linux version 6\n", false),
            ("6,17,0,-;later\n", true),
            ("[    0.000000] Linux version 6\n", false),
            ("[    9.000000] later\n", true),
            ("without times\n", false),
            ("", false),
        ] {
            assert_eq!(parse(log.as_bytes()).unwrap().log_overwritten, overwritten, "{log}");
        }
    }

    #[test]
    fn prose_is_passed_over_and_binary_is_refused() {
        let prose = "6,1,2,-;page allocation failure of somebody\n[x] y\n<9999999>\n;\n,,,;\n\
                     a invoked oom-killer: gfp_mask=0x201da, order=3, oom_score_adj=0\n";
        let found = parse(prose.as_bytes()).unwrap();
        assert_eq!((found.reports, found.kills), (vec![], vec![]));
        assert_eq!(
            parse(b"a\0b").unwrap_err().in_file("f"),
            "f: holds zero bytes, so it is no text (read as kernel log)"
        );
        assert_eq!(
            parse_record(b"rubbish\n X=1\n").unwrap_err().in_file("f"),
            "f:1: `rubbish` is not `level,sequence,microseconds,flags;text` (read as kernel log)"
        );
        assert_eq!(parse_record(b"6,1,2,-,caller=T1;hi\n X=1\n").unwrap().text, b"hi");
    }

    #[test]
    fn hostile_lengths_are_bounded() {
        let log = format!("{}: page allocation failure: order:1 {}", "a".repeat(200), "b".repeat(1 << 16));
        let report = only(&log);
        assert!(report.process.chars().count() <= NAME_MAX + 1);
        assert!(report.detail.chars().count() <= DETAIL_MAX + 1);
        let late = format!("{}: page allocation failure: order:1", "a".repeat(1 << 16));
        assert!(parse(late.as_bytes()).unwrap().reports.is_empty());
    }
}
