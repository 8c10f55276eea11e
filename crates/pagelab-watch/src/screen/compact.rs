//! A small screen: one topic per line, the most important first, with a note that there is more.

use pagelab_metrics::fragmentation_index;
use pagelab_model::{FreeAreas, Order};
use pagelab_report::style::format_bytes;
use ratatui_core::layout::Rect;

use super::canvas::{ABSENT, Canvas, Paint, format_memory};
use super::labels;
use crate::view::{Metric, View};

/// A line: as many texts as fit, or a curve after a name.
enum CompactLine {
    Texts(Vec<(String, Paint)>),
    Curve { name: String, values: Vec<Option<f64>>, cut_left: bool },
}

/// Draws as many lines as fit.
pub fn draw(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let lines = build_lines(view, area.width);
    let rows = usize::from(area.height - 1);
    for (row, line) in lines.iter().take(rows).enumerate() {
        let line_area = Rect { x: 1, y: row as u16, width: area.width - 1, height: 1 };
        match line {
            CompactLine::Texts(texts) => pen.write_row(line_area, texts),
            CompactLine::Curve { name, values, cut_left } => {
                let x = 1 + pen.write_left(1, line_area.y, line_area.width, name, Paint::Dim) + 1;
                let room = usize::from(area.width.saturating_sub(x));
                // Over time the newest marks are kept, by order the first.
                let from = if *cut_left { values.len().saturating_sub(room) } else { 0 };
                pen.draw_sparkline(x, line_area.y, &values[from..], 1.0);
            }
        }
    }
    let hint = if lines.len() > rows {
        format!("{}×{} shows all", super::FULL_SIZE.0, super::FULL_SIZE.1)
    } else {
        String::new()
    };
    super::draw_footer(pen, area, view, &hint);
}

fn build_lines(view: &View, columns: u16) -> Vec<CompactLine> {
    let plain = |text: String| (text, Paint::Plain);
    let dim = |text: &str| (text.to_owned(), Paint::Dim);
    let pmd = view.about.pmd_order;
    let split = view.current_sample().map(|now| now.memory).unwrap_or_default();
    let (doing, paint) = labels::activity(view);
    let name = if view.about.host.is_empty() { "pagelab watch".to_owned() } else { view.about.host.clone() };
    let zone = view.zone.as_ref().map_or_else(|| "no zone".to_owned(), labels::zone_label);
    let about =
        |tell: &dyn Fn(&FreeAreas) -> String| view.free_areas().map_or_else(|| ABSENT.to_owned(), tell);
    let unusable = about(&|areas| fragmentation_index::format_unusable(areas, pmd));
    let huge = about(&|areas| labels::format_short_count(areas.blocks_suitable(pmd)));
    let (remark, remark_paint) = labels::latest_remark(view);
    let mut lines = vec![
        CompactLine::Texts(vec![(name, Paint::Bold), (doing, paint)]),
        CompactLine::Texts(vec![
            (format!("F_u({}) {unusable}", pmd.0), Paint::Bold),
            plain(zone),
            plain(format!("{huge} × {}", labels::format_pmd_size(view))),
        ]),
        index_by_order(view),
    ];
    if let Some(key) = &view.zone {
        let curve = view.curve(&Metric::Unusable(key.clone(), pmd), usize::from(columns));
        let name = format!("F_u({}) over time", pmd.0);
        lines.push(CompactLine::Curve { name, values: curve, cut_left: true });
    }
    let now = view.current_sample();
    let some_pressure = labels::format_percent(now.and_then(|now| now.some_centipercent));
    let full = labels::format_percent(now.and_then(|now| now.full_centipercent));
    let thp = view.modes.enabled.clone().unwrap_or_else(|_| ABSENT.to_owned());
    lines.extend([
        CompactLine::Texts(vec![
            plain(format!("available {}", format_memory(split.available))),
            plain(format!("free {}", format_memory(split.free))),
            plain(format!("of {}", format_memory(split.total))),
        ]),
        CompactLine::Texts(vec![
            dim("pressure"),
            plain(format!("some {some_pressure}")),
            plain(format!("full {full}")),
        ]),
        CompactLine::Texts(vec![
            dim("THP"),
            plain(thp),
            plain(format!("in use {}", format_memory(split.thp_mapped))),
        ]),
        CompactLine::Texts(vec![
            plain(format!("programs {}", format_memory(split.anonymous_and_shmem))),
            plain(format!("cache {}", format_memory(split.page_cache))),
            plain(format!("slab {}", format_memory(split.slab))),
        ]),
        CompactLine::Texts(vec![plain(labels::time_of_day(view))]),
        CompactLine::Texts(vec![plain(labels::position_text(view))]),
        CompactLine::Texts(vec![(remark, remark_paint)]),
    ]);
    lines.extend(order_lines(view));
    lines.push(CompactLine::Texts(vec![
        ("rates".to_owned(), Paint::Bold),
        dim(labels::rate_kind_label(view)),
    ]));
    lines.extend(labels::RATE_ROWS.into_iter().map(|(group, label, counters)| {
        let name = format!("{group:8}{label}");
        let rates = plain(labels::format_rates(view, counters));
        CompactLine::Texts(vec![(format!("{name:25}"), Paint::Dim), rates])
    }));
    lines
}

/// Returns F_u by order as one curve, from order 0.
fn index_by_order(view: &View) -> CompactLine {
    let orders = view.free_areas().map_or(0, FreeAreas::orders);
    let unusable =
        |order| view.free_areas().map(|areas| fragmentation_index::unusable_index(areas, Order(order as u8)));
    // The name is short enough that all orders fit on the smallest screen.
    let values = (0..orders).map(unusable).collect();
    CompactLine::Curve { name: "F_u(j)".to_owned(), values, cut_left: false }
}

/// Returns one line for each order of the selected zone.
fn order_lines(view: &View) -> impl Iterator<Item = CompactLine> {
    let areas = view.free_areas();
    let line = move |order: usize| {
        let order = Order(order as u8);
        let size = format_bytes(view.about.page_size.block_bytes(order));
        let blocks = labels::format_short_count(areas.map_or(0, |areas| areas.blocks(order)).into());
        let unusable = areas.map_or(1.0, |areas| fragmentation_index::unusable_index(areas, order));
        let text = format!(
            "{:>3} {size:>8} {blocks:>8}  F_u {}",
            order.0,
            fragmentation_index::format_share(unusable)
        );
        CompactLine::Texts(vec![(text, Paint::Plain)])
    };
    (0..areas.map_or(0, FreeAreas::orders)).map(line)
}
