//! Wording of findings: a sentence, the evidence, the next commands, and the remedy.

use pagelab_metrics::findings::{Finding, FindingKind, NoHugePagesReason};
use pagelab_metrics::supply::{CountEstimate, EstimateRange};
use pagelab_model::{AbsenceReason, Bytes, Order, PageClass, PageSize, Pages, Snapshot};

use crate::style::{format_bytes, format_count, format_percent, format_plural};

mod cgroup_limit;

/// Finding in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindingText {
    /// Sentence with the main number.
    pub sentence: String,
    /// Source of the number and further evidence.
    pub evidence: String,
    /// Commands of this build that continue from here.
    pub next_commands: &'static [NextCommand],
    /// Command line of the remedy; the user replaces words in capitals.
    pub remedy: String,
}

impl FindingText {
    /// The commands to type after this snapshot, the remedy last.
    pub fn command_lines(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut lines: Vec<String> =
            self.next_commands.iter().filter_map(|next| next.command_line(snapshot)).collect();
        lines.retain(|line| *line != self.remedy);
        lines.push(self.remedy.clone());
        lines
    }

    /// The commands as the report shows them: the remedy of a saved tree names the machine it is for.
    pub fn step_lines(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut lines = self.command_lines(snapshot);
        let is_here = snapshot.taken.euid.is_some();
        let of_that_machine = lines.last_mut().filter(|line| !is_here && !line.contains(" --root "));
        if let Some(line) = of_that_machine {
            line.insert_str(0, SAVED_TREE_PREFIX);
        }
        lines
    }
}

/// Marks a command for another machine: the snapshot is of a saved tree.
const SAVED_TREE_PREFIX: &str = "on that machine: ";

/// Command that a finding may name. The list is closed, so that a test can parse each as the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextCommand(&'static [&'static str]);

impl NextCommand {
    /// Measures the effect of huge pages and whether they are allocated.
    pub const PROBE: NextCommand = NextCommand(&["checkup", "--probe"]);
    /// The full report.
    pub const VERBOSE: NextCommand = NextCommand(&["checkup", "-v"]);
    /// Eligible memory by mapping.
    pub const DEEP: NextCommand = NextCommand(&["checkup", "-v", "--deep"]);
    /// The calculation of the indices, line by line.
    pub const EXPLAIN: NextCommand = NextCommand(&["frag", "--explain"]);
    /// One file for a bug report.
    pub const CAPTURE: NextCommand = NextCommand(&["capture", "memory.tar.zst"]);
    /// Compaction of free memory into contiguous blocks.
    pub const COMPACT: NextCommand = NextCommand(&["compact"]);
    /// Measures what huge pages gain for a program, and how many it needs.
    pub const TUNE: NextCommand = NextCommand(&["tune", "--", "COMMAND"]);

    /// Every command that a finding may name.
    pub const ALL: [NextCommand; 7] = [
        NextCommand::COMPACT,
        NextCommand::PROBE,
        NextCommand::VERBOSE,
        NextCommand::DEEP,
        NextCommand::EXPLAIN,
        NextCommand::CAPTURE,
        NextCommand::TUNE,
    ];

    /// The words after `pagelab`.
    pub fn arguments(self) -> &'static [&'static str] {
        self.0
    }

    /// The command line as the user types it after this snapshot: it names a saved tree again, and omits what
    /// only the running machine can do.
    pub fn command_line(self, snapshot: &Snapshot) -> Option<String> {
        let line = format!("pagelab {}", self.0.join(" "));
        if snapshot.taken.euid.is_some() {
            return Some(line);
        }
        let is_live_only =
            [NextCommand::PROBE, NextCommand::CAPTURE, NextCommand::COMPACT, NextCommand::TUNE]
                .contains(&self);
        (!is_live_only).then(|| format!("{line} --root {}", snapshot.taken.source))
    }
}

