//! Hash table with open addressing: inserts of keys, then lookups in random order.
//!
//! Linear probing over slots of key and value, 16 bytes; the hash is the key's mix (splitmix64's finisher),
//! scaled to the number of slots by multiplication, so that the table need not be a power of two. A lookup
//! reads one random place, and with the table 70 % full two slots on average; nearly always one cache line
//! and one page.
//!
//! Keys are distinct, since the mix is a bijection: key i is mix(i + seed). So the value of each key is
//! known, and each lookup is checked.

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;

use crate::histogram::LatencyHistogram;
use crate::options::{
    OptionSpec, SEED_OPTION, WorkloadOptions, number_option, size_option, thousandths_option,
};
use crate::phase::MeasuredPhase;
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "hash",
    description: "Hash table with open addressing: inserts of distinct keys, then random lookups",
    generator: "distinct 64-bit keys by a bijection from the seed, inserted into slots of 16 bytes with \
                linear probing, uniform over the table; then lookups of random keys (splitmix64), of which a \
                share is present and the rest is not. Lookups do not depend on each other, except for timed \
                ones, which are waited for. The inserts first touch the table",
    options: &[
        size_option("256M", "Bytes of the table"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        thousandths_option("fill", 950, "0.7", "Share of the slots that are filled, at most 0.95"),
        LOOKUPS_OPTION,
        HIT_RATE_OPTION,
        number_option(
            "timed",
            1,
            1 << 40,
            "16",
            "One lookup in this many is timed; its time includes reading the clock",
        ),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_hash,
};

/// How many keys are looked up.
pub const LOOKUPS_OPTION: OptionSpec = number_option("lookups", 1, 1 << 40, "8000000", "Number of lookups");
/// The share of lookups that find something.
pub const HIT_RATE_OPTION: OptionSpec =
    thousandths_option("found", 1000, "0.9", "Share of lookups whose key is present");

fn run_hash(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let slots = options.get_size("size").0 / SLOT_BYTES;
    let fill = u128::from(options.get_thousandths("fill"));
    let keys = (u128::from(slots) * fill / 1000) as u64;
    if keys == 0 {
        return Err(WorkloadError::InvalidOptions("size, fill: no slot would be filled".to_owned()));
    }
    let (seed, lookups) = (options.get_number("seed"), options.get_number("lookups"));
    let size = Bytes(slots * SLOT_BYTES);
    let mut mapping = mapping::map_anonymous(options, size)?;
    let words = &mut mapping.words_mut()[..2 * slots as usize];
    let faults_before = clock::monotonic_ns();
    for index in 0..keys {
        insert_key(words, mix_bits(index.wrapping_add(seed)), index);
    }
    let insert_ns = clock::monotonic_ns().saturating_sub(faults_before);
    let mut lookup = LookupRun {
        words,
        random: SplitMix64::new(seed),
        seed,
        keys,
        hit_permille: options.get_thousandths("found"),
        value_sum: 0,
        wrong_count: 0,
    };
    let timed_every = options.get_number("timed");
    let (latencies, lookup_ns, cpu_ns) = phase.measure_times(|| lookup.run_all(lookups, timed_every));
    let (sum, wrong) = (lookup.value_sum, lookup.wrong_count);
    if wrong > 0 {
        return Err(WorkloadError::WrongResult(format!(
            "{wrong} of {lookups} lookups returned a wrong value"
        )));
    }
    check_table(&mapping.words()[..2 * slots as usize], keys)?;
    let rate = |count: u64, ns: u64| count as f64 / (ns.max(1) as f64 / 1e9);
    Ok(WorkloadResult {
        figure_of_merit: Figure::rate("lookup rate", rate(lookups, lookup_ns)),
        working_set: size,
        checksum: sum,
        latencies: Some(latencies),
        figures: vec![
            Figure::rate("put_rate", rate(keys, insert_ns)),
            Figure::time("lookup_cpu", cpu_ns as f64 / lookups as f64),
        ],
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{keys} keys in {slots} slots of {SLOT_BYTES} bytes, {lookups} lookups, {} of them there, \
             uniform, seed {seed}",
            options.get_thousandths("found") as f64 / 1000.0
        ),
    })
}

const SLOT_BYTES: u64 = 2 * size_of::<u64>() as u64;

/// splitmix64's finisher, a bijection of 64 bits.
pub fn mix_bits(x: u64) -> u64 {
    SplitMix64::new(x).next_u64()
}

/// The slot at which the search for a key begins. Keys are mixed already.
#[inline]
fn home_slot(key: u64, slots: usize) -> usize {
    ((u128::from(key) * slots as u128) >> 64) as usize
}

/// Puts a new key in; there is room. A slot is free while its value is 0, so 1 more than the value is kept.
fn insert_key(words: &mut [u64], key: u64, value: u64) {
    let slots = words.len() / 2;
    let mut slot = home_slot(key, slots);
    while words[2 * slot + 1] != 0 {
        slot = if slot + 1 == slots { 0 } else { slot + 1 };
    }
    words[2 * slot] = key;
    words[2 * slot + 1] = value + 1;
}

