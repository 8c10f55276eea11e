//! Quicksort of a large array of 32-bit integers, after the study of performance against memory size whose
//! benchmark sorted 750 MB of them (Chole and Harneja, IIT Kanpur 2007).
//!
//! The implementation: Hoare's partition around the median of three, of nine for long parts; the shorter part
//! first, so that the stack stays small; insertion sort below 24 elements; heapsort for a part that was split
//! badly too often, so that no input order takes quadratic time (D. Musser, Introspective Sorting, 1997).
//! Memory is read in two streams that run towards each other, over parts that halve: near the top of the
//! recursion all of the array is in use, near the bottom only a few pages.
//!
//! Times are wall time and CPU time: if memory is scarce, the sort waits for its pages.

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;

use crate::options::{OptionSpec, SEED_OPTION, WorkloadOptions, choice_option, size_option};
use crate::phase::{MeasuredPhase, time_cpu};
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "quicksort",
    description: "Quicksort of an array of 32-bit integers",
    generator: "32-bit integers from splitmix64, uniform (order random), or the same in sorted order; each \
                is written before the first comparison. Quicksort reads two streams towards each other over \
                parts of the array that halve",
    options: &[size_option("750M", "Bytes of the array"), SEED_OPTION, mapping::ADVISE_OPTION, ORDER_OPTION],
    forks_processes: false,
    guest_parts: &[],
    run: run_quicksort,
};

const ORDER_OPTION: OptionSpec = choice_option(
    "order",
    &["random", "rising", "falling", "few"],
    "random",
    "Initial order: random, rising, falling, or random with 16 different values",
);

fn run_quicksort(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let size = Bytes(options.get_size("size").0 / 4 * 4);
    if size.0 == 0 {
        return Err(WorkloadError::InvalidOptions("size: an array needs at least 4 bytes".to_owned()));
    }
    let mut mapping = mapping::map_anonymous(options, size)?;
    let values = &mut mapping.values_mut::<u32>()[..(size.0 / 4) as usize];
    let ((), fill_ns) = time_cpu(|| fill_values(values, options));
    let expected = Fingerprint::from_values(values);
    let ((), wall_ns, cpu_ns) = phase.measure_times(|| sort_values(values));
    let found = Fingerprint::from_values(values);
    if found != expected {
        return Err(WorkloadError::WrongResult(format!("the array had {expected:?}, but has {found:?}")));
    }
    if let Some(at) = values.windows(2).position(|pair| pair[0] > pair[1]) {
        let text = format!("{} precedes {} at {at}", values[at], values[at + 1]);
        return Err(WorkloadError::WrongResult(text));
    }
    // Sparse, and by position: with the sums above it is that of one order only.
    let sparse = values
        .iter()
        .step_by(1021)
        .fold(0u64, |sum, value| sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(*value) + 1));
    Ok(WorkloadResult {
        figure_of_merit: Figure::time("sort time", wall_ns as f64),
        working_set: size,
        checksum: sparse ^ expected.sum ^ expected.square_sum,
        latencies: None,
        figures: vec![Figure::time("sort_cpu", cpu_ns as f64), Figure::time("fill_cpu", fill_ns as f64)],
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{} integers of 32 bits, order {}, seed {}",
            values.len(),
            options.get_text("order"),
            options.get_number("seed")
        ),
    })
}

/// Invariants of sorting: two sums over all values. One value lost and another doubled keeps both only if
/// they are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    sum: u64,
    square_sum: u64,
}

impl Fingerprint {
    fn from_values(values: &[u32]) -> Fingerprint {
        let add = |content: Fingerprint, &value: &u32| {
            let value = u64::from(value);
            let squares = content.square_sum.wrapping_add(value * value);
            Fingerprint { sum: content.sum.wrapping_add(value), square_sum: squares }
        };
        values.iter().fold(Fingerprint { sum: 0, square_sum: 0 }, add)
    }
}

fn fill_values(values: &mut [u32], options: &WorkloadOptions) {
    let mut random = SplitMix64::new(options.get_number("seed"));
    let order = options.get_text("order");
    let len = values.len() as u64;
    let rising = |index: u64| ((u128::from(index) << 32) / u128::from(len)) as u32;
    for (index, place) in (0u64..).zip(values.iter_mut()) {
        *place = match order {
            "rising" => rising(index),
            "falling" => rising(len - 1 - index),
            "few" => (random.next_u64() >> 60) as u32,
            _ => (random.next_u64() >> 32) as u32,
        };
    }
}

/// Below this, insertion sort is faster.
const INSERTION_SORT_MAX: usize = 24;
/// From here on the pivot is the median of nine.
const NINTHER_MIN: usize = 1 << 10;

fn sort_values(values: &mut [u32]) {
    // Twice the depth of a perfect quicksort, as introsort has it.
    let depth = values.len().checked_ilog2().unwrap_or(0) * 2;
    quicksort(values, depth);
}

fn quicksort(mut values: &mut [u32], mut depth: u32) {
    while values.len() > INSERTION_SORT_MAX {
        if depth == 0 {
            return heap_sort(values);
        }
        depth -= 1;
        let middle = partition(values);
        let (left, right) = values.split_at_mut(middle);
        let (shorter, longer) = if left.len() < right.len() { (left, right) } else { (right, left) };
        quicksort(shorter, depth);
        values = longer;
    }
    insertion_sort(values);
}

