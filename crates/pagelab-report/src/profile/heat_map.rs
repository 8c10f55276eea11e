//! Heat map of a profile: a row per mapping, a cell per huge page.

use std::collections::BTreeMap;
use std::fmt::Write;

use pagelab_model::TlbProfile;
use pagelab_tlb::grid;
use pagelab_tlb::plan::{RankedMapping, Ranking};

use super::{View, display_mapping_name, shown_ranking};
use crate::style::{TextStyle, escape_invisible};
use crate::text_report::TextReport;

/// Maximum of mappings drawn on a terminal.
const TERMINAL_ROWS_MAX: usize = 8;
/// Cells of a mapping on a terminal and in a picture, at most; beyond it, several regions share a cell.
const TERMINAL_CELLS_MAX: usize = 1024;
const PICTURE_CELLS_MAX: usize = 16_384;

/// State of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeatCell {
    /// Not touched, according to the source.
    Untouched,
    /// Touched, and without a miss.
    Touched,
    /// Cost relative to the costliest cell, from 0 to 1.
    Cost(f64),
    /// Not visible to the source.
    NotSampled,
}

/// Cells of one mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatRow {
    /// Mapping, in words.
    pub name: String,
    /// Offset of the first cell.
    pub offset: u64,
    /// Bytes per cell.
    pub cell_bytes: u64,
    /// Cells.
    pub cells: Vec<HeatCell>,
}

/// Returns the rows of a profile, costliest mapping first.
pub fn heat_rows(profile: &TlbProfile, by_cell: bool, cells_max: usize) -> Vec<HeatRow> {
    let ranking = shown_ranking(profile, by_cell);
    let mut rows: Vec<HeatRow> = Vec::new();
    for (mapping, cost) in super::mappings_by_cost(&ranking) {
        if cost > 0.0 || !mapping.unseen.is_empty() {
            rows.extend(heat_row(&ranking, mapping, profile.huge.0.max(1), cells_max.max(1)));
        }
    }
    let cell_cost = |cell: &HeatCell| if let HeatCell::Cost(cost) = cell { *cost } else { 0.0 };
    let cost_max = rows.iter().flat_map(|row| &row.cells).map(cell_cost).fold(0.0, f64::max);
    for cell in rows.iter_mut().flat_map(|row| &mut row.cells) {
        if let HeatCell::Cost(cost) = *cell {
            *cell = if cost > 0.0 { HeatCell::Cost(cost / cost_max) } else { HeatCell::Touched };
        }
    }
    rows
}

/// The row of one mapping, with costs as they are.
fn heat_row(
    ranking: &Ranking,
    mapping: &RankedMapping,
    huge_page_bytes: u64,
    cells_max: usize,
) -> Option<HeatRow> {
    let base = grid::base_address(&mapping.key, mapping.start);
    let unseen_ranges = mapping.unseen.iter().map(|&(offset, bytes, _)| (offset, bytes.0.max(1)));
    let seen = mapping.cells.iter().map(|cell| (cell.offset, cell.bytes));
    let (mut first, mut last) = (u64::MAX, 0);
    for (offset, bytes) in seen.chain(unseen_ranges.clone()) {
        first = first.min(base.saturating_add(offset) / huge_page_bytes);
        last = last.max(base.saturating_add(offset).saturating_add(bytes - 1) / huge_page_bytes);
    }
    let span = last.checked_sub(first)?;
    // Several regions share a cell if there are more regions than cells.
    let joined = (span / cells_max as u64).checked_add(1)?;
    let size = huge_page_bytes.checked_mul(joined)?;
    let start = first.checked_mul(huge_page_bytes)?;
    let cell_index = |number: u64| usize::try_from((number * huge_page_bytes - start) / size).ok();
    let mut costs: BTreeMap<usize, f64> = BTreeMap::new();
    for cell in mapping.cells.iter().filter(|cell| cell.bytes / huge_page_bytes <= grid::CELL_PAGES_MAX) {
        for (number, bytes) in grid::split_by_page(base, cell.offset, cell.bytes, huge_page_bytes) {
            let share = cell.cost * bytes as f64 / cell.bytes as f64;
            *costs.entry(cell_index(number)?).or_default() += share;
        }
    }
    let count = usize::try_from(span / joined + 1).ok()?;
    let mut cells = vec![HeatCell::Untouched; count];
    for (offset, bytes) in unseen_ranges {
        let from = cell_index(base.saturating_add(offset) / huge_page_bytes)?;
        let to = cell_index(base.saturating_add(offset).saturating_add(bytes - 1) / huge_page_bytes)?;
        cells.get_mut(from..=to)?.fill(HeatCell::NotSampled);
    }
    for (at, cost) in costs {
        // Misses counted in a part are known, even if the rest was not visible.
        let is_known = cost > 0.0 || cells.get(at) != Some(&HeatCell::NotSampled);
        if let Some(cell) = cells.get_mut(at).filter(|_| is_known) {
            *cell = HeatCell::Cost(cost);
        }
    }
    let offset = start.saturating_sub(base);
    Some(HeatRow { name: display_mapping_name(ranking, mapping), offset, cell_bytes: size, cells })
}

