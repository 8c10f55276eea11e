//! From arguments and a look at the machine to what will be done, or to the refusal that says what would do.

use pagelab_contig::fragment::facts::{Facts, Way};
use pagelab_contig::reserve::Reserve;
use pagelab_metrics::frag::share_text;
use pagelab_metrics::fragment_plan::{self, FragmentPlan, Goal, Shape, Unreachable};
use pagelab_model::{Bytes, FreeAreas, NodeId, Order, Snapshot};
use pagelab_report::style::bytes;

use super::size::Size;
use super::{Args, failure};
use crate::cmd::usage;
use crate::exit::{Exit, Failure};

/// What will be done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The machine.
    pub facts: Facts,
    /// The target.
    pub goal: Goal,
    /// How memory is taken.
    pub way: Way,
    /// Which pages are kept.
    pub shape: Shape,
    /// Left to everybody else.
    pub reserve: Reserve,
    /// The node that memory is bound to, where there are several.
    pub bind: Option<NodeId>,
    /// Seed of which pages are kept.
    pub seed: u64,
    /// Units that may be taken.
    pub units_max: u64,
    /// Units and where they lead.
    pub planned: FragmentPlan,
    /// Whether the mode of huge pages is changed meanwhile.
    pub switches_thp_on: bool,
    /// Whether the kernel's own compaction is stopped meanwhile.
    pub pauses_compaction: bool,
    /// What somebody should know before it starts.
    pub notes: Vec<String>,
}

impl Plan {
    /// All checks, and all defaults.
    pub fn resolve(args: &Args, snapshot: &Snapshot) -> Result<Plan, Failure> {
        let target = target(args)?;
        let size = args.size.as_deref().map(|text| Size::parse("--size", text)).transpose()?;
        let reserve = args.reserve.as_deref().map(|text| Size::parse("--reserve", text)).transpose()?;
        let mut facts = Facts::of(snapshot, args.node.map(NodeId)).map_err(|error| failure(&error))?;
        let order = order(args, &facts)?;
        let switches_thp_on = args.allow_thp && facts.no_huge_pages.as_ref().is_some_and(|no| no.is_mode);
        if switches_thp_on {
            facts.no_huge_pages = None;
        }
        let reserve = match reserve {
            Some(size) => Reserve(size.of(facts.mem_total)),
            None => Reserve::of(facts.mem_total),
        };
        let goal = Goal { order, target, tolerance: Goal::TOLERANCE };
        let way = facts.way();
        let shape = facts.shape(way, order);
        let room = facts.units_within(way, shape, reserve);
        let asked = size.map(|size| size.of(facts.mem_total).0 / facts.unit_bytes().0);
        if asked == Some(0) {
            let unit = bytes(facts.unit_bytes());
            return Err(usage(&format!("--size: memory is taken by {unit}; that is the least")));
        }
        if room == 0 {
            return Err(no_room(&facts, reserve));
        }
        if let Some(asked) = asked.filter(|&asked| way == Way::BasePages && asked > room) {
            return Err(below_reserve(&facts, asked, room, reserve));
        }
        let units_max = asked.unwrap_or(u64::MAX).min(room);
        let areas = facts.areas_initialised();
        let planned = fragment_plan::plan(&areas, &goal, shape, units_max).map_err(|unreachable| {
            Refusal { facts: &facts, goal: &goal, way, shape, reserve, asked, room }.of(unreachable, &areas)
        })?;
        facts.check_plan(planned.units).map_err(|error| failure(&error))?;
        let bind = (facts.nodes.len() > 1).then_some(facts.zone.node);
        let notes = notes(args, &facts, &goal, snapshot);
        let (seed, pauses_compaction) = (args.seed, args.pause_compaction);
        Ok(Plan {
            facts,
            goal,
            way,
            shape,
            reserve,
            bind,
            seed,
            units_max,
            planned,
            switches_thp_on,
            pauses_compaction,
            notes,
        })
    }

    /// Memory that is broken up.
    pub fn size(&self) -> Bytes {
        Bytes(self.planned.units.saturating_mul(self.facts.unit_bytes().0))
    }

    /// Memory that stays taken.
    pub fn kept(&self) -> Bytes {
        let pages = self.planned.units.saturating_mul(self.shape.kept_per_unit());
        Bytes(pages.saturating_mul(self.facts.page_size.bytes()))
    }

    /// The most memory that is held at one moment.
    pub fn held_max(&self) -> Bytes {
        self.facts.held_max(self.way, self.shape, self.planned.units)
    }

    /// A number that stands for the pages kept.
    pub fn digest(&self) -> u64 {
        self.shape.digest(self.seed, self.planned.units)
    }

    /// Units to fill first, where memory is taken by base pages: what moves meanwhile needs some more.
    pub fn fill(&self) -> u64 {
        Facts::with_margin(self.planned.units).min(self.units_max)
    }

    /// `node 0, zone Normal`
    pub fn zone_name(&self) -> String {
        format!("node {}, zone {}", self.facts.zone.node.0, self.facts.zone.zone)
    }
}

fn target(args: &Args) -> Result<f64, Failure> {
    let Some(text) = &args.target else {
        return Err(usage("--target is missing: the F_u to reach, 0 to 1, such as --target 0.8"));
    };
    let value: Option<f64> = text.parse().ok();
    value.filter(|value| (0.0..=1.0).contains(value)).ok_or_else(|| {
        usage(&format!("--target {text}: F_u is a share of the free memory, a number from 0 to 1"))
    })
}

