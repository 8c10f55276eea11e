//! What `--probe` measured: huge pages really asked for, and the time of one memory access.

use crate::{Absence, Bytes, Reading};

use serde::{Deserialize, Serialize};

/// Results of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResults {
    /// Memory that the probe was allowed to take, and what bounded it.
    pub budget: Bytes,
    /// What bounded the budget: `free memory less the reserve`, `cgroup limit` …
    pub budget_bound: String,
    /// Huge pages asked for.
    pub huge: Reading<HugeProbe>,
    /// Access times, ascending by buffer size.
    pub access: Reading<AccessProbe>,
    /// What must be said beside the numbers, one sentence each, without a trailing dot: that a virtual
    /// machine's own backing is unknown, what was left out for lack of time or memory.
    pub notes: Vec<String>,
}

/// Huge pages asked for, one by one, by MADV_COLLAPSE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugeProbe {
    /// Size of one.
    pub page_size: Bytes,
    /// How many were asked for.
    pub asked: u64,
    /// How many requests the kernel answered with success.
    pub answered_yes: u64,
    /// How many were there when read back.
    pub came: u64,
    /// Where they were read back: `PAGEMAP_SCAN` or `smaps`.
    pub read_back_by: String,
    /// Nanoseconds that each request took, in order.
    pub latency_ns: Vec<u64>,
    /// The first refusal in the system's words.
    pub first_refusal: Option<String>,
}

/// Dependent random reads at several buffer sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessProbe {
    /// Seed of the chase order.
    pub seed: u64,
    /// CPU on which all of it ran; `None` if the thread could not be kept on one.
    pub pinned_cpu: Option<u32>,
    /// The points of the base-page curve that finds the knee, ascending by size.
    pub base_curve: Vec<AccessPoint>,
    /// The same sizes with huge pages, measured in turn with the base pages; empty where there were none.
    pub huge_curve: Vec<AccessPoint>,
    /// Base pages beside huge pages at the two sizes of comparison.
    pub pairs: Vec<AccessPair>,
    /// The largest measured buffer that the largest TLB still reaches with base pages. The reach itself is
    /// between this size and the next of the curve, so say "about".
    pub knee: Reading<Bytes>,
}

/// One measurement of the chase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPoint {
    /// Size of the buffer.
    pub size: Bytes,
    /// Picoseconds of CPU time per access, one for each repeat, in the order of measurement.
    pub ps_per_access: Vec<u64>,
    /// Bytes of the buffer that huge pages backed when read back.
    pub huge_backed: Reading<Bytes>,
}

/// Huge pages must back this much of a buffer, in per cent, for it to stand for huge pages.
const BACKED_ENOUGH_PERCENT: u64 = 95;

impl AccessPoint {
    /// The middle repeat, or the mean of the two in the middle; `None` if nothing was measured.
    pub fn median_ps(&self) -> Option<u64> {
        let mut sorted = self.ps_per_access.clone();
        sorted.sort_unstable();
        let (below, above) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
        Some(below.midpoint(*above))
    }

    /// Whether the read-back found at least 95 % of the buffer backed by huge pages. A measurement that
    /// asked for huge pages and did not get them is not presented as an effect of huge pages.
    pub fn is_backed(&self) -> bool {
        let enough = u128::from(self.size.0) * u128::from(BACKED_ENOUGH_PERCENT);
        self.huge_backed.as_ref().is_ok_and(|backed| u128::from(backed.0) * 100 >= enough)
    }
}

/// The same buffer size with base pages and with huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPair {
    /// With base pages.
    pub base: AccessPoint,
    /// With huge pages, or why there were none.
    pub huge: Result<AccessPoint, Absence>,
}

impl AccessPair {
    /// What huge pages changed, if the two buffers differ as they should: none of the base buffer and at
    /// least 95 % of the other on huge pages, both read back. Otherwise the numbers are printed with what
    /// backed them, and not as an effect of huge pages.
    pub fn effect(&self) -> Option<AccessEffect> {
        let huge = self.huge.as_ref().ok()?;
        if self.base.huge_backed.as_ref().ok()?.0 > 0 || !huge.is_backed() {
            return None;
        }
        let saved = Saved::between(&self.base.ps_per_access, &huge.ps_per_access)?;
        Some(AccessEffect { base_ps: self.base.median_ps()?, huge_ps: huge.median_ps()?, saved })
    }
}

