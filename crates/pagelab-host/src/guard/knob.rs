//! The settings that pagelab may write: one list of shapes, for new changes and for old journals.
//!
//! A journal is a file, and a file can hold anything. So nothing is ever written to a path because a
//! journal names it: the path must have one of the shapes here, and the value must fit the shape.
//! To guard a new setting, add its shape to the tables.

use std::io;

use pagelab_model::{Bytes, NodeId};

use super::error::{ErrorKind, GuardError};
use super::kernel::Kernel;
use crate::paths;

/// Words in brackets, below transparent_hugepage/.
const THP_CHOICES: [&str; 3] = ["defrag", "enabled", "shmem_enabled"];
/// Words in brackets, below transparent_hugepage/hugepages-*kB/ (6.8 and later).
const THP_SIZE_CHOICES: [&str; 2] = ["enabled", "shmem_enabled"];
/// Numbers below transparent_hugepage/.
const THP_NUMBERS: [&str; 9] = [
    "khugepaged/alloc_sleep_millisecs",
    "khugepaged/defrag",
    "khugepaged/max_ptes_none",
    "khugepaged/max_ptes_shared",
    "khugepaged/max_ptes_swap",
    "khugepaged/pages_to_scan",
    "khugepaged/scan_sleep_millisecs",
    "shrink_underused",
    "use_zero_page",
];
/// Numbers below sys/vm/. Its nr_hugepages is not here: it is another name of the default pool, and one
/// setting with two names could have two owners.
const VM_NUMBERS: [&str; 12] = [
    "compact_unevictable_allowed",
    "compaction_proactiveness",
    "defrag_mode",
    "extfrag_threshold",
    "min_free_kbytes",
    "overcommit_memory",
    "percpu_pagelist_high_fraction",
    "swappiness",
    "vfs_cache_pressure",
    "watermark_boost_factor",
    "watermark_scale_factor",
    "zone_reclaim_mode",
];

/// Longest word of a choice, in bytes; the kernel's longest is `defer+madvise`.
const WORD_MAX: usize = 32;

/// A kernel setting that pagelab may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    path: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// `always [madvise] never`: the bracketed word is the value.
    Choice,
    /// One decimal number.
    Number,
    /// Persistent pages of a hugetlb pool, of the machine or of one node.
    Pool { page_kib: u64, node: Option<u32> },
}

impl Knob {
    /// The setting at a path, where it is one that pagelab may write.
    pub fn at(path: &str) -> Result<Knob, GuardError> {
        match kind_of(path) {
            Some(kind) => Ok(Knob { path: path.to_owned(), kind }),
            None => Err(GuardError::new(
                ErrorKind::Usage,
                format!("{} is not a setting that pagelab changes", super::owner::printable(path)),
            )),
        }
    }

    /// Mode of transparent huge pages for anonymous memory.
    pub fn thp_enabled() -> Knob {
        Knob { path: format!("{}/enabled", paths::THP), kind: Kind::Choice }
    }

    /// How hard a page fault tries to get a huge page.
    pub fn thp_defrag() -> Knob {
        Knob { path: format!("{}/defrag", paths::THP), kind: Kind::Choice }
    }

    /// Mode of transparent huge pages for shared memory.
    pub fn thp_shmem_enabled() -> Knob {
        Knob { path: format!("{}/shmem_enabled", paths::THP), kind: Kind::Choice }
    }

    /// Mode of one size of transparent huge pages (6.8 and later).
    pub fn thp_size_enabled(size: Bytes) -> Knob {
        let path = format!("{}/hugepages-{}kB/enabled", paths::THP, size.0 / 1024);
        Knob { path, kind: Kind::Choice }
    }

    /// A number of `khugepaged/`, such as `max_ptes_none`.
    pub fn khugepaged(name: &str) -> Result<Knob, GuardError> {
        Knob::at(&format!("{}/khugepaged/{name}", paths::THP))
    }

