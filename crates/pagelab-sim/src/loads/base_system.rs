//! Base system before a load starts: kernel memory, daemons, cached files.

use super::files::CachedFile;
use super::load_context::{LoadContext, LoadResult};
use crate::machine::PageUse;
use crate::types::Error;

/// Files of the system.
#[derive(Debug, Default)]
pub(super) struct BaseSystem {
    /// Program files of the compiler, shell and make: 7.5 MiB, of which a compilation uses a part.
    pub(super) programs: CachedFile,
    /// The archive of sources: 45 MiB, as linux-2.6.11.tar.gz.
    pub(super) archive: CachedFile,
    /// Files read at boot.
    pub(super) boot_files: Vec<CachedFile>,
    /// Files that `updatedb` has seen.
    files_walked: u64,
}

/// Pages of the compiler and its helpers.
const PROGRAM_PAGES: u32 = 1900;
/// Areas of address space of a daemon.
const DAEMON_VMAS: u32 = 40;
/// Pages of a file that is read at boot.
const BOOT_FILE_PAGES: u32 = 12;
pub(super) const BOOT_SECONDS: u64 = 20;

impl BaseSystem {
    /// Boots: daemons start and read files; the kernel's memory grows meanwhile.
    pub(super) fn boot(context: &mut LoadContext<'_>) -> LoadResult<BaseSystem> {
        context.begin_phase("boot")?;
        let mut system = BaseSystem::default();
        let steps = BOOT_SECONDS * super::load_context::TICKS_PER_SECOND;
        let (daemons, files) =
            (context.parameter("daemons"), context.parameter("system_pages") / u64::from(BOOT_FILE_PAGES));
        let kernel = context.parameter("kernel_pages");
        let due_in_step = |all: u64, step: u64| all * (step + 1) / steps - all * step / steps;
        for step in 0..steps {
            context.pick_random_cpu();
            for _ in 0..due_in_step(kernel, step) {
                let request = context.page_request(PageUse::Kernel);
                let held = context.allocate_counted(request)?;
                context.leaked_blocks.extend(held);
            }
            for _ in 0..due_in_step(daemons, step) {
                let mut daemon = context.start_process(DAEMON_VMAS)?;
                context.grow_process(&mut daemon, context.count_parameter("daemon_pages"))?;
                context.daemons.push(daemon);
            }
            for _ in 0..due_in_step(files, step) {
                system.boot_files.push(context.create_file(BOOT_FILE_PAGES, false)?);
            }
            context.advance_tick()?;
        }
        system.programs = context.create_file(PROGRAM_PAGES, false)?;
        system.archive = context.create_file(context.count_parameter_or_zero("archive_pages"), false)?;
        Ok(system)
    }

    /// Frees the metadata of reclaimed pages of one of the files that were read; a file without resident
    /// pages is forgotten, since it is not read again.
    pub(super) fn sweep_random_file(&mut self, context: &mut LoadContext<'_>) -> LoadResult {
        if self.boot_files.is_empty() {
            return Ok(());
        }
        let at = context.random.next_below(self.boot_files.len() as u64) as usize;
        if context.sweep_file(&mut self.boot_files[at])? {
            context.delete_file(self.boot_files.swap_remove(at))?;
        }
        Ok(())
    }

    /// 10 ms of `updatedb`: names and inodes of other files are read.
    pub(super) fn walk_files(&mut self, context: &mut LoadContext<'_>) -> Result<(), Error> {
        let max_files = context.parameter("disk_files");
        for _ in 0..context.parameter("walk").min(max_files.saturating_sub(self.files_walked)) {
            // They are not used again, and stay until their pages are reclaimed.
            context.look_up_file(&mut CachedFile::default())?;
            self.files_walked += 1;
        }
        Ok(())
    }

    /// Writes a file as large as memory, reads it, and deletes it.
    pub(super) fn write_and_read_large_file(&mut self, context: &mut LoadContext<'_>) -> LoadResult {
        let pages = context.model.frames;
        let disk_pages = context.count_parameter("disk");
        let mut file = context.create_file(0, true)?;
        for _ in 0..pages / u64::from(disk_pages.max(1)) {
            while context.machine.is_throttled() || context.machine.is_io_blocked() {
                context.advance_tick()?;
            }
            context.extend_file(&mut file, disk_pages, true)?;
            context.advance_tick()?;
        }
        context.sweep_file(&mut file)?;
        let mut position = 0;
        context.machine.set_streaming(true);
        while position < file.pages() {
            context.read_file(&file, position, disk_pages)?;
            position += disk_pages.max(1);
            context.advance_tick()?;
        }
        context.machine.set_streaming(false);
        context.delete_file(file)?;
        Ok(())
    }

    pub(super) fn large_file_seconds(context: &LoadContext<'_>) -> u64 {
        2 * context.model.frames / context.parameter("disk").max(1) / super::load_context::TICKS_PER_SECOND
            + 1
    }
}
