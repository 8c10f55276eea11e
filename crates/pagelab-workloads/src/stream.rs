//! Memory bandwidth by four vector kernels: copy, scale, add, triad (J. D. McCalpin's STREAM 5.10).
//!
//! Bytes are counted as STREAM counts them: what the source code reads and writes, 16 an element for copy and
//! scale, 24 for add and triad. A processor that reads a line before it writes it moves a third or a half
//! more. Each kernel's rate is that of its best pass, the first left out; the vectors are validated against
//! the same operations on single numbers.

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_sys::clock;

use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "stream",
    about: "Bandwidth of copy, scale, add and triad over three vectors of numbers (STREAM)",
    generator: "three vectors of 64-bit floating-point numbers, read and written in order by one thread; \
                every element is written before the first timed pass. Nothing is random: the seed is not \
                used",
    options: &[
        size("384M", "Bytes of the three vectors; STREAM wants 12 times the last cache"),
        SEED,
        memory::ADVISE,
        TIMES,
    ],
    forks: false,
    run,
};

const TIMES: OptionHead = OptionHead {
    name: "times",
    kind: Kind::Number(2, 1 << 30),
    default: "10",
    help: "Passes of each kernel; the best but the first counts",
};

/// STREAM's own numbers.
const SCALAR: f64 = 3.0;
const START: [f64; 3] = [1.0, 2.0, 0.0];

/// The relative error that STREAM allows for 64-bit numbers.
const ERROR_MAX: f64 = 1e-13;

/// The kernels: name of the figure, and bytes that an element counts.
const KERNELS: [(&str, u64); 4] = [("copy", 16), ("scale", 16), ("add", 24), ("triad", 24)];

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let times = options.number("times");
    // Lines of 64 bytes, so that vectors do not share one.
    let elements = options.size("size").0 / 3 / 64 * 8;
    if elements == 0 {
        return Err(Failed::Options("size: three vectors of 64 bytes are the least".to_owned()));
    }
    let working_set = Bytes(elements * 3 * size_of::<f64>() as u64);
    let mut mapping = memory::map(options, working_set)?;
    let values = mapping.values_mut::<f64>();
    let (a, rest) = values.split_at_mut(elements as usize);
    let (b, rest) = rest.split_at_mut(elements as usize);
    let c = &mut rest[..elements as usize];
    let before = clock::thread_cpu_ns();
    a.fill(START[0]);
    b.fill(START[1]);
    c.fill(START[2]);
    let first_touch_ns = clock::thread_cpu_ns().saturating_sub(before);
    // STREAM doubles a once before the passes.
    a.iter_mut().for_each(|a| *a *= 2.0);
    let mut best_ns = [u64::MAX; 4];
    for pass in 0..times {
        let took = phase.of(|| pass_over(a, b, c));
        if pass > 0 {
            best_ns.iter_mut().zip(took).for_each(|(best, took)| *best = took.min(*best));
        }
    }
    check([a, b, c], times)?;
    let checksum = [a[0], b[0], c[0]].iter().fold(0u64, |sum, x| sum.rotate_left(21) ^ x.to_bits());
    let rate = |kernel: usize| {
        let bytes = KERNELS[kernel].1 * elements;
        bytes as f64 / (best_ns[kernel].max(1) as f64 / 1e9)
    };
    let mut figures: Vec<Figure> = (0..3)
        .map(|kernel| Figure::new(KERNELS[kernel].0, "bytes/s", Better::Higher, rate(kernel)))
        .collect();
    figures.push(Figure::new("first_touch_cpu", "ns", Better::Lower, first_touch_ns as f64));
    Ok(Done {
        merit: Merit { name: "triad", unit: "bytes/s", better: Better::Higher, value: rate(3) },
        working_set,
        checksum,
        latencies: None,
        figures,
        hot_regions: Vec::new(),
        generated: format!("{elements} elements in each of 3 vectors, in order, best of {times} passes"),
    })
}

/// One pass of all four; returns the CPU time of each.
fn pass_over(a: &mut [f64], b: &mut [f64], c: &mut [f64]) -> [u64; 4] {
    let mut times = [0; 5];
    times[0] = clock::thread_cpu_ns();
    c.copy_from_slice(a);
    times[1] = clock::thread_cpu_ns();
    b.iter_mut().zip(&*c).for_each(|(b, c)| *b = SCALAR * c);
    times[2] = clock::thread_cpu_ns();
    c.iter_mut().zip(&*a).zip(&*b).for_each(|((c, a), b)| *c = a + b);
    times[3] = clock::thread_cpu_ns();
    a.iter_mut().zip(&*b).zip(&*c).for_each(|((a, b), c)| *a = b + SCALAR * c);
    times[4] = clock::thread_cpu_ns();
    std::array::from_fn(|kernel| times[kernel + 1].saturating_sub(times[kernel]))
}

/// The vectors against the same operations on single numbers, by the mean error of each vector, as STREAM
/// does; where the numbers have grown beyond all bounds, nothing can be said.
fn check(vectors: [&[f64]; 3], times: u64) -> Result<(), Failed> {
    let [mut a, mut b, mut c] = START;
    a *= 2.0;
    for _ in 0..times {
        c = a;
        b = SCALAR * c;
        c = a + b;
        a = b + SCALAR * c;
    }
    for (name, vector, expected) in [("a", vectors[0], a), ("b", vectors[1], b), ("c", vectors[2], c)] {
        let error = if expected.is_finite() {
            vector.iter().map(|x| (x - expected).abs()).sum::<f64>() / vector.len() as f64 / expected
        } else {
            vector.iter().filter(|x| **x != expected).count() as f64
        };
        if error.is_nan() || error > ERROR_MAX {
            return Err(Failed::Wrong(format!(
                "vector {name} is off by {error:e} of {expected:e} at the mean"
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
        pass_over(&mut a, &mut b, &mut c);
        assert_eq!((b, c, a), (vec![6.0; 5], vec![8.0; 5], vec![30.0; 5]));
    }

    #[test]
    fn wrong_vectors_are_seen() {
        let good = [vec![30.0; 100], vec![6.0; 100], vec![8.0; 100]];
        let slices = |of: &'_ [Vec<f64>; 3]| check([&of[0], &of[1], &of[2]], 1);
        assert!(slices(&good).is_ok());
        for (vector, value) in [(0, 31.0), (1, f64::NAN), (2, 8.0 + 1e-9)] {
            let mut bad = good.clone();
            bad[vector][50] = value;
            assert!(matches!(slices(&bad), Err(Failed::Wrong(_))), "{vector}: {value}");
        }
    }

    #[test]
    fn runs_repeat_and_many_passes_stay_valid() {
        let done = |size: &str, times: &str| {
            let mut options = Options::defaults(WORKLOAD.options);
            options.set("size", size).unwrap();
            options.set("times", times).unwrap();
            run(&options, &mut Phase::unwatched())
        };
        let one = done("3M", "2").unwrap();
        assert_eq!(one.working_set, Bytes(3 << 20));
        assert_eq!(one.checksum, done("3M", "2").unwrap().checksum);
        assert_ne!(one.checksum, done("3M", "3").unwrap().checksum);
        // Numbers grow by 15 in each pass, and past the largest after some 260.
        done("192", "2000").unwrap();
        assert!(matches!(done("100", "2"), Err(Failed::Options(_))));
    }
}
