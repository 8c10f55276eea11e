//! Simulations as a page: tables, bars and lines of the figures, memory over time, and the demonstration.

use pagelab_model::simulation::MemoryPicture;
use serde_json::{Value, json};

use super::map_page::category_json;
use super::{DataBlocks, make_page};
use crate::json::object::{JsonObject, to_array};
use crate::sim::demo::Demo;
use crate::sim::text::{self, RECLAIM_FRAMES, RECLAIM_ORDERS};
use crate::sim::{
    FRAME_USES, SimulationFigure, SimulationReport, SimulationScheme, SimulationSeries, reclaim_share,
};
use crate::simulated;
use crate::style::TextStyle;

/// Pictures in a page, at most: if there are more, those of each scheme at about even distances, including
/// its first and its last; with very many schemes two of each.
pub const PICTURES_MAX: usize = 60;
/// Width of a picture in cells.
const PICTURE_WIDTH: u64 = 256;
/// Cells of a picture, at most: beyond it, a cell represents several pages.
const PICTURE_CELLS_MAX: u64 = 1 << 16;
/// Cell without memory.
const EMPTY_CELL: u8 = 255;

/// Renders the page of simulations.
pub fn render_page(report: &SimulationReport) -> Result<String, serde_json::Error> {
    let mut data_blocks = DataBlocks::default();
    let made = || text::render(report, TextStyle { width: 120, ..TextStyle::PLAIN });
    let text = report.text.clone().unwrap_or_else(made);
    let sim = report_json(report, &text, &mut data_blocks);
    make_page(&report.title, &text, Vec::new(), Some(("sim", sim)), data_blocks)
}

/// Renders the page of a demonstration, with `text` for readers without scripts.
pub fn render_demo_page(demo: &Demo, text: &str) -> Result<String, serde_json::Error> {
    let content = ("demo", demo_json(demo).field("text", text));
    make_page(&demo.title, text, Vec::new(), Some(content), DataBlocks::default())
}

fn report_json(report: &SimulationReport, text: &str, data_blocks: &mut DataBlocks) -> JsonObject {
    let reclaim = RECLAIM_ORDERS.iter().filter_map(|&order| {
        let share = reclaim_share(RECLAIM_FRAMES, order)?;
        Some(JsonObject::new().field("order", order).field("share", share))
    });
    JsonObject::new()
        .field("title", report.title.as_str())
        .field("facts", report.facts.clone())
        .field("schemes", to_array(&report.schemes, scheme_json))
        .field("figures", to_array(&report.figures, |figure| figure_json(figure, report.schemes.len())))
        .field("series", to_array(&report.series, |series| series_json(series, data_blocks)))
        .field("reclaim", reclaim.collect::<Value>())
        .field("memory", memory_json(report, data_blocks))
        .field("tables", json!(report.tables))
        .field("notes", report.notes.clone())
        .field("text", text)
}

fn scheme_json(scheme: &SimulationScheme) -> JsonObject {
    JsonObject::new().field("name", scheme.name.as_str()).field("lists", scheme.free_lists.clone())
}

fn figure_json(figure: &SimulationFigure, schemes: usize) -> JsonObject {
    let values: Vec<Value> = (0..schemes)
        .map(|at| {
            figure.values.get(at).copied().flatten().map_or(Value::Null, |value| {
                let interval = value.interval();
                JsonObject::new()
                    .field("middle", value.median)
                    .field("low", interval.map(|(low, _)| low))
                    .field("high", interval.map(|(_, high)| high))
                    .field("seeds", value.seed_count)
                    .field("shown", simulated::format_value(value.median, &figure.unit))
                    .field("text", text::format_figure_value(&value, &figure.unit))
                    .into()
            })
        })
        .collect();
    let paper: Vec<Option<f64>> =
        (0..schemes).map(|at| figure.paper_values.get(at).copied().flatten()).collect();
    let formatted: Vec<Option<String>> =
        paper.iter().map(|of| of.map(|of| simulated::format_value(of, &figure.unit))).collect();
    JsonObject::new()
        .field("phase", figure.phase.as_str())
        .field("name", figure.name.as_str())
        .field("zone", figure.zone.as_deref())
        .field("unit", figure.unit.as_str())
        .field("values", values)
        .field("paper_shown", formatted)
        .field("paper", paper)
}

