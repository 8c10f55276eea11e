//! Maps of physical memory in a run file: a key frame from time to time, and what changed in between.
//!
//! Each map is one blob of kind `page_map`. `docs/runfile.md` has its bytes.

mod frames;
mod range;

use pagelab_model::{MapLayout, PageClass, PageMap};

use crate::blob;
use crate::error::{Error, ErrorKind};
use range::{CutOff, Decoder, Encoder};

/// The kind of the blob that holds a map.
pub(crate) const PAGE_MAP: &str = "page_map";

/// The version of that kind that is written, and the newest that is read.
pub(crate) const PAGE_MAP_VERSION: u32 = 1;

/// The name of a map that needs no other.
pub(crate) const KEY: &str = "key";

/// The name of a map that needs the one before.
pub(crate) const DELTA: &str = "delta";

/// Page frames of a map at most, which bounds the memory that reading one takes: 1 TiB at 4 KiB.
pub const MAP_FRAMES_MAX: u64 = 1 << 28;

/// Maps from one key frame to the next: what a reader of the last one decodes at most.
pub(crate) const KEY_EVERY: u32 = 60;

/// Bytes of a layout's JSON at most.
const LAYOUT_BYTES_MAX: u64 = 16 << 20;

/// Encodes the maps of one run file, in their order. Apart from the writer, so that a thread that scans can
/// also encode.
#[derive(Debug, Default)]
pub struct MapEncoder {
    before: Option<(MapLayout, Vec<u8>)>,
    /// Maps written so far.
    written: u64,
    since_key: u32,
}

/// A map as it is stored.
#[derive(Clone, Debug)]
pub struct EncodedMap {
    pub(crate) started_ns: u64,
    pub(crate) is_key: bool,
    /// Compressed once more: the layout of a key frame is text.
    pub(crate) packed: Vec<u8>,
    pub(crate) raw_bytes: u64,
}

impl EncodedMap {
    /// Bytes that it takes in a file.
    pub fn bytes(&self) -> u64 {
        self.packed.len() as u64
    }
}

impl MapEncoder {
    /// The next map. Every one must be written, since the ones after it are told from it. It takes some 35 ms
    /// for 6 million page frames. The error is what makes it none.
    pub fn encode(&mut self, map: &PageMap) -> Result<EncodedMap, Error> {
        let refused =
            |problem: String| Error::new(ErrorKind::NotStorable, format!("cannot store a map: {problem}"));
        let (is_key, data) = self.next(map).map_err(refused)?;
        let (packed, raw_bytes) =
            blob::pack(|out| out.write_all(&data)).map_err(|error| refused(error.to_string()))?;
        Ok(EncodedMap { started_ns: map.started_ns, is_key, packed, raw_bytes })
    }

    fn next(&mut self, map: &PageMap) -> Result<(bool, Vec<u8>), String> {
        if map.layout.frames() != map.classes.len() as u64 {
            let (told, held) = (map.layout.frames(), map.classes.len());
            return Err(format!("its layout has {told} page frames and it has {held} classes"));
        }
        check_frames(&map.layout)?;
        if map.ended_ns < map.started_ns {
            return Err("its scan ended before it began".to_owned());
        }
        let mut classes: Vec<u8> = map.classes.iter().map(|&class| class as u8).collect();
        let before = self.before.take().filter(|(layout, _)| *layout == map.layout);
        let before = before.filter(|_| self.since_key < KEY_EVERY);
        let mut data = Vec::new();
        for number in [self.written, map.started_ns, map.ended_ns] {
            data.extend(number.to_le_bytes());
        }
        let is_key = before.is_none();
        let data = match &before {
            None => {
                let layout = serde_json::to_vec(&map.layout).map_err(|error| error.to_string())?;
                data.extend((layout.len() as u64).to_le_bytes());
                data.extend(layout);
                self.since_key = 0;
                let mut encoder = Encoder::new(data);
                frames::key(&mut encoder, &mut classes).map_err(|CutOff| "it was not encoded")?;
                encoder.finish()
            }
            Some((_, before)) => {
                let mut encoder = Encoder::new(data);
                frames::delta(&mut encoder, before, &mut classes).map_err(|CutOff| "it was not encoded")?;
                encoder.finish()
            }
        };
        self.since_key += 1;
        self.written += 1;
        self.before = Some((map.layout.clone(), classes));
        Ok((is_key, data))
    }
}

