//! PNG: one kind of picture, written by hand over the compression that pages already use.
//!
//! A map needs three chunks of data and one of text, so no library is taken in for it; ISO/IEC 15948
//! describes them. Pictures whose colours are those of the legend have a palette; mixtures have 24 bits a
//! pixel.

use std::io::Write;

use flate2::{Compression, Crc, write::ZlibEncoder};

use super::raster::{NOTHING, Raster, shaded};
use super::{Facts, Rgb};

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n'];

/// The picture as a file; `facts` go into its text chunks.
pub fn encode(raster: &Raster<'_>, bands: &[Vec<Rgb>], facts: &Facts) -> std::io::Result<Vec<u8>> {
    let width = raster.path.width as usize + bands_width(bands);
    let mut file = SIGNATURE.to_vec();
    let mixed = raster.mixed.is_some();
    let palette = Palette::of(raster, bands);
    let mut header = Vec::with_capacity(13);
    header.extend(u32::try_from(width).unwrap_or(u32::MAX).to_be_bytes());
    header.extend(u32::try_from(raster.path.height).unwrap_or(u32::MAX).to_be_bytes());
    // Eight bits a sample; truecolour or palette; the only compression, filtering and no interlace.
    header.extend([8, if mixed { 2 } else { 3 }, 0, 0, 0]);
    chunk(&mut file, b"IHDR", &header);
    for (name, text) in facts {
        chunk(&mut file, b"tEXt", &text_chunk(name, text));
    }
    if !mixed {
        chunk(&mut file, b"PLTE", palette.colours.as_flattened());
        let mut opaque = vec![255; palette.colours.len()];
        opaque[palette.nothing] = 0;
        chunk(&mut file, b"tRNS", &opaque);
    }
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::new(4));
    let mut row = Vec::with_capacity(1 + width * 3);
    for y in 0..raster.path.height as usize {
        row.clear();
        row.push(0);
        palette.row(raster, bands, y, mixed, &mut row);
        pixels.write_all(&row)?;
    }
    chunk(&mut file, b"IDAT", &pixels.finish()?);
    chunk(&mut file, b"IEND", &[]);
    Ok(file)
}

/// Pixels that a band takes, with the gap behind it.
pub const BAND: usize = 8;
const BAND_GAP: usize = 2;

/// Pixels that the bands at the left edge take.
pub fn bands_width(bands: &[Vec<Rgb>]) -> usize {
    bands.len() * BAND
}

/// The colours of a picture, each pixel as an index into them.
struct Palette {
    colours: Vec<Rgb>,
    legend: usize,
    nothing: usize,
}

impl Palette {
    fn of(raster: &Raster<'_>, bands: &[Vec<Rgb>]) -> Palette {
        let plain: Vec<Rgb> = raster.legend.iter().map(|category| category.colour).collect();
        let legend = plain.len();
        let edges: Vec<Rgb> = plain.iter().map(|&colour| shaded(colour)).collect();
        let mut colours = [plain, edges, vec![[255; 3]]].concat();
        let nothing = colours.len() - 1;
        for &colour in bands.iter().flatten() {
            if !colours[nothing..].contains(&colour) && colours.len() < 256 {
                colours.push(colour);
            }
        }
        Palette { colours, legend, nothing }
    }

    fn row(&self, raster: &Raster<'_>, bands: &[Vec<Rgb>], y: usize, mixed: bool, row: &mut Vec<u8>) {
        let mut put = |index: usize, colour: Rgb| match mixed {
            true => row.extend(colour),
            false => row.push(index as u8),
        };
        for band in bands {
            let colour = band.get(y).copied().unwrap_or([255; 3]);
            let index = self.colours[self.nothing..].iter().position(|&known| known == colour);
            (0..BAND - BAND_GAP)
                .for_each(|_| put(index.map_or(self.nothing, |at| self.nothing + at), colour));
            (0..BAND_GAP).for_each(|_| put(self.nothing, [255; 3]));
        }
        let width = raster.path.width as usize;
        for at in y * width..(y + 1) * width {
            let edge = raster.edges.get(at).copied().unwrap_or(false);
            let index = match raster.cells[at] {
                NOTHING => self.nothing,
                cell => usize::from(cell) + if edge { self.legend } else { 0 },
            };
            put(index, raster.colour(at).unwrap_or([255; 3]));
        }
    }
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(data);
    file.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    file.extend(kind);
    file.extend(data);
    file.extend(crc.sum().to_be_bytes());
}

/// Name, a zero, text: Latin-1 without control characters but the line's end; here ASCII. The names are ours.
fn text_chunk(name: &str, text: &str) -> Vec<u8> {
    let plain = |sign: char| if sign == '\n' || (' '..='~').contains(&sign) { sign as u8 } else { b'?' };
    name.bytes().chain([0]).chain(text.chars().map(plain)).collect()
}