/// The value of a key. Some slot is free, so the search ends.
#[inline]
fn get_value(words: &[u64], key: u64) -> Option<u64> {
    let slots = words.len() / 2;
    let mut slot = home_slot(key, slots);
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
fn check_table(words: &[u64], keys: u64) -> Result<(), WorkloadError> {
    let filled = words.chunks_exact(2).filter(|slot| slot[1] != 0);
    let (count, sum) =
        filled.fold((0u64, 0u128), |(count, sum), slot| (count + 1, sum + u128::from(slot[1])));
    if count != keys || sum != u128::from(keys) * (u128::from(keys) + 1) / 2 {
        return Err(WorkloadError::WrongResult(format!(
            "{count} slots are filled with the sum {sum}; expected {keys} keys"
        )));
    }
    Ok(())
}

/// Lookups of random keys, each checked.
struct LookupRun<'a> {
    words: &'a [u64],
    random: SplitMix64,
    seed: u64,
    keys: u64,
    hit_permille: u64,
    value_sum: u64,
    wrong_count: u64,
}

impl LookupRun<'_> {
    fn run_all(&mut self, count: u64, timed_every: u64) -> LatencyHistogram {
        let mut latencies = LatencyHistogram::default();
        let mut until_timed = 0;
        for _ in 0..count {
            let (key, expected) = self.draw_key();
            let result = if until_timed == 0 {
                until_timed = timed_every;
                let faults_before = clock::monotonic_ns();
                // The clock is not read before the value has arrived: the kernel's clock waits for loads.
                let result = std::hint::black_box(get_value(self.words, key));
                latencies.record(clock::monotonic_ns().saturating_sub(faults_before));
                result
            } else {
                get_value(self.words, key)
            };
            until_timed -= 1;
            self.wrong_count += u64::from(result != expected);
            self.value_sum = self.value_sum.rotate_left(1).wrapping_add(result.unwrap_or(key));
        }
        latencies
    }

    /// A key, and the expected result.
    #[inline]
    fn draw_key(&mut self) -> (u64, Option<u64>) {
        let draw = self.random.next_u64();
        let index = ((u128::from(draw) * u128::from(self.keys)) >> 64) as u64;
        // The low bits decide whether the key exists, the high ones which key it is.
        if ((draw & 0xffff_ffff) * 1000) >> 32 < self.hit_permille {
            return (mix_bits(index.wrapping_add(self.seed)), Some(index));
        }
        // Behind the last key that was put in; the mix is a bijection, so these were not.
        (mix_bits((self.keys + index).wrapping_add(self.seed)), None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::options::options_with;

    #[test]
    fn the_table_is_that_of_the_standard_library() {
        let mut random = SplitMix64::new(4);
        for (slots, keys) in [(1usize, 0usize), (2, 1), (7, 6), (1000, 950)] {
            let mut words = vec![0; 2 * slots];
            let mut known = HashMap::new();
            for value in 0..keys as u64 {
                // Keys that are all equal in their high bits share one home.
                let key = if value % 3 == 0 { value + 5 } else { random.next_u64() };
                insert_key(&mut words, key, value);
                known.insert(key, value);
            }
            assert_eq!(known.len(), keys);
            for (key, value) in &known {
                assert_eq!(get_value(&words, *key), Some(*value));
            }
            for _ in 0..100 {
                let key = random.next_u64();
                assert_eq!(get_value(&words, key), known.get(&key).copied());
            }
            assert!(check_table(&words, keys as u64).is_ok());
            assert!(check_table(&words, keys as u64 + 1).is_err());
        }
    }

    #[test]
    fn a_lost_key_is_seen() {
        let mut words = vec![0; 200];
        (0..50).for_each(|index| insert_key(&mut words, mix_bits(index), index));
        let seen = |words: &[u64]| {
            let random = SplitMix64::new(1);
            let (seed, keys) = (0, 50);
            let mut lookups =
                LookupRun { words, random, seed, keys, hit_permille: 500, value_sum: 0, wrong_count: 0 };
            let timed_every = lookups.run_all(1000, 10);
            assert_eq!(timed_every.count(), 100);
            lookups.wrong_count
        };
        assert_eq!(seen(&words), 0);
        let slot = words.chunks_exact(2).position(|slot| slot[1] == 8).unwrap();
        words[2 * slot] ^= 1;
        assert!(seen(&words) > 0);
    }

    #[test]
    fn runs_repeat() {
        let small = [("size", "64K"), ("lookups", "5000")];
        let done = |set: &[(&str, &str)]| {
            run_hash(&options_with(WORKLOAD.options, &small, set), &mut MeasuredPhase::without_observer())
        };
        let one = done(&[]).unwrap();
        assert_eq!(one.checksum, done(&[("timed", "1")]).unwrap().checksum, "clocks change nothing");
        assert_eq!(one.latencies.as_ref().unwrap().count(), 313);
        assert_ne!(one.checksum, done(&[("seed", "2")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("lookups", "5001")]).unwrap().checksum);
        done(&[("found", "0")]).unwrap();
        done(&[("found", "1"), ("fill", "0.95")]).unwrap();
        assert!(matches!(done(&[("size", "16")]), Err(WorkloadError::InvalidOptions(_))));
    }
}
