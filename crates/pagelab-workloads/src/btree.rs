//! A B+ tree in an arena: filled with distinct keys by chance until the arena is full, then looked up.
//!
//! A lookup reads one node on each level from the root down, and which node comes next is known only when the
//! one before was searched: dependent reads, of which the upper levels stay in the caches. Nodes have 512
//! bytes, eight cache lines, of which a binary search reads about half.

mod tree;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::hash::{FOUND, LOOKUPS, mix};
use crate::histogram::Latencies;
use crate::options::{OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};
use tree::{NODE_BYTES, Tree};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "btree",
    about: "A B+ tree: filled by chance until its memory is full, then looked up by chance",
    generator: "distinct 64-bit keys by a bijection from the seed, put into a B+ tree of nodes of 512 \
                bytes (31 keys) until the arena is full; then lookups of keys drawn by splitmix64, of \
                which a share is there and the rest is not, uniform over the keys. The nodes of one \
                lookup depend on each other, lookups do not. Nodes are first touched when the tree grows, \
                in the arena's order",
    options: &[
        size("64M", "Bytes of the arena"),
        SEED,
        memory::ADVISE,
        OptionHead { default: "2000000", ..LOOKUPS },
        FOUND,
    ],
    forks: false,
    run,
};

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let nodes = options.size("size").0 / NODE_BYTES;
    let (seed, lookups) = (options.number("seed"), options.number("lookups"));
    let size = Bytes(nodes * NODE_BYTES);
    if nodes < 4 {
        return Err(Failed::Options(format!("size: a tree needs four nodes of {NODE_BYTES} bytes or more")));
    }
    let mut mapping = memory::map(options, size)?;
    let mut tree = Tree::new(mapping.words_mut());
    let before = clock::monotonic_ns();
    let (keys, latencies) = fill(&mut tree, seed, before);
    let filled_ns = clock::monotonic_ns().saturating_sub(before);
    phase.begin();
    let (before_cpu, before) = (clock::thread_cpu_ns(), clock::monotonic_ns());
    let (sum, wrong) = look_up(&tree, seed, keys, lookups, options.thousandths("found"));
    let looked_ns = clock::monotonic_ns().saturating_sub(before);
    let cpu_ns = clock::thread_cpu_ns().saturating_sub(before_cpu);
    phase.end();
    if wrong > 0 {
        return Err(Failed::Wrong(format!("{wrong} of {lookups} lookups found something else")));
    }
    check(&tree, keys)?;
    let rate = |count: u64, ns: u64| count as f64 / (ns.max(1) as f64 / 1e9);
    Ok(Done {
        merit: Merit {
            name: "lookup rate",
            unit: "1/s",
            better: Better::Higher,
            value: rate(lookups, looked_ns),
        },
        working_set: Bytes(tree.nodes() * NODE_BYTES),
        checksum: sum,
        latencies: Some(latencies),
        figures: vec![
            Figure::new("insert_rate", "1/s", Better::Higher, rate(keys, filled_ns)),
            Figure::new("lookup_cpu", "ns", Better::Lower, cpu_ns as f64 / lookups as f64),
            Figure::neutral("keys", "count", keys as f64),
            Figure::neutral("levels", "count", f64::from(tree.levels())),
        ],
        hot_regions: Vec::new(),
        generated: format!(
            "{keys} keys in {} nodes of {NODE_BYTES} bytes on {} levels, {lookups} lookups, {} of them \
             there, uniform, latencies of the inserts, seed {seed}",
            tree.nodes(),
            tree.levels(),
            options.thousandths("found") as f64 / 1000.0
        ),
    })
}

/// Inserts until there is no room, and times each insert, with a look at the clock, since the look before.
fn fill(tree: &mut Tree<'_>, seed: u64, mut before: u64) -> (u64, Latencies) {
    let mut latencies = Latencies::default();
    let mut keys = 0;
    while tree.insert(mix(seed.wrapping_add(keys)), keys) {
        let now = clock::monotonic_ns();
        latencies.add(now.saturating_sub(before));
        (before, keys) = (now, keys + 1);
    }
    (keys, latencies)
}

/// Looks keys up; returns a sum over what was found, and how many lookups found something else.
fn look_up(tree: &Tree<'_>, seed: u64, keys: u64, lookups: u64, found_of_1000: u64) -> (u64, u64) {
    let mut random = SplitMix64::new(seed);
    let (mut sum, mut wrong) = (0u64, 0u64);
    for _ in 0..lookups {
        let draw = random.draw();
        let index = ((u128::from(draw) * u128::from(keys)) >> 64) as u64;
        // The low bits decide whether it is there, the high ones which.
        let is_there = ((draw & 0xffff_ffff) * 1000) >> 32 < found_of_1000;
        let key = mix(seed.wrapping_add(if is_there { index } else { keys + index }));
        let found = tree.get(key);
        wrong += u64::from(found != is_there.then_some(index));
        sum = sum.rotate_left(1).wrapping_add(found.unwrap_or(key));
    }
    (std::hint::black_box(sum), wrong)
}

/// All leaves in their order: keys rise, none is missing, none is there twice.
fn check(tree: &Tree<'_>, keys: u64) -> Result<(), Failed> {
    let (mut count, mut sum, mut last) = (0u64, 0u128, None);
    for (key, value) in tree.iter() {
        if last.is_some_and(|last| last >= key) {
            return Err(Failed::Wrong(format!("key {key:#x} stands behind {:#x}", last.unwrap_or(0))));
        }
        (count, sum, last) = (count + 1, sum + u128::from(value), Some(key));
    }
    if count != keys || sum * 2 != u128::from(keys) * u128::from(keys.saturating_sub(1)) {
        return Err(Failed::Wrong(format!(
            "the leaves hold {count} keys of {keys}, their values the sum {sum}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::typed;

    #[test]
    fn a_run_fills_the_arena_and_repeats() {
        let small = [("size", "256K"), ("lookups", "5000")];
        let done = |set: &[(&str, &str)]| run(&typed(WORKLOAD.options, &small, set), &mut Phase::unwatched());
        let one = done(&[]).unwrap();
        assert_eq!(one.checksum, done(&[("advise", "nohuge")]).unwrap().checksum);
        assert!((Bytes(250 << 10)..=Bytes(256 << 10)).contains(&one.working_set), "{:?}", one.working_set);
        let keys = one.figures[2].value;
        // By chance a node is filled to ln 2 in the mean.
        assert!((512.0 * 18.0..512.0 * 25.0).contains(&keys), "{keys}");
        assert_eq!(one.latencies.unwrap().count() as f64, keys);
        assert_ne!(one.checksum, done(&[("seed", "2")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("lookups", "5001")]).unwrap().checksum);
        done(&[("found", "0")]).unwrap();
        assert!(matches!(done(&[("size", "1K")]), Err(Failed::Options(_))));
    }

    #[test]
    fn a_lost_key_is_seen() {
        let mut words = vec![0; 64 * 200];
        let mut tree = Tree::new(&mut words);
        (0..500).for_each(|index| assert!(tree.insert(mix(1 + index), index)));
        assert_eq!(look_up(&tree, 1, 500, 2000, 500).1, 0);
        assert!(check(&tree, 500).is_ok() && check(&tree, 501).is_err());
        assert!(look_up(&tree, 1, 501, 20_000, 1000).1 > 0, "key 500 is not there");
    }
}
