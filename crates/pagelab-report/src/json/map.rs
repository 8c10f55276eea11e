//! The JSON of `pagelab map`: fields and units stand in `docs/json.md`.

use pagelab_model::process_map::{Behind, ProcessMap};
use pagelab_model::{Frames, PageClass, PageSize, Pages};
use serde_json::Value;

use super::header;
use super::object::{Object, array};
use crate::map::check::{CheckReport, ZoneCheck};
use crate::map::difference::DifferenceReport;
use crate::map::explain::AddressSpace;
use crate::map::process::ProcessReport;
use crate::map::{MapReport, MapSource, ZoneClasses, by_class, by_zone};
use crate::picture::difference::LEGEND;
use crate::picture::raster::Raster;

/// A picture that was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file.
    pub file: String,
    /// `png`, `svg`, `html`.
    pub format: &'static str,
    /// Bytes in it.
    pub bytes: u64,
    /// Pixels across, strips at the side not counted.
    pub width: u64,
    /// Pixels down.
    pub height: u64,
    /// Pages that share a pixel.
    pub pages_per_pixel: u64,
    /// `rows`, `tiles`, `hilbert`.
    pub order: &'static str,
    /// `majority`, `mix`, `worst`.
    pub blend: &'static str,
}

impl Written {
    /// What is to be said of a raster in a file.
    pub fn new(
        file: &str,
        format: &'static str,
        bytes: usize,
        raster: &Raster<'_>,
        blend: &'static str,
    ) -> Written {
        Written {
            file: file.to_owned(),
            format,
            bytes: bytes as u64,
            width: raster.path.width,
            height: raster.path.height,
            pages_per_pixel: raster.pixel.pages().0,
            order: raster.path.order.name(),
            blend,
        }
    }
}

/// The document of a map.
pub fn map(report: &MapReport<'_>, written: &[Written]) -> Value {
    let layout = &report.map.layout;
    let zones = by_zone(report.map);
    let size = layout.page_size;
    header("map")
        .put("source", source(&report.source))
        .put("headline", report.headline())
        .put("scan_ns", report.map.ended_ns.saturating_sub(report.map.started_ns))
        .put("page_size_bytes", size.bytes())
        .put("pageblock_bytes", size.block(layout.pageblock_order).0)
        .put("scheme", report.scheme.name())
        .put("spans", array(&layout.spans, |span| frames(*span)))
        .put("classes", classes(&by_class(&zones), size))
        .put("zones", array(&zones, |zone| self::zone(zone, size)))
        .put(
            "memory_blocks",
            array(&layout.blocks, |block| {
                frames(block.frames).put("number", block.number).put("online", block.is_online)
            }),
        )
        .put("pictures", array(written, picture))
        .put("notes", report.notes.clone())
        .into()
}

/// The document of a difference.
pub fn difference(report: &DifferenceReport<'_>, written: &[Written]) -> Value {
    let size = report.difference.layout.page_size;
    let counts = report.difference.counts();
    let changes: Vec<(usize, u64)> = counts.into_iter().enumerate().collect();
    let notes: Vec<String> = report.plugged().into_iter().chain(report.notes.clone()).collect();
    header("map_difference")
        .put("before", source(&report.before))
        .put("after", source(&report.after))
        .put("headline", report.headline())
        .put("page_size_bytes", size.bytes())
        .put("changed_pages", report.difference.changed())
        .put("changes", array(&changes, |&(at, pages)| amounts(pages, size).put("change", LEGEND[at].name)))
        .put(
            "transitions",
            array(&report.transitions(), |&(from, to, pages)| {
                amounts(pages, size).put("class_before", from.name()).put("class_after", to.name())
            }),
        )
        .put("only_before", array(&report.difference.only_before, |run| frames(*run)))
        .put("only_after", array(&report.difference.only_after, |run| frames(*run)))
        .put("pictures", array(written, picture))
        .put("notes", notes)
        .into()
}

pub(super) fn source(source: &MapSource) -> Object {
    Object::new()
        .put("name", source.name.as_str())
        .put("file", source.file.as_str())
        .option("host_name", source.host.clone(), "the source does not say it")
        .option("kernel_release", source.kernel.clone(), "the source does not say it")
        .option("taken_realtime_ns", source.taken_realtime_ns, "the source does not say when it was taken")
}

fn zone(zone: &ZoneClasses, size: PageSize) -> Object {
    Object::new()
        .put("node", zone.key.node.0)
        .put("zone", zone.key.zone.as_str())
        .put("classes", classes(&zone.counts, size))
}

fn classes(counts: &[u64; PageClass::COUNT], size: PageSize) -> Value {
    let all: Vec<PageClass> = PageClass::ALL.into_iter().filter(|class| counts[class.index()] > 0).collect();
    array(&all, |class| amounts(counts[class.index()], size).put("class", class.name()))
}

fn amounts(pages: u64, size: PageSize) -> Object {
    Object::new().put("pages", pages).put("bytes", Pages(pages).bytes(size).0)
}

fn frames(frames: Frames) -> Object {
    Object::new().put("first_frame", frames.first.0).put("frames", frames.count.0)
}