    /// A number of `/proc/sys/vm`, such as `swappiness`.
    pub fn vm(name: &str) -> Result<Knob, GuardError> {
        Knob::at(&format!("{}/{name}", paths::SYSCTL_VM))
    }

    /// The persistent pages of a hugetlb pool: of the machine, or of one node.
    pub fn hugetlb(page_size: Bytes, node: Option<NodeId>) -> Knob {
        let page_kib = page_size.0 / 1024;
        let base = match node {
            Some(node) => format!("{}/node{}/hugepages", paths::NODES, node.0),
            None => paths::HUGETLB.to_owned(),
        };
        let path = format!("{base}/hugepages-{page_kib}kB/nr_hugepages");
        Knob { path, kind: Kind::Pool { page_kib, node: node.map(|n| n.0) } }
    }

    /// The file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A person's name for it: `THP enabled`, `vm.swappiness`, `2 MiB pool`.
    pub fn label(&self) -> String {
        if let Kind::Pool { page_kib, node } = self.kind {
            let of_node = node.map(|node| format!(" of node {node}")).unwrap_or_default();
            return format!("{} pool{of_node}", size_text(page_kib));
        }
        if let Some(name) = below(&self.path, paths::SYSCTL_VM) {
            return format!("vm.{name}");
        }
        let name = below(&self.path, paths::THP).unwrap_or(&self.path);
        match name.split_once('/') {
            Some(("khugepaged", name)) => format!("khugepaged {name}"),
            Some((size, name)) => match size_of(size) {
                Some(page_kib) => format!("THP {} {name}", size_text(page_kib)),
                None => format!("THP {name}"),
            },
            None => format!("THP {name}"),
        }
    }

    /// What may have one owner at a time. The pools of one page size are one thing: a change of a node's
    /// pool is a change of the machine's.
    pub(super) fn claim(&self) -> String {
        match self.kind {
            Kind::Pool { page_kib, .. } => format!("hugetlb {page_kib}"),
            Kind::Choice | Kind::Number => self.path.clone(),
        }
    }

    /// Whether the setting can have this value, as far as its shape tells.
    pub(super) fn fits(&self, value: &str) -> bool {
        match self.kind {
            Kind::Choice => is_word(value),
            Kind::Number | Kind::Pool { .. } => is_number(value),
        }
    }

    /// The value in force.
    pub(super) fn read(&self, kernel: &dyn Kernel) -> io::Result<String> {
        match self.kind {
            Kind::Choice => selected(&kernel.read(&self.path)?),
            Kind::Number => number(&kernel.read(&self.path)?).map(|n| n.to_string()),
            Kind::Pool { .. } => self.persistent_pages(kernel).map(|n| n.to_string()),
        }
    }

    /// Writes a value, without a look at what came of it.
    pub(super) fn write(&self, kernel: &dyn Kernel, value: &str) -> io::Result<()> {
        kernel.write(&self.path, value)
    }

    /// What the kernel offers, where it says: `always madvise never`.
    pub(super) fn offer(&self, kernel: &dyn Kernel) -> Option<String> {
        let Kind::Choice = self.kind else { return None };
        let text = kernel.read(&self.path).ok()?;
        Some(super::owner::printable(text.trim()).replace(['[', ']'], ""))
    }

    /// nr_hugepages shows all pages of the pool, those in surplus too, and a write sets the persistent
    /// ones (mm/hugetlb.c, set_max_huge_pages). Written back as read, it would make surplus pages stay.
    fn persistent_pages(&self, kernel: &dyn Kernel) -> io::Result<u64> {
        let surplus_path = self.path.replace("/nr_hugepages", "/surplus_hugepages");
        let surplus = || match kernel.read(&surplus_path) {
            Ok(text) => number(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        };
        let mut before = surplus()?;
        for _ in 0..20 {
            let total = number(&kernel.read(&self.path)?)?;
            let after = surplus()?;
            if before == after && total >= after {
                return Ok(total - after);
            }
            before = after;
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "the pool's surplus moved each time it was read"))
    }