/// Display name of a class of pages.
pub fn class_text(class: PageClass) -> &'static str {
    match class {
        PageClass::Free => "free pages",
        PageClass::Anon => "program memory",
        PageClass::AnonHuge => "user memory in large folios",
        PageClass::File => "page cache",
        PageClass::MovableOther => "other movable pages",
        PageClass::Hugetlb => "hugetlb pages",
        PageClass::Slab => "slab",
        PageClass::PageTable => "page tables",
        PageClass::Reserved => "reserved pages",
        PageClass::Kernel => "other kernel pages",
        PageClass::Unknown => "pages without flags",
        PageClass::Deferred => "pages not yet initialised",
        PageClass::Hole => "holes in the memory map",
        PageClass::Offline => "offline pages",
        PageClass::Poisoned => "pages with hardware errors",
    }
}

/// Puts a finding into words. One table of wordings: an arm for each finding, with no computation except
/// units.
pub fn describe_finding(finding: &Finding, snapshot: &Snapshot) -> FindingText {
    use FindingKind as K;
    let page_size = snapshot.machine.page_size;
    let order = snapshot.pmd_order;
    let (sentence, evidence, next_commands): (String, String, &'static [NextCommand]) = match &finding.kind {
        K::FreeMemoryUnusable { zone, unusable, free, free_huge_pages: huge_now } => (
            format!(
                "{} of the free memory in {} is unusable for {} pages",
                format_percent(*unusable),
                zone.zone,
                format_bytes(page_size.block_bytes(order))
            ),
            format!(
                "F_u({}) {} on node {}, {} free, {} huge pages available now (buddyinfo)",
                order.0,
                pagelab_metrics::fragmentation_index::format_share(*unusable),
                zone.node.0,
                format_bytes(*free),
                format_number(*huge_now)
            ),
            &[NextCommand::EXPLAIN, NextCommand::VERBOSE],
        ),
        K::PollutedBlocks { polluted, total, largest_class } => (
            format!(
                "{} of {} pageblocks are polluted: they contain unmovable pages and cannot become huge pages",
                format_interval(*polluted),
                format_number(*total)
            ),
            match largest_class {
                Some((class, blocks)) => format!(
                    "{} contain {} (from kpageflags; a single such page is enough)",
                    format_estimate(*blocks),
                    class_text(*class)
                ),
                None => "from kpageflags; a single unmovable page pollutes its pageblock".to_owned(),
            },
            &[NextCommand::VERBOSE],
        ),
        K::ThpFallback { faults: wanted, share } => (
            format!("{} of the THP faults fell back to base pages", format_percent(*share)),
            format!("{} THP faults since boot (vmstat thp_fault_*)", format_number(*wanted)),
            &[NextCommand::PROBE],
        ),
        K::CompactionFails { ended, share } => (
            format!("direct compaction stalls programs and fails in {} of cases", format_percent(*share)),
            format!("{} completed stalls since boot (vmstat compact_*)", format_number(*ended)),
            &[NextCommand::VERBOSE],
        ),
        K::ProcessWithoutHugePages { pid, name, anonymous, huge, reason: why } => (
            describe_no_huge_pages(*pid, name.as_deref(), *anonymous, *why),
            format!(
                "AnonHugePages {} of Anonymous {} (smaps_rollup)",
                format_bytes(*huge),
                format_bytes(*anonymous)
            ),
            &[NextCommand::TUNE, NextCommand::PROBE, NextCommand::DEEP],
        ),
        K::IdleHugetlb { page_size, idle_pages: idle, total } => (
            format!("{} is idle in a hugetlb pool", format_bytes(Bytes(idle.saturating_mul(page_size.0)))),
            format!(
                "{idle} of {total} pages of {} are free and not reserved (nr_hugepages)",
                format_bytes(*page_size)
            ),
            &[NextCommand::VERBOSE],
        ),
        K::Pressure { some_avg10_centipercent: ten, some_avg60_centipercent: sixty } => (
            format!(
                "programs waited for memory in {} of the last 10 s",
                format_percent(f64::from(*ten) / 1e4)
            ),
            format!("{} of the last 60 s (pressure/memory, some)", format_percent(f64::from(*sixty) / 1e4)),
            &[NextCommand::VERBOSE],
        ),
        K::SwapNearlyFull { used, total } => (
            format!("swap is nearly full: {} of {}", format_bytes(*used), format_bytes(*total)),
            "SwapTotal − SwapFree (meminfo)".to_owned(),
            &[NextCommand::VERBOSE],
        ),
        K::AllocationFailures { reports, order_max, last_process } => (
            format!("the kernel log contains {} of allocation failures", format_plural(*reports, "report")),
            match order_max {
                Some(order) => format!("highest order {order}, last process {last_process}"),
                None => format!("last process {last_process}"),
            },
            &[NextCommand::VERBOSE],
        ),
        K::OomKills { kills, unexplained, last_process } => {
            let (sentence, evidence) =
                describe_oom_kills(*kills, *unexplained, last_process.as_deref(), snapshot);
            (sentence, evidence, &[NextCommand::VERBOSE])
        }
        K::CgroupOomKills { kills, last_process, group, limit, limit_file } => (
            format!(
                "{} cgroup reached its memory limit",
                format_plural(*kills, "process was killed because its|processes were killed because their")
            ),
            {
                let now = cgroup_limit::describe_group_now(group.as_deref(), *limit, limit_file.as_ref());
                let group = group.as_ref().map_or(String::new(), |group| format!(" in {group}"));
                let limit = limit.map_or(String::new(), |limit| format!(", limit {}", format_bytes(limit)));
                format!("the last was {last_process}{group}{limit} (kernel log){now}")
            },
            &[NextCommand::VERBOSE],
        ),
        K::FreePageReporting { order, requested_order, device, reported } => {
            let (sentence, evidence) =
                describe_host_faults(*order, *requested_order, device.as_deref(), *reported, page_size);
            (sentence, evidence, &[NextCommand::PROBE])
        }
        K::PageTables { bytes: size, share } => (
            format!("page tables use {} of memory", format_percent(*share)),
            format!("{} (meminfo PageTables + SecPageTables)", format_bytes(*size)),
            &[NextCommand::TUNE, NextCommand::PROBE],
        ),
        K::SlabUnreclaimable { bytes: size, share, largest } => (
            format!("unreclaimable slab objects use {} of memory", format_percent(*share)),
            {
                let cache = largest.as_ref().map_or("slabinfo is not readable".to_owned(), |(name, of)| {
                    format!("the largest cache is {name}, {}", format_bytes(*of))
                });
                format!("{} (meminfo SUnreclaim); {cache}", format_bytes(*size))
            },
            &[NextCommand::VERBOSE],
        ),
        K::CgroupNearLimit { used, limit } => (
            format!("this cgroup uses {} of its limit of {}", format_bytes(*used), format_bytes(*limit)),
            "the lowest limit of the cgroup and its ancestors; page cache counts towards it, but is \
             reclaimed first"
                .to_owned(),
            &[NextCommand::VERBOSE],
        ),
        K::IndexDiffers { cells, compared } => (
            format!("pagelab and the kernel disagree on {cells} of {compared} indices: please report this"),
            "debugfs extfrag files compared with buddyinfo, which was the same before and after".to_owned(),
            &[NextCommand::CAPTURE],
        ),
        K::FreeMemoryUnexplained { on_lists, counted } => (
            format!(
                "the kernel's two counts of free memory differ by {} for an unknown reason",
                format_bytes(Pages(counted.0.abs_diff(on_lists.0)).to_bytes(page_size))
            ),
            format!(
                "{} on the free lists (buddyinfo), {} by the counter (meminfo)",
                format_bytes(on_lists.to_bytes(page_size)),
                format_bytes(counted.to_bytes(page_size))
            ),
            &[NextCommand::CAPTURE],
        ),
        K::ProbeFallback { requested, allocated } => (
            format!("only {allocated} of {requested} requested huge pages were allocated"),
            "requested by MADV_COLLAPSE one at a time, then read back".to_owned(),
            &[NextCommand::VERBOSE],
        ),
    };
    FindingText { sentence, evidence, next_commands, remedy: remedy_for(&finding.kind, snapshot) }
}

