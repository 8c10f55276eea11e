//! The graph in compressed sparse rows, and the search with its check.

use pagelab_model::random::SplitMix64;

use crate::alias_table::AliasTable;

const NO_VERTEX: u32 = u32::MAX;

/// Shares of the quadrants a, b, c, d in hundredths.
const QUADRANT_PERCENTS: [u64; 4] = [57, 19, 19, 5];

/// Levels that one look at a table draws.
const LEVELS_PER_DRAW: u32 = 4;

/// The quadrants of a few levels as one draw: the bits of both ends, `from` in the upper half of the number.
fn quadrant_table(levels: u32) -> AliasTable {
    let outcomes = 0..1u32 << (2 * levels);
    let digit = |outcome: u32, level: u32| outcome >> (2 * level) & 3;
    let share =
        |outcome| (0..levels).map(|level| QUADRANT_PERCENTS[digit(outcome, level) as usize]).product();
    let bits = |outcome: u32| {
        (0..levels).fold(0, |bits, level| {
            let quadrant = digit(outcome, level);
            bits | (quadrant >> 1) << (level + 16) | (quadrant & 1) << level
        })
    };
    let shares: Vec<u64> = outcomes.clone().map(share).collect();
    AliasTable::new(&shares, &outcomes.map(bits).collect::<Vec<u32>>())
}

/// What the edges of an R-MAT graph are drawn from.
struct EdgeTables {
    seed: u64,
    scale: u32,
    /// For four levels, and for those that are left over.
    levels: [AliasTable; 2],
    scramble: [u32; 2],
}

impl EdgeTables {
    fn new(seed: u64, scale: u32) -> EdgeTables {
        let mut labels = SplitMix64::new(!seed);
        let scramble = [labels.next_u64() as u32 | 1, labels.next_u64() as u32 | 1];
        EdgeTables {
            seed,
            scale,
            levels: [quadrant_table(LEVELS_PER_DRAW), quadrant_table(scale % LEVELS_PER_DRAW)],
            scramble,
        }
    }

    /// This number of edges, in the order in which the seed draws them.
    fn generate(&self, count: u64) -> impl Iterator<Item = (u32, u32)> {
        let mut random = SplitMix64::new(self.seed);
        (0..count).map(move |_| {
            let (from, to) = self.draw_edge(&mut random);
            (self.scramble_label(from), self.scramble_label(to))
        })
    }

    /// An edge before its labels are scrambled.
    fn draw_edge(&self, random: &mut SplitMix64) -> (u32, u32) {
        let (whole, rest) = (self.scale / LEVELS_PER_DRAW, self.scale % LEVELS_PER_DRAW);
        let first = self.levels[1].sample(random.next_u64());
        let (mut from, mut to) = (first >> 16, first & ((1 << rest) - 1));
        for _ in 0..whole {
            let bits = self.levels[0].sample(random.next_u64());
            from = from << LEVELS_PER_DRAW | bits >> 16;
            to = to << LEVELS_PER_DRAW | bits & 0xffff;
        }
        (from, to)
    }

    /// A bijection of the labels: multiplications by odd numbers and a shift, modulo 2^scale.
    fn scramble_label(&self, vertex: u32) -> u32 {
        let mask = (1u32 << self.scale) - 1;
        let once = vertex.wrapping_mul(self.scramble[0]) & mask;
        let mixed = once ^ (once >> (self.scale / 2).max(1));
        mixed.wrapping_mul(self.scramble[1]) & mask
    }
}

/// Rows of neighbours, one after the other.
#[derive(Debug)]
pub struct Graph<'a> {
    /// Where the row of each vertex begins, and the end of the last.
    row_starts: &'a [u32],
    neighbours: &'a [u32],
}

impl<'a> Graph<'a> {
    /// Draws the edges twice: to count the neighbours of each vertex, and to put them into their rows. Each
    /// edge is in two rows; loops are in none. `scratch` has a word for each vertex at least.
    pub fn build(words: &'a mut [u32], scratch: &mut [u32], seed: u64, scale: u32, edges: u64) -> Graph<'a> {
        let vertices = 1usize << scale;
        let tables = EdgeTables::new(seed, scale);
        let total_edges = || tables.generate(edges << scale).filter(|(from, to)| from != to);
        let (row_starts, neighbours) = words.split_at_mut(vertices + 1);
        row_starts.fill(0);
        for (from, to) in total_edges() {
            row_starts[from as usize + 1] += 1;
            row_starts[to as usize + 1] += 1;
        }
        let mut sum = 0;
        for begin in row_starts.iter_mut() {
            sum += *begin;
            *begin = sum;
        }
        let next = &mut scratch[..vertices];
        next.copy_from_slice(&row_starts[..vertices]);
        for (from, to) in total_edges() {
            for (vertex, neighbour) in [(from, to), (to, from)] {
                neighbours[next[vertex as usize] as usize] = neighbour;
                next[vertex as usize] += 1;
            }
        }
        Graph { row_starts, neighbours: &neighbours[..sum as usize] }
    }

    /// Vertices, with and without edges.
    pub fn vertex_count(&self) -> usize {
        self.row_starts.len() - 1
    }

    /// Edges, each counted once.
    pub fn edge_count(&self) -> usize {
        self.neighbours.len() / 2
    }

    /// The neighbours of a vertex.
    #[inline]
    pub fn neighbours_of(&self, vertex: u32) -> &'a [u32] {
        let vertex = vertex as usize;
        &self.neighbours[self.row_starts[vertex] as usize..self.row_starts[vertex + 1] as usize]
    }
}

