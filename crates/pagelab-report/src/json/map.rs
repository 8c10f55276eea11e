//! JSON of `pagelab map`: `docs/json.md` lists fields and units.

use pagelab_model::page_map::MemoryBlock;
use pagelab_model::process::Mapping;
use pagelab_model::process_map::{MappingBacking, PhysicalBacking, ProcessMap, ScanInconsistency};
use pagelab_model::{Bytes, FrameSpan, PageClass, PageSize, Pages};
use serde::Serialize;
use serde_json::{Value, json};

use super::document_header;
use super::object::{JsonObject, to_array};
use crate::map::check::{CheckReport, ZoneCheck};
use crate::map::difference::DifferenceReport;
use crate::map::explain::{AddressSpaceReport, ExplainedMapping};
use crate::map::process::ProcessReport;
use crate::map::{MapReport, MapSource, ZoneClasses, count_by_class, count_by_zone};
use crate::memory_picture::difference::LEGEND;
use crate::memory_picture::raster::Raster;

/// Picture in a file.
#[derive(Clone, Debug, Serialize)]
pub struct PictureFile {
    /// File.
    pub file: String,
    /// Format: `png`, `svg`, `html`.
    pub format: &'static str,
    /// Size in bytes.
    #[serde(rename = "file_bytes")]
    pub bytes: u64,
    /// Width in pixels, without the strips at the side.
    pub width: u64,
    /// Height in pixels.
    pub height: u64,
    /// Pages per pixel.
    pub pages_per_pixel: u64,
    /// Layout of pixels: `rows`, `tiles`, `hilbert`.
    pub layout: &'static str,
    /// Blend of pages: `majority`, `mix`, `worst`.
    pub blend: &'static str,
}

impl PictureFile {
    /// Describes a raster in a file.
    pub fn new(
        file: &str,
        format: &'static str,
        bytes: usize,
        raster: &Raster<'_>,
        blend: &'static str,
    ) -> PictureFile {
        PictureFile {
            file: file.to_owned(),
            format,
            bytes: bytes as u64,
            width: raster.path.width,
            height: raster.path.height,
            pages_per_pixel: raster.pixel_order.to_pages().0,
            layout: raster.path.layout.option_name(),
            blend,
        }
    }
}

/// Builds the document of a map.
pub fn map_document(report: &MapReport<'_>, picture_files: &[PictureFile]) -> Value {
    let layout = &report.map.layout;
    let zones = count_by_zone(report.map);
    let size = layout.page_size;
    document_header("map")
        .field("source", source_json(&report.source))
        .field("headline", report.format_headline())
        .field("scan_ns", report.map.ended_ns.saturating_sub(report.map.started_ns))
        .field("page_size_bytes", size.bytes())
        .field("pageblock_bytes", size.block_bytes(layout.pageblock_order).0)
        .field("scheme", report.scheme.option_name())
        .field("spans", to_array(&layout.spans, |span| frames_json(*span)))
        .field("classes", classes_json(&count_by_class(&zones), size))
        .field("zones", to_array(&zones, |zone| zone_json(zone, size)))
        .field("memory_blocks", to_array(&layout.blocks, memory_block_json))
        .field("pictures", json!(picture_files))
        .field("notes", report.notes.clone())
        .into()
}

/// Builds the document of a difference.
pub fn difference_document(report: &DifferenceReport<'_>, picture_files: &[PictureFile]) -> Value {
    let size = report.difference.layout.page_size;
    let counts = report.difference.count_by_change();
    let notes: Vec<String> = report.hotplug_notes().into_iter().chain(report.notes.clone()).collect();
    document_header("map_difference")
        .field("before", source_json(&report.before))
        .field("after", source_json(&report.after))
        .field("headline", report.format_headline())
        .field("page_size_bytes", size.bytes())
        .field("changed_pages", report.difference.changed_frames())
        .field(
            "changes",
            to_array(counts.into_iter().zip(LEGEND), |(pages, of)| {
                amounts_json(pages, size).field("change", of.name)
            }),
        )
        .field(
            "transitions",
            to_array(report.list_transitions(), |(from, to, pages)| {
                amounts_json(pages, size).field("class_before", from.name()).field("class_after", to.name())
            }),
        )
        .field("only_before", to_array(&report.difference.only_before, |run| frames_json(*run)))
        .field("only_after", to_array(&report.difference.only_after, |run| frames_json(*run)))
        .field("pictures", json!(picture_files))
        .field("notes", notes)
        .into()
}

pub(super) fn source_json(source: &MapSource) -> JsonObject {
    JsonObject::new()
        .field("name", source.name.as_str())
        .field("file", source.file.as_str())
        .optional("host_name", source.host.clone(), "not recorded in the source")
        .optional("kernel_release", source.kernel.clone(), "not recorded in the source")
        .optional("taken_realtime_ns", source.taken_realtime_ns, "not recorded in the source")
}

fn zone_json(zone: &ZoneClasses, size: PageSize) -> JsonObject {
    JsonObject::for_zone(&zone.key).field("classes", classes_json(&zone.counts, size))
}

fn classes_json(counts: &[u64; PageClass::COUNT], size: PageSize) -> Value {
    let all = PageClass::ALL.into_iter().filter(|class| counts[class.index()] > 0);
    to_array(all, |class| amounts_json(counts[class.index()], size).field("class", class.name()))
}

fn amounts_json(pages: u64, size: PageSize) -> JsonObject {
    JsonObject::new().field("pages", pages).field("bytes", Pages(pages).to_bytes(size).0)
}

