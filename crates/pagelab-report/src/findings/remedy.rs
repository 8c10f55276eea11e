//! The command line that mends a finding: one for each kind, with the numbers of this machine where they are
//! known. Words in capitals are for the reader to fill in.

use pagelab_metrics::findings::FindingKind;
use pagelab_model::machine::CgroupVersion;
use pagelab_model::{Bytes, PageClass, Snapshot};

use super::NextCommand;

/// What the kernel objects hold that pin others that cannot be reclaimed: dentries and inodes.
const DROP_OBJECTS: &str = "sysctl vm.drop_caches=2";

pub(super) fn of(kind: &FindingKind, snapshot: &Snapshot) -> String {
    use FindingKind as K;
    match kind {
        K::FreeMemoryUnusable { .. } | K::ThpRefused { .. } | K::ProbeRefused { .. } => {
            ours(NextCommand::COMPACT)
        }
        K::SpoiledBlocks { culprit: Some((PageClass::Slab, _)), .. } => DROP_OBJECTS.to_owned(),
        K::SpoiledBlocks { .. } => ours(NextCommand::COMPACT),
        K::CompactionFails { .. } => "sysctl vm.compaction_proactiveness=50".to_owned(),
        K::ProcessWithoutHuge { .. } | K::PageTables { .. } => ours(NextCommand::TUNE),
        K::HugetlbIdle { page_size, idle, total } => {
            smaller_pool(snapshot, *page_size, total.saturating_sub(*idle))
        }
        K::Pressure { .. } | K::OomKills { .. } if has_swap(snapshot) => {
            "systemctl set-property SERVICE MemoryHigh=SIZE".to_owned()
        }
        K::Pressure { .. } | K::OomKills { .. } | K::SwapFull { .. } => swap_file(snapshot),
        K::AllocationFailures { order_max, .. } => match order_max {
            Some(order) if *order > 0 => ours(NextCommand::COMPACT),
            _ => larger_reserve(snapshot),
        },
        K::CgroupOomKills { group, limit, .. } => {
            larger_limit(snapshot, group.as_deref().unwrap_or("GROUP"), *limit)
        }
        // Pages of a pool are not free, and stay with this machine.
        K::HostTakesFree { .. } => "sysctl vm.nr_hugepages=PAGES".to_owned(),
        // It cannot be reclaimed: who holds it has to let go.
        K::SlabUnreclaimable { .. } => "slabtop -o -s c".to_owned(),
        K::CgroupTight { limit, .. } => {
            let group = snapshot.machine.cgroup.as_ref().ok().and_then(|group| group.limit_path.as_deref());
            larger_limit(snapshot, group.unwrap_or("GROUP"), Some(*limit))
        }
        K::IndexDiffers { .. } => {
            NextCommand::EXPLAIN.line(snapshot).unwrap_or_else(|| ours(NextCommand::EXPLAIN))
        }
        // The counter is behind by what each CPU keeps to itself, until that is added up (mm/vmstat.c).
        K::FreeUnexplained { .. } => "sysctl vm.stat_refresh=1".to_owned(),
    }
}

fn ours(command: NextCommand) -> String {
    format!("pagelab {}", command.words().join(" "))
}

fn has_swap(snapshot: &Snapshot) -> bool {
    snapshot.settings.swap.as_ref().is_ok_and(|areas| !areas.is_empty())
}

/// A file of swap, of a name that is not yet one.
fn swap_file(snapshot: &Snapshot) -> String {
    let areas = snapshot.settings.swap.as_deref().unwrap_or_default();
    let is_new = |name: &String| areas.iter().all(|area| area.name != *name);
    let mut names = (2..).map(|number| format!("/swapfile{number}"));
    let name = Some("/swapfile".to_owned()).filter(is_new).or_else(|| names.find(is_new)).unwrap_or_default();
    format!("fallocate -l 4G {name} && chmod 600 {name} && mkswap {name} && swapon {name}")
}

/// Twice the limit of that time; control groups are set by libcgroup's `cgset`, whoever made them.
fn larger_limit(snapshot: &Snapshot, group: &str, limit: Option<Bytes>) -> String {
    let version = snapshot.machine.cgroup.as_ref().ok().map(|group| group.version);
    let file = match version {
        Some(CgroupVersion::V1 | CgroupVersion::Hybrid) => "memory.limit_in_bytes",
        Some(CgroupVersion::V2) | None => "memory.max",
    };
    let size = limit.map_or("SIZE".to_owned(), |limit| limit.0.saturating_mul(2).to_string());
    let group = group.trim_start_matches('/');
    let group = if group.is_empty() { "GROUP" } else { group };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.-:@".contains(c);
    match group.chars().all(is_plain) {
        true => format!("cgset -r {file}={size} {group}"),
        false => format!("cgset -r {file}={size} '{}'", group.replace('\'', "'\\''")),
    }
}

/// Twice the pages that the kernel keeps for those who cannot wait.
fn larger_reserve(snapshot: &Snapshot) -> String {
    match snapshot.settings.vm.get("min_free_kbytes") {
        Some(kib) => format!("sysctl vm.min_free_kbytes={}", kib.saturating_mul(2)),
        None => "sysctl vm.min_free_kbytes=KIB".to_owned(),
    }
}

fn smaller_pool(snapshot: &Snapshot, page_size: Bytes, used: u64) -> String {
    let usual = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("Hugepagesize"));
    match usual == Some(page_size) {
        true => format!("sysctl vm.nr_hugepages={used}"),
        false => format!("hugeadm --pool-pages-max {}:{used}", page_size.0),
    }
}
