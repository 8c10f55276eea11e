//! Report of simulations: figures by scheme, lines, pictures of memory over time.
//!
//! A [`SimulationReport`] comes from a run file or directly from a comparison; [`text`] renders it on a
//! terminal in the form of the report of Gorman and Whitcroft (Ottawa Linux Symposium 2006, Figure 11), and
//! [`crate::html::sim`] renders it as a page.

pub mod demo;
pub mod text;

use pagelab_model::simulation::{MemoryPicture, SimulatedZone};
use serde::Serialize;

use crate::memory_picture::Category;

/// Simulations shown side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulationReport {
    /// Subject, in a phrase: `highalloc on x86, five schemes`.
    pub title: String,
    /// Phrases for the first lines: the machine, the load and its parameters, the seeds, the version.
    pub facts: Vec<String>,
    /// Memory management schemes: the columns of tables.
    pub schemes: Vec<SimulationScheme>,
    /// Figures in display order, grouped by phase.
    pub figures: Vec<SimulationFigure>,
    /// Lines over attempts or time.
    pub series: Vec<SimulationSeries>,
    /// Memory at several times, of each scheme by step: an index in `schemes`, and the picture, whose uses
    /// are indices in [`FRAME_USES`].
    pub pictures: Vec<(usize, MemoryPicture)>,
    /// Conclusions from the figures: differences, influences, the points of a sweep.
    pub tables: Vec<SimulationTable>,
    /// Caveats.
    pub notes: Vec<String>,
    /// Text for readers without scripts; `None`: derived from the rest.
    pub text: Option<String>,
}

/// Table of formatted cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SimulationTable {
    /// Title: `difference to standard, seed by seed`. Tables with the same title are adjacent.
    pub title: String,
    /// Whether it answers the question of the command, and precedes the charts.
    #[serde(rename = "leads")]
    pub is_leading: bool,
    /// Subtitle, if several tables have the same title; may be empty.
    #[serde(rename = "of")]
    pub unit_noun: String,
    /// Explanation; may be empty.
    #[serde(rename = "words")]
    pub explanation: String,
    /// Headings of its columns; empty if there is only text.
    pub columns: Vec<String>,
    /// Number of leading columns with names; the others have numbers.
    #[serde(rename = "names")]
    pub name_columns: usize,
    /// Lines. A line of a single cell is the heading of those below.
    pub rows: Vec<Vec<String>>,
}

/// Memory management scheme of one column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimulationScheme {
    /// Name on the command line: `list+linear`.
    pub name: String,
    /// Names of the numbers in [`MemoryPicture::owners`], by number: `unmovable`. Higher numbers are
    /// shown as numbers.
    pub free_lists: Vec<String>,
    /// Zones by address, if known: the labels of pictures.
    pub zones: Vec<SimulatedZone>,
}

/// Line of a table: a figure of each scheme.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulationFigure {
    /// Phase of the load: `under load, pass 1`.
    pub phase: String,
    /// Name: `huge pages`.
    pub name: String,
    /// Zone; `None`: the entire machine. Zones of one figure follow it under the same name.
    pub zone: Option<String>,
    /// Unit: `blocks`, `pages`, `share` (of 1), `count`.
    pub unit: String,
    /// Value for each scheme; `None`: not measured.
    pub values: Vec<Option<SimulationValue>>,
    /// The paper's value for each scheme; empty if the paper has none.
    pub paper_values: Vec<Option<f64>>,
}

/// Value over all seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulationValue {
    /// Median over the seeds, in the figure's unit.
    pub median: f64,
    /// Lower end of its interval; equal to `high` without an interval.
    pub low: f64,
    /// Upper end of its interval.
    pub high: f64,
    /// Number of seeds with this value.
    pub seed_count: u32,
}

impl SimulationValue {
    /// Returns the interval, if there is one: a width of 0 has no meaning.
    pub fn interval(&self) -> Option<(f64, f64)> {
        (self.low < self.high).then_some((self.low, self.high))
    }
}

/// Line of a chart. Lines of the same name and axis share a chart, one for each scheme.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulationSeries {
    /// Name: `F_u(10) at rest`.
    pub name: String,
    /// Quantity along the axis: `attempts`.
    pub axis: String,
    /// Index in [`SimulationReport::schemes`].
    pub scheme: usize,
    /// Places along the axis, ascending, and values.
    pub points: Vec<(u64, f64)>,
}

/// Uses of frames in pictures: free, and then the simulator's classes of blocks in their order
/// (`pagelab_sim::machine::PageUse`). Colours are those of maps of a real machine.
pub const FRAME_USES: [Category; 7] = [
    Category::new("free", "free", '.', 0, 0xf2_f2_ee),
    Category::new("kernel", "kernel", 'K', 6, 0xb0_2a_2a),
    Category::new("page_tables", "page tables", 'T', 5, 0x7a_3f_98),
    Category::new("cache", "reclaimable kernel caches", 'C', 4, 0xd9_82_2b),
    Category::new("file", "file pages", 'F', 1, 0x3b_8e_5a),
    Category::new("anonymous", "anonymous pages", 'A', 2, 0x5a_9b_d6),
    Category::new("huge", "huge pages", 'H', 3, 0x1f_4e_8c),
];

/// Returns the share of a zone's pages that must be freed before a block of `order` is certain to be free, if
/// they are freed in random order: F_r(j) / N, with F_r(j) = (N / 2^j) (2^j − 1) + 1 (Gorman and Whitcroft,
/// Ottawa Linux Symposium 2006, section 10, Figure 9). `None` if the zone has no such block.
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
            // The machine of the paper's x86 tests.
            let ours = reclaim_share(1 << 20, order).unwrap() * 100.0;
            assert_eq!(format!("{ours:.2}"), format!("{percent:.2}"), "order {order}");
        }
        assert_eq!(reclaim_share(1024, 11), None);
        assert_eq!(reclaim_share(1 << 20, 64), None);
        assert_eq!(reclaim_share(1, 0), Some(1.0));
    }
}
