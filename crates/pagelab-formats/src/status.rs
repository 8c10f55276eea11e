//! `/proc/PID/status` and `/proc/PID/statm`: who a process is and how much memory it holds.

use pagelab_model::{Bytes, Counters, Pages};

use crate::ParseError;
use crate::text::{lines, number, one_line_error, show, words};

const FORMAT: &str = "process status";
/// The kernel prints some 15 amounts.
const AMOUNTS_MAX: usize = 256;

/// What the status file says that memory tools need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
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
    pub kernel_thread: Option<bool>,
}

impl Status {
    /// The amount called `name`: `VmRSS`, `RssAnon` …
    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        self.amounts_kib.get(name).map(Bytes::from_kib)
    }
}

/// Reads a whole status file.
pub fn parse(text: &[u8]) -> Result<Status, ParseError> {
    let mut status = Status::default();
    let mut amounts: Vec<(&str, u64)> = Vec::new();
    let mut named = false;
    for (at, line) in lines(text) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Some(colon) = line.iter().position(|&b| b == b':') else {
            return Err(ParseError::at_line(FORMAT, at, format!("`{}` is not `Key: value`", show(line))));
        };
        let (key, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let fail = || {
            let problem = format!("{} `{}` is not a number", show(key), show(value));
            ParseError::at_line(FORMAT, at, problem)
        };
        match key {
            b"Name" => (status.name, named) = (String::from_utf8_lossy(value).into_owned(), true),
            b"THP_enabled" => status.thp_enabled = Some(number(value).ok_or_else(fail)? != 0),
            b"Kthread" => status.kernel_thread = Some(number(value).ok_or_else(fail)? != 0),
            b"Seccomp" => status.seccomp = Some(number(value).ok_or_else(fail)?),
            b"CapEff" => {
                let digits = std::str::from_utf8(value).ok();
                let bits = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                status.effective_capabilities = Some(bits.ok_or_else(fail)?);
            }
            _ => {
                if let Some(amount) = value.strip_suffix(b" kB") {
                    let key = std::str::from_utf8(key).map_err(|_| fail())?;
                    let amount = number(amount.trim_ascii()).ok_or_else(fail)?;
                    if amounts.len() == AMOUNTS_MAX {
                        return Err(ParseError::at_line(
                            FORMAT,
                            at,
                            format!("more than {AMOUNTS_MAX} amounts"),
                        ));
                    }
                    amounts.push((key, amount));
                }
            }
        }
    }
    if !named {
        return Err(ParseError::whole(FORMAT, "no line `Name:` in it"));
    }
    status.amounts_kib = amounts.into_iter().collect();
    Ok(status)
}

/// What statm says, in base pages. All zero for a kernel thread and for a process that has ended.
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
        number(word).map(Pages).ok_or_else(|| {
            one_line_error("statm", text, format!("{what} `{}` is not a number of pages", show(word)))
        })
    };
    Ok(Statm { size: next("size")?, resident: next("resident")?, shared: next("shared")? })
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
        assert_eq!(status.bytes("VmRSS"), Some(Bytes::from_kib(1640)));
        assert_eq!(status.bytes("VmSwap"), None);
        assert_eq!((status.thp_enabled, status.kernel_thread), (Some(false), Some(false)));
        assert_eq!(status.effective_capabilities, Some(0x1ff_feff_ffff));
        assert_eq!(
            parse_statm(b"765 410 382 5 0 123 0\n").unwrap(),
            Statm { size: Pages(765), resident: Pages(410), shared: Pages(382) }
        );
    }

    #[test]
    fn bad_lines_are_named() {
        let cases = [
            ("", "f: no line `Name:` in it (read as process status)"),
            ("Name\n", "f:1: `Name` is not `Key: value` (read as process status)"),
            ("Name:\tx\nVmRSS:\tx kB\n", "f:2: VmRSS `x kB` is not a number (read as process status)"),
            ("CapEff:\txyz\n", "f:1: CapEff `xyz` is not a number (read as process status)"),
            ("THP_enabled:\tyes\n", "f:1: THP_enabled `yes` is not a number (read as process status)"),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text.as_bytes()).unwrap_err().in_file("f"), message);
        }
        for (text, message) in [
            ("", "f: nothing in it (read as statm)"),
            ("1 2 x", "f:1: shared `x` is not a number of pages (read as statm)"),
        ] {
            assert_eq!(parse_statm(text.as_bytes()).unwrap_err().in_file("f"), message);
        }
    }
}
