//! Standard output and standard error: colour, width, warnings and forwarding.

use std::fmt::{Arguments, Display};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use pagelab_host::guard::{ChangeOutcome, UndoOutcome};
use pagelab_report::json;
use pagelab_report::memory_picture::terminal::TerminalColours;
use pagelab_report::style::TextStyle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

use crate::exit::{Failure, FailureKind};
use crate::progress::{self, StatusEnd, StatusKind};

/// Standard output with a large buffer. The caller must flush it: an error at drop is lost.
#[derive(Debug)]
pub struct BufferedStdout(io::BufWriter<io::StdoutLock<'static>>);

impl BufferedStdout {
    /// What `write!` calls: its error is that of the output.
    pub fn write_fmt(&mut self, text: Arguments<'_>) -> Result<(), OutputError> {
        self.0.write_fmt(text).map_err(OutputError)
    }

    /// Writes these bytes.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.0.write_all(bytes).map_err(OutputError)
    }

    /// Writes what is in the buffer.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        self.0.flush().map_err(OutputError)
    }
}

/// Returns standard output with a large buffer.
pub fn stdout() -> BufferedStdout {
    BufferedStdout(io::BufWriter::with_capacity(1 << 16, io::stdout().lock()))
}

/// Error of writing standard output. Other errors of input and output name their file, and are no such error.
#[derive(Debug)]
pub struct OutputError(pub io::Error);

impl From<OutputError> for Failure {
    fn from(OutputError(cause): OutputError) -> Failure {
        Failure::output_error(cause)
    }
}

/// Prints a text on standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(OutputError)?)
}

/// Formats a document as JSON.
pub fn json_text(document: &impl Serialize) -> Result<String, Failure> {
    json::to_json_text(document).map_err(|error| Failure::not_serialized("JSON", error))
}

/// Prints a document as JSON.
pub fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    print(&json_text(document)?)
}

/// Prints a warning or an error on standard error, with control characters escaped: names in it may come from
/// untrusted sources. A closed standard error is ignored.
pub fn warn(message: &str) {
    let text = TextStyle::PLAIN.to_displayable(&split_hint(message));
    let text = match io::stderr().is_terminal().then(|| width_of(io::stderr())).flatten() {
        Some(width) => wrap_long_lines(&text, width),
        None => text,
    };
    let _ = writeln!(io::stderr().lock(), "{text}");
    progress::postpone_log_line();
}

/// Wraps the lines above this width at words. The following lines are indented below the text of the first.
fn wrap_long_lines(text: &str, width: usize) -> String {
    let style = TextStyle { width, ..TextStyle::PLAIN };
    let wrap = |line: &str| {
        if line.chars().count() <= width {
            return line.to_owned();
        }
        let words = line.trim_start_matches(' ');
        let indent = line.len() - words.len();
        let next = indent + if words.starts_with("hint: ") { "hint: ".len() } else { 2 };
        style.wrap_text(words, indent, next)
    };
    text.split('\n').map(wrap).collect::<Vec<_>>().join("\n")
}

/// The error that ends a command, on standard error: `error: cannot VERB OBJECT: reason`, and its hint.
pub fn print_error(message: &str) {
    warn(&format!("error: {message}"));
}

/// A message whose hint, behind `; hint: `, has a line of its own.
fn split_hint(message: &str) -> String {
    message.replace("; hint: ", "\nhint: ")
}

/// Prints a note if standard error is a terminal.
pub fn print_note(message: &str) {
    if io::stderr().is_terminal() {
        warn(message);
    }
}

/// Whether standard error is a terminal that can show a status line.
pub fn is_interactive() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Replaces the status line on the terminal; an empty one removes it. It is truncated to the width of the
/// terminal, since a wrapped line cannot be replaced. A log has it as a line now and then ([`progress`]).
pub fn show_status_line(line: &str) {
    if !is_interactive() {
        progress::set_status(StatusKind::Step, line, StatusEnd::Unknown);
        return;
    }
    let size = rustix::termios::tcgetwinsize(io::stderr());
    let width = size.map_or(80, |size| usize::from(size.ws_col)).max(20) - 1;
    let cut: String = TextStyle::PLAIN.to_displayable(line).chars().take(width).collect();
    let _ = write!(io::stderr().lock(), "\r\x1b[K{cut}");
}

