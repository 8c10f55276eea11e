//! Text report of a map: its source, pages and bytes by class and zone, and the picture.

pub mod check;
pub mod difference;
pub mod explain;
pub mod process;

use pagelab_model::{Bytes, PageClass, PageMap, Pages, ZoneKey};

use crate::memory_picture;
use crate::memory_picture::colour_scheme::ColourScheme;
use crate::memory_picture::drawing::Drawing;
use crate::memory_picture::pixel_path::PixelLayout;
use crate::memory_picture::raster::{PixelBlend, Raster};
use crate::memory_picture::terminal::{self, TerminalColours};
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, TextReport};
use crate::utc::format_utc;

/// Source of a map.
#[derive(Clone, Debug)]
pub struct MapSource {
    /// `this machine`, or the name of a saved tree.
    pub name: String,
    /// File that was read: `/proc/kpageflags`.
    pub file: String,
    /// Name of the machine, if known.
    pub host: Option<String>,
    /// Kernel release, if known.
    pub kernel: Option<String>,
    /// Time of the scan, in nanoseconds since 1970, if known.
    pub taken_realtime_ns: Option<u64>,
}

impl MapSource {
    /// Formats the time.
    pub fn taken_text(&self) -> String {
        self.taken_realtime_ns
            .map_or_else(|| "at an unknown time".to_owned(), |ns| format!("at {}", format_utc(ns)))
    }
}

/// Map with its report.
#[derive(Debug)]
pub struct MapReport<'a> {
    /// Source of the map.
    pub source: MapSource,
    /// The map.
    pub map: &'a PageMap,
    /// Colour scheme.
    pub scheme: ColourScheme,
    /// Caveats, in sentences without a trailing dot.
    pub notes: Vec<String>,
}

/// Pages of each class in one zone, by [`PageClass::index`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneClasses {
    /// The zone.
    pub key: ZoneKey,
    /// Its pages.
    pub counts: [u64; PageClass::COUNT],
}

/// Counts pages by zone and class. Frames outside of all zones count as a zone without a name.
pub fn count_by_zone(map: &PageMap) -> Vec<ZoneClasses> {
    let zones = &map.layout.zones;
    let mut total: Vec<ZoneClasses> = Vec::new();
    let mut count = |key: Option<&ZoneKey>, classes: &[PageClass]| {
        let no_zone = ZoneKey { node: pagelab_model::NodeId(0), zone: String::new() };
        let key = key.unwrap_or(&no_zone);
        let next_frame = total.iter().position(|zone| zone.key == *key).unwrap_or_else(|| {
            total.push(ZoneClasses { key: key.clone(), counts: [0; PageClass::COUNT] });
            total.len() - 1
        });
        classes.iter().for_each(|class| total[next_frame].counts[class.index()] += 1);
    };
    for (first, mut classes) in map.spans() {
        let mut next_frame = first;
        while !classes.is_empty() {
            let index = zones.partition_point(|zone| zone.frames.end() <= next_frame);
            let zone = zones.get(index);
            let inside = zone.filter(|zone| zone.frames.first <= next_frame);
            let until = zone.map(|zone| if inside.is_some() { zone.frames.end() } else { zone.frames.first });
            let length =
                until.map_or(u64::MAX, |until| until.0 - next_frame.0).min(classes.len() as u64).max(1);
            let (these, others) = classes.split_at(length as usize);
            count(inside.map(|zone| &zone.key), these);
            (classes, next_frame) = (others, next_frame.saturating_add(Pages(length)));
        }
    }
    total
}

/// Pages by class.
pub fn count_by_class(zones: &[ZoneClasses]) -> [u64; PageClass::COUNT] {
    let mut sum = [0; PageClass::COUNT];
    for zone in zones {
        sum.iter_mut().zip(zone.counts).for_each(|(sum, count)| *sum += count);
    }
    sum
}

