//! Ends of objects: freed whole, in parts or together with others, or moved by compaction.

use super::{NO_OBJECT, Replay, UNPLACED};
use crate::memory::Memory;
use crate::policies::Policy;
use crate::types::{AllocationType, Error, Frame, ZoneOffset};

/// Contents of a part of a freed block.
enum FreedPiece {
    /// An object, or a part of one, of this simulated frame and order; it is a block of its own now.
    Object(Frame, u8),
    /// A number of frames of an object for which there was no room.
    Unplaced,
    /// Frames without a known object.
    Unknown,
}

/// Numbers of frames of a freed block, by contents.
#[derive(Default)]
struct FreedFrames {
    objects: u64,
    unplaced: u64,
    unknown: u64,
}

impl<P: Policy + Clone> Replay<P> {
    #[inline]
    pub(super) fn replay_free(
        &mut self,
        index: usize,
        order: u8,
        cpu: u16,
        is_compacting: bool,
    ) -> Result<(), Error> {
        self.stats.frees.add_block(order);
        let frame = self.frame_map[index];
        // The usual case: an object of this order.
        if frame < UNPLACED
            && !is_compacting
            && self.memory.pcp_zone_of(frame)?.free_exact(cpu, frame, order)?
        {
            self.stats.matched_frees.add_block(order);
            match order {
                0 => self.frame_map[index] = NO_OBJECT,
                _ => self.frame_map[index..index + (1 << order)].fill(NO_OBJECT),
            }
            // Objects of the snapshot are at their traced frames.
            if frame == self.base_frame + index as u32 {
                self.clear_unowned(index, order);
            }
            return Ok(());
        }
        self.free_pieces(index, order, cpu, is_compacting)
    }

    #[cold]
    fn free_pieces(&mut self, index: usize, order: u8, cpu: u16, is_compacting: bool) -> Result<(), Error> {
        let freed = self.end_objects(index, order, cpu, is_compacting)?;
        let account = &mut self.stats;
        match freed {
            FreedFrames { unknown: 0, objects: 0, .. } => account.unplaced_frees.add_block(order),
            FreedFrames { unknown: 0, .. } if is_compacting => account.migrated_frees.add_block(order),
            FreedFrames { unknown: 0, .. } => account.matched_frees.add_block(order),
            FreedFrames { objects: 0, unplaced: 0, .. } if is_compacting => {
                account.returned_frees.add_block(order);
                self.free_unused_target(self.base_frame + index as u32, order, cpu)?;
            }
            FreedFrames { objects: 0, unplaced: 0, .. } => {
                if let Some(frame) = self.migrated_objects[usize::from(order)].pop_front() {
                    account.guessed_frees.add_block(order);
                    self.memory.free_block(cpu, frame)?;
                } else {
                    account.unknown_frees.add_block(order);
                }
            }
            _ => account.partly_matched_frees.add_block(order),
        }
        Ok(())
    }

    /// An allocation of frames of a live object: its free was not seen.
    #[cold]
    pub(super) fn end_stale_objects(&mut self, index: usize, order: u8, cpu: u16) -> Result<(), Error> {
        let bit = |at: usize| self.unowned_bits[at / 64] >> (at % 64) & 1 != 0;
        let was_unowned = bit(index);
        self.end_objects(index, order, cpu, false)?;
        match was_unowned {
            true => self.stats.allocs_from_pcp.add_block(order),
            false => self.stats.reallocs.add_block(order),
        }
        Ok(())
    }

    /// Ends all objects of a block: they were freed or moved.
    fn end_objects(
        &mut self,
        index: usize,
        order: u8,
        cpu: u16,
        is_migration: bool,
    ) -> Result<FreedFrames, Error> {
        let mut freed = FreedFrames::default();
        let end = index + (1 << order);
        if self.join_single_frames(index, order) {
            self.stats.joins += 1;
        }
        let mut next = index;
        while next < end {
            let (piece, size) = match self.piece_at(next, order)? {
                FreedPiece::Object(frame, order) => {
                    if is_migration {
                        let frame = self.migrate_object(frame, cpu)?;
                        self.migrated_objects[usize::from(order)].push_back(frame);
                    } else {
                        self.memory.free_block(cpu, frame)?;
                    }
                    (&mut freed.objects, 1 << order)
                }
                FreedPiece::Unplaced => (&mut freed.unplaced, 1),
                FreedPiece::Unknown => (&mut freed.unknown, 1),
            };
            *piece += size as u64;
            self.frame_map[next..next + size].fill(NO_OBJECT);
            next += size;
        }
        self.clear_unowned(index, order);
        Ok(freed)
    }

    /// Clears the bits of frames without a known object.
    fn clear_unowned(&mut self, index: usize, order: u8) {
        for at in index..index + (1 << order) {
            self.unowned_bits[at / 64] &= !(1 << (at % 64));
        }
    }

