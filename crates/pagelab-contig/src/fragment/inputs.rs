//! Inputs of a fragmentation run: capacity, limits and settings of the machine.

use pagelab_metrics::balance::FreeBalance;
use pagelab_metrics::fragment_plan::KeepPattern;
use pagelab_model::free_areas::ZoneKey;
use pagelab_model::size::format_bytes;
use pagelab_model::{Bytes, Failure, FailureKind, FreeAreas, NodeId, Order, PageSize, Pages, Snapshot};
use pagelab_sys::thp_disable::{self, ThpDisable};
use rustix::process::{Resource, getrlimit};

use crate::reserve::Reserve;

/// Memory of a cgroup left for the rest of this process and the group: this, or 5 % of its limit.
const CGROUP_HEADROOM_MIN: u64 = 64 << 20;
/// Address space for the rest of this process.
const ADDRESS_SPACE_HEADROOM: u64 = 256 << 20;
/// Memory per allocation step; it is held completely for a moment.
const BATCH_BYTES: u64 = 128 << 20;
/// Units of address space beyond a plan with its margin, for pages that move meanwhile.
const SLACK_UNITS: u64 = 64;

/// Method of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillMethod {
    /// Huge pages, split and freed a few at a time, so that little memory is held.
    HugePages,
    /// Base pages: all are held before the first is freed, because freed pages would be allocated again.
    BasePages,
}

/// Inputs.
#[derive(Clone, Debug)]
pub struct FragmentInputs {
    /// Bytes of a base page.
    pub page_size: PageSize,
    /// Order of one allocation.
    pub unit_order: Order,
    /// Largest zone of the node; its F_u is the target.
    pub zone: ZoneKey,
    /// Its free lists.
    pub free_areas: FreeAreas,
    /// Free pages on no list yet (deferred); they are added in whole blocks on first use.
    pub deferred_pages: Pages,
    /// Nodes with memory.
    pub nodes: Vec<NodeId>,
    /// All memory.
    pub mem_total: Bytes,
    /// Memory that is available without swapping.
    pub mem_available: Bytes,
    /// Memory that this process's cgroups leave, if they limit it.
    pub cgroup_headroom: Option<Bytes>,
    /// Whether there is swap space.
    pub has_swap: bool,
    /// Address space that can still be committed, if the kernel limits it (`overcommit_memory` 2).
    pub commit_headroom: Option<Bytes>,
    /// `RLIMIT_AS`, if there is a limit.
    pub address_space_limit: Option<Bytes>,
    /// Reason why `madvise` cannot give huge pages, if it cannot.
    pub huge_page_obstacle: Option<HugePageObstacle>,
    /// `vm.compaction_proactiveness` (5.9), if the kernel compacts by itself.
    pub proactiveness: Option<u64>,
}

/// Why there are no huge pages, and whether a setting would change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePageObstacle {
    /// The reason.
    pub reason: String,
    /// The mode `never` is the only reason.
    pub is_thp_mode_only: bool,
}

