//! Metrics of one kernel file each, read completely by its parser: pagetypeinfo, zoneinfo, slabinfo.

use std::collections::BTreeSet;

use pagelab_formats::{pagetypeinfo, slabinfo, zoneinfo};
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::pagetype::Pagetypeinfo;
use pagelab_model::run::Unit;
use pagelab_model::slab::SlabCache;
use pagelab_model::{Absence, PageSize, Pages, Reading, Zoneinfo};
use pagelab_sys::clock;

use super::source::MetricSource;
use super::tables::{ColumnBuilder, Tables};
use crate::fast_snapshot::{EndDetection, FileFormat, OpenFile};
use crate::paths;
use crate::root::Root;

/// One kept-open file, and the conversion of its value to columns.
#[derive(Debug)]
pub(super) struct FileSource<T: 'static> {
    file: OpenFile<T>,
    name: &'static str,
    columns: fn(&T, &mut ColumnState, &mut ColumnBuilder),
    state: ColumnState,
}

/// Inputs of columns besides the value.
#[derive(Debug)]
pub(super) struct ColumnState {
    page_size: PageSize,
    /// Slab caches that have been among the largest.
    seen_caches: BTreeSet<String>,
}

/// Number of slab caches that are recorded: those that are, or once were, among the largest.
const LARGEST_CACHES: usize = 20;

impl<T> MetricSource for FileSource<T>
where
    T: std::fmt::Debug + Send + 'static,
{
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let (began_ns, cpu_ns) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        self.file.read()?;
        let read_ns = clock::monotonic_ns().saturating_sub(began_ns);
        let read_cpu_ns = clock::thread_cpu_ns().saturating_sub(cpu_ns);
        self.file.update()?;
        let mut columns = ColumnBuilder::default();
        (self.columns)(&self.file.value, &mut self.state, &mut columns);
        columns.add_amount("read_ns", Unit::NANOSECONDS, Some(read_ns));
        columns.add_amount("read_cpu_ns", Unit::NANOSECONDS, Some(read_cpu_ns));
        tables.set_row(self.name, self.file.format.path, columns);
        Ok(())
    }
}

fn open_source<T: std::fmt::Debug + Send + 'static>(
    root: &Root,
    page_size: PageSize,
    name: &'static str,
    format: &'static FileFormat<T>,
    columns: fn(&T, &mut ColumnState, &mut ColumnBuilder),
) -> Reading<Box<dyn MetricSource>> {
    let state = ColumnState { page_size, seen_caches: BTreeSet::new() };
    Ok(Box::new(FileSource { file: OpenFile::open(root, format)?, name, columns, state }))
}

/// pagetypeinfo: printing it walks free lists under the zone's lock with interrupts off
/// (pagetypeinfo_showfree_print, mm/vmstat.c, 6.18).
pub(super) fn open_pagetypeinfo(root: &Root, page_size: PageSize) -> Reading<Box<dyn MetricSource>> {
    static FORMAT: FileFormat<Pagetypeinfo> =
        FileFormat::new(paths::PAGETYPEINFO, EndDetection::EmptyRead, pagetypeinfo::parse, |_, _| false);
    open_source(root, page_size, "pagetypeinfo", &FORMAT, pagetype_columns).map_err(with_root_hint)
}

/// Watermarks and sizes of zones.
pub(super) fn open_zoneinfo(root: &Root, page_size: PageSize) -> Reading<Box<dyn MetricSource>> {
    static FORMAT: FileFormat<Zoneinfo> =
        FileFormat::new(paths::ZONEINFO, EndDetection::EmptyRead, zoneinfo::parse, |_, _| false);
    open_source(root, page_size, "zoneinfo", &FORMAT, zone_columns)
}

/// All caches of one reading.
#[derive(Debug)]
struct SlabCaches(Vec<SlabCache>);

/// The largest slab caches.
pub(super) fn open_slabinfo(root: &Root, page_size: PageSize) -> Reading<Box<dyn MetricSource>> {
    static FORMAT: FileFormat<SlabCaches> = FileFormat::new(
        paths::SLABINFO,
        EndDetection::EmptyRead,
        |text| slabinfo::parse(text).map(SlabCaches),
        |_, _| false,
    );
    open_source(root, page_size, "slab", &FORMAT, slab_columns).map_err(with_root_hint)
}

fn with_root_hint(absence: Absence) -> Absence {
    if absence.hint.is_none() && absence.why == pagelab_model::AbsenceReason::NotPermitted {
        return absence.with_hint("run as root");
    }
    absence
}

fn zone_name(key: &ZoneKey) -> String {
    format!("{}/{}", key.node.0, key.zone)
}

fn pagetype_columns(info: &Pagetypeinfo, _: &mut ColumnState, columns: &mut ColumnBuilder) {
    for free in &info.free {
        let zone = zone_name(&free.key);
        for (order, count) in free.counts.iter().enumerate() {
            let name = format!("{zone}/{}/{order}", free.migratetype);
            columns.add_amount(name, Unit::COUNT, Some(count.at_least()));
        }
    }
    for (what, all) in [("blocks", &info.blocks), ("mixed", &info.mixed)] {
        for blocks in all {
            for (migratetype, count) in &blocks.counts {
                let name = format!("{}/{migratetype}/{what}", zone_name(&blocks.key));
                columns.add_amount(name, Unit::COUNT, Some(*count));
            }
        }
    }
}

fn zone_columns(info: &Zoneinfo, _: &mut ColumnState, columns: &mut ColumnBuilder) {
    for zone in &info.zones {
        let name = zone_name(&zone.key);
        let pages: [(&str, Option<Pages>); 11] = [
            ("free", zone.free),
            ("boost", zone.boost),
            ("min", zone.min),
            ("low", zone.low),
            ("high", zone.high),
            ("promo", zone.promo),
            ("spanned", zone.spanned),
            ("present", zone.present),
            ("managed", zone.managed),
            ("cma", zone.cma),
            ("per_cpu", Some(zone.count_pcp_pages())),
        ];
        for (what, pages) in pages {
            columns.add_amount(format!("{name}/{what}"), Unit::PAGES, pages.map(|pages| pages.0));
        }
    }
}

fn slab_columns(SlabCaches(caches): &SlabCaches, state: &mut ColumnState, columns: &mut ColumnBuilder) {
    let mut largest: Vec<&SlabCache> = caches.iter().collect();
    largest.sort_by_key(|cache| std::cmp::Reverse(cache.pages()));
    for cache in largest.into_iter().take(LARGEST_CACHES) {
        state.seen_caches.insert(cache.name.clone());
    }
    // A cache that was destroyed keeps its columns, without values.
    for name in &state.seen_caches {
        let cache = caches.iter().find(|cache| cache.name == *name);
        let bytes = cache.map(|cache| cache.bytes(state.page_size).0);
        columns.add_amount(format!("{name}/bytes"), Unit::BYTES, bytes);
        columns.add_amount(format!("{name}/objects"), Unit::COUNT, cache.map(|cache| cache.objects_active));
    }
}
