//! Fast multipole method on the plane: the field of charged particles at each of them, far ones by expansions
//! of boxes of a quadtree. After fmm of SPLASH-2 (Woo et al., ISCA 1995), whose method is that of Greengard
//! and Rokhlin (1987); here boxes meet in a traversal of two trees (Dehnen 2002), which needs no lists.
//!
//! The field at z is the sum of q/(z − z_i) over all other particles, as complex numbers. A box about c has
//! the outer expansion Σ b_k/(z−c)^(k+1) with b_k = Σ q_i (z_i−c)^k, and the inner expansion Σ a_l (z−c)^l of
//! the distant particles; both are truncated after p terms. Two boxes are distant if the sum of their radii
//! is at most half of their distance, so the omitted terms are below 2^-p of the first.
//!
//! Memory access: particles stay in the order of generation; a box refers to them by a list of numbers, as
//! SPLASH-2's boxes do by pointers, so the particles of a box are scattered. Expansions are read and written
//! box by box, in the order of the traversal. Half of the time is arithmetic.
//!
//! First touch: generating the particles and building the tree write everything but the inner expansions.
//!
//! The code uses only sums, products and quotients, which IEEE 754 defines to the last bit.

mod series;
mod tree;

use pagelab_model::Bytes;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;

use crate::options::{SEED_OPTION, WorkloadOptions, choice_option, number_option, size_option};
use crate::phase::MeasuredPhase;
use crate::{
    Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping, mix_checksum,
};
use series::{Binomials, Complex};
use tree::{BoxTree, Particle};

