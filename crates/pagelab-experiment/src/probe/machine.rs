//! Changes of the entire machine during a trial: F_u of the largest zone, pressure, kernel counters.

use pagelab_formats::{setting, text, zoneinfo};
use pagelab_host::fast_snapshot::{FastSnapshot, FileSelection, PRESSURE_RESOURCES};
use pagelab_host::machine::{live_page_size, pmd_size};
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_metrics::fragmentation_index;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::pressure::Pressure;
use pagelab_model::{Absence, AbsenceReason, Bytes, Counters, Order, PageSize, Reading, ZoneKey};

use super::{ProbeReadings, ProbeSelection, cgroup_counters, flags};

/// Counters of vmstat that are always reported, absent if the kernel does not have them.
const REQUIRED_VMSTAT: [(&str, BetterDirection); 16] = [
    ("pgfault", BetterDirection::Lower),
    ("pgmajfault", BetterDirection::Lower),
    ("thp_fault_alloc", BetterDirection::Neither),
    ("thp_fault_fallback", BetterDirection::Lower),
    ("thp_collapse_alloc", BetterDirection::Neither),
    ("thp_split_page", BetterDirection::Neither),
    ("compact_stall", BetterDirection::Lower),
    ("compact_success", BetterDirection::Neither),
    ("compact_fail", BetterDirection::Lower),
    ("pgmigrate_success", BetterDirection::Neither),
    ("workingset_refault_anon", BetterDirection::Lower),
    ("workingset_refault_file", BetterDirection::Lower),
    ("pswpin", BetterDirection::Lower),
    ("pswpout", BetterDirection::Lower),
    ("drop_pagecache", BetterDirection::Neither),
    ("drop_slab", BetterDirection::Neither),
];
/// Prefixes of further reported counters, which are neither good nor bad: the kernel adds some with each
/// release.
const VMSTAT_PREFIXES: [&str; 6] =
    ["thp_", "compact_", "pgmigrate_", "workingset_refault_", "pgscan_", "pgsteal_"];

/// Reported counters by size of transparent huge pages (6.10 and later, mm/huge_memory.c).
const MTHP_COUNTERS: [&str; 3] = ["anon_fault_alloc", "anon_fault_fallback", "shmem_alloc"];
/// Sizes that are read; the kernel has one for each order up to the PMD order.
const MTHP_SIZES_MAX: usize = 32;

/// State of the machine before the trial.
#[derive(Debug)]
pub(super) struct MachineCounters {
    root: Root,
    selection: ProbeSelection,
    fast_snapshot: FastSnapshot,
    /// The largest zone, and the order of a huge page.
    largest_zone: Reading<ZoneKey>,
    order: Order,
    pmd_size: Bytes,
    unusable_before: Reading<f64>,
    vmstat: Reading<Counters>,
    pressure: [Option<Pressure>; PRESSURE_RESOURCES.len()],
    mthp_counters: Vec<MthpCounter>,
}

#[derive(Debug)]
struct MthpCounter {
    size: Bytes,
    name: &'static str,
    path: String,
    before: Option<u64>,
}

impl MachineCounters {
    pub(super) fn prepare(root: &Root, selection: &ProbeSelection) -> MachineCounters {
        let page_size = live_page_size().unwrap_or(PageSize::DEFAULT);
        let reader = Reader::new(root);
        let pmd_size = pmd_size(&reader, page_size);
        let needs_vmstat = selection.vmstat || selection.huge;
        let files = FileSelection {
            meminfo: false,
            vmstat: needs_vmstat,
            buddyinfo: selection.fragmentation,
            pressure: selection.pressure,
        };
        let zone = match selection.fragmentation {
            true => find_largest_zone(&reader),
            false => Err(Absence::new(paths::ZONEINFO, AbsenceReason::NotRequested, "")),
        };
        MachineCounters {
            root: root.clone(),
            selection: selection.clone(),
            fast_snapshot: FastSnapshot::open(root, files),
            largest_zone: zone,
            order: page_size.pmd_order(Some(pmd_size)),
            pmd_size,
            unusable_before: Err(Absence::not_read()),
            vmstat: Err(Absence::not_read()),
            pressure: [None; PRESSURE_RESOURCES.len()],
            mthp_counters: if needs_vmstat { find_mthp_counters(root) } else { Vec::new() },
        }
    }

    pub(super) fn read_before(&mut self) {
        for counter in &mut self.mthp_counters {
            counter.before = read_number(&self.root, &counter.path).ok();
        }
        self.fast_snapshot.sample();
        self.unusable_before = self.unusable_index();
        self.vmstat = self.fast_snapshot.vmstat().cloned().map_err(Clone::clone);
        self.pressure = self.fast_snapshot.pressures().map(|(_, pressure)| pressure.ok().copied());
    }

    pub(super) fn read_after(&mut self) {
        self.fast_snapshot.sample();
    }

    /// F_u of the largest zone for a huge page, exactly.
    fn unusable_index(&self) -> Reading<f64> {
        let zone = self.largest_zone.as_ref().map_err(Clone::clone)?;
        let areas = self.fast_snapshot.buddyinfo().map_err(Clone::clone)?.zone(zone);
        let zone_absence =
            || Absence::new(paths::BUDDYINFO, AbsenceReason::NotThere, "it does not list the largest zone");
        areas.map(|areas| fragmentation_index::unusable_index(areas, self.order)).ok_or_else(zone_absence)
    }

