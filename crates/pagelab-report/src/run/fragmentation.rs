//! Fragmentation over time: F_u by zone, and by order with `-v`; free memory and free blocks.

use pagelab_metrics::fragmentation_index::{format_share, unusable_permille};
use pagelab_metrics::standard_series::{self, ZoneSeries};
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::run::{Run, Unit};
use pagelab_model::{FreeAreas, Order, PageSize};

use super::time_trend::{NUMBER_TITLES, TrendPoints, TrendRow, summary_numbers, write_table};
use super::{View, clip_name};
use crate::json;
use crate::quantity_format::{UnitScale, format_quantity};
use crate::style::{TextStyle, format_bytes, format_count};
use crate::text_report::{TableColumn, TextReport};

/// Zones in the summary, at most; a machine with many nodes has more.
const ZONES_MAX: usize = 6;

/// One zone over all series of the recording.
struct ZoneRecording<'a> {
    key: ZoneKey,
    zone_series: Vec<ZoneSeries<'a>>,
}

impl ZoneRecording<'_> {
    fn order_count(&self) -> usize {
        self.zone_series.iter().map(ZoneSeries::orders).max().unwrap_or(0)
    }

    fn trend(&self, value_of: impl Fn(&FreeAreas) -> Option<f64>) -> TrendPoints {
        let part = |zone: &ZoneSeries<'_>| {
            let reading = |at: usize| Some((zone.at_ns[at], value_of(&zone.free_areas(at)?)?));
            (0..zone.at_ns.len()).filter_map(reading).collect::<Vec<_>>()
        };
        self.zone_series.iter().flat_map(part).collect()
    }

    fn unusable_trend(&self, order: Order) -> TrendPoints {
        self.trend(|areas| (areas.free_pages() > 0).then(|| unusable_permille(areas, order) as f64 / 1000.0))
    }
}

fn list_zones(run: &Run) -> Vec<ZoneRecording<'_>> {
    let mut zones: Vec<ZoneRecording<'_>> = Vec::new();
    for part in standard_series::zone_series(run) {
        match zones.iter_mut().find(|zone| zone.key == part.key) {
            Some(zone) => zone.zone_series.push(part),
            None => zones.push(ZoneRecording { key: part.key.clone(), zone_series: vec![part] }),
        }
    }
    zones
}

pub(super) fn render_fragmentation(run: &Run, view: View, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    let zones = list_zones(run);
    let page_size = run.manifest.machine.page_size;
    let orders = zones.iter().map(ZoneRecording::order_count).max().unwrap_or(0);
    let pmd = json::run::known_snapshot(&run.manifest).pmd_order;
    let order = Order(pmd.0.min(orders.saturating_sub(1) as u8));
    let block = format_bytes(page_size.block_bytes(order));
    let words = format!("F_u({}): share of free memory unusable for {block} blocks", order.0);
    output.add_fact_line(&[style.paint_bold("fragmentation"), words]);
    let shown = if view.verbose { zones.len() } else { ZONES_MAX };
    let rows: Vec<TrendRow> =
        zones.iter().take(shown).map(|zone| summary_row(zone, order, page_size)).collect();
    let leading_columns = [TableColumn::right("node"), TableColumn::left("zone")];
    write_table(&mut output, &leading_columns, &NUMBER_TITLES, &[TableColumn::right("free, end")], &rows);
    if zones.len() > shown {
        output.add_dim_indented(&format!("not shown: {} more zones (-v)", zones.len() - shown));
    }
    if view.verbose {
        zones.iter().for_each(|zone| write_orders(&mut output, zone, page_size));
    }
    output.into_text()
}

/// Cells of [`NUMBER_TITLES`].
fn number_cells(points: &[(u64, f64)], format: impl Fn(f64) -> String) -> Vec<String> {
    match summary_numbers(points) {
        Some(numbers) => numbers.map(format).to_vec(),
        None => vec!["–".to_owned(); NUMBER_TITLES.len()],
    }
}

fn summary_row(zone: &ZoneRecording<'_>, order: Order, page_size: PageSize) -> TrendRow {
    let points = zone.unusable_trend(order);
    let free = zone.trend(|areas| Some(areas.free_pages() as f64)).last().map(|&(_, pages)| pages);
    let tail = free.map_or("–".to_owned(), |pages| format_quantity(pages, &Unit::PAGES.into(), page_size));
    TrendRow {
        leading_cells: vec![zone.key.node.0.to_string(), clip_name(&zone.key.zone, ZoneKey::NAME_MAX)],
        number_cells: number_cells(&points, format_share),
        points,
        trailing_cells: vec![tail],
    }
}

/// Writes all orders of a zone: the index, and the free blocks.
fn write_orders(output: &mut TextReport, zone: &ZoneRecording<'_>, page_size: PageSize) {
    let [node, name] = [zone.key.node.0.to_string(), clip_name(&zone.key.zone, ZoneKey::NAME_MAX)];
    let free = zone.trend(|areas| Some(areas.free_pages() as f64));
    let most = free.iter().map(|&(_, pages)| pages).fold(0.0, f64::max);
    let scale = UnitScale::for_values(&Unit::PAGES.into(), page_size, false, most);
    output.add_gap();
    let style = output.style();
    output.add_fact_line(&[style.paint_bold(&format!("node {node}, zone {name}")), "F_u(order)".to_owned()]);
    let orders: Vec<Order> = (0..zone.order_count()).map(|order| Order(order as u8)).collect();
    let row = |order: Order, points: TrendPoints, format: fn(f64) -> String| {
        let lead = vec![order.0.to_string(), format_bytes(page_size.block_bytes(order))];
        TrendRow::new(lead, number_cells(&points, format), points)
    };
    let titles = [TableColumn::right("order"), TableColumn::right("block")];
    let rows = orders.iter().map(|&order| row(order, zone.unusable_trend(order), format_share));
    write_table(output, &titles, &NUMBER_TITLES, &[], &rows.collect::<Vec<_>>());
    if let Some(numbers) = summary_numbers(&free) {
        let all = NUMBER_TITLES
            .iter()
            .zip(numbers)
            .map(|(title, pages)| format!("{title} {}", scale.format_number(pages)));
        let facts = [format!("free memory, {}:", scale.unit)].into_iter().chain(all).collect::<Vec<_>>();
        output.add_facts("  ", &facts, "  ");
    }
    output.add_indented("free blocks of exactly this order");
    let rows = orders.iter().map(|&order| {
        let points = zone.trend(|areas| Some(areas.blocks(order) as f64));
        row(order, points, |value| format_count(value.round() as u128))
    });
    write_table(output, &titles, &NUMBER_TITLES, &[], &rows.collect::<Vec<_>>());
}