/// Builds a range of page frames.
pub(crate) fn frames_json(frames: FrameSpan) -> JsonObject {
    JsonObject::new().field("first_frame", frames.first.0).field("frames", frames.count.0)
}

/// Builds a block of memory hotplug.
pub(crate) fn memory_block_json(block: &MemoryBlock) -> JsonObject {
    frames_json(block.frames).field("number", block.number).field("online", block.is_online)
}

/// Builds the document of a comparison with buddyinfo.
pub fn check_document(report: &CheckReport) -> Value {
    document_header("map_check")
        .field("source", source_json(&report.source))
        .field("headline", report.format_headline())
        .field("verdict", report.worst_verdict().verdict_name())
        .field("scan_ns", report.scan_ns)
        .field("scans", report.tries)
        .field("zones", to_array(&report.zones, zone_check_json))
        .field("notes", report.notes.clone())
        .into()
}

fn zone_check_json(zone: &ZoneCheck) -> JsonObject {
    let outside: Vec<i64> = (0..zone.order_count())
        .map(|order| i64::try_from(zone.deviation(order)).unwrap_or(i64::MAX))
        .collect();
    let outside_pages = u64::try_from(zone.deviation_pages()).unwrap_or(u64::MAX);
    JsonObject::for_zone(&zone.key)
        .field("verdict", zone.judge().verdict_name())
        .field("rebuilt_blocks", zone.from_pageflags.clone())
        .field("before_blocks", zone.buddyinfo_before.clone())
        .optional("after_blocks", zone.buddyinfo_after.clone(), "a saved tree has one buddyinfo only")
        .field("outside_blocks", outside)
        .field("outside_pages", outside_pages)
        .optional("churn_pages", zone.pages_moved, "changes during the scan are unknown")
        .field("per_cpu_pages", zone.pcp_pages)
}

/// Builds the document of one process.
pub fn process_document(report: &ProcessReport) -> Value {
    let map = &report.map;
    let contiguous_order = report.contpte_order().map(|order| order.0);
    let ScanInconsistency { mappings_changed, resident_before, resident_after, has_ended } =
        map.inconsistency;
    let mapping = |one: &MappingBacking| {
        address_range_json(&one.mapping).field("behind", backing_json(&one.backing, map))
    };
    document_header("map_process")
        .field("pid", map.pid)
        .optional("process_name", map.name.clone(), "not reported by the kernel")
        .field("headline", report.format_headline())
        .field("page_size_bytes", map.page_size.bytes())
        .field("pmd_order", map.pmd_order.0)
        .optional("contiguous_order", contiguous_order, "base pages are 64 KiB or larger")
        .field("pmd_mapped_bytes", report.pmd_mapped_bytes().0)
        .field("read_ns", map.read_ns)
        .field("ended", has_ended)
        .field("mappings_changed", mappings_changed)
        .field("resident_before_bytes", resident_before.0)
        .optional("resident_after_bytes", resident_after.map(|bytes| bytes.0), "the process had exited")
        .field("total", backing_json(&report.total_backing(), map))
        .field("mappings", to_array(&map.mappings, mapping))
        .field("notes", report.list_notes())
        .into()
}

/// Builds the document of an address space.
pub fn address_space_document(space: &AddressSpaceReport) -> Value {
    let unknown = "not reported by this kernel";
    let settings = &space.settings;
    let mapping = |one: ExplainedMapping<'_>| {
        let resident = one.mapping.fields_kib.get("Rss").map(|kib| Bytes::from_kib(kib).0);
        address_range_json(one.mapping)
            .optional("resident_bytes", resident, unknown)
            .field("part", one.role.name())
            .field("description", one.description)
            .optional("huge_eligible", one.mapping.thp_eligible, unknown)
            .field("huge_reason", one.eligibility.name())
            .field("huge_reason_text", one.reason)
    };
    document_header("address_space")
        .field("pid", space.pid)
        .optional("process_name", space.name.clone(), "not reported by the kernel")
        .field("headline", space.format_headline())
        .optional("huge_page_bytes", settings.pmd_size.map(|size| size.0), unknown)
        .optional("thp_enabled", settings.enabled.clone(), unknown)
        .optional("shmem_enabled", settings.shmem_enabled.clone(), unknown)
        .optional("thp_of_process", settings.process_enabled, unknown)
        .field("mappings", to_array(space.explain_mappings(), mapping))
        .into()
}

fn address_range_json(mapping: &Mapping) -> JsonObject {
    JsonObject::new()
        .field("start", mapping.start)
        .field("end", mapping.end)
        .field("permissions", mapping.permissions.as_str())
        .field("mapping_name", mapping.name.as_str())
}

/// Arrays by order, up to the last non-zero value.
fn backing_json(backing: &PhysicalBacking, map: &ProcessMap) -> Value {
    let trimmed = |counts: &[u64]| {
        let end = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        counts[..end].to_vec()
    };
    let folios = map.folios_known.as_ref().map(|()| trimmed(&backing.folio_pages)).map_err(Clone::clone);
    JsonObject::new()
        .field("present_pages", backing.present)
        .field("swapped_pages", backing.swapped)
        .field("zero_pages", backing.zero_pages)
        .field("hidden_pages", backing.hidden_pages)
        .field("moved_pages", backing.changed_pages)
        .field("odd_pages", backing.other_compound_pages)
        .field("longest_run_pages", backing.longest_run_pages)
        .field("runs", trimmed(&backing.runs_by_order))
        .field("run_pages", trimmed(&backing.run_pages))
        .field("aligned_pages", trimmed(&backing.aligned_pages))
        .with_reading("folio_pages", &folios, |pages| pages.clone().into())
        .into()
}
