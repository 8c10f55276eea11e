//! Fragmentation of a machine's free memory: the kernel's own files, a table, a calculation, JSON.

use pagelab_metrics::capped_index::{IndexBounds, format_bounds, fragmentation_bounds, unusable_bounds};
use pagelab_metrics::fragmentation_index::{
    all_would_succeed, format_kernel_decimal, format_unusable, fragmentation_paper, fragmentation_permille,
    unusable_index, unusable_permille,
};
use pagelab_model::failed_request::{FailedRequest, ZoneWatermark};
use pagelab_model::pagetype::{CappedAreas, Pagetypeinfo};
use pagelab_model::{BuddyInfo, Bytes, FreeAreas, Order, PageSize, Reading, ZoneKey};

use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{NO_BREAK_SPACE, RowTable, display_width};

mod migratetypes;
mod request_verdict;

/// Report on the fragmentation of one reading of free blocks.
#[derive(Clone, Debug)]
pub struct FragReport {
    /// Source of the free blocks.
    pub source: FreeBlockSource,
    /// Base page size.
    pub page_size: PageSize,
    /// Source of the page size, in a phrase: `sysconf`, `from the report`, `assumed`.
    pub page_size_source: String,
    /// Order of the request, at most the largest order.
    pub order: Order,
    /// Reason for this order, in a phrase: `a PMD huge page`.
    pub order_source: String,
    /// Free blocks by zone and order; at least, where pagetypeinfo caps a count.
    pub buddyinfo: BuddyInfo,
    /// Free blocks and pageblocks by migratetype, if the source is a pagetypeinfo.
    pub pagetypeinfo: Option<Pagetypeinfo>,
    /// Letters of the migratetypes with free blocks, by zone and order.
    pub migratetypes: Reading<Vec<Vec<String>>>,
    /// The request that failed, if a report states its gfp flags.
    pub request: Option<FailedRequest>,
    /// For each zone its watermark, where a report states it.
    pub watermarks: Vec<Option<ZoneWatermark>>,
    /// Zones that the source lists as having no memory.
    pub unpopulated: Vec<ZoneKey>,
    /// Caveats of the numbers, in sentences without a trailing dot.
    pub notes: Vec<String>,
}

/// Source of free blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeBlockSource {
    /// `this machine`, a file's name, `standard input`, a saved tree's name.
    pub name: String,
    /// `buddyinfo`, `pagetypeinfo` or `show_mem`.
    pub kind: &'static str,
    /// Place of the reading in its text; `None` for a separate file.
    pub position: Option<ReadingPosition>,
}

/// One of several readings in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadingPosition {
    /// Number of the reading, counted from 1.
    pub index: usize,
    /// Number of readings.
    pub total: usize,
    /// Its first line, counted from 1.
    pub line: u64,
    /// Text of the kernel when it printed the report, and its line.
    pub trigger: Option<(String, u64)>,
}

/// One of the kernel's two index files under `extfrag/` in debugfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFile {
    /// `unusable_index`.
    UnusableIndex,
    /// `extfrag_index`.
    FragmentationIndex,
}

/// Returns the contents of one of the kernel's index files for these free blocks, byte for byte (mm/vmstat.c,
/// `unusable_show_print` and `extfrag_show_print`, since 2.6.35). Zones without memory are in neither
/// buddyinfo nor these files. extfrag_index is printed as since 5.16, with `%2d.%03d`: earlier kernels print
/// no blank before non-negative values.
pub fn format_kernel_file(info: &BuddyInfo, kernel_file: KernelFile) -> String {
    let mut text = String::new();
    for zone in &info.zones {
        text.push_str(&format!("Node {}, zone {:>8} ", zone.key.node.0, zone.key.zone));
        for order in orders_of(&zone.areas) {
            let (permille, width) = match kernel_file {
                KernelFile::UnusableIndex => (unusable_permille(&zone.areas, order) as i64, 1),
                KernelFile::FragmentationIndex => (fragmentation_permille(&zone.areas, order), 2),
            };
            // The width applies to the quotient, which is 0 without a sign from -999 to 999.
            let blank = if width > (permille / 1000).to_string().len() { " " } else { "" };
            text.extend([blank, &format_kernel_decimal(permille), " "]);
        }
        text.push('\n');
    }
    text
}

/// Free blocks of a zone, with the orders of which the source caps the count.
pub(crate) struct ZoneAreas<'a> {
    pub(crate) key: &'a ZoneKey,
    pub(crate) areas: CappedAreas,
}

