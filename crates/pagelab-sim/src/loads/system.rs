//! What is on a machine before a load begins: the kernel's own memory, daemons, files that were read.

use super::files::File;
use super::world::{Ran, World};
use crate::machine::Class;
use crate::words::Wrong;

/// Files of the system.
#[derive(Debug, Default)]
pub(super) struct System {
    /// Programs of the compiler, shell and make: 7.5 MiB, of which a compilation uses a part.
    pub(super) programs: File,
    /// The archive of sources: 45 MiB, as linux-2.6.11.tar.gz.
    pub(super) archive: File,
    /// What was read at boot.
    pub(super) others: Vec<File>,
    /// Files that `updatedb` has seen.
    walked: u64,
}

/// Pages of the compiler and its helpers.
const PROGRAMS: u32 = 1900;
/// Areas of address space of a daemon.
const AREAS: u32 = 40;
/// Pages of a file that is read at boot.
const BOOT_FILE: u32 = 12;
/// Boot takes so many seconds.
pub(super) const BOOT_SECONDS: u64 = 20;

impl System {
    /// Boots: daemons start, and read files; the kernel's memory grows meanwhile.
    pub(super) fn boot(world: &mut World<'_>) -> Ran<System> {
        world.begin("boot")?;
        let mut system = System::default();
        let steps = BOOT_SECONDS * super::world::TICKS;
        let (daemons, files) =
            (world.parameter("daemons"), world.parameter("system_pages") / u64::from(BOOT_FILE));
        let kernel = world.parameter("kernel_pages");
        let due = |all: u64, step: u64| all * (step + 1) / steps - all * step / steps;
        for step in 0..steps {
            world.moves();
            for _ in 0..due(kernel, step) {
                let ask = world.page(Class::Kernel);
                let held = world.got(ask)?;
                world.kept.extend(held);
            }
            for _ in 0..due(daemons, step) {
                let mut daemon = world.start(AREAS)?;
                world.grow(&mut daemon, world.count("daemon_pages"))?;
                world.daemons.push(daemon);
            }
            for _ in 0..due(files, step) {
                let mut file = File::default();
                world.look_up(&mut file)?;
                world.extend(&mut file, BOOT_FILE, false)?;
                system.others.push(file);
            }
            world.pass()?;
        }
        world.look_up(&mut system.programs)?;
        world.extend(&mut system.programs, PROGRAMS, false)?;
        world.look_up(&mut system.archive)?;
        world.extend(&mut system.archive, world.count("archive_pages"), false)?;
        Ok(system)
    }

    /// Looks at one of the files that were read: what belongs to pages that were reclaimed goes, and one that
    /// is not in memory any more is forgotten, since nobody reads it again.
    pub(super) fn forget(&mut self, world: &mut World<'_>) -> Ran {
        if self.others.is_empty() {
            return Ok(());
        }
        let at = world.random.below(self.others.len() as u64) as usize;
        let mut file = std::mem::take(&mut self.others[at]);
        if world.sweep(&mut file)? {
            self.others.swap_remove(at);
            world.delete(file)?;
        } else {
            self.others[at] = file;
        }
        Ok(())
    }

    /// `updatedb` for 10 ms: names and inodes of other files are read.
    pub(super) fn walk(&mut self, world: &mut World<'_>) -> Result<(), Wrong> {
        let most = world.parameter("disk_files");
        for _ in 0..world.parameter("walk").min(most.saturating_sub(self.walked)) {
            // Nobody comes back to them: they stay until their pages are reclaimed.
            world.look_up(&mut File::default())?;
            self.walked += 1;
        }
        Ok(())
    }

    /// Writes a file as large as memory, reads it, and deletes it.
    pub(super) fn flood(&mut self, world: &mut World<'_>) -> Ran {
        let pages = world.place.frames;
        let pace = world.count("disk");
        let mut file = File::default();
        world.look_up(&mut file)?;
        for _ in 0..pages / u64::from(pace.max(1)) {
            while world.machine.is_throttled() || world.machine.is_waiting() {
                world.pass()?;
            }
            world.extend(&mut file, pace, true)?;
            world.pass()?;
        }
        world.sweep(&mut file)?;
        let mut at = 0;
        world.machine.stream(true);
        while at < file.pages() {
            world.read(&file, at, pace)?;
            at += pace.max(1);
            world.pass()?;
        }
        world.machine.stream(false);
        world.delete(file)?;
        Ok(())
    }

    /// Seconds that the flood takes.
    pub(super) fn flood_takes(world: &World<'_>) -> u64 {
        2 * world.place.frames / world.parameter("disk").max(1) / super::world::TICKS + 1
    }
}
