//! Tests of `pagelab trace`: the file has what the kernel counted, however the recording ends.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelab_formats::vmstat;
use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_model::alloc_trace::{BufferCounts, FrameState, TraceEvent, TraceEventKind};
use pagelab_model::run::RunEnd;
use pagelab_runfile::TraceReader;
use pagelab_sys::mapping::{Advice, Mapping};
use rustix::process::Signal;
use serde_json::Value;
use support::running::{KillOnDrop, wait_until};
use support::{Lab, binary, collect_fields};

/// Pages of a turn of the load.
const PAGES: u64 = 20_000;

/// One recording at a time: each sees what the others do.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this machine lets its allocator be traced that way; else the skip is printed.
fn is_traced(lab: &Lab, way: &str) -> bool {
    let args =
        ["trace", "record", "-o", "probe.pagelab", "--for", "100ms", "--no-snapshot", "--backend", way];
    let ran = lab.run(&args);
    if ran.code == Some(4) {
        let why = if way == "perf" { "no-tracepoints" } else { "no-trace-instance" };
        eprintln!("skipped: {why}: {}", ran.err.trim());
        return false;
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains(&format!("backend {way}")), "{}", ran.out);
    true
}

/// Checks in a folder of its own for each way that events can come, one recording at a time.
fn each_way(check: impl Fn(&Lab, &str)) {
    let _alone = alone();
    for way in ["ftrace", "perf"] {
        let lab = Lab::new();
        if is_traced(&lab, way) {
            check(&lab, way);
        }
    }
}

/// A recording that has started and received events.
fn record(lab: &Lab, way: &str, more: &[&str]) -> KillOnDrop {
    record_into(lab, "t.pagelab", way, more)
}

fn record_into(lab: &Lab, name: &str, way: &str, more: &[&str]) -> KillOnDrop {
    let args = [&["trace", "record", "-o", name, "--backend", way], more].concat();
    let child: Child = lab.command(&args).spawn().unwrap();
    let file = lab.path().join(name);
    wait_until("the first block", || {
        churn(200);
        TraceReader::open(&file).is_ok_and(|reader| !reader.blocks().is_empty())
    });
    KillOnDrop(child, None)
}

/// Maps memory, touches it and gives it back: an allocation and a free for each page, by this thread.
fn churn(pages: u64) {
    let page = rustix::param::page_size();
    let mut map = Mapping::anonymous(Bytes(pages * page as u64), Bytes(2 << 20)).unwrap();
    map.advise(0..map.len().0, Advice::NoHugePage).unwrap();
    map.words_mut().chunks_mut(page / 8).for_each(|page| page[0] = 1);
}

/// All events of the file, in their order.
fn events(reader: &mut TraceReader) -> Vec<TraceEvent> {
    let (mut all, mut block) = (Vec::new(), Vec::new());
    for place in 0..reader.blocks().len() {
        reader.read_block(place, &mut block).unwrap();
        all.append(&mut block);
    }
    all
}

/// Pages that this thread took and gave back, by the events.
fn own_pages(events: &[TraceEvent]) -> (u64, u64) {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    events.iter().filter(|event| event.tid == tid).fold((0, 0), |(taken, freed), event| match event.kind {
        TraceEventKind::Alloc { pfn: Some(_), order, .. } => (taken + (1 << order), freed),
        TraceEventKind::Free { order, .. } => (taken, freed + (1 << order)),
        _ => (taken, freed),
    })
}

/// Pages allocated and freed since boot, by the kernel.
fn kernel_pages() -> [u64; 2] {
    let counters = vmstat::parse(&fs::read(paths::VMSTAT).unwrap()).unwrap();
    let allocated = counters.iter().filter(|(name, _)| name.starts_with("pgalloc_"));
    [allocated.map(|(_, pages)| pages).sum(), counters.get("pgfree").unwrap()]
}

#[test]
fn traced_events_equal_the_counters_of_the_kernel() {
    each_way(traced_events_equal_the_counters_of_the_kernel_through);
}

