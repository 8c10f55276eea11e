//! Watermarks and reserves of zones, as the kernel computes them from their sizes (mm/page_alloc.c:
//! `setup_per_zone_wmarks`, `setup_per_zone_lowmem_reserve`).

/// Free frames at which something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this, only requests that may not wait are served.
    pub min: u64,
    /// Below this, background reclaim is woken.
    pub low: u64,
    /// Background reclaim ends here.
    pub high: u64,
}

/// Default of `vm.watermark_scale_factor`: parts of 10 000.
pub const DEFAULT_WATERMARK_SCALE_FACTOR: u64 = 10;

/// `vm.lowmem_reserve_ratio` of the kernel's zones DMA, DMA32 and Normal; higher zones keep no reserve.
pub const LOWMEM_RESERVE_RATIO_DMA: u64 = 256;
/// The same of Normal.
pub const LOWMEM_RESERVE_RATIO_NORMAL: u64 = 32;

/// Default of `vm.min_free_kbytes`: √(16 · KiB of memory), from 128 KiB to 256 MiB.
pub fn default_min_free_kib(memory_kib: u64) -> u64 {
    memory_kib.saturating_mul(16).isqrt().clamp(128, 256 << 10)
}

/// Watermarks of each zone from its managed frames, in frames. `is_low` marks the zones that may have the
/// kernel's own data: they share `min_free` frames; the others get few.
pub fn compute_watermarks(
    managed: &[u64],
    is_low: &[bool],
    min_free: u64,
    scale_factor: u64,
) -> Vec<Watermarks> {
    let scaled = |whole: u64, numerator: u64, denominator: u64| {
        (u128::from(whole) * u128::from(numerator) / u128::from(denominator.max(1))) as u64
    };
    let low_frames = managed.iter().zip(is_low).filter(|(_, is_low)| **is_low).map(|(frames, _)| frames);
    let low_frames: u64 = low_frames.sum();
    let watermarks_of_zone = |(&frames, &is_low): (&u64, &bool)| {
        let min_share = scaled(frames, min_free, low_frames);
        // A zone that the kernel's data never needs: enough for requests that must not wait.
        let min = if is_low { min_share } else { (frames / 1024).clamp(32, 128) };
        let gap = (min_share / 4).max(scaled(frames, scale_factor, 10_000));
        Watermarks { min, low: min + gap, high: min + 2 * gap }
    };
    managed.iter().zip(is_low).map(watermarks_of_zone).collect()
}

/// Reserve of each zone against requests that a higher one could serve: `reserves[zone][highest]`, in frames.
/// `ratios` are those of the zones; 0 keeps nothing.
pub fn compute_lowmem_reserves(managed: &[u64], ratios: &[u64]) -> Vec<Vec<u64>> {
    let reserves_of_zone = |(zone, &ratio): (usize, &u64)| {
        let managed_above = |highest: usize| -> u64 { managed.iter().take(highest + 1).skip(zone + 1).sum() };
        (0..managed.len()).map(|highest| managed_above(highest).checked_div(ratio).unwrap_or(0)).collect()
    };
    ratios.iter().enumerate().map(reserves_of_zone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// /proc/zoneinfo of a machine with 24 GiB, vm.min_free_kbytes 67584: Linux 6.18.
    #[test]
    fn watermarks_and_reserves_are_those_of_a_real_kernel() {
        let managed = [3840, 772_915, 5_394_266, 0];
        let found = compute_watermarks(
            &managed,
            &[true, true, true, false],
            67_584 / 4,
            DEFAULT_WATERMARK_SCALE_FACTOR,
        );
        let watermarks = |min, low, high| Watermarks { min, low, high };
        assert_eq!(
            found,
            [
                watermarks(10, 13, 16),
                watermarks(2116, 2888, 3660),
                watermarks(14_769, 20_163, 25_557),
                watermarks(32, 32, 32)
            ]
        );
        let reserves = compute_lowmem_reserves(
            &managed,
            &[LOWMEM_RESERVE_RATIO_DMA, LOWMEM_RESERVE_RATIO_DMA, LOWMEM_RESERVE_RATIO_NORMAL, 0],
        );
        assert_eq!(reserves[0], [0, 3019, 24_090, 24_090]);
        assert_eq!(reserves[1], [0, 0, 21_071, 21_071]);
        assert_eq!(reserves[2], [0, 0, 0, 0]);
    }

    #[test]
    fn the_usual_minimum_is_the_kernels_table() {
        // The table above init_per_zone_wmark_min.
        for (mib, kib) in [(16, 512), (32, 724), (64, 1024), (1024, 4096), (16_384, 16_384)] {
            assert_eq!(default_min_free_kib(mib << 10), kib, "{mib} MiB");
        }
        assert_eq!((default_min_free_kib(1), default_min_free_kib(u64::MAX)), (128, 256 << 10));
    }
}
