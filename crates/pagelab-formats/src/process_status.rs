//! `/proc/PID/status`, `/proc/PID/statm` and `/proc/PID/stat`: identity and memory of a process.

use pagelab_model::{Bytes, Counters, Pages};

use crate::ParseError;
use crate::text::{filled_lines, one_line_error, parse_number, split_once, to_printable, words};

const FORMAT: &str = "process status";
/// The kernel prints some 15 amounts.
const AMOUNTS_MAX: usize = 256;

/// Fields of the status file that memory tools need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The kernel's name of the process, at most 15 bytes; escapes are left as printed.
    pub name: String,
    /// Every `Key: n kB` line in the kernel's order, in kB. A kernel thread has none.
    pub amounts_kib: Counters,
    /// `THP_enabled` (5.0 and later): false after prctl(PR_SET_THP_DISABLE).
    pub thp_enabled: Option<bool>,
    /// Effective capabilities as a bit set.
    pub effective_capabilities: Option<u64>,
    /// `Seccomp` (3.8 and later): 0 none, 1 strict, 2 a filter.
    pub seccomp: Option<u64>,
    /// `Kthread: 1` (6.9 and later).
    pub is_kernel_thread: Option<bool>,
}

impl ProcessStatus {
    /// The amount called `name`: `VmRSS`, `RssAnon` …
    pub fn amount_bytes(&self, name: &str) -> Option<Bytes> {
        self.amounts_kib.get(name).map(Bytes::from_kib)
    }
}

/// Reads a whole status file.
pub fn parse(text: &[u8]) -> Result<ProcessStatus, ParseError> {
    let mut status = ProcessStatus::default();
    let mut amounts: Vec<(&str, u64)> = Vec::new();
    let mut has_name = false;
    for (at, line) in filled_lines(text) {
        let Some((key, value)) = split_once(line, b':') else {
            let problem = format!("expected `Key: value`, found `{}`", to_printable(line));
            return Err(ParseError::at_line(FORMAT, at, problem));
        };
        let value = value.trim_ascii();
        let fail = || {
            let problem = format!("{} `{}` is not a number", to_printable(key), to_printable(value));
            ParseError::at_line(FORMAT, at, problem)
        };
        match key {
            b"Name" => (status.name, has_name) = (String::from_utf8_lossy(value).into_owned(), true),
            b"THP_enabled" => status.thp_enabled = Some(parse_number(value).ok_or_else(fail)? != 0),
            b"Kthread" => status.is_kernel_thread = Some(parse_number(value).ok_or_else(fail)? != 0),
            b"Seccomp" => status.seccomp = Some(parse_number(value).ok_or_else(fail)?),
            b"CapEff" => {
                let digits = std::str::from_utf8(value).ok();
                let bits = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                status.effective_capabilities = Some(bits.ok_or_else(fail)?);
            }
            _ => {
                if let Some(amount) = value.strip_suffix(b" kB") {
                    let key = std::str::from_utf8(key).map_err(|_| fail())?;
                    let amount = parse_number(amount.trim_ascii()).ok_or_else(fail)?;
                    if amounts.len() == AMOUNTS_MAX {
                        let problem = format!("more than {AMOUNTS_MAX} sizes");
                        return Err(ParseError::at_line(FORMAT, at, problem));
                    }
                    amounts.push((key, amount));
                }
            }
        }
    }
    if !has_name {
        return Err(ParseError::for_input(FORMAT, "no `Name:` line found"));
    }
    status.amounts_kib = amounts.into_iter().collect();
    Ok(status)
}

/// Values of statm, in base pages. All zero for a kernel thread and for a process that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statm {
    /// Address space.
    pub size: Pages,
    /// Resident.
    pub resident: Pages,
    /// Resident and backed by a file or by shared memory.
    pub shared: Pages,
}

