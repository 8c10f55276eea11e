//! Laying text out at a given width: paragraphs that hang, facts in a row, aligned tables.
//!
//! Signs that the terminal cannot show are replaced before anything is measured, so lines keep to the width.

use crate::grid::{Lean, UNBROKEN, align, width, wrap};
use crate::style::Style;

/// Lines of text under construction.
#[derive(Clone, Debug)]
pub struct Page {
    style: Style,
    lines: Vec<String>,
}

impl Page {
    /// An empty page.
    pub fn new(style: Style) -> Page {
        Page { style, lines: Vec::new() }
    }

    /// How it may look.
    pub fn style(&self) -> Style {
        self.style
    }

    /// A blank line, unless there is one already or the page is empty.
    pub fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    /// A heading over what follows.
    pub fn heading(&mut self, text: &str) {
        self.gap();
        self.lines.push(self.style.bold(&self.style.one_line(text)));
    }

    /// A line that is already laid out.
    pub fn line(&mut self, text: impl Into<String>) {
        self.lines.push(self.style.one_line(&text.into()));
    }

    /// A paragraph whose first line begins with `first` and whose other lines are indented as deep.
    pub fn hanging(&mut self, first: &str, text: &str) {
        self.painted(first, text, |_, line| line.to_owned());
    }

    /// The same, less prominent.
    pub fn hanging_dim(&mut self, first: &str, text: &str) {
        self.painted(first, text, |style, line| style.dim(line));
    }

    /// The same in bold.
    pub fn hanging_bold(&mut self, first: &str, text: &str) {
        self.painted(first, text, |style, line| style.bold(line));
    }

    fn painted(&mut self, first: &str, text: &str, paint: impl Fn(&Style, &str) -> String) {
        let indent = width(first);
        let text = self.style.signs(&text.split_whitespace().collect::<Vec<_>>().join(" "));
        let text = whole_quantities(&text);
        let wrapped = wrap(&text, self.style.width, indent, indent);
        for (at, line) in wrapped.lines().enumerate() {
            let lead = if at == 0 { first.to_owned() } else { " ".repeat(indent) };
            self.lines.push(format!("{lead}{}", paint(&self.style, line.get(indent..).unwrap_or_default())));
        }
    }

    /// Facts in a row with `between` them, wrapped between facts only.
    pub fn facts(&mut self, first: &str, facts: &[String], between: &str) {
        let (first, between) = (self.style.one_line(first), self.style.one_line(between));
        let indent = width(&first);
        let mut line = first;
        let mut empty = true;
        for fact in facts.iter().filter(|fact| !fact.is_empty()).map(|fact| self.style.one_line(fact)) {
            let columns = width(&line) + width(&between) + width(&fact);
            if !empty && columns > self.style.width {
                self.lines.push(line.trim_end().to_owned());
                line = " ".repeat(indent);
                empty = true;
            }
            if !empty {
                line.push_str(&between);
            }
            line.push_str(&fact);
            empty = false;
        }
        if !empty {
            self.lines.push(line);
        }
    }

    /// A table: cells are padded to the widest of their column.
    pub fn table(&mut self, indent: usize, columns: &[Column], rows: &[Vec<String>]) {
        let lines = self.table_lines(indent, columns, rows);
        self.lines.extend(lines);
    }

    /// The same if it fits into the width; else nothing is added, and the answer is no.
    pub fn table_if_it_fits(&mut self, indent: usize, columns: &[Column], rows: &[Vec<String>]) -> bool {
        let lines = self.table_lines(indent, columns, rows);
        let fits = lines.iter().all(|line| width(line) <= self.style.width);
        if fits {
            self.lines.extend(lines);
        }
        fits
    }

    /// The width that a table would take.
    pub fn table_width(&self, indent: usize, columns: &[Column], rows: &[Vec<String>]) -> usize {
        self.table_lines(indent, columns, rows).iter().map(|line| width(line)).max().unwrap_or(0)
    }

