//! `pagelab sim list`: policies, what is added to them, machines and loads.

use std::io::Write;

use pagelab_report::json::object::{Object, array};
use pagelab_report::json::{header, to_text};
use pagelab_report::text::{Column, Page};
use pagelab_sim::loads::{Load, Parameter};
use serde_json::Value;

use pagelab_sim::policies::SHORT;

use super::catalogue::{ADDED, MACHINES, Named, loads, policies};
use crate::cmd::usage;
use crate::exit::{Exit, Failure};
use crate::out;

/// What `sim list` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A load: its parameters, for --set
    #[arg(value_name = "LOAD", conflicts_with = "json")]
    load: Option<String>,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Lists what there is, or the parameters of a load.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let text = match &args.load {
        Some(name) => parameters(name)?,
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
        page.hanging(&format!("  {short:<14}"), &format!("short for {name}"));
    }
    named(&mut page, "added to a policy by +, as in list3+zone+linear", &ADDED);
    named(&mut page, "machines", &MACHINES);
    page.heading("loads");
    for load in loads() {
        page.hanging(&format!("  {:<20}", load.name), load.summary);
    }
    page.gap();
    page.line("→ pagelab sim list LOAD   its parameters   → pagelab sim compare --load LOAD");
    page.finish()
}

fn parameters(name: &str) -> Result<String, Failure> {
    let Some(load) = loads().iter().find(|load| load.name == name) else {
        let names: Vec<&str> = loads().iter().map(|load| load.name).collect();
        return Err(usage(&format!("there is no load {name}; there are {}", names.join(", "))));
    };
    let mut page = Page::new(out::style());
    page.hanging(&format!("{}  ", load.name), load.summary);
    page.heading("parameters, for --set NAME=VALUE");
    let row = |of: &Parameter| {
        vec![of.name.to_owned(), of.default.to_string(), of.unit.to_owned(), of.meaning.to_owned()]
    };
    let rows: Vec<Vec<String>> = load.parameters().map(row).collect();
    let columns =
        [Column::left("name"), Column::right("usual"), Column::left("unit"), Column::left("what it is")];
    page.table(2, &columns, &rows);
    Ok(page.finish())
}

fn named(page: &mut Page, title: &str, all: &[Named]) {
    page.heading(title);
    for of in all {
        page.hanging(&format!("  {:<14}", of.name), of.summary);
        if !of.source.is_empty() {
            page.hanging_dim(&" ".repeat(16), of.source);
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
        .put("added", array(&ADDED, named))
        .put("machines", array(&MACHINES, named))
        .put("loads", array(loads(), load))
        .into();
    to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}
