//! What `pagelab map --pid` says: how contiguous the memory behind a process is, and in folios of which
//! sizes.

use pagelab_model::process_map::{Behind, MappingMap, ProcessMap};
use pagelab_model::{Bytes, Order, Pages};

use crate::style::{Style, bytes, count, percent};
use crate::text::{Column, Page};

/// Mappings shown on a terminal; all of them stand in JSON.
const MAPPINGS_SHOWN: usize = 16;

/// What 16 contiguous entries of arm64 map with pages of 4 KiB; processors of AMD join some in the TLB too.
const CONTIGUOUS: Bytes = Bytes(64 << 10);

/// A process's memory and what is said about it.
#[derive(Debug)]
pub struct ProcessReport {
    /// The process.
    pub map: ProcessMap,
    /// Every mapping, also those without memory, and not only the largest.
    pub all: bool,
}

impl ProcessReport {
    /// All mappings in sum.
    pub fn total(&self) -> Behind {
        let mut total = Behind::new();
        self.map.mappings.iter().for_each(|mapping| total.add(&mapping.behind));
        total
    }

    fn size(&self, pages: u64) -> String {
        bytes(Pages(pages).bytes(self.map.page_size))
    }

    fn block(&self, order: usize) -> String {
        bytes(self.map.page_size.block(Order(order as u8)))
    }

    /// The order of 64 KiB, where that is larger than a page.
    pub fn contiguous_order(&self) -> Option<Order> {
        self.map.page_size.order_of(CONTIGUOUS).filter(|order| order.0 > 0)
    }

    /// Memory that is mapped by entries of PMD size now, by smaps.
    pub fn pmd_mapped(&self) -> Bytes {
        let fields =
            ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Private_Hugetlb", "Shared_Hugetlb"];
        let of = |mapping: &MappingMap| {
            fields.iter().filter_map(|name| mapping.mapping.fields_kib.get(name)).fold(0, u64::saturating_add)
        };
        Bytes::from_kib(self.map.mappings.iter().map(of).fold(0, u64::saturating_add))
    }

    /// The answer in one sentence.
    pub fn headline(&self) -> String {
        let total = self.total();
        if total.present == 0 {
            return format!("{} has no memory of its own: a kernel thread, or it has ended", self.name());
        }
        let share = |pages: u64| percent(pages as f64 / total.known().max(1) as f64);
        let pmd = self.map.pmd_order.index().min(Behind::ORDERS - 1);
        let contiguous = self.contiguous_order().map_or_else(String::new, |order| {
            format!(
                "{} could be mapped by {} of contiguous entries, ",
                share(total.aligned_pages[order.index()]),
                bytes(CONTIGUOUS)
            )
        });
        format!(
            "{}: {} present; {contiguous}{} by entries of PMD size ({}), {} is so now",
            self.name(),
            self.size(total.present),
            share(total.aligned_pages[pmd]),
            self.block(pmd),
            bytes(self.pmd_mapped())
        )
    }

    fn name(&self) -> String {
        let name = self.map.name.as_deref().unwrap_or("process");
        format!("{name} (pid {})", self.map.pid)
    }

    /// What changed while it was read, and what could not be seen, in sentences without a trailing dot.
    pub fn notes(&self) -> Vec<String> {
        let (tear, total) = (&self.map.tear, self.total());
        let mut notes = Vec::new();
        if tear.ended {
            notes.push("the process ended while it was read: what is shown is a part of it".to_owned());
        }
        if tear.mappings_changed > 0 {
            notes.push(format!(
                "{} mappings changed while they were read",
                count(u128::from(tear.mappings_changed))
            ));
        }
        if let Some(after) = tear.resident_after.filter(|after| *after != tear.resident_before) {
            let moved = Bytes(after.0.abs_diff(tear.resident_before.0));
            notes.push(format!("resident memory changed by {} while it was read", bytes(moved)));
        }
        if total.moved > 0 {
            let pages = count(u128::from(total.moved));
            notes.push(format!("{pages} pages moved while they were read and are in no run and no folio"));
        }
        if total.zero > 0 {
            let pages = count(u128::from(total.zero));
            notes.push(format!("{pages} pages show the kernel's zero page, which is nobody's memory"));
        }
        if total.odd > 0 {
            let pages = count(u128::from(total.odd));
            notes.push(format!(
                "{pages} pages are of compound pages that are no folio of 2^n pages: drivers, tears"
            ));
        }
        if let Err(absence) = &self.map.folios_known {
            notes.push(format!("folios are not known: {}: {}", absence.source, absence.reason()));
        }
        notes
    }

    /// The whole text.
    pub fn text(&self, style: &Style) -> String {
        let mut page = Page::new(*style);
        page.hanging_bold("", &self.headline());
        let took = self.map.read_ns as f64 / 1e6;
        let with = self.map.mappings.iter().filter(|mapping| mapping.behind.present > 0).count();
        let about = format!("{} mappings, {with} with memory, read in {took:.0} ms", self.map.mappings.len());
        page.hanging_dim("  ", &about);
        for note in self.notes() {
            page.hanging("  ", &format!("note: {note}"));
        }
        self.orders(&mut page);
        self.mappings(&mut page);
        page.finish()
    }

