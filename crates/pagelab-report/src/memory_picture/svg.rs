//! A picture with its legend, zones and memory blocks as self-contained SVG.

use std::fmt::Write;

use super::PictureMetadata;
use super::PixelBand;
use super::drawing::Drawing;
use super::png;
use super::raster::Raster;
use crate::memory_picture;
use crate::style::escape_invisible;

/// Line of the legend: number of pages and amount of memory of a category.
pub struct LegendEntry {
    /// Index into the legend.
    pub category: usize,
    /// `12.3 GiB`.
    pub amount: String,
}

/// Text around a picture.
pub struct PictureFrame<'a> {
    /// Subject of the picture.
    pub title: &'a str,
    /// Scale, order, time.
    pub subtitle: &'a [String],
    /// Amounts beside the legend, in its order.
    pub legend: &'a [LegendEntry],
    /// Facts stored in the picture.
    pub facts: &'a PictureMetadata,
}

const MARGIN_PX: u64 = 16;
const LINE_HEIGHT_PX: u64 = 18;
const LEGEND_WIDTH_PX: u64 = 330;
/// Approximate width of a letter of the subtitle and of the title.
const LETTER_WIDTH_PX: u64 = 7;
const TITLE_LETTER_WIDTH_PX: u64 = 10;
const BAND_WIDTH_PX: u64 = 18;
const LABEL_WIDTH_PX: u64 = 92;
/// Approximate width to which a picture with fewer pixels is enlarged.
const WIDTH_MIN: u64 = 720;

/// Encodes the picture as a file.
pub fn encode_svg(
    drawing: &Drawing<'_>,
    raster: &Raster<'_>,
    picture_frame: &PictureFrame<'_>,
) -> std::io::Result<String> {
    let mut image = String::new();
    crate::html::push_base64(&png::encode_png(raster, &[], &[])?, &mut image);
    let (width, height) = (raster.path.width, raster.path.height);
    let zoom = (WIDTH_MIN / width.max(1)).clamp(1, 16);
    let (zones, blocks) =
        (memory_picture::zone_bands(drawing, raster), memory_picture::memory_block_bands(drawing, raster));
    let has_strips =
        zones.iter().chain(&blocks).any(|band| memory_picture::band_rows(raster, band).is_some());
    let image_left = MARGIN_PX + if has_strips { 2 * LABEL_WIDTH_PX } else { 0 };
    let image_top = MARGIN_PX + LINE_HEIGHT_PX * (2 + picture_frame.subtitle.len() as u64);
    let legend_height = LINE_HEIGHT_PX * (2 + picture_frame.legend.len() as u64);
    let letters = |text: &str| text.chars().count() as u64;
    let subtitle =
        picture_frame.subtitle.iter().map(|line| letters(line) * LETTER_WIDTH_PX).max().unwrap_or(0);
    let heading = 2 * MARGIN_PX + subtitle.max(letters(picture_frame.title) * TITLE_LETTER_WIDTH_PX);
    let full_width = heading.max(image_left + width * zoom + MARGIN_PX + LEGEND_WIDTH_PX);
    let full_height = image_top + (height * zoom).max(legend_height) + MARGIN_PX;
    let mut document = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" \
         width=\"{full_width}\" height=\"{full_height}\" viewBox=\"0 0 {full_width} {full_height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#1a1a1a\" role=\"img\" \
         aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n",
        escape_xml(picture_frame.title)
    );
    let facts = picture_frame.facts.iter().map(|(name, text)| format!("{name}: {text}")).collect::<Vec<_>>();
    let output = &mut document;
    let _ = writeln!(output, "<desc>{}</desc>", escape_xml(&facts.join("\n")));
    let _ = writeln!(output, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>");
    write_text(
        output,
        MARGIN_PX,
        MARGIN_PX + LINE_HEIGHT_PX - 4,
        picture_frame.title,
        " font-size=\"17\" font-weight=\"600\"",
    );
    for (at, line) in picture_frame.subtitle.iter().enumerate() {
        write_text(
            output,
            MARGIN_PX,
            MARGIN_PX + LINE_HEIGHT_PX * (2 + at as u64) - 4,
            line,
            " fill=\"#555555\"",
        );
    }
    let _ = writeln!(
        output,
        "<image x=\"{image_left}\" y=\"{image_top}\" width=\"{}\" height=\"{}\" \
         image-rendering=\"pixelated\" \
         preserveAspectRatio=\"none\" href=\"data:image/png;base64,{}\"/>",
        width * zoom,
        height * zoom,
        image
    );
    let origin = ImageOrigin { left: image_left, top: image_top, zoom };
    match has_strips {
        true => write_strips(output, raster, &zones, &blocks, &origin),
        false => {
            write_outlines(output, raster, &blocks, &origin, "#ffffff", 1);
            write_outlines(output, raster, &zones, &origin, "#000000", 2);
        }
    }
    write_legend(output, raster, picture_frame, image_left + width * zoom + MARGIN_PX, image_top);
    document.push_str("</svg>\n");
    Ok(document)
}

