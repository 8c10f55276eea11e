//! Results of `--probe`: requested huge pages, and the time of one memory access.

use crate::order_statistics::median;
use crate::{Absence, Bytes, Reading};

use serde::{Deserialize, Serialize};

/// Results of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResults {
    /// Memory budget of the probe, and its bound.
    pub budget: Bytes,
    /// The bound of the budget: `free memory less the reserve`, `cgroup limit` …
    #[serde(alias = "budget_bound")]
    pub budget_limit: String,
    /// Requested huge pages.
    pub huge: Reading<HugePageProbe>,
    /// Access times, ascending by buffer size.
    pub access: Reading<AccessProbe>,
    /// Caveats of the numbers, one sentence each, without a trailing dot: unknown backing of a virtual
    /// machine, parts skipped for lack of time or memory.
    pub notes: Vec<String>,
}

/// Huge pages requested one by one by MADV_COLLAPSE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePageProbe {
    /// Size of one.
    pub page_size: Bytes,
    /// Number of requested huge pages.
    #[serde(alias = "asked")]
    pub requested: u64,
    /// Number of successful requests.
    #[serde(alias = "answered_yes")]
    pub succeeded: u64,
    /// Number of huge pages found when read back.
    #[serde(alias = "came")]
    pub allocated: u64,
    /// Source of the read-back: `PAGEMAP_SCAN` or `smaps`.
    pub read_back_by: String,
    /// Duration of each request in nanoseconds, in order.
    pub latency_ns: Vec<u64>,
    /// The first error, as the system's message.
    #[serde(alias = "first_refusal")]
    pub first_error: Option<String>,
}

/// Dependent random reads at several buffer sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessProbe {
    /// Seed of the chase order.
    pub seed: u64,
    /// CPU of the measurement; `None` if the thread could not be pinned.
    pub pinned_cpu: Option<u32>,
    /// The points of the base-page curve that shows the knee, ascending by size.
    pub base_curve: Vec<AccessPoint>,
    /// The same sizes with huge pages, interleaved with the base pages; empty if there were none.
    pub huge_curve: Vec<AccessPoint>,
    /// Base pages and huge pages at the two sizes of comparison.
    pub pairs: Vec<AccessPair>,
    /// The largest measured buffer that the largest TLB still reaches with base pages. The reach itself is
    /// between this size and the next of the curve, so report it as "about".
    pub knee: Reading<Bytes>,
}

/// One measurement of the chase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPoint {
    /// Size of the buffer.
    pub size: Bytes,
    /// Picoseconds of CPU time per access, one for each repeat, in the order of measurement.
    pub ps_per_access: Vec<u64>,
    /// Bytes of the buffer backed by huge pages when read back.
    pub huge_backed: Reading<Bytes>,
}

/// Minimum share of a buffer in huge pages, in per cent, to count as huge.
const HUGE_BACKED_PERCENT_MIN: u64 = 95;

impl AccessPoint {
    /// The middle repeat, or the mean of the two in the middle; `None` if nothing was measured.
    pub fn median_ps(&self) -> Option<u64> {
        median(&mut self.ps_per_access.clone())
    }

    /// Whether the read-back found at least 95 % of the buffer backed by huge pages. A measurement that
    /// requested huge pages and fell back is not presented as an effect of huge pages.
    pub fn is_huge_backed(&self) -> bool {
        let bytes_min = u128::from(self.size.0) * u128::from(HUGE_BACKED_PERCENT_MIN);
        self.huge_backed.as_ref().is_ok_and(|backed| u128::from(backed.0) * 100 >= bytes_min)
    }
}

/// The same buffer size with base pages and with huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPair {
    /// With base pages.
    pub base: AccessPoint,
    /// With huge pages, or the reason for their absence.
    pub huge: Result<AccessPoint, Absence>,
}

