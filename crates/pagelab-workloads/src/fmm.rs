//! Fast multipole method on the plane: the field of charged particles at each of them, far ones by expansions
//! of boxes of a quadtree. After fmm of SPLASH-2 (Woo et al., ISCA 1995), whose method is that of Greengard
//! and Rokhlin (1987); here boxes meet in a traversal of two trees (Dehnen 2002), which needs no lists.
//!
//! The field at z is the sum of q/(z − z_i) over all other particles, as complex numbers. A box about c has
//! the outer expansion Σ b_k/(z−c)^(k+1) with b_k = Σ q_i (z_i−c)^k, and the inner expansion Σ a_l (z−c)^l of
//! what is far from it; both are cut off after p terms. Two boxes are far from each other if their radii are
//! together at most half of their distance, so the terms left out are below 2^-p of the first.
//!
//! What it does to memory: particles stay in the order in which they were drawn; a box knows them by a list
//! of numbers, as SPLASH-2's boxes know them by pointers, so the particles of a box are scattered. Expansions
//! are read and written box by box, in the order of the traversal. Half of the time is arithmetic.
//!
//! First touch: drawing the particles and building the tree write everything but the inner expansions.
//!
//! Only sums, products and quotients are used, which IEEE 754 defines to the last bit.

mod complex;
mod expansion;
mod tree;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};
use complex::Complex;
use expansion::Binomials;
use tree::{Particle, Tree};

/// The method as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "fmm",
    about: "Fast multipole method on a quadtree: fields of particles on a plane",
    generator: "particles drawn from the seed, uniform in a square or in two clusters (Plummer's), which \
                stay \
                in the order of drawing while boxes know them by number: scattered reads of 40 bytes, each \
                address read from a list before; expansions of boxes in the order of a traversal; every \
                particle and list is written before it is read",
    options: &[
        size("32M", "Bytes of particles, lists and expansions, about: 80 a particle"),
        SEED,
        memory::ADVISE,
        SHAPE,
        TERMS,
        LEAF,
        SAMPLE,
    ],
    forks: false,
    run,
};

const SHAPE: OptionHead = OptionHead {
    name: "shape",
    kind: Kind::Word(&["uniform", "clusters"]),
    default: "uniform",
    help: "Where particles are: uniform in a square, or in two clusters",
};
const TERMS: OptionHead = OptionHead {
    name: "terms",
    kind: Kind::Number(1, expansion::TERMS_MAX as u64),
    default: "12",
    help: "Terms of an expansion; each one more halves the error",
};
const LEAF: OptionHead = OptionHead {
    name: "leaf",
    kind: Kind::Number(1, 1 << 16),
    default: "40",
    help: "The most particles of a box that is not divided",
};
const SAMPLE: OptionHead = OptionHead {
    name: "sample",
    kind: Kind::Number(1, 1 << 20),
    default: "16",
    help: "Particles whose field is also summed directly, to check the rest",
};

/// Bytes a particle, about: its record (40), its number (4), its share of boxes and expansions.
const BYTES_PER_PARTICLE: u64 = 80;
/// The most that fields may differ from direct sums, relative to their size: what the first terms that are
/// left out could come to. Measured errors are far smaller, because the boxes of most pairs are farther
/// apart.
fn bound(terms: usize) -> f64 {
    (0..terms).fold(1.0, |bound, _| bound * 0.5)
}

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let count = options.size("size").0 / BYTES_PER_PARTICLE;
    let Some(count) = u32::try_from(count).ok().filter(|&count| count >= 2) else {
        return Err(Failed::Options("size: from 2 to 2^32 - 1 particles of 80 bytes each".to_owned()));
    };
    let (terms, leaf) = (options.number("terms") as usize, options.number("leaf") as u32);
    let particles_size = Bytes(u64::from(count) * size_of::<Particle>() as u64);
    let mut particles = memory::map(options, particles_size)?;
    let order_size = Bytes(u64::from(count) * size_of::<u32>() as u64);
    let mut order = memory::map(options, order_size)?;
    let mut random = SplitMix64::new(options.number("seed"));
    let before = clock::thread_cpu_ns();
    let particles = &mut particles.values_mut::<f64>().as_chunks_mut().0[..count as usize];
    draw(particles, options.text("shape"), &mut random);
    let order = &mut order.values_mut::<u32>()[..count as usize];
    let mut tree = Tree::build(particles, order, leaf);
    let expansions_size = Bytes((tree.boxes() * 2 * terms * size_of::<Complex>()) as u64);
    let mut expansions = memory::map(options, expansions_size)?;
    let laid_out_ns = clock::thread_cpu_ns().saturating_sub(before);

    phase.begin();
    let before = clock::thread_cpu_ns();
    let binomials = Binomials::new(terms);
    let work = tree.fields(particles, order, expansions.values_mut::<f64>(), &binomials);
    let spent_ns = clock::thread_cpu_ns().saturating_sub(before);
    phase.end();

    let error = error_of_sample(particles, options.number("sample"), &mut random);
    if error.is_nan() || error > bound(terms) {
        return Err(Failed::Wrong(format!(
            "fields differ from those summed directly by {error:.2e} of their size, more than 2^-{terms}"
        )));
    }
    Ok(Done {
        merit: Merit {
            name: "particle time",
            unit: "ns",
            better: Better::Lower,
            value: spent_ns as f64 / f64::from(count),
        },
        working_set: Bytes(particles_size.0 + order_size.0 + expansions_size.0 + tree.size().0),
        checksum: checksum(particles),
        latencies: None,
        hot_regions: Vec::new(),
        figures: vec![
            Figure::new("lay_out_cpu", "ns", Better::Lower, laid_out_ns as f64),
            Figure::neutral("boxes", "boxes", tree.boxes() as f64),
            Figure::neutral("pairs_direct", "pairs", work.pairs as f64),
            Figure::neutral("pairs_of_boxes", "pairs", work.translations as f64),
            Figure::new("error", "of the field", Better::Lower, error),
        ],
        generated: format!(
            "{count} particles, {}, {terms} terms, boxes of up to {leaf}, seed {}",
            options.text("shape"),
            options.number("seed")
        ),
    })
}

