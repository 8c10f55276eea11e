//! A hash table with open addressing: keys are put in, then looked up in an order by chance.
//!
//! Linear probing over slots of key and value, 16 bytes; the hash is the key's mix (splitmix64's finisher),
//! brought to the number of slots by multiplication, so that the table need not be a power of two. A lookup
//! reads one place by chance, and with the table 70 % full two slots in the mean; nearly always one cache
//! line and one page.
//!
//! Keys are distinct, since the mix is a bijection: key i is mix(i + seed). So the value of each key is
//! known, and each lookup is checked.

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::histogram::Latencies;
use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "hash",
    about: "A hash table with open addressing: distinct keys put in, then looked up by chance",
    generator: "distinct 64-bit keys by a bijection from the seed, put into slots of 16 bytes with linear \
                probing, uniform over the table; then lookups of keys drawn by splitmix64, of which a \
                share is there and the rest is not. Lookups do not depend on each other, but for those \
                that are timed, each of which is waited for. The table is first touched by what is put in",
    options: &[size("256M", "Bytes of the table"), SEED, memory::ADVISE, FILL, LOOKUPS, FOUND, TIMED],
    forks: false,
    run,
};

const FILL: OptionHead = OptionHead {
    name: "fill",
    kind: Kind::Thousandths(950),
    default: "0.7",
    help: "The share of the slots that are filled, at most 0.95",
};
/// How many keys are looked up.
pub const LOOKUPS: OptionHead = OptionHead {
    name: "lookups",
    kind: Kind::Number(1, 1 << 40),
    default: "8000000",
    help: "How many keys are looked up",
};
/// The share of lookups that find something.
pub const FOUND: OptionHead = OptionHead {
    name: "found",
    kind: Kind::Thousandths(1000),
    default: "0.9",
    help: "The share of lookups whose key is there",
};
const TIMED: OptionHead = OptionHead {
    name: "timed",
    kind: Kind::Number(1, 1 << 40),
    default: "16",
    help: "Of so many lookups one is timed by itself; a look at the clock is in its time",
};

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let slots = options.size("size").0 / SLOT_BYTES;
    let fill = u128::from(options.thousandths("fill"));
    let keys = (u128::from(slots) * fill / 1000) as u64;
    if keys == 0 {
        return Err(Failed::Options("size, fill: no slot would be filled".to_owned()));
    }
    let (seed, lookups) = (options.number("seed"), options.number("lookups"));
    let size = Bytes(slots * SLOT_BYTES);
    let mut mapping = memory::map(options, size)?;
    let words = &mut mapping.words_mut()[..2 * slots as usize];
    let before = clock::monotonic_ns();
    for index in 0..keys {
        insert(words, mix(index.wrapping_add(seed)), index);
    }
    let put_ns = clock::monotonic_ns().saturating_sub(before);
    let mut lookup = Lookups {
        words,
        random: SplitMix64::new(seed),
        seed,
        keys,
        found_of_1000: options.thousandths("found"),
        sum: 0,
        wrong: 0,
    };
    phase.begin();
    let (before_cpu, before) = (clock::thread_cpu_ns(), clock::monotonic_ns());
    let latencies = lookup.all(lookups, options.number("timed"));
    let looked_ns = clock::monotonic_ns().saturating_sub(before);
    let cpu_ns = clock::thread_cpu_ns().saturating_sub(before_cpu);
    phase.end();
    let (sum, wrong) = (lookup.sum, lookup.wrong);
    if wrong > 0 {
        return Err(Failed::Wrong(format!("{wrong} of {lookups} lookups found something else")));
    }
    check(&mapping.words()[..2 * slots as usize], keys)?;
    let rate = |count: u64, ns: u64| count as f64 / (ns.max(1) as f64 / 1e9);
    Ok(Done {
        merit: Merit {
            name: "lookup rate",
            unit: "1/s",
            better: Better::Higher,
            value: rate(lookups, looked_ns),
        },
        working_set: size,
        checksum: sum,
        latencies: Some(latencies),
        figures: vec![
            Figure::new("put_rate", "1/s", Better::Higher, rate(keys, put_ns)),
            Figure::new("lookup_cpu", "ns", Better::Lower, cpu_ns as f64 / lookups as f64),
        ],
        hot_regions: Vec::new(),
        generated: format!(
            "{keys} keys in {slots} slots of {SLOT_BYTES} bytes, {lookups} lookups, {} of them there, \
             uniform, seed {seed}",
            options.thousandths("found") as f64 / 1000.0
        ),
    })
}

const SLOT_BYTES: u64 = 2 * size_of::<u64>() as u64;

/// splitmix64's finisher, a bijection of 64 bits.
pub fn mix(x: u64) -> u64 {
    SplitMix64::new(x).draw()
}

/// The slot at which the search for a key begins. Keys are mixed already.
#[inline]
fn home(key: u64, slots: usize) -> usize {
    ((u128::from(key) * slots as u128) >> 64) as usize
}

/// Puts a new key in; there is room. A slot is free while its value is 0, so 1 more than the value is kept.
fn insert(words: &mut [u64], key: u64, value: u64) {
    let slots = words.len() / 2;
    let mut slot = home(key, slots);
    while words[2 * slot + 1] != 0 {
        slot = if slot + 1 == slots { 0 } else { slot + 1 };
    }
    words[2 * slot] = key;
    words[2 * slot + 1] = value + 1;
}

