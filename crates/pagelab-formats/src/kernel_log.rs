//! Kernel log, as `/dev/kmsg` records or text of `dmesg`: past allocation failures and OOM kills.
//!
//! ```text
//! 6,339,5140900,-;systemd[1]: Started …          a record: level, sequence, microseconds, flags; text
//!  SUBSYSTEM=acpi                                 a continuation line of the record above
//! [    5.140900] systemd[1]: Started …           text of dmesg, with or without <6> before it
//! ```
//! The log is free text: lines that belong to no report are skipped.

use std::ops::Range;

use pagelab_model::Bytes;
use pagelab_model::snapshot::{AllocFailure, AllocFailures, OomKill, OomScope};

use crate::ParseError;
use crate::text::{find_bytes, lines, one_line_error, parse_number, split_number, split_once, to_printable};

const FORMAT: &str = "kernel log";
/// Reports kept; the kernel limits their rate, and its ring holds some thousands of lines.
const REPORTS_MAX: usize = 10_000;
/// Longest text kept of one report.
const DETAIL_MAX: usize = 400;
/// Part of a message that is searched for a report; the kernel's messages are at most 1 KiB long.
const MESSAGE_MAX: usize = 2048;
/// Longest name of a process kept; the kernel's are at most 15 bytes, a work queue's 64.
const NAME_MAX: usize = 80;

/// One message of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Number of the record; only in `/dev/kmsg`.
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
        let problem =
            format!("expected `level,sequence,microseconds,flags;text`, found `{}`", to_printable(line));
        one_line_error(FORMAT, record, problem)
    })
}

/// Past allocation failures in a whole log: concatenated `/dev/kmsg` records or text of `dmesg`.
pub fn parse(log: &[u8]) -> Result<AllocFailures, ParseError> {
    if log.contains(&0) {
        return Err(ParseError::for_input(FORMAT, "contains NUL bytes; expected text"));
    }
    let mut messages = LogScanner::default();
    for (_, line) in lines(log) {
        if line.first() != Some(&b' ') && !line.is_empty() {
            messages.add_message(&kmsg_line(line).unwrap_or_else(|| dmesg_line(line)));
        }
    }
    Ok(messages.failures)
}

/// The messages of a log, taken one by one in their order.
#[derive(Debug, Default)]
pub struct LogScanner {
    has_started: bool,
    oom: OomTracker,
    /// Events found so far.
    pub failures: AllocFailures,
}

impl LogScanner {
    /// Takes the next message.
    pub fn add_message(&mut self, message: &Message<'_>) {
        if !self.has_started {
            self.has_started = true;
            self.failures.log_overwritten = is_late_start(message);
        }
        let AllocFailures { reports, kills, .. } = &mut self.failures;
        let known = kills.len();
        if known < REPORTS_MAX {
            self.oom.add_message(message, kills);
        }
        // A kill line that contains the words of a report in a process name is one event.
        if kills.len() == known && reports.len() < REPORTS_MAX {
            reports.extend(parse_failure_report(message));
        }
    }
}

/// Whether a log that begins with `message` has lost its beginning: the kernel's first record has the
/// number 0, and its first messages carry the time 0.
pub fn is_late_start(message: &Message<'_>) -> bool {
    match (message.sequence, message.at_us) {
        (Some(sequence), _) => sequence > 0,
        (None, Some(at_us)) => at_us > 0,
        (None, None) => false,
    }
}

fn kmsg_line(line: &[u8]) -> Option<Message<'_>> {
    let (head, text) = split_once(line, b';')?;
    let mut fields = head.split(|&b| b == b',');
    fields.next().and_then(parse_number)?;
    let sequence = fields.next().and_then(parse_number)?;
    let at_us = fields.next().and_then(parse_number)?;
    fields.next()?;
    Some(Message { sequence: Some(sequence), at_us: Some(at_us), text })
}

/// A line of `dmesg`: `<level>` and `[seconds.micros]` are removed if present.
fn dmesg_line(line: &[u8]) -> Message<'_> {
    let mut text = line;
    if let Some(rest) = text.strip_prefix(b"<")
        && let Some(end) = rest.iter().take(5).position(|&b| b == b'>')
        && parse_number(&rest[..end]).is_some()
    {
        text = &rest[end + 1..];
    }
    let stamp = text.strip_prefix(b"[").and_then(|rest| {
        let end = rest.iter().take(24).position(|&b| b == b']')?;
        Some((parse_seconds_us(rest[..end].trim_ascii())?, &rest[end + 1..]))
    });
    let (at_us, mut text) = match stamp {
        Some((at_us, rest)) => (Some(at_us), rest.trim_ascii_start()),
        None => (None, text),
    };
    // CONFIG_PRINTK_CALLER puts `[    T1]` or `[    C0]` behind the time.
    if at_us.is_some()
        && let Some(rest) = text.strip_prefix(b"[")
        && let Some(end) = rest.iter().take(16).position(|&b| b == b']')
        && let Some((b'T' | b'C', id)) = rest[..end].trim_ascii().split_first()
        && parse_number(id).is_some()
    {
        text = rest[end + 1..].trim_ascii_start();
    }
    Message { sequence: None, at_us, text }
}

