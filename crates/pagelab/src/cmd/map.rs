//! `pagelab map`: a picture of physical memory, of what changed in it, or of what lies behind one process.

mod check;
mod draw;
pub mod explain;
mod moment;
mod plan;
mod process;

use std::io::Write;
use std::path::PathBuf;

use pagelab_report::json;
use pagelab_report::map::MapReport;
use pagelab_report::map::difference::DifferenceReport;
use pagelab_report::picture::difference::{Difference, Unlike};
use pagelab_report::picture::drawing::Drawing;
use serde_json::Value;

use crate::exit::{Exit, Failure, Outcome};
use crate::out;
use draw::Picture;
use moment::Taken;
pub use moment::off_lists;
use plan::{Plan, Wanted};

const EXAMPLES: &str = "\
Examples:
  pagelab map                       memory of this machine on the terminal
  pagelab map -o mem.png            one pixel a page
  pagelab map -o mem.svg --order hilbert --grid
  pagelab map --scheme classic --width 2048 -o mem.png
  pagelab map --diff before.tar.zst now -o changed.svg
  pagelab map day.pagelab@2h5min    a map of a recording (record --maps)
  pagelab map --pid 4121            runs and folios behind a process
  pagelab map --pid 4121 --explain  what each of its mappings is
  pagelab map --check               free blocks against buddyinfo

Reading kpageflags needs root. A saved tree (pagelab capture) or a recording (record --maps) needs nothing.
";

/// What `map` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which memory: now, a saved tree of a machine's files, or FILE.pagelab@TIME: the last map that a
    /// recording has until that time since its start; @first, @last
    #[arg(value_name = "MOMENT", default_value = "now")]
    moment: PathBuf,

    /// The same as a saved tree given as MOMENT
    #[arg(long, value_name = "DIR|TAR")]
    root: Option<PathBuf>,

    /// Show what became of each page from A to B: now, saved trees, or maps of recordings
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    diff: Option<Vec<PathBuf>>,

    /// Compare free blocks rebuilt from kpageflags with buddyinfo; the exit code says whether they agree
    #[arg(long)]
    check: bool,

    /// Show the physical memory behind one process: contiguous runs and folio sizes by mapping
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// With --pid: every mapping, not only the largest
    #[arg(long, requires = "pid")]
    all: bool,

    /// With --pid: what each mapping is, in plain words, and whether huge pages may come into it
    #[arg(long, requires = "pid", conflicts_with = "all")]
    explain: bool,

    /// Write the picture to a file, whose name ends in .png, .svg or .html; may be given again
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Write a page that names what is under the pointer; the same as --output with a name in .html
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// What a pixel's colour tells apart
    #[arg(long, value_enum, default_value = "full")]
    scheme: SchemeArg,

    /// How the pixels follow each other
    #[arg(long, value_enum, default_value = "rows")]
    order: OrderArg,

    /// Pages that share a pixel, a power of two, or auto: as few as make at most 4096 pixels a side
    #[arg(long, value_name = "PAGES", default_value = "auto")]
    scale: String,

    /// Pixels in a row [default: a power of two that makes a square, about]
    #[arg(long, value_name = "PIXELS")]
    width: Option<u64>,

    /// What a pixel of several pages shows
    #[arg(long, value_enum, default_value = "majority")]
    blend: BlendArg,

    /// Shade the edges of pageblocks
    #[arg(long)]
    grid: bool,

    /// Letters instead of colours on the terminal
    #[arg(long)]
    letters: bool,

    /// Base page size of a saved tree that does not say it: 4K, 16K, 64K
    #[arg(long, value_name = "SIZE")]
    page_size: Option<String>,

    /// Every number as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SchemeArg {
    /// A colour for each class of pages
    Full,
    /// Free white, page cache grey, all else black
    Classic,
}

/// Orders of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OrderArg {
    /// Row by row
    Rows,
    /// A rectangle for each pageblock
    Tiles,
    /// A Hilbert curve: near in memory is near in the picture
    Hilbert,
}