/// Reads maps one after the other, from a key frame on.
#[derive(Default)]
pub(crate) struct MapReader {
    before: Option<(u64, MapLayout, Vec<u8>)>,
}

impl MapReader {
    /// The map in these bytes; a delta must follow the map that was read last.
    pub fn next(&mut self, is_key: bool, data: &[u8]) -> Result<PageMap, String> {
        let mut rest = data;
        let mut number = || {
            let (eight, more) = rest.split_first_chunk().ok_or("it is cut off")?;
            rest = more;
            Ok::<u64, String>(u64::from_le_bytes(*eight))
        };
        let (ordinal, started_ns, ended_ns) = (number()?, number()?, number()?);
        let layout_bytes = if is_key { number()? } else { 0 };
        let before = self.before.take();
        let (layout, classes) = if is_key {
            if layout_bytes > LAYOUT_BYTES_MAX || layout_bytes > rest.len() as u64 {
                return Err(format!("its layout is said to have {layout_bytes} bytes"));
            }
            let (layout, coded) = rest.split_at(layout_bytes as usize);
            let layout: MapLayout =
                serde_json::from_slice(layout).map_err(|error| format!("its layout: {error}"))?;
            let mut classes = vec![0; check_frames(&layout)?];
            decode(coded, |decoder| frames::key(decoder, &mut classes))?;
            (layout, classes)
        } else {
            let (_, layout, before) = before
                .filter(|(last, ..)| last.checked_add(1) == Some(ordinal))
                .ok_or("the map that it was told from is not the one before it")?;
            let mut classes = vec![0; before.len()];
            decode(rest, |decoder| frames::delta(decoder, &before, &mut classes))?;
            (layout, classes)
        };
        let known = |&class: &u8| PageClass::ALL.get(usize::from(class)).copied();
        let named: Option<Vec<PageClass>> = classes.iter().map(known).collect();
        let named = named.ok_or("it has a class of pages that there is not")?;
        self.before = Some((ordinal, layout.clone(), classes));
        Ok(PageMap { started_ns, ended_ns, layout, classes: named })
    }
}

fn decode(coded: &[u8], take: impl FnOnce(&mut Decoder<'_>) -> Result<(), CutOff>) -> Result<(), String> {
    let mut decoder = Decoder::new(coded).map_err(|CutOff| "it is cut off")?;
    take(&mut decoder).map_err(|CutOff| "it is cut off")?;
    if decoder.is_at_end() { Ok(()) } else { Err("it goes on behind its last frame".to_owned()) }
}

/// How many frames a layout has, if that is a number that is stored.
fn check_frames(layout: &MapLayout) -> Result<usize, String> {
    let sum = layout.spans.iter().try_fold(0u64, |sum, span| sum.checked_add(span.count.0));
    let mut ends = layout.spans.iter().map(|span| (span.first.0, span.first.0.checked_add(span.count.0)));
    let mut last = 0;
    let in_order = ends.all(|(first, end)| {
        let follows = first >= last;
        last = end.unwrap_or(0);
        follows && end.is_some()
    });
    match sum {
        Some(frames) if frames <= MAP_FRAMES_MAX && in_order => Ok(frames as usize),
        _ if !in_order => Err("its page frames are not in order".to_owned()),
        _ => Err(format!("it has more than {MAP_FRAMES_MAX} page frames")),
    }
}

#[cfg(test)]
mod tests;
