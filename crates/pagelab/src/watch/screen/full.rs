//! The screen from 80 columns and 24 rows on; a larger one shows longer curves, more zones, and charts.

use pagelab_metrics::frag;
use pagelab_model::{FreeAreas, Order};
use pagelab_report::style;
use ratatui_core::layout::Rect;

use super::chart;
use super::pen::{ABSENT, Paint, Pen, memory, short};
use super::words;
use crate::watch::counter::Counter;
use crate::watch::view::{Metric, View};

/// Zones that are listed on the smallest screen.
const ZONES_MIN: u16 = 3;
/// Rows of rates that the smallest screen has.
const RATES_MIN: u16 = 13;
/// Columns of the table of orders, and of that of rates, without their curves.
const ORDERS_COLUMNS: u16 = 27;
const RATES_COLUMNS: u16 = 38;

/// Draws everything.
pub fn draw(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let spare = area.height - super::FULL.1;
    title(pen, area, view);
    amounts(pen, Rect { y: 1, height: 2, ..area }, view);
    pressure(pen, Rect { y: 3, height: 1, ..area }, view);
    huge_pages(pen, Rect { y: 4, height: 1, ..area }, view);
    let listed = view.now().map_or(0, |now| now.zones.len()).try_into().unwrap_or(u16::MAX);
    let zones_rows = listed.clamp(ZONES_MIN, ZONES_MIN + spare / 4);
    let zones_area = Rect { y: 5, height: 1 + zones_rows, ..area };
    zones(pen, zones_area, view);
    let top = zones_area.bottom();
    let left = area.bottom() - 1 - top;
    let orders = view.areas().map_or(0, FreeAreas::orders).try_into().unwrap_or(u16::MAX);
    // Title, the longer of the two tables, and under the orders what was sampled and what went wrong.
    let wanted = (words::RATES.len() as u16).max(orders.saturating_add(2)).saturating_add(1);
    let body_rows = wanted.min(left).max(1 + RATES_MIN.min(left - 1));
    let half = (area.width / 2).max(41).min(area.width - RATES_COLUMNS - 1);
    orders_table(pen, Rect { y: top, width: half, height: body_rows, ..area }, view);
    let rates_area = Rect { x: half + 1, y: top, width: area.width - half - 1, height: body_rows };
    rates_table(pen, rates_area, view);
    charts(pen, Rect { y: top + body_rows, height: left - body_rows, ..area }, view);
    super::footer(pen, area, view, "");
}

fn title(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let (doing, paint) = words::doing(view);
    let time = words::time(view);
    let right = pen.width(&doing) + 2 + pen.width(&time);
    let left = Rect { x: 1, width: area.width.saturating_sub(right + 3), height: 1, ..area };
    let kernel = match view.about.kernel.as_str() {
        "" => String::new(),
        release => format!("Linux {release}"),
    };
    let name = ("pagelab watch".to_owned(), Paint::Bold);
    pen.row(left, &[name, (view.about.host.clone(), Paint::Plain), (kernel, Paint::Dim)]);
    pen.right(area.width.saturating_sub(right), area.y, pen.width(&doing), &doing, paint);
    pen.right(0, area.y, area.width, &time, Paint::Plain);
}

/// Where the memory is: names over amounts, each in its place.
fn amounts(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let split = view.now().map(|now| now.memory).unwrap_or_default();
    let parts = [
        ("total", split.total),
        ("free", split.free),
        ("avail", split.available),
        ("programs", split.programs),
        ("cache", split.page_cache),
        ("slab", split.slab),
        ("pgtables", split.page_tables),
        ("hugetlb", split.hugetlb),
    ];
    pen.left(1, area.y, 8, "memory", Paint::Bold);
    let columns = ((area.width - 8) / parts.len() as u16).min(14);
    for (at, (name, amount)) in parts.into_iter().enumerate() {
        let x = 8 + at as u16 * columns;
        pen.right(x, area.y, columns, name, Paint::Dim);
        pen.right(x, area.y + 1, columns, &memory(amount), Paint::Plain);
    }
}

