//! The hugetlb pool for `--backing hugetlb`: as many pages more as the plan has regions, under the guard.

use std::time::Duration;

use pagelab_host::guard::{Guard, Knob, Options, Site, Watched};
use pagelab_host::paths;
use pagelab_model::Bytes;
use pagelab_target::supervise::{Choice, Spec};

use crate::cmd::restore;
use crate::exit::{Exit, Failure};
use crate::out;

/// How long another pagelab that holds the pool is waited for.
const WAIT: Duration = Duration::from_secs(30);

/// Enlarges the pool, if pages of it are wanted.
pub fn enlarge(spec: &Spec) -> Result<Option<Guard>, Failure> {
    let pages = match &spec.choice {
        _ if !spec.hugetlb => return Ok(None),
        Choice::Plan(plan) => {
            let mappings = plan.programs.iter().flat_map(|program| &program.mappings);
            mappings.map(|mapping| mapping.regions.len() as u64).sum::<u64>()
        }
        Choice::Nothing => 0,
        Choice::All => {
            let message = "--backing hugetlb needs a plan, which says how many pages the pool must have; \
                           `all` says none";
            return Err(crate::cmd::usage(message));
        }
    };
    let site = Site::live().map_err(restore::failure)?;
    let watched = Watched::signals(Box::new(|code, outcomes| out::signalled(code, "", outcomes)));
    let guard =
        Guard::begin(&site, watched.map_err(restore::failure)?, Options { wait: WAIT, ..Options::default() })
            .map_err(restore::failure)?;
    let knob = Knob::hugetlb(Bytes(spec.huge), None);
    let path = format!("{}/hugepages-{}kB/nr_hugepages", paths::HUGETLB, spec.huge >> 10);
    let before = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let before = before.ok_or_else(|| {
        let message = format!("{path} cannot be read: this kernel has no pool of such pages");
        Failure::new(Exit::NotAvailable, message)
    })?;
    let wanted = before.saturating_add(pages);
    let applied = guard.set(&knob, &wanted.to_string()).map_err(restore::failure)?;
    if !applied.is_exact() {
        out::complain(&format!(
            "pagelab: the pool has {} pages where {wanted} were wanted: memory is fragmented; `pagelab \
             compact` makes room",
            applied.got
        ));
    }
    Ok(Some(guard))
}

/// Gives the pool back, once the program has ended.
pub fn give_back(guard: Guard) {
    for outcome in guard.finish() {
        if !outcome.detail.is_empty() {
            out::complain(&format!("pagelab: {}: {}", outcome.what, outcome.detail));
        }
    }
}
