//! `pagelab map`: map of physical memory, of its changes, or of the memory of one process.

use std::path::PathBuf;

use pagelab_command::arguments::parse_page_size;
use pagelab_map::plan::{MapPlan, MapRequest, MapSourceArg, PictureFile, PictureFormat};
use pagelab_map::{buddyinfo_check, print_difference, print_map, process};
use pagelab_model::{Order, PageSize, size};
use pagelab_report::memory_picture::colour_scheme::ColourScheme;
use pagelab_report::memory_picture::pixel_path::PixelLayout;
use pagelab_report::memory_picture::raster::{PIXELS_MAX, PixelBlend};

use super::usage_error;
use crate::atomic_file::check_output;
use crate::exit::{Failure, Outcome};
use crate::output_args::ForceArgs;
use crate::value_parsers::{Choice, choice, parse_bounded, parse_pid};

const EXAMPLES: &str = "\
Examples:
  pagelab map                       this machine, on the terminal
  pagelab map -o mem.png            one pixel per page
  pagelab map -o mem.svg --layout hilbert --grid
  pagelab map --colours classic --width 2048 -o mem.png
  pagelab map --diff before.tar.zst now -o changed.svg
  pagelab map day.pagelab@2h5min    a recorded map (record --maps)
  pagelab map --pid 4121            contiguous runs and folios of a process
  pagelab map --pid 4121 --explain  explain its mappings
  pagelab map --check               compare free blocks with buddyinfo

Reading kpageflags requires root; a saved tree (pagelab capture) or a recording (record --maps) does not.
";

const PROCESS: &str = "Memory of a process";
const PICTURE: &str = "Picture";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Source: `now`, a saved tree, or a map of a recording: FILE.pagelab@TIME is the last map at or before
    /// that time; TIME may be `first` or `last`
    #[arg(value_name = "MOMENT", default_value = "now")]
    moment: PathBuf,

    /// Read a saved tree; same as passing it as MOMENT
    #[arg(long, value_name = "DIR|TAR")]
    root: Option<PathBuf>,

    /// Show what changed from A to B: now, saved trees, or maps of recordings
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    diff: Option<Vec<PathBuf>>,

    /// Compare free blocks derived from kpageflags with buddyinfo; exit code 1 if they differ
    #[arg(long)]
    check: bool,

    /// Show the physical memory of one process: contiguous runs and folio sizes per mapping
    #[arg(long, help_heading = PROCESS, value_name = "PID", value_parser = parse_pid)]
    pid: Option<u32>,

    /// With --pid: show every mapping
    #[arg(long, help_heading = PROCESS, requires = "pid")]
    all: bool,

    /// With --pid: explain each mapping and its THP eligibility
    #[arg(long, help_heading = PROCESS, requires = "pid", conflicts_with = "all")]
    explain: bool,

    /// Write the picture to a file ending in .png, .svg or .html; may be repeated
    #[arg(short, long, help_heading = PICTURE, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Write an interactive page; same as --output FILE.html
    #[arg(long, help_heading = PICTURE, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    replacement: ForceArgs,

    /// Colours of page classes
    #[arg(long, help_heading = PICTURE, alias = "scheme", default_value = "full",
        value_parser = choice(&COLOURS))]
    colours: ColourScheme,

    /// Pixel layout
    #[arg(long, help_heading = PICTURE, default_value = "rows", value_parser = choice(&LAYOUTS))]
    layout: PixelLayout,

    /// Refused: a map has no buddy order
    #[arg(long = "order", value_name = "J", hide = true, value_parser = refuse_order)]
    _order: Option<String>,

    /// Pages per pixel, a power of two, or auto: at most 4096 pixels a side
    #[arg(long, help_heading = PICTURE, value_name = "PAGES", default_value = "auto")]
    scale: String,

    /// Pixels per row [default: the power of two closest to a square]
    #[arg(long, help_heading = PICTURE, value_name = "PIXELS",
        value_parser = parse_bounded::<u64, 1, PIXELS_MAX>)]
    width: Option<u64>,

    /// Colour of a pixel that covers several pages
    #[arg(long, help_heading = PICTURE, default_value = "majority", value_parser = choice(&BLENDS))]
    blend: PixelBlend,

    /// Shade the edges of pageblocks
    #[arg(long, help_heading = PICTURE)]
    grid: bool,

    /// Use letters instead of colours on the terminal
    #[arg(long, help_heading = PICTURE)]
    letters: bool,

    /// Base page size, if the saved tree does not state it: 4K, 16K, 64K
    #[arg(long, value_name = "SIZE", value_parser = parse_page_size)]
    page_size: Option<PageSize>,

    /// Print JSON (docs/json.md)
    #[arg(long)]
    json: bool,
}

const COLOURS: [Choice<ColourScheme>; 2] = [
    (&["full"], "One colour for each page class", ColourScheme::Full),
    (&["classic"], "Free white, page cache grey, other pages black", ColourScheme::Classic),
];

const LAYOUTS: [Choice<PixelLayout>; 3] = [
    (&["rows"], "Row by row", PixelLayout::Rows),
    (&["tiles"], "One rectangle for each pageblock", PixelLayout::Tiles),
    (&["hilbert"], "Hilbert curve: adjacent memory is adjacent in the picture", PixelLayout::Hilbert),
];

