//! Breadth-first search from a few roots in a graph with a skewed distribution of degrees, after Graph500.
//!
//! The graph is a Kronecker graph (R-MAT: Chakrabarti, Zhan, Faloutsos 2004) with Graph500's parameters: an
//! edge selects one of four quadrants of the matrix with .57, .19, .19, .05 at each of `scale` levels; 16
//! edges per vertex; labels scrambled, so that vertices of many edges are spread over memory. It is stored as
//! compressed sparse rows, both directions of each edge, without loops, with repeated edges.
//!
//! The search reads the neighbours of a vertex in a row, and for each the parent of a random vertex: these
//! reads do not depend on each other within a row.

mod graph;

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::clock;

use crate::options::{SEED_OPTION, WorkloadOptions, number_option, size_option};
use crate::phase::MeasuredPhase;
use crate::{Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping};
use graph::{BreadthFirstSearch, Graph};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "bfs",
    description: "Breadth-first search in a graph with skewed degrees (Graph500), from several roots",
    generator: "an R-MAT graph with a, b, c, d = .57, .19, .19, .05 and 16 edges per vertex from the seed, \
                labels scrambled, in compressed sparse rows; breadth-first search from random roots. Rows \
                are read in order, and for each neighbour the parent array at a random place, weighted by \
                degree; accesses of one row do not depend on each other. All memory is written before the \
                search",
    options: &[
        size_option(
            "80M",
            "Bytes of graph and search; the number of vertices is the largest power of two that fits",
        ),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        number_option(
            "roots",
            1,
            1 << 20,
            "4",
            "Number of roots to search from, one after the other; Graph500 uses 64",
        ),
    ],
    forks_processes: false,
    guest_parts: &[],
    run: run_bfs,
};

const EDGES_PER_VERTEX: u64 = 16;
/// Words of 32 bits for each vertex: where its row begins, parent, queue, level, and its edges twice.
const WORDS_PER_VERTEX: u64 = 4 + 2 * EDGES_PER_VERTEX;
/// Places in the rows are numbers of 32 bits.
const SCALE_MAX: u32 = 26;
const SCALE_MIN: u32 = 4;

fn run_bfs(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let vertices_max = options.get_size("size").0 / (WORDS_PER_VERTEX * 4);
    let scale = vertices_max.checked_ilog2().unwrap_or(0);
    if !(SCALE_MIN..=SCALE_MAX).contains(&scale) {
        let bytes = |scale: u32| (WORDS_PER_VERTEX * 4) << scale;
        let (least, most) = (bytes(SCALE_MIN), bytes(SCALE_MAX + 1) - 1);
        return Err(WorkloadError::InvalidOptions(format!("size: expected {least} to {most} bytes")));
    }
    let (seed, roots) = (options.get_number("seed"), options.get_number("roots"));
    let vertices = 1usize << scale;
    let mapping_bytes = (WORDS_PER_VERTEX << scale) + 1;
    let mut mapping = mapping::map_anonymous(options, Bytes(mapping_bytes * 4))?;
    let (words, rest) =
        mapping.values_mut::<u32>().split_at_mut((1 + 2 * EDGES_PER_VERTEX as usize) * vertices + 1);
    let start_ns = clock::monotonic_ns();
    let (graph, mut search) =
        (Graph::build(words, rest, seed, scale, EDGES_PER_VERTEX), BreadthFirstSearch::new(rest, vertices));
    let build_ns = clock::monotonic_ns().saturating_sub(start_ns);
    let mut random = SplitMix64::new(seed ^ 0x726f_6f74);
    let (mut checksum, mut inverse_rate_sum, mut traversed) = (0u64, 0f64, 0u64);
    let (mut search_ns, mut cpu_ns) = (0u64, 0u64);
    for _ in 0..roots {
        let root = draw_root(&graph, &mut random)?;
        let ((), wall_ns, root_cpu_ns) = phase.measure_times(|| search.search_from(&graph, root));
        let (took_ns, edges) = (wall_ns.max(1), search.count_reached_edges(&graph));
        (search_ns, cpu_ns, traversed) = (search_ns + took_ns, cpu_ns + root_cpu_ns, traversed + edges);
        inverse_rate_sum += took_ns as f64 / edges as f64;
        checksum = checksum.rotate_left(7) ^ search.checksum();
    }
    let deepest = search.validate(&graph).map_err(WorkloadError::WrongResult)?;
    Ok(WorkloadResult {
        // The harmonic mean, as Graph500 has it.
        figure_of_merit: Figure::rate("edge rate", roots as f64 / inverse_rate_sum * 1e9),
        working_set: Bytes(mapping_bytes * 4),
        checksum,
        latencies: None,
        figures: vec![
            Figure::time("search", search_ns as f64),
            Figure::time("build", build_ns as f64),
            Figure::time("search_cpu", cpu_ns as f64),
            Figure::neutral("traversed_edges", "count", traversed as f64),
            Figure::neutral("levels", "count", f64::from(deepest) + 1.0),
        ],
        hot_regions: Vec::new(),
        phases: PhaseResults::default(),
        generated_input: format!(
            "R-MAT, {vertices} vertices (scale {scale}), {} edges, {roots} roots, the last search checked, \
             seed {seed}",
            graph.edge_count()
        ),
    })
}

/// A vertex with an edge.
fn draw_root(graph: &Graph<'_>, random: &mut SplitMix64) -> Result<u32, WorkloadError> {
    let vertices = graph.vertex_count() as u64;
    // About half of all vertices have edges; one by one from the first draw on, so that it ends.
    let first = random.next_below(vertices);
    let from = (0..vertices).map(|step| ((first + step) % vertices) as u32);
    let mut with_edges = from.filter(|&vertex| !graph.neighbours_of(vertex).is_empty());
    with_edges.next().ok_or_else(|| WorkloadError::WrongResult("no vertex has an edge".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_repeat_and_fit_into_their_size() {
        let done = |set: &[(&str, &str)]| {
            let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
            options.set_value("size", "200K").unwrap();
            set.iter().for_each(|(name, typed)| options.set_value(name, typed).unwrap());
            run_bfs(&options, &mut MeasuredPhase::without_observer())
        };
        let one = done(&[]).unwrap();
        assert_eq!(one.working_set, Bytes(144 * 1024 + 4));
        assert_eq!(one.checksum, done(&[("advise", "nohuge")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("seed", "2")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("roots", "5")]).unwrap().checksum);
        for (size, fits) in [("2K", false), ("2304", true), ("19G", false), ("900G", false)] {
            let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
            options.set_value("size", size).unwrap();
            match run_bfs(&options, &mut MeasuredPhase::without_observer()) {
                Ok(_) => assert!(fits, "{size}"),
                Err(WorkloadError::InvalidOptions(text)) => {
                    assert!(!fits && text.contains("2304"), "{size}: {text}")
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}
