//! How much memory a probe may take, and what bounds it.

use pagelab_model::{Absence, AbsentWhy, Bytes};

use super::{ProbeFacts, ProbeOptions};

/// The reserve is never less than this; nor less than 5 % of all memory, nor twice the high watermarks.
const RESERVE_MIN: u64 = 512 << 20;

/// Left free in a control group: this, or 5 % of its limit.
const CGROUP_MARGIN_MIN: u64 = 64 << 20;

/// For page tables, stacks and the results: far more than they need.
const BOOKKEEPING: u64 = 64 << 20;

/// Where free memory is short but page cache could go, this much may be taken of it, and no more: enough to
/// ask for huge pages and for one small pair of buffers.
const FROM_PAGE_CACHE_MAX: u64 = 256 << 20;

/// With less than this nothing worth saying can be measured.
const ENOUGH: u64 = 32 << 20;

/// An amount of memory, and what bounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// How much may be taken at once.
    pub amount: Bytes,
    /// What bounds it, in words.
    pub bound: String,
}

impl Budget {
    /// The reason to measure nothing, if the budget is too small.
    pub fn too_little(&self) -> Option<Absence> {
        (self.amount.0 < ENOUGH).then(|| {
            let detail = format!(
                "only {} MiB may be taken, at least {} are needed; bounded by {}",
                self.amount.0 >> 20,
                ENOUGH >> 20,
                self.bound
            );
            Absence::new("probe", AbsentWhy::NotPermitted, detail).or("free memory or raise the limit")
        })
    }
}

/// The smallest of: free memory less the reserve (or a little page cache), the control group's room less a
/// margin, and what the probe wants at most.
pub(super) fn budget(options: &ProbeOptions, facts: &ProbeFacts) -> Budget {
    let reserve = reserve(facts);
    let free = facts.free.0.min(facts.available.map_or(u64::MAX, |available| available.0));
    let mib = |bytes: u64| bytes >> 20;
    let mut bounds = vec![(
        options.region_max.0.saturating_mul(2).saturating_add(BOOKKEEPING),
        format!("what the probe takes at most, two buffers of {} MiB", mib(options.region_max.0)),
    )];
    let (free, available) =
        (free.saturating_sub(reserve), facts.available.map_or(0, |a| a.0.saturating_sub(reserve)));
    bounds.push(if free < FROM_PAGE_CACHE_MAX && available > free {
        let detail = format!("available memory less the reserve of {} MiB, page cache spared", mib(reserve));
        (available.min(FROM_PAGE_CACHE_MAX), detail)
    } else {
        (free, format!("free memory less the reserve of {} MiB", mib(reserve)))
    });
    if let Some((limit, room)) = facts.cgroup {
        let margin = (limit.0 / 20).max(CGROUP_MARGIN_MIN);
        let limit = mib(limit.0);
        bounds.push(match room {
            Some(room) => {
                let detail =
                    format!("the control groups' limits, the least of {limit} MiB, less use and margin");
                (room.0.saturating_sub(margin), detail)
            }
            None => (0, format!("the control group's limit of {limit} MiB, whose use cannot be read")),
        });
    }
    let (amount, bound) = bounds.into_iter().min_by_key(|(amount, _)| *amount).unwrap_or_default();
    Budget { amount: Bytes(amount), bound }
}

fn reserve(facts: &ProbeFacts) -> u64 {
    let watermarks = facts.high_watermarks.map_or(0, |high| high.0.saturating_mul(2));
    (facts.total.0 / 20).max(RESERVE_MIN).max(watermarks)
}

#[cfg(test)]
mod tests {
    use pagelab_model::PageSize;

    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn facts(total: u64, free: u64, available: Option<u64>) -> ProbeFacts {
        ProbeFacts {
            page_size: PageSize::USUAL,
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
        let most = 2 * GIB + BOOKKEEPING;
        let cases = [
            (facts(24 * GIB, 23 * GIB, Some(23 * GIB)), most, "what the probe takes at most"),
            (facts(2 * GIB, GIB, Some(GIB)), 512 * MIB, "free memory less the reserve of 512 MiB"),
            (facts(64 * GIB, 5 * GIB, None), 5 * GIB - 64 * GIB / 20, "free memory less the reserve of 3276"),
            (marked(facts(4 * GIB, 2 * GIB, None), 600 * MIB), 2 * GIB - 1200 * MIB, "the reserve of 1200"),
            (facts(64 * GIB, GIB, Some(50 * GIB)), FROM_PAGE_CACHE_MAX, "page cache spared"),
            (facts(4 * GIB, 100 * MIB, Some(600 * MIB)), 88 * MIB, "page cache spared"),
            (limited(facts(64 * GIB, 60 * GIB, None), GIB, Some(124 * MIB)), 60 * MIB, "the control groups'"),
            (limited(facts(64 * GIB, 60 * GIB, None), GIB, Some(0)), 0, "the control groups' limits"),
            (limited(facts(64 * GIB, 60 * GIB, None), GIB, None), 0, "whose use cannot be read"),
            (facts(0, u64::MAX, Some(u64::MAX)), most, "what the probe takes at most"),
            (facts(u64::MAX, 0, Some(0)), 0, "free memory"),
        ];
        for (facts, amount, bound) in cases {
            let budget = budget(&ProbeOptions::default(), &facts);
            assert_eq!(budget.amount, Bytes(amount), "{facts:?}");
            assert!(budget.bound.contains(bound), "{} for {facts:?}", budget.bound);
            assert_eq!(budget.too_little().is_some(), amount < ENOUGH);
        }
    }
}
