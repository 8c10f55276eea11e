//! Output of drawings to files and to the terminal.

use pagelab_command::exit::{Failure, FailureKind, Outcome, usage_error};
use pagelab_command::output;
use pagelab_model::{Order, PageMap, PageMapLayout, Pages};
use pagelab_report::html;
use pagelab_report::json::map::PictureFile;
use pagelab_report::map::{MapSource, format_scale};
use pagelab_report::memory_picture::drawing::{Drawing, drawn_extents};
use pagelab_report::memory_picture::pixel_path::PixelLayout;
use pagelab_report::memory_picture::raster::{
    self, PIXELS_MAX, Raster, RasterOptions, SIDE_PIXELS_MAX, auto_pixel_order,
};
use pagelab_report::memory_picture::svg::{self, LegendEntry};
use pagelab_report::memory_picture::terminal::TerminalColours;
use pagelab_report::memory_picture::{self, Rgb, png};
use pagelab_report::style::{TextStyle, format_bytes, format_count};
use pagelab_report::utc::format_utc;
use serde_json::Value;

use super::plan::{MapPlan, PictureFormat};
use super::{print, print_json};

/// Lines of a picture on a terminal; its description fits on the same screen.
const TERMINAL_LINES_MAX: u64 = 20;

/// Columns beside the picture: zone, address, memory blocks.
const LABEL_COLUMNS: usize = 30;

/// Largest picture on a terminal, in pixels.
const TERMINAL_PIXELS_MAX: u64 = 1 << 17;

/// Colours of the strips at the left of a PNG, alternating: zones, memory blocks.
const STRIP_COLOURS: [[Rgb; 2]; 2] =
    [[[0x2F, 0x3E, 0x4E], [0x9F, 0xB0, 0xC0]], [[0x55, 0x55, 0x55], [0xC8, 0xC8, 0xC8]]];

/// A picture whose size is not known yet.
pub struct Picture<'p, 'm> {
    pub plan: &'p MapPlan,
    pub title: &'p str,
    /// Lines below the title.
    pub subtitle: &'p [String],
    /// Categories of the legend, with their pages.
    pub legend: &'p [(usize, u64)],
    /// Metadata of the picture.
    pub facts: Vec<(&'static str, String)>,
    pub layout: &'m PageMapLayout,
    /// Assigns frames to categories, in extents that begin and end at pixel boundaries.
    pub draw: &'p dyn Fn(Order) -> Drawing<'m>,
}

impl<'m> Picture<'_, 'm> {
    /// Writes the requested files, and prints `document` of them with --json, else the text that `text`
    /// renders.
    pub fn show(
        &self,
        text: impl Fn(Option<(&Drawing<'_>, &Raster<'_>)>, &TextStyle, TerminalColours) -> String,
        document: impl FnOnce(&[PictureFile]) -> Value,
    ) -> Outcome {
        let written = self.write(&text)?;
        if self.plan.json {
            return print_json(&document(&written));
        }
        self.print(&written, text)
    }

    /// Writes the requested files. `text` renders the page content for readers without scripts.
    fn write(
        &self,
        text: impl Fn(Option<(&Drawing<'_>, &Raster<'_>)>, &TextStyle, TerminalColours) -> String,
    ) -> Result<Vec<PictureFile>, Failure> {
        if self.plan.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let pixel = self.pixel_order((SIDE_PIXELS_MAX, SIDE_PIXELS_MAX), self.plan.width);
        let drawing = (self.draw)(pixel);
        let raster = self.build_raster(&drawing, pixel, self.plan.width)?;
        let mut written = Vec::new();
        for output in &self.plan.outputs {
            let content = match output.format {
                PictureFormat::Png => self.encode_png(&drawing, &raster),
                PictureFormat::Html => {
                    let text = text(None, &TextStyle::PLAIN, TerminalColours::NoColours);
                    self.encode_html(&drawing, &raster, &text).map(String::into_bytes)
                }
                PictureFormat::Svg => self.encode_svg(&drawing, &raster).map(String::into_bytes),
            };
            let content =
                content.map_err(|error| Failure::cannot(FailureKind::Bug, "create the picture", error))?;
            output.target.write(&content)?;
            let (name, blend) = (output.target.name(), self.plan.blend.option_name());
            written.push(PictureFile::new(name, output.format.name(), content.len(), &raster, blend));
        }
        Ok(written)
    }

