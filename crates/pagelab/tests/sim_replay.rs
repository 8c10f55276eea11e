//! Tests of `pagelab sim replay` on traces whose result is known.

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use pagelab_model::alloc_trace::{FrameState, TraceEvent, TraceEventKind};
use serde_json::Value;
use support::made_trace::{SyntheticTrace, head, run, write};
use support::{Lab, collect_fields};

const FRAMES: u32 = 32 * 1024;
const ALL: [&str; 8] = [
    "standard",
    "list2",
    "list3",
    "mobility-6.1",
    "mobility-6.10",
    "mobility-6.18",
    "defrag-6.18",
    "contiguitas",
];

fn made(path: &Path, ends: bool) -> SyntheticTrace {
    let mut made = SyntheticTrace::new(FRAMES, 3);
    made.run(200_000);
    write(path, &head(FRAMES), &[run(FRAMES, FrameState::Free)], &made.events, &made.samples, ends);
    made
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("one JSON document")
}

#[test]
fn a_trace_of_the_simulator_is_replayed_all_but_exactly() {
    let lab = Lab::new();
    let made = made(&lab.path().join("t.pagelab"), true);
    let args = ["sim", "replay", "t.pagelab", "--policy", "mobility-6.1,standard,list2,list3", "--json"];
    let ran = lab.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(ran.out, lab.run(&args).out, "the same trace, the same bytes");
    let said = json(&ran.out);
    assert_eq!(said["samples"].as_array().unwrap().len(), made.samples.len());
    let [mobility, standard, ..] = &said["policies"].as_array().unwrap()[..] else { panic!("{said}") };
    // Owners of pageblocks are inferred from the first allocation in each, so a little may differ.
    let worst = mobility["unusable_error"]["worst"].as_f64().unwrap();
    assert!(worst < 0.02, "{worst}");
    assert!(standard["unusable_error"]["worst"].as_f64().unwrap() > worst, "another policy, another memory");
    for policy in said["policies"].as_array().unwrap() {
        assert_eq!(policy["matched_permille"], 1000, "{policy}");
        assert_eq!(policy["frees"], policy["matched"], "{policy}");
        assert_eq!(policy["events"].as_u64().unwrap(), made.events.len() as u64);
    }
    let mut found = BTreeSet::new();
    collect_fields(&said, &mut found);
    collect_fields(&json(&lab.run(&["sim", "replay", "t.pagelab", "--time", "--json"]).out), &mut found);
    let docs = include_str!("../../../docs/json.md");
    let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
    let text = lab.run(&["sim", "replay", "t.pagelab", "--policy", "mobility-6.1,list3", "--time"]).out;
    for part in ["100 % of the freed frames", "F_u(9): simulated vs. sampled", "list3", "events per second"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // More policies than fit side by side: tables continue below.
    let text = lab.run(&["sim", "replay", "t.pagelab", "--policy", &ALL.join(",")]).out;
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for policy in ALL {
        // As a column over time and by order, and as a row of three tables.
        assert!(text.matches(policy).count() >= 5, "{policy}: {text}");
    }
}

#[test]
fn a_trace_that_was_cut_is_replayed_up_to_there() {
    let lab = Lab::new();
    let made = made(&lab.path().join("t.pagelab"), false);
    let ran = lab.run(&["sim", "replay", "t.pagelab"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("The trace was cut short"), "{}", ran.out);
    let said = json(&lab.run(&["sim", "replay", "t.pagelab", "--json"]).out);
    assert_eq!(said["is_cut_short"], true);
    assert_eq!(said["policies"][0]["events"].as_u64().unwrap(), made.events.len() as u64);
    let whole = std::fs::read(lab.path().join("t.pagelab")).unwrap();
    lab.write("half.pagelab", &whole[..whole.len() / 2]);
    let ran = lab.run(&["sim", "replay", "half.pagelab"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("half.pagelab"), "{}", ran.err);
}

#[test]
fn invalid_traces_are_refused_with_their_place() {
    let lab = Lab::new();
    let at = |name: &str| lab.path().join(name);
    let mut made = made(&at("t.pagelab"), true);
    made.events.truncate(1000);
    let last = *made.events.last().unwrap();
    let all = [run(FRAMES, FrameState::Free)];
    let free = |pfn, order| TraceEvent { kind: TraceEventKind::Free { pfn, order }, ..last };
    for (name, event) in [("odd", free(3, 2)), ("outside", free(FRAMES, 0)), ("order", free(0, 11))] {
        let mut events = made.events.clone();
        events.push(event);
        write(&at(name), &head(FRAMES), &all, &events, &[], true);
    }
    write(&at("nothing"), &head(FRAMES), &[], &made.events, &[], true);
    write(&at("early"), &head(FRAMES), &[], &made.events, &[], false);
    write(&at("part"), &head(FRAMES), &[run(FRAMES / 2, FrameState::Free)], &made.events, &[], false);
    let mut other = head(FRAMES);
    other.page_bytes = 5000;
    write(&at("pages"), &other, &all, &made.events, &[], true);
    let mut other = head(FRAMES);
    other.zones[0].spanned = 4_000_000_000;
    write(&at("large"), &other, &all, &made.events, &[], true);
    for (args, code, said) in [
        (&["odd"][..], 3, "event 1000 at 0.000200000 s: no block of order 2 begins at frame 0x3"),
        (&["outside"], 3, "event 1000 at 0.000200000 s: frame 0x8000 is in no zone"),
        (&["order"], 3, "order 11 is above the largest, 10"),
        (&["nothing"], 3, "it has no snapshot"),
        (&["early"], 3, "it ended before the snapshot of memory was complete, 32768 frames are missing"),
        (&["part"], 3, "it ended before the snapshot of memory was complete, 16384 frames are missing"),
        (&["pages"], 3, "pages of 5000 bytes"),
        (&["large"], 4, "its zones span 4000000000 frames"),
        (&["t.pagelab", "--policy", "best"], 2, "unknown policy `best`; expected one of standard, list2"),
        (&["t.pagelab", "--zones", "all"], 2, "traced, requested"),
        (&["missing"], 3, "missing"),
    ] {
        let ran = lab.run(&[&["sim", "replay"], args].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {} {}", ran.out, ran.err);
        assert!(ran.err.contains(said), "{args:?}: {}", ran.err);
    }
    // No sample: only objects are reported.
    write(&at("quiet"), &head(FRAMES), &all, &made.events, &[], true);
    let ran = lab.run(&["sim", "replay", "quiet", "--zones", "requested"]);
    assert!(ran.out.contains("No sample of free memory"), "{}{}", ran.out, ran.err);
    assert_eq!(lab.run(&["sim", "replay", "quiet", "--json"]).code, Some(0));
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let lab = Lab::new();
    let made = made(&lab.path().join("t.pagelab"), true);
    let mut events = made.events.clone();
    let late = TraceEvent { kind: TraceEventKind::Free { pfn: 3, order: 2 }, ..events[150_000] };
    events.insert(150_001, late);
    write(
        &lab.path().join("odd"),
        &head(FRAMES),
        &[run(FRAMES, FrameState::Free)],
        &events,
        &made.samples,
        true,
    );
    let mut damaged = std::fs::read(lab.path().join("t.pagelab")).unwrap();
    let at = damaged.len() / 4 * 3;
    damaged[at] ^= 0x55;
    lab.write("damaged", &damaged);
    for (args, threads) in [
        (&["t.pagelab"][..], &["2"][..]),
        (&["t.pagelab", "--policy", "list2,mobility-6.18", "--json", "--zones", "requested"], &["2", "8"]),
        (&["odd", "--policy", "standard,mobility-6.1"], &["3"]),
        (&["damaged", "--policy", "list3,standard"], &["3"]),
    ] {
        let ran = |threads: &str| lab.run(&[&["sim", "replay", "--threads", threads], args].concat());
        let one = ran("1");
        assert_eq!(one.code, Some(if args[0] == "t.pagelab" { 0 } else { 3 }), "{args:?}: {}", one.err);
        for threads in threads {
            let more = ran(threads);
            assert_eq!((&more.out, &more.err, more.code), (&one.out, &one.err, one.code), "{args:?}");
        }
        assert!(args[0] != "odd" || one.err.contains("event 150001 at "), "{}", one.err);
    }
}

#[test]
fn a_replay_in_a_run_file_is_shown_as_others_are() {
    let lab = Lab::new();
    let made = made(&lab.path().join("t.pagelab"), true);
    let args = ["sim", "replay", "t.pagelab", "--policy", "mobility-6.1,standard", "-o", "r.pagelab"];
    let ran = lab.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let run = pagelab_runfile::RunReader::open(&lab.path().join("r.pagelab")).unwrap().read_run().unwrap();
    let [series] = &run.series[..] else { panic!("{:?}", run.series) };
    assert_eq!(series.at_ns.len(), made.samples.len());
    let names: Vec<&str> = series.columns.iter().map(|column| column.header.name.as_str()).collect();
    let unusable = ["F_u(9).sampled", "F_u(9).mobility-6.1", "F_u(9).standard"];
    assert_eq!(names[..3], unusable);
    assert_eq!(names[3..], ["free.sampled", "free.mobility-6.1", "free.standard"]);
    assert!(run.events.iter().any(|event| event.text.starts_with("mobility-6.1: error of F_u(9)")));
    // In the file as on the terminal: rounded, not cut off.
    let said = json(&lab.run(&["sim", "replay", "t.pagelab", "--policy", "standard", "--json"]).out);
    let samples = said["samples"].as_array().unwrap();
    for (column, field) in [(0, "/unusable"), (2, "/simulated_unusable/0")] {
        for (at, sample) in samples.iter().enumerate() {
            let share = sample.pointer(field).and_then(Value::as_f64).unwrap();
            let kept = series.columns[column].values.value_at(at).unwrap() as f64;
            assert!((kept - share * 1e6).abs() <= 0.5, "{field} of {at}: {kept} {share}");
        }
    }
    for (args, wanted) in
        [(&["report", "r.pagelab"][..], "replay"), (&["report", "r.pagelab", "--json"], "F_u(9).standard")]
    {
        let shown = lab.run(args);
        assert_eq!(shown.code, Some(0), "{}", shown.err);
        assert!(shown.out.contains(wanted), "{args:?}: {}", shown.out);
    }
    let again = lab.run(&args);
    assert_eq!(again.code, Some(2), "{}", again.err);
}

/// A single agreeing sample says nothing about a policy.
#[test]
fn a_verdict_needs_enough_samples() {
    let lab = Lab::new();
    let mut made = SyntheticTrace::new(FRAMES, 3);
    made.run(200_000);
    for (name, samples, few) in [("few", 1, true), ("enough", made.samples.len(), false)] {
        let first = made.samples.len() - samples;
        let all = [run(FRAMES, FrameState::Free)];
        write(&lab.path().join(name), &head(FRAMES), &all, &made.events, &made.samples[first..], true);
        let args = ["sim", "replay", name, "--policy", "mobility-6.1,standard"];
        let text = lab.run(&args).out;
        assert_eq!(text.contains("Too few samples to judge: 1 after the snapshot"), few, "{text}");
        assert_eq!(text.contains("closer to the samples"), !few, "{text}");
        let said = json(&lab.run(&[&args[..], &["--json"]].concat()).out);
        assert_eq!(said["verdict"], if few { "too_few_samples" } else { "nearer" }, "{said}");
        assert_eq!(said["policies"][0]["against_own_policy"], Value::Null, "{said}");
        assert_eq!(said["policies"][1]["against_own_policy"] == "too_few_samples", few, "{said}");
    }
}

/// Recordings of guests of 700 MiB, in which F_u moves by half and compaction is at work:
/// `pagelab trace record -- pagelab fragment --target 0.5 --reserve 200M -- pagelab compact`.
#[test]
fn a_recorded_trace_of_broken_memory_and_compaction_is_replayed_within_a_tenth() {
    let lab = Lab::new();
    lab.write("t.pagelab", include_bytes!("traces/fragment-compact-6.12.pagelab"));
    let said = json(&lab.run(&["sim", "replay", "t.pagelab", "--json"]).out);
    let number = |of: &Value| of.as_f64().expect("a number");
    let policy = &said["policies"][0];
    assert_eq!(policy["policy"], "mobility-6.10", "{said}");
    assert!(number(&policy["unusable_error"]["worst"]) <= 0.1, "{policy}");
    assert!(number(&said["unusable_error_unchanged"]["worst"]) >= 0.4, "there was something to get right");
    assert_eq!(policy["unusable_error"]["within_tenth"], said["samples"].as_array().unwrap().len() as u64);
    assert!(number(&policy["moved"]["frames"]) > 1000.0, "{policy}");
    // What it comes to: other policies count where they differ by more than the replay is off.
    let ran = lab.run(&["sim", "replay", "t.pagelab", "--policy", "mobility-6.10,standard,list2"]);
    let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("is closer to the samples than the no-change baseline"), "{}", ran.out);
    assert!(text.contains("standard: F_u(9) higher by up to 0.3"), "{}", ran.out);
    assert!(text.contains("list2: no difference is shown"), "{}", ran.out);
    let sum = |blocks: &Value| {
        let blocks = blocks.as_array().expect("blocks by order").iter().zip(0..);
        blocks.map(|(blocks, order)| blocks.as_u64().expect("a number") << order).sum::<u64>()
    };
    let last = said["samples"].as_array().and_then(|samples| samples.last()).expect("a sample");
    assert_eq!(sum(&said["blocks_at_end"]), last["free_pages"].as_u64().expect("pages"));
    assert_eq!(sum(&policy["blocks_at_end"]), last["simulated_free_pages"][0].as_u64().expect("pages"));
}

/// A recording of Linux 6.1 in a guest of 700 MiB: `pagelab trace record -- pagelab workload alloc-storm`.
#[test]
fn a_recorded_trace_is_replayed_as_the_kernel_had_it() {
    let lab = Lab::new();
    lab.write("t.pagelab", include_bytes!("traces/alloc-storm-6.1.pagelab"));
    let said = json(&lab.run(&["sim", "replay", "t.pagelab", "--json"]).out);
    let policy = &said["policies"][0];
    let number = |of: &Value| of.as_f64().expect("a number");
    assert!(number(&policy["unusable_error"]["worst"]) <= 0.1, "{policy}");
    assert!(number(&policy["free_error_worst"]) <= 0.02, "{policy}");
    assert!(number(&policy["matched_permille"]) >= 980.0, "{policy}");
    assert_eq!(policy["no_room"]["events"], 0, "{policy}");
    assert!(said["samples"].as_array().is_some_and(|samples| samples.len() > 40), "{said}");
}
