//! Options that `run`, `compare` and `sweep` share.

use std::num::NonZero;
use std::path::PathBuf;

use pagelab_formats::size;
use pagelab_model::Bytes;
use pagelab_model::study::{StudyCell, StudyPlan};

use super::catalogue;
use super::session::{How, simulator};
use crate::bounds;
use crate::cmd::{bytes_of, usage};
use crate::exit::Failure;

/// What is simulated, and how.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// The machine: x86 or ppc64 of the paper, or a size of x86-64 such as 16G
    /// [default: x86]
    #[arg(long, value_name = "NAME")]
    pub machine: Option<String>,
    /// What the kernel's zones keep, for schemes with a movable zone [default:
    /// as the machine has it]
    #[arg(long, value_name = "SIZE", value_parser = bytes_of)]
    pub kernelcore: Option<Bytes>,
    /// A parameter of the load; several times for several
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, u64)>,
    /// The first seed; the others follow it [default: 1, a recipe's own]
    #[arg(long, value_name = "N", value_parser = bounds::seed)]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub shown: Shown,
}

/// What `compare` and `sweep` share beside that.
#[derive(Debug, clap::Args)]
pub struct Repeated {
    /// The load, where nothing varies it [default: highalloc]
    #[arg(long, value_name = "NAME")]
    pub load: Option<String>,
    /// Seeds, the same for all configurations; 6 and more give intervals
    /// [default: 20; of a sweep 1]
    #[arg(long, value_name = "N", value_parser = bounds::small::<1, 1000>)]
    pub seeds: Option<u32>,
}

impl Repeated {
    /// The load that was asked for, or the usual one.
    pub fn load(&self) -> &str {
        self.load.as_deref().unwrap_or("highalloc")
    }
}

/// Where it is kept and how it is shown.
#[derive(Debug, clap::Args)]
pub struct Shown {
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = bounds::threads)]
    pub threads: Option<NonZero<usize>>,
    /// Keep everything in this run file, for `pagelab report`
    #[arg(short = 'o', long = "run", value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// All figures and differences, not the summary alone
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    pub json: bool,
}

impl Shown {
    pub fn how(&self) -> How {
        How {
            output: self.output.clone(),
            is_named_here: false,
            threads: self.threads,
            json: self.json,
            verbose: self.verbose,
        }
    }
}

/// Refuses a name that is there twice: it would be run twice, or be left out without a word.
pub fn once<N: PartialEq + AsRef<str>>(option: &str, names: &[N]) -> Result<(), Failure> {
    let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
    twice.map_or(Ok(()), |(_, name)| {
        Err(usage(&format!("{option}: {:?} is there twice; name each once", name.as_ref())))
    })
}

/// `builds=7`, `cache=64M`
fn setting(text: &str) -> Result<(String, u64), String> {
    let wanted = || "NAME=VALUE with a whole number was wanted, such as builds=7".to_owned();
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wanted)?;
    Ok((name.to_owned(), number(value).ok_or_else(wanted)?))
}

/// A whole number, with K, M or G behind it or without.
pub fn number(text: &str) -> Option<u64> {
    size::parse_suffixed(text.as_bytes()).ok().map(|Bytes(value)| value)
}

/// So many seeds from the first on.
pub fn seeds(first: u64, count: u32) -> Result<Vec<u64>, Failure> {
    let last = first.checked_add(u64::from(count).saturating_sub(1)).filter(|&last| last <= i64::MAX as u64);
    let last = last.ok_or_else(|| usage(&format!("--seed {first}: seeds go up to 2^63 - 1")))?;
    Ok((first..=last).collect())
}

impl Common {
    /// The first seed.
    pub fn first_seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// The configuration of a scheme and a load.
    pub fn cell(&self, scheme: &str, load: &str) -> Result<StudyCell, Failure> {
        for (at, (name, _)) in self.set.iter().enumerate() {
            if self.set[..at].iter().any(|(known, _)| known == name) {
                return Err(usage(&format!("--set {name}: it is given twice")));
            }
        }
        Ok(StudyCell {
            machine: self.machine.clone().unwrap_or_else(|| "x86".to_owned()),
            kernelcore: self.kernelcore.map(|size| size.0),
            scheme: scheme.to_owned(),
            load: load.to_owned(),
            parameters: self.set.clone(),
            values: Vec::new(),
            lists: Vec::new(),
            zones: Vec::new(),
        })
    }
}

/// A plan of these configurations.
pub fn plan(name: &str, mut cells: Vec<StudyCell>, seeds: Vec<u64>, pictures: u32) -> StudyPlan {
    for cell in &mut cells {
        (cell.lists, cell.zones) = (catalogue::lists(&cell.scheme), catalogue::zones(cell));
    }
    StudyPlan {
        name: name.to_owned(),
        question: String::new(),
        explanation: String::new(),
        simulator: simulator(),
        cells,
        seeds,
        pictures,
        varied: Vec::new(),
        judged: None,
    }
}

/// Nobody would see what a size for nothing did.
pub fn check_kernelcore(cells: &[StudyCell]) -> Result<(), Failure> {
    let has_zone = |cell: &StudyCell| cell.scheme.split('+').any(|word| word == "zone");
    if cells.iter().any(|cell| cell.kernelcore.is_some()) && !cells.iter().any(has_zone) {
        return Err(usage(
            "--kernelcore divides memory for a movable zone, and no scheme has one: add zone, as in zone or \
             list+zone, or leave it out",
        ));
    }
    Ok(())
}
