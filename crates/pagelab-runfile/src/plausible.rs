//! Whether a snapshot could be that of a machine, as far as what judges and shows it relies on that.

use pagelab_model::experiment::Plan;
use pagelab_model::study::{StudyPlan, StudyTrial};
use pagelab_model::{Census, CensusZone, FreeAreas, Order, PageClass, Snapshot, ZoneInfo};

/// The largest order that anything in a snapshot has: 4 TiB at 4 KiB.
const ORDER_MAX: Order = Order(30);

/// Pages that no machine has more of: physical addresses have at most 57 bits.
const PAGES_MAX: u64 = 1 << 47;

/// Zones that no machine has more of: 6 on each of 1024 nodes. Searches for a zone rely on it.
const ZONES_MAX: usize = 6 << 10;

/// Checks a snapshot; what is wrong is said in words.
pub(crate) fn check(snapshot: &Snapshot) -> Result<(), String> {
    for (what, order) in [("a huge page", snapshot.pmd_order), ("a pageblock", snapshot.pageblock_order)] {
        is_order(what, order)?;
    }
    pages("free_moved", snapshot.free_moved.0)?;
    let extfrag = snapshot.extfrag.as_ref().map(|files| &files.buddyinfo);
    if let Ok(zoneinfo) = &snapshot.zoneinfo {
        zones("zoneinfo", zoneinfo.zones.len())?;
        zoneinfo.zones.iter().try_for_each(span)?;
    }
    for buddyinfo in [snapshot.buddyinfo.as_ref(), extfrag].into_iter().flatten() {
        zones("buddyinfo", buddyinfo.zones.len())?;
        for zone in &buddyinfo.zones {
            free_areas(&zone.key.zone, &zone.areas)?;
        }
    }
    match &snapshot.census {
        Ok(census) => self::census(census),
        Err(_) => Ok(()),
    }
}

/// Checks that a plan names only workloads and variants that it has.
pub(crate) fn check_plan(plan: &Plan) -> Result<(), String> {
    let has = |slot: &pagelab_model::experiment::Slot| {
        slot.workload < plan.workloads.len() && slot.variant < plan.variants.len()
    };
    match plan.schedule.iter().position(|slot| !has(slot)) {
        Some(at) => Err(format!("slot {at} has a workload or variant that there is not")),
        None if plan.baseline >= plan.variants.len() => Err("its baseline is no variant of it".to_owned()),
        None => Ok(()),
    }
}

/// Trials that no study has more of.
const SLOTS_MAX: usize = 1 << 22;

/// Checks the plan of a study, and says how many trials it has.
pub(crate) fn check_study(plan: &StudyPlan) -> Result<usize, String> {
    if plan.cells.is_empty() || plan.seeds.is_empty() {
        return Err("it has no cells, or no seeds".to_owned());
    }
    if let Some(at) = plan.cells.iter().position(|cell| cell.values.len() != plan.varied.len()) {
        let (has, wanted) = (plan.cells[at].values.len(), plan.varied.len());
        return Err(format!("cell {at} has {has} values of the {wanted} that are varied"));
    }
    let slots = plan.slots().filter(|&slots| slots <= SLOTS_MAX);
    slots.ok_or_else(|| format!("it has more than {SLOTS_MAX} trials"))
}

/// Checks a trial of a study that has so many.
pub(crate) fn check_study_trial(trial: &StudyTrial, slots: usize) -> Result<(), String> {
    if trial.slot >= slots {
        return Err(format!("a trial of slot {}, and the study has {slots}", trial.slot));
    }
    if let Some(figure) = trial.figures.iter().find(|figure| figure.per == 0) {
        return Err(format!("the figure {} of slot {} is divided by 0", figure.key(), trial.slot));
    }
    let is_rising = |points: &[(u64, i64)]| points.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    if let Some(series) = trial.series.iter().find(|series| !is_rising(&series.points)) {
        return Err(format!("the places of series {} of slot {} go back", series.name, trial.slot));
    }
    match trial.pictures.iter().all(|picture| in_order(&picture.runs)) {
        true => Ok(()),
        false => {
            Err(format!("a picture of slot {} has frames twice, or a use that there is not", trial.slot))
        }
    }
}

