//! TOML document as a tree in which every key and value has its line.

use pagelab_model::names;
use toml::de::{DeTable, DeValue};

/// A value and the line on which it begins, from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct TomlItem {
    /// The value.
    pub node: TomlValue,
    /// Its line.
    pub line: usize,
}

/// A typed value.
#[derive(Clone, Debug, PartialEq)]
pub enum TomlValue {
    /// A string.
    Text(String),
    /// A decimal number as written, without underscores.
    Number(String),
    /// An integer that is not decimal, without prefix and underscores.
    Radix {
        /// Its digits.
        digits: String,
        /// 2, 8 or 16.
        radix: u32,
    },
    /// `true` or `false`.
    Boolean(bool),
    /// An array.
    List(Vec<TomlItem>),
    /// A table.
    Table(TomlTable),
    /// A date.
    Date,
}

/// Keys and values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TomlTable {
    /// In the order of the keys' names; each with the line of its key.
    pub entries: Vec<(String, usize, TomlItem)>,
}

/// Syntax error of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlSyntaxError {
    /// Line, from 1.
    pub line: usize,
    /// Message of the parser, on one line.
    pub message: String,
}

impl TomlValue {
    /// Name of its type, for messages.
    pub fn kind_name(&self) -> &'static str {
        match self {
            TomlValue::Text(_) => "a string",
            TomlValue::Number(_) => "a number",
            TomlValue::Radix { .. } => "a non-decimal number",
            TomlValue::Boolean(_) => "true or false",
            TomlValue::List(_) => "a list",
            TomlValue::Table(_) => "a table",
            TomlValue::Date => "a date",
        }
    }
}

impl TomlTable {
    /// The value of a key.
    pub fn find(&self, key: &str) -> Option<&TomlItem> {
        self.entries.iter().find(|(name, _, _)| name == key).map(|(_, _, item)| item)
    }

    /// The keys that are not among `known`: the line of each, and a message.
    pub fn unknown_keys(&self, known: &[&str]) -> impl Iterator<Item = (usize, String)> {
        let unknown = self.entries.iter().filter(|(name, _, _)| !known.contains(&name.as_str()));
        unknown.map(|(name, line, _)| (*line, names::describe_unknown("key", name, known)))
    }
}

/// Parses a text.
pub fn parse_document(text: &str) -> Result<TomlTable, TomlSyntaxError> {
    let lines = LineIndex::from_text(text);
    match DeTable::parse(text) {
        Ok(table) => Ok(lines.convert_table(table.get_ref())),
        Err(error) => {
            // An error at the end of the text is behind its last line.
            let last = text.len().saturating_sub(1);
            let line = error.span().map_or(1, |span| lines.line_of(span.start.min(last)));
            Err(TomlSyntaxError { line, message: error.message().trim().replace('\n', "; ") })
        }
    }
}

/// Offsets of the lines of a text, but for the first.
struct LineIndex(Vec<usize>);

impl LineIndex {
    fn from_text(text: &str) -> LineIndex {
        LineIndex(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    /// The line of a byte, from 1.
    fn line_of(&self, offset: usize) -> usize {
        self.0.partition_point(|&begin| begin <= offset) + 1
    }

    fn convert_table(&self, table: &DeTable<'_>) -> TomlTable {
        let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
            let name: &std::borrow::Cow<'_, str> = key.get_ref();
            (name.to_string(), self.line_of(key.span().start), self.convert_item(value))
        };
        TomlTable { entries: table.iter().map(entry).collect() }
    }

    fn convert_item(&self, value: &toml::Spanned<DeValue<'_>>) -> TomlItem {
        let node = match value.get_ref() {
            DeValue::String(text) => TomlValue::Text(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => {
                TomlValue::Number(strip_underscores(number.as_str()))
            }
            DeValue::Integer(number) => {
                TomlValue::Radix { digits: strip_underscores(number.as_str()), radix: number.radix() }
            }
            DeValue::Float(number) => TomlValue::Number(strip_underscores(number.as_str())),
            DeValue::Boolean(is_on) => TomlValue::Boolean(*is_on),
            DeValue::Datetime(_) => TomlValue::Date,
            DeValue::Array(items) => {
                TomlValue::List(items.iter().map(|item| self.convert_item(item)).collect())
            }
            DeValue::Table(table) => TomlValue::Table(self.convert_table(table)),
        };
        TomlItem { node, line: self.line_of(value.span().start) }
    }
}

fn strip_underscores(number: &str) -> String {
    number.replace('_', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_know_their_lines() {
        let table =
            parse_document("a = 1_000\n\n[[b]]\nc = \"x\"\nd = [\n  true,\n  0.5,\n  0xf_f,\n]\n").unwrap();
        let (name, line, item) = &table.entries[0];
        assert_eq!((name.as_str(), *line), ("a", 1));
        assert_eq!(item.node, TomlValue::Number("1000".to_owned()));
        let TomlValue::List(tables) = &table.entries[1].2.node else { panic!("{table:?}") };
        let TomlValue::Table(inner) = &tables[0].node else { panic!("{table:?}") };
        assert_eq!(inner.entries[0].1, 4);
        let TomlValue::List(list) = &inner.entries[1].2.node else { panic!("{inner:?}") };
        assert_eq!(list.iter().map(|item| item.line).collect::<Vec<_>>(), [6, 7, 8]);
        assert_eq!(list[2].node, TomlValue::Radix { digits: "ff".to_owned(), radix: 16 });
    }

    #[test]
    fn a_syntax_error_has_its_line() {
        for (text, line) in
            [("a = 1\nb = \n", 2), ("a = 1\n\na = 2\n", 3), ("[x\n", 1), ("a = \"x\n", 1), ("a = [\n1\n", 2)]
        {
            let error = parse_document(text).expect_err(text);
            assert_eq!(error.line, line, "{text:?}: {}", error.message);
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let table = parse_document("a = 1\nx = 2\n").unwrap();
        let unknown: Vec<_> = table.unknown_keys(&["a", "b"]).collect();
        assert_eq!(unknown, [(2, "unknown key `x`; expected one of a, b".to_owned())]);
    }
}
