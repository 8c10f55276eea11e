//! Coding of a map's classes as decisions for the range coder: a key frame predicts each frame from the
//! previous ones, a delta also from the same frame of the previous map. One walk for both directions: an
//! encoder reads the classes, a decoder fills them in.

use super::range_coder::{BitCoder, BitProbability, TruncatedInput};

/// Frames per first question: is this range unchanged?
const STRETCH_FRAMES: usize = 512;

/// More than the number of classes; a power of two.
const CLASS_SLOTS: usize = 16;

/// Assumed class before the first frame.
const CLASS_BEFORE_FIRST: u8 = 12;

/// A class by its number, with its context.
struct ClassModel(Vec<[BitProbability; CLASS_SLOTS]>);

impl ClassModel {
    fn new(contexts: usize) -> ClassModel {
        ClassModel(vec![[BitProbability::PROBABILITY_EVEN; CLASS_SLOTS]; contexts])
    }

    /// Four decisions, the largest bit first.
    fn code_class(
        &mut self,
        coder: &mut impl BitCoder,
        context: usize,
        symbol: u8,
    ) -> Result<u8, TruncatedInput> {
        let chances = &mut self.0[context];
        let mut node = 1;
        for bit in (0..4).rev() {
            let bit = coder.code_bit(&mut chances[node], symbol >> bit & 1 == 1)?;
            node = 2 * node + usize::from(bit);
        }
        Ok((node - CLASS_SLOTS) as u8)
    }
}

/// The alignment of a frame: 0 for an odd one, up to `alignment_max`.
fn frame_alignment(index: usize, alignment_max: u32) -> usize {
    index.trailing_zeros().min(alignment_max) as usize
}

/// A whole map. What `classes` holds is written by an encoder and overwritten by a decoder.
pub(super) fn code_key_frame(coder: &mut impl BitCoder, classes: &mut [u8]) -> Result<(), TruncatedInput> {
    let mut all_alike = [BitProbability::PROBABILITY_EVEN; 2 * CLASS_SLOTS];
    let mut changes = vec![BitProbability::PROBABILITY_RARE; CLASS_SLOTS * CLASS_SLOTS * 16 * 16];
    let mut symbols = ClassModel::new(CLASS_SLOTS * CLASS_SLOTS);
    let (mut left_class, mut other_class, mut run_length, mut was_alike) =
        (CLASS_BEFORE_FIRST, CLASS_BEFORE_FIRST, 0u32, false);
    for (number, stretch) in classes.chunks_mut(STRETCH_FRAMES).enumerate() {
        let alike = stretch.iter().all(|&class| class == left_class);
        let context = 2 * usize::from(left_class) + usize::from(was_alike);
        was_alike = !coder.code_bit(&mut all_alike[context], !alike)?;
        if was_alike {
            stretch.fill(left_class);
            run_length = run_length.saturating_add(stretch.len() as u32);
            continue;
        }
        for (index, class) in stretch.iter_mut().enumerate() {
            let length = (32 - run_length.leading_zeros()).min(15) as usize;
            let pair = usize::from(left_class) * CLASS_SLOTS + usize::from(other_class);
            let chance = &mut changes
                [(pair * 16 + length) * 16 + frame_alignment(number * STRETCH_FRAMES + index, 15)];
            if coder.code_bit(chance, *class != left_class)? {
                *class = symbols.code_class(coder, pair, *class)?;
                (other_class, left_class, run_length) = (left_class, *class, 0);
            } else {
                *class = left_class;
                run_length = run_length.saturating_add(1);
            }
        }
    }
    Ok(())
}

