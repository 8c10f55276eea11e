//! What changed on the whole machine meanwhile: F_u of the largest zone, pressure, counters of the kernel.

use pagelab_formats::{scalar, text, zoneinfo};
use pagelab_host::fast::{self, FastSnapshot};
use pagelab_host::machine::{live_page_size, pmd_size};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::frag;
use pagelab_model::experiment::Better;
use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsentWhy, Bytes, Counters, Order, PageSize, Reading, ZoneKey};

use super::{Found, Wanted, flags, group};

/// Counters of vmstat that are always told, absent where the kernel has none.
const ALWAYS: [&str; 16] = [
    "pgfault",
    "pgmajfault",
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_collapse_alloc",
    "thp_split_page",
    "compact_stall",
    "compact_success",
    "compact_fail",
    "pgmigrate_success",
    "workingset_refault_anon",
    "workingset_refault_file",
    "pswpin",
    "pswpout",
    "drop_pagecache",
    "drop_slab",
];
/// Others are told where they begin so: the kernel has more of them with each release.
const FAMILIES: [&str; 6] = ["thp_", "compact_", "pgmigrate_", "workingset_refault_", "pgscan_", "pgsteal_"];
/// Of these less is better; the others say something and are neither good nor bad.
const COSTS: [&str; 9] = [
    "pgfault",
    "pgmajfault",
    "thp_fault_fallback",
    "compact_stall",
    "compact_fail",
    "workingset_refault_anon",
    "workingset_refault_file",
    "pswpin",
    "pswpout",
];

/// Counters of each size of transparent huge pages that are told (6.10 and later, mm/huge_memory.c).
const BY_SIZE: [&str; 3] = ["anon_fault_alloc", "anon_fault_fallback", "shmem_alloc"];
/// Sizes that are read; the kernel has one for each order up to a PMD's.
const SIZES_MAX: usize = 32;

/// The machine before the trial.
#[derive(Debug)]
pub(super) struct Machine {
    root: Root,
    wanted: Wanted,
    fast: FastSnapshot,
    /// The largest zone, and the order of a huge page.
    zone: Reading<ZoneKey>,
    order: Order,
    pmd: Bytes,
    unusable: Reading<f64>,
    vmstat: Reading<Counters>,
    pressure: [Option<Pressure>; fast::RESOURCES.len()],
    by_size: Vec<BySize>,
}

/// A counter of one size of huge pages.
#[derive(Debug)]
struct BySize {
    size: Bytes,
    name: &'static str,
    path: String,
    before: Option<u64>,
}

impl Machine {
    pub(super) fn prepare(root: &Root, wanted: &Wanted) -> Machine {
        let page = live_page_size().unwrap_or(PageSize::USUAL);
        let pmd = pmd_size(&Reader::new(root), page);
        let reader = Reader::new(root);
        let files = fast::Wanted {
            meminfo: false,
            vmstat: wanted.vmstat || wanted.huge,
            buddyinfo: wanted.fragmentation,
            pressure: wanted.pressure,
        };
        let zone = match wanted.fragmentation {
            true => largest_zone(&reader),
            false => Err(Absence::new(paths::ZONEINFO, AbsentWhy::NotAsked, "")),
        };
        Machine {
            root: root.clone(),
            wanted: wanted.clone(),
            fast: FastSnapshot::open(root, files),
            zone,
            order: page.order_of(pmd).unwrap_or(page.usual_pmd_order()),
            pmd,
            unusable: Err(Absence::unread()),
            vmstat: Err(Absence::unread()),
            pressure: [None; fast::RESOURCES.len()],
            by_size: if wanted.vmstat || wanted.huge { by_size(root) } else { Vec::new() },
        }
    }

    pub(super) fn before(&mut self) {
        for counter in &mut self.by_size {
            counter.before = number(&self.root, &counter.path).ok();
        }
        self.fast.sample();
        self.unusable = self.unusable_now();
        self.vmstat = self.fast.vmstat().cloned().map_err(Clone::clone);
        self.pressure = self.fast.pressures().map(|(_, pressure)| pressure.ok().copied());
    }

    pub(super) fn after(&mut self) {
        self.fast.sample();
    }

    /// F_u of the largest zone for a huge page, exactly.
    fn unusable_now(&self) -> Reading<f64> {
        let zone = self.zone.as_ref().map_err(Clone::clone)?;
        let areas = self.fast.buddyinfo().map_err(Clone::clone)?.zone(zone);
        let gone = || Absence::new(paths::BUDDYINFO, AbsentWhy::NotThere, "the largest zone is not in it");
        areas.map(|areas| frag::unusable(areas, self.order)).ok_or_else(gone)
    }

