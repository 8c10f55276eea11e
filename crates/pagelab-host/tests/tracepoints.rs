//! Tests of tracepoints against `perf stat`, the kernel's own counters and vmstat.
//!
//! Nothing is mounted and no setting is changed; one test asks the kernel to compact memory.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

use std::collections::BTreeSet;
use std::hint::black_box;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use pagelab_formats::trace_format;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::tracepoints::{
    self, EventTally, ExtfragEventFields, KernelSymbols, StackCollector, StackDepth, Tracefs,
    TracepointOptions, TracepointRequest, Tracepoints,
};
use pagelab_model::{AbsenceReason, Bytes, ExtfragEvent, MigrateType, Order, Pfn};
use pagelab_sys::clock::boottime_ns;
use pagelab_sys::mapping::{Advice, Mapping};

/// One test at a time: each disturbs what the others count.
static ALONE: Mutex<()> = Mutex::new(());

fn lock_tracing() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Opens tracepoints or says why this test is left out.
fn open(
    reader: &Reader<'_>,
    wanted: &[TracepointRequest<'_>],
    options: &TracepointOptions,
) -> Option<Tracepoints> {
    match Tracepoints::open(reader, wanted, options) {
        Ok((tracepoints, absent)) => {
            assert_eq!(absent, [], "this kernel has all of them");
            Some(tracepoints)
        }
        Err(absence) => {
            assert!(
                matches!(absence.why, AbsenceReason::NotPermitted | AbsenceReason::NotThere),
                "every refusal has its reason: {absence:?}"
            );
            assert!(absence.hint.is_some(), "and a hint: {absence:?}");
            skip(&absence.source, absence.reason());
            None
        }
    }
}

fn skip(source: &str, reason: &str) {
    #[allow(clippy::print_stderr)] // what a test leaves out is told there
    {
        eprintln!("skipped: no-tracepoints: {source}: {reason}");
    }
}

fn request(system: &'static str, name: &'static str) -> TracepointRequest<'static> {
    TracepointRequest { system, name, filter: "", stacks: StackDepth::None }
}

/// Allocates so many new pages one by one, in any THP mode.
fn take_pages(pages: usize) {
    let bytes = Bytes((pages * rustix::param::page_size()) as u64);
    let mut memory = Mapping::anonymous(bytes, Bytes(1)).unwrap();
    memory.advise(0..memory.len().0, Advice::NoHugePage).unwrap();
    memory.touch_for_writing(0..memory.len().0).unwrap();
    black_box(&memory);
}

#[test]
fn every_format_of_this_kernel_is_understood_and_nothing_is_mounted() {
    let root = Root::live();
    let reader = Reader::new(&root);
    let mounts = || std::fs::read(paths::SELF_MOUNTINFO).unwrap();
    let before = mounts();
    let tracefs = match Tracefs::find(&reader) {
        Ok(tracefs) => tracefs,
        Err(absence) => return skip(&absence.source, absence.reason()),
    };
    let mut formats = 0;
    for system in tracefs.list_dir("events").unwrap() {
        let Ok(names) = tracefs.list_dir(&format!("events/{system}")) else { continue };
        for name in names {
            let Ok(text) = tracefs.read(&format!("events/{system}/{name}/format")) else { continue };
            let format = trace_format::parse(&text).unwrap_or_else(|e| panic!("{system}/{name}: {e}"));
            let id = tracefs.read(&format!("events/{system}/{name}/id")).unwrap_or_default();
            let id = String::from_utf8_lossy(&id).trim().parse().unwrap_or(format.id);
            assert_eq!((&format.name, format.id), (&name, id));
            let lines = String::from_utf8_lossy(&text).matches("\tfield").count();
            assert_eq!((format.fields.len(), &*format.other), (lines, &[][..]), "{system}/{name}");
            assert_eq!(format.field("common_pid").map(|_| ()), Some(()), "{system}/{name}");
            formats += 1;
        }
    }
    assert!(formats > 20, "{formats}");
    drop(tracefs);
    assert_eq!(before, mounts(), "nothing was mounted");
}

#[test]
fn read_and_lost_events_add_up_to_the_count_of_the_kernel() {
    let _alone = lock_tracing();
    let root = Root::live();
    let reader = Reader::new(&root);
    let kinds = [request("kmem", "mm_page_alloc"), request("kmem", "mm_page_free")];
    for (ring_bytes, pages, overflows) in [(Bytes(1), 4000, true), (Bytes(16 << 20), 2000, false)] {
        let options = TracepointOptions { ring_bytes, own_events: true, ..TracepointOptions::default() };
        // While another program opens or closes events of the same tracepoints, the kernel counts a few that
        // it neither writes nor counts as lost. Undisturbed the sums are equal.
        let is_exact = (0..20).any(|_| {
            let Some(off) = counted_beside_read(&reader, &kinds, &options, pages, overflows) else {
                return true;
            };
            assert!(off < 100, "{off} events are nowhere");
            off == 0
        });
        assert!(is_exact, "{ring_bytes:?}: not once in 20 times");
    }
}

