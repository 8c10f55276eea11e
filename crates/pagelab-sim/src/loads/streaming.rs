//! Large files that are read one after the other, once each, beside the daemons.

use super::files::File;
use super::system::{BOOT_SECONDS, System};
use super::world::{Ran, TICKS, World};

/// Runs it.
pub(super) fn run(world: &mut World<'_>) -> Ran {
    let seconds = world.parameter("seconds");
    world.takes(BOOT_SECONDS + seconds);
    System::boot(world)?;
    world.begin("streaming")?;
    let (size, pace) = (world.count("file_pages").max(1), world.count("disk"));
    let most = world.parameter("files").max(1) as usize;
    let mut files = std::collections::VecDeque::new();
    let mut file = File::default();
    world.look_up(&mut file)?;
    for _ in 0..seconds * TICKS {
        world.moves();
        world.extend(&mut file, pace, false)?;
        if file.pages() >= size {
            let whole = std::mem::take(&mut file);
            files.push_back(whole);
            world.look_up(&mut file)?;
            // What is read no more is deleted at last; long before, most of it was reclaimed.
            if files.len() > most
                && let Some(oldest) = files.pop_front()
            {
                world.delete(oldest)?;
            }
        }
        if let Some(oldest) = files.front_mut() {
            world.sweep_part(oldest, pace)?;
        }
        world.pass()?;
    }
    world.census()
}
