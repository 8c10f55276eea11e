//! Particles, the quadtree of boxes over them, and the fields by a traversal of the tree against itself.

use pagelab_model::Bytes;

use super::series::{Binomials, Complex, ComplexPair};

/// A particle: x, y, charge, and both parts of the field at its place.
pub type Particle = [f64; 5];

/// Levels of boxes at the most. Particles that are still together are summed directly.
const LEVELS_MAX: u32 = 24;

/// A particle at rest.
pub fn new_particle(position: Complex, charge: f64) -> Particle {
    [position.re, position.im, charge, 0.0, 0.0]
}

fn particle_position(particle: &Particle) -> Complex {
    Complex::new(particle[0], particle[1])
}

/// The field at a particle.
pub fn particle_field(particle: &Particle) -> Complex {
    Complex::new(particle[3], particle[4])
}

fn add_field(particle: &mut Particle, field: Complex) {
    particle[3] += field.re;
    particle[4] += field.im;
}

/// The field of one particle at a place that is not its own; 0 at its own.
fn field_of_charge(source: &Particle, position: Complex) -> Complex {
    let away = position - particle_position(source);
    let square = away.norm_squared();
    if square == 0.0 { Complex::default() } else { Complex::new(away.re, -away.im) * (source[2] / square) }
}

/// The field at one particle, summed over all others.
pub fn sum_field_at(particles: &[Particle], position: usize) -> Complex {
    let here = particle_position(&particles[position]);
    let mut sum = Complex::default();
    particles.iter().for_each(|source| sum += field_of_charge(source, here));
    sum
}

/// A square, and which particles are in it.
#[derive(Clone, Copy, Debug)]
struct BoxNode {
    centre: Complex,
    half_side: f64,
    /// Its first place in the list of particles.
    first_particle: u32,
    /// Particles in it: at least one.
    particle_count: u32,
    /// Its first child; children are adjacent.
    first_child: u32,
    /// Children that have particles: 0 of a leaf.
    child_count: u32,
}

impl BoxNode {
    fn particle_range(&self) -> std::ops::Range<usize> {
        self.first_particle as usize..(self.first_particle + self.particle_count) as usize
    }

    fn child_range(&self) -> std::ops::Range<usize> {
        self.first_child as usize..(self.first_child + self.child_count) as usize
    }
}

/// The boxes; a box comes before its children.
#[derive(Debug)]
pub struct BoxTree {
    nodes: Vec<BoxNode>,
}

/// Result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCounts {
    /// Pairs of particles that were summed directly.
    pub direct_pairs: u64,
    /// Outer expansions that were turned into inner ones.
    pub translations: u64,
}

impl BoxTree {
    /// Divides the unit square into quarters until no box has more than `leaf_particles_max` particles.
    /// `order` gets the numbers of the particles, box by box; the particles stay where they are.
    pub fn build(particles: &[Particle], order: &mut [u32], leaf_particles_max: u32) -> BoxTree {
        for (at, number) in (0..).zip(order.iter_mut()) {
            *number = at;
        }
        let (centre, half_side, particle_count) = (Complex::new(0.5, 0.5), 0.5, particles.len() as u32);
        let mut nodes = vec![BoxNode {
            centre,
            half_side,
            first_particle: 0,
            particle_count,
            first_child: 0,
            child_count: 0,
        }];
        let (mut at, mut level_end) = (0, 1);
        for _ in 0..LEVELS_MAX {
            while at < level_end {
                if nodes[at].particle_count > leaf_particles_max {
                    divide_box(&mut nodes, at, particles, order);
                }
                at += 1;
            }
            level_end = nodes.len();
        }
        BoxTree { nodes }
    }