    /// Prints the text that `text` renders, with the picture in it unless it was written to files.
    fn print(
        &self,
        written: &[PictureFile],
        text: impl FnOnce(Option<(&Drawing<'_>, &Raster<'_>)>, &TextStyle, TerminalColours) -> String,
    ) -> Outcome {
        let style = output::stdout_style();
        let colours =
            if self.plan.force_letters { TerminalColours::NoColours } else { output::stdout_colours(&style) };
        if written.is_empty() {
            let (pixel, width) = self.terminal_size(&style, colours);
            let drawing = (self.draw)(pixel);
            let raster = self.build_raster(&drawing, pixel, width)?;
            self.check_size(&raster)?;
            return print(&text(Some((&drawing, &raster)), &style, colours));
        }
        let mut text_lines = text(None, &style, colours);
        text_lines.push('\n');
        for picture in written {
            let line = format!(
                "  {}: {} × {} pixels, {}",
                picture.file,
                picture.width,
                picture.height,
                format_bytes(pagelab_model::Bytes(picture.bytes))
            );
            text_lines.extend([style.to_one_line(&line).as_str(), "\n"]);
        }
        print(&text_lines)
    }

    fn pixel_order(&self, limits: (u64, u64), width: Option<u64>) -> Order {
        let frames = drawn_extents(self.layout, Order(0))
            .last()
            .map_or(0, |last| last.first_position + last.frames.count.0);
        let auto =
            || auto_pixel_order(frames, self.layout.pageblock_order, self.plan.pixel_layout, width, limits);
        self.plan.pixel_pages.unwrap_or_else(auto)
    }

    fn terminal_size(&self, style: &TextStyle, colours: TerminalColours) -> (Order, Option<u64>) {
        let columns = style.width.saturating_sub(LABEL_COLUMNS).max(16) as u64 / 8 * 8;
        let rows = TERMINAL_LINES_MAX * if colours == TerminalColours::NoColours { 1 } else { 2 };
        let width = self.plan.width.or((self.plan.pixel_layout == PixelLayout::Rows).then_some(columns));
        (self.pixel_order((columns, rows), width), width)
    }

