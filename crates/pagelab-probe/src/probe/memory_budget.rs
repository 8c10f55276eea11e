//! Memory limit of a probe, and its cause.

use pagelab_model::size::format_bytes;
use pagelab_model::{Absence, AbsenceReason, Bytes};

use super::{ProbeFacts, ProbeOptions};

/// Minimum of the reserve; it is also at least 5 % of all memory and twice the high watermarks.
const RESERVE_BYTES_MIN: u64 = 512 << 20;

/// Free margin in a control group: this, or 5 % of its limit.
const CGROUP_MARGIN_MIN: u64 = 64 << 20;

/// For page tables, stacks and results: far more than they need.
const OVERHEAD_BYTES: u64 = 64 << 20;

/// Maximum taken from page cache if free memory is short: enough to request huge pages and for one small pair
/// of buffers.
const FROM_PAGE_CACHE_MAX: u64 = 256 << 20;

/// With less than this no useful measurement is possible.
const BUDGET_BYTES_MIN: u64 = 32 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum size of one allocation.
    pub amount: Bytes,
    /// Description of the bound.
    pub bound: String,
}

impl Budget {
    /// Returns the reason to measure nothing, if the budget is too small.
    pub fn insufficient_budget(&self) -> Option<Absence> {
        (self.amount.0 < BUDGET_BYTES_MIN).then(|| {
            let detail = format!(
                "only {} is allowed, but at least {} is needed; limited by {}",
                format_bytes(self.amount),
                format_bytes(Bytes(BUDGET_BYTES_MIN)),
                self.bound
            );
            Absence::new("probe", AbsenceReason::NotPermitted, detail)
                .with_hint("free memory or raise the limit")
        })
    }
}

/// The smallest of: free memory less the reserve (or a little page cache), the control group's room less a
/// margin, and what the probe wants at most.
pub fn compute_budget(options: &ProbeOptions, facts: &ProbeFacts) -> Budget {
    let reserve = compute_reserve(facts);
    let free = facts.free.0.min(facts.available.map_or(u64::MAX, |available| available.0));
    let amount = |bytes: u64| format_bytes(Bytes(bytes));
    let mut bounds = vec![(
        options.region_max.0.saturating_mul(2).saturating_add(OVERHEAD_BYTES),
        format!("the probe's maximum, two buffers of {}", amount(options.region_max.0)),
    )];
    let (free, available) =
        (free.saturating_sub(reserve), facts.available.map_or(0, |a| a.0.saturating_sub(reserve)));
    bounds.push(if free < FROM_PAGE_CACHE_MAX && available > free {
        let detail =
            format!("available memory less the reserve of {}, sparing the page cache", amount(reserve));
        (available.min(FROM_PAGE_CACHE_MAX), detail)
    } else {
        (free, format!("free memory less the reserve of {}", amount(reserve)))
    });
    if let Some((limit, room)) = facts.cgroup {
        let margin = (limit.0 / 20).max(CGROUP_MARGIN_MIN);
        let limit = format_bytes(limit);
        bounds.push(match room {
            Some(room) => {
                let detail = format!("the cgroup limits (smallest: {limit}) less usage and a margin");
                (room.0.saturating_sub(margin), detail)
            }
            None => (0, format!("the cgroup limit of {limit}, whose usage cannot be read")),
        });
    }
    let (amount, bound) = bounds.into_iter().min_by_key(|(amount, _)| *amount).unwrap_or_default();
    Budget { amount: Bytes(amount), bound }
}

fn compute_reserve(facts: &ProbeFacts) -> u64 {
    let watermarks = facts.high_watermarks.map_or(0, |high| high.0.saturating_mul(2));
    (facts.total.0 / 20).max(RESERVE_BYTES_MIN).max(watermarks)
}

#[cfg(test)]
mod tests {
    use pagelab_model::PageSize;

    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn facts(total: u64, free: u64, available: Option<u64>) -> ProbeFacts {
        ProbeFacts {
            page_size: PageSize::DEFAULT,
            pmd_size: Ok(Bytes(2 << 20)),
            total: Bytes(total),
            free: Bytes(free),
            available: available.map(Bytes),
            high_watermarks: None,
            cgroup: None,
            thp_mode: None,
            virtual_machine: None,
        }
    }

    #[test]
    fn the_tightest_bound_counts_and_is_named() {
        let limited = |facts: ProbeFacts, limit, room: Option<u64>| ProbeFacts {
            cgroup: Some((Bytes(limit), room.map(Bytes))),
            ..facts
        };
        let marked = |facts: ProbeFacts, high| ProbeFacts { high_watermarks: Some(Bytes(high)), ..facts };
        let most = 2 * GIB + OVERHEAD_BYTES;
        let cases = [
            (facts(24 * GIB, 23 * GIB, Some(23 * GIB)), most, "the probe's maximum"),
            (facts(2 * GIB, GIB, Some(GIB)), 512 * MIB, "free memory less the reserve of 512 MiB"),
            (
                facts(64 * GIB, 5 * GIB, None),
                5 * GIB - 64 * GIB / 20,
                "free memory less the reserve of 3.20 GiB",
            ),
            (
                marked(facts(4 * GIB, 2 * GIB, None), 600 * MIB),
                2 * GIB - 1200 * MIB,
                "the reserve of 1.17 GiB",
            ),
            (facts(64 * GIB, GIB, Some(50 * GIB)), FROM_PAGE_CACHE_MAX, "sparing the page cache"),
            (facts(4 * GIB, 100 * MIB, Some(600 * MIB)), 88 * MIB, "sparing the page cache"),
            (limited(facts(64 * GIB, 60 * GIB, None), GIB, Some(124 * MIB)), 60 * MIB, "the cgroup limits"),
            (limited(facts(64 * GIB, 60 * GIB, None), GIB, Some(0)), 0, "the cgroup limits"),
            (limited(facts(64 * GIB, 60 * GIB, None), GIB, None), 0, "whose usage cannot be read"),
            (facts(0, u64::MAX, Some(u64::MAX)), most, "the probe's maximum"),
            (facts(u64::MAX, 0, Some(0)), 0, "free memory"),
        ];
        for (facts, amount, bound) in cases {
            let budget = compute_budget(&ProbeOptions::default(), &facts);
            assert_eq!(budget.amount, Bytes(amount), "{facts:?}");
            assert!(budget.bound.contains(bound), "{} for {facts:?}", budget.bound);
            assert_eq!(budget.insufficient_budget().is_some(), amount < BUDGET_BYTES_MIN);
        }
    }
}