    /// How many boxes there are.
    pub fn box_count(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of the boxes without their expansions.
    pub fn box_bytes(&self) -> Bytes {
        Bytes(size_of_val(self.nodes.as_slice()) as u64)
    }

    /// Computes the field at every particle. `expansions` is zero, and has room for two expansions a box.
    pub fn compute_fields(
        &mut self,
        particles: &mut [Particle],
        order: &[u32],
        expansions: &mut [f64],
        binomials: &Binomials,
    ) -> WorkCounts {
        let expansions = expansions.as_chunks_mut::<2>().0;
        let (outer, inner) = expansions.split_at_mut(self.nodes.len() * binomials.term_count());
        self.gather_outer(particles, order, outer, binomials);
        let counts = self.traverse_pairs(particles, order, outer, inner, binomials);
        self.spread_inner(particles, order, inner, binomials);
        counts
    }

    /// Outer expansions from the leaves up.
    fn gather_outer(
        &self,
        particles: &[Particle],
        order: &[u32],
        outer: &mut [ComplexPair],
        binomials: &Binomials,
    ) {
        let terms = binomials.term_count();
        for (node_index, node) in self.nodes.iter().enumerate().rev() {
            if node.child_count == 0 {
                for &number in &order[node.particle_range()] {
                    let particle = &particles[number as usize];
                    let outer = &mut outer[node_index * terms..][..terms];
                    binomials.add_charge(outer, particle_position(particle) - node.centre, particle[2]);
                }
            }
            for child in node.child_range() {
                let (above, below) = outer.split_at_mut(child * terms);
                let by = self.nodes[child].centre - node.centre;
                binomials.add_outer(&mut above[node_index * terms..][..terms], &below[..terms], by);
            }
        }
    }

    /// Every pair of boxes: by expansion where they are far from each other, directly where both are leaves,
    /// else by the children of the larger one.
    fn traverse_pairs(
        &self,
        particles: &mut [Particle],
        order: &[u32],
        outer: &[ComplexPair],
        inner: &mut [ComplexPair],
        binomials: &Binomials,
    ) -> WorkCounts {
        let terms = binomials.term_count();
        let mut counts = WorkCounts::default();
        let mut pairs = vec![(0, 0)];
        while let Some((target, source)) = pairs.pop() {
            let (target_node, source_node) = (&self.nodes[target], &self.nodes[source]);
            let away = target_node.centre - source_node.centre;
            // The radii of both, half a diagonal each, are together at most half of the distance.
            if 8.0
                * (target_node.half_side + source_node.half_side)
                * (target_node.half_side + source_node.half_side)
                <= away.norm_squared()
            {
                let inner = &mut inner[target * terms..][..terms];
                binomials.add_outer_as_inner(inner, &outer[source * terms..][..terms], away);
                counts.translations += 1;
            } else if target_node.child_count == 0 && source_node.child_count == 0 {
                counts.direct_pairs +=
                    u64::from(target_node.particle_count) * u64::from(source_node.particle_count);
                sum_directly(
                    particles,
                    &order[target_node.particle_range()],
                    &order[source_node.particle_range()],
                );
            } else if target_node.child_count == 0
                || source_node.child_count > 0 && source_node.half_side > target_node.half_side
            {
                pairs.extend(source_node.child_range().map(|child| (target, child)));
            } else {
                pairs.extend(target_node.child_range().map(|child| (child, source)));
            }
        }
        counts
    }

    /// Inner expansions from the root down, and the fields that they say.
    fn spread_inner(
        &self,
        particles: &mut [Particle],
        order: &[u32],
        inner: &mut [ComplexPair],
        binomials: &Binomials,
    ) {
        let terms = binomials.term_count();
        for (node_index, node) in self.nodes.iter().enumerate() {
            for child in node.child_range() {
                let (above, below) = inner.split_at_mut(child * terms);
                let by = self.nodes[child].centre - node.centre;
                binomials.add_inner(&mut below[..terms], &above[node_index * terms..][..terms], by);
            }
            if node.child_count == 0 {
                for &number in &order[node.particle_range()] {
                    let particle = &mut particles[number as usize];
                    let position = particle_position(particle) - node.centre;
                    add_field(
                        particle,
                        binomials.evaluate_inner(&inner[node_index * terms..][..terms], position),
                    );
                }
            }
        }
    }
}

/// Adds to the targets the fields of the sources; a particle has none on itself.
fn sum_directly(particles: &mut [Particle], targets: &[u32], sources: &[u32]) {
    for &target in targets {
        let here = particle_position(&particles[target as usize]);
        let mut sum = Complex::default();
        for &source in sources {
            sum += field_of_charge(&particles[source as usize], here);
        }
        add_field(&mut particles[target as usize], sum);
    }
}

/// Divides a box into the quarters that have particles.
fn divide_box(nodes: &mut Vec<BoxNode>, node_index: usize, particles: &[Particle], order: &mut [u32]) {
    let node = nodes[node_index];
    let coordinate = |number: u32, axis: usize| particles[number as usize][axis];
    let all = &mut order[node.particle_range()];
    let middle = partition_indices(all, |number| coordinate(number, 1) < node.centre.im);
    let (low, high) = all.split_at_mut(middle);
    let [left_low, left_high] =
        [low, high].map(|half| partition_indices(half, |number| coordinate(number, 0) < node.centre.re));
    let ends = [0, left_low, middle, middle + left_high, node.particle_count as usize];
    let quarter = node.half_side / 2.0;
    nodes[node_index].first_child = nodes.len() as u32;
    for (position, ends) in ends.windows(2).enumerate().filter(|(_, ends)| ends[0] < ends[1]) {
        let sign = |is_high: bool| if is_high { quarter } else { -quarter };
        let by = Complex::new(sign(position % 2 == 1), sign(position / 2 == 1));
        nodes.push(BoxNode {
            centre: node.centre + by,
            half_side: quarter,
            first_particle: node.first_particle + ends[0] as u32,
            particle_count: (ends[1] - ends[0]) as u32,
            first_child: 0,
            child_count: 0,
        });
        nodes[node_index].child_count += 1;
    }
}

/// Brings those that are low to the front; how many they are.
fn partition_indices(numbers: &mut [u32], is_low: impl Fn(u32) -> bool) -> usize {
    let mut low = 0;
    for at in 0..numbers.len() {
        if is_low(numbers[at]) {
            numbers.swap(low, at);
            low += 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use pagelab_model::random::SplitMix64;

    use super::*;

    fn random_particles(count: usize) -> Vec<Particle> {
        let mut random = SplitMix64::new(4);
        let mut unit = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        (0..count).map(|_| new_particle(Complex::new(unit(), unit() * 0.3), 1.0)).collect()
    }

    #[test]
    fn every_particle_is_in_its_boxes() {
        let particles = random_particles(500);
        let mut order = vec![0; 500];
        let tree = BoxTree::build(&particles, &mut order, 7);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..500), "the list has each particle once");
        for (node_index, node) in tree.nodes.iter().enumerate() {
            for &number in &order[node.particle_range()] {
                let away = particle_position(&particles[number as usize]) - node.centre;
                assert!(away.re.abs() <= node.half_side && away.im.abs() <= node.half_side);
            }
            let inside: u32 = tree.nodes[node.child_range()].iter().map(|child| child.particle_count).sum();
            assert!(node.child_count == 0 && node.particle_count <= 7 || inside == node.particle_count);
            assert!(node.child_count == 0 || node.first_child as usize > node_index);
        }
    }

    #[test]
    fn particles_at_one_place_are_not_divided_for_ever() {
        let mut particles = vec![new_particle(Complex::new(0.3, 0.3), 1.0); 50];
        particles.push(new_particle(Complex::new(0.8, 0.8), 2.0));
        let mut order = vec![0; 51];
        let mut tree = BoxTree::build(&particles, &mut order, 4);
        assert!(tree.box_count() <= 2 * LEVELS_MAX as usize + 2);
        let binomials = Binomials::new(20);
        let mut expansions = vec![0.0; tree.box_count() * 2 * 20 * 2];
        tree.compute_fields(&mut particles, &order, &mut expansions, &binomials);
        for at in [0, 50] {
            let (found, exact) = (particle_field(&particles[at]), sum_field_at(&particles, at));
            assert!((found - exact).norm_squared() < 1e-12 * exact.norm_squared(), "{found:?} {exact:?}");
        }
    }
}