/// Reads a statm line: seven numbers, of which the first three still mean something.
pub fn parse_statm(text: &[u8]) -> Result<Statm, ParseError> {
    let mut fields = words(text);
    let mut next = |what: &str| {
        let word = fields.next().unwrap_or_default();
        parse_number(word).map(Pages).ok_or_else(|| {
            one_line_error("statm", text, format!("{what} `{}` is not a number of pages", to_printable(word)))
        })
    };
    let statm = Statm { size: next("size")?, resident: next("resident")?, shared: next("shared")? };
    match words(text).count() {
        7 => Ok(statm),
        count => Err(one_line_error("statm", text, format!("{count} fields; expected 7"))),
    }
}

// `/proc/PID/stat`: identity of a process beyond its number, and whether it has exited (fs/proc/array.c,
// `do_task_stat`; proc_pid_stat(5)).

const STAT_FORMAT: &str = "process stat";

/// The fields that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Field 3: the letter of its state.
    pub state: u8,
    /// Field 4: its parent.
    pub parent: u64,
    /// Field 5: its process group; `None` where it is -1, as of a process that is being reaped.
    pub process_group: Option<u64>,
    /// Field 6: its session.
    pub session: Option<u64>,
    /// Field 10: page faults of all its threads that needed no disk.
    pub minor_faults: u64,
    /// Fields 14 and 15: CPU time of all its threads, in ticks of the clock.
    pub cpu_ticks: u64,
    /// Field 20: its threads.
    pub threads: u64,
    /// Field 22: when it started, in ticks of the clock since boot.
    pub start_ticks: u64,
    /// Field 47: start of its heap (Linux 3.3); `None` if not reported: another user's process, a kernel
    /// thread, an older kernel.
    pub heap_start: Option<u64>,
}

impl ProcessStat {
    /// A process that was killed and not yet waited for still has its line. A leader that ended while a
    /// thread of it is still inside the kernel, perhaps in a write to a setting, has not.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }
}

