//! Writing into the cells of a screen: clipped, aligned, and in the signs that the terminal can show.

use pagelab_model::Bytes;
use pagelab_report::grid::width;
use pagelab_report::style::{self, Style};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style as Cells};

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Unicode, else ASCII alone.
    pub unicode: bool,
    /// Colours; they repeat what the text says.
    pub colour: bool,
    /// Whether somebody can press keys, which are then explained.
    pub keys: bool,
}

/// How a text is set off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Not at all.
    Plain,
    /// A label.
    Dim,
    /// A heading.
    Bold,
    /// A curve.
    Curve,
    /// Something that wants attention.
    Alert,
}

/// A screen under construction.
pub struct Pen<'b> {
    buffer: &'b mut Buffer,
    style: Style,
    look: Look,
}

impl<'b> Pen<'b> {
    /// A pen for all of a screen.
    pub fn new(buffer: &'b mut Buffer, look: Look) -> Pen<'b> {
        let style = Style { colour: false, unicode: look.unicode, width: usize::MAX };
        Pen { buffer, style, look }
    }

    /// What the terminal can show.
    pub fn look(&self) -> Look {
        self.look
    }

    fn cells(&self, paint: Paint) -> Cells {
        let coloured = |style: Cells, colour| if self.look.colour { style.fg(colour) } else { style };
        match paint {
            Paint::Plain => Cells::new(),
            Paint::Dim => Cells::new().add_modifier(Modifier::DIM),
            Paint::Bold => Cells::new().add_modifier(Modifier::BOLD),
            Paint::Curve => coloured(Cells::new(), Color::Cyan),
            Paint::Alert => coloured(Cells::new().add_modifier(Modifier::BOLD), Color::Yellow),
        }
    }

    /// A text as it will be shown.
    pub fn shown(&self, text: &str) -> String {
        self.style.one_line(text)
    }

    /// Columns that a text takes.
    pub fn width(&self, text: &str) -> u16 {
        u16::try_from(width(&self.shown(text))).unwrap_or(u16::MAX)
    }

    /// Writes a text into `columns` from the left, cut with a mark if it is longer. Returns the columns used.
    pub fn left(&mut self, x: u16, y: u16, columns: u16, text: &str, paint: Paint) -> u16 {
        let area = *self.buffer.area();
        let columns = columns.min(area.width.saturating_sub(x));
        if columns == 0 || y >= area.height {
            return 0;
        }
        let mut shown = self.shown(text);
        if width(&shown) > usize::from(columns) {
            shown = shown.chars().take(usize::from(columns) - 1).collect();
            shown.push(if self.look.unicode { '…' } else { '~' });
        }
        let (end, _) = self.buffer.set_stringn(x, y, shown, usize::from(columns), self.cells(paint));
        end - x
    }

    /// Writes a text that ends with the last of `columns`.
    pub fn right(&mut self, x: u16, y: u16, columns: u16, text: &str, paint: Paint) {
        let blank = columns.saturating_sub(self.width(text));
        self.left(x.saturating_add(blank), y, columns - blank, text, paint);
    }

    /// Writes texts one behind the other with two blanks between, as many as fit whole.
    pub fn row(&mut self, area: Rect, texts: &[(String, Paint)]) {
        let mut x = area.x;
        for (text, paint) in texts {
            let columns = area.right().saturating_sub(x);
            if text.is_empty() {
                continue;
            }
            if x > area.x && self.width(text) > columns {
                return;
            }
            x = x.saturating_add(self.left(x, area.y, columns, text, *paint)).saturating_add(2);
        }
    }

    /// A curve in one line: a mark for each value, `largest` the highest; a gap where nothing is known.
    pub fn spark(&mut self, x: u16, y: u16, values: &[Option<f64>], largest: f64) {
        let mark = |value: &Option<f64>| value.map_or(' ', |value| self.style.spark(share(value, largest)));
        let text: String = values.iter().map(mark).collect();
        self.left(x, y, u16::try_from(values.len()).unwrap_or(u16::MAX), &text, Paint::Curve);
    }

    /// The same for what mostly does not happen: up to its own largest value or `at_least`, and whatever is
    /// not 0 is seen to be more than 0.
    pub fn spark_of_events(&mut self, x: u16, y: u16, values: &[Option<f64>], at_least: f64) {
        let largest = values.iter().flatten().copied().fold(at_least, f64::max);
        let seen = |value: f64| if value > 0.0 { value.max(largest / 8.0) } else { value };
        let values: Vec<Option<f64>> = values.iter().map(|value| value.map(seen)).collect();
        self.spark(x, y, &values, largest);
    }

    /// One cell of a picture.
    pub fn sign(&mut self, x: u16, y: u16, sign: char, paint: Paint) {
        let cells = self.cells(paint);
        if let Some(cell) = self.buffer.cell_mut((x, y)) {
            cell.set_char(sign).set_style(cells);
        }
    }

    /// Turns a line into the chosen one: reversed where that can be seen, and marked in any case.
    pub fn choose(&mut self, area: Rect) {
        let mark = if self.look.unicode { '›' } else { '>' };
        self.sign(area.x, area.y, mark, Paint::Bold);
        let inside = area.intersection(*self.buffer.area());
        self.buffer.set_style(inside, Cells::new().add_modifier(Modifier::BOLD));
    }
}

/// A value as a share of the largest; nothing is a share of nothing.
pub fn share(value: f64, largest: f64) -> f64 {
    if largest > 0.0 { (value / largest).clamp(0.0, 1.0) } else { 0.0 }
}

/// What stands where nothing is known.
pub const ABSENT: &str = "–";

/// An amount of memory, or that it is not known.
pub fn memory(amount: Option<Bytes>) -> String {
    amount.map_or_else(|| ABSENT.to_owned(), style::bytes)
}

/// A number in at most five columns: three digits and a letter for thousands.
pub fn short(value: Option<f64>) -> String {
    const STEPS: [(f64, &str); 7] =
        [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"), (1e18, "E")];
    let Some(value) = value.filter(|value| value.is_finite()) else { return ABSENT.to_owned() };
    let size = value.abs();
    if size > 0.0 && size < 0.005 {
        return "<0.01".to_owned();
    }
    // 999.5 would be shown with four digits, so it moves on to the next step.
    let fits = |&&(step, _): &&(f64, &str)| size >= step * 0.9995;
    let (step, unit) = STEPS.iter().rev().find(fits).unwrap_or(&STEPS[0]);
    if size >= 1e21 {
        return format!("{value:.0e}");
    }
    format!("{}{unit}", style::three_digits(value / step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_absent_ones_are_no_zero() {
        let cases = [
            (None, "–"),
            (Some(f64::NAN), "–"),
            (Some(f64::INFINITY), "–"),
            (Some(0.0), "0"),
            (Some(0.001), "<0.01"),
            (Some(0.25), "0.25"),
            (Some(7.0), "7"),
            (Some(12.34), "12.3"),
            (Some(999.0), "999"),
            (Some(999.7), "1k"),
            (Some(12_345.0), "12.3k"),
            (Some(999_600.0), "1M"),
            (Some(u64::MAX as f64), "18.4E"),
            (Some(1e30), "1e30"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text, "{value:?}");
            assert!(text.chars().count() <= 5);
        }
    }

    #[test]
    fn nothing_is_written_outside() {
        let look = Look { unicode: true, colour: true, keys: true };
        let mut buffer = Buffer::empty(Rect::new(0, 0, 4, 2));
        let mut pen = Pen::new(&mut buffer, look);
        pen.left(2, 0, 99, "abcdef", Paint::Plain);
        pen.left(0, 7, 9, "x", Paint::Plain);
        pen.left(9, 0, 9, "x", Paint::Plain);
        pen.right(0, 1, 4, "ab", Paint::Plain);
        pen.sign(9, 9, 'x', Paint::Plain);
        pen.choose(Rect::new(3, 1, 9, 9));
        pen.spark(0, 0, &[Some(0.0), None, Some(f64::NAN), Some(9.0)], 0.0);
        let text: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
        assert_eq!(text, "▁ ▁▁  a›");
    }
}