/// `12.345678` seconds as microseconds.
fn parse_seconds_us(word: &[u8]) -> Option<u64> {
    let (whole, fraction) = split_once(word, b'.')?;
    (fraction.len() == 6).then_some(())?;
    parse_number(whole)?.checked_mul(1_000_000)?.checked_add(parse_number(fraction)?)
}

/// The report of a failed allocation that begins with a message, if one does: mm/page_alloc.c `warn_alloc`
/// (text of 2.6 and later). The header of an OOM report is not one of them: the machine or a control group
/// ran out of memory, and [`OomTracker`] distinguishes them.
pub fn parse_failure_report(message: &Message<'_>) -> Option<AllocFailure> {
    const OPENERS: [&str; 2] = [": page allocation failure", ": page allocation stalls"];
    let text = &message.text[..message.text.len().min(MESSAGE_MAX)];
    let at = OPENERS.iter().find_map(|opener| find_bytes(text, opener.as_bytes()))?;
    let process = &text[..at];
    let detail = text[at..].trim_ascii_start();
    let detail = detail.strip_prefix(b":").unwrap_or(detail).trim_ascii_start();
    let order = ["order:", "order="].iter().find_map(|key| {
        let (order, _) = split_number(&detail[find_bytes(detail, key.as_bytes())? + key.len()..])?;
        u32::try_from(order).ok()
    });
    Some(AllocFailure {
        at_us: message.at_us,
        process: truncate_text(process, NAME_MAX),
        order,
        detail: truncate_text(detail, DETAIL_MAX),
    })
}

fn truncate_text(text: &[u8], bytes_max: usize) -> String {
    let cut = &text[..text.len().min(bytes_max)];
    let mut kept: String = String::from_utf8_lossy(cut).chars().filter(|c| !c.is_control()).collect();
    if cut.len() < text.len() {
        kept.push('…');
    }
    kept
}

// OOM kills in the kernel log (mm/oom_kill.c, mm/memcontrol.c), and their cause.
//
// ```text
// memory: usage 65536kB, limit 65536kB, failcnt 42
// oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,…
// Memory cgroup out of memory: Killed process 4711 (java) total-vm:…       5.1 and later
// Task in /a killed as a result of limit of /a                             before 5.0
// Memory cgroup out of memory: Kill process 4711 (java) score 9 or sacrifice child
// Killed process 4712 (worker) total-vm:…
// Out of memory: Killed process 4711 (java) total-vm:…                     the machine
// ```
// Each kill line is one kill, of any process: the lines before it are rate limited, the kill line is not.

/// Longest path of a control group kept; that of a file is at most 4095 bytes.
const CGROUP_PATH_MAX: usize = 400;

/// Start of a kill line, and the domain that ran out of memory.
const KILL_PREFIXES: [(&str, OomScope); 4] = [
    ("Memory cgroup out of memory", OomScope::ControlGroup),
    ("memory cgroup out of memory", OomScope::ControlGroup),
    ("Out of memory", OomScope::Machine),
    ("out of memory", OomScope::Machine),
];

/// Form of the victim in a kill line.
const VERBS: [&str; 3] = ["Killed process ", "Kill process ", "kill process "];
/// Text after the name of the victim; a name may contain brackets.
const NAME_ENDS: [&str; 4] = [") total-vm", ") score", "), UID", ") vsz"];

/// Whether a message is a kill, or names the domain that ran out of memory: those that [`OomTracker`] reads.
pub fn is_oom_message(text: &[u8]) -> bool {
    let is_kill = || VERBS.iter().any(|verb| find_bytes(text, verb.as_bytes()).is_some());
    let has_head = || KILL_PREFIXES.iter().any(|(head, _)| text.starts_with(head.as_bytes()));
    [&b"memory: usage "[..], b"Task in ", b"oom-kill:", b"Killed process "]
        .iter()
        .any(|w| text.starts_with(w))
        || has_head() && is_kill()
}