fn pressure(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let now = view.now();
    let said = |centipercent| words::percent(centipercent);
    pen.left(1, area.y, 9, "pressure", Paint::Bold);
    let some = format!("some {}", said(now.and_then(|now| now.some_centipercent)));
    let full = format!("full {}", said(now.and_then(|now| now.full_centipercent)));
    pen.left(11, area.y, 14, &some, Paint::Plain);
    pen.left(25, area.y, 14, &full, Paint::Plain);
    pen.left(39, area.y, 9, "over 10 s", Paint::Dim);
    let split = now.map(|now| now.memory).unwrap_or_default();
    let swap = format!("swap used {} of {}", memory(split.swap_used), memory(split.swap_total));
    let swap = if split.swap_total == Some(Default::default()) { "no swap".to_owned() } else { swap };
    let columns = area.width.saturating_sub(49 + 30);
    let values = view.curve(&Metric::SomePressure, usize::from(columns));
    pen.spark_of_events(49, area.y, &values, 1.0);
    pen.right(area.width - 30, area.y, 30, &swap, Paint::Plain);
}

fn huge_pages(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let mode = |mode: &pagelab_model::Reading<String>| mode.clone().unwrap_or_else(|_| ABSENT.to_owned());
    pen.left(1, area.y, 9, "THP", Paint::Bold);
    let split = view.now().map(|now| now.memory).unwrap_or_default();
    let known = view.now().into_iter().flat_map(|now| &now.zones).filter_map(|(_, areas)| areas.as_ref());
    let free = known
        .map(|areas| areas.blocks_suitable(view.about.pmd_order))
        .reduce(u128::saturating_add)
        .map_or_else(|| ABSENT.to_owned(), words::whole);
    let texts = [
        mode(&view.modes.enabled),
        format!("defrag {}", mode(&view.modes.defrag)),
        format!("in use {}", memory(split.programs_huge)),
        format!("{free} pages of {} now", words::block(view)),
    ];
    pen.row(Rect { x: 11, width: area.width - 11, ..area }, &texts.map(|text| (text, Paint::Plain)));
}

/// One line for each zone, around the chosen one where not all fit.
fn zones(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let pmd = view.about.pmd_order;
    let Some(now) = view.now() else { return };
    let rows = usize::from(area.height - 1);
    let at = now.zones.iter().position(|(key, _)| Some(key) == view.zone.as_ref()).unwrap_or(0);
    let from = at.saturating_sub(rows / 2).min(now.zones.len().saturating_sub(rows));
    pen.left(1, area.y, 12, "zones", Paint::Bold);
    if now.zones.len() > rows {
        let shown = format!("{} to {} of {}", from + 1, from + rows, now.zones.len());
        pen.left(7, area.y, 14, &shown, Paint::Dim);
    }
    pen.right(21, area.y, 9, "free", Paint::Dim);
    pen.right(30, area.y, 14, &format!("{} pages", words::block(view)), Paint::Dim);
    pen.right(44, area.y, 9, &format!("F_u({})", pmd.0), Paint::Dim);
    let columns = area.width.saturating_sub(56);
    pen.left(55, area.y, columns, &format!("F_u({}) over time", pmd.0), Paint::Dim);
    for (row, (key, areas)) in now.zones.iter().enumerate().skip(from).take(rows) {
        let y = area.y + 1 + (row - from) as u16;
        pen.left(2, y, 19, &words::zone(key), Paint::Plain);
        let told =
            |tell: &dyn Fn(&FreeAreas) -> String| areas.as_ref().map_or_else(|| ABSENT.to_owned(), tell);
        pen.right(21, y, 9, &told(&|areas| words::pages(view, areas.free_pages())), Paint::Plain);
        pen.right(30, y, 14, &told(&|areas| words::whole(areas.blocks_suitable(pmd))), Paint::Plain);
        pen.right(44, y, 9, &told(&|areas| frag::unusable_text(areas, pmd)), Paint::Plain);
        let curve = view.curve(&Metric::Unusable(key.clone(), pmd), usize::from(columns));
        pen.spark(55, y, &curve, 1.0);
        if Some(key) == view.zone.as_ref() {
            pen.choose(Rect { y, width: 53, height: 1, ..area });
        }
    }
}

