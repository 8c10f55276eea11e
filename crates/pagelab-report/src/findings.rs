//! Findings in words: a sentence, its evidence, the next command, and the command that mends it.

mod remedy;

use pagelab_metrics::findings::{Finding, FindingKind, NoHugePages};
use pagelab_metrics::supply::{Estimate, Interval};
use pagelab_model::{Bytes, Order, PageClass, PageSize, Pages, Snapshot};

use crate::style::{bytes, count, percent};

/// One finding as a person reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worded {
    /// What is so, with its main number.
    pub sentence: String,
    /// Where the number is from and what belongs to it.
    pub evidence: Vec<String>,
    /// Commands of this build that go on from here.
    pub next: Vec<NextCommand>,
    /// The command line that mends it; words in capitals are to be filled in.
    pub remedy: String,
}

impl Worded {
    /// What one would type from this look, the remedy last.
    pub fn commands(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut lines: Vec<String> = self.next.iter().filter_map(|next| next.line(snapshot)).collect();
        lines.retain(|line| *line != self.remedy);
        lines.push(self.remedy.clone());
        lines
    }

    /// The same for a person: what a saved tree's remedy is for is said before it.
    pub fn steps(&self, snapshot: &Snapshot) -> Vec<String> {
        let mut lines = self.commands(snapshot);
        let is_here = snapshot.taken.euid.is_some();
        let of_that_machine = lines.last_mut().filter(|line| !is_here && !line.contains(" --root "));
        if let Some(line) = of_that_machine {
            line.insert_str(0, ELSEWHERE);
        }
        lines
    }
}

/// Before a command that is not for this machine: what was looked at is a saved tree.
const ELSEWHERE: &str = "on that machine: ";

/// A command that a finding may name. The list is closed, so that a test can read each as the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextCommand(&'static [&'static str]);

impl NextCommand {
    /// Measure what huge pages would buy, and whether they come.
    pub const PROBE: NextCommand = NextCommand(&["checkup", "--probe"]);
    /// The whole report.
    pub const VERBOSE: NextCommand = NextCommand(&["checkup", "-v"]);
    /// Eligible memory by mapping.
    pub const DEEP: NextCommand = NextCommand(&["checkup", "-v", "--deep"]);
    /// The indices worked out line by line.
    pub const EXPLAIN: NextCommand = NextCommand(&["frag", "--explain"]);
    /// One file for a bug report.
    pub const CAPTURE: NextCommand = NextCommand(&["capture", "memory.tar.zst"]);
    /// Whole blocks out of pieces.
    pub const COMPACT: NextCommand = NextCommand(&["compact"]);
    /// What huge pages bring to a program, and how many it takes.
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

    /// The words behind `pagelab`.
    pub fn words(self) -> &'static [&'static str] {
        self.0
    }

    /// As one would type it to go on from this look: a saved tree is named again, and what only the running
    /// machine can do is left out.
    pub fn line(self, snapshot: &Snapshot) -> Option<String> {
        let line = format!("pagelab {}", self.0.join(" "));
        if snapshot.taken.euid.is_some() {
            return Some(line);
        }
        let is_live_only =
            [NextCommand::PROBE, NextCommand::CAPTURE, NextCommand::COMPACT, NextCommand::TUNE]
                .contains(&self);
        (!is_live_only).then(|| format!("{line} --root {}", snapshot.taken.from))
    }
}

/// A class of pages as a person would say it.
pub fn class_words(class: PageClass) -> &'static str {
    match class {
        PageClass::Free => "free pages",
        PageClass::Anon => "program memory",
        PageClass::AnonHuge => "program memory in large folios",
        PageClass::File => "page cache",
        PageClass::MovableOther => "other movable pages",
        PageClass::Hugetlb => "hugetlb pages",
        PageClass::Slab => "slab",
        PageClass::PageTable => "page tables",
        PageClass::Reserved => "reserved pages",
        PageClass::Kernel => "other kernel pages",
        PageClass::Unknown => "pages without any flag",
        PageClass::Deferred => "pages not initialised yet",
        PageClass::Hole => "holes in the memory map",
        PageClass::Offline => "offline pages",
        PageClass::Poisoned => "pages with hardware errors",
    }
}