fn traced_events_equal_the_counters_of_the_kernel_through(lab: &Lab, way: &str) {
    // The command begins once the state of memory has been read.
    let script = ": > started; exec /bin/sleep 600";
    let mut running = record(lab, way, &["--every", "50ms", "--", "/bin/sh", "-c", script]);
    wait_until("the snapshot", || lab.path().join("started").exists());
    let file = lab.path().join("t.pagelab");
    (0..3).for_each(|_| churn(PAGES));
    running.signal(Signal::INT);
    let status = running.0.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let mut reader = TraceReader::open(&file).unwrap();
    let ending = reader.run_end().clone();
    assert!(matches!(&ending, RunEnd::Stopped { reason, .. } if reason == "SIGINT"), "{ending:?}");
    let events = events(&mut reader);
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    names_are_those_of_the_kernel(lab, &reader, &events);
    let lost: u64 = reader.read_losses().unwrap().iter().map(|loss| loss.events).sum();
    let (taken, freed) = own_pages(&events);
    // Page tables come on top, and pages are taken on this thread while it waits.
    assert!(taken + lost >= 3 * PAGES && freed + lost >= 3 * PAGES, "{taken} {freed} {lost}");

    // The oracle: the kernel's own counters over the same time. It counts what the recorder takes too, and
    // pages taken in bulk, which have no tracepoint; the two are not read at one instant.
    let end = reader.read_summary().unwrap().unwrap();
    let [by_kernel, freed_by_kernel] = end.vmstat_pages.unwrap();
    let sum = |of: fn(&TraceEventKind) -> Option<u8>| -> u64 {
        events.iter().filter_map(|event| of(&event.kind)).map(|order| 1 << order).sum()
    };
    let taken = sum(|what| match what {
        TraceEventKind::Alloc { pfn: Some(_), order, .. } => Some(*order),
        _ => None,
    });
    let freed = sum(|what| match what {
        TraceEventKind::Free { order, .. } => Some(*order),
        _ => None,
    });
    if lost == 0 {
        for (traced, counted) in [(taken, by_kernel), (freed, freed_by_kernel)] {
            let share = traced as f64 / counted as f64;
            assert!((0.7..=1.05).contains(&share), "{traced} of {counted}");
        }
    }
    assert_eq!(end.unreadable, 0);
    // A processor that was held up while it wrote may do so after the last look.
    for kind in &end.tracepoints {
        let lost = kind.lost.unwrap_or(0);
        assert_eq!(kind.occurred.is_some(), way == "perf");
        let occurred = kind.occurred.unwrap_or(kind.delivered + kind.by_recorder);
        assert!(occurred.abs_diff(kind.delivered + kind.by_recorder + lost) < 100, "{kind:?}");
    }
    assert_eq!(end.buffers.is_empty(), way == "perf");
    if way == "ftrace" {
        let read: u64 = end.tracepoints.iter().map(|kind| kind.delivered + kind.by_recorder).sum();
        let sum = |of: fn(&BufferCounts) -> u64| -> u64 { end.buffers.iter().map(of).sum() };
        assert!(sum(|buffer| buffer.read).abs_diff(read) < 100, "{read} {:?}", end.buffers);
        assert!(sum(|buffer| buffer.written).abs_diff(read + lost) < 100, "{read} {lost} {:?}", end.buffers);
    }
    // The snapshot: most of memory, and free lists as the kernel has them but for what moved meanwhile.
    let check = end.free_list_check.unwrap();
    let (off, free) = check.count_differing_pages();
    assert!(off <= free / 4 + 50_000, "{check:?}");
    let samples = reader.read_samples().unwrap();
    assert!(samples.len() > 3 && samples.is_sorted_by_key(|sample| sample.at_ns));
    assert_eq!(check.rebuilt.len(), usize::from(reader.header().max_order) + 1);
}

