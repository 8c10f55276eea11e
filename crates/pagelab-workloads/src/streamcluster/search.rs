//! Local search for centres: a quick first choice, then candidates one by one, each opened if that saves.

use pagelab_model::seed::SplitMix64;

/// A point in the order in which points are visited: where its row is, the record of its centre (its own, if
/// it is one), what it costs there, its weight, and of a centre its place in the list of those that are open.
type Record = [u32; 5];
const ROW: usize = 0;
const CENTRE: usize = 1;
const COST: usize = 2;
const WEIGHT: usize = 3;
const SLOT: usize = 4;

/// Bytes of a record.
pub const BYTES_PER_RECORD: u64 = size_of::<Record>() as u64;

/// What a search is held to.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The fewest centres.
    pub least: usize,
    /// The most centres.
    pub most: usize,
    /// The most candidates that are valued.
    pub candidates: u64,
}

/// Points, their order, and which centre each belongs to.
pub struct Points<'a> {
    rows: &'a [f32],
    dimensions: usize,
    records: &'a mut [Record],
}

impl<'a> Points<'a> {
    /// Points of weight 1 in the order of their rows. `records` has five words for each.
    pub fn new(rows: &'a [f32], records: &'a mut [u32], dimensions: usize) -> Points<'a> {
        let records = &mut records.as_chunks_mut().0[..rows.len() / dimensions];
        for (at, record) in (0..).zip(records.iter_mut()) {
            *record = [at, at, 0, 1f32.to_bits(), 0];
        }
        Points { rows, dimensions, records }
    }

    /// Gives each point a weight.
    pub fn set_weights(&mut self, weights: &[f32]) {
        for (record, weight) in self.records.iter_mut().zip(weights) {
            record[WEIGHT] = weight.to_bits();
        }
    }

    /// The row of a point.
    fn row(&self, at: usize) -> &[f32] {
        &self.rows[self.records[at][ROW] as usize * self.dimensions..][..self.dimensions]
    }

    fn cost(&self, at: usize) -> f32 {
        f32::from_bits(self.records[at][COST])
    }

    /// What a point would cost at a centre.
    fn cost_at(&self, at: usize, centre: usize) -> f32 {
        distance(self.row(at), self.row(centre)) * f32::from_bits(self.records[at][WEIGHT])
    }

    fn is_centre(&self, at: usize) -> bool {
        self.records[at][CENTRE] as usize == at
    }

    fn assign(&mut self, at: usize, centre: usize, cost: f32) {
        self.records[at][CENTRE] = centre as u32;
        self.records[at][COST] = cost.to_bits();
    }

    /// The sum of what all points cost.
    pub fn assignment_cost(&self) -> f64 {
        (0..self.records.len()).map(|at| f64::from(self.cost(at))).sum()
    }

    /// Appends the rows of the centres, and the weights of the points that belong to each.
    pub fn collect_centres(&self, rows: &mut Vec<f32>, weights: &mut Vec<f32>) {
        let first = weights.len();
        let mut place = vec![usize::MAX; self.records.len()];
        for at in (0..self.records.len()).filter(|&at| self.is_centre(at)) {
            place[at] = weights.len();
            weights.push(0.0);
            rows.extend_from_slice(self.row(at));
        }
        for record in self.records.iter() {
            weights[place[record[CENTRE] as usize]] += f32::from_bits(record[WEIGHT]);
        }
        debug_assert!(weights.len() > first);
    }

    /// Holds what was kept in step against what is counted anew: each point belongs to an open centre and
    /// costs what its distance says, and the sum is what the search says.
    pub fn check(&self, search: &Search) -> Result<(), String> {
        let mut is_seen = vec![false; self.records.len()];
        for (at, record) in self.records.iter().enumerate() {
            let centre = record[CENTRE] as usize;
            if !self.is_centre(centre) {
                return Err(format!("point {at} belongs to point {centre}, which is no centre"));
            }
            let cost = self.cost_at(at, centre);
            if cost.to_bits() != record[COST] {
                return Err(format!("point {at} costs {}, counted anew {cost}", self.cost(at)));
            }
            if std::mem::replace(&mut is_seen[record[ROW] as usize], true) {
                return Err(format!("row {} belongs to two points", record[ROW]));
            }
        }
        let centres = (0..self.records.len()).filter(|&at| self.is_centre(at)).count();
        let again = self.assignment_cost() + search.facility * centres as f64;
        let is_near = (again - search.cost).abs() <= 1e-6 * again.max(f64::MIN_POSITIVE);
        match (centres == search.centres, is_near) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("{} centres were kept, {centres} are open", search.centres)),
            _ => Err(format!("the cost kept in step is {}, counted anew {again}", search.cost)),
        }
    }

    /// Who belongs to whom, as one number.
    pub fn digest(&self) -> u64 {
        let words = self.records.iter().flat_map(|record| [record[ROW], record[CENTRE], record[COST]]);
        words.fold(0, |sum, word| (sum ^ u64::from(word)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    fn shuffle(&mut self, random: &mut SplitMix64) {
        for at in (1..self.records.len()).rev() {
            self.records.swap(at, random.below(at as u64 + 1) as usize);
        }
    }
}

/// Squared distance, in sixteen lanes that are added up in a fixed order: a loop that vectors of any width
/// can do, with the same result.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            let difference = a[lane] - b[lane];
            lanes[lane] += difference * difference;
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| (a - b) * (a - b));
    rest.fold(lanes[0], |sum, square| sum + square)
}

