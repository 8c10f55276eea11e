//! Garbage: an array of linked lists, each of which is dropped and built anew in every round, under a copying
//! collector. After a benchmark of a study of dynamic memory switching (Chole and Harneja 2007, section
//! 2.3.4), which ran it in Java under a falling amount of memory.
//!
//! The native runtime has a heap of two halves and Cheney's collector (1970): when the half in use is full,
//! what the array reaches is copied to the other half, breadth first. So nodes of one list, which were built
//! side by side, lie far apart after a collection: a walk along a list goes from page to page.
//! The Java runtime runs the same program, embedded here as source, by the `java` that is on PATH, with the
//! same heap; which collector it has is an option. Both say the same checksum.
//!
//! An operation is the rebuilding of one list. Its longest times are the pauses of the collector.

mod heap;
mod java;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::histogram::Latencies;
use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};
use heap::Heap;

/// The benchmark as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "gc",
    about: "Drops and rebuilds an array of linked lists under a copying garbage collector",
    generator: "lists of equal length that are rebuilt one after the other, values from the seed; allocation \
                in \
                sequence through one half of the heap, then copying of all that lives, breadth first, each \
                address read from the node before; the heap is touched as it is first filled",
    options: &[
        size("256M", "Bytes of the heap, of which the native collector uses one half at a time"),
        SEED,
        memory::ADVISE,
        RUNTIME,
        COLLECTOR,
        LIVE,
        LENGTH,
        ROUNDS,
    ],
    forks: true,
    run,
};

const RUNTIME: OptionHead = OptionHead {
    name: "runtime",
    kind: Kind::Word(&["native", "java"]),
    default: "native",
    help: "What runs it: native, or the java on PATH (a JDK of Java 11 or later)",
};
const COLLECTOR: OptionHead = OptionHead {
    name: "collector",
    kind: Kind::Word(&["serial", "parallel", "g1"]),
    default: "serial",
    help: "Collector of the java runtime",
};
const LIVE: OptionHead = OptionHead {
    name: "live",
    kind: Kind::Thousandths(900),
    default: "0.5",
    help: "Share of half the heap that lists take, at 24 bytes a node",
};
const LENGTH: OptionHead =
    OptionHead { name: "length", kind: Kind::Number(1, 1 << 32), default: "100", help: "Nodes of a list" };
const ROUNDS: OptionHead = OptionHead {
    name: "rounds",
    kind: Kind::Number(1, 1 << 32),
    default: "8",
    help: "How often every list is rebuilt",
};

/// What is to be done, whoever runs it.
#[derive(Clone, Copy, Debug)]
struct Work {
    heap: Bytes,
    lists: u64,
    length: u64,
    rounds: u64,
    seed: u64,
}

/// What a runtime says.
#[derive(Clone, Debug, PartialEq)]
struct Ran {
    checksum: u64,
    took_ns: u64,
    /// CPU time of it, where the runtime is ours.
    cpu_ns: Option<u64>,
    latencies: Latencies,
    collections: u64,
    collecting_ns: u64,
    /// The longest collection, where the runtime is ours.
    collecting_max_ns: Option<u64>,
}

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let (heap, length) = (options.size("size"), options.number("length"));
    let nodes = heap.0 / 2 / heap::BYTES_PER_NODE;
    let live = u128::from(nodes) * u128::from(options.thousandths("live")) / 1000;
    let lists = u64::try_from(live).unwrap_or(0) / length;
    if lists == 0 {
        return Err(Failed::Options(format!(
            "size, live and length: not one list of {length} nodes fits in that share of half of {} bytes",
            heap.0
        )));
    }
    let work = Work { heap, lists, length, rounds: options.number("rounds"), seed: options.number("seed") };
    let ran = match options.text("runtime") {
        "java" => java::run(&work, options, phase)?,
        _ => native(&work, options, phase)?,
    };
    let nodes = work.lists * work.length * work.rounds;
    let mut figures = vec![
        Figure::neutral("collections", "collections", ran.collections as f64),
        Figure::new("collecting", "ns", Better::Lower, ran.collecting_ns as f64),
    ];
    for (name, ns) in [("collecting_max", ran.collecting_max_ns), ("cpu", ran.cpu_ns)] {
        figures.extend(ns.map(|ns| Figure::new(name, "ns", Better::Lower, ns as f64)));
    }
    Ok(Done {
        merit: Merit {
            name: "node time",
            unit: "ns",
            better: Better::Lower,
            value: ran.took_ns as f64 / nodes as f64,
        },
        working_set: heap,
        checksum: ran.checksum,
        figures,
        latencies: Some(ran.latencies),
        hot_regions: Vec::new(),
        generated: format!(
            "{lists} lists of {length} nodes, rebuilt {} times, {}, seed {}",
            work.rounds,
            options.text("runtime"),
            work.seed
        ),
    })
}