/// Each thread with events has its place in the list, and this one its name.
fn names_are_those_of_the_kernel(lab: &Lab, reader: &TraceReader, events: &[TraceEvent]) {
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let name = fs::read_to_string(paths::process_file(own, "comm")).unwrap().trim().to_owned();
    let threads = reader.read_threads().unwrap();
    let seen: BTreeSet<u32> = events.iter().map(|event| event.tid).filter(|&tid| tid != 0).collect();
    assert_eq!(threads.iter().map(|thread| thread.tid).collect::<BTreeSet<_>>(), seen);
    let of_own = threads.iter().find(|thread| thread.tid == own);
    assert_eq!(of_own.and_then(|thread| thread.name.as_deref()), Some(name.as_str()));
    let text = lab.run(&["trace", "info", "t.pagelab", "--threads", "1000000"]).out;
    let is_it = |line: &&str| line.split_whitespace().take(2).eq([own.to_string().as_str(), &name]);
    assert_eq!(text.lines().filter(is_it).count(), 1, "{own} {name}: {text}");
}

#[test]
fn the_kernel_and_the_trace_agree_on_a_load_of_this_thread() {
    each_way(the_kernel_and_the_trace_agree_on_a_load_of_this_thread_through);
}

fn the_kernel_and_the_trace_agree_on_a_load_of_this_thread_through(lab: &Lab, way: &str) {
    let mut running = record(lab, way, &["--no-snapshot"]);
    let before = kernel_pages();
    churn(PAGES);
    let after = kernel_pages();
    running.signal(Signal::TERM);
    running.0.wait().unwrap();
    let mut reader = TraceReader::open(&lab.path().join("t.pagelab")).unwrap();
    let lost: u64 = reader.read_losses().unwrap().iter().map(|loss| loss.events).sum();
    let (taken, freed) = own_pages(&events(&mut reader));
    assert!(taken + lost >= PAGES && after[0] - before[0] >= PAGES, "{taken} {lost} {before:?} {after:?}");
    // A few pages wait on each processor until a batch of them is freed (`folio_batch`: up to 31 a list).
    let freed_by_kernel = after[1] - before[1];
    assert!(freed + lost >= PAGES && freed_by_kernel >= PAGES - 500, "{freed} {lost} {before:?} {after:?}");
}

#[test]
fn a_killed_recording_has_every_block_but_the_last_second() {
    each_way(a_killed_recording_has_every_block_but_the_last_second_through);
}

fn a_killed_recording_has_every_block_but_the_last_second_through(lab: &Lab, way: &str) {
    let mut running = record(lab, way, &["--no-snapshot"]);
    churn(PAGES);
    let file = lab.path().join("t.pagelab");
    wait_until("the load in the file", || {
        churn(100);
        let mut reader = TraceReader::open(&file).unwrap();
        own_pages(&events(&mut reader)).0 >= PAGES
    });
    running.signal(Signal::KILL);
    running.0.wait().unwrap();
    let ran = lab.run(&["trace", "info", "t.pagelab"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("the file was not closed"), "{}", ran.out);
    let said = lab.run(&["trace", "info", "t.pagelab", "--json"]).out;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["ending"], &said["recorder"]), (&"not_closed".into(), &Value::Null));
    assert!(said["events"].as_u64().unwrap() > PAGES);
    let thread = said["threads"].as_array().unwrap().iter().find(|of| of["tid"] != 0).unwrap();
    assert_eq!(
        (&thread["name"], &thread["name_absent_reason"]),
        (&Value::Null, &"the trace contains no names".into())
    );
    assert!(ran.out.contains("no thread names"), "{}", ran.out);
}

#[test]
fn rings_that_are_too_small_lose_events_and_say_so() {
    each_way(rings_that_are_too_small_lose_events_and_say_so_through);
}

