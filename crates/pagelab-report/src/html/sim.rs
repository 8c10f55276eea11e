//! Simulations as a page: tables, bars and lines of the figures, memory over time, and the demonstration.

use serde_json::Value;

use super::blocks::Blocks;
use super::picture::category;
use super::{CONTRACT, TEMPLATE, escaped, fill};
use crate::json::demo::lane;
use crate::json::object::{Object, array};
use crate::sim::demo::Demo;
use crate::sim::text::{self, RECLAIM_FRAMES, RECLAIM_ORDERS};
use crate::sim::{SimFigure, SimPicture, SimReport, SimScheme, SimSeries, SimTable, USES, reclaim_share};
use crate::study;
use crate::style::Style;

/// Pictures that a page holds, at most: of more, those of each scheme at about even distances, its first one
/// and its last one among them; with very many schemes two of each.
pub const PICTURES_MAX: usize = 60;
/// A picture is so many cells wide.
const WIDTH: u64 = 256;
/// Cells of a picture, at most: beyond, a cell stands for several pages.
const CELLS_MAX: u64 = 1 << 16;
/// A cell in which there is no memory.
const NOTHING: u8 = 255;

/// The page of simulations.
pub fn page(report: &SimReport) -> Result<String, serde_json::Error> {
    let mut blocks = Blocks::default();
    let made = || text::render(report, Style { width: 120, ..Style::PLAIN });
    let text = report.text.clone().unwrap_or_else(made);
    let sim = document(report, &text, &mut blocks);
    finish(&report.title, &text, "sim", sim, blocks)
}

/// The page of a demonstration, with the same as `text` for readers without scripts.
pub fn demo_page(demo: &Demo, text: &str) -> Result<String, serde_json::Error> {
    finish(&demo.title, text, "demo", demo_document(demo).put("text", text), Blocks::default())
}

fn finish(
    title: &str,
    text: &str,
    name: &str,
    content: Object,
    mut blocks: Blocks,
) -> Result<String, serde_json::Error> {
    let document: Value = Object::new()
        .put("page", CONTRACT)
        .put("title", title)
        .put("runs", Vec::<Value>::new())
        .put(name, content)
        .into();
    blocks.document("page", serde_json::to_string(&document)?.as_bytes());
    Ok(fill(TEMPLATE, &escaped(title), &escaped(text), &blocks.into_html()))
}

fn document(report: &SimReport, text: &str, blocks: &mut Blocks) -> Object {
    let reclaim: Vec<Value> = RECLAIM_ORDERS
        .iter()
        .filter_map(|&order| {
            let share = reclaim_share(RECLAIM_FRAMES, order)?;
            Some(Object::new().put("order", order).put("share", share).into())
        })
        .collect();
    Object::new()
        .put("title", report.title.as_str())
        .put("facts", report.facts.clone())
        .put("schemes", array(&report.schemes, scheme))
        .put("figures", array(&report.figures, |figure| self::figure(figure, report.schemes.len())))
        .put("series", array(&report.series, |series| self::series(series, blocks)))
        .put("reclaim", reclaim)
        .put("memory", memory(report, blocks))
        .put("tables", array(&report.tables, table))
        .put("notes", report.notes.clone())
        .put("text", text)
}

fn scheme(scheme: &SimScheme) -> Object {
    Object::new().put("name", scheme.name.as_str()).put("lists", scheme.lists.clone())
}

fn table(of: &SimTable) -> Object {
    Object::new()
        .put("title", of.title.as_str())
        .put("leads", of.leads)
        .put("of", of.of.as_str())
        .put("words", of.words.as_str())
        .put("columns", of.columns.clone())
        .put("names", of.names)
        .put("rows", of.rows.iter().map(|row| row.clone().into()).collect::<Vec<Value>>())
}

fn figure(figure: &SimFigure, schemes: usize) -> Object {
    let values: Vec<Value> = (0..schemes)
        .map(|at| {
            figure.values.get(at).copied().flatten().map_or(Value::Null, |value| {
                let interval = value.interval();
                Object::new()
                    .put("middle", value.middle)
                    .put("low", interval.map(|(low, _)| low))
                    .put("high", interval.map(|(_, high)| high))
                    .put("seeds", value.seeds)
                    .put("shown", study::value(value.middle, &figure.unit))
                    .put("text", text::value_text(&value, &figure.unit))
                    .into()
            })
        })
        .collect();
    let paper: Vec<Option<f64>> = (0..schemes).map(|at| figure.paper.get(at).copied().flatten()).collect();
    let said: Vec<Option<String>> =
        paper.iter().map(|of| of.map(|of| study::value(of, &figure.unit))).collect();
    Object::new()
        .put("phase", figure.phase.as_str())
        .put("name", figure.name.as_str())
        .put("zone", figure.zone.as_deref())
        .put("unit", figure.unit.as_str())
        .put("values", values)
        .put("paper_shown", said)
        .put("paper", paper)
}

