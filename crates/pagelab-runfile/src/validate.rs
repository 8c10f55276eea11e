//! Validation of the properties of snapshots, plans and trials that evaluation and display rely on.

use pagelab_model::experiment::{Plan, ScheduleSlot, Trial};
use pagelab_model::simulation::{MemoryPicture, ScheduleGrid};
use pagelab_model::{Census, CensusZone, FreeAreas, Order, PageClass, Snapshot, ZoneEntry};

/// The largest order that anything in a snapshot has: 4 TiB at 4 KiB.
const ORDER_MAX: Order = Order(30);

/// Pages that no machine has more of: physical addresses have at most 57 bits.
const PAGES_MAX: u64 = 1 << 47;

/// Zones that no machine has more of: 6 on each of 1024 nodes. Searches for a zone rely on it.
const ZONES_MAX: usize = 6 << 10;

/// Checks a snapshot; an error is a sentence.
pub(crate) fn check_snapshot(snapshot: &Snapshot) -> Result<(), String> {
    check_order("a huge page", snapshot.pmd_order)?;
    check_order("a pageblock", snapshot.pageblock_order)?;
    if let Ok(pages) = snapshot.free_moved {
        check_page_count("free_moved", pages.0)?;
    }
    let extfrag = snapshot.extfrag.as_ref().map(|files| &files.buddyinfo);
    if let Ok(zoneinfo) = &snapshot.zoneinfo {
        check_zone_count("zoneinfo", zoneinfo.zones.len())?;
        zoneinfo.zones.iter().try_for_each(check_zone_span)?;
    }
    for buddyinfo in [snapshot.buddyinfo.as_ref(), extfrag].into_iter().flatten() {
        check_zone_count("buddyinfo", buddyinfo.zones.len())?;
        for zone in &buddyinfo.zones {
            check_free_areas(&zone.key.zone, &zone.areas)?;
        }
    }
    snapshot.census.as_ref().map_or(Ok(()), check_census)
}

/// Trials that no experiment has more of.
const SLOTS_MAX: usize = 1 << 22;

/// Checks that a plan names only workloads and variants that it has, and that its slots can be counted.
pub(crate) fn check_plan(plan: &Plan) -> Result<(), String> {
    let has =
        |workload: usize, variant: usize| workload < plan.workloads.len() && variant < plan.variants.len();
    if plan.baseline.is_some_and(|baseline| baseline >= plan.variants.len()) {
        return Err("its baseline is not among its variants".to_owned());
    }
    if plan.dropped_variants.iter().any(|&variant| variant >= plan.variants.len()) {
        return Err("a dropped variant is not among its variants".to_owned());
    }
    let Some(grid) = plan.schedule.grid() else {
        let is_unknown = |slot: ScheduleSlot| !has(slot.workload, slot.variant);
        return match plan.schedule.iter().position(is_unknown) {
            Some(at) => Err(format!("slot {at} has an unknown workload or variant")),
            None => Ok(()),
        };
    };
    check_grid(grid, plan.varied().len())?;
    match grid.points.iter().position(|point| !has(point.workload, point.variant)) {
        Some(at) => Err(format!("point {at} has an unknown workload or variant")),
        None if plan.workloads.iter().any(|workload| workload.simulated.is_none()) => {
            Err("a workload of its grid is not simulated".to_owned())
        }
        None => Ok(()),
    }
}

fn check_grid(grid: &ScheduleGrid, factors: usize) -> Result<(), String> {
    if grid.points.is_empty() || grid.seeds.is_empty() {
        return Err("it has no points or no seeds".to_owned());
    }
    if let Some(at) = grid.points.iter().position(|point| point.values.len() != factors) {
        return Err(format!("point {at} has {} values; expected {factors}", grid.points[at].values.len()));
    }
    let is_countable = grid.count_slots().is_some_and(|slots| slots <= SLOTS_MAX);
    ensure(is_countable, || format!("it has more than {SLOTS_MAX} trials"))
}

/// Checks a trial of an experiment with a number of slots; an error is a sentence.
pub fn check_trial(trial: &Trial, slots: usize) -> Result<(), String> {
    if trial.slot >= slots {
        return Err(format!("a trial has slot {}, but the plan has {slots} slots", trial.slot));
    }
    let is_undefined =
        |of: &&pagelab_model::experiment::Measure| of.exact.is_some_and(|exact| exact.denominator == 0);
    if let Some(measure) = trial.measures.iter().find(is_undefined) {
        return Err(format!("measure {} of slot {} has a denominator of 0", measure.key(), trial.slot));
    }
    let is_rising = |points: &[(u64, i64)]| points.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    trial.series.iter().try_for_each(|series| {
        ensure(is_rising(&series.points), || {
            format!("the positions of series {} of slot {} are not ascending", series.name, trial.slot)
        })
    })
}