impl FragReport {
    /// Free blocks of all zones, in the order of the source.
    pub(crate) fn zone_areas(&self) -> Vec<ZoneAreas<'_>> {
        let zones = self.buddyinfo.zones.iter().map(|zone| {
            let counted = self.pagetypeinfo.as_ref().and_then(|types| types.free_areas(&zone.key, |_| true));
            let areas = counted.unwrap_or_else(|| CappedAreas {
                is_capped: vec![false; zone.areas.orders()],
                counts_min: zone.areas.clone(),
            });
            ZoneAreas { key: &zone.key, areas }
        });
        zones.collect()
    }

    /// Names of the zones of which the source caps a count: their sums and indices have only bounds.
    pub fn capped_zones(&self) -> Vec<String> {
        let zones = self.zone_areas();
        zones.iter().filter(|zone| !zone.areas.is_exact()).map(|zone| self.zone_name(zone.key)).collect()
    }

    /// Returns the answer in one sentence: the zone with the most unusable free memory for the order.
    pub fn format_headline(&self) -> String {
        self.format_unbroken_headline().replace(NO_BREAK_SPACE, " ")
    }

    /// Returns the headline for [`crate::text_report::wrap_text`], which does not separate numbers from their
    /// units.
    fn format_unbroken_headline(&self) -> String {
        let order = self.order;
        let size = format_bytes(self.page_size.block_bytes(order)).replace(' ', "\u{a0}");
        let unusable = |zone: &&ZoneAreas<'_>| {
            let areas = &zone.areas.counts_min;
            areas.free_pages() - areas.free_pages_from_order(order)
        };
        let zones = self.zone_areas();
        // The first of equal zones; `max_by_key` alone would return the last.
        let worst = zones.iter().rev().max_by_key(unusable);
        match worst {
            Some(zone) if unusable(&zone) > 0 => {
                let bounds = unusable_bounds(&zone.areas, order);
                let name = self.zone_name(zone.key);
                let share = unusable_index(&zone.areas.counts_min, order);
                let Some(share) = format_bounded_percent(bounds, share) else {
                    return format!("F_u for {size} blocks in {name} is unknown: its free counts are capped");
                };
                format!(
                    "{share} of the free memory in {name} is unusable for {size} blocks, \
                     F_u({}){NO_BREAK_SPACE}{}",
                    order.0,
                    format_bounds(bounds).replace(' ', "\u{a0}"),
                )
            }
            _ if self.buddyinfo.free_pages() == 0 => "no zone has free memory".to_owned(),
            _ => {
                format!("all free memory is usable for {size} blocks, F_u({}){NO_BREAK_SPACE}0.000", order.0)
            }
        }
    }

    /// Name of a zone, with its node if there are several.
    fn zone_name(&self, key: &ZoneKey) -> String {
        let several = self.buddyinfo.zones.iter().any(|zone| zone.key.node != key.node);
        if several { format!("node {} {}", key.node.0, key.zone) } else { key.zone.clone() }
    }

    /// Describes the source and the subject of the numbers in one line.
    fn describe_source(&self) -> String {
        let FreeBlockSource { name, kind, position: place } = &self.source;
        let from = match place {
            Some(ReadingPosition { index: which, total: of, line, .. }) if *of > 1 => {
                let what = if *kind == "show_mem" { "report" } else { "reading" };
                let others = if which == of { "; --report N selects another" } else { "" };
                format!("{name}, {what} {which} of {of} (line {line}{others})")
            }
            _ => name.clone(),
        };
        format!(
            "{from} · {} pages ({}) · order {}: {}",
            format_bytes(self.page_size.block_bytes(Order(0))),
            self.page_size_source,
            self.order.0,
            self.order_source
        )
    }
}

fn orders_of(areas: &FreeAreas) -> impl Iterator<Item = Order> {
    (0..areas.orders()).map(|order| Order(order as u8))
}

/// A share in percent, with the side on which the exact one is; `None` if nothing is known.
fn format_bounded_percent(bounds: IndexBounds, share: f64) -> Option<String> {
    // A bound is not rounded past the share itself.
    let step = if share < 0.1 { 1000.0 } else { 100.0 };
    match (bounds.permille_min, bounds.permille_max) {
        (min, max) if min == max => Some(format_percent(share)),
        (0, 1000) => None,
        (0, _) => Some(format!("at most {}", format_percent((share * step).ceil() / step))),
        _ => Some(format!("at least {}", format_percent((share * step).floor() / step))),
    }
}