/// Reads the line. The command in field 2 may hold anything, blanks, line ends and parentheses too: fields
/// count from the last parenthesis.
pub fn parse_stat(text: &[u8]) -> Result<ProcessStat, ParseError> {
    let fail = |problem: String| ParseError::for_input(STAT_FORMAT, problem);
    let end = text.iter().rposition(|&byte| byte == b')');
    let end = end.ok_or_else(|| fail("no command in parentheses".to_owned()))?;
    // The status file of a process has numbers in the same places, behind the state in parentheses.
    if split_once(text, b'(').is_none_or(|(pid, _)| parse_number(pid.trim_ascii()).is_none()) {
        return Err(fail("no PID before the command in parentheses".to_owned()));
    }
    let fields = || words(&text[end + 1..]);
    let field = |at: usize| {
        // Field 3 of the manual page is the first one here.
        let word = fields().nth(at - 3).ok_or_else(|| fail(format!("field {at} is missing")))?;
        parse_number(word)
            .ok_or_else(|| fail(format!("field {at}, `{}`: expected a number", to_printable(word))))
    };
    let state = fields().next().and_then(|word| word.first().copied());
    Ok(ProcessStat {
        state: state.ok_or_else(|| fail("the state is missing".to_owned()))?,
        parent: field(4)?,
        process_group: field(5).ok(),
        session: field(6).ok(),
        minor_faults: field(10)?,
        cpu_ticks: field(14)?.saturating_add(field(15)?),
        threads: field(20)?,
        start_ticks: field(22)?,
        heap_start: field(47).ok().filter(|&start| start > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_memory_tools_need() {
        let text = "Name:\tab c\nUid:\t0\t0\t0\t0\nVmRSS:\t    1640 kB\nRssAnon:\t     112 kB\n\
                HugetlbPages:\t 0 kB\nTHP_enabled:\t0\nCapEff:\t000001fffeffffff\nKthread:\t0\n";
        let status = parse(text.as_bytes()).unwrap();
        assert_eq!(status.name, "ab c");
        assert_eq!(status.amount_bytes("VmRSS"), Some(Bytes::from_kib(1640)));
        assert_eq!(status.amount_bytes("VmSwap"), None);
        assert_eq!((status.thp_enabled, status.is_kernel_thread), (Some(false), Some(false)));
        assert_eq!(status.effective_capabilities, Some(0x1ff_feff_ffff));
        assert_eq!(
            parse_statm(b"765 410 382 5 0 123 0\n").unwrap(),
            Statm { size: Pages(765), resident: Pages(410), shared: Pages(382) }
        );
    }

    #[test]
    fn bad_lines_are_named() {
        let cases = [
            ("", "f: no `Name:` line found (read as process status)"),
            ("Name\n", "f:1: expected `Key: value`, found `Name` (read as process status)"),
            ("Name:\tx\nVmRSS:\tx kB\n", "f:2: VmRSS `x kB` is not a number (read as process status)"),
            ("CapEff:\txyz\n", "f:1: CapEff `xyz` is not a number (read as process status)"),
            ("THP_enabled:\tyes\n", "f:1: THP_enabled `yes` is not a number (read as process status)"),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
        for (text, message) in [
            ("", "f: empty file (read as statm)"),
            ("0 0 4294967295\n", "f:1: 3 fields; expected 7 (read as statm)"),
            ("1 2 x", "f:1: shared `x` is not a number of pages (read as statm)"),
        ] {
            assert_eq!(parse_statm(text.as_bytes()).unwrap_err().message_in_file("f"), message);
        }
    }

    #[test]
    fn fields_count_from_the_end_of_the_command() {
        let tail = "1 2 3 0 -1 4194560 5 0 0 0 30 4 0 0 20 0 THREADS 0 9731 1 1\n";
        let cases = [
            ("7 (pagelab) S ", "1", (b'S', 1, 9731), false),
            ("7 (a) S 1 (b) ) Z ", "1", (b'Z', 1, 9731), true),
            ("7 (a) Z ", "2", (b'Z', 2, 9731), false),
            ("7 (a\nb c) R ", "3", (b'R', 3, 9731), false),
        ];
        for (head, threads, (state, number, start_ticks), has_ended) in cases {
            let text = format!("{head}{}", tail.replace("THREADS", threads));
            let stat = parse_stat(text.as_bytes()).unwrap();
            // The tail ends before field 47.
            let (parent, minor_faults, cpu_ticks, heap_start) = (1, 5, 34, None);
            let (process_group, session, threads) = (Some(2), Some(3), number);
            let wanted = ProcessStat {
                state,
                parent,
                process_group,
                session,
                minor_faults,
                cpu_ticks,
                threads,
                start_ticks,
                heap_start,
            };
            assert_eq!(stat, wanted, "{text}");
            assert_eq!(stat.has_ended(), has_ended, "{text}");
        }
    }

    #[test]
    fn a_heap_begins_where_field_47_says() {
        let (head, middle) = ("7 (a) S 1 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 1 0 9731", " 1".repeat(24));
        for (field, wanted) in [("94016", Some(94016)), ("0", None)] {
            let stat = parse_stat(format!("{head}{middle} {field} 1 1\n").as_bytes()).unwrap();
            assert_eq!(stat.heap_start, wanted);
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let cases = [
            ("", "f: no command in parentheses (read as process stat)"),
            ("7 (cut", "f: no command in parentheses (read as process stat)"),
            ("State: S (a) S 1\n", "f: no PID before the command in parentheses (read as process stat)"),
            ("7 (a)\n", "f: the state is missing (read as process stat)"),
            ("7 (a) S 1 2 3", "f: field 10 is missing (read as process stat)"),
            (
                "7 (a) S 1 1 1 0 -1 1 5 0 0 0 0 0 0 0 20 0 x 0 1",
                "f: field 20, `x`: expected a number (read as process stat)",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse_stat(text.as_bytes()).unwrap_err().message_in_file("f"), message, "{text}");
        }
    }
}