/// The method as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "fmm",
    description: "Fast multipole method on a quadtree: fields of particles on a plane",
    generator: "particles random from the seed, uniform in a square or in two clusters (Plummer's), stored \
                in the order of generation while boxes refer to them by number: scattered reads of 40 bytes, \
                each address read from a list before; expansions of boxes in the order of a traversal; every \
                particle and list is written before it is read",
    options: &[
        size_option("32M", "Approximate bytes of particles, lists and expansions: 80 per particle"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        choice_option(
            "shape",
            &["uniform", "clusters"],
            "uniform",
            "Distribution of particles: uniform in a square, or in two clusters",
        ),
        number_option(
            "terms",
            1,
            series::TERMS_MAX as u64,
            "12",
            "Terms of an expansion; each additional term halves the error",
        ),
        number_option("leaf", 1, 1 << 16, "40", "Maximum number of particles in a box that is not divided"),
        number_option(
            "sample",
            1,
            1 << 20,
            "16",
            "Particles whose field is also summed directly, to check the result",
        ),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_fmm,
};

/// Bytes a particle, about: its record (40), its number (4), its share of boxes and expansions.
const BYTES_PER_PARTICLE: u64 = 80;
/// The most that fields may differ from direct sums, relative to their size: what the first terms that are
/// left out could come to. Measured errors are far smaller, because the boxes of most pairs are farther
/// apart.
fn error_bound(terms: usize) -> f64 {
    (0..terms).fold(1.0, |bound, _| bound * 0.5)
}

fn run_fmm(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let count = options.get_size("size").0 / BYTES_PER_PARTICLE;
    let Some(count) = u32::try_from(count).ok().filter(|&count| count >= 2) else {
        return Err(WorkloadError::InvalidOptions(
            "size: expected 2 to 2^32 - 1 particles of 80 bytes each".to_owned(),
        ));
    };
    let (terms, leaf) = (options.get_number("terms") as usize, options.get_number("leaf") as u32);
    let particles_size = Bytes(u64::from(count) * size_of::<Particle>() as u64);
    let mut particles = mapping::map_anonymous(options, particles_size)?;
    let order_size = Bytes(u64::from(count) * size_of::<u32>() as u64);
    let mut order = mapping::map_anonymous(options, order_size)?;
    let mut random = SplitMix64::new(options.get_number("seed"));
    let faults_before = clock::thread_cpu_ns();
    let particles = &mut particles.values_mut::<f64>().as_chunks_mut().0[..count as usize];
    draw_particles(particles, options.get_text("shape"), &mut random);
    let order = &mut order.values_mut::<u32>()[..count as usize];
    let mut tree = BoxTree::build(particles, order, leaf);
    let expansions_size = Bytes((tree.box_count() * 2 * terms * size_of::<Complex>()) as u64);
    let mut expansions = mapping::map_anonymous(options, expansions_size)?;
    let build_ns = clock::thread_cpu_ns().saturating_sub(faults_before);

    let (work, elapsed_ns) = phase.measure_cpu(|| {
        let binomials = Binomials::new(terms);
        tree.compute_fields(particles, order, expansions.values_mut::<f64>(), &binomials)
    });

    let error = sample_error(particles, options.get_number("sample"), &mut random);
    if error.is_nan() || error > error_bound(terms) {
        return Err(WorkloadError::WrongResult(format!(
            "fields differ from the direct sums by a relative error of {error:.2e}; expected at most \
             2^-{terms}"
        )));
    }
    Ok(WorkloadResult {
        figure_of_merit: Figure::time("particle time", elapsed_ns as f64 / f64::from(count)),
        working_set: Bytes(particles_size.0 + order_size.0 + expansions_size.0 + tree.box_bytes().0),
        checksum: field_checksum(particles),
        latencies: None,
        hot_regions: Vec::new(),
        figures: vec![
            Figure::time("lay_out_cpu", build_ns as f64),
            Figure::neutral("boxes", "boxes", tree.box_count() as f64),
            Figure::neutral("pairs_direct", "pairs", work.direct_pairs as f64),
            Figure::neutral("pairs_of_boxes", "pairs", work.translations as f64),
            Figure::new("error", "of the field", BetterDirection::Lower, error),
        ],
        phases: PhaseResults::default(),
        generated_input: format!(
            "{count} particles, {}, {terms} terms, boxes of up to {leaf}, seed {}",
            options.get_text("shape"),
            options.get_number("seed")
        ),
    })
}

/// Draws positions in the unit square and charges from 0.5 to 1.5.
fn draw_particles(particles: &mut [Particle], shape: &str, random: &mut SplitMix64) {
    let is_clustered = shape == "clusters";
    for particle in particles {
        let place = match is_clustered {
            true => draw_in_cluster(random),
            false => Complex::new(draw_unit(random), draw_unit(random)),
        };
        *particle = tree::new_particle(place, 0.5 + draw_unit(random));
    }
}

/// A place in one of two clusters whose density falls as Plummer's model does seen from afar: (1 + r²)^-2.
/// The share within r is r²/(1 + r²), so r² is u/(1 − u) for a uniform u; a hundredth of all, the outermost,
/// is left out.
fn draw_in_cluster(random: &mut SplitMix64) -> Complex {
    const CLUSTER_SCALE: f64 = 0.02;
    let centre = if random.next_below(2) == 0 { Complex::new(0.3, 0.3) } else { Complex::new(0.7, 0.7) };
    let share = 0.99 * draw_unit(random);
    let radius = (share / (1.0 - share)).sqrt() * CLUSTER_SCALE;
    // A direction without sine and cosine: a place in the unit disc, put on its rim.
    loop {
        let place = Complex::new(2.0 * draw_unit(random) - 1.0, 2.0 * draw_unit(random) - 1.0);
        let square = place.norm_squared();
        if square > 0.01 && square <= 1.0 {
            return centre + place * (radius / square.sqrt());
        }
    }
}

/// A number from 0 to below 1.
fn draw_unit(random: &mut SplitMix64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// How far the fields of a sample are from those summed directly over all particles, relative to their size:
/// the square root of the sum of squares of the differences over that of the fields.
fn sample_error(particles: &[Particle], sample: u64, random: &mut SplitMix64) -> f64 {
    let (mut differences, mut fields) = (0.0, 0.0);
    for _ in 0..sample {
        let at = random.next_below(particles.len() as u64) as usize;
        let direct = tree::sum_field_at(particles, at);
        differences += (tree::particle_field(&particles[at]) - direct).norm_squared();
        fields += direct.norm_squared();
    }
    (differences / fields).sqrt()
}

fn field_checksum(particles: &[Particle]) -> u64 {
    let words = particles.iter().flat_map(|particle| {
        let field = tree::particle_field(particle);
        [field.re.to_bits(), field.im.to_bits()]
    });
    words.fold(0, mix_checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_options(changes: &[(&str, &str)]) -> WorkloadOptions {
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        for (name, typed) in [("size", "64K"), ("leaf", "10"), ("sample", "100")].iter().chain(changes) {
            options.set_value(name, typed).unwrap();
        }
        options
    }

    fn figure(done: &WorkloadResult, name: &str) -> f64 {
        done.figures.iter().find(|figure| figure.name == name).unwrap().value
    }

    #[test]
    fn fields_are_those_of_direct_sums() {
        for shape in ["uniform", "clusters"] {
            let done =
                run_fmm(&small_options(&[("shape", shape)]), &mut MeasuredPhase::without_observer()).unwrap();
            assert!(figure(&done, "error") < 1e-4, "{shape}: {}", figure(&done, "error"));
            assert!(figure(&done, "pairs_of_boxes") > 100.0, "{shape}: expansions were used");
            let direct = 819.0 * 818.0;
            assert!(figure(&done, "pairs_direct") < direct / 2.0, "{shape}: most pairs are not summed");
        }
    }

    #[test]
    fn each_term_lessens_the_error() {
        let error = |terms: &str| {
            figure(
                &run_fmm(&small_options(&[("terms", terms)]), &mut MeasuredPhase::without_observer())
                    .unwrap(),
                "error",
            )
        };
        let errors = ["2", "6", "12", "24"].map(error);
        assert!(errors.is_sorted_by(|a, b| b < &(a / 8.0)), "{errors:?}");
        assert!(errors[3] < 1e-9, "{errors:?}");
    }

    #[test]
    fn runs_repeat_and_seeds_differ() {
        let done = run_fmm(&small_options(&[]), &mut MeasuredPhase::without_observer()).unwrap();
        assert_eq!(
            run_fmm(&small_options(&[]), &mut MeasuredPhase::without_observer()).unwrap().checksum,
            done.checksum
        );
        assert_ne!(
            run_fmm(&small_options(&[("seed", "2")]), &mut MeasuredPhase::without_observer())
                .unwrap()
                .checksum,
            done.checksum
        );
        assert!(matches!(
            run_fmm(&small_options(&[("size", "100")]), &mut MeasuredPhase::without_observer()),
            Err(WorkloadError::InvalidOptions(_))
        ));
        let two =
            run_fmm(&small_options(&[("size", "160")]), &mut MeasuredPhase::without_observer()).unwrap();
        assert_eq!(figure(&two, "error"), 0.0, "two particles are summed directly");
    }
}