/// F_u as the kernel prints it, or its bounds.
fn format_zone_unusable(areas: &CappedAreas, order: Order) -> String {
    format_bounds(unusable_bounds(areas, order))
}

/// F_i as the kernel prints it, or its bounds.
fn format_fragmentation(areas: &CappedAreas, order: Order) -> String {
    format_bounds(fragmentation_bounds(areas, order))
}

/// Whether the requests of all these indices would succeed.
fn is_index_left_out(bounds: impl Iterator<Item = IndexBounds>) -> bool {
    all_would_succeed(bounds.map(|bounds| bounds.exact_permille().unwrap_or_default()))
}

/// A number, with a mark if it is only a lower bound.
fn mark_lower_bound(text: String, is_exact: bool) -> String {
    if is_exact { text } else { format!("≥{text}") }
}

/// Number of free blocks of exactly one order.
fn format_block_count(areas: &CappedAreas, order: Order) -> String {
    let count = format_count(u128::from(areas.counts_min.blocks(order)));
    if areas.is_capped.get(order.index()) == Some(&true) { format!(">{count}") } else { count }
}

/// F_i as the paper defines it: 0 where no block is free.
fn format_paper_index(areas: &CappedAreas, order: Order) -> String {
    if !areas.is_exact() {
        return "capped".to_owned();
    }
    format!("{:.3}", fragmentation_paper(&areas.counts_min, order))
}

/// Contents of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// Shows the paper's form of F_i beside the kernel's.
    pub paper: bool,
    /// Shows only the requested order, not every order of every zone.
    pub is_single_order: bool,
}

const LEGEND: [&str; 2] = [
    "F_u  share of the free memory in blocks too small for the order: 0 none, 1 all",
    "F_i  −1 a block is free; else: near 0 lack of memory, near 1 fragmentation",
];
const LEGEND_LEFT_OUT: &str = "     omitted where every order has a free block";
const LEGEND_TYPES: &str = "types  U unmovable, E reclaimable, M movable, H highatomic, C CMA, I isolate";
const LEGEND_CAPPED: &str = ">    the kernel stopped counting there; sums and indices are bounds";
const LEGEND_PAPER: &str = "     paper: 1 − (free / 2^j) / blocks; meaningless if a block is free";

/// Lines under construction.
struct FragText<'a> {
    report: &'a FragReport,
    style: &'a TextStyle,
    text: String,
}

impl<'a> FragText<'a> {
    /// Begins with the answer, the source, and the caveats.
    fn begin(report: &'a FragReport, style: &'a TextStyle, trigger: Option<&(String, u64)>) -> FragText<'a> {
        let mut output = FragText { report, style, text: String::new() };
        output.write_line(&style.paint_bold(&style.wrap_text(&report.format_unbroken_headline(), 0, 2)));
        let trigger = trigger.map(|(said, line)| format!("line {line}: {said}"));
        for line in std::iter::once(report.describe_source()).chain(trigger) {
            output.write_line(&style.paint_dim(&style.wrap_text(&line, 2, 4)));
        }
        for note in &report.notes {
            output.write_line(&style.paint_alert(&style.wrap_text(&format!("note: {note}"), 2, 4)));
        }
        output
    }

    fn write_line(&mut self, line: &str) {
        self.text.extend([line, "\n"]);
    }

    /// Adds an equation, one step per line, with aligned equals signs.
    fn write_equation(&mut self, name: &str, steps: &[String]) {
        for (at, step) in steps.iter().enumerate() {
            let name = self.style.to_displayable(name);
            let name = if at == 0 { name } else { " ".repeat(display_width(&name)) };
            let line = format!("{}{NO_BREAK_SPACE}={NO_BREAK_SPACE}{step}", name.replace(' ', "\u{a0}"));
            let next = display_width(&name) + 5;
            self.write_line(&self.style.wrap_text(&line, 2, next));
        }
    }

    fn write_meaning(&mut self, line: &str) {
        self.write_line(&self.style.wrap_text(&format!("→ {line}"), 4, 6));
    }
}

