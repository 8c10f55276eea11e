//! Plan of a sweep: a grid over factors, or random points of it.

use std::collections::BTreeSet;

use pagelab_model::experiment::Plan;
use pagelab_model::random::SplitMix64;
use pagelab_model::simulation::{SimulatedConfiguration, Sweep, SweepFactor};
use pagelab_model::{names, size};
use pagelab_sim::loads::{self, Parameter};

use pagelab_command::exit::{Failure, usage_error};

use crate::sim_place::POINTS_MAX;
use crate::simulation_plan::{
    DEFAULT_LOAD, SimulationChoice, build_plan, check_kernelcore, parse_number, seed_range,
};

/// Varied parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepAxis {
    name: String,
    values: AxisValues,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AxisValues {
    List(Vec<String>),
    Range(u64, u64),
    /// 0.5 to 2 × the default.
    AroundDefault,
}

/// Axes that are not parameters of a load.
const SCHEME: &str = "scheme";
const MACHINE: &str = "machine";
const LOAD: &str = "load";
const KERNELCORE: &str = "kernelcore";

/// Name that selects every parameter of the load.
const ALL_PARAMETERS: &str = "all";

const DEFAULT_SEEDS: u32 = 1;

/// Varied and fixed parameters of a sweep.
#[derive(Clone, Debug, Default)]
pub struct SweepRequest {
    /// Lists of values.
    pub grid: Vec<SweepAxis>,
    /// Ranges of values, for random points.
    pub ranges: Vec<SweepAxis>,
    /// Number of random points, instead of all.
    pub random: Option<u32>,
    /// Scheme, unless it is varied [default: standard].
    pub scheme: Option<String>,
    /// Load, unless it is varied.
    pub load: Option<String>,
    /// Machine and parameters that are not varied, and the first seed.
    pub choice: SimulationChoice,
    /// Number of seeds for each point.
    pub seeds: Option<u32>,
    /// The figure to judge by.
    pub judged: Option<String>,
}

/// Parses `NAME=VALUE,VALUE`.
pub fn parse_grid(text: &str) -> Result<SweepAxis, String> {
    let expected = || "expected NAME=VALUE,VALUE, for example scheme=list,zone".to_owned();
    let (name, values) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(expected)?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if values.iter().any(String::is_empty) {
        return Err(expected());
    }
    if let Some(twice) = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value)) {
        return Err(format!("{} is given twice", twice.1));
    }
    let name = if name == "policy" { SCHEME } else { name };
    let is_number = ![SCHEME, MACHINE, LOAD].contains(&name);
    if let Some(bad) = values.iter().find(|value| is_number && parse_number(value).is_none()) {
        return Err(format!("{name}={bad}: expected a non-negative integer or a size, for example 7 or 64M"));
    }
    Ok(SweepAxis { name: name.to_owned(), values: AxisValues::List(values) })
}

/// Parses `NAME=LOW..HIGH`, `NAME` or `all`.
pub fn parse_range(text: &str) -> Result<SweepAxis, String> {
    let expected = || "expected NAME=LOW..HIGH with integers, for example builds=2..40".to_owned();
    let (name, ends) = text.split_once('=').map_or((text, None), |(name, ends)| (name, Some(ends)));
    if name.is_empty() || name == ALL_PARAMETERS && ends.is_some() {
        return Err(expected());
    }
    let values = match ends {
        None => AxisValues::AroundDefault,
        Some(ends) => {
            let (low, high) = ends.split_once("..").ok_or_else(expected)?;
            let end = |text: &str| {
                parse_number(text).ok_or_else(|| {
                    let expected = "expected non-negative integers or sizes, for example builds=2..40";
                    format!("{name}={ends}: {expected}, found `{text}`")
                })
            };
            let (low, high) = (end(low)?, end(high)?);
            if low >= high || high == u64::MAX {
                return Err(format!("{low}..{high}: the first number must be below the second"));
            }
            AxisValues::Range(low, high)
        }
    };
    if [SCHEME, MACHINE, LOAD].contains(&name) {
        return Err(format!("{name} is not a number; hint: list its values with --grid {name}=…"));
    }
    Ok(SweepAxis { name: name.to_owned(), values })
}

/// Range of 0.5 to 2 × the default of a parameter, within its limits; `None` if that is a single number.
fn default_range(parameter: &Parameter) -> Option<AxisValues> {
    let (low, high) = (parameter.default.div_ceil(2), parameter.default.saturating_mul(2).min(parameter.max));
    (low < high).then_some(AxisValues::Range(low, high))
}

impl SweepRequest {
    fn load(&self) -> &str {
        self.load.as_deref().unwrap_or(DEFAULT_LOAD)
    }

