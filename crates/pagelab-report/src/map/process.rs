//! Text of `pagelab map --pid`: contiguity of the memory behind a process, and the sizes of its folios.

use pagelab_model::process_map::{MappingBacking, PhysicalBacking, ProcessMap};
use pagelab_model::{Bytes, Order, Pages};

use crate::run::clip_start;
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, TextReport};

/// Mappings shown on a terminal, at most; JSON has all.
const MAPPINGS_MAX: usize = 16;

/// Reach of 16 contiguous entries of arm64 with pages of 4 KiB; AMD processors join some entries in the TLB
/// too.
const CONTPTE_BYTES: Bytes = Bytes(64 << 10);

/// Memory of a process with its report.
#[derive(Debug)]
pub struct ProcessReport {
    /// Process.
    pub map: ProcessMap,
    /// Shows every mapping, also those without memory, and not only the largest.
    pub shows_all: bool,
}

impl ProcessReport {
    /// Totals of all mappings.
    pub fn total_backing(&self) -> PhysicalBacking {
        let mut total = PhysicalBacking::new();
        self.map.mappings.iter().for_each(|mapping| total.merge(&mapping.backing));
        total
    }

    fn format_size(&self, pages: u64) -> String {
        format_bytes(Pages(pages).to_bytes(self.map.page_size))
    }

    fn format_block_size(&self, order: usize) -> String {
        format_bytes(self.map.page_size.block_bytes(Order(order as u8)))
    }

    /// Returns the order of 64 KiB, if that is larger than a page.
    pub fn contpte_order(&self) -> Option<Order> {
        self.map.page_size.order_for_size(CONTPTE_BYTES).filter(|order| order.0 > 0)
    }

    /// Returns the memory that entries of PMD size map now, according to smaps.
    pub fn pmd_mapped_bytes(&self) -> Bytes {
        let fields =
            ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Private_Hugetlb", "Shared_Hugetlb"];
        let of = |mapping: &MappingBacking| {
            fields.iter().filter_map(|name| mapping.mapping.fields_kib.get(name)).fold(0, u64::saturating_add)
        };
        Bytes::from_kib(self.map.mappings.iter().map(of).fold(0, u64::saturating_add))
    }

    /// Returns the answer in one sentence.
    pub fn format_headline(&self) -> String {
        let total = self.total_backing();
        if total.present == 0 {
            return format!(
                "{} has no user memory: it is a kernel thread or has exited",
                self.process_name()
            );
        }
        let share = |pages: u64| format_percent(pages as f64 / total.known_pages().max(1) as f64);
        let pmd = self.map.pmd_order.index().min(PhysicalBacking::ORDER_COUNT - 1);
        let contiguous = self.contpte_order().map_or_else(String::new, |order| {
            format!(
                "{} mappable by contiguous PTEs ({}), ",
                share(total.aligned_pages[order.index()]),
                format_bytes(CONTPTE_BYTES)
            )
        });
        format!(
            "{}: {} present; {contiguous}{} mappable by PMDs ({}), {} mapped by PMDs now",
            self.process_name(),
            self.format_size(total.present),
            share(total.aligned_pages[pmd]),
            self.format_block_size(pmd),
            format_bytes(self.pmd_mapped_bytes())
        )
    }

    fn process_name(&self) -> String {
        let name = self.map.name.as_deref().unwrap_or("process");
        format!("{name} (pid {})", self.map.pid)
    }

    /// Returns changes during the reading and parts that were not visible, in sentences without a trailing
    /// dot.
    pub fn list_notes(&self) -> Vec<String> {
        let (inconsistency, total) = (&self.map.inconsistency, self.total_backing());
        let before = inconsistency.resident_before;
        let after = inconsistency.resident_after.filter(|after| *after != before);
        let counted = |number: u64, what: &str| {
            (number > 0).then(|| format!("{} {what}", format_count(u128::from(number))))
        };
        let notes = [
            inconsistency
                .has_ended
                .then(|| "the process exited during the read: the output is incomplete".to_owned()),
            counted(inconsistency.mappings_changed, "mappings changed during the read"),
            after.map(|after| {
                let moved = format_bytes(Bytes(after.0.abs_diff(before.0)));
                format!("resident memory changed by {moved} during the read")
            }),
            counted(total.changed_pages, "pages migrated during the read; they count in no run and no folio"),
            counted(total.zero_pages, "pages map the zero page"),
            counted(
                total.other_compound_pages,
                "pages belong to compound pages that are not folios of 2^n pages: driver memory or torn \
                 reads",
            ),
            self.map
                .folios_known
                .as_ref()
                .err()
                .map(|absence| format!("folio sizes are unknown: {}: {}", absence.source, absence.reason())),
        ];
        notes.into_iter().flatten().collect()
    }