/// Free blocks and F_u of the chosen zone by order, and under them what was sampled.
fn orders_table(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let rows = usize::from(area.height.saturating_sub(3));
    let columns = area.width.saturating_sub(ORDERS_COLUMNS + 2);
    let zone = view.zone.as_ref().map_or_else(|| "no zone".to_owned(), words::zone);
    pen.left(1, area.y, 12, &zone, Paint::Bold);
    pen.right(13, area.y, 7, "blocks", Paint::Dim);
    pen.right(20, area.y, 7, "F_u", Paint::Dim);
    let orders = view.areas().map_or(0, FreeAreas::orders);
    let from = view.orders_from.min(orders.saturating_sub(rows));
    let title = match orders.checked_sub(rows) {
        Some(1..) => format!("{from}-{} of 0-{}", from + rows - 1, orders - 1),
        _ => "over time".to_owned(),
    };
    pen.left(29, area.y, columns, &title, Paint::Dim);
    let status = area.bottom() - 2;
    pen.left(1, status, area.width - 1, &words::place(view), Paint::Dim);
    let (remark, paint) = words::remark(view);
    pen.left(1, status + 1, area.width - 1, &remark, paint);
    let Some((key, areas)) = view.zone.as_ref().zip(view.areas()) else {
        pen.left(2, area.y + 1, area.width - 2, "not in this reading", Paint::Dim);
        return;
    };
    for (row, order) in (from..orders).take(rows).enumerate() {
        let (y, order) = (area.y + 1 + row as u16, Order(order as u8));
        let paint = if order == view.about.pmd_order { Paint::Bold } else { Paint::Plain };
        pen.right(1, y, 3, &order.0.to_string(), paint);
        pen.right(4, y, 9, &style::bytes(view.about.page_size.block(order)), Paint::Dim);
        pen.right(13, y, 7, &blocks(areas.blocks(order)), paint);
        pen.right(20, y, 7, &frag::unusable_text(areas, order), paint);
        pen.spark(29, y, &view.curve(&Metric::Unusable(key.clone(), order), usize::from(columns)), 1.0);
    }
}

/// A number of blocks in seven columns.
fn blocks(number: u64) -> String {
    if number < 1_000_000 { style::count(number.into()) } else { short(Some(number as f64)) }
}

fn rates_table(pen: &mut Pen<'_>, area: Rect, view: &View) {
    pen.left(area.x, area.y, 12, "rates", Paint::Bold);
    pen.right(area.x, area.y, RATES_COLUMNS - 1, words::rate_kind(view), Paint::Dim);
    let columns = area.width.saturating_sub(RATES_COLUMNS + 2);
    // A curve that is only a few marks long says nothing.
    let columns = if columns < 8 { 0 } else { columns };
    if columns > 0 {
        pen.left(area.x + RATES_COLUMNS + 1, area.y, columns, "first, over time", Paint::Dim);
    }
    let rows = usize::from(area.height - 1);
    for (row, line) in words::RATES.iter().take(rows).enumerate() {
        let y = area.y + 1 + row as u16;
        pen.left(area.x, y, 8, line.group, Paint::Plain);
        pen.left(area.x + 8, y, 16, line.label, Paint::Dim);
        pen.right(area.x + 24, y, RATES_COLUMNS - 25, &words::rates(view, line), Paint::Plain);
        if let Some(why) = view.extfrag_absent.as_ref().filter(|_| line.counters == [Counter::Extfrag]) {
            pen.left(area.x + RATES_COLUMNS + 1, y, columns, why.reason(), Paint::Dim);
        } else if let (Some(&counter), true) = (line.counters.first(), columns > 0) {
            let curve = view.curve(&Metric::Rate(counter), usize::from(columns));
            pen.spark_of_events(area.x + RATES_COLUMNS + 1, y, &curve, 0.0);
        }
    }
}

/// As many charts as fit, the most important first.
fn charts(pen: &mut Pen<'_>, area: Rect, view: &View) {
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if area.height < chart::ROWS_MIN {
        return;
    }
    let charts = chart::all(view);
    let across = (area.width / 60).clamp(1, 4).min((area.width / chart::COLUMNS_MIN).max(1));
    let down = (area.height / chart::ROWS_MIN).min((charts.len() as u16).div_ceil(across)).max(1);
    let (width, height) = (area.width / across, area.height / down);
    for (at, (title, metric)) in charts.iter().take(usize::from(across * down)).enumerate() {
        let (column, row) = (at as u16 % across, at as u16 / across);
        let place = Rect { x: 1 + column * width, y: area.y + row * height, width: width - 1, height };
        chart::draw(pen, place, view, title, metric);
    }
}
