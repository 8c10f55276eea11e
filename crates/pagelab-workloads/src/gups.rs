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

use crate::options::{SEED_OPTION, WorkloadOptions, number_option, size_option};
use crate::phase::{MeasuredPhase, time_cpu};
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "gups",
    description: "Random xor updates of a table of 64-bit words (HPC Challenge RandomAccess)",
    generator: "the sequence of HPC Challenge RandomAccess: states of a 64-bit shift register, each xored to \
                the word of the table that its low bits name; 128 stretches of the sequence side by side, so \
                that 128 updates in a row do not depend on each other; uniform over the table; each word is \
                written before the first update. Seed 1 is the benchmark's own sequence; other seeds start \
                at other positions of it",
    options: &[
        size_option("64M", "Bytes of the table; a power of two is used"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        number_option("updates", 1, 1 << 20, "4", "Updates per word of the table; the benchmark's rule is 4"),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_gups,
};

/// Stretches side by side; the table has at least as many words.
const STREAM_COUNT: usize = 128;

fn run_gups(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let table_words = options.get_size("size").0 / size_of::<u64>() as u64;
    if table_words < STREAM_COUNT as u64 {
        return Err(WorkloadError::InvalidOptions(format!(
            "size: a table needs at least {STREAM_COUNT} words of 8 bytes"
        )));
    }
    let table_words = 1u64 << table_words.ilog2();
    let Some(updates) = table_words.checked_mul(options.get_number("updates")) else {
        return Err(WorkloadError::InvalidOptions("updates: the total does not fit in 64 bits".to_owned()));
    };
    let (seed, table_bytes) = (options.get_number("seed"), Bytes(table_words * size_of::<u64>() as u64));
    let mut mapping = mapping::map_anonymous(options, table_bytes)?;
    let table = &mut mapping.words_mut()[..table_words as usize];
    let ((), fill_ns) = time_cpu(|| (0..).zip(table.iter_mut()).for_each(|(index, word)| *word = index));
    let ((), elapsed_ns) = phase.measure_cpu(|| update_table(table, start_state(seed, updates), updates));
    let checksum = table.iter().fold(0u64, |sum, word| sum.rotate_left(1).wrapping_add(*word));
    let wrong = restore_and_count_errors(table, start_state(seed, updates), updates);
    if wrong > 0 {
        return Err(WorkloadError::WrongResult(format!("{wrong} of {table_words} words were not restored")));
    }
    Ok(WorkloadResult {
        figure_of_merit: Figure::rate("update rate", updates as f64 / (elapsed_ns.max(1) as f64 / 1e9)),
        working_set: table_bytes,
        checksum,
        latencies: None,
        figures: vec![
            Figure::time("update_cpu", elapsed_ns as f64 / updates as f64),
            Figure::time("fill_cpu", fill_ns as f64),
        ],
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{table_words} words, {updates} updates, uniform, {STREAM_COUNT} independent, seed {seed}"
        ),
    })
}

/// The part of the polynomial below x^64.
const POLYNOMIAL: u64 = 7;
/// States until the first comes again.
const SEQUENCE_PERIOD: u64 = 1_317_624_576_693_539_401;

#[inline(always)]
fn next_state(state: u64) -> u64 {
    (state << 1) ^ ((state as i64 >> 63) as u64 & POLYNOMIAL)
}

/// Where in the sequence a seed begins: seed 1 at its start, each other as far on as a run is long.
fn start_state(seed: u64, updates: u64) -> u64 {
    let index = u128::from(seed.wrapping_sub(1)) * u128::from(updates) % u128::from(SEQUENCE_PERIOD);
    index as u64
}

