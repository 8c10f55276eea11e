//! The terminal of the view: raw, on its alternate screen, and restored in every case.

use std::io::Read as _;
use std::io::{self, IsTerminal as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::output;
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::{flag, low_level};

/// Alternate screen, hidden cursor, cleared.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J";
/// Default attributes, visible cursor, primary screen.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Saved settings of the terminal while the view uses it.
static SAVED_TERMIOS: Mutex<Option<Termios>> = Mutex::new(None);

/// A terminal that shows screens. Drop restores it.
pub struct Terminal {
    shown: Buffer,
    colour: bool,
}

/// Checks that there is a suitable terminal; the error has a hint.
pub fn check_terminal() -> Result<(), Failure> {
    let hint = "use `pagelab watch --once` for one screen as text, or `pagelab record` to write to a file";
    let refuse = |why: &str| Err(Failure::cannot(FailureKind::NotAvailable, "watch", why).hint(hint));
    if !io::stdout().is_terminal() {
        return refuse("standard output is not a terminal");
    }
    if !io::stdin().is_terminal() {
        return refuse("standard input is not a terminal");
    }
    match std::env::var_os("TERM") {
        Some(term) if term == "dumb" => refuse("TERM=dumb: the terminal cannot move its cursor"),
        Some(term) if !term.is_empty() => Ok(()),
        _ => refuse("TERM is not set"),
    }
}

impl Terminal {
    /// Takes over the terminal. `gives_up` is polled while it accepts no output.
    pub fn enter(colour: bool, gives_up: impl FnMut() -> bool) -> io::Result<Terminal> {
        let before = rustix::termios::tcgetattr(io::stdin())?;
        *SAVED_TERMIOS.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let mut terminal = Terminal { shown: Buffer::empty(Rect::ZERO), colour };
        terminal.resume(gives_up)?;
        Ok(terminal)
    }

    /// Takes over the terminal again after another process may have used it; the next screen is redrawn
    /// completely.
    pub fn resume(&mut self, gives_up: impl FnMut() -> bool) -> io::Result<()> {
        let mut raw = rustix::termios::tcgetattr(io::stdin())?;
        // Signal keys stay enabled: Ctrl-C and Ctrl-Z keep their meaning.
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN);
        raw.input_modes &= !(InputModes::IXON | InputModes::ICRNL);
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        self.shown = Buffer::empty(Rect::ZERO);
        output::forward(io::stdout(), ENTER.as_bytes(), gives_up)
    }

    /// Returns columns and rows.
    pub fn size() -> (u16, u16) {
        match rustix::termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        }
    }

    /// Shows a screen: the difference from the previous one, or all of it if the size differs.
    pub fn show(&mut self, screen: Buffer, gives_up: impl FnMut() -> bool) -> io::Result<()> {
        let mut bytes = String::new();
        if self.shown.area() != screen.area() {
            bytes.push_str("\x1b[0m\x1b[2J");
            self.shown = Buffer::empty(*screen.area());
        }
        encode_diff(&self.shown, &screen, self.colour, &mut bytes);
        self.shown = screen;
        output::forward(io::stdout(), bytes.as_bytes(), gives_up)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if the view uses it. A panic also calls this before its message.
pub fn restore() {
    let saved = SAVED_TERMIOS.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = saved {
        let mut turns = 0;
        // A terminal that accepts no output for a while is treated as closed.
        let _ = output::forward(io::stdout(), LEAVE.as_bytes(), || {
            turns += 1;
            turns > 10
        });
        let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

/// Encodes the differences as text for an ECMA-48 terminal.
fn encode_diff(before: &Buffer, after: &Buffer, colour: bool, bytes: &mut String) {
    let mut cursor = None;
    let mut last_style: Option<(Modifier, Color)> = None;
    for (x, y, cell) in before.diff(after) {
        if cursor != Some((x, y)) {
            bytes.push_str(&format!("\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1));
        }
        if last_style.replace((cell.modifier, cell.fg)) != Some((cell.modifier, cell.fg)) {
            bytes.push_str(&encode_graphics(cell, colour));
        }
        bytes.push_str(cell.symbol());
        // Terminals differ in the cursor position after the last column; after wide characters the cursor is
        // positioned again too.
        let is_plain = cell.symbol().chars().count() == 1 && x + 1 < after.area().width;
        cursor = is_plain.then_some((x + 1, y));
    }
    if !bytes.is_empty() {
        bytes.push_str("\x1b[0m");
    }
}

fn encode_graphics(cell: &Cell, colour: bool) -> String {
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

/// Signals since the last query.
pub struct ViewSignals {
    /// A socket that is readable after a signal.
    pub wake: UnixStream,
    /// The exit code after a signal that ends the view; 0 if no signal arrived.
    exit_code: Arc<AtomicUsize>,
    /// Whether each of the other signals has arrived.
    flags: [(i32, Arc<AtomicBool>); 4],
}

impl ViewSignals {
    /// Installs handlers for the signals that would leave the terminal in a raw state.
    pub fn watch() -> io::Result<ViewSignals> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let flags = [SIGTSTP, SIGQUIT, SIGCONT, SIGWINCH].map(|signal| (signal, Arc::default()));
        let signals = ViewSignals { wake, exit_code: Arc::default(), flags };
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register_usize(signal, signals.exit_code.clone(), 128 + signal as usize)?;
        }
        for (signal, flag) in &signals.flags {
            flag::register(*signal, flag.clone())?;
        }
        // The flag of a signal is set before the byte is written: actions run in the order of registration.
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGQUIT, SIGCONT, SIGWINCH] {
            low_level::pipe::register(signal, woken.try_clone()?)?;
        }
        Ok(signals)
    }

    /// Returns the exit code after a signal that ends the view, if one arrived.
    pub fn exit_code(&self) -> Option<u8> {
        u8::try_from(self.exit_code.load(Ordering::Relaxed)).ok().filter(|&code| code > 0)
    }

    /// Takes a signal that kills (SIGQUIT) or stops the process by default; its default action is carried out
    /// once the terminal is restored.
    pub fn take_stop(&self) -> Option<i32> {
        let (quit, stopped) = (self.take_signal(SIGQUIT), self.take_signal(SIGTSTP));
        quit.then_some(SIGQUIT).or(stopped.then_some(SIGTSTP))
    }

    /// Returns whether this signal has arrived since the last query.
    pub fn take_signal(&self, signal: i32) -> bool {
        self.flags.iter().any(|(of, flag)| *of == signal && flag.swap(false, Ordering::Relaxed))
    }

    /// Drains the bytes of the socket.
    pub fn drain(&self) {
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|count| count > 0) {}
    }
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
        encode_diff(&before, &after, true, &mut bytes);
        assert_eq!(bytes, "");
        after.set_string(1, 0, "XY", Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD));
        after.set_string(3, 1, "z", Style::new());
        encode_diff(&before, &after, true, &mut bytes);
        assert_eq!(bytes, "\x1b[1;2H\x1b[0;1;36mXY\x1b[2;4H\x1b[0mz\x1b[0m");
        bytes.clear();
        encode_diff(&before, &after, false, &mut bytes);
        assert!(!bytes.contains("36"), "{bytes:?}");
    }
}
