//! Error of every parser: format, line and problem.

use std::fmt;

/// Characters of a problem beyond which it is cut: it may quote a name out of a hostile file.
const PROBLEM_MAX: usize = 240;

/// Why a text or record malformed. The caller adds the file's name.
#[derive(Clone, PartialEq, Eq)]
pub struct ParseError {
    details: Box<ErrorDetails>,
}

#[derive(Clone, PartialEq, Eq)]
struct ErrorDetails {
    format: &'static str,
    location: ErrorLocation,
    problem: String,
}

#[derive(Clone, PartialEq, Eq)]
enum ErrorLocation {
    Input,
    Line(u64),
    Byte(u64),
}

impl ParseError {
    /// `problem` at a line, counted from 1.
    pub fn at_line(format: &'static str, line: u64, problem: impl Into<String>) -> ParseError {
        ParseError::new(format, ErrorLocation::Line(line), problem.into())
    }

    /// `problem` at a byte offset of a binary record.
    pub fn at_byte(format: &'static str, byte: u64, problem: impl Into<String>) -> ParseError {
        ParseError::new(format, ErrorLocation::Byte(byte), problem.into())
    }

    /// `problem` of the input as a whole, such as an empty file.
    pub fn for_input(format: &'static str, problem: impl Into<String>) -> ParseError {
        ParseError::new(format, ErrorLocation::Input, problem.into())
    }

    fn new(format: &'static str, location: ErrorLocation, mut problem: String) -> ParseError {
        if let Some((cut, _)) = problem.char_indices().nth(PROBLEM_MAX) {
            problem.truncate(cut);
            problem.push('…');
        }
        ParseError { details: Box::new(ErrorDetails { format, location, problem }) }
    }

    /// The line, counted from 1, where the problem is at one.
    pub fn line(&self) -> Option<u64> {
        match self.details.location {
            ErrorLocation::Line(line) => Some(line),
            ErrorLocation::Input | ErrorLocation::Byte(_) => None,
        }
    }

    /// The same problem on a later line: for a part that was cut out of a longer text.
    pub fn shift_lines(mut self, lines: u64) -> ParseError {
        if let ErrorLocation::Line(line) = &mut self.details.location {
            *line += lines;
        }
        self
    }

    /// The whole message behind the name of its file: `bug.txt:14: zone Normal has …`.
    pub fn message_in_file(&self, file: &str) -> String {
        let ErrorDetails { format, location: place, problem } = &*self.details;
        match place {
            ErrorLocation::Input => format!("{file}: {problem} (read as {format})"),
            ErrorLocation::Line(line) => format!("{file}:{line}: {problem} (read as {format})"),
            ErrorLocation::Byte(byte) => format!("{file}: byte {byte}: {problem} (read as {format})"),
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message_in_file(self.details.format))
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
        let long = ParseError::at_line("meminfo", 3, "é".repeat(1 << 20)).message_in_file("f");
        assert_eq!(long, format!("f:3: {}… (read as meminfo)", "é".repeat(PROBLEM_MAX)));
        let fits =
            ParseError::at_byte("kpageflags", 8, "é".repeat(PROBLEM_MAX)).shift_lines(1).message_in_file("f");
        assert_eq!(fits, format!("f: byte 8: {} (read as kpageflags)", "é".repeat(PROBLEM_MAX)));
    }
}