fn order(args: &Args, facts: &Facts) -> Result<Order, Failure> {
    let orders = facts.areas.orders();
    let Some(text) = &args.order else { return Ok(facts.unit) };
    let order = text.parse::<u8>().ok().filter(|&order| usize::from(order) < orders).ok_or_else(|| {
        let most = orders.saturating_sub(1);
        usage(&format!("--order {text}: this machine has orders 0 to {most}"))
    })?;
    if order == 0 {
        return Err(usage("--order 0: F_u(0) is 0 always; free memory can serve single pages: 1 or more"));
    }
    Ok(Order(order))
}

fn no_room(facts: &Facts, reserve: Reserve) -> Failure {
    let (available, kept) = (bytes(facts.mem_available), bytes(reserve.0));
    let group = facts.group_room.map(|room| format!(", the control group has room for {}", bytes(room)));
    Failure::new(
        Exit::NotAvailable,
        format!(
            "there is no memory to fragment: {available} are available, {kept} are the reserve{}; \
             end other programs, or give a smaller --reserve",
            group.unwrap_or_default()
        ),
    )
}

fn below_reserve(facts: &Facts, asked: u64, room: u64, reserve: Reserve) -> Failure {
    let of = |units: u64| bytes(Bytes(units.saturating_mul(facts.unit_bytes().0)));
    usage(&format!(
        "--size {} would go below the reserve of {}: without huge pages all of it is held at once, and {} \
         are available; --size {} is the most, or give a smaller --reserve",
        of(asked),
        bytes(reserve.0),
        bytes(facts.mem_available),
        of(room)
    ))
}

struct Refusal<'p> {
    facts: &'p Facts,
    goal: &'p Goal,
    way: Way,
    shape: Shape,
    reserve: Reserve,
    /// Units that `--size` asked for.
    asked: Option<u64>,
    /// Units that the reserve allows.
    room: u64,
}

impl Refusal<'_> {
    fn of(&self, unreachable: Unreachable, areas: &FreeAreas) -> Failure {
        let (order, target) = (self.goal.order.0, self.goal.target);
        let zone = format!("node {}, zone {}", self.facts.zone.node.0, self.facts.zone.zone);
        match unreachable {
            Unreachable::Below { least } => {
                let at = share_text(least);
                let target_on =
                    if least < 0.995 { format!("use a target from {at} on, or ") } else { String::new() };
                usage(&format!(
                    "cannot reach F_u({order}) = {target}: {zone} is at {at} already, and fragmenting \
                     makes nothing whole.\n  {target_on}first: pagelab compact"
                ))
            }
            Unreachable::Above { most } => {
                let with = match self.asked {
                    Some(units) => format!(" with {} of memory", self.share(units)),
                    None => " here now".to_owned(),
                };
                let whole = u64::try_from(areas.blocks_suitable(self.shape.unit)).unwrap_or(u64::MAX);
                let most = share_text(most);
                let why = if self.asked.is_some_and(|asked| asked < self.room.min(whole)) {
                    "free memory outside stays whole"
                } else if self.room < whole {
                    "more would go below the reserve"
                } else {
                    "then no whole block is left in the zone, and smaller ones stay as they are"
                };
                usage(&format!(
                    "cannot reach F_u({order}) = {target}{with}: {most} is the most ({why}).\n  use {}a \
                     target up to {most}.",
                    self.larger_size(areas).unwrap_or_default()
                ))
            }
        }
    }

    /// The size that would do, if the reserve allows it.
    fn larger_size(&self, areas: &FreeAreas) -> Option<String> {
        self.asked?;
        let plan = fragment_plan::plan(areas, self.goal, self.shape, self.room).ok()?;
        let held = self.facts.held_max(self.way, self.shape, plan.units);
        let leaves = Bytes(self.facts.mem_available.0.saturating_sub(held.0));
        Some(format!(
            "--size {} (leaves {}; the reserve is {}), or ",
            self.share(plan.units),
            bytes(leaves),
            bytes(self.reserve.0)
        ))
    }

    /// Of all memory, rounded up so that it is enough.
    fn share(&self, units: u64) -> String {
        let share = units as f64 * self.facts.unit_bytes().0 as f64 / self.facts.mem_total.0.max(1) as f64;
        format!("{}%", (share * 100.0).ceil())
    }
}

fn notes(args: &Args, facts: &Facts, goal: &Goal, snapshot: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(no) = &facts.no_huge_pages {
        let way_out = if no.is_mode { "; --allow-thp switches it to madvise meanwhile" } else { "" };
        notes.push(format!("without huge pages it takes several times as long: {}{way_out}", no.why));
    }
    if facts.has_swap {
        notes.push("there is swap: kept pages that cannot be locked may be swapped out".to_owned());
    }
    // Above this the kernel compacts in the background (mm/compaction.c, `fragmentation_score_wmark`, 5.9).
    let compacts_from = facts.proactiveness.map(|value| (110 - value.min(100)).min(100) as f64 / 100.0);
    if let Some(from) = compacts_from.filter(|&from| goal.target > from && !args.pause_compaction) {
        notes.push(format!(
            "the kernel compacts by itself where F_u of huge pages is above {from:.2}, and will undo it: \
             --pause-compaction stops that, --keep-to-target goes against it"
        ));
    }
    if snapshot.taken.euid.is_some_and(|euid| euid != 0) {
        notes.push("without root only buddyinfo tells what came of it".to_owned());
    }
    notes
}
