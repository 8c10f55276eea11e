//! Aligned columns of text, and lines that are broken between words.

/// To which side a column's cells lean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lean {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of equal length as lines: every column as wide as its widest cell, two blanks between columns,
/// `indent` blanks before them, nothing at the ends of lines.
pub fn align(rows: &[Vec<String>], leans: &[Lean], indent: usize) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    // A row of one cell is a title: it may reach over the columns.
    let counts = |row: &&Vec<String>| row.len() > 1 || columns == 1;
    let width_of = |column: usize| {
        rows.iter().filter(counts).filter_map(|row| row.get(column)).map(|cell| width(cell)).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width_of(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let mut line = " ".repeat(indent);
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let blanks = " ".repeat(widths[column].saturating_sub(width(cell)));
            match leans.get(column) {
                Some(Lean::Left) => line.extend([cell.as_str(), &blanks]),
                _ => line.extend([blanks.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().map(line).collect()
}

/// Columns that a text takes on a terminal; the texts of this crate have no wide characters, and colours
/// take none.
pub fn width(text: &str) -> usize {
    let mut in_colour = false;
    let is_seen = |sign: &char| {
        let was_in_colour = in_colour;
        in_colour = *sign == '\x1b' || in_colour && *sign != 'm';
        !was_in_colour && !in_colour
    };
    text.chars().filter(is_seen).count()
}

/// A blank at which [`wrap`] does not break a line; it comes out as a plain one.
pub const UNBROKEN: char = '\u{a0}';

/// `text` broken between words into lines of at most `columns`, the first indented by `first` and the
/// others by `next`. A word that is longer than a line stands alone.
pub fn wrap(text: &str, columns: usize, first: usize, next: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut line = " ".repeat(first);
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(next)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines.join("\n").replace(UNBROKEN, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_lean_and_lines_do_not_end_in_blanks() {
        let rows = [["a", "1", "x"], ["bcd", "23", ""]].map(|row| row.map(str::to_owned).to_vec());
        let leans = [Lean::Left, Lean::Right, Lean::Left];
        assert_eq!(align(&rows, &leans, 1), [" a     1  x", " bcd  23"]);
    }

    #[test]
    fn colours_take_no_columns() {
        assert_eq!(width("\x1b[33mméd\x1b[0m ium"), 7);
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 8, 0, 2), "one two\n  three");
        assert_eq!(wrap("F_u is F_u(9)\u{a0}0.1", 12, 0, 2), "F_u is\n  F_u(9) 0.1");
        assert_eq!(wrap("overlong one", 4, 2, 2), "  overlong\n  one");
    }
}