fn rings_that_are_too_small_lose_events_and_say_so_through(lab: &Lab, way: &str) {
    let mut running = record(lab, way, &["--no-snapshot", "--ring", "4K"]);
    let file = lab.path().join("t.pagelab");
    wait_until("a loss", || {
        churn(PAGES);
        !TraceReader::open(&file).unwrap().read_losses().unwrap().is_empty()
    });
    running.signal(Signal::INT);
    running.0.wait().unwrap();
    let reader = TraceReader::open(&file).unwrap();
    let told: u64 = reader.read_losses().unwrap().iter().map(|loss| loss.events).sum();
    let end = reader.read_summary().unwrap().unwrap();
    let by_kernel = match way {
        "perf" => end.tracepoints.iter().map(|kind| kind.lost).sum(),
        _ => Some(end.buffers.iter().map(|buffer| buffer.lost).sum::<u64>()),
    };
    // perf counts events too that it neither writes nor counts as lost.
    let is_told = |lost| if way == "perf" { lost <= told } else { lost == told };
    assert!(told > 0 && by_kernel.is_none_or(is_told), "{told} {by_kernel:?}");
    let text = lab.run(&["trace", "info", "t.pagelab"]).out;
    assert!(text.contains("events were lost") && text.contains("the ring buffers were full"), "{text}");
}

#[test]
fn a_command_is_recorded_to_its_end_and_every_field_is_documented() {
    each_way(a_command_is_recorded_to_its_end_and_every_field_is_documented_through);
}

fn a_command_is_recorded_to_its_end_and_every_field_is_documented_through(lab: &Lab, way: &str) {
    let ran = lab.run(
        &[
            &["trace", "record", "-o", "t.pagelab", "--backend", way][..],
            &["--", "/bin/sh", "-c", "echo out; exit 3"],
        ]
        .concat(),
    );
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("out\n") && ran.out.contains("events in"), "{}", ran.out);
    assert!(ran.err.contains("the command exited with exit status: 3"), "{}", ran.err);
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line(&ran.out).contains("for the initial snapshot + "), "{}", ran.out);
    let text = lab.run(&["trace", "info", "t.pagelab"]).out;
    // Events, time and rate are equal in all outputs.
    let told = text.lines().find(|line| line.contains(" events in ")).unwrap();
    assert!(one_line(&ran.out).contains(&one_line(told)), "{told}: {}", ran.out);
    for said in ["allocations", "Movable", "memory at the start: ", "holes: ", "buddyinfo was read"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let said = lab.run(&["trace", "info", "t.pagelab", "--json", "--threads", "3"]).out;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["kind"], &said["ending"]), (&"trace_info".into(), &"complete".into()));
    assert_eq!(said["backend"], way);
    assert!(said["threads"].as_array().unwrap().len() <= 3);
    let snapshot = TraceReader::open(&lab.path().join("t.pagelab")).unwrap().read_frame_runs().unwrap();
    let user: u64 =
        snapshot.iter().filter(|run| run.state == FrameState::User).map(|run| u64::from(run.frames)).sum();
    assert_eq!(said["snapshot"]["frames"]["user"].as_u64(), Some(user));
    let mut found = BTreeSet::new();
    collect_fields(&said, &mut found);
    let docs = include_str!("../../../docs/json.md");
    // What every absent value has beside it is explained once for all.
    found.retain(|name| !name.ends_with("_absent_reason"));
    let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
}

/// A recording of Linux 6.1 in a guest.
const RECORDED: &[u8] = include_bytes!("traces/alloc-storm-6.1.pagelab");