/// Puts a finding into words. One table of wordings: an arm for each kind, nothing computed but units.
pub fn word(finding: &Finding, snapshot: &Snapshot) -> Worded {
    use FindingKind as K;
    let page_size = snapshot.machine.page_size;
    let order = snapshot.pmd_order;
    let (sentence, evidence, next): (String, String, &[NextCommand]) = match &finding.kind {
        K::FreeMemoryUnusable { zone, unusable, free, huge_now } => (
            format!(
                "{} of the free memory in {} is unusable for {} pages",
                percent(*unusable),
                zone.zone,
                bytes(page_size.block(order))
            ),
            format!(
                "F_u({}) {} on node {}, {} free, {} huge pages could be had now (buddyinfo)",
                order.0,
                pagelab_metrics::frag::share_text(*unusable),
                zone.node.0,
                bytes(*free),
                number(*huge_now)
            ),
            &[NextCommand::EXPLAIN, NextCommand::VERBOSE],
        ),
        K::SpoiledBlocks { spoiled, total, culprit } => (
            format!(
                "{} of {} pageblocks hold pages that cannot be moved, so they cannot become huge pages",
                interval(*spoiled),
                number(*total)
            ),
            match culprit {
                Some((class, blocks)) => format!(
                    "{} hold {} (kpageflags; one such page spoils a block)",
                    estimate(*blocks),
                    class_words(*class)
                ),
                None => "kpageflags; one such page spoils a block".to_owned(),
            },
            &[NextCommand::VERBOSE],
        ),
        K::ThpRefused { wanted, share } => (
            format!("{} of the page faults that wanted a huge page were refused", percent(*share)),
            format!("{} faults wanted one since boot (vmstat thp_fault_*)", number(*wanted)),
            &[NextCommand::PROBE],
        ),
        K::CompactionFails { ended, share } => (
            format!("direct compaction stalls programs and fails in {} of the cases", percent(*share)),
            format!("{} stalls ended since boot (vmstat compact_*)", number(*ended)),
            &[NextCommand::VERBOSE],
        ),
        K::ProcessWithoutHuge { pid, name, anonymous, huge, why } => (
            without_huge(*pid, name.as_deref(), *anonymous, *why),
            format!("AnonHugePages {} of Anonymous {} (smaps_rollup)", bytes(*huge), bytes(*anonymous)),
            &[NextCommand::TUNE, NextCommand::PROBE, NextCommand::DEEP],
        ),
        K::HugetlbIdle { page_size, idle, total } => (
            format!(
                "{} are locked in a hugetlb pool and used by nobody",
                bytes(Bytes(idle.saturating_mul(page_size.0)))
            ),
            format!(
                "{idle} of {total} pages of {} are free and not promised (nr_hugepages)",
                bytes(*page_size)
            ),
            &[NextCommand::VERBOSE],
        ),
        K::Pressure { some_avg10_centipercent: ten, some_avg60_centipercent: sixty } => (
            format!("programs waited for memory in {} of the last 10 s", percent(f64::from(*ten) / 1e4)),
            format!("{} of the last 60 s (pressure/memory, some)", percent(f64::from(*sixty) / 1e4)),
            &[NextCommand::VERBOSE],
        ),
        K::SwapFull { used, total } => (
            format!("swap is nearly full: {} of {}", bytes(*used), bytes(*total)),
            "SwapTotal less SwapFree (meminfo)".to_owned(),
            &[NextCommand::VERBOSE],
        ),
        K::AllocationFailures { reports, order_max, last_process } => (
            format!("the kernel log holds {} of allocations that failed", plural(*reports, "report")),
            match order_max {
                Some(order) => format!("the highest order was {order}, the last process {last_process}"),
                None => format!("the last process was {last_process}"),
            },
            &[NextCommand::VERBOSE],
        ),
        K::OomKills { kills, unexplained, last_process } => {
            let (sentence, evidence) = killed(*kills, *unexplained, last_process.as_deref());
            (sentence, evidence, &[NextCommand::VERBOSE])
        }
        K::CgroupOomKills { kills, last_process, group, limit } => (
            format!(
                "{} control group reached its memory limit",
                plural(*kills, "process was killed because its|processes were killed because their")
            ),
            {
                let group = group.as_ref().map_or(String::new(), |group| format!(" in {group}"));
                let limit = limit.map_or(String::new(), |limit| format!(", limit {}", bytes(limit)));
                format!("the last was {last_process}{group}{limit} (kernel log)")
            },
            &[NextCommand::VERBOSE],
        ),
        K::HostTakesFree { order, asked, device, reported } => {
            let (sentence, evidence) = host_takes(*order, *asked, device.as_deref(), *reported, page_size);
            (sentence, evidence, &[NextCommand::PROBE])
        }
        K::PageTables { bytes: size, share } => (
            format!("page tables take {} of memory", percent(*share)),
            format!("{} (meminfo PageTables + SecPageTables)", bytes(*size)),
            &[NextCommand::TUNE, NextCommand::PROBE],
        ),
        K::SlabUnreclaimable { bytes: size, share, largest } => (
            format!("kernel objects that cannot be reclaimed take {} of memory", percent(*share)),
            match largest {
                Some((name, of)) => {
                    format!(
                        "{} (meminfo SUnreclaim); the largest cache is {name}, {}",
                        bytes(*size),
                        bytes(*of)
                    )
                }
                None => {
                    format!("{} (meminfo SUnreclaim); slabinfo could not be read to say which", bytes(*size))
                }
            },
            &[NextCommand::VERBOSE],
        ),
        K::CgroupTight { used, limit } => (
            format!("this control group has used {} of its limit of {}", bytes(*used), bytes(*limit)),
            "the tightest limit on the way up; page cache is charged too, and is dropped first".to_owned(),
            &[NextCommand::VERBOSE],
        ),
        K::IndexDiffers { cells, compared } => (
            format!("pagelab and the kernel disagree in {cells} of {compared} cells: please report this"),
            "debugfs extfrag files against a buddyinfo that was equal before and after".to_owned(),
            &[NextCommand::CAPTURE],
        ),
        K::FreeUnexplained { on_lists, counted } => (
            format!(
                "the kernel's two counts of free memory differ by {}, and nothing that was read explains it",
                bytes(Pages(counted.0.abs_diff(on_lists.0)).bytes(page_size))
            ),
            format!(
                "{} on the free lists (buddyinfo), {} by the counter (meminfo)",
                bytes(on_lists.bytes(page_size)),
                bytes(counted.bytes(page_size))
            ),
            &[NextCommand::CAPTURE],
        ),
        K::ProbeRefused { asked, came } => (
            format!("only {came} of {asked} huge pages came when asked for"),
            "MADV_COLLAPSE, one at a time, read back".to_owned(),
            &[NextCommand::VERBOSE],
        ),
    };
    let remedy = remedy::of(&finding.kind, snapshot);
    Worded { sentence, evidence: vec![evidence], next: next.to_vec(), remedy }
}

