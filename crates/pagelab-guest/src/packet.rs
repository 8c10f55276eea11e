//! Packets on the line between guest and host: kind, number, length and checksum.
//!
//! ```text
//! a5 50 | kind u8 | 00 | number u32 | length u32 | payload | CRC-32 of all behind the mark u32
//! ```
//! Little endian. Numbers count from 0 and have no gaps, so that a lost packet shows. The decoder does not
//! search for the next mark behind damage: the line is a socket, so damage is somebody else's writing, and
//! what follows it cannot be trusted.

use pagelab_formats::checksum::crc32;

/// The first two bytes of every packet.
const PACKET_MARK: [u8; 2] = [0xa5, 0x50];
const HEADER_BYTES: usize = 12;
const TRAILER_BYTES: usize = 4;

/// Largest payload in bytes; a longer one is damage.
pub const PAYLOAD_MAX: usize = 64 << 10;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Kind of the payload, see `message.rs`.
    pub kind: u8,
    /// At most [`PAYLOAD_MAX`] bytes.
    pub payload: Vec<u8>,
}

/// The bytes of the packet with this number. A payload that is too long is cut, which no caller does.
pub fn encode(kind: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let payload = &payload[..payload.len().min(PAYLOAD_MAX)];
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len() + TRAILER_BYTES);
    bytes.extend(PACKET_MARK);
    bytes.extend([kind, 0]);
    bytes.extend(number.to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(payload);
    let checksum = crc32(&bytes[PACKET_MARK.len()..]);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// Decoder of a byte stream. It holds at most one packet and the bytes that were pushed last.
#[derive(Debug, Default)]
pub struct PacketDecoder {
    bytes: Vec<u8>,
    consumed: usize,
    offset: u64,
    next_number: u32,
    error: Option<String>,
}

impl PacketDecoder {
    /// Adds received bytes. Take all packets by [`PacketDecoder::next_packet`] before the next push.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.bytes.drain(..self.consumed);
            self.consumed = 0;
            self.bytes.extend(bytes);
        }
    }

    /// The next whole packet; `None` until more is pushed. After damage there is nothing but the damage: the
    /// offset of the packet in everything that was received, and the reason.
    #[allow(clippy::should_implement_trait, reason = "an iterator that continues after None is a trap")]
    pub fn next_packet(&mut self) -> Option<Result<Packet, String>> {
        if let Some(damage) = &self.error {
            return Some(Err(damage.clone()));
        }
        match self.parse_packet() {
            Ok(packet) => packet.map(Ok),
            Err(what) => {
                let damage = format!("byte {}: {what}", self.offset);
                self.error = Some(damage.clone());
                self.bytes = Vec::new();
                self.consumed = 0;
                Some(Err(damage))
            }
        }
    }

    /// Whether bytes of a packet that is not whole are waiting.
    pub fn has_partial_packet(&self) -> bool {
        self.bytes.len() > self.consumed
    }

    fn parse_packet(&mut self) -> Result<Option<Packet>, String> {
        let bytes = &self.bytes[self.consumed..];
        let marked = bytes.len().min(PACKET_MARK.len());
        if bytes[..marked] != PACKET_MARK[..marked] {
            return Err("not the start of a packet".to_owned());
        }
        let read_u32 =
            |at: usize| bytes.get(at..at + 4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        let (Some(number), Some(length)) = (read_u32(4), read_u32(8)) else { return Ok(None) };
        if bytes[3] != 0 {
            return Err("a reserved byte is not zero".to_owned());
        }
        if number != self.next_number {
            return Err(format!("packet {number} out of order; expected {}", self.next_number));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > PAYLOAD_MAX {
            return Err(format!("a packet of {length} bytes; the maximum is {PAYLOAD_MAX}"));
        }
        let Some(checksum) = read_u32(HEADER_BYTES + length) else { return Ok(None) };
        if checksum != crc32(&bytes[PACKET_MARK.len()..HEADER_BYTES + length]) {
            return Err(format!("packet {number} has a wrong checksum"));
        }
        let packet = Packet { kind: bytes[2], payload: bytes[HEADER_BYTES..HEADER_BYTES + length].to_vec() };
        let size = HEADER_BYTES + length + TRAILER_BYTES;
        self.consumed += size;
        self.offset += size as u64;
        self.next_number = self.next_number.wrapping_add(1);
        Ok(Some(packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets, damage, and whether the beginning of one more is waiting.
    fn decode_pieces(bytes: &[u8], piece: usize) -> (Vec<Packet>, Option<String>, bool) {
        let mut decoder = PacketDecoder::default();
        let mut packets = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push_bytes(piece);
            while let Some(next) = decoder.next_packet() {
                match next {
                    Ok(packet) => packets.push(packet),
                    Err(damage) => return (packets, Some(damage), false),
                }
            }
        }
        (packets, None, decoder.has_partial_packet())
    }

    fn decode_whole(bytes: &[u8], piece: usize) -> (Vec<Packet>, Option<String>) {
        let (packets, damage, _) = decode_pieces(bytes, piece);
        (packets, damage)
    }

    fn three_packets() -> Vec<u8> {
        [encode(1, 0, b"one"), encode(2, 1, b""), encode(3, 2, &[7; 1000])].concat()
    }

    #[test]
    fn packets_come_back_however_they_are_cut() {
        for piece in [1, 2, 3, 7, 64, 10_000] {
            let (packets, damage) = decode_whole(&three_packets(), piece);
            assert_eq!(damage, None);
            let kinds: Vec<_> = packets.iter().map(|packet| (packet.kind, packet.payload.len())).collect();
            assert_eq!(kinds, [(1, 3), (2, 0), (3, 1000)], "{piece}");
        }
    }

    #[test]
    fn every_changed_bit_is_damage_and_nothing_behind_it_is_believed() {
        let good = three_packets();
        let (whole, _) = decode_whole(&good, good.len());
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let (packets, damage, is_waiting) = decode_pieces(&bad, bad.len());
                assert!(packets.len() < 3 && packets == whole[..packets.len()], "byte {at} bit {bit}");
                // A length that became larger only waits for more.
                assert!(damage.is_some() || is_waiting, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn a_lost_a_repeated_and_a_huge_packet_are_named() {
        for (bytes, what) in [
            (encode(1, 1, b""), "packet 1 out of order; expected 0"),
            ([encode(1, 0, b""), encode(1, 0, b"")].concat(), "packet 0 out of order; expected 1"),
            (b"[    1.2] printk".to_vec(), "not the start of a packet"),
            (
                [&PACKET_MARK[..], &[1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]].concat(),
                "a packet of 4294967295 bytes",
            ),
        ] {
            let damage = decode_whole(&bytes, 5).1.unwrap();
            assert!(damage.contains(what), "{damage}");
        }
    }
}
