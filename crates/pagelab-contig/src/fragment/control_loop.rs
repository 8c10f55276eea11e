//! Control loop of fragmentation: allocate, measure F_u, correct, until two readings agree.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::fragment_plan::{FragmentationGoal, FragmentationStep, next_step};
use pagelab_metrics::fragmentation_index::unusable_index;
use pagelab_model::{FreeAreas, Zoneinfo};

use super::fragmenter::Fragmenter;
use super::inputs::FillMethod;
use super::memory_monitor::{BackoffReason, MemoryMonitor};

/// Consecutive attempts without progress before the loop gives up.
const FRUITLESS_TRIES_MAX: u32 = 6;
/// Maximum number of corrections of F_u once it was near the target.
const CORRECTIONS_MAX: u32 = 40;
/// Number of corrections within the tolerance: while other programs run, F_u keeps changing, and each
/// correction waits for every processor.
const FINE_CORRECTIONS_MAX: u32 = 3;
/// Interval between the two readings that must agree.
const SECOND_READING_DELAY: Duration = Duration::from_millis(100);

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopProgress {
    /// Current phase.
    pub phase: LoopPhase,
    /// F_u of the zone.
    pub unusable_index: f64,
    /// Polluted units.
    pub fragmented_units: u64,
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopPhase {
    /// Base pages are allocated.
    Fill,
    /// Deferred memory is initialised.
    Initialize,
    /// Units are allocated, split and freed.
    Fragment,
    /// F_u is corrected.
    Correct,
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct LoopBounds {
    /// Planned units: this many are allocated before F_u is measured, because freed pages wait on the pcp
    /// lists, which buddyinfo does not count.
    pub planned_units: u64,
    /// Maximum number of units.
    pub units_max: u64,
    /// Units per allocation step.
    pub batch_units: u64,
    /// Units to fill first, if memory is allocated as base pages.
    pub fill_units: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum LoopEnd {
    /// At the target, by two readings.
    Met,
    /// Below it, for this reason.
    ShortOfTarget(String),
    /// Other programs needed the memory; all of it was released.
    BackedOff(BackoffReason),
    /// The caller stopped the run.
    Stopped,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopOutcome {
    /// Its outcome.
    pub end: LoopEnd,
    /// Free lists of the zone at the last reading; after a back-off, the reading before the release.
    pub free_areas: FreeAreas,
    /// F_u at the last reading but one.
    pub unusable_first: f64,
    /// F_u at the last reading.
    pub unusable_last: f64,
    /// Pages by which the zone's free memory differed between the two.
    pub moved_pages: u64,
}

/// Allocates and frees units until F_u is at the target, or `report_progress` breaks. An error is a rejection
/// by the machine; held memory then stays with the fragmenter.
pub fn reach_target(
    fragmenter: &mut Fragmenter,
    monitor: &mut MemoryMonitor,
    goal: &FragmentationGoal,
    bounds: LoopBounds,
    report_progress: &mut dyn FnMut(LoopProgress, &MemoryMonitor) -> ControlFlow<()>,
) -> io::Result<LoopOutcome> {
    let zoneinfo = read_zoneinfo();
    let phase = LoopPhase::Fragment;
    let mut run = ControlLoop { fragmenter, monitor, goal, bounds, report_progress, zoneinfo, phase };
    let end = match run.fill_base_pages()? {
        Some(ending) => ending,
        None => run.correct_index()?,
    };
    if matches!(end, LoopEnd::ShortOfTarget(_) | LoopEnd::Met) {
        run.fragmenter.release_unfragmented()?;
    }
    let outcome = run.take_second_reading(end)?;
    if let LoopEnd::BackedOff(_) = outcome.end {
        run.fragmenter.release_all();
    }
    Ok(outcome)
}

struct ControlLoop<'r> {
    fragmenter: &'r mut Fragmenter,
    monitor: &'r mut MemoryMonitor,
    goal: &'r FragmentationGoal,
    bounds: LoopBounds,
    report_progress: &'r mut dyn FnMut(LoopProgress, &MemoryMonitor) -> ControlFlow<()>,
    /// Managed pages of zones: they grow while memory is initialised, so they are read again.
    zoneinfo: Option<Zoneinfo>,
    phase: LoopPhase,
}

impl ControlLoop<'_> {
    /// Measures, reports, and returns whether the run must end.
    fn check(&mut self) -> io::Result<Option<LoopEnd>> {
        self.monitor.refresh().map_err(absence_to_io_error)?;
        if let Some(danger) = self.monitor.backoff_reason() {
            return Ok(Some(LoopEnd::BackedOff(danger)));
        }
        let index = unusable_index(&self.monitor.free_areas(), self.goal.order);
        let progress = LoopProgress {
            phase: self.phase,
            unusable_index: index,
            fragmented_units: self.fragmenter.filled_units(),
        };
        let action = (self.report_progress)(progress, self.monitor);
        Ok(action.is_break().then_some(LoopEnd::Stopped))
    }

    /// Allocates base pages, if the plan says so: as many as planned, and further until as many whole blocks
    /// are used up in the zone, since the first pages come from blocks that are split already.
    fn fill_base_pages(&mut self) -> io::Result<Option<LoopEnd>> {
        self.phase = LoopPhase::Fill;
        let unit = self.fragmenter.keep_pattern().unit_order;
        let planned = u128::from(self.bounds.planned_units);
        let mut wanted = None;
        while self.fragmenter.fill_method() == FillMethod::BasePages {
            if let Some(ending) = self.check()? {
                return Ok(Some(ending));
            }
            let free_units = self.monitor.free_areas().blocks_suitable(unit);
            let wanted = *wanted.get_or_insert(free_units.saturating_sub(planned));
            let left = match self.bounds.fill_units.saturating_sub(self.fragmenter.filled_units()) {
                0 if free_units > wanted => self.headroom_units(),
                left => left,
            };
            if left == 0 {
                break;
            }
            self.fragmenter.fill_units(left.min(self.bounds.batch_units))?;
        }
        Ok(None)
    }

    /// Maximum of units beyond the plan: below the control group's limit, which is an eighth above the plan.
    fn headroom_units(&self) -> u64 {
        let room = self.monitor.headroom_pages() / self.fragmenter.keep_pattern().unit_order.to_pages().0;
        let most =
            (self.bounds.planned_units + self.bounds.planned_units / 8 + 32).min(self.bounds.units_max);
        room.min(most.saturating_sub(self.fragmenter.filled_units()))
    }

    fn next_step(&self) -> FragmentationStep {
        let held_units = self.fragmenter.fragmented_units();
        next_step(&self.monitor.free_areas(), self.goal, self.fragmenter.keep_pattern(), held_units)
    }

    fn correct_index(&mut self) -> io::Result<LoopEnd> {
        let (mut tries, mut corrections, mut is_drained) = (0, 0, false);
        self.phase = LoopPhase::Fragment;
        loop {
            if let Some(ending) = self.check()? {
                return Ok(ending);
            }
            let initialising = self.has_deferred_memory();
            let (held_units, planned) = (self.fragmenter.fragmented_units(), self.bounds.planned_units);
            let is_at_target =
                unusable_index(&self.monitor.free_areas(), self.goal.order) >= self.goal.target;
            let next = match self.next_step() {
                // Other programs fragment memory too. Pages on pcp lists are in small blocks, so this is a
                // lower bound of F_u; allocating the planned units anyway would overshoot.
                _ if held_units < planned && tries == 0 && !is_at_target => {
                    FragmentationStep::Fragment(planned - held_units)
                }
                FragmentationStep::Done | FragmentationStep::Release(_) if initialising => {
                    FragmentationStep::Fragment(self.bounds.batch_units)
                }
                FragmentationStep::Done => FragmentationStep::Done,
                // Only a reading with drained pcp lists shows the remaining distance.
                next if is_drained => next,
                _ => FragmentationStep::Done,
            };
            is_drained = false;
            if initialising {
                self.phase = LoopPhase::Initialize;
            }
            let units_done = match next {
                FragmentationStep::Fragment(units) => match self.fragment_batch(units, initialising)? {
                    Ok(took) => took,
                    Err(ending) => return Ok(ending),
                },
                FragmentationStep::Release(units) => {
                    let fragmenter = &mut *self.fragmenter;
                    self.monitor.free_and_drain(|| fragmenter.release_units(units))?;
                    units
                }
                FragmentationStep::Done => {
                    self.phase = LoopPhase::Correct;
                    // The pages on the pcp lists belong to it, and some may still move.
                    self.monitor.drain_pcp_lists().map_err(absence_to_io_error)?;
                    std::thread::sleep(SECOND_READING_DELAY);
                    self.monitor.refresh().map_err(absence_to_io_error)?;
                    let is_good =
                        corrections >= FINE_CORRECTIONS_MAX && self.goal.is_met(&self.monitor.free_areas());
                    if self.next_step() == FragmentationStep::Done
                        || is_good
                        || corrections >= CORRECTIONS_MAX
                    {
                        return Ok(self.judge_last_reading());
                    }
                    corrections += 1;
                    is_drained = true;
                    continue;
                }
            };
            tries = if units_done == 0 { tries + 1 } else { 0 };
            corrections += u32::from(self.phase == LoopPhase::Correct);
            if tries >= FRUITLESS_TRIES_MAX || corrections > CORRECTIONS_MAX {
                return Ok(self.judge_last_reading());
            }
            if units_done == 0 {
                self.monitor.drain_pcp_lists().map_err(absence_to_io_error)?;
                std::thread::sleep(SECOND_READING_DELAY);
            }
        }
    }

    /// Allocates a batch. The inner error ends the run.
    fn fragment_batch(&mut self, units: u64, initialising: bool) -> io::Result<Result<u64, LoopEnd>> {
        let remaining_units = match self.fragmenter.fill_method() {
            FillMethod::HugePages => self.bounds.units_max.saturating_sub(self.fragmenter.fragmented_units()),
            FillMethod::BasePages => self.fragmenter.filled_units() - self.fragmenter.fragmented_units(),
        };
        if remaining_units == 0 {
            // It may still be at the target within the tolerance, once the lists are settled.
            self.monitor.drain_pcp_lists().map_err(absence_to_io_error)?;
            return Ok(Err(self.judge_last_reading()));
        }
        let mut units = units.min(remaining_units).min(self.bounds.batch_units);
        // Without a whole block the kernel would compact, or use another zone.
        if self.fragmenter.fill_method() == FillMethod::HugePages && !initialising {
            let unit_order = self.fragmenter.keep_pattern().unit_order;
            let free_units = self.monitor.free_areas().blocks_suitable(unit_order);
            units = units.min(u64::try_from(free_units).unwrap_or(u64::MAX));
        }
        Ok(Ok(self.fragmenter.fragment_units(units)?))
    }

    /// Whether free memory is still to be initialised. Deferred memory is added in whole blocks, and would
    /// lower the F_u that was reached without it.
    fn has_deferred_memory(&mut self) -> bool {
        let Some(known) = &self.zoneinfo else { return false };
        if self.monitor.deferred_pages(known).0 == 0 {
            return false;
        }
        // zoneinfo is read again only if memory was not initialised in the old one.
        self.zoneinfo = read_zoneinfo();
        let still = self.zoneinfo.as_ref().is_some_and(|known| self.monitor.deferred_pages(known).0 > 0);
        still
            && self.fragmenter.fill_method() == FillMethod::HugePages
            && self.fragmenter.fragmented_units() < self.bounds.units_max
    }

    /// Whether the target is met, by the last reading.
    fn judge_last_reading(&mut self) -> LoopEnd {
        let areas = self.monitor.free_areas();
        if self.goal.is_met(&areas) {
            return LoopEnd::Met;
        }
        let index = unusable_index(&areas, self.goal.order);
        let free_units = areas.blocks_suitable(self.fragmenter.keep_pattern().unit_order);
        let why = if index > self.goal.target {
            "meanwhile other programs fragmented free memory further"
        } else if free_units == 0 {
            "the zone has no free block of this order left"
        } else if self.fragmenter.fill_method() == FillMethod::BasePages
            && self.fragmenter.fragmented_units() == self.fragmenter.filled_units()
        {
            "base pages are allocated from already fragmented blocks first"
        } else if self.fragmenter.fragmented_units() >= self.bounds.units_max {
            "the memory limit (--size or the reserve) was reached"
        } else {
            "the kernel allocates no more huge pages from this zone, although it has suitable free blocks"
        };
        LoopEnd::ShortOfTarget(why.to_owned())
    }

    fn take_second_reading(&mut self, ending: LoopEnd) -> io::Result<LoopOutcome> {
        let first = self.monitor.free_areas();
        self.monitor.refresh().map_err(absence_to_io_error)?;
        let areas = self.monitor.free_areas();
        let index = |areas: &FreeAreas| unusable_index(areas, self.goal.order);
        let moved = first.free_pages().abs_diff(areas.free_pages());
        Ok(LoopOutcome {
            end: ending,
            unusable_first: index(&first),
            unusable_last: index(&areas),
            moved_pages: u64::try_from(moved).unwrap_or(u64::MAX),
            free_areas: areas,
        })
    }
}

fn read_zoneinfo() -> Option<Zoneinfo> {
    let root = Root::live();
    Reader::new(&root).parse(paths::ZONEINFO, pagelab_formats::zoneinfo::parse).ok()
}

fn absence_to_io_error(absence: pagelab_model::Absence) -> io::Error {
    io::Error::other(format!("{}: {}", absence.source, absence.reason()))
}
