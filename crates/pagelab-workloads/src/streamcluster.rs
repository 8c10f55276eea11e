//! Clustering of a stream of points: each part of the stream is reduced to a few weighted centres by local
//! search, and the centres of all parts are clustered at the end. After streamcluster of PARSEC (Bienia et
//! al., PACT 2008), which is the k-median algorithm of O'Callaghan et al. (ICDE 2002): a facility costs z, a
//! point costs its weight times the squared distance to its centre, and z is searched so that the number of
//! centres comes out between two bounds.
//!
//! What it does to memory: to value one candidate, every point of the part is read once and its distance to
//! the candidate computed. The points lie in rows that are visited in a shuffled order, as PARSEC shuffles
//! its pointers to them: a row is read in sequence, and the next row is anywhere.
//!
//! First touch: drawing the points of a part writes every row.
//!
//! Sums are of sixteen lanes in a fixed order, so that results are the same to the last bit on every machine.

mod search;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};
use search::{Bounds, Points, Search};

/// The clustering as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "streamcluster",
    about: "Clusters a stream of points by local search: rows of floats read in a shuffled order",
    generator: "points around centres that the seed draws (uniform in a cube, ten times as far apart as \
                points of one cluster are wide), in parts; every point of a part is read once for each \
                candidate, rows in an order that the seed shuffles, within a row in sequence, independent of \
                each other; every row is written before it is read",
    options: &[
        size("16M", "Bytes of the points of one part of the stream"),
        SEED,
        memory::ADVISE,
        DIMENSIONS,
        PARTS,
        CLUSTERS,
        LEAST,
        MOST,
        CANDIDATES,
    ],
    forks: false,
    run,
};

const DIMENSIONS: OptionHead = OptionHead {
    name: "dimensions",
    kind: Kind::Number(1, 1 << 16),
    default: "128",
    help: "Coordinates of a point, four bytes each",
};
const PARTS: OptionHead = OptionHead {
    name: "parts",
    kind: Kind::Number(1, 1 << 20),
    default: "1",
    help: "Parts of the stream, clustered one after the other",
};
const CLUSTERS: OptionHead = OptionHead {
    name: "clusters",
    kind: Kind::Number(1, 1 << 16),
    default: "15",
    help: "Around how many places the points lie",
};
const LEAST: OptionHead = OptionHead {
    name: "least",
    kind: Kind::Number(1, 1 << 16),
    default: "10",
    help: "The fewest centres of a part",
};
const MOST: OptionHead = OptionHead {
    name: "most",
    kind: Kind::Number(1, 1 << 16),
    default: "20",
    help: "The most centres of a part",
};
const CANDIDATES: OptionHead = OptionHead {
    name: "candidates",
    kind: Kind::Number(0, 1 << 40),
    default: "100",
    help: "The most candidates valued for a part; 0: until the search ends by itself",
};

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let dimensions = options.number("dimensions") as usize;
    let bounds = Bounds {
        least: options.number("least") as usize,
        most: options.number("most") as usize,
        candidates: Some(options.number("candidates")).filter(|&most| most > 0).unwrap_or(u64::MAX),
    };
    let row = (dimensions * size_of::<f32>()) as u64;
    let count = options.size("size").0 / row;
    let count = u32::try_from(count).ok().filter(|&count| count as usize > bounds.most);
    let Some(count) = count.filter(|_| bounds.least <= bounds.most) else {
        return Err(Failed::Options(format!(
            "size: a part needs more points of {row} bytes than `most` ({}), fewer than 2^32, and `least` \
             may \
             not be above `most`",
            bounds.most
        )));
    };
    let rows_size = u64::from(count) * row;
    let records_size = u64::from(count) * search::BYTES_PER_RECORD;
    let mut rows = memory::map(options, Bytes(rows_size))?;
    let mut records = memory::map(options, Bytes(records_size))?;
    let mut random = SplitMix64::new(options.number("seed"));
    let places = Places::draw(options.number("clusters") as usize, dimensions, &mut random);
    let mut totals = Totals::default();
    let mut centres = Vec::new();
    let mut weights = Vec::new();
    for _ in 0..options.number("parts") {
        let rows = &mut rows.values_mut::<f32>()[..count as usize * dimensions];
        let before = clock::thread_cpu_ns();
        rows.chunks_exact_mut(dimensions).for_each(|row| places.point(row, &mut random));
        let mut points = Points::new(rows, records.values_mut::<u32>(), dimensions);
        totals.lay_out_ns += clock::thread_cpu_ns().saturating_sub(before);
        totals.search(&mut points, bounds, &mut random, phase)?;
        points.collect_centres(&mut centres, &mut weights);
    }
    let parts_cost = totals.cost;
    // The centres of all parts are points of their own, as heavy as what they stand for.
    if weights.len() > bounds.most {
        let mut order = vec![0; weights.len() * search::BYTES_PER_RECORD as usize / size_of::<u32>()];
        let mut points = Points::new(&centres, &mut order, dimensions);
        points.set_weights(&weights);
        totals.search(&mut points, bounds, &mut random, phase)?;
    }
    Ok(done(options, &totals, parts_cost, Bytes(rows_size + records_size), count))
}