#[test]
fn a_report_shows_a_trace_in_each_form() {
    let lab = Lab::new();
    lab.write("t.pagelab", RECORDED);
    let report = |more: &[&str]| {
        let ran = lab.run(&[&["report", "t.pagelab"], more].concat());
        assert_eq!(ran.code, Some(0), "{more:?}: {}", ran.err);
        assert!(!ran.out.contains("contents unknown to this version"), "{}", ran.out);
        ran.out
    };
    let info = lab.run(&["trace", "info", "t.pagelab"]).out;
    assert!(report(&[]).ends_with(&info), "the words of trace info");
    let all = lab.run(&["trace", "info", "--json", "--threads", "1000000", "t.pagelab"]).out;
    let all: Value = serde_json::from_str(&all).unwrap();
    let said: Value = serde_json::from_str(&report(&["--json"])).unwrap();
    for (name, value) in said["runs"][0]["trace"].as_object().unwrap() {
        assert_eq!(*value, all[name], "{name}");
    }
    assert_eq!(said["runs"][0]["not_shown"], Value::Array(Vec::new()));
    report(&["--tables", "tables"]);
    let table = |name: &str| fs::read_to_string(lab.path().join("tables").join(name)).unwrap();
    let threads = all["threads"].as_array().unwrap();
    assert_eq!(table("trace_threads.csv").lines().count(), threads.len() + 1);
    // It is from before names were recorded.
    let name = threads[0]["name"].as_str().unwrap_or_default();
    assert!(threads.iter().all(|of| of["name"].is_string() == (of["tid"] == 0)), "{threads:?}");
    assert!(
        table("trace_threads.csv")
            .contains(&format!("\n{},{name},{},", threads[0]["tid"], threads[0]["allocations"]))
    );
    assert!(table("trace_summary.csv").contains(&format!("\nevents,{}\n", all["events"])));
    report(&["--html", "t.html"]);
    let page = fs::read_to_string(lab.path().join("t.html")).unwrap();
    let two = lab.run(&["report", "--html", "two.html", "t.pagelab", "t.pagelab"]);
    assert!(two.code == Some(2) && two.err.contains("hint: pass only that file"), "{}", two.err);
    for part in ["Page allocator trace", "by requested migratetype", "memory at the start"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_report_finds_damage_in_the_middle_of_a_trace() {
    let lab = Lab::new();
    let mut damaged = RECORDED.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle..middle + middle / 4].fill(0x5a);
    lab.write("t.pagelab", &damaged);
    for form in [&[][..], &["--json"], &["--html", "t.html"], &["--tables", "tables"]] {
        let ran = lab.run(&[&["report", "t.pagelab"], form].concat());
        assert_eq!(ran.code, Some(3), "{form:?}: {} {}", ran.out, ran.err);
        assert!(ran.err.contains("t.pagelab") && !ran.out.contains("complete"), "{} {}", ran.out, ran.err);
    }
    assert!(!lab.path().join("t.html").exists() && !lab.path().join("tables").exists());
}

#[test]
fn invalid_arguments_are_refused() {
    let (_alone, lab) = (alone(), Lab::new());
    lab.write("text", "Node 0, zone DMA 1 2 3\n");
    for (args, code, said) in [
        (
            &["record", "-o", "a.pagelab", "--for", "1ms"][..],
            2,
            "'1ms' for '--for <TIME>': expected 100ms to 366d",
        ),
        (
            &["record", "-o", "a.pagelab", "--every", "1ms"],
            2,
            "'1ms' for '--every <TIME>': expected 10ms to 1d",
        ),
        (&["record", "-o", "a.pagelab", "--ring", "8G"], 2, "'8G' for '--ring <SIZE>': expected 4K to 1G"),
        (&["record", "-o", "a.pagelab", "--for", "1s", "--", "true"], 2, "cannot be used with"),
        (&["info", "none.pagelab"], 3, "hint: create one with `pagelab trace record -o FILE`"),
        (
            &["info", "text"],
            3,
            "expected a run file, found text\nhint: create one with `pagelab trace record -o FILE`",
        ),
        (&["info", "."], 3, "it is a directory\nhint: create one with `pagelab trace record -o FILE`"),
        (&["record", "-o", "/usr", "--for", "1s"], 2, "expected a file, found a directory"),
    ] {
        let ran = lab.run(&[&["trace"], args].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{args:?}: {}", ran.err);
    }
    assert!(!lab.path().join("a.pagelab").exists());
    let ran = lab.run(&["trace", "record", "-o", "a.pagelab", "--backend", "bpf"]);
    assert!(ran.code == Some(2) && ran.err.contains("auto, ftrace, perf"), "{}", ran.err);
    if is_traced(&lab, "perf") {
        let ran = lab.run(&["trace", "record", "-o", "probe.pagelab", "--for", "100ms"]);
        assert!(ran.code == Some(2) && ran.err.contains("it already exists"), "{}", ran.err);
        let ran = lab.run(&["trace", "record", "-o", "b.pagelab", "--no-snapshot", "--", "/none/such"]);
        assert!(ran.code == Some(3) && ran.err.contains("cannot start /none/such"), "{}", ran.err);
        assert!(!lab.path().join("b.pagelab").exists(), "nothing stands in the way of the next attempt");
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_its_events_are_read() {
    each_way(a_full_disk_ends_the_recording_and_its_events_are_read_through);
}

fn a_full_disk_ends_the_recording_and_its_events_are_read_through(lab: &Lab, way: &str) {
    // A block of events is on the disk before it is filled: on a busy machine the first one is larger than a
    // disk that is small from the start. Then programs are started, some hundred events each.
    let script = "\"$0\" trace record --backend WAY --no-snapshot --for 100s -o disk/t.pagelab & recorder=$!\n\
        until \"$0\" trace info disk/t.pagelab > info 2>&1; do kill -0 $recorder 2>&- || break; done\n\
        cat /dev/zero > disk/rest 2>&-\n\
        while kill -0 $recorder 2>&-; do /bin/true; done\n\
        wait $recorder; echo code $?; \"$0\" trace info disk/t.pagelab";
    let Some(ran) = lab.run_with_small_disk("32m", &script.replace("WAY", way)) else { return };
    assert!(ran.out.starts_with("code 5\n") && ran.code == Some(0), "{} {}", ran.out, ran.err);
    assert!(
        ran.err.contains("the disk is full") && ran.err.contains("cannot continue the trace after"),
        "{}",
        ran.err
    );
    assert!(ran.out.contains("the file was not closed") && ran.out.contains("allocations"), "{}", ran.out);
}

/// Two recorders at once, one through each: what a program did between its start and its end is the same in
/// both, event by event.
#[test]
fn perf_and_ftrace_have_the_same_events() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab, "ftrace") {
        return;
    }
    let ways = ["ftrace", "perf"];
    let recordings = ways.map(|way| record_into(&lab, &format!("{way}.pagelab"), way, &["--no-snapshot"]));
    // Eight mebibytes, touched and freed.
    let mut child = std::process::Command::new("/bin/dd");
    child.args(["if=/dev/zero", "of=/dev/null", "bs=8M", "count=2"]).stderr(std::process::Stdio::null());
    let mut child = child.spawn().unwrap();
    let pid = child.id();
    assert!(child.wait().unwrap().success());
    let found = recordings.into_iter().zip(ways).map(|(mut running, way)| {
        running.signal(Signal::INT);
        running.0.wait().unwrap();
        let mut reader = TraceReader::open(&lab.path().join(format!("{way}.pagelab"))).unwrap();
        let lost: u64 = reader.read_losses().unwrap().iter().map(|loss| loss.events).sum();
        let all = events(&mut reader);
        let of_child: Vec<TraceEvent> = all.into_iter().filter(|event| event.tid == pid).collect();
        (lost, of_child)
    });
    let found: Vec<_> = found.collect();
    let [(0, ftrace), (0, perf)] = &found[..] else {
        // A machine that is so busy that events are lost says nothing here.
        return assert!(found.iter().any(|(lost, _)| *lost > 0));
    };
    // An interrupt between the two looks at one event has its own events before it in one and behind it in
    // the other, so order does not count; nor does one event in a hundred.
    let words = |events: &[TraceEvent]| -> Vec<String> {
        let mut words: Vec<String> =
            events.iter().map(|event| format!("{} {:?}", event.cpu, event.kind)).collect();
        words.sort();
        words
    };
    assert!(ftrace.len() > 50, "{}", ftrace.len());
    let (ours, theirs) = (words(ftrace), words(perf));
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|word| those.binary_search(word).is_err()).cloned().collect()
    };
    let apart = [only(&ours, &theirs), only(&theirs, &ours)];
    assert!(apart.concat().len() * 100 <= ours.len(), "{apart:?}");
    assert!(ours.len().abs_diff(theirs.len()) * 100 <= ours.len(), "{} {}", ours.len(), theirs.len());
    eprintln!("{} events of one program through each", ftrace.len());
    // Both have the same clock; a processor may be held up between one's look at it and the other's.
    let apart = |events: &[TraceEvent]| events[events.len() - 1].time_ns - events[0].time_ns;
    assert!(apart(ftrace).abs_diff(apart(perf)) < 100_000_000, "{} {}", apart(ftrace), apart(perf));
}

