//! Layout of text at a given width: hanging paragraphs, facts in a row, aligned tables, wrapped words.
//!
//! Characters that the terminal cannot show are replaced before measuring, so lines keep to the width.

use std::borrow::Cow;

use crate::style::{TextStyle, Tint};

/// Lines of text under construction.
#[derive(Clone, Debug)]
pub struct TextReport {
    style: TextStyle,
    lines: Vec<String>,
}

impl TextReport {
    /// Makes an empty report.
    pub fn new(style: TextStyle) -> TextReport {
        TextReport { style, lines: Vec::new() }
    }

    /// Style of the output.
    pub fn style(&self) -> TextStyle {
        self.style
    }

    /// Adds a blank line, unless there is one already or the report is empty.
    pub fn add_gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    /// Adds a heading.
    pub fn add_heading(&mut self, text: &str) {
        self.add_gap();
        self.lines.push(self.style.paint_bold(&self.style.to_one_line(text)));
    }

    /// Adds a line that is already laid out.
    pub fn add_line(&mut self, text: impl Into<String>) {
        self.lines.push(self.style.to_one_line(&text.into()));
    }

    /// Adds a paragraph whose first line begins with `prefix` and whose other lines are indented to its
    /// width.
    pub fn add_paragraph(&mut self, prefix: &str, text: &str) {
        self.add_tinted_paragraph(prefix, text, Tint::Plain);
    }

    /// Adds a paragraph without a prefix.
    pub fn add_text(&mut self, text: &str) {
        self.add_paragraph("", text);
    }

    /// Adds a paragraph indented by two blanks.
    pub fn add_indented(&mut self, text: &str) {
        self.add_paragraph("  ", text);
    }

    /// Adds an indented paragraph for each note.
    pub fn add_notes(&mut self, notes: &[String]) {
        notes.iter().for_each(|note| self.add_indented(&format!("note: {note}")));
    }

    /// Adds a less prominent paragraph without a prefix.
    pub fn add_dim_text(&mut self, text: &str) {
        self.add_dim_paragraph("", text);
    }

    /// Adds a less prominent paragraph indented by two blanks.
    pub fn add_dim_indented(&mut self, text: &str) {
        self.add_dim_paragraph("  ", text);
    }

    /// Adds a bold paragraph without a prefix.
    pub fn add_bold_text(&mut self, text: &str) {
        self.add_bold_paragraph("", text);
    }

    /// Adds a less prominent paragraph.
    pub fn add_dim_paragraph(&mut self, prefix: &str, text: &str) {
        self.add_tinted_paragraph(prefix, text, Tint::Dim);
    }

    /// Adds a bold paragraph.
    pub fn add_bold_paragraph(&mut self, prefix: &str, text: &str) {
        self.add_tinted_paragraph(prefix, text, Tint::Bold);
    }

    fn add_tinted_paragraph(&mut self, prefix: &str, text: &str, tint: Tint) {
        let indent = display_width(prefix);
        let text = self.style.to_displayable(&text.split_ascii_whitespace().collect::<Vec<_>>().join(" "));
        let text = join_quantities(&text);
        let wrapped = wrap_text(&text, self.style.width, indent, indent);
        for (at, line) in wrapped.lines().enumerate() {
            let lead = if at == 0 { prefix.to_owned() } else { " ".repeat(indent) };
            let line = self.style.paint_tint(line.get(indent..).unwrap_or_default(), tint);
            self.lines.push(lead + &line);
        }
    }

    /// Adds a line of facts, three blanks apart.
    pub fn add_fact_line(&mut self, facts: &[String]) {
        self.add_facts("", facts, "   ");
    }

    /// Adds facts in a row with `separator` between them, wrapped only between facts.
    pub fn add_facts(&mut self, prefix: &str, facts: &[String], separator: &str) {
        let (prefix, separator) = (self.style.to_one_line(prefix), self.style.to_one_line(separator));
        let indent = display_width(&prefix);
        let mut line = prefix;
        let mut has_no_facts = true;
        for fact in facts.iter().filter(|fact| !fact.is_empty()).map(|fact| self.style.to_one_line(fact)) {
            let columns = display_width(&line) + display_width(&separator) + display_width(&fact);
            if !has_no_facts && columns > self.style.width {
                self.lines.push(line.trim_end().to_owned());
                line = " ".repeat(indent);
                has_no_facts = true;
            }
            if !has_no_facts {
                line.push_str(&separator);
            }
            line.push_str(&fact);
            has_no_facts = false;
        }
        if !has_no_facts {
            self.lines.push(line);
        }
    }

