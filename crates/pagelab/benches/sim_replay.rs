//! Benchmark of the replay: events per second, decoded from a file and replayed, compared with a hash table
//! over the simple allocator on decoded events. For a person also the events a second alone.
//!
//! `PAGELAB_TRACE=FILE` measures a recorded trace beside the one that is made here.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench panics to fail, and prints what it measured"
)]

#[path = "../tests/support/made_trace.rs"]
mod made_trace;

use std::collections::HashMap;
use std::path::Path;

use pagelab_model::alloc_trace::{FrameState, TraceEvent, TraceEventKind};
use pagelab_model::order_statistics::median;
use pagelab_runfile::TraceReader;
use pagelab_sim::bench::Engine;
use pagelab_sim::btree_buddy::BTreeBuddy;
use pagelab_sim::policies::GroupByMobility;
use pagelab_sim::replay::Replay;
use pagelab_sim::replay::snapshot::ReplaySnapshot;
use pagelab_sim::replay::types::ZoneSelection;
use pagelab_sim::types::{AllocationType, Frame, ZoneGeometry};
use pagelab_sys::{advice, clock};

use made_trace::{SyntheticTrace, head, run, write};

/// 4 GiB of memory, and what programs do in it.
const FRAMES: u32 = 1 << 20;
const EVENTS: usize = 4_000_000;
/// The hash table is so much slower.
const HASH_TABLE_EVENTS: usize = 500_000;
const RUNS: usize = 7;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    let mut made = SyntheticTrace::new(FRAMES, 1);
    made.run(EVENTS);
    write(&path, &head(FRAMES), &[run(FRAMES, FrameState::Free)], &made.events, &made.samples, true);
    let (mut ours, mut decoding, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (all, decode) = replay_ns_per_event(&path);
        ours.push(all);
        decoding.push(decode);
        plain.push(hash_table_ns_per_event(&made.events[..HASH_TABLE_EVENTS]));
    }
    let middle = |times: &mut Vec<f64>| median(times).unwrap_or(f64::NAN);
    let (ours, decoding, plain) = (middle(&mut ours), middle(&mut decoding), middle(&mut plain));
    println!(
        r#"{{"bar":"sim_replay_to_plain","value":{:.3},"unit":"ratio","how":"{:.1} million events a second, {ours:.1} ns each, {decoding:.1} of them decoding; the hash table {plain:.0} ns"}}"#,
        plain / ours,
        1e3 / ours
    );
    if let Some(recorded) = std::env::var_os("PAGELAB_TRACE") {
        for _ in 0..RUNS {
            let (all, decode) = replay_ns_per_event(Path::new(&recorded));
            println!("{}: {all:.1} ns an event, {decode:.1} of them decoding", recorded.display());
        }
    }
}

/// Nanoseconds of an event, and those of them that decoding takes.
fn replay_ns_per_event(path: &Path) -> (f64, f64) {
    let mut reader = TraceReader::open(path).unwrap();
    let mut start = ReplaySnapshot::new(reader.header(), &reader.read_frame_runs().unwrap()).unwrap();
    let mut events = Vec::new();
    for place in 0..reader.blocks().len() {
        reader.read_block(place, &mut events).unwrap();
        start.observe_events(&events);
    }
    let mut replay = Replay::new(&start, &GroupByMobility, ZoneSelection::default()).unwrap();
    for place in replay.memory_ranges() {
        let _ = advice::collapse_range(place, 2 << 20);
    }
    let (mut all, mut decoding, mut count) = (0, 0, 0);
    for place in 0..reader.blocks().len() {
        let before = clock::thread_cpu_ns();
        reader.read_block(place, &mut events).unwrap();
        let decoded = clock::thread_cpu_ns();
        replay.replay_events(&events).unwrap();
        all += clock::thread_cpu_ns() - before;
        decoding += decoded - before;
        count += events.len();
    }
    assert!(replay.stats().frees.events > 0);
    (all as f64 / count as f64, decoding as f64 / count as f64)
}

/// The same by a hash table of objects over ordered sets.
fn hash_table_ns_per_event(events: &[TraceEvent]) -> f64 {
    let mut memory = BTreeBuddy::new(ZoneGeometry {
        first_frame: Frame::new(0),
        frames: FRAMES,
        max_order: 10,
        pageblock_order: 9,
    })
    .unwrap();
    let mut objects: HashMap<u32, Frame> = HashMap::new();
    let before = clock::thread_cpu_ns();
    for event in events {
        match event.kind {
            TraceEventKind::Alloc { pfn: Some(pfn), order, migratetype, .. } => {
                let kind = AllocationType::from_index(migratetype).unwrap();
                let (frame, _) = memory.allocate_block(order, kind).unwrap().unwrap();
                objects.insert(pfn, frame);
            }
            TraceEventKind::Free { pfn, .. } => memory.free_block(objects.remove(&pfn).unwrap()).unwrap(),
            _ => {}
        }
    }
    (clock::thread_cpu_ns() - before) as f64 / events.len() as f64
}
