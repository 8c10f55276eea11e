//! `pagelab sim demo`: a small memory, step by step, for those who want to see how an allocator works.

mod lesson;
mod viewer;
mod watched;

use std::io::Write as _;
use std::path::PathBuf;

use pagelab_model::Bytes;
use pagelab_report::html;
use pagelab_report::json::demo::lane;
use pagelab_report::json::object::array;
use pagelab_report::json::{header, to_text};
use pagelab_report::sim::demo::{self as shown, Demo, Lane};
use pagelab_report::style::{Style, bytes};
use pagelab_sim::policies::{Entry, TABLE};
use pagelab_sim::words::Shape;
use serde_json::Value;

use super::catalogue;
use crate::bounds;
use crate::cmd::usage;
use crate::exit::{Exit, Failure, Outcome};
use crate::watch::terminal;
use crate::whole_file;
use crate::{out, whole_file::Target};

const EXAMPLES: &str = "\
Examples:
  pagelab sim demo                            on a terminal: a key for each step
  pagelab sim demo --policy standard,mobility the same requests under both
  pagelab sim demo --steps 200 --seed 7       after the lesson, at random
  pagelab sim demo --html demo.html           a page with a slider

Keys: Enter or space next, b back, p another policy, Home and End, Up and Down \
where the window is low, q quit.";

/// What `sim demo` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Policies (docs/policies.md), the first in full and the others beside it
    /// [default: mobility; on a terminal and in a page all of them]
    #[arg(long, value_name = "NAME,NAME…", value_delimiter = ',')]
    policy: Vec<String>,
    /// Pages of memory: a multiple of 16, from 32 to 256
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = bounds::small::<32, 256>)]
    pages: u32,
    /// Steps to show, beyond the lesson at random [default: the lesson]
    #[arg(long, value_name = "N", value_parser = bounds::small::<1, 1000>)]
    steps: Option<u32>,
    /// Seed of what is asked at random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = bounds::seed)]
    seed: u64,
    /// All steps as text, also on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// One JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
    /// Write a page for any browser; a page of that name is replaced
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plain", "json"])]
    html: Option<PathBuf>,
}

/// The policy that is shown without a word.
const USUAL: &str = "mobility";
/// Pages at most: what fits on a screen.
const PAGES_MAX: u32 = 256;
/// Blocks of up to 16 pages and pageblocks of 8, the least with which all that can happen does.
const MAX_ORDER: u8 = 4;
const BLOCK_ORDER: u8 = 3;
/// Columns of text that nobody's terminal is asked about.
const WIDTH_MAX: usize = 100;

/// Shows it, one way or another.
pub fn run(args: &Args) -> Outcome {
    let page = args.html.as_deref().map(|path| whole_file::target(path, "--html")).transpose()?;
    let is_watched = page.is_none() && !args.plain && !args.json && terminal::check().is_ok();
    let policies = policies(args, is_watched || page.is_some())?;
    let demo = demo(args, &policies)?;
    match page {
        Some(target) => write_page(&demo, &target)?,
        None if args.json => print(&json_text(args, &demo)?)?,
        None if is_watched => viewer::run(demo, out::style())?,
        None => print(&text(&demo, out::style()))?,
    }
    Ok(Exit::Done)
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The policies that were named, or those that are shown without a word, the best known first.
fn policies(args: &Args, all: bool) -> Result<Vec<&'static Entry>, Failure> {
    let usual = [USUAL.to_owned()];
    let given = if args.policy.is_empty() { &usual } else { args.policy.as_slice() };
    let mut found = catalogue::placements("--policy", given, "the demonstration has none")?;
    if all {
        let others = TABLE.iter().filter(|entry| found.iter().all(|known| known.name != entry.name));
        found.extend(others.collect::<Vec<_>>());
    }
    Ok(found)
}

fn demo(args: &Args, policies: &[&Entry]) -> Result<Demo, Failure> {
    let frames = args.pages;
    let largest = 1u32 << MAX_ORDER;
    if !frames.is_multiple_of(largest) || !(2 * largest..=PAGES_MAX).contains(&frames) {
        let wanted = format!("a multiple of {largest} from {} to {PAGES_MAX} is wanted", 2 * largest);
        return Err(usage(&format!("--pages {frames}: {wanted}")));
    }
    let shape = Shape { first: 0, frames, max_order: MAX_ORDER, block_order: BLOCK_ORDER };
    let steps = args.steps.map(|steps| steps as usize);
    let requests = lesson::requests(frames >> BLOCK_ORDER, BLOCK_ORDER, steps, args.seed);
    let lanes: Result<Vec<Lane>, _> =
        policies.iter().map(|entry| watched::lane(shape, entry, &requests)).collect();
    let block = 1u32 << BLOCK_ORDER;
    Ok(Demo {
        title: "How a page allocator works, step by step".to_owned(),
        facts: vec![
            format!("{frames} pages"),
            format!("blocks of up to {largest}"),
            format!("pageblocks of {block}, which is a huge page here"),
            format!("seed {}", args.seed),
        ],
        lanes: lanes.map_err(|wrong| Failure::new(Exit::Bug, wrong.to_string()))?,
        block_frames: block,
        goal_order: BLOCK_ORDER,
    })
}

/// All steps of the first policy; beneath each, the same moment under the others.
fn text(demo: &Demo, style: Style) -> String {
    let style = Style { width: style.width.min(WIDTH_MAX), ..style };
    let mut lines: Vec<shown::Line> = shown::legend(demo, style.width);
    if let Some(lane) = demo.lanes.first() {
        for at in 0..lane.steps.len() {
            lines.push(Vec::new());
            lines.extend(shown::lines(demo, lane, at, style.width));
            for other in demo.lanes.iter().skip(1) {
                lines.push(Vec::new());
                lines.extend(shown::beside(demo, other, at));
            }
        }
    }
    lines.push(Vec::new());
    lines.extend(shown::ending(demo, style.width));
    shown::text(&lines, style)
}

fn write_page(demo: &Demo, target: &Target) -> Result<(), Failure> {
    let text = text(demo, Style { width: WIDTH_MAX, ..Style::PLAIN });
    let page = html::sim::demo_page(demo, &text);
    let page = page.map_err(|error| Failure::new(Exit::Bug, "the page").because(error))?;
    target.write(page.as_bytes())?;
    let name = out::style().one_line(target.name());
    print(&format!("→ {name}   {}\n", bytes(Bytes(page.len() as u64))))
}

fn json_text(args: &Args, demo: &Demo) -> Result<String, Failure> {
    let document: Value = header("sim_demo")
        .put("pages", args.pages)
        .put("seed", args.seed)
        .put("block_frames", demo.block_frames)
        .put("goal_order", demo.goal_order)
        .put("policies", array(&demo.lanes, lane))
        .into();
    to_text(&document).map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))
}

#[cfg(test)]
mod tests;