struct ImageOrigin {
    left: u64,
    top: u64,
    zoom: u64,
}

fn write_text(output: &mut String, x: u64, y: u64, text: &str, attributes: &str) {
    let _ = writeln!(output, "<text x=\"{x}\" y=\"{y}\"{attributes}>{}</text>", escape_xml(text));
}

fn write_legend(
    output: &mut String,
    raster: &Raster<'_>,
    picture_frame: &PictureFrame<'_>,
    x: u64,
    top: u64,
) {
    for (at, line) in picture_frame.legend.iter().enumerate() {
        let Some(category) = raster.legend.get(line.category) else { continue };
        let y = top + LINE_HEIGHT_PX * at as u64;
        let [red, green, blue] = category.colour;
        let _ = writeln!(
            output,
            "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"rgb({red},{green},{blue})\" \
             stroke=\"#777777\" stroke-width=\"0.5\"/>"
        );
        write_text(output, x + 22, y + 12, category.label, "");
        write_text(output, x + LEGEND_WIDTH_PX - MARGIN_PX, y + 12, &line.amount, " text-anchor=\"end\"");
    }
}

/// Writes zones and memory blocks as bars to the left of the rows.
fn write_strips(
    output: &mut String,
    raster: &Raster<'_>,
    zones: &[PixelBand],
    blocks: &[PixelBand],
    origin: &ImageOrigin,
) {
    const FILLS: [&str; 2] = ["#51606f", "#a9b4bf"];
    for (column, all) in [(0, zones), (1, blocks)] {
        let x = MARGIN_PX + LABEL_WIDTH_PX * column + LABEL_WIDTH_PX - BAND_WIDTH_PX;
        let mut free_from = 0;
        for (index, band) in all.iter().enumerate() {
            let Some((first, last)) = memory_picture::band_rows(raster, band) else { continue };
            let (y, height) = (origin.top + first * origin.zoom, (last + 1 - first) * origin.zoom);
            let fill = if band.is_online { FILLS[index % 2] } else { "#1f4e5f" };
            let width = BAND_WIDTH_PX - 6;
            let _ = writeln!(
                output,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\">\
                 <title>{}</title></rect>",
                escape_xml(&band.label)
            );
            // A label only if it fits below the last one.
            if y >= free_from {
                let attributes = " text-anchor=\"end\" font-size=\"11\" fill=\"#555555\"";
                write_text(output, x - 4, y + 10, &band.label, attributes);
                free_from = y + 13;
            }
        }
    }
}

/// Writes zones or memory blocks as outlines if they are not rows.
fn write_outlines(
    output: &mut String,
    raster: &Raster<'_>,
    bands: &[PixelBand],
    origin: &ImageOrigin,
    stroke: &str,
    width: u32,
) {
    let (columns, rows) = (raster.path.width as usize, raster.path.height as usize);
    let mut owner = vec![u32::MAX; columns * rows];
    for (index, band) in bands.iter().enumerate() {
        for at in band.first_pixel..band.end_pixel {
            let (x, y) = raster.path.position(at);
            owner[y as usize * columns + x as usize] = index as u32;
        }
    }
    let mut path = String::new();
    let (at_x, at_y) =
        (|x: usize| origin.left + x as u64 * origin.zoom, |y: usize| origin.top + y as u64 * origin.zoom);
    for y in 1..rows {
        let differs = |x: usize| owner[y * columns + x] != owner[(y - 1) * columns + x];
        for (first, end) in true_runs(columns, differs) {
            let _ = write!(path, "M{} {}h{}", at_x(first), at_y(y), (end - first) as u64 * origin.zoom);
        }
    }
    for x in 1..columns {
        let differs = |y: usize| owner[y * columns + x] != owner[y * columns + x - 1];
        for (first, end) in true_runs(rows, differs) {
            let _ = write!(path, "M{} {}v{}", at_x(x), at_y(first), (end - first) as u64 * origin.zoom);
        }
    }
    if !path.is_empty() {
        let opacity = if width > 1 { "0.9" } else { "0.35" };
        let _ = writeln!(
            output,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{width}\" \
             stroke-opacity=\"{opacity}\"/>"
        );
    }
    let attributes = " font-size=\"11\" paint-order=\"stroke\" stroke=\"#ffffff\" stroke-width=\"3\"";
    for band in bands.iter().filter(|_| width > 1) {
        let (x, y) = raster.path.position(band.first_pixel + (band.end_pixel - band.first_pixel) / 2);
        write_text(output, at_x(x as usize) + 3, at_y(y as usize) + 12, &band.label, attributes);
    }
}

/// Returns the ranges of `0..length` that satisfy the condition.
fn true_runs(length: usize, predicate: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..length).filter(|&at| predicate(at)) {
        match runs.last_mut() {
            Some(last) if last.1 == at => last.1 += 1,
            _ => runs.push((at, at + 1)),
        }
    }
    runs
}

fn escape_xml(text: &str) -> String {
    let text = text.split('\n').map(escape_invisible).collect::<Vec<_>>().join("\n");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