pub(super) fn write_heat_map(output: &mut TextReport, profile: &TlbProfile, view: View) {
    let style = output.style();
    let cells_max = if view.verbose { TERMINAL_CELLS_MAX } else { TERMINAL_CELLS_MAX / 2 };
    let rows = heat_rows(profile, false, cells_max);
    let ranking = if view.verbose { rows.len() } else { TERMINAL_ROWS_MAX };
    for row in rows.iter().take(ranking) {
        let size = crate::style::format_bytes(pagelab_model::Bytes(row.cell_bytes));
        output
            .add_dim_text(&format!("{}, one character per {size}, from offset {:#x}", row.name, row.offset));
        let signs: Vec<char> = row.cells.iter().map(|cell| heat_sign(style, *cell)).collect();
        let width = style.width.saturating_sub(2).max(8);
        for line in signs.chunks(width) {
            output.add_line(format!("  {}", line.iter().collect::<String>().trim_end()));
        }
    }
    if !rows.is_empty() {
        let (low, high) = (style.spark_char(0.0), style.spark_char(1.0));
        let (touched, unseen_ranges) =
            (heat_sign(style, HeatCell::Touched), heat_sign(style, HeatCell::NotSampled));
        output.add_dim_text(&format!(
            "{low} to {high}: cost, doubling at each step; {touched} touched without a miss; {unseen_ranges} \
             not observed"
        ));
    }
}

fn heat_sign(style: TextStyle, heat: HeatCell) -> char {
    match heat {
        HeatCell::Untouched => ' ',
        HeatCell::Touched => '.',
        HeatCell::NotSampled => '/',
        HeatCell::Cost(share) => style.spark_char(quantize_share(share)),
    }
}

/// Rounds a share to eight steps that double each time.
fn quantize_share(share: f64) -> f64 {
    ((share.max(f64::MIN_POSITIVE).log2() + 8.0) / 8.0).clamp(0.0, 1.0)
}

/// Side of a cell in pixels, and cells per line.
const CELL_SIDE_PX: usize = 8;
const CELLS_PER_LINE: usize = 128;

/// Draws the heat map as SVG without style or script. Cells that were not visible are hatched.
pub fn heat_svg(profile: &TlbProfile) -> String {
    let rows = heat_rows(profile, false, PICTURE_CELLS_MAX);
    let mut body = String::new();
    let mut top = 0;
    for row in &rows {
        top += 22;
        let size = crate::style::format_bytes(pagelab_model::Bytes(row.cell_bytes));
        let name = escape_xml(&format!("{}, one cell per {size}, from offset {:#x}", row.name, row.offset));
        let _ = writeln!(body, "<text x=\"0\" y=\"{}\" font-size=\"12\">{name}</text>", top - 6);
        for (index, cell) in row.cells.iter().enumerate() {
            let (x, y) = (index % CELLS_PER_LINE * CELL_SIDE_PX, top + index / CELLS_PER_LINE * CELL_SIDE_PX);
            let fill = match cell {
                HeatCell::Untouched => continue,
                HeatCell::Touched => "#e8e8e8".to_owned(),
                HeatCell::NotSampled => "url(#unseen)".to_owned(),
                HeatCell::Cost(share) => heat_colour(quantize_share(*share)),
            };
            let offset = row.offset.saturating_add((index as u64).saturating_mul(row.cell_bytes));
            let _ = writeln!(
                body,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{CELL_SIDE_PX}\" height=\"{CELL_SIDE_PX}\" \
                 fill=\"{fill}\">\
                 <title>{offset:#x}: {}</title></rect>",
                cell_text(*cell)
            );
        }
        top += row.cells.len().div_ceil(CELLS_PER_LINE) * CELL_SIDE_PX;
    }
    let (width, height) = (CELLS_PER_LINE * CELL_SIDE_PX, top + 4);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\">\n<defs><pattern id=\"unseen\" width=\"4\" height=\"4\" \
         patternUnits=\"userSpaceOnUse\"><rect width=\"4\" height=\"4\" fill=\"#fff\"/><path d=\"M0 4L4 0\" \
         stroke=\"#888\"/></pattern></defs>\n{body}</svg>\n"
    )
}

fn cell_text(cell: HeatCell) -> String {
    match cell {
        HeatCell::Untouched => "not touched".to_owned(),
        HeatCell::Touched => "touched, no miss".to_owned(),
        HeatCell::NotSampled => "not observed".to_owned(),
        HeatCell::Cost(share) => format!("{} of the costliest cell", crate::style::format_percent(share)),
    }
}

/// Returns a colour from light yellow to dark red.
fn heat_colour(share: f64) -> String {
    let between = |from: f64, to: f64| (from + (to - from) * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", between(255.0, 140.0), between(230.0, 0.0), between(150.0, 20.0))
}

/// Escapes text, which is not trusted.
pub(crate) fn escape_xml(text: &str) -> String {
    let text = escape_invisible(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
