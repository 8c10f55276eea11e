//! Taking memory within bounds, for the modes without a target: room is asked for each piece, and holding
//! goes on with an eye on everybody else.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::fragment::watch::Watch;
use pagelab_contig::oom::OfferedFirst;
use pagelab_contig::random;
use pagelab_contig::reserve::Reserve;
use pagelab_host::capture::Stop;
use pagelab_model::{BuddyInfo, Bytes};
use pagelab_report::style::bytes;
use rustix::process::Signal;

use super::group::{Changes, Wishes};
use super::held;
use super::size::Size;
use crate::cmd::usage;
use crate::exit::{Exit, Failure};
use crate::out;

/// Between two looks at the memory while it is held.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two looks for a signal or the command's end.
const TURN: Duration = Duration::from_millis(50);
/// The part of what is held that is given back at a time to others who are in need.
const BACK_OFF: u64 = 8;

/// Everything that lives while memory is taken. What it holds goes back before its settings do.
pub struct Taking {
    /// Signals.
    pub stop: Stop,
    /// Files that are looked at.
    pub watch: Watch,
    reserve: Reserve,
    changes: Changes,
    offered: Option<OfferedFirst>,
}

/// The reserve that was asked for, or the default.
pub fn reserve(text: Option<&str>, facts: &Facts) -> Result<Reserve, Failure> {
    let asked = text.map(|text| Size::parse("--reserve", text)).transpose()?;
    Ok(asked.map_or_else(|| Reserve::of(facts.mem_total), |size| Reserve(size.of(facts.mem_total))))
}

impl Taking {
    /// Begins: signals are watched, a control group limits us, and we offer ourselves to the OOM killer.
    /// `most` is what will be held at most.
    pub fn begin(facts: &Facts, reserve: Reserve, most: Bytes) -> Result<Taking, Failure> {
        let stop = Stop::watch().map_err(|error| {
            Failure::new(Exit::NotAvailable, "cannot watch for signals, so nothing is taken").because(error)
        })?;
        let mut watch =
            Watch::open(facts.zone.clone(), reserve, facts.page_size, facts.unit).map_err(unread)?;
        watch.settle().map_err(unread)?;
        let mut changes = Changes::begin(&Wishes { held_max: most, ..Wishes::default() })?;
        for note in changes.notes.drain(..) {
            out::complain(&format!("note: {note}"));
        }
        let offered = OfferedFirst::new();
        if let Err(absence) = &offered {
            let why = absence.reason();
            out::complain(&format!("note: not offered to the out-of-memory killer first: {why}"));
        }
        Ok(Taking { stop, watch, reserve, changes, offered: offered.ok() })
    }

    /// Whether so much more may be taken: an error is the reason why not.
    pub fn room(&mut self, next: Bytes) -> Result<(), String> {
        room(&mut self.watch, self.reserve, &self.stop, next)
    }

    /// Compacts all memory.
    pub fn compact(&self) -> Result<(), Failure> {
        self.changes.compact()
    }

    /// Free blocks now, those on processors' lists included as far as they can be had.
    pub fn free(&mut self) -> Result<BuddyInfo, Failure> {
        self.watch.settle().map_err(unread)?;
        self.watch.fast().buddyinfo().cloned().map_err(|absence| unread(absence.clone()))
    }

    /// Holds until a signal, or while a command runs; gives back step by step while others are in need.
    /// Returns the exit code.
    pub fn hold(&mut self, command: &[OsString], held: &mut Option<random::Held>) -> Result<u8, Failure> {
        let score = self.offered.as_ref().map_or("0", OfferedFirst::before);
        let mut child = match command.split_first() {
            None => None,
            Some((program, words)) => Some(held::start(program, words, self.changes.home(), score)?),
        };
        if child.is_none() {
            out::complain("holding; Ctrl-C gives it back");
        }
        let mut looked = Instant::now();
        loop {
            if let Some(child) = &mut child
                && let Some(status) = child.try_wait()?
            {
                return Ok(held::code(status));
            }
            if let Some(signal) = self.stop.signal() {
                return match &mut child {
                    Some(child) => held::end(child, Some(signal)).map(held::code),
                    // SIGINT is how holding ends; SIGTERM and SIGHUP are somebody else's.
                    None if signal == Signal::INT.as_raw() => Ok(Exit::Done as u8),
                    None => Ok(u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8)),
                };
            }
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.back_off(held);
            }
            std::thread::sleep(TURN);
        }
    }

    fn back_off(&mut self, held: &mut Option<random::Held>) {
        if self.watch.look().is_err() {
            return;
        }
        let (Some(danger), Some(held)) = (self.watch.danger(), held.as_mut()) else { return };
        if held.filled == Bytes(0) {
            return;
        }
        match held.give_back(Bytes(held.filled.0 / BACK_OFF)) {
            Ok(back) => {
                let (back, left) = (bytes(back), bytes(held.filled));
                out::complain(&format!("given back {back}, {left} are still held: {danger}"));
            }
            Err(error) => out::complain(&format!("pagelab: cannot give back: {error}")),
        }
    }

    /// Ends: settings and control group go back. What could not be undone is said.
    pub fn finish(self) -> bool {
        let left = self.changes.finish();
        drop(self.offered);
        for outcome in &left {
            out::complain(&format!("pagelab: {}: {}", outcome.what, outcome.fate.word().replace('_', " ")));
        }
        left.is_empty()
    }
}

/// Whether so much more may be taken: an error is the reason why not.
pub fn room(watch: &mut Watch, reserve: Reserve, stop: &Stop, next: Bytes) -> Result<(), String> {
    if let Some(signal) = stop.signal() {
        return Err(format!("stopped by {}", out::signal_name(128 + signal)));
    }
    watch.look().map_err(|absence| format!("{}: {}", absence.source, absence.reason()))?;
    if let Some(danger) = watch.danger() {
        return Err(danger.to_string());
    }
    let available = watch.available();
    if reserve.room(available) < next {
        let (available, reserve) = (bytes(available), bytes(reserve.0));
        return Err(format!("{available} are available, {reserve} are the reserve"));
    }
    Ok(())
}

/// More than there is can only be asked for where nothing can be lost.
pub fn check_size(size: Bytes, facts: &Facts) -> Result<(), Failure> {
    if size <= facts.mem_total || pagelab_guest::agent::is_here() {
        return Ok(());
    }
    let (asked, total) = (bytes(size).replace(' ', ""), bytes(facts.mem_total));
    Err(usage(&format!(
        "--size {asked} is more than the {total} of this machine, which is only done in a guest, where \
         nobody else can be hurt.\n  use --size 100% or less, or: \
         pagelab guest run -- fragment random --size {asked}"
    )))
}

pub fn unread(absence: pagelab_model::Absence) -> Failure {
    Failure::new(Exit::NotAvailable, format!("{}: {}", absence.source, absence.reason()))
}
