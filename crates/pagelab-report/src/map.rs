//! What `pagelab map` says about a map: where it is from, pages and bytes by class and zone, and the picture.

pub mod check;
pub mod difference;
pub mod explain;
pub mod process;

use pagelab_model::{Bytes, PageClass, PageMap, Pages, ZoneKey};

use crate::picture::bands;
use crate::picture::curve::PixelOrder;
use crate::picture::drawing::Drawing;
use crate::picture::raster::{Blend, Raster};
use crate::picture::scheme::Scheme;
use crate::picture::terminal::{self, Colours};
use crate::style::{Style, bytes, count, percent};
use crate::text::{Column, Page};
use crate::utc::utc;

/// A map, and where it is from.
#[derive(Clone, Debug)]
pub struct MapSource {
    /// `this machine`, or a saved tree's name.
    pub name: String,
    /// The file that was read: `/proc/kpageflags`.
    pub file: String,
    /// Name of the machine, where it is known.
    pub host: Option<String>,
    /// Kernel release, where it is known.
    pub kernel: Option<String>,
    /// When, in nanoseconds since 1970, where it is known.
    pub taken_realtime_ns: Option<u64>,
}

impl MapSource {
    /// When, as text.
    pub fn taken(&self) -> String {
        self.taken_realtime_ns
            .map_or_else(|| "at a time that is not known".to_owned(), |ns| format!("at {}", utc(ns)))
    }

