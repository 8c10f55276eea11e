//! `pagelab trace`, end to end: what the kernel counted is what the file has, whatever ends the recording.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelab_formats::vmstat;
use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_model::alloc_trace::{TraceEvent, TraceWhat, Was};
use pagelab_model::run::Ending;
use pagelab_runfile::TraceReader;
use pagelab_sys::map::{Advice, Mapping};
use rustix::process::Signal;
use serde_json::Value;
use support::running::{Running, until};
use support::{Lab, fields};

/// Pages of a turn of the load.
const PAGES: u64 = 20_000;

/// One recording at a time: each sees what the others do.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this machine lets its allocator be traced; else the skip is printed.
fn is_traced(lab: &Lab) -> bool {
    let ran = lab.run(&["trace", "record", "-o", "probe.pagelab", "--for", "100ms", "--no-snapshot"]);
    if ran.code == Some(4) {
        eprintln!("skipped: no-tracepoints: {}", ran.err.trim());
        return false;
    }
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    true
}

/// A recording that has begun and taken events in.
fn record(lab: &Lab, more: &[&str]) -> Running {
    let args = [&["trace", "record", "-o", "t.pagelab"], more].concat();
    let child: Child = lab.command(&args).spawn().unwrap();
    let file = lab.path().join("t.pagelab");
    until("the first block", || {
        churn(200);
        TraceReader::open(&file).is_ok_and(|reader| !reader.blocks().is_empty())
    });
    Running(child, None)
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
        reader.block(place, &mut block).unwrap();
        all.append(&mut block);
    }
    all
}

/// Pages that this thread took and gave back, by the events.
fn own_pages(events: &[TraceEvent]) -> (u64, u64) {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    events.iter().filter(|event| event.tid == tid).fold((0, 0), |(taken, freed), event| match event.what {
        TraceWhat::Alloc { pfn: Some(_), order, .. } => (taken + (1 << order), freed),
        TraceWhat::Free { order, .. } => (taken, freed + (1 << order)),
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
fn what_is_traced_is_what_the_kernel_counted() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab) {
        return;
    }
    // The command begins once the state of memory has been read.
    let script = ": > started; exec /bin/sleep 600";
    let mut running = record(&lab, &["--every", "50ms", "--", "/bin/sh", "-c", script]);
    until("the snapshot", || lab.path().join("started").exists());
    let file = lab.path().join("t.pagelab");
    (0..3).for_each(|_| churn(PAGES));
    running.signal(Signal::INT);
    let status = running.0.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let mut reader = TraceReader::open(&file).unwrap();
    let ending = reader.ending().clone();
    assert!(matches!(&ending, Ending::Stopped { why, .. } if why == "SIGINT"), "{ending:?}");
    let events = events(&mut reader);
    assert!(events.is_sorted_by_key(|event| event.at_ns));
    let lost: u64 = reader.losses().unwrap().iter().map(|loss| loss.events).sum();
    let (taken, freed) = own_pages(&events);
    // Page tables come on top, and pages are taken on this thread while it waits.
    assert!(taken + lost >= 3 * PAGES && freed + lost >= 3 * PAGES, "{taken} {freed} {lost}");

    // The oracle: the kernel's own counters over the same time. It counts what the recorder takes too, and
    // pages taken in bulk, which have no tracepoint; the two are not read at one instant.
    let end = reader.end().unwrap().unwrap();
    let [by_kernel, freed_by_kernel] = end.vmstat_pages.unwrap();
    let sum = |of: fn(&TraceWhat) -> Option<u8>| -> u64 {
        events.iter().filter_map(|event| of(&event.what)).map(|order| 1 << order).sum()
    };
    let taken = sum(|what| match what {
        TraceWhat::Alloc { pfn: Some(_), order, .. } => Some(*order),
        _ => None,
    });
    let freed = sum(|what| match what {
        TraceWhat::Free { order, .. } => Some(*order),
        _ => None,
    });
    if lost == 0 {
        for (traced, counted) in [(taken, by_kernel), (freed, freed_by_kernel)] {
            let share = traced as f64 / counted as f64;
            assert!((0.7..=1.05).contains(&share), "{traced} of {counted}");
        }
    }
    assert_eq!(end.unreadable, 0);
    for kind in &end.kinds {
        let lost = kind.lost.unwrap_or(0);
        // A processor that was held up while it wrote may do so after the last look.
        assert!(kind.times.abs_diff(kind.delivered + kind.own + lost) < 100, "{kind:?}");
    }
    // The snapshot: most of memory, and free lists as the kernel has them but for what moved meanwhile.
    let check = end.check.unwrap();
    let (off, free) = check.pages_off();
    assert!(off <= free / 4 + 50_000, "{check:?}");
    let samples = reader.samples().unwrap();
    assert!(samples.len() > 3 && samples.is_sorted_by_key(|sample| sample.at_ns));
    assert_eq!(check.found.len(), usize::from(reader.head().max_order) + 1);
}

#[test]
fn the_kernel_and_the_trace_agree_on_a_load_of_this_thread() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab) {
        return;
    }
    let mut running = record(&lab, &["--no-snapshot"]);
    let before = kernel_pages();
    churn(PAGES);
    let after = kernel_pages();
    running.signal(Signal::TERM);
    running.0.wait().unwrap();
    let mut reader = TraceReader::open(&lab.path().join("t.pagelab")).unwrap();
    let lost: u64 = reader.losses().unwrap().iter().map(|loss| loss.events).sum();
    let (taken, freed) = own_pages(&events(&mut reader));
    assert!(taken + lost >= PAGES && after[0] - before[0] >= PAGES, "{taken} {lost} {before:?} {after:?}");
    assert!(freed + lost >= PAGES && after[1] - before[1] >= PAGES, "{freed} {lost} {before:?} {after:?}");
}

