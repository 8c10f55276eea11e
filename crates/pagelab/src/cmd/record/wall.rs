//! The wall clock beside CLOCK_BOOTTIME: steps of it are told, slewing is not.

use pagelab_report::quantity::duration;
use pagelab_sys::clock;

/// Beyond what slewing can do: adjtimex slews by 500 ppm at most, and the frequency may be corrected by as
/// much again (kernel/time/ntp.c, MAXFREQ).
const SLEW_PPM: u64 = 1000;
/// Never told: what an interrupt between reading the two clocks looks like.
const NOISE_NS: u64 = 2_000_000;
/// Readings of the clocks of which the tightest counts.
const TRIES: usize = 5;

/// Nanoseconds from CLOCK_BOOTTIME to the wall clock, and when that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Wall clock less CLOCK_BOOTTIME.
    pub offset_ns: i128,
    /// CLOCK_BOOTTIME of the reading.
    pub at_ns: u64,
}

impl Offset {
    /// Reads both clocks, one between two readings of the other.
    pub fn now() -> Offset {
        let read = || {
            let before_ns = clock::boottime_ns();
            let wall_ns = clock::realtime_ns();
            let after_ns = clock::boottime_ns();
            let middle_ns = before_ns / 2 + after_ns / 2;
            let offset = Offset { offset_ns: i128::from(wall_ns) - i128::from(middle_ns), at_ns: after_ns };
            (after_ns - before_ns, offset)
        };
        let mut best = read();
        for _ in 1..TRIES {
            // Two microseconds: nobody came in between.
            if best.0 <= 2_000 {
                break;
            }
            let next = read();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// What happened to the wall clock between two readings, if it was more than slewing.
    pub fn step_to(&self, now: &Offset) -> Option<String> {
        let elapsed_ns = now.at_ns.saturating_sub(self.at_ns);
        let step_ns = now.offset_ns - self.offset_ns;
        let allowed_ns = NOISE_NS + elapsed_ns / 1_000_000 * SLEW_PPM;
        let size_ns = u64::try_from(step_ns.unsigned_abs()).unwrap_or(u64::MAX);
        if size_ns <= allowed_ns {
            return None;
        }
        let direction = if step_ns > 0 { "forward" } else { "back" };
        Some(format!("the wall clock was set {direction} by {}", duration(size_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_and_slewing_is_not() {
        const S: u64 = 1_000_000_000;
        let before = Offset { offset_ns: 1 << 60, at_ns: 100 * S };
        for (elapsed_ns, step_ns, said) in [
            (5 * S, 0, None),
            (5 * S, 2_500_000, None),
            (5 * S, -6_900_000, None),
            (5 * S, 8_000_000, Some("forward by 8 ms")),
            (5 * S, -3_600_000_000_000, Some("back by 1 h 0 min")),
            (86_400 * S, 40_000_000_000, None),
            (0, i128::MAX / 2, Some("forward")),
        ] {
            let now = Offset { offset_ns: before.offset_ns + step_ns, at_ns: before.at_ns + elapsed_ns };
            let told = before.step_to(&now);
            match said {
                None => assert_eq!(told, None, "{step_ns}"),
                Some(said) => assert!(told.as_ref().is_some_and(|told| told.contains(said)), "{told:?}"),
            }
        }
        assert_eq!(Offset::now().step_to(&Offset::now()), None);
    }
}