/// A search, and what it came to.
#[derive(Debug)]
pub struct Search {
    /// What an open centre costs.
    pub facility: f64,
    /// Of all points and open centres.
    pub cost: f64,
    /// Open centres.
    pub centres: usize,
    /// Candidates that were valued.
    pub candidates: u64,
    /// Distances that were computed.
    pub distances: u64,
    /// Records of the open centres.
    open: Vec<usize>,
    /// For each point whether it is nearer to the candidate, while one is valued.
    switches: Vec<bool>,
}

/// Rounds without end are cut off: a facility cost that was halved so often is 0.
const HALVINGS: usize = 64;
/// Part of the cost that a round of candidates must save, for another to follow: first, and near the bounds.
const SAVES: [f64; 2] = [0.1, 0.001];

impl Search {
    /// Searches for centres within the bounds, as far as the candidates reach.
    pub fn run(points: &mut Points<'_>, bounds: Bounds, random: &mut SplitMix64) -> Search {
        points.shuffle(random);
        let count = points.records.len();
        let mut search = Search::new(count);
        let mut high: f64 = (0..count).map(|at| f64::from(points.cost_at(at, 0))).sum();
        search.distances += count as u64;
        let mut low = 0.0;
        search.facility = high / 2.0;
        search.open_quickly(points, random);
        for _ in 0..HALVINGS {
            if search.open.len() >= bounds.least.min(count) {
                break;
            }
            high = search.facility;
            search.facility /= 2.0;
            search.open_quickly(points, random);
        }
        let mut feasible = feasible(points, bounds.least, random);
        loop {
            search.improve(points, &mut feasible, bounds, SAVES[0], random);
            let centres = search.open.len();
            if centres <= bounds.most + 2 && centres + 2 >= bounds.least {
                search.improve(points, &mut feasible, bounds, SAVES[1], random);
            }
            let centres = search.open.len();
            if centres > bounds.most {
                low = search.facility;
            } else if centres < bounds.least {
                high = search.facility;
            } else {
                break;
            }
            if low >= 0.999 * high || search.candidates >= bounds.candidates {
                break;
            }
            search.cost += (f64::midpoint(low, high) - search.facility) * centres as f64;
            search.facility = f64::midpoint(low, high);
        }
        search.centres = search.open.len();
        search
    }

