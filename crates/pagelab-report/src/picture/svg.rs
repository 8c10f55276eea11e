//! A picture with its legend, its zones and its memory blocks as SVG: it needs nothing else to be shown.

use std::fmt::Write;

use super::Facts;
use super::bands::{self, Band};
use super::drawing::Drawing;
use super::png;
use super::raster::Raster;
use crate::style::spelt;

/// A line of the legend besides the category: how many pages, how much memory.
pub struct LegendLine {
    /// Index into the legend.
    pub category: usize,
    /// `12.3 GiB`.
    pub amount: String,
}

/// What is written around a picture.
pub struct Frame<'a> {
    /// What the picture shows.
    pub title: &'a str,
    /// Scale, order, when.
    pub subtitle: &'a [String],
    /// Amounts beside the legend, in its order.
    pub legend: &'a [LegendLine],
    /// Facts that travel with the picture.
    pub facts: &'a Facts,
}

const MARGIN: u64 = 16;
const LINE: u64 = 18;
const LEGEND_WIDTH: u64 = 330;
/// Width of a letter of the subtitle and of the title, about.
const LETTER: u64 = 7;
const TITLE_LETTER: u64 = 10;
const BAND_WIDTH: u64 = 18;
const LABEL_WIDTH: u64 = 92;
/// A picture of fewer pixels is enlarged to about this width.
const WIDTH_MIN: u64 = 720;

/// The picture as a file.
pub fn encode(drawing: &Drawing<'_>, raster: &Raster<'_>, frame: &Frame<'_>) -> std::io::Result<String> {
    let mut image = String::new();
    crate::html::base64(&png::encode(raster, &[], &[])?, &mut image);
    let (width, height) = (raster.path.width, raster.path.height);
    let zoom = (WIDTH_MIN / width.max(1)).clamp(1, 16);
    let (zones, blocks) = (bands::zones(drawing, raster), bands::blocks(drawing, raster));
    let has_strips = zones.iter().chain(&blocks).any(|band| bands::rows(raster, band).is_some());
    let left = MARGIN + if has_strips { 2 * LABEL_WIDTH } else { 0 };
    let top = MARGIN + LINE * (2 + frame.subtitle.len() as u64);
    let legend_height = LINE * (2 + frame.legend.len() as u64);
    let letters = |text: &str| text.chars().count() as u64;
    let subtitle = frame.subtitle.iter().map(|line| letters(line) * LETTER).max().unwrap_or(0);
    let heading = 2 * MARGIN + subtitle.max(letters(frame.title) * TITLE_LETTER);
    let full_width = heading.max(left + width * zoom + MARGIN + LEGEND_WIDTH);
    let full_height = top + (height * zoom).max(legend_height) + MARGIN;
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" \
         width=\"{full_width}\" height=\"{full_height}\" viewBox=\"0 0 {full_width} {full_height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#1a1a1a\" role=\"img\" \
         aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n",
        xml(frame.title)
    );
    let facts = frame.facts.iter().map(|(name, text)| format!("{name}: {text}")).collect::<Vec<_>>();
    let out = &mut svg;
    let _ = writeln!(out, "<desc>{}</desc>", xml(&facts.join("\n")));
    let _ = writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>");
    text(out, MARGIN, MARGIN + LINE - 4, frame.title, " font-size=\"17\" font-weight=\"600\"");
    for (at, line) in frame.subtitle.iter().enumerate() {
        text(out, MARGIN, MARGIN + LINE * (2 + at as u64) - 4, line, " fill=\"#555555\"");
    }
    let _ = writeln!(
        out,
        "<image x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" image-rendering=\"pixelated\" \
         preserveAspectRatio=\"none\" href=\"data:image/png;base64,{}\"/>",
        width * zoom,
        height * zoom,
        image
    );
    let place = Place { left, top, zoom };
    match has_strips {
        true => strips(out, raster, &zones, &blocks, &place),
        false => {
            outlines(out, raster, &blocks, &place, "#ffffff", 1);
            outlines(out, raster, &zones, &place, "#000000", 2);
        }
    }
    legend(out, raster, frame, left + width * zoom + MARGIN, top);
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Where the picture lies in the file.
struct Place {
    left: u64,
    top: u64,
    zoom: u64,
}

fn text(out: &mut String, x: u64, y: u64, text: &str, attributes: &str) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\"{attributes}>{}</text>", xml(text));
}

