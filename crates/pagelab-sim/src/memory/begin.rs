//! A memory that begins in the middle of things, and what a replay asks of it.

use super::{Memory, Part, Setup};
use crate::percpu::{Keep, PerCpu};
use crate::policy::Policy;
use crate::words::{Frame, Kind, Wrong};
use crate::zone::Taken;
use crate::zone::begin::Stretch;

/// What a zone begins with.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The kind that each of its pageblocks belongs to.
    pub owners: Vec<Kind>,
    /// All of its frames.
    pub stretches: Vec<Stretch>,
    /// How much its processors keep.
    pub keep: Keep,
    /// What they keep: frames that the stretches say are allocated. What is allocated first is in front.
    pub kept: Vec<Listed>,
}

/// A block on a per-CPU list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its first frame.
    pub frame: Frame,
    /// Its order.
    pub order: u8,
    /// The processor.
    pub cpu: u16,
    /// The kind that it is kept for.
    pub kind: Kind,
}

impl<P: Policy + Clone> Memory<P> {
    /// Memory in the state that `begins` say, zone by zone.
    pub fn begin(setups: Vec<Setup>, policy: &P, begins: Vec<Begin>) -> Result<Memory<P>, Wrong> {
        let keep = Keep::batches(1, 1, 1);
        if setups.len() != begins.len() {
            return Err(Wrong::Shape(format!("{} states for {} zones", begins.len(), setups.len())));
        }
        let mut begins: Vec<(Frame, Begin)> =
            setups.iter().map(|setup| setup.shape.first).zip(begins).collect();
        begins.sort_by_key(|(first, _)| *first);
        let mut memory = Memory::new(setups, policy, keep)?;
        let zones = std::mem::take(&mut memory.zones);
        let begun = |(part, (_, begin)): (Part<P>, (Frame, Begin))| {
            let mut zone = part.zone.into_zone();
            zone.begin(&begin.owners, begin.stretches)?;
            let mut zone = PerCpu::new(zone, begin.keep)?;
            for Listed { frame, order, cpu, kind } in begin.kept {
                if !zone.begin_kept(cpu, frame, order, kind) {
                    for frame in frame..frame + (1 << order) {
                        zone.zone_mut().free(frame)?;
                    }
                }
            }
            zone.begin_high();
            Ok(Part { zone, ..part })
        };
        memory.zones = zones.into_iter().zip(begins).map(begun).collect::<Result<_, Wrong>>()?;
        Ok(memory)
    }

    /// Allocates from one zone, by its place among all by address, whatever its marks say.
    #[inline]
    pub fn take_in(&mut self, zone: usize, cpu: u16, order: u8, kind: Kind) -> Result<Option<Taken>, Wrong> {
        let Part { zone, .. } = self.zones.get_mut(zone).ok_or_else(no_zone)?;
        zone.take(cpu, order, kind)
    }

    /// `kswapd` of a machine that is followed begins; [`Memory::see_reclaim`] says when it ends.
    pub fn begin_reclaim(&mut self) {
        self.zones.iter_mut().for_each(|Part { zone, .. }| zone.set_reclaiming(true));
    }

    /// Whether `kswapd` is still at work: in a zone it ends as soon as that stands above its high mark.
    pub fn see_reclaim(&mut self) -> bool {
        let mut goes_on = false;
        for Part { setup, zone, .. } in &mut self.zones {
            let is_short = u64::from(zone.zone().free_frames()) < setup.marks.high;
            zone.set_reclaiming(is_short);
            goes_on |= is_short;
        }
        goes_on
    }

    /// A second has passed: processors may give back what they have kept for long. Whether another second
    /// would do anything.
    pub fn decay(&mut self) -> bool {
        self.zones.iter_mut().fold(false, |goes_on, Part { zone, .. }| zone.decay() | goes_on)
    }

    /// Gives back all that one processor keeps of a zone.
    pub fn drain_cpu_in(&mut self, zone: usize, cpu: u16) {
        if let Some(Part { zone, .. }) = self.zones.get_mut(zone) {
            zone.drain_cpu(cpu);
        }
    }

    /// Allocates a block of one zone at a place, if that is free; what processors keep is not.
    pub fn take_at_in(&mut self, zone: usize, frame: Frame, order: u8, kind: Kind) -> Result<bool, Wrong> {
        let Part { zone, .. } = self.zones.get_mut(zone).ok_or_else(no_zone)?;
        zone.zone_mut().take_at(frame, order, kind)
    }

    /// Frees a block of one zone.
    #[inline]
    pub fn free_in(&mut self, zone: usize, cpu: u16, frame: Frame) -> Result<u8, Wrong> {
        let Part { zone, .. } = self.zones.get_mut(zone).ok_or(Wrong::Outside(frame))?;
        zone.free(cpu, frame)
    }

    /// Frees a block of one zone if one of this order begins at the frame; whether one does.
    #[inline(always)]
    pub fn free_whole_in(&mut self, zone: usize, cpu: u16, frame: Frame, order: u8) -> Result<bool, Wrong> {
        let Part { zone, .. } = self.zones.get_mut(zone).ok_or(Wrong::Outside(frame))?;
        zone.free_whole(cpu, frame, order)
    }

    /// Order and kind of the allocated block that begins at a frame of a zone, if one does.
    #[inline]
    pub fn used_in(&self, zone: usize, frame: Frame) -> Option<(u8, Kind)> {
        self.zones.get(zone)?.zone.zone().used_at(frame)
    }

    /// Says that the block at a frame of a zone will be freed soon: what that reads is brought near.
    #[inline]
    pub fn expect_free_in(&self, zone: usize, frame: Frame) {
        if let Some(Part { zone, .. }) = self.zones.get(zone) {
            zone.zone().expect_used(frame);
        }
    }

    /// Makes an allocated block of a zone several, each of `order`.
    pub fn split_in(&mut self, zone: usize, frame: Frame, order: u8) -> Result<(), Wrong> {
        let Part { zone, .. } = self.zones.get_mut(zone).ok_or(Wrong::Outside(frame))?;
        zone.zone_mut().split(frame, order)
    }

    /// Makes allocated blocks of order 0 one block, where they lie side by side and are of one kind.
    pub fn join_in(&mut self, zone: usize, frame: Frame, order: u8) -> bool {
        self.zones.get_mut(zone).is_some_and(|Part { zone, .. }| zone.zone_mut().join(frame, order))
    }
}

fn no_zone() -> Wrong {
    Wrong::Shape("there is no such zone".to_owned())
}
