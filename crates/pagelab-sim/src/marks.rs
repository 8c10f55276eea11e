//! Watermarks and reserves of zones, as the kernel computes them from their sizes (mm/page_alloc.c:
//! `setup_per_zone_wmarks`, `setup_per_zone_lowmem_reserve`).

/// Free frames at which something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Below this, only those who may not wait are served.
    pub min: u64,
    /// Below this, background reclaim is woken.
    pub low: u64,
    /// Background reclaim ends here.
    pub high: u64,
}

/// `vm.watermark_scale_factor` where nobody has changed it: parts of 10 000.
pub const SCALE_USUAL: u64 = 10;

/// `vm.lowmem_reserve_ratio` of the kernel's zones DMA, DMA32 and Normal; higher zones keep no reserve.
pub const RATIO_DMA: u64 = 256;
/// The same of Normal.
pub const RATIO_NORMAL: u64 = 32;

/// `vm.min_free_kbytes` where nobody has changed it: √(16 · KiB of memory), from 128 KiB to 256 MiB.
pub fn min_free_kib(memory_kib: u64) -> u64 {
    memory_kib.saturating_mul(16).isqrt().clamp(128, 256 << 10)
}

/// The marks of each zone from what it manages, in frames. `is_low` says which zones the kernel's own data
/// may lie in: they share `min_free` frames; the others get little.
pub fn marks(managed: &[u64], is_low: &[bool], min_free: u64, scale: u64) -> Vec<Marks> {
    let part = |of: u64, numerator: u64, denominator: u64| {
        (u128::from(of) * u128::from(numerator) / u128::from(denominator.max(1))) as u64
    };
    let low_frames = managed.iter().zip(is_low).filter(|(_, is_low)| **is_low).map(|(frames, _)| frames);
    let low_frames: u64 = low_frames.sum();
    let of = |(&frames, &is_low): (&u64, &bool)| {
        let share = part(frames, min_free, low_frames);
        // A zone that the kernel's data never needs: enough for those who must not wait.
        let min = if is_low { share } else { (frames / 1024).clamp(32, 128) };
        let step = (share / 4).max(part(frames, scale, 10_000));
        Marks { min, low: min + step, high: min + 2 * step }
    };
    managed.iter().zip(is_low).map(of).collect()
}

/// What each zone keeps from requests that could be served by a higher one: `reserves[zone][highest]`, in
/// frames. `ratios` are those of the zones; 0 keeps nothing.
pub fn reserves(managed: &[u64], ratios: &[u64]) -> Vec<Vec<u64>> {
    let of = |(zone, &ratio): (usize, &u64)| {
        let above = |highest: usize| -> u64 { managed.iter().take(highest + 1).skip(zone + 1).sum() };
        (0..managed.len()).map(|highest| above(highest).checked_div(ratio).unwrap_or(0)).collect()
    };
    ratios.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// /proc/zoneinfo of a machine with 24 GiB, vm.min_free_kbytes 67584: Linux 6.18.
    #[test]
    fn marks_and_reserves_are_those_of_a_real_kernel() {
        let managed = [3840, 772_915, 5_394_266, 0];
        let found = marks(&managed, &[true, true, true, false], 67_584 / 4, SCALE_USUAL);
        let mark = |min, low, high| Marks { min, low, high };
        assert_eq!(
            found,
            [mark(10, 13, 16), mark(2116, 2888, 3660), mark(14_769, 20_163, 25_557), mark(32, 32, 32)]
        );
        let reserves = reserves(&managed, &[RATIO_DMA, RATIO_DMA, RATIO_NORMAL, 0]);
        assert_eq!(reserves[0], [0, 3019, 24_090, 24_090]);
        assert_eq!(reserves[1], [0, 0, 21_071, 21_071]);
        assert_eq!(reserves[2], [0, 0, 0, 0]);
    }

    #[test]
    fn the_usual_minimum_is_the_kernels_table() {
        // The table above init_per_zone_wmark_min.
        for (mib, kib) in [(16, 512), (32, 724), (64, 1024), (1024, 4096), (16_384, 16_384)] {
            assert_eq!(min_free_kib(mib << 10), kib, "{mib} MiB");
        }
        assert_eq!((min_free_kib(1), min_free_kib(u64::MAX)), (128, 256 << 10));
    }
}