impl FragmentInputs {
    /// Inputs from a live machine's snapshot, for a node or for the largest zone.
    pub fn from_snapshot(snapshot: &Snapshot, node: Option<NodeId>) -> Result<FragmentInputs, Failure> {
        let unread = |absence: &pagelab_model::Absence| {
            let text = format!("cannot read {}: {}", absence.source, absence.reason());
            Failure::new(FailureKind::NotAvailable, text)
        };
        let buddy = snapshot.buddyinfo.as_ref().map_err(unread)?;
        let meminfo = snapshot.meminfo.as_ref().map_err(unread)?;
        let zone = find_largest_zone(snapshot, node)?;
        let areas = buddy.zone(&zone).cloned().unwrap_or_default();
        let amount = |name: &str| meminfo.bytes(name);
        let mem_available = meminfo.available_bytes().unwrap_or_default();
        let page_size = snapshot.machine.page_size;
        let unit = snapshot.pmd_order;
        let cgroup = snapshot.machine.cgroup.as_ref().ok();
        let room = cgroup.and_then(|group| {
            let limit = group.memory_limit?;
            let margin = (limit.0 / 20).max(CGROUP_HEADROOM_MIN);
            Some(Bytes(group.memory_room.unwrap_or_default().0.saturating_sub(margin)))
        });
        let overcommit = snapshot.settings.vm.get("overcommit_memory");
        let commit = || Some(amount("CommitLimit")?.0.saturating_sub(amount("Committed_AS")?.0));
        Ok(FragmentInputs {
            page_size,
            // A kernel whose largest block is smaller than a huge page cannot hold one in a block.
            unit_order: Order(unit.0.min(u8::try_from(areas.orders().saturating_sub(1)).unwrap_or(unit.0))),
            zone,
            free_areas: areas,
            deferred_pages: FreeBalance::from_snapshot(snapshot)
                .map_or(Pages(0), |balance| balance.deferred_pages()),
            nodes: list_nodes(snapshot),
            mem_total: amount("MemTotal").unwrap_or_default(),
            mem_available,
            cgroup_headroom: room,
            has_swap: amount("SwapTotal").is_some_and(|swap| swap.0 > 0),
            commit_headroom: (overcommit == Some(2)).then(commit).flatten().map(Bytes),
            address_space_limit: getrlimit(Resource::As).current.map(Bytes),
            huge_page_obstacle: find_huge_page_obstacle(snapshot),
            proactiveness: snapshot.settings.vm.get("compaction_proactiveness").filter(|&value| value > 0),
        })
    }

    /// Method of allocation here.
    pub fn fill_method(&self) -> FillMethod {
        if self.huge_page_obstacle.is_none() { FillMethod::HugePages } else { FillMethod::BasePages }
    }

    /// Kept pages per unit, for blocks of `order`.
    pub fn keep_pattern(&self, method: FillMethod, order: Order) -> KeepPattern {
        match method {
            FillMethod::HugePages => KeepPattern::for_aligned_units(self.unit_order, order),
            FillMethod::BasePages => KeepPattern::for_unaligned_units(self.unit_order, order),
        }
    }

    /// Free lists after initialisation of all memory: deferred memory is added as whole blocks.
    pub fn initialized_free_areas(&self) -> FreeAreas {
        let mut areas = self.free_areas.clone();
        let top = areas.orders().saturating_sub(1);
        if let Some(count) = areas.counts_mut().last_mut() {
            *count = count.saturating_add(self.deferred_pages.0 >> top.min(63));
        }
        areas
    }

    /// Bytes of a unit.
    pub fn unit_size(&self) -> Bytes {
        self.page_size.block_bytes(self.unit_order)
    }

    /// Units per allocation step.
    pub fn units_per_batch(&self) -> u64 {
        (BATCH_BYTES / self.unit_size().0.max(1)).max(1)
    }

    /// Number of units that can be allocated without going below the reserve at any moment.
    pub fn max_units_within(&self, method: FillMethod, pattern: KeepPattern, reserve: Reserve) -> u64 {
        let room = reserve.headroom(self.mem_available);
        let room = self.cgroup_headroom.map_or(room, |group| room.min(group));
        let unit_bytes = self.unit_size().0.max(1);
        match method {
            FillMethod::BasePages => room.0 / unit_bytes,
            FillMethod::HugePages => {
                // Besides the kept pages a unit needs a page of page tables.
                let each = (pattern.kept_pages_per_unit() + 1).saturating_mul(self.page_size.bytes());
                room.0.saturating_sub(self.units_per_batch() * unit_bytes) / each.max(1)
            }
        }
    }

    /// Peak of the memory held while this number of units is allocated.
    pub fn max_held_bytes(&self, method: FillMethod, pattern: KeepPattern, units: u64) -> Bytes {
        let unit = self.unit_size().0;
        let each = (pattern.kept_pages_per_unit() + 1).saturating_mul(self.page_size.bytes());
        match method {
            FillMethod::BasePages => Bytes(units.saturating_mul(unit + self.page_size.bytes())),
            FillMethod::HugePages => {
                Bytes(units.saturating_mul(each) + self.units_per_batch().min(units) * unit)
            }
        }
    }

