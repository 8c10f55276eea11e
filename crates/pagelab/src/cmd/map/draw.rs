//! From a drawing to the files and the terminal.

use pagelab_model::{MapLayout, Order, PageMap, Pages};
use pagelab_report::html;
use pagelab_report::json::map::Written;
use pagelab_report::map::{MapSource, scale_text};
use pagelab_report::picture::curve::PixelOrder;
use pagelab_report::picture::drawing::{Drawing, extents};
use pagelab_report::picture::raster::{self, PIXELS_MAX, Raster, SIDE_MAX, Shape, auto_pixel};
use pagelab_report::picture::svg::{self, LegendLine};
use pagelab_report::picture::terminal::Colours;
use pagelab_report::picture::{Rgb, bands, png};
use pagelab_report::style::{Style, bytes, count};
use pagelab_report::utc::utc;

use super::plan::{Format, Plan};
use super::print;
use crate::cmd::usage;
use crate::exit::{Exit, Failure, Outcome};
use crate::out;

/// Lines that a picture takes on a terminal, so that what is said about it fits on the same screen.
const LINES: u64 = 20;

/// Columns that stand beside the picture: zone, address, memory blocks.
const LABELS: usize = 30;

/// A picture of more pixels than this is not put on a terminal.
const TERMINAL_MAX: u64 = 1 << 17;

/// Colours of the strips at the left of a PNG: zones, memory blocks, by turns.
const STRIPS: [[Rgb; 2]; 2] =
    [[[0x2F, 0x3E, 0x4E], [0x9F, 0xB0, 0xC0]], [[0x55, 0x55, 0x55], [0xC8, 0xC8, 0xC8]]];

/// A picture, before it is known how large it gets.
pub struct Picture<'p, 'm> {
    /// What was asked for.
    pub plan: &'p Plan,
    /// What it shows.
    pub title: &'p str,
    /// What is written below the title.
    pub subtitle: &'p [String],
    /// Categories of the legend, with their pages.
    pub legend: &'p [(usize, u64)],
    /// What travels with it.
    pub facts: Vec<(&'static str, String)>,
    /// The frames.
    pub layout: &'m MapLayout,
    /// Puts them into categories, in extents that begin and end with whole pixels.
    pub draw: &'p dyn Fn(Order) -> Drawing<'m>,
}

impl<'m> Picture<'_, 'm> {
    /// Writes the files that were asked for. `text` makes what a page holds for readers without scripts.
    pub fn write(
        &self,
        text: impl Fn(Option<(&Drawing<'_>, &Raster<'_>)>, &Style, Colours) -> String,
    ) -> Result<Vec<Written>, Failure> {
        if self.plan.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let pixel = self.pixel((SIDE_MAX, SIDE_MAX), self.plan.width);
        let drawing = (self.draw)(pixel);
        let raster = self.raster(&drawing, pixel, self.plan.width)?;
        let mut written = Vec::new();
        for output in &self.plan.outputs {
            let content = match output.format {
                Format::Png => self.png(&drawing, &raster),
                Format::Html => {
                    let text = text(None, &Style::PLAIN, Colours::None);
                    self.html(&drawing, &raster, &text).map(String::into_bytes)
                }
                Format::Svg => self.svg(&drawing, &raster).map(String::into_bytes),
            };
            let content =
                content.map_err(|error| Failure::new(Exit::Bug, "cannot make the picture").because(error))?;
            output.target.write(&content)?;
            let (name, blend) = (output.target.name(), self.plan.blend.name());
            written.push(Written::new(name, output.format.name(), content.len(), &raster, blend));
        }
        Ok(written)
    }

    /// Prints the text that `text` makes, with the picture in it unless it was written to files.
    pub fn print(
        &self,
        written: &[Written],
        text: impl FnOnce(Option<(&Drawing<'_>, &Raster<'_>)>, &Style, Colours) -> String,
    ) -> Outcome {
        let style = out::style();
        let colours = if self.plan.letters { Colours::None } else { out::colours(&style) };
        if written.is_empty() {
            let (pixel, width) = self.for_terminal(&style, colours);
            let drawing = (self.draw)(pixel);
            let raster = self.raster(&drawing, pixel, width)?;
            self.refuse_large(&raster)?;
            return print(&text(Some((&drawing, &raster)), &style, colours));
        }
        let mut said = text(None, &style, colours);
        said.push('\n');
        for picture in written {
            let line = format!(
                "  {}: {} × {} pixels, {}",
                picture.file,
                picture.width,
                picture.height,
                bytes(pagelab_model::Bytes(picture.bytes))
            );
            said.extend([style.one_line(&line).as_str(), "\n"]);
        }
        print(&said)
    }

    fn pixel(&self, limits: (u64, u64), width: Option<u64>) -> Order {
        let frames = extents(self.layout, Order(0)).last().map_or(0, |last| last.at + last.frames.count.0);
        let auto = || auto_pixel(frames, self.layout.pageblock_order, self.plan.order, width, limits);
        self.plan.pixel.unwrap_or_else(auto)
    }

