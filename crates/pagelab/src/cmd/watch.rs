//! `pagelab watch`: a live view of this machine's memory, or the same view of a recording.

use std::path::PathBuf;
use std::time::Duration;

use pagelab_command::exit::absence_failure;
use pagelab_sys::clock;

use crate::exit::{Exit, Failure};
use crate::output;
use crate::value_parsers::{bounded_ns, parse_bounded, parse_bounded_duration};
use crate::watch::live::LiveSource;
use crate::watch::player::Player;
use crate::watch::replay::Recording;
use crate::watch::screen::{self, FULL_SIZE, MIN_SIZE, TerminalCapabilities};
use crate::watch::{Source, terminal};

const EXAMPLES: &str = "\
Examples:
  pagelab watch                     this machine, a sample every second
  pagelab watch --every 5s
  pagelab watch day.pagelab         replay a recording
  pagelab watch --once              one screen as text, for scripts
  pagelab watch --once --width 200 --height 60 day.pagelab

Keys (? lists all): q quit, space pause or play, Tab zone, + and - interval or\nspeed, r rates, z zoom; in a \
 recording arrows, PgUp, PgDn, Home, End.
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run file to replay instead of watching this machine
    #[arg(value_name = "FILE.pagelab")]
    file: Option<PathBuf>,

    /// Sampling interval, 100ms to 1h [default: 1s]
    #[arg(long, value_name = "TIME", conflicts_with = "file", value_parser = parse_interval)]
    every: Option<Duration>,

    /// Print one screen as text and exit: after one interval, or the end of a recording
    #[arg(long)]
    once: bool,

    /// Width of the screen [default: 80]
    #[arg(long, value_name = "N", requires = "once",
        value_parser = parse_bounded::<u16, { MIN_SIZE.0 as u64 }, SCREEN_SIDE_MAX>)]
    width: Option<u16>,

    /// Height of the screen [default: 24]
    #[arg(long, value_name = "N", requires = "once",
        value_parser = parse_bounded::<u16, { MIN_SIZE.1 as u64 }, SCREEN_SIDE_MAX>)]
    height: Option<u16>,
}

/// Maximum columns and rows of a printed screen.
const SCREEN_SIDE_MAX: u64 = 1000;
const DEFAULT_INTERVAL_NS: u64 = 1_000_000_000;

/// Shows the view until the user quits, or prints one screen.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let every_ns = args.every.map_or(DEFAULT_INTERVAL_NS, bounded_ns);
    let (width, height) = (args.width.unwrap_or(FULL_SIZE.0), args.height.unwrap_or(FULL_SIZE.1));
    if !args.once {
        terminal::check_terminal()?;
    }
    let (run, recording);
    let (mut source, mut view): (Box<dyn Source + '_>, _) = match &args.file {
        None => {
            let (live, view) = LiveSource::open(every_ns).map_err(absence_failure)?;
            (Box::new(live), view)
        }
        Some(file) => {
            run = pagelab_runfile::read_run_file(file)?;
            recording = Recording::from_run(&run).ok_or_else(|| {
                let expected = "meminfo, vmstat, buddyinfo or pressure over time";
                let found = format_args!("a run of `{}` without them", run.manifest.kind);
                Failure::expected(&run.name, expected, found)
                    .hint("show it with `pagelab report`, or create a recording with `pagelab record`")
            })?;
            let (player, view) = Player::open(recording);
            (Box::new(player), view)
        }
    };
    let style = output::stdout_style();
    let look = TerminalCapabilities {
        has_unicode: style.unicode,
        has_colour: style.colour,
        has_keyboard: !args.once,
    };
    if !args.once {
        return crate::watch::run(source, view, look);
    }
    // A live screen shows rates, so this waits for a second sample.
    if let Some(due_ns) = source.due_ns(clock::boottime_ns()) {
        while let Some(left_ns) = due_ns.checked_sub(clock::boottime_ns()).filter(|&ns| ns > 0) {
            std::thread::sleep(Duration::from_nanos(left_ns));
        }
        source.advance(clock::boottime_ns(), &mut view);
    }
    output::print(&screen::to_text(&screen::render(&view, width, height, look)))?;
    Ok(Exit::Success as u8)
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_bounded_duration(text, Duration::from_millis(100), Duration::from_secs(3600))
}
