//! Metrics that are one kernel file, read whole by its full parser: pagetypeinfo, zoneinfo, slabinfo.

use std::collections::BTreeSet;

use pagelab_formats::{pagetypeinfo, slabinfo, zoneinfo};
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::pagetype::Pagetypeinfo;
use pagelab_model::run::Unit;
use pagelab_model::slab::SlabCache;
use pagelab_model::{Absence, PageSize, Pages, Reading, Zoneinfo};
use pagelab_sys::clock;

use super::source::Source;
use super::tables::{Columns, Tables};
use crate::fast::{Ends, Kept};
use crate::paths;
use crate::root::Root;

/// One kept-open file and how its value becomes columns.
#[derive(Debug)]
pub(super) struct Whole<T> {
    kept: Kept<T>,
    name: &'static str,
    source: &'static str,
    columns: fn(&T, &mut State, &mut Columns),
    state: State,
}

/// What columns depend on besides the value.
#[derive(Debug)]
pub(super) struct State {
    page_size: PageSize,
    /// Slab caches that have been among the largest.
    caches: BTreeSet<String>,
}

/// Slab caches that are recorded: those that are, or once were, among so many largest.
const CACHES: usize = 20;

impl<T> Source for Whole<T>
where
    T: std::fmt::Debug + Send,
{
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let (began_ns, cpu_ns) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        self.kept.read()?;
        let read_ns = clock::monotonic_ns().saturating_sub(began_ns);
        let read_cpu_ns = clock::thread_cpu_ns().saturating_sub(cpu_ns);
        self.kept.update()?;
        let mut columns = Columns::default();
        (self.columns)(&self.kept.value, &mut self.state, &mut columns);
        columns.amount("read_ns", Unit::NANOSECONDS, Some(read_ns));
        columns.amount("read_cpu_ns", Unit::NANOSECONDS, Some(read_cpu_ns));
        tables.put(self.name, self.source, columns);
        Ok(())
    }
}

fn boxed<T: std::fmt::Debug + Send + 'static>(
    kept: Reading<Kept<T>>,
    (name, source): (&'static str, &'static str),
    page_size: PageSize,
    columns: fn(&T, &mut State, &mut Columns),
) -> Reading<Box<dyn Source>> {
    let state = State { page_size, caches: BTreeSet::new() };
    kept.map(|kept| Box::new(Whole { kept, name, source, columns, state }) as Box<dyn Source>)
}

/// pagetypeinfo: printing it walks free lists under the zone's lock with interrupts off
/// (pagetypeinfo_showfree_print, mm/vmstat.c, 6.18).
pub(super) fn pagetype(root: &Root, page_size: PageSize) -> Reading<Box<dyn Source>> {
    let path = paths::PAGETYPEINFO;
    let kept = Kept::open(root, path, Ends::AtZero, pagetypeinfo::parse, |_, _| false);
    boxed(kept.map_err(for_root), ("pagetypeinfo", path), page_size, pagetype_columns)
}

/// Watermarks and sizes of zones.
pub(super) fn zones(root: &Root, page_size: PageSize) -> Reading<Box<dyn Source>> {
    let path = paths::ZONEINFO;
    let kept = Kept::open(root, path, Ends::AtZero, zoneinfo::parse, |_, _| false);
    boxed(kept, ("zoneinfo", path), page_size, zone_columns)
}

/// All caches of one reading.
#[derive(Debug)]
struct Caches(Vec<SlabCache>);

/// The largest slab caches.
pub(super) fn slab(root: &Root, page_size: PageSize) -> Reading<Box<dyn Source>> {
    let path = paths::SLABINFO;
    let kept = Kept::open(root, path, Ends::AtZero, |text| slabinfo::parse(text).map(Caches), |_, _| false);
    boxed(kept.map_err(for_root), ("slab", path), page_size, slab_columns)
}

fn for_root(absence: Absence) -> Absence {
    if absence.way_out.is_none() && absence.why == pagelab_model::AbsentWhy::NotPermitted {
        return absence.or("run as root");
    }
    absence
}

fn zone_name(key: &ZoneKey) -> String {
    format!("{}/{}", key.node.0, key.zone)
}

fn pagetype_columns(info: &Pagetypeinfo, _: &mut State, columns: &mut Columns) {
    for free in &info.free {
        let zone = zone_name(&free.key);
        for (order, count) in free.counts.iter().enumerate() {
            let name = format!("{zone}/{}/{order}", free.migratetype);
            columns.amount(name, Unit::COUNT, Some(count.at_least()));
        }
    }
    for (what, all) in [("blocks", &info.blocks), ("mixed", &info.mixed)] {
        for blocks in all {
            for (migratetype, count) in &blocks.counts {
                let name = format!("{}/{migratetype}/{what}", zone_name(&blocks.key));
                columns.amount(name, Unit::COUNT, Some(*count));
            }
        }
    }
}

fn zone_columns(info: &Zoneinfo, _: &mut State, columns: &mut Columns) {
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
            ("per_cpu", Some(zone.pages_per_cpu())),
        ];
        for (what, pages) in pages {
            columns.amount(format!("{name}/{what}"), Unit::PAGES, pages.map(|pages| pages.0));
        }
    }
}

fn slab_columns(Caches(caches): &Caches, state: &mut State, columns: &mut Columns) {
    let mut largest: Vec<&SlabCache> = caches.iter().collect();
    largest.sort_by_key(|cache| std::cmp::Reverse(cache.pages()));
    for cache in largest.into_iter().take(CACHES) {
        if !state.caches.contains(&cache.name) {
            state.caches.insert(cache.name.clone());
        }
    }
    // A cache that was destroyed keeps its columns, without values.
    for name in &state.caches {
        let cache = caches.iter().find(|cache| cache.name == *name);
        let bytes = cache.map(|cache| cache.bytes(state.page_size).0);
        columns.amount(format!("{name}/bytes"), Unit::BYTES, bytes);
        columns.amount(format!("{name}/objects"), Unit::COUNT, cache.map(|cache| cache.objects_active));
    }
}