/// Colour of a pixel that represents several pages.
const BLENDS: [Choice<PixelBlend>; 3] = [
    (&["majority"], "The most frequent class", PixelBlend::Majority),
    (&["mix"], "The mean colour", PixelBlend::Mix),
    (&["worst"], "The class that most obstructs large blocks", PixelBlend::Worst),
];

/// Error of an option whose name has another meaning in the other commands.
fn refuse_order(_: &str) -> Result<String, String> {
    Err("--order means the buddy order in other commands; the order of pixels is --layout, for example \
         --layout hilbert"
        .to_owned())
}

pub fn run(args: &Args) -> Outcome {
    let plan = resolve_plan(args)?;
    match &plan.request {
        MapRequest::Check(moment) => buddyinfo_check::run(&plan, moment),
        MapRequest::Process(pid) if args.explain => process::explain(*pid, plan.json),
        MapRequest::Process(pid) => process::run(&plan, *pid),
        MapRequest::Map(moment) => print_map(&plan, &moment.load(&plan)?),
        MapRequest::Difference(before, after) => {
            let (before, after) = (before.load(&plan)?, after.load(&plan)?);
            print_difference(&plan, &before, &after)
        }
    }
}

/// Checks the arguments against each other, and looks at the places of the files to write.
fn resolve_plan(args: &Args) -> Result<MapPlan, Failure> {
    let request = resolve_request(args)?;
    let width = check_width(args)?;
    let replaces = args.replacement.force;
    let mut outputs = Vec::new();
    for path in &args.output {
        let format = PictureFormat::from_path(path)?;
        outputs.push(PictureFile { target: check_output(path, replaces)?, format });
    }
    if let Some(path) = &args.html {
        outputs.push(PictureFile { target: check_output(path, replaces)?, format: PictureFormat::Html });
    }
    Ok(MapPlan {
        request,
        outputs,
        scheme: args.colours,
        pixel_layout: args.layout,
        pixel_pages: parse_scale(&args.scale)?,
        width,
        blend: args.blend,
        grid: args.grid,
        force_letters: args.letters,
        page_size: args.page_size,
        all_mappings: args.all,
        json: args.json,
    })
}

fn resolve_request(args: &Args) -> Result<MapRequest, Failure> {
    let moment = MapSourceArg::parse(&args.moment)?;
    let moment = match (&args.root, moment) {
        (Some(root), MapSourceArg::Now) => MapSourceArg::Tree(root.clone()),
        (None, moment) => moment,
        (Some(_), _) => {
            return Err(usage_error("--root and MOMENT cannot be used together"));
        }
    };
    if let Some(pid) = args.pid {
        let others = [
            ("--check", args.check),
            ("--diff", args.diff.is_some()),
            ("--output", !args.output.is_empty()),
            ("--html", args.html.is_some()),
            ("MOMENT or --root", moment != MapSourceArg::Now),
        ];
        return match others.iter().find(|(_, given)| *given) {
            Some((other, _)) => {
                let why = "a process is read on the running machine and shown without a picture";
                Err(usage_error(&format!("--pid and {other} cannot be used together: {why}")))
            }
            None => Ok(MapRequest::Process(pid)),
        };
    }
    match args.diff.as_deref() {
        Some(_) if args.check => Err(usage_error("--check and --diff cannot be used together")),
        None if args.check && !(args.output.is_empty() && args.html.is_none()) => {
            Err(usage_error("--check draws no picture; hint: remove --output and --html"))
        }
        None if args.check => Ok(MapRequest::Check(moment)),
        None => Ok(MapRequest::Map(moment)),
        Some(_) if moment != MapSourceArg::Now => {
            Err(usage_error("--diff cannot be used with MOMENT or --root"))
        }
        Some([before, after]) => {
            Ok(MapRequest::Difference(MapSourceArg::parse(before)?, MapSourceArg::parse(after)?))
        }
        Some(_) => Err(usage_error("--diff requires two sources: --diff A B")),
    }
}

/// Exponent of a scale: a power of two, so that a pageblock is a whole number of pixels or the reverse.
fn parse_scale(text: &str) -> Result<Option<Order>, Failure> {
    if text == "auto" {
        return Ok(None);
    }
    let pages = size::strip_grouping(text).parse::<u64>();
    let pages = pages.ok().filter(|pages| pages.is_power_of_two() && *pages <= 1 << 30);
    let order = pages.and_then(|pages| u8::try_from(pages.trailing_zeros()).ok()).map(Order);
    order.map(Some).ok_or_else(|| {
        let wanted = "expected a power of two up to 1073741824, or auto";
        usage_error(&format!("--scale {text}: {wanted}"))
    })
}

fn check_width(args: &Args) -> Result<Option<u64>, Failure> {
    let Some(width) = args.width else { return Ok(None) };
    if args.layout == PixelLayout::Hilbert {
        let why = "a Hilbert curve fills squares, whose side is set by --scale";
        return Err(usage_error(&format!("--width and --layout hilbert cannot be used together: {why}")));
    }
    Ok(Some(width))
}
