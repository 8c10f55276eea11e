//! Typed access to the keys of a table; wrong values and unknown keys are collected with their lines, and
//! parsing continues.

use std::time::Duration;

use pagelab_formats::duration;
use pagelab_model::{Bytes, names, size};

use super::{RecipeError, RecipeProblem};
use pagelab_formats::toml_document::{TomlItem, TomlTable, TomlValue};

/// Problems found so far.
#[derive(Debug, Default)]
pub(crate) struct ProblemList(pub Vec<RecipeProblem>);

impl ProblemList {
    /// Adds a problem.
    pub fn add(&mut self, line: usize, text: impl Into<String>) {
        self.0.push(RecipeProblem { line, text: text.into() });
    }

    /// Without problems `Ok`; otherwise they are the error of the text from `origin`, by line.
    pub fn into_result(mut self, origin: &str) -> Result<(), RecipeError> {
        self.0.sort_by_key(|problem| problem.line);
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(RecipeError { origin: origin.to_owned(), problems: self.0 })
        }
    }
}

pub(crate) struct TableFields<'d> {
    table: &'d TomlTable,
    /// Name of the table: empty for the recipe itself, else `workload "chase"`.
    pub name: String,
    /// Its first line.
    pub line: usize,
    known_keys: Vec<&'static str>,
}

impl<'d> TableFields<'d> {
    pub fn new(table: &'d TomlTable, name: impl Into<String>, line: usize) -> TableFields<'d> {
        TableFields { table, name: name.into(), line, known_keys: Vec::new() }
    }

    /// The value of a key, if it exists.
    pub fn take_item(&mut self, key: &'static str) -> Option<&'d TomlItem> {
        if !self.known_keys.contains(&key) {
            self.known_keys.push(key);
        }
        self.table.find(key)
    }

    /// The line of a key; without it that of the table.
    pub fn line_of(&mut self, key: &'static str) -> usize {
        self.take_item(key).map_or(self.line, |item| item.line)
    }

    /// `workload "chase": options`
    pub fn describe_key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}: {key}", self.name) }
    }

    pub fn add_type_problem(&self, problems: &mut ProblemList, key: &str, item: &TomlItem, expected: &str) {
        let text =
            format!("{}: expected {expected}, found {}", self.describe_key(key), item.node.kind_name());
        problems.add(item.line, text);
    }

