//! The run: fragment, hold, give back, and say what it was like before, meanwhile and after.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use pagelab_contig::ask::Asked;
use pagelab_contig::fragment::frames::{self, Verified};
use pagelab_contig::fragment::reach::{Bounds, Ending, Flow, Phase, Progress, Reached, reach};
use pagelab_contig::fragment::spoiler::Spoiler;
use pagelab_contig::fragment::watch::Watch;
use pagelab_contig::oom::OfferedFirst;
use pagelab_host::capture::Stop;
use pagelab_metrics::frag::share_text;
use pagelab_model::{BuddyInfo, Bytes, Reading, Snapshot};
use pagelab_report::style::{bytes, count};

use super::group::{Changes, Wishes};
use super::held::{self, Held};
use super::plan::Plan;
use super::recording::Recording;
use super::{Args, show, taking, unmovable};
use crate::exit::{Exit, Failure};
use crate::out;

/// Between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// What a run came to, for the report.
pub struct Done {
    /// What was planned.
    pub plan: Plan,
    /// How the target was approached.
    pub reached: Reached,
    /// Nanoseconds until then.
    pub took_ns: u64,
    /// Units held then.
    pub units: u64,
    /// Pages kept then.
    pub kept_pages: u64,
    /// Where they lay.
    pub verified: Option<Reading<Verified>>,
    /// Where they lay once they had been held.
    pub verified_end: Option<Reading<Verified>>,
    /// Free blocks before, while it was held, and after; what was not reached is absent.
    pub free: [Option<BuddyInfo>; 3],
    /// Huge pages that came by asking, at the same moments.
    pub asked: [Option<Reading<Asked>>; 3],
    /// How the holding went.
    pub held: Option<Held>,
    /// The largest share of a window in which somebody waited for memory.
    pub worst_stall: f64,
    /// The limit of the control group.
    pub limit: Option<Bytes>,
    /// What came of unmovable pages, where they were wanted, as JSON.
    pub unmovable: Option<serde_json::Value>,
}

/// Everything that lives while memory is taken.
pub struct Session<'a> {
    /// The arguments.
    pub args: &'a Args,
    /// The plan.
    pub plan: &'a Plan,
    /// Signals.
    pub stop: &'a Stop,
    /// Files that are looked at.
    pub watch: Watch,
    /// The memory.
    pub spoiler: Spoiler,
    /// The run file.
    pub recording: Option<Recording>,
    /// Our score for the out-of-memory killer before we offered ourselves.
    pub score_before: String,
}

/// Runs it.
pub fn run(args: &Args, plan: Plan, snapshot: &Snapshot) -> Result<u8, Failure> {
    let stop = Stop::watch().map_err(|error| {
        Failure::new(Exit::NotAvailable, "cannot watch for signals, so nothing is taken").because(error)
    })?;
    let mut watch = Watch::open(plan.facts.zone.clone(), plan.reserve, plan.facts.page_size, plan.facts.unit)
        .map_err(taking::unread)?;
    watch.settle().map_err(taking::unread)?;
    let recording = match &args.output {
        Some(path) => Some(Recording::begin(path, plan.seed, snapshot, watch.fast())?),
        None => None,
    };
    for note in &plan.notes {
        out::complain(&format!("note: {note}"));
    }
    let wanted = args.unmovable.resolve(&plan.facts)?;
    let transient = wanted.as_ref().map_or(0, |wanted| unmovable::bytes_of(wanted, &plan.facts).0);
    let mut changes = Changes::begin(&Wishes {
        thp_on: plan.switches_thp_on,
        pause_compaction: args.pause_compaction,
        held_max: Bytes(plan.held_max().0.saturating_add(transient)),
    })?;
    let offered = OfferedFirst::new();
    for note in changes.notes.drain(..) {
        out::complain(&format!("note: {note}"));
    }
    if let Err(absence) = &offered {
        out::complain(&format!("note: not offered to the out-of-memory killer first: {}", absence.reason()));
    }
    // First, while free memory is whole: later these pages would fall where pages are kept anyway.
    let spoiled = wanted.map(|wanted| {
        let is_stopped = || stop.signal().is_some();
        let (spoiled, lines) = unmovable::take(&wanted, &plan.facts, &is_stopped, &mut |next| {
            taking::room(&mut watch, plan.reserve, &stop, next)
        });
        lines.iter().for_each(|line| out::complain(line));
        spoiled
    });
    let spoiler = Spoiler::new(plan.way, plan.shape, plan.seed, plan.facts.page_size, plan.bind);
    let score_before = offered.as_ref().map_or("0", OfferedFirst::before).to_owned();
    let mut session = Session { args, plan: &plan, stop: &stop, watch, spoiler, recording, score_before };
    let done = session.all(&mut changes, snapshot);
    // Whatever came: first the memory, then the settings.
    session.spoiler.clear();
    let unmovable = spoiled.map(|spoiled| {
        let value = unmovable::json(&spoiled);
        spoiled.release();
        value
    });
    let stopped_by = stop.signal().map(|signal| out::signal_name(128 + signal));
    if let Some(recording) = session.recording.take() {
        recording.finish(stopped_by);
    }
    let left = changes.finish();
    drop(offered);
    for outcome in &left {
        out::complain(&format!("pagelab: {}: {}", outcome.what, outcome.fate.word().replace('_', " ")));
    }
    let mut done = done?;
    (done.plan, done.unmovable) = (plan, unmovable);
    if args.json {
        show::json(&done)?;
    } else {
        show::after(&done, args.command.is_empty())?;
    }
    Ok(code(&done, &stop, !left.is_empty()))
}

