//! What a machine has and allows, as far as fragmenting it depends on it.

use pagelab_metrics::balance::FreeBalance;
use pagelab_metrics::fragment_plan::Shape;
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Bytes, FreeAreas, NodeId, Order, PageSize, Pages, Snapshot};
use pagelab_sys::thp_disable::{self, ThpDisable};
use rustix::process::{Resource, getrlimit};

use super::{Error, ErrorKind};
use crate::reserve::Reserve;

/// Left in a control group for everything else of this process and the group: this, or 5 % of its limit.
const CGROUP_MARGIN_MIN: u64 = 64 << 20;
/// Address space for all else of this process.
const ADDRESS_MARGIN: u64 = 256 << 20;
/// Memory that is taken at a time, so that it is held whole at one moment.
const BATCH: u64 = 128 << 20;
/// Units of address space beyond a plan with its margin, for what moves meanwhile.
const SLACK_UNITS: u64 = 64;

/// How memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Huge pages, split and given back a few at a time: little is held at any moment.
    HugePages,
    /// Base pages: all of it is held before the first is given back, because what is given back would be
    /// taken again.
    BasePages,
}

/// The facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Bytes of a base page.
    pub page_size: PageSize,
    /// Order of what is taken at a time.
    pub unit: Order,
    /// The node's largest zone, whose F_u is the target.
    pub zone: ZoneKey,
    /// Its free lists.
    pub areas: FreeAreas,
    /// Free pages that stand on no list yet; they come whole, on first use.
    pub deferred: Pages,
    /// Nodes with memory.
    pub nodes: Vec<NodeId>,
    /// All memory.
    pub mem_total: Bytes,
    /// Memory that can be had without swapping.
    pub mem_available: Bytes,
    /// What this process's control groups leave, if they limit it.
    pub group_room: Option<Bytes>,
    /// Whether something can be swapped out.
    pub has_swap: bool,
    /// How much more address space can be promised, where the kernel counts it (`overcommit_memory` 2).
    pub commit_room: Option<Bytes>,
    /// `RLIMIT_AS`, if there is a limit.
    pub address_limit: Option<Bytes>,
    /// Why huge pages cannot be had by `madvise`, if they cannot.
    pub no_huge_pages: Option<NoHugePages>,
    /// `vm.compaction_proactiveness` (5.9), if the kernel compacts by itself.
    pub proactiveness: Option<u64>,
}

/// Why there are no huge pages, and whether a setting would change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoHugePages {
    /// In words.
    pub why: String,
    /// The mode `never` is the only reason.
    pub is_mode: bool,
}

impl Facts {
    /// The facts of a live machine's snapshot, for a node or for the largest zone of all.
    pub fn of(snapshot: &Snapshot, node: Option<NodeId>) -> Result<Facts, Error> {
        let unread = |absence: &pagelab_model::Absence| {
            let text = format!("{} cannot be read: {}", absence.source, absence.reason());
            Error::new(ErrorKind::NotAvailable, text)
        };
        let buddy = snapshot.buddyinfo.as_ref().map_err(unread)?;
        let meminfo = snapshot.meminfo.as_ref().map_err(unread)?;
        let zone = largest_zone(snapshot, node)?;
        let areas = buddy.zone(&zone).cloned().unwrap_or_default();
        let amount = |name: &str| meminfo.bytes(name);
        let mem_available = meminfo.available().unwrap_or_default();
        let page_size = snapshot.machine.page_size;
        let pmd_size = snapshot.settings.thp.as_ref().ok().and_then(|thp| thp.pmd_size.clone().ok());
        let unit = pmd_size.and_then(|size| page_size.order_of(size)).unwrap_or(snapshot.pmd_order);
        let group = snapshot.machine.cgroup.as_ref().ok();
        let room = group.and_then(|group| {
            let limit = group.memory_limit?;
            let margin = (limit.0 / 20).max(CGROUP_MARGIN_MIN);
            Some(Bytes(group.memory_room.unwrap_or_default().0.saturating_sub(margin)))
        });
        let overcommit = snapshot.settings.vm.get("overcommit_memory");
        let commit = || Some(amount("CommitLimit")?.0.saturating_sub(amount("Committed_AS")?.0));
        Ok(Facts {
            page_size,
            // A kernel whose largest block is smaller than a huge page cannot hold one in a block.
            unit: Order(unit.0.min(u8::try_from(areas.orders().saturating_sub(1)).unwrap_or(unit.0))),
            zone,
            areas,
            deferred: FreeBalance::of_snapshot(snapshot).map_or(Pages(0), |balance| balance.deferred()),
            nodes: nodes(snapshot),
            mem_total: amount("MemTotal").unwrap_or_default(),
            mem_available,
            group_room: room,
            has_swap: amount("SwapTotal").is_some_and(|swap| swap.0 > 0),
            commit_room: (overcommit == Some(2)).then(commit).flatten().map(Bytes),
            address_limit: getrlimit(Resource::As).current.map(Bytes),
            no_huge_pages: no_huge_pages(snapshot),
            proactiveness: snapshot.settings.vm.get("compaction_proactiveness").filter(|&value| value > 0),
        })
    }

    /// How the memory is taken here.
    pub fn way(&self) -> Way {
        if self.no_huge_pages.is_none() { Way::HugePages } else { Way::BasePages }
    }

    /// What is kept of what is taken, for blocks of `order`.
    pub fn shape(&self, way: Way, order: Order) -> Shape {
        match way {
            Way::HugePages => Shape::fewest(self.unit, order),
            Way::BasePages => Shape::unaligned(self.unit, order),
        }
    }

