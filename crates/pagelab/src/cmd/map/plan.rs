//! From the arguments to a plan: every conflict is found before anything is read.

use std::path::Path;

use pagelab_model::{Order, PageSize};
use pagelab_report::picture::curve::PixelOrder;
use pagelab_report::picture::raster::{Blend, PIXELS_MAX};
use pagelab_report::picture::scheme::Scheme;

use super::moment::Moment;
use super::{Args, BlendArg, OrderArg, SchemeArg};
use crate::cmd::usage;
use crate::exit::Failure;
use crate::whole_file::{self, Target};

/// What will be done.
#[derive(Debug)]
pub struct Plan {
    /// Which map or maps.
    pub wanted: Wanted,
    /// The files to write.
    pub outputs: Vec<Output>,
    /// The colours.
    pub scheme: Scheme,
    /// The order of pixels.
    pub order: PixelOrder,
    /// Pages that share a pixel; `None`: as few as fit.
    pub pixel: Option<Order>,
    /// Pixels in a row.
    pub width: Option<u64>,
    /// What a pixel of several pages shows.
    pub blend: Blend,
    /// Whether the edges of pageblocks are shaded.
    pub grid: bool,
    /// Letters, whatever the terminal can.
    pub letters: bool,
    /// The page size that was given.
    pub page_size: Option<PageSize>,
    /// Every mapping of a process.
    pub all: bool,
    /// JSON instead of text.
    pub json: bool,
}

/// Which map or maps.
#[derive(Debug)]
pub enum Wanted {
    /// A map.
    Map(Moment),
    /// Its free blocks beside the kernel's count.
    Check(Moment),
    /// What is behind the mappings of a process.
    Process(u32),
    /// What changed between two.
    Difference(Moment, Moment),
}

/// A file to write.
#[derive(Debug)]
pub struct Output {
    /// Where.
    pub target: Target,
    /// What.
    pub format: Format,
}

/// What a picture is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Pixels.
    Png,
    /// Pixels with legend and bands.
    Svg,
    /// A page that says what is under the pointer.
    Html,
}

impl Format {
    /// As in file names.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Png => "png",
            Format::Svg => "svg",
            Format::Html => "html",
        }
    }

    fn of(path: &Path) -> Result<Format, Failure> {
        let name = path.display();
        let wanted = "the picture's format is told from the end of the name: .png, .svg, .html";
        let Some(extension) = path.extension() else {
            return Err(usage(&format!("--output {name}: {wanted}; {name} has no such end")));
        };
        match extension.to_string_lossy().to_ascii_lowercase().as_str() {
            "png" => Ok(Format::Png),
            "svg" => Ok(Format::Svg),
            "html" => Ok(Format::Html),
            other => Err(usage(&format!("--output {name}: no pictures are written as .{other}; {wanted}"))),
        }
    }
}

impl Plan {
    /// Checks the arguments against each other, and looks at the places of the files to write.
    pub fn resolve(args: &Args) -> Result<Plan, Failure> {
        let wanted = wanted(args)?;
        let order = match args.order {
            OrderArg::Rows => PixelOrder::Rows,
            OrderArg::Tiles => PixelOrder::Tiles,
            OrderArg::Hilbert => PixelOrder::Hilbert,
        };
        let width = width(args, order)?;
        let outputs = args.output.iter().map(|path| {
            let format = Format::of(path)?;
            Ok(Output { target: whole_file::target(path, "--output")?, format })
        });
        let html = args
            .html
            .iter()
            .map(|path| Ok(Output { target: whole_file::target(path, "--html")?, format: Format::Html }));
        let outputs = outputs.chain(html);
        Ok(Plan {
            wanted,
            outputs: outputs.collect::<Result<_, Failure>>()?,
            scheme: match args.scheme {
                SchemeArg::Full => Scheme::Full,
                SchemeArg::Classic => Scheme::Classic,
            },
            order,
            pixel: pixel(&args.scale)?,
            width,
            blend: match args.blend {
                BlendArg::Majority => Blend::Majority,
                BlendArg::Mix => Blend::Mix,
                BlendArg::Worst => Blend::Worst,
            },
            grid: args.grid,
            letters: args.letters,
            page_size: args.page_size.as_deref().map(crate::cmd::page_size).transpose()?,
            all: args.all,
            json: args.json,
        })
    }
}

fn wanted(args: &Args) -> Result<Wanted, Failure> {
    let moment = Moment::parse(&args.moment)?;
    let moment = match (&args.root, moment) {
        (Some(root), Moment::Now) => Moment::Tree(root.clone()),
        (None, moment) => moment,
        (Some(_), _) => {
            return Err(usage("--root and MOMENT: there is one source at a time; leave one of them away"));
        }
    };
    if let Some(pid) = args.pid {
        let others = [
            ("--check", args.check),
            ("--diff", args.diff.is_some()),
            ("--output", !args.output.is_empty()),
            ("--html", args.html.is_some()),
            ("MOMENT or --root", moment != Moment::Now),
        ];
        return match others.iter().find(|(_, given)| *given) {
            Some((other, _)) => {
                let why = "a process is looked at on the running machine, and drawn by no picture";
                Err(usage(&format!("--pid with {other}: {why}; leave {other} away")))
            }
            None => Ok(Wanted::Process(pid)),
        };
    }
    match args.diff.as_deref() {
        Some(_) if args.check => Err(usage("--check and --diff: one at a time; leave one of them away")),
        None if args.check && !(args.output.is_empty() && args.html.is_none()) => {
            Err(usage("--check draws no picture; leave --output and --html away"))
        }
        None if args.check => Ok(Wanted::Check(moment)),
        None => Ok(Wanted::Map(moment)),
        Some(_) if moment != Moment::Now => {
            Err(usage("--diff names both moments itself; leave MOMENT and --root away"))
        }
        Some([before, after]) => Ok(Wanted::Difference(Moment::parse(before)?, Moment::parse(after)?)),
        Some(_) => Err(usage("--diff takes two moments: --diff A B")),
    }
}

/// The exponent of a scale: a power of two, so that pageblocks are whole pixels or pixels whole pageblocks.
fn pixel(text: &str) -> Result<Option<Order>, Failure> {
    if text == "auto" {
        return Ok(None);
    }
    let pages = text.parse::<u64>().ok().filter(|pages| pages.is_power_of_two() && *pages <= 1 << 30);
    let order = pages.and_then(|pages| u8::try_from(pages.trailing_zeros()).ok()).map(Order);
    order.map(Some).ok_or_else(|| {
        let wanted = "a power of two up to 1073741824 was wanted, such as 1, 16, 512, or auto";
        usage(&format!("--scale {text}: {wanted}"))
    })
}

fn width(args: &Args, order: PixelOrder) -> Result<Option<u64>, Failure> {
    let Some(width) = args.width else { return Ok(None) };
    if order == PixelOrder::Hilbert {
        let why = "a Hilbert curve fills squares, whose side follows from --scale";
        return Err(usage(&format!("--width {width} with --order hilbert: {why}; leave --width away")));
    }
    if width == 0 || width > PIXELS_MAX {
        return Err(usage(&format!("--width {width}: 1 to {PIXELS_MAX} pixels were wanted, such as 2048")));
    }
    Ok(Some(width))
}
