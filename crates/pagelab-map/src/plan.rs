//! Plan of a map command: which memory, which pictures.

use std::path::{Path, PathBuf};

use pagelab_command::atomic_file::OutputFile;
use pagelab_command::exit::{Failure, usage_error};
use pagelab_model::{Order, PageSize};
use pagelab_report::memory_picture::colour_scheme::ColourScheme;
use pagelab_report::memory_picture::pixel_path::PixelLayout;
use pagelab_report::memory_picture::raster::PixelBlend;

/// Plan of the command.
#[derive(Debug)]
pub struct MapPlan {
    /// Which map or maps.
    pub request: MapRequest,
    /// The files to write.
    pub outputs: Vec<PictureFile>,
    /// The colours.
    pub scheme: ColourScheme,
    /// The layout of pixels.
    pub pixel_layout: PixelLayout,
    /// Pages that share a pixel; `None`: as few as fit.
    pub pixel_pages: Option<Order>,
    /// Pixels in a row.
    pub width: Option<u64>,
    /// Colour of a pixel of several pages.
    pub blend: PixelBlend,
    /// Whether the edges of pageblocks are shaded.
    pub grid: bool,
    /// Letters on any terminal.
    pub force_letters: bool,
    /// The page size that was given.
    pub page_size: Option<PageSize>,
    /// Every mapping of a process.
    pub all_mappings: bool,
    /// JSON instead of text.
    pub json: bool,
}

/// Which map or maps.
#[derive(Debug)]
pub enum MapRequest {
    /// A map.
    Map(MapSourceArg),
    /// Its free blocks beside the kernel's count.
    Check(MapSourceArg),
    /// Physical memory of a process's mappings.
    Process(u32),
    /// Changes between two maps.
    Difference(MapSourceArg, MapSourceArg),
}

/// Source and time of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapSourceArg {
    /// This machine, now.
    Now,
    /// A saved tree with kpageflags.
    Tree(PathBuf),
    /// A map of a recording (`record --maps`).
    Recorded(PathBuf, MapSelector),
}

/// Selection of a map of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapSelector {
    /// The first map.
    First,
    /// The last map.
    Last,
    /// The last map whose scan began at most this many nanoseconds after the start, with times as displayed:
    /// a map at 70.3 s is displayed as, and found by, 1 min 10 s.
    Until(u64),
}

/// A file to write.
#[derive(Debug)]
pub struct PictureFile {
    /// Its target.
    pub target: OutputFile,
    /// Its format.
    pub format: PictureFormat,
}

/// Format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    /// Pixels.
    Png,
    /// Pixels with legend and bands.
    Svg,
    /// HTML page that describes the position under the pointer.
    Html,
}

impl PictureFormat {
    /// As in file names.
    pub const fn name(self) -> &'static str {
        match self {
            PictureFormat::Png => "png",
            PictureFormat::Svg => "svg",
            PictureFormat::Html => "html",
        }
    }

    /// The format that the end of a file name states.
    pub fn from_path(path: &Path) -> Result<PictureFormat, Failure> {
        let name = path.display();
        let expected = "expected a name ending in .png, .svg or .html";
        let Some(extension) = path.extension() else {
            return Err(usage_error(&format!("--output {name}: {expected}")));
        };
        match extension.to_string_lossy().to_ascii_lowercase().as_str() {
            "png" => Ok(PictureFormat::Png),
            "svg" => Ok(PictureFormat::Svg),
            "html" => Ok(PictureFormat::Html),
            other => Err(usage_error(&format!("--output {name}: unknown extension .{other}; {expected}"))),
        }
    }
}
