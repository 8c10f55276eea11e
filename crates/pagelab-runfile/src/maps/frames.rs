//! The classes of a map as decisions for the range coder: a key frame tells each frame from the ones before
//! it, a delta also from the same frame of the map before. One walk for both directions: an encoder reads the
//! classes, a decoder fills them in.

use super::range::{Chance, Coder, CutOff};

/// Frames that are asked about together first: is this stretch as it was?
const STRETCH: usize = 512;

/// More than the number of classes; a power of two.
const CLASSES: usize = 16;

/// The class that stands before the first frame.
const BEFORE: u8 = 12;

/// A class by its number, with its context.
struct Symbols(Vec<[Chance; CLASSES]>);

impl Symbols {
    fn new(contexts: usize) -> Symbols {
        Symbols(vec![[Chance::EVEN; CLASSES]; contexts])
    }

    /// Four decisions, the largest bit first.
    fn code(&mut self, coder: &mut impl Coder, context: usize, symbol: u8) -> Result<u8, CutOff> {
        let chances = &mut self.0[context];
        let mut node = 1;
        for bit in (0..4).rev() {
            let bit = coder.bit(&mut chances[node], symbol >> bit & 1 == 1)?;
            node = 2 * node + usize::from(bit);
        }
        Ok((node - CLASSES) as u8)
    }
}

/// The alignment of a frame: 0 for an odd one, up to `most`.
fn alignment(at: usize, most: u32) -> usize {
    at.trailing_zeros().min(most) as usize
}

/// A whole map. What `classes` holds is written by an encoder and overwritten by a decoder.
pub(super) fn key(coder: &mut impl Coder, classes: &mut [u8]) -> Result<(), CutOff> {
    let mut all_alike = [Chance::EVEN; 2 * CLASSES];
    let mut changes = vec![Chance::RARE; CLASSES * CLASSES * 16 * 16];
    let mut symbols = Symbols::new(CLASSES * CLASSES);
    let (mut left, mut other, mut run, mut was_alike) = (BEFORE, BEFORE, 0u32, false);
    for (number, stretch) in classes.chunks_mut(STRETCH).enumerate() {
        let alike = stretch.iter().all(|&class| class == left);
        let context = 2 * usize::from(left) + usize::from(was_alike);
        was_alike = !coder.bit(&mut all_alike[context], !alike)?;
        if was_alike {
            stretch.fill(left);
            run = run.saturating_add(stretch.len() as u32);
            continue;
        }
        for (at, class) in stretch.iter_mut().enumerate() {
            let length = (32 - run.leading_zeros()).min(15) as usize;
            let pair = usize::from(left) * CLASSES + usize::from(other);
            let chance = &mut changes[(pair * 16 + length) * 16 + alignment(number * STRETCH + at, 15)];
            if coder.bit(chance, *class != left)? {
                *class = symbols.code(coder, pair, *class)?;
                (other, left, run) = (left, *class, 0);
            } else {
                *class = left;
                run = run.saturating_add(1);
            }
        }
    }
    Ok(())
}

