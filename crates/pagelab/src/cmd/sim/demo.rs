//! `pagelab sim demo`: a small memory, step by step, for learners.

use std::path::PathBuf;

use pagelab_model::Bytes;
use pagelab_report::html;
use pagelab_report::sim::demo::Demo;
use pagelab_report::style::{TextStyle, format_bytes};
use pagelab_study::demo::{DemoRequest, WIDTH_MAX, build_demo, demo_json, demo_text, select_policies};
use pagelab_watch::demo_viewer;

use crate::atomic_file::{OutputFile, check_output};
use crate::exit::{Exit, Failure, Outcome};
use crate::output;
use crate::output_args::ForceArgs;
use crate::value_parsers::{parse_bounded, parse_seed};
use crate::watch::terminal;

const EXAMPLES: &str = "\
Examples:
  pagelab sim demo                              on a terminal: one step per key
  pagelab sim demo --policy standard,mobility   the same requests with both
  pagelab sim demo --steps 200 --seed 7         random steps after the lesson
  pagelab sim demo --html demo.html             a page with a slider

Keys: Enter or space next, b back, p next policy, Home and End, Up and Down\nto scroll, q quit.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Policies (docs/policies.md); the first is shown in full [default: mobility; on a terminal and in a
    /// page, all]
    #[arg(long, value_name = "NAME,NAME…", value_delimiter = ',')]
    policy: Vec<String>,
    /// Memory in pages: a multiple of 16, from 32 to 256
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_bounded::<u32, 32, 256>)]
    pages: u32,
    /// Number of steps; those after the lesson are random [default: the lesson]
    #[arg(long, value_name = "N", value_parser = parse_bounded::<u32, 1, 1000>)]
    steps: Option<u32>,
    /// Seed of the random requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_seed)]
    seed: u64,
    /// Print all steps as text, even on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Write an HTML page
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plain", "json"])]
    html: Option<PathBuf>,
    #[command(flatten)]
    replacement: ForceArgs,
}

/// Shows the demonstration in the selected form.
pub fn run(args: &Args) -> Outcome {
    let page = args.html.as_deref().map(|path| check_output(path, args.replacement.force)).transpose()?;
    let is_watched = page.is_none() && !args.plain && !args.json && terminal::check_terminal().is_ok();
    let policies = select_policies(&args.policy, is_watched || page.is_some())?;
    let request = DemoRequest { pages: args.pages, steps: args.steps, seed: args.seed };
    let demo = build_demo(request, &policies)?;
    match page {
        Some(target) => write_html(&demo, &target)?,
        None if args.json => output::print(&demo_json(request, &demo)?)?,
        None if is_watched => demo_viewer::run(demo, output::stdout_style())?,
        None => output::print(&demo_text(&demo, output::stdout_style()))?,
    }
    Ok(Exit::Success)
}

fn write_html(demo: &Demo, target: &OutputFile) -> Result<(), Failure> {
    let text = demo_text(demo, TextStyle { width: WIDTH_MAX, ..TextStyle::PLAIN });
    let page = html::sim::render_demo_page(demo, &text);
    let page = page.map_err(|error| Failure::not_serialized("the page", error))?;
    target.write(page.as_bytes())?;
    let name = output::stdout_style().to_one_line(target.name());
    output::print(&format!("→ {name}   {}\n", format_bytes(Bytes(page.len() as u64))))
}
