//! The demonstration on a terminal: a key for each step.

use std::cell::Cell;

use pagelab_report::sim::demo::{self as shown, Demo, Line};
use pagelab_report::style::{Style, Tint};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style as Cells};

use crate::exit::{Exit, Failure};
use crate::out;
use crate::watch::keys::Key;
use crate::watch::{self, Answer, Scene};

/// What is on the screen.
struct Viewer {
    demo: Demo,
    style: Style,
    /// The policy that is shown in full.
    lane: usize,
    step: usize,
    /// Lines above the screen.
    above: usize,
    /// The most of them, as it was drawn last.
    above_max: Cell<usize>,
}

/// Shows it until it is left.
pub fn run(demo: Demo, style: Style) -> Result<(), Failure> {
    let mut viewer = Viewer { demo, style, lane: 0, step: 0, above: 0, above_max: Cell::new(0) };
    match watch::play(&mut viewer, style.colour)? {
        code if code == Exit::Done as u8 => Ok(()),
        // After a signal: the terminal is as it was, and nothing else was changed.
        code => out::ended_by(i32::from(code)),
    }
}

impl Viewer {
    fn steps(&self) -> usize {
        self.demo.lanes.get(self.lane).map_or(0, |lane| lane.steps.len())
    }

    /// All that there is to say; what does not fit is scrolled to.
    fn lines(&self, width: usize) -> Vec<Line> {
        let Some(lane) = self.demo.lanes.get(self.lane) else { return Vec::new() };
        let mut lines = shown::lines(&self.demo, lane, self.step, width);
        if self.step + 1 == lane.steps.len() {
            lines.push(Vec::new());
            lines.extend(shown::ending(&self.demo, width));
        }
        for (at, other) in self.demo.lanes.iter().enumerate() {
            if at != self.lane {
                lines.push(Vec::new());
                lines.extend(shown::beside(&self.demo, other, self.step));
            }
        }
        lines
    }
}

impl Scene for Viewer {
    fn draw(&self, width: u16, height: u16) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        let room = height.saturating_sub(1);
        let lines = self.lines(usize::from(width));
        let most = lines.len().saturating_sub(usize::from(room));
        let above = self.above.min(most);
        self.above_max.set(most);
        for (y, line) in (0..room).zip(lines.into_iter().skip(above)) {
            let mut x = 0;
            for span in line {
                let text = self.style.one_line(&span.text);
                let left = usize::from(width.saturating_sub(x));
                (x, _) = buffer.set_stringn(x, y, text, left, cells(span.tint, self.style.colour));
            }
        }
        if height > 0 {
            let keys = match (above, most - above) {
                (0, 0) => "Enter next   b back   p another policy   Home End   q quit".to_owned(),
                (above, below) => {
                    format!("Enter next  b back  p policy  q quit  lines: Up {above}, Down {below}")
                }
            };
            buffer.set_stringn(0, room, keys, usize::from(width), cells(Tint::Dim, false));
        }
        buffer
    }

    fn press(&mut self, key: Key, _now_ns: u64) -> Answer {
        let last = self.steps().saturating_sub(1);
        match key {
            Key::Char('q') | Key::Escape => return Answer::Quit,
            Key::Enter | Key::Char(' ' | 'n') | Key::Right | Key::PageDown => {
                self.step = (self.step + 1).min(last);
            }
            Key::Char('b') | Key::Left | Key::PageUp => self.step = self.step.saturating_sub(1),
            Key::Down => self.above = (self.above + 1).min(self.above_max.get()),
            Key::Up => self.above = self.above.saturating_sub(1),
            Key::Char('p') => self.lane = (self.lane + 1) % self.demo.lanes.len().max(1),
            Key::Home => self.step = 0,
            Key::End => self.step = last,
            _ => return Answer::Nothing,
        }
        Answer::Redraw
    }
}

fn cells(tint: Tint, colour: bool) -> Cells {
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