    fn orders(&self, page: &mut Page) {
        let total = self.total();
        let last = |counts: &[u64]| counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let Some(top) = [&total.run_pages, &total.folio_pages].into_iter().map(|counts| last(counts)).max()
        else {
            return;
        };
        page.heading("by size");
        let amount = |pages: u64| if pages == 0 { "—".to_owned() } else { self.size(pages) };
        let rows: Vec<Vec<String>> = (0..=top.max(self.map.pmd_order.index()).min(Behind::ORDERS - 1))
            .map(|order| {
                vec![
                    order.to_string(),
                    self.block(order),
                    count(u128::from(total.runs[order])),
                    amount(total.run_pages[order]),
                    amount(total.aligned_pages[order]),
                    if self.map.folios_known.is_ok() {
                        amount(total.folio_pages[order])
                    } else {
                        "?".to_owned()
                    },
                ]
            })
            .collect();
        let columns = ["order", "size", "runs", "in them", "aligned", "in folios"].map(Column::right);
        page.table(2, &columns, &rows);
        let longest =
            format!("longest run {} pages, {}", count(u128::from(total.longest)), self.size(total.longest));
        page.hanging_dim(
            "  ",
            &format!(
                "{longest}. A run is contiguous in memory and in the address space, from this size up to the \
                 next; aligned: what entries of this size could map; folios: what the kernel made as one"
            ),
        );
    }

    fn mappings(&self, page: &mut Page) {
        let mut shown: Vec<&MappingMap> = self.map.mappings.iter().collect();
        if !self.all {
            shown.retain(|mapping| mapping.behind.present > 0);
            shown.sort_by_key(|mapping| std::cmp::Reverse(mapping.behind.present));
            shown.truncate(MAPPINGS_SHOWN);
            shown.sort_by_key(|mapping| mapping.mapping.start);
        }
        let with = self.map.mappings.iter().filter(|mapping| mapping.behind.present > 0).count();
        if shown.is_empty() {
            return;
        }
        let title = match shown.len() < with {
            true => {
                format!("the {} largest of {with} mappings with memory; --all for every one", shown.len())
            }
            false => "mappings".to_owned(),
        };
        page.heading(&title);
        let pmd = self.map.pmd_order.index().min(Behind::ORDERS - 1);
        let near = self.contiguous_order().map_or(0, Order::index);
        let share = |aligned: u64, of: &Behind| match of.known() {
            0 => "—".to_owned(),
            known => percent(aligned as f64 / known as f64),
        };
        let rows: Vec<Vec<String>> = shown
            .iter()
            .map(|one| {
                let behind = &one.behind;
                vec![
                    format!("{:x}", one.mapping.start),
                    one.mapping.permissions.clone(),
                    self.size(behind.present),
                    count(u128::from(behind.runs.iter().sum::<u64>())),
                    self.size(behind.longest),
                    share(behind.aligned_pages[near], behind),
                    share(behind.aligned_pages[pmd], behind),
                    self.folios(behind),
                    end_of(&one.mapping.name, 24),
                ]
            })
            .collect();
        let near = self.block(near);
        let pmd = self.block(pmd);
        let columns = [
            Column::right("address"),
            Column::left(""),
            Column::right("present"),
            Column::right("runs"),
            Column::right("longest"),
            Column::right(&near),
            Column::right(&pmd),
            Column::left("folios"),
            Column::left("name"),
        ];
        if !page.table_if_it_fits(2, &columns, &rows) {
            // The folios and the name go into a line of their own.
            let short: Vec<Vec<String>> = rows.iter().map(|row| [&row[..7], &row[8..]].concat()).collect();
            let columns = [&columns[..7], &columns[8..]].concat();
            page.table(2, &columns, &short);
        }
    }

    /// The sizes of folios in a mapping, largest amounts first.
    fn folios(&self, behind: &Behind) -> String {
        let mut held: Vec<(usize, u64)> =
            behind.folio_pages.iter().copied().enumerate().filter(|(_, pages)| *pages > 0).collect();
        held.sort_by_key(|&(_, pages)| std::cmp::Reverse(pages));
        let told = held
            .iter()
            .take(3)
            .map(|&(order, pages)| format!("{} in {}", self.size(pages), self.block(order)));
        told.collect::<Vec<_>>().join(", ")
    }
}

/// The end of a name, which tells more than its beginning.
fn end_of(name: &str, most: usize) -> String {
    let signs = name.chars().count();
    match signs > most {
        true => format!("…{}", name.chars().skip(signs - most + 1).collect::<String>()),
        false => name.to_owned(),
    }
}