/// Position of the victim's name in a kill line, without its brackets.
pub fn find_victim_name(text: &[u8]) -> Option<Range<usize>> {
    let (at, verb) = VERBS.iter().find_map(|verb| Some((find_bytes(text, verb.as_bytes())?, verb)))?;
    let begin = at + verb.len();
    let end = find_name_end(text.get(begin..)?).map(|end| begin + end)?;
    let open = begin + text.get(begin..end)?.iter().position(|&b| b == b'(')?;
    Some(open + 1..end)
}

/// End of a name that begins in `text`.
fn find_name_end(text: &[u8]) -> Option<usize> {
    let ends = NAME_ENDS.iter().filter_map(|end| find_bytes(text, end.as_bytes()));
    ends.min().or_else(|| text.iter().rposition(|&b| b == b')'))
}

/// Lines before the next kill.
#[derive(Debug, Default)]
pub struct OomTracker {
    cgroup_path: Option<String>,
    limit: Option<Bytes>,
    /// Whether the next bare `Killed process` line names the victim of the last kill.
    is_victim_due: bool,
}

impl OomTracker {
    /// Takes the next message; a kill is added to `kills`.
    pub fn add_message(&mut self, message: &Message<'_>, kills: &mut Vec<OomKill>) {
        let text = message.text;
        if find_bytes(text, b" invoked oom-killer").is_some() {
            *self = OomTracker::default();
        } else if let Some(path) = parse_limited_group(text) {
            self.cgroup_path = Some(truncate_text(path, CGROUP_PATH_MAX));
        } else if let Some(limit) = parse_limit(text) {
            self.limit = Some(limit);
        } else if let Some(kill) = self.parse_kill(message) {
            kills.push(kill);
        } else if text.starts_with(b"Killed process ")
            && std::mem::take(&mut self.is_victim_due)
            && let Some((pid, process)) = parse_victim(text, &["Killed process "])
            && let Some(kill) = kills.last_mut()
        {
            (kill.pid, kill.process) = (pid, process);
        }
    }

    fn parse_kill(&mut self, message: &Message<'_>) -> Option<OomKill> {
        let (head, scope) =
            KILL_PREFIXES.iter().find(|(head, _)| message.text.starts_with(head.as_bytes()))?;
        let rest = message.text.get(head.len()..)?;
        let rest = rest.get(rest.iter().take(64).position(|&b| b == b':')? + 1..)?.trim_ascii_start();
        let (pid, process) = parse_victim(rest, &VERBS)?;
        // Before 5.1 the victim, which may be a child, is named on a separate line.
        self.is_victim_due = !rest.starts_with(b"Killed");
        let is_group = *scope == OomScope::ControlGroup;
        let (group, limit) = (self.cgroup_path.take(), self.limit.take());
        let (group, limit) = (group.filter(|_| is_group), limit.filter(|_| is_group));
        Some(OomKill { at_us: message.at_us, scope: *scope, pid, process, group, limit, limit_file: None })
    }
}

/// `Killed process 4711 (java)`, with the pid and the name.
fn parse_victim(text: &[u8], verbs: &[&str]) -> Option<(Option<u64>, String)> {
    let rest = verbs.iter().find_map(|verb| text.strip_prefix(verb.as_bytes()))?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let name = rest.get(digits..)?;
    let name = name.get(..find_name_end(name).unwrap_or(name.len())).unwrap_or_default();
    // RHEL 6 has `, UID 0, ` between the two.
    let name = name.iter().position(|&b| b == b'(').and_then(|open| name.get(open + 1..)).unwrap_or(name);
    Some((parse_number(&rest[..digits]), truncate_text(name.trim_ascii_start(), NAME_MAX)))
}

/// The group whose limit was reached: `oom_memcg=` of 5.0 and later, words before it.
fn parse_limited_group(text: &[u8]) -> Option<&[u8]> {
    if text.starts_with(b"oom-kill:") {
        let from = find_bytes(text, b",oom_memcg=")? + b",oom_memcg=".len();
        let rest = text.get(from..)?;
        return rest.get(..find_bytes(rest, b",task_memcg=").unwrap_or(rest.len()));
    }
    let words = b" killed as a result of limit of ";
    let at = text.starts_with(b"Task in ").then(|| find_bytes(text, words)).flatten()?;
    text.get(at + words.len()..).map(|path| path.trim_ascii_end())
}