fn done(options: &Options, totals: &Totals, parts_cost: f64, working_set: Bytes, count: u32) -> Done {
    Done {
        merit: Merit {
            name: "distance time",
            unit: "ns",
            better: Better::Lower,
            value: totals.search_ns as f64 / totals.distances.max(1) as f64,
        },
        working_set,
        checksum: totals.checksum,
        latencies: None,
        hot_regions: Vec::new(),
        figures: vec![
            Figure::new("lay_out_cpu", "ns", Better::Lower, totals.lay_out_ns as f64),
            Figure::neutral("candidates", "candidates", totals.candidates as f64),
            Figure::neutral("distances", "distances", totals.distances as f64),
            Figure::neutral("centres", "centres", totals.centres as f64),
            Figure::new("cost", "squared distances", Better::Lower, parts_cost),
        ],
        generated: format!(
            "{} parts of {count} points of {} dimensions around {} places, {} to {} centres, seed {}",
            options.number("parts"),
            options.number("dimensions"),
            options.number("clusters"),
            options.number("least"),
            options.number("most"),
            options.number("seed")
        ),
    }
}

/// Sums over all searches of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    lay_out_ns: u64,
    search_ns: u64,
    /// Distances between a point and a candidate.
    distances: u64,
    candidates: u64,
    /// Centres of the last search.
    centres: usize,
    /// Squared distances of all points to their centres, times weights.
    cost: f64,
    checksum: u64,
}

impl Totals {
    fn search(
        &mut self,
        points: &mut Points<'_>,
        bounds: Bounds,
        random: &mut SplitMix64,
        phase: &mut Phase<'_>,
    ) -> Result<(), Failed> {
        phase.begin();
        let before = clock::thread_cpu_ns();
        let search = Search::run(points, bounds, random);
        self.search_ns += clock::thread_cpu_ns().saturating_sub(before);
        phase.end();
        points.check(&search).map_err(Failed::Wrong)?;
        self.distances += search.distances;
        self.candidates += search.candidates;
        self.centres = search.centres;
        self.cost += points.assignment_cost();
        for word in [points.digest(), search.cost.to_bits(), search.centres as u64] {
            self.checksum = (self.checksum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

/// The places around which points lie.
struct Places {
    coordinates: Vec<f32>,
    dimensions: usize,
}

/// Points of one cluster lie in a cube of this side around their place; places in a cube of side 1.
const WIDTH: f32 = 0.1;

impl Places {
    fn draw(count: usize, dimensions: usize, random: &mut SplitMix64) -> Places {
        let coordinates = (0..count * dimensions).map(|_| unit(random.draw())).collect();
        Places { coordinates, dimensions }
    }

    fn point(&self, row: &mut [f32], random: &mut SplitMix64) {
        let place = random.below((self.coordinates.len() / self.dimensions) as u64) as usize;
        let place = &self.coordinates[place * self.dimensions..][..self.dimensions];
        for (coordinate, centre) in row.iter_mut().zip(place) {
            *coordinate = centre + WIDTH * (unit(random.draw()) - 0.5);
        }
    }
}

/// A number from 0 to below 1, of the upper 24 bits.
fn unit(drawn: u64) -> f32 {
    (drawn >> 40) as f32 / (1u64 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(changes: &[(&str, &str)]) -> Options {
        let mut options = Options::defaults(WORKLOAD.options);
        let few = [("size", "4K"), ("dimensions", "4"), ("clusters", "5"), ("candidates", "20")];
        for (name, typed) in few.iter().chain(changes) {
            options.set(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn planted_clusters_are_found() {
        let found =
            run(&small(&[("least", "5"), ("most", "5"), ("candidates", "0")]), &mut Phase::unwatched())
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
        let options = small(&[("parts", "4"), ("least", "4"), ("most", "6")]);
        let done = run(&options, &mut Phase::unwatched()).unwrap();
        assert_eq!(run(&options, &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        assert_ne!(
            run(&small(&[("parts", "4"), ("seed", "2")]), &mut Phase::unwatched()).unwrap().checksum,
            done.checksum
        );
        let figure = |name: &str| done.figures.iter().find(|figure| figure.name == name).unwrap().value;
        assert!(figure("distances") > figure("candidates") && figure("candidates") >= 4.0);
        let once =
            run(&small(&[("parts", "1"), ("least", "4"), ("most", "6")]), &mut Phase::unwatched()).unwrap();
        assert_eq!(once.working_set, done.working_set, "parts use the same memory");
    }

    #[test]
    fn bounds_that_make_no_sense_are_refused() {
        for changes in [[("least", "6"), ("most", "5")], [("size", "64"), ("most", "4")]] {
            assert!(
                matches!(run(&small(&changes), &mut Phase::unwatched()), Err(Failed::Options(_))),
                "{changes:?}"
            );
        }
    }
}
