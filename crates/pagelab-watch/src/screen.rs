//! Rendering of the view's state to the cells of a screen of any size: a pure function.

mod canvas;
mod chart;
mod compact;
mod full;
mod labels;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::view::View;
pub use canvas::TerminalCapabilities;
use canvas::{Canvas, Paint};

/// Minimum size that shows all essential values.
pub const FULL_SIZE: (u16, u16) = (80, 24);
/// Minimum size of any view.
pub const MIN_SIZE: (u16, u16) = (20, 5);

/// Renders the screen for a terminal of this many columns and rows.
pub fn render(view: &View, width: u16, height: u16, capabilities: TerminalCapabilities) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    let mut pen = Canvas::new(&mut buffer, capabilities);
    let fits = |(columns, rows): (u16, u16)| area.width >= columns && area.height >= rows;
    if !fits(MIN_SIZE) {
        let minimum = format!("{}×{} minimum", MIN_SIZE.0, MIN_SIZE.1);
        pen.write_left(0, 0, area.width, &minimum, Paint::Plain);
    } else if view.is_help_shown {
        labels::draw_help(&mut pen, area, view);
    } else if fits(FULL_SIZE) {
        full::draw(&mut pen, area, view);
    } else {
        compact::draw(&mut pen, area, view);
    }
    buffer
}

/// Converts a screen to lines of text without trailing blanks.
pub fn to_text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area().width).max(1);
    let mut text = String::new();
    for row in buffer.content().chunks(width) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Draws the line of keys at the bottom of a screen.
fn draw_footer(pen: &mut Canvas<'_>, area: Rect, view: &View, hint: &str) {
    let y = area.bottom() - 1;
    if !pen.capabilities.has_keyboard {
        pen.write_left(area.x + 1, y, area.width - 1, hint, Paint::Dim);
        return;
    }
    let hint_columns = if hint.is_empty() { 0 } else { pen.display_width(hint) + 2 };
    let mut x = area.x + 1;
    for (at, (key, what)) in labels::key_hints(view).into_iter().enumerate() {
        let needed = pen.display_width(key) + 1 + pen.display_width(what);
        // The keys to quit and for help come first.
        let room = area.right().saturating_sub(x + if at < 2 { 0 } else { hint_columns });
        if needed > room {
            break;
        }
        x += pen.write_left(x, y, needed, key, Paint::Bold) + 1;
        x += pen.write_left(x, y, needed, what, Paint::Dim) + 2;
    }
    let room = area.right().saturating_sub(x);
    if !hint.is_empty() && pen.display_width(hint) <= room {
        pen.write_right(x, y, room, hint, Paint::Dim);
    }
}

#[cfg(test)]
mod tests;