/// Takes pages under these tracepoints: how many events the kernel counted beside those that were read and
/// those that were lost. `None`: it is unknown here.
fn counted_beside_read(
    reader: &Reader<'_>,
    kinds: &[TracepointRequest<'_>],
    options: &TracepointOptions,
    pages: usize,
    overflows: bool,
) -> Option<u64> {
    let mut tracepoints = open(reader, kinds, options)?;
    tracepoints.enable().unwrap();
    (0..3).for_each(|_| take_pages(pages));
    tracepoints.disable().unwrap();
    let mut seen = 0;
    let drained = tracepoints.drain(|_| seen += 1);
    let (counts, losses) = (tracepoints.counts().unwrap(), tracepoints.losses());
    assert_eq!(seen, drained);
    assert_eq!(seen, counts.iter().map(|count| count.delivered).sum::<u64>());
    assert_eq!(losses.malformed, 0);
    let times: u64 = counts.iter().map(|count| count.times).sum();
    assert!(times >= 3 * pages as u64, "{counts:?}");
    let (mut lost, mut off) = (0, 0);
    for count in &counts {
        let Some(kind_lost) = count.lost else {
            skip(paths::TRACEFS, "the kernel counts no losses");
            return None;
        };
        off += count.times.checked_sub(count.delivered + kind_lost).expect("no event comes twice");
        lost += kind_lost;
    }
    assert_eq!(lost > 0, overflows, "{counts:?}");
    assert!(losses.records <= lost, "a record of a loss needs another event after it");
    Some(off)
}

#[test]
fn events_come_in_the_order_of_time_on_the_clock_of_samples() {
    let _alone = lock_tracing();
    let root = Root::live();
    let reader = Reader::new(&root);
    let kinds = [request("kmem", "mm_page_alloc"), request("kmem", "mm_page_free")];
    let options =
        TracepointOptions { ring_bytes: Bytes(8 << 20), own_events: true, ..TracepointOptions::default() };
    let Some(mut tracepoints) = open(&reader, &kinds, &options) else { return };
    let began = boottime_ns();
    tracepoints.enable().unwrap();
    let (mut last, mut cpus, mut out_of_order, mut events) = (0, BTreeSet::new(), 0, 0u64);
    for _ in 0..5 {
        // Two threads, so that more than one ring is filled where there is more than one CPU.
        std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| take_pages(1500)))));
        events += tracepoints.drain(|event| {
            out_of_order += u64::from(event.time_ns < last);
            last = last.max(event.time_ns);
            cpus.insert(event.cpu);
            assert!((began..=boottime_ns()).contains(&event.time_ns), "{event:?}");
        });
    }
    assert!(events > 15_000, "{events}");
    assert_eq!(out_of_order, tracepoints.losses().out_of_order, "only what is told to be late");
    assert!(out_of_order * 100 <= events, "{out_of_order} of {events}");
    assert!(cpus.iter().all(|cpu| tracepoints.cpus().contains(cpu)), "{cpus:?}");
    assert!(tracepoints.cpu_ns() > 0);
}

#[test]
fn perf_counts_the_same_compactions_of_the_same_process() {
    let _alone = lock_tracing();
    let root = Root::live();
    let reader = Reader::new(&root);
    let kinds = [request("compaction", "mm_compaction_begin"), request("compaction", "mm_compaction_end")];
    let Some(mut tracepoints) = open(&reader, &kinds, &TracepointOptions::default()) else { return };
    let compact = format!("{}/compact_memory", paths::SYSCTL_VM);
    tracepoints.enable().unwrap();
    let perf = Command::new("perf")
        .args(["stat", "-x", ";", "-e", "compaction:mm_compaction_begin,compaction:mm_compaction_end", "sh"])
        .args(["-c", &format!("echo $$; echo 1 > {compact}")])
        .output();
    tracepoints.disable().unwrap();
    let text = match &perf {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stderr),
        _ => return eprintln!("skipped: no-perf: perf stat does not run here"),
    };
    let pid: u32 = String::from_utf8_lossy(&perf.as_ref().unwrap().stdout).trim().parse().unwrap();
    let by_perf: Vec<u64> = text.lines().filter_map(|line| line.split_once(";;")?.0.parse().ok()).collect();
    let mut ours = vec![0u64; 2];
    tracepoints.drain(|event| ours[event.kind] += u64::from(event.pid == pid));
    assert_eq!(ours, by_perf, "{text}");
    assert!(ours[0] > 0 && ours[0] == ours[1], "{ours:?}");
}

