//! Cgroups: the memory charged to each, and its part in huge pages. A series for each group.

use pagelab_formats::mountinfo::Mount;
use pagelab_formats::{mountinfo, pressure, setting, vmstat};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, Reading};

use super::source::MetricSource;
use super::tables::{ColumnBuilder, Tables};
use crate::capture::pattern;
use crate::paths;
use crate::reader::Reader;
use crate::root::{EntryKind, Root};

/// Groups read at a time.
const CGROUPS_MAX: usize = 64;
/// Maximum number of groups searched, and of levels below the top.
const SCANNED_MAX: usize = 4000;
const DEPTH_MAX: usize = 16;

/// Version 2: lines of memory.stat that the kernel has, and whether they count events. Amounts are bytes
/// (mm/memcontrol.c, 6.18).
const STAT_V2: [(&str, bool); 15] = [
    ("anon", false),
    ("file", false),
    ("kernel", false),
    ("slab", false),
    ("shmem", false),
    ("anon_thp", false),
    ("file_thp", false),
    ("shmem_thp", false),
    ("thp_fault_alloc", true),
    ("thp_collapse_alloc", true),
    ("pgfault", true),
    ("pgmajfault", true),
    ("workingset_refault_anon", true),
    ("workingset_refault_file", true),
    ("pgscan", true),
];

/// Version 1: sums over the group and those below it, as in version 2; rss is anonymous memory.
const STAT_V1: [(&str, bool); 8] = [
    ("total_cache", false),
    ("total_rss", false),
    ("total_rss_huge", false),
    ("total_shmem", false),
    ("total_mapped_file", false),
    ("total_swap", false),
    ("total_pgfault", true),
    ("total_pgmajfault", true),
];

#[derive(Debug)]
pub(super) struct CgroupSource {
    root: Root,
    /// Mount point of the hierarchy with the memory controller, without a trailing slash.
    mount_point: String,
    is_v2: bool,
    pattern: Option<String>,
    has_reported_truncation: bool,
}

impl CgroupSource {
    pub fn open(root: &Root, pattern: Option<&str>) -> Reading<CgroupSource> {
        let mounts = Reader::new(root).parse(paths::SELF_MOUNTINFO, mountinfo::parse)?;
        let is_v1 = |mount: &&Mount| mount.fs_type == "cgroup" && mount.has_super_option("memory");
        let is_v2 = |mount: &&Mount| {
            let controllers = root.read(&format!("{}/cgroup.controllers", mount.mount_point));
            let has_memory =
                |text: Vec<u8>| text.split(u8::is_ascii_whitespace).any(|word| word == b"memory");
            mount.fs_type == "cgroup2" && controllers.is_ok_and(has_memory)
        };
        let memory_mount = mounts.iter().find(is_v1).or_else(|| mounts.iter().find(is_v2));
        let Some(mount) = memory_mount else {
            let shown = root.display_path(paths::SELF_MOUNTINFO);
            let detail = "no hierarchy with the memory controller is mounted";
            return Err(Absence::new(shown, AbsenceReason::NotThere, detail)
                .with_hint("mount -t cgroup2 none /mnt, as root"));
        };
        let mut source = CgroupSource {
            root: root.clone(),
            mount_point: mount.mount_point.trim_end_matches('/').to_owned(),
            is_v2: mount.fs_type == "cgroup2",
            pattern: pattern.map(str::to_owned),
            has_reported_truncation: false,
        };
        if let Some(pattern) = pattern
            && source.find_cgroups().0.is_empty()
        {
            let detail = format!("no cgroup matches {}", pattern.escape_debug());
            return Err(Absence::new(source.mount_point, AbsenceReason::NotThere, detail).with_hint(
                "give a cgroup relative to that directory, for example cgroups=/system.slice/*; * matches \
                 any text",
            ));
        }
        Ok(source)
    }

    /// Paths of the groups below the top, the highest first, and whether there are more than are read.
    fn find_cgroups(&mut self) -> (Vec<String>, bool) {
        let (mut paths, mut level, mut scanned_count) = (Vec::new(), vec![String::new()], 0);
        for _ in 0..DEPTH_MAX {
            let mut below = Vec::new();
            for group in level {
                if paths.len() >= CGROUPS_MAX || scanned_count >= SCANNED_MAX {
                    return (paths, true);
                }
                scanned_count += 1;
                // The root of a hierarchy may have no counters.
                let stat = format!("{}{group}/memory.stat", self.mount_point);
                if self.is_selected(&group) && self.root.entry_kind(&stat) == Ok(EntryKind::File) {
                    paths.push(group.clone());
                }
                let folder = format!("{}{group}", self.mount_point);
                for name in self.root.list_dir(&folder).unwrap_or_default() {
                    if self.root.entry_kind(&format!("{folder}/{name}")) == Ok(EntryKind::Dir) {
                        below.push(format!("{group}/{name}"));
                    }
                }
            }
            level = below;
        }
        (paths, false)
    }

    /// The group `` is the top.
    fn is_selected(&self, group: &str) -> bool {
        let path = if group.is_empty() { "/" } else { group };
        let name = group.rsplit('/').next().unwrap_or("");
        self.pattern
            .as_deref()
            .is_none_or(|wanted| pattern::is_match(wanted, if wanted.starts_with('/') { path } else { name }))
    }

    fn read_cgroup(&self, group: &str) -> Option<ColumnBuilder> {
        let read = |file: &str| self.root.read(&format!("{}{group}/{file}", self.mount_point)).ok();
        let number = |file: &str| read(file).and_then(|text| setting::parse_u64(&text).ok());
        let mut columns = ColumnBuilder::default();
        let used = if self.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        columns.add_amount(used, Unit::BYTES, number(used));
        if self.is_v2 {
            columns.add_amount("memory.swap.current", Unit::BYTES, number("memory.swap.current"));
        }
        let stat = vmstat::parse_counters(&read("memory.stat")?).ok()?;
        for &(name, grows) in if self.is_v2 { &STAT_V2[..] } else { &STAT_V1[..] } {
            if let Some(value) = stat.get(name) {
                columns.add_column(name, if grows { Unit::COUNT } else { Unit::BYTES }, grows, Some(value));
            }
        }
        if let Some(pressure) = read("memory.pressure").and_then(|text| pressure::parse(&text).ok()) {
            let lines = [("some", Some(pressure.some)), ("full", pressure.full)];
            for (name, line) in lines.into_iter().filter_map(|(name, line)| Some((name, line?))) {
                let name = format!("memory.pressure.{name}.total");
                columns.add_column(name, Unit::MICROSECONDS, true, Some(line.total_us));
            }
        }
        Some(columns)
    }
}

impl MetricSource for CgroupSource {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let (groups, is_cut) = self.find_cgroups();
        if is_cut && !self.has_reported_truncation {
            self.has_reported_truncation = true;
            let text =
                format!("cgroups: more than {CGROUPS_MAX} cgroups; only the top {CGROUPS_MAX} are read");
            tables.notices.push(super::Notice { kind: "left out", text });
        }
        for group in groups {
            // A group that was removed meanwhile is absent.
            if let Some(columns) = self.read_cgroup(&group) {
                let path = if group.is_empty() { "/" } else { &group };
                tables.set_row(&format!("cgroup {path}"), &format!("{}{group}", self.mount_point), columns);
            }
        }
        Ok(())
    }

    fn has_transient_series(&self) -> bool {
        true
    }
}
