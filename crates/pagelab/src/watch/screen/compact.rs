//! A small screen: one thing in a line, the most important first, and it says that there is more.

use pagelab_metrics::frag;
use pagelab_model::{FreeAreas, Order};
use pagelab_report::style::bytes;
use ratatui_core::layout::Rect;

use super::pen::{ABSENT, Paint, Pen, memory};
use super::words;
use crate::watch::view::{Metric, View};

/// A line: texts of which as many are shown as fit, or a curve behind a name.
enum Line {
    Texts(Vec<(String, Paint)>),
    Curve { name: String, values: Vec<Option<f64>>, cut_left: bool },
}

/// Draws as many lines as fit.
pub fn draw(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let lines = lines(view, area.width);
    let rows = usize::from(area.height - 1);
    for (row, line) in lines.iter().take(rows).enumerate() {
        let place = Rect { x: 1, y: row as u16, width: area.width - 1, height: 1 };
        match line {
            Line::Texts(texts) => pen.row(place, texts),
            Line::Curve { name, values, cut_left } => {
                let x = 1 + pen.left(1, place.y, place.width, name, Paint::Dim) + 1;
                let room = usize::from(area.width.saturating_sub(x));
                // Over time the newest marks matter, by order the first.
                let from = if *cut_left { values.len().saturating_sub(room) } else { 0 };
                pen.spark(x, place.y, &values[from..], 1.0);
            }
        }
    }
    let hint = if lines.len() > rows {
        format!("{}×{} shows all", super::FULL.0, super::FULL.1)
    } else {
        String::new()
    };
    super::footer(pen, area, view, &hint);
}

fn lines(view: &View, columns: u16) -> Vec<Line> {
    let plain = |text: String| (text, Paint::Plain);
    let dim = |text: &str| (text.to_owned(), Paint::Dim);
    let pmd = view.about.pmd_order;
    let split = view.now().map(|now| now.memory).unwrap_or_default();
    let (doing, paint) = words::doing(view);
    let name = if view.about.host.is_empty() { "pagelab watch".to_owned() } else { view.about.host.clone() };
    let zone = view.zone.as_ref().map_or_else(|| "no zone".to_owned(), words::zone);
    let about = |tell: &dyn Fn(&FreeAreas) -> String| view.areas().map_or_else(|| ABSENT.to_owned(), tell);
    let unusable = about(&|areas| frag::unusable_text(areas, pmd));
    let huge = about(&|areas| words::whole(areas.blocks_suitable(pmd)));
    let (remark, remark_paint) = words::remark(view);
    let mut lines = vec![
        Line::Texts(vec![(name, Paint::Bold), (doing, paint)]),
        Line::Texts(vec![
            (format!("F_u({}) {unusable}", pmd.0), Paint::Bold),
            plain(zone),
            plain(format!("{huge} × {}", words::block(view))),
        ]),
        by_order(view),
    ];
    if let Some(key) = &view.zone {
        let curve = view.curve(&Metric::Unusable(key.clone(), pmd), usize::from(columns));
        let name = format!("F_u({}) over time", pmd.0);
        lines.push(Line::Curve { name, values: curve, cut_left: true });
    }
    let now = view.now();
    let some = words::percent(now.and_then(|now| now.some_centipercent));
    let full = words::percent(now.and_then(|now| now.full_centipercent));
    let thp = view.modes.enabled.clone().unwrap_or_else(|_| ABSENT.to_owned());
    lines.extend([
        Line::Texts(vec![
            plain(format!("available {}", memory(split.available))),
            plain(format!("free {}", memory(split.free))),
            plain(format!("of {}", memory(split.total))),
        ]),
        Line::Texts(vec![dim("pressure"), plain(format!("some {some}")), plain(format!("full {full}"))]),
        Line::Texts(vec![dim("THP"), plain(thp), plain(format!("in use {}", memory(split.programs_huge)))]),
        Line::Texts(vec![
            plain(format!("programs {}", memory(split.programs))),
            plain(format!("cache {}", memory(split.page_cache))),
            plain(format!("slab {}", memory(split.slab))),
        ]),
        Line::Texts(vec![plain(words::time(view))]),
        Line::Texts(vec![plain(words::place(view))]),
        Line::Texts(vec![(remark, remark_paint)]),
    ]);
    lines.extend(orders(view));
    lines.push(Line::Texts(vec![("rates".to_owned(), Paint::Bold), dim(words::rate_kind(view))]));
    lines.extend(words::RATES.iter().map(|row| {
        let name = format!("{:8}{}", row.group, row.label);
        Line::Texts(vec![(format!("{name:25}"), Paint::Dim), plain(words::rates(view, row))])
    }));
    lines
}

/// F_u by order as one curve, from order 0 on.
fn by_order(view: &View) -> Line {
    let orders = view.areas().map_or(0, FreeAreas::orders);
    let unusable = |order| view.areas().map(|areas| frag::unusable(areas, Order(order as u8)));
    // A name that is short enough for all orders to stand behind it on the smallest screen.
    let values = (0..orders).map(unusable).collect();
    Line::Curve { name: "F_u(j)".to_owned(), values, cut_left: false }
}

/// One line for each order of the chosen zone.
fn orders(view: &View) -> impl Iterator<Item = Line> {
    let areas = view.areas();
    let line = move |order: usize| {
        let order = Order(order as u8);
        let size = bytes(view.about.page_size.block(order));
        let blocks = words::whole(areas.map_or(0, |areas| areas.blocks(order)).into());
        let unusable = areas.map_or(1.0, |areas| frag::unusable(areas, order));
        let text = format!("{:>3} {size:>8} {blocks:>8}  F_u {}", order.0, frag::share_text(unusable));
        Line::Texts(vec![(text, Paint::Plain)])
    };
    (0..areas.map_or(0, FreeAreas::orders)).map(line)
}
