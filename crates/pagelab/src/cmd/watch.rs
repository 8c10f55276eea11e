//! `pagelab watch`: a live view of this machine's memory, or the same view of a recording.

use std::io::Write as _;
use std::path::PathBuf;

use pagelab_formats::duration;
use pagelab_model::Absence;
use pagelab_sys::clock;

use crate::exit::{Exit, Failure};
use crate::out;
use crate::watch::live::{self, Live};
use crate::watch::player::Player;
use crate::watch::replay::Recording;
use crate::watch::screen::{self, FULL, LEAST, Look};
use crate::watch::view::View;
use crate::watch::{Source, terminal};

const EXAMPLES: &str = "\
Examples:
  pagelab watch                     this machine, a sample every second
  pagelab watch --every 5s
  pagelab watch day.pagelab         go through what `pagelab record` wrote
  pagelab watch --once              one screen as text, for scripts
  pagelab watch --once --width 200 --height 60 day.pagelab

Keys (all of them with ?): q quit, space pause or play, Tab zone, + and -
interval or speed, r rates, z zoom; in a recording arrows, PgUp, PgDn, Home, End.
";

/// What `watch` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A run file to go through instead of watching this machine
    #[arg(value_name = "FILE.pagelab")]
    file: Option<PathBuf>,

    /// Time from sample to sample, 100ms to 1h [default: 1s]
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    every: Option<String>,

    /// Print one screen as text and end: of this machine after one interval, of a recording its end
    #[arg(long)]
    once: bool,

    /// Columns of that screen [default: 80]
    #[arg(long, value_name = "N", requires = "once")]
    width: Option<u16>,

    /// Rows of that screen [default: 24]
    #[arg(long, value_name = "N", requires = "once")]
    height: Option<u16>,
}

/// Columns and rows of a screen that is printed, at most.
const SIDE_MAX: u16 = 1000;
/// Intervals that make sense, in nanoseconds.
const EVERY_NS: std::ops::RangeInclusive<u64> = 100_000_000..=3_600_000_000_000;
const EVERY_DEFAULT_NS: u64 = 1_000_000_000;

/// Shows the view until it is left, or one screen of it.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let every_ns = every_ns(args.every.as_deref())?;
    let width = side("--width", args.width, FULL.0, LEAST.0)?;
    let height = side("--height", args.height, FULL.1, LEAST.1)?;
    if !args.once {
        terminal::check()?;
    }
    let (run, recording);
    let (source, view) = match &args.file {
        None => {
            let (live, view) = Live::open(every_ns).map_err(|absence| unreadable(&absence))?;
            (Source::Live(Box::new(live)), view)
        }
        Some(file) => {
            run = pagelab_runfile::read(file).map_err(|error| super::report::refusal(&error))?;
            recording = Recording::of(&run).ok_or_else(|| {
                let message = format!(
                    "{}: a run of `{}` without meminfo, vmstat, buddyinfo or pressure over time: nothing to \
                     watch; `pagelab report` shows what is in it, `pagelab record` makes one that has them",
                    run.name, run.manifest.kind
                );
                Failure::new(Exit::BadInput, message)
            })?;
            let (player, view) = Player::open(recording);
            (Source::Replay(Box::new(player)), view)
        }
    };
    let style = out::style();
    let look = Look { unicode: style.unicode, colour: style.colour, keys: !args.once };
    if args.once { once(source, view, width, height, look) } else { crate::watch::run(source, view, look) }
}

fn every_ns(text: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(EVERY_DEFAULT_NS) };
    let length = duration::parse(text).map_err(|error| super::usage(&format!("--every {error}")))?;
    let ns = u64::try_from(length.as_nanos()).ok().filter(|ns| EVERY_NS.contains(ns));
    ns.ok_or_else(|| super::usage(&format!("--every {text}: from 100ms to 1h was wanted")))
}

fn side(option: &str, given: Option<u16>, usual: u16, least: u16) -> Result<u16, Failure> {
    match given.unwrap_or(usual) {
        side if (least..=SIDE_MAX).contains(&side) => Ok(side),
        side => Err(super::usage(&format!("{option} {side}: from {least} to {SIDE_MAX} was wanted"))),
    }
}

fn unreadable(absence: &Absence) -> Failure {
    Failure::new(Exit::NotAvailable, live::said(absence))
}

/// Prints one screen. A live one has rates, so it waits for a second sample.
fn once(mut source: Source<'_>, mut view: View, width: u16, height: u16, look: Look) -> Result<u8, Failure> {
    if let Some(due_ns) = source.due_ns(clock::boottime_ns()) {
        while let Some(left_ns) = due_ns.checked_sub(clock::boottime_ns()).filter(|&ns| ns > 0) {
            std::thread::sleep(std::time::Duration::from_nanos(left_ns));
        }
        source.advance(clock::boottime_ns(), &mut view);
    }
    let text = screen::text(&screen::render(&view, width, height, look));
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done as u8)
}