impl MapReport<'_> {
    /// Returns the size of memory and the answer in one sentence.
    pub fn format_headline(&self) -> String {
        let counts = count_by_class(&count_by_zone(self.map));
        let sum = |is: &dyn Fn(PageClass) -> bool| {
            let held = PageClass::ALL.into_iter().filter(|&class| is(class));
            held.map(|class| counts[class.index()]).sum::<u64>()
        };
        let size = |pages: u64| format_bytes(Pages(pages).to_bytes(self.map.layout.page_size));
        let total = sum(&|class| class != PageClass::Hole);
        let free = sum(&|class| matches!(class, PageClass::Free | PageClass::Deferred));
        let huge = sum(&|class| matches!(class, PageClass::AnonHuge | PageClass::Hugetlb));
        let movable = sum(&|class| class.is_movable() && class != PageClass::AnonHuge);
        format!(
            "{} of memory: {} free ({}), {} movable, {} in huge pages, {} unmovable or unknown",
            size(total),
            size(free),
            format_percent(free as f64 / total.max(1) as f64),
            size(movable),
            size(huge),
            size(total - free - huge - movable)
        )
    }

    /// Describes source, time and duration of the scan.
    pub fn describe_source(&self) -> String {
        let took = (self.map.ended_ns - self.map.started_ns.min(self.map.ended_ns)) as f64 / 1e6;
        let layout = &self.map.layout;
        let kernel = self.source.kernel.as_ref().map(|kernel| format!("Linux {kernel}"));
        let machine = [self.source.host.clone(), kernel].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let machine = if machine.is_empty() { machine } else { machine + " · " };
        format!(
            "{machine}{} {}, read in {took:.0} ms · pages of {}, pageblocks of {}",
            self.source.file,
            self.source.taken_text(),
            format_bytes(Bytes(layout.page_size.bytes())),
            format_bytes(layout.page_size.block_bytes(layout.pageblock_order)),
        )
    }

    /// Returns the amounts beside the legend of the scheme, in its order, without empty categories.
    pub fn legend_amounts(&self) -> Vec<(usize, u64)> {
        let counts = count_by_class(&count_by_zone(self.map));
        let mut sums = vec![0; self.scheme.legend().len()];
        for class in PageClass::ALL {
            sums[usize::from(self.scheme.category_index(class))] += counts[class.index()];
        }
        sums.into_iter().enumerate().filter(|(_, pages)| *pages > 0).collect()
    }

    /// Renders the complete text, without a picture if one was written to a file.
    pub fn to_text(
        &self,
        picture: Option<(&Drawing<'_>, &Raster<'_>)>,
        style: &TextStyle,
        colours: TerminalColours,
    ) -> String {
        let mut output = TextReport::new(*style);
        output.add_bold_text(&self.format_headline());
        output.add_dim_indented(&self.describe_source());
        output.add_notes(&self.notes);
        text_with_picture(output, picture, style, colours) + &self.format_table(style, colours)
    }

    fn format_table(&self, style: &TextStyle, colours: TerminalColours) -> String {
        let zones = count_by_zone(self.map);
        let counts = count_by_class(&zones);
        let total: u64 = counts.iter().sum::<u64>() - counts[PageClass::Hole.index()];
        let size = |pages: u64| match pages {
            0 => "—".to_owned(),
            pages => format_bytes(Pages(pages).to_bytes(self.map.layout.page_size)),
        };
        let several = zones.iter().any(|zone| zone.key.node != zones[0].key.node);
        let mut table = RowTable::<PageClass>::new()
            .left("class", |class| ColourScheme::Full.legend()[class.index()].label.to_owned())
            .right("pages", |class| format_count(u128::from(counts[class.index()])))
            .right("memory", |class| size(counts[class.index()]))
            .right("share", |&class| match class {
                PageClass::Hole => "—".to_owned(),
                class => format_percent(counts[class.index()] as f64 / total.max(1) as f64),
            });
        for zone in &zones {
            let ZoneKey { node, zone: name } = &zone.key;
            let title = if several { format!("{} {name}", node.0) } else { name.clone() };
            table = table.right(title, move |class| size(zone.counts[class.index()]));
        }
        let shown: Vec<PageClass> =
            PageClass::ALL.into_iter().filter(|class| counts[class.index()] > 0).collect();
        let (columns, rows) = (table.columns(), table.rows(shown.iter().copied()));
        let mut output = TextReport::new(TextStyle { width: style.width.saturating_sub(8), ..*style });
        let fits = output.add_table_if_fits(0, &columns, &rows);
        if !fits {
            output.add_narrowed_table(0, &columns, &rows, &[&[0, 1, 2, 3]]);
        }
        let swatches = shown.iter().map(|&class| {
            let category = &self.scheme.legend()[usize::from(self.scheme.category_index(class))];
            Some(terminal::legend_swatch(category, colours))
        });
        let mut text = with_swatches(&output.into_text(), std::iter::once(None).chain(swatches), colours);
        if !fits {
            text.push('\n');
            text.push_str(&self.format_zone_list(&zones, style));
        }
        text
    }

    /// Writes zones one below the other if there are too many for columns.
    fn format_zone_list(&self, zones: &[ZoneClasses], style: &TextStyle) -> String {
        let mut output = TextReport::new(*style);
        for zone in zones {
            let held = PageClass::ALL.into_iter().filter(|class| zone.counts[class.index()] > 0);
            let facts: Vec<String> = held
                .map(|class| {
                    let amount = Pages(zone.counts[class.index()]).to_bytes(self.map.layout.page_size);
                    format!("{} {}", ColourScheme::Full.legend()[class.index()].label, format_bytes(amount))
                })
                .collect();
            output.add_facts(&format!("  node {} {:8} ", zone.key.node.0, zone.key.zone), &facts, " · ");
        }
        output.into_text()
    }
}

