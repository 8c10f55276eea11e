//! Plans of simulated experiments: configurations of a load under schemes, with consecutive seeds.

use pagelab_command::exit::{Failure, FailureKind, usage_error};
use pagelab_experiment::recipe::RecipeError;
use pagelab_experiment::simulation_recipe::SimulationRecipe;
use pagelab_model::experiment::Plan;
use pagelab_model::simulation::{SimulatedConfiguration, SimulatedWorkload};
use pagelab_model::{Bytes, size};
use pagelab_report::style::TextStyle;
use pagelab_report::text_report::{TableColumn, TextReport};

use crate::catalogue::{self, ConfigurationPart, check_configuration_parts};
use crate::sim_place::simulator_version;

/// Default load.
pub const DEFAULT_LOAD: &str = "highalloc";

/// The given choices of the machine, the parameters of the load and the first seed.
#[derive(Clone, Debug, Default)]
pub struct SimulationChoice {
    /// Machine [default: x86].
    pub machine: Option<String>,
    /// Size of kernelcore.
    pub kernelcore: Option<Bytes>,
    /// Parameters of the load.
    pub parameters: Vec<(String, u64)>,
    /// First seed [default: 1].
    pub seed: Option<u64>,
}

impl SimulationChoice {
    /// The first seed.
    pub fn first_seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Builds the configuration of a scheme and a load.
    pub fn build_cell(&self, scheme: &str, load: &str) -> Result<SimulatedConfiguration, Failure> {
        for (at, (name, _)) in self.parameters.iter().enumerate() {
            if self.parameters[..at].iter().any(|(known, _)| known == name) {
                return Err(usage_error(&format!("--set {name}: given twice")));
            }
        }
        let workload = SimulatedWorkload {
            machine: self.machine.clone().unwrap_or_else(|| "x86".to_owned()),
            kernelcore: self.kernelcore.map(|size| size.0),
            load: load.to_owned(),
            parameters: self.parameters.clone(),
        };
        Ok(SimulatedConfiguration::new(workload, scheme))
    }
}

/// Parses an integer, or a size as its number of bytes.
pub fn parse_number(text: &str) -> Option<u64> {
    size::parse(text).ok().map(|Bytes(value)| value)
}

/// The given number of consecutive seeds.
pub fn seed_range(first: u64, count: u32) -> Result<Vec<u64>, Failure> {
    let last = first.checked_add(u64::from(count).saturating_sub(1)).filter(|&last| last <= i64::MAX as u64);
    let last = last.ok_or_else(|| usage_error(&format!("--seed {first}: expected at most 2^63 - 1")))?;
    Ok((first..=last).collect())
}

/// Builds a plan of these configurations.
pub fn build_plan(
    name: &str,
    mut configurations: Vec<SimulatedConfiguration>,
    seeds: Vec<u64>,
    pictures: u32,
) -> Plan {
    for cell in &mut configurations {
        (cell.lists, cell.zones) =
            (catalogue::list_descriptions(&cell.scheme), catalogue::machine_zones(cell));
    }
    Plan { pictures, ..Plan::for_simulator(name, &simulator_version(), configurations, seeds) }
}

/// Rejects --kernelcore without effect.
pub fn check_kernelcore(cells: &[SimulatedConfiguration]) -> Result<(), Failure> {
    let has_zone = |cell: &SimulatedConfiguration| cell.scheme.split('+').any(|word| word == "zone");
    if cells.iter().any(|cell| cell.workload.kernelcore.is_some()) && !cells.iter().any(has_zone) {
        return Err(usage_error(
            "--kernelcore requires a scheme with a movable zone; hint: add zone, as in zone or list+zone",
        ));
    }
    Ok(())
}

/// Overrides of a recipe from the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecipeOverrides {
    /// Quick size.
    pub quick: bool,
    /// First seed.
    pub seed: Option<u64>,
    /// Number of seeds.
    pub seeds: Option<u32>,
    /// Pictures of memory that are kept.
    pub pictures: Option<u32>,
}

/// Describes what a plan would run.
pub fn describe_plan(plan: &Plan, style: TextStyle) -> String {
    let mut output = TextReport::new(style);
    output.add_paragraph(&format!("{}  ", plan.name), &plan.question);
    let (cells, seeds) = (plan.points().len(), plan.seeds().len());
    let text =
        format!("{cells} variants with {seeds} seeds each, simulated: changes nothing on this machine");
    output.add_text(&text);
    output.add_gap();
    let columns = [TableColumn::left("load"), TableColumn::left("machine"), TableColumn::left("scheme")];
    let row = |point: usize| {
        let point = plan.point(point)?;
        Some(vec![point.workload.load.clone(), point.workload.machine.clone(), point.scheme.to_owned()])
    };
    output.add_table(2, &columns, &(0..cells).filter_map(row).collect::<Vec<_>>());
    output.into_text()
}

/// Builds the plan of a recipe; errors name its lines.
pub fn plan_recipe(origin: &str, text: &str, overrides: &RecipeOverrides) -> Result<Plan, Failure> {
    let bad = |bad: &RecipeError| Failure::new(FailureKind::BadInput, format!("{bad}\n  nothing was run"));
    let recipe = SimulationRecipe::parse(origin, text).map_err(|found| bad(&found))?;
    let recipe = if overrides.quick { recipe.into_quick() } else { recipe };
    let mut cells = Vec::new();
    for machine in &recipe.machines {
        for load in &recipe.loads {
            let from = cells.len();
            let workload = SimulatedWorkload {
                machine: machine.name.clone(),
                kernelcore: machine.kernelcore.map(|size| size.0),
                load: load.name.clone(),
                parameters: load.parameters.clone(),
            };
            let of_scheme = |scheme: &String| SimulatedConfiguration::new(workload.clone(), scheme.as_str());
            cells.extend(recipe.schemes.iter().map(of_scheme));
            for cell in &cells[from..] {
                check_configuration_parts(cell).map_err(|(part, text)| {
                    let line = match part {
                        ConfigurationPart::Scheme => recipe.schemes_line,
                        ConfigurationPart::Machine => machine.lines.0,
                        ConfigurationPart::Kernelcore => machine.lines.1,
                        ConfigurationPart::Load => load.lines.0,
                        ConfigurationPart::Parameters => load.lines.1,
                    };
                    bad(&recipe.error_at(line, text))
                })?;
            }
        }
    }
    Ok(Plan {
        question: recipe.question.clone(),
        explanation: recipe.explanation.clone(),
        origin: recipe.origin.clone(),
        recipe: text.to_owned(),
        ..build_plan(
            &recipe.name,
            cells,
            seed_range(overrides.seed.unwrap_or(recipe.seed), overrides.seeds.unwrap_or(recipe.seeds))?,
            overrides.pictures.unwrap_or(recipe.pictures),
        )
    })
}
