//! The heat map of a profile: a row of cells for each mapping, one for each huge page.

use std::collections::BTreeMap;
use std::fmt::Write;

use pagelab_model::Profile;
use pagelab_tlb::grid;
use pagelab_tlb::plan::{Ranked, Ranking};

use super::{View, mapping_name, ranking};
use crate::style::{Style, spelt};
use crate::text::Page;

/// Mappings that are drawn on a terminal.
const ROWS: usize = 8;
/// Cells of a mapping on a terminal, and of a picture; of more, several regions share one.
const CELLS: usize = 1024;
const CELLS_OF_PICTURE: usize = 16_384;

/// What one cell is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heat {
    /// Not touched, as far as the source could see.
    Untouched,
    /// Touched, and without a miss.
    Touched,
    /// Cost as a share of the dearest cell, from 0 to 1.
    Cost(f64),
    /// The source could not see it.
    Unseen,
}

/// One mapping's cells.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatRow {
    /// The mapping in words.
    pub name: String,
    /// The offset of the first cell.
    pub offset: u64,
    /// Bytes of a cell.
    pub cell_bytes: u64,
    /// The cells.
    pub cells: Vec<Heat>,
}

/// The rows of a profile, dearest mapping first.
pub fn heat(profile: &Profile, by_cell: bool, most: usize) -> Vec<HeatRow> {
    let shown = ranking(profile, by_cell);
    let mut rows = Vec::new();
    for (mapping, cost) in super::table::by_cost(&shown) {
        if cost > 0.0 || !mapping.unseen.is_empty() {
            rows.extend(row(&shown, mapping, profile.huge.0.max(1), most.max(1)));
        }
    }
    let dearest = |cell: &Heat| if let Heat::Cost(cost) = cell { *cost } else { 0.0 };
    let most = rows.iter().flat_map(|row: &HeatRow| &row.cells).map(dearest).fold(0.0, f64::max);
    rows.into_iter()
        .map(|mut row| {
            for cell in &mut row.cells {
                if let Heat::Cost(cost) = cell {
                    *cell = if *cost > 0.0 && most > 0.0 { Heat::Cost(*cost / most) } else { Heat::Touched };
                }
            }
            row
        })
        .collect()
}

/// The row of one mapping, with costs as they are.
fn row(shown: &Ranking, mapping: &Ranked, huge: u64, most: usize) -> Option<HeatRow> {
    let base = grid::base(&mapping.key, mapping.start);
    let unseen = mapping.unseen.iter().map(|&(offset, bytes, _)| (offset, bytes.0.max(1)));
    let seen = mapping.cells.iter().map(|cell| (cell.offset, cell.bytes));
    let (mut first, mut last) = (u64::MAX, 0);
    for (offset, bytes) in seen.chain(unseen.clone()) {
        first = first.min(base.saturating_add(offset) / huge);
        last = last.max(base.saturating_add(offset).saturating_add(bytes - 1) / huge);
    }
    let span = last.checked_sub(first)?;
    // Several regions share a cell where there are more than can be drawn.
    let joined = (span / most as u64).checked_add(1)?;
    let size = huge.checked_mul(joined)?;
    let start = first.checked_mul(huge)?;
    let place = |number: u64| usize::try_from((number * huge - start) / size).ok();
    let mut costs: BTreeMap<usize, f64> = BTreeMap::new();
    for cell in mapping.cells.iter().filter(|cell| cell.bytes / huge <= grid::PAGES_OF_CELL) {
        for (number, bytes) in grid::parts(base, cell.offset, cell.bytes, huge) {
            let share = cell.cost * bytes as f64 / cell.bytes as f64;
            *costs.entry(place(number)?).or_default() += share;
        }
    }
    let count = usize::try_from(span / joined + 1).ok()?;
    let mut cells = vec![Heat::Untouched; count];
    for (offset, bytes) in unseen {
        let from = place(base.saturating_add(offset) / huge)?;
        let to = place(base.saturating_add(offset).saturating_add(bytes - 1) / huge)?;
        cells.get_mut(from..=to)?.fill(Heat::Unseen);
    }
    for (at, cost) in costs {
        // What was counted in a part is known, also where the rest was not seen.
        let is_known = cost > 0.0 || cells.get(at) != Some(&Heat::Unseen);
        if let Some(cell) = cells.get_mut(at).filter(|_| is_known) {
            *cell = Heat::Cost(cost);
        }
    }
    let offset = start.saturating_sub(base);
    Some(HeatRow { name: mapping_name(shown, mapping), offset, cell_bytes: size, cells })
}

