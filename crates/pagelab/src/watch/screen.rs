//! The state of the view as the cells of a screen: a pure function, whatever the size.

mod chart;
mod compact;
mod full;
mod help;
mod pen;
mod words;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::view::View;
pub use pen::Look;
use pen::{Paint, Pen};

/// From this size on everything essential is shown.
pub const FULL: (u16, u16) = (80, 24);
/// Below this size nothing can be said.
pub const LEAST: (u16, u16) = (20, 5);

/// The screen for a terminal of this many columns and rows.
pub fn render(view: &View, width: u16, height: u16, look: Look) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    let mut pen = Pen::new(&mut buffer, look);
    let fits = |(columns, rows): (u16, u16)| area.width >= columns && area.height >= rows;
    if !fits(LEAST) {
        let wanted = format!("{}×{} is the least", LEAST.0, LEAST.1);
        pen.left(0, 0, area.width, &wanted, Paint::Plain);
    } else if view.help {
        help::draw(&mut pen, area, view);
    } else if fits(FULL) {
        full::draw(&mut pen, area, view);
    } else {
        compact::draw(&mut pen, area, view);
    }
    buffer
}

/// A screen as lines of text without blanks at their ends.
pub fn text(buffer: &Buffer) -> String {
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

/// The line of keys at the bottom of a screen.
fn footer(pen: &mut Pen<'_>, area: Rect, view: &View, hint: &str) {
    let y = area.bottom() - 1;
    if !pen.look().keys {
        pen.left(area.x + 1, y, area.width - 1, hint, Paint::Dim);
        return;
    }
    let hint_columns = if hint.is_empty() { 0 } else { pen.width(hint) + 2 };
    let mut x = area.x + 1;
    for (at, (key, what)) in words::keys(view).into_iter().enumerate() {
        let needed = pen.width(key) + 1 + pen.width(what);
        // How to leave and how to learn more is said first of all.
        let room = area.right().saturating_sub(x + if at < 2 { 0 } else { hint_columns });
        if needed > room {
            break;
        }
        x += pen.left(x, y, needed, key, Paint::Bold) + 1;
        x += pen.left(x, y, needed, what, Paint::Dim) + 2;
    }
    let room = area.right().saturating_sub(x);
    if !hint.is_empty() && pen.width(hint) <= room {
        pen.right(x, y, room, hint, Paint::Dim);
    }
}

#[cfg(test)]
mod tests;