/// What a pixel of several pages shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BlendArg {
    /// The class that most of its pages have
    Majority,
    /// The mean of their colours
    Mix,
    /// The class that is most in the way of large blocks
    Worst,
}

/// Draws, counts or compares.
pub fn run(args: &Args) -> Outcome {
    let plan = Plan::resolve(args)?;
    match &plan.wanted {
        Wanted::Check(moment) => check::run(&plan, moment),
        Wanted::Process(pid) if args.explain => explain::run(*pid, plan.json),
        Wanted::Process(pid) => process::run(&plan, *pid),
        Wanted::Map(moment) => one(&plan, &moment.take(&plan)?),
        Wanted::Difference(before, after) => {
            let (before, after) = (before.take(&plan)?, after.take(&plan)?);
            two(&plan, &before, &after)
        }
    }
}

fn one(plan: &Plan, taken: &Taken) -> Outcome {
    let report = MapReport {
        source: taken.source.clone(),
        map: &taken.map,
        scheme: plan.scheme,
        notes: taken.notes.clone(),
    };
    let title = format!("Physical memory of {}", taken.source.name);
    let subtitle = [report.headline(), report.about()];
    let legend = report.legend();
    let picture = Picture {
        plan,
        title: &title,
        subtitle: &subtitle,
        legend: &legend,
        facts: draw::facts(&title, &taken.source, &taken.map),
        layout: &taken.map.layout,
        draw: &|pixel| Drawing::of_map(&taken.map, plan.scheme, pixel),
    };
    let written = picture.write(|picture, style, colours| report.text(picture, style, colours))?;
    if plan.json {
        return print_json(&json::map::map(&report, &written));
    }
    picture.print(&written, |picture, style, colours| report.text(picture, style, colours))
}

fn two(plan: &Plan, before: &Taken, after: &Taken) -> Outcome {
    let difference = Difference::of(&before.map, &after.map).map_err(|unlike| {
        let (a, b) = (&before.source.name, &after.source.name);
        let why = match unlike {
            Unlike::PageSize => "their pages are of different sizes",
            Unlike::NoFrameInCommon => "they have no page frame in common",
        };
        let message = format!("--diff {a} {b}: {why}; give two maps of one machine");
        Failure::new(Exit::BadInput, message)
    })?;
    let mut notes = [before.notes.clone(), after.notes.clone()].concat();
    if let (Some(a), Some(b)) = (&before.source.host, &after.source.host)
        && a != b
    {
        notes.push(format!("the maps are of machines with different names, {a} and {b}"));
    }
    let report = DifferenceReport {
        before: before.source.clone(),
        after: after.source.clone(),
        difference: &difference,
        notes,
    };
    let title = format!("Physical memory: from {} to {}", before.source.name, after.source.name);
    let when = format!(
        "{} {} to {} {}",
        before.source.name,
        before.source.taken(),
        after.source.name,
        after.source.taken()
    );
    let subtitle = [report.headline(), when];
    let legend: Vec<(usize, u64)> =
        difference.counts().into_iter().enumerate().filter(|(_, pages)| *pages > 0).collect();
    let picture = Picture {
        plan,
        title: &title,
        subtitle: &subtitle,
        legend: &legend,
        facts: draw::facts(&title, &after.source, &after.map),
        layout: &difference.layout,
        draw: &|pixel| difference.drawing(pixel),
    };
    let written = picture.write(|picture, style, colours| report.text(picture, style, colours))?;
    if plan.json {
        return print_json(&json::map::difference(&report, &written));
    }
    picture.print(&written, |picture, style, colours| report.text(picture, style, colours))
}

fn print_json(document: &Value) -> Outcome {
    let text = json::to_text(document)
        .map_err(|error| Failure::new(Exit::Bug, "cannot write JSON").because(error))?;
    print(&text)
}

fn print(text: &str) -> Outcome {
    let mut out = out::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}
