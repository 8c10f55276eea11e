//! Settings that pagelab may write: one list, for new changes and for old journals.
//!
//! A journal is a file, and a file can contain anything. So a path in a journal alone is never written to:
//! the path must have one of the shapes here, and the value must fit the shape. To guard a new setting, add
//! its shape to the tables.

use std::io;

use pagelab_model::size::format_exact;
use pagelab_model::{Bytes, NodeId};

use super::kernel::Kernel;
use super::owner::sanitize_text;
use super::{GuardError, GuardErrorKind};
use crate::paths;

/// Words in brackets, below transparent_hugepage/.
const THP_CHOICE_FILES: [&str; 3] = ["defrag", "enabled", "shmem_enabled"];
/// Words in brackets, below transparent_hugepage/hugepages-*kB/ (6.8 and later).
const THP_SIZE_CHOICE_FILES: [&str; 2] = ["enabled", "shmem_enabled"];
/// Numbers below transparent_hugepage/.
const THP_NUMBER_FILES: [&str; 9] = [
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
/// Numbers below sys/vm/. Its nr_hugepages is left out: it is another name of the default pool, and a setting
/// with two names could have two owners.
const VM_NUMBER_FILES: [&str; 12] = [
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
    kind: KnobKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum KnobKind {
    /// `always [madvise] never`: the bracketed word is the value.
    Choice,
    Number,
    /// Persistent pages of a hugetlb pool, of the machine or of one node.
    Pool {
        page_kib: u64,
        node: Option<u32>,
    },
}

impl Knob {
    /// The setting at a path, if it is one that pagelab may write.
    pub fn from_path(path: &str) -> Result<Knob, GuardError> {
        let kind = classify_path(path).ok_or_else(|| {
            let message =
                format!("cannot change {}: pagelab does not manage this setting", sanitize_text(path));
            GuardError::new(GuardErrorKind::InvalidRequest, message)
        })?;
        Ok(Knob { path: path.to_owned(), kind })
    }

    /// Mode of transparent huge pages for anonymous memory.
    pub fn thp_enabled() -> Knob {
        Knob { path: format!("{}/enabled", paths::THP), kind: KnobKind::Choice }
    }

    /// Effort of a page fault to allocate a huge page.
    pub fn thp_defrag() -> Knob {
        Knob { path: format!("{}/defrag", paths::THP), kind: KnobKind::Choice }
    }

    /// Mode of one size of transparent huge pages (6.8 and later).
    pub fn thp_size_enabled(size: Bytes) -> Knob {
        let path = format!("{}/hugepages-{}kB/enabled", paths::THP, size.0 / 1024);
        Knob { path, kind: KnobKind::Choice }
    }

    /// A number of `khugepaged/`, such as `max_ptes_none`.
    pub fn khugepaged(name: &str) -> Result<Knob, GuardError> {
        Knob::from_path(&format!("{}/khugepaged/{name}", paths::THP))
    }

    /// A number of `/proc/sys/vm`, such as `swappiness`.
    pub fn vm(name: &str) -> Result<Knob, GuardError> {
        Knob::from_path(&format!("{}/{name}", paths::SYSCTL_VM))
    }

    /// The persistent pages of a hugetlb pool: of the machine, or of one node.
    pub fn hugetlb(page_size: Bytes, node: Option<NodeId>) -> Knob {
        let page_kib = page_size.0 / 1024;
        let base = match node {
            Some(node) => format!("{}/node{}/hugepages", paths::NODES, node.0),
            None => paths::HUGETLB.to_owned(),
        };
        let path = format!("{base}/hugepages-{page_kib}kB/nr_hugepages");
        Knob { path, kind: KnobKind::Pool { page_kib, node: node.map(|n| n.0) } }
    }

    /// The file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its display name: `THP enabled`, `vm.swappiness`, `2 MiB pool`.
    pub fn label(&self) -> String {
        if let KnobKind::Pool { page_kib, node } = self.kind {
            let of_node = node.map(|node| format!(" of node {node}")).unwrap_or_default();
            return format!("{} pool{of_node}", format_exact(Bytes::from_kib(page_kib)));
        }
        if let Some(name) = strip_dir(&self.path, paths::SYSCTL_VM) {
            return format!("vm.{name}");
        }
        let name = strip_dir(&self.path, paths::THP).unwrap_or(&self.path);
        match name.split_once('/') {
            Some(("khugepaged", name)) => format!("khugepaged {name}"),
            Some((size, name)) => match parse_page_kib(size) {
                Some(page_kib) => format!("THP {} {name}", format_exact(Bytes::from_kib(page_kib))),
                None => format!("THP {name}"),
            },
            None => format!("THP {name}"),
        }
    }

    /// Resource with one owner at a time. The pools of one page size are one resource: a change of a node's
    /// pool is a change of the machine's.
    pub(super) fn claim_key(&self) -> String {
        match self.kind {
            KnobKind::Pool { page_kib, .. } => format!("hugetlb {page_kib}"),
            KnobKind::Choice | KnobKind::Number => self.path.clone(),
        }
    }

    /// Whether the value is valid for the setting, by its shape.
    pub(super) fn is_valid_value(&self, value: &str) -> bool {
        match self.kind {
            KnobKind::Choice => is_word(value),
            KnobKind::Number | KnobKind::Pool { .. } => is_number(value),
        }
    }

    /// The value in force.
    pub(super) fn read(&self, kernel: &dyn Kernel) -> io::Result<String> {
        match self.kind {
            KnobKind::Choice => parse_selected(&kernel.read(&self.path)?),
            KnobKind::Number => parse_number(&kernel.read(&self.path)?).map(|n| n.to_string()),
            KnobKind::Pool { .. } => self.persistent_pages(kernel).map(|n| n.to_string()),
        }
    }

    pub(super) fn write(&self, kernel: &dyn Kernel, value: &str) -> io::Result<()> {
        kernel.write(&self.path, value)
    }

    pub(super) fn write_verified(&self, kernel: &dyn Kernel, value: &str) -> io::Result<()> {
        self.write(kernel, value)?;
        let now = self.read(kernel)?;
        match now == value {
            true => Ok(()),
            false => Err(io::Error::other(format!("it is {now} after writing {value}"))),
        }
    }

    /// Choices of the kernel, if it lists them: `always madvise never`.
    pub(super) fn available_choices(&self, kernel: &dyn Kernel) -> Option<String> {
        let KnobKind::Choice = self.kind else { return None };
        let text = kernel.read(&self.path).ok()?;
        Some(sanitize_text(text.trim()).replace(['[', ']'], ""))
    }

    /// nr_hugepages shows all pages of the pool, including the surplus, and a write sets the persistent ones
    /// (mm/hugetlb.c, set_max_huge_pages). Written back as read, it would make surplus pages persistent.
    fn persistent_pages(&self, kernel: &dyn Kernel) -> io::Result<u64> {
        let surplus_path = self.path.replace("/nr_hugepages", "/surplus_hugepages");
        let surplus = || match kernel.read(&surplus_path) {
            Ok(text) => parse_number(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        };
        let mut before = surplus()?;
        for _ in 0..20 {
            let total = parse_number(&kernel.read(&self.path)?)?;
            let after = surplus()?;
            if before == after && total >= after {
                return Ok(total - after);
            }
            before = after;
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "the pool's surplus changed on every read"))
    }

    /// Whether a value is between two others. A pool grows and shrinks page by page, and a writer that is
    /// killed leaves it where it was; all other settings change at once.
    pub(super) fn is_between(&self, value: &str, one: &str, other: &str) -> bool {
        let KnobKind::Pool { .. } = self.kind else { return false };
        match (parse_number(value), parse_number(one), parse_number(other)) {
            (Ok(value), Ok(one), Ok(other)) => (one.min(other)..=one.max(other)).contains(&value),
            _ => false,
        }
    }

    /// Whether the kernel may apply less than requested without an error.
    pub(super) fn can_fall_short(&self) -> bool {
        matches!(self.kind, KnobKind::Pool { .. })
    }

    /// Compares the machine's default pool with meminfo, a second interface to it; other settings have none.
    /// Two files cannot be read at one moment: a changing pool gets a few tries.
    pub(super) fn cross_check(&self, kernel: &dyn Kernel) -> Result<(), String> {
        let KnobKind::Pool { page_kib, node: None } = self.kind else { return Ok(()) };
        let mut agreement = Ok(());
        for _ in 0..5 {
            let (Ok(meminfo), Ok(pool)) = (kernel.read(paths::MEMINFO), kernel.read(&self.path)) else {
                break;
            };
            let field = |name| {
                let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_ascii_whitespace().next()?.parse::<u64>().ok()
            };
            let Some(total) = field("HugePages_Total:") else { break };
            if field("Hugepagesize:") != Some(page_kib) || parse_number(&pool).ok() == Some(total) {
                return Ok(());
            }
            agreement = Err(format!("it reads {:?}, but HugePages_Total in meminfo is {total}", pool.trim()));
        }
        agreement
    }

    /// A setting that the kernel changes with this one: each write to a mode of transparent huge pages starts
    /// or stops khugepaged, which recomputes min_free_kbytes over a smaller value that the administrator
    /// chose (mm/khugepaged.c, set_recommended_min_free_kbytes; on stop since 5.15).
    pub(super) fn companion_knob(&self) -> Option<Knob> {
        let is_thp = strip_dir(&self.path, paths::THP).is_some();
        let is_mode = self.path.ends_with("/enabled") || self.path.ends_with("/shmem_enabled");
        (is_thp && is_mode)
            .then(|| Knob { path: format!("{}/min_free_kbytes", paths::SYSCTL_VM), kind: KnobKind::Number })
    }
}

fn classify_path(path: &str) -> Option<KnobKind> {
    if let Some(name) = strip_dir(path, paths::SYSCTL_VM) {
        return VM_NUMBER_FILES.contains(&name).then_some(KnobKind::Number);
    }
    if let Some(name) = strip_dir(path, paths::THP) {
        if THP_CHOICE_FILES.contains(&name) {
            return Some(KnobKind::Choice);
        }
        if THP_NUMBER_FILES.contains(&name) {
            return Some(KnobKind::Number);
        }
        let (size, name) = name.split_once('/')?;
        return (parse_page_kib(size).is_some() && THP_SIZE_CHOICE_FILES.contains(&name))
            .then_some(KnobKind::Choice);
    }
    let (pool, node) = match strip_dir(path, paths::HUGETLB) {
        Some(pool) => (pool, None),
        None => {
            let (node, pool) = strip_dir(path, paths::NODES)?.split_once("/hugepages/")?;
            (pool, Some(parse_canonical(node.strip_prefix("node")?)?))
        }
    };
    let page_kib = parse_page_kib(pool.strip_suffix("/nr_hugepages")?)?;
    Some(KnobKind::Pool { page_kib, node })
}

fn strip_dir<'p>(path: &'p str, base: &str) -> Option<&'p str> {
    path.strip_prefix(base)?.strip_prefix('/')
}

