//! Standard output and standard error: who may use colour, how wide it is, and nothing else.

use std::io::{self, IsTerminal, Write};

use pagelab_report::style::Style;

/// Standard output with a large buffer. Flush it: an error at drop would be lost.
pub fn stdout() -> io::BufWriter<io::StdoutLock<'static>> {
    io::BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

/// One line of warning or error on standard error. A closed standard error is not our business.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// What standard output can show.
pub fn style() -> Style {
    let terminal = io::stdout().is_terminal();
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let width = if terminal { terminal_width().unwrap_or(80) } else { Style::PLAIN.width };
    Style { colour: terminal && !no_colour && !dumb, unicode: !dumb && locale_is_utf8(terminal), width }
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

/// Ends the process after a signal, once all changes are undone: the one way out besides `main`'s return.
#[allow(clippy::exit, reason = "the thread that watches for signals cannot return from main")]
pub fn signalled(code: i32, outcomes: &[pagelab_host::guard::Outcome]) -> ! {
    for outcome in outcomes {
        complain(&format!("pagelab: {}: {}", outcome.what, outcome.fate.word().replace('_', " ")));
    }
    std::process::exit(code)
}