/// Describes the reason why the first touch of free memory is slow, and the setting behind it.
fn describe_host_faults(
    order: Option<Order>,
    requested: Option<i64>,
    device: Option<&str>,
    reported: Option<Bytes>,
    page_size: PageSize,
) -> (String, String) {
    let from = order.map_or("of large orders".to_owned(), |order| {
        format!("of order {} ({}) and above", order.0, format_bytes(page_size.block_bytes(order)))
    });
    let sentence = match reported {
        Some(size) if size.0 > 0 => {
            format!("the host has reclaimed ~{} of free memory; its first touch is slow", format_bytes(size))
        }
        _ => format!("the host reclaims free blocks {from} about 2 s after they are freed"),
    };
    let requested = requested.map_or(String::new(), |order| {
        format!("; the kernel command line requests order {order}, which this kernel does not use")
    });
    let device = device.map_or(String::new(), |device| format!(" by the balloon {device}"));
    let evidence = format!(
        "free page reporting{device}, blocks {from}, 2 s after they were freed{requested}; run, tune, can \
         --really and --probe warm memory before they measure; to disable it on the host: \
         free-page-reporting=off"
    );
    (sentence, evidence)
}

fn describe_oom_kills(
    kills: u64,
    unexplained: u64,
    last: Option<&str>,
    snapshot: &Snapshot,
) -> (String, String) {
    let processes = format_plural(kills, "process was|processes were");
    let last = last.map(|last| format!("the last was {last} (kernel log)"));
    if unexplained == 0 {
        let sentence = format!("{processes} killed by the OOM killer: the machine ran out of memory");
        return (sentence, last.unwrap_or("kernel log".to_owned()));
    }
    let why = match &snapshot.alloc_failures {
        Err(absence) if absence.why == AbsenceReason::NotPermitted => "only root can read the kernel log",
        Err(_) => "the kernel log could not be read",
        Ok(_) => "they are not in the kernel log",
    };
    let unknown = format!(
        "the scope of {} is unknown: {why} (vmstat oom_kill)",
        format_plural(unexplained, "OOM kill|OOM kills")
    );
    let evidence = last.map_or(unknown.clone(), |last| format!("{last}; {unknown}"));
    (format!("{processes} killed by the OOM killer since boot"), evidence)
}

