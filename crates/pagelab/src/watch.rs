//! The view on a terminal: samples, keys, signals and sizes in, screens out.
//!
//! | part | |
//! |---|---|
//! | [`live`], [`player`] over [`replay`] | where samples come from |
//! | [`view`] | the state: pure |
//! | [`screen`] | state to cells: pure |
//! | [`terminal`], [`keys`], [`signals`] | the terminal |

pub mod counter;
pub mod keys;
pub mod live;
pub mod player;
pub mod replay;
pub mod sample;
pub mod screen;
mod signals;
pub mod terminal;
pub mod view;

use std::io;

use pagelab_sys::clock;
use ratatui_core::buffer::Buffer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::exit::{Exit, Failure};
use keys::{Key, Keys};
use live::Live;
use player::Player;
use screen::Look;
use signals::Signals;
use terminal::Terminal;
use view::{Asked, View};

/// Where samples come from.
pub enum Source<'a> {
    /// This machine.
    Live(Box<Live>),
    /// A recording.
    Replay(Box<Player<'a>>),
}

impl Source<'_> {
    /// When something is due, in nanoseconds of CLOCK_BOOTTIME; `None` if nothing is until a key is pressed.
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        match self {
            Source::Live(live) => Some(live.due_ns()),
            Source::Replay(player) => player.due_ns(now_ns),
        }
    }

    /// Brings the view up to this moment. Whether it has changed.
    pub fn advance(&mut self, now_ns: u64, view: &mut View) -> bool {
        match self {
            Source::Live(live) => live.advance(now_ns, view),
            Source::Replay(player) => player.advance(now_ns, view),
        }
    }

    fn press(&mut self, key: Key, now_ns: u64, view: &mut View) -> bool {
        match self {
            Source::Live(live) => live.press(key, now_ns, view),
            Source::Replay(player) => player.press(key, now_ns, view),
        }
    }
}

/// Something that is shown on a terminal until it is left.
pub trait Scene {
    /// When something is due, in nanoseconds of CLOCK_BOOTTIME; `None` if nothing is until a key is pressed.
    fn due_ns(&self, _now_ns: u64) -> Option<u64> {
        None
    }

    /// Brings it up to this moment. Whether it has changed.
    fn advance(&mut self, _now_ns: u64) -> bool {
        false
    }

    /// The screen for a terminal of this many columns and rows.
    fn draw(&self, width: u16, height: u16) -> Buffer;

    /// A key.
    fn press(&mut self, key: Key, now_ns: u64) -> Answer;
}

/// What a key comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is left.
    Quit,
    /// It is drawn again.
    Redraw,
    /// Nothing.
    Nothing,
}

/// The view of a machine or a recording.
struct Watching<'a> {
    source: Source<'a>,
    view: View,
    look: Look,
}

impl Scene for Watching<'_> {
    fn due_ns(&self, now_ns: u64) -> Option<u64> {
        self.source.due_ns(now_ns)
    }

    fn advance(&mut self, now_ns: u64) -> bool {
        self.source.advance(now_ns, &mut self.view)
    }

    fn draw(&self, width: u16, height: u16) -> Buffer {
        screen::render(&self.view, width, height, self.look)
    }

    fn press(&mut self, key: Key, now_ns: u64) -> Answer {
        match self.view.press(key) {
            Asked::Quit => Answer::Quit,
            Asked::Redraw => Answer::Redraw,
            Asked::Elsewhere if self.source.press(key, now_ns, &mut self.view) => Answer::Redraw,
            Asked::Elsewhere => Answer::Nothing,
        }
    }
}

/// How long the rest of a key's bytes is waited for.
const KEY_PATIENCE_NS: u64 = 50_000_000;
/// The longest wait, so that no clock that jumps stops the view for good.
const WAIT_MAX_NS: u64 = 10_000_000_000;

/// What a wait brought.
enum Input {
    /// Keys, perhaps none.
    Bytes(usize),
    /// The terminal has gone.
    HungUp,
}

