//! A TOML text as a tree whose every key and value knows its line.

use toml::de::{DeTable, DeValue};

use super::Problem;

/// A value and the line on which it stands, from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub node: Node,
    pub line: usize,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Text(String),
    /// As it is written, without underscores.
    Number(String),
    Switch(bool),
    List(Vec<Item>),
    Table(Table),
    /// A kind that no key of a recipe takes.
    Other(&'static str),
}

/// Keys and values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    /// In the order of the keys' names; each with the line of its key.
    pub entries: Vec<(String, usize, Item)>,
}

impl Node {
    /// What it is, for a person.
    pub fn kind(&self) -> &'static str {
        match self {
            Node::Text(_) => "a text",
            Node::Number(_) => "a number",
            Node::Switch(_) => "true or false",
            Node::List(_) => "a list",
            Node::Table(_) => "a table",
            Node::Other(kind) => kind,
        }
    }
}

/// Reads a text. The error is that of the parser, with its line and `what` it should be.
pub(crate) fn parse(text: &str, what: &str) -> Result<Table, Problem> {
    let lines = Lines::of(text);
    match DeTable::parse(text) {
        Ok(table) => Ok(lines.table(table.get_ref())),
        Err(error) => {
            let line = error.span().map_or(1, |span| lines.line(span.start));
            let message = error.message().trim().replace('\n', "; ");
            Err(Problem { line, text: format!("{message}; {what}") })
        }
    }
}

/// Where the lines of a text begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        Lines(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    /// The line of a byte, from 1.
    fn line(&self, at: usize) -> usize {
        self.0.partition_point(|&begin| begin <= at) + 1
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
            let name: &std::borrow::Cow<'_, str> = key.get_ref();
            (name.to_string(), self.line(key.span().start), self.item(value))
        };
        Table { entries: table.iter().map(entry).collect() }
    }

    fn item(&self, value: &toml::Spanned<DeValue<'_>>) -> Item {
        let node = match value.get_ref() {
            DeValue::String(text) => Node::Text(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Node::Number(plain(number.as_str())),
            DeValue::Integer(_) => Node::Other("a number that is not decimal"),
            DeValue::Float(number) => Node::Number(plain(number.as_str())),
            DeValue::Boolean(is_on) => Node::Switch(*is_on),
            DeValue::Datetime(_) => Node::Other("a date"),
            DeValue::Array(items) => Node::List(items.iter().map(|item| self.item(item)).collect()),
            DeValue::Table(table) => Node::Table(self.table(table)),
        };
        Item { node, line: self.line(value.span().start) }
    }
}

fn plain(number: &str) -> String {
    number.replace('_', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_know_their_lines() {
        let table = parse("a = 1_000\n\n[[b]]\nc = \"x\"\nd = [\n  true,\n  0.5,\n]\n", "").unwrap();
        let (name, line, item) = &table.entries[0];
        assert_eq!((name.as_str(), *line), ("a", 1));
        assert_eq!(item.node, Node::Number("1000".to_owned()));
        let Node::List(tables) = &table.entries[1].2.node else { panic!("{table:?}") };
        let Node::Table(inner) = &tables[0].node else { panic!("{table:?}") };
        assert_eq!(inner.entries[0].1, 4);
        let Node::List(list) = &inner.entries[1].2.node else { panic!("{inner:?}") };
        assert_eq!(list.iter().map(|item| item.line).collect::<Vec<_>>(), [6, 7]);
    }

    #[test]
    fn what_is_no_toml_has_a_line() {
        for (text, line) in [("a = 1\nb = \n", 2), ("a = 1\n\na = 2\n", 3), ("[x\n", 1), ("a = \"x\n", 1)] {
            let problem = parse(text, "").expect_err(text);
            assert_eq!(problem.line, line, "{text:?}: {}", problem.text);
        }
    }
}