    /// Adds a table: cells are padded to the widest of their column.
    pub fn add_table(&mut self, indent: usize, columns: &[TableColumn], rows: &[Vec<String>]) {
        let lines = self.format_table(indent, columns, rows);
        self.lines.extend(lines);
    }

    /// Adds a table if it fits the width; otherwise adds nothing and returns false.
    pub fn add_table_if_fits(
        &mut self,
        indent: usize,
        columns: &[TableColumn],
        rows: &[Vec<String>],
    ) -> bool {
        let lines = self.format_table(indent, columns, rows);
        let fits = lines.iter().all(|line| display_width(line) <= self.style.width);
        if fits {
            self.lines.extend(lines);
        }
        fits
    }

    /// Adds the table with the first of these choices of columns that fits the width; otherwise adds nothing
    /// and returns false.
    pub fn add_fitting_table(
        &mut self,
        indent: usize,
        columns: &[TableColumn],
        rows: &[Vec<String>],
        choices: impl IntoIterator<Item = impl AsRef<[usize]>>,
    ) -> bool {
        choices.into_iter().any(|kept| {
            let (columns, rows) = choose_columns(columns, rows, kept.as_ref());
            self.add_table_if_fits(indent, &columns, &rows)
        })
    }

    /// Adds the table with the first of these choices of columns that fits the width, or with the last one.
    pub fn add_narrowed_table(
        &mut self,
        indent: usize,
        columns: &[TableColumn],
        rows: &[Vec<String>],
        choices: &[&[usize]],
    ) {
        if let (false, Some(last)) = (self.add_fitting_table(indent, columns, rows, choices), choices.last())
        {
            let (columns, rows) = choose_columns(columns, rows, last);
            self.add_table(indent, &columns, &rows);
        }
    }

    /// Returns the width of a table.
    pub fn table_width(&self, indent: usize, columns: &[TableColumn], rows: &[Vec<String>]) -> usize {
        self.format_table(indent, columns, rows).iter().map(|line| display_width(line)).max().unwrap_or(0)
    }

    fn format_table(&self, indent: usize, columns: &[TableColumn], rows: &[Vec<String>]) -> Vec<String> {
        let titles: Vec<String> = columns.iter().map(|column| self.style.to_one_line(column.title)).collect();
        let plain = rows.iter().map(|row| row.iter().map(|cell| self.style.to_one_line(cell)).collect());
        let is_titled = titles.iter().any(|title| !title.is_empty());
        let leans: Vec<Alignment> = columns.iter().map(|column| column.alignment).collect();
        let all: Vec<Vec<String>> = is_titled.then_some(titles).into_iter().chain(plain).collect();
        let mut lines = align_columns(&all, &leans, indent);
        if let Some(title) = lines.first_mut().filter(|_| is_titled) {
            *title = self.style.paint_dim(title);
        }
        lines
    }

    /// Returns the complete text, each line ended by a newline.
    pub fn into_text(mut self) -> String {
        while self.lines.last().is_some_and(String::is_empty) {
            self.lines.pop();
        }
        let mut text = self.lines.join("\n").replace(NO_BREAK_SPACE, " ");
        text.push('\n');
        text
    }
}

/// Units after a number that a line end does not separate from it.
const UNBROKEN_UNITS: [&str; 18] = [
    "%", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ns", "µs", "us", "ms", "s", "min", "h", "d", "M",
    "k",
];

/// Joins numbers with their groups and units: `1 819` and `2.69 GiB` are not wrapped.
fn join_quantities(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for word in text.split(' ') {
        let is_behind_digit = joined.ends_with(|sign: char| sign.is_ascii_digit());
        let digits = word.chars().take_while(char::is_ascii_digit).count();
        let is_group = digits == 3 && !word[3..].starts_with(|sign: char| sign.is_alphanumeric());
        let is_unit = UNBROKEN_UNITS.contains(&word.trim_end_matches([',', ';', '.', ':', ')']));
        match joined.is_empty() {
            true => {}
            false if word.starts_with('%') || is_behind_digit && (is_group || is_unit) => {
                joined.push(NO_BREAK_SPACE)
            }
            false => joined.push(' '),
        }
        joined.push_str(word);
    }
    joined
}

/// Column of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableColumn<'a> {
    title: &'a str,
    alignment: Alignment,
}

