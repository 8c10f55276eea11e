//! `pagelab sim sweep`: a grid over parameters, or points drawn from it; one run file is its journal.

use std::collections::BTreeSet;
use std::path::PathBuf;

use pagelab_formats::size;
use pagelab_model::seed::SplitMix64;
use pagelab_model::study::{StudyCell, StudyPlan, Varied};

use super::options::{Common, check_kernelcore, number, plan, seeds};
use super::session::{CELLS_MAX, How, begin, resume};
use crate::cmd::run::free_name;
use crate::cmd::usage;
use crate::exit::Failure;
use crate::out;

/// What `sim sweep` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Values of something: scheme, machine, load, kernelcore, or a parameter
    /// of the load
    #[arg(long, value_name = "NAME=VALUE,…", value_parser = grid)]
    grid: Vec<Axis>,
    /// Ends of a parameter of the load, to draw whole numbers from
    #[arg(long, value_name = "NAME=LOW..HIGH", value_parser = range, requires = "random")]
    range: Vec<Axis>,
    /// Draw so many points instead of taking all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    random: Option<u32>,
    /// Seeds of each point
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    seeds: u32,
    /// The figure to judge by, as PHASE/NAME [default: the first]
    #[arg(long, value_name = "FIGURE")]
    by: Option<String>,
    /// The scheme, where it is not varied
    #[arg(long, value_name = "SCHEME", default_value = "standard")]
    policy: String,
    /// The load, where it is not varied
    #[arg(long, value_name = "NAME", default_value = "highalloc")]
    load: String,
    /// Go on with a file that was stopped or killed, also one of compare or run
    #[arg(long, value_name = "FILE", conflicts_with_all = ["grid", "range", "random", "seeds", "by",
        "policy", "load", "machine", "kernelcore", "set", "seed", "output"])]
    resume: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab sim sweep --grid scheme=list,zone --grid machine=1G,4G,16G
  pagelab sim sweep --grid kernelcore=512M,768M,1G --policy zone --seeds 6
  pagelab sim sweep --random 200 --grid scheme=list,mobility-6.1 \\
      --range builds=2..40 -o big.pagelab
  pagelab sim sweep --resume big.pagelab       go on after Ctrl-C or a kill

Each run is written as soon as it has ended: nothing is lost, nothing is made \
twice. At the end: which parameter mattered, and the best and worst points. \
docs/sim.md";

/// Something that is varied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    name: String,
    values: Values,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Values {
    Listed(Vec<String>),
    Range(u64, u64),
}

/// What is varied that is no parameter of a load.
const SCHEME: &str = "scheme";
const MACHINE: &str = "machine";
const LOAD: &str = "load";
const KERNELCORE: &str = "kernelcore";

fn grid(text: &str) -> Result<Axis, String> {
    let wanted = || "NAME=VALUE,VALUE was wanted, such as scheme=list,zone".to_owned();
    let (name, values) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wanted)?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) {
        return Err(wanted());
    }
    if let Some(twice) = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value)) {
        return Err(format!("{} is there twice", twice.1));
    }
    let name = if name == "policy" { SCHEME } else { name };
    let is_number = ![SCHEME, MACHINE, LOAD].contains(&name);
    if let Some(bad) = values.iter().find(|value| is_number && number(value).is_none()) {
        return Err(format!("{name}={bad}: a whole number was wanted, or one with K, M or G behind it"));
    }
    Ok(Axis { name: name.to_owned(), values: Values::Listed(values) })
}

fn range(text: &str) -> Result<Axis, String> {
    let wanted = || "NAME=LOW..HIGH with whole numbers was wanted, such as builds=2..40".to_owned();
    let (name, ends) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wanted)?;
    let (low, high) = ends.split_once("..").ok_or_else(wanted)?;
    let (low, high) = (number(low).ok_or_else(wanted)?, number(high).ok_or_else(wanted)?);
    if low >= high || high == u64::MAX {
        return Err(format!("{low}..{high}: the first number must be below the second"));
    }
    if [SCHEME, MACHINE, LOAD].contains(&name) {
        return Err(format!("{name} is no number; list its values with --grid {name}=…"));
    }
    Ok(Axis { name: name.to_owned(), values: Values::Range(low, high) })
}

/// Sweeps.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let shown = &args.common.shown;
    if let Some(path) = &args.resume {
        return resume(path, &shown.how());
    }
    let plan = planned(args)?;
    // A sweep is long: it is always kept.
    let output = shown.output.clone().unwrap_or_else(|| free_name("sweep"));
    begin(plan, &How { output: Some(output), ..shown.how() })
}

