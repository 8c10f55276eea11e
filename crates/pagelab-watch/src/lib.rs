//! The terminal view: samples, keys, signals and terminal sizes as input, screens as output.
//!
//! | part | |
//! |---|---|
//! | [`live`], [`player`] over [`replay`] | sources of samples |
//! | `view` | the state: pure |
//! | [`screen`] | state to cells: pure |
//! | [`terminal`], `keys`, `signals` | the terminal |
//! | [`demo_viewer`] | the demonstration of an allocator |

use std::io;

use pagelab_command::exit::{Exit, Failure};
use pagelab_command::output::OutputError;
use pagelab_sys::clock;
use ratatui_core::buffer::Buffer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGCONT, SIGWINCH};

use keys::{Key, KeyDecoder, KeyResponse};
use screen::TerminalCapabilities;
use terminal::{Terminal, ViewSignals};
use view::View;

pub mod demo_viewer;
mod keys;
pub mod live;
pub mod player;
pub mod replay;
mod sample;
pub mod screen;
pub mod terminal;
mod view;

/// Source of samples: this machine, or a recording.
pub trait Source {
    /// Returns when something is due, in nanoseconds of CLOCK_BOOTTIME; `None`: only a key is awaited.
    fn due_ns(&self, now_ns: u64) -> Option<u64>;

    /// Updates the view to this time. Returns whether it has changed.
    fn advance(&mut self, now_ns: u64, view: &mut View) -> bool;

    /// Handles keys that concern the samples. Returns whether the key has a meaning.
    fn handle_key(&mut self, key: Key, now_ns: u64, view: &mut View) -> bool;
}

/// Content of the terminal until the user quits.
pub trait Scene {
    /// Returns when something is due, in nanoseconds of CLOCK_BOOTTIME; `None`: only a key is awaited.
    fn due_ns(&self, _now_ns: u64) -> Option<u64> {
        None
    }

    /// Updates the content to this time. Returns whether it has changed.
    fn advance(&mut self, _now_ns: u64) -> bool {
        false
    }

    /// The screen for a terminal of this many columns and rows.
    fn draw(&self, width: u16, height: u16) -> Buffer;

    /// Handles a key.
    fn handle_key(&mut self, key: Key, now_ns: u64) -> KeyResponse;
}

/// The view of a machine or a recording.
struct WatchScene<'a> {
    source: Box<dyn Source + 'a>,
    view: View,
    capabilities: TerminalCapabilities,
}

impl Scene for WatchScene<'_> {
    fn due_ns(&self, now_ns: u64) -> Option<u64> {
        self.source.due_ns(now_ns)
    }

    fn advance(&mut self, now_ns: u64) -> bool {
        self.source.advance(now_ns, &mut self.view)
    }

    fn draw(&self, width: u16, height: u16) -> Buffer {
        screen::render(&self.view, width, height, self.capabilities)
    }

    fn handle_key(&mut self, key: Key, now_ns: u64) -> KeyResponse {
        match self.view.handle_key(key) {
            KeyResponse::Ignored if self.source.handle_key(key, now_ns, &mut self.view) => {
                KeyResponse::Redraw
            }
            response => response,
        }
    }
}

/// Time that the view waits for the remaining bytes of a key.
const KEY_TIMEOUT_NS: u64 = 50_000_000;
/// Maximum wait, so that a clock that jumps does not block the view.
const WAIT_MAX_NS: u64 = 10_000_000_000;

/// Shows the view until the user quits, and returns the exit code.
pub fn run(
    source: Box<dyn Source + '_>,
    view: View,
    capabilities: TerminalCapabilities,
) -> Result<u8, Failure> {
    show_scene(&mut WatchScene { source, view, capabilities }, capabilities.has_colour)
}

