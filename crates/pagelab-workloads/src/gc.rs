//! Garbage collection: an array of linked lists, each of which is dropped and rebuilt in every round, under a
//! copying collector. After a benchmark of a study of dynamic memory switching (Chole and Harneja 2007,
//! section 2.3.4), which ran it in Java under a decreasing amount of memory.
//!
//! The native runtime has a heap of two halves and Cheney's collector (1970): when the half in use is full,
//! all objects reachable from the array are copied to the other half, breadth first. So nodes of one list,
//! which were allocated side by side, are far apart after a collection: a walk along a list touches a
//! different page at each step. The Java runtime runs the same program, embedded as source, by the `java` on
//! PATH, with the same heap; its collector is an option. Both give the same checksum.
//!
//! An operation is the rebuilding of one list. Its longest times are the pauses of the collector.

mod heap;
mod java;

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;

use crate::histogram::LatencyHistogram;
use crate::options::{
    SEED_OPTION, WorkloadOptions, choice_option, number_option, size_option, thousandths_option,
};
use crate::phase::MeasuredPhase;
use crate::{
    Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping, mix_checksum,
};
use heap::CopyingHeap;

/// The benchmark as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "gc",
    description: "Drops and rebuilds an array of linked lists under a copying garbage collector",
    generator: "lists of equal length that are rebuilt one after the other, values from the seed; sequential \
                allocation through one half of the heap, then a copy of all live nodes, breadth first, each \
                address read from the node before; the heap is touched when it is first filled",
    options: &[
        size_option("256M", "Bytes of the heap; the native collector uses one half at a time"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        choice_option(
            "runtime",
            &["native", "java"],
            "native",
            "Runtime: native, or the java on PATH (a JDK of Java 11 or later)",
        ),
        choice_option("collector", &["serial", "parallel", "g1"], "serial", "Collector of the java runtime"),
        thousandths_option(
            "live",
            900,
            "0.5",
            "Share of half the heap that the lists use, at 24 bytes per node",
        ),
        number_option("length", 1, 1 << 32, "100", "Nodes per list"),
        number_option("rounds", 1, 1 << 32, "8", "Number of times each list is rebuilt"),
    ],
    forks_processes: true,
    guest_parts: &[],
    run: run_gc,
};

/// Work to do, by any thread.
#[derive(Clone, Copy, Debug)]
struct GcJob {
    heap_bytes: Bytes,
    list_count: u64,
    list_length: u64,
    rounds: u64,
    seed: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct RuntimeResult {
    checksum: u64,
    elapsed_ns: u64,
    /// CPU time of it, where the runtime is ours.
    cpu_ns: Option<u64>,
    latencies: LatencyHistogram,
    collections: u64,
    collection_ns: u64,
    /// The longest collection, where the runtime is ours.
    collection_max_ns: Option<u64>,
}

fn run_gc(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let (heap, length) = (options.get_size("size"), options.get_number("length"));
    let nodes = heap.0 / 2 / heap::BYTES_PER_NODE;
    let live = u128::from(nodes) * u128::from(options.get_thousandths("live")) / 1000;
    let lists = u64::try_from(live).unwrap_or(0) / length;
    if lists == 0 {
        return Err(WorkloadError::InvalidOptions(format!(
            "size, live and length: the live share of half of {} bytes has no room for a single list of \
             {length} nodes",
            heap.0
        )));
    }
    let job = GcJob {
        heap_bytes: heap,
        list_count: lists,
        list_length: length,
        rounds: options.get_number("rounds"),
        seed: options.get_number("seed"),
    };
    let result = match options.get_text("runtime") {
        "java" => java::run_java(&job, options, phase)?,
        _ => run_native(&job, options, phase)?,
    };
    let nodes = job.list_count * job.list_length * job.rounds;
    let mut figures = vec![
        Figure::neutral("collections", "collections", result.collections as f64),
        Figure::time("collecting", result.collection_ns as f64),
    ];
    for (name, ns) in [("collecting_max", result.collection_max_ns), ("cpu", result.cpu_ns)] {
        figures.extend(ns.map(|ns| Figure::time(name, ns as f64)));
    }
    Ok(WorkloadResult {
        figure_of_merit: Figure::time("node time", result.elapsed_ns as f64 / nodes as f64),
        working_set: heap,
        checksum: result.checksum,
        figures,
        latencies: Some(result.latencies),
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{lists} lists of {length} nodes, rebuilt {} times, {}, seed {}",
            job.rounds,
            options.get_text("runtime"),
            job.seed
        ),
    })
}

