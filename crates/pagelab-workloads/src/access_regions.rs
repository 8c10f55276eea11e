//! Regions of one size in a buffer, some of which are preferred: by Zipf's law, or a few hot ones.

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;

use crate::alias_table::{self, AliasTable};
use crate::options::{OptionSpec, WorkloadOptions, size_option};
use crate::{HotRegion, WorkloadError};

/// Size of a region: that of a huge page on most machines, so that each region can have its own.
pub const REGION_OPTION: OptionSpec =
    OptionSpec { name: "region", ..size_option("2M", "Patterns zipf and hot: bytes of a region") };

/// More regions would need a table that does not fit the inner caches.
const REGIONS_MAX: u64 = 1 << 16;

/// Maximum number of reported regions.
const REPORTED_MAX: usize = 64;

/// How many regions `size` has. It must be a multiple of the region.
pub fn count_regions(size: Bytes, region: Bytes) -> Result<u64, WorkloadError> {
    let count = size.0 / region.0.max(1);
    if count == 0 || !size.0.is_multiple_of(region.0) {
        let text = format!("size: {} is not a multiple of the region, {} bytes", size.0, region.0);
        return Err(WorkloadError::InvalidOptions(text));
    }
    if count > REGIONS_MAX {
        let text = format!("region: {} bytes make {count} regions; expected at most {REGIONS_MAX}", region.0);
        return Err(WorkloadError::InvalidOptions(text));
    }
    Ok(count)
}

/// Regions with a share of the accesses each; the positions of the preferred ones are random.
#[derive(Clone, Debug)]
pub struct AccessRegions {
    region_table: AliasTable,
    /// The shares by rank, the most accessed first, and which region each is.
    region_shares: Vec<(f64, u32)>,
    region: Bytes,
    slots_per_region: u64,
}

impl AccessRegions {
    /// The regions of a buffer of `size` bytes under the options `pattern`, `region`, `zipf`, `hot`, `share`
    /// and `seed`, each of slots of `slot` bytes.
    pub fn from_options(
        options: &WorkloadOptions,
        size: Bytes,
        slot: u64,
    ) -> Result<AccessRegions, WorkloadError> {
        let region = options.get_size("region");
        let count = count_regions(size, region)? as usize;
        let slots_per_region = region.0 / slot;
        if slots_per_region == 0 || !region.0.is_multiple_of(slot) {
            return Err(WorkloadError::InvalidOptions(format!(
                "region: {} is not a multiple of {slot} bytes",
                region.0
            )));
        }
        let weights = match options.get_text("pattern") {
            "zipf" => alias_table::zipf_weights(count, options.get_thousandths("zipf")),
            _ => {
                let hot = options.get_number("hot");
                if hot >= count as u64 {
                    let text = format!("hot: {hot} hot regions of {count} leave no cold region");
                    return Err(WorkloadError::InvalidOptions(text));
                }
                alias_table::hot_weights(count, hot as usize, options.get_thousandths("share"))
            }
        };
        let mut places: Vec<u32> = (0..count as u32).collect();
        let mut random = SplitMix64::new(options.get_number("seed") ^ PLACEMENT_SEED);
        random.shuffle(&mut places);
        let total: f64 = weights.iter().map(|&weight| weight as f64).sum();
        let ranks = weights.iter().zip(&places).map(|(&weight, &place)| (weight as f64 / total, place));
        Ok(AccessRegions {
            region_table: AliasTable::new(&weights, &places),
            region_shares: ranks.collect(),
            region,
            slots_per_region,
        })
    }

    /// The slot, counted from the start of the buffer, for 64 random bits: the region by its share, the slot
    /// in it evenly.
    #[inline]
    pub fn draw_slot(&self, bits: u64) -> u64 {
        let region = u64::from(self.region_table.sample(bits));
        // Which column of the table it was is in the high bits, so the place inside is taken from others.
        let inside = u128::from(bits.wrapping_mul(SLOT_MULTIPLIER)) * u128::from(self.slots_per_region);
        region * self.slots_per_region + (inside >> 64) as u64
    }

    /// Those with more than an even share, the most accessed first, at most 64, in a buffer that begins at
    /// `address`.
    pub fn hot_regions(&self, address: u64) -> Vec<HotRegion> {
        let even = 1.0 / self.region_shares.len() as f64;
        let hot = self.region_shares.iter().take_while(|(share, _)| *share > even).take(REPORTED_MAX);
        hot.map(|&(share, place)| {
            let offset = u64::from(place) * self.region.0;
            HotRegion { offset, address: address + offset, share }
        })
        .collect()
    }
}

/// Keeps the draw of places apart from other draws of the same seed.
const PLACEMENT_SEED: u64 = 0x706c_6163_6573_0000;
/// An odd multiplier that brings the low bits up (Steele and Vigna 2021, table 5).
const SLOT_MULTIPLIER: u64 = 0xd134_2543_de82_ef95;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SEED_OPTION, ValueKind};

    const SPECS: [OptionSpec; 7] = [
        size_option("4M", "Bytes"),
        SEED_OPTION,
        REGION_OPTION,
        OptionSpec {
            name: "pattern",
            kind: ValueKind::Choice(&["zipf", "hot"]),
            default: "hot",
            help: "Pattern",
        },
        OptionSpec { name: "zipf", kind: ValueKind::Thousandths(4000), default: "1.0", help: "Exponent" },
        OptionSpec { name: "hot", kind: ValueKind::Number(1, 100), default: "4", help: "Hot" },
        OptionSpec { name: "share", kind: ValueKind::Thousandths(1000), default: "0.9", help: "Share" },
    ];

    fn regions(set: &[(&str, &str)]) -> Result<AccessRegions, WorkloadError> {
        let mut options = WorkloadOptions::with_defaults(&SPECS);
        set.iter().for_each(|(name, typed)| options.set_value(name, typed).unwrap());
        AccessRegions::from_options(&options, options.get_size("size"), 128)
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
                let slot = regions.draw_slot(random.next_u64());
                of_regions[(slot / 512) as usize] += 1.0;
                of_slots[(slot % 512 / 64) as usize] += 1.0;
            }
            let hot = regions.hot_regions(0x1000_0000);
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
            (&[("hot", "2")], "leave no cold region"),
        ] {
            let Err(WorkloadError::InvalidOptions(text)) = regions(set) else { panic!("{set:?} was taken") };
            assert!(text.contains(word), "{text}");
        }
    }
}
