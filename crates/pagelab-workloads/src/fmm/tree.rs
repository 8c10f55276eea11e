//! Particles, the quadtree of boxes over them, and the fields by a traversal of the tree against itself.

use pagelab_model::Bytes;

use super::complex::{Complex, Pair};
use super::expansion::Binomials;

/// A particle: x, y, charge, and both parts of the field at its place.
pub type Particle = [f64; 5];

/// Levels of boxes at the most. Particles that are still together are summed directly.
const LEVELS_MAX: u32 = 24;

/// A particle at rest.
pub fn particle(place: Complex, charge: f64) -> Particle {
    [place.re, place.im, charge, 0.0, 0.0]
}

fn place(particle: &Particle) -> Complex {
    Complex::new(particle[0], particle[1])
}

/// The field at a particle.
pub fn field(particle: &Particle) -> Complex {
    Complex::new(particle[3], particle[4])
}

fn add_field(particle: &mut Particle, field: Complex) {
    particle[3] += field.re;
    particle[4] += field.im;
}

/// The field of one particle at a place that is not its own; 0 at its own.
fn field_of(source: &Particle, at: Complex) -> Complex {
    let away = at - place(source);
    let square = away.square();
    if square == 0.0 { Complex::default() } else { Complex::new(away.re, -away.im) * (source[2] / square) }
}

/// The field at one particle, summed over all others.
pub fn direct(particles: &[Particle], at: usize) -> Complex {
    let here = place(&particles[at]);
    let mut sum = Complex::default();
    particles.iter().for_each(|source| sum += field_of(source, here));
    sum
}

/// A square, and which particles are in it.
#[derive(Clone, Copy, Debug)]
struct Node {
    centre: Complex,
    /// Half of its side.
    half: f64,
    /// Its first place in the list of particles.
    first: u32,
    /// Particles in it: at least one.
    count: u32,
    /// Its first child; children lie side by side.
    child: u32,
    /// Children that have particles: 0 of a leaf.
    children: u32,
}

impl Node {
    fn particles(&self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }

    fn children(&self) -> std::ops::Range<usize> {
        self.child as usize..(self.child + self.children) as usize
    }
}

/// The boxes; a box comes before its children.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

/// What was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pairs of particles that were summed directly.
    pub pairs: u64,
    /// Outer expansions that were turned into inner ones.
    pub translations: u64,
}

impl Tree {
    /// Divides the unit square into quarters until no box has more than `leaf` particles. `order` gets the
    /// numbers of the particles, box by box; the particles stay where they are.
    pub fn build(particles: &[Particle], order: &mut [u32], leaf: u32) -> Tree {
        for (at, number) in (0..).zip(order.iter_mut()) {
            *number = at;
        }
        let (centre, half, count) = (Complex::new(0.5, 0.5), 0.5, particles.len() as u32);
        let mut nodes = vec![Node { centre, half, first: 0, count, child: 0, children: 0 }];
        let (mut at, mut level_end) = (0, 1);
        for _ in 0..LEVELS_MAX {
            while at < level_end {
                if nodes[at].count > leaf {
                    divide(&mut nodes, at, particles, order);
                }
                at += 1;
            }
            level_end = nodes.len();
        }
        Tree { nodes }
    }

