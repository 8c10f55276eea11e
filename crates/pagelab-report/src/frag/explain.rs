//! F_u and F_i worked out line by line, with the numbers put in, for those who learn them.

use pagelab_metrics::frag::{self, kernel_decimal};
use pagelab_model::{FreeAreas, Order, ZoneFree};

use super::{FragReport, orders, unusable_text};
use crate::grid::{UNBROKEN, width};
use crate::style::{Style, bytes, count, percent};

/// The whole text.
pub fn render(report: &FragReport, paper: bool, style: &Style) -> String {
    let mut text = style.bold(&style.wrap(&report.headline_unbroken(), 0, 2));
    text.extend(["\n", style.dim(&style.wrap(&report.about(), 2, 4)).as_str(), "\n"]);
    for note in &report.notes {
        text.extend([style.alert(&style.wrap(&format!("note: {note}"), 2, 4)).as_str(), "\n"]);
    }
    for zone in &report.buddyinfo.zones {
        let mut lines = Lines { text: &mut text, style };
        lines.blank();
        let title = title(report, zone);
        lines.text.extend([style.bold(&title).as_str(), "\n"]);
        explain_zone(&mut lines, &zone.areas, report.order, paper);
    }
    style.signs(&text)
}

fn title(report: &FragReport, zone: &ZoneFree) -> String {
    let order = report.order;
    format!(
        "node {}, zone {}: order {}, blocks of 2^{} = {} pages, {}",
        zone.key.node.0,
        zone.key.zone,
        order.0,
        order.0,
        count(u128::from(order.pages().0)),
        bytes(report.page_size.block(order))
    )
}

/// Lines under construction.
struct Lines<'a> {
    text: &'a mut String,
    style: &'a Style,
}

impl Lines<'_> {
    fn blank(&mut self) {
        self.text.push('\n');
    }

    /// An equation, one step on each line, the equals signs below each other.
    fn equation(&mut self, name: &str, steps: &[String]) {
        for (at, step) in steps.iter().enumerate() {
            let name = self.style.signs(name);
            let name = if at == 0 { name } else { " ".repeat(width(&name)) };
            let line = format!("{}{UNBROKEN}={UNBROKEN}{step}", name.replace(' ', "\u{a0}"));
            let next = width(&name) + 5;
            self.text.extend([self.style.wrap(&line, 2, next).as_str(), "\n"]);
        }
    }

    /// What it means.
    fn meaning(&mut self, line: &str) {
        self.text.extend([self.style.wrap(&format!("→ {line}"), 4, 6).as_str(), "\n"]);
    }
}

fn explain_zone(lines: &mut Lines<'_>, areas: &FreeAreas, order: Order, paper: bool) {
    let counts: Vec<String> = areas.counts().iter().map(u64::to_string).collect();
    let largest = areas.orders().saturating_sub(1);
    lines.equation(
        &format!("k(i), i = 0…{largest}"),
        &[format!("{} free blocks of 2^i pages", counts.join(" "))],
    );
    lines.equation("free  ", &sum(areas, Order(0), "Σ 2^i × k(i) over all i".to_owned()));
    lines.equation("usable", &sum(areas, order, format!("Σ 2^i × k(i) over i ≥ {}", order.0)));
    lines.equation("blocks", &[format!("Σ k(i) over all i = {}", areas.blocks_total())]);
    lines.blank();
    explain_unusable(lines, areas, order);
    lines.blank();
    explain_fragmentation(lines, areas, order);
    if paper {
        lines.blank();
        explain_paper(lines, areas, order);
    }
}

/// The steps of a sum of pages: the formula, its terms (not too many), the result.
fn sum(areas: &FreeAreas, from: Order, formula: String) -> Vec<String> {
    const SHOWN: usize = 12;
    let terms: Vec<String> = orders(areas)
        .skip(from.index())
        .filter(|&order| areas.blocks(order) > 0)
        .map(|order| format!("{}×{}", order.pages().0, areas.blocks(order)))
        .collect();
    let result = areas.pages_from(from).to_string();
    let more = if terms.len() > SHOWN { " + …" } else { "" };
    match terms.len() {
        0 => vec![format!("{formula} = 0")],
        shown => vec![formula, format!("{}{more}", terms[..shown.min(SHOWN)].join(" + ")), result],
    }
}

