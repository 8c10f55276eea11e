//! A buffer as regions of one size, some of which are preferred: by Zipf's law, or a few hot ones.

use pagelab_model::Bytes;
use pagelab_model::seed::SplitMix64;

use crate::options::{Kind, OptionHead, Options};
use crate::skew::{self, Alias};
use crate::{Failed, HotRegion};

/// The size of a region: that of a huge page on most machines, so that a region can have one of its own.
pub const REGION: OptionHead = OptionHead {
    name: "region",
    kind: Kind::Size,
    default: "2M",
    help: "Bytes of a region, where some are preferred to others",
};

/// More regions would need a table that no longer lies in the inner caches.
const REGIONS_MAX: u64 = 1 << 16;

/// Regions that are told, at most.
const TOLD_MAX: usize = 64;

/// How many regions `size` has. It must be a multiple of the region.
pub fn count(size: Bytes, region: Bytes) -> Result<u64, Failed> {
    let count = size.0 / region.0.max(1);
    if count == 0 || !size.0.is_multiple_of(region.0) {
        let text = format!("size: {} is no multiple of the region, {} bytes", size.0, region.0);
        return Err(Failed::Options(text));
    }
    if count > REGIONS_MAX {
        let text = format!("region: {} bytes make {count} regions, more than {REGIONS_MAX}", region.0);
        return Err(Failed::Options(text));
    }
    Ok(count)
}

/// Regions with a share of the accesses each; where the preferred ones lie is by chance.
#[derive(Clone, Debug)]
pub struct Regions {
    alias: Alias,
    /// The shares by rank, the most accessed first, and which region each is.
    ranks: Vec<(f64, u32)>,
    region: Bytes,
    slots_per_region: u64,
}

impl Regions {
    /// The regions of a buffer of `size` bytes under the options `pattern`, `region`, `zipf`, `hot`, `share`
    /// and `seed`, each of slots of `slot` bytes.
    pub fn of(options: &Options, size: Bytes, slot: u64) -> Result<Regions, Failed> {
        let region = options.size("region");
        let count = count(size, region)? as usize;
        let slots_per_region = region.0 / slot;
        if slots_per_region == 0 || !region.0.is_multiple_of(slot) {
            return Err(Failed::Options(format!("region: {} is no multiple of {slot} bytes", region.0)));
        }
        let weights = match options.text("pattern") {
            "zipf" => skew::zipf(count, options.thousandths("zipf")),
            _ => {
                let hot = options.number("hot");
                if hot >= count as u64 {
                    let text = format!("hot: {hot} hot regions of {count} leave none that is not");
                    return Err(Failed::Options(text));
                }
                skew::hot(count, hot as usize, options.thousandths("share"))
            }
        };
        let mut places: Vec<u32> = (0..count as u32).collect();
        let mut random = SplitMix64::new(options.number("seed") ^ PLACES);
        for at in (1..count).rev() {
            places.swap(at, random.below(at as u64 + 1) as usize);
        }
        let total: f64 = weights.iter().map(|&weight| weight as f64).sum();
        let ranks = weights.iter().zip(&places).map(|(&weight, &place)| (weight as f64 / total, place));
        Ok(Regions { alias: Alias::new(&weights, &places), ranks: ranks.collect(), region, slots_per_region })
    }

    /// The slot, counted from the start of the buffer, for 64 random bits: the region by its share, the slot
    /// in it evenly.
    #[inline]
    pub fn slot(&self, bits: u64) -> u64 {
        let region = u64::from(self.alias.pick(bits));
        // Which column of the table it was is in the high bits, so the place inside is taken from others.
        let inside = u128::from(bits.wrapping_mul(INSIDE)) * u128::from(self.slots_per_region);
        region * self.slots_per_region + (inside >> 64) as u64
    }

    /// Those with more than an even share, the most accessed first, at most 64, in a buffer that begins at
    /// `address`.
    pub fn hot(&self, address: u64) -> Vec<HotRegion> {
        let even = 1.0 / self.ranks.len() as f64;
        let told = self.ranks.iter().take_while(|(share, _)| *share > even).take(TOLD_MAX);
        told.map(|&(share, place)| {
            let offset = u64::from(place) * self.region.0;
            HotRegion { offset, address: address + offset, share }
        })
        .collect()
    }
}

/// Keeps the draw of places apart from other draws of the same seed.
const PLACES: u64 = 0x706c_6163_6573_0000;
/// An odd multiplier that brings the low bits up (Steele and Vigna 2021, table 5).
const INSIDE: u64 = 0xd134_2543_de82_ef95;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SEED, size};

    const HEADS: [OptionHead; 7] = [
        size("4M", "Bytes"),
        SEED,
        REGION,
        OptionHead { name: "pattern", kind: Kind::Word(&["zipf", "hot"]), default: "hot", help: "Pattern" },
        OptionHead { name: "zipf", kind: Kind::Thousandths(4000), default: "1.0", help: "Exponent" },
        OptionHead { name: "hot", kind: Kind::Number(1, 100), default: "4", help: "Hot" },
        OptionHead { name: "share", kind: Kind::Thousandths(1000), default: "0.9", help: "Share" },
    ];

    fn regions(set: &[(&str, &str)]) -> Result<Regions, Failed> {
        let mut options = Options::defaults(&HEADS);
        set.iter().for_each(|(name, typed)| options.set(name, typed).unwrap());
        Regions::of(&options, options.size("size"), 128)
    }

    #[test]
    fn slots_are_drawn_by_the_shares_that_are_told() {
        for pattern in ["hot", "zipf"] {
            let regions = regions(&[("region", "64K"), ("pattern", pattern)]).unwrap();
            let mut random = SplitMix64::new(9);
            let mut of_regions = vec![0f64; 64];
            let mut of_slots = vec![0f64; 8];
            const DRAWS: u32 = 100_000;
            for _ in 0..DRAWS {
                let slot = regions.slot(random.draw());
                of_regions[(slot / 512) as usize] += 1.0;
                of_slots[(slot % 512 / 64) as usize] += 1.0;
            }
            let hot = regions.hot(0x1000_0000);
            assert!(if pattern == "hot" { hot.len() == 4 } else { hot.len() > 4 }, "{}", hot.len());
            for region in &hot {
                let ratio = of_regions[(region.offset >> 16) as usize] / f64::from(DRAWS) / region.share;
                assert!((0.9..1.1).contains(&ratio), "{region:?}: {ratio}");
                assert_eq!(region.address, 0x1000_0000 + region.offset);
            }
            assert!(hot.windows(2).all(|pair| pair[0].share >= pair[1].share));
            let even = f64::from(DRAWS) / 8.0;
            assert!(of_slots.iter().all(|count| (0.95..1.05).contains(&(count / even))), "{of_slots:?}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (set, word) in [
            (&[("region", "3M")][..], "multiple"),
            (&[("region", "8M")], "multiple"),
            (&[("region", "32"), ("size", "4M")], "regions"),
            (&[("region", "96"), ("size", "960")], "128"),
            (&[("hot", "2")], "leave none"),
        ] {
            let Err(Failed::Options(text)) = regions(set) else { panic!("{set:?} was taken") };
            assert!(text.contains(word), "{text}");
        }
    }
}
