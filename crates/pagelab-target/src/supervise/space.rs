//! What is known of the processes: address spaces, who lives in which, and what of them is wanted on huge
//! pages.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use pagelab_model::Bytes;
use pagelab_model::huge_plan::{HugePlan, PlannedMapping};
use pagelab_model::profile::{MappingKey, MappingKind};
use pagelab_tlb::engine::ledger::{Key, Kind, Ledger, MappingId};

use super::heap::Break;
use super::place;
use super::requests::Request;
use super::tally::Tally;
use super::{Choice, Image, Spec};

/// An address space, by its number.
pub(super) type SpaceId = u32;

/// All of it.
#[derive(Default)]
pub(super) struct World {
    pub spaces: HashMap<SpaceId, Space>,
    pub processes: HashMap<u32, Process>,
    pub images: Vec<Image>,
    pub tally: Tally,
    /// Calls that processes are to make, asked for by other threads of ours.
    pub requests: VecDeque<Request>,
    /// Nobody answers requests any more.
    pub is_over: bool,
    /// The last number that was given to a space.
    pub last_space: SpaceId,
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub space: SpaceId,
    /// Its image, by its place in the list.
    pub image: usize,
    /// It has a filter of its own, which may forbid what we would have it call, or kill it for that.
    pub has_own_filter: bool,
}

/// An address space: one for all that share memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// What lies where. A fork shares it until one of the two changes it.
    pub ledger: Arc<Ledger>,
    /// The program's place in the plan.
    pub planned: Option<usize>,
    /// What is wanted.
    pub wants: Vec<Want>,
    /// Where the program itself asked for huge pages.
    pub own: Vec<Range<u64>>,
    /// Where the heap begins.
    pub heap: u64,
    /// Where it ends, if that is ours to say.
    pub brk: Option<Break>,
    /// An instruction that makes a system call.
    pub syscall: Option<u64>,
    /// Processes in it.
    pub users: u32,
    /// The program switched huge pages off.
    pub is_switched_off: bool,
}

/// A stretch of memory that is wanted on huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub mapping: MappingId,
    /// Its offset in the mapping.
    pub offset: u64,
    pub at: Range<u64>,
    /// It is one region of a plan; else all of a mapping.
    pub is_region: bool,
    /// Most bytes of it that were seen on huge pages.
    pub got: u64,
    /// Most huge pages' worth of it that were seen to hold something.
    pub touched: u64,
    /// Why not.
    pub why: Option<String>,
    /// The program is against it: it is not collapsed.
    pub is_closed: bool,
    /// A fork has it too, and it is not counted again.
    pub is_inherited: bool,
}

impl Want {
    /// A region, of which nothing is known yet.
    pub fn region(mapping: MappingId, offset: u64, at: Range<u64>) -> Want {
        let (got, touched, why, is_closed, is_inherited) = (0, 0, None, false, false);
        Want { mapping, offset, at, is_region: true, got, touched, why, is_closed, is_inherited }
    }
}

impl World {
    /// A new space with one user.
    pub fn add(&mut self, space: Space) -> SpaceId {
        self.last_space += 1;
        self.spaces.insert(self.last_space, Space { users: 1, ..space });
        self.last_space
    }

    pub fn space_of(&mut self, pid: u32) -> Option<&mut Space> {
        let space = self.processes.get(&pid)?.space;
        self.spaces.get_mut(&space)
    }

    /// A process left its space; what it wanted is settled when it was the last.
    pub fn leave(&mut self, space: SpaceId) {
        let Some(left) = self.spaces.get_mut(&space) else { return };
        left.users = left.users.saturating_sub(1);
        if left.users == 0
            && let Some(space) = self.spaces.remove(&space)
        {
            self.settle_all(&space);
        }
    }

    /// Counts all wants of a space as they stand.
    pub fn settle_all(&mut self, space: &Space) {
        for want in &space.wants {
            self.tally.settle(want, space);
        }
        self.tally.summary.heap_beyond_bytes += space.brk.as_ref().map_or(0, |known| known.beyond);
    }
}

