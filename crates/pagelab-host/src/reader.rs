//! Reader that parses files and records each malformed one as a problem.

use std::cell::RefCell;

use pagelab_formats::ParseError;
use pagelab_formats::text::line_number_at;
use pagelab_model::{Absence, AbsenceReason, Problem, Reading};

use crate::root::Root;

/// A root, and the problems of reading under it.
#[derive(Debug)]
pub struct Reader<'a> {
    root: &'a Root,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Reader<'a> {
    /// A reader without problems.
    pub fn new(root: &'a Root) -> Reader<'a> {
        Reader { root, problems: RefCell::new(Vec::new()) }
    }

    /// Its root.
    pub fn root(&self) -> &'a Root {
        self.root
    }

    /// Reads and parses `path`. An absence stays one; a malformed file becomes a problem as well.
    pub fn parse<T>(&self, path: &str, parse: impl FnOnce(&[u8]) -> Result<T, ParseError>) -> Reading<T> {
        self.parse_text(path, self.root.read(path), parse)
    }

    /// The same for a text already read from `path`.
    pub fn parse_text<T>(
        &self,
        path: &str,
        text: Reading<Vec<u8>>,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Reading<T> {
        self.parse_bytes(path, &self.note_malformed(text)?, parse)
    }

    /// The same for a text that the caller keeps.
    pub fn parse_bytes<T>(
        &self,
        path: &str,
        text: &[u8],
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Reading<T> {
        self.note_truncated(path, text);
        parse(text).map_err(|error| {
            let message = error.message_in_file(&self.root.display_path(path));
            self.add_problem(Problem { message: message.clone(), is_bad_input: true });
            Absence::new(self.root.display_path(path), AbsenceReason::Malformed, message)
        })
    }

    /// The kernel ends every line. A last line without a newline is truncated, and its last number may be too
    /// short, which no parser can detect.
    pub(crate) fn note_truncated(&self, path: &str, text: &[u8]) {
        if text.last().is_some_and(|&last| last != b'\n') {
            let line = line_number_at(text, text.len());
            let message = format!(
                "{}:{line}: the last line has no newline: the file was truncated, and its last number may \
                 be wrong",
                self.root.display_path(path)
            );
            self.add_problem(Problem { message, is_bad_input: true });
        }
    }

    /// Reads a text that is kept as it is.
    pub fn read_text(&self, path: &str) -> Reading<Vec<u8>> {
        let text = self.note_malformed(self.root.read(path))?;
        self.note_truncated(path, &text);
        Ok(text)
    }

    /// A one-line text without the blanks around it.
    pub fn read_line(&self, path: &str) -> Reading<String> {
        let text = self.read_text(path)?;
        Ok(String::from_utf8_lossy(text.trim_ascii()).into_owned())
    }

    /// Records a malformed reading as a problem, and passes it on.
    pub fn note_malformed<T>(&self, reading: Reading<T>) -> Reading<T> {
        if let Err(absence) = &reading
            && absence.why == AbsenceReason::Malformed
        {
            let message = format!("{}: {}", absence.source, absence.reason());
            self.add_problem(Problem { message, is_bad_input: true });
        }
        reading
    }

    /// Records a problem once.
    pub fn add_problem(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// All problems so far.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.borrow().clone()
    }
}