fn series_json(series: &SimulationSeries, data_blocks: &mut DataBlocks) -> JsonObject {
    let at: Vec<f64> = series.points.iter().map(|&(at, _)| at as f64).collect();
    let values: Vec<f64> = series.points.iter().map(|&(_, value)| value).collect();
    JsonObject::new()
        .field("name", series.name.as_str())
        .field("over", series.axis.as_str())
        .field("scheme", series.scheme)
        .field("at", data_blocks.push_f64(&at))
        .field("values", data_blocks.push_f64(&values))
}

fn memory_json(report: &SimulationReport, data_blocks: &mut DataBlocks) -> Value {
    let schemes: Vec<usize> = report.pictures.iter().map(|(scheme, _)| *scheme).collect();
    let shown = choose_pictures(&schemes);
    if shown.is_empty() {
        return Value::Null;
    }
    let pictures =
        to_array(shown.into_iter().filter_map(|at| report.pictures.get(at)), |(scheme, picture)| {
            picture_json(report, *scheme, picture, data_blocks)
        });
    JsonObject::new()
        .field("recorded", report.pictures.len())
        .field("legend", to_array(&FRAME_USES, category_json))
        .field("pictures", pictures)
        .into()
}

/// Returns the places of the pictures that are shown, of pictures of these schemes.
fn choose_pictures(schemes: &[usize]) -> Vec<usize> {
    if schemes.len() <= PICTURES_MAX {
        return (0..schemes.len()).collect();
    }
    let mut known = schemes.to_vec();
    known.sort_unstable();
    known.dedup();
    let most = (PICTURES_MAX / known.len()).max(2);
    let mut chosen: Vec<usize> = Vec::new();
    for scheme in known {
        let table: Vec<usize> = (0..schemes.len()).filter(|&at| schemes[at] == scheme).collect();
        let shown = table.len().min(most);
        let even = |step: usize| table[step * (table.len() - 1) / (shown - 1).max(1)];
        chosen.extend((0..shown).map(even));
    }
    chosen.sort_unstable();
    chosen
}

/// Contiguous runs of frames: first frame, frames.
fn frame_extents(runs: &[(u32, u32, u8)]) -> Vec<(u64, u64)> {
    let mut extents: Vec<(u64, u64)> = Vec::new();
    for &(first, frames, _) in runs {
        let (first, frames) = (u64::from(first), u64::from(frames));
        match extents.last_mut() {
            Some((at, length)) if *at + *length == first => *length += frames,
            _ => extents.push((first, frames)),
        }
    }
    extents
}

fn picture_json(
    report: &SimulationReport,
    scheme: usize,
    picture: &MemoryPicture,
    data_blocks: &mut DataBlocks,
) -> JsonObject {
    let extents = frame_extents(&picture.runs);
    let frames: u64 = extents.iter().map(|&(_, frames)| frames).sum();
    let pages_per_cell = frames.div_ceil(PICTURE_CELLS_MAX).next_power_of_two();
    let mut cells = picture_cells(&picture.runs, pages_per_cell);
    let height = (cells.len() as u64).div_ceil(PICTURE_WIDTH).max(1);
    cells.resize((height * PICTURE_WIDTH) as usize, EMPTY_CELL);
    let mut pages = [0u64; FRAME_USES.len()];
    for &(_, frames, used) in &picture.runs {
        if let Some(pages) = pages.get_mut(usize::from(used)) {
            *pages += u64::from(frames);
        }
    }
    let block = frames / (picture.owners.len() as u64).max(1);
    let zones = report.schemes.get(scheme).map_or(&[][..], |scheme| &scheme.zones);
    let base = JsonObject::new()
        .field("width", PICTURE_WIDTH)
        .field("height", height)
        .field("pixel_layout", "rows")
        .field("tile", vec![PICTURE_WIDTH, height])
        .field("blend", "majority")
        .field("pages_per_pixel", pages_per_cell)
        .field("page_size_bytes", pagelab_model::PageSize::DEFAULT.bytes())
        .field("pageblock_pages", block.max(1))
        .field("extents", to_array(&extents, |&(first, frames)| extent_json(first, frames)))
        .field(
            "zones",
            to_array(zones, |zone| {
                extent_json(zone.first.into(), zone.frames.into()).field("name", zone.name.as_str())
            }),
        )
        .field("memory_blocks", Vec::<Value>::new());
    JsonObject::new()
        .field("scheme", scheme)
        .field("step", picture.step)
        .field("phase", picture.phase.as_str())
        .field("pages", pages.to_vec())
        .field("layout", base)
        .field("cells", data_blocks.push_bytes(&cells))
        .field("owners", data_blocks.push_bytes(&picture.owners))
}

