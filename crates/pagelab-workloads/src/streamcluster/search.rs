//! Local search for centres: a quick first choice, then candidates one by one, each opened if that saves.

use pagelab_model::random::SplitMix64;

use crate::mix_checksum;

/// A point in visiting order: its row, the record of its centre (its own for a centre), its cost there, its
/// weight, and for a centre its index in the list of open ones.
type PointRecord = [u32; 5];
const RECORD_ROW: usize = 0;
const RECORD_CENTRE: usize = 1;
const RECORD_COST: usize = 2;
const RECORD_WEIGHT: usize = 3;
const RECORD_SLOT: usize = 4;

/// Bytes of a record.
pub const BYTES_PER_RECORD: u64 = size_of::<PointRecord>() as u64;

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct SearchBounds {
    /// The fewest centres.
    pub min_centres: usize,
    /// The most centres.
    pub max_centres: usize,
    /// The most candidates that are valued.
    pub candidates_max: u64,
}

/// Points, their order, and which centre each belongs to.
pub struct ClusterPoints<'a> {
    rows: &'a [f32],
    dimensions: usize,
    records: &'a mut [PointRecord],
}

impl<'a> ClusterPoints<'a> {
    /// Points of weight 1 in the order of their rows. `records` has five words for each.
    pub fn new(rows: &'a [f32], records: &'a mut [u32], dimensions: usize) -> ClusterPoints<'a> {
        let records = &mut records.as_chunks_mut().0[..rows.len() / dimensions];
        for (index, record) in (0..).zip(records.iter_mut()) {
            *record = [index, index, 0, 1f32.to_bits(), 0];
        }
        ClusterPoints { rows, dimensions, records }
    }

    /// Gives each point a weight.
    pub fn set_weights(&mut self, weights: &[f32]) {
        for (record, weight) in self.records.iter_mut().zip(weights) {
            record[RECORD_WEIGHT] = weight.to_bits();
        }
    }

    fn row_of(&self, index: usize) -> &[f32] {
        &self.rows[self.records[index][RECORD_ROW] as usize * self.dimensions..][..self.dimensions]
    }

    fn cost_of(&self, index: usize) -> f32 {
        f32::from_bits(self.records[index][RECORD_COST])
    }

    fn cost_with_centre(&self, index: usize, centre: usize) -> f32 {
        squared_distance(self.row_of(index), self.row_of(centre))
            * f32::from_bits(self.records[index][RECORD_WEIGHT])
    }

    fn is_centre(&self, index: usize) -> bool {
        self.records[index][RECORD_CENTRE] as usize == index
    }

    fn assign_centre(&mut self, index: usize, centre: usize, cost: f32) {
        self.records[index][RECORD_CENTRE] = centre as u32;
        self.records[index][RECORD_COST] = cost.to_bits();
    }

    /// The sum of what all points cost.
    pub fn assignment_cost(&self) -> f64 {
        (0..self.records.len()).map(|at| f64::from(self.cost_of(at))).sum()
    }

    /// Appends the rows of the centres, and the weights of the points that belong to each.
    pub fn collect_centres(&self, rows: &mut Vec<f32>, weights: &mut Vec<f32>) {
        let first = weights.len();
        let mut place = vec![usize::MAX; self.records.len()];
        for index in (0..self.records.len()).filter(|&at| self.is_centre(at)) {
            place[index] = weights.len();
            weights.push(0.0);
            rows.extend_from_slice(self.row_of(index));
        }
        for record in self.records.iter() {
            weights[place[record[RECORD_CENTRE] as usize]] += f32::from_bits(record[RECORD_WEIGHT]);
        }
        debug_assert!(weights.len() > first);
    }

    /// Compares the incremental state with a recomputation: each point belongs to an open centre with the
    /// cost of its distance, and the sum equals the search's result.
    pub fn check_assignment(&self, search: &CentreSearch) -> Result<(), String> {
        let mut is_seen = vec![false; self.records.len()];
        for (index, record) in self.records.iter().enumerate() {
            let centre = record[RECORD_CENTRE] as usize;
            if !self.is_centre(centre) {
                return Err(format!("point {index} belongs to point {centre}, which is not a centre"));
            }
            let cost = self.cost_with_centre(index, centre);
            if cost.to_bits() != record[RECORD_COST] {
                return Err(format!("point {index} has the cost {}, recomputed {cost}", self.cost_of(index)));
            }
            if std::mem::replace(&mut is_seen[record[RECORD_ROW] as usize], true) {
                return Err(format!("row {} belongs to two points", record[RECORD_ROW]));
            }
        }
        let centres = (0..self.records.len()).filter(|&at| self.is_centre(at)).count();
        let again = self.assignment_cost() + search.facility_cost * centres as f64;
        let is_near = (again - search.cost).abs() <= 1e-6 * again.max(f64::MIN_POSITIVE);
        match (centres == search.centre_count, is_near) {
            (true, true) => Ok(()),
            (false, _) => {
                Err(format!("{centres} centres are open, but the count is {}", search.centre_count))
            }
            _ => Err(format!("the incremental cost is {}, recomputed {again}", search.cost)),
        }
    }

    /// Assignment of points to centres, as one number.
    pub fn assignment_digest(&self) -> u64 {
        let words = self
            .records
            .iter()
            .flat_map(|record| [record[RECORD_ROW], record[RECORD_CENTRE], record[RECORD_COST]]);
        words.map(u64::from).fold(0, mix_checksum)
    }
}