    pub(super) fn measures(self, found: &mut Found) {
        if self.wanted.fragmentation {
            let zone = self.zone.as_ref().map_or("the largest zone".to_owned(), |zone| {
                format!("zone {} of node {}", zone.zone, zone.node.0)
            });
            let source = format!("{}, F_u({}) of {zone}", paths::BUDDYINFO, self.order.0);
            found.put("unusable.before", "ratio", Better::Neither, self.unusable.clone(), &source);
            found.put("unusable.after", "ratio", Better::Lower, self.unusable_now(), &source);
        }
        if self.wanted.pressure {
            for ((resource, after), before) in self.fast.pressures().into_iter().zip(&self.pressure) {
                group::pressure(
                    &format!("pressure.{resource}"),
                    before.as_ref(),
                    after,
                    "of the machine",
                    found,
                );
            }
        }
        if self.wanted.vmstat {
            self.vmstat_measures(found);
        }
        if self.wanted.vmstat || self.wanted.huge {
            self.size_measures(found);
        }
    }

    fn vmstat_measures(&self, found: &mut Found) {
        let after = self.fast.vmstat();
        let difference = |name: &str| -> Reading<u64> {
            let (before, after) = (self.vmstat.as_ref().map_err(Clone::clone)?, after.map_err(Clone::clone)?);
            let missing =
                || Absence::new(paths::VMSTAT, AbsentWhy::NotThere, format!("this kernel has no {name}"));
            let after = after.get(name).ok_or_else(missing)?;
            Ok(after.saturating_sub(before.get(name).ok_or_else(missing)?))
        };
        let is_family = |name: &str| FAMILIES.iter().any(|family| name.starts_with(family));
        let names = after.map(|after| after.names().clone()).ok();
        let others = names.iter().flat_map(|names| names.iter()).map(|name| &**name);
        let others = others.filter(|name: &&str| is_family(name) && !ALWAYS.contains(name));
        for name in ALWAYS.into_iter().chain(others) {
            let better = if COSTS.contains(&name) { Better::Lower } else { Better::Neither };
            found.count(format!("vmstat.{name}"), better, difference(name), "vmstat, of the whole machine");
        }
    }

    /// Counters by size, and the bytes of the sizes smaller than a PMD's: the only sign that they came.
    fn size_measures(&self, found: &mut Found) {
        let mut smaller = None;
        for counter in &self.by_size {
            let after = number(&self.root, &counter.path);
            let unread =
                || Absence::new(&counter.path, AbsentWhy::Failed, "it could not be read before the trial");
            let value = after.and_then(|after| Ok(after.saturating_sub(counter.before.ok_or_else(unread)?)));
            if counter.size < self.pmd && counter.name.ends_with("_alloc") {
                let bytes = value.as_ref().map_or(0, |count| count.saturating_mul(counter.size.0));
                smaller = Some(smaller.unwrap_or(0u64).saturating_add(bytes));
            }
            if self.wanted.vmstat {
                let name = format!("thp.{}K.{}", counter.size.0 >> 10, counter.name);
                found.count(
                    name,
                    Better::Neither,
                    value,
                    "stats of transparent huge pages, of the whole machine",
                );
            }
        }
        if self.wanted.huge {
            let absent = || {
                let detail = "this kernel has no counters by size of huge pages";
                Absence::new(paths::THP, AbsentWhy::NotThere, detail).or("Linux 6.10 or later")
            };
            let source = "stats of transparent huge pages below a PMD's size, of the whole machine";
            found.bytes(flags::SMALLER, Better::Neither, smaller.ok_or_else(absent), source);
        }
    }
}

/// The zone with the most memory.
fn largest_zone(reader: &Reader<'_>) -> Reading<ZoneKey> {
    let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse)?;
    let largest = zones.zones.iter().max_by_key(|zone| zone.managed.or(zone.present).map(|pages| pages.0));
    let none = || Absence::new(paths::ZONEINFO, AbsentWhy::NotThere, "no zone in it");
    largest.map(|zone| zone.key.clone()).ok_or_else(none)
}

/// The counters by size that this kernel has, the smallest size first.
fn by_size(root: &Root) -> Vec<BySize> {
    let size = |name: &String| {
        let kib = text::number(name.strip_prefix("hugepages-")?.strip_suffix("kB")?.as_bytes())?;
        Some(Bytes::from_kib(kib))
    };
    let names = root.list(paths::THP).unwrap_or_default();
    let mut sizes: Vec<(Bytes, &String)> =
        names.iter().filter_map(|name| Some((size(name)?, name))).collect();
    sizes.sort();
    let counters = sizes.into_iter().take(SIZES_MAX).flat_map(|(size, folder)| {
        BY_SIZE.map(|name| {
            let path = format!("{}/{folder}/stats/{name}", paths::THP);
            BySize { size, name, path, before: None }
        })
    });
    counters.filter(|counter| number(root, &counter.path).is_ok()).collect()
}

fn number(root: &Root, path: &str) -> Reading<u64> {
    let text = root.read(path)?;
    scalar::parse_u64(&text).map_err(|error| Absence::new(path, AbsentWhy::Malformed, error.in_file(path)))
}
