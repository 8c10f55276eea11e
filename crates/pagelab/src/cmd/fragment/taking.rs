//! Taking memory within bounds, for the modes without a target: room is asked for each piece, and holding
//! goes on with an eye on everybody else.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::fragment::watch::Watch;
use pagelab_contig::oom::OfferedFirst;
use pagelab_contig::random;
use pagelab_contig::reserve::Reserve;
use pagelab_host::capture::Stop;
use pagelab_model::run::Event;
use pagelab_model::{BuddyInfo, Bytes, Snapshot};
use pagelab_report::style::bytes;
use rustix::process::Signal;

use super::group::{Changes, Wishes};
use super::held;
use super::recording::Recording;
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
    recording: Option<Recording>,
    /// What was given back while it was held, since others were in need.
    pub given_back: Bytes,
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
        let offered = offered.ok();
        Ok(Taking { stop, watch, reserve, changes, offered, recording: None, given_back: Bytes(0) })
    }

    /// From now on free blocks and use are kept in a run file, where one is wanted.
    pub fn record(&mut self, path: Option<&Path>, seed: u64, snapshot: &Snapshot) -> Result<(), Failure> {
        let begin = |path| Recording::begin(path, seed, snapshot, self.watch.fast());
        self.recording = path.map(begin).transpose()?;
        Ok(())
    }

    /// The run file, if there is one.
    pub fn recording(&mut self) -> Option<&mut Recording> {
        self.recording.as_mut()
    }

    /// A row of the run file, of the last look.
    pub fn sample(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording.sample(self.watch.fast());
        }
    }

    /// A step, in the run file.
    pub fn event(&mut self, kind: &str, text: &str) {
        if let Some(recording) = &mut self.recording {
            let (kind, text) = (kind.to_owned(), text.to_owned());
            recording.with(|writer, at_ns| writer.event(&Event { at_ns, kind, text }));
        }
    }

    /// Whether so much more may be taken: an error is the reason why not.
    pub fn room(&mut self, next: Bytes) -> Result<(), String> {
        let room = room(&mut self.watch, self.reserve, &self.stop, next);
        self.sample();
        room
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

    /// An error once a signal has asked to stop.
    pub fn check_signal(&self) -> Result<(), Failure> {
        let Some(signal) = self.stop.signal() else { return Ok(()) };
        let signal = out::signal_name(128 + signal);
        Err(Failure::new(Exit::Partial, format!("stopped by {signal}, and all is given back")))
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
                self.sample();
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
                self.given_back = Bytes(self.given_back.0.saturating_add(back.0));
                let (back, left) = (bytes(back), bytes(held.filled));
                let text = format!("given back {back}, {left} are still held: {danger}");
                out::complain(&text);
                self.event("backed off", &text);
            }
            Err(error) => out::complain(&format!("pagelab: cannot give back: {error}")),
        }
    }

    /// Ends: settings and control group go back, and the run file is closed; `is_whole` says that it ended
    /// as was asked. Returns whether all was undone; what could not be is said.
    pub fn finish(self, is_whole: bool) -> bool {
        let signal = self.stop.signal().filter(|_| !is_whole).map(|signal| out::signal_name(128 + signal));
        if let Some(recording) = self.recording {
            recording.finish(signal);
        }
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

/// An error if all that this process holds is more than its control groups have room for. MemAvailable, which
/// is of the whole machine, does not tell.
pub fn within_group(facts: &Facts, held: Bytes) -> Result<(), String> {
    match facts.group_room {
        Some(room) if held > room => Err(format!("the control group has room for {}", bytes(room))),
        _ => Ok(()),
    }
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
         pagelab guest run -- fragment random --size {asked} -- pagelab frag"
    )))
}

/// The exit code of a run: that of its command, if it had one. A run that was clean gave what was asked for,
/// held it until it was to end, and undid all that it changed.
pub fn code(code: u8, is_of_command: bool, is_clean: bool) -> u8 {
    if code == 0 && !is_of_command && !is_clean { Exit::Partial as u8 } else { code }
}

/// What cannot be read, as a failure.
pub fn unread(absence: pagelab_model::Absence) -> Failure {
    Failure::new(Exit::NotAvailable, format!("{}: {}", absence.source, absence.reason()))
}
