//! Compaction as the kernel does it, block by block: from below a scanner takes movable pages out of blocks,
//! from above another one takes free pages to put them, until the two meet (mm/compaction.c, `compact_zone`).
//!
//! The free scanner passes over blocks that are wholly free and blocks that are not of movable type
//! (`suitable_migration_target`); the migration scanner takes from every block. A page that cannot be moved
//! stays, and the rest of its block is emptied all the same.

use super::inputs::{Block, ZoneInputs};

/// What pages without a flag are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Kernel memory in use.
    InUse,
    /// Free with the odds that per-CPU lists give.
    Likely,
    /// As many as there are on per-CPU lists are free, in the blocks where they are fewest.
    AsPerCpu,
}

/// How many blocks are wholly free when the scanners have met.
pub(super) fn whole_blocks(zone: &ZoneInputs, unknown: Unknown, drop_cache: bool) -> u64 {
    let mut blocks = settled(zone, unknown);
    if drop_cache {
        for block in blocks.iter_mut().filter(|block| !block.is_huge) {
            let dropped = block.droppable.min(block.movable);
            block.free += dropped;
            block.movable -= dropped;
        }
    }
    pack(&mut blocks);
    blocks.iter().filter(|block| is_whole(block)).count() as u64
}

fn is_whole(block: &Block) -> bool {
    !block.is_huge && block.free == block.pages
}

/// The blocks with their unknown pages counted as free or as fixed.
fn settled(zone: &ZoneInputs, unknown: Unknown) -> Vec<Block> {
    let mut odds = Odds::of(zone);
    let most = match unknown {
        Unknown::InUse | Unknown::Likely => 0,
        Unknown::AsPerCpu => explained(&zone.blocks, zone.per_cpu),
    };
    let mut settle = |block: &Block| {
        let is_unsure = block.unknown > 0 && block.fixed == 0;
        let is_free = is_unsure
            && match unknown {
                Unknown::Likely => odds.are_met(block.unknown),
                Unknown::InUse | Unknown::AsPerCpu => block.unknown <= most,
            };
        let (free, fixed) = if is_free { (block.unknown, 0) } else { (0, block.unknown) };
        Block { free: block.free + free, fixed: block.fixed + fixed, unknown: 0, ..*block }
    };
    zone.blocks.iter().map(&mut settle).collect()
}

/// How likely a page without a flag is free: the share of such pages in unsure blocks that per-CPU lists
/// hold.
/// All u of a block are with that share to the power of u; of every 1/x blocks of chance x, one counts.
struct Odds {
    share: f64,
    owed: f64,
}

impl Odds {
    fn of(zone: &ZoneInputs) -> Odds {
        // Most kernel memory without flags lies beside other kernel memory: only blocks without are unsure.
        let unsure = zone.blocks.iter().filter(|block| block.fixed == 0 && block.unknown < block.pages);
        let unknown: u64 = unsure.map(|block| block.unknown).sum();
        let whole = zone.huge_on_per_cpu_lists() * zone.blocks.iter().map(|b| b.pages).max().unwrap_or(0);
        let single = zone.per_cpu.saturating_sub(whole);
        let share = if unknown == 0 { 0.0 } else { (single as f64 / unknown as f64).min(1.0) };
        Odds { share, owed: 0.0 }
    }

    fn are_met(&mut self, pages: u64) -> bool {
        self.owed += self.share.powi(i32::try_from(pages).unwrap_or(i32::MAX));
        let met = self.owed >= 1.0;
        if met {
            self.owed -= 1.0;
        }
        met
    }
}

/// The largest number of unknown pages in a block so that all blocks with up to as many, and nothing else
/// that spoils them, have no more than `per_cpu` together.
fn explained(blocks: &[Block], mut per_cpu: u64) -> u64 {
    let unsure = blocks.iter().filter(|block| block.unknown > 0 && block.fixed == 0);
    let mut unknown: Vec<u64> = unsure.map(|block| block.unknown).collect();
    unknown.sort_unstable();
    let mut most = 0;
    for same in unknown.chunk_by(|a, b| a == b) {
        match per_cpu.checked_sub(same.iter().sum()) {
            Some(left) => (per_cpu, most) = (left, same[0]),
            None => break,
        }
    }
    most
}

/// Lets the scanners meet.
fn pack(blocks: &mut [Block]) {
    let has_room =
        |block: &Block| block.takes_movable && !block.is_huge && block.free > 0 && !is_whole(block);
    // The free scanner takes from the block below this one.
    let mut above = blocks.len();
    for from in 0..blocks.len() {
        while !blocks[from].is_huge && blocks[from].movable > 0 {
            while above > from + 1 && !has_room(&blocks[above - 1]) {
                above -= 1;
            }
            if above <= from + 1 {
                return;
            }
            let moved = blocks[from].movable.min(blocks[above - 1].free);
            for (at, sign) in [(from, 1), (above - 1, -1)] {
                let block = &mut blocks[at];
                block.free = block.free.saturating_add_signed(sign * moved as i64);
                block.movable = block.movable.saturating_add_signed(-sign * moved as i64);
            }
        }
    }
}