/// A map of the same frames as `previous`.
pub(super) fn code_delta(
    coder: &mut impl BitCoder,
    previous: &[u8],
    classes: &mut [u8],
) -> Result<(), TruncatedInput> {
    let mut all_as_before = [BitProbability::PROBABILITY_EVEN; 4];
    let mut changes = vec![BitProbability::PROBABILITY_RARE; CLASS_SLOTS * CLASS_SLOTS * 4 * 4 * 4];
    let mut symbols = ClassModel::new(CLASS_SLOTS * CLASS_SLOTS * CLASS_SLOTS);
    let (mut left_class, mut other_class, mut previous_left, mut changed, mut same) =
        (CLASS_BEFORE_FIRST, CLASS_BEFORE_FIRST, CLASS_BEFORE_FIRST, 0, 0);
    for (number, stretch) in classes.chunks_mut(STRETCH_FRAMES).enumerate() {
        let start = number * STRETCH_FRAMES;
        let previous_stretch = &previous[start..start + stretch.len()];
        let differs = coder.code_bit(&mut all_as_before[same], stretch != previous_stretch)?;
        same = (same << 1 | usize::from(differs)) & 3;
        if !differs {
            stretch.copy_from_slice(previous_stretch);
            let last = previous_stretch[previous_stretch.len() - 1];
            (left_class, previous_left, changed) = (last, last, 0);
            continue;
        }
        for (index, class) in stretch.iter_mut().enumerate() {
            let previous_class = previous_stretch[index];
            let next = previous.get(start + index + 1).copied().unwrap_or(CLASS_BEFORE_FIRST);
            let around =
                usize::from(next == previous_class) + 2 * usize::from(previous_left == previous_class);
            let pair = usize::from(previous_class) * CLASS_SLOTS + usize::from(left_class);
            let place = frame_alignment(start + index, 9) / 3;
            let chance = &mut changes[((pair * 4 + changed) * 4 + around) * 4 + place];
            let is_new = coder.code_bit(chance, *class != previous_class)?;
            *class = if is_new {
                symbols.code_class(coder, pair * CLASS_SLOTS + usize::from(other_class), *class)?
            } else {
                previous_class
            };
            changed = (changed << 1 | usize::from(is_new)) & 3;
            if *class != left_class {
                (other_class, left_class) = (left_class, *class);
            }
            previous_left = previous_class;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::range_coder::{RangeDecoder, RangeEncoder};
    use super::*;
    use pagelab_model::random::SplitMix64;

    /// Runs of random classes, as memory has them, `changes` of them redrawn.
    fn map(seed: u64, frames: usize) -> Vec<u8> {
        let mut random = SplitMix64::new(seed);
        let mut classes = Vec::new();
        while classes.len() < frames {
            let run_length = 1 << random.next_below(12);
            let class = random.next_below(15) as u8;
            classes.extend(std::iter::repeat_n(class, run_length.min(frames - classes.len())));
        }
        classes
    }

    fn changed(previous: &[u8], seed: u64, changes: u64) -> Vec<u8> {
        let (mut random, mut classes) = (SplitMix64::new(seed), previous.to_vec());
        for _ in 0..changes.min(previous.len() as u64) {
            let index = random.next_below(previous.len() as u64) as usize;
            classes[index] = random.next_below(15) as u8;
        }
        classes
    }

    fn check_key(classes: &[u8]) -> usize {
        let mut encoder = RangeEncoder::new(Vec::new());
        code_key_frame(&mut encoder, &mut classes.to_vec()).unwrap();
        let bytes = encoder.finish();
        let mut decoder = RangeDecoder::new(&bytes).unwrap();
        let mut read = vec![0; classes.len()];
        code_key_frame(&mut decoder, &mut read).unwrap();
        assert!(read == classes && decoder.is_at_end(), "{} frames", classes.len());
        bytes.len()
    }

    fn check_delta(previous: &[u8], classes: &[u8]) -> usize {
        let mut encoder = RangeEncoder::new(Vec::new());
        code_delta(&mut encoder, previous, &mut classes.to_vec()).unwrap();
        let bytes = encoder.finish();
        let mut decoder = RangeDecoder::new(&bytes).unwrap();
        let mut read = vec![0; classes.len()];
        code_delta(&mut decoder, previous, &mut read).unwrap();
        assert!(read == classes && decoder.is_at_end(), "{} frames", classes.len());
        bytes.len()
    }

    #[test]
    fn maps_come_back_frame_for_frame() {
        for frames in [0, 1, 2, 511, 512, 513, 40_000, 100_001] {
            let previous = map(frames as u64, frames);
            check_key(&previous);
            for changes in [0, 1, 500, 1_000_000] {
                check_delta(&previous, &changed(&previous, 3, changes));
            }
            check_delta(&previous, &map(99, frames));
        }
    }

    #[test]
    fn what_does_not_change_costs_next_to_nothing() {
        let previous = map(5, 1 << 20);
        let whole = check_key(&previous);
        assert!(check_delta(&previous, &previous) < 40);
        let few = check_delta(&previous, &changed(&previous, 6, 100));
        assert!(few < 100 * 8 && few * 10 < whole, "100 changes: {few} bytes of {whole}");
    }

    #[test]
    fn bytes_that_nobody_wrote_are_no_panic_and_end() {
        let mut random = SplitMix64::new(11);
        let previous = map(1, 5_000);
        for length in 0..300 {
            let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
            let Ok(mut decoder) = RangeDecoder::new(&bytes) else { continue };
            let _ = code_key_frame(&mut decoder, &mut vec![0; 5_000]);
            if let Ok(mut decoder) = RangeDecoder::new(&bytes) {
                let _ = code_delta(&mut decoder, &previous, &mut vec![0; 5_000]);
            }
        }
    }
}