/// Draws positions in the unit square and charges from 0.5 to 1.5.
fn draw(particles: &mut [Particle], shape: &str, random: &mut SplitMix64) {
    let is_clustered = shape == "clusters";
    for particle in particles {
        let place = match is_clustered {
            true => in_cluster(random),
            false => Complex::new(unit(random), unit(random)),
        };
        *particle = tree::particle(place, 0.5 + unit(random));
    }
}

/// A place in one of two clusters whose density falls as Plummer's model does seen from afar: (1 + r²)^-2.
/// The share within r is r²/(1 + r²), so r² is u/(1 − u) for a uniform u; a hundredth of all, the outermost,
/// is left out.
fn in_cluster(random: &mut SplitMix64) -> Complex {
    const SCALE: f64 = 0.02;
    let centre = if random.below(2) == 0 { Complex::new(0.3, 0.3) } else { Complex::new(0.7, 0.7) };
    let share = 0.99 * unit(random);
    let radius = (share / (1.0 - share)).sqrt() * SCALE;
    // A direction without sine and cosine: a place in the unit disc, put on its rim.
    loop {
        let place = Complex::new(2.0 * unit(random) - 1.0, 2.0 * unit(random) - 1.0);
        let square = place.square();
        if square > 0.01 && square <= 1.0 {
            return centre + place * (radius / square.sqrt());
        }
    }
}

/// A number from 0 to below 1.
fn unit(random: &mut SplitMix64) -> f64 {
    (random.draw() >> 11) as f64 / (1u64 << 53) as f64
}

/// How far the fields of a sample are from those summed directly over all particles, relative to their size:
/// the square root of the sum of squares of the differences over that of the fields.
fn error_of_sample(particles: &[Particle], sample: u64, random: &mut SplitMix64) -> f64 {
    let (mut differences, mut fields) = (0.0, 0.0);
    for _ in 0..sample {
        let at = random.below(particles.len() as u64) as usize;
        let direct = tree::direct(particles, at);
        differences += (tree::field(&particles[at]) - direct).square();
        fields += direct.square();
    }
    (differences / fields).sqrt()
}

/// All fields as one number.
fn checksum(particles: &[Particle]) -> u64 {
    let words = particles.iter().flat_map(|particle| {
        let field = tree::field(particle);
        [field.re.to_bits(), field.im.to_bits()]
    });
    words.fold(0, |sum, word| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(changes: &[(&str, &str)]) -> Options {
        let mut options = Options::defaults(WORKLOAD.options);
        for (name, typed) in [("size", "64K"), ("leaf", "10"), ("sample", "100")].iter().chain(changes) {
            options.set(name, typed).unwrap();
        }
        options
    }

    fn figure(done: &Done, name: &str) -> f64 {
        done.figures.iter().find(|figure| figure.name == name).unwrap().value
    }

    #[test]
    fn fields_are_those_of_direct_sums() {
        for shape in ["uniform", "clusters"] {
            let done = run(&small(&[("shape", shape)]), &mut Phase::unwatched()).unwrap();
            assert!(figure(&done, "error") < 1e-4, "{shape}: {}", figure(&done, "error"));
            assert!(figure(&done, "pairs_of_boxes") > 100.0, "{shape}: expansions were used");
            let direct = 819.0 * 818.0;
            assert!(figure(&done, "pairs_direct") < direct / 2.0, "{shape}: most pairs are not summed");
        }
    }

    #[test]
    fn each_term_lessens_the_error() {
        let error = |terms: &str| {
            figure(&run(&small(&[("terms", terms)]), &mut Phase::unwatched()).unwrap(), "error")
        };
        let errors = ["2", "6", "12", "24"].map(error);
        assert!(errors.is_sorted_by(|a, b| b < &(a / 8.0)), "{errors:?}");
        assert!(errors[3] < 1e-9, "{errors:?}");
    }

    #[test]
    fn runs_repeat_and_seeds_differ() {
        let done = run(&small(&[]), &mut Phase::unwatched()).unwrap();
        assert_eq!(run(&small(&[]), &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        assert_ne!(run(&small(&[("seed", "2")]), &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        assert!(matches!(run(&small(&[("size", "100")]), &mut Phase::unwatched()), Err(Failed::Options(_))));
        let two = run(&small(&[("size", "160")]), &mut Phase::unwatched()).unwrap();
        assert_eq!(figure(&two, "error"), 0.0, "two particles are summed directly");
    }
}