    /// The free lists once all memory is initialised: what stands on no list yet comes as whole blocks.
    pub fn areas_initialised(&self) -> FreeAreas {
        let mut areas = self.areas.clone();
        let top = areas.orders().saturating_sub(1);
        if let Some(count) = areas.counts_mut().last_mut() {
            *count = count.saturating_add(self.deferred.0 >> top.min(63));
        }
        areas
    }

    /// Bytes of a unit.
    pub fn unit_bytes(&self) -> Bytes {
        self.page_size.block(self.unit)
    }

    /// Units that are taken at a time.
    pub fn batch(&self) -> u64 {
        (BATCH / self.unit_bytes().0.max(1)).max(1)
    }

    /// How many units can be taken without going below the reserve, at any moment.
    pub fn units_within(&self, way: Way, shape: Shape, reserve: Reserve) -> u64 {
        let room = reserve.room(self.mem_available);
        let room = self.group_room.map_or(room, |group| room.min(group));
        let unit = self.unit_bytes().0.max(1);
        match way {
            Way::BasePages => room.0 / unit,
            Way::HugePages => {
                // Beside the kept pages a unit holds a page of page tables.
                let each = (shape.kept_per_unit() + 1).saturating_mul(self.page_size.bytes());
                room.0.saturating_sub(self.batch() * unit) / each.max(1)
            }
        }
    }

    /// The most memory that is held at one moment while so many units are taken.
    pub fn held_max(&self, way: Way, shape: Shape, units: u64) -> Bytes {
        let unit = self.unit_bytes().0;
        let each = (shape.kept_per_unit() + 1).saturating_mul(self.page_size.bytes());
        match way {
            Way::BasePages => Bytes(units.saturating_mul(unit + self.page_size.bytes())),
            Way::HugePages => Bytes(units.saturating_mul(each) + self.batch().min(units) * unit),
        }
    }

    /// Units to take where so many are planned: a twentieth more, for what moves meanwhile.
    pub fn with_margin(planned: u64) -> u64 {
        planned + planned / 20
    }

    /// An error if the address space for so many planned units, and what is taken beyond them, is not to be
    /// had.
    pub fn check_plan(&self, planned: u64) -> Result<(), Error> {
        self.check_address_space(Facts::with_margin(planned) + SLACK_UNITS)
    }

    /// An error if the address space for so many units is not to be had.
    pub fn check_address_space(&self, units: u64) -> Result<(), Error> {
        let wanted = units.saturating_mul(self.unit_bytes().0);
        let mib = |bytes: u64| bytes >> 20;
        if let Some(room) = self.address_limit
            && room.0 < wanted.saturating_add(ADDRESS_MARGIN)
        {
            return Err(Error::new(
                ErrorKind::NotAvailable,
                format!(
                    "{} MiB of address space are wanted, and the limit of this process is {} MiB: raise it \
                     (ulimit -v unlimited), or give a smaller --size",
                    mib(wanted),
                    mib(room.0)
                ),
            ));
        }
        match self.commit_room {
            Some(room) if room.0 < wanted => Err(Error::new(
                ErrorKind::NotAvailable,
                format!(
                    "{} MiB are wanted, and with vm.overcommit_memory 2 only {} MiB more can be promised \
                     (CommitLimit less Committed_AS): a smaller --size, or vm.overcommit_memory 0",
                    mib(wanted),
                    mib(room.0)
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// The largest zone by managed pages, or by free pages where zoneinfo cannot be read.
fn largest_zone(snapshot: &Snapshot, node: Option<NodeId>) -> Result<ZoneKey, Error> {
    let buddy = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let managed = |key: &ZoneKey| {
        let zone = snapshot.zoneinfo.as_ref().ok()?.zone(key)?;
        zone.managed.map(|pages| u128::from(pages.0))
    };
    let size = |zone: &pagelab_model::ZoneFree| managed(&zone.key).unwrap_or(zone.areas.free_pages());
    let of_node = buddy.iter().filter(|zone| node.is_none_or(|node| zone.key.node == node));
    of_node.max_by_key(|zone| size(zone)).map(|zone| zone.key.clone()).ok_or_else(|| {
        let there: Vec<String> = nodes(snapshot).iter().map(|node| node.0.to_string()).collect();
        let text = match node {
            Some(node) => format!("no node {} with memory; there are: {}", node.0, there.join(", ")),
            None => "buddyinfo has no zone".to_owned(),
        };
        Error::new(if node.is_some() { ErrorKind::Usage } else { ErrorKind::NotAvailable }, text)
    })
}

fn nodes(snapshot: &Snapshot) -> Vec<NodeId> {
    let zones = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let mut nodes: Vec<NodeId> = zones.iter().map(|zone| zone.key.node).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

fn no_huge_pages(snapshot: &Snapshot) -> Option<NoHugePages> {
    let fixed = |why: String| Some(NoHugePages { why, is_mode: false });
    let thp = match &snapshot.settings.thp {
        Ok(thp) => thp,
        Err(absence) => return fixed(absence.reason().to_owned()),
    };
    if thp_disable::get() == ThpDisable::All {
        return fixed("they are switched off for this process (PR_SET_THP_DISABLE)".to_owned());
    }
    let mode = thp.enabled.as_ref().map(|choice| choice.selected()).unwrap_or("never");
    let pmd = thp.pmd_size.as_ref().ok();
    let own =
        thp.sizes.iter().find(|size| Some(&size.size) == pmd).and_then(|size| size.enabled.as_ref().ok());
    let in_force = match own.map(|choice| choice.selected()) {
        None | Some("inherit") => mode,
        Some(own) => own,
    };
    let why = || "the mode of transparent huge pages is never".to_owned();
    (in_force == "never").then(|| NoHugePages { why: why(), is_mode: own.is_none() || mode == "never" })
}
