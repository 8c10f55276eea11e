//! A TOML text whose keys are taken by name; what is wrong is told with its line.

use pagelab_model::Bytes;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::FORMAT;
use crate::{ParseError, size};

/// A parsed text.
pub(super) struct Document<'t> {
    parsed: Spanned<DeTable<'t>>,
    lines: Lines,
}

/// Where the lines of a text begin, but for the first.
struct Lines(Vec<usize>);

impl Lines {
    /// The line of a byte, from 1.
    fn line(&self, at: usize) -> u64 {
        self.0.partition_point(|&begin| begin <= at) as u64 + 1
    }
}

/// One table of it.
pub(super) struct Table<'d> {
    entries: &'d DeTable<'d>,
    lines: &'d Lines,
    /// Where it begins.
    line: u64,
}

/// One value of it.
pub(super) struct Item<'d> {
    value: &'d Spanned<DeValue<'d>>,
    lines: &'d Lines,
}

impl<'t> Document<'t> {
    /// Parses a text; the error is the parser's, with its line.
    pub fn of(text: &'t str) -> Result<Document<'t>, ParseError> {
        let lines = Lines(text.match_indices('\n').map(|(at, _)| at + 1).collect());
        match DeTable::parse(text) {
            Ok(parsed) => Ok(Document { parsed, lines }),
            Err(error) => {
                let line = error.span().map_or(1, |span| lines.line(span.start));
                let message = error.message().trim().replace('\n', "; ");
                Err(ParseError::at_line(FORMAT, line, format!("{message}; a plan is TOML, see docs/plan.md")))
            }
        }
    }

    /// The whole of it.
    pub fn table(&self) -> Table<'_> {
        Table { entries: self.parsed.get_ref(), lines: &self.lines, line: 1 }
    }
}

impl<'d> Table<'d> {
    /// Refuses keys that are not among these.
    pub fn only(&self, known: &[&str]) -> Result<(), ParseError> {
        let strange = self.entries.iter().find(|(key, _)| !known.contains(&key.get_ref().as_ref()));
        let Some((key, _)) = strange else { return Ok(()) };
        let line = self.lines.line(key.span().start);
        let text = format!("{:?} is no key that there is; there are {}", key.get_ref(), known.join(", "));
        Err(ParseError::at_line(FORMAT, line, text))
    }

    /// The value of a key.
    pub fn item(&self, key: &str) -> Option<Item<'d>> {
        let found = self.entries.iter().find(|(name, _)| name.get_ref().as_ref() == key);
        found.map(|(_, value)| Item { value, lines: self.lines })
    }

    /// An error where this key's value stands, or else where the table begins.
    pub fn wrong(&self, key: &str, text: impl Into<String>) -> ParseError {
        let line = self.item(key).map_or(self.line, |item| item.line());
        ParseError::at_line(FORMAT, line, text)
    }

    /// What must be there.
    pub fn wanted<T>(&self, key: &str, value: Option<T>) -> Result<T, ParseError> {
        value.ok_or_else(|| ParseError::at_line(FORMAT, self.line, format!("{key} is missing")))
    }

    pub fn number(&self, key: &str) -> Result<Option<u64>, ParseError> {
        self.item(key).map(|item| item.number()).transpose()
    }

    pub fn text(&self, key: &str) -> Result<Option<&'d str>, ParseError> {
        self.item(key).map(|item| item.text()).transpose()
    }

    /// A size such as `2M`, or a number of bytes.
    pub fn size(&self, key: &str) -> Result<Option<Bytes>, ParseError> {
        let Some(item) = self.item(key) else { return Ok(None) };
        let size = match item.value.get_ref() {
            DeValue::String(text) => size::parse_suffixed(text.as_bytes()).ok(),
            _ => item.number().ok().map(Bytes),
        };
        let size = size.filter(|size| size.0 > 0);
        size.map(Some).ok_or_else(|| item.wrong(format!("{key}: a size such as \"2M\" was wanted")))
    }

    /// A decimal number with at most three digits behind the point, in thousandths.
    pub fn thousandths(&self, key: &str) -> Result<u64, ParseError> {
        let item = self.wanted(key, self.item(key))?;
        let written = match item.value.get_ref() {
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            _ => String::new(),
        };
        let (whole, parts) = written.split_once('.').unwrap_or((&written, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let value = || {
            let parts = (parts.len() <= 3 && digits(parts)).then(|| format!("{parts:0<3}"))?;
            let whole: u64 = digits(whole).then(|| whole.parse().ok())??;
            whole.checked_mul(1000)?.checked_add(parts.parse().ok()?)
        };
        value().ok_or_else(|| {
            let wanted = "a number such as 1.25, with at most three digits behind the point, was wanted";
            item.wrong(format!("{key}: {wanted}"))
        })
    }

    pub fn list(&self, key: &str) -> Result<Option<Vec<Item<'d>>>, ParseError> {
        self.item(key).map(|item| item.list()).transpose()
    }

    /// A list of texts; empty where there is none.
    pub fn texts(&self, key: &str) -> Result<Vec<String>, ParseError> {
        let items = self.list(key)?.unwrap_or_default();
        items.iter().map(|item| item.text().map(str::to_owned)).collect()
    }

    pub fn table(&self, key: &str) -> Result<Option<Table<'d>>, ParseError> {
        self.item(key).map(|item| item.table()).transpose()
    }

    /// The tables `[[key]]`; none where there is none.
    pub fn tables(&self, key: &str) -> Result<Vec<Table<'d>>, ParseError> {
        self.list(key)?.unwrap_or_default().iter().map(Item::table).collect()
    }
}

impl<'d> Item<'d> {
    pub fn line(&self) -> u64 {
        self.lines.line(self.value.span().start)
    }

    pub fn wrong(&self, text: impl Into<String>) -> ParseError {
        ParseError::at_line(FORMAT, self.line(), text)
    }

    /// A whole number that is not negative, decimal or hexadecimal.
    pub fn number(&self) -> Result<u64, ParseError> {
        let number = match self.value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        number.ok_or_else(|| self.wrong("a whole number was wanted, decimal or with 0x in front"))
    }

    fn text(&self) -> Result<&'d str, ParseError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.wrong("a text in quotes was wanted")),
        }
    }

    fn list(&self) -> Result<Vec<Item<'d>>, ParseError> {
        match self.value.get_ref() {
            DeValue::Array(items) => {
                Ok(items.iter().map(|value| Item { value, lines: self.lines }).collect())
            }
            _ => Err(self.wrong("a list was wanted")),
        }
    }

    pub fn numbers(&self) -> Result<Vec<u64>, ParseError> {
        self.list()?.iter().map(Item::number).collect()
    }

    pub fn table(&self) -> Result<Table<'d>, ParseError> {
        match self.value.get_ref() {
            DeValue::Table(entries) => Ok(Table { entries, lines: self.lines, line: self.line() }),
            _ => Err(self.wrong("a table was wanted")),
        }
    }
}