impl<'a> TableColumn<'a> {
    /// Column of words.
    pub const fn left(title: &'a str) -> TableColumn<'a> {
        TableColumn { title, alignment: Alignment::Left }
    }

    /// Column of numbers.
    pub const fn right(title: &'a str) -> TableColumn<'a> {
        TableColumn { title, alignment: Alignment::Right }
    }

    /// Makes the columns of these titles: the first `words` of words, the others of numbers.
    pub fn list(titles: &'a [impl AsRef<str>], words: usize) -> Vec<TableColumn<'a>> {
        let column = |(at, title): (usize, &'a str)| {
            if at < words { TableColumn::left(title) } else { TableColumn::right(title) }
        };
        titles.iter().map(|title| title.as_ref()).enumerate().map(column).collect()
    }
}

fn choose_columns<'a>(
    columns: &[TableColumn<'a>],
    rows: &[Vec<String>],
    kept: &[usize],
) -> (Vec<TableColumn<'a>>, Vec<Vec<String>>) {
    let row = |row: &Vec<String>| kept.iter().filter_map(|&at| row.get(at).cloned()).collect();
    (kept.iter().map(|&at| columns[at]).collect(), rows.iter().map(row).collect())
}

type CellText<'a, R> = Box<dyn Fn(&R) -> String + 'a>;

/// Table described column by column: its title, and its cell in a row made from an `R`.
pub(crate) struct RowTable<'a, R> {
    titles: Vec<(Cow<'a, str>, Alignment)>,
    cells: Vec<CellText<'a, R>>,
}

impl<'a, R: 'a> RowTable<'a, R> {
    pub fn new() -> RowTable<'a, R> {
        RowTable { titles: Vec::new(), cells: Vec::new() }
    }

    /// Adds a column of words.
    pub fn left(self, title: impl Into<Cow<'a, str>>, cell: impl Fn(&R) -> String + 'a) -> Self {
        self.column((title.into(), Alignment::Left), cell)
    }

    /// Adds a column of numbers.
    pub fn right(self, title: impl Into<Cow<'a, str>>, cell: impl Fn(&R) -> String + 'a) -> Self {
        self.column((title.into(), Alignment::Right), cell)
    }

    /// Adds a column of words that only some tables have.
    pub fn left_if(
        self,
        is_shown: bool,
        title: impl Into<Cow<'a, str>>,
        cell: impl Fn(&R) -> String + 'a,
    ) -> Self {
        if is_shown { self.left(title, cell) } else { self }
    }

    /// Adds a column of numbers that only some tables have.
    pub fn right_if(
        self,
        is_shown: bool,
        title: impl Into<Cow<'a, str>>,
        cell: impl Fn(&R) -> String + 'a,
    ) -> Self {
        if is_shown { self.right(title, cell) } else { self }
    }

    fn column(mut self, title: (Cow<'a, str>, Alignment), cell: impl Fn(&R) -> String + 'a) -> Self {
        self.titles.push(title);
        self.cells.push(Box::new(cell));
        self
    }

    /// Lays out the table without colours, a line for the titles and one for each row.
    pub fn lines(self, indent: usize, rows: impl IntoIterator<Item = R>) -> Vec<String> {
        let titles = self.titles.iter().map(|(title, _)| title.clone().into_owned()).collect();
        let alignments: Vec<Alignment> = self.titles.iter().map(|(_, alignment)| *alignment).collect();
        let all: Vec<Vec<String>> = std::iter::once(titles).chain(self.rows(rows)).collect();
        align_columns(&all, &alignments, indent)
    }

    /// Adds the table to a text.
    pub fn add_to(self, output: &mut TextReport, indent: usize, rows: impl IntoIterator<Item = R>) {
        output.add_table(indent, &self.columns(), &self.rows(rows));
    }

    /// Adds the table to a text as [`TextReport::add_narrowed_table`] does.
    pub fn add_narrowed_to(
        self,
        output: &mut TextReport,
        indent: usize,
        rows: impl IntoIterator<Item = R>,
        choices: &[&[usize]],
    ) {
        output.add_narrowed_table(indent, &self.columns(), &self.rows(rows), choices);
    }

    /// Returns the columns, to choose some of them.
    pub fn columns(&self) -> Vec<TableColumn<'_>> {
        self.titles.iter().map(|(title, alignment)| TableColumn { title, alignment: *alignment }).collect()
    }

    /// Returns the cells of these rows.
    pub fn rows(&self, rows: impl IntoIterator<Item = R>) -> Vec<Vec<String>> {
        rows.into_iter().map(|row| self.cells.iter().map(|cell| cell(&row)).collect()).collect()
    }
}

/// Alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Left, for words.
    Left,
    /// Right, for numbers.
    Right,
}

