//! Plan of a run: resolves arguments and a snapshot to a plan, or to an error with a hint.

use pagelab_command::exit::{Failure, FailureKind, usage_error};
use pagelab_contig::fragment::inputs::{FillMethod, FragmentInputs};
use pagelab_contig::reserve::Reserve;
use pagelab_metrics::fragment_plan::{self, FragmentationGoal, FragmentationPlan, KeepPattern, TargetError};
use pagelab_metrics::fragmentation_index::format_share;
use pagelab_model::{Bytes, FreeAreas, NodeId, Order, Snapshot};
use pagelab_report::style::{format_argument, format_bytes};

use super::bounded_allocation;
use crate::options::FragmentOptions;

/// Plan of a run.
#[derive(Clone, Debug)]
pub struct FragmentRunPlan {
    /// Facts of the machine.
    pub facts: FragmentInputs,
    /// Target.
    pub goal: FragmentationGoal,
    /// Allocation method.
    pub allocation_method: FillMethod,
    /// Pattern of the kept pages.
    pub layout: KeepPattern,
    /// Memory reserved for other processes.
    pub reserve: Reserve,
    /// NUMA node that memory is bound to, if there are several.
    pub bind: Option<NodeId>,
    /// Seed of the choice of kept pages.
    pub seed: u64,
    /// Maximum number of units.
    pub units_max: u64,
    /// Planned units and the predicted index.
    pub unit_plan: FragmentationPlan,
    /// Whether THP is set to madvise during the run.
    pub switches_thp_on: bool,
    /// Whether proactive compaction is disabled during the run.
    pub pauses_compaction: bool,
    /// Notes printed before the start.
    pub notes: Vec<String>,
}

impl FragmentRunPlan {
    /// All checks, and all defaults.
    pub fn resolve(args: &FragmentOptions, snapshot: &Snapshot) -> Result<FragmentRunPlan, Failure> {
        let target = args.target.ok_or_else(|| {
            usage_error("no target given: add --target F_U, 0 to 1, for example --target 0.8")
        })?;
        let mut facts = FragmentInputs::from_snapshot(snapshot, args.node.map(NodeId))?;
        let order = resolve_order(args, &facts)?;
        let switches_thp_on =
            args.allow_thp && facts.huge_page_obstacle.as_ref().is_some_and(|no| no.is_thp_mode_only);
        if switches_thp_on {
            facts.huge_page_obstacle = None;
        }
        let reserve = bounded_allocation::resolve_reserve(args.reserve, &facts);
        let goal = FragmentationGoal { order, target, tolerance: FragmentationGoal::TOLERANCE };
        let method = facts.fill_method();
        let shape = facts.keep_pattern(method, order);
        let room = facts.max_units_within(method, shape, reserve);
        let requested_units = args.size.map(|size| size.to_bytes(facts.mem_total).0 / facts.unit_size().0);
        if requested_units == Some(0) {
            let unit = format_bytes(facts.unit_size());
            return Err(usage_error(&format!("--size: the minimum is {unit}")));
        }
        if room == 0 {
            return Err(no_room_failure(&facts, reserve));
        }
        if let Some(units) = requested_units.filter(|&units| method == FillMethod::BasePages && units > room)
        {
            return Err(below_reserve_failure(&facts, units, room, reserve));
        }
        let units_max = requested_units.unwrap_or(u64::MAX).min(room);
        let areas = facts.initialized_free_areas();
        let planned =
            fragment_plan::plan_fragmentation(&areas, &goal, shape, units_max).map_err(|unreachable| {
                UnreachableTarget {
                    facts: &facts,
                    goal: &goal,
                    allocation_method: method,
                    layout: shape,
                    reserve,
                    requested_units,
                    room_units: room,
                }
                .explain(unreachable, &areas)
            })?;
        facts.check_plan(planned.units)?;
        let bind = (facts.nodes.len() > 1).then_some(facts.zone.node);
        let notes = plan_notes(args, &facts, &goal, snapshot);
        let (seed, pauses_compaction) = (args.seed, args.pause_compaction);
        Ok(FragmentRunPlan {
            facts,
            goal,
            allocation_method: method,
            layout: shape,
            reserve,
            bind,
            seed,
            units_max,
            unit_plan: planned,
            switches_thp_on,
            pauses_compaction,
            notes,
        })
    }

