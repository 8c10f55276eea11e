//! The screen from 80 columns and 24 rows; a larger one shows longer curves, more zones, and charts.

use pagelab_metrics::fragmentation_index;
use pagelab_model::{FreeAreas, Order};
use pagelab_report::style;
use ratatui_core::layout::Rect;

use super::canvas::{ABSENT, Canvas, Paint, format_memory};
use super::{chart, labels};
use crate::sample::Counter;
use crate::view::{Metric, View};

/// Zones on the smallest screen.
const ZONES_MIN: u16 = 3;
/// Rows of rates on the smallest screen.
const RATES_MIN: u16 = 13;
/// Columns of the tables of orders and of rates, without their curves.
const ORDERS_COLUMNS: u16 = 27;
const RATES_COLUMNS: u16 = 38;

pub fn draw(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let spare = area.height - super::FULL_SIZE.1;
    draw_title(pen, area, view);
    draw_amounts(pen, Rect { y: 1, height: 2, ..area }, view);
    draw_pressure(pen, Rect { y: 3, height: 1, ..area }, view);
    draw_huge_pages(pen, Rect { y: 4, height: 1, ..area }, view);
    let listed = view.current_sample().map_or(0, |now| now.zones.len()).try_into().unwrap_or(u16::MAX);
    let zones_rows = listed.clamp(ZONES_MIN, ZONES_MIN + spare / 4);
    let zones_area = Rect { y: 5, height: 1 + zones_rows, ..area };
    draw_zones(pen, zones_area, view);
    let top = zones_area.bottom();
    let rows_left = area.bottom() - 1 - top;
    let orders = view.free_areas().map_or(0, FreeAreas::orders).try_into().unwrap_or(u16::MAX);
    // Title, the longer of the two tables, and below the orders the samples and problems.
    let wanted = (labels::RATE_ROWS.len() as u16).max(orders.saturating_add(2)).saturating_add(1);
    let body_rows = wanted.min(rows_left).max(1 + RATES_MIN.min(rows_left - 1));
    let half = (area.width / 2).max(41).min(area.width - RATES_COLUMNS - 1);
    draw_orders(pen, Rect { y: top, width: half, height: body_rows, ..area }, view);
    let rates_area = Rect { x: half + 1, y: top, width: area.width - half - 1, height: body_rows };
    draw_rates(pen, rates_area, view);
    draw_charts(pen, Rect { y: top + body_rows, height: rows_left - body_rows, ..area }, view);
    super::draw_footer(pen, area, view, "");
}

fn draw_title(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let (doing, paint) = labels::activity(view);
    let time = labels::time_of_day(view);
    let right = pen.display_width(&doing) + 2 + pen.display_width(&time);
    let title_area = Rect { x: 1, width: area.width.saturating_sub(right + 3), height: 1, ..area };
    let kernel = match view.about.kernel.as_str() {
        "" => String::new(),
        release => format!("Linux {release}"),
    };
    let name = ("pagelab watch".to_owned(), Paint::Bold);
    pen.write_row(title_area, &[name, (view.about.host.clone(), Paint::Plain), (kernel, Paint::Dim)]);
    pen.write_right(area.width.saturating_sub(right), area.y, pen.display_width(&doing), &doing, paint);
    pen.write_right(0, area.y, area.width, &time, Paint::Plain);
}

/// Draws the memory by use: names above amounts, at fixed positions.
fn draw_amounts(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let split = view.current_sample().map(|now| now.memory).unwrap_or_default();
    let parts = [
        ("total", split.total),
        ("free", split.free),
        ("avail", split.available),
        ("programs", split.anonymous_and_shmem),
        ("cache", split.page_cache),
        ("slab", split.slab),
        ("pgtables", split.page_tables),
        ("hugetlb", split.hugetlb),
    ];
    pen.write_left(1, area.y, 8, "memory", Paint::Bold);
    let columns = ((area.width - 8) / parts.len() as u16).min(14);
    for (at, (name, amount)) in parts.into_iter().enumerate() {
        let x = 8 + at as u16 * columns;
        pen.write_right(x, area.y, columns, name, Paint::Dim);
        pen.write_right(x, area.y + 1, columns, &format_memory(amount), Paint::Plain);
    }
}

