//! Reading and parsing in one step, with every malformed file remembered as a problem.

use std::cell::RefCell;

use pagelab_formats::ParseError;
use pagelab_model::{Absence, AbsentWhy, Problem, Reading};

use crate::root::Root;

/// A root, and the problems met while reading under it.
#[derive(Debug)]
pub struct Reader<'a> {
    root: &'a Root,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Reader<'a> {
    /// A reader that has met no problem yet.
    pub fn new(root: &'a Root) -> Reader<'a> {
        Reader { root, problems: RefCell::new(Vec::new()) }
    }

    /// The root it reads under.
    pub fn root(&self) -> &'a Root {
        self.root
    }

    /// Reads `path` whole and parses it. Absent stays absent; malformed becomes a problem as well.
    pub fn parse<T>(&self, path: &str, parse: impl FnOnce(&[u8]) -> Result<T, ParseError>) -> Reading<T> {
        self.parse_text(path, self.root.read(path), parse)
    }

    /// The same for a text that was read from `path` already.
    pub fn parse_text<T>(
        &self,
        path: &str,
        text: Reading<Vec<u8>>,
        parse: impl FnOnce(&[u8]) -> Result<T, ParseError>,
    ) -> Reading<T> {
        let text = self.noted(text)?;
        self.note_cut(path, &text);
        parse(&text).map_err(|error| {
            let message = error.in_file(&self.root.show(path));
            self.problem(Problem { message: message.clone(), bad_input: true });
            Absence::new(self.root.show(path), AbsentWhy::Malformed, message)
        })
    }

    /// The kernel ends every line. A last line without an end was cut, and its last number may be shorter
    /// than it was: no parser can tell.
    fn note_cut(&self, path: &str, text: &[u8]) {
        if text.last().is_some_and(|&last| last != b'\n') {
            let lines = text.iter().filter(|&&byte| byte == b'\n').count() + 1;
            let message = format!(
                "{}:{lines}: the last line has no end: the file was cut off, and its last number may be \
                 wrong",
                self.root.show(path)
            );
            self.problem(Problem { message, bad_input: true });
        }
    }

    /// A one-line text without the blanks around it.
    pub fn line(&self, path: &str) -> Reading<String> {
        let text = self.noted(self.root.read(path))?;
        Ok(String::from_utf8_lossy(text.trim_ascii()).into_owned())
    }

    /// Remembers a reading that is malformed as a problem, and passes it on.
    pub fn noted<T>(&self, reading: Reading<T>) -> Reading<T> {
        if let Err(absence) = &reading
            && absence.why == AbsentWhy::Malformed
        {
            let message = format!("{}: {}", absence.source, absence.reason());
            self.problem(Problem { message, bad_input: true });
        }
        reading
    }

    /// Remembers a problem, once.
    pub fn problem(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// All problems met so far.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.borrow().clone()
    }

    /// All problems met.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }
}
