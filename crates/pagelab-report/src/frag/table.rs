//! The table: the answer first, then one line for each zone, then every zone by order.

use pagelab_metrics::frag;
use pagelab_model::{Bytes, FreeAreas, PageSize, ZoneFree};

use super::{FragReport, fragmentation_text, orders, paper_text, unusable_text};
use crate::grid::{Lean, align};
use crate::style::{Style, bytes, count};

/// How much of the table is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The paper's form of F_i beside the kernel's.
    pub paper: bool,
    /// Only the order that was asked for, not every order of every zone.
    pub one_order: bool,
}

const LEGEND: [&str; 2] = [
    "F_u  share of the free memory in blocks too small for the order: 0 none, 1 all",
    "F_i  −1 a block is free; else why none is: near 0 little memory, near 1 pieces",
];
const LEGEND_TYPES: &str = "types  U unmovable, E reclaimable, M movable, H highatomic, C CMA, I isolate";
const LEGEND_PAPER: &str = "     paper: 1 − (free / 2^j) / blocks; of no meaning where a block is free";

/// The whole text.
pub fn render(report: &FragReport, options: Options, style: &Style) -> String {
    let mut text = style.bold(&style.wrap(&report.headline_unbroken(), 0, 2));
    text.push('\n');
    let mut dim = |line: String| text.extend([style.dim(&style.wrap(&line, 2, 4)).as_str(), "\n"]);
    dim(report.about());
    if let Some((said, line)) = report.source.place.as_ref().and_then(|place| place.trigger.as_ref()) {
        dim(format!("line {line}: {said}"));
    }
    for note in &report.notes {
        text.extend([style.alert(&style.wrap(&format!("note: {note}"), 2, 4)).as_str(), "\n"]);
    }
    text.push('\n');
    summary(&mut text, report, options, style);
    if !options.one_order {
        for (at, zone) in report.buddyinfo.zones.iter().enumerate() {
            let letters = report.migratetypes.as_ref().ok().and_then(|all| all.get(at));
            by_order(&mut text, report, zone, letters.map(Vec::as_slice), options, style);
        }
    }
    text.push('\n');
    let paper = options.paper.then_some(LEGEND_PAPER);
    let types = (report.migratetypes.is_ok() && !options.one_order).then_some(LEGEND_TYPES);
    for line in LEGEND.into_iter().chain(paper).chain(types) {
        text.extend(["  ", style.dim(line).as_str(), "\n"]);
    }
    style.signs(&text)
}

/// One line for each zone.
fn summary(text: &mut String, report: &FragReport, options: Options, style: &Style) {
    let order = report.order;
    let size = bytes(report.page_size.block(order));
    let orders_max = report.buddyinfo.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(1);
    let mut leans = vec![Lean::Right, Lean::Left, Lean::Right, Lean::Right, Lean::Right, Lean::Right];
    let mut head = [
        "node",
        "zone",
        "free",
        &format!("{size} now"),
        &format!("F_u({})", order.0),
        &format!("F_i({})", order.0),
    ]
    .map(str::to_owned)
    .to_vec();
    if options.paper {
        head.push("paper".to_owned());
        leans.push(Lean::Right);
    }
    if !options.one_order {
        head.push(format!("F_u by order 0…{}", orders_max.saturating_sub(1)));
        leans.push(Lean::Left);
    }
    let mut rows = vec![head];
    for ZoneFree { key, areas } in &report.buddyinfo.zones {
        let mut row = vec![
            key.node.0.to_string(),
            key.zone.clone(),
            amount(areas, report.page_size),
            count(areas.blocks_suitable(order)),
            unusable_text(areas, order),
            fragmentation_text(areas, order),
        ];
        if options.paper {
            row.push(paper_text(areas, order));
        }
        if !options.one_order {
            row.push(orders(areas).map(|order| style.spark(frag::unusable(areas, order))).collect());
        }
        rows.push(row);
    }
    for line in align(&rows, &leans, 2) {
        text.extend([line.as_str(), "\n"]);
    }
    if !report.unpopulated.is_empty() {
        let names: Vec<String> =
            report.unpopulated.iter().map(|key| format!("node {} {}", key.node.0, key.zone)).collect();
        let line = format!("without any memory: {}", names.join(", "));
        text.extend([style.wrap(&line, 2, 4).as_str(), "\n"]);
    }
}

/// Every order of one zone.
fn by_order(
    text: &mut String,
    report: &FragReport,
    zone: &ZoneFree,
    letters: Option<&[String]>,
    options: Options,
    style: &Style,
) {
    let areas = &zone.areas;
    text.push('\n');
    let title = format!("  node {}, zone {}", zone.key.node.0, zone.key.zone);
    text.extend([style.bold(&title).as_str(), "\n"]);
    let mut head =
        ["order", "block", "free blocks", "usable pages", "F_u", "F_i"].map(str::to_owned).to_vec();
    let mut leans = vec![Lean::Right; head.len()];
    if options.paper {
        head.push("paper".to_owned());
        leans.push(Lean::Right);
    }
    if letters.is_some() {
        head.push("types".to_owned());
        leans.push(Lean::Left);
    }
    let mut rows = vec![head];
    for order in orders(areas) {
        let mut row = vec![
            order.0.to_string(),
            bytes(report.page_size.block(order)),
            count(u128::from(areas.blocks(order))),
            count(areas.pages_from(order)),
            unusable_text(areas, order),
            fragmentation_text(areas, order),
        ];
        if options.paper {
            row.push(paper_text(areas, order));
        }
        if let Some(letters) = letters {
            row.push(letters.get(order.index()).cloned().unwrap_or_default());
        }
        rows.push(row);
    }
    for (at, line) in align(&rows, &leans, 2).into_iter().enumerate() {
        let line = if at == report.order.index() + 1 { style.bold(&line) } else { line };
        text.extend([line.as_str(), "\n"]);
    }
}

/// Free memory of a zone; an amount beyond 64 bits of bytes is given in pages.
fn amount(areas: &FreeAreas, page_size: PageSize) -> String {
    let pages = areas.free_pages();
    match pages.checked_mul(u128::from(page_size.bytes())).and_then(|b| u64::try_from(b).ok()) {
        Some(amount) => bytes(Bytes(amount)),
        None => format!("{} pages", count(pages)),
    }
}