/// The state at a place of the sequence; at place 0 it is 1. By squaring, as `HPCC_starts` does.
fn state_at(index: u64) -> u64 {
    let index = index % SEQUENCE_PERIOD;
    // x^(2i), since squaring a polynomial over two elements doubles its exponents.
    let squares: [u64; 64] = {
        let mut state = 1;
        std::array::from_fn(|_| {
            let here = state;
            state = next_state(next_state(state));
            here
        })
    };
    if index == 0 {
        return 1;
    }
    let mut state = 2;
    for bit in (0..index.ilog2()).rev() {
        let square =
            (0..64).filter(|at| state >> at & 1 == 1).fold(0, |sum: u64, at| sum ^ squares[at as usize]);
        state = if index >> bit & 1 == 1 { next_state(square) } else { square };
    }
    state
}

/// The updates, in 128 stretches side by side.
fn update_table(table: &mut [u64], start: u64, updates: u64) {
    let mask = table.len() as u64 - 1;
    let each = updates / STREAM_COUNT as u64;
    let mut states: [u64; STREAM_COUNT] =
        std::array::from_fn(|stream| state_at((start + stream as u64 * each) % SEQUENCE_PERIOD));
    for _ in 0..each {
        for state in &mut states {
            *state = next_state(*state);
            table[(*state & mask) as usize] ^= *state;
        }
    }
}

/// The same updates in their plain order; returns how many words do not hold their index afterwards.
fn restore_and_count_errors(table: &mut [u64], start: u64, updates: u64) -> usize {
    let mask = table.len() as u64 - 1;
    let mut state = state_at(start);
    for _ in 0..updates {
        state = next_state(state);
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
        for index in 0..5000 {
            assert_eq!(state_at(index), state, "place {index}");
            state = next_state(state);
        }
        assert_eq!(state_at(SEQUENCE_PERIOD), 1);
        assert_eq!(next_state(state_at(SEQUENCE_PERIOD - 1)), 1, "the sequence is a cycle");
        // Places far apart: x^a x^b = x^(a + b), multiplied by hand.
        let product = |left: u64, right: u64| {
            let mut sum = 0;
            let mut left = left;
            for bit in 0..64 {
                sum ^= if right >> bit & 1 == 1 { left } else { 0 };
                left = next_state(left);
            }
            sum
        };
        for (a, b) in [(1u64 << 40, 12_345), (1 << 59, 1 << 58), (987_654_321_987, 77)] {
            assert_eq!(product(state_at(a), state_at(b)), state_at(a + b), "{a} + {b}");
        }
    }

    #[test]
    fn the_table_is_that_of_plain_updates_and_is_restored() {
        for (seed, table_words, times) in [(1u64, 128usize, 1u64), (1, 1024, 4), (5, 256, 3)] {
            let updates = table_words as u64 * times;
            let mut table: Vec<u64> = (0..table_words as u64).collect();
            let mut plain = table.clone();
            let mut state = 1;
            (0..start_state(seed, updates)).for_each(|_| state = next_state(state));
            for _ in 0..updates {
                state = next_state(state);
                plain[state as usize % table_words] ^= state;
            }
            update_table(&mut table, start_state(seed, updates), updates);
            assert_eq!(table, plain);
            assert_eq!(restore_and_count_errors(&mut table, start_state(seed, updates), updates), 0);
            plain[3] ^= 1;
            assert_eq!(
                restore_and_count_errors(&mut plain, start_state(seed, updates), updates),
                1,
                "a wrong word is seen"
            );
        }
    }

    #[test]
    fn runs_take_a_power_of_two_and_repeat() {
        let done = |size: &str, seed: &str| {
            let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
            options.set_value("size", size).unwrap();
            options.set_value("seed", seed).unwrap();
            run_gups(&options, &mut MeasuredPhase::without_observer())
        };
        let one = done("96K", "1").unwrap();
        assert_eq!(one.working_set, Bytes(64 << 10));
        assert_eq!(one.checksum, done("64K", "1").unwrap().checksum);
        assert_ne!(one.checksum, done("64K", "2").unwrap().checksum);
        assert!(matches!(done("512", "1"), Err(WorkloadError::InvalidOptions(_))));
    }
}
