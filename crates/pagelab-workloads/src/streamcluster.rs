//! Clustering of a stream of points: each part of the stream is reduced to a few weighted centres by local
//! search, and the centres of all parts are clustered at the end. After streamcluster of PARSEC (Bienia et
//! al., PACT 2008), which is the k-median algorithm of O'Callaghan et al. (ICDE 2002): a facility costs z, a
//! point costs its weight times the squared distance to its centre, and z is searched so that the number of
//! centres comes out between two bounds.
//!
//! Memory access: to evaluate one candidate, every point of the part is read once and its distance to the
//! candidate computed. The points are in rows that are visited in a shuffled order, as PARSEC shuffles its
//! pointers to them: a row is read in sequence, and the next row is anywhere.
//!
//! First touch: generating the points of a part writes every row.
//!
//! Sums are of sixteen lanes in a fixed order, so that results are the same to the last bit on every machine.

mod search;

use pagelab_model::Bytes;
use pagelab_model::experiment::BetterDirection;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;

use crate::options::{SEED_OPTION, WorkloadOptions, number_option, size_option};
use crate::phase::MeasuredPhase;
use crate::{
    Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping, mix_checksum,
};
use search::{CentreSearch, ClusterPoints, SearchBounds};

/// The clustering as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "streamcluster",
    description: "Clusters a stream of points by local search: rows of floats read in a shuffled order",
    generator: "points around random centres from the seed (uniform in a cube, whose distances are ten times \
                the width of a cluster), in parts; every point of a part is read once for each candidate, \
                rows in a shuffled order from the seed, within a row in sequence, independent of each other; \
                every row is written before it is read",
    options: &[
        size_option("16M", "Bytes of the points of one part of the stream"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        number_option("dimensions", 1, 1 << 16, "128", "Coordinates of a point, four bytes each"),
        number_option("parts", 1, 1 << 20, "1", "Parts of the stream, clustered one after the other"),
        number_option("clusters", 1, 1 << 16, "15", "Number of places around which the points lie"),
        number_option("least", 1, 1 << 16, "10", "Minimum number of centres of a part"),
        number_option("most", 1, 1 << 16, "20", "Maximum number of centres of a part"),
        number_option(
            "candidates",
            0,
            1 << 40,
            "100",
            "Maximum number of candidates evaluated for a part; 0: until the search ends by itself",
        ),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_streamcluster,
};

fn run_streamcluster(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let dimensions = options.get_number("dimensions") as usize;
    let bounds = SearchBounds {
        min_centres: options.get_number("least") as usize,
        max_centres: options.get_number("most") as usize,
        candidates_max: Some(options.get_number("candidates")).filter(|&most| most > 0).unwrap_or(u64::MAX),
    };
    let row = (dimensions * size_of::<f32>()) as u64;
    let count = options.get_size("size").0 / row;
    let count = u32::try_from(count).ok().filter(|&count| count as usize > bounds.max_centres);
    let Some(count) = count.filter(|_| bounds.min_centres <= bounds.max_centres) else {
        return Err(WorkloadError::InvalidOptions(format!(
            "size: a part must hold more points of {row} bytes than `most` ({}) and fewer than 2^32, and \
             `least` may not exceed `most`",
            bounds.max_centres
        )));
    };
    let rows_size = u64::from(count) * row;
    let records_size = u64::from(count) * search::BYTES_PER_RECORD;
    let mut rows = mapping::map_anonymous(options, Bytes(rows_size))?;
    let mut records = mapping::map_anonymous(options, Bytes(records_size))?;
    let mut random = SplitMix64::new(options.get_number("seed"));
    let places =
        PlantedClusters::draw_clusters(options.get_number("clusters") as usize, dimensions, &mut random);
    let mut totals = SearchTotals::default();
    let mut centres = Vec::new();
    let mut weights = Vec::new();
    for _ in 0..options.get_number("parts") {
        let rows = &mut rows.values_mut::<f32>()[..count as usize * dimensions];
        let before = clock::thread_cpu_ns();
        rows.chunks_exact_mut(dimensions).for_each(|row| places.draw_point(row, &mut random));
        let mut points = ClusterPoints::new(rows, records.values_mut::<u32>(), dimensions);
        totals.fill_ns += clock::thread_cpu_ns().saturating_sub(before);
        totals.search_points(&mut points, bounds, &mut random, phase)?;
        points.collect_centres(&mut centres, &mut weights);
    }
    let parts_cost = totals.cost;
    // The centres of all parts are points themselves, with the weight of the points that they represent.
    if weights.len() > bounds.max_centres {
        let mut order = vec![0; weights.len() * search::BYTES_PER_RECORD as usize / size_of::<u32>()];
        let mut points = ClusterPoints::new(&centres, &mut order, dimensions);
        points.set_weights(&weights);
        totals.search_points(&mut points, bounds, &mut random, phase)?;
    }
    Ok(build_result(options, &totals, parts_cost, Bytes(rows_size + records_size), count))
}

fn build_result(
    options: &WorkloadOptions,
    totals: &SearchTotals,
    parts_cost: f64,
    working_set: Bytes,
    count: u32,
) -> WorkloadResult {
    WorkloadResult {
        figure_of_merit: Figure::time(
            "distance time",
            totals.search_ns as f64 / totals.distance_count.max(1) as f64,
        ),
        working_set,
        checksum: totals.checksum,
        latencies: None,
        hot_regions: Vec::new(),
        figures: vec![
            Figure::time("lay_out_cpu", totals.fill_ns as f64),
            Figure::neutral("candidates", "candidates", totals.candidate_count as f64),
            Figure::neutral("distances", "distances", totals.distance_count as f64),
            Figure::neutral("centres", "centres", totals.centre_count as f64),
            Figure::new("cost", "squared distances", BetterDirection::Lower, parts_cost),
        ],
        phases: PhaseResults::default(),
        generated_input: format!(
            "{} parts of {count} points of {} dimensions around {} places, {} to {} centres, seed {}",
            options.get_number("parts"),
            options.get_number("dimensions"),
            options.get_number("clusters"),
            options.get_number("least"),
            options.get_number("most"),
            options.get_number("seed")
        ),
    }
}

/// Sums over all searches of a run.
#[derive(Clone, Copy, Debug, Default)]
struct SearchTotals {
    fill_ns: u64,
    search_ns: u64,
    distance_count: u64,
    candidate_count: u64,
    centre_count: usize,
    /// Squared distances of all points to their centres, times weights.
    cost: f64,
    checksum: u64,
}

impl SearchTotals {
    fn search_points(
        &mut self,
        points: &mut ClusterPoints<'_>,
        bounds: SearchBounds,
        random: &mut SplitMix64,
        phase: &mut MeasuredPhase<'_>,
    ) -> Result<(), WorkloadError> {
        let (search, elapsed_ns) = phase.measure_cpu(|| CentreSearch::search_centres(points, bounds, random));
        self.search_ns += elapsed_ns;
        points.check_assignment(&search).map_err(WorkloadError::WrongResult)?;
        self.distance_count += search.distance_count;
        self.candidate_count += search.candidate_count;
        self.centre_count = search.centre_count;
        self.cost += points.assignment_cost();
        for word in [points.assignment_digest(), search.cost.to_bits(), search.centre_count as u64] {
            self.checksum = mix_checksum(self.checksum, word);
        }
        Ok(())
    }
}

/// Cluster centres of the generated points.
struct PlantedClusters {
    coordinates: Vec<f32>,
    dimensions: usize,
}

/// Points of one cluster are in a cube of this side around their centre; centres in a cube of side 1.
const CLUSTER_WIDTH: f32 = 0.1;

impl PlantedClusters {
    fn draw_clusters(count: usize, dimensions: usize, random: &mut SplitMix64) -> PlantedClusters {
        let coordinates = (0..count * dimensions).map(|_| to_unit(random.next_u64())).collect();
        PlantedClusters { coordinates, dimensions }
    }

    fn draw_point(&self, row: &mut [f32], random: &mut SplitMix64) {
        let place = random.next_below((self.coordinates.len() / self.dimensions) as u64) as usize;
        let place = &self.coordinates[place * self.dimensions..][..self.dimensions];
        for (coordinate, centre) in row.iter_mut().zip(place) {
            *coordinate = centre + CLUSTER_WIDTH * (to_unit(random.next_u64()) - 0.5);
        }
    }
}

/// A number from 0 to below 1, of the upper 24 bits.
fn to_unit(random_word: u64) -> f32 {
    (random_word >> 40) as f32 / (1u64 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_options(changes: &[(&str, &str)]) -> WorkloadOptions {
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        let few = [("size", "4K"), ("dimensions", "4"), ("clusters", "5"), ("candidates", "20")];
        for (name, typed) in few.iter().chain(changes) {
            options.set_value(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn planted_clusters_are_found() {
        let found = run_streamcluster(
            &small_options(&[("least", "5"), ("most", "5"), ("candidates", "0")]),
            &mut MeasuredPhase::without_observer(),
        )
        .unwrap();
        let cost = found.figures.iter().find(|figure| figure.name == "cost").unwrap().value;
        // 256 points, each in a cube of side 0.1 of four dimensions, whose centre is 0.0033 away in the mean
        // of squares; a centre that is itself a point doubles that. Two places in one cluster would cost
        // more.
        assert!(cost < 256.0 * 0.0033 * 2.5, "{cost}");
        assert_eq!(found.figures.iter().find(|figure| figure.name == "centres").unwrap().value, 5.0);
    }

    #[test]
    fn parts_are_clustered_one_after_the_other_and_then_together() {
        let options = small_options(&[("parts", "4"), ("least", "4"), ("most", "6")]);
        let done = run_streamcluster(&options, &mut MeasuredPhase::without_observer()).unwrap();
        assert_eq!(
            run_streamcluster(&options, &mut MeasuredPhase::without_observer()).unwrap().checksum,
            done.checksum
        );
        assert_ne!(
            run_streamcluster(
                &small_options(&[("parts", "4"), ("seed", "2")]),
                &mut MeasuredPhase::without_observer()
            )
            .unwrap()
            .checksum,
            done.checksum
        );
        let figure = |name: &str| done.figures.iter().find(|figure| figure.name == name).unwrap().value;
        assert!(figure("distances") > figure("candidates") && figure("candidates") >= 4.0);
        let once = run_streamcluster(
            &small_options(&[("parts", "1"), ("least", "4"), ("most", "6")]),
            &mut MeasuredPhase::without_observer(),
        )
        .unwrap();
        assert_eq!(once.working_set, done.working_set, "parts use the same memory");
    }

    #[test]
    fn bounds_that_make_no_sense_are_refused() {
        for changes in [[("least", "6"), ("most", "5")], [("size", "64"), ("most", "4")]] {
            assert!(
                matches!(
                    run_streamcluster(&small_options(&changes), &mut MeasuredPhase::without_observer()),
                    Err(WorkloadError::InvalidOptions(_))
                ),
                "{changes:?}"
            );
        }
    }
}