/// Shows the view until it is left, and returns the exit code.
pub fn run(source: Source<'_>, view: View, look: Look) -> Result<u8, Failure> {
    play(&mut Watching { source, view, look }, look.colour)
}

/// Shows a scene until it is left, and returns the exit code.
pub fn play(scene: &mut dyn Scene, colour: bool) -> Result<u8, Failure> {
    let system =
        |error: io::Error| Failure::new(Exit::NotAvailable, "cannot watch for signals").because(error);
    let signals = Signals::watch().map_err(system)?;
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        terminal::give_back();
        before(what);
    }));
    let ended = shown(scene, colour, &signals);
    terminal::give_back();
    match ended {
        Ok(code) => Ok(code),
        // Nobody reads what would be said.
        Err(_) if signals.ended().is_some() => Ok(signals.ended().unwrap_or(Exit::Bug as u8)),
        Err(error) if hung_up(&error) => Ok(AFTER_HANGUP),
        Err(error) => Err(error.into()),
    }
}

/// As after SIGHUP: the terminal went away.
const AFTER_HANGUP: u8 = 129;

fn hung_up(error: &io::Error) -> bool {
    let gone = [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::PIPE, Errno::BADF];
    error.raw_os_error().is_some_and(|code| gone.iter().any(|errno| errno.raw_os_error() == code))
}

fn shown(scene: &mut dyn Scene, colour: bool, signals: &Signals) -> io::Result<u8> {
    let gives_up = || signals.ended().is_some();
    let mut terminal = Terminal::enter(colour, gives_up)?;
    let mut keys = Keys::default();
    let mut redraw = true;
    loop {
        if let Some(code) = signals.ended() {
            return Ok(code);
        }
        if let Some(stop) = signals.take_stop() {
            drop(terminal);
            stop.carry_out()?;
            terminal = Terminal::enter(colour, gives_up)?;
            redraw = true;
        }
        if signals.take_resumed() {
            // Somebody may have used the terminal meanwhile, and set it otherwise.
            terminal.resume(gives_up)?;
            redraw = true;
        }
        redraw |= signals.take_resized();
        let now_ns = clock::boottime_ns();
        redraw |= scene.advance(now_ns);
        if redraw {
            let (width, height) = Terminal::size();
            terminal.show(scene.draw(width, height), gives_up)?;
            redraw = false;
        }
        let due_ns = scene.due_ns(now_ns).unwrap_or(u64::MAX);
        let patience_ns = if keys.is_undecided() { KEY_PATIENCE_NS } else { WAIT_MAX_NS };
        let wait_ns = due_ns.saturating_sub(clock::boottime_ns()).min(patience_ns);
        let came = match wait(signals, &mut keys, wait_ns)? {
            Input::HungUp => return Ok(signals.ended().unwrap_or(AFTER_HANGUP)),
            Input::Bytes(count) => count,
        };
        while let Some(key) = keys.next(came == 0 && wait_ns == KEY_PATIENCE_NS) {
            match scene.press(key, clock::boottime_ns()) {
                Answer::Quit => return Ok(Exit::Done as u8),
                Answer::Redraw => redraw = true,
                Answer::Nothing => {}
            }
        }
    }
}

/// Waits for keys, a signal, or until the time is over.
fn wait(signals: &Signals, keys: &mut Keys, wait_ns: u64) -> io::Result<Input> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(signals.wake(), PollFlags::IN)];
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
        return Ok(Input::Bytes(0));
    }
    let mut bytes = [0; 256];
    match rustix::io::read(&stdin, &mut bytes) {
        Ok(0) if terminal.intersects(PollFlags::HUP | PollFlags::ERR) => Ok(Input::HungUp),
        Ok(count) => {
            keys.feed(&bytes[..count]);
            Ok(Input::Bytes(count))
        }
        Err(Errno::INTR | Errno::AGAIN) => Ok(Input::Bytes(0)),
        Err(_) => Ok(Input::HungUp),
    }
}