    fn build_raster(
        &self,
        drawing: &Drawing<'m>,
        pixel: Order,
        width: Option<u64>,
    ) -> Result<Raster<'m>, Failure> {
        let plan = self.plan;
        let shape = RasterOptions {
            layout: plan.pixel_layout,
            pixel_order: pixel,
            width,
            blend: plan.blend,
            has_grid: plan.grid,
        };
        let block = self.layout.pageblock_order;
        if plan.grid && pixel.0 + 2 > block.0 {
            let (pages, block) = (pixel.to_pages().0, block.to_pages().0);
            let finest = (block / 4).max(1);
            return Err(usage_error(&format!(
                "--grid: pageblocks of {block} pages are too small for pixels of {pages} pages; hint: use \
                 --scale {finest} or less, or remove --grid"
            )));
        }
        raster::rasterize(drawing, &shape).ok_or_else(|| {
            let pages = drawing.frame_count();
            let message = format!(
                "a picture of {} pages at --scale {} would have more than {} pixels; hint: use a larger \
                 --scale, or auto",
                format_count(u128::from(pages)),
                pixel.to_pages().0,
                format_count(u128::from(PIXELS_MAX))
            );
            usage_error(&message)
        })
    }

    fn check_size(&self, raster: &Raster<'_>) -> Result<(), Failure> {
        let pixels = raster.path.width * raster.path.height;
        if pixels <= TERMINAL_PIXELS_MAX {
            return Ok(());
        }
        let pixels = format_count(u128::from(pixels));
        Err(usage_error(&format!(
            "a picture of {pixels} pixels is too large for a terminal; hint: use -o FILE"
        )))
    }

    fn encode_png(&self, drawing: &Drawing<'_>, raster: &Raster<'_>) -> std::io::Result<Vec<u8>> {
        let all = [
            memory_picture::zone_bands(drawing, raster),
            memory_picture::memory_block_bands(drawing, raster),
        ];
        let strips = all
            .iter()
            .zip(STRIP_COLOURS)
            .map(|(bands, colours)| memory_picture::strip_colours(raster, bands, colours));
        let strips: Vec<Vec<Rgb>> = strips.filter(|strip| !strip.is_empty()).collect();
        png::encode_png(raster, &strips, &self.all_facts(drawing, raster))
    }

    fn encode_svg(&self, drawing: &Drawing<'_>, raster: &Raster<'_>) -> std::io::Result<String> {
        let legend: Vec<LegendEntry> = self
            .legend
            .iter()
            .map(|&(category, pages)| {
                let amount = format_bytes(Pages(pages).to_bytes(self.layout.page_size));
                LegendEntry { category, amount }
            })
            .collect();
        let subtitle = [self.subtitle, &[format_scale(drawing, raster, self.plan.blend)]].concat();
        let facts = self.all_facts(drawing, raster);
        let frame =
            svg::PictureFrame { title: self.title, subtitle: &subtitle, legend: &legend, facts: &facts };
        svg::encode_svg(drawing, raster, &frame)
    }

    fn encode_html(&self, drawing: &Drawing<'_>, raster: &Raster<'_>, text: &str) -> std::io::Result<String> {
        let subtitle = [self.subtitle, &[format_scale(drawing, raster, self.plan.blend)]].concat();
        let (title, legend, blend) = (self.title, self.legend, self.plan.blend);
        let around = html::map_page::PageContext { title, subtitle: &subtitle, legend, blend, text };
        html::map_page::render_page(drawing, raster, &around).map_err(std::io::Error::other)
    }

    fn all_facts(&self, drawing: &Drawing<'_>, raster: &Raster<'_>) -> Vec<(&'static str, String)> {
        let extents: Vec<String> = drawing
            .extents
            .iter()
            .map(|extent| format!("{:#x}+{:#x}", extent.frames.first.0, extent.frames.count.0))
            .collect();
        let legend: Vec<String> = drawing
            .legend
            .iter()
            .map(|one| {
                format!("{} {:02x}{:02x}{:02x}", one.name, one.colour[0], one.colour[1], one.colour[2])
            })
            .collect();
        let mut facts = self.facts.clone();
        facts.push(("Scale", format_scale(drawing, raster, self.plan.blend)));
        facts.push(("Pages per pixel", raster.pixel_order.to_pages().0.to_string()));
        facts.push(("Frames", extents.join(" ")));
        facts.push(("Legend", legend.join(", ")));
        facts
    }
}

/// Metadata of a picture: machine, kernel, time, source of the numbers.
pub fn map_facts(title: &str, source: &MapSource, map: &PageMap) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let zones = map.layout.zones.iter().map(|zone| {
        let (first, count) = (zone.frames.first.0, zone.frames.count.0);
        format!("node {} {} {first:#x}+{count:#x}", zone.key.node.0, zone.key.zone)
    });
    vec![
        ("Title", title.to_owned()),
        ("Software", format!("pagelab {}", env!("CARGO_PKG_VERSION"))),
        ("Creation Time", source.taken_realtime_ns.map_or_else(unknown, format_utc)),
        ("Machine", source.host.clone().unwrap_or_else(unknown)),
        ("Kernel", source.kernel.clone().unwrap_or_else(unknown)),
        ("Source", source.file.clone()),
        ("Page size", map.layout.page_size.bytes().to_string()),
        ("Pageblock pages", map.layout.pageblock_order.to_pages().0.to_string()),
        ("Zones", zones.collect::<Vec<_>>().join(", ")),
    ]
}