fn legend(out: &mut String, raster: &Raster<'_>, frame: &Frame<'_>, x: u64, top: u64) {
    for (at, line) in frame.legend.iter().enumerate() {
        let Some(category) = raster.legend.get(line.category) else { continue };
        let y = top + LINE * at as u64;
        let [red, green, blue] = category.colour;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"rgb({red},{green},{blue})\" \
             stroke=\"#777777\" stroke-width=\"0.5\"/>"
        );
        text(out, x + 22, y + 12, category.label, "");
        text(out, x + LEGEND_WIDTH - MARGIN, y + 12, &line.amount, " text-anchor=\"end\"");
    }
}

/// Zones and memory blocks as bars to the left of the rows.
fn strips(out: &mut String, raster: &Raster<'_>, zones: &[Band], blocks: &[Band], place: &Place) {
    const FILLS: [&str; 2] = ["#51606f", "#a9b4bf"];
    for (column, all) in [(0, zones), (1, blocks)] {
        let x = MARGIN + LABEL_WIDTH * column + LABEL_WIDTH - BAND_WIDTH;
        let mut free_from = 0;
        for (index, band) in all.iter().enumerate() {
            let Some((first, last)) = bands::rows(raster, band) else { continue };
            let (y, height) = (place.top + first * place.zoom, (last + 1 - first) * place.zoom);
            let fill = if band.is_online { FILLS[index % 2] } else { "#1f4e5f" };
            let width = BAND_WIDTH - 6;
            let _ = writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\">\
                 <title>{}</title></rect>",
                xml(&band.label)
            );
            // A label where there is room for one below the last.
            if y >= free_from {
                let attributes = " text-anchor=\"end\" font-size=\"11\" fill=\"#555555\"";
                text(out, x - 4, y + 10, &band.label, attributes);
                free_from = y + 13;
            }
        }
    }
}

/// Zones or memory blocks as outlines, where they are not rows.
fn outlines(out: &mut String, raster: &Raster<'_>, bands: &[Band], place: &Place, stroke: &str, width: u32) {
    let (columns, rows) = (raster.path.width as usize, raster.path.height as usize);
    let mut owner = vec![u32::MAX; columns * rows];
    for (index, band) in bands.iter().enumerate() {
        for at in band.first..band.end {
            let (x, y) = raster.path.place(at);
            owner[y as usize * columns + x as usize] = index as u32;
        }
    }
    let mut path = String::new();
    let (at_x, at_y) =
        (|x: usize| place.left + x as u64 * place.zoom, |y: usize| place.top + y as u64 * place.zoom);
    for y in 1..rows {
        let differs = |x: usize| owner[y * columns + x] != owner[(y - 1) * columns + x];
        for (first, end) in runs(columns, differs) {
            let _ = write!(path, "M{} {}h{}", at_x(first), at_y(y), (end - first) as u64 * place.zoom);
        }
    }
    for x in 1..columns {
        let differs = |y: usize| owner[y * columns + x] != owner[y * columns + x - 1];
        for (first, end) in runs(rows, differs) {
            let _ = write!(path, "M{} {}v{}", at_x(x), at_y(first), (end - first) as u64 * place.zoom);
        }
    }
    if !path.is_empty() {
        let opacity = if width > 1 { "0.9" } else { "0.35" };
        let _ = writeln!(
            out,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{width}\" \
             stroke-opacity=\"{opacity}\"/>"
        );
    }
    let attributes = " font-size=\"11\" paint-order=\"stroke\" stroke=\"#ffffff\" stroke-width=\"3\"";
    for band in bands.iter().filter(|_| width > 1) {
        let (x, y) = raster.path.place(band.first + (band.end - band.first) / 2);
        text(out, at_x(x as usize) + 3, at_y(y as usize) + 12, &band.label, attributes);
    }
}

/// The stretches of `0..length` in which it is so.
fn runs(length: usize, is_so: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..length).filter(|&at| is_so(at)) {
        match runs.last_mut() {
            Some(last) if last.1 == at => last.1 += 1,
            _ => runs.push((at, at + 1)),
        }
    }
    runs
}

/// Text between tags and in attributes, harmless.
fn xml(text: &str) -> String {
    let text = text.split('\n').map(spelt).collect::<Vec<_>>().join("\n");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
