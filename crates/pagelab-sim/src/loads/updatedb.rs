//! `updatedb`: names and inodes of all files on the disk are looked at once.

use super::system::{BOOT_SECONDS, System};
use super::world::{Ran, TICKS, World};

/// Runs it.
pub(super) fn run(world: &mut World<'_>) -> Ran {
    let seconds = world.parameter("disk_files") / (world.parameter("walk").max(1) * TICKS) + 1;
    world.takes(BOOT_SECONDS + seconds);
    let mut system = System::boot(world)?;
    world.begin("updatedb")?;
    for _ in 0..seconds * TICKS {
        world.moves();
        system.walk(world)?;
        world.pass()?;
    }
    world.census()
}
