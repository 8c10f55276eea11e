//! Fragmentation of a machine's free memory: the kernel's own files, a table, a working-out, JSON.

pub mod explain;
pub mod table;

use pagelab_metrics::frag;
use pagelab_model::{BuddyInfo, FreeAreas, Order, PageSize, Reading, ZoneFree, ZoneKey};

use crate::grid::UNBROKEN;
use crate::style;

/// All that is said about the fragmentation of one reading of free blocks.
#[derive(Clone, Debug)]
pub struct FragReport {
    /// Where the free blocks are from.
    pub source: Source,
    /// Base page size.
    pub page_size: PageSize,
    /// How it was learnt, in a phrase: `sysconf`, `from the report`, `assumed`.
    pub page_size_source: String,
    /// The order that the answer is about; at most the largest there is.
    pub order: Order,
    /// Why this order, in a phrase: `a PMD huge page`.
    pub order_source: String,
    /// Free blocks by zone and order.
    pub buddyinfo: BuddyInfo,
    /// Letters of the migratetypes with free blocks, by zone and order.
    pub migratetypes: Reading<Vec<Vec<String>>>,
    /// Zones that the source names as having no memory.
    pub unpopulated: Vec<ZoneKey>,
    /// What must be known to read the numbers rightly, in sentences without a trailing dot.
    pub notes: Vec<String>,
}

/// Where free blocks are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `this machine`, a file's name, `standard input`, a saved tree's name.
    pub name: String,
    /// `buddyinfo` or `show_mem`.
    pub kind: &'static str,
    /// Where in its text the reading stands; `None` for a file of its own.
    pub place: Option<Place>,
}

/// One reading of several in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which, counted from 1.
    pub which: usize,
    /// How many there are.
    pub of: usize,
    /// Its first line, counted from 1.
    pub line: u64,
    /// What the kernel said when it printed the report: text and line.
    pub trigger: Option<(String, u64)>,
}

/// One of the kernel's two index files under `extfrag/` in debugfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFile {
    /// `unusable_index`.
    Unusable,
    /// `extfrag_index`.
    Extfrag,
}

/// What the kernel prints in one of its index files for these free blocks, byte for byte
/// (mm/vmstat.c, `unusable_show_print` and `extfrag_show_print`, since 2.6.35). Zones without memory
/// are in neither buddyinfo nor these files. extfrag_index is printed as of 5.16, by `%2d.%03d`: earlier
/// kernels put no blank before values that are not negative.
pub fn kernel_file(info: &BuddyInfo, which: KernelFile) -> String {
    let mut text = String::new();
    for zone in &info.zones {
        text.push_str(&format!("Node {}, zone {:>8} ", zone.key.node.0, zone.key.zone));
        for order in orders(&zone.areas) {
            let (permille, width) = match which {
                KernelFile::Unusable => (frag::unusable_permille(&zone.areas, order) as i64, 1),
                KernelFile::Extfrag => (frag::fragmentation_permille(&zone.areas, order), 2),
            };
            // The width is that of the quotient, which is 0 and without a sign from -999 to 999.
            let blank = if width > (permille / 1000).to_string().len() { " " } else { "" };
            text.extend([blank, &frag::kernel_decimal(permille), " "]);
        }
        text.push('\n');
    }
    text
}

impl FragReport {
    /// The answer in one sentence: the zone that has the most free memory of no use at the order.
    pub fn headline(&self) -> String {
        self.headline_unbroken().replace(UNBROKEN, " ")
    }

    /// The headline for [`crate::grid::wrap`]: numbers and their units are not torn apart.
    fn headline_unbroken(&self) -> String {
        let order = self.order;
        let size = style::bytes(self.page_size.block(order)).replace(' ', "\u{a0}");
        let unusable = |zone: &&ZoneFree| zone.areas.free_pages() - zone.areas.pages_from(order);
        // The first of equals, which `max_by_key` alone would not give.
        let worst = self.buddyinfo.zones.iter().rev().max_by_key(unusable);
        match worst {
            Some(zone) if unusable(&zone) > 0 => format!(
                "{} of the free memory in {} is unusable for {size} blocks, F_u({}){UNBROKEN}{}",
                style::percent(frag::unusable(&zone.areas, order)),
                self.zone_name(&zone.key),
                order.0,
                unusable_text(&zone.areas, order),
            ),
            _ if self.buddyinfo.free_pages() == 0 => "no memory is free in any zone".to_owned(),
            _ => format!("all free memory is usable for {size} blocks, F_u({}){UNBROKEN}0.000", order.0),
        }
    }

    /// A zone by its name, and by its node where there are several.
    fn zone_name(&self, key: &ZoneKey) -> String {
        let several = self.buddyinfo.zones.iter().any(|zone| zone.key.node != key.node);
        if several { format!("node {} {}", key.node.0, key.zone) } else { key.zone.clone() }
    }

    /// Where the numbers are from and what they are about, in one line.
    fn about(&self) -> String {
        let Source { name, kind, place } = &self.source;
        let from = match place {
            Some(Place { which, of, line, .. }) if *of > 1 => {
                let what = if *kind == "show_mem" { "report" } else { "reading" };
                format!("{name}, {what} {which} of {of} (line {line})")
            }
            _ => name.clone(),
        };
        format!(
            "{from} · {} pages ({}) · order {}: {}",
            style::bytes(self.page_size.block(Order(0))),
            self.page_size_source,
            self.order.0,
            self.order_source
        )
    }
}

/// The orders of a zone, from 0.
fn orders(areas: &FreeAreas) -> impl Iterator<Item = Order> {
    (0..areas.orders()).map(|order| Order(order as u8))
}

/// F_u as the kernel prints it.
fn unusable_text(areas: &FreeAreas, order: Order) -> String {
    frag::kernel_decimal(frag::unusable_permille(areas, order) as i64)
}

/// F_i as the kernel prints it.
fn fragmentation_text(areas: &FreeAreas, order: Order) -> String {
    frag::kernel_decimal(frag::fragmentation_permille(areas, order))
}

/// F_i as the paper defines it: 0 where no block is free.
fn paper_text(areas: &FreeAreas, order: Order) -> String {
    format!("{:.3}", frag::fragmentation_paper(areas, order))
}

#[cfg(test)]
mod tests;