#[test]
fn wakeups_of_the_compaction_thread_are_those_of_vmstat() {
    let _alone = lock_tracing();
    let root = Root::live();
    let reader = Reader::new(&root);
    let Some(mut tracepoints) =
        open(&reader, &tracepoints::recording_set(StackDepth::None), &TracepointOptions::default())
    else {
        return;
    };
    let mut tally = EventTally::new(&tracepoints);
    let vmstat = || {
        let vmstat = reader.parse(paths::VMSTAT, pagelab_formats::vmstat::parse).unwrap();
        let stalls = ["allocstall_dma", "allocstall_dma32", "allocstall_normal", "allocstall_movable"];
        let stalls: u64 = stalls.iter().filter_map(|name| vmstat.get(name)).sum();
        (vmstat.get("compact_daemon_wake").unwrap_or(0), stalls)
    };
    // Enabling is not one moment, so that a test of equality brackets it: more outside than inside.
    let outer = vmstat();
    tracepoints.enable().unwrap();
    let inner = vmstat();
    take_pages(30_000);
    // kcompactd and reclaim go on by themselves: until something has been counted, or for a bounded time.
    let deadline = std::time::Instant::now() + Duration::from_millis(300);
    while vmstat() == inner && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let inner_end = vmstat();
    tracepoints.disable().unwrap();
    let outer_end = vmstat();
    tracepoints.drain(|event| {
        tally.add_event(event);
    });
    let column = |name: &str| tally.names().iter().position(|known| known == name).unwrap();
    for (name, inner, outer) in [
        ("compaction.kcompactd_wake", inner_end.0 - inner.0, outer_end.0 - outer.0),
        ("vmscan.direct_reclaim_begin", inner_end.1 - inner.1, outer_end.1 - outer.1),
    ] {
        let counted = tally.values()[column(name)];
        assert!((inner..=outer).contains(&counted), "{name}: {inner}..={outer}, {counted}");
    }
}

#[test]
fn filters_stacks_and_absent_tracepoints() {
    let _alone = lock_tracing();
    let root = Root::live();
    let reader = Reader::new(&root);
    let stacks = StackDepth::KernelAndUser;
    let alloc = TracepointRequest { stacks, filter: "order == 0", ..request("kmem", "mm_page_alloc") };
    let options =
        TracepointOptions { ring_bytes: Bytes(8 << 20), own_events: true, ..TracepointOptions::default() };
    let Some(mut tracepoints) = open(&reader, &[alloc, request("kmem", "mm_page_free")], &options) else {
        return;
    };
    let symbols = KernelSymbols::read(&reader);
    let named = symbols.is_ok();
    let mut collector = StackCollector::new(Root::live(), symbols, Order(9));
    tracepoints.enable().unwrap();
    take_pages(1000);
    tracepoints.disable().unwrap();
    let order = tracepoints.kinds()[0].format.field("order").unwrap();
    let event_of = ExtfragEvent {
        pfn: Pfn(1),
        alloc_order: Order(0),
        fallback_order: Order(0),
        alloc_migratetype: MigrateType::UNMOVABLE,
        fallback_migratetype: MigrateType::MOVABLE,
        change_ownership: true,
    };
    tracepoints.drain(|event| {
        assert_eq!(event.callchain.is_empty(), event.kind == 1, "only where requested");
        if event.kind == 0 {
            assert_eq!(event.u64(order), Some(0), "the filter holds");
            if event.pid == std::process::id() {
                collector.add_fallback(event, &event_of);
            }
        }
    });
    let stacks = collector.stacks(0);
    let faults = |stack: &&pagelab_model::FallbackStack| {
        stack.kernel.iter().any(|frame| frame == "handle_mm_fault") || !named
    };
    let most = stacks.stacks.iter().filter(faults).max_by_key(|stack| stack.counts.polluting).unwrap();
    assert!(most.counts.polluting >= 900, "{stacks:?}");
    assert!(most.comm.is_some() && most.user[0].starts_with('/'), "{most:?}");

    let odd = [request("kmem", "no_such_event"), request("kmem", "mm_page_free")];
    let (_, absent) = Tracepoints::open(&reader, &odd, &options).unwrap();
    assert_eq!((absent.len(), absent[0].why), (1, AbsenceReason::NotThere));
    let bad = TracepointRequest { filter: "no_such_field > 3", ..request("kmem", "mm_page_free") };
    let absence = Tracepoints::open(&reader, &[bad], &options).unwrap_err();
    assert!(absence.reason().contains("no_such_field > 3"), "{absence:?}");
}

