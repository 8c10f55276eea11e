//! From a ranking to a plan.

use std::collections::BTreeMap;

use pagelab_model::huge_plan::{PlanGain, PlannedMapping, PlannedProgram, PlannedRegion};
use pagelab_model::{Bytes, HugePlan, Profile};

use super::{Ranked, Ranking, Region};
use crate::grid;

/// Cells of a plan in each of its pages: a run whose mapping begins elsewhere shares out the cost by them.
const CELLS_OF_PAGE: u64 = 16;

/// The plan of the first `n` regions of a ranking.
pub fn plan(
    profile: &Profile,
    ranking: &Ranking,
    n: usize,
    page: Bytes,
    predicted: Option<PlanGain>,
) -> HugePlan {
    let mut programs: Vec<PlannedProgram> = Vec::new();
    let mut places: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let unit = if ranking.timed { 1000.0 } else { 1.0 };
    for region in ranking.regions.iter().take(n) {
        let Some(of) = ranking.mappings.get(region.mapping) else { continue };
        let (program, mapping) = *places.entry(region.mapping).or_insert_with(|| {
            let known = programs.iter().position(|known| known.program == of.program);
            let program = known.unwrap_or_else(|| {
                programs.push(PlannedProgram { program: of.program.clone(), mappings: Vec::new() });
                programs.len() - 1
            });
            programs[program].mappings.push(PlannedMapping {
                key: of.key.clone(),
                start: grid::base(&of.key, of.start),
                bytes: of.bytes,
                regions: Vec::new(),
                cells: Vec::new(),
            });
            (program, programs[program].mappings.len() - 1)
        });
        let cost_ns = ranking.timed.then_some((region.cost / unit) as u64);
        let planned = PlannedRegion { offset: region.offset, page, cost_ns };
        programs[program].mappings[mapping].regions.push(planned);
    }
    for (&number, &(program, mapping)) in &places {
        let chosen: Vec<&Region> =
            ranking.regions.iter().take(n).filter(|region| region.mapping == number).collect();
        programs[program].mappings[mapping].cells = cells(&ranking.mappings[number], &chosen, page, unit);
    }
    HugePlan { source: Some(profile.source), command: profile.command.clone(), predicted, programs }
}

/// The cost around the chosen regions, in cells of a sixteenth of a page.
fn cells(of: &Ranked, chosen: &[&Region], page: Bytes, unit: f64) -> Vec<(u64, u64, u64)> {
    let grain = (page.0 / CELLS_OF_PAGE).max(1);
    let mut near: BTreeMap<u64, f64> = BTreeMap::new();
    let mut windows: Vec<(u64, u64)> = chosen
        .iter()
        .map(|region| (region.offset.saturating_sub(page.0), region.offset.saturating_add(2 * page.0)))
        .collect();
    windows.sort_unstable();
    let is_near = |at: u64| {
        let after = windows.partition_point(|&(from, _)| from <= at);
        // Windows are equally long, so the last one that began is the last one to end.
        after.checked_sub(1).is_some_and(|last| at < windows[last].1)
    };
    for cell in of.cells.iter().filter(|cell| cell.bytes / page.0.max(1) <= grid::PAGES_OF_CELL) {
        for (number, bytes) in grid::parts(0, cell.offset, cell.bytes, grain) {
            if is_near(number * grain) {
                *near.entry(number).or_default() += cell.cost * bytes as f64 / cell.bytes as f64;
            }
        }
    }
    let cell = |(number, cost): (u64, f64)| (number * grain, grain, (cost / unit) as u64);
    near.into_iter().map(cell).filter(|cell| cell.2 > 0).collect()
}
