//! Output of the shell's `time`: `real 3m59.511s`, or `real 239.51` in the POSIX form.

use crate::ParseError;
use crate::text::{lines, parse_number, split_once, to_printable, words};

const FORMAT: &str = "output of time";

/// The times of one command, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShellTimes {
    /// From its start to its end.
    pub real_ns: u64,
    /// Its CPU time in user mode, if the text states it.
    pub user_ns: Option<u64>,
    /// Its CPU time in the kernel, if the text states it.
    pub sys_ns: Option<u64>,
}

/// Reads the last `real`, `user` and `sys` of a text; what a program printed before them is passed over.
pub fn parse(text: &[u8]) -> Result<ShellTimes, ParseError> {
    let mut times_ns = [None; 3];
    for (at, line) in lines(text) {
        let mut words = words(line);
        let name = words.next().unwrap_or_default();
        let Some(place) = [&b"real"[..], b"user", b"sys"].iter().position(|known| *known == name) else {
            continue;
        };
        let (Some(time), None) = (words.next(), words.next()) else { continue };
        let Some(time_ns) = parse_time_ns(time) else {
            let problem = format!("`{}` is not a time such as 3m59.511s or 239.51", to_printable(time));
            return Err(ParseError::at_line(FORMAT, at, problem));
        };
        times_ns[place] = Some(time_ns);
    }
    match times_ns {
        [Some(real_ns), user_ns, sys_ns] => Ok(ShellTimes { real_ns, user_ns, sys_ns }),
        _ => Err(ParseError::for_input(FORMAT, "no `real` line found")),
    }
}

/// `3m59.511s`, `0m0,452s` or `239.51`.
fn parse_time_ns(word: &[u8]) -> Option<u64> {
    let (minutes, seconds) = match word.strip_suffix(b"s") {
        Some(word) => {
            let (minutes, seconds) = split_once(word, b'm')?;
            (parse_number(minutes)?, seconds)
        }
        None => (0, word),
    };
    let point = seconds.iter().position(|sign| b".,".contains(sign));
    let (whole, part) = match point {
        Some(place) => (&seconds[..place], &seconds[place + 1..]),
        None => (seconds, &[][..]),
    };
    let part_ns = match part.len() {
        0 if point.is_none() => 0,
        digits @ 1..=9 => parse_number(part)? * 10u64.pow(9 - digits as u32),
        _ => return None,
    };
    let seconds = minutes.checked_mul(60)?.checked_add(parse_number(whole)?)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(part_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_what_a_program_said_is_not() {
        let bash = "real work begins\n\nreal\t3m59.511s\nuser\t3m59.059s\nsys\t0m0,452s\n";
        let (user_ns, sys_ns) = (Some(239_059_000_000), Some(452_000_000));
        let times = ShellTimes { real_ns: 239_511_000_000, user_ns, sys_ns };
        assert_eq!(parse(bash.as_bytes()), Ok(times));
        let posix = ShellTimes { real_ns: 239_510_000_000, user_ns: Some(1_000_000_000), sys_ns: None };
        assert_eq!(parse(b"real 239.51\nuser 1\n"), Ok(posix));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let error = |text: &str| parse(text.as_bytes()).unwrap_err().message_in_file("f");
        assert_eq!(error(""), "f: no `real` line found (read as output of time)");
        for time in ["3m", "ms", "1m2.s", "x", "1m2.1234567890s", "99999999999999999999", "-1", "1:02"] {
            let text = format!("user 1\nreal {time}\nsys 1\n");
            assert!(error(&text).starts_with(&format!("f:2: `{time}` is not a time")), "{}", error(&text));
        }
    }
}
