//! Every finding in words: a number in the sentence, evidence, a next command, and an ASCII form.

use pagelab_metrics::findings::FindingWeight;
use pagelab_model::snapshot::LimitFile;
use pagelab_model::{Absence, NodeId, Order, PageSize, ZoneKey};

use super::*;
use crate::style::TextStyle;

/// One finding of each kind.
fn all() -> Vec<FindingKind> {
    use FindingKind as K;
    let zone = ZoneKey { node: NodeId(1), zone: "Normal".to_owned() };
    let low = CountEstimate { value: 4000, margin: Some(120) };
    let size = Bytes(2 << 20);
    vec![
        K::FreeMemoryUnusable { zone, unusable: 0.9312, free: Bytes(3 << 30), free_huge_pages: 105 },
        K::PollutedBlocks {
            polluted: EstimateRange { low, high: CountEstimate { value: 4100, margin: Some(130) } },
            total: 12_288,
            largest_class: Some((PageClass::Slab, low)),
        },
        K::ThpFallback { faults: 90_000, share: 0.12 },
        K::CompactionFails { ended: 4000, share: 0.75 },
        K::ProcessWithoutHugePages {
            pid: 7,
            name: None,
            anonymous: Bytes(5 << 30),
            huge: Bytes(0),
            reason: NoHugePagesReason::NotAdvised,
        },
        K::IdleHugetlb { page_size: size, idle_pages: 512, total: 1024 },
        K::Pressure { some_avg10_centipercent: 1234, some_avg60_centipercent: 99 },
        K::SwapNearlyFull { used: Bytes(2 << 30), total: Bytes(2 << 30) },
        K::AllocationFailures { reports: 1, order_max: Some(9), last_process: "java".to_owned() },
        K::OomKills { kills: 2, unexplained: 0, last_process: Some("java".to_owned()) },
        K::CgroupOomKills {
            kills: 7,
            last_process: "java".to_owned(),
            group: Some("/a/b".to_owned()),
            limit: Some(Bytes(64 << 20)),
            limit_file: Some(LimitFile::GroupGone),
        },
        K::FreePageReporting {
            order: Some(Order(9)),
            requested_order: Some(11),
            device: Some("virtio0".to_owned()),
            reported: Some(Bytes(12 << 30)),
        },
        K::PageTables { bytes: Bytes(1 << 30), share: 0.04 },
        K::SlabUnreclaimable { bytes: Bytes(4 << 30), share: 0.2, largest: None },
        K::CgroupNearLimit { used: Bytes(950 << 20), limit: Bytes(1 << 30) },
        K::IndexDiffers { cells: 1, compared: 66 },
        K::FreeMemoryUnexplained { on_lists: Pages(1000), counted: Pages(9000) },
        K::ProbeFallback { requested: 64, allocated: 3 },
    ]
}

#[test]
fn every_finding_has_a_number_evidence_and_a_next_command() {
    let mut live = Snapshot::new_unread("this machine", PageSize::DEFAULT);
    live.taken.euid = Some(0);
    let saved = Snapshot::new_unread("a.tar", PageSize::DEFAULT);
    let mut ids = Vec::new();
    for kind in all() {
        let id = kind.id();
        let worded = describe_finding(&Finding { weight: FindingWeight::Cost, kind }, &live);
        assert!(worded.sentence.contains(|sign: char| sign.is_ascii_digit()), "{id}: {}", worded.sentence);
        assert!(!worded.sentence.ends_with('.'), "{id}");
        assert!(!worded.evidence.is_empty(), "{id}");
        assert!(worded.next_commands.iter().any(|next| next.command_line(&live).is_some()), "{id}");
        // The last command is a remedy, not another inspection.
        for snapshot in [&live, &saved] {
            let last = worded.step_lines(snapshot).pop().unwrap_or_default();
            assert!(
                !last.is_empty() && !last.contains("capture") && !last.contains("checkup"),
                "{id}: {last}"
            );
            // The remedy of a saved tree is for its machine, or reads the tree.
            let elsewhere = last.strip_prefix(SAVED_TREE_PREFIX);
            let reads = last.strip_suffix(" --root a.tar");
            assert_eq!(elsewhere.or(reads).is_some(), snapshot.taken.euid.is_none(), "{id}: {last}");
            if let Some(own) = elsewhere.or(reads).unwrap_or(&last).strip_prefix("pagelab ") {
                let is_ours = |next: &NextCommand| own == next.arguments().join(" ");
                assert!(NextCommand::ALL.iter().any(is_ours), "{id}: {last}");
            }
        }
        for next in worded.next_commands {
            assert!(NextCommand::ALL.contains(next), "{id}");
            let line = next.command_line(&saved).unwrap_or_default();
            assert!(line.is_empty() || line.ends_with("--root a.tar"), "{id}: {line}");
        }
        let dumb = TextStyle { unicode: false, ..TextStyle::PLAIN };
        assert!(
            !dumb.to_displayable(&format!("{} {}", worded.sentence, worded.evidence)).contains('?'),
            "{id}"
        );
        ids.push(id);
    }
    let found = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), found), (18, 18), "a kind without an example, or one with two");
}

