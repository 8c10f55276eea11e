//! Every finding in words: a number in the sentence, evidence, a command that goes on, an ASCII form.

use pagelab_metrics::findings::Weight;
use pagelab_model::{NodeId, PageSize, ZoneKey};

use super::*;
use crate::style::Style;

/// One finding of each kind.
fn all() -> Vec<FindingKind> {
    use FindingKind as K;
    let zone = ZoneKey { node: NodeId(1), zone: "Normal".to_owned() };
    let low = Estimate { value: 4000, plus_minus: Some(120) };
    let size = Bytes(2 << 20);
    vec![
        K::FreeMemoryUnusable { zone, unusable: 0.9312, free: Bytes(3 << 30), huge_now: 105 },
        K::SpoiledBlocks {
            spoiled: Interval { low, high: Estimate { value: 4100, plus_minus: Some(130) } },
            total: 12_288,
            culprit: Some((PageClass::Slab, low)),
        },
        K::ThpRefused { wanted: 90_000, share: 0.12 },
        K::CompactionFails { ended: 4000, share: 0.75 },
        K::ProcessWithoutHuge {
            pid: 7,
            name: None,
            anonymous: Bytes(5 << 30),
            huge: Bytes(0),
            why: NoHugePages::NeverAsks,
        },
        K::HugetlbIdle { page_size: size, idle: 512, total: 1024 },
        K::Pressure { some_avg10_centipercent: 1234, some_avg60_centipercent: 99 },
        K::SwapFull { used: Bytes(2 << 30), total: Bytes(2 << 30) },
        K::AllocationFailures { reports: 1, order_max: Some(9), last_process: "java".to_owned() },
        K::OomKills { kills: 2 },
        K::PageTables { bytes: Bytes(1 << 30), share: 0.04 },
        K::SlabUnreclaimable { bytes: Bytes(4 << 30), share: 0.2, largest: None },
        K::CgroupTight { used: Bytes(950 << 20), limit: Bytes(1 << 30) },
        K::IndexDiffers { cells: 1, compared: 66 },
        K::FreeUnexplained { on_lists: Pages(1000), counted: Pages(9000) },
        K::ProbeRefused { asked: 64, came: 3 },
    ]
}

#[test]
fn every_finding_has_a_number_evidence_and_a_next_command() {
    let mut live = Snapshot::unread("this machine", PageSize::USUAL);
    live.taken.euid = Some(0);
    let saved = Snapshot::unread("a.tar", PageSize::USUAL);
    let mut ids = Vec::new();
    for kind in all() {
        let id = kind.id();
        let worded = word(&Finding { weight: Weight::Cost, kind }, &live);
        assert!(worded.sentence.contains(|sign: char| sign.is_ascii_digit()), "{id}: {}", worded.sentence);
        assert!(!worded.sentence.ends_with('.'), "{id}");
        assert!(worded.evidence.iter().any(|line| !line.is_empty()), "{id}");
        assert!(worded.next.iter().any(|next| next.line(&live).is_some()), "{id}");
        for next in &worded.next {
            assert!(NextCommand::ALL.contains(next), "{id}");
            let line = next.line(&saved).unwrap_or_default();
            assert!(line.is_empty() || line.ends_with("--root a.tar"), "{id}: {line}");
        }
        let dumb = Style { unicode: false, ..Style::PLAIN };
        assert!(!dumb.signs(&format!("{} {:?}", worded.sentence, worded.evidence)).contains('?'), "{id}");
        ids.push(id);
    }
    let found = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), found), (16, 16), "a kind without an example, or one with two");
}

#[test]
fn the_wording() {
    let machine = Snapshot::unread("this machine", PageSize::USUAL);
    let text: String = all()
        .into_iter()
        .map(|kind| word(&Finding { weight: Weight::Cost, kind }, &machine))
        .map(|worded| format!("{}\n    {}\n", worded.sentence, worded.evidence.join("; ")))
        .collect();
    expect_test::expect_file!["tests/wording.txt"].assert_eq(&text);
}