/// Runs it on our own heap.
fn run_native(
    job: &GcJob,
    options: &WorkloadOptions,
    phase: &mut MeasuredPhase<'_>,
) -> Result<RuntimeResult, WorkloadError> {
    let mut memory = mapping::map_anonymous(options, job.heap_bytes)?;
    let mut roots = mapping::map_anonymous(options, Bytes(job.list_count * size_of::<u64>() as u64))?;
    let roots = &mut roots.words_mut()[..job.list_count as usize];
    let mut heap = CopyingHeap::new(memory.words_mut());
    let mut random = SplitMix64::new(job.seed);
    let mut latencies = LatencyHistogram::default();
    phase.begin();
    let (started, cpu_started) = (clock::monotonic_ns(), clock::thread_cpu_ns());
    let mut now = started;
    for round in 0..job.rounds {
        for list in 0..roots.len() {
            roots[list] = heap::NULL_NODE;
            heap.mark_unreachable(if round > 0 { job.list_length } else { 0 });
            for _ in 0..job.list_length {
                heap.push_node(roots, list, random.next_u64()).map_err(WorkloadError::WrongResult)?;
            }
            let before = std::mem::replace(&mut now, clock::monotonic_ns());
            latencies.record(now.saturating_sub(before));
        }
    }
    let elapsed_ns = now.saturating_sub(started);
    let cpu_ns = Some(clock::thread_cpu_ns().saturating_sub(cpu_started));
    phase.end();
    Ok(RuntimeResult {
        checksum: check_lists(&heap, roots, job)?,
        elapsed_ns,
        cpu_ns,
        latencies,
        collections: heap.collection_count(),
        collection_ns: heap.collection_ns(),
        collection_max_ns: Some(heap.collection_max_ns()),
    })
}

/// Walks all lists, whose values must be those that the generator gave in the last round, last one first.
/// Their checksum.
fn check_lists(heap: &CopyingHeap<'_>, roots: &[u64], job: &GcJob) -> Result<u64, WorkloadError> {
    let mut random = SplitMix64::new(job.seed);
    for _ in 0..job.list_count * job.list_length * (job.rounds - 1) {
        random.next_u64();
    }
    let mut sum = 0u64;
    let mut wanted = Vec::new();
    for (list, &root) in roots.iter().enumerate() {
        wanted.clear();
        wanted.extend((0..job.list_length).map(|_| random.next_u64()));
        let mut nodes = heap.list_values(root);
        for &value in wanted.iter().rev() {
            if nodes.next() != Some(value) {
                let text = format!("list {list} differs from the one built last");
                return Err(WorkloadError::WrongResult(text));
            }
            sum = mix_checksum(sum, value);
        }
        if nodes.next().is_some() {
            let text = format!("list {list} is longer than {}", job.list_length);
            return Err(WorkloadError::WrongResult(text));
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_options(changes: &[(&str, &str)]) -> WorkloadOptions {
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        for (name, typed) in [("size", "64K"), ("length", "10"), ("rounds", "5")].iter().chain(changes) {
            options.set_value(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn lists_outlive_collections() {
        for live in ["0.05", "0.5", "0.9"] {
            let done =
                run_gc(&small_options(&[("live", live)]), &mut MeasuredPhase::without_observer()).unwrap();
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
        let done = run_gc(&small_options(&[]), &mut MeasuredPhase::without_observer()).unwrap();
        assert_eq!(
            run_gc(&small_options(&[]), &mut MeasuredPhase::without_observer()).unwrap().checksum,
            done.checksum
        );
        assert_ne!(
            run_gc(&small_options(&[("seed", "2")]), &mut MeasuredPhase::without_observer())
                .unwrap()
                .checksum,
            done.checksum
        );
        for changes in [[("live", "0"), ("seed", "1")], [("length", "9999"), ("seed", "1")]] {
            assert!(
                matches!(
                    run_gc(&small_options(&changes), &mut MeasuredPhase::without_observer()),
                    Err(WorkloadError::InvalidOptions(_))
                ),
                "{changes:?}"
            );
        }
    }
}