    /// Machine and kernel, as far as they are known.
    pub fn machine(&self) -> String {
        let known = [self.host.clone(), self.kernel.as_ref().map(|kernel| format!("Linux {kernel}"))];
        known.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// A map and all that is said about it.
#[derive(Debug)]
pub struct MapReport<'a> {
    /// Where it is from.
    pub source: MapSource,
    /// The map.
    pub map: &'a PageMap,
    /// Its colours.
    pub scheme: Scheme,
    /// What must be known to read it rightly, in sentences without a trailing dot.
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

/// Pages by zone and class. Frames that no zone claims are counted as those of a zone without a name.
pub fn by_zone(map: &PageMap) -> Vec<ZoneClasses> {
    let zones = &map.layout.zones;
    let mut all: Vec<ZoneClasses> = Vec::new();
    let mut count = |key: Option<&ZoneKey>, classes: &[PageClass]| {
        let nobody = ZoneKey { node: pagelab_model::NodeId(0), zone: String::new() };
        let key = key.unwrap_or(&nobody);
        let at = all.iter().position(|zone| zone.key == *key).unwrap_or_else(|| {
            all.push(ZoneClasses { key: key.clone(), counts: [0; PageClass::COUNT] });
            all.len() - 1
        });
        classes.iter().for_each(|class| all[at].counts[class.index()] += 1);
    };
    for (first, mut classes) in map.spans() {
        let mut at = first;
        while !classes.is_empty() {
            let index = zones.partition_point(|zone| zone.frames.end() <= at);
            let zone = zones.get(index);
            let inside = zone.filter(|zone| zone.frames.first <= at);
            let until = zone.map(|zone| if inside.is_some() { zone.frames.end() } else { zone.frames.first });
            let length = until.map_or(u64::MAX, |until| until.0 - at.0).min(classes.len() as u64).max(1);
            let (these, others) = classes.split_at(length as usize);
            count(inside.map(|zone| &zone.key), these);
            (classes, at) = (others, at.plus(Pages(length)));
        }
    }
    all
}

/// Pages by class.
pub fn by_class(zones: &[ZoneClasses]) -> [u64; PageClass::COUNT] {
    let mut sum = [0; PageClass::COUNT];
    for zone in zones {
        sum.iter_mut().zip(zone.counts).for_each(|(sum, count)| *sum += count);
    }
    sum
}

impl MapReport<'_> {
    /// Pages of memory, and the answer in one sentence.
    pub fn headline(&self) -> String {
        let counts = by_class(&by_zone(self.map));
        let sum = |is: &dyn Fn(PageClass) -> bool| {
            let held = PageClass::ALL.into_iter().filter(|&class| is(class));
            held.map(|class| counts[class.index()]).sum::<u64>()
        };
        let size = |pages: u64| bytes(Pages(pages).bytes(self.map.layout.page_size));
        let all = sum(&|class| class != PageClass::Hole);
        let free = sum(&|class| matches!(class, PageClass::Free | PageClass::Deferred));
        let huge = sum(&|class| matches!(class, PageClass::AnonHuge | PageClass::Hugetlb));
        let movable = sum(&|class| class.is_movable() && class != PageClass::AnonHuge);
        format!(
            "{} of memory: {} free ({}), {} movable, {} in large pages, {} not movable or unknown",
            size(all),
            size(free),
            percent(free as f64 / all.max(1) as f64),
            size(movable),
            size(huge),
            size(all - free - huge - movable)
        )
    }

    /// From where, when, how long it took.
    pub fn about(&self) -> String {
        let took = (self.map.ended_ns - self.map.started_ns.min(self.map.ended_ns)) as f64 / 1e6;
        let layout = &self.map.layout;
        let machine = self.source.machine();
        let machine = if machine.is_empty() { String::new() } else { format!("{machine} · ") };
        format!(
            "{machine}{} {}, read in {took:.0} ms · pages of {}, pageblocks of {}",
            self.source.file,
            self.source.taken(),
            bytes(Bytes(layout.page_size.bytes())),
            bytes(layout.page_size.block(layout.pageblock_order)),
        )
    }

    /// The amounts beside the legend of the scheme, in its order; categories without pages are left out.
    pub fn legend(&self) -> Vec<(usize, u64)> {
        let counts = by_class(&by_zone(self.map));
        let mut sums = vec![0; self.scheme.legend().len()];
        for class in PageClass::ALL {
            sums[usize::from(self.scheme.of(class))] += counts[class.index()];
        }
        sums.into_iter().enumerate().filter(|(_, pages)| *pages > 0).collect()
    }

    /// The whole text; without a picture where one was written elsewhere.
    pub fn text(
        &self,
        picture: Option<(&Drawing<'_>, &Raster<'_>)>,
        style: &Style,
        colours: Colours,
    ) -> String {
        let mut page = Page::new(*style);
        page.hanging_bold("", &self.headline());
        page.hanging_dim("  ", &self.about());
        for note in &self.notes {
            page.hanging("  ", &format!("note: {note}"));
        }
        page.gap();
        let mut text = page.finish();
        text.push('\n');
        if let Some((drawing, raster)) = picture {
            text.push_str(&picture_text(drawing, raster, style, colours));
            text.push('\n');
        }
        text.push_str(&self.table(style, colours));
        text
    }

    fn table(&self, style: &Style, colours: Colours) -> String {
        let zones = by_zone(self.map);
        let counts = by_class(&zones);
        let all: u64 = counts.iter().sum::<u64>() - counts[PageClass::Hole.index()];
        let size = |pages: u64| match pages {
            0 => "—".to_owned(),
            pages => bytes(Pages(pages).bytes(self.map.layout.page_size)),
        };
        let several = zones.iter().any(|zone| zone.key.node != zones[0].key.node);
        let titles: Vec<String> = zones
            .iter()
            .map(|zone| match several {
                true => format!("{} {}", zone.key.node.0, zone.key.zone),
                false => zone.key.zone.clone(),
            })
            .collect();
        let mut rows = Vec::new();
        for class in PageClass::ALL.into_iter().filter(|class| counts[class.index()] > 0) {
            let pages = counts[class.index()];
            let category = &self.scheme.legend()[usize::from(self.scheme.of(class))];
            let label = Scheme::Full.legend()[class.index()].label;
            let share = if class == PageClass::Hole {
                "—".to_owned()
            } else {
                percent(pages as f64 / all.max(1) as f64)
            };
            let cells = [label.to_owned(), count(u128::from(pages)), size(pages), share];
            let by_zone = zones.iter().map(|zone| size(zone.counts[class.index()]));
            rows.push((category, cells.into_iter().chain(by_zone).collect::<Vec<String>>()));
        }
        let mut columns = vec![
            Column::left("class"),
            Column::right("pages"),
            Column::right("memory"),
            Column::right("share"),
        ];
        columns.extend(titles.iter().map(|title| Column::right(title)));
        let cells: Vec<Vec<String>> = rows.iter().map(|row| row.1.clone()).collect();
        let mut page = Page::new(Style { width: style.width.saturating_sub(8), ..*style });
        let fits = page.table_if_it_fits(0, &columns, &cells);
        if !fits {
            page.table(0, &columns[..4], &cells.iter().map(|row| row[..4].to_vec()).collect::<Vec<_>>());
        }
        let swatches = rows.iter().map(|(category, _)| Some(terminal::swatch(category, colours)));
        let mut text = beside(&page.finish(), std::iter::once(None).chain(swatches), colours);
        if !fits {
            text.push('\n');
            text.push_str(&self.zone_list(&zones, style));
        }
        text
    }

    /// Zones one below the other, where there are too many for columns.
    fn zone_list(&self, zones: &[ZoneClasses], style: &Style) -> String {
        let mut page = Page::new(*style);
        for zone in zones {
            let held = PageClass::ALL.into_iter().filter(|class| zone.counts[class.index()] > 0);
            let facts: Vec<String> = held
                .map(|class| {
                    let amount = Pages(zone.counts[class.index()]).bytes(self.map.layout.page_size);
                    format!("{} {}", Scheme::Full.legend()[class.index()].label, bytes(amount))
                })
                .collect();
            page.facts(&format!("  node {} {:8} ", zone.key.node.0, zone.key.zone), &facts, " · ");
        }
        page.finish()
    }
}

/// Lines of text with a swatch before each, and as much room where there is none.
pub(crate) fn beside(text: &str, swatches: impl Iterator<Item = Option<String>>, colours: Colours) -> String {
    let room = if colours == Colours::None { 5 } else { 8 };
    let mut out = String::new();
    for (line, swatch) in text.lines().zip(swatches.chain(std::iter::repeat(None))) {
        let swatch = swatch.unwrap_or_default();
        let blanks = room - crate::grid::width(&swatch).min(room);
        out.extend(["  ", &swatch, &" ".repeat(blanks), " ", line, "\n"]);
    }
    out
}

/// The picture with zone and address of each line before it, and the memory blocks behind it.
pub fn picture_text(drawing: &Drawing<'_>, raster: &Raster<'_>, style: &Style, colours: Colours) -> String {
    let lines = terminal::lines(raster, colours);
    let per_line = terminal::rows_per_line(colours) as u64;
    let page_size = drawing.layout.page_size;
    let mut text = format!("  {}\n", style.signs(&scale_text(drawing, raster, Blend::Majority)));
    let (zones, blocks) = (bands::zones(drawing, raster), bands::blocks(drawing, raster));
    let room = zones.iter().map(|zone| zone.label.len()).max().unwrap_or(0).max(4);
    let mut last_zone = String::new();
    for (index, line) in lines.iter().enumerate() {
        if raster.path.order != PixelOrder::Rows {
            text.extend(["  ", line, "\n"]);
            continue;
        }
        let first = index as u64 * per_line * raster.path.width;
        let end = (first + per_line * raster.path.width).min(raster.drawn);
        let zone = zones.iter().rfind(|zone| zone.first < end && first < zone.end);
        let zone = zone.map_or("", |zone| &zone.label);
        let shown = if zone == last_zone { "" } else { zone };
        last_zone = zone.to_owned();
        let address = drawing.frame(first * raster.pixel.pages().0).map_or(0, |frame| frame.0);
        let address = bytes(Pages(address).bytes(page_size));
        let inside: Vec<&str> = blocks
            .iter()
            .filter(|block| block.first < end && first < block.end)
            .map(|block| block.label.trim_start_matches("memory"))
            .collect();
        let inside = match inside[..] {
            [] => String::new(),
            [one] => format!(" {one}"),
            [one, .., last] => format!(" {one}…{last}"),
        };
        let blanks = (raster.path.width as usize).saturating_sub(crate::grid::width(line));
        let line = format!("{line}{}{}", " ".repeat(blanks), style.signs(&inside));
        text.push_str(&format!("  {:room$} {address:>8} {}\n", style.one_line(shown), line.trim_end()));
    }
    text
}

/// Scale, order and what a pixel shows, in one phrase.
pub fn scale_text(drawing: &Drawing<'_>, raster: &Raster<'_>, blend: Blend) -> String {
    let pages = raster.pixel.pages().0;
    let size = bytes(drawing.layout.page_size.block(raster.pixel));
    let order = match raster.path.order {
        PixelOrder::Rows => {
            format!("rows of {}", bytes(Pages(pages * raster.path.width).bytes(drawing.layout.page_size)))
        }
        PixelOrder::Tiles => "one tile a pageblock".to_owned(),
        PixelOrder::Hilbert => "Hilbert curve".to_owned(),
    };
    let blend = match (pages, raster.mixed.is_some(), blend) {
        (1, ..) => String::new(),
        (_, true, _) => ", mixed colours".to_owned(),
        (_, _, Blend::Worst) => ", the worst class shown".to_owned(),
        _ => ", the most frequent class shown".to_owned(),
    };
    match pages {
        1 => format!("one pixel a page ({size}), {order}"),
        pages => format!("one pixel for {} pages ({size}), {order}{blend}", count(u128::from(pages))),
    }
}
