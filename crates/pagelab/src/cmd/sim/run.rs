//! `pagelab sim run`: one load under one scheme, or a recipe.

use std::io::Write;

use pagelab_experiment::recipe::Bad;
use pagelab_experiment::simulated::{self, Simulated};
use pagelab_model::study::{Study, StudyCell, StudyPlan};
use pagelab_report::text::{Column, Page};

use super::catalogue::{Part, check_parts};
use super::options::{Common, check_kernelcore, plan, seeds};
use super::session::{How, begin, simulator};
use super::{catalogue, session};
use crate::bounds;
use crate::cmd::run::load;
use crate::cmd::usage;
use crate::exit::{Exit, Failure};
use crate::out;

/// What `sim run` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A load, or a recipe's name or file
    #[arg(value_name = "LOAD|RECIPE")]
    what: String,
    /// The scheme, for a load: a policy and what is added to it, joined by +
    /// [default: standard]
    #[arg(long, value_name = "SCHEME")]
    policy: Option<String>,
    /// Seeds [default: 1 for a load, a recipe's own]
    #[arg(long, value_name = "N", value_parser = bounds::small::<1, 1000>)]
    seeds: Option<u32>,
    /// Pictures of memory to keep, of the first seed
    #[arg(long, value_name = "N", value_parser = bounds::small::<0, 1000>)]
    pictures: Option<u32>,
    /// A recipe's quick size: shows that all works, and decides nothing
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    common: Common,
}

const AFTER_HELP: &str = "\
Examples:
  pagelab sim run highalloc                     under the standard policy
  pagelab sim run highalloc --policy zone+linear --pictures 60 -o z.pagelab
  pagelab report --html z.html z.pagelab        with memory over time
  pagelab sim run paper                         a paper's tests, on one boot
  pagelab sim run anti-fragmentation --quick    a recipe that comes with pagelab
  pagelab sim run own.toml                      and one of yours

--policy, --machine, --kernelcore and --set are for a load: a recipe has its \
own. Without -o a recipe is kept in NAME-1.pagelab here, or the next free name; \
a load is not kept. docs/sim.md, docs/recipes.md";

/// Runs a load or a recipe.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let is_load = catalogue::loads().iter().any(|load| load.name == args.what);
    if !is_load {
        return of_recipe(args);
    }
    if args.quick {
        return Err(usage(&format!("--quick is for recipes, and {} is a load", args.what)));
    }
    let scheme = args.policy.as_deref().unwrap_or("standard");
    let cells = vec![args.common.cell(scheme, &args.what)?];
    check_kernelcore(&cells)?;
    let seeds = seeds(args.common.first_seed(), args.seeds.unwrap_or(1))?;
    begin(plan("run", cells, seeds, args.pictures.unwrap_or(0)), &args.common.shown.how())
}

fn of_recipe(args: &Args) -> Result<u8, Failure> {
    let name = args.what.as_str();
    let is_path = name.contains('/') || name.ends_with(".toml");
    if !is_path && simulated::find(name).is_none() && !std::path::Path::new(name).exists() {
        let loads: Vec<&str> = catalogue::loads().iter().map(|load| load.name).collect();
        let recipes: Vec<&str> = simulated::BUILT_IN.iter().map(|recipe| recipe.name).collect();
        return Err(usage(&format!(
            "{name}: no load and no recipe of the simulator is called so, and there is no such file; there \
             are the loads {} and the recipes {}",
            loads.join(", "),
            recipes.join(", ")
        )));
    }
    let common = &args.common;
    let given = [
        ("--policy", args.policy.is_some()),
        ("--machine", common.machine.is_some()),
        ("--kernelcore", common.kernelcore.is_some()),
        ("--set", !common.set.is_empty()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, is_given)| *is_given) {
        let why = "a recipe has its own; change a copy of it (docs/recipes.md)";
        return Err(usage(&format!("{option} is for a load: {why}")));
    }
    let (origin, text) = load::text(name)?;
    let (seed, pictures) = (common.seed, args.pictures);
    let asked = Asked { quick: args.quick, seed, seeds: args.seeds, pictures };
    recipe(&origin, &text, &asked, common.shown.how())
}

/// What a command line changes of a recipe.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    pub quick: bool,
    pub seed: Option<u64>,
    pub seeds: Option<u32>,
    pub pictures: Option<u32>,
}

/// Runs a recipe into a run file.
pub fn recipe(origin: &str, text: &str, asked: &Asked, how: How) -> Result<u8, Failure> {
    let plan = planned(origin, text, asked)?;
    let how = how.named(&plan.name);
    begin(plan, &how)
}

/// Says what a recipe would run.
pub fn dry_run(origin: &str, text: &str, asked: &Asked, is_json: bool) -> Result<u8, Failure> {
    let plan = planned(origin, text, asked)?;
    session::check(&plan)?;
    if is_json {
        session::print(&Study { plan, trials: Vec::new() }, &How { json: true, ..How::default() })?;
        return Ok(Exit::Done as u8);
    }
    let mut page = Page::new(out::style());
    page.hanging(&format!("{}  ", plan.name), &plan.question);
    let (cells, seeds) = (plan.cells.len(), plan.seeds.len());
    let text =
        format!("{cells} variants with {seeds} seeds each, simulated: nothing of this machine is changed");
    page.hanging("", &text);
    page.gap();
    let columns = [Column::left("load"), Column::left("machine"), Column::left("scheme")];
    let row = |cell: &StudyCell| vec![cell.load.clone(), cell.machine.clone(), cell.scheme.clone()];
    page.table(2, &columns, &plan.cells.iter().map(row).collect::<Vec<_>>());
    let mut out = out::stdout();
    out.write_all(page.finish().as_bytes())?;
    out.flush()?;
    Ok(Exit::Done as u8)
}

fn planned(origin: &str, text: &str, asked: &Asked) -> Result<StudyPlan, Failure> {
    let bad = |bad: &Bad| Failure::new(Exit::BadInput, format!("{bad}\n  nothing was run"));
    let recipe = Simulated::parse(origin, text).map_err(|found| bad(&found))?;
    let recipe = if asked.quick { recipe.quick() } else { recipe };
    let mut cells = Vec::new();
    for machine in &recipe.machines {
        for load in &recipe.loads {
            let from = cells.len();
            cells.extend(recipe.schemes.iter().map(|scheme| StudyCell {
                machine: machine.name.clone(),
                kernelcore: machine.kernelcore.map(|size| size.0),
                scheme: scheme.clone(),
                load: load.name.clone(),
                parameters: load.parameters.clone(),
                values: Vec::new(),
                lists: Vec::new(),
                zones: Vec::new(),
            }));
            for cell in &cells[from..] {
                check_parts(cell).map_err(|(part, text)| {
                    let line = match part {
                        Part::Scheme => recipe.schemes_line,
                        Part::Machine => machine.lines.0,
                        Part::Kernelcore => machine.lines.1,
                        Part::Load => load.lines.0,
                        Part::Parameters => load.lines.1,
                    };
                    bad(&recipe.wrong_at(line, text))
                })?;
            }
        }
    }
    Ok(StudyPlan {
        question: recipe.question.clone(),
        explanation: recipe.explanation.clone(),
        simulator: simulator(),
        ..plan(
            &recipe.name,
            cells,
            seeds(asked.seed.unwrap_or(recipe.seed), asked.seeds.unwrap_or(recipe.seeds))?,
            asked.pictures.unwrap_or(recipe.pictures),
        )
    })
}
