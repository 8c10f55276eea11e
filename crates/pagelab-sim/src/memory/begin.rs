//! A memory that begins in the middle of things, and what a replay asks of it.

use super::{Memory, Setup};
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
    /// What its processors keep.
    pub keep: Keep,
}

impl<P: Policy + Clone> Memory<P> {
    /// Memory in the state that `begins` say, zone by zone.
    pub fn begin(setups: Vec<Setup>, policy: &P, begins: Vec<Begin>) -> Result<Memory<P>, Wrong> {
        let keep = Keep { cpus: 1, batch: 1, high: 1 };
        if setups.len() != begins.len() {
            return Err(Wrong::Shape(format!("{} states for {} zones", begins.len(), setups.len())));
        }
        let mut begins: Vec<(Frame, Begin)> =
            setups.iter().map(|setup| setup.shape.first).zip(begins).collect();
        begins.sort_by_key(|(first, _)| *first);
        let mut memory = Memory::new(setups, policy, keep)?;
        let zones = std::mem::take(&mut memory.zones);
        let begun = |((setup, kept), (_, begin)): ((Setup, PerCpu<P>), (Frame, Begin))| {
            let mut zone = kept.into_zone();
            zone.begin(&begin.owners, begin.stretches)?;
            Ok((setup, PerCpu::new(zone, begin.keep)?))
        };
        memory.zones = zones.into_iter().zip(begins).map(begun).collect::<Result<_, Wrong>>()?;
        Ok(memory)
    }

    /// Allocates from one zone, by its place among all by address, whatever its marks say.
    #[inline]
    pub fn take_in(&mut self, zone: usize, cpu: u16, order: u8, kind: Kind) -> Result<Option<Taken>, Wrong> {
        let (_, zone) = self.zones.get_mut(zone).ok_or_else(no_zone)?;
        zone.take(cpu, order, kind)
    }

    /// Frees a block of one zone.
    #[inline]
    pub fn free_in(&mut self, zone: usize, cpu: u16, frame: Frame) -> Result<u8, Wrong> {
        let (_, zone) = self.zones.get_mut(zone).ok_or(Wrong::Outside(frame))?;
        zone.free(cpu, frame)
    }

    /// Order and kind of the allocated block that begins at a frame of a zone, if one does.
    #[inline]
    pub fn used_in(&self, zone: usize, frame: Frame) -> Option<(u8, Kind)> {
        self.zones.get(zone)?.1.zone().used_at(frame)
    }

    /// Says that the block at a frame of a zone will be freed soon: what that reads is brought near.
    #[inline]
    pub fn expect_free_in(&self, zone: usize, frame: Frame) {
        if let Some((_, zone)) = self.zones.get(zone) {
            zone.zone().expect_used(frame);
        }
    }

    /// Makes an allocated block of a zone several, each of `order`.
    pub fn split_in(&mut self, zone: usize, frame: Frame, order: u8) -> Result<(), Wrong> {
        let (_, zone) = self.zones.get_mut(zone).ok_or(Wrong::Outside(frame))?;
        zone.zone_mut().split(frame, order)
    }

    /// Makes allocated blocks of order 0 one block, where they lie side by side and are of one kind.
    pub fn join_in(&mut self, zone: usize, frame: Frame, order: u8) -> bool {
        self.zones.get_mut(zone).is_some_and(|(_, zone)| zone.zone_mut().join(frame, order))
    }
}

fn no_zone() -> Wrong {
    Wrong::Shape("there is no such zone".to_owned())
}