fn series(series: &SimSeries, blocks: &mut Blocks) -> Object {
    let at: Vec<f64> = series.points.iter().map(|&(at, _)| at as f64).collect();
    let values: Vec<f64> = series.points.iter().map(|&(_, value)| value).collect();
    Object::new()
        .put("name", series.name.as_str())
        .put("over", series.over.as_str())
        .put("scheme", series.scheme)
        .put("at", blocks.f64(&at))
        .put("values", blocks.f64(&values))
}

/// Pictures of memory: null without any.
fn memory(report: &SimReport, blocks: &mut Blocks) -> Value {
    let schemes: Vec<usize> = report.pictures.iter().map(|picture| picture.scheme).collect();
    let shown = chosen(&schemes);
    if shown.is_empty() {
        return Value::Null;
    }
    let pictures: Vec<Value> = shown
        .into_iter()
        .filter_map(|at| report.pictures.get(at))
        .map(|picture| self::picture(picture, report.schemes.get(picture.scheme), blocks).into())
        .collect();
    Object::new()
        .put("recorded", report.pictures.len())
        .put("legend", array(&USES, category))
        .put("pictures", pictures)
        .into()
}

/// Places of the pictures that are shown, of pictures of these schemes.
fn chosen(schemes: &[usize]) -> Vec<usize> {
    if schemes.len() <= PICTURES_MAX {
        return (0..schemes.len()).collect();
    }
    let mut known = schemes.to_vec();
    known.sort_unstable();
    known.dedup();
    let most = (PICTURES_MAX / known.len()).max(2);
    let mut places: Vec<usize> = Vec::new();
    for scheme in known {
        let of: Vec<usize> = (0..schemes.len()).filter(|&at| schemes[at] == scheme).collect();
        let shown = of.len().min(most);
        let even = |step: usize| of[step * (of.len() - 1) / (shown - 1).max(1)];
        places.extend((0..shown).map(even));
    }
    places.sort_unstable();
    places
}

/// Runs of frames without a gap between them: first frame, frames.
fn extents(picture: &SimPicture) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for &(first, frames, _) in &picture.runs {
        let (first, frames) = (u64::from(first), u64::from(frames));
        match found.last_mut() {
            Some((at, length)) if *at + *length == first => *length += frames,
            _ => found.push((first, frames)),
        }
    }
    found
}

fn picture(picture: &SimPicture, scheme: Option<&SimScheme>, blocks: &mut Blocks) -> Object {
    let extents = extents(picture);
    let frames: u64 = extents.iter().map(|&(_, frames)| frames).sum();
    let per_cell = frames.div_ceil(CELLS_MAX).next_power_of_two();
    let mut cells = cells(picture, per_cell);
    let height = (cells.len() as u64).div_ceil(WIDTH).max(1);
    cells.resize((height * WIDTH) as usize, NOTHING);
    let mut pages = [0u64; USES.len()];
    for &(_, frames, used) in &picture.runs {
        if let Some(pages) = pages.get_mut(usize::from(used)) {
            *pages += u64::from(frames);
        }
    }
    let block = frames / (picture.owners.len() as u64).max(1);
    let zones = scheme.map_or(&[][..], |scheme| &scheme.zones);
    let ground = Object::new()
        .put("width", WIDTH)
        .put("height", height)
        .put("order", "rows")
        .put("tile", vec![WIDTH, height])
        .put("blend", "majority")
        .put("pages_per_pixel", per_cell)
        .put("page_size_bytes", pagelab_model::PageSize::USUAL.bytes())
        .put("pageblock_pages", block.max(1))
        .put("extents", array(&extents, |&(first, frames)| stretch(first, frames)))
        .put(
            "zones",
            array(zones, |zone| {
                stretch(zone.first.into(), zone.frames.into()).put("name", zone.name.as_str())
            }),
        )
        .put("memory_blocks", Vec::<Value>::new());
    Object::new()
        .put("scheme", picture.scheme)
        .put("step", picture.step)
        .put("phase", picture.phase.as_str())
        .put("pages", pages.to_vec())
        .put("ground", ground)
        .put("cells", blocks.bytes(&cells))
        .put("owners", blocks.bytes(&picture.owners))
}