    pub fn read_text(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<(&'d str, usize)> {
        let item = self.take_item(key)?;
        if let TomlValue::Text(text) = &item.node {
            return Some((text, item.line));
        }
        self.add_type_problem(problems, key, item, "a quoted string");
        None
    }

    pub fn read_string(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<String> {
        self.read_text(problems, key).map(|(text, _)| text.to_owned())
    }

    /// A required string that is not empty.
    pub fn read_name(&mut self, problems: &mut ProblemList, key: &'static str) -> String {
        match self.read_text(problems, key) {
            Some((text, line)) if text.trim().is_empty() => {
                problems.add(line, format!("{} is empty", self.describe_key(key)));
                String::new()
            }
            Some((text, _)) => text.trim().to_owned(),
            None if self.take_item(key).is_some() => String::new(),
            None => {
                problems
                    .add(self.line, format!("{} is missing; expected {key} = \"…\"", self.describe_key(key)));
                String::new()
            }
        }
    }

    pub fn read_word(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
        allowed: &[&'static str],
    ) -> Option<&'static str> {
        let (text, line) = self.read_text(problems, key)?;
        let found = allowed.iter().find(|word| **word == text).copied();
        if found.is_none() {
            let hint =
                names::suggest(text, allowed).map(|hint| format!("; hint: {hint}")).unwrap_or_default();
            let (key, allowed) = (self.describe_key(key), allowed.join(", "));
            problems.add(line, format!("{key}: expected one of {allowed}, found {text:?}{hint}"));
        }
        found
    }

    /// One of these values by its word.
    pub fn read_choice<T: Copy>(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let words: Vec<&'static str> = choices.iter().map(|(word, _)| *word).collect();
        let chosen = self.read_word(problems, key, &words)?;
        choices.iter().find(|(word, _)| *word == chosen).map(|(_, value)| *value)
    }

    pub fn read_bool(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<bool> {
        let item = self.take_item(key)?;
        if let TomlValue::Boolean(is_on) = item.node {
            return Some(is_on);
        }
        self.add_type_problem(problems, key, item, "true or false");
        None
    }

    /// An integer from `min` to `max`.
    pub fn read_number(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
        (min, max): (u64, u64),
    ) -> Option<u64> {
        let item = self.take_item(key)?;
        let number = match &item.node {
            TomlValue::Number(text) => text.parse().ok().filter(|number| (min..=max).contains(number)),
            _ => None,
        };
        if number.is_none() {
            let to = if max == u64::MAX { "on".to_owned() } else { format!("to {max}") };
            let text = format!("{}: expected an integer from {min} {to}", self.describe_key(key));
            problems.add(item.line, text);
        }
        number
    }

    pub fn read_count(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
        range: (u64, u64),
    ) -> Option<u32> {
        self.read_number(problems, key, range).and_then(|number| u32::try_from(number).ok())
    }

    /// A share: a number from 0 to 1, or a text such as `"50%"`.
    pub fn read_share(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<f64> {
        let item = self.take_item(key)?;
        let share = match &item.node {
            TomlValue::Number(text) | TomlValue::Text(text) => size::parse_share(text),
            _ => Err("expected a share from 0 to 1, for example \"50%\" or 0.5".to_owned()),
        };
        share.map_err(|why| problems.add(item.line, format!("{}: {why}", self.describe_key(key)))).ok()
    }

    /// A text that this parser accepts.
    pub fn read_parsed<T>(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (text, line) = self.read_text(problems, key)?;
        let problem = |why: String| format!("{}: {why}, found {text:?}", self.describe_key(key));
        parse(text).map_err(|why| problems.add(line, problem(why))).ok()
    }

    pub fn read_duration(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<Duration> {
        self.read_parsed(problems, key, |text| match duration::parse(text)? {
            time if time.is_zero() => Err("expected a time above 0".to_owned()),
            time => Ok(time),
        })
    }

    /// Bytes such as `512M`.
    pub fn read_size(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<Bytes> {
        self.read_parsed(problems, key, size::parse_nonzero)
    }

    /// Reports the problem of a value that was read, in one phrase that says what was found. The value stays,
    /// so that checks of several keys tell nothing else of it.
    pub fn report_value(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
        checked: Result<(), String>,
    ) {
        if let Err(why) = checked {
            problems.add(self.line_of(key), format!("{}: {why}", self.describe_key(key)));
        }
    }

    /// A size, or `"none"`, which is 0.
    pub fn read_size_or_none(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<Bytes> {
        let (text, line) = self.read_text(problems, key)?;
        let size = if text == "none" { Some(Bytes(0)) } else { size::parse_nonzero(text).ok() };
        if size.is_none() {
            let named = self.describe_key(key);
            let expected = "expected \"none\" or a size, for example 2G";
            problems.add(line, format!("{named}: {expected}, found {text:?}"));
        }
        size
    }

    /// A string, or a list of strings.
    pub fn read_one_or_more(&mut self, problems: &mut ProblemList, key: &'static str) -> Vec<String> {
        match self.take_item(key).map(|item| (item, &item.node)) {
            None => Vec::new(),
            Some((_, TomlValue::Text(text))) => vec![text.clone()],
            Some((_, TomlValue::List(_))) => self.read_texts(problems, key).unwrap_or_default(),
            Some((item, _)) => {
                self.add_type_problem(problems, key, item, "a string or a list of strings");
                Vec::new()
            }
        }
    }

    /// A list of strings.
    pub fn read_texts(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<Vec<String>> {
        let item = self.take_item(key)?;
        let TomlValue::List(items) = &item.node else {
            self.add_type_problem(problems, key, item, "a list of strings");
            return None;
        };
        let mut texts = Vec::new();
        for item in items {
            match &item.node {
                TomlValue::Text(text) => texts.push(text.clone()),
                _ => self.add_type_problem(problems, key, item, "a quoted string in the list"),
            }
        }
        Some(texts)
    }

    pub fn read_table(&mut self, problems: &mut ProblemList, key: &'static str) -> Option<TableFields<'d>> {
        let item = self.take_item(key)?;
        if let TomlValue::Table(table) = &item.node {
            return Some(TableFields::new(table, self.describe_key(key), item.line));
        }
        self.add_type_problem(problems, key, item, "a table, {…},");
        None
    }

    /// Keys that the table's owner does not know in advance, with their values as on the command line.
    pub fn read_pairs(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
    ) -> Vec<(String, String, usize)> {
        let Some(fields) = self.read_table(problems, key) else { return Vec::new() };
        let mut pairs = Vec::new();
        for (name, line, item) in &fields.table.entries {
            match &item.node {
                TomlValue::Text(text) | TomlValue::Number(text) => {
                    pairs.push((name.clone(), text.clone(), *line))
                }
                TomlValue::Boolean(true) => pairs.push((name.clone(), "yes".to_owned(), *line)),
                TomlValue::Boolean(false) => pairs.push((name.clone(), "no".to_owned(), *line)),
                _ => fields.add_type_problem(problems, name, item, "a string or a number"),
            }
        }
        pairs
    }

    /// The tables `[[key]]`.
    pub fn read_tables(
        &mut self,
        problems: &mut ProblemList,
        key: &'static str,
    ) -> Vec<(&'d TomlTable, usize)> {
        let Some(item) = self.take_item(key) else { return Vec::new() };
        let TomlValue::List(items) = &item.node else {
            self.add_type_problem(problems, key, item, "tables, each starting with [[…]],");
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in items {
            match &item.node {
                TomlValue::Table(table) => tables.push((table, item.line)),
                _ => self.add_type_problem(problems, key, item, "a table"),
            }
        }
        tables
    }

    pub fn report_unknown_keys(self, problems: &mut ProblemList) {
        let place = if self.name.is_empty() { String::new() } else { format!("{}: ", self.name) };
        for (line, text) in self.table.unknown_keys(&self.known_keys) {
            problems.add(line, format!("{place}{text}"));
        }
    }
}
