//! The line between guest and host as bytes: frames with kind, number, length and checksum.
//!
//! ```text
//! a5 50 | kind u8 | 00 | number u32 | length u32 | payload | CRC-32 of all behind the mark u32
//! ```
//! Little endian. Numbers count from 0 and have no gaps, so that a lost frame shows. The decoder does not
//! search for the next mark behind damage: the line is a socket, so damage is somebody else's writing, and
//! what follows it cannot be trusted.

use std::fmt;

use pagelab_formats::checksum::crc32;

/// The first two bytes of every frame.
const MARK: [u8; 2] = [0xa5, 0x50];
const HEAD: usize = 12;
const TAIL: usize = 4;

/// Largest payload in bytes; a longer one is damage.
pub const PAYLOAD_MAX: usize = 64 << 10;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is; `message.rs` knows.
    pub kind: u8,
    /// At most [`PAYLOAD_MAX`] bytes.
    pub payload: Vec<u8>,
}

/// The bytes of the frame with this number. A payload that is too long is cut, which no caller does.
pub fn encode(kind: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let payload = &payload[..payload.len().min(PAYLOAD_MAX)];
    let mut bytes = Vec::with_capacity(HEAD + payload.len() + TAIL);
    bytes.extend(MARK);
    bytes.extend([kind, 0]);
    bytes.extend(number.to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(payload);
    let checksum = crc32(&bytes[MARK.len()..]);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// Why bytes are no frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset of the frame in everything that was received.
    pub at: u64,
    /// What is wrong with it, in a phrase.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.at, self.what)
    }
}

/// Takes bytes as they come and gives frames back. It holds at most one frame and what was pushed last.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
    offset: u64,
    number: u32,
    damage: Option<Damage>,
}

impl Decoder {
    /// Adds what was received. Take all frames by [`Decoder::next`] before the next push.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.damage.is_none() {
            self.bytes.drain(..self.taken);
            self.taken = 0;
            self.bytes.extend(bytes);
        }
    }

    /// The next whole frame; `None` until more is pushed. After damage there is nothing but the damage.
    #[allow(clippy::should_implement_trait, reason = "an iterator that goes on after None is a trap")]
    pub fn next(&mut self) -> Option<Result<Frame, Damage>> {
        if let Some(damage) = &self.damage {
            return Some(Err(damage.clone()));
        }
        match self.whole() {
            Ok(frame) => frame.map(Ok),
            Err(what) => {
                let damage = Damage { at: self.offset, what };
                self.damage = Some(damage.clone());
                self.bytes = Vec::new();
                self.taken = 0;
                Some(Err(damage))
            }
        }
    }

    /// Whether bytes of a frame that is not whole are waiting.
    pub fn is_within_a_frame(&self) -> bool {
        self.bytes.len() > self.taken
    }

    fn whole(&mut self) -> Result<Option<Frame>, String> {
        let bytes = &self.bytes[self.taken..];
        let marked = bytes.len().min(MARK.len());
        if bytes[..marked] != MARK[..marked] {
            return Err("this is not the beginning of a frame".to_owned());
        }
        let word = |at: usize| bytes.get(at..at + 4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        let (Some(number), Some(length)) = (word(4), word(8)) else { return Ok(None) };
        if bytes[3] != 0 {
            return Err("a byte that is always zero is not".to_owned());
        }
        if number != self.number {
            return Err(format!("frame {number} where {} was due", self.number));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > PAYLOAD_MAX {
            return Err(format!("a frame of {length} bytes, the longest has {PAYLOAD_MAX}"));
        }
        let Some(checksum) = word(HEAD + length) else { return Ok(None) };
        if checksum != crc32(&bytes[MARK.len()..HEAD + length]) {
            return Err(format!("the checksum of frame {number} is wrong"));
        }
        let frame = Frame { kind: bytes[2], payload: bytes[HEAD..HEAD + length].to_vec() };
        let size = HEAD + length + TAIL;
        self.taken += size;
        self.offset += size as u64;
        self.number = self.number.wrapping_add(1);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames, damage, and whether the beginning of one more is waiting.
    fn all_of(bytes: &[u8], piece: usize) -> (Vec<Frame>, Option<Damage>, bool) {
        let mut decoder = Decoder::default();
        let mut frames = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(next) = decoder.next() {
                match next {
                    Ok(frame) => frames.push(frame),
                    Err(damage) => return (frames, Some(damage), false),
                }
            }
        }
        (frames, None, decoder.is_within_a_frame())
    }

    fn all(bytes: &[u8], piece: usize) -> (Vec<Frame>, Option<Damage>) {
        let (frames, damage, _) = all_of(bytes, piece);
        (frames, damage)
    }

    fn three() -> Vec<u8> {
        [encode(1, 0, b"one"), encode(2, 1, b""), encode(3, 2, &[7; 1000])].concat()
    }

    #[test]
    fn frames_come_back_however_they_are_cut() {
        for piece in [1, 2, 3, 7, 64, 10_000] {
            let (frames, damage) = all(&three(), piece);
            assert_eq!(damage, None);
            let kinds: Vec<_> = frames.iter().map(|frame| (frame.kind, frame.payload.len())).collect();
            assert_eq!(kinds, [(1, 3), (2, 0), (3, 1000)], "{piece}");
        }
    }

    #[test]
    fn every_changed_bit_is_damage_and_nothing_behind_it_is_believed() {
        let good = three();
        let (whole, _) = all(&good, good.len());
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let (frames, damage, is_waiting) = all_of(&bad, bad.len());
                assert!(frames.len() < 3 && frames == whole[..frames.len()], "byte {at} bit {bit}");
                // A length that became larger only waits for more.
                assert!(damage.is_some() || is_waiting, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn a_lost_a_repeated_and_a_huge_frame_are_named() {
        for (bytes, what) in [
            (encode(1, 1, b""), "frame 1 where 0 was due"),
            ([encode(1, 0, b""), encode(1, 0, b"")].concat(), "frame 0 where 1 was due"),
            (b"[    1.2] printk".to_vec(), "not the beginning"),
            (
                [&MARK[..], &[1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]].concat(),
                "a frame of 4294967295 bytes",
            ),
        ] {
            let damage = all(&bytes, 5).1.unwrap();
            assert!(damage.what.contains(what), "{damage}");
        }
    }
}