/// The instances that are there by the name of this process, as the top folder of tracefs has them.
fn instance_of(recorder: &KillOnDrop) -> Option<PathBuf> {
    let prefix = format!("pagelab-{}-", recorder.0.id());
    let entries = fs::read_dir(paths::TRACE_INSTANCES).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
}

#[test]
fn an_instance_is_gone_after_every_end() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab, "ftrace") {
        return;
    }
    let first = record(&lab, "ftrace", &["--no-snapshot"]);
    let Some(instance) = instance_of(&first) else {
        return eprintln!("skipped: no-trace-instance: tracefs is not mounted at a readable place");
    };
    let text = |name: &str| fs::read_to_string(instance.join(name)).unwrap().trim().to_owned();
    let kib: u64 = text("buffer_size_kb").parse().unwrap();
    assert!(kib >= 32 << 10 && text("tracing_on") == "1", "{kib}");
    // Killed: recording stops and the buffer is freed at once; `restore` takes the rest away.
    let mut first = first;
    first.signal(Signal::KILL);
    first.0.wait().unwrap();
    wait_until("the buffer to be freed", || {
        text("buffer_size_kb").parse::<u64>().is_ok_and(|kib| kib < 1 << 10)
    });
    assert_eq!(text("tracing_on"), "0");
    let restored = lab.run(&["restore"]);
    assert!(restored.code == Some(0) && restored.out.contains("trace instance"), "{}", restored.out);
    assert!(!instance.exists());
    // Signals: two recorders at once, each with its own, each taken away with its end.
    let both =
        ["INT", "TERM"].map(|name| record_into(&lab, &format!("{name}.pagelab"), "auto", &["--no-snapshot"]));
    let instances = both.each_ref().map(|running| instance_of(running).unwrap());
    // Ctrl-C is the end of a recording without a time; SIGTERM is not a requested end.
    for ((mut running, signal), code) in both.into_iter().zip([Signal::INT, Signal::TERM]).zip([0, 143]) {
        running.signal(signal);
        assert_eq!(running.0.wait().unwrap().code(), Some(code));
    }
    assert!(instances[0] != instances[1] && !instances.iter().any(|path| path.exists()));
}