    /// Renders the complete text.
    pub fn to_text(&self, style: &TextStyle) -> String {
        let mut output = TextReport::new(*style);
        output.add_bold_text(&self.format_headline());
        let took = self.map.read_ns as f64 / 1e6;
        let with = self.map.mappings.iter().filter(|mapping| mapping.backing.present > 0).count();
        let about = format!("{} mappings, {with} with memory, read in {took:.0} ms", self.map.mappings.len());
        output.add_dim_indented(&about);
        output.add_notes(&self.list_notes());
        self.write_orders(&mut output);
        self.write_mappings(&mut output);
        output.into_text()
    }

    fn write_orders(&self, output: &mut TextReport) {
        let total = self.total_backing();
        let last = |counts: &[u64]| counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let Some(top) = [&total.run_pages, &total.folio_pages].into_iter().map(|counts| last(counts)).max()
        else {
            return;
        };
        output.add_heading("by size");
        let amount = |pages: u64| if pages == 0 { "—".to_owned() } else { self.format_size(pages) };
        let orders = 0..=top.max(self.map.pmd_order.index()).min(PhysicalBacking::ORDER_COUNT - 1);
        RowTable::<usize>::new()
            .right("order", usize::to_string)
            .right("size", |&order| self.format_block_size(order))
            .right("runs", |&order| format_count(u128::from(total.runs_by_order[order])))
            .right("in runs", |&order| amount(total.run_pages[order]))
            .right("aligned", |&order| amount(total.aligned_pages[order]))
            .right("in folios", |&order| match self.map.folios_known {
                Ok(_) => amount(total.folio_pages[order]),
                Err(_) => "?".to_owned(),
            })
            .add_to(output, 2, orders);
        let longest = format!(
            "longest run {} pages, {}",
            format_count(u128::from(total.longest_run_pages)),
            self.format_size(total.longest_run_pages)
        );
        output.add_dim_indented(&format!(
            "{longest}. runs: contiguous in physical and virtual memory, from this size up to the next; \
             aligned: mappable by entries of this size; in folios: allocated as one unit"
        ));
    }

    fn write_mappings(&self, output: &mut TextReport) {
        let mut shown_mappings: Vec<&MappingBacking> = self.map.mappings.iter().collect();
        if !self.shows_all {
            shown_mappings.retain(|mapping| mapping.backing.present > 0);
            shown_mappings.sort_by_key(|mapping| std::cmp::Reverse(mapping.backing.present));
            shown_mappings.truncate(MAPPINGS_MAX);
            shown_mappings.sort_by_key(|mapping| mapping.mapping.start);
        }
        let with = self.map.mappings.iter().filter(|mapping| mapping.backing.present > 0).count();
        if shown_mappings.is_empty() {
            return;
        }
        let title = match shown_mappings.len() < with {
            true => {
                format!(
                    "the {} largest of {with} mappings with memory; --all shows all",
                    shown_mappings.len()
                )
            }
            false => "mappings".to_owned(),
        };
        output.add_heading(&title);
        let pmd = self.map.pmd_order.index().min(PhysicalBacking::ORDER_COUNT - 1);
        let contpte = self.contpte_order().map_or(0, Order::index);
        let share = |aligned: u64, of: &PhysicalBacking| match of.known_pages() {
            0 => "—".to_owned(),
            known => format_percent(aligned as f64 / known as f64),
        };
        RowTable::<&MappingBacking>::new()
            .right("address", |one| format!("{:x}", one.mapping.start))
            .left("", |one| one.mapping.permissions.clone())
            .right("present", |one| self.format_size(one.backing.present))
            .right("runs", |one| format_count(u128::from(one.backing.runs_by_order.iter().sum::<u64>())))
            .right("longest", |one| self.format_size(one.backing.longest_run_pages))
            .right(self.format_block_size(contpte), |one| {
                share(one.backing.aligned_pages[contpte], &one.backing)
            })
            .right(self.format_block_size(pmd), |one| share(one.backing.aligned_pages[pmd], &one.backing))
            .left("folios", |one| self.format_folios(&one.backing))
            .left("name", |one| clip_start(&one.mapping.name, 24))
            // The folios are left out first.
            .add_narrowed_to(
                output,
                2,
                shown_mappings,
                &[&[0, 1, 2, 3, 4, 5, 6, 7, 8], &[0, 1, 2, 3, 4, 5, 6, 8]],
            );
    }

    /// Lists the sizes of folios in a mapping, largest amounts first.
    fn format_folios(&self, backing: &PhysicalBacking) -> String {
        let mut held: Vec<(usize, u64)> =
            backing.folio_pages.iter().copied().enumerate().filter(|(_, pages)| *pages > 0).collect();
        held.sort_by_key(|&(_, pages)| std::cmp::Reverse(pages));
        let told = held.iter().take(3).map(|&(order, pages)| {
            format!("{} in {}", self.format_size(pages), self.format_block_size(order))
        });
        told.collect::<Vec<_>>().join(", ")
    }
}