/// A map of the same frames as `before`.
pub(super) fn delta(coder: &mut impl Coder, before: &[u8], classes: &mut [u8]) -> Result<(), CutOff> {
    let mut all_as_before = [Chance::EVEN; 4];
    let mut changes = vec![Chance::RARE; CLASSES * CLASSES * 4 * 4 * 4];
    let mut symbols = Symbols::new(CLASSES * CLASSES * CLASSES);
    let (mut left, mut other, mut left_before, mut changed, mut same) = (BEFORE, BEFORE, BEFORE, 0, 0);
    for (number, stretch) in classes.chunks_mut(STRETCH).enumerate() {
        let start = number * STRETCH;
        let was = &before[start..start + stretch.len()];
        let differs = coder.bit(&mut all_as_before[same], stretch != was)?;
        same = (same << 1 | usize::from(differs)) & 3;
        if !differs {
            stretch.copy_from_slice(was);
            let last = was[was.len() - 1];
            (left, left_before, changed) = (last, last, 0);
            continue;
        }
        for (at, class) in stretch.iter_mut().enumerate() {
            let old = was[at];
            let next = before.get(start + at + 1).copied().unwrap_or(BEFORE);
            let around = usize::from(next == old) + 2 * usize::from(left_before == old);
            let pair = usize::from(old) * CLASSES + usize::from(left);
            let place = alignment(start + at, 9) / 3;
            let chance = &mut changes[((pair * 4 + changed) * 4 + around) * 4 + place];
            let is_new = coder.bit(chance, *class != old)?;
            *class =
                if is_new { symbols.code(coder, pair * CLASSES + usize::from(other), *class)? } else { old };
            changed = (changed << 1 | usize::from(is_new)) & 3;
            if *class != left {
                (other, left) = (left, *class);
            }
            left_before = old;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::range::{Decoder, Encoder};
    use super::*;
    use pagelab_model::seed::SplitMix64;

    /// Runs of random classes, as memory has them, `changes` of them redrawn.
    fn map(seed: u64, frames: usize) -> Vec<u8> {
        let mut random = SplitMix64::new(seed);
        let mut classes = Vec::new();
        while classes.len() < frames {
            let run = 1 << random.below(12);
            let class = random.below(15) as u8;
            classes.extend(std::iter::repeat_n(class, run.min(frames - classes.len())));
        }
        classes
    }

    fn changed(before: &[u8], seed: u64, changes: u64) -> Vec<u8> {
        let (mut random, mut classes) = (SplitMix64::new(seed), before.to_vec());
        for _ in 0..changes.min(before.len() as u64) {
            let at = random.below(before.len() as u64) as usize;
            classes[at] = random.below(15) as u8;
        }
        classes
    }

    fn check_key(classes: &[u8]) -> usize {
        let mut encoder = Encoder::new(Vec::new());
        key(&mut encoder, &mut classes.to_vec()).unwrap();
        let bytes = encoder.finish();
        let mut decoder = Decoder::new(&bytes).unwrap();
        let mut read = vec![0; classes.len()];
        key(&mut decoder, &mut read).unwrap();
        assert!(read == classes && decoder.is_at_end(), "{} frames", classes.len());
        bytes.len()
    }

    fn check_delta(before: &[u8], classes: &[u8]) -> usize {
        let mut encoder = Encoder::new(Vec::new());
        delta(&mut encoder, before, &mut classes.to_vec()).unwrap();
        let bytes = encoder.finish();
        let mut decoder = Decoder::new(&bytes).unwrap();
        let mut read = vec![0; classes.len()];
        delta(&mut decoder, before, &mut read).unwrap();
        assert!(read == classes && decoder.is_at_end(), "{} frames", classes.len());
        bytes.len()
    }

    #[test]
    fn maps_come_back_frame_for_frame() {
        for frames in [0, 1, 2, 511, 512, 513, 40_000, 100_001] {
            let before = map(frames as u64, frames);
            check_key(&before);
            for changes in [0, 1, 500, 1_000_000] {
                check_delta(&before, &changed(&before, 3, changes));
            }
            check_delta(&before, &map(99, frames));
        }
    }

    #[test]
    fn what_does_not_change_costs_next_to_nothing() {
        let before = map(5, 1 << 20);
        let whole = check_key(&before);
        assert!(check_delta(&before, &before) < 40);
        let few = check_delta(&before, &changed(&before, 6, 100));
        assert!(few < 100 * 8 && few * 10 < whole, "100 changes: {few} bytes of {whole}");
    }

    #[test]
    fn bytes_that_nobody_wrote_are_no_panic_and_end() {
        let mut random = SplitMix64::new(11);
        let before = map(1, 5_000);
        for length in 0..300 {
            let bytes: Vec<u8> = (0..length).map(|_| random.draw() as u8).collect();
            let Ok(mut decoder) = Decoder::new(&bytes) else { continue };
            let _ = key(&mut decoder, &mut vec![0; 5_000]);
            if let Ok(mut decoder) = Decoder::new(&bytes) {
                let _ = delta(&mut decoder, &before, &mut vec![0; 5_000]);
            }
        }
    }
}
