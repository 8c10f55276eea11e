//! Memory of several zones and nodes: who is asked first, and who keeps what for whom
//! (`get_page_from_freelist`, `__zone_watermark_ok`).

use crate::marks::Marks;
use crate::percpu::{Keep, PerCpu};
use crate::policy::Policy;
use crate::words::{Frame, Kind, Shape, Wrong};
use crate::zone::{Extras, Manner, Taken, Zone};

pub mod begin;

/// A zone of a memory.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it is called.
    pub name: String,
    /// Its node.
    pub node: u16,
    /// Its place among the zones of its node: requests say up to which they may go.
    pub height: u8,
    /// Its frames.
    pub shape: Shape,
    /// Its watermarks.
    pub marks: Marks,
    /// What it keeps from a request that may go up to each height.
    pub reserves: Vec<u64>,
    /// Reserves of pageblocks, and the order of its lists.
    pub extras: Extras,
}

/// Which mark must stand after an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// To the low mark: the fast path.
    ToLow,
    /// To the minimum: after background reclaim was woken.
    ToMin,
    /// To a quarter below the minimum: the caller cannot wait (`ALLOC_HARDER`). A block of more than one
    /// frame may come from the highatomic reserve.
    BelowMin,
    /// To nothing: the caller frees memory itself.
    ToNothing,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The block's order.
    pub order: u8,
    /// What it is for.
    pub kind: Kind,
    /// The highest zone that it may lie in.
    pub height: u8,
    /// The node that it comes from.
    pub node: u16,
    /// The processor that asks.
    pub cpu: u16,
    /// How far down it may go.
    pub down: Down,
    /// Whether kinds may be mixed in a pageblock. Under a policy that avoids it
    /// ([`Policy::avoids_mixing`]) this is set only when reclaim and compaction have not helped.
    pub may_mix: bool,
}

/// Zones that are told apart without a branch: nobody could guess in which of them a freed frame lies.
const FEW: usize = 4;

/// A zone and its terms. Aligned so that its place among others takes no multiplication.
#[derive(Clone, Debug)]
#[repr(align(256))]
struct Part<P> {
    setup: Setup,
    zone: PerCpu<P>,
    /// With so many free frames it stands above its low mark whoever asks for whatever (as
    /// `zone_watermark_fast` has one comparison for order 0).
    ample: u32,
}

impl<P: Policy> Part<P> {
    fn new(setup: Setup, zone: PerCpu<P>) -> Part<P> {
        let mut part = Part { setup, zone, ample: u32::MAX };
        part.set_ample(false);
        part
    }

    /// To be called when marks have changed.
    fn set_ample(&mut self, halves_marks: bool) {
        let Setup { marks, reserves, shape, .. } = &self.setup;
        let kept = reserves.iter().max().copied().unwrap_or(0);
        let ample = marks.low.saturating_add(kept).saturating_add(1 << shape.max_order);
        // Of reserves it depends who asks.
        let is_asked = halves_marks || self.zone.zone().has_extras();
        self.ample = if is_asked { u32::MAX } else { u32::try_from(ample).unwrap_or(u32::MAX) };
    }

    /// Whether it may give, as far as that shows at a glance.
    #[inline(always)]
    fn is_ample(&self, order: u8) -> bool {
        // A zone that has no such block gives none; what processors keep says nothing of it.
        let has_block = || order == 0 || self.zone.zone().has_block(order);
        self.zone.zone().free_frames() >= self.ample && (!self.zone.keeps() || has_block())
    }
}

/// The zones in the order in which a node asks them.
#[derive(Clone, Debug)]
struct Asked {
    first: usize,
    all: Vec<usize>,
}

/// All zones.
#[derive(Clone, Debug)]
pub struct Memory<P> {
    zones: Vec<Part<P>>,
    /// The frame behind each zone but the last one, where there are few: each call looks for one of them.
    ends: [Frame; FEW - 1],
    /// By node.
    asked: Vec<Asked>,
    /// Whether a mark must also stand, halved each time, in the blocks of each larger order: Linux up to 4.3.
    halves_marks: bool,
    /// By how much the marks of each zone are raised for now.
    raised: Vec<u64>,
}

