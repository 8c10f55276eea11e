//! Breadth-first search from a few roots in a graph with a skewed distribution of degrees, after Graph500.
//!
//! The graph is a Kronecker graph (R-MAT: Chakrabarti, Zhan, Faloutsos 2004) with Graph500's parameters: an
//! edge chooses one of four quadrants of the matrix with .57, .19, .19, .05 at each of `scale` levels; 16
//! edges for each vertex; labels scrambled, so that vertices of many edges are spread over memory. It is
//! laid out as compressed sparse rows, both directions of each edge, loops left out, repeated edges kept.
//!
//! The search reads the neighbours of a vertex in a row, and for each the parent of a vertex by chance: these
//! do not depend on each other within a row.

mod graph;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::clock;

use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::{Done, Failed, Figure, Merit, Workload, memory};
use graph::{Graph, Search};

/// The workload.
pub const WORKLOAD: Workload = Workload {
    name: "bfs",
    about: "Breadth-first search in a graph of skewed degrees (Graph500), from several roots",
    generator: "an R-MAT graph with a, b, c, d = .57, .19, .19, .05 and 16 edges for each vertex from the \
                seed, labels scrambled, in compressed sparse rows; breadth-first search from roots by \
                chance. Rows are read in order, and for each neighbour the parent array at a place by \
                chance, weighted by degree; accesses of one row do not depend on each other. All is \
                written before the search",
    options: &[
        size("80M", "Bytes of graph and search; the largest power of two of vertices that fits"),
        SEED,
        memory::ADVISE,
        ROOTS,
    ],
    forks: false,
    run,
};

const ROOTS: OptionHead = OptionHead {
    name: "roots",
    kind: Kind::Number(1, 1 << 20),
    default: "4",
    help: "From how many roots is searched, one after the other; Graph500 takes 64",
};

/// Edges for each vertex.
const EDGES: u64 = 16;
/// Words of 32 bits for each vertex: where its row begins, parent, queue, level, and its edges twice.
const WORDS_PER_VERTEX: u64 = 4 + 2 * EDGES;
/// Places in the rows are numbers of 32 bits.
const SCALE_MAX: u32 = 26;
const SCALE_MIN: u32 = 4;

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let vertices_max = options.size("size").0 / (WORDS_PER_VERTEX * 4);
    let scale = vertices_max.checked_ilog2().unwrap_or(0);
    if !(SCALE_MIN..=SCALE_MAX).contains(&scale) {
        let bytes = |scale: u32| (WORDS_PER_VERTEX * 4) << scale;
        let (least, most) = (bytes(SCALE_MIN), bytes(SCALE_MAX + 1) - 1);
        return Err(Failed::Options(format!("size: from {least} to {most} bytes were wanted")));
    }
    let (seed, roots) = (options.number("seed"), options.number("roots"));
    let vertices = 1usize << scale;
    let len = (WORDS_PER_VERTEX << scale) + 1;
    let mut mapping = memory::map(options, Bytes(len * 4))?;
    let (words, rest) = mapping.values_mut::<u32>().split_at_mut((1 + 2 * EDGES as usize) * vertices + 1);
    let before = clock::monotonic_ns();
    let (graph, mut search) = (Graph::build(words, rest, seed, scale, EDGES), Search::new(rest, vertices));
    let built_ns = clock::monotonic_ns().saturating_sub(before);
    let mut random = SplitMix64::new(seed ^ 0x726f_6f74);
    let (mut checksum, mut inverse, mut traversed) = (0u64, 0f64, 0u64);
    let (mut searched_ns, mut cpu_ns) = (0u64, 0u64);
    for _ in 0..roots {
        let root = root(&graph, &mut random)?;
        phase.begin();
        let (before_cpu, before) = (clock::thread_cpu_ns(), clock::monotonic_ns());
        search.run(&graph, root);
        let took_ns = clock::monotonic_ns().saturating_sub(before).max(1);
        cpu_ns += clock::thread_cpu_ns().saturating_sub(before_cpu);
        phase.end();
        let edges = search.edges(&graph);
        (searched_ns, traversed) = (searched_ns + took_ns, traversed + edges);
        inverse += took_ns as f64 / edges as f64;
        checksum = checksum.rotate_left(7) ^ search.checksum();
    }
    let deepest = search.check(&graph).map_err(Failed::Wrong)?;
    Ok(Done {
        merit: Merit {
            name: "edge rate",
            unit: "1/s",
            better: Better::Higher,
            // The harmonic mean, as Graph500 has it.
            value: roots as f64 / inverse * 1e9,
        },
        working_set: Bytes(len * 4),
        checksum,
        latencies: None,
        figures: vec![
            Figure::new("search", "ns", Better::Lower, searched_ns as f64),
            Figure::new("build", "ns", Better::Lower, built_ns as f64),
            Figure::new("search_cpu", "ns", Better::Lower, cpu_ns as f64),
            Figure::neutral("traversed_edges", "count", traversed as f64),
            Figure::neutral("levels", "count", f64::from(deepest) + 1.0),
        ],
        hot_regions: Vec::new(),
        generated: format!(
            "R-MAT, {vertices} vertices (scale {scale}), {} edges, {roots} roots, the last search checked, \
             seed {seed}",
            graph.edges()
        ),
    })
}

/// A vertex with an edge.
fn root(graph: &Graph<'_>, random: &mut SplitMix64) -> Result<u32, Failed> {
    let vertices = graph.vertices() as u64;
    // About half of all vertices have edges; one by one from the first draw on, so that it ends.
    let first = random.below(vertices);
    let from = (0..vertices).map(|step| ((first + step) % vertices) as u32);
    let mut with_edges = from.filter(|&vertex| !graph.row(vertex).is_empty());
    with_edges.next().ok_or_else(|| Failed::Wrong("no vertex has an edge".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_repeat_and_fit_into_their_size() {
        let done = |set: &[(&str, &str)]| {
            let mut options = Options::defaults(WORKLOAD.options);
            options.set("size", "200K").unwrap();
            set.iter().for_each(|(name, typed)| options.set(name, typed).unwrap());
            run(&options, &mut Phase::unwatched())
        };
        let one = done(&[]).unwrap();
        assert_eq!(one.working_set, Bytes(144 * 1024 + 4));
        assert_eq!(one.checksum, done(&[("advise", "nohuge")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("seed", "2")]).unwrap().checksum);
        assert_ne!(one.checksum, done(&[("roots", "5")]).unwrap().checksum);
        for (size, fits) in [("2K", false), ("2304", true), ("19G", false), ("900G", false)] {
            let mut options = Options::defaults(WORKLOAD.options);
            options.set("size", size).unwrap();
            match run(&options, &mut Phase::unwatched()) {
                Ok(_) => assert!(fits, "{size}"),
                Err(Failed::Options(text)) => assert!(!fits && text.contains("2304"), "{size}: {text}"),
                Err(other) => panic!("{other}"),
            }
        }
    }
}
