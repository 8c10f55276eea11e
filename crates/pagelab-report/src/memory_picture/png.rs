//! PNG encoder for maps of memory, on the zlib compression that HTML pages use too.
//!
//! A map needs three chunks of data and one of text (ISO/IEC 15948), so no library is necessary. Pictures
//! with only the colours of the legend have a palette; blended pictures have 24 bits per pixel.

use std::io::Write;

use flate2::{Compression, Crc, write::ZlibEncoder};

use super::raster::{EMPTY_PIXEL, Raster, shade_edge};
use super::{PictureMetadata, Rgb};

const PNG_SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n'];

/// Encodes the picture as a file; `metadata` is written to its text chunks.
pub fn encode_png(
    raster: &Raster<'_>,
    bands: &[Vec<Rgb>],
    metadata: &PictureMetadata,
) -> std::io::Result<Vec<u8>> {
    let width = raster.path.width as usize + bands.len() * BAND_PIXELS;
    let mut file = PNG_SIGNATURE.to_vec();
    let uses_rgb = raster.blended.is_some();
    let palette = Palette::from_raster(raster, bands);
    let mut header = Vec::with_capacity(13);
    header.extend(u32::try_from(width).unwrap_or(u32::MAX).to_be_bytes());
    header.extend(u32::try_from(raster.path.height).unwrap_or(u32::MAX).to_be_bytes());
    // Eight bits per sample; truecolour or palette; compression method 0, filter method 0, no interlace.
    header.extend([8, if uses_rgb { 2 } else { 3 }, 0, 0, 0]);
    push_chunk(&mut file, b"IHDR", &header);
    for (name, text) in metadata {
        push_chunk(&mut file, b"tEXt", &text_chunk_data(name, text));
    }
    if !uses_rgb {
        push_chunk(&mut file, b"PLTE", palette.colours.as_flattened());
        let mut opaque = vec![255; palette.colours.len()];
        opaque[palette.empty_index] = 0;
        push_chunk(&mut file, b"tRNS", &opaque);
    }
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::new(4));
    let mut row = Vec::with_capacity(1 + width * 3);
    for y in 0..raster.path.height as usize {
        row.clear();
        row.push(0);
        palette.write_row(raster, bands, y, uses_rgb, &mut row);
        pixels.write_all(&row)?;
    }
    push_chunk(&mut file, b"IDAT", &pixels.finish()?);
    push_chunk(&mut file, b"IEND", &[]);
    Ok(file)
}

/// Width of a band in pixels, including the gap after it.
pub const BAND_PIXELS: usize = 8;
const BAND_GAP_PIXELS: usize = 2;

/// Colours of a picture, to which pixels are indices: the legend, the legend shaded for the edges of
/// pageblocks, the background, and further colours of bands.
struct Palette {
    colours: Vec<Rgb>,
    edges_start: usize,
    empty_index: usize,
}

impl Palette {
    fn from_raster(raster: &Raster<'_>, bands: &[Vec<Rgb>]) -> Palette {
        let legend: Vec<Rgb> = raster.legend.iter().map(|category| category.colour).collect();
        let edges_start = legend.len();
        let edges: Vec<Rgb> = legend.iter().map(|&colour| shade_edge(colour)).collect();
        let mut colours = [legend, edges, vec![[255; 3]]].concat();
        let empty_index = colours.len() - 1;
        for &colour in bands.iter().flatten() {
            if !colours[empty_index..].contains(&colour) && colours.len() < 256 {
                colours.push(colour);
            }
        }
        Palette { colours, edges_start, empty_index }
    }

    fn write_row(
        &self,
        raster: &Raster<'_>,
        bands: &[Vec<Rgb>],
        y: usize,
        uses_rgb: bool,
        row: &mut Vec<u8>,
    ) {
        let mut push_pixel = |index: usize, colour: Rgb| match uses_rgb {
            true => row.extend(colour),
            false => row.push(index as u8),
        };
        for band in bands {
            let colour = band.get(y).copied().unwrap_or([255; 3]);
            let index = self.colours[self.empty_index..].iter().position(|&known| known == colour);
            (0..BAND_PIXELS - BAND_GAP_PIXELS)
                .for_each(|_| push_pixel(index.map_or(self.empty_index, |at| self.empty_index + at), colour));
            (0..BAND_GAP_PIXELS).for_each(|_| push_pixel(self.empty_index, [255; 3]));
        }
        let width = raster.path.width as usize;
        for pixel in y * width..(y + 1) * width {
            let is_edge = raster.edge_pixels.get(pixel).copied().unwrap_or(false);
            let index = match raster.cells[pixel] {
                EMPTY_PIXEL => self.empty_index,
                cell => usize::from(cell) + if is_edge { self.edges_start } else { 0 },
            };
            push_pixel(index, raster.pixel_colour(pixel).unwrap_or([255; 3]));
        }
    }
}

fn push_chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(data);
    file.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    file.extend(kind);
    file.extend(data);
    file.extend(crc.sum().to_be_bytes());
}

/// Data of a text chunk: name, a zero byte, text. PNG permits Latin-1 without control characters except the
/// line feed; other than ASCII characters are replaced by `?`.
fn text_chunk_data(name: &str, text: &str) -> Vec<u8> {
    let to_ascii = |c: char| if c == '\n' || (' '..='~').contains(&c) { c as u8 } else { b'?' };
    name.bytes().chain([0]).chain(text.chars().map(to_ascii)).collect()
}