    /// Units to allocate for this planned number: a twentieth more, for pages that move meanwhile.
    pub fn add_margin(planned: u64) -> u64 {
        planned + planned / 20
    }

    /// Fails if the address space for the planned units, and the reserve beyond them, is not available.
    pub fn check_plan(&self, planned: u64) -> Result<(), Failure> {
        self.check_address_space(FragmentInputs::add_margin(planned) + SLACK_UNITS)
    }

    /// Fails if the address space for this many units is not available.
    pub fn check_address_space(&self, units: u64) -> Result<(), Failure> {
        let required_bytes = units.saturating_mul(self.unit_size().0);
        let required = format_bytes(Bytes(required_bytes));
        let refuse = |message| Err(Failure::new(FailureKind::NotAvailable, message));
        if let Some(room) = self.address_space_limit
            && room.0 < required_bytes.saturating_add(ADDRESS_SPACE_HEADROOM)
        {
            return refuse(format!(
                "cannot fragment memory: {required} of address space are needed, but the limit of this \
                 process is {}; hint: use ulimit -v unlimited, or a smaller --size",
                format_bytes(room)
            ));
        }
        match self.commit_headroom {
            Some(room) if room.0 < required_bytes => refuse(format!(
                "cannot fragment memory: {required} are needed, but with vm.overcommit_memory=2 only {} can \
                 be committed (CommitLimit minus Committed_AS); hint: use a smaller --size, or \
                 vm.overcommit_memory=0",
                format_bytes(room)
            )),
            _ => Ok(()),
        }
    }
}

/// The largest zone by managed pages, or by free pages if zoneinfo cannot be read.
fn find_largest_zone(snapshot: &Snapshot, node: Option<NodeId>) -> Result<ZoneKey, Failure> {
    let buddy = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let managed = |key: &ZoneKey| {
        let zone = snapshot.zoneinfo.as_ref().ok()?.zone(key)?;
        zone.managed.map(|pages| u128::from(pages.0))
    };
    let size = |zone: &pagelab_model::ZoneFreeAreas| managed(&zone.key).unwrap_or(zone.areas.free_pages());
    let of_node = buddy.iter().filter(|zone| node.is_none_or(|node| zone.key.node == node));
    of_node.max_by_key(|zone| size(zone)).map(|zone| zone.key.clone()).ok_or_else(|| {
        let nodes: Vec<String> = list_nodes(snapshot).iter().map(|node| node.0.to_string()).collect();
        let (kind, text) = match node {
            Some(node) => {
                let text = format!("unknown node `{}`; expected one of {}", node.0, nodes.join(", "));
                (FailureKind::Usage, text)
            }
            None => (FailureKind::NotAvailable, "cannot choose a zone: buddyinfo has none".to_owned()),
        };
        Failure::new(kind, text)
    })
}

fn list_nodes(snapshot: &Snapshot) -> Vec<NodeId> {
    let zones = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
    let mut nodes: Vec<NodeId> = zones.iter().map(|zone| zone.key.node).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

fn find_huge_page_obstacle(snapshot: &Snapshot) -> Option<HugePageObstacle> {
    let fixed = |why: String| Some(HugePageObstacle { reason: why, is_thp_mode_only: false });
    let thp = match &snapshot.settings.thp {
        Ok(thp) => thp,
        Err(absence) => return fixed(absence.reason().to_owned()),
    };
    if thp_disable::read_thp_disable() == ThpDisable::All {
        return fixed("THP is disabled for this process (PR_SET_THP_DISABLE)".to_owned());
    }
    let mode = thp.enabled.as_ref().map(|choice| choice.selected()).unwrap_or("never");
    let pmd = thp.pmd_size.as_ref().ok();
    let size_mode =
        thp.sizes.iter().find(|size| Some(&size.size) == pmd).and_then(|size| size.enabled.as_ref().ok());
    let in_force = match size_mode.map(|choice| choice.selected()) {
        None | Some("inherit") => mode,
        Some(own) => own,
    };
    let why = || "the THP mode is never".to_owned();
    (in_force == "never")
        .then(|| HugePageObstacle { reason: why(), is_thp_mode_only: size_mode.is_none() || mode == "never" })
}