impl<P: Policy + Clone> Memory<P> {
    /// Free memory. Zones must not overlap, and nodes are numbered from 0.
    pub fn new(setups: Vec<Setup>, policy: &P, keep: Keep) -> Result<Memory<P>, Wrong> {
        let wrong = |what: String| Err(Wrong::Shape(what));
        let nodes = setups.iter().map(|setup| setup.node + 1).max().unwrap_or(0);
        let mut zones: Vec<Part<P>> = Vec::with_capacity(setups.len());
        for setup in setups {
            setup.shape.check()?;
            let Marks { min, low, high } = setup.marks;
            if min > low || low > high {
                return wrong(format!("zone {} with marks out of order: {min}, {low}, {high}", setup.name));
            }
            let is_beside =
                |other: &Shape| setup.shape.end() <= other.first || other.end() <= setup.shape.first;
            if let Some(Part { setup: other, .. }) = zones.iter().find(|part| !is_beside(&part.setup.shape)) {
                return wrong(format!("zones {} and {} overlap", other.name, setup.name));
            }
            let zone = Zone::with(setup.shape, policy.clone(), &setup.extras)?;
            zones.push(Part::new(setup, PerCpu::new(zone, keep)?));
        }
        if zones.is_empty() {
            return wrong("a memory without a zone".to_owned());
        }
        zones.sort_by_key(|Part { setup, .. }| setup.shape.first);
        // The own node first, from its highest zone down; then the others as they come after it.
        let rank = |zone: usize, node: u16| {
            let setup = &zones[zone].setup;
            ((setup.node + nodes - node) % nodes, std::cmp::Reverse(setup.height))
        };
        let order = |node: u16| {
            let mut all: Vec<usize> = (0..zones.len()).collect();
            all.sort_by_key(|&zone| rank(zone, node));
            Asked { first: all[0], all }
        };
        let asked = (0..nodes).map(order).collect();
        let mut ends = [Frame::MAX; FEW - 1];
        ends.iter_mut().zip(&zones).for_each(|(end, part)| *end = part.setup.shape.end());
        let raised = vec![0; zones.len()];
        Ok(Memory { zones, ends, asked, halves_marks: false, raised })
    }

    /// Whether requests should not mix kinds at first ([`Policy::avoids_mixing`]).
    pub fn avoids_mixing(&self) -> bool {
        self.zones.first().is_some_and(|Part { zone, .. }| zone.zone().policy().avoids_mixing())
    }

    /// The zones by address.
    pub fn zones(&self) -> impl Iterator<Item = (&Setup, &PerCpu<P>)> {
        self.zones.iter().map(|Part { setup, zone, .. }| (setup, zone))
    }

    /// Marks as Linux had them up to 4.3: above each order below the one wanted half of the mark must be free
    /// in larger blocks (`zone_watermark_ok` of 2.6.16).
    pub fn halve_marks(&mut self) {
        self.halves_marks = true;
        self.zones.iter_mut().for_each(|part| part.set_ample(true));
    }

    /// A zone, by its number in order of address.
    pub fn zone(&self, at: usize) -> Option<(&Setup, &PerCpu<P>)> {
        self.zones.get(at).map(|Part { setup, zone, .. }| (setup, zone))
    }

    /// How many zones there are.
    pub fn count(&self) -> usize {
        self.zones.len()
    }

    /// The zone at a place in the order in which a node asks them.
    pub fn asked(&self, node: u16, place: usize) -> Option<usize> {
        self.asked.get(usize::from(node))?.all.get(place).copied()
    }

    /// The number of the zone that a frame lies in.
    pub fn zone_of(&self, frame: Frame) -> Option<usize> {
        let at = self.place_of(frame);
        self.zones.get(at).filter(|Part { setup, .. }| setup.shape.has(frame)).map(|_| at)
    }

    pub(crate) fn zone_mut(&mut self, at: usize) -> Option<&mut Zone<P>> {
        self.zones.get_mut(at).map(|Part { zone, .. }| zone.zone_mut())
    }

    /// Gives back all that processors keep (`drain_all_pages`).
    pub fn drain(&mut self) {
        self.zones.iter_mut().for_each(|Part { zone, .. }| zone.drain());
    }

    /// Raises all marks of a zone by so many frames, and no longer by what they were raised by before
    /// (`watermark_boost` of Linux since 5.0). The minimum of requests of order 0 that cannot wait stays.
    pub fn raise_marks(&mut self, at: usize, by: u64) {
        if let (Some(part), Some(raised)) = (self.zones.get_mut(at), self.raised.get_mut(at)) {
            let before = std::mem::replace(raised, by);
            let Marks { min, low, high } = &mut part.setup.marks;
            [min, low, high].into_iter().for_each(|mark| *mark = *mark - before + by);
            part.set_ample(self.halves_marks);
        }
    }