fn extent_json(first: u64, frames: u64) -> JsonObject {
    JsonObject::new().field("first_frame", first).field("frames", frames)
}

/// Returns, for each group of pages, the use that most of them have; among equally frequent uses, the one
/// that hinders more.
fn picture_cells(runs: &[(u32, u32, u8)], pages_per_cell: u64) -> Vec<u8> {
    let mut cells = Vec::new();
    let mut counts = UseCounts::default();
    let mut frames_left = pages_per_cell;
    for &(_, frames, used) in runs {
        let mut left = u64::from(frames);
        let used = usize::from(used).min(FRAME_USES.len());
        while left > 0 {
            let taken = left.min(frames_left);
            counts[used] += taken;
            (left, frames_left) = (left - taken, frames_left - taken);
            if frames_left == 0 {
                cells.push(most_frequent_use(&counts));
                (counts, frames_left) = (UseCounts::default(), pages_per_cell);
            }
        }
    }
    if frames_left < pages_per_cell {
        cells.push(most_frequent_use(&counts));
    }
    cells
}

/// Pages of a cell by their use; the last place is for unknown uses.
type UseCounts = [u64; FRAME_USES.len() + 1];

fn most_frequent_use(counts: &UseCounts) -> u8 {
    let best =
        (0..counts.len()).max_by_key(|&used| (counts[used], FRAME_USES.get(used).map(|known| known.rank)));
    best.filter(|&used| used < FRAME_USES.len()).map_or(EMPTY_CELL, |used| used as u8)
}

fn demo_json(demo: &Demo) -> JsonObject {
    JsonObject::new()
        .field("title", demo.title.as_str())
        .field("facts", demo.facts.clone())
        .field("block_frames", demo.block_frames)
        .field("goal_order", demo.huge_page_order)
        .field("lanes", json!(demo.policies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_the_majority_of_their_pages_however_runs_are_cut() {
        // Compared with a flat array of frames.
        let runs = [(0, 3, 1), (3, 5, 0), (8, 1, 4), (9, 7, 5), (16, 9, 2), (25, 2, 6)];
        let flat: Vec<u8> = runs.iter().flat_map(|&(_, frames, used)| vec![used; frames as usize]).collect();
        for pages_per_cell in [1, 2, 4, 8, 64] {
            let plain: Vec<u8> = flat
                .chunks(pages_per_cell)
                .map(|pages| {
                    let count = |used: u8| pages.iter().filter(|&&page| page == used).count();
                    (0..7).max_by_key(|&used| (count(used), FRAME_USES[usize::from(used)].rank)).unwrap()
                })
                .collect();
            assert_eq!(picture_cells(&runs, pages_per_cell as u64), plain, "{pages_per_cell}");
        }
    }

    #[test]
    fn a_use_that_nobody_knows_is_drawn_as_nothing() {
        assert_eq!(picture_cells(&[(0, 3, 200), (3, 1, 5), (4, 2, 1), (6, 2, 7)], 4), [EMPTY_CELL, 1]);
    }

    #[test]
    fn holes_are_left_out_and_named_by_their_neighbours() {
        assert_eq!(frame_extents(&[(4, 4, 0), (8, 8, 1), (32, 16, 2)]), [(4, 12), (32, 16)]);
        assert_eq!(frame_extents(&[]), []);
    }

    #[test]
    fn of_many_pictures_the_first_and_the_last_of_each_scheme_are_shown() {
        assert_eq!(choose_pictures(&[0, 1, 0]), [0, 1, 2]);
        let some = choose_pictures(&[7; 1000]);
        assert_eq!((some.len(), some[0], some[PICTURES_MAX - 1]), (PICTURES_MAX, 0, 999));
        // 3 schemes of 17, 34 and 51 pictures.
        let schemes: Vec<usize> = (0..102).map(|at| [0, 1, 1, 2, 2, 2][at % 6]).collect();
        let some = choose_pictures(&schemes);
        assert!(some.len() <= PICTURES_MAX && some.windows(2).all(|pair| pair[0] < pair[1]), "{some:?}");
        for scheme in 0..3 {
            let table = |&&at: &&usize| schemes[at] == scheme;
            let all: Vec<usize> = (0..102).filter(|at| schemes[*at] == scheme).collect();
            assert_eq!(some.iter().find(table), all.first());
            assert_eq!(some.iter().rev().find(table), all.last());
            assert_eq!(some.iter().filter(table).count(), all.len().min(20));
        }
        let many: Vec<usize> = (0..200).map(|at| at / 2).collect();
        assert_eq!(choose_pictures(&many).len(), 200);
    }
}
