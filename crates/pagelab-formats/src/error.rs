//! The error of every parser: which format, which line, what is wrong.

use std::fmt;

/// Characters of a problem beyond which it is cut: it may quote a name out of a hostile file.
const PROBLEM_MAX: usize = 240;

/// Why a text or record could not be understood. The caller adds the file's name.
#[derive(Clone, PartialEq, Eq)]
pub struct ParseError {
    kind: Box<Kind>,
}

#[derive(Clone, PartialEq, Eq)]
struct Kind {
    format: &'static str,
    place: Place,
    problem: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Place {
    Whole,
    Line(u64),
    Byte(u64),
}

impl ParseError {
    /// `problem` at a line, counted from 1.
    pub fn at_line(format: &'static str, line: u64, problem: impl Into<String>) -> ParseError {
        ParseError::new(format, Place::Line(line), problem.into())
    }

    /// `problem` at a byte offset of a binary record.
    pub fn at_byte(format: &'static str, byte: u64, problem: impl Into<String>) -> ParseError {
        ParseError::new(format, Place::Byte(byte), problem.into())
    }

    /// `problem` of the input as a whole, such as an empty file.
    pub fn whole(format: &'static str, problem: impl Into<String>) -> ParseError {
        ParseError::new(format, Place::Whole, problem.into())
    }

    fn new(format: &'static str, place: Place, mut problem: String) -> ParseError {
        if let Some((cut, _)) = problem.char_indices().nth(PROBLEM_MAX) {
            problem.truncate(cut);
            problem.push('…');
        }
        ParseError { kind: Box::new(Kind { format, place, problem }) }
    }

    /// The line, counted from 1, where the problem is at one.
    pub fn line(&self) -> Option<u64> {
        match self.kind.place {
            Place::Line(line) => Some(line),
            Place::Whole | Place::Byte(_) => None,
        }
    }

    /// The same problem on a later line: for a part that was cut out of a longer text.
    pub fn shifted(mut self, lines: u64) -> ParseError {
        if let Place::Line(line) = &mut self.kind.place {
            *line += lines;
        }
        self
    }

    /// The whole message behind the name of its file: `bug.txt:14: zone Normal has …`.
    pub fn in_file(&self, file: &str) -> String {
        let Kind { format, place, problem } = &*self.kind;
        match place {
            Place::Whole => format!("{file}: {problem} (read as {format})"),
            Place::Line(line) => format!("{file}:{line}: {problem} (read as {format})"),
            Place::Byte(byte) => format!("{file}: byte {byte}: {problem} (read as {format})"),
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_file(self.kind.format))
    }
}

impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_between_characters() {
        let long = ParseError::at_line("meminfo", 3, "é".repeat(1 << 20)).in_file("f");
        assert_eq!(long, format!("f:3: {}… (read as meminfo)", "é".repeat(PROBLEM_MAX)));
        let fits = ParseError::at_byte("kpageflags", 8, "é".repeat(PROBLEM_MAX)).shifted(1).in_file("f");
        assert_eq!(fits, format!("f: byte 8: {} (read as kpageflags)", "é".repeat(PROBLEM_MAX)));
    }
}
