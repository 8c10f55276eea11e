//! Random updates of a table of words: HPC Challenge RandomAccess, whose rate is counted in updates a second.
//!
//! The sequence is the benchmark's own (HPCC 1.5, RandomAccess/core_single_cpu.c and utility.c): a 64-bit
//! register shifted left, with x^63 + x^2 + x + 1 of its polynomial xored in where a bit left it; the table
//! has a power of two of words, word i holds i at first, and each state r does T[r mod n] ^= r. 128 parts of
//! the sequence run side by side, as the benchmark does for one processor, so that up to 128 updates are
//! independent of each other. Its rule of four updates for each word is the default.
//!
//! The check is the benchmark's too: the whole sequence once more, in its plain order, restores the table,
//! since xor undoes itself. The benchmark forgives 1 % of wrong words for races between processors; on one
//! thread nothing is forgiven.

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_sys::clock;

use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "gups",
    about: "Random updates of a table of 64-bit words by xor (HPC Challenge RandomAccess)",
    generator: "the sequence of HPC Challenge RandomAccess: states of a 64-bit shift register, each xored \
                to the word of the table that its low bits name; 128 stretches of the sequence side by \
                side, so that 128 updates in a row do not depend on each other; uniform over the table; \
                each word is written before the first update. Seed 1 is the benchmark's own sequence, \
                other seeds begin elsewhere in it",
    options: &[size("64M", "Bytes of the table; a power of two is used"), SEED, memory::ADVISE, UPDATES],
    forks: false,
    run,
};

const UPDATES: OptionHead = OptionHead {
    name: "updates",
    kind: Kind::Number(1, 1 << 20),
    default: "4",
    help: "Updates for each word of the table; the benchmark's rule is 4",
};

/// Stretches side by side; the table has at least as many words.
const STREAMS: usize = 128;

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let words = options.size("size").0 / size_of::<u64>() as u64;
    if words < STREAMS as u64 {
        return Err(Failed::Options(format!("size: a table needs {STREAMS} words of 8 bytes or more")));
    }
    let words = 1u64 << words.ilog2();
    let Some(updates) = words.checked_mul(options.number("updates")) else {
        return Err(Failed::Options("updates: more than can be counted".to_owned()));
    };
    let (seed, table_bytes) = (options.number("seed"), Bytes(words * size_of::<u64>() as u64));
    let mut mapping = memory::map(options, table_bytes)?;
    let table = &mut mapping.words_mut()[..words as usize];
    let before = clock::thread_cpu_ns();
    (0..).zip(table.iter_mut()).for_each(|(index, word)| *word = index);
    let filled_ns = clock::thread_cpu_ns().saturating_sub(before);
    phase.begin();
    let before = clock::thread_cpu_ns();
    update(table, begin(seed, updates), updates);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    phase.end();
    let checksum = table.iter().fold(0u64, |sum, word| sum.rotate_left(1).wrapping_add(*word));
    let wrong = restore(table, begin(seed, updates), updates);
    if wrong > 0 {
        return Err(Failed::Wrong(format!("{wrong} of {words} words were not restored")));
    }
    Ok(Done {
        merit: Merit {
            name: "update rate",
            unit: "1/s",
            better: Better::Higher,
            value: updates as f64 / (spent_ns.max(1) as f64 / 1e9),
        },
        working_set: table_bytes,
        checksum,
        latencies: None,
        figures: vec![
            Figure::new("update_cpu", "ns", Better::Lower, spent_ns as f64 / updates as f64),
            Figure::new("fill_cpu", "ns", Better::Lower, filled_ns as f64),
        ],
        hot_regions: Vec::new(),
        generated: format!("{words} words, {updates} updates, uniform, {STREAMS} independent, seed {seed}"),
    })
}

/// The part of the polynomial below x^64.
const POLYNOMIAL: u64 = 7;
/// States until the first comes again.
const PERIOD: u64 = 1_317_624_576_693_539_401;

#[inline(always)]
fn next(state: u64) -> u64 {
    (state << 1) ^ ((state as i64 >> 63) as u64 & POLYNOMIAL)
}

/// Where in the sequence a seed begins: seed 1 at its start, each other as far on as a run is long.
fn begin(seed: u64, updates: u64) -> u64 {
    let place = u128::from(seed.wrapping_sub(1)) * u128::from(updates) % u128::from(PERIOD);
    place as u64
}