/// Renders the complete text.
pub fn render_table(report: &FragReport, options: TableOptions, style: &TextStyle) -> String {
    let trigger = report.source.position.as_ref().and_then(|place| place.trigger.as_ref());
    let mut output = FragText::begin(report, style, trigger);
    output.write_line("");
    let zones = report.zone_areas();
    let mut without_index = write_summary(&mut output, &zones, options);
    let letters = report.migratetypes.as_ref().ok().filter(|_| report.pagetypeinfo.is_none());
    if let Some(types) = &report.pagetypeinfo {
        migratetypes::write_movable_summary(&mut output, types);
    }
    if !options.is_single_order {
        for (at, zone) in zones.iter().enumerate() {
            let type_letters = letters.and_then(|all| all.get(at));
            without_index |= write_orders(&mut output, zone, type_letters.map(Vec::as_slice), options);
            if let Some(types) = &report.pagetypeinfo {
                migratetypes::write_zone_types(&mut output, types, zone.key);
            }
        }
    }
    output.write_line("");
    let paper = options.paper.then_some(LEGEND_PAPER);
    let left_out = without_index.then_some(LEGEND_LEFT_OUT);
    let types = (letters.is_some() && !options.is_single_order).then_some(LEGEND_TYPES);
    let capped = (!report.capped_zones().is_empty()).then_some(LEGEND_CAPPED);
    for line in LEGEND.into_iter().chain(left_out).chain(paper).chain(types).chain(capped) {
        output.write_line(&format!("  {}", style.paint_dim(line)));
    }
    style.to_displayable(&output.text)
}

/// Writes a line per zone. Returns whether F_i is left out.
fn write_summary(output: &mut FragText<'_>, zones: &[ZoneAreas<'_>], options: TableOptions) -> bool {
    let (report, style) = (output.report, output.style);
    let (order, page_size) = (report.order, report.page_size);
    let left_out = is_index_left_out(zones.iter().map(|zone| fragmentation_bounds(&zone.areas, order)));
    let orders_max = zones.iter().map(|zone| zone.areas.counts_min.orders()).max().unwrap_or(1);
    let bars_title = format!("F_u by order 0…{}", orders_max.saturating_sub(1));
    let bars = |zone: &&ZoneAreas<'_>| match &zone.areas {
        areas if areas.is_exact() => orders_of(&areas.counts_min)
            .map(|order| style.spark_char(unusable_index(&areas.counts_min, order)))
            .collect(),
        _ => "capped".to_owned(),
    };
    let table = RowTable::<&ZoneAreas<'_>>::new()
        .right("node", |zone| zone.key.node.0.to_string())
        .left("zone", |zone| zone.key.zone.clone())
        .right("free", |zone| free_memory_text(&zone.areas, page_size))
        .right(format!("{} now", format_bytes(page_size.block_bytes(order))), |zone| {
            suitable_blocks_text(&zone.areas, order)
        })
        .right(format!("F_u({})", order.0), |zone| format_zone_unusable(&zone.areas, order))
        .right_if(!left_out, format!("F_i({})", order.0), |zone| format_fragmentation(&zone.areas, order))
        .right_if(options.paper, "paper", |zone| format_paper_index(&zone.areas, order))
        .left_if(!options.is_single_order, bars_title, bars);
    table.lines(2, zones).iter().for_each(|line| output.write_line(line));
    if !report.unpopulated.is_empty() {
        let names: Vec<String> =
            report.unpopulated.iter().map(|key| format!("node {} {}", key.node.0, key.zone)).collect();
        let line = format!("zones without memory: {}", names.join(", "));
        output.write_line(&style.wrap_text(&line, 2, 4));
    }
    left_out
}

/// Writes every order of one zone. Returns whether F_i is left out.
fn write_orders(
    output: &mut FragText<'_>,
    zone: &ZoneAreas<'_>,
    type_letters: Option<&[String]>,
    options: TableOptions,
) -> bool {
    let (report, style, areas) = (output.report, output.style, &zone.areas);
    let orders = || orders_of(&zone.areas.counts_min);
    output.write_line("");
    output.write_line(&style.paint_bold(&format!("  node {}, zone {}", zone.key.node.0, zone.key.zone)));
    let left_out = is_index_left_out(orders().map(|order| fragmentation_bounds(areas, order)));
    let letters = type_letters.unwrap_or_default();
    let table = RowTable::<Order>::new()
        .right("order", |order| order.0.to_string())
        .right("block", |order| format_bytes(report.page_size.block_bytes(*order)))
        .right("free blocks", |order| format_block_count(areas, *order))
        .right("usable pages", |order| {
            let pages = format_count(areas.counts_min.free_pages_from_order(*order));
            mark_lower_bound(pages, areas.is_exact_from(*order))
        })
        .right("F_u", |order| format_zone_unusable(areas, *order))
        .right_if(!left_out, "F_i", |order| format_fragmentation(areas, *order))
        .right_if(options.paper, "paper", |order| format_paper_index(areas, *order))
        .left_if(type_letters.is_some(), "types", |order| {
            letters.get(order.index()).cloned().unwrap_or_default()
        });
    for (at, line) in table.lines(2, orders()).into_iter().enumerate() {
        let line = if at == report.order.index() + 1 { style.paint_bold(&line) } else { line };
        output.write_line(&line);
    }
    left_out
}