/// Shows a scene until the user quits, and returns the exit code.
pub fn show_scene(scene: &mut dyn Scene, colour: bool) -> Result<u8, Failure> {
    let system = |error: io::Error| Failure::no_signal_handlers(error);
    let signals = ViewSignals::watch().map_err(system)?;
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        terminal::restore();
        before(what);
    }));
    let ended = run_scene(scene, colour, &signals);
    terminal::restore();
    match ended {
        Ok(code) => Ok(code),
        // The terminal is closed, so an error message has no reader.
        Err(_) if signals.exit_code().is_some() => Ok(signals.exit_code().unwrap_or(Exit::Bug as u8)),
        Err(error) if is_hang_up(&error) => Ok(EXIT_SIGHUP),
        Err(error) => Err(OutputError(error).into()),
    }
}

/// Exit code as after SIGHUP: the terminal is disconnected.
const EXIT_SIGHUP: u8 = 129;

fn is_hang_up(error: &io::Error) -> bool {
    let gone = [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::PIPE, Errno::BADF];
    error.raw_os_error().is_some_and(|code| gone.iter().any(|errno| errno.raw_os_error() == code))
}

fn run_scene(scene: &mut dyn Scene, colour: bool, signals: &ViewSignals) -> io::Result<u8> {
    let gives_up = || signals.exit_code().is_some();
    let mut terminal = Terminal::enter(colour, gives_up)?;
    let mut keys = KeyDecoder::default();
    let mut redraw = true;
    loop {
        if let Some(code) = signals.exit_code() {
            return Ok(code);
        }
        if let Some(signal) = signals.take_stop() {
            drop(terminal);
            signal_hook::low_level::emulate_default_handler(signal)?;
            terminal = Terminal::enter(colour, gives_up)?;
            redraw = true;
        }
        if signals.take_signal(SIGCONT) {
            // Another process may have used the terminal and changed its settings.
            terminal.resume(gives_up)?;
            redraw = true;
        }
        redraw |= signals.take_signal(SIGWINCH);
        let now_ns = clock::boottime_ns();
        redraw |= scene.advance(now_ns);
        if redraw {
            let (width, height) = Terminal::size();
            terminal.show(scene.draw(width, height), gives_up)?;
            redraw = false;
        }
        let due_ns = scene.due_ns(now_ns).unwrap_or(u64::MAX);
        let patience_ns = if keys.is_undecided() { KEY_TIMEOUT_NS } else { WAIT_MAX_NS };
        let wait_ns = due_ns.saturating_sub(clock::boottime_ns()).min(patience_ns);
        let Some(received) = wait_for_input(signals, &mut keys, wait_ns)? else {
            return Ok(signals.exit_code().unwrap_or(EXIT_SIGHUP));
        };
        while let Some(key) = keys.next(received == 0 && wait_ns == KEY_TIMEOUT_NS) {
            match scene.handle_key(key, clock::boottime_ns()) {
                KeyResponse::Quit => return Ok(Exit::Success as u8),
                KeyResponse::Redraw => redraw = true,
                KeyResponse::Ignored => {}
            }
        }
    }
}

/// Waits for keys, for a signal, or for the timeout. Returns the bytes of keys; `None`: the terminal is
/// disconnected.
fn wait_for_input(signals: &ViewSignals, keys: &mut KeyDecoder, wait_ns: u64) -> io::Result<Option<usize>> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&signals.wake, PollFlags::IN)];
    let timeout =
        Timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let (terminal, woken) = (fds[0].revents(), fds[1].revents());
    if !woken.is_empty() {
        signals.drain();
    }
    if terminal.is_empty() {
        return Ok(Some(0));
    }
    let mut bytes = [0; 256];
    match rustix::io::read(&stdin, &mut bytes) {
        Ok(0) if terminal.intersects(PollFlags::HUP | PollFlags::ERR) => Ok(None),
        Ok(count) => {
            keys.feed(&bytes[..count]);
            Ok(Some(count))
        }
        Err(Errno::INTR | Errno::AGAIN) => Ok(Some(0)),
        Err(_) => Ok(None),
    }
}
