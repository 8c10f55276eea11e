//! Maps of physical memory in a run file: key frames at intervals, and the changes in between.
//!
//! Each map is one blob of kind `page_map`. `docs/runfile.md` has its bytes.

mod frame_coding;
mod range_coder;

use pagelab_model::{PageClass, PageMap, PageMapLayout};

use crate::blob;
use crate::error::{Error, ErrorKind};
use range_coder::{RangeDecoder, RangeEncoder, TruncatedInput};

/// The kind of the blob that holds a map.
pub(crate) const MAP_KIND: &str = "page_map";

/// The version of that kind that is written, and the newest that is read.
pub(crate) const MAP_VERSION: u32 = 1;

/// The name of a map that needs no other.
pub(crate) const KEY_FRAME_NAME: &str = "key";

/// The name of a map that needs the one before.
pub(crate) const DELTA_NAME: &str = "delta";

/// Page frames of a map at most, which bounds the memory that reading one takes: 1 TiB at 4 KiB.
pub const MAP_FRAMES_MAX: u64 = 1 << 28;

/// Maps from one key frame to the next: what a reader of the last one decodes at most.
pub(crate) const KEY_FRAME_INTERVAL: u32 = 60;

/// Bytes of a layout's JSON at most.
const LAYOUT_BYTES_MAX: u64 = 16 << 20;

/// Encodes the maps of one run file, in their order. Apart from the writer, so that a thread that scans can
/// also encode.
#[derive(Debug, Default)]
pub struct MapEncoder {
    previous: Option<(PageMapLayout, Vec<u8>)>,
    /// Maps written so far.
    maps_encoded: u64,
    maps_since_key: u32,
}

/// A map as it is stored.
#[derive(Clone, Debug)]
pub struct EncodedMap {
    pub(crate) started_ns: u64,
    pub(crate) is_key_frame: bool,
    /// Compressed once more: the layout of a key frame is text.
    pub(crate) packed: Vec<u8>,
    pub(crate) raw_bytes: u64,
}

impl EncodedMap {
    /// Bytes that it takes in a file.
    pub fn packed_bytes(&self) -> u64 {
        self.packed.len() as u64
    }
}

impl MapEncoder {
    /// The next map. Every one must be written, since later ones are encoded against it. It takes some 35 ms
    /// for 6 million page frames. The error is what makes it none.
    pub fn encode_map(&mut self, map: &PageMap) -> Result<EncodedMap, Error> {
        let refused =
            |problem: String| Error::new(ErrorKind::NotStorable, format!("cannot store a map: {problem}"));
        let (is_key, data) = self.encode_next(map).map_err(refused)?;
        let (packed, raw_bytes) =
            blob::pack_blob(|out| out.write_all(&data)).map_err(|error| refused(error.to_string()))?;
        Ok(EncodedMap { started_ns: map.started_ns, is_key_frame: is_key, packed, raw_bytes })
    }

    fn encode_next(&mut self, map: &PageMap) -> Result<(bool, Vec<u8>), String> {
        if map.layout.count_frames() != map.classes.len() as u64 {
            let (told, held) = (map.layout.count_frames(), map.classes.len());
            return Err(format!("its layout has {told} page frames, but it contains {held} classes"));
        }
        checked_frame_count(&map.layout)?;
        if map.ended_ns < map.started_ns {
            return Err("its scan ended before it began".to_owned());
        }
        let mut classes: Vec<u8> = map.classes.iter().map(|&class| class as u8).collect();
        let previous = self.previous.take().filter(|(layout, _)| *layout == map.layout);
        let previous = previous.filter(|_| self.maps_since_key < KEY_FRAME_INTERVAL);
        let mut data = Vec::new();
        for number in [self.maps_encoded, map.started_ns, map.ended_ns] {
            data.extend(number.to_le_bytes());
        }
        let is_key = previous.is_none();
        if is_key {
            let layout = serde_json::to_vec(&map.layout).map_err(|error| error.to_string())?;
            data.extend((layout.len() as u64).to_le_bytes());
            data.extend(layout);
            self.maps_since_key = 0;
        }
        let mut encoder = RangeEncoder::new(data);
        let coded = match &previous {
            None => frame_coding::code_key_frame(&mut encoder, &mut classes),
            Some((_, before)) => frame_coding::code_delta(&mut encoder, before, &mut classes),
        };
        coded.map_err(|TruncatedInput| "encoding failed")?;
        let data = encoder.finish();
        self.maps_since_key += 1;
        self.maps_encoded += 1;
        self.previous = Some((map.layout.clone(), classes));
        Ok((is_key, data))
    }
}

/// Reads maps one after the other, from a key frame on.
#[derive(Default)]
pub(crate) struct MapDecoder {
    previous: Option<(u64, PageMapLayout, Vec<u8>)>,
}

impl MapDecoder {
    /// The map in these bytes; a delta must follow the map that was read last.
    pub fn decode_next(&mut self, is_key: bool, data: &[u8]) -> Result<PageMap, String> {
        let mut remaining = data;
        let mut number = || {
            let (eight, more) = remaining.split_first_chunk().ok_or("it is truncated")?;
            remaining = more;
            Ok::<u64, String>(u64::from_le_bytes(*eight))
        };
        let (ordinal, started_ns, ended_ns) = (number()?, number()?, number()?);
        let layout_bytes = if is_key { number()? } else { 0 };
        let previous = self.previous.take();
        let (layout, classes) = if is_key {
            if layout_bytes > LAYOUT_BYTES_MAX || layout_bytes > remaining.len() as u64 {
                return Err(format!("invalid layout size of {layout_bytes} bytes"));
            }
            let (layout, coded) = remaining.split_at(layout_bytes as usize);
            let layout: PageMapLayout =
                serde_json::from_slice(layout).map_err(|error| format!("its layout: {error}"))?;
            let mut classes = vec![0; checked_frame_count(&layout)?];
            decode_frames(coded, |decoder| frame_coding::code_key_frame(decoder, &mut classes))?;
            (layout, classes)
        } else {
            let (_, layout, previous) = previous
                .filter(|(last, ..)| last.checked_add(1) == Some(ordinal))
                .ok_or("its reference map is not the previous map")?;
            let mut classes = vec![0; previous.len()];
            decode_frames(remaining, |decoder| frame_coding::code_delta(decoder, &previous, &mut classes))?;
            (layout, classes)
        };
        let known = |&class: &u8| PageClass::ALL.get(usize::from(class)).copied();
        let named: Option<Vec<PageClass>> = classes.iter().map(known).collect();
        let named = named.ok_or("it has an unknown page class")?;
        self.previous = Some((ordinal, layout.clone(), classes));
        Ok(PageMap { started_ns, ended_ns, layout, classes: named })
    }
}

fn decode_frames(
    coded: &[u8],
    visit: impl FnOnce(&mut RangeDecoder<'_>) -> Result<(), TruncatedInput>,
) -> Result<(), String> {
    let mut decoder = RangeDecoder::new(coded).map_err(|TruncatedInput| "it is truncated")?;
    visit(&mut decoder).map_err(|TruncatedInput| "it is truncated")?;
    if decoder.is_at_end() { Ok(()) } else { Err("trailing data after the last frame".to_owned()) }
}

/// Number of frames of a layout, if it can be stored.
fn checked_frame_count(layout: &PageMapLayout) -> Result<usize, String> {
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