#[test]
fn events_of_this_process_are_excluded_on_request() {
    let _alone = lock_tracing();
    let root = Root::live();
    let reader = Reader::new(&root);
    let options = TracepointOptions { ring_bytes: Bytes(8 << 20), ..TracepointOptions::default() };
    let Some(mut tracepoints) = open(&reader, &[request("kmem", "mm_page_alloc")], &options) else { return };
    tracepoints.enable().unwrap();
    take_pages(1000);
    std::thread::scope(|scope| drop(scope.spawn(|| take_pages(1000))));
    tracepoints.disable().unwrap();
    let own = std::process::id();
    tracepoints.drain(|event| assert_ne!(event.pid, own));
    let count = tracepoints.counts().unwrap()[0];
    assert!(count.own_events >= 1000, "the other thread, left out when it was read: {count:?}");
    assert!(count.own_events < 2000, "this thread, left out by the kernel: {count:?}");
}

#[test]
fn a_fallback_event_matches_the_print_format_of_the_kernel() {
    let root = Root::live();
    let reader = Reader::new(&root);
    let Some(tracepoints) = open(&reader, &tracepoints::EXTFRAG, &TracepointOptions::default()) else {
        return;
    };
    let format = &tracepoints.kinds()[0].format;
    ExtfragEventFields::new(format).unwrap();
    let fragmenting = format.print_fmt.rsplit("REC->change_ownership").nth(1).unwrap();
    assert!(fragmenting.contains("REC->fallback_order <"), "{}", format.print_fmt);
    assert!(!fragmenting.contains("REC->alloc_order <"), "{}", format.print_fmt);
}

/// Capacity of a pipe, and the maximum number of pipes: 400 MiB of unmovable memory.
const PIPE_BYTES: usize = 1 << 20;
const PIPES_MAX: usize = 400;

#[test]
fn filling_pipes_pollutes_movable_pageblocks() {
    let _alone = lock_tracing();
    let root = Root::live();
    let reader = Reader::new(&root);
    let extfrag =
        tracepoints::EXTFRAG.map(|wanted| TracepointRequest { stacks: StackDepth::KernelAndUser, ..wanted });
    let options = TracepointOptions { own_events: true, ..TracepointOptions::default() };
    let Some(mut tracepoints) = open(&reader, &extfrag, &options) else { return };
    let fields = ExtfragEventFields::new(&tracepoints.kinds()[0].format).unwrap();
    let symbols = KernelSymbols::read(&reader);
    let named = symbols.is_ok();
    let mut collector = StackCollector::new(Root::live(), symbols, Order(9));
    tracepoints.enable().unwrap();
    let (mut pipes, mut polluted) = (Vec::new(), 0);
    while pipes.len() < PIPES_MAX && polluted < 3 {
        let Ok((reading, writing)) = rustix::pipe::pipe() else { break };
        let Ok(room) = rustix::pipe::fcntl_setpipe_size(&writing, PIPE_BYTES) else { break };
        rustix::io::write(&writing, &vec![1; room]).unwrap();
        pipes.push((reading, writing));
        tracepoints.drain(|event| {
            let extfrag = fields.read(event).unwrap();
            if event.pid == std::process::id() && extfrag.is_polluting() {
                assert!(extfrag.fallback_order >= extfrag.alloc_order, "{extfrag:?}");
                assert!(extfrag.pfn.0 > 0, "{extfrag:?}");
                collector.add_fallback(event, &extfrag);
                polluted += 1;
            }
        });
    }
    drop(pipes);
    if polluted == 0 {
        #[allow(clippy::print_stderr)] // what a test leaves out is told there
        {
            eprintln!("skipped: no-fallback: 400 MiB in pipes took no movable memory");
        }
        return;
    }
    let stacks = collector.stacks(0);
    assert!(stacks.stacks.iter().all(|stack| stack.counts.polluting == stack.counts.events), "{stacks:?}");
    let of_pipe =
        |stack: &&pagelab_model::FallbackStack| stack.kernel.iter().any(|name| name.contains("pipe"));
    assert!(!named || stacks.stacks.iter().any(|stack| of_pipe(&stack)), "{stacks:?}");
}
