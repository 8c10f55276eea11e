//! Blocks of all sizes that live for a random time: no program does so, but it is simple to reason about.

use super::world::{Ran, World};
use crate::machine::{Ask, Class, Effort, Held};

/// Blocks that are drawn in a tick.
const PAIRS: u64 = 200;

/// Runs it.
pub(super) fn run(world: &mut World<'_>) -> Ran {
    world.begin("churn")?;
    let full = world.place.frames * world.parameter("full").min(95) / 100;
    // Memory is filled however few pairs are asked for.
    let pairs = world.parameter("pairs");
    let (ticks, each) = ((pairs / PAIRS).max(1), pairs.clamp(1, PAIRS));
    world.takes_ticks(ticks);
    let (mut blocks, mut frames): (Vec<(Held, u8)>, u64) = (Vec::new(), 0);
    for _ in 0..ticks {
        world.moves();
        for _ in 0..each {
            while frames >= full && !blocks.is_empty() {
                let at = world.random.below(blocks.len() as u64) as usize;
                let (held, order) = blocks.swap_remove(at);
                world.machine.release(held)?;
                frames -= 1 << order;
            }
            // Memory is filled as fast as it can be.
            while frames < full {
                let ask = drawn(world);
                let Some(held) = world.machine.ask(&ask)? else { break };
                blocks.push((held, ask.order));
                frames += 1 << ask.order;
            }
        }
        world.pass()?;
    }
    world.census()
}

/// 85 % of order 0, 15 % of orders 1 to 9 evenly; a tenth the kernel's, a tenth caches, the rest programs'.
fn drawn(world: &mut World<'_>) -> Ask {
    let order = if world.random.below(100) < 85 { 0 } else { 1 + world.random.below(9) as u8 };
    let class = match world.random.below(10) {
        0 => Class::Kernel,
        1 => Class::Cache,
        _ => Class::Anonymous,
    };
    Ask { order, effort: Effort::Once, ..world.page(class) }
}
