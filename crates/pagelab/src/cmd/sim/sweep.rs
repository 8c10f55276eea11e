//! `pagelab sim sweep`: a grid over parameters, or points drawn from it; one run file is its journal.

use std::collections::BTreeSet;
use std::path::PathBuf;

use pagelab_formats::size;
use pagelab_model::seed::SplitMix64;
use pagelab_model::study::{StudyCell, StudyPlan, Varied};
use pagelab_sim::loads::Parameter;

use super::catalogue;
use super::options::{Common, Repeated, check_kernelcore, number, plan, seeds};
use super::session::{CELLS_MAX, begin, resume};
use crate::bounds;
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
    /// Ends of a parameter of the load, to draw whole numbers from; without
    /// ends from half to double of what it is as usual. all: every parameter
    #[arg(long, value_name = "NAME[=LOW..HIGH]", value_parser = range, requires = "random")]
    range: Vec<Axis>,
    /// Draw so many points instead of taking all
    #[arg(long, value_name = "N", value_parser = bounds::small::<1, 65_536>)]
    random: Option<u32>,
    #[command(flatten)]
    repeated: Repeated,
    /// The figure to judge by, as PHASE/NAME [default: the last success, else
    /// the last F_u]
    #[arg(long, value_name = "FIGURE")]
    by: Option<String>,
    /// The scheme, where it is not varied [default: standard]
    #[arg(long, value_name = "SCHEME")]
    policy: Option<String>,
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
  pagelab sim sweep --random 200 --range all     every parameter, half to double
  pagelab sim sweep --resume big.pagelab       go on after Ctrl-C or a kill

Each run is written as soon as it has ended, without -o into sweep-1.pagelab \
or the next free name: nothing is lost, nothing is made twice. At \
the end: which parameter mattered, and the best and worst points. docs/sim.md";

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
    /// Half to double of what it is as usual.
    AsUsual,
}

/// What is varied that is no parameter of a load.
const SCHEME: &str = "scheme";
const MACHINE: &str = "machine";
const LOAD: &str = "load";
const KERNELCORE: &str = "kernelcore";

/// Stands for every parameter of the load.
const ALL: &str = "all";

/// Seeds of each point, where nobody says how many.
const SEEDS: u32 = 1;

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
        return Err(format!(
            "{name}={bad}: a whole number from 0 on was wanted, with K, M or G behind it or without"
        ));
    }
    Ok(Axis { name: name.to_owned(), values: Values::Listed(values) })
}

fn range(text: &str) -> Result<Axis, String> {
    let wanted = || "NAME=LOW..HIGH with whole numbers was wanted, such as builds=2..40".to_owned();
    let (name, ends) = text.split_once('=').map_or((text, None), |(name, ends)| (name, Some(ends)));
    if name.is_empty() || name == ALL && ends.is_some() {
        return Err(wanted());
    }
    let values = match ends {
        None => Values::AsUsual,
        Some(ends) => {
            let (low, high) = ends.split_once("..").ok_or_else(wanted)?;
            let end = |text: &str| {
                let why = "from 0 on was wanted, with K, M or G behind it or without, such as builds=2..40";
                number(text).ok_or_else(|| format!("{name}={ends}: `{text}` is none: a whole number {why}"))
            };
            let (low, high) = (end(low)?, end(high)?);
            if low >= high || high == u64::MAX {
                return Err(format!("{low}..{high}: the first number must be below the second"));
            }
            Values::Range(low, high)
        }
    };
    if [SCHEME, MACHINE, LOAD].contains(&name) {
        return Err(format!("{name} is no number; list its values with --grid {name}=…"));
    }
    Ok(Axis { name: name.to_owned(), values })
}

/// From half to double of what a parameter is as usual, as far as it may go; `None`: that is one number.
fn as_usual(of: &Parameter) -> Option<Values> {
    let (low, high) = (of.default.div_ceil(2), of.default.saturating_mul(2).min(of.most));
    (low < high).then_some(Values::Range(low, high))
}

/// Ranges with their ends: those that were not said are of the load's parameters.
fn ranges(args: &Args) -> Result<Vec<Axis>, Failure> {
    if args.range.iter().all(|axis| axis.values != Values::AsUsual) {
        return Ok(args.range.clone());
    }
    if args.grid.iter().any(|axis| axis.name == LOAD) {
        return Err(usage(
            "--range without ends: loads are varied, and each has its own; give NAME=LOW..HIGH",
        ));
    }
    let load = catalogue::loads().iter().find(|load| load.name == args.repeated.load());
    let parameters: Vec<&Parameter> = load.into_iter().flat_map(|load| load.parameters()).collect();
    let is_said = |name: &str| {
        let is_it = |axis: &Axis| axis.name == name;
        args.grid.iter().any(is_it)
            || args.range.iter().any(is_it)
            || args.common.set.iter().any(|(set, _)| set == name)
    };
    let mut axes = Vec::new();
    for axis in &args.range {
        match &axis.values {
            Values::AsUsual if axis.name == ALL => {
                let others = parameters.iter().filter(|of| !is_said(of.name));
                axes.extend(
                    others.filter_map(|of| Some(Axis { name: of.name.to_owned(), values: as_usual(of)? })),
                );
            }
            Values::AsUsual => {
                let name = &axis.name;
                let of = parameters.iter().find(|of| of.name == name).ok_or_else(|| {
                    let names: Vec<&str> = parameters.iter().map(|of| of.name).collect();
                    let (load, names) = (args.repeated.load(), names.join(", "));
                    usage(&format!("--range {name}: the load {load} has {names}; or give {name}=LOW..HIGH"))
                })?;
                let values = as_usual(of).ok_or_else(|| {
                    let usual = of.default;
                    usage(&format!(
                        "--range {name}: it is {usual} as usual, which has no half and double; \
                        give {name}=LOW..HIGH"
                    ))
                })?;
                axes.push(Axis { name: name.clone(), values });
            }
            _ => axes.push(axis.clone()),
        }
    }
    Ok(axes)
}

