//! The bar of the replay: events a second, decoded from a file and replayed, to those of a hash table over
//! the plain allocator that are decoded already. For a person also the events a second alone.
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

use made_trace::{Made, head, run, write};
use pagelab_model::alloc_trace::{TraceEvent, TraceWhat, Was};
use pagelab_runfile::TraceReader;
use pagelab_sim::bench::Engine;
use pagelab_sim::plain::Plain;
use pagelab_sim::policy::Mobility;
use pagelab_sim::replay::Replay;
use pagelab_sim::replay::start::Start;
use pagelab_sim::replay::words::Options;
use pagelab_sim::words::{Kind, Shape};
use pagelab_sys::{clock, own_memory};

/// 4 GiB of memory, and what programs do in it.
const FRAMES: u32 = 1 << 20;
const EVENTS: usize = 4_000_000;
/// The hash table is so much slower.
const PLAIN_EVENTS: usize = 500_000;
const TURNS: usize = 7;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.pagelab");
    let mut made = Made::new(FRAMES, 1);
    made.run(EVENTS);
    write(&path, &head(FRAMES), &[run(FRAMES, Was::Free)], &made.events, &made.samples, true);
    let (mut ours, mut decoding, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let (all, decode) = replay(&path);
        ours.push(all);
        decoding.push(decode);
        plain.push(hash_table(&made.events[..PLAIN_EVENTS]));
    }
    let middle = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[TURNS / 2]
    };
    let (ours, decoding, plain) = (middle(&mut ours), middle(&mut decoding), middle(&mut plain));
    println!(
        r#"{{"bar":"sim_replay_to_plain","value":{:.3},"unit":"ratio","how":"{:.1} million events a second, {ours:.1} ns each, {decoding:.1} of them decoding; the hash table {plain:.0} ns"}}"#,
        plain / ours,
        1e3 / ours
    );
    if let Some(recorded) = std::env::var_os("PAGELAB_TRACE") {
        for _ in 0..TURNS {
            let (all, decode) = replay(Path::new(&recorded));
            println!("{}: {all:.1} ns an event, {decode:.1} of them decoding", recorded.display());
        }
    }
}

/// Nanoseconds of an event, and those of them that decoding takes.
fn replay(path: &Path) -> (f64, f64) {
    let mut reader = TraceReader::open(path).unwrap();
    let mut start = Start::new(reader.head(), &reader.snapshot().unwrap()).unwrap();
    let mut events = Vec::new();
    for place in 0..reader.blocks().len() {
        reader.block(place, &mut events).unwrap();
        start.observe(&events);
    }
    let mut replay = Replay::new(&start, &Mobility, Options::default()).unwrap();
    for place in replay.places() {
        let _ = own_memory::collapse(place, 2 << 20);
    }
    let (mut all, mut decoding, mut count) = (0, 0, 0);
    for place in 0..reader.blocks().len() {
        let before = clock::thread_cpu_ns();
        reader.block(place, &mut events).unwrap();
        let decoded = clock::thread_cpu_ns();
        replay.feed(&events).unwrap();
        all += clock::thread_cpu_ns() - before;
        decoding += decoded - before;
        count += events.len();
    }
    assert!(replay.account().frees.events > 0);
    (all as f64 / count as f64, decoding as f64 / count as f64)
}

/// The same by a hash table of objects over ordered sets.
fn hash_table(events: &[TraceEvent]) -> f64 {
    let mut memory = Plain::new(Shape { first: 0, frames: FRAMES, max_order: 10, block_order: 9 }).unwrap();
    let mut objects: HashMap<u32, u32> = HashMap::new();
    let before = clock::thread_cpu_ns();
    for event in events {
        match event.what {
            TraceWhat::Alloc { pfn: Some(pfn), order, migratetype, .. } => {
                let kind = Kind::of(migratetype).unwrap();
                let (frame, _) = memory.take(order, kind).unwrap().unwrap();
                objects.insert(pfn, frame);
            }
            TraceWhat::Free { pfn, .. } => memory.free(objects.remove(&pfn).unwrap()).unwrap(),
            _ => {}
        }
    }
    (clock::thread_cpu_ns() - before) as f64 / events.len() as f64
}