fn explain_unusable(lines: &mut Lines<'_>, areas: &FreeAreas, order: Order) {
    let name = format!("F_u({})", order.0);
    let free = areas.free_pages();
    if free == 0 {
        lines.equation(&name, &["1.000, since nothing is free".to_owned()]);
        lines.meaning("there is no share of nothing; the kernel says 1, as nothing is usable.");
        return;
    }
    let usable = areas.pages_from(order);
    let unusable = free - usable;
    let permille = frag::unusable_permille(areas, order);
    lines.equation(
        &name,
        &[
            "(free − usable) / free".to_owned(),
            format!("({free} − {usable}) / {free}"),
            format!("{unusable} × 1000 / {free} thousandths, cut to a whole number"),
            format!("{permille} thousandths, printed as {}", unusable_text(areas, order)),
        ],
    );
    lines.meaning(&match unusable {
        0 => "every free page is in a block that is large enough.".to_owned(),
        _ if usable == 0 => "no free page is in a block that is large enough.".to_owned(),
        _ => format!(
            "{} of the free memory is in blocks that are too small for this request.",
            percent(frag::unusable(areas, order))
        ),
    });
}

fn explain_fragmentation(lines: &mut Lines<'_>, areas: &FreeAreas, order: Order) {
    let j = order.0;
    let name = format!("F_i({j})");
    let permille = frag::fragmentation_permille(areas, order);
    let printed = kernel_decimal(permille);
    let blocks = areas.blocks_total();
    let suitable = areas.blocks_suitable(order);
    if blocks == 0 {
        lines.equation(&name, &[format!("{printed}, since no block is free")]);
        lines.meaning("the request fails for lack of memory alone, which is what 0 stands for.");
        return;
    }
    if suitable > 0 {
        lines.equation(&name, &[format!("{printed}, since usable / 2^{j} = {suitable} blocks are free now")]);
        lines.meaning(
            "F_i says why a request fails. This one would succeed, so there is nothing to say, and the \
             kernel prints −1.",
        );
        return;
    }
    let free = areas.free_pages();
    let size = order.pages().0;
    let mut steps = vec![
        format!("1 − (1 + free / 2^{j}) / blocks"),
        format!("1000 − (1000 + {free} × 1000 / {size}) / {blocks} thousandths"),
    ];
    if let Some(needed) = free.checked_mul(1000).map(|thousand| thousand / u128::from(size)) {
        steps.push(format!("1000 − (1000 + {needed}) / {blocks}, each quotient cut to a whole number"));
    }
    let quotient = 1000 - i128::from(permille);
    steps.push(format!("1000 − {quotient}"));
    steps.push(format!("{} thousandths, printed as {printed}", minus(permille)));
    lines.equation(&name, &steps);
    meaning_of_fragmentation(lines, permille);
}

fn meaning_of_fragmentation(lines: &mut Lines<'_>, permille: i64) {
    match permille {
        ..0 => {
            lines.meaning(
                "below 0 without being −1: all that is free is one single block, smaller than the request. \
                 It is memory that is lacking, not contiguity.",
            );
            lines.meaning(&format!(
                "C divides towards zero: {} / 1000 is 0 and the remainder is {}, so `%d.%03d` prints {}.",
                minus(permille),
                minus(permille % 1000),
                kernel_decimal(permille)
            ));
        }
        0..=500 => lines.meaning(
            "nearer to 0: the request fails rather for lack of memory, and freeing some helps more than \
             compaction. The kernel compacts only above vm.extfrag_threshold (500 unless changed).",
        ),
        _ => lines.meaning(
            "nearer to 1: there is memory, but in pieces, and compaction is what helps. The kernel compacts \
             above vm.extfrag_threshold (500 unless changed).",
        ),
    }
}

fn explain_paper(lines: &mut Lines<'_>, areas: &FreeAreas, order: Order) {
    let j = order.0;
    let name = format!("F_i({j}) of the paper");
    let blocks = areas.blocks_total();
    if blocks == 0 {
        lines.equation(&name, &["0.000, since no block is free".to_owned()]);
        return;
    }
    let value = frag::fragmentation_paper(areas, order);
    lines.equation(
        &name,
        &[
            format!("1 − (free / 2^{j}) / blocks"),
            format!("1 − ({} / {}) / {blocks}", areas.free_pages(), order.pages().0),
            format!("{value:.3}").replace('-', "−"),
        ],
    );
    lines.meaning(
        "the same without the kernel's \"1 +\", and without its special case: where a request can be met, \
         the value has no meaning and may be below 0.",
    );
}

fn minus(number: i64) -> String {
    number.to_string().replace('-', "−")
}