    /// Builds the plan, with fewer random points if not enough exist. Also returns the ranges of those
    /// points.
    pub fn plan(&self) -> Result<(Plan, Vec<String>), Failure> {
        let ranges = self.resolve_ranges()?;
        let axes: Vec<&SweepAxis> = self.grid.iter().chain(&ranges).collect();
        if axes.is_empty() {
            return Err(usage_error(
                "nothing to vary: add --grid NAME=VALUE,…, or --random N with --range NAME=LOW..HIGH or \
                 --range all",
            ));
        }
        for (at, axis) in axes.iter().enumerate() {
            if axes[..at].iter().any(|known| known.name == axis.name) {
                return Err(usage_error(&format!(
                    "{} is varied twice; hint: put all values into one list",
                    axis.name
                )));
            }
            if self.choice.parameters.iter().any(|(name, _)| *name == axis.name) {
                return Err(usage_error(&format!("{} is both set and varied", axis.name)));
            }
        }
        self.reject_fixed_and_varied(&axes)?;
        let points = match self.random {
            Some(count) => random_points(&axes, count, self.choice.first_seed()),
            None => grid_points(&axes)?,
        };
        let base = self.choice.build_cell(self.scheme.as_deref().unwrap_or("standard"), self.load())?;
        let cells: Vec<SimulatedConfiguration> =
            points.into_iter().map(|values| cell_at(&base, &axes, values)).collect::<Result<_, _>>()?;
        check_kernelcore(&cells)?;
        let factor = |axis: &&SweepAxis| SweepFactor {
            name: axis.name.clone(),
            is_number: ![SCHEME, MACHINE, LOAD].contains(&axis.name.as_str()),
        };
        let seeds = seed_range(self.choice.first_seed(), self.seeds.unwrap_or(DEFAULT_SEEDS))?;
        let sweep = Sweep { varied: axes.iter().map(factor).collect(), judged: self.judged.clone() };
        let plan = build_plan("sweep", cells, seeds, 0).into_sweep(sweep);
        Ok((plan, ranges.iter().filter_map(range_text).collect()))
    }

    /// Rejects an option that fixes a varied axis: its value would be ignored.
    fn reject_fixed_and_varied(&self, axes: &[&SweepAxis]) -> Result<(), Failure> {
        let options = [
            (SCHEME, "--scheme", self.scheme.is_some()),
            (LOAD, "--load", self.load.is_some()),
            (MACHINE, "--machine", self.choice.machine.is_some()),
            (KERNELCORE, "--kernelcore", self.choice.kernelcore.is_some()),
        ];
        let mut given =
            options.iter().filter(|(name, _, is)| *is && axes.iter().any(|axis| axis.name == *name));
        given.next().map_or(Ok(()), |(name, option, _)| {
            Err(usage_error(&format!("{name} is varied, but {option} fixes it; hint: remove one of the two")))
        })
    }

    /// Resolves ranges without ends from the parameters of the load.
    fn resolve_ranges(&self) -> Result<Vec<SweepAxis>, Failure> {
        if self.ranges.iter().all(|axis| axis.values != AxisValues::AroundDefault) {
            return Ok(self.ranges.clone());
        }
        if self.grid.iter().any(|axis| axis.name == LOAD) {
            return Err(usage_error(
                "--range without bounds is not possible if the load varies; hint: use NAME=LOW..HIGH",
            ));
        }
        let load = loads::TABLE.iter().find(|load| load.name == self.load());
        let parameters: Vec<&Parameter> = load.into_iter().flat_map(|load| load.parameters()).collect();
        let is_said = |name: &str| {
            let is_it = |axis: &SweepAxis| axis.name == name;
            self.grid.iter().any(is_it)
                || self.ranges.iter().any(is_it)
                || self.choice.parameters.iter().any(|(set, _)| set == name)
        };
        let mut axes = Vec::new();
        for axis in &self.ranges {
            match &axis.values {
                AxisValues::AroundDefault if axis.name == ALL_PARAMETERS => {
                    let others = parameters.iter().filter(|of| !is_said(of.name));
                    axes.extend(others.filter_map(|of| {
                        Some(SweepAxis { name: of.name.to_owned(), values: default_range(of)? })
                    }));
                }
                AxisValues::AroundDefault => {
                    let name = &axis.name;
                    let parameter = parameters.iter().find(|of| of.name == name).ok_or_else(|| {
                        let known: Vec<&str> = parameters.iter().map(|of| of.name).collect();
                        let text = names::describe_unknown("parameter", name, &known);
                        usage_error(&format!("--range: load {}: {text}", self.load()))
                    })?;
                    let values = default_range(parameter).ok_or_else(|| {
                        let usual = parameter.default;
                        usage_error(&format!(
                            "--range {name}: no range can be derived from the default {usual}; hint: use \
                            {name}=LOW..HIGH"
                        ))
                    })?;
                    axes.push(SweepAxis { name: name.clone(), values });
                }
                _ => axes.push(axis.clone()),
            }
        }
        Ok(axes)
    }
}

fn range_text(axis: &SweepAxis) -> Option<String> {
    match axis.values {
        AxisValues::Range(low, high) => Some(format!("{} {low}..{high}", axis.name)),
        AxisValues::List(_) | AxisValues::AroundDefault => None,
    }
}