fn describe_no_huge_pages(
    pid: u32,
    name: Option<&str>,
    anonymous: Bytes,
    obstacle: NoHugePagesReason,
) -> String {
    let who = name.map_or(format!("process {pid}"), |name| format!("{name} (pid {pid})"));
    let reason = match obstacle {
        NoHugePagesReason::ModeNever => "the mode is `never`",
        NoHugePagesReason::NotAdvised => "it makes no MADV_HUGEPAGE request (`madvise` mode)",
        NoHugePagesReason::SwitchedOff => "it disabled them (prctl PR_SET_THP_DISABLE)",
        NoHugePagesReason::NotAllocated => "the mode is `always`, but none were allocated",
    };
    format!("{who}, {}, has almost no huge pages: {reason}", format_bytes(anonymous))
}

fn format_number(value: u64) -> String {
    format_count(u128::from(value))
}

/// Formats a range: `412`, or `412 to 419` if the ends differ.
pub fn format_range(low: u64, high: u64) -> String {
    if low == high {
        format_number(low)
    } else {
        format!("{} to {}", format_number(low), format_number(high))
    }
}

/// Formats a count; from a sample `~412 ± 30`.
pub fn format_estimate(value: CountEstimate) -> String {
    match value.margin {
        Some(error) => format!("~{} ± {}", format_number(value.value), format_number(error)),
        None => format_number(value.value),
    }
}

/// Formats both ends of an interval, or one count if they are equal.
pub fn format_interval(value: EstimateRange) -> String {
    if value.low == value.high {
        format_estimate(value.low)
    } else {
        format!("{} to {}", format_estimate(value.low), format_estimate(value.high))
    }
}

// Command line of the remedy for each finding, with the numbers of this machine if they are known. The
// user replaces words in capitals.

/// Frees the kernel objects that pin unreclaimable ones: dentries and inodes.
const DROP_SLAB_OBJECTS: &str = "sysctl vm.drop_caches=2";