#[test]
fn a_killed_recording_has_every_block_but_the_last_second() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab) {
        return;
    }
    let mut running = record(&lab, &["--no-snapshot"]);
    churn(PAGES);
    let file = lab.path().join("t.pagelab");
    until("the load in the file", || {
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
}

#[test]
fn rings_that_are_too_small_lose_events_and_say_so() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab) {
        return;
    }
    let mut running = record(&lab, &["--no-snapshot", "--ring", "4K"]);
    let file = lab.path().join("t.pagelab");
    until("a loss", || {
        churn(PAGES);
        !TraceReader::open(&file).unwrap().losses().unwrap().is_empty()
    });
    running.signal(Signal::INT);
    running.0.wait().unwrap();
    let reader = TraceReader::open(&file).unwrap();
    let told: u64 = reader.losses().unwrap().iter().map(|loss| loss.events).sum();
    let end = reader.end().unwrap().unwrap();
    let by_kernel: Option<u64> = end.kinds.iter().map(|kind| kind.lost).sum();
    assert!(told > 0 && by_kernel.is_none_or(|lost| lost == told), "{told} {by_kernel:?}");
    let text = lab.run(&["trace", "info", "t.pagelab"]).out;
    assert!(text.contains("events were lost") && text.contains("the rings were full"), "{text}");
}

#[test]
fn a_command_is_recorded_to_its_end_and_every_field_is_documented() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab) {
        return;
    }
    let ran = lab.run(&["trace", "record", "-o", "t.pagelab", "--", "/bin/sh", "-c", "echo out; exit 3"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("out\n") && ran.out.contains("events in"), "{}", ran.out);
    assert!(ran.err.contains("the command ended with exit status: 3"), "{}", ran.err);
    let text = lab.run(&["trace", "info", "t.pagelab"]).out;
    for said in ["allocations", "Movable", "memory at the start: ", "holes: ", "buddyinfo was read"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let said = lab.run(&["trace", "info", "t.pagelab", "--json", "--threads", "3"]).out;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["kind"], &said["ending"]), (&"trace_info".into(), &"complete".into()));
    assert!(said["threads"].as_array().unwrap().len() <= 3);
    let snapshot = TraceReader::open(&lab.path().join("t.pagelab")).unwrap().snapshot().unwrap();
    let user: u64 = snapshot.iter().filter(|run| run.was == Was::User).map(|run| u64::from(run.frames)).sum();
    assert_eq!(said["snapshot"]["frames"]["user"].as_u64(), Some(user));
    let mut found = BTreeSet::new();
    fields(&said, &mut found);
    let docs = include_str!("../../../docs/json.md");
    // What every absent value has beside it is explained once for all.
    found.retain(|name| !name.ends_with("_absent_reason"));
    let missing: Vec<_> = found.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/json.md: {missing:?}");
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let (_alone, lab) = (alone(), Lab::new());
    lab.write("text", "Node 0, zone DMA 1 2 3\n");
    for (args, code, said) in [
        (&["record", "-o", "a.pagelab", "--for", "1ms"][..], 2, "--for 1ms: from 100ms to 366d"),
        (&["record", "-o", "a.pagelab", "--every", "1ms"], 2, "--every 1ms: from 10ms to 1d"),
        (&["record", "-o", "a.pagelab", "--ring", "8G"], 2, "--ring 8G: from 4K to 1G"),
        (&["record", "-o", "a.pagelab", "--for", "1s", "--", "true"], 2, "cannot be used with"),
        (&["info", "none.pagelab"], 3, "`pagelab trace record -o FILE` makes one"),
        (&["info", "text"], 3, "it is a text, not a run file"),
    ] {
        let ran = lab.run(&[&["trace"], args].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{args:?}: {}", ran.err);
    }
    assert!(!lab.path().join("a.pagelab").exists());
    if is_traced(&lab) {
        let ran = lab.run(&["trace", "record", "-o", "probe.pagelab", "--for", "100ms"]);
        assert!(ran.code == Some(2) && ran.err.contains("it exists already"), "{}", ran.err);
        let ran = lab.run(&["trace", "record", "-o", "b.pagelab", "--no-snapshot", "--", "/none/such"]);
        assert!(ran.code == Some(3) && ran.err.contains("cannot start /none/such"), "{}", ran.err);
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_what_is_there_is_read() {
    let (_alone, lab) = (alone(), Lab::new());
    if !is_traced(&lab) {
        return;
    }
    // Programs are started until the disk is full: some hundred events each.
    let script = "\"$0\" trace record --no-snapshot --for 100s -o disk/t.pagelab & recorder=$!\n\
        while kill -0 $recorder 2>&-; do /bin/true; done\n\
        wait $recorder; echo code $?; \"$0\" trace info disk/t.pagelab";
    let Some(ran) = lab.run_with_small_disk("256k", script) else { return };
    assert!(ran.out.starts_with("code 5\n") && ran.code == Some(0), "{} {}", ran.out, ran.err);
    assert!(
        ran.err.contains("the disk is full") && ran.err.contains("the trace stopped after"),
        "{}",
        ran.err
    );
    assert!(ran.out.contains("the file was not closed") && ran.out.contains("allocations"), "{}", ran.out);
}
