//! The tracer's state: processes, their address spaces, and the huge-page targets in these.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use pagelab_model::Bytes;
use pagelab_model::huge_plan::{HugePlan, PlannedMapping};
use pagelab_model::profile::{MappingIdentity, MappingKind};
use pagelab_tlb::engine::mapping_table::{MappedKind, MappingId, MappingKey, MappingTable};

use super::accounting::Accounting;
use super::heap::ProgramBreak;
use super::region_placement;
use super::requests::Request;
use super::{HugePageChoice, SupervisorConfig};

pub(super) type AddressSpaceId = u32;

#[derive(Default)]
pub(super) struct TracerState {
    pub spaces: HashMap<AddressSpaceId, AddressSpace>,
    pub processes: HashMap<u32, Process>,
    pub accounting: Accounting,
    /// Calls of processes that other pagelab threads requested.
    pub requests: VecDeque<Request>,
    /// The tracer has ended: requests are not served any more.
    pub has_ended: bool,
    /// The number of the newest space.
    pub last_space: AddressSpaceId,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub space: AddressSpaceId,
    /// It has a seccomp filter of its own, which may deny injected calls, or kill it for them.
    pub has_own_filter: bool,
}

/// An address space: one for all that share memory.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressSpace {
    /// Its mappings. A fork shares the table until one of the two changes it.
    pub mapping_table: Arc<MappingTable>,
    /// The program's place in the plan.
    pub plan_index: Option<usize>,
    /// The huge-page targets.
    pub targets: Vec<HugePageTarget>,
    /// Ranges that the program itself advised (MADV_HUGEPAGE).
    pub own_advice: Vec<Range<u64>>,
    pub heap_start: u64,
    /// The heap's end, if the supervisor controls it.
    pub program_break: Option<ProgramBreak>,
    /// An instruction that makes a system call.
    pub syscall_address: Option<u64>,
    /// Processes in it.
    pub users: u32,
    /// The program switched huge pages off.
    pub is_thp_disabled: bool,
}

/// A range of memory that is requested on huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HugePageTarget {
    pub mapping: MappingId,
    /// Its offset in the mapping.
    pub offset: u64,
    pub range: Range<u64>,
    /// It is one region of a plan; else all of a mapping.
    pub is_region: bool,
    /// Most bytes of it on huge pages at any scan.
    pub allocated: u64,
    /// Most huge-page ranges of it with populated pages at any scan.
    pub touched: u64,
    /// Why not.
    pub reason: Option<String>,
    /// The program advised against it: it is not collapsed.
    pub is_opted_out: bool,
    /// A fork has it too, and it is not counted again.
    pub is_inherited: bool,
}

impl HugePageTarget {
    /// A region that was not scanned yet.
    pub fn new_region(mapping: MappingId, offset: u64, range: Range<u64>) -> HugePageTarget {
        HugePageTarget {
            mapping,
            offset,
            range,
            is_region: true,
            allocated: 0,
            touched: 0,
            reason: None,
            is_opted_out: false,
            is_inherited: false,
        }
    }
}

impl TracerState {
    /// A new space with one user.
    pub fn add_space(&mut self, space: AddressSpace) -> AddressSpaceId {
        self.last_space += 1;
        self.spaces.insert(self.last_space, AddressSpace { users: 1, ..space });
        self.last_space
    }

    /// The space of a process; `None` before its first exec and after its end.
    pub fn numbered_space_of(&mut self, pid: u32) -> Option<AddressSpaceId> {
        let number = self.processes.get(&pid)?.space;
        if self.spaces.contains_key(&number) {
            return Some(number);
        }
        debug_assert!(false, "process {pid} has no address space");
        self.accounting.add_note(format!("lost track of process {pid}: its huge pages are not counted"));
        None
    }

    pub fn space_of(&mut self, pid: u32) -> Option<&mut AddressSpace> {
        let number = self.numbered_space_of(pid)?;
        self.spaces.get_mut(&number)
    }

    /// A process left its space; its targets are counted when it was the last.
    pub fn leave_space(&mut self, number: AddressSpaceId) {
        let Entry::Occupied(mut entry) = self.spaces.entry(number) else {
            debug_assert!(false, "space {number} was left before");
            return;
        };
        debug_assert!(entry.get().users > 0, "space {number} has no users");
        entry.get_mut().users -= 1;
        if entry.get().users == 0 {
            self.accounting.count_all_targets(&entry.remove());
        }
    }
}

impl AddressSpace {
    /// The same memory in a forked child.
    pub fn fork(&self) -> AddressSpace {
        let mut forked = self.clone();
        forked.targets.iter_mut().for_each(|target| target.is_inherited = true);
        forked.program_break = self.program_break.as_ref().map(ProgramBreak::fork);
        forked
    }

    pub fn mapping_table_mut(&mut self) -> &mut MappingTable {
        Arc::make_mut(&mut self.mapping_table)
    }