fn stretch(first: u64, frames: u64) -> Object {
    Object::new().put("first_frame", first).put("frames", frames)
}

/// For each so many pages, the use that most of them have; of two that are as frequent, the one that is
/// more in the way.
fn cells(picture: &SimPicture, per_cell: u64) -> Vec<u8> {
    let mut cells = Vec::new();
    let mut seen = Seen::default();
    let mut room = per_cell;
    for &(_, frames, used) in &picture.runs {
        let mut left = u64::from(frames);
        let used = usize::from(used).min(USES.len());
        while left > 0 {
            let taken = left.min(room);
            seen[used] += taken;
            (left, room) = (left - taken, room - taken);
            if room == 0 {
                cells.push(most_frequent(&seen));
                (seen, room) = (Seen::default(), per_cell);
            }
        }
    }
    if room < per_cell {
        cells.push(most_frequent(&seen));
    }
    cells
}

/// Pages of a cell by their use; the last place is for uses that nobody knows.
type Seen = [u64; USES.len() + 1];

fn most_frequent(seen: &Seen) -> u8 {
    let best = (0..seen.len()).max_by_key(|&used| (seen[used], USES.get(used).map(|known| known.rank)));
    best.filter(|&used| used < USES.len()).map_or(NOTHING, |used| used as u8)
}

fn demo_document(demo: &Demo) -> Object {
    Object::new()
        .put("title", demo.title.as_str())
        .put("facts", demo.facts.clone())
        .put("block_frames", demo.block_frames)
        .put("goal_order", demo.goal_order)
        .put("lanes", array(&demo.lanes, lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture_of(runs: &[(u32, u32, u8)]) -> SimPicture {
        SimPicture { runs: runs.to_vec(), owners: vec![1; 4], ..SimPicture::default() }
    }

    #[test]
    fn cells_are_the_majority_of_their_pages_however_runs_are_cut() {
        // Against a flat array of frames.
        let runs = [(0, 3, 1), (3, 5, 0), (8, 1, 4), (9, 7, 5), (16, 9, 2), (25, 2, 6)];
        let flat: Vec<u8> = runs.iter().flat_map(|&(_, frames, used)| vec![used; frames as usize]).collect();
        for per_cell in [1, 2, 4, 8, 64] {
            let plain: Vec<u8> = flat
                .chunks(per_cell)
                .map(|pages| {
                    let count = |used: u8| pages.iter().filter(|&&page| page == used).count();
                    (0..7).max_by_key(|&used| (count(used), USES[usize::from(used)].rank)).unwrap()
                })
                .collect();
            assert_eq!(cells(&picture_of(&runs), per_cell as u64), plain, "{per_cell}");
        }
    }

    #[test]
    fn a_use_that_nobody_knows_is_drawn_as_nothing() {
        assert_eq!(cells(&picture_of(&[(0, 3, 200), (3, 1, 5), (4, 2, 1), (6, 2, 7)]), 4), [NOTHING, 1]);
    }

    #[test]
    fn holes_are_left_out_and_named_by_their_neighbours() {
        assert_eq!(extents(&picture_of(&[(4, 4, 0), (8, 8, 1), (32, 16, 2)])), [(4, 12), (32, 16)]);
        assert_eq!(extents(&picture_of(&[])), []);
    }

    #[test]
    fn of_many_pictures_the_first_and_the_last_of_each_scheme_are_shown() {
        assert_eq!(chosen(&[0, 1, 0]), [0, 1, 2]);
        let some = chosen(&[7; 1000]);
        assert_eq!((some.len(), some[0], some[PICTURES_MAX - 1]), (PICTURES_MAX, 0, 999));
        // 3 schemes of 17, 34 and 51 pictures.
        let schemes: Vec<usize> = (0..102).map(|at| [0, 1, 1, 2, 2, 2][at % 6]).collect();
        let some = chosen(&schemes);
        assert!(some.len() <= PICTURES_MAX && some.windows(2).all(|pair| pair[0] < pair[1]), "{some:?}");
        for scheme in 0..3 {
            let of = |&&at: &&usize| schemes[at] == scheme;
            let all: Vec<usize> = (0..102).filter(|at| schemes[*at] == scheme).collect();
            assert_eq!(some.iter().find(of), all.first());
            assert_eq!(some.iter().rev().find(of), all.last());
            assert_eq!(some.iter().filter(of).count(), all.len().min(20));
        }
        let many: Vec<usize> = (0..200).map(|at| at / 2).collect();
        assert_eq!(chosen(&many).len(), 200);
    }
}