#[test]
fn tracefs_need_not_be_mounted() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab, "ftrace") {
        return;
    }
    let script = "umount -l \"$1\"; set -e; \"$0\" trace record --through ftrace --no-snapshot --for 300ms -o m.pagelab; \
        echo files $(ls \"$1\" | wc -l)";
    let program = binary();
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "/bin/sh", "-c", script, program, paths::TRACEFS]).current_dir(lab.path());
    let ran = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if err.contains("unshare:") {
        return eprintln!("skipped: no-mount: {}", err.trim());
    }
    assert!(ran.status.success() && out.contains("backend ftrace"), "{out} {err}");
    assert!(out.contains("files 0"), "it is not mounted for others: {out}");
}

/// The thread ids of ftrace are not those of another PID namespace.
#[test]
fn in_a_pid_namespace_perf_is_taken_and_that_is_said() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab, "perf") {
        return;
    }
    let traced = |way: &str, name: &str| {
        let program = binary();
        let mut command = std::process::Command::new("unshare");
        command.args(["-p", "-f", "--mount-proc", program, "trace", "record", "--no-snapshot"]);
        command.args(["--for", "200ms", "--backend", way, "-o", name]).current_dir(lab.path());
        let ran = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let (code, out, err) = traced("auto", "auto.pagelab");
    if err.contains("unshare:") {
        return eprintln!("skipped: no-mount: {}", err.trim());
    }
    assert!(code == Some(0) && out.contains("backend perf"), "{out} {err}");
    assert!(err.contains("falling back to perf, which slows traced programs more: "), "{err}");
    let (code, _, err) = traced("ftrace", "refused.pagelab");
    assert_eq!(code, Some(4), "{err}");
    assert!(err.contains("PID namespace") && err.contains("use --backend perf"), "{err}");
    assert!(!lab.path().join("refused.pagelab").exists());
}
