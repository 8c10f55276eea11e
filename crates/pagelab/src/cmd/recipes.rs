//! `pagelab recipes`: the experiments that come with pagelab.

use std::io::Write;

use pagelab_experiment::recipe::{self, BUILT_IN, BuiltIn, Recipe, find};
use pagelab_experiment::simulated::{self, Simulated};
use pagelab_report::json::header;
use pagelab_report::json::object::{Object, array};
use pagelab_report::text::Page;

use super::usage;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

const AFTER_HELP: &str = "\
Examples:
  pagelab recipes                      what there is
  pagelab recipes explain thp          what it does, and how to read its result
  pagelab recipes show thp > own.toml  the file, to be changed and run
  pagelab run own.toml

docs/recipes.md lists every key of a recipe.
";

/// What `recipes` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,

    /// The list as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// All recipes, with the question that each answers; the default
    List,
    /// The file of a recipe as it is
    Show {
        /// Its name
        name: String,
    },
    /// What a recipe does and how its result is to be read
    Explain {
        /// Its name
        name: String,
    },
}

/// Lists, shows or explains.
pub fn run(args: &Args) -> Outcome {
    let text = match &args.what {
        None | Some(What::List) if args.json => json()?,
        None | Some(What::List) => list()?,
        Some(What::Show { name }) => built_in(name)?.text.to_owned(),
        Some(What::Explain { name }) => explain(&told(built_in(name)?)?),
    };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

/// All that come with pagelab.
fn all() -> impl Iterator<Item = &'static BuiltIn> {
    BUILT_IN.iter().chain(simulated::BUILT_IN)
}

fn built_in(name: &str) -> Result<&'static BuiltIn, Failure> {
    find(name).or_else(|| simulated::find(name)).ok_or_else(|| {
        let names: Vec<&str> = all().map(|recipe| recipe.name).collect();
        usage(&format!("there is no recipe {name:?}; there are {}", names.join(", ")))
    })
}

/// What a recipe is and does, of whatever place.
struct Told {
    name: String,
    question: String,
    explanation: String,
    workloads: Vec<String>,
    variants: Vec<String>,
}

/// What comes with pagelab is tested to be good.
fn told(built_in: &BuiltIn) -> Result<Told, Failure> {
    let bug = |bad: recipe::Bad| Failure::new(Exit::Bug, bad.to_string());
    if simulated::is_simulated(built_in.text) {
        let recipe = Simulated::parse("built in", built_in.text).map_err(bug)?;
        let loads = recipe.loads.iter().flat_map(|load| {
            recipe.machines.iter().map(move |machine| format!("{} on {}", load.name, machine.name))
        });
        return Ok(Told {
            workloads: loads.collect(),
            name: recipe.name,
            question: recipe.question,
            explanation: recipe.explanation,
            variants: recipe.schemes,
        });
    }
    let recipe = Recipe::parse("built in", built_in.text).map_err(bug)?;
    Ok(Told {
        name: recipe.name,
        question: recipe.question,
        explanation: recipe.explanation,
        workloads: recipe.workloads.into_iter().map(|workload| workload.name).collect(),
        variants: recipe.variants.into_iter().map(|variant| variant.name).collect(),
    })
}

fn list() -> Result<String, Failure> {
    let mut page = Page::new(out::style());
    let widest = all().map(|recipe| recipe.name.len()).max().unwrap_or(0);
    for built_in in all() {
        page.hanging(&format!("{:widest$}  ", built_in.name), &told(built_in)?.question);
    }
    page.gap();
    page.line("→ pagelab recipes explain NAME        → pagelab run NAME --dry-run");
    Ok(page.finish())
}

fn explain(recipe: &Told) -> String {
    let mut page = Page::new(out::style());
    page.hanging("", &format!("{}: {}", recipe.name, recipe.question));
    page.gap();
    recipe.explanation.trim().lines().for_each(|line| page.line(line));
    page.gap();
    page.hanging("workloads  ", &recipe.workloads.join(", "));
    page.hanging("variants   ", &recipe.variants.join(", "));
    page.gap();
    page.line(format!("→ pagelab run {} --dry-run", recipe.name));
    page.finish()
}

fn json() -> Result<String, Failure> {
    let recipes: Vec<Told> = all().map(told).collect::<Result<_, Failure>>()?;
    let document = header("recipes").put(
        "recipes",
        array(&recipes, |recipe| {
            Object::new()
                .put("name", recipe.name.as_str())
                .put("question", recipe.question.as_str())
                .put("explanation", recipe.explanation.trim())
                .put("workloads", recipe.workloads.clone())
                .put("variants", recipe.variants.clone())
        }),
    );
    let document: serde_json::Value = document.into();
    pagelab_report::json::to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}
