//! What simulations came to, as people read it: figures by scheme, lines, pictures of memory over time.
//!
//! [`SimReport`] is filled from a run file or right after a comparison; [`text`] says it on a terminal in
//! the shape of the report of Gorman and Whitcroft (Ottawa Linux Symposium 2006, Figure 11), and
//! [`crate::html::sim`] makes a page of it.

pub mod demo;
pub mod text;

use crate::picture::Category;

/// Simulations that are shown side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimReport {
    /// What was simulated, in a phrase: `highalloc on x86, five schemes`.
    pub title: String,
    /// Phrases for the first lines: the machine, the load and its parameters, the seeds, the version.
    pub facts: Vec<String>,
    /// How memory was managed: the columns of tables.
    pub schemes: Vec<SimScheme>,
    /// Figures in the order to show them, those of one phase one after the other.
    pub figures: Vec<SimFigure>,
    /// Lines over attempts or time.
    pub series: Vec<SimSeries>,
    /// Memory at moments, of each scheme by step.
    pub pictures: Vec<SimPicture>,
    /// What follows from the figures: differences, what mattered, the points of a sweep.
    pub tables: Vec<SimTable>,
    /// Sentences that a reader must know.
    pub notes: Vec<String>,
    /// The same for readers without scripts; `None`: made of the rest.
    pub text: Option<String>,
}

/// A table whose cells are written already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimTable {
    /// What it shows: `difference to standard, seed by seed`. Tables of one title stand one after the other.
    pub title: String,
    /// Whether it is what was asked for, and stands in front of the charts.
    pub leads: bool,
    /// Of what it is, where several tables have one title; may be empty.
    pub of: String,
    /// How it is read; may be empty.
    pub words: String,
    /// The heads of its columns; empty: there are words alone.
    pub columns: Vec<String>,
    /// How many columns from the left hold names; the others hold numbers.
    pub names: usize,
    /// The lines. One of a single cell is the heading of those below.
    pub rows: Vec<Vec<String>>,
}

/// How memory was managed in one column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimScheme {
    /// Its name as typed: `list+linear`.
    pub name: String,
    /// What each number of [`SimPicture::owners`] is, by number: `unmovable`. Numbers beyond are shown as
    /// numbers.
    pub lists: Vec<String>,
    /// Zones by address, where known: what pictures are labelled with.
    pub zones: Vec<SimZone>,
}

/// A zone of a simulated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimZone {
    /// Its name: `HighMem`.
    pub name: String,
    /// Its first frame.
    pub first: u32,
    /// Frames in it.
    pub frames: u32,
}

/// One line of a table: a figure of each scheme.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimFigure {
    /// The phase of the load that it belongs to: `under load, pass 1`.
    pub phase: String,
    /// What it is: `huge pages`.
    pub name: String,
    /// The zone that it is of; `None`: the whole machine. Zones of one figure follow it under the same name.
    pub zone: Option<String>,
    /// Its unit: `blocks`, `pages`, `share` (of 1), `count`.
    pub unit: String,
    /// A value for each scheme; `None`: it was not measured there.
    pub values: Vec<Option<SimValue>>,
    /// What the paper says, for each scheme; empty: it does not say anything.
    pub paper: Vec<Option<f64>>,
}

/// A value over all seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimValue {
    /// The median over the seeds, in the figure's unit.
    pub middle: f64,
    /// The lower end of its interval; equal to `high` where there is none to show.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// Seeds that have it.
    pub seeds: u32,
}

impl SimValue {
    /// The interval, where there is one: a width of 0 says nothing.
    pub fn interval(&self) -> Option<(f64, f64)> {
        (self.low < self.high).then_some((self.low, self.high))
    }
}

/// A line of a chart. Lines of the same name and axis share a chart, one for each scheme.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimSeries {
    /// What it is: `F_u(10) at rest`.
    pub name: String,
    /// What is counted along it: `attempts`.
    pub over: String,
    /// Place in [`SimReport::schemes`].
    pub scheme: usize,
    /// Places along the axis, ascending, and values.
    pub points: Vec<(u64, f64)>,
}

/// Memory of one scheme at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimPicture {
    /// Steps of the load that were done.
    pub step: u64,
    /// The phase of the load.
    pub phase: String,
    /// Place in [`SimReport::schemes`].
    pub scheme: usize,
    /// Runs of frames of one use, by address: first frame, frames, place in [`USES`]. Frames between two
    /// runs are no memory.
    pub runs: Vec<(u32, u32, u8)>,
    /// The list that each pageblock belongs to, by address over all runs; all are of the same size.
    pub owners: Vec<u8>,
}

/// What frames of pictures are used for: free, and then the simulator's classes of blocks in their order
/// (`pagelab_sim::machine::Class`). Colours are those of maps of a real machine.
pub const USES: [Category; 7] = [
    use_of("free", "free", '.', [0xf2, 0xf2, 0xee], 0),
    use_of("kernel", "kernel", 'K', [0xb0, 0x2a, 0x2a], 6),
    use_of("page_tables", "page tables", 'T', [0x7a, 0x3f, 0x98], 5),
    use_of("cache", "kernel caches that can be shrunk", 'C', [0xd9, 0x82, 0x2b], 4),
    use_of("file", "pages of files", 'F', [0x3b, 0x8e, 0x5a], 1),
    use_of("anonymous", "pages of programs", 'A', [0x5a, 0x9b, 0xd6], 2),
    use_of("huge", "huge pages", 'H', [0x1f, 0x4e, 0x8c], 3),
];

const fn use_of(
    name: &'static str,
    label: &'static str,
    letter: char,
    colour: crate::picture::Rgb,
    rank: u8,
) -> Category {
    Category { name, label, letter, colour, rank }
}

/// The share of a zone's pages that must be released before a block of `order` is sure to be free, if they
/// are released in random order: F_r(j) / N, with F_r(j) = (N / 2^j) (2^j − 1) + 1 (Gorman and Whitcroft,
/// Ottawa Linux Symposium 2006, section 10, Figure 9). `None` where the zone has no such block.
pub fn reclaim_share(frames: u64, order: u8) -> Option<f64> {
    let block = 1u64.checked_shl(u32::from(order)).filter(|&block| block <= frames)?;
    let released = u128::from(frames / block) * u128::from(block - 1) + 1;
    Some(released as f64 / frames as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_table_of_reclaim() {
        let papers =
            [(1, 50.0), (2, 75.0), (3, 87.5), (4, 93.75), (5, 96.88), (6, 98.44), (10, 99.90), (12, 99.98)];
        for (order, percent) in papers {
            // The machine of its x86 tests.
            let ours = reclaim_share(1 << 20, order).unwrap() * 100.0;
            assert_eq!(format!("{ours:.2}"), format!("{percent:.2}"), "order {order}");
        }
        assert_eq!(reclaim_share(1024, 11), None);
        assert_eq!(reclaim_share(1 << 20, 64), None);
        assert_eq!(reclaim_share(1, 0), Some(1.0));
    }
}