/// `hugepages-2048kB` → 2048.
fn parse_page_kib(directory: &str) -> Option<u64> {
    parse_canonical(directory.strip_prefix("hugepages-")?.strip_suffix("kB")?)
}

/// A number as the kernel prints it: `02` and `+2` would be second names of one setting.
fn parse_canonical<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte == b'+';
    (1..=WORD_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_number(text: &str) -> bool {
    parse_canonical::<u64>(text).is_some()
}

fn invalid_data(what: &str, text: &str) -> io::Error {
    let shown = sanitize_text(text.trim());
    io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {shown:?}"))
}

fn parse_number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| invalid_data("is not a number", text))
}

/// The word in brackets. A single word without brackets is a value too: some kernel files print only that.
fn parse_selected(text: &str) -> io::Result<String> {
    let mut words = text.split_ascii_whitespace();
    let bracketed = words.clone().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let value = match (bracketed, words.next(), words.next()) {
        (Some(word), _, _) => word,
        (None, Some(word), None) => word,
        _ => return Err(invalid_data("has no word in brackets", text)),
    };
    match is_word(value) {
        true => Ok(value.to_owned()),
        false => Err(invalid_data("is not a word", value)),
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
            ("/sys/kernel/mm/transparent_hugepage/shmem_enabled", Some("THP shmem_enabled")),
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
            assert_eq!(Knob::from_path(path).ok().map(|knob| knob.label()).as_deref(), label, "{path}");
        }
    }

    #[test]
    fn constructors_make_what_the_list_knows() {
        let knobs = [
            Knob::thp_enabled(),
            Knob::thp_defrag(),
            Knob::thp_size_enabled(Bytes(64 << 10)),
            Knob::khugepaged("pages_to_scan").unwrap(),
            Knob::vm("swappiness").unwrap(),
            Knob::hugetlb(Bytes(2 << 20), None),
            Knob::hugetlb(Bytes(1 << 30), Some(NodeId(3))),
        ];
        for knob in knobs {
            assert_eq!(Knob::from_path(knob.path()).unwrap(), knob);
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
            assert_eq!(parse_selected(text).ok().as_deref(), value, "{text:?}");
        }
    }
}