fn remedy_for(kind: &FindingKind, snapshot: &Snapshot) -> String {
    use FindingKind as K;
    match kind {
        K::FreeMemoryUnusable { .. } | K::ThpFallback { .. } | K::ProbeFallback { .. } => {
            pagelab_command(NextCommand::COMPACT)
        }
        K::PollutedBlocks { largest_class: Some((PageClass::Slab, _)), .. } => DROP_SLAB_OBJECTS.to_owned(),
        K::PollutedBlocks { .. } => pagelab_command(NextCommand::COMPACT),
        K::CompactionFails { .. } => "sysctl vm.compaction_proactiveness=50".to_owned(),
        K::ProcessWithoutHugePages { .. } | K::PageTables { .. } => pagelab_command(NextCommand::TUNE),
        K::IdleHugetlb { page_size, idle_pages: idle, total } => {
            shrink_hugetlb_pool(snapshot, *page_size, total.saturating_sub(*idle))
        }
        // Swap does not help a group that reached its limit, and it is unknown whether one did.
        K::OomKills { kills, unexplained, .. } if kills == unexplained => {
            cgroup_limit::LIST_GROUPS_WITH_KILLS.to_owned()
        }
        K::Pressure { .. } | K::OomKills { .. } if has_swap(snapshot) => {
            "systemctl set-property SERVICE MemoryHigh=SIZE".to_owned()
        }
        K::Pressure { .. } | K::OomKills { .. } | K::SwapNearlyFull { .. } => swap_file_path(snapshot),
        K::AllocationFailures { order_max, .. } => match order_max {
            Some(order) if *order > 0 => pagelab_command(NextCommand::COMPACT),
            _ => raise_min_free_kbytes(snapshot),
        },
        K::CgroupOomKills { group, limit, limit_file, .. } => {
            cgroup_limit::raise_limit_after_kill(group.as_deref(), *limit, limit_file.as_ref())
        }
        // Pages of a pool are not free, so the host does not take them back.
        K::FreePageReporting { .. } => "sysctl vm.nr_hugepages=PAGES".to_owned(),
        // The memory cannot be reclaimed: its owner must release it.
        K::SlabUnreclaimable { .. } => "slabtop -o -s c".to_owned(),
        K::CgroupNearLimit { limit, .. } => cgroup_limit::raise_own_limit(snapshot, *limit),
        K::IndexDiffers { .. } => NextCommand::EXPLAIN
            .command_line(snapshot)
            .unwrap_or_else(|| pagelab_command(NextCommand::EXPLAIN)),
        // The counter lags by the per-CPU differences until they are folded in (mm/vmstat.c).
        K::FreeMemoryUnexplained { .. } => "sysctl vm.stat_refresh=1".to_owned(),
    }
}

fn pagelab_command(command: NextCommand) -> String {
    format!("pagelab {}", command.arguments().join(" "))
}

fn has_swap(snapshot: &Snapshot) -> bool {
    snapshot.settings.swap.as_ref().is_ok_and(|areas| !areas.is_empty())
}

/// Command for a swap file with an unused name.
fn swap_file_path(snapshot: &Snapshot) -> String {
    let areas = snapshot.settings.swap.as_deref().unwrap_or_default();
    let is_new = |name: &String| areas.iter().all(|area| area.name != *name);
    let mut names = (2..).map(|number| format!("/swapfile{number}"));
    let name = Some("/swapfile".to_owned()).filter(is_new).or_else(|| names.find(is_new)).unwrap_or_default();
    format!("fallocate -l 4G {name} && chmod 600 {name} && mkswap {name} && swapon {name}")
}

/// Command that doubles the reserve of the kernel for requests that cannot wait.
fn raise_min_free_kbytes(snapshot: &Snapshot) -> String {
    match snapshot.settings.vm.get("min_free_kbytes") {
        Some(kib) => format!("sysctl vm.min_free_kbytes={}", kib.saturating_mul(2)),
        None => "sysctl vm.min_free_kbytes=KIB".to_owned(),
    }
}

fn shrink_hugetlb_pool(snapshot: &Snapshot, page_size: Bytes, used: u64) -> String {
    let usual = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("Hugepagesize"));
    match usual == Some(page_size) {
        true => format!("sysctl vm.nr_hugepages={used}"),
        false => format!("hugeadm --pool-pages-max {}:{used}", page_size.0),
    }
}

#[cfg(test)]
mod tests;