    /// The targets in a mapping at these addresses.
    pub fn find_targets(
        &self,
        spec: &SupervisorConfig,
        mapping: MappingId,
        addresses: &Range<u64>,
    ) -> Vec<HugePageTarget> {
        let Some((_, offset)) = self.mapping_table.find(addresses.start) else { return Vec::new() };
        let made = self.mapping_table.mapping(mapping);
        let target = |offset, at, is_region| HugePageTarget {
            is_region,
            ..HugePageTarget::new_region(mapping, offset, at)
        };
        match &spec.choice {
            HugePageChoice::Nothing => Vec::new(),
            HugePageChoice::All => {
                let is_target = matches!(made.key.kind, MappedKind::Anonymous)
                    && made.bytes >= spec.huge
                    && addresses.start < addresses.end;
                let all = || target(offset, addresses.clone(), false);
                is_target.then(all).into_iter().collect()
            }
            HugePageChoice::Plan(plan) => self
                .planned_mappings(plan, &made.key, addresses)
                .into_iter()
                .flat_map(|planned| region_placement::place_regions(planned, addresses, offset, spec.huge))
                .map(|placed| target(placed.offset, placed.range, true))
                .collect(),
        }
    }

    /// The mappings of the plan that match this one: by key, or by address.
    pub fn planned_mappings<'p>(
        &self,
        plan: &'p HugePlan,
        key: &MappingKey,
        addresses: &Range<u64>,
    ) -> Vec<&'p PlannedMapping> {
        let Some(program) = self.plan_index.and_then(|at| plan.programs.get(at)) else { return Vec::new() };
        let is_match = |planned: &&PlannedMapping| match planned.key.kind {
            MappingKind::Placed => planned
                .regions
                .iter()
                .any(|r| r.offset < addresses.end && r.offset.saturating_add(r.page.0) > addresses.start),
            _ => planned.key == to_mapping_identity(key),
        };
        program.mappings.iter().filter(is_match).collect()
    }

    /// The heap's mapping.
    pub fn find_heap_mapping(&self) -> Option<MappingId> {
        let found = self.mapping_table.mappings().iter().position(|made| made.key.kind == MappedKind::Heap);
        found.and_then(|at| u32::try_from(at).ok()).map(MappingId)
    }

    /// Removes the targets in this range, and returns them.
    pub fn remove_targets(&mut self, range: &Range<u64>) -> Vec<HugePageTarget> {
        self.targets.extract_if(.., |target| ranges_overlap(&target.range, range)).collect()
    }
}

impl SupervisorConfig {
    /// Adds the targets in mappings that the kernel made before the program ran: its file, its stack. They
    /// can only be collapsed after the first touch.
    pub(super) fn add_initial_targets(&self, space: &mut AddressSpace, tally: &mut Accounting) {
        if space.plan_index.is_none() {
            return;
        }
        for at in 0..space.mapping_table.mappings().len() {
            let mapping = MappingId(u32::try_from(at).unwrap_or(u32::MAX));
            let places: Vec<Range<u64>> =
                space.mapping_table.spans_of(mapping).map(|(range, _)| range).collect();
            for range in places {
                self.record_planned(space, mapping, &range, tally);
                let targets = space.find_targets(self, mapping, &range);
                space.targets.extend(targets);
            }
        }
    }

    /// Records that planned mappings appeared.
    pub(super) fn record_planned(
        &self,
        space: &AddressSpace,
        mapping: MappingId,
        addresses: &Range<u64>,
        tally: &mut Accounting,
    ) {
        let (HugePageChoice::Plan(plan), Some(program)) = (&self.choice, space.plan_index) else { return };
        let key = &space.mapping_table.mapping(mapping).key;
        for planned in space.planned_mappings(plan, key, addresses) {
            let nth = plan.programs[program].mappings.iter().position(|known| std::ptr::eq(known, planned));
            tally.seen_mappings.extend(nth.map(|nth| (program, nth)));
        }
    }
}

/// The identity of a mapping in a profile.
pub(crate) fn to_mapping_identity(key: &MappingKey) -> MappingIdentity {
    let kind = match &key.kind {
        MappedKind::Anonymous => MappingKind::Anonymous,
        MappedKind::Shared => MappingKind::Shared,
        MappedKind::Heap => MappingKind::Heap,
        MappedKind::Stack => MappingKind::Stack,
        MappedKind::File(path) => MappingKind::File(path.clone()),
    };
    MappingIdentity { kind, bytes: Bytes(key.bytes), nth: key.nth }
}

/// Whether two ranges have an address in common.
pub(super) fn ranges_overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_ends_with_its_last_process() {
        let mut state = TracerState::default();
        let number = state.add_space(AddressSpace::default());
        state.processes.insert(7, Process { space: number, has_own_filter: false });
        state.spaces.get_mut(&number).unwrap().users += 1;
        state.leave_space(number);
        assert_eq!(state.numbered_space_of(7), Some(number));
        assert_eq!(state.numbered_space_of(8), None);
        state.processes.clear();
        state.leave_space(number);
        assert!(state.spaces.is_empty() && state.accounting.summary.notes.is_empty());
    }

    #[test]
    #[should_panic(expected = "process 7 has no address space")]
    fn a_process_without_a_space_is_a_bug() {
        let mut state = TracerState::default();
        state.processes.insert(7, Process { space: 1, has_own_filter: false });
        state.space_of(7);
    }
}