/// A comparison of base and huge pages at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessEffect {
    /// Median picoseconds per access with base pages.
    pub base_ps: u64,
    /// Median picoseconds per access with huge pages.
    pub huge_ps: u64,
    /// What a turn with huge pages saved.
    pub saved: Saved,
}

/// What one access saves with huge pages, from turns that were taken side by side: a disturbance of the
/// machine falls on both parts of a turn and cancels out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Median over the turns of base less huge, in picoseconds.
    pub median_ps: i64,
    /// Standard error of that median.
    pub error_ps: i64,
}

impl Saved {
    /// Compares entry i with entry i; `None` with fewer than three turns, which say nothing about noise.
    pub fn between(base_ps: &[u64], huge_ps: &[u64]) -> Option<Saved> {
        let signed = |ps: u64| i64::try_from(ps).unwrap_or(i64::MAX);
        let turns = base_ps.iter().zip(huge_ps);
        let mut saved: Vec<i64> =
            turns.map(|(&base, &huge)| signed(base).saturating_sub(signed(huge))).collect();
        if saved.len() < 3 {
            return None;
        }
        let median_ps = median(&mut saved)?;
        let mut deviations: Vec<i64> =
            saved.iter().map(|s| s.saturating_sub(median_ps).saturating_abs()).collect();
        let deviation = median(&mut deviations)?;
        // The standard error of a median is 1.253 σ / √n, and σ is 1.483 median absolute deviations.
        let error_ps = (1.858 * deviation as f64 / (saved.len() as f64).sqrt()) as i64;
        Some(Saved { median_ps, error_ps })
    }

    /// Whether it is more than three standard errors, either way; otherwise say that no difference was
    /// measured.
    pub fn is_clear(&self) -> bool {
        self.median_ps.saturating_abs() > self.error_ps.saturating_mul(3)
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &mut [i64]) -> Option<i64> {
    values.sort_unstable();
    let (below, above) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(below.midpoint(*above))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AbsentWhy;

    #[test]
    fn side_by_side_turns_cancel_a_common_disturbance() {
        let drift = [100u64, 900, 5000, 120, 40_000, 100, 7000, 300, 100];
        let base: Vec<u64> = drift.iter().map(|d| 300 + d).collect();
        let huge: Vec<u64> = drift.iter().map(|d| 150 + d).collect();
        let saved = Saved::between(&base, &huge).unwrap();
        assert_eq!(saved, Saved { median_ps: 150, error_ps: 0 });
        assert!(saved.is_clear());
        let noise = Saved::between(&[10, 500, 90, 300, 20], &[300, 20, 500, 10, 90]).unwrap();
        assert!(!noise.is_clear(), "{noise:?}");
        assert_eq!(Saved::between(&[1, 2], &[1, 2]), None);
        assert!(Saved::between(&[u64::MAX, 0, 1], &[0, u64::MAX, 1]).is_some());
    }

    #[test]
    fn a_pair_is_an_effect_only_if_the_pages_were_there() {
        let point = |backed: Reading<Bytes>, ps: &[u64]| AccessPoint {
            size: Bytes(100 << 21),
            ps_per_access: ps.to_vec(),
            huge_backed: backed,
        };
        let pair = |without, with| AccessPair {
            base: point(without, &[300, 290, 310]),
            huge: Ok(point(with, &[150, 140, 160, 170])),
        };
        let huge_pages = |n: u64| Ok(Bytes(n << 21));
        assert_eq!(
            pair(huge_pages(0), huge_pages(95)).effect().map(|effect| (effect.base_ps, effect.huge_ps)),
            // Of an even number of repeats the mean of the two in the middle.
            Some((300, 155))
        );
        assert_eq!(pair(huge_pages(0), huge_pages(94)).effect(), None);
        assert_eq!(pair(huge_pages(1), huge_pages(100)).effect(), None);
        let unknown = Err(Absence::new("smaps", AbsentWhy::Failed, ""));
        assert_eq!(pair(huge_pages(0), unknown).effect(), None);
    }
}
