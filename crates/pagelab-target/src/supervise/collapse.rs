//! Huge pages after the first touch (MADV_COLLAPSE, Linux 6.1): for heaps, which grow by less than a huge
//! page at a time, and for what no huge page was free for, or allowed at all, when it was touched.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagelab_host::paths;
use pagelab_sys::nudge::Nudge;
use pagelab_sys::{clock, pagemap_scan};
use rustix::io::Errno;

use super::inject::Call;
use super::space::{Space, SpaceId, Want, World, overlap};
use super::{Choice, Spec, place, requests, watch};
use crate::advice::{self, COLLAPSE, RemoteAdvice, refusal};

/// The shortest time between two looks.
const EVERY: Duration = Duration::from_millis(50);
/// A look of this length is followed by a pause so many times as long: a tenth of a percent of a processor.
const PAUSE: u32 = 1000;
/// Regions that are collapsed after one look.
const AT_ONCE: usize = 64;

/// Regions by their space and first address.
type Regions = HashSet<(SpaceId, u64)>;

/// What is looked at in one address space.
struct Look {
    space: SpaceId,
    pid: u32,
    heap: u64,
    /// Stretches in which regions are wanted, and whether a region needs to be mostly touched.
    ranges: Vec<(Range<u64>, bool)>,
}

/// Collapses what is wanted and touched and not huge, until the process ends.
pub(super) fn run(spec: &Spec, world: &Mutex<World>, nudge: Nudge) {
    let (mut seen, mut tried) = (HashSet::new(), HashSet::new());
    let mut pause = EVERY;
    loop {
        std::thread::sleep(pause);
        let (began, mut collapses) = (clock::thread_cpu_ns(), 0);
        for look in looks(spec, world) {
            collapses += one(spec, world, nudge, &look, (&mut seen, &mut tried));
        }
        world.lock().unwrap_or_else(PoisonError::into_inner).tally.summary.collapse_cpu_ns += collapses;
        let own = Duration::from_nanos((clock::thread_cpu_ns() - began).saturating_sub(collapses));
        pause = EVERY.max(own.saturating_mul(PAUSE)).min(Duration::from_secs(5));
    }
}

/// The spaces that are to be looked at.
fn looks(spec: &Spec, world: &Mutex<World>) -> Vec<Look> {
    let world = world.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pids = HashMap::new();
    for (&pid, process) in &world.processes {
        pids.entry(process.space).or_insert(pid);
    }
    let of = |(&space, known): (&SpaceId, &Space)| {
        let is_open = |want: &&Want| !want.is_closed && (!want.is_region || want.got == 0);
        let wanted = known.wants.iter().filter(is_open);
        let ranges = wanted.map(|want| (want.at.clone(), !want.is_region)).collect();
        (!known.is_switched_off).then_some(Look { space, pid: *pids.get(&space)?, heap: known.heap, ranges })
    };
    let is_planned = |space: &Space| spec.choice == Choice::All || space.planned.is_some();
    world.spaces.iter().filter(|(_, space)| is_planned(space)).filter_map(of).collect()
}

/// Looks at one space and collapses. Returns the CPU time of the collapses.
fn one(
    spec: &Spec,
    world: &Mutex<World>,
    nudge: Nudge,
    look: &Look,
    (seen, tried): (&mut Regions, &mut Regions),
) -> u64 {
    let Ok(pagemap) = File::open(paths::process(look.pid, "pagemap")) else { return 0 };
    let heap = watch::heap(look.pid).filter(|heap| heap.start == look.heap);
    let heap = heap.map_or(Vec::new(), |heap| heap_wants(spec, world, look.space, &heap));
    let mostly = spec.choice == Choice::All;
    let ranges = look.ranges.iter().cloned().chain(heap.into_iter().map(|at| (at, mostly)));
    let mut found: Vec<Range<u64>> =
        ranges.flat_map(|(range, mostly)| candidates(&pagemap, &range, spec.huge, mostly)).collect();
    // A heap is looked at as one, and by what is wanted of it.
    found.sort_unstable_by_key(|region| region.start);
    found.dedup();
    found.retain(|region| !tried.contains(&(look.space, region.start)));
    // Memory that is still being filled, or gone at once, waits for the next look.
    found.retain(|region| !seen.insert((look.space, region.start)));
    found.truncate(AT_ONCE);
    let began = clock::thread_cpu_ns();
    for region in found {
        tried.insert((look.space, region.start));
        let result = collapse(world, nudge, look.pid, &region);
        note(world, look.space, &region, &pagemap, result);
    }
    clock::thread_cpu_ns() - began
}

