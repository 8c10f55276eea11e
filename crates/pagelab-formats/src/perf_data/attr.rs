//! `struct perf_event_attr` as it stands in files, in either byte order.

use super::record::{bit, count_bits};

/// The byte order of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Endian {
    /// Lowest byte first.
    #[default]
    Little,
    /// Highest byte first.
    Big,
}

impl Endian {
    /// That of this machine.
    pub const NATIVE: Endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };

    /// The word of 8 bytes at this place.
    #[inline]
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Endian::Little { u64::from_le_bytes(word) } else { u64::from_be_bytes(word) })
    }

    /// The word of 4 bytes at this place.
    #[inline]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Endian::Little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) })
    }

    /// The word of 2 bytes at this place.
    #[inline]
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Endian::Little { u16::from_le_bytes(word) } else { u16::from_be_bytes(word) })
    }
}

/// What an event was opened with, as far as reading its records needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Kind of event: a number of a PMU.
    pub kind: u32,
    /// Which event of that PMU.
    pub config: u64,
    /// Sampling period, or frequency in 1/s if [`Attr::is_frequency`].
    pub period_or_frequency: u64,
    /// What is in a sample: bits of PERF_SAMPLE_*.
    pub sample_type: u64,
    /// What is in a read value: bits of PERF_FORMAT_*.
    pub read_format: u64,
    /// The bit field behind `read_format`, lowest bit first.
    pub flags: u64,
    /// What is in a branch stack.
    pub branch_sample_type: u64,
    /// Which user registers are in a sample.
    pub regs_user: u64,
    /// Which registers of the interrupt are in a sample.
    pub regs_intr: u64,
}

/// Bytes of the first published form (PERF_ATTR_SIZE_VER0, 2.6.31).
pub(super) const SHORTEST: usize = 64;

impl Attr {
    /// Reads as much as its own size says, up to the bytes that are there; `None` if it is too short.
    pub fn parse(bytes: &[u8], endian: Endian) -> Option<Attr> {
        let size = match endian.u32(bytes, 4)? {
            0 => SHORTEST,
            size => size as usize,
        };
        let bytes = bytes.get(..size).filter(|bytes| bytes.len() >= SHORTEST)?;
        let word = |at| endian.u64(bytes, at);
        // Bit fields begin at the other end where the highest byte comes first.
        let flags = word(40).map(|flags| if endian == Endian::Big { flags.reverse_bits() } else { flags });
        Some(Attr {
            kind: endian.u32(bytes, 0)?,
            config: word(8)?,
            period_or_frequency: word(16)?,
            sample_type: word(24)?,
            read_format: word(32)?,
            flags: flags?,
            branch_sample_type: word(72).unwrap_or(0),
            regs_user: word(80).unwrap_or(0),
            regs_intr: word(96).unwrap_or(0),
        })
    }

    /// Whether the period was steered to reach a frequency.
    pub fn is_frequency(&self) -> bool {
        self.flags >> 10 & 1 != 0
    }

    /// Whether records that are no samples end in their time and process.
    pub fn has_trailers(&self) -> bool {
        self.flags >> 18 & 1 != 0
    }

    /// Whether samples have this part.
    pub fn has(&self, sample_bit: u64) -> bool {
        self.sample_type & sample_bit != 0
    }

    /// Where the event's number stands in a sample, behind the header.
    pub(super) fn id_at(&self) -> Option<usize> {
        let before = bit::IP | bit::TID | bit::TIME | bit::ADDR;
        match () {
            () if self.has(bit::IDENTIFIER) => Some(0),
            () if self.has(bit::ID) => Some(8 * count_bits(self.sample_type & before)),
            () => None,
        }
    }

    /// How far before the end of other records a word of the trailer begins.
    pub(super) fn before_end(&self, word: u64) -> Option<usize> {
        if !self.has_trailers() || !self.has(word) {
            return None;
        }
        let order = [bit::TID, bit::TIME, bit::ID, bit::STREAM_ID, bit::CPU, bit::IDENTIFIER];
        let behind = order.iter().skip_while(|&&other| other != word).filter(|&&other| self.has(other));
        Some(8 * behind.count())
    }
}