/// Squared distance, in sixteen lanes that are added up in a fixed order: a loop that vectors of any width
/// can do, with the same result.
fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    const LANE_COUNT: usize = 16;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANE_COUNT>(), b.as_chunks::<LANE_COUNT>());
    let mut lanes = [0f32; LANE_COUNT];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANE_COUNT {
            let difference = a[lane] - b[lane];
            lanes[lane] += difference * difference;
        }
    }
    let mut width = LANE_COUNT / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| (a - b) * (a - b));
    rest.fold(lanes[0], |sum, square| sum + square)
}

/// A search and its result.
#[derive(Debug, Default)]
pub struct CentreSearch {
    /// Cost of an open centre.
    pub facility_cost: f64,
    /// Of all points and open centres.
    pub cost: f64,
    /// Open centres.
    pub centre_count: usize,
    /// Candidates that were valued.
    pub candidate_count: u64,
    /// Distances that were computed.
    pub distance_count: u64,
    open_centres: Vec<usize>,
    /// For each point whether it is nearer to the candidate, while one is valued.
    reassigned: Vec<bool>,
}

/// Rounds without end are cut off: a facility cost that was halved so often is 0.
const HALVINGS_MAX: usize = 64;
/// Part of the cost that a round of candidates must save, for another to follow: first, and near the bounds.
const SAVING_MIN: [f64; 2] = [0.1, 0.001];

impl CentreSearch {
    /// Searches for centres within the bounds among the candidates.
    pub fn search_centres(
        points: &mut ClusterPoints<'_>,
        bounds: SearchBounds,
        random: &mut SplitMix64,
    ) -> CentreSearch {
        random.shuffle(points.records);
        let count = points.records.len();
        let mut search = CentreSearch { reassigned: vec![false; count], ..CentreSearch::default() };
        let mut cost_high: f64 = (0..count).map(|at| f64::from(points.cost_with_centre(at, 0))).sum();
        search.distance_count += count as u64;
        let mut cost_low = 0.0;
        search.facility_cost = cost_high / 2.0;
        search.open_initial_centres(points, random);
        for _ in 0..HALVINGS_MAX {
            if search.open_centres.len() >= bounds.min_centres.min(count) {
                break;
            }
            cost_high = search.facility_cost;
            search.facility_cost /= 2.0;
            search.open_initial_centres(points, random);
        }
        let mut feasible = draw_candidates(points, bounds.min_centres, random);
        loop {
            search.improve_centres(points, &mut feasible, bounds, SAVING_MIN[0], random);
            let centres = search.open_centres.len();
            if centres <= bounds.max_centres + 2 && centres + 2 >= bounds.min_centres {
                search.improve_centres(points, &mut feasible, bounds, SAVING_MIN[1], random);
            }
            let centres = search.open_centres.len();
            if centres > bounds.max_centres {
                cost_low = search.facility_cost;
            } else if centres < bounds.min_centres {
                cost_high = search.facility_cost;
            } else {
                break;
            }
            if cost_low >= 0.999 * cost_high || search.candidate_count >= bounds.candidates_max {
                break;
            }
            search.cost += (f64::midpoint(cost_low, cost_high) - search.facility_cost) * centres as f64;
            search.facility_cost = f64::midpoint(cost_low, cost_high);
        }
        search.centre_count = search.open_centres.len();
        search
    }