/// Sweeps.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let shown = &args.common.shown;
    if let Some(path) = &args.resume {
        return resume(path, &shown.how());
    }
    let plan = planned(args)?;
    // A sweep is long: it is always kept.
    begin(plan, &shown.how().named("sweep"))
}

fn planned(args: &Args) -> Result<StudyPlan, Failure> {
    let ranges = ranges(args)?;
    let axes: Vec<&Axis> = args.grid.iter().chain(&ranges).collect();
    if axes.is_empty() {
        return Err(usage(
            "nothing is varied: --grid NAME=VALUE,… was wanted, or --random N with --range NAME=LOW..HIGH, \
             or with --range all for every parameter of the load",
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
    not_twice(args, &axes)?;
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
    let drawn_from: Vec<String> = ranges.iter().filter_map(told).collect();
    if !drawn_from.is_empty() {
        let text = format!("drawn: {}; what is not named is as usual", drawn_from.join(", "));
        out::note(&text);
    }
    let base = args.common.cell(args.policy.as_deref().unwrap_or("standard"), args.repeated.load())?;
    let cells: Vec<StudyCell> =
        points.into_iter().map(|values| cell(&base, &axes, values)).collect::<Result<_, _>>()?;
    check_kernelcore(&cells)?;
    let of = |axis: &&Axis| Varied {
        name: axis.name.clone(),
        is_number: ![SCHEME, MACHINE, LOAD].contains(&axis.name.as_str()),
    };
    let seeds = seeds(args.common.first_seed(), args.repeated.seeds.unwrap_or(SEEDS))?;
    Ok(StudyPlan {
        varied: axes.iter().map(of).collect(),
        judged: args.by.clone(),
        ..plan("sweep", cells, seeds, 0)
    })
}

/// A range in words.
fn told(axis: &Axis) -> Option<String> {
    match axis.values {
        Values::Range(low, high) => Some(format!("{} {low}..{high}", axis.name)),
        Values::Listed(_) | Values::AsUsual => None,
    }
}

/// What is varied has no one value beside it, which nobody would look at.
fn not_twice(args: &Args, axes: &[&Axis]) -> Result<(), Failure> {
    let common = &args.common;
    let given = [
        (SCHEME, "--policy", args.policy.is_some()),
        (LOAD, "--load", args.repeated.load.is_some()),
        (MACHINE, "--machine", common.machine.is_some()),
        (KERNELCORE, "--kernelcore", common.kernelcore.is_some()),
    ];
    let mut given = given.iter().filter(|(name, _, is)| *is && axes.iter().any(|axis| axis.name == *name));
    given.next().map_or(Ok(()), |(name, option, _)| {
        Err(usage(&format!("{name} is varied, and {option} gives it one value; leave one of them out")))
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
        // Its ends were said before.
        Values::AsUsual => String::new(),
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
        assert_eq!(range("builds").unwrap().values, Values::AsUsual);
        let load = catalogue::loads().iter().find(|load| load.name == "highalloc").unwrap();
        for of in load.parameters() {
            match as_usual(of) {
                Some(Values::Range(low, high)) => {
                    assert!(low * 2 <= of.default + 1 && high <= of.most, "{}", of.name);
                    assert!((low..=high).contains(&of.default), "{}", of.name);
                }
                other => {
                    assert!(other.is_none() && (of.default == 0 || of.default == of.most), "{}", of.name)
                }
            }
        }
        for text in
            ["all=1..2", "", "builds=2", "builds=4..2", "builds=3..3", "scheme=1..2", "=1..2", "builds=a..b"]
        {
            assert!(range(text).is_err(), "{text}");
        }
        // What is below 0 is refused in a list and in a range, with and without a size behind it.
        for bad in ["-1", "-1G", "-1G..5", "1..-2K"] {
            let said =
                if bad.contains("..") { range(&format!("x={bad}")) } else { grid(&format!("x={bad}")) };
            let said = said.unwrap_err();
            assert!(said.contains("from 0 on was wanted") && said.contains('-'), "{bad}: {said}");
        }
        assert_eq!(range("x=0..1G").unwrap().values, Values::Range(0, 1 << 30));
    }
}