/// Returns lines of text with a swatch before each, or as many blanks.
pub(crate) fn with_swatches(
    text: &str,
    swatches: impl Iterator<Item = Option<String>>,
    colours: TerminalColours,
) -> String {
    let room = if colours == TerminalColours::NoColours { 5 } else { 8 };
    let mut out = String::new();
    for (line, swatch) in text.lines().zip(swatches.chain(std::iter::repeat(None))) {
        let swatch = swatch.unwrap_or_default();
        let blanks = room - crate::text_report::display_width(&swatch).min(room);
        out.extend(["  ", &swatch, &" ".repeat(blanks), " ", line, "\n"]);
    }
    out
}

/// Returns the text of a report, and the picture below it.
fn text_with_picture(
    output: TextReport,
    picture: Option<(&Drawing<'_>, &Raster<'_>)>,
    style: &TextStyle,
    colours: TerminalColours,
) -> String {
    let picture = picture.map(|(drawing, raster)| format_picture(drawing, raster, style, colours) + "\n");
    format!("{}\n{}", output.into_text(), picture.unwrap_or_default())
}

/// Writes the picture with zone and address before each line, and the memory blocks behind it.
fn format_picture(
    drawing: &Drawing<'_>,
    raster: &Raster<'_>,
    style: &TextStyle,
    colours: TerminalColours,
) -> String {
    let lines = terminal::render_lines(raster, colours);
    let per_line = terminal::rows_per_line(colours) as u64;
    let page_size = drawing.layout.page_size;
    let mut text =
        format!("  {}\n", style.to_displayable(&format_scale(drawing, raster, PixelBlend::Majority)));
    let (zones, blocks) =
        (memory_picture::zone_bands(drawing, raster), memory_picture::memory_block_bands(drawing, raster));
    let room = zones.iter().map(|zone| zone.label.len()).max().unwrap_or(0).max(4);
    let mut last_zone = String::new();
    for (index, line) in lines.iter().enumerate() {
        if raster.path.layout != PixelLayout::Rows {
            text.extend(["  ", line, "\n"]);
            continue;
        }
        let first = index as u64 * per_line * raster.path.width;
        let end = (first + per_line * raster.path.width).min(raster.pixels_drawn);
        let zone = zones.iter().rfind(|zone| zone.first_pixel < end && first < zone.end_pixel);
        let zone = zone.map_or("", |zone| &zone.label);
        let shown_blocks = if zone == last_zone { "" } else { zone };
        last_zone = zone.to_owned();
        let address = drawing.frame_at(first * raster.pixel_order.to_pages().0).map_or(0, |frame| frame.0);
        let address = format_bytes(Pages(address).to_bytes(page_size));
        let inside: Vec<&str> = blocks
            .iter()
            .filter(|block| block.first_pixel < end && first < block.end_pixel)
            .map(|block| block.label.trim_start_matches("memory"))
            .collect();
        let inside = match inside[..] {
            [] => String::new(),
            [one] => format!(" {one}"),
            [one, .., last] => format!(" {one}…{last}"),
        };
        let blanks = (raster.path.width as usize).saturating_sub(crate::text_report::display_width(line));
        let line = format!("{line}{}{}", " ".repeat(blanks), style.to_displayable(&inside));
        text.push_str(&format!(
            "  {:room$} {address:>8} {}\n",
            style.to_one_line(shown_blocks),
            line.trim_end()
        ));
    }
    text
}

/// Describes scale, order and the meaning of a pixel in one phrase.
pub fn format_scale(drawing: &Drawing<'_>, raster: &Raster<'_>, blend: PixelBlend) -> String {
    let pages = raster.pixel_order.to_pages().0;
    let size = format_bytes(drawing.layout.page_size.block_bytes(raster.pixel_order));
    let order = match raster.path.layout {
        PixelLayout::Rows => {
            format!(
                "rows of {}",
                format_bytes(Pages(pages * raster.path.width).to_bytes(drawing.layout.page_size))
            )
        }
        PixelLayout::Tiles => "one tile per pageblock".to_owned(),
        PixelLayout::Hilbert => "Hilbert curve".to_owned(),
    };
    let blend = match (pages, raster.blended.is_some(), blend) {
        (1, ..) => String::new(),
        (_, true, _) => ", mixed colours".to_owned(),
        (_, _, PixelBlend::Worst) => ", showing the worst class".to_owned(),
        _ => ", showing the most frequent class".to_owned(),
    };
    match pages {
        1 => format!("one pixel per page ({size}), {order}"),
        pages => format!("one pixel per {} pages ({size}), {order}{blend}", format_count(u128::from(pages))),
    }
}
