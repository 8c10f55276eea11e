//! Writer of screen cells: clipped, aligned, with the characters that the terminal supports.

use pagelab_model::Bytes;
use pagelab_report::style::{self, TextStyle};
use pagelab_report::text_report::display_width;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style as Cells};

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalCapabilities {
    /// Unicode, otherwise ASCII only.
    pub has_unicode: bool,
    /// Colours; they repeat information of the text.
    pub has_colour: bool,
    /// Whether a user can press keys, which are then explained.
    pub has_keyboard: bool,
}

/// Emphasis of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// None.
    Plain,
    /// A label.
    Dim,
    /// A heading.
    Bold,
    Curve,
    /// A warning.
    Alert,
}

/// A screen under construction.
pub struct Canvas<'b> {
    buffer: &'b mut Buffer,
    style: TextStyle,
    /// Capabilities of the terminal.
    pub capabilities: TerminalCapabilities,
}

impl<'b> Canvas<'b> {
    pub fn new(buffer: &'b mut Buffer, capabilities: TerminalCapabilities) -> Canvas<'b> {
        let style = TextStyle { colour: false, unicode: capabilities.has_unicode, width: usize::MAX };
        Canvas { buffer, style, capabilities }
    }

    fn cells(&self, paint: Paint) -> Cells {
        let coloured =
            |style: Cells, colour| if self.capabilities.has_colour { style.fg(colour) } else { style };
        match paint {
            Paint::Plain => Cells::new(),
            Paint::Dim => Cells::new().add_modifier(Modifier::DIM),
            Paint::Bold => Cells::new().add_modifier(Modifier::BOLD),
            Paint::Curve => coloured(Cells::new(), Color::Cyan),
            Paint::Alert => coloured(Cells::new().add_modifier(Modifier::BOLD), Color::Yellow),
        }
    }

    /// Returns a text as displayed.
    pub fn sanitize(&self, text: &str) -> String {
        self.style.to_one_line(text)
    }

    pub fn display_width(&self, text: &str) -> u16 {
        u16::try_from(display_width(&self.sanitize(text))).unwrap_or(u16::MAX)
    }

    /// Writes a text left-aligned into `columns`, truncated with a mark if it is longer. Returns the columns
    /// used.
    pub fn write_left(&mut self, x: u16, y: u16, columns: u16, text: &str, paint: Paint) -> u16 {
        let area = *self.buffer.area();
        let columns = columns.min(area.width.saturating_sub(x));
        if columns == 0 || y >= area.height {
            return 0;
        }
        let mut shown = self.sanitize(text);
        if display_width(&shown) > usize::from(columns) {
            shown = shown.chars().take(usize::from(columns) - 1).collect();
            shown.push(if self.capabilities.has_unicode { '…' } else { '~' });
        }
        let (end, _) = self.buffer.set_stringn(x, y, shown, usize::from(columns), self.cells(paint));
        end - x
    }

    pub fn write_right(&mut self, x: u16, y: u16, columns: u16, text: &str, paint: Paint) {
        let blank = columns.saturating_sub(self.display_width(text));
        self.write_left(x.saturating_add(blank), y, columns - blank, text, paint);
    }

    /// Writes texts one after the other with two blanks between, as many as fit completely.
    pub fn write_row(&mut self, area: Rect, texts: &[(String, Paint)]) {
        let mut x = area.x;
        for (text, paint) in texts {
            let columns = area.right().saturating_sub(x);
            if text.is_empty() {
                continue;
            }
            if x > area.x && self.display_width(text) > columns {
                return;
            }
            x = x.saturating_add(self.write_left(x, area.y, columns, text, *paint)).saturating_add(2);
        }
    }

    /// A curve in one line: a mark for each value, `largest` the highest; a gap where unknown.
    pub fn draw_sparkline(&mut self, x: u16, y: u16, values: &[Option<f64>], largest: f64) {
        let mark = |value: &Option<f64>| {
            value.map_or(' ', |value| self.style.spark_char(fraction_of(value, largest)))
        };
        let text: String = values.iter().map(mark).collect();
        self.write_left(x, y, u16::try_from(values.len()).unwrap_or(u16::MAX), &text, Paint::Curve);
    }

    /// Draws a curve of rare events: scaled to its own largest value or `scale_min`; every value above 0 is
    /// visible.
    pub fn draw_event_sparkline(&mut self, x: u16, y: u16, values: &[Option<f64>], scale_min: f64) {
        let largest = values.iter().flatten().copied().fold(scale_min, f64::max);
        let seen = |value: f64| if value > 0.0 { value.max(largest / 8.0) } else { value };
        let values: Vec<Option<f64>> = values.iter().map(|value| value.map(seen)).collect();
        self.draw_sparkline(x, y, &values, largest);
    }

    pub fn write_char(&mut self, x: u16, y: u16, character: char, paint: Paint) {
        let cells = self.cells(paint);
        if let Some(cell) = self.buffer.cell_mut((x, y)) {
            cell.set_char(character).set_style(cells);
        }
    }

    /// Highlights the selected line: reversed if supported, and always marked.
    pub fn highlight(&mut self, area: Rect) {
        let mark = if self.capabilities.has_unicode { '›' } else { '>' };
        self.write_char(area.x, area.y, mark, Paint::Bold);
        let inside = area.intersection(*self.buffer.area());
        self.buffer.set_style(inside, Cells::new().add_modifier(Modifier::BOLD));
    }
}

/// Returns a value as a share of the largest; 0 if that is 0.
pub fn fraction_of(value: f64, largest: f64) -> f64 {
    if largest > 0.0 { (value / largest).clamp(0.0, 1.0) } else { 0.0 }
}

/// Sign of an unknown value.
pub const ABSENT: &str = "–";

/// Formats an amount of memory, or the placeholder.
pub fn format_memory(amount: Option<Bytes>) -> String {
    amount.map_or_else(|| ABSENT.to_owned(), style::format_bytes)
}

/// Formats a number in at most five columns: three digits and a letter for thousands.
pub fn format_short(value: Option<f64>) -> String {
    const UNIT_PREFIXES: [(f64, &str); 7] =
        [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"), (1e18, "E")];
    let Some(value) = value.filter(|value| value.is_finite()) else { return ABSENT.to_owned() };
    let size = value.abs();
    if size > 0.0 && size < 0.005 {
        return "<0.01".to_owned();
    }
    // 999.5 would need four digits, so it moves on to the next unit.
    let fits = |&&(step, _): &&(f64, &str)| size >= step * 0.9995;
    let (step, unit) = UNIT_PREFIXES.iter().rev().find(fits).unwrap_or(&UNIT_PREFIXES[0]);
    if size >= 1e21 {
        return format!("{value:.0e}");
    }
    format!("{}{unit}", style::format_three_digits(value / step))
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
            assert_eq!(format_short(value), text, "{value:?}");
            assert!(text.chars().count() <= 5);
        }
    }

    #[test]
    fn nothing_is_written_outside() {
        let capabilities = TerminalCapabilities { has_unicode: true, has_colour: true, has_keyboard: true };
        let mut buffer = Buffer::empty(Rect::new(0, 0, 4, 2));
        let mut pen = Canvas::new(&mut buffer, capabilities);
        pen.write_left(2, 0, 99, "abcdef", Paint::Plain);
        pen.write_left(0, 7, 9, "x", Paint::Plain);
        pen.write_left(9, 0, 9, "x", Paint::Plain);
        pen.write_right(0, 1, 4, "ab", Paint::Plain);
        pen.write_char(9, 9, 'x', Paint::Plain);
        pen.highlight(Rect::new(3, 1, 9, 9));
        pen.draw_sparkline(0, 0, &[Some(0.0), None, Some(f64::NAN), Some(9.0)], 0.0);
        let text: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
        assert_eq!(text, "▁ ▁▁  a›");
    }
}
