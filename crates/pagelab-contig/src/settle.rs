//! Free pages that wait on the processors' lists are made to go to the free lists before memory is looked at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use pagelab_formats::zoneinfo;
use pagelab_host::paths;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;

/// Reads of `stat_refresh` in one round; each takes at most a few thousand pages from each processor's list.
const REFRESHES: u32 = 16;
/// Pages that leave the lists in a round below which no more is to leave.
const SETTLED: u64 = 64;
/// The longest that lists are waited for.
pub(crate) const LONGEST: Duration = Duration::from_millis(1500);

/// Reads `stat_refresh` until the lists do not shrink any more. Since 6.7 a list grows to an eighth of its
/// zone shared by the processors and shrinks within minutes by itself; each read is one step of it
/// (mm/vmstat.c, `vmstat_refresh`; mm/page_alloc.c, `decay_pcp_high`). Earlier kernels keep what they have.
/// Returns how many pages left the lists; `None` where it cannot be read, such as without root.
pub fn settle(root: &Root) -> Option<u64> {
    let refresh = root.file(paths::STAT_REFRESH).ok()?;
    let first = waiting(root)?;
    let (mut before, until) = (first, Instant::now() + LONGEST);
    loop {
        refreshed(&refresh)?;
        let now = waiting(root)?;
        if before.saturating_sub(now) < SETTLED || Instant::now() > until {
            return Some(first.saturating_sub(now));
        }
        before = now;
    }
}

/// One round. `None` where it cannot be read.
pub(crate) fn refreshed(refresh: &File) -> Option<()> {
    (0..REFRESHES).try_for_each(|_| refresh.read_at(&mut [0], 0).map(drop)).ok()
}

/// Pages on all lists.
fn waiting(root: &Root) -> Option<u64> {
    let zoneinfo = Reader::new(root).parse(paths::ZONEINFO, zoneinfo::parse).ok()?;
    Some(zoneinfo.zones.iter().map(|zone| zone.pages_per_cpu().0).sum())
}