    /// Joins single frames to one block, as they were before the snapshot split it.
    fn join_single_frames(&mut self, index: usize, order: u8) -> bool {
        let frame = self.frame_map[index];
        let is_contiguous = || {
            let entries = self.frame_map[index..index + (1 << order)].iter();
            (0..).zip(entries).all(|(step, &entry)| entry == frame + step)
        };
        order > 0
            && frame < UNPLACED
            && is_contiguous()
            && self.memory.pcp_zone_of(frame).is_ok_and(|zone| zone.zone_mut().join_blocks(frame, order))
    }

    /// Contents at a frame, of at most an order; larger objects are split.
    fn piece_at(&mut self, index: usize, max_order: u8) -> Result<FreedPiece, Error> {
        let frame = match self.frame_map[index] {
            NO_OBJECT => return Ok(FreedPiece::Unknown),
            UNPLACED => return Ok(FreedPiece::Unplaced),
            frame => frame,
        };
        let Some((head, order, _)) = self.block_head(frame) else {
            return Err(Error::NotAllocated(frame));
        };
        if order <= max_order && head == frame {
            return Ok(FreedPiece::Object(frame, order));
        }
        // A block of an order is aligned to it, in the trace and in the simulated memory.
        let part_order = order.min(max_order);
        self.stats.splits += 1;
        self.memory.pcp_zone_of(head)?.zone_mut().split_block(head, part_order)?;
        Ok(FreedPiece::Object(frame, part_order))
    }
}

/// Free scanner of a zone, for targets of objects that compaction moves: the trace has only their old frames
/// (mm/compaction.c: `isolate_freepages`, `suitable_migration_target`, `release_freepages`). It visits
/// pageblocks downwards, and the frames of each upwards.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreeScanner {
    /// Frames of the zone up to the end of the current pageblock; 0: the scan is complete.
    pageblock_end: ZoneOffset,
    /// Position in that pageblock.
    next_offset: ZoneOffset,
}

impl FreeScanner {
    /// Offset of the next free block of an order, if there is one.
    fn next_free_block<P: Policy + Clone>(
        &mut self,
        memory: &Memory<P>,
        zone: usize,
        order: u8,
    ) -> Option<ZoneOffset> {
        let zone = memory.zone(zone).1.zone();
        let (pageblock_order, movable_list) =
            (zone.geometry().pageblock_order, zone.policy().allocation_list(AllocationType::Movable));
        while self.pageblock_end > ZoneOffset::default() {
            let pageblock = (self.pageblock_end - 1).pageblock(pageblock_order);
            let is_suitable_target = zone.pageblock_owners().get(pageblock as usize) == Some(&movable_list);
            while is_suitable_target && self.next_offset < self.pageblock_end {
                match zone.free_lists().frame_state(self.next_offset).free_order() {
                    // Completely free pageblocks are skipped.
                    Some(free) if free >= pageblock_order => break,
                    Some(free) if free >= order => return Some(self.next_offset),
                    Some(free) => self.next_offset += 1 << free,
                    None => self.next_offset += 1,
                }
            }
            self.pageblock_end = ZoneOffset::of_pageblock(pageblock, pageblock_order);
            self.next_offset = ZoneOffset::of_pageblock(pageblock.saturating_sub(1), pageblock_order);
        }
        None
    }
}

impl<P: Policy + Clone> Replay<P> {
    pub(super) fn reset_free_scanners(&mut self) {
        let zones = self.memory.zones().map(|(config, _)| FreeScanner {
            pageblock_end: config.geometry.end_offset(),
            next_offset: (config.geometry.end_offset() - 1).align_down(self.pageblock_order),
        });
        self.free_scanners = zones.collect();
    }

    /// Takes a migration target from the free scanner of a frame's zone.
    fn take_free_block(
        &mut self,
        from: Frame,
        order: u8,
        alloc_type: AllocationType,
    ) -> Result<Option<Frame>, Error> {
        let zone = self.memory.zone_position(from);
        let Some(scanner) = self.free_scanners.get_mut(zone) else { return Ok(None) };
        let Some(offset) = scanner.next_free_block(&self.memory, zone, order) else { return Ok(None) };
        let frame = self.memory.zone(zone).0.geometry.frame_at(offset);
        Ok(self.memory.zone_mut(zone).allocate_at(frame, order, alloc_type)?.then_some(frame))
    }

    /// Moves an object to the target of the free scanner; returns its new frame.
    pub(super) fn migrate_object(&mut self, from: Frame, cpu: u16) -> Result<Frame, Error> {
        let block = self.memory.zone_containing(from).and_then(|zone| zone.allocated_block_at(from));
        let (order, kind) = block.ok_or(Error::NotAllocated(from))?;
        let Some(to) = self.take_free_block(from, order, kind)? else { return Ok(from) };
        self.memory.free_block(cpu, from)?;
        Ok(to)
    }

    /// Targets that compaction took and did not use are added to the per-CPU lists, not to where they were.
    pub(super) fn free_unused_target(
        &mut self,
        traced_frame: Frame,
        order: u8,
        cpu: u16,
    ) -> Result<(), Error> {
        match self.take_free_block(traced_frame, order, AllocationType::Movable)? {
            Some(frame) => self.memory.free_block(cpu, frame).map(drop),
            None => Ok(()),
        }
    }
}