    /// Whether a value lies between two others. A pool grows and shrinks page by page, and a writer that
    /// is killed leaves it where it was; all other settings change at once.
    pub(super) fn is_between(&self, value: &str, one: &str, other: &str) -> bool {
        let Kind::Pool { .. } = self.kind else { return false };
        match (number(value), number(one), number(other)) {
            (Ok(value), Ok(one), Ok(other)) => (one.min(other)..=one.max(other)).contains(&value),
            _ => false,
        }
    }

    /// Whether the kernel may take less than it is told without that being an error.
    pub(super) fn may_fall_short(&self) -> bool {
        matches!(self.kind, Kind::Pool { .. })
    }

    /// A second interface that shows the setting, with what it says and whether that agrees. For the
    /// machine's default pool that is meminfo; the others have none.
    pub(super) fn second_opinion(&self, kernel: &dyn Kernel) -> Option<(String, bool)> {
        let Kind::Pool { page_kib, node: None } = self.kind else { return None };
        // Two files cannot be read at one moment; a pool that moves gets a few tries.
        let mut seen = None;
        for _ in 0..5 {
            let meminfo = kernel.read(paths::MEMINFO).ok()?;
            let field = |name: &str| {
                let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
                rest.strip_prefix(':')?.split_ascii_whitespace().next()?.parse::<u64>().ok()
            };
            if field("Hugepagesize")? != page_kib {
                return None;
            }
            let (total, told) = (field("HugePages_Total")?, number(&kernel.read(&self.path).ok()?).ok()?);
            seen = Some((format!("HugePages_Total {total}"), total == told));
            if total == told {
                break;
            }
        }
        seen
    }

    /// A setting that the kernel moves along with this one: each write to a mode of transparent huge
    /// pages starts or stops khugepaged, which recomputes min_free_kbytes over a smaller value that the
    /// administrator chose (mm/khugepaged.c, set_recommended_min_free_kbytes; on stop since 5.15).
    pub(super) fn moves_along(&self) -> Option<Knob> {
        let is_thp = below(&self.path, paths::THP).is_some();
        let is_mode = self.path.ends_with("/enabled") || self.path.ends_with("/shmem_enabled");
        (is_thp && is_mode)
            .then(|| Knob { path: format!("{}/min_free_kbytes", paths::SYSCTL_VM), kind: Kind::Number })
    }
}

fn kind_of(path: &str) -> Option<Kind> {
    if let Some(name) = below(path, paths::SYSCTL_VM) {
        return VM_NUMBERS.contains(&name).then_some(Kind::Number);
    }
    if let Some(name) = below(path, paths::THP) {
        if THP_CHOICES.contains(&name) {
            return Some(Kind::Choice);
        }
        if THP_NUMBERS.contains(&name) {
            return Some(Kind::Number);
        }
        let (size, name) = name.split_once('/')?;
        return (size_of(size).is_some() && THP_SIZE_CHOICES.contains(&name)).then_some(Kind::Choice);
    }
    let (pool, node) = match below(path, paths::HUGETLB) {
        Some(pool) => (pool, None),
        None => {
            let (node, pool) = below(path, paths::NODES)?.split_once("/hugepages/")?;
            (pool, Some(canonical(node.strip_prefix("node")?)?))
        }
    };
    let page_kib = size_of(pool.strip_suffix("/nr_hugepages")?)?;
    Some(Kind::Pool { page_kib, node })
}

fn below<'p>(path: &'p str, base: &str) -> Option<&'p str> {
    path.strip_prefix(base)?.strip_prefix('/')
}

/// `hugepages-2048kB` → 2048.
fn size_of(directory: &str) -> Option<u64> {
    canonical(directory.strip_prefix("hugepages-")?.strip_suffix("kB")?)
}

/// A number as the kernel prints it: `02` and `+2` would be second names of one setting.
fn canonical<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn size_text(kib: u64) -> String {
    match kib {
        kib if kib >= 1 << 20 && kib.is_multiple_of(1 << 20) => format!("{} GiB", kib >> 20),
        kib if kib >= 1 << 10 && kib.is_multiple_of(1 << 10) => format!("{} MiB", kib >> 10),
        kib => format!("{kib} KiB"),
    }
}

fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte == b'+';
    (1..=WORD_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_number(text: &str) -> bool {
    canonical::<u64>(text).is_some()
}

fn bad(what: &str, text: &str) -> io::Error {
    let shown = super::owner::printable(text.trim());
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {shown:?}"))
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| bad("is not a number", text))
}

/// The word in brackets. A single word without them is a value too: some kernel files print just that.
fn selected(text: &str) -> io::Result<String> {
    let mut words = text.split_ascii_whitespace();
    let bracketed = words.clone().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let value = match (bracketed, words.next(), words.next()) {
        (Some(word), _, _) => word,
        (None, Some(word), None) => word,
        _ => return Err(bad("has no word in brackets", text)),
    };
    match is_word(value) {
        true => Ok(value.to_owned()),
        false => Err(bad("is not a word", value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_the_list_are_settings() {
        let cases = [
            ("/sys/kernel/mm/transparent_hugepage/enabled", Some("THP enabled")),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", Some("THP 64 KiB enabled")),
            (
                "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none",
                Some("khugepaged max_ptes_none"),
            ),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", Some("2 MiB pool")),
            ("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", Some("1 GiB pool")),
            (
                "/sys/devices/system/node/node7/hugepages/hugepages-16384kB/nr_hugepages",
                Some("16 MiB pool of node 7"),
            ),
            ("/proc/sys/vm/swappiness", Some("vm.swappiness")),
            ("/proc/sys/vm/nr_hugepages", None),
            ("/proc/sys/vm/../kernel/core_pattern", None),
            ("/proc/sys/kernel/core_pattern", None),
            ("/sys/kernel/mm/transparent_hugepage", None),
            ("/sys/kernel/mm/transparent_hugepage/", None),
            ("/sys/kernel/mm/transparent_hugepagex/enabled", None),
            ("/sys/kernel/mm/transparent_hugepage/../../../../etc/passwd", None),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/../enabled", None),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-064kB/enabled", None),
            ("/sys/kernel/mm/hugepages/hugepages-+2048kB/nr_hugepages", None),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/demote", None),
            ("/sys/devices/system/node/node00/hugepages/hugepages-2048kB/nr_hugepages", None),
            ("/sys/devices/system/node/node0/../x/hugepages/hugepages-2048kB/nr_hugepages", None),
            ("/etc/passwd", None),
            ("", None),
        ];
        for (path, label) in cases {
            assert_eq!(Knob::at(path).ok().map(|knob| knob.label()).as_deref(), label, "{path}");
        }
    }

    #[test]
    fn constructors_make_what_the_list_knows() {
        let knobs = [
            Knob::thp_enabled(),
            Knob::thp_defrag(),
            Knob::thp_shmem_enabled(),
            Knob::thp_size_enabled(Bytes(64 << 10)),
            Knob::khugepaged("pages_to_scan").unwrap(),
            Knob::vm("swappiness").unwrap(),
            Knob::hugetlb(Bytes(2 << 20), None),
            Knob::hugetlb(Bytes(1 << 30), Some(NodeId(3))),
        ];
        for knob in knobs {
            assert_eq!(Knob::at(knob.path()).unwrap(), knob);
        }
        assert!(Knob::vm("../kernel/core_pattern").is_err());
    }

    #[test]
    fn the_selected_word_is_the_value() {
        let cases = [
            ("always [madvise] never\n", Some("madvise")),
            ("always defer [defer+madvise] madvise never\n", Some("defer+madvise")),
            ("online\n", Some("online")),
            ("always madvise never\n", None),
            ("[]\n", None),
            ("", None),
            ("[\x1b[2J]", None),
        ];
        for (text, value) in cases {
            assert_eq!(selected(text).ok().as_deref(), value, "{text:?}");
        }
    }
}