fn picture(written: &Written) -> Object {
    Object::new()
        .put("file", written.file.as_str())
        .put("format", written.format)
        .put("file_bytes", written.bytes)
        .put("width", written.width)
        .put("height", written.height)
        .put("pages_per_pixel", written.pages_per_pixel)
        .put("order", written.order)
        .put("blend", written.blend)
}

/// The document of a comparison with buddyinfo.
pub fn check(report: &CheckReport) -> Value {
    header("map_check")
        .put("source", source(&report.source))
        .put("headline", report.headline())
        .put("verdict", report.verdict().name())
        .put("scan_ns", report.scan_ns)
        .put("scans", report.tries)
        .put("zones", array(&report.zones, zone_check))
        .put("notes", report.notes.clone())
        .into()
}

fn zone_check(zone: &ZoneCheck) -> Object {
    let outside: Vec<i64> =
        (0..zone.orders()).map(|order| i64::try_from(zone.outside(order)).unwrap_or(i64::MAX)).collect();
    let outside_pages = u64::try_from(zone.outside_pages()).unwrap_or(u64::MAX);
    Object::new()
        .put("node", zone.key.node.0)
        .put("zone", zone.key.zone.as_str())
        .put("verdict", zone.verdict().name())
        .put("rebuilt_blocks", zone.rebuilt.clone())
        .put("before_blocks", zone.before.clone())
        .option("after_blocks", zone.after.clone(), "a saved tree has buddyinfo once")
        .put("outside_blocks", outside)
        .put("outside_pages", outside_pages)
        .option("churn_pages", zone.churn, "nothing says what changed while it was read")
        .put("per_cpu_pages", zone.per_cpu)
}

/// The document of one process.
pub fn process(report: &ProcessReport) -> Value {
    let map = &report.map;
    let size = map.page_size;
    header("map_process")
        .put("pid", map.pid)
        .option("process_name", map.name.clone(), "the kernel did not say it")
        .put("headline", report.headline())
        .put("page_size_bytes", size.bytes())
        .put("pmd_order", map.pmd_order.0)
        .option(
            "contiguous_order",
            report.contiguous_order().map(|order| order.0),
            "pages are 64 KiB or larger",
        )
        .put("pmd_mapped_bytes", report.pmd_mapped().0)
        .put("read_ns", map.read_ns)
        .put("ended", map.tear.ended)
        .put("mappings_changed", map.tear.mappings_changed)
        .put("resident_before_bytes", map.tear.resident_before.0)
        .option(
            "resident_after_bytes",
            map.tear.resident_after.map(|bytes| bytes.0),
            "the process was gone by then",
        )
        .put("total", behind(&report.total(), map))
        .put(
            "mappings",
            array(&map.mappings, |one| {
                Object::new()
                    .put("start", one.mapping.start)
                    .put("end", one.mapping.end)
                    .put("permissions", one.mapping.permissions.as_str())
                    .put("mapping_name", one.mapping.name.as_str())
                    .put("behind", behind(&one.behind, map))
            }),
        )
        .put("notes", report.notes())
        .into()
}

/// The document of an address space.
pub fn address_space(space: &AddressSpace) -> Value {
    let unknown = "this kernel does not say it";
    let settings = &space.settings;
    header("address_space")
        .put("pid", space.pid)
        .option("process_name", space.name.clone(), "the kernel did not say it")
        .put("headline", space.headline())
        .option("huge_page_bytes", settings.size.map(|size| size.0), unknown)
        .option("thp_enabled", settings.enabled.clone(), unknown)
        .option("shmem_enabled", settings.shmem.clone(), unknown)
        .option("thp_of_process", settings.process, unknown)
        .put(
            "mappings",
            array(&space.explained(), |one| {
                let mapping = one.mapping;
                let resident = mapping.fields_kib.get("Rss").map(|kib| pagelab_model::Bytes::from_kib(kib).0);
                Object::new()
                    .put("start", mapping.start)
                    .put("end", mapping.end)
                    .put("permissions", mapping.permissions.as_str())
                    .put("mapping_name", mapping.name.as_str())
                    .option("resident_bytes", resident, unknown)
                    .put("part", one.part.name())
                    .put("what", one.what.as_str())
                    .option("huge_eligible", mapping.thp_eligible, unknown)
                    .put("huge_reason", one.eligible.name())
                    .put("huge_why", one.why.as_str())
            }),
        )
        .into()
}

/// Arrays by order, up to the last that is not 0.
fn behind(behind: &Behind, map: &ProcessMap) -> Value {
    let cut = |counts: &[u64]| {
        let end = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        counts[..end].to_vec()
    };
    let folios = map.folios_known.as_ref().map(|()| cut(&behind.folio_pages)).map_err(Clone::clone);
    Object::new()
        .put("present_pages", behind.present)
        .put("swapped_pages", behind.swapped)
        .put("zero_pages", behind.zero)
        .put("hidden_pages", behind.hidden)
        .put("moved_pages", behind.moved)
        .put("odd_pages", behind.odd)
        .put("longest_run_pages", behind.longest)
        .put("runs", cut(&behind.runs))
        .put("run_pages", cut(&behind.run_pages))
        .put("aligned_pages", cut(&behind.aligned_pages))
        .reading("folio_pages", &folios, |pages| pages.clone().into())
        .into()
}