fn draw_pressure(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let sample = view.current_sample();
    pen.write_left(1, area.y, 9, "pressure", Paint::Bold);
    let some = format!("some {}", labels::format_percent(sample.and_then(|now| now.some_centipercent)));
    let full = format!("full {}", labels::format_percent(sample.and_then(|now| now.full_centipercent)));
    pen.write_left(11, area.y, 14, &some, Paint::Plain);
    pen.write_left(25, area.y, 14, &full, Paint::Plain);
    pen.write_left(39, area.y, 9, "over 10 s", Paint::Dim);
    let split = sample.map(|now| now.memory).unwrap_or_default();
    let swap = format!("swap used {} of {}", format_memory(split.swap_used), format_memory(split.swap_total));
    let swap = if split.swap_total == Some(Default::default()) { "no swap".to_owned() } else { swap };
    let columns = area.width.saturating_sub(49 + 30);
    let values = view.curve(&Metric::SomePressure, usize::from(columns));
    pen.draw_event_sparkline(49, area.y, &values, 1.0);
    pen.write_right(area.width - 30, area.y, 30, &swap, Paint::Plain);
}

fn draw_huge_pages(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let mode = |mode: &pagelab_model::Reading<String>| mode.clone().unwrap_or_else(|_| ABSENT.to_owned());
    pen.write_left(1, area.y, 9, "THP", Paint::Bold);
    let split = view.current_sample().map(|now| now.memory).unwrap_or_default();
    let known =
        view.current_sample().into_iter().flat_map(|now| &now.zones).filter_map(|(_, areas)| areas.as_ref());
    let free = known
        .map(|areas| areas.blocks_suitable(view.about.pmd_order))
        .reduce(u128::saturating_add)
        .map_or_else(|| ABSENT.to_owned(), labels::format_short_count);
    let texts = [
        mode(&view.modes.enabled),
        format!("defrag {}", mode(&view.modes.defrag)),
        format!("in use {}", format_memory(split.thp_mapped)),
        format!("{free} free {} pages", labels::format_pmd_size(view)),
    ];
    pen.write_row(Rect { x: 11, width: area.width - 11, ..area }, &texts.map(|text| (text, Paint::Plain)));
}

/// Draws one line for each zone, around the selected one if not all fit.
fn draw_zones(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let pmd = view.about.pmd_order;
    let Some(now) = view.current_sample() else { return };
    let rows = usize::from(area.height - 1);
    let at = now.zones.iter().position(|(key, _)| Some(key) == view.zone.as_ref()).unwrap_or(0);
    let from = at.saturating_sub(rows / 2).min(now.zones.len().saturating_sub(rows));
    pen.write_left(1, area.y, 12, "zones", Paint::Bold);
    if now.zones.len() > rows {
        let shown = format!("{} to {} of {}", from + 1, from + rows, now.zones.len());
        pen.write_left(7, area.y, 14, &shown, Paint::Dim);
    }
    pen.write_right(21, area.y, 9, "free", Paint::Dim);
    pen.write_right(30, area.y, 14, &format!("{} pages", labels::format_pmd_size(view)), Paint::Dim);
    pen.write_right(44, area.y, 9, &format!("F_u({})", pmd.0), Paint::Dim);
    let columns = area.width.saturating_sub(56);
    pen.write_left(55, area.y, columns, &format!("F_u({}) over time", pmd.0), Paint::Dim);
    for (row, (key, areas)) in now.zones.iter().enumerate().skip(from).take(rows) {
        let y = area.y + 1 + (row - from) as u16;
        pen.write_left(2, y, 19, &labels::zone_label(key), Paint::Plain);
        let cells = match areas {
            Some(areas) => [
                labels::format_pages(view, areas.free_pages()),
                labels::format_short_count(areas.blocks_suitable(pmd)),
                fragmentation_index::format_unusable(areas, pmd),
            ],
            None => [ABSENT; 3].map(str::to_owned),
        };
        for ((x, columns), cell) in [(21, 9), (30, 14), (44, 9)].into_iter().zip(cells) {
            pen.write_right(x, y, columns, &cell, Paint::Plain);
        }
        let curve = view.curve(&Metric::Unusable(key.clone(), pmd), usize::from(columns));
        pen.draw_sparkline(55, y, &curve, 1.0);
        if Some(key) == view.zone.as_ref() {
            pen.highlight(Rect { y, width: 53, height: 1, ..area });
        }
    }
}

