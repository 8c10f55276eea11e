//! Fragmentation over time: F_u by zone, and by order with `-v`; free memory and free blocks.

use pagelab_metrics::frag;
use pagelab_metrics::recorded::{self, ZoneSeries};
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::run::{Run, Unit};
use pagelab_model::{FreeAreas, Order, PageSize};

use super::course::{Course, Row, TITLES, table};
use super::{View, clipped};
use crate::json;
use crate::quantity::{Scale, quantity};
use crate::style::{Style, bytes, count};
use crate::text::{Column, Page};

/// Zones in the summary; a machine of many nodes has more.
const ZONES: usize = 6;

/// One zone over all series of the recording.
struct Zone<'a> {
    key: ZoneKey,
    parts: Vec<ZoneSeries<'a>>,
}

impl Zone<'_> {
    fn orders(&self) -> usize {
        self.parts.iter().map(ZoneSeries::orders).max().unwrap_or(0)
    }

    /// What `of` makes of each reading.
    fn course(&self, of: impl Fn(&FreeAreas) -> Option<f64>) -> Course {
        let part = |zone: &ZoneSeries<'_>| {
            let reading = |at: usize| Some((zone.at_ns[at], of(&zone.areas(at)?)?));
            (0..zone.at_ns.len()).filter_map(reading).collect::<Vec<_>>()
        };
        Course { points: self.parts.iter().flat_map(part).collect() }
    }

    fn unusable(&self, order: Order) -> Course {
        self.course(|areas| {
            (areas.free_pages() > 0).then(|| frag::unusable_permille(areas, order) as f64 / 1000.0)
        })
    }
}

fn zones(run: &Run) -> Vec<Zone<'_>> {
    let mut zones: Vec<Zone<'_>> = Vec::new();
    for part in recorded::zones(run) {
        match zones.iter_mut().find(|zone| zone.key == part.key) {
            Some(zone) => zone.parts.push(part),
            None => zones.push(Zone { key: part.key.clone(), parts: vec![part] }),
        }
    }
    zones
}

pub(super) fn show(run: &Run, view: View, style: Style) -> String {
    let mut page = Page::new(style);
    let zones = zones(run);
    let page_size = run.manifest.machine.page_size;
    let orders = zones.iter().map(Zone::orders).max().unwrap_or(0);
    let pmd = json::run::known(&run.manifest).pmd_order;
    let order = Order(pmd.0.min(orders.saturating_sub(1) as u8));
    let block = bytes(page_size.block(order));
    let words = format!("F_u({}): share of free memory unusable for {block} blocks", order.0);
    page.facts("", &[style.bold("fragmentation"), words], "   ");
    let shown = if view.verbose { zones.len() } else { ZONES };
    let rows: Vec<Row> = zones.iter().take(shown).map(|zone| summary(zone, order, page_size)).collect();
    let lead = [Column::right("node"), Column::left("zone")];
    table(&mut page, &lead, &TITLES, &[Column::right("free, end")], &rows);
    if zones.len() > shown {
        page.hanging_dim("  ", &format!("not in the table: {} more zones (-v)", zones.len() - shown));
    }
    if view.verbose {
        zones.iter().for_each(|zone| by_order(&mut page, zone, page_size));
    }
    page.finish()
}

fn index(value: f64) -> String {
    frag::share_text(value)
}

fn dashes() -> Vec<String> {
    TITLES.iter().map(|_| "–".to_owned()).collect()
}

fn summary(zone: &Zone<'_>, order: Order, page_size: PageSize) -> Row {
    let course = zone.unusable(order);
    let numbers = course.numbers().map_or_else(dashes, |numbers| numbers.map(index).to_vec());
    let free = zone.course(|areas| Some(areas.free_pages() as f64)).points.last().map(|&(_, pages)| pages);
    let tail = free.map_or("–".to_owned(), |pages| quantity(pages, &Unit::PAGES.into(), page_size));
    Row { lead: name(zone), numbers, course, tail: vec![tail] }
}

fn name(zone: &Zone<'_>) -> Vec<String> {
    vec![zone.key.node.0.to_string(), clipped(&zone.key.zone, ZoneKey::NAME_MAX)]
}

/// All orders of a zone: the index, and the free blocks.
fn by_order(page: &mut Page, zone: &Zone<'_>, page_size: PageSize) {
    let [node, name] = [zone.key.node.0.to_string(), clipped(&zone.key.zone, ZoneKey::NAME_MAX)];
    let free = zone.course(|areas| Some(areas.free_pages() as f64));
    let most = free.points.iter().map(|&(_, pages)| pages).fold(0.0, f64::max);
    let scale = Scale::of(&Unit::PAGES.into(), page_size, false, most);
    page.gap();
    let style = page.style();
    page.facts("", &[style.bold(&format!("node {node}, zone {name}")), "F_u(order)".to_owned()], "   ");
    let orders: Vec<Order> = (0..zone.orders()).map(|order| Order(order as u8)).collect();
    let lead = |order: Order| vec![order.0.to_string(), bytes(page_size.block(order))];
    let row = |&order: &Order| {
        let course = zone.unusable(order);
        let numbers = course.numbers().map_or_else(dashes, |numbers| numbers.map(index).to_vec());
        Row { lead: lead(order), numbers, course, tail: Vec::new() }
    };
    let titles = [Column::right("order"), Column::right("block")];
    table(page, &titles, &TITLES, &[], &orders.iter().map(row).collect::<Vec<_>>());
    if let Some(numbers) = free.numbers() {
        let all = TITLES.iter().zip(numbers).map(|(title, pages)| format!("{title} {}", scale.number(pages)));
        let facts = [format!("free memory, {}:", scale.unit)].into_iter().chain(all).collect::<Vec<_>>();
        page.facts("  ", &facts, "  ");
    }
    page.hanging("  ", "free blocks of exactly this order");
    let row = |&order: &Order| {
        let course = zone.course(|areas| Some(areas.blocks(order) as f64));
        let whole = |value: f64| count(value.round() as u128);
        let numbers = course.numbers().map_or_else(dashes, |numbers| numbers.map(whole).to_vec());
        Row { lead: lead(order), numbers, course, tail: Vec::new() }
    };
    table(page, &titles, &TITLES, &[], &orders.iter().map(row).collect::<Vec<_>>());
}