    fn new(count: usize) -> Search {
        let (facility, cost, centres, candidates, distances) = (0.0, 0.0, 0, 0, 0);
        let switches = vec![false; count];
        Search { facility, cost, centres, candidates, distances, open: Vec::new(), switches }
    }

    /// The first choice: each point in turn becomes a centre with a probability that is what it costs so far,
    /// in facilities (Meyerson's online facility location).
    fn open_quickly(&mut self, points: &mut Points<'_>, random: &mut SplitMix64) {
        self.open.clear();
        for candidate in 0..points.records.len() {
            let chance = (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
            let is_opened = candidate == 0 || chance * self.facility < f64::from(points.cost(candidate));
            if !is_opened {
                continue;
            }
            let is_first = self.open.is_empty();
            for at in 0..points.records.len() {
                let cost = points.cost_at(at, candidate);
                if is_first || cost < points.cost(at) || at == candidate {
                    points.assign(at, candidate, cost);
                }
            }
            self.distances += points.records.len() as u64;
            self.open.push(candidate);
        }
        self.number_open(points);
        self.cost = points.assignment_cost() + self.facility * self.open.len() as f64;
    }

    /// Forgets centres that were closed, and tells each of the others its place.
    fn number_open(&mut self, points: &mut Points<'_>) {
        self.open.retain(|&centre| points.is_centre(centre));
        for (slot, &centre) in (0..).zip(&self.open) {
            points.records[centre][SLOT] = slot;
        }
    }

    /// Rounds of candidates, until a round saves less than this part of the cost.
    fn improve(
        &mut self,
        points: &mut Points<'_>,
        feasible: &mut [usize],
        bounds: Bounds,
        saves: f64,
        random: &mut SplitMix64,
    ) {
        let round = 3 * bounds.most * bounds.most.max(2).ilog2() as usize;
        loop {
            for at in (1..feasible.len()).rev() {
                feasible.swap(at, random.below(at as u64 + 1) as usize);
            }
            let before = self.cost;
            for turn in 0..round {
                if self.candidates >= bounds.candidates {
                    return;
                }
                self.consider(points, feasible[turn % feasible.len()]);
            }
            if before - self.cost <= saves * self.cost {
                return;
            }
        }
    }

    /// Values a candidate: open it, give it every point that is nearer to it than to its centre, close every
    /// centre whose other points cost less there than the centre itself. Does so if that saves.
    fn consider(&mut self, points: &mut Points<'_>, candidate: usize) {
        let was_centre = points.is_centre(candidate);
        let mut change = if was_centre { 0.0 } else { self.facility };
        // What is saved by closing each centre.
        let mut saved = vec![self.facility; self.open.len()];
        for at in 0..points.records.len() {
            let (cost, there) = (points.cost(at), points.cost_at(at, candidate));
            let difference = f64::from(there) - f64::from(cost);
            self.switches[at] = there < cost;
            if there < cost {
                change += difference;
            } else {
                let centre = points.records[at][CENTRE] as usize;
                saved[points.records[centre][SLOT] as usize] -= difference;
            }
        }
        if was_centre {
            saved[points.records[candidate][SLOT] as usize] = 0.0;
        }
        change -= saved.iter().filter(|&&saved| saved > 0.0).sum::<f64>();
        self.candidates += 1;
        self.distances += points.records.len() as u64;
        if change >= 0.0 {
            return;
        }
        for at in 0..points.records.len() {
            let slot = points.records[points.records[at][CENTRE] as usize][SLOT] as usize;
            if self.switches[at] || saved[slot] > 0.0 || at == candidate {
                let cost = points.cost_at(at, candidate);
                points.assign(at, candidate, cost);
                self.distances += 1;
            }
        }
        if !was_centre {
            self.open.push(candidate);
        }
        self.number_open(points);
        self.cost += change;
    }
}

/// Points that may become centres: so many that each good place has one among them in all likelihood, drawn
/// by weight.
fn feasible(points: &Points<'_>, least: usize, random: &mut SplitMix64) -> Vec<usize> {
    let count = points.records.len();
    let wanted = 3 * least.max(2) * (least.max(2).ilog2() as usize + 1);
    if wanted >= count {
        return (0..count).collect();
    }
    let mut sum = 0.0;
    let sums: Vec<f64> = (points.records.iter())
        .map(|record| {
            sum += f64::from(f32::from_bits(record[WEIGHT]));
            sum
        })
        .collect();
    let draw = |_| {
        let wanted = (random.draw() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        sums.partition_point(|&sum| sum <= wanted).min(count - 1)
    };
    (0..wanted).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points on a plane, some of them twice.
    fn rows(count: usize, random: &mut SplitMix64) -> Vec<f32> {
        (0..2 * count).map(|_| random.below(20) as f32).collect()
    }

    /// The least cost of all choices of centres.
    fn least(points: &Points<'_>, facility: f64) -> f64 {
        let count = points.records.len();
        let cost = |chosen: u32| -> f64 {
            let nearest = |at: usize| {
                let open = (0..count).filter(|centre| chosen >> centre & 1 == 1);
                open.map(|centre| f64::from(points.cost_at(at, centre))).fold(f64::INFINITY, f64::min)
            };
            (0..count).map(nearest).sum::<f64>() + facility * f64::from(chosen.count_ones())
        };
        (1..1u32 << count).map(cost).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn distances_are_sums_of_squares() {
        let mut random = SplitMix64::new(1);
        for length in [1, 2, 15, 16, 17, 48, 128, 130] {
            let [a, b] = [0; 2]
                .map(|_| -> Vec<f32> { (0..length).map(|_| random.below(1000) as f32 / 1000.0).collect() });
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
            assert!((f64::from(distance(&a, &b)) - exact).abs() <= 1e-5 * exact.max(1e-9), "{length}");
            assert_eq!(distance(&a, &b), distance(&b, &a));
        }
    }

    #[test]
    fn each_candidate_saves_what_is_said() {
        let mut random = SplitMix64::new(5);
        for facility in [0.0, 5.0, 40.0, 1000.0] {
            let rows = rows(40, &mut random);
            let mut words = vec![0; 200];
            let mut points = Points::new(&rows, &mut words, 2);
            let mut search = Search::new(40);
            search.facility = facility;
            search.open_quickly(&mut points, &mut random);
            for _ in 0..100 {
                let before = search.cost;
                search.consider(&mut points, random.below(40) as usize);
                search.centres = search.open.len();
                points.check(&search).unwrap();
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
            let mut points = Points::new(&rows, &mut words, 2);
            let mut search = Search::new(8);
            search.facility = 60.0;
            let exact = least(&points, search.facility);
            search.open_quickly(&mut points, &mut random);
            let bounds = Bounds { least: 1, most: 8, candidates: u64::MAX };
            let mut all: Vec<usize> = (0..8).collect();
            search.improve(&mut points, &mut all, bounds, 0.0, &mut random);
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
        let mut points = Points::new(&rows, &mut words, 2);
        let weights: Vec<f32> = (0..30).map(|at| (at % 3 + 1) as f32).collect();
        points.set_weights(&weights);
        let bounds = Bounds { least: 3, most: 5, candidates: u64::MAX };
        let search = Search::run(&mut points, bounds, &mut random);
        points.check(&search).unwrap();
        assert!((3..=5).contains(&search.centres), "{}", search.centres);
        let (mut centres, mut sums) = (Vec::new(), Vec::new());
        points.collect_centres(&mut centres, &mut sums);
        assert_eq!((sums.len(), centres.len()), (search.centres, 2 * search.centres));
        assert_eq!(sums.iter().sum::<f32>(), 60.0);
    }
}