/// Bytes that a writable pipe accepts without blocking; below PIPE_BUF.
const PIPE_CHUNK_BYTES: usize = 2 << 10;
/// Maximum wait for a reader between two calls of `gives_up`.
const WRITE_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Forwards the output of another program, unchanged and without buffering. While no reader takes it, calls
/// `gives_up` about twenty times a second: a blocking write would delay signals and deadlines too.
pub fn forward(to: impl AsFd, mut bytes: &[u8], mut gives_up: impl FnMut() -> bool) -> io::Result<()> {
    while !bytes.is_empty() {
        let ready = match poll(&mut [PollFd::new(&to, PollFlags::OUT)], Some(&WRITE_POLL_INTERVAL)) {
            Err(Errno::INTR) => 0,
            ready => ready?,
        };
        if ready == 0 {
            if gives_up() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no process is reading it"));
            }
            continue;
        }
        match rustix::io::write(&to, &bytes[..bytes.len().min(PIPE_CHUNK_BYTES)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Returns the style that standard output can show.
pub fn stdout_style() -> TextStyle {
    let terminal = io::stdout().is_terminal();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let width = if terminal { width_of(io::stdout()).unwrap_or(80) } else { TextStyle::PLAIN.width };
    TextStyle { colour: terminal && !no_colour && !dumb, unicode: !dumb && is_locale_utf8(terminal), width }
}

/// Returns the colours for a picture: as many as the terminal declares.
pub fn stdout_colours(style: &TextStyle) -> TerminalColours {
    let says = |name: &str, signs: &[&str]| {
        std::env::var(name).is_ok_and(|value| signs.iter().any(|sign| value.contains(sign)))
    };
    match style.colour && style.unicode {
        false => TerminalColours::NoColours,
        true if says("COLORTERM", &["truecolor", "24bit"]) || says("TERM", &["direct"]) => {
            TerminalColours::TrueColour
        }
        true => TerminalColours::Xterm256,
    }
}

/// Width of a terminal that is wide enough for text.
fn width_of(terminal: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col >= 40).then_some(usize::from(size.ws_col))
}

/// Whether the reader can be expected to show Unicode: a pipe always, a terminal according to its locale.
fn is_locale_utf8(terminal: bool) -> bool {
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

/// Returns the name of the signal of this exit code.
pub fn signal_name(code: i32) -> &'static str {
    pagelab_host::capture::signal_name(code - 128)
}

/// Ends the process after a signal, once all changes are undone. Prints `kept_text`, which states the kept
/// part of the measurement and may be empty, and the outcome of each change.
pub fn exit_after_signal(code: i32, kept_text: &str, outcomes: &[ChangeOutcome]) -> ! {
    let kept = if kept_text.is_empty() { String::new() } else { format!("; {kept_text}") };
    warn(&format!("note: stopped by {}{kept}", signal_name(code)));
    for outcome in outcomes {
        let undo = match (outcome.undo, outcome.detail.as_str()) {
            (UndoOutcome::OneWay, "") => "was already started and cannot be undone".to_owned(),
            (UndoOutcome::OneWay, detail) => detail.to_owned(),
            (undo, _) => undo.json_name().replace('_', " "),
        };
        warn(&format!("warning: {}: {undo}", outcome.label));
    }
    exit_with_signal_code(code)
}

/// Ends the process if a signal stopped the operation; returns any other failure.
pub fn exit_if_stopped(failure: Failure) -> Failure {
    match failure.kind() {
        FailureKind::Stopped(signal) => exit_with_stopped(failure, signal),
        _ => failure,
    }
}

/// Ends the process after a signal that stopped an operation, whose error is `error`.
pub fn exit_with_stopped(error: impl Display, signal: i32) -> ! {
    warn(&format!("warning: {error}"));
    exit_with_signal_code(128 + signal)
}

/// Ends the process after a signal: the only exit besides the return of `main`.
#[allow(clippy::exit, reason = "the thread that watches for signals cannot return from main")]
pub fn exit_with_signal_code(code: i32) -> ! {
    std::process::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_wrap_at_words_and_hints_are_indented() {
        let text =
            "error: cannot write page.html: it already exists\nhint: choose another name, or use --force";
        assert_eq!(
            wrap_long_lines(text, 40),
            "error: cannot write page.html: it\n  already exists\nhint: choose another name, or use\n      --force"
        );
        assert_eq!(wrap_long_lines(text, 80), text);
        assert_eq!(wrap_long_lines("  missing: a b", 12), "  missing: a\n    b");
    }
}
