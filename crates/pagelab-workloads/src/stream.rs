//! Memory bandwidth by four vector kernels: copy, scale, add, triad (J. D. McCalpin's STREAM 5.10).
//!
//! Bytes are counted as in STREAM: the reads and writes in the source code, 16 per element for copy and
//! scale, 24 for add and triad. A processor that reads a line before it writes it moves a third or a half
//! more. Each kernel's rate is that of its best pass, without the first; the vectors are validated against
//! the same operations on single numbers.

use pagelab_model::Bytes;
use pagelab_model::experiment::BetterDirection;
use pagelab_sys::clock;

use crate::options::{OptionSpec, SEED_OPTION, WorkloadOptions, number_option, size_option};
use crate::phase::{MeasuredPhase, time_cpu};
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "stream",
    description: "Bandwidth of copy, scale, add and triad over three vectors of numbers (STREAM)",
    generator: "three vectors of 64-bit floating-point numbers, read and written in order by one thread; \
                every element is written before the first timed pass. Nothing is random: the seed is not \
                used",
    options: &[
        size_option("384M", "Bytes of the three vectors; STREAM requires 12 times the last-level cache"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        TIMES_OPTION,
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_stream,
};

const TIMES_OPTION: OptionSpec =
    number_option("times", 2, 1 << 30, "10", "Passes of each kernel; the best one after the first counts");

/// STREAM's own numbers.
const STREAM_SCALAR: f64 = 3.0;
const INITIAL_VALUES: [f64; 3] = [1.0, 2.0, 0.0];

/// The relative error that STREAM allows for 64-bit numbers.
const RELATIVE_ERROR_MAX: f64 = 1e-13;

/// The kernels: name of the figure, and bytes that an element counts.
const STREAM_KERNELS: [(&str, u64); 4] = [("copy", 16), ("scale", 16), ("add", 24), ("triad", 24)];

fn run_stream(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let pass_count = options.get_number("times");
    // Lines of 64 bytes, so that vectors do not share one.
    let elements = options.get_size("size").0 / 3 / 64 * 8;
    if elements == 0 {
        return Err(WorkloadError::InvalidOptions(
            "size: expected at least three vectors of 64 bytes".to_owned(),
        ));
    }
    let working_set = Bytes(elements * 3 * size_of::<f64>() as u64);
    let mut mapping = mapping::map_anonymous(options, working_set)?;
    let values = mapping.values_mut::<f64>();
    let (a, rest) = values.split_at_mut(elements as usize);
    let (b, rest) = rest.split_at_mut(elements as usize);
    let c = &mut rest[..elements as usize];
    let ((), first_touch_ns) = time_cpu(|| {
        a.fill(INITIAL_VALUES[0]);
        b.fill(INITIAL_VALUES[1]);
        c.fill(INITIAL_VALUES[2]);
    });
    // STREAM doubles a once before the passes.
    a.iter_mut().for_each(|a| *a *= 2.0);
    let mut best_ns = [u64::MAX; 4];
    for pass in 0..pass_count {
        let took = phase.measure(|| run_pass(a, b, c));
        if pass > 0 {
            best_ns.iter_mut().zip(took).for_each(|(best, took)| *best = took.min(*best));
        }
    }
    check_vectors([a, b, c], pass_count)?;
    let checksum = [a[0], b[0], c[0]].iter().fold(0u64, |sum, x| sum.rotate_left(21) ^ x.to_bits());
    let rate = |kernel: usize| {
        let bytes = STREAM_KERNELS[kernel].1 * elements;
        bytes as f64 / (best_ns[kernel].max(1) as f64 / 1e9)
    };
    let mut figures: Vec<Figure> = (0..3)
        .map(|kernel| Figure::new(STREAM_KERNELS[kernel].0, "bytes/s", BetterDirection::Higher, rate(kernel)))
        .collect();
    figures.push(Figure::time("first_touch_cpu", first_touch_ns as f64));
    Ok(WorkloadResult {
        figure_of_merit: Figure::new("triad", "bytes/s", BetterDirection::Higher, rate(3)),
        working_set,
        checksum,
        latencies: None,
        figures,
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "{elements} elements in each of 3 vectors, in order, best of {pass_count} passes"
        ),
    })
}

