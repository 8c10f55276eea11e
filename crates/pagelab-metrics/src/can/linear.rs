//! Compaction as the kernel does it, block by block: from below a scanner takes movable pages out of blocks,
//! from above another one takes free pages to put them, until the two meet (mm/compaction.c, `compact_zone`).
//!
//! The free scanner passes over blocks that are wholly free and blocks that are not of movable type
//! (`suitable_migration_target`); the migration scanner takes from every block. A page that cannot be moved
//! stays, and the rest of its block is emptied all the same.

use super::inputs::{Block, ZoneInputs};

/// One of so many pages of a block, and more, are what was freed together.
const MANY_SHARE: u64 = 8;

/// What pages without a flag are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Kernel memory in use.
    InUse,
    /// As many as there are on per-CPU lists are free, in the blocks where they are most.
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
    let is_free = match unknown {
        Unknown::InUse => vec![false; zone.blocks.len()],
        Unknown::Likely => clustered(zone),
        Unknown::AsPerCpu => {
            let most = explained(&zone.blocks, zone.per_cpu);
            zone.blocks.iter().map(|block| is_unsure(block) && block.unknown <= most).collect()
        }
    };
    let settle = |(block, is_free): (&Block, bool)| {
        let (free, fixed) = if is_free { (block.unknown, 0) } else { (0, block.unknown) };
        Block { free: block.free + free, fixed: block.fixed + fixed, unknown: 0, ..*block }
    };
    zone.blocks.iter().zip(is_free).map(settle).collect()
}

/// Most kernel memory without flags lies beside other kernel memory: only blocks without are unsure.
fn is_unsure(block: &Block) -> bool {
    block.unknown > 0 && block.fixed == 0
}

/// Which blocks' unknown pages are likely those on per-CPU lists. What waits on lists was freed one after the
/// other and lies together, so that a block has many of them; kernel memory in movable blocks fell there page
/// by page. So blocks with many are explained first; those with some, as far as the lists hold them.
fn clustered(zone: &ZoneInputs) -> Vec<bool> {
    let whole = zone.huge_on_per_cpu_lists() * zone.blocks.iter().map(|block| block.pages).max().unwrap_or(0);
    let mut single = zone.per_cpu.saturating_sub(whole);
    let is_one = |block: &Block| {
        is_unsure(block) && block.unknown < block.pages && block.unknown >= block.pages / MANY_SHARE
    };
    let mut order: Vec<usize> = (0..zone.blocks.len()).filter(|&at| is_one(&zone.blocks[at])).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(zone.blocks[at].unknown));
    let mut is_free = vec![false; zone.blocks.len()];
    for at in order {
        match single.checked_sub(zone.blocks[at].unknown) {
            Some(left) => (single, is_free[at]) = (left, true),
            None => break,
        }
    }
    // Of the rest, the lists hold a known part. Where that is most of it, as large a part of the blocks is
    // free, taken evenly over the zone; where it is less, most of these blocks have a page of kernel memory.
    let rest: Vec<usize> =
        (0..zone.blocks.len()).filter(|&at| is_unsure(&zone.blocks[at]) && !is_free[at]).collect();
    let unknown: u64 = rest.iter().map(|&at| zone.blocks[at].unknown).sum();
    let (listed, count) = (single.min(unknown), rest.len() as u64);
    if listed.saturating_mul(2) >= unknown && unknown > 0 {
        let free_before = |nth: u64| (u128::from(nth) * u128::from(listed) / u128::from(unknown)) as u64;
        for (nth, at) in (0..count).zip(rest) {
            is_free[at] = free_before(nth + 1) > free_before(nth);
        }
    }
    is_free
}

/// The largest number of unknown pages in a block so that all blocks with up to as many, and nothing else
/// that spoils them, have no more than `per_cpu` together.
fn explained(blocks: &[Block], mut per_cpu: u64) -> u64 {
    let unsure = blocks.iter().filter(|block| is_unsure(block));
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
        while !blocks[from].is_huge && !blocks[from].is_file_folio && blocks[from].movable > 0 {
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
