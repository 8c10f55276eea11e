//! Taking the keys of a table one by one; what is wrong with a value, and which keys are unknown, is noted
//! with its line, and reading goes on.

use std::time::Duration;

use pagelab_formats::{duration, size};
use pagelab_model::Bytes;

use super::Problem;
use super::document::{Item, Node, Table};

/// What was found to be wrong so far.
#[derive(Debug, Default)]
pub(crate) struct Problems(pub Vec<Problem>);

impl Problems {
    /// Notes one more.
    pub fn say(&mut self, line: usize, text: impl Into<String>) {
        self.0.push(Problem { line, text: text.into() });
    }
}

/// The keys of one table.
pub(crate) struct Fields<'d> {
    table: &'d Table,
    /// What the table is: empty for the recipe itself, else `workload "chase"`.
    pub what: String,
    /// Where it begins.
    pub line: usize,
    known: Vec<&'static str>,
}

/// What a switch can be that has a third position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switched {
    On,
    Off,
    Word,
}

impl<'d> Fields<'d> {
    pub fn new(table: &'d Table, what: impl Into<String>, line: usize) -> Fields<'d> {
        Fields { table, what: what.into(), line, known: Vec::new() }
    }

    /// The value of a key, if it is there.
    pub fn item(&mut self, key: &'static str) -> Option<&'d Item> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table.entries.iter().find(|(name, _, _)| name == key).map(|(_, _, item)| item)
    }

    /// `workload "chase": options`
    pub fn named(&self, key: &str) -> String {
        if self.what.is_empty() { key.to_owned() } else { format!("{}: {key}", self.what) }
    }

    fn wrong(&self, problems: &mut Problems, key: &str, item: &Item, wanted: &str) {
        let text = format!("{} is {}; {wanted} was wanted", self.named(key), item.node.kind());
        problems.say(item.line, text);
    }

    pub fn text(&mut self, problems: &mut Problems, key: &'static str) -> Option<(&'d str, usize)> {
        let item = self.item(key)?;
        match &item.node {
            Node::Text(text) => Some((text, item.line)),
            _ => {
                self.wrong(problems, key, item, "a text in quotes");
                None
            }
        }
    }

    /// A text that must be there and not be empty.
    pub fn name(&mut self, problems: &mut Problems, key: &'static str) -> String {
        match self.text(problems, key) {
            Some((text, line)) if text.trim().is_empty() => {
                problems.say(line, format!("{} is empty", self.named(key)));
                String::new()
            }
            Some((text, _)) => text.trim().to_owned(),
            None if self.item(key).is_some() => String::new(),
            None => {
                problems.say(self.line, format!("{} is missing: {key} = \"…\"", self.named(key)));
                String::new()
            }
        }
    }

    /// One of these words.
    pub fn word(
        &mut self,
        problems: &mut Problems,
        key: &'static str,
        words: &[&'static str],
    ) -> Option<&'static str> {
        let (text, line) = self.text(problems, key)?;
        let found = words.iter().find(|word| **word == text).copied();
        if found.is_none() {
            problems.say(line, format!("{}: {text:?} is none of {}", self.named(key), words.join(", ")));
        }
        found
    }

    pub fn switch(&mut self, problems: &mut Problems, key: &'static str) -> Option<bool> {
        let item = self.item(key)?;
        match item.node {
            Node::Switch(is_on) => Some(is_on),
            _ => {
                self.wrong(problems, key, item, "true or false");
                None
            }
        }
    }

    /// `true`, `false`, or one word.
    pub fn switch_or_word(
        &mut self,
        problems: &mut Problems,
        key: &'static str,
        word: &str,
    ) -> Option<Switched> {
        let item = self.item(key)?;
        match &item.node {
            Node::Switch(true) => Some(Switched::On),
            Node::Switch(false) => Some(Switched::Off),
            Node::Text(text) if text == word => Some(Switched::Word),
            _ => {
                self.wrong(problems, key, item, &format!("true, false or {word:?}"));
                None
            }
        }
    }

    /// A whole number from `least` to `most`.
    pub fn number(
        &mut self,
        problems: &mut Problems,
        key: &'static str,
        (least, most): (u64, u64),
    ) -> Option<u64> {
        let item = self.item(key)?;
        let number = match &item.node {
            Node::Number(text) => text.parse().ok().filter(|number| (least..=most).contains(number)),
            _ => None,
        };
        if number.is_none() {
            let to = if most == u64::MAX { "on".to_owned() } else { format!("to {most}") };
            let text = format!("{}: a whole number from {least} {to} was wanted", self.named(key));
            problems.say(item.line, text);
        }
        number
    }

    /// A number from 0 to 1.
    pub fn share(&mut self, problems: &mut Problems, key: &'static str) -> Option<f64> {
        let item = self.item(key)?;
        let share = match &item.node {
            Node::Number(text) => text.parse().ok().filter(|share| (0.0..=1.0).contains(share)),
            _ => None,
        };
        if share.is_none() {
            problems.say(item.line, format!("{}: a number from 0 to 1 was wanted", self.named(key)));
        }
        share
    }

    pub fn duration(&mut self, problems: &mut Problems, key: &'static str) -> Option<Duration> {
        let (text, line) = self.text(problems, key)?;
        let parsed = duration::parse(text).and_then(|time| match time.is_zero() {
            true => Err("more than no time was wanted".to_owned()),
            false => Ok(time),
        });
        parsed.map_err(|why| problems.say(line, format!("{}: {why}", self.named(key)))).ok()
    }

    /// Bytes such as `512M`.
    pub fn size(&mut self, problems: &mut Problems, key: &'static str) -> Option<Bytes> {
        let (text, line) = self.text(problems, key)?;
        let size = bytes(text);
        if size.is_none() {
            let text = format!("{}: {text:?} is no size; sizes are such as 512M, 2G", self.named(key));
            problems.say(line, text);
        }
        size
    }

    /// A list of texts.
    pub fn texts(&mut self, problems: &mut Problems, key: &'static str) -> Option<Vec<String>> {
        let item = self.item(key)?;
        let Node::List(items) = &item.node else {
            self.wrong(problems, key, item, "a list of texts, [\"…\", …],");
            return None;
        };
        let mut texts = Vec::new();
        for item in items {
            match &item.node {
                Node::Text(text) => texts.push(text.clone()),
                _ => self.wrong(problems, key, item, "in the list, a text in quotes"),
            }
        }
        Some(texts)
    }

    pub fn table(&mut self, problems: &mut Problems, key: &'static str) -> Option<Fields<'d>> {
        let item = self.item(key)?;
        match &item.node {
            Node::Table(table) => Some(Fields::new(table, self.named(key), item.line)),
            _ => {
                self.wrong(problems, key, item, "a table, {…},");
                None
            }
        }
    }

    /// Keys that the table's owner does not know beforehand, with their values as they would be typed.
    pub fn pairs(&mut self, problems: &mut Problems, key: &'static str) -> Vec<(String, String, usize)> {
        let Some(fields) = self.table(problems, key) else { return Vec::new() };
        let mut pairs = Vec::new();
        for (name, line, item) in &fields.table.entries {
            match &item.node {
                Node::Text(text) | Node::Number(text) => pairs.push((name.clone(), text.clone(), *line)),
                Node::Switch(true) => pairs.push((name.clone(), "yes".to_owned(), *line)),
                Node::Switch(false) => pairs.push((name.clone(), "no".to_owned(), *line)),
                _ => fields.wrong(problems, name, item, "a text or a number"),
            }
        }
        pairs
    }

    /// The tables `[[key]]`.
    pub fn tables(&mut self, problems: &mut Problems, key: &'static str) -> Vec<(&'d Table, usize)> {
        let Some(item) = self.item(key) else { return Vec::new() };
        let Node::List(items) = &item.node else {
            self.wrong(problems, key, item, "tables, each begun by [[…]],");
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in items {
            match &item.node {
                Node::Table(table) => tables.push((table, item.line)),
                _ => self.wrong(problems, key, item, "a table"),
            }
        }
        tables
    }

    /// Notes the keys that nobody asked for.
    pub fn finish(self, problems: &mut Problems) {
        for (name, line, _) in &self.table.entries {
            if !self.known.contains(&name.as_str()) {
                let there = self.known.join(", ");
                let text = format!("{} is no key that there is; there are {there}", self.named(name));
                problems.say(*line, text);
            }
        }
    }
}

/// Bytes with one of the suffixes K, M, G; more than none.
pub(crate) fn bytes(text: &str) -> Option<Bytes> {
    size::parse_suffixed(text.as_bytes()).ok().filter(|size| size.0 > 0)
}