/// Whether runs of frames follow each other, and each is of a use that there is.
fn in_order(runs: &[(u32, u32, u8)]) -> bool {
    const USES: u8 = 7;
    let mut end = 0u64;
    runs.iter().all(|&(first, frames, class)| {
        let follows = u64::from(first) >= end && frames > 0 && class < USES;
        end = u64::from(first) + u64::from(frames);
        follows
    })
}

fn is_order(what: &str, order: Order) -> Result<(), String> {
    if order <= ORDER_MAX { Ok(()) } else { Err(format!("{what} is of order {}", order.0)) }
}

fn pages(what: &str, pages: u64) -> Result<(), String> {
    if pages <= PAGES_MAX { Ok(()) } else { Err(format!("{what} is {pages} pages, more than there can be")) }
}

fn zones(what: &str, zones: usize) -> Result<(), String> {
    if zones <= ZONES_MAX { Ok(()) } else { Err(format!("{what} has {zones} zones, more than there can be")) }
}

/// The page's picture has a place for each block from a zone's first to its last.
fn span(zone: &ZoneInfo) -> Result<(), String> {
    zone.spanned.map_or(Ok(()), |spanned| pages("the span of a zone", spanned.0))
}

fn free_areas(zone: &str, areas: &FreeAreas) -> Result<(), String> {
    match areas.free_pages() <= u128::from(PAGES_MAX) {
        true => Ok(()),
        false => Err(format!("zone {zone} has {} free pages, more than there can be", areas.free_pages())),
    }
}

fn census(census: &Census) -> Result<(), String> {
    is_order("a block of the census", census.block_order)?;
    zones("the census", census.zones.len())?;
    if let Some(areas) = &census.free_blocks {
        free_areas("of the whole machine", areas)?;
    }
    census.zones.iter().try_for_each(|zone| census_zone(census.block_order, zone))
}

fn census_zone(block_order: Order, zone: &CensusZone) -> Result<(), String> {
    let name = &zone.key.zone;
    let wrong = |problem: String| Err(format!("zone {name} of the census: {problem}"));
    let block_pages = block_order.pages().0;
    if !zone.first.is_aligned(block_order) || zone.first.0 > PAGES_MAX {
        return wrong(format!("frame {} begins no block", zone.first.0));
    }
    if zone.blocks_total > PAGES_MAX / block_pages || zone.blocks.len() as u64 > zone.blocks_total {
        return wrong(format!("{} blocks of {} are counted", zone.blocks.len(), zone.blocks_total));
    }
    if let Some((index, _)) = zone.blocks.iter().find(|(index, _)| *index > PAGES_MAX / block_pages) {
        return wrong(format!("block {index} lies beyond all memory"));
    }
    if let Some(pair) = zone.blocks.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return wrong(format!("block {} stands before block {}", pair[0].0, pair[1].0));
    }
    let counted = |counts: &pagelab_model::BlockCounts| -> u64 {
        PageClass::ALL.into_iter().map(|class| u64::from(counts.of(class))).sum()
    };
    if let Some((index, counts)) = zone.blocks.iter().find(|(_, counts)| counted(counts) != block_pages) {
        return wrong(format!("block {index} has {} pages, not {block_pages}", counted(counts)));
    }
    let mut blocks = zone.blocks.iter().map(|(index, _)| index);
    if let Some(index) = zone.one_folio.iter().find(|&folio| !blocks.any(|index| index == folio)) {
        return wrong(format!("block {index} is one folio, and not counted in its place"));
    }
    if let Some(areas) = &zone.free_blocks {
        free_areas(name, areas)?;
    }
    zone.per_cpu.map_or(Ok(()), |listed| pages("per_cpu", listed.0))
}