/// Splits so that nothing on the left is above anything on the right; both sides hold at least one value.
fn partition(values: &mut [u32]) -> usize {
    let last = values.len() - 1;
    let pivot = choose_pivot(values);
    let (mut left, mut right) = (0, last);
    loop {
        // The pivot is one of the values, so both scans end inside; values equal to it are swapped too, which
        // splits an array of equals in the middle.
        while values[left] < pivot {
            left += 1;
        }
        while values[right] > pivot {
            right -= 1;
        }
        if left >= right {
            // If both are at the last position, all others are below: it alone is the right side.
            return if right == last { last } else { right + 1 };
        }
        values.swap(left, right);
        left += 1;
        right -= 1;
    }
}

fn choose_pivot(values: &[u32]) -> u32 {
    let (len, of_three) = (values.len(), |a: u32, b: u32, c: u32| a.max(b).min(a.min(b).max(c)));
    let at = |eighths: usize| values[(len - 1) / 8 * eighths];
    if len < NINTHER_MIN {
        return of_three(values[0], values[len / 2], values[len - 1]);
    }
    of_three(of_three(at(0), at(1), at(2)), of_three(at(3), at(4), at(5)), of_three(at(6), at(7), at(8)))
}

fn insertion_sort(values: &mut [u32]) {
    for next in 1..values.len() {
        let value = values[next];
        let mut place = next;
        while place > 0 && values[place - 1] > value {
            values[place] = values[place - 1];
            place -= 1;
        }
        values[place] = value;
    }
}

fn heap_sort(values: &mut [u32]) {
    for root in (0..values.len() / 2).rev() {
        sift_down(values, root);
    }
    for end in (1..values.len()).rev() {
        values.swap(0, end);
        sift_down(&mut values[..end], 0);
    }
}

/// Lets the value at `root` sink until none of its children is above it.
fn sift_down(values: &mut [u32], mut root: usize) {
    loop {
        let left = 2 * root + 1;
        if left >= values.len() {
            return;
        }
        let right = left + 1;
        let above = if right < values.len() && values[right] > values[left] { right } else { left };
        if values[above] <= values[root] {
            return;
        }
        values.swap(above, root);
        root = above;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut values: Vec<u32>, sort: impl Fn(&mut [u32])) {
        let mut expected = values.clone();
        expected.sort_unstable();
        let start_ns = Fingerprint::from_values(&values);
        sort(&mut values);
        assert!(values == expected, "{} values", values.len());
        assert_eq!(Fingerprint::from_values(&values), start_ns);
    }

    #[test]
    fn every_order_of_few_values_is_sorted() {
        // All arrays of up to 6 values out of 4, by each of the sorts.
        for len in 0..=6u32 {
            for code in 0..4u32.pow(len) {
                let values: Vec<u32> = (0..len).map(|digit| code >> (2 * digit) & 3).collect();
                for sort in [sort_values as fn(&mut [u32]), insertion_sort, heap_sort] {
                    check(values.clone(), sort);
                }
                if len >= 2 {
                    let mut parts = values.clone();
                    let middle = partition(&mut parts);
                    assert!((1..parts.len()).contains(&middle), "{values:?}: {middle}");
                    let (left, right) = parts.split_at(middle);
                    assert!(left.iter().max() <= right.iter().min(), "{values:?}: {parts:?} at {middle}");
                }
            }
        }
    }

    #[test]
    fn long_arrays_of_all_kinds_are_sorted() {
        let mut random = SplitMix64::new(1);
        for len in [23usize, 24, 25, 1023, 1024, 1025, 20_000] {
            let draws: Vec<u32> = (0..len).map(|_| random.next_u64() as u32).collect();
            check(draws.clone(), sort_values);
            check(draws.iter().map(|value| value % 3).collect(), sort_values);
            check((0..len as u32).collect(), sort_values);
            check((0..len as u32).rev().collect(), sort_values);
            check(vec![7; len], sort_values);
            check(draws, heap_sort);
        }
        // No depth left from the start: heapsort does it all.
        check((0..2000).map(|at| at * 7919 % 2000).collect(), |values| quicksort(values, 0));
    }

    #[test]
    fn runs_repeat_and_depend_on_order_and_seed() {
        let done = |set: &[(&str, &str)]| {
            let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
            options.set_value("size", "100K").unwrap();
            set.iter().for_each(|(name, typed)| options.set_value(name, typed).unwrap());
            run_quicksort(&options, &mut MeasuredPhase::without_observer()).unwrap()
        };
        let one = done(&[]);
        assert_eq!((one.checksum, one.working_set), (done(&[]).checksum, Bytes(102_400)));
        assert_ne!(one.checksum, done(&[("seed", "2")]).checksum);
        assert_ne!(one.checksum, done(&[("size", "99K")]).checksum);
        // The same values from both ends.
        let (rising, falling) = (done(&[("order", "rising")]), done(&[("order", "falling")]));
        assert_eq!(rising.checksum, falling.checksum);
        done(&[("order", "few")]);
    }
}
