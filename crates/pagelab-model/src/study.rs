//! A simulated study: cells (machine, scheme, load) times seeds, and what came of each. Written by
//! `pagelab sim run`, `compare` and `sweep`.

use serde::{Deserialize, Serialize};

/// A study and the trials of it that were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Study {
    /// What it is to do.
    pub plan: StudyPlan,
    /// By slot, each at most once.
    pub trials: Vec<StudyTrial>,
}

/// What a study is to do: every cell with every seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyPlan {
    /// Its short name: `compare`, `sweep`, or that of a recipe.
    pub name: String,
    /// The question that it answers; empty where nobody asked one.
    pub question: String,
    /// What it does and how its numbers are read; may be empty.
    pub explanation: String,
    /// The version of the simulator: another one may give other results.
    pub simulator: String,
    /// The configurations.
    pub cells: Vec<StudyCell>,
    /// The seeds, the same for all cells.
    pub seeds: Vec<u64>,
    /// Pictures of memory that are kept of each cell's first seed.
    pub pictures: u32,
    /// What is varied in a sweep; empty in a comparison.
    pub varied: Vec<Varied>,
    /// The figure that a sweep is judged by, as `PHASE/NAME`; `None`: its first one.
    pub judged: Option<String>,
}

impl StudyPlan {
    /// How many trials there are to be: cells times seeds; `None` beyond what can be counted.
    pub fn slots(&self) -> Option<usize> {
        self.cells.len().checked_mul(self.seeds.len())
    }

    /// The cell and the seed of a slot. All cells of a seed come before the next seed, so that a study that
    /// was stopped has whole rows.
    pub fn slot(&self, slot: usize) -> Option<(usize, u64)> {
        let cells = self.cells.len();
        let seed = *self.seeds.get(slot.checked_div(cells)?)?;
        Some((slot % cells, seed))
    }
}

/// One configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyCell {
    /// The machine, as `x86`, `ppc64`, `16G`.
    pub machine: String,
    /// Bytes of `kernelcore=`; `None`: what the machine has as usual.
    pub kernelcore: Option<u64>,
    /// How memory is managed, as `zone+linear`.
    pub scheme: String,
    /// The load.
    pub load: String,
    /// Parameters of the load that are not as usual.
    pub parameters: Vec<(String, u64)>,
    /// Values of what a sweep varies, in its order.
    pub values: Vec<String>,
    /// What the lists of its policy hold, by number: what [`StudyPicture::owners`] means; may be empty.
    #[serde(default)]
    pub lists: Vec<String>,
    /// Its zones by address; empty in files of older versions.
    #[serde(default)]
    pub zones: Vec<StudyZone>,
}

/// A zone of a simulated machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyZone {
    /// Its name: `HighMem`.
    pub name: String,
    /// Its first frame.
    pub first: u32,
    /// Frames in it.
    pub frames: u32,
}

/// Something that a sweep varies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Varied {
    /// `machine`, `scheme`, `load`, `kernelcore`, or a parameter of the load.
    pub name: String,
    /// Whether its values are numbers, which have an order.
    pub is_number: bool,
}

/// What came of one cell with one seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyTrial {
    /// Its place in the plan: [`StudyPlan::slot`].
    pub slot: usize,
    /// Figures in the order to print them.
    pub figures: Vec<StudyFigure>,
    /// Values along the load.
    pub series: Vec<StudySeries>,
    /// Pictures of memory; of the first seed alone.
    pub pictures: Vec<StudyPicture>,
    /// What is to be said beside the figures.
    pub notes: Vec<String>,
}

/// One figure. Fractions are kept as two whole numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyFigure {
    /// The phase of the load, as `under load, pass 1`.
    pub phase: String,
    /// What it is, as `huge pages`.
    pub name: String,
    /// Its value, or what is divided.
    pub value: u64,
    /// By what it is divided, above 0; 1 where it is a count.
    pub per: u64,
    /// Its unit: `share`, `blocks`, `pages`.
    pub unit: String,
}

impl StudyFigure {
    /// Phase and name, which tell it from the other figures of a trial.
    pub fn key(&self) -> String {
        format!("{}/{}", self.phase, self.name)
    }

    /// The value.
    pub fn number(&self) -> f64 {
        self.value as f64 / self.per.max(1) as f64
    }
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudySeries {
    /// What it is, as `F_u(10) at rest`.
    pub name: String,
    /// What is counted along it, as `attempts`.
    pub over: String,
    /// Places, ascending, and values in millionths.
    pub points: Vec<(u64, i64)>,
}

/// Memory at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyPicture {
    /// Steps of the load that were done.
    pub step: u64,
    /// The phase of the load.
    pub phase: String,
    /// Runs of frames of one use, by address: first frame, frames, and the use's number: 0 free, 1 kernel,
    /// 2 page tables, 3 kernel caches, 4 files, 5 programs, 6 the hugetlb pool.
    pub runs: Vec<(u32, u32, u8)>,
    /// The list that each pageblock belongs to, by address.
    pub owners: Vec<u8>,
}