    fn table_lines(&self, indent: usize, columns: &[Column], rows: &[Vec<String>]) -> Vec<String> {
        let titles: Vec<String> = columns.iter().map(|column| self.style.one_line(column.title)).collect();
        let plain = rows.iter().map(|row| row.iter().map(|cell| self.style.one_line(cell)).collect());
        let is_titled = titles.iter().any(|title| !title.is_empty());
        let leans: Vec<Lean> = columns.iter().map(|column| column.lean).collect();
        let all: Vec<Vec<String>> = is_titled.then_some(titles).into_iter().chain(plain).collect();
        let mut lines = align(&all, &leans, indent);
        if let Some(title) = lines.first_mut().filter(|_| is_titled) {
            *title = self.style.dim(title);
        }
        lines
    }

    /// The whole text, each line ended by a newline.
    pub fn finish(mut self) -> String {
        while self.lines.last().is_some_and(String::is_empty) {
            self.lines.pop();
        }
        let mut text = self.lines.join("\n").replace(UNBROKEN, " ");
        text.push('\n');
        text
    }
}

/// Units that stand behind a number, which no line end parts from it.
const UNITS: [&str; 18] = [
    "%", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ns", "µs", "us", "ms", "s", "min", "h", "d", "M",
    "k",
];

/// A text whose numbers keep together: `1 819` and `2.69 GiB` are broken nowhere.
fn whole_quantities(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    for word in text.split(' ') {
        let is_behind_digit = whole.ends_with(|sign: char| sign.is_ascii_digit());
        let digits = word.chars().take_while(char::is_ascii_digit).count();
        let is_group = digits == 3 && !word[3..].starts_with(|sign: char| sign.is_alphanumeric());
        let is_unit = UNITS.contains(&word.trim_end_matches([',', ';', '.', ':', ')']));
        match whole.is_empty() {
            true => {}
            false if word.starts_with('%') || is_behind_digit && (is_group || is_unit) => {
                whole.push(UNBROKEN)
            }
            false => whole.push(' '),
        }
        whole.push_str(word);
    }
    whole
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    title: &'a str,
    lean: Lean,
}

impl<'a> Column<'a> {
    /// A column of words.
    pub const fn left(title: &'a str) -> Column<'a> {
        Column { title, lean: Lean::Left }
    }

    /// A column of numbers.
    pub const fn right(title: &'a str) -> Column<'a> {
        Column { title, lean: Lean::Right }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Style = Style { width: 20, ..Style::PLAIN };

    #[test]
    fn paragraphs_hang_and_never_pass_the_width() {
        let mut page = Page::new(NARROW);
        page.hanging("  1  ", "one two three four five six seven");
        let text = page.finish();
        assert_eq!(text, "  1  one two three\n     four five six\n     seven\n");
        assert!(text.lines().all(|line| width(line) <= NARROW.width));
    }

    #[test]
    fn numbers_and_their_units_stay_together() {
        let mut page = Page::new(NARROW);
        page.hanging("", "somebody took 1 819 234 before it, 2.69 GiB; and of 12 seeds 100 then");
        let text = page.finish();
        assert_eq!(text, "somebody took\n1 819 234 before it,\n2.69 GiB; and of 12\nseeds 100 then\n");
    }

    #[test]
    fn facts_break_between_facts_only() {
        let mut page = Page::new(NARROW);
        page.facts("  ", &["page cache 3 GiB".into(), "slab 1 GiB".into(), String::new()], "   ");
        assert_eq!(page.finish(), "  page cache 3 GiB\n  slab 1 GiB\n");
    }

    #[test]
    fn tables_align_numbers_to_the_right() {
        let mut page = Page::new(NARROW);
        let rows = [vec!["DMA".into(), "1".into()], vec!["Normal".into(), "1 502".into()]];
        page.table(1, &[Column::left("zone"), Column::right("free")], &rows);
        assert_eq!(page.finish(), " zone     free\n DMA         1\n Normal  1 502\n");
    }
}