fn planned(args: &Args) -> Result<StudyPlan, Failure> {
    let axes: Vec<&Axis> = args.grid.iter().chain(&args.range).collect();
    if axes.is_empty() {
        return Err(usage(
            "nothing is varied: --grid NAME=VALUE,… was wanted, or --random N with --range NAME=LOW..HIGH",
        ));
    }
    for (at, axis) in axes.iter().enumerate() {
        if axes[..at].iter().any(|known| known.name == axis.name) {
            return Err(usage(&format!("{} is varied twice; put all values into one list", axis.name)));
        }
        if args.common.set.iter().any(|(name, _)| *name == axis.name) {
            return Err(usage(&format!("{} is both set and varied; leave one out", axis.name)));
        }
    }
    let points = match args.random {
        Some(count) => {
            let points = drawn(&axes, count, args.common.first_seed());
            if points.len() < count as usize {
                let text = format!("note: there are no more than {} different points", points.len());
                out::complain(&text);
            }
            points
        }
        None => all(&axes)?,
    };
    let base = args.common.cell(&args.policy, &args.load)?;
    let cells: Vec<StudyCell> =
        points.into_iter().map(|values| cell(&base, &axes, values)).collect::<Result<_, _>>()?;
    check_kernelcore(&cells)?;
    let of = |axis: &&Axis| Varied {
        name: axis.name.clone(),
        is_number: ![SCHEME, MACHINE, LOAD].contains(&axis.name.as_str()),
    };
    let seeds = seeds(args.common.first_seed(), args.seeds)?;
    Ok(StudyPlan {
        varied: axes.iter().map(of).collect(),
        judged: args.by.clone(),
        ..plan("sweep", cells, seeds, 0)
    })
}

/// All points of a grid, the last axis fastest.
fn all(axes: &[&Axis]) -> Result<Vec<Vec<String>>, Failure> {
    let mut points = vec![Vec::new()];
    for axis in axes {
        let Values::Listed(values) = &axis.values else { continue };
        if points.len() * values.len() > CELLS_MAX {
            let text = format!("the grid has more than {CELLS_MAX} points; take fewer values, or --random N");
            return Err(usage(&text));
        }
        points = points
            .iter()
            .flat_map(|point: &Vec<String>| {
                values.iter().map(move |value| [point.as_slice(), std::slice::from_ref(value)].concat())
            })
            .collect();
    }
    Ok(points)
}

/// Different points drawn from the seed, each value for itself; fewer where there are not so many.
fn drawn(axes: &[&Axis], count: u32, seed: u64) -> Vec<Vec<String>> {
    /// Draws in a row that bring nothing new: then there is hardly anything new.
    const IN_VAIN_MAX: u32 = 1000;
    // Not the seeds of the simulations themselves.
    let mut random = SplitMix64::new(seed ^ 0x7377_6565_7065);
    let mut draw = |axis: &&Axis| match &axis.values {
        Values::Listed(values) => {
            values.get(random.below(values.len() as u64) as usize).cloned().unwrap_or_default()
        }
        Values::Range(low, high) => (low + random.below(high - low + 1)).to_string(),
    };
    let (mut points, mut known, mut in_vain) = (Vec::new(), BTreeSet::new(), 0);
    while points.len() < count as usize && in_vain < IN_VAIN_MAX {
        let point: Vec<String> = axes.iter().map(&mut draw).collect();
        in_vain += 1;
        if known.insert(point.clone()) {
            points.push(point);
            in_vain = 0;
        }
    }
    points
}

/// The configuration of a point.
fn cell(base: &StudyCell, axes: &[&Axis], values: Vec<String>) -> Result<StudyCell, Failure> {
    let mut cell = base.clone();
    for (axis, value) in axes.iter().zip(values) {
        match axis.name.as_str() {
            SCHEME => cell.scheme.clone_from(&value),
            MACHINE => cell.machine.clone_from(&value),
            LOAD => cell.load.clone_from(&value),
            KERNELCORE => {
                let size = size::parse_suffixed(value.as_bytes()).ok().filter(|size| size.0 > 0);
                let size = size.ok_or_else(|| usage(&format!("kernelcore={value}: a size was wanted")))?;
                cell.kernelcore = Some(size.0);
            }
            name => cell.parameters.push((name.to_owned(), number(&value).unwrap_or_default())),
        }
        cell.values.push(value);
    }
    Ok(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_each_point_once_and_draws_stay_in_their_range() {
        let (schemes, builds) = (grid("policy=list,zone").unwrap(), grid("builds=1,2,4K").unwrap());
        let points = all(&[&schemes, &builds]).unwrap();
        assert_eq!(points.len(), 6);
        assert_eq!(
            (&points[0], &points[5]),
            (&vec!["list".to_owned(), "1".to_owned()], &vec!["zone".to_owned(), "4K".to_owned()])
        );
        let builds = range("builds=3..5").unwrap();
        let mut points = drawn(&[&schemes, &builds], 300, 1);
        assert_eq!(points, drawn(&[&schemes, &builds], 300, 1));
        assert_ne!(points, drawn(&[&schemes, &builds], 300, 2));
        // Six there are, and each is there once.
        points.sort();
        let all = ["list", "zone"].map(|scheme| ["3", "4", "5"].map(|of| [scheme, of].map(str::to_owned)));
        assert_eq!(points, all.as_flattened());
        assert_eq!(drawn(&[&schemes, &builds], 4, 1).len(), 4);
    }

    #[test]
    fn what_makes_no_axis_is_refused() {
        for text in ["scheme", "=1", "scheme=", "scheme=a,,b", "scheme=a,a", "builds=x", "builds=1.5"] {
            assert!(grid(text).is_err(), "{text}");
        }
        for text in ["builds=2", "builds=4..2", "builds=3..3", "scheme=1..2", "=1..2", "builds=a..b"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