/// Formats the free memory of a zone, in pages if the bytes exceed 64 bits.
fn free_memory_text(areas: &CappedAreas, page_size: PageSize) -> String {
    let pages = areas.counts_min.free_pages();
    let amount = match pages.checked_mul(u128::from(page_size.bytes())).and_then(|b| u64::try_from(b).ok()) {
        Some(amount) => format_bytes(Bytes(amount)),
        None => format!("{} pages", format_count(pages)),
    };
    mark_lower_bound(amount, areas.is_exact())
}

/// Formats the number of blocks of an order that could be allocated.
fn suitable_blocks_text(areas: &CappedAreas, order: Order) -> String {
    let blocks = format_count(areas.counts_min.blocks_suitable(order));
    mark_lower_bound(blocks, areas.is_exact_from(order))
}

/// Renders the complete text.
pub fn render_explanation(report: &FragReport, paper: bool, style: &TextStyle) -> String {
    let mut output = FragText::begin(report, style, None);
    for (at, zone) in report.zone_areas().iter().enumerate() {
        output.write_line("");
        output.write_line(&style.paint_bold(&zone_title(report, zone.key)));
        match zone.areas.is_exact() {
            true => explain_zone(&mut output, &zone.areas.counts_min, report.order, paper),
            false => migratetypes::explain_capped_zone(&mut output, &zone.areas, report.order),
        }
        if zone.areas.counts_min.blocks_suitable(report.order) > 0 {
            request_verdict::explain(&mut output, at);
        }
        if let Some(types) = &report.pagetypeinfo {
            migratetypes::explain_movable_request(&mut output, types, zone.key);
        }
    }
    style.to_displayable(&output.text)
}

fn zone_title(report: &FragReport, key: &ZoneKey) -> String {
    let order = report.order;
    format!(
        "node {}, zone {}: order {}, blocks of 2^{} = {} pages, {}",
        key.node.0,
        key.zone,
        order.0,
        order.0,
        format_count(u128::from(order.to_pages().0)),
        format_bytes(report.page_size.block_bytes(order))
    )
}

fn explain_zone(output: &mut FragText<'_>, areas: &FreeAreas, order: Order, paper: bool) {
    let counts: Vec<String> = areas.counts().iter().map(u64::to_string).collect();
    let largest = areas.orders().saturating_sub(1);
    output.write_equation(
        &format!("k(i), i = 0…{largest}"),
        &[format!("{} free blocks of 2^i pages", counts.join(" "))],
    );
    output.write_equation("free  ", &sum_steps(areas, Order(0), "Σ 2^i × k(i) over all i".to_owned()));
    output.write_equation("usable", &sum_steps(areas, order, format!("Σ 2^i × k(i) over i ≥ {}", order.0)));
    output.write_equation("blocks", &[format!("Σ k(i) over all i = {}", areas.blocks_total())]);
    output.write_line("");
    explain_unusable(output, areas, order);
    output.write_line("");
    explain_fragmentation(output, areas, order);
    if paper {
        output.write_line("");
        explain_paper(output, areas, order);
    }
}

/// Returns the steps of a sum of pages: the formula, some of its terms, the result.
fn sum_steps(areas: &FreeAreas, min_order: Order, formula: String) -> Vec<String> {
    const TERMS_MAX: usize = 12;
    let terms: Vec<String> = orders_of(areas)
        .skip(min_order.index())
        .filter(|&order| areas.blocks(order) > 0)
        .map(|order| format!("{}×{}", order.to_pages().0, areas.blocks(order)))
        .collect();
    let result = areas.free_pages_from_order(min_order).to_string();
    let more = if terms.len() > TERMS_MAX { " + …" } else { "" };
    match terms.len() {
        0 => vec![format!("{formula} = 0")],
        shown => vec![formula, format!("{}{more}", terms[..shown.min(TERMS_MAX)].join(" + ")), result],
    }
}