    pub(super) fn add_measures(self, readings: &mut ProbeReadings) {
        if self.selection.fragmentation {
            let zone = self.largest_zone.as_ref().map_or("the largest zone".to_owned(), |zone| {
                format!("zone {} of node {}", zone.zone, zone.node.0)
            });
            let source = format!("{}, F_u({}) of {zone}", paths::BUDDYINFO, self.order.0);
            let before = self.unusable_before.clone();
            readings.push("unusable.before", "ratio", BetterDirection::Neither, before, &source);
            readings.push("unusable.after", "ratio", BetterDirection::Lower, self.unusable_index(), &source);
        }
        if self.selection.pressure {
            let pressures = self.fast_snapshot.pressures();
            for ((resource, after), before) in pressures.into_iter().zip(&self.pressure) {
                let name = format!("pressure.{resource}");
                cgroup_counters::push_pressure(&name, before.as_ref(), after, "of the machine", readings);
            }
        }
        if self.selection.vmstat {
            self.add_vmstat_measures(readings);
        }
        if self.selection.vmstat || self.selection.huge {
            self.add_mthp_measures(readings);
        }
    }

    fn add_vmstat_measures(&self, readings: &mut ProbeReadings) {
        let after = self.fast_snapshot.vmstat();
        let difference = |name: &str| -> Reading<u64> {
            let (before, after) = (self.vmstat.as_ref().map_err(Clone::clone)?, after.map_err(Clone::clone)?);
            let missing =
                || Absence::new(paths::VMSTAT, AbsenceReason::NotThere, format!("this kernel has no {name}"));
            let after = after.get(name).ok_or_else(missing)?;
            Ok(after.saturating_sub(before.get(name).ok_or_else(missing)?))
        };
        let has_known_prefix = |name: &str| VMSTAT_PREFIXES.iter().any(|family| name.starts_with(family));
        let names = after.map(|after| after.names().clone()).ok();
        let other_names = names.iter().flat_map(|names| names.iter()).map(|name| &**name);
        let is_required = |name: &str| REQUIRED_VMSTAT.iter().any(|(required, _)| *required == name);
        let others = other_names.filter(|name| has_known_prefix(name) && !is_required(name));
        let others = others.map(|name| (name, BetterDirection::Neither));
        for (name, better) in REQUIRED_VMSTAT.into_iter().chain(others) {
            let source = "vmstat, whole machine";
            readings.push_count(&format!("vmstat.{name}"), better, difference(name), source);
        }
    }

    /// Counters by size, and the bytes of the sizes below the PMD size: the only evidence of their
    /// allocation.
    fn add_mthp_measures(&self, readings: &mut ProbeReadings) {
        let mut smaller_bytes = None;
        for counter in &self.mthp_counters {
            let after = read_number(&self.root, &counter.path);
            let read_absence =
                || Absence::new(&counter.path, AbsenceReason::Failed, "it was not readable before the trial");
            let value =
                after.and_then(|after| Ok(after.saturating_sub(counter.before.ok_or_else(read_absence)?)));
            if counter.size < self.pmd_size && counter.name.ends_with("_alloc") {
                let bytes = value.as_ref().map_or(0, |count| count.saturating_mul(counter.size.0));
                smaller_bytes = Some(smaller_bytes.unwrap_or(0u64).saturating_add(bytes));
            }
            if self.selection.vmstat {
                let name = format!("thp.{}K.{}", counter.size.0 >> 10, counter.name);
                let source = "THP stats, whole machine";
                readings.push_count(&name, BetterDirection::Neither, value, source);
            }
        }
        if self.selection.huge {
            let absent = || {
                let detail = "this kernel has no per-size THP counters";
                Absence::new(paths::THP, AbsenceReason::NotThere, detail).with_hint("use Linux 6.10 or later")
            };
            let source = "THP stats of sizes below the PMD size, whole machine";
            let bytes = smaller_bytes.ok_or_else(absent);
            readings.push_bytes(flags::SMALLER_FOLIOS_MEASURE, BetterDirection::Neither, bytes, source);
        }
    }
}

fn find_largest_zone(reader: &Reader<'_>) -> Reading<ZoneKey> {
    let zones = reader.parse(paths::ZONEINFO, zoneinfo::parse)?;
    let largest = zones.zones.iter().max_by_key(|zone| zone.managed.or(zone.present).map(|pages| pages.0));
    let no_zone = || Absence::new(paths::ZONEINFO, AbsenceReason::NotThere, "it lists no zones");
    largest.map(|zone| zone.key.clone()).ok_or_else(no_zone)
}

/// The counters by size that this kernel has, the smallest size first.
fn find_mthp_counters(root: &Root) -> Vec<MthpCounter> {
    let size = |name: &String| {
        let kib = text::parse_number(name.strip_prefix("hugepages-")?.strip_suffix("kB")?.as_bytes())?;
        Some(Bytes::from_kib(kib))
    };
    let names = root.list_dir(paths::THP).unwrap_or_default();
    let mut sizes: Vec<(Bytes, &String)> =
        names.iter().filter_map(|name| Some((size(name)?, name))).collect();
    sizes.sort();
    let counters = sizes.into_iter().take(MTHP_SIZES_MAX).flat_map(|(size, folder)| {
        MTHP_COUNTERS.map(|name| {
            let path = format!("{}/{folder}/stats/{name}", paths::THP);
            MthpCounter { size, name, path, before: None }
        })
    });
    counters.filter(|counter| read_number(root, &counter.path).is_ok()).collect()
}

fn read_number(root: &Root, path: &str) -> Reading<u64> {
    let text = root.read(path)?;
    setting::parse_u64(&text)
        .map_err(|error| Absence::new(path, AbsenceReason::Malformed, error.message_in_file(path)))
}