/// A search: its tree, and the vertices in the order in which they were found.
#[derive(Debug)]
pub struct BreadthFirstSearch<'a> {
    parents: &'a mut [u32],
    frontier: &'a mut [u32],
    levels: &'a mut [u32],
    found_count: usize,
}

impl<'a> BreadthFirstSearch<'a> {
    /// In three words for each vertex.
    pub fn new(words: &'a mut [u32], vertices: usize) -> BreadthFirstSearch<'a> {
        let (parents, rest) = words.split_at_mut(vertices);
        let (queue, rest) = rest.split_at_mut(vertices);
        BreadthFirstSearch { parents, frontier: queue, levels: &mut rest[..vertices], found_count: 0 }
    }

    /// Searches from a root, which is its own parent.
    pub fn search_from(&mut self, graph: &Graph<'_>, root: u32) {
        self.parents.fill(NO_VERTEX);
        self.parents[root as usize] = root;
        self.frontier[0] = root;
        let (mut next, mut found_count) = (0, 1);
        while next < found_count {
            let vertex = self.frontier[next];
            next += 1;
            for &neighbour in graph.neighbours_of(vertex) {
                let parent = &mut self.parents[neighbour as usize];
                if *parent == NO_VERTEX {
                    *parent = vertex;
                    self.frontier[found_count] = neighbour;
                    found_count += 1;
                }
            }
        }
        self.found_count = found_count;
    }

    /// Edges of the part of the graph that was reached.
    pub fn count_reached_edges(&self, graph: &Graph<'_>) -> u64 {
        self.frontier[..self.found_count]
            .iter()
            .map(|&vertex| graph.neighbours_of(vertex).len() as u64)
            .sum::<u64>()
            / 2
    }

    /// Of the tree.
    pub fn checksum(&self) -> u64 {
        let add = |sum: u64, parent: &u32| sum.rotate_left(5).wrapping_add(u64::from(*parent));
        self.parents.iter().fold(self.found_count as u64, add)
    }

    /// Graph500's validation: the parents are a tree, whose edges are edges of the graph and lead from one
    /// level to the next; no edge of the graph leads over more than one level, or out of the tree. Returns
    /// the deepest level.
    pub fn validate(&mut self, graph: &Graph<'_>) -> Result<u32, String> {
        let (parents, levels) = (&self.parents, &mut self.levels);
        levels.fill(NO_VERTEX);
        let root = self.frontier[0];
        levels[root as usize] = 0;
        let mut deepest = 0;
        for &vertex in &self.frontier[1..self.found_count] {
            // In the order in which they were found, a parent comes before its children.
            let level = levels.get(parents[vertex as usize] as usize).copied().unwrap_or(NO_VERTEX);
            if level == NO_VERTEX || levels[vertex as usize] != NO_VERTEX {
                return Err(format!("vertex {vertex} is found before its parent, or twice"));
            }
            levels[vertex as usize] = level + 1;
            deepest = level + 1;
        }
        if parents.iter().filter(|&&parent| parent != NO_VERTEX).count() != self.found_count {
            return Err("a vertex has a parent, but was not found".to_owned());
        }
        for vertex in 0..graph.vertex_count() as u32 {
            let level = levels[vertex as usize];
            let parent = parents[vertex as usize];
            let mut is_edge = parent == NO_VERTEX || vertex == root;
            for &neighbour in graph.neighbours_of(vertex) {
                let other = levels[neighbour as usize];
                if (level == NO_VERTEX) != (other == NO_VERTEX) || level.abs_diff(other) > 1 {
                    return Err(format!(
                        "the edge {vertex} to {neighbour} leads from level {level} to {other}"
                    ));
                }
                is_edge |= neighbour == parent;
            }
            if !is_edge {
                return Err(format!("{parent} is the parent of {vertex}, but no edge connects them"));
            }
        }
        Ok(deepest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distances by relaxing every edge until nothing changes.
    fn distances(edges: &[(u32, u32)], vertices: usize, root: u32) -> Vec<u32> {
        let mut distances = vec![NO_VERTEX; vertices];
        distances[root as usize] = 0;
        loop {
            let before = distances.clone();
            for &(a, b) in edges.iter().chain(&edges.iter().map(|&(a, b)| (b, a)).collect::<Vec<_>>()) {
                let over = distances[a as usize].saturating_add(1);
                distances[b as usize] = distances[b as usize].min(over);
            }
            if distances == before {
                return distances;
            }
        }
    }

    #[test]
    fn searches_find_the_shortest_ways() {
        for (seed, scale) in [(1, 4), (2, 6), (3, 8)] {
            let vertices = 1usize << scale;
            let tables = EdgeTables::new(seed, scale);
            let edges: Vec<(u32, u32)> =
                tables.generate(2 * vertices as u64).filter(|(a, b)| a != b).collect();
            let mut words = vec![7; vertices * 8];
            let mut rest = vec![9; vertices * 3];
            let graph = Graph::build(&mut words, &mut rest, seed, scale, 2);
            assert_eq!(graph.edge_count(), edges.len());
            let mut search = BreadthFirstSearch::new(&mut rest, vertices);
            for root in [0, 5, vertices as u32 - 1] {
                search.search_from(&graph, root);
                let deepest = search.validate(&graph).unwrap();
                let wanted = distances(&edges, vertices, root);
                assert_eq!(search.levels, wanted, "seed {seed} root {root}");
                let reached = wanted.iter().filter(|&&level| level != NO_VERTEX);
                assert_eq!(reached.clone().count(), search.found_count);
                assert_eq!(reached.max(), Some(&deepest));
                let inside = |&&(a, _): &&(u32, u32)| wanted[a as usize] != NO_VERTEX;
                assert_eq!(search.count_reached_edges(&graph), edges.iter().filter(inside).count() as u64);
            }
        }
    }

    #[test]
    fn a_wrong_tree_is_seen() {
        let (scale, vertices) = (6, 64);
        let mut words = vec![0; vertices * 40];
        let mut rest = vec![0; vertices * 3];
        let graph = Graph::build(&mut words, &mut rest, 1, scale, 16);
        let root = (0..64).find(|&vertex| graph.neighbours_of(vertex).len() > 2).unwrap();
        let mut search = BreadthFirstSearch::new(&mut rest, vertices);
        search.search_from(&graph, root);
        search.validate(&graph).unwrap();
        let last = search.frontier[search.found_count - 1];
        let lone = (0..64).find(|&vertex| graph.neighbours_of(vertex).is_empty());
        for parent in [NO_VERTEX, 1 << 20, last] {
            let good = std::mem::replace(&mut search.parents[last as usize], parent);
            assert!(search.validate(&graph).is_err(), "parent {parent}");
            search.parents[last as usize] = good;
        }
        if let Some(lone) = lone {
            search.parents[lone as usize] = root;
            assert!(search.validate(&graph).is_err());
            search.parents[lone as usize] = NO_VERTEX;
        }
        search.found_count -= 1;
        search.parents[last as usize] = NO_VERTEX;
        assert!(search.validate(&graph).is_err(), "one that was not found");
    }

    #[test]
    fn edges_fall_into_quadrants_by_their_shares() {
        let tables = EdgeTables::new(5, 10);
        let mut random = SplitMix64::new(5);
        let mut seen = [[0f64; 4]; 2];
        const DRAWS: u32 = 100_000;
        for _ in 0..DRAWS {
            let (from, to) = tables.draw_edge(&mut random);
            // At the first level, which is one of those left over, and at the last but one.
            for (level, bit) in [9, 1].into_iter().enumerate() {
                seen[level][((from >> bit & 1) << 1 | to >> bit & 1) as usize] += 1.0;
            }
        }
        for level in seen {
            for (count, share) in level.iter().zip([0.57, 0.19, 0.19, 0.05]) {
                let ratio = count / f64::from(DRAWS) / share;
                assert!((0.95..1.05).contains(&ratio), "{level:?}");
            }
        }
    }

    #[test]
    fn labels_are_a_bijection() {
        for scale in [4, 5, 10] {
            let tables = EdgeTables::new(11, scale);
            let mut labels: Vec<u32> = (0..1 << scale).map(|vertex| tables.scramble_label(vertex)).collect();
            assert!(labels.iter().zip(0..).any(|(label, vertex)| *label != vertex));
            labels.sort_unstable();
            assert!(labels.into_iter().eq(0..1 << scale));
        }
    }
}