    /// Returns the memory to be fragmented.
    pub fn fragmented_bytes(&self) -> Bytes {
        Bytes(self.unit_plan.units.saturating_mul(self.facts.unit_size().0))
    }

    /// Returns the memory that remains allocated.
    pub fn kept_bytes(&self) -> Bytes {
        let pages = self.unit_plan.units.saturating_mul(self.layout.kept_pages_per_unit());
        Bytes(pages.saturating_mul(self.facts.page_size.bytes()))
    }

    /// Returns the maximum memory held at any time.
    pub fn held_max(&self) -> Bytes {
        self.facts.max_held_bytes(self.allocation_method, self.layout, self.unit_plan.units)
    }

    /// Returns a digest of the kept pages.
    pub fn digest(&self) -> u64 {
        self.layout.digest(self.seed, self.unit_plan.units)
    }

    /// Returns the units to fill first with base pages, with a margin for pages that move in the meantime.
    pub fn fill_units(&self) -> u64 {
        FragmentInputs::add_margin(self.unit_plan.units).min(self.units_max)
    }

    /// Returns the name of the zone: `node 0, zone Normal`.
    pub fn zone_name(&self) -> String {
        format!("node {}, zone {}", self.facts.zone.node.0, self.facts.zone.zone)
    }
}

fn resolve_order(args: &FragmentOptions, facts: &FragmentInputs) -> Result<Order, Failure> {
    let orders = facts.free_areas.orders();
    let Some(text) = &args.order else { return Ok(facts.unit_order) };
    let order = text.parse::<u8>().ok().filter(|&order| usize::from(order) < orders).ok_or_else(|| {
        let most = orders.saturating_sub(1);
        usage_error(&format!("--order {text}: expected 0 to {most}"))
    })?;
    if order == 0 {
        return Err(usage_error("--order 0: F_u(0) is always 0; expected 1 or more"));
    }
    Ok(Order(order))
}

fn no_room_failure(facts: &FragmentInputs, reserve: Reserve) -> Failure {
    let (available, kept) = (format_bytes(facts.mem_available), format_bytes(reserve.0));
    let group = facts.cgroup_headroom.map(|room| format!(", the cgroup has {} left", format_bytes(room)));
    let reason = format!("{available} is available, {kept} is reserved{}", group.unwrap_or_default());
    Failure::cannot(FailureKind::NotAvailable, "fragment memory", reason)
        .hint("stop other programs, or use a smaller --reserve")
}

fn below_reserve_failure(
    facts: &FragmentInputs,
    requested_units: u64,
    room_units: u64,
    reserve: Reserve,
) -> Failure {
    let of = |units: u64| Bytes(units.saturating_mul(facts.unit_size().0));
    usage_error(&format!(
        "--size {} exceeds the available memory less the reserve of {}: without huge pages, all of it is \
         held at once, and {} is available; hint: use at most --size {}, or a smaller --reserve",
        format_argument(of(requested_units)),
        format_bytes(reserve.0),
        format_bytes(facts.mem_available),
        format_argument(of(room_units))
    ))
}

struct UnreachableTarget<'p> {
    facts: &'p FragmentInputs,
    goal: &'p FragmentationGoal,
    allocation_method: FillMethod,
    layout: KeepPattern,
    reserve: Reserve,
    /// Units of `--size`.
    requested_units: Option<u64>,
    /// Units that the reserve allows.
    room_units: u64,
}

