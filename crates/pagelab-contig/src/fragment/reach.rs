//! Going to the target: take, look, correct, until two readings agree.

use std::io;
use std::time::{Duration, Instant};

use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::frag::unusable;
use pagelab_metrics::fragment_plan::{Goal, Step, step};
use pagelab_model::{FreeAreas, Zoneinfo};

use super::facts::Way;
use super::spoiler::Spoiler;
use super::watch::{Danger, Watch};

/// Times in a row that no progress is made before it is given up.
const TRIES_MAX: u32 = 6;
/// Times that F_u is corrected once it was near the target.
const CORRECTIONS_MAX: u32 = 40;
/// Times that it is corrected within the tolerance: where others are at work, F_u never rests, and each
/// correction waits for every processor.
const FINE_MAX: u32 = 3;
/// Between the two readings that must agree.
const SECOND_READING: Duration = Duration::from_millis(100);

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// What is done at the moment.
    pub phase: Phase,
    /// F_u of the zone.
    pub index: f64,
    /// Units that are spoiled.
    pub units: u64,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Base pages are taken.
    Fill,
    /// Memory that was never used is made to be initialised.
    Initialise,
    /// Units are taken, split and given back.
    Spoil,
    /// F_u is corrected.
    Correct,
}

/// What a caller that sees the progress wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    On,
    /// Stop here.
    Stop,
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Units that were planned: so many are taken before F_u is looked at, because pages that were given back
    /// wait on the processors' lists, where buddyinfo does not count them.
    pub planned: u64,
    /// Units that may be taken.
    pub units_max: u64,
    /// Units that are taken at a time.
    pub batch: u64,
    /// Units to fill first, where memory is taken by base pages.
    pub fill: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// At the target, by two readings.
    Met,
    /// Short of it, for this reason.
    Short(String),
    /// Others were in danger; all was given back.
    BackedOff(Danger),
    /// The caller wanted it.
    Stopped,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    /// How it ended.
    pub ending: Ending,
    /// The zone's free lists at the last reading; for a run that backed off, before all was given back.
    pub areas: FreeAreas,
    /// F_u at the last reading but one.
    pub first_reading: f64,
    /// F_u at the last reading.
    pub index: f64,
    /// Pages by which the zone's free memory differed between the two.
    pub moved: u64,
}

/// Takes and gives back units until F_u is at the goal. An error is the machine's refusal; what is held then
/// stays with the spoiler.
pub fn reach(
    spoiler: &mut Spoiler,
    watch: &mut Watch,
    goal: &Goal,
    bounds: Bounds,
    seen: &mut dyn FnMut(Progress, &Watch) -> Flow,
) -> io::Result<Reached> {
    let zoneinfo = zoneinfo();
    let mut run = Run { spoiler, watch, goal, bounds, seen, zoneinfo, phase: Phase::Spoil };
    let ending = match run.fill()? {
        Some(ending) => ending,
        None => run.correct()?,
    };
    if matches!(ending, Ending::Short(_) | Ending::Met) {
        run.spoiler.trim()?;
    }
    let reached = run.readings(ending)?;
    if let Ending::BackedOff(_) = reached.ending {
        run.spoiler.clear();
    }
    Ok(reached)
}

struct Run<'r> {
    spoiler: &'r mut Spoiler,
    watch: &'r mut Watch,
    goal: &'r Goal,
    bounds: Bounds,
    seen: &'r mut dyn FnMut(Progress, &Watch) -> Flow,
    /// What zones manage: it grows while memory is initialised, so it is read again.
    zoneinfo: Option<Zoneinfo>,
    phase: Phase,
}