fn explain_unusable(output: &mut FragText<'_>, areas: &FreeAreas, order: Order) {
    let name = format!("F_u({})", order.0);
    let free = areas.free_pages();
    if free == 0 {
        output.write_equation(&name, &["1.000, because no memory is free".to_owned()]);
        output.write_meaning("no memory is free; the kernel prints 1, because nothing is usable.");
        return;
    }
    let usable = areas.free_pages_from_order(order);
    let unusable = free - usable;
    let permille = unusable_permille(areas, order);
    output.write_equation(
        &name,
        &[
            "(free − usable) / free".to_owned(),
            format!("({free} − {usable}) / {free}"),
            format!("{unusable} × 1000 / {free} thousandths, truncated to an integer"),
            format!("{permille} thousandths, printed as {}", format_unusable(areas, order)),
        ],
    );
    output.write_meaning(&match unusable {
        0 => "every free page is in a block that is large enough.".to_owned(),
        _ if usable == 0 => "no free page is in a block that is large enough.".to_owned(),
        _ => format!(
            "{} of the free memory is in blocks that are too small for this request.",
            format_percent(unusable_index(areas, order))
        ),
    });
}

fn explain_fragmentation(output: &mut FragText<'_>, areas: &FreeAreas, order: Order) {
    let j = order.0;
    let name = format!("F_i({j})");
    let permille = fragmentation_permille(areas, order);
    let printed = format_kernel_decimal(permille);
    let blocks = areas.blocks_total();
    let suitable = areas.blocks_suitable(order);
    if blocks == 0 {
        output.write_equation(&name, &[format!("{printed}, because no block is free")]);
        output.write_meaning(
            "0 means that the request fails for lack of memory, not because of fragmentation.",
        );
        return;
    }
    if suitable > 0 {
        output.write_equation(
            &name,
            &[format!("{printed}, because usable / 2^{j} = {suitable} blocks are free now")],
        );
        output.write_meaning(
            "F_i explains why a request finds no block. Here a block is free, so the kernel prints −1.",
        );
        return;
    }
    let free = areas.free_pages();
    let size = order.to_pages().0;
    let mut steps = vec![
        format!("1 − (1 + free / 2^{j}) / blocks"),
        format!("1000 − (1000 + {free} × 1000 / {size}) / {blocks} thousandths"),
    ];
    if let Some(needed) = free.checked_mul(1000).map(|thousand| thousand / u128::from(size)) {
        steps.push(format!("1000 − (1000 + {needed}) / {blocks}, each quotient truncated to an integer"));
    }
    let quotient = 1000 - i128::from(permille);
    steps.push(format!("1000 − {quotient}"));
    steps.push(format!("{} thousandths, printed as {printed}", format_signed(permille)));
    output.write_equation(&name, &steps);
    write_fragmentation_meaning(output, permille);
}

fn write_fragmentation_meaning(output: &mut FragText<'_>, permille: i64) {
    match permille {
        ..0 => {
            output.write_meaning(
                "below 0 but not −1: the free memory is a single block, smaller than the request. The \
                 request fails for lack of memory, not because of fragmentation.",
            );
            output.write_meaning(&format!(
                "C division truncates towards zero: {} / 1000 is 0 and the remainder is {}, so `%d.%03d` \
                 prints {}.",
                format_signed(permille),
                format_signed(permille % 1000),
                format_kernel_decimal(permille)
            ));
        }
        0..=500 => output.write_meaning(
            "closer to 0: the request fails mainly for lack of memory; freeing memory helps more than \
             compaction. The kernel compacts only above vm.extfrag_threshold (default 500).",
        ),
        _ => output.write_meaning(
            "closer to 1: the request fails mainly because of fragmentation, and compaction helps. The \
             kernel compacts above vm.extfrag_threshold (default 500).",
        ),
    }
}

fn explain_paper(output: &mut FragText<'_>, areas: &FreeAreas, order: Order) {
    let j = order.0;
    let name = format!("F_i({j}) of the paper");
    let blocks = areas.blocks_total();
    if blocks == 0 {
        output.write_equation(&name, &["0.000, because no block is free".to_owned()]);
        return;
    }
    let value = fragmentation_paper(areas, order);
    output.write_equation(
        &name,
        &[
            format!("1 − (free / 2^{j}) / blocks"),
            format!("1 − ({} / {}) / {blocks}", areas.free_pages(), order.to_pages().0),
            format!("{value:.3}").replace('-', "−"),
        ],
    );
    output.write_meaning(
        "the kernel's formula without \"1 +\" and without the special case: if a block is free, the value is \
         meaningless and may be below 0.",
    );
}

fn format_signed(number: i64) -> String {
    number.to_string().replace('-', "−")
}

#[cfg(test)]
mod tests;
