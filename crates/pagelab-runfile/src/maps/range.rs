//! A binary range coder with adaptive probabilities, as LZMA has it (Martin, "Range encoding", 1979; the
//! carry-less form of the LZMA SDK): a decision costs as many bits as it was surprising.

/// The probability that a decision is `false`, as the mean of a quick and a slow learner, each in units of
/// 2^-20.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance {
    quick: u32,
    slow: u32,
}

impl Chance {
    const ONE: u32 = 1 << 20;
    /// Nothing is known yet.
    pub const EVEN: Chance = Chance { quick: Chance::ONE / 2, slow: Chance::ONE / 2 };
    /// `false` is usual.
    pub const RARE: Chance = Chance { quick: Chance::ONE / 16 * 15, slow: Chance::ONE / 16 * 15 };

    /// How quickly each of the two learns: by 1/16 and by 1/128 of the surprise.
    const RATES: (u32, u32) = (4, 7);

    /// The chance of `false` in units of 2^-16, neither 0 nor 1.
    fn bound(self) -> u32 {
        ((self.quick + self.slow) >> 5).clamp(1, (1 << 16) - 1)
    }

    fn learn(&mut self, bit: bool) {
        let (quick, slow) = Chance::RATES;
        if bit {
            self.quick -= self.quick >> quick;
            self.slow -= self.slow >> slow;
        } else {
            self.quick += (Chance::ONE - self.quick) >> quick;
            self.slow += (Chance::ONE - self.slow) >> slow;
        }
    }
}

/// Either direction: an encoder writes the bit it is given, a decoder ignores it and says which one it was.
pub(super) trait Coder {
    /// One decision.
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> Result<bool, CutOff>;
}

/// The coded bytes ended before the map did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutOff;

/// Below this the interval is widened by a byte.
const TOP: u32 = 1 << 24;

/// Writes decisions.
pub(super) struct Encoder {
    low: u64,
    range: u32,
    /// The last byte that a carry may still change, and how many bytes 255 follow it.
    cache: u8,
    pending: u64,
    out: Vec<u8>,
}

impl Encoder {
    /// An encoder that appends to `out`.
    pub fn new(out: Vec<u8>) -> Encoder {
        Encoder { low: 0, range: u32::MAX, cache: 0, pending: 1, out }
    }

    /// The bytes.
    pub fn finish(mut self) -> Vec<u8> {
        for _ in 0..5 {
            self.shift();
        }
        self.out
    }

    fn shift(&mut self) {
        if self.low < 0xff00_0000 || self.low > u64::from(u32::MAX) {
            let carry = (self.low >> 32) as u8;
            let mut byte = self.cache;
            while self.pending > 0 {
                self.out.push(byte.wrapping_add(carry));
                byte = 0xff;
                self.pending -= 1;
            }
            self.cache = (self.low >> 24) as u8;
        }
        self.pending += 1;
        self.low = (self.low & 0x00ff_ffff) << 8;
    }
}

impl Coder for Encoder {
    fn bit(&mut self, chance: &mut Chance, bit: bool) -> Result<bool, CutOff> {
        let bound = (self.range >> 16) * chance.bound();
        if bit {
            self.low += u64::from(bound);
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.learn(bit);
        while self.range < TOP {
            self.range <<= 8;
            self.shift();
        }
        Ok(bit)
    }
}

/// Reads decisions.
pub(super) struct Decoder<'a> {
    code: u32,
    range: u32,
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// A decoder of what an encoder wrote, and nothing else.
    pub fn new(bytes: &'a [u8]) -> Result<Decoder<'a>, CutOff> {
        let mut decoder = Decoder { code: 0, range: u32::MAX, rest: bytes };
        for _ in 0..5 {
            decoder.next()?;
        }
        Ok(decoder)
    }

    /// Whether all bytes were needed.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn next(&mut self) -> Result<(), CutOff> {
        let (&first, rest) = self.rest.split_first().ok_or(CutOff)?;
        self.rest = rest;
        self.code = self.code << 8 | u32::from(first);
        Ok(())
    }
}

impl Coder for Decoder<'_> {
    fn bit(&mut self, chance: &mut Chance, _: bool) -> Result<bool, CutOff> {
        let bound = (self.range >> 16) * chance.bound();
        let bit = self.code >= bound;
        if bit {
            self.code -= bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        chance.learn(bit);
        while self.range < TOP {
            self.range <<= 8;
            self.next()?;
        }
        Ok(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::seed::SplitMix64;

    #[test]
    fn decisions_come_back_and_cost_what_they_surprise() {
        for (share, bits_max) in [(0, 0.001), (10, 0.09), (500, 1.02), (990, 0.09), (1000, 0.001)] {
            let mut random = SplitMix64::new(7);
            let bits: Vec<bool> = (0..200_000).map(|_| random.below(1000) < share).collect();
            let (mut encoder, mut chance) = (Encoder::new(Vec::new()), Chance::EVEN);
            for &bit in &bits {
                encoder.bit(&mut chance, bit).unwrap();
            }
            let bytes = encoder.finish();
            let each = bytes.len() as f64 * 8.0 / bits.len() as f64;
            assert!(each < bits_max, "{share} of 1000: {each} bits a decision");
            let (mut decoder, mut chance) = (Decoder::new(&bytes).unwrap(), Chance::EVEN);
            for (at, &bit) in bits.iter().enumerate() {
                assert_eq!(decoder.bit(&mut chance, false), Ok(bit), "decision {at} at {share}");
            }
            assert!(decoder.is_at_end());
            let mut cut = Decoder::new(&bytes[..bytes.len() - 1]).unwrap();
            let mut chance = Chance::EVEN;
            assert!((0..bits.len()).any(|_| cut.bit(&mut chance, false).is_err()) || share % 1000 == 0);
        }
    }
}
