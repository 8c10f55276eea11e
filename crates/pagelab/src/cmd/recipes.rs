//! `pagelab recipes`: the experiments included in pagelab.

use pagelab_experiment::recipe::{self, BUILT_IN_RECIPES, BuiltInRecipe, Recipe};
use pagelab_experiment::simulation_recipe::{self, SimulationRecipe};
use pagelab_report::json::document_header;
use pagelab_report::json::object::{JsonObject, to_array};
use pagelab_report::text_report::TextReport;

use crate::exit::{Exit, Failure, FailureKind, Outcome, usage_error};
use crate::output;

const AFTER_HELP: &str = "\
Examples:
  pagelab recipes                      list the recipes
  pagelab recipes explain thp          explain one and its result
  pagelab recipes show thp > own.toml  copy one to change it
  pagelab run own.toml

docs/recipes.md lists every key of a recipe.
";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    what: Option<RecipesAction>,

    /// Print the list as JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum RecipesAction {
    /// List all recipes with the question each one answers (the default)
    List,
    /// Print the file of a recipe
    Show {
        /// Name of the recipe
        name: String,
    },
    /// Explain what a recipe does and how to interpret its result
    Explain {
        /// Name of the recipe
        name: String,
    },
}

/// Lists, shows or explains recipes.
pub fn run(args: &Args) -> Outcome {
    if args.json && !matches!(args.what, None | Some(RecipesAction::List)) {
        return Err(usage_error("--json prints the list: it cannot be used with show or explain"));
    }
    let text = match &args.what {
        None | Some(RecipesAction::List) if args.json => list_json()?,
        None | Some(RecipesAction::List) => list_text()?,
        Some(RecipesAction::Show { name }) => find_built_in(name)?.text.to_owned(),
        Some(RecipesAction::Explain { name }) => explain_text(&describe(find_built_in(name)?)?),
    };
    output::print(&text)?;
    Ok(Exit::Success)
}

fn built_in_recipes() -> impl Iterator<Item = &'static BuiltInRecipe> {
    BUILT_IN_RECIPES.iter().chain(simulation_recipe::BUILT_IN_SIMULATIONS)
}

pub(super) fn find_built_in(name: &str) -> Result<&'static BuiltInRecipe, Failure> {
    built_in_recipes().find(|recipe| recipe.name == name).ok_or_else(|| {
        let names: Vec<&str> = built_in_recipes().map(|recipe| recipe.name).collect();
        Failure::unknown("recipe", name, &names)
    })
}

/// Description of a recipe of either kind.
struct RecipeDescription {
    name: String,
    question: String,
    explanation: String,
    workloads: Vec<String>,
    variants: Vec<String>,
}

/// Describes a built-in recipe; tests check that all of them parse.
fn describe(built_in: &BuiltInRecipe) -> Result<RecipeDescription, Failure> {
    let bug = |bad: recipe::RecipeError| Failure::new(FailureKind::Bug, bad.to_string());
    if simulation_recipe::is_simulation_recipe(built_in.text) {
        let recipe = SimulationRecipe::parse("built in", built_in.text).map_err(bug)?;
        let loads = recipe.loads.iter().flat_map(|load| {
            recipe.machines.iter().map(move |machine| format!("{} on {}", load.name, machine.name))
        });
        return Ok(RecipeDescription {
            workloads: loads.collect(),
            name: recipe.name,
            question: recipe.question,
            explanation: recipe.explanation,
            variants: recipe.schemes,
        });
    }
    let recipe = Recipe::parse("built in", built_in.text).map_err(bug)?;
    Ok(RecipeDescription {
        name: recipe.name,
        question: recipe.question,
        explanation: recipe.explanation,
        workloads: recipe.workloads.into_iter().map(|workload| workload.name).collect(),
        variants: recipe.variants.into_iter().map(|variant| variant.name).collect(),
    })
}

fn list_text() -> Result<String, Failure> {
    let mut page = TextReport::new(output::stdout_style());
    let widest = built_in_recipes().map(|recipe| recipe.name.len()).max().unwrap_or(0);
    for built_in in built_in_recipes() {
        page.add_paragraph(&format!("{:widest$}  ", built_in.name), &describe(built_in)?.question);
    }
    page.add_gap();
    page.add_line("→ pagelab recipes explain NAME        → pagelab run NAME --dry-run");
    Ok(page.into_text())
}

fn explain_text(recipe: &RecipeDescription) -> String {
    let mut page = TextReport::new(output::stdout_style());
    page.add_text(&format!("{}: {}", recipe.name, recipe.question));
    page.add_gap();
    recipe.explanation.trim().lines().for_each(|line| page.add_line(line));
    page.add_gap();
    page.add_paragraph("workloads  ", &recipe.workloads.join(", "));
    page.add_paragraph("variants   ", &recipe.variants.join(", "));
    page.add_gap();
    page.add_line(format!("→ pagelab run {} --dry-run", recipe.name));
    page.into_text()
}

fn list_json() -> Result<String, Failure> {
    let recipes: Vec<RecipeDescription> = built_in_recipes().map(describe).collect::<Result<_, Failure>>()?;
    let document = document_header("recipes").field(
        "recipes",
        to_array(&recipes, |recipe| {
            JsonObject::new()
                .field("name", recipe.name.as_str())
                .field("question", recipe.question.as_str())
                .field("explanation", recipe.explanation.trim())
                .field("workloads", recipe.workloads.clone())
                .field("variants", recipe.variants.clone())
        }),
    );
    output::json_text(&document)
}