/// The value of a key. Some slot is free, so the search ends.
#[inline]
fn get(words: &[u64], key: u64) -> Option<u64> {
    let slots = words.len() / 2;
    let mut slot = home(key, slots);
    loop {
        let value = words[2 * slot + 1];
        if value == 0 {
            return None;
        }
        if words[2 * slot] == key {
            return Some(value - 1);
        }
        slot = if slot + 1 == slots { 0 } else { slot + 1 };
    }
}

/// Every slot that is filled holds one of the keys, and all of them.
fn check(words: &[u64], keys: u64) -> Result<(), Failed> {
    let filled = words.chunks_exact(2).filter(|slot| slot[1] != 0);
    let (count, sum) =
        filled.fold((0u64, 0u128), |(count, sum), slot| (count + 1, sum + u128::from(slot[1])));
    if count != keys || sum != u128::from(keys) * (u128::from(keys) + 1) / 2 {
        return Err(Failed::Wrong(format!("{count} slots are filled with the sum {sum}, of {keys} keys")));
    }
    Ok(())
}

/// Lookups of keys by chance, each checked.
struct Lookups<'a> {
    words: &'a [u64],
    random: SplitMix64,
    seed: u64,
    keys: u64,
    found_of_1000: u64,
    sum: u64,
    wrong: u64,
}

impl Lookups<'_> {
    fn all(&mut self, count: u64, timed: u64) -> Latencies {
        let mut latencies = Latencies::default();
        let mut until_timed = 0;
        for _ in 0..count {
            let (key, wanted) = self.draw();
            let found = if until_timed == 0 {
                until_timed = timed;
                let before = clock::monotonic_ns();
                // The clock is not read before the value is there: the kernel's clock waits for loads.
                let found = std::hint::black_box(get(self.words, key));
                latencies.add(clock::monotonic_ns().saturating_sub(before));
                found
            } else {
                get(self.words, key)
            };
            until_timed -= 1;
            self.wrong += u64::from(found != wanted);
            self.sum = self.sum.rotate_left(1).wrapping_add(found.unwrap_or(key));
        }
        latencies
    }

    /// A key, and what is to be found.
    #[inline]
    fn draw(&mut self) -> (u64, Option<u64>) {
        let draw = self.random.draw();
        let index = ((u128::from(draw) * u128::from(self.keys)) >> 64) as u64;
        // The low bits decide whether it is there, the high ones which.
        if ((draw & 0xffff_ffff) * 1000) >> 32 < self.found_of_1000 {
            return (mix(index.wrapping_add(self.seed)), Some(index));
        }
        // Behind the last key that was put in; the mix is a bijection, so these were not.
        (mix((self.keys + index).wrapping_add(self.seed)), None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::options::typed;

    #[test]
    fn the_table_is_that_of_the_standard_library() {
        let mut random = SplitMix64::new(4);
        for (slots, keys) in [(1usize, 0usize), (2, 1), (7, 6), (1000, 950)] {
            let mut words = vec![0; 2 * slots];
            let mut known = HashMap::new();
            for value in 0..keys as u64 {
                // Keys that are all equal in their high bits share one home.
                let key = if value % 3 == 0 { value + 5 } else { random.draw() };
                insert(&mut words, key, value);
                known.insert(key, value);
            }
            assert_eq!(known.len(), keys);
            for (key, value) in &known {
                assert_eq!(get(&words, *key), Some(*value));
            }
            for _ in 0..100 {
                let key = random.draw();
                assert_eq!(get(&words, key), known.get(&key).copied());
            }
            assert!(check(&words, keys as u64).is_ok());
            assert!(check(&words, keys as u64 + 1).is_err());
        }
    }

    #[test]
    fn a_lost_key_is_seen() {
        let mut words = vec![0; 200];
        (0..50).for_each(|index| insert(&mut words, mix(index), index));
        let seen = |words: &[u64]| {
            let random = SplitMix64::new(1);
            let (seed, keys) = (0, 50);
            let mut lookups = Lookups { words, random, seed, keys, found_of_1000: 500, sum: 0, wrong: 0 };
            let timed = lookups.all(1000, 10);
            assert_eq!(timed.count(), 100);
            lookups.wrong
        };
        assert_eq!(seen(&words), 0);
        let slot = words.chunks_exact(2).position(|slot| slot[1] == 8).unwrap();
        words[2 * slot] ^= 1;
        assert!(seen(&words) > 0);
    }

    #[test]
    fn runs_repeat() {
        let small = [("size", "64K"), ("lookups", "5000")];
        let done = |set: &[(&str, &str)]| run(&typed(WORKLOAD.options, &small, set), &mut Phase::unwatched());
        let one = done(&[]).unwrap();
        assert_eq!(one.checksum, done(&[("timed", "1")]).unwrap().checksum, "clocks change nothing");
        assert_eq!(one.latencies.as_ref().unwrap().count(), 313);
        assert_ne!(one.checksum, done(&[("seed", "2")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("lookups", "5001")]).unwrap().checksum);
        done(&[("found", "0")]).unwrap();
        done(&[("found", "1"), ("fill", "0.95")]).unwrap();
        assert!(matches!(done(&[("size", "16")]), Err(Failed::Options(_))));
    }
}
