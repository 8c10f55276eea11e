//! Control groups: what each is charged for, and how much of it is huge pages. A series for each group.

use pagelab_formats::mountinfo::Mount;
use pagelab_formats::{mountinfo, pressure, scalar, vmstat};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsentWhy, Reading};

use super::source::Source;
use super::tables::{Columns, Tables};
use crate::capture::pattern;
use crate::paths;
use crate::root::{Kind, Root};

/// Groups read at a time.
const GROUPS_MAX: usize = 64;
/// Groups looked at to find them, and levels below the top.
const LOOKED_AT_MAX: usize = 4000;
const DEPTH_MAX: usize = 16;

/// Version 2: lines of memory.stat, as far as the kernel has them, and whether they count events. Amounts are
/// bytes (mm/memcontrol.c, 6.18).
const STAT: [(&str, bool); 15] = [
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
pub(super) struct Groups {
    root: Root,
    /// Where the hierarchy with the memory controller is mounted, without a slash at its end.
    top: String,
    is_v2: bool,
    pattern: Option<String>,
    has_told_cut: bool,
}

impl Groups {
    pub fn open(root: &Root, pattern: Option<&str>) -> Reading<Groups> {
        let text = root.read(paths::SELF_MOUNTINFO)?;
        let shown = root.show(paths::SELF_MOUNTINFO);
        let mounts = mountinfo::parse(&text)
            .map_err(|error| Absence::new(&shown, AbsentWhy::Malformed, error.in_file(&shown)))?;
        let is_v1 = |mount: &&Mount| mount.fs_type == "cgroup" && mount.has_super_option("memory");
        let is_v2 = |mount: &&Mount| {
            let controllers = root.read(&format!("{}/cgroup.controllers", mount.mount_point));
            let has_memory =
                |text: Vec<u8>| text.split(u8::is_ascii_whitespace).any(|word| word == b"memory");
            mount.fs_type == "cgroup2" && controllers.is_ok_and(has_memory)
        };
        let found = mounts.iter().find(is_v1).or_else(|| mounts.iter().find(is_v2));
        let Some(mount) = found else {
            let detail = "no hierarchy with the memory controller is mounted";
            return Err(
                Absence::new(shown, AbsentWhy::NotThere, detail).or("mount -t cgroup2 none /mnt, as root")
            );
        };
        let mut groups = Groups {
            root: root.clone(),
            top: mount.mount_point.trim_end_matches('/').to_owned(),
            is_v2: mount.fs_type == "cgroup2",
            pattern: pattern.map(str::to_owned),
            has_told_cut: false,
        };
        if let Some(pattern) = pattern
            && groups.find().0.is_empty()
        {
            let detail = format!("no control group matches {}", pattern.escape_debug());
            return Err(Absence::new(groups.top, AbsentWhy::NotThere, detail).or(
                "name a group as it is below that folder, such as cgroups=/system.slice/*; * is any text",
            ));
        }
        Ok(groups)
    }

    /// Paths of the groups below the top, the highest first, and whether there are more than are read.
    fn find(&mut self) -> (Vec<String>, bool) {
        let (mut found, mut level, mut looked_at) = (Vec::new(), vec![String::new()], 0);
        for _ in 0..DEPTH_MAX {
            let mut below = Vec::new();
            for group in level {
                if found.len() >= GROUPS_MAX || looked_at >= LOOKED_AT_MAX {
                    return (found, true);
                }
                looked_at += 1;
                // The top of a hierarchy may have no numbers of its own.
                let stat = format!("{}{group}/memory.stat", self.top);
                if self.is_wanted(&group) && self.root.kind(&stat) == Ok(Kind::File) {
                    found.push(group.clone());
                }
                let folder = format!("{}{group}", self.top);
                for name in self.root.list(&folder).unwrap_or_default() {
                    if self.root.kind(&format!("{folder}/{name}")) == Ok(Kind::Dir) {
                        below.push(format!("{group}/{name}"));
                    }
                }
            }
            level = below;
        }
        (found, false)
    }

    /// The group `` is the top.
    fn is_wanted(&self, group: &str) -> bool {
        let path = if group.is_empty() { "/" } else { group };
        let name = group.rsplit('/').next().unwrap_or("");
        self.pattern
            .as_deref()
            .is_none_or(|wanted| pattern::matches(wanted, if wanted.starts_with('/') { path } else { name }))
    }

    fn read_group(&self, group: &str) -> Option<Columns> {
        let read = |file: &str| self.root.read(&format!("{}{group}/{file}", self.top)).ok();
        let number = |file: &str| read(file).and_then(|text| scalar::parse_u64(&text).ok());
        let mut columns = Columns::default();
        let used = if self.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        columns.amount(used, Unit::BYTES, number(used));
        if self.is_v2 {
            columns.amount("memory.swap.current", Unit::BYTES, number("memory.swap.current"));
        }
        let stat = vmstat::parse(&read("memory.stat")?).ok()?;
        for &(name, grows) in if self.is_v2 { &STAT[..] } else { &STAT_V1[..] } {
            if let Some(value) = stat.get(name) {
                columns.add(name, if grows { Unit::COUNT } else { Unit::BYTES }, grows, Some(value));
            }
        }
        if let Some(pressure) = read("memory.pressure").and_then(|text| pressure::parse(&text).ok()) {
            let lines = [("some", Some(pressure.some)), ("full", pressure.full)];
            for (name, line) in lines.into_iter().filter_map(|(name, line)| Some((name, line?))) {
                let name = format!("memory.pressure.{name}.total");
                columns.add(name, Unit::MICROSECONDS, true, Some(line.total_us));
            }
        }
        Some(columns)
    }
}

impl Source for Groups {
    fn read(&mut self, tables: &mut Tables) -> Reading<()> {
        let (groups, is_cut) = self.find();
        if is_cut && !self.has_told_cut {
            self.has_told_cut = true;
            let text = format!("cgroups: more than {GROUPS_MAX} groups; the highest {GROUPS_MAX} are read");
            tables.notices.push(super::Notice { kind: "left out", text });
        }
        for group in groups {
            // A group that was removed meanwhile is gone.
            if let Some(columns) = self.read_group(&group) {
                let path = if group.is_empty() { "/" } else { &group };
                tables.put(&format!("cgroup {path}"), &format!("{}{group}", self.top), columns);
            }
        }
        Ok(())
    }

    fn comes_and_goes(&self) -> bool {
        true
    }
}
