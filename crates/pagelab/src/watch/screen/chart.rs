//! Curves over time in a box of cells: a title that states what is shown, its scale, and the time.

use pagelab_model::Bytes;
use pagelab_report::quantity::duration;
use pagelab_report::style;
use ratatui_core::layout::Rect;

use super::pen::{Paint, Pen, share, short};
use super::words;
use crate::watch::counter::Counter;
use crate::watch::view::{Metric, View};

/// A chart needs this many rows: a title, a plot, the time.
pub const ROWS_MIN: u16 = 7;
/// And this many columns.
pub const COLUMNS_MIN: u16 = 40;
/// Columns for the numbers of the scale.
const SCALE: u16 = 9;

/// The charts in the order of importance.
pub fn all(view: &View) -> Vec<(String, Metric)> {
    let pmd = view.about.pmd_order;
    let block = words::block(view);
    let mut charts = Vec::new();
    if let Some(zone) = &view.zone {
        let name = words::zone(zone);
        charts.push((format!("F_u({}) of {name}", pmd.0), Metric::Unusable(zone.clone(), pmd)));
        charts.push((format!("{block} pages now in {name}"), Metric::HugeNow(Some(zone.clone()))));
    }
    charts.extend(
        [
            ("available memory", Metric::Available),
            ("pressure: some task waits, %", Metric::SomePressure),
            ("huge pages refused per second", Metric::Rate(Counter::ThpFallbacks)),
            ("pages that compaction scans to move, per second", Metric::Rate(Counter::ScannedMigrate)),
            ("pages that kswapd scans, per second", Metric::Rate(Counter::KswapdScanned)),
            ("direct reclaim stalls per second", Metric::Rate(Counter::AllocStalls)),
            ("pages swapped out per second", Metric::Rate(Counter::SwapOut)),
        ]
        .map(|(title, metric)| (title.to_owned(), metric)),
    );
    charts
}

/// Draws one chart.
pub fn draw(pen: &mut Pen<'_>, area: Rect, view: &View, title: &str, metric: &Metric) {
    let plot = Rect {
        x: area.x + SCALE + 1,
        y: area.y + 1,
        width: area.width.saturating_sub(SCALE + 2),
        height: area.height.saturating_sub(2),
    };
    let marks = usize::from(plot.width) * if pen.look().unicode { 2 } else { 1 };
    let values = view.curve(metric, marks);
    let largest = match metric {
        Metric::Unusable(..) => 1.0,
        Metric::SomePressure => ceiling(&values).max(1.0),
        Metric::Available => {
            let total = view.now().and_then(|now| now.memory.total).map_or(0.0, |bytes| bytes.0 as f64);
            values.iter().flatten().copied().fold(total, f64::max)
        }
        _ => ceiling(&values),
    };
    let said = |value: Option<f64>| number(metric, value);
    let heading = Rect { height: 1, ..area };
    pen.row(heading, &[(title.to_owned(), Paint::Bold), (said(view.latest(metric)), Paint::Plain)]);
    let top = if largest > 0.0 { said(Some(largest)) } else { String::new() };
    pen.right(area.x, plot.y, SCALE, &top, Paint::Dim);
    let bottom = plot.bottom().saturating_sub(1);
    pen.right(area.x, bottom, SCALE, &said(Some(0.0)), Paint::Dim);
    let before = duration(view.mark_ns().saturating_mul(marks as u64));
    pen.left(plot.x, plot.bottom(), plot.width, &format!("{before} before"), Paint::Dim);
    pen.right(plot.x, plot.bottom(), plot.width, "now", Paint::Dim);
    if pen.look().unicode { dots(pen, plot, &values, largest) } else { stars(pen, plot, &values, largest) }
}

/// The largest value, rounded up to one digit that a scale would have.
fn ceiling(values: &[Option<f64>]) -> f64 {
    let largest = values.iter().flatten().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    if largest <= 0.0 {
        return 0.0;
    }
    let step = 10f64.powf(largest.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * step);
    nice.into_iter().find(|&top| top >= largest).unwrap_or(largest)
}

/// A value of a metric in its unit.
fn number(metric: &Metric, value: Option<f64>) -> String {
    match (metric, value) {
        (Metric::Available, Some(bytes)) => style::bytes(Bytes(bytes as u64)),
        (Metric::Unusable(..), Some(share)) => pagelab_metrics::frag::share_text(share),
        _ => short(value),
    }
}

/// A curve of Braille dots, two in a column and four in a row, each joined to the one before.
fn dots(pen: &mut Pen<'_>, plot: Rect, values: &[Option<f64>], largest: f64) {
    /// Bits of a Braille pattern, by column and by row from below.
    const BITS: [[u32; 4]; 2] = [[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]];
    let height = usize::from(plot.height) * 4;
    if height == 0 {
        return;
    }
    let level = |value: f64| (share(value, largest) * (height - 1) as f64).round() as usize;
    let mut cells = vec![0u32; usize::from(plot.width) * usize::from(plot.height)];
    let mut before: Option<usize> = None;
    for (x, value) in values.iter().enumerate() {
        let here = value.map(level);
        if let Some(here) = here {
            let there = before.unwrap_or(here);
            for y in here.min(there)..=here.max(there) {
                let row = usize::from(plot.height) - 1 - y / 4;
                if let Some(cell) = cells.get_mut(row * usize::from(plot.width) + x / 2) {
                    *cell |= BITS[x % 2][y % 4];
                }
            }
        }
        before = here;
    }
    for (at, bits) in cells.into_iter().enumerate().filter(|(_, bits)| *bits != 0) {
        let (x, y) = (at % usize::from(plot.width), at / usize::from(plot.width));
        let sign = char::from_u32(0x2800 + bits).unwrap_or(' ');
        pen.sign(plot.x + x as u16, plot.y + y as u16, sign, Paint::Curve);
    }
}

/// The same for a terminal without Unicode: one star in a column.
fn stars(pen: &mut Pen<'_>, plot: Rect, values: &[Option<f64>], largest: f64) {
    let top = f64::from(plot.height.saturating_sub(1));
    for (x, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let y = (share(*value, largest) * top).round() as u16;
        pen.sign(plot.x + x as u16, plot.bottom() - 1 - y, '*', Paint::Curve);
    }
}
