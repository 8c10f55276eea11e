//! The truth behind a forecast: huge pages are really asked for as memory lies, after compaction, and after
//! dropping the page cache, in this order; each time everything is given back.

use pagelab_host::guard::{Guard, GuardError, Knob, OWN_MEMORY};
use pagelab_host::page_reporting;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::settings::{Settings, ThpSettings};
use pagelab_model::{Absence, AbsentWhy, Bytes, NodeId, Order, Reading};
use pagelab_sys::affinity::Pinned;
use pagelab_sys::clock;

use crate::asking::{Asked, Asking, MISSED_COLLAPSES_EARLY_MAX, MISSED_COLLAPSES_MAX, Wanted};
use crate::compact::{Caches, Scope, drop_caches};
use crate::finish::{Runs, compact_on, huge_now};
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
    let after_compaction = compacted(guard, root, scope, wanted, node, &warm)?;
    let enough = |asked: &Reading<Asked>| asked.as_ref().is_ok_and(|asked| asked.got >= wanted.count);
    if enough(&after_compaction) {
        let after_dropping_cache = Err(all_came());
        return Ok(Truth { now, after_compaction, after_dropping_cache });
    }
    drop_caches(guard, Caches::Page)?;
    let after_dropping_cache = compacted(guard, root, scope, wanted, node, &warm)?;
    Ok(Truth { now, after_compaction, after_dropping_cache })
}

/// Rounds of compacting and asking: where compaction ended early, what was asked for goes back and the next
/// round begins with memory that the round before has moved.
const ROUNDS_MAX: u32 = 4;

/// Compacts and asks, again and again where the kernel's compaction ended early and the round before gained
/// something. The last answer is what came.
fn compacted(
    guard: &Guard,
    root: &Root,
    scope: Scope,
    wanted: Wanted,
    node: Option<NodeId>,
    warm: &dyn Fn(),
) -> Result<Reading<Asked>, GuardError> {
    let order = wanted.page_size.order_of(wanted.size).unwrap_or(Order(0));
    let mut best: Option<Asked> = None;
    for _ in 0..ROUNDS_MAX {
        let is_early = compact_on(guard, root, scope, order, wanted.deadline_ns)?.is_early(order);
        warm();
        let misses_max = if is_early { MISSED_COLLAPSES_EARLY_MAX } else { MISSED_COLLAPSES_MAX };
        let asked = match ask(guard, root, Wanted { misses_max, ..wanted }, node, true)? {
            Ok(asked) => asked,
            Err(absence) => return Ok(best.ok_or(absence)),
        };
        let gained = best.as_ref().is_none_or(|best| asked.got > best.got + best.got / GAIN_SHARE);
        let is_enough = asked.got >= asked.asked;
        if best.as_ref().is_none_or(|best| asked.got >= best.got) {
            best = Some(asked);
        }
        if !is_early || !gained || is_enough {
            break;
        }
    }
    Ok(best.ok_or_else(all_came))
}

/// A round that gains less than this share is the last.
const GAIN_SHARE: u64 = 100;

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

/// What rounds of asking and compacting came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// How many there were.
    pub count: u32,
    /// The answer of the last, with what was compacted for in all of them.
    pub asked: Reading<Asked>,
    /// Where the scanners stopped when the kernel was told last; `None` where it was not told again.
    pub kernel: Option<Runs>,
}

/// Asks, gives back, and has the kernel compact again, until its scanners meet, a round gains nothing, or the
/// time is up.
pub fn ask_and_compact(
    guard: &Guard,
    root: &Root,
    settings: &Settings,
    wanted: Wanted,
    node: Option<NodeId>,
) -> Result<Rounds, GuardError> {
    let order = wanted.page_size.order_of(wanted.size).unwrap_or(Order(0));
    let scope = node.map_or(Scope::Machine, Scope::Node);
    let mut rounds = Rounds { count: 0, asked: Err(all_came()), kernel: None };
    let mut by_collapse = 0;
    let mut before = huge_now(root, order);
    loop {
        rounds.asked = ask_to_compact(guard, root, settings, wanted, node)?;
        rounds.count += 1;
        let Ok(asked) = &mut rounds.asked else { return Ok(rounds) };
        by_collapse += asked.by_collapse;
        asked.by_collapse = by_collapse;
        let runs = compact_on(guard, root, scope, order, wanted.deadline_ns)?;
        let (is_early, now) = (runs.is_early(order), huge_now(root, order));
        rounds.kernel = Some(runs);
        let gained = now > before + before / GAIN_SHARE;
        if !is_early || !gained || clock::monotonic_ns() >= wanted.deadline_ns {
            return Ok(rounds);
        }
        before = now;
    }
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
