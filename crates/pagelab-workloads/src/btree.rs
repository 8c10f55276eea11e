//! B+ tree in an arena: filled with distinct keys in random order until the arena is full, then searched.
//!
//! A lookup reads one node on each level from the root down, and the next node is known only after the search
//! of the previous one: dependent reads, of which the upper levels stay in the caches. Nodes have 512 bytes,
//! eight cache lines, of which a binary search reads about half.

mod tree;

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;

use crate::hash::{HIT_RATE_OPTION, LOOKUPS_OPTION, mix_bits};
use crate::histogram::LatencyHistogram;
use crate::options::{OptionSpec, SEED_OPTION, WorkloadOptions, size_option};
use crate::phase::MeasuredPhase;
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};
use tree::{BPlusTree, NODE_BYTES};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "btree",
    description: "B+ tree: filled in random order until its memory is full, then random lookups",
    generator: "distinct 64-bit keys by a bijection from the seed, inserted into a B+ tree of nodes of 512 \
                bytes (31 keys) until the arena is full; then lookups of random keys (splitmix64), of which \
                a share is present and the rest is not, uniform over the keys. The nodes of one lookup \
                depend on each other, lookups do not. Nodes are first touched when the tree grows, in the \
                arena's order",
    options: &[
        size_option("64M", "Bytes of the arena"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        OptionSpec { default: "2000000", ..LOOKUPS_OPTION },
        HIT_RATE_OPTION,
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_btree,
};

fn run_btree(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let nodes = options.get_size("size").0 / NODE_BYTES;
    let (seed, lookups) = (options.get_number("seed"), options.get_number("lookups"));
    let size = Bytes(nodes * NODE_BYTES);
    if nodes < 4 {
        return Err(WorkloadError::InvalidOptions(format!(
            "size: a tree needs at least four nodes of {NODE_BYTES} bytes"
        )));
    }
    let mut mapping = mapping::map_anonymous(options, size)?;
    let mut tree = BPlusTree::new(mapping.words_mut());
    let previous_ns = clock::monotonic_ns();
    let (keys, latencies) = fill_tree(&mut tree, seed, previous_ns);
    let fill_ns = clock::monotonic_ns().saturating_sub(previous_ns);
    let hit_permille = options.get_thousandths("found");
    let ((sum, wrong_count), lookup_ns, cpu_ns) =
        phase.measure_times(|| run_lookups(&tree, seed, keys, lookups, hit_permille));
    if wrong_count > 0 {
        return Err(WorkloadError::WrongResult(format!(
            "{wrong_count} of {lookups} lookups returned a wrong value"
        )));
    }
    check_leaves(&tree, keys)?;
    let rate = |count: u64, ns: u64| count as f64 / (ns.max(1) as f64 / 1e9);
    Ok(WorkloadResult {
        figure_of_merit: Figure::rate("lookup rate", rate(lookups, lookup_ns)),
        working_set: Bytes(tree.node_count() * NODE_BYTES),
        checksum: sum,
        latencies: Some(latencies),
        figures: vec![
            Figure::rate("insert_rate", rate(keys, fill_ns)),
            Figure::time("lookup_cpu", cpu_ns as f64 / lookups as f64),
            Figure::neutral("keys", "count", keys as f64),
            Figure::neutral("levels", "count", f64::from(tree.levels())),
        ],
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{keys} keys in {} nodes of {NODE_BYTES} bytes on {} levels, {lookups} lookups, {} of them \
             there, uniform, latencies of the inserts, seed {seed}",
            tree.node_count(),
            tree.levels(),
            hit_permille as f64 / 1000.0
        ),
    })
}

/// Inserts until there is no room, and times each insert, including one reading of the clock.
fn fill_tree(tree: &mut BPlusTree<'_>, seed: u64, mut previous_ns: u64) -> (u64, LatencyHistogram) {
    let mut latencies = LatencyHistogram::default();
    let mut keys = 0;
    while tree.insert(mix_bits(seed.wrapping_add(keys)), keys) {
        let now = clock::monotonic_ns();
        latencies.record(now.saturating_sub(previous_ns));
        (previous_ns, keys) = (now, keys + 1);
    }
    (keys, latencies)
}

/// Looks keys up; returns the sum of the results, and the number of wrong results.
fn run_lookups(tree: &BPlusTree<'_>, seed: u64, keys: u64, lookups: u64, hit_permille: u64) -> (u64, u64) {
    let mut random = SplitMix64::new(seed);
    let (mut sum, mut wrong_count) = (0u64, 0u64);
    for _ in 0..lookups {
        let draw = random.next_u64();
        let index = ((u128::from(draw) * u128::from(keys)) >> 64) as u64;
        // The low bits decide whether the key exists, the high ones which key it is.
        let is_there = ((draw & 0xffff_ffff) * 1000) >> 32 < hit_permille;
        let key = mix_bits(seed.wrapping_add(if is_there { index } else { keys + index }));
        let found = tree.get(key);
        wrong_count += u64::from(found != is_there.then_some(index));
        sum = sum.rotate_left(1).wrapping_add(found.unwrap_or(key));
    }
    (std::hint::black_box(sum), wrong_count)
}

/// All leaves in their order: keys ascend, none is missing or duplicate.
fn check_leaves(tree: &BPlusTree<'_>, keys: u64) -> Result<(), WorkloadError> {
    let (mut count, mut sum, mut last) = (0u64, 0u128, None);
    for (key, value) in tree.iter() {
        if last.is_some_and(|last| last >= key) {
            let text = format!("key {key:#x} is after {:#x}", last.unwrap_or(0));
            return Err(WorkloadError::WrongResult(text));
        }
        (count, sum, last) = (count + 1, sum + u128::from(value), Some(key));
    }
    if count != keys || sum * 2 != u128::from(keys) * u128::from(keys.saturating_sub(1)) {
        return Err(WorkloadError::WrongResult(format!(
            "the leaves hold {count} of {keys} keys; the sum of their values is {sum}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::options_with;

    #[test]
    fn a_run_fills_the_arena_and_repeats() {
        let small = [("size", "256K"), ("lookups", "5000")];
        let done = |set: &[(&str, &str)]| {
            run_btree(&options_with(WORKLOAD.options, &small, set), &mut MeasuredPhase::without_observer())
        };
        let one = done(&[]).unwrap();
        assert_eq!(one.checksum, done(&[("advise", "nohuge")]).unwrap().checksum);
        assert!((Bytes(250 << 10)..=Bytes(256 << 10)).contains(&one.working_set), "{:?}", one.working_set);
        let keys = one.figures[2].value;
        // With random keys a node is filled to ln 2 on average.
        assert!((512.0 * 18.0..512.0 * 25.0).contains(&keys), "{keys}");
        assert_eq!(one.latencies.unwrap().count() as f64, keys);
        assert_ne!(one.checksum, done(&[("seed", "2")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("lookups", "5001")]).unwrap().checksum);
        done(&[("found", "0")]).unwrap();
        assert!(matches!(done(&[("size", "1K")]), Err(WorkloadError::InvalidOptions(_))));
    }

    #[test]
    fn a_lost_key_is_seen() {
        let mut words = vec![0; 64 * 200];
        let mut tree = BPlusTree::new(&mut words);
        (0..500).for_each(|index| assert!(tree.insert(mix_bits(1 + index), index)));
        assert_eq!(run_lookups(&tree, 1, 500, 2000, 500).1, 0);
        assert!(check_leaves(&tree, 500).is_ok() && check_leaves(&tree, 501).is_err());
        assert!(run_lookups(&tree, 1, 501, 20_000, 1000).1 > 0, "key 500 is not there");
    }
}