pub(super) fn show(page: &mut Page, profile: &Profile, view: View) {
    let style = page.style();
    let most = if view.verbose { CELLS } else { CELLS / 2 };
    let rows = heat(profile, false, most);
    let shown = if view.verbose { rows.len() } else { ROWS };
    for row in rows.iter().take(shown) {
        let size = crate::style::bytes(pagelab_model::Bytes(row.cell_bytes));
        page.hanging_dim("", &format!("{}, a sign for {size}, from offset {:#x}", row.name, row.offset));
        let signs: Vec<char> = row.cells.iter().map(|cell| sign(style, *cell)).collect();
        let width = style.width.saturating_sub(2).max(8);
        for line in signs.chunks(width) {
            page.line(format!("  {}", line.iter().collect::<String>().trim_end()));
        }
    }
    if !rows.is_empty() {
        let (low, high) = (style.spark(0.0), style.spark(1.0));
        let (touched, unseen) = (sign(style, Heat::Touched), sign(style, Heat::Unseen));
        page.hanging_dim(
            "",
            &format!(
                "{low} to {high}: cost, each step twice the one before; {touched} touched without a miss; \
                 {unseen} not seen"
            ),
        );
    }
}

fn sign(style: Style, heat: Heat) -> char {
    match heat {
        Heat::Untouched => ' ',
        Heat::Touched => '.',
        Heat::Unseen => '/',
        Heat::Cost(share) => style.spark(step(share)),
    }
}

/// A share on eight steps of a doubling each, as a share of 1.
fn step(share: f64) -> f64 {
    ((share.max(f64::MIN_POSITIVE).log2() + 8.0) / 8.0).clamp(0.0, 1.0)
}

/// Pixels of a cell's side, and cells in a line.
const SIDE: usize = 8;
const LINE: usize = 128;

/// The heat map as a drawing: SVG without style or script. Cells that were not seen are hatched.
pub fn heat_svg(profile: &Profile) -> String {
    let rows = heat(profile, false, CELLS_OF_PICTURE);
    let mut body = String::new();
    let mut top = 0;
    for row in &rows {
        top += 22;
        let size = crate::style::bytes(pagelab_model::Bytes(row.cell_bytes));
        let name = escaped(&format!("{}, a cell for {size}, from offset {:#x}", row.name, row.offset));
        let _ = writeln!(body, "<text x=\"0\" y=\"{}\" font-size=\"12\">{name}</text>", top - 6);
        for (at, cell) in row.cells.iter().enumerate() {
            let (x, y) = (at % LINE * SIDE, top + at / LINE * SIDE);
            let fill = match cell {
                Heat::Untouched => continue,
                Heat::Touched => "#e8e8e8".to_owned(),
                Heat::Unseen => "url(#unseen)".to_owned(),
                Heat::Cost(share) => colour(step(*share)),
            };
            let offset = row.offset.saturating_add((at as u64).saturating_mul(row.cell_bytes));
            let _ = writeln!(
                body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"{fill}\">\
                 <title>{offset:#x}: {}</title></rect>",
                words(*cell)
            );
        }
        top += row.cells.len().div_ceil(LINE) * SIDE;
    }
    let (width, height) = (LINE * SIDE, top + 4);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\">\n<defs><pattern id=\"unseen\" width=\"4\" height=\"4\" \
         patternUnits=\"userSpaceOnUse\"><rect width=\"4\" height=\"4\" fill=\"#fff\"/><path d=\"M0 4L4 0\" \
         stroke=\"#888\"/></pattern></defs>\n{body}</svg>\n"
    )
}

fn words(cell: Heat) -> String {
    match cell {
        Heat::Untouched => "not touched".to_owned(),
        Heat::Touched => "touched, no miss".to_owned(),
        Heat::Unseen => "not seen".to_owned(),
        Heat::Cost(share) => format!("{} of the dearest", crate::style::percent(share)),
    }
}

/// From light yellow to dark red.
fn colour(share: f64) -> String {
    let between = |from: f64, to: f64| (from + (to - from) * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", between(255.0, 140.0), between(230.0, 0.0), between(150.0, 20.0))
}

/// Text that is no markup, whoever chose it.
pub(crate) fn escaped(text: &str) -> String {
    let text = spelt(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