impl UnreachableTarget<'_> {
    fn explain(&self, unreachable: TargetError, areas: &FreeAreas) -> Failure {
        let (order, target) = (self.goal.order.0, self.goal.target);
        let zone = format!("node {}, zone {}", self.facts.zone.node.0, self.facts.zone.zone);
        match unreachable {
            TargetError::BelowCurrent { unusable_min: least } => {
                let at = format_share(least);
                let other =
                    if least < 0.995 { format!("use a target of at least {at}, or ") } else { String::new() };
                usage_error(&format!(
                    "cannot reach F_u({order}) = {target}: {zone} is already at {at}, and fragmenting cannot \
                     lower it; hint: {other}compact first: pagelab compact"
                ))
            }
            TargetError::AboveReach { unusable_max: most } => {
                let with = match self.requested_units {
                    Some(units) => format!(" with {} of memory", self.memory_share(units)),
                    None => " on this machine now".to_owned(),
                };
                let suitable_blocks =
                    u64::try_from(areas.blocks_suitable(self.layout.unit_order)).unwrap_or(u64::MAX);
                let most = format_share(most);
                let reason =
                    if self.requested_units.is_some_and(|units| units < self.room_units.min(suitable_blocks))
                    {
                        "free memory beyond --size stays unfragmented"
                    } else if self.room_units < suitable_blocks {
                        "more would exceed the reserve"
                    } else {
                        "then no block of this order is left in the zone, only smaller ones"
                    };
                usage_error(&format!(
                    "cannot reach F_u({order}) = {target}{with}: the maximum is {most} ({reason}); hint: use \
                     {}a target up to {most}",
                    self.larger_size(areas).unwrap_or_default()
                ))
            }
        }
    }

    /// Returns the sufficient size, if the reserve allows it.
    fn larger_size(&self, areas: &FreeAreas) -> Option<String> {
        self.requested_units?;
        let plan = fragment_plan::plan_fragmentation(areas, self.goal, self.layout, self.room_units).ok()?;
        let held = self.facts.max_held_bytes(self.allocation_method, self.layout, plan.units);
        let leaves = Bytes(self.facts.mem_available.0.saturating_sub(held.0));
        Some(format!(
            "--size {} (leaves {}; the reserve is {}), or ",
            self.memory_share(plan.units),
            format_bytes(leaves),
            format_bytes(self.reserve.0)
        ))
    }

    /// Formats a share of all memory, rounded up.
    fn memory_share(&self, units: u64) -> String {
        let share = units as f64 * self.facts.unit_size().0 as f64 / self.facts.mem_total.0.max(1) as f64;
        format!("{}%", (share * 100.0).ceil())
    }
}

fn plan_notes(
    args: &FragmentOptions,
    facts: &FragmentInputs,
    goal: &FragmentationGoal,
    snapshot: &Snapshot,
) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(no) = &facts.huge_page_obstacle {
        let hint =
            if no.is_thp_mode_only { "; hint: --allow-thp sets it to madvise during the run" } else { "" };
        notes.push(format!(
            "huge pages are not available, so this takes several times longer: {}{hint}",
            no.reason
        ));
    }
    if facts.has_swap {
        notes.push("swap is enabled: kept pages that cannot be locked may be swapped out".to_owned());
    }
    // Above this the kernel compacts in the background (mm/compaction.c, `fragmentation_score_wmark`, 5.9).
    let compacts_from = facts.proactiveness.map(|value| (110 - value.min(100)).min(100) as f64 / 100.0);
    if let Some(from) = compacts_from.filter(|&from| goal.target > from && !args.pause_compaction) {
        notes.push(format!(
            "proactive compaction starts above an F_u of {from:.2} for huge pages and will undo the effect; \
             hint: --pause-compaction disables it, --keep-to-target corrects the index"
        ));
    }
    if snapshot.taken.euid.is_some_and(|euid| euid != 0) {
        notes.push("without root, the result can be verified only by buddyinfo".to_owned());
    }
    notes
}