    /// The same as [`Memory::stands`] of what is free in whole pageblocks.
    pub fn stands_in_pageblocks(&self, at: usize, mark: u64, order: u8, height: u8) -> bool {
        self.zones.get(at).is_some_and(|Part { zone, .. }| {
            // What is free beside them must not count: so much more must be free.
            let beside = zone.zone().free_frames() - zone.zone().free_in_pageblocks();
            self.stands(at, mark + u64::from(beside), order, height)
        })
    }

    /// Whether a zone would stay above a mark after an allocation by one who may go up to a height, and has a
    /// block that is large enough.
    pub fn stands(&self, at: usize, mark: u64, order: u8, height: u8) -> bool {
        self.zones.get(at).is_some_and(|Part { setup, zone, .. }| {
            let zone = zone.zone();
            let reserved = zone.highatomic_frames() + zone.cma_free_frames();
            stands(setup, zone, mark, (order, height), (reserved, self.halves_marks))
        })
    }

    /// Allocates from the first zone that may give: which one, and the block.
    #[inline]
    pub fn take(&mut self, request: &Request) -> Result<Option<(usize, Taken)>, Wrong> {
        match self.take_first(request) {
            Some((at, frame)) => Ok(Some((at, Taken { frame, stolen: None }))),
            None => self.take_any(*request),
        }
    }

    /// By far the most requests: the zone that is asked first may give, and its own list has a block. `None`:
    /// it is for [`Memory::take_any`] to say.
    #[inline(always)]
    pub(crate) fn take_first(&mut self, request: &Request) -> Option<(usize, Frame)> {
        if request.down == Down::BelowMin {
            return None;
        }
        let at = self.asked.get(usize::from(request.node))?.first;
        let part = self.zones.get_mut(at)?;
        if part.setup.height > request.height {
            return None;
        }
        if !part.is_ample(request.order) {
            let asks = (request.order, request.kind, request.height, request.down);
            if !may_give(&part.setup, part.zone.zone(), asks, (0, self.halves_marks)) {
                return None;
            }
        }
        let zone = &mut part.zone;
        Some((at, zone.take_own(request.cpu, request.order, request.kind)?))
    }

    /// Asks all zones.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_any(&mut self, request: Request) -> Result<Option<(usize, Taken)>, Wrong> {
        let asked = self.asked.get(usize::from(request.node));
        let asked = asked.ok_or_else(|| Wrong::Shape(format!("there is no node {}", request.node)))?;
        for &at in &asked.all {
            let Part { setup, zone, .. } = &mut self.zones[at];
            let is_atomic = request.down == Down::BelowMin;
            let lowered = if is_atomic && request.order == 0 { self.raised[at] } else { 0 };
            let halves = self.halves_marks;
            let zone_below = zone.zone();
            let asks = (request.order, request.kind, request.height, request.down);
            if setup.height > request.height || !may_give(setup, zone_below, asks, (lowered, halves)) {
                continue;
            }
            let manner = Manner { may_mix: request.may_mix, is_atomic, ..Manner::USUAL };
            if let Some(taken) = zone.take_as(request.cpu, request.order, request.kind, manner)? {
                return Ok(Some((at, taken)));
            }
        }
        Ok(None)
    }

    /// Frees a block.
    #[inline(always)]
    pub fn free(&mut self, cpu: u16, frame: Frame) -> Result<u8, Wrong> {
        let at = self.place_of(frame);
        let Part { zone, .. } = self.zones.get_mut(at).ok_or(Wrong::Outside(frame))?;
        zone.free(cpu, frame)
    }

    /// The first zone that does not end below a frame.
    #[inline]
    fn place_of(&self, frame: Frame) -> usize {
        match self.zones.len() {
            ..=FEW => self.ends.iter().map(|&end| usize::from(frame >= end)).sum(),
            _ => self.zones.partition_point(|Part { setup, .. }| setup.shape.end() <= frame),
        }
    }

    /// The zone of a frame.
    #[inline]
    pub fn zone_at(&self, frame: Frame) -> Option<&Zone<P>> {
        self.zones.get(self.place_of(frame)).map(|Part { zone, .. }| zone.zone())
    }

    /// Checks all books.
    pub fn validate(&self) -> Result<(), Wrong> {
        self.zones.iter().try_for_each(|Part { zone, .. }| zone.validate())
    }
}