fn code(done: &Done, stop: &Stop, is_left: bool) -> u8 {
    if let Some(command) = done.held.as_ref().and_then(|held| held.command_code) {
        return command;
    }
    let is_asked_end = done.held.as_ref().is_some_and(|held| held.ended_as_asked);
    match (stop.signal(), &done.reached.ending) {
        (Some(signal), _) if !is_asked_end => u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8),
        (_, Ending::Met)
            if !is_left
                && done.moved().is_none()
                && done.held.as_ref().is_none_or(|held| held.danger.is_none()) =>
        {
            Exit::Done as u8
        }
        _ => Exit::Partial as u8,
    }
}

impl Done {
    /// Where the kept pages lay, if they had been moved together by the time that the target was met.
    pub fn moved(&self) -> Option<&Verified> {
        let verified = self.verified.as_ref()?.as_ref().ok()?;
        (self.reached.ending == Ending::Met && verified.is_moved()).then_some(verified)
    }
}

impl Session<'_> {
    fn all(&mut self, changes: &mut Changes, snapshot: &Snapshot) -> Result<Done, Failure> {
        let mut asked = [None, None, None];
        let mut free = [self.watch.fast().buddyinfo().ok().cloned(), None, None];
        asked[0] = self.ask(changes);
        let began = Instant::now();
        let reached = self.reach()?;
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut done = Done {
            plan: self.plan.clone(),
            took_ns,
            units: self.spoiler.units(),
            kept_pages: self.spoiler.kept_pages(),
            verified: None,
            verified_end: None,
            free: [None, None, None],
            asked: [None, None, None],
            held: None,
            worst_stall: 0.0,
            limit: changes.limit(),
            unmovable: None,
            reached,
        };
        free[1] = self.watch.fast().buddyinfo().ok().cloned();
        if matches!(done.reached.ending, Ending::Met | Ending::Short(_)) {
            done.verified = self.verify(snapshot);
            if self.plan.facts.has_swap
                && let Err(error) = self.spoiler.lock()
            {
                out::complain(&format!(
                    "note: kept pages may be swapped out, they cannot be locked: {error}"
                ));
            }
            asked[1] = self.ask(changes);
            show::reached(&done, self.args)?;
            done.held = Some(held::hold(self, changes.home())?);
            done.verified_end = self.verify(snapshot);
        }
        let spoiler = &mut self.spoiler;
        self.watch.give_back(|| spoiler.clear());
        let _ = self.watch.look();
        free[2] = self.watch.fast().buddyinfo().ok().cloned();
        if self.stop.signal().is_none() || done.held.as_ref().is_some_and(|held| held.ended_as_asked) {
            asked[2] = self.ask_anyway(changes);
        }
        done.worst_stall = self.watch.worst_stall();
        (done.free, done.asked) = (free, asked);
        Ok(done)
    }

    fn verify(&self, snapshot: &Snapshot) -> Option<Reading<Verified>> {
        let zone = snapshot.zoneinfo.as_ref().ok().and_then(|info| info.zone(&self.plan.facts.zone))?;
        Some(frames::verify(&self.spoiler, zone, self.plan.goal.order, self.plan.facts.page_size))
    }

    fn ask(&mut self, changes: &mut Changes) -> Option<Reading<Asked>> {
        if self.stop.signal().is_some() { None } else { self.ask_anyway(changes) }
    }

    fn ask_anyway(&mut self, changes: &mut Changes) -> Option<Reading<Asked>> {
        let signal = self.stop.signal();
        let stop = || self.stop.signal() != signal;
        let size = self.plan.facts.unit_bytes();
        self.args.ask.then(|| changes.ask(size, self.watch.available(), self.plan.reserve, stop))
    }

    /// Goes to the target from wherever it is.
    pub fn reach(&mut self) -> Result<Reached, Failure> {
        let bounds = Bounds {
            planned: if self.spoiler.units() == 0 { self.plan.planned.units } else { 0 },
            units_max: self.plan.units_max,
            batch: self.plan.facts.batch(),
            fill: self.plan.fill(),
        };
        let mut last = None;
        let (stop, plan, recording) = (self.stop, self.plan, &mut self.recording);
        let mut seen = |progress: Progress, watch: &Watch| {
            if let Some(recording) = recording.as_mut() {
                recording.sample(watch.fast());
            }
            if last.is_none_or(|last: Instant| last.elapsed() >= PROGRESS_EVERY) {
                last = Some(Instant::now());
                say(&progress, plan);
            }
            if stop.signal().is_some() { Flow::Stop } else { Flow::On }
        };
        let reached = reach(&mut self.spoiler, &mut self.watch, &plan.goal, bounds, &mut seen);
        clear_line();
        reached.map_err(|error| {
            Failure::new(Exit::Partial, "fragmenting failed, and all is given back").because(error)
        })
    }
}

/// One line on a terminal, which the next one overwrites.
fn say(progress: &Progress, plan: &Plan) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let what = match progress.phase {
        Phase::Fill => "taking memory by base pages",
        Phase::Initialise => "using memory that was never used",
        Phase::Spoil => "fragmenting",
        Phase::Correct => "correcting",
    };
    let unit = plan.facts.unit_bytes();
    let line = format!(
        "{what}: F_u({}) {} of {}, {} of {}",
        plan.goal.order.0,
        share_text(progress.index),
        plan.goal.target,
        bytes(Bytes(progress.units.saturating_mul(unit.0))),
        count(u128::from(plan.planned.units.saturating_mul(unit.0) >> 20)) + " MiB",
    );
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
}

fn clear_line() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
    }
}