impl AccessPair {
    /// The effect of huge pages, if the two buffers differ as expected: no part of the base buffer and at
    /// least 95 % of the other on huge pages, both read back. Otherwise the numbers are printed with their
    /// backing, and not as an effect of huge pages.
    pub fn compare(&self) -> Option<AccessComparison> {
        let huge = self.huge.as_ref().ok()?;
        if self.base.huge_backed.as_ref().ok()?.0 > 0 || !huge.is_huge_backed() {
            return None;
        }
        let saved = AccessSaving::from_pairs(&self.base.ps_per_access, &huge.ps_per_access)?;
        Some(AccessComparison { base_ps: self.base.median_ps()?, huge_ps: huge.median_ps()?, saved })
    }
}

/// A comparison of base and huge pages at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessComparison {
    /// Median picoseconds per access with base pages.
    pub base_ps: u64,
    /// Median picoseconds per access with huge pages.
    pub huge_ps: u64,
    /// Saving of an access with huge pages.
    pub saved: AccessSaving,
}

/// Saving of one access with huge pages, from interleaved measurements: a disturbance of the machine affects
/// both parts of a turn and cancels out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessSaving {
    /// Median over the turns of base less huge, in picoseconds.
    pub median_ps: i64,
    /// Standard error of that median.
    pub error_ps: i64,
}

impl AccessSaving {
    /// Compares entry i with entry i; `None` with fewer than three turns, which give no estimate of noise.
    pub fn from_pairs(base_ps: &[u64], huge_ps: &[u64]) -> Option<AccessSaving> {
        let signed = |ps: u64| i64::try_from(ps).unwrap_or(i64::MAX);
        let pairs = base_ps.iter().zip(huge_ps);
        let mut saved: Vec<i64> =
            pairs.map(|(&base, &huge)| signed(base).saturating_sub(signed(huge))).collect();
        if saved.len() < 3 {
            return None;
        }
        let median_ps = median(&mut saved)?;
        let mut deviations: Vec<i64> =
            saved.iter().map(|s| s.saturating_sub(median_ps).saturating_abs()).collect();
        let deviation = median(&mut deviations)?;
        // The standard error of a median is 1.253 σ / √n, and σ is 1.483 median absolute deviations.
        let error_ps = (1.858 * deviation as f64 / (saved.len() as f64).sqrt()) as i64;
        Some(AccessSaving { median_ps, error_ps })
    }

    /// Whether it exceeds three standard errors in either direction; otherwise no difference was measured.
    pub fn is_significant(&self) -> bool {
        self.median_ps.saturating_abs() > self.error_ps.saturating_mul(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AbsenceReason;

    #[test]
    fn side_by_side_turns_cancel_a_common_disturbance() {
        let drift = [100u64, 900, 5000, 120, 40_000, 100, 7000, 300, 100];
        let base: Vec<u64> = drift.iter().map(|d| 300 + d).collect();
        let huge: Vec<u64> = drift.iter().map(|d| 150 + d).collect();
        let saved = AccessSaving::from_pairs(&base, &huge).unwrap();
        assert_eq!(saved, AccessSaving { median_ps: 150, error_ps: 0 });
        assert!(saved.is_significant());
        let noise = AccessSaving::from_pairs(&[10, 500, 90, 300, 20], &[300, 20, 500, 10, 90]).unwrap();
        assert!(!noise.is_significant(), "{noise:?}");
        assert_eq!(AccessSaving::from_pairs(&[1, 2], &[1, 2]), None);
        assert!(AccessSaving::from_pairs(&[u64::MAX, 0, 1], &[0, u64::MAX, 1]).is_some());
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
            pair(huge_pages(0), huge_pages(95)).compare().map(|effect| (effect.base_ps, effect.huge_ps)),
            // Of an even number of repeats the mean of the two in the middle.
            Some((300, 155))
        );
        assert_eq!(pair(huge_pages(0), huge_pages(94)).compare(), None);
        assert_eq!(pair(huge_pages(1), huge_pages(100)).compare(), None);
        let unknown = Err(Absence::new("smaps", AbsenceReason::Failed, ""));
        assert_eq!(pair(huge_pages(0), unknown).compare(), None);
    }
}