/// One pass of all four; returns the CPU time of each.
fn run_pass(a: &mut [f64], b: &mut [f64], c: &mut [f64]) -> [u64; 4] {
    let mut pass_count = [0; 5];
    pass_count[0] = clock::thread_cpu_ns();
    c.copy_from_slice(a);
    pass_count[1] = clock::thread_cpu_ns();
    b.iter_mut().zip(&*c).for_each(|(b, c)| *b = STREAM_SCALAR * c);
    pass_count[2] = clock::thread_cpu_ns();
    c.iter_mut().zip(&*a).zip(&*b).for_each(|((c, a), b)| *c = a + b);
    pass_count[3] = clock::thread_cpu_ns();
    a.iter_mut().zip(&*b).zip(&*c).for_each(|((a, b), c)| *a = b + STREAM_SCALAR * c);
    pass_count[4] = clock::thread_cpu_ns();
    std::array::from_fn(|kernel| pass_count[kernel + 1].saturating_sub(pass_count[kernel]))
}

/// The vectors against the same operations on single numbers, by the mean error of each vector, as STREAM
/// does; if the numbers have overflowed, no check is possible.
fn check_vectors(vectors: [&[f64]; 3], pass_count: u64) -> Result<(), WorkloadError> {
    let [mut a, mut b, mut c] = INITIAL_VALUES;
    a *= 2.0;
    for _ in 0..pass_count {
        c = a;
        b = STREAM_SCALAR * c;
        c = a + b;
        a = b + STREAM_SCALAR * c;
    }
    for (name, vector, expected) in [("a", vectors[0], a), ("b", vectors[1], b), ("c", vectors[2], c)] {
        let error = if expected.is_finite() {
            vector.iter().map(|x| (x - expected).abs()).sum::<f64>() / vector.len() as f64 / expected
        } else {
            vector.iter().filter(|x| **x != expected).count() as f64
        };
        if error.is_nan() || error > RELATIVE_ERROR_MAX {
            return Err(WorkloadError::WrongResult(format!(
                "vector {name} is off by {error:e} of {expected:e} on average"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_the_four_kernels() {
        let (mut a, mut b, mut c) = (vec![2.0; 5], vec![2.0; 5], vec![0.0; 5]);
        run_pass(&mut a, &mut b, &mut c);
        assert_eq!((b, c, a), (vec![6.0; 5], vec![8.0; 5], vec![30.0; 5]));
    }

    #[test]
    fn wrong_vectors_are_seen() {
        let good = [vec![30.0; 100], vec![6.0; 100], vec![8.0; 100]];
        let slices = |of: &'_ [Vec<f64>; 3]| check_vectors([&of[0], &of[1], &of[2]], 1);
        assert!(slices(&good).is_ok());
        for (vector, value) in [(0, 31.0), (1, f64::NAN), (2, 8.0 + 1e-9)] {
            let mut bad = good.clone();
            bad[vector][50] = value;
            assert!(matches!(slices(&bad), Err(WorkloadError::WrongResult(_))), "{vector}: {value}");
        }
    }

    #[test]
    fn runs_repeat_and_many_passes_stay_valid() {
        let done = |size: &str, times: &str| {
            let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
            options.set_value("size", size).unwrap();
            options.set_value("times", times).unwrap();
            run_stream(&options, &mut MeasuredPhase::without_observer())
        };
        let one = done("3M", "2").unwrap();
        assert_eq!(one.working_set, Bytes(3 << 20));
        assert_eq!(one.checksum, done("3M", "2").unwrap().checksum);
        assert_ne!(one.checksum, done("3M", "3").unwrap().checksum);
        // Numbers grow by 15 in each pass, and past the largest after some 260.
        done("192", "2000").unwrap();
        assert!(matches!(done("100", "2"), Err(WorkloadError::InvalidOptions(_))));
    }
}
