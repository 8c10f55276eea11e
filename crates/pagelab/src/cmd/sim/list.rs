//! `pagelab sim list`: policies, scheme keywords, machines and loads.

use pagelab_study::catalogue::{describe_name, list_json, list_text};

use crate::exit::{Exit, Failure};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  pagelab sim list              all names
  pagelab sim list highalloc    a load and its parameters
  pagelab sim list mobility     a policy
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show one entry: a load with its parameters for --set, a policy or a machine
    #[arg(value_name = "NAME", conflicts_with = "json")]
    name: Option<String>,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8, Failure> {
    let style = output::stdout_style();
    let text = match &args.name {
        Some(name) => describe_name(name, style)?,
        None if args.json => list_json()?,
        None => list_text(style),
    };
    output::print(&text)?;
    Ok(Exit::Success as u8)
}
