//! Standard output and standard error: who may use colour, how wide it is, and nothing else.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use pagelab_host::guard::{Fate, Outcome};
use pagelab_report::picture::terminal::Colours;
use pagelab_report::style::Style;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Standard output with a large buffer. Flush it: an error at drop would be lost.
pub fn stdout() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

/// One line of warning or error on standard error, in which names that strangers chose do no harm. A closed
/// standard error is not our business.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", Style::PLAIN.signs(message));
}

/// A word to a person who is watching; nobody else needs it.
pub fn note(message: &str) {
    if io::stderr().is_terminal() {
        complain(message);
    }
}

/// Whether a person may be watching standard error.
pub fn is_watched() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// One line on the terminal that takes the place of the one before; an empty one takes it away. It is cut
/// where the terminal ends, since a line that wraps cannot be taken back.
pub fn status(line: &str) {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    let width = size.map_or(80, |size| usize::from(size.ws_col)).max(20) - 1;
    let cut: String = Style::PLAIN.signs(line).chars().take(width).collect();
    let _ = write!(io::stderr().lock(), "\r\x1b[K{cut}");
}

/// What a pipe that can be written to takes without waiting; less than PIPE_BUF.
const PIECE: usize = 2 << 10;
/// How long somebody who does not read is waited for before others are looked at.
const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Writes what another program said, as it is and at once. While nobody reads it, `gives_up` is asked some
/// twenty times a second: a write that waits would hold up signals and deadlines too.
pub fn pass_on(to: impl AsFd, mut bytes: &[u8], mut gives_up: impl FnMut() -> bool) -> io::Result<()> {
    while !bytes.is_empty() {
        let ready = match poll(&mut [PollFd::new(&to, PollFlags::OUT)], Some(&TURN)) {
            Err(Errno::INTR) => 0,
            ready => ready?,
        };
        if ready == 0 {
            if gives_up() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "nobody reads it"));
            }
            continue;
        }
        match rustix::io::write(&to, &bytes[..bytes.len().min(PIECE)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// What standard output can show.
pub fn style() -> Style {
    let terminal = io::stdout().is_terminal();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let width = if terminal { terminal_width().unwrap_or(80) } else { Style::PLAIN.width };
    Style { colour: terminal && !no_colour && !dumb, unicode: !dumb && locale_is_utf8(terminal), width }
}

/// Which colours a picture may use: as many as the terminal says it has.
pub fn colours(style: &Style) -> Colours {
    let says = |name: &str, signs: &[&str]| {
        std::env::var(name).is_ok_and(|value| signs.iter().any(|sign| value.contains(sign)))
    };
    match style.colour && style.unicode {
        false => Colours::None,
        true if says("COLORTERM", &["truecolor", "24bit"]) || says("TERM", &["direct"]) => Colours::True,
        true => Colours::Xterm256,
    }
}

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col >= 40).then_some(usize::from(size.ws_col))
}

/// Whether the reader can be expected to show Unicode. Pipes get UTF-8; a terminal says by its locale.
fn locale_is_utf8(terminal: bool) -> bool {
    if !terminal {
        return true;
    }
    let first = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()));
    first.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The names of the signals that end a run, by the exit code after them.
const SIGNALS: [(i32, &str); 3] = [(129, "SIGHUP"), (130, "SIGINT"), (143, "SIGTERM")];

/// The name of the signal after which this is the exit code.
pub fn signal_name(code: i32) -> &'static str {
    SIGNALS.iter().find(|(known, _)| *known == code).map_or("a signal", |(_, name)| name)
}

/// Ends the process after a signal, once all changes are undone, and says what is left: `kept` of the
/// measurement, may be empty, and the outcome of each change.
pub fn signalled(code: i32, kept: &str, outcomes: &[Outcome]) -> ! {
    let kept = if kept.is_empty() { String::new() } else { format!("; {kept}") };
    complain(&format!("pagelab: stopped by {}{kept}", signal_name(code)));
    for outcome in outcomes {
        let fate = match (outcome.fate, outcome.detail.as_str()) {
            (Fate::OneWay, "") => "was begun or done and cannot be undone".to_owned(),
            (Fate::OneWay, detail) => detail.to_owned(),
            (fate, _) => fate.word().replace('_', " "),
        };
        complain(&format!("pagelab: {}: {fate}", outcome.what));
    }
    ended_by(code)
}

/// Ends the process after a signal: the one way out besides `main`'s return.
#[allow(clippy::exit, reason = "the thread that watches for signals cannot return from main")]
pub fn ended_by(code: i32) -> ! {
    std::process::exit(code)
}
