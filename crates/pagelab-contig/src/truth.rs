//! The truth behind a forecast: huge pages are really asked for as memory lies, after compaction, and after
//! dropping the page cache, in this order; each time everything is given back.

use pagelab_host::guard::{Guard, GuardError, Knob, OWN_MEMORY};
use pagelab_host::page_reporting;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::settings::{Settings, ThpSettings};
use pagelab_model::{Absence, AbsentWhy, Bytes, NodeId, Reading};
use pagelab_sys::affinity::Pinned;

use crate::asking::{Asked, Asking, Wanted};
use crate::compact::{Caches, Scope, compact, drop_caches};
use crate::oom::OfferedFirst;
use crate::warm;

/// What came at each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truth {
    /// By faults, with THP's `defrag` off: nothing is compacted and nothing reclaimed.
    pub now: Reading<Asked>,
    /// After compacting, by faults, and by MADV_COLLAPSE for the rest.
    pub after_compaction: Reading<Asked>,
    /// After dropping the page cache and compacting, in the same way.
    pub after_dropping_cache: Reading<Asked>,
}

/// Asks for huge pages of PMD size. An error of the guard: a setting was not changed, or an act not done;
/// nothing more is asked for then.
pub fn truth(
    guard: &Guard,
    root: &Root,
    settings: &Settings,
    wanted: Wanted,
    node: Option<NodeId>,
) -> Result<Truth, GuardError> {
    let _offered = OfferedFirst::new();
    // Huge pages that are given back stay on the lists of the CPU that gave them (5.13 and later).
    let _pinned = Pinned::here();
    settle(guard, settings)?;
    let scope = node.map_or(Scope::Machine, Scope::Node);
    // Where the host takes free memory back, the latencies would be the host's.
    let reporting = is_reporting(root, wanted);
    let warm = || {
        if reporting {
            warm::warm(root, Bytes(wanted.count.saturating_mul(wanted.size.0)), &|| false);
        }
    };
    warm();
    let now = ask(guard, root, wanted, node, false)?;
    compact(guard, scope)?;
    warm();
    let after_compaction = ask(guard, root, wanted, node, true)?;
    let enough = |asked: &Reading<Asked>| asked.as_ref().is_ok_and(|asked| asked.got >= wanted.count);
    if enough(&after_compaction) {
        let after_dropping_cache = Err(all_came());
        return Ok(Truth { now, after_compaction, after_dropping_cache });
    }
    drop_caches(guard, Caches::Page)?;
    compact(guard, scope)?;
    warm();
    let after_dropping_cache = ask(guard, root, wanted, node, true)?;
    Ok(Truth { now, after_compaction, after_dropping_cache })
}

fn is_reporting(root: &Root, wanted: Wanted) -> bool {
    page_reporting::read(&Reader::new(root), wanted.page_size, 0).is_some()
}

/// Why a step is left out: what it would cost others is not needed.
pub fn all_came() -> Absence {
    let why = "all that was wanted came before; no page cache was dropped";
    Absence::new("huge pages", AbsentWhy::NotAsked, why)
}

/// Asks for all huge pages that the reserve allows, by faults and by MADV_COLLAPSE, and gives them back: the
/// kernel compacts for each that is not there, wherever its own compaction gave up.
pub fn ask_to_compact(
    guard: &Guard,
    root: &Root,
    settings: &Settings,
    wanted: Wanted,
    node: Option<NodeId>,
) -> Result<Reading<Asked>, GuardError> {
    let _offered = OfferedFirst::new();
    let _pinned = Pinned::here();
    settle(guard, settings)?;
    ask(guard, root, wanted, node, true)
}

/// Sets THP so that faults give huge pages that are there and do nothing to get others.
fn settle(guard: &Guard, settings: &Settings) -> Result<(), GuardError> {
    if let Ok(thp) = &settings.thp {
        if mode(thp) == Some("never") {
            guard.set(&Knob::thp_enabled(), "madvise")?;
        }
        let pmd_size = thp.pmd_size.as_ref().ok();
        let own = thp.sizes.iter().find(|size| Some(&size.size) == pmd_size);
        if own.is_some_and(|own| own.enabled.as_ref().is_ok_and(|mode| mode.selected() == "never")) {
            guard.set(&Knob::thp_size_enabled(pmd_size.copied().unwrap_or(Bytes(0))), "inherit")?;
        }
    }
    // Where F_u is high the kernel compacts by itself, and `now` would not be now (mm/compaction.c,
    // `should_proactive_compact_node`).
    if settings.vm.get("compaction_proactiveness").is_some_and(|value| value > 0) {
        guard.set(&Knob::vm("compaction_proactiveness")?, "0")?;
    }
    // khugepaged would make huge pages of regions that have one base page, in the middle of asking.
    guard.set(&Knob::khugepaged("max_ptes_none")?, "0")?;
    guard.set(&Knob::thp_defrag(), "never").map(drop)
}

fn mode(thp: &ThpSettings) -> Option<&str> {
    thp.enabled.as_ref().ok().map(|mode| mode.selected())
}

fn ask(
    guard: &Guard,
    root: &Root,
    wanted: Wanted,
    node: Option<NodeId>,
    collapse: bool,
) -> Result<Reading<Asked>, GuardError> {
    let asked = || {
        let mut asking = Asking::begin(root, wanted, node)?;
        asking.by_faults()?;
        if collapse {
            asking.by_collapse()?;
        }
        asking.end()
    };
    if !collapse {
        return Ok(asked());
    }
    let act = format!("MADV_COLLAPSE, at most {} times, {OWN_MEMORY}", wanted.count);
    Ok(guard.one_way(&act, asked)?.unwrap_or_else(|| {
        Err(Absence::new("huge pages", AbsentWhy::NotAsked, "a dry run asks for nothing"))
    }))
}
