//! `pagelab recipes`: the experiments that come with pagelab.

use std::io::Write;

use pagelab_experiment::recipe::{BUILT_IN, BuiltIn, Recipe, find};
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
        Some(What::Explain { name }) => explain(&recipe(built_in(name)?)?),
    };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

fn built_in(name: &str) -> Result<&'static BuiltIn, Failure> {
    find(name).ok_or_else(|| {
        let names: Vec<&str> = BUILT_IN.iter().map(|recipe| recipe.name).collect();
        usage(&format!("there is no recipe {name:?}; there are {}", names.join(", ")))
    })
}

/// What comes with pagelab is tested to be good.
fn recipe(built_in: &BuiltIn) -> Result<Recipe, Failure> {
    Recipe::parse("built in", built_in.text).map_err(|bad| Failure::new(Exit::Bug, bad.to_string()))
}

fn list() -> Result<String, Failure> {
    let mut page = Page::new(out::style());
    let widest = BUILT_IN.iter().map(|recipe| recipe.name.len()).max().unwrap_or(0);
    for built_in in BUILT_IN {
        page.hanging(&format!("{:widest$}  ", built_in.name), &recipe(built_in)?.question);
    }
    page.gap();
    page.line("→ pagelab recipes explain NAME        → pagelab run NAME --dry-run");
    Ok(page.finish())
}

fn explain(recipe: &Recipe) -> String {
    let names = |names: Vec<&str>| names.join(", ");
    let workloads = names(recipe.workloads.iter().map(|workload| workload.name.as_str()).collect());
    let variants = names(recipe.variants.iter().map(|variant| variant.name.as_str()).collect());
    let mut page = Page::new(out::style());
    page.hanging("", &format!("{}: {}", recipe.name, recipe.question));
    page.gap();
    recipe.explanation.trim().lines().for_each(|line| page.line(line));
    page.gap();
    page.hanging("workloads  ", &workloads);
    page.hanging("variants   ", &variants);
    page.gap();
    page.line(format!("→ pagelab run {} --dry-run", recipe.name));
    page.finish()
}

fn json() -> Result<String, Failure> {
    let recipes: Vec<Recipe> = BUILT_IN.iter().map(recipe).collect::<Result<_, Failure>>()?;
    let document = header("recipes").put(
        "recipes",
        array(&recipes, |recipe| {
            let workloads: Vec<&str> = recipe.workloads.iter().map(|w| w.name.as_str()).collect();
            let variants: Vec<&str> = recipe.variants.iter().map(|v| v.name.as_str()).collect();
            Object::new()
                .put("name", recipe.name.as_str())
                .put("question", recipe.question.as_str())
                .put("explanation", recipe.explanation.trim())
                .put("workloads", workloads)
                .put("variants", variants)
        }),
    );
    let document: serde_json::Value = document.into();
    pagelab_report::json::to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}