#[test]
fn the_wording() {
    let mut machine = Snapshot::new_unread("this machine", PageSize::DEFAULT);
    machine.taken.euid = Some(0);
    let text: String = all()
        .into_iter()
        .map(|kind| describe_finding(&Finding { weight: FindingWeight::Cost, kind }, &machine))
        .map(|worded| format!("{}\n    {}\n    → {}\n", worded.sentence, worded.evidence, worded.remedy))
        .collect();
    expect_test::expect_file!["tests/wording.txt"].assert_eq(&text);
}

#[test]
fn three_kinds_of_lack_of_memory_have_three_remedies() {
    let machine = Snapshot::new_unread("this machine", PageSize::DEFAULT);
    let remedy = |kind: FindingKind| {
        describe_finding(&Finding { weight: FindingWeight::Failure, kind }, &machine).remedy
    };
    let failed =
        FindingKind::AllocationFailures { reports: 1, order_max: Some(0), last_process: String::new() };
    let unknown = FindingKind::OomKills { kills: 3, unexplained: 3, last_process: None };
    let group = |group: Option<&str>, limit| FindingKind::CgroupOomKills {
        kills: 1,
        last_process: String::new(),
        group: group.map(str::to_owned),
        limit,
        limit_file: group
            .map(|group| LimitFile::Present { path: format!("/sys/fs/cgroup{group}/memory.max"), limit }),
    };
    assert_eq!(remedy(failed), "sysctl vm.min_free_kbytes=KIB");
    let of_machine = FindingKind::OomKills { kills: 3, unexplained: 2, last_process: None };
    assert!(remedy(of_machine).ends_with("swapon /swapfile"));
    // Swap does not help a group that reached its limit.
    assert_eq!(remedy(unknown.clone()), cgroup_limit::LIST_GROUPS_WITH_KILLS);
    assert_eq!(
        remedy(group(Some("/jobs"), Some(Bytes(1 << 20)))),
        "echo 2097152 > /sys/fs/cgroup/jobs/memory.max"
    );
    assert_eq!(remedy(group(None, None)), cgroup_limit::LIST_GROUPS_WITH_KILLS);
    let worded = describe_finding(&Finding { weight: FindingWeight::Failure, kind: unknown }, &machine);
    assert!(worded.evidence.contains("the scope of 3 OOM kills is unknown"), "{worded:?}");
    let mut machine = machine;
    machine.alloc_failures = Err(Absence::new("/dev/kmsg", AbsenceReason::NotPermitted, ""));
    let unknown = FindingKind::OomKills { kills: 3, unexplained: 3, last_process: None };
    let worded = describe_finding(&Finding { weight: FindingWeight::Failure, kind: unknown }, &machine);
    assert!(worded.evidence.contains("only root can read the kernel log"), "{worded:?}");
}

#[test]
fn one_process_has_its_own_group() {
    let one = FindingKind::CgroupOomKills {
        kills: 1,
        last_process: "java".to_owned(),
        group: None,
        limit: None,
        limit_file: None,
    };
    let machine = Snapshot::new_unread("this machine", PageSize::DEFAULT);
    let worded = describe_finding(&Finding { weight: FindingWeight::Cost, kind: one }, &machine);
    assert_eq!(worded.sentence, "1 process was killed because its cgroup reached its memory limit");
}
