//! `/proc/PID/stat`: what tells one process from a later one with its number, and whether it has ended
//! (fs/proc/array.c, `do_task_stat`; proc_pid_stat(5)).

use crate::ParseError;
use crate::text::{number, show, words};

const FORMAT: &str = "process stat";

/// The fields that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Field 3: the letter of its state.
    pub state: u8,
    /// Field 4: its parent.
    pub parent: u64,
    /// Field 10: page faults of all its threads that needed no disk.
    pub minor_faults: u64,
    /// Field 20: its threads.
    pub threads: u64,
    /// Field 22: when it started, in ticks of the clock since boot.
    pub start_ticks: u64,
    /// Field 47: where its heap begins (Linux 3.3); `None` where it is not told: another's process, a kernel
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
pub fn parse(text: &[u8]) -> Result<ProcessStat, ParseError> {
    let fail = |problem: String| ParseError::whole(FORMAT, problem);
    let end = text.iter().rposition(|&byte| byte == b')');
    let end = end.ok_or_else(|| fail("there is no command in parentheses".to_owned()))?;
    let fields = || words(&text[end + 1..]);
    let field = |at: usize| {
        // Field 3 of the manual page is the first one here.
        let word = fields().nth(at - 3).ok_or_else(|| fail(format!("there is no field {at}")))?;
        number(word).ok_or_else(|| fail(format!("field {at}, `{}`, is no number", show(word))))
    };
    let state = fields().next().and_then(|word| word.first().copied());
    Ok(ProcessStat {
        state: state.ok_or_else(|| fail("there is no state".to_owned()))?,
        parent: field(4)?,
        minor_faults: field(10)?,
        threads: field(20)?,
        start_ticks: field(22)?,
        heap_start: field(47).ok().filter(|&start| start > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_count_from_the_end_of_the_command() {
        let tail = "1 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 THREADS 0 9731 1 1\n";
        let cases = [
            ("7 (pagelab) S ", "1", (b'S', 1, 9731), false),
            ("7 (a) S 1 (b) ) Z ", "1", (b'Z', 1, 9731), true),
            ("7 (a) Z ", "2", (b'Z', 2, 9731), false),
            ("7 (a\nb c) R ", "3", (b'R', 3, 9731), false),
        ];
        for (head, threads, (state, number, start_ticks), has_ended) in cases {
            let text = format!("{head}{}", tail.replace("THREADS", threads));
            let stat = parse(text.as_bytes()).unwrap();
            // The tail ends before field 47.
            let (parent, minor_faults, heap_start) = (1, 5, None);
            let wanted =
                ProcessStat { state, parent, minor_faults, threads: number, start_ticks, heap_start };
            assert_eq!(stat, wanted, "{text}");
            assert_eq!(stat.has_ended(), has_ended, "{text}");
        }
    }

    #[test]
    fn a_heap_begins_where_field_47_says() {
        let (head, middle) = ("7 (a) S 1 1 1 0 -1 4194560 5 0 0 0 0 0 0 0 20 0 1 0 9731", " 1".repeat(24));
        for (field, wanted) in [("94016", Some(94016)), ("0", None)] {
            let stat = parse(format!("{head}{middle} {field} 1 1\n").as_bytes()).unwrap();
            assert_eq!(stat.heap_start, wanted);
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let cases = [
            ("", "f: there is no command in parentheses (read as process stat)"),
            ("7 (cut", "f: there is no command in parentheses (read as process stat)"),
            ("7 (a)\n", "f: there is no state (read as process stat)"),
            ("7 (a) S 1 2 3", "f: there is no field 10 (read as process stat)"),
            (
                "7 (a) S 1 1 1 0 -1 1 5 0 0 0 0 0 0 0 20 0 x 0 1",
                "f: field 20, `x`, is no number (read as process stat)",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text.as_bytes()).unwrap_err().in_file("f"), message, "{text}");
        }
    }
}