impl Space {
    /// The same memory in a forked child.
    pub fn forked(&self) -> Space {
        let mut forked = self.clone();
        forked.wants.iter_mut().for_each(|want| want.is_inherited = true);
        forked.brk = self.brk.as_ref().map(Break::forked);
        forked
    }

    pub fn ledger_mut(&mut self) -> &mut Ledger {
        Arc::make_mut(&mut self.ledger)
    }

    /// What is wanted of the mapping at these addresses, a stretch of it.
    pub fn wanted(&self, spec: &Spec, mapping: MappingId, addresses: &Range<u64>) -> Vec<Want> {
        let Some((_, offset)) = self.ledger.find(addresses.start) else { return Vec::new() };
        let made = self.ledger.made(mapping);
        let want = |offset, at, is_region| Want { is_region, ..Want::region(mapping, offset, at) };
        match &spec.choice {
            Choice::Nothing => Vec::new(),
            Choice::All => {
                let is_wanted = matches!(made.key.kind, Kind::Anonymous)
                    && made.bytes >= spec.huge
                    && addresses.start < addresses.end;
                let all = || want(offset, addresses.clone(), false);
                is_wanted.then(all).into_iter().collect()
            }
            Choice::Plan(plan) => self
                .planned_mappings(plan, &made.key, addresses)
                .into_iter()
                .flat_map(|planned| place::regions(planned, addresses, offset, spec.huge))
                .map(|placed| want(placed.offset, placed.at, true))
                .collect(),
        }
    }

    /// The mappings of the plan that this one is: by its key, or by its place.
    pub fn planned_mappings<'p>(
        &self,
        plan: &'p HugePlan,
        key: &Key,
        addresses: &Range<u64>,
    ) -> Vec<&'p PlannedMapping> {
        let Some(program) = self.planned.and_then(|at| plan.programs.get(at)) else { return Vec::new() };
        let is_it = |planned: &&PlannedMapping| match planned.key.kind {
            MappingKind::Placed => planned
                .regions
                .iter()
                .any(|r| r.offset < addresses.end && r.offset.saturating_add(r.page.0) > addresses.start),
            _ => planned.key == model_key(key),
        };
        program.mappings.iter().filter(is_it).collect()
    }

    /// The heap, as it is known in the ledger.
    pub fn heap_mapping(&self) -> Option<MappingId> {
        let found = self.ledger.mappings().iter().position(|made| made.key.kind == Kind::Heap);
        found.and_then(|at| u32::try_from(at).ok()).map(MappingId)
    }

    /// Takes out what is wanted in this range, and returns it.
    pub fn take_wants(&mut self, range: &Range<u64>) -> Vec<Want> {
        self.wants.extract_if(.., |want| overlap(&want.at, range)).collect()
    }
}

impl Spec {
    /// Wants of what the kernel mapped before the program ran: its file, its stack. They can be had after the
    /// first touch alone.
    pub(super) fn want_what_is_there(&self, space: &mut Space, tally: &mut Tally) {
        let (Choice::Plan(plan), Some(program)) = (&self.choice, space.planned) else { return };
        for at in 0..space.ledger.mappings().len() {
            let mapping = MappingId(u32::try_from(at).unwrap_or(u32::MAX));
            let places: Vec<Range<u64>> = space.ledger.places(mapping).map(|(range, _)| range).collect();
            for range in places {
                let key = &space.ledger.made(mapping).key;
                let mappings = &plan.programs[program].mappings;
                for planned in space.planned_mappings(plan, key, &range) {
                    let nth = mappings.iter().position(|known| std::ptr::eq(known, planned));
                    tally.seen.extend(nth.map(|nth| (program, nth)));
                }
                let wants = space.wanted(self, mapping, &range);
                space.wants.extend(wants);
            }
        }
    }
}

/// The model's word for a key.
pub(crate) fn model_key(key: &Key) -> MappingKey {
    let kind = match &key.kind {
        Kind::Anonymous => MappingKind::Anonymous,
        Kind::Shared => MappingKind::Shared,
        Kind::Heap => MappingKind::Heap,
        Kind::Stack => MappingKind::Stack,
        Kind::File(path) => MappingKind::File(path.clone()),
    };
    MappingKey { kind, bytes: Bytes(key.bytes), nth: key.nth }
}

/// Whether two ranges have an address in common.
pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