/// Formats rows of equal length as lines: every column as wide as its widest cell, two blanks between
/// columns, `indent` blanks before them, no trailing blanks.
pub fn align_columns(rows: &[Vec<String>], alignments: &[Alignment], indent: usize) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    // A row of one cell is a title: it may extend over the columns.
    let counts = |row: &&Vec<String>| row.len() > 1 || columns == 1;
    let width_of = |column: usize| {
        rows.iter().filter(counts).filter_map(|row| row.get(column)).map(|cell| display_width(cell)).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width_of(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let mut line = " ".repeat(indent);
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let blanks = " ".repeat(widths[column].saturating_sub(display_width(cell)));
            match alignments.get(column) {
                Some(Alignment::Left) => line.extend([cell.as_str(), &blanks]),
                _ => line.extend([blanks.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().map(line).collect()
}

/// Returns the columns that a text takes on a terminal; the texts of this crate have no wide characters, and
/// colours take none.
pub fn display_width(text: &str) -> usize {
    let mut in_colour = false;
    let is_seen = |sign: &char| {
        let was_in_colour = in_colour;
        in_colour = *sign == '\x1b' || in_colour && *sign != 'm';
        !was_in_colour && !in_colour
    };
    text.chars().filter(is_seen).count()
}

/// Blank at which [`wrap_text`] does not break a line; it is printed as an ordinary blank.
pub const NO_BREAK_SPACE: char = '\u{a0}';

/// Wraps `text` between words into lines of at most `columns`, the first indented by `first_indent` and the
/// others by `next_indent`. A word longer than a line gets a separate line.
pub fn wrap_text(text: &str, columns: usize, first_indent: usize, next_indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut line = " ".repeat(first_indent);
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && display_width(&line) + 1 + display_width(word) > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(next_indent)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines.join("\n").replace(NO_BREAK_SPACE, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: TextStyle = TextStyle { width: 20, ..TextStyle::PLAIN };

    #[test]
    fn paragraphs_hang_and_never_pass_the_width() {
        let mut output = TextReport::new(NARROW);
        output.add_paragraph("  1  ", "one two three four five six seven");
        let text = output.into_text();
        assert_eq!(text, "  1  one two three\n     four five six\n     seven\n");
        assert!(text.lines().all(|line| display_width(line) <= NARROW.width));
    }

    #[test]
    fn numbers_and_their_units_stay_together() {
        let mut output = TextReport::new(NARROW);
        output.add_text("somebody took 1 819 234 before it, 2.69 GiB; and of 12 seeds 100 then");
        let text = output.into_text();
        assert_eq!(text, "somebody took\n1 819 234 before it,\n2.69 GiB; and of 12\nseeds 100 then\n");
    }

    #[test]
    fn facts_break_between_facts_only() {
        let mut output = TextReport::new(NARROW);
        output.add_facts("  ", &["page cache 3 GiB".into(), "slab 1 GiB".into(), String::new()], "   ");
        assert_eq!(output.into_text(), "  page cache 3 GiB\n  slab 1 GiB\n");
    }

    #[test]
    fn tables_align_numbers_to_the_right() {
        let mut output = TextReport::new(NARROW);
        let rows = [vec!["DMA".into(), "1".into()], vec!["Normal".into(), "1 502".into()]];
        output.add_table(1, &[TableColumn::left("zone"), TableColumn::right("free")], &rows);
        assert_eq!(output.into_text(), " zone     free\n DMA         1\n Normal  1 502\n");
    }

    #[test]
    fn columns_lean_and_lines_do_not_end_in_blanks() {
        let rows = [["a", "1", "x"], ["bcd", "23", ""]].map(|row| row.map(str::to_owned).to_vec());
        let alignments = [Alignment::Left, Alignment::Right, Alignment::Left];
        assert_eq!(align_columns(&rows, &alignments, 1), [" a     1  x", " bcd  23"]);
    }

    #[test]
    fn colours_take_no_columns() {
        assert_eq!(display_width("\x1b[33mméd\x1b[0m ium"), 7);
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap_text("one two three", 8, 0, 2), "one two\n  three");
        assert_eq!(wrap_text("F_u is F_u(9)\u{a0}0.1", 12, 0, 2), "F_u is\n  F_u(9) 0.1");
        assert_eq!(wrap_text("overlong one", 4, 2, 2), "  overlong\n  one");
    }
}