    /// The initial choice: each point in turn becomes a centre with a probability equal to its present cost
    /// in units of the facility cost (Meyerson's online facility location).
    fn open_initial_centres(&mut self, points: &mut ClusterPoints<'_>, random: &mut SplitMix64) {
        self.open_centres.clear();
        for candidate in 0..points.records.len() {
            let chance = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let is_opened =
                candidate == 0 || chance * self.facility_cost < f64::from(points.cost_of(candidate));
            if !is_opened {
                continue;
            }
            let is_first = self.open_centres.is_empty();
            for index in 0..points.records.len() {
                let cost = points.cost_with_centre(index, candidate);
                if is_first || cost < points.cost_of(index) || index == candidate {
                    points.assign_centre(index, candidate, cost);
                }
            }
            self.distance_count += points.records.len() as u64;
            self.open_centres.push(candidate);
        }
        self.renumber_centres(points);
        self.cost = points.assignment_cost() + self.facility_cost * self.open_centres.len() as f64;
    }

    /// Removes closed centres, and updates the positions of the others.
    fn renumber_centres(&mut self, points: &mut ClusterPoints<'_>) {
        self.open_centres.retain(|&centre| points.is_centre(centre));
        for (slot, &centre) in (0..).zip(&self.open_centres) {
            points.records[centre][RECORD_SLOT] = slot;
        }
    }

    /// Rounds of candidates, until a round saves less than this part of the cost.
    fn improve_centres(
        &mut self,
        points: &mut ClusterPoints<'_>,
        feasible: &mut [usize],
        bounds: SearchBounds,
        saving_min: f64,
        random: &mut SplitMix64,
    ) {
        let round = 3 * bounds.max_centres * bounds.max_centres.max(2).ilog2() as usize;
        loop {
            random.shuffle(feasible);
            let before = self.cost;
            for turn in 0..round {
                if self.candidate_count >= bounds.candidates_max {
                    return;
                }
                self.evaluate_candidate(points, feasible[turn % feasible.len()]);
            }
            if before - self.cost <= saving_min * self.cost {
                return;
            }
        }
    }

    /// Values a candidate: open it, give it every point that is nearer to it than to its centre, close every
    /// centre whose other points cost less there than the centre itself. Does so if that saves.
    fn evaluate_candidate(&mut self, points: &mut ClusterPoints<'_>, candidate: usize) {
        let is_own_centre = points.is_centre(candidate);
        let mut change = if is_own_centre { 0.0 } else { self.facility_cost };
        // Saving from closing each centre.
        let mut saving = vec![self.facility_cost; self.open_centres.len()];
        for index in 0..points.records.len() {
            let (cost, there) = (points.cost_of(index), points.cost_with_centre(index, candidate));
            let difference = f64::from(there) - f64::from(cost);
            self.reassigned[index] = there < cost;
            if there < cost {
                change += difference;
            } else {
                let centre = points.records[index][RECORD_CENTRE] as usize;
                saving[points.records[centre][RECORD_SLOT] as usize] -= difference;
            }
        }
        if is_own_centre {
            saving[points.records[candidate][RECORD_SLOT] as usize] = 0.0;
        }
        change -= saving.iter().filter(|&&saved| saved > 0.0).sum::<f64>();
        self.candidate_count += 1;
        self.distance_count += points.records.len() as u64;
        if change >= 0.0 {
            return;
        }
        for index in 0..points.records.len() {
            let slot = points.records[points.records[index][RECORD_CENTRE] as usize][RECORD_SLOT] as usize;
            if self.reassigned[index] || saving[slot] > 0.0 || index == candidate {
                let cost = points.cost_with_centre(index, candidate);
                points.assign_centre(index, candidate, cost);
                self.distance_count += 1;
            }
        }
        if !is_own_centre {
            self.open_centres.push(candidate);
        }
        self.renumber_centres(points);
        self.cost += change;
    }
}