/// Whether a zone stays above its mark, and has a block that is large enough.
#[inline(never)]
fn may_give<P: Policy>(
    setup: &Setup,
    zone: &Zone<P>,
    (order, kind, height, down): (u8, Kind, u8, Down),
    (lowered, halves): (u64, bool),
) -> bool {
    let mark = match down {
        Down::ToLow => setup.marks.low,
        Down::ToMin => setup.marks.min,
        Down::BelowMin => (setup.marks.min - lowered) - (setup.marks.min - lowered) / 4,
        Down::ToNothing => return true,
    };
    // Reserves that are not for this request (`__zone_watermark_unusable_free`).
    let aside = match zone.has_extras() {
        false => 0,
        true => {
            let aside = if down == Down::BelowMin { 0 } else { zone.highatomic_frames() };
            let cma = if kind == Kind::Movable { 0 } else { zone.cma_free_frames() };
            aside + cma
        }
    };
    stands(setup, zone, mark, (order, height), (aside, halves))
}

fn stands<P: Policy>(
    setup: &Setup,
    zone: &Zone<P>,
    mark: u64,
    (order, height): (u8, u8),
    (reserved, halves): (u32, bool),
) -> bool {
    // Of the block itself all frames but the last count as gone.
    let unusable = (1 << order) - 1 + u64::from(reserved);
    let left = u64::from(zone.free_frames()).saturating_sub(unusable);
    let kept = setup.reserves.get(usize::from(height)).copied().unwrap_or(0);
    if left <= mark + kept {
        return false;
    }
    if !halves {
        return order == 0 || zone.has_block(order);
    }
    let (mut left, mut mark) = (left, mark);
    zone.free_blocks().iter().take(usize::from(order)).enumerate().all(|(size, &blocks)| {
        left = left.saturating_sub(u64::from(blocks) << size);
        mark /= 2;
        left > mark
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Mobility;

    const KEEP: Keep = Keep::batches(1, 1, 1);

    fn setup(name: &str, node: u16, height: u8, first: Frame, min: u64, reserves: &[u64]) -> Setup {
        Setup {
            name: name.to_owned(),
            node,
            height,
            shape: Shape { first, frames: 256, max_order: 6, block_order: 4 },
            marks: Marks { min, low: min + 8, high: min + 16 },
            reserves: reserves.to_vec(),
            extras: Extras::default(),
        }
    }

    fn two_nodes() -> Memory<Mobility> {
        let setups = vec![
            setup("Movable", 1, 1, 1024, 4, &[]),
            setup("Normal", 0, 0, 0, 8, &[0, 40]),
            setup("Movable", 0, 1, 256, 4, &[]),
            setup("Normal", 1, 0, 512, 8, &[0, 40]),
        ];
        Memory::new(setups, &Mobility, KEEP).unwrap()
    }

    fn request(kind: Kind, height: u8, node: u16, down: Down) -> Request {
        Request { order: 0, kind, height, node, cpu: 0, down, may_mix: true }
    }

    /// What shows at a glance is what a look at the marks finds, also after they were raised.
    #[test]
    fn a_zone_with_plenty_is_one_that_may_give() {
        let mut memory = two_nodes();
        let (mut at_a_glance, mut by_a_look) = (0, 0);
        for step in 0..3 {
            memory.raise_marks(1, step * 20);
            while memory.zones[1].zone.zone_mut().take(0, Kind::Movable).unwrap().is_some() {
                for (order, height) in [(0, 0), (0, 1), (3, 1), (6, 1)] {
                    let part = &memory.zones[1];
                    let asks = (order, Kind::Movable, height, Down::ToLow);
                    let may_give = may_give(&part.setup, part.zone.zone(), asks, (0, false));
                    assert!(may_give || !part.is_ample(order), "order {order}, step {step}");
                    at_a_glance += u32::from(part.is_ample(order));
                    by_a_look += u32::from(may_give);
                }
            }
            let first = memory.zones[1].setup.shape.first;
            for frame in first..first + 256 {
                memory.zones[1].zone.zone_mut().free(frame).unwrap();
            }
        }
        assert!(at_a_glance > 400 && by_a_look > at_a_glance, "{at_a_glance} and {by_a_look}");
        memory.halve_marks();
        assert!(!memory.zones[1].is_ample(0));
    }

    /// How many frames each zone gives, by address, until none gives any more.
    fn drained(memory: &mut Memory<Mobility>, request: &Request) -> (Vec<usize>, Vec<u32>) {
        let (mut order, mut given) = (Vec::new(), vec![0; 4]);
        while let Some((zone, _)) = memory.take(request).unwrap() {
            if order.last() != Some(&zone) {
                order.push(zone);
            }
            given[zone] += 1;
        }
        memory.validate().unwrap();
        (order, given)
    }

    #[test]
    fn zones_are_asked_from_the_highest_down_and_the_own_node_first() {
        let mut memory = two_nodes();
        let all = request(Kind::Movable, 1, 0, Down::ToLow);
        let (order, given) = drained(&mut memory, &all);
        assert_eq!(order, [1, 0, 3, 2]);
        // Marks of 12 and of 16, and 40 kept from those who may go higher.
        assert_eq!(given, [256 - 16 - 40, 256 - 12, 256 - 16 - 40, 256 - 12]);
        // The kernel itself is kept from nothing.
        assert_eq!(
            drained(&mut memory, &request(Kind::Unmovable, 0, 1, Down::ToLow)),
            (vec![2, 0], vec![40, 0, 40, 0])
        );
        let (_, given) = drained(&mut memory, &request(Kind::Unmovable, 0, 1, Down::ToMin));
        assert_eq!(given, [8, 0, 8, 0]);
        let (_, given) = drained(&mut memory, &request(Kind::Unmovable, 0, 1, Down::BelowMin));
        assert_eq!(given, [2, 0, 2, 0]);
        let (_, given) = drained(&mut memory, &request(Kind::Unmovable, 1, 0, Down::ToNothing));
        assert_eq!(given, [6, 12, 6, 12]);
    }

    #[test]
    fn a_large_block_needs_one_that_is_whole_and_the_mark_above_it() {
        let mut memory = two_nodes();
        let mut large = request(Kind::Unmovable, 0, 0, Down::ToLow);
        large.order = 6;
        let (_, given) = drained(&mut memory, &large);
        assert_eq!(given, [3, 0, 3, 0], "the fourth block of 64 would reach below the mark");
        let frame = memory.take(&request(Kind::Unmovable, 0, 0, Down::ToLow)).unwrap().unwrap().1.frame;
        assert_eq!(memory.free(0, frame), Ok(0));
        assert!(memory.free(0, 1 << 20).is_err() && memory.free(0, 800).is_err());
    }

    #[test]
    fn reserves_do_not_count_for_those_who_may_not_use_them() {
        let mut normal = setup("Normal", 0, 0, 0, 8, &[]);
        let cma = std::iter::once(0..64).collect();
        normal.extras = Extras { has_highatomic: true, cma, ..Extras::default() };
        let mut memory = Memory::new(vec![normal], &Mobility, KEEP).unwrap();
        let mut atomic = request(Kind::Unmovable, 0, 0, Down::BelowMin);
        atomic.order = 1;
        assert!(memory.take(&atomic).unwrap().is_some());
        // Of 256 frames 2 are taken and 2 kept by the processor, 64 are CMA's, and 16 set aside. All of
        // these count as gone, and the mark of 16 stays.
        let count = |memory: &mut Memory<Mobility>, kind: Kind| {
            std::iter::from_fn(|| memory.take(&request(kind, 0, 0, Down::ToLow)).unwrap()).count()
        };
        assert_eq!(count(&mut memory, Kind::Unmovable), 256 - 4 - 64 - 16 - 16);
        assert_eq!(count(&mut memory, Kind::Movable), 64);
        assert!(memory.take(&atomic).unwrap().is_some(), "its reserve is left");
        memory.validate().unwrap();
    }

    #[test]
    fn contradicting_zones_are_refused() {
        let two = |first: Frame| {
            Memory::new(vec![setup("a", 0, 0, 0, 1, &[]), setup("b", 0, 1, first, 1, &[])], &Mobility, KEEP)
        };
        assert!(two(256).is_ok());
        assert!(two(240).unwrap_err().to_string().contains("zones a and b overlap"));
        let mut turned = setup("c", 0, 0, 0, 1, &[]);
        turned.marks = Marks { min: 5, low: 4, high: 9 };
        assert!(Memory::new(vec![turned], &Mobility, KEEP).unwrap_err().to_string().contains("out of order"));
        assert!(Memory::new(Vec::new(), &Mobility, KEEP).is_err());
    }
}
