//! Curves over time in a box of cells: a title, a scale and a time axis.

use pagelab_model::Bytes;
use pagelab_report::quantity_format::format_duration;
use pagelab_report::style;
use ratatui_core::layout::Rect;

use super::canvas::{Canvas, Paint, format_short, fraction_of};
use super::labels;
use crate::sample::Counter;
use crate::view::{Metric, View};

/// Minimum rows of a chart: a title, a plot, the time.
pub const ROWS_MIN: u16 = 7;
pub const COLUMNS_MIN: u16 = 40;
const SCALE_COLUMNS: u16 = 9;

/// Lists the charts by importance.
pub fn charts(view: &View) -> Vec<(String, Metric)> {
    let pmd = view.about.pmd_order;
    let block = labels::format_pmd_size(view);
    let mut charts = Vec::new();
    if let Some(zone) = &view.zone {
        let name = labels::zone_label(zone);
        charts.push((format!("F_u({}) of {name}", pmd.0), Metric::Unusable(zone.clone(), pmd)));
        charts.push((format!("free {block} pages in {name}"), Metric::HugeNow(zone.clone())));
    }
    charts.extend(
        [
            ("available memory", Metric::Available),
            ("pressure (some), %", Metric::SomePressure),
            ("THP fallbacks per second", Metric::Rate(Counter::ThpFallbacks)),
            ("pages scanned by the migrate scanner, per second", Metric::Rate(Counter::ScannedMigrate)),
            ("pages scanned by kswapd, per second", Metric::Rate(Counter::KswapdScanned)),
            ("direct reclaim stalls per second", Metric::Rate(Counter::AllocStalls)),
            ("pages swapped out per second", Metric::Rate(Counter::SwapOut)),
        ]
        .map(|(title, metric)| (title.to_owned(), metric)),
    );
    charts
}

pub fn draw(pen: &mut Canvas<'_>, area: Rect, view: &View, title: &str, metric: &Metric) {
    let plot = Rect {
        x: area.x + SCALE_COLUMNS + 1,
        y: area.y + 1,
        width: area.width.saturating_sub(SCALE_COLUMNS + 2),
        height: area.height.saturating_sub(2),
    };
    let points = usize::from(plot.width) * if pen.capabilities.has_unicode { 2 } else { 1 };
    let values = view.curve(metric, points);
    let largest = match metric {
        Metric::Unusable(..) => 1.0,
        Metric::SomePressure => round_up_scale(&values).max(1.0),
        Metric::Available => {
            let total =
                view.current_sample().and_then(|now| now.memory.total).map_or(0.0, |bytes| bytes.0 as f64);
            values.iter().flatten().copied().fold(total, f64::max)
        }
        _ => round_up_scale(&values),
    };
    let format_value = |value: Option<f64>| format_metric(metric, value);
    let heading = Rect { height: 1, ..area };
    pen.write_row(
        heading,
        &[(title.to_owned(), Paint::Bold), (format_value(view.latest_value(metric)), Paint::Plain)],
    );
    let top = if largest > 0.0 { format_value(Some(largest)) } else { String::new() };
    pen.write_right(area.x, plot.y, SCALE_COLUMNS, &top, Paint::Dim);
    let bottom = plot.bottom().saturating_sub(1);
    pen.write_right(area.x, bottom, SCALE_COLUMNS, &format_value(Some(0.0)), Paint::Dim);
    let before = format_duration(view.mark_ns().saturating_mul(points as u64));
    pen.write_left(plot.x, plot.bottom(), plot.width, &format!("{before} ago"), Paint::Dim);
    pen.write_right(plot.x, plot.bottom(), plot.width, "now", Paint::Dim);
    if pen.capabilities.has_unicode {
        draw_braille(pen, plot, &values, largest)
    } else {
        draw_ascii(pen, plot, &values, largest)
    }
}

/// Rounds the largest value up to one significant digit.
fn round_up_scale(values: &[Option<f64>]) -> f64 {
    let largest = values.iter().flatten().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    if largest <= 0.0 {
        return 0.0;
    }
    let step = 10f64.powf(largest.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * step);
    nice.into_iter().find(|&top| top >= largest).unwrap_or(largest)
}

/// Formats a value of a metric in its unit.
fn format_metric(metric: &Metric, value: Option<f64>) -> String {
    match (metric, value) {
        (Metric::Available, Some(bytes)) => style::format_bytes(Bytes(bytes as u64)),
        (Metric::Unusable(..), Some(share)) => pagelab_metrics::fragmentation_index::format_share(share),
        _ => format_short(value),
    }
}

/// Draws a curve of Braille dots, two in a column and four in a row, each connected to the previous one.
fn draw_braille(pen: &mut Canvas<'_>, plot: Rect, values: &[Option<f64>], largest: f64) {
    /// Bits of a Braille pattern, by column and by row from below.
    const BITS: [[u32; 4]; 2] = [[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]];
    let dot_rows = usize::from(plot.height) * 4;
    if dot_rows == 0 {
        return;
    }
    let level = |value: f64| (fraction_of(value, largest) * (dot_rows - 1) as f64).round() as usize;
    let mut cells = vec![0u32; usize::from(plot.width) * usize::from(plot.height)];
    let mut previous_level: Option<usize> = None;
    for (x, value) in values.iter().enumerate() {
        let level_here = value.map(level);
        if let Some(here) = level_here {
            let previous = previous_level.unwrap_or(here);
            for y in here.min(previous)..=here.max(previous) {
                let row = usize::from(plot.height) - 1 - y / 4;
                if let Some(cell) = cells.get_mut(row * usize::from(plot.width) + x / 2) {
                    *cell |= BITS[x % 2][y % 4];
                }
            }
        }
        previous_level = level_here;
    }
    for (at, bits) in cells.into_iter().enumerate().filter(|(_, bits)| *bits != 0) {
        let (x, y) = (at % usize::from(plot.width), at / usize::from(plot.width));
        let sign = char::from_u32(0x2800 + bits).unwrap_or(' ');
        pen.write_char(plot.x + x as u16, plot.y + y as u16, sign, Paint::Curve);
    }
}

/// Draws the curve for a terminal without Unicode: one star per column.
fn draw_ascii(pen: &mut Canvas<'_>, plot: Rect, values: &[Option<f64>], largest: f64) {
    let top = f64::from(plot.height.saturating_sub(1));
    for (x, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let y = (fraction_of(*value, largest) * top).round() as u16;
        pen.write_char(plot.x + x as u16, plot.bottom() - 1 - y, '*', Paint::Curve);
    }
}
