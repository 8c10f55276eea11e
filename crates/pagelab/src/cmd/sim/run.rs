//! `pagelab sim run`: one load under one scheme, or a recipe.

use pagelab_experiment::simulation_recipe;
use pagelab_model::experiment::Experiment;
use pagelab_model::names;

use pagelab_sim::loads;
use pagelab_study::session;
use pagelab_study::session::{SimulationOptions, start};
use pagelab_study::simulation_plan::{self, RecipeOverrides, build_plan, check_kernelcore, seed_range};

use super::options::SimulationArgs;
use crate::cmd::run::recipe_file;
use crate::cmd::usage_error;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::value_parsers::parse_bounded;

const SEED_HELP: &str = "First seed; the others follow [default: 1 for a load, or the recipe's]";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, mut_arg("seed", |arg| arg.help(SEED_HELP)))]
pub struct Args {
    /// Name of a load, or name or file of a recipe
    #[arg(value_name = "LOAD|RECIPE")]
    what: String,
    /// Scheme: a policy and its options, joined by + [default: standard]
    #[arg(long, alias = "policy", value_name = "SCHEME")]
    scheme: Option<String>,
    /// Number of seeds [default: 1 for a load, or the recipe's]
    #[arg(long, value_name = "N", value_parser = parse_bounded::<u32, 1, 1000>)]
    seeds: Option<u32>,
    /// Number of memory pictures to keep, for the first seed
    #[arg(long, value_name = "N", value_parser = parse_bounded::<u32, 0, 1000>)]
    pictures: Option<u32>,
    /// Run the recipe at a small size to check that everything works; gives no verdict
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    common: SimulationArgs,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab sim run highalloc                 the standard scheme
  pagelab sim run highalloc --scheme zone+linear --pictures 60 -o z.pagelab
  pagelab report --html z.html z.pagelab    with memory over time
  pagelab sim run paper                     tests of Gorman and Whitcroft 2006
  pagelab sim run anti-fragmentation        a built-in recipe
  pagelab sim run own.toml                  your recipe

--scheme, --machine, --kernelcore and --set apply to loads only: a recipe sets its own. Without -o, the \
 results of a recipe are written to NAME-1.pagelab or the next free name; those of a load are not saved. \
 docs/sim.md, docs/recipes.md";

pub fn run(args: &Args) -> Result<u8, Failure> {
    let is_load = loads::TABLE.iter().any(|load| load.name == args.what);
    if !is_load {
        return run_recipe_args(args);
    }
    if args.quick {
        return Err(usage_error(&format!("--quick applies to recipes only, and {} is a load", args.what)));
    }
    let scheme = args.scheme.as_deref().unwrap_or("standard");
    let choice = args.common.choice();
    let cells = vec![choice.build_cell(scheme, &args.what)?];
    check_kernelcore(&cells)?;
    let seeds = seed_range(choice.first_seed(), args.seeds.unwrap_or(1))?;
    start(build_plan("run", cells, seeds, args.pictures.unwrap_or(0)), &args.common.simulation_options())
}

fn run_recipe_args(args: &Args) -> Result<u8, Failure> {
    let name = args.what.as_str();
    let is_path = name.contains('/') || name.ends_with(".toml");
    if !is_path && simulation_recipe::find_simulation(name).is_none() && !std::path::Path::new(name).exists()
    {
        let loads: Vec<&str> = loads::TABLE.iter().map(|load| load.name).collect();
        let recipes: Vec<&str> =
            simulation_recipe::BUILT_IN_SIMULATIONS.iter().map(|recipe| recipe.name).collect();
        let known = [&loads[..], &recipes].concat();
        let hint = names::suggest(name, &known).map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        return Err(usage_error(&format!(
            "unknown load or recipe `{name}`; expected a load ({}) or a recipe ({}){hint}",
            loads.join(", "),
            recipes.join(", ")
        )));
    }
    let common = &args.common;
    let options = [
        ("--scheme", args.scheme.is_some()),
        ("--machine", common.machine.is_some()),
        ("--kernelcore", common.kernelcore.is_some()),
        ("--set", !common.set.is_empty()),
    ];
    if let Some((option, _)) = options.iter().find(|(_, is_given)| *is_given) {
        let why = "a recipe sets its own; hint: edit a copy of it (docs/recipes.md)";
        return Err(usage_error(&format!("{option} applies to loads only: {why}")));
    }
    let (origin, text) = recipe_file::read_text(name)?;
    let (seed, pictures) = (common.seed, args.pictures);
    let asked = RecipeOverrides { quick: args.quick, seed, seeds: args.seeds, pictures };
    run_recipe(&origin, &text, &asked, common.simulation_options())
}

/// Runs a recipe into a run file.
pub fn run_recipe(
    origin: &str,
    text: &str,
    overrides: &RecipeOverrides,
    options: SimulationOptions,
) -> Result<u8, Failure> {
    let plan = simulation_plan::plan_recipe(origin, text, overrides)?;
    let how = options.with_run_file(&plan.name);
    start(plan, &how)
}

/// Prints what a recipe would run.
pub fn dry_run_recipe(
    origin: &str,
    text: &str,
    overrides: &RecipeOverrides,
    is_json: bool,
) -> Result<u8, Failure> {
    let plan = simulation_plan::plan_recipe(origin, text, overrides)?;
    session::check_plan(&plan)?;
    if is_json {
        session::print_experiment(
            &Experiment { plan, trials: Vec::new() },
            &SimulationOptions { json: true, ..SimulationOptions::default() },
        )?;
        return Ok(Exit::Success as u8);
    }
    let text = simulation_plan::describe_plan(&plan, output::stdout_style());
    output::print(&text)?;
    Ok(Exit::Success as u8)
}