    fn for_terminal(&self, style: &Style, colours: Colours) -> (Order, Option<u64>) {
        let columns = style.width.saturating_sub(LABELS).max(16) as u64 / 8 * 8;
        let rows = LINES * if colours == Colours::None { 1 } else { 2 };
        let width = self.plan.width.or((self.plan.order == PixelOrder::Rows).then_some(columns));
        (self.pixel((columns, rows), width), width)
    }

    fn raster(&self, drawing: &Drawing<'m>, pixel: Order, width: Option<u64>) -> Result<Raster<'m>, Failure> {
        let plan = self.plan;
        let shape = Shape { order: plan.order, pixel, width, blend: plan.blend, grid: plan.grid };
        let block = self.layout.pageblock_order;
        if plan.grid && pixel.0 + 2 > block.0 {
            let (pages, block) = (pixel.pages().0, block.pages().0);
            let finest = (block / 4).max(1);
            return Err(usage(&format!(
                "--grid: a pageblock has {block} pages, and a pixel {pages}: there is nothing between edges; \
                 use --scale {finest} or less, or leave --grid away"
            )));
        }
        raster::raster(drawing, &shape).ok_or_else(|| {
            let pages = drawing.frames();
            let message = format!(
                "a picture of {} pages at --scale {} would have more than {} pixels: \
                 use a larger --scale, or auto",
                count(u128::from(pages)),
                pixel.pages().0,
                count(u128::from(PIXELS_MAX))
            );
            usage(&message)
        })
    }

    fn refuse_large(&self, raster: &Raster<'_>) -> Result<(), Failure> {
        let pixels = raster.path.width * raster.path.height;
        if pixels <= TERMINAL_MAX {
            return Ok(());
        }
        let pixels = count(u128::from(pixels));
        Err(usage(&format!("a picture of {pixels} pixels is too large for a terminal: name a file with -o")))
    }

    fn png(&self, drawing: &Drawing<'_>, raster: &Raster<'_>) -> std::io::Result<Vec<u8>> {
        let all = [bands::zones(drawing, raster), bands::blocks(drawing, raster)];
        let strips = all.iter().zip(STRIPS).map(|(bands, colours)| bands::strip(raster, bands, colours));
        let strips: Vec<Vec<Rgb>> = strips.filter(|strip| !strip.is_empty()).collect();
        png::encode(raster, &strips, &self.all_facts(drawing, raster))
    }

    fn svg(&self, drawing: &Drawing<'_>, raster: &Raster<'_>) -> std::io::Result<String> {
        let legend: Vec<LegendLine> = self
            .legend
            .iter()
            .map(|&(category, pages)| {
                let amount = bytes(Pages(pages).bytes(self.layout.page_size));
                LegendLine { category, amount }
            })
            .collect();
        let subtitle = [self.subtitle, &[scale_text(drawing, raster, self.plan.blend)]].concat();
        let facts = self.all_facts(drawing, raster);
        let frame = svg::Frame { title: self.title, subtitle: &subtitle, legend: &legend, facts: &facts };
        svg::encode(drawing, raster, &frame)
    }

    fn html(&self, drawing: &Drawing<'_>, raster: &Raster<'_>, text: &str) -> std::io::Result<String> {
        let subtitle = [self.subtitle, &[scale_text(drawing, raster, self.plan.blend)]].concat();
        let (title, legend, blend) = (self.title, self.legend, self.plan.blend);
        let around = html::picture::Around { title, subtitle: &subtitle, legend, blend, text };
        html::picture::page(drawing, raster, &around).map_err(std::io::Error::other)
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
        facts.push(("Scale", scale_text(drawing, raster, self.plan.blend)));
        facts.push(("Pages per pixel", raster.pixel.pages().0.to_string()));
        facts.push(("Frames", extents.join(" ")));
        facts.push(("Legend", legend.join(", ")));
        facts
    }
}

/// What travels with a picture: machine, kernel, time, where the numbers are from.
pub fn facts(title: &str, source: &MapSource, map: &PageMap) -> Vec<(&'static str, String)> {
    let unknown = || "not known".to_owned();
    let zones = map.layout.zones.iter().map(|zone| {
        let (first, count) = (zone.frames.first.0, zone.frames.count.0);
        format!("node {} {} {first:#x}+{count:#x}", zone.key.node.0, zone.key.zone)
    });
    vec![
        ("Title", title.to_owned()),
        ("Software", format!("pagelab {}", env!("CARGO_PKG_VERSION"))),
        ("Creation Time", source.taken_realtime_ns.map_or_else(unknown, utc)),
        ("Machine", source.host.clone().unwrap_or_else(unknown)),
        ("Kernel", source.kernel.clone().unwrap_or_else(unknown)),
        ("Source", source.file.clone()),
        ("Page size", map.layout.page_size.bytes().to_string()),
        ("Pageblock pages", map.layout.pageblock_order.pages().0.to_string()),
        ("Zones", zones.collect::<Vec<_>>().join(", ")),
    ]
}