/// All points of a grid, the last axis fastest.
fn grid_points(axes: &[&SweepAxis]) -> Result<Vec<Vec<String>>, Failure> {
    let mut points = vec![Vec::new()];
    for axis in axes {
        let AxisValues::List(values) = &axis.values else { continue };
        if points.len() * values.len() > POINTS_MAX {
            let text =
                format!("the grid has more than {POINTS_MAX} points; hint: use fewer values, or --random N");
            return Err(usage_error(&text));
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

/// Distinct random points from the seed, each value independently; fewer if there are not enough.
fn random_points(axes: &[&SweepAxis], count: u32, seed: u64) -> Vec<Vec<String>> {
    /// Limit of consecutive duplicates: then hardly any new points remain.
    const DUPLICATES_MAX: u32 = 1000;
    // Different from the seeds of the simulations.
    let mut random = SplitMix64::new(seed ^ 0x7377_6565_7065);
    let mut draw = |axis: &&SweepAxis| match &axis.values {
        AxisValues::List(values) => {
            values.get(random.next_below(values.len() as u64) as usize).cloned().unwrap_or_default()
        }
        AxisValues::Range(low, high) => (low + random.next_below(high - low + 1)).to_string(),
        // Ranges without ends are already resolved.
        AxisValues::AroundDefault => String::new(),
    };
    let (mut points, mut known, mut in_vain) = (Vec::new(), BTreeSet::new(), 0);
    while points.len() < count as usize && in_vain < DUPLICATES_MAX {
        let point: Vec<String> = axes.iter().map(&mut draw).collect();
        in_vain += 1;
        if known.insert(point.clone()) {
            points.push(point);
            in_vain = 0;
        }
    }
    points
}

/// Builds the configuration of a point.
fn cell_at(
    base: &SimulatedConfiguration,
    axes: &[&SweepAxis],
    values: Vec<String>,
) -> Result<SimulatedConfiguration, Failure> {
    let mut cell = base.clone();
    for (axis, value) in axes.iter().zip(values) {
        match axis.name.as_str() {
            SCHEME => cell.scheme.clone_from(&value),
            MACHINE => cell.workload.machine.clone_from(&value),
            LOAD => cell.workload.load.clone_from(&value),
            KERNELCORE => {
                let size = size::parse_nonzero(&value);
                let size = size.map_err(|why| usage_error(&format!("kernelcore={value}: {why}")))?;
                cell.workload.kernelcore = Some(size.0);
            }
            name => {
                cell.workload.parameters.push((name.to_owned(), parse_number(&value).unwrap_or_default()))
            }
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
        let (schemes, builds) =
            (parse_grid("policy=list,zone").unwrap(), parse_grid("builds=1,2,4K").unwrap());
        let points = grid_points(&[&schemes, &builds]).unwrap();
        assert_eq!(points.len(), 6);
        assert_eq!(
            (&points[0], &points[5]),
            (&vec!["list".to_owned(), "1".to_owned()], &vec!["zone".to_owned(), "4K".to_owned()])
        );
        let builds = parse_range("builds=3..5").unwrap();
        let mut points = random_points(&[&schemes, &builds], 300, 1);
        assert_eq!(points, random_points(&[&schemes, &builds], 300, 1));
        assert_ne!(points, random_points(&[&schemes, &builds], 300, 2));
        // There are six points, and each occurs once.
        points.sort();
        let all = ["list", "zone"].map(|scheme| ["3", "4", "5"].map(|of| [scheme, of].map(str::to_owned)));
        assert_eq!(points, all.as_flattened());
        assert_eq!(random_points(&[&schemes, &builds], 4, 1).len(), 4);
    }

    #[test]
    fn what_makes_no_axis_is_refused() {
        for text in ["scheme", "=1", "scheme=", "scheme=a,,b", "scheme=a,a", "builds=x", "builds=1.5"] {
            assert!(parse_grid(text).is_err(), "{text}");
        }
        assert_eq!(parse_range("builds").unwrap().values, AxisValues::AroundDefault);
        let load = loads::TABLE.iter().find(|load| load.name == "highalloc").unwrap();
        for of in load.parameters() {
            match default_range(of) {
                Some(AxisValues::Range(low, high)) => {
                    assert!(low * 2 <= of.default + 1 && high <= of.max, "{}", of.name);
                    assert!((low..=high).contains(&of.default), "{}", of.name);
                }
                other => {
                    assert!(other.is_none() && (of.default == 0 || of.default == of.max), "{}", of.name)
                }
            }
        }
        for text in
            ["all=1..2", "", "builds=2", "builds=4..2", "builds=3..3", "scheme=1..2", "=1..2", "builds=a..b"]
        {
            assert!(parse_range(text).is_err(), "{text}");
        }
        // Negative values are rejected in lists and ranges, with and without a suffix.
        for bad in ["-1", "-1G", "-1G..5", "1..-2K"] {
            let said = if bad.contains("..") {
                parse_range(&format!("x={bad}"))
            } else {
                parse_grid(&format!("x={bad}"))
            };
            let said = said.unwrap_err();
            assert!(said.contains("non-negative integer") && said.contains('-'), "{bad}: {said}");
        }
        assert_eq!(parse_range("x=0..1G").unwrap().values, AxisValues::Range(0, 1 << 30));
    }
}