/// What of the heap is wanted: kept among the wants, and returned.
fn heap_wants(spec: &Spec, world: &Mutex<World>, space: SpaceId, heap: &Range<u64>) -> Vec<Range<u64>> {
    let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
    let world = &mut *world;
    let Some(known) = world.spaces.get_mut(&space) else { return Vec::new() };
    known.ledger_mut().break_at(heap.end);
    let Some(mapping) = known.heap_mapping() else { return Vec::new() };
    let placed: Vec<place::Placed> = match &spec.choice {
        Choice::Nothing => Vec::new(),
        Choice::All => grid(&place::inside(heap, spec.huge), spec.huge)
            .map(|at| place::Placed { offset: at.start - heap.start, at })
            .collect(),
        Choice::Plan(plan) => {
            let placed = known.heap_placed(plan, spec.huge).into_iter();
            placed.filter(|region| region.at.end <= heap.end).collect()
        }
    };
    if !placed.is_empty() {
        super::heap::note_heap_seen(spec, known, &mut world.tally);
    }
    // With `all`, what is touched is wanted: it is kept when it is collapsed.
    for placed in placed.iter().filter(|_| spec.choice != Choice::All) {
        if !known.wants.iter().any(|want| want.mapping == mapping && want.at == placed.at) {
            let (offset, at) = (placed.offset, placed.at.clone());
            known.wants.push(Want::region(mapping, offset, at));
        }
    }
    placed.into_iter().map(|placed| placed.at).collect()
}

fn grid(range: &Range<u64>, huge: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    (range.start..end).step_by(huge as usize).map(move |at| at..at + huge)
}

/// Whole huge pages in `range` that are touched, half of them or more with `mostly`, and not huge.
pub(crate) fn candidates(pagemap: &File, range: &Range<u64>, huge: u64, mostly: bool) -> Vec<Range<u64>> {
    let whole = place::inside(range, huge);
    let mut held: HashMap<u64, u64> = HashMap::new();
    let looked = pagemap_scan::populated(pagemap, whole.clone(), |part| {
        let mut at = part.start;
        while at < part.end && held.len() < (1 << 20) {
            let region = at - at % huge;
            let end = part.end.min(region + huge);
            *held.entry(region).or_default() += end - at;
            at = end;
        }
    });
    let is_huge = pagemap_scan::huge_parts(pagemap, whole, |part| {
        for region in grid(&place::inside(&part.addresses, huge), huge) {
            held.remove(&region.start);
        }
    });
    if looked.is_err() || is_huge.is_err() {
        return Vec::new();
    }
    let least = if mostly { huge / 2 } else { 1 };
    let mut found: Vec<u64> = held.iter().filter(|(_, held)| **held >= least).map(|(at, _)| *at).collect();
    found.sort_unstable();
    found.into_iter().map(|at| at..at + huge).collect()
}

/// From outside where that is allowed, else by a thread of the program.
fn collapse(world: &Mutex<World>, nudge: Nudge, pid: u32, region: &Range<u64>) -> Result<(), i32> {
    let process = advice::hold(pid).map_err(Errno::raw_os_error)?;
    match advice::advise(process.as_fd(), region, RemoteAdvice::Collapse) {
        Err(libc::EPERM | libc::ENOSYS) => {
            let call = Call::madvise(region, COLLAPSE, 0);
            let answer = requests::ask(world, nudge, pid, requests::Deed::Calls(vec![call]));
            match answer.as_ref().map(|answer| &answer.results[..]) {
                Ok([0, ..]) => Ok(()),
                Ok([error, ..]) => Err(i32::try_from(-error).unwrap_or(0)),
                Ok([]) | Err(_) => Err(libc::EPERM),
            }
        }
        result => result,
    }
}

/// Reads the region back, and remembers why it is not huge.
fn note(world: &Mutex<World>, space: SpaceId, region: &Range<u64>, pagemap: &File, result: Result<(), i32>) {
    let huge = pagemap_scan::huge_bytes(pagemap, region.clone()).map_or(0, |bytes| bytes.0);
    let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(known) = world.spaces.get_mut(&space) else { return };
    if let Some(heap) = known.heap_mapping()
        && known.ledger.find(region.start).is_some_and(|(mapping, _)| mapping == heap)
        && !known.wants.iter().any(|want| overlap(&want.at, region))
    {
        known.wants.push(Want::region(heap, region.start - known.heap, region.clone()));
    }
    for want in known.wants.iter_mut().filter(|want| want.at == *region) {
        (want.got, want.touched) = (want.got.max(huge), 1);
        if let Err(number) = result {
            want.why.get_or_insert_with(|| refusal(number));
        }
    }
    let whole = known.wants.iter_mut().find(|want| !want.is_region && overlap(&want.at, region));
    if let (Some(want), Err(number)) = (whole, result) {
        want.why.get_or_insert_with(|| refusal(number));
    }
}