/// Draws free blocks and F_u of the selected zone by order, and the samples below.
fn draw_orders(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let rows = usize::from(area.height.saturating_sub(3));
    let columns = area.width.saturating_sub(ORDERS_COLUMNS + 2);
    let zone = view.zone.as_ref().map_or_else(|| "no zone".to_owned(), labels::zone_label);
    pen.write_left(1, area.y, 12, &zone, Paint::Bold);
    pen.write_right(13, area.y, 7, "blocks", Paint::Dim);
    pen.write_right(20, area.y, 7, "F_u", Paint::Dim);
    let orders = view.free_areas().map_or(0, FreeAreas::orders);
    let from = view.orders_from.min(orders.saturating_sub(rows));
    let title = match orders.checked_sub(rows) {
        Some(1..) => format!("{from}-{} of 0-{}", from + rows - 1, orders - 1),
        _ => "over time".to_owned(),
    };
    pen.write_left(29, area.y, columns, &title, Paint::Dim);
    let status = area.bottom() - 2;
    pen.write_left(1, status, area.width - 1, &labels::position_text(view), Paint::Dim);
    let (remark, paint) = labels::latest_remark(view);
    pen.write_left(1, status + 1, area.width - 1, &remark, paint);
    let Some((key, areas)) = view.zone.as_ref().zip(view.free_areas()) else {
        pen.write_left(2, area.y + 1, area.width - 2, "not in this reading", Paint::Dim);
        return;
    };
    for (row, order) in (from..orders).take(rows).enumerate() {
        let (y, order) = (area.y + 1 + row as u16, Order(order as u8));
        let paint = if order == view.about.pmd_order { Paint::Bold } else { Paint::Plain };
        pen.write_right(1, y, 3, &order.0.to_string(), paint);
        pen.write_right(4, y, 9, &style::format_bytes(view.about.page_size.block_bytes(order)), Paint::Dim);
        pen.write_right(13, y, 7, &labels::format_short_count(areas.blocks(order).into()), paint);
        pen.write_right(20, y, 7, &fragmentation_index::format_unusable(areas, order), paint);
        let curve = view.curve(&Metric::Unusable(key.clone(), order), usize::from(columns));
        pen.draw_sparkline(29, y, &curve, 1.0);
    }
}

fn draw_rates(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    pen.write_left(area.x, area.y, 12, "rates", Paint::Bold);
    pen.write_right(area.x, area.y, RATES_COLUMNS - 1, labels::rate_kind_label(view), Paint::Dim);
    let columns = area.width.saturating_sub(RATES_COLUMNS + 2);
    // A curve of only a few marks is not useful.
    let columns = if columns < 8 { 0 } else { columns };
    if columns > 0 {
        pen.write_left(area.x + RATES_COLUMNS + 1, area.y, columns, "first, over time", Paint::Dim);
    }
    let rows = usize::from(area.height - 1);
    for (row, (group, label, counters)) in labels::RATE_ROWS.into_iter().take(rows).enumerate() {
        let y = area.y + 1 + row as u16;
        pen.write_left(area.x, y, 8, group, Paint::Plain);
        pen.write_left(area.x + 8, y, 16, label, Paint::Dim);
        let rates = labels::format_rates(view, counters);
        pen.write_right(area.x + 24, y, RATES_COLUMNS - 25, &rates, Paint::Plain);
        if let Some(why) = view.extfrag_absent.as_ref().filter(|_| counters == [Counter::Extfrag]) {
            pen.write_left(area.x + RATES_COLUMNS + 1, y, columns, why.reason(), Paint::Dim);
        } else if let (Some(&counter), true) = (counters.first(), columns > 0) {
            let curve = view.curve(&Metric::Rate(counter), usize::from(columns));
            pen.draw_event_sparkline(area.x + RATES_COLUMNS + 1, y, &curve, 0.0);
        }
    }
}

/// Draws as many charts as fit, the most important first.
fn draw_charts(pen: &mut Canvas<'_>, area: Rect, view: &View) {
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if area.height < chart::ROWS_MIN {
        return;
    }
    let charts = chart::charts(view);
    let across = (area.width / 60).clamp(1, 4).min((area.width / chart::COLUMNS_MIN).max(1));
    let down = (area.height / chart::ROWS_MIN).min((charts.len() as u16).div_ceil(across)).max(1);
    let (width, height) = (area.width / across, area.height / down);
    for (at, (title, metric)) in charts.iter().take(usize::from(across * down)).enumerate() {
        let (column, row) = (at as u16 % across, at as u16 / across);
        let place = Rect { x: 1 + column * width, y: area.y + row * height, width: width - 1, height };
        chart::draw(pen, place, view, title, metric);
    }
}
