//! `pagelab sim list`: policies, what is added to them, machines and loads.

use std::io::Write;

use pagelab_experiment::recipe::BuiltIn;
use pagelab_experiment::simulated::{self, Simulated};
use pagelab_report::json::object::{Object, array};
use pagelab_report::json::{header, to_text};
use pagelab_report::style::count;
use pagelab_report::text::Page;
use pagelab_sim::loads::{Load, Parameter};
use serde_json::Value;

use pagelab_sim::policies::SHORT;

use super::catalogue::{LIBRARY, MACHINES, Named, added, loads, policies};
use crate::cmd::usage;
use crate::exit::{Exit, Failure};
use crate::out;

/// What `sim list` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One of them alone: a load with its parameters for --set, a policy, a
    /// machine
    #[arg(value_name = "NAME", conflicts_with = "json")]
    name: Option<String>,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Lists what there is, or the parameters of a load.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let text = match &args.name {
        Some(name) => one(name)?,
        None if args.json => json()?,
        None => text(),
    };
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done as u8)
}

fn text() -> String {
    let mut page = Page::new(out::style());
    named(&mut page, "policies: on which list a block lies, and what is taken when it is empty", &policies());
    for (short, name) in SHORT {
        page.hanging(&format!("  {short:<15}"), &format!("short for {name}"));
    }
    named(&mut page, "added to a policy by +, as in list2+zone+linear", &added());
    named(&mut page, "machines", &MACHINES);
    page.heading("loads");
    for load in loads() {
        page.hanging(&format!("  {:<20}", load.name), load.summary);
    }
    page.heading("recipes: comparisons that come with pagelab");
    for (name, question) in recipes() {
        page.hanging(&format!("  {name:<20}"), &question);
    }
    named(&mut page, "simulated, but in no run of a load", &LIBRARY);
    page.gap();
    page.line("→ pagelab sim list NAME   one of them   → pagelab sim compare --load LOAD");
    page.line("→ pagelab sim run paper   the paper's tests one after the other, on one boot");
    page.line("→ pagelab sim run anti-fragmentation   the same under its five schemes");
    page.finish()
}

/// The recipes that come with pagelab: name and question.
fn recipes() -> Vec<(&'static str, String)> {
    let question = |recipe: &BuiltIn| Some(Simulated::parse(recipe.name, recipe.text).ok()?.question);
    let all = simulated::BUILT_IN.iter();
    all.filter_map(|recipe| Some((recipe.name, question(recipe)?))).collect()
}

/// What a name of the list stands for.
fn one(name: &str) -> Result<String, Failure> {
    if let Some(load) = loads().iter().find(|load| load.name == name) {
        return Ok(parameters(load));
    }
    if let Some((name, question)) = recipes().into_iter().find(|(recipe, _)| *recipe == name) {
        return Ok(recipe(name, &question));
    }
    let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    let kinds = [("policy", &policies()[..]), ("added to a policy by +", &added()), ("machine", &MACHINES)];
    let found = kinds.iter().find_map(|(kind, all)| Some((kind, all.iter().find(|of| is_called(of, long))?)));
    let Some((kind, of)) = found else {
        let names = |all: &[Named]| all.iter().map(|of| of.name).collect::<Vec<_>>().join(", ");
        let short: Vec<&str> = SHORT.iter().map(|(short, _)| *short).collect();
        let loads: Vec<&str> = loads().iter().map(|load| load.name).collect();
        return Err(usage(&format!(
            "nothing is called {name:?}; there are the loads {}, the policies {}, {}, what is added to \
             them {}, the machines {}, and the recipes {}",
            loads.join(", "),
            names(&policies()),
            short.join(", "),
            names(&added()),
            names(&MACHINES),
            recipes().iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        )));
    };
    let mut page = Page::new(out::style());
    let title = if long == name { name.to_owned() } else { format!("{name}, short for {long}") };
    page.hanging(&format!("{title}   "), &format!("{}   ({kind})", of.summary));
    if !of.source.is_empty() {
        page.hanging_dim("  ", of.source);
    }
    let how = match *kind {
        "machine" => format!("--machine {name}"),
        "policy" => format!("--policies {name}"),
        _ => format!("--policies standard,{}", of.name.replace("SIZE", "64M")),
    };
    page.line(format!("→ pagelab sim compare {how}"));
    Ok(page.finish())
}

/// Whether it has this name, with a size behind it or without.
fn is_called(of: &Named, name: &str) -> bool {
    of.name.split('=').next() == name.split('=').next()
}

/// A recipe: what it asks, and where it is explained.
fn recipe(name: &str, question: &str) -> String {
    let mut page = Page::new(out::style());
    page.hanging(&format!("{name}   "), &format!("{question}   (recipe)"));
    page.line(format!("→ pagelab recipes explain {name}"));
    page.line(format!("→ pagelab sim run {name}"));
    page.finish()
}

fn parameters(load: &Load) -> String {
    let mut page = Page::new(out::style());
    page.hanging(&format!("{}  ", load.name), load.summary);
    page.heading("parameters, for --set NAME=VALUE");
    let all: Vec<&Parameter> = load.parameters().collect();
    let usual: Vec<String> = all
        .iter()
        .map(|of| format!("{} {}", count(of.default.into()), of.unit).trim_end().to_owned())
        .collect();
    let name_width = all.iter().map(|of| of.name.len()).max().unwrap_or(0);
    let usual_width = usual.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    for (of, usual) in all.iter().zip(&usual) {
        // Shares have an end that matters; of the others it only keeps sums small.
        let most = match of.unit {
            "%" => format!(" (at most {})", of.most),
            _ => String::new(),
        };
        let meaning = format!("{}{most}", of.meaning);
        page.hanging(&format!("  {:<name_width$}  {usual:<usual_width$}  ", of.name), &meaning);
    }
    page.gap();
    page.line(format!("→ pagelab sim run {0}   → pagelab sim compare --load {0}", load.name));
    page.finish()
}

fn named(page: &mut Page, title: &str, all: &[Named]) {
    page.heading(title);
    for of in all {
        page.hanging(&format!("  {:<15}", of.name), of.summary);
        if !of.source.is_empty() {
            page.hanging_dim(&" ".repeat(17), of.source);
        }
    }
}

fn short() -> Value {
    array(&SHORT, |(name, of)| Object::new().put("name", *name).put("policy", *of))
}

fn json() -> Result<String, Failure> {
    let named = |of: &Named| {
        Object::new().put("name", of.name).put("summary", of.summary).option(
            "source",
            Some(of.source).filter(|text| !text.is_empty()),
            "it is of no one source",
        )
    };
    let parameter = |of: &&Parameter| {
        Object::new()
            .put("name", of.name)
            .put("default", of.default)
            .put("most", of.most)
            .put("unit", of.unit)
            .put("meaning", of.meaning)
    };
    let load = |of: &Load| {
        let parameters: Vec<&Parameter> = of.parameters().collect();
        Object::new()
            .put("name", of.name)
            .put("summary", of.summary)
            .put("parameters", array(&parameters, parameter))
    };
    let document: Value = header("sim_list")
        .put("policies", array(&policies(), named))
        .put("short", short())
        .put("added", array(&added(), named))
        .put("machines", array(&MACHINES, named))
        .put("not_in_runs", array(&LIBRARY, named))
        .put("loads", array(loads(), load))
        .put(
            "recipes",
            array(&recipes(), |(name, question)| {
                Object::new().put("name", *name).put("summary", question.as_str())
            }),
        )
        .into();
    to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}
