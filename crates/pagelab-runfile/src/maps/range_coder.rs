//! Binary range coder with adaptive probabilities, as in LZMA (Martin, "Range encoding", 1979; the carry-less
//! form of the LZMA SDK): the cost of a decision in bits depends on its probability.

/// The probability that a decision is `false`, as the mean of a quick and a slow learner, each in units of
/// 2^-20.
#[derive(Clone, Copy, Debug)]
pub(super) struct BitProbability {
    fast: u32,
    slow: u32,
}

impl BitProbability {
    const PROBABILITY_ONE: u32 = 1 << 20;
    /// Nothing is known yet.
    pub const PROBABILITY_EVEN: BitProbability = BitProbability {
        fast: BitProbability::PROBABILITY_ONE / 2,
        slow: BitProbability::PROBABILITY_ONE / 2,
    };
    /// `false` is usual.
    pub const PROBABILITY_RARE: BitProbability = BitProbability {
        fast: BitProbability::PROBABILITY_ONE / 16 * 15,
        slow: BitProbability::PROBABILITY_ONE / 16 * 15,
    };

    /// Adaptation rates of the two: 1/16 and 1/128 of the error.
    const LEARNING_SHIFTS: (u32, u32) = (4, 7);

    /// The chance of `false` in units of 2^-16, neither 0 nor 1.
    fn scaled_bound(self) -> u32 {
        ((self.fast + self.slow) >> 5).clamp(1, (1 << 16) - 1)
    }

    fn update(&mut self, bit: bool) {
        let (quick, slow) = BitProbability::LEARNING_SHIFTS;
        if bit {
            self.fast -= self.fast >> quick;
            self.slow -= self.slow >> slow;
        } else {
            self.fast += (BitProbability::PROBABILITY_ONE - self.fast) >> quick;
            self.slow += (BitProbability::PROBABILITY_ONE - self.slow) >> slow;
        }
    }
}

/// Either direction: an encoder writes the given bit; a decoder ignores it and returns the decoded one.
pub(super) trait BitCoder {
    /// One decision.
    fn code_bit(&mut self, probability: &mut BitProbability, bit: bool) -> Result<bool, TruncatedInput>;
}

/// The coded bytes ended before the map did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TruncatedInput;

/// Below this the interval is widened by a byte.
const RENORM_LIMIT: u32 = 1 << 24;

/// Writes decisions.
pub(super) struct RangeEncoder {
    low: u64,
    range: u32,
    /// The last byte that a carry may still change, and how many bytes 255 follow it.
    cached_byte: u8,
    pending_bytes: u64,
    output: Vec<u8>,
}

impl RangeEncoder {
    /// An encoder that appends to `output`.
    pub fn new(output: Vec<u8>) -> RangeEncoder {
        RangeEncoder { low: 0, range: u32::MAX, cached_byte: 0, pending_bytes: 1, output }
    }

    /// The bytes.
    pub fn finish(mut self) -> Vec<u8> {
        for _ in 0..5 {
            self.shift_out_byte();
        }
        self.output
    }

    fn shift_out_byte(&mut self) {
        if self.low < 0xff00_0000 || self.low > u64::from(u32::MAX) {
            let carry = (self.low >> 32) as u8;
            let mut byte = self.cached_byte;
            while self.pending_bytes > 0 {
                self.output.push(byte.wrapping_add(carry));
                byte = 0xff;
                self.pending_bytes -= 1;
            }
            self.cached_byte = (self.low >> 24) as u8;
        }
        self.pending_bytes += 1;
        self.low = (self.low & 0x00ff_ffff) << 8;
    }
}

impl BitCoder for RangeEncoder {
    fn code_bit(&mut self, probability: &mut BitProbability, bit: bool) -> Result<bool, TruncatedInput> {
        let bound = (self.range >> 16) * probability.scaled_bound();
        if bit {
            self.low += u64::from(bound);
            self.range -= bound;
        } else {
            self.range = bound;
        }
        probability.update(bit);
        while self.range < RENORM_LIMIT {
            self.range <<= 8;
            self.shift_out_byte();
        }
        Ok(bit)
    }
}

/// Reads decisions.
pub(super) struct RangeDecoder<'a> {
    code: u32,
    range: u32,
    remaining: &'a [u8],
}

impl<'a> RangeDecoder<'a> {
    /// A decoder of what an encoder wrote, and nothing else.
    pub fn new(bytes: &'a [u8]) -> Result<RangeDecoder<'a>, TruncatedInput> {
        let mut decoder = RangeDecoder { code: 0, range: u32::MAX, remaining: bytes };
        for _ in 0..5 {
            decoder.refill()?;
        }
        Ok(decoder)
    }

    /// Whether all bytes were needed.
    pub fn is_at_end(&self) -> bool {
        self.remaining.is_empty()
    }

    fn refill(&mut self) -> Result<(), TruncatedInput> {
        let (&first, rest) = self.remaining.split_first().ok_or(TruncatedInput)?;
        self.remaining = rest;
        self.code = self.code << 8 | u32::from(first);
        Ok(())
    }
}

impl BitCoder for RangeDecoder<'_> {
    fn code_bit(&mut self, probability: &mut BitProbability, _: bool) -> Result<bool, TruncatedInput> {
        let bound = (self.range >> 16) * probability.scaled_bound();
        let bit = self.code >= bound;
        if bit {
            self.code -= bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        probability.update(bit);
        while self.range < RENORM_LIMIT {
            self.range <<= 8;
            self.refill()?;
        }
        Ok(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::random::SplitMix64;

    #[test]
    fn decisions_come_back_and_cost_what_they_surprise() {
        for (share, bits_max) in [(0, 0.001), (10, 0.09), (500, 1.02), (990, 0.09), (1000, 0.001)] {
            let mut random = SplitMix64::new(7);
            let bits: Vec<bool> = (0..200_000).map(|_| random.next_below(1000) < share).collect();
            let (mut encoder, mut probability) =
                (RangeEncoder::new(Vec::new()), BitProbability::PROBABILITY_EVEN);
            for &bit in &bits {
                encoder.code_bit(&mut probability, bit).unwrap();
            }
            let bytes = encoder.finish();
            let each = bytes.len() as f64 * 8.0 / bits.len() as f64;
            assert!(each < bits_max, "{share} of 1000: {each} bits a decision");
            let (mut decoder, mut probability) =
                (RangeDecoder::new(&bytes).unwrap(), BitProbability::PROBABILITY_EVEN);
            for (at, &bit) in bits.iter().enumerate() {
                assert_eq!(decoder.code_bit(&mut probability, false), Ok(bit), "decision {at} at {share}");
            }
            assert!(decoder.is_at_end());
            let mut cut = RangeDecoder::new(&bytes[..bytes.len() - 1]).unwrap();
            let mut probability = BitProbability::PROBABILITY_EVEN;
            assert!(
                (0..bits.len()).any(|_| cut.code_bit(&mut probability, false).is_err()) || share % 1000 == 0
            );
        }
    }
}