/// Points that may become centres, chosen at random by weight: so many that each good place very likely has
/// one.
fn draw_candidates(points: &ClusterPoints<'_>, min_centres: usize, random: &mut SplitMix64) -> Vec<usize> {
    let count = points.records.len();
    let candidate_target = 3 * min_centres.max(2) * (min_centres.max(2).ilog2() as usize + 1);
    if candidate_target >= count {
        return (0..count).collect();
    }
    let mut sum = 0.0;
    let sums: Vec<f64> = (points.records.iter())
        .map(|record| {
            sum += f64::from(f32::from_bits(record[RECORD_WEIGHT]));
            sum
        })
        .collect();
    let draw = |_| {
        let candidate_target = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        sums.partition_point(|&sum| sum <= candidate_target).min(count - 1)
    };
    (0..candidate_target).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points on a plane, some of them twice.
    fn rows(count: usize, random: &mut SplitMix64) -> Vec<f32> {
        (0..2 * count).map(|_| random.next_below(20) as f32).collect()
    }

    /// The least cost of all choices of centres.
    fn least_cost(points: &ClusterPoints<'_>, facility: f64) -> f64 {
        let count = points.records.len();
        let cost = |chosen: u32| -> f64 {
            let nearest = |at: usize| {
                let open = (0..count).filter(|centre| chosen >> centre & 1 == 1);
                open.map(|centre| f64::from(points.cost_with_centre(at, centre)))
                    .fold(f64::INFINITY, f64::min)
            };
            (0..count).map(nearest).sum::<f64>() + facility * f64::from(chosen.count_ones())
        };
        (1..1u32 << count).map(cost).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn distances_are_sums_of_squares() {
        let mut random = SplitMix64::new(1);
        for length in [1, 2, 15, 16, 17, 48, 128, 130] {
            let [a, b] = [0; 2].map(|_| -> Vec<f32> {
                (0..length).map(|_| random.next_below(1000) as f32 / 1000.0).collect()
            });
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
            assert!(
                (f64::from(squared_distance(&a, &b)) - exact).abs() <= 1e-5 * exact.max(1e-9),
                "{length}"
            );
            assert_eq!(squared_distance(&a, &b), squared_distance(&b, &a));
        }
    }

    #[test]
    fn each_candidate_saves_what_is_said() {
        let mut random = SplitMix64::new(5);
        for facility in [0.0, 5.0, 40.0, 1000.0] {
            let rows = rows(40, &mut random);
            let mut words = vec![0; 200];
            let mut points = ClusterPoints::new(&rows, &mut words, 2);
            let reassigned = vec![false; 40];
            let mut search = CentreSearch { reassigned, facility_cost: facility, ..CentreSearch::default() };
            search.open_initial_centres(&mut points, &mut random);
            for _ in 0..100 {
                let before = search.cost;
                search.evaluate_candidate(&mut points, random.next_below(40) as usize);
                search.centre_count = search.open_centres.len();
                points.check_assignment(&search).unwrap();
                assert!(search.cost <= before, "a candidate is taken only if it saves");
            }
        }
    }

    #[test]
    fn the_search_comes_close_to_the_best_of_all_choices() {
        let mut best = 0;
        for seed in 0..12 {
            let mut random = SplitMix64::new(seed);
            let rows = rows(8, &mut random);
            let mut words = vec![0; 40];
            let mut points = ClusterPoints::new(&rows, &mut words, 2);
            let reassigned = vec![false; 8];
            let mut search = CentreSearch { reassigned, facility_cost: 60.0, ..CentreSearch::default() };
            let exact = least_cost(&points, search.facility_cost);
            search.open_initial_centres(&mut points, &mut random);
            let bounds = SearchBounds { min_centres: 1, max_centres: 8, candidates_max: u64::MAX };
            let mut all: Vec<usize> = (0..8).collect();
            search.improve_centres(&mut points, &mut all, bounds, 0.0, &mut random);
            assert!(search.cost >= exact - 1e-9 && search.cost <= 2.414 * exact, "{} {exact}", search.cost);
            best += u32::from(search.cost <= exact + 1e-9);
        }
        assert!(best >= 6, "the best was found for {best} of 12");
    }

    #[test]
    fn weights_count_as_so_many_points() {
        let mut random = SplitMix64::new(2);
        let rows = rows(30, &mut random);
        let mut words = vec![0; 150];
        let mut points = ClusterPoints::new(&rows, &mut words, 2);
        let weights: Vec<f32> = (0..30).map(|at| (at % 3 + 1) as f32).collect();
        points.set_weights(&weights);
        let bounds = SearchBounds { min_centres: 3, max_centres: 5, candidates_max: u64::MAX };
        let search = CentreSearch::search_centres(&mut points, bounds, &mut random);
        points.check_assignment(&search).unwrap();
        assert!((3..=5).contains(&search.centre_count), "{}", search.centre_count);
        let (mut centres, mut sums) = (Vec::new(), Vec::new());
        points.collect_centres(&mut centres, &mut sums);
        assert_eq!((sums.len(), centres.len()), (search.centre_count, 2 * search.centre_count));
        assert_eq!(sums.iter().sum::<f32>(), 60.0);
    }
}