/// `memory: usage 65536kB, limit 65536kB, failcnt 42`; a limit above any machine's memory counts as no limit.
fn parse_limit(text: &[u8]) -> Option<Bytes> {
    const NO_LIMIT_KIB: u64 = 1 << 52;
    let rest = text.strip_prefix(b"memory: usage ")?;
    let from = find_bytes(rest, b"limit ")? + b"limit ".len();
    let (kib, _) = split_number(&rest[from..]).filter(|(kib, _)| *kib < NO_LIMIT_KIB)?;
    Some(Bytes(kib.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use super::{parse, *};

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
            parse(b"a\0b").unwrap_err().message_in_file("f"),
            "f: contains NUL bytes; expected text (read as kernel log)"
        );
        assert_eq!(
            parse_record(b"rubbish\n X=1\n").unwrap_err().message_in_file("f"),
            "f:1: expected `level,sequence,microseconds,flags;text`, found `rubbish` (read as kernel log)"
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

    /// Scope, pid, process, group, limit in KiB.
    type Expected<'a> = (OomScope, Option<u64>, &'a str, Option<&'a str>, Option<u64>);

    fn check(log: &str, expected: &[Expected<'_>]) {
        let found = parse(log.as_bytes()).unwrap();
        assert_eq!(found.reports, [], "{log}");
        let kills: Vec<_> = found
            .kills
            .iter()
            .map(|kill| {
                let limit_kib = kill.limit.map(|limit| limit.0 / 1024);
                (kill.scope, kill.pid, kill.process.as_str(), kill.group.as_deref(), limit_kib)
            })
            .collect();
        assert_eq!(kills, expected, "{log}");
    }

    #[test]
    fn kills_of_a_control_group_and_of_the_machine_are_told_apart() {
        use OomScope::{ControlGroup, Machine};
        check(
            "4,1,10,-;java invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n\
         6,2,11,-;memory: usage 65536kB, limit 65536kB, failcnt 42\n\
         6,3,11,-;swap: usage 0kB, limit 9007199254740988kB, failcnt 0\n\
         6,4,12,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
         oom_memcg=/a b/c,task_memcg=/a b/c/d,task=java,pid=4711,uid=0\n\
         3,5,13,-;Memory cgroup out of memory: Killed process 4711 (ja) va) total-vm:75kB, anon-rss:1kB\n\
         3,6,14,-;Memory cgroup out of memory: Killed process 4713 (second) total-vm:75kB\n\
         3,7,15,-;Out of memory: Killed process 9 (x) total-vm:1kB, anon-rss:1kB\n",
            &[
                (ControlGroup, Some(4711), "ja) va", Some("/a b/c"), Some(65536)),
                (ControlGroup, Some(4713), "second", None, None),
                (Machine, Some(9), "x", None, None),
            ],
        );
        // Before 5.1: the chosen process, and its child that is killed instead.
        check(
            "[    2.500000] insmod invoked oom-killer: gfp_mask=0x201da, order=0, oom_score_adj=0\n\
         [    2.500001] Task in /a/b killed as a result of limit of /a\n\
         [    2.500002] memory: usage 2048kB, limit 2048kB, failcnt 7\n\
         [    2.500003] Memory cgroup out of memory: Kill process 10 (one) score 966 or sacrifice child\n\
         [    2.500004] Killed process 11 (two) total-vm:100kB, anon-rss:1kB, file-rss:1kB\n\
         [    3.500003] Out of memory: Kill process 12 (three) score 9 or sacrifice child\n\
         [    3.500004] Killed process 12 (three) total-vm:100kB\n\
         [    4.000000] Killed process 13 (other's) total-vm:100kB\n",
            &[
                (ControlGroup, Some(11), "two", Some("/a"), Some(2048)),
                (Machine, Some(12), "three", None, None),
            ],
        );
        check(
            "Out of memory: kill process 46 (old) score 9 or a child\n\
         Killed process 47, UID 0, (older) total-vm:7kB, anon-rss:1kB\n",
            &[(Machine, Some(47), "older", None, None)],
        );
        check(
            "Out of memory (oom_kill_allocating_task): Killed process 7 (a) vsz\n",
            &[(Machine, Some(7), "a", None, None)],
        );
    }

    #[test]
    fn a_kill_whose_victim_is_named_like_a_report_is_a_kill_alone() {
        check(
            "Memory cgroup out of memory: Killed process 4 (a: page allocation failure: order:7) total-vm:1kB\n",
            &[(OomScope::ControlGroup, Some(4), "a: page allocation failure: order:7", None, None)],
        );
    }

    #[test]
    fn prose_kills_nobody_and_hostile_lengths_are_bounded() {
        check("Out of memory and no killable processes...\nOut of memory\noom-kill:x\nTask in \n", &[]);
        check("Memory cgroup out of memory: Killed process\nmemory: usage 1kB, limit kB\n", &[]);
        let long = format!("Out of memory: Killed process 99999999999999999999 ({})\n", "a".repeat(1800));
        let kill = parse(long.as_bytes()).unwrap().kills.remove(0);
        assert_eq!((kill.pid, kill.process.chars().count()), (None, NAME_MAX + 1));
    }
}