/// Runs it on our own heap.
fn native(work: &Work, options: &Options, phase: &mut Phase<'_>) -> Result<Ran, Failed> {
    let mut memory = memory::map(options, work.heap)?;
    let mut roots = memory::map(options, Bytes(work.lists * size_of::<u64>() as u64))?;
    let roots = &mut roots.words_mut()[..work.lists as usize];
    let mut heap = Heap::new(memory.words_mut());
    let mut random = SplitMix64::new(work.seed);
    let mut latencies = Latencies::default();
    phase.begin();
    let (began, cpu_began) = (clock::monotonic_ns(), clock::thread_cpu_ns());
    let mut now = began;
    for round in 0..work.rounds {
        for list in 0..roots.len() {
            roots[list] = heap::NONE;
            heap.forget(if round > 0 { work.length } else { 0 });
            for _ in 0..work.length {
                heap.push(roots, list, random.draw()).map_err(Failed::Wrong)?;
            }
            let before = std::mem::replace(&mut now, clock::monotonic_ns());
            latencies.add(now.saturating_sub(before));
        }
    }
    let took_ns = now.saturating_sub(began);
    let cpu_ns = Some(clock::thread_cpu_ns().saturating_sub(cpu_began));
    phase.end();
    let checksum = check(&heap, roots, work)?;
    let (collections, collecting_ns) = (heap.collections(), heap.collecting_ns());
    let collecting_max_ns = Some(heap.collecting_max_ns());
    Ok(Ran { checksum, took_ns, cpu_ns, latencies, collections, collecting_ns, collecting_max_ns })
}

/// Walks all lists, whose values must be those that the generator gave in the last round, last one first.
/// Their checksum.
fn check(heap: &Heap<'_>, roots: &[u64], work: &Work) -> Result<u64, Failed> {
    let mut random = SplitMix64::new(work.seed);
    for _ in 0..work.lists * work.length * (work.rounds - 1) {
        random.draw();
    }
    let mut sum = 0u64;
    let mut wanted = Vec::new();
    for (list, &root) in roots.iter().enumerate() {
        wanted.clear();
        wanted.extend((0..work.length).map(|_| random.draw()));
        let mut nodes = heap.walk(root);
        for &value in wanted.iter().rev() {
            if nodes.next() != Some(value) {
                return Err(Failed::Wrong(format!("list {list} is not what was built last")));
            }
            sum = (sum ^ value).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if nodes.next().is_some() {
            return Err(Failed::Wrong(format!("list {list} is longer than {}", work.length)));
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(changes: &[(&str, &str)]) -> Options {
        let mut options = Options::defaults(WORKLOAD.options);
        for (name, typed) in [("size", "64K"), ("length", "10"), ("rounds", "5")].iter().chain(changes) {
            options.set(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn lists_outlive_collections() {
        for live in ["0.05", "0.5", "0.9"] {
            let done = run(&small(&[("live", live)]), &mut Phase::unwatched()).unwrap();
            let figure = |name: &str| done.figures.iter().find(|figure| figure.name == name).unwrap().value;
            let lists = 1365.0 * live.parse::<f64>().unwrap() / 10.0;
            assert_eq!(done.latencies.as_ref().unwrap().count() as f64, lists.floor() * 5.0, "{live}");
            // Every node is made once, and a half of the heap has 1365.
            let fewest = ((lists.floor() * 50.0 / 1365.0).ceil() - 1.0).max(0.0);
            assert!(figure("collections") >= fewest, "{live}: {}", figure("collections"));
        }
    }

    #[test]
    fn runs_repeat_and_seeds_differ() {
        let done = run(&small(&[]), &mut Phase::unwatched()).unwrap();
        assert_eq!(run(&small(&[]), &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        assert_ne!(run(&small(&[("seed", "2")]), &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        for changes in [[("live", "0"), ("seed", "1")], [("length", "9999"), ("seed", "1")]] {
            assert!(
                matches!(run(&small(&changes), &mut Phase::unwatched()), Err(Failed::Options(_))),
                "{changes:?}"
            );
        }
    }
}
