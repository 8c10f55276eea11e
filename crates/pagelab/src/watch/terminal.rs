//! The terminal while the view has it: raw, on its other screen, and given back whatever happens.

use std::io::{self, IsTerminal as _};
use std::sync::{Mutex, PoisonError};

use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

use crate::exit::{Exit, Failure};
use crate::out;

/// The other screen, no cursor, nothing on it.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J";
/// Plain again, the cursor, the first screen.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// How the terminal was set before, while it is ours.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A terminal that shows screens. Dropped, it is as it was.
pub struct Terminal {
    shown: Buffer,
    colour: bool,
}

/// Refuses where there is no terminal that can be drawn on, with the way out.
pub fn check() -> Result<(), Failure> {
    let way_out = "`pagelab watch --once` prints one screen as text, `pagelab record` writes to a file";
    let refuse = |why: &str| Err(Failure::new(Exit::NotAvailable, format!("watch: {why}: {way_out}")));
    if !io::stdout().is_terminal() {
        return refuse("standard output is no terminal");
    }
    if !io::stdin().is_terminal() {
        return refuse("standard input is no terminal, so no key could end it");
    }
    match std::env::var_os("TERM") {
        Some(term) if term == "dumb" => refuse("TERM=dumb, a terminal that cannot move its cursor"),
        Some(term) if !term.is_empty() => Ok(()),
        _ => refuse("TERM is not set, so nothing is known of the terminal"),
    }
}

impl Terminal {
    /// Takes the terminal. `gives_up` is asked while it takes no more.
    pub fn enter(colour: bool, gives_up: impl FnMut() -> bool) -> io::Result<Terminal> {
        let before = rustix::termios::tcgetattr(io::stdin())?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let mut terminal = Terminal { shown: Buffer::empty(Rect::ZERO), colour };
        terminal.resume(gives_up)?;
        Ok(terminal)
    }

    /// Takes it again after somebody else may have used it; the next screen is drawn whole.
    pub fn resume(&mut self, gives_up: impl FnMut() -> bool) -> io::Result<()> {
        let mut raw = rustix::termios::tcgetattr(io::stdin())?;
        // Signals of keys stay: Ctrl-C and Ctrl-Z mean what they always mean.
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN);
        raw.input_modes &= !(InputModes::IXON | InputModes::ICRNL);
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        self.shown = Buffer::empty(Rect::ZERO);
        out::pass_on(io::stdout(), ENTER.as_bytes(), gives_up)
    }

    /// Columns and rows.
    pub fn size() -> (u16, u16) {
        match rustix::termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        }
    }

    /// Shows a screen: what differs from the one before, or all of it if the size does.
    pub fn show(&mut self, screen: Buffer, gives_up: impl FnMut() -> bool) -> io::Result<()> {
        let mut bytes = String::new();
        if self.shown.area() != screen.area() {
            bytes.push_str("\x1b[0m\x1b[2J");
            self.shown = Buffer::empty(*screen.area());
        }
        encode(&self.shown, &screen, self.colour, &mut bytes);
        self.shown = screen;
        out::pass_on(io::stdout(), bytes.as_bytes(), gives_up)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, if it is ours. Also called by a panic before it says what is wrong.
pub fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let mut turns = 0;
        // One that takes nothing for a while is gone, and nobody may wait for it.
        let _ = out::pass_on(io::stdout(), LEAVE.as_bytes(), || {
            turns += 1;
            turns > 10
        });
        let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

/// The differences as text for a terminal of the ECMA-48 kind.
fn encode(before: &Buffer, after: &Buffer, colour: bool, bytes: &mut String) {
    let mut cursor = None;
    let mut look: Option<(Modifier, Color)> = None;
    for (x, y, cell) in before.diff(after) {
        if cursor != Some((x, y)) {
            bytes.push_str(&format!("\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1));
        }
        if look.replace((cell.modifier, cell.fg)) != Some((cell.modifier, cell.fg)) {
            bytes.push_str(&graphics(cell, colour));
        }
        bytes.push_str(cell.symbol());
        // After the last column terminals differ in where the cursor is; wide signs are placed anew as well.
        let is_plain = cell.symbol().chars().count() == 1 && x + 1 < after.area().width;
        cursor = is_plain.then_some((x + 1, y));
    }
    if !bytes.is_empty() {
        bytes.push_str("\x1b[0m");
    }
}

fn graphics(cell: &Cell, colour: bool) -> String {
    let mut codes = String::from("\x1b[0");
    for (modifier, code) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")] {
        if cell.modifier.contains(modifier) {
            codes.push_str(code);
        }
    }
    match cell.fg {
        Color::Green if colour => codes.push_str(";32"),
        Color::Yellow if colour => codes.push_str(";33"),
        Color::Blue if colour => codes.push_str(";34"),
        Color::Magenta if colour => codes.push_str(";35"),
        Color::Cyan if colour => codes.push_str(";36"),
        _ => {}
    }
    codes.push('m');
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::style::Style;

    #[test]
    fn only_differences_are_sent() {
        let mut before = Buffer::empty(Rect::new(0, 0, 4, 2));
        before.set_string(0, 0, "abcd", Style::new());
        let mut after = before.clone();
        let mut bytes = String::new();
        encode(&before, &after, true, &mut bytes);
        assert_eq!(bytes, "");
        after.set_string(1, 0, "XY", Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD));
        after.set_string(3, 1, "z", Style::new());
        encode(&before, &after, true, &mut bytes);
        assert_eq!(bytes, "\x1b[1;2H\x1b[0;1;36mXY\x1b[2;4H\x1b[0mz\x1b[0m");
        bytes.clear();
        encode(&before, &after, false, &mut bytes);
        assert!(!bytes.contains("36"), "{bytes:?}");
    }
}