/// The state at a place of the sequence; at place 0 it is 1. By squaring, as `HPCC_starts` does.
fn state_at(place: u64) -> u64 {
    let place = place % PERIOD;
    // x^(2i), since squaring a polynomial over two elements doubles its exponents.
    let squares: [u64; 64] = {
        let mut state = 1;
        std::array::from_fn(|_| {
            let here = state;
            state = next(next(state));
            here
        })
    };
    if place == 0 {
        return 1;
    }
    let mut state = 2;
    for bit in (0..place.ilog2()).rev() {
        let square =
            (0..64).filter(|at| state >> at & 1 == 1).fold(0, |sum: u64, at| sum ^ squares[at as usize]);
        state = if place >> bit & 1 == 1 { next(square) } else { square };
    }
    state
}

/// The updates, in 128 stretches side by side.
fn update(table: &mut [u64], begin: u64, updates: u64) {
    let mask = table.len() as u64 - 1;
    let each = updates / STREAMS as u64;
    let mut states: [u64; STREAMS] =
        std::array::from_fn(|stream| state_at((begin + stream as u64 * each) % PERIOD));
    for _ in 0..each {
        for state in &mut states {
            *state = next(*state);
            table[(*state & mask) as usize] ^= *state;
        }
    }
}

/// The same updates in their plain order; returns how many words do not hold their index afterwards.
fn restore(table: &mut [u64], begin: u64, updates: u64) -> usize {
    let mask = table.len() as u64 - 1;
    let mut state = state_at(begin);
    for _ in 0..updates {
        state = next(state);
        table[(state & mask) as usize] ^= state;
    }
    (0..).zip(table.iter()).filter(|&(index, word)| index != *word).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_of_stepping() {
        let mut state = 1;
        for place in 0..5000 {
            assert_eq!(state_at(place), state, "place {place}");
            state = next(state);
        }
        assert_eq!(state_at(PERIOD), 1);
        assert_eq!(next(state_at(PERIOD - 1)), 1, "the sequence is a cycle");
        // Places far apart: x^a x^b = x^(a + b), multiplied by hand.
        let product = |left: u64, right: u64| {
            let mut sum = 0;
            let mut left = left;
            for bit in 0..64 {
                sum ^= if right >> bit & 1 == 1 { left } else { 0 };
                left = next(left);
            }
            sum
        };
        for (a, b) in [(1u64 << 40, 12_345), (1 << 59, 1 << 58), (987_654_321_987, 77)] {
            assert_eq!(product(state_at(a), state_at(b)), state_at(a + b), "{a} + {b}");
        }
    }

    #[test]
    fn the_table_is_that_of_plain_updates_and_is_restored() {
        for (seed, words, times) in [(1u64, 128usize, 1u64), (1, 1024, 4), (5, 256, 3)] {
            let updates = words as u64 * times;
            let mut table: Vec<u64> = (0..words as u64).collect();
            let mut plain = table.clone();
            let mut state = 1;
            (0..begin(seed, updates)).for_each(|_| state = next(state));
            for _ in 0..updates {
                state = next(state);
                plain[state as usize % words] ^= state;
            }
            update(&mut table, begin(seed, updates), updates);
            assert_eq!(table, plain);
            assert_eq!(restore(&mut table, begin(seed, updates), updates), 0);
            plain[3] ^= 1;
            assert_eq!(restore(&mut plain, begin(seed, updates), updates), 1, "a wrong word is seen");
        }
    }

    #[test]
    fn runs_take_a_power_of_two_and_repeat() {
        let done = |size: &str, seed: &str| {
            let mut options = Options::defaults(WORKLOAD.options);
            options.set("size", size).unwrap();
            options.set("seed", seed).unwrap();
            run(&options, &mut Phase::unwatched())
        };
        let one = done("96K", "1").unwrap();
        assert_eq!(one.working_set, Bytes(64 << 10));
        assert_eq!(one.checksum, done("64K", "1").unwrap().checksum);
        assert_ne!(one.checksum, done("64K", "2").unwrap().checksum);
        assert!(matches!(done("512", "1"), Err(Failed::Options(_))));
    }
}