/// What the first touch of free memory waits for, and who decides it.
fn host_takes(
    order: Option<Order>,
    asked: Option<i64>,
    device: Option<&str>,
    reported: Option<Bytes>,
    page_size: PageSize,
) -> (String, String) {
    let from = order.map_or("large".to_owned(), |order| {
        format!("of order {} ({}) and more", order.0, bytes(page_size.block(order)))
    });
    let sentence = match reported {
        Some(size) if size.0 > 0 => {
            format!("the host has taken back ~{} of the free memory; its first touch is slow", bytes(size))
        }
        _ => format!("the host takes back free blocks {from} some 2 s after they were freed"),
    };
    let asked = asked.map_or(String::new(), |asked| {
        format!("; the command line asks for {asked}, which this kernel does not take")
    });
    let device = device.map_or(String::new(), |device| format!(" by the balloon {device}"));
    let evidence = format!(
        "free page reporting{device}, blocks {from}, 2 s after they were freed{asked}; run, tune, can \
         --really and --probe warm memory before they measure; on the host: free-page-reporting=off"
    );
    (sentence, evidence)
}

/// Of the machine, as far as the log says so; of the rest it is not known.
fn killed(kills: u64, unexplained: u64, last: Option<&str>) -> (String, String) {
    let processes = plural(kills, "process was|processes were");
    let last = last.map(|last| format!("the last was {last} (kernel log)"));
    if unexplained == 0 {
        let sentence = format!("{processes} killed because the machine ran out of memory");
        return (sentence, last.unwrap_or("kernel log".to_owned()));
    }
    let unknown = format!(
        "whether the machine or a control group ran out is not known of {}: the kernel's log does not have \
         them (vmstat oom_kill)",
        number(unexplained)
    );
    let evidence = last.map_or(unknown.clone(), |last| format!("{last}; {unknown}"));
    (format!("{processes} killed for lack of memory since boot"), evidence)
}

fn without_huge(pid: u32, name: Option<&str>, anonymous: Bytes, why: NoHugePages) -> String {
    let who = name.map_or(format!("process {pid}"), |name| format!("{name} (pid {pid})"));
    let reason = match why {
        NoHugePages::ModeNever => "the mode is `never`",
        NoHugePages::NeverAsks => "it never asks (`madvise` mode)",
        NoHugePages::SwitchedOff => "it switched them off (prctl PR_SET_THP_DISABLE)",
        NoHugePages::NotGiven => "the mode is `always`, and none were given",
    };
    format!("{who}, {}, has almost no huge pages: {reason}", bytes(anonymous))
}

fn number(of: u64) -> String {
    count(u128::from(of))
}

/// `412`, or `412 to 419` where the two differ.
pub fn range(low: u64, high: u64) -> String {
    if low == high { number(low) } else { format!("{} to {}", number(low), number(high)) }
}

/// A count; from a sample `~412 ± 30`.
pub fn estimate(of: Estimate) -> String {
    match of.plus_minus {
        Some(error) => format!("~{} ± {}", number(of.value), number(error)),
        None => number(of.value),
    }
}

/// Both ends, or one count where they are the same.
pub fn interval(of: Interval) -> String {
    if of.low == of.high {
        estimate(of.low)
    } else {
        format!("{} to {}", estimate(of.low), estimate(of.high))
    }
}

/// `1 report`, `2 reports`; irregular forms stand behind a bar: `process was|processes were`.
fn plural(of: u64, word: &str) -> String {
    let (one, many) =
        word.split_once('|').map_or((word.to_owned(), format!("{word}s")), |(a, b)| (a.into(), b.into()));
    format!("{} {}", number(of), if of == 1 { one } else { many })
}

#[cfg(test)]
mod tests;