/// Checks a picture of memory; an error is a predicate.
pub fn check_picture(picture: &MemoryPicture) -> Result<(), &'static str> {
    if check_frame_runs(&picture.runs) { Ok(()) } else { Err("has duplicate frames or an unknown use") }
}

/// Whether runs of frames follow each other, and each is of a use that there is.
fn check_frame_runs(runs: &[(u32, u32, u8)]) -> bool {
    const USE_COUNT: u8 = 7;
    let mut end = 0u64;
    runs.iter().all(|&(first, frames, class)| {
        let follows = u64::from(first) >= end && frames > 0 && class < USE_COUNT;
        end = u64::from(first) + u64::from(frames);
        follows
    })
}

fn ensure(is_valid: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if is_valid { Ok(()) } else { Err(problem()) }
}

fn check_order(field_name: &str, order: Order) -> Result<(), String> {
    ensure(order <= ORDER_MAX, || format!("{field_name} has the impossible order {}", order.0))
}

fn check_page_count(field_name: &str, pages: u64) -> Result<(), String> {
    ensure(pages <= PAGES_MAX, || format!("{field_name} has an impossible size of {pages} pages"))
}

fn check_zone_count(field_name: &str, zones: usize) -> Result<(), String> {
    ensure(zones <= ZONES_MAX, || format!("{field_name} has an impossible number of zones: {zones}"))
}

/// The page's picture has a place for each block from a zone's first to its last.
fn check_zone_span(zone: &ZoneEntry) -> Result<(), String> {
    zone.spanned.map_or(Ok(()), |spanned| check_page_count("the span of a zone", spanned.0))
}

fn check_free_areas(zone: &str, areas: &FreeAreas) -> Result<(), String> {
    let pages = areas.free_pages();
    ensure(pages <= u128::from(PAGES_MAX), || {
        format!("zone {zone}: impossible number of free pages: {pages}")
    })
}

fn check_census(census: &Census) -> Result<(), String> {
    check_order("a block of the census", census.pageblock_order)?;
    check_zone_count("the census", census.zones.len())?;
    if let Some(areas) = &census.free_blocks {
        check_free_areas("of the whole machine", areas)?;
    }
    census.zones.iter().try_for_each(|zone| check_census_zone(census.pageblock_order, zone))
}

fn check_census_zone(pageblock_order: Order, zone: &CensusZone) -> Result<(), String> {
    let name = &zone.key.zone;
    let to_error = |problem: String| Err(format!("zone {name} of the census: {problem}"));
    let block_pages = pageblock_order.to_pages().0;
    if !zone.first.is_aligned(pageblock_order) || zone.first.0 > PAGES_MAX {
        return to_error(format!("frame {} is not the start of a block", zone.first.0));
    }
    if zone.blocks_total > PAGES_MAX / block_pages || zone.blocks.len() as u64 > zone.blocks_total {
        return to_error(format!("impossible count: {} of {} blocks", zone.blocks.len(), zone.blocks_total));
    }
    if let Some((index, _)) = zone.blocks.iter().find(|(index, _)| *index > PAGES_MAX / block_pages) {
        return to_error(format!("block {index} is beyond the end of memory"));
    }
    if let Some(pair) = zone.blocks.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return to_error(format!("block {} is before block {}", pair[0].0, pair[1].0));
    }
    let counted = |counts: &pagelab_model::PageblockCounts| -> u64 {
        PageClass::ALL.into_iter().map(|class| u64::from(counts.pages_of_class(class))).sum()
    };
    if let Some((index, counts)) = zone.blocks.iter().find(|(_, counts)| counted(counts) != block_pages) {
        return to_error(format!("block {index} has {} pages, not {block_pages}", counted(counts)));
    }
    let mut blocks = zone.blocks.iter().map(|(index, _)| index);
    if let Some(index) = zone.one_folio.iter().find(|&folio| !blocks.any(|index| index == folio)) {
        return to_error(format!("block {index} is listed as one folio but was not counted"));
    }
    if let Some(areas) = &zone.free_blocks {
        check_free_areas(name, areas)?;
    }
    zone.per_cpu.map_or(Ok(()), |listed| check_page_count("per_cpu", listed.0))
}