impl Run<'_> {
    /// Looks, tells, and says whether the run must end.
    fn look(&mut self) -> io::Result<Option<Ending>> {
        self.watch.look().map_err(absent)?;
        if let Some(danger) = self.watch.danger() {
            return Ok(Some(Ending::BackedOff(danger)));
        }
        let index = unusable(&self.watch.areas(), self.goal.order);
        let progress = Progress { phase: self.phase, index, units: self.spoiler.filled() };
        Ok(((self.seen)(progress, self.watch) == Flow::Stop).then_some(Ending::Stopped))
    }

    /// Takes base pages, where that is the way: as many as were planned, and on until as many whole blocks
    /// are gone from the zone, since the first pages come from blocks that are broken already.
    fn fill(&mut self) -> io::Result<Option<Ending>> {
        self.phase = Phase::Fill;
        let unit = self.spoiler.shape().unit;
        let planned = u128::from(self.bounds.planned);
        let mut wanted = None;
        while self.spoiler.way() == Way::BasePages {
            if let Some(ending) = self.look()? {
                return Ok(Some(ending));
            }
            let whole = self.watch.areas().blocks_suitable(unit);
            let wanted = *wanted.get_or_insert(whole.saturating_sub(planned));
            let left = match self.bounds.fill.saturating_sub(self.spoiler.filled()) {
                0 if whole > wanted => self.room_units(),
                left => left,
            };
            if left == 0 {
                break;
            }
            self.spoiler.fill(left.min(self.bounds.batch))?;
        }
        Ok(None)
    }

    /// Units that may be filled beyond the plan: so many that the control group's limit, which is an eighth
    /// and some above what was planned, is not reached.
    fn room_units(&self) -> u64 {
        let room = self.watch.room_pages() / self.spoiler.shape().unit.pages().0;
        let most = (self.bounds.planned + self.bounds.planned / 8 + 32).min(self.bounds.units_max);
        room.min(most.saturating_sub(self.spoiler.filled()))
    }

    fn correct(&mut self) -> io::Result<Ending> {
        let (mut tries, mut corrections, mut is_settled) = (0, 0, false);
        self.phase = Phase::Spoil;
        loop {
            if let Some(ending) = self.look()? {
                return Ok(ending);
            }
            let initialising = self.is_initialising();
            let (held, planned) = (self.spoiler.units(), self.bounds.planned);
            let next = match step(&self.watch.areas(), self.goal, self.spoiler.shape(), held) {
                // Others break memory up too. What waits on the processors' lists is in small blocks, so F_u
                // is this at least, and taking what was planned all the same would only overshoot.
                _ if held < planned && tries == 0 && !self.is_there() => Step::Spoil(planned - held),
                Step::Stay | Step::Release(_) if initialising => Step::Spoil(self.bounds.batch),
                Step::Stay => Step::Stay,
                // Only a settled look tells how far off it is.
                next if is_settled => next,
                _ => Step::Stay,
            };
            is_settled = false;
            if initialising {
                self.phase = Phase::Initialise;
            }
            let took = match next {
                Step::Spoil(units) => match self.spoil(units, initialising)? {
                    Ok(took) => took,
                    Err(ending) => return Ok(ending),
                },
                Step::Release(units) => {
                    let spoiler = &mut *self.spoiler;
                    self.watch.give_back(|| spoiler.release(units))?;
                    units
                }
                Step::Stay => {
                    self.phase = Phase::Correct;
                    // What waits on the processors' lists belongs to it, and something may still move.
                    self.watch.settle().map_err(absent)?;
                    std::thread::sleep(SECOND_READING);
                    self.watch.look().map_err(absent)?;
                    let areas = self.watch.areas();
                    let is_near = step(&areas, self.goal, self.spoiler.shape(), self.spoiler.units());
                    let is_good = corrections >= FINE_MAX && self.goal.is_met(&areas);
                    if is_near == Step::Stay || is_good || corrections >= CORRECTIONS_MAX {
                        return Ok(self.judged());
                    }
                    corrections += 1;
                    is_settled = true;
                    continue;
                }
            };
            tries = if took == 0 { tries + 1 } else { 0 };
            corrections += u32::from(self.phase == Phase::Correct);
            if tries >= TRIES_MAX || corrections > CORRECTIONS_MAX {
                return Ok(self.judged());
            }
            if took == 0 {
                self.watch.settle().map_err(absent)?;
                std::thread::sleep(SECOND_READING);
            }
        }
    }

    /// Whether F_u was at the target, or beyond it, at the last look.
    fn is_there(&self) -> bool {
        unusable(&self.watch.areas(), self.goal.order) >= self.goal.target
    }

    /// Takes a batch. The inner error ends the run.
    fn spoil(&mut self, units: u64, initialising: bool) -> io::Result<Result<u64, Ending>> {
        let left = match self.spoiler.way() {
            Way::HugePages => self.bounds.units_max.saturating_sub(self.spoiler.units()),
            Way::BasePages => self.spoiler.filled() - self.spoiler.units(),
        };
        if left == 0 {
            // It may be at the target within the tolerance all the same, once the lists are settled.
            self.watch.settle().map_err(absent)?;
            return Ok(Err(self.judged()));
        }
        let whole = u64::try_from(self.watch.areas().blocks_suitable(self.spoiler.shape().unit));
        // Without a whole block the kernel would compact, or turn to another zone.
        let there = match self.spoiler.way() {
            Way::HugePages if !initialising => whole.unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        let took = self.spoiler.spoil(units.min(left).min(there).min(self.bounds.batch))?;
        Ok(Ok(took))
    }

    /// Whether free memory is still to be initialised. What is deferred comes whole, and would undo the
    /// share that was reached without it.
    fn is_initialising(&mut self) -> bool {
        let Some(known) = &self.zoneinfo else { return false };
        if self.watch.deferred(known).0 == 0 {
            return false;
        }
        // zoneinfo is read again only where the old one says that memory is not initialised.
        self.zoneinfo = zoneinfo();
        let still = self.zoneinfo.as_ref().is_some_and(|known| self.watch.deferred(known).0 > 0);
        still && self.spoiler.way() == Way::HugePages && self.spoiler.units() < self.bounds.units_max
    }

    /// Met or short, by the last look.
    fn judged(&mut self) -> Ending {
        let areas = self.watch.areas();
        if self.goal.is_met(&areas) {
            return Ending::Met;
        }
        let index = unusable(&areas, self.goal.order);
        let whole = areas.blocks_suitable(self.spoiler.shape().unit);
        let why = if index > self.goal.target {
            "free memory was broken up by others meanwhile"
        } else if whole == 0 {
            "no whole block is left in the zone"
        } else if self.spoiler.way() == Way::BasePages && self.spoiler.units() == self.spoiler.filled() {
            "base pages come from blocks that are broken already, as long as there are any"
        } else if self.spoiler.units() >= self.bounds.units_max {
            "no more may be taken"
        } else {
            "the kernel gives no more huge pages of this zone, although some seem to be free"
        };
        Ending::Short(why.to_owned())
    }

    fn readings(&mut self, ending: Ending) -> io::Result<Reached> {
        let first = self.watch.areas();
        self.watch.look().map_err(absent)?;
        let areas = self.watch.areas();
        let index = |areas: &FreeAreas| unusable(areas, self.goal.order);
        let moved = first.free_pages().abs_diff(areas.free_pages());
        Ok(Reached {
            ending,
            first_reading: index(&first),
            index: index(&areas),
            moved: u64::try_from(moved).unwrap_or(u64::MAX),
            areas,
        })
    }
}

/// How long something takes that a caller times.
pub fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = act();
    (done, began.elapsed())
}

fn zoneinfo() -> Option<Zoneinfo> {
    let root = Root::live();
    Reader::new(&root).parse(paths::ZONEINFO, pagelab_formats::zoneinfo::parse).ok()
}

fn absent(absence: pagelab_model::Absence) -> io::Error {
    io::Error::other(format!("{}: {}", absence.source, absence.reason()))
}