    /// How many boxes there are.
    pub fn boxes(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of the boxes without their expansions.
    pub fn size(&self) -> Bytes {
        Bytes(size_of_val(self.nodes.as_slice()) as u64)
    }

    /// Computes the field at every particle. `expansions` is zero, and has room for two expansions a box.
    pub fn fields(
        &mut self,
        particles: &mut [Particle],
        order: &[u32],
        expansions: &mut [f64],
        binomials: &Binomials,
    ) -> Work {
        let expansions = expansions.as_chunks_mut::<2>().0;
        let (outer, inner) = expansions.split_at_mut(self.nodes.len() * binomials.terms());
        self.gather(particles, order, outer, binomials);
        let work = self.traverse(particles, order, outer, inner, binomials);
        self.spread(particles, order, inner, binomials);
        work
    }

    /// Outer expansions from the leaves up.
    fn gather(&self, particles: &[Particle], order: &[u32], outer: &mut [Pair], binomials: &Binomials) {
        let terms = binomials.terms();
        for (at, node) in self.nodes.iter().enumerate().rev() {
            if node.children == 0 {
                for &number in &order[node.particles()] {
                    let particle = &particles[number as usize];
                    let outer = &mut outer[at * terms..][..terms];
                    binomials.add_charge(outer, place(particle) - node.centre, particle[2]);
                }
            }
            for child in node.children() {
                let (above, below) = outer.split_at_mut(child * terms);
                let by = self.nodes[child].centre - node.centre;
                binomials.add_outer(&mut above[at * terms..][..terms], &below[..terms], by);
            }
        }
    }

    /// Every pair of boxes: by expansion where they are far from each other, directly where both are leaves,
    /// else by the children of the larger one.
    fn traverse(
        &self,
        particles: &mut [Particle],
        order: &[u32],
        outer: &[Pair],
        inner: &mut [Pair],
        binomials: &Binomials,
    ) -> Work {
        let terms = binomials.terms();
        let mut work = Work::default();
        let mut pairs = vec![(0, 0)];
        while let Some((target, source)) = pairs.pop() {
            let (to, from) = (&self.nodes[target], &self.nodes[source]);
            let away = to.centre - from.centre;
            // The radii of both, half a diagonal each, are together at most half of the distance.
            if 8.0 * (to.half + from.half) * (to.half + from.half) <= away.square() {
                let inner = &mut inner[target * terms..][..terms];
                binomials.add_inner_of_outer(inner, &outer[source * terms..][..terms], away);
                work.translations += 1;
            } else if to.children == 0 && from.children == 0 {
                work.pairs += u64::from(to.count) * u64::from(from.count);
                sum_directly(particles, &order[to.particles()], &order[from.particles()]);
            } else if to.children == 0 || from.children > 0 && from.half > to.half {
                pairs.extend(from.children().map(|child| (target, child)));
            } else {
                pairs.extend(to.children().map(|child| (child, source)));
            }
        }
        work
    }

    /// Inner expansions from the root down, and the fields that they say.
    fn spread(&self, particles: &mut [Particle], order: &[u32], inner: &mut [Pair], binomials: &Binomials) {
        let terms = binomials.terms();
        for (at, node) in self.nodes.iter().enumerate() {
            for child in node.children() {
                let (above, below) = inner.split_at_mut(child * terms);
                let by = self.nodes[child].centre - node.centre;
                binomials.add_inner(&mut below[..terms], &above[at * terms..][..terms], by);
            }
            if node.children == 0 {
                for &number in &order[node.particles()] {
                    let particle = &mut particles[number as usize];
                    let place = place(particle) - node.centre;
                    add_field(particle, binomials.at(&inner[at * terms..][..terms], place));
                }
            }
        }
    }
}

/// Adds to the targets the fields of the sources; a particle has none on itself.
fn sum_directly(particles: &mut [Particle], targets: &[u32], sources: &[u32]) {
    for &target in targets {
        let here = place(&particles[target as usize]);
        let mut sum = Complex::default();
        for &source in sources {
            sum += field_of(&particles[source as usize], here);
        }
        add_field(&mut particles[target as usize], sum);
    }
}

/// Divides a box into the quarters that have particles.
fn divide(nodes: &mut Vec<Node>, at: usize, particles: &[Particle], order: &mut [u32]) {
    let node = nodes[at];
    let coordinate = |number: u32, axis: usize| particles[number as usize][axis];
    let all = &mut order[node.particles()];
    let middle = partition(all, |number| coordinate(number, 1) < node.centre.im);
    let (low, high) = all.split_at_mut(middle);
    let [left_low, left_high] =
        [low, high].map(|half| partition(half, |number| coordinate(number, 0) < node.centre.re));
    let ends = [0, left_low, middle, middle + left_high, node.count as usize];
    let quarter = node.half / 2.0;
    nodes[at].child = nodes.len() as u32;
    for (place, ends) in ends.windows(2).enumerate().filter(|(_, ends)| ends[0] < ends[1]) {
        let sign = |is_high: bool| if is_high { quarter } else { -quarter };
        let by = Complex::new(sign(place % 2 == 1), sign(place / 2 == 1));
        nodes.push(Node {
            centre: node.centre + by,
            half: quarter,
            first: node.first + ends[0] as u32,
            count: (ends[1] - ends[0]) as u32,
            child: 0,
            children: 0,
        });
        nodes[at].children += 1;
    }
}

/// Brings those that are low to the front; how many they are.
fn partition(numbers: &mut [u32], is_low: impl Fn(u32) -> bool) -> usize {
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
    use pagelab_model::seed::SplitMix64;

    use super::*;

    fn drawn(count: usize) -> Vec<Particle> {
        let mut random = SplitMix64::new(4);
        let mut unit = || (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
        (0..count).map(|_| particle(Complex::new(unit(), unit() * 0.3), 1.0)).collect()
    }

    #[test]
    fn every_particle_is_in_its_boxes() {
        let particles = drawn(500);
        let mut order = vec![0; 500];
        let tree = Tree::build(&particles, &mut order, 7);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..500), "the list has each particle once");
        for (at, node) in tree.nodes.iter().enumerate() {
            for &number in &order[node.particles()] {
                let away = place(&particles[number as usize]) - node.centre;
                assert!(away.re.abs() <= node.half && away.im.abs() <= node.half);
            }
            let inside: u32 = tree.nodes[node.children()].iter().map(|child| child.count).sum();
            assert!(node.children == 0 && node.count <= 7 || inside == node.count);
            assert!(node.children == 0 || node.child as usize > at);
        }
    }

    #[test]
    fn particles_at_one_place_are_not_divided_for_ever() {
        let mut particles = vec![particle(Complex::new(0.3, 0.3), 1.0); 50];
        particles.push(particle(Complex::new(0.8, 0.8), 2.0));
        let mut order = vec![0; 51];
        let mut tree = Tree::build(&particles, &mut order, 4);
        assert!(tree.boxes() <= 2 * LEVELS_MAX as usize + 2);
        let binomials = Binomials::new(20);
        let mut expansions = vec![0.0; tree.boxes() * 2 * 20 * 2];
        tree.fields(&mut particles, &order, &mut expansions, &binomials);
        for at in [0, 50] {
            let (found, exact) = (field(&particles[at]), direct(&particles, at));
            assert!((found - exact).square() < 1e-12 * exact.square(), "{found:?} {exact:?}");
        }
    }
}
