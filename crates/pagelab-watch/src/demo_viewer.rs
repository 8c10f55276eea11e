//! Terminal view of the demonstration of an allocator: one key per step.

use std::cell::Cell;

use pagelab_report::sim::demo::{self as shown, Demo, StyledLine};
use pagelab_report::style::{TextStyle, Tint};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style as Cells};

use pagelab_command::exit::{Exit, Failure};
use pagelab_command::output;

use crate::keys::{Key, KeyResponse};
use crate::{Scene, show_scene};

struct DemoViewer {
    demo: Demo,
    style: TextStyle,
    /// Policy that is shown in full.
    lane: usize,
    step: usize,
    /// Lines scrolled off above the screen.
    scroll_lines: usize,
    /// Maximum of these lines in the latest screen.
    scroll_max: Cell<usize>,
}

/// Shows the view until the user quits.
pub fn run(demo: Demo, style: TextStyle) -> Result<(), Failure> {
    let mut viewer = DemoViewer { demo, style, lane: 0, step: 0, scroll_lines: 0, scroll_max: Cell::new(0) };
    match show_scene(&mut viewer, style.colour)? {
        code if code == Exit::Success as u8 => Ok(()),
        // After a signal: the terminal is restored, and nothing else was changed.
        code => output::exit_with_signal_code(i32::from(code)),
    }
}

impl DemoViewer {
    fn steps(&self) -> usize {
        self.demo.policies.get(self.lane).map_or(0, |lane| lane.steps.len())
    }

    /// All lines; those that do not fit are reached by scrolling.
    fn lines(&self, width: usize) -> Vec<StyledLine> {
        let Some(lane) = self.demo.policies.get(self.lane) else { return Vec::new() };
        let mut lines = shown::step_lines(&self.demo, lane, self.step, width);
        if self.step + 1 == lane.steps.len() {
            lines.push(Vec::new());
            lines.extend(shown::ending_lines(&self.demo, width));
        }
        for (at, other) in self.demo.policies.iter().enumerate() {
            if at != self.lane {
                lines.push(Vec::new());
                lines.extend(shown::other_policies_lines(&self.demo, other, self.step));
            }
        }
        lines
    }
}

impl Scene for DemoViewer {
    fn draw(&self, width: u16, height: u16) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        let room = height.saturating_sub(1);
        let lines = self.lines(usize::from(width));
        let most = lines.len().saturating_sub(usize::from(room));
        let above = self.scroll_lines.min(most);
        self.scroll_max.set(most);
        for (y, line) in (0..room).zip(lines.into_iter().skip(above)) {
            let mut x = 0;
            for span in line {
                let text = self.style.to_one_line(&span.text);
                let left = usize::from(width.saturating_sub(x));
                (x, _) = buffer.set_stringn(x, y, text, left, cells_for_tint(span.tint, self.style.colour));
            }
        }
        if height > 0 {
            let keys = match (above, most - above) {
                (0, 0) => "Enter next   b back   p next policy   Home End   q quit".to_owned(),
                (above, below) => {
                    format!("Enter next  b back  p policy  q quit  lines: Up {above}, Down {below}")
                }
            };
            buffer.set_stringn(0, room, keys, usize::from(width), cells_for_tint(Tint::Dim, false));
        }
        buffer
    }

    fn handle_key(&mut self, key: Key, _now_ns: u64) -> KeyResponse {
        let last_step = self.steps().saturating_sub(1);
        match key {
            Key::Char('q') | Key::Escape => return KeyResponse::Quit,
            Key::Enter | Key::Char(' ' | 'n') | Key::Right | Key::PageDown => {
                self.step = (self.step + 1).min(last_step);
            }
            Key::Char('b') | Key::Left | Key::PageUp => self.step = self.step.saturating_sub(1),
            Key::Down => self.scroll_lines = (self.scroll_lines + 1).min(self.scroll_max.get()),
            Key::Up => self.scroll_lines = self.scroll_lines.saturating_sub(1),
            Key::Char('p') => self.lane = (self.lane + 1) % self.demo.policies.len().max(1),
            Key::Home => self.step = 0,
            Key::End => self.step = last_step,
            _ => return KeyResponse::Ignored,
        }
        KeyResponse::Redraw
    }
}

fn cells_for_tint(tint: Tint, colour: bool) -> Cells {
    let of = |shade| if colour { Cells::new().fg(shade) } else { Cells::new() };
    match tint {
        Tint::Plain => Cells::new(),
        Tint::Dim => Cells::new().add_modifier(Modifier::DIM),
        Tint::Bold => Cells::new().add_modifier(Modifier::BOLD),
        Tint::Green => of(Color::Green),
        Tint::Yellow => of(Color::Yellow),
        Tint::Blue => of(Color::Blue),
        Tint::Magenta => of(Color::Magenta),
        Tint::Cyan => of(Color::Cyan),
    }
}
